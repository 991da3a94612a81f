//! `keeptime-dht`: a distributed hash table on the fabric.

mod bench;

use anyhow::{Context as _, Result};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};
use keeptime_dht::client::{Client, Found};
use keeptime_dht::misses::Misses;
use keeptime_dht::server::Server;
use keeptime_fabric::directory::DEFAULT_NAME;
use keeptime_fabric::{Callers, Config, DAEMON_VARIABLE, daemon_name};
use nix::sys::signal::{SigSet, Signal};
use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// A distributed hash table, kept by servers that come and go, on any nodes of a fabric.
///
/// Exit codes: 0 done, 1 not found or lost, 2 error, 64 usage.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Place {
    /// The table
    #[arg(long, value_name = "NAME", default_value = "dhash", global = true)]
    name: String,
    /// The directory to ask, as the --name of the node's keeptime-fabricd
    #[arg(long, value_name = "NAME", env = DAEMON_VARIABLE, default_value = DEFAULT_NAME, global = true)]
    #[arg(value_parser = |said: &str| Ok::<_, Infallible>(daemon_name(said)))]
    directory: String,
    /// Where other nodes reach this program; [::]: on every network of the node, that of IPv4 too
    #[arg(long, value_name = "IP:PORT", default_value = "[::]:0", global = true)]
    listen: SocketAddr,
    /// Speak with programs of every user, not of this one and root alone
    #[arg(long, global = true)]
    any_user: bool,
    /// Share of messages before which the directory is asked where their receiver is, as if it was not
    /// known: 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_misses, global = true)]
    misses: Misses,
    /// How many seconds a client tries
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds(), global = true)]
    patience: u64,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keep a part of the table until SIGTERM, then hand it over to other servers
    Serve {
        /// Partitions to get; more come when other servers leave
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
        partitions: u16,
        /// How many seconds handing over may take
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds())]
        leave_within: u64,
        #[command(flatten)]
        place: Place,
    },
    /// Store a value
    Store {
        /// Under which key
        key: String,
        /// The value
        value: String,
        #[command(flatten)]
        place: Place,
    },
    /// Print what is stored
    Get {
        /// Under which key
        key: String,
        #[command(flatten)]
        place: Place,
    },
    /// List partitions: what each has had when it was made, and its resource
    Status {
        #[command(flatten)]
        place: Place,
    },
    /// Store values, and query them from many threads; prints JSON
    Bench {
        #[command(flatten)]
        bench: bench::Arguments,
        #[command(flatten)]
        place: Place,
    },
}

impl Place {
    fn config(&self) -> Result<Config> {
        let mut config = Config::from_environment_but(&[DAEMON_VARIABLE])?;
        config.directory.clone_from(&self.directory);
        config.listen = self.listen;
        if self.any_user {
            config.callers = Callers::AnyUser;
        }
        Ok(config)
    }

    fn client(&self) -> Result<Client> {
        let patience = Duration::from_secs(self.patience);
        Ok(Client::open(self.config()?, &self.name, patience, self.misses)?)
    }
}

/// Up to a year: what is added to the time of now has to be a time.
fn seconds() -> RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(..=365 * 24 * 3600)
}

fn parse_misses(text: &str) -> Result<Misses, String> {
    let share = text.parse().ok().and_then(Misses::new);
    share.ok_or_else(|| "expected a number from 0 to 1".into())
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // If nobody reads it, there is nobody to tell.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match run(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("keeptime-dht: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Serve { partitions, leave_within, place } => {
            serve(&place, partitions.into(), Duration::from_secs(leave_within))
        }
        Command::Store { key, value, place } => {
            place.client()?.store(key.as_bytes(), value.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Get { key, place } => get(&place, &key),
        Command::Status { place } => status(&place),
        Command::Bench { bench, place } => {
            bench::run(&bench, &|| place.client())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn serve(place: &Place, partitions: usize, leave_within: Duration) -> Result<ExitCode> {
    // Before any thread is made, so that all inherit that signals are waited for here.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let server = Server::start(place.config()?, &place.name, partitions, place.misses)?;
    println!("serving table {}", place.name);
    std::io::stdout().flush()?;
    signals.wait()?;
    match server.leave(leave_within) {
        0 => Ok(ExitCode::SUCCESS),
        behind => {
            eprintln!(
                "keeptime-dht: {behind} partitions were taken by nobody: what they had is lost"
            );
            Ok(ExitCode::from(1))
        }
    }
}

fn get(place: &Place, key: &str) -> Result<ExitCode> {
    match place.client()?.query(key.as_bytes())? {
        Found::Value(value) => {
            let mut out = std::io::stdout();
            out.write_all(&value).and_then(|()| out.write_all(b"\n")).context("standard output")?;
            return Ok(ExitCode::SUCCESS);
        }
        Found::Nothing => eprintln!("keeptime-dht: nothing is stored under {key:?}"),
        Found::Lost => eprintln!(
            "keeptime-dht: nothing is there for {key:?}; it may have been lost with a server"
        ),
    }
    Ok(ExitCode::from(1))
}

fn status(place: &Place) -> Result<ExitCode> {
    let chart = place.client()?.chart()?;
    let mut partitions: Vec<_> = chart.partitions().collect();
    partitions.sort_by_key(|living| (living.extent, living.generation));
    for living in &partitions {
        println!("{} {}", living.extent, living.id);
    }
    println!("{} partitions, {} servers", partitions.len(), chart.servers().len());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_clock_and_no_memory_holds_is_refused() {
        let most = u64::MAX.to_string();
        let year = (365 * 24 * 3600).to_string();
        for (words, good) in [
            (["get", "key", "--patience"], year.as_str()),
            (["serve", "--partitions=1", "--leave-within"], "0"),
            (["bench", "--clients=1", "--value-bytes"], "16777216"),
        ] {
            let parse = |last| {
                let all = std::iter::once("keeptime-dht").chain(words).chain([last]);
                Arguments::try_parse_from(all)
            };
            assert!(parse(good).is_ok(), "{words:?} {good}");
            assert!(parse(&most).is_err(), "{words:?} {most}");
        }
    }
}
