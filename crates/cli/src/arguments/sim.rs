//! What a cluster is asked about that is not there.

use super::manual;
use crate::files;
use clap::builder::RangedU64ValueParser;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use keeptime_model::Invalid;
use keeptime_model::goal::Preference;
use keeptime_model::units::{Nanos, Share};
use keeptime_whatif::policy::Choice;
use keeptime_whatif::shape::Shape;
use keeptime_whatif::sites::PolicyKind;
use keeptime_whatif::users::Decides;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Replay a log of jobs in virtual time, under one policy or several
    #[command(after_long_help = manual::SIM_RUN)]
    Run(SimArguments),
    /// Simulate users who ask for goals of measured applications: who is admitted, and whose goal is kept
    #[command(after_long_help = manual::SIM_GOALS)]
    Goals(SimGoalsArguments),
    /// Simulate web sites that share nodes: how many each has, and which requests are answered in time
    #[command(after_long_help = manual::SIM_SITES)]
    Sites(SimSitesArguments),
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("log").required(true).args(["trace", "generate"])))]
pub struct SimArguments {
    /// star:NODES, fat-tree:NODES, fat-tree:NODES:K where uplinks of racks have a K-th of their nodes' rate, or a topology
    /// file as the broker reads it, FILE.toml
    #[arg(long)]
    pub topology: SimulatedCluster,
    /// A log in Standard Workload Format (gunzip it first)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Make a log instead
    #[arg(long)]
    pub generate: Option<Generator>,
    /// Who starts when and where: keeptime, keeptime-greedy, keeptime-queue, keeptime-classes, keeptime-by, fcfs-backfill,
    /// none, or several [default: keeptime,keeptime-by,fcfs-backfill,none; on more than 512 nodes, or of more than 500 jobs that
    /// ask for more than all nodes, without keeptime-by]
    #[arg(long, value_delimiter = ',')]
    pub policy: Vec<Choice>,
    /// The part of its time that a job on several nodes exchanges when nothing is in its way; nodes have links of the same
    /// rate then
    #[arg(long, default_value = "0 %")]
    pub communication: Share,
    #[command(flatten)]
    pub failing: FailureArguments,
    /// How many jobs are made, or the first how many of a log are replayed, up to ten million [default: 10000 are made; of a
    /// log all are replayed]
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..=JOBS_MAX as u64))]
    pub jobs: Option<usize>,
    /// What `--generate model` asks of all nodes, 1 being all of them [default: 0.7]
    #[arg(long, conflicts_with = "trace")]
    pub load: Option<f64>,
    /// Longest time between two tasks of `--generate chains`, in seconds, up to a year [default: 20]
    #[arg(long, conflicts_with = "trace", value_parser = RangedU64ValueParser::<u64>::new().range(0..=INTERVAL_MAX))]
    pub interval: Option<u64>,
    /// Where random numbers start
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SimGoalsArguments {
    /// An application and the longest that a unit of it may take, as in raycast=500ms; users want one of these, each with
    /// the same chance
    #[arg(required = true, value_name = "APPLICATION=WITHIN")]
    pub wanted: Vec<WantedUnit>,
    /// star:NODES, fat-tree:NODES, fat-tree:NODES:K where uplinks of racks have a K-th of their nodes' rate, or a topology
    /// file as the broker reads it, FILE.toml
    #[arg(long)]
    pub topology: SimulatedCluster,
    /// Where profiles are, each in APPLICATION.json
    #[arg(long, value_name = "DIRECTORY", default_value = files::PROFILES)]
    pub profiles: PathBuf,
    /// The mean time between two requests, which come at random
    #[arg(long, value_name = "SPAN", default_value = "10 s")]
    pub every: Nanos,
    /// How many requests there are
    #[arg(long, default_value_t = 1_000, value_parser = RangedU64ValueParser::<usize>::new().range(1..=REQUESTS_MAX))]
    pub requests: usize,
    /// How many units each has done, one after the other: frames, say
    #[arg(long, default_value_t = 10, value_parser = RangedU64ValueParser::<u32>::new().range(1..=UNITS_MAX))]
    pub units: u32,
    /// How long each waits for room, as with `keeptime run --wait`; else it is refused at once
    #[arg(long, value_name = "SPAN", default_value = "0 s")]
    pub wait: Nanos,
    /// What to take among all that is fast enough: fastest, best, cheapest or balanced, as with `keeptime run`
    #[arg(long, default_value = "best")]
    pub prefer: Preference,
    /// Who decides: keeptime, keeptime-spare, none, or several
    #[arg(long, value_delimiter = ',', default_value = "keeptime,none")]
    pub policy: Vec<Decides>,
    /// Where random numbers start
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What users want of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedUnit {
    /// As `keeptime run` takes it.
    pub application: String,
    /// The longest that a unit may take.
    pub within: Nanos,
}

impl FromStr for WantedUnit {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (application, within) =
            text.rsplit_once('=').filter(|(application, _)| !application.is_empty()).ok_or_else(
                || Invalid::new("application", text, "APPLICATION=WITHIN, as in raycast=500ms"),
            )?;
        Ok(Self { application: application.to_owned(), within: within.parse()? })
    }
}

impl fmt::Display for WantedUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.application, self.within)
    }
}

#[derive(Debug, Args)]
pub struct SimSitesArguments {
    /// star:NODES, fat-tree:NODES, or a topology file as the broker reads it, FILE.toml
    #[arg(long)]
    pub topology: SimulatedCluster,
    /// The sites, and what is asked of each: what `keeptime site list --json` prints, or a shorter file (see below)
    #[arg(long, value_name = "FILE")]
    pub sites: PathBuf,
    /// How many hours are simulated, up to a year
    #[arg(long, default_value_t = 24, value_parser = RangedU64ValueParser::<u64>::new().range(1..=HOURS_MAX))]
    pub hours: u64,
    /// Who moves nodes: keeptime, reconf, reconf-p, reconf-pq, rigid, or several
    #[arg(long, value_delimiter = ',', default_value = "keeptime,rigid")]
    pub policy: Vec<PolicyKind>,
    /// How far the load of each site goes up and down, as a part of what the file says
    #[arg(long, default_value = "50 %")]
    pub swing: Share,
    /// How long it takes to go up and down once
    #[arg(long, value_name = "SPAN", default_value = "24h")]
    pub period: Nanos,
    /// How long a node works on a request, in the mean, where the file says nothing of that
    #[arg(long, value_name = "SPAN", default_value = "5 ms")]
    pub service: Nanos,
    /// What is answered within this is in time
    #[arg(long, value_name = "SPAN", default_value = "100 ms")]
    pub within: Nanos,
    #[command(flatten)]
    pub failing: FailureArguments,
    /// Where random numbers start
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct FailureArguments {
    /// Nodes fail: the mean time that one works until it does, as in 30d; at least an hour
    #[arg(long, value_name = "MTBF")]
    pub failures: Option<Nanos>,
    /// Links fail: the mean time that one works until it does; nodes behind it are away
    #[arg(long, value_name = "MTBF")]
    pub link_failures: Option<Nanos>,
    /// Switches fail: the mean time that one works until it does; nodes behind it are away
    #[arg(long, value_name = "MTBF")]
    pub switch_failures: Option<Nanos>,
    /// How long what has failed is away [default: 1h]
    #[arg(long, value_name = "SPAN")]
    pub repair: Option<Nanos>,
}

/// A cluster in a word, or a file that tells its nodes and links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimulatedCluster {
    /// In a word.
    Shape(Shape),
    /// A topology file.
    File(PathBuf),
}

impl FromStr for SimulatedCluster {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text.ends_with(".toml") {
            return Ok(Self::File(text.into()));
        }
        let shape = text.parse::<Shape>().map_err(|invalid| {
            let expected = format!("{}; or a topology file, FILE.toml", invalid.expected);
            Invalid { expected, ..invalid }
        });
        shape.map(Self::Shape)
    }
}

impl fmt::Display for SimulatedCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(shape) => write!(f, "{shape}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Generator {
    /// Rigid jobs by the model of Lublin and Feitelson
    Model,
    /// The thesis' tasks: chains of sub-tasks on up to 8 nodes, at random intervals
    Chains,
}

/// They are held in memory, each in some hundred bytes: a gigabyte.
pub const JOBS_MAX: usize = 10_000_000;
/// Of them a few hundred thousand take minutes.
const REQUESTS_MAX: u64 = 1_000_000;
const UNITS_MAX: u64 = 1_000_000;
/// Longer than logs are; instants of the most jobs stay far from what can be counted.
const INTERVAL_MAX: u64 = 366 * 86_400;
/// Load is the same every day; whoever needs more takes another seed.
const HOURS_MAX: u64 = 366 * 24;
