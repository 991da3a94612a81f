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
/// what of a node's link may be reserved; of the slowest such link, where they differ.
pub fn flow(topology: &Topology) -> BitsPerSecond {
    let nodes: BTreeSet<&Name> = topology.nodes().iter().map(|node| &node.name).collect();
    let links = topology.links().iter();
    let of_nodes = links.filter(|link| link.between.iter().any(|end| nodes.contains(end)));
    let slower = |link: &Link| link.rate_back.map_or(link.rate, |back| back.min(link.rate));
    let slowest = of_nodes.map(slower).min().unwrap_or(BitsPerSecond::ZERO);
    reservable(slowest).divided_floor(2)
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
    ///
    /// # Errors
    /// None for what is a shape.
    pub fn topology(self) -> Result<Topology, Invalid> {
        let nodes = (0..self.nodes).map(node).collect::<Result<_, _>>()?;
        let mut wires = Wires { switches: vec![], links: vec![] };
        match self.wiring {
            Wiring::Star => wires.connect('s', &Level::of_nodes(self.nodes), self.nodes, 1)?,
            Wiring::FatTree { oversubscription } => {
                let racks =
                    wires.connect('r', &Level::of_nodes(self.nodes), RADIX, oversubscription)?;
                let rows = wires.connect('a', &racks, RADIX, 1)?;
                let count = rows.rates.len() as u32;
                wires.connect('s', &rows, count, 1)?
            }
        };
        let Wires { switches, links } = wires;
        let name = "simulated".parse()?;
        Topology::try_from(TopologyFile { name, nodes, switches, links })
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
    fn connect(
        &mut self,
        letter: char,
        below: &Level,
        radix: u32,
        oversubscription: u32,
    ) -> Result<Level, Invalid> {
        let mut rates = Vec::new();
        let mut child = 0;
        for children in below.rates.chunks(radix.max(1) as usize) {
            let name: Name = format!("{letter}{}", rates.len()).parse()?;
            for rate in children {
                let between = [format!("{}{child}", below.letter).parse()?, name.clone()];
                let rate = BitsPerSecond::new(*rate);
                self.links.push(Link { between, rate, rate_back: None });
                child += 1;
            }
            self.switches.push(Switch { name });
            rates.push(children.iter().sum::<u64>() / u64::from(oversubscription));
        }
        Ok(Level { letter, rates })
    }
}

fn node(number: u32) -> Result<Node, Invalid> {
    // From 10.0.0.1 on.
    let address = Some(Ipv4Addr::from(0x0A00_0001 + number));
    let name = format!("n{number}").parse()?;
    Ok(Node { name, cpu: CpuPpm::from_percent(100), address, disk: None })
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
            let topology = text.parse::<Shape>().unwrap().topology().unwrap();
            let path = topology.path(NodeIndex(0), NodeIndex(1_600));
            path.iter().map(|link| topology.rate(*link).get() / 1_000_000_000).collect::<Vec<_>>()
        };
        assert_eq!(rates("fat-tree:3200"), [10, 400, 16_000, 16_000, 400, 10]);
        assert_eq!(rates("fat-tree:3200:4"), [10, 100, 4_000, 4_000, 100, 10]);
        assert_eq!(rates("star:2000"), [10, 10]);
    }

    fn topology(nodes: &str, links: &str) -> Topology {
        let switches = "switches = [{ name = \"s\" }, { name = \"t\" }]";
        let text = format!("name = \"c\"\n{switches}\nnodes = [{nodes}]\nlinks = [{links}]\n");
        Topology::from_toml(&text).unwrap()
    }

    // Goal: flows go by the slowest link of a node, in its slower direction; links between switches do not count.
    #[test]
    fn flows_share_the_slowest_link_of_a_node() {
        let nodes = r#"{ name = "a", cpu = "400 %" }, { name = "b", cpu = "400 %" }"#;
        let links = |back: &str| {
            let of_nodes = r#"{ between = ["a", "s"], rate = "10 Gbit/s" }, { between = ["t", "b"], rate = "2 Gbit/s""#;
            format!(r#"{{ between = ["s", "t"], rate = "10 Mbit/s" }}, {of_nodes}{back} }}"#)
        };
        let both_ways = topology(nodes, &links(""));
        assert_eq!(flow(&both_ways), BitsPerSecond::from_mbit(900));
        assert_eq!(cpu_of_each(&both_ways), Ok(CpuPpm::from_percent(400)));
        let slow_back = topology(nodes, &links(r#", rate_back = "1 Gbit/s""#));
        assert_eq!(flow(&slow_back), BitsPerSecond::from_mbit(450));
        let shape: Shape = "fat-tree:100:4".parse().unwrap();
        assert_eq!(flow(&shape.topology().unwrap()), BitsPerSecond::from_mbit(4_500));
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
