//! A node's load as real daemons publish it and a broker reads it on another node: busy and idle, answered by the
//! kernel and by the daemon, and a publisher that stops. Needs root and control groups; says so where it cannot run.

#![allow(clippy::unwrap_used, reason = "tests")]

mod nodes;

use keeptime_broker::node_loads::NodeLoads;
use keeptime_fabric::directory::DEFAULT_NAME;
use keeptime_fabric::region::{AnsweredBy, CELL};
use keeptime_fabric::{Config, Context, attrs, node_load};
use keeptime_linux::cgroup::{CgroupError, Group, Hierarchies, MARK};
use keeptime_linux::clock;
use keeptime_linux::testing::{can, skip};
use keeptime_model::errors::chain;
use keeptime_model::units::{CpuPpm, Share};
use keeptime_sites::cpu::{Cpu, CpuMeter};
use nix::sys::signal::Signal;
use nodes::{LONG, Node, wait_for};
use std::process::{Child, Command, Stdio};

/// More than the group may use.
const HOGS: usize = 4;

/// A node that is a control group of this machine. Its daemon is outside, so that it does nothing if nobody
/// else does.
struct Part {
    group: Group,
    hogs: Vec<Child>,
}

impl Part {
    fn new(name: &str) -> Result<Self, CgroupError> {
        let path = format!("{MARK}/_test-{}-{name}", std::process::id());
        let group = Hierarchies::discover()?.group(path)?;
        group.create()?;
        let part = Self { group, hogs: Vec::new() };
        part.group.set_cpu(CpuPpm::from_percent(20))?;
        Ok(part)
    }

    fn work(&mut self) {
        for _ in 0..HOGS {
            // It begins to work in the group.
            let mut command = Command::new("sh");
            command.args(["-c", "read x; while :; do :; done"]).stdin(Stdio::piped());
            let mut hog = command.spawn().unwrap();
            self.group.join(hog.id() as i32).unwrap();
            hog.stdin = None;
            self.hogs.push(hog);
        }
    }

    fn rest(&mut self) {
        for mut hog in self.hogs.drain(..) {
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.rest();
        let _ = self.group.remove();
    }
}

/// Who steers web sites, on a node of its own.
struct Broker {
    loads: NodeLoads,
    meter: CpuMeter,
}

impl Broker {
    fn on(node: &Node) -> Self {
        let loads = node.space.run(|| NodeLoads::start(DEFAULT_NAME).unwrap());
        Self { loads, meter: CpuMeter::default() }
    }

    fn look(&mut self, node: &str) -> Option<Cpu> {
        let now = clock::now();
        self.meter.see(now, &self.loads.latest());
        self.meter.cpu(now, &node.parse().unwrap())
    }

    fn until(&mut self, node: &str, holds: impl Fn(Option<u32>) -> bool) {
        wait_for(|| holds(self.look(node).map(|cpu| cpu.used.ppm() / 10_000)));
    }
}

/// Who answers when `here` reads the load of `there`.
fn answered_by(here: &Node) -> AnsweredBy {
    here.space.run(|| {
        let context = Context::open(Config::default()).unwrap();
        let query = node_load::query().with(node_load::NODE, "there");
        let id = context.find(query.clone()).one_of_any_within(LONG).unwrap();
        let records = context.find(query).all().unwrap();
        let record = records.iter().find(|record| record.id == id).unwrap();
        let reader = context.open_region(record).unwrap();
        reader.read(0, &mut [0; CELL]).unwrap().by
    })
}

/// All of it over a cable of this number, with `there` answering by itself or by its kernel.
fn try_with(number: u8, arguments: &[&str], by: AnsweredBy) {
    let mut part = match Part::new(&format!("load-{number}")) {
        Ok(part) => part,
        Err(error) => return skip(&["cgroup".into()], &chain(&error)),
    };
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    here.plug(&there, number);
    let cgroup = part.group.path().display().to_string();
    there.arguments.extend(["--cgroup".into(), cgroup]);
    there.arguments.extend(arguments.iter().map(ToString::to_string));
    there.start();
    here.start();
    let mut broker = Broker::on(&here);
    broker.until("there", |busy| busy.is_some_and(|busy| busy < 10));
    assert_eq!(answered_by(&here), by);
    part.work();
    broker.until("there", |busy| busy.is_some_and(|busy| busy > 90));
    // Nothing is known of it, which is not that it is idle; of the broker's own node all is known as ever.
    there.signal(Signal::SIGSTOP);
    broker.until("there", |busy| busy.is_none());
    broker.until("here", |busy| busy.is_some());
    part.rest();
    assert_eq!(broker.look("there"), None);
    there.signal(Signal::SIGCONT);
    broker.until("there", |busy| busy.is_some_and(|busy| busy < 10));
    // One that crashes, and one that takes its place.
    there.kill();
    broker.until("there", |busy| busy.is_none());
    there.start();
    broker.until("there", |busy| busy.is_some_and(|busy| busy < 10));
}

#[test]
fn a_node_that_is_kept_busy_is_seen_and_one_that_stops_is_silent() {
    if can(&[]) {
        try_with(83, &[], AnsweredBy::Responder);
    }
}

/// The kernel goes on answering for a daemon that is stopped: what it says gets no newer.
#[test]
fn the_same_where_the_kernel_answers() {
    if can(&["bpf"]) {
        try_with(84, &["--answer-on", "net84"], AnsweredBy::NetworkProgram);
    }
}

/// A machine is all of it: its own clock, its processors, and no more than they can do.
#[test]
fn a_machine_is_published_unless_that_is_not_wanted() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    here.plug(&there, 85);
    there.arguments.push("--no-load".into());
    there.start();
    here.start();
    here.knows(2);
    let mut broker = Broker::on(&here);
    wait_for(|| broker.look("here").is_some_and(|cpu| cpu.used <= Share::ONE));
    assert_eq!(here.count(attrs! { "service" => "node-load" }), 1);
    assert_eq!(broker.look("there"), None);
}
