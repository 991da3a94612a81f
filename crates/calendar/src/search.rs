//! The search for the earliest start: one pass over the tree from left to right.
//!
//! Subtrees that fit or block as a whole cost one look, and so do those that end too early for what
//! begins in them: then only their last place that blocks matters. What is left are gaps that are
//! about as long as what is sought. A naive search hops from gap to gap, which is slow where there
//! are many, each too short; here a block through which several searches walked in vain is summed up
//! for the next ones ([`Runs`]).

use crate::runs::Runs;
use crate::span::NEVER;
use crate::tree::{Child, Inner, Node, child_at, step_at};
use std::ops::ControlFlow::{self, Break, Continue};

/// So many blocks are summed up by one search at most: it takes four times as long as to walk.
const SUMMED_UP_AT_MOST: u32 = 8;

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
    /// Blocks that were summed up.
    summed_up: u32,
}

/// The search goes on, or ends with a start or without.
type Progress = ControlFlow<Option<u64>>;

impl Search {
    /// A search for `duration` (not 0) with at most `most` reserved, starting between `start` and
    /// `latest`.
    pub fn new(most: u64, duration: u64, start: u64, latest: u64) -> Self {
        Self { most, duration, latest, start, summed_up: 0 }
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
            let raised = raised.wrapping_add(child.raised);
            let end = children.get(i + 1).map_or(end, |next| next.from);
            if extent.lowest > self.most {
                self.blocked(child.from, end)?;
            } else if extent.highest <= self.most {
                self.free(end)?;
            } else if end.saturating_sub(self.start) < self.duration {
                self.skip(&child.node, raised, end)?;
            } else {
                self.visit(&child.node, raised, end)?;
            }
        }
        Continue(())
    }

    /// Whether a run within a block may be long enough, as far as is known.
    fn may_fit_in(&mut self, block: &Inner, raised: u64, end: u64) -> bool {
        let runs = block.known.runs.get().or_else(|| {
            if !block.known.walk() || self.summed_up == SUMMED_UP_AT_MOST {
                return None;
            }
            self.summed_up += 1;
            Some(block.known.runs.get_or_init(|| Runs::of(&block.children, end)))
        });
        runs.is_none_or(|runs| runs.longest(self.most, raised) >= self.duration)
    }

    /// Goes past a block of which no run is long enough by itself: the one that enters it may be,
    /// and the one that leaves it may become so.
    fn pass(&mut self, block: &Node, raised: u64, end: u64) -> Progress {
        let most = self.most;
        if let Some(from) = block.first(self.start, raised, &|extent| extent.highest > most) {
            self.free(from)?;
        }
        self.skip(block, raised, end)
    }

    /// Goes past a node within which nothing that is long enough can end.
    fn skip(&mut self, node: &Node, raised: u64, end: u64) -> Progress {
        match node.end_of_last_above(self.most, raised, end) {
            Some(to) => self.start_from(to),
            None => Continue(()),
        }
    }

    /// From `from` to `to` it does not fit.
    fn blocked(&mut self, from: u64, to: u64) -> Progress {
        self.free(from)?;
        self.start_from(to)
    }

    /// Nothing that starts before `to` fits.
    fn start_from(&mut self, to: u64) -> Progress {
        self.start = self.start.max(to);
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
