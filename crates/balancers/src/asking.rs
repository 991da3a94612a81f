//! One balancer, asked where that holds nobody up: by the caller's own thread as long as it answers, and by one of its own, a look
//! at a time, when it was slow the last time, or the caller is late already. So one that hangs is waited for once, and keeps
//! no other from being asked.

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

/// Who takes longer is slow: longer than a balancer takes that runs, or is made to reload, and less than one that hangs is
/// waited for.
pub const SLOW: Duration = Duration::from_secs(1);

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
    /// The last look took long, or might have, or has failed since one did.
    is_slow: bool,
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
    /// When that was so.
    at: Instant,
}

impl Asked {
    pub fn new(balancer: Box<dyn Balancer>) -> Self {
        Self {
            name: balancer.name().into(),
            asking: Asking::Nobody(balancer),
            lacking: Vec::new(),
            since: None,
            is_slow: false,
        }
    }

    /// Tells it what differs from what is `wanted`, and hears what it does, unless it is asked already, or has been by the same
    /// wishes. By a thread if it is slow, or the caller `is_late`; whether it is by one that was begun now.
    pub fn ask(&mut self, wanted: &Wanted, is_late: bool) -> bool {
        let balancer = match std::mem::replace(&mut self.asking, Asking::Passing) {
            Asking::Nobody(balancer) => balancer,
            Asking::Done(look) if look.wanted != *wanted => look.balancer,
            is_asked => {
                self.asking = is_asked;
                return false;
            }
        };
        self.since.get_or_insert_with(Instant::now);
        let left = match self.is_slow || is_late {
            true => Away::with(balancer, wanted),
            false => Err(balancer),
        };
        // There may be no more threads, either.
        self.asking = left.map_or_else(|own| self.done(Look::of(own, wanted)), Asking::Thread);
        self.is_away()
    }

    /// Whether a thread asks it.
    pub fn is_away(&self) -> bool {
        matches!(self.asking, Asking::Thread(_))
    }

    /// Whether it has answered since it was asked, if it does by the end of this time.
    pub fn has_answered(&mut self, within: Duration) -> bool {
        self.asking = match std::mem::replace(&mut self.asking, Asking::Passing) {
            Asking::Thread(away) => {
                away.heard(within).map_or_else(Asking::Thread, |look| self.done(look))
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
        self.asking = Asking::Nobody(look.balancer);
        if matches!(look.observed, Err(BalancerError::Silent { .. }))
            || (look.observed.is_ok() && look.wanted != *wanted)
        {
            return self.silence();
        }
        Sight {
            balancer: self.name.clone(),
            told: look.told,
            lacking: self.lacking.clone(),
            observed: look.observed,
            at: look.at,
        }
    }

    /// Has it end what it has in flight on `server`.
    pub fn end(&mut self, server: &Name) -> Result<(), BalancerError> {
        match &mut self.asking {
            Asking::Nobody(balancer) => balancer.end(server),
            _ => Err(self.silent()),
        }
    }

    /// What is told of it while it has not answered, or another has not without which its answer is of no use.
    pub fn silence(&self) -> Sight {
        Sight {
            balancer: self.name.clone(),
            told: Vec::new(),
            lacking: self.lacking.clone(),
            observed: Err(self.silent()),
            at: Instant::now(),
        }
    }

    fn silent(&self) -> BalancerError {
        let seconds = self.since.map_or(0, |since| since.elapsed().as_secs());
        BalancerError::Silent { balancer: self.name.clone(), seconds }
    }

    /// Takes in what a look says of the balancer itself.
    fn done(&mut self, mut look: Look) -> Asking {
        use BalancerError::{Paused, Silent, Unreachable};
        // What has waited for another, or for a better time, has not been seen to be quick.
        let has_waited = matches!(look.observed, Err(Silent { .. } | Paused { .. }));
        self.is_slow = look.took > SLOW || has_waited || self.is_slow && look.observed.is_err();
        if !matches!(look.observed, Err(Silent { .. } | Unreachable { .. })) {
            self.since = None;
        }
        self.lacking = look.lacking.take().unwrap_or_else(|| std::mem::take(&mut self.lacking));
        Asking::Done(Box::new(look))
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
        let (wanted, took, at) = (Arc::clone(wanted), began.elapsed(), Instant::now());
        Self { balancer, wanted, told, lacking, observed, took, at }
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
    let is_on = |node: &&Name| wanted.get(*node).is_some_and(|traffic| traffic.is_on());
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

    // Goal: a site whose one balancer hangs is served by the others as is wanted meanwhile. Method: what is wanted changes when
    // it was heard, and nobody has taken that.
    #[test]
    fn one_that_was_heard_is_told_of_new_wishes() {
        let ((mut asked, answer, asked_by), mut wanted) = (held(), Wanted::default());
        let ask = |asked: &mut Asked, wanted: &Wanted| {
            answer.send(Ok(AT_ONCE)).unwrap();
            asked.ask(wanted, false);
            asked_by.try_recv().is_ok()
        };
        assert!(ask(&mut asked, &wanted));
        assert!(!ask(&mut asked, &wanted), "nothing is new");
        Arc::make_mut(&mut wanted).insert("n1".parse().unwrap(), Traffic::Off);
        assert!(ask(&mut asked, &wanted));
        assert_eq!(asked.sight(&wanted).lacking.len(), 1);
    }
}
