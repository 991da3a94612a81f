//! A run that is to be done by a time, followed by the progress that it tells, if any: where what is held for it will not do or is
//! nearly over, the broker is asked for more, and where that is not to be had, its user is told when it will be done or ended. What to
//! ask for is for `planner::deadline::course`.

use crate::cluster::Cluster;
use crate::rate::beside::Beside;
use crate::rate::counted::{Count, Look, Unit};
use crate::rate::door::{Answer, Asked, CourseView, Door};
use crate::rate::inbox::{Input, Inputs, inbox};
use crate::rate::lines::Lines;
use crate::rate::nodes::GrantedNodes;
use crate::rate::printed::Printed;
use anyhow::{Context as _, Result};
use keeptime_broker::client::ClientError;
use keeptime_broker::wire::Problem;
use keeptime_credentials::dates::now;
use keeptime_engine::book::Reservation;
use keeptime_model::application::{Application, ProgressSource};
use keeptime_model::units::{CpuPpm, WallTime};
use keeptime_planner::deadline::Course;
use keeptime_planner::deadline::course::Held;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a run has to do.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// Units of work in all, as its progress tells them, if that is known.
    pub total: Option<NonZeroU64>,
    /// By when it asks for what that takes.
    pub by: WallTime,
    /// By when its user is told that it is to be done.
    pub told_by: WallTime,
    /// The CPU of each node that it can use.
    pub most: CpuPpm,
}

/// Follows one run until it is dropped.
#[derive(Debug)]
pub struct Followed {
    beside: Beside<CourseView>,
    until: Arc<AtomicU64>,
}

/// What a run's user is told of its course.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// It is slower than was planned, or is not done by then, and was granted more, with which it stands so.
    Granted(&'a CourseView),
    /// It is slower than was planned, or is not done by then, and no more is to be had: it will be late, or ended before it
    /// is done. Once.
    Refused(&'a CourseView),
    /// The command that is to print its progress does not.
    Unprinted(&'a CourseView, &'a str),
}

impl Followed {
    /// Begins to follow what runs under `reservation`. `on_news` hears how it goes.
    ///
    /// # Errors
    /// If nothing was granted, or the directory of such runs is not writable.
    pub fn start(
        cluster: &Cluster,
        application: &Application,
        reservation: &Reservation,
        task: Task,
        on_news: impl FnMut(News<'_>) + Send + 'static,
    ) -> Result<Self> {
        let (clock, job) = (Instant::now(), reservation.handle);
        let held = held(reservation).context("nothing is held for the run")?;
        let nodes = GrantedNodes::new(cluster, reservation, clock)?;
        let view = CourseView {
            job,
            application: application.name().clone(),
            nodes: nodes.names().to_vec(),
            by_unix_nanos: task.told_by,
            work: None,
            work_total: task.total,
            cpu_ppm: held.cpu,
            until_unix_nanos: held.until,
            expected_end_unix_nanos: None,
            refusal: None,
        };
        let (inbox, inputs) = inbox();
        let asks = inbox.clone();
        let door = Door::open(&cluster.rates_directory(), job, move |asked| asks.ask(asked))?;
        let until = Arc::new(AtomicU64::new(held.until.unix_nanos()));
        let way = Way {
            nodes,
            counting: Counting::of(application, clock),
            course: Course::new(task.total, task.by, task.most),
            held,
            view,
            until: Arc::clone(&until),
            has_told: false,
            on_news,
            clock,
        };
        let thread = std::thread::spawn(move || way.go(&inputs));
        let lines = Lines::new(inbox.clone(), application, clock);
        Ok(Self { beside: Beside::new(inbox, lines, door, thread), until })
    }

    /// Takes a line of the run's output.
    pub fn line(&mut self, line: &str) {
        self.beside.line(line);
    }

    /// When what is held for it is over, as is known by now.
    pub fn until(&self) -> Until {
        Until(Arc::clone(&self.until))
    }

    /// It has ended: nobody asks for anything for it when this returns. How it stood; nothing if that was told before.
    pub fn end(&mut self) -> Option<CourseView> {
        self.beside.end()
    }
}

/// When what is held for a run is over.
#[derive(Debug, Clone)]
pub struct Until(Arc<AtomicU64>);

impl Until {
    /// As is known by now.
    pub fn get(&self) -> WallTime {
        WallTime::from_unix_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// A run on its way, and all that is told of it.
struct Way<F> {
    nodes: GrantedNodes,
    counting: Counting,
    course: Course,
    held: Held,
    view: CourseView,
    until: Arc<AtomicU64>,
    /// That no more is to be had was said.
    has_told: bool,
    on_news: F,
    clock: Instant,
}

impl<F: FnMut(News<'_>)> Way<F> {
    /// Until it has ended. How it stood then.
    fn go(mut self, inputs: &Inputs) -> CourseView {
        self.look();
        let mut looked = Instant::now();
        loop {
            match inputs.next(LOOK_EVERY.saturating_sub(looked.elapsed())) {
                Some(Input::Progress { work, at }) => self.course.told(work, at),
                Some(Input::Asked { asked, answer }) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.answer(asked));
                }
                Some(Input::Ended) => return self.view,
                None => {}
            }
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.look();
            }
        }
    }

    fn answer(&self, asked: Asked) -> Answer {
        match asked {
            Asked::State => Answer::Course(self.view.clone()),
            Asked::Set { .. } => {
                let reason = "it is to be done by a time, and has the rate that this takes".into();
                Answer::Refused { reason }
            }
        }
    }

    /// How far it is, what is held for it by now, and what follows from that.
    fn look(&mut self) {
        // What others were let in for, or have left, is not told by anybody else.
        if let Ok(reservation) = self.nodes.reservation() {
            self.has(&reservation);
        }
        self.course.has(self.view.cpu_ppm, self.clock.elapsed().into());
        if let Some(Count { work, at, .. }) = self.counting.count(&mut self.nodes) {
            self.course.told(work, at);
        }
        if let Some(reason) = self.counting.take_failure() {
            (self.on_news)(News::Unprinted(&self.view, &reason));
        }
        self.view.work = self.course.work();
        self.judge();
    }

    fn judge(&mut self) {
        let asks = self.foresee();
        if asks.is_empty() {
            return;
        }
        self.course.asks(self.clock.elapsed().into());
        match self.ask(asks) {
            Ok(true) => {
                self.foresee();
                (self.on_news)(News::Granted(&self.view));
            }
            Ok(false) => {}
            Err(refusal) => {
                self.view.refusal = Some(refusal);
                if self.view.is_short() && !self.has_told {
                    self.has_told = true;
                    (self.on_news)(News::Refused(&self.view));
                }
            }
        }
    }

    /// When it will be done, and what it needs.
    fn foresee(&mut self) -> Vec<Held> {
        let outlook = self.course.outlook(now(), self.clock.elapsed().into(), &self.held);
        self.view.expected_end_unix_nanos = outlook.ends;
        outlook.asks
    }

    /// Asks for one after the other until one is granted; not whether it would be where the broker is away, or about to
    /// change what is held.
    ///
    /// # Errors
    /// Why the first is not granted, in the user's words.
    fn ask(&mut self, asks: Vec<Held>) -> Result<bool, String> {
        let mut refusal = None;
        for Held { cpu, until, .. } in asks {
            match self.nodes.have(cpu, until) {
                Ok(reservation) => {
                    self.has(&reservation);
                    self.view.refusal = None;
                    return Ok(true);
                }
                Err(error) if is_for_later(&error) => return Ok(false),
                Err(error) => refusal = refusal.or(Some(error.to_string())),
            }
        }
        refusal.map_or(Ok(false), Err)
    }

    fn has(&mut self, reservation: &Reservation) {
        let Some(held) = held(reservation) else { return };
        self.held = held;
        self.until.store(held.until.unix_nanos(), Ordering::SeqCst);
        (self.view.cpu_ppm, self.view.until_unix_nanos) = (held.cpu, held.until);
    }
}

fn is_for_later(error: &ClientError) -> bool {
    error.is_retryable() || error.problem().is_some_and(Problem::is_for_later)
}

/// What is held now, and until when.
fn held(reservation: &Reservation) -> Option<Held> {
    let grant = reservation.grant.as_ref()?.at(now());
    Some(Held { cpu: grant.cpu_ppm, later: grant.later, until: reservation.until_unix_nanos? })
}

/// What tells its progress.
#[derive(Debug)]
enum Counting {
    /// Its lines, which come by themselves.
    Lines,
    /// Its agents.
    MpiCalls,
    /// A command.
    Printed(Printed),
}

impl Counting {
    fn of(application: &Application, clock: Instant) -> Self {
        match application.progress_source() {
            Some(ProgressSource::MpiCalls) => Self::MpiCalls,
            Some(ProgressSource::Command(command)) => Self::Printed(Printed::start(command, clock)),
            _ => Self::Lines,
        }
    }

    /// How far it is, where that has to be asked for.
    fn count(&self, nodes: &mut GrantedNodes) -> Option<Count> {
        match self {
            Self::Lines => None,
            Self::MpiCalls => slowest(nodes.look()?),
            Self::Printed(printed) => printed.newest(),
        }
    }

    fn take_failure(&self) -> Option<String> {
        match self {
            Self::Lines | Self::MpiCalls => None,
            Self::Printed(printed) => printed.take_failure(),
        }
    }
}

/// How far the slowest rank is, as the program tells it: what is inferred from its calls are other units than those of which
/// somebody has said how many there are.
fn slowest(looks: Vec<Look>) -> Option<Count> {
    let counts = looks.into_iter().filter_map(|look| look.count);
    counts.filter(|count| count.unit == Unit::Told).min_by_key(|count| count.work)
}

/// How often it is looked: others change what is held, and agents and commands count once a second.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;

    #[test]
    fn the_slowest_rank_that_tells_its_progress_counts() {
        let at = Nanos::from_secs(5);
        let look = |work, unit| Look { at, used: at, count: Some(Count { work, at, unit }) };
        let silent = Look { at, used: at, count: None };
        let told = vec![look(9, Unit::Told), silent, look(7, Unit::Told)];
        assert_eq!(slowest(told.clone()).unwrap().work, 7);
        let inferred = look(3, Unit::Operations(2));
        assert_eq!(slowest([told, vec![inferred]].concat()).unwrap().work, 7);
        assert_eq!(slowest(vec![inferred]), None);
    }
}
