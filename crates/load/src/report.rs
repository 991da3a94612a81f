//! What came of a run: counts and times, for each site and over all.

use crate::http::Failure;
use keeptime_model::units::Nanos;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What came of one request.
#[derive(Debug)]
pub struct Outcome {
    /// To which site.
    pub target: u32,
    /// When it was meant to be sent, since the start.
    pub intended: Nanos,
    /// When it was sent.
    pub sent: Nanos,
    /// When its answer, or its failure, was there.
    pub ended: Nanos,
    /// The answer's status.
    pub result: Result<u16, Failure>,
}

/// Counted outcomes, with the times of those that got an answer.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    counts: Counts,
    latencies: Vec<Nanos>,
    lateness: Vec<Nanos>,
    /// When the last was meant to be sent, or the last answer was there. What never comes is waited for in vain: that is no
    /// part of the run.
    last: Nanos,
}

/// How many requests came to what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Meant to be sent.
    pub intended: u64,
    /// Answered with a status below 400.
    pub answered: u64,
    /// Answered with another status, by status.
    pub refused: BTreeMap<u16, u64>,
    /// Never sent: no connection.
    pub not_connected: u64,
    /// Never sent: too many waited for a connection, or the run was over or stopped while they did.
    pub not_sent: u64,
    /// Sent, at least in part, and not answered: the connection broke.
    pub broken: u64,
    /// Not answered in time.
    pub timed_out: u64,
    /// Answered by something that is not HTTP.
    pub malformed: u64,
}

/// Quantiles of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50_nanos: Nanos,
    /// Nine in ten.
    pub p90_nanos: Nanos,
    /// Ninety-nine in a hundred.
    pub p99_nanos: Nanos,
    /// All but one in a thousand.
    pub p999_nanos: Nanos,
    /// All.
    pub max_nanos: Nanos,
}

/// One site, or all of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Its address, or `all`.
    pub target: String,
    /// Counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// Answered requests for each second of the run.
    pub per_second: f64,
    /// Of answered requests, from the time at which they were meant to be sent. Whoever refuses at once is not quick.
    pub latency: Option<Quantiles>,
    /// How much later than meant those were sent that got an answer, of whatever status: what the generator, or a lack of
    /// connections, adds.
    pub lateness: Option<Quantiles>,
}

/// All that came of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Until the last answer, or until the last was meant to be sent.
    pub length_nanos: Nanos,
    /// Each site.
    pub targets: Vec<Summary>,
    /// All sites together.
    pub all: Summary,
}

impl Tally {
    /// Counts one that is meant to be sent so long after the start.
    pub fn intend(&mut self, at: Nanos) {
        self.counts.intended += 1;
        self.last = self.last.max(at);
    }

    /// Counts one that could not be sent.
    pub fn not_sent(&mut self) {
        self.counts.not_sent += 1;
    }

    /// Counts an outcome.
    pub fn count(&mut self, outcome: &Outcome) {
        let counts = &mut self.counts;
        match &outcome.result {
            Ok(status) => {
                self.last = self.last.max(outcome.ended);
                self.lateness.push(outcome.sent.saturating_sub(outcome.intended));
                if *status < 400 {
                    self.latencies.push(outcome.ended.saturating_sub(outcome.intended));
                    counts.answered += 1;
                } else {
                    *counts.refused.entry(*status).or_default() += 1;
                }
            }
            Err(Failure::NotConnected(_)) => counts.not_connected += 1,
            Err(Failure::Broken(_)) => counts.broken += 1,
            Err(Failure::TimedOut) => counts.timed_out += 1,
            Err(Failure::Malformed(_)) => counts.malformed += 1,
        }
    }

    /// Adds another tally to this one.
    pub fn add(&mut self, other: &Self) {
        let (sum, more) = (&mut self.counts, &other.counts);
        sum.intended += more.intended;
        sum.answered += more.answered;
        for (status, count) in &more.refused {
            *sum.refused.entry(*status).or_default() += count;
        }
        sum.not_connected += more.not_connected;
        sum.not_sent += more.not_sent;
        sum.broken += more.broken;
        sum.timed_out += more.timed_out;
        sum.malformed += more.malformed;
        self.latencies.extend(&other.latencies);
        self.lateness.extend(&other.lateness);
        self.last = self.last.max(other.last);
    }

    fn summary(&self, target: String, length: Nanos) -> Summary {
        let seconds = length.as_secs_f64();
        let answered = self.counts.answered as f64;
        Summary {
            target,
            counts: self.counts.clone(),
            per_second: if seconds > 0.0 { answered / seconds } else { 0.0 },
            latency: Quantiles::of(&self.latencies),
            lateness: Quantiles::of(&self.lateness),
        }
    }
}

impl Report {
    /// Of one tally for each site.
    pub fn new(names: &[String], tallies: &[Tally]) -> Self {
        let mut all = Tally::default();
        tallies.iter().for_each(|tally| all.add(tally));
        let length = all.last;
        let summaries = names.iter().zip(tallies);
        Self {
            length_nanos: length,
            targets: summaries.map(|(name, t)| t.summary(name.clone(), length)).collect(),
            all: all.summary("all".into(), length),
        }
    }
}

impl Counts {
    /// Requests that were sent and got no answer, or one that says that something went wrong.
    pub fn lost(&self) -> u64 {
        self.broken + self.timed_out + self.malformed + self.refused.values().sum::<u64>()
    }

    /// Whether there were requests, and no answer of any status.
    pub fn are_unanswered(&self) -> bool {
        self.intended > 0 && self.answered == 0 && self.refused.is_empty()
    }
}

impl Quantiles {
    /// Nothing where nothing was measured.
    fn of(times: &[Nanos]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        // The least time that so many of a thousand do not exceed.
        let at = |thousandths: usize| {
            sorted[(sorted.len() * thousandths).div_ceil(1_000).saturating_sub(1).min(last)]
        };
        Some(Self {
            p50_nanos: at(500),
            p90_nanos: at(900),
            p99_nanos: at(990),
            p999_nanos: at(999),
            max_nanos: sorted[last],
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<32} {:>9} {:>9} {:>7} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9}",
            "site",
            "intended",
            "answered",
            "lost",
            "not sent",
            "1/s",
            "p50 ms",
            "p99 ms",
            "max ms",
            "late p99"
        )?;
        let alone = self.targets.len() == 1;
        for summary in self.targets.iter().chain((!alone).then_some(&self.all)) {
            let counts = &summary.counts;
            let ms = |quantiles: Option<Quantiles>, which: fn(Quantiles) -> Nanos| match quantiles {
                Some(quantiles) => format!("{:.2}", which(quantiles).as_secs_f64() * 1e3),
                None => "-".into(),
            };
            writeln!(
                f,
                "{:<32} {:>9} {:>9} {:>7} {:>8} {:>10.1} {:>9} {:>9} {:>9} {:>9}",
                summary.target,
                counts.intended,
                counts.answered,
                counts.lost(),
                counts.not_sent + counts.not_connected,
                summary.per_second,
                ms(summary.latency, |all| all.p50_nanos),
                ms(summary.latency, |all| all.p99_nanos),
                ms(summary.latency, |all| all.max_nanos),
                ms(summary.lateness, |all| all.p99_nanos),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(result: Result<u16, Failure>, ended: u64) -> Outcome {
        let at = Nanos::from_millis;
        Outcome { target: 0, intended: at(10), sent: at(12), ended: at(ended), result }
    }

    fn of_one_site(tally: Tally) -> Report {
        Report::new(&["a".into()], &[tally])
    }

    #[test]
    fn every_outcome_is_counted_once_and_time_runs_from_the_intention() {
        let broken = || std::io::ErrorKind::BrokenPipe.into();
        let mut tally = Tally::default();
        for (result, ended) in [
            (Ok(200), 30),
            (Ok(503), 11),
            (Err(Failure::NotConnected(broken())), 11),
            (Err(Failure::Broken(broken())), 15),
            (Err(Failure::TimedOut), 60_010),
            (Err(Failure::Malformed("")), 20),
        ] {
            tally.intend(Nanos::from_millis(10));
            tally.count(&outcome(result, ended));
        }
        tally.intend(Nanos::from_millis(25));
        tally.not_sent();
        let report = of_one_site(tally);
        let counts = &report.all.counts;
        assert_eq!((counts.intended, counts.answered, counts.lost()), (7, 1, 4));
        assert_eq!((counts.not_sent, counts.not_connected), (1, 1));
        // One that is refused at once is not among them, nor does one that never came make the run longer.
        let Quantiles { p50_nanos, max_nanos, .. } = report.all.latency.unwrap();
        assert_eq!([p50_nanos, max_nanos], [20, 20].map(Nanos::from_millis));
        assert_eq!(report.all.lateness.unwrap().max_nanos, Nanos::from_millis(2));
        assert_eq!(report.length_nanos, Nanos::from_millis(30));
        assert_eq!(report.all.per_second, 1.0 / 0.03);
    }

    #[test]
    fn requests_without_any_answer_are_told_apart_from_those_that_were_refused() {
        let mut tally = Tally::default();
        assert!(!of_one_site(tally.clone()).all.counts.are_unanswered(), "there were none");
        for (result, is_answered) in [(Err(Failure::TimedOut), false), (Ok(503), true)] {
            tally.intend(Nanos::from_millis(10));
            tally.count(&outcome(result, 30));
            assert_eq!(!of_one_site(tally.clone()).all.counts.are_unanswered(), is_answered);
        }
    }

    // Goal: a site that stops answering does not look as quick as it was until then. Method: one answer in the first tenth.
    #[test]
    fn a_run_is_not_shorter_than_it_was_meant_to_be() {
        let mut tally = Tally::default();
        tally.intend(Nanos::from_millis(10));
        tally.count(&outcome(Ok(200), 100));
        tally.intend(Nanos::from_secs(1));
        tally.count(&outcome(Err(Failure::TimedOut), 61_000));
        let report = of_one_site(tally);
        assert_eq!((report.length_nanos, report.all.per_second), (Nanos::from_secs(1), 1.0));
    }

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let times: Vec<_> = (1..=1_000).rev().map(Nanos::new).collect();
        let quantiles = Quantiles::of(&times).unwrap();
        let expected = [500, 900, 990, 999, 1_000].map(Nanos::new);
        let Quantiles { p50_nanos, p90_nanos, p99_nanos, p999_nanos, max_nanos } = quantiles;
        assert_eq!([p50_nanos, p90_nanos, p99_nanos, p999_nanos, max_nanos], expected);
    }

    // Goal: what nobody measured is not told as quick. Method: a site that never answers.
    #[test]
    fn times_of_nothing_are_none() {
        let mut tally = Tally::default();
        tally.intend(Nanos::from_millis(10));
        tally.count(&outcome(Err(Failure::TimedOut), 60_010));
        let report = of_one_site(tally);
        assert_eq!((report.all.latency, report.all.lateness), (None, None));
        let row: Vec<_> = report.to_string().split_whitespace().map(str::to_owned).collect();
        assert!(row.ends_with(&["-"; 4].map(str::to_owned)), "{report}");
    }
}
