//! A connection to one other context: what it is made of, who waits for room on it, and what becomes of everything when
//! it breaks. Sending and receiving lock different halves.
//!
//! What every short message passes is inlined always, for the reason that `frame` gives.
//!
//! | module | owns |
//! |---|---|
//! | `sending` | messages and offers of threads that send |
//! | `writing` | frames, and answers that wait |
//! | `pumping` | carrying what waits |
//! | `receiving`, `delivery` | looking for what has arrived; where each frame goes |
//! | `out` | the sending half |
//! | `offers` | long messages of this end's (pure) |
//! | `assemblies` | long messages of the other end's |

mod assemblies;
mod delivery;
mod offers;
mod out;
mod pumping;
mod receiving;
mod sending;
mod writing;

use crate::flow::{Sent, WINDOW, WINDOW_CARRIED};
use crate::frame::{Malformed, Reason, Refusal};
use crate::id::{ContextId, Place, ResourceId};
use crate::inbox::{Arrived, Body, Undelivered};
use crate::matching::Tag;
use crate::progress::{Parker, Progress};
use crate::transport::{Broken, Ends, Glance, Receiving};
use crate::turns::{Flow, Turns};
use assemblies::Assemblies;
use keeptime_locks::lock;
use out::Out;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::{fmt, io};

/// What a link needs of its context.
pub trait Home {
    /// The longest message that is accepted.
    fn message_most(&self) -> u64;
    /// Gives a message to its receiver, or says why it does not. An error if it is more than its link may send.
    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed>;
    /// The same of a short one, whose body is made where it stays.
    #[inline(always)]
    fn deliver_short(
        &self,
        to: Place,
        message: Arrived<impl FnOnce() -> Body>,
    ) -> Result<Option<Refusal>, Malformed> {
        self.deliver(to, message.made())
    }
    /// Whether the thread that delivers has what it waits for.
    fn has_enough(&self) -> bool {
        false
    }
    /// The peer of `link`, which is just read, begins to send by it, as by its own link of this number: those by which
    /// it has sent before are over. An error if it has given up this one as well.
    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed>;
    /// More of a long message for `to` that was fetched is not to arrive: it is there, or never will be.
    fn fetched(&self, to: Place);
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
    glance: Option<Box<dyn Glance>>,
    /// Where pieces of long messages wait for their times, if rates can be reserved.
    turns: Option<Arc<Turns>>,
    out: Mutex<Out>,
    input: Mutex<Option<Receiving>>,
    assemblies: Assemblies,
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
    /// How often more may be read before the kernel is asked what else there is; 0 unless more has probably arrived.
    unasked: AtomicU32,
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

/// What a link leaves when it is over.
#[derive(Debug)]
pub struct Left {
    /// What may not have arrived, but for what threads lend.
    unsent: Vec<Sent>,
    watched: Vec<OwnedFd>,
}

impl Link {
    /// A connection over `ends` that was just made, and what to watch for writing.
    pub fn new(id: u32, peer: ContextId, ends: Ends) -> Self {
        let is_looked_after = ends.sender.is_looked_after();
        let window = if ends.in_memory { WINDOW } else { WINDOW_CARRIED };
        Self {
            id,
            peer,
            in_memory: ends.in_memory,
            is_looked_after,
            glance: ends.glance,
            turns: None,
            out: Mutex::new(Out::new(window, ends.sender)),
            input: Mutex::new(Some(ends.receiver)),
            assemblies: Assemblies::default(),
            begun: OnceLock::new(),
            seen: AtomicU32::new(0),
            confirmed: AtomicU32::new(0),
            in_a_row: AtomicU32::new(0),
            backlog: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            attended: AtomicBool::new(false),
            unasked: AtomicU32::new(0),
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

    fn wake_waiting(&self, home: &impl Home) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.iter().for_each(|parker| home.progress().wake(parker));
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

    /// The same, seen with the lock with which it is said.
    pub fn has_gathered(&self) -> bool {
        self.out().is_ok_and(|_out| self.has_backlog())
    }

    /// Whether what the other end answers has to be read for what was sent to arrive, whoever waits
    /// for what.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.load(Relaxed)
    }

    /// Whether somebody has looked for frames since this was asked last.
    pub fn is_attended(&self) -> bool {
        self.attended.swap(false, Relaxed)
    }

    /// Finds out whether the other node is gone, where nothing else tells.
    ///
    /// # Errors
    /// If it is.
    pub fn look_after(&self) -> Result<(), Broken> {
        self.out()?.sender.as_mut().map_or(Ok(()), |sender| sender.look_after())
    }

    /// Whether everything that was taken is with the other end, or with its kernel.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn is_drained(&self, home: &impl Home) -> Result<bool, Broken> {
        self.pump(home)?;
        let mut out = self.out()?;
        Ok(out.answers.is_empty()
            && !out.offers.are_given()
            && out.sender.as_mut().is_none_or(|sender| sender.is_drained()))
    }

    /// The same as far as nobody has to ask for it first: long messages that are given may wait.
    pub fn has_carried_all(&self) -> bool {
        let Ok(mut out) = self.out() else { return true };
        out.answers.is_empty() && out.sender.as_mut().is_none_or(|sender| sender.is_drained())
    }

    /// Whom messages are for that may not have arrived, the oldest first. Threads that lend are told by what their
    /// call returns.
    pub fn unsent(&self) -> Vec<ResourceId> {
        let Ok(mut out) = self.out() else { return Vec::new() };
        // If the other end says that it has seen what was not sent, nothing of it counts.
        let _ = out.flow.confirm(self.confirmed.load(Relaxed));
        let unsent = out.offers.not_arrived(out.flow.unconfirmed().collect());
        unsent.into_values().map(|sent| self.flow_of(sent).1).collect()
    }

    /// Ends it, and tells everybody whom it concerns, but for receivers of what is not to arrive. Only the first call does something; returns whether it was that.
    pub fn end(&self, why: Broken, home: &impl Home) -> bool {
        let Some(Left { unsent, watched }) = self.close(why) else { return false };
        for Sent { from, to, tag } in unsent {
            home.notify(from, self.undelivered(to, tag, Reason::Unconfirmed));
        }
        self.wake_waiting(home);
        watched.into_iter().for_each(|fd| home.progress().forget(fd));
        true
    }

    /// The same without a word to anybody: whoever keeps it keeps nothing that is large, or that the other end would see.
    /// Returns what is to be told; none from the second call on.
    pub fn close(&self, why: Broken) -> Option<Left> {
        self.broken.set(why).ok()?;
        let (unconfirmed, offers) = {
            let mut out = lock(&self.out);
            (out.sender, out.answers) = (None, VecDeque::new());
            // If the mistake was in what the other end says that it has seen, all counts as lost.
            let _ = out.flow.confirm(self.confirmed.load(Relaxed));
            (out.flow.abandon().collect::<BTreeMap<_, _>>(), out.offers.end())
        };
        *self.input() = None;
        self.glance.iter().for_each(|glance| glance.end());
        self.assemblies.end();
        let unsent = offers.not_arrived(unconfirmed).into_values().collect();
        let Watched { reading, writing } = &mut *lock(&self.watched);
        Some(Left { unsent, watched: reading.drain(..).chain(writing.take()).collect() })
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

    fn input(&self) -> MutexGuard<'_, Option<Receiving>> {
        lock(&self.input)
    }
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
