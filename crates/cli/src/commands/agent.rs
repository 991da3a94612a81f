//! `keeptime agent`: the daemon, and questions to it.

use super::{Ending, print_json};
use crate::arguments::{AgentCommand, AgentExecArguments};
use crate::cluster::own_path;
use crate::job_command::{self, NotStarted};
use anyhow::{Context, Result, anyhow, ensure};
use keeptime_agent::agent::Agent;
use keeptime_agent::check::{self, Checked};
use keeptime_agent::claim::{Claim, ClaimError};
use keeptime_agent::client::Client;
use keeptime_agent::clock::now;
use keeptime_agent::config::Config;
use keeptime_agent::enforce::{self, Cleared, Node};
use keeptime_agent::enforcer::Enforcer;
use keeptime_agent::link;
use keeptime_agent::server::serve;
use keeptime_agent::store::Store;
use keeptime_agent::wire::{JobStatus, Status};
use keeptime_linux::cgroup::MARK;
use keeptime_linux::{deadline, probe, user_level, vital};
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::capability::{Answer, Capabilities, Capability, Feature};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::CpuPpm;
use nix::unistd::geteuid;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Runs an agent or asks one.
pub fn run(command: AgentCommand) -> Result<Ending> {
    match command {
        AgentCommand::Run { config, check } => run_agent(&config, check)?,
        AgentCommand::Clear { config, end_jobs } => return clear(&config, end_jobs),
        AgentCommand::Probe { json } => {
            let scratch = Path::new(MARK).join(format!("_probe-{}", std::process::id()));
            let found = probe::capabilities(&scratch);
            let probed = Probed {
                capabilities: &found,
                deadline_admissible_ppm: admissible(&found),
                user_level_shortage: user_level::shortage(&found),
            };
            if json {
                print_json(&probed)?;
            } else {
                print!("{}", describe_probe(&probed));
            }
            if !geteuid().is_root() {
                eprintln!("keeptime: {NOT_ROOT}");
            }
        }
        AgentCommand::Exec(arguments) => return exec(&arguments),
        AgentCommand::Relay { agent } => relay(&agent.socket)?,
        AgentCommand::Status { socket, json } => {
            let status = Client::connect(&socket)?.status()?;
            if json {
                print_json(&status)?;
            } else {
                print!("{}", describe(&status));
            }
        }
    }
    Ok(Ending::Done)
}

/// Runs a command of a job.
fn exec(arguments: &AgentExecArguments) -> Result<Ending> {
    match job_command::run(arguments) {
        Ok(code) => Ok(Ending::Exit(code)),
        Err(error) => {
            let Some(code) = error.downcast_ref().map(NotStarted::exit_code) else {
                return Err(error);
            };
            eprintln!("keeptime: {error:#}");
            Ok(Ending::Exit(code))
        }
    }
}

/// Passes on to an agent what is read, and writes what it says, until one of both has ended.
pub fn relay(socket: &Path) -> Result<()> {
    let away = || format!("the agent at {} does not answer", socket.display());
    let mut agent = UnixStream::connect(socket).with_context(away)?;
    let mut asked = agent.try_clone()?;
    std::thread::spawn(move || {
        // Whoever asks may end at any moment; then there is nobody to answer to.
        let _ = io::copy(&mut io::stdin().lock(), &mut asked);
        let _ = asked.shutdown(Shutdown::Both);
    });
    let mut out = io::stdout().lock();
    let mut said = [0; 64 << 10];
    loop {
        match agent.read(&mut said)? {
            0 => return Ok(()),
            bytes => out.write_all(&said[..bytes]).and_then(|()| out.flush())?,
        }
    }
}

/// What is found out for others is less than what an agent can do.
const NOT_ROOT: &str = "this is what this user may do; agents are root: run it as root, as by sudo, to find out what they \
    can enforce here";

/// What `agent probe --json` prints.
#[derive(Serialize)]
struct Probed<'a> {
    capabilities: &'a Capabilities,
    /// CPU that the kernel would promise by `SCHED_DEADLINE` now, of all processors together.
    deadline_admissible_ppm: Option<CpuPpm>,
    /// Why shares that are kept from user space come short here, if they do.
    user_level_shortage: Option<&'a str>,
}

fn admissible(found: &Capabilities) -> Option<CpuPpm> {
    found.has(Feature::CpuDeadline).then(|| deadline::admissible().ok()).flatten()
}

fn describe_probe(probed: &Probed<'_>) -> String {
    let found = probed.capabilities;
    let mut text = format!("{:<26} {:<8} found out by\n", "mechanism", "works");
    for Capability { feature, answer, tried } in &found.0 {
        let (works, why) = match answer {
            Answer::Yes => ("yes", None),
            Answer::No(why) => ("no", Some(why)),
            Answer::Unknown(why) => ("unknown", Some(why)),
        };
        text.push_str(&format!("{feature:<26} {works:<8} {tried}\n"));
        if let Some(why) = why {
            text.push_str(&format!("{:<35} {why}\n", ""));
        }
    }
    if let Some(admissible) = probed.deadline_admissible_ppm {
        text.push_str(&format!("SCHED_DEADLINE: {admissible} of a CPU can still be promised\n"));
    }
    if let Some(shortage) = probed.user_level_shortage {
        text.push_str(&format!("{}: {shortage}\n", Feature::CpuUserLevel));
    }
    let missing = found.missing();
    for unmet in &missing {
        text.push_str(&format!("not enforced: {unmet}\n"));
    }
    if missing.is_empty() {
        text.push_str("everything that can be assigned can be enforced here\n");
    }
    text
}

fn read_config(path: &Path) -> Result<Config> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::from_toml(&text).with_context(|| format!("in {}", path.display()))
}

fn clear(path: &Path, end_jobs: bool) -> Result<Ending> {
    let config = read_config(path)?;
    let claim = claim_of_cleared(&config.socket)?;
    let cleared = enforce::clear(&config, end_jobs);
    let ended = match cleared.map_err(|error| anyhow!("{}", chain(error.as_ref())))? {
        Cleared::Done(jobs) => names(&jobs),
        Cleared::Not(jobs) => {
            let (node, jobs) = (&config.node, names(&jobs));
            eprintln!("still enforced on {node}: {jobs}. Cancel them, or end them with --end-jobs");
            return Ok(Ending::Refused);
        }
    };
    Store::at(&config.assignments).remove()?;
    match fs::remove_file(&config.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error)
                .with_context(|| format!("cannot remove {}", config.socket.display()));
        }
        _ => {}
    }
    if let Some(claim) = claim {
        claim.remove().context("cannot remove the agent's lock")?;
    }
    let ended = if ended.is_empty() { ended } else { format!("; ended: {ended}") };
    println!("{} has nothing of Keeptime any more{ended}", config.node);
    Ok(Ending::Done)
}

/// No agent runs or comes while a node is cleared. Where not even the directory of its socket is there, none does.
fn claim_of_cleared(socket: &Path) -> Result<Option<Claim>, ClaimError> {
    match Claim::take(socket) {
        Err(ClaimError::Lock { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        taken => taken.map(Some),
    }
}

fn names(jobs: &BTreeSet<Name>) -> String {
    jobs.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

fn tell_slower_device(config: &Config) {
    if let Some(sentence) = enforce::slower_device(config) {
        tracing::warn!("{sentence}");
    }
}

/// All that was found, and an error if anything of it is wrong.
fn tell_checked(Checked { right, wrong }: &Checked, path: &Path) -> Result<()> {
    for sentence in right {
        println!("{sentence}");
    }
    for sentence in wrong {
        eprintln!("keeptime: {sentence}");
    }
    let count = wrong.len();
    ensure!(wrong.is_empty(), "an agent with {} could not work: {count} wrong", path.display());
    Ok(())
}

fn run_agent(path: &Path, check: bool) -> Result<()> {
    let config = read_config(path)?;
    if check {
        // Drivers of virtual devices make rates up: what one says is told, and no reason not to start.
        tell_slower_device(&config);
        return tell_checked(&check::check(&config), path);
    }
    let claim = Claim::take(&config.socket)?;
    enforce::await_device(&config);
    tell_slower_device(&config);
    match enforce::enforcer(&config, &guard()?).map_err(anyhow::Error::from_boxed)? {
        Node::Kernel(kernel) => serve_node(&config, &claim, *kernel),
        Node::Unenforced(nothing) => serve_node(&config, &claim, nothing),
    }
}

fn serve_node(config: &Config, claim: &Claim, enforcer: impl Enforcer + 'static) -> Result<()> {
    for sentence in enforcer.not_enforced() {
        tracing::warn!("not enforced: {sentence}");
    }
    let store = Store::at(&config.assignments);
    let capacity = enforce::capacity(config, &enforcer);
    let agent = Agent::start(config.node.clone(), capacity, store, enforcer, now())?;
    tracing::info!("agent of {} serves {}", config.node, config.socket.display());
    let agent = Arc::new(Mutex::new(agent));
    if let Some(broker) = config.place() {
        let agent = Arc::clone(&agent);
        let scope = config.load_scope();
        if let Err(error) = &scope {
            tracing::warn!("how busy this node is will not be said: {}", chain(error));
        }
        // Without it the broker would hear of this node no more, however well it answers here.
        vital::spawn("broker-link", move || link::keep(&agent, &broker, scope.as_ref().ok()))
            .context("cannot start the thread that keeps the connection to the broker")?;
    }
    serve(&agent, claim).context("while serving")
}

/// How this program is started to guard an agent, but for the group of its node.
fn guard() -> Result<[OsString; 3]> {
    Ok([own_path()?.into(), "launch".into(), "guard".into()])
}

/// An agent's status as a few lines.
pub fn describe(status: &Status) -> String {
    let mut text = format!(
        "{}: {} of a CPU for jobs, {} jobs\n",
        status.node,
        status.cpu_ppm.rounded(),
        status.jobs.len()
    );
    for job in &status.jobs {
        text.push_str(&describe_job(job));
    }
    for sentence in &status.not_enforced {
        text.push_str(&format!("  not enforced: {sentence}\n"));
    }
    text
}

fn describe_job(job: &JobStatus) -> String {
    let used = job.cpu_used_nanos.rounded();
    let assignment = &job.assignment;
    let kept = job.cpu_kept_by.map(|mechanism| format!(" by {mechanism}")).unwrap_or_default();
    let cpu = match assignment.cpu_ppm {
        none if none == CpuPpm::default() => "no CPU reserved".into(),
        cpu => format!("{} of a CPU{kept}", cpu.rounded()),
    };
    let (job_name, processes) = (&assignment.job, job.processes.len());
    let mut text = format!("  {job_name}: {cpu}, {processes} processes, {used} used\n");
    if let Some(obstacle) = &job.cpu_obstacle {
        let (asked, feature) = match assignment.cpu_mechanism {
            CpuMechanism::UserLevel => (CpuMechanism::UserLevel, Feature::CpuUserLevel),
            _ => (CpuMechanism::Deadline, Feature::CpuDeadline),
        };
        let part = if job.cpu_kept_by == Some(asked) { "not all of it" } else { "not" };
        text.push_str(&format!("    {part} by {feature}: {obstacle}\n"));
    }
    if !job.borrowed.is_empty() || job.bound_sockets > 0 {
        let (borrowed, sockets) = (job.borrowed.len(), job.bound_sockets);
        text.push_str(&format!("    bound: {borrowed} processes, {sockets} connections\n"));
    }
    for (disk, counted) in &job.disks {
        let (read, written) = (counted.read_bytes.rounded(), counted.written_bytes.rounded());
        text.push_str(&format!("    disk {disk}: {read} read, {written} written\n"));
    }
    for flow in &job.flows {
        let up_to = flow.flow.up_to_bits_per_second;
        let up_to =
            up_to.map(|most| format!(" (up to {} now)", most.rounded())).unwrap_or_default();
        text.push_str(&format!(
            "    to {}: {} {}{up_to}, {} sent, {} dropped\n",
            flow.flow.destination,
            flow.flow.class,
            flow.flow.bits_per_second.rounded(),
            flow.sent_bytes.rounded(),
            flow.dropped_packets
        ));
    }
    text
}
