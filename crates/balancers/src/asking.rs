//! One balancer, asked where that holds nobody up: by the caller's own thread as long as it answers at once, and by one of its own,
//! a look at a time, when it was slow the last time (or to change, and something changes), or the caller is late already. So
//! one that hangs is waited for once, and keeps no other from being asked.

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
    /// Since when it was asked and has not answered.
    since: Option<Instant>,
    /// The last look took long, or has failed since one did.
    is_slow: bool,
    /// The last change took long.
    is_slow_to_change: bool,
    /// By what it was told last.
    told_by: Wanted,
}

#[derive(Debug)]
enum Asking {
    /// Nobody does.
    Nobody(Box<dyn Balancer>),
    /// A thread does.
    Thread(Away),
    /// Somebody has.
    Done(Box<Look>),
    /// While it passes from one to another.
    Passing,
}

/// A look that a thread has begun.
#[derive(Debug)]
struct Away {
    look: Receiver<Look>,
    thread: JoinHandle<()>,
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
        Self {
            name: balancer.name().into(),
            asking: Asking::Nobody(balancer),
            lacking: Vec::new(),
            since: None,
            is_slow: false,
            is_slow_to_change: false,
            told_by: Wanted::default(),
        }
    }

    /// Tells it what differs from what is `wanted`, and hears what it does, unless it is asked already. By a thread if it is
    /// slow, or the caller `is_late`; whether it is by one that was begun now.
    pub fn ask(&mut self, wanted: &Wanted, is_late: bool) -> bool {
        match std::mem::replace(&mut self.asking, Asking::Passing) {
            Asking::Nobody(balancer) => {
                self.since.get_or_insert_with(Instant::now);
                let is_slow = self.is_slow || self.is_slow_to_change && self.told_by != *wanted;
                let left = match is_slow || is_late {
                    true => Away::with(balancer, wanted),
                    false => Err(balancer),
                };
                // There may be no more threads, either.
                self.asking = left.map_or_else(|own| Look::of(own, wanted).done(), Asking::Thread);
            }
            is_asked => {
                self.asking = is_asked;
                return false;
            }
        }
        matches!(self.asking, Asking::Thread(_))
    }

    /// Whether a thread asks it.
    pub fn is_away(&self) -> bool {
        matches!(self.asking, Asking::Thread(_))
    }

    /// Whether it has answered since it was asked, if it does by the end of this time.
    pub fn has_answered(&mut self, within: Duration) -> bool {
        self.asking = match std::mem::replace(&mut self.asking, Asking::Passing) {
            Asking::Thread(away) => {
                away.heard(within).map_or_else(Asking::Thread, |look| look.done())
            }
            asking => asking,
        };
        matches!(self.asking, Asking::Done(_))
    }

    /// What it has answered; [`BalancerError::Silent`] if it has not. What was heard by others' wishes than what is `wanted` says
    /// nothing either: it is to be asked anew.
    pub fn sight(&mut self, wanted: &Wanted) -> Sight {
        let look = match std::mem::replace(&mut self.asking, Asking::Passing) {
            Asking::Done(look) => *look,
            asking => {
                self.asking = asking;
                return self.silence();
            }
        };
        let Look { balancer, wanted: told_by, told, lacking, observed, took } = look;
        self.asking = Asking::Nobody(balancer);
        self.is_slow = took > SLOW || self.is_slow && observed.is_err();
        if !told.is_empty() {
            self.is_slow_to_change = took > SLOW;
        }
        self.told_by = told_by;
        self.lacking = lacking.unwrap_or_else(|| std::mem::take(&mut self.lacking));
        match observed {
            Err(BalancerError::Silent { .. }) => self.silence(),
            Ok(_) if self.told_by != *wanted => self.silence(),
            observed => {
                if !matches!(observed, Err(BalancerError::Unreachable { .. })) {
                    self.since = None;
                }
                let (balancer, lacking) = (self.name.clone(), self.lacking.clone());
                Sight { balancer, told, lacking, observed }
            }
        }
    }

    /// Has it end what it has in flight on `server`.
    pub fn end(&mut self, server: &Name) -> Result<(), BalancerError> {
        match &mut self.asking {
            Asking::Nobody(balancer) => balancer.end(server),
            _ => Err(self.silent()),
        }
    }

    /// What is told of it while it has not answered.
    pub fn silence(&self) -> Sight {
        let (balancer, lacking) = (self.name.clone(), self.lacking.clone());
        Sight { balancer, told: Vec::new(), lacking, observed: Err(self.silent()) }
    }

    fn silent(&self) -> BalancerError {
        let seconds = self.since.map_or(0, |since| since.elapsed().as_secs());
        BalancerError::Silent { balancer: self.name.clone(), seconds }
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
                // Nobody listens when the caller has ended.
                let _ = tell.send(Look::of(balancer, &wanted));
            }
        };
        let Ok(thread) = thread::Builder::new().name("balancer".into()).spawn(work) else {
            return Err(balancer);
        };
        give.send(balancer).map(|()| Self { look, thread }).map_err(|unsent| unsent.0)
    }

    /// What the thread has heard, or itself, if that is nothing by then.
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

    fn done(self) -> Asking {
        Asking::Done(Box::new(self))
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
    use crate::traffic::{Seen, Weight};
    use std::io::ErrorKind;
    use std::sync::mpsc::Sender;
    use std::thread::ThreadId;

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);

    /// After how long it answers, or how it fails.
    type Answer = Result<Duration, ErrorKind>;

    /// Answers when it is let, and says which thread has asked.
    #[derive(Debug)]
    struct Held {
        let_go: Receiver<Answer>,
        asked_by: Sender<ThreadId>,
    }

    impl Balancer for Held {
        fn name(&self) -> &str {
            "held"
        }

        fn observe(&mut self) -> Result<Observed, BalancerError> {
            self.asked_by.send(thread::current().id()).unwrap();
            let answer = self.let_go.recv().unwrap();
            thread::sleep(answer.unwrap_or(AT_ONCE));
            answer.map(|_| Observed::default()).map_err(|kind| BalancerError::Unreachable {
                balancer: self.name().into(),
                source: kind.into(),
            })
        }

        fn tell(&mut self, _changes: &[Change]) -> Result<(), BalancerError> {
            unreachable!("it has no servers")
        }
    }

    fn held() -> (Asked, Sender<Answer>, Receiver<ThreadId>) {
        let ((answer, let_go), (asked_by, asked)) = (channel(), channel());
        (Asked::new(Box::new(Held { let_go, asked_by })), answer, asked)
    }

    /// What comes of a look.
    fn heard(asked: &mut Asked, wanted: &Wanted) -> Sight {
        assert!(asked.has_answered(LONG));
        asked.sight(wanted)
    }

    // Goal: who hangs is waited for once, and by a thread from then on, until it is quick again.
    #[test]
    fn a_balancer_that_was_slow_is_asked_by_a_thread_until_it_is_quick() {
        let ((mut asked, answer, asked_by), wanted) = (held(), Wanted::default());
        let own = thread::current().id();
        for takes in [AT_ONCE, SLOW + Duration::from_millis(1)] {
            answer.send(Ok(takes)).unwrap();
            assert!(!asked.ask(&wanted, false));
            assert!(heard(&mut asked, &wanted).observed.is_ok());
            assert_eq!(asked_by.recv().unwrap(), own);
        }
        // That it fails at once is no answer.
        for answered in [Err(ErrorKind::ConnectionReset), Ok(AT_ONCE)] {
            assert!(asked.ask(&wanted, false), "it was slow");
            assert_ne!(asked_by.recv().unwrap(), own);
            assert!(!asked.has_answered(AT_ONCE) && asked.sight(&wanted).is_silent());
            assert!(!asked.ask(&wanted, false), "it is asked already");
            assert!(asked_by.try_recv().is_err() && asked.is_away());
            answer.send(answered).unwrap();
            assert_eq!(heard(&mut asked, &wanted).observed.is_ok(), answered.is_ok());
        }
        answer.send(Ok(AT_ONCE)).unwrap();
        assert!(!asked.ask(&wanted, false), "it is quick");
        assert_eq!(asked_by.recv().unwrap(), own);
    }

    // Goal: a node that drains is not taken for drained by what was heard before it was to. Method: what is wanted changes
    // while a thread asks, for a caller that was late.
    #[test]
    fn what_was_heard_by_older_wishes_says_nothing() {
        let ((mut asked, answer, _asked_by), mut wanted) = (held(), Wanted::default());
        asked.ask(&wanted, true);
        Arc::make_mut(&mut wanted).insert("n1".parse().unwrap(), Traffic::Off);
        answer.send(Ok(AT_ONCE)).unwrap();
        assert!(heard(&mut asked, &wanted).is_silent());
        answer.send(Ok(AT_ONCE)).unwrap();
        asked.ask(&wanted, true);
        let sight = heard(&mut asked, &wanted);
        assert!(sight.observed.is_ok() && sight.lacking.len() == 1, "{sight:?}");
    }

    // Goal: people are told for how long nobody has heard of it, whatever became of looks meanwhile.
    #[test]
    fn silence_lasts_until_it_answers() {
        let ((mut asked, answer, _asked_by), wanted) = (held(), Wanted::default());
        let ask = |asked: &mut Asked, answered| {
            answer.send(answered).unwrap();
            asked.ask(&wanted, false);
            drop(heard(asked, &wanted));
            asked.since
        };
        let since = ask(&mut asked, Err(ErrorKind::TimedOut));
        assert!(since.is_some());
        assert_eq!(ask(&mut asked, Err(ErrorKind::TimedOut)), since);
        assert_eq!(ask(&mut asked, Ok(AT_ONCE)), None);
    }

    #[test]
    #[should_panic(expected = "RecvError")]
    fn what_ends_the_thread_ends_the_caller() {
        let ((mut asked, answer, _asked_by), wanted) = (held(), Wanted::default());
        asked.ask(&wanted, true);
        drop(answer);
        asked.has_answered(LONG);
    }

    /// Takes long to be told something, and no time to be asked.
    #[derive(Debug, Default)]
    struct Reloads(BTreeMap<Name, Seen>);

    impl Balancer for Reloads {
        fn name(&self) -> &str {
            "reloads"
        }

        fn observe(&mut self) -> Result<Observed, BalancerError> {
            Ok(Observed { servers: self.0.clone(), ..Observed::default() })
        }

        fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError> {
            thread::sleep(SLOW + Duration::from_millis(1));
            for Change { server, traffic } in changes {
                self.0.get_mut(server).unwrap().traffic = *traffic;
            }
            Ok(())
        }
    }

    #[test]
    fn one_that_is_slow_to_change_is_told_by_a_thread() {
        let node: Name = "n1".parse().unwrap();
        let seen = Seen { traffic: Traffic::Off, in_flight: 0, served: None };
        let mut asked = Asked::new(Box::new(Reloads(BTreeMap::from([(node.clone(), seen)]))));
        let mut wanted = Wanted::default();
        let mut ask = |traffic| {
            Arc::make_mut(&mut wanted).insert(node.clone(), traffic);
            let by_thread = asked.ask(&wanted, false);
            assert!(heard(&mut asked, &wanted).observed.is_ok());
            by_thread
        };
        let on = Traffic::On(Weight::FULL);
        assert!(!ask(Traffic::Off), "nothing changes");
        assert!(!ask(on), "nobody knows yet");
        assert!(ask(on), "it was slow");
        assert!(!ask(on));
        assert!(ask(Traffic::Off));
    }
}
