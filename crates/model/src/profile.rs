//! Measured graph-curves `G_i = {x_1..x_n, N, points}` with every sample kept (thesis, 3.5.1).
//!
//! The knee-point `K` is not stored: it follows from the points (`planner`).

use crate::Invalid;
use crate::application::{Application, Parameters, TimeSource};
use crate::name::Name;
use crate::pattern::Pattern;
use crate::units::{BitsPerSecond, CpuPpm, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the profile file that this program writes and reads.
pub const PROFILE_VERSION: u32 = 1;
/// Most points of a curve, and bandwidths of a grid: fitting a curve takes the cube of them, and who asks waits for it.
pub const POINTS_MAX: usize = 64;

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
    /// What else the application file says of the program. Nothing where a profile was measured before that was kept:
    /// it is not compared then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Program>,
}

/// What an application file says that changes what is measured, beside the command template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Who talks to whom.
    pub pattern: Pattern,
    /// How the execution time is told.
    pub time: TimeSource,
    /// The file's own constants; not those by which a caller says where things are on a machine
    /// ([`Application::with_constant`]).
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub constants: Parameters,
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
            if let Some(other) = keys.insert((&curve.parameters, curve.nodes), index) {
                let expected = format!("parameters and nodes other than those of curves[{other}]");
                let field = format!("curves[{index}].parameters");
                return Err(Invalid::new(field, format!("{:?}", curve.parameters), expected));
            }
            let of_curve = |invalid: Invalid| invalid.within(&format!("curves[{index}]"));
            check_points(&curve.points).map_err(of_curve)?;
        }
        Ok(())
    }

    /// Checks what comes in: [`Self::check`], and that no curve has more than [`POINTS_MAX`] points. What was recorded before
    /// that was a limit is planned with all the same.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check_new(&self) -> Result<(), Invalid> {
        self.check()?;
        let count = |curve: &Curve| curve.points.len();
        match self.curves.iter().map(count).enumerate().find(|(_, count)| *count > POINTS_MAX) {
            None => Ok(()),
            Some((index, count)) => {
                let field = format!("curves[{index}].points");
                Err(Invalid::new(field, count, format!("at most {POINTS_MAX} points")))
            }
        }
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

fn check_points(points: &[Point]) -> Result<(), Invalid> {
    let bandwidths: Vec<_> = points.iter().map(|p| p.bandwidth_bits_per_second.get()).collect();
    if !bandwidths.is_sorted_by(|a, b| a < b) || bandwidths.first() == Some(&0) {
        let expected = "bandwidths above zero, ascending, each once";
        return Err(Invalid::new("points", format!("{bandwidths:?}"), expected));
    }
    for (at, Point { samples_nanos, .. }) in points.iter().enumerate() {
        if samples_nanos.is_empty() || samples_nanos.contains(&Nanos::new(0)) {
            let field = format!("points[{at}].samples_nanos");
            let samples: Vec<_> = samples_nanos.iter().map(|time| time.get()).collect();
            let expected = "samples above zero, at least one";
            return Err(Invalid::new(field, format!("{samples:?}"), expected));
        }
    }
    Ok(())
}

impl Program {
    /// What `application` is here.
    pub fn of(application: &Application) -> Self {
        let own = application.own_constants();
        Self {
            pattern: application.pattern().clone(),
            time: application.time().clone(),
            constants: own.map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }
}

impl Conditions {
    /// What differs, one sentence a difference; empty if a profile measured under `self` holds
    /// under `here`. What one of them does not know of the program is not compared, nor a constant that one of them
    /// does not have: the command says which there are.
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
        if let (Some(then), Some(now)) = (&self.program, &here.program) {
            compare("pattern", then.pattern.to_string(), now.pattern.to_string());
            compare("time", then.time.to_string(), now.time.to_string());
            for (name, value) in &then.constants {
                if let Some(now) = now.constants.get(name) {
                    compare(&format!("constant {name}"), value.clone(), now.clone());
                }
            }
        }
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
            program: None,
        }
    }

    /// The same for a program that is told so many bytes.
    fn sending(bytes: &str) -> Conditions {
        let program = Program {
            pattern: Pattern::Ring,
            time: TimeSource::Wall,
            constants: Parameters::from([("bytes".parse().unwrap(), bytes.into())]),
        };
        Conditions { program: Some(program), ..conditions() }
    }

    #[test]
    fn differences_name_both_sides() {
        let here =
            Conditions { link_bits_per_second: BitsPerSecond::from_mbit(100), ..conditions() };
        let found = conditions().differences(&here);
        assert_eq!(found, ["link rate: measured with 200 Mbit/s, here 100 Mbit/s"]);
        assert!(conditions().differences(&conditions()).is_empty());
    }

    // Goal: a program that was changed is another one, although its command is the same.
    #[test]
    fn what_the_file_says_of_the_program_is_compared_where_it_is_known() {
        let found = sending("10000").differences(&sending("1000000"));
        assert_eq!(found, ["constant bytes: measured with 10000, here 1000000"]);
        assert!(sending("1").differences(&sending("1")).is_empty());
        let changed = |change: fn(&mut Program)| {
            let mut here = sending("1");
            here.program.iter_mut().for_each(change);
            sending("1").differences(&here)
        };
        let pattern = changed(|program| program.pattern = Pattern::Pairs);
        assert_eq!(pattern, ["pattern: measured with ring, here pairs"]);
        let time = changed(|program| program.time = TimeSource::Stdout("t".into()));
        assert_eq!(time, ["time: measured with wall, here stdout t"]);
        // Given by a caller here.
        assert!(changed(|program| program.constants.clear()).is_empty());
        assert!(conditions().differences(&sending("1")).is_empty(), "it was not kept");
    }

    // Goal: what was recorded before reads back. Method: conditions as files have them that are older.
    #[test]
    fn conditions_without_a_program_are_read_and_written_as_before() {
        let json = serde_json::to_string(&conditions()).unwrap();
        assert!(!json.contains("program"), "{json}");
        assert_eq!(serde_json::from_str::<Conditions>(&json).unwrap(), conditions());
        let json = serde_json::to_string(&sending("1")).unwrap();
        assert_eq!(serde_json::from_str::<Conditions>(&json).unwrap(), sending("1"));
    }

    #[test]
    fn a_point_that_is_wrong_is_named_and_so_are_too_many() {
        let mut profile = Profile::empty("a".parse().unwrap(), conditions(), vec![]);
        for mbit in 1..=POINTS_MAX as u64 {
            let rate = BitsPerSecond::from_mbit(mbit);
            profile.record(&Parameters::new(), 2, rate, Nanos::new(1));
        }
        assert_eq!(profile.check_new(), Ok(()));
        let mut many = profile.clone();
        many.record(&Parameters::new(), 2, BitsPerSecond::from_mbit(99), Nanos::new(1));
        assert_eq!(many.check(), Ok(()), "it may have been recorded");
        let error = many.check_new().unwrap_err().to_string();
        assert_eq!(error, "curves[0].points: \"65\" is not accepted; expected at most 64 points");
        profile.record(&Parameters::new(), 2, BitsPerSecond::from_mbit(2), Nanos::new(0));
        let error = profile.check().unwrap_err();
        assert_eq!(error.field, "curves[0].points[1].samples_nanos");
        assert_eq!(error.value.as_deref(), Some("[1, 0]"));
        assert_eq!(profile.check_new(), Err(error));
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
