//! How the next schedule is found.
//!
//! * [`paper`]: the paper's linear search through periods, its utilisation always the target;
//! * [`predictive`]: a first step by a model, then feedback within a noise band; periods by what they
//!   are expected to cost.
//!
//! Both keep the utilisation proportional: within the threshold of the target, as parts of what the
//! program uses at full speed.

pub mod paper;
pub mod predictive;

use crate::schedule::Range;
use crate::window::Sample;
use keeptime_model::units::Nanos;
use paper::PaperSearch;
use predictive::Predictive;
use serde::{Deserialize, Serialize};

/// What a policy steers towards, and what it knows of the program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aim {
    /// The part of full speed that was asked for.
    pub target: f64,
    /// How far from it is near enough, in the same measure.
    pub threshold: f64,
    /// What schedules there are.
    pub range: Range,
    /// Seconds of one unit of work at full speed, now.
    pub iteration_seconds: f64,
    /// What of that is waiting for others, at the least.
    pub waiting_seconds: f64,
    /// What the busiest node uses at full speed, in processors.
    pub utilisation_most: f64,
    /// The same of the least busy one.
    pub utilisation_least: f64,
    /// Whether it sleeps while it waits; one that polls uses what it is given.
    pub sleeps: bool,
    /// Whether full speed is followed as it wanders. If not, a rate that is off may be the processors' doing.
    pub is_followed: bool,
    /// What the nodes have, as a part of what the program would use of them now; nothing = as it was asked for.
    pub share_now: Option<f64>,
    /// The greatest share that what is granted suffices for on every node.
    pub share_most: f64,
}

/// What a policy asks for: on every node `share` of what it uses at full speed, in periods of
/// `period`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The same on all nodes.
    pub period: Nanos,
    /// 1 = as at full speed.
    pub share: f64,
}

/// One way to find schedules, with what it remembers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Policy {
    /// As the paper states it.
    Paper(PaperSearch),
    /// By a model, then by feedback.
    Predictive(Box<Predictive>),
}

impl Policy {
    /// The paper's, with its constants.
    pub fn paper() -> Self {
        Self::Paper(PaperSearch::default())
    }

    /// Ours.
    pub fn predictive() -> Self {
        Self::Predictive(Box::default())
    }

    /// Whether the target is a part of what full speed is now, or of what it was when it was measured.
    pub(crate) fn follows_full_speed(&self) -> bool {
        matches!(self, Self::Predictive(_))
    }

    /// The first setting for an aim, before anything was reported.
    pub(crate) fn start(&mut self, aim: &Aim) -> Setting {
        match self {
            Self::Paper(search) => search.start(aim),
            Self::Predictive(policy) => policy.start(aim),
        }
    }

    /// What follows from one more report, if anything.
    pub(crate) fn observe(&mut self, aim: &Aim, sample: Sample) -> Option<Setting> {
        match self {
            Self::Paper(search) => search.observe(aim, sample),
            Self::Predictive(policy) => policy.observe(aim, sample),
        }
    }

    /// What follows from a new target, if anything.
    pub(crate) fn retarget(&mut self, before: f64, aim: &Aim) -> Option<Setting> {
        match self {
            Self::Paper(search) => search.retarget(aim),
            Self::Predictive(policy) => policy.retarget(before, aim),
        }
    }

    /// What nodes use has changed so much that what they have is hardly proportional any more: the setting that mends
    /// that, of one that follows full speed.
    pub(crate) fn followed(&mut self, aim: &Aim) -> Option<Setting> {
        match self {
            Self::Paper(_) => None,
            Self::Predictive(policy) => policy.followed(aim),
        }
    }

    /// The last setting could not be had; `in_force` goes on.
    pub(crate) fn refused(&mut self, in_force: Setting) {
        match self {
            Self::Paper(search) => search.refused(in_force),
            Self::Predictive(policy) => policy.refused(in_force),
        }
    }

    /// The deviation of single reports, where it is estimated.
    pub fn noise(&self) -> Option<f64> {
        match self {
            Self::Paper(_) => None,
            Self::Predictive(policy) => Some(policy.noise()),
        }
    }
}
