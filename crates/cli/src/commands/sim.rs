//! `keeptime sim`: what a cluster would do that is not there.

use super::{Ending, print_json};
use crate::arguments::{Generator, SimArguments, SimCommand};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use keeptime_model::Invalid;
use keeptime_whatif::simulate::{WhatIf, simulate};
use keeptime_whatif::summary::{Quantiles, Summary};
use keeptime_whatif::trace::{Log, chains, lublin, swf};
use std::fs;

/// Carries out a command about simulations.
pub fn run(command: &SimCommand) -> Result<Ending> {
    let SimCommand::Run(arguments) = command;
    let Log { jobs, .. } = log(arguments)?;
    let mut summaries = Vec::new();
    for policy in arguments.policy.iter().copied() {
        let SimArguments { topology: shape, communication, .. } = *arguments;
        let bar = progress_bar(jobs.len()).with_message(policy.to_string());
        let mut progress = |over: usize| bar.set_position(over as u64);
        let outcome = simulate(&WhatIf { shape, policy, communication }, &jobs, &mut progress)?;
        bar.finish_and_clear();
        summaries.push(outcome.summary(&jobs, shape.nodes));
    }
    if arguments.json {
        print_json(&summaries)?;
    } else {
        print!("{}", table(&summaries));
    }
    Ok(Ending::Done)
}

fn log(arguments: &SimArguments) -> Result<Log> {
    let SimArguments { topology, jobs, load, interval, seed, .. } = *arguments;
    if let Some(path) = &arguments.trace {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read {} (gunzip it first?)", path.display()))?;
        let log = swf::read(&text, jobs, seed);
        return Ok(log.map_err(|invalid| invalid.within(&path.display().to_string()))?);
    }
    if !(LOAD_LEAST..=LOAD_MOST).contains(&load) {
        let expected = format!("{LOAD_LEAST} to {LOAD_MOST}");
        return Err(Invalid::new("load", load, expected).into());
    }
    Ok(match arguments.generate {
        Some(Generator::Chains) => chains::log(topology.nodes, jobs, interval, seed),
        Some(Generator::Model) | None => lublin::log(topology.nodes, jobs, load, seed),
    })
}

fn progress_bar(jobs: usize) -> ProgressBar {
    let bar = ProgressBar::new(jobs as u64);
    let template = "{elapsed_precise} {wide_bar} {pos} of {len} jobs  {msg}";
    // The template is a constant; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A column for each policy.
fn table(summaries: &[Summary]) -> String {
    let row = |name: &str, cell: &dyn Fn(&Summary) -> String| {
        let cells: String = summaries.iter().map(|s| format!(" {:>30}", cell(s))).collect();
        format!("{name:<29}{cells}\n")
    };
    [
        row("", &|s| s.policy.to_string()),
        row("jobs", &|s| s.jobs.to_string()),
        row("admitted", &|s| percent(s.admission_percent)),
        row("in time", &|s| percent(s.in_time_percent)),
        row("urgent jobs in time", &|s| percent(s.urgent_in_time_percent)),
        row("promised", &|s| s.promised.to_string()),
        row("promises broken", &|s| s.broken.to_string()),
        row("run and late", &|s| s.admitted_late.to_string()),
        row("utilisation", &|s| percent(s.utilisation_percent)),
        row("wait, s (median / p95 / most)", &|s| spread(s.wait_seconds)),
        row("slowdown", &|s| spread(s.slowdown)),
        row("run time / alone", &|s| spread(s.stretch)),
    ]
    .concat()
}

fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

fn spread(Quantiles { median, p95, most }: Quantiles) -> String {
    format!("{median:.2} / {p95:.2} / {most:.2}")
}

const LOAD_LEAST: f64 = 0.01;
/// More than twice of what there is only makes queues longer.
const LOAD_MOST: f64 = 2.0;
