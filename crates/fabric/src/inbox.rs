//! What has arrived for one resource, and who waits for it.

mod glimpse;

use crate::flow::{AHEAD_MOST, GONE_MOST, Owed, PARKED_MOST, WINDOW, Waiting};
use crate::frame::{Frame, Malformed, Reason, Refusal};
use crate::id::{ContextId, Place, ResourceId};
use crate::link::Link;
use crate::matching::{Envelope, Found, Match, Queue, Tag};
use crate::payload::Buffer;
use crate::progress::Parker;
use glimpse::{Contents, Glimpse};
use keeptime_locks::lock;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use thiserror::Error;

/// Most resources of one context at a time.
pub const RESOURCES_MOST: u32 = 1 << 20;
/// Notices that a resource keeps: as many as messages of no length fit into the windows of 16 receivers, and 12 MiB.
/// Windows bound what is on the way, so this is only reached by a program that sends to many that are gone and
/// never receives: it is told of the others when it closes its context.
pub const NOTICES_MOST: usize = 1 << 18;
const CHUNK: u32 = 256;
/// Stands for a link that is no more: no link has this number.
pub const NO_LINK: u32 = u32::MAX;

/// A message as it arrived; or as it arrives, if its body is still to be made.
#[derive(Debug)]
pub struct Arrived<B = Body> {
    /// Who sent it.
    pub from: ResourceId,
    /// Its tag.
    pub tag: Tag,
    /// What it says, or where that is to be had.
    pub body: B,
    /// The link that it came by, 0 if from this context. That of a link that is no more leads nowhere.
    pub link: u32,
    /// What it was charged.
    pub charge: u32,
}

/// What a message says, or where that is to be had.
#[derive(Debug)]
pub enum Body {
    /// All of it.
    Whole(Buffer),
    /// It is fetched when somebody wants it. Few are, and what all others pass stays short.
    Offered(Box<Offered>),
}

/// Where a long message is to be had.
#[derive(Debug)]
pub struct Offered {
    /// From where.
    pub link: Arc<Link>,
    /// Its name there; 0 if its sender was told that it is not taken.
    pub token: u32,
    /// Its length.
    pub size: u64,
    /// Whether it is being fetched.
    pub fetch: Fetch,
}

/// Whether a long message is being fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// It is not.
    No,
    /// It is, before it is the first that a receiver wants.
    Ahead,
    /// It is, or has been: a receiver has asked for it.
    Asked,
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
    notices: VecDeque<Undelivered>,
    owed: Owed,
    /// How many long messages it has.
    offered: usize,
    /// Bytes that are fetched ahead.
    ahead: u64,
    /// What is charged for what the own context has sent here and nobody has taken.
    from_within: u64,
    /// Bytes of it: those that are given are not charged.
    bytes_within: usize,
    /// What is charged for what each link has brought here and nobody has taken.
    from_links: Waiting,
    /// The same of all links that are no more.
    from_gone: u64,
    receivers: Vec<(Match, Arc<Parker>)>,
    senders: Vec<Arc<Parker>>,
}

/// The place of one inbox after the other.
#[derive(Debug)]
struct Slot {
    inbox: Mutex<Inbox>,
    glimpse: Glimpse,
}

/// One inbox, found once for all that a call does there.
#[derive(Debug, Clone, Copy)]
pub struct Spot<'a> {
    slot: &'a Slot,
    generation: u32,
}

/// Inboxes that are made together, when the first of them is needed.
type Chunk = Box<[Slot]>;

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

impl<B: FnOnce() -> Body> Arrived<B> {
    /// It, with its body made.
    #[inline(always)]
    pub fn made(self) -> Arrived {
        let Self { from, tag, body, link, charge } = self;
        Arrived { from, tag, body: body(), link, charge }
    }
}

impl Arrived {
    fn is_offered(&self) -> bool {
        matches!(self.body, Body::Offered(_))
    }

    /// Whether it can be taken: a long one when no more of it is to arrive.
    fn is_there(&self) -> bool {
        match &self.body {
            Body::Whole(_) => true,
            Body::Offered(offered) => {
                offered.fetch != Fetch::No && !offered.link.is_coming(offered.token)
            }
        }
    }

    /// Whether a receiver has asked for it, if it is long.
    fn is_asked(&self) -> bool {
        matches!(&self.body, Body::Offered(offered) if offered.fetch == Fetch::Asked)
    }
}

impl Body {
    /// How many bytes of it are here.
    fn held(&self) -> usize {
        match self {
            Self::Whole(data) => data.len(),
            Self::Offered(_) => 0,
        }
    }
}

impl<B> Envelope for Arrived<B> {
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
            notices: VecDeque::new(),
            owed: Owed::new(),
            offered: 0,
            ahead: 0,
            from_within: 0,
            bytes_within: 0,
            from_links: Waiting::new(),
            from_gone: 0,
            receivers: Vec::new(),
            senders: Vec::new(),
        }
    }

    /// Refuses `message` if there is no room for it. Who is connected keeps to its window; who connects again and again
    /// has a new one each time.
    fn admit(&self, message: &Arrived) -> Result<(), Refusal> {
        let left = GONE_MOST.saturating_sub(self.from_gone);
        if message.link == 0 || u64::from(message.charge) <= left {
            return Ok(());
        }
        Err(Refusal::NoRoom { left: u16::try_from(left).unwrap_or(u16::MAX) })
    }

    /// `message` arrives, by a thread that waits itself as `own`, if it does. Returns who is to be woken: that one, if
    /// it wants the message, since no other has to be. One that waits for the end of a long message is woken then.
    ///
    /// # Errors
    /// If its link has sent more than any window holds.
    pub fn deliver(
        &mut self,
        message: Arrived,
        own: Option<&Arc<Parker>>,
    ) -> Result<Option<Arc<Parker>>, Malformed> {
        if message.link == 0 {
            self.from_within += u64::from(message.charge);
            self.bytes_within += message.body.held();
        } else {
            self.from_links.arrived(message.link, message.charge)?;
        }
        let at = self.queue.len();
        self.offered += usize::from(message.is_offered());
        self.queue.push(message);
        let wants = |(wanted, _): &(Match, Arc<Parker>)| {
            let wants = self.queue.get(at).is_some_and(|message| wanted.wants(message));
            wants && (self.offered == 0 || self.has_for(wanted))
        };
        let is_own = |parker: &Arc<Parker>| own.is_some_and(|own| Arc::ptr_eq(own, parker));
        let first = self.receivers.iter().position(|entry| is_own(&entry.1) && wants(entry));
        let waits = first.or_else(|| self.receivers.iter().position(wants));
        Ok(waits.map(|at| self.receivers.swap_remove(at).1))
    }

    /// A message that `wanted` wants arrives by `link` while its receiver looks: whether that is to take it at once,
    /// since no other that is wanted came before it, and then what to give back to its sender now, if anything.
    pub fn hands(&mut self, link: u32, charge: u32, wanted: &Match) -> Option<Option<u64>> {
        (!self.queue.has(wanted)).then(|| self.owed.taken(link, charge))
    }

    /// Takes the first message that `wanted` wants, or else the oldest notice that is its receiver's to take. If that
    /// makes room for senders in this context, they are returned to be woken.
    pub fn take(&mut self, wanted: &Match) -> (Option<Taken>, Vec<Arc<Parker>>) {
        let first = self.find(wanted).there.and_then(|at| self.queue.remove(at));
        let Some(message) = first else {
            let notice = self.notice_for(wanted).and_then(|at| self.notices.remove(at));
            return (notice.map(Taken::Notice), Vec::new());
        };
        if message.link == 0 {
            self.from_within -= u64::from(message.charge);
            self.bytes_within -= message.body.held();
            return (Some(Taken::Message(message, None)), std::mem::take(&mut self.senders));
        }
        if let Body::Offered(offered) = &message.body {
            self.offered -= 1;
            if offered.fetch == Fetch::Ahead {
                self.ahead -= offered.size;
            }
        }
        if message.link == NO_LINK {
            self.from_gone -= u64::from(message.charge);
            return (Some(Taken::Message(message, None)), Vec::new());
        }
        self.from_links.taken(message.link, message.charge);
        let credit = self.owed.taken(message.link, message.charge);
        (Some(Taken::Message(message, credit)), Vec::new())
    }

    /// Fetches long messages for a receiver at `place` that wants `wanted` and was given `taken`: the first if that is none,
    /// and, as after any long one, as much of what it will want next as may be fetched before it is asked for. Each is
    /// fetched once. Returns the links by which something is to be said.
    pub fn fetch(&mut self, place: Place, wanted: &Match, taken: Option<&Taken>) -> Vec<Arc<Link>> {
        let mut links = Vec::new();
        let mut asks = match taken {
            Some(Taken::Message(message, _)) if !message.is_offered() => return links,
            Some(Taken::Message(..)) => false,
            Some(Taken::Notice(_)) | None => true,
        };
        if self.offered == 0 {
            return links;
        }
        for message in self.queue.iter_mut().filter(|message| wanted.wants(*message)) {
            let Arrived { from, tag, body: Body::Offered(offered), .. } = message else { break };
            let Offered { link, token, size, fetch } = &mut **offered;
            let is_new = match (*fetch, mem::take(&mut asks)) {
                (Fetch::Asked, _) | (Fetch::Ahead, false) => continue,
                (Fetch::Ahead, true) => {
                    self.ahead -= *size;
                    *fetch = Fetch::Asked;
                    continue;
                }
                (Fetch::No, true) => {
                    *fetch = Fetch::Asked;
                    true
                }
                // What its sender says: any number, where messages may have any length.
                (Fetch::No, false) if self.ahead.saturating_add(*size) > AHEAD_MOST => break,
                (Fetch::No, false) => false,
            };
            match (link.take_offer(*token, place, *size as usize), is_new) {
                (Ok(()), true) => {}
                (Ok(()), false) => {
                    *fetch = Fetch::Ahead;
                    self.ahead += *size;
                }
                (Err(_), true) => link.answer(Frame::Rejected {
                    from: from.place,
                    to: place,
                    tag: *tag,
                    // It has no name any more, and nothing of another that has the same.
                    token: mem::take(token),
                    bytes: 0,
                    reason: Refusal::NoRoom { left: 0 },
                }),
                // If it cannot be taken now, it is fetched when it is wanted.
                (Err(_), false) => break,
            }
            links.push(link.clone());
        }
        links
    }

    fn find(&self, wanted: &Match) -> Found {
        self.queue.find(wanted, Arrived::is_there)
    }

    /// Whether a receiver that wants `wanted` has something to do: a message to take, or to ask for.
    fn has_for(&self, wanted: &Match) -> bool {
        let Found { there, coming } = self.find(wanted);
        let is_asked = |at| self.queue.get(at).is_some_and(Arrived::is_asked);
        there.is_some() || coming.is_some_and(|at| !is_asked(at))
    }

    /// The notice that a receiver that wants `wanted` is told next: one of whom it waits for goes first, since nothing else
    /// may ever come of that one.
    fn notice_for(&self, wanted: &Match) -> Option<usize> {
        let own = wanted.from.and_then(|from| self.notices.iter().position(|one| one.to == from));
        own.or_else(|| self.notices.iter().position(|notice| self.is_to_hear(wanted, notice)))
    }

    /// Whether a receiver that wants `wanted` is to be told this: anyone, unless some wait for whom it was to go to.
    fn is_to_hear(&self, wanted: &Match, notice: &Undelivered) -> bool {
        let waits = |wanted: &Match| wanted.from == Some(notice.to);
        waits(wanted) || !self.receivers.iter().any(|(other, _)| waits(other))
    }

    /// Tells the resource what became of a message that it sent. Returns who is to be woken; none if it has so much to be told
    /// that it is not told this. They stay listed until they have it: no other takes it from them.
    pub fn notify(&mut self, notice: Undelivered) -> Option<Vec<Arc<Parker>>> {
        if self.notices.len() >= NOTICES_MOST {
            return None;
        }
        let hear = self.receivers.iter().filter(|(wanted, _)| self.is_to_hear(wanted, &notice));
        let hear = hear.map(|(_, parker)| parker.clone()).collect();
        self.notices.push_back(notice);
        Some(hear)
    }

    /// Whether the own context may send one more of `bytes` that is charged `charge`.
    pub fn has_room(&self, charge: u32, bytes: usize) -> bool {
        let fits = |charge: u64| self.from_within + charge <= WINDOW;
        let is_alone = self.from_within == 0;
        is_alone || fits(charge.into()) && self.bytes_within.saturating_add(bytes) <= PARKED_MOST
    }

    /// Has `parker` woken when a message that `wanted` wants arrives.
    pub fn enlist_receiver(&mut self, wanted: Match, parker: &Arc<Parker>) {
        if !self.receivers.iter().any(|(_, other)| Arc::ptr_eq(other, parker)) {
            self.receivers.push((wanted, parker.clone()));
        }
    }

    /// Who waits for messages of `peer` alone.
    pub fn receivers_of(&self, peer: ContextId) -> impl Iterator<Item = &Arc<Parker>> {
        let is_of = move |wanted: &Match| wanted.from.is_some_and(|from| from.context == peer);
        self.receivers.iter().filter(move |(wanted, _)| is_of(wanted)).map(|(_, parker)| parker)
    }

    /// Has `parker` woken no longer. Returns whether others wait.
    pub fn delist_receiver(&mut self, parker: &Arc<Parker>) -> bool {
        self.receivers.retain(|(_, other)| !Arc::ptr_eq(other, parker));
        !self.receivers.is_empty()
    }

    /// Who waits for a message or a notice that is there, and is to be woken: whoever was woken for it has taken another one,
    /// or it has been fetched.
    pub fn next_receiver(&mut self) -> Option<Arc<Parker>> {
        if let Some(waits) = self.receivers.iter().position(|(wanted, _)| self.has_for(wanted)) {
            return Some(self.receivers.swap_remove(waits).1);
        }
        // Listed until it has it, as in `notify`.
        let mut hear =
            self.receivers.iter().filter(|(wanted, _)| self.notice_for(wanted).is_some());
        hear.next().map(|(_, parker)| parker.clone())
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

    /// The same for what came by `link`.
    #[cfg(test)]
    pub fn charged_by(&self, link: u32) -> u64 {
        let waiting = self.queue.iter().filter(|message| message.link == link);
        waiting.map(|message| u64::from(message.charge)).sum()
    }

    /// What is owed to `link`.
    #[cfg(test)]
    pub fn owed_to(&self, link: u32) -> u64 {
        let of_link = self.owed.to_each().into_iter().filter(|(owed, _)| *owed == link);
        of_link.map(|(_, bytes)| bytes).sum()
    }

    /// Lengths of all long messages of `link` that are fetched.
    #[cfg(test)]
    pub fn fetched_by(&self, link: u32) -> u64 {
        let of_link = self.queue.iter().filter(|message| message.link == link);
        let size = |message: &Arrived| match &message.body {
            Body::Offered(offered) if offered.fetch != Fetch::No => offered.size,
            _ => 0,
        };
        of_link.map(size).sum()
    }

    /// A message that goes by `link` was not sent, and did not give back `credit`.
    pub fn put_back(&mut self, link: u32, credit: u32) {
        self.owed.put_back(link, credit);
    }

    /// `link` is no more: nothing is given back to it for what still waits.
    pub fn forget(&mut self, link: u32) {
        self.owed.forget(link);
        for message in self.queue.iter_mut().filter(|message| message.link == link) {
            message.link = NO_LINK;
        }
        self.from_gone += self.from_links.forget(link);
    }
}

impl Contents for Inbox {
    fn is_filled(&self) -> bool {
        !self.queue.is_empty() || !self.notices.is_empty()
    }

    fn owes(&self) -> bool {
        self.owed.is_due()
    }

    fn handed(&mut self, link: u32, charge: u32) {
        self.owed.handed(link, charge);
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
            .get_or_init(|| (0..CHUNK).map(|_| Slot::new()).collect());
        let mut inbox = lock(&chunk[(slot % CHUNK) as usize].inbox);
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

    /// Where the inbox at `place` is, if one was ever there.
    #[inline]
    pub fn at(&self, place: Place) -> Option<Spot<'_>> {
        let chunk = self.chunks.get((place.slot / CHUNK) as usize)?.get()?;
        let slot = &chunk[(place.slot % CHUNK) as usize];
        Some(Spot { slot, generation: place.generation })
    }

    /// What `action` makes of the inbox at `place`. None if it leads nowhere.
    pub fn with<T>(&self, place: Place, action: impl FnOnce(&mut Inbox) -> T) -> Option<T> {
        self.at(place)?.with(action)
    }

    /// What `action` makes of it and `message`.
    ///
    /// # Errors
    /// If the place leads nowhere, or there is no room.
    pub fn give<T>(
        &self,
        place: Place,
        message: Arrived,
        action: impl FnOnce(&mut Inbox, Arrived) -> T,
    ) -> Result<T, Refusal> {
        let mut held = self.at(place).and_then(|spot| spot.hold()).ok_or(Refusal::Gone)?;
        held.inbox.admit(&message)?;
        Ok(held.does(|inbox| action(inbox, message)))
    }

    /// Does `action` to every open inbox.
    pub fn each(&self, mut action: impl FnMut(&mut Inbox)) {
        for slot in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            let mut held = slot.hold();
            if held.inbox.open {
                held.does(&mut action);
            }
        }
    }
}

impl<'a> Spot<'a> {
    /// [`Glimpse::may_have`].
    pub fn may_have(&self) -> bool {
        self.slot.glimpse.may_have()
    }

    /// What a message from here by `link` gives back: mostly nothing, which takes one read of a word.
    pub fn credit_with_message(&self, link: u32) -> u32 {
        let owes = self.slot.glimpse.owes();
        let credit = owes.then(|| self.with(|inbox| inbox.owed.with_message(link)));
        credit.flatten().unwrap_or(0)
    }

    /// What `action` makes of the inbox. None if it is no more.
    pub fn with<T>(&self, action: impl FnOnce(&mut Inbox) -> T) -> Option<T> {
        self.hold().map(|mut held| held.does(action))
    }

    /// [`Glimpse::hands`]. Otherwise [`Inbox::hands`] says so.
    pub fn hands(&self, link: u32, charge: u32) -> bool {
        self.slot.glimpse.hands(link, charge)
    }

    fn hold(&self) -> Option<Held<'a>> {
        let held = self.slot.hold();
        (held.inbox.open && held.inbox.generation == self.generation).then_some(held)
    }
}

/// An inbox that nobody else has now.
struct Held<'a> {
    inbox: MutexGuard<'a, Inbox>,
    slot: &'a Slot,
}

impl Slot {
    fn new() -> Self {
        Self { inbox: Mutex::new(Inbox::new()), glimpse: Glimpse::default() }
    }

    fn hold(&self) -> Held<'_> {
        Held { inbox: lock(&self.inbox), slot: self }
    }
}

impl Held<'_> {
    fn does<T>(&mut self, action: impl FnOnce(&mut Inbox) -> T) -> T {
        self.slot.glimpse.does(&mut *self.inbox, action)
    }
}

#[cfg(test)]
mod tests {
    use super::glimpse::HANDED_MOST;
    use super::*;
    use crate::flow::{CHARGE_LEAST, WINDOW_CARRIED, charge};
    use crate::frame::EAGER_MOST;
    use crate::transport::{Broken, rails};

    pub fn message(tag: u64) -> Arrived {
        let place = Place { slot: 0, generation: 0 };
        let from = ResourceId { context: ContextId::new(1), place };
        Arrived { from, tag: Tag(tag), body: Body::Whole(Buffer::default()), link: 3, charge: 100 }
    }

    fn offered(link: &Arc<Link>, token: u32, size: u64, fetch: Fetch) -> Arrived {
        let offered = Offered { link: link.clone(), token, size, fetch };
        Arrived { body: Body::Offered(offered.into()), ..message(1) }
    }

    #[test]
    fn a_place_is_never_used_twice() {
        let inboxes = Inboxes::new();
        let first = inboxes.open().unwrap();
        inboxes.with(first, |inbox| inbox.deliver(message(1), None)).unwrap().unwrap();
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
        assert_eq!(inbox.hands(3, 100, &Match::tag(1)), Some(None));
        inbox.deliver(message(1), None).unwrap();
        assert_eq!(inbox.hands(3, 100, &Match::tag(1)), None);
        assert_eq!(inbox.hands(3, WINDOW as u32, &Match::tag(2)), Some(Some(WINDOW + 100)));
    }

    /// Messages are handed over without the lock as long as they are the first, few, and of one link; what they were
    /// charged is owed all the same.
    #[test]
    fn what_is_handed_over_without_the_lock_is_owed_too() {
        let inboxes = Inboxes::new();
        let place = inboxes.open().unwrap();
        let inbox = inboxes.at(place).unwrap();
        let owed = || inbox.with(|inbox| inbox.owed.to_each()).unwrap();
        assert!(inbox.hands(3, HANDED_MOST - 1) && inbox.hands(3, 1));
        assert!(!inbox.hands(3, 1), "too much");
        assert!(!inbox.hands(4, 1), "of another link");
        assert_eq!(owed(), [(3, HANDED_MOST.into())]);
        assert!(inbox.hands(4, 100));
        assert_eq!(owed(), [(3, HANDED_MOST.into()), (4, 100)]);
        inbox.with(|inbox| inbox.deliver(message(1), None)).unwrap().unwrap();
        assert!(!inbox.hands(4, 1), "another came before");
        assert!(inbox.with(|inbox| inbox.take(&Match::any()).0.is_some()).unwrap());
        assert!(inbox.hands(3, 50));
        let left = inboxes.close(place).unwrap().owed;
        assert_eq!(left, [(3, u64::from(HANDED_MOST) + 100 + 50), (4, 100)]);
    }

    #[test]
    fn that_there_is_something_is_seen_without_the_lock() {
        let inboxes = Inboxes::new();
        let place = inboxes.open().unwrap();
        let seen = |action: fn(&mut Inbox)| {
            inboxes.with(place, action).unwrap();
            inboxes.at(place).unwrap().may_have()
        };
        assert!(!inboxes.at(place).unwrap().may_have());
        assert!(seen(|inbox| drop(inbox.deliver(message(1), None))));
        assert!(seen(|inbox| drop(inbox.take(&Match::tag(2)))));
        assert!(!seen(|inbox| drop(inbox.take(&Match::tag(1)))));
        let lost = Undelivered { to: message(1).from, tag: Tag(9), reason: Reason::Gone };
        inboxes.with(place, |inbox| inbox.notify(lost)).flatten().unwrap();
        assert!(inboxes.at(place).unwrap().may_have());
        inboxes.close(place).unwrap();
        assert!(!inboxes.at(place).unwrap().may_have());
    }

    #[test]
    fn what_is_given_back_goes_with_a_message_once_it_is_worth_it() {
        let inboxes = Inboxes::new();
        let place = inboxes.open().unwrap();
        let taken =
            |charge| inboxes.with(place, |inbox| inbox.hands(3, charge, &Match::any())).unwrap();
        let quarter = (WINDOW / 4) as u32;
        assert_eq!(taken(quarter - 1), Some(None));
        assert_eq!(inboxes.at(place).unwrap().credit_with_message(3), 0);
        assert_eq!(taken(1), Some(None));
        assert_eq!(inboxes.at(place).unwrap().credit_with_message(4), 0);
        assert_eq!(inboxes.at(place).unwrap().credit_with_message(3), quarter);
        assert_eq!(inboxes.at(place).unwrap().credit_with_message(3), 0);
        inboxes.with(place, |inbox| inbox.put_back(3, quarter)).unwrap();
        // Without such a message it goes by itself.
        assert_eq!(taken(quarter), Some(Some(u64::from(2 * quarter))));
    }

    /// Goal: who waits for messages of one sender, of whom none may ever come, is told what became of its own to that one,
    /// and no other thread of its resource instead. Method: it is listed as it sleeps, and the other looks first.
    #[test]
    fn who_waits_for_a_sender_is_told_what_that_one_did_not_get() {
        let sleeper = || std::thread::spawn(Parker::current).join().unwrap();
        let [gone, other] = [7, 8].map(|context| {
            let place = Place { slot: 0, generation: 0 };
            ResourceId { context: ContextId::new(context), place }
        });
        let lost = |to, tag| Undelivered { to, tag: Tag(tag), reason: Reason::Gone };
        let told = |inbox: &mut Inbox, wanted: Match| match inbox.take(&wanted).0 {
            Some(Taken::Notice(notice)) => Some(notice.tag.0),
            _ => None,
        };
        let (mut inbox, [one, another]) = (Inbox::new(), [sleeper(), sleeper()]);
        let (of_gone, of_other) = (Match::tag(8).from(gone), Match::any().from(other));
        inbox.enlist_receiver(of_other, &another);
        inbox.enlist_receiver(of_gone, &one);
        let woken = inbox.notify(lost(gone, 1)).unwrap();
        assert!(matches!(&*woken, [woken] if Arc::ptr_eq(woken, &one)));
        inbox.notify(lost(gone, 2)).unwrap();
        assert_eq!([of_other, Match::any()].map(|wanted| told(&mut inbox, wanted)), [None; 2]);
        // However often others pass the turn on.
        for _ in 0..2 {
            assert!(inbox.next_receiver().is_some_and(|next| Arc::ptr_eq(&next, &one)));
        }
        assert_eq!(told(&mut inbox, of_gone), Some(1));
        // When it waits no longer, any other is told, and one that sleeps is woken for that.
        assert!(inbox.delist_receiver(&one));
        assert!(inbox.next_receiver().is_some_and(|next| Arc::ptr_eq(&next, &another)));
        assert_eq!(told(&mut inbox, of_other), Some(2));
        assert!(inbox.next_receiver().is_none());
        // Its own goes first, whoever has lost more.
        inbox.notify(lost(other, 3)).unwrap();
        inbox.notify(lost(gone, 4)).unwrap();
        assert_eq!([of_gone, of_gone].map(|wanted| told(&mut inbox, wanted)), [Some(4), None]);
        assert_eq!(told(&mut inbox, of_other), Some(3));
    }

    /// What is given within a context is not charged, and bounded all the same; one alone may be longer.
    #[test]
    fn what_is_given_within_a_context_is_bounded() {
        let mut inbox = Inbox::new();
        let given = |bytes: usize| {
            let body = Body::Whole(vec![0_u8; bytes].into());
            Arrived { body, link: 0, charge: CHARGE_LEAST, ..message(1) }
        };
        assert!(inbox.has_room(CHARGE_LEAST, PARKED_MOST + 1));
        inbox.deliver(given(PARKED_MOST - 10), None).unwrap();
        assert!(inbox.has_room(CHARGE_LEAST, 10) && !inbox.has_room(CHARGE_LEAST, 11));
        inbox.deliver(given(10), None).unwrap();
        assert!(!inbox.has_room(CHARGE_LEAST, 1));
        assert!(matches!(inbox.take(&Match::any()).0, Some(Taken::Message(..))));
        assert!(inbox.has_room(CHARGE_LEAST, PARKED_MOST - 10));
    }

    #[test]
    fn messages_go_before_notices() {
        let inboxes = Inboxes::new();
        let place = inboxes.open().unwrap();
        let to = ResourceId { context: ContextId::new(2), place };
        let lost = Undelivered { to, tag: Tag(9), reason: Reason::Gone };
        let takes = inboxes.with(place, |inbox| {
            inbox.notify(lost.clone()).unwrap();
            inbox.deliver(message(1), None).unwrap();
            [inbox.take(&Match::any()).0, inbox.take(&Match::tag(5)).0, inbox.take(&Match::any()).0]
        });
        let [first, second, third] = takes.unwrap();
        assert!(matches!(first, Some(Taken::Message(m, None)) if m.tag == Tag(1)));
        assert!(matches!(second, Some(Taken::Notice(notice)) if notice == lost));
        assert!(third.is_none());
    }

    /// A sender that does without credit is found out before it fills the memory; several that keep to their windows
    /// are not, however much that is.
    #[test]
    fn what_is_beyond_every_window_is_refused() {
        let mut inbox = Inbox::new();
        let longest = charge(EAGER_MOST);
        let window = WINDOW_CARRIED / u64::from(longest);
        let mut deliver =
            |link| inbox.deliver(Arrived { link, charge: longest, ..message(1) }, None);
        for link in 1..=4 {
            (0..window).for_each(|_| drop(deliver(link).unwrap()));
        }
        assert!(deliver(5).unwrap().is_none());
        assert_eq!(deliver(4).unwrap_err(), Malformed::Unknown("credit"));
    }

    /// A sender may say any length of what it offers.
    #[test]
    fn what_cannot_be_fetched_ahead_is_left() {
        let mut inbox = Inbox::new();
        let (ends, _rails) = rails::ends().unwrap();
        let link = Arc::new(Link::new(3, ContextId::new(1), ends));
        for (token, size) in [(1, 10), (2, u64::MAX)] {
            inbox.deliver(offered(&link, token, size, Fetch::No), None).unwrap();
        }
        let any = Match::any();
        let place = Place { slot: 7, generation: 0 };
        let taken = Taken::Message(offered(&link, 9, 10, Fetch::Asked), None);
        assert_eq!(inbox.fetch(place, &any, Some(&taken)).len(), 1);
        assert_eq!([1, 2].map(|token| link.has_taken(token)), [true, false]);
        assert_eq!(inbox.ahead, 10);
        // The first of them is asked for now, and makes room.
        assert!(inbox.fetch(place, &any, None).is_empty());
        assert_eq!(inbox.ahead, 0);
        assert!(inbox.take(&any).0.is_none(), "it is coming");
        // So is one for which there is no memory: it is refused, and holds up nobody.
        let mut inbox = Inbox::new();
        inbox.deliver(offered(&link, 2, u64::MAX, Fetch::No), None).unwrap();
        assert_eq!(inbox.fetch(place, &any, None).len(), 1);
        assert!(link.has_backlog() && !link.has_taken(2));
        assert!(matches!(inbox.take(&any).0, Some(Taken::Message(..))));
    }

    /// What waits when its link goes can be taken, and nobody owes anything for it: that could never be given back.
    #[test]
    fn nothing_is_owed_to_a_link_that_is_gone() {
        let mut inbox = Inbox::new();
        let waiting = Arrived { charge: WINDOW as u32, ..message(1) };
        inbox.deliver(waiting, None).unwrap();
        inbox.forget(3);
        assert!(matches!(inbox.take(&Match::any()).0, Some(Taken::Message(_, None))));
        assert!(!inbox.owed.is_due());
        assert_eq!(inbox.owed.all().count(), 0);
    }

    /// A context that connects again and again, and sends as much as it may each time, does not fill the memory; what
    /// it has sent is taken or refused, and there is room again when some of it was taken.
    #[test]
    fn what_came_by_links_that_are_gone_is_bounded() {
        let inboxes = Inboxes::new();
        let place = inboxes.open().unwrap();
        let longest = charge(EAGER_MOST);
        let send = |link| {
            let message = Arrived { link, charge: longest, ..message(1) };
            inboxes.give(place, message, |inbox, message| inbox.deliver(message, None).unwrap())
        };
        let (window, mut refused) = (WINDOW_CARRIED / u64::from(longest), 0);
        for link in 1..=100 {
            for _ in 0..window {
                match send(link) {
                    Ok(woken) => assert!(woken.is_none()),
                    Err(reason) => {
                        assert_eq!(reason, Refusal::NoRoom { left: 0 });
                        refused += 1;
                    }
                }
            }
            let charged = inboxes.with(place, |inbox| {
                inbox.forget(link);
                inbox.charged()
            });
            assert!(charged.unwrap() <= GONE_MOST);
        }
        assert_eq!(refused, (100 - 16) * window);
        let taken = inboxes.with(place, |inbox| inbox.take(&Match::any()).0).unwrap();
        assert!(matches!(taken, Some(Taken::Message(_, None))));
        assert!(send(101).is_ok());
        // A message has to fit as a whole.
        for (more, left) in [(u64::from(longest) - 50, 50), (1, u16::MAX)] {
            inboxes.with(place, |inbox| inbox.from_gone += more).unwrap();
            assert_eq!(send(101).unwrap_err(), Refusal::NoRoom { left });
            inboxes.with(place, |inbox| inbox.from_gone -= more).unwrap();
        }
        // What is sent within the context is bounded by itself.
        assert!(send(0).is_ok());
    }

    /// As many as one receiver's window has room for, and more: each is told, the oldest first.
    #[test]
    fn no_notice_is_lost_that_one_receiver_can_cause() {
        let mut inbox = Inbox::new();
        let count = WINDOW_CARRIED / u64::from(CHARGE_LEAST);
        for tag in 0..count {
            let lost = Undelivered { to: message(1).from, tag: Tag(tag), reason: Reason::Gone };
            inbox.notify(lost).unwrap();
        }
        for tag in 0..count {
            let told = inbox.take(&Match::any()).0;
            assert!(matches!(told, Some(Taken::Notice(notice)) if notice.tag == Tag(tag)));
        }
    }

    /// Two wait, and a message comes for which the first is woken. It leaves with another one: then the second has to
    /// be woken, or nobody takes it.
    #[test]
    fn what_is_left_when_a_receiver_leaves_is_for_the_next() {
        let [first, second] = parkers();
        let mut inbox = Inbox::new();
        inbox.enlist_receiver(Match::any(), &first);
        inbox.enlist_receiver(Match::tag(1), &second);
        let woken = inbox.deliver(message(1), None).unwrap().unwrap();
        assert!(Arc::ptr_eq(&woken, &first));
        assert!(inbox.delist_receiver(&first), "another one waits");
        assert!(Arc::ptr_eq(&inbox.next_receiver().unwrap(), &second));
        assert!(!inbox.delist_receiver(&second), "it was woken");
        inbox.enlist_receiver(Match::tag(2), &first);
        assert!(inbox.next_receiver().is_none(), "nobody wants it");
    }

    /// A thread that delivers what it waits for itself takes it: no other is woken to find nothing.
    #[test]
    fn who_delivers_what_it_waits_for_wakes_nobody_else() {
        let [first, own] = parkers();
        let mut inbox = Inbox::new();
        inbox.enlist_receiver(Match::any(), &first);
        inbox.enlist_receiver(Match::tag(1), &own);
        let mut woken = |tag| inbox.deliver(message(tag), Some(&own)).unwrap().unwrap();
        assert!(Arc::ptr_eq(&woken(1), &own));
        assert!(Arc::ptr_eq(&woken(1), &first), "its own is taken care of");
    }

    /// Goal: of several who wait each is woken for what it can take. Method: a long message is not there yet, and nothing
    /// that was sent after it is for who wants both; whoever wants that alone gets it.
    #[test]
    fn whoever_can_take_what_arrives_is_woken() {
        let [first, second] = parkers();
        let mut inbox = Inbox::new();
        let (ends, _rails) = rails::ends().unwrap();
        let link = Arc::new(Link::new(3, ContextId::new(1), ends));
        let place = Place { slot: 7, generation: 0 };
        // In this order.
        let wait = |inbox: &mut Inbox| {
            inbox.delist_receiver(&second);
            inbox.enlist_receiver(Match::any(), &first);
            inbox.enlist_receiver(Match::tag(2), &second);
        };
        wait(&mut inbox);
        let asks = inbox.deliver(offered(&link, 1, 10, Fetch::No), None).unwrap().unwrap();
        assert!(Arc::ptr_eq(&asks, &first), "it has to ask for it");
        assert!(inbox.take(&Match::any()).0.is_none());
        assert_eq!(inbox.fetch(place, &Match::any(), None).len(), 1);
        wait(&mut inbox);
        assert!(inbox.next_receiver().is_none(), "nobody asks twice");
        let takes = inbox.deliver(message(2), None).unwrap().unwrap();
        assert!(Arc::ptr_eq(&takes, &second));
        // The link is over: what was coming never will, and is taken as that.
        link.close(Broken::Closed);
        assert!(Arc::ptr_eq(&inbox.next_receiver().unwrap(), &first));
        let tags = [(); 2].map(|()| match inbox.take(&Match::any()).0 {
            Some(Taken::Message(message, _)) => message.tag.0,
            other => panic!("{other:?}"),
        });
        assert_eq!(tags, [1, 2]);
    }

    fn parkers() -> [Arc<Parker>; 2] {
        [(); 2].map(|()| std::thread::spawn(Parker::current).join().unwrap())
    }
}
