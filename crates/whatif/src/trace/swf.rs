//! Logs in Standard Workload Format: a line of 18 numbers for each job, `;` before remarks.

use super::{Class, Log, Submission, deadline, draw_classes};
use keeptime_control::plant::Random;
use keeptime_model::Invalid;
use std::fmt;

/// Jobs that were passed over, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// They never ran.
    pub never_ran: usize,
    /// They had more processors than the log says there were.
    pub too_large: usize,
}

/// The first `most` jobs of a log that ran at all, on no more processors than `; MaxProcs:` or `; MaxNodes:`
/// says there were; the largest job has all of them where neither is said. A processor counts as a node.
/// Deadlines, which the format does not have, are drawn, and so are classes: queues have other numbers at
/// every site.
///
/// # Errors
/// The line and the field that is wrong, or that there is no such job.
pub fn read(text: &str, most: usize, seed: u64) -> Result<Log, Invalid> {
    read_counted(text, most, seed).map(|(log, _)| log)
}

/// The same, and what was passed over on the way.
///
/// # Errors
/// As [`read`].
pub fn read_counted(text: &str, most: usize, seed: u64) -> Result<(Log, LeftOut), Invalid> {
    // Written by some editors before all else.
    let text = text.trim_start_matches('\u{feff}');
    let there = header(text, "MaxProcs").or_else(|| header(text, "MaxNodes"));
    let mut random = Random::new(seed);
    let mut jobs = Vec::new();
    let mut left_out = LeftOut::default();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if jobs.len() == most {
            break;
        }
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        let job = job(line, &mut random);
        match job.map_err(|invalid| invalid.within(&format!("line {}", at + 1)))? {
            None => left_out.never_ran += 1,
            Some(job) if there.is_some_and(|there| job.nodes > there) => left_out.too_large += 1,
            Some(job) => jobs.push(job),
        }
    }
    let Some(largest) = jobs.iter().map(|job| job.nodes).max() else {
        let on = there.map(|nodes| format!(", on at most {nodes} processors")).unwrap_or_default();
        return Err(Invalid::new("jobs", "none", format!("at least one that ran{on}")));
    };
    count_from_the_first(&mut jobs);
    draw_classes(&mut jobs, seed);
    Ok((Log { nodes: there.unwrap_or(largest), jobs }, left_out))
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

/// One line; nothing if the job never ran.
fn job(line: &str, random: &mut Random) -> Result<Option<Submission>, Invalid> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    if fields.len() < FIELDS {
        return Err(Invalid::new("numbers", fields.len(), format!("{FIELDS}")));
    }
    let number = |(field, name): (usize, &str)| {
        let parsed = fields[field - 1].parse::<f64>().ok();
        let number = parsed.filter(|number| number.abs() <= NUMBER_MAX).map(|number| number as i64);
        number.ok_or_else(|| {
            let expected = format!("a number of at most {NUMBER_MAX}");
            Invalid::new(format!("{name} (field {field})"), fields[field - 1], expected)
        })
    };
    let submitted = number(SUBMITTED)?;
    if submitted < 0 {
        return Err(Invalid::new(SUBMITTED.1, submitted, "at least 0"));
    }
    let run = number(RUN)?;
    // -1 = not known.
    let known = |first: i64, second: i64| if first > 0 { first } else { second };
    let nodes = known(number(REQUESTED_NODES)?, number(NODES)?);
    let requested = known(number(REQUESTED_TIME)?, run).max(run);
    if run <= 0 || nodes <= 0 {
        return Ok(None);
    }
    let many = |_| Invalid::new(NODES.1, nodes, format!("at most {}", u32::MAX));
    let nodes = u32::try_from(nodes).map_err(many)?;
    let [submitted, run, requested] = [submitted, run, requested].map(i64::unsigned_abs);
    let deadline = deadline(submitted, requested, random.part());
    let class = Class::default();
    Ok(Some(Submission { submitted, run, requested, nodes, deadline, class }))
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

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { never_ran, too_large } = self;
        write!(f, "{never_ran} never ran, {too_large} had more processors than the log says it has")
    }
}

const FIELDS: usize = 18;
/// Far more seconds or processors than there ever were, and sums stay far from what can be counted.
const NUMBER_MAX: f64 = 1e12;
const SUBMITTED: (usize, &str) = (2, "submit time");
const RUN: (usize, &str) = (4, "run time");
const NODES: (usize, &str) = (5, "allocated processors");
const REQUESTED_NODES: (usize, &str) = (8, "requested processors");
const REQUESTED_TIME: (usize, &str) = (9, "requested time");

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
; Version: 2.2
;  MaxNodes: 64
; MaxProcs:  128

  1  1000  10  600  4 -1 -1  4  900 -1 1 1 1 1 1 1 -1 -1
  2  1010  -1   -1 -1 -1 -1  8  900 -1 5 1 1 1 1 1 -1 -1
  3  1020   0  500 16 -1 -1 -1   -1 -1 1 1 1 1 1 1 -1 -1
  4  1030   0  500 99 -1 -1 999  -1 -1 1 1 1 1 1 1 -1 -1
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
        let (log, left_out) = read_counted(&format!("{LOG}{last}"), 3, 1).unwrap();
        assert_eq!(log.jobs.iter().map(|job| job.nodes).collect::<Vec<_>>(), [4, 16, 2]);
        assert_eq!(left_out, LeftOut { never_ran: 1, too_large: 1 });
        assert_eq!(read_counted(LOG, 1, 1).unwrap().1, LeftOut::default());
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
        let number = r#"line 5.submit time (field 2): "x" is not accepted; expected a number of at most 1000000000000"#;
        assert_eq!(error("1000", "x"), number);
        assert_eq!(error("1000", "1e13"), number.replace("\"x\"", "\"1e13\""));
        let negative = r#"line 5.submit time: "-7" is not accepted; expected at least 0"#;
        assert_eq!(error("1000", "-7"), negative);
        let short = r#"line 5.numbers: "14" is not accepted; expected 18"#;
        assert_eq!(error(" 1 1 -1 -1", ""), short);
        let small = read(&LOG.replace("128", "3"), 9, 1).unwrap_err().to_string();
        let none = r#"jobs: "none" is not accepted; expected at least one that ran, on at most 3 processors"#;
        assert_eq!(small, none);
        let empty = read("", 9, 1).unwrap_err().to_string();
        assert_eq!(empty, r#"jobs: "none" is not accepted; expected at least one that ran"#);
    }
}
