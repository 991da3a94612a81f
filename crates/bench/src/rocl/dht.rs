//! Figures 10 to 12: queries a second of the hash table, one server on each node.

use super::testbed::{Network, Node, Process, Testbed, wait_for};
use crate::figures::quantile;
use crate::quick;
use anyhow::{Context as _, Result, ensure};
use keeptime_model::units::CpuPpm;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the table's programs are reached by.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The network of a node, by its name.
    pub network: fn(&str) -> Network,
    /// See `keeptime-dht --misses`.
    pub misses: f64,
}

/// Queries of so many clients on each node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// On each node.
    pub clients: usize,
    /// Of all nodes together, a second: the median of the rounds.
    pub queries: f64,
    /// Those of each round.
    pub rounds: Vec<f64>,
    /// Partitions that a query passed, on average.
    pub hops: f64,
}

#[derive(Deserialize)]
struct Report {
    queries: u64,
    seconds: f64,
    hops: f64,
}

/// A table over `nodes`, asked by so many clients on each, one number after the other.
pub fn measure(
    testbed: &Testbed,
    nodes: &[&Node],
    setting: Setting,
    clients: &[usize],
    cpu: CpuPpm,
) -> Result<Vec<Point>> {
    // What is not measured may take what it needs.
    testbed.set_cpu(CpuPpm::from_percent(100))?;
    let (partitions, keys) = if quick() { (4, 64) } else { (32, 512) };
    let words = |node: &Node, words: &str| -> Result<Vec<String>> {
        let address = node.address((setting.network)(&node.name))?;
        let own = format!("{words} --listen {address}:0 --misses {}", setting.misses);
        Ok(own.split(' ').map(String::from).collect())
    };
    let serve = format!("serve --partitions {partitions} --leave-within 1");
    let start = |node: &&Node| node.start("keeptime-dht", &words(node, &serve)?);
    let servers = nodes.iter().map(start).collect::<Result<Vec<_>>>()?;
    let first = nodes.first().context("no nodes")?;
    let is_whole = format!("{} partitions, {} servers", partitions * nodes.len(), nodes.len());
    wait_for("the table's partitions", || {
        let told = first.start("keeptime-dht", &words(first, "status")?)?.finish()?;
        Ok(told.lines().any(|line| line == is_whole))
    })?;
    let fill = format!("bench --fill --keys {keys}");
    first.start("keeptime-dht", &words(first, &fill)?)?.finish()?;
    testbed.set_cpu(cpu)?;
    let (rounds, seconds) = if quick() { (1, 1.0) } else { (3, 3.0) };
    let mut asked: BTreeMap<usize, (Vec<f64>, f64)> = BTreeMap::new();
    for count in (0..rounds).flat_map(|_| clients) {
        let bench = format!("bench --keys {keys} --clients {count} --seconds {seconds} --wait");
        let start = |node: &&Node| node.start("keeptime-dht", &words(node, &bench)?);
        let asking = nodes.iter().map(start).collect::<Result<Vec<_>>>()?;
        let (queries, hops) = ask(asking)?;
        let (all, all_hops) = asked.entry(*count).or_default();
        all.push(queries);
        *all_hops += hops / f64::from(rounds);
    }
    let point = |(clients, (rounds, hops)): (usize, (Vec<f64>, f64))| Point {
        clients,
        queries: quantile(&rounds, 0.5),
        rounds,
        hops,
    };
    let points = asked.into_iter().map(point).collect();
    drop(servers);
    // Until the directory has forgotten them: the next table is another one.
    wait_for("the end of the table", || {
        let told = first.start("keeptime-dht", &words(first, "status")?)?.finish()?;
        Ok(told.contains("0 partitions, 0 servers"))
    })?;
    Ok(points)
}

/// Queries a second of all together, and what one passed.
fn ask(mut asking: Vec<Process>) -> Result<(f64, f64)> {
    for process in &mut asking {
        ensure!(process.line()? == "ready", "a client is not ready");
    }
    asking.iter_mut().try_for_each(|process| process.say(""))?;
    let (mut queries, mut hops) = (0.0, 0.0);
    let count = asking.len() as f64;
    for process in asking {
        let report: Report = serde_json::from_str(process.finish()?.trim())?;
        queries += report.queries as f64 / report.seconds;
        hops += report.hops / count;
    }
    Ok((queries, hops))
}
