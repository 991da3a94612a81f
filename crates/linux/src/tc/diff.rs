//! From what is there to what is wanted, in the least number of steps.
//!
//! Order: guarantees shrink before others grow, so that their sum never exceeds the larger of
//! before and after, and no class has less than the smaller of its own two; parents come before
//! children and go after them; filters go before the class that they point to and come after it.

use super::decode::{Observed, ObservedClass, Qdisc, QdiscKind};
use super::ticks::{burst_ticks, rate_bytes};
use super::{Attach, Class, Handle, Op, Place, QUEUE_MAJOR, Queue, Tree};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Somebody else's queueing discipline stands where ours would.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "interface {ifindex}: {kind} {handle} stands at {parent} and is not Keeptime's: remove it or \
     take the interface out of the configuration"
)]
pub struct Foreign {
    /// The interface.
    pub ifindex: u32,
    /// The kind of what stands there.
    pub kind: String,
    /// Its handle.
    pub handle: Handle,
    /// Where it stands.
    pub parent: Handle,
}

/// The steps that make `wanted` out of what is `observed`; none if it is there already.
/// O(n log n) in the number of classes.
///
/// The default class of a hierarchy cannot be changed by the kernel: if it differs, the hierarchy
/// is built anew, and its guarantees are gone for that moment.
///
/// # Errors
/// [`Foreign`] if the place is taken.
pub fn diff(wanted: &Tree, observed: &Observed) -> Result<Vec<Op>, Foreign> {
    let default_minor = wanted.default_minor;
    let mut ops = Vec::new();
    let nothing = Observed::empty(observed.ifindex);
    let base = match standing(&wanted.place, observed)? {
        Some(QdiscKind::Htb { default_minor: found }) if *found == default_minor => observed,
        standing => {
            ops.extend(standing.map(|_| Op::RemovePlace));
            ops.push(Op::AddTree { default_minor });
            &nothing
        }
    };
    ops.extend(Change::new(wanted, base).ops());
    Ok(ops)
}

/// The steps that remove what stands at `place` if it is ours; none if it is not, or is away.
/// Inside of another queueing discipline a plain queue takes its place, as long as that of the outer
/// one where that is a shaper.
pub fn removal(place: &Place, observed: &Observed) -> Vec<Op> {
    match (standing(place, observed), place.attach) {
        (Ok(Some(_)), Attach::Root) => vec![Op::RemovePlace],
        (Ok(Some(_)), Attach::Under(outer)) => {
            let is_outer = |qdisc: &&Qdisc| qdisc.handle.major == outer.major;
            let limit = observed.qdiscs.iter().find(is_outer).and_then(|qdisc| match qdisc.kind {
                QdiscKind::Tbf { limit, .. } => Some(limit),
                _ => None,
            });
            vec![Op::ReplaceByQueue(limit.unwrap_or(QUEUE_BYTES))]
        }
        _ => Vec::new(),
    }
}

/// Where the outer discipline tells no length: two of the greatest packets.
const QUEUE_BYTES: u32 = 2 * 65_536;

/// What of ours stands at `place`.
fn standing<'o>(place: &Place, observed: &'o Observed) -> Result<Option<&'o QdiscKind>, Foreign> {
    let parent = place.attach.parent();
    match observed.at(parent) {
        // Major 0: made by the kernel, replaced without a trace.
        None => Ok(None),
        Some(qdisc) if [0, QUEUE_MAJOR].contains(&qdisc.handle.major) => Ok(None),
        Some(qdisc) if qdisc.handle == (Handle { major: place.major, minor: 0 }) => {
            Ok(Some(&qdisc.kind))
        }
        Some(qdisc) => Err(Foreign {
            ifindex: observed.ifindex,
            kind: kind_name(&qdisc.kind).to_owned(),
            handle: qdisc.handle,
            parent,
        }),
    }
}

fn kind_name(kind: &QdiscKind) -> &str {
    match kind {
        QdiscKind::Htb { .. } => "htb",
        QdiscKind::Tbf { .. } => "tbf",
        QdiscKind::Fifo(Queue::Bytes(_)) => "bfifo",
        QdiscKind::Fifo(Queue::Packets(_)) => "pfifo",
        QdiscKind::Clsact => "clsact",
        QdiscKind::Other(name) => name,
    }
}

/// Two states of the classes and filters of one hierarchy.
struct Change<'a> {
    wanted: &'a Tree,
    observed: &'a Observed,
    /// What is there, by minor number.
    found: BTreeMap<u16, ObservedClass>,
    /// What must be removed: not wanted, or wanted below another parent, or below one of these.
    gone: BTreeSet<u16>,
}

impl<'a> Change<'a> {
    fn new(wanted: &'a Tree, observed: &'a Observed) -> Self {
        let major = wanted.place.major;
        let found: BTreeMap<u16, ObservedClass> = observed
            .classes
            .iter()
            .filter(|(handle, _)| handle.major == major)
            .map(|(handle, class)| (handle.minor, *class))
            .collect();
        let mut gone = BTreeSet::new();
        for minor in by_depth(&found, |class| class.class.parent) {
            let class = found[&minor].class;
            let stays = wanted.classes.get(&minor).is_some_and(|w| w.parent == class.parent);
            if !stays || gone.contains(&class.parent) {
                gone.insert(minor);
            }
        }
        Self { wanted, observed, found, gone }
    }

    fn ops(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        self.remove_filters(&mut ops);
        self.shrink(&mut ops);
        self.remove_classes(&mut ops);
        self.grow_and_add(&mut ops);
        self.add_filters(&mut ops);
        ops
    }

    fn remove_filters(&self, ops: &mut Vec<Op>) {
        let major = self.wanted.place.major;
        for filter in &self.observed.filters {
            let Some(ours) = filter.ours(major).filter(|_| filter.parent.major == major) else {
                continue;
            };
            let keeps = self.wanted.filters.get(&filter.priority) == Some(&ours);
            if !keeps || self.gone.contains(&ours.minor) {
                ops.push(Op::RemoveFilter(filter.priority, ours.matches));
            }
        }
    }

    fn add_filters(&self, ops: &mut Vec<Op>) {
        let major = self.wanted.place.major;
        for (priority, filter) in &self.wanted.filters {
            let found = self.observed.filter(major, *priority).and_then(|f| f.ours(major));
            if found != Some(*filter) || self.gone.contains(&filter.minor) {
                ops.push(Op::AddFilter(*priority, *filter));
            }
        }
    }

    /// Classes that stay with a smaller guarantee; children first.
    fn shrink(&self, ops: &mut Vec<Op>) {
        let order = by_depth(&self.found, |class| class.class.parent);
        for minor in order.into_iter().rev() {
            if let Some((wanted, found)) = self.kept(minor)
                && shrinks(wanted, &found.class)
                && !becomes_leaf(wanted, found)
            {
                ops.push(Op::ChangeClass(minor, *wanted));
            }
        }
    }

    fn remove_classes(&self, ops: &mut Vec<Op>) {
        let order = by_depth(&self.found, |class| class.class.parent);
        let gone = order.into_iter().rev().filter(|minor| self.gone.contains(minor));
        ops.extend(gone.map(Op::RemoveClass));
    }

    /// Everything else about classes, parents first.
    fn grow_and_add(&self, ops: &mut Vec<Op>) {
        for minor in by_depth(&self.wanted.classes, |class| class.parent) {
            let class = self.wanted.classes[&minor];
            let kept = self.kept(minor);
            match kept {
                None => ops.push(Op::AddClass(minor, class)),
                Some((wanted, found)) if becomes_leaf(wanted, found) => {
                    ops.push(Op::ChangeClass(minor, class));
                }
                Some((wanted, found))
                    if !shrinks(wanted, &found.class) && !same(wanted, &found.class) =>
                {
                    ops.push(Op::ChangeClass(minor, class));
                }
                Some(_) => {}
            }
            self.set_queue(minor, &class, kept, ops);
        }
    }

    fn set_queue(
        &self,
        minor: u16,
        class: &Class,
        kept: Option<(&Class, &ObservedClass)>,
        ops: &mut Vec<Op>,
    ) {
        let Some(leaf) = class.leaf else { return };
        // A new class, and one that was inner, has the kernel's default queue.
        let has_own = kept.is_some_and(|(_, found)| !found.is_inner);
        let found = self.observed.queue(self.wanted.handle(minor)).filter(|_| has_own);
        match (found, leaf.queue) {
            (found, Some(wanted)) if found != Some(wanted) => {
                ops.push(Op::SetQueue(minor, wanted));
            }
            (Some(_), None) => ops.push(Op::RemoveQueue(minor)),
            _ => {}
        }
    }

    fn kept(&self, minor: u16) -> Option<(&Class, &ObservedClass)> {
        let found = self.found.get(&minor).filter(|_| !self.gone.contains(&minor))?;
        Some((self.wanted.classes.get(&minor)?, found))
    }
}

/// Minor numbers, parents before children. A parent that is missing, or a circle, counts as top.
fn by_depth<T>(classes: &BTreeMap<u16, T>, parent: impl Fn(&T) -> u16) -> Vec<u16> {
    let depth = |minor: u16| {
        let mut above = minor;
        // HTB itself goes no deeper (TC_HTB_MAXDEPTH).
        (0..HTB_DEPTH_MAX)
            .find(|_| match classes.get(&above) {
                Some(class) => {
                    above = parent(class);
                    false
                }
                None => true,
            })
            .unwrap_or(HTB_DEPTH_MAX)
    };
    let mut order: Vec<u16> = classes.keys().copied().collect();
    order.sort_by_cached_key(|minor| (depth(*minor), *minor));
    order
}

fn becomes_leaf(wanted: &Class, found: &ObservedClass) -> bool {
    wanted.leaf.is_some() && found.is_inner
}

fn shrinks(wanted: &Class, found: &Class) -> bool {
    rate_bytes(wanted.rate) < rate_bytes(found.rate)
}

/// True if the kernel could not tell the two apart. The queue of a leaf is an object of its own.
fn same(wanted: &Class, found: &Class) -> bool {
    let turns = |class: &Class| class.leaf.map(|leaf| (leaf.prio, leaf.quantum));
    let leaf_is_same = wanted.leaf.is_none() || turns(wanted) == turns(found);
    leaf_is_same && in_kernel_units(wanted) == in_kernel_units(found)
}

fn in_kernel_units(class: &Class) -> (u64, u64, u32, u32) {
    let (rate, ceil) = (rate_bytes(class.rate), rate_bytes(class.ceil));
    (rate, ceil, burst_ticks(class.burst, rate), burst_ticks(class.cburst, ceil))
}

const HTB_DEPTH_MAX: usize = 8;

#[cfg(test)]
mod tests;
