//! What makes a lab a testbed: an edge that polices, and contention.

use super::{LabName, manual};
use clap::Args;
use keeptime_lab::Policer;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos};

#[derive(Debug, Args)]
#[command(after_help = manual::LAB_POLICE)]
pub struct LabPoliceArguments {
    #[command(flatten)]
    pub lab: LabName,
    /// The node; what it sends is policed where it enters its switch
    #[arg(long)]
    pub node: Name,
    /// What passes, headers included, as in 40Mbit
    #[arg(long, requires = "depth", conflicts_with = "off")]
    pub rate: Option<BitsPerSecond>,
    /// What may come at once: the depth of the token bucket, as in 100kB
    #[arg(long, requires = "rate", conflicts_with = "off")]
    pub depth: Option<Bytes>,
    /// Which packets: premium, low-latency or best-effort. Others pass
    #[arg(long, default_value = "premium", requires = "rate", conflicts_with = "off")]
    pub class: TrafficClass,
    /// Let everything pass again
    #[arg(long)]
    pub off: bool,
    /// Print JSON instead of a sentence
    #[arg(long)]
    pub json: bool,
}

impl LabPoliceArguments {
    /// What is to pass; nothing if it is only looked.
    pub fn policer(&self) -> Option<Policer> {
        Some(Policer { rate: self.rate?, depth: self.depth?, dscp: self.class.dscp() })
    }
}

#[derive(Debug, Args)]
#[command(after_help = manual::LAB_LOAD)]
pub struct LabLoadArguments {
    #[command(flatten)]
    pub lab: LabName,
    /// The node that sends datagrams [default: every node sends to every other]
    #[arg(long, requires_all = ["to", "rate"])]
    pub from: Option<Name>,
    /// The node that they are sent to, where nobody listens
    #[arg(long, requires = "from")]
    pub to: Option<Name>,
    /// Datagrams so fast, whether they arrive or not, instead of connections that take what they get
    #[arg(long, requires = "from")]
    pub rate: Option<BitsPerSecond>,
    /// For how long, at most an hour
    #[arg(long = "for", value_name = "TIME", default_value = "60s")]
    pub length: Nanos,
}
