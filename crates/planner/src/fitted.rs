//! All curves of an application, fitted, with the flows of every number of nodes.

use crate::curve::FittedCurve;
use crate::drift::{Drift, Observation};
use crate::placement::RankFlows;
use crate::promise::Deviations;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::profile::{Curve, Profile};
use keeptime_model::units::{BitsPerSecond, Nanos};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A profile ready to be planned with: build it once for each change of the profile, plan with it
/// as often as there are requests (the thesis' profiler stores the knees likewise).
#[derive(Debug, Clone)]
pub struct FittedProfile {
    application: Application,
    curves: Vec<FittedCurve>,
    /// By curve: the rank of its parameters in the application's order of preference, 0 the best.
    preference: Vec<u32>,
    flows: BTreeMap<u32, RankFlows>,
    /// Of all curves.
    deviations: Deviations,
    drift: Drift,
    /// See [`Self::uncorrected_ppm`].
    seen_ppm: i64,
}

impl FittedProfile {
    /// Fits every curve of `profile` that has points, and that the application still has: what was taken from its
    /// file since cannot be run. O(runs) fits a curve, and the flows of the application's pattern for every number
    /// of nodes.
    ///
    /// # Errors
    /// If the profile is not sound or belongs to another application.
    pub fn new(application: Application, profile: &Profile) -> Result<Self, Invalid> {
        profile.check()?;
        if profile.application != *application.name() {
            let expected = application.name().as_str();
            return Err(Invalid::new("application", &profile.application, expected));
        }
        let can_run = |curve: &&Curve| {
            application.nodes().contains(&curve.nodes) && application.has(&curve.parameters)
        };
        let curves = profile.curves.iter().filter(can_run).filter_map(FittedCurve::new);
        let curves: Vec<_> = curves.collect();
        let deviations = Deviations::merged(curves.iter().map(FittedCurve::deviations));
        let lend = |curve: FittedCurve| curve.with_lent(deviations.clone());
        let curves: Vec<_> = curves.into_iter().map(lend).collect();
        let mut flows = BTreeMap::new();
        for nodes in curves.iter().map(FittedCurve::nodes) {
            if let Entry::Vacant(free) = flows.entry(nodes) {
                free.insert(RankFlows::new(application.pattern(), nodes)?);
            }
        }
        let preference = preference_ranks(&application, &curves);
        let (drift, seen_ppm) = (Drift::NONE, 0);
        Ok(Self { application, curves, preference, flows, deviations, drift, seen_ppm })
    }

    /// The same, now that the last of `runs` (oldest first) took what they took: by that, computing has changed since it was
    /// measured.
    pub fn following(mut self, runs: &[Observation]) -> Self {
        let drift = Drift::estimate(runs);
        self.curves = self.curves.into_iter().map(|curve| curve.with_drift(drift)).collect();
        (self.drift, self.seen_ppm) = (drift, Drift::seen_ppm(runs));
        self
    }

    /// By how much computing has changed since the curves were measured.
    pub fn drift(&self) -> Drift {
        self.drift
    }

    /// The same in parts per million, where that is more than is corrected
    /// ([`GREATEST_PPM`](crate::drift::GREATEST_PPM)): the profile is to be measured again.
    pub fn uncorrected_ppm(&self) -> Option<i64> {
        Some(self.seen_ppm).filter(|seen| *seen != self.drift.ppm())
    }

    /// How far runs were from what their curves say, of all curves: a promise needs as many of them as it is for a
    /// share of runs ([`Deviations::supported`]).
    pub fn deviations(&self) -> &Deviations {
        &self.deviations
    }

    /// What a run on so many nodes, with that rate for each flow, that took `actual` says of the
    /// drift; nothing if there is no such curve.
    pub fn observe(
        &self,
        parameters: &Parameters,
        nodes: u32,
        rate: BitsPerSecond,
        actual: Nanos,
    ) -> Option<Observation> {
        let curve = self.curve(parameters, nodes)?;
        Some(Observation {
            measured_nanos: curve.measured_at(rate)?,
            computing_nanos: curve.computing(),
            actual_nanos: actual,
        })
    }

    /// The application that was measured.
    pub fn application(&self) -> &Application {
        &self.application
    }

    /// The fitted curves, in the order of the profile.
    pub fn curves(&self) -> &[FittedCurve] {
        &self.curves
    }

    /// The curve of `parameters` on `nodes` nodes.
    pub fn curve(&self, parameters: &Parameters, nodes: u32) -> Option<&FittedCurve> {
        let is_it = |c: &&FittedCurve| c.nodes() == nodes && **c.parameters() == *parameters;
        self.curves.iter().find(is_it)
    }

    /// The rank of a curve's parameters in the application's order of preference: 0 is the best,
    /// equal parameters have equal ranks.
    pub fn preference(&self, curve: usize) -> u32 {
        self.preference[curve]
    }

    /// The flows among the ranks, by the number of nodes; one entry for each that was measured.
    pub fn flows(&self) -> &BTreeMap<u32, RankFlows> {
        &self.flows
    }
}

fn preference_ranks(application: &Application, curves: &[FittedCurve]) -> Vec<u32> {
    let keys: Vec<_> = curves.iter().map(|c| application.preference(c.parameters())).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    keys.iter().map(|key| sorted.partition_point(|k| k < key) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{application, conditions, parameters};
    use keeptime_model::pattern::Pattern;

    fn empty() -> Profile {
        Profile::empty("ray".parse().unwrap(), conditions(), vec![])
    }

    #[test]
    fn better_parameters_rank_first_and_equal_ones_alike() {
        let application = application(&Pattern::Ring);
        let mut profile = empty();
        let grid = application.grid();
        for nodes in [2, 4] {
            for parameters in grid.iter().rev() {
                profile.record(parameters, nodes, BitsPerSecond::new(1), Nanos::new(1));
            }
        }
        let fitted = FittedProfile::new(application, &profile).unwrap();
        let ranks: Vec<_> = (0..12).map(|curve| fitted.preference(curve)).collect();
        assert_eq!(ranks, [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn unusable_profiles_are_refused_and_empty_curves_left_out() {
        let refused = |pattern, profile: &Profile| {
            FittedProfile::new(application(&pattern), profile).unwrap_err().field
        };
        let other = Profile { application: "other".parse().unwrap(), ..empty() };
        assert_eq!(refused(Pattern::Ring, &other), "application");
        assert_eq!(refused(Pattern::Ring, &Profile { version: 9, ..empty() }), "version");
        let mut bare = empty();
        let parameters = parameters("512", "0");
        bare.curves.push(Curve { parameters, nodes: 2, points: vec![] });
        let fitted = FittedProfile::new(application(&Pattern::Ring), &bare).unwrap();
        assert!(fitted.curves().is_empty());
    }

    // Goal: what was measured and cannot be run any more is neither planned with nor lends its deviations. Method: curves
    // of a number of nodes, of a value and of a parameter that the application does not have, beside one that it has.
    #[test]
    fn curves_that_the_application_does_not_have_any_more_are_left_out() {
        let mut profile = empty();
        let mut record = |parameters: &Parameters, nodes| {
            for time in [1_000, 1_100, 1_200] {
                profile.record(parameters, nodes, BitsPerSecond::new(1), Nanos::new(time));
            }
        };
        let kept = parameters("512", "0");
        let more = Parameters::from([("colour".parse().unwrap(), "red".into())]);
        record(&kept, 2);
        record(&kept, 3);
        record(&parameters("4096", "0"), 2);
        record(&kept.iter().chain(&more).map(|(n, v)| (n.clone(), v.clone())).collect(), 2);
        record(&Parameters::new(), 2);
        let fitted = FittedProfile::new(application(&Pattern::Hypercube), &profile).unwrap();
        let [curve] = fitted.curves() else { panic!("{:?}", fitted.curves()) };
        assert_eq!((&**curve.parameters(), curve.nodes()), (&kept, 2));
        assert_eq!(fitted.deviations(), curve.deviations());
    }

    // Goal: who plans knows that runs are later than is corrected. Method: runs that compute only, 20 and 45 % late.
    #[test]
    fn a_drift_beyond_what_is_corrected_is_told() {
        let mut profile = empty();
        let kept = parameters("512", "0");
        profile.record(&kept, 2, BitsPerSecond::new(1), Nanos::from_millis(1_000));
        let fitted = FittedProfile::new(application(&Pattern::Ring), &profile).unwrap();
        let after = |millis| {
            let actual = Nanos::from_millis(millis);
            let run = fitted.observe(&kept, 2, BitsPerSecond::new(1), actual).unwrap();
            fitted.clone().following(&[run; 8])
        };
        assert_eq!(after(1_200).uncorrected_ppm(), None);
        let late = after(1_450);
        assert_eq!(late.drift().ppm(), crate::drift::GREATEST_PPM);
        assert!(late.uncorrected_ppm().is_some_and(|seen| seen > 400_000), "{late:?}");
        assert_eq!(late.following(&[]).uncorrected_ppm(), None);
    }
}
