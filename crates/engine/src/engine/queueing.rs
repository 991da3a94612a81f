//! Requests that may wait for room: tried again when something was given back, in the order in which they came, and decided
//! in any case when their time is over.

use super::offering::Telling;
use super::{Engine, Ticket, Timeout};
use crate::admission::{Admission, Denied};
use crate::call::{Reason, Refusal};
use crate::offers::{Declined, span};
use crate::queue::Asked;
use keeptime_model::reservation::{Handle, Request};
use keeptime_model::units::Nanos;

/// So long after an agent has come those who wait are tried: where it comes after the broker, all others come as well.
const TRY_AFTER: Nanos = Nanos::from_secs(1);

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
    pub(super) fn is_to_wait(&self, asked: &Asked, refusal: &Refusal) -> bool {
        let is_limit =
            matches!(refusal.reason, Reason::TooMany { .. } | Reason::TooFarAhead { .. });
        asked.may_wait(self.steady) && !is_limit && self.would_ever_fit(&asked.request)
    }

    /// Whether a request would fit, were nothing reserved and every agent there.
    fn would_ever_fit(&self, request: &Request) -> bool {
        let empty = self.cluster.empty_calendar();
        let admission = Admission {
            calendar: &empty,
            soon: false,
            mechanism: request.cpu_mechanism,
            ..self.admission(None, self.now)
        };
        let until = request.duration_nanos.map(|duration| self.now.saturating_add(duration));
        admission.grant(&request.ask, span(self.now, until)).granted.is_ok()
    }

    /// It waits for room.
    pub(super) fn wait_for_room(&mut self, asked: Asked) {
        if let Some(until) = asked.until {
            self.timeouts.insert((until, Timeout::Wait(asked.handle)));
        }
        self.queue.put(asked);
    }

    /// Those who wait are decided that can be had now, if something was given back since they were tried last.
    pub(super) fn go_on_with_the_queue(&mut self) {
        if !std::mem::take(&mut self.was_given_back) {
            return;
        }
        for handle in self.queue.handles() {
            let Some(asked) = self.queue.take(handle) else { continue };
            if self.is_to_be_had(&asked) {
                self.decide(asked);
            } else {
                self.queue.put(asked);
            }
        }
    }

    /// Whether there is more to say to a request than that it waits.
    fn is_to_be_had(&mut self, asked: &Asked) -> bool {
        let (owner, key, request) = (&asked.caller.user, &asked.key, &asked.request);
        match self.plan(owner, key.clone(), request.clone(), None, Telling::Reason) {
            // What has become invalid meanwhile is told that.
            Ok(_) | Err(Declined { denied: Denied::Invalid(_), .. }) => true,
            Err(_) => asked.may_make_way && self.find_way(owner, key, request).is_some(),
        }
    }

    /// It is tried once more, and waits no longer.
    pub(super) fn wait_is_over(&mut self, handle: Handle) {
        self.go_on_with_the_queue();
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
