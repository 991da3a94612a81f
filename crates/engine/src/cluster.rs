//! The cluster as the engine reserves it: one slot table for each link direction, and for the CPU
//! and the disk of each node.

use crate::refusal::NAMED_MAX;
use keeptime_calendar::{BundleId, Calendar, Demand, ResourceId, Span};
use keeptime_model::Invalid;
use keeptime_model::assignment::{AssignedFlow, Assignment, TrafficClass};
use keeptime_model::disk::{DiskId, DiskRates};
use keeptime_model::extension::ExtensionFlow;
use keeptime_model::name::Name;
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::reservation::{Grant, Handle, UserName};
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, WallTime};
use keeptime_planner::availability::Availability;
use keeptime_planner::tree::PlacementIndex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;

/// Most flows of one reservation: all-to-all on 256 nodes. Each is walked over its path.
pub const FLOWS_MAX: usize = 65_536;
/// Named for what a job says beside its pattern (start-up, barriers): it shares the node's control
/// class, so the number only has to be positive.
const CONTROL_RATE: BitsPerSecond = BitsPerSecond::from_mbit(1);
/// CPU that tells a node that counts from one that does not, of which nothing is free.
pub(crate) const LITTLE: CpuPpm = CpuPpm::new(1);
/// CPU, read rate and write rate.
const TABLES_OF_A_NODE: u32 = 3;

/// A topology, and how much of its links may be reserved.
#[derive(Debug, Clone)]
pub struct Cluster {
    index: PlacementIndex,
    names: HashMap<Name, NodeIndex>,
    addresses: Vec<Ipv4Addr>,
    /// By node: out of it and into it, where it has one link only.
    access: Vec<Option<[LinkDirection; 2]>>,
    /// By link direction: the node whose only link it is.
    owners: Vec<Option<NodeIndex>>,
    /// Every link direction out of a node, in order.
    ways_out: Vec<LinkDirection>,
    /// By link direction.
    reservable: Vec<BitsPerSecond>,
}

/// What a slot table is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// A link direction, in bit/s.
    Link(LinkDirection),
    /// A node's CPU, in parts per million of one.
    Cpu(NodeIndex),
    /// What is read from a node's disk, in bytes per second.
    DiskRead(NodeIndex),
    /// What is written to a node's disk, in bytes per second.
    DiskWrite(NodeIndex),
}

/// Nodes on whose own CPU, disk and link the same is reserved at the same times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'a>(&'a BTreeSet<BundleId>);

impl Cluster {
    /// `reservable` tells how much of a link's rate may be reserved: all but what the agents keep for
    /// control and best-effort.
    ///
    /// # Errors
    /// If a node has no address: agents could not tell flows apart.
    pub fn new(
        topology: Topology,
        reservable: impl Fn(BitsPerSecond) -> BitsPerSecond,
    ) -> Result<Self, Invalid> {
        let nodes = || topology.node_indices().map(|at| (at, topology.node(at)));
        let address = |(at, node): (NodeIndex, &keeptime_model::topology::Node)| {
            let field = format!("nodes[{}].address", at.0);
            node.address.ok_or_else(|| Invalid::missing(field, "an IPv4 address"))
        };
        let addresses = nodes().map(address).collect::<Result<_, _>>()?;
        let names: HashMap<_, _> = nodes().map(|(at, node)| (node.name.clone(), at)).collect();
        let links = links_of_nodes(&topology, &names);
        let mut ways_out: Vec<_> = links.iter().flatten().map(|[out, _]| *out).collect();
        ways_out.sort_unstable();
        let only = |links: &Vec<_>| if let [link] = links[..] { Some(link) } else { None };
        let access: Vec<_> = links.iter().map(only).collect();
        let mut owners = vec![None; topology.direction_count()];
        for (node, [out, back]) in topology.node_indices().zip(&access).filter_map(has_one_link) {
            owners[out.0 as usize] = Some(node);
            owners[back.0 as usize] = Some(node);
        }
        let directions = (0..topology.direction_count() as u32).map(LinkDirection);
        let reservable = directions.map(|d| reservable(topology.rate(d))).collect();
        let index = PlacementIndex::new(topology);
        Ok(Self { index, names, addresses, access, owners, ways_out, reservable })
    }

    /// Nodes, switches and links.
    pub fn topology(&self) -> &Topology {
        self.index.topology()
    }

    /// The topology prepared for placement.
    pub fn index(&self) -> &PlacementIndex {
        &self.index
    }

    /// The node called `name`.
    ///
    /// # Errors
    /// If there is none.
    pub fn node(&self, name: &Name) -> Result<NodeIndex, Invalid> {
        let found = self.names.get(name).copied();
        found.ok_or_else(|| Invalid::new("nodes", name, format!("a node {}", self.of_it())))
    }

    /// What is expected of a name, with a few that will do.
    pub(crate) fn of_it(&self) -> String {
        let names = self.topology().nodes().iter().map(|node| node.name.as_str());
        format!("of the cluster, as {}", names.take(NAMED_MAX).collect::<Vec<_>>().join(", "))
    }

    /// The name of a node.
    pub fn name(&self, node: NodeIndex) -> &Name {
        &self.topology().node(node).name
    }

    /// The directions out of a node and into it; nothing if it has several links, or none.
    pub(crate) fn access(&self, node: NodeIndex) -> Option<[LinkDirection; 2]> {
        self.access[node.0 as usize]
    }

    /// All CPU, and all that the nodes can send together.
    pub(crate) fn totals(&self) -> [u64; 2] {
        let cpu = self.topology().nodes().iter().map(|node| u64::from(node.cpu.get())).sum();
        let reservable = |out: &LinkDirection| self.reservable[out.0 as usize].get();
        let sent = self.ways_out.iter().map(reservable).sum();
        [cpu, sent]
    }

    /// All slot tables, empty, in the order of their numbers. Each node's own are a bundle.
    pub(crate) fn empty_calendar(&self) -> Calendar {
        let mut calendar = Calendar::new();
        for rate in &self.reservable {
            calendar.add_resource(rate.get());
        }
        for node in self.topology().nodes() {
            calendar.add_resource(u64::from(node.cpu.get()));
            calendar.add_resource(node.disk.map_or(0, |disk| disk.read.get()));
            calendar.add_resource(node.disk.map_or(0, |disk| disk.write.get()));
        }
        for node in self.topology().node_indices() {
            let links = self.access(node).into_iter().flatten().map(Resource::Link);
            let own = [Resource::Cpu(node), Resource::DiskRead(node), Resource::DiskWrite(node)];
            let own: Vec<_> = own.into_iter().chain(links).map(|of| self.table(of)).collect();
            calendar.bundle(&own);
        }
        calendar
    }

    /// All nodes in groups, those with the fewest reservations first.
    pub(crate) fn groups<'a>(&self, calendar: &'a Calendar) -> impl Iterator<Item = Group<'a>> {
        calendar.alike().map(Group)
    }

    /// The number of a resource's slot table.
    pub fn table(&self, resource: Resource) -> ResourceId {
        let of = |node: NodeIndex, which: u32| {
            self.reservable.len() as u32 + TABLES_OF_A_NODE * node.0 + which
        };
        ResourceId(match resource {
            Resource::Link(direction) => direction.0,
            Resource::Cpu(node) => of(node, 0),
            Resource::DiskRead(node) => of(node, 1),
            Resource::DiskWrite(node) => of(node, 2),
        })
    }

    /// What a slot table is about; nothing if it is not one of the cluster's.
    pub fn resource(&self, table: ResourceId) -> Option<Resource> {
        let Some(rest) = table.0.checked_sub(self.reservable.len() as u32) else {
            return Some(Resource::Link(LinkDirection(table.0)));
        };
        let node = NodeIndex(rest / TABLES_OF_A_NODE);
        let of = match rest % TABLES_OF_A_NODE {
            0 => Resource::Cpu(node),
            1 => Resource::DiskRead(node),
            _ => Resource::DiskWrite(node),
        };
        ((node.0 as usize) < self.addresses.len()).then_some(of)
    }

    /// The node whose own a resource is; nothing for a link that is no node's only one.
    pub(crate) fn node_of(&self, resource: Resource) -> Option<NodeIndex> {
        match resource {
            Resource::Link(direction) => self.owners[direction.0 as usize],
            Resource::Cpu(node) | Resource::DiskRead(node) | Resource::DiskWrite(node) => {
                Some(node)
            }
        }
    }

    /// A resource in people's words, and an amount of it.
    pub(crate) fn words(&self, resource: Resource, amount: u64) -> (String, String) {
        let cpu = || CpuPpm::new(u32::try_from(amount).unwrap_or(u32::MAX)).to_string();
        let rate = || BytesPerSecond::new(amount).to_string();
        match resource {
            Resource::Link(direction) => (
                format!("link {}", self.topology().direction_name(direction)),
                BitsPerSecond::new(amount).to_string(),
            ),
            Resource::Cpu(node) => (format!("CPU of {}", self.name(node)), cpu()),
            Resource::DiskRead(node) => (format!("reading at {}", self.name(node)), rate()),
            Resource::DiskWrite(node) => (format!("writing at {}", self.name(node)), rate()),
        }
    }

    /// What `grant` takes of every slot table, and how much its flows send together.
    ///
    /// # Errors
    /// If a node does not exist, or there are too many flows.
    pub(crate) fn demands(&self, grant: &Grant) -> Result<(Vec<Demand>, BitsPerSecond), Invalid> {
        let nodes = self.nodes(grant)?;
        let flows = flows(grant)?;
        let mut demands = Vec::with_capacity(nodes.len() * 3 + flows.len() * 2);
        let mut sent = 0u64;
        let of_pattern = flows.iter().map(|flow| (flow.from, flow.to, grant.bits_per_second));
        let beside =
            grant.extension.premium().map(|flow| (flow.from, flow.to, flow.bits_per_second));
        for (from, to, rate) in of_pattern.chain(beside) {
            sent = sent.saturating_add(rate.get());
            self.index.for_each_direction(nodes[from as usize], nodes[to as usize], |direction| {
                demands.push(Demand::new(self.table(Resource::Link(direction)), rate.get()));
            });
        }
        for (node, cpu) in nodes.into_iter().zip(grant.cpu()) {
            let of_node = [
                (Resource::Cpu(node), u64::from(cpu.get())),
                (Resource::DiskRead(node), grant.disk_read().get()),
                (Resource::DiskWrite(node), grant.disk_write().get()),
            ];
            let taken = of_node.into_iter().filter(|(_, amount)| *amount > 0);
            demands.extend(taken.map(|(of, amount)| Demand::new(self.table(of), amount)));
        }
        Ok((demands, BitsPerSecond::new(sent)))
    }

    /// How often the flows of a grant's pattern pass each link direction behind the first of their way, where the
    /// sender's own card does not part them; and the least that may be reserved of the links that they pass.
    ///
    /// # Errors
    /// As [`Self::demands`].
    pub(crate) fn shared_links(
        &self,
        grant: &Grant,
    ) -> Result<(BTreeMap<LinkDirection, u64>, BitsPerSecond), Invalid> {
        let nodes = self.nodes(grant)?;
        let (mut passed, mut least) = (BTreeMap::new(), u64::MAX);
        for flow in flows(grant)? {
            let (from, to) = (nodes[flow.from as usize], nodes[flow.to as usize]);
            self.index.for_each_direction(from, to, |direction| {
                least = least.min(self.reservable(direction).get());
                if self.ways_out.binary_search(&direction).is_err() {
                    *passed.entry(direction).or_default() += 1;
                }
            });
        }
        Ok((passed, BitsPerSecond::new(least)))
    }

    /// What of a link direction may be reserved.
    pub(crate) fn reservable(&self, direction: LinkDirection) -> BitsPerSecond {
        self.reservable[direction.0 as usize]
    }

    /// What is free during all of `span`: on `nodes`, their links, and all links between switches.
    /// Nothing is free of the other nodes. Looks at no more slot tables than that; nor at those of CPU where nobody `needs`
    /// any: then each of `nodes` has [`LITTLE`], whatever others have.
    pub(crate) fn free(
        &self,
        calendar: &Calendar,
        span: Span,
        nodes: &[NodeIndex],
        needs: CpuPpm,
    ) -> Availability {
        let mut usable = vec![false; self.addresses.len()];
        nodes.iter().for_each(|node| usable[node.0 as usize] = true);
        let is_usable = |node: NodeIndex| usable[node.0 as usize];
        let free = |resource| self.least_free(calendar, span, resource);
        let link = |direction: LinkDirection| {
            let counts = self.owners[direction.0 as usize].is_none_or(is_usable);
            BitsPerSecond::new(if counts { free(Resource::Link(direction)) } else { 0 })
        };
        let cpu = |node| {
            if !is_usable(node) {
                return CpuPpm::default();
            }
            if needs == CpuPpm::default() {
                return LITTLE;
            }
            CpuPpm::new(u32::try_from(free(Resource::Cpu(node))).unwrap_or(u32::MAX))
        };
        let reservable = |direction: LinkDirection| self.reservable[direction.0 as usize];
        Availability::with_free(self.topology(), reservable, link, cpu)
    }

    /// The least amount of `resource` that is free during all of `span`.
    pub(crate) fn least_free(&self, calendar: &Calendar, span: Span, resource: Resource) -> u64 {
        calendar.table(self.table(resource)).map_or(0, |table| table.least_free(span))
    }

    /// The positions of a grant's nodes.
    ///
    /// # Errors
    /// If one does not exist.
    pub(crate) fn nodes(&self, grant: &Grant) -> Result<Vec<NodeIndex>, Invalid> {
        self.all_of(&grant.nodes)
    }

    /// The nodes of these names, in their order.
    ///
    /// # Errors
    /// If one does not exist.
    pub(crate) fn all_of(&self, names: &[Name]) -> Result<Vec<NodeIndex>, Invalid> {
        // Most follow one another as they do in the topology: a name is compared sooner than found.
        let mut next = 0;
        let node = |name: &Name| {
            let expected = self.topology().nodes().get(next);
            let is_next = expected.is_some_and(|node| node.name == *name);
            let node = if is_next { NodeIndex(next as u32) } else { self.node(name)? };
            next = node.0 as usize + 1;
            Ok(node)
        };
        names.iter().map(node).collect()
    }

    /// What every node of `grant` is told to enforce. Each flow of its pattern may use `spare` beside what is
    /// reserved for it.
    ///
    /// # Errors
    /// As [`Self::demands`].
    pub(crate) fn assignments(
        &self,
        handle: Handle,
        owner: &UserName,
        grant: &Grant,
        from: WallTime,
        until: Option<WallTime>,
        spare: BitsPerSecond,
    ) -> Result<BTreeMap<NodeIndex, Assignment>, Invalid> {
        let nodes = self.nodes(grant)?;
        let flow = |destination, bits_per_second, class| AssignedFlow {
            destination,
            bits_per_second,
            up_to_bits_per_second: None,
            burst_bytes: None,
            class,
        };
        let until = until.unwrap_or(WallTime::from_unix_nanos(u64::MAX));
        let assignment = |node, cpu| Assignment {
            later: grant.later_beside(cpu),
            cpu_period_nanos: grant.cpu_period_nanos,
            cpu_mechanism: grant.cpu_mechanism,
            disks: self.disk_rates(node, grant),
            services: grant.services.clone(),
            owner: Some(owner.clone()),
            from_unix_nanos: from,
            ..Assignment::new(handle.job(), cpu, until)
        };
        let each = nodes.iter().zip(grant.cpu());
        let mut all: BTreeMap<_, _> =
            each.map(|(node, cpu)| (*node, assignment(*node, cpu))).collect();
        let up_to =
            grant.bits_per_second.checked_add(spare).filter(|_| spare > BitsPerSecond::ZERO);
        for rank_flow in flows(grant)? {
            let to = self.addresses[nodes[rank_flow.to as usize].0 as usize];
            if let Some(assignment) = all.get_mut(&nodes[rank_flow.from as usize]) {
                let flow = flow(to, grant.bits_per_second, TrafficClass::Premium);
                assignment.flows.push(AssignedFlow { up_to_bits_per_second: up_to, ..flow });
            }
        }
        for beside in &grant.extension.flows {
            let ExtensionFlow { from, to, bits_per_second, burst_bytes, class } = *beside;
            let to = self.addresses[nodes[to as usize].0 as usize];
            if let Some(assignment) = all.get_mut(&nodes[from as usize]) {
                let flow = flow(to, bits_per_second, class);
                assignment.flows.push(AssignedFlow { burst_bytes, ..flow });
            }
        }
        if grant.pattern.is_some() {
            for assignment in all.values_mut() {
                let any = Ipv4Addr::UNSPECIFIED;
                assignment.flows.push(flow(any, CONTROL_RATE, TrafficClass::LowLatency));
            }
        }
        Ok(all)
    }

    /// What `grant` has of a node's disk.
    fn disk_rates(&self, node: NodeIndex, grant: &Grant) -> BTreeMap<DiskId, DiskRates> {
        let some = |rate: BytesPerSecond| Some(rate).filter(|rate| rate.get() > 0);
        let rates = DiskRates {
            read_bytes_per_second: some(grant.disk_read()),
            write_bytes_per_second: some(grant.disk_write()),
        };
        let disk = self.topology().node(node).disk.filter(|_| rates != DiskRates::default());
        disk.map(|disk| (disk.device, rates)).into_iter().collect()
    }
}

impl<'a> Group<'a> {
    /// One that stands for all.
    pub fn any(self) -> Option<NodeIndex> {
        self.nodes().next()
    }

    /// All of them.
    pub fn nodes(self) -> impl Iterator<Item = NodeIndex> + use<'a> {
        // Bundles are made in the order of the nodes.
        self.0.iter().map(|bundle| NodeIndex(bundle.0))
    }
}

fn has_one_link(
    (node, access): (NodeIndex, &Option<[LinkDirection; 2]>),
) -> Option<(NodeIndex, [LinkDirection; 2])> {
    access.map(|access| (node, access))
}

/// By node: its links, out of it and into it.
fn links_of_nodes(
    topology: &Topology,
    names: &HashMap<Name, NodeIndex>,
) -> Vec<Vec<[LinkDirection; 2]>> {
    let mut links = vec![Vec::new(); names.len()];
    for (number, link) in topology.links().iter().enumerate() {
        let there = LinkDirection(2 * number as u32);
        for (end, out) in link.between.iter().zip([there, there.reversed()]) {
            if let Some(node) = names.get(end) {
                links[node.0 as usize].push([out, out.reversed()]);
            }
        }
    }
    links
}

/// The flows of a grant, within [`FLOWS_MAX`].
fn flows(grant: &Grant) -> Result<Vec<RankFlow>, Invalid> {
    let beside = grant.extension.flows.len();
    if beside > FLOWS_MAX {
        return Err(Invalid::new("extension.flows", beside, format!("at most {FLOWS_MAX} flows")));
    }
    let Some(pattern) = &grant.pattern else { return Ok(Vec::new()) };
    let ranks = grant.nodes.len();
    let too_many = |flows: usize| {
        let expected = format!("a pattern with at most {FLOWS_MAX} flows");
        Invalid::new("pattern", format!("{pattern} with {flows} flows"), expected)
    };
    // Only this one grows so fast that it should not be listed to be counted.
    let all = ranks * ranks.saturating_sub(1);
    if *pattern == Pattern::AllToAll && all > FLOWS_MAX {
        return Err(too_many(all));
    }
    let flows = pattern.flows(u32::try_from(ranks).unwrap_or(u32::MAX))?;
    if flows.len() > FLOWS_MAX { Err(too_many(flows.len())) } else { Ok(flows) }
}
