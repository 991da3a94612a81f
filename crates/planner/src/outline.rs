//! A decision in short: how many curves were left after each stage, and those that came furthest,
//! without their points. It is what is recorded, and what is read.

use crate::curve::BandwidthRange;
use crate::explanation::{Alternative, CurveTrail, Explanation, Stage};
use keeptime_model::application::Parameters;
use keeptime_model::goal::Goal;
use keeptime_model::units::{BitsPerSecond, Share};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// An [`Explanation`] in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outline {
    /// What was asked for.
    pub goal: Goal,
    /// The share of runs that a promised time is to hold for: runs may support less
    /// ([`Promise::quantile`](crate::promise::Promise::quantile)).
    #[serde(rename = "quantile_ppm")]
    pub quantile: Share,
    /// How many curves were left after each stage, in the order of [`Stage::ALL`].
    pub left: [u32; Stage::ALL.len()],
    /// Those that came furthest, in the order of the profile.
    pub curves: Vec<CurveOutline>,
}

/// What became of one curve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurveOutline {
    /// The application's parameters.
    pub parameters: Parameters,
    /// The number of nodes.
    pub nodes: u32,
    /// The last stage after which it was left.
    pub stage: Stage,
    /// See [`CurveTrail::knee_bits_per_second`].
    pub knee_bits_per_second: BitsPerSecond,
    /// See [`CurveTrail::range`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<BandwidthRange>,
    /// See [`CurveTrail::held_bits_per_second`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bits_per_second: Option<BitsPerSecond>,
    /// See [`CurveTrail::alternative`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternative: Option<Alternative>,
}

impl Outline {
    /// `explanation` in short, with at most so many curves: those that came furthest. O(curves log
    /// curves).
    pub fn of(explanation: &Explanation, curves_max: usize) -> Self {
        let mut reached = vec![Stage::Measured; explanation.curves.len()];
        let left = Stage::ALL.map(|stage| {
            let mut left = 0;
            for (index, _) in explanation.left_after(stage) {
                reached[index] = stage;
                left += 1;
            }
            left
        });
        let mut furthest: Vec<_> = (0..reached.len()).collect();
        furthest.sort_unstable_by_key(|index| (Reverse(reached[*index]), *index));
        furthest.truncate(curves_max);
        furthest.sort_unstable();
        let curve = |index| CurveOutline::of(&explanation.curves[index], reached[index]);
        Self {
            goal: explanation.goal.clone(),
            quantile: explanation.quantile,
            left,
            curves: furthest.into_iter().map(curve).collect(),
        }
    }

    /// How many curves were left after `stage`, and those of them that are outlined.
    pub fn left_after(&self, stage: Stage) -> (u32, impl Iterator<Item = &CurveOutline>) {
        let place = Stage::ALL.iter().position(|one| *one == stage);
        let count = place.map_or(0, |place| self.left[place]);
        (count, self.curves.iter().filter(move |curve| curve.stage >= stage))
    }
}

impl CurveOutline {
    fn of(trail: &CurveTrail, stage: Stage) -> Self {
        Self {
            parameters: Parameters::clone(&trail.parameters),
            nodes: trail.nodes,
            stage,
            knee_bits_per_second: trail.knee_bits_per_second,
            range: trail.range,
            held_bits_per_second: trail.held_bits_per_second,
            alternative: trail.alternative,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_goal, any_profile, loaded, random_tree};
    use crate::translate::{Options, schedule};
    use crate::tree::PlacementIndex;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_furthest_are_kept_and_all_are_counted(
            topology in random_tree(1..9), profile in any_profile(), goal in any_goal(),
            seed: u64, most in 0usize..4
        ) {
            let index = PlacementIndex::new(topology);
            let free = loaded(&index, seed);
            let decision = schedule(&goal, &profile, &index, &free, &Options::default());
            let explanation = decision.explanation;
            let (all, some) = (Outline::of(&explanation, usize::MAX), Outline::of(&explanation, most));
            prop_assert_eq!(&all.left, &some.left);
            prop_assert_eq!(some.curves.len(), most.min(all.curves.len()));
            for stage in Stage::ALL {
                let trails = explanation.left_after(stage).map(|(_, trail)| (&*trail.parameters, trail.nodes));
                let (count, outlined) = all.left_after(stage);
                let outlined: Vec<_> = outlined.map(|curve| (&curve.parameters, curve.nodes)).collect();
                prop_assert_eq!(count as usize, outlined.len());
                prop_assert_eq!(trails.collect::<Vec<_>>(), outlined);
                let (_, outlined) = some.left_after(stage);
                prop_assert_eq!(outlined.count(), most.min(count as usize), "the furthest come first");
            }
            let json = serde_json::to_string(&some).unwrap();
            prop_assert_eq!(serde_json::from_str::<Outline>(&json).unwrap(), some);
        }
    }
}
