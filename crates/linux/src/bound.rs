//! Processes that a job borrowed: they ran before, elsewhere, and go back there when the job ends.
//!
//! Each has a group of its own inside of the job's, in the hierarchy of version 2, or one with others of its
//! service, so that what it starts later goes back with it. Where it came from is written on that group as an extended
//! attribute: the kernel keeps it as long as the process is borrowed, whatever becomes of the agent.

use crate::cgroup::{
    CgroupError, Group, Hierarchy, make_numbered, move_into, processes_below, read, refused,
    remove_with_descendants, retry_within, write,
};
use crate::process::Identity;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The group of a process in each hierarchy, as `/proc/PID/cgroup` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin(String);

/// A process that was just taken in, with what it has started since.
#[derive(Debug)]
pub struct Borrowed {
    inner: PathBuf,
}

impl Group {
    /// Takes a process in, to be given back. Nothing for one that is in the group already, which stays there. Its
    /// open sockets stay with the group in which they were made. Whoever has its number meanwhile is put
    /// back to where the process was.
    ///
    /// # Errors
    /// If the process or the group is away, or the kernel refuses (a kernel thread).
    pub fn borrow(&self, process: Identity) -> Result<Option<Borrowed>, CgroupError> {
        let Some(origin) = self.origin_of(process.pid)? else {
            if let Some(inner) = self.inner_of(process.pid)? {
                self.complete(&inner)?;
            }
            return Ok(None);
        };
        let inner = new_group(&self.in_version_2()?)?;
        set_attribute(&inner, ORIGIN, origin.0.as_bytes())?;
        let moved = self.move_into_inner(&inner, process.pid).and_then(|()| check_same(process));
        if moved.is_err() {
            self.give_back_from(&inner, until_limit())?;
        }
        moved.map(|()| Some(Borrowed { inner }))
    }

    /// Has all that were taken in be in every hierarchy, and go on: an agent that was killed in the middle has moved them in
    /// the one of version 2 alone, or has them stand still.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn complete_borrowed(&self) -> Result<(), CgroupError> {
        let inner = inner_groups(&self.in_version_2()?)?;
        inner.iter().try_for_each(|inner| {
            drop(Frozen(inner));
            self.complete(inner)
        })
    }

    /// As [`Self::borrow`], for a process of a service: all that came from one place have one group.
    pub(crate) fn borrow_of_service(&self, pid: i32, unit: &str) -> Result<(), CgroupError> {
        let Some(origin) = self.origin_of(pid)? else { return Ok(()) };
        let directory = self.in_version_2()?;
        let mut theirs = None;
        for inner in inner_groups(&directory)? {
            if attribute(&inner, SERVICE)? == unit && attribute(&inner, ORIGIN)? == origin.0 {
                theirs = Some(inner);
            }
        }
        let inner = match theirs {
            Some(inner) => inner,
            None => {
                let inner = new_group(&directory)?;
                set_attribute(&inner, ORIGIN, origin.0.as_bytes())?;
                set_attribute(&inner, SERVICE, unit.as_bytes())?;
                inner
            }
        };
        let moved = self.move_into_inner(&inner, pid);
        if moved.is_err() {
            self.put_back(&origin, pid)?;
        }
        moved
    }

    /// Lets processes of services go back, by the names of these.
    pub(crate) fn give_back_services(
        &self,
        which: impl Fn(&str) -> bool,
    ) -> Result<(), CgroupError> {
        for inner in inner_groups(&self.in_version_2()?)? {
            let unit = attribute(&inner, SERVICE)?;
            if !unit.is_empty() && which(&unit) {
                self.give_back_from(&inner, until_limit())?;
            }
        }
        Ok(())
    }

    /// The path of the group that a process is in, in the hierarchy of version 2; nothing if it has ended, or there is no such
    /// hierarchy.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn path_with(pid: i32) -> Result<Option<String>, CgroupError> {
        match Origin::of(pid) {
            Err(error) if error.is_away() => Ok(None),
            origin => Ok(origin?.path(None).map(str::to_owned)),
        }
    }

    /// The name of the group right inside of this one that a process is in, in the hierarchy of version 2; nothing if it is in
    /// none, or has ended.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn child_with(&self, pid: i32) -> Result<Option<String>, CgroupError> {
        match Origin::of(pid) {
            Err(error) if error.is_away() => Ok(None),
            origin => Ok(origin?.inside(self.path(), "").map(str::to_owned)),
        }
    }

    /// The first limit that what is in the group `path` of version 2 has by groups that this one is not in: its file.
    pub fn limit_left(&self, path: &str) -> Option<PathBuf> {
        let version_2 = self.hierarchies().iter().find(|h| h.controller().is_none())?;
        let from = Path::new(path.trim_start_matches('/'));
        limit_between(version_2.root(), from, self.path())
    }

    /// The same of the hierarchies of version 1, and of what the process is in there; nothing if it has ended.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn limit_left_in_version_1(&self, pid: i32) -> Result<Option<PathBuf>, CgroupError> {
        match Origin::of(pid) {
            Err(error) if error.is_away() => Ok(None),
            origin => Ok(self.limit_left_in_version_1_from(&origin?)),
        }
    }

    fn limit_left_in_version_1_from(&self, origin: &Origin) -> Option<PathBuf> {
        let mut all = self.hierarchies().iter().filter(|h| h.controller().is_some());
        all.find_map(|hierarchy| {
            let from = origin.path(hierarchy.controller())?.trim_start_matches('/');
            limit_between(hierarchy.root(), Path::new(from), self.path())
        })
    }

    /// Whose the group `path` of version 2 is.
    pub fn owner_of(&self, path: &str) -> Option<u32> {
        let version_2 = self.hierarchies().iter().find(|h| h.controller().is_none())?;
        let directory = version_2.root().join(path.trim_start_matches('/'));
        Some(std::fs::metadata(directory).ok()?.uid())
    }

    /// Where a process is; nothing if it is in this group.
    pub(crate) fn origin_of(&self, pid: i32) -> Result<Option<Origin>, CgroupError> {
        let origin = Origin::of(pid)?;
        let is_elsewhere = origin.below(self.path()).is_none();
        Ok(is_elsewhere.then_some(origin))
    }

    /// Moves a process to where it, or one with its number, was.
    pub(crate) fn put_back(&self, origin: &Origin, pid: i32) -> Result<(), CgroupError> {
        self.hierarchies().iter().try_for_each(|h| origin.take_back(&**h, pid))
    }

    fn move_into_inner(&self, inner: &Path, pid: i32) -> Result<(), CgroupError> {
        // In version 2 first: from then on it is known to be borrowed.
        move_into(inner, pid)?;
        self.others().try_for_each(|directory| move_into(&directory, pid))?;
        self.complete(inner)
    }

    /// Has all that is in the group `inner` be this group's in the other hierarchies, too.
    fn complete(&self, inner: &Path) -> Result<(), CgroupError> {
        self.others().try_for_each(|directory| take_along(inner, &directory))
    }

    /// Its directories but the one of version 2.
    fn others(&self) -> impl Iterator<Item = PathBuf> {
        let others = self.hierarchies().iter().filter(|h| h.controller().is_some());
        others.map(|h| h.root().join(self.path()))
    }

    /// The group inside in which a process is that was taken in.
    fn inner_of(&self, pid: i32) -> Result<Option<PathBuf>, CgroupError> {
        let origin = Origin::of(pid)?;
        let name = origin.inside(self.path(), PREFIX);
        name.map(|name| Ok(self.in_version_2()?.join(name))).transpose()
    }

    /// The processes that were taken in, and those that they started since.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn borrowed(&self) -> Result<Vec<i32>, CgroupError> {
        let mut pids = Vec::new();
        for directory in inner_groups(&self.in_version_2()?)? {
            pids.extend(pids_in(&directory)?);
        }
        Ok(pids)
    }

    /// Those of them that are of a service.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn of_service(&self, unit: &str) -> Result<Vec<i32>, CgroupError> {
        let mut pids = Vec::new();
        for directory in inner_groups(&self.in_version_2()?)? {
            if attribute(&directory, SERVICE)? == unit {
                pids.extend(pids_in(&directory)?);
            }
        }
        Ok(pids)
    }

    /// Lets those go back of one call of [`Self::borrow`].
    ///
    /// # Errors
    /// As [`Self::give_back`].
    pub fn undo_borrow(&self, borrowed: &Borrowed) -> Result<(), CgroupError> {
        self.give_back_from(&borrowed.inner, until_limit())
    }

    /// Lets all of them go back to where they were, or to the root of the hierarchy if that is no
    /// longer there. Nothing happens where none was taken in.
    ///
    /// # Errors
    /// If the kernel refuses, or they start others faster than they can be moved.
    pub fn give_back(&self) -> Result<(), CgroupError> {
        self.give_back_until(until_limit())
    }

    /// As [`Self::give_back`], for those who have not that much time, and can try again: who has gone back stays there. Moves
    /// two at least.
    ///
    /// # Errors
    /// If the kernel refuses, or some are left then.
    pub fn give_back_until(&self, until: Instant) -> Result<(), CgroupError> {
        let mut done = Ok(());
        for (number, directory) in inner_groups(&self.in_version_2()?)?.iter().enumerate() {
            if number > 0 && Instant::now() >= until {
                return done.and(Err(late(directory)));
            }
            done = done.and(self.give_back_from(directory, until));
        }
        done
    }

    fn give_back_from(&self, directory: &Path, until: Instant) -> Result<(), CgroupError> {
        let origin = Origin(attribute(directory, ORIGIN)?);
        let (mut known, mut at_a_time, mut frozen) = (None::<BTreeSet<i32>>, 1, None);
        loop {
            let pids: BTreeSet<i32> = pids_in(directory)?.into_iter().collect();
            if pids.is_empty() {
                break;
            }
            // Who starts others meanwhile starts no more: each goes on where it comes to. Nobody else is held up.
            if known.as_ref().is_some_and(|known| !pids.is_subset(known)) {
                frozen.get_or_insert_with(|| Frozen::new(directory));
            }
            for pid in pids.iter().take(at_a_time) {
                // Version 2 last: until then it is known to be borrowed.
                let mut all = self.hierarchies().iter();
                all.try_for_each(|hierarchy| origin.take_back(&**hierarchy, *pid))?;
                // Not before it was seen whether there are new ones: without that these might be chased for ever.
                if at_a_time > 1 && Instant::now() >= until {
                    return Err(late(directory));
                }
            }
            (known, at_a_time) = (Some(pids), 2 * at_a_time);
        }
        drop(frozen);
        let patience = until.saturating_duration_since(Instant::now());
        retry_within(patience, || remove_with_descendants(directory))
    }
}

/// A group whose processes stand still until this is dropped, where the kernel can have them do so (Linux 5.2).
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(directory: &'a Path) -> Self {
        let _ = write(&directory.join(FREEZE), 1);
        Self(directory)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = write(&self.0.join(FREEZE), 0);
    }
}

/// Some of those in there have not gone back in time.
fn late(directory: &Path) -> CgroupError {
    refused("give back", directory)(io::ErrorKind::TimedOut.into())
}

/// Until when those are waited for who go back and are not over.
fn until_limit() -> Instant {
    Instant::now() + BACK_LIMIT
}

impl Origin {
    pub(crate) fn of(pid: i32) -> Result<Self, CgroupError> {
        Ok(Self(read(&PathBuf::from(format!("/proc/{pid}/cgroup")))?))
    }

    /// The path in the hierarchy with this controller; nothing = that of version 2. A line is
    /// `7:blkio:/path`, `4:cpu,cpuacct:/path` or `0::/path`.
    pub(crate) fn path(&self, controller: Option<&str>) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let wanted = controller.unwrap_or_default();
            controllers.split(',').any(|found| found == wanted).then_some(path)
        })
    }

    /// Where it is from `group` of version 2 on; nothing if it is not in there. Whoever has groups of their own can give them
    /// any names, those of one of ours, too, from its path's first to its last.
    pub(crate) fn below(&self, group: &Path) -> Option<&Path> {
        let path = self.path(None)?.trim_start_matches('/');
        Path::new(path).strip_prefix(group).ok()
    }

    /// Whether it is in this group, in any hierarchy, and was not taken in.
    pub(crate) fn is_own(&self, group: &Group) -> bool {
        let is_in = |hierarchy: &dyn Hierarchy| {
            let path = self.path(hierarchy.controller()).unwrap_or_default();
            Path::new(path.trim_start_matches('/')).starts_with(group.path())
        };
        group.hierarchies().iter().any(|hierarchy| is_in(&**hierarchy))
            && self.inside(group.path(), PREFIX).is_none()
    }

    /// The group right inside of `group` that it is in, if the name of that begins so.
    fn inside(&self, group: &Path, prefix: &str) -> Option<&str> {
        let name = self.below(group)?.components().next()?.as_os_str().to_str()?;
        name.starts_with(prefix).then_some(name)
    }

    fn take_back(&self, hierarchy: &dyn Hierarchy, pid: i32) -> Result<(), CgroupError> {
        let path = self.path(hierarchy.controller()).unwrap_or_default();
        let home = hierarchy.root().join(path.trim_start_matches('/'));
        let moved = match move_into(&home, pid) {
            // The group is gone, or takes no processes any more.
            Err(_) if Path::new(&format!("/proc/{pid}")).exists() => {
                move_into(hierarchy.root(), pid)
            }
            moved => moved,
        };
        match moved {
            Err(error) if error.is_away() => Ok(()),
            moved => moved,
        }
    }
}

/// The first of [`LIMITS`] that holds in `from` and not in `to`, both below `root`; not those of groups inside of `to`, which
/// are ours.
fn limit_between(root: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let left = from.ancestors().take_while(|group| !to.starts_with(group));
    let theirs = left.filter(|group| !group.starts_with(to));
    let mut files = theirs.flat_map(|group| LIMITS.map(|name| group.join(name)));
    let is_limit = |file: &PathBuf| {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        !(text.trim().is_empty() || text.starts_with("max") || text.trim() == "-1")
    };
    files.find(is_limit)
}

/// What a group keeps its processes from, of both versions. How many there may be is not among them: systemd limits that for
/// every user, and a job has a limit of its own ([`Group::limit_tasks`]), wherever groups can have one. Of version 1 those
/// that are left: jobs have no groups in its other hierarchies.
const LIMITS: [&str; 11] = [
    "memory.max",
    "memory.high",
    "memory.swap.max",
    "cpu.max",
    "cpuset.cpus",
    "io.max",
    "cpu.cfs_quota_us",
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// Moves all that is in the group `inner` into `directory`, of another hierarchy, too: what a process starts after it was
/// moved in the one, and before it is in the other, is in the one alone.
fn take_along(inner: &Path, directory: &Path) -> Result<(), CgroupError> {
    for _ in 0..ROUNDS {
        let there: BTreeSet<i32> = pids_in(directory)?.into_iter().collect();
        let mut moved = false;
        for pid in pids_in(inner)?.into_iter().filter(|pid| !there.contains(pid)) {
            match move_into(directory, pid) {
                // It has ended meanwhile.
                Err(error) if error.is_away() && directory.exists() => {}
                done => {
                    done?;
                    moved = true;
                }
            }
        }
        if !moved {
            break;
        }
    }
    Ok(())
}

/// Makes a group inside with a name that no other has. Those whose processes have all ended make room where there is none.
fn new_group(directory: &Path) -> Result<PathBuf, CgroupError> {
    let make = || make_numbered(directory, PREFIX, BORROWED_MAX);
    let mut made = make()?;
    if made.is_none() {
        for inner in inner_groups(directory)? {
            if processes_below(&inner)?.is_empty() {
                // The kernel removes none that has processes by now.
                let _ = remove_with_descendants(&inner);
            }
        }
        made = make()?;
    }
    let full = || io::Error::other(format!("{BORROWED_MAX} processes were taken in already"));
    let name = made.ok_or_else(|| refused("mkdir", directory)(full()))?;
    Ok(directory.join(name))
}

fn inner_groups(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(refused("read", directory))?,
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(PREFIX) && path.is_dir()
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_ours).collect())
}

/// The processes in a group and in those inside, which its processes may have made.
fn pids_in(directory: &Path) -> Result<Vec<i32>, CgroupError> {
    let mut pids = processes_below(directory)?;
    // 0 stands for a process of another process namespace, and for the caller where it is written.
    pids.retain(|pid| *pid > 0);
    Ok(pids)
}

pub(crate) fn set_attribute(
    directory: &Path,
    name: &CStr,
    value: &[u8],
) -> Result<(), CgroupError> {
    let path = c_path(directory)?;
    let (name, size) = (name.as_ptr(), value.len());
    // SAFETY: both strings end with 0, and `value` is live and of this size.
    let set = unsafe { libc::setxattr(path.as_ptr(), name, value.as_ptr().cast(), size, 0) };
    match set {
        0 => Ok(()),
        _ => Err(refused("setxattr", directory)(io::Error::last_os_error())),
    }
}

/// That `process` is still there: its number may have become another's meanwhile.
pub(crate) fn check_same(process: Identity) -> Result<(), CgroupError> {
    if process.is_alive() {
        return Ok(());
    }
    let path = PathBuf::from(format!("/proc/{}", process.pid));
    Err(refused("move", &path)(io::Error::from_raw_os_error(libc::ESRCH)))
}

/// Nothing has the length 0.
pub(crate) fn attribute(directory: &Path, name: &CStr) -> Result<String, CgroupError> {
    let path = c_path(directory)?;
    let mut value = vec![0u8; ATTRIBUTE_BYTES_MAX];
    let (name, space) = (name.as_ptr(), value.len());
    // SAFETY: both strings end with 0, and `value` is live and of this size.
    let size = unsafe { libc::getxattr(path.as_ptr(), name, value.as_mut_ptr().cast(), space) };
    match usize::try_from(size) {
        Ok(size) => {
            value.truncate(size);
            Ok(String::from_utf8_lossy(&value).into_owned())
        }
        Err(_) => match io::Error::last_os_error() {
            // Not of a service; or made, and nothing written on it before the agent was killed.
            error if error.raw_os_error() == Some(libc::ENODATA) => Ok(String::new()),
            error => Err(refused("getxattr", directory)(error)),
        },
    }
}

fn c_path(path: &Path) -> Result<CString, CgroupError> {
    let odd = |_| refused("setxattr", path)(io::ErrorKind::InvalidInput.into());
    CString::new(path.as_os_str().as_bytes()).map_err(odd)
}

/// No job's program makes groups with this name: they are inside of a job's group.
const PREFIX: &str = "_borrowed.";
/// By what a group of version 2 stands still (cgroup-v2.rst, "Core Interface Files").
const FREEZE: &str = "cgroup.freeze";
const ORIGIN: &CStr = c"trusted.keeptime.origin";
/// Whose processes are inside, if a service's.
const SERVICE: &CStr = c"trusted.keeptime.service";
/// The kernel keeps none that is longer (`XATTR_SIZE_MAX`).
pub(crate) const ATTRIBUTE_BYTES_MAX: usize = 64 * 1024;
/// Of one job, at a time: what a person or a script names one by one.
const BORROWED_MAX: usize = 1_024;
/// Many times what those need who do not start others without end.
const BACK_LIMIT: Duration = Duration::from_secs(1);
/// Each round moves all that are there; who forks as fast as that is a fork bomb.
pub(crate) const ROUNDS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Hierarchies, V1, V2};
    use proptest::prelude::*;

    #[test]
    fn the_group_in_each_hierarchy_is_found_by_its_controller() {
        let origin = Origin("9:name=systemd:/\n2:cpu,cpuacct:/a/b:c\n7:blkio:/x\n0::/u/v\n".into());
        assert_eq!(origin.path(Some("cpu")), Some("/a/b:c"));
        assert_eq!(origin.path(Some("blkio")), Some("/x"));
        assert_eq!(origin.path(None), Some("/u/v"));
        assert_eq!(origin.path(Some("io")), None);
    }

    #[test]
    fn limits_that_would_be_left_are_found() {
        let root = tempfile::tempdir().unwrap();
        let user = root.path().join("user.slice/user-7.slice");
        std::fs::create_dir_all(user.join("session-1.scope")).unwrap();
        let write = |file: &str, text: &str| std::fs::write(user.join(file), text).unwrap();
        let left = |from: &str, to: &str| {
            limit_between(root.path(), Path::new(from), Path::new(to))
                .map(|file| file.to_str().unwrap().to_owned())
        };
        let session = "user.slice/user-7.slice/session-1.scope";
        for (file, none) in
            [("memory.max", "max\n"), ("cpu.max", "max 100000\n"), ("cpuset.cpus", "\n")]
        {
            write(file, none);
        }
        write("pids.max", "100\n");
        assert_eq!(left(session, "keeptime/n1"), None);
        write("cpu.max", "50000 100000\n");
        let file = Some("user.slice/user-7.slice/cpu.max".to_owned());
        assert_eq!(left(session, "keeptime/n1"), file);
        // What holds for both is not left.
        assert_eq!(left(session, "user.slice/user-7.slice/keeptime"), None);
        assert_eq!(left("", "keeptime/n1"), None);
        write("cpu.max", "max 100000\n");
        write("io.max", "8:0 rbps=1000 wbps=max riops=max wiops=max\n");
        assert_eq!(left(session, "keeptime/n1").as_deref(), Some("user.slice/user-7.slice/io.max"));
    }

    // Goal: limits of version 1 are not left either, but for those that are ours. Method: a directory in the place of a hierarchy.
    #[test]
    fn limits_of_version_1_that_would_be_left_are_found() {
        let root = tempfile::tempdir().unwrap();
        let all = Hierarchies::of(Some(V1::at(root.path())), None, None).unwrap();
        let node = all.group("keeptime/n1").unwrap();
        let left = |path: &str, quota: &str| {
            let directory = root.path().join(path);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("cpu.cfs_quota_us"), quota).unwrap();
            node.limit_left_in_version_1_from(&Origin(format!("2:cpu:/{path}\n0::/\n")))
        };
        assert_eq!(left("user.slice", "-1\n"), None);
        let file = PathBuf::from("user.slice/cpu.cfs_quota_us");
        assert_eq!(left("user.slice", "50000\n"), Some(file));
        assert_eq!(left("keeptime/n1/r1/_borrowed.0", "50000\n"), None);
    }

    // Goal: a reservation takes in any number of processes, one after the other. Method: as many as there may be at a time, of
    // which one has not ended, and one has made groups.
    #[test]
    fn those_that_have_ended_make_room() {
        let root = tempfile::tempdir().unwrap();
        for _ in 0..BORROWED_MAX {
            new_group(root.path()).unwrap();
        }
        let lives = root.path().join(format!("{PREFIX}7"));
        std::fs::create_dir(lives.join("made")).unwrap();
        std::fs::write(lives.join("made/cgroup.procs"), "1\n").unwrap();
        std::fs::create_dir_all(root.path().join(format!("{PREFIX}8/made/deeper"))).unwrap();
        new_group(root.path()).unwrap();
        assert_eq!(inner_groups(root.path()).unwrap().len(), 2);
        assert!(lives.is_dir());
    }

    // Goal: what a process starts while it is moved belongs to the job in every hierarchy. Method: files in the place of
    // the kernel's lists: a child is in the one, and not in the other.
    #[test]
    fn what_was_started_on_the_way_comes_along() {
        let root = tempfile::tempdir().unwrap();
        let group = |name: &str, list: &str| {
            let directory = root.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("cgroup.procs"), list).unwrap();
            directory
        };
        let inner = group("inner", "0\n8\n");
        let list = |directory: &Path| std::fs::read_to_string(directory.join("cgroup.procs"));
        let without = group("without", "7\n");
        take_along(&inner, &without).unwrap();
        assert_eq!(list(&without).unwrap(), "8");
        let with = group("with", "7\n8\n");
        take_along(&inner, &with).unwrap();
        assert_eq!(list(&with).unwrap(), "7\n8\n", "who is there is not moved again");
        assert!(take_along(&inner, &root.path().join("away")).unwrap_err().is_away());
    }

    // Goal: an agent that was killed while it took a process in has not left it without the job's limits. Method: files in the
    // place of the kernel's lists, of which only that of version 2 has the process.
    #[test]
    fn what_was_taken_in_halfway_is_taken_in_whole() {
        let (cpu, unified) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = Path::new("keeptime/n1/r1");
        let list = |directory: &Path, pids: &str| {
            std::fs::create_dir_all(directory).unwrap();
            std::fs::write(directory.join("cgroup.procs"), pids).unwrap();
        };
        list(&cpu.path().join(path), "7\n");
        list(&unified.path().join(path).join("_borrowed.0"), "8\n");
        std::fs::write(unified.path().join("cgroup.controllers"), "").unwrap();
        let unified = V2::at(unified.path(), 0).unwrap();
        let all = Hierarchies::of(Some(V1::at(cpu.path())), None, Some(unified)).unwrap();
        all.group(path).unwrap().complete_borrowed().unwrap();
        let there = std::fs::read_to_string(cpu.path().join(path).join("cgroup.procs"));
        assert_eq!(there.unwrap(), "8");
    }

    // Whose group a process is in decides to whom it goes back, and who ends with it: no other path will do, such as one of a
    // delegated group in which somebody made all of ours anew.
    #[test]
    fn who_is_in_a_group_of_ours_is_known_by_its_whole_path() {
        let group = Path::new("keeptime/n1/r1");
        let at = |path: &str| Origin(format!("2:cpu:/\n0::{path}\n"));
        let name = |path: &str| at(path).inside(group, PREFIX).map(str::to_owned);
        let is_here = |path: &str| at(path).below(group).is_some();
        for path in ["/keeptime/n1/r1/_borrowed.3", "/keeptime/n1/r1/_borrowed.3/inside"] {
            assert_eq!((name(path).as_deref(), is_here(path)), (Some("_borrowed.3"), true));
        }
        for path in ["/keeptime/n1/r1", "/keeptime/n1/r1/_command.0"] {
            assert_eq!((name(path), is_here(path)), (None, true));
        }
        for path in ["/keeptime/n1/r12/_borrowed.3", "/own/keeptime/n1/r1/_borrowed.3", "/"] {
            assert_eq!((name(path), is_here(path)), (None, false));
        }
        assert_eq!(Origin("2:cpu:/keeptime/n1/r1\n".into()).below(group), None);
        let job = |path: &str| at(path).inside(Path::new("keeptime/n1"), "").map(str::to_owned);
        assert_eq!(job("/keeptime/n1/r1/_command.0").as_deref(), Some("r1"));
        assert_eq!(
            ["/keeptime/n1", "/keeptime/n12/r1", "/own/keeptime/n1/r1"].map(job),
            [const { None }; 3]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_passed_over(text in "\\PC{0,60}") {
            let _ = (Origin(text.clone()).path(None), Origin(text).path(Some("cpu")));
        }
    }
}
