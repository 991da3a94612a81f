//! A node as one agent's own: its control group, and the network device that it has.
//!
//! The lock is a group inside of the node's, in the hierarchy of version 2, that only its owner can open: who can open it can
//! hold it. Whatever else is called otherwise, agents that share a group share this, and it goes with the group. Devices
//! are groups inside of that, so that agents of other groups find them.

use super::{CgroupError, Group, MARK, refused, remove_directory, with_descendants};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// No job can have this name.
const CLAIM: &str = "_claim";
/// How often a lock is taken again that went with its group meanwhile.
const TRIES_MAX: usize = 8;

/// A node's group as this process's own, until this is dropped or the process ends, in whichever way.
#[derive(Debug)]
pub struct GroupClaim {
    root: PathBuf,
    directory: PathBuf,
    _held: File,
}

impl Group {
    /// Takes a node's group, which is made if it is not there. Nothing if another process has it.
    ///
    /// # Errors
    /// If there is no hierarchy of version 2, or the kernel refuses.
    pub fn claim(&self) -> Result<Option<GroupClaim>, CgroupError> {
        let root = self.root_of_version_2()?.to_path_buf();
        let directory = self.in_version_2()?.join(CLAIM);
        for _ in 0..TRIES_MAX {
            self.create_known()?;
            make_closed(&directory)?;
            let held = match hold(&directory) {
                // Whoever had it has taken it away with the group.
                Err(error) if error.is_away() => continue,
                held => held?,
            };
            match held {
                None => return Ok(None),
                Some(held) if is_at(&directory, &held) => {
                    return Ok(Some(GroupClaim { root, directory, _held: held }));
                }
                Some(_) => {}
            }
        }
        Ok(None)
    }
}

impl GroupClaim {
    /// Takes the network device that this names, among those of all namespaces, in the place of any other. The path of the
    /// group whose agent has it, if there is one; nothing is taken then.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_device(&self, name: &str) -> Result<Option<PathBuf>, CgroupError> {
        // Before others are looked at: of two that begin in the same instant one at least sees the other.
        make_closed(&self.directory.join(name))?;
        let former = with_descendants(&self.directory)?.into_iter().skip(1);
        for other in former.filter(|path| !path.ends_with(name)) {
            remove_directory(&other)?;
        }
        let holder = self.holder_of(name)?;
        if holder.is_some() {
            remove_directory(&self.directory.join(name))?;
        }
        Ok(holder)
    }

    fn holder_of(&self, device: &str) -> Result<Option<PathBuf>, CgroupError> {
        for found in with_descendants(&self.root.join(MARK))? {
            let is_claim = found.ends_with(CLAIM) && found != self.directory;
            if is_claim && found.join(device).is_dir() && is_held(&found)? {
                let group = found.parent().and_then(|group| group.strip_prefix(&self.root).ok());
                return Ok(group.map(Path::to_path_buf));
            }
        }
        Ok(None)
    }
}

/// Makes a group that nobody else can open. One that is there stays as it is.
fn make_closed(directory: &Path) -> Result<(), CgroupError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(refused("mkdir", directory)(error))
        }
        _ => Ok(()),
    }
}

/// Locks it for as long as the file is open; nothing if somebody else has.
fn hold(directory: &Path) -> Result<Option<File>, CgroupError> {
    let file = File::open(directory).map_err(refused("open", directory))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(refused("flock", directory)(source)),
    }
}

/// Whether somebody has locked it. Those who look at the same time are in nobody's way but, for a moment, its agent's, which
/// tries again.
fn is_held(directory: &Path) -> Result<bool, CgroupError> {
    let file = match File::open(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file.map_err(refused("open", directory))?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(source)) => Err(refused("flock", directory)(source)),
    }
}

/// Whether `file` is what others find at `path`.
fn is_at(path: &Path, file: &File) -> bool {
    let number = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let found = fs::symlink_metadata(path).map(number);
    found.ok().zip(file.metadata().map(number).ok()).is_some_and(|(there, own)| there == own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchies;
    use crate::cgroup::testing::v2_fixture;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};
    use tempfile::TempDir;

    fn nodes() -> (TempDir, [Group; 2]) {
        let (directory, v2) = v2_fixture("memory");
        let all = Hierarchies::any_of(None, None, None, Some(v2));
        let nodes = ["keeptime/n1", "keeptime/lab/n2"].map(|path| all.group(path).unwrap());
        (directory, nodes)
    }

    #[test]
    fn a_group_has_one_holder_who_alone_can_open_the_lock() {
        let (_directory, [group, other]) = nodes();
        let first = group.claim().unwrap().unwrap();
        let mode = fs::metadata(&first.directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        assert!(group.claim().unwrap().is_none());
        assert!(other.claim().unwrap().is_some());
        // Whoever takes all off a node takes the lock with it, and keeps nobody out.
        group.remove().unwrap();
        assert!(!group.exists());
        let _second = group.claim().unwrap().unwrap();
        drop(first);
        assert!(group.claim().unwrap().is_none());
    }

    // Goal: agents of two groups do not share a device, and what was left by one that was killed is nobody's.
    #[test]
    fn a_device_has_one_holder_among_all_groups() {
        let (_directory, [group, other]) = nodes();
        let (first, second) = (group.claim().unwrap().unwrap(), other.claim().unwrap().unwrap());
        assert_eq!(first.take_device("7.2").unwrap(), None);
        assert_eq!(first.take_device("7.2").unwrap(), None, "it is its own");
        assert_eq!(second.take_device("7.2").unwrap().as_deref(), Some(group.path()));
        assert_eq!(second.take_device("8.2").unwrap(), None, "that of another namespace");
        // One that has turned to another device.
        assert_eq!(first.take_device("7.3").unwrap(), None);
        assert_eq!(second.take_device("7.2").unwrap(), None);
        drop(second);
        assert!(other.in_version_2().unwrap().join("_claim/7.2").exists());
        // A process that another test has begun has copies of all files, and so the lock, until it runs its own program.
        let began = Instant::now();
        while first.take_device("7.2").unwrap().is_some() {
            assert!(began.elapsed() < Duration::from_secs(60), "whoever had it has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
