//! A controller as a process of its own: what it is told, what it asks, and its end of both. It knows nobody but the holder
//! of its run, who carries out what it wants; so nothing else ends when it does.

use super::counted::Told;
use super::steering::{Aimed, Applied, Memory, Nodes, Steering, Used};
use keeptime_agent::lines;
use keeptime_control::{FullSpeed, Schedule};
use keeptime_model::units::{CpuPpm, Nanos, Share};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::{self, BufRead, Write};
use std::rc::Rc;

/// What a controller is told. It answers each by [`Said::Done`], and asks its questions before that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// To go on from what is known of its run: what it is told first.
    Resume {
        /// All that is known.
        memory: Box<Memory>,
        /// By the clock of the run, as all instants.
        now: Nanos,
    },
    /// A line told of progress.
    Progress {
        /// So much was done in all.
        work: u64,
        /// When it was then.
        at: Nanos,
    },
    /// MPI calls told of progress.
    Counted(Told),
    /// Nobody told what MPI calls tell, or what the program has used.
    Uncounted {
        /// When it was asked.
        at: Nanos,
    },
    /// After that all have told what it has used.
    Answered,
    /// Time passes.
    Tick {
        /// It is now.
        now: Nanos,
    },
    /// Somebody asks for another part of full speed.
    Set {
        /// Which.
        #[serde(rename = "target_ppm")]
        target: Share,
    },
}

/// What a controller says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// What another one would go on from, from now on.
    Remembers(Box<Memory>),
    /// Something about its nodes, which is to be answered.
    Asks(Question),
    /// What it was told is done.
    Done(Done),
}

/// What came of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// When what somebody asked for is so, or why not, in the user's words.
    pub aimed: Result<Aimed, String>,
    /// Full speed, where it was measured just now.
    pub found: Option<FullSpeed>,
}

/// What a controller asks: as [`Nodes`] has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// [`Nodes::used`].
    Used,
    /// [`Nodes::apply`].
    Apply {
        /// One for each node, or one for all.
        schedules: Vec<Schedule>,
        /// Whether it waits for its turn.
        in_turn: bool,
    },
    /// [`Nodes::release`].
    Release {
        /// What each node has then.
        #[serde(rename = "full_ppm")]
        full: CpuPpm,
    },
    /// [`Nodes::observed`].
    Observed,
    /// [`Nodes::available`].
    Available,
}

/// What it is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answered {
    /// To [`Question::Used`].
    Used(Option<Used>),
    /// To [`Question::Apply`] and [`Question::Release`].
    Applied(Applied),
    /// To [`Question::Observed`].
    Observed(Option<Vec<Schedule>>),
    /// To [`Question::Available`].
    Available(Option<Vec<CpuPpm>>),
}

/// The holder of the run, as its controller sees it.
#[derive(Debug)]
struct Holder<R, W>(Rc<RefCell<Ends<R, W>>>);

#[derive(Debug)]
struct Ends<R, W> {
    from: R,
    to: W,
}

/// Steers a run as it is told, until nobody tells it anything any more.
///
/// # Errors
/// If what it is told makes no sense, or nobody listens.
pub fn serve(from: impl BufRead, to: impl Write) -> io::Result<()> {
    let holder = Holder(Rc::new(RefCell::new(Ends { from, to })));
    let mut steering = match holder.hear::<Event>()? {
        Some(Event::Resume { memory, now }) => Steering::resume(holder.clone(), *memory, now),
        Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, NOTHING_TO_STEER)),
        None => return Ok(()),
    };
    holder.finish(&mut steering, Ok(Aimed::Now))?;
    while let Some(event) = holder.hear::<Event>()? {
        let mut aimed = Ok(Aimed::Now);
        match event {
            Event::Resume { memory, now } => {
                steering = Steering::resume(holder.clone(), *memory, now);
            }
            Event::Progress { work, at } => steering.progress(work, at),
            Event::Counted(told) => steering.counted(told),
            Event::Uncounted { at } => steering.uncounted(at),
            Event::Answered => steering.answered(),
            Event::Tick { now } => steering.tick(now),
            Event::Set { target } => aimed = steering.set(target),
        }
        holder.finish(&mut steering, aimed)?;
    }
    Ok(())
}

impl<R: BufRead, W: Write> Holder<R, W> {
    /// What it says next; nothing once it is gone.
    fn hear<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let line = lines::next(&mut self.0.borrow_mut().from, LINE_BYTES_MAX)?;
        Ok(line.map(|line| serde_json::from_slice(&line)).transpose()?)
    }

    fn say(&self, said: &Said) -> io::Result<()> {
        lines::say(&mut self.0.borrow_mut().to, said)
    }

    /// What it answers; nothing if it is gone, which shows when the next event is waited for.
    fn ask(&self, question: Question) -> Option<Answered> {
        self.say(&Said::Asks(question)).ok()?;
        self.hear().ok()?
    }

    /// Says what is known by now, and that an event is done.
    fn finish(
        &self,
        steering: &mut Steering<Self>,
        aimed: Result<Aimed, String>,
    ) -> io::Result<()> {
        let found = steering.take_found();
        self.say(&Said::Remembers(Box::new(steering.memory().clone())))?;
        self.say(&Said::Done(Done { aimed, found }))
    }
}

impl<R, W> Clone for Holder<R, W> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<R: BufRead, W: Write> Nodes for Holder<R, W> {
    fn remember(&mut self, memory: &Memory) {
        // Where nobody listens, nothing is changed either.
        let _ = self.say(&Said::Remembers(Box::new(memory.clone())));
    }

    fn used(&mut self) -> Option<Used> {
        match self.ask(Question::Used)? {
            Answered::Used(used) => used,
            _ => None,
        }
    }

    fn apply(&mut self, schedules: &[Schedule], in_turn: bool) -> Applied {
        match self.ask(Question::Apply { schedules: schedules.to_vec(), in_turn }) {
            Some(Answered::Applied(applied)) => applied,
            _ => Applied::Unknown,
        }
    }

    fn release(&mut self, full: CpuPpm) -> Applied {
        match self.ask(Question::Release { full }) {
            Some(Answered::Applied(applied)) => applied,
            _ => Applied::Unknown,
        }
    }

    fn observed(&mut self) -> Option<Vec<Schedule>> {
        match self.ask(Question::Observed)? {
            Answered::Observed(observed) => observed,
            _ => None,
        }
    }

    fn available(&mut self) -> Option<Vec<CpuPpm>> {
        match self.ask(Question::Available)? {
            Answered::Available(available) => available,
            _ => None,
        }
    }
}

/// What is known of a job on as many nodes as there can be, each with a share of its own, fits.
pub const LINE_BYTES_MAX: u64 = 16 << 20;
const NOTHING_TO_STEER: &str = "a controller is told first what it goes on from";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::steering::{Phase, Wanted};
    use keeptime_control::Policy;

    fn memory() -> Box<Memory> {
        let [target, threshold] = [30, 2].map(|percent| Share::from_percent(percent).unwrap());
        let wanted = Wanted { target, threshold, policy: Policy::predictive() };
        Box::new(Memory::new(wanted, CpuPpm::from_percent(20), 2).unwrap())
    }

    /// What it says to all of this, and how it ends.
    fn said(told: &[u8]) -> (Vec<Said>, io::Result<()>) {
        let mut heard = Vec::new();
        let ended = serve(told, &mut heard);
        let lines = heard.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        (lines.map(|line| serde_json::from_slice(line).unwrap()).collect(), ended)
    }

    fn told(events: &[Event]) -> Vec<u8> {
        let mut text = Vec::new();
        events.iter().for_each(|event| lines::say(&mut text, event).unwrap());
        text
    }

    #[test]
    fn every_event_is_answered_by_what_is_known_then_until_nobody_tells_any_more() {
        let (memory, now) = (memory(), Nanos::default());
        let target = Share::from_percent(40).unwrap();
        let events = [
            Event::Resume { memory, now },
            Event::Tick { now: Nanos::from_secs(2) },
            Event::Set { target },
            Event::Set { target: Share::from_percent(0).unwrap() },
        ];
        let (said, ended) = said(&told(&events));
        ended.unwrap();
        let [.., Said::Remembers(last), Said::Done(done)] = &said[..] else {
            panic!("{said:?}");
        };
        assert_eq!((last.state().target, last.phase()), (target, Phase::Measured));
        assert!(done.aimed.as_ref().unwrap_err().contains("more than 0 %"), "{done:?}");
        let done = said.iter().filter(|said| matches!(said, Said::Done(_))).count();
        assert_eq!(done, events.len());
    }

    #[test]
    fn one_that_is_told_nonsense_ends() {
        let tick = told(&[Event::Tick { now: Nanos::default() }]);
        for wrong in [&tick[..], b"{}\n", b"{\"tick\""] {
            let (said, ended) = said(wrong);
            assert!(said.is_empty() && ended.is_err(), "{said:?}");
        }
        assert!(said(b"").1.is_ok());
    }
}
