//! The holder's end of a controller: carries out what it asks, and when it has ended, starts another that goes on from
//! what it knew. Nobody else changes what the run has reserved, and one has ended before the next one begins: so no two
//! controllers ever steer one run.

use super::controller::{Answered, Done, Event, LINE_BYTES_MAX, Question, Said};
use super::steering::{Aimed, Memory, Nodes, State};
use anyhow::{Context, Result, bail};
use keeptime_agent::lines;
use keeptime_control::FullSpeed;
use serde::Serialize;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Has a controller for one run.
pub struct Keeper<N> {
    nodes: N,
    start: Box<dyn FnMut() -> Result<Running> + Send>,
    running: Option<Running>,
    /// When it was started.
    started: Option<Instant>,
    memory: Memory,
    found: Option<FullSpeed>,
    has_restarted: bool,
    /// What instants are told by.
    clock: Instant,
}

/// A controller that runs; it ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    line: BufReader<UnixStream>,
    process: Option<Child>,
}

impl<N: Nodes> Keeper<N> {
    /// Has one go on from what is known of a run on `nodes`; each is started by `start`.
    ///
    /// # Errors
    /// If it cannot be started, or does not begin.
    pub fn new(
        nodes: N,
        memory: Memory,
        clock: Instant,
        start: impl FnMut() -> Result<Running> + Send + 'static,
    ) -> Result<Self> {
        let mut keeper = Self {
            nodes,
            start: Box::new(start),
            running: None,
            started: None,
            memory,
            found: None,
            has_restarted: false,
            clock,
        };
        keeper.replace()?;
        Ok(keeper)
    }

    /// Tells the controller what has happened: when what was asked for is so, or why it is not. In the place of one that has
    /// ended, or is silent, another is told.
    ///
    /// # Errors
    /// If there is none now: nothing is changed, and it is tried again with the next event.
    pub fn tell(&mut self, event: &Event) -> Result<Result<Aimed, String>> {
        if let Ok(aimed) = self.converse(event) {
            return Ok(aimed);
        }
        self.replace()?;
        self.has_restarted = true;
        self.converse(event).context("its controller has ended again")
    }

    /// How the run stands.
    pub fn state(&self) -> State {
        self.memory.state()
    }

    /// Full speed, once each time that it was measured.
    pub fn take_found(&mut self) -> Option<FullSpeed> {
        self.found.take()
    }

    /// Whether another controller goes on since this was asked last.
    pub fn take_restarted(&mut self) -> bool {
        std::mem::take(&mut self.has_restarted)
    }

    /// The nodes of the run.
    pub fn nodes(&mut self) -> &mut N {
        &mut self.nodes
    }

    /// The next one begins where the last one was, which is gone by then.
    fn replace(&mut self) -> Result<()> {
        self.running = None;
        if self.started.is_some_and(|started| started.elapsed() < START_EVERY) {
            bail!("its controller has ended, and the next one begins in a moment");
        }
        self.started = Some(Instant::now());
        self.running = Some((self.start)()?);
        let memory = Box::new(self.memory.clone());
        let resume = Event::Resume { memory, now: self.clock.elapsed().into() };
        self.converse(&resume).map(drop).context("its controller does not begin")
    }

    fn converse(&mut self, event: &Event) -> io::Result<Result<Aimed, String>> {
        let heard = self.exchange(event);
        if heard.is_err() {
            // Whatever it would still say is about what has passed.
            self.running = None;
        }
        heard
    }

    fn exchange(&mut self, event: &Event) -> io::Result<Result<Aimed, String>> {
        let Self { nodes, running, memory, found, .. } = self;
        let running = running.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        running.say(event)?;
        loop {
            match running.hear()? {
                Said::Remembers(known) => *memory = *known,
                Said::Asks(question) => running.say(&answer(nodes, question))?,
                Said::Done(Done { aimed, found: measured }) => {
                    if measured.is_some() {
                        *found = measured;
                    }
                    return Ok(aimed);
                }
            }
        }
    }
}

impl Running {
    /// This program once more, as a controller, and not one that was installed in its place meanwhile: the two remember what is
    /// going on in the same way. An interrupt of the run is none of it: it ends with this.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn process() -> Result<Self> {
        let (ours, its) = UnixStream::pair().context("no connection to a controller")?;
        let its = OwnedFd::from(its);
        let process = Command::new(OWN_IMAGE)
            .args(["launch", "controller"])
            .stdin(its.try_clone().context("no connection to a controller")?)
            .stdout(its)
            .process_group(0)
            .spawn()
            .context("cannot start a controller")?;
        Ok(Self::at(ours, Some(process))?)
    }

    fn at(stream: UnixStream, process: Option<Child>) -> io::Result<Self> {
        let running = Self { line: BufReader::new(stream), process };
        running.line.get_ref().set_read_timeout(Some(ANSWER_WITHIN))?;
        running.line.get_ref().set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(running)
    }

    fn say(&mut self, value: &impl Serialize) -> io::Result<()> {
        lines::say(self.line.get_mut(), value)
    }

    fn hear(&mut self) -> io::Result<Said> {
        lines::hear(&mut self.line, LINE_BYTES_MAX)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn answer(nodes: &mut impl Nodes, question: Question) -> Answered {
    match question {
        Question::Used => Answered::Used(nodes.used()),
        Question::Apply { schedules, in_turn } => {
            Answered::Applied(nodes.apply(&schedules, in_turn))
        }
        Question::Release { full } => Answered::Applied(nodes.release(full)),
        Question::Observed => Answered::Observed(nodes.observed()),
        Question::Available => Answered::Available(nodes.available()),
    }
}

/// A controller that ends as soon as it begins does not keep this machine busy.
const START_EVERY: Duration = Duration::from_secs(1);
/// What this process runs, also where its file is not there any more.
const OWN_IMAGE: &str = "/proc/self/exe";
/// It computes for milliseconds, for a second where it looks for the greatest rate of thousands of nodes: one that is silent
/// for so long was stopped, and nothing was changed meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::controller::serve;
    use crate::rate::steering::{Applied, Begins, Phase, Used, Wanted};
    use keeptime_control::{Policy, Schedule};
    use keeptime_model::units::{CpuPpm, Nanos, Share};
    use std::net::Shutdown;
    use std::sync::{Arc, Mutex};

    const FULL: CpuPpm = CpuPpm::from_percent(50);

    /// Two nodes that do what they are told.
    #[derive(Default)]
    struct Obedient {
        schedules: Vec<Schedule>,
        changes: usize,
        used: Nanos,
    }

    impl Nodes for Obedient {
        fn used(&mut self) -> Option<Used> {
            Some(Used { at: Nanos::default(), each: vec![self.used; 2] })
        }

        fn apply(&mut self, schedules: &[Schedule], _in_turn: bool) -> Applied {
            self.schedules = match schedules {
                [all] => vec![*all; 2],
                each => each.to_vec(),
            };
            self.changes += 1;
            Applied::InForce { since: Nanos::default() }
        }

        fn release(&mut self, full: CpuPpm) -> Applied {
            self.apply(&[Schedule::new(full, Nanos::from_millis(100))], false)
        }

        fn observed(&mut self) -> Option<Vec<Schedule>> {
            Some(self.schedules.clone())
        }

        fn available(&mut self) -> Option<Vec<CpuPpm>> {
            None
        }
    }

    /// A run whose controllers are threads that end when their connection does.
    struct Kept {
        keeper: Keeper<Obedient>,
        connections: Arc<Mutex<Vec<UnixStream>>>,
    }

    impl Kept {
        /// One that is held at 30 % of a full speed of ten a second.
        fn new() -> Self {
            let connections = Arc::<Mutex<Vec<UnixStream>>>::default();
            let made = Arc::clone(&connections);
            let start = move || -> Result<Running> {
                let (ours, its) = UnixStream::pair()?;
                made.lock().unwrap().push(its.try_clone()?);
                let from = BufReader::new(its.try_clone()?);
                std::thread::spawn(move || serve(from, its));
                Ok(Running::at(ours, None)?)
            };
            let [target, threshold] = [30, 2].map(|percent| Share::from_percent(percent).unwrap());
            let wanted = Wanted { target, threshold, policy: Policy::predictive() };
            let full_speed = FullSpeed::new(10.0, &[CpuPpm::from_percent(40)]).unwrap();
            let begins = Begins::Known(full_speed);
            let had = wanted.first_schedules(FULL, &begins).unwrap().unwrap();
            let nodes = Obedient { schedules: vec![had[0]; 2], ..Obedient::default() };
            let memory = Memory::beginning(wanted, FULL, 2, begins).unwrap();
            let keeper = Keeper::new(nodes, memory, Instant::now(), start).unwrap();
            Self { keeper, connections }
        }

        /// As long after its start as it takes until the next one may begin.
        fn kill(&mut self) {
            let connections = self.connections.lock().unwrap();
            connections.last().unwrap().shutdown(Shutdown::Both).unwrap();
            self.keeper.started = None;
        }

        fn set(&mut self, percent: u32) -> Result<Result<Aimed, String>> {
            self.keeper.tell(&Event::Set { target: Share::from_percent(percent).unwrap() })
        }
    }

    // Goal: a run outlives its controllers: nothing is changed by their end, and each knows what the last one knew. Method:
    // some reports, of which the next one after a kill makes a second with what the first one remembers.
    #[test]
    fn the_next_controller_goes_on_where_the_last_one_was() {
        let mut kept = Kept::new();
        let begun = kept.keeper.state();
        assert_eq!((begun.phase, kept.keeper.nodes.changes), (Phase::Steered, 0));
        kept.kill();
        let now = Nanos::from_secs(1);
        drop(kept.keeper.tell(&Event::Tick { now }).unwrap());
        assert!(kept.keeper.take_restarted() && !kept.keeper.take_restarted());
        assert_eq!((kept.keeper.state(), kept.keeper.nodes.changes), (begun, 0));

        assert_eq!(kept.set(60).unwrap(), Ok(Aimed::Now));
        let (state, schedules) = (kept.keeper.state(), kept.keeper.nodes.schedules.clone());
        assert_eq!((state.target.ppm(), kept.keeper.nodes.changes), (600_000, 1));
        kept.kill();
        drop(kept.keeper.tell(&Event::Tick { now }).unwrap());
        assert_eq!((&kept.keeper.state(), &kept.keeper.nodes.schedules), (&state, &schedules));
        assert_eq!(kept.keeper.nodes.changes, 1);
        assert_eq!(kept.connections.lock().unwrap().len(), 3);
    }

    #[test]
    fn what_is_asked_for_while_there_is_no_controller_is_told_the_next_one() {
        let mut kept = Kept::new();
        kept.kill();
        assert_eq!(kept.set(40).unwrap(), Ok(Aimed::Now));
        assert_eq!(kept.keeper.state().target.ppm(), 400_000);
        let refused = kept.set(0).unwrap().unwrap_err();
        assert!(refused.contains("more than 0 %"), "{refused}");
    }

    // Goal: controllers that end again and again are not started again and again. Method: as if one had just begun.
    #[test]
    fn the_next_controller_does_not_begin_at_once_where_the_last_one_just_did() {
        let mut kept = Kept::new();
        kept.kill();
        kept.keeper.started = Some(Instant::now() + 1_000 * START_EVERY);
        let error = kept.set(40).unwrap_err().to_string();
        assert!(error.contains("in a moment"), "{error}");
        assert_eq!((kept.keeper.state().target.ppm(), kept.keeper.nodes.changes), (300_000, 0));
        kept.keeper.started = None;
        assert_eq!(kept.set(40).unwrap(), Ok(Aimed::Now));
    }
}
