//! Reserved TCP flows on a real link: against greedy ones, against their own number, and what they
//! leave to others.

use crate::figures::{Figures, Target, quantile};
use crate::lab::BenchLab;
use anyhow::Result;
use keeptime::cluster::Cluster;
use keeptime::hold::Hold;
use keeptime::load::{Pair, Transfer};
use keeptime::traffic::{Received, Window};
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::reservation::{Ask, NodeChoice, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// TCP payload of a full Ethernet frame: 1448 of 1514 bytes.
const PAYLOAD_SHARE: f64 = 1448.0 / 1514.0;
const GREEDY: usize = 12;
const ROUNDS: usize = 5;
const LINK: BitsPerSecond = BitsPerSecond::from_mbit(200);
/// A flow that is alone.
const ALONE: Window = window(1, 0);
/// Greedy ones, and a flow beside them: each is counted while the other is there, if they start within
/// a second of one another.
const GREEDY_ONES: Window = window(2, 2);
const BESIDE: Window = window(3, 0);
const fn window(warmup: u64, cooldown: u64) -> Window {
    let (warmup, cooldown) = (Duration::from_secs(warmup), Duration::from_secs(cooldown));
    Window { warmup, length: Duration::from_secs(3), cooldown }
}

/// Longer than one measurement takes.
const LIMIT: Nanos = Nanos::from_secs(60);
/// Where what is reserved goes.
const PAIR: Pair = Pair { from: NodeIndex(0), to: NodeIndex(1) };
/// Another sender to the same receiver: the switch's port to it is where they meet.
const ELSEWHERE: Pair = Pair { from: NodeIndex(2), to: NodeIndex(1) };

/// What is reserved, and where greedy flows go.
const CONTENTIONS: [(&str, u64, Pair); 3] = [
    ("80 of 200 Mbit/s", 80, PAIR),
    ("150 of 200 Mbit/s", 150, PAIR),
    ("80 of 200 Mbit/s, the others from elsewhere", 80, ELSEWHERE),
];

/// Everything that was measured, one entry a round, in Mbit/s of payload.
#[derive(Debug, Default, Serialize)]
struct Raw {
    contentions: Vec<Contention>,
    greedy_beside_idle: Vec<f64>,
    by_rate_mbit: BTreeMap<u64, Vec<f64>>,
}

/// What a flow got alone, with its reservation and without, and what it left.
#[derive(Debug, Serialize)]
struct Contention {
    name: &'static str,
    mbit: u64,
    #[serde(skip)]
    greedy: Pair,
    alone: Vec<f64>,
    reserved: Vec<f64>,
    unreserved: Vec<f64>,
    greedy_beside_reserved: Vec<f64>,
}

/// Measures in interleaved rounds and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let mut raw = Raw { contentions: CONTENTIONS.map(Contention::new).into(), ..Raw::default() };
    let lab = BenchLab::star("bench-enforce", 3, LINK, CpuPpm::from_percent(55))?;
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}: against {GREEDY} greedy flows", round + 1);
        for contention in &mut raw.contentions {
            contention.round(lab.cluster())?;
        }
        raw.greedy_beside_idle.push(beside_idle(lab.cluster())?);
    }
    drop(lab);
    let fast = BitsPerSecond::from_mbit(500);
    let lab = BenchLab::star("bench-enforce", 2, fast, CpuPpm::from_percent(80))?;
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}: rates", round + 1);
        for mbit in [10, 50, 100, 200] {
            let rate = Some(BitsPerSecond::from_mbit(mbit));
            let got = reserved_flow(lab.cluster(), rate, None)?.0;
            raw.by_rate_mbit.entry(mbit).or_default().push(got);
        }
    }
    drop(lab);
    figures(&raw).finish(out, &raw)
}

impl Contention {
    fn new((name, mbit, greedy): (&'static str, u64, Pair)) -> Self {
        let (alone, reserved, unreserved, greedy_beside_reserved) = Default::default();
        Self { name, mbit, greedy, alone, reserved, unreserved, greedy_beside_reserved }
    }

    fn round(&mut self, cluster: &Cluster) -> Result<()> {
        let rate = Some(BitsPerSecond::from_mbit(self.mbit));
        self.alone.push(reserved_flow(cluster, rate, None)?.0);
        let (reserved, greedy) = reserved_flow(cluster, rate, Some(self.greedy))?;
        self.reserved.push(reserved);
        self.greedy_beside_reserved.push(greedy);
        self.unreserved.push(reserved_flow(cluster, None, Some(self.greedy))?.0);
        Ok(())
    }
}

/// What greedy flows get of a link of which a part is reserved and not used.
fn beside_idle(cluster: &Cluster) -> Result<f64> {
    let _hold = hold(cluster, Some(BitsPerSecond::from_mbit(CONTENTIONS[0].1)))?;
    Ok(sum(&Transfer::start(cluster, None, None, PAIR, GREEDY, GREEDY_ONES)?.finish()?))
}

/// One flow with this reservation (or none), alone or beside greedy ones: its throughput and theirs.
fn reserved_flow(
    cluster: &Cluster,
    rate: Option<BitsPerSecond>,
    greedy: Option<Pair>,
) -> Result<(f64, f64)> {
    let hold = hold(cluster, rate)?;
    let job = hold.job();
    let start = |pair| Transfer::start(cluster, None, None, pair, GREEDY, GREEDY_ONES);
    let others = greedy.map(start).transpose()?;
    let window = if greedy.is_some() { BESIDE } else { ALONE };
    let flow = Transfer::start(cluster, Some(&job), Some(&job), PAIR, 1, window)?.finish()?;
    let others = others.map(Transfer::finish).transpose()?.unwrap_or_default();
    Ok((sum(&flow), sum(&others)))
}

/// CPU on both ends, and the flow from the first to the second.
fn hold(cluster: &Cluster, rate: Option<BitsPerSecond>) -> Result<Hold> {
    let name = |node| cluster.topology().node(node).name.clone();
    let one_way = Pattern::Matrix([RankFlow { from: 0, to: 1 }].into());
    let resources = Resources {
        nodes: NodeChoice::Named(vec![name(PAIR.from), name(PAIR.to)]),
        cpu_ppm: CpuPpm::from_percent(40),
        pattern: rate.map(|_| one_way),
        bits_per_second: rate.unwrap_or_default(),
        ..Resources::nothing()
    };
    Hold::take(cluster, Ask::Resources(resources), LIMIT)
}

fn sum(received: &[Received]) -> f64 {
    received.iter().map(Received::mbit_per_second).sum()
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new("enforce");
    let ratios = |part: &[f64], whole: &[f64]| -> Vec<f64> {
        part.iter().zip(whole).map(|(p, w)| 100.0 * p / w).collect()
    };
    for contention in &raw.contentions {
        let Contention { name, alone, reserved, unreserved, .. } = contention;
        figures.median(
            format!("reserved flow ({name}) beside {GREEDY} greedy ones, of its throughput alone"),
            "%",
            &ratios(reserved, alone),
            Some(quantile(&ratios(unreserved, alone), 0.5)),
            Some(Target::AtLeast(97.0)),
        );
    }
    for (mbit, got) in &raw.by_rate_mbit {
        let expected = *mbit as f64 * PAYLOAD_SHARE;
        let errors: Vec<_> = got.iter().map(|g| 100.0 * (g / expected - 1.0).abs()).collect();
        let name = format!("rate error at {mbit} Mbit/s after the header factor");
        figures.median(name, "%", &errors, None, Some(Target::AtMost(1.0)));
    }
    let of_leftover = |greedy: &[f64], used_mbit: u64| -> Vec<f64> {
        let left = (LINK.as_mbit_f64() - used_mbit as f64) * PAYLOAD_SHARE;
        greedy.iter().map(|g| 100.0 * g / left).collect()
    };
    let mut leftover = |name: String, greedy: &[f64], used_mbit: u64| {
        let shares = of_leftover(greedy, used_mbit);
        figures.median(name, "%", &shares, None, Some(Target::AtLeast(95.0)));
    };
    for Contention { name, mbit, greedy_beside_reserved, .. } in &raw.contentions {
        let name = format!("leftover beside a busy reservation ({name}) used by best-effort");
        leftover(name, greedy_beside_reserved, *mbit);
    }
    let name = "whole link beside an idle reservation used by best-effort";
    leftover(name.into(), &raw.greedy_beside_idle, 0);
    figures
}
