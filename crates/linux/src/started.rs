//! Processes that users started for a job themselves, on its node, and that end together: a command of
//! a run with everything that it starts.
//!
//! Each command has a group of its own inside of the job's, in the hierarchy of version 2: what belongs
//! to it is known whatever becomes of its first process, and another command of the same job is not
//! touched when it ends.

use crate::bound::{Origin, check_same};
use crate::cgroup::{
    CgroupError, Group, make_numbered, move_into, refused, remove_with_descendants, retry,
};
use crate::process::Identity;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A command of a job, with all that it started since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Of its group, inside of the job's.
    name: String,
    /// What the kernel knows that by: once it has ended, the group of another command may have the name.
    id: u64,
}

impl Group {
    /// Takes in the first process of a command. One that is in the group of a command of this job stays
    /// there, with its command: an agent that was killed had taken it in. Whoever has its number meanwhile is
    /// put back to where the process was.
    ///
    /// # Errors
    /// If the process or the group is away, or the kernel refuses.
    pub fn take_in(&self, process: Identity) -> Result<Started, CgroupError> {
        let (directory, pid) = (self.in_version_2()?, process.pid);
        if let Some(name) = self.command_of(pid)? {
            return self.command(name);
        }
        let origin = self.origin_of(pid)?;
        let command = self.command(new_group(&directory)?)?;
        let inner = directory.join(&command.name);
        // What is not limited in version 2 is by the others: in these it is simply the job's.
        let others = self.hierarchies().iter().filter(|h| h.controller().is_some());
        let mut others = others.map(|h| h.root().join(self.path()));
        let moved = others
            .try_for_each(|d| move_into(&d, pid))
            .and_then(|()| move_into(&inner, pid))
            .and_then(|()| check_same(process));
        match moved {
            Ok(()) => Ok(command),
            Err(error) => {
                origin.map_or(Ok(()), |origin| self.put_back(&origin, pid))?;
                retry(|| remove_with_descendants(&inner))?;
                Err(error)
            }
        }
    }

    /// Ends a command with all that it started, and with the groups that it made. Nothing happens if it has ended, whoever has its
    /// group's name by now.
    ///
    /// # Errors
    /// If something does not end at once: it was killed, and asking again finds it gone.
    pub fn end(&self, started: &Started) -> Result<(), CgroupError> {
        let inner = self.child(&started.name)?;
        if !inner.id().is_ok_and(|found| found.id == started.id) {
            return Ok(());
        }
        inner.kill_within(PATIENCE)?;
        // Not `Group::remove`: the job's own group may be empty, and stays. And once: what the kernel is not done with is
        // removed when this is asked again.
        remove_with_descendants(&self.in_version_2()?.join(&started.name))
    }

    /// The command whose group has this name now.
    fn command(&self, name: String) -> Result<Started, CgroupError> {
        let id = self.child(&name)?.id()?.id;
        Ok(Started { name, id })
    }

    /// The group of the command that a process belongs to, if it belongs to one of this job.
    fn command_of(&self, pid: i32) -> Result<Option<String>, CgroupError> {
        Ok(Origin::of(pid)?.inside(self.path(), PREFIX).map(str::to_owned))
    }
}

/// Makes a group inside with a name that no other has.
fn new_group(directory: &Path) -> Result<String, CgroupError> {
    let full = || io::Error::other(format!("{COMMANDS_MAX} commands were started already"));
    let made = make_numbered(directory, PREFIX, COMMANDS_MAX)?;
    made.ok_or_else(|| refused("mkdir", directory)(full()))
}

/// No job's program makes groups with this name: they are inside of a job's group.
const PREFIX: &str = "_command.";
/// Of one job on one node at a time: an MPI program has one.
const COMMANDS_MAX: usize = 1_024;
/// Who has it ended has others to answer.
const PATIENCE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Hierarchies, V1, V2};

    // Goal: a command that has made groups, as containers' managers do, ends with them, and the job stays. Method: directories in
    // the place of the kernel's groups.
    #[test]
    fn a_command_ends_with_the_groups_that_it_made() {
        let (cpu, unified) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let job = unified.path().join("keeptime/n1/r1");
        for made in ["_command.0/made/deeper", "_command.0/beside", "_command.1"] {
            std::fs::create_dir_all(job.join(made)).unwrap();
        }
        std::fs::write(unified.path().join("cgroup.controllers"), "").unwrap();
        let unified = V2::at(unified.path(), 0).unwrap();
        let all = Hierarchies::of(Some(V1::at(cpu.path())), None, Some(unified)).unwrap();
        let group = all.group("keeptime/n1/r1").unwrap();
        let started = |number| group.command(format!("{PREFIX}{number}")).unwrap();
        let [first, second] = [0, 1].map(started);
        group.end(&first).unwrap();
        group.end(&first).unwrap();
        assert_eq!(group.children().unwrap().into_iter().collect::<Vec<_>>(), ["_command.1"]);
        group.end(&second).unwrap();
        assert!(job.is_dir());
    }

    // Goal: who has hung up late on a command that has ended does not end another one, whose group has the same name. Method: the
    // directory of the first is moved away and not removed, since another one may then have its number.
    #[test]
    fn a_command_that_has_ended_is_not_the_next_of_its_name() {
        let (cpu, unified) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let job = unified.path().join("keeptime/n1/r1");
        let [group, away] = ["_command.0", "away"].map(|name| job.join(name));
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(unified.path().join("cgroup.controllers"), "").unwrap();
        let unified = V2::at(unified.path(), 0).unwrap();
        let all = Hierarchies::of(Some(V1::at(cpu.path())), None, Some(unified)).unwrap();
        let job = all.group("keeptime/n1/r1").unwrap();
        let former = job.command("_command.0".into()).unwrap();
        std::fs::rename(&group, &away).unwrap();
        std::fs::create_dir(&group).unwrap();
        let later = job.command("_command.0".into()).unwrap();
        job.end(&former).unwrap();
        assert!(group.is_dir());
        job.end(&later).unwrap();
        assert!(!group.exists());
    }
}
