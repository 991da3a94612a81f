//! The other process: answers until this one ends.

use super::{CORES, Way, context, pin, tcp};
use anyhow::{Context as _, Result};
use keeptime_fabric::{Match, Resource, Tag, attrs};
use std::io::{BufRead, BufReader, Read, Write};
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
    /// Starts it, and waits for what it says when it is ready.
    pub fn start(words: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("fabric-peer")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
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

/// Is the other process.
pub fn run(arguments: &Arguments) -> Result<()> {
    pin(CORES[1])?;
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    match words[..] {
        ["tcp", spin] => {
            let server = tcp::Server::new(spin.parse()?)?;
            say(&server.port()?.to_string())?;
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
        _ => anyhow::bail!("no such peer: {words:?}"),
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
