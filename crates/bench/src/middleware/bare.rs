//! The same cluster without Keeptime: no broker, no agents. Every program starts when it is asked for, and
//! shares with all that is there: each connection with each other, or, with plain HTB, each program with each
//! other.
//!
//! A process has one "processor" at the most, and all of a node together as many as it has: as with Keeptime.

use crate::lab::down;
use anyhow::{Context, Result, ensure};
use clap::Args;
use keeptime::cluster::own_path;
use keeptime::interrupt;
use keeptime::reach::{Ranks, Reach};
use keeptime_lab::{Exec, Lab, Labs, NODE_SHAPER_MAJOR, Spec};
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_launch::process::{LINGER, Progress, RunError, run};
use keeptime_launch::told_time::Told;
use keeptime_linux::cgroup::{Group, Hierarchies};
use keeptime_locks::lock;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

/// Who has how much of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// As TCP's connections come to it.
    Connections,
    /// Classes of HTB with equal rates that lend what they do not use, one for each program.
    Htb,
}

/// A lab that is nothing but hardware. It is removed when this is dropped.
pub struct BareLab {
    lab: Lab,
    reach: Reach,
    mpi: Mpi,
    /// Which classes are in use, by how many programs.
    slots: Mutex<[u32; SLOTS]>,
}

/// How a program went.
#[derive(Debug, Clone, Copy)]
pub struct Went {
    /// As it tells it.
    pub time: Nanos,
    /// From launch to end.
    pub wall: Nanos,
}

/// `keeptime-bench processor`: becomes a program that has no more CPU than one processor.
#[derive(Debug, Args)]
pub struct ProcessorArguments {
    /// How much of the machine's CPU a processor of a node is
    #[arg(long)]
    cpu: CpuPpm,
    /// How much all programs of a node have together
    #[arg(long)]
    node: CpuPpm,
    /// The lab's group, below the root of every hierarchy
    #[arg(long)]
    group: PathBuf,
    /// Told apart by it from the other programs on the node
    #[arg(long)]
    program: String,
    /// The program
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Programs that have a class each; more share theirs.
const SLOTS: usize = 16;
/// Ports of a program: enough for all its connections.
const PORTS: u16 = 256;
const PORT_FIRST: u16 = 0x5000;
/// The group of all programs of a node, in the node's.
const PROGRAMS: &str = "programs";
/// Below the node's own card.
const HTB_MAJOR: &str = "77";

impl BareLab {
    /// Makes it.
    pub fn up(spec: &Spec, link: BitsPerSecond, sharing: Sharing) -> Result<Self> {
        let labs = Labs::of_this_user();
        // What an earlier one left when it was killed.
        let _ = down(&labs, spec.name());
        let lab = labs.up(spec)?;
        let reach = Reach::Lab(lab.clone());
        let bare = Self { lab, reach, mpi: Mpi::find(Flavour::OpenMpi)?, slots: Mutex::default() };
        if sharing == Sharing::Htb {
            bare.make_classes(link)?;
        }
        Ok(bare)
    }

    fn make_classes(&self, link: BitsPerSecond) -> Result<()> {
        let script = htb(self.lab.device(), link);
        for node in self.lab.topology().nodes() {
            let status = self.lab.exec(Exec::shell(node.name.as_str(), [&script]))?;
            ensure!(status.success(), "tc on {} ended with {status}", node.name);
        }
        Ok(())
    }

    /// Runs `application` on all nodes; nothing if it does not end within its time limit.
    pub fn run(
        &self,
        number: usize,
        application: &Application,
        parameters: &Parameters,
    ) -> Result<Option<Went>> {
        let slot = self.take_slot();
        let went = self.run_in_slot(number, slot, application, parameters);
        lock(&self.slots)[slot] -= 1;
        went
    }

    fn run_in_slot(
        &self,
        number: usize,
        slot: usize,
        application: &Application,
        parameters: &Parameters,
    ) -> Result<Option<Went>> {
        let mut command = self.processor(number, slot, application.cpu())?;
        command.extend(application.command(parameters)?);
        let nodes = self.lab.topology().nodes().iter().collect();
        let ranks = Ranks { nodes, job: None };
        let (line, _remote) = self.reach.mpi_line(&self.mpi, &ranks, &command)?;
        let mut told = Told::nothing(application.time());
        let mut watch = |line: &str| match told.see(line) {
            true => Progress::EndsWithin(LINGER),
            false => Progress::Running,
        };
        let outcome = match run(&line, application.timeout(), &interrupt::stopped, &mut watch) {
            Err(RunError::TimedOut { .. }) => return Ok(None),
            outcome => outcome.with_context(|| format!("while running request {number}"))?,
        };
        let time = told.time(outcome.wall);
        let time = time.with_context(|| format!("request {number} told no time"))?;
        Ok(Some(Went { time, wall: outcome.wall }))
    }

    /// What stands before a rank's command: its ports, by which HTB knows it, and its processor.
    fn processor(&self, number: usize, slot: usize, cpu: CpuPpm) -> Result<Vec<String>> {
        let node = &self.lab.topology().nodes()[0];
        let group = self.lab.group_path(&node.name).context("nodes have no control groups here")?;
        let group = group.parent().context("a node's group is in its lab's")?.display().to_string();
        let ports = [
            format!("OMPI_MCA_btl_tcp_port_min_v4={}", port_first(slot)),
            format!("OMPI_MCA_btl_tcp_port_range_v4={PORTS}"),
        ];
        let own = own_path()?.display().to_string();
        let (cpu, of_node) = (cpu.to_string(), node.cpu.to_string());
        let words = ["processor", "--cpu", &cpu, "--node", &of_node, "--group", &group];
        let words = words.map(String::from);
        let program = ["--program".into(), format!("request-{number}"), "--".into()];
        Ok(["env".into()]
            .into_iter()
            .chain(ports)
            .chain([own])
            .chain(words)
            .chain(program)
            .collect())
    }

    /// The class that the fewest have.
    fn take_slot(&self) -> usize {
        let mut slots = lock(&self.slots);
        let least = (0..SLOTS).min_by_key(|slot| slots[*slot]).unwrap_or(0);
        slots[least] += 1;
        least
    }
}

impl Drop for BareLab {
    fn drop(&mut self) {
        if let Err(error) = down(&Labs::of_this_user(), self.lab.name()) {
            eprintln!("lab {} is left: {error:#}", self.lab.name());
        }
    }
}

fn port_first(slot: usize) -> u16 {
    PORT_FIRST + PORTS * slot as u16
}

/// The commands that give every slot its class on a node's card.
fn htb(device: &str, link: BitsPerSecond) -> String {
    let whole = link.get();
    let each = whole / SLOTS as u64;
    let buffers = "burst 16k cburst 16k quantum 30000";
    let card = NODE_SHAPER_MAJOR;
    let class = |minor: usize, parent: &str, rate: u64| {
        format!(
            "tc class add dev {device} parent {parent} classid {HTB_MAJOR}:{minor:x} htb rate {rate}bit \
             ceil {whole}bit {buffers}"
        )
    };
    let root = format!("{HTB_MAJOR}:1");
    let mut commands = vec![
        format!("tc qdisc add dev {device} parent {card}:1 handle {HTB_MAJOR}: htb default ff"),
        class(1, &format!("{HTB_MAJOR}:"), whole),
        // What is nobody's: the launchers' own messages.
        class(0xff, &root, each),
    ];
    for slot in 0..SLOTS {
        commands.push(class(0x10 + slot, &root, each));
        for end in ["sport", "dport"] {
            commands.push(format!(
                "tc filter add dev {device} parent {HTB_MAJOR}: protocol ip u32 match ip {end} {} 0x{:x} \
                 flowid {HTB_MAJOR}:{:x}",
                port_first(slot),
                !(PORTS - 1),
                0x10 + slot
            ));
        }
    }
    commands.join(" && ")
}

/// Joins a group of its own beside the node's others, and becomes the command.
pub fn become_limited(arguments: &ProcessorArguments) -> Result<()> {
    let node = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let hierarchies = Hierarchies::discover()?;
    let limited = |path: PathBuf, cpu: CpuPpm| -> Result<Group> {
        let group = hierarchies.group(path)?;
        group.create()?;
        group.set_cpu(cpu)?;
        Ok(group)
    };
    let programs = arguments.group.join(node.trim()).join(PROGRAMS);
    limited(programs.clone(), arguments.node)?;
    limited(programs.join(&arguments.program), arguments.cpu)?.join(OWN)?;
    let (program, words) = arguments.command.split_first().context("no command")?;
    Err(Command::new(program).args(words).exec()).context(program.display().to_string())
}

/// A process that joins a group names itself so, whatever its number is elsewhere.
const OWN: i32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_slot_are_one_match_and_no_other_slots() {
        let mask = !(PORTS - 1);
        for slot in 0..SLOTS {
            let first = port_first(slot);
            assert_eq!((first & mask, (first + PORTS - 1) & mask), (first, first));
        }
        let commands = htb("eth0", BitsPerSecond::from_mbit(160));
        assert_eq!(commands.matches("rate 10000000bit").count(), SLOTS + 1);
        assert_eq!(commands.matches("u32 match").count(), 2 * SLOTS);
    }
}
