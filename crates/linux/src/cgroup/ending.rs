//! How a group ends: the processes in it first.

use super::files::{POLL_SPAN, RETRY_LIMIT};
use super::{
    CgroupError, Group, Hierarchy, move_into, processes_below, remove_with_descendants,
    retry_within,
};
use crate::bound::{Origin, ROUNDS};
use crate::deadline;
use crate::process::{Identity, Process, threads};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

impl Group {
    /// Kills every process in it and in the groups inside, but for those that it [has borrowed](Group::borrow), and
    /// waits until they are gone. Those that do not end for want of processor time lose their schedules
    /// first ([`deadline`]): a thread dies when it runs, and one that has used up its slice does so in the
    /// next period, if the kernel still knows when that begins (on Linux 6.18 it was seen to forget).
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
        let mut pids = self.pids()?;
        // Looked at after the others: who is borrowed stays so.
        let borrowed: BTreeSet<i32> = match self.hierarchies.unified {
            Some(_) => self.borrowed()?.into_iter().collect(),
            None => BTreeSet::new(),
        };
        pids.retain(|pid| !borrowed.contains(pid));
        let killed = match borrowed.is_empty() {
            true => self.kill_by_kernel()?,
            false => BTreeSet::new(),
        };
        for pid in nameable(&pids).filter(|pid| releases || !killed.contains(pid)) {
            let Some(process) = self.own(pid) else { continue };
            let _ = process.signal(Signal::SIGKILL);
            if releases {
                // Without privilege there is no such schedule.
                let _ = threads(pid).map(|threads| deadline::release(&threads));
            }
        }
        Ok(pids.len())
    }

    /// At once and without forks that escape, where the kernel can (version 2, Linux 5.14). Whom it kills.
    fn kill_by_kernel(&self) -> Result<BTreeSet<i32>, CgroupError> {
        let Some(unified) = &self.hierarchies.unified else { return Ok(BTreeSet::new()) };
        let directory = unified.root().join(&self.path);
        let path = directory.join("cgroup.kill");
        if !path.exists() || std::fs::write(path, "1").is_err() {
            return Ok(BTreeSet::new());
        }
        Ok(processes_below(&directory)?.into_iter().collect())
    }

    /// A process of this group that has this number and is not borrowed; nothing where another has the number by now.
    fn own(&self, pid: i32) -> Option<Process> {
        let process = Identity::of(pid).ok()??.open().ok()??;
        // Now the handle means one process: the one that is asked, if it is alive after that.
        let is_own = Origin::of(pid).ok()?.is_own(self);
        (is_own && process.identity().is_alive()).then_some(process)
    }

    /// Removes it with the groups inside, and the groups above it that are empty then. Nothing
    /// happens if it is away.
    ///
    /// # Errors
    /// If processes are left in it.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.remove_within(RETRY_LIMIT)
    }

    /// As [`Self::remove`], for those who have not that much time, and can try again. Tries once at least.
    ///
    /// # Errors
    /// If processes are left in it after `patience`.
    pub fn remove_within(&self, patience: Duration) -> Result<(), CgroupError> {
        retry_within(patience, || {
            let directories = self.directories();
            directories.iter().try_for_each(|directory| remove_with_descendants(directory))
        })?;
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
    use crate::cgroup::{Hierarchies, MARK, V1};
    use std::os::unix::process::ExitStatusExt;

    // Whoever does not end although it was killed is told of in time, is limited no more, and is found gone later; who has its
    // number and is elsewhere is not killed. A file stands for the kernel's list, which names the process until it is
    // written anew.
    #[test]
    fn who_does_not_end_keeps_nobody_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("{MARK}/_test-ending-{}", std::process::id());
        let path = directory.path().join(&name);
        let mut program = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = program.id() as i32;
        let list = pid.to_string();
        with_files(&path, &[("cgroup.procs", list.as_str()), ("cpu.cfs_quota_us", "4000")]);
        let all = Hierarchies::of(Some(V1::at(directory.path())), None, None).unwrap();
        let group = all.group(&name).unwrap();
        group.lift_cpu().unwrap();
        assert_eq!(std::fs::read_to_string(path.join("cpu.cfs_quota_us")).unwrap(), "-1");
        let told = || group.kill_within(Duration::from_millis(20)).unwrap_err().to_string();
        let expected = format!("1 processes in {name} did not end within 20ms of SIGKILL");
        assert_eq!(told(), expected);
        assert!(Identity::of(pid).unwrap().is_some(), "who is in no group of ours was killed");
        let real = Hierarchies::discover_any().and_then(|all| all.group(&name)).unwrap();
        let joined = real.create().and_then(|()| real.join(pid));
        match &joined {
            Ok(()) => assert_eq!(told(), expected),
            Err(_) => program.kill().unwrap(),
        }
        assert_eq!(program.wait().unwrap().signal(), Some(9));
        if let Err(error) = joined {
            return crate::testing::skip(&["cgroup".into()], &error.to_string());
        }
        with_files(&path, &[("cgroup.procs", "")]);
        group.kill_within(Duration::ZERO).unwrap();
        real.remove().unwrap();
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
