//! `keeptime lab police` and `keeptime lab load`: an edge that polices, and contention.

use super::print_json;
use crate::arguments::{LabLoadArguments, LabPoliceArguments};
use crate::cluster::Cluster;
use crate::interrupt;
use crate::load::{Blast, Flood, Pair};
use anyhow::{Context, Result, ensure};
use keeptime_lab::Labs;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
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
            let pair = Pair { from: node(&cluster, from)?, to: node(&cluster, to)? };
            ensure!(pair.from != pair.to, "{from} to {to}: not accepted; give two different nodes");
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

fn node(cluster: &Cluster, name: &Name) -> Result<NodeIndex> {
    let topology = cluster.topology();
    topology.find_node(name).with_context(|| {
        let known: Vec<_> = topology.nodes().iter().map(|node| node.name.as_str()).collect();
        format!("no node {name}; there are {}", known.join(", "))
    })
}
