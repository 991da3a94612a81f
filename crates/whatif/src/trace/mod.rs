//! Jobs as they are submitted.

pub mod chains;
pub mod counted;
pub mod lublin;
pub mod swf;

use keeptime_random::Random;
use serde::Serialize;

/// One job of a log, in seconds since the log's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Submission {
    /// When it is submitted.
    pub submitted: u64,
    /// How long it takes on all its nodes at full speed.
    pub run: u64,
    /// How long its user said it would take, at least as long.
    pub requested: u64,
    /// Just so many.
    pub nodes: u32,
    /// When it is to be done.
    pub deadline: u64,
    /// Whose turn it is first, by who goes by that.
    pub class: Class,
}

/// How much a job matters; the first matters most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Before all others.
    Urgent,
    /// Most jobs.
    #[default]
    Normal,
}

/// Jobs in the order in which they were submitted, and the nodes that they ran on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How many nodes.
    pub nodes: u32,
    /// The jobs.
    pub jobs: Vec<Submission>,
}

/// A deadline for a job: so many times what was requested after its submission; `part` from 0 to 1
/// chooses among them.
fn deadline(submitted: u64, requested: u64, part: f64) -> u64 {
    let [least, most] = SLACK;
    submitted + (requested as f64 * (least + (most - least) * part)) as u64
}

/// One job in five is urgent, whatever else was drawn of it.
fn draw_classes(jobs: &mut [Submission], seed: u64) {
    let mut random = Random::new(seed ^ CLASSES);
    for job in jobs {
        job.class = if random.part() < URGENT { Class::Urgent } else { Class::Normal };
    }
}

const URGENT: f64 = 0.2;
/// Draws of their own: a log is otherwise the same as without classes.
const CLASSES: u64 = 0x434c_4153_5345_5300;

/// Users who ask for 1.1 times what a job takes ask for a cluster of their own; after 5 times, nearly
/// everything is in time.
const SLACK: [f64; 2] = [1.5, 5.0];
