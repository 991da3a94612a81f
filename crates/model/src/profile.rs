//! Measured graph-curves `G_i = {x_1..x_n, N, points}` with every sample kept (thesis, 3.5.1).
//!
//! The knee-point `K` is not stored: it follows from the points (`planner`).

use crate::Invalid;
use crate::application::Parameters;
use crate::name::Name;
use crate::units::{BitsPerSecond, CpuPpm, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the profile file that this program writes and reads.
pub const PROFILE_VERSION: u32 = 1;

/// Everything that was measured of one application on one kind of cluster. A plain JSON file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`PROFILE_VERSION`].
    pub version: u32,
    /// The application's name.
    pub application: Name,
    /// What it was measured on.
    pub conditions: Conditions,
    /// Measured beside greedy best-effort flows on all links rather than on an idle cluster: packets of
    /// others cost the nodes CPU that no reservation gives back.
    pub under_load: bool,
    /// The bandwidths that a point may have, ascending: the full grid of each curve.
    pub bandwidth_grid_bits_per_second: Vec<BitsPerSecond>,
    /// One curve for each combination of parameters and number of nodes.
    pub curves: Vec<Curve>,
}

/// What a profile depends on beside the application's parameters. A profile is of no use where
/// these differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// The rate of the slowest node link.
    pub link_bits_per_second: BitsPerSecond,
    /// CPU of each process.
    pub process_cpu_ppm: CpuPpm,
    /// The processor's model name.
    pub processor: String,
    /// The MPI implementation and its version.
    pub mpi: String,
    /// The command template.
    pub command: Vec<String>,
}

/// One line of a profile: execution time against bandwidth per flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// The application's parameters.
    pub parameters: Parameters,
    /// The number of nodes.
    pub nodes: u32,
    /// Measured points, ascending by bandwidth.
    pub points: Vec<Point>,
}

/// All runs at one bandwidth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Reserved for each flow, in each direction.
    pub bandwidth_bits_per_second: BitsPerSecond,
    /// The execution time of each run, in the order in which they were made.
    pub samples_nanos: Vec<Nanos>,
}

impl Profile {
    /// A profile without any measurement, to be made on an idle cluster.
    pub fn empty(application: Name, conditions: Conditions, grid: Vec<BitsPerSecond>) -> Self {
        let curves = Vec::new();
        let bandwidth_grid_bits_per_second = grid;
        Self {
            version: PROFILE_VERSION,
            application,
            conditions,
            under_load: false,
            bandwidth_grid_bits_per_second,
            curves,
        }
    }

    /// Checks what serde cannot: version, order of points, at least one sample everywhere.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.version != PROFILE_VERSION {
            return Err(Invalid::new("version", self.version, PROFILE_VERSION.to_string()));
        }
        let mut keys = BTreeMap::new();
        for (index, curve) in self.curves.iter().enumerate() {
            let field = |part: &str| format!("curves[{index}].{part}");
            if let Some(other) = keys.insert((&curve.parameters, curve.nodes), index) {
                let expected = format!("parameters and nodes other than those of curves[{other}]");
                return Err(Invalid::new(
                    field("parameters"),
                    format!("{:?}", curve.parameters),
                    expected,
                ));
            }
            let bandwidths: Vec<_> =
                curve.points.iter().map(|p| p.bandwidth_bits_per_second.get()).collect();
            if !bandwidths.is_sorted_by(|a, b| a < b) || bandwidths.first() == Some(&0) {
                let expected = "bandwidths above zero, ascending, each once";
                return Err(Invalid::new(field("points"), format!("{bandwidths:?}"), expected));
            }
            if curve
                .points
                .iter()
                .any(|p| p.samples_nanos.is_empty() || p.samples_nanos.contains(&Nanos::new(0)))
            {
                return Err(Invalid::new(
                    field("points"),
                    "0",
                    "samples above zero, at least one a point",
                ));
            }
        }
        Ok(())
    }

    /// The curve of `parameters` on `nodes` nodes.
    pub fn curve(&self, parameters: &Parameters, nodes: u32) -> Option<&Curve> {
        self.curves.iter().find(|c| c.nodes == nodes && c.parameters == *parameters)
    }

    /// Adds one run's time; the curve and the point come into being if they are new.
    pub fn record(
        &mut self,
        parameters: &Parameters,
        nodes: u32,
        bandwidth: BitsPerSecond,
        time: Nanos,
    ) {
        let found =
            self.curves.iter().position(|c| c.nodes == nodes && c.parameters == *parameters);
        let index = found.unwrap_or_else(|| {
            self.curves.push(Curve { parameters: parameters.clone(), nodes, points: Vec::new() });
            self.curves.len() - 1
        });
        let points = &mut self.curves[index].points;
        match points.binary_search_by_key(&bandwidth, |p| p.bandwidth_bits_per_second) {
            Ok(at) => points[at].samples_nanos.push(time),
            Err(at) => points.insert(
                at,
                Point { bandwidth_bits_per_second: bandwidth, samples_nanos: vec![time] },
            ),
        }
    }

    /// Number of runs recorded.
    pub fn run_count(&self) -> usize {
        self.curves.iter().flat_map(|c| &c.points).map(|p| p.samples_nanos.len()).sum()
    }
}

impl Conditions {
    /// What differs, one sentence a difference; empty if a profile measured under `self` holds
    /// under `here`.
    pub fn differences(&self, here: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, profile: String, here: String| {
            if profile != here {
                found.push(format!("{what}: measured with {profile}, here {here}"));
            }
        };
        compare(
            "link rate",
            self.link_bits_per_second.to_string(),
            here.link_bits_per_second.to_string(),
        );
        compare(
            "CPU of a process",
            self.process_cpu_ppm.to_string(),
            here.process_cpu_ppm.to_string(),
        );
        compare("processor", self.processor.clone(), here.processor.clone());
        compare("MPI", self.mpi.clone(), here.mpi.clone());
        compare("command", self.command.join(" "), here.command.join(" "));
        found
    }
}

impl Point {
    /// The middle sample; of an even number the mean of the two middle ones, rounded up.
    pub fn median(&self) -> Nanos {
        let mut sorted = self.samples_nanos.clone();
        sorted.sort_unstable();
        let middle = |at: usize| sorted.get(at).map_or(0, |time| u128::from(time.get()));
        let doubled = middle(sorted.len().saturating_sub(1) / 2) + middle(sorted.len() / 2);
        Nanos::new(doubled.div_ceil(2) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn conditions() -> Conditions {
        Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(200),
            process_cpu_ppm: CpuPpm::from_percent(20),
            processor: "x".into(),
            mpi: "Open MPI 4.1.4".into(),
            command: vec!["a".into()],
        }
    }

    #[test]
    fn differences_name_both_sides() {
        let here =
            Conditions { link_bits_per_second: BitsPerSecond::from_mbit(100), ..conditions() };
        let found = conditions().differences(&here);
        assert_eq!(found, ["link rate: measured with 200 Mbit/s, here 100 Mbit/s"]);
        assert!(conditions().differences(&conditions()).is_empty());
    }

    #[test]
    fn a_newer_version_is_refused() {
        let mut profile = Profile::empty("a".parse().unwrap(), conditions(), vec![]);
        profile.version = 2;
        assert_eq!(profile.check().unwrap_err().field, "version");
    }

    proptest! {
        #[test]
        fn recorded_runs_keep_the_profile_sound_and_read_back(
            runs in prop::collection::vec((1u32..4, 1u64..50, 1u64..1_000_000), 0..60)
        ) {
            let mut profile = Profile::empty("a".parse().unwrap(), conditions(), vec![]);
            for (nodes, mbit, nanos) in &runs {
                profile.record(&Parameters::new(), *nodes, BitsPerSecond::from_mbit(*mbit), Nanos::new(*nanos));
            }
            prop_assert_eq!(profile.check(), Ok(()));
            prop_assert_eq!(profile.run_count(), runs.len());
            let json = serde_json::to_string(&profile).unwrap();
            prop_assert_eq!(serde_json::from_str::<Profile>(&json).unwrap(), profile);
        }

        #[test]
        fn any_json_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = serde_json::from_str::<Profile>(&text);
        }
    }
}
