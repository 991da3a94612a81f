//! A topology from what Slurm tells of its nodes and switches (`scontrol show`), as a file to start from (pure). Slurm knows no
//! rates, so they are said.

use keeptime_launch::hostlist::expanded;
use keeptime_model::Invalid;
use keeptime_model::name::{NAME_LENGTH_MAX, Name};
use keeptime_model::topology::{Link, Node, Switch, Topology, TopologyFile};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// What Slurm does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// What the cluster is to be called.
    pub name: Name,
    /// Of the link of each node.
    pub rate: BitsPerSecond,
    /// Of the links between switches; only of use where there are some.
    pub uplink: Option<BitsPerSecond>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Nodes, switches and links.
    pub topology: Topology,
    /// What Slurm calls nodes that are called otherwise here.
    pub hosts: BTreeMap<Name, String>,
    /// Nodes without an address: nobody knows one.
    pub unknown: Vec<Name>,
}

/// The topology of what `scontrol --oneliner show nodes` and `scontrol show topology` have printed. Without switches all nodes
/// hang from one. `resolve` has the address of a host.
///
/// # Errors
/// If something makes no sense, or the switches are no tree.
pub fn imported(
    nodes: &str,
    switches: &str,
    unknown: Unknown,
    resolve: &dyn Fn(&str) -> Option<Ipv4Addr>,
) -> Result<Imported, Invalid> {
    let mut names = Names::default();
    let mut file =
        TopologyFile { name: unknown.name, nodes: vec![], switches: vec![], links: vec![] };
    let mut without_address = Vec::new();
    for record in nodes.lines().filter(|line| line.starts_with(NODE)) {
        let host = needed(record, NODE)?;
        let processors = needed(record, "CPUTot=")?;
        let count: u32 =
            processors.parse().map_err(|_| Invalid::new("CPUTot", processors, "a number"))?;
        let cpu = u32::try_from(u64::from(count) * 1_000_000);
        let cpu = cpu.map_err(|_| Invalid::new("CPUTot", count, "4,294 processors at most"))?;
        let name = names.of(host)?;
        let address = value(record, "NodeAddr=").unwrap_or(host);
        let address = address.parse().ok().or_else(|| resolve(address));
        if address.is_none() {
            without_address.push(name.clone());
        }
        file.nodes.push(Node { name, cpu: CpuPpm::new(cpu), address, disk: None });
    }
    let records: Vec<_> = switches.lines().filter(|line| line.starts_with(SWITCH)).collect();
    let link = |below: &Name, above: &Name, rate| {
        let between = [below.clone(), above.clone()];
        Link { between, rate, rate_back: None }
    };
    if records.is_empty() {
        let only = names.of(ONLY_SWITCH)?;
        file.links.extend(file.nodes.iter().map(|node| link(&node.name, &only, unknown.rate)));
        file.switches.push(Switch { name: only });
    }
    for record in records {
        let switch = names.of(needed(record, SWITCH)?)?;
        let (field, below, rate) = match value(record, "Switches=") {
            Some(below) => {
                let expected = "the rate of links between switches";
                let rate = unknown.uplink;
                let rate = rate.ok_or_else(|| Invalid::missing("uplink", expected))?;
                ("Switches", below, rate)
            }
            // Slurm tells of every switch all nodes below: of those with switches they hang from these.
            None => ("Nodes", needed(record, "Nodes=")?, unknown.rate),
        };
        for host in expanded(field, below)? {
            file.links.push(link(&names.of(&host)?, &switch, rate));
        }
        file.switches.push(Switch { name: switch });
    }
    let topology = Topology::try_from(file)?;
    let nodes: BTreeSet<_> = topology.nodes().iter().map(|node| &node.name).collect();
    let is_other = |(host, name): &(String, Name)| *host != name.as_str() && nodes.contains(name);
    let hosts = names.0.into_iter().filter(is_other).map(|(host, name)| (name, host)).collect();
    Ok(Imported { topology, hosts, unknown: without_address })
}

/// What everything of Slurm's is called here.
#[derive(Debug, Default)]
struct Names(BTreeMap<String, Name>);

impl Names {
    /// What is called `host` there: the same name where it is one, and else the one that is nearest and nobody's.
    fn of(&mut self, host: &str) -> Result<Name, Invalid> {
        if let Some(known) = self.0.get(host) {
            return Ok(known.clone());
        }
        let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let letters: String = host.chars().map(legal).collect();
        let letters = match letters.starts_with(|c: char| c.is_ascii_lowercase()) {
            true => letters,
            false => format!("n{letters}"),
        };
        let name: Name = letters.chars().take(NAME_LENGTH_MAX).collect::<String>().parse()?;
        if let Some((other, _)) = self.0.iter().find(|(_, taken)| **taken == name) {
            let expected =
                format!("another name than that of {other}, as which it would be {name}");
            return Err(Invalid::new("NodeName", host, expected));
        }
        self.0.insert(host.to_owned(), name.clone());
        Ok(name)
    }
}

/// The value behind `key` in a record of `scontrol`; nothing if there is none, or it is empty.
fn value<'a>(record: &'a str, key: &str) -> Option<&'a str> {
    let mut words = record.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix(key))?;
    (!value.is_empty() && value != "(null)").then_some(value)
}

fn needed<'a>(record: &'a str, key: &str) -> Result<&'a str, Invalid> {
    let expected = || format!("a record of scontrol with {key}…");
    value(record, key).ok_or_else(|| Invalid::new(key.trim_end_matches('='), record, expected()))
}

const NODE: &str = "NodeName=";
const SWITCH: &str = "SwitchName=";
/// Where Slurm knows none.
const ONLY_SWITCH: &str = "switch";

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
        NodeName=n1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.00 NodeAddr=10.1.0.1 State=IDLE\n\
        NodeName=n2 CPUTot=16 NodeAddr=n2.example NodeHostName=n2 State=IDLE\n\
        NodeName=GPU_1 CPUTot=64 NodeAddr=GPU_1 State=DOWN\n";
    const SWITCHES: &str = "\
        SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n\
        SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=GPU_1\n\
        SwitchName=core Level=1 LinkSpeed=1 Nodes=n[1-2],GPU_1 Switches=leaf[0-1]\n";

    fn import(switches: &str, uplink: Option<u64>) -> Result<Imported, Invalid> {
        let unknown = Unknown {
            name: "cluster".parse().unwrap(),
            rate: BitsPerSecond::from_mbit(10_000),
            uplink: uplink.map(BitsPerSecond::from_mbit),
        };
        let resolve = |host: &str| (host == "n2.example").then_some(Ipv4Addr::new(10, 1, 0, 2));
        imported(NODES, switches, unknown, &resolve)
    }

    // Goal: what Slurm knows is not typed again. Method: two racks, one node whose address has to be looked up, one whose name
    // is no name here and whose address nobody knows.
    #[test]
    fn nodes_and_switches_are_those_of_slurm() {
        let Imported { topology, hosts, unknown } = import(SWITCHES, Some(40_000)).unwrap();
        let nodes: Vec<_> = topology
            .nodes()
            .iter()
            .map(|node| format!("{} {} {:?}", node.name, node.cpu, node.address))
            .collect();
        assert_eq!(nodes[0], "n1 800 % Some(10.1.0.1)");
        assert_eq!(nodes[1], "n2 1600 % Some(10.1.0.2)");
        assert_eq!(nodes[2], "gpu-1 6400 % None");
        let gpu: Name = "gpu-1".parse().unwrap();
        assert_eq!(hosts, [(gpu.clone(), "GPU_1".to_owned())].into());
        assert_eq!(unknown, [gpu]);
        let links: BTreeSet<_> = topology
            .links()
            .iter()
            .map(|link| format!("{}-{} {}", link.between[0], link.between[1], link.rate))
            .collect();
        let expected = [
            "n1-leaf0 10 Gbit/s",
            "n2-leaf0 10 Gbit/s",
            "gpu-1-leaf1 10 Gbit/s",
            "leaf0-core 40 Gbit/s",
            "leaf1-core 40 Gbit/s",
        ];
        assert_eq!(links, expected.map(str::to_owned).into());
        assert_eq!(Topology::from_toml(&topology.to_toml()), Ok(topology));
    }

    #[test]
    fn without_switches_all_nodes_hang_from_one() {
        let topology = import("", None).unwrap().topology;
        assert_eq!((topology.switches().len(), topology.links().len()), (1, 3));
    }

    #[test]
    fn what_is_missing_or_makes_no_sense_is_named() {
        let refused = |switches, uplink| import(switches, uplink).unwrap_err().to_string();
        let said = refused(SWITCHES, None);
        assert!(said.contains("uplink") && said.contains("between switches"), "{said}");
        let said = refused("SwitchName=leaf0 Level=0 Nodes=n[1", Some(1));
        assert!(said.contains("n[1-3,07]"), "{said}");
        // A node that no switch has.
        assert!(import("SwitchName=leaf0 Level=0 Nodes=n1\n", Some(1)).is_err());
        let twice = "NodeName=N1 CPUTot=1\nNodeName=n1 CPUTot=1\n";
        let unknown = Unknown {
            name: "cluster".parse().unwrap(),
            rate: BitsPerSecond::from_mbit(1),
            uplink: None,
        };
        let said = imported(twice, "", unknown, &|_| None).unwrap_err().to_string();
        assert!(said.contains("another name than that of N1"), "{said}");
    }
}
