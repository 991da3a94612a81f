//! Files with certificates, keys and tokens: read whole, bounded, and refused where others could read
//! what is secret; and whether they changed since.

use keeptime_files::{Mode, give, sync_directory};
use keeptime_model::Invalid;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest file: a token file of 10,000 tokens has 2 MB.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// How often it is tried to take a lock.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// Anybody, as certificates.
    Public,
    /// Its owner alone, as keys and tokens.
    Secret,
}

/// A file that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is secret, and others may read or change it.
    #[error("{} has mode {mode:04o}: others could read a secret; expected 0600 (chmod 600 {})", path.display(), path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is secret, and belongs to somebody who could change it.
    #[error("{} belongs to user {owner}; expected this program's user, {expected}, or root", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Whose it should be.
        expected: u32,
    },
    /// It is too long.
    #[error("{} is longer than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// Which.
        path: PathBuf,
    },
    /// Another program has it locked.
    #[error("{} is locked by another program, and still was after {within:?}", path.display())]
    Locked {
        /// Which.
        path: PathBuf,
        /// How long that was waited for.
        within: Duration,
    },
    /// What stands in it is wrong.
    #[error("in {}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What.
        #[source]
        source: Invalid,
    },
}

/// Reads a file whole.
///
/// # Errors
/// If it cannot be read, is too long, is no text, or is secret and others may read it.
pub fn read(path: &Path, secrecy: Secrecy) -> Result<String, FileError> {
    let failed = |source| FileError::Read { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    // Of what was opened, not of what stands there now.
    let metadata = file.metadata().map_err(failed)?;
    if secrecy == Secrecy::Secret {
        check_secret(path, &metadata)?;
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLong { path: path.into() });
    }
    Ok(text)
}

/// Puts `text` in the place of a file, whole or not at all; nothing of it is left elsewhere. It belongs to whom the
/// former one belonged, or its directory if there was none. It is on the disk then, whatever happens.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, text: &str, secrecy: Secrecy) -> Result<(), FileError> {
    let mode = Mode::Exactly(if secrecy == Secrecy::Secret { 0o600 } else { 0o644 });
    let replaced = keeptime_files::replace(path, text.as_bytes(), mode);
    let replaced = replaced.and_then(|()| sync_directory(path));
    replaced.map_err(|source| FileError::Write { path: path.into(), source })
}

/// Takes the lock of a file, which is let go of with the handle. It is a file of its own beside it: whoever can
/// open what is locked can hold it, and this one nobody else can.
///
/// # Errors
/// If it cannot be made, or another program has it for longer than `within`.
pub fn lock(path: &Path, within: Duration) -> Result<File, FileError> {
    let lock = path.with_extension("lock");
    let failed = |source| FileError::Write { path: lock.clone(), source };
    let file = open_lock(&lock, path).map_err(failed)?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) if start.elapsed() < within => sleep(LOOK_EVERY),
            Err(TryLockError::WouldBlock) => return Err(FileError::Locked { path: lock, within }),
        }
    }
}

fn open_lock(lock: &Path, path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Only what was made here is given away: anything else may be a link to what is somebody else's.
    match options.write(true).mode(0o600).create_new(true).open(lock) {
        Ok(made) => give(&made, path).map(|()| made),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.create_new(false).open(lock)
        }
        Err(error) => Err(error),
    }
}

fn check_secret(path: &Path, metadata: &fs::Metadata) -> Result<(), FileError> {
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    if mode & 0o177 != 0 {
        return Err(FileError::Exposed { path: path.into(), mode });
    }
    let own = nix::unistd::geteuid().as_raw();
    if !may_use(own, owner) {
        return Err(FileError::Foreign { path: path.into(), owner, expected: own });
    }
    Ok(())
}

/// Whether a secret of `owner` is one for the user `own`. Root reads what is anybody's: it is asked to by name.
fn may_use(own: u32, owner: u32) -> bool {
    own == owner || own == 0 || owner == 0
}

/// What tells whether files changed: which they are, how long, and when they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Vec<Option<[i64; 7]>>);

impl Stamp {
    /// Of the files at these paths as they are now; one that is not there has one too.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let stamp = |path: &Path| {
            let m = fs::metadata(path).ok()?;
            let [device, inode, size] = [m.dev(), m.ino(), m.size()].map(u64::cast_signed);
            // The change time tells of what kept its modification time, as `cp -p` does.
            let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
            let [written, written_nanos, changed, changed_nanos] = times;
            Some([device, inode, size, written, written_nanos, changed, changed_nanos])
        };
        Self(paths.into_iter().map(stamp).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_that_others_can_read_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        fs::write(&path, "secret").unwrap();
        for (mode, is_read) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = read(&path, Secrecy::Secret);
            assert_eq!(read.is_ok(), is_read, "{mode:o}");
            let told = read.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(is_read || told.contains("expected 0600 (chmod 600"), "{told}");
        }
        assert_eq!(super::read(&path, Secrecy::Public).unwrap(), "secret");
    }

    #[test]
    fn a_secret_is_ones_own_or_roots() {
        let (root, ada, eve) = (0, 7, 8);
        for (own, owner) in [(ada, ada), (ada, root), (root, ada), (root, root)] {
            assert!(may_use(own, owner), "{own} uses what is {owner}'s");
        }
        assert!(!may_use(ada, eve) && !may_use(eve, ada));
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        for (text, secrecy, mode) in
            [("one", Secrecy::Public, 0o644), ("two", Secrecy::Secret, 0o600)]
        {
            replace(&path, text, secrecy).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            // A mask of the process may take more away.
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777 & !mode, 0);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        // Nobody's file is in the way of this one, whatever it is called.
        assert!(replace(&directory.path().join("no/key.pem"), "", Secrecy::Secret).is_err());
    }

    #[test]
    fn a_lock_is_held_by_one_and_belongs_to_its_owner_alone() {
        // The second is told which file it is, and has it when the first is gone.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let held = lock(&path, Duration::ZERO).unwrap();
        assert_eq!(held.metadata().unwrap().mode() & 0o777 & !0o600, 0);
        let error = lock(&path, Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("tokens.lock is locked by another"), "{error}");
        drop(held);
        lock(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn what_is_not_there_or_too_long_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("long");
        let error = read(&path, Secrecy::Public).unwrap_err();
        assert!(error.to_string().contains("cannot read"), "{error}");
        fs::write(&path, vec![b'x'; FILE_BYTES_MAX as usize]).unwrap();
        assert_eq!(read(&path, Secrecy::Public).unwrap().len() as u64, FILE_BYTES_MAX);
        fs::write(&path, vec![b'x'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(read(&path, Secrecy::Public), Err(FileError::TooLong { .. })));
    }

    #[test]
    fn a_file_that_was_replaced_has_another_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let stamp = || Stamp::of([path.as_path()]);
        let absent = stamp();
        fs::write(&path, "one").unwrap();
        let first = stamp();
        assert_eq!(first, stamp());
        // Written while the first is there, so that it cannot have its place on the disk.
        fs::write(directory.path().join("b"), "two").unwrap();
        fs::rename(directory.path().join("b"), &path).unwrap();
        assert!(absent != first && first != stamp());
    }
}
