//! The reserved amount over time as a B-tree of steps, with the least and greatest of each subtree.
//!
//! A leaf is a sorted list of steps; each holds from its instant to the next one. An amount that
//! is added over many subtrees is noted once at the root of each ([`Child::raised`]) and passed on
//! when something below is touched ([`Child::settle`]). Therefore an amount stored in a node is what
//! it was when the node was last touched, which is a true amount and never negative; what it is
//! now is that plus what all ancestors note, modulo 2^64, which is exact.

use crate::note::{Note, Notes};
use crate::span::Stretch;
use crate::stairs::Stairs;

/// How many steps a leaf has at most. 64 steps are 1 KiB: moving half of them to make room costs
/// less than one more level. Tests use small nodes, so that their trees are deep.
const STEPS: usize = if cfg!(test) { 6 } else { 64 };
/// How many children another node has at most. What changes costs later searches a look at each of
/// those beside it, so they are few.
const CHILDREN: usize = if cfg!(test) { 6 } else { 16 };

/// From `at` to the next step, `used` is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub at: u64,
    pub used: u64,
}

/// A part of the time. Where it ends is known by its parent and passed along as `end`.
#[derive(Debug, Clone)]
pub enum Node {
    /// Two neighbours are never equal: the step that would say nothing is removed. An empty list
    /// is a table without reservations, at the root only.
    Leaf(Vec<Step>),
    Inner(Inner),
}

#[derive(Debug, Clone)]
pub struct Inner {
    pub children: Vec<Child>,
}

/// By how much amounts change.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    /// What is added to them, modulo 2^64.
    pub by: u64,
    /// Whether they become less.
    pub lowers: bool,
}

#[derive(Debug, Clone)]
pub struct Child {
    /// Its first instant.
    pub from: u64,
    /// To be added (modulo 2^64) to every amount in `node`.
    pub raised: u64,
    /// The least amount in `node`, `raised` included.
    pub lowest: u64,
    /// The greatest amount in `node`, `raised` included.
    pub highest: u64,
    /// What searches know of `node`, `raised` included.
    pub notes: Notes,
    pub node: Node,
}

/// The least and greatest amounts of a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub lowest: u64,
    pub highest: u64,
}

/// What an empty leaf says: nothing is reserved, from the first instant on.
static IDLE: [Step; 1] = [Step { at: 0, used: 0 }];

impl Node {
    /// The tree of a table without reservations; takes no memory of its own.
    pub const fn idle() -> Self {
        Self::Leaf(Vec::new())
    }

    /// Changes every amount in `stretch`. `self` is a root. O(log n).
    pub fn change_root(&mut self, stretch: Stretch, change: Change) {
        if let Self::Leaf(steps) = self
            && steps.is_empty()
        {
            steps.extend(IDLE);
        }
        if let Some(right) = self.change(stretch, change, u64::MAX) {
            let left = std::mem::replace(self, Self::idle());
            *self = Self::inner(vec![Child::new(left), Child::new(right)]);
        }
        self.tidy_root();
    }

    /// The least and greatest amounts in `stretch`. O(log n).
    pub fn extent(&self, stretch: Stretch) -> Extent {
        match self {
            Self::Leaf(_) => {
                let steps = self.steps();
                let last = count(steps, |s| s.at < stretch.to);
                Extent::of_steps(&steps[step_at(steps, stretch.from)..last])
            }
            Self::Inner(inner) => {
                let children = &inner.children;
                let last = count(children, |c| c.from < stretch.to);
                let touched = child_at(children, stretch.from)..last;
                let extents = touched.map(|i| {
                    let child = &children[i];
                    // Where the last one ends is not known here, so it is always entered.
                    let end = children.get(i + 1).map_or(u64::MAX, |next| next.from);
                    if stretch.from <= child.from && end <= stretch.to {
                        child.extent()
                    } else {
                        child.node.extent(stretch).raised(child.raised)
                    }
                });
                extents.reduce(Extent::and).unwrap_or(Extent::NONE)
            }
        }
    }

    /// The first instant at or after `from` at which `holds` for the amount. `raised` is what the
    /// ancestors note. `holds` is asked for whole subtrees too, and must then say whether it holds
    /// somewhere in them. O(log n).
    pub fn first(&self, from: u64, raised: u64, holds: &impl Fn(Extent) -> bool) -> Option<u64> {
        match self {
            Self::Leaf(_) => {
                let steps = self.steps();
                let later = &steps[step_at(steps, from)..];
                let found = later.iter().find(|step| holds(Extent::one(step.used).raised(raised)));
                found.map(|step| step.at.max(from))
            }
            Self::Inner(inner) => {
                let later = &inner.children[child_at(&inner.children, from)..];
                let mut there = later.iter().filter(|c| holds(c.extent().raised(raised)));
                // Only the first one can disappoint, when it holds before `from`.
                there.find_map(|c| c.node.first(from, raised.wrapping_add(c.raised), holds))
            }
        }
    }

    /// Where the last stretch with more than `most` ends that begins before `before`. O(log n).
    pub fn end_of_last_above(&self, most: u64, raised: u64, end: u64, before: u64) -> Option<u64> {
        match self {
            Self::Leaf(_) => {
                let steps = self.steps();
                let above = |s: &Step| s.at < before && s.used.wrapping_add(raised) > most;
                let last = steps.iter().rposition(above)?;
                Some(steps.get(last + 1).map_or(end, |next| next.at))
            }
            Self::Inner(Inner { children }) => {
                let above = |c: &Child| c.from < before && c.highest.wrapping_add(raised) > most;
                let mut there = (0..children.len()).rev().filter(|i| above(&children[*i]));
                // Only the first one can disappoint, when it is above from `before` on.
                there.find_map(|i| {
                    let end = children.get(i + 1).map_or(end, |next| next.from);
                    let raised = raised.wrapping_add(children[i].raised);
                    children[i].node.end_of_last_above(most, raised, end, before)
                })
            }
        }
    }

    /// A leaf's steps; none for an inner node.
    pub fn steps(&self) -> &[Step] {
        match self {
            Self::Leaf(steps) if steps.is_empty() => &IDLE,
            Self::Leaf(steps) => steps,
            Self::Inner(_) => &[],
        }
    }

    fn inner(children: Vec<Child>) -> Self {
        Self::Inner(Inner { children })
    }

    /// Changes what `stretch` has of this node, and gives the right half if it became too long.
    fn change(&mut self, stretch: Stretch, change: Change, end: u64) -> Option<Self> {
        match self {
            Self::Leaf(steps) => {
                raise_steps(steps, stretch, change.by, end);
                split(steps, STEPS).map(Self::Leaf)
            }
            Self::Inner(inner) => {
                inner.change(stretch, change, end);
                split(&mut inner.children, CHILDREN).map(Self::inner)
            }
        }
    }

    /// Drops levels and memory that are not needed any more.
    fn tidy_root(&mut self) {
        while let Self::Inner(inner) = self
            && inner.children.len() == 1
        {
            let Some(mut only) = inner.children.pop() else { break };
            only.settle();
            *self = only.node;
        }
        if self.reserves_nothing() {
            *self = Self::idle();
        }
    }

    fn reserves_nothing(&self) -> bool {
        match self {
            Self::Leaf(steps) => steps.iter().all(|step| step.used == 0),
            Self::Inner(inner) => inner.children.iter().all(|child| child.highest == 0),
        }
    }

    fn own_extent(&self) -> Extent {
        match self {
            Self::Leaf(_) => Extent::of_steps(self.steps()),
            Self::Inner(inner) => {
                inner.children.iter().map(Child::extent).reduce(Extent::and).unwrap_or(Extent::NONE)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Leaf(steps) => steps.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    fn len_at_most(&self) -> usize {
        match self {
            Self::Leaf(_) => STEPS,
            Self::Inner(_) => CHILDREN,
        }
    }

    fn begin(&self) -> u64 {
        match self {
            Self::Leaf(_) => self.steps()[0].at,
            Self::Inner(inner) => inner.children[0].from,
        }
    }

    /// Takes the contents of the next node of the same level.
    fn absorb(&mut self, next: Self) {
        match (self, next) {
            (Self::Leaf(steps), Self::Leaf(more)) => {
                let seam = steps.len();
                steps.extend(more);
                heal(steps, seam);
            }
            (Self::Inner(inner), Self::Inner(more)) => inner.children.extend(more.children),
            _ => unreachable!("all leaves are on one level"),
        }
    }
}

impl Inner {
    fn change(&mut self, stretch: Stretch, change: Change, end: u64) {
        let children = &mut self.children;
        let past = count(children, |c| c.from < stretch.to);
        // Backwards, so that a child that splits does not move those that are still to be raised.
        for i in (child_at(children, stretch.from)..past).rev() {
            let end = children.get(i + 1).map_or(end, |next| next.from);
            if stretch.from <= children[i].from && end <= stretch.to {
                children[i].shift(change.by);
            } else if let Some(right) = children[i].change(stretch, change, end) {
                children.insert(i + 1, right);
            }
        }
        // Only the two children at the ends of the stretch can have lost something.
        self.mend(stretch.to - 1);
        self.mend(stretch.from);
    }

    /// Joins the child that holds at `instant` with a neighbour if it has become small and both together
    /// leave room to grow. Two neighbours of which one is small hold more than that, which keeps the
    /// depth logarithmic.
    fn mend(&mut self, instant: u64) {
        let children = &mut self.children;
        let middle = child_at(children, instant);
        let most = children[middle].node.len_at_most();
        if children[middle].node.len() >= most / 3 {
            return;
        }
        let pairs = [middle.checked_sub(1), Some(middle)];
        let joinable = pairs.into_iter().flatten().find(|&left| {
            let right = children.get(left + 1);
            right.is_some_and(|r| children[left].node.len() + r.node.len() <= most * 3 / 4)
        });
        if let Some(left) = joinable {
            let mut right = children.remove(left + 1);
            right.settle();
            let left = &mut children[left];
            left.settle();
            left.node.absorb(right.node);
            left.notes = Notes::none();
            left.measure();
        }
    }
}

impl Child {
    fn new(node: Node) -> Self {
        let Extent { lowest, highest } = node.own_extent();
        Self { from: node.begin(), raised: 0, lowest, highest, notes: Notes::none(), node }
    }

    /// The least and greatest amount, as the parent stores them.
    pub fn extent(&self) -> Extent {
        Extent { lowest: self.lowest, highest: self.highest }
    }

    /// Adds `by` to all of it. O(1).
    fn shift(&mut self, by: u64) {
        self.raised = self.raised.wrapping_add(by);
        self.notes.shift(by);
        let Extent { lowest, highest } = self.extent().raised(by);
        (self.lowest, self.highest) = (lowest, highest);
    }

    fn change(&mut self, stretch: Stretch, change: Change, end: u64) -> Option<Self> {
        self.settle();
        if change.lowers {
            // Only one place can wait.
            self.mend_kept(end);
        }
        let right = self.node.change(stretch, change, end).map(Self::new);
        self.measure();
        if right.is_some() {
            self.notes = Notes::none();
        } else if change.lowers {
            self.mend_notes(stretch, end);
        }
        self.notes.keep_from(self.lowest);
        right
    }

    /// Makes notes true again when less is reserved over `stretch`. Those that are kept for long wait
    /// until somebody asks for them: often the same is reserved again before.
    fn mend_notes(&mut self, stretch: Stretch, end: u64) {
        let Some(limit) = self.highest.checked_sub(1) else { return self.notes = Notes::none() };
        let stretch = Stretch { from: stretch.from.max(self.from), to: stretch.to.min(end) };
        if let Some(stairs) = self.notes.kept() {
            stairs.lowered(stretch);
        }
        let mut told = self.notes.told().peekable();
        if told.peek().is_none() {
            return;
        }
        if let Node::Leaf(steps) = &self.node {
            told.for_each(|note| *note = Note::of_steps(steps, 0, note.most.min(limit), end));
            return;
        }
        let lowered = Lowered { node: &self.node, raised: 0, from: self.from, end, stretch };
        let lowest = lowered.lowest();
        for note in told {
            note.most = note.most.min(limit);
            if note.most >= lowest {
                note.longest = note.longest.max(lowered.run(note.most));
                *note = lowered.ends(*note);
            }
        }
    }

    /// The note that is kept for who asks for so much, true as things are now.
    pub fn kept_about(&self, most: u64, end: u64) -> Option<Note> {
        self.mend_kept(end);
        self.notes.kept().map(|stairs| stairs.about(most))
    }

    fn mend_kept(&self, end: u64) {
        if let Some(stairs) = self.notes.kept() {
            self.mend(stairs, end);
        }
    }

    fn mend(&self, stairs: &Stairs, end: u64) {
        if let Some(stretch) = stairs.take_lowered() {
            let (node, raised, from) = (&self.node, self.raised, self.from);
            let lowered = Lowered { node, raised, from, end, stretch };
            let extent = Extent { lowest: lowered.lowest(), highest: self.highest };
            stairs.mend(extent, |most| lowered.run(most), |note| lowered.ends(note));
        }
    }

    /// Passes on what was noted, so that what `node` stores is what the parent means.
    fn settle(&mut self) {
        let by = std::mem::take(&mut self.raised);
        if by == 0 {
            return;
        }
        match &mut self.node {
            Node::Leaf(steps) => add(steps, by),
            Node::Inner(inner) => inner.children.iter_mut().for_each(|child| child.shift(by)),
        }
    }

    fn measure(&mut self) {
        let Extent { lowest, highest } = self.node.own_extent().raised(self.raised);
        (self.lowest, self.highest) = (lowest, highest);
    }
}

/// A part of the time in which less is reserved over `stretch` than was. Runs that touch it may have become
/// longer, and no others.
#[derive(Debug, Clone, Copy)]
struct Lowered<'a> {
    node: &'a Node,
    /// To be added (modulo 2^64) to every amount in `node`.
    raised: u64,
    from: u64,
    end: u64,
    stretch: Stretch,
}

impl Lowered<'_> {
    /// The least amount where it became less: notes about less are still true.
    fn lowest(&self) -> u64 {
        self.node.extent(self.stretch).raised(self.raised).lowest
    }

    /// No run up to `most` that touches the stretch is longer.
    fn run(&self, most: u64) -> u64 {
        let Stretch { from, to } = self.stretch;
        let [(a, b), (c, d)] = [from, to].map(|at| (self.last(most, at), self.next(most, at)));
        (b - a).max(c.saturating_sub(b)).max(d - c)
    }

    /// Puts right where a note says that it blocks first and last, if that is what changed.
    fn ends(&self, mut note: Note) -> Note {
        if self.stretch.from <= note.first {
            note.first = self.next(note.most, self.from);
        }
        if note.last <= self.stretch.to {
            note.last = self.last(note.most, self.end);
        }
        note
    }

    /// Where the first place that blocks begins that does not end before `at`.
    fn next(&self, most: u64, at: u64) -> u64 {
        let blocks = |extent: Extent| extent.highest > most;
        self.node.first(at, self.raised, &blocks).unwrap_or(self.end)
    }

    /// Where the last place that blocks ends that begins before `at`, or `at` if it goes on.
    fn last(&self, most: u64, at: u64) -> u64 {
        let last = self.node.end_of_last_above(most, self.raised, self.end, at);
        last.map_or(self.from, |end| end.min(at))
    }
}

impl Extent {
    /// Of no amounts at all.
    const NONE: Self = Self { lowest: u64::MAX, highest: 0 };

    fn one(amount: u64) -> Self {
        Self { lowest: amount, highest: amount }
    }

    fn of_steps(steps: &[Step]) -> Self {
        steps.iter().fold(Self::NONE, |extent, step| extent.and(Self::one(step.used)))
    }

    fn and(self, other: Self) -> Self {
        Self { lowest: self.lowest.min(other.lowest), highest: self.highest.max(other.highest) }
    }

    /// The same with `by` added (modulo 2^64).
    pub fn raised(self, by: u64) -> Self {
        Self { lowest: self.lowest.wrapping_add(by), highest: self.highest.wrapping_add(by) }
    }
}

/// The step that holds at `instant`, the first one if `instant` is before all.
pub fn step_at(steps: &[Step], instant: u64) -> usize {
    count(steps, |step| step.at <= instant).saturating_sub(1)
}

/// The child that holds at `instant`, the first one if `instant` is before all.
pub fn child_at(children: &[Child], instant: u64) -> usize {
    count(children, |child| child.from <= instant).saturating_sub(1)
}

/// Of how many it holds; they are the first ones of the list. Halving the list would look at fewer, but
/// each look would wait for the one before it, and what is looked at is seldom in the cache.
fn count<T>(list: &[T], holds: impl Fn(&T) -> bool) -> usize {
    list.iter().filter(|item| holds(item)).count()
}

fn raise_steps(steps: &mut Vec<Step>, stretch: Stretch, by: u64, end: u64) {
    let first = if stretch.from <= steps[0].at { 0 } else { cut(steps, stretch.from) };
    let past = if stretch.to < end { cut(steps, stretch.to) } else { steps.len() };
    add(&mut steps[first..past], by);
    heal(steps, past);
    heal(steps, first);
}

fn add(steps: &mut [Step], by: u64) {
    steps.iter_mut().for_each(|step| step.used = step.used.wrapping_add(by));
}

/// The step that begins at `at`, made if there is none.
fn cut(steps: &mut Vec<Step>, at: u64) -> usize {
    let holds = step_at(steps, at);
    if steps[holds].at == at {
        return holds;
    }
    steps.insert(holds + 1, Step { at, used: steps[holds].used });
    holds + 1
}

/// Removes a step that says nothing new. The first one of a leaf stays: it marks where it begins.
fn heal(steps: &mut Vec<Step>, index: usize) {
    if index > 0 && index < steps.len() && steps[index].used == steps[index - 1].used {
        steps.remove(index);
    }
}

/// The right half, if the list is too long: one operation puts at most two more in, so a list never
/// outgrows an allocation of `most`.
fn split<T>(list: &mut Vec<T>, most: usize) -> Option<Vec<T>> {
    (list.len() > most - 2).then(|| list.split_off(list.len() / 2))
}

#[cfg(test)]
impl Node {
    /// Panics if anything that the tree promises about itself is not so. Returns the depth.
    pub fn check(&self) -> usize {
        match self {
            Self::Leaf(_) => {
                let steps = self.steps();
                assert!(steps.len() <= STEPS - 2);
                for pair in steps.windows(2) {
                    assert!(pair[0].at < pair[1].at && pair[0].used != pair[1].used, "{steps:?}");
                }
                1
            }
            Self::Inner(inner) => {
                let children = &inner.children;
                assert!((1..=CHILDREN - 2).contains(&children.len()));
                let depths: Vec<_> = children.iter().map(|c| c.node.check()).collect();
                assert!(depths.iter().all(|depth| *depth == depths[0]), "{depths:?}");
                for (i, child) in children.iter().enumerate() {
                    assert_eq!(child.from, child.node.begin());
                    assert!(i == 0 || children[i - 1].from < child.from);
                    assert_eq!(child.extent(), child.node.own_extent().raised(child.raised));
                    // Nobody knows here where the last one ends.
                    if let Some(next) = children.get(i + 1) {
                        child.check_notes(next.from);
                    }
                }
                depths[0] + 1
            }
        }
    }

    fn all_steps(&self, raised: u64, all: &mut Vec<Step>) {
        let raise = |step: &Step| Step { used: step.used.wrapping_add(raised), ..*step };
        all.extend(self.steps().iter().map(raise));
        if let Self::Inner(Inner { children }) = self {
            children.iter().for_each(|c| c.node.all_steps(raised.wrapping_add(c.raised), all));
        }
    }
}

#[cfg(test)]
impl Child {
    /// Panics if a note is wrong for some amount for which somebody may rely on it.
    fn check_notes(&self, end: u64) {
        let mut steps = Vec::new();
        self.node.all_steps(self.raised, &mut steps);
        let kept = self.notes.kept().cloned();
        kept.iter().for_each(|stairs| self.mend(stairs, end));
        let kept = kept.iter().flat_map(Stairs::all);
        let last = self.notes.last().filter(|note| *note != Note::NOTHING);
        for note in last.chain(kept) {
            assert!((self.lowest..self.highest).contains(&note.most), "{note:?}");
            let amounts = steps.iter().map(|step| step.used.min(note.most));
            for most in amounts.filter(|most| *most < self.highest) {
                let exact = Note::of_steps(&steps, 0, most, end);
                assert!(exact.longest <= note.longest, "{note:?} {exact:?}");
                assert!(exact.first <= note.first && note.last <= exact.last, "{note:?} {exact:?}");
            }
        }
    }
}
