//! Processes and their connections, as the kernel lists them.

use keeptime_linux::process::{Identity, Stat};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// What whoever looks at another's connections needs, since their descriptors are in that user's directory, and say what
/// they are to whom may trace it.
const MAY_SEE: &str =
    "the broker needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (CapabilityBoundingSet= of its unit)";

/// A process that runs when this is made, and that may be hidden: `/proc` need not show those of other users
/// (`hidepid`, systemd's `ProtectProc`). Of such only its number is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    id: i32,
    /// Which of those that had this number, where it is shown.
    process: Option<Identity>,
}

impl Life {
    /// The one that has the number `id` now.
    pub fn of(id: i32) -> Self {
        Self { id, process: process(id) }
    }

    /// Whether it may not have ended. A hidden one counts as running as long as anybody has its number.
    pub fn may_run(self) -> bool {
        self.process.map_or_else(|| exists(self.id), |process| process.is_alive())
    }
}

/// Whether any process, hidden or not, has the number `id`.
fn exists(id: i32) -> bool {
    // One that may not be sent a signal is there as well.
    id > 0 && kill(Pid::from_raw(id), None::<Signal>) != Err(Errno::ESRCH)
}

/// The process that has the number `id` now; nothing where it is hidden.
pub(crate) fn process(id: i32) -> Option<Identity> {
    Identity::of(id).ok().flatten()
}

/// What `parent` has started and what still runs.
pub(crate) fn children(parent: i32) -> Vec<Identity> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|pid| {
            let stat = stat(pid)?;
            (stat.parent == parent).then_some(Identity { pid, start: stat.start })
        })
        .collect()
}

/// What else a master has started that started `process`, and what still runs. That is a master which is of the same program;
/// whatever else starts `process` may have started others that have nothing to do with it. Nothing where `/proc` does
/// not show them.
pub(crate) fn siblings(process: i32) -> Vec<Life> {
    let Some(Stat { parent, name, .. }) = stat(process) else { return Vec::new() };
    let is_of_program = |id| stat(id).is_some_and(|stat| stat.name == name);
    if !is_of_program(parent) {
        return Vec::new();
    }
    let others = children(parent).into_iter();
    let others = others.filter(|other| other.pid != process && is_of_program(other.pid));
    others.map(|other| Life { id: other.pid, process: Some(other) }).collect()
}

/// The words that a process shows of itself: none for a moment while it becomes another program, as HAProxy's master does in
/// every reload.
pub(crate) fn title(id: i32) -> String {
    let words = fs::read(directory(id).join("cmdline"));
    String::from_utf8_lossy(&words.unwrap_or_default()).replace('\0', " ")
}

/// The far ends of all TCP connections that `processes` have open. One that has ended has none.
///
/// # Errors
/// If what one that runs has open may not be seen.
pub(crate) fn connected_to(processes: &[Identity]) -> io::Result<Vec<SocketAddr>> {
    let mut own = BTreeSet::new();
    for process in processes {
        own.extend(sockets(*process)?);
    }
    let tables = tables(processes)?;
    let lines = tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(established);
    Ok(lines.filter(|(_, inode)| own.contains(inode)).map(|(address, _)| address).collect())
}

fn stat(id: i32) -> Option<Stat> {
    Stat::of(id).ok().flatten()
}

/// The inodes of a process' sockets.
fn sockets(process: Identity) -> io::Result<Vec<u64>> {
    let directory = directory(process.pid).join("fd");
    inodes(&directory).or_else(|error| {
        // The directory of one that has ended is root's until its parent has waited for it.
        if !process.is_alive() {
            return Ok(Vec::new());
        }
        let shown = directory.display();
        let what = match error.kind() {
            ErrorKind::PermissionDenied => format!("{shown}: {error}: {MAY_SEE}"),
            _ => format!("{shown}: {error}"),
        };
        Err(io::Error::new(error.kind(), what))
    })
}

fn inodes(directory: &Path) -> io::Result<Vec<u64>> {
    let inode = |link: &Path| {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
    };
    let mut inodes = Vec::new();
    for entry in fs::read_dir(directory)? {
        match fs::read_link(entry?.path()) {
            Ok(link) => inodes.extend(inode(&link)),
            // It was closed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(inodes)
}

/// The TCP connections of the network that `processes` are in, as the first of them that runs sees it.
fn tables(processes: &[Identity]) -> io::Result<Vec<String>> {
    for process in processes {
        let network = directory(process.pid).join("net");
        match fs::read_to_string(network.join("tcp")) {
            // There need not be a version 6.
            Ok(table) => {
                let six = fs::read_to_string(network.join("tcp6"));
                return Ok([Some(table), six.ok()].into_iter().flatten().collect());
            }
            Err(_) if !process.is_alive() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Vec::new())
}

fn directory(id: i32) -> PathBuf {
    Path::new("/proc").join(id.to_string())
}

/// The far end and the inode of an established connection, from a line of `/proc/net/tcp`.
fn established(line: &str) -> Option<(SocketAddr, u64)> {
    const ESTABLISHED: &str = "01";
    let fields: Vec<_> = line.split_whitespace().collect();
    if *fields.get(3)? != ESTABLISHED {
        return None;
    }
    let (address, port) = fields.get(2)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(ip(address)?, port), fields.get(9)?.parse().ok()?))
}

/// Words of 32 bits in the machine's order, in hexadecimal.
fn ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let mut bytes = [0; 16];
    for (at, four) in bytes.chunks_mut(4).enumerate() {
        four.copy_from_slice(&word(at)?);
    }
    let address = Ipv6Addr::from(bytes);
    Some(address.to_ipv4_mapped().map_or(address.into(), IpAddr::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn own_connections_are_found_and_gone_ones_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let own = Identity::own().unwrap();
        let count = || connected_to(&[own]).unwrap().iter().filter(|to| **to == address).count();
        assert_eq!(count(), 0);
        let stream = TcpStream::connect(address).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        assert_eq!(count(), 1);
        drop(stream);
        assert_eq!(count(), 0);
    }

    // Goal: what cannot be seen is not taken for nothing, and what has gone meanwhile is. Method: a directory like that of
    // descriptors, with one that cannot be read, and a process that never was.
    #[test]
    fn what_a_descriptor_is_has_to_be_known() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, to) in [("3", "socket:[77]"), ("4", "/dev/null"), ("5", "pipe:[78]")] {
            std::os::unix::fs::symlink(to, at(name)).unwrap();
        }
        assert_eq!(inodes(directory.path()).unwrap(), [77]);
        fs::write(at("6"), "").unwrap();
        assert_eq!(inodes(directory.path()).unwrap_err().kind(), ErrorKind::InvalidInput);
        let gone = Identity { start: 1, pid: i32::MAX };
        assert_eq!(connected_to(&[gone]).unwrap(), []);
        // Nor does it hide what others have.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = Identity::own().unwrap();
        let found = connected_to(&[gone, own]).unwrap();
        assert!(found.contains(&listener.local_addr().unwrap()));
    }

    #[test]
    fn a_child_is_found_as_long_as_it_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (id, own) = (child.id() as i32, std::process::id() as i32);
        let found = || children(own).iter().any(|process| process.pid == id);
        assert!(found());
        // It has no title for a moment while it becomes the program.
        while title(id).is_empty() {
            std::thread::yield_now();
        }
        assert!(title(id).starts_with("sleep 60"));
        let (seen, hidden) = (Life::of(id), Life { id, process: None });
        assert!(seen.process.is_some() && seen.may_run() && hidden.may_run());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process(id), None);
        assert!(!seen.may_run() && !hidden.may_run());
        // Nor is one what it was, once another has its number.
        let own = Identity::own().unwrap();
        let former = Identity { start: own.start - 1, ..own };
        assert!(Life::of(own.pid).may_run());
        assert!(!Life { id: own.pid, process: Some(former) }.may_run());
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_passed_over(line in "\\PC{0,120}", hex in "[0-9A-F]{0,40}") {
            let _ = (established(&line), ip(&hex));
        }
    }
}
