//! `keeptime lab police` and `keeptime lab load`: an edge that polices, and contention.

use super::print_json;
use crate::arguments::{LabLoadArguments, LabPoliceArguments};
use crate::cluster::Cluster;
use crate::interrupt;
use crate::load::{Blast, Flood, Pair};
use anyhow::Result;
use keeptime_lab::Labs;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::Topology;
use keeptime_model::units::Nanos;
use serde_json::json;
use std::any::Any;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LENGTH_MAX: Nanos = Nanos::from_secs(3_600);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Sets, looks at or removes a policer.
pub fn police(labs: &Labs, arguments: &LabPoliceArguments) -> Result<()> {
    let (lab, node) = (labs.open(&arguments.lab.name)?, &arguments.node);
    if arguments.off {
        lab.police(node.as_str(), None)?;
    } else if let Some(policer) = arguments.policer() {
        lab.police(node.as_str(), Some(&policer))?;
    }
    let policed = lab.policed(node.as_str())?;
    if arguments.json {
        let counts = policed.map(|policed| {
            json!({
                "passed_packets": policed.passed_packets, "passed_bytes": policed.passed,
                "dropped_packets": policed.dropped_packets, "dropped_bytes": policed.dropped,
            })
        });
        return print_json(&json!({ "node": node, "policed": counts }));
    }
    match policed {
        None => println!("{node}: everything passes"),
        Some(policed) => println!(
            "{node}: passed {} in {} packets, dropped {} in {}",
            policed.passed, policed.passed_packets, policed.dropped, policed.dropped_packets
        ),
    }
    Ok(())
}

/// Loads links until the time is over or somebody asks for the end.
pub fn load(arguments: &LabLoadArguments) -> Result<()> {
    let LabLoadArguments { lab, from, to, rate, length } = arguments;
    let accepted = format!("more than 0, at most {LENGTH_MAX}");
    let length = Some(*length).filter(|length| (Nanos::new(1)..=LENGTH_MAX).contains(length));
    let length = length.ok_or_else(|| Invalid::new("for", arguments.length, accepted))?;
    let limit = Duration::from_nanos(length.get());
    interrupt::listen()?;
    let cluster = Cluster::open(&lab.name)?;
    let start = Instant::now();
    let _load: Box<dyn Any> = match (from, to, rate) {
        (Some(from), Some(to), Some(rate)) => {
            let pair = pair(cluster.topology(), from, to)?;
            println!("datagrams from {from} to {to}, {rate}, for {length}");
            Box::new(Blast::start(&cluster, pair, *rate, limit)?)
        }
        _ => {
            println!("{}, for {length}", Flood::description(cluster.topology().nodes().len()));
            Box::new(Flood::on_all_links(&cluster, limit)?)
        }
    };
    while start.elapsed() < limit && !interrupt::stopped() {
        sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The two different nodes that were asked for.
fn pair(topology: &Topology, from: &Name, to: &Name) -> Result<Pair, Invalid> {
    let node = |field: &str, name: &Name| {
        let names = || topology.nodes().iter().map(|node| node.name.as_str()).collect::<Vec<_>>();
        let expected = || format!("a node of the lab: {}", names().join(", "));
        topology.find_node(name).ok_or_else(|| Invalid::new(field, name, expected()))
    };
    let pair = Pair { from: node("from", from)?, to: node("to", to)? };
    if pair.from == pair.to {
        return Err(Invalid::new("to", to, "another node than --from"));
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_go_from_one_node_of_the_lab_to_another() {
        let file = "name = \"two\"\nnodes = [{ name = \"n1\", cpu = \"40 %\" }, \
            { name = \"n2\", cpu = \"40 %\" }]\nlinks = [{ between = [\"n1\", \"n2\"], rate = \"1 Gbit/s\" }]";
        let topology = Topology::from_toml(file).unwrap();
        let asked =
            |from: &str, to: &str| pair(&topology, &from.parse().unwrap(), &to.parse().unwrap());
        let Pair { from, to } = asked("n2", "n1").unwrap();
        assert_eq!([from, to].map(|node| topology.node(node).name.as_str()), ["n2", "n1"]);
        let told = |from, to| asked(from, to).unwrap_err().to_string();
        let nowhere = "from: \"n7\" is not accepted; expected a node of the lab: n1, n2";
        assert_eq!(told("n7", "n1"), nowhere);
        assert_eq!(
            told("n1", "n1"),
            "to: \"n1\" is not accepted; expected another node than --from"
        );
    }
}
