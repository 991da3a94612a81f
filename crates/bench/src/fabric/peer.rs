//! The other process, on the second core: answers until this one ends.

use super::{CORES, Way, context, pin, tcp};
use anyhow::{Context as _, Result, bail};
use keeptime_fabric::{Match, Resource, Tag, attrs};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Is sent back with tag 0.
pub const QUESTION: Tag = Tag(1);
/// Is dropped.
pub const STREAM: Tag = Tag(2);
/// Is answered when everything before was received.
pub const FINISH: Tag = Tag(3);

/// What it is to be.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    words: Vec<String>,
}

/// The other process, seen from this one. It ends with its standard input.
pub struct Peer {
    child: Child,
    said: String,
}

impl Peer {
    /// This program as another process.
    pub fn of_ours(words: &[&str]) -> Result<Self> {
        Self::start(Command::new(std::env::current_exe()?).arg("fabric-peer").args(words))
    }

    /// Starts it on the second core, and waits for what it says when it is ready.
    pub fn start(command: &mut Command) -> Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn_on(CORES[1], command)?;
        let stdout = child.stdout.take().context("its output")?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        Ok(Self { child, said: said.trim().into() })
    }

    pub fn said(&self) -> &str {
        &self.said
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Starts a program that stays on `core`: processes begin where the thread that starts them is.
pub fn spawn_on(core: usize, command: &mut Command) -> Result<Child> {
    let spawn = || {
        pin(core)?;
        command.spawn().with_context(|| format!("starting {command:?}"))
    };
    thread::scope(|scope| scope.spawn(spawn).join())
        .unwrap_or_else(|_| bail!("the thread that starts programs has panicked"))
}

/// Is the other process.
pub fn run(arguments: &Arguments) -> Result<()> {
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    match words[..] {
        ["tcp", spin] => {
            let server = tcp::Server::at(Ipv4Addr::LOCALHOST, spin.parse()?)?;
            say(&server.address()?.to_string())?;
            thread::spawn(move || server.serve());
        }
        ["fabric", directory, way, spin, threads] => {
            let context = context(directory, way_named(way)?, spin.parse()?)?;
            let register = |_| context.register(attrs! { "role" => "answers" });
            let resources = (0..threads.parse()?).map(register).collect::<Result<Vec<_>, _>>()?;
            let names: Vec<_> = resources.iter().map(|r| r.id().to_string()).collect();
            for resource in resources {
                thread::spawn(move || answer(&resource));
            }
            say(&names.join(" "))?;
        }
        _ => bail!("no such peer: {words:?}"),
    }
    // Until the other end goes.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    std::process::exit(0)
}

fn way_named(name: &str) -> Result<Way> {
    <Way as clap::ValueEnum>::from_str(name, true).map_err(anyhow::Error::msg)
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

fn answer(resource: &Resource) {
    // Ends with an error when the one who asks has ended.
    let _ = (|| -> Result<()> {
        loop {
            let message = resource.recv(Match::any())?;
            match message.tag {
                QUESTION => resource.send(message.from, Tag(0), message.data)?,
                FINISH => resource.send(message.from, Tag(0), b"")?,
                _ => {}
            }
        }
    })();
}
