//! Every job asks the broker as `keeptime run --by --wait` does, for what [`Booking::in_turn`] says: its deadline, to begin at
//! once and go as slowly as others need, or to be done later. What has room for nothing of that asks again, as often as
//! [`Booking::asks_again_after`] says, but for the times when nothing has ended and no node has come back since it asked last:
//! it would be told the same. One job asks at a time.
//!
//! Jobs share nodes: each has a part of every node of its own, which the broker makes smaller and greater as others come and
//! end. No more than nine tenths of a node are given out: the kernel admits no more (SCHED_DEADLINE).
//!
//! Who is hit by a failure asks anew. What the broker does not grant while nothing is reserved and all nodes are there is
//! refused: it would wait for ever.

use super::{Action, Policy};
use crate::broker::{Answered, Broker};
use crate::machine::{Hold, ROUNDING, Start, Traffic};
use crate::shape;
use crate::trace::Submission;
use keeptime_calendar::Span;
use keeptime_engine::cluster::Resource;
use keeptime_engine::{Answer, Call, CallError, Cluster, Ticket};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, NodeChoice, State};
use keeptime_model::topology::{NodeIndex, Topology, TopologyFile};
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use keeptime_planner::deadline::booking::{Ask, Promise};
use keeptime_planner::deadline::{self, Booking, Job, Reserved};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Jobs that ask by themselves.
#[derive(Debug, Clone)]
pub struct ByDeadline {
    broker: Broker,
    traffic: Traffic,
    /// What a job uses of each of its nodes at full speed: all of it.
    whole: CpuPpm,
    /// What is given out of each node.
    given_out: CpuPpm,
    /// What jobs may have of each node: nothing of those that are away.
    nodes: deadline::Cluster,
    away: u32,
    /// Who has a reservation, and has not ended.
    held: BTreeMap<Handle, Held>,
    handles: BTreeMap<usize, Handle>,
    /// Who has none.
    waiting: BTreeMap<usize, Waiting>,
    /// When they ask.
    asks: BTreeSet<(Nanos, usize)>,
    /// Who asks, and waits for the broker's answer.
    asking: Option<Asking>,
}

/// A job that has a reservation.
#[derive(Debug, Clone)]
struct Held {
    job: usize,
    submission: Submission,
    /// What it has of each of its nodes; nothing before it begins.
    share: Option<CpuPpm>,
    /// When it has another share, as far as is known.
    turns: Option<WallTime>,
    /// Since when its reservation is over.
    over: Option<Nanos>,
}

/// A job that has none.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    submission: Submission,
    /// When it asked last.
    asked: Nanos,
}

/// What a job asks for.
#[derive(Debug, Clone)]
struct Asking {
    job: usize,
    /// What is to be asked for, if what stands before it is refused.
    turns: VecDeque<(Promise, Booking)>,
    sent: Option<Sent>,
}

/// A request without an answer.
#[derive(Debug, Clone, Copy)]
struct Sent {
    ticket: Ticket,
    /// When it would begin.
    from: WallTime,
}

/// What a job is told in the end.
enum Told {
    Granted(Promise, Handle),
    Refused,
    /// Not yet.
    Nothing,
}

impl ByDeadline {
    /// A broker for this cluster, all agents connected.
    ///
    /// # Errors
    /// If the engine cannot have such a cluster, or its nodes are not alike.
    pub fn new(topology: Topology, traffic: Traffic) -> Result<Self, Invalid> {
        let whole = shape::cpu_of_each(&topology)?;
        let given_out = part_of(whole);
        let mut file = TopologyFile::from(topology);
        file.nodes.iter_mut().for_each(|node| node.cpu = given_out);
        let nodes = deadline::Cluster::of(file.nodes.len() as u32, given_out);
        let cluster = Cluster::new(Topology::try_from(file)?, shape::reservable)?;
        let (held, handles, waiting, asks) = Default::default();
        let (broker, away, asking) = (Broker::new(cluster), 0, None);
        Ok(Self {
            broker,
            traffic,
            whole,
            given_out,
            nodes,
            away,
            held,
            handles,
            waiting,
            asks,
            asking,
        })
    }

    /// All who are to ask by now do, as far as the broker answers.
    fn ask_all(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        loop {
            let due = self.asks.first().copied().filter(|(at, _)| *at <= now);
            let mut asking = match (self.asking.take(), due) {
                (Some(asking), _) => asking,
                (None, Some((at, job))) => {
                    self.asks.remove(&(at, job));
                    let Some(asking) = self.begin(now, job) else { continue };
                    asking
                }
                (None, None) => break,
            };
            match self.go_on(now, &mut asking) {
                Told::Granted(promise, handle) => {
                    actions.extend(self.granted(asking.job, promise, handle));
                }
                Told::Refused if self.is_hopeless() => {
                    self.waiting.remove(&asking.job);
                    actions.push(Action::Refuse(asking.job));
                }
                Told::Refused => {}
                Told::Nothing => {
                    self.asking = Some(asking);
                    break;
                }
            }
        }
    }

    /// Who has just been refused will be again: nothing is in its way.
    fn is_hopeless(&self) -> bool {
        self.held.is_empty() && self.away == 0
    }

    fn begin(&mut self, now: Nanos, job: usize) -> Option<Asking> {
        let waiting = self.waiting.get_mut(&job)?;
        waiting.asked = now;
        let submission = waiting.submission;
        let planned = self.job(&submission);
        let in_turn = Booking::in_turn(&planned, came(&submission), Broker::wall(now));
        Some(Asking { job, turns: in_turn.collect(), sent: None })
    }

    /// Asks for one thing after the other until something is granted, or the broker takes its time.
    fn go_on(&mut self, now: Nanos, asking: &mut Asking) -> Told {
        loop {
            if let Some(sent) = asking.sent {
                let Some(answer) = self.answer(sent.ticket) else { return Told::Nothing };
                asking.sent = None;
                let Some((promise, booking)) = asking.turns.front_mut() else {
                    return Told::Refused;
                };
                match answer {
                    Ok(Answer::Reservation(found)) => return Told::Granted(*promise, found.handle),
                    answer => {
                        if !asks_on(booking, &answer, sent.from) {
                            asking.turns.pop_front();
                        }
                    }
                }
            }
            let Some((_, booking)) = asking.turns.front_mut() else { return Told::Refused };
            match self.send(now, booking) {
                Some(sent) => asking.sent = Some(sent),
                None => drop(asking.turns.pop_front()),
            }
        }
    }

    /// Sends what `booking` asks for next, if anything is left to ask for.
    fn send(&mut self, now: Nanos, booking: &mut Booking) -> Option<Sent> {
        let wall = Broker::wall(now);
        let reserved = self.reserved(wall, booking.horizon(wall));
        // A job that makes no sense on this cluster is refused as one for which there is no room.
        let (nodes, at) = match booking.next(wall, &self.nodes, &reserved).ok()? {
            Ask::Beside(plan) => (NodeChoice::Named(self.names(&plan.nodes)), plan.at),
            Ask::Slowest(count, at) => (NodeChoice::Any(count), at),
            Ask::Nothing(_) => return None,
        };
        let request = booking.request(self.traffic.resources(nodes), &at);
        let key = self.broker.new_key();
        let ticket = self.broker.ask(Call::Reserve { key, request });
        Some(Sent { ticket, from: at.from })
    }

    /// What the broker has said to a request, if it has.
    fn answer(&mut self, ticket: Ticket) -> Option<Answered> {
        let mut answers = self.broker.answers().into_iter();
        answers.find(|(answered, _)| *answered == ticket).map(|(_, answer)| answer)
    }

    /// A job has a reservation.
    fn granted(&mut self, job: usize, promise: Promise, handle: Handle) -> Option<Action> {
        let Waiting { submission, .. } = self.waiting.remove(&job)?;
        let (share, turns, over) = (None, None, None);
        self.held.insert(handle, Held { job, submission, share, turns, over });
        self.handles.insert(job, handle);
        (promise == Promise::Deadline).then_some(Action::Promise(job))
    }

    /// Everybody who runs has what the broker says: those who may have something else start, or change.
    fn follow(&mut self, now: Nanos) -> Vec<Action> {
        drop((self.broker.begun(), self.broker.changed()));
        let wall = Broker::wall(now);
        let mut actions = Vec::new();
        for (handle, held) in &mut self.held {
            let found = self.broker.engine().book().reservations().get(handle);
            let Some(found) = found.filter(|found| found.state.is_live()) else {
                let over = *held.over.get_or_insert(now);
                let late = now.saturating_sub(over);
                assert!(late <= ROUNDING, "job {} has no time left, and is not done", held.job);
                continue;
            };
            let grant = found.grant.as_ref().filter(|_| found.state == State::Active);
            let Some(grant) = grant.map(|grant| grant.at(wall)) else { continue };
            held.turns = grant.later.map(|later| later.from_unix_nanos);
            let hold = Hold::Reserved(grant.cpu_ppm);
            match held.share.replace(grant.cpu_ppm) {
                None => {
                    let nodes = self.broker.nodes(*handle).unwrap_or_default();
                    actions.push(Action::Start(Start { job: held.job, nodes, hold }));
                }
                Some(before) if before != grant.cpu_ppm => {
                    actions.push(Action::Change(held.job, hold));
                }
                Some(_) => {}
            }
        }
        actions
    }

    /// Who was to begin on a node that is away asks anew.
    fn ask_for_lost(&mut self, now: Nanos) -> Vec<Action> {
        let mut lost = Vec::new();
        for handle in self.broker.lost() {
            if let Some(Held { job, submission, .. }) = self.held.remove(&handle) {
                self.handles.remove(&job);
                self.wait(now, job, submission);
                lost.push(Action::Lose(job));
            }
        }
        lost
    }

    /// It asks at once.
    fn wait(&mut self, now: Nanos, job: usize, submission: Submission) {
        self.waiting.insert(job, Waiting { submission, asked: now });
        self.asks.insert((now, job));
    }

    /// There is more room: who waits asks the next time that it would have asked anyway.
    fn have_all_ask_again(&mut self, now: Nanos) {
        let asking: BTreeSet<_> = self.asks.iter().map(|(_, job)| *job).collect();
        let asks = self.asking.as_ref().map(|asking| asking.job);
        for (job, Waiting { submission, asked }) in &self.waiting {
            if asking.contains(job) || asks == Some(*job) {
                continue;
            }
            let planned = self.job(submission);
            let every = Booking::asks_again_after(&planned, came(submission), Broker::wall(now));
            let times = now.saturating_sub(*asked).get() / every.get() + 1;
            let next = asked.saturating_add(Nanos::new(times * every.get()));
            self.asks.insert((next, *job));
        }
    }

    /// As its user knows it.
    fn job(&self, submission: &Submission) -> Job {
        let by = Broker::wall(Nanos::from_secs(submission.deadline));
        let work = Nanos::from_secs(submission.requested);
        let job = Job::new(work, submission.nodes, by);
        Job { from: came(submission), cpu_ppm: self.whole, ..job }
    }

    /// What is reserved of each node from `now` until `until`.
    fn reserved(&self, now: WallTime, until: WallTime) -> Vec<Reserved> {
        let engine = self.broker.engine();
        let span = Span::lasting(now, until.saturating_since(now));
        let of_node = |node: NodeIndex| {
            let table = engine.cluster().table(Resource::Cpu(node));
            let levels = engine.calendar().table(table).map(|table| table.profile(span));
            levels.into_iter().flatten().filter(|level| level.used > 0).map(move |level| {
                let ends = [level.span.from(), level.span.to().unwrap_or(until)];
                Reserved::seen(node, ends, until, level.used)
            })
        };
        engine.cluster().topology().node_indices().flat_map(of_node).collect()
    }

    fn names(&self, nodes: &[NodeIndex]) -> Vec<Name> {
        self.broker.engine().cluster().topology().names(nodes)
    }

    /// So much is given out of each of these from now on.
    fn give_out(&mut self, nodes: &[NodeIndex], cpu: CpuPpm) {
        for node in nodes {
            self.nodes.nodes_ppm[node.0 as usize] = cpu;
        }
    }
}

/// When it asked first.
fn came(submission: &Submission) -> WallTime {
    Broker::wall(Nanos::from_secs(submission.submitted))
}

/// Whether something is left to ask for by `booking`, which would have begun at `from` and was refused.
fn asks_on(booking: &mut Booking, answer: &Answered, from: WallTime) -> bool {
    let Err(error) = answer else { return false };
    match &**error {
        CallError::Refused { refusal, .. } => {
            booking.refused(from, refusal.earliest_start_unix_nanos)
        }
        // More nodes or flows than one reservation can have.
        _ => false,
    }
}

/// What is given out of a node, rounded down.
fn part_of(whole: CpuPpm) -> CpuPpm {
    let exact = u64::from(whole.get()) * u64::from(GIVEN_OUT_PPM) / u64::from(Share::ONE.ppm());
    CpuPpm::new(u32::try_from(exact).unwrap_or(u32::MAX))
}

impl Policy for ByDeadline {
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        self.wait(now, job, *submission);
        vec![]
    }

    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action> {
        self.broker.set_time(now);
        if let Some(handle) = self.handles.remove(&job) {
            self.held.remove(&handle);
            // One that took all of its time is over by itself.
            self.broker.call(Call::Cancel { handle });
        }
        self.have_all_ask_again(now);
        vec![]
    }

    fn failed(&mut self, now: Nanos, nodes: &[NodeIndex], hit: &[usize]) -> Vec<Action> {
        self.broker.set_time(now);
        for job in hit {
            let handle = self.handles.remove(job);
            handle.and_then(|handle| self.held.remove(&handle));
        }
        self.broker.fail(nodes);
        self.give_out(nodes, CpuPpm::default());
        self.away += nodes.len() as u32;
        vec![]
    }

    fn repaired(&mut self, now: Nanos, nodes: &[NodeIndex]) -> Vec<Action> {
        self.broker.set_time(now);
        self.broker.repair(nodes);
        self.give_out(nodes, self.given_out);
        self.away -= nodes.len() as u32;
        self.have_all_ask_again(now);
        vec![]
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        self.broker.set_time(now);
        self.broker.pass();
        let mut actions = self.ask_for_lost(now);
        self.ask_all(now, &mut actions);
        actions.extend(self.follow(now));
        actions
    }

    fn next(&self) -> Option<Nanos> {
        // Leases of agents, which never end, are left when nobody has a reservation. Whoever waits for an answer waits for
        // others to be made slower, who have one.
        let due = self.broker.next().filter(|_| !self.held.is_empty());
        let turns = self.held.values().filter_map(|held| held.turns).min();
        let turns = turns.map(Broker::since_start);
        let asks = self.asks.first().filter(|_| self.asking.is_none()).map(|(at, _)| *at);
        [due, turns, asks].into_iter().flatten().min()
    }
}

/// Of each node: what the kernel admits.
const GIVEN_OUT_PPM: u32 = 900_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failures::{Failures, Kind, Part};
    use crate::policy::Choice;
    use crate::shape::Shape;
    use crate::simulate::{Outcome, Trial};
    use crate::trace::Class;

    fn job(submitted: u64, run: u64, nodes: u32, deadline: u64) -> Submission {
        Submission { submitted, run, requested: run, nodes, deadline, class: Class::Normal }
    }

    fn trial(nodes: u32, percent: u32) -> Trial {
        let communication = Share::from_percent(percent).unwrap();
        Trial::of(Shape::star(nodes).unwrap(), Choice::KeeptimeBy, communication)
    }

    fn outcome(nodes: u32, jobs: &[Submission]) -> Outcome {
        trial(nodes, 0).run(jobs, &mut |_| {}).unwrap()
    }

    fn promised(outcome: &Outcome) -> Vec<bool> {
        outcome.fates.iter().map(|fate| fate.promised).collect()
    }

    // 90 s of work take 100 s with nine tenths of both nodes. The second needs 85 % of these to be done by 130 s, and the first
    // 12 % to be done by 800 s.
    #[test]
    fn who_has_time_makes_way_for_who_has_none() {
        let outcome = outcome(2, &[job(0, 90, 2, 800), job(10, 90, 2, 130)]);
        assert_eq!(promised(&outcome), [true, true]);
        let ended = outcome.ended();
        assert!(ended[1] <= 130 && ended[0] <= 800, "{ended:?}");
        // Together they take 200 s of what there is, and hardly more.
        assert!(*ended.iter().max().unwrap() <= 210, "{ended:?}");
    }

    #[test]
    fn who_is_refused_runs_on_what_is_left() {
        let jobs = [job(0, 90, 2, 105), job(10, 90, 2, 120), job(20, 9, 2, 220)];
        let outcome = outcome(2, &jobs);
        assert_eq!(promised(&outcome), [true, false, true]);
        assert_eq!((outcome.ended()[0], outcome.summary(&jobs, 2).broken), (100, 0));
        assert_eq!(outcome.summary(&jobs, 2).refused, 0);
    }

    // Goal: a part of a processor slows computing, and nothing else.
    #[test]
    fn what_a_job_sends_is_not_slowed() {
        // 54 s take 60, and 6 s six.
        let outcome = trial(4, 10).run(&[job(0, 60, 4, 500)], &mut |_| {}).unwrap();
        assert_eq!(outcome.ended(), [66]);
    }

    // Goal: who loses a node asks anew, and has other nodes; who needs the node that is away waits for it.
    #[test]
    fn who_is_hit_asks_for_other_nodes_and_who_needs_a_node_waits_for_it() {
        let failing = |nodes: u32, jobs: &[Submission]| {
            let part = Part { kind: Kind::Node, number: 0 };
            let failures = Failures::scripted(&[(20, part)], Nanos::from_secs(300));
            let trial = Trial { failures: Some(failures), ..trial(nodes, 0) };
            trial.run(jobs, &mut |_| {}).unwrap()
        };
        let outcome = failing(3, &[job(0, 90, 2, 1_000)]);
        assert_eq!((outcome.ended(), outcome.fates[0].hits), (vec![120], 1));
        assert_eq!(promised(&outcome), [true]);
        let outcome = failing(2, &[job(30, 90, 2, 1_000)]);
        let ended = outcome.ended()[0];
        assert!((420..490).contains(&ended), "{ended}");
    }
}
