//! Processes and their connections, as the kernel lists them.

use keeptime_linux::process::{Identity, Stat};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

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
    let words = fs::read(Path::new("/proc").join(id.to_string()).join("cmdline"));
    String::from_utf8_lossy(&words.unwrap_or_default()).replace('\0', " ")
}

/// The far ends of all TCP connections that `processes` have open.
pub(crate) fn connected_to(processes: &[Identity]) -> Vec<SocketAddr> {
    let Some(first) = processes.first() else { return Vec::new() };
    let own: BTreeSet<u64> = processes.iter().flat_map(|process| sockets(process.pid)).collect();
    let tables = ["tcp", "tcp6"].into_iter().filter_map(|table| {
        let path = Path::new("/proc").join(first.pid.to_string()).join("net").join(table);
        fs::read_to_string(path).ok()
    });
    let tables: Vec<String> = tables.collect();
    let lines = tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(established);
    lines.filter(|(_, inode)| own.contains(inode)).map(|(address, _)| address).collect()
}

fn stat(id: i32) -> Option<Stat> {
    Stat::of(id).ok().flatten()
}

/// The inodes of a process' sockets.
fn sockets(id: i32) -> Vec<u64> {
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
        let own = Identity::own().unwrap();
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
