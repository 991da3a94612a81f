//! A node leaves one site and joins another, and no request is lost on the way.
//!
//! First no balancer of the old site sends it anything new; when none of them has a request in flight
//! on it, it is taken out there, and only then the balancers of the new site begin to use it.

use crate::balancer::BalancerError;
use crate::front::{Front, Sight};
use crate::traffic::{Traffic, Weight};
use keeptime_model::name::Name;
use thiserror::Error;

/// How many looks in a row must find nothing in flight. A balancer with several threads may have
/// chosen the node for a request just before it was told, and count it just after it was asked.
const QUIET: u32 = 2;

/// One node on its way. Whoever moves it asks [`Self::poll`] every few milliseconds.
#[derive(Debug)]
pub struct Transfer {
    node: Name,
    weight: Weight,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// So many looks in a row found nothing in flight.
    Draining { quiet: u32 },
    /// It is drained, and taken out at the old site.
    Leaving,
    /// It is put in at the new site.
    Joining,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The old site's balancers do not send it anything new.
    Draining {
        /// Requests that it works on yet.
        in_flight: u64,
        /// Why nobody knows of more, for each balancer that cannot tell.
        unknown: Vec<String>,
    },
    /// Nothing is in flight; the new site's balancers are told.
    Joining {
        /// Why one does not use it yet.
        unknown: Vec<String>,
    },
    /// All balancers of the new site use it.
    Done,
}

/// The node died on its way: it is taken out everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("node {node} died while it was moved")]
pub struct NodeDied {
    /// Which.
    pub node: Name,
}

impl Transfer {
    /// `node` is about to leave.
    pub fn new(node: Name, weight: Weight) -> Self {
        Self { node, weight, phase: Phase::Draining { quiet: 0 } }
    }

    /// The node.
    pub fn node(&self) -> &Name {
        &self.node
    }

    /// Goes on as far as possible without waiting. A spare node comes `from` nowhere; one that becomes
    /// a spare goes nowhere.
    ///
    /// # Errors
    /// If the node `is_alive` no more: nobody sends it anything from now on.
    pub fn poll(
        &mut self,
        from: Option<&mut Front>,
        to: Option<&mut Front>,
        is_alive: bool,
    ) -> Result<Progress, NodeDied> {
        if !is_alive {
            for front in [from, to].into_iter().flatten() {
                front.want(&self.node, Traffic::Off);
                front.reconcile();
            }
            return Err(NodeDied { node: self.node.clone() });
        }
        if let Some(from) = from
            && let Some(progress) = self.leave(from)
        {
            return Ok(progress);
        }
        self.phase = Phase::Joining;
        let Some(to) = to else { return Ok(Progress::Done) };
        to.want(&self.node, Traffic::On(self.weight));
        let unknown: Vec<_> = to.reconcile().iter().filter_map(failure).collect();
        Ok(if unknown.is_empty() { Progress::Done } else { Progress::Joining { unknown } })
    }

    /// Gives up: the node serves `from` as before.
    pub fn undo(self, from: Option<&mut Front>, to: Option<&mut Front>) {
        let traffics = [(to, Traffic::Off), (from, Traffic::On(self.weight))];
        for (front, traffic) in traffics {
            if let Some(front) = front {
                front.want(&self.node, traffic);
                front.reconcile();
            }
        }
    }

    /// How far the drain is; nothing when the node has left.
    fn leave(&mut self, from: &mut Front) -> Option<Progress> {
        if let Phase::Draining { quiet } = self.phase {
            from.want(&self.node, Traffic::Drain);
            let sights = from.reconcile();
            let in_flight = sights.iter().map(|sight| self.in_flight(sight));
            let in_flight = in_flight.fold(0, u64::saturating_add);
            let unknown: Vec<_> =
                sights.iter().filter_map(|sight| failure(sight).or(lingering(sight))).collect();
            let is_quiet = in_flight == 0 && unknown.is_empty();
            let quiet = if is_quiet { quiet + 1 } else { 0 };
            self.phase = if quiet < QUIET { Phase::Draining { quiet } } else { Phase::Leaving };
            if quiet < QUIET {
                return Some(Progress::Draining { in_flight, unknown });
            }
        }
        if self.phase == Phase::Leaving {
            from.want(&self.node, Traffic::Off);
            let unknown: Vec<_> = from.reconcile().iter().filter_map(failure).collect();
            if !unknown.is_empty() {
                return Some(Progress::Draining { in_flight: 0, unknown });
            }
        }
        None
    }

    fn in_flight(&self, sight: &Sight) -> u64 {
        let seen = sight.observed.as_ref().ok().and_then(|seen| seen.servers.get(&self.node));
        seen.map_or(0, |seen| seen.in_flight)
    }
}

/// Why a balancer could not be asked or told. One that has ended has nothing in flight, and is told
/// everything when it is back.
fn failure(sight: &Sight) -> Option<String> {
    match &sight.observed {
        Ok(_) | Err(BalancerError::Ended { .. }) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Processes of before a reload, if there are: what they work on nobody counts.
fn lingering(sight: &Sight) -> Option<String> {
    let count = sight.observed.as_ref().map_or(0, |seen| seen.lingering);
    (count > 0).then(|| format!("{}: {count} processes of before a reload", sight.balancer))
}
