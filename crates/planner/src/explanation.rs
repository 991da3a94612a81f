//! The way from all curves to the chosen point, stage by stage (thesis, Figures 3.4 to 3.9).

use crate::curve::{BandwidthRange, Between, FittedPoint};
use crate::price::Reserved;
use crate::promise::Promise;
use keeptime_model::application::Parameters;
use keeptime_model::goal::Goal;
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Everything that a decision went by, for tables, JSON and pictures. Curves are shared with the
/// profile, not copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// What was asked for.
    pub goal: Goal,
    /// The share of runs that a promised time is to hold for: runs may support less
    /// ([`Promise::quantile`]).
    #[serde(rename = "quantile_ppm")]
    pub quantile: Share,
    /// Whether bandwidths between measured ones counted.
    pub between: Between,
    /// How much of the cluster was reserved by others.
    #[serde(default)]
    pub reserved: Reserved,
    /// What became of each curve, in the order of the profile.
    pub curves: Vec<CurveTrail>,
    /// The chosen point: a position in [`Self::curves`], whose alternative it is. None if refused.
    pub chosen: Option<usize>,
}

/// What became of one curve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurveTrail {
    /// The application's parameters.
    pub parameters: Arc<Parameters>,
    /// The number of nodes.
    pub nodes: u32,
    /// Its points with median times; [`Promise::time`] of these is what was compared.
    pub points: Arc<[FittedPoint]>,
    /// The least measured bandwidth within 5 % of the best time.
    pub knee_bits_per_second: BitsPerSecond,
    /// What is added to median times.
    pub promise: Promise,
    /// Whether any of its promised times, beyond the knee too, lies within the time bounds.
    pub in_time: bool,
    /// Whether its parameters and number of nodes are those that the goal sets.
    pub matches: bool,
    /// For a curve that matches: what satisfies the time bounds, up to the knee.
    pub range: Option<BandwidthRange>,
    /// For a curve with a range: the greatest rate that every flow can have now on that number of
    /// nodes, the same for all curves with that number. None if there are too few nodes.
    pub held_bits_per_second: Option<BitsPerSecond>,
    /// The point of this curve that competes with those of the others.
    pub alternative: Option<Alternative>,
}

/// A point of a curve that satisfies the goal and can be held now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// For each flow.
    pub bandwidth_bits_per_second: BitsPerSecond,
    /// Promised.
    pub time_nanos: Nanos,
}

/// The stages of a decision; each keeps some of the curves of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// 1: all curves of the profile (Figure 3.2).
    Measured,
    /// 2: those with a point within the time bounds (Figure 3.4).
    InTime,
    /// 3: those that match the parameters that are set, too (Figure 3.5).
    Matching,
    /// 4: those with something left between the least bandwidth and the knee (Figures 3.6, 3.7).
    Ranged,
    /// 5: those of which a point can be held now (Figure 3.8).
    Held,
    /// 6: the chosen one (Figure 3.9).
    Chosen,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 6] =
        [Self::Measured, Self::InTime, Self::Matching, Self::Ranged, Self::Held, Self::Chosen];
}

impl Explanation {
    /// The curves that are left after `stage`, with their positions. O(curves).
    pub fn left_after(&self, stage: Stage) -> impl Iterator<Item = (usize, &CurveTrail)> {
        self.curves.iter().enumerate().filter(move |(index, curve)| match stage {
            Stage::Measured => true,
            Stage::InTime => curve.in_time,
            Stage::Matching => curve.in_time && curve.matches,
            Stage::Ranged => curve.range.is_some(),
            Stage::Held => curve.alternative.is_some(),
            Stage::Chosen => self.chosen == Some(*index),
        })
    }

    /// The chosen curve and its point.
    pub fn chosen(&self) -> Option<(&CurveTrail, Alternative)> {
        let curve = &self.curves[self.chosen?];
        Some((curve, curve.alternative?))
    }
}
