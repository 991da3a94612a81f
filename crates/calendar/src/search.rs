//! The search for the earliest start: one pass over the tree from left to right.
//!
//! Subtrees that fit or block as a whole cost one look. Of those that end before what starts now
//! would, only the last place that blocks matters. What is left are gaps that are about as long as
//! what is sought. A naive search hops from gap to gap, which is slow where there
//! are many, each too short; here a block that was walked through in vain is summed up for the next
//! ones, when that is worth the work ([`Runs`]).

use crate::runs::Runs;
use crate::span::NEVER;
use crate::tree::{Child, Inner, Node, child_at, step_at};
use std::ops::ControlFlow::{self, Break, Continue};

/// So many blocks are summed up by one search at most, which bounds what it does for later ones to
/// about a tenth of a millisecond.
const SUMMED_UP_AT_MOST: u32 = 4;

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
    /// Leaves that were walked through.
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
            Node::Inner(block) if block.is_block() => self.visit_block(node, block, raised, end),
            Node::Inner(inner) => self.visit_children(&inner.children, raised, end),
        }
    }

    fn visit_block(&mut self, node: &Node, block: &Inner, raised: u64, end: u64) -> Progress {
        if self.is_too_short(block, raised, end) {
            return self.pass(node, raised, end);
        }
        let before = self.walked;
        self.visit_children(&block.children, raised, end)?;
        block.known.walked_in_vain(self.walked - before);
        Continue(())
    }

    fn visit_leaf(&mut self, leaf: &Node, raised: u64, end: u64) -> Progress {
        self.walked += 1;
        let steps = leaf.steps();
        for i in step_at(steps, self.start)..steps.len() {
            if steps[i].used.wrapping_add(raised) > self.most {
                self.blocked(steps[i].at, steps.get(i + 1).map_or(end, |next| next.at))?;
            }
        }
        Continue(())
    }

    fn visit_children(&mut self, children: &[Child], raised: u64, end: u64) -> Progress {
        // The last one that blocks somewhere, of those that end too early for what starts now.
        let mut early = None;
        for i in child_at(children, self.start)..children.len() {
            let child = &children[i];
            let extent = child.extent().raised(raised);
            let raised = raised.wrapping_add(child.raised);
            let end = children.get(i + 1).map_or(end, |next| next.from);
            if !self.is_too_early(end)
                && let Some((node, raised, end)) = early.take()
            {
                self.skip(node, raised, end)?;
            }
            if extent.highest <= self.most {
                self.free(end)?;
            } else if extent.lowest > self.most {
                self.blocked(child.from, end)?;
            } else if self.is_too_early(end) {
                early = Some((&child.node, raised, end));
            } else {
                self.visit(&child.node, raised, end)?;
            }
        }
        early.map_or(Continue(()), |(node, raised, end)| self.skip(node, raised, end))
    }

    /// Whether what starts now would still go on at `end`.
    fn is_too_early(&self, end: u64) -> bool {
        end.saturating_sub(self.start) < self.duration
    }

    /// Whether it is known that no run of a block is long enough.
    fn is_too_short(&mut self, block: &Inner, raised: u64, end: u64) -> bool {
        let runs = block.known.runs.get().or_else(|| {
            if !block.known.is_worth_summing_up() || self.summed_up == SUMMED_UP_AT_MOST {
                return None;
            }
            self.summed_up += 1;
            Some(block.known.runs.get_or_init(|| Runs::of(&block.children, end)))
        });
        runs.is_some_and(|runs| runs.longest(self.most, raised) < self.duration)
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
        if self.is_too_early(to) { Continue(()) } else { Break(Some(self.start)) }
    }
}
