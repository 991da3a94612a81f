//! Whether deadlines serve a job: they do where it computes in processes that are there from one look to the next. What
//! ends before it is found, or has started others, carries none: it has the launchers' share, while the rest of what the job
//! has lies idle. So do threads that are started between two looks, and a process that has had one is taken for one that will
//! start another. Pure.

use crate::shares::launchers_share;
use keeptime_linux::process::Identity;
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::BTreeMap;
use std::fmt;

/// In what a job computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Computing {
    /// In processes that carry its deadlines, or would, from one look to the next.
    InCarriers,
    /// In a part that counts, in others.
    InOthers,
    /// In threads that come and go, or did not long ago.
    InThreads(Threaded),
}

/// A process that would carry deadlines, and has several threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threaded {
    /// Which.
    pub pid: i32,
    /// How many.
    pub threads: u32,
}

impl fmt::Display for Threaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, threads } = self;
        write!(
            f,
            "process {pid} has {threads} threads, or had not long ago: each would need its own part"
        )
    }
}

/// A job at one moment.
#[derive(Debug, Clone)]
pub struct Look {
    /// When, by a clock that nobody sets.
    pub at: Nanos,
    /// CPU time that it has used.
    pub used: Nanos,
    /// Of that, what those have used that can carry deadlines.
    pub carriers: BTreeMap<Identity, Nanos>,
    /// The first of them that has several threads, if any has.
    pub threaded: Option<Threaded>,
}

/// What came of the looks at a job.
#[derive(Debug)]
pub struct Turnover {
    computing: Computing,
    before: Option<Look>,
    seen: Seen,
    /// For how long it has to compute in carriers before it is taken for a job that does.
    patience: Nanos,
}

/// CPU time of a job over some looks.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    span: Nanos,
    used: Nanos,
    by_carriers: Nanos,
}

impl Turnover {
    /// Of a job that was last known to compute so.
    pub fn new(computing: Computing) -> Self {
        Self { computing, before: None, seen: Seen::default(), patience: PATIENCE_MIN }
    }

    /// In what it was seen to compute.
    pub fn computing(&self) -> Computing {
        self.computing
    }

    /// In what a job with this share computes, as far as the looks up to this one tell.
    pub fn look(&mut self, share: CpuPpm, look: Look) -> Computing {
        match &self.before {
            Some(before) if look.at.saturating_sub(before.at) <= GAP_MAX => {
                self.seen.add(before, &look);
            }
            // Nobody was found meanwhile, however long they were there.
            _ => self.seen = Seen::default(),
        }
        let threaded = look.threaded;
        self.before = Some(look);
        let span = match self.computing {
            Computing::InCarriers => HASTE,
            Computing::InOthers => self.patience,
            Computing::InThreads(_) => Nanos::new(self.patience.get() / THREADS_PART),
        };
        match threaded {
            Some(threaded) => self.meet(threaded),
            None if self.seen.span >= span => self.judge(share),
            None => {}
        }
        self.computing
    }

    /// No time counts in which there were threads: it is waited for their end.
    fn meet(&mut self, threaded: Threaded) {
        self.seen = Seen::default();
        match self.computing {
            // How many they are changes all the time, and is told once.
            Computing::InThreads(Threaded { pid, .. }) if pid == threaded.pid => {}
            _ => self.computing = Computing::InThreads(threaded),
        }
    }

    fn judge(&mut self, share: CpuPpm) {
        let after = std::mem::take(&mut self.seen).computing(self.computing, share);
        if after == Computing::InCarriers && self.computing != after {
            // One that goes to and fro is left alone for longer and longer.
            self.patience = Nanos::new(2 * self.patience.get()).min(PATIENCE_MAX);
        }
        self.computing = after;
    }
}

impl Seen {
    fn add(&mut self, before: &Look, now: &Look) {
        let sum = |sum: Nanos, more: Nanos| sum.saturating_add(more);
        let since = |(process, used): (&Identity, &Nanos)| {
            Some(used.saturating_sub(*before.carriers.get(process)?))
        };
        self.span = sum(self.span, now.at.saturating_sub(before.at));
        self.used = sum(self.used, now.used.saturating_sub(before.used));
        self.by_carriers = now.carriers.iter().filter_map(since).fold(self.by_carriers, sum);
    }

    /// In what the job computes, of which that was known before. What it takes to be taken for another one lies so far
    /// apart that what is near one of the bounds does not go to and fro.
    fn computing(self, before: Computing, share: CpuPpm) -> Computing {
        let others = self.used.saturating_sub(self.by_carriers).get();
        // Who uses less than half of what launchers have is not kept waiting by that.
        let counts = launchers_share(share).time_in_floor(self.span).get() / 2;
        let used = self.used.get();
        let is_in_others = match before {
            Computing::InOthers => used < counts || others > used / OTHERS_PART_MIN,
            _ => others >= counts.max(used / OTHERS_PART_MAX),
        };
        if is_in_others { Computing::InOthers } else { Computing::InCarriers }
    }
}

/// How long a job is watched that is taken to compute in carriers: a program that starts takes no longer as a rule.
const HASTE: Nanos = Nanos::from_secs(2);
/// And one that is not, at first: what was started by a script may end soon.
const PATIENCE_MIN: Nanos = Nanos::from_secs(10);
/// A job that goes to and fro lacks a part of its share for [`HASTE`], of which so long is a hundredth part.
const PATIENCE_MAX: Nanos = Nanos::from_secs(300);
/// Threads are met at a look, in a fraction of [`HASTE`], so that going to and fro costs less by as much; and a launcher may have
/// had them before it started those that compute.
const THREADS_PART: u64 = 5;
/// Looks that are farther apart tell nothing. They are a quarter of a second apart where the agent has time.
const GAP_MAX: Nanos = Nanos::from_secs(2);
/// Where others use a quarter, a job whose processes wait for one another has three tenths of its share at the most.
const OTHERS_PART_MAX: u64 = 4;
/// Others have the launchers' share with deadlines, too: a tenth of what carriers have.
const OTHERS_PART_MIN: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARE: CpuPpm = CpuPpm::from_percent(30);
    const TICK: u64 = 250;
    const RANK: Identity = Identity { pid: 100, start: 1 };

    /// A job whose CPU time is told in milliseconds, and what it is taken for.
    struct Job {
        turnover: Turnover,
        look: Look,
        /// Numbers of processes that were there at one look alone.
        passed: i32,
    }

    impl Job {
        fn new() -> Self {
            Self::that(Computing::InCarriers)
        }

        fn that(computing: Computing) -> Self {
            let carriers = BTreeMap::from([(RANK, Nanos::default())]);
            let (at, used) = (Nanos::from_secs(9), Nanos::default());
            let look = Look { at, used, carriers, threaded: None };
            let mut turnover = Turnover::new(computing);
            turnover.look(SHARE, look.clone());
            Self { turnover, look, passed: 0 }
        }

        /// After so many milliseconds, of which the one carrier that stays has computed for some, and others for more. One of
        /// these may carry a deadline just now.
        fn after(&mut self, millis: u64, by_carrier: u64, by_others: u64) -> Computing {
            let add = |nanos: &mut Nanos, millis| {
                *nanos = nanos.saturating_add(Nanos::from_millis(millis))
            };
            add(&mut self.look.at, millis);
            add(&mut self.look.used, by_carrier + by_others);
            self.look.carriers.retain(|process, _| *process == RANK);
            self.look.carriers.values_mut().for_each(|used| add(used, by_carrier));
            self.passed += 1;
            let passing = Identity { pid: RANK.pid + self.passed, start: 2 };
            self.look.carriers.insert(passing, Nanos::from_millis(by_others));
            self.turnover.look(SHARE, self.look.clone())
        }

        /// As much later, where all was computed by threads, of which so many are there.
        fn after_threads(&mut self, millis: u64, threads: u32) -> Computing {
            self.look.threaded = Some(Threaded { pid: RANK.pid, threads });
            let computing = self.after(millis, millis / 3, 0);
            self.look.threaded = None;
            computing
        }

        /// After how many seconds it is taken for another one; nothing if not within twenty minutes.
        fn turns(&mut self, by_carrier: u64, by_others: u64) -> Option<u64> {
            let before = self.turnover.computing;
            let looks = 1_200 * 1_000 / TICK;
            let turned = |_: &u64| self.after(TICK, by_carrier, by_others) != before;
            Some((1..=looks).find(turned)? * TICK / 1_000)
        }
    }

    // In a quarter of a second the job of 30 % has 75 ms, and its launchers 7.
    #[test]
    fn what_computes_for_a_moment_does_not_compute_in_carriers() {
        // One process after the other; and one that waits for others for a third of its work.
        assert_eq!(Job::new().turns(0, 7), Some(2));
        assert_eq!(Job::new().turns(14, 7), Some(2));
        // Ranks with a launcher that does all that it may, also where they wait most of the time.
        assert_eq!(Job::new().turns(75, 7), None);
        assert_eq!(Job::new().turns(25, 7), None);
        // Nobody does much: nobody waits.
        assert_eq!(Job::new().turns(0, 3), None);
        assert_eq!(Job::new().turns(0, 0), None);
    }

    // Goal: a number that is given out again is another process. Method: each has used more than the one before it.
    #[test]
    fn a_process_is_known_by_its_start() {
        let mut job = Job::new();
        for start in 2..10 {
            let used = Nanos::from_millis(7 * start);
            job.look.carriers = BTreeMap::from([(Identity { start, ..RANK }, used)]);
            job.look.at = job.look.at.saturating_add(Nanos::from_millis(TICK));
            job.look.used = used;
            job.turnover.look(SHARE, job.look.clone());
        }
        assert_eq!(job.turnover.computing, Computing::InOthers);
    }

    // Goal: a program that is started by a script comes to its deadlines, one that goes to and fro less and less often.
    // Method: whoever has no deadlines may use all of the share in whatever way.
    #[test]
    fn who_has_left_deadlines_comes_back_later_every_time() {
        let mut job = Job::new();
        let mut away = Vec::new();
        for _ in 0..7 {
            assert_eq!(job.turns(0, 7), Some(2));
            assert_eq!(job.after(1_000, 0, 300), Computing::InOthers);
            // What is seen last before it computes in one carrier is a part of what is seen first after that.
            job.turnover.seen = Seen::default();
            away.push(job.turns(75, 0).unwrap());
        }
        assert_eq!(away, [10, 20, 40, 80, 160, 300, 300]);
        // In part is not enough, nor is nothing.
        let mut job = Job::that(Computing::InOthers);
        assert_eq!((job.turns(66, 9), job.turns(0, 0), job.turns(3, 0)), (None, None, None));
        assert_eq!(Job::that(Computing::InOthers).turns(68, 7), Some(10));
    }

    // Goal: a program that starts threads again and again is not given deadlines each time that it has none: they would have the
    // launchers' share until the next look. Method: it computes in its only thread as soon as it has one; CPU time of threads is
    // that of their process.
    #[test]
    fn who_had_threads_has_deadlines_later_every_time() {
        const SEEN: Computing = Computing::InThreads(Threaded { pid: RANK.pid, threads: 2 });
        let mut job = Job::new();
        let mut away = Vec::new();
        for _ in 0..7 {
            assert_eq!(job.after_threads(TICK, 2), SEEN);
            away.push(job.turns(75, 0).unwrap());
            assert_eq!(job.turnover.computing, Computing::InCarriers);
        }
        assert_eq!(away, [2, 4, 8, 16, 32, 60, 60]);
        // Only without threads does the time run, and how many there are is told once.
        let mut job = Job::new();
        for threads in 2..900 {
            assert_eq!(job.after_threads(TICK, threads), SEEN);
            assert!((0..7).all(|_| job.after(TICK, 75, 0) == SEEN));
        }
        assert_eq!(job.after_threads(TICK, 2), SEEN);
        assert_eq!(job.turns(0, 0), Some(2), "who waits without threads may have deadlines");
        // What has computed in others meanwhile is taken for that.
        assert_eq!(job.after_threads(TICK, 2), SEEN);
        assert_eq!(job.turns(40, 40), Some(4));
        assert_eq!(job.turnover.computing, Computing::InOthers);
        assert_eq!(job.after_threads(TICK, 2), SEEN);
    }

    #[test]
    fn what_was_not_looked_at_tells_nothing() {
        let mut job = Job::new();
        for _ in 0..9 {
            assert_eq!(job.after(2_001, 0, 600), Computing::InCarriers);
            assert_eq!(job.after(TICK, 0, 7), Computing::InCarriers);
        }
        assert_eq!(job.after(2_000, 0, 60), Computing::InOthers);
    }

    fn looks() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
        prop::collection::vec((1u64..1_900, 0u64..=100, 0u64..=100), 1..400)
    }

    proptest! {
        // Whatever launchers do, those that have three times as much keep their deadlines, however often it is looked.
        #[test]
        fn who_computes_in_carriers_has_deadlines(looks in looks()) {
            let mut job = Job::new();
            for (millis, by_carrier, by_others) in looks {
                let by_others = by_others.min(by_carrier / 4);
                prop_assert_eq!(job.after(millis, by_carrier, by_others), Computing::InCarriers);
            }
        }

        // What is kept waiting is found within two spans, whatever it did before.
        #[test]
        fn who_does_not_has_none_after_a_while(before in looks(), millis in 1u64..500) {
            let mut job = Job::new();
            before.into_iter().for_each(|(millis, by_carrier, by_others)| {
                job.after(millis, by_carrier, by_others);
            });
            let looks = 4_500 / millis + 2;
            let found = (0..looks).any(|look| {
                let used = (look + 1) * millis * 3 / 100 - look * millis * 3 / 100;
                job.after(millis, 0, used) == Computing::InOthers
            });
            prop_assert!(found);
        }

        // Whatever a job does, what keeps its share changes twice in so long at the most; and where it has threads, back to
        // deadlines in so long once.
        #[test]
        fn what_keeps_a_share_does_not_flutter(
            looks in looks(), threads in prop::collection::vec(0u32..20, 400))
        {
            let mut job = Job::new();
            let (mut turned, mut since) = (0, 0);
            for ((millis, by_carrier, by_others), threads) in looks.into_iter().zip(threads) {
                let before = job.turnover.computing;
                since += millis;
                let after = match threads {
                    19 => job.after_threads(millis, threads),
                    _ => job.after(millis, by_carrier, by_others),
                };
                if after != before {
                    turned += 1;
                    let least = match (before, after) {
                        (_, Computing::InThreads(_)) => Nanos::default(),
                        (Computing::InThreads(_) | Computing::InCarriers, _) => HASTE,
                        (Computing::InOthers, _) => PATIENCE_MIN,
                    };
                    prop_assert!(Nanos::from_millis(since) >= least, "{turned}");
                    since = 0;
                }
            }
        }
    }
}
