//! A connection to one other context: messages and offers in order, credit, answers, and what
//! becomes of everything when it breaks. Sending and receiving lock different halves.

mod delivery;

use crate::flow::{CHARGE_LEAST, Outbound, Sent, WINDOW, WINDOW_CARRIED, charge};
use crate::frame::{EAGER_MOST, Frame, Head, Malformed, Reason, Refusal};
use crate::id::{ContextId, Place, ResourceId};
use crate::inbox::{Arrived, Undelivered};
use crate::matching::Tag;
use crate::payload::Buffer;
use crate::progress::{Parker, Progress, lock};
use crate::transport::{self, Broken, Ends, Glance, Receiver, Sender};
use crate::turns::{Flow, Turns};
use delivery::Delivery;
use std::collections::{BTreeMap, HashMap, TryReserveError, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::{fmt, io};

/// Answers that wait for the other end to read: as many as messages of no length fit into the
/// windows of some hundred receivers.
const ANSWERS_MOST: usize = 1 << 18;
/// So many messages without one from the other end are a stream: more are gathered.
const IN_A_ROW: u32 = 4;
/// Bytes of given messages that wait for their receivers, before senders wait too.
const PARKED_MOST: usize = 64 << 20;
/// Looks for what has arrived on a link that ends: at some 64 KiB each, more than any kernel keeps for one connection.
const LAST_LOOKS: u32 = 4096;

/// What a link needs of its context.
pub trait Home {
    /// The longest message that is accepted.
    fn message_most(&self) -> u64;
    /// Gives a message to its receiver, or says why it does not. An error if it is more than its link may send.
    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed>;
    /// The peer of `link`, which is just read, begins to send by it, as by its own link of this number: those by which
    /// it has sent before are over. An error if it has given up this one as well.
    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed>;
    /// Tells a sender what became of a message.
    fn notify(&self, sender: Place, notice: Undelivered);
    /// Where sleeping threads are woken.
    fn progress(&self) -> &Progress;
}

/// Whether a message was sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It was.
    Done,
    /// There is no room now: enlist, and try again when woken.
    Wait,
}

/// What has become of an offer that was taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Assembled {
    /// It is arriving.
    NotYet,
    /// It has arrived.
    Whole(Vec<u8>),
    /// It never will: the link broke, or its sender has given up. The sender knows.
    Never,
}

/// A connection to one other context.
pub struct Link {
    /// Its number in this context, from 1 on; none is used twice. Of those to one peer by which messages are sent, later
    /// ones have higher numbers.
    pub id: u32,
    /// Who is at the other end.
    pub peer: ContextId,
    /// Looking for frames needs no system call.
    pub in_memory: bool,
    /// [`Link::look_after`] is to be called every few seconds.
    pub is_looked_after: bool,
    glance: Option<Glance>,
    /// Where pieces of long messages wait for their times, if rates can be reserved.
    turns: Option<Arc<Turns>>,
    out: Mutex<Out>,
    input: Mutex<Option<Box<dyn Receiver>>>,
    assemblies: Mutex<HashMap<u32, Assembly>>,
    /// The number that the other end has for it, since that has begun to send by it.
    begun: OnceLock<u32>,
    /// Messages and offers that have arrived.
    seen: AtomicU32,
    /// Messages and offers that the other end has seen.
    confirmed: AtomicU32,
    /// Messages sent since one arrived.
    in_a_row: AtomicU32,
    /// Something waits to be sent: answers, pieces, or bytes.
    backlog: AtomicBool,
    /// What was sent is only kept going by what the other end answers.
    unsettled: AtomicBool,
    /// Somebody has looked for frames since [`Link::is_attended`].
    attended: AtomicBool,
    waiting: Mutex<Vec<Arc<Parker>>>,
    broken: OnceLock<Broken>,
    watched: Mutex<Watched>,
    is_watched: AtomicBool,
}

/// What is, or can be, watched: for reading, and for writing.
struct Watched {
    reading: Vec<OwnedFd>,
    writing: Option<OwnedFd>,
}

struct Out {
    flow: Outbound,
    sender: Option<Box<dyn Sender>>,
    /// The other end has been told that messages and offers come by this link.
    has_begun: bool,
    /// Answers that wait, and how many messages had been seen when they were given.
    answers: VecDeque<(Frame, u32)>,
    /// How many messages the other end was last told to have been seen.
    said: u32,
    offers: HashMap<u32, Offer>,
    /// Offers that were taken, to be sent piece by piece: those of one receiver one after the other, and receivers in
    /// turns.
    cleared: VecDeque<(Place, VecDeque<u32>)>,
    last_token: u32,
    parked: usize,
}

/// A long message that was offered.
struct Offer {
    sent: Sent,
    /// Its number among all that was sent.
    number: u32,
    size: usize,
    data: Data,
}

enum Data {
    /// Given, and sent up to here.
    Given(Buffer, usize),
    /// A thread holds it.
    Lent(Lent),
    /// A thread held it and has given up: it knows, and is told nothing more. The other end still has the offer.
    Withdrawn,
    /// All sent; the other end has not said that it has it.
    Gone,
}

#[derive(Clone, Copy, PartialEq)]
enum Lent {
    Waiting,
    Cleared,
    /// The same, but the next piece has to wait for its time.
    Held,
    Failed(Reason),
}

/// What is left when all was sent that could be.
#[derive(Clone, Copy, PartialEq)]
enum Left {
    Nothing,
    /// What there is no room for.
    Full,
    /// Pieces whose time has not come.
    Held,
}

/// A long message that is arriving.
struct Assembly {
    /// None while a piece is written to it.
    buffer: Option<Vec<u8>>,
    size: usize,
    done: bool,
    parker: Option<Arc<Parker>>,
    /// Nobody wants it any more: what to say to its sender when it has arrived.
    rejection: Option<Frame>,
    /// Its sender has given up, and knows. Kept until somebody takes it or nobody will: then its sender is not told
    /// once more.
    is_withdrawn: bool,
}

impl Link {
    /// A connection over `ends` that was just made, and what to watch for writing.
    pub fn new(id: u32, peer: ContextId, ends: Ends) -> Self {
        let is_looked_after = ends.sender.is_looked_after();
        let out = Out {
            flow: Outbound::new(if ends.in_memory { WINDOW } else { WINDOW_CARRIED }),
            sender: Some(ends.sender),
            has_begun: false,
            answers: VecDeque::new(),
            said: 0,
            offers: HashMap::new(),
            cleared: VecDeque::new(),
            last_token: 0,
            parked: 0,
        };
        Self {
            id,
            peer,
            in_memory: ends.in_memory,
            is_looked_after,
            glance: ends.glance,
            turns: None,
            out: Mutex::new(out),
            input: Mutex::new(Some(ends.receiver)),
            assemblies: Mutex::default(),
            begun: OnceLock::new(),
            seen: AtomicU32::new(0),
            confirmed: AtomicU32::new(0),
            in_a_row: AtomicU32::new(0),
            backlog: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            attended: AtomicBool::new(false),
            waiting: Mutex::default(),
            broken: OnceLock::new(),
            watched: Mutex::new(Watched { reading: ends.readable, writing: ends.writable }),
            is_watched: AtomicBool::new(false),
        }
    }

    /// The same, whose long messages are carried at the rates that are reserved in `turns`.
    pub fn in_turns(self, turns: Arc<Turns>) -> Self {
        Self { turns: Some(turns), ..self }
    }

    /// Whether what is for `context` can be sent by it.
    pub fn leads_to(&self, context: ContextId) -> bool {
        self.peer == context && self.broken.get().is_none()
    }

    /// The other end begins to send by it, as by its own link of this number.
    ///
    /// # Errors
    /// If it has begun before.
    pub fn begins(&self, number: u32) -> Result<(), Malformed> {
        self.begun.set(number).map_err(|_| Malformed::Again)
    }

    /// Whether the other end has begun to send by it before its own link of this number.
    pub fn has_begun_before(&self, number: u32) -> bool {
        self.begun.get().is_some_and(|begun| *begun < number)
    }

    /// Why it broke, if it did.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.get()
    }

    /// Sends a message of at most [`EAGER_MOST`] bytes, and that `from` gives back `credit`.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn message(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        data: &[u8],
        credit: u32,
    ) -> Result<Attempt, Broken> {
        debug_assert!(data.len() <= EAGER_MOST, "longer ones are offered");
        let mut out = self.out()?;
        if !out.has_begun && !self.begin(&mut out)? {
            return Ok(Attempt::Wait);
        }
        let charge = charge(data.len());
        if !out.flow.reserve(to, charge) {
            return Ok(Attempt::Wait);
        }
        out.flow.confirm(self.confirmed.load(Relaxed))?;
        let in_a_row = self.in_a_row.load(Relaxed);
        let frame = Frame::Message { from, to, tag, credit: credit.into() };
        let sent = self.write_with_others(&mut out, frame, data, in_a_row >= IN_A_ROW)?;
        if sent == transport::Sent::Full {
            out.flow.credit(to, u64::from(charge))?;
            return Ok(Attempt::Wait);
        }
        self.in_a_row.store(in_a_row.saturating_add(1), Relaxed);
        out.flow.sent(Sent { from, to, tag });
        Ok(Attempt::Done)
    }

    /// Offers a longer message that is given away: taken out of `data` when it is done.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn offer_given(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        data: &mut Buffer,
    ) -> Result<Attempt, Broken> {
        let mut out = self.out()?;
        if out.parked > 0 && out.parked + data.len() > PARKED_MOST {
            return Ok(Attempt::Wait);
        }
        let sent = Sent { from, to, tag };
        let Some((token, number)) = self.offer(&mut out, sent, data.len())? else {
            return Ok(Attempt::Wait);
        };
        let size = data.len();
        out.parked += size;
        let data = Data::Given(std::mem::take(data), 0);
        out.offers.insert(token, Offer { sent, number, size, data });
        Ok(Attempt::Done)
    }

    /// Offers a longer message that is lent. Returns the offer's name, none if there is no room.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn offer_lent(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        size: usize,
    ) -> Result<Option<u32>, Broken> {
        let mut out = self.out()?;
        let sent = Sent { from, to, tag };
        let Some((token, number)) = self.offer(&mut out, sent, size)? else { return Ok(None) };
        let data = Data::Lent(Lent::Waiting);
        out.offers.insert(token, Offer { sent, number, size, data });
        Ok(Some(token))
    }

    /// Sends of the lent `data` what there is room for, from `sent` on, once it may. Returns
    /// whether all is sent, or why it never will be.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn send_lent(
        &self,
        token: u32,
        data: &[u8],
        sent: &mut usize,
    ) -> Result<Option<Result<(), Reason>>, Broken> {
        let mut out = self.out()?;
        let (state, message) = match out.offers.get(&token) {
            Some(Offer { data: Data::Lent(state), sent: message, .. }) => (*state, *message),
            _ => return Ok(Some(Err(Reason::Unconfirmed))),
        };
        match state {
            Lent::Waiting => return Ok(None),
            Lent::Failed(reason) => {
                out.offers.remove(&token);
                return Ok(Some(Err(reason)));
            }
            Lent::Cleared | Lent::Held => {}
        }
        while *sent < data.len() {
            if !self.has_turn(message) {
                out.mark(token, Data::Lent(Lent::Held));
                return Ok(None);
            }
            let piece = out.piece().min(data.len() - *sent);
            if !self.write(&mut out, Frame::Piece { token }, &data[*sent..*sent + piece])? {
                out.mark(token, Data::Lent(Lent::Cleared));
                return Ok(None);
            }
            self.carried(message, piece);
            *sent += piece;
        }
        out.mark(token, Data::Gone);
        Ok(Some(Ok(())))
    }

    /// Whether the next piece of a lent message waits for its time.
    pub fn is_held(&self, token: u32) -> bool {
        let Ok(out) = self.out() else { return false };
        matches!(out.offers.get(&token), Some(Offer { data: Data::Lent(Lent::Held), .. }))
    }

    /// The sender of a lent message gives up before anything was sent. Returns whether it could.
    pub fn withdraw(&self, token: u32) -> bool {
        let Ok(mut out) = self.out() else { return true };
        let Some(Offer { data: Data::Lent(state), .. }) = out.offers.get(&token) else {
            return false;
        };
        let state = *state;
        match state {
            Lent::Waiting => out.mark(token, Data::Withdrawn),
            // The other end has done with it.
            Lent::Failed(_) => drop(out.offers.remove(&token)),
            Lent::Cleared | Lent::Held => return false,
        }
        true
    }

    /// Says `frame`, now or as soon as there is room.
    pub fn answer(&self, frame: Frame) {
        if let Ok(mut out) = self.out() {
            self.answer_now(&mut out, frame);
        }
    }

    /// The same for a message that has just arrived and is not delivered: it counts as seen from this
    /// answer on. If others could say so before, and the connection broke then, its sender would
    /// never be told.
    fn reject(&self, sent: Sent, token: u32, bytes: u32, reason: Refusal) {
        let Sent { from, to, tag } = sent;
        if let Ok(mut out) = self.out() {
            self.has_seen_one_more();
            self.answer_now(&mut out, Frame::Rejected { from, to, tag, token, bytes, reason });
        }
    }

    fn answer_now(&self, out: &mut Out, frame: Frame) {
        let written = out.answers.is_empty() && self.write(out, frame, &[]).unwrap_or(false);
        if !written {
            out.answers.push_back((frame, self.seen.load(Relaxed)));
            self.backlog.store(true, Relaxed);
        }
    }

    fn has_seen_one_more(&self) {
        let seen = self.seen.load(Relaxed);
        self.seen.store(seen.wrapping_add(1), Relaxed);
    }

    /// Has `parker` woken when there may be room. What it waits for is to be tried again after
    /// this: a try that finds none has the next room told.
    pub fn enlist(&self, parker: &Arc<Parker>) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|other| Arc::ptr_eq(other, parker)) {
            waiting.push(parker.clone());
        }
    }

    /// Whether somebody is to be woken when there may be room.
    fn is_awaited(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }

    /// Takes an offer, unless it is taken: its pieces are written to a buffer of their own.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn take_offer(&self, token: u32, size: usize) -> Result<(), TryReserveError> {
        if self.has_taken(token) {
            return Ok(());
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(size)?;
        let (done, parker, rejection, is_withdrawn) = (false, None, None, false);
        let buffer = Some(buffer);
        let assembly = Assembly { buffer, size, done, parker, rejection, is_withdrawn };
        lock(&self.assemblies).insert(token, assembly);
        self.answer(Frame::Clear { token });
        Ok(())
    }

    /// Whether an offer was taken, and nobody has what arrived.
    pub fn has_taken(&self, token: u32) -> bool {
        lock(&self.assemblies).contains_key(&token)
    }

    /// Says `rejection` of an offer that nobody wants any more; if it was taken, when all of it has arrived:
    /// its sender does not stop before.
    pub fn reject_offer(&self, token: u32, rejection: Frame) {
        let mut assemblies = lock(&self.assemblies);
        if let Some(assembly) = assemblies.get_mut(&token).filter(|assembly| assembly.is_coming()) {
            assembly.rejection = Some(rejection);
            return;
        }
        let taken = assemblies.remove(&token);
        drop(assemblies);
        if taken.is_some_and(|assembly| assembly.is_withdrawn) {
            self.give_back(rejection);
        } else {
            self.answer(rejection);
        }
    }

    /// Gives back what was charged for an offer whose sender has given up, and says nothing else of `rejection`.
    fn give_back(&self, rejection: Frame) {
        if let Frame::Rejected { to, bytes, .. } = rejection {
            self.answer(Frame::Credit { place: to, bytes: bytes.into() });
        }
    }

    /// Has `parker` woken when a taken offer has arrived, or never will. Look again after this.
    pub fn enlist_fetch(&self, token: u32, parker: &Arc<Parker>) {
        if let Some(assembly) = lock(&self.assemblies).get_mut(&token) {
            assembly.parker = Some(parker.clone());
        }
    }

    /// What has become of a taken offer.
    pub fn assembled(&self, token: u32) -> Assembled {
        let mut assemblies = lock(&self.assemblies);
        let Some(assembly) = assemblies.get(&token) else { return Assembled::Never };
        if assembly.is_coming() && self.broken.get().is_none() {
            return Assembled::NotYet;
        }
        let assembly = assemblies.remove(&token).filter(|assembly| assembly.done);
        assembly.and_then(|assembly| assembly.buffer).map_or(Assembled::Never, Assembled::Whole)
    }

    /// Whether [`Self::receive`] may have something to do.
    pub fn may_have_frames(&self) -> bool {
        self.glance.as_ref().is_none_or(|glance| glance()) || self.has_backlog()
    }

    /// Handles frames that have arrived, unless another thread does. Returns how many.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn receive(self: &Arc<Self>, home: &impl Home) -> Result<usize, Broken> {
        let mut input = match self.input.try_lock() {
            Ok(input) => input,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(0),
        };
        let Some(receiver) = input.as_mut() else { return Ok(0) };
        self.attended.store(true, Relaxed);
        let polled = receiver.poll(&mut Delivery { link: self, home });
        let frames = polled.map_err(end_of)?;
        if receiver.owes() {
            // With the lock, so that nobody who has looked before says that nothing waits.
            let _out = lock(&self.out);
            self.backlog.store(true, Relaxed);
        }
        if frames == 0 && self.has_backlog() {
            drop(input);
            self.pump(home)?;
        }
        Ok(frames)
    }

    /// Handles all frames that have arrived, after those that another thread just handles.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn receive_all(self: &Arc<Self>, home: &impl Home) -> Result<(), Broken> {
        let mut input = self.input();
        let Some(receiver) = input.as_mut() else { return Ok(()) };
        for _ in 0..LAST_LOOKS {
            let polled = receiver.poll(&mut Delivery { link: self, home });
            if polled.map_err(end_of)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// What is watched became ready: frames, room, or the end.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn signalled(self: &Arc<Self>, home: &impl Home) -> Result<(), Broken> {
        if let Some(receiver) = self.input().as_mut() {
            receiver.signalled();
        }
        self.receive(home)?;
        if self.has_backlog() {
            return self.pump(home);
        }
        self.wake_waiting(home);
        Ok(())
    }

    /// The caller is going to sleep. Returns false if there is something to do.
    pub fn falls_asleep(&self) -> bool {
        self.input().as_mut().is_none_or(|receiver| receiver.falls_asleep())
    }

    /// It is awake again.
    pub fn wakes_up(&self) {
        if let Some(receiver) = self.input().as_mut() {
            receiver.wakes_up();
        }
    }

    /// Whether everything that was taken is with the other end, or with its kernel.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn is_drained(&self, home: &impl Home) -> Result<bool, Broken> {
        self.pump(home)?;
        let mut out = self.out()?;
        let is_given = |offer: &Offer| matches!(offer.data, Data::Given(..) | Data::Gone);
        let given_left = out.offers.values().any(is_given);
        Ok(out.answers.is_empty()
            && !given_left
            && out.sender.as_mut().is_none_or(|sender| sender.is_drained()))
    }

    /// Whom messages are for that may not have arrived, the oldest first. Threads that lend are told by what their
    /// call returns.
    pub fn unsent(&self) -> Vec<ResourceId> {
        let Ok(mut out) = self.out() else { return Vec::new() };
        // If the other end says that it has seen what was not sent, nothing of it counts.
        let _ = out.flow.confirm(self.confirmed.load(Relaxed));
        let unsent = not_arrived(out.flow.unconfirmed().collect(), out.offers.values());
        unsent.into_values().map(|sent| self.flow_of(sent).1).collect()
    }

    /// Ends it, and tells everybody whom it concerns. Only the first call does something; returns whether it was that.
    pub fn end(&self, why: Broken, home: &impl Home) -> bool {
        if self.broken.set(why).is_err() {
            return false;
        }
        let (unconfirmed, offers) = {
            let mut out = lock(&self.out);
            out.sender = None;
            // If the mistake was in what the other end says that it has seen, all counts as lost.
            let _ = out.flow.confirm(self.confirmed.load(Relaxed));
            let offers: Vec<Offer> = out.offers.drain().map(|(_, offer)| offer).collect();
            (out.flow.abandon().collect::<BTreeMap<_, _>>(), offers)
        };
        *self.input() = None;
        self.tell(unconfirmed, &offers, home);
        let parkers: Vec<_> =
            lock(&self.assemblies).values_mut().filter_map(|a| a.parker.take()).collect();
        parkers.iter().for_each(|parker| home.progress().wake(parker));
        self.wake_waiting(home);
        let Watched { reading, writing } = &mut *lock(&self.watched);
        reading.drain(..).chain(writing.take()).for_each(|fd| home.progress().forget(fd));
        true
    }

    /// Tells senders what may not have arrived.
    fn tell(&self, unconfirmed: BTreeMap<u32, Sent>, offers: &[Offer], home: &impl Home) {
        for sent in not_arrived(unconfirmed, offers).into_values() {
            home.notify(sent.from, self.undelivered(sent.to, sent.tag, Reason::Unconfirmed));
        }
    }

    /// Has `progress` watch it from now on, if it does not.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn watch(&self, progress: &Progress) -> io::Result<()> {
        if self.is_watched.load(Relaxed) {
            return Ok(());
        }
        let watched = lock(&self.watched);
        if self.is_watched.swap(true, Relaxed) {
            return Ok(());
        }
        let (Watched { reading, writing }, token) = (&*watched, u64::from(self.id));
        reading.iter().try_for_each(|fd| progress.watch_reading(fd, token))?;
        writing.iter().try_for_each(|fd| progress.watch_writing(fd, token))
    }

    /// Whether something waits to be sent.
    pub fn has_backlog(&self) -> bool {
        self.backlog.load(Relaxed)
    }

    /// Whether what the other end answers has to be read for what was sent to arrive, whoever waits
    /// for what.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.load(Relaxed)
    }

    /// Finds out whether the other node is gone, where nothing else tells.
    ///
    /// # Errors
    /// If it is.
    pub fn look_after(&self) -> Result<(), Broken> {
        self.out()?.sender.as_mut().map_or(Ok(()), |sender| sender.look_after())
    }

    /// Whether somebody has looked for frames since this was asked last.
    pub fn is_attended(&self) -> bool {
        self.attended.swap(false, Relaxed)
    }

    /// Sends what waits: answers first, then pieces of what was given. Then others may try again.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn pump(&self, home: &impl Home) -> Result<(), Broken> {
        let Ok(out) = self.out() else { return Ok(()) };
        self.pump_with(out, home)
    }

    /// The same, unless another thread is just sending: what waits then waits for that one.
    ///
    /// # Errors
    /// As above.
    pub fn pump_if_free(&self, home: &impl Home) -> Result<(), Broken> {
        match self.out.try_lock() {
            Ok(out) if self.broken.get().is_none() => self.pump_with(out, home),
            _ => Ok(()),
        }
    }

    fn pump_with(&self, mut out: MutexGuard<'_, Out>, home: &impl Home) -> Result<(), Broken> {
        let (done, room) = loop {
            let carried = out.flush()?;
            let left = if carried { self.send_waiting(&mut out)? } else { Left::Full };
            // What was sent just now may be kept: that is a backlog as well.
            let done = left == Left::Nothing && out.flush()?;
            if !done {
                out.expect_read()?;
            }
            let room = done || !out.sender.as_mut().is_some_and(|sender| sender.falls_asleep());
            // If room was made since it was looked for, nobody tells: look again.
            if done || !carried || !room || left == Left::Held {
                break (done, room);
            }
        };
        let settled = out.sender.as_mut().is_none_or(|sender| sender.is_settled());
        self.unsettled.store(!settled, Relaxed);
        self.backlog.store(!done || !settled, Relaxed);
        drop(out);
        if room {
            self.wake_waiting(home);
        }
        Ok(())
    }

    /// Sends answers and pieces. Returns what is left.
    fn send_waiting(&self, out: &mut Out) -> Result<Left, Broken> {
        while let Some((answer, seen)) = out.answers.front().copied() {
            if self.write_as_of(out, answer, &[], seen, false)? == transport::Sent::Full {
                return Ok(Left::Full);
            }
            out.answers.pop_front();
        }
        // Receivers that were passed over since a piece was sent.
        let mut held = 0;
        while let Some((_, tokens)) = out.cleared.front() {
            if tokens.is_empty() {
                out.cleared.pop_front();
                continue;
            }
            if held == out.cleared.len() {
                return Ok(Left::Held);
            }
            match self.next_in_turn(out) {
                None => held += 1,
                Some(token) => {
                    if !self.send_piece(out, token)? {
                        return Ok(Left::Full);
                    }
                    held = 0;
                }
            }
            // Others get a turn between two pieces.
            out.cleared.rotate_left(1);
        }
        Ok(Left::Nothing)
    }

    /// Which of the messages that the first receiver has taken goes on: the first whose time has come. Those of one
    /// sender stay one after the other.
    fn next_in_turn(&self, out: &Out) -> Option<u32> {
        let (_, tokens) = out.cleared.front()?;
        let mut held: Vec<Place> = Vec::new();
        tokens.iter().copied().find(|token| {
            let Some(Offer { sent, .. }) = out.offers.get(token) else { return true };
            // Its time may have come since the one before was looked at.
            let has_turn = !held.contains(&sent.from) && self.has_turn(*sent);
            held.extend((!has_turn).then_some(sent.from));
            has_turn
        })
    }

    /// Sends the next piece of a given message of the first receiver's. Returns whether there was room.
    fn send_piece(&self, out: &mut Out, token: u32) -> Result<bool, Broken> {
        let Some(Offer { data: Data::Given(data, at), sent, number, size }) =
            out.offers.remove(&token)
        else {
            out.all_sent(token);
            return Ok(true);
        };
        let piece = out.piece().min(data.len() - at);
        // Whatever comes of it, the offer stays on record.
        let written = self.write(out, Frame::Piece { token }, &data[at..at + piece]);
        let room = matches!(written, Ok(true));
        let at = if room { at + piece } else { at };
        if room {
            self.carried(sent, piece);
        }
        let data = if at == data.len() {
            out.parked -= data.len();
            out.all_sent(token);
            Data::Gone
        } else {
            Data::Given(data, at)
        };
        out.offers.insert(token, Offer { sent, number, size, data });
        written
    }

    /// Whether the time of the next piece of a long message has come.
    fn has_turn(&self, message: Sent) -> bool {
        self.turns.as_ref().is_none_or(|turns| turns.may_carry(self.flow_of(message)))
    }

    /// A piece of `bytes` of it was sent.
    fn carried(&self, message: Sent, bytes: usize) {
        if let Some(turns) = &self.turns {
            turns.carried(self.flow_of(message), bytes);
        }
    }

    fn flow_of(&self, message: Sent) -> Flow {
        (message.from, ResourceId { context: self.peer, place: message.to })
    }

    /// Sends an offer if there is room; returns its name and its number.
    fn offer(&self, out: &mut Out, sent: Sent, size: usize) -> Result<Option<(u32, u32)>, Broken> {
        if !out.has_begun && !self.begin(out)? {
            return Ok(None);
        }
        if !out.flow.reserve(sent.to, CHARGE_LEAST) {
            return Ok(None);
        }
        out.flow.confirm(self.confirmed.load(Relaxed))?;
        // 0 means no offer, and a name that is in use is skipped.
        let mut token = out.last_token;
        loop {
            token = token.checked_add(1).unwrap_or(1);
            if !out.offers.contains_key(&token) {
                break;
            }
        }
        let Sent { from, to, tag } = sent;
        let frame = Frame::Offer { from, to, tag, size: size as u64, token };
        if !self.write(out, frame, &[])? {
            out.flow.credit(sent.to, u64::from(CHARGE_LEAST))?;
            return Ok(None);
        }
        out.last_token = token;
        let number = out.flow.sent(sent);
        Ok(Some((token, number)))
    }

    /// Tells the other end that messages and offers come by this link; false if there is no room.
    #[cold]
    fn begin(&self, out: &mut Out) -> Result<bool, Broken> {
        out.has_begun = self.write(out, Frame::Begun { number: self.id }, &[])?;
        Ok(out.has_begun)
    }

    /// Writes a frame; false if there is no room.
    fn write(&self, out: &mut Out, frame: Frame, payload: &[u8]) -> Result<bool, Broken> {
        let sent = self.write_with_others(out, frame, payload, false)?;
        Ok(sent != transport::Sent::Full)
    }

    fn write_with_others(
        &self,
        out: &mut Out,
        frame: Frame,
        payload: &[u8],
        with_others: bool,
    ) -> Result<transport::Sent, Broken> {
        // What waits in the queue of answers is not overtaken by a frame that says as much as it does.
        let seen = if out.answers.is_empty() { self.seen.load(Relaxed) } else { out.said };
        self.write_as_of(out, frame, payload, seen, with_others)
    }

    fn write_as_of(
        &self,
        out: &mut Out,
        frame: Frame,
        payload: &[u8],
        seen: u32,
        with_others: bool,
    ) -> Result<transport::Sent, Broken> {
        let head = Head { frame, length: payload.len() as u32, seen }.encode();
        let sender = out.sender.as_mut().ok_or(Broken::Closed)?;
        let sent = loop {
            let sent = if with_others {
                sender.send_with_others(&head, payload)?
            } else {
                sender.send(&head, payload)?
            };
            // Now, and not when a thread is enlisted: it, or another one, may fill what room there is then before it
            // sleeps. While nobody is enlisted nobody is told: all of them look.
            if sent != transport::Sent::Full || !self.is_awaited() || sender.falls_asleep() {
                break sent;
            }
        };
        if sent != transport::Sent::Full {
            out.said = seen;
        }
        if sent == transport::Sent::Kept {
            self.backlog.store(true, Relaxed);
        }
        Ok(sent)
    }

    fn wake_waiting(&self, home: &impl Home) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.iter().for_each(|parker| home.progress().wake(parker));
    }

    fn undelivered(&self, to: Place, tag: Tag, reason: Reason) -> Undelivered {
        Undelivered { to: ResourceId { context: self.peer, place: to }, tag, reason }
    }

    /// The sending half, unless the link is broken.
    fn out(&self) -> Result<MutexGuard<'_, Out>, Broken> {
        match self.broken.get() {
            Some(broken) => Err(broken.clone()),
            None => Ok(lock(&self.out)),
        }
    }

    fn input(&self) -> MutexGuard<'_, Option<Box<dyn Receiver>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Assembly {
    /// Whether more of it is to arrive.
    fn is_coming(&self) -> bool {
        !self.done && !self.is_withdrawn
    }
}

impl Out {
    /// An offer of `to` was taken.
    fn clear(&mut self, to: Place, token: u32) {
        match self.cleared.iter_mut().find(|(place, _)| *place == to) {
            // Said again it means nothing more.
            Some((_, tokens)) if tokens.contains(&token) => {}
            Some((_, tokens)) => tokens.push_back(token),
            None => self.cleared.push_back((to, VecDeque::from([token]))),
        }
    }

    /// Nothing more is to be sent of this one of the first receiver's.
    fn all_sent(&mut self, token: u32) {
        if let Some((_, tokens)) = self.cleared.front_mut() {
            tokens.retain(|other| *other != token);
        }
    }

    /// That is what there is now of an offered message.
    fn mark(&mut self, token: u32, data: Data) {
        if let Some(offer) = self.offers.get_mut(&token) {
            offer.data = data;
        }
    }

    /// An error if more answers wait than for any end that reads, whatever it is that holds them up.
    fn expect_read(&self) -> Result<(), Broken> {
        let waiting = self.answers.len();
        if waiting <= ANSWERS_MOST { Ok(()) } else { Err(Broken::Unread { waiting }) }
    }

    fn piece(&self) -> usize {
        self.sender.as_ref().map_or(EAGER_MOST, |sender| sender.piece())
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        self.sender.as_mut().map_or(Ok(true), |sender| sender.flush())
    }
}

/// Why a link is over on which what came could not be handled.
fn end_of(broken: Broken) -> Broken {
    match broken {
        // Its other end has made a later one, and no mistake.
        Broken::Malformed(Malformed::GivenUp) => Broken::Closed,
        broken => broken,
    }
}

/// What may not have arrived, by number: what was not seen, and offers that were seen and did not arrive whole.
/// Threads that lend, or did until they gave up, are told by what their call returns.
fn not_arrived<'a>(
    mut unconfirmed: BTreeMap<u32, Sent>,
    offers: impl IntoIterator<Item = &'a Offer>,
) -> BTreeMap<u32, Sent> {
    for offer in offers {
        match offer.data {
            Data::Lent(_) | Data::Withdrawn => unconfirmed.remove(&offer.number),
            Data::Given(..) | Data::Gone => unconfirmed.insert(offer.number, offer.sent),
        };
    }
    unconfirmed
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("id", &self.id)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
