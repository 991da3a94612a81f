//! Watches: what happens to the resources that answer a question, kept for each watcher until it is
//! taken.

use super::Client;
use super::asking::DirectoryError;
use super::state::Shared;
use crate::attributes::Attributes;
use crate::directory::protocol::Record;
use crate::id::ResourceId;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Events that a watcher has not taken, before it has to look at everything anew.
const EVENTS_MOST: usize = 65_536;

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A resource is there.
    Appeared(Record),
    /// It is no more.
    Disappeared(ResourceId),
    /// More happened than was kept: look at everything anew. Or the node's daemon was started again and refuses the
    /// question: nothing more is told then, and who watches anew is told why.
    Missed,
    /// Nothing, to any resource: the watcher was woken by [`Watcher::wake`](crate::Watcher::wake).
    Woken,
}

/// Events of one question, from when it was made.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    subscription: u32,
    watcher: u64,
    /// Whether it was told that its question is kept no longer.
    is_lost: AtomicBool,
    is_woken: AtomicBool,
}

/// All watchers of one question, by number, and what each has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Watchers(HashMap<u64, VecDeque<Event>>);

impl Client {
    /// Everything that happens from now on to resources that include `query`, and all that there
    /// are now.
    ///
    /// # Errors
    /// If the server refuses the question or does not answer.
    pub fn watch(&self, query: &Attributes) -> Result<(Vec<Record>, Watch), DirectoryError> {
        // The answer first, so that there is one; then it and the watcher at one moment.
        self.find(query, None, |_| Some(()))?;
        let mut state = self.shared.lock();
        let subscription = state.subscription(query);
        let watched = state.subscriptions.watch(subscription);
        let (watcher, records) = watched.ok_or(DirectoryError::Silent)?;
        let (shared, is_lost, is_woken) = (self.shared.clone(), false.into(), false.into());
        Ok((records, Watch { shared, subscription, watcher, is_lost, is_woken }))
    }
}

impl Watch {
    /// The next event, if one happens before `deadline`.
    pub fn next_until(&self, deadline: Instant) -> Option<Event> {
        let mut state = self.shared.lock();
        loop {
            if self.is_woken.swap(false, Ordering::Relaxed) {
                return Some(Event::Woken);
            }
            let subscription = state.subscriptions.of_mut(self.subscription);
            match subscription.and_then(|found| found.watchers.of(self.watcher)) {
                // A later server has refused the question, as whoever looks anew is told.
                None if !self.is_lost.swap(true, Ordering::Relaxed) => return Some(Event::Missed),
                // It is waited all the same: who asks again at once would do so all the while.
                None => {}
                Some(events) if events.is_empty() => {}
                Some(events) => return events.pop_front(),
            }
            let time = deadline.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return None;
            }
            state = self.shared.wait_for_change(state, time);
        }
    }

    /// Has one call for the next event end, which waits or is still to be made.
    pub fn wake(&self) {
        // With the lock, so that this cannot fall between a thread's look and its sleep.
        let _state = self.shared.lock();
        self.is_woken.store(true, Ordering::Relaxed);
        self.shared.notify_all();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(subscription) = state.subscriptions.of_mut(self.subscription) {
            subscription.watchers.remove(self.watcher);
        }
    }
}

impl Watchers {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more, which has been told nothing.
    pub(super) fn insert(&mut self, watcher: u64) {
        self.0.insert(watcher, VecDeque::new());
    }

    /// What that one has not taken yet.
    pub(super) fn of(&mut self, watcher: u64) -> Option<&mut VecDeque<Event>> {
        self.0.get_mut(&watcher)
    }

    /// Tells each of them.
    pub(super) fn tell(&mut self, event: &Event) {
        for events in self.0.values_mut() {
            if events.len() >= EVENTS_MOST {
                events.clear();
                events.push_back(Event::Missed);
            }
            events.push_back(event.clone());
        }
    }

    fn remove(&mut self, watcher: u64) {
        self.0.remove(&watcher);
    }
}
