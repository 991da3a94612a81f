//! Logs in Standard Workload Format: a line of 18 numbers for each job, `;` before remarks.

use super::counted::{Counted, Foreknown};
use super::{Class, Log, Submission, deadline, draw_classes};
use keeptime_model::Invalid;
use keeptime_random::Random;

/// What a line says.
enum Line {
    /// A job that ran.
    Job(Submission, Requested),
    NeverRan,
    Part,
    SubmittedUnknown,
}

/// What a job's user said of how long it would take.
enum Requested {
    Enough,
    Unknown,
    Exceeded,
}

impl Requested {
    /// Of a job that took `run`, and for which `limit` was requested, as far as that is known.
    fn new(limit: i64, run: i64) -> Self {
        match limit {
            ..=0 => Self::Unknown,
            limit if limit < run => Self::Exceeded,
            _ => Self::Enough,
        }
    }

    fn count(self, foreknown: &mut Foreknown) {
        match self {
            Self::Enough => {}
            Self::Unknown => foreknown.request_unknown += 1,
            Self::Exceeded => foreknown.request_exceeded += 1,
        }
    }
}

/// The first `most` jobs of a log that ran at all and were submitted at a known time, each once however often it was
/// checkpointed, on no more processors than `; MaxProcs:` or `; MaxNodes:` says there were; the largest job has all of
/// them where neither is said. A processor counts as a node. A job counts with the processors that it asked for, or
/// with those that it had where it asked for more than there were. Deadlines, which the format does not have, are
/// drawn, and so are classes: queues have other numbers at every site. A job for which less was requested than it took, or
/// nobody knows what, counts as if it had been requested for just as long.
///
/// # Errors
/// The line and the field that is wrong, or that there is no such job.
pub fn read(text: &str, most: usize, seed: u64) -> Result<Log, Invalid> {
    read_counted(text, most, seed).map(|(log, _)| log)
}

/// The log as [`read`] has it, and what was counted on the way.
///
/// # Errors
/// As [`read`].
pub fn read_counted(text: &str, most: usize, seed: u64) -> Result<(Log, Counted), Invalid> {
    // Written by some editors before all else.
    let text = text.trim_start_matches('\u{feff}');
    let there = header(text, "MaxProcs").or_else(|| header(text, "MaxNodes"));
    let mut random = Random::new(seed);
    let (mut jobs, mut lines) = (Vec::new(), Vec::new());
    let mut counted = Counted::default();
    let Counted { left_out, foreknown, is_cut } = &mut counted;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        if jobs.len() == most {
            *is_cut = true;
            break;
        }
        let said = said(line, there, &mut random);
        match said.map_err(|invalid| at_line(at, invalid))? {
            Line::NeverRan => left_out.never_ran += 1,
            Line::Part => left_out.parts += 1,
            Line::SubmittedUnknown => left_out.submitted_unknown += 1,
            Line::Job(job, _) if there.is_some_and(|there| job.nodes > there) => {
                left_out.too_large += 1;
            }
            Line::Job(job, requested) => {
                requested.count(foreknown);
                jobs.push(job);
                lines.push(at);
            }
        }
    }
    let Some(largest) = jobs.iter().map(|job| job.nodes).max() else {
        let on = there.map(|nodes| format!(", on at most {nodes} processors")).unwrap_or_default();
        return Err(Invalid::new("jobs", "none", format!("at least one that ran{on}")));
    };
    check_length(&jobs, &lines)?;
    count_from_the_first(&mut jobs);
    draw_classes(&mut jobs, seed);
    Ok((Log { nodes: there.unwrap_or(largest), jobs }, counted))
}

/// What is wrong in a line of the log, counted as people do.
fn at_line(line: usize, invalid: Invalid) -> Invalid {
    let place = format!("line {}", line + 1);
    // Of a line as a whole no field is named.
    let field =
        if invalid.field.is_empty() { place } else { format!("{place}, {}", invalid.field) };
    Invalid { field, ..invalid }
}

/// Checks that the last of them, which stand in these lines, is no longer after the first than can be simulated.
fn check_length(jobs: &[Submission], lines: &[usize]) -> Result<(), Invalid> {
    let first = jobs.iter().map(|job| job.submitted).min().unwrap_or(0);
    match jobs.iter().zip(lines).find(|(job, _)| job.submitted - first > LOG_MAX) {
        None => Ok(()),
        Some((job, line)) => {
            let expected = format!("at most {LOG_MAX} seconds after the first, at {first}");
            Err(at_line(*line, Invalid::new(field(SUBMITTED), job.submitted, expected)))
        }
    }
}

/// Puts them in the order of their submission, the first at 0.
fn count_from_the_first(jobs: &mut [Submission]) {
    jobs.sort_by_key(|job| job.submitted);
    let first = jobs.first().map_or(0, |job| job.submitted);
    for job in jobs {
        job.submitted -= first;
        job.deadline -= first;
    }
}

/// One line of a log of a machine with `there` processors, where that is said. What is less than a second is a second:
/// a job that ran for half of one ran.
fn said(line: &str, there: Option<u32>, random: &mut Random) -> Result<Line, Invalid> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    if fields.len() < FIELDS {
        let fields = format!("{} field{}", fields.len(), if fields.len() == 1 { "" } else { "s" });
        let expected = format!("{FIELDS} numbers: a line of a log in Standard Workload Format");
        return Err(Invalid::new("", fields, expected));
    }
    let number = |of: Field, most: f64| {
        let text = fields[of.0 - 1];
        let number = text.parse::<f64>().ok().filter(|number| number.abs() <= most);
        number.ok_or_else(|| Invalid::new(field(of), text, format!("a number of at most {most}")))
    };
    let whole = |of: Field, most: f64| number(of, most).map(|number| number.ceil() as i64);
    let submitted = number(SUBMITTED, NUMBER_MAX)?.floor() as i64;
    if submitted < UNKNOWN {
        return Err(Invalid::new(
            field(SUBMITTED),
            submitted,
            "at least 0, or -1 if it is not known",
        ));
    }
    if PARTS.contains(&whole(STATUS, NUMBER_MAX)?) {
        return Ok(Line::Part);
    }
    let run = whole(RUN, JOB_MAX)?;
    let (asked, had) = (whole(REQUESTED_NODES, NUMBER_MAX)?, whole(NODES, NUMBER_MAX)?);
    let (nodes, nodes_from) = match counts_as_had(asked, had, there) {
        true => (had, NODES),
        false => (asked, REQUESTED_NODES),
    };
    // What was asked for may be without any limit; nobody runs for so long.
    let limit = whole(REQUESTED_TIME, NUMBER_MAX)?.min(JOB_MAX as i64);
    let (requested, requested_as) = (limit.max(run), Requested::new(limit, run));
    if run <= 0 || nodes <= 0 {
        return Ok(Line::NeverRan);
    }
    if submitted == UNKNOWN {
        return Ok(Line::SubmittedUnknown);
    }
    let many = |_| Invalid::new(field(nodes_from), nodes, format!("at most {}", u32::MAX));
    let nodes = u32::try_from(nodes).map_err(many)?;
    let [submitted, run, requested] = [submitted, run, requested].map(i64::unsigned_abs);
    let deadline = deadline(submitted, requested, random.part());
    let class = Class::default();
    let job = Submission { submitted, run, requested, nodes, deadline, class };
    Ok(Line::Job(job, requested_as))
}

/// Whether a job counts with the processors that it had: those that it asked for are not known, or it asked for more
/// than there were, and ran on fewer all the same.
fn counts_as_had(asked: i64, had: i64, there: Option<u32>) -> bool {
    let is_there = |nodes: i64| there.is_none_or(|there| nodes <= i64::from(there));
    asked <= 0 || (!is_there(asked) && had > 0 && is_there(had))
}

/// A field as it is named in what is said about it.
fn field((number, name): Field) -> String {
    format!("{name} (field {number})")
}

/// The first number above 0 that is said of `key`, whatever else is said behind it.
fn header(text: &str, key: &str) -> Option<u32> {
    let remarks = text.lines().filter_map(|line| line.trim().strip_prefix(';'));
    let value = |remark: &str| {
        let value = remark.trim().strip_prefix(key)?.trim_start().strip_prefix(':')?;
        value.split_whitespace().next()?.parse::<u32>().ok()
    };
    remarks.filter_map(value).find(|number| *number > 0)
}

/// Number, from 1 on, and name.
type Field = (usize, &'static str);

const FIELDS: usize = 18;
/// What stands for a number that is not known.
const UNKNOWN: i64 = -1;
/// Far more seconds or processors than there ever were, and sums stay far from what can be counted.
const NUMBER_MAX: f64 = 1e12;
/// Ten years: longer than any job. Deadlines are up to five times as far away.
const JOB_MAX: f64 = 315_576_000.0;
/// Fifty years: longer than any log. With such a deadline at its end it is as much as is simulated.
const LOG_MAX: u64 = 1_577_880_000;
/// What the status of a checkpointed job's part is: one that goes on, the last one, and the last one of a job that failed.
const PARTS: [i64; 3] = [2, 3, 4];
const SUBMITTED: Field = (2, "submit time");
const RUN: Field = (4, "run time");
const NODES: Field = (5, "allocated processors");
const REQUESTED_NODES: Field = (8, "requested processors");
const REQUESTED_TIME: Field = (9, "requested time");
const STATUS: Field = (11, "status");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::counted::LeftOut;

    const LOG: &str = "\
; Version: 2.2
;  MaxNodes: 64
; MaxProcs:  128

  1  1000  10  600  4 -1 -1  4  900 -1 1 1 1 1 1 1 -1 -1
  2  1010  -1   -1 -1 -1 -1  8  900 -1 5 1 1 1 1 1 -1 -1
  3  1020   0  500 16 -1 -1 -1   -1 -1 1 1 1 1 1 1 -1 -1
  4  1030   0  500 999 -1 -1 -1  -1 -1 1 1 1 1 1 1 -1 -1
";

    #[test]
    fn jobs_that_ran_are_read() {
        let log = read(LOG, 100, 1).unwrap();
        assert_eq!((log.nodes, log.jobs.len()), (128, 2));
        let [one, three] = log.jobs[..] else { panic!() };
        assert_eq!((one.submitted, one.run, one.requested, one.nodes), (0, 600, 900, 4));
        assert!((1_350..=4_500).contains(&one.deadline), "{one:?}");
        assert_eq!((three.submitted, three.run, three.requested, three.nodes), (20, 500, 500, 16));
        assert_eq!(read(LOG, 1, 1).unwrap().jobs.len(), 1);
    }

    // Goal: what is left out is counted by why, and does not count as one of the jobs that were asked for.
    #[test]
    fn jobs_that_are_left_out_are_counted_apart() {
        let last = "5 1040 0 500 2 -1 -1 2 -1 -1 1 1 1 1 1 1 -1 -1\n";
        let (log, Counted { left_out, is_cut, .. }) =
            read_counted(&format!("{LOG}{last}"), 3, 1).unwrap();
        assert_eq!(log.jobs.iter().map(|job| job.nodes).collect::<Vec<_>>(), [4, 16, 2]);
        assert_eq!(left_out, LeftOut { never_ran: 1, too_large: 1, ..LeftOut::default() });
        assert!(!is_cut);
    }

    // Goal: of a log that is cut it is known, and not of one after whose last job remarks come.
    #[test]
    fn a_log_with_more_jobs_than_were_asked_for_is_cut() {
        let expected = Counted { is_cut: true, ..Counted::default() };
        assert_eq!(read_counted(LOG, 1, 1).unwrap().1, expected);
        let (one, _) = LOG.split_once("  2  1010").unwrap();
        let counted = read_counted(&format!("{one}\n; the end\n"), 1, 1).unwrap().1;
        assert_eq!(counted, Counted::default());
    }

    // Goal: who is known better than its user knew it is counted, of the jobs that count.
    #[test]
    fn what_was_requested_for_too_little_or_not_at_all_is_counted() {
        let known = |requested: &str| {
            let log = LOG.replacen("4  900", &format!("4  {requested}"), 1);
            let (log, Counted { foreknown, .. }) = read_counted(&log, 9, 1).unwrap();
            (log.jobs[0].requested, foreknown)
        };
        // The other job of the log has no request.
        let unknown = Foreknown { request_unknown: 1, request_exceeded: 0 };
        assert_eq!(known("600"), (600, unknown));
        assert_eq!(known("599"), (600, Foreknown { request_exceeded: 1, ..unknown }));
        for not_told in ["-1", "0"] {
            assert_eq!(known(not_told), (600, Foreknown { request_unknown: 2, ..unknown }));
        }
        let expected = "1 without a requested time, 0 that took longer than was requested";
        assert_eq!(unknown.to_string(), expected);
    }

    // Goal: a time that the format says is not known ends nothing. Method: of a job that ran, one that never did, and a part.
    #[test]
    fn who_was_submitted_at_an_unknown_time_is_left_out_and_counted() {
        let unknown = |run: i32, status: u32| {
            format!("5 -1 0 {run} 2 -1 -1 2 -1 -1 {status} 1 1 1 1 1 -1 -1\n")
        };
        let log = [LOG, &unknown(500, 1), &unknown(-1, 5), &unknown(500, 2)].concat();
        let (with, Counted { left_out, .. }) = read_counted(&log, 9, 1).unwrap();
        assert_eq!(Ok(with), read(LOG, 9, 1));
        let expected = LeftOut { never_ran: 2, too_large: 1, parts: 1, submitted_unknown: 1 };
        assert_eq!(left_out, expected);
        assert!(left_out.to_string().ends_with(", 1 were submitted at a time that is not known"));
    }

    // Goal: only who ran on more processors than there were is left out, and not who asked for more and was given fewer.
    #[test]
    fn who_asked_for_more_than_there_is_counts_with_what_it_was_given() {
        let nodes = |had: i32, asked: i64| {
            let line = format!("5 1040 0 500 {had} -1 -1 {asked} -1 -1 1 1 1 1 1 1 -1 -1\n");
            let (log, Counted { left_out, .. }) =
                read_counted(&format!("{LOG}{line}"), 9, 1).unwrap();
            (log.jobs.get(2).map(|job| job.nodes), left_out.too_large)
        };
        assert_eq!(nodes(99, 200), (Some(99), 1));
        assert_eq!(nodes(99, 5_000_000_000), (Some(99), 1));
        assert_eq!(nodes(99, 64), (Some(64), 1));
        for had in [129, -1, 0] {
            assert_eq!(nodes(had, 200), (None, 2), "{had}");
        }
    }

    // Goal: a checkpointed job is there once. Method: as the format has it, the whole job in a line with its status, and a
    // line for each of its parts, one that goes on and the last.
    #[test]
    fn parts_of_jobs_are_no_jobs() {
        let whole = "5 1040 0 500 2 -1 -1 2 -1 -1 1 1 1 1 1 1 -1 -1\n";
        let part = |seconds: u32, status: u32| {
            format!("5 1040 0 {seconds} 2 -1 -1 2 -1 -1 {status} 1 1 1 1 1 -1 -1\n")
        };
        let log = |parts: &[String]| format!("{LOG}{whole}{}", parts.concat());
        let (with, Counted { left_out, .. }) =
            read_counted(&log(&[part(200, 2), part(300, 3), part(300, 4)]), 9, 1).unwrap();
        assert_eq!(Ok(with), read(&log(&[]), 9, 1));
        assert_eq!(
            left_out,
            LeftOut { never_ran: 1, too_large: 1, parts: 3, submitted_unknown: 0 }
        );
    }

    // Goal: who ran for less than a second ran, and what is longer is no shorter than it was.
    #[test]
    fn parts_of_a_second_count_as_one() {
        let log = read(&LOG.replace("  600  4", " 0.6  4"), 9, 1).unwrap();
        assert_eq!(log.jobs.iter().map(|job| job.run).collect::<Vec<_>>(), [1, 500]);
        let log = read(&LOG.replace(" 500 16", " 500.1 16"), 9, 1).unwrap();
        assert_eq!((log.jobs[1].run, log.jobs[1].requested), (501, 501));
    }

    // Goal: a log is read whose jobs had no limit, or an absurd one, whether they ran or not.
    #[test]
    fn a_requested_time_beyond_any_job_is_as_long_as_any_may_be() {
        let log = read(&LOG.replace(" 900 ", " 999999999 "), 9, 1).unwrap();
        let times: Vec<_> = log.jobs.iter().map(|job| (job.run, job.requested)).collect();
        assert_eq!(times, [(600, JOB_MAX as u64), (500, 500)]);
    }

    #[test]
    fn how_many_processors_there_were_is_said_by_the_log_or_its_largest_job() {
        let nodes = |log: &str| read(log, 9, 1).unwrap().nodes;
        assert_eq!(nodes(&LOG.replace("128", "128 (2 of them for tests)")), 128);
        assert_eq!(nodes(&LOG.replace("128", "unknown")), 64);
        assert_eq!(nodes(&LOG.replace("MaxProcs", "Procs")), 64);
        assert_eq!(nodes(&LOG.replace("Max", "Min")), 999);
    }

    // Goal: how a log was written changes nothing: lines that end as on other systems, a mark before the first, remarks
    // and empty lines in the middle, tabs, and numbers beyond the last.
    #[test]
    fn lines_of_every_kind_are_read_alike() {
        let plain = read(LOG, 9, 1).unwrap();
        let logs = [
            LOG.replace('\n', "\r\n"),
            format!("\u{feff}{LOG}"),
            LOG.replace("  3  1020", "\n; a remark: 1 2 3\n;\n\n3\t1020"),
            LOG.replace(" -1 -1\n", " -1 -1 7 7\n"),
            LOG.trim_end().into(),
        ];
        for log in logs {
            assert_eq!(read(&log, 9, 1), Ok(plain.clone()), "{log:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error =
            |from: &str, to: &str| read(&LOG.replacen(from, to, 1), 9, 1).unwrap_err().to_string();
        let number = r#"line 5, submit time (field 2): "x" is not accepted; expected a number of at most 1000000000000"#;
        assert_eq!(error("1000", "x"), number);
        assert_eq!(error("1000", "1e13"), number.replace("\"x\"", "\"1e13\""));
        let negative = r#"line 5, submit time (field 2): "-7" is not accepted; expected at least 0, or -1 if it is not known"#;
        assert_eq!(error("1000", "-7"), negative);
        let long = r#"line 5, run time (field 4): "900000000" is not accepted; expected a number of at most 315576000"#;
        assert_eq!(error("600", "900000000"), long);
        let wide = r#"line 5, requested processors (field 8): "5000000000" is not accepted; expected at most 4294967295"#;
        assert_eq!(error("4 -1 -1  4  900", "-1 -1 -1  5000000000  900"), wide);
        let late = r#"line 7, submit time (field 2): "1577881001" is not accepted; expected at most 1577880000 seconds after the first, at 1000"#;
        assert_eq!(error("1020", "1577881001"), late);
        let short = r#"line 5: "14 fields" is not accepted; expected 18 numbers: a line of a log in Standard Workload Format"#;
        assert_eq!(error(" 1 1 -1 -1", ""), short);
        let small = read(&LOG.replace("128", "3"), 9, 1).unwrap_err().to_string();
        let none = r#"jobs: "none" is not accepted; expected at least one that ran, on at most 3 processors"#;
        assert_eq!(small, none);
        let empty = read("", 9, 1).unwrap_err().to_string();
        assert_eq!(empty, r#"jobs: "none" is not accepted; expected at least one that ran"#);
    }
}
