//! What is asked for MPI programs from outside.

use super::BrokerPlace;
use clap::{Args, Subcommand};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::reservation::Handle;
use keeptime_model::units::{BitsPerSecond, Bytes};

#[derive(Debug, Subcommand)]
pub enum MpiCommand {
    /// Give ranks of a job what they would ask for themselves, if their program could be changed
    Attach(AttachArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keeptime mpi attach r17 --class premium --bandwidth 40Mbit --ranks 0,3\n  \
    keeptime mpi attach r17 --class best-effort\n\n\
    It holds at once, for connections that are open already too, and takes the place of the flows that the\n\
    reservation had. What the program asks for by attributes stays. Nodes count as ranks, in their order.\n\
    Exit code 1: refused, with the reason; all is as before then.")]
pub struct AttachArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Which job, as in r17
    pub handle: Handle,
    #[command(flatten)]
    pub terms: AttachTerms,
    /// Print JSON instead of a sentence
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct AttachTerms {
    /// How packets among these ranks are treated: premium, or best-effort to reserve nothing
    #[arg(long)]
    pub class: TrafficClass,
    /// Payload from each of these ranks to each other at its peak, as in 40Mbit
    #[arg(long, value_name = "RATE")]
    pub bandwidth: Option<BitsPerSecond>,
    /// Who talks to each other, as in 0,3 [default: all ranks]
    #[arg(long, value_delimiter = ',', value_name = "RANKS")]
    pub ranks: Vec<u32>,
    /// The greatest message, from which the cost of headers follows
    #[arg(long, value_name = "SIZE", default_value = "64 KiB")]
    pub message_size: Bytes,
}
