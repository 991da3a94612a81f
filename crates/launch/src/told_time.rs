//! The execution time as an application tells it.

use keeptime_model::application::TimeSource;
use keeptime_model::units::Nanos;

/// The time of a run, read as its lines pass: who keeps the last lines alone may lose it.
#[derive(Debug)]
pub struct Told<'a> {
    source: &'a TimeSource,
    last: Option<Nanos>,
}

impl<'a> Told<'a> {
    /// Before it has printed anything.
    pub fn nothing(source: &'a TimeSource) -> Self {
        Self { source, last: None }
    }

    /// Whether a line tells it: the last one counts.
    pub fn see(&mut self, line: &str) -> bool {
        let told = match self.source {
            TimeSource::Stdout(key) => time_in_line(key, line),
            // What takes the time of the whole run is not told by any line.
            _ => None,
        };
        self.last = told.or(self.last);
        told.is_some()
    }

    /// That of a run which took `wall`; nothing if it should have been told and was not.
    pub fn time(&self, wall: Nanos) -> Option<Nanos> {
        match self.source {
            TimeSource::Stdout(_) => self.last,
            _ => Some(wall),
        }
    }
}

/// The seconds of a line `KEY SECONDS`.
fn time_in_line(key: &str, line: &str) -> Option<Nanos> {
    let mut words = line.split_whitespace();
    let seconds = (words.next() == Some(key)).then(|| words.next())??;
    let nanos = Nanos::from_secs_f64(seconds.parse().ok()?)?;
    (nanos > Nanos::new(0) && words.next().is_none()).then_some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Progress, run};
    use proptest::prelude::*;

    const WALL: Nanos = Nanos::from_secs(9);

    fn seen(source: &TimeSource, lines: &[&str]) -> (Vec<bool>, Option<Nanos>) {
        let mut told = Told::nothing(source);
        let telling = lines.iter().map(|line| told.see(line)).collect();
        (telling, told.time(WALL))
    }

    #[test]
    fn the_last_line_with_the_key_counts() {
        let source = TimeSource::Stdout("time".into());
        let lines =
            ["frame 0 0.1", "time 0.25", "time 0.5", "time nan", "time -1", "time 1 2", "timed 7"];
        let (telling, time) = seen(&source, &lines);
        assert_eq!(telling, [false, true, true, false, false, false, false]);
        assert_eq!(time, Some(Nanos::from_millis(500)));
        assert_eq!(seen(&source, &["frame 0 0.1"]).1, None);
        assert_eq!(seen(&TimeSource::Wall, &["time 1"]), (vec![false], Some(WALL)));
    }

    // Goal: a time counts however much is printed after it. Method: a program that prints more lines than are kept.
    #[test]
    fn a_time_is_not_lost_behind_what_is_printed_after_it() {
        let command = ["sh", "-c", "echo time 5.25; seq 5000"].map(String::from);
        let source = TimeSource::Stdout("time".into());
        let mut told = Told::nothing(&source);
        let outcome = run(&command, Nanos::from_secs(60), &|| false, &mut |line| {
            told.see(line);
            Progress::Running
        });
        let outcome = outcome.unwrap();
        assert!(!outcome.stdout.iter().any(|line| line.starts_with("time")));
        assert_eq!(told.time(outcome.wall), Some(Nanos::from_millis(5_250)));
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_passed_over(line in "\\PC{0,60}") {
            Told::nothing(&TimeSource::Stdout("time".into())).see(&line);
        }
    }
}
