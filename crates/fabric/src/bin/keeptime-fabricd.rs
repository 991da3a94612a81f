//! `keeptime-fabricd`: the directory server of a node.

use keeptime_fabric::directory::{DEFAULT_NAME, Server, ServerConfig};
use nix::sys::signal::{SigSet, Signal};
use std::net::SocketAddr;
use std::process::ExitCode;

const USAGE: &str = "\
usage: keeptime-fabricd --node NAME [--address IP:PORT] [--member IP:PORT]... [--name NAME]

  --node NAME        the node's name, unlike that of any other node
  --address IP:PORT  where the servers of other nodes reach this one (default 127.0.0.1:0: none do)
  --member IP:PORT   where another server is; the rest is learned from it
  --name NAME        what programs of this node ask for (default keeptime-fabric)";

fn main() -> ExitCode {
    let config = match parse(std::env::args().skip(1)) {
        Ok(config) => config,
        Err(why) => {
            eprintln!("keeptime-fabricd: {why}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    // Before the server's thread is made, so that it inherits that signals are waited for here.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    let run = || {
        signals.thread_block()?;
        let server = Server::start(config)?;
        println!("listening on {}", server.address());
        signals.wait()?;
        std::io::Result::Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keeptime-fabricd: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<ServerConfig, String> {
    let (mut node, mut name) = (None, DEFAULT_NAME.to_string());
    let mut address: SocketAddr = ([127, 0, 0, 1], 0).into();
    let mut members = Vec::new();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let place = || value.parse().map_err(|_| format!("{word} {value}: expected IP:PORT"));
        match word.as_str() {
            "--node" => node = Some(value),
            "--name" => name = value,
            "--address" => address = place()?,
            "--member" => members.push(place()?),
            _ => return Err(format!("{word} is not known")),
        }
    }
    let node = node.filter(|node| !node.is_empty()).ok_or("--node NAME is needed")?;
    Ok(ServerConfig { name, node, address, members })
}
