//! Does the speed of a lab node depend on what the other nodes do?

use crate::figures::{Figures, Target};
use crate::lab::BenchLab;
use crate::quick;
use anyhow::{Context, Result};
use keeptime::cluster::own_path;
use keeptime::machine::Machine;
use keeptime_lab::Exec;
use keeptime_lab::isolation::{Isolation, Work, compute, measure};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

const NODES: u32 = 4;
const CPU_PERCENT: u32 = 40;

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    steps: u64,
    /// Seconds in turns: the first of `alone`, the first of `crowded`, the second of `alone`...
    measured: Isolation,
}

/// Measures in interleaved rounds and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let machine = Machine::here();
    let cpu = CpuPpm::from_percent(CPU_PERCENT);
    let bench = BenchLab::star("bench-isolation", NODES, BitsPerSecond::from_mbit(200), cpu)?;
    let lab = bench.lab()?;
    let node = lab.topology().nodes().first().context("a lab without nodes")?.name.to_string();
    let steps = steps_of_a_second();
    let work = Work { fixed: computation(steps)?, endless: computation(u64::MAX)? };
    let rounds = if quick() { 3 } else { 20 };
    eprintln!("{rounds} rounds of about 2 s: {node} alone, and beside {} busy nodes", NODES - 1);
    let measured = measure(&lab, &node, &work, rounds)?;
    let slowdown = 100.0 * measured.slowdown().context("nothing was measured")?;
    figures(&measured, slowdown).finish(out, &Raw { machine, steps, measured })
}

/// This program, computing. It is the same program for both, so that caches are used alike.
fn computation(steps: u64) -> Result<keeptime_lab::Words> {
    let own = own_path()?.display().to_string();
    Ok(Exec::new("", [own, "compute".into(), steps.to_string()]).words)
}

/// How many steps a node needs about a second for.
fn steps_of_a_second() -> u64 {
    const TRIED: u64 = 20_000_000;
    let start = Instant::now();
    compute(TRIED);
    let rate = TRIED as f64 / start.elapsed().as_secs_f64();
    (rate * f64::from(CPU_PERCENT) / 100.0) as u64
}

fn figures(measured: &Isolation, slowdown: f64) -> Figures {
    let mut figures = Figures::new("isolation");
    let pairs = measured.alone.iter().zip(&measured.crowded);
    let differences: Vec<_> = pairs.map(|(a, c)| 100.0 * (c / a - 1.0)).collect();
    figures.value(
        "node's compute time, others busy or idle: |difference|",
        "%",
        slowdown.abs(),
        &differences,
        None,
        Some(Target::AtMost(2.0)),
    );
    figures.median("node's compute time, others idle", "s", &measured.alone, None, None);
    figures.median("node's compute time, others busy", "s", &measured.crowded, None, None);
    figures
}
