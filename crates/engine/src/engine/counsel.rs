//! What is told of a request that does not fit: when it would, and what less would.

use super::Engine;
use super::offering::{Telling, Wanted};
use crate::admission::Admission;
use crate::book::Reservation;
use crate::policy::Policy;
use crate::refusal::Refusal;
use keeptime_calendar::{Span, When};
use keeptime_model::reservation::{Ask, Request, State};
use keeptime_model::units::{Nanos, WallTime};

/// Who asks so soon for the start that was offered is granted it, on nodes that are away still, too: people read first.
const ACCEPTED_WITHIN: Nanos = Nanos::from_secs(60);

impl Engine {
    /// Adds to `refusal` what would be admitted instead of `ask`, which is what is wanted on the nodes where it stays.
    pub(super) fn counsel(
        &self,
        wanted: Wanted<'_>,
        mut admission: Admission<'_>,
        ask: &Ask,
        span: Span,
        refusal: &mut Refusal,
    ) {
        let request = wanted.request;
        let (old, from, user) = (wanted.place.old(), span.from(), admission.user);
        // A program that runs on keeps what it was given beside, which is not counted here.
        let is_extended =
            |old: &Reservation| old.grant.as_ref().is_some_and(|grant| !grant.extension.is_empty());
        if let Ask::Resources(asked) = ask
            && !old.is_some_and(is_extended)
        {
            refusal.resource_offers = admission.less(asked, span);
            // Whoever takes one asks for nodes as before, and may be moved as before.
            if let (Ask::Resources(before), false) = (&request.ask, admission.stays.is_empty()) {
                let offers = refusal.resource_offers.iter_mut();
                offers.for_each(|offer| offer.resources.nodes = before.nodes.clone());
            }
        }
        let end = is_had_for_less(request).then(|| admission.latest(ask, span)).flatten();
        admission.absences = admission.absences.later_by(ACCEPTED_WITHIN);
        // What has begun does not begin later.
        let begins = old.is_none_or(|old| old.state != State::Active);
        let when = begins.then(|| self.later(from, request));
        let start = when.and_then(|when| admission.earliest(ask, when)).map(|(start, _)| start);
        // A change keeps more than what is counted here: what was given beside, or promised for later.
        let is_had = |request: Request| {
            let instead = Wanted { request: &request, ..wanted };
            let times = self.times_of(instead);
            times.is_ok_and(|times| self.plan_at(times, instead, user, Telling::Reason).is_ok())
        };
        refusal.latest_end_unix_nanos = end.filter(|end| {
            let duration_nanos = Some(end.saturating_since(from));
            is_had(Request { duration_nanos, ..request.clone() })
        });
        refusal.earliest_start_unix_nanos = start.filter(|start| {
            let from_unix_nanos = Some(*start);
            old.is_none() || is_had(Request { from_unix_nanos, ..request.clone() })
        });
    }

    /// When a request that does not fit at `from` may start later: no further ahead than anybody may ask for, and such
    /// that what is malleable is had by its deadline.
    fn later(&self, from: WallTime, request: &Request) -> When {
        let Policy { search_ahead_nanos, ahead_max_nanos, .. } = self.policy;
        let duration = request.duration_nanos.unwrap_or(Nanos::new(u64::MAX));
        let searched = from.saturating_add(search_ahead_nanos);
        let latest = searched.min(self.now.saturating_add(ahead_max_nanos));
        let in_time = request.malleable.map(|malleable| {
            let by = malleable.by_unix_nanos.unix_nanos();
            WallTime::from_unix_nanos(by.saturating_sub(duration.get()))
        });
        When::after(from, duration).until(in_time.map_or(latest, |start| start.min(latest)))
    }
}

/// Whether a shorter time would be of use: what is malleable has all of its CPU or is late, and a site keeps its nodes.
fn is_had_for_less(request: &Request) -> bool {
    request.malleable.is_none() && !matches!(request.ask, Ask::SiteNode(_))
}
