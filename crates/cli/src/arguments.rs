//! The command line: nouns, then verbs. Help texts are the first documentation that people read.

// What has no comment has no help text of its own: it is made of parts that have.
#![allow(missing_docs)]

mod broker;
mod counts;
mod door;
mod fabric;
mod manual;
mod mpi;
mod names;
mod node;
mod parse;
mod sim;
mod site;
mod testbed;

pub use counts::NodeCounts;
pub use door::{CertificatesArguments, TokenCommand, TokenPlace};
pub use fabric::{
    Attribute, Carrier, FabricBenchArguments, FabricCommand, FabricFindArguments,
    FabricListArguments, FabricPingArguments, FabricPlace,
};
pub use mpi::{AttachArguments, AttachTerms, EnvironmentArguments, MpiCommand};
pub use names::NodeNames;
pub use node::{DrainArguments, NodeCommand, ResumeArguments, WhichNodes};
pub use sim::{
    FailureArguments, Generator, JOBS_MAX, SimArguments, SimCommand, SimGoalsArguments,
    SimSitesArguments, SimulatedCluster, WantedUnit,
};
pub use site::{
    DrainMost, SiteAddArguments, SiteCommand, SiteListArguments, SiteRemoveArguments,
    SiteTopArguments,
};
pub use testbed::{LabLoadArguments, LabPoliceArguments};

pub use broker::{
    AtArguments, BrokerCommand, BrokerPlace, CancelArguments, ListArguments, ModifyArguments,
    OneArguments, RegisterArguments, ReserveArguments, TimelineArguments, Wanted, WatchArguments,
    WhoamiArguments,
};

use clap::{ArgGroup, Args, Parser, Subcommand};
use keeptime_launch::mpi::Flavour;
use keeptime_launch::remote::Launcher;
use keeptime_load::target::Target;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::disk::{Disk, DiskId};
use keeptime_model::goal::{Goal, Preference, QUANTILE, parse_setting};
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::Handle;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, Share};
use std::num::NonZeroU64;
use std::path::PathBuf;

/// Predictable response times on shared Linux clusters.
///
/// State the result that you need; Keeptime measures the application once, translates the goal into
/// nodes, bandwidth and CPU, admits it only if it can be kept, reserves, enforces and runs it.
#[derive(Debug, Parser)]
#[command(
    name = "keeptime",
    version,
    after_help = manual::OVERVIEW
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// A real cluster of network namespaces on this machine
    #[command(subcommand)]
    Lab(LabCommand),
    /// The daemon on every node that enforces what was assigned
    #[command(subcommand)]
    Agent(AgentCommand),
    /// The daemon that grants reservations for the whole cluster
    #[command(subcommand)]
    Broker(BrokerCommand),
    /// Reserve nodes, CPU, bandwidth and disk rates, now or in advance
    Reserve(ReserveArguments),
    /// List reservations: those that are there, will be, or wait for room
    List(ListArguments),
    /// Show a reservation
    Show(OneArguments),
    /// Change a reservation: all of it is changed, or nothing
    Modify(ModifyArguments),
    /// Give reservations back
    Cancel(CancelArguments),
    /// Move a reservation that was lost: the same on other nodes, for the time that is left
    #[command(after_help = manual::MOVE)]
    Move(OneArguments),
    /// Tell what happens to reservations as it happens
    Watch(WatchArguments),
    /// Explain a reservation: everything that was decided about it, and when
    #[command(after_help = manual::WHY)]
    Why(OneArguments),
    /// Tell which broker is asked, as whom, and whether as an operator
    Whoami(WhoamiArguments),
    /// Show the nodes, and what of them is reserved
    Nodes(AtArguments),
    /// Take nodes out of service, and back: for operators
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show the links, and what of them is reserved
    Links(AtArguments),
    /// Show what is reserved when
    Timeline(TimelineArguments),
    /// Tell the broker of an application and its profile: goals of it can be reserved from then on
    Register(RegisterArguments),
    /// Web sites that share the cluster's nodes behind load balancers
    #[command(subcommand)]
    Site(SiteCommand),
    /// What programs register in the fabric, and how fast messages are among nodes
    #[command(subcommand, after_long_help = manual::FABRIC)]
    Fabric(FabricCommand),
    /// Count running processes and open connections to a job, as long as it lasts
    Bind(BindArguments),
    /// Quality of service for MPI programs, from outside
    #[command(subcommand)]
    Mpi(MpiCommand),
    /// Measure an application on the cluster until its curves are known
    Profile(ProfileArguments),
    /// Show step by step how a goal would be met, without reserving anything
    Plan(PlanArguments),
    /// Reserve what a goal needs, run the application, and tell promised against actual time
    ///
    /// With --rate it is held at a part of its full speed instead, beside whatever else runs; with --by
    /// Keeptime chooses when, on how many nodes and how fast it runs.
    // Boxed, since it takes far more than all others.
    #[command(after_long_help = manual::RUN)]
    Run(Box<RunArguments>),
    /// Send HTTP requests to web sites at given times, and tell how long their answers took
    Load(LoadArguments),
    /// Simulate a cluster: who would be admitted, which promises kept, who would wait, in virtual time
    #[command(subcommand)]
    Sim(SimCommand),
    /// Change the rate of a run that was started with --rate
    #[command(subcommand)]
    Rate(RateCommand),
    /// Show the runs that are held at a rate, live: target and actual, and plots of how they went; and those that are to be
    /// done by a time and tell how far they are, with when they will be done; q ends it
    Top(TopArguments),
    /// Write one self-contained HTML page from a directory of results
    Report(ReportArguments),
    /// Show all of it on a lab of 4 nodes: profile, plan, run beside others, report
    Demo(DemoArguments),
    /// Print what a shell needs to complete this program's commands and options
    #[command(after_help = manual::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page of each command, as `make install` does
    Manual {
        /// The directory to write them to, as in /usr/local/share/man/man1; it is made if it is not there
        #[arg(long)]
        out: PathBuf,
    },
    /// Plain load inside a lab, as a part of measurements
    #[command(hide = true, subcommand)]
    Traffic(TrafficCommand),
    /// What this program starts on other nodes, and what ends with it
    #[command(hide = true, subcommand)]
    Launch(LaunchCommand),
    /// The process that holds a lab's switches and nodes
    #[command(hide = true)]
    LabHolder {
        /// As `lab up` gives them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
}

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Make a lab: nodes, switches, shaped links, an agent on every node
    #[command(after_help = manual::LAB_UP)]
    Up(LabUpArguments),
    /// Show a lab: nodes, links, agents, jobs, and what is not enforced
    Status {
        #[command(flatten)]
        lab: LabName,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// List the labs of this machine
    List {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Run a command on a node
    #[command(after_help = manual::LAB_EXEC)]
    Exec(LabExecArguments),
    /// Police what a node sends, as the edge router of a DiffServ network does, or tell what was dropped
    Police(LabPoliceArguments),
    /// Contention: fill the links for a while
    Load(LabLoadArguments),
    /// Remove a lab with everything that it added to this machine
    Down {
        #[command(flatten)]
        lab: LabName,
    },
}

#[derive(Debug, Clone, Args)]
pub struct LabName {
    /// The lab's name
    #[arg(default_value = "lab", env = "KEEPTIME_LAB")]
    pub name: Name,
}

#[derive(Debug, Args)]
pub struct LabUpArguments {
    #[command(flatten)]
    pub lab: LabName,
    /// Number of nodes, 1 to 16
    #[arg(long, default_value_t = 4)]
    pub nodes: u32,
    /// Number of switches the nodes hang from; more than one adds a core switch above them
    #[arg(long, default_value_t = 1)]
    pub switches: u32,
    /// Rate of every node's link, per direction
    #[arg(long, default_value = "100 Mbit/s")]
    pub rate: BitsPerSecond,
    /// Rate of the links between switches, per direction
    #[arg(long, default_value = "200 Mbit/s")]
    pub uplink: BitsPerSecond,
    /// CPU of every node; 100 % is one of this machine's cores
    #[arg(long, default_value = "40 %")]
    pub cpu: CpuPpm,
    /// A disk of this machine that is every node's, as lsblk shows it; nodes share it, so --read and
    /// --write are the part of each
    #[arg(long, value_name = "MAJOR:MINOR", requires_all = ["read", "write"])]
    pub disk: Option<DiskId>,
    /// What jobs of a node may read from --disk together, per second
    #[arg(long, requires = "disk")]
    pub read: Option<BytesPerSecond>,
    /// What jobs of a node may write to --disk together, per second
    #[arg(long, requires = "disk")]
    pub write: Option<BytesPerSecond>,
    /// Take nodes with their disks, switches and links from a topology file instead
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["nodes", "switches", "rate", "uplink", "cpu", "disk"]
    )]
    pub topology: Option<PathBuf>,
    /// Have agents and users come over TCP with TLS, as on a real cluster: the broker is on the lab's
    /// front end, and certificates for all of them are made in the lab's directory, under pki
    #[arg(long)]
    pub tls: bool,
    /// Web servers on every node (nginx, PHP), a database, and load balancers in front of these sites (HAProxy, nginx,
    /// Apache) on the lab's front end, for `keeptime site add`
    #[arg(long, value_name = "SITE,...", value_delimiter = ',')]
    pub web: Vec<Name>,
    /// Slurm on all nodes, whose jobs share them: to try Keeptime under it
    #[arg(long)]
    pub slurm: bool,
}

impl LabUpArguments {
    /// Every node's part of the disk that was named.
    pub fn disk(&self) -> Option<Disk> {
        let (device, read, write) = (self.disk?, self.read?, self.write?);
        Some(Disk { device, read, write })
    }
}

#[derive(Debug, Args)]
pub struct LabExecArguments {
    /// The lab's name
    pub name: Name,
    /// A node's name or address, or front-end
    pub node: String,
    /// Count the command to this job, with what is assigned to it
    #[arg(long)]
    pub job: Option<Name>,
    /// End the command when whoever started it ends
    #[arg(long)]
    pub die_with_parent: bool,
    /// Who that is, by its number: the command is not started if it has ended before
    #[arg(long, value_name = "PID", requires = "die_with_parent", hide = true)]
    pub parent: Option<i32>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run the agent of this node in the foreground
    ///
    /// It makes the kernel enforce what was assigned to the node, repairs what somebody else changed, and
    /// keeps what was granted until its end when it hears nothing from the broker.
    #[command(after_long_help = manual::AGENT_RUN)]
    Run {
        /// Its configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Check the configuration and end
        #[arg(long)]
        check: bool,
    },
    /// Take off this node all that Keeptime has put on it
    ///
    /// Agents leave what they enforce when they end, for the next one. This is for when there will be none:
    /// before Keeptime is uninstalled, or a node goes to another cluster. Classes, filters and control groups
    /// that carry our mark are removed, and the record of what was assigned; nothing else is touched. It is
    /// refused while an agent runs here, or a job is still enforced. Needs root.
    #[command(after_long_help = manual::AGENT_CLEAR)]
    Clear {
        /// The configuration file of the agent that was here
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// End jobs that are still enforced here, with the processes that were started in them
        #[arg(long)]
        end_jobs: bool,
    },
    /// Try what this node can enforce, and say how that was found out
    Probe {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Run a command on this node as part of a job, with what is reserved for it there
    ///
    /// This node's agent is asked, which knows whose jobs are here. The command has the rights and the
    /// environment of who asks, and KEEPTIME_AGENT, KEEPTIME_JOB and KEEPTIME_NODE beside. All that it started
    /// ends with it; and it ends with this command, by whatever: also when nobody listens to its output
    /// any more, as when a connection of ssh breaks, and with its reservation.
    #[command(after_long_help = manual::AGENT_EXEC)]
    Exec(AgentExecArguments),
    /// Pass on what a command on another machine asks this node's agent
    #[command(hide = true)]
    Relay {
        #[command(flatten)]
        agent: AgentSocket,
    },
    /// Ask an agent what is assigned, enforced and measured
    #[command(after_help = manual::AGENT_STATUS)]
    Status {
        /// Its socket
        #[arg(env = "KEEPTIME_AGENT", default_value = "/run/keeptime/agent.sock")]
        socket: PathBuf,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// The agent of this node.
#[derive(Debug, Clone, Args)]
pub struct AgentSocket {
    /// The socket of this node's agent
    #[arg(
        long,
        value_name = "PATH",
        env = "KEEPTIME_AGENT",
        default_value = "/run/keeptime/agent.sock"
    )]
    pub socket: PathBuf,
}

#[derive(Debug, Args)]
pub struct AgentExecArguments {
    /// The job, as in r17: a reservation of yours that has begun
    #[arg(long)]
    pub job: Name,
    #[command(flatten)]
    pub agent: AgentSocket,
    /// Where the command runs [default: here]
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// End the command when whoever started this one ends
    #[arg(long)]
    pub die_with_parent: bool,
    /// Who that is, by its number: the command is not started if it has ended before
    #[arg(long, value_name = "PID", requires = "die_with_parent", hide = true)]
    pub parent: Option<i32>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// How this program starts others for itself.
#[derive(Debug, Subcommand)]
pub enum LaunchCommand {
    /// Run a command that ends when whoever started it ends
    Near {
        /// Who that is, by its number: the command is not started if it has ended before
        #[arg(long, value_name = "PID")]
        parent: Option<i32>,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Steer a run that is held at a rate: told by standard input, answered on standard output
    Controller,
    /// Wait for the end of an agent, which is that of standard input, and set free what it held
    Guard {
        /// The control group of its node, as in keeptime/n1
        group: PathBuf,
    },
    /// Start a command on a node of a job, as the launchers of MPI would by ssh
    Far {
        /// Who started it, by its number: nothing is started if it has ended before
        #[arg(long, value_name = "PID")]
        parent: Option<i32>,
        /// How nodes are reached, as `run` writes it
        plan: String,
        /// Options, as those of ssh, then HOST and COMMAND
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = manual::BIND)]
pub struct BindArguments {
    /// The job: a reservation's handle, as in r17
    pub job: Name,
    /// A process of yours on the node, by its number there, with the connections that it has open;
    /// when the job ends it goes back to where it was. Repeat for others
    #[arg(long = "pid", value_name = "PID", required_unless_present = "flows")]
    pub processes: Vec<u32>,
    /// Connections of yours that are open now: REMOTE or LOCAL-REMOTE, each ADDRESS or ADDRESS:PORT.
    /// The job must have a flow to REMOTE. Repeat for others
    #[arg(long = "flow", value_name = "ENDS")]
    pub flows: Vec<ConnectionPattern>,
    /// Print how the job stands on the node then as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub agent: AgentSocket,
    /// The node, where it is one of a lab: its agent is asked instead
    #[arg(long)]
    pub node: Option<Name>,
    /// That lab
    #[arg(long, default_value = "lab", env = "KEEPTIME_LAB")]
    pub lab: Name,
}

/// What every command about an application needs.
#[derive(Debug, Clone, Args)]
pub struct ApplicationArguments {
    #[command(flatten)]
    pub application: Chosen,
    #[command(flatten)]
    pub place: BrokerPlace,
    /// The program that starts commands on the nodes, called as ssh is, with options, as in "ssh -F
    /// cluster.ssh", or with {host} where it wants that; nodes of a lab need none [default: as the client
    /// configuration says, or within a job of Slurm's its steps (srun), or ssh]
    #[arg(long, value_name = "PROGRAM")]
    pub launcher: Option<Launcher>,
    /// Use some of these nodes and no others, as in n1,n2 or "n[1-4],n7" [default: within a job of Slurm's those of the
    /// job, else any]
    #[arg(long, value_name = "NAMES")]
    pub among: Vec<NodeNames>,
    /// The MPI to start it with: open-mpi or mpich [default: mpich where the first mpirun in PATH is MPICH's, else open-mpi]
    #[arg(long)]
    pub mpi: Option<Flavour>,
    /// The profile's file [default: profiles/APPLICATION.json]
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// Which application is meant. Whether one has to be named is up to the command.
#[derive(Debug, Clone, Args)]
pub struct Chosen {
    /// The application: a name in apps/, or a file ending in .toml
    pub application: Option<String>,
    // One that is there already, instead.
    #[arg(skip)]
    pub made: Option<Application>,
}

impl From<&str> for Chosen {
    fn from(name: &str) -> Self {
        Self { application: Some(name.into()), made: None }
    }
}

impl From<Application> for Chosen {
    fn from(made: Application) -> Self {
        Self { application: None, made: Some(made) }
    }
}

#[derive(Debug, Args)]
#[command(after_help = manual::PROFILE)]
#[command(mut_arg("application", |argument| argument.required(true)))]
pub struct ProfileArguments {
    #[command(flatten)]
    pub application: ApplicationArguments,
    /// Measure these parameter values only, as in size=512,256; repeat for other parameters
    #[arg(long = "set", value_name = "NAME=VALUE[,VALUE]")]
    pub set: Vec<String>,
    /// Numbers of nodes to measure [default: all that the application and the cluster allow]
    #[arg(long, value_delimiter = ',')]
    pub nodes: Vec<u32>,
    /// Bandwidths per flow that a point may have [default: those that the file has, or 6 steps from a fifth
    /// of what the links can promise on all these numbers of nodes]
    #[arg(long, value_delimiter = ',')]
    pub bandwidths: Vec<BitsPerSecond>,
    /// Runs at each bandwidth: exactly so many with --full, otherwise at most
    #[arg(long, default_value_t = 3)]
    pub samples: usize,
    /// A curve is known when no time of it is farther off than this, by what leaving single runs out
    /// changes. Four runs show its shape; each further one is made where least is known
    #[arg(long, default_value = "5 %")]
    pub precision: Share,
    /// A curve takes so many runs at the most, known or not [default: a third of the full grid's, and
    /// six at least: with 6 bandwidths and 3 samples six of 18, with 12 bandwidths twelve of 36]
    #[arg(long)]
    pub runs: Option<usize>,
    /// Measure every bandwidth --samples times instead
    #[arg(long, conflicts_with_all = ["precision", "runs"])]
    pub full: bool,
    /// In a lab: measure beside greedy best-effort flows on all links, as in a cluster that others use
    /// too: their packets cost the nodes CPU that no reservation gives back. It ends after an hour, known or
    /// not; the same command goes on
    #[arg(long)]
    pub under_load: bool,
    /// Start anew instead of going on with what the file has
    #[arg(long)]
    pub fresh: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// A goal in the user's terms.
#[derive(Debug, Clone, Args)]
pub struct GoalArguments {
    /// The longest execution time that will do, as in 1s or 250ms
    #[arg(long)]
    pub within: Option<Nanos>,
    /// The shortest execution time that will do
    #[arg(long)]
    pub at_least: Option<Nanos>,
    /// A parameter that must have this value; repeat for others
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// The number of nodes, where it must be this one; with --by the fewest and the most, as in 2..8
    #[arg(short = 'n', long)]
    pub nodes: Option<NodeCounts>,
    /// What to take among all that satisfies the goal: fastest (all that makes it faster, by however little), best (by
    /// the application's order of parameters), cheapest (the fewest resources that keep it), or balanced (fast while the
    /// cluster is idle, less the more of it is reserved)
    #[arg(long, default_value = "fastest")]
    pub prefer: Preference,
    /// How often a promised time is to be kept [default: 90 %, or as often as the measured runs support]. More
    /// than they support is refused
    #[arg(long)]
    pub quantile: Option<Share>,
}

impl GoalArguments {
    /// The goal that was stated.
    ///
    /// # Errors
    /// If a `--set` is not `NAME=VALUE`, or names a parameter twice; several numbers of nodes.
    pub fn goal(&self) -> Result<Goal, keeptime_model::Invalid> {
        let mut set = Parameters::new();
        for text in &self.set {
            let (name, value) = parse_setting(text)?;
            if set.insert(name, value).is_some() {
                return Err(keeptime_model::Invalid::new("set", text, "each parameter once"));
            }
        }
        let (at_least, within) = (self.at_least, self.within);
        let nodes = self.nodes.as_ref().map(NodeCounts::only).transpose()?;
        let (prefer, quantile) = (self.prefer, Some(self.quantile.unwrap_or(QUANTILE)));
        Ok(Goal { at_least, within, set, nodes, prefer, quantile })
    }
}

#[derive(Debug, Args)]
#[command(after_help = manual::PLAN)]
#[command(mut_arg("application", |argument| argument.required(true)))]
#[command(mut_arg("nodes", |argument| argument.help("The number of nodes, where it must be this one")))]
pub struct PlanArguments {
    #[command(flatten)]
    pub application: ApplicationArguments,
    #[command(flatten)]
    pub goal: GoalArguments,
    /// Print JSON instead of a story
    #[arg(long)]
    pub json: bool,
}

/// What goes with neither --rate nor --by. What needs one of these has to name them, too: what is in the way of an option is
/// in the way of its being needed.
const NOT_AT_A_RATE: [&str; 7] =
    ["unprotected", "within", "at_least", "reservation", "steady", "spare", "by"];
const NOT_BY_A_TIME: [&str; 7] =
    ["unprotected", "within", "at_least", "reservation", "steady", "spare", "rate"];

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("runnable").required(true).args(["application", "command"])))]
pub struct RunArguments {
    #[command(flatten)]
    pub application: ApplicationArguments,
    #[command(flatten)]
    pub goal: GoalArguments,
    /// Run in this reservation, which was made for a goal of the application (keeptime reserve --app), once it
    /// begins; it is kept
    #[arg(long = "in", value_name = "HANDLE", conflicts_with_all = ["unprotected", "within", "at_least",
        "set", "nodes", "prefer", "quantile", "rate", "by"])]
    pub reservation: Option<Handle>,
    /// Run on the planned nodes without reserving anything, to compare
    #[arg(long)]
    pub unprotected: bool,
    /// Have it take the time that is promised, not less: CPU that it does not need for that is lent to others
    /// while it runs. Its application file says by which lines it tells `progress`, and its `time` (not "wall")
    #[arg(long, conflicts_with_all = ["unprotected", "rate", "by"])]
    pub steady: bool,
    /// Let it use bandwidth that nobody has reserved, too, until somebody does: it may take less than is
    /// promised, and is promised nothing more
    #[arg(long, conflicts_with_all = ["unprotected", "steady", "reservation", "rate", "by"])]
    pub spare: bool,
    /// What keeps its share of the CPU on every node: deadline (the kernel's SCHED_DEADLINE), bandwidth (of control
    /// groups), user-level (earliest deadline first from user space), or auto, whichever serves. It gets nodes
    /// where that serves, or is refused
    #[arg(long, default_value = "auto", conflicts_with_all = ["unprotected", "reservation"])]
    pub mechanism: CpuMechanism,
    /// Instead of a time, hold it at this part of full speed, as in "30 %", on --nodes nodes [default:
    /// the fewest that it can use]. Its time limit, which is for full speed, is as much longer
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["unprotected", "within", "at_least"])]
    pub rate: Option<Share>,
    /// How far from --rate is near enough, in parts of full speed [default: 2 %]
    #[arg(long, value_name = "SHARE", requires = "rate", conflicts_with_all = NOT_AT_A_RATE)]
    pub threshold: Option<Share>,
    /// Measure the full speed that --rate is a part of, even if an earlier run has: it begins with all CPU that
    /// its application file asks for
    #[arg(long, requires = "rate", conflicts_with_all = NOT_AT_A_RATE)]
    pub measure: bool,
    /// It must be done by then: start it when, on as many of --nodes, and as fast as that takes. As in
    /// 18:00, "tomorrow 9:00" or +2h
    #[arg(long, value_name = "TIME", conflicts_with_all = ["unprotected", "within", "at_least", "rate"])]
    pub by: Option<String>,
    /// How long the whole run takes at full speed on the fewest of --nodes [default: as the profile says,
    /// where that is the time of a whole run]. For a program without a profile it has to be said
    #[arg(long, value_name = "SPAN", requires = "by", conflicts_with_all = NOT_BY_A_TIME)]
    pub takes: Option<Nanos>,
    /// How many units of work the whole run has, as its progress tells them: where it is slower than was planned, what it
    /// takes is reserved for it early, or you are told when it will be done. Without it a run that takes longer is given more
    /// time bit by bit, and ended at its deadline [default: `work` of its application file]
    #[arg(long, value_name = "UNITS", requires = "by")]
    pub work: Option<NonZeroU64>,
    /// Where it cannot be kept now, reserve it for the first time at which it can, and begin then, if that is no
    /// later than so long from now. If no such time is known, wait for what others give back before their
    /// time, an hour at the most. With --by: begin all the same as soon as there is room, promised nothing and
    /// as slow as others need, if nobody gives back so much before that it can be promised
    #[arg(long, value_name = "SPAN", conflicts_with_all = ["unprotected", "reservation", "rate"])]
    pub wait: Option<Nanos>,
    /// Go on without this terminal once it is granted, or waits for its time or for room: this command then tells
    /// how to look and how to end it, and ends. What is refused is told here, as ever
    #[arg(long)]
    pub detach: bool,
    /// What --detach says is added to this file, with how it ended as the last line [default: keeptime-PID.out, by the
    /// number of its process]
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub output: Option<PathBuf>,
    /// The one that goes on: what --detach starts
    #[arg(long, hide = true, requires = "detach")]
    pub detached: bool,
    /// Print JSON instead of a story; what the program prints goes to standard error then, each line behind
    /// "  | ": with --detach, to the same file
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub program: ProgramArguments,
}

/// A program that has no application file, and what such a file would say of it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Program without an application file")]
pub struct ProgramArguments {
    /// A program and its arguments, instead of an application: with --nodes and either --rate, or --by and --takes.
    /// Keeptime starts one rank on each of --nodes itself: mpiexec, mpirun, srun and their like before it are left out
    // What it needs is checked with the program, so that all of it is told at once.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["set", "reservation", "unprotected", "steady",
        "spare"])]
    pub command: Vec<String>,
    /// CPU of each rank at full speed; 100 % is one processor [default: 100 %]
    #[arg(long, value_name = "SHARE", conflicts_with = "application")]
    pub cpu: Option<CpuPpm>,
    /// Who sends to whom, which says how many nodes it can use: hypercube, all-to-all, ring, pairs, or flows as in
    /// "0>1 1>0". No bandwidth is reserved: only a profile tells how much [default: all-to-all]
    #[arg(long, conflicts_with = "application")]
    pub pattern: Option<Pattern>,
    /// At full speed it is ended after so long [default: 24h]
    #[arg(long, value_name = "SPAN", conflicts_with = "application")]
    pub limit: Option<Nanos>,
    /// A line on its standard output that begins with this word is one unit of work done: by that --rate corrects.
    /// With "MPI calls", it does so by what the program's MPI calls tell, where libkeeptime_mpi is linked in or
    /// preloaded. Without, it has its part of the CPU, whatever it makes of it
    #[arg(long, value_name = "WORD", conflicts_with = "application")]
    pub progress: Option<String>,
    /// Or this command of a shell prints how many units of work are done in all, as the first word of its last line. It is run
    /// once a second where this is
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["application", "progress"])]
    pub progress_command: Option<String>,
}

impl ProgramArguments {
    /// Whether there is one.
    pub fn is_given(&self) -> bool {
        !self.command.is_empty()
    }
}

/// Requests are sent at their times, whether earlier ones were answered or not; their times count from
/// when they were meant to be sent. No request is ever sent twice. Exit code 2 where none was answered.
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Sites, as in http://10.0.0.1:80/page; {} in a path stands for a file's rank (see --files)
    #[arg(required = true, value_name = "URL")]
    pub targets: Vec<Target>,
    /// Requests a second, at random times (Poisson), over all sites
    #[arg(long, default_value_t = 100.0, conflicts_with = "replay")]
    pub rate: f64,
    /// Send to one site after the other, so many requests each, instead of to any at random
    #[arg(long, value_name = "REQUESTS", conflicts_with = "replay")]
    pub burst: Option<u64>,
    /// Send as many in each --step as the lines of this file say (PERIOD,COUNT)
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// How long a line of the replayed file lasts
    #[arg(long, default_value = "1s", requires = "replay", conflicts_with_all = ["rate", "burst"])]
    pub step: Nanos,
    /// What the counts of the replayed file are multiplied by
    #[arg(long, default_value_t = 1.0, requires = "replay", conflicts_with_all = ["rate", "burst"])]
    pub scale: f64,
    /// Until when requests are sent [default: 10s, or as long as the replayed file]
    #[arg(long)]
    pub duration: Option<Nanos>,
    /// POST so many bytes with each request, instead of GET
    #[arg(long, value_name = "BYTES")]
    pub post: Option<u32>,
    /// Ask for so many files, the first most often (Zipf's law)
    #[arg(long)]
    pub files: Option<u32>,
    /// The exponent of Zipf's law
    #[arg(long, default_value_t = 1.0, requires = "files")]
    pub exponent: f64,
    /// At most so many connections at a time
    #[arg(long, default_value_t = 256)]
    pub connections: u32,
    /// How long an answer is waited for and, after the end, a connection
    #[arg(long, default_value = "10s")]
    pub timeout: Nanos,
    /// Where random numbers start: the same number sends the same requests at the same times
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum RateCommand {
    /// Run at another part of full speed from now on: all nodes, or none
    #[command(after_help = manual::RATE_SET)]
    Set {
        /// The job, as in r17
        job: Handle,
        /// The part of full speed, as in "40 %"
        #[arg(allow_hyphen_values = true)]
        rate: Share,
        /// Print how it stands as JSON, or why it stays at its rate
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Box<BrokerPlace>,
    },
}

#[derive(Debug, Args)]
pub struct TopArguments {
    /// Show them once and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON once and end
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: BrokerPlace,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keeptime demo --out out/demo && keeptime report out/demo\n  \
    make bench-plan && keeptime report out     # all figures that are in out\n\n\
    The page is DIRECTORY/report.html. Figures are shown with their spread,\n\
    samples, baseline, target, command and machine; files that are neither\n\
    figures nor their raw data are named and left out.")]
pub struct ReportArguments {
    /// The directory with the results: of keeptime demo (demo.json and pictures), or of make bench-NAME and
    /// make eval-NAME (NAME.json with figures, NAME/raw.json)
    pub directory: PathBuf,
}

#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Where results and the report go: a directory that the lab's nodes see, which have a /tmp of their own
    #[arg(long, default_value = "out/demo")]
    pub out: PathBuf,
    /// The lab's name
    #[arg(long, default_value = "demo")]
    pub lab: Name,
    /// Leave the lab up at the end
    #[arg(long)]
    pub keep: bool,
}

#[derive(Debug, Subcommand)]
pub enum TrafficCommand {
    /// Receive connections and tell as JSON what arrived
    Receive {
        #[arg(long, default_value_t = 5001)]
        port: u16,
        #[arg(long, default_value_t = 1)]
        connections: usize,
        #[arg(long, default_value = "1s")]
        warmup: Nanos,
        #[arg(long, default_value = "5s")]
        length: Nanos,
        #[arg(long, default_value = "0s")]
        cooldown: Nanos,
    },
    /// Send as fast as it goes until the receiver has enough
    Send {
        /// ADDRESS:PORT
        to: std::net::SocketAddrV4,
        #[arg(long, default_value = "60s")]
        limit: Nanos,
    },
    /// Send datagrams at a rate, whether they arrive or not
    Blast {
        /// ADDRESS:PORT
        to: std::net::SocketAddrV4,
        #[arg(long, default_value = "10Mbit")]
        rate: BitsPerSecond,
        #[arg(long, default_value = "60s")]
        limit: Nanos,
    },
}
