//! `keeptime broker`: the daemon.

use super::Ending;
use crate::arguments::BrokerCommand;
use crate::interrupt;
use anyhow::{Context, Result};
use keeptime_broker::config::Config;
use keeptime_broker::server;
use std::fs;
use std::path::Path;

/// Runs a broker, or checks what it would run with.
pub fn run(command: BrokerCommand) -> Result<Ending> {
    let BrokerCommand::Run { config, check, print_config } = command;
    let parsed = read(&config)?;
    if print_config {
        print!("{}", parsed.to_toml());
    }
    if check {
        server::cluster(&parsed)?;
    }
    if !check && !print_config {
        server::run(&parsed, interrupt::stopped)?;
    }
    Ok(Ending::Done)
}

fn read(path: &Path) -> Result<Config> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::from_toml(&text).with_context(|| format!("in {}", path.display()))
}
