//! Schedules kept from user space, on real processes. Needs root; bounded to seconds.
#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_control::admission::Bounds;
use keeptime_control::schedule::{Schedule, utilisation};
use keeptime_linux::cgroup::{Group, Hierarchies, MARK};
use keeptime_linux::deadline;
use keeptime_linux::testing::{can, skip};
use keeptime_linux::user_level::guard;
use keeptime_linux::user_level::jobs::{JobSchedules, give_back_all};
use keeptime_linux::user_level::{ScheduleError, Scheduler, give_back};
use keeptime_locks::lock;
use keeptime_model::units::{CpuPpm, Nanos};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, Uid};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A process of a test, killed with it.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn affinity(&self) -> CpuSet {
        sched_getaffinity(Pid::from_raw(self.pid())).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    fn used(&self) -> f64 {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.pid())).unwrap();
        let time = clock_gettime(clock).unwrap();
        time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9
    }

    fn state(&self) -> char {
        self.field(3).chars().next().unwrap()
    }

    /// Of the line `stat`, counted as proc(5) does; none before the third.
    fn field(&self, number: usize) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let after_name = stat.rsplit_once(") ").unwrap().1;
        after_name.split(' ').nth(number - 3).unwrap().to_owned()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn schedule(percent: u32, millis: u64) -> Schedule {
    Schedule::new(CpuPpm::from_percent(percent), Nanos::from_millis(millis))
}

/// Gives a process a schedule, as the only one of its group.
fn set(scheduler: &Scheduler, busy: &Busy, schedule: Schedule) -> Result<(), ScheduleError> {
    scheduler.share(&busy.pid().to_string(), vec![(busy.pid(), schedule)], vec![])
}

/// A job's group inside of a node's, both of this test; nothing without privilege.
struct Job {
    node: Group,
    group: Group,
}

impl Job {
    fn new(name: &str) -> Option<Self> {
        let made = Hierarchies::discover_any().and_then(|hierarchies| {
            let name = format!("_test-edf-{name}-{}", std::process::id());
            let node = hierarchies.group(Path::new(MARK).join(name))?;
            let group = node.child("job")?;
            group.create()?;
            group.id()?;
            Ok(Self { node, group })
        });
        match made {
            Ok(job) => Some(job),
            Err(error) => {
                skip(&["cgroup".into()], &error.to_string());
                None
            }
        }
    }

    fn with(&self, busy: &[&Busy]) {
        busy.iter().for_each(|busy| self.group.join(busy.pid()).unwrap());
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.node.kill_all();
        let _ = self.node.remove();
    }
}

/// One test at a time, if there is the privilege.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static PROCESSORS: Mutex<()> = Mutex::new(());
    if !Uid::effective().is_root() {
        skip(&["root".into()], "scheduling needs root");
        return None;
    }
    Some(lock(&PROCESSORS))
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// It is, but for its slice at the beginning of each period.
fn wait_until_held(busy: &Busy) {
    wait_until("the end of its slice", || busy.state() == 'T');
}

/// Whether they have what their schedules give them, once: slices that are kept from user space come late on a machine that
/// others use. They never have more.
fn have(scheduled: &[(&Busy, Schedule)]) -> bool {
    let period = scheduled.iter().map(|(_, schedule)| schedule.period().get()).max().unwrap();
    let period = Duration::from_nanos(period);
    // What they had before ends with its period.
    std::thread::sleep(period);
    (0..10).any(|_| {
        let used = || -> Vec<_> { scheduled.iter().map(|(busy, _)| busy.used()).collect() };
        let (start, before) = (Instant::now(), used());
        std::thread::sleep((4 * period).max(Duration::from_secs(1)));
        let (seconds, now) = (start.elapsed().as_secs_f64(), used());
        let mut all_have = true;
        for ((_, schedule), (now, before)) in scheduled.iter().zip(now.iter().zip(before)) {
            let (grown, share) = (now - before, utilisation(schedule.cpu()) * seconds);
            // Windows do not begin with periods: there may be a slice more in one.
            let most = share + schedule.slice().as_secs_f64();
            println!("{grown:.4} s of {share:.4} and {most:.4} at the most");
            assert!(grown <= (1.0 + TOLERANCE) * most, "{grown} s of {share} in {seconds} s");
            all_have &= grown >= (1.0 - TOLERANCE) * share;
        }
        all_have
    })
}

/// What comes late, as a part of what is to come.
const TOLERANCE: f64 = 0.1;

/// This session goes before all others as long as this lives. Where the kernel groups processes by session
/// (`kernel.sched_autogroup_enabled`), who compiles in another one has as much of a processor as all of this one.
struct Preferred {
    before: Option<String>,
}

const AUTOGROUP: &str = "/proc/self/autogroup";

impl Preferred {
    fn start() -> Self {
        let text = fs::read_to_string(AUTOGROUP).unwrap_or_default();
        let before = text.split_whitespace().last().map(str::to_owned);
        let set = before.as_ref().map(|_| fs::write(AUTOGROUP, "-20"));
        Self { before: before.filter(|_| set.is_some_and(|set| set.is_ok())) }
    }
}

impl Drop for Preferred {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(AUTOGROUP, before);
        }
    }
}

// Goal: slices are had, and no more, beside ordinary load. Method: two loops with schedules among four
// ordinary ones; the tolerance leaves room for a machine that others use.
#[test]
fn processes_have_their_share_and_no_more() {
    if !can(&["speed"]) {
        return;
    }
    let Some(_alone) = alone() else { return };
    let _preferred = Preferred::start();
    let _others: Vec<_> = (0..4).map(|_| Busy::start()).collect();
    let (one, two) = (Busy::start(), Busy::start());
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    let scheduled = [(&one, schedule(30, 50)), (&two, schedule(40, 100))];
    for (busy, schedule) in scheduled {
        set(&scheduler, busy, schedule).unwrap();
    }
    assert!(have(&scheduled));
    set(&scheduler, &one, schedule(10, 50)).unwrap();
    assert!(have(&[(&one, schedule(10, 50))]));
}

#[test]
fn what_is_released_is_ordinary_again() {
    let Some(_alone) = alone() else { return };
    let busy = Busy::start();
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    set(&scheduler, &busy, schedule(1, 1_000)).unwrap();
    assert!(have(&[(&busy, schedule(1, 1_000))]));
    wait_until_held(&busy);
    scheduler.share(&busy.pid().to_string(), vec![], vec![]).unwrap();
    wait_until("it to go on", || busy.state() == 'R');
    // Dropped while it is held, too.
    set(&scheduler, &busy, schedule(1, 1_000)).unwrap();
    wait_until_held(&busy);
    drop(scheduler);
    wait_until("it to go on", || busy.state() == 'R');
}

#[test]
fn what_a_killed_scheduler_held_is_given_back() {
    let Some(_alone) = alone() else { return };
    let busy = Busy::start();
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    set(&scheduler, &busy, schedule(1, 1_000)).unwrap();
    wait_until_held(&busy);
    // As if it had been killed: it never gives back.
    std::mem::forget(scheduler);
    give_back(busy.pid()).unwrap();
    wait_until("it to go on", || busy.state() == 'R');
}

#[test]
fn what_has_ended_takes_no_room_and_what_does_not_fit_is_told() {
    let Some(_alone) = alone() else { return };
    let (one, two) = (Busy::start(), Busy::start());
    let ended = Busy::start().pid();
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    scheduler.share("ended", vec![(ended, schedule(90, 50))], vec![]).unwrap();
    set(&scheduler, &one, schedule(60, 50)).unwrap();
    let refused = set(&scheduler, &two, schedule(60, 50)).unwrap_err();
    assert!(matches!(refused, ScheduleError::Refused(_)), "{refused:?}");
    assert_ne!(two.state(), 'T', "it was never touched");
    // What one leaves by ending, the other can have.
    drop(one);
    wait_until("room", || set(&scheduler, &two, schedule(60, 50)).is_ok());
}

// Goal: all processes of a job have its share together, whoever of them is there. Method: one loop, then a second one,
// then the first alone again; the times are long, so that what is asserted is not what a busy machine can change.
#[test]
fn the_processes_of_a_job_share_in_equal_parts() {
    if !can(&["cgroup2", "speed"]) {
        return;
    }
    let Some(_alone) = alone() else { return };
    let Some(job) = Job::new("share") else { return };
    let (one, two) = (Busy::start(), Busy::start());
    let before = one.affinity();
    let mut schedules = JobSchedules::new(Bounds::user_level(1));
    let share = |schedules: &mut JobSchedules| {
        let shared = schedules.share(&job.group, CpuPpm::from_percent(40), Nanos::from_millis(50));
        shared.unwrap().unwrap()
    };
    assert_eq!(share(&mut schedules), None);
    job.with(&[&one]);
    assert_eq!(share(&mut schedules), Some(schedule(40, 50)));
    assert!(have(&[(&one, schedule(40, 50))]));
    job.with(&[&two]);
    assert_eq!(share(&mut schedules), Some(schedule(20, 50)));
    assert!(have(&[&one, &two].map(|busy| (busy, schedule(20, 50)))));
    assert!(schedules.schedules(&job.group, &[one.pid(), two.pid()].into()));
    drop(two);
    wait_until("one alone", || job.group.pids().unwrap() == [one.pid()]);
    assert_eq!(share(&mut schedules), Some(schedule(40, 50)));
    // Whoever chooses processors for itself is put back at the next look.
    let placed = one.affinity();
    sched_setaffinity(Pid::from_raw(one.pid()), &before).unwrap();
    assert_eq!(share(&mut schedules), Some(schedule(40, 50)));
    assert!(placed != before && one.affinity() == placed);
    schedules.release(&job.group).unwrap();
    wait_until("it to go on", || one.state() == 'R');
    assert_eq!(one.affinity(), before);
}

// Who has a deadline of the kernel's gives it up, and where that is not there the others do as well.
#[test]
fn who_had_a_deadline_has_a_schedule_from_user_space_instead() {
    let Some(_alone) = alone() else { return };
    let Some(job) = Job::new("deadline") else { return };
    let busy = Busy::start();
    job.with(&[&busy]);
    let (cpu, period) = (CpuPpm::from_percent(1), Nanos::from_secs(1));
    match deadline::enforce(cpu, period, &[busy.pid()]) {
        Ok(Ok(carriers)) => assert_eq!(carriers, [busy.pid()]),
        other => return skip(&["deadline".into()], &format!("{other:?}")),
    }
    let mut schedules = JobSchedules::new(Bounds::user_level(1));
    schedules.share(&job.group, cpu, period).unwrap().unwrap();
    assert_eq!(deadline::read(busy.pid()).unwrap(), None);
    wait_until_held(&busy);
}

// Goal: whatever an agent that was killed held goes on as soon as the next one looks, also where that wants nothing of
// it, and nobody goes on whom somebody else has stopped. Method: a scheduler that never gives back, as if killed; a
// process that is stopped beside.
#[test]
fn the_next_agent_sets_free_what_was_held_and_nobody_else() {
    let Some(_alone) = alone() else { return };
    let Some(job) = Job::new("killed") else { return };
    let Some(other) = Job::new("stopped") else { return };
    let (held, stopped) = (Busy::start(), Busy::start());
    let before = held.affinity();
    job.with(&[&held]);
    other.with(&[&stopped]);
    stopped.signal(Signal::SIGSTOP);
    wait_until_held(&stopped);
    let mut schedules = JobSchedules::new(Bounds::user_level(1));
    // A slice of a second in a hundred: it has used that up, and is not let go on before the test has ended.
    let (cpu, period) = (CpuPpm::from_percent(1), Nanos::from_secs(100));
    schedules.share(&job.group, cpu, period).unwrap().unwrap();
    wait_until_held(&held);
    std::mem::forget(schedules);
    give_back_all(&job.node).unwrap();
    give_back_all(&other.node).unwrap();
    wait_until("it to go on", || held.state() == 'R');
    assert_eq!((held.affinity(), stopped.state()), (before, 'T'));
}

// Goal: who is held cannot have others' time by having itself continued. Method: one that is continued has idle priority,
// and is held again by a look; what it used meanwhile takes it dozens of periods to pay back.
#[test]
fn who_is_continued_while_it_is_held_is_held_again() {
    let Some(_alone) = alone() else { return };
    let busy = Busy::start();
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    set(&scheduler, &busy, schedule(1, 1_000)).unwrap();
    for _ in 0..3 {
        wait_until_held(&busy);
        assert_eq!(busy.field(POLICY), libc::SCHED_IDLE.to_string());
        busy.signal(Signal::SIGCONT);
        wait_until_held(&busy);
    }
    drop(scheduler);
    wait_until("it to go on", || busy.state() == 'R');
    assert_eq!(busy.field(POLICY), libc::SCHED_OTHER.to_string());
}

// Goal: what was held goes on when its agent has ended and no other comes; what somebody else has stopped does not. Method:
// the guard's part is played here, for an agent that is the other end of a connection.
#[test]
fn a_guard_sets_free_what_was_held_when_its_agent_ends() {
    let Some(_alone) = alone() else { return };
    let Some(job) = Job::new("guarded") else { return };
    let Some(other) = Job::new("stopped-beside") else { return };
    let (held, stopped) = (Busy::start(), Busy::start());
    let before = held.affinity();
    job.with(&[&held]);
    other.with(&[&stopped]);
    let mut schedules = JobSchedules::new(Bounds::user_level(1));
    let period = Nanos::from_secs(100);
    schedules.share(&job.group, CpuPpm::from_percent(1), period).unwrap().unwrap();
    schedules.share(&other.group, CpuPpm::from_percent(90), period).unwrap().unwrap();
    wait_until_held(&held);
    // It has a slice left: that is not the scheduler's doing.
    stopped.signal(Signal::SIGSTOP);
    wait_until_held(&stopped);
    std::mem::forget(schedules);
    give_back_all(&other.node).unwrap();
    assert_eq!(stopped.state(), 'T');

    let (mut agent, watched) = UnixStream::pair().unwrap();
    let node = job.node.path().to_owned();
    let (told, tell) = (watched.try_clone().unwrap(), watched);
    let waiting = std::thread::spawn(move || guard::serve(&node, told, tell));
    agent.read_exact(&mut [0]).unwrap();
    assert_eq!(held.state(), 'T');
    drop(agent);
    waiting.join().unwrap().unwrap();
    wait_until("it to go on", || held.state() == 'R');
    assert_eq!(held.affinity(), before);
}

// Goal: what is noted of a job, for whoever comes next, is who is scheduled, however many others come and are refused.
// Method: a job that fills the processor, and one beside it whose processes change.
#[test]
fn who_is_refused_is_not_noted() {
    let Some(_alone) = alone() else { return };
    let Some(first) = Job::new("noted") else { return };
    let Some(other) = Job::new("refused") else { return };
    let (one, two) = (Busy::start(), Busy::start());
    first.with(&[&one]);
    other.with(&[&two]);
    let mut schedules = JobSchedules::new(Bounds::user_level(1));
    let mut share = |job: &Job, percent: u32| {
        let cpu = CpuPpm::from_percent(percent);
        let shared = schedules.share(&job.group, cpu, Nanos::from_millis(50)).unwrap();
        let is_noted =
            |job: &Job, busy: &Busy| schedules.schedules(&job.group, &BTreeSet::from([busy.pid()]));
        let are_noted = [is_noted(&first, &one), is_noted(&other, &two)];
        (shared.is_ok(), are_noted)
    };
    assert_eq!(share(&first, 60), (true, [true, false]));
    assert_eq!(share(&other, 50), (false, [true, false]));
    assert_eq!(share(&other, 30), (true, [true, true]));
    // What it has it keeps where more is refused.
    assert_eq!(share(&other, 50), (false, [true, true]));
}

// What somebody stops while it has a slice left stays stopped, through as many periods as it takes, and goes on when it
// is told to, with its schedule.
#[test]
fn who_was_stopped_by_somebody_else_stays_stopped() {
    let Some(_alone) = alone() else { return };
    let (busy, beside) = (Busy::start(), Busy::start());
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    busy.signal(Signal::SIGSTOP);
    wait_until_held(&busy);
    set(&scheduler, &busy, schedule(50, 20)).unwrap();
    // One whose periods are others makes it wait and come first again and again.
    set(&scheduler, &beside, schedule(20, 30)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(busy.state(), 'T');
    drop(scheduler);
    assert_eq!(busy.state(), 'T', "it was not the scheduler's to continue");
    busy.signal(Signal::SIGCONT);
    wait_until("it to go on", || busy.state() == 'R');
}

/// The field of the line `stat` with the class.
const POLICY: usize = 41;
