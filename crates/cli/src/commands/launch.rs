//! `keeptime launch`: what this program starts for itself, here and on other nodes. Hidden: people have
//! `keeptime run`.

use super::Ending;
use crate::arguments::LaunchCommand;
use crate::reach::Plan;
use anyhow::{Context, Result};
use keeptime_launch::remote::Wanted;
use keeptime_linux::netns::die_with_parent;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the command. Returns only if that fails.
pub fn run(command: LaunchCommand) -> Result<Ending> {
    let line = match command {
        LaunchCommand::Near { command } => command,
        LaunchCommand::Far { plan, words } => {
            let plan: Plan = serde_json::from_str(&plan).context("this is no plan of `run`")?;
            plan.line(&Wanted::of(&words)?)?
        }
    };
    die_with_parent()?;
    let error = Command::new(&line[0]).args(&line[1..]).exec();
    Err(error).with_context(|| format!("cannot start {}", line[0]))
}
