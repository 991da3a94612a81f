//! `keeptime broker`: the daemon.

use super::{Ending, certificates, tokens};
use crate::arguments::BrokerCommand;
use crate::import::{Imported, Unknown, imported};
use crate::interrupt;
use anyhow::{Context, Result, ensure};
use keeptime_broker::config::Config;
use keeptime_broker::{records, server, tcp};
use keeptime_credentials::dates::now;
use keeptime_ledger::SqliteLedger;
use keeptime_ledger::sqlite::{Salvaged, salvage};
use keeptime_model::name::Name;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a broker, checks what it would run with, copies its ledger or goes on with it, or changes who is known to it.
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
        BrokerCommand::AcceptClock { config } => accept_clock(&read(&config)?.ledger)?,
        BrokerCommand::Topology { rate, uplink, name } => {
            topology(Unknown { name, rate, uplink })?;
        }
        BrokerCommand::Token(command) => tokens::run(command)?,
        BrokerCommand::Certificates(arguments) => certificates::run(&arguments)?,
    }
    Ok(Ending::Done)
}

/// Brokers on this ledger go on by the clock.
fn accept_clock(ledger: &Path) -> Result<()> {
    ensure!(ledger.exists(), "there is no ledger {}", ledger.display());
    let now = now();
    match records::accept_clock(&mut SqliteLedger::open(ledger)?, now)? {
        Some(recorded) => println!("time goes on from {now}, though {recorded} was recorded"),
        None => println!("it is {now}, and nothing later is recorded"),
    }
    Ok(())
}

/// Prints what Slurm knows, and tells beside it what has to be done by hand.
fn topology(unknown: Unknown) -> Result<()> {
    let told = |words: &[&str]| {
        let output = Command::new("scontrol").args(words).stderr(Stdio::inherit()).output();
        let output = output.context("scontrol cannot be started: is Slurm here?")?;
        ensure!(output.status.success(), "scontrol {} has failed", words.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let resolve = |host: &str| {
        let all = (host, 0).to_socket_addrs().ok()?;
        all.into_iter().find_map(|address| match address {
            SocketAddr::V4(address) => Some(*address.ip()),
            SocketAddr::V6(_) => None,
        })
    };
    let nodes = told(&["--oneliner", "show", "nodes"])?;
    let switches = told(&["--oneliner", "show", "topology"])?;
    let Imported { topology, hosts, unknown } = imported(&nodes, &switches, unknown, &resolve)?;
    print!("{}", topology.to_toml());
    if !hosts.is_empty() {
        let hosts: Vec<_> = hosts.iter().map(|(name, host)| format!("{name} = {host:?}")).collect();
        eprintln!("some are called otherwise here; in users' client.toml, below [nodes]:");
        eprintln!("hosts = {{ {} }}", hosts.join(", "));
    }
    if !unknown.is_empty() {
        let names: Vec<_> = unknown.iter().map(Name::as_str).collect();
        eprintln!("without an address, which the broker wants of every node: {}", names.join(", "));
    }
    Ok(())
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
