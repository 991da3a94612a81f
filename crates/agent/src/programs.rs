//! What the MPI programs of this node ask for, on its way to the broker and back. A rank is known by
//! its connection: when that ends, so does all that it asked for.
//!
//! A short word of one rank changes a line that says what all ranks of its job ask for. One thread tells the broker, and always
//! the newest: at once, or when the job has told so much that it is to pause.

mod fitted;

use crate::link::{FromAgent, Outgoing};
use crate::pace::Pace;
use fitted::Fitted;
use keeptime_linux::vital;
use keeptime_locks::{lock, unpoisoned};
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use keeptime_mpiqos::wire::{Answer, AskState, Progress, RankAnswer, RankState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The broker records, asks every node of the job and answers within this time, or the rank is told
/// to ask again.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Of one job the broker is told so much a second for as long as it changes, and a second's worth at once. The longest line has its turn
/// again within [`ANSWER_WITHIN`].
const TOLD_BYTES_PER_SECOND: u64 = 4 << 20;
/// A line counts for so much at the least, since the broker looks at all of the job for each: 256 a second, more than a rank can set
/// attributes one after the other.
const LINE_BYTES_MIN: u64 = 16 << 10;

/// All ranks that are connected.
#[derive(Debug)]
pub struct Programs {
    /// How long a rank waits for the broker.
    patience: Duration,
    connections: AtomicU64,
    state: Mutex<State>,
    /// How far ranks are, by the numbers of their connections: apart, since that is asked for while this node is enforced.
    courses: Mutex<BTreeMap<u64, Course>>,
    answered: Condvar,
    /// That the broker is to be told something, or is another one.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of what was said last: of no two jobs and no two talks the same.
    said: u64,
    ranks: BTreeMap<u64, Seat>,
    talks: BTreeMap<Name, Talk>,
    broker: Broker,
}

/// Whether the broker is there.
#[derive(Debug, Default, PartialEq, Eq)]
enum Broker {
    /// This agent has none.
    #[default]
    None,
    Away,
    /// By the connection of this number.
    Connected(u64),
}

#[derive(Debug)]
struct Seat {
    job: Name,
    rank: RankState,
    /// How long what it asks for is in the line that the broker is told.
    bytes: usize,
}

/// What is said to the broker of one job, and answered.
#[derive(Debug, Default)]
struct Talk {
    said: u64,
    /// Of that, the first that the broker was not told yet, nor anything later.
    untold: Option<u64>,
    answered: u64,
    answers: BTreeMap<u32, RankAnswer>,
    /// Of what it is told.
    pace: Pace,
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
        let (connections, state, courses, answered, changed) = Default::default();
        Self { patience: ANSWER_WITHIN, connections, state, courses, answered, changed }
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

    /// The broker is there: it is told all that is asked for, and what changes of that until it is away.
    ///
    /// # Errors
    /// If there can be no thread that does so.
    pub(crate) fn connected(self: &Arc<Self>, broker: Outgoing) -> io::Result<()> {
        let connection = lock(&self.state).connect();
        let programs = Arc::clone(self);
        // Without it ranks would wait for answers that never come.
        vital::spawn("programs", move || programs.tell(&broker, connection)).map(drop)
    }

    /// The broker went away.
    pub(crate) fn disconnected(&self) {
        let mut state = lock(&self.state);
        state.broker = Broker::Away;
        state.forget(Instant::now());
        self.answered.notify_all();
        self.changed.notify_all();
    }

    /// Tells the broker what has changed as long as this connection lasts. Ranks and others go on meanwhile, however long it
    /// takes the broker to read it.
    fn tell(&self, broker: &Outgoing, connection: u64) {
        let mut state = lock(&self.state);
        while state.broker == Broker::Connected(connection) {
            let now = Instant::now();
            match state.next(now) {
                None => state = unpoisoned(self.changed.wait(state)),
                Some((pause, job)) if pause.is_zero() => {
                    let told = state.take(job, now);
                    drop(state);
                    // One that cannot be written to is about to be found away.
                    let _ = broker.say(&told);
                    state = lock(&self.state);
                }
                Some((pause, _)) => {
                    state = unpoisoned(self.changed.wait_timeout(state, pause)).0;
                }
            }
        }
    }

    /// What ranks ask for of a job has changed. The number under which that is answered.
    fn change(&self, state: &mut State, job: &Name) -> u64 {
        self.changed.notify_all();
        state.say(job)
    }

    /// A rank asks for nothing more of a job.
    fn leave(&self, state: &mut State, job: &Name) {
        self.change(state, job);
        state.forget(Instant::now());
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
            self.programs.leave(&mut state, &former.job);
        }
        let is_known = before.is_some_and(|before| state.ranks[&self.number].is(&before))
            && state.talks.get(&job).is_some_and(|talk| talk.has_decided(number));
        let said = if is_known { 0 } else { self.programs.change(&mut state, &job) };
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
        self.programs.leave(&mut state, &seat.job);
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

    /// A broker is there that was told nothing yet. The number of the connection.
    fn connect(&mut self) -> u64 {
        let jobs: BTreeSet<_> = self.ranks.values().map(|seat| seat.job.clone()).collect();
        for job in &jobs {
            self.say(job);
        }
        self.said += 1;
        self.broker = Broker::Connected(self.said);
        self.said
    }

    /// The broker is to be told all that ranks of a job ask for here. The number under which it answers.
    fn say(&mut self, job: &Name) -> u64 {
        self.said += 1;
        let talk = self.talks.entry(job.clone()).or_default();
        talk.said = self.said;
        talk.untold.get_or_insert(self.said);
        self.said
    }

    /// Of which job the broker is to be told next, and in how long: of those that need not pause, the one that has changed first.
    fn next(&self, now: Instant) -> Option<(Duration, Name)> {
        let turn = |(job, talk): (_, &Talk)| Some((talk.pace.wait(now), talk.untold?, job));
        let next = self.talks.iter().filter_map(turn).min();
        next.map(|(pause, _, job): (_, _, &Name)| (pause, job.clone()))
    }

    /// What the broker is told of a job now.
    fn take(&mut self, job: Name, now: Instant) -> FromAgent {
        let of_job = self.ranks.values().filter(|seat| seat.job == job);
        let bytes = of_job.map(|seat| seat.bytes as u64).sum::<u64>().max(LINE_BYTES_MIN);
        let ranks = self.ranks_of(&job);
        let talk = self.talks.entry(job.clone()).or_default();
        talk.untold = None;
        talk.pace.spend(now, Duration::from_micros(1_000_000 * bytes / TOLD_BYTES_PER_SECOND));
        let number = talk.said;
        self.forget(now);
        FromAgent::Programs { number, job, ranks }
    }

    /// Forgets jobs without ranks, unless the broker is still to be told that, or to pause.
    fn forget(&mut self, now: Instant) {
        let jobs: BTreeSet<_> = self.ranks.values().map(|seat| &seat.job).collect();
        let is_connected = matches!(self.broker, Broker::Connected(_));
        self.talks.retain(|job, talk| {
            let is_to_be_told = is_connected && talk.untold.is_some();
            jobs.contains(job) || is_to_be_told || !talk.pace.is_fresh(now)
        });
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
    use std::io::{BufRead, BufReader, Read};
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
        programs.connected(Outgoing::of(Box::new(ours))).unwrap();
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
        programs.connected(Outgoing::of(Box::new(ours))).unwrap();
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
        programs.connected(Outgoing::of(Box::new(ours))).unwrap();
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
        programs.connected(Outgoing::of(Box::new(ours))).unwrap();
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
            programs.connected(Outgoing::of(Box::new(ours))).unwrap();
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

    // Goal: a broker that reads nothing keeps nobody here waiting, and is told the newest, and no more, as soon as it reads. Method: one
    // whose connection is full of a long line, while ranks change what they ask for and others tell how far they are.
    #[test]
    fn what_changes_while_the_broker_reads_nothing_is_told_once() {
        let programs = patient(Duration::ZERO);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        programs.connected(Outgoing::of(Box::new(ours))).unwrap();
        let (visit, other) = (programs.visit(), programs.visit());
        visit.report(job(), long(0, 58_000));
        // It has begun.
        theirs.read_exact(&mut [0]).unwrap();
        let changed = |change| {
            let mut changed = rank(1);
            changed.asks[0].change = change;
            changed
        };
        for change in 1..=100 {
            let answer = other.report(job(), changed(change));
            assert_eq!(answer.answers[0].state, AskState::Waiting);
        }
        let progress = Progress { rank: 1, operations: 0, period: 0, told: 3 };
        other.progress(job(), progress, WallTime::from_unix_nanos(1));
        assert_eq!(programs.progress_of(&job()).unwrap().iterations, 3);
        programs.retain(|_| false);
        assert!(!other.has_course());
        let mut lines = BufReader::new(theirs).lines();
        lines.next().unwrap().unwrap();
        let line = lines.next().unwrap().unwrap();
        let FromAgent::Programs { number, ranks, .. } = serde_json::from_str(&line).unwrap() else {
            panic!("{line}")
        };
        assert_eq!(ranks, [long(0, 58_000), changed(100)]);
        let state = lock(&programs.state);
        assert_eq!((number, state.next(Instant::now())), (state.said, None));
    }

    /// What the broker is told of the jobs whose turn it is at one moment, in bytes and by their names.
    fn told(state: &mut State, at: Instant) -> Vec<(usize, String)> {
        let mut lines = Vec::new();
        while lines.len() < 300
            && let Some((Duration::ZERO, next)) = state.next(at)
        {
            let line = serde_json::to_vec(&state.take(next.clone(), at)).unwrap();
            lines.push((line.len(), next.to_string()));
            // Its ranks go on changing what they ask for.
            state.say(&next);
        }
        lines
    }

    // Goal: by whatever its ranks do, a job has the broker read so much and no more, and holds up no other. Method: one that asks
    // for 8 MiB and one that asks for little, both of which change whenever the broker has been told, and moments that pass.
    #[test]
    fn a_job_that_does_not_stop_changing_is_told_at_its_pace() {
        let (mut state, at) = (State::default(), Instant::now());
        let (large, small): (Name, Name) = (job(), "r2".parse().unwrap());
        let seat = |job: &Name, rank: RankState| {
            let Fitted { rank, bytes, .. } = Fitted::beside(0, &[], rank);
            Seat { job: job.clone(), rank, bytes }
        };
        let ranks = (0..8).map(|number| seat(&large, long(number, 61_000)));
        state.ranks.extend((0..).zip(ranks.chain([seat(&small, rank(0))])));
        state.connect();
        let first = told(&mut state, at);
        let count = |lines: &[(usize, String)], job: &Name| {
            lines.iter().filter(|(_, of)| of == job.as_str()).count()
        };
        assert_eq!((count(&first, &large), count(&first, &small)), (1, 257));
        let mut bytes = 0;
        for second in 1..=10 {
            let lines = told(&mut state, at + Duration::from_secs(second));
            assert_eq!(count(&lines, &small), 256);
            let long = lines.iter().filter(|(_, of)| of == large.as_str());
            bytes += long.map(|(bytes, _)| *bytes as u64).sum::<u64>();
        }
        // The last one may have only just begun.
        assert!((8 << 20..=12 * TOLD_BYTES_PER_SECOND).contains(&bytes), "{bytes}");
        // Who is gone is forgotten, when the broker has been told.
        state.ranks.clear();
        told(&mut state, at + Duration::from_secs(20));
        state.broker = Broker::Away;
        state.forget(at + Duration::from_secs(60));
        assert!(state.talks.is_empty());
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
