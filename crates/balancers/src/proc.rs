//! Processes and their connections, as the kernel lists them.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// One life of a process number: numbers are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Process {
    pub id: u32,
    /// Ticks since the machine started.
    pub started: u64,
}

impl Process {
    /// Whether it has not ended.
    pub fn runs(self) -> bool {
        process(self.id) == Some(self)
    }
}

/// A process that runs when this is made, and that may be hidden: `/proc` need not show those of other users
/// (`hidepid`, systemd's `ProtectProc`). Of such only its number is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    id: u32,
    /// As in [`Process`], where it is shown.
    started: Option<u64>,
}

impl Life {
    /// The one that has the number `id` now.
    pub fn of(id: u32) -> Self {
        Self { id, started: process(id).map(|process| process.started) }
    }

    /// Whether it may not have ended. A hidden one counts as running as long as anybody has its number.
    pub fn may_run(self) -> bool {
        match self.started {
            Some(started) => Process { id: self.id, started }.runs(),
            None => exists(self.id),
        }
    }
}

/// Whether any process, hidden or not, has the number `id`.
fn exists(id: u32) -> bool {
    let number = i32::try_from(id).ok().filter(|number| *number > 0);
    // One that may not be sent a signal is there as well.
    number.is_some_and(|number| kill(Pid::from_raw(number), None::<Signal>) != Err(Errno::ESRCH))
}

/// Process `id` as it is now.
pub(crate) fn process(id: u32) -> Option<Process> {
    let stat = stat(id)?;
    (stat.state != 'Z').then_some(Process { id, started: stat.started })
}

/// What `parent` has started and what still runs.
pub(crate) fn children(parent: u32) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|id| {
            let stat = stat(id)?;
            let lives = stat.parent == parent && stat.state != 'Z';
            lives.then_some(Process { id, started: stat.started })
        })
        .collect()
}

/// What else a master has started that started `process`, and what still runs. That is a master which is of the same program;
/// whatever else starts `process` may have started others that have nothing to do with it. Nothing where `/proc` does
/// not show them.
pub(crate) fn siblings(process: u32) -> Vec<Life> {
    let Some(Stat { parent, name, .. }) = stat(process) else { return Vec::new() };
    let is_of_program = |id| stat(id).is_some_and(|stat| stat.name == name);
    if !is_of_program(parent) {
        return Vec::new();
    }
    let others = children(parent).into_iter();
    let others = others.filter(|other| other.id != process && is_of_program(other.id));
    others.map(|Process { id, started }| Life { id, started: Some(started) }).collect()
}

/// The words that a process shows of itself: none for a moment while it becomes another program, as HAProxy's master does in
/// every reload.
pub(crate) fn title(id: u32) -> String {
    let words = fs::read(Path::new("/proc").join(id.to_string()).join("cmdline"));
    String::from_utf8_lossy(&words.unwrap_or_default()).replace('\0', " ")
}

/// The far ends of all TCP connections that `processes` have open.
pub(crate) fn connected_to(processes: &[Process]) -> Vec<SocketAddr> {
    let Some(first) = processes.first() else { return Vec::new() };
    let own: BTreeSet<u64> = processes.iter().flat_map(|process| sockets(process.id)).collect();
    let tables = ["tcp", "tcp6"].into_iter().filter_map(|table| {
        let path = Path::new("/proc").join(first.id.to_string()).join("net").join(table);
        fs::read_to_string(path).ok()
    });
    let tables: Vec<String> = tables.collect();
    let lines = tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(established);
    lines.filter(|(_, inode)| own.contains(inode)).map(|(address, _)| address).collect()
}

struct Stat {
    /// Its program's, up to 15 bytes. It is never empty, also while the process becomes that program.
    name: String,
    state: char,
    parent: u32,
    started: u64,
}

fn stat(id: u32) -> Option<Stat> {
    // A name need not be UTF-8; what is read here is.
    let stat = fs::read(Path::new("/proc").join(id.to_string()).join("stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    // The name, in brackets, may itself have brackets and spaces.
    let (before, rest) = text.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    Some(Stat {
        name: name.into(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// The inodes of a process' sockets.
fn sockets(id: u32) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(Path::new("/proc").join(id.to_string()).join("fd")) else {
        return Vec::new();
    };
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links
        .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok())
        .collect()
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
        let own = process(std::process::id()).unwrap();
        let count = || connected_to(&[own]).iter().filter(|to| **to == address).count();
        assert_eq!(count(), 0);
        let stream = TcpStream::connect(address).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        assert_eq!(count(), 1);
        drop(stream);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_child_is_found_as_long_as_it_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id();
        let found = || children(std::process::id()).iter().any(|process| process.id == id);
        assert!(found());
        // It has no title for a moment while it becomes the program.
        while title(child.id()).is_empty() {
            std::thread::yield_now();
        }
        assert!(title(child.id()).starts_with("sleep 60"));
        let (seen, hidden) = (Life::of(id), Life { id, started: None });
        assert!(seen.started.is_some() && seen.may_run() && hidden.may_run());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process(child.id()), None);
        assert!(!seen.may_run() && !hidden.may_run());
        // Nor is its number what it was, once another process has it.
        let own = process(std::process::id()).unwrap();
        assert!(own.runs() && !Process { started: own.started + 1, ..own }.runs());
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_passed_over(line in "\\PC{0,120}", hex in "[0-9A-F]{0,40}") {
            let _ = (established(&line), ip(&hex));
        }
    }
}
