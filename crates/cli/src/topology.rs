//! The topology of a cluster as its broker tells it: the nodes and links of `keeptime nodes` and `links` (pure).

use anyhow::{Context, Result, ensure};
use keeptime_broker::wire::{Link, Node};
use keeptime_model::name::Name;
use keeptime_model::topology::{self, Switch, Topology, TopologyFile};
use std::collections::BTreeSet;

/// Nodes, and links in both directions, as a topology. What links lead to and is no node is a switch. What
/// can be reserved of disks is the broker's business.
///
/// # Errors
/// If links are not told in pairs, or what is told is not a tree.
pub fn of_overview(cluster: Name, nodes: &[Node], links: &[Link]) -> Result<Topology> {
    let links: Vec<_> = links.chunks(2).map(both_directions).collect::<Result<_>>()?;
    let names: BTreeSet<&Name> = nodes.iter().map(|node| &node.name).collect();
    let ends: BTreeSet<&Name> = links.iter().flat_map(|link| &link.between).collect();
    let switch = |name: &&Name| Switch { name: (*name).clone() };
    let node = |node: &Node| topology::Node {
        name: node.name.clone(),
        cpu: node.cpu_ppm,
        address: node.address,
        disk: None,
    };
    let file = TopologyFile {
        name: cluster,
        nodes: nodes.iter().map(node).collect(),
        switches: ends.difference(&names).map(switch).collect(),
        links,
    };
    Topology::try_from(file).context("the broker tells no topology that can be planned with")
}

/// The link of which `pair` has both directions, the first first.
fn both_directions(pair: &[Link]) -> Result<topology::Link> {
    let ends = |link: &Link| {
        let (from, to) = link.link.split_once(" > ")?;
        Some([from.parse::<Name>().ok()?, to.parse::<Name>().ok()?])
    };
    let told: Vec<_> = pair.iter().map(|link| link.link.as_str()).collect();
    let odd = || format!("the broker tells {}, not both directions of a link", told.join(", "));
    let [there, back] = pair else { anyhow::bail!(odd()) };
    let (between, mut reversed) = (ends(there).with_context(odd)?, ends(back).with_context(odd)?);
    reversed.reverse();
    ensure!(between == reversed, odd());
    let (rate, rate_back) = (there.bits_per_second, back.bits_per_second);
    Ok(topology::Link { between, rate, rate_back: (rate_back != rate).then_some(rate_back) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::BitsPerSecond;

    fn node(name: &str) -> Node {
        let number = name.trim_start_matches('n');
        let text = format!(
            r#"{{"name": "{name}", "address": "10.0.0.{number}", "connected": true, "heard_unix_nanos": 0,
            "cpu_ppm": 400000, "cpu_reserved_ppm": 0, "disk_read_bytes_per_second": 0,
            "disk_read_reserved_bytes_per_second": 0, "disk_write_bytes_per_second": 0,
            "disk_write_reserved_bytes_per_second": 0, "told": [], "not_enforced": []}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn link(name: &str, mbit: u64) -> Link {
        let rate = BitsPerSecond::from_mbit(mbit);
        Link {
            link: name.into(),
            bits_per_second: rate,
            reservable_bits_per_second: rate,
            reserved_bits_per_second: BitsPerSecond::ZERO,
        }
    }

    #[test]
    fn what_is_told_is_the_topology_that_the_broker_has() {
        let nodes = ["n1", "n2"].map(node);
        let links =
            [link("n1 > s1", 100), link("s1 > n1", 200), link("s1 > n2", 50), link("n2 > s1", 50)];
        let topology = of_overview("c".parse().unwrap(), &nodes, &links).unwrap();
        assert_eq!(topology.switches().len(), 1);
        for (index, link) in (0..).zip(&links) {
            let direction = topology::LinkDirection(index);
            assert_eq!(topology.direction_name(direction), link.link);
            assert_eq!(topology.rate(direction), link.bits_per_second);
        }
    }

    #[test]
    fn links_that_are_not_told_in_pairs_are_refused() {
        let nodes = ["n1", "n2"].map(node);
        for links in [
            vec![link("n1 > s1", 1)],
            vec![link("n1 > s1", 1), link("s1 > n2", 1)],
            vec![link("n1", 1), link("n1", 1)],
        ] {
            let error = of_overview("c".parse().unwrap(), &nodes, &links).unwrap_err();
            assert!(error.to_string().contains("both directions"), "{error}");
        }
    }
}
