//! What a program has done, and its nodes have used, between two instants: pure.

use keeptime_control::Report;
use keeptime_model::units::{CpuPpm, Nanos};
use serde::{Deserialize, Serialize};

/// An instant at which both are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) at: Nanos,
    pub(super) work: u64,
    pub(super) used: Vec<Nanos>,
    /// How much later than work the CPU time is of: agents may be slow to answer.
    pub(super) late: Nanos,
}

/// Where the next report begins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Marks {
    first: Option<Mark>,
    /// Or here, where agents have come to answer later and stay with it.
    later: Option<Mark>,
}

impl Marks {
    /// When it began, if it has.
    pub(super) fn began(&self) -> Option<Nanos> {
        self.first.as_ref().map(|first| first.at)
    }

    /// One report ends at `next` and another begins, unless the CPU time is of a longer or a shorter span than the work: then
    /// the next one is as much longer, or it begins anew.
    pub(super) fn pass(&mut self, next: Mark) -> Option<Report> {
        let from = |mark: &Option<Mark>| mark.as_ref().map(|before| spans(before, &next));
        let before = match (from(&self.first), from(&self.later)) {
            (Some(Spans::Alike), _) => self.first.take(),
            (Some(Spans::TooLong), Some(Spans::Alike)) => self.later.take(),
            (Some(Spans::TooLong), Some(Spans::TooLong)) => return None,
            (Some(Spans::TooLong), _) => {
                self.later = Some(next);
                return None;
            }
            // What the last one says of CPU time is of later than this one.
            (Some(Spans::TooShort) | None, _) => None,
        };
        let report = before.and_then(|before| report(&before, &next));
        *self = Self { first: Some(next), later: None };
        report
    }
}

/// What time a report's CPU time is of, beside that of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spans {
    Alike,
    TooLong,
    TooShort,
}

/// How the span of CPU time between two marks lies beside that of work.
fn spans(from: &Mark, to: &Mark) -> Spans {
    let most = Nanos::new(to.at.saturating_sub(from.at).get() / SPANS_APART);
    match (to.late.saturating_sub(from.late), from.late.saturating_sub(to.late)) {
        (longer, _) if longer > most => Spans::TooLong,
        (_, shorter) if shorter > most => Spans::TooShort,
        _ => Spans::Alike,
    }
}

/// What was done between two marks, with what each node used, as if the busiest used no more than [`UNEQUAL_MOST`] times
/// that. Nothing if a counter went back: an agent began anew.
fn report(from: &Mark, to: &Mark) -> Option<Report> {
    let used = from.used.iter().zip(&to.used);
    let used = used.map(|(from, to)| (to >= from).then(|| to.saturating_sub(*from)));
    let mut used = used.collect::<Option<Vec<_>>>()?;
    let least = Nanos::new(used.iter().max()?.get() / UNEQUAL_MOST);
    used.iter_mut().for_each(|used| *used = least.max(*used));
    let work = to.work.checked_sub(from.work)?;
    Report::new(from.at, to.at, work as f64, &used).ok()
}

/// A report as of one node: with what that one used that used most.
pub(super) fn of_one(report: &Report) -> Report {
    report.clone().with_used(&[most(report)])
}

fn most(report: &Report) -> Nanos {
    report.used().iter().copied().max().unwrap_or_default()
}

/// Whether it takes whatever it is given: then what it uses says nothing about what it does.
pub(super) fn uses_all(report: &Report, given: CpuPpm) -> bool {
    let all = given.time_in_floor(report.to().saturating_sub(report.from()));
    most(report).as_secs_f64() >= USES_ALL * all.as_secs_f64()
}

const USES_ALL: f64 = 0.9;
/// CPU time of a span that is longer or shorter by a twentieth says as much too much or too little of what work costs: as
/// processors wander, and less than a report tells.
const SPANS_APART: u64 = 20;
/// The busiest of a program's nodes has no more than so many times what another has: a slice of less than a millisecond
/// cannot be kept, and what is nearly idle would make the periods of all as much longer.
const UNEQUAL_MOST: u64 = 4;
