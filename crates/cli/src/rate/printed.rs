//! Progress as another command prints it, which is run once a second beside the program.

use super::counted::{Count, Unit};
use anyhow::{Context, Result};
use keeptime_launch::process;
use keeptime_locks::lock;
use keeptime_model::units::Nanos;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs a command again and again until it is dropped.
#[derive(Debug)]
pub struct Printed {
    heard: Arc<Mutex<Heard>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What has come of it.
#[derive(Debug, Default)]
struct Heard {
    newest: Option<Count>,
    /// Why nothing came of it the last times.
    failure: Option<String>,
    failures: u32,
}

impl Printed {
    /// Begins to run `command` by `sh -c`; instants are of `clock`.
    pub fn start(command: &str, clock: Instant) -> Self {
        let words = ["sh", "-c", command].map(str::to_owned);
        let (heard, stopped) = (Arc::<Mutex<Heard>>::default(), Arc::<AtomicBool>::default());
        let (hears, is_over) = (Arc::clone(&heard), Arc::clone(&stopped));
        let thread = std::thread::spawn(move || {
            let is_over = || is_over.load(Ordering::Relaxed);
            while !is_over() {
                let began = Instant::now();
                let counted = counted(&words, &is_over);
                lock(&hears).hear(counted, clock.elapsed().into());
                std::thread::park_timeout(EVERY.saturating_sub(began.elapsed()));
            }
        });
        Self { heard, stopped, thread: Some(thread) }
    }

    /// What was printed last; nothing if nothing was yet.
    pub fn newest(&self) -> Option<Count> {
        lock(&self.heard).newest
    }

    /// Why nothing is known now: once, when it has failed for the third time, since what it looks at may not be there at first;
    /// and again after it has worked meanwhile.
    pub fn take_failure(&self) -> Option<String> {
        let mut heard = lock(&self.heard);
        if heard.failures < FAILURES_TOLD { None } else { heard.failure.take() }
    }
}

impl Heard {
    /// What one run has come to, which has ended `at` then: it may have looked at any moment until its end.
    fn hear(&mut self, counted: Result<u64>, at: Nanos) {
        match counted {
            Ok(work) => {
                let newest = Some(Count { work, at, unit: Unit::Told });
                *self = Self { newest, failure: None, failures: 0 };
            }
            Err(error) => {
                self.failures += 1;
                if self.failures <= FAILURES_TOLD {
                    self.failure = Some(format!("{error:#}"));
                }
            }
        }
    }
}

impl Drop for Printed {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Runs it once.
fn counted(words: &[String], stopped: &dyn Fn() -> bool) -> Result<u64> {
    let mut last = None;
    process::run(words, LIMIT, stopped, &mut |line| {
        if !line.trim().is_empty() {
            last = Some(line.to_owned());
        }
        process::Progress::Running
    })?;
    let line = last.context("it prints nothing")?;
    work(&line).with_context(|| format!("{line:?} does not begin with a whole number"))
}

/// The units of work that a line tells: its first word.
fn work(line: &str) -> Option<u64> {
    line.split_whitespace().next()?.parse().ok()
}

/// How often it is run, if it takes no longer.
const EVERY: Duration = Duration::from_secs(1);
const FAILURES_TOLD: u32 = 3;
/// One that takes longer says nothing about now.
const LIMIT: Nanos = Nanos::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn sh(command: &str) -> Result<u64> {
        counted(&["sh", "-c", command].map(str::to_owned), &|| false)
    }

    #[test]
    fn the_last_line_begins_with_what_is_done() {
        assert_eq!(sh("echo 3; echo 12 steps; echo").unwrap(), 12);
        assert_eq!(sh("echo; printf 18446744073709551615").unwrap(), u64::MAX);
        for (command, expected) in [
            ("true", "prints nothing"),
            ("echo step 7", "\"step 7\" does not begin with a whole number"),
            ("echo 7.5", "whole number"),
            ("echo -1", "whole number"),
            ("echo 7; exit 3", "failed"),
        ] {
            let error = format!("{:#}", sh(command).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    // Goal: what fails is told once, and again only after it has worked; what was printed last stays known.
    #[test]
    fn a_command_that_fails_is_told_of_once() {
        let printed = Printed { heard: Arc::default(), stopped: Arc::default(), thread: None };
        let hear = |counted, second| {
            lock(&printed.heard).hear(counted, Nanos::from_secs(second));
            (printed.newest().map(|count| (count.work, count.at)), printed.take_failure())
        };
        let failed = || Err(anyhow!("no such file"));
        let reason = || Some("no such file".to_owned());
        let mut known = None;
        for second in [0, 10] {
            assert_eq!(hear(failed(), second + 1), (known, None));
            assert_eq!(hear(failed(), second + 2), (known, None));
            assert_eq!(hear(failed(), second + 3), (known, reason()));
            assert_eq!(hear(failed(), second + 4), (known, None));
            known = Some((42, Nanos::from_secs(second + 5)));
            assert_eq!(hear(Ok(42), second + 5), (known, None));
        }
    }

    // Goal: it is asked again and again, and a run that ends does not wait for a command that hangs. Method: one that counts
    // its own runs and hangs the third time.
    #[test]
    fn it_is_run_every_second_until_the_run_ends() {
        let directory = tempfile::tempdir().unwrap();
        let runs = directory.path().join("runs").display().to_string();
        let command =
            format!("echo >> {runs}; n=$(wc -l < {runs}); [ $n = 3 ] && sleep 60; echo $n");
        let (clock, patience) = (Instant::now(), Duration::from_secs(60));
        let printed = Printed::start(&command, clock);
        let has_hung = || std::fs::read(&runs).is_ok_and(|lines| lines.len() == 3);
        while !has_hung() {
            assert!(clock.elapsed() < patience, "it was not run three times");
            std::thread::sleep(Duration::from_millis(20));
        }
        let count = printed.newest().unwrap();
        assert_eq!(count.work, 2);
        assert!(count.at >= EVERY.into() && count.at < clock.elapsed().into());
        let ended = Instant::now();
        drop(printed);
        assert!(ended.elapsed() < Duration::from_secs(8));
    }
}
