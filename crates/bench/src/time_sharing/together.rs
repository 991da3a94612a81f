//! Programs that run at the same time: each is started apart, and what is counted begins when all of them run.

use super::program::{Program, wanted};
use super::{By, Run, Stage, THRESHOLD, watched};
use anyhow::{Result, bail};
use keeptime::commands::rate::FullSpeedFrom;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Programs that are started apart go on together from here.
pub struct Gate {
    count: usize,
    ready: AtomicUsize,
    failed: AtomicBool,
}

impl Gate {
    /// Waits for all others; `wait` lets so many seconds pass, and fails if its own program has ended.
    ///
    /// # Errors
    /// Those of `wait`, or that another one has failed.
    pub fn pass(&self, wait: impl Fn(f64) -> Result<()>) -> Result<()> {
        self.ready.fetch_add(1, Ordering::SeqCst);
        self.until(self.count, wait)
    }

    /// The same until so many are here, without being one of them.
    ///
    /// # Errors
    /// As [`Self::pass`].
    pub fn until(&self, count: usize, wait: impl Fn(f64) -> Result<()>) -> Result<()> {
        while self.ready.load(Ordering::SeqCst) < count {
            if self.failed.load(Ordering::SeqCst) {
                bail!("another one has failed");
            }
            wait(0.1)?;
        }
        Ok(())
    }
}

/// Runs programs at once, each by `one`, which is told its number, from 0 on.
///
/// # Errors
/// The first of theirs.
pub fn at_once<P: Sync>(
    programs: &[P],
    one: impl Fn(usize, &P, &Gate) -> Result<Run> + Sync,
) -> Result<Vec<Run>> {
    let gate =
        &Gate { count: programs.len(), ready: AtomicUsize::new(0), failed: AtomicBool::new(false) };
    let one = &one;
    let run = move |(number, program)| {
        one(number, program, gate).inspect_err(|_| gate.failed.store(true, Ordering::SeqCst))
    };
    thread::scope(|scope| {
        let start = |program| scope.spawn(move || run(program));
        let running: Vec<_> = programs.iter().enumerate().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Run>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    })
}

/// The same, each held by one policy at its own target for so many seconds from when all of them run. Their full speeds
/// are known.
///
/// # Errors
/// As [`at_once`].
pub fn steered_at_once(
    figure: u32,
    by: By,
    programs: &[(Program, u32)],
    seconds: f64,
) -> Result<Vec<Run>> {
    let begin = Instant::now();
    at_once(programs, |_, (program, target), gate| {
        let mut stages = Vec::new();
        let how = (wanted(*target, THRESHOLD, by)?, FullSpeedFrom::Known);
        let trace = watched::steered(&program.session, program.nodes, how, begin, |run| {
            run.ready()?;
            gate.pass(|seconds| run.wait(seconds))?;
            stages.push(Stage::of(*target, run.span(seconds)?));
            Ok(())
        })?;
        let label = format!("{} at {target} %", program.label);
        Ok(Run { figure, label, by, threshold: THRESHOLD, stages, trace })
    })
}
