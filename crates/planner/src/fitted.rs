//! All curves of an application, fitted, with the flows of every number of nodes.

use crate::curve::FittedCurve;
use crate::drift::{Drift, Observation};
use crate::placement::RankFlows;
use crate::promise::Deviations;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::profile::Profile;
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
    drift: Drift,
}

impl FittedProfile {
    /// Fits every curve of `profile` that has points. O(runs) fits a curve, and the flows of the
    /// application's pattern for every number of nodes.
    ///
    /// # Errors
    /// If the profile is not sound, belongs to another application, or has a number of nodes for
    /// which the application's pattern does not exist.
    pub fn new(application: Application, profile: &Profile) -> Result<Self, Invalid> {
        profile.check()?;
        if profile.application != *application.name() {
            let expected = application.name().as_str();
            return Err(Invalid::new("application", &profile.application, expected));
        }
        let curves: Vec<_> = profile.curves.iter().filter_map(FittedCurve::new).collect();
        let all = Deviations::merged(curves.iter().map(FittedCurve::deviations));
        let curves: Vec<_> = curves.into_iter().map(|c| c.with_lent(all.clone())).collect();
        let mut flows = BTreeMap::new();
        for nodes in curves.iter().map(FittedCurve::nodes) {
            if let Entry::Vacant(free) = flows.entry(nodes) {
                free.insert(RankFlows::new(application.pattern(), nodes)?);
            }
        }
        let preference = preference_ranks(&application, &curves);
        Ok(Self { application, curves, preference, flows, drift: Drift::NONE })
    }

    /// The same, now that computing has changed by `drift` since it was measured.
    pub fn with_drift(mut self, drift: Drift) -> Self {
        self.curves = self.curves.into_iter().map(|curve| curve.with_drift(drift)).collect();
        self.drift = drift;
        self
    }

    /// By how much computing has changed since the curves were measured.
    pub fn drift(&self) -> Drift {
        self.drift
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
    use crate::testing::{application, conditions};
    use keeptime_model::pattern::Pattern;
    use keeptime_model::profile::Curve;
    use keeptime_model::units::{BitsPerSecond, Nanos};

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
        let mut three = empty();
        three.record(&Default::default(), 3, BitsPerSecond::new(1), Nanos::new(1));
        assert_eq!(refused(Pattern::Hypercube, &three), "nodes");
        let mut bare = empty();
        bare.curves.push(Curve { parameters: Default::default(), nodes: 2, points: vec![] });
        let fitted = FittedProfile::new(application(&Pattern::Ring), &bare).unwrap();
        assert!(fitted.curves().is_empty());
    }
}
