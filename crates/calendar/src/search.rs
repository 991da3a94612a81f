//! The search for the earliest start: one pass over the tree from left to right.
//!
//! Subtrees that fit or block as a whole cost one look. In mixed ones a naive search hops from gap to
//! gap, which is slow where there are many, each too short; here a search that has walked through
//! some blocks in vain asks the next ones how long their runs are at all ([`Runs`]).

use crate::runs::Runs;
use crate::span::NEVER;
use crate::tree::{Child, Inner, Node, child_at, step_at};
use std::ops::ControlFlow::{self, Break, Continue};

/// So many blocks are walked through before the first is summed up. That takes about as long as
/// walking through a few, so short searches are better off without.
const PATIENCE: u32 = if cfg!(test) { 1 } else { 2 };
/// So many blocks are summed up by one search: bounds its time after a change of the whole table.
const SUMMED_UP_AT_MOST: u32 = 64;

/// The state of one search.
#[derive(Debug)]
pub struct Search {
    /// It fits where at most this is reserved.
    most: u64,
    /// How long it must fit; not 0.
    duration: u64,
    /// The last instant at which it may start.
    latest: u64,
    /// Where the run began that is being looked at: nothing before fits.
    start: u64,
    /// Blocks that were entered.
    walked: u32,
    /// Blocks that were summed up.
    summed_up: u32,
}

/// The search goes on, or ends with a start or without.
type Progress = ControlFlow<Option<u64>>;

impl Search {
    /// A search for `duration` (not 0) with at most `most` reserved, starting between `start` and
    /// `latest`.
    pub fn new(most: u64, duration: u64, start: u64, latest: u64) -> Self {
        Self { most, duration, latest, start, walked: 0, summed_up: 0 }
    }

    /// The first start in all of a tree.
    pub fn run(mut self, root: &Node) -> Option<u64> {
        match self.visit(root, 0, NEVER) {
            Break(outcome) => outcome,
            // What fits until the end of time fits for ever.
            Continue(()) => (self.start < NEVER && self.start <= self.latest).then_some(self.start),
        }
    }

    fn visit(&mut self, node: &Node, raised: u64, end: u64) -> Progress {
        match node {
            Node::Leaf(_) => self.visit_leaf(node, raised, end),
            Node::Inner(inner) if inner.is_block() && !self.may_fit_in(inner, raised, end) => {
                self.pass(node, raised, end)
            }
            Node::Inner(inner) => self.visit_children(&inner.children, raised, end),
        }
    }

    fn visit_leaf(&mut self, leaf: &Node, raised: u64, end: u64) -> Progress {
        let steps = leaf.steps();
        for i in step_at(steps, self.start)..steps.len() {
            if steps[i].used.wrapping_add(raised) > self.most {
                self.blocked(steps[i].at, steps.get(i + 1).map_or(end, |next| next.at))?;
            }
        }
        Continue(())
    }

    fn visit_children(&mut self, children: &[Child], raised: u64, end: u64) -> Progress {
        for i in child_at(children, self.start)..children.len() {
            let child = &children[i];
            let extent = child.extent().raised(raised);
            let end = children.get(i + 1).map_or(end, |next| next.from);
            if extent.lowest > self.most {
                self.blocked(child.from, end)?;
            } else if extent.highest > self.most {
                self.visit(&child.node, raised.wrapping_add(child.raised), end)?;
            } else {
                self.free(end)?;
            }
        }
        Continue(())
    }

    /// Whether a run within a block may be long enough, as far as is known.
    fn may_fit_in(&mut self, block: &Inner, raised: u64, end: u64) -> bool {
        self.walked += 1;
        let in_vain = self.walked > PATIENCE && self.summed_up < SUMMED_UP_AT_MOST;
        let runs = match block.runs.get() {
            None if in_vain => {
                self.summed_up += 1;
                block.runs.get_or_init(|| Runs::of(&block.children, end))
            }
            None => return true,
            Some(runs) => runs,
        };
        runs.longest(self.most, raised) >= self.duration
    }

    /// Goes past a block of which no run is long enough by itself: the one that enters it may be,
    /// and the one that leaves it may become so.
    fn pass(&mut self, block: &Node, raised: u64, end: u64) -> Progress {
        let most = self.most;
        let first = block.first(self.start, raised, &|extent| extent.highest > most);
        let last = block.end_of_last_above(most, raised, end);
        match (first, last) {
            (Some(from), Some(to)) => self.blocked(from, to),
            _ => Continue(()),
        }
    }

    /// From `from` to `to` it does not fit.
    fn blocked(&mut self, from: u64, to: u64) -> Progress {
        self.free(from)?;
        self.start = to;
        if self.start > self.latest { Break(None) } else { Continue(()) }
    }

    /// From the start of the run until `to` it fits.
    fn free(&mut self, to: u64) -> Progress {
        if to.saturating_sub(self.start) >= self.duration {
            return Break(Some(self.start));
        }
        Continue(())
    }
}
