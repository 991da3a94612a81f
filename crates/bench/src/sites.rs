//! How soon a site that is flooded has a node more: a broker and agents in processes of their own, and a
//! real HAProxy. The nodes' servers are threads, each of which answers one request after the other.
//!
//! In each round both sites begin with their hard guarantees. The site of low priority is flooded first, and
//! takes nodes that serve nobody. Then the site of high priority is flooded as well, and takes nodes that have
//! requests to end. HAProxy hands each node one request at a time, which is what it works on; the others wait in
//! its queue, where they are seen.

use crate::balancers::world::{HaProxyDaemon, Node, haproxy, posts};
use crate::broker::cluster::{Broker, start_keeptime};
use crate::figures::{Figures, Target, quantile};
use crate::quick;
use crate::scratch::Scratch;
use anyhow::{Context, Result, anyhow, ensure};
use keeptime::machine::Machine;
use keeptime_balancers::balancer::Balancer;
use keeptime_broker::client::Client;
use keeptime_broker::config::Config;
use keeptime_credentials::dates::now;
use keeptime_load::report::Report;
use keeptime_model::name::Name;
use keeptime_model::site::{BalancerPlace, Guarantee, SiteSpec};
use keeptime_model::units::{CpuPpm, WallTime};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const NODES: usize = 8;
/// A node answers 200 requests a second.
const ANSWER_AFTER: Duration = Duration::from_millis(5);
const LOW: &str = "blog";
const HIGH: &str = "shop";
/// More than four nodes answer.
const PER_SECOND: f64 = 900.0;
const LOW_MILLIS: u64 = 3_000;
const HIGH_MILLIS: u64 = 1_500;
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(1);

/// One flood, in milliseconds since it began.
#[derive(Debug, Serialize)]
struct Flood {
    /// Until the move was decided that ended first.
    decided: f64,
    /// How long that took: the drain and the record.
    took: f64,
    /// Until a node more was sent a request of the site.
    serving: f64,
}

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    low: Vec<Flood>,
    high: Vec<Flood>,
    loads: Vec<Report>,
}

/// Floods sites in turn and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let rounds = if quick() { 1 } else { 20 };
    let scratch = Scratch::new(out, "sites")?;
    let farm = Farm::start(&scratch)?;
    let mut raw = Raw { machine: Machine::here(), low: vec![], high: vec![], loads: vec![] };
    for _ in 0..rounds {
        farm.begin()?;
        let (low, first) = farm.flood(LOW, LOW_MILLIS)?;
        let (high, second) = farm.flood(HIGH, HIGH_MILLIS)?;
        for load in [first, second] {
            raw.loads.push(load.join().map_err(|_| anyhow!("the load panicked"))?);
        }
        raw.low.push(low);
        raw.high.push(high);
    }
    farm.end()?;
    let mut figures = Figures::new("sites");
    let target = Some(Target::AtMost(200.0));
    add("givers with nothing to end", &raw.low, target, &mut figures);
    add("givers at work", &raw.high, None, &mut figures);
    let sum = |count: fn(&Report) -> u64| raw.loads.iter().map(count).sum::<u64>();
    let intended = sum(|load| load.all.counts.intended);
    let lost = (intended - sum(|load| load.all.counts.answered)) as f64;
    let name = format!("lost of {intended} POSTs in {} floods", raw.loads.len());
    figures.value(name, "", lost, &[lost], None, Some(Target::AtMost(0.0)));
    figures.finish(out, &raw)
}

/// The target is for a node that has no requests to end: whose drain has no tail.
fn add(givers: &str, floods: &[Flood], target: Option<Target>, figures: &mut Figures) {
    let of = |value: fn(&Flood) -> f64| floods.iter().map(value).collect::<Vec<_>>();
    let name = |what: &str| format!("{givers}: {what}");
    let serving = of(|flood| flood.serving);
    figures.median(name("burst to first node more"), "ms", &serving, None, target);
    let slowest = quantile(&serving, 1.0);
    figures.value(name("the same, slowest"), "ms", slowest, &serving, None, target);
    figures.median(name("burst to decision"), "ms", &of(|flood| flood.decided), None, None);
    figures.median(name("its drain and record"), "ms", &of(|flood| flood.took), None, None);
}

/// Two sites that share eight nodes.
struct Farm {
    nodes: Vec<Node>,
    haproxy: HaProxyDaemon,
    broker: Broker,
    client: Client,
    agents: Agents,
}

/// They end with this.
struct Agents(Vec<Child>);

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            // It may have ended by itself.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

impl Farm {
    fn start(scratch: &Scratch) -> Result<Self> {
        let names: Vec<_> = (1..=NODES).map(|number| format!("n{number}")).collect();
        let nodes: Vec<_> = names.iter().map(|name| Node::single(name, ANSWER_AFTER)).collect();
        let haproxy = haproxy(&[HIGH, LOW], &nodes.iter().collect::<Vec<_>>());
        let config = Config::in_directory(&fs::canonicalize(scratch.directory())?);
        fs::write(&config.topology, topology(&names))?;
        fs::write(config.topology.with_file_name("broker.toml"), config.to_toml())?;
        let agents = names.iter().map(|name| agent(&config, name)).collect::<Result<_>>()?;
        let broker = Broker::start(config)?;
        let client = broker.client()?;
        let farm = Self { nodes, haproxy, broker, client, agents: Agents(agents) };
        farm.until("all agents are there", || {
            let nodes = farm.client.nodes(None)?.nodes;
            Ok(nodes.iter().all(|node| node.connected).then_some(()))
        })?;
        [HIGH, LOW].iter().for_each(|site| farm.haproxy.limit(site, &farm.nodes, 1));
        Ok(farm)
    }

    /// Both sites anew, each with its hard guarantee: what a round left is forgotten.
    fn begin(&self) -> Result<()> {
        for site in self.client.sites()?.sites {
            self.client.remove_site(&site.spec.name)?;
        }
        self.until("no sites", || Ok(self.client.sites()?.sites.is_empty().then_some(())))?;
        for (site, priority) in [(HIGH, 10), (LOW, 1)] {
            self.client.add_site(&self.spec(site, priority)?)?;
        }
        self.until("hard guarantees", || {
            let (high, low) = (self.serving(HIGH)?, self.serving(LOW)?);
            Ok((high.len() == 2 && low.len() == 2).then_some(()))
        })
    }

    fn spec(&self, site: &str, priority: u32) -> Result<SiteSpec> {
        let (socket, backend) = (self.haproxy.socket.clone(), site.into());
        Ok(SiteSpec {
            name: site.parse()?,
            guarantee: Guarantee { hard: 2, soft: 6, max: 6 },
            priority,
            cpu_ppm: Some(CpuPpm::from_percent(50)),
            services: vec![],
            port: 80,
            drain_most_nanos: None,
            balancers: vec![BalancerPlace::HaProxy { socket, backend }],
        })
    }

    /// Floods `site` for so long; ends when a node more has a request of it.
    fn flood(&self, site: &str, millis: u64) -> Result<(Flood, JoinHandle<Report>)> {
        let before = self.serving(site)?;
        let served = self.served(site)?;
        let at = usize::from(site == LOW);
        let (start, wall) = (Instant::now(), now());
        let load = posts(&self.haproxy.sites[at..=at], PER_SECOND, millis);
        let is_new = |node: &Name, count: u64| !before.contains(node) && count > served[node];
        let serving = self.until("a node more serves", || {
            let has_more = self.served(site)?.iter().any(|(node, count)| is_new(node, *count));
            Ok(has_more.then(|| start.elapsed().as_secs_f64() * 1e3))
        })?;
        let (decided, took) = self.until("its move is told", || self.first_move(site, wall))?;
        Ok((Flood { decided, took, serving }, load))
    }

    /// When the first move to `site` after `wall` was decided, and how long it took.
    fn first_move(&self, site: &str, wall: WallTime) -> Result<Option<(f64, f64)>> {
        let moves = self.client.sites()?.moves;
        let is_it = |to: &Option<Name>| to.as_ref().is_some_and(|name| name.as_str() == site);
        let found = moves.iter().find(|moved| is_it(&moved.to) && moved.at_unix_nanos > wall);
        Ok(found.map(|moved| {
            let ended = moved.at_unix_nanos.saturating_since(wall).as_secs_f64() * 1e3;
            let took = moved.took_nanos.as_secs_f64() * 1e3;
            (ended - took, took)
        }))
    }

    /// Nodes that get requests of `site`.
    fn serving(&self, site: &str) -> Result<Vec<Name>> {
        let servers = self.haproxy.balancer(site).observe()?.servers.into_iter();
        let on = servers.filter(|(_, seen)| seen.traffic.is_on());
        Ok(on.map(|(node, _)| node).collect())
    }

    /// Requests of `site` that each node was sent.
    fn served(&self, site: &str) -> Result<BTreeMap<Name, u64>> {
        let servers = self.haproxy.balancer(site).observe()?.servers.into_iter();
        Ok(servers.map(|(node, seen)| (node, seen.served.unwrap_or(0))).collect())
    }

    fn until<T>(&self, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            ensure!(Instant::now() < deadline, "waited for: {what}");
            thread::sleep(AGAIN);
        }
    }

    fn end(self) -> Result<()> {
        ensure!(self.nodes.iter().all(|node| node.answered() > 0), "a node never served");
        drop(self.agents);
        self.broker.stop()
    }
}

/// An agent without a kernel to enforce anything.
fn agent(config: &Config, node: &str) -> Result<Child> {
    let directory = config.topology.parent().context("no directory")?;
    let at = |end: &str| directory.join(format!("{node}.{end}"));
    let text = format!(
        "node = {node:?}\nsocket = {:?}\nassignments = {:?}\nbroker = {:?}\ndevice = \"eth0\"\n\
         rate = \"100 Mbit/s\"\ncpu = \"100 %\"\n",
        at("sock"),
        at("json"),
        config.agents,
    );
    fs::write(at("toml"), text)?;
    let words: [OsString; 4] = ["agent".into(), "run".into(), "--config".into(), at("toml").into()];
    start_keeptime(&words, File::create(at("log"))?)
}

fn topology(names: &[String]) -> String {
    let mut text = String::from("name = \"star\"\nswitches = [{ name = \"s1\" }]\n");
    // Writing to a string does not fail.
    for (at, name) in names.iter().enumerate() {
        let address = format!("10.0.0.{}", at + 1);
        let _ = writeln!(
            text,
            "[[nodes]]\nname = \"{name}\"\ncpu = \"100 %\"\naddress = \"{address}\""
        );
    }
    for name in names {
        let rate = "rate = \"100 Mbit/s\"";
        let _ = writeln!(text, "[[links]]\nbetween = [\"{name}\", \"s1\"]\n{rate}");
    }
    text
}
