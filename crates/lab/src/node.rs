//! Process 1 of a node: makes its part of the node, then buries the dead for ever.

use crate::error::LabError;
use crate::hardware;
use keeptime_linux::link::{self, LOOPBACK, Network};
use keeptime_linux::netlink::Socket;
use keeptime_linux::netns;
use keeptime_linux::syscall::SyscallError;
use keeptime_linux::tc::{self, Op};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::BitsPerSecond;
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Everything that a node has of its own.
pub const NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWNET
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWPID);

/// What one node is.
#[derive(Debug, Clone)]
pub struct NodePlan {
    pub name: Name,
    pub address: Ipv4Addr,
    pub network: Network,
    pub rate: BitsPerSecond,
    /// The file that is its /etc/hosts.
    pub hosts: PathBuf,
    /// Directories that stay where they are although their parents become the node's own.
    pub kept: Vec<PathBuf>,
}

/// What process 1 tells the holder, as one line.
#[derive(Debug, Serialize, Deserialize)]
pub enum Told {
    /// The node is complete, but for these.
    Complete { missing: Vec<String> },
    /// It is not.
    Failed { reason: String },
}

/// Runs as process 1 of the node: prepares, waits until the holder says that the cable is plugged,
/// connects, tells, and stays.
pub fn run(plan: &NodePlan, holder: UnixStream) -> i32 {
    let told = match prepare_and_connect(plan, &holder) {
        Ok(missing) => Told::Complete { missing },
        Err(error) => Told::Failed { reason: format!("{}: {}", plan.name, chain(&error)) },
    };
    let is_complete = matches!(told, Told::Complete { .. });
    if tell(&holder, &told).is_err() || !is_complete {
        return 1;
    }
    drop(holder);
    // Where the user was can be unmounted.
    let _ = std::env::set_current_dir("/");
    bury_the_dead()
}

/// One line to the other side.
pub fn tell<T: Serialize>(to: &UnixStream, message: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    (&mut &*to).write_all(&line)
}

/// One line from the other side; an error of the kind `UnexpectedEof` if it has gone.
pub fn hear<T: serde::de::DeserializeOwned>(from: &UnixStream) -> std::io::Result<T> {
    let mut line = String::new();
    if BufReader::new(from).read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

fn prepare_and_connect(plan: &NodePlan, holder: &UnixStream) -> Result<Vec<String>, LabError> {
    netns::die_with_parent()?;
    let mut missing = Vec::new();
    nix::unistd::sethostname(plan.name.as_str())
        .map_err(SyscallError::of("sethostname", plan.name.as_str()))?;
    own_mounts(plan, &mut missing)?;
    without_ipv6();
    let hear = hear::<()>(holder);
    hear.map_err(LabError::file("read", Path::new("what the holder tells")))?;
    connect(plan)?;
    Ok(missing)
}

/// The network as seen from the node: loopback, and the card with its address and rate.
fn connect(plan: &NodePlan) -> Result<(), LabError> {
    let mut socket = Socket::open()?;
    let card = hardware::NODE_IFINDEX;
    socket.batch(&[
        link::set_up(LOOPBACK),
        link::add_address(card, plan.address, plan.network.prefix),
        link::set_segment_max(card, hardware::segment_max(plan.rate)),
        link::set_up(card),
        link::add_route(card, plan.network, plan.address, CONGESTION_CONTROL),
    ])?;
    send_whole_segments(hardware::segment_max(plan.rate));
    let shaper = hardware::network_card(plan.rate);
    tc::apply(&mut socket, &shaper.place(), &[Op::SetShaper(shaper)])?;
    Ok(())
}

/// TCP cuts what it gives the card down to a millisecond of the connection's own rate: with a dozen
/// connections on a link of 100 Mbit/s to two frames each. Every packet costs the machine, which has
/// to be all nodes, cards and switches at once, so connections here fill what the card takes. Where
/// this cannot be set, networks cost more CPU.
fn send_whole_segments(most: u32) {
    let frames = most / hardware::MTU;
    let _ = std::fs::write("/proc/sys/net/ipv4/tcp_min_tso_segs", frames.to_string());
}

/// IPv6 would send its own packets on every link. Where it cannot be switched off, it stays.
pub fn without_ipv6() {
    for interface in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1");
    }
}

/// Own /tmp, /dev/shm, /proc, /sys and /etc/hosts. What the machine mounts or unmounts later is
/// seen on the node; nothing that the node mounts is seen on the machine.
fn own_mounts(plan: &NodePlan, missing: &mut Vec<String>) -> Result<(), LabError> {
    mount_at(None, "/", None, MsFlags::MS_REC | MsFlags::MS_SLAVE, None)?;
    let kept = Kept::open(plan.kept.iter().cloned());
    for place in OWN_DIRECTORIES {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount_at(Some("tmpfs"), place, Some("tmpfs"), flags, Some("mode=1777"))?;
    }
    kept.bind()?;
    let mut or_missing = |what: &str, done: Result<(), LabError>| {
        if let Err(error) = done {
            missing.push(format!("{}: {what}: {}", plan.name, chain(&error)));
        }
    };
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    or_missing("own /proc", mount_at(Some("proc"), "/proc", Some("proc"), flags, None));
    or_missing("own /sys", own_sys(flags));
    let hosts = plan.hosts.to_string_lossy().into_owned();
    or_missing(
        "own /etc/hosts",
        mount_at(Some(&hosts), "/etc/hosts", None, MsFlags::MS_BIND, None),
    );
    Ok(())
}

/// /sys/class/net shows the interfaces of the namespace in which sysfs was mounted: MPI libraries
/// look there. What is mounted inside of /sys is taken along.
fn own_sys(flags: MsFlags) -> Result<(), LabError> {
    let inside = ["/sys/fs/cgroup", "/sys/fs/bpf"].map(PathBuf::from);
    let kept = Kept::open(inside.into_iter().filter(|place| is_mounted(place)));
    mount_at(Some("sysfs"), "/sys", Some("sysfs"), flags, None)?;
    kept.bind()
}

fn is_mounted(place: &Path) -> bool {
    // Other mounts have whatever names their owners gave them.
    let bytes = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.lines().any(|line| line.split(' ').nth(4).map(Path::new) == Some(place))
}

/// Directories that are opened before something is mounted over their parents, and put back to
/// their places after.
struct Kept(Vec<(PathBuf, File)>);

impl Kept {
    fn open(directories: impl Iterator<Item = PathBuf>) -> Self {
        let open = |path: PathBuf| {
            let file = File::options().read(true).custom_flags(O_PATH).open(&path).ok()?;
            Some((path, file))
        };
        Self(directories.filter_map(open).collect())
    }

    fn bind(&self) -> Result<(), LabError> {
        for (path, file) in &self.0 {
            std::fs::create_dir_all(path).map_err(LabError::file("mkdir", path))?;
            let source = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount_at(Some(&source), &path.to_string_lossy(), None, flags, None)?;
        }
        Ok(())
    }
}

/// Of `wanted`, those that a node's own directories would hide, each once.
pub fn kept_directories(wanted: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let hidden = |path: &PathBuf| {
        OWN_DIRECTORIES.iter().any(|own| path.starts_with(own) && path != Path::new(own))
    };
    let mut wanted: Vec<_> = wanted.into_iter().filter(hidden).collect();
    wanted.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in wanted {
        // Sorted: a directory comes right before what is inside.
        if !kept.iter().any(|outer| path.starts_with(outer)) {
            kept.push(path);
        }
    }
    kept
}

fn mount_at(
    source: Option<&str>,
    place: &str,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<(), LabError> {
    mount(source, place, kind, flags, options)
        .map_err(SyscallError::of("mount", format!("{} on {place}", source.unwrap_or("none"))))?;
    Ok(())
}

/// Orphans of the node become children of process 1, which must wait for them.
fn bury_the_dead() -> i32 {
    let mut child_ended = SigSet::empty();
    child_ended.add(Signal::SIGCHLD);
    if child_ended.thread_block().is_err() {
        return 1;
    }
    loop {
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)),
                       Ok(status) if status != WaitStatus::StillAlive)
        {}
        let _ = child_ended.wait();
    }
}

/// A lab must not depend on the machine's default: bbr makes baselines erratic on these links.
pub const CONGESTION_CONTROL: &str = "cubic";
const OWN_DIRECTORIES: [&str; 2] = ["/tmp", "/dev/shm"];
/// A handle on the directory itself, without opening it (fcntl.h: the same on all but a few
/// architectures).
const O_PATH: i32 = nix::fcntl::OFlag::O_PATH.bits();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_be_hidden_is_kept_and_only_once() {
        let wanted = ["/tmp/b/c", "/usr/bin", "/tmp/b", "/tmp", "/dev/shm/x", "/tmpx", "/tmp/b"];
        let kept = kept_directories(wanted.map(PathBuf::from));
        assert_eq!(kept, ["/dev/shm/x", "/tmp/b"].map(PathBuf::from));
    }
}
