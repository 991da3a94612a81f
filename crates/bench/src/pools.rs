//! Decisions about nodes of web sites: how long one takes, and what policies come to in virtual time,
//! where requests, drains and moves cost nothing but their time. The same with real balancers is
//! another matter.

mod autoscalers;
pub mod cases;
mod decision;
pub mod world;
mod yarn;

use crate::figures::{Figures, Target};
use crate::quick;
use anyhow::Result;
use cases::{BurstRun, Case, CaseRun, POLICIES, SteadyRun};
use keeptime::machine::Machine;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

pub const BURSTS: [u64; 5] = [1_000, 2_000, 4_000, 8_000, 16_000];
pub const BURST_SETTINGS: [&str; 6] =
    ["rigid", "rigid-large", "reconf", "kubernetes", "knative", "keeptime"];

/// For each run of a flood.
const STEADY_RUNS: u64 = 10;

/// Everything that was measured.
#[derive(Serialize)]
struct Raw {
    machine: Machine,
    decisions: Vec<decision::Raw>,
    cases: Vec<CaseRun>,
    bursts: Vec<BurstRun>,
    steady: Vec<SteadyRun>,
}

/// Times decisions, runs the simulations and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let (rounds, seeds) = if quick() { (20, 2) } else { (500, 6) };
    let mut figures = Figures::new("pools");
    let decisions = decision::measure(rounds, &mut figures)?;
    let cases = run_cases(seeds);
    let bursts = run_bursts(seeds);
    let steady = run_steady(seeds);
    case_figures(&cases, &mut figures);
    burst_figures(&bursts, &mut figures);
    steady_figures(&steady, &mut figures);
    figures.finish(out, &Raw { machine: Machine::here(), decisions, cases, bursts, steady })
}

fn run_cases(seeds: u64) -> Vec<CaseRun> {
    let mut runs = Vec::new();
    for sites in [2, 3] {
        for case in Case::ALL {
            for policy in POLICIES {
                runs.extend((0..seeds).map(|seed| cases::case(policy, case, sites, 30, seed)));
            }
        }
    }
    runs
}

fn run_bursts(seeds: u64) -> Vec<BurstRun> {
    let mut runs = Vec::new();
    for burst in BURSTS {
        for setting in BURST_SETTINGS {
            runs.extend((0..seeds).map(|seed| cases::bursts(setting, burst, 128_000, seed)));
        }
    }
    runs
}

fn run_steady(seeds: u64) -> Vec<SteadyRun> {
    let settings = ["reconf", "keeptime"].map(|policy| [(policy, true), (policy, false)]);
    // Moves are few: as many runs as tell a share of them.
    let seeds = seeds * STEADY_RUNS;
    let run = |(policy, stays)| (0..seeds).map(move |seed| cases::steady(policy, stays, 620, seed));
    settings.into_iter().flatten().flat_map(run).collect()
}

fn case_figures(runs: &[CaseRun], figures: &mut Figures) {
    for sites in [2, 3] {
        for case in Case::ALL {
            let of = |policy: &str, value: fn(&CaseRun) -> f64| -> Vec<f64> {
                let this = |r: &&CaseRun| r.policy == policy && r.case == case && r.sites == sites;
                runs.iter().filter(this).map(value).collect()
            };
            for policy in POLICIES {
                let name = |what| format!("{sites} sites, case {case:?}, {policy}: {what}");
                let target = (policy == "keeptime").then_some(Target::AtLeast(100.0));
                figures.median(name("high"), "1/s", &of(policy, |r| r.high), None, None);
                figures.median(name("low"), "1/s", &of(policy, |r| r.low), None, None);
                figures.median(name("hard met"), "%", &of(policy, |r| r.hard_met), None, target);
            }
            let (ours, basic) = (of("keeptime", |r| r.high), of("reconf", |r| r.high));
            let ratios: Vec<_> = ours.iter().zip(&basic).map(|(a, b)| a / b).collect();
            let target = (case == Case::One && sites == 2).then_some(Target::AtLeast(5.0));
            let name = format!("{sites} sites, case {case:?}: high, keeptime / reconf");
            figures.median(name, "x", &ratios, None, target);
        }
    }
    let of_ours = |r: &&CaseRun| r.policy == "keeptime" && r.case == Case::One;
    let reactions: Vec<_> = runs.iter().filter(of_ours).filter_map(|r| r.reaction).collect();
    let target = Some(Target::AtMost(200.0));
    figures.median("case One: flood to first node more, keeptime", "ms", &reactions, None, target);
}

fn burst_figures(runs: &[BurstRun], figures: &mut Figures) {
    for burst in BURSTS {
        let of = |setting: &str| -> Vec<f64> {
            let this = |r: &&BurstRun| r.setting == setting && r.burst == burst;
            runs.iter().filter(this).map(|r| r.throughput).collect()
        };
        for setting in BURST_SETTINGS {
            let name = format!("bursts of {burst}, {setting}");
            figures.median(name, "1/s", &of(setting), None, None);
        }
        let (ours, large) = (of("keeptime"), of("rigid-large"));
        let ratios: Vec<_> = ours.iter().zip(&large).map(|(a, b)| a / b).collect();
        let target = Some(Target::AtLeast(0.95));
        let name = format!("bursts of {burst}: keeptime on 8 / rigid on 14");
        figures.median(name, "x", &ratios, None, target);
    }
}

fn steady_figures(runs: &[SteadyRun], figures: &mut Figures) {
    for (stays, shares) in [(true, "shares that stay"), (false, "shares that change every 20 s")] {
        for policy in ["reconf", "keeptime"] {
            let of: Vec<_> =
                runs.iter().filter(|r| r.policy == policy && r.stays == stays).collect();
            let moves: usize = of.iter().map(|run| run.moves).sum();
            let mut add = |what: &str, count: fn(&SteadyRun) -> usize, target| {
                let all: usize = of.iter().map(|run| count(run)).sum();
                let samples: Vec<_> =
                    of.iter().map(|r| 100.0 * count(r) as f64 / r.moves.max(1) as f64).collect();
                let share = 100.0 * all as f64 / moves.max(1) as f64;
                let name = format!("80 % load, {shares}, {policy}: {what}");
                figures.value(name, "%", share, &samples, None, target);
                println!(
                    "80 % load, {shares}, {policy}: {what}: {all} of {moves} in {} runs of 10 min",
                    of.len()
                );
            };
            // Where the load has changed, a move back may be the right thing to do.
            let target = (policy == "keeptime").then_some(Target::AtMost(10.0));
            let what = "moves undone within 60 s";
            add(what, |run| run.reversals, target.filter(|_| stays));
            if !stays {
                let what = "moves undone within 60 s, of the same shares";
                add(what, |run| run.unfounded, target);
            }
            let waiting: Vec<_> = of.iter().map(|run| run.waiting).collect();
            let mean = waiting.iter().sum::<f64>() / waiting.len().max(1) as f64;
            let name = format!("80 % load, {shares}, {policy}: requests that wait, on average");
            figures.value(name, "", mean, &waiting, None, None);
        }
    }
}

/// Seconds.
fn timed(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}
