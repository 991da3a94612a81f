//! What reservations hold in the slot tables: what is recorded of them, and beside it, while agents are asked about a
//! change, what the other form takes more, so that either can be gone back to.

use super::Engine;
use crate::book::Reservation;
use crate::offers::span;
use crate::pieces::{Elastic, Piece, more_than};
use keeptime_calendar::calendar::Held;
use keeptime_calendar::{Refusal, ReservationId, Span};
use keeptime_model::reservation::{Ask, Grant, Handle, UserName};

/// Under which number a reservation holds its piece of this position. Handles count from 1, and do not come so far that
/// two pieces meet.
fn number(handle: Handle, at: usize) -> ReservationId {
    ReservationId(handle.number() | (at as u64) << 56)
}

/// What a user may have by now is
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limits {
    /// kept by what is held,
    Met,
    /// no matter for what they were promised before.
    Exceeded,
}

impl Engine {
    /// What `grant` takes during `span`, which its owner was given for `ask`. What is past is not held any more.
    pub(super) fn pieces(
        &mut self,
        owner: &UserName,
        ask: &Ask,
        grant: &Grant,
        span: Span,
    ) -> Vec<Piece> {
        let user = self.counted_in(owner, ask);
        let pieces = self.admission(user).pieces(grant, span.after(self.now));
        // What is asked was admitted, and what is recorded was checked when it was taken up.
        pieces.unwrap_or_default()
    }

    /// Holds what `pieces` take beside what a reservation holds already: as much as it takes in either form.
    ///
    /// # Errors
    /// If that does not fit. Nothing more is held then.
    pub(super) fn hold_beside(
        &mut self,
        handle: Handle,
        pieces: Vec<Piece>,
    ) -> Result<(), Refusal> {
        let held: Vec<_> = self.held(handle).cloned().collect();
        let more = more_than(&held, pieces);
        self.hold_from(handle, held.len(), &more, Limits::Met)
    }

    /// Holds what was promised, also beyond what its user may have by now.
    ///
    /// # Errors
    /// If the cluster has less than that.
    pub(super) fn hold_promised(
        &mut self,
        promised: &Reservation,
        grant: &Grant,
    ) -> Result<(), Refusal> {
        let span = span(promised.from_unix_nanos, promised.until_unix_nanos);
        let pieces = self.pieces(&promised.owner, &promised.request.ask, grant, span);
        self.hold_beyond_limits(promised.handle, &pieces)
    }

    /// Holds what fits into the cluster, whatever its user may have, of a reservation that holds nothing.
    ///
    /// # Errors
    /// If the cluster has less than that. Nothing is held then.
    pub(super) fn hold_beyond_limits(
        &mut self,
        handle: Handle,
        pieces: &[Piece],
    ) -> Result<(), Refusal> {
        self.hold_from(handle, 0, pieces, Limits::Exceeded)
    }

    /// Holds all pieces, the first as the one of this position, or none.
    fn hold_from(
        &mut self,
        handle: Handle,
        first: usize,
        pieces: &[Piece],
        limits: Limits,
    ) -> Result<(), Refusal> {
        let Self { calendar, cluster, .. } = self;
        let mut hold = |(at, Piece { span, demands }): (usize, &Piece)| {
            let id = number(handle, first + at);
            match limits {
                Limits::Met => calendar.reserve(id, *span, demands),
                Limits::Exceeded => calendar
                    .reserve_beyond(id, *span, demands, |table| cluster.resource(table).is_none()),
            }
        };
        let held = pieces.iter().enumerate().try_for_each(&mut hold);
        if held.is_err() {
            self.release_from(handle, first);
        }
        held
    }

    /// Holds another form of a reservation in the place of what it holds; whether there is room for that.
    pub(super) fn hold_instead(&mut self, handle: Handle, pieces: Vec<Piece>) -> bool {
        let fits = self.hold_beside(handle, pieces.clone()).is_ok();
        if fits {
            self.hold_only(handle, pieces);
        }
        fits
    }

    /// Holds just this, which is held among other things, or was held a moment ago among the same others.
    pub(super) fn hold_only(
        &mut self,
        handle: Handle,
        held: impl IntoIterator<Item = impl Into<Held>>,
    ) {
        let mut count = 0;
        for (at, held) in held.into_iter().enumerate() {
            let (id, held) = (number(handle, at), held.into());
            if self.calendar.held(id) != Some(&held) {
                self.calendar.exchange(id, held);
            }
            count = at + 1;
        }
        self.release_from(handle, count);
    }

    /// What `trial` finds, after which these reservations hold what they held before, whatever it had them hold.
    pub(super) fn tried<T>(
        &mut self,
        handles: impl IntoIterator<Item = Handle>,
        trial: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let held = |handle: Handle| (handle, self.held(handle).cloned().collect::<Vec<_>>());
        let before: Vec<_> = handles.into_iter().map(held).collect();
        let found = trial(self);
        for (handle, held) in before {
            self.hold_only(handle, held);
        }
        found
    }

    /// What it held while it was changed, too.
    pub(super) fn release(&mut self, handle: Handle) {
        self.release_from(handle, 0);
    }

    fn release_from(&mut self, handle: Handle, first: usize) {
        let ids = (first..).map(|at| number(handle, at));
        let mut released = ids.map_while(|id| self.calendar.release(id).ok());
        while released.next().is_some() {}
    }

    /// What a malleable reservation takes, as it holds it; nothing if it holds nothing.
    pub(super) fn elastic(&self, reservation: &Reservation) -> Option<Elastic> {
        let grant = reservation.grant.as_ref()?;
        let held = self.held(reservation.handle).last()?;
        Some(Elastic::new(held, grant.at(held.span.from()).cpu_ppm, grant.extension.cpu_ppm))
    }

    fn held(&self, handle: Handle) -> impl Iterator<Item = &Held> {
        (0..).map_while(move |at| self.calendar.held(number(handle, at)))
    }

    /// Holds what was released a moment ago.
    pub(super) fn hold_again(&mut self, old: &Reservation) {
        let Some(grant) = &old.grant else { return };
        let held = self.hold_promised(old, grant);
        assert!(held.is_ok(), "what was released fits again: {held:?}");
    }

    /// Holds what is recorded of a reservation, no more.
    pub(super) fn hold_exactly(&mut self, handle: Handle) {
        let Some(now) = self.book.reservations().get(&handle).cloned() else { return };
        self.release(handle);
        self.hold_again(&now);
    }
}
