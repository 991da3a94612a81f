//! The search for the earliest start: one pass over the tree from left to right.
//!
//! A part of the time that is free or blocked as a whole costs one look. So does one of which it is
//! known that nothing that is long enough ends in it: because it is short itself, or because an
//! earlier search noted so ([`Note`]). Where exactly it blocks last matters only if something that
//! starts there may be long enough, so that is found out then, and of the last such part alone. All
//! else is walked through, and if it was in vain, that is noted.
//!
//! Two notes of a part serve most searches. One that has had a long way in spite of them sets out once
//! more as a long search, which keeps more of them ([`Stairs`](crate::stairs::Stairs)).

use crate::note::Note;
use crate::span::NEVER;
use crate::tree::{Child, Node, child_at, step_at};
use std::ops::ControlFlow::{self, Break, Continue};

/// After so many children that were walked through in vain, what is found out is kept for long. A usual load has
/// not one such search in a thousand, and should not pay for them.
const LONG_WALK: usize = if cfg!(test) { 3 } else { 96 };

/// The state of one search. If it is `LONG`, it uses notes that are kept for long and adds to them.
#[derive(Debug)]
pub struct Search<'a, const LONG: bool> {
    /// It fits where at most this is reserved.
    most: u64,
    /// How long it must fit; not 0.
    duration: u64,
    /// The last instant at which it may start.
    latest: u64,
    /// Nothing that starts before this fits.
    start: u64,
    /// The last part that was passed without a look at where it blocks last: nothing that starts
    /// before that place fits either.
    passed: Option<Part<'a>>,
    /// How many children it has walked through in vain.
    walked: usize,
}

/// What is searched for, in nanoseconds: a start between two, from which on no more than so much is reserved for so long.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The amount that may be reserved at the most.
    pub most: u64,
    /// Not 0.
    pub duration: u64,
    pub start: u64,
    pub latest: u64,
}

/// A part of the time.
#[derive(Debug, Clone, Copy)]
struct Part<'a> {
    node: &'a Node,
    /// What is to be added (modulo 2^64) to every amount in `node`.
    raised: u64,
    from: u64,
    end: u64,
}

/// The search goes on, or ends with a start or without.
type Progress<T = ()> = ControlFlow<End, T>;

/// How a search ends.
#[derive(Debug)]
enum End {
    /// With a start or without.
    Answer(Option<u64>),
    /// It has walked through so much in vain that it should go on as a long one.
    LongWalk,
}

impl<'a, const LONG: bool> Search<'a, LONG> {
    /// A search that has seen nothing.
    pub fn new(Wanted { most, duration, start, latest }: Wanted) -> Self {
        Self { most, duration, latest, start, passed: None, walked: 0 }
    }

    /// The first start in all of a tree. Who has a long way sets out once more from where it is.
    pub fn run(mut self, root: &'a Node) -> Option<u64> {
        match self.visit_all(root) {
            Break(End::Answer(outcome)) => outcome,
            Break(End::LongWalk) => {
                let Self { most, duration, start, latest, .. } = self;
                Search::<true>::new(Wanted { most, duration, start, latest }).run(root)
            }
            // What fits until the end of time fits for ever.
            Continue(()) => (self.start < NEVER && self.start <= self.latest).then_some(self.start),
        }
    }

    fn visit_all(&mut self, root: &'a Node) -> Progress {
        self.visit(Part { node: root, raised: 0, from: 0, end: NEVER })?;
        self.catch_up()
    }

    /// Walks through a part, and tells what there is to note of it.
    fn visit(&mut self, part: Part<'a>) -> Progress<Note> {
        match part.node {
            Node::Leaf(_) => self.visit_leaf(part),
            Node::Inner(inner) => self.visit_children(&inner.children, part),
        }
    }

    fn visit_leaf(&mut self, part: Part<'a>) -> Progress<Note> {
        let steps = part.node.steps();
        if self.start <= part.from {
            let note = Note::of_steps(steps, part.raised, self.most, part.end);
            if self.is_in_vain(&note)? {
                self.start_from(note.last)?;
                return Continue(note);
            }
        }
        for i in step_at(steps, self.start)..steps.len() {
            if steps[i].used.wrapping_add(part.raised) > self.most {
                self.free(steps[i].at)?;
                self.start_from(steps.get(i + 1).map_or(part.end, |next| next.at))?;
            }
        }
        self.free(part.end)?;
        Continue(Note::NOTHING)
    }

    fn visit_children(&mut self, children: &'a [Child], part: Part<'a>) -> Progress<Note> {
        let is_whole = self.start <= part.from;
        let mut seen = Note { most: u64::MAX, longest: 0, first: part.end, last: part.from };
        let first = if is_whole { 0 } else { child_at(children, self.start) };
        for i in first..children.len() {
            let child = &children[i];
            let highest = child.highest.wrapping_add(part.raised);
            let end = children.get(i + 1).map_or(part.end, |next| next.from);
            if highest <= self.most {
                self.free(end)?;
                continue;
            }
            let note = match self.known_of(child, end, part.raised)? {
                Some(note) => self.pass(child, end, part.raised, note)?,
                None => self.visit_child(child, end, part.raised)?,
            };
            self.note_run(&mut seen, note.first);
            seen.most = seen.most.min(note.most).min(highest - 1);
            seen.longest = seen.longest.max(note.longest);
            seen.first = seen.first.min(note.first);
            seen.last = note.last;
        }
        self.free(part.end)?;
        self.note_run(&mut seen, part.end);
        Continue(if is_whole { seen } else { Note::NOTHING })
    }

    fn visit_child(&mut self, child: &'a Child, end: u64, raised: u64) -> Progress<Note> {
        if LONG
            && let Some(own) = child.kept_about(self.most.wrapping_sub(raised), end)
            && self.is_in_vain(&own)?
        {
            return self.pass(child, end, raised, own.raised(raised));
        }
        let note = self.visit(child.part(end, raised))?;
        if note.longest < self.duration {
            let own = note.raised(raised.wrapping_neg());
            if LONG && matches!(child.node, Node::Inner(_)) {
                child.notes.keep(own);
            } else {
                child.notes.add(own);
            }
            if !LONG {
                self.walked += 1;
                if self.walked == LONG_WALK {
                    return Break(End::LongWalk);
                }
            }
        }
        Continue(note)
    }

    /// Notes that no run from the last place that blocks to `until` was long enough.
    fn note_run(&self, seen: &mut Note, until: u64) {
        let mut longest = until.saturating_sub(seen.last);
        if longest >= self.duration {
            // It is shorter than its bounds say, but that was seen for this one amount only.
            longest = self.duration - 1;
            seen.most = seen.most.min(self.most);
        }
        seen.longest = seen.longest.max(longest);
    }

    /// Some note about a child, which blocks somewhere, by which nothing that is long enough ends in it.
    fn known_of(&mut self, child: &Child, end: u64, raised: u64) -> Progress<Option<Note>> {
        let from = child.from;
        let lowest = child.lowest.wrapping_add(raised);
        if lowest > self.most {
            let blocked = Note { most: lowest - 1, longest: 0, first: from, last: end };
            return Continue(self.is_in_vain(&blocked)?.then_some(blocked));
        }
        let most = self.most.wrapping_sub(raised);
        for note in child.notes.last() {
            if most <= note.most && self.is_in_vain(&note)? {
                return Continue(Some(note.raised(raised)));
            }
        }
        let any = Note { most: u64::MAX, longest: end - from, first: end, last: from };
        Continue(self.is_in_vain(&any)?.then_some(any))
    }

    fn pass(&mut self, child: &'a Child, end: u64, raised: u64, note: Note) -> Progress<Note> {
        self.start_from(note.last)?;
        self.passed = (note.last < end).then(|| child.part(end, raised));
        Continue(note)
    }

    /// Whether nothing that is long enough ends in a part about which `note` is true.
    fn is_in_vain(&mut self, note: &Note) -> Progress<bool> {
        if note.longest >= self.duration {
            return Continue(false);
        }
        if note.first.saturating_sub(self.start) >= self.duration {
            // It depends on where exactly what enters it starts.
            self.catch_up()?;
        }
        Continue(note.first.saturating_sub(self.start) < self.duration)
    }

    /// Looks at where the last part that was passed blocks last.
    fn catch_up(&mut self) -> Progress {
        let Some(Part { node, raised, end, .. }) = self.passed.take() else { return Continue(()) };
        match node.end_of_last_above(self.most, raised, end, NEVER) {
            Some(to) => self.start_from(to),
            None => Continue(()),
        }
    }

    /// Nothing that starts before `to` fits.
    fn start_from(&mut self, to: u64) -> Progress {
        self.start = self.start.max(to);
        self.passed = None;
        if self.start > self.latest { Break(End::Answer(None)) } else { Continue(()) }
    }

    /// Since the last place that blocks and until `to` it fits.
    fn free(&mut self, to: u64) -> Progress {
        if to.saturating_sub(self.start) >= self.duration {
            self.catch_up()?;
            if to.saturating_sub(self.start) >= self.duration {
                return Break(End::Answer(Some(self.start)));
            }
        }
        Continue(())
    }
}

impl Child {
    fn part(&self, end: u64, raised: u64) -> Part<'_> {
        Part { node: &self.node, raised: raised.wrapping_add(self.raised), from: self.from, end }
    }
}
