//! What one node is told to enforce for one job.

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

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
