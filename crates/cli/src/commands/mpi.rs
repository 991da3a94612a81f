//! `keeptime mpi`: quality of service for MPI programs that nobody may change.

use super::Ending;
use super::reservations::outcome_told;
use crate::arguments::{AttachArguments, MpiCommand};
use crate::place::connect;
use crate::{brokers, requests};
use anyhow::Result;

/// Carries it out.
pub fn run(command: &MpiCommand) -> Result<Ending> {
    match command {
        MpiCommand::Attach(arguments) => attach(arguments),
    }
}

fn attach(arguments: &AttachArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    let old = client.reservation(arguments.handle).map_err(brokers::failure)?;
    let request = requests::attached(old, &arguments.terms)?;
    outcome_told(client.modify(arguments.handle, &request), arguments.json)
}
