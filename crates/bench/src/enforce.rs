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
const RESERVED: BitsPerSecond = BitsPerSecond::from_mbit(80);
const WINDOW: Window = Window { warmup: Duration::from_secs(1), length: Duration::from_secs(3) };
/// Longer than one measurement takes.
const LIMIT: Nanos = Nanos::from_secs(60);
const PAIR: Pair = Pair { from: NodeIndex(0), to: NodeIndex(1) };

/// Everything that was measured, one entry a round, in Mbit/s of payload.
#[derive(Debug, Default, Serialize)]
struct Raw {
    alone: Vec<f64>,
    reserved: Vec<f64>,
    unreserved: Vec<f64>,
    greedy_beside_reserved: Vec<f64>,
    greedy_beside_idle: Vec<f64>,
    by_rate_mbit: BTreeMap<u64, Vec<f64>>,
}

/// Measures in interleaved rounds and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let mut raw = Raw::default();
    let link = BitsPerSecond::from_mbit(200);
    let lab = BenchLab::star("bench-enforce", 2, link, CpuPpm::from_percent(80))?;
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}: against {GREEDY} greedy flows", round + 1);
        contention_round(lab.cluster(), &mut raw)?;
    }
    drop(lab);
    let fast = BitsPerSecond::from_mbit(500);
    let lab = BenchLab::star("bench-enforce", 2, fast, CpuPpm::from_percent(80))?;
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}: rates", round + 1);
        for mbit in [10, 50, 100, 200] {
            let rate = Some(BitsPerSecond::from_mbit(mbit));
            let got = reserved_flow(lab.cluster(), rate, 0)?.0;
            raw.by_rate_mbit.entry(mbit).or_default().push(got);
        }
    }
    drop(lab);
    figures(&raw, link).finish(out, &raw)
}

fn contention_round(cluster: &Cluster, raw: &mut Raw) -> Result<()> {
    raw.alone.push(reserved_flow(cluster, Some(RESERVED), 0)?.0);
    let (reserved, greedy) = reserved_flow(cluster, Some(RESERVED), GREEDY)?;
    raw.reserved.push(reserved);
    raw.greedy_beside_reserved.push(greedy);
    raw.unreserved.push(reserved_flow(cluster, None, GREEDY)?.0);
    let hold = hold(cluster, Some(RESERVED))?;
    let greedy = Transfer::start(cluster, None, None, PAIR, GREEDY, WINDOW)?.finish()?;
    raw.greedy_beside_idle.push(sum(&greedy));
    drop(hold);
    Ok(())
}

/// One flow with this reservation (or none) beside so many greedy ones: its throughput and theirs.
fn reserved_flow(
    cluster: &Cluster,
    rate: Option<BitsPerSecond>,
    greedy: usize,
) -> Result<(f64, f64)> {
    let hold = hold(cluster, rate)?;
    let job = hold.job();
    let others = match greedy {
        0 => None,
        count => Some(Transfer::start(cluster, None, None, PAIR, count, WINDOW)?),
    };
    let flow = Transfer::start(cluster, Some(&job), Some(&job), PAIR, 1, WINDOW)?.finish()?;
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

fn figures(raw: &Raw, link: BitsPerSecond) -> Figures {
    let mut figures = Figures::new("enforce");
    let ratios = |part: &[f64], whole: &[f64]| -> Vec<f64> {
        part.iter().zip(whole).map(|(p, w)| 100.0 * p / w).collect()
    };
    let unprotected = quantile(&ratios(&raw.unreserved, &raw.alone), 0.5);
    figures.median(
        format!("reserved flow beside {GREEDY} greedy ones, of its throughput alone"),
        "%",
        &ratios(&raw.reserved, &raw.alone),
        Some(unprotected),
        Some(Target::AtLeast(97.0)),
    );
    for (mbit, got) in &raw.by_rate_mbit {
        let expected = *mbit as f64 * PAYLOAD_SHARE;
        let errors: Vec<_> = got.iter().map(|g| 100.0 * (g / expected - 1.0).abs()).collect();
        let name = format!("rate error at {mbit} Mbit/s after the header factor");
        figures.median(name, "%", &errors, None, Some(Target::AtMost(1.0)));
    }
    let of_leftover = |greedy: &[f64], used: f64| -> Vec<f64> {
        let left = (link.as_mbit_f64() - used) * PAYLOAD_SHARE;
        greedy.iter().map(|g| 100.0 * g / left).collect()
    };
    figures.median(
        "leftover beside a busy reservation used by best-effort",
        "%",
        &of_leftover(&raw.greedy_beside_reserved, RESERVED.as_mbit_f64()),
        None,
        Some(Target::AtLeast(95.0)),
    );
    figures.median(
        "whole link beside an idle reservation used by best-effort",
        "%",
        &of_leftover(&raw.greedy_beside_idle, 0.0),
        None,
        Some(Target::AtLeast(95.0)),
    );
    figures
}
