//! How long an application takes on each number of nodes, as its profile or its user says, and the job that comes of it.

use super::job::Job;
use crate::curve::FittedCurve;
use crate::fitted::FittedProfile;
use keeptime_model::application::{Application, Parameters, TimeSource};
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{NodeChoice, Resources};
use keeptime_model::units::{BitsPerSecond, Nanos, Share, WallTime};
use std::collections::BTreeMap;

/// The least bandwidth of each flow that costs no time, and the time that is promised with it at full speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knee {
    /// That time.
    pub time: Nanos,
    /// That bandwidth; 0 where nobody knows it.
    pub bandwidth: BitsPerSecond,
}

/// By the number of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knees(BTreeMap<u32, Knee>);

impl Knees {
    /// Of all curves of these parameters, with the times that `quantile` of the runs keep.
    pub fn of_profile(fitted: &FittedProfile, parameters: &Parameters, quantile: Share) -> Self {
        let is_of_these = |curve: &&FittedCurve| **curve.parameters() == *parameters;
        let knee = |curve: &FittedCurve| {
            let knee = curve.knee();
            let time = curve.promise(quantile).time(knee.time_nanos);
            (curve.nodes(), Knee { time, bandwidth: knee.bandwidth_bits_per_second })
        };
        Self(fitted.curves().iter().filter(is_of_these).map(knee).collect())
    }

    /// Where there is no profile: as long as its user says, however many nodes it has.
    pub fn told(application: &Application, takes: Nanos) -> Self {
        let knee = Knee { time: takes, bandwidth: BitsPerSecond::ZERO };
        Self(application.nodes().iter().map(|nodes| (*nodes, knee)).collect())
    }

    /// The numbers of nodes, the fewest first.
    pub fn counts(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// Those of the numbers of nodes that will do; nothing if none will.
    pub fn only(&self, will_do: impl Fn(u32) -> bool) -> Option<Self> {
        let those = self.0.iter().filter(|(nodes, _)| will_do(**nodes));
        let those: BTreeMap<_, _> = those.map(|(nodes, knee)| (*nodes, *knee)).collect();
        (!those.is_empty()).then_some(Self(those))
    }

    /// What is to be done by `by`, on any of these numbers of nodes. On the fewest it takes as long as `takes` says, or else
    /// as the knee does, if that is the time of a whole run; nothing if neither tells.
    pub fn job(
        &self,
        application: &Application,
        takes: Option<Nanos>,
        by: WallTime,
    ) -> Option<Job> {
        let (nodes, fewest) = self.0.first_key_value()?;
        let of_whole_run = (*application.time() == TimeSource::Wall).then_some(fewest.time);
        let takes = takes.or(of_whole_run)?;
        // Rounded down: it may be as fast as that.
        let speed = |knee: &Knee| {
            let exact = u128::from(fewest.time.get()) * u128::from(Share::ONE.ppm());
            u32::try_from(exact / u128::from(knee.time.get().max(1))).unwrap_or(u32::MAX)
        };
        let with_spare = takes.saturating_add(Nanos::new(takes.get() / SPARE_PART));
        let speed_ppm = self.0.iter().map(|(nodes, knee)| (*nodes, speed(knee))).collect();
        let job = Job::new(with_spare, *nodes, by);
        Some(Job { speed_ppm, cpu_ppm: application.cpu(), ..job })
    }

    /// What a run of a program with this pattern needs on `nodes` beside its CPU: all of the bandwidth, however slowly it
    /// computes. None is reserved where nobody knows how much, nor for a node alone.
    pub fn resources(&self, pattern: &Pattern, nodes: NodeChoice) -> Resources {
        let knee = self.0.get(&nodes.count()).filter(|_| nodes.count() > 1);
        let known = knee.map(|knee| knee.bandwidth).filter(|known| *known > BitsPerSecond::ZERO);
        Resources {
            nodes,
            pattern: known.map(|_| pattern.clone()),
            bits_per_second: known.unwrap_or_default(),
            ..Resources::nothing()
        }
    }
}

/// Runs differ by more than the profile's quantile knows, launching included: a tenth is added.
const SPARE_PART: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use keeptime_model::profile::Profile;
    use keeptime_model::units::CpuPpm;

    const BY: WallTime = WallTime::from_unix_nanos(1_000_000_000);

    fn application(time: &str) -> Application {
        let text = format!(
            "name = \"sum\"\ncommand = [\"sum\", \"{{size}}\"]\npattern = \"ring\"\nnodes = [1, 2, 4, 8]\n\
             cpu = \"40 %\"\ntimeout = \"60 s\"\ntime = {time}\n\
             parameters = [{{ name = \"size\", values = [\"1\", \"2\"] }}]\n"
        );
        Application::from_toml(&text).unwrap()
    }

    fn size(value: &str) -> Parameters {
        Parameters::from([("size".parse().unwrap(), value.into())])
    }

    fn knee(seconds: u64, mbit: u64) -> Knee {
        Knee { time: Nanos::from_secs(seconds), bandwidth: BitsPerSecond::from_mbit(mbit) }
    }

    /// With 10 and 20 Mbit/s. The first bandwidth suffices on two nodes, and not on four.
    fn of_profile() -> Knees {
        let grid = [10, 20].map(BitsPerSecond::from_mbit).to_vec();
        let mut profile =
            Profile::empty("sum".parse().unwrap(), testing::conditions(), grid.clone());
        for (parameters, nodes, seconds) in
            [("1", 2, [61, 60]), ("1", 4, [60, 40]), ("2", 8, [9, 9])]
        {
            for (bandwidth, seconds) in grid.iter().zip(seconds) {
                profile.record(&size(parameters), nodes, *bandwidth, Nanos::from_secs(seconds));
            }
        }
        let fitted = FittedProfile::new(application("\"wall\""), &profile).unwrap();
        Knees::of_profile(&fitted, &size("1"), Share::default())
    }

    #[test]
    fn work_and_speeds_come_from_the_knees() {
        let knees = of_profile();
        assert_eq!(knees, Knees(BTreeMap::from([(2, knee(61, 10)), (4, knee(40, 20))])));
        let job = knees.job(&application("\"wall\""), None, BY).unwrap();
        assert_eq!(job.work, Nanos::from_millis(67_100));
        assert_eq!(job.speed_ppm, BTreeMap::from([(2, 1_000_000), (4, 1_525_000)]));
        assert_eq!((job.cpu_ppm, job.by), (CpuPpm::from_percent(40), BY));
    }

    #[test]
    fn a_program_without_a_profile_is_as_fast_on_any_number_of_nodes() {
        let application = application("\"wall\"");
        let knees = Knees::told(&application, Nanos::from_secs(60));
        assert!(knees.counts().eq([1, 2, 4, 8]));
        let job = knees.job(&application, None, BY).unwrap();
        assert_eq!(job.work, Nanos::from_secs(66));
        assert!(job.speed_ppm.values().all(|speed| *speed == 1_000_000));
    }

    #[test]
    fn speeds_are_beside_the_fewest_nodes_that_will_do() {
        let knees = of_profile().only(|nodes| nodes > 2).unwrap();
        assert!(knees.counts().eq([4]));
        let job = knees.job(&application("\"wall\""), None, BY).unwrap();
        let (work, speed_ppm) = (Nanos::from_secs(44), BTreeMap::from([(4, 1_000_000)]));
        assert_eq!((job.work, job.speed_ppm), (work, speed_ppm));
        assert_eq!(of_profile().only(|nodes| nodes > 4), None);
    }

    // Goal: what a program tells of a part of itself is no time of the whole, and tells speeds all the same.
    #[test]
    fn how_long_a_whole_run_takes_is_not_taken_from_a_part_of_it() {
        let application = application("{ stdout = \"frame\" }");
        assert_eq!(of_profile().job(&application, None, BY), None);
        let job = of_profile().job(&application, Some(Nanos::from_secs(600)), BY).unwrap();
        assert_eq!((job.work, job.speed_ppm[&4]), (Nanos::from_secs(660), 1_525_000));
    }

    #[test]
    fn bandwidth_is_reserved_where_it_is_known_and_somebody_is_sent_to() {
        let needs = |knees: &Knees, nodes| {
            let resources = knees.resources(&Pattern::Ring, NodeChoice::Any(nodes));
            assert_eq!(resources.nodes, NodeChoice::Any(nodes));
            resources.pattern.map(|pattern| (pattern, resources.bits_per_second))
        };
        let mbit = |mbit| Some((Pattern::Ring, BitsPerSecond::from_mbit(mbit)));
        assert_eq!([2, 4].map(|nodes| needs(&of_profile(), nodes)), [mbit(10), mbit(20)]);
        let told = Knees::told(&application("\"wall\""), Nanos::from_secs(60));
        assert_eq!(needs(&told, 2), None);
        assert_eq!(needs(&Knees(BTreeMap::from([(1, knee(60, 10))])), 1), None);
    }
}
