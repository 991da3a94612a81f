//! Whether a grant is what was asked for.

use super::ensure;
use keeptime_model::reservation::{Ask, Grant, NodeChoice, Request};
use keeptime_model::units::{Nanos, WallTime};
use std::collections::BTreeSet;

/// A start that lies back by no more than this is meant to be now.
const PAST_MAX: Nanos = Nanos::from_secs(60);

/// What was granted is what was asked, no more and no less.
pub(super) fn check_grant(request: &Request, grant: &Grant) -> Result<(), String> {
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
    ensure(same, "other resources than were asked for")
}

/// Whether all is as before but for what its program asked for beside.
pub(super) fn is_extended(before: &Grant, after: &Grant) -> bool {
    let extension = before.extension.clone();
    before.extension != after.extension && Grant { extension, ..after.clone() } == *before
}

/// After a change by its owner a program keeps what it was given, where its nodes are the same.
pub(super) fn check_kept(before: &Grant, after: &Grant) -> Result<(), String> {
    let is_kept = match before.nodes == after.nodes {
        true => after.extension == before.extension,
        false => after.extension.is_empty(),
    };
    ensure(is_kept, "what its program was given is another now")
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
