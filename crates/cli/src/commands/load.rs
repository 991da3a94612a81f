//! `keeptime load`: requests to web sites, and what came of them.

use super::{Ending, print_json};
use crate::arguments::LoadArguments;
use crate::{files, interrupt};
use anyhow::{Context, Result, ensure};
use keeptime_load::run::{Plan, RunError, run as send};
use keeptime_load::schedule::{Arrivals, parse_counts};
use keeptime_load::target::{Method, Zipf};
use keeptime_model::units::Nanos;
use std::fs;

const DURATION: Nanos = Nanos::from_secs(10);

/// Sends what was asked for and prints the report.
pub fn run(arguments: &LoadArguments) -> Result<Ending> {
    let arrivals = arrivals(arguments)?;
    let length = arguments.duration.or(arrivals.length()).unwrap_or(DURATION);
    let files = arguments.files.map(|files| Zipf::new(files, arguments.exponent)).transpose()?;
    let plan = Plan {
        targets: arguments.targets.clone(),
        arrivals,
        length,
        method: arguments.post.map_or(Method::Get, Method::Post),
        files,
        connections: arguments.connections,
        timeout: arguments.timeout,
        seed: arguments.seed,
    };
    let report = send(&plan, &interrupt::stopped).map_err(|error| match error {
        RunError::Invalid(invalid) => invalid.into(),
        other => anyhow::Error::from(other),
    })?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print!("{report}");
    }
    let counts = &report.all.counts;
    // Who has stopped it did not wait for one.
    ensure!(
        !counts.are_unanswered() || interrupt::stopped(),
        "none of {} requests was answered",
        counts.intended
    );
    Ok(Ending::Done)
}

fn arrivals(arguments: &LoadArguments) -> Result<Arrivals> {
    let Some(path) = &arguments.replay else {
        return Ok(match arguments.burst {
            Some(length) => Arrivals::bursts(arguments.rate, length)?,
            None => Arrivals::random(arguments.rate)?,
        });
    };
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read {} (gunzip it first?)", path.display()))?;
    let counts = parse_counts(&text).map_err(|error| files::placed(error, path))?;
    Ok(Arrivals::replay(counts, arguments.step, arguments.scale)?)
}
