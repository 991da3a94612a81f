//! The agent's end of its connection to the broker: it dials, tells what it holds, carries out orders
//! and answers them. Without a broker it goes on as it is: what was granted lasts until its end.
//!
//! One JSON object a line (`docs/formats/agent-link.md`). The broker's end is `keeptime-broker`.

mod greeting;

use crate::agent::{Agent, Requester};
use crate::clock::{now, times_set_back};
use crate::dial::{Broker, Connection, Dialer, Incoming};
use crate::enforcer::Enforcer;
use crate::lines::{self, is_timeout};
use crate::programs::Programs;
use crate::wire::{Request, Response};
use keeptime_linux::load::Scope;
use keeptime_linux::machine;
use keeptime_locks::lock;
use keeptime_model::assignment::Assignment;
use keeptime_model::capability::Guarantee;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::reservation::Handle;
use keeptime_model::units::Nanos;
use keeptime_mpiqos::wire::{RankAnswer, RankState};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What both ends speak.
pub const VERSION: u32 = 1;
/// Longest line. What a node holds beyond that is told by the next.
pub const LINE_BYTES_MAX: u64 = 16 << 20;
/// The broker answers a hello within this time, or takes a line.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Waits between two attempts: doubled from the first up to the last.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_LAST: Duration = Duration::from_secs(3);
/// Beats in the time of a lease: two may be lost.
const BEATS: u64 = 3;

/// What an agent says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum FromAgent {
    /// First of all.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Which node it is.
        node: Name,
        /// What it cannot enforce, and why: a sentence each.
        not_enforced: Vec<String>,
        /// What it refuses for that reason. A node that is not asked to enforce anything refuses nothing.
        #[serde(default)]
        refused: BTreeSet<Guarantee>,
        /// Its processor, as the kernel names it: what is measured elsewhere holds on the same alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        processor: Option<String>,
        /// It can say how busy its node is.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        counts: bool,
        /// All that it enforces for reservations, or will; of which [`FromAgent::Holding`] tells the rest, if there is `more`.
        holding: Vec<Assignment>,
        /// Whether that follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// What follows a hello that says so.
    Holding {
        /// What it enforces, or will, beside what was told before.
        assignments: Vec<Assignment>,
        /// Whether there is another of these.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// What came of an order.
    Answer {
        /// Of which.
        number: u64,
        /// Why it was not carried out, if it was not; all is as before then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refusal: Option<String>,
    },
    /// All that ranks of MPI programs ask for here, in the place of what they asked before.
    Programs {
        /// Greater than any before about the same job.
        number: u64,
        /// Whose.
        job: Name,
        /// Each rank of it that is here.
        ranks: Vec<RankState>,
    },
    /// How busy the node is, as its kernel counts; nothing if it cannot be read now.
    Counted(Option<NodeCounters>),
    /// It lives.
    Beat,
}

/// What an agent is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ToAgent {
    /// The answer to its hello.
    Welcome {
        /// It is to say something at least this often, or it counts as gone.
        lease_nanos: Nanos,
    },
    /// The other answer to its hello; the connection ends.
    Unwelcome {
        /// Why, and what would be accepted.
        reason: String,
    },
    /// Enforce this, in the place of what there is of the job.
    Enforce {
        /// To be answered with the same number.
        number: u64,
        /// What.
        assignment: Assignment,
    },
    /// Give back all of the job.
    Withdraw {
        /// To be answered with the same number.
        number: u64,
        /// Which.
        job: Name,
    },
    /// Say how busy the node is.
    Count,
    /// What came of all that ranks of MPI programs ask for here.
    Programs {
        /// What was said under this number.
        number: u64,
        /// Whose.
        job: Name,
        /// By rank.
        answers: BTreeMap<u32, RankAnswer>,
    },
}

/// Keeps `agent` connected to `broker`, for ever. `scope` is what counts as the node's load; nothing: the agent
/// cannot say.
pub fn keep<E: Enforcer>(agent: &Mutex<Agent<E>>, broker: &Broker, scope: Option<&Scope>) {
    let (node, programs) = {
        let agent = lock(agent);
        (agent.node().clone(), Arc::clone(agent.programs()))
    };
    programs.expect_broker();
    let mut dialer = Dialer::new(broker.clone(), node.clone());
    let (mut wait, mut last) = (Wait::of(&node), String::new());
    loop {
        let mut link =
            Link { agent, programs: &programs, dialer: &mut dialer, scope, was_welcome: false };
        let said = link.converse().err().map(|error| chain(&error)).unwrap_or_default();
        programs.disconnected();
        if link.was_welcome {
            (wait, last) = (Wait::of(&node), String::new());
        }
        // The same trouble at every attempt is said once.
        if said != last {
            tracing::warn!("no broker at {broker}: {said}; what was granted lasts");
            last = said;
        }
        std::thread::sleep(wait.next());
    }
}

/// How long to wait before the next attempt. Nodes differ, so that a broker that starts does not meet
/// all of them at the same instant.
#[derive(Debug)]
struct Wait {
    attempts: u32,
    /// Of 256.
    share: u32,
}

impl Wait {
    fn of(node: &Name) -> Self {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        Self { attempts: 0, share: (hasher.finish() & 0xff) as u32 }
    }

    fn next(&mut self) -> Duration {
        let doubled = WAIT_FIRST.saturating_mul(1 << self.attempts.min(16));
        self.attempts += 1;
        let whole = doubled.min(WAIT_LAST);
        // Between three quarters and all of it.
        whole * (768 + self.share) / 1_024
    }
}

/// One connection.
struct Link<'a, E> {
    agent: &'a Mutex<Agent<E>>,
    programs: &'a Arc<Programs>,
    dialer: &'a mut Dialer,
    scope: Option<&'a Scope>,
    was_welcome: bool,
}

impl<E: Enforcer> Link<'_, E> {
    /// Until it ends.
    fn converse(&mut self) -> io::Result<()> {
        let Connection { incoming, outgoing } = self.dialer.dial(ANSWER_WITHIN)?;
        let (mut reader, out) = (Lines::of(incoming), Outgoing::of(outgoing));
        let set_back = times_set_back();
        greeting::in_lines(self.hello()).iter().try_for_each(|line| out.say(line))?;
        let lease = match reader.read()? {
            Some(ToAgent::Welcome { lease_nanos }) => lease_nanos,
            Some(ToAgent::Unwelcome { reason }) => return Err(io::Error::other(reason)),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        self.was_welcome = true;
        tracing::info!("connected to the broker at {}", self.dialer.broker());
        self.programs.connected(out.clone())?;
        let beat = Duration::from_nanos(lease.get() / BEATS).max(Duration::from_millis(1));
        reader.stream.get_ref().set_patience(beat)?;
        loop {
            // What was let go before may last again: the broker learns what there is by a new hello.
            if times_set_back() != set_back {
                return Err(io::Error::other("the node's clock was set back; both compare anew"));
            }
            match reader.read() {
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Some(said)) => {
                    if let Some(answer) = self.obey(said) {
                        out.say(&answer)?;
                    }
                }
                Err(error) if is_timeout(&error) => out.say(&FromAgent::Beat)?,
                Err(error) => return Err(error),
            }
        }
    }

    fn hello(&self) -> FromAgent {
        let agent = lock(self.agent);
        // What belongs to no reservation is between this node and whoever asked for it here.
        let is_reserved =
            |assignment: &&Assignment| assignment.job.as_str().parse::<Handle>().is_ok();
        FromAgent::Hello {
            version: VERSION,
            node: agent.node().clone(),
            not_enforced: agent.not_enforced(),
            refused: agent.refused(),
            processor: machine::processor(),
            counts: self.scope.is_some(),
            holding: agent.assignments().filter(is_reserved).cloned().collect(),
            more: false,
        }
    }

    fn obey(&self, said: ToAgent) -> Option<FromAgent> {
        let (number, request) = match said {
            ToAgent::Enforce { number, assignment } => (number, Request::Enforce(assignment)),
            ToAgent::Withdraw { number, job } => (number, Request::Withdraw { job }),
            ToAgent::Programs { number, job, answers } => {
                self.programs.answered(number, &job, answers);
                return None;
            }
            ToAgent::Count => {
                let counters = self.scope.and_then(|scope| scope.count().ok());
                return Some(FromAgent::Counted(counters));
            }
            ToAgent::Welcome { .. } | ToAgent::Unwelcome { .. } => return None,
        };
        let refusal = match lock(self.agent).answer(request, &Requester::Trusted, now()) {
            Response::Refused { reason: why } | Response::Failed { error: why } => Some(why),
            _ => None,
        };
        Some(FromAgent::Answer { number, refusal })
    }
}

/// JSON lines over a stream whose reads may time out in the middle of a line.
struct Lines {
    stream: BufReader<Box<dyn Incoming>>,
    begun: Vec<u8>,
}

impl Lines {
    fn of(stream: Box<dyn Incoming>) -> Self {
        Self { stream: BufReader::new(stream), begun: Vec::new() }
    }

    /// The next line; nothing at the end. After a time-out it goes on where it was.
    fn read<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if !lines::go_on(&mut self.stream, &mut self.begun, LINE_BYTES_MAX)? {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.begun);
        Ok(Some(serde_json::from_slice(&line)?))
    }
}

/// The way to the broker, line by line, for whoever has something to say.
#[derive(Clone)]
pub(crate) struct Outgoing(Arc<Mutex<Box<dyn Write + Send>>>);

impl Outgoing {
    pub fn of(stream: Box<dyn Write + Send>) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    /// Says it now.
    pub fn say(&self, said: &FromAgent) -> io::Result<()> {
        let mut stream = lock(&self.0);
        // A line that was begun and not ended ends the connection, whoever comes next.
        lines::say(&mut *stream, said)
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outgoing")
    }
}

/// Whether nothing was said for as long as was waited: the connection goes on.
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn waits_grow_up_to_a_bound_and_nodes_differ() {
        let waits = |name: &str| {
            let mut wait = Wait::of(&name.parse().unwrap());
            (0..12).map(|_| wait.next()).collect::<Vec<_>>()
        };
        let n1 = waits("n1");
        assert!(n1[0] <= WAIT_FIRST && n1.is_sorted());
        assert!(n1.iter().all(|wait| *wait <= WAIT_LAST), "{n1:?}");
        assert!(n1[11] >= WAIT_LAST * 3 / 4);
        assert_ne!(n1, waits("n2"));
    }

    #[test]
    fn a_line_that_comes_in_pieces_is_read_across_time_outs() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut lines = Lines::of(Box::new(ours));
        let line = b"{\"welcome\":{\"lease_nanos\":7}}\n";
        theirs.write_all(&line[..9]).unwrap();
        assert!(is_timeout(&lines.read::<ToAgent>().unwrap_err()));
        theirs.write_all(&line[9..]).unwrap();
        let lease_nanos = Nanos::new(7);
        assert_eq!(lines.read().unwrap(), Some(ToAgent::Welcome { lease_nanos }));
        drop(theirs);
        assert_eq!(lines.read::<ToAgent>().unwrap(), None);
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = (serde_json::from_str::<FromAgent>(&text), serde_json::from_str::<ToAgent>(&text));
        }
    }
}
