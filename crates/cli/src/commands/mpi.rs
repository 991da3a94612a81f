//! `keeptime mpi`: quality of service for MPI programs that nobody may change.

use super::reservations::outcome_told;
use super::{Ending, print_json};
use crate::arguments::{AttachArguments, EnvironmentArguments, MpiCommand};
use crate::place::connect;
use crate::{brokers, requests};
use anyhow::Result;
use keeptime_mpiqos::transports::TransportClass;
use serde_json::json;
use std::collections::BTreeMap;

/// Carries it out.
pub fn run(command: &MpiCommand) -> Result<Ending> {
    match command {
        MpiCommand::Attach(arguments) => attach(arguments),
        MpiCommand::Environment(arguments) => environment(arguments),
    }
}

fn environment(arguments: &EnvironmentArguments) -> Result<Ending> {
    let told = TransportClass::of(arguments.class, arguments.service_level);
    let environment = told.environment();
    if arguments.json {
        let environment: BTreeMap<_, _> = environment.into_iter().collect();
        print_json(&json!({ "class": arguments.class, "told": told, "environment": environment }))?;
        return Ok(Ending::Done);
    }
    for (name, value) in environment {
        println!("export {name}={value}");
    }
    println!("# libfabric: tx_attr->tclass = {:#x}", told.libfabric_tclass);
    Ok(Ending::Done)
}

fn attach(arguments: &AttachArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    let old = client.reservation(arguments.handle).map_err(brokers::failure)?;
    let request = requests::attached(old, &arguments.terms)?;
    outcome_told(client.modify(arguments.handle, &request), arguments.json)
}
