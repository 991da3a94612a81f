//! What the last runs took, in a small file beside each profile: by them promises follow the machine
//! (`keeptime_planner::drift`).

use crate::files;
use anyhow::{Context, Result};
use keeptime_planner::drift::{Observation, RUNS};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The last runs, oldest first; none if there is no file.
///
/// # Errors
/// If the file cannot be read.
pub fn load(profile: &Path) -> Result<Vec<Observation>> {
    let path = beside(profile);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    serde_json::from_slice(&text).with_context(|| {
        format!(
            "{} does not hold the last runs; without it the profile alone counts",
            path.display()
        )
    })
}

/// Adds one run and lets the oldest go. Commands that end at the same time take turns.
///
/// # Errors
/// If the file cannot be read or written.
pub fn add(profile: &Path, run: Observation) -> Result<()> {
    let path = beside(profile);
    let lock = path.with_extension("lock");
    let turn = File::create(&lock).with_context(|| format!("cannot write {}", lock.display()))?;
    turn.lock().with_context(|| format!("cannot lock {}", lock.display()))?;
    let mut runs = load(profile)?;
    runs.push(run);
    let oldest = runs.len().saturating_sub(RUNS);
    files::save_json(&path, &runs[oldest..].to_vec())
}

/// Forgets all runs: the profile has just been measured, so it tells how things are now.
///
/// # Errors
/// If there is a file that cannot be removed.
pub fn forget(profile: &Path) -> Result<()> {
    let path = beside(profile);
    match fs::remove_file(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// `raycast.json` has `raycast.recent.json`.
fn beside(profile: &Path) -> PathBuf {
    profile.with_extension("recent.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;

    fn run(actual: u64) -> Observation {
        let [measured_nanos, computing_nanos, actual_nanos] = [100, 50, actual].map(Nanos::new);
        Observation { measured_nanos, computing_nanos, actual_nanos }
    }

    #[test]
    fn the_last_runs_are_kept_until_they_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let profile = directory.path().join("a.json");
        forget(&profile).unwrap();
        assert_eq!(load(&profile).unwrap(), []);
        let all: Vec<_> = (1..=RUNS as u64 + 3).map(run).collect();
        for run in &all {
            add(&profile, *run).unwrap();
        }
        assert_eq!(load(&profile).unwrap(), all[3..]);
        forget(&profile).unwrap();
        assert_eq!(load(&profile).unwrap(), []);
    }

    #[test]
    fn a_torn_file_is_told_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let profile = directory.path().join("a.json");
        fs::write(directory.path().join("a.recent.json"), "[{").unwrap();
        assert!(format!("{:#}", load(&profile).unwrap_err()).contains("a.recent.json"));
        assert!(add(&profile, run(1)).is_err());
    }
}
