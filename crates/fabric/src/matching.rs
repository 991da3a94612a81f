//! Which message a receiver gets: the first that arrived among those that match (pure).

use crate::id::ResourceId;
use std::collections::{BTreeSet, VecDeque};

/// What kind of message it is; its meaning is the program's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// Which messages a receiver wants.
///
/// ```
/// use keeptime_fabric::{Match, Tag};
///
/// let question = Match::tag(7);
/// assert_eq!(question.tag, Some(Tag(7)));
/// assert_eq!(Match::any().tag, None);
/// // Whatever the lower half of its tag is.
/// let answer_of_kind_3 = Match::tag(3 << 32).in_bits(!0 << 32);
/// # assert_eq!(answer_of_kind_3.tag_bits, Some(!0 << 32));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Match {
    /// Only with this tag.
    pub tag: Option<Tag>,
    /// Of the tag only the bits that are set here count; none: all of them.
    pub tag_bits: Option<u64>,
    /// Only from this resource.
    pub from: Option<ResourceId>,
}

/// What messages are matched by.
pub trait Envelope {
    /// Its tag.
    fn tag(&self) -> Tag;
    /// Who sent it.
    fn from(&self) -> ResourceId;
}

/// Messages in the order of their arrival.
///
/// Taking the first that matches costs as much as the messages before it: nothing when receivers
/// take what comes.
#[derive(Debug)]
pub struct Queue<T> {
    arrived: VecDeque<T>,
}

/// Positions of messages that are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// The first that is to be taken.
    pub there: Option<usize>,
    /// The first before it that is not all there.
    pub coming: Option<usize>,
}

impl Match {
    /// Every message.
    pub const fn any() -> Self {
        Self { tag: None, tag_bits: None, from: None }
    }

    /// Those with tag `number`.
    pub const fn tag(number: u64) -> Self {
        Self { tag: Some(Tag(number)), ..Self::any() }
    }

    /// Those as well whose tags differ in other bits than these.
    #[must_use]
    pub const fn in_bits(self, bits: u64) -> Self {
        Self { tag_bits: Some(bits), ..self }
    }

    /// Of these only those that `sender` sent.
    #[must_use]
    pub const fn from(self, sender: ResourceId) -> Self {
        Self { from: Some(sender), ..self }
    }

    /// Whether it wants a message with this envelope.
    pub fn wants(&self, envelope: &impl Envelope) -> bool {
        let bits = self.tag_bits.unwrap_or(!0);
        self.tag.is_none_or(|tag| (tag.0 ^ envelope.tag().0) & bits == 0)
            && self.from.is_none_or(|from| from == envelope.from())
    }
}

impl<T: Envelope> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Envelope> Queue<T> {
    /// Nothing has arrived.
    pub const fn new() -> Self {
        Self { arrived: VecDeque::new() }
    }

    /// `message` arrives.
    pub fn push(&mut self, message: T) {
        self.arrived.push_back(message);
    }

    /// Where there is something that `wanted` wants. Nothing goes before what its sender has sent earlier, if that is
    /// wanted as well and not all there.
    pub fn find(&self, wanted: &Match, is_there: impl Fn(&T) -> bool) -> Found {
        let (mut found, mut held) = (Found::default(), BTreeSet::new());
        let all = self.arrived.iter().enumerate().filter(|(_, message)| wanted.wants(*message));
        for (at, message) in all {
            if held.contains(&message.from()) {
                continue;
            }
            if is_there(message) {
                found.there = Some(at);
                break;
            }
            found.coming.get_or_insert(at);
            held.insert(message.from());
        }
        found
    }

    /// That at this position.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.arrived.get(at)
    }

    /// Takes it.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        self.arrived.remove(at)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.arrived.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Whether there is one that `wanted` wants.
    pub fn has(&self, wanted: &Match) -> bool {
        self.arrived.iter().any(|message| wanted.wants(message))
    }

    /// All that is there, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.arrived.iter()
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.arrived.iter_mut()
    }

    /// Takes all that is left, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.arrived).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ContextId, Place};
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Letter {
        tag: u64,
        from: u32,
        number: usize,
        is_there: bool,
    }

    fn sender(slot: u32) -> ResourceId {
        ResourceId { context: ContextId::new(1), place: Place { slot, generation: 0 } }
    }

    impl Envelope for Letter {
        fn tag(&self) -> Tag {
            Tag(self.tag)
        }
        fn from(&self) -> ResourceId {
            sender(self.from)
        }
    }

    proptest! {
        /// Against a list from which the first that fits is removed, unless one before it of its sender that fits is not
        /// there: order holds per sender and tag.
        #[test]
        fn the_first_that_matches_is_taken(
            ops in prop::collection::vec((any::<bool>(), 0..3_u64, 0..3_u32, any::<[bool; 3]>()), 0..200)
        ) {
            let mut queue = Queue::new();
            let mut list: Vec<Letter> = Vec::new();
            for (number, (push, tag, from, use_of)) in ops.into_iter().enumerate() {
                if push {
                    let letter = Letter { tag, from, number, is_there: !(use_of[0] && use_of[1]) };
                    queue.push(letter);
                    list.push(letter);
                } else {
                    let wanted = Match {
                        tag: use_of[0].then_some(Tag(tag)),
                        tag_bits: use_of[2].then_some(2),
                        from: use_of[1].then_some(sender(from)),
                    };
                    // Of 0, 1 and 2.
                    let is_tag = |of: u64| if use_of[2] { (of == 2) == (tag == 2) } else { of == tag };
                    let fits = |l: &Letter| (!use_of[0] || is_tag(l.tag)) && (!use_of[1] || l.from == from);
                    let coming: Vec<_> = list.iter().filter(|l| fits(l) && !l.is_there).copied().collect();
                    let is_held = |l: &Letter| coming.iter().any(|c| c.from == l.from && c.number < l.number);
                    let free = |l: &Letter| fits(l) && l.is_there && !is_held(l);
                    let expected = list.iter().position(free);
                    let found = queue.find(&wanted, |letter| letter.is_there);
                    prop_assert_eq!(found.there, expected);
                    let first = coming.first().filter(|c| expected.is_none_or(|at| c.number < list[at].number));
                    prop_assert_eq!(found.coming.and_then(|at| queue.get(at)), first);
                    let taken = expected.map(|at| list.remove(at));
                    prop_assert_eq!(found.there.and_then(|at| queue.remove(at)), taken);
                }
            }
            prop_assert_eq!(queue.drain().collect::<Vec<_>>(), list);
        }
    }
}
