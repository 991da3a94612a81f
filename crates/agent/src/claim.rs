//! That one agent serves a node: a lock beside its socket, and one on its control group and its device, for those with
//! another configuration. The kernel lets go of them when the agent ends, in whichever way.

use crate::enforcer::BoxedError;
use keeptime_linux::cgroup::{CgroupError, Group, GroupClaim};
use keeptime_linux::process::Identity;
use nix::fcntl::OFlag;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// What the socket's path gets for the name of the lock.
const SUFFIX: &str = ".lock";
/// How often the lock is tried again that was taken away meanwhile, as by `keeptime agent clear`, or whose holder is not there
/// any more: it is about to be let go of.
const TRIES_MAX: usize = 8;
/// How often, and how long after each other, it is looked who holds it: that is noted right after it is taken.
const LOOKS_MAX: usize = 10;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often what an agent has is tried again: one that was killed lets go of it within this second.
const SHARED_TRIES_MAX: usize = 100;
/// More than the number of a process is long.
const NOTE_BYTES_MAX: usize = 16;

/// Why a node is not to be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another agent has it, or whoever takes everything off the node.
    #[error("an agent runs here: {} holds {}; end it first", named(*holder), lock.display())]
    Held {
        /// The lock.
        lock: PathBuf,
        /// The number of its process, if that can be known.
        holder: Option<i32>,
    },
    /// An agent answers that holds no lock: one of an older release.
    #[error("an agent runs here, and answers at {}; end it first", socket.display())]
    Answered {
        /// The socket.
        socket: PathBuf,
    },
    /// An agent with another socket has what this one would have, too.
    #[error(
        "an agent runs here: {holder} has {what}; end it first, or name another `{key}` in the configuration"
    )]
    Shared {
        /// Who, as far as that is known.
        holder: String,
        /// What: a control group or a device.
        what: String,
        /// What names it in a configuration.
        key: &'static str,
    },
    /// The lock cannot be used.
    #[error("cannot lock {}", lock.display())]
    Lock {
        /// Its file.
        lock: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A node as one agent's own, until this is dropped or its process ends.
#[derive(Debug)]
pub struct Claim {
    socket: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Claim {
    /// Takes the node whose agent is asked at `socket`. To be done before anything of the node is looked at: what one agent
    /// enforces and records is nobody else's to change.
    ///
    /// # Errors
    /// If somebody else has it, or the lock cannot be made.
    pub fn take(socket: &Path) -> Result<Self, ClaimError> {
        let lock = lock_beside(socket);
        let file = hold(&lock)?;
        if UnixStream::connect(socket).is_ok() {
            return Err(ClaimError::Answered { socket: socket.into() });
        }
        // Who it is helps whoever is refused; nothing else counts on it.
        let _ = note(&file, std::process::id());
        Ok(Self { socket: socket.into(), lock, _held: file })
    }

    /// Where its agent is asked.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gives the node back and leaves no lock, for when no agent is to come.
    ///
    /// # Errors
    /// If its file cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.lock)
    }
}

/// Takes the control group of a node, so that no agent with another socket has it.
///
/// # Errors
/// [`ClaimError::Shared`], or the kernel refuses.
pub(crate) fn take_group(group: &Group) -> Result<GroupClaim, BoxedError> {
    let claim = patiently(|| Ok(group.claim()?.ok_or(())))?;
    let shared = |()| ClaimError::Shared {
        holder: "another process".into(),
        what: format!("the control group {}", group.path().display()),
        key: "cgroup",
    };
    Ok(claim.map_err(shared)?)
}

/// Takes the device of this name and number in the network namespace of the calling thread, in the place of the former one.
///
/// # Errors
/// As [`take_group`].
pub(crate) fn take_device(claim: &GroupClaim, name: &str, ifindex: u32) -> Result<(), BoxedError> {
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    let number = format!("{namespace}.{ifindex}");
    let taken = patiently(|| Ok(claim.take_device(&number)?.map_or(Ok(()), Err)))?;
    let shared = |group: PathBuf| ClaimError::Shared {
        holder: format!("that of the control group {}", group.display()),
        what: format!("the device {name}"),
        key: "device",
    };
    Ok(taken.map_err(shared)?)
}

/// Tries until nobody has it, for a second at most. The inner error is whoever has it.
fn patiently<T, H>(
    mut take: impl FnMut() -> Result<Result<T, H>, CgroupError>,
) -> Result<Result<T, H>, CgroupError> {
    for _ in 1..SHARED_TRIES_MAX {
        match take()? {
            Err(_) => std::thread::sleep(LOOK_EVERY),
            taken => return Ok(taken),
        }
    }
    take()
}

/// Takes the lock, for as long as the file is open.
fn hold(lock: &Path) -> Result<File, ClaimError> {
    let failed = |source| ClaimError::Lock { lock: lock.into(), source };
    for _ in 0..TRIES_MAX {
        let file = open(lock).map_err(failed)?;
        match file.try_lock() {
            Ok(()) if keeptime_files::is_at(&file, lock).map_err(failed)? => return Ok(file),
            // Whoever had it has taken it away: then this locks nothing.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                if let Some(holder) = holder(&file) {
                    return Err(ClaimError::Held { lock: lock.into(), holder: Some(holder) });
                }
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
    Err(ClaimError::Held { lock: lock.into(), holder: None })
}

fn open(lock: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // Whoever can open it can hold it, and keep the agent out. And others than root may own the directory, as the broker
    // does where both are on one machine: what they have put there to lead elsewhere is not followed.
    options.mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits()).open(lock)
}

fn note(file: &File, process: u32) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(format!("{process}\n").as_bytes(), 0)
}

/// Who is noted and lives: what a former one has noted stays until the next one has.
fn holder(file: &File) -> Option<i32> {
    (0..LOOKS_MAX).find_map(|look| {
        if look > 0 {
            std::thread::sleep(LOOK_EVERY);
        }
        noted(file).filter(|process| matches!(Identity::of(*process), Ok(Some(_))))
    })
}

fn noted(file: &File) -> Option<i32> {
    let mut text = [0; NOTE_BYTES_MAX];
    let length = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length]).ok()?.strip_suffix('\n')?.parse().ok()
}

fn named(holder: Option<i32>) -> String {
    holder.map_or_else(|| "another process".into(), |process| format!("process {process}"))
}

fn lock_beside(socket: &Path) -> PathBuf {
    let mut name = OsString::from(socket);
    name.push(SUFFIX);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// The node, which this process has let go of: one that another test has begun has copies of all files, and so the
    /// lock, until it runs its own program.
    fn take_again(socket: &Path) -> Claim {
        let began = Instant::now();
        loop {
            match Claim::take(socket) {
                Err(ClaimError::Held { .. } | ClaimError::Answered { .. })
                    if began.elapsed() < Duration::from_secs(60) =>
                {
                    std::thread::sleep(LOOK_EVERY);
                }
                taken => return taken.unwrap(),
            }
        }
    }

    #[test]
    fn the_second_is_refused_and_told_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent.sock");
        let first = Claim::take(&socket).unwrap();
        let refused = Claim::take(&socket).unwrap_err();
        let own = format!("process {}", std::process::id());
        assert!(refused.to_string().contains(&own), "{refused}");
        drop(first);
        take_again(&socket).remove().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    // Goal: of those that begin in the same instant one has the node. Method: threads, each with a file of its own, as
    // processes have, that take the node and leave no lock, again and again.
    #[test]
    fn no_two_have_a_node_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, inside) = (directory.path().join("agent.sock"), directory.path().join("one"));
        let had = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let Ok(claim) = Claim::take(&socket) else { continue };
                        fs::create_dir(&inside).unwrap();
                        fs::remove_dir(&inside).unwrap();
                        claim.remove().unwrap();
                        had.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(had.into_inner() > 0);
    }

    /// A process that holds the lock of `socket` until it is killed, as soon as it does.
    fn holding(socket: &Path) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "claim::tests::holds", "--nocapture"]).env(SOCKET, socket);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(HELD)));
        child
    }

    const SOCKET: &str = "KEEPTIME_TEST_CLAIM";
    const HELD: &str = "the lock is held";

    // The process that the next test kills.
    #[test]
    fn holds() {
        let Some(socket) = std::env::var_os(SOCKET) else { return };
        let _claim = Claim::take(Path::new(&socket)).unwrap();
        println!("{HELD}");
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn who_is_killed_leaves_nothing_locked() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent.sock");
        let mut child = holding(&socket);
        let refused = Claim::take(&socket).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {} ", child.id())), "{refused}");
        child.kill().unwrap();
        child.wait().unwrap();
        Claim::take(&socket).unwrap();
    }

    // An agent that knows nothing of the lock is not served beside, either.
    #[test]
    fn who_answers_has_the_node_without_a_lock() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(matches!(Claim::take(&socket), Err(ClaimError::Answered { .. })));
        drop(listener);
        take_again(&socket);
    }

    // Nobody else holds the lock, and nobody has root write elsewhere.
    #[test]
    fn the_lock_is_its_owners_alone_and_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, theirs) =
            (directory.path().join("agent.sock"), directory.path().join("theirs"));
        let claim = Claim::take(&socket).unwrap();
        let mode = fs::metadata(&claim.lock).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        claim.remove().unwrap();
        fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, lock_beside(&socket)).unwrap();
        assert!(matches!(Claim::take(&socket), Err(ClaimError::Lock { .. })));
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    }

    // What is noted may be half written, of a former one, or anything at all: then nobody is named.
    #[test]
    fn nobody_is_named_who_does_not_live() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let file = open(&path).unwrap();
        for text in ["", "1", "-4\n", "words\n", "2147483647\n", "99999999999999999999\n"] {
            fs::write(&path, text).unwrap();
            assert_eq!(holder(&file), None, "{text:?}");
        }
        note(&file, std::process::id()).unwrap();
        assert_eq!(holder(&file), Some(std::process::id() as i32));
    }
}
