//! The remote shell that a launcher of MPI is told to use: a script for one run.

use crate::files;
use anyhow::{Context, Result};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Scripts of this process.
static SCRIPTS: AtomicU32 = AtomicU32::new(0);

/// A script that starts a command on another node, as `ssh HOST COMMAND` would. It goes with this.
#[derive(Debug)]
pub struct RemoteLauncher {
    path: PathBuf,
}

impl RemoteLauncher {
    /// The script for a run in the job `whose`, in a directory that is there; or in that of this user's programs, where none
    /// can be run from the former. Several may run at once, also in one job, and each has its own.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(directory: &Path, whose: &str, script: &str) -> Result<Self> {
        let path = place(directory.join(script_name(whose)), &directory_of_programs())?;
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(script.as_bytes())?;
            file.set_permissions(fs::Permissions::from_mode(0o700))
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path })
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
    format!("remote-{whose}-{}-{number}", std::process::id())
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

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        files::make_private(directory.path()).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o770)).unwrap();
        let error = files::make_private(directory.path()).unwrap_err().to_string();
        assert!(error.contains("this user alone writes"), "{error}");
    }
}
