//! Going on after a restart with what the record says.

use super::{Deadline, Engine, Moment, Step};
use crate::book::{Book, Reservation, Snapshot};
use crate::cluster::Cluster;
use crate::event::Event;
use crate::policy::Policy;
use crate::refusal;
use keeptime_calendar::Refusal;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;

impl Engine {
    /// The engine whose records are `snapshot` and the `events` after it. Agents have their lease to
    /// come back; what was about to be moved is moved when they have. The step has what the cluster does not hold any
    /// more: nodes or links that are gone or slower than they were. Whoever was granted something first keeps it. What
    /// was granted when users might have more stands. Time goes on from the last record at the earliest; a record before that
    /// is of later was made by a clock that was ahead.
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
        let mut last = engine.now;
        for (time, event) in events {
            engine.book.apply(&event, time)?;
            last = time;
        }
        engine.now = engine.now.max(last);
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
                // A snapshot that was made before `ClockAccepted` took back what a clock that was ahead had said may have a
                // time to come.
                let since = found.since_unix_nanos.min(self.now);
                let then = since.saturating_add(self.policy.remember_nanos);
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
        self.take_up_moves();
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
        let held = self.hold_promised(found, grant);
        held.map_err(|refusal| self.less_than_there_was(first, &refusal))
    }

    /// Where the cluster has less than it had, if that is at one node; else at `first`.
    fn less_than_there_was(&self, first: Name, refusal: &Refusal) -> (Name, String) {
        let (node, what) = match refusal {
            Refusal::Lacks(lacks) => {
                let mut lacking =
                    lacks.iter().filter_map(|lack| self.cluster.resource(lack.resource));
                let node = lacking.find_map(|of| self.cluster.node_of(of));
                let reason = self.admission(None).all_lacking(lacks);
                (node, refusal::Refusal::from(reason).to_string())
            }
            other => (None, other.to_string()),
        };
        let node = node.map_or(first, |node| self.cluster.name(node).clone());
        (node, format!("the cluster has less than it had: {what}"))
    }

    pub(super) fn tell_taken_up(&mut self, found: &Reservation) {
        if !self.is_told(found) {
            return;
        }
        for (node, assignment) in self.assignments(found.handle) {
            // Nobody is connected: told when they come back.
            self.agents.tell(node, found.handle, assignment);
        }
    }
}
