//! Nodes, a switch and links on one machine, with real TCP between them: what the tests and the
//! benchmark of enforcement measure on.
//!
//! Every node and the switch is a network namespace without a name, held by a thread: nothing is
//! left behind, however a test ends. Each direction of a link is a [`Shaper`], with Keeptime's
//! tree inside where it is wanted.

use crate::counters::{ClassCounters, class_counters};
use crate::egress::{self, Flow, Link, plan, switch_port};
use crate::flows::{self, FlowTable, Flows};
use crate::link::set_segments_max;
use crate::netlink::Socket;
use crate::police::{self, Policed, Policer};
use crate::segments;
use crate::tc::{Op, Shaper, TREE_MAJOR, Tree, apply, diff, observe, removal};
use keeptime_locks::lock;
use keeptime_model::errors::chain;
use keeptime_model::units::{Bytes, Nanos};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// A cluster of nodes around one switch.
#[derive(Debug)]
pub struct Rig {
    link: Link,
    switch: Space,
    nodes: Vec<Space>,
    jobs: JobCgroups,
}

/// A network namespace, and the thread that is in it.
#[derive(Debug)]
pub struct Space {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<std::thread::JoinHandle<()>>,
    thread_id: i32,
}

type Work = Box<dyn FnOnce() + Send>;

/// One TCP connection that sends as fast as it can until this is dropped.
#[derive(Debug)]
pub struct Traffic {
    received: Arc<Mutex<Received>>,
    stream: TcpStream,
}

/// What has arrived, and when the last of it did.
#[derive(Debug, Clone, Copy)]
struct Received {
    bytes: u64,
    at: Instant,
}

/// v2 cgroups of a test, removed with it.
#[derive(Debug)]
struct JobCgroups {
    root: PathBuf,
    base: PathBuf,
}

impl Rig {
    /// `nodes` nodes, each with a link of `link`'s rate in each direction, nothing reserved.
    ///
    /// # Errors
    /// What could not be set up, in words.
    pub fn new(nodes: usize, link: &Link) -> Result<Self, String> {
        let jobs = JobCgroups::new()?;
        let switch = Space::new()?;
        switch.run(|| ip(&["link add br0 type bridge", "link set br0 up"]))?;
        let nodes: Vec<Space> = (0..nodes).map(|_| Space::new()).collect::<Result<_, _>>()?;
        let rig = Self { link: link.clone(), switch, nodes, jobs };
        for (at, node) in rig.nodes.iter().enumerate() {
            let id = node.thread_id;
            let add = format!("link add port{at} type veth peer name eth0 netns {id}");
            let master = format!("link set port{at} master br0 up");
            rig.switch.run(move || ip(&[&add, &master]))?;
            let address = format!("addr add {}/24 dev eth0", rig.address(at));
            node.run(move || ip(&[&address, "link set lo up", "link set eth0 up"]))?;
            rig.shape(node, "eth0")?;
            rig.shape(&rig.switch, &format!("port{at}"))?;
        }
        Ok(rig)
    }

    /// The address of a node.
    pub fn address(&self, node: usize) -> Ipv4Addr {
        // A rig has a handful of nodes.
        Ipv4Addr::new(10, 77, 0, node as u8 + 1)
    }

    /// The thread in a node's namespace.
    pub fn node(&self, node: usize) -> &Space {
        &self.nodes[node]
    }

    /// The cgroup of a job, made if it is not there, and its number.
    ///
    /// # Errors
    /// What could not be done.
    pub fn job(&self, name: &str) -> Result<(PathBuf, u64), String> {
        let directory = self.jobs.base.join(name);
        std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::metadata(&directory))
            .map(|found| (directory.clone(), found.ino()))
            .map_err(|error| format!("{}: {error}", directory.display()))
    }

    /// Puts DiffServ classes at every port of the switch.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn protect_ports(&self) -> Result<(), String> {
        for at in 0..self.nodes.len() {
            let (link, name) = (self.link.clone(), format!("port{at}"));
            self.switch.run(move || {
                let place = shaper(&link, ifindex(&name)?).inside(TREE_MAJOR);
                bring_to(&mut open()?, &switch_port(&link, place))
            })?;
        }
        Ok(())
    }

    /// Makes the kernel of a node enforce exactly `flows`, as an agent that has just started
    /// would: by adopting what is there.
    ///
    /// # Errors
    /// What was refused.
    pub fn enforce(&self, node: usize, flows: &[Flow]) -> Result<(), String> {
        let (link, flows) = (self.link.clone(), flows.to_vec());
        self.nodes[node].run(move || enforce(&link, &flows))
    }

    /// Takes away everything that [`Self::enforce`] made.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn release(&self, node: usize) -> Result<(), String> {
        let link = self.link.clone();
        self.nodes[node].run(move || {
            let (mut socket, index) = (open()?, ifindex("eth0")?);
            let place = shaper(&link, index).inside(TREE_MAJOR);
            Flows::remove(&mut socket, index).map_err(|error| chain(&error))?;
            segments::limit(&mut socket, index, None).map_err(text)?;
            let ops = removal(&place, &observe(&mut socket, index).map_err(text)?);
            apply(&mut socket, &place, &ops).map_err(text)
        })
    }

    /// Starts a connection that sends as fast as it can, from a job's cgroup or from nobody's,
    /// with cubic congestion control. `tos` is the sender's own marking. The receiver is nobody's.
    ///
    /// # Errors
    /// What could not be connected.
    pub fn send(
        &self,
        from: usize,
        to: usize,
        job: Option<&Path>,
        tos: u8,
    ) -> Result<Traffic, String> {
        let listener = self.listen(to)?;
        let target = listener.local_addr().map_err(text)?;
        let connect = || self.nodes[from].run(move || connect(target, tos));
        let stream = job.map_or_else(connect, |directory| self.in_job(directory, connect))?;
        let (receiver, _) = listener.accept().map_err(text)?;
        Traffic::start(stream, receiver)
    }

    /// As [`Self::send`], with both ends in the job's cgroup, as the ranks of a program are.
    ///
    /// # Errors
    /// What could not be connected.
    pub fn exchange(&self, from: usize, to: usize, job: &Path) -> Result<Traffic, String> {
        self.in_job(job, || self.send(from, to, None, 0))
    }

    fn listen(&self, node: usize) -> Result<TcpListener, String> {
        let address = SocketAddr::from((self.address(node), 0));
        self.nodes[node].run(move || TcpListener::bind(address)).map_err(text)
    }

    /// Makes something (a socket) as a process of a job would. One at a time.
    pub fn in_job<R>(&self, directory: &Path, make: impl FnOnce() -> R) -> R {
        self.jobs.inside(directory, make)
    }

    /// What the classes of a node let pass.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn node_counters(&self, node: usize) -> Result<BTreeMap<u16, ClassCounters>, String> {
        self.nodes[node].run(|| counters_of("eth0"))
    }

    /// What the classes of the switch's port to a node let pass.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn port_counters(&self, node: usize) -> Result<BTreeMap<u16, ClassCounters>, String> {
        self.switch.run(move || counters_of(&format!("port{node}")))
    }

    /// Polices what a node sends where it comes into the switch. What the node sends by connections made
    /// from then on are packets as on a wire, not several at once.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn police(&self, node: usize, policer: Policer) -> Result<(), String> {
        self.nodes[node].run(|| {
            let one = set_segments_max(ifindex("eth0")?, Some(1));
            open()?.batch(&[one]).map_err(text)
        })?;
        self.switch.run(move || {
            police::install(&mut open()?, ifindex(&format!("port{node}"))?, &policer).map_err(text)
        })
    }

    /// What the policer of a node did; nothing if it has none.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn policed(&self, node: usize) -> Result<Option<Policed>, String> {
        self.switch.run(move || {
            police::counters(&mut open()?, ifindex(&format!("port{node}"))?).map_err(text)
        })
    }

    fn shape(&self, space: &Space, name: &str) -> Result<(), String> {
        let (link, name) = (self.link.clone(), name.to_owned());
        space.run(move || {
            let (mut socket, index) = (open()?, ifindex(&name)?);
            let shaper = shaper(&link, index);
            apply(&mut socket, &shaper.place(), &[Op::SetShaper(shaper)]).map_err(text)
        })
    }
}

impl Space {
    /// A new namespace.
    ///
    /// # Errors
    /// If there can be none.
    pub fn new() -> Result<Self, String> {
        let (work, queue) = mpsc::channel::<Work>();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let entered =
                unshare(CloneFlags::CLONE_NEWNET).map(|()| nix::unistd::gettid().as_raw());
            let goes_on = entered.is_ok();
            if goes_on {
                // IPv6 would send packets of its own, which count. Where it cannot be switched off,
                // or is not there, so be it.
                for devices in ["all", "default"] {
                    let file = format!("/proc/sys/net/ipv6/conf/{devices}/disable_ipv6");
                    let _ = std::fs::write(file, "1");
                }
            }
            // The other side waits for this one message.
            let _ = ready.send(entered);
            if goes_on {
                queue.into_iter().for_each(|work| work());
            }
        });
        let thread_id = started
            .recv()
            .map_err(text)?
            .map_err(|errno| format!("no new network namespace: {errno}"))?;
        Ok(Self { work: Some(work), thread: Some(thread), thread_id })
    }

    /// Plugs a cable between this namespace and `other`, called `name` at both ends, with these
    /// addresses in a network of 254.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn plug(&self, other: &Self, name: &str, addresses: [Ipv4Addr; 2]) -> Result<(), String> {
        let far = other.thread_id;
        let add = format!("link add {name} type veth peer name {name} netns {far}");
        self.run(move || ip(&[&add]))?;
        for (space, address) in [(self, addresses[0]), (other, addresses[1])] {
            let address = format!("addr add {address}/24 dev {name}");
            let up = format!("link set {name} up");
            space.run(move || ip(&[&address, "link set lo up", &up]))?;
        }
        Ok(())
    }

    /// Runs `work` on the thread in the namespace and waits for it.
    ///
    /// # Panics
    /// If `work` does.
    pub fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let (give, take) = mpsc::channel();
        let boxed: Work = Box::new(move || {
            let _ = give.send(work());
        });
        let sent = self.work.as_ref().is_some_and(|queue| queue.send(boxed).is_ok());
        assert!(sent, "the thread of this namespace has ended");
        take.recv().expect("work in a namespace does not panic")
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there was already reported by `run`.
            let _ = thread.join();
        }
    }
}

impl Traffic {
    fn start(stream: TcpStream, mut receiver: TcpStream) -> Result<Self, String> {
        let received = Arc::new(Mutex::new(Received { bytes: 0, at: Instant::now() }));
        let count = Arc::clone(&received);
        std::thread::spawn(move || {
            let mut buffer = vec![0; CHUNK_BYTES];
            while let Ok(length @ 1..) = receiver.read(&mut buffer) {
                let mut received = lock(&count);
                *received = Received { bytes: received.bytes + length as u64, at: Instant::now() };
            }
        });
        let mut sender = stream.try_clone().map_err(text)?;
        std::thread::spawn(move || {
            let chunk = vec![0; CHUNK_BYTES];
            while sender.write_all(&chunk).is_ok() {}
        });
        Ok(Self { received, stream })
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        // Already closed by the other side: just as well.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// What each connection delivers over `span`, in Mbit/s of payload, all at the same time. Counted
/// from arrival to arrival: a slow flow comes in packets of up to 64 KiB at once (TCP segments
/// them late), one of which more or less would be 2 % of 10 Mbit/s over 3 s.
pub fn measure(traffic: &[&Traffic], span: Duration) -> Vec<f64> {
    let read = || -> Vec<Received> { traffic.iter().map(|t| *lock(&t.received)).collect() };
    let before = read();
    std::thread::sleep(span);
    let rate = |(after, before): (Received, Received)| match after.bytes - before.bytes {
        0 => 0.0,
        bytes => bytes as f64 * 8e-6 / (after.at - before.at).as_secs_f64(),
    };
    read().into_iter().zip(before).map(rate).collect()
}

/// The root of the v2 hierarchy, if one is mounted.
pub fn cgroup_v2_root() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    line.split(' ').nth(1).map(PathBuf::from)
}

impl JobCgroups {
    fn new() -> Result<Self, String> {
        let root = cgroup_v2_root().ok_or("no cgroup v2 hierarchy is mounted")?;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = root.join(format!("keeptime-test-{}-{count}", std::process::id()));
        std::fs::create_dir(&base).map_err(|error| format!("{}: {error}", base.display()))?;
        Ok(Self { root, base })
    }

    /// A socket belongs to the cgroup that its maker was in: so go there, make it, come back.
    /// One at a time, since it takes the whole process along.
    fn inside<R>(&self, directory: &Path, make: impl FnOnce() -> R) -> R {
        static MOVING: Mutex<()> = Mutex::new(());
        let _guard = lock(&MOVING);
        let home = own_cgroup(&self.root);
        let enter = |directory: &Path| {
            std::fs::write(directory.join("cgroup.procs"), std::process::id().to_string())
        };
        enter(directory).expect("a cgroup that was just made can be entered");
        let made = make();
        enter(&home).expect("the cgroup that we came from is still there");
        made
    }
}

impl Drop for JobCgroups {
    fn drop(&mut self) {
        let below = std::fs::read_dir(&self.base).into_iter().flatten().filter_map(Result::ok);
        for directory in below.filter(|entry| entry.path().is_dir()) {
            let _ = std::fs::remove_dir(directory.path());
        }
        let _ = std::fs::remove_dir(&self.base);
    }
}

fn own_cgroup(root: &Path) -> PathBuf {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    root.join(path)
}

fn connect(target: SocketAddr, tos: u8) -> Result<TcpStream, String> {
    let stream = TcpStream::connect_timeout(&target, CONNECT_TIME_MAX).map_err(text)?;
    setsockopt(&stream, sockopt::TcpCongestion, &OsString::from("cubic")).map_err(text)?;
    setsockopt(&stream, sockopt::Ipv4Tos, &i32::from(tos)).map_err(text)?;
    Ok(stream)
}

fn enforce(link: &Link, flows: &[Flow]) -> Result<(), String> {
    let (mut socket, index) = (open()?, ifindex("eth0")?);
    let place = shaper(link, index).inside(TREE_MAJOR);
    let adopted = Flows::adopt(&mut socket, index).map_err(|error| chain(&error))?;
    let found = match &adopted {
        Some(adopted) => adopted.read().map_err(|error| chain(&error))?,
        None => FlowTable::default(),
    };
    let wanted = plan(link, place, flows, &found).map_err(text)?;
    bring_to(&mut socket, &wanted.tree)?;
    let settings = egress::settings(place, JOB_LEVEL, &wanted.table);
    match adopted {
        Some(mut adopted) => adopted
            .keep_settings(&settings)
            .and_then(|()| adopted.apply(&flows::diff(&wanted.table, &found))),
        None => Flows::install(&mut socket, index, &settings, &wanted.table).map(drop),
    }
    .map_err(|error| chain(&error))?;
    segments::limit(&mut socket, index, wanted.packet_max).map_err(text)
}

fn counters_of(name: &str) -> Result<BTreeMap<u16, ClassCounters>, String> {
    class_counters(&mut open()?, ifindex(name)?, TREE_MAJOR).map_err(text)
}

fn bring_to(socket: &mut Socket, tree: &Tree) -> Result<(), String> {
    let found = observe(socket, tree.place.ifindex).map_err(text)?;
    let ops = diff(tree, &found).map_err(text)?;
    apply(socket, &tree.place, &ops).map_err(text)
}

/// The emulated wire: 2 ms at once, 20 ms of queue as a plain switch has.
fn shaper(link: &Link, ifindex: u32) -> Shaper {
    let rate = link.rate;
    let burst = crate::egress::burst_of(rate).max(Bytes::new(3_028));
    let queue = rate.bytes_in_floor(Nanos::from_millis(20)).get().max(64_000);
    let limit = u32::try_from(queue).unwrap_or(u32::MAX);
    Shaper { ifindex, major: SHAPER_MAJOR, rate, burst, limit }
}

fn ifindex(name: &str) -> Result<u32, String> {
    nix::net::if_::if_nametoindex(name).map_err(|errno| format!("interface {name}: {errno}"))
}

fn ip(commands: &[&str]) -> Result<(), String> {
    for command in commands {
        let output = Command::new("ip").args(command.split(' ')).output().map_err(text)?;
        if !output.status.success() {
            return Err(format!("ip {command}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(())
}

fn open() -> Result<Socket, String> {
    Socket::open().map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Of the shapers, whose trees are Keeptime's.
pub const SHAPER_MAJOR: u16 = 0x4b53;
/// Jobs have groups right inside of that of their rig, which is right below the root of the hierarchy.
const JOB_LEVEL: u32 = 2;
const CHUNK_BYTES: usize = 64 * 1024;
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
