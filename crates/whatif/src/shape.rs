//! Clusters in a word: how many nodes, and how they are wired. What the network model and the policies take from a
//! cluster, whether it has a shape or a file tells it.

use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::{Link, Node, Switch, Topology, TopologyFile};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// `star:N` or `fat-tree:N`, with `:K` behind it where the uplinks of racks have only a K-th of
/// what their nodes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many nodes.
    pub nodes: u32,
    wiring: Wiring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wiring {
    /// All behind one switch.
    Star,
    /// Racks, rows of racks, and one switch above: links get fatter towards it.
    FatTree { oversubscription: u32 },
}

/// The part of a link that jobs may have reserved, in per cent: the rest is for control and
/// best-effort.
const RESERVABLE_PERCENT: u64 = 90;
const NODE_RATE: BitsPerSecond = BitsPerSecond::from_mbit(10_000);
/// Children of a switch that is not the uppermost.
const RADIX: u32 = 40;
/// Far above the largest cluster meant; names and addresses last for more.
const NODES_MAX: u32 = 50_000;
const FORMS: &str =
    "star:NODES, fat-tree:NODES or fat-tree:NODES:OVERSUBSCRIPTION, as in fat-tree:10000:4";

/// What of a link may be reserved, rounded down.
pub fn reservable(rate: BitsPerSecond) -> BitsPerSecond {
    BitsPerSecond::new((u128::from(rate.get()) * u128::from(RESERVABLE_PERCENT) / 100) as u64)
}

/// What a job has of each of its nodes, which it has to itself.
///
/// # Errors
/// If nodes differ: a job of so many nodes would be another one on others.
pub fn cpu_of_each(topology: &Topology) -> Result<CpuPpm, Invalid> {
    let first = topology.nodes().first().map_or(CpuPpm::default(), |node| node.cpu);
    match topology.nodes().iter().position(|node| node.cpu != first) {
        None => Ok(first),
        Some(at) => {
            let expected = format!("{first}, as nodes[0] has: jobs have whole nodes, all alike");
            Err(Invalid::new(format!("nodes[{at}].cpu"), topology.nodes()[at].cpu, expected))
        }
    }
}

/// The rate at which a job's flows make it no faster any more: two leave each node, and together they have
/// what of a node's link may be reserved, in its slower direction. Nothing where no node has a link.
///
/// # Errors
/// If these links differ, since a job of so many nodes would be another one on others: its log tells how long it took, and
/// not on which of them. If they are too slow for two flows.
pub fn flow_of_each(topology: &Topology) -> Result<BitsPerSecond, Invalid> {
    let nodes: BTreeSet<&Name> = topology.nodes().iter().map(|node| &node.name).collect();
    let links = topology.links().iter().enumerate();
    let mut of_nodes = links.filter(|(_, link)| link.between.iter().any(|end| nodes.contains(end)));
    let Some((at, first)) = of_nodes.next() else { return Ok(BitsPerSecond::ZERO) };
    let expected = slower(first);
    if let Some((odd, link)) = of_nodes.find(|(_, link)| slower(link) != expected) {
        let expected = format!(
            "{expected}, as links[{at}] has: jobs that communicate have links of nodes all alike"
        );
        return Err(Invalid::new(format!("links[{odd}].rate"), slower(link), expected));
    }
    match reservable(expected).divided_floor(2) {
        BitsPerSecond::ZERO => {
            let field = format!("links[{at}].rate");
            Err(Invalid::new(field, expected, "enough for two flows of a job that communicates"))
        }
        flow => Ok(flow),
    }
}

/// Of the two directions of a link.
fn slower(link: &Link) -> BitsPerSecond {
    link.rate_back.map_or(link.rate, |back| back.min(link.rate))
}

/// The same cluster where each node has an address, as the engine demands. In a simulation no packet goes anywhere, so that
/// those that are missing are made up, and with them all others: none is there twice.
pub fn addressed(topology: Topology) -> Topology {
    if topology.nodes().iter().all(|node| node.address.is_some()) {
        return topology;
    }
    let mut file = TopologyFile::from(topology);
    for (number, node) in (0..).zip(&mut file.nodes) {
        node.address = Some(address(number));
    }
    Topology::try_from(file).expect("it is one, and no address is there twice")
}

impl Shape {
    /// The same wiring with so many nodes.
    ///
    /// # Errors
    /// If there can be no such number.
    pub fn of(self, nodes: u32) -> Result<Self, Invalid> {
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(Invalid::new("topology", nodes, format!("1 to {NODES_MAX} nodes")));
        }
        Ok(Self { nodes, ..self })
    }

    /// A star of so many nodes.
    ///
    /// # Errors
    /// If there can be no such number.
    pub fn star(nodes: u32) -> Result<Self, Invalid> {
        Self { nodes, wiring: Wiring::Star }.of(nodes)
    }

    /// Its nodes, switches and links. Each node has one processor for jobs and a link of 10 Gbit/s.
    pub fn topology(self) -> Topology {
        let nodes = (0..self.nodes).map(node).collect();
        let mut wires = Wires { switches: vec![], links: vec![] };
        match self.wiring {
            Wiring::Star => wires.connect('s', &Level::of_nodes(self.nodes), self.nodes, 1),
            Wiring::FatTree { oversubscription } => {
                let racks =
                    wires.connect('r', &Level::of_nodes(self.nodes), RADIX, oversubscription);
                let rows = wires.connect('a', &racks, RADIX, 1);
                let count = rows.rates.len() as u32;
                wires.connect('s', &rows, count, 1)
            }
        };
        let Wires { switches, links } = wires;
        let name = name("simulated".into());
        let topology = Topology::try_from(TopologyFile { name, nodes, switches, links });
        topology.expect("a shape is a tree of no more than a topology may have")
    }
}

/// What stands side by side, and how much goes up from each.
struct Level {
    letter: char,
    rates: Vec<u64>,
}

impl Level {
    fn of_nodes(count: u32) -> Self {
        Self { letter: 'n', rates: vec![NODE_RATE.get(); count as usize] }
    }
}

struct Wires {
    switches: Vec<Switch>,
    links: Vec<Link>,
}

impl Wires {
    /// Puts a switch above every `radix` of what is below; from each goes up what comes from below,
    /// divided by `oversubscription`.
    fn connect(&mut self, letter: char, below: &Level, radix: u32, oversubscription: u32) -> Level {
        let mut rates = Vec::new();
        let mut child = 0;
        for children in below.rates.chunks(radix.max(1) as usize) {
            let switch = name(format!("{letter}{}", rates.len()));
            for rate in children {
                let between = [name(format!("{}{child}", below.letter)), switch.clone()];
                let rate = BitsPerSecond::new(*rate);
                self.links.push(Link { between, rate, rate_back: None });
                child += 1;
            }
            self.switches.push(Switch { name: switch });
            rates.push(children.iter().sum::<u64>() / u64::from(oversubscription));
        }
        Level { letter, rates }
    }
}

fn node(number: u32) -> Node {
    let (name, cpu) = (name(format!("n{number}")), CpuPpm::from_percent(100));
    Node { name, cpu, address: Some(address(number)), disk: None }
}

/// Of a letter and a number.
fn name(text: String) -> Name {
    text.parse().expect("it is a name")
}

/// Of a node with this number: from 10.0.0.1 on.
fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0A00_0001 + number)
}

impl FromStr for Shape {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("topology", text, FORMS);
        let number = |text: &str| text.parse::<u32>().map_err(|_| invalid());
        let (nodes, wiring) = match text.split(':').collect::<Vec<_>>()[..] {
            ["star", nodes] => (number(nodes)?, Wiring::Star),
            ["fat-tree", nodes] => (number(nodes)?, Wiring::FatTree { oversubscription: 1 }),
            ["fat-tree", nodes, oversubscription] => {
                let oversubscription = number(oversubscription)?;
                if !(1..=OVERSUBSCRIPTION_MAX).contains(&oversubscription) {
                    let expected = format!("an oversubscription of 1 to {OVERSUBSCRIPTION_MAX}");
                    return Err(Invalid::new("topology", text, expected));
                }
                (number(nodes)?, Wiring::FatTree { oversubscription })
            }
            _ => return Err(invalid()),
        };
        Self { nodes, wiring }.of(nodes)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wiring {
            Wiring::Star => write!(f, "star:{}", self.nodes),
            Wiring::FatTree { oversubscription: 1 } => write!(f, "fat-tree:{}", self.nodes),
            Wiring::FatTree { oversubscription } => {
                write!(f, "fat-tree:{}:{oversubscription}", self.nodes)
            }
        }
    }
}

/// A rack's worth: less would leave the nodes of a rack no more than one link.
const OVERSUBSCRIPTION_MAX: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::topology::NodeIndex;

    #[test]
    fn links_get_fatter_towards_the_top_unless_they_are_oversubscribed() {
        let rates = |text: &str| {
            let topology = text.parse::<Shape>().unwrap().topology();
            let path = topology.path(NodeIndex(0), NodeIndex(1_600));
            path.iter().map(|link| topology.rate(*link).get() / 1_000_000_000).collect::<Vec<_>>()
        };
        assert_eq!(rates("fat-tree:3200"), [10, 400, 16_000, 16_000, 400, 10]);
        assert_eq!(rates("fat-tree:3200:4"), [10, 100, 4_000, 4_000, 100, 10]);
        assert_eq!(rates("star:2000"), [10, 10]);
    }

    #[test]
    fn the_largest_shapes_are_topologies() {
        for wiring in ["star", "fat-tree"] {
            for rest in [NODES_MAX.to_string(), format!("{NODES_MAX}:{OVERSUBSCRIPTION_MAX}")] {
                let Ok(shape) = format!("{wiring}:{rest}").parse::<Shape>() else { continue };
                assert_eq!(shape.topology().nodes().len(), NODES_MAX as usize, "{shape}");
            }
        }
    }

    fn topology(nodes: &str, links: &str) -> Topology {
        let switches = "switches = [{ name = \"s\" }, { name = \"t\" }]";
        let text = format!("name = \"c\"\n{switches}\nnodes = [{nodes}]\nlinks = [{links}]\n");
        Topology::from_toml(&text).unwrap()
    }

    /// Two nodes, each behind a switch of its own, with links that have these rates.
    fn two_apart(of_a: &str, of_b: &str) -> Topology {
        let nodes = r#"{ name = "a", cpu = "400 %" }, { name = "b", cpu = "400 %" }"#;
        let between = r#"{ between = ["s", "t"], rate = "10 Mbit/s" }"#;
        let of_nodes =
            format!(r#"{{ between = ["a", "s"], {of_a} }}, {{ between = ["t", "b"], {of_b} }}"#);
        topology(nodes, &format!("{between}, {of_nodes}"))
    }

    // Goal: flows go by the links of nodes, in their slower direction; links between switches do not count.
    #[test]
    fn flows_share_the_link_of_their_node() {
        let (fast, slow) =
            (r#"rate = "2 Gbit/s""#, r#"rate = "10 Gbit/s", rate_back = "2 Gbit/s""#);
        for (of_a, of_b) in [(fast, fast), (fast, slow), (slow, slow)] {
            let both = two_apart(of_a, of_b);
            assert_eq!(flow_of_each(&both), Ok(BitsPerSecond::from_mbit(900)));
            assert_eq!(cpu_of_each(&both), Ok(CpuPpm::from_percent(400)));
        }
        let shape: Shape = "fat-tree:100:4".parse().unwrap();
        let flow = flow_of_each(&shape.topology());
        assert_eq!(flow, Ok(BitsPerSecond::from_mbit(4_500)));
        let alone =
            Topology::from_toml("name = \"c\"\nnodes = [{ name = \"a\", cpu = \"1 %\" }]\n");
        assert_eq!(flow_of_each(&alone.unwrap()), Ok(BitsPerSecond::ZERO), "it talks to nobody");
    }

    // Goal: no link makes jobs faster that is slower: whoever has other links than the first is named, in whichever direction.
    #[test]
    fn links_that_differ_or_are_too_slow_are_named() {
        let rate = |rate: &str| format!("rate = \"{rate}\"");
        let refused = |of_a: &str, of_b: &str| {
            let error = flow_of_each(&two_apart(of_a, of_b)).unwrap_err();
            (error.field, error.value.unwrap_or_default(), error.expected)
        };
        let back = r#"rate = "1 Gbit/s", rate_back = "1 kbit/s""#;
        for of_b in [&rate("1 kbit/s"), back] {
            let (field, value, expected) = refused(&rate("1 Gbit/s"), of_b);
            assert_eq!((field.as_str(), value.as_str()), ("links[2].rate", "1 kbit/s"));
            assert!(expected.contains("1 Gbit/s, as links[1] has"), "{expected}");
        }
        for slow in ["1 bit/s", "2 bit/s"] {
            let (field, value, _) = refused(&rate(slow), &rate(slow));
            assert_eq!((field.as_str(), value.as_str()), ("links[1].rate", slow));
        }
        let least = two_apart(&rate("3 bit/s"), &rate("3 bit/s"));
        assert_eq!(flow_of_each(&least), Ok(BitsPerSecond::new(1)));
    }

    #[test]
    fn who_has_no_address_is_given_one_that_nobody_else_has() {
        let addresses = |nodes: &str| {
            let links = r#"{ between = ["a", "s"], rate = "1 Gbit/s" }, { between = ["b", "s"], rate = "1 Gbit/s" }, { between = ["s", "t"], rate = "1 Gbit/s" }"#;
            let addressed = addressed(topology(nodes, links));
            let addresses = addressed.nodes().iter().map(|node| node.address.unwrap().to_string());
            addresses.collect::<Vec<_>>()
        };
        let nodes = |of_b: &str| {
            format!(r#"{{ name = "a", cpu = "1 %" }}, {{ name = "b", cpu = "1 %"{of_b} }}"#)
        };
        assert_eq!(addresses(&nodes("")), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(addresses(&nodes(r#", address = "10.0.0.1""#)), ["10.0.0.1", "10.0.0.2"]);
        let both =
            nodes(r#", address = "192.0.2.2""#).replacen('}', r#", address = "192.0.2.1" }"#, 1);
        assert_eq!(addresses(&both), ["192.0.2.1", "192.0.2.2"]);
    }

    #[test]
    fn nodes_that_differ_are_named() {
        let nodes = r#"{ name = "a", cpu = "400 %" }, { name = "b", cpu = "800 %" }"#;
        let links = r#"{ between = ["a", "s"], rate = "1 Gbit/s" }, { between = ["s", "t"], rate = "1 Gbit/s" }, { between = ["b", "t"], rate = "1 Gbit/s" }"#;
        let error = cpu_of_each(&topology(nodes, links)).unwrap_err();
        assert_eq!((error.field.as_str(), error.value.as_deref()), ("nodes[1].cpu", Some("800 %")));
        assert!(error.expected.contains("400 %"), "{error}");
    }

    #[test]
    fn what_is_no_shape_is_told_with_what_would_be() {
        for text in ["ring:4", "star", "star:x", "star:0", "star:50001", "fat-tree:4:0", "star:4:2"]
        {
            let error = text.parse::<Shape>().unwrap_err();
            assert_eq!(error.field, "topology", "{text}");
        }
        let shape: Shape = "fat-tree:100:2".parse().unwrap();
        assert_eq!(shape.to_string(), "fat-tree:100:2");
    }
}
