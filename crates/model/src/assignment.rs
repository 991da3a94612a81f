//! What one node is told to enforce for one job.

use crate::Invalid;
use crate::name::Name;
use crate::units::{BitsPerSecond, Bytes, CpuPpm, WallTime};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Most flows of one job that leave one node: all-to-all on 4,096 nodes.
pub const FLOWS_MAX: usize = 4_096;

/// One node's part of a job: everything that its agent enforces there, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// The job.
    pub job: Name,
    /// CPU for the job's processes on this node, all together: a limit.
    pub cpu_ppm: CpuPpm,
    /// What leaves this node. A job without flows is best-effort.
    #[serde(default)]
    pub flows: Vec<AssignedFlow>,
    /// The agent keeps the assignment until then and no longer; whoever gave it may prolong it.
    pub until_unix_nanos: WallTime,
}

/// A rate kept for one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignedFlow {
    /// The receiving node's address.
    pub destination: Ipv4Addr,
    /// Reserved: a guarantee and a limit.
    pub bits_per_second: BitsPerSecond,
    /// Token bucket depth; nothing = chosen from the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<Bytes>,
    /// How the packets are treated on their way.
    pub class: TrafficClass,
}

impl Assignment {
    /// Checks bounds that hold on every node.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        check_cpu(self.cpu_ppm)?;
        if self.flows.len() > FLOWS_MAX {
            return Err(Invalid::new("flows", self.flows.len(), format!("at most {FLOWS_MAX}")));
        }
        match self.flows.iter().position(|f| f.bits_per_second == BitsPerSecond::ZERO) {
            None => Ok(()),
            Some(at) => {
                let field = format!("flows[{at}].bits_per_second");
                Err(Invalid::new(field, BitsPerSecond::ZERO, "more than 0 bit/s"))
            }
        }
    }
}

/// Checks a share of the CPU: a job without CPU cannot run.
///
/// # Errors
/// If it is nothing.
pub fn check_cpu(share: CpuPpm) -> Result<(), Invalid> {
    if share == CpuPpm::default() {
        return Err(Invalid::new("cpu_ppm", share, "more than 0 %"));
    }
    Ok(())
}

/// How the packets of a flow are treated on their way, best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TrafficClass {
    /// Shares what the others leave.
    BestEffort,
    /// Few bytes that must not wait: control messages of jobs and of Keeptime. DSCP CS6.
    LowLatency,
    /// A reserved rate, kept apart at switches. DSCP EF.
    Premium,
}

impl TrafficClass {
    /// The DiffServ code point of the class (RFC 2474, RFC 3246): 0, CS6 = 48, EF = 46.
    pub const fn dscp(self) -> u8 {
        match self {
            Self::BestEffort => 0,
            Self::LowLatency => 48,
            Self::Premium => 46,
        }
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BestEffort => "best-effort",
            Self::LowLatency => "low-latency",
            Self::Premium => "premium",
        })
    }
}

impl FromStr for TrafficClass {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "best-effort" => Ok(Self::BestEffort),
            "low-latency" => Ok(Self::LowLatency),
            "premium" => Ok(Self::Premium),
            _ => Err(Invalid::new("class", text, "best-effort, low-latency or premium")),
        }
    }
}
