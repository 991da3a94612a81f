//! One balancer, asked where that holds nobody up: by the caller's own thread as long as it answers at once, and by one of its own,
//! a look at a time, when it was slow the last time, or the caller is late already. So one that hangs is waited for once, and
//! keeps no other from being asked.

use crate::balancer::{Balancer, BalancerError};
use crate::front::Sight;
use crate::traffic::{Change, Difference, Observed, Traffic, diff};
use keeptime_model::name::Name;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Who takes longer is slow: many times what a balancer takes that runs, and little of what one that does not may take.
pub const SLOW: Duration = Duration::from_millis(250);

/// What a site's balancers are to do: a look by a thread goes by what was wanted when it was begun.
pub(crate) type Wanted = Arc<BTreeMap<Name, Traffic>>;

/// A balancer, and who asks it.
#[derive(Debug)]
pub(crate) struct Asked {
    name: String,
    asking: Asking,
    /// Nodes that it had no server for when it answered last.
    lacking: Vec<Name>,
    /// Whether the last look took long.
    is_slow: bool,
}

#[derive(Debug)]
enum Asking {
    /// Nobody does.
    Nobody(Box<dyn Balancer>),
    /// The caller has, and has not taken what came of it.
    Caller(Box<Look>),
    /// A thread does.
    Thread(Away),
    /// While it passes from one to another.
    Passing,
}

/// A look that a thread has begun.
#[derive(Debug)]
struct Away {
    look: Receiver<Look>,
    thread: JoinHandle<()>,
    began: Instant,
}

/// What came of one.
#[derive(Debug)]
struct Look {
    balancer: Box<dyn Balancer>,
    /// What was wanted.
    wanted: Wanted,
    told: Vec<Change>,
    /// Nodes that it has no server for, if it said so.
    lacking: Option<Vec<Name>>,
    observed: Result<Observed, BalancerError>,
    took: Duration,
}

impl Asked {
    pub fn new(balancer: Box<dyn Balancer>) -> Self {
        let name = balancer.name().into();
        Self { name, asking: Asking::Nobody(balancer), lacking: Vec::new(), is_slow: false }
    }

    /// Tells it what differs from what is `wanted`, and hears what it does, unless it is asked already. By a thread if it is slow,
    /// or the caller `is_late`.
    pub fn ask(&mut self, wanted: &Wanted, is_late: bool) {
        let asking = std::mem::replace(&mut self.asking, Asking::Passing);
        self.asking = match asking {
            Asking::Nobody(balancer) if self.is_slow || is_late => {
                match Away::with(balancer, wanted) {
                    Ok(away) => Asking::Thread(away),
                    // There can be no more threads.
                    Err(balancer) => Asking::Caller(Box::new(Look::of(balancer, wanted))),
                }
            }
            Asking::Nobody(balancer) => Asking::Caller(Box::new(Look::of(balancer, wanted))),
            is_asked => is_asked,
        };
    }

    /// What was heard of it, if it was by the end of this time. What was heard by others' wishes than what is `wanted` says nothing:
    /// it is asked anew.
    pub fn sight(&mut self, wanted: &Wanted, within: Duration) -> Sight {
        let asking = std::mem::replace(&mut self.asking, Asking::Passing);
        let look = match asking {
            Asking::Caller(look) => *look,
            Asking::Thread(away) => match away.heard(within) {
                Ok(look) => look,
                Err(away) => {
                    let seconds = away.began.elapsed().as_secs();
                    self.asking = Asking::Thread(away);
                    return self.silence(seconds);
                }
            },
            asking => {
                self.asking = asking;
                return self.silence(0);
            }
        };
        let Look { balancer, wanted: before, told, lacking, observed, took } = look;
        self.asking = Asking::Nobody(balancer);
        self.is_slow = took > SLOW;
        self.lacking = lacking.unwrap_or_else(|| std::mem::take(&mut self.lacking));
        if observed.is_ok() && before != *wanted {
            return self.silence(0);
        }
        Sight { balancer: self.name.clone(), told, lacking: self.lacking.clone(), observed }
    }

    /// Has it end what it has in flight on `server`.
    pub fn end(&mut self, server: &Name) -> Result<(), BalancerError> {
        match &mut self.asking {
            Asking::Nobody(balancer) => balancer.end(server),
            _ => Err(BalancerError::Silent { balancer: self.name.clone(), seconds: 0 }),
        }
    }

    fn silence(&self, seconds: u64) -> Sight {
        let observed = Err(BalancerError::Silent { balancer: self.name.clone(), seconds });
        let (balancer, lacking) = (self.name.clone(), self.lacking.clone());
        Sight { balancer, told: Vec::new(), lacking, observed }
    }
}

impl Away {
    /// Has a thread look.
    ///
    /// # Errors
    /// The balancer, if there can be no more threads.
    fn with(balancer: Box<dyn Balancer>, wanted: &Wanted) -> Result<Self, Box<dyn Balancer>> {
        let (give, take) = channel();
        let (tell, look) = channel();
        let wanted = Arc::clone(wanted);
        let work = move || {
            if let Ok(balancer) = take.recv() {
                // Nobody listens if the site is gone meanwhile.
                let _ = tell.send(Look::of(balancer, &wanted));
            }
        };
        let Ok(thread) = thread::Builder::new().name("balancer".into()).spawn(work) else {
            return Err(balancer);
        };
        let away = Self { look, thread, began: Instant::now() };
        give.send(balancer).map(|()| away).map_err(|unsent| unsent.0)
    }

    /// What the thread has heard, or the look again, if it has not by then.
    fn heard(self, within: Duration) -> Result<Look, Self> {
        match self.look.recv_timeout(within) {
            Ok(look) => Ok(look),
            Err(RecvTimeoutError::Timeout) => Err(self),
            Err(RecvTimeoutError::Disconnected) => match self.thread.join() {
                // It has met a bug, as this thread would have.
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("it says what it has heard"),
            },
        }
    }
}

impl Look {
    fn of(mut balancer: Box<dyn Balancer>, wanted: &Wanted) -> Self {
        let (began, mut told, mut lacking) = (Instant::now(), Vec::new(), None);
        let observed = settle(&mut *balancer, wanted, &mut told, &mut lacking);
        let (wanted, took) = (Arc::clone(wanted), began.elapsed());
        Self { balancer, wanted, told, lacking, observed, took }
    }
}

/// Looks, tells what differs, and looks whether that was done.
fn settle(
    balancer: &mut dyn Balancer,
    wanted: &BTreeMap<Name, Traffic>,
    told: &mut Vec<Change>,
    lacked: &mut Option<Vec<Name>>,
) -> Result<Observed, BalancerError> {
    let observed = balancer.observe()?;
    let Difference { changes, lacking } = diff(wanted, &observed);
    let lacking = lacked.insert(lacking);
    // One that lacks a node since its configuration was changed needs to be told of the others all the more.
    if !changes.is_empty() {
        balancer.tell(&changes)?;
        *told = changes;
    }
    let is_on = |node: &&Name| matches!(wanted.get(*node), Some(Traffic::On(_)));
    if let Some(node) = lacking.iter().find(is_on) {
        let there = observed.servers.keys().map(Name::as_str).collect::<Vec<_>>().join(", ");
        return Err(BalancerError::UnknownServer {
            balancer: balancer.name().into(),
            server: node.to_string(),
            there,
        });
    }
    if told.is_empty() {
        return Ok(observed);
    }
    let observed = balancer.observe()?;
    match diff(wanted, &observed).changes.first() {
        None => Ok(observed),
        Some(change) => Err(BalancerError::Unexpected {
            balancer: balancer.name().into(),
            command: format!("{} {}", change.server, change.traffic),
            problem: "it took the change and did not make it".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;
    use std::thread::ThreadId;

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);

    /// Answers when it is let, and says which thread has asked.
    #[derive(Debug)]
    struct Held {
        let_go: Receiver<Duration>,
        asked_by: Sender<ThreadId>,
    }

    impl Balancer for Held {
        fn name(&self) -> &str {
            "held"
        }

        fn observe(&mut self) -> Result<Observed, BalancerError> {
            self.asked_by.send(thread::current().id()).unwrap();
            thread::sleep(self.let_go.recv().unwrap());
            Ok(Observed::default())
        }

        fn tell(&mut self, _changes: &[Change]) -> Result<(), BalancerError> {
            unreachable!("it has no servers")
        }
    }

    fn held() -> (Asked, Sender<Duration>, Receiver<ThreadId>) {
        let ((answer, let_go), (asked_by, asked)) = (channel(), channel());
        (Asked::new(Box::new(Held { let_go, asked_by })), answer, asked)
    }

    // Goal: who hangs is waited for once, and by a thread from then on, until it is quick again.
    #[test]
    fn a_balancer_that_was_slow_is_asked_by_a_thread_until_it_is_quick() {
        let ((mut asked, answer, asked_by), wanted) = (held(), Wanted::default());
        let own = thread::current().id();
        for takes in [AT_ONCE, SLOW + Duration::from_millis(1)] {
            answer.send(takes).unwrap();
            asked.ask(&wanted, false);
            assert!(asked.sight(&wanted, AT_ONCE).observed.is_ok());
            assert_eq!(asked_by.recv().unwrap(), own);
        }
        asked.ask(&wanted, false);
        assert_ne!(asked_by.recv().unwrap(), own, "it was slow");
        let silence = asked.sight(&wanted, AT_ONCE);
        assert_eq!(silence.failure().unwrap(), "held has not answered for 0 s");
        asked.ask(&wanted, false);
        assert!(asked_by.try_recv().is_err(), "it is asked already");
        answer.send(AT_ONCE).unwrap();
        assert!(asked.sight(&wanted, LONG).observed.is_ok());
        answer.send(AT_ONCE).unwrap();
        asked.ask(&wanted, false);
        assert_eq!(asked_by.recv().unwrap(), own, "it is quick");
    }

    // Goal: a node that drains is not taken for drained by what was heard before it was to. Method: what is wanted changes while a
    // thread asks, for a caller that was late.
    #[test]
    fn what_was_heard_by_older_wishes_says_nothing() {
        let ((mut asked, answer, _asked_by), mut wanted) = (held(), Wanted::default());
        asked.ask(&wanted, true);
        Arc::make_mut(&mut wanted).insert("n1".parse().unwrap(), Traffic::Off);
        answer.send(AT_ONCE).unwrap();
        assert!(asked.sight(&wanted, LONG).is_silent());
        answer.send(AT_ONCE).unwrap();
        asked.ask(&wanted, true);
        let sight = asked.sight(&wanted, LONG);
        assert!(sight.observed.is_ok() && sight.lacking.len() == 1, "{sight:?}");
    }

    #[test]
    #[should_panic(expected = "RecvError")]
    fn what_ends_the_thread_ends_the_caller() {
        let ((mut asked, answer, _asked_by), wanted) = (held(), Wanted::default());
        asked.ask(&wanted, true);
        drop(answer);
        asked.sight(&wanted, LONG);
    }
}
