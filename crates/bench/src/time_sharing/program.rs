//! A program that can be started: its full speed, and how it runs at one target after the other.

use super::watched::{self, Seen, Steered};
use super::{By, Run, Stage, THRESHOLD};
use anyhow::{Context, Result};
use keeptime::commands::Session;
use keeptime::commands::rate::FullSpeedFrom;
use keeptime::rate::steering::Wanted;
use keeptime_control::Policy;
use keeptime_model::units::Share;
use std::time::Instant;

/// A program, on so many nodes.
pub struct Program {
    pub session: Session,
    pub nodes: u32,
    /// What it is called on the page, and its files after.
    pub label: String,
}

impl Program {
    /// Measures full speed, which is kept for later: iterations a second, and the part of a node's processor.
    ///
    /// # Errors
    /// If it cannot be started, or does not tell enough.
    pub fn measured(&self) -> Result<(f64, f64)> {
        let wanted = wanted(100, THRESHOLD, By::Ours)?;
        let how = (wanted, FullSpeedFrom::Measured);
        let act = |run: &Steered<'_>| {
            run.ready()?;
            run.wait(1.0)
        };
        let trace = watched::steered(&self.session, self.nodes, how, Instant::now(), act)?;
        let of = |seen: &Seen| Some((seen.full_speed?, seen.share?));
        trace.seen.iter().find_map(of).context("full speed was not found")
    }

    /// Runs it at one target after the other, each for so many seconds, and then does `last`. Full speed is known.
    ///
    /// # Errors
    /// If it cannot be started, ends too early, or `last` fails.
    pub fn run(
        &self,
        figure: u32,
        by: By,
        threshold: f64,
        targets: &[(u32, f64)],
        last: impl FnOnce(&Steered<'_>) -> Result<()>,
    ) -> Result<Run> {
        let mut stages = Vec::new();
        let first = targets.first().context("no targets")?.0;
        let how = (wanted(first, threshold, by)?, FullSpeedFrom::Known);
        let trace = watched::steered(&self.session, self.nodes, how, Instant::now(), |run| {
            run.ready()?;
            for (target, seconds) in targets {
                if !stages.is_empty() {
                    run.set(percent(f64::from(*target))?)?;
                }
                stages.push(Stage::of(*target, run.span(*seconds)?));
            }
            last(run)
        })?;
        Ok(Run { figure, label: self.label.clone(), by, threshold, stages, trace })
    }
}

/// What a controller is told; both in percent of full speed.
///
/// # Errors
/// If one of them is no share.
pub fn wanted(target: u32, threshold: f64, by: By) -> Result<Wanted> {
    let policy = match by {
        By::Paper => Policy::paper(),
        _ => Policy::predictive(),
    };
    Ok(Wanted { target: percent(f64::from(target))?, threshold: percent(threshold)?, policy })
}

fn percent(value: f64) -> Result<Share> {
    Ok(Share::try_from((value * 1e4).round() as u32)?)
}
