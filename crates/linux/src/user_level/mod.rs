//! (period, slice) kept from user space, by earliest deadline first, for what the kernel's own mechanisms
//! do not serve: processes with several threads or bound to processors, kernels without
//! `SCHED_DEADLINE`. In the manner of VSched (Lin and Dinda, SC 2005).
//!
//! Each process stays on one processor. There, of those that have a slice left in their period, the one
//! whose period ends first goes **first** (niceness -20: before everything ordinary); the others
//! **wait** at idle priority, so that what the first leaves while it sleeps is used; who has used up its
//! slice is **held** (SIGSTOP) until its next period. What nobody uses goes to ordinary processes.
//!
//! [`dispatch`] decides and is pure; [`Scheduler`] looks, decides and carries out; [`jobs`] says whose processes
//! are scheduled. It needs root. If it is killed, processes stay held: a process beside it sees that and sets them free
//! ([`guard`]), and where that was killed as well, whoever starts again ([`jobs::give_back_all`]).
//!
//! Niceness counts among the processes of one control group. Where groups have the CPU controller, and several jobs
//! on one processor are scheduled so, they share it by the weights of their groups, not by whose period ends first: a
//! job then has its slice for sure if that is no more than an equal part of the processor.
//! So it is with sessions where the kernel groups processes by them (`kernel.sched_autogroup_enabled`, which most
//! distributions have set) and they are in no group with the CPU controller: beside three loops of other sessions on its
//! processor, a process with 40 % of it had 1 %. Nodes that keep shares from user space are to have that off; [`shortage`]
//! says so.
//!
//! Who stops a process while it has a slice left finds it stopped until it is continued; who does so while it is
//! held finds it going on in its next period. Who continues one that is held has it run when nobody else wants to, until
//! the next look holds it again; its slices pay for that. A shell with job control takes one that is held to be stopped.
//! Who is held when the last one of its session ends that could continue its process group is sent SIGHUP by the kernel, as
//! every stopped process is then (`setsid` keeps it from that).
//!
//! Who is scheduled no more is an ordinary process again, with the niceness and the processors that its first thread had.
//! Another class, and what other threads had of their own, are lost; so is all of it where a guard or the next agent sets
//! it free.

pub mod dispatch;
pub mod guard;
pub mod jobs;

mod hands;

use crate::clock;
use crate::syscall::SyscallError;
use dispatch::{Decision, Dispatcher};
use hands::{Before, Hands};
use keeptime_control::admission::{Bounds, Refusal};
use keeptime_control::schedule::Schedule;
use keeptime_model::capability::{Capabilities, Feature};
use keeptime_model::units::Nanos;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

pub use hands::give_back;
pub(crate) use hands::try_on;

/// Why processes have no schedules.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// They do not fit beside the others, or cannot be kept at all.
    #[error("not admitted")]
    Refused(#[source] Refusal),
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

/// What a group's processes are to be.
#[derive(Debug)]
struct Command {
    group: String,
    scheduled: Vec<(i32, Schedule)>,
    resting: Vec<i32>,
    answer: Sender<Result<(), ScheduleError>>,
}

/// What is admitted where this process runs: on as many processors as it may use.
///
/// # Errors
/// If the kernel does not say which these are.
pub fn bounds() -> Result<Bounds, SyscallError> {
    Ok(Bounds::user_level(hands::processors()?.len() as u32))
}

/// Why slices come short here beside ordinary load, on a node that can do what was `found`; nothing if they do not.
pub fn shortage(found: &Capabilities) -> Option<&'static str> {
    let text = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    shortage_where(found, text.is_ok_and(|text| text.trim() != "0"))
}

/// Sessions count among processes that are in no group with the CPU controller.
fn shortage_where(found: &Capabilities, sessions_are_grouped: bool) -> Option<&'static str> {
    let mut controllers = [Feature::CpuBandwidthV1, Feature::CpuBandwidthV2].into_iter();
    let in_groups = controllers.any(|feature| found.has(feature));
    (sessions_are_grouped && !in_groups).then_some(
        "the kernel divides processors among sessions first, so shares from user space are short beside load of others: \
        set kernel.sched_autogroup_enabled=0",
    )
}

impl Scheduler {
    /// Starts with nobody to schedule. `bounds` says what it admits, on the first of the processors that this
    /// process may use.
    ///
    /// # Errors
    /// If no thread can be made.
    pub fn start(bounds: Bounds) -> Result<Self, SyscallError> {
        let (commands, received) = channel();
        let processors = hands::processors()?;
        let name = "keeptime-edf".to_owned();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || run(bounds, processors, &received))
            .map_err(SyscallError::of_io("clone", "the scheduler's thread"))?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    /// Gives the processes of a group these schedules, or changes those that they have, and no others: all of it
    /// or nothing. In force when this returns. Of those that have ended nothing is done. `resting` are processes
    /// of the group without a schedule: what they were started as by one that has one is undone.
    ///
    /// # Errors
    /// If it is not admitted, or one cannot be looked at: what they had stays. If the kernel does not let one be put
    /// where it is to be: then none of the group has a schedule.
    pub fn share(
        &self,
        group: &str,
        scheduled: Vec<(i32, Schedule)>,
        resting: Vec<i32>,
    ) -> Result<(), ScheduleError> {
        let (answer, answered) = channel();
        let commands = self.commands.as_ref().ok_or(ScheduleError::Stopped)?;
        let command = Command { group: group.to_owned(), scheduled, resting, answer };
        commands.send(command).map_err(|_| ScheduleError::Stopped)?;
        answered.recv().map_err(|_| ScheduleError::Stopped)?
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

fn run(bounds: Bounds, processors: Vec<u32>, commands: &Receiver<Command>) {
    // Without the privilege it goes on, less punctual.
    let _ = hands::hurry();
    let dispatcher = Dispatcher::new(bounds);
    let (held, groups) = (BTreeMap::new(), BTreeMap::new());
    let mut scheduling = Scheduling { dispatcher, processors, held, groups };
    let mut wait = FOREVER;
    loop {
        match commands.recv_timeout(wait) {
            Ok(command) => scheduling.obey(command),
            Err(RecvTimeoutError::Timeout) => {}
            // Dropping the hands gives everything back.
            Err(RecvTimeoutError::Disconnected) => return,
        }
        (wait, _) = scheduling.step();
    }
}

/// The processes that are scheduled, and what is to be done with them.
struct Scheduling {
    dispatcher: Dispatcher,
    /// By the dispatcher's numbers.
    processors: Vec<u32>,
    held: BTreeMap<i32, Hands>,
    groups: BTreeMap<String, Members>,
}

/// The processes of a group that have schedules.
struct Members {
    pids: BTreeSet<i32>,
    /// What the first of them was before.
    before: Before,
}

impl Scheduling {
    fn obey(&mut self, command: Command) {
        let Command { group, scheduled, resting, answer } = command;
        let before = self.groups.get(&group).map(|members| members.before);
        let done = self.exchange(group.clone(), &scheduled);
        self.let_go();
        for (pid, _) in &scheduled {
            if let Some(hands) = self.held.get_mut(pid) {
                hands.look();
            }
        }
        let dispatcher = &self.dispatcher;
        let unscheduled = resting.iter().filter(|pid| !dispatcher.schedules(**pid));
        if let (Ok(()), Some(before)) = (&done, before) {
            // What cannot be now is tried again when this is asked for next.
            unscheduled.for_each(|pid| drop(before.give_to(*pid)));
        }
        let (_, refused) = self.step();
        let done = done.and_then(|()| self.check_placed(group, &refused));
        // Whoever asked may not wait for the answer any more.
        let _ = answer.send(done);
    }

    /// Who has no schedule any more is as it was, and so is who was only looked at.
    fn let_go(&mut self) {
        let dispatcher = &self.dispatcher;
        self.held.retain(|pid, _| dispatcher.schedules(*pid));
    }

    /// Half of a group with schedules would wait for the other half: where one of it could not be put where it is to
    /// be, none has one.
    fn check_placed(
        &mut self,
        group: String,
        refused: &BTreeMap<i32, SyscallError>,
    ) -> Result<(), ScheduleError> {
        let mut pids = self.groups.get(&group).into_iter().flat_map(|members| &members.pids);
        let first = pids.find_map(|pid| Some((*pid, refused.get(pid)?.clone())));
        let Some((pid, source)) = first else { return Ok(()) };
        self.exchange(group, &[])?;
        self.let_go();
        Err(ScheduleError::Kernel { pid, source })
    }

    fn exchange(
        &mut self,
        name: String,
        scheduled: &[(i32, Schedule)],
    ) -> Result<(), ScheduleError> {
        let former = self.groups.get(&name).map(|members| (members.pids.clone(), members.before));
        let (former, kin) = former.map_or((BTreeSet::new(), None), |(pids, kin)| (pids, Some(kin)));
        let mut wanted = BTreeMap::new();
        for (pid, schedule) in scheduled {
            if let Some(used) = self.take(*pid, kin)? {
                wanted.insert(*pid, (*schedule, used));
            }
        }
        let pids: BTreeSet<i32> = wanted.keys().copied().collect();
        let leaving: BTreeSet<i32> = former.difference(&pids).copied().collect();
        let exchanged = self.dispatcher.exchange(clock::now(), &leaving, &wanted);
        exchanged.map_err(ScheduleError::Refused)?;
        // A process is of one group, and a number may have been another's.
        self.groups.values_mut().for_each(|other| other.pids.retain(|pid| !pids.contains(pid)));
        let of_first = || self.held.get(pids.first()?).map(Hands::before);
        match kin.or_else(of_first).filter(|_| !pids.is_empty()) {
            Some(before) => self.groups.insert(name, Members { pids, before }),
            None => self.groups.remove(&name),
        };
        Ok(())
    }

    /// The CPU time that a process has used; nothing if it has ended.
    fn take(&mut self, pid: i32, kin: Option<Before>) -> Result<Option<Nanos>, ScheduleError> {
        let kernel = |source| ScheduleError::Kernel { pid, source };
        if self.held.get(&pid).is_some_and(|hands| !hands.is_alive()) {
            // Its number is another's now.
            self.dispatcher.remove(pid);
            self.held.remove(&pid);
        }
        let hands = match self.held.entry(pid) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match Hands::on(pid, kin).map_err(kernel)? {
                Some(hands) => entry.insert(hands),
                None => return Ok(None),
            },
        };
        hands.used().map_err(kernel)
    }

    /// Puts everybody where they are to be; how long that is right, and whom the kernel did not let be put there.
    fn step(&mut self) -> (Duration, BTreeMap<i32, SyscallError>) {
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
        let mut refused = BTreeMap::new();
        for (pid, (processor, place)) in order {
            let processor = self.processors.get(processor as usize).copied();
            if let (Some(hands), Some(processor)) = (self.held.get_mut(&pid), processor)
                && let Err(error) = hands.put(processor, place)
            {
                refused.insert(pid, error);
            }
        }
        let until = |again: Nanos| Duration::from_nanos(again.saturating_sub(clock::now()).get());
        (again.map_or(FOREVER, until), refused)
    }
}

/// Longer than anybody waits for the first command.
const FOREVER: Duration = Duration::from_secs(86_400);

/// The schedule of nobody is looked at more often than this: what a look costs, 50 times over.
pub(crate) const LOOK_LEAST: Nanos = Nanos::new(500_000);

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::capability::{Answer, Capability};
    use keeptime_model::units::CpuPpm;
    use nix::sched::CpuSet;
    use std::process::Command as Program;

    // Goal: what was agreed to is in force, or nobody of the group waits for who cannot have it. Method: a processor beyond
    // all that there can be.
    #[test]
    fn where_one_cannot_be_put_none_of_its_group_has_a_schedule() {
        let mut sleeper = Program::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id() as i32;
        let mut scheduling = Scheduling {
            dispatcher: Dispatcher::new(Bounds::user_level(1)),
            processors: vec![CpuSet::count() as u32],
            held: BTreeMap::new(),
            groups: BTreeMap::new(),
        };
        let (answer, answered) = channel();
        let half = Schedule::new(CpuPpm::from_percent(50), Nanos::from_millis(50));
        let (group, scheduled, resting) = ("job".to_owned(), vec![(pid, half)], Vec::new());
        scheduling.obey(Command { group, scheduled, resting, answer });
        let done = answered.recv().unwrap();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let is_told = matches!(done, Err(ScheduleError::Kernel { pid: which, .. }) if which == pid);
        assert!(is_told, "{done:?}");
        assert!(!scheduling.dispatcher.schedules(pid));
        assert!(scheduling.held.is_empty() && scheduling.groups.is_empty());
    }
    #[test]
    fn slices_are_short_where_sessions_are_grouped_and_jobs_are_not() {
        let with = |feature, answer| {
            Capabilities(vec![Capability { feature, answer, tried: String::new() }])
        };
        for feature in [Feature::CpuBandwidthV1, Feature::CpuBandwidthV2] {
            assert_eq!(shortage_where(&with(feature, Answer::Yes), true), None);
            assert!(shortage_where(&with(feature, Answer::No(String::new())), true).is_some());
        }
        assert_eq!(shortage_where(&Capabilities::default(), false), None);
    }
}
