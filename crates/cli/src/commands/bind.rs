//! `keeptime bind`: what runs already becomes part of a job.

use super::{Ending, print_json};
use crate::arguments::BindArguments;
use crate::cluster::socket_in;
use anyhow::Result;
use keeptime_agent::client::{Client, ClientError};
use keeptime_lab::Labs;
use keeptime_model::Invalid;
use keeptime_model::errors::chain;
use keeptime_model::units::Nanos;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Binds processes and then connections; what was bound before an error stays bound. An agent that has no place for one
/// more who asks is asked again: all tasks of a batch job may come at once.
pub fn run(arguments: BindArguments) -> Result<Ending> {
    let socket = socket(&arguments)?;
    let until = Instant::now() + PATIENCE;
    let mut silence = Some(tell_of_silence(&socket));
    loop {
        match bind(&socket, &arguments) {
            Err(error) if error.is_retryable() && Instant::now() < until => {
                if is_away(&error) && silence.take().is_some() {
                    let patience = Nanos::from(PATIENCE);
                    eprintln!("keeptime: {}; asking again for {patience}", chain(&error));
                }
                sleep(AGAIN_AFTER);
            }
            outcome => {
                let mut client = outcome?;
                if arguments.json {
                    print_json(&client.job(&arguments.job)?)?;
                }
                return Ok(Ending::Done);
            }
        }
    }
}

fn bind(socket: &Path, arguments: &BindArguments) -> Result<Client, ClientError> {
    let BindArguments { job, processes, flows, .. } = arguments;
    let mut client = Client::connect(socket)?;
    if !processes.is_empty() {
        client.bind(job, processes.clone())?;
    }
    flows.iter().try_for_each(|flow| client.bind_flow(job, *flow))?;
    Ok(client)
}

/// Says what is waited for, unless what is returned is dropped soon: an agent that stands still takes calls and says nothing.
fn tell_of_silence(socket: &Path) -> Sender<()> {
    let (answered, waiting) = mpsc::channel();
    let place = socket.display().to_string();
    let tell = move || {
        if waiting.recv_timeout(SILENT_FOR) == Err(RecvTimeoutError::Timeout) {
            let patience = Nanos::from(PATIENCE);
            eprintln!("keeptime: waiting for the agent at {place}, for {patience} at the most");
        }
    };
    // Where there can be no more threads, it is only not said.
    let _ = thread::Builder::new().spawn(tell);
    answered
}

/// Whether no agent is there, as while it is started again: one that has no place for one more who asks closes the connection.
fn is_away(error: &ClientError) -> bool {
    let ClientError::Unreachable { source, .. } = error else { return false };
    matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Where the agent is asked.
fn socket(arguments: &BindArguments) -> Result<PathBuf> {
    let Some(name) = &arguments.node else { return Ok(arguments.agent.socket.clone()) };
    let lab = Labs::of_this_user().open(&arguments.lab)?;
    let unknown = || {
        let names = lab.topology().nodes().iter().map(|node| node.name.to_string());
        Invalid::new("node", name, names.collect::<Vec<_>>().join(", "))
    };
    lab.topology().find_node(name).ok_or_else(unknown)?;
    Ok(socket_in(&lab.node_directory(name)))
}

/// Those who ask have their answer in a few milliseconds each.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Whoever waits longer wants to know for what.
const SILENT_FOR: Duration = Duration::from_secs(1);
