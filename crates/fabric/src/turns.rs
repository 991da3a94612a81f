//! Flows of one context that have reserved rates wait for their turns.

use crate::id::{Place, ResourceId};
use crate::pacing::{Carriage, Pacer};
use crate::progress::Parker;
use keeptime_locks::lock;
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a thread that wakes late may make up for: most wake-ups are later than 70 us at times, few
/// by more than this.
const SLACK: Nanos = Nanos::from_millis(2);
/// How often a flow whose time has come looks whether those before it are gone, if nobody says so.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// From one resource to another.
pub type Flow = (Place, ResourceId);

/// Whose turn it is, and who waits.
#[derive(Debug)]
pub struct Turns {
    start: Instant,
    reserved: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pacer: Pacer<Flow>,
    waiting: HashMap<Flow, Vec<Arc<Parker>>>,
}

impl Turns {
    /// Nobody has reserved anything.
    pub fn new() -> Self {
        let state = State { pacer: Pacer::new(SLACK), waiting: HashMap::new() };
        Self { start: Instant::now(), reserved: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// Reserves a rate. Returns whose threads are to be woken: those that wait as long as another one
    /// said.
    pub fn reserve(&self, flow: Flow, rate: BitsPerSecond) -> Vec<Arc<Parker>> {
        let State { pacer, waiting } = &mut *lock(&self.state);
        pacer.reserve(flow, rate, self.now());
        self.reserved.store(pacer.flows().count(), Relaxed);
        waiting.remove(&flow).unwrap_or_default()
    }

    /// Gives back what `place` has reserved, for one receiver or for all. Returns whose threads are to
    /// be woken: those that wait for nothing now.
    pub fn release(&self, place: Place, to: Option<ResourceId>) -> Vec<Arc<Parker>> {
        if self.are_free() {
            return Vec::new();
        }
        let State { pacer, waiting } = &mut *lock(&self.state);
        let concerned = |flow: &Flow| flow.0 == place && to.is_none_or(|to| flow.1 == to);
        let flows: Vec<_> = pacer.flows().filter(concerned).collect();
        flows.iter().for_each(|flow| pacer.release(*flow));
        self.reserved.store(pacer.flows().count(), Relaxed);
        flows.iter().filter_map(|flow| waiting.remove(flow)).flatten().collect()
    }

    /// Whether nothing is reserved, so that nobody has to wait.
    pub fn are_free(&self) -> bool {
        self.reserved.load(Relaxed) == 0
    }

    /// `flow` has a message to send. Returns whether it has to wait for its turn.
    pub fn post(&self, flow: Flow) -> bool {
        !self.are_free() && lock(&self.state).pacer.post(flow, self.now())
    }

    /// It will not be sent.
    pub fn withdraw(&self, flow: Flow) {
        lock(&self.state).pacer.withdraw(flow);
    }

    /// Takes the turn if it is that of `flow`, or if what it had reserved was released. Returns
    /// whether it was, and whose threads are to be woken: those of the next, if its time has come.
    pub fn take(&self, flow: Flow, bytes: usize, carriage: Carriage) -> Option<Vec<Arc<Parker>>> {
        let now = self.now();
        let mut state = lock(&self.state);
        // Also if there is a new reservation by now: that knows nothing of this message.
        let released = !state.pacer.is_posted(flow);
        let mine = state.pacer.least().is_some_and(|(first, next)| first == flow && next <= now);
        if !mine && !released {
            return None;
        }
        state.pacer.dispatched(flow, Bytes::new(bytes as u64), carriage);
        let next = state.pacer.least().filter(|(_, next)| *next <= now);
        Some(next.and_then(|(next, _)| state.waiting.remove(&next)).unwrap_or_default())
    }

    /// When `flow` has to look again.
    pub fn look_at(&self, flow: Flow) -> Instant {
        let now = Instant::now();
        let next = lock(&self.state).pacer.next_dispatch(flow);
        let next = next.map_or(now, |next| self.at(next));
        if next > now { next } else { now + LOOK_EVERY }
    }

    /// Whether a piece of a long message of `flow` may be sent now.
    pub fn may_carry(&self, flow: Flow) -> bool {
        let is_over = |next: Nanos| next <= self.now();
        self.are_free() || lock(&self.state).pacer.next_piece(flow).is_none_or(is_over)
    }

    /// When it may be.
    pub fn piece_at(&self, flow: Flow) -> Instant {
        let next = lock(&self.state).pacer.next_piece(flow);
        next.map_or(self.start, |next| self.at(next))
    }

    /// A piece of `bytes` of `flow` was sent.
    pub fn carried(&self, flow: Flow, bytes: usize) {
        if !self.are_free() {
            lock(&self.state).pacer.carried(flow, Bytes::new(bytes as u64), self.now());
        }
    }

    /// Has `parker` woken when it may be its turn.
    pub fn enlist(&self, flow: Flow, parker: &Arc<Parker>) {
        // Long messages, when nothing is reserved.
        if self.are_free() {
            return;
        }
        let mut state = lock(&self.state);
        let waiting = state.waiting.entry(flow).or_default();
        if !waiting.iter().any(|other| Arc::ptr_eq(other, parker)) {
            waiting.push(parker.clone());
        }
    }

    /// `parker` waits no longer.
    pub fn delist(&self, flow: Flow, parker: &Arc<Parker>) {
        let mut state = lock(&self.state);
        if let Some(waiting) = state.waiting.get_mut(&flow) {
            waiting.retain(|other| !Arc::ptr_eq(other, parker));
            if waiting.is_empty() {
                state.waiting.remove(&flow);
            }
        }
    }

    fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }

    fn at(&self, time: Nanos) -> Instant {
        self.start + Duration::from_nanos(time.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ContextId;

    const SLOW: BitsPerSecond = BitsPerSecond::new(8_000);
    const BYTES: usize = 1_000_000;

    fn flow() -> Flow {
        let place = Place { slot: 0, generation: 0 };
        (place, ResourceId { context: ContextId::new(1), place })
    }

    /// This thread waits for a turn, behind 1 MB at 8 kbit/s.
    fn waits(turns: &Turns) -> Arc<Parker> {
        turns.reserve(flow(), SLOW);
        assert!(turns.post(flow()) && takes(turns));
        assert!(turns.post(flow()) && !takes(turns));
        let parker = Parker::current();
        turns.enlist(flow(), &parker);
        parker
    }

    fn takes(turns: &Turns) -> bool {
        turns.take(flow(), BYTES, Carriage::Whole).is_some()
    }

    #[test]
    fn who_waits_is_woken_for_another_rate_and_waits_as_long_as_that_says() {
        let turns = Turns::new();
        let waiting = waits(&turns);
        let before = turns.look_at(flow());
        let woken = turns.reserve(flow(), BitsPerSecond::from_mbit(8));
        assert!(matches!(&woken[..], [one] if Arc::ptr_eq(one, &waiting)));
        assert!(turns.look_at(flow()) + Duration::from_secs(900) < before);
    }

    #[test]
    fn who_waits_is_woken_when_nothing_is_reserved_any_more() {
        let turns = Turns::new();
        let waiting = waits(&turns);
        let woken = turns.release(flow().0, None);
        assert!(matches!(&woken[..], [one] if Arc::ptr_eq(one, &waiting)));
        assert!(takes(&turns));
    }

    /// Before the thread has looked there is another reservation, in which its message was not posted.
    #[test]
    fn who_waited_for_what_is_released_does_not_wait_for_what_is_reserved_then() {
        let turns = Turns::new();
        waits(&turns);
        turns.release(flow().0, None);
        turns.reserve(flow(), SLOW);
        assert!(takes(&turns));
        assert!(turns.post(flow()) && !takes(&turns), "it counts for those after it");
    }
}
