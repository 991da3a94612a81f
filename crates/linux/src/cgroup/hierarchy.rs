//! One mounted hierarchy of control groups, whatever its version.

use super::{CgroupError, CpuLimit};
use keeptime_model::units::Nanos;
use std::fmt;
use std::path::Path;

/// One mounted hierarchy. Groups are given as paths relative to its root.
pub trait Hierarchy: fmt::Debug + Send + Sync {
    /// Where it is mounted.
    fn root(&self) -> &Path;

    /// The controller that it is found by in `/proc/PID/cgroup`; nothing for version 2.
    fn controller(&self) -> Option<&'static str>;

    /// True if it can limit CPU.
    fn limits_cpu(&self) -> bool {
        false
    }

    /// Makes one of our directories ready, with its rank among its siblings: called for each from the top, also for
    /// those that are there already. A weight that somebody has set stays.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn prepare(&self, _group: &Path, _rank: Rank) -> Result<(), CgroupError> {
        Ok(())
    }

    /// Sets the limit of a group, where [`Self::limits_cpu`].
    ///
    /// # Errors
    /// If the kernel refuses.
    fn set_cpu(&self, _group: &Path, _limit: CpuLimit) -> Result<(), CgroupError> {
        Ok(())
    }

    /// Takes the limit of a group off, where [`Self::limits_cpu`].
    ///
    /// # Errors
    /// If the kernel refuses.
    fn lift_cpu(&self, _group: &Path) -> Result<(), CgroupError> {
        Ok(())
    }

    /// The limit of a group, where [`Self::limits_cpu`]; nothing if it has none of its own.
    ///
    /// # Errors
    /// If the group is away.
    fn cpu_limit(&self, _group: &Path) -> Result<Option<CpuLimit>, CgroupError> {
        Ok(None)
    }

    /// CPU time used by the group since it was made; nothing if this hierarchy does not count.
    ///
    /// # Errors
    /// If the group is away.
    fn cpu_usage(&self, _group: &Path) -> Result<Option<Nanos>, CgroupError> {
        Ok(None)
    }
}

/// Who has the CPU first when there is too little for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// What something was promised to.
    Promised,
    /// All else.
    Rest,
}
