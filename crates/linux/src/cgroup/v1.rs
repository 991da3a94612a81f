//! Hierarchies of version 1, each with controllers of its own.

use super::files::write_over;
use super::{CgroupError, CpuLimit, Hierarchy, Rank, parse_number, read, write};
use keeptime_model::units::Nanos;
use std::path::{Path, PathBuf};

/// A hundred times an ordinary group's: what is promised is had before others on the machine.
const SHARES: u64 = 102_400;
/// What the kernel gives a group that is made.
const SHARES_DEFAULT: u64 = 1_024;

/// A hierarchy of version 1 with the `cpu` controller.
#[derive(Debug, Clone)]
pub struct V1 {
    root: PathBuf,
}

/// A hierarchy of version 1 with the `blkio` controller and not the `cpu` controller.
#[derive(Debug, Clone)]
pub struct V1Disk {
    root: PathBuf,
}

/// A hierarchy of version 1 with the `pids` controller and none of the others.
#[derive(Debug, Clone)]
pub struct V1Tasks {
    root: PathBuf,
}

impl V1 {
    /// The hierarchy mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

impl V1Disk {
    /// The hierarchy mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

impl V1Tasks {
    /// The hierarchy mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

impl Hierarchy for V1 {
    fn root(&self) -> &Path {
        &self.root
    }

    fn controller(&self) -> Option<&'static str> {
        Some("cpu")
    }

    fn limits_cpu(&self) -> bool {
        true
    }

    fn prepare(&self, group: &Path, rank: Rank) -> Result<(), CgroupError> {
        match rank {
            Rank::Promised => {
                write_over(SHARES_DEFAULT, &self.root.join(group).join("cpu.shares"), SHARES)
            }
            Rank::Rest => Ok(()),
        }
    }

    fn set_cpu(&self, group: &Path, limit: CpuLimit) -> Result<(), CgroupError> {
        let directory = self.root.join(group);
        let (quota, period) =
            (directory.join("cpu.cfs_quota_us"), directory.join("cpu.cfs_period_us"));
        if read(&period)?.trim() != limit.period_micros.to_string() {
            // The pair is checked at each write; without a limit every period is right.
            write(&quota, -1)?;
            write(&period, limit.period_micros)?;
        }
        write(&quota, limit.quota_micros)
    }

    fn lift_cpu(&self, group: &Path) -> Result<(), CgroupError> {
        write(&self.root.join(group).join("cpu.cfs_quota_us"), -1)
    }

    fn cpu_limit(&self, group: &Path) -> Result<Option<CpuLimit>, CgroupError> {
        let directory = self.root.join(group);
        let quota = read(&directory.join("cpu.cfs_quota_us"))?;
        let period = read(&directory.join("cpu.cfs_period_us"))?;
        Ok(CpuLimit::parse(&quota, &period))
    }

    fn cpu_usage(&self, group: &Path) -> Result<Option<Nanos>, CgroupError> {
        // There if `cpuacct` is mounted together with `cpu`, as most systems do.
        let path = self.root.join(group).join("cpuacct.usage");
        match path.exists() {
            true => parse_number(&path, &read(&path)?).map(|nanos| Some(Nanos::new(nanos))),
            false => Ok(None),
        }
    }
}

impl Hierarchy for V1Disk {
    fn root(&self) -> &Path {
        &self.root
    }

    fn controller(&self) -> Option<&'static str> {
        Some("blkio")
    }
}

impl Hierarchy for V1Tasks {
    fn root(&self) -> &Path {
        &self.root
    }

    fn controller(&self) -> Option<&'static str> {
        Some("pids")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchies;
    use crate::cgroup::testing::with_files;
    use keeptime_model::units::CpuPpm;

    #[test]
    fn version_1_gets_quota_and_period() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keeptime/lab");
        with_files(&path, &[("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "100000\n")]);
        let group = Hierarchies::of(Some(V1::at(directory.path())), None, None).unwrap();
        let group = group.group("keeptime/lab").unwrap();
        group.set_cpu(CpuPpm::from_percent(40)).unwrap();
        let content = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(content("cpu.cfs_quota_us"), "4000");
        assert_eq!(content("cpu.cfs_period_us"), "10000");
        assert_eq!(group.cpu_limit().unwrap(), Some(CpuPpm::from_percent(40)));
        with_files(&path, &[("cpu.cfs_quota_us", "-1\n")]);
        assert_eq!(group.cpu_limit().unwrap(), None);
    }
}
