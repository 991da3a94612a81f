//! `keeptime bind`: what runs already becomes part of a job.

use super::Ending;
use crate::arguments::BindArguments;
use crate::cluster::socket_in;
use anyhow::{Context, Result};
use keeptime_agent::client::Client;
use keeptime_lab::Labs;
use keeptime_model::Invalid;

/// Binds processes and then connections; what was bound before an error stays bound.
pub fn run(arguments: BindArguments) -> Result<Ending> {
    let mut client = connect(&arguments)?;
    let BindArguments { job, processes, flows, .. } = arguments;
    if !processes.is_empty() {
        client.bind(&job, processes)?;
    }
    for flow in flows {
        client.bind_flow(&job, flow).with_context(|| format!("while binding {flow}"))?;
    }
    Ok(Ending::Done)
}

fn connect(arguments: &BindArguments) -> Result<Client> {
    let Some(name) = &arguments.node else {
        return Ok(Client::connect(&arguments.agent.socket)?);
    };
    let lab = Labs::of_this_user().open(&arguments.lab)?;
    let unknown = || {
        let names = lab.topology().nodes().iter().map(|node| node.name.to_string());
        Invalid::new("node", name, names.collect::<Vec<_>>().join(", "))
    };
    lab.topology().find_node(name).ok_or_else(unknown)?;
    Ok(Client::connect(&socket_in(&lab.node_directory(name)))?)
}
