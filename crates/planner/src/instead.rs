//! What other preferences would come to, for whoever states none and so takes all that makes it faster: less often does,
//! and better parameters as well.

use crate::curve::BandwidthRange;
use crate::explanation::{Alternative, CurveTrail, Explanation};
use crate::fitted::FittedProfile;
use crate::translate::order;
use keeptime_model::application::Parameters;
use keeptime_model::goal::Preference;
use keeptime_model::units::{BitsPerSecond, Nanos};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What would be planned by another preference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instead {
    /// The preference.
    pub prefer: Preference,
    /// The application's parameters.
    pub parameters: Arc<Parameters>,
    /// The number of nodes.
    pub nodes: u32,
    /// For each flow.
    pub bandwidth_bits_per_second: BitsPerSecond,
    /// Promised.
    pub time_nanos: Nanos,
}

/// What the cheapest plan would take where that is less than what is planned, and the one with the best parameters where
/// those are better. Nothing unless the fastest was to be planned. O(curves * log points).
pub fn instead(profile: &FittedProfile, explanation: &Explanation) -> Vec<Instead> {
    let Some(chosen) =
        explanation.chosen.filter(|_| explanation.goal.prefer == Preference::Fastest)
    else {
        return Vec::new();
    };
    let choice = |prefer, point: &dyn Fn(usize, &CurveTrail) -> Option<Alternative>| {
        let found = explanation.curves.iter().enumerate().filter_map(|(index, trail)| {
            let alternative = point(index, trail)?;
            Some((
                order(prefer, profile, index, alternative, explanation.reserved),
                index,
                alternative,
            ))
        });
        found.min_by_key(|(order, index, _)| (*order, *index))
    };
    let as_planned = |_: usize, trail: &CurveTrail| trail.alternative;
    let rank = |curve| profile.preference(curve);
    let best =
        choice(Preference::Best, &as_planned).filter(|(_, best, _)| rank(*best) < rank(chosen));
    let planned =
        choice(Preference::Cheapest, &|index, trail| trail.alternative.filter(|_| index == chosen));
    let least = |index: usize, trail: &CurveTrail| least_of(profile, index, trail);
    // Bandwidth and nodes come first in its order.
    let takes = |order: [u128; 4]| [order[0], order[1]];
    let cheapest = choice(Preference::Cheapest, &least)
        .filter(|(least, ..)| planned.is_some_and(|(planned, ..)| takes(*least) < takes(planned)));
    let told = |prefer, (_, index, alternative): ([u128; 4], usize, Alternative)| {
        let CurveTrail { parameters, nodes, .. } = &explanation.curves[index];
        let Alternative { bandwidth_bits_per_second, time_nanos } = alternative;
        let parameters = Arc::clone(parameters);
        Instead { prefer, parameters, nodes: *nodes, bandwidth_bits_per_second, time_nanos }
    };
    let cheapest = cheapest.map(|found| told(Preference::Cheapest, found));
    cheapest.into_iter().chain(best.map(|found| told(Preference::Best, found))).collect()
}

/// The least of a curve that satisfies the goal, if it can be held.
fn least_of(profile: &FittedProfile, index: usize, trail: &CurveTrail) -> Option<Alternative> {
    let BandwidthRange { least_bits_per_second: least, .. } = trail.range?;
    let bandwidth_bits_per_second =
        trail.held_bits_per_second.filter(|held| *held >= least).map(|_| least)?;
    let median = profile.curves()[index].time_at(bandwidth_bits_per_second)?;
    Some(Alternative { bandwidth_bits_per_second, time_nanos: trail.promise.time(median) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_goal, any_profile, loaded, random_tree};
    use crate::translate::{Options, Plan, Verdict, schedule};
    use crate::tree::PlacementIndex;
    use keeptime_model::goal::Goal;
    use proptest::prelude::*;

    fn told(prefer: Preference, plan: &Plan) -> Instead {
        let Plan { parameters, placement, bandwidth_bits_per_second, time_nanos, .. } = plan;
        Instead {
            prefer,
            parameters: Arc::new(parameters.clone()),
            nodes: placement.nodes.len() as u32,
            bandwidth_bits_per_second: *bandwidth_bits_per_second,
            time_nanos: *time_nanos,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        // Goal: what is told is what would be planned, and nothing is left untold. Method: it is planned.
        #[test]
        fn what_is_told_is_what_the_other_preference_plans(
            topology in random_tree(1..9), profile in any_profile(), goal in any_goal(), seed: u64
        ) {
            let index = PlacementIndex::new(topology);
            let free = loaded(&index, seed);
            let decide = |prefer| {
                let goal = Goal { prefer, ..goal.clone() };
                schedule(&goal, &profile, &index, &free, &Options::default())
            };
            let decision = decide(Preference::Fastest);
            let Verdict::Planned(fastest) = &decision.verdict else {
                prop_assert_eq!(decision.instead, []);
                return Ok(());
            };
            let takes = |plan: &Plan| {
                let sent = plan.placement.flows.iter().map(|flow| u128::from(flow.rate.get()));
                (sent.sum::<u128>(), plan.placement.nodes.len())
            };
            let rank = |plan: &Plan| profile.application().preference(&plan.parameters);
            let is_told = |prefer, plan: &Plan| match prefer {
                Preference::Cheapest => takes(plan) < takes(fastest),
                _ => rank(plan) < rank(fastest),
            };
            let expected = [Preference::Cheapest, Preference::Best].into_iter().filter_map(|prefer| {
                let other = decide(prefer);
                assert_eq!(other.instead, []);
                match other.verdict {
                    Verdict::Planned(plan) if is_told(prefer, &plan) => Some(told(prefer, &plan)),
                    _ => None,
                }
            });
            let expected: Vec<_> = expected.collect();
            prop_assert_eq!(decision.instead, expected);
        }
    }
}
