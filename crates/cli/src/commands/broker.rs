//! `keeptime broker`: the daemon.

use super::{Ending, certificates, tokens};
use crate::arguments::BrokerCommand;
use crate::interrupt;
use anyhow::{Context, Result};
use keeptime_broker::config::Config;
use keeptime_broker::{server, tcp};
use std::fs;
use std::path::Path;

/// Runs a broker, checks what it would run with, or changes who is known to it.
pub fn run(command: BrokerCommand) -> Result<Ending> {
    match command {
        BrokerCommand::Run { config, check, print_config } => {
            let parsed = read(&config)?;
            if print_config {
                print!("{}", parsed.to_toml());
            }
            if check {
                server::cluster(&parsed)?;
                parsed.tcp.as_ref().map(tcp::Door::new).transpose()?;
            }
            if !check && !print_config {
                server::run(&parsed, interrupt::stopped)?;
            }
        }
        BrokerCommand::Token(command) => tokens::run(command)?,
        BrokerCommand::Certificates(arguments) => certificates::run(&arguments)?,
    }
    Ok(Ending::Done)
}

/// A broker's configuration.
///
/// # Errors
/// If it cannot be read, or is wrong.
pub fn read(path: &Path) -> Result<Config> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::from_toml(&text).with_context(|| format!("in {}", path.display()))
}
