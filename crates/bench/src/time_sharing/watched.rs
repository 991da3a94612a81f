//! A program that runs on a lab while somebody acts on it, and what is seen of it from outside: its iterations, by the
//! lines that it prints, and what its controller says of itself.

use anyhow::{Context, Result, bail};
use keeptime::cluster::Cluster;
use keeptime::commands::Session;
use keeptime::commands::rate::{FullSpeedFrom, Held};
use keeptime::execute::{Execution, Run};
use keeptime::hold::Hold;
use keeptime::interrupt;
use keeptime::rate::door::{Answer, Asked, ask};
use keeptime::rate::nodes::{GrantedNodes, node_indices};
use keeptime::rate::steering::{Applied, Nodes, Phase, Wanted};
use keeptime_control::Schedule;
use keeptime_launch::process::{Progress, Said, run};
use keeptime_locks::lock;
use keeptime_model::application::Parameters;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::goal::Goal;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A program over time. Instants are seconds since the beginning of its figure.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Trace {
    /// When each iteration was told.
    pub iterations: Vec<f64>,
    /// What its controller said whenever that changed.
    pub seen: Vec<Seen>,
}

/// What a controller says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// When it was asked.
    pub at: f64,
    /// The part of full speed that is wanted.
    pub target: f64,
    /// The part that the last report told.
    pub actual: Option<f64>,
    /// Iterations a second at full speed, as it takes that to be.
    pub full_speed: Option<f64>,
    /// Of each node's processor.
    pub share: Option<f64>,
    /// Seconds.
    pub period: Option<f64>,
}

/// A program that is being watched.
pub struct Watched<'a> {
    begin: Instant,
    trace: Mutex<Trace>,
    is_over: AtomicBool,
    cluster: &'a Cluster,
}

/// The same, held at a rate.
pub struct Steered<'a> {
    watched: &'a Watched<'a>,
    job: Handle,
}

/// The same on nodes that have what they are told, and nobody corrects anything.
pub struct Still<'a> {
    watched: &'a Watched<'a>,
    nodes: GrantedNodes,
}

/// It reads its start, and full speed is measured for five seconds.
const READY_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the session's application on `nodes` nodes, held as `wanted`, while `act` acts on it.
///
/// # Errors
/// Those of `act`, with what became of the run; if it cannot be started.
pub fn steered(
    session: &Session,
    nodes: u32,
    (wanted, from): (Wanted, FullSpeedFrom),
    begin: Instant,
    act: impl FnOnce(&Steered<'_>) -> Result<()>,
) -> Result<Trace> {
    let goal = Goal { nodes: Some(nodes), ..Goal::default() };
    let held = Held::new(session, &goal, wanted, from, CpuMechanism::Auto)?;
    let job = held.handle();
    let watched = Watched::new(&session.cluster, begin);
    let run = |stopped: &dyn Fn() -> bool, on_line: &mut dyn FnMut(&str)| {
        held.run(stopped, &mut by_line(on_line)).map(drop)
    };
    watched.while_it_runs(run, Some(job), || act(&Steered { watched: &watched, job }))
}

/// The same with all CPU of the application, or what `act` says.
///
/// # Errors
/// As [`steered`].
pub fn still(
    session: &Session,
    nodes: u32,
    begin: Instant,
    act: impl FnOnce(&mut Still<'_>) -> Result<()>,
) -> Result<Trace> {
    let Session { cluster, mpi, application, .. } = session;
    let (nodes, cpu_ppm) = (NodeChoice::Any(nodes), application.cpu());
    let resources = Resources { nodes, cpu_ppm, ..Resources::nothing() };
    let hold = Hold::take(cluster, Ask::Resources(resources), application.timeout())?;
    let reservation = cluster.broker()?.reservation(hold.handle())?;
    let grant = reservation.grant.as_ref().context("the broker granted nothing")?;
    let places = node_indices(cluster, grant)?;
    let nodes = GrantedNodes::new(cluster, &reservation, begin)?;
    let watched = Watched::new(cluster, begin);
    let run = |stopped: &dyn Fn() -> bool, on_line: &mut dyn FnMut(&str)| {
        let parameters = &Parameters::default();
        let run = Run { application, parameters, nodes: &places, rate: None };
        let execution = Execution { stopped, ..Execution::new(cluster, mpi, run) };
        execution.under(&hold, &mut by_line(on_line)).map(drop)
    };
    watched.while_it_runs(run, None, || act(&mut Still { watched: &watched, nodes }))
}

/// The same on the first `nodes` nodes with nothing reserved, beside whatever else is there.
///
/// # Errors
/// As [`steered`].
pub fn unprotected(
    session: &Session,
    nodes: u32,
    begin: Instant,
    act: impl FnOnce(&Watched<'_>) -> Result<()>,
) -> Result<Trace> {
    let Session { cluster, mpi, application, .. } = session;
    let nodes: Vec<_> = (0..nodes).map(NodeIndex).collect();
    let command = application.command(&Parameters::default())?;
    let (line, _remote) = cluster.mpi_line(mpi, &nodes, None, &command)?;
    alongside(cluster, &line, application.timeout(), begin, act)
}

/// Runs `line`, a command on this machine that starts a program on the cluster, for `limit` at most.
///
/// # Errors
/// As [`steered`].
pub fn alongside(
    cluster: &Cluster,
    line: &[String],
    limit: Nanos,
    begin: Instant,
    act: impl FnOnce(&Watched<'_>) -> Result<()>,
) -> Result<Trace> {
    let watched = Watched::new(cluster, begin);
    let start = |stopped: &dyn Fn() -> bool, on_line: &mut dyn FnMut(&str)| {
        let mut watch = |line: &str| {
            on_line(line);
            Progress::Running
        };
        Ok(run(line, limit, stopped, &mut watch).map(drop)?)
    };
    watched.while_it_runs(start, None, || act(&watched))
}

/// Who hears lines of standard output alone.
fn by_line(on_line: &mut dyn FnMut(&str)) -> impl FnMut(Said<'_>) {
    |said| {
        if let Said::Out(line) = said {
            on_line(line);
        }
    }
}

impl Seen {
    /// That a part of full speed is wanted, and no more.
    pub fn nothing(at: f64, target: f64) -> Self {
        Self { at, target, actual: None, full_speed: None, share: None, period: None }
    }
}

impl<'a> Watched<'a> {
    fn new(cluster: &'a Cluster, begin: Instant) -> Self {
        Self { begin, trace: Mutex::default(), is_over: AtomicBool::new(false), cluster }
    }

    fn while_it_runs(
        &self,
        run: impl FnOnce(&dyn Fn() -> bool, &mut dyn FnMut(&str)) -> Result<()> + Send,
        job: Option<Handle>,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<Trace> {
        let is_over = || self.is_over.load(Ordering::SeqCst);
        let acted = thread::scope(|scope| {
            let runs = scope.spawn(|| {
                let ran = run(&|| is_over() || interrupt::stopped(), &mut |line| self.heard(line));
                // It is stopped, and so never ends well; who waits for it is to know if it ended before.
                self.is_over.store(true, Ordering::SeqCst);
                ran.err()
            });
            if let Some(job) = job {
                scope.spawn(move || {
                    while !self.is_over.load(Ordering::SeqCst) {
                        self.look(job);
                        thread::sleep(LOOK_EVERY);
                    }
                });
            }
            let acted = act();
            self.is_over.store(true, Ordering::SeqCst);
            let why = runs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            acted.with_context(|| format!("the run: {why:?}"))
        });
        acted?;
        Ok(std::mem::take(&mut *lock(&self.trace)))
    }

    /// Seconds since the beginning.
    pub fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Lets so many seconds pass.
    ///
    /// # Errors
    /// If the program ends meanwhile.
    pub fn wait(&self, seconds: f64) -> Result<()> {
        let until = self.now() + seconds;
        while self.now() < until {
            if self.is_over.load(Ordering::SeqCst) {
                bail!("it has ended too early");
            }
            thread::sleep(LOOK_EVERY.min(Duration::from_secs_f64((until - self.now()).max(0.001))));
        }
        Ok(())
    }

    /// The same; from when until when that was.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn span(&self, seconds: f64) -> Result<(f64, f64)> {
        let from = self.now();
        self.wait(seconds)?;
        Ok((from, self.now()))
    }

    /// Waits until it has told an iteration.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn wait_for_first(&self) -> Result<()> {
        self.wait_until("it has told no iteration", || !lock(&self.trace).iterations.is_empty())
    }

    fn wait_until(&self, otherwise: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_so() {
            if start.elapsed() > READY_WITHIN {
                bail!("{otherwise} within {READY_WITHIN:?}");
            }
            self.wait(LOOK_EVERY.as_secs_f64())?;
        }
        Ok(())
    }

    fn heard(&self, line: &str) {
        if line.split(' ').next() == Some("iteration") {
            let at = self.now();
            lock(&self.trace).iterations.push(at);
        }
    }

    fn look(&self, job: Handle) {
        let Ok(Answer::State(view)) = ask(&self.cluster.rates_directory(), job, Asked::State)
        else {
            return;
        };
        let state = view.state;
        let schedule = state.schedule;
        let seen = Seen {
            at: self.now(),
            target: state.target.as_f64(),
            actual: state.actual,
            full_speed: state.full_speed,
            share: schedule.map(|schedule| f64::from(schedule.cpu().get()) / 1e6),
            period: schedule.map(|schedule| schedule.period().as_secs_f64()),
        };
        let mut trace = lock(&self.trace);
        let is_new = trace.seen.last().is_none_or(|last| Seen { at: seen.at, ..*last } != seen);
        if is_new {
            trace.seen.push(seen);
        }
    }
}

impl Steered<'_> {
    /// Waits until full speed is known.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn ready(&self) -> Result<()> {
        let directory = self.watched.cluster.rates_directory();
        self.watched.wait_until("full speed was not found", || {
            let answer = ask(&directory, self.job, Asked::State);
            matches!(answer, Ok(Answer::State(view)) if view.state.phase == Phase::Steered)
        })?;
        self.watched.wait_for_first()
    }

    /// Another target.
    ///
    /// # Errors
    /// If it is refused.
    pub fn set(&self, target: Share) -> Result<()> {
        // What the last report told until now is no answer to it.
        self.watched.look(self.job);
        match ask(&self.watched.cluster.rates_directory(), self.job, Asked::Set { target })? {
            Answer::State(_) => Ok(()),
            Answer::Course(_) => bail!("{} is not held at a rate", self.job),
            Answer::Refused { reason } => bail!("{target} was refused: {reason}"),
        }
    }

    /// As [`Watched::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait(&self, seconds: f64) -> Result<()> {
        self.watched.wait(seconds)
    }

    /// As [`Watched::span`].
    ///
    /// # Errors
    /// As there.
    pub fn span(&self, seconds: f64) -> Result<(f64, f64)> {
        self.watched.span(seconds)
    }
}

impl Still<'_> {
    /// What runs, seen from outside.
    pub fn watched(&self) -> &Watched<'_> {
        self.watched
    }

    /// Every node gives so much from now on.
    ///
    /// # Errors
    /// If a node does not.
    pub fn apply(&mut self, schedule: Schedule) -> Result<()> {
        match self.nodes.apply(&[schedule], false) {
            Applied::InForce { .. } => Ok(()),
            Applied::Refused { reason } => bail!("{schedule:?} was refused: {reason}"),
            Applied::NotYet => bail!("it is being changed"),
            Applied::Unknown => bail!("the broker does not answer"),
        }
    }
}

impl Trace {
    /// Iterations that were done by then, with the part of the one that was under way as if it went evenly.
    fn done(&self, at: f64) -> f64 {
        let after = self.iterations.partition_point(|told| *told <= at);
        let (Some(before), Some(next)) = (
            after.checked_sub(1).map(|before| self.iterations[before]),
            self.iterations.get(after),
        ) else {
            return after as f64;
        };
        after as f64 + (at - before) / (next - before)
    }

    /// Iterations a second between two instants, in both of which it ran.
    pub fn rate(&self, from: f64, to: f64) -> f64 {
        (self.done(to) - self.done(from)) / (to - from)
    }

    /// The same in each whole window of so many seconds between them: its end, and the rate.
    pub fn rates(&self, from: f64, to: f64, window: f64) -> Vec<(f64, f64)> {
        let count = ((to - from) / window + 1e-9).floor() as usize;
        let end = |at: usize| from + (at + 1) as f64 * window;
        (0..count).map(|at| (end(at), self.rate(end(at) - window, end(at)))).collect()
    }

    /// When the last iteration was told.
    pub fn end(&self) -> f64 {
        self.iterations.last().copied().unwrap_or_default()
    }

    /// What its controller took full speed to be between two instants, on average over time.
    pub fn full_speed(&self, from: f64, to: f64) -> Option<f64> {
        let known = || self.seen.iter().filter_map(|seen| Some((seen.at, seen.full_speed?)));
        let before = known().take_while(|(at, _)| *at <= from).last().or_else(|| known().next())?;
        let (mut sum, mut last) = (0.0, (from, before.1));
        for (at, speed) in known().filter(|(at, _)| (from..to).contains(at)) {
            sum += (at - last.0) * last.1;
            last = (at, speed);
        }
        Some((sum + (to - last.0) * last.1) / (to - from))
    }

    /// The part of full speed at which it ran in each window, full speed as its controller followed it.
    pub fn parts(&self, from: f64, to: f64, window: f64) -> Vec<(f64, f64)> {
        let part =
            |(end, rate): (f64, f64)| Some((end, rate / self.full_speed(end - window, end)?));
        self.rates(from, to, window).into_iter().filter_map(part).collect()
    }

    /// The longest time without an iteration between two instants, in seconds.
    pub fn longest_pause(&self, from: f64, to: f64) -> f64 {
        let within = self.iterations.iter().copied().filter(|at| (from..to).contains(at));
        let instants: Vec<_> = [from].into_iter().chain(within).chain([to]).collect();
        instants.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    }

    /// Times that its schedule changed between two instants.
    pub fn changes(&self, from: f64, to: f64) -> usize {
        let within = self.seen.iter().filter(|seen| (from..=to).contains(&seen.at));
        let schedules: Vec<_> = within.map(|seen| (seen.share, seen.period)).collect();
        schedules.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// Reports from `at` on, and seconds, until one told a rate within `threshold` of the target; nothing if none did
    /// before `until`.
    pub fn response(&self, at: f64, until: f64, threshold: f64) -> Option<(u32, f64)> {
        let mut last = self.seen.iter().take_while(|seen| seen.at <= at).last()?.actual;
        let mut reports = 0;
        for seen in self.seen.iter().filter(|seen| at < seen.at && seen.at <= until) {
            if seen.actual == last {
                continue;
            }
            (last, reports) = (seen.actual, reports + 1);
            if seen.actual.is_some_and(|actual| (actual - seen.target).abs() <= threshold) {
                return Some((reports, seen.at - at));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(at: f64, actual: f64, share: f64) -> Seen {
        let (actual, share) = (Some(actual), Some(share));
        Seen { at, target: 0.5, actual, full_speed: Some(10.0), share, period: Some(0.02) }
    }

    #[test]
    fn rates_count_parts_of_iterations_and_parts_follow_full_speed() {
        let iterations = (1..=40).map(|at| f64::from(at) * 0.2).collect();
        let mut trace = Trace { iterations, seen: vec![seen(0.0, 0.5, 0.2)] };
        assert!((trace.rate(1.1, 3.3) - 5.0).abs() < 1e-9);
        assert_eq!(trace.rates(1.0, 4.5, 1.0).len(), 3);
        let parts = trace.parts(1.0, 5.0, 2.0);
        assert!(parts.iter().all(|(_, part)| (part - 0.5).abs() < 1e-9), "{parts:?}");
        trace.seen.push(Seen { full_speed: Some(5.0), ..seen(3.0, 1.0, 0.2) });
        assert_eq!(trace.full_speed(2.0, 4.0), Some(7.5));
        assert_eq!(trace.full_speed(5.0, 6.0), Some(5.0));
        assert_eq!(Trace::default().full_speed(0.0, 1.0), None);
        trace.iterations.retain(|at| !(2.1..5.1).contains(at));
        assert!((trace.longest_pause(0.0, 6.0) - 3.2).abs() < 1e-9);
        assert!((trace.longest_pause(7.9, 9.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_response_is_counted_in_reports_since_the_target_changed() {
        let told = [(0.0, 0.3, 0.1), (1.0, 0.31, 0.1), (2.5, 0.4, 0.2), (3.5, 0.49, 0.2)];
        let seen = told.map(|(at, actual, share)| seen(at, actual, share)).to_vec();
        let trace = Trace { iterations: Vec::new(), seen };
        assert_eq!(trace.response(1.2, 9.0, 0.03), Some((2, 2.3)));
        assert_eq!(trace.response(1.2, 3.0, 0.03), None);
        assert_eq!(trace.changes(0.0, 9.0), 1);
    }
}
