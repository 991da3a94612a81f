//! A lab's broker: a process of this machine that `lab up` starts and `lab down` ends, as an init
//! system would on a real cluster. Everything it needs lies in the lab's directory.

use crate::cluster::own_path;
use anyhow::{Context, Result, bail};
use keeptime_broker::client::{Client, ClientError};
use keeptime_broker::config::{Config, PolicyFile, REQUESTS_PER_SECOND};
use keeptime_broker::wire::Problem;
use keeptime_lab::Lab;
use keeptime_linux::process::Identity;
use keeptime_model::Invalid;
use keeptime_model::units::Nanos;
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A broker answers within milliseconds; a machine that is busy compiling takes longer.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// A killed process ends within milliseconds.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Longer than on a real cluster: the agents of all nodes share this machine's processors.
const ANSWER_WITHIN: Nanos = Nanos::from_secs(5);

/// The socket of the broker whose lab has this directory.
pub fn socket(lab: &Path) -> PathBuf {
    directory(lab).join("broker.sock")
}

/// The same broker's socket for agents.
pub fn agents_socket(lab: &Path) -> PathBuf {
    directory(lab).join("agents.sock")
}

/// Starts a lab's broker and waits until it answers. Before the agents, which find it then at once.
///
/// # Errors
/// If it does not, with the last lines of its log.
#[allow(clippy::zombie_processes, reason = "it outlasts this command, and init waits for it")]
pub fn start(lab: &Lab) -> Result<()> {
    let directory = directory(lab.directory());
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let config = config(lab);
    let path = directory.join("broker.toml");
    fs::write(&path, config.to_toml())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let log = File::create(directory.join("broker.log"))?;
    let child = Command::new(own_path()?)
        .args(["broker", "run", "--config"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Not ended by what is typed into the terminal.
        .process_group(0)
        .spawn()?;
    let pid = i32::try_from(child.id())?;
    if let Some(identity) = Identity::of(pid)? {
        fs::write(pid_file(lab.directory()), identity.to_string())?;
    }
    let client = Client::new(&config.socket)?;
    within(READY_WITHIN, || Ok(client.nodes(None).map(drop)?)).with_context(|| {
        let log = fs::read_to_string(directory.join("broker.log")).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(5).collect();
        format!("the broker's last words: {}", last.join(" / "))
    })
}

/// Waits until all agents of a lab have found its broker.
///
/// # Errors
/// Which have not.
pub fn wait_for_agents(lab: &Lab) -> Result<()> {
    let client = Client::new(&socket(lab.directory()))?;
    within(READY_WITHIN, || {
        let nodes = client.nodes(None)?.nodes;
        let away = nodes.iter().filter(|node| !node.connected).map(|node| node.name.as_str());
        match away.collect::<Vec<_>>().as_slice() {
            [] => Ok(()),
            names => bail!("the agents of these nodes do not find it: {}", names.join(", ")),
        }
    })
}

/// Ends the broker of the lab with this directory, if there is one; in any state.
///
/// # Errors
/// If it does not end.
pub fn end(lab: &Path) -> Result<()> {
    let Ok(text) = fs::read_to_string(pid_file(lab)) else { return Ok(()) };
    // A file that cannot be read names nobody: nobody is killed on a guess.
    let Ok(identity) = text.parse::<Identity>() else { return Ok(()) };
    let Some(process) = identity.open()? else { return Ok(()) };
    // What is granted is in its ledger, which goes with the lab.
    process.signal(Signal::SIGKILL)?;
    if !process.wait(END_WITHIN)? {
        bail!("the lab's broker, process {}, does not end", identity.pid);
    }
    Ok(())
}

/// What a broker's answer is to this program: bad input is the user's.
pub fn failure(error: ClientError) -> anyhow::Error {
    match error.problem().cloned() {
        Some(Problem { field: Some(field), value, expected, .. }) => {
            let (value, expected) = (value.unwrap_or_default(), expected.unwrap_or_default());
            Invalid { field, value, expected }.into()
        }
        _ => error.into(),
    }
}

/// Tries again until it is done, or it is too late.
fn within(limit: Duration, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            outcome => return outcome,
        }
    }
}

fn config(lab: &Lab) -> Config {
    Config {
        topology: lab.directory().join("topology.toml"),
        ledger: directory(lab.directory()).join("ledger.db"),
        socket: socket(lab.directory()),
        agents: agents_socket(lab.directory()),
        operators: Vec::new(),
        requests_per_second: REQUESTS_PER_SECOND,
        policy: PolicyFile { answer_within: ANSWER_WITHIN, ..PolicyFile::default() },
    }
}

fn directory(lab: &Path) -> PathBuf {
    lab.join("broker")
}

fn pid_file(lab: &Path) -> PathBuf {
    directory(lab).join("broker.pid")
}
