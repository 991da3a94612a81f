//! A run that is held at a part of its full speed.
//!
//! * [`steering`]: from progress to schedules; decides, and asks nobody itself;
//! * [`controller`]: that in a process of its own, which may be killed;
//! * [`keeper`]: sees to it that there is one, and carries out what it wants;
//! * [`beside`]: what goes on beside the run, until it ends;
//! * [`lines`]: progress as the program's own lines tell it;
//! * [`inbox`](mod@inbox): what it is told, the most urgent first;
//! * [`limit`]: how long the run may take at its rate;
//! * [`counted`]: progress as agents count it by MPI calls, or as a command prints it;
//! * [`printed`]: that command;
//! * [`known`]: full speed as an earlier run has measured it;
//! * [`nodes`]: its nodes, by the broker and the agents;
//! * [`door`]: where it is asked how it stands, and told another rate.

pub mod beside;
pub mod controller;
pub mod counted;
pub mod door;
pub mod inbox;
pub mod keeper;
pub mod known;
pub mod limit;
pub mod lines;
pub mod nodes;
pub mod printed;
pub mod steering;

use crate::cluster::Cluster;
use anyhow::Result;
use beside::Beside;
use controller::Event;
use counted::{Counts, Look};
use door::{Answer, Asked, Door, RateView};
use inbox::{Input, Inputs, inbox};
use keeper::{Keeper, Running};
use keeptime_control::FullSpeed;
use keeptime_engine::book::Reservation;
use keeptime_model::application::{Application, ProgressSource};
use keeptime_model::units::{CpuPpm, Nanos};
use limit::{Allowed, RunTime};
use lines::Lines;
use nodes::GrantedNodes;
use printed::Printed;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use steering::{Aimed, Begins, Memory, Nodes, Phase, State, Used, Wanted};

/// Steers one run until it is dropped.
#[derive(Debug)]
pub struct Steered {
    beside: Beside<RateView>,
    allowed: Allowed,
}

/// What a run is told of its way to its rate.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// Full speed was measured.
    Found(&'a FullSpeed),
    /// It stands so, for the first time.
    Turned(&'a RateView),
    /// Its full speed is not what an earlier run has found, as is seen for the first time.
    Doubted(&'a RateView),
    /// The command that is to print its progress does not.
    Unprinted {
        /// How it stands.
        view: &'a RateView,
        /// Why not.
        reason: &'a str,
    },
    /// Its controller had ended, and another one goes on.
    Restarted(&'a RateView),
    /// There is no controller for it now: it stays as it is.
    Alone {
        /// How it stood.
        view: &'a RateView,
        /// Why not.
        reason: &'a str,
    },
    /// It is slower and would take longer than its reservation lasts, which cannot last longer now.
    Short {
        /// How it stands.
        view: &'a RateView,
        /// Why not.
        reason: &'a str,
    },
}

impl Steered {
    /// Begins to steer what runs under `reservation` and `begins` so. At full speed nodes have `full` each. `on_news`
    /// hears how it goes.
    ///
    /// # Errors
    /// A target or threshold of nothing; if its controller cannot be started, or the directory of such runs is not
    /// writable.
    pub fn start(
        cluster: &Cluster,
        application: &Application,
        reservation: &Reservation,
        wanted: Wanted,
        full: CpuPpm,
        begins: Begins,
        on_news: impl FnMut(News<'_>) + Send + 'static,
    ) -> Result<Self> {
        let clock = Instant::now();
        let nodes = GrantedNodes::new(cluster, reservation, clock)?;
        let (count, target) = (nodes.count(), wanted.target);
        let memory = Memory::beginning(wanted, full, count, begins)?;
        let keeper = Keeper::new(nodes, memory, clock, Running::process)?;
        let time = RunTime::new(application.timeout(), target);
        let (allowed, grant) = (time.allowed(), reservation.grant.as_ref());
        let view = RateView {
            job: reservation.handle,
            application: application.name().clone(),
            nodes: grant.map(|grant| grant.nodes.clone()).unwrap_or_default(),
            state: keeper.state(),
            limit_nanos: allowed.get(),
            cpu_mechanism: reservation.request.cpu_mechanism,
            cpu_kept_by: BTreeMap::new(),
            follows: None,
        };
        let (inbox, inputs) = inbox();
        let asks = inbox.clone();
        let door = Door::open(&cluster.rates_directory(), reservation.handle, move |asked| {
            asks.ask(asked)
        })?;
        let way = Way {
            keeper,
            // How it begins is said when it is started.
            stood: vec![standing(&view.state)],
            view,
            time,
            counting: Counting::of(application.progress_source(), clock),
            is_alone: false,
            is_doubted: false,
            asked: None,
            on_news,
            clock,
        };
        let thread = std::thread::spawn(move || way.go(&inputs));
        let lines = Lines::new(inbox.clone(), application, clock);
        Ok(Self { beside: Beside::new(inbox, lines, door, thread), allowed })
    }

    /// Takes a line of the run's output.
    pub fn line(&mut self, line: &str) {
        self.beside.line(line);
    }

    /// How long it may take in all.
    pub fn allowed(&self) -> Allowed {
        self.allowed.clone()
    }

    /// It has ended: nobody steers it any more when this returns. How it stood; nothing if that was told before.
    pub fn end(&mut self) -> Option<RateView> {
        self.beside.end()
    }
}

/// A run on its way, and all that is told of it.
struct Way<F> {
    keeper: Keeper<GrantedNodes>,
    view: RateView,
    time: RunTime,
    /// Where its lines do not tell of progress.
    counting: Option<Counting>,
    /// How it stood so far: its phase, and whether it had what that takes.
    stood: Vec<(Phase, bool)>,
    /// It has no controller, which was said.
    is_alone: bool,
    /// Its full speed does not fit, which was said.
    is_doubted: bool,
    /// When agents were asked last what keeps its share.
    asked: Option<Instant>,
    on_news: F,
    clock: Instant,
}

impl<F: FnMut(News<'_>)> Way<F> {
    /// Until it has ended. How it stood then.
    fn go(mut self, inputs: &Inputs) -> RateView {
        let (mut ticked, mut looked) = (Instant::now(), Instant::now());
        let pause = if self.counting.is_some() { LOOK_EVERY } else { TICK };
        loop {
            match inputs.next(pause) {
                // What it says is about later reports.
                Some(Input::Progress { work, at }) => {
                    drop(self.tell(&Event::Progress { work, at }));
                }
                Some(Input::Asked { asked, answer }) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.answer(asked));
                }
                Some(Input::Ended) => return self.view,
                None => {}
            }
            if self.counting.is_some() && looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.look();
            }
            if ticked.elapsed() >= TICK {
                self.tick();
                ticked = Instant::now();
            }
        }
    }

    fn answer(&mut self, asked: Asked) -> Answer {
        let told = match asked {
            Asked::State => Ok(Aimed::Now),
            Asked::Set { target } => self.tell(&Event::Set { target }),
        };
        let view = Box::new(self.view.clone());
        match told {
            Ok(Aimed::Now) => Answer::State(view),
            Ok(Aimed::Later { reason }) => {
                Answer::State(Box::new(RateView { follows: Some(reason), ..*view }))
            }
            Err(reason) => Answer::Refused { reason },
        }
    }

    /// What is counted of its work by now.
    fn look(&mut self) {
        let Some(counting) = &mut self.counting else { return };
        let (at, nodes) = (self.clock.elapsed().into(), self.keeper.nodes());
        let looks = match counting.printed {
            None => nodes.look(),
            Some(_) => nodes.used().map(without_counts),
        };
        let failure = counting.printed.as_ref().and_then(Printed::take_failure);
        if let Some(event) = counting.take(looks, at) {
            drop(self.tell(&event));
        }
        if let Some(reason) = failure {
            (self.on_news)(News::Unprinted { view: &self.view, reason: &reason });
        }
    }

    /// What keeps its share on its nodes, as their agents see it.
    fn ask_what_keeps(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY) {
            return;
        }
        self.asked = Some(Instant::now());
        match self.keeper.nodes().kept() {
            // Where nothing of it runs just then, it is what has kept the last.
            Some(kept) => self.view.cpu_kept_by.extend(kept),
            None => self.view.cpu_kept_by.clear(),
        }
    }

    fn tick(&mut self) {
        drop(self.tell(&Event::Tick { now: self.clock.elapsed().into() }));
        self.ask_what_keeps();
        let standing = standing(&self.view.state);
        if !self.stood.contains(&standing) {
            self.stood.push(standing);
            (self.on_news)(News::Turned(&self.view));
        }
    }

    /// Tells its controller, and others what follows from that.
    ///
    /// # Errors
    /// Why it is not as was asked for, in the user's words.
    fn tell(&mut self, event: &Event) -> Result<Aimed, String> {
        let told = self.keeper.tell(event);
        self.view.state = self.keeper.state();
        if let Some(full_speed) = self.keeper.take_found() {
            (self.on_news)(News::Found(&full_speed));
        }
        if self.view.state.is_doubted && !self.is_doubted {
            self.is_doubted = true;
            (self.on_news)(News::Doubted(&self.view));
        }
        if self.keeper.take_restarted() {
            (self.on_news)(News::Restarted(&self.view));
        }
        self.follow();
        let is_heard = told.is_ok();
        let told = told.unwrap_or_else(|error| Err(format!("{error:#}")));
        if let Err(reason) = &told
            && !is_heard
            && !self.is_alone
        {
            (self.on_news)(News::Alone { view: &self.view, reason });
        }
        self.is_alone = !is_heard;
        told
    }

    /// Its time limit follows its target.
    fn follow(&mut self) {
        let (target, now) = (self.view.state.target, self.clock.elapsed().into());
        let nodes = self.keeper.nodes();
        let short = self.time.follow(target, now, |more| nodes.extend(more));
        self.view.limit_nanos = self.time.allowed().get();
        if let Some(reason) = short {
            (self.on_news)(News::Short { view: &self.view, reason: &reason });
        }
    }
}

/// What counts a run's work and is asked for it now and then.
#[derive(Debug)]
struct Counting {
    counts: Counts,
    /// The command that prints it; nothing where agents count MPI calls.
    printed: Option<Printed>,
    /// Whether not all nodes told what it has used when they were asked last.
    is_untold: bool,
}

impl Counting {
    fn of(source: Option<ProgressSource<'_>>, clock: Instant) -> Option<Self> {
        let printed = match source? {
            ProgressSource::MpiCalls => None,
            ProgressSource::Command(command) => Some(Printed::start(command, clock)),
            _ => return None,
        };
        Some(Self { counts: Counts::default(), printed, is_untold: false })
    }

    /// What follows from what nodes tell when they are asked `at` an instant; nothing where one does not answer.
    fn take(&mut self, looks: Option<Vec<Look>>, at: Nanos) -> Option<Event> {
        let Some(looks) = looks else {
            self.is_untold = true;
            return Some(Event::Uncounted { at });
        };
        // Where nothing is enforced, nothing is counted either.
        let is_used = looks.iter().any(|look| look.used > Nanos::default());
        let told = match &self.printed {
            None => self.counts.take(looks),
            Some(printed) => self.counts.take_with(looks, printed.newest()),
        };
        let again = is_used && std::mem::take(&mut self.is_untold);
        told.map(Event::Counted).or(again.then_some(Event::Answered))
    }
}

/// In which phase a run is, and whether it has what that takes.
fn standing(state: &State) -> (Phase, bool) {
    (state.phase, state.not_held_yet.is_none())
}

/// What nodes tell of a job of which they count nothing.
fn without_counts(Used { at, each }: Used) -> Vec<Look> {
    each.into_iter().map(|used| Look { at, used, count: None }).collect()
}

/// How often it is looked whether reports stay away.
const TICK: Duration = Duration::from_secs(2);
/// How often agents are asked what they count: ranks tell them once a second.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often agents are asked what keeps its share: it changes when processes come, or start threads.
const ASK_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: that nodes have not answered once does not count once they have, though the program has told nothing; where nobody
    // counts its CPU time, they tell it no more than before.
    #[test]
    fn nodes_that_answer_again_are_heard_once() {
        let mut counting = Counting::of(Some(ProgressSource::MpiCalls), Instant::now()).unwrap();
        let at = Nanos::from_secs(1);
        let mut take = |used: Option<u64>| {
            let each = used.map(|used| vec![Nanos::default(), Nanos::new(used)]);
            counting.take(each.map(|each| without_counts(Used { at, each })), at)
        };
        assert!(take(Some(5)).is_none(), "they have answered all the while");
        assert!(matches!(take(None), Some(Event::Uncounted { .. })));
        assert!(take(Some(0)).is_none());
        assert!(matches!(take(Some(5)), Some(Event::Answered)));
        assert!(take(Some(5)).is_none());
    }
}
