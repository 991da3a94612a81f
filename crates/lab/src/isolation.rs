//! Does the speed of a node depend on what the other nodes do? A fixed computation on one node,
//! with all others idle and with all others computing without end, in turns.

use crate::error::LabError;
use crate::exec::{Exec, Words};
use crate::labs::Lab;
use keeptime_linux::process::Child;
use nix::sys::signal::Signal;
use serde::Serialize;
use std::time::Instant;

/// Seconds that the same computation took, in the order of measurement.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Isolation {
    /// While all other nodes were idle.
    pub alone: Vec<f64>,
    /// While all other nodes computed.
    pub crowded: Vec<f64>,
}

impl Isolation {
    /// By how much the median of `crowded` is above that of `alone`: 0.02 is 2 %. Nothing
    /// without samples.
    pub fn slowdown(&self) -> Option<f64> {
        Some(median(&self.crowded)? / median(&self.alone)? - 1.0)
    }
}

/// What runs: `fixed` on one node, `endless` on all others.
#[derive(Debug, Clone)]
pub struct Work {
    /// The computation that is measured: about a second. It must not use the network.
    pub fixed: Words,
    /// Uses all CPU that it can get until it is killed.
    pub endless: Words,
}

/// Measures `rounds` times, the two cases in turns, so that what else the machine does meets both.
///
/// # Errors
/// If a program cannot be started, or the computation fails.
pub fn measure(lab: &Lab, node: &str, work: &Work, rounds: usize) -> Result<Isolation, LabError> {
    let mut result = Isolation::default();
    for _ in 0..rounds {
        result.alone.push(seconds(lab, node, work)?);
        let hogs = Hogs::start(lab, node, work)?;
        result.crowded.push(seconds(lab, node, work)?);
        drop(hogs);
    }
    Ok(result)
}

/// Computes for `steps` steps; each takes a few nanoseconds and no memory. For programs that are
/// the [`Work`].
pub fn compute(steps: u64) -> f64 {
    let mut value = 1.0_f64;
    for _ in 0..steps {
        value = std::hint::black_box(value * 1.000_000_1 + 0.1) % 1e9;
    }
    value
}

fn seconds(lab: &Lab, node: &str, work: &Work) -> Result<f64, LabError> {
    let start = Instant::now();
    let mut exec = Exec::new(node, Vec::<String>::new());
    exec.words = work.fixed.clone();
    let status = lab.spawn(exec)?.wait()?;
    if status.success() {
        return Ok(start.elapsed().as_secs_f64());
    }
    Err(LabError::Ended { what: format!("the computation on {node} ({status})") })
}

struct Hogs(Vec<Child>);

impl Hogs {
    fn start(lab: &Lab, but: &str, work: &Work) -> Result<Self, LabError> {
        let mut hogs = Self(Vec::new());
        for node in lab.topology().nodes().iter().filter(|node| node.name.as_str() != but) {
            let mut exec = Exec::new(node.name.as_str(), Vec::<String>::new()).die_with_parent();
            exec.words = work.endless.clone();
            hogs.0.push(lab.spawn(exec)?);
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in self.0.drain(..) {
            hog.signal(Signal::SIGKILL);
            let _ = hog.wait();
        }
    }
}

fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (upper + sorted[sorted.len() / 2 - 1]) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowdown_is_that_of_the_medians() {
        let result = Isolation { alone: vec![1.0, 9.0, 2.0], crowded: vec![3.0, 2.0, 3.0, 9.0] };
        assert_eq!(result.slowdown(), Some(0.5));
        assert_eq!(Isolation::default().slowdown(), None);
    }
}
