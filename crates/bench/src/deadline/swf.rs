//! Logs in Standard Workload Format: a line of 18 numbers for each job, `;` before remarks.

use super::{Submission, deadline};
use anyhow::{Context, Result, bail, ensure};
use keeptime_control::plant::Random;

/// Jobs in the order in which they were submitted, and the nodes that they ran on.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    pub nodes: u32,
    pub jobs: Vec<Submission>,
}

/// The first `most` jobs of a log that ran at all. A processor counts as a node. Deadlines, which the
/// format does not have, are drawn.
///
/// # Errors
/// The line and the field that is wrong, or that the log does not say how many processors there were
/// (`; MaxProcs:` or `; MaxNodes:`).
pub fn read(text: &str, most: usize, seed: u64) -> Result<Log> {
    let mut random = Random::new(seed);
    let mut jobs = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        let job = job(line, &mut random).with_context(|| format!("line {}", at + 1))?;
        jobs.extend(job);
        if jobs.len() == most {
            break;
        }
    }
    let nodes = header(text, "MaxProcs").or_else(|| header(text, "MaxNodes"));
    let nodes =
        nodes.context("the header has no line \"; MaxProcs: NUMBER\" with a number above 0")?;
    jobs.retain(|job| job.nodes <= nodes);
    jobs.sort_by_key(|job| job.submitted);
    let first = jobs.first().map_or(0, |job| job.submitted);
    for job in &mut jobs {
        job.submitted -= first;
        job.deadline -= first;
    }
    Ok(Log { nodes, jobs })
}

/// One line; nothing if the job never ran.
fn job(line: &str, random: &mut Random) -> Result<Option<Submission>> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    ensure!(fields.len() >= FIELDS, "{} numbers, expected {FIELDS}", fields.len());
    let number = |(field, name): (usize, &str)| -> Result<i64> {
        let Ok(value) = fields[field - 1].parse::<f64>() else {
            bail!("{name} (field {field}): {:?} is no number", fields[field - 1]);
        };
        Ok(value as i64)
    };
    let submitted = number(SUBMITTED)?;
    ensure!(submitted >= 0, "{} is {submitted}, expected at least 0", SUBMITTED.1);
    let run = number(RUN)?;
    // -1 = not known.
    let known = |first: i64, second: i64| if first > 0 { first } else { second };
    let nodes = known(number(REQUESTED_NODES)?, number(NODES)?);
    let requested = known(number(REQUESTED_TIME)?, run).max(run);
    if run <= 0 || nodes <= 0 {
        return Ok(None);
    }
    let nodes = u32::try_from(nodes).context("more processors than there can be")?;
    let [submitted, run, requested] = [submitted, run, requested].map(i64::unsigned_abs);
    let deadline = deadline(submitted, requested, random.part());
    Ok(Some(Submission { submitted, run, requested, nodes, deadline }))
}

fn header(text: &str, key: &str) -> Option<u32> {
    let remarks = text.lines().filter_map(|line| line.trim().strip_prefix(';'));
    let value = |remark: &str| {
        remark.trim().strip_prefix(key)?.trim_start().strip_prefix(':')?.trim().parse().ok()
    };
    remarks.filter_map(value).find(|number| *number > 0)
}

const FIELDS: usize = 18;
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

    #[test]
    fn what_is_wrong_is_named() {
        let error = |from: &str, to: &str| {
            format!("{:#}", read(&LOG.replacen(from, to, 1), 9, 1).unwrap_err())
        };
        assert_eq!(error("1000", "x"), "line 5: submit time (field 2): \"x\" is no number");
        assert_eq!(error("1000", "-7"), "line 5: submit time is -7, expected at least 0");
        assert_eq!(error(" 1 1 -1 -1", ""), "line 5: 14 numbers, expected 18");
        assert_eq!(read(&LOG.replace("MaxProcs", "Procs"), 9, 1).unwrap().nodes, 64);
        let none = LOG.replace("Max", "Min");
        assert!(read(&none, 9, 1).unwrap_err().to_string().contains("MaxProcs"));
    }
}
