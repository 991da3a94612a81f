//! `keeptime lab`: a cluster of namespaces, with an agent on every node.

mod testbed;

use super::{Ending, agent, print_json};
use crate::arguments::{LabCommand, LabExecArguments, LabUpArguments};
use crate::cluster::socket_in;
use crate::place::BROKER_VARIABLE;
use crate::reach::{AgentPlace, KeptAgents};
use crate::slurm::{self, Slurm};
use crate::web::{self, SitePlaces, Web};
use crate::{agents, brokers, interrupt};
use anyhow::{Context, Result, ensure};
use keeptime_agent::client::{Client, ClientError};
use keeptime_agent::wire::Status as AgentStatus;
use keeptime_lab::{Exec, FRONT_END, Lab, Labs, Spec, Status as LabStatus, exit_code};
use keeptime_linux::netns::{die_with, die_with_parent};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::{Node, Topology};
use keeptime_model::units::Nanos;
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// What `keeptime lab status --json` prints.
#[derive(Debug, Serialize)]
struct Overview {
    lab: LabStatus,
    broker: BrokerAnswer,
    agents: Vec<AgentAnswer>,
}

/// The lab's broker.
#[derive(Debug, Serialize)]
struct BrokerAnswer {
    /// Where it listens.
    socket: PathBuf,
    /// Why it does not answer; nothing if it does.
    error: Option<String>,
}

/// One node's agent.
#[derive(Debug, Serialize)]
struct AgentAnswer {
    node: Name,
    /// What it tells; nothing if it does not answer.
    status: Option<AgentStatus>,
    /// Why it does not answer.
    error: Option<String>,
}

/// Runs one of the verbs.
pub fn run(command: LabCommand) -> Result<Ending> {
    let labs = Labs::of_this_user();
    match command {
        LabCommand::Up(arguments) => up(&labs, &arguments)?,
        LabCommand::Status { lab, json } => status(&lab.name, json)?,
        LabCommand::List { json } => list(&labs, json)?,
        LabCommand::Exec(arguments) => return exec(&labs, arguments),
        LabCommand::Police(arguments) => testbed::police(&labs, &arguments)?,
        LabCommand::Load(arguments) => testbed::load(&arguments)?,
        LabCommand::Down { lab } => {
            brokers::end(&directory(&labs, &lab.name))?;
            let report = labs.down(&lab.name)?;
            let left = match (report.was_running, report.stragglers) {
                (true, 0) => String::new(),
                (true, count) => format!(", {count} stragglers killed"),
                (false, count) => format!("; it had ended before, {count} stragglers killed"),
            };
            println!("lab {}: down in {}{left}", report.name, report.nanos.rounded());
        }
    }
    Ok(Ending::Done)
}

fn up(labs: &Labs, arguments: &LabUpArguments) -> Result<()> {
    let started = Instant::now();
    Web::check(&arguments.web)?;
    if !arguments.web.is_empty() {
        Web::check_programs()?;
    }
    if arguments.slurm {
        slurm::version()?;
    }
    let spec = spec(arguments)?;
    let lab = labs.up(&spec)?;
    let web = Some(Web::of(&lab, &arguments.web)).filter(|web| !web.sites.is_empty());
    // A lab without agents or a broker is of no use: it goes as a whole.
    let start = || {
        start_daemons(&lab, arguments.tls, web.as_ref())?;
        arguments.slurm.then(|| Slurm::start(&lab, slurm::SHARED)).transpose()
    };
    let slurm = match uninterrupted(start) {
        Ok(slurm) => slurm,
        Err(error) => {
            let ended = brokers::end(lab.directory());
            let removed = ended.map(|()| labs.down(lab.name()));
            let context = format!("daemons did not start; removed: {removed:?}");
            return Err(error.context(context));
        }
    };
    let topology = spec.topology();
    println!(
        "lab {}: {}, {}, up in {}",
        lab.name(),
        counted(topology.nodes().len(), "node", "nodes"),
        counted(topology.switches().len(), "switch", "switches"),
        Nanos::from(started.elapsed()).rounded()
    );
    for sentence in lab.status().not_enforced {
        println!("not enforced: {sentence}");
    }
    web.iter().flat_map(|web| web.sites.iter().map(move |site| (web, site))).for_each(print_site);
    if web.is_some() {
        let services =
            web::services()?.iter().map(|name| format!(" --app {name}")).collect::<String>();
        println!("on every node:{services}");
    }
    if let Some(slurm) = slurm {
        print_slurm(&lab, &slurm);
    }
    Ok(())
}

/// Starts the daemons of a lab that stands. Whoever interrupts that gets an error when they have started: a command
/// that just ended would leave half a lab.
fn uninterrupted<T>(start: impl FnOnce() -> Result<T>) -> Result<T> {
    interrupt::listen()?;
    let started = start()?;
    ensure!(!interrupt::stopped(), "interrupted");
    Ok(started)
}

/// How a job of the lab's Slurm is submitted.
fn print_slurm(lab: &Lab, slurm: &Slurm) {
    println!("Slurm, whose jobs ask the lab's broker, after");
    println!("  export SLURM_CONF={}", slurm.configuration().display());
    println!("  export {BROKER_VARIABLE}={}", brokers::socket(lab.directory()).display());
    println!("by keeptime lab exec {} {FRONT_END} -- sbatch job.sh", lab.name());
}

/// Where a site of the lab is, as words for `keeptime site add`.
fn print_site((web, site): (&Web, &SitePlaces)) {
    println!("site {}:", site.name);
    let addresses = [("HAProxy", site.haproxy), ("nginx", site.nginx), ("Apache", site.apache)];
    for ((what, address), place) in addresses.iter().zip(web.balancers(site)) {
        println!("  http://{address} by {what}: --backend {place}");
    }
}

/// Starts a lab's broker and agents, and waits until they have found each other; and its web servers, if it is
/// to have any.
///
/// # Errors
/// Which do not, with the last lines of their logs.
pub fn start_daemons(lab: &Lab, tls: bool, web: Option<&Web>) -> Result<()> {
    if tls {
        brokers::make_certificates(lab)?;
    }
    if let Some(web) = web {
        web.start(lab)?;
    }
    brokers::start(lab, web.is_some())?;
    agents::start(lab)?;
    brokers::wait_for_agents(lab)
}

/// Where a lab's files are, also when it has ended.
fn directory(labs: &Labs, name: &Name) -> PathBuf {
    labs.runtime().join("labs").join(name.as_str())
}

/// The lab that was asked for.
fn spec(arguments: &LabUpArguments) -> Result<Spec> {
    let LabUpArguments { lab, nodes, switches, rate, uplink, cpu, topology, .. } = arguments;
    let name = lab.name.clone();
    if let Some(path) = topology {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let topology =
            Topology::from_toml(&text).with_context(|| format!("in {}", path.display()))?;
        return Ok(Spec::from_topology(name, topology)?);
    }
    let spec = match switches {
        0 => return Err(Invalid::new("switches", 0, "at least 1").into()),
        1 => Spec::star(name, *nodes, *rate, *cpu)?,
        _ => Spec::two_tier(name, *nodes, *switches, *rate, *uplink, *cpu)?,
    };
    Ok(match arguments.disk() {
        Some(disk) => spec.with_disk(disk)?,
        None => spec,
    })
}

fn status(name: &Name, json: bool) -> Result<()> {
    let lab = Labs::of_this_user().open(name)?;
    let nodes = || lab.topology().nodes().iter().map(|node| node.name.clone());
    let place = |node| AgentPlace::Socket(socket_in(&lab.node_directory(&node)));
    let answers = KeptAgents::new(nodes().map(place)).ask(None, Client::status);
    let told = |(node, answer): (Name, Result<AgentStatus, ClientError>)| {
        let error = answer.as_ref().err().map(ToString::to_string);
        AgentAnswer { node, status: answer.ok(), error }
    };
    let agents = nodes().zip(answers).map(told).collect();
    let overview = Overview { lab: lab.status(), broker: broker(&lab), agents };
    if json {
        return print_json(&overview);
    }
    print_lab(&overview.lab);
    match &overview.broker {
        BrokerAnswer { socket, error: None } => println!("broker at {}: up", socket.display()),
        BrokerAnswer { error: Some(error), .. } => println!("{error}"),
    }
    for answer in &overview.agents {
        match &answer.status {
            Some(status) => print!("{}", agent::describe(status)),
            None => println!("{}: {}", answer.node, answer.error.as_deref().unwrap_or("silent")),
        }
    }
    Ok(())
}

/// Whether a lab's broker answers.
fn broker(lab: &Lab) -> BrokerAnswer {
    let socket = brokers::socket(lab.directory());
    let error = brokers::ask(&socket).err().map(|error| format!("{error:#}"));
    BrokerAnswer { socket, error }
}

fn print_lab(lab: &LabStatus) {
    println!("lab {}: {}{}", lab.name, lab.state, if lab.rootless { ", without root" } else { "" });
    for node in &lab.nodes {
        let init = node.pid.map_or("ended".into(), |pid| format!("process {pid}"));
        let used =
            node.cpu_nanos.map_or(String::new(), |used| format!(", {} used", used.rounded()));
        println!(
            "{} at {}: {}, {} of a CPU{used}, {init}",
            node.name,
            node.address,
            node.bits_per_second.rounded(),
            node.cpu_ppm.rounded()
        );
    }
    for sentence in &lab.not_enforced {
        println!("not enforced: {sentence}");
    }
}

fn list(labs: &Labs, json: bool) -> Result<()> {
    for name in labs.ended()? {
        eprintln!("keeptime: lab {name} has ended; keeptime lab down {name} removes what is left");
    }
    let names = labs.list()?;
    if json {
        return print_json(&names);
    }
    names.iter().for_each(|name| println!("{name}"));
    Ok(())
}

fn exec(labs: &Labs, arguments: LabExecArguments) -> Result<Ending> {
    // Before anything is said or done: whoever has started it may be gone.
    match arguments.parent {
        Some(parent) => die_with(parent)?,
        None if arguments.die_with_parent => die_with_parent()?,
        None => {}
    }
    let lab = labs.open(&arguments.name)?;
    let environment = agent_environment(&lab, &arguments.node, arguments.job.as_ref());
    let mut exec = Exec::new(arguments.node, arguments.command);
    if let Some(job) = &arguments.job {
        exec = exec.for_job(job.clone());
    }
    exec.environment = environment;
    exec.die_with_parent = arguments.die_with_parent;
    match lab.exec(exec) {
        Ok(status) => Ok(Ending::Exit(u8::try_from(exit_code(status)).unwrap_or(u8::MAX))),
        Err(error) => {
            let Some(code) = error.unstarted_code() else { return Err(error.into()) };
            eprintln!("keeptime: {:#}", anyhow::Error::from(error));
            Ok(Ending::Exit(code))
        }
    }
}

/// How a program finds the agent of its node, and the job that it is part of. The front end has none.
fn agent_environment(lab: &Lab, node: &str, job: Option<&Name>) -> Vec<(OsString, OsString)> {
    let is_it = |one: &&Node| {
        one.name.as_str() == node || one.address.is_some_and(|address| address.to_string() == node)
    };
    let Some(node) = lab.topology().nodes().iter().find(is_it) else { return Vec::new() };
    let socket = socket_in(&lab.node_directory(&node.name));
    let mut environment = vec![("KEEPTIME_AGENT".into(), socket.into())];
    environment.extend(job.map(|job| ("KEEPTIME_JOB".into(), job.as_str().into())));
    environment
}

fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}
