//! A log whose every job asks the broker's real engine, as `keeptime run --by --wait` does, for what [`Booking::in_turn`] says:
//! its deadline, to begin at once and go as slowly as others need, or to be done later. What has room for nothing of that asks
//! again, as often as [`Booking::asks_again_after`] says, but for the times when nothing has ended since it asked last: it would
//! be told the same.

use super::{Outcome, PROMISED};
use anyhow::{Result, bail};
use keeptime_calendar::Span;
use keeptime_engine::cluster::Resource;
use keeptime_engine::{Answer, Call, CallError, Cluster};
use keeptime_model::assignment::LaterCpu;
use keeptime_model::reservation::{Handle, NodeChoice, Resources, State};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use keeptime_planner::deadline::booking::{Ask, Promise};
use keeptime_planner::deadline::{self, Booking, Job, Reserved};
use keeptime_whatif::broker::Broker;
use keeptime_whatif::shape::{self, Shape};
use keeptime_whatif::trace::Submission;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A job that has a reservation and has not ended.
struct Active {
    number: usize,
    /// What it really takes yet, with all that is promised of its nodes.
    left: Nanos,
    /// What it has of each of its nodes now; none before it begins.
    share: CpuPpm,
    /// What it has later.
    later: Option<LaterCpu>,
}

struct Replay<'a> {
    jobs: &'a [Submission],
    broker: Broker,
    /// All that nodes have.
    nodes: deadline::Cluster,
    now: Nanos,
    active: BTreeMap<Handle, Active>,
    /// Who has no reservation, and when they asked.
    without: BTreeMap<usize, Nanos>,
    /// When they ask again.
    asks: BTreeSet<(Nanos, usize)>,
    outcome: Outcome,
    decisions: Vec<f64>,
}

/// What came of a log.
pub struct Asked {
    pub outcome: Outcome,
    /// How long the broker was busy with each request, until it was answered or waited for agents, in milliseconds.
    pub decisions: Vec<f64>,
}

/// Replays `jobs`, in the order of their submission.
///
/// # Errors
/// If a job makes no sense, is not given what it was promised, or never ends.
pub fn asked(nodes: u32, jobs: &[Submission]) -> Result<Asked> {
    let topology = Shape::star(nodes)?.topology()?;
    let all = deadline::Cluster::of(nodes, shape::cpu_of_each(&topology)?);
    let mut replay = Replay {
        jobs,
        broker: Broker::new(Cluster::new(topology, shape::reservable)?)?,
        nodes: all,
        now: Nanos::new(0),
        active: BTreeMap::new(),
        without: BTreeMap::new(),
        asks: BTreeSet::new(),
        outcome: Outcome { ended: vec![0; jobs.len()], promised: vec![false; jobs.len()] },
        decisions: Vec::new(),
    };
    let mut next = 0;
    loop {
        let submission = jobs.get(next).map(|job| Nanos::from_secs(job.submitted));
        // Leases of agents, which never end, are left when nobody has a reservation.
        let due = replay.broker.next().filter(|_| !replay.active.is_empty());
        let asks = replay.asks.first().map(|(at, _)| *at);
        let events = [submission, due, replay.next_end(), replay.next_turn(), asks];
        let Some(now) = events.into_iter().flatten().min() else { break };
        if replay.advance(now.max(replay.now))? {
            replay.have_all_ask_again();
        }
        while let Some((at, number)) = replay.asks.first().copied().filter(|(at, _)| *at <= now) {
            replay.asks.remove(&(at, number));
            replay.ask(number)?;
        }
        while jobs.get(next).is_some_and(|job| Nanos::from_secs(job.submitted) <= replay.now) {
            replay.ask(next)?;
            next += 1;
        }
    }
    match replay.without.first_key_value() {
        None => Ok(Asked { outcome: replay.outcome, decisions: replay.decisions }),
        Some((number, _)) => bail!("job {number} never has a reservation"),
    }
}

impl Replay<'_> {
    /// Lets all run until `now`; whether any job has ended.
    fn advance(&mut self, now: Nanos) -> Result<bool> {
        let span = now.saturating_sub(self.now);
        for active in self.active.values_mut() {
            active.left = active.left.saturating_sub(active.share.time_in_floor(span));
        }
        self.now = now;
        for active in self.active.values_mut() {
            let due = active.later.take_if(|later| later.from_unix_nanos <= Broker::wall(now));
            active.share = due.map_or(active.share, |later| later.cpu_ppm);
        }
        let over = self.active.extract_if(.., |_, active| active.left <= ROUNDING);
        let over: Vec<_> = over.collect();
        self.broker.set_time(now);
        for (handle, active) in &over {
            self.outcome.ended[active.number] = now.get().div_ceil(SECOND);
            // One that took all of its time is over by itself.
            self.broker.call(Call::Cancel { handle: *handle });
        }
        self.broker.pass();
        self.look()?;
        Ok(!over.is_empty())
    }

    /// Everybody who runs has the share that the broker says.
    fn look(&mut self) -> Result<()> {
        let stirred = [self.broker.begun(), self.broker.changed()].concat();
        for handle in stirred {
            let (share, later) = self.share_of(handle);
            if let Some(active) = self.active.get_mut(&handle) {
                (active.share, active.later) = (share, later);
            }
        }
        let lost = self.broker.lost();
        if !lost.is_empty() {
            bail!("{lost:?} were lost, though every node is there");
        }
        let book = self.broker.engine().book();
        let is_over = |handle: &Handle| {
            book.reservations().get(handle).is_none_or(|found| !found.state.is_live())
        };
        match self.active.iter().find(|(handle, _)| is_over(handle)) {
            None => Ok(()),
            Some((_, active)) => bail!("job {} has no time left, and is not done", active.number),
        }
    }

    /// What a reservation has of each of its nodes now, and later.
    fn share_of(&self, handle: Handle) -> (CpuPpm, Option<LaterCpu>) {
        let found = self.broker.engine().book().reservations().get(&handle);
        let runs = found.filter(|found| found.state == State::Active);
        let grant = runs.and_then(|found| found.grant.as_ref());
        let now = grant.map(|grant| grant.at(Broker::wall(self.now)));
        now.map_or_else(Default::default, |now| (now.cpu_ppm, now.later))
    }

    /// Something was given back: who waits asks the next time that it would have asked anyway.
    fn have_all_ask_again(&mut self) {
        let now = Broker::wall(self.now);
        let asking: BTreeSet<_> = self.asks.iter().map(|(_, number)| *number).collect();
        for (number, asked) in &self.without {
            if !asking.contains(number) {
                let every = Booking::asks_again_after(&self.job(*number), self.came(*number), now);
                let since = self.now.saturating_sub(*asked).get();
                let times = since / every.get() + 1;
                let next = asked.saturating_add(Nanos::new(times * every.get()));
                self.asks.insert((next, *number));
            }
        }
    }

    fn ask(&mut self, number: usize) -> Result<()> {
        let (now, job) = (Broker::wall(self.now), self.job(number));
        self.without.insert(number, self.now);
        for (promise, booking) in Booking::in_turn(&job, self.came(number), now) {
            if self.book(number, booking)? {
                self.outcome.promised[number] = promise == Promise::Deadline;
                self.without.remove(&number);
                break;
            }
        }
        self.look()
    }

    /// When it asked first.
    fn came(&self, number: usize) -> WallTime {
        Broker::wall(Nanos::from_secs(self.jobs[number].submitted))
    }

    /// As its user knows it.
    fn job(&self, number: usize) -> Job {
        let Submission { requested, nodes, deadline, .. } = self.jobs[number];
        let by = Broker::wall(Nanos::from_secs(deadline));
        Job { from: self.came(number), ..Job::new(at_what_is_promised(requested), nodes, by) }
    }

    /// Whether the job is granted what it asks for.
    fn book(&mut self, number: usize, mut booking: Booking) -> Result<bool> {
        let now = Broker::wall(self.now);
        loop {
            let reserved = self.reserved(booking.horizon(now));
            let (choice, at) = match booking.next(now, &self.nodes, &reserved)? {
                Ask::Beside(plan) => (self.named(&plan.nodes), plan.at),
                Ask::Slowest(count, at) => (NodeChoice::Any(count), at),
                Ask::Nothing(_) => return Ok(false),
            };
            let Ok(key) = self.broker.new_key() else { bail!("there are no keys left") };
            let resources = Resources { nodes: choice, ..Resources::nothing() };
            let request = booking.request(resources, &at);
            let asked = Instant::now();
            let ticket = self.broker.ask(Call::Reserve { key, request });
            self.decisions.push(asked.elapsed().as_secs_f64() * 1e3);
            let mut answers = self.broker.answers();
            // Others are made slower first, and who asked is decided then.
            if answers.is_empty() {
                if self.advance(self.now.saturating_add(ANSWER))? {
                    self.have_all_ask_again();
                }
                answers = self.broker.answers();
            }
            let answer = answers.into_iter().find(|(answered, _)| *answered == ticket);
            match answer.map(|(_, answer)| answer) {
                Some(Ok(Answer::Reservation(found))) => {
                    let left = at_what_is_promised(self.jobs[number].run);
                    let (share, later) = self.share_of(found.handle);
                    let active = Active { number, left, share, later };
                    self.active.insert(found.handle, active);
                    return Ok(true);
                }
                Some(Err(error)) => match *error {
                    CallError::Refused { refusal, .. } => {
                        if !booking.refused(at.from, refusal.earliest_start_unix_nanos) {
                            return Ok(false);
                        }
                    }
                    other => bail!("job {number}: {other}"),
                },
                other => bail!("job {number} was answered {other:?}"),
            }
        }
    }

    /// What is reserved of each node from now on. What lasts to the end is taken to last for ever.
    fn reserved(&self, until: WallTime) -> Vec<Reserved> {
        let engine = self.broker.engine();
        let now = Broker::wall(self.now);
        let span = Span::lasting(now, until.saturating_since(now));
        let of_node = |node: NodeIndex| {
            let table = engine.cluster().table(Resource::Cpu(node));
            let levels = engine.calendar().table(table).map(|table| table.profile(span));
            levels.into_iter().flatten().filter(|level| level.used > 0).map(move |level| Reserved {
                node,
                from: level.span.from(),
                to: match level.span.to() {
                    Some(to) if to < until => to,
                    _ => WallTime::from_unix_nanos(u64::MAX),
                },
                cpu: CpuPpm::new(u32::try_from(level.used).unwrap_or(u32::MAX)),
            })
        };
        engine.cluster().topology().node_indices().flat_map(of_node).collect()
    }

    fn named(&self, nodes: &[NodeIndex]) -> NodeChoice {
        NodeChoice::Named(self.broker.engine().cluster().topology().names(nodes))
    }

    /// When the first of those that run has another share.
    fn next_turn(&self) -> Option<Nanos> {
        let later = self.active.values().filter_map(|active| active.later);
        later.map(|later| Broker::since_start(later.from_unix_nanos)).min()
    }

    /// When the first of those that run ends, if shares stay.
    fn next_end(&self) -> Option<Nanos> {
        let ends = self.active.values().filter_map(|active| {
            let nanos = u128::from(active.left.get()) * 1_000_000;
            let needed = nanos.checked_div(u128::from(active.share.get()))? + 1;
            Some(self.now.saturating_add(Nanos::new(u64::try_from(needed).unwrap_or(u64::MAX))))
        });
        ends.min()
    }
}

/// What takes `seconds` with the whole of its nodes, where no more than [`PROMISED`] of them is given out, which is all in the
/// broker's eyes.
fn at_what_is_promised(seconds: u64) -> Nanos {
    let exact = u128::from(seconds) * u128::from(SECOND) * 1_000_000;
    Nanos::new(u64::try_from(exact.div_ceil(u128::from(PROMISED.get()))).unwrap_or(u64::MAX))
}

const SECOND: u64 = 1_000_000_000;
/// Until agents have answered, so long as it takes on a lab with room to spare.
const ANSWER: Nanos = Nanos::from_millis(50);
/// Less is nothing: each step rounds by up to a nanosecond.
const ROUNDING: Nanos = Nanos::new(1_000);

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_whatif::trace::{Class, lublin};

    fn job(submitted: u64, run: u64, nodes: u32, deadline: u64) -> Submission {
        Submission { submitted, run, requested: run, nodes, deadline, class: Class::Normal }
    }

    // Goal: nothing that was promised is broken, and all work is done.
    #[test]
    fn a_small_log_is_replayed() {
        let log = lublin::log(64, 60, 0.8, 7);
        let outcome = asked(log.nodes, &log.jobs).unwrap().outcome;
        assert_eq!(outcome.broken(&log.jobs), 0);
        assert!(outcome.promised.contains(&true));
        let mut pairs = outcome.ended.iter().zip(&log.jobs);
        assert!(pairs.all(|(ended, job)| *ended >= job.submitted + job.run));
    }

    // 90 s of work take 100 s with nine tenths of both nodes. The second needs 85 % of these to be done by 130 s, and the first
    // 12 % to be done by 800 s.
    #[test]
    fn who_has_time_makes_way_for_who_has_none() {
        let jobs = [job(0, 90, 2, 800), job(10, 90, 2, 130)];
        let outcome = asked(2, &jobs).unwrap().outcome;
        assert_eq!(outcome.promised, [true, true]);
        assert!(outcome.ended[1] <= 130 && outcome.ended[0] <= 800, "{outcome:?}");
        // Together they take 200 s of what there is, and hardly more.
        assert!(*outcome.ended.iter().max().unwrap() <= 210, "{outcome:?}");
    }

    #[test]
    fn who_is_refused_runs_on_what_is_left() {
        let jobs = [job(0, 90, 2, 105), job(10, 90, 2, 120), job(20, 9, 2, 220)];
        let outcome = asked(2, &jobs).unwrap().outcome;
        assert_eq!(outcome.promised, [true, false, true]);
        assert_eq!((outcome.ended[0], outcome.broken(&jobs)), (100, 0));
    }
}
