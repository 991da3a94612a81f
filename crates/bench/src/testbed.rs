//! Bursts of orders to sites on real web servers: shares that are fixed, and nodes that are shared.
//!
//! A lab of 14 nodes with nginx, PHP and a database, HAProxy in front (`keeptime lab up --web`). A burst of
//! requests arrives at one site, faster than all nodes answer; when it is answered, one arrives at the other. Four
//! nodes for each site are the paper's Rigid-Small, seven its Rigid-Large; eight that both share are Keeptime's. A
//! third site keeps away the nodes that an arm does not have. Each order that was answered is in the database once.

use crate::figures::{Figures, Target};
use crate::lab::BenchLab;
use crate::quick;
use anyhow::{Context, Result, ensure};
use keeptime::brokers;
use keeptime::machine::Machine;
use keeptime::web::{self, HTTP_PORT, SitePlaces, Web};
use keeptime_broker::client::Client;
use keeptime_lab::{FRONT_END, Lab, Spec};
use keeptime_load::report::Report;
use keeptime_load::run::{Plan, run as send};
use keeptime_load::schedule::Arrivals;
use keeptime_load::target::Method;
use keeptime_model::name::Name;
use keeptime_model::site::{Guarantee, SiteSpec};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use serde::Serialize;
use std::io::{Write, read_to_string};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const NODES: u32 = 14;
const CPU: CpuPpm = CpuPpm::from_percent(10);
const SHOP: &str = "shop";
const BLOG: &str = "blog";
const NOBODY: &str = "nobody";
/// Requests of a burst, and bursts of a run.
const BURSTS: [(u64, usize); 2] = [(1_000, 4), (4_000, 2)];
/// Twice what all nodes answer, more or less.
const PER_SECOND: f64 = 1_500.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// Who has which nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
enum Arm {
    RigidSmall,
    RigidLarge,
    Shared,
}

const ARMS: [Arm; 3] = [Arm::RigidSmall, Arm::RigidLarge, Arm::Shared];

#[derive(Debug, Serialize)]
struct Run {
    round: usize,
    arm: Arm,
    burst: u64,
    /// From the first request to the last answer.
    answered_per_second: f64,
    /// Orders in the database, less those that were answered.
    orders_more: i64,
    /// Of each burst.
    loads: Vec<Report>,
}

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    runs: Vec<Run>,
}

/// Sends bursts to each arm in turn and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let rounds = if quick() { 1 } else { 6 };
    let farm = Farm::start()?;
    let mut runs = Vec::new();
    for round in 0..rounds {
        for (burst, count) in BURSTS {
            let mut arms = ARMS;
            fastrand::Rng::with_seed(round as u64 * 1_000 + burst).shuffle(&mut arms);
            for arm in arms {
                runs.push(farm.run(round, arm, burst, count)?);
            }
        }
    }
    let mut figures = Figures::new("testbed");
    BURSTS.iter().for_each(|(burst, _)| add(&runs, *burst, &mut figures));
    let loads = runs.iter().flat_map(|run| &run.loads);
    let intended: u64 = loads.clone().map(|load| load.all.counts.intended).sum();
    let lost: Vec<_> = loads.map(|load| load.all.counts.lost() as f64).collect();
    let none = Some(Target::AtMost(0.0));
    figures.value(format!("lost of {intended} POSTs"), "", lost.iter().sum(), &lost, None, none);
    let more: Vec<_> = runs.iter().map(|run| run.orders_more.abs() as f64).collect();
    let name = "orders answered and not stored once";
    figures.value(name, "", more.iter().sum(), &more, None, none);
    figures.finish(out, &Raw { machine: Machine::here(), runs })
}

fn add(runs: &[Run], burst: u64, figures: &mut Figures) {
    let of = |arm: Arm| {
        let all = runs.iter().filter(|run| run.arm == arm && run.burst == burst);
        all.map(|run| run.answered_per_second).collect::<Vec<_>>()
    };
    let name = |what: &str| format!("bursts of {burst}: {what}");
    figures.median(name("8 nodes, 4 each"), "/s", &of(Arm::RigidSmall), None, None);
    figures.median(name("14 nodes, 7 each"), "/s", &of(Arm::RigidLarge), None, None);
    figures.median(name("8 nodes, shared"), "/s", &of(Arm::Shared), None, None);
    let against = |arm: Arm| {
        let pairs = of(Arm::Shared).into_iter().zip(of(arm));
        pairs.map(|(shared, other)| shared / other).collect::<Vec<_>>()
    };
    figures.median(name("shared against 4 each"), "x", &against(Arm::RigidSmall), None, None);
    let target = Some(Target::AtLeast(0.95));
    figures.median(name("8 shared against 14"), "x", &against(Arm::RigidLarge), None, target);
}

struct Farm {
    lab: Lab,
    web: Web,
    client: Client,
    _lab: BenchLab,
}

impl Farm {
    fn start() -> Result<Self> {
        let spec = Spec::star("bench-web".parse()?, NODES, BitsPerSecond::from_mbit(100), CPU)?;
        let names =
            [SHOP, BLOG, NOBODY].map(str::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
        let owner = BenchLab::with_web(&spec, &names)?;
        let lab = owner.lab()?;
        let (web, client) =
            (Web::of(&lab, &names), Client::new(&brokers::socket(lab.directory()))?);
        Ok(Self { lab, web, client, _lab: owner })
    }

    fn run(&self, round: usize, arm: Arm, burst: u64, count: usize) -> Result<Run> {
        self.set(arm)?;
        let before = self.orders()?;
        let sites = self.web.sites[..2].iter().cycle().take(count);
        let loads = sites.map(|site| self.burst(site, burst, round)).collect::<Result<Vec<_>>>()?;
        let answered: u64 = loads.iter().map(|load| load.all.counts.answered).sum();
        let seconds: f64 = loads.iter().map(|load| load.length_nanos.as_secs_f64()).sum();
        let orders_more = (self.orders()? - before) as i64 - answered as i64;
        let answered_per_second = answered as f64 / seconds;
        eprintln!("round {round}: {arm:?}, bursts of {burst}: {answered_per_second:.0}/s");
        Ok(Run { round, arm, burst, answered_per_second, orders_more, loads })
    }

    /// Returns when all is answered.
    fn burst(&self, site: &SitePlaces, burst: u64, round: usize) -> Result<Report> {
        let plan = Plan {
            targets: vec![format!("http://{}/page", site.haproxy).parse()?],
            arrivals: Arrivals::bursts(PER_SECOND, burst)?,
            length: Nanos::from_millis(burst * 1_000 / PER_SECOND as u64),
            method: Method::Post(100),
            files: None,
            connections: 512,
            timeout: Nanos::from_secs(120),
            seed: round as u64,
        };
        Ok(self.lab.network(FRONT_END)?.run(move || send(&plan, &|| false))??)
    }

    /// Only the sites of this arm, with what they are guaranteed.
    fn set(&self, arm: Arm) -> Result<()> {
        for site in self.client.sites()?.sites {
            self.client.remove_site(&site.spec.name)?;
        }
        self.until("no sites", || Ok(self.client.sites()?.sites.is_empty()))?;
        let fixed = |hard| Guarantee { hard, soft: hard, max: hard };
        let wanted = match arm {
            Arm::RigidSmall => vec![(NOBODY, fixed(6)), (SHOP, fixed(4)), (BLOG, fixed(4))],
            Arm::RigidLarge => vec![(SHOP, fixed(7)), (BLOG, fixed(7))],
            Arm::Shared => {
                let shared = Guarantee { hard: 1, soft: 7, max: 7 };
                vec![(NOBODY, fixed(6)), (SHOP, shared), (BLOG, shared)]
            }
        };
        for (name, guarantee) in &wanted {
            self.client.add_site(&self.spec(name, *guarantee)?)?;
        }
        self.until("guaranteed nodes", || {
            let sites = self.client.sites()?.sites;
            let is_met = |(name, guarantee): &(&str, Guarantee)| {
                let mut all = sites.iter();
                let site = all.find(|site| site.spec.name.as_str() == *name);
                site.is_some_and(|site| site.nodes.len() >= guarantee.hard as usize)
            };
            Ok(wanted.iter().all(is_met))
        })
    }

    fn spec(&self, name: &str, guarantee: Guarantee) -> Result<SiteSpec> {
        let name: Name = name.parse()?;
        let place = self.web.sites.iter().find(|site| site.name == name).context("no such site")?;
        let [haproxy, ..] = self.web.balancers(place);
        Ok(SiteSpec {
            name,
            guarantee,
            priority: 1,
            cpu_ppm: None,
            services: web::services()?,
            port: HTTP_PORT,
            drain_most_nanos: None,
            balancers: vec![haproxy],
        })
    }

    /// How many are in the database.
    fn orders(&self) -> Result<u64> {
        let page = self.web.sites[0].haproxy;
        let ask = move || -> std::io::Result<String> { get(page) };
        let answer = self.lab.network(FRONT_END)?.run(ask)??;
        let body = answer.rsplit("\r\n\r\n").next().unwrap_or_default();
        body.trim().parse().with_context(|| format!("not a count of orders: {answer:?}"))
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !holds()? {
            ensure!(Instant::now() < deadline, "waited for: {what}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn get(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /page?orders HTTP/1.0\r\n\r\n")?;
    read_to_string(stream)
}
