//! What has not begun makes way by beginning later, or sooner: laid anew beside what somebody else is to have.

use super::Engine;
use super::making_way::Malleable;
use crate::malleable::Form;
use keeptime_calendar::When;
use keeptime_model::reservation::State;
use keeptime_model::units::{CpuPpm, Nanos};

/// So many are laid anew at the most: everybody else waits meanwhile.
const DEFERRED_MAX: usize = 64;

impl Engine {
    /// What of all may begin at any time, has not, and is not known to agents yet: what begins next, the most urgent first.
    pub(super) fn deferrable(&self, all: &[Malleable]) -> Vec<Malleable> {
        let told = self.told_until();
        let may_begin_later = |Malleable { reservation: found, .. }: &&Malleable| {
            let begins_when_it_can =
                found.request.malleable.is_some_and(|of| of.earliest_unix_nanos.is_some());
            begins_when_it_can && found.state == State::Granted && found.from_unix_nanos > told
        };
        let mut next: Vec<_> = all.iter().filter(may_begin_later).cloned().collect();
        next.sort_by_key(|one| (one.reservation.from_unix_nanos, one.reservation.handle));
        next.truncate(DEFERRED_MAX);
        next.sort_by_key(|one| (one.left.begin_by(), one.reservation.handle));
        next
    }

    /// Holds all of these, which hold nothing, as they are where there is room for that, and else as early as there is; who
    /// has to be another for that. Nothing if one of them would be late: some are held then.
    pub(super) fn lay_anew(&mut self, deferred: &[Malleable]) -> Option<Vec<(Malleable, Form)>> {
        let mut other = Vec::new();
        for one in deferred {
            // Whatever its user may have by now: it was promised that.
            let as_it_is = self.pieces_in(one, one.left.form());
            if self.hold_beyond_limits(one.reservation.handle, &as_it_is).is_ok() {
                continue;
            }
            let form = self.earliest(one)?;
            if !self.hold_in(one, form) {
                return None;
            }
            other.push((one.clone(), form));
        }
        Some(other)
    }

    /// As fast as it is or as it can be, on its nodes: whichever is done first.
    fn earliest(&self, one: &Malleable) -> Option<Form> {
        let shares = [one.left.form().cpu, one.left.most()];
        let found = shares.into_iter().filter_map(|cpu| self.earliest_with(one, cpu));
        found.min_by_key(|form| form.until)
    }

    fn earliest_with(&self, one: &Malleable, cpu: CpuPpm) -> Option<Form> {
        let left = &one.left;
        // Agents are not asked: it begins after all of which they know.
        let first = left.earliest()?.max(self.told_until().saturating_add(Nanos::from_secs(1)));
        let form = left.begun(first, cpu)?;
        let lasts = form.until.saturating_since(form.begins);
        let demands = self.pieces_in(one, form).pop()?.demands;
        let when = When::after(first, lasts).until(left.last_start(lasts));
        let start = self.calendar.earliest_fit(when, &demands).ok().flatten()?;
        left.begun(start, cpu)
    }
}
