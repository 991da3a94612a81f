//! `keeptime traffic`: the two ends of plain load.

use super::{Ending, print_json};
use crate::arguments::TrafficCommand;
use crate::traffic::{Window, blast, receive, send};
use anyhow::Result;
use keeptime_model::units::Nanos;
use std::time::Duration;

/// Receives or sends.
pub fn run(command: TrafficCommand) -> Result<Ending> {
    let duration = |span: Nanos| Duration::from_nanos(span.get());
    match command {
        TrafficCommand::Receive { port, connections, warmup, length, cooldown } => {
            let (warmup, length) = (duration(warmup), duration(length));
            let window = Window { warmup, length, cooldown: duration(cooldown) };
            print_json(&receive(port, connections, window)?)?;
        }
        TrafficCommand::Send { to, limit } => send(to, duration(limit))?,
        TrafficCommand::Blast { to, rate, limit } => blast(to, rate, duration(limit))?,
    }
    Ok(Ending::Done)
}
