//! What a lab is and does now.

use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use serde::Serialize;
use std::fmt;
use std::net::Ipv4Addr;

/// One lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Its name.
    pub name: Name,
    /// How it is.
    pub state: LabState,
    /// Its holder's process number, while that runs.
    pub holder_pid: Option<i32>,
    /// Made by an ordinary user.
    pub rootless: bool,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
    /// What a lab with all privileges would enforce, with the reason why this one does not.
    pub not_enforced: Vec<String>,
}

/// One node of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: Name,
    /// Its address in the lab.
    pub address: Ipv4Addr,
    /// What it can send.
    pub bits_per_second: BitsPerSecond,
    /// Its share of the machine's CPUs.
    pub cpu_ppm: CpuPpm,
    /// Process 1 of the node as seen from outside; nothing if it has ended.
    pub pid: Option<i32>,
    /// CPU time used since it was made, where that is counted.
    pub cpu_nanos: Option<Nanos>,
}

/// How a lab is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LabState {
    /// All of it runs.
    Up,
    /// It is being made.
    Starting,
    /// Some nodes have ended.
    Damaged,
    /// All of it has ended, and some of it has to be removed.
    Ended,
}

impl fmt::Display for LabState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::Starting => "starting",
            Self::Damaged => "damaged",
            Self::Ended => "ended",
        })
    }
}
