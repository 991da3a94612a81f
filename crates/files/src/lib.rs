//! Owns putting a file in the place of another, whole or not at all; never knows what stands in it.
//!
//! Whoever reads meanwhile, or after the program was killed or the power lost, finds the former content or the new one.
//! Several may write one file at once: they take turns. What a killed writer left is taken away by the next.
//!
//! ```
//! use keeptime_files::{Mode, replace};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("limits.toml");
//! replace(&path, b"jobs = 1\n", Mode::Kept)?;
//! replace(&path, b"jobs = 2\n", Mode::Kept)?;
//! assert_eq!(std::fs::read(&path)?, b"jobs = 2\n");
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

use nix::fcntl::OFlag;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What is added to a file's name until it takes that file's place. Nobody else calls a file so, and who reads all files
/// that end in a certain way does not read it.
pub const NEW: &str = ".keeptime-new";

/// How long another writer of the same file is waited for: nobody writes for as long as that who was not stopped.
const TURN_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Who may do what with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// What the former file allowed; where there was none, what the process' mask leaves of 0666.
    Kept,
    /// This, whatever the former one allowed, less what the process' mask takes away. Not even for a moment more.
    Exactly(u32),
}

/// Has the file at `path` say `content`. Root leaves it to whom the former one belonged, or its directory where there was
/// none. A link is replaced, not what it leads to.
///
/// The content is on the disk before it has the name. The name is when the kernel comes to it; who has to be sure calls
/// [`sync_directory`]. Takes one sync, and blocks for up to ten seconds while others write the same file.
///
/// # Errors
/// If it cannot be written; then the former file is there, and nothing beside it.
pub fn replace(path: &Path, content: &[u8], mode: Mode) -> io::Result<()> {
    let new = with_suffix(path, NEW);
    let mut file = begin(&new, mode)?;
    let mut put = || {
        if mode == Mode::Kept
            && let Some(former) = if_there(fs::metadata(path))?
        {
            file.set_permissions(former.permissions())?;
        }
        give(&file, path)?;
        file.write_all(content)?;
        // A name may get to the disk before what it names: then it names an empty file.
        file.sync_all()?;
        fs::rename(&new, path)
    };
    put().inspect_err(|_| {
        // Half of a file is of use to nobody, and half of a secret is one, too.
        let _ = fs::remove_file(&new);
    })
}

/// The path with `suffix` after its whole name: `a.json` and `a.toml` have different ones.
pub fn with_suffix(path: &Path, suffix: impl AsRef<OsStr>) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    name.into()
}

/// Where the file at `path` lies.
pub fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Has the disk know which files lie beside `path`, and it itself. Takes one sync.
///
/// # Errors
/// If the directory cannot be read or synced.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

/// Root makes files for others.
///
/// # Errors
/// If neither the file at `path` nor its directory is there, or its owner cannot be given another file.
pub fn give(file: &File, path: &Path) -> io::Result<()> {
    if nix::unistd::geteuid().is_root() {
        let owner = fs::metadata(path).or_else(|_| fs::metadata(directory(path)))?;
        fchown(file, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}

/// Makes the file at `new`, and holds its lock: only what was made here is written to, for anything else may be a link to
/// what is somebody else's. The lock tells others that its writer lives.
fn begin(new: &Path, mode: Mode) -> io::Result<File> {
    let until = Instant::now() + TURN_LIMIT;
    let bits = if let Mode::Exactly(bits) = mode { bits } else { 0o666 };
    loop {
        match OpenOptions::new().write(true).create_new(true).mode(bits).open(new) {
            Ok(file) => {
                lock(&file, until)?;
                // Before it was locked somebody may have taken it for what a killed writer left.
                if is_at(&file, new)? {
                    return Ok(file);
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => take_away(new, until)?,
            Err(error) => return Err(error),
        }
    }
}

/// Waits until nobody writes the file at `new`, and takes away what is left of it.
fn take_away(new: &Path, until: Instant) -> io::Result<()> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(new) {
        Ok(file) => {
            lock(&file, until)?;
            if !is_at(&file, new)? {
                return Ok(());
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        // A link, a socket, or not to be read: nobody who writes here made it so.
        Err(_) => {}
    }
    if_there(fs::remove_file(new)).map(|_| ())
}

fn lock(file: &File, until: Instant) -> io::Result<()> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(LOOK_EVERY),
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("another writer has it locked, and still had after {TURN_LIMIT:?}"),
                ));
            }
            // Some file systems of clusters have no locks: there the last writer wins, and one that was killed is none.
            Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
}

/// Whether `file` is what others find at `path`: one that was taken away meanwhile locks nothing. A link is not followed.
///
/// # Errors
/// If either cannot be looked at; that nothing is there is none.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    let there = if_there(fs::symlink_metadata(path))?;
    Ok(there.is_some_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino())))
}

/// Nothing where there is no such file.
fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::Barrier;

    #[test]
    fn a_file_keeps_its_mode_and_what_a_killed_writer_left_is_in_nobodys_way() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("shop.upstream");
        let new = with_suffix(&file, NEW);
        replace(&file, b"first", Mode::Kept).unwrap();
        for mode in [0o440, 0o604] {
            fs::write(&new, "longer than what comes").unwrap();
            fs::set_permissions(&new, Permissions::from_mode(0o400)).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            replace(&file, b"second", Mode::Kept).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "second");
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, mode);
            assert!(!new.exists());
        }
        replace(&file, b"third", Mode::Exactly(0o600)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777 & !0o600, 0);
    }

    #[test]
    fn a_file_that_cannot_be_written_says_what_it_said_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("shop.upstream");
        fs::write(&file, "before").unwrap();
        // No file can take the place of this one.
        let new = with_suffix(&file, NEW);
        fs::create_dir(&new).unwrap();
        assert!(replace(&file, b"after", Mode::Kept).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        fs::remove_dir(&new).unwrap();
        // It cannot take the place of a directory.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(replace(&file, b"after", Mode::Kept).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(replace(&directory.path().join("no/file"), b"", Mode::Kept).is_err());
    }

    #[test]
    fn files_of_others_are_left_alone_whatever_they_are_called() {
        let directory = tempfile::tempdir().unwrap();
        let [file, others, victim] =
            ["shop.upstream", "shop.new", "victim"].map(|name| directory.path().join(name));
        fs::write(&others, "somebody's").unwrap();
        fs::write(&victim, "somebody's").unwrap();
        // Whoever may make files here cannot have another file written to.
        symlink(&victim, with_suffix(&file, NEW)).unwrap();
        replace(&file, b"ours", Mode::Kept).unwrap();
        fs::hard_link(&victim, with_suffix(&file, NEW)).unwrap();
        replace(&file, b"ours", Mode::Kept).unwrap();
        for path in [&others, &victim] {
            assert_eq!(fs::read_to_string(path).unwrap(), "somebody's");
        }
    }

    #[test]
    fn writers_of_one_file_take_turns() {
        // Each writes its own letter; who reads meanwhile never finds two, or less than a whole file.
        const LENGTH: usize = 1 << 16;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("result.json");
        replace(&file, &[b'z'; LENGTH], Mode::Kept).unwrap();
        let begin = Barrier::new(5);
        let (file, begin) = (&file, &begin);
        std::thread::scope(|scope| {
            for letter in b'a'..=b'd' {
                scope.spawn(move || {
                    begin.wait();
                    for _ in 0..25 {
                        replace(file, &[letter; LENGTH], Mode::Kept).unwrap();
                    }
                });
            }
            begin.wait();
            for _ in 0..100 {
                let text = fs::read(file).unwrap();
                assert!(text.len() == LENGTH && text.iter().all(|letter| *letter == text[0]));
            }
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_stands_beside_has_the_whole_name() {
        let name = |path: &str| with_suffix(Path::new(path), NEW).display().to_string();
        assert_ne!(name("profiles/ray.a"), name("profiles/ray.b"));
        assert_eq!(directory(Path::new("limits.toml")), Path::new("."));
        assert_eq!(directory(Path::new("/etc/limits.toml")), Path::new("/etc"));
    }
}
