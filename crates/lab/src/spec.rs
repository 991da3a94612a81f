//! What to build: checked topologies of at most [`NODES_MAX`] nodes (pure).

use keeptime_linux::link::Network;
use keeptime_model::Invalid;
use keeptime_model::disk::{Disk, DiskId};
use keeptime_model::name::Name;
use keeptime_model::topology::{Link, Node, Switch, Topology, TopologyFile};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use std::net::Ipv4Addr;

/// Most nodes of a lab: with more, one machine's CPU says little about a cluster.
pub const NODES_MAX: u32 = 16;
/// CPU that no lab gets: for the kernel's work on packets, and for whoever watches.
pub const CPU_RESERVE: CpuPpm = CpuPpm::from_percent(30);

/// What to build. Every node hangs from one switch and has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    name: Name,
    topology: Topology,
}

impl Spec {
    /// `nodes` nodes `n1`, `n2`, … on the switch `s1`.
    ///
    /// # Errors
    /// The value that is wrong and what would be accepted.
    pub fn star(name: Name, nodes: u32, rate: BitsPerSecond, cpu: CpuPpm) -> Result<Self, Invalid> {
        check_count("nodes", nodes)?;
        let links = (1..=nodes).map(|node| link(numbered('n', node), numbered('s', 1), rate));
        Self::of(name, nodes, vec![numbered('s', 1)], links.collect(), cpu)
    }

    /// `nodes` nodes evenly below `leaves` switches `s1`, `s2`, …, which hang from `core` by
    /// links of the rate `uplink`.
    ///
    /// # Errors
    /// The value that is wrong and what would be accepted.
    pub fn two_tier(
        name: Name,
        nodes: u32,
        leaves: u32,
        rate: BitsPerSecond,
        uplink: BitsPerSecond,
        cpu: CpuPpm,
    ) -> Result<Self, Invalid> {
        check_count("nodes", nodes)?;
        if !(1..=nodes).contains(&leaves) {
            let expected = format!("1 to {nodes} (every switch has a node)");
            return Err(Invalid::new("switches", leaves, expected));
        }
        let core = core_name()?;
        let leaf_of = |node: u32| numbered('s', (node - 1) * leaves / nodes + 1);
        let mut links: Vec<_> =
            (1..=nodes).map(|node| link(numbered('n', node), leaf_of(node), rate)).collect();
        links.extend((1..=leaves).map(|leaf| link(numbered('s', leaf), core.clone(), uplink)));
        let leaves = (1..=leaves).map(|leaf| numbered('s', leaf));
        Self::of(name, nodes, leaves.chain([core]).collect(), links, cpu)
    }

    /// The nodes, switches and links of a topology. Nodes without an address get one.
    ///
    /// # Errors
    /// More than [`NODES_MAX`] nodes, a node that does not hang from exactly one switch, or
    /// addresses that are not in one network.
    pub fn from_topology(name: Name, topology: Topology) -> Result<Self, Invalid> {
        check_count("nodes", topology.nodes().len() as u32)?;
        check_wiring(&topology)?;
        let network = network(&topology)?;
        let mut file = TopologyFile::from(topology);
        let taken: Vec<_> = file.nodes.iter().filter_map(|node| node.address).collect();
        let mut free = (1..).map(|host| Ipv4Addr::from(u32::from(network.address) + host));
        for node in &mut file.nodes {
            if node.address.is_none() {
                // A /16 has many more addresses than a lab has nodes.
                node.address = free.by_ref().find(|address| !taken.contains(address));
            }
        }
        Ok(Self { name, topology: Topology::try_from(file)? })
    }

    /// The same with a disk on every node. It is one of the machine's, and all nodes share it: `disk`
    /// says each node's part.
    ///
    /// # Errors
    /// Never for a spec that was made.
    pub fn with_disk(self, disk: Disk) -> Result<Self, Invalid> {
        let mut file = TopologyFile::from(self.topology);
        file.nodes.iter_mut().for_each(|node| node.disk = Some(disk));
        Ok(Self { topology: Topology::try_from(file)?, ..self })
    }

    /// The lab's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Nodes with addresses, switches, links.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The network of all addresses.
    pub fn network(&self) -> Network {
        // Checked when the spec was made.
        network(&self.topology).unwrap_or(DEFAULT_NETWORK)
    }

    /// The address of the front end, from which programs on the nodes are started: the last of the
    /// network that no node has.
    pub fn front_end(&self) -> Ipv4Addr {
        let network = self.network();
        let last = u32::from(network.address)
            | u32::MAX.checked_shr(u32::from(network.prefix)).unwrap_or(0);
        let taken = |a: &Ipv4Addr| self.topology.nodes().iter().any(|n| n.address == Some(*a));
        // A network that is full of nodes leaves nothing but its first address.
        let mut free = (1..=NODES_MAX + 1).map(|back| Ipv4Addr::from(last.saturating_sub(back)));
        free.find(|address| !taken(address)).unwrap_or(network.address)
    }

    /// CPU of all nodes together.
    pub fn cpu(&self) -> u64 {
        self.topology.nodes().iter().map(|node| u64::from(node.cpu.get())).sum()
    }

    /// Checks that a machine with `processors` can give every node its share, when other labs
    /// have `elsewhere` (parts per million of one CPU) already.
    ///
    /// # Errors
    /// What would be accepted.
    pub fn check_cpu(&self, processors: u32, elsewhere: u64) -> Result<(), Invalid> {
        let machine = u64::from(processors) * 1_000_000;
        let free = machine.saturating_sub(u64::from(CPU_RESERVE.get())).saturating_sub(elsewhere);
        if self.cpu() <= free {
            return Ok(());
        }
        let count = self.topology.nodes().len() as u64;
        let each = CpuPpm::new(u32::try_from(free / count / 1_000 * 1_000).unwrap_or(u32::MAX));
        let others = match elsewhere {
            0 => String::new(),
            ppm => format!(", {} for other labs", percent(ppm)),
        };
        let shares: Vec<_> =
            self.topology.nodes().iter().map(|node| node.cpu.to_string()).collect();
        let value = match shares.iter().all(|share| *share == shares[0]) {
            true => format!("{count} x {}", shares[0]),
            false => shares.join(" + "),
        };
        let expected = format!(
            "at most {} together, {each} for each of {count}: the machine has {processors} CPUs, \
             less {CPU_RESERVE} for the kernel's work{others}",
            percent(free)
        );
        Err(Invalid::new("cpu", value, expected))
    }

    /// Checks that the nodes' disks are among those of the machine: only these can be throttled.
    ///
    /// # Errors
    /// What would be accepted.
    pub fn check_disks(&self, machine: &[DiskId]) -> Result<(), Invalid> {
        let mut disks = self.topology.nodes().iter().filter_map(|node| Some((node, node.disk?)));
        let unknown = |(_, disk): &(&Node, Disk)| !machine.contains(&disk.device);
        let Some((node, disk)) = disks.find(unknown) else { return Ok(()) };
        let known: Vec<_> = machine.iter().map(DiskId::to_string).collect();
        let expected = match known.as_slice() {
            [] => "none: this machine has no disk".into(),
            known => format!("one of this machine's, as lsblk shows them: {}", known.join(", ")),
        };
        Err(Invalid::new("disk", format!("{} of {}", disk.device, node.name), expected))
    }

    fn of(
        name: Name,
        nodes: u32,
        switches: Vec<Name>,
        links: Vec<Link>,
        cpu: CpuPpm,
    ) -> Result<Self, Invalid> {
        let node = |number| Node { name: numbered('n', number), cpu, address: None, disk: None };
        let file = TopologyFile {
            name: name.clone(),
            nodes: (1..=nodes).map(node).collect(),
            switches: switches.into_iter().map(|name| Switch { name }).collect(),
            links,
        };
        Self::from_topology(name, Topology::try_from(file)?)
    }
}

fn check_count(field: &str, nodes: u32) -> Result<(), Invalid> {
    match nodes {
        1..=NODES_MAX => Ok(()),
        _ => Err(Invalid::new(field, nodes, format!("1 to {NODES_MAX}"))),
    }
}

/// Every node has one cable, and it leads to a switch.
fn check_wiring(topology: &Topology) -> Result<(), Invalid> {
    let is_node = |name: &Name| topology.find_node(name).is_some();
    for (index, link) in topology.links().iter().enumerate() {
        if link.between.iter().all(is_node) {
            let value = format!("{}, {}", link.between[0], link.between[1]);
            let field = format!("links[{index}].between");
            return Err(Invalid::new(field, value, "a switch at one end at least"));
        }
    }
    for node in topology.nodes() {
        let links = topology.links().iter().filter(|l| l.between.contains(&node.name)).count();
        if links != 1 {
            let value = format!("{links} links of {}", node.name);
            return Err(Invalid::new("links", value, "one link for each node, to a switch"));
        }
    }
    Ok(())
}

fn network(topology: &Topology) -> Result<Network, Invalid> {
    let given = || topology.nodes().iter().enumerate().filter_map(|(i, n)| Some((i, n.address?)));
    let network = given()
        .next()
        .map_or(DEFAULT_NETWORK, |(_, first)| Network::of(first, DEFAULT_NETWORK.prefix));
    match given().find(|(_, address)| !network.has_host(*address) || address.is_loopback()) {
        None => Ok(network),
        Some((index, address)) => {
            let expected = format!("a node's address in {}/{}", network.address, network.prefix);
            Err(Invalid::new(format!("nodes[{index}].address"), address, expected))
        }
    }
}

fn link(one: Name, other: Name, rate: BitsPerSecond) -> Link {
    Link { between: [one, other], rate, rate_back: None }
}

fn numbered(letter: char, number: u32) -> Name {
    let name = format!("{letter}{number}").parse();
    // A lower-case letter and digits.
    name.unwrap_or_else(|error| unreachable!("{error}"))
}

fn core_name() -> Result<Name, Invalid> {
    "core".parse()
}

fn percent(ppm: u64) -> String {
    format!("{} %", ppm as f64 / 10_000.0)
}

/// Private to each lab; 75 is "K". The same in all, since they cannot see each other.
const DEFAULT_NETWORK: Network = Network { address: Ipv4Addr::new(10, 75, 0, 0), prefix: 16 };

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::BytesPerSecond;
    use proptest::prelude::*;

    fn name() -> Name {
        "lab".parse().unwrap()
    }

    const RATE: BitsPerSecond = BitsPerSecond::from_mbit(200);
    const CPU: CpuPpm = CpuPpm::from_percent(40);

    #[test]
    fn every_node_has_an_address() {
        let spec = Spec::star(name(), 4, RATE, CPU).unwrap();
        let addresses: Vec<_> =
            spec.topology().nodes().iter().map(|n| n.address.unwrap().to_string()).collect();
        assert_eq!(addresses, ["10.75.0.1", "10.75.0.2", "10.75.0.3", "10.75.0.4"]);
        spec.check_cpu(2, 0).unwrap();
    }

    #[test]
    fn too_many_nodes_and_too_much_cpu_are_refused_with_what_is_accepted() {
        for nodes in [0, 17] {
            let error = Spec::star(name(), nodes, RATE, CPU).unwrap_err().to_string();
            assert!(error.contains("expected 1 to 16"), "{error}");
        }
        let spec = Spec::star(name(), 4, RATE, CpuPpm::from_percent(60)).unwrap();
        let error = spec.check_cpu(2, 0).unwrap_err().to_string();
        assert!(error.contains("\"4 x 60 %\"") && error.contains("42.5 % for each"), "{error}");
        let error = spec.check_cpu(4, 3_000_000).unwrap_err().to_string();
        assert!(error.contains("300 % for other labs"), "{error}");
        assert!(Spec::two_tier(name(), 4, 5, RATE, RATE, CPU).is_err());
        assert!(Spec::star(name(), 4, RATE, CpuPpm::new(0)).is_err());
    }

    #[test]
    fn every_node_has_the_disk_and_it_is_one_of_the_machine() {
        let device: DiskId = "254:0".parse().unwrap();
        let read = BytesPerSecond::from_mega_bytes(40);
        let disk = Disk { device, read, write: read };
        let spec = Spec::star(name(), 4, RATE, CPU).unwrap();
        assert_eq!(spec.check_disks(&[]), Ok(()), "no node has one");
        let spec = spec.with_disk(disk).unwrap();
        assert!(spec.topology().nodes().iter().all(|node| node.disk == Some(disk)));
        let loopback = "7:0".parse().unwrap();
        assert_eq!(spec.check_disks(&[loopback, device]), Ok(()));
        let error = spec.check_disks(&[loopback]).unwrap_err().to_string();
        assert!(error.contains("disk: \"254:0 of n1\"") && error.ends_with(": 7:0"), "{error}");
        let error = spec.check_disks(&[]).unwrap_err().to_string();
        assert!(error.contains("has no disk"), "{error}");
    }

    #[test]
    fn topologies_that_are_not_nodes_on_switches_are_refused() {
        let file = |links: &str| {
            let text = format!(
                "name = \"x\"\nswitches = [{{ name = \"s1\" }}]\n\
                 nodes = [{{ name = \"a\", cpu = \"10 %\" }}, \
                 {{ name = \"b\", cpu = \"10 %\", address = \"192.168.5.1\" }}]\nlinks = [{links}]"
            );
            Spec::from_topology(name(), Topology::from_toml(&text).unwrap())
        };
        let wire =
            |a: &str, b: &str| format!("{{ between = [\"{a}\", \"{b}\"], rate = \"1 Gbit/s\" }},");
        let error = file(&(wire("a", "b") + &wire("b", "s1"))).unwrap_err().to_string();
        assert!(error.contains("a switch at one end"), "{error}");
        let spec = file(&(wire("a", "s1") + &wire("b", "s1"))).unwrap();
        let first = &spec.topology().nodes()[0];
        assert_eq!(first.address, Some(Ipv4Addr::new(192, 168, 0, 1)));
    }

    proptest! {
        #[test]
        fn every_accepted_size_has_a_path_between_any_two(nodes in 1u32..=16, leaves in 1u32..=16) {
            let spec = Spec::two_tier(name(), nodes, leaves, RATE, RATE, CPU);
            prop_assert_eq!(spec.is_ok(), leaves <= nodes);
            if let Ok(spec) = spec {
                let topology = spec.topology();
                let below = |leaf: &Name| topology.links().iter()
                    .filter(|link| link.between[1] == *leaf).count();
                let leaves: Vec<_> = topology.switches().iter()
                    .filter(|switch| switch.name.as_str() != "core").map(|s| below(&s.name)).collect();
                let (least, most) = (leaves.iter().min(), leaves.iter().max());
                prop_assert!(most.unwrap() - least.unwrap() <= 1);
            }
        }

        #[test]
        fn what_is_accepted_leaves_the_reserve(nodes in 1u32..=16, cpu in 1u32..3_000_000,
                                               processors in 1u32..64, elsewhere in 0u64..9_000_000) {
            let spec = Spec::star(name(), nodes, RATE, CpuPpm::new(cpu)).unwrap();
            let sum = u64::from(nodes) * u64::from(cpu) + u64::from(CPU_RESERVE.get()) + elsewhere;
            let fits = sum <= u64::from(processors) * 1_000_000;
            prop_assert_eq!(spec.check_cpu(processors, elsewhere).is_ok(), fits);
        }
    }
}
