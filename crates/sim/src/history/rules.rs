//! Whether a grant is what was asked for.

use super::ensure;
use keeptime_engine::book::Reservation;
use keeptime_engine::event::Modified;
use keeptime_model::assignment::LaterCpu;
use keeptime_model::reservation::{Ask, Grant, NodeChoice, Request, Resources, State};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::collections::BTreeSet;

/// A start that lies back by no more than this is meant to be now.
const PAST_MAX: Nanos = Nanos::from_secs(60);

/// What was granted is what was asked, no more and no less.
pub(super) fn check_grant(request: &Request, grant: &Grant) -> Result<(), String> {
    let mechanism = grant.cpu_mechanism == request.cpu_mechanism;
    ensure(mechanism, "another mechanism than was asked for")?;
    let is_among = |name| request.among.is_empty() || request.among.contains(name);
    ensure(grant.nodes.iter().all(is_among), "nodes that it may not have")?;
    let asked = match &request.ask {
        Ask::Goal { application, goal } => {
            let promise = grant.promise.as_ref().ok_or("a goal without a promise")?;
            ensure(promise.application == *application, "another application")?;
            return ensure(goal.admits_time(promise.time_nanos), "it does not meet the goal");
        }
        Ask::Resources(asked) => asked,
        Ask::SiteNode(asked) => &asked.resources(),
    };
    let nodes = match &asked.nodes {
        NodeChoice::Any(count) => grant.nodes.len() == *count as usize,
        NodeChoice::Named(names) => grant.nodes == *names,
    };
    let distinct: BTreeSet<_> = grant.nodes.iter().collect();
    ensure(nodes && distinct.len() == grant.nodes.len(), "other nodes than were asked for")?;
    let same = grant.cpu_ppm == asked.cpu_ppm
        && grant.rank_cpu_ppm == asked.rank_cpu_ppm
        && grant.pattern == asked.pattern
        && grant.bits_per_second == asked.bits_per_second
        && grant.disk_read_bytes_per_second == asked.disk_read_bytes_per_second
        && grant.disk_write_bytes_per_second == asked.disk_write_bytes_per_second;
    ensure(same, "other resources than were asked for")?;
    ensure(grant.later.is_none() || request.malleable.is_some(), "another share later")
}

/// Whether all is as before but for what its program asked for beside.
pub(super) fn is_extended(before: &Grant, after: &Grant) -> bool {
    let extension = before.extension.clone();
    before.extension != after.extension && Grant { extension, ..after.clone() } == *before
}

/// Whether what takes the place of a reservation ends when that was promised to end at the latest, also if it takes all the
/// time that it has.
pub(super) fn is_in_time(before: &Reservation, after: &Request, until: Option<WallTime>) -> bool {
    let deadline = |request: &Request| request.malleable.map(|malleable| malleable.by_unix_nanos);
    match (before.until_unix_nanos, until) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(promised), Some(until)) => {
            // Nothing is less than any time.
            let promised = Some(promised).max(deadline(&before.request));
            Some(until).max(deadline(after)) <= promised
        }
    }
}

/// After a change by its owner a program keeps what it was given, where its nodes are the same.
pub(super) fn check_kept(before: &Grant, after: &Grant) -> Result<(), String> {
    let is_kept = match before.nodes == after.nodes {
        true => after.extension == before.extension,
        false => after.extension.is_empty(),
    };
    ensure(is_kept, "what its program was given is another now")
}

/// A change that nobody asked for is one of what is malleable: it has as much to come as it had, by its
/// deadline, and never more at once than is of use.
pub(super) fn check_form(
    time: WallTime,
    old: &Reservation,
    modified: &Modified,
) -> Result<(), String> {
    let wanted = old.request.malleable.ok_or("nobody asked for that")?;
    let (before, after) = (&old.request, &modified.request);
    let (Ask::Resources(had), Ask::Resources(has)) = (&before.ask, &after.ask) else {
        return Err("nobody asked for that".into());
    };
    let same = Resources { cpu_ppm: had.cpu_ppm, ..has.clone() } == *had
        && Request {
            ask: before.ask.clone(),
            duration_nanos: before.duration_nanos,
            from_unix_nanos: before.from_unix_nanos,
            ..after.clone()
        } == *before;
    ensure(same, "more than its CPU and its times have changed")?;
    let (began, begins) = (old.from_unix_nanos, modified.from_unix_nanos);
    let may = wanted.earliest_unix_nanos.is_some_and(|earliest| earliest <= begins);
    let is_moved = may && begins != began && begins >= time && old.state == State::Granted;
    let asked = if is_moved { Some(begins) } else { before.from_unix_nanos };
    let is_meant = (begins == began || is_moved) && after.from_unix_nanos == asked;
    ensure(is_meant, "it begins at another time")?;
    let end = modified.until_unix_nanos.ok_or("it has no end")?;
    ensure(end <= wanted.by_unix_nanos, "it is late")?;
    ensure(has.cpu_ppm <= wanted.cpu_most_ppm, "it has more than is of use")?;
    if let Some(later) = modified.grant.later {
        let is_while = begins < later.from_unix_nanos && later.from_unix_nanos < end;
        ensure(is_while, "it has more before it begins, or when it is over")?;
        let is_more = has.cpu_ppm < later.cpu_ppm && later.cpu_ppm <= wanted.cpu_most_ppm;
        ensure(is_more, "it has less later, or more than is of use")?;
    }
    let to_come = |cpu: CpuPpm, later: Option<LaterCpu>, from: WallTime, until: WallTime| {
        let volume = |cpu: CpuPpm, from: WallTime, until: WallTime| {
            let left = until.saturating_since(from.max(time));
            u128::from(left.get()) * u128::from(cpu.get())
        };
        let turn = later.map_or(until, |later| later.from_unix_nanos);
        let then = later.map_or(cpu, |later| later.cpu_ppm);
        volume(cpu, from, turn) + volume(then, turn, until)
    };
    let later = old.grant.as_ref().and_then(|grant| grant.later);
    let had = to_come(had.cpu_ppm, later, began, old.until_unix_nanos.unwrap_or(end));
    let has = to_come(has.cpu_ppm, modified.grant.later, begins, end);
    ensure(has >= had, "some of its work is lost")
}

/// A new reservation is when it was asked to be.
pub(super) fn check_times(
    time: WallTime,
    request: &Request,
    from: WallTime,
    until: Option<WallTime>,
) -> Result<(), String> {
    check_lasts(request, from, until)?;
    let is_meant = match request.from_unix_nanos {
        // Agents were asked meanwhile.
        None => from <= time,
        Some(asked) => from == asked || (asked < from && from.saturating_since(asked) <= PAST_MAX),
    };
    ensure(is_meant, "it starts at another time than was asked for")
}

pub(super) fn check_lasts(
    request: &Request,
    from: WallTime,
    until: Option<WallTime>,
) -> Result<(), String> {
    let lasts = request.duration_nanos.map(|duration| from.saturating_add(duration));
    ensure(until == lasts, "it lasts another time than was asked for")
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::reservation::{Handle, Malleable};

    fn at(seconds: u64) -> WallTime {
        WallTime::default().saturating_add(Nanos::from_secs(seconds))
    }

    fn asked(by: Option<u64>) -> Request {
        let malleable = by.map(|by| Malleable::new(at(by), CpuPpm::default()));
        Request { malleable, ..Request::new(Ask::Resources(Resources::nothing())) }
    }

    fn promised(until: Option<u64>, by: Option<u64>) -> Reservation {
        Reservation {
            handle: Handle::new(1),
            owner: "ada".parse().unwrap(),
            key: "k".parse().unwrap(),
            request: asked(by),
            state: State::Active,
            from_unix_nanos: at(0),
            until_unix_nanos: until.map(at),
            grant: None,
            refusal: None,
            replaces: None,
            waits: None,
            unenforced: Vec::new(),
            run: None,
            since_unix_nanos: at(0),
        }
    }

    #[test]
    fn a_later_deadline_is_as_late_as_a_later_end() {
        let is = |before: (Option<u64>, Option<u64>), (until, by): (Option<u64>, Option<u64>)| {
            is_in_time(&promised(before.0, before.1), &asked(by), until.map(at))
        };
        let plain = (Some(600), None);
        for after in [(Some(600), None), (Some(300), Some(600))] {
            assert!(is(plain, after), "{after:?}");
        }
        for after in [(Some(601), None), (None, None), (Some(300), Some(601))] {
            assert!(!is(plain, after), "{after:?}");
        }
        let malleable = (Some(600), Some(900));
        assert!(is(malleable, (Some(900), None)) && is(malleable, (Some(300), Some(900))));
        assert!(!is(malleable, (Some(901), None)) && !is(malleable, (Some(600), Some(901))));
        assert!(is((None, None), (None, None)) && is((None, None), (Some(600), Some(900))));
    }
}
