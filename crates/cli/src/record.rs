//! What the demonstration and `keeptime run` leave behind, for the report.

use crate::machine::Machine;
use crate::profiler::Effort;
use keeptime_model::application::Parameters;
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use keeptime_planner::translate::Decision;
use serde::{Deserialize, Serialize};

/// The file of a [`Record`] in its directory.
pub const RECORD: &str = "demo.json";

/// Everything that a report shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// What it was measured on.
    pub machine: Machine,
    /// The cluster, in one line.
    pub cluster: String,
    /// The MPI that started the programs.
    pub mpi: String,
    /// The command that makes it again.
    pub command: String,
    /// The measured application.
    pub profile: Profile,
    /// What measuring took.
    pub effort: Effort,
    /// One request, and the way that it went.
    pub request: Request,
    /// That request and others under contention.
    pub contention: Contention,
    /// Pictures that the programs made: caption and file name.
    pub pictures: Vec<(String, String)>,
}

/// One request from goal to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// What was asked.
    pub goal: Goal,
    /// How it was decided, step by step.
    pub decision: Decision,
    /// The nodes that were chosen, in rank order.
    pub nodes: Vec<Name>,
    /// The run that followed.
    pub actual_nanos: Nanos,
}

/// Requests that ran while others loaded the same links.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Contention {
    /// What loaded the links, in one line.
    pub load: String,
    /// One entry for each request that was admitted.
    pub trials: Vec<Trial>,
    /// The others; older records do not have them.
    #[serde(default)]
    pub refused: Vec<Refused>,
}

/// A request that was refused, and so did not run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Refused {
    /// The application.
    pub application: Name,
    /// The goal, as people say it.
    pub goal: String,
    /// Why.
    pub reason: String,
}

/// One planned request, run with its bandwidth reserved and without, with the same CPU both times.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Trial {
    /// The application.
    pub application: Name,
    /// The goal, as people say it.
    pub goal: String,
    /// Chosen parameters.
    pub parameters: Parameters,
    /// Chosen number of nodes.
    pub nodes: u32,
    /// Reserved for each flow.
    pub bits_per_second: BitsPerSecond,
    /// The promised time.
    pub promised_nanos: Nanos,
    /// The time that half of the runs are expected to take.
    pub median_nanos: Nanos,
    /// The time that half of the runs would take by the profile alone, as if nothing had changed since.
    pub profiled_nanos: Nanos,
    /// How often the promise is to be kept.
    pub quantile_ppm: Share,
    /// Measured with the bandwidth reserved.
    pub with_nanos: Nanos,
    /// What that would have taken with all of its CPU: less, if it was held at what was promised.
    pub at_full_nanos: Nanos,
    /// Measured on the same nodes with the CPU alone; nothing if it did not end in time.
    pub without_nanos: Option<Nanos>,
}

impl Trial {
    /// (actual - median) / median with all of its CPU: how far the expectation was off.
    pub fn error_of_median(&self) -> f64 {
        relative(self.at_full_nanos, self.median_nanos)
    }

    /// How far the expectation by the profile alone would have been off.
    pub fn error_of_profile(&self) -> f64 {
        relative(self.at_full_nanos, self.profiled_nanos)
    }

    /// (actual - promised) / promised with the reservation.
    pub fn error_with(&self) -> f64 {
        relative(self.with_nanos, self.promised_nanos)
    }

    /// (actual - promised) / promised without the reservation.
    pub fn error_without(&self) -> Option<f64> {
        self.without_nanos.map(|time| relative(time, self.promised_nanos))
    }
}

fn relative(actual: Nanos, promised: Nanos) -> f64 {
    actual.as_secs_f64() / promised.as_secs_f64() - 1.0
}
