//! The files of a lab, and the lock over all labs of a runtime directory.

use crate::error::LabError;
use keeptime_files::Mode;
use keeptime_linux::process::Identity;
use keeptime_model::name::Name;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The directory `labs/NAME` of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabFiles {
    directory: PathBuf,
}

/// What a running lab is, as its holder writes it when all of it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// For readers of later versions.
    pub version: u32,
    /// Made by an ordinary user, in a user namespace.
    pub rootless: bool,
    /// By position in the topology: process 1 of each node.
    pub nodes: Vec<Init>,
    /// What the lab should enforce and does not, with the reason.
    pub not_enforced: Vec<String>,
}

/// Process 1 of a node, as seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Init {
    /// Process number.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

impl LabFiles {
    pub fn new(labs: &Path, name: &Name) -> Self {
        Self { directory: labs.join(name.as_str()) }
    }

    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// For the agent of a node, and whatever else belongs to it.
    pub fn node(&self, node: &Name) -> PathBuf {
        self.directory.join("nodes").join(node.as_str())
    }

    pub fn topology(&self) -> PathBuf {
        self.directory.join("topology.toml")
    }

    pub fn hosts(&self) -> PathBuf {
        self.directory.join("hosts")
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("holder.log")
    }

    fn holder(&self) -> PathBuf {
        self.directory.join("holder.pid")
    }

    fn state(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    /// Makes the directory; false if there is one.
    pub fn create(&self) -> Result<bool, LabError> {
        match std::fs::create_dir(&self.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            made => made.map(|()| true).map_err(LabError::file("mkdir", &self.directory)),
        }
    }

    /// The holder; nothing if it has not yet written itself down. A file that cannot be read
    /// counts as that: nobody is ever killed on a guess.
    pub fn read_holder(&self) -> Option<Identity> {
        std::fs::read_to_string(self.holder()).ok()?.parse().ok()
    }

    /// The holder, as long as it runs.
    pub fn running_holder(&self) -> Option<Identity> {
        self.read_holder().filter(Identity::is_alive)
    }

    pub fn write_holder(&self, holder: Identity) -> Result<(), LabError> {
        write_whole(&self.holder(), format!("{holder}\n").as_bytes())
    }

    /// Whether somebody has taken them away, or enough of them that the holder is not found any more.
    pub fn are_gone(&self) -> bool {
        let found = std::fs::symlink_metadata(self.holder());
        found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }

    /// Nothing if the lab is not finished, or was never.
    pub fn read_state(&self) -> Option<State> {
        let text = std::fs::read(self.state()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub fn write_state(&self, state: &State) -> Result<(), LabError> {
        // Plain structs of strings and integers.
        let text = serde_json::to_vec_pretty(state).unwrap_or_default();
        write_whole(&self.state(), &text)
    }

    pub fn remove(&self) -> Result<(), LabError> {
        match std::fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(LabError::file("remove", &self.directory)(error))
            }
            _ => Ok(()),
        }
    }
}

impl Init {
    pub fn identity(self) -> Identity {
        Identity { pid: self.pid, start: self.start }
    }
}

/// Held while labs of one runtime directory are made or removed: one at a time.
#[derive(Debug)]
pub struct LabsLock {
    labs: PathBuf,
    file: Flock<File>,
}

impl LabsLock {
    /// Waits for the lock on `runtime/labs`, which is made if it is not there.
    pub fn take(runtime: &Path) -> Result<Self, LabError> {
        let start = Instant::now();
        while start.elapsed() < LOCK_LIMIT {
            if let Some(lock) = Self::try_to_take(runtime)? {
                return Ok(lock);
            }
            std::thread::sleep(LOCK_POLL);
        }
        let what = format!("another command's lock on {}", runtime.join("labs").display());
        Err(LabError::Stuck { what, seconds: LOCK_LIMIT.as_secs() })
    }

    /// Nothing where another command has it, or had it until just now: whoever had it may have removed the directory.
    fn try_to_take(runtime: &Path) -> Result<Option<Self>, LabError> {
        let labs = runtime.join("labs");
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(if nix::unistd::geteuid().is_root() { 0o755 } else { 0o700 })
            .create(&labs);
        match made.and_then(|()| named_and_meant(runtime)) {
            Ok(both) => check_owner(runtime, &both)?,
            Err(error) if was_removed_meanwhile(&error, &labs) => return Ok(None),
            Err(error) => return Err(LabError::file("mkdir", &labs)(error)),
        }
        let file = match File::open(&labs) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(LabError::file("open", &labs))?,
        };
        let opened = file.metadata().map_err(LabError::file("stat", &labs))?.ino();
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // One that was removed locks nothing.
            Ok(file) => {
                let is_there = std::fs::metadata(&labs).is_ok_and(|now| now.ino() == opened);
                Ok(is_there.then_some(Self { labs, file }))
            }
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(LabError::file("flock", &labs)(errno.into())),
        }
    }

    /// Keeps others from making and removing labs of `runtime` while what is there is looked at; nothing where one does
    /// just now, or there are none.
    pub fn keep_idle(runtime: &Path) -> Option<Flock<File>> {
        let labs = File::open(runtime.join("labs")).ok()?;
        Flock::lock(labs, FlockArg::LockSharedNonblock).ok()
    }

    /// A handle that keeps the lock when this process is killed, for the process that goes on.
    pub fn share(&self) -> Result<File, LabError> {
        self.file.try_clone().map_err(LabError::file("dup", &self.labs))
    }

    /// Removes the directories over all labs if none is left.
    pub fn release(self, runtime: &Path) {
        remove_empty(runtime);
    }
}

/// Removes the directories over all labs if none is left. For who has the lock.
pub fn remove_empty(runtime: &Path) {
    if std::fs::remove_dir(runtime.join("labs")).is_ok() {
        let _ = std::fs::remove_dir(runtime);
    }
}

/// Whether `labs` could not be made or looked at only since whoever had the lock removed it, or what is over it, just then.
fn was_removed_meanwhile(error: &io::Error, labs: &Path) -> bool {
    match error.kind() {
        ErrorKind::NotFound => true,
        // It was there, and a moment later no directory was: unless something else is in its place.
        ErrorKind::AlreadyExists => std::fs::symlink_metadata(labs).map_or(true, |it| it.is_dir()),
        _ => false,
    }
}

/// Refuses a directory that somebody else could have made, who answers in the place of this user's then.
pub fn check_is_own(directory: &Path) -> Result<(), LabError> {
    let found = named_and_meant(directory).map_err(LabError::file("stat", directory))?;
    check_owner(directory, &found)
}

/// What has this name, and what that leads to if it is a link.
fn named_and_meant(runtime: &Path) -> io::Result<[Metadata; 2]> {
    Ok([std::fs::symlink_metadata(runtime)?, std::fs::metadata(runtime)?])
}

/// In a directory such as /tmp somebody else could have made it before, or a link in its place, which may lead
/// somewhere else tomorrow.
fn check_owner(runtime: &Path, named_and_meant: &[Metadata; 2]) -> Result<(), LabError> {
    let own = nix::unistd::geteuid().as_raw();
    if named_and_meant.iter().all(|it| it.uid() == own) {
        return Ok(());
    }
    let expected = "a directory that belongs to you";
    Err(keeptime_model::Invalid::new("runtime directory", runtime.display(), expected).into())
}

fn write_whole(path: &Path, content: &[u8]) -> Result<(), LabError> {
    keeptime_files::replace(path, content, Mode::Kept).map_err(LabError::file("write", path))
}

/// Longer than any `up` takes.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_lock_removes_its_directory_and_is_taken_again() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = directory.path().join("keeptime");
        for _ in 0..2 {
            let waiting = runtime.clone();
            let first = LabsLock::take(&runtime).unwrap();
            let second = std::thread::spawn(move || {
                let lock = LabsLock::take(&waiting).unwrap();
                assert!(waiting.join("labs").is_dir());
                lock.release(&waiting);
            });
            first.release(&runtime);
            second.join().unwrap();
            assert!(!runtime.exists());
        }
    }

    // Each release may remove the directory that another is just about to lock.
    #[test]
    fn many_that_take_it_at_once_all_have_it_in_turn() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = directory.path().join("keeptime");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        LabsLock::take(&runtime).unwrap().release(&runtime);
                    }
                });
            }
        });
        assert!(!runtime.exists());
    }

    #[test]
    fn a_link_of_somebody_else_in_the_place_of_the_directory_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: root: only root makes links that belong to others");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [own, link] = ["own", "link"].map(|name| directory.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        LabsLock::take(&link).unwrap().release(&link);
        std::os::unix::fs::lchown(&link, Some(1), Some(1)).unwrap();
        let error = LabsLock::take(&link).unwrap_err().to_string();
        assert!(error.contains("a directory that belongs to you"), "{error}");
    }

    #[test]
    fn files_are_gone_when_the_holder_is_named_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let files = LabFiles::at(directory.path().join("lab"));
        assert!(files.are_gone());
        assert!(files.create().unwrap());
        assert!(files.are_gone());
        files.write_holder(Identity { pid: 7, start: 8 }).unwrap();
        assert!(!files.are_gone());
        files.remove().unwrap();
        assert!(files.are_gone());
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_told() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("labs"), "").unwrap();
        let error = LabsLock::take(directory.path()).unwrap_err().to_string();
        assert!(error.contains("mkdir") && error.contains("labs"), "{error}");
    }

    // Goal: what is in the way is told, and told at once. Method: a directory that nobody may open, also not root: on this thread
    // it has nobody's rights.
    #[test]
    fn a_directory_that_cannot_be_opened_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let labs = directory.path().join("labs");
        std::fs::create_dir(&labs).unwrap();
        let set_mode = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        set_mode(directory.path(), 0o755);
        set_mode(&labs, 0o000);
        let take = || {
            if nix::unistd::geteuid().is_root() {
                nix::unistd::setfsuid(NOBODY.into());
            }
            LabsLock::take(directory.path()).unwrap_err().to_string()
        };
        let error = std::thread::scope(|scope| scope.spawn(take).join().unwrap());
        set_mode(&labs, 0o700);
        assert!(error.contains("open") && error.contains("labs"), "{error}");
    }

    const NOBODY: u32 = 65_534;

    proptest! {
        #[test]
        fn any_holder_and_state_file_is_read_or_refused(text in "\\PC{0,80}") {
            let directory = tempfile::tempdir().unwrap();
            let files = LabFiles::at(directory.path().into());
            std::fs::write(files.holder(), &text).unwrap();
            std::fs::write(files.state(), &text).unwrap();
            let _ = (files.read_holder(), files.read_state());
        }

        #[test]
        fn what_is_written_reads_back(pid in 1i32.., start: u64, rootless: bool, why in "\\PC{0,40}") {
            let directory = tempfile::tempdir().unwrap();
            let files = LabFiles::at(directory.path().into());
            files.write_holder(Identity { pid, start }).unwrap();
            prop_assert_eq!(files.read_holder(), Some(Identity { pid, start }));
            let nodes = vec![Init { pid, start }];
            let state = State { version: 1, rootless, nodes, not_enforced: vec![why] };
            files.write_state(&state).unwrap();
            prop_assert_eq!(files.read_state(), Some(state));
        }
    }
}
