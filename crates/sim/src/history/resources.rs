//! What reservations take of every resource, counted without the engine: link directions first, then
//! what each node has, then users' shares.

use super::History;
use crate::Violation;
use crate::clock::{SECOND, second};
use crate::slots::{Entry, Over};
use crate::users::NAMES;
use keeptime_engine::cluster::Resource;
use keeptime_engine::{Engine, Policy};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Grant, Handle, UserName};
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use keeptime_model::units::WallTime;

/// CPU, read rate, write rate.
const RESOURCES_OF_A_NODE: usize = 3;

impl History {
    /// What the slot tables say is what the array says, `ahead` seconds from now; if nothing is being
    /// offered.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare_slots(&self, engine: &Engine, ahead: usize) -> Result<(), Violation> {
        let (at, used) = self.slots.used(ahead);
        let instant = WallTime::from_unix_nanos(at * SECOND);
        if instant < engine.now() {
            return Ok(());
        }
        for (resource, mine) in used.iter().enumerate() {
            let Some(which) = self.resource(resource) else { break };
            let table = engine.calendar().table(engine.cluster().table(which));
            let its = table.map_or(0, |table| table.used_at(instant));
            if its != *mine {
                let name = self.name(resource);
                let what =
                    format!("{name}: the slot table has {its} and the array {mine} at {at} s");
                return Err(Violation(what));
            }
        }
        Ok(())
    }

    /// Puts what a reservation holds into the array.
    pub(super) fn hold(&mut self, handle: Handle) -> Result<(), String> {
        let Some(found) = self.reservations.get(&handle) else { return Ok(()) };
        let Some(grant) = &found.grant else { return Ok(()) };
        let entry = Entry {
            from: second(found.from_unix_nanos),
            until: found.until_unix_nanos.map_or(u64::MAX, second),
            amounts: self.amounts(&found.owner, grant)?,
        };
        self.slots.put(handle, entry).map_err(|over| self.over(over).0)
    }

    /// What a grant takes of every resource.
    pub(super) fn amounts(
        &self,
        owner: &UserName,
        grant: &Grant,
    ) -> Result<Vec<(usize, u64)>, String> {
        let nodes = grant.nodes.iter().map(|name| self.names.get(name).copied());
        let nodes: Vec<_> = nodes.collect::<Option<_>>().ok_or("an unknown node")?;
        let more = &grant.extension;
        let cpu = u64::from(grant.cpu_ppm.max(more.cpu_ppm).get());
        let read = grant.disk_read_bytes_per_second.max(more.disk_read_bytes_per_second);
        let write = grant.disk_write_bytes_per_second.max(more.disk_write_bytes_per_second);
        let mut flows: Vec<_> =
            more.premium().map(|flow| (flow.from, flow.to, flow.bits_per_second)).collect();
        if let Some(pattern) = &grant.pattern {
            let of_pattern = pattern.flows(nodes.len() as u32).map_err(|e| e.to_string())?;
            flows.extend(of_pattern.iter().map(|flow| (flow.from, flow.to, grant.bits_per_second)));
        }
        let (mut amounts, mut sent) = (Vec::new(), 0);
        for (from, to, rate) in flows {
            let path = self.topology.path(nodes[from as usize], nodes[to as usize]);
            amounts.extend(path.into_iter().map(|way| (way.0 as usize, rate.get())));
            sent += rate.get();
        }
        for node in &nodes {
            let first = self.first_of(*node);
            amounts.push((first, cpu));
            amounts.push((first + 1, read.get()));
            amounts.push((first + 2, write.get()));
        }
        let user = NAMES.iter().position(|name| *name == owner.as_str()).ok_or("a stranger")?;
        let first = self.first_of(NodeIndex(self.topology.nodes().len() as u32)) + 2 * user;
        amounts.push((first, cpu * nodes.len() as u64));
        amounts.push((first + 1, sent));
        Ok(amounts)
    }

    /// The resources of a node follow those of all links.
    pub(super) fn first_of(&self, node: NodeIndex) -> usize {
        self.topology.direction_count() + RESOURCES_OF_A_NODE * node.0 as usize
    }

    /// What the engine calls a resource; nothing for users' shares.
    pub(super) fn resource(&self, number: usize) -> Option<Resource> {
        let Some(rest) = number.checked_sub(self.topology.direction_count()) else {
            return Some(Resource::Link(LinkDirection(number as u32)));
        };
        let node = NodeIndex((rest / RESOURCES_OF_A_NODE) as u32);
        let of = match rest % RESOURCES_OF_A_NODE {
            0 => Resource::Cpu(node),
            1 => Resource::DiskRead(node),
            _ => Resource::DiskWrite(node),
        };
        ((node.0 as usize) < self.topology.nodes().len()).then_some(of)
    }

    pub(super) fn name(&self, resource: usize) -> String {
        match self.resource(resource) {
            Some(Resource::Link(way)) => format!("link {}", self.topology.direction_name(way)),
            Some(other) => format!("{other:?}"),
            None => "a user's share".into(),
        }
    }

    pub(super) fn over(&self, over: Over) -> Violation {
        let Over { resource, second, used, capacity } = over;
        let name = self.name(resource);
        Violation(format!("{used} of {capacity} is promised of {name} at second {second}"))
    }
}

/// What there is of every resource: link directions, nodes, users' shares.
pub(super) fn capacities(topology: &Topology, policy: &Policy) -> Vec<u64> {
    let directions = (0..topology.direction_count() as u32).map(LinkDirection);
    let mut all: Vec<u64> = directions.map(|way| topology.rate(way).get()).collect();
    for node in topology.nodes() {
        all.push(u64::from(node.cpu.get()));
        all.push(node.disk.map_or(0, |disk| disk.read.get()));
        all.push(node.disk.map_or(0, |disk| disk.write.get()));
    }
    let is_node = |name: &Name| topology.nodes().iter().any(|node| node.name == *name);
    let ways_out = topology.links().iter().enumerate().flat_map(|(number, link)| {
        let there = LinkDirection(2 * number as u32);
        let ends = link.between.iter().zip([there, there.reversed()]);
        ends.filter(|(end, _)| is_node(end)).map(|(_, way)| topology.rate(way).get())
    });
    let sent = ways_out.sum::<u64>();
    let cpu = topology.nodes().iter().map(|node| u64::from(node.cpu.get())).sum::<u64>();
    for _ in NAMES {
        all.push(cpu * u64::from(policy.user_cpu.ppm()) / 1_000_000);
        all.push(sent * u64::from(policy.user_bandwidth.ppm()) / 1_000_000);
    }
    all
}
