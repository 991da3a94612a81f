//! (period, slice) kept from user space, by earliest deadline first, for what the kernel's own mechanisms
//! do not serve: processes with several threads or bound to processors, kernels without
//! `SCHED_DEADLINE`. In the manner of VSched (Lin and Dinda, SC 2005).
//!
//! Each process stays on one processor. There, of those that have a slice left in their period, the one
//! whose period ends first goes **first** (niceness -20: before everything ordinary); the others
//! **wait** at idle priority, so that what the first leaves while it sleeps is used; who has used up its
//! slice is **held** (SIGSTOP) until its next period. What nobody uses goes to ordinary processes.
//!
//! [`dispatch`] decides and is pure; [`Scheduler`] looks, decides and carries out. It needs root. If it is
//! killed, processes may stay held: [`give_back`] sets them free, and whoever starts again does that first.

pub mod dispatch;

mod hands;

use crate::clock;
use crate::syscall::SyscallError;
use dispatch::{Decision, Dispatcher};
use hands::Hands;
use keeptime_control::admission::{Bounds, Refusal};
use keeptime_control::schedule::Schedule;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

pub use hands::give_back;

/// Why a process has no schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// It does not fit beside the others, or cannot be kept at all.
    #[error("not admitted")]
    Refused(#[source] Refusal),
    /// It has ended.
    #[error("process {pid} has ended")]
    Ended {
        /// Which.
        pid: i32,
    },
    /// The kernel refused.
    #[error("while scheduling process {pid}")]
    Kernel {
        /// Which.
        pid: i32,
        /// What.
        #[source]
        source: SyscallError,
    },
    /// The scheduler has ended.
    #[error("the scheduler does not run")]
    Stopped,
}

/// A thread that keeps the schedules of processes until it is dropped; then they are ordinary ones again.
#[derive(Debug)]
pub struct Scheduler {
    /// Nothing once it is to end.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Command {
    Set { pid: i32, schedule: Schedule, answer: Sender<Result<(), ScheduleError>> },
    Release { pid: i32, answer: Sender<()> },
}

impl Scheduler {
    /// Starts with nobody to schedule. `bounds` says what it admits.
    ///
    /// # Errors
    /// If no thread can be made.
    pub fn start(bounds: Bounds) -> Result<Self, SyscallError> {
        let (commands, received) = channel();
        let name = "keeptime-edf".to_owned();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || run(bounds, &received))
            .map_err(SyscallError::of_io("clone", "the scheduler's thread"))?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    /// Gives a process a schedule, or changes the one that it has. In force when this returns.
    ///
    /// # Errors
    /// If it is not admitted, has ended, or may not be scheduled; what it had stays.
    pub fn set(&self, pid: i32, schedule: Schedule) -> Result<(), ScheduleError> {
        let (answer, answered) = channel();
        self.send(Command::Set { pid, schedule, answer })?;
        answered.recv().map_err(|_| ScheduleError::Stopped)?
    }

    /// Makes an ordinary process of one that has a schedule.
    ///
    /// # Errors
    /// If the scheduler has ended.
    pub fn release(&self, pid: i32) -> Result<(), ScheduleError> {
        let (answer, answered) = channel();
        self.send(Command::Release { pid, answer })?;
        answered.recv().map_err(|_| ScheduleError::Stopped)
    }

    fn send(&self, command: Command) -> Result<(), ScheduleError> {
        let commands = self.commands.as_ref().ok_or(ScheduleError::Stopped)?;
        commands.send(command).map_err(|_| ScheduleError::Stopped)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It gives back what it holds, panic or not.
            let _ = thread.join();
        }
    }
}

fn run(bounds: Bounds, commands: &Receiver<Command>) {
    // Without the privilege it goes on, less punctual.
    let _ = hands::hurry();
    let mut scheduling = Scheduling { dispatcher: Dispatcher::new(bounds), held: BTreeMap::new() };
    let mut wait = FOREVER;
    loop {
        match commands.recv_timeout(wait) {
            Ok(command) => scheduling.obey(command),
            Err(RecvTimeoutError::Timeout) => {}
            // Dropping the hands gives everything back.
            Err(RecvTimeoutError::Disconnected) => return,
        }
        wait = scheduling.step();
    }
}

/// The processes that are scheduled, and what is to be done with them.
struct Scheduling {
    dispatcher: Dispatcher,
    held: BTreeMap<i32, Hands>,
}

impl Scheduling {
    fn obey(&mut self, command: Command) {
        // Whoever asked may not wait for the answer any more.
        match command {
            Command::Set { pid, schedule, answer } => {
                let done = self.set(pid, schedule);
                self.step();
                let _ = answer.send(done);
            }
            Command::Release { pid, answer } => {
                self.dispatcher.remove(pid);
                self.held.remove(&pid);
                let _ = answer.send(());
            }
        }
    }

    fn set(&mut self, pid: i32, schedule: Schedule) -> Result<(), ScheduleError> {
        let kernel = |source| ScheduleError::Kernel { pid, source };
        let used = match self.held.get(&pid) {
            Some(hands) => hands.used().map_err(kernel)?,
            None => {
                let hands = Hands::on(pid).map_err(kernel)?.ok_or(ScheduleError::Ended { pid })?;
                let used = hands.used().map_err(kernel)?;
                self.held.insert(pid, hands);
                used
            }
        };
        let used = used.ok_or(ScheduleError::Ended { pid })?;
        let set = self.dispatcher.set(clock::now(), pid, schedule, used);
        if set.is_err() && !self.dispatcher.schedules(pid) {
            self.held.remove(&pid);
        }
        set.map_err(ScheduleError::Refused)
    }

    /// Puts everybody where they are to be; how long that is right.
    fn step(&mut self) -> Duration {
        let mut used = BTreeMap::new();
        for (pid, hands) in &self.held {
            if let Ok(Some(time)) = hands.used() {
                used.insert(*pid, time);
            }
        }
        for pid in
            self.held.keys().filter(|pid| !used.contains_key(pid)).copied().collect::<Vec<_>>()
        {
            self.dispatcher.remove(pid);
            self.held.remove(&pid);
        }
        let now = clock::now();
        let Decision { places, again } = self.dispatcher.decide(now, &used);
        // Those who give way go before those who take it.
        let mut order: Vec<_> = places.into_iter().collect();
        order.sort_by_key(|(_, (_, place))| std::cmp::Reverse(*place));
        for (pid, (processor, place)) in order {
            if let Some(hands) = self.held.get_mut(&pid) {
                // What cannot be placed has ended; the next look finds that.
                let _ = hands.put(processor, place);
            }
        }
        again
            .map_or(FOREVER, |again| Duration::from_nanos(again.saturating_sub(clock::now()).get()))
    }
}

/// Longer than anybody waits for the first command.
const FOREVER: Duration = Duration::from_secs(86_400);

/// The schedule of nobody is looked at more often than this: what a look costs, 50 times over.
pub(crate) const LOOK_LEAST: Nanos = Nanos::new(500_000);
