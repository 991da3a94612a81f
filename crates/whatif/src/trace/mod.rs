//! Jobs as they are submitted.

pub mod chains;
pub mod lublin;
pub mod swf;

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

/// Users who ask for 1.1 times what a job takes ask for a cluster of their own; after 5 times, nearly
/// everything is in time.
const SLACK: [f64; 2] = [1.5, 5.0];
