//! What must hold.

use super::{Asked, SLACK, SLOTS_COMPARED, World};
use crate::Violation;
use crate::broker::Broker;
use keeptime_broker::records;
use keeptime_engine::{Call, Event, Step};
use keeptime_model::assignment::Assignment;
use keeptime_model::reservation::Handle;
use keeptime_model::topology::{LinkDirection, NodeIndex};
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

impl World {
    /// What an agent holds is what the broker takes it to hold, whenever nothing is on its way
    /// between them.
    pub(super) fn check_node(&self, node: usize) -> Result<(), Violation> {
        self.nodes[node].check(self.now())?;
        let there = &self.nodes[node];
        let index = there.index();
        let Some(broker) = &self.broker else { return Ok(()) };
        let present = broker.connection(index).map(|(_, connection)| connection);
        let still = present.filter(|c| Some(*c) == there.connection && self.network.is_still(*c));
        if still.is_none() || !broker.is_settled() || !broker.engine.is_connected(index) {
            return Ok(());
        }
        // What is over by either clock is let go by whoever notices first.
        let latest = there.reads(self.now()).max(broker.engine.now());
        let lasts = |assignment: &&Assignment| assignment.until_unix_nanos > latest;
        let held = there.holding();
        let held: BTreeMap<_, _> = held.iter().filter(lasts).map(|a| (&a.job, a)).collect();
        let told = broker.engine.told(index);
        let mut expected = BTreeMap::new();
        for (handle, assignment, accepted) in told {
            if lasts(&assignment) {
                expected.insert(&assignment.job, assignment);
                if !accepted {
                    return Err(Violation(format!("node {node} was never asked about {handle}")));
                }
            }
        }
        if held != expected {
            let what = "holds something else than the broker believes";
            return Err(Violation(format!("node {node} {what}: {held:?} and not {expected:?}")));
        }
        Ok(())
    }

    /// What begins or is changed has its links: whoever used what was spare there has given it back.
    pub(super) fn check_room(&self, step: &Step) -> Result<(), Violation> {
        let Some(broker) = &self.broker else { return Ok(()) };
        let begun = step.events.iter().filter_map(|event| match event {
            Event::Started { handle, .. } | Event::Modified { handle, .. } => Some(*handle),
            _ => None,
        });
        for handle in begun {
            let (book, now) = (broker.engine.book(), broker.engine.now());
            let room = self.history.check_room(book, handle, now, &self.spare());
            room.map_err(|what| Violation(format!("when {handle} begins, {what}")))?;
        }
        Ok(())
    }

    /// What jobs may use of links beside what is reserved for them, behind the first of their way.
    fn spare(&self) -> Vec<(NodeIndex, Handle, LinkDirection, u64)> {
        let node_at = |address| {
            let has = |node: &NodeIndex| self.topology.node(*node).address == Some(address);
            self.topology.node_indices().find(has)
        };
        let mut used = Vec::new();
        for node in &self.nodes {
            for (job, destination, more) in node.spare(self.now()) {
                let (Ok(handle), Some(to)) = (job.as_str().parse(), node_at(destination)) else {
                    continue;
                };
                let path = self.topology.path(node.index(), to).into_iter().skip(1);
                used.extend(path.map(|link| (node.index(), handle, link, more)));
            }
        }
        used
    }

    /// When everything that was decided is durable, the slot tables are those of the array, at a
    /// second that is chosen by chance.
    pub(super) fn check_settled(&mut self) -> Result<(), Violation> {
        let ahead = self.chance.below(SLOTS_COMPARED as u64) as usize;
        match &self.broker {
            Some(broker) if broker.is_settled() && broker.engine.offer_count() == 0 => {
                self.history.compare_slots(&broker.engine, ahead)
            }
            _ => Ok(()),
        }
    }

    /// An answer leaves when agents have had their time, twice where others had to become slower first; of what may wait
    /// for room, when its wait is over; of what the broker before was about to move, when agents had their lease to come
    /// back.
    pub(super) fn check_in_time(&self, asked: &Asked) -> Result<(), Violation> {
        let wait = match &asked.what {
            Call::Reserve { request, .. } => request.wait_nanos.unwrap_or_default(),
            Call::Move { .. } => self.policy.agent_lease_nanos,
            _ => Nanos::default(),
        };
        let agents = self.policy.answer_within_nanos;
        let most = [agents, agents, SLACK].into_iter().fold(wait, Nanos::saturating_add);
        let took = self.now().saturating_sub(asked.at);
        if took <= most {
            return Ok(());
        }
        Err(Violation(format!("an answer after {took}, {most} at the most: {:?}", asked.what)))
    }

    /// Faults have stopped for a while.
    pub(super) fn check_calm(&self) -> Result<(), Violation> {
        let Some(broker) = &self.broker else {
            return Err(Violation::new("the broker did not come back"));
        };
        if let Some((_, open)) = self.users.open().next() {
            return Err(Violation(format!("nobody answers {:?}", open.call)));
        }
        if let Some(asked) = self.tickets.values().next() {
            return Err(Violation(format!("the broker does not answer {:?}", asked.what)));
        }
        if broker.engine.waiting_count() > 0 {
            return Err(Violation::new("a request waits for room longer than it may"));
        }
        if broker.engine.offer_count() > 0 {
            return Err(Violation::new("an offer is neither granted nor given up"));
        }
        if !broker.is_settled() {
            return Err(Violation::new("what was decided does not become durable"));
        }
        let left_over = records::left_over(broker.ledger()).map_err(Violation::new)?;
        if let Some((revision, subject)) = left_over.first() {
            let what = format!("{subject:?}, forgotten at {revision}, was compacted and is there");
            return Err(Violation(what));
        }
        self.history.compare(broker.engine.book())?;
        for ahead in 0..SLOTS_COMPARED {
            self.history.compare_slots(&broker.engine, ahead)?;
        }
        for node in 0..self.nodes.len() {
            let index = self.nodes[node].index();
            if !broker.engine.is_connected(index) {
                return Err(Violation(format!("node {node} did not come back")));
            }
            self.check_node(node)?;
            self.check_told(broker, index)?;
        }
        Ok(())
    }

    /// Every agent was told what is recorded for it and begins soon, and nothing else.
    pub(super) fn check_told(&self, broker: &Broker, node: NodeIndex) -> Result<(), Violation> {
        let name = &self.topology.node(node).name;
        let soon = broker.engine.now().saturating_add(self.policy.tell_ahead_nanos);
        let live = self.history.reservations().values().filter(|found| {
            let nodes = found.grant.as_ref().map(|grant| &grant.nodes);
            found.state.is_live()
                && found.from_unix_nanos <= soon
                && nodes.is_some_and(|nodes| nodes.contains(name))
        });
        let recorded: BTreeSet<Handle> = live.map(|found| found.handle).collect();
        let told: BTreeSet<Handle> = broker.engine.told(node).map(|(handle, ..)| handle).collect();
        if recorded == told {
            return Ok(());
        }
        Err(Violation(format!("{name} was told {told:?}, and {recorded:?} is recorded")))
    }
}
