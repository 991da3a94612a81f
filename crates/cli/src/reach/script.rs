//! The remote shell that a launcher of MPI is told to use: a script for one run.

use crate::files;
use anyhow::{Context, Result};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Scripts of this process.
static SCRIPTS: AtomicU32 = AtomicU32::new(0);

/// What the names of scripts begin with.
const PREFIX: &str = "remote-";
/// A script that is older, and that nobody holds, is of a run that was killed: a younger one may be about to be held.
const YOUNG: Duration = Duration::from_mins(1);

/// A script that starts a command on another node, as `ssh HOST COMMAND` would. It goes with this, or, where this was killed,
/// when the next one is made beside it.
#[derive(Debug)]
pub struct RemoteLauncher {
    path: PathBuf,
    /// Its lock tells that the run goes on. It is open for reading alone: what is open for writing is not run.
    _held: File,
}

impl RemoteLauncher {
    /// The script for a run in the job `whose`, in a directory that is there; or in that of this user's programs, where none
    /// can be run from the former. Several may run at once, also in one job, and each has its own.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(directory: &Path, whose: &str, script: &str) -> Result<Self> {
        let path = place(directory.join(script_name(whose)), &directory_of_programs())?;
        if let Some(beside) = path.parent() {
            take_away_left(beside);
        }
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(script.as_bytes())?;
            file.set_permissions(fs::Permissions::from_mode(0o700))?;
            let held = File::open(&path)?;
            held.lock_shared()?;
            Ok::<_, io::Error>(held)
        };
        let held = write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, _held: held })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RemoteLauncher {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Where programs can be run from on nearly every machine: this user's.
pub fn directory_of_programs() -> PathBuf {
    match geteuid() {
        user if user.is_root() => "/var/cache/keeptime".into(),
        user => format!("/var/tmp/keeptime-{user}").into(),
    }
}

/// One that no other script has.
fn script_name(whose: &str) -> String {
    let number = SCRIPTS.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{whose}-{}-{number}", std::process::id())
}

/// Removes the scripts of runs that were killed.
fn take_away_left(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // In the directory of programs its whole path stands before it.
        let is_script = name.to_str().is_some_and(|name| {
            name.rsplit('+').next().is_some_and(|name| name.starts_with(PREFIX))
        });
        if is_script && is_left(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_left(script: &Path) -> bool {
    let is_old = |written: SystemTime| written.elapsed().is_ok_and(|age| age > YOUNG);
    let written = fs::symlink_metadata(script).and_then(|found| found.modified());
    written.is_ok_and(is_old) && File::open(script).is_ok_and(|file| file.try_lock().is_ok())
}

/// `path`, or one in the directory `elsewhere` that no other path has, where no program can be run from there.
fn place(path: PathBuf, elsewhere: &Path) -> Result<PathBuf> {
    if path.parent().is_none_or(allows_programs) {
        return Ok(path);
    }
    files::make_private(elsewhere)?;
    let name = path.display().to_string().trim_start_matches('/').replace('/', "+");
    Ok(elsewhere.join(name))
}

/// Whether the kernel runs programs from there, which it does not from `/run` of Debian and Ubuntu. Where that cannot be
/// asked, it is tried.
fn allows_programs(directory: &Path) -> bool {
    !statvfs(directory).is_ok_and(|found| found.flags().contains(FsFlags::ST_NOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_linux::testing::{mount_tiny, skip};
    use nix::mount::{MsFlags, mount};

    // Goal: a launcher can run its script whatever the directory of runs allows. Method: one from which no program can be
    // run, on a thread that alone sees it so.
    #[test]
    fn a_script_is_where_programs_can_be_run_from() {
        let (usual, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (labs, programs) = (usual.path().to_owned(), other.path().join("programs"));
        let thread = std::thread::spawn(move || -> nix::Result<()> {
            let none = None::<&str>;
            let without_programs = MsFlags::MS_REMOUNT | MsFlags::MS_NOEXEC;
            mount_tiny(&labs)?;
            let placed = |lab: &str| place(labs.join(lab).join("remote-r1"), &programs).unwrap();
            let [a, b] = ["a", "b"].map(|lab| labs.join(lab));
            fs::create_dir(&a).unwrap();
            fs::create_dir(&b).unwrap();
            assert_eq!(placed("a"), a.join("remote-r1"));
            assert!(!programs.exists());
            mount(none, labs.as_path(), none, without_programs, none)?;
            let [of_a, of_b] = ["a", "b"].map(placed);
            assert_eq!(of_a.parent(), Some(programs.as_path()));
            assert_eq!(of_b.parent(), Some(programs.as_path()));
            assert_ne!(of_a, of_b, "each lab has its own");
            Ok(())
        });
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(errno)) => skip(&["mount".into()], &format!("mount: {errno}")),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    // Of two runs in one job the first that ends leaves the other its script.
    #[test]
    fn each_run_has_a_script_of_its_own() {
        let names = [(); 2].map(|()| script_name("r1"));
        assert_ne!(names[0], names[1]);
        let of_process = format!("remote-r1-{}-", std::process::id());
        assert!(names.iter().all(|name| name.starts_with(&of_process)), "{names:?}");
    }

    // Goal: runs that were killed leave no scripts for ever, and none that goes on loses its own. Method: three that are as
    // old, one of which is held; beside them a file of somebody else's, and a script that was just made.
    #[test]
    fn scripts_of_runs_that_were_killed_go_with_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let held = RemoteLauncher::new(directory.path(), "r1", "exit").unwrap();
        for name in ["remote-r2-1-0", "run+labs+remote-r3-1-0", "notes", "remote-r4-1-0"] {
            fs::write(path(name), "").unwrap();
        }
        for name in [
            held.path().to_owned(),
            path("remote-r2-1-0"),
            path("run+labs+remote-r3-1-0"),
            path("notes"),
        ] {
            let old = SystemTime::now() - 2 * YOUNG;
            File::open(name).unwrap().set_modified(old).unwrap();
        }
        let next = RemoteLauncher::new(directory.path(), "r5", "exit").unwrap();
        let mut left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        let mut expected =
            [held.path().to_owned(), next.path().to_owned(), path("notes"), path("remote-r4-1-0")];
        expected.sort();
        assert_eq!(left, expected);
        let status = std::process::Command::new("sh").arg(next.path()).status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        files::make_private(directory.path()).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o770)).unwrap();
        let error = files::make_private(directory.path()).unwrap_err().to_string();
        assert!(error.contains("this user alone writes"), "{error}");
    }
}
