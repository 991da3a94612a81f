//! What the user of a run that is to be done by a time is told of its course, while it runs and by `keeptime top`.

use super::{Held, Work, distance};
use crate::cluster::Cluster;
use crate::columns::{Side, aligned};
use crate::course::{Followed, News, Task};
use crate::rate::door::CourseView;
use crate::{brokers, times};
use anyhow::Result;
use jiff::tz::TimeZone;

/// Has the run followed: with more of its nodes where it is too slow, and its user told where that is not to be had.
pub(super) fn follow(cluster: &Cluster, work: &Work, held: &Held, json: bool) -> Result<Followed> {
    let reservation =
        cluster.broker()?.reservation(held.hold.handle()).map_err(brokers::failure)?;
    // What is promised nothing has a time all the same, for others that make way: it is nobody's deadline.
    let told_by = held.promised_by().unwrap_or(work.job.by);
    let task = Task { total: work.total, by: held.by, told_by, most: work.job.cpu_ppm };
    let hear = move |news: News<'_>| {
        let told = told(news, &TimeZone::system());
        match json {
            true => eprintln!("keeptime: {told}"),
            false => println!("{told}"),
        }
    };
    Followed::start(cluster, &work.application, &reservation, task, hear)
}

/// What its user is told of a run's course.
fn told(news: News<'_>, zone: &TimeZone) -> String {
    let done = |view: &CourseView| {
        let end = view.expected_end_unix_nanos?;
        let distance = distance(end, view.by_unix_nanos, zone);
        Some(format!("done at about {}, {distance}", times::show(end, zone)))
    };
    match news {
        News::Granted(view) => {
            let (job, cpu) = (view.job, view.cpu_ppm.rounded());
            let until = times::show(view.until_unix_nanos, zone);
            let unknown = || distance(view.until_unix_nanos, view.by_unix_nanos, zone);
            let end = done(view).unwrap_or_else(unknown);
            format!(
                "{job} takes longer than was planned: it has {cpu} of each node's CPU until {until}, {end}"
            )
        }
        News::Refused(view) => {
            let (job, done) = (view.job, done(view));
            let is_cut = view.is_cut() || done.is_none();
            let ended = is_cut
                .then(|| format!("it is ended at {}", times::show(view.until_unix_nanos, zone)));
            let what: Vec<_> = done.into_iter().chain(ended).collect();
            let (what, reason) = (what.join("; "), view.refusal.as_deref().unwrap_or_default());
            format!("{job} takes longer than was planned, and has no more: {what} ({reason})")
        }
        News::Unprinted(CourseView { job, .. }, reason) => {
            format!("{job}: the command that is to print its progress does not: {reason}")
        }
    }
}

/// Runs that are to be done by a time, a line for each.
pub fn table(views: &[CourseView]) -> String {
    let zone = TimeZone::system();
    let row = |view: &CourseView| {
        let unknown = || "-".to_owned();
        let done = view.work.map_or_else(unknown, |work| work.to_string());
        let work = match view.work_total {
            Some(total) => format!("{done} of {total}"),
            None => done,
        };
        let end = view.expected_end_unix_nanos;
        let state = match &view.refusal {
            Some(refusal) if view.is_short() => format!("has no more: {refusal}"),
            _ => end.map_or_else(unknown, |end| distance(end, view.by_unix_nanos, &zone)),
        };
        [
            view.job.to_string(),
            view.application.to_string(),
            view.nodes.len().to_string(),
            work,
            view.cpu_ppm.rounded().to_string(),
            times::show(view.until_unix_nanos, &zone),
            end.map_or_else(unknown, |end| times::show(end, &zone)),
            state,
        ]
    };
    let mut rows = vec![HEADINGS.map(String::from)];
    rows.extend(views.iter().map(row));
    let sides: [Side; HEADINGS.len()] = std::array::from_fn(|column| match column {
        2..=4 => Side::Right,
        _ => Side::Left,
    });
    aligned(&rows, &sides)
}

const HEADINGS: [&str; 8] =
    ["job", "application", "nodes", "work", "cpu", "until", "expected end", "state"];

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::reservation::Handle;
    use keeptime_model::units::{CpuPpm, WallTime};
    use std::num::NonZeroU64;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    /// To be done by the 90th second, and so far by another one.
    fn view(expected_end: Option<u64>, until: u64, refusal: Option<&str>) -> CourseView {
        CourseView {
            job: Handle::new(7),
            application: "solver".parse().unwrap(),
            nodes: vec!["n1".parse().unwrap(), "n2".parse().unwrap()],
            by_unix_nanos: at(90),
            work: expected_end.map(|_| 12),
            work_total: NonZeroU64::new(60),
            cpu_ppm: CpuPpm::from_percent(15),
            until_unix_nanos: at(until),
            expected_end_unix_nanos: expected_end.map(at),
            refusal: refusal.map(str::to_owned),
        }
    }

    #[test]
    fn users_are_told_when_a_slow_run_will_be_done() {
        let told = |news: News<'_>| told(news, &TimeZone::UTC);
        let expected = "r7 takes longer than was planned: it has 15 % of each node's CPU until \
                        1970-01-01 00:01:30, done at about 1970-01-01 00:01:20, \
                        10 s before its deadline, 1970-01-01 00:01:30";
        assert_eq!(told(News::Granted(&view(Some(80), 90, None))), expected);
        let late = told(News::Refused(&view(Some(120), 130, Some("n1 is full"))));
        let expected = "r7 takes longer than was planned, and has no more: done at about \
                        1970-01-01 00:02:00, 30 s after its deadline, 1970-01-01 00:01:30 (n1 is full)";
        assert_eq!(late, expected);
        let cut = told(News::Refused(&view(Some(80), 70, Some("n1 is full"))));
        assert!(cut.contains("before its deadline"), "{cut}");
        assert!(cut.ends_with("; it is ended at 1970-01-01 00:01:10 (n1 is full)"), "{cut}");
        let unknown = told(News::Granted(&view(None, 70, None)));
        let expected = "r7 takes longer than was planned: it has 15 % of each node's CPU until \
                        1970-01-01 00:01:10, 20 s before its deadline, 1970-01-01 00:01:30";
        assert_eq!(unknown, expected);
        let unknown = told(News::Refused(&view(None, 70, Some("n1 is full"))));
        let expected = "r7 takes longer than was planned, and has no more: it is ended at \
                        1970-01-01 00:01:10 (n1 is full)";
        assert_eq!(unknown, expected);
    }

    #[test]
    fn a_table_has_a_line_for_each_run_and_says_what_is_known() {
        let early = view(Some(80), 90, Some("n1 is full"));
        let late = view(Some(120), 90, Some("n1 is full"));
        let endless = CourseView { work: Some(7), work_total: None, ..view(None, 90, None) };
        let text = table(&[view(None, 90, None), early, late, endless]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].starts_with("job  application  nodes"), "{text}");
        assert!(lines[1].contains("- of 60  15 %") && lines[1].ends_with(" -"), "{text}");
        // What was refused meanwhile does not matter where it will be in time.
        assert!(lines[2].contains("12 of 60") && lines[2].contains("10 s before"), "{text}");
        assert!(lines[3].ends_with("has no more: n1 is full"), "{text}");
        assert!(lines[4].contains(" 7  15 %") && !lines[4].contains(" of "), "{text}");
    }
}
