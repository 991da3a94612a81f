//! What is asked for MPI programs from outside, and what their transports are told.

use super::BrokerPlace;
use clap::{Args, Subcommand};
use keeptime_model::Invalid;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::reservation::Handle;
use keeptime_model::units::{BitsPerSecond, Bytes};
use keeptime_mpiqos::transports::ServiceLevel;

#[derive(Debug, Subcommand)]
pub enum MpiCommand {
    /// Give ranks of a job what they would ask for themselves, if their program could be changed
    Attach(Box<AttachArguments>),
    /// Print what cards that are driven from the program (RDMA) are told of a class, for a job's environment
    Environment(EnvironmentArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keeptime mpi attach r17 --class premium --bandwidth 40Mbit --ranks 0,3\n  \
    keeptime mpi attach r17 --class best-effort\n\n\
    It holds at once, for connections that are open already too, and takes the\n\
    place of the flows that the reservation had. What the program asks for by\n\
    attributes stays. Nodes count as ranks, in their order.\n\
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

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    eval \"$(keeptime mpi environment --class premium)\"   # then mpiexec, or srun\n  \
    keeptime mpi environment --class premium --service-level 3 --json\n\n\
    Over RoCE and InfiniBand no kernel sees packets, so that UCX and Open MPI have\n\
    to mark them. They read these variables when a program starts; Open MPI's\n\
    mpirun passes UCX's on with -x UCX_IB_TRAFFIC_CLASS. What switches make of the\n\
    marks is the site's: the code points are those of Keeptime's own classes, and\n\
    which service level of InfiniBand goes first is known to its subnet manager.\n\
    Bandwidth is not limited by it.")]
pub struct EnvironmentArguments {
    /// The class: best-effort, low-latency or premium
    #[arg(long)]
    pub class: TrafficClass,
    /// The service level that the site's subnet manager has for this class, 0 to 15 [default: none is told]
    #[arg(long, value_name = "LEVEL")]
    pub service_level: Option<ServiceLevel>,
    /// Print JSON instead of lines for a shell
    #[arg(long)]
    pub json: bool,
}

/// A class that flows of a job can have: the one between is for packets that are few, and nobody reserves.
fn attached(text: &str) -> Result<TrafficClass, Invalid> {
    let class = text.parse().ok();
    let class = class.filter(|class| *class != TrafficClass::LowLatency);
    class.ok_or_else(|| Invalid::new("class", text, "premium or best-effort"))
}

#[derive(Debug, Clone, Args)]
pub struct AttachTerms {
    /// How packets among these ranks are treated: premium, or best-effort to reserve nothing
    #[arg(long, value_parser = attached)]
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
