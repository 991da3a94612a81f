//! Reading the load of another node, as its daemon publishes it, without its taking part, against asking for as many
//! bytes (64): with the other node's core idle, and with four busy threads on it. Reads are due at fixed times, and their
//! time counts from when they were due: one that waits for a busy core delays those after it, as it
//! would in a program. The asked thread sleeps while nobody asks, as a node's agent does. Two namespaces with a cable each for
//! what the kernel answers and for what the daemon does; all of the publishing node is pinned to
//! one core, the reader to the other. On such a cable the kernel's answer is made on the reader's
//! core; on a real one it is made where the interface's interrupts go.

use crate::fabric::pin;
use crate::figures::{Figures, Target, quantile};
use crate::quick;
use anyhow::{Context as _, Result, anyhow};
use keeptime::machine::Machine;
use keeptime_fabric::directory::{Server, ServerConfig};
use keeptime_fabric::region::{
    AnsweredBy, CELL, Memories, Reader, RegionServer, RegionServerConfig,
};
use keeptime_fabric::{Config, Context, Match, Resource, ResourceId, Tag, Wait, attrs, node_load};
use keeptime_fabricd::{KernelMemories, LoadPublisher};
use keeptime_linux::load::Scope;
use keeptime_linux::testing::rig::Space;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "keeptime-fabric";
const HERE: usize = 0;
const THERE: usize = 1;
const HOGS: usize = 4;
/// Between the times when two reads are due.
const EVERY: Duration = Duration::from_micros(200);
const KERNEL: [u8; 2] = [10, 78];
const DAEMON: [u8; 2] = [10, 79];

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    rounds: Rounds,
}

/// Measures all ways in turns and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let (rounds, reads) = if quick() { (2, 200) } else { (15, 2000) };
    let machine = Machine::here();
    let rounds = Rounds::measure(rounds, reads)?;
    let mut figures = Figures::new("regions");
    for (name, times) in rounds.samples() {
        figures.median(name, "us", &times, None, None);
    }
    rounds.report_ratios(&mut figures);
    figures.finish(out, &Raw { machine, rounds })
}

/// Median and 99th percentile of each round, in microseconds, by way and load.
#[derive(Debug, Serialize)]
pub struct Rounds(BTreeMap<String, Vec<(f64, f64)>>);

impl Rounds {
    /// All ways in turns: so many rounds of so many reads each, without and with load.
    ///
    /// # Errors
    /// Without root, or if reads are answered otherwise than they are to be.
    pub fn measure(rounds: usize, reads: usize) -> Result<Self> {
        let cluster = Cluster::new()?;
        let ways = [
            cluster.reader(KERNEL, AnsweredBy::NetworkProgram)?,
            cluster.reader(DAEMON, AnsweredBy::Responder)?,
            cluster.asker()?,
        ];
        let mut all: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for _ in 0..rounds {
            for load in ["idle", "4 hogs"] {
                let _hogs = (load != "idle").then(|| Hogs::start(HOGS));
                for way in &ways {
                    let samples = way.clone().read(&cluster.here, reads)?;
                    let figures = (quantile(&samples, 0.5), quantile(&samples, 0.99));
                    all.entry(format!("{}, {load}", way.name)).or_default().push(figures);
                }
            }
        }
        Ok(Self(all))
    }

    /// The microseconds of each round, as `p50 kernel, idle`.
    pub fn samples(&self) -> impl Iterator<Item = (String, Vec<f64>)> {
        self.0.keys().flat_map(move |name| {
            [(format!("p50 {name}"), self.medians(name)), (format!("p99 {name}"), self.tails(name))]
        })
    }

    /// The kernel's answer against asking, and each way under load against idle: beside it what load does to asking.
    pub fn report_ratios(&self, figures: &mut Figures) {
        let against = ratios(&self.medians("kernel, idle"), &self.medians("asked, idle"));
        let name = "p50 of a read that the kernel answers against asking";
        figures.median(name, "x", &against, None, Some(Target::AtMost(0.3)));
        let slowed = |way: &str| {
            ratios(&self.tails(&format!("{way}, 4 hogs")), &self.tails(&format!("{way}, idle")))
        };
        let asked = quantile(&slowed("asked"), 0.5);
        for (way, beside, target) in [
            ("kernel", Some(asked), Some(Target::AtMost(3.0))),
            ("daemon", Some(asked), Some(Target::AtMost(5.0))),
            ("asked", None, None),
        ] {
            let name = format!("p99 of a read with 4 hogs against idle: {way}");
            let figure = figures.median(name, "x", &slowed(way), beside, target);
            if beside.is_some() {
                figure.against("a node that is asked");
            }
        }
    }

    fn medians(&self, name: &str) -> Vec<f64> {
        self.0[name].iter().map(|(p50, _)| *p50).collect()
    }

    fn tails(&self, name: &str) -> Vec<f64> {
        self.0[name].iter().map(|(_, p99)| *p99).collect()
    }
}

/// Round by round.
fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// Two nodes; what they publish ends with them.
struct Cluster {
    here: Space,
    there: Space,
    _daemons: (RegionServer, [Server; 2]),
    _publishing: [LoadPublisher; 2],
    stop: Arc<AtomicBool>,
}

/// A way to read.
#[derive(Clone)]
struct Way {
    name: &'static str,
    read: Arc<dyn Fn() -> Result<()> + Send + Sync>,
}

impl Cluster {
    fn new() -> Result<Self> {
        let text = |error: String| anyhow!(error).context("this needs root");
        let (here, there) = (Space::new().map_err(text)?, Space::new().map_err(text)?);
        for (name, net) in [("net0", KERNEL), ("net1", DAEMON)] {
            here.plug(&there, name, [address(net, 1), address(net, 2)]).map_err(text)?;
        }
        let regions = there.run(|| -> Result<_> {
            // Threads that are made from here on inherit it.
            pin(THERE)?;
            let config = RegionServerConfig { name: NAME.into(), port: 0 };
            let memories = |port| -> std::io::Result<Box<dyn Memories>> {
                let memories = KernelMemories::new(port, &["net0".into()]);
                Ok(Box::new(memories.map_err(std::io::Error::other)?))
            };
            Ok(RegionServer::start(&config, memories)?)
        })?;
        let far = SocketAddr::from((address(DAEMON, 2), 7400));
        let near = SocketAddr::from((address(DAEMON, 1), 7400));
        let far_server = there.run(move || daemon("there", far, vec![]))?;
        let near_server = here.run(move || {
            pin(HERE)?;
            daemon("here", near, vec![far])
        })?;
        let publish = |net: [u8; 2]| {
            there.run(move || {
                let config = config(address(net, 2), Wait::Block);
                LoadPublisher::start(config, &name(net), Scope::Machine)
            })
        };
        let publishing = [publish(KERNEL)?, publish(DAEMON)?];
        let stop = Arc::default();
        Ok(Self {
            here,
            there,
            _daemons: (regions, [far_server, near_server]),
            _publishing: publishing,
            stop,
        })
    }

    /// Reads the load of the node that is found at an address of `net`.
    fn reader(&self, net: [u8; 2], by: AnsweredBy) -> Result<Way> {
        let (context, reader) = self.here.run(move || -> Result<(Context, Reader)> {
            let context = context(address(net, 1), Wait::Spin)?;
            let what = node_load::query().with(node_load::NODE, name(net));
            context.find(what.clone()).one_of_any_within(Duration::from_secs(10))?;
            let records = context.find(what).all()?;
            let reader = context.open_region(records.first().context("its region")?)?;
            Ok((context, reader))
        })?;
        let read = move || {
            let _open = &context;
            let mut cell = [0; CELL];
            let reading = reader.read(0, &mut cell)?;
            anyhow::ensure!(reading.by == by, "answered by {:?}", reading.by);
            node_load::decode(&cell).context("a cell that says nothing")?;
            Ok(())
        };
        let name = if by == AnsweredBy::Responder { "daemon" } else { "kernel" };
        Ok(Way { name, read: Arc::new(read) })
    }

    /// Asks a thread of an ordinary program for as much.
    fn asker(&self) -> Result<Way> {
        let stop = self.stop.clone();
        let peer = self.there.run(move || -> Result<ResourceId> {
            let context = context(address(DAEMON, 2), Wait::Block)?;
            let resource = context.register(attrs! { "role" => "agent" })?;
            let id = resource.id();
            thread::spawn(move || {
                let _open = context;
                while !stop.load(Relaxed) {
                    let asked = resource.recv_within(Match::any(), Duration::from_millis(100));
                    if let Ok(message) = asked {
                        // Who asked may have gone.
                        let _ = resource.send(message.from, Tag(0), &[7; CELL]);
                    }
                }
            });
            Ok(id)
        })?;
        let (context, own) = self.here.run(|| -> Result<(Context, Resource)> {
            let context = context(address(DAEMON, 1), Wait::Spin)?;
            let own = context.register(attrs! {})?;
            Ok((context, own))
        })?;
        let read = move || {
            let _open = &context;
            own.send(peer, Tag(0), b"?")?;
            own.recv(Match::any())?;
            Ok(())
        };
        Ok(Way { name: "asked", read: Arc::new(read) })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

impl Way {
    /// Microseconds of so many reads.
    fn read(self, here: &Space, count: usize) -> Result<Vec<f64>> {
        here.run(move || {
            (self.read)()?;
            let mut samples = Vec::with_capacity(count);
            let start = Instant::now();
            for number in 0..count {
                let due = start + EVERY * number as u32;
                while Instant::now() < due {
                    std::hint::spin_loop();
                }
                (self.read)()?;
                samples.push(due.elapsed().as_secs_f64() * 1e6);
            }
            Ok(samples)
        })
    }
}

/// Threads that do nothing but use the other node's core.
struct Hogs(Arc<AtomicBool>, Vec<thread::JoinHandle<()>>);

impl Hogs {
    fn start(count: usize) -> Self {
        let stop: Arc<AtomicBool> = Arc::default();
        let hog = |stop: Arc<AtomicBool>| {
            thread::spawn(move || {
                if pin(THERE).is_ok() {
                    while !stop.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            })
        };
        let threads = (0..count).map(|_| hog(stop.clone())).collect();
        Self(stop, threads)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        for thread in self.1.drain(..) {
            let _ = thread.join();
        }
    }
}

fn daemon(node: &str, address: SocketAddr, members: Vec<SocketAddr>) -> Result<Server> {
    let (name, node, key) = (NAME.into(), node.into(), None);
    Ok(Server::start(ServerConfig { name, node, address, members, key })?)
}

fn context(address: Ipv4Addr, wait: Wait) -> Result<Context> {
    Ok(Context::open(config(address, wait))?)
}

fn config(address: Ipv4Addr, wait: Wait) -> Config {
    let mut config = Config::default();
    config.listen = (address, 0).into();
    config.wait = wait;
    config
}

/// What the other node is called where it is found on this net.
fn name([_, net]: [u8; 2]) -> String {
    format!("there-{net}")
}

fn address([a, b]: [u8; 2], host: u8) -> Ipv4Addr {
    Ipv4Addr::new(a, b, 0, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of each way: idle, then under load.
    fn one_round(ways: [(&str, [(f64, f64); 2]); 3]) -> Rounds {
        let by_load = |(way, [idle, hogs]): (&str, [(f64, f64); 2])| {
            [(format!("{way}, idle"), vec![idle]), (format!("{way}, 4 hogs"), vec![hogs])]
        };
        Rounds(ways.into_iter().flat_map(by_load).collect())
    }

    #[test]
    fn reads_are_judged_by_what_asking_takes_and_by_their_own_time_without_load() {
        let rounds = one_round([
            ("kernel", [(4.0, 6.0), (4.5, 12.0)]),
            ("daemon", [(40.0, 70.0), (50.0, 420.0)]),
            ("asked", [(20.0, 100.0), (5000.0, 3700.0)]),
        ]);
        let mut figures = Figures::new("test");
        rounds.report_ratios(&mut figures);
        let told: Vec<_> = figures.all().iter().map(|f| (f.value, f.baseline, f.met)).collect();
        let expected = [
            (0.2, None, Some(true)),
            (2.0, Some(37.0), Some(true)),
            (6.0, Some(37.0), Some(false)),
            (37.0, None, None),
        ];
        assert_eq!(told, expected);
        let samples: BTreeMap<_, _> = rounds.samples().collect();
        assert_eq!(samples.len(), 12);
        assert_eq!(samples["p99 kernel, 4 hogs"], [12.0]);
    }
}
