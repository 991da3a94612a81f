//! The words about the broker and reservations.

use super::door::{CertificatesArguments, TokenCommand};
use super::{NodeNames, manual};
use clap::{Args, Subcommand};
use keeptime_broker::remote::Address;
use keeptime_broker::wire::Position;
use keeptime_model::Invalid;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::goal::Preference;
use keeptime_model::loss::OnLoss;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Handle, RequestKey, State, UserName};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum BrokerCommand {
    /// Run the cluster's broker in the foreground
    ///
    /// It keeps every reservation in its ledger, lets users ask over its socket, and tells the agents
    /// what to enforce. When it is down, agents keep what was granted until its end.
    #[command(after_long_help = manual::BROKER_RUN)]
    Run {
        /// Its configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Check the configuration and the topology, and end
        #[arg(long)]
        check: bool,
        /// Print the configuration with every default, and end
        #[arg(long)]
        print_config: bool,
    },
    /// Copy what is good of a damaged ledger into a new one
    ///
    /// Nothing is guessed: the new ledger ends at the last good revision, and the damaged one stays as
    /// it is. What was acknowledged later is lost if a broker goes on from the new one: agents withdraw
    /// what it does not know.
    #[command(after_help = manual::SALVAGE)]
    Salvage {
        /// The damaged ledger, which no broker uses
        damaged: PathBuf,
        /// Where the new one is made
        #[arg(long, value_name = "PATH")]
        into: PathBuf,
        /// Print JSON instead of sentences
        #[arg(long)]
        json: bool,
    },
    /// Record that this machine's clock is right, where the ledger says that it is later
    ///
    /// A broker does not start where its clock is more than a minute behind the ledger's last record: time would stand still
    /// until it has caught up. Mostly the clock is wrong, and is to be set. Where it is right, and was ahead when that was
    /// recorded, brokers go on by the clock after this. What was ended meanwhile stays so.
    #[command(after_help = manual::ACCEPT_CLOCK)]
    AcceptClock {
        /// The configuration file of the broker
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Print a topology file, to start from, by what Slurm knows of its nodes and switches
    ///
    /// It asks `scontrol show nodes` and `scontrol show topology`. Slurm knows no rates, so they are said. Nodes have all of
    /// their processors: less is promised where `cpu` says so, here and in the node's agent.toml.
    #[command(after_help = "Example:\n  \
        keeptime broker topology --rate \"25 Gbit/s\" --uplink \"100 Gbit/s\" \\\n      \
            > /etc/keeptime/topology.toml")]
    Topology {
        /// Rate of every node's link, per direction
        #[arg(long)]
        rate: BitsPerSecond,
        /// Rate of the links between switches, per direction, where there are some
        #[arg(long)]
        uplink: Option<BitsPerSecond>,
        /// What the cluster is to be called
        #[arg(long, default_value = "cluster")]
        name: Name,
    },
    /// The tokens by which users are known over the network
    #[command(subcommand)]
    Token(TokenCommand),
    /// Make certificates for the broker, nodes and users, and an authority that issues them
    Certificates(CertificatesArguments),
}

/// What heads the arguments of [`BrokerPlace`] in help texts.
// It is said of each of them: said of all, it would be the heading of whatever a command's own arguments follow.
const HEADING: &str = "Broker";

/// Which broker to ask, and what to show there.
// What is typed says by itself which broker is meant: `place` reads the two variables, where neither is.
#[derive(Debug, Clone, Args)]
pub struct BrokerPlace {
    /// The path of its socket, or https://HOST:PORT [env: KEEPTIME_BROKER, unless --lab is given]
    /// [default: that of the client configuration, or else of the lab]
    #[arg(long, value_name = "SOCKET|URL", conflicts_with = "lab", help_heading = HEADING)]
    pub broker: Option<Address>,
    /// The lab whose broker to ask [env: KEEPTIME_LAB] [default: lab]
    #[arg(long, help_heading = HEADING)]
    pub lab: Option<Name>,
    /// For https: the authority that issued the broker's certificate (PEM)
    #[arg(long, value_name = "FILE", env = "KEEPTIME_CA", help_heading = HEADING)]
    pub ca: Option<PathBuf>,
    /// For https: your certificate (PEM)
    #[arg(long, value_name = "FILE", env = "KEEPTIME_CERTIFICATE", help_heading = HEADING)]
    pub certificate: Option<PathBuf>,
    /// For https: the key of your certificate (PEM, mode 0600)
    #[arg(long, value_name = "FILE", env = "KEEPTIME_CERTIFICATE_KEY", help_heading = HEADING)]
    pub certificate_key: Option<PathBuf>,
    /// For https: your token, instead of a certificate (mode 0600)
    #[arg(long, value_name = "FILE", env = "KEEPTIME_TOKEN_FILE", help_heading = HEADING)]
    pub token_file: Option<PathBuf>,
    /// The file that has what is not given [default: ~/.config/keeptime/client.toml, or
    /// /etc/keeptime/client.toml]
    #[arg(long, value_name = "FILE", env = "KEEPTIME_CLIENT_CONFIG", help_heading = HEADING)]
    pub client_config: Option<PathBuf>,
}

impl BrokerPlace {
    /// That of a lab.
    pub fn of_lab(name: Name) -> Self {
        Self {
            broker: None,
            lab: Some(name),
            ca: None,
            certificate: None,
            certificate_key: None,
            token_file: None,
            client_config: None,
        }
    }
}

/// What is wanted, and when.
#[derive(Debug, Clone, Default, Args)]
pub struct Wanted {
    /// What it is called in lists, as in solver; others may have the same name
    #[arg(long)]
    pub name: Option<Name>,
    /// How many nodes, or their names in order of rank, as in n1,n2 or "n[1-4],n7"
    #[arg(long, value_name = "NUMBER|NAMES")]
    pub nodes: Option<String>,
    /// Only some of these, as in n1,n2 or "n[1-4],n7" [default: within a job of Slurm's those of the job, else any]
    #[arg(long, value_name = "NAMES")]
    pub among: Vec<NodeNames>,
    /// CPU on each node, or for each rank where they work unequally, as in 40%,20%; 100 % is one processor. Without,
    /// what runs in the reservation shares the CPU that nobody has reserved
    #[arg(long, value_name = "SHARE", value_delimiter = ',')]
    pub cpu: Vec<CpuPpm>,
    /// The share of CPU is had once in each period of so long, as in 20ms [default: 10ms, by the nodes' own clocks]
    #[arg(long)]
    pub period: Option<Nanos>,
    /// What keeps the share of CPU: deadline (the kernel's SCHED_DEADLINE), bandwidth (of control groups), user-level
    /// (earliest deadline first from user space), or auto, whichever serves. Only nodes where it serves are granted
    /// [default: auto]
    #[arg(long)]
    pub mechanism: Option<CpuMechanism>,
    /// Who sends to whom: hypercube, all-to-all, ring, pairs, or flows as in "0>1 1>0"
    #[arg(long)]
    pub pattern: Option<Pattern>,
    /// Bandwidth of each flow of the pattern
    #[arg(long, visible_alias = "rate")]
    pub bandwidth: Option<BitsPerSecond>,
    /// What is read from the disk of each node, per second
    #[arg(long)]
    pub read: Option<BytesPerSecond>,
    /// What is written to the disk of each node, per second
    #[arg(long)]
    pub write: Option<BytesPerSecond>,
    /// Of a goal: the longest execution time that will do
    #[arg(long)]
    pub within: Option<Nanos>,
    /// Of a goal: the shortest execution time that will do
    #[arg(long)]
    pub at_least: Option<Nanos>,
    /// Of a goal: a parameter that must have this value; repeat for others
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Of a goal: what to take among all that satisfies it: fastest (all that makes it faster, by however little), best
    /// (by the application's order of parameters), cheapest, or balanced (less the more is reserved) [default: fastest]
    #[arg(long)]
    pub prefer: Option<Preference>,
    /// When it starts: 14:00, "tomorrow 9:00", "2026-11-30 8:00", +30min, or RFC 3339 [default: now]
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// How long it lasts, as in 30min, 2h30m, 1:30:00 or 1-12:00 (days first) [default: until it is cancelled]
    #[arg(long = "for", value_name = "SPAN")]
    pub duration: Option<Nanos>,
    /// When it ends, instead of how long it lasts
    #[arg(long, value_name = "TIME", conflicts_with = "duration")]
    pub until: Option<String>,
    /// When one of its nodes goes away: offer, so that `keeptime move` has it moved, or move, at once, for
    /// the time that is left [default: as the application says, or offer]
    #[arg(long, value_name = "POLICY")]
    pub on_loss: Option<OnLoss>,
    /// Whether the flows of the pattern may use bandwidth that nobody has reserved, too, until somebody does
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub spare: Option<bool>,
    /// It has until then: for others that would not fit it has less CPU for longer, and when there is room more for a
    /// shorter time, share times time being what --cpu and --for say. Not for goals
    #[arg(long, value_name = "TIME")]
    pub by: Option<String>,
    /// With --by: more CPU than this makes it no faster [default: as much as --cpu]
    #[arg(long, value_name = "SHARE")]
    pub cpu_most: Option<CpuPpm>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keeptime reserve --nodes 2 --cpu 20% --for 1h\n  \
    keeptime reserve --nodes n1,n2 --cpu 10% --pattern pairs \\\n      \
        --bandwidth \"20 Mbit/s\" --from 14:00 --until 15:30\n  \
    keeptime reserve --nodes n1,n2 --pattern \"0>1\" --bandwidth 50Mbit \\\n      \
        --from 22:00 --for 2h                               # bandwidth alone\n  \
    keeptime reserve --nodes \"n[1-4]\" --cpu 20% --for 1h   # n1 to n4\n  \
    keeptime reserve --nodes 4 --cpu 80% --for 2h --by 18:00\n  \
    keeptime reserve --nodes 2 --cpu 20% --for 1h --wait 10min\n  \
    keeptime reserve --application raycast --within 1s \\\n      \
        --from \"tomorrow 9:00\" --for 30min\n\n\
    Exit code 1: refused, with the reason and what would be admitted.")]
pub struct ReserveArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// State a goal of this application instead of resources; see `keeptime register`
    #[arg(long, visible_alias = "app", value_name = "NAME")]
    pub application: Option<Name>,
    #[command(flatten)]
    pub wanted: Wanted,
    /// Where it does not fit now, wait so long for what others give back, an hour at the most
    #[arg(long, value_name = "SPAN", conflicts_with_all = ["from", "until", "by", "dry_run"])]
    pub wait: Option<Nanos>,
    /// The request's own key: sent again with it, it is carried out once [default: a new one]
    #[arg(long)]
    pub key: Option<RequestKey>,
    /// Only ask whether and how it would be granted
    #[arg(long)]
    pub dry_run: bool,
    /// Print the handle of what was granted, and nothing else: for scripts, which find why something is refused on the
    /// standard error
    #[arg(short, long, conflicts_with_all = ["json", "dry_run"])]
    pub quiet: bool,
    /// Print JSON instead of a sentence
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = manual::MODIFY)]
#[command(mut_arg("among", |argument| argument.help("Only some of these, as in n1,n2 or \"n[1-4],n7\"")))]
pub struct ModifyArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Which, as in r17
    pub handle: Handle,
    #[command(flatten)]
    pub wanted: Wanted,
    /// Print JSON instead of a sentence
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = manual::LIST)]
pub struct ListArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Also those that are over, but for what was refused, which is counted; JSON has that, too
    #[arg(long)]
    pub all: bool,
    /// Only those of this user
    #[arg(long, value_name = "USER")]
    pub owner: Option<UserName>,
    /// Only those in this state: waiting, offered, granted, active, ended, done, cancelled, refused,
    /// failed or lost
    #[arg(long, value_parser = state)]
    pub state: Option<State>,
    /// Only those on this node
    #[arg(long)]
    pub node: Option<Name>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = manual::CANCEL)]
pub struct CancelArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Which, as in r17
    #[arg(required = true, value_name = "HANDLE")]
    pub handles: Vec<Handle>,
    /// Print JSON instead of sentences
    #[arg(long)]
    pub json: bool,
}

// One reservation.
#[derive(Debug, Args)]
pub struct OneArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Which, as in r17
    pub handle: Handle,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = manual::WATCH)]
pub struct WatchArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Only this one, until it is over [default: all, until interrupted]
    pub handle: Option<Handle>,
    /// Begin after this event, as in 12-0; 0-0 is the beginning [default: from now on]
    #[arg(long, value_name = "ID", value_parser = event)]
    pub after: Option<Position>,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WhoamiArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Print JSON instead of a sentence
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AtArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// For another moment than now, as in 14:00 or +2h
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = manual::TIMELINE)]
pub struct TimelineArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// Where it begins [default: now]
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Where it ends
    #[arg(long, value_name = "TIME", default_value = "+24h")]
    pub to: String,
    /// Write a picture
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON instead of a chart
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = manual::REGISTER)]
pub struct RegisterArguments {
    #[command(flatten)]
    pub place: BrokerPlace,
    /// The application: a name in apps/, or a file ending in .toml
    pub application: String,
    /// The profile's file [default: profiles/APPLICATION.json]
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// The MPI to start it with: open-mpi or mpich [default: mpich where the first mpirun in PATH is MPICH's, else open-mpi]
    #[arg(long)]
    pub mpi: Option<keeptime_launch::mpi::Flavour>,
    /// Print what is known then as JSON
    #[arg(long)]
    pub json: bool,
}

/// The id of an event, by the option: the broker knows it by its header.
fn event(text: &str) -> Result<Position, Invalid> {
    text.parse().map_err(|invalid| Invalid { field: "after".into(), ..invalid })
}

fn state(text: &str) -> Result<State, Invalid> {
    use State::{Active, Cancelled, Done, Ended, Failed, Granted, Lost, Offered, Refused, Waiting};
    let all = [Waiting, Offered, Granted, Active, Ended, Done, Cancelled, Refused, Failed, Lost];
    let found = all.into_iter().find(|state| state.to_string() == text);
    let names = all.map(|state| state.to_string()).join(", ");
    found.ok_or_else(|| Invalid::new("state", text, names))
}
