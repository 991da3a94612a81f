//! `keeptime agent`: the daemon, and questions to it.

use super::{Ending, print_json};
use crate::arguments::AgentCommand;
use anyhow::{Context, Result};
use keeptime_agent::agent::Agent;
use keeptime_agent::client::Client;
use keeptime_agent::config::Config;
use keeptime_agent::enforce;
use keeptime_agent::link;
use keeptime_agent::server::{now, serve};
use keeptime_agent::store::Store;
use keeptime_agent::wire::Status;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Runs an agent or asks one.
pub fn run(command: AgentCommand) -> Result<Ending> {
    match command {
        AgentCommand::Run { config, check } => run_agent(&config, check)?,
        AgentCommand::Status { socket, json } => {
            let status = Client::connect(&socket)?.status()?;
            if json {
                print_json(&status)?;
            } else {
                print!("{}", describe(&status));
            }
        }
    }
    Ok(Ending::Done)
}

fn run_agent(path: &Path, check: bool) -> Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let config = Config::from_toml(&text).with_context(|| format!("in {}", path.display()))?;
    if check {
        return Ok(());
    }
    let enforcer = enforce::enforcer(&config);
    for sentence in enforcer.not_enforced() {
        tracing::warn!("not enforced: {sentence}");
    }
    let store = Store::at(&config.assignments);
    let capacity = enforce::capacity(&config);
    let agent = Agent::start(config.node.clone(), capacity, store, enforcer, now())?;
    tracing::info!("agent of {} serves {}", config.node, config.socket.display());
    let agent = Arc::new(Mutex::new(agent));
    if let Some(broker) = config.place() {
        let agent = Arc::clone(&agent);
        std::thread::spawn(move || link::keep(&agent, &broker));
    }
    serve(&agent, &config.socket).context("while serving")
}

/// An agent's status as a few lines.
pub fn describe(status: &Status) -> String {
    let mut text = format!(
        "{}: {} of a CPU for jobs, {} jobs\n",
        status.node,
        status.cpu_ppm,
        status.jobs.len()
    );
    for job in &status.jobs {
        let used = job.cpu_used_nanos.as_secs_f64();
        let assignment = &job.assignment;
        text.push_str(&format!(
            "  {}: {} of a CPU, {} processes, {used:.1} s used\n",
            assignment.job,
            assignment.cpu_ppm,
            job.processes.len()
        ));
        for flow in &job.flows {
            text.push_str(&format!(
                "    to {}: {} {}, {} sent, {} dropped\n",
                flow.flow.destination,
                flow.flow.class,
                flow.flow.bits_per_second,
                flow.sent_bytes,
                flow.dropped_packets
            ));
        }
    }
    for sentence in &status.not_enforced {
        text.push_str(&format!("  not enforced: {sentence}\n"));
    }
    text
}
