//! Control groups: how much CPU and disk the processes of a node or a job can have, and which
//! packets are a job's.
//!
//! Hosts have version 1, version 2, or both (hybrid: the CPU and disk controllers in hierarchies of
//! version 1, and one of version 2 without controllers whose groups tell packets apart). A [`Group`] is
//! the same path in every hierarchy that is of use. Every path begins with [`MARK`].

use crate::bound::ROUNDS;
use crate::deadline;
use crate::disk::{self, DiskCounters, DiskLimits, Throttle};
use crate::process::read_text;
use keeptime_model::Invalid;
use keeptime_model::disk::DiskId;
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Our mark: the first component of every path.
pub const MARK: &str = "keeptime";

/// See [`Group::rest`].
const REST: &str = "_rest";

/// How long a period of CPU bandwidth is where nothing else is asked. Measured on two CPUs, four
/// nodes of 40 %, a fixed computation on one of them while the others idle or compute: 5 ms costs
/// 3 to 9 % when the others compute, since a period is then close to the tick (4 ms); 10, 20 and
/// 50 ms cost nothing that can be measured (-1.2 to -1.5 %), and the shortest is the smoothest.
/// `cargo test -p keeptime-lab --test isolation -- --ignored --nocapture` measures it again.
pub const CPU_PERIOD: Nanos = Nanos::from_millis(10);

/// Why control groups could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The machine does not have what is needed.
    #[error("{feature} is not there: {needs}")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
        /// What would make it work.
        needs: String,
    },
    /// A value that cannot be enforced.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The kernel refused.
    #[error("{call} of {}", path.display())]
    Refused {
        /// The call (`write`, `mkdir`).
        call: &'static str,
        /// The file or directory below the hierarchy's root.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Processes that do not end, although they were killed.
    #[error("{count} processes in {group} did not end within {patience:?} of SIGKILL")]
    Unkillable {
        /// The group.
        group: String,
        /// How many are left.
        count: usize,
        /// How long they were waited for.
        patience: Duration,
    },
}

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

    /// Called for each of our new directories from the top, with its rank among its siblings.
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

/// A hierarchy of version 2, with or without controllers.
#[derive(Debug, Clone)]
pub struct V2 {
    root: PathBuf,
    /// Those of [`V2_CONTROLLERS`] that it has.
    controllers: BTreeSet<&'static str>,
    /// How deep its mounted root is in the whole hierarchy.
    depth: u32,
}

/// CPU bandwidth as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuLimit {
    quota_micros: u64,
    period_micros: u64,
}

/// Who has the CPU first when there is too little for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// What something was promised to.
    Promised,
    /// All else.
    Rest,
}

/// The hierarchies of this machine that are of use.
#[derive(Debug, Clone)]
pub struct Hierarchies {
    all: Arc<[Box<dyn Hierarchy>]>,
    unified: Option<V2>,
    throttle: Option<Throttle>,
}

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

impl Hierarchies {
    /// Those of this machine, as the calling process sees them.
    ///
    /// # Errors
    /// [`CgroupError::Unsupported`] if none can limit CPU.
    pub fn discover() -> Result<Self, CgroupError> {
        Self::from_mountinfo(&read(Path::new("/proc/self/mountinfo"))?)
    }

    /// Those in the text of a `mountinfo` file.
    ///
    /// # Errors
    /// As [`Self::discover`].
    pub fn from_mountinfo(text: &str) -> Result<Self, CgroupError> {
        let mounts: Vec<_> = text.lines().filter_map(parse_mount).collect();
        // A later mount hides an earlier one at the same place.
        let v1 = |controller| mounts.iter().rev().find(|m| m.is_v1_with(controller));
        let v2 = mounts.iter().rev().find(|m| m.kind == "cgroup2");
        let (cpu, disk) = (v1("cpu"), v1("blkio"));
        let unified = v2.map(|mount| V2::at(&mount.at, mount.depth)).transpose()?;
        Self::of(cpu.map(|m| V1::at(&m.at)), disk.map(|m| V1Disk::at(&m.at)), unified)
    }

    /// These hierarchies.
    ///
    /// # Errors
    /// [`CgroupError::Unsupported`] if none can limit CPU.
    pub fn of(
        cpu: Option<V1>,
        disk: Option<V1Disk>,
        unified: Option<V2>,
    ) -> Result<Self, CgroupError> {
        let has_cpu = cpu.is_some() || unified.as_ref().is_some_and(|v2| v2.has("cpu"));
        if !has_cpu {
            let needs = "a mounted cgroup hierarchy, version 1 or 2, with the cpu controller";
            return Err(CgroupError::Unsupported { feature: "CPU limit", needs: needs.into() });
        }
        let in_v2 = unified.as_ref().filter(|v2| v2.has("io")).map(|v2| Throttle::v2(&v2.root));
        let throttle = disk.as_ref().map(|disk| Throttle::v1(&disk.root)).or(in_v2);
        // Both controllers may be mounted at one place: then it is one hierarchy.
        let disk = disk.filter(|disk| cpu.as_ref().is_none_or(|cpu| cpu.root != disk.root));
        let mut all: Vec<Box<dyn Hierarchy>> = Vec::new();
        all.extend(cpu.map(|v1| Box::new(v1) as Box<dyn Hierarchy>));
        all.extend(disk.map(|v1| Box::new(v1) as Box<dyn Hierarchy>));
        all.extend(unified.clone().map(|v2| Box::new(v2) as Box<dyn Hierarchy>));
        Ok(Self { all: all.into(), unified, throttle })
    }

    /// What throttles disks here, if anything does.
    pub fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }

    /// The group at `path` (`keeptime/…`), whether it is there or not.
    ///
    /// # Errors
    /// If the path does not begin with [`MARK`] or leaves it.
    pub fn group(&self, path: impl AsRef<Path>) -> Result<Group, CgroupError> {
        let path = path.as_ref();
        let marked = path.components().next() == Some(Component::Normal(MARK.as_ref()));
        if !marked || path.components().any(|c| !matches!(c, Component::Normal(_))) {
            let expected = format!("a path that begins with {MARK}/ and has no ..");
            return Err(Invalid::new("cgroup", path.display(), expected).into());
        }
        Ok(Group { hierarchies: self.clone(), path: path.into() })
    }
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

impl V2 {
    /// The hierarchy mounted at `root`, whose root is `depth` groups below the real one.
    ///
    /// # Errors
    /// If its `cgroup.controllers` cannot be read.
    pub fn at(root: impl Into<PathBuf>, depth: u32) -> Result<Self, CgroupError> {
        let root = root.into();
        let text = read(&root.join("cgroup.controllers"))?;
        let is_there = |name: &&str| text.split_ascii_whitespace().any(|there| there == *name);
        let controllers = V2_CONTROLLERS.into_iter().filter(is_there).collect();
        Ok(Self { root, controllers, depth })
    }

    fn has(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
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
            Rank::Promised => write(&self.root.join(group).join("cpu.shares"), V1_SHARES),
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
                write(&self.root.join(group).join("cpu.weight"), V2_WEIGHT)
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

impl CpuLimit {
    /// `cpu` in periods of `period`, longer where the kernel's least quota (1 ms) asks for it.
    ///
    /// # Errors
    /// If `cpu` is less than 0.1 %: that needs a period beyond the kernel's greatest (1 s).
    pub fn of(cpu: CpuPpm, period: Nanos) -> Result<Self, Invalid> {
        let ppm = u64::from(cpu.get());
        if ppm < PPM_MIN {
            return Err(Invalid::new("cpu", cpu, "at least 0.1 %"));
        }
        let least = (QUOTA_MICROS_MIN * 1_000_000).div_ceil(ppm);
        let period_micros = (period.get() / 1_000).max(least).min(PERIOD_MICROS_MAX);
        let span = cpu.time_in_floor(Nanos::new(period_micros * 1_000));
        let quota_micros = (span.get() / 1_000).max(QUOTA_MICROS_MIN);
        Ok(Self { quota_micros, period_micros })
    }

    /// As long as it lasts.
    pub(crate) fn period(self) -> Nanos {
        Nanos::new(self.period_micros * 1_000)
    }

    /// The same share or a little less, in other periods; nothing if the kernel does not take those.
    pub(crate) fn in_periods(self, period: Nanos) -> Option<Self> {
        let period_micros = period.get() / 1_000;
        let quota = u128::from(self.quota_micros) * u128::from(period_micros);
        let quota_micros = u64::try_from(quota.checked_div(self.period_micros.into())?).ok()?;
        let is_taken = quota_micros >= QUOTA_MICROS_MIN && period_micros <= PERIOD_MICROS_MAX;
        is_taken.then_some(Self { quota_micros, period_micros })
    }

    /// What the kernel's two files say; nothing where there is no limit (`-1`, `max`).
    fn parse(quota: &str, period: &str) -> Option<Self> {
        let quota_micros = quota.trim().parse().ok()?;
        let period_micros = period.trim().parse().ok()?;
        Some(Self { quota_micros, period_micros })
    }

    /// The CPU that it leaves, rounded down.
    pub(crate) fn cpu(self) -> CpuPpm {
        let ppm = u128::from(self.quota_micros) * 1_000_000;
        let ppm = ppm.checked_div(u128::from(self.period_micros)).unwrap_or(0);
        CpuPpm::new(u32::try_from(ppm).unwrap_or(u32::MAX))
    }
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
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(refused("read", &directory))?,
            };
            let groups =
                entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
            names.extend(groups.filter_map(|entry| entry.file_name().into_string().ok()));
        }
        names.remove(REST);
        Ok(names)
    }

    /// Makes it, with the groups above it. Nothing happens if it is there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn create(&self) -> Result<(), CgroupError> {
        for hierarchy in self.hierarchies.all.iter() {
            retry(|| self.create_in(&**hierarchy))?;
        }
        Ok(())
    }

    fn create_in(&self, hierarchy: &dyn Hierarchy) -> Result<(), CgroupError> {
        let mut group = PathBuf::new();
        for component in self.path.components() {
            group.push(component);
            let directory = hierarchy.root().join(&group);
            let is_rest = component.as_os_str() == REST;
            let rank = if is_rest { Rank::Rest } else { Rank::Promised };
            match std::fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(refused("mkdir", &directory)(error));
                }
                Err(_) => {}
                Ok(()) => hierarchy.prepare(&group, rank)?,
            }
        }
        Ok(())
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
            for group in with_descendants(&directory)? {
                let path = group.join("cgroup.procs");
                let text = match read(&path) {
                    Err(error) if error.is_away() => continue,
                    text => text?,
                };
                pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Kills every process in it and in the groups inside, and waits until they are gone. Those that do
    /// not end for want of processor time lose their schedules first ([`deadline`]): a thread dies when
    /// it runs, and one that has used up its slice does so in the next period, if the kernel still knows
    /// when that begins (on Linux 6.18 it was seen to forget).
    ///
    /// # Errors
    /// [`CgroupError::Unkillable`] after a bounded time.
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        self.kill_within(KILL_LIMIT)
    }

    /// As [`Self::kill_all`], for those who have not that much time, and can try again: what is killed ends
    /// meanwhile. Looks once at least.
    ///
    /// # Errors
    /// [`CgroupError::Unkillable`] after `patience`.
    pub fn kill_within(&self, patience: Duration) -> Result<(), CgroupError> {
        let tries = patience.as_millis() / POLL_SPAN.as_millis();
        let patient = PATIENT_TRIES.min(tries / 2);
        for number in 0..tries {
            if self.kill(number >= patient)? == 0 {
                return Ok(());
            }
            std::thread::sleep(POLL_SPAN);
        }
        match self.kill(true)? {
            0 => Ok(()),
            count => {
                let group = self.path.display().to_string();
                Err(CgroupError::Unkillable { group, count, patience })
            }
        }
    }

    /// Kills those who are in it now, and takes their schedules from them if asked to. How many these are.
    fn kill(&self, releases: bool) -> Result<usize, CgroupError> {
        self.kill_by_kernel();
        let pids = self.pids()?;
        // 0 stands for a process of another process namespace: not ours to name.
        for pid in pids.iter().copied().filter(|pid| *pid > 0) {
            let killed = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(killed, nix::sys::signal::Signal::SIGKILL);
            if releases {
                // Without privilege there is no such schedule.
                let _ = deadline::release(&threads(pid));
            }
        }
        Ok(pids.len())
    }

    /// At once and without forks that escape, where the kernel can (version 2, Linux 5.14).
    fn kill_by_kernel(&self) {
        if let Some(unified) = &self.hierarchies.unified {
            let path = unified.root.join(&self.path).join("cgroup.kill");
            if path.exists() {
                let _ = std::fs::write(path, "1");
            }
        }
    }

    /// Removes it with the groups inside, and the groups above it that are empty then. Nothing
    /// happens if it is away.
    ///
    /// # Errors
    /// If processes are left in it.
    pub fn remove(&self) -> Result<(), CgroupError> {
        for directory in self.directories() {
            for group in with_descendants(&directory)?.into_iter().rev() {
                retry(|| remove_directory(&group))?;
            }
        }
        for hierarchy in self.hierarchies.all.iter() {
            for above in self.path.ancestors().skip(1).filter(|a| *a != Path::new("")) {
                // Others may be in there.
                if std::fs::remove_dir(hierarchy.root().join(above)).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Removes it as [`Self::remove`] does, but ends nobody: processes that are in it go on at the root of each
    /// hierarchy, without limits.
    ///
    /// # Errors
    /// If the kernel refuses, or they start others faster than they can be moved.
    pub fn dissolve(&self) -> Result<(), CgroupError> {
        for _ in 0..ROUNDS {
            // 0 stands for a process of another process namespace: not ours to name.
            let pids: Vec<_> = self.pids()?.into_iter().filter(|pid| *pid > 0).collect();
            if pids.is_empty() {
                break;
            }
            for (hierarchy, pid) in
                self.hierarchies.all.iter().flat_map(|h| pids.iter().map(move |pid| (h, *pid)))
            {
                match move_into(hierarchy.root(), pid) {
                    Err(error) if error.is_away() => {}
                    moved => moved?,
                }
            }
        }
        self.remove()
    }

    /// What the kernel's programs know it by.
    ///
    /// # Errors
    /// If there is no hierarchy of version 2, or the group is away.
    pub fn id(&self) -> Result<GroupId, CgroupError> {
        let needs = "a mounted cgroup hierarchy of version 2";
        let missing =
            CgroupError::Unsupported { feature: "telling packets apart", needs: needs.into() };
        let unified = self.hierarchies.unified.as_ref().ok_or(missing)?;
        let path = unified.root.join(&self.path);
        let id = std::fs::metadata(&path).map_err(refused("stat", &path))?.ino();
        Ok(GroupId { id, level: unified.depth + self.path.components().count() as u32 })
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
        let needs = "a mounted cgroup hierarchy of version 2";
        let missing =
            CgroupError::Unsupported { feature: "groups inside of a job's", needs: needs.into() };
        Ok(&self.hierarchies.unified.as_ref().ok_or(missing)?.root)
    }

    fn directories(&self) -> Vec<PathBuf> {
        self.hierarchies.all.iter().map(|h| h.root().join(&self.path)).collect()
    }
}

impl CgroupError {
    /// True if the group, or a process that should be in it, is not there (any more).
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Refused { source, .. }
            if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH)))
    }

    /// True if another process changed the same groups at the same moment, or the kernel is not
    /// done with processes that have just ended.
    pub fn is_retryable(&self) -> bool {
        self.is_away()
            || matches!(self, Self::Refused { source, .. }
                if source.raw_os_error() == Some(libc::EBUSY))
    }

    /// True if the caller lacks the privilege.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Refused { source, .. }
            if matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)))
    }
}

struct Mount<'a> {
    kind: &'a str,
    at: PathBuf,
    depth: u32,
    options: &'a str,
}

impl Mount<'_> {
    fn is_v1_with(&self, controller: &str) -> bool {
        self.kind == "cgroup" && self.options.split(',').any(|option| option == controller)
    }
}

/// A line of `mountinfo` (proc(5)): `ID PARENT DEVICE ROOT PLACE OPTIONS [TAGS] - KIND SOURCE OPTIONS`.
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, at) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
    let depth = Path::new(root).components().filter(|c| matches!(c, Component::Normal(_))).count();
    Some(Mount { kind, at: unescape(at).into(), depth: depth as u32, options })
}

/// `\040` and the like, as the kernel writes blanks in paths.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

/// A directory and all below it, parents first; nothing if it is away.
pub(crate) fn with_descendants(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(next) = open.pop() {
        let entries = match std::fs::read_dir(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(refused("open", &next))?,
        };
        let inside = entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
        open.extend(inside.map(|entry| entry.path()));
        found.push(next);
    }
    Ok(found)
}

/// The threads of a process; none if it is gone.
fn threads(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

pub(crate) fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(refused("rmdir", directory)(error))
        }
        _ => Ok(()),
    }
}

/// Tries again while somebody else changes the same groups, or processes are still ending.
pub(crate) fn retry(
    mut action: impl FnMut() -> Result<(), CgroupError>,
) -> Result<(), CgroupError> {
    for _ in 0..RETRIES {
        match action() {
            Err(error) if error.is_retryable() => std::thread::sleep(POLL_SPAN),
            done => return done,
        }
    }
    action()
}

/// Moves a process into the group with this directory.
pub(crate) fn move_into(directory: &Path, pid: i32) -> Result<(), CgroupError> {
    write(&directory.join("cgroup.procs"), pid)
}

pub(crate) fn read(path: &Path) -> Result<String, CgroupError> {
    read_text(path).map_err(refused("read", path))
}

pub(crate) fn write(path: &Path, value: impl fmt::Display) -> Result<(), CgroupError> {
    // Without O_CREAT, which a group's files never need.
    let write = |text: String| {
        let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
        io::Write::write_all(&mut file, text.as_bytes())
    };
    write(value.to_string()).map_err(refused("write", path))
}

/// What `cpu.stat` of the group in `directory` says of `key`; nothing if it does not.
fn cpu_stat(directory: &Path, key: &str) -> Result<Option<u64>, CgroupError> {
    let path = directory.join("cpu.stat");
    let text = read(&path)?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.map(|value| parse_number(&path, value)).transpose()
}

pub(crate) fn parse_number(path: &Path, text: &str) -> Result<u64, CgroupError> {
    let odd = |_| refused("read", path)(io::Error::from(io::ErrorKind::InvalidData));
    text.trim().parse().map_err(odd)
}

pub(crate) fn refused(
    call: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CgroupError + use<> {
    let path = path.to_path_buf();
    move |source| CgroupError::Refused { call, path, source }
}

/// The controllers of version 2 that are of use.
const V2_CONTROLLERS: [&str; 2] = ["cpu", "io"];
/// A hundred times an ordinary group's: what is promised is had before others on the machine.
const V1_SHARES: u64 = 102_400;
/// The greatest.
const V2_WEIGHT: u64 = 10_000;
const QUOTA_MICROS_MIN: u64 = 1_000;
const PERIOD_MICROS_MAX: u64 = 1_000_000;
const PPM_MIN: u64 = 1_000;
/// Killed processes end within milliseconds, but for those in uninterruptible sleep.
const KILL_LIMIT: Duration = Duration::from_secs(5);
const POLL_SPAN: Duration = Duration::from_millis(5);
/// Of the tries to kill, those that leave schedules alone: nearly all processes end by then. At most half of them.
const PATIENT_TRIES: u128 = 10;
/// One second together: many times what an ending process needs.
const RETRIES: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::process::ExitStatusExt;
    use tempfile::TempDir;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset
41 31 0:38 / ROOT rw,relatime - cgroup2 cgroup2 rw
";

    /// A directory that looks like a hierarchy of version 2.
    fn v2_fixture(controllers: &str) -> (TempDir, V2) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("cgroup.controllers"), controllers).unwrap();
        std::fs::write(directory.path().join("cgroup.subtree_control"), "memory\n").unwrap();
        let v2 = V2::at(directory.path(), 0).unwrap();
        (directory, v2)
    }

    fn with_files(directory: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(directory).unwrap();
        for (name, content) in files {
            std::fs::write(directory.join(name), content).unwrap();
        }
    }

    #[test]
    fn both_hierarchies_of_a_hybrid_host_are_found() {
        let (directory, _) = v2_fixture("");
        let text = HYBRID.replace("ROOT", directory.path().to_str().unwrap());
        let found = Hierarchies::from_mountinfo(&text).unwrap();
        let roots: Vec<_> = found.all.iter().map(|h| h.root().to_path_buf()).collect();
        let [cpu, disk] = ["cpu", "blkio"].map(|name| Path::new("/sys/fs/cgroup").join(name));
        assert_eq!(roots, [&cpu, &disk, directory.path()]);
        assert_eq!(found.all.iter().filter(|h| h.limits_cpu()).count(), 1);
        assert_eq!(found.throttle(), Some(&Throttle::v1(disk)));
        // Both at one place, as some systems have them: one hierarchy, joined once.
        let text =
            text.replace("cgroup rw,blkio", "cgroup rw").replace("rw,cpu\n", "rw,cpu,blkio\n");
        let found = Hierarchies::from_mountinfo(&text).unwrap();
        assert_eq!((found.all.len(), found.throttle()), (2, Some(&Throttle::v1(cpu))));
    }

    // Who can mount something may name it as they like, and no hierarchy is overlooked for that. A file stands for
    // the kernel's, with such a name beside those of a hybrid host.
    #[test]
    fn a_mount_whose_name_is_not_utf_8_hides_no_hierarchy() {
        let (directory, _) = v2_fixture("");
        let mut text = HYBRID.replace("ROOT", directory.path().to_str().unwrap()).into_bytes();
        text.extend(b"42 31 0:39 / /mnt/\xff rw - fuse somebody rw\n");
        let path = directory.path().join("mountinfo");
        std::fs::write(&path, text).unwrap();
        let found = Hierarchies::from_mountinfo(&read(&path).unwrap()).unwrap();
        assert_eq!(found.all.len(), 3);
    }

    #[test]
    fn a_host_without_the_controller_says_so() {
        let (directory, _) = v2_fixture("memory io");
        let line = format!("1 2 0:3 / {} rw - cgroup2 x rw", directory.path().display());
        let error = Hierarchies::from_mountinfo(&line).unwrap_err().to_string();
        assert!(error.contains("cpu controller"), "{error}");
    }

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
        with_files(&path, &[("cpu.weight", ""), ("io.max", "8:0 rbps=7 wbps=max\n")]);
        std::fs::write(directory.path().join("cgroup.subtree_control"), "cpu memory").unwrap();
        v2.prepare(Path::new("keeptime"), Rank::Promised).unwrap();
        let control = std::fs::read_to_string(directory.path().join("cgroup.subtree_control"));
        assert_eq!(control.unwrap(), "+io");
        let all = Hierarchies::of(None, None, Some(v2)).unwrap();
        assert_eq!(all.throttle(), Some(&Throttle::v2(directory.path())));
        all.group("keeptime").unwrap().set_disks(&DiskLimits::new()).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("io.max")).unwrap(), "8:0 rbps=max");
    }

    #[test]
    fn groups_outside_of_the_mark_are_refused() {
        let all = Hierarchies::of(Some(V1::at("/nowhere")), None, None).unwrap();
        for bad in ["", "system.slice", "/keeptime/x", "keeptime/../x", "x/keeptime"] {
            assert!(all.group(bad).is_err(), "{bad}");
        }
        assert!(all.group("keeptime/lab").unwrap().child("a/b").is_err());
    }

    // Whoever does not end although it was killed is told of in time, is limited no more, and is found gone later. A
    // file stands for the kernel's list, which names the process until it is written anew.
    #[test]
    fn who_does_not_end_keeps_nobody_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keeptime/lab");
        let mut program = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = program.id().to_string();
        with_files(&path, &[("cgroup.procs", pid.as_str()), ("cpu.cfs_quota_us", "4000")]);
        let all = Hierarchies::of(Some(V1::at(directory.path())), None, None).unwrap();
        let group = all.group("keeptime/lab").unwrap();
        group.lift_cpu().unwrap();
        assert_eq!(std::fs::read_to_string(path.join("cpu.cfs_quota_us")).unwrap(), "-1");
        let error = group.kill_within(Duration::from_millis(20)).unwrap_err().to_string();
        assert_eq!(error, "1 processes in keeptime/lab did not end within 20ms of SIGKILL");
        assert_eq!(program.wait().unwrap().signal(), Some(9));
        with_files(&path, &[("cgroup.procs", "")]);
        group.kill_within(Duration::ZERO).unwrap();
    }

    #[test]
    fn removing_and_listing_what_is_away_is_fine() {
        let directory = tempfile::tempdir().unwrap();
        let all = Hierarchies::of(Some(V1::at(directory.path())), None, None).unwrap();
        let group = all.group("keeptime/lab").unwrap();
        assert!(!group.exists() && group.pids().unwrap().is_empty());
        group.kill_all().unwrap();
        group.remove().unwrap();
        std::fs::create_dir_all(directory.path().join("keeptime/lab/n1/job")).unwrap();
        std::fs::create_dir_all(directory.path().join("keeptime/other")).unwrap();
        group.remove().unwrap();
        assert!(!group.exists() && directory.path().join("keeptime/other").exists());
    }

    proptest! {
        // Never more than what was asked for, but for the kernel's least quota; never outside of
        // what the kernel accepts.
        #[test]
        fn limits_round_down(ppm in 1_000u32..64_000_000, period_micros in 1_000u64..1_000_000) {
            let limit = CpuLimit::of(CpuPpm::new(ppm), Nanos::new(period_micros * 1_000)).unwrap();
            prop_assert!(limit.quota_micros >= QUOTA_MICROS_MIN);
            prop_assert!((period_micros..=PERIOD_MICROS_MAX).contains(&limit.period_micros));
            let asked = u128::from(ppm) * u128::from(limit.period_micros);
            let got = u128::from(limit.quota_micros) * 1_000_000;
            prop_assert!(got <= asked && asked - got < 1_000_000);
        }

        #[test]
        fn any_mountinfo_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Hierarchies::from_mountinfo(&text);
        }
    }
}
