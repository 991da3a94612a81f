//! What the MPI programs of this node ask for, on its way to the broker and back. A rank is known by
//! its connection: when that ends, so does all that it asked for.

mod fitted;

use crate::link::{FromAgent, Outgoing};
use fitted::Fitted;
use keeptime_locks::{lock, unpoisoned};
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use keeptime_mpiqos::wire::{Answer, AskState, Progress, RankAnswer, RankState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The broker records, asks every node of the job and answers within this time, or the rank is told
/// to ask again.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// All ranks that are connected.
#[derive(Debug)]
pub struct Programs {
    /// How long a rank waits for the broker.
    patience: Duration,
    connections: AtomicU64,
    /// Held also while the broker is told something, which may take as long as that takes to read it.
    state: Mutex<State>,
    /// How far ranks are, by the numbers of their connections: apart, since that is asked for while this node is enforced.
    courses: Mutex<BTreeMap<u64, Course>>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of what was said last: of no two jobs and no two talks the same.
    said: u64,
    ranks: BTreeMap<u64, Seat>,
    talks: BTreeMap<Name, Talk>,
    broker: Broker,
}

/// The way to the broker.
#[derive(Debug, Default)]
enum Broker {
    /// This agent has none.
    #[default]
    None,
    Away,
    Connected(Outgoing),
}

#[derive(Debug)]
struct Seat {
    job: Name,
    rank: RankState,
    /// How long what it asks for is in the line that the broker is told.
    bytes: usize,
}

/// What was said to the broker of one job, and answered.
#[derive(Debug, Default)]
struct Talk {
    said: u64,
    answered: u64,
    answers: BTreeMap<u32, RankAnswer>,
}

/// How far one rank of a job was at its last two reports.
#[derive(Debug)]
struct Course {
    job: Name,
    last: (Progress, WallTime),
    before: Option<(Progress, WallTime)>,
}

/// How far a job's slowest rank here is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProgressStatus {
    /// Iterations so far.
    pub iterations: u64,
    /// Between its last two reports.
    pub iterations_per_second: f64,
    /// Whether its program told them; else they are inferred from its collective operations.
    pub told: bool,
    /// Collective operations that make one; 0 = its program told them.
    #[serde(default)]
    pub period: u32,
    /// When it told that, by the node's clock.
    #[serde(default)]
    pub at_unix_nanos: WallTime,
}

/// One connection of a rank.
#[derive(Debug)]
pub struct Visit {
    programs: Arc<Programs>,
    number: u64,
}

impl Default for Programs {
    fn default() -> Self {
        let (connections, state, courses, answered) = Default::default();
        Self { patience: ANSWER_WITHIN, connections, state, courses, answered }
    }
}

impl Programs {
    /// A connection that may become a rank's.
    pub fn visit(self: &Arc<Self>) -> Visit {
        let number = self.connections.fetch_add(1, Relaxed) + 1;
        Visit { programs: Arc::clone(self), number }
    }

    /// There will be a broker.
    pub(crate) fn expect_broker(&self) {
        lock(&self.state).broker = Broker::Away;
    }

    /// The broker is there: it is told all that is asked for.
    pub(crate) fn connected(&self, broker: Outgoing) {
        let mut state = lock(&self.state);
        state.broker = Broker::Connected(broker);
        let jobs: BTreeSet<_> = state.ranks.values().map(|seat| seat.job.clone()).collect();
        for job in &jobs {
            state.say(job);
        }
    }

    /// The broker went away.
    pub(crate) fn disconnected(&self) {
        lock(&self.state).broker = Broker::Away;
        self.answered.notify_all();
    }

    /// The broker's answer to what was said under `number`.
    pub(crate) fn answered(&self, number: u64, job: &Name, answers: BTreeMap<u32, RankAnswer>) {
        if let Some(talk) = lock(&self.state).talks.get_mut(job)
            && number > talk.answered
        {
            (talk.answered, talk.answers) = (number, answers);
        }
        self.answered.notify_all();
    }

    /// How far the slowest rank of a job is; nothing if no rank here tells or repeats itself.
    pub fn progress_of(&self, job: &Name) -> Option<ProgressStatus> {
        let courses = lock(&self.courses);
        let of_job = courses.values().filter(|course| course.job == *job);
        of_job.filter_map(Course::status).min_by_key(|status| status.iterations)
    }

    /// Forgets jobs that are no longer there.
    pub fn retain(&self, is_there: impl Fn(&Name) -> bool) {
        lock(&self.courses).retain(|_, course| is_there(&course.job));
    }
}

impl Visit {
    /// All that the rank asks for now, in the place of what it asked before. Waits for the broker.
    /// What would make the line about its job too long is refused here, and what is there already stays.
    pub fn report(&self, job: Name, rank: RankState) -> RankAnswer {
        let state = lock(&self.programs.state);
        let Fitted { rank, bytes, taken, refused } = state.fit(self.number, &job, rank);
        let mut answer = self.ask(state, Seat { job, rank, bytes });
        answer.answers.truncate(taken);
        answer.with_refused(refused)
    }

    /// What the broker answers to all that is asked for there.
    fn ask(&self, mut state: MutexGuard<'_, State>, seat: Seat) -> RankAnswer {
        let (job, number, asks) = (seat.job.clone(), seat.rank.number, seat.rank.asks.len());
        let all = |answer| RankAnswer::all(asks, &answer);
        let before = state.ranks.insert(self.number, seat);
        if let Some(former) = before.as_ref().filter(|former| former.job != job) {
            state.leave(&former.job);
        }
        let is_known = before.is_some_and(|before| state.ranks[&self.number].is(&before))
            && state.talks.get(&job).is_some_and(|talk| talk.has_decided(number));
        let said = if is_known { 0 } else { state.say(&job) };
        let deadline = Instant::now() + self.programs.patience;
        loop {
            let talk = state.talks.get(&job);
            let answer = talk.filter(|talk| talk.answered >= said);
            if let Some(answer) = answer.and_then(|talk| talk.answers.get(&number))
                && answer.answers.len() == asks
            {
                return answer.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match state.broker {
                _ if asks == 0 => return RankAnswer::default(),
                Broker::None => return all(Answer::refused("this node's agent has no broker")),
                Broker::Away => return all(Answer::waiting("the broker does not answer")),
                Broker::Connected(_) if left.is_zero() => {
                    return all(Answer::waiting("the broker has not answered yet"));
                }
                Broker::Connected(_) => {}
            }
            let waited = self.programs.answered.wait_timeout(state, left);
            state = unpoisoned(waited).0;
        }
    }

    /// How far the rank is at `now`. That is forgotten when this ends.
    pub fn progress(&self, job: Name, progress: Progress, now: WallTime) {
        let mut courses = lock(&self.programs.courses);
        let is_its = |course: &Course| course.job == job && course.last.0.rank == progress.rank;
        let former = courses.remove(&self.number).filter(is_its);
        let (last, before) = ((progress, now), former.map(|course| course.last));
        courses.insert(self.number, Course { job, last, before });
    }

    /// That of its connection: no two have the same.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it is known how far the rank is: it told that, and its job is still there.
    pub fn has_course(&self) -> bool {
        lock(&self.programs.courses).contains_key(&self.number)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        lock(&self.programs.courses).remove(&self.number);
        let mut state = lock(&self.programs.state);
        let Some(seat) = state.ranks.remove(&self.number) else { return };
        state.leave(&seat.job);
    }
}

impl State {
    /// As much of what a rank asks for as its job has room for.
    fn fit(&self, visit: u64, job: &Name, rank: RankState) -> Fitted {
        let of_others = self.ranks.iter().filter(|(at, seat)| **at != visit && seat.job == *job);
        let others = of_others.map(|(_, seat)| seat.bytes).sum();
        let is_its = |seat: &&Seat| seat.job == *job && seat.rank.number == rank.number;
        let former = self.ranks.get(&visit).filter(is_its);
        Fitted::beside(others, former.map_or(&[], |seat| &seat.rank.asks), rank)
    }

    /// A rank asks for nothing more of a job.
    fn leave(&mut self, job: &Name) {
        self.say(job);
        if !self.ranks.values().any(|other| other.job == *job) {
            self.talks.remove(job);
        }
    }

    /// Tells the broker all that ranks of a job ask for here. The number under which it answers.
    fn say(&mut self, job: &Name) -> u64 {
        self.said += 1;
        let number = self.said;
        self.talks.entry(job.clone()).or_default().said = number;
        if let Broker::Connected(broker) = &self.broker {
            let (job, ranks) = (job.clone(), self.ranks_of(job));
            // One that cannot be written to is about to be found away.
            let _ = broker.say(&FromAgent::Programs { number, job, ranks });
        }
        number
    }

    /// All that ranks of a job ask for here: megabytes, where they have talked to many.
    fn ranks_of(&self, job: &Name) -> Vec<RankState> {
        let mut ranks: BTreeMap<u32, &RankState> = BTreeMap::new();
        for Seat { rank, .. } in self.ranks.values().filter(|seat| seat.job == *job) {
            // Another program of the job counts its ranks from 0, too, and may ask for nothing.
            if !rank.asks.is_empty() || !ranks.contains_key(&rank.number) {
                ranks.insert(rank.number, rank);
            }
        }
        ranks.into_values().cloned().collect()
    }
}

impl Seat {
    fn is(&self, other: &Self) -> bool {
        self.job == other.job && self.rank == other.rank
    }
}

impl Talk {
    /// Whether nothing that a rank asks for waits.
    fn has_decided(&self, rank: u32) -> bool {
        let answer = self.answers.get(&rank).filter(|_| self.answered == self.said);
        let is_waiting = |answer: &Answer| answer.state == AskState::Waiting;
        answer.is_some_and(|answer| !answer.answers.iter().any(is_waiting))
    }
}

impl Course {
    fn status(&self) -> Option<ProgressStatus> {
        let (last, now) = self.last;
        let iterations = last.iterations()?;
        let rate = self.before.and_then(|(before, then)| {
            // An iteration may have been found to be longer or shorter since.
            let before = Progress { period: last.period, ..before }.iterations()?;
            let seconds = now.saturating_since(then).as_secs_f64();
            (seconds > 0.0).then(|| iterations.saturating_sub(before) as f64 / seconds)
        });
        let told = last.told > 0;
        Some(ProgressStatus {
            iterations,
            iterations_per_second: rate.unwrap_or(0.0),
            told,
            period: if told { 0 } else { last.period },
            at_unix_nanos: now,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LINE_BYTES_MAX;
    use keeptime_model::units::Nanos;
    use keeptime_mpiqos::wire::Ask;
    use std::io::{BufRead, BufReader};
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    const ASK: &str = r#"{"communicator":{"members":[0,1],"index":0,"talk":"all-to-all"},"change":1,
        "terms":{"class":"premium","bits_per_second":1000000,"message_bytes_max":0,"paced":true}}"#;

    /// With ranks that wait for the broker for so long.
    fn patient(patience: Duration) -> Arc<Programs> {
        Arc::new(Programs { patience, ..Programs::default() })
    }

    fn rank(number: u32) -> RankState {
        let ask: Ask = serde_json::from_str(ASK).unwrap();
        RankState { number, size: 2, asks: vec![ask] }
    }

    /// The same, which has talked to so many addresses.
    fn long(number: u32, addresses: u32) -> RankState {
        let mut rank = rank(number);
        rank.asks[0].seen =
            Some((0..addresses).map(|at| Ipv4Addr::from_bits(u32::MAX - at)).collect());
        rank
    }

    fn job() -> Name {
        "r1".parse().unwrap()
    }

    /// A broker that grants whatever it is told, once.
    fn grant_next(programs: &Programs, lines: &mut impl BufRead) -> usize {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let FromAgent::Programs { number, job, ranks } = serde_json::from_str(&line).unwrap()
        else {
            panic!("{line}")
        };
        let granted = Answer { state: AskState::Granted, ..Answer::refused("") };
        let answer = |rank: &RankState| (rank.number, RankAnswer::all(rank.asks.len(), &granted));
        programs.answered(number, &job, ranks.iter().map(answer).collect());
        ranks.len()
    }

    #[test]
    fn without_a_broker_ranks_are_told_so() {
        let programs = Arc::new(Programs::default());
        let answer = programs.visit().report(job(), rank(0));
        assert_eq!(answer.answers[0].state, AskState::Refused);
        programs.expect_broker();
        let answer = programs.visit().report(job(), rank(0));
        assert_eq!(answer.answers[0].state, AskState::Waiting);
        assert!(answer.answers[0].reason.contains("does not answer"));
    }

    #[test]
    fn a_rank_waits_for_the_broker_for_so_long_and_is_told_to_ask_again() {
        let programs = patient(Duration::ZERO);
        let (ours, theirs) = UnixStream::pair().unwrap();
        programs.connected(Outgoing::of(Box::new(ours)));
        let visit = programs.visit();
        let answer = visit.report(job(), rank(0));
        assert_eq!(answer.answers[0].state, AskState::Waiting);
        assert!(answer.answers[0].reason.contains("has not answered yet"));
        // What it answers meanwhile is there at the next time.
        grant_next(&programs, &mut BufReader::new(theirs));
        assert_eq!(visit.report(job(), rank(0)).answers[0].state, AskState::Granted);
    }

    #[test]
    fn what_is_asked_reaches_the_broker_once_and_ends_with_the_connection() {
        let programs = Arc::new(Programs::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut lines = BufReader::new(theirs);
        let (first, second) = (programs.visit(), programs.visit());
        // Said before the broker was there: it hears when it comes.
        programs.expect_broker();
        first.report(job(), rank(0));
        programs.connected(Outgoing::of(Box::new(ours)));
        assert_eq!(grant_next(&programs, &mut lines), 1);
        assert_eq!(first.report(job(), rank(0)).answers[0].state, AskState::Granted);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| second.report(job(), rank(1)));
            assert_eq!(grant_next(&programs, &mut lines), 2);
            assert_eq!(asked.join().unwrap().answers[0].state, AskState::Granted);
        });
        drop(second);
        assert_eq!(grant_next(&programs, &mut lines), 1);
        drop(first);
        assert_eq!(grant_next(&programs, &mut lines), 0);
    }

    // Another program of the job, that counts its ranks from 0 too, changes nothing of what is asked for as long as it
    // asks for nothing.
    #[test]
    fn who_asks_for_nothing_takes_nobodys_place() {
        let programs = Arc::new(Programs::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut lines = BufReader::new(theirs);
        programs.connected(Outgoing::of(Box::new(ours)));
        let (asking, quiet) = (programs.visit(), programs.visit());
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| asking.report(job(), rank(0)));
            grant_next(&programs, &mut lines);
            assert_eq!(asked.join().unwrap().answers[0].state, AskState::Granted);
        });
        quiet.report(job(), RankState { asks: vec![], ..rank(0) });
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let FromAgent::Programs { ranks, .. } = serde_json::from_str(&line).unwrap() else {
            panic!("{line}")
        };
        assert_eq!(ranks, [rank(0)]);
    }

    // Nothing is left granted that nobody asks for any more.
    #[test]
    fn who_asks_for_another_job_asks_for_nothing_of_the_former() {
        let programs = Arc::new(Programs::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut lines = BufReader::new(theirs);
        programs.connected(Outgoing::of(Box::new(ours)));
        let (visit, other) = (programs.visit(), "r2".parse::<Name>().unwrap());
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| visit.report(job(), rank(0)));
            assert_eq!(grant_next(&programs, &mut lines), 1);
            asked.join().unwrap();
            let asked = scope.spawn(|| visit.report(other, rank(0)));
            assert_eq!(grant_next(&programs, &mut lines), 0);
            assert_eq!(grant_next(&programs, &mut lines), 1);
            assert_eq!(asked.join().unwrap().answers[0].state, AskState::Granted);
        });
    }

    // Goal: ranks of one job cannot make a line that the broker does not take, which would end the connection of the whole node
    // again and again. Method: seventeen ask for a megabyte each before the broker is there; then the first wants to change that
    // to something longer, and something short beside it.
    #[test]
    fn what_would_make_a_line_too_long_is_refused_and_what_is_there_stays() {
        // A broker that is compiled for tests, beside others, takes its time for two such lines.
        let programs = patient(Duration::from_secs(600));
        programs.expect_broker();
        let visits: Vec<_> = (0..17).map(|number| (number, programs.visit())).collect();
        let asked = visits.iter().map(|(number, visit)| visit.report(job(), long(*number, 58_000)));
        let states: Vec<_> = asked.map(|answer| answer.answers[0].state).collect();
        assert_eq!(states, [[AskState::Waiting; 16].as_slice(), &[AskState::Refused]].concat());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut lines = BufReader::new(theirs);
        let mut other = rank(0).asks.remove(0);
        other.communicator.index = 1;
        std::thread::scope(|scope| {
            scope.spawn(|| programs.connected(Outgoing::of(Box::new(ours))));
            let mut line = Vec::new();
            lines.read_until(b'\n', &mut line).unwrap();
            assert!((15 << 20..=LINE_BYTES_MAX as usize).contains(&line.len()), "{}", line.len());
            let FromAgent::Programs { ranks, .. } = serde_json::from_slice(&line).unwrap() else {
                panic!("another line")
            };
            let asks: Vec<_> = ranks.iter().map(|rank| rank.asks.len()).collect();
            assert_eq!(asks, [[1; 16].as_slice(), &[0]].concat());
            let mut changed = long(0, 65_000 + 58_000);
            changed.asks.push(other);
            let asked = scope.spawn(|| visits[0].1.report(job(), changed));
            assert_eq!(grant_next(&programs, &mut lines), 17);
            let states: Vec<_> = asked.join().unwrap().answers.iter().map(|a| a.state).collect();
            assert_eq!(states, [AskState::Refused, AskState::Granted]);
        });
        assert_eq!(lock(&programs.state).ranks[&1].rank.asks.len(), 2);
    }

    // Goal: a broker that reads nothing keeps no node from being enforced, for which it is asked how far ranks are. Method: one whose
    // connection is full, while a rank's report waits to be written to it.
    #[test]
    fn how_far_ranks_are_is_told_while_the_broker_reads_nothing() {
        let programs = Arc::new(Programs::default());
        programs.expect_broker();
        let (ours, theirs) = UnixStream::pair().unwrap();
        programs.connected(Outgoing::of(Box::new(ours)));
        let (visit, other) = (programs.visit(), programs.visit());
        let progress = Progress { rank: 1, operations: 0, period: 0, told: 3 };
        other.progress(job(), progress, WallTime::from_unix_nanos(1));
        std::thread::scope(|scope| {
            let report = scope.spawn(|| visit.report(job(), long(0, 58_000)));
            let began = Instant::now();
            while programs.state.try_lock().is_ok() {
                assert!(began.elapsed() < Duration::from_secs(60), "it is not written");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(programs.progress_of(&job()).unwrap().iterations, 3);
            let next = programs.visit();
            assert!(next.number > other.number);
            programs.retain(|_| false);
            assert!(!other.has_course() && !report.is_finished());
            drop(theirs);
            programs.disconnected();
            drop(next);
        });
    }

    // Goal: a rank that has ended holds back nobody's progress. Method: the slowest of two ends.
    #[test]
    fn the_slowest_rank_that_is_there_tells_how_far_a_job_is() {
        let programs = Arc::new(Programs::default());
        let (first, second) = (programs.visit(), programs.visit());
        let at = |seconds| WallTime::default().saturating_add(Nanos::from_secs(seconds));
        let one = Progress { rank: 0, operations: 100, period: 10, told: 0 };
        assert_eq!(programs.progress_of(&job()), None);
        assert!(!first.has_course());
        first.progress(job(), one, at(10));
        first.progress(job(), Progress { operations: 140, ..one }, at(12));
        assert!(first.has_course() && !second.has_course());
        second.progress(job(), Progress { rank: 1, operations: 900, ..one }, at(12));
        let status = programs.progress_of(&job()).unwrap();
        assert_eq!(
            (status.iterations, status.iterations_per_second, status.told),
            (14, 2.0, false)
        );
        assert_eq!((status.period, status.at_unix_nanos), (10, at(12)));
        first.progress(job(), Progress { told: 3, ..one }, at(13));
        let status = programs.progress_of(&job()).unwrap();
        assert_eq!((status.iterations, status.told, status.period), (3, true, 0));
        drop(first);
        assert_eq!(programs.progress_of(&job()).unwrap().iterations, 90);
        programs.retain(|_| false);
        assert_eq!(programs.progress_of(&job()), None);
    }
}
