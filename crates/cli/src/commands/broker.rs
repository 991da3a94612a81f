//! `keeptime broker`: the daemon.

use super::{Ending, certificates, tokens};
use crate::arguments::BrokerCommand;
use crate::interrupt;
use anyhow::{Context, Result};
use keeptime_broker::config::Config;
use keeptime_broker::{server, tcp};
use keeptime_ledger::sqlite::{Salvaged, salvage};
use std::fs;
use std::path::Path;

/// Runs a broker, checks what it would run with, copies its ledger, or changes who is known to it.
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
                server::run(&parsed, &interrupt::stopped)?;
            }
        }
        BrokerCommand::Salvage { damaged, into, json } => {
            let salvaged = salvage(&damaged, &into)?;
            if json {
                println!("{:#}", in_json(&salvaged));
            } else {
                print!("{}", describe(&salvaged, &into));
            }
        }
        BrokerCommand::Token(command) => tokens::run(command)?,
        BrokerCommand::Certificates(arguments) => certificates::run(&arguments)?,
    }
    Ok(Ending::Done)
}

fn in_json(salvaged: &Salvaged) -> serde_json::Value {
    let Salvaged { last_good_revision, records, faults, lost_history } = salvaged;
    serde_json::json!({
        "last_good_revision": last_good_revision.get(),
        "records": records,
        "faults": faults,
        "lost_history": lost_history,
    })
}

fn describe(salvaged: &Salvaged, into: &Path) -> String {
    let Salvaged { last_good_revision, records, faults, lost_history } = salvaged;
    let mut text: String = faults.iter().map(|fault| format!("damaged: {fault}\n")).collect();
    if faults.is_empty() {
        text.push_str("nothing is wrong with it\n");
    }
    let into = into.display();
    text.push_str(&format!("{into}: {records} records up to revision {last_good_revision}\n"));
    if *lost_history {
        text.push_str("older records, which `keeptime why` shows, may be missing\n");
    }
    text
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
