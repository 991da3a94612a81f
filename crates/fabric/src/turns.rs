//! Flows of one context that have reserved rates wait for their turns.

use crate::id::{Place, ResourceId};
use crate::pacing::Pacer;
use crate::progress::{Parker, lock};
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

    /// Reserves a rate.
    pub fn reserve(&self, flow: Flow, rate: BitsPerSecond) {
        let mut state = lock(&self.state);
        state.pacer.reserve(flow, rate);
        self.reserved.store(state.pacer.flows().count(), Relaxed);
    }

    /// Gives back what `place` has reserved, for one receiver or for all.
    pub fn release(&self, place: Place, to: Option<ResourceId>) {
        if self.are_free() {
            return;
        }
        let mut state = lock(&self.state);
        let concerned = |flow: &Flow| flow.0 == place && to.is_none_or(|to| flow.1 == to);
        let flows: Vec<_> = state.pacer.flows().filter(concerned).collect();
        flows.into_iter().for_each(|flow| state.pacer.release(flow));
        self.reserved.store(state.pacer.flows().count(), Relaxed);
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

    /// Takes the turn if it is that of `flow`, or if it has no reservation any more. Returns
    /// whether it was, and whose threads are to be woken: those of the next, if its time has come.
    pub fn take(&self, flow: Flow, bytes: usize) -> Option<Vec<Arc<Parker>>> {
        let now = self.now();
        let mut state = lock(&self.state);
        let released = state.pacer.next_dispatch(flow).is_none();
        let mine = state.pacer.least().is_some_and(|(first, next)| first == flow && next <= now);
        if !mine && !released {
            return None;
        }
        state.pacer.dispatched(flow, Bytes::new(bytes as u64));
        let next = state.pacer.least().filter(|(_, next)| *next <= now);
        Some(next.and_then(|(next, _)| state.waiting.remove(&next)).unwrap_or_default())
    }

    /// When `flow` has to look again.
    pub fn look_at(&self, flow: Flow) -> Instant {
        let now = Instant::now();
        let next = lock(&self.state).pacer.next_dispatch(flow);
        let next = next.map_or(now, |next| self.start + Duration::from_nanos(next.get()));
        if next > now { next } else { now + LOOK_EVERY }
    }

    /// Has `parker` woken when it may be its turn.
    pub fn enlist(&self, flow: Flow, parker: &Arc<Parker>) {
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
}
