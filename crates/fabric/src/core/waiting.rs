//! Waiting for a turn: flows with reserved rates, and whoever sends pieces at such a rate.

use super::{Core, Patience};
use crate::error::SendError;
use crate::id::{Place, ResourceId};
use crate::pacing::Carriage;
use crate::progress::Parker;
use crate::turns::Flow;
use keeptime_model::units::BitsPerSecond;
use std::sync::Arc;
use std::time::Instant;

/// What a thread sees that waits for a turn.
pub enum Look<T> {
    /// What it waits for.
    Done(T),
    /// That it comes no sooner than then, as it is reserved now.
    At(Instant),
    /// That another thread has to do something first.
    Later,
}

impl Core {
    /// Reserves a rate for what `from` sends to `to`.
    pub fn reserve(&self, from: Place, to: ResourceId, rate: BitsPerSecond) {
        self.turns.reserve((from, to), rate).iter().for_each(|parker| self.wake(parker));
    }

    /// Gives back what `from` has reserved, for one receiver or for all.
    pub fn release(&self, from: Place, to: Option<ResourceId>) {
        self.turns.release(from, to).iter().for_each(|parker| self.wake(parker));
    }

    /// Waits until the message of a flow with a reserved rate may be sent.
    pub(super) fn wait_for_turn(
        &self,
        flow: Flow,
        bytes: usize,
        carriage: Carriage,
        patience: Patience,
    ) -> Result<(), SendError> {
        let take = || {
            let next = self.turns.take(flow, bytes, carriage)?;
            next.iter().for_each(|parker| self.progress.wake(parker));
            Some(())
        };
        let taken = match patience {
            Patience::None => take(),
            Patience::Until(deadline) => {
                let look = || take().map_or_else(|| Look::At(self.turns.look_at(flow)), Look::Done);
                self.wait_in_turn(flow, deadline, look, |_| {})
            }
        };
        taken.ok_or_else(|| {
            self.turns.withdraw(flow);
            if matches!(patience, Patience::None) {
                SendError::WouldBlock
            } else {
                SendError::TimedOut
            }
        })
    }

    /// Waits until `look` gives something or `deadline` has passed. Looks when it said to, and when what `flow` has
    /// reserved is another rate or nothing any more: that says another time.
    pub(super) fn wait_in_turn<T>(
        &self,
        flow: Flow,
        deadline: Option<Instant>,
        mut look: impl FnMut() -> Look<T>,
        enlist: impl Fn(&Arc<Parker>),
    ) -> Option<T> {
        let mut until = deadline;
        let mut enlisted: Option<Arc<Parker>> = None;
        let done = loop {
            let ready = || match look() {
                Look::Later => None,
                Look::At(time) if until.is_some_and(|until| until <= time) => None,
                seen => Some(seen),
            };
            let seen = self.progress.wait(self, until, ready, |parker| {
                enlist(parker);
                self.turns.enlist(flow, parker);
                enlisted = Some(parker.clone());
            });
            until = match seen {
                Some(Look::Done(done)) => break Some(done),
                Some(Look::At(time)) => Some(time),
                _ if deadline.is_some_and(|deadline| Instant::now() >= deadline) => break None,
                _ => deadline,
            };
        };
        enlisted.iter().for_each(|parker| self.turns.delist(flow, parker));
        done
    }
}
