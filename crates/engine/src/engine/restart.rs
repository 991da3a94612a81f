//! Going on after a restart with what the record says.

use super::{Deadline, Engine, Moment, Step};
use crate::book::{Book, Reservation, Snapshot};
use crate::cluster::Cluster;
use crate::event::Event;
use crate::offers::span;
use crate::policy::Policy;
use keeptime_calendar::ReservationId;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;

impl Engine {
    /// The engine whose records are `snapshot` and the `events` after it. Agents have their lease to
    /// come back. The step has what the cluster does not hold any more: nodes or links that
    /// are gone or slower than they were.
    ///
    /// # Errors
    /// If a recorded profile cannot be planned with.
    pub fn restore(
        cluster: Cluster,
        policy: Policy,
        snapshot: Option<Snapshot>,
        events: impl IntoIterator<Item = (WallTime, Event)>,
        moment: Moment,
    ) -> Result<(Self, Step), Invalid> {
        let mut engine = Self::new(cluster, policy, moment);
        if let Some(snapshot) = snapshot {
            engine.book = Book::restore(snapshot)?;
        }
        for (time, event) in events {
            engine.book.apply(&event, time)?;
            engine.now = engine.now.max(time);
        }
        engine.wall = engine.now;
        engine.next = engine.book.next().number();
        engine.take_up();
        let step = engine.finish();
        Ok((engine, step))
    }

    /// Goes on with what the book says after a restart.
    pub(super) fn take_up(&mut self) {
        let all: Vec<_> = self.book.reservations().keys().copied().collect();
        for handle in all {
            let found = self.book.reservations()[&handle].clone();
            if !found.state.is_live() {
                let then = found.since_unix_nanos.saturating_add(self.policy.remember_nanos);
                self.deadlines.insert((then, Deadline::Forget(handle)));
            } else if let Err(gone) = self.take_up_live(&found) {
                self.record(Event::Failed { handle, node: gone.0, why: gone.1 });
                self.forget_later(handle);
                self.site_lost_node(handle);
            } else {
                self.tell_taken_up(&found);
                self.take_spare_anew(handle);
                self.schedule(handle);
            }
        }
        self.faster_soon();
    }

    /// Holds what a live reservation has; where that cannot be, says at which node and why.
    pub(super) fn take_up_live(&mut self, found: &Reservation) -> Result<(), (Name, String)> {
        let Some(grant) = &found.grant else { return Ok(()) };
        let first = grant.nodes.first().cloned().unwrap_or_else(|| found.handle.job());
        let unknown = |name: &&Name| self.cluster.node(name).is_err();
        if let Some(gone) = grant.nodes.iter().find(unknown) {
            return Err((gone.clone(), "it is not in the cluster any more".into()));
        }
        let demands = self.demands(&found.owner, &found.request.ask, grant);
        let span = span(found.from_unix_nanos, found.until_unix_nanos);
        let id = ReservationId(found.handle.number());
        let held = self.calendar.reserve(id, span, &demands);
        held.map_err(|refusal| (first, format!("the cluster has less than it had: {refusal}")))
    }

    pub(super) fn tell_taken_up(&mut self, found: &Reservation) {
        if found.from_unix_nanos > self.told_until() {
            return;
        }
        for (node, assignment) in self.assignments(found.handle) {
            // Nobody is connected: told when they come back.
            self.agents.tell(node, found.handle, assignment);
        }
    }
}
