//! `keeptime launch`: what this program starts for itself, here and on other nodes. Hidden: people have
//! `keeptime run`.

use super::Ending;
use crate::arguments::LaunchCommand;
use crate::rate::controller;
use crate::reach::Plan;
use anyhow::{Context, Result};
use keeptime_launch::remote::Wanted;
use keeptime_linux::netns::hear_of_parents_end;
use keeptime_linux::user_level::guard;
use nix::sys::signal::{SigSet, Signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the command: returns only if that fails. A controller is one until its run has ended, and a guard until its
/// agent has.
pub fn run(command: LaunchCommand) -> Result<Ending> {
    let (line, signal, parent) = match command {
        LaunchCommand::Controller => {
            controller::serve(io::stdin().lock(), io::stdout().lock())?;
            return Ok(Ending::Done);
        }
        LaunchCommand::Guard { group } => {
            guard::serve(&group, io::stdin().lock(), io::stdout().lock())?;
            return Ok(Ending::Done);
        }
        LaunchCommand::Near { parent, command } => (command, Signal::SIGKILL, parent),
        LaunchCommand::Far { parent, plan, words } => {
            let plan: Plan = serde_json::from_str(&plan).context("this is no plan of `run`")?;
            // What is told to end ends what it has started on the node, also where it is no ssh.
            (plan.line(&Wanted::of(&words)?)?, Signal::SIGTERM, parent)
        }
    };
    hear_of_parents_end(signal, parent)?;
    // Who waits for signals has them blocked, and with it all that it starts: a launcher would not hear that it is to
    // end, and leave what it has to tidy up.
    SigSet::empty().thread_set_mask().context("cannot let signals in")?;
    let error = Command::new(&line[0]).args(&line[1..]).exec();
    Err(error).with_context(|| format!("cannot start {}", line[0]))
}
