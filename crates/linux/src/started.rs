//! Processes that users started for a job themselves, on its node, and that end together: a command of
//! a run with everything that it starts.
//!
//! Each command has a group of its own inside of the job's, in the hierarchy of version 2: what belongs
//! to it is known whatever becomes of its first process, and another command of the same job is not
//! touched when it ends. One that was started by another of the job is inside of that one's group: it ends
//! with that, and that does not end with it. The group has the name of the command's first process, so that
//! no two have the same, now or later.

use crate::bound::{Origin, check_same};
use crate::cgroup::{
    CgroupError, Group, make_directory, move_into, refused, remove_with_descendants, retry,
};
use crate::process::Identity;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A command of a job, with all that it started since.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Started {
    /// Where its group is, from the job's on.
    path: PathBuf,
}

impl Started {
    /// What this process begins that no other command has started.
    pub fn by(process: Identity) -> Self {
        Self { path: name_of(process).into() }
    }
}

impl Group {
    /// Takes in the first process of a command. One that is that of a command of this job already stays so: an agent that was
    /// killed had taken it in. Whoever has its number meanwhile is put back to where the process was.
    ///
    /// # Errors
    /// If the process or the group is away, or the kernel refuses.
    pub fn take_in(&self, process: Identity) -> Result<Started, CgroupError> {
        let (directory, pid) = (self.in_version_2()?, process.pid);
        let (around, name) = (self.command_of(pid)?, name_of(process));
        if around.ends_with(&name) {
            return Ok(Started { path: around });
        }
        let origin = self.origin_of(pid)?;
        make_group(&directory.join(&around), &name)?;
        let path = around.join(name);
        let inner = directory.join(&path);
        // What is not limited in version 2 is by the others: in these it is simply the job's.
        let others = self.hierarchies().iter().filter(|h| h.controller().is_some());
        let mut others = others.map(|h| h.root().join(self.path()));
        let moved = others
            .try_for_each(|d| move_into(&d, pid))
            .and_then(|()| move_into(&inner, pid))
            .and_then(|()| check_same(process));
        match moved {
            Ok(()) => Ok(Started { path }),
            Err(error) => {
                origin.map_or(Ok(()), |origin| self.put_back(&origin, pid))?;
                retry(|| remove_with_descendants(&inner))?;
                Err(error)
            }
        }
    }

    /// Ends a command with all that it started, and with the groups that it made. Nothing happens if it has ended.
    ///
    /// # Errors
    /// If something does not end at once: it was killed, and asking again finds it gone.
    pub fn end(&self, started: &Started) -> Result<(), CgroupError> {
        let mut names = started.path.iter().filter_map(OsStr::to_str);
        let inner = names.try_fold(self.clone(), |group, name| group.child(name))?;
        if !inner.exists() {
            return Ok(());
        }
        inner.kill_within(PATIENCE)?;
        // Not `Group::remove`: the job's own group may be empty, and stays. And once: what the kernel is not done with is
        // removed when this is asked again.
        remove_with_descendants(&self.in_version_2()?.join(&started.path))
    }

    /// Where the group of the innermost command is that a process belongs to, from this job's group on, which it is itself if
    /// it belongs to none.
    fn command_of(&self, pid: i32) -> Result<PathBuf, CgroupError> {
        Ok(innermost(Origin::of(pid)?.below(self.path()).unwrap_or(Path::new(""))))
    }
}

/// The part of a path inside of a job's group that leads to the innermost of commands' groups, which come before all others.
fn innermost(path: &Path) -> PathBuf {
    let is_commands = |name: &&OsStr| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
    path.iter().take_while(is_commands).collect()
}

/// What the group of a command has for a name that begins with this process. A number alone may be given out again.
fn name_of(Identity { pid, start }: Identity) -> String {
    format!("{PREFIX}{pid}.{start}")
}

/// Makes the group of a command. An agent that was killed may have made it before the process was in there.
fn make_group(directory: &Path, name: &str) -> Result<(), CgroupError> {
    let made = || {
        // The kernel counts the groups inside as links, beside two of its own.
        if std::fs::metadata(directory)?.nlink() >= 2 + COMMANDS_MAX {
            return Err(io::Error::other(format!("{COMMANDS_MAX} commands were started already")));
        }
        Ok(())
    };
    made().map_err(refused("mkdir", directory))?;
    make_directory(&directory.join(name)).map(drop)
}

/// No job's program makes groups with this name: they are inside of a job's group.
const PREFIX: &str = "_command.";
/// Of one job on one node at a time: an MPI program has one.
const COMMANDS_MAX: u64 = 1_024;
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
        let [first, second] =
            [0, 1].map(|number| Started { path: format!("{PREFIX}{number}").into() });
        group.end(&first).unwrap();
        group.end(&first).unwrap();
        assert_eq!(group.children().unwrap().into_iter().collect::<Vec<_>>(), ["_command.1"]);
        group.end(&second).unwrap();
        assert!(job.is_dir());
    }

    // Goal: one that another has started ends alone, and with that one. Method: directories in the place of the kernel's groups.
    #[test]
    fn a_command_of_a_command_ends_alone_and_with_that_one() {
        let (cpu, unified) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [outer, inner, deepest] = [1, 2, 3].map(|pid| name_of(Identity { pid, start: 7 }));
        let made = unified.path().join("keeptime/n1/r1").join(&outer).join(&inner);
        std::fs::create_dir_all(made.join(deepest)).unwrap();
        std::fs::write(unified.path().join("cgroup.controllers"), "").unwrap();
        let unified = V2::at(unified.path(), 0).unwrap();
        let all = Hierarchies::of(Some(V1::at(cpu.path())), None, Some(unified)).unwrap();
        let job = all.group("keeptime/n1/r1").unwrap();
        job.end(&Started { path: Path::new(&outer).join(&inner) }).unwrap();
        assert!(!made.exists() && made.parent().unwrap().is_dir());
        job.end(&Started { path: outer.into() }).unwrap();
        assert!(job.children().unwrap().is_empty() && job.exists());
    }

    #[test]
    fn a_process_belongs_to_the_innermost_command() {
        let [name, later] = [7, 8].map(|start| name_of(Identity { pid: 1, start }));
        assert_ne!(name, later, "a number that is given out again is another process");
        let found = |path| innermost(Path::new(path)).to_str().unwrap().to_owned();
        assert_eq!(found("_command.1.7/_command.2.7/made/_command.3"), "_command.1.7/_command.2.7");
        assert_eq!(["", "made/_command.1.7", "_borrowed.0"].map(found), ["", "", ""]);
    }
}
