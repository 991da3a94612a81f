//! Starts an agent on every node of a lab, as an init system would on a real one.

use crate::brokers;
use crate::cluster::{own_path, socket_in};
use anyhow::{Context, Result, bail};
use keeptime_agent::client::Client;
use keeptime_agent::config::{Config, job_tasks};
use keeptime_lab::{Exec, Lab};
use keeptime_model::topology::{LinkDirection, Node, Topology};
use keeptime_model::units::BitsPerSecond;
use std::ffi::OsString;
use std::fs::{self, File};
use std::time::{Duration, Instant};

/// The class inside of the shaper that stands for a lab node's network card.
const NIC_CLASS: &str = "1:1";
/// An agent answers within milliseconds; a machine that is busy compiling takes longer.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// Starts the agents that do not answer yet, and waits until all do.
///
/// # Errors
/// The first that does not, with the last lines of its log.
pub fn start(lab: &Lab) -> Result<()> {
    for node in lab.topology().nodes() {
        if Client::connect(&socket_in(&lab.node_directory(&node.name))).is_err() {
            start_one(lab, node)
                .with_context(|| format!("while starting the agent of {}", node.name))?;
        }
    }
    let deadline = Instant::now() + READY_WITHIN;
    for node in lab.topology().nodes() {
        let directory = lab.node_directory(&node.name);
        while Client::connect(&socket_in(&directory)).is_err() {
            if Instant::now() > deadline {
                let log = fs::read_to_string(directory.join("agent.log")).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(5).collect();
                bail!(
                    "the agent of {} does not answer; its last words: {}",
                    node.name,
                    last.join(" / ")
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

fn start_one(lab: &Lab, node: &Node) -> Result<()> {
    let directory = lab.node_directory(&node.name);
    let config = config(lab, node);
    let path = directory.join("agent.toml");
    fs::write(&path, config.to_toml())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let log = File::create(directory.join("agent.log"))?;
    let words: [OsString; 5] =
        [own_path()?.into(), "agent".into(), "run".into(), "--config".into(), path.into()];
    let null = File::open("/dev/null")?;
    let stdio = [Some(null.into()), Some(log.try_clone()?.into()), Some(log.into())];
    lab.spawn_daemon(Exec::new(node.name.as_str(), words).with_stdio(stdio))?;
    Ok(())
}

fn config(lab: &Lab, node: &Node) -> Config {
    let directory = lab.node_directory(&node.name);
    let broker_tls = brokers::far_place(lab, &node.name);
    let near = brokers::agents_socket(lab.directory());
    Config {
        node: node.name.clone(),
        socket: socket_in(&directory),
        assignments: directory.join("assignments.json"),
        device: lab.device().into(),
        attach: NIC_CLASS.into(),
        rate: egress_rate(lab.topology(), node),
        cpu: node.cpu,
        cgroup: lab.group_path(&node.name),
        part_of_machine: true,
        leaves_slurm: false,
        leaves_limits: false,
        job_tasks: job_tasks(),
        broker: broker_tls.is_none().then_some(near),
        broker_tls,
        // Its part of one that all nodes share.
        disks: node.disk.into_iter().collect(),
    }
}

/// The rate at which a node can send: that of the direction of its link away from it.
fn egress_rate(topology: &Topology, node: &Node) -> BitsPerSecond {
    let directions = (0..topology.direction_count() as u32).map(LinkDirection);
    let away = format!("{} > ", node.name);
    let mut own = directions.filter(|d| topology.direction_name(*d).starts_with(&away));
    own.next().map_or(BitsPerSecond::ZERO, |d| topology.rate(d))
}
