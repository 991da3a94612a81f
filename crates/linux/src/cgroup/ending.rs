//! How a group ends: the processes in it first.

use super::files::POLL_SPAN;
use super::{CgroupError, Group, Hierarchy, move_into, remove_with_descendants, retry};
use crate::bound::ROUNDS;
use crate::deadline;
use crate::process::threads;
use std::path::Path;
use std::time::Duration;

impl Group {
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
        for pid in nameable(&pids) {
            let killed = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(killed, nix::sys::signal::Signal::SIGKILL);
            if releases {
                // Without privilege there is no such schedule.
                let _ = threads(pid).map(|threads| deadline::release(&threads));
            }
        }
        Ok(pids.len())
    }

    /// At once and without forks that escape, where the kernel can (version 2, Linux 5.14).
    fn kill_by_kernel(&self) {
        if let Some(unified) = &self.hierarchies.unified {
            let path = unified.root().join(&self.path).join("cgroup.kill");
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
            retry(|| remove_with_descendants(&directory))?;
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
            let pids: Vec<_> = nameable(&self.pids()?).collect();
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
}

/// Those of `pids` that are ours to name: 0 stands for a process of another process namespace.
fn nameable(pids: &[i32]) -> impl Iterator<Item = i32> {
    pids.iter().copied().filter(|pid| *pid > 0)
}

/// Killed processes end within milliseconds, but for those in uninterruptible sleep.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Of the tries to kill, those that leave schedules alone: nearly all processes end by then. At most half of them.
const PATIENT_TRIES: u128 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::testing::with_files;
    use crate::cgroup::{Hierarchies, V1};
    use std::os::unix::process::ExitStatusExt;

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
}
