//! Requests that may wait for room: tried again when something was given back, in the order in which they came, and decided
//! in any case when their time is over. What tries take of the broker's time is bounded.

use super::offering::Telling;
use super::{Engine, Ticket, Timeout};
use crate::admission::{Admission, Denied};
use crate::call::{Reason, Refusal};
use crate::offers::{Declined, span};
use crate::queue::Asked;
use keeptime_calendar::{Calendar, ResourceId};
use keeptime_model::reservation::{Handle, Request};
use keeptime_model::units::Nanos;

/// So long after an agent has come those who wait are tried: where it comes after the broker, all others come as well.
const TRY_AFTER: Nanos = Nanos::from_secs(1);
/// What a try is counted as: more than a plan takes in a large cluster.
const TRY_TAKES: Nanos = Nanos::from_millis(1);
/// What it is counted as to look whether others can be made slower: many are tried in their slot tables.
const WAY_TAKES: Nanos = Nanos::from_millis(16);
/// For so many of those who wait that is looked for whenever something was given back; for each, when its wait is over.
const WAYS_SOUGHT: u32 = 4;
/// What counts as so much time is done at once. Whoever waits is not tried again before the rest of it has passed: however
/// much is given back, others are heard.
const TRIES_AT_ONCE: Nanos = Nanos::from_millis(256);

/// Slot tables in which nothing is reserved.
#[derive(Debug, Clone)]
pub(super) struct Empty {
    calendar: Calendar,
    /// Of a user, whoever it is.
    user: [ResourceId; 2],
}

impl Engine {
    /// How many requests wait for room.
    pub fn waiting_count(&self) -> usize {
        self.queue.len()
    }

    /// Whether this call waits for room.
    pub fn is_waiting(&self, ticket: Ticket) -> bool {
        self.queue.has(ticket)
    }

    /// Whether a request that was refused is to wait: it may, and is short of nothing but room.
    pub(super) fn is_to_wait(&mut self, asked: &Asked, refusal: &Refusal) -> bool {
        let is_limit =
            matches!(refusal.reason, Reason::TooMany { .. } | Reason::TooFarAhead { .. });
        asked.may_wait(self.steady) && !is_limit && self.would_ever_fit(&asked.request)
    }

    /// Whether a request would fit, were nothing reserved, by its user too, and every agent there.
    fn would_ever_fit(&mut self, request: &Request) -> bool {
        if self.empty.is_none() {
            self.empty = Some(self.without_reservations());
        }
        let Some(empty) = &self.empty else { return false };
        let admission = Admission {
            calendar: &empty.calendar,
            soon: false,
            mechanism: request.cpu_mechanism,
            ..self.admission(Some(empty.user), self.now)
        };
        let until = request.duration_nanos.map(|duration| self.now.saturating_add(duration));
        admission.grant(&request.ask, span(self.now, until)).granted.is_ok()
    }

    /// Kept once it was made: in a large cluster that takes longer than a plan.
    fn without_reservations(&self) -> Empty {
        let mut calendar = self.cluster.empty_calendar();
        let user = self.shares_of_a_user().map(|share| calendar.add_resource(share));
        Empty { calendar, user }
    }

    /// It was tried, and waits for room.
    pub(super) fn wait_for_room(&mut self, asked: Asked) {
        if let Some(until) = asked.until {
            self.timeouts.insert((until, Timeout::Wait(asked.handle)));
        }
        self.queue.put(Asked { was_tried: true, ..asked });
    }

    /// How long until those who wait are tried; nothing = they are not to be.
    pub(super) fn queue_due_after(&self) -> Option<Nanos> {
        (self.was_given_back && !self.queue.is_empty()).then(|| self.rest())
    }

    /// How long those who wait are not tried, since so much was done for them of late.
    fn rest(&self) -> Nanos {
        self.tries_until.saturating_sub(self.after(TRIES_AT_ONCE))
    }

    /// Something was done for those who wait that is counted as taking so long.
    fn count(&mut self, takes: Nanos) {
        self.tries_until = self.tries_until.max(self.steady).saturating_add(takes);
    }

    /// If something was given back since those who wait were tried last, whoever can be had now is decided, and whoever has
    /// just come or waits no longer. That these are is not counted: they would have been in any case.
    pub(super) fn go_on_with_the_queue(&mut self) {
        let rests = self.queue_due_after() > Some(Nanos::new(0));
        if rests || !std::mem::take(&mut self.was_given_back) {
            return;
        }
        let mut ways = WAYS_SOUGHT;
        for handle in self.queue.handles() {
            let Some(asked) = self.queue.take(handle) else { continue };
            let waits_on = asked.was_tried && asked.may_wait(self.steady);
            if waits_on && !self.is_to_be_had(&asked, &mut ways) {
                self.queue.put(asked);
                self.count(TRY_TAKES);
            } else {
                self.decide(asked);
            }
        }
    }

    /// Whether there is more to say to a request than that it waits. `ways`: for so many more it is looked whether others can
    /// be made slower.
    fn is_to_be_had(&mut self, asked: &Asked, ways: &mut u32) -> bool {
        let (owner, key, request) = (&asked.caller.user, &asked.key, &asked.request);
        match self.plan(owner, key.clone(), request.clone(), None, Telling::Reason) {
            // What has become invalid meanwhile is told that.
            Ok(_) | Err(Declined { denied: Denied::Invalid(_), .. }) => true,
            Err(_) if !asked.may_make_way || *ways == 0 => false,
            Err(_) if self.book.malleable().is_empty() => false,
            Err(_) => {
                *ways -= 1;
                self.count(WAY_TAKES);
                self.find_way(owner, key, request).is_some()
            }
        }
    }

    /// It is tried once more, and waits no longer: after those who came before it, also where these are tried in a moment.
    pub(super) fn wait_is_over(&mut self, handle: Handle) {
        self.go_on_with_the_queue();
        if self.queue_due_after().is_some() {
            return;
        }
        if let Some(asked) = self.queue.take(handle) {
            self.decide(asked);
        }
    }

    /// Decides a request whose callers were not answered when they asked.
    pub(super) fn decide(&mut self, asked: Asked) {
        let tickets = asked.tickets.clone();
        let Some(answer) = self.admit(asked).transpose() else { return };
        tickets.into_iter().for_each(|ticket| self.answer(ticket, answer.clone()));
    }

    /// In a while those who wait are tried, if anybody does.
    pub(super) fn try_the_queue_soon(&mut self) {
        if !self.queue.is_empty() && !self.is_try_due {
            self.is_try_due = true;
            self.timeouts.insert((self.after(TRY_AFTER), Timeout::Try));
        }
    }

    /// That while is over.
    pub(super) fn try_the_queue(&mut self) {
        self.is_try_due = false;
        self.was_given_back = true;
    }
}
