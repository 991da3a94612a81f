//! Where parts meet, and one of them can be replaced by a wrong one: a checker that finds nothing
//! wrong there finds nothing at all. Tests plant bugs here; nothing else does.

use keeptime_broker::records::Found;
use keeptime_engine::agents::Order;
use keeptime_engine::{Call, Cluster, Step};
use keeptime_model::Invalid;
use keeptime_model::topology::Topology;

/// What becomes of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It is sent.
    Sent,
    /// It is sent, and accepted in the agent's name before it arrives.
    SentAndAccepted,
    /// It is gone, and nobody notices.
    Lost,
}

/// The places where parts meet. As they stand here, all is right.
pub trait Seams {
    /// What the broker takes the cluster for.
    ///
    /// # Errors
    /// If it is none.
    fn cluster(&self, topology: Topology) -> Result<Cluster, Invalid> {
        Cluster::new(topology, |rate| rate)
    }

    /// Between the door and the engine: what a user asks.
    fn asked(&mut self, _call: &mut Call) {}

    /// Between the engine and its record: what an input leads to.
    fn decided(&mut self, _step: &mut Step) {}

    /// Between the record and the way out: whether outputs wait for it.
    fn waits_for_the_disk(&self) -> bool {
        true
    }

    /// Between the broker and the network: what an agent is told.
    fn order(&mut self, _order: &Order) -> Passage {
        Passage::Sent
    }

    /// Between the ledger and a broker that starts: what it finds.
    fn found(&mut self, _found: &mut Found) {}

    /// Between an agent and its clock: whether it looks at it.
    fn ticks(&self) -> bool {
        true
    }
}

/// All is right.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sound;

impl Seams for Sound {}
