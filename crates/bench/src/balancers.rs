//! Requests that are lost while nodes move behind real balancers, and how long a move takes.
//!
//! Two sites share three nodes that answer after 5 ms; one of them moves to and fro while POSTs arrive
//! at random. A POST counts as lost unless it was answered with a status below 400; nobody sends it
//! again.

// The balancers of the tests, started the same way.
#[path = "../../balancers/tests/world/mod.rs"]
pub mod world;

use crate::figures::{Figures, Target, quantile};
use crate::quick;
use anyhow::{Result, anyhow};
use keeptime::machine::Machine;
use keeptime_balancers::front::Front;
use keeptime_load::report::Report;
use keeptime_load::run::{Plan, run as send};
use keeptime_load::schedule::Arrivals;
use keeptime_load::target::Method;
use keeptime_model::units::Nanos;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use world::{Node, share_out, three_nodes, transfer};

const ANSWER_AFTER: Duration = Duration::from_millis(5);
const POSTS_A_SECOND: f64 = 200.0;
const SITES: [&str; 2] = ["shop", "blog"];
/// No run takes so long; the load ends with the last move.
const LONGEST: Nanos = Nanos::from_secs(1_800);

/// One balancer's run.
#[derive(Debug, Serialize)]
struct Run {
    balancer: &'static str,
    /// Of each move, in milliseconds.
    moves: Vec<f64>,
    load: Report,
}

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    runs: Vec<Run>,
}

/// Moves nodes behind each balancer and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let count = |count: usize| if quick() { 10 } else { count };
    let nodes = three_nodes(ANSWER_AFTER);
    let all: Vec<&Node> = nodes.iter().collect();
    let mut runs = Vec::new();
    {
        let haproxy = world::haproxy(&SITES, &all);
        let fronts = SITES.map(|site| haproxy.front(site)).into();
        runs.push(one("HAProxy", &nodes, fronts, &haproxy.sites, count(1_000))?);
    }
    for (name, keepalive) in [("nginx, no keep-alive", "0"), ("nginx, keep-alive", "65")] {
        let nginx = world::nginx(&SITES, &all, keepalive);
        runs.push(one(name, &nodes, nginx.fronts(), &nginx.sites, count(100))?);
    }
    {
        let apache = world::apache(&SITES, &all);
        runs.push(one("Apache", &nodes, apache.fronts(), &apache.sites, count(200))?);
    }
    let mut figures = Figures::new("balancers");
    runs.iter().for_each(|run| add(run, &mut figures));
    figures.finish(out, &Raw { machine: Machine::here(), runs })
}

fn one(
    balancer: &'static str,
    nodes: &[Node],
    mut fronts: Vec<Front>,
    sites: &[SocketAddr],
    count: usize,
) -> Result<Run> {
    share_out(nodes, &mut fronts);
    let plan = Plan {
        targets: sites
            .iter()
            .map(|site| format!("http://{site}/").parse())
            .collect::<Result<_, _>>()?,
        arrivals: Arrivals::random(POSTS_A_SECOND)?,
        length: LONGEST,
        method: Method::Post(200),
        files: None,
        connections: 64,
        timeout: Nanos::from_secs(20),
        seed: 7,
    };
    let ended = AtomicBool::new(false);
    let [shop, blog] = fronts.as_mut_slice() else { return Err(anyhow!("two sites")) };
    thread::scope(|scope| {
        let load = scope.spawn(|| send(&plan, &|| ended.load(Ordering::SeqCst)));
        let mut moves = Vec::new();
        for turn in 0..count {
            let (from, to) =
                if turn % 2 == 0 { (&mut *shop, &mut *blog) } else { (&mut *blog, &mut *shop) };
            let start = Instant::now();
            transfer(&nodes[1], from, to);
            moves.push(start.elapsed().as_secs_f64() * 1e3);
        }
        ended.store(true, Ordering::SeqCst);
        let load = load.join().map_err(|_| anyhow!("the load panicked"))??;
        Ok(Run { balancer, moves, load })
    })
}

fn add(run: &Run, figures: &mut Figures) {
    let Run { balancer, moves, load } = run;
    let counts = &load.all.counts;
    let lost = (counts.intended - counts.answered) as f64;
    let name = format!("{balancer}: lost of {} POSTs in {} moves", counts.intended, moves.len());
    let target = (*balancer == "HAProxy").then_some(Target::AtMost(0.0));
    figures.value(name, "", lost, &[lost], None, target);
    figures.median(format!("{balancer}: a move, drain included"), "ms", moves, None, None);
    let name = format!("{balancer}: a move, drain included, p99");
    figures.value(name, "ms", quantile(moves, 0.99), moves, None, None);
}
