//! Several networks: messages over a bridge against messages over a cable, and long ones over two
//! shaped cables against raw TCP over each; beside both what the kernel makes of it. Nodes are network namespaces of
//! this machine; one end is pinned to each core.

use super::{CORES, SHORT, Samples, Variant, WARM_UP, kernel, micros, others, pin, ratios};
use crate::figures::{Figures, Target, quantile};
use crate::quick;
use anyhow::{Context as _, Result, anyhow, ensure};
use keeptime_fabric::bridge::Bridge;
use keeptime_fabric::directory::{Server, ServerConfig};
use keeptime_fabric::echo::{Echo, Probe};
use keeptime_fabric::{Config, Context, Match, Tag, Wait, attrs};
use keeptime_linux::testing::rig::Space;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 7400;
/// Longer than any of it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The cables of the issue, and what the first one sags to.
const RATES: [u64; 2] = [500, 300];
const SAGGED: u64 = 60;
/// Cables of which one is hardly worth it, as a cluster's network beside the one by which it is managed.
const UNEQUAL: [u64; 2] = [10_000, 500];
/// After which there is to be as much as before over the better one.
const SETTLED: Duration = Duration::from_secs(2);
const MESSAGE: usize = 4 << 20;
const TAKEN: Tag = Tag(2);
const LAST: Tag = Tag(3);

/// A node with all of its daemon.
struct Node {
    space: Arc<Space>,
    _daemon: (Server, Echo, Option<Bridge>),
}

impl Node {
    /// All but its bridge is pinned to a core. The bridge shares the first one's: what it passes on
    /// has to get from one core to the other as often as over a cable.
    fn start(
        space: Arc<Space>,
        node: &'static str,
        member: Option<Ipv4Addr>,
        core: usize,
    ) -> Result<Self> {
        let start = move || -> Result<_> {
            // Threads that are made from here on inherit it.
            pin(core)?;
            let at = |address| SocketAddr::from((address, PORT));
            let members = member.map(at).into_iter().collect();
            let config = Config::default();
            let (name, address) = (config.directory.clone(), at(Ipv4Addr::UNSPECIFIED));
            let server = Server::start(ServerConfig {
                name,
                node: node.into(),
                address,
                members,
                key: None,
            })?;
            let echo = Echo::start(blocking(), node, server.address())?;
            pin(CORES[0])?;
            let bridge = Bridge::start(blocking(), node, 0)?;
            pin(core)?;
            Ok((server, echo, bridge))
        };
        Ok(Self { _daemon: space.run(start)?, space })
    }

    /// Runs on this node's thread; what that makes is in its namespace.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.space.run(work)
    }
}

fn blocking() -> Config {
    let mut config = Config::default();
    config.wait = Wait::Block;
    config
}

/// A node.
pub fn space() -> Result<Arc<Space>> {
    Ok(Arc::new(Space::new().map_err(|error| anyhow!(error).context("this needs root"))?))
}

/// A node with nothing but a loopback, on which connections have cubic, as a lab's have. Where the machine's default is bbr,
/// whoever keeps less under way than the kernel would is held at a rate that bbr takes for the path's: streams of 64 KiB went
/// at a quarter of what cubic has, in some rounds, and in others not.
pub fn loopback() -> Result<Arc<Space>> {
    let space = space()?;
    kernel::ip(&space, "link set lo up".into())?;
    for to in ["127.0.0.0/8", "127.0.0.1"] {
        let place = "dev lo table local proto kernel scope host src 127.0.0.1";
        kernel::ip(&space, format!("route change local {to} {place} congctl cubic"))?;
    }
    Ok(space)
}

/// A cable between two nodes: the address of each on it, 10.NUMBER.0.x.
pub fn plug(one: &Space, other: &Space, number: u8) -> Result<[Ipv4Addr; 2]> {
    let addresses = [1, 2].map(|host| Ipv4Addr::new(10, number, 0, host));
    one.plug(other, &format!("net{number}"), addresses).map_err(anyhow::Error::msg)?;
    Ok(addresses)
}

/// Three nodes in a row.
struct Row {
    near: Node,
    _middle: Node,
    _far: Node,
}

impl Row {
    fn new() -> Result<Self> {
        let [near, middle, far] = [space()?, space()?, space()?];
        let (to_near, to_far) = (plug(&near, &middle, 60)?, plug(&far, &middle, 61)?);
        let middle = Node::start(middle, "middle", None, CORES[1])?;
        let far = Node::start(far, "far", Some(to_far[1]), CORES[1])?;
        let near = Node::start(near, "near", Some(to_near[1]), CORES[0])?;
        Ok(Self { near, _middle: middle, _far: far })
    }

    /// Microseconds of a round trip from the first to `node`.
    fn round_trips(&self, node: &'static str, count: usize) -> Result<f64> {
        self.near.run(move || {
            let context = Context::open(blocking())?;
            let query = attrs! { "service" => "echo", "node" => node };
            let mut probe = Probe::new(&context, context.find(query).one_of_any_within(PATIENCE)?)?;
            let mut ask = |count| {
                (0..count).try_for_each(|_| probe.round_trip(&[7; SHORT], PATIENCE).map(drop))
            };
            ask(WARM_UP)?;
            let start = Instant::now();
            ask(count)?;
            Ok(micros(start, count))
        })
    }
}

/// The bridge against the cable, and the same by the kernel and by zenoh.
pub fn bridged() -> Result<Vec<Variant>> {
    let variant = |way: &str, run: Box<dyn FnMut(usize) -> Result<f64>>| Variant {
        name: round_trip(way),
        count: 1000,
        run,
    };
    let (row, kernel) = (Arc::new(Row::new()?), Arc::new(kernel::Row::new()?));
    let ours = |node: &'static str| {
        let row = row.clone();
        move |count| row.round_trips(node, count)
    };
    let others = |run: fn(&kernel::Row, usize) -> Result<f64>| {
        let row = kernel.clone();
        move |count| run(&row, count)
    };
    Ok(vec![
        variant(CABLE, Box::new(ours("middle"))),
        variant(BRIDGE, Box::new(ours("far"))),
        variant(RAW_CABLE, Box::new(others(kernel::Row::over_a_cable))),
        variant(FORWARDED, Box::new(others(kernel::Row::forwarded))),
        variant(ZENOH_CABLE, Box::new(others(|row, count| others::zenoh(row, false, count)))),
        variant(ZENOH_ROUTER, Box::new(others(|row, count| others::zenoh(row, true, count)))),
    ])
}

const CABLE: &str = "over a cable";
const BRIDGE: &str = "over a bridge";
const RAW_CABLE: &str = "raw TCP over a cable";
const FORWARDED: &str = "raw TCP that the kernel forwards";
const ZENOH_CABLE: &str = "zenoh over a cable";
const ZENOH_ROUTER: &str = "zenoh over its router";

fn round_trip(way: &str) -> String {
    format!("round trip {SHORT} B, {way}, sleeping")
}

/// The target of the issue; beside it, what a hop costs the kernel.
pub fn report_bridged(figures: &mut Figures, samples: &Samples) {
    let ratios = |of, to| ratios(samples, &round_trip(of), &round_trip(to));
    let kernel = quantile(&ratios(FORWARDED, RAW_CABLE), 0.5);
    let name =
        format!("round trip {SHORT} B over a bridge against a cable (beside it: the kernel)");
    let target = Some(Target::AtMost(1.8));
    figures.median(name, "x", &ratios(BRIDGE, CABLE), Some(kernel), target);
    let name = format!("round trip {SHORT} B over zenoh's router against a cable");
    figures.median(name, "x", &ratios(ZENOH_ROUTER, ZENOH_CABLE), None, None);
}

/// Two nodes with two cables, in both directions as quick as they are said to be.
struct Cables {
    here: Node,
    there: Node,
    addresses: [Ipv4Addr; 2],
    rates: [u64; 2],
}

impl Cables {
    fn new(rates: [u64; 2]) -> Result<Self> {
        let (here, there) = (space()?, space()?);
        let addresses = [plug(&here, &there, 62)?, plug(&here, &there, 63)?].map(|[_, far]| far);
        let far = Node::start(there, "there", None, CORES[1])?;
        let near = Node::start(here, "here", Some(addresses[0]), CORES[0])?;
        let cables = Self { here: near, there: far, addresses, rates };
        cables.shape(0, rates[0], "add")?;
        cables.shape(1, rates[1], "add")?;
        kernel::use_both(&cables.here.space, &cables.there.space, cables.addresses[1])?;
        Ok(cables)
    }

    fn shape(&self, cable: u8, mbit: u64, verb: &'static str) -> Result<()> {
        for node in [&self.here, &self.there] {
            node.run(move || {
                let words = format!(
                    "qdisc {verb} dev net{} root tbf rate {mbit}mbit burst 128k latency 20ms",
                    62 + cable
                );
                let done = Command::new("tc").args(words.split(' ')).status().context("tc")?;
                ensure!(done.success(), "tc {words}: {done}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Mbit/s of one TCP connection over a cable.
    fn raw(&self, cable: usize, time: Duration) -> Result<f64> {
        let address = self.addresses[cable];
        let listener = self.there.run(move || Ok(TcpListener::bind((address, 0))?))?;
        let to = listener.local_addr()?;
        let taking = thread::spawn(move || -> Result<(u64, Duration)> {
            let (mut stream, _) = listener.accept()?;
            let (mut bytes, mut total, start) = (vec![0; 1 << 20], 0, Instant::now());
            loop {
                match stream.read(&mut bytes)? {
                    0 => return Ok((total, start.elapsed())),
                    count => total += count as u64,
                }
            }
        });
        self.here.run(move || {
            let (mut stream, data, start) =
                (TcpStream::connect(to)?, vec![7; 1 << 18], Instant::now());
            while start.elapsed() < time {
                stream.write_all(&data)?;
            }
            Ok(())
        })?;
        let (bytes, time) = taking.join().map_err(|_| anyhow!("a thread has panicked"))??;
        Ok(mbit(bytes, time))
    }

    /// The same of each, as samples too.
    fn alone(&self, time: Duration, samples: &mut Samples) -> Result<[f64; 2]> {
        let alone = [self.raw(0, time)?, self.raw(1, time)?];
        let [first, second] = self.rates;
        for (rate, of) in alone.iter().zip(self.rates) {
            let name = format!("{CABLES}: raw TCP, {of} of {first} and {second} Mbit/s (Mbit/s)");
            samples.entry(name).or_default().push(*rate);
        }
        Ok(alone)
    }

    /// Messages over both, while `count` counts what arrives.
    fn both<T>(&self, count: impl FnOnce(&Arrivals) -> Result<T>) -> Result<T> {
        let (context, taker) = self.there.run(|| {
            let context = Context::open(blocking())?;
            let taker = context.register(attrs! { "name" => "taker" })?;
            Ok((context, taker))
        })?;
        let to = taker.id();
        let (counted, counts) = channel();
        let taking = thread::spawn(move || -> Result<()> {
            let _context = context;
            loop {
                let message = taker.recv(Match::any())?;
                // Nobody counts any more when it is enough.
                let _ = counted.send((message.data.len() as u64, Instant::now()));
                if message.tag == LAST {
                    return Ok(());
                }
            }
        });
        let giver = self.here.run(move || {
            Ok(Giver::start(move || {
                let context = Context::open(blocking())?;
                let giver = context.register(attrs! { "name" => "giver" })?;
                Ok(move |is_last| {
                    // It goes with what it gives.
                    let _context = &context;
                    let tag = if is_last { LAST } else { TAKEN };
                    Ok(giver.send(to, tag, vec![7; MESSAGE])?)
                })
            }))
        })?;
        let counted = count(&counts)?;
        giver.end()?;
        taking.join().map_err(|_| anyhow!("a thread has panicked"))??;
        Ok(counted)
    }

    /// The same of one connection of Multipath TCP.
    fn multipath<T>(&self, count: impl FnOnce(&Arrivals) -> Result<T>) -> Result<T> {
        let address = self.addresses[0];
        let listener = self.there.run(move || kernel::listen(address))?;
        let to = listener.local_addr()?;
        let (counted, counts) = channel();
        let taking = thread::spawn(move || -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut bytes = vec![0; 1 << 20];
            loop {
                let count = stream.read(&mut bytes)?;
                if count == 0 {
                    return Ok(());
                }
                let _ = counted.send((count as u64, Instant::now()));
            }
        });
        let giver = self.here.run(move || {
            Ok(Giver::start(move || {
                let (mut stream, data) = (kernel::connect(to)?, vec![7; 1 << 18]);
                Ok(move |_| Ok(stream.write_all(&data)?))
            }))
        })?;
        let counted = count(&counts)?;
        giver.end()?;
        taking.join().map_err(|_| anyhow!("a thread has panicked"))??;
        Ok(counted)
    }

    /// Mbit/s of messages of UCX over both. It looks at its networks when it starts: when one has sagged, it starts again.
    fn ucx(&self, time: Duration) -> Result<[f64; 2]> {
        let there = (&*self.there.space, self.addresses[0]);
        let count =
            |mbit: u64| ((mbit as f64 * time.as_secs_f64() / 8.0 * 1e6) as usize / MESSAGE).max(2);
        let run =
            |count| others::ucx_over(&self.here.space, there, "net62,net63", (MESSAGE, count));
        let first = run(count(self.rates[0]))?;
        self.shape(0, SAGGED, "change")?;
        let second = run(count(SAGGED))?;
        self.shape(0, self.rates[0], "change")?;
        Ok([first, second])
    }

    /// Mbit/s of what is counted, before the first cable sags and when it has.
    fn before_and_after(&self, counts: &Arrivals, time: Duration) -> Result<[f64; 2]> {
        let first = settled_rate(counts, time)?;
        self.shape(0, SAGGED, "change")?;
        rate(counts, SETTLED)?;
        let second = rate(counts, time)?;
        self.shape(0, self.rates[0], "change")?;
        Ok([first, second])
    }
}

/// Gives without end.
struct Giver {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<()>>,
}

impl Giver {
    /// What `make` makes gives a piece at a time, and is told which is the last one.
    fn start<G: FnMut(bool) -> Result<()>>(
        make: impl FnOnce() -> Result<G> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut give = make()?;
            while !stopped.load(Ordering::Relaxed) {
                give(false)?;
            }
            give(true)
        });
        Self { stop, thread }
    }

    fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a thread has panicked"))?
    }
}

/// Bytes that have arrived, and when.
type Arrivals = Receiver<(u64, Instant)>;

/// Mbit/s of what arrives in `time`, when both cables are known.
fn settled_rate(counts: &Arrivals, time: Duration) -> Result<f64> {
    rate(counts, time / 2)?;
    rate(counts, time)
}

/// Mbit/s of what arrives in `time`, from one arrival to another.
fn rate(counts: &Arrivals, time: Duration) -> Result<f64> {
    // What came before is not counted.
    while counts.try_recv().is_ok() {}
    let (_, start) = counts.recv_timeout(PATIENCE)?;
    let mut bytes = 0;
    loop {
        let (length, at) = counts.recv_timeout(PATIENCE)?;
        bytes += length;
        if at - start >= time {
            return Ok(mbit(bytes, at - start));
        }
    }
}

fn mbit(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e6 / time.as_secs_f64()
}

/// How samples of [`aggregated`] begin.
pub const CABLES: &str = "cables";
/// What carries messages over both cables.
const OVER_BOTH: [&str; 3] = ["both", "Multipath TCP", "UCX"];

/// Both cables against each alone, in rounds.
pub fn aggregated(figures: &mut Figures, samples: &mut Samples) -> Result<()> {
    let (rounds, time) = if quick() { (1, 500) } else { (5, 3000) };
    let time = Duration::from_millis(time);
    alike(figures, samples, rounds, time)?;
    unequal(figures, samples, rounds, time)
}

/// Cables that are both worth it, of which one sags.
fn alike(
    figures: &mut Figures,
    samples: &mut Samples,
    rounds: usize,
    time: Duration,
) -> Result<()> {
    let cables = Cables::new(RATES)?;
    // Each against the two cables of its round: both, and when the first has sagged.
    let mut ratios: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..rounds {
        let alone = cables.alone(time, samples)?;
        let count = |counts: &Arrivals| cables.before_and_after(counts, time);
        let all = [cables.both(count)?, cables.multipath(count)?, cables.ucx(time)?];
        for ((name, rates), ratios) in OVER_BOTH.iter().zip(all).zip(&mut ratios) {
            for (when, rate) in ["", ", one sagged"].iter().zip(rates) {
                samples.entry(format!("{CABLES}: {name}{when} (Mbit/s)")).or_default().push(rate);
            }
            ratios[0].push(rates[0] / (alone[0] + alone[1]));
            ratios[1].push(rates[1] / alone[1]);
        }
    }
    let names = [
        "over 500 and 300 Mbit/s against the sum of raw TCP over each",
        "2 s after the first sags to 60 Mbit/s against raw TCP over the better one",
    ];
    let [ours, multipath, ucx] = ratios;
    for ((name, ours), multipath) in names.iter().zip(ours).zip(multipath) {
        let name = format!("rate {name} (beside it: Multipath TCP)");
        let (beside, target) = (quantile(&multipath, 0.5), Target::AtLeast(0.95));
        figures.median(name, "x", &ours, Some(beside), Some(target));
    }
    for (name, ucx) in names.iter().zip(ucx) {
        figures.median(format!("rate of UCX {name}"), "x", &ucx, None, None);
    }
    Ok(())
}

/// Cables of which the slower one is to be in nobody's way.
fn unequal(
    figures: &mut Figures,
    samples: &mut Samples,
    rounds: usize,
    time: Duration,
) -> Result<()> {
    let cables = Cables::new(UNEQUAL)?;
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for _ in 0..rounds {
        let alone = cables.alone(time, samples)?;
        let count = |counts: &Arrivals| settled_rate(counts, time);
        let all = [cables.both(count)?, cables.multipath(count)?];
        for ((name, rate), ratios) in OVER_BOTH.iter().zip(all).zip(&mut ratios) {
            let name = format!("{CABLES}: {name}, unequal (Mbit/s)");
            samples.entry(name).or_default().push(rate);
            ratios.push(rate / alone[0]);
        }
    }
    let [ours, multipath] = ratios;
    let name = "rate over 10 Gbit/s and 500 Mbit/s against raw TCP over the better one (beside it: Multipath TCP)";
    figures.median(name, "x", &ours, Some(quantile(&multipath, 0.5)), None);
    Ok(())
}
