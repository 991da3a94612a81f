//! Control groups as the kernel shows them: directories with files.

use super::{CgroupError, refused};
use crate::process::read_text;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

/// A directory and all below it, parents first; nothing if it is away.
pub(crate) fn with_descendants(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(next) = open.pop() {
        if let Some(inside) = subgroups(&next)? {
            open.extend(inside);
            found.push(next);
        }
    }
    Ok(found)
}

/// The directories of the groups right inside of one; nothing if it is away.
pub(super) fn subgroups(directory: &Path) -> Result<Option<Vec<PathBuf>>, CgroupError> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(refused("open", directory))?,
    };
    let groups = entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(Some(groups.map(|entry| entry.path()).collect()))
}

/// The processes in a group and in those inside: 0 stands for each of another process namespace. None if it is away.
pub(crate) fn processes_below(directory: &Path) -> Result<Vec<i32>, CgroupError> {
    let mut pids = Vec::new();
    for group in with_descendants(directory)? {
        match read(&group.join("cgroup.procs")) {
            Err(error) if error.is_away() || has_threads_alone(&error) => {}
            text => pids.extend(text?.lines().filter_map(|line| line.parse::<i32>().ok())),
        }
    }
    Ok(pids)
}

/// A threaded group of version 2 does not name processes: the one above it in which such groups begin names all of them
/// (cgroup-v2.rst, "Threads").
fn has_threads_alone(error: &CgroupError) -> bool {
    matches!(error, CgroupError::Refused { source, .. }
        if source.raw_os_error() == Some(libc::EOPNOTSUPP))
}

/// Makes one group. Whether it was not there before.
///
/// Everybody may look into it, as into those that systemd makes, whatever the umask of the agent's unit: its files are for
/// the secrets in that unit's own directories, and what a group uses is for monitoring, which runs as other users.
pub(crate) fn make_directory(directory: &Path) -> Result<bool, CgroupError> {
    match std::fs::create_dir(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(refused("mkdir", directory)(error)),
    }
    let mode = Permissions::from_mode(DIRECTORY_MODE);
    std::fs::set_permissions(directory, mode).map_err(refused("chmod", directory))?;
    Ok(true)
}

/// Makes a group inside of `directory` with a name that no other has: `prefix` and a number below `most`. The name; nothing
/// where all are taken.
pub(crate) fn make_numbered(
    directory: &Path,
    prefix: &str,
    most: usize,
) -> Result<Option<String>, CgroupError> {
    // The kernel counts the groups inside as links, beside two of its own.
    let links = std::fs::metadata(directory).map_err(refused("stat", directory))?.nlink();
    let there = links.saturating_sub(2) as usize;
    first_made(there, most, |number| {
        let name = format!("{prefix}{number}");
        Ok(make_directory(&directory.join(&name))?.then_some(name))
    })
}

/// What is made of a number below `most` first. Where so many are there, these have the lowest as a rule: they are tried last.
fn first_made<T>(
    there: usize,
    most: usize,
    mut make: impl FnMut(usize) -> Result<Option<T>, CgroupError>,
) -> Result<Option<T>, CgroupError> {
    let numbers = (0..most).map(|number| (there + number) % most);
    numbers.map(|number| make(number).transpose()).find_map(|made| made).transpose()
}

/// Removes one group, whose groups inside are removed; nothing happens if it is away.
pub(crate) fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(refused("rmdir", directory)(error))
        }
        _ => Ok(()),
    }
}

/// Removes a group with those inside; nothing happens if it is away.
pub(crate) fn remove_with_descendants(directory: &Path) -> Result<(), CgroupError> {
    with_descendants(directory)?.iter().rev().try_for_each(|group| remove_directory(group))
}

/// Tries again while somebody else changes the same groups, or processes are still ending.
pub(crate) fn retry(action: impl FnMut() -> Result<(), CgroupError>) -> Result<(), CgroupError> {
    retry_within(RETRY_LIMIT, action)
}

/// As [`retry`], for those who have not that much time. Tries once at least.
pub(crate) fn retry_within(
    patience: Duration,
    mut action: impl FnMut() -> Result<(), CgroupError>,
) -> Result<(), CgroupError> {
    for _ in 0..patience.as_millis() / POLL_SPAN.as_millis() {
        match action() {
            Err(error) if error.is_retryable() => std::thread::sleep(POLL_SPAN),
            done => return done,
        }
    }
    action()
}

/// Moves a process into the group with this directory.
pub(crate) fn move_into(directory: &Path, pid: i32) -> Result<(), CgroupError> {
    write(&directory.join("cgroup.procs"), pid)
}

pub(crate) fn read(path: &Path) -> Result<String, CgroupError> {
    read_text(path).map_err(refused("read", path))
}

pub(crate) fn write(path: &Path, value: impl fmt::Display) -> Result<(), CgroupError> {
    // Without O_CREAT, which a group's files never need.
    let write = |text: String| {
        let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
        io::Write::write_all(&mut file, text.as_bytes())
    };
    write(value.to_string()).map_err(refused("write", path))
}

/// Writes `value` where the kernel's own `default` stands. What is neither is an operator's.
pub(super) fn write_over(default: u64, path: &Path, value: u64) -> Result<(), CgroupError> {
    match parse_number(path, &read(path)?)? == default {
        true => write(path, value),
        false => Ok(()),
    }
}

/// What `cpu.stat` of the group in `directory` says of `key`; nothing if it does not.
pub(super) fn cpu_stat(directory: &Path, key: &str) -> Result<Option<u64>, CgroupError> {
    let path = directory.join("cpu.stat");
    let text = read(&path)?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.map(|value| parse_number(&path, value)).transpose()
}

pub(crate) fn parse_number(path: &Path, text: &str) -> Result<u64, CgroupError> {
    let odd = |_| refused("read", path)(io::Error::from(io::ErrorKind::InvalidData));
    text.trim().parse().map_err(odd)
}

/// Its owner changes it, everybody reads it.
const DIRECTORY_MODE: u32 = 0o755;
/// Between two looks at processes that are ending, or two tries.
pub(super) const POLL_SPAN: Duration = Duration::from_millis(5);
/// Many times what an ending process needs.
pub(super) const RETRY_LIMIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::{Mode, umask};
    use std::collections::BTreeSet;

    // Goal: a thousand processes are bound with about as many calls, however many are there. Method: a set in the place of the
    // kernel's groups.
    #[test]
    fn a_name_that_is_free_is_found_at_once() {
        let (mut taken, mut tries) = (BTreeSet::new(), 0);
        let mut next = |taken: &mut BTreeSet<usize>| {
            let there = taken.len();
            let make = |number| {
                tries += 1;
                Ok(taken.insert(number).then_some(number))
            };
            first_made(there, 1_000, make).unwrap()
        };
        for number in 0..1_000 {
            assert_eq!(next(&mut taken), Some(number));
        }
        assert_eq!(next(&mut taken), None, "all are taken");
        taken.remove(&7);
        assert_eq!(next(&mut taken), Some(7), "whichever it is");
        assert!(tries < 4_000, "{tries}");
    }

    // Goal: who watches a node sees its jobs. Method: the umask of the agent's unit.
    #[test]
    fn everybody_may_look_into_a_group_whatever_the_umask() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("keeptime");
        let former = umask(Mode::from_bits_truncate(0o077));
        let made = make_directory(&group);
        umask(former);
        assert!(made.unwrap());
        let mode = || std::fs::metadata(&group).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o755);
        // What somebody has made is as they want it.
        std::fs::set_permissions(&group, Permissions::from_mode(0o750)).unwrap();
        assert!(!make_directory(&group).unwrap());
        assert_eq!(mode(), 0o750);
    }
}
