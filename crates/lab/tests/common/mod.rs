//! A lab for one test, and what may not be left of it.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_lab::{Exec, Lab, LabState, Labs, Spec};
use keeptime_linux::testing::{can, skip};
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const HAND: &str = env!("CARGO_BIN_EXE_keeptime-lab-hand");
pub const RATE: BitsPerSecond = BitsPerSecond::from_mbit(200);

/// Names and a runtime directory that no other test has. Whatever is left at the end goes.
pub struct World {
    pub labs: Labs,
    directory: tempfile::TempDir,
    before: Host,
}

/// What the machine has that no lab may change.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    interfaces: String,
    qdiscs: String,
}

impl World {
    /// Nothing where labs cannot be made at all; the reason is printed.
    pub fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skip(&["lab".to_owned()], "not root");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let labs = Labs::of_this_user().in_directory(directory.path().join("run"));
        let labs = labs.held_by([HAND, "lab-holder"]);
        Some(Self { labs, directory, before: Host::now() })
    }

    /// For what is measured: nothing where the machine cannot show it either.
    pub fn to_measure() -> Option<Self> {
        if can(&["speed"]) { Self::new() } else { None }
    }

    pub fn name(&self, tag: &str) -> Name {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // No name is the beginning of another.
        format!("{tag}-{}-{count:03}", std::process::id()).parse().unwrap()
    }

    pub fn runtime(&self) -> &str {
        self.labs.runtime().to_str().unwrap()
    }

    /// A small lab: tests run beside each other on two CPUs.
    pub fn up(&self, nodes: u32, percent: u32) -> Lab {
        let cpu = CpuPpm::from_percent(percent);
        let spec = Spec::star(self.name("t"), nodes, RATE, cpu).unwrap();
        let start = Instant::now();
        let lab = self.labs.up(&spec).unwrap();
        println!("up: {nodes} nodes in {:?}", start.elapsed());
        assert_eq!(lab.status().state, LabState::Up);
        lab
    }

    /// How many processes had to be ended by themselves.
    pub fn down(&self, lab: &Lab) -> usize {
        let start = Instant::now();
        let report = self.labs.down(lab.name()).unwrap();
        println!("down: {:?}, {} stragglers", start.elapsed(), report.stragglers);
        self.nothing_left(lab.name());
        report.stragglers
    }

    /// No process, group, mount or file, and the machine as it was.
    pub fn nothing_left(&self, name: &Name) {
        let left = leftovers(self.labs.runtime(), name);
        assert!(left.is_empty(), "left of {name}: {left:?}");
        assert_eq!(Host::now(), self.before, "the machine has changed");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let names = [self.labs.list(), self.labs.ended()].into_iter().flatten().flatten();
        names.for_each(|name| drop(self.labs.down(&name)));
    }
}

impl Host {
    fn now() -> Self {
        let names = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
        let names: Vec<_> =
            names.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        let qdiscs = Command::new("tc").args(["qdisc", "show"]).output();
        let qdiscs = qdiscs.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        Self { interfaces: names.join(" "), qdiscs: qdiscs.unwrap_or_default() }
    }
}

/// Everything on this machine that carries the lab's name.
pub fn leftovers(runtime: &Path, name: &Name) -> Vec<String> {
    let mut left = Vec::new();
    let directory = runtime.join("labs").join(name.as_str());
    if directory.exists() {
        left.push(directory.display().to_string());
    }
    for entry in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        for root in [PathBuf::from("/sys/fs/cgroup"), entry.path()] {
            let group = root.join("keeptime").join(format!("_lab.{name}"));
            if group.exists() {
                left.push(group.display().to_string());
            }
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    left.extend(mounts.lines().filter(|l| l.contains(name.as_str())).map(str::to_owned));
    left.extend(processes_of(name).into_iter().map(|pid| format!("process {pid}")));
    left
}

/// Processes whose command line or environment names the lab: holder, nodes, programs.
pub fn processes_of(name: &Name) -> Vec<i32> {
    let has_name = |path: PathBuf| {
        let content = std::fs::read(path).unwrap_or_default();
        content.windows(name.as_str().len()).any(|window| window == name.as_str().as_bytes())
    };
    let own = std::process::id() as i32;
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let process = PathBuf::from(format!("/proc/{pid}"));
            has_name(process.join("cmdline")) || has_name(process.join("environ"))
        })
        .collect()
}

/// Waits for a condition, for so long that no busy machine makes it wait in vain.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command on a node: its exit code and what it wrote.
pub fn output(lab: &Lab, exec: Exec) -> (Option<i32>, String) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let copy: OwnedFd = write.try_clone().unwrap();
    // Not inherited by what runs, or the end would never be seen.
    for fd in [&read, &write, &copy] {
        let flag = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
        nix::fcntl::fcntl(fd, flag).unwrap();
    }
    let child = lab.spawn(exec.with_stdio([None, Some(write), Some(copy)])).unwrap();
    let text = std::io::read_to_string(std::fs::File::from(read)).unwrap();
    (child.wait().unwrap().code(), text.trim_end().to_owned())
}
