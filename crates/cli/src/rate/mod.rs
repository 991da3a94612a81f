//! A run that is held at a part of its full speed.
//!
//! * [`steering`]: from progress to schedules; decides, and asks nobody itself;
//! * [`counted`]: progress as agents count it by MPI calls;
//! * [`known`]: full speed as an earlier run has measured it;
//! * [`nodes`]: its nodes, by the broker and the agents;
//! * [`door`]: where it is asked how it stands, and told another rate.

pub mod counted;
pub mod door;
pub mod known;
pub mod nodes;
pub mod steering;

use crate::cluster::Cluster;
use anyhow::Result;
use counted::Counts;
use door::{Answer, Asked, Door, RateView};
use keeptime_control::FullSpeed;
use keeptime_engine::book::Reservation;
use keeptime_model::application::{Application, ProgressSource};
use keeptime_model::units::CpuPpm;
use nodes::GrantedNodes;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use steering::{Steering, Wanted};

/// Steers one run until it is dropped.
#[derive(Debug)]
pub struct Steered {
    inputs: SyncSender<Input>,
    /// How lines begin that tell of one unit of work.
    word: Option<String>,
    work: u64,
    clock: Instant,
    /// Closed first: whoever asks later would wait in vain.
    door: Option<Door>,
    thread: Option<JoinHandle<()>>,
}

/// What a run is told of its way to its rate.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// Full speed was measured.
    Found(&'a FullSpeed),
    /// It stands so, for the first time.
    Turned(&'a RateView),
}

enum Input {
    /// So much was done in all when it was then.
    Progress { work: u64, at: keeptime_model::units::Nanos },
    /// Somebody asks.
    Asked { asked: Asked, answer: SyncSender<Answer> },
    /// The run has ended.
    Ended,
}

impl Steered {
    /// Begins to steer what runs under `reservation`, with a full speed that is `known` or is found first. At full
    /// speed nodes have `full` each. `on_news` hears how it goes.
    ///
    /// # Errors
    /// A target or threshold of nothing; if the directory of such runs is not writable.
    pub fn start(
        cluster: &Cluster,
        application: &Application,
        reservation: &Reservation,
        wanted: Wanted,
        full: CpuPpm,
        known: Option<FullSpeed>,
        on_news: impl FnMut(News<'_>) + Send + 'static,
    ) -> Result<Self> {
        let clock = Instant::now();
        let nodes = GrantedNodes::new(cluster, reservation, clock)?;
        let steering = match known {
            Some(full_speed) => Steering::knowing(nodes, wanted, full, full_speed)?,
            None => Steering::new(nodes, wanted, full)?,
        };
        let grant = reservation.grant.as_ref();
        let view = RateView {
            job: reservation.handle,
            application: application.name().clone(),
            nodes: grant.map(|grant| grant.nodes.clone()).unwrap_or_default(),
            state: steering.state(),
        };
        let (inputs, received) = sync_channel(INPUTS_MAX);
        let asks = inputs.clone();
        let door = Door::open(&cluster.rates_directory(), reservation.handle, move |asked| {
            pass(&asks, asked)
        })?;
        let is_counted = application.progress_source() == Some(ProgressSource::MpiCalls);
        let counts = is_counted.then(Counts::default);
        let thread =
            std::thread::spawn(move || steer(steering, view, counts, on_news, &received, clock));
        let word = application.progress().map(str::to_owned);
        Ok(Self { inputs, word, work: 0, clock, door: Some(door), thread: Some(thread) })
    }

    /// Takes a line of the run's output.
    pub fn line(&mut self, line: &str) {
        let first = line.split_whitespace().next();
        if first.is_none() || first != self.word.as_deref() {
            return;
        }
        self.work += 1;
        // The next one tells the sum: nothing is lost if this one finds no room.
        let (work, at) = (self.work, self.clock.elapsed().into());
        let _ = self.inputs.try_send(Input::Progress { work, at });
    }

    /// How it stands.
    pub fn view(&self) -> Option<RateView> {
        match pass(&self.inputs, Asked::State) {
            Answer::State(view) => Some(view),
            Answer::Refused { .. } => None,
        }
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        drop(self.door.take());
        let _ = self.inputs.send(Input::Ended);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn pass(inputs: &SyncSender<Input>, asked: Asked) -> Answer {
    let (answer, answered) = sync_channel(1);
    let sent = inputs.send(Input::Asked { asked, answer });
    let ended = || Answer::Refused { reason: "the run has ended".into() };
    sent.ok().and_then(|()| answered.recv().ok()).unwrap_or_else(ended)
}

fn steer(
    mut steering: Steering<GrantedNodes>,
    mut view: RateView,
    mut counts: Option<Counts>,
    mut on_news: impl FnMut(News<'_>),
    inputs: &Receiver<Input>,
    clock: Instant,
) {
    // How it begins is said when it is started.
    let mut phases = vec![view.state.phase];
    let (mut ticked, mut looked) = (Instant::now(), Instant::now());
    let pause = if counts.is_some() { LOOK_EVERY } else { TICK };
    loop {
        match inputs.recv_timeout(pause) {
            Ok(Input::Progress { work, at }) => steering.progress(work, at),
            Ok(Input::Asked { asked, answer }) => {
                let outcome = match asked {
                    Asked::State => Ok(()),
                    Asked::Set { target } => steering.set(target),
                };
                view.state = steering.state();
                // Whoever asked may be gone.
                let _ = answer.send(match outcome {
                    Ok(()) => Answer::State(view.clone()),
                    Err(reason) => Answer::Refused { reason },
                });
            }
            Ok(Input::Ended) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(counts) = &mut counts
            && looked.elapsed() >= LOOK_EVERY
        {
            looked = Instant::now();
            steering.look(counts);
        }
        if let Some(full_speed) = steering.take_found() {
            on_news(News::Found(&full_speed));
        }
        if ticked.elapsed() >= TICK {
            steering.tick(clock.elapsed().into());
            ticked = Instant::now();
            if !phases.contains(&steering.phase()) {
                phases.push(steering.phase());
                view.state = steering.state();
                on_news(News::Turned(&view));
            }
        }
    }
}

/// How often it is looked whether reports stay away.
const TICK: Duration = Duration::from_secs(2);
/// How often agents are asked what they count: ranks tell them once a second.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Lines that wait while the broker is asked: more say nothing that the next one does not.
const INPUTS_MAX: usize = 64;
