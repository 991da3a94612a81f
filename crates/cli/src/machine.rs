//! What a measurement was made on, for the record beside it.

use keeptime_linux::machine::processor;
use serde::{Deserialize, Serialize};
use std::fs;

/// The machine and its load at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model, as the kernel names it.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Kernel release.
    pub kernel: String,
    /// Load average over the last minute when the measurement began; 0 where it cannot be read.
    pub load: f64,
    /// Version of Keeptime.
    pub keeptime: String,
}

impl Machine {
    /// Whether it is the same machine, under whatever load.
    pub fn is_like(&self, other: &Self) -> bool {
        let of = |machine: &Self| {
            (machine.processor.clone(), machine.processors, machine.kernel.clone())
        };
        of(self) == of(other)
    }

    /// This machine, now. What cannot be read is "unknown".
    pub fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg").split(' ').next().and_then(|l| l.parse().ok());
        Self {
            processor: processor().unwrap_or_else(|| UNKNOWN.into()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            load: load.unwrap_or(0.0),
            keeptime: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processor, processors, kernel, load, keeptime } = self;
        write!(f, "{processors} x {processor}, Linux {kernel}, load {load}, Keeptime {keeptime}")
    }
}

/// What cannot be read.
pub const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_processors() {
        assert!(Machine::here().processors > 0);
    }
}
