//! One handle for the network, CPU and disk of several nodes, on a real lab: what every kernel is told
//! for it, what its job then has, a change, and nothing left of it when it is given back.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::wire::JobStatus;
use keeptime_linux::cgroup::{Group, Hierarchies};
use keeptime_linux::deadline;
use keeptime_linux::disk::Throttle;
use keeptime_linux::tc::TREE_MAJOR;
use keeptime_linux::testing::skip;
use keeptime_model::assignment::{CpuMechanism, TrafficClass};
use keeptime_model::disk::{DiskDirection, DiskId, DiskRates};
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, Nanos};
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use world::{KEEPTIME, PATIENCE, World, wait};

const NODES: [&str; 2] = ["n1", "n2"];
/// How long rates are measured.
const LOOK: Duration = Duration::from_secs(2);
/// What the reader reads: more than it gets through.
const VOLUME: usize = 96 << 20;

/// A command that is ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is reserved on each node.
#[derive(Clone, Copy)]
struct Rates {
    mbit: u64,
    percent: u32,
    read: u64,
    write: u64,
}

impl Rates {
    /// As the command line has it.
    fn words(self) -> Vec<String> {
        let Self { mbit, percent, read, write } = self;
        let words = format!(
            "--rate={mbit} Mbit/s|--cpu={percent} %|--period=20 ms|--read={read} MB/s|--write={write} MB/s"
        );
        words.split('|').map(str::to_owned).collect()
    }

    fn disk(self) -> DiskRates {
        rates(self.read, self.write)
    }
}

fn rates(read: u64, write: u64) -> DiskRates {
    let some = |mega_bytes| Some(BytesPerSecond::from_mega_bytes(mega_bytes));
    let reading = DiskRates::default().with(DiskDirection::Read, some(read));
    reading.with(DiskDirection::Write, some(write))
}

/// A lab whose nodes have a disk.
struct Nodes {
    world: World,
    disk: DiskId,
    throttle: Throttle,
}

impl Nodes {
    fn group(&self, node: &str) -> Group {
        let path = self.world.lab().group_path(&node.parse().unwrap()).unwrap();
        Hierarchies::discover().unwrap().group(path).unwrap()
    }

    fn job_group(&self, node: &str) -> Group {
        self.group(node).child("r1").unwrap()
    }

    fn limits(&self, group: &Group) -> Option<DiskRates> {
        self.throttle.observe(group.path()).unwrap().get(&self.disk).copied()
    }

    fn job(&self, node: &str) -> Option<JobStatus> {
        let name: Name = node.parse().unwrap();
        let status = self.world.statuses().into_iter().find(|status| status.node == name);
        status.unwrap().jobs.into_iter().next()
    }

    /// Rates of the classes that stand on a node's device for flows.
    fn class_rates(&self, node: &str) -> Vec<BitsPerSecond> {
        let classes = self.world.observed(node).classes;
        let ours = classes.into_iter().filter(|(handle, _)| handle.major == TREE_MAJOR);
        let leaves = ours.filter(|(_, seen)| !seen.is_inner && seen.class.rate == seen.class.ceil);
        leaves.map(|(_, seen)| seen.class.rate).collect()
    }

    /// Starts a shell line in the job on a node.
    fn start(&self, node: &str, line: &str) -> Program {
        let name = self.world.name.as_str();
        let words = ["lab", "exec", "--die-with-parent", "--job", "r1", name, node, "--"];
        let mut command: Command = self.world.keeptime(&words);
        command.args(["/bin/sh", "-c", line]).stdin(Stdio::null());
        Program(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Every kernel is told `rates` for the job.
    fn wait_for(&self, rates: Rates) {
        let class = BitsPerSecond::from_mbit(rates.mbit);
        for node in NODES {
            wait("the class", PATIENCE, || self.class_rates(node).contains(&class));
            let group = self.job_group(node);
            wait("the disk's rates", PATIENCE, || self.limits(&group) == Some(rates.disk()));
            wait("the share of CPU", PATIENCE, || {
                let assigned = self.job(node).map(|job| job.assignment);
                assigned.is_some_and(|assigned| {
                    assigned.cpu_ppm.get() == rates.percent * 10_000
                        && assigned.cpu_period_nanos == Some(Nanos::from_millis(20))
                })
            });
        }
    }

    /// With one process that computes, the job comes to use what is reserved of a CPU on each node: at
    /// first what computes is not under its schedule yet, and a busy machine may give less for a while.
    fn wait_for_cpu(&self, percent: u32) {
        let used = || NODES.map(|node| self.job_group(node).cpu_usage().unwrap().as_secs_f64());
        wait("the share of CPU that is reserved", PATIENCE, || {
            let (start, before) = (Instant::now(), used());
            std::thread::sleep(LOOK);
            let (after, seconds) = (used(), start.elapsed().as_secs_f64());
            let got = [0, 1].map(|at| 100.0 * (after[at] - before[at]) / seconds);
            println!("{got:.1?} % of a CPU, {percent} % are reserved");
            got.iter().all(|got| (got / f64::from(percent) - 1.0).abs() < 0.2)
        });
    }

    /// The job comes to read, write and send on each node what is reserved, when it wants more.
    fn wait_for_io(&self, expected: Rates) {
        let counted = || {
            NODES.map(|node| {
                let disk = self.job_group(node).disk_usage().unwrap();
                let disk = disk.get(&self.disk).copied().unwrap_or_default();
                let flows = self.job(node).unwrap().flows;
                let sent = flows.iter().filter(|flow| flow.flow.class == TrafficClass::Premium);
                let sent: u64 = sent.map(|flow| flow.sent_bytes.get()).sum();
                [disk.read.get(), disk.written.get(), sent]
            })
        };
        let reserved = [expected.read as f64, expected.write as f64, expected.mbit as f64 / 8.0];
        // Read, written and sent; only the first node has somebody to send to. A disk that others use gives each of
        // them its rate now and then.
        let mut left = vec![(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)];
        wait("the rates that are reserved", PATIENCE, || {
            let (start, before) = (Instant::now(), counted());
            std::thread::sleep(LOOK);
            let (after, seconds) = (counted(), start.elapsed().as_secs_f64());
            let got = |at: usize, kind: usize| {
                (after[at][kind] - before[at][kind]) as f64 / seconds / 1e6
            };
            left.retain(|(at, kind)| {
                let (got, reserved) = (got(*at, *kind), reserved[*kind]);
                println!("{}: {got:.2} MB/s, {reserved} are reserved", NODES[*at]);
                (got / reserved - 1.0).abs() >= 0.15
            });
            left.is_empty()
        });
    }
}

/// The whole disk that files of a directory are on, if they can be read and written past the page
/// cache there; otherwise why not.
fn disk_below(directory: &Path) -> Result<DiskId, String> {
    let path = directory.join("probe");
    let mut open = File::options();
    open.write(true).create(true).truncate(true).custom_flags(OFlag::O_DIRECT.bits());
    let file = open.open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let device = file.metadata().map_err(|error| error.to_string())?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let disk = DiskId { major: major as u32, minor: minor as u32 };
    match Path::new(&format!("/sys/dev/block/{disk}/queue")).exists() {
        true => Ok(disk),
        false => Err(format!("{} is not on a whole disk", directory.display())),
    }
}

#[test]
fn one_handle_has_network_cpu_and_disk_of_every_node_and_gives_all_of_it_back() {
    let place = std::env::var_os("TMPDIR").unwrap_or("/var/tmp".into());
    let place = tempfile::tempdir_in(place).unwrap();
    let disk = match disk_below(place.path()) {
        Ok(disk) => disk,
        Err(why) => return skip(&["disk".into()], &why),
    };
    let throttle = Hierarchies::discover().ok().and_then(|all| all.throttle().cloned());
    let Some(throttle) = throttle else {
        return skip(&["blkio".into()], "no blkio nor io controller is mounted");
    };
    let device = disk.to_string();
    let shape = ["--nodes", "2", "--disk", &device, "--read", "30 MB/s", "--write", "20 MB/s"];
    let Some(world) = World::of("handle", &shape, 40, None) else { return };
    let nodes = Nodes { world, disk, throttle };
    let world = &nodes.world;
    let shown = world.run(&["nodes"], 0);
    assert!(shown.contains("0 B/s of 20 MB/s written reserved"), "{shown}");

    let asked = Rates { mbit: 20, percent: 20, read: 8, write: 4 };
    let words = asked.words();
    let mut reserve = vec!["reserve", "--nodes", "n1,n2", "--pattern", "pairs", "--for", "10min"];
    reserve.extend(words.iter().map(String::as_str));
    let text = world.run(&reserve, 0);
    assert!(text.starts_with("r1 active, "), "{text}");
    for words in ["20 % of a CPU each in every 20 ms", "8 MB/s read on each", "4 MB/s written"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    nodes.wait_for(asked);
    for node in NODES {
        let rest = nodes.group(node).rest().unwrap();
        assert_eq!(nodes.limits(&rest), Some(rates(22, 16)), "all others share what is left");
    }
    let busy = NODES.map(|node| nodes.start(node, "while :; do :; done"));
    wait("both programs", PATIENCE, || {
        NODES.iter().all(|node| nodes.job(node).is_some_and(|job| !job.processes.is_empty()))
    });
    // Which it does once the agent has seen that they compute and has put a schedule on them.
    nodes.wait_for_cpu(asked.percent);
    for node in NODES {
        let carried: Vec<_> = nodes.job_group(node).pids().unwrap();
        let carried = carried.into_iter().filter_map(|pid| deadline::read(pid).unwrap());
        let carried: Vec<_> = carried.collect();
        println!("{node}: {:?}, {carried:?}", nodes.job(node).unwrap().cpu_kept_by);
        if nodes.job(node).unwrap().cpu_kept_by == Some(CpuMechanism::Deadline) {
            let [spec] = carried.as_slice() else { panic!("{carried:?}") };
            let (runtime, period) = (Nanos::from_millis(4), Nanos::from_millis(20));
            assert_eq!((spec.runtime(), spec.period()), (runtime, period));
        }
    }

    // What is not there is named, with its place and time; nothing has changed.
    let too_much = ["reserve", "--nodes", "n2", "--cpu", "5%", "--write", "17 MB/s", "--for", "1h"];
    let refused = world.run(&too_much, 1);
    assert!(refused.contains("writing at n2 lacks 1 MB/s, first at 20"), "{refused}");
    assert!(refused.contains("would be admitted from"), "{refused}");

    let changed = Rates { mbit: 30, percent: 10, read: 10, write: 6 };
    let words = changed.words();
    let mut modify = vec!["modify", "r1"];
    modify.extend(words.iter().map(String::as_str));
    world.run(&modify, 0);
    nodes.wait_for(changed);
    nodes.wait_for_cpu(changed.percent);
    drop(busy);

    let volume = place.path().join("volume");
    let mut file = File::create(&volume).unwrap();
    file.write_all(&vec![0x5a; VOLUME]).unwrap();
    file.sync_all().unwrap();
    let volume = volume.display();
    let receive = format!("exec '{KEEPTIME}' traffic receive --warmup 0s --length 600s");
    let mut programs = vec![nodes.start("n2", &receive)];
    for node in NODES {
        let written = place.path().join(node);
        let written = written.display();
        let read = format!("while dd if={volume} of=/dev/null bs=64k iflag=direct; do :; done");
        let write = "bs=64k count=1024 oflag=direct; do :; done";
        let write = format!("while dd if=/dev/zero of={written} {write}");
        programs.extend([nodes.start(node, &read), nodes.start(node, &write)]);
    }
    let to = format!("{}:5001", world.address(1));
    let send = format!("until '{KEEPTIME}' traffic send {to}; do sleep 0.1; done");
    programs.push(nodes.start("n1", &send));
    let sent = || nodes.job("n1").unwrap().flows.iter().map(|f| f.sent_bytes.get()).sum::<u64>();
    wait("traffic", PATIENCE, || sent() > 4_000_000);
    nodes.wait_for_io(changed);

    world.run(&["cancel", "r1"], 0);
    wait("the end of it", PATIENCE, || world.jobs().is_empty());
    for node in NODES {
        wait("the end of its group", PATIENCE, || !nodes.job_group(node).exists());
        wait("the end of its classes", PATIENCE, || !world.has_tree(node));
        let rest = nodes.group(node).rest().unwrap();
        wait("the end of the limits of others", PATIENCE, || nodes.limits(&rest).is_none());
    }
    for mut program in programs {
        wait("the end of its programs", PATIENCE, || program.0.try_wait().unwrap().is_some());
    }
    let shown = world.run(&["nodes"], 0);
    assert!(shown.contains("0 B/s of 20 MB/s written reserved"), "{shown}");
}
