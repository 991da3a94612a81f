//! How busy this node is, as the kernel counts: all of a machine, or what is in one control group.

use crate::cgroup::{CgroupError, Group};
use crate::clock;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::units::{CpuPpm, Nanos};
use std::io;
use thiserror::Error;

/// Where the kernel counts for all of a machine.
const STAT: &str = "/proc/stat";

/// Why it cannot be said.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The control group does not say.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// The file cannot be read.
    #[error("read of {STAT}")]
    Unread(#[source] io::Error),
    /// It has not what every kernel writes.
    #[error("{STAT} has no line {line:?} that is understood")]
    NotUnderstood {
        /// How the line begins.
        line: &'static str,
    },
}

/// What is counted.
#[derive(Debug, Clone)]
pub enum Scope {
    /// All that this machine does.
    Machine,
    /// What the processes of a group do, and those of the groups inside: of a node that is a part of a
    /// machine.
    Part {
        /// Its group.
        group: Group,
        /// Its part; nothing: the group's limit, or all of the machine if it has none.
        cpu: Option<CpuPpm>,
    },
}

impl Scope {
    /// The counts of this moment. Costs three or four short files.
    ///
    /// # Errors
    /// If the kernel does not say, as of a group that is away.
    pub fn count(&self) -> Result<NodeCounters, LoadError> {
        let text = std::fs::read_to_string(STAT).map_err(LoadError::Unread)?;
        let machine = Machine::parse(&text)?;
        let (cpu_used, cpu) = match self {
            Self::Machine => (machine.used, machine.cpu),
            Self::Part { group, cpu } => {
                let limit = match cpu {
                    Some(cpu) => *cpu,
                    None => group.cpu_limit()?.unwrap_or(machine.cpu),
                };
                (group.cpu_usage()?, limit.min(machine.cpu))
            }
        };
        Ok(NodeCounters { at: clock::now(), cpu_used, cpu, runnable: machine.runnable })
    }
}

/// What `/proc/stat` says (proc(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Machine {
    used: Nanos,
    cpu: CpuPpm,
    runnable: u32,
}

impl Machine {
    fn parse(text: &str) -> Result<Self, LoadError> {
        let odd = |line| LoadError::NotUnderstood { line };
        let of = |line: &'static str| {
            text.lines().find_map(move |l| l.strip_prefix(line)).ok_or(odd(line))
        };
        let ticks: Result<Vec<u64>, _> =
            of("cpu ")?.split_ascii_whitespace().map(str::parse).collect();
        let ticks = ticks.ok().filter(|ticks| ticks.len() > WAITING.end).ok_or(odd("cpu "))?;
        // Guests are in the user's time already. What a hypervisor took is not there for the node.
        let counted = ticks.iter().take(GUESTS).enumerate();
        let used: u64 = counted.filter(|(at, _)| !WAITING.contains(at)).map(|(_, t)| t).sum();
        let is_processor = |line: &&str| {
            let number = line.strip_prefix("cpu").and_then(|rest| rest.split(' ').next());
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let processors = text.lines().filter(is_processor).count() as u32;
        let running: u32 =
            of("procs_running ")?.trim().parse().map_err(|_| odd("procs_running "))?;
        Ok(Self {
            used: Nanos::new(used.saturating_mul(TICK.get())),
            cpu: CpuPpm::new(processors.saturating_mul(CpuPpm::from_percent(100).get())),
            // Whoever reads runs.
            runnable: running.saturating_sub(1),
        })
    }
}

/// Of the numbers of a line `cpu`: those of idle processors and of idle ones that wait for a disk.
const WAITING: std::ops::Range<usize> = 3..5;
/// Of those numbers: where guests begin.
const GUESTS: usize = 8;
/// `USER_HZ`, in which the kernel tells programs, is 100 on every machine that Rust is built for.
const TICK: Nanos = Nanos::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
cpu  100 20 30 4000 500 6 7 8 90 10
cpu0 50 10 15 2000 250 3 4 4 45 5
cpu1 50 10 15 2000 250 3 3 4 45 5
intr 263516565 0 0
ctxt 305305122
procs_running 5
procs_blocked 0
";

    #[test]
    fn used_is_what_was_neither_idle_nor_a_guest_counted_twice() {
        let machine = Machine::parse(TEXT).unwrap();
        assert_eq!(machine.used, Nanos::from_millis((100 + 20 + 30 + 6 + 7 + 8) * 10));
        assert_eq!((machine.cpu, machine.runnable), (CpuPpm::from_percent(200), 4));
    }

    #[test]
    fn what_is_missing_is_named() {
        let cases = [("cpu  ", "cxu  ", "cpu "), (" 4000 500 6 7 8 90 10", "", "cpu ")];
        for (from, to, line) in cases {
            let error = Machine::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(line), "{error}");
        }
        let error = Machine::parse(&TEXT.replace("running 5", "running many")).unwrap_err();
        assert!(error.to_string().contains("procs_running"), "{error}");
    }

    #[test]
    fn this_machine_counts_and_never_backwards() {
        let (first, second) = (Scope::Machine.count().unwrap(), Scope::Machine.count().unwrap());
        assert!(second.at >= first.at && second.cpu_used >= first.cpu_used);
        assert!(first.cpu >= CpuPpm::from_percent(100));
    }
}
