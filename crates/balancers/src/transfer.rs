//! A node leaves a site for another, and no request is lost on the way.
//!
//! First no balancer of the old site sends it anything new; when none of them has a request in flight
//! on it, it is taken out there, and only then the balancers of the new site may begin to use it. One that is hurried is
//! taken out with the requests that it has: balancers that can are made to end them, and of others it is told.
//!
//! Whoever has nodes leave a site has each [`Transfer::want`], asks the site's balancers once, and lets each
//! [`Transfer::look`], every few milliseconds.

use crate::front::{Front, Sight};
use crate::traffic::{Traffic, Weight};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many looks in a row must find nothing in flight. A balancer with several threads may have
/// chosen the node for a request just before it was told, and count it just after it was asked.
const QUIET: u32 = 2;

/// One node on its way.
#[derive(Debug)]
pub struct Transfer {
    node: Name,
    weight: Weight,
    phase: Phase,
    /// Every balancer of the old site has been told to send it nothing new.
    is_told: bool,
    /// What is in flight on it is not waited for.
    is_hurried: bool,
    unfinished: Option<Unfinished>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// So many looks in a row found nothing in flight.
    Draining { quiet: u32 },
    /// It is drained, and taken out.
    Leaving,
    /// It is out.
    Left,
}

/// How far a node is that has not left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Requests that it works on yet.
    pub in_flight: u64,
    /// Why nobody knows of more, for each balancer that cannot tell.
    pub unknown: Vec<String>,
}

/// What was in flight on a node when it was taken out, since that was not waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Requests that were counted.
    pub in_flight: u64,
    /// Why some may go on, for each balancer that has not ended its own: it cannot, or nobody can ask its processes of
    /// before a reload.
    pub going_on: Vec<String>,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { in_flight, going_on } = self;
        let requests = if *in_flight == 1 { "request was" } else { "requests were" };
        write!(f, "{in_flight} {requests} in flight at the limit, ")?;
        match going_on.as_slice() {
            [] => f.write_str("and ended"),
            why => write!(f, "and may go on: {}", why.join("; ")),
        }
    }
}

impl Transfer {
    /// `node` is about to leave.
    pub fn new(node: Name, weight: Weight) -> Self {
        let phase = Phase::Draining { quiet: 0 };
        Self { node, weight, phase, is_told: false, is_hurried: false, unfinished: None }
    }

    /// What is in flight on it is not waited for any longer: it is taken out as soon as all balancers of the old site
    /// can be told so. Who does not answer holds it up all the same: that one may yet send it something new.
    pub fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// Whether all balancers of the old site have been told, at one look, to send it nothing new.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// What was in flight on it when it was taken out; nothing if it was drained, or is still on its way.
    pub fn unfinished(&self) -> Option<&Unfinished> {
        self.unfinished.as_ref()
    }

    /// What the balancers of the old site are to do with the node, from when their front asks next on. All nodes that leave
    /// a site can be wanted so before its balancers are asked once for all of them.
    pub fn want(&self, from: &mut Front) {
        let traffic = match self.phase {
            Phase::Draining { .. } => Traffic::Drain,
            Phase::Leaving | Phase::Left => Traffic::Off,
        };
        from.want(&self.node, traffic);
    }

    /// Takes in how `from` was found and left, asked after [`Self::want`]; how far the drain is, nothing when the
    /// node has left.
    pub fn look(&mut self, from: &mut Front, sights: &[Sight]) -> Option<Progress> {
        let in_flight = self.in_flight(sights);
        let why = |sight: &Sight| sight.failure().or_else(|| lingering(sight));
        let unknown: Vec<_> = sights.iter().filter_map(why).collect();
        let is_quiet = in_flight == 0 && unknown.is_empty();
        let is_told = sights.iter().all(|sight| sight.failure().is_none());
        let is_hurried = self.is_hurried && is_told;
        match self.phase {
            Phase::Draining { quiet } => {
                self.is_told |= is_told;
                let quiet = if is_quiet { quiet + 1 } else { 0 };
                let is_over = quiet >= QUIET || is_hurried;
                self.phase = if is_over { Phase::Leaving } else { Phase::Draining { quiet } };
            }
            Phase::Leaving if is_quiet || is_hurried => {
                if is_hurried {
                    self.unfinished = self.end_what_is_left(from, sights);
                }
                self.phase = Phase::Left;
                return None;
            }
            // Who sticks to the node by a cookie may have sent it something more before it was out; there may have been a
            // reload since, too.
            Phase::Leaving => {}
            Phase::Left => return None,
        }
        Some(Progress { in_flight, unknown })
    }

    /// Gives up: the node is to serve `from` as before, from when that asks next on.
    pub fn undo(self, from: &mut Front) {
        from.want(&self.node, Traffic::On(self.weight));
    }

    /// Has balancers end what they have in flight on the node, which is out; what that was, if there was something.
    fn end_what_is_left(&self, from: &mut Front, sights: &[Sight]) -> Option<Unfinished> {
        let is_left = |sight: &Sight| self.in_flight_at(sight) > 0 || lingering(sight).is_some();
        if !sights.iter().any(is_left) {
            return None;
        }
        let ended = from.end(&self.node);
        let going_on = sights.iter().zip(ended).flat_map(|(sight, ended)| {
            let own = ended.err().filter(|_| self.in_flight_at(sight) > 0);
            lingering(sight).into_iter().chain(own.map(|error| chain(&error)))
        });
        let going_on = going_on.collect();
        Some(Unfinished { in_flight: self.in_flight(sights), going_on })
    }

    fn in_flight(&self, sights: &[Sight]) -> u64 {
        sights.iter().map(|sight| self.in_flight_at(sight)).fold(0, u64::saturating_add)
    }

    fn in_flight_at(&self, sight: &Sight) -> u64 {
        let seen = sight.observed.as_ref().ok().and_then(|seen| seen.servers.get(&self.node));
        seen.map_or(0, |seen| seen.in_flight)
    }
}

/// Processes of before a reload, if there are: what they work on nobody counts.
fn lingering(sight: &Sight) -> Option<String> {
    let count = sight.observed.as_ref().map_or(0, |seen| seen.lingering);
    (count > 0).then(|| format!("{}: {count} processes of before a reload", sight.balancer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::{Balancer, BalancerError};
    use crate::traffic::{Change, Observed, Seen};
    use std::collections::BTreeMap;
    use std::io::ErrorKind;
    use std::sync::{Arc, Mutex, MutexGuard};

    /// A balancer with one server, as a test left it.
    #[derive(Debug, Clone)]
    struct Fake(Arc<Mutex<State>>);

    #[derive(Debug)]
    struct State {
        traffic: Traffic,
        in_flight: u64,
        lingering: usize,
        answers: bool,
        can_end: bool,
    }

    impl Fake {
        fn with(in_flight: u64) -> Self {
            let traffic = Traffic::On(Weight::FULL);
            let state = State { traffic, in_flight, lingering: 0, answers: true, can_end: true };
            Self(Arc::new(Mutex::new(state)))
        }

        fn state(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap()
        }

        fn answering(&self) -> Result<MutexGuard<'_, State>, BalancerError> {
            let silent = || BalancerError::Unreachable {
                balancer: "fake".into(),
                source: ErrorKind::TimedOut.into(),
            };
            Some(self.state()).filter(|state| state.answers).ok_or_else(silent)
        }
    }

    impl Balancer for Fake {
        fn name(&self) -> &str {
            "fake"
        }

        fn observe(&mut self) -> Result<Observed, BalancerError> {
            let state = self.answering()?;
            let seen = Seen { traffic: state.traffic, in_flight: state.in_flight, served: None };
            let servers = BTreeMap::from([(node(), seen)]);
            Ok(Observed { servers, lingering: state.lingering, ..Observed::default() })
        }

        fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError> {
            let mut state = self.answering()?;
            changes.iter().for_each(|change| state.traffic = change.traffic);
            Ok(())
        }

        fn end(&mut self, server: &Name) -> Result<(), BalancerError> {
            assert_eq!(*server, node());
            let mut state = self.answering()?;
            assert_eq!(state.traffic, Traffic::Off, "it may begin another one just then");
            if !state.can_end {
                return Err(BalancerError::CannotEnd { balancer: "fake".into() });
            }
            state.in_flight = 0;
            Ok(())
        }
    }

    fn node() -> Name {
        "n1".parse().unwrap()
    }

    fn front(balancers: &[Fake]) -> Front {
        let boxed = |balancer: &Fake| -> Box<dyn Balancer> { Box::new(balancer.clone()) };
        Front::new(balancers.iter().map(boxed).collect())
    }

    fn look(transfer: &mut Transfer, from: &mut Front) -> Option<Progress> {
        transfer.want(from);
        let sights = from.reconcile();
        transfer.look(from, &sights)
    }

    /// Whether a node that is hurried leaves: it is taken out, and then what is left is ended.
    fn leaves(transfer: &mut Transfer, from: &mut Front) -> bool {
        look(transfer, from).is_some() && look(transfer, from).is_none()
    }

    #[test]
    fn what_a_hurried_node_has_in_flight_is_ended_where_that_can_be_and_told() {
        let [ending, idle, last] = [3, 0, 2].map(Fake::with);
        last.state().can_end = false;
        idle.state().can_end = false;
        let mut from = front(&[ending.clone(), idle.clone(), last.clone()]);
        let mut transfer = Transfer::new(node(), Weight::FULL);
        for _ in 0..10 {
            let waits = Some(Progress { in_flight: 5, unknown: vec![] });
            assert_eq!(look(&mut transfer, &mut from), waits);
        }
        assert!(transfer.is_told() && transfer.unfinished().is_none());
        transfer.hurry();
        assert!(leaves(&mut transfer, &mut from));
        let unfinished = transfer.unfinished().unwrap();
        let going_on = vec!["fake cannot end requests".to_string()];
        assert_eq!(*unfinished, Unfinished { in_flight: 5, going_on });
        let text =
            "5 requests were in flight at the limit, and may go on: fake cannot end requests";
        assert_eq!(unfinished.to_string(), text);
        let left = [ending, idle, last].map(|balancer| {
            let state = balancer.state();
            (state.in_flight, state.traffic)
        });
        assert_eq!(left, [(0, Traffic::Off), (0, Traffic::Off), (2, Traffic::Off)]);
    }

    #[test]
    fn who_does_not_answer_holds_up_a_hurried_node_since_that_one_may_send_it_more() {
        let [told, silent] = [1, 0].map(Fake::with);
        silent.state().answers = false;
        let mut from = front(&[told.clone(), silent.clone()]);
        let mut transfer = Transfer::new(node(), Weight::FULL);
        transfer.hurry();
        for _ in 0..10 {
            let progress = look(&mut transfer, &mut from).unwrap();
            assert_eq!((progress.in_flight, progress.unknown.len()), (1, 1), "{progress:?}");
        }
        assert!(!transfer.is_told());
        let state = told.state();
        assert_eq!((state.in_flight, state.traffic), (1, Traffic::Drain));
        drop(state);
        silent.state().answers = true;
        assert!(leaves(&mut transfer, &mut from));
        assert!(transfer.is_told());
        let text = "1 request was in flight at the limit, and ended";
        assert_eq!(transfer.unfinished().map(ToString::to_string).as_deref(), Some(text));
    }

    #[test]
    fn a_hurried_node_with_nothing_in_flight_is_drained_and_nothing_else() {
        let balancer = Fake::with(0);
        let mut from = front(std::slice::from_ref(&balancer));
        let mut transfer = Transfer::new(node(), Weight::FULL);
        transfer.hurry();
        assert!(leaves(&mut transfer, &mut from));
        assert_eq!(transfer.unfinished(), None);
        // What processes of before a reload do nobody can end.
        balancer.state().lingering = 2;
        let mut transfer = Transfer::new(node(), Weight::FULL);
        assert!(look(&mut transfer, &mut from).is_some());
        transfer.hurry();
        assert!(leaves(&mut transfer, &mut from));
        let unfinished = transfer.unfinished().unwrap();
        assert_eq!((unfinished.in_flight, unfinished.going_on.len()), (0, 1));
    }

    // Goal: a request that a session sent to the node that it sticks to, after the last look at the drain, is waited for, and
    // so is one that a process of before a reload has since. Method: they are there when the node is out.
    #[test]
    fn what_came_before_the_node_was_out_is_waited_for() {
        let balancer = Fake::with(0);
        let mut from = front(std::slice::from_ref(&balancer));
        let mut transfer = Transfer::new(node(), Weight::FULL);
        for _ in 0..QUIET {
            let drains = Some(Progress { in_flight: 0, unknown: vec![] });
            assert_eq!(look(&mut transfer, &mut from), drains);
        }
        balancer.state().in_flight = 1;
        for _ in 0..10 {
            let waits = Some(Progress { in_flight: 1, unknown: vec![] });
            assert_eq!(look(&mut transfer, &mut from), waits);
            assert_eq!(balancer.state().traffic, Traffic::Off);
        }
        balancer.state().in_flight = 0;
        balancer.state().lingering = 1;
        for _ in 0..10 {
            let unknown = vec!["fake: 1 processes of before a reload".into()];
            assert_eq!(look(&mut transfer, &mut from), Some(Progress { in_flight: 0, unknown }));
        }
        balancer.state().lingering = 0;
        assert_eq!(look(&mut transfer, &mut from), None);
        assert_eq!(transfer.unfinished(), None);
    }
}
