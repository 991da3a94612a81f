//! Schedules kept from user space, on real processes. Needs root; bounded to seconds.
#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_control::admission::Bounds;
use keeptime_control::schedule::Schedule;
use keeptime_linux::testing::{can, skip};
use keeptime_linux::user_level::{ScheduleError, Scheduler, give_back};
use keeptime_model::units::{CpuPpm, Nanos};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, Uid};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
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

    fn used(&self) -> f64 {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.pid())).unwrap();
        let time = clock_gettime(clock).unwrap();
        time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9
    }

    fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
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

/// One test at a time, if there is the privilege.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static PROCESSORS: Mutex<()> = Mutex::new(());
    if !Uid::effective().is_root() {
        skip(&["root".into()], "scheduling needs root");
        return None;
    }
    Some(PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The part of a processor that each used over `span`.
fn shares(busy: &[&Busy], span: Duration) -> Vec<f64> {
    let before: Vec<_> = busy.iter().map(|busy| busy.used()).collect();
    let start = Instant::now();
    std::thread::sleep(span);
    let seconds = start.elapsed().as_secs_f64();
    busy.iter().zip(before).map(|(busy, before)| (busy.used() - before) / seconds).collect()
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

/// Whether they have so much of a processor, once: slices that are kept from user space come late on a machine that
/// others use.
fn have(busy: &[&Busy], wanted: &[f64]) -> bool {
    (0..10).any(|_| {
        let used = shares(busy, Duration::from_secs(1));
        println!("asked {wanted:.2?}, got {used:.4?}");
        used.iter().zip(wanted).all(|(used, wanted)| (used - wanted).abs() < 0.04)
    })
}

// Goal: slices are had, and no more, beside ordinary load. Method: two loops with schedules among four
// ordinary ones; the tolerance leaves room for a machine that others use.
#[test]
fn processes_have_their_share_and_no_more() {
    if !can(&["speed"]) {
        return;
    }
    let Some(_alone) = alone() else { return };
    let _others: Vec<_> = (0..4).map(|_| Busy::start()).collect();
    let (one, two) = (Busy::start(), Busy::start());
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    scheduler.set(one.pid(), schedule(30, 50)).unwrap();
    scheduler.set(two.pid(), schedule(40, 100)).unwrap();
    assert!(have(&[&one, &two], &[0.3, 0.4]));
    scheduler.set(one.pid(), schedule(10, 50)).unwrap();
    assert!(have(&[&one], &[0.1]));
}

#[test]
fn what_is_released_is_ordinary_again() {
    let Some(_alone) = alone() else { return };
    let busy = Busy::start();
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    scheduler.set(busy.pid(), schedule(1, 1_000)).unwrap();
    assert!(have(&[&busy], &[0.01]));
    wait_until_held(&busy);
    scheduler.release(busy.pid()).unwrap();
    wait_until("it to go on", || busy.state() == 'R');
    // Dropped while it is held, too.
    scheduler.set(busy.pid(), schedule(1, 1_000)).unwrap();
    wait_until_held(&busy);
    drop(scheduler);
    wait_until("it to go on", || busy.state() == 'R');
}

#[test]
fn what_a_killed_scheduler_held_is_given_back() {
    let Some(_alone) = alone() else { return };
    let busy = Busy::start();
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    scheduler.set(busy.pid(), schedule(1, 1_000)).unwrap();
    wait_until_held(&busy);
    // As if it had been killed: it never gives back.
    std::mem::forget(scheduler);
    give_back(busy.pid()).unwrap();
    wait_until("it to go on", || busy.state() == 'R');
}

#[test]
fn what_has_ended_or_does_not_fit_is_told() {
    let Some(_alone) = alone() else { return };
    let (one, two) = (Busy::start(), Busy::start());
    let ended = Busy::start().pid();
    let scheduler = Scheduler::start(Bounds::user_level(1)).unwrap();
    assert_eq!(scheduler.set(ended, schedule(10, 50)), Err(ScheduleError::Ended { pid: ended }));
    scheduler.set(one.pid(), schedule(60, 50)).unwrap();
    let refused = scheduler.set(two.pid(), schedule(60, 50)).unwrap_err();
    assert!(matches!(refused, ScheduleError::Refused(_)), "{refused:?}");
    assert_ne!(two.state(), 'T', "it was never touched");
    // What one leaves by ending, the other can have.
    drop(one);
    wait_until("room", || scheduler.set(two.pid(), schedule(60, 50)).is_ok());
}
