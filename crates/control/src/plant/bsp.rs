//! Bulk-synchronous programs: all ranks compute, all wait for each other's messages, again and again.
//!
//! A rank is one process on a node of its own, under a schedule as the kernel keeps it: `slice` of
//! budget at the beginning of every period; a burst that is noticed only at the kernel's tick, so that
//! it may use more than its budget and pays back later. Between computing and the next iteration a rank
//! **polls** (uses budget, and sees a message at once, if it runs) or **blocks** (uses none).
//!
//! The constants of [`Machine::default`] are those that were measured on the project's machines.

use super::{Plant, Random};
use crate::full_speed::{Calibration, FullSpeed};
use crate::report::Report;
use crate::schedule::Schedule;
use keeptime_model::Invalid;
use keeptime_model::units::Nanos;

/// What an iteration takes of each rank.
#[derive(Debug, Clone)]
pub struct Program {
    /// CPU seconds of computing, for each rank.
    pub compute: Vec<f64>,
    /// CPU seconds for sending and receiving.
    pub messages: f64,
    /// Seconds that messages are under way.
    pub network: f64,
    /// In how many rounds, each of which needs all ranks before the next one begins.
    pub rounds: u32,
    /// What a rank does meanwhile.
    pub waiting: Waiting,
}

/// What a rank does while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Looks without pause, as MPI libraries do. Messages get on only while it looks.
    Polls,
    /// Sleeps; the kernel moves messages meanwhile.
    Blocks,
}

/// What is not the program's doing.
#[derive(Debug, Clone)]
pub struct Machine {
    /// When the kernel looks whether a budget is used up, in seconds.
    pub tick: f64,
    /// Periods of different nodes begin up to so many seconds apart; nothing = wherever they were
    /// set.
    pub skew: Option<f64>,
    /// The deviation of a rank's computing from iteration to iteration, as a part of it.
    pub scatter: f64,
    /// How far the processors' speed wanders, as a part of it, over how many seconds.
    pub wander: f64,
    /// Seconds of one wave.
    pub wander_seconds: f64,
    /// Other applications on the nodes have their slices first: a slice begins up to this part of the
    /// rest of the period later.
    pub interference: f64,
    /// Whether reports say what was computed.
    pub tells_computing: bool,
}

impl Default for Machine {
    /// Ticks of 250 Hz, clocks of nodes within a millisecond, computing within 1 %, processors that
    /// wander by 5 % over minutes, nobody else.
    fn default() -> Self {
        Self {
            tick: 0.004,
            skew: Some(0.001),
            scatter: 0.01,
            wander: 0.05,
            wander_seconds: 120.0,
            interference: 0.0,
            tells_computing: true,
        }
    }
}

/// A program, running.
#[derive(Debug, Clone)]
pub struct BspPlant {
    program: Program,
    machine: Machine,
    ranks: Vec<Rank>,
    random: Random,
}

/// One process under its schedule; times in seconds.
#[derive(Debug, Clone)]
struct Rank {
    /// When it begins its next iteration.
    ready: f64,
    /// CPU time used in this iteration.
    used: f64,
    /// The same without waiting.
    computed: f64,
    server: Option<Server>,
}

/// Budget that comes back in every period.
#[derive(Debug, Clone)]
struct Server {
    period: f64,
    slice: f64,
    /// What is left; below zero if a tick came late.
    budget: f64,
    /// When the next period begins.
    next: f64,
    /// From when on it may run in this period.
    opens: f64,
    interference: f64,
}

impl Program {
    /// Computing for `compute` CPU seconds on each of `ranks`, then messages for `ratio` to 1 of that:
    /// 5 computes five times as long as it communicates. Of communicating, some is CPU time: blocking
    /// ranks were measured to use 0.52 of a processor at 1:1 and 0.18 at 1:5.
    pub fn balanced(ranks: usize, compute: f64, ratio: f64, waiting: Waiting) -> Self {
        let communicate = compute / ratio;
        Self {
            compute: vec![compute; ranks],
            messages: communicate * MESSAGES,
            network: communicate * (1.0 - MESSAGES),
            rounds: 4,
            waiting,
        }
    }
}

impl BspPlant {
    /// At full speed until schedules are applied.
    pub fn new(program: Program, machine: Machine, seed: u64) -> Self {
        let rank = |_: &f64| Rank { ready: 0.0, used: 0.0, computed: 0.0, server: None };
        let ranks = program.compute.iter().map(rank).collect();
        Self { program, machine, ranks, random: Random::new(seed) }
    }

    /// Full speed as it is measured on this program: at time zero, over `iterations`.
    ///
    /// # Errors
    /// If there were too few.
    pub fn full_speed(&self, iterations: usize) -> Result<FullSpeed, Invalid> {
        let mut free = self.clone();
        free.ranks.iter_mut().for_each(|rank| rank.server = None);
        let mut calibration = Calibration::new(free.ranks.len());
        for _ in 0..iterations {
            calibration.observe(&free.next_report())?;
        }
        calibration.finish()
    }

    /// The rate at full speed as the processors are at `now`, without scatter: what nobody can measure
    /// while the program is held back.
    pub fn full_rate_at(&self, now: Nanos) -> f64 {
        let compute = self.program.compute.iter().copied().fold(0.0, f64::max);
        let slowness = self.slowness(now.as_secs_f64());
        1.0 / ((compute + self.program.messages) * slowness + self.program.network)
    }

    /// Everybody's messages reach everybody, which takes `seconds` if all run.
    fn exchange(&mut self, seconds: f64) {
        let last = self.ranks.iter().map(|rank| rank.ready).fold(0.0, f64::max);
        let tick = self.machine.tick;
        match self.program.waiting {
            Waiting::Blocks => self.ranks.iter_mut().for_each(|rank| rank.ready = last + seconds),
            Waiting::Polls => {
                for rank in &mut self.ranks {
                    let sees = rank.spin(last, tick);
                    rank.ready = rank.look(sees, seconds, tick);
                }
            }
        }
    }

    fn slowness(&self, now: f64) -> f64 {
        let wave = std::f64::consts::TAU * now / self.machine.wander_seconds;
        1.0 + self.machine.wander * wave.sin()
    }

    fn now_seconds(&self) -> f64 {
        self.ranks[0].ready
    }
}

impl Plant for BspPlant {
    fn apply(&mut self, schedules: &[Schedule]) {
        for (rank, schedule) in self.ranks.iter_mut().zip(schedules) {
            let (period, slice) = (schedule.period().as_secs_f64(), schedule.slice().as_secs_f64());
            let (now, chance) = (rank.ready, self.random.part());
            // The first period that begins at the same time everywhere, or anywhere.
            let begins = match self.machine.skew {
                Some(skew) => (now / period).floor() * period + chance * skew,
                None => now - chance * period,
            };
            let interference = self.machine.interference * chance;
            rank.server = Some(Server {
                period,
                slice,
                budget: 0.0,
                next: begins,
                opens: begins,
                interference,
            });
        }
    }

    fn next_report(&mut self) -> Report {
        let from = Nanos::from_secs_f64(self.now_seconds()).unwrap_or_default();
        let mut sent = Vec::new();
        for (at, rank) in self.ranks.iter().enumerate() {
            let scatter = 1.0 + self.machine.scatter * self.random.normal();
            let half = self.program.messages / 2.0;
            let work =
                (self.program.compute[at] * scatter.max(0.0) + half) * self.slowness(rank.ready);
            sent.push(work);
        }
        for (rank, work) in self.ranks.iter_mut().zip(&sent) {
            (rank.used, rank.computed) = (0.0, 0.0);
            rank.ready = rank.run(rank.ready, *work, self.machine.tick);
        }
        let round = self.program.network / f64::from(self.program.rounds.max(1));
        for _ in 0..self.program.rounds.max(1) {
            self.exchange(round);
        }
        let half = self.program.messages / 2.0 * self.slowness(self.now_seconds());
        for rank in &mut self.ranks {
            rank.ready = rank.run(rank.ready, half, self.machine.tick);
        }
        let nanos = |seconds: f64| Nanos::from_secs_f64(seconds).unwrap_or_default();
        let used: Vec<_> = self.ranks.iter().map(|rank| nanos(rank.used)).collect();
        let computed: Vec<_> = match self.machine.tells_computing {
            true => self.ranks.iter().map(|rank| nanos(rank.computed)).collect(),
            false => Vec::new(),
        };
        let to = Nanos::from_secs_f64(self.now_seconds()).unwrap_or_default();
        let to = to.max(from.saturating_add(Nanos::new(1)));
        // `to` is after `from`, and the work is a number.
        Report::new(from, to, 1.0, &used).expect("a report").with_computed(&computed)
    }

    fn now(&self) -> Nanos {
        Nanos::from_secs_f64(self.now_seconds()).unwrap_or_default()
    }
}

impl Rank {
    /// When `work` CPU seconds are done that begin at `from`.
    fn run(&mut self, from: f64, work: f64, tick: f64) -> f64 {
        self.computed += work;
        self.look(from, work, tick)
    }

    /// When it has looked for messages for `work` CPU seconds from `from` on.
    fn look(&mut self, from: f64, work: f64, tick: f64) -> f64 {
        self.used += work;
        match &mut self.server {
            None => from + work,
            Some(server) => server.serve(from, work, f64::INFINITY, tick).0,
        }
    }

    /// Polls from its last instant until `message` is there and it runs; when that is.
    fn spin(&mut self, message: f64, tick: f64) -> f64 {
        let from = self.ready;
        let (sees, used) = match &mut self.server {
            None => (message, message - from),
            Some(server) => {
                let (_, used) = server.serve(from, f64::INFINITY, message, tick);
                (server.runs_from(message), used)
            }
        };
        self.used += used;
        sees.max(message)
    }
}

impl Server {
    /// Runs from `from` until `work` is done or it is `until`; when that is, and what was used.
    fn serve(&mut self, from: f64, work: f64, until: f64, tick: f64) -> (f64, f64) {
        let (mut now, mut used) = (from, 0.0);
        loop {
            now = self.runs_from(now);
            if now >= until {
                return (until, used);
            }
            // The burst ends at the tick after the budget, at the end of the period, or when done.
            let burst = (self.budget / tick).ceil() * tick;
            let ran = burst.min(self.next - now).min(work - used).min(until - now);
            now += ran;
            used += ran;
            self.budget -= ran;
            if work - used <= EPSILON || now >= until {
                return (now, used);
            }
        }
    }

    /// The first instant from `now` on at which it has budget and may run.
    fn runs_from(&mut self, mut now: f64) -> f64 {
        loop {
            while now >= self.next - EPSILON {
                // Long pauses are passed in one step; only the last of their periods matters.
                let passed = ((now - self.next) / self.period).floor().max(0.0);
                self.budget = (self.budget + self.slice * (1.0 + passed)).min(self.slice);
                self.opens = self.next
                    + passed * self.period
                    + self.interference * (self.period - self.slice).max(0.0);
                self.next += (1.0 + passed) * self.period;
            }
            if self.budget > EPSILON {
                if now >= self.opens {
                    return now;
                }
                now = self.opens.min(self.next);
            } else {
                now = self.next;
            }
        }
    }
}

/// Instants closer than this are the same.
const EPSILON: f64 = 1e-9;
/// The part of communicating that is CPU time.
const MESSAGES: f64 = 0.03;
