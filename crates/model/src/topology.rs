//! Nodes, switches and full-duplex links, and the one path between any two nodes.
//!
//! The links must form a tree, as a spanning tree makes of any Ethernet: then the path between two
//! nodes is unique and known without asking the switches. A fabric with several paths is refused.

use crate::Invalid;
use crate::disk::Disk;
use crate::name::Name;
use crate::units::{self, BitsPerSecond, CpuPpm};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// Most nodes and switches together; far above the largest cluster meant (10,000 nodes).
pub const VERTICES_MAX: usize = 100_000;

/// A computer that runs processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its host name.
    pub name: Name,
    /// How much CPU jobs may have there.
    #[serde(with = "units::text")]
    pub cpu: CpuPpm,
    /// Its address on the cluster's network, where it is known.
    #[serde(default, deserialize_with = "address", skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// The disk whose rates can be reserved, as its agent is configured with it too; none where this
    /// is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
}

/// A switch that forwards between its links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its name.
    pub name: Name,
}

/// A full-duplex cable: each direction has a rate of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two ends, nodes or switches.
    pub between: [Name; 2],
    /// Rate from the first end to the second.
    #[serde(with = "units::text")]
    pub rate: BitsPerSecond,
    /// Rate from the second end to the first, where it differs.
    #[serde(default, with = "optional_rate", skip_serializing_if = "Option::is_none")]
    pub rate_back: Option<BitsPerSecond>,
}

/// Position of a node in [`Topology::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeIndex(pub u32);

/// One direction of one link: `2 * link` from its first end to its second, `2 * link + 1` back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkDirection(pub u32);

/// A checked tree of nodes, switches and links. Built from [`TopologyFile`] only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TopologyFile", into = "TopologyFile")]
pub struct Topology {
    file: TopologyFile,
    /// For every vertex (nodes, then switches): the step towards the root, if it is not the root.
    up: Vec<Option<Step>>,
    depth: Vec<u32>,
}

/// The topology as people write it (TOML): `name`, `[[nodes]]`, `[[switches]]`, `[[links]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyFile {
    /// Name of the cluster.
    pub name: Name,
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// Its switches.
    #[serde(default)]
    pub switches: Vec<Switch>,
    /// Its links.
    #[serde(default)]
    pub links: Vec<Link>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    parent: u32,
    ascending: LinkDirection,
}

impl LinkDirection {
    /// The position of the link in [`Topology::links`].
    pub const fn link(self) -> usize {
        (self.0 / 2) as usize
    }

    /// The other direction of the same link.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self(self.0 ^ 1)
    }
}

impl Topology {
    /// Reads and checks a topology file.
    ///
    /// # Errors
    /// The first field that is wrong, with its value and what would be accepted.
    pub fn from_toml(text: &str) -> Result<Self, Invalid> {
        let file: TopologyFile = toml::from_str(text)
            .map_err(|error| Invalid::in_toml("topology file", text, &error))?;
        Self::try_from(file)
    }

    /// The file that [`Self::from_toml`] reads back.
    pub fn to_toml(&self) -> String {
        // Plain structs of strings and integers: serialisation has no way to fail.
        toml::to_string_pretty(&self.file).unwrap_or_default()
    }

    /// Name of the cluster.
    pub fn name(&self) -> &Name {
        &self.file.name
    }

    /// All nodes, by [`NodeIndex`].
    pub fn nodes(&self) -> &[Node] {
        &self.file.nodes
    }

    /// All switches.
    pub fn switches(&self) -> &[Switch] {
        &self.file.switches
    }

    /// All links.
    pub fn links(&self) -> &[Link] {
        &self.file.links
    }

    /// Every node's index, in order.
    pub fn node_indices(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.file.nodes.len() as u32).map(NodeIndex)
    }

    /// The node at `index`.
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.file.nodes[index.0 as usize]
    }

    /// The names of `nodes`, in their order.
    pub fn names(&self, nodes: &[NodeIndex]) -> Vec<Name> {
        nodes.iter().map(|node| self.node(*node).name.clone()).collect()
    }

    /// The index of the node called `name`. O(nodes).
    pub fn find_node(&self, name: &Name) -> Option<NodeIndex> {
        self.file.nodes.iter().position(|n| n.name == *name).map(|i| NodeIndex(i as u32))
    }

    /// Number of link directions: twice the links.
    pub fn direction_count(&self) -> usize {
        2 * self.file.links.len()
    }

    /// What a link direction can carry.
    pub fn rate(&self, direction: LinkDirection) -> BitsPerSecond {
        let link = &self.file.links[direction.link()];
        match direction.0 % 2 {
            0 => link.rate,
            _ => link.rate_back.unwrap_or(link.rate),
        }
    }

    /// A link direction as people say it: `"n1 > s1"`.
    pub fn direction_name(&self, direction: LinkDirection) -> String {
        let [a, b] = &self.file.links[direction.link()].between;
        if direction.0.is_multiple_of(2) { format!("{a} > {b}") } else { format!("{b} > {a}") }
    }

    /// The link directions from `from` to `to`, in order; empty for a node to itself.
    /// O(depth of the tree).
    pub fn path(&self, from: NodeIndex, to: NodeIndex) -> Vec<LinkDirection> {
        let (mut a, mut b) = (from.0, to.0);
        let (mut ascending, mut descending) = (Vec::new(), Vec::new());
        // The deeper end climbs; the root alone has no step, and it is never the deeper of two.
        while a != b {
            if self.depth[a as usize] >= self.depth[b as usize] {
                let Some(step) = self.up[a as usize] else { break };
                ascending.push(step.ascending);
                a = step.parent;
            } else {
                let Some(step) = self.up[b as usize] else { break };
                descending.push(step.ascending.reversed());
                b = step.parent;
            }
        }
        ascending.extend(descending.into_iter().rev());
        ascending
    }

    /// The switch or node next to `node` on the way to the root: the nodes under one leaf switch
    /// share it. A topology of one node has none.
    pub fn neighbour(&self, node: NodeIndex) -> Option<u32> {
        self.up[node.0 as usize].map(|step| step.parent)
    }
}

impl TryFrom<TopologyFile> for Topology {
    type Error = Invalid;

    fn try_from(file: TopologyFile) -> Result<Self, Invalid> {
        let vertices = vertex_numbers(&file)?;
        check_rates(&file)?;
        let adjacent = adjacency(&file, &vertices)?;
        let (up, depth) = spanning_tree(&file, &adjacent)?;
        Ok(Self { file, up, depth })
    }
}

impl From<Topology> for TopologyFile {
    fn from(topology: Topology) -> Self {
        topology.file
    }
}

/// Nodes first, then switches, so that a [`NodeIndex`] is a vertex number too.
fn vertex_numbers(file: &TopologyFile) -> Result<BTreeMap<&Name, u32>, Invalid> {
    let count = file.nodes.len() + file.switches.len();
    if file.nodes.is_empty() || count > VERTICES_MAX {
        let expected = format!("at least one node, at most {VERTICES_MAX} nodes and switches");
        return Err(Invalid::new("nodes", count, expected));
    }
    let names = file.nodes.iter().map(|n| &n.name).chain(file.switches.iter().map(|s| &s.name));
    let mut vertices = BTreeMap::new();
    for (number, name) in names.enumerate() {
        if vertices.insert(name, number as u32).is_some() {
            return Err(Invalid::new("name", name, "a name that no other node or switch has"));
        }
    }
    let mut addresses = BTreeSet::new();
    for (index, node) in file.nodes.iter().enumerate() {
        if node.cpu == CpuPpm::default() {
            return Err(Invalid::new(format!("nodes[{index}].cpu"), node.cpu, "more than 0 %"));
        }
        if let Some(address) = node.address.filter(|a| !addresses.insert(*a)) {
            let field = format!("nodes[{index}].address");
            return Err(Invalid::new(field, address, "an address that no other node has"));
        }
    }
    Ok(vertices)
}

fn check_rates(file: &TopologyFile) -> Result<(), Invalid> {
    for (index, link) in file.links.iter().enumerate() {
        for (part, rate) in [("rate", Some(link.rate)), ("rate_back", link.rate_back)] {
            if let Some(zero) = rate.filter(|rate| *rate == BitsPerSecond::ZERO) {
                let field = format!("links[{index}].{part}");
                return Err(Invalid::new(field, zero, "more than 0 bit/s"));
            }
        }
    }
    Ok(())
}

/// For every vertex: (neighbour, the direction from the vertex to it).
fn adjacency(
    file: &TopologyFile,
    vertices: &BTreeMap<&Name, u32>,
) -> Result<Vec<Vec<(u32, LinkDirection)>>, Invalid> {
    let mut adjacent = vec![Vec::new(); vertices.len()];
    for (index, link) in file.links.iter().enumerate() {
        let end = |name: &Name| {
            let field = format!("links[{index}].between");
            vertices.get(name).copied().ok_or_else(|| {
                Invalid::new(field, name, "the name of a node or switch of this topology")
            })
        };
        let (a, b) = (end(&link.between[0])?, end(&link.between[1])?);
        let there = LinkDirection(2 * index as u32);
        adjacent[a as usize].push((b, there));
        adjacent[b as usize].push((a, there.reversed()));
    }
    Ok(adjacent)
}

type Tree = (Vec<Option<Step>>, Vec<u32>);

/// Walks the links from a root; refuses loops and parts that hang nowhere.
fn spanning_tree(
    file: &TopologyFile,
    adjacent: &[Vec<(u32, LinkDirection)>],
) -> Result<Tree, Invalid> {
    let name = |vertex: u32| match (vertex as usize).checked_sub(file.nodes.len()) {
        Some(switch) => &file.switches[switch].name,
        None => &file.nodes[vertex as usize].name,
    };
    // A root in the core, so that nodes are leaves and depths stay small: the best connected vertex.
    let root = (0..adjacent.len()).max_by_key(|v| (adjacent[*v].len(), *v)).unwrap_or(0);
    let mut up: Vec<Option<Step>> = vec![None; adjacent.len()];
    let mut depth = vec![u32::MAX; adjacent.len()];
    depth[root] = 0;
    let mut queue = std::collections::VecDeque::from([root as u32]);
    while let Some(vertex) = queue.pop_front() {
        for &(next, direction) in &adjacent[vertex as usize] {
            let came_by = up[vertex as usize].map(|step| step.ascending.link());
            if came_by == Some(direction.link()) {
                continue;
            }
            if depth[next as usize] != u32::MAX {
                let field = format!("links[{}].between", direction.link());
                let value = format!("{}, {}", name(vertex), name(next));
                return Err(Invalid::new(
                    field,
                    value,
                    "links that form a tree: this one closes a loop",
                ));
            }
            depth[next as usize] = depth[vertex as usize] + 1;
            up[next as usize] = Some(Step { parent: vertex, ascending: direction.reversed() });
            queue.push_back(next);
        }
    }
    match depth.iter().position(|d| *d == u32::MAX) {
        None => Ok((up, depth)),
        Some(apart) => {
            let expected = format!("links that connect it with {}", name(root as u32));
            Err(Invalid::new("links", name(apart as u32), expected))
        }
    }
}

/// An address is told as any other value that does not fit its field.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Ipv4Addr>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let refused = |_| Invalid::new("address", &text, "an IPv4 address, as in \"10.0.0.1\"");
    text.parse().map(Some).map_err(|error| D::Error::custom(refused(error)))
}

mod optional_rate {
    use crate::units::BitsPerSecond;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(
        rate: &Option<BitsPerSecond>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match rate {
            Some(rate) => crate::units::text::serialize(rate, to),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<BitsPerSecond>, D::Error> {
        crate::units::text::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAR: &str = r#"
        name = "star"
        switches = [{ name = "s1" }]
        nodes = [{ name = "n1", cpu = "40 %" }, { name = "n2", cpu = "40 %" }]
        links = [{ between = ["n1", "s1"], rate = "200 Mbit/s" },
                 { between = ["s1", "n2"], rate = "100 Mbit/s", rate_back = "50 Mbit/s" }]
    "#;

    /// A random tree: vertex k > 0 hangs from an earlier one; the last `nodes` of them are nodes.
    fn random_tree() -> impl Strategy<Value = TopologyFile> {
        prop::collection::vec(any::<prop::sample::Index>(), 2..40).prop_map(|parents| {
            let name = |vertex: usize| format!("v{vertex}").parse::<Name>().unwrap();
            let half = parents.len().div_ceil(2);
            let link = |(index, parent): (usize, &prop::sample::Index)| Link {
                between: [name(index + 1), name(parent.index(index + 1))],
                rate: BitsPerSecond::from_mbit(10 + index as u64),
                rate_back: None,
            };
            TopologyFile {
                name: name(0),
                switches: (0..half).map(|v| Switch { name: name(v) }).collect(),
                nodes: (half..=parents.len())
                    .map(|v| Node {
                        name: name(v),
                        cpu: CpuPpm::from_percent(40),
                        address: None,
                        disk: None,
                    })
                    .collect(),
                links: parents.iter().enumerate().map(link).collect(),
            }
        })
    }

    #[test]
    fn a_path_crosses_both_links_in_their_direction() {
        let star = Topology::from_toml(STAR).unwrap();
        let path = star.path(NodeIndex(0), NodeIndex(1));
        let names: Vec<_> = path.iter().map(|d| star.direction_name(*d)).collect();
        assert_eq!(names, ["n1 > s1", "s1 > n2"]);
        let back = star.path(NodeIndex(1), NodeIndex(0));
        let rates: Vec<_> = back.iter().map(|d| star.rate(*d).to_string()).collect();
        assert_eq!(rates, ["50 Mbit/s", "200 Mbit/s"]);
    }

    #[test]
    fn bad_files_name_field_value_and_what_is_accepted() {
        let cases = [
            ("n2\", cpu = \"40 %\"", "n1\", cpu = \"40 %\"", "name: \"n1\""),
            ("[\"s1\", \"n2\"]", "[\"s9\", \"n2\"]", "links[1].between: \"s9\""),
            ("\"n1\", \"s1\"", "\"n2\", \"s1\"", "closes a loop"),
            ("\"n1\", \"s1\"", "\"s1\", \"s1\"", "closes a loop"),
            ("\"200 Mbit/s\"", "\"0 bit/s\"", "links[0].rate: \"0 bit/s\""),
            ("\"50 Mbit/s\"", "\"0 bit/s\"", "links[1].rate_back: \"0 bit/s\""),
            ("\"200 Mbit/s\"", "\"200\"", "a number and a unit"),
            ("name = \"star\"", "name = \"star\"\ncolour = 1", "unknown field `colour`"),
        ];
        for (from, to, expected) in cases {
            let error = Topology::from_toml(&STAR.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
        let apart = STAR.replacen("{ between = [\"n1\", \"s1\"], rate = \"200 Mbit/s\" },", "", 1);
        let error = Topology::from_toml(&apart).unwrap_err().to_string();
        assert!(error.contains("links: \"n1\""), "{error}");
    }

    #[test]
    fn the_file_of_the_documentation_is_what_is_accepted() {
        let text = include_str!("../../../docs/formats/topology.md");
        let file = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let topology = Topology::from_toml(file).unwrap();
        assert!(topology.nodes().iter().any(|node| node.disk.is_some()));
        assert!(topology.links().iter().any(|link| link.rate_back.is_some()));
    }

    proptest! {
        #[test]
        fn paths_connect_their_ends_and_reverse(file in random_tree()) {
            let topology = Topology::try_from(file).unwrap();
            for (from, to) in topology.node_indices().zip(topology.node_indices().skip(1)) {
                let path = topology.path(from, to);
                let mut at = topology.node(from).name.clone();
                for direction in &path {
                    let name = topology.direction_name(*direction);
                    let (start, end) = name.split_once(" > ").unwrap();
                    prop_assert_eq!(at.as_str(), start);
                    at = end.parse().unwrap();
                }
                prop_assert_eq!(&at, &topology.node(to).name);
                let back: Vec<_> = path.iter().rev().map(|d| d.reversed()).collect();
                prop_assert_eq!(topology.path(to, from), back);
            }
        }

        #[test]
        fn files_read_back(file in random_tree()) {
            let topology = Topology::try_from(file).unwrap();
            prop_assert_eq!(Topology::from_toml(&topology.to_toml()), Ok(topology));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Topology::from_toml(&text);
        }
    }
}
