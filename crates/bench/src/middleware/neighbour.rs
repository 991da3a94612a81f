//! Another run of the same renderer that goes on while one is measured: what the cluster is full of when it is full.
//! Beside programs that only compute, frames are slower and less steady than beside frames.

use anyhow::{Result, bail, ensure};
use keeptime::commands::Session;
use keeptime::execute::{Run, execute, reserve};
use keeptime::interrupt;
use keeptime_model::application::Parameters;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::BitsPerSecond;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// It is run again and again, until this is dropped.
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
    /// Begins on all nodes, with so much reserved for each flow, and waits until it draws.
    ///
    /// # Errors
    /// If it cannot be had, or does not begin within a minute.
    pub fn begin(session: Session, parameters: Parameters, rate: BitsPerSecond) -> Result<Self> {
        let (draws, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let told = (Arc::clone(&draws), Arc::clone(&is_over));
        let runs = thread::spawn(move || go_on(&session, &parameters, rate, &told.0, &told.1));
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
    parameters: &Parameters,
    rate: BitsPerSecond,
    draws: &AtomicBool,
    is_over: &AtomicBool,
) -> Result<()> {
    let Session { cluster, mpi, application, .. } = session;
    let nodes: Vec<NodeIndex> = cluster.topology().node_indices().collect();
    let run = Run { application, parameters, nodes: &nodes, rate: Some(rate) };
    let stopped = || is_over.load(Ordering::Relaxed) || interrupt::stopped();
    while !stopped() {
        let hold = reserve(cluster, &run)?;
        let mut on_line = |line: &str| {
            if line.starts_with("frame") {
                draws.store(true, Ordering::Relaxed);
            }
        };
        let ended = execute(cluster, mpi, &run, &hold, &stopped, &mut on_line);
        if !stopped() {
            ended?;
        }
    }
    Ok(())
}
