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
    let table = Table::start(testbed, nodes, setting, cpu)?;
    let (rounds, seconds) = if quick() { (1, 1.0) } else { (3, 3.0) };
    let mut asked: BTreeMap<usize, (Vec<f64>, f64)> = BTreeMap::new();
    for count in (0..rounds).flat_map(|_| clients) {
        let (queries, hops) = table.ask(*count, seconds)?;
        let (all, all_hops) = asked.entry(*count).or_default();
        all.push(queries);
        *all_hops += hops / f64::from(rounds);
    }
    table.end()?;
    let point = |(clients, (rounds, hops)): (usize, (Vec<f64>, f64))| Point {
        clients,
        queries: quantile(&rounds, 0.5),
        rounds,
        hops,
    };
    Ok(asked.into_iter().map(point).collect())
}

/// A table with a server on each of some nodes, and something under each of its keys.
pub struct Table<'a> {
    nodes: &'a [&'a Node],
    setting: Setting,
    keys: usize,
    servers: Vec<Process>,
}

impl<'a> Table<'a> {
    /// Makes and fills it; all nodes of the testbed have so much of a CPU from then on.
    ///
    /// # Errors
    /// If it does not become whole.
    pub fn start(
        testbed: &Testbed,
        nodes: &'a [&'a Node],
        setting: Setting,
        cpu: CpuPpm,
    ) -> Result<Self> {
        // What is not measured may take what it needs.
        testbed.set_cpu(CpuPpm::from_percent(100))?;
        let (partitions, keys) = if quick() { (4, 64) } else { (32, 512) };
        let mut table = Self { nodes, setting, keys, servers: Vec::new() };
        table.servers =
            table.on_all(&format!("serve --partitions {partitions} --leave-within 1"))?;
        let is_whole = format!("{} partitions, {} servers", partitions * nodes.len(), nodes.len());
        wait_for("the table's partitions", || {
            Ok(table.on_first("status")?.lines().any(|line| line == is_whole))
        })?;
        table.on_first(&format!("bench --fill --keys {keys}"))?;
        testbed.set_cpu(cpu)?;
        Ok(table)
    }

    /// Queries a second of so many clients on each node, all together, and the partitions that one passed.
    ///
    /// # Errors
    /// If a client is not ready, or has no answer.
    pub fn ask(&self, clients: usize, seconds: f64) -> Result<(f64, f64)> {
        let keys = self.keys;
        let bench = format!("bench --keys {keys} --clients {clients} --seconds {seconds} --wait");
        ask(self.on_all(&bench)?)
    }

    /// Ends its servers and waits until the directory has forgotten them: the next table is another one.
    ///
    /// # Errors
    /// If it does not.
    pub fn end(mut self) -> Result<()> {
        self.servers.clear();
        wait_for("the end of the table", || {
            Ok(self.on_first("status")?.contains("0 partitions, 0 servers"))
        })
    }

    fn on_all(&self, words: &str) -> Result<Vec<Process>> {
        self.nodes.iter().map(|node| self.on(node, words)).collect()
    }

    /// What it says until it ends.
    fn on_first(&self, words: &str) -> Result<String> {
        self.on(self.nodes.first().context("no nodes")?, words)?.finish()
    }

    fn on(&self, node: &Node, words: &str) -> Result<Process> {
        let address = node.address((self.setting.network)(&node.name))?;
        let words = format!("{words} --listen {address}:0 --misses {}", self.setting.misses);
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        node.start("keeptime-dht", &words)
    }
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
