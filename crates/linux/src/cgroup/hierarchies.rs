//! The hierarchies of control groups that a machine has mounted.

use super::{CgroupError, Group, Hierarchy, MARK, V1, V1Disk, V1Tasks, V2, read};
use crate::disk::Throttle;
use keeptime_model::Invalid;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The hierarchies of this machine that are of use.
#[derive(Debug, Clone)]
pub struct Hierarchies {
    pub(super) all: Arc<[Box<dyn Hierarchy>]>,
    pub(super) unified: Option<V2>,
    pub(super) throttle: Option<Throttle>,
    /// Where processes and threads are limited, if anywhere: both versions call the files alike.
    pub(super) tasks: Option<PathBuf>,
}

impl Hierarchies {
    /// Those of this machine, as the calling process sees them.
    ///
    /// # Errors
    /// [`CgroupError::Unsupported`] if none can limit CPU.
    pub fn discover() -> Result<Self, CgroupError> {
        Self::discover_any()?.with_cpu()
    }

    /// The same for who can do without limits of CPU.
    ///
    /// # Errors
    /// If the mounts, or what is mounted, cannot be read.
    pub fn discover_any() -> Result<Self, CgroupError> {
        Self::any_from_mountinfo(&read(Path::new("/proc/self/mountinfo"))?)
    }

    #[cfg(test)]
    fn from_mountinfo(text: &str) -> Result<Self, CgroupError> {
        Self::any_from_mountinfo(text)?.with_cpu()
    }

    /// Those in the text of a `mountinfo` file.
    fn any_from_mountinfo(text: &str) -> Result<Self, CgroupError> {
        let mounts: Vec<_> = text.lines().filter_map(parse_mount).collect();
        let v1 = |controller| best(&mounts, |m| m.is_v1_with(controller));
        let v2 = best(&mounts, |m| m.kind == "cgroup2");
        let [cpu, disk, tasks] = ["cpu", "blkio", "pids"].map(v1);
        let unified = v2.map(|mount| V2::at(&mount.at, mount.depth)).transpose()?;
        let cpu = cpu.map(|m| V1::at(&m.at));
        let disk = disk.map(|m| V1Disk::at(&m.at));
        let tasks = tasks.map(|m| V1Tasks::at(&m.at));
        Ok(Self::any_of(cpu, disk, tasks, unified))
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
        Self::any_of(cpu, disk, None, unified).with_cpu()
    }

    pub(super) fn any_of(
        cpu: Option<V1>,
        disk: Option<V1Disk>,
        tasks: Option<V1Tasks>,
        unified: Option<V2>,
    ) -> Self {
        let with = |controller| unified.as_ref().filter(|v2| v2.has(controller)).map(V2::root);
        let throttle = disk.as_ref().map(|disk| Throttle::v1(disk.root()));
        let throttle = throttle.or_else(|| with("io").map(Throttle::v2));
        let limiting = tasks.as_ref().map(V1Tasks::root).or_else(|| with("pids"));
        let limiting = limiting.map(Path::to_path_buf);
        let v1 = [
            cpu.map(|v1| Box::new(v1) as Box<dyn Hierarchy>),
            disk.map(|v1| Box::new(v1) as Box<dyn Hierarchy>),
            tasks.map(|v1| Box::new(v1) as Box<dyn Hierarchy>),
        ];
        let mut all: Vec<Box<dyn Hierarchy>> = Vec::new();
        for hierarchy in v1.into_iter().flatten() {
            // Several controllers may be mounted at one place: then it is one hierarchy.
            if all.iter().all(|other| other.root() != hierarchy.root()) {
                all.push(hierarchy);
            }
        }
        all.extend(unified.clone().map(|v2| Box::new(v2) as Box<dyn Hierarchy>));
        Self { all: all.into(), unified, throttle, tasks: limiting }
    }

    fn with_cpu(self) -> Result<Self, CgroupError> {
        if self.all.iter().any(|hierarchy| hierarchy.limits_cpu()) {
            return Ok(self);
        }
        let needs = "a mounted cgroup hierarchy, version 1 or 2, with the cpu controller";
        Err(CgroupError::Unsupported { feature: "CPU limit", needs: needs.into() })
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

struct Mount<'a> {
    kind: &'a str,
    at: PathBuf,
    depth: u32,
    options: &'a str,
    is_writable: bool,
}

impl Mount<'_> {
    fn is_v1_with(&self, controller: &str) -> bool {
        self.kind == "cgroup" && self.options.split(',').any(|option| option == controller)
    }
}

/// Of several mounts of a hierarchy the last: it hides an earlier one at the same place. But what cannot be written is of use
/// only where nothing else is, as where a program has mounted one for itself (Cilium), which a unit's `ProtectSystem` makes
/// read-only with all that the unit does not name.
fn best<'m, 'a>(
    mounts: &'m [Mount<'a>],
    is_meant: impl Fn(&Mount<'a>) -> bool,
) -> Option<&'m Mount<'a>> {
    let meant: Vec<&Mount<'a>> = mounts.iter().filter(|mount| is_meant(mount)).collect();
    meant.iter().rfind(|mount| mount.is_writable).or(meant.last()).copied()
}

/// A line of `mountinfo` (proc(5)): `ID PARENT DEVICE ROOT PLACE OPTIONS [TAGS] - KIND SOURCE OPTIONS`.
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, at, how) = (left.next()?, left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
    let depth = Path::new(root).components().filter(|c| matches!(c, Component::Normal(_))).count();
    let is_writable = how.split(',').any(|option| option == "rw");
    Some(Mount { kind, at: unescape(at).into(), depth: depth as u32, options, is_writable })
}

/// `\040` and the like, as the kernel writes blanks in paths.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::testing::{v2_fixture, with_files};
    use keeptime_model::units::{CpuPpm, Nanos};
    use proptest::prelude::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / ROOT rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn both_hierarchies_of_a_hybrid_host_are_found() {
        let (directory, _) = v2_fixture("");
        let text = HYBRID.replace("ROOT", directory.path().to_str().unwrap());
        let found = Hierarchies::from_mountinfo(&text).unwrap();
        let roots: Vec<_> = found.all.iter().map(|h| h.root().to_path_buf()).collect();
        let names = ["cpu", "blkio", "pids"];
        let [cpu, disk, tasks] = names.map(|name| Path::new("/sys/fs/cgroup").join(name));
        assert_eq!(roots, [&cpu, &disk, &tasks, directory.path()]);
        assert_eq!(found.all.iter().filter(|h| h.limits_cpu()).count(), 1);
        assert_eq!(found.throttle(), Some(&Throttle::v1(disk)));
        // Both at one place, as some systems have them: one hierarchy, joined once.
        let text =
            text.replace("cgroup rw,blkio", "cgroup rw").replace("rw,cpu\n", "rw,cpu,blkio\n");
        let found = Hierarchies::from_mountinfo(&text).unwrap();
        assert_eq!((found.all.len(), found.throttle()), (3, Some(&Throttle::v1(cpu))));
    }

    // Goal: a hierarchy that can be used is not overlooked for another mount of it. Method: as an agent sees it on a node with
    // Cilium, from inside of its unit.
    #[test]
    fn what_cannot_be_written_is_used_only_where_nothing_else_is() {
        let [(own, _), (other, _)] = [v2_fixture("cpu io"), v2_fixture("cpu io")];
        let line = |directory: &tempfile::TempDir, how: &str| {
            let path = directory.path().display();
            format!("30 24 0:26 / {path} {how},nosuid,relatime shared:9 - cgroup2 cgroup2 rw\n")
        };
        let unified = |text: &str| {
            let found = Hierarchies::from_mountinfo(text).unwrap();
            found.unified.unwrap().root().to_path_buf()
        };
        let both = line(&own, "rw") + &line(&other, "ro");
        assert_eq!(unified(&both), own.path());
        assert_eq!(unified(&line(&other, "ro")), other.path());
        assert_eq!(unified(&(line(&own, "rw") + &line(&other, "rw"))), other.path());
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
        assert_eq!(found.all.len(), 4);
    }

    #[test]
    fn a_host_without_the_controller_says_so() {
        let (directory, _) = v2_fixture("memory io");
        let line = format!("1 2 0:3 / {} rw - cgroup2 x rw", directory.path().display());
        let error = Hierarchies::from_mountinfo(&line).unwrap_err().to_string();
        assert!(error.contains("cpu controller"), "{error}");
    }

    // Who keeps shares without it has groups all the same: a limit is nothing there, and no error.
    #[test]
    fn a_host_without_the_controller_has_groups_for_who_can_do_without() {
        let (directory, _) = v2_fixture("memory");
        let line = format!("1 2 0:3 / {} rw - cgroup2 x rw", directory.path().display());
        let group = Hierarchies::any_from_mountinfo(&line).unwrap().group("keeptime/lab").unwrap();
        with_files(&directory.path().join("keeptime/lab"), &[("cpu.stat", "usage_usec 5\n")]);
        group.create().unwrap();
        group.set_cpu(CpuPpm::from_percent(40)).unwrap();
        group.lift_cpu().unwrap();
        assert_eq!(group.cpu_limit().unwrap(), None);
        assert_eq!(group.cpu_usage().unwrap(), Nanos::new(5_000));
        assert!(!directory.path().join("keeptime/lab/cpu.max").exists());
    }

    // After a boot there is no group of a node: it is made where it can be known, and nothing where it cannot.
    #[test]
    fn a_group_that_is_to_be_known_is_made_where_it_can_be() {
        let (directory, _) = v2_fixture("memory");
        let line = format!("1 2 0:3 / {} rw - cgroup2 x rw", directory.path().display());
        let all = Hierarchies::any_from_mountinfo(&line).unwrap();
        let group = all.group("keeptime/n1").unwrap();
        assert!(group.id().unwrap_err().is_away());
        let made = group.create_known().unwrap();
        assert_eq!((made, made.level), (group.id().unwrap(), 2));
        let directory = tempfile::tempdir().unwrap();
        let all = Hierarchies::of(Some(V1::at(directory.path())), None, None).unwrap();
        let refused = all.group("keeptime/n1").unwrap().create_known().unwrap_err();
        assert!(matches!(refused, CgroupError::Unsupported { .. }), "{refused}");
        assert!(!directory.path().join("keeptime").exists());
    }

    #[test]
    fn groups_outside_of_the_mark_are_refused() {
        let all = Hierarchies::of(Some(V1::at("/nowhere")), None, None).unwrap();
        for bad in ["", "system.slice", "/keeptime/x", "keeptime/../x", "x/keeptime"] {
            assert!(all.group(bad).is_err(), "{bad}");
        }
        assert!(all.group("keeptime/lab").unwrap().child("a/b").is_err());
    }

    proptest! {
        #[test]
        fn any_mountinfo_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Hierarchies::from_mountinfo(&text);
        }
    }
}
