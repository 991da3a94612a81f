//! What reservations take of every resource, counted without the engine: link directions first, then
//! what each node has, then users' shares.

use super::History;
use crate::Violation;
use crate::clock::{SECOND, second};
use crate::slots::{Entry, Over};
use crate::users::NAMES;
use keeptime_engine::book::{Book, Reservation};
use keeptime_engine::cluster::Resource;
use keeptime_engine::{Engine, Policy};
use keeptime_model::assignment::LaterCpu;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Grant, Handle, State, UserName};
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, CpuPpm, WallTime};
use std::collections::BTreeMap;

/// CPU of a rank, by what the grant says itself.
pub(super) fn cpu_of_rank(grant: &Grant, rank: usize) -> CpuPpm {
    match grant.rank_cpu_ppm.is_empty() {
        true => grant.cpu_ppm,
        false => grant.rank_cpu_ppm[rank],
    }
}

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
        let until = found.until_unix_nanos.map_or(u64::MAX, second);
        let entry = |from, until, grant: &Grant| {
            let amounts = self.amounts(&found.owner, grant)?;
            Ok::<_, String>(Entry { from, until, amounts })
        };
        let turn = grant.later.map_or(until, |later| second(later.from_unix_nanos));
        let mut entries = vec![entry(second(found.from_unix_nanos), turn, grant)?];
        if let Some(LaterCpu { cpu_ppm, .. }) = grant.later {
            entries.push(entry(turn, until, &Grant { cpu_ppm, ..grant.clone() })?);
        }
        self.slots.put(handle, entries).map_err(|over| self.over(over).0)
    }

    /// What a grant takes of every resource.
    pub(super) fn amounts(
        &self,
        owner: &UserName,
        grant: &Grant,
    ) -> Result<Vec<(usize, u64)>, String> {
        let nodes = self.nodes_of(grant)?;
        let more = &grant.extension;
        let cpu = |rank| u64::from(cpu_of_rank(grant, rank).max(more.cpu_ppm).get());
        let read = grant.disk_read_bytes_per_second.max(more.disk_read_bytes_per_second);
        let write = grant.disk_write_bytes_per_second.max(more.disk_write_bytes_per_second);
        let (mut amounts, mut sent) = (Vec::new(), 0);
        for (path, rate) in self.ways(&nodes, grant)? {
            amounts.extend(path.into_iter().map(|way| (way.0 as usize, rate.get())));
            sent += rate.get();
        }
        let mut of_user = 0;
        for (rank, node) in nodes.iter().enumerate() {
            let first = self.first_of(*node);
            amounts.push((first, cpu(rank)));
            of_user += cpu(rank);
            amounts.push((first + 1, read.get()));
            amounts.push((first + 2, write.get()));
        }
        let user = NAMES.iter().position(|name| *name == owner.as_str()).ok_or("a stranger")?;
        let first = self.first_of(NodeIndex(self.topology.nodes().len() as u32)) + 2 * user;
        amounts.push((first, of_user));
        amounts.push((first + 1, sent));
        Ok(amounts)
    }

    /// The links that the flows of a grant pass, and their rates.
    fn ways(
        &self,
        nodes: &[NodeIndex],
        grant: &Grant,
    ) -> Result<Vec<(Vec<LinkDirection>, BitsPerSecond)>, String> {
        let beside = grant.extension.premium();
        let mut flows: Vec<_> =
            beside.map(|flow| (flow.from, flow.to, flow.bits_per_second)).collect();
        if let Some(pattern) = &grant.pattern {
            let of_pattern = pattern.flows(nodes.len() as u32).map_err(|e| e.to_string())?;
            flows.extend(of_pattern.iter().map(|flow| (flow.from, flow.to, grant.bits_per_second)));
        }
        let path =
            |from: u32, to: u32| self.topology.path(nodes[from as usize], nodes[to as usize]);
        Ok(flows.into_iter().map(|(from, to, rate)| (path(from, to), rate)).collect())
    }

    /// Nobody uses more than is left of the links of what begins now, `handle` in `book`: `used` is what
    /// the jobs on a node may use of links beside what is reserved for them, by what it really enforces. A node
    /// that a job has left may not know it yet, as with what is reserved.
    ///
    /// # Errors
    /// The first link of which more is promised and used than there is.
    pub fn check_room(
        &self,
        book: &Book,
        handle: Handle,
        now: WallTime,
        used: &[(NodeIndex, Handle, LinkDirection, u64)],
    ) -> Result<(), String> {
        let lasts = |found: &Reservation| {
            let is_over = found.until_unix_nanos.is_some_and(|until| until <= now);
            found.state == State::Active && !is_over
        };
        let Some(granted) = book.reservations().get(&handle).filter(|found| lasts(found)) else {
            return Ok(());
        };
        let mut taken: BTreeMap<LinkDirection, u64> = BTreeMap::new();
        for found in book.reservations().values().filter(|found| lasts(found)) {
            let Some(grant) = &found.grant else { continue };
            for (path, rate) in self.ways(&self.nodes_of(grant)?, grant)? {
                path.into_iter().for_each(|link| *taken.entry(link).or_default() += rate.get());
            }
        }
        let is_used = |node: NodeIndex, job: Handle| {
            let running = book.reservations().get(&job).filter(|found| lasts(found));
            let grant = running.and_then(|found| found.grant.as_ref());
            let name = &self.topology.node(node).name;
            job != handle && grant.is_some_and(|grant| grant.nodes.contains(name))
        };
        let used: Vec<_> = used.iter().filter(|(node, job, ..)| is_used(*node, *job)).collect();
        for (.., link, rate) in &used {
            *taken.entry(*link).or_default() += rate;
        }
        let Some(grant) = &granted.grant else { return Ok(()) };
        let own = self.ways(&self.nodes_of(grant)?, grant)?;
        for link in own.into_iter().flat_map(|(path, _)| path) {
            let there_is = self.topology.rate(link).get();
            if used.iter().any(|(.., on, _)| *on == link) && taken[&link] > there_is {
                let name = self.topology.direction_name(link);
                let taken = taken[&link];
                let more: Vec<_> = used.iter().filter(|(.., on, _)| *on == link).collect();
                let what = format!("{taken} bit/s of {name} are promised or may still be used");
                return Err(format!("{what}, beside what is reserved: {more:?}"));
            }
        }
        Ok(())
    }

    fn nodes_of(&self, grant: &Grant) -> Result<Vec<NodeIndex>, String> {
        let nodes = grant.nodes.iter().map(|name| self.names.get(name).copied());
        Ok(nodes.collect::<Option<_>>().ok_or("an unknown node")?)
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
