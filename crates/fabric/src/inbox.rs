//! What has arrived for one resource, and who waits for it.

use crate::flow::{Owed, WINDOW};
use crate::frame::Reason;
use crate::id::{Place, ResourceId};
use crate::link::Link;
use crate::matching::{Envelope, Match, Queue, Tag};
use crate::progress::{Parker, lock};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use thiserror::Error;

/// Most resources of one context at a time.
pub const RESOURCES_MOST: u32 = 1 << 20;
/// Notices that a resource keeps. Windows bound what is on the way, so this is only reached by a
/// program that sends to many that are gone and never receives.
const NOTICES_MOST: usize = 4096;
const CHUNK: u32 = 256;

/// A message as it arrived.
#[derive(Debug)]
pub struct Arrived {
    /// Who sent it.
    pub from: ResourceId,
    /// Its tag.
    pub tag: Tag,
    /// What it says, or where that is to be had.
    pub body: Body,
    /// The link that it came by, 0 if from this context.
    pub link: u32,
    /// What it was charged.
    pub charge: u32,
}

/// What a message says, or where that is to be had.
#[derive(Debug)]
pub enum Body {
    /// All of it.
    Whole(Vec<u8>),
    /// It is fetched when somebody wants it.
    Offered {
        /// From where.
        link: Arc<Link>,
        /// Its name there.
        token: u32,
        /// Its length.
        size: u64,
    },
}

/// A message that was sent did not reach its receiver.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the message with tag {} to {to} was not delivered: {reason}", .tag.0)]
pub struct Undelivered {
    /// Who was to get it.
    pub to: ResourceId,
    /// Its tag.
    pub tag: Tag,
    /// Why.
    pub reason: Reason,
}

/// What a receiver gets.
#[derive(Debug)]
pub enum Taken {
    /// A message, and what to give back to its sender now, if anything.
    Message(Arrived, Option<u64>),
    /// What became of a message that this resource sent.
    Notice(Undelivered),
}

/// One resource's.
#[derive(Debug)]
pub struct Inbox {
    generation: u32,
    open: bool,
    queue: Queue<Arrived>,
    notices: Vec<Undelivered>,
    owed: Owed,
    /// What the own context has sent here and nobody has taken.
    from_within: u64,
    receivers: Vec<(Match, Arc<Parker>)>,
    senders: Vec<Arc<Parker>>,
}

/// Inboxes that are made together, when the first of them is needed.
type Chunk = Box<[Mutex<Inbox>]>;

/// All of a context's: found by their place without a lock on the table.
#[derive(Debug)]
pub struct Inboxes {
    chunks: Box<[OnceLock<Chunk>]>,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    slots: Vec<u32>,
    used: u32,
}

impl Envelope for Arrived {
    fn tag(&self) -> Tag {
        self.tag
    }

    fn from(&self) -> ResourceId {
        self.from
    }
}

impl Inbox {
    const fn new() -> Self {
        Self {
            generation: 0,
            open: false,
            queue: Queue::new(),
            notices: Vec::new(),
            owed: Owed::new(),
            from_within: 0,
            receivers: Vec::new(),
            senders: Vec::new(),
        }
    }

    /// `message` arrives. Returns who is to be woken.
    pub fn deliver(&mut self, message: Arrived) -> Option<Arc<Parker>> {
        if message.link == 0 {
            self.from_within += u64::from(message.charge);
        }
        let waits = self.receivers.iter().position(|(wanted, _)| wanted.wants(&message));
        self.queue.push(message);
        waits.map(|at| self.receivers.swap_remove(at).1)
    }

    /// `message`, which `wanted` wants, arrives by a link while its receiver looks: it is taken at once,
    /// or given back if another that is wanted came before it.
    pub fn hand(&mut self, message: Arrived, wanted: &Match) -> Result<Taken, Arrived> {
        if self.queue.has(wanted) {
            return Err(message);
        }
        let credit = self.owed.taken(message.link, message.charge);
        Ok(Taken::Message(message, credit))
    }

    /// Takes the first message that `wanted` wants, or else the oldest notice. If that makes room
    /// for senders in this context, they are returned to be woken.
    pub fn take(&mut self, wanted: &Match) -> (Option<Taken>, Vec<Arc<Parker>>) {
        let Some(message) = self.queue.take(wanted) else {
            let notice = (!self.notices.is_empty()).then(|| Taken::Notice(self.notices.remove(0)));
            return (notice, Vec::new());
        };
        if message.link == 0 {
            self.from_within -= u64::from(message.charge);
            return (Some(Taken::Message(message, None)), std::mem::take(&mut self.senders));
        }
        let credit = self.owed.taken(message.link, message.charge);
        (Some(Taken::Message(message, credit)), Vec::new())
    }

    /// Tells the resource what became of a message that it sent. Returns who is to be woken.
    pub fn notify(&mut self, notice: Undelivered) -> Vec<Arc<Parker>> {
        if self.notices.len() < NOTICES_MOST {
            self.notices.push(notice);
        }
        self.receivers.drain(..).map(|(_, parker)| parker).collect()
    }

    /// Whether the own context may send `charge` more.
    pub fn has_room(&self, charge: u32) -> bool {
        self.from_within == 0 || self.from_within + u64::from(charge) <= WINDOW
    }

    /// Has `parker` woken when a message that `wanted` wants arrives.
    pub fn enlist_receiver(&mut self, wanted: Match, parker: &Arc<Parker>) {
        if !self.receivers.iter().any(|(_, other)| Arc::ptr_eq(other, parker)) {
            self.receivers.push((wanted, parker.clone()));
        }
    }

    /// Has `parker` woken no longer.
    pub fn delist_receiver(&mut self, parker: &Arc<Parker>) {
        self.receivers.retain(|(_, other)| !Arc::ptr_eq(other, parker));
    }

    /// Has `parker` woken when there is room.
    pub fn enlist_sender(&mut self, parker: &Arc<Parker>) {
        if !self.senders.iter().any(|other| Arc::ptr_eq(other, parker)) {
            self.senders.push(parker.clone());
        }
    }

    /// What is charged for all that is in it.
    #[cfg(test)]
    pub fn charged(&self) -> u64 {
        self.queue.iter().map(|message| u64::from(message.charge)).sum()
    }

    /// `link` is no more.
    pub fn forget(&mut self, link: u32) {
        self.owed.forget(link);
    }
}

/// What is left when a resource goes.
#[derive(Debug)]
pub struct Left {
    /// Messages that nobody took.
    pub messages: Vec<Arrived>,
    /// What is owed, for each link.
    pub owed: Vec<(u32, u64)>,
    /// Who waited for room.
    pub senders: Vec<Arc<Parker>>,
}

impl Inboxes {
    /// None.
    pub fn new() -> Self {
        let chunks = (0..RESOURCES_MOST / CHUNK).map(|_| OnceLock::new()).collect();
        Self { chunks, free: Mutex::default() }
    }

    /// Opens an inbox at a place that was never used. None if there are [`RESOURCES_MOST`].
    pub fn open(&self) -> Option<Place> {
        let mut free = lock(&self.free);
        let slot = match free.slots.pop() {
            Some(slot) => slot,
            None if free.used < RESOURCES_MOST => {
                free.used += 1;
                free.used - 1
            }
            None => return None,
        };
        drop(free);
        let chunk = self.chunks[(slot / CHUNK) as usize]
            .get_or_init(|| (0..CHUNK).map(|_| Mutex::new(Inbox::new())).collect());
        let mut inbox = lock(&chunk[(slot % CHUNK) as usize]);
        inbox.open = true;
        Some(Place { slot, generation: inbox.generation })
    }

    /// Closes it; its place leads nowhere from now on.
    pub fn close(&self, place: Place) -> Option<Left> {
        let left = self.with(place, |inbox| {
            let old = std::mem::replace(inbox, Inbox::new());
            // The last generation stays closed for ever: its slot is not used again.
            inbox.generation = old.generation.saturating_add(1);
            let Inbox { mut queue, mut owed, senders, .. } = old;
            let messages = queue.drain().collect();
            Left { messages, owed: owed.all().collect(), senders }
        })?;
        if place.generation < u32::MAX - 1 {
            lock(&self.free).slots.push(place.slot);
        }
        Some(left)
    }

    /// What `action` makes of the inbox at `place`. None if it leads nowhere.
    pub fn with<T>(&self, place: Place, action: impl FnOnce(&mut Inbox) -> T) -> Option<T> {
        self.at(place).map(|mut inbox| action(&mut inbox))
    }

    /// What `action` makes of it and `message`, which is given back if the place leads nowhere.
    pub fn give<T>(
        &self,
        place: Place,
        message: Arrived,
        action: impl FnOnce(&mut Inbox, Arrived) -> T,
    ) -> Result<T, Arrived> {
        match self.at(place) {
            Some(mut inbox) => Ok(action(&mut inbox, message)),
            None => Err(message),
        }
    }

    fn at(&self, place: Place) -> Option<MutexGuard<'_, Inbox>> {
        let chunk = self.chunks.get((place.slot / CHUNK) as usize)?.get()?;
        let inbox = lock(&chunk[(place.slot % CHUNK) as usize]);
        (inbox.open && inbox.generation == place.generation).then_some(inbox)
    }

    /// Does `action` to every open inbox.
    pub fn each(&self, mut action: impl FnMut(&mut Inbox)) {
        for inbox in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            let mut inbox = lock(inbox);
            if inbox.open {
                action(&mut inbox);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ContextId;

    fn message(tag: u64) -> Arrived {
        let place = Place { slot: 0, generation: 0 };
        let from = ResourceId { context: ContextId::new(1), place };
        Arrived { from, tag: Tag(tag), body: Body::Whole(Vec::new()), link: 3, charge: 100 }
    }

    #[test]
    fn a_place_is_never_used_twice() {
        let inboxes = Inboxes::new();
        let first = inboxes.open().unwrap();
        inboxes.with(first, |inbox| inbox.deliver(message(1))).unwrap();
        let left = inboxes.close(first).unwrap();
        assert_eq!((left.messages.len(), left.owed.len()), (1, 0));
        let second = inboxes.open().unwrap();
        assert_eq!((second.slot, second.generation), (first.slot, first.generation + 1));
        assert!(inboxes.with(first, |_| ()).is_none());
        assert!(inboxes.close(first).is_none());
        inboxes.with(second, |inbox| assert!(inbox.take(&Match::any()).0.is_none())).unwrap();
        let nowhere = Place { slot: RESOURCES_MOST, generation: 0 };
        assert!(inboxes.with(nowhere, |_| ()).is_none());
    }

    #[test]
    fn the_last_generation_of_a_slot_is_not_followed_by_the_first() {
        let inboxes = Inboxes::new();
        let first = inboxes.open().unwrap();
        inboxes.with(first, |inbox| inbox.generation = u32::MAX - 1).unwrap();
        let last = Place { slot: first.slot, generation: u32::MAX - 1 };
        inboxes.close(last).unwrap();
        assert_ne!(inboxes.open().unwrap().slot, first.slot);
    }

    #[test]
    fn who_looks_is_handed_a_message_unless_another_came_before() {
        let mut inbox = Inbox::new();
        let handed = inbox.hand(message(1), &Match::tag(1));
        assert!(matches!(handed, Ok(Taken::Message(m, None)) if m.tag == Tag(1)));
        inbox.deliver(message(1));
        assert!(inbox.hand(message(1), &Match::tag(1)).is_err());
        assert!(inbox.hand(message(2), &Match::tag(2)).is_ok());
    }

    #[test]
    fn messages_go_before_notices() {
        let inboxes = Inboxes::new();
        let place = inboxes.open().unwrap();
        let to = ResourceId { context: ContextId::new(2), place };
        let lost = Undelivered { to, tag: Tag(9), reason: Reason::Gone };
        let takes = inboxes.with(place, |inbox| {
            inbox.notify(lost.clone());
            inbox.deliver(message(1));
            [inbox.take(&Match::any()).0, inbox.take(&Match::tag(5)).0, inbox.take(&Match::any()).0]
        });
        let [first, second, third] = takes.unwrap();
        assert!(matches!(first, Some(Taken::Message(m, None)) if m.tag == Tag(1)));
        assert!(matches!(second, Some(Taken::Notice(notice)) if notice == lost));
        assert!(third.is_none());
    }
}
