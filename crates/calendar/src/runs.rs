//! How long the free runs of a block can be at most, for every amount that may be reserved there.
//!
//! Least and greatest amounts cannot tell a comb (many gaps, each too short) from a place that
//! fits, so a search would have to try gap after gap. The longest run for each amount can: it is a
//! staircase, which does not change when an amount is added to the whole block, but moves. Kept
//! exactly it would have as many stairs as the block has steps. Runs of similar length share a
//! stair instead, which is as low as the lowest and as long as the longest of them: what it
//! says is too long at times, never too short. So a search that trusts it misses nothing.

use crate::span::NEVER;
use crate::tree::{Child, Node};

/// Stairs for each doubling of the length: lengths on one stair differ by at most 19 %.
const STAIRS_PER_OCTAVE: usize = 4;
const STAIRS: usize = 64 * STAIRS_PER_OCTAVE;

/// The staircase of a block: where at most `used` is reserved, no run is longer than `longest`.
#[derive(Debug, Clone)]
pub struct Runs {
    /// Ascending in both.
    stairs: Box<[Stair]>,
}

#[derive(Debug, Clone, Copy)]
struct Stair {
    used: u64,
    longest: u64,
}

impl Runs {
    /// The staircase of a block's leaves, until `end`. O(steps).
    pub fn of(leaves: &[Child], end: u64) -> Self {
        let mut staircase = [Stair { used: u64::MAX, longest: 0 }; STAIRS];
        // Runs that still go on, each with less used and begun later than the one before it.
        let mut open: Vec<Run> = Vec::new();
        for leaf in leaves {
            debug_assert!(matches!(leaf.node, Node::Leaf(_)), "a block's children are leaves");
            for step in leaf.node.steps() {
                let used = step.used.wrapping_add(leaf.raised);
                let mut since = step.at;
                while let Some(run) = open.pop_if(|run| run.used <= used) {
                    if run.used < used {
                        note(&mut staircase, run, step.at);
                    }
                    since = run.since;
                }
                open.push(Run { used, since });
            }
        }
        open.into_iter().for_each(|run| note(&mut staircase, run, end));
        Self { stairs: ascending(&staircase) }
    }

    /// No run on which at most `most` is reserved is longer than this; 0 if there is none.
    /// `raised` is what the block's ancestors note. O(log stairs).
    pub fn longest(&self, most: u64, raised: u64) -> u64 {
        let below = self.stairs.partition_point(|stair| stair.used.wrapping_add(raised) <= most);
        below.checked_sub(1).map_or(0, |last| self.stairs[last].longest)
    }
}

/// From `since` on, at most `used` is reserved.
#[derive(Debug, Clone, Copy)]
struct Run {
    used: u64,
    since: u64,
}

fn note(staircase: &mut [Stair; STAIRS], run: Run, until: u64) {
    let length = if until == NEVER { u64::MAX } else { until - run.since };
    let stair = &mut staircase[stair_of(length)];
    stair.used = stair.used.min(run.used);
    stair.longest = stair.longest.max(length);
}

/// The whole part of the binary logarithm, refined by the next two bits.
fn stair_of(length: u64) -> usize {
    let octave = length.max(1).ilog2();
    let refined = if octave >= 2 { length >> (octave - 2) } else { length << (2 - octave) };
    octave as usize * STAIRS_PER_OCTAVE + (refined & 3) as usize
}

/// Only stairs on which a run is lower than every longer one.
fn ascending(staircase: &[Stair; STAIRS]) -> Box<[Stair]> {
    let mut lowest = u64::MAX;
    let mut stairs: Vec<Stair> = Vec::new();
    for stair in staircase.iter().rev().filter(|stair| stair.longest > 0) {
        if stairs.is_empty() || stair.used < lowest {
            lowest = stair.used;
            stairs.push(*stair);
        }
    }
    stairs.reverse();
    stairs.into()
}
