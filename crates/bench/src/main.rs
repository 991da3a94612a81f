//! `keeptime-bench`: the figures that Keeptime promises, each by one command that anyone can run.

mod awake;
mod balancers;
mod broker;
mod calendar;
mod control;
mod cpu;
mod deadline;
mod door;
mod enforce;
mod fabric;
mod figures;
mod first_light;
mod isolation;
mod lab;
mod ledger;
mod middleware;
mod mpi;
mod mpich_gq;
mod page;
mod parts;
mod plan;
mod pools;
mod profiler;
mod profiles;
mod rate;
mod regions;
mod rocl;
mod scratch;
mod shared_data_centers;
mod sim;
mod sites;
mod testbed;
mod time_sharing;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use figures::Figure;
use keeptime::cluster::own_path;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

/// How commands of `keeptime` begin that labs, brokers, agents, launchers and flows start "this
/// program" with.
const OF_KEEPTIME: [&[&str]; 6] = [
    &["lab"],
    &["lab-holder"],
    &["agent"],
    &["broker", "run"],
    &["traffic"],
    &["launch", "controller"],
];

/// Measures and prints a table; writes OUT/NAME.json with raw samples beside it.
///
/// Run it where apps/, data/ and workloads/ are. With KEEPTIME_BENCH_QUICK=1 in the environment it
/// does as little as shows that it works; such figures mean nothing.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Where results go
    #[arg(long, default_value = "out", global = true)]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Planning one request over 10,000 curve points and 1,000 nodes
    Plan,
    /// Earliest fit, admission and memory of the calendar, from 1,000 to 1,000,000 reservations
    Calendar,
    /// Decisions about nodes of web sites: their time, and policies compared in virtual time
    Pools,
    /// Requests that are lost while nodes move behind HAProxy, nginx and Apache
    Balancers,
    /// How soon a site that is flooded has a node more, with a broker, agents and HAProxy
    Sites,
    /// Bursts of orders to sites on real web servers: fixed shares, and shared nodes
    Testbed,
    /// Figures 8 to 14 of the shared data centres paper as one page, some simulated, some from what other
    /// benchmarks have left
    SharedDataCenters,
    /// Rate control on simulated programs: the time-sharing paper's policy and ours
    Control,
    /// Deadline jobs on a batch log: how many are late, against FCFS with backfill
    Deadline {
        /// A log in Standard Workload Format; without one, logs are made by a model
        #[arg(long)]
        log: Option<PathBuf>,
        /// What deadlines are drawn from, and logs that are made
        #[arg(long, default_value_t = deadline::SEED)]
        seed: u64,
        /// Of how many nodes logs are made
        #[arg(long, default_value_t = deadline::NODES)]
        nodes: u32,
        /// How many jobs of a log are replayed
        #[arg(long, default_value_t = deadline::jobs())]
        jobs: usize,
        /// What is asked of the nodes while jobs are submitted, as 0.7; without it, three logs are made
        #[arg(long)]
        load: Vec<f64>,
    },
    /// A simulated cluster of 10,000 nodes under each policy: how long that takes, decisions a second
    Sim,
    /// A real program held at parts of its full speed, on the lab
    Rate,
    /// Figures 2 to 15 of the time-sharing paper, done again on the lab, as one page
    TimeSharing {
        /// Only these figures, as in 8,13-15; what was measured before stays on
        /// the page
        #[arg(long, value_delimiter = ',')]
        figures: Vec<time_sharing::FigureRange>,
    },
    /// Runs that the profiler needs against the full grid, on the lab
    Profiler,
    /// Reserved flows against greedy ones, rate error, leftover
    Enforce,
    /// Shares of CPU by both mechanisms, how much can be given out, and how soon a change is in force
    Cpu,
    /// A node's compute time against what the other nodes do
    Isolation,
    /// Promised against actual run times under contention, with and without Keeptime
    FirstLight,
    /// Durable appends, and reading a ledger again
    Ledger,
    /// Grants through a broker's socket, and how soon it serves again after a restart
    Broker,
    /// What MPI programs have that ask for quality of service, and what that costs
    Mpi,
    /// Figures and a table of MPICH-GQ, done again
    MpichGq,
    /// Chapter 4 of the thesis on its middleware, done again
    Middleware,
    /// What TLS, certificates and tokens cost
    Door,
    /// Messages, reads, the directory and a hash table against raw TCP, a bare
    /// ring, an agent that is asked, fewer nodes, and other libraries
    Fabric {
        /// Only what has this in its name, and figures of that; may be said several times
        #[arg(long)]
        only: Vec<String>,
    },
    /// Figures of RoCL, done again: directory, messages and a hash table over three networks
    Rocl,
    /// Reading another node's memory against asking it, idle and under load
    Regions,
    /// All figures that were written, and those that are not met
    Summary,
    /// A computation of so many steps, for `isolation`
    #[command(hide = true)]
    Compute { steps: u64 },
    /// A program with a processor's worth of CPU, for `middleware`
    #[command(hide = true)]
    Processor(middleware::ProcessorArguments),
    /// The other process, for `fabric`
    #[command(hide = true)]
    FabricPeer(fabric::peer::Arguments),
    /// Clients of one node's directory, for `rocl`
    #[command(hide = true)]
    RoclClient(rocl::Arguments),
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let is_begun =
        |begin: &&[&str]| begin.iter().zip(&words).filter(|(a, b)| b == a).count() == begin.len();
    if OF_KEEPTIME.iter().any(is_begun) {
        return as_keeptime(&words);
    }
    let arguments = Arguments::parse();
    let out = &arguments.out;
    let result = match arguments.command {
        Command::Plan => plan::run(out),
        Command::Calendar => calendar::run(out),
        Command::Pools => pools::run(out),
        Command::Balancers => balancers::run(out),
        Command::Sites => sites::run(out),
        Command::Testbed => testbed::run(out),
        Command::SharedDataCenters => shared_data_centers::run(out),
        Command::Control => control::run(out),
        Command::Deadline { log, seed, nodes, jobs, load } => {
            let made = deadline::Made { nodes, loads: load };
            deadline::run(out, log.as_deref(), &made, jobs, seed)
        }
        Command::Sim => sim::run(out),
        Command::Rate => rate::run(out),
        Command::TimeSharing { figures } => time_sharing::run(out, &figures),
        Command::Profiler => profiler::run(out),
        Command::Enforce => enforce::run(out),
        Command::Cpu => cpu::run(out),
        Command::Isolation => isolation::run(out),
        Command::FirstLight => first_light::run(out),
        Command::Ledger => ledger::run(out),
        Command::Broker => broker::run(out),
        Command::Mpi => mpi::run(out),
        Command::MpichGq => mpich_gq::run(out),
        Command::Middleware => middleware::run(out),
        Command::Processor(arguments) => middleware::become_limited(&arguments),
        Command::Door => door::run(out),
        Command::Fabric { only } => fabric::run(out, &only),
        Command::Regions => regions::run(out),
        Command::Rocl => rocl::run(out),
        Command::RoclClient(arguments) => rocl::client(&arguments),
        Command::FabricPeer(arguments) => fabric::peer::run(&arguments),
        Command::Summary => summary(out),
        Command::Compute { steps } => {
            keeptime_lab::isolation::compute(steps);
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keeptime-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the `keeptime` beside this program.
fn as_keeptime(words: &[OsString]) -> ExitCode {
    let error = match own_path() {
        Ok(own) => process::Command::new(own.with_file_name("keeptime")).args(words).exec().into(),
        Err(error) => error,
    };
    eprintln!("keeptime-bench: cannot start keeptime: {error:#}");
    ExitCode::FAILURE
}

/// Whether to do only as much as shows that a benchmark works.
fn quick() -> bool {
    std::env::var_os("KEEPTIME_BENCH_QUICK").is_some_and(|value| value == "1")
}

fn summary(out: &Path) -> Result<()> {
    let mut all: Vec<Figure> = Vec::new();
    for name in [
        "plan",
        "calendar",
        "pools",
        "balancers",
        "sites",
        "ledger",
        "broker",
        "door",
        "control",
        "deadline",
        "sim",
        "rate",
        "profiler",
        "enforce",
        "cpu",
        "isolation",
        "mpi",
        "first-light",
        "fabric",
        "regions",
    ] {
        let path = out.join(format!("{name}.json"));
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let figures: Vec<Figure> =
            serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        all.extend(figures);
    }
    figures::print(&all);
    let missed: Vec<_> =
        all.iter().filter(|f| f.met == Some(false)).map(|f| f.name.as_str()).collect();
    match missed.as_slice() {
        [] => println!("every target is met"),
        names => println!("not met: {}", names.join("; ")),
    }
    Ok(())
}
