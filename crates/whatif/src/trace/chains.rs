//! Tasks as the thesis submits them (chapter 4, Figure 4.8): at random intervals, each a chain of
//! sub-tasks with sizes and gaps of their own. A sub-task asks when the one before would have ended at
//! full speed, and a gap later; what is promised to one says nothing of the next.

use super::{Class, Log, Submission, deadline, draw_classes};
use keeptime_random::Random;

/// Chains on `nodes` nodes that arrive at random intervals of up to `interval_most` seconds, until there
/// are `count` sub-tasks.
pub fn log(nodes: u32, count: usize, interval_most: u64, seed: u64) -> Log {
    let mut random = Random::new(seed);
    let mut jobs = Vec::with_capacity(count);
    let mut arrived = 0.0;
    while jobs.len() < count {
        arrived += random.part() * interval_most as f64;
        chain(arrived as u64, nodes, &mut random, &mut jobs);
    }
    jobs.truncate(count);
    jobs.sort_by_key(|job| job.submitted);
    draw_classes(&mut jobs, seed);
    Log { nodes, jobs }
}

fn chain(arrived: u64, nodes: u32, random: &mut Random, jobs: &mut Vec<Submission>) {
    let mut submitted = arrived;
    for _ in 0..between(LENGTH, random) {
        let run = between(RUN, random);
        let nodes = (1 << between(NODES_LOG, random)).min(nodes);
        let class = Class::default();
        let deadline = deadline(submitted, run, random.part());
        jobs.push(Submission { submitted, run, requested: run, nodes, deadline, class });
        submitted += run + between(GAP, random);
    }
}

/// A whole number from the first to the second, both included.
fn between([least, most]: [u64; 2], random: &mut Random) -> u64 {
    least + (random.part() * (most - least + 1) as f64) as u64
}

/// Sub-tasks of a task.
const LENGTH: [u64; 2] = [1, 5];
/// Seconds of a sub-task, and between two of them.
const RUN: [u64; 2] = [10, 60];
const GAP: [u64; 2] = [0, 10];
/// Up to 8 nodes, in powers of two: the thesis has eight.
const NODES_LOG: [u64; 2] = [0, 3];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_repeat_and_arrive_more_seldom_when_intervals_are_longer() {
        let made = log(8, 500, 20, 3);
        assert_eq!(made, log(8, 500, 20, 3));
        assert_ne!(made, log(8, 500, 20, 4));
        assert_eq!(made.jobs.len(), 500);
        assert!(made.jobs.is_sorted_by_key(|job| job.submitted));
        assert!(made.jobs.iter().all(|job| (1..=8).contains(&job.nodes) && job.run >= 10));
        let last = |log: &Log| log.jobs.last().map(|job| job.submitted);
        assert!(last(&log(8, 500, 50, 3)) > last(&made));
    }
}
