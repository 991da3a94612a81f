//! Full speed as an earlier run has measured it, in a file beside the application's profile. A run that finds it there
//! needs no more of its nodes than its rate from the start, and so has room beside others.

use crate::commands::Session;
use crate::files;
use anyhow::{Context, Result, ensure};
use keeptime_control::FullSpeed;
use keeptime_model::application::{Parameters, ProgressSource};
use keeptime_model::profile::Conditions;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::{fs, io};

/// What the file has instead of the profile's `.json`.
const EXTENSION: &str = "full-speed.json";
/// What it has instead where work is counted by MPI calls: an iteration of theirs need not be what a line tells.
const EXTENSION_OF_MPI: &str = "full-speed-mpi.json";
/// What it has instead where a command prints how much was done.
const EXTENSION_OF_COMMAND: &str = "full-speed-command.json";

/// Where full speeds of an application are kept that were measured under the conditions of here.
#[derive(Debug, Clone)]
pub struct KnownSpeeds {
    path: PathBuf,
    conditions: Conditions,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    conditions: Conditions,
    known: Vec<Known>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    parameters: Parameters,
    nodes: u32,
    full_speed: FullSpeed,
}

impl KnownSpeeds {
    /// Those of the session's application on its cluster.
    pub fn of(session: &Session) -> Self {
        let Session { cluster, mpi, application, profile_path, .. } = session;
        let extension = match application.progress_source() {
            Some(ProgressSource::MpiCalls) => EXTENSION_OF_MPI,
            Some(ProgressSource::Command(_)) => EXTENSION_OF_COMMAND,
            _ => EXTENSION,
        };
        Self {
            path: profile_path.with_extension(extension),
            conditions: cluster.conditions(application, &mpi.to_string()),
        }
    }

    /// Full speed with these parameters on so many nodes, if it was measured here before.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn find(&self, parameters: &Parameters, nodes: u32) -> Result<Option<FullSpeed>> {
        let known = self.read()?.into_iter().find(|known| known.is_of(parameters, nodes));
        Ok(known.map(|known| known.full_speed))
    }

    /// Keeps what was measured, in the place of what was known. What was measured elsewhere goes.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn keep(&self, parameters: &Parameters, nodes: u32, full_speed: &FullSpeed) -> Result<()> {
        let mut known = self.read()?;
        known.retain(|known| !known.is_of(parameters, nodes));
        let (parameters, full_speed) = (parameters.clone(), full_speed.clone());
        known.push(Known { parameters, nodes, full_speed });
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        files::save_json(&self.path, &File { conditions: self.conditions.clone(), known })
    }

    fn read(&self) -> Result<Vec<Known>> {
        let path = self.path.display();
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context(path.to_string()),
        };
        let file: File = serde_json::from_slice(&text)
            .with_context(|| format!("{path} does not tell full speeds: remove it"))?;
        for known in &file.known {
            let rate = known.full_speed.rate();
            let nodes = known.full_speed.nodes_told();
            ensure!(
                rate.is_finite() && rate > 0.0 && (nodes == 1 || nodes == known.nodes as usize),
                "{path} has a full speed of {rate} on {nodes} nodes, expected one above 0 of {}, or of one \
                 that stands for all: remove it",
                known.nodes
            );
        }
        let is_of_here = file.conditions.differences(&self.conditions).is_empty();
        Ok(if is_of_here { file.known } else { Vec::new() })
    }
}

impl Known {
    fn is_of(&self, parameters: &Parameters, nodes: u32) -> bool {
        self.nodes == nodes && self.parameters == *parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::application::TimeSource;
    use keeptime_model::pattern::Pattern;
    use keeptime_model::profile::Program;
    use keeptime_model::units::{BitsPerSecond, CpuPpm};
    use tempfile::TempDir;

    fn speeds(directory: &TempDir, link: u64) -> KnownSpeeds {
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(link),
            process_cpu_ppm: CpuPpm::from_percent(30),
            processor: "one".into(),
            mpi: "some".into(),
            command: vec!["bsp".into()],
            program: None,
        };
        KnownSpeeds { path: directory.path().join("profiles/bsp.full-speed.json"), conditions }
    }

    fn speed(rate: f64) -> FullSpeed {
        FullSpeed::new(rate, &[CpuPpm::from_percent(20)]).unwrap()
    }

    #[test]
    fn what_was_measured_last_under_the_same_conditions_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let here = speeds(&directory, 100);
        let small = Parameters::from([("size".parse().unwrap(), "1".to_owned())]);
        let none = Parameters::default();
        assert_eq!(here.find(&none, 2).unwrap(), None);
        here.keep(&none, 2, &speed(3.0)).unwrap();
        here.keep(&small, 2, &speed(9.0)).unwrap();
        here.keep(&none, 2, &speed(4.0)).unwrap();
        assert_eq!(here.find(&none, 2).unwrap(), Some(speed(4.0)));
        assert_eq!(here.find(&small, 2).unwrap(), Some(speed(9.0)));
        assert_eq!(here.find(&none, 4).unwrap(), None);
        let elsewhere = speeds(&directory, 1_000);
        assert_eq!(elsewhere.find(&none, 2).unwrap(), None);
        elsewhere.keep(&none, 4, &speed(5.0)).unwrap();
        assert_eq!(here.find(&none, 2).unwrap(), None, "it was measured elsewhere since");
    }

    // Goal: what a program did before it was changed is not taken for what it does now.
    #[test]
    fn full_speed_of_a_program_that_was_changed_since_is_not_known() {
        let directory = tempfile::tempdir().unwrap();
        let sending = |bytes: &str| {
            let mut speeds = speeds(&directory, 100);
            speeds.conditions.program = Some(Program {
                pattern: Pattern::Ring,
                time: TimeSource::Wall,
                constants: Parameters::from([("bytes".parse().unwrap(), bytes.to_owned())]),
            });
            speeds
        };
        sending("10000").keep(&Parameters::default(), 2, &speed(3.0)).unwrap();
        let known = |bytes| sending(bytes).find(&Parameters::default(), 2).unwrap();
        assert_eq!(known("10000"), Some(speed(3.0)));
        assert_eq!(known("1000000"), None);
    }

    #[test]
    fn a_file_that_says_something_else_is_refused_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let here = speeds(&directory, 100);
        here.keep(&Parameters::default(), 2, &speed(3.0)).unwrap();
        let text = fs::read_to_string(&here.path).unwrap();
        for wrong in [text.replace("\"seconds\": 0.3", "\"seconds\": -0.3"), "{".into()] {
            fs::write(&here.path, wrong).unwrap();
            let error = here.find(&Parameters::default(), 2).unwrap_err();
            assert!(error.to_string().contains("bsp.full-speed.json"), "{error}");
            assert!(error.to_string().contains("remove it"), "{error}");
        }
    }
}
