//! Users: they think of calls, send them, and ask again.

use super::{Asked, Happening, PATIENCE, World};
use crate::Violation;
use crate::agenda::span;
use crate::users;
use keeptime_engine::{Call, Caller, Input, Ticket};
use keeptime_model::units::Nanos;

impl World {
    pub(super) fn think(&mut self) {
        let pause = span(&mut self.chance, Nanos::new(1)..self.thinks_every);
        self.agenda.after(pause, Happening::Think);
        if !self.is_calm {
            self.calls += 1;
            let call = self.users.think(users::now(self.agenda.now()));
            self.ask(call);
        }
    }

    /// Sends a call, again perhaps, unless it was answered.
    pub(super) fn ask(&mut self, call: u64) {
        let Some(open) = self.users.find(call).cloned() else { return };
        for arrival in self.network.arrivals(self.agenda.now()) {
            let (caller, what) = (open.caller.clone(), Box::new(open.call.clone()));
            self.agenda.at(arrival, Happening::Asked { call, caller, what });
        }
        self.agenda.after(PATIENCE, Happening::AskAgain { call });
    }

    pub(super) fn asked(
        &mut self,
        call: u64,
        caller: Caller,
        mut what: Call,
    ) -> Result<(), Violation> {
        if self.broker.is_none() {
            return Ok(());
        }
        self.history.truth.asks(&caller, &what);
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let asked = Asked { call, caller: caller.clone(), what: what.clone(), at: self.now() };
        self.tickets.insert(ticket.0, asked);
        self.seams.asked(&mut what);
        self.step(Input::Call { ticket, caller, call: Box::new(what) })
    }
}
