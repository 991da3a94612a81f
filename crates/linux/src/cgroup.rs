//! Control groups: how much CPU and disk the processes of a node or a job can have, and which
//! packets are a job's.
//!
//! Hosts have version 1, version 2, or both (hybrid: the CPU and disk controllers in hierarchies of
//! version 1, and one of version 2 without controllers whose groups tell packets apart). A [`Group`] is
//! the same path in every hierarchy that is of use. Every path begins with [`MARK`].

mod claim;
mod cpu_limit;
mod ending;
mod error;
mod files;
mod hierarchies;
mod hierarchy;
#[cfg(test)]
mod testing;
mod v1;
mod v2;

pub use claim::GroupClaim;
pub use cpu_limit::{CPU_PERIOD, CpuLimit};
pub use error::CgroupError;
pub use hierarchies::Hierarchies;
pub use hierarchy::{Hierarchy, Rank};
pub use v1::{V1, V1Disk, V1Tasks};
pub use v2::V2;

pub(crate) use error::refused;
pub(crate) use files::{
    make_directory, make_numbered, move_into, parse_number, processes_below, read,
    remove_directory, remove_with_descendants, retry, retry_within, with_descendants, write,
};

use crate::bound::{attribute, set_attribute};
use crate::disk::{self, DiskCounters, DiskLimits};
use files::{cpu_stat, subgroups};
use keeptime_model::Invalid;
use keeptime_model::disk::DiskId;
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Our mark: the first component of every path.
pub const MARK: &str = "keeptime";

/// See [`Group::rest`].
const REST: &str = "_rest";

/// One of our groups, in every hierarchy.
#[derive(Debug, Clone)]
pub struct Group {
    hierarchies: Hierarchies,
    path: PathBuf,
}

/// What the kernel's programs know a group by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId {
    /// The inode of its directory in the hierarchy of version 2.
    pub id: u64,
    /// How many groups are above it there: for `bpf_get_current_ancestor_cgroup_id` and the like.
    pub level: u32,
}

impl Group {
    /// Its path below the root of every hierarchy.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The group `name` inside.
    ///
    /// # Errors
    /// If `name` is not one path component.
    pub fn child(&self, name: &str) -> Result<Self, CgroupError> {
        if name.contains('/') {
            return Err(Invalid::new("cgroup", name, "a name without /").into());
        }
        self.hierarchies.group(self.path.join(name))
    }

    /// Where the processes of this group go that belong to none of its children: version 2 lets
    /// a group with limited children have no processes itself. No job can have this name.
    ///
    /// # Errors
    /// Never for a group that exists.
    pub fn rest(&self) -> Result<Self, CgroupError> {
        self.child(REST)
    }

    /// The names of the groups right inside, each once, without [`Self::rest`]; none if it is away.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn children(&self) -> Result<BTreeSet<String>, CgroupError> {
        let mut names = BTreeSet::new();
        for directory in self.directories() {
            let groups = subgroups(&directory)?.unwrap_or_default();
            names.extend(
                groups.iter().filter_map(|group| group.file_name()?.to_str().map(str::to_owned)),
            );
        }
        names.remove(REST);
        Ok(names)
    }

    /// Makes it, with the groups above it. Those that are there are made ready, where they are ours to write.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn create(&self) -> Result<(), CgroupError> {
        for hierarchy in self.hierarchies.all.iter() {
            retry(|| self.create_in(&**hierarchy))?;
        }
        Ok(())
    }

    /// The same, for a group whose packets are to be told apart.
    ///
    /// # Errors
    /// If there is no hierarchy of version 2: nothing is made then. Or the kernel refuses.
    pub fn create_known(&self) -> Result<GroupId, CgroupError> {
        self.known_in()?;
        self.create()?;
        self.id()
    }

    fn create_in(&self, hierarchy: &dyn Hierarchy) -> Result<(), CgroupError> {
        let mut group = PathBuf::new();
        for component in self.path.components() {
            group.push(component);
            let directory = hierarchy.root().join(&group);
            let is_rest = component.as_os_str() == REST;
            let rank = if is_rest { Rank::Rest } else { Rank::Promised };
            match make_directory(&directory)? {
                true => hierarchy.prepare(&group, rank)?,
                // Whoever made it may have been killed before more was done; and what others made for us to use is
                // not always ours to write.
                false => drop(hierarchy.prepare(&group, rank)),
            }
        }
        Ok(())
    }

    /// True if it is there in every hierarchy: whoever takes it from one takes what it was limited to there.
    pub fn is_whole(&self) -> bool {
        self.directories().iter().all(|directory| directory.is_dir())
    }

    /// True if it is there, in any hierarchy.
    pub fn exists(&self) -> bool {
        self.directories().iter().any(|directory| directory.is_dir())
    }

    /// Limits the CPU of its processes, all together, in periods of [`CPU_PERIOD`].
    ///
    /// # Errors
    /// Less than 0.1 %, or the kernel refuses: in version 1 a group cannot have more than the
    /// one above it.
    pub fn set_cpu(&self, cpu: CpuPpm) -> Result<(), CgroupError> {
        self.set_cpu_in_periods(cpu, CPU_PERIOD)
    }

    /// As [`Self::set_cpu`], with another period.
    ///
    /// # Errors
    /// As [`Self::set_cpu`].
    pub fn set_cpu_in_periods(&self, cpu: CpuPpm, period: Nanos) -> Result<(), CgroupError> {
        self.limit_cpu(CpuLimit::of(cpu, period)?)
    }

    /// Whether just that limit is in force; true where nothing here limits CPU.
    ///
    /// # Errors
    /// If it is away, or there is no such limit ([`Self::set_cpu`]).
    pub fn has_cpu_in_periods(&self, cpu: CpuPpm, period: Nanos) -> Result<bool, CgroupError> {
        let Some(hierarchy) = self.limiting_cpu() else { return Ok(true) };
        Ok(hierarchy.cpu_limit(&self.path)? == Some(CpuLimit::of(cpu, period)?))
    }

    pub(crate) fn limit_cpu(&self, limit: CpuLimit) -> Result<(), CgroupError> {
        self.limiting_cpu().map_or(Ok(()), |hierarchy| hierarchy.set_cpu(&self.path, limit))
    }

    /// Takes the limit of its CPU off.
    ///
    /// # Errors
    /// If it is away, or the kernel refuses.
    pub fn lift_cpu(&self) -> Result<(), CgroupError> {
        self.limiting_cpu().map_or(Ok(()), |hierarchy| hierarchy.lift_cpu(&self.path))
    }

    fn limiting_cpu(&self) -> Option<&dyn Hierarchy> {
        self.hierarchies.all.iter().find(|h| h.limits_cpu()).map(|hierarchy| &**hierarchy)
    }

    /// How many periods of its limit have begun in which it had something to run; never more, if nothing here limits CPU.
    ///
    /// # Errors
    /// If it is away.
    pub fn cpu_periods(&self) -> Result<u64, CgroupError> {
        let Some(hierarchy) = self.limiting_cpu() else { return Ok(0) };
        Ok(cpu_stat(&hierarchy.root().join(&self.path), "nr_periods")?.unwrap_or(0))
    }

    /// The CPU that its processes may have together by its own limit; nothing if it has none. What the
    /// groups above it leave is not asked.
    ///
    /// # Errors
    /// If it is away.
    pub fn cpu_limit(&self) -> Result<Option<CpuPpm>, CgroupError> {
        let limit =
            self.limiting_cpu().map_or(Ok(None), |hierarchy| hierarchy.cpu_limit(&self.path))?;
        Ok(limit.map(CpuLimit::cpu))
    }

    /// Limits how fast its processes use disks: exactly `wanted`, whatever was set before. Nothing
    /// happens where nothing is wanted and nothing can be.
    ///
    /// # Errors
    /// [`CgroupError::Unsupported`], or the kernel refuses: there is no such disk.
    pub fn set_disks(&self, wanted: &DiskLimits) -> Result<(), CgroupError> {
        let Some(throttle) = &self.hierarchies.throttle else {
            if wanted.is_empty() {
                return Ok(());
            }
            let needs = "the blkio controller (version 1) or the io controller (version 2)".into();
            return Err(CgroupError::Unsupported { feature: "disk limit", needs });
        };
        let ops = disk::diff(wanted, &throttle.observe(&self.path)?);
        throttle.apply(&self.path, &ops)
    }

    /// Lets it have so many processes and threads together, with those in the groups inside: no more are started. Who comes from
    /// elsewhere comes in all the same. Nothing happens where nothing here counts them.
    ///
    /// # Errors
    /// If it is away, or the kernel refuses: none, or more than there are numbers of processes.
    pub fn limit_tasks(&self, most: u32) -> Result<(), CgroupError> {
        let Some(root) = &self.hierarchies.tasks else { return Ok(()) };
        let path = root.join(&self.path).join("pids.max");
        match read(&path)?.trim() == most.to_string() {
            true => Ok(()),
            false => write(&path, most),
        }
    }

    /// What its processes read and wrote, by disk; nothing where nobody counts.
    ///
    /// # Errors
    /// If it is away.
    pub fn disk_usage(&self) -> Result<BTreeMap<DiskId, DiskCounters>, CgroupError> {
        let throttle = self.hierarchies.throttle.as_ref();
        throttle.map_or(Ok(BTreeMap::new()), |throttle| throttle.counters(&self.path))
    }

    /// CPU time that its processes have used since it was made.
    ///
    /// # Errors
    /// If it is away, or nothing on this machine counts.
    pub fn cpu_usage(&self) -> Result<Nanos, CgroupError> {
        for hierarchy in self.hierarchies.all.iter() {
            if let Some(usage) = hierarchy.cpu_usage(&self.path)? {
                return Ok(usage);
            }
        }
        let needs = "a cgroup hierarchy of version 2, or cpuacct mounted together with cpu";
        Err(CgroupError::Unsupported { feature: "CPU usage of a group", needs: needs.into() })
    }

    /// Moves a process into it, in every hierarchy.
    ///
    /// # Errors
    /// If the process or the group is away.
    pub fn join(&self, pid: i32) -> Result<(), CgroupError> {
        self.directories().iter().try_for_each(|directory| move_into(directory, pid))
    }

    /// Its `cgroup.procs` files, open for writing: a process joins by writing `0` to each.
    ///
    /// # Errors
    /// If it is away.
    pub fn open_to_join(&self) -> Result<Vec<std::fs::File>, CgroupError> {
        let open = |directory: &PathBuf| {
            let path = directory.join("cgroup.procs");
            std::fs::OpenOptions::new().write(true).open(&path).map_err(refused("open", &path))
        };
        self.directories().iter().map(open).collect()
    }

    /// The processes in it and in the groups inside, each once; none if it is away.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn pids(&self) -> Result<Vec<i32>, CgroupError> {
        let mut pids = Vec::new();
        for directory in self.directories() {
            pids.extend(processes_below(&directory)?);
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// What the kernel's programs know it by.
    ///
    /// # Errors
    /// If there is no hierarchy of version 2, or the group is away.
    pub fn id(&self) -> Result<GroupId, CgroupError> {
        let unified = self.known_in()?;
        let path = unified.root().join(&self.path);
        let id = std::fs::metadata(&path).map_err(refused("stat", &path))?.ino();
        Ok(GroupId { id, level: unified.depth + self.path.components().count() as u32 })
    }

    /// What is noted on it by this name; nothing if nothing is. The kernel keeps it as long as the group, whatever becomes of
    /// who wrote it.
    ///
    /// # Errors
    /// If there is no hierarchy of version 2, or the group is away.
    pub fn note(&self, name: &CStr) -> Result<String, CgroupError> {
        attribute(&self.in_version_2()?, name)
    }

    /// Notes something on it, in place of what was noted by this name.
    ///
    /// # Errors
    /// As [`Self::note`], or it is longer than the kernel keeps.
    pub fn set_note(&self, name: &CStr, text: &str) -> Result<(), CgroupError> {
        set_attribute(&self.in_version_2()?, name, text.as_bytes())
    }

    /// The hierarchy by whose numbers the kernel's programs know groups.
    fn known_in(&self) -> Result<&V2, CgroupError> {
        self.version_2("telling packets apart")
    }

    /// The hierarchies that it is in.
    pub(crate) fn hierarchies(&self) -> &[Box<dyn Hierarchy>] {
        &self.hierarchies.all
    }

    /// Its directory in the hierarchy of version 2: groups inside of a job's are there only.
    pub(crate) fn in_version_2(&self) -> Result<PathBuf, CgroupError> {
        Ok(self.root_of_version_2()?.join(&self.path))
    }

    /// Where the hierarchy of version 2 is mounted.
    pub(crate) fn root_of_version_2(&self) -> Result<&Path, CgroupError> {
        Ok(self.version_2("groups inside of a job's")?.root())
    }

    /// The hierarchy of version 2, without which there is no `feature`.
    fn version_2(&self, feature: &'static str) -> Result<&V2, CgroupError> {
        let needs = "a mounted cgroup hierarchy of version 2";
        let missing = || CgroupError::Unsupported { feature, needs: needs.into() };
        self.hierarchies.unified.as_ref().ok_or_else(missing)
    }

    fn directories(&self) -> Vec<PathBuf> {
        self.hierarchies.all.iter().map(|h| h.root().join(&self.path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{v2_fixture, with_files};
    use super::*;

    // Goal: an agent that is killed at any line leaves nothing that the next one cannot use. Method: groups that were made,
    // and nothing more.
    #[test]
    fn a_group_that_was_only_begun_is_made_ready_by_the_next() {
        let (directory, v2) = v2_fixture("cpu");
        let (above, begun) =
            (directory.path().join("keeptime"), directory.path().join("keeptime/n1"));
        for path in [&above, &begun] {
            with_files(path, &[("cgroup.subtree_control", ""), ("cpu.weight", "100")]);
        }
        let all = Hierarchies::of(None, None, Some(v2)).unwrap();
        all.group("keeptime/n1").unwrap().create().unwrap();
        let content = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        for parent in [directory.path(), above.as_path()] {
            assert_eq!(content(parent.join("cgroup.subtree_control")), "+cpu");
        }
        assert_eq!(content(begun.join("cpu.weight")), "10000");
    }

    // Goal: an operator says how much all jobs weigh against what else the machine does, and what is made inside is as ever.
    // Method: both versions, with a group above that has a weight of its own, and one inside that was only begun.
    #[test]
    fn the_weight_that_an_operator_has_set_stays() {
        let (unified, v2) = v2_fixture("cpu");
        let cpu = tempfile::tempdir().unwrap();
        let made = |root: &Path, weights: [(&str, &str); 2]| {
            for (path, (name, weight)) in ["keeptime", "keeptime/n1"].into_iter().zip(weights) {
                let files = [("cgroup.subtree_control", ""), (name, weight)];
                with_files(&root.join(path), &files);
            }
        };
        made(unified.path(), [("cpu.weight", "500\n"), ("cpu.weight", "100\n")]);
        made(cpu.path(), [("cpu.shares", "2048\n"), ("cpu.shares", "1024\n")]);
        for all in [
            Hierarchies::of(None, None, Some(v2)).unwrap(),
            Hierarchies::of(Some(V1::at(cpu.path())), None, None).unwrap(),
        ] {
            // The second finds what the first has set.
            all.group("keeptime/n1").unwrap().create().unwrap();
            all.group("keeptime/n1").unwrap().create().unwrap();
        }
        let content = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(content(unified.path().join("keeptime/cpu.weight")), "500\n");
        assert_eq!(content(unified.path().join("keeptime/n1/cpu.weight")), "10000");
        assert_eq!(content(cpu.path().join("keeptime/cpu.shares")), "2048\n");
        assert_eq!(content(cpu.path().join("keeptime/n1/cpu.shares")), "102400");
    }

    // Goal: no job has more processes than it may, whatever hierarchies there are. Method: both versions, where that can be limited
    // and where it cannot.
    #[test]
    fn processes_and_threads_are_limited_where_they_can_be() {
        let (unified, v2) = v2_fixture("cpu pids");
        let (without, v2_without) = v2_fixture("cpu");
        let v1 = tempfile::tempdir().unwrap();
        for root in [&unified, &without, &v1] {
            let files = [("cgroup.subtree_control", ""), ("cpu.weight", "100")];
            with_files(&root.path().join("keeptime"), &files);
        }
        for root in [&unified, &v1] {
            with_files(&root.path().join("keeptime"), &[("pids.max", "max\n")]);
        }
        let tasks = Some(V1Tasks::at(v1.path()));
        for (all, limited) in [
            (Hierarchies::any_of(None, None, None, Some(v2)), Some(&unified)),
            (Hierarchies::any_of(None, None, tasks, Some(v2_without.clone())), Some(&v1)),
            (Hierarchies::any_of(None, None, None, Some(v2_without)), None),
        ] {
            let group = all.group("keeptime").unwrap();
            group.create().unwrap();
            group.limit_tasks(77).unwrap();
            let limit = limited.map(|root| root.path().join("keeptime/pids.max"));
            let limit = limit.map(|path| std::fs::read_to_string(path).unwrap());
            assert_eq!(limit.as_deref(), limited.map(|_| "77"));
        }
        assert!(!without.path().join("keeptime/pids.max").exists());
    }

    #[test]
    fn a_group_that_is_away_in_one_hierarchy_is_not_whole() {
        let (cpu, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (v1, v1_disk) = (V1::at(cpu.path()), V1Disk::at(disk.path()));
        let all = Hierarchies::of(Some(v1), Some(v1_disk), None).unwrap();
        let group = all.group("keeptime/n1").unwrap();
        assert!(!group.is_whole());
        for root in [&cpu, &disk] {
            std::fs::create_dir_all(root.path().join("keeptime/n1")).unwrap();
        }
        assert!(group.is_whole());
        std::fs::remove_dir(cpu.path().join("keeptime/n1")).unwrap();
        assert!(group.exists() && !group.is_whole());
    }
}
