//! Runs of the same renderer, one after the other, while one is measured: what the cluster is full of when it is full.
//! Beside programs that only compute, frames are slower and less steady than beside frames; beside one run that goes on
//! all the time, and has no more than its reservation, they are faster and steadier than beside those that come and go
//! and use what is spare.

use anyhow::{Result, bail, ensure};
use keeptime::commands::Session;
use keeptime::execute::{Execution, Run, resources};
use keeptime::hold::Hold;
use keeptime::interrupt;
use keeptime_launch::process::Said;
use keeptime_model::application::Parameters;
use keeptime_model::reservation::{Ask, Request};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::BitsPerSecond;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// They come and go until this is dropped.
#[derive(Debug)]
pub struct Neighbour {
    /// Whether it has drawn something.
    draws: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    runs: Option<JoinHandle<Result<()>>>,
}

/// Launching takes some seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Neighbour {
    /// Begins on all nodes, with these parameters in turns and so much reserved for each flow, and waits until it
    /// draws.
    ///
    /// # Errors
    /// If it cannot be had, or does not begin within a minute.
    pub fn begin(session: Session, all: Vec<Parameters>, rate: BitsPerSecond) -> Result<Self> {
        let (draws, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let told = (Arc::clone(&draws), Arc::clone(&is_over));
        let runs = thread::spawn(move || go_on(&session, &all, rate, &told.0, &told.1));
        let neighbour = Self { draws, is_over, runs: Some(runs) };
        neighbour.wait()?;
        Ok(neighbour)
    }

    fn wait(&self) -> Result<()> {
        let begin = Instant::now();
        while !self.draws.load(Ordering::Relaxed) {
            ensure!(begin.elapsed() < PATIENCE, "the neighbour does not begin to draw");
            ensure!(!interrupt::stopped(), "interrupted");
            ensure!(self.runs.as_ref().is_some_and(|runs| !runs.is_finished()), "it has ended");
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Ends it.
    ///
    /// # Errors
    /// If it has ended before: what was measured since had nothing beside it.
    pub fn end(mut self) -> Result<()> {
        match self.join() {
            Some(Ok(ended)) => ended,
            _ => bail!("the neighbour panicked"),
        }
    }

    fn join(&mut self) -> Option<thread::Result<Result<()>>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.runs.take().map(JoinHandle::join)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // What was to be said was said by `end`.
        let _ = self.join();
    }
}

fn go_on(
    session: &Session,
    all: &[Parameters],
    rate: BitsPerSecond,
    draws: &AtomicBool,
    is_over: &AtomicBool,
) -> Result<()> {
    let Session { cluster, mpi, application, .. } = session;
    let nodes: Vec<NodeIndex> = cluster.topology().node_indices().collect();
    let stopped = || is_over.load(Ordering::Relaxed) || interrupt::stopped();
    for parameters in all.iter().cycle() {
        if stopped() {
            break;
        }
        let run = Run { application, parameters, nodes: &nodes, rate: Some(rate) };
        let ask = Ask::Resources(resources(cluster, &run));
        let asked = Request { spare: true, ..Request::new(ask) };
        let hold = Hold::take(cluster, asked, application.timeout())?;
        let mut on_said = |said: Said<'_>| {
            if matches!(said, Said::Out(line) if line.starts_with("frame")) {
                draws.store(true, Ordering::Relaxed);
            }
        };
        let execution = Execution { stopped: &stopped, ..Execution::new(cluster, mpi, run) };
        let ended = execution.under(&hold, &mut on_said);
        if !stopped() {
            ended?;
        }
    }
    Ok(())
}
