//! The hierarchy of version 2: one for all controllers, or for none.

use super::files::{cpu_stat, write_over};
use super::{CgroupError, CpuLimit, Hierarchy, Rank, read, write};
use keeptime_model::units::Nanos;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The controllers of version 2 that are of use.
const CONTROLLERS: [&str; 3] = ["cpu", "io", "pids"];
/// The greatest: what is promised is had before others on the machine.
const WEIGHT: u64 = 10_000;
/// What the kernel gives a group that is made.
const WEIGHT_DEFAULT: u64 = 100;

/// A hierarchy of version 2, with or without controllers.
#[derive(Debug, Clone)]
pub struct V2 {
    root: PathBuf,
    /// Those of [`CONTROLLERS`] that it has.
    controllers: BTreeSet<&'static str>,
    /// How deep its mounted root is in the whole hierarchy.
    pub(super) depth: u32,
}

impl V2 {
    /// The hierarchy mounted at `root`, whose root is `depth` groups below the real one.
    ///
    /// # Errors
    /// If its `cgroup.controllers` cannot be read.
    pub fn at(root: impl Into<PathBuf>, depth: u32) -> Result<Self, CgroupError> {
        let root = root.into();
        let text = read(&root.join("cgroup.controllers"))?;
        let is_there = |name: &&str| text.split_ascii_whitespace().any(|there| there == *name);
        let controllers = CONTROLLERS.into_iter().filter(is_there).collect();
        Ok(Self { root, controllers, depth })
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
    }
}

impl Hierarchy for V2 {
    fn root(&self) -> &Path {
        &self.root
    }

    fn controller(&self) -> Option<&'static str> {
        None
    }

    fn limits_cpu(&self) -> bool {
        self.has("cpu")
    }

    fn prepare(&self, group: &Path, rank: Rank) -> Result<(), CgroupError> {
        // A controller is there only where the parent passes it on.
        let parent = self.root.join(group.parent().unwrap_or(Path::new("")));
        let control = parent.join("cgroup.subtree_control");
        for controller in &self.controllers {
            if !read(&control)?.split_ascii_whitespace().any(|name| name == *controller) {
                write(&control, format_args!("+{controller}"))?;
            }
        }
        match rank {
            Rank::Promised if self.has("cpu") => {
                write_over(WEIGHT_DEFAULT, &self.root.join(group).join("cpu.weight"), WEIGHT)
            }
            _ => Ok(()),
        }
    }

    fn set_cpu(&self, group: &Path, limit: CpuLimit) -> Result<(), CgroupError> {
        let CpuLimit { quota_micros, period_micros } = limit;
        let path = self.root.join(group).join("cpu.max");
        write(&path, format_args!("{quota_micros} {period_micros}"))
    }

    fn lift_cpu(&self, group: &Path) -> Result<(), CgroupError> {
        write(&self.root.join(group).join("cpu.max"), "max")
    }

    fn cpu_limit(&self, group: &Path) -> Result<Option<CpuLimit>, CgroupError> {
        let text = read(&self.root.join(group).join("cpu.max"))?;
        Ok(text.split_once(' ').and_then(|(quota, period)| CpuLimit::parse(quota, period)))
    }

    fn cpu_usage(&self, group: &Path) -> Result<Option<Nanos>, CgroupError> {
        let micros = cpu_stat(&self.root.join(group), "usage_usec")?;
        Ok(micros.map(|micros| Nanos::new(micros.saturating_mul(1_000))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchies;
    use crate::cgroup::testing::{v2_fixture, with_files};
    use crate::disk::{DiskLimits, Throttle};
    use keeptime_model::units::CpuPpm;

    #[test]
    fn version_2_gets_limit_and_weight_and_passes_the_controller_on() {
        let (directory, v2) = v2_fixture("cpu memory");
        let path = directory.path().join("keeptime");
        with_files(&path, &[("cpu.weight", "100"), ("cpu.max", "max 100000"), ("cpu.stat", "")]);
        v2.prepare(Path::new("keeptime"), Rank::Promised).unwrap();
        let group = Hierarchies::of(None, None, Some(v2)).unwrap().group("keeptime").unwrap();
        group.set_cpu(CpuPpm::from_percent(150)).unwrap();
        let content = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(content(directory.path().join("cgroup.subtree_control")), "+cpu");
        assert_eq!(content(path.join("cpu.max")), "15000 10000");
        assert_eq!(content(path.join("cpu.weight")), "10000");
        std::fs::write(path.join("cpu.stat"), "usage_usec 77\nuser_usec 5\n").unwrap();
        assert_eq!(group.cpu_usage().unwrap(), Nanos::new(77_000));
        assert_eq!(group.cpu_limit().unwrap(), Some(CpuPpm::from_percent(150)));
        group.lift_cpu().unwrap();
        assert_eq!(content(path.join("cpu.max")), "max");
        std::fs::write(path.join("cpu.max"), "max 100000\n").unwrap();
        assert_eq!(group.cpu_limit().unwrap(), None);
        assert_eq!(group.id().unwrap().level, 1);
    }

    #[test]
    fn version_2_passes_every_controller_on_that_it_has() {
        let (directory, v2) = v2_fixture("cpuset cpu io memory");
        let path = directory.path().join("keeptime");
        with_files(&path, &[("cpu.weight", "100"), ("io.max", "8:0 rbps=7 wbps=max\n")]);
        std::fs::write(directory.path().join("cgroup.subtree_control"), "cpu memory").unwrap();
        v2.prepare(Path::new("keeptime"), Rank::Promised).unwrap();
        let control = std::fs::read_to_string(directory.path().join("cgroup.subtree_control"));
        assert_eq!(control.unwrap(), "+io");
        let all = Hierarchies::of(None, None, Some(v2)).unwrap();
        assert_eq!(all.throttle(), Some(&Throttle::v2(directory.path())));
        all.group("keeptime").unwrap().set_disks(&DiskLimits::new()).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("io.max")).unwrap(), "8:0 rbps=max");
    }
}
