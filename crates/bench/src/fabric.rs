//! Messages between two processes, one pinned to each of two cores, against raw TCP with the same
//! way of waiting, and against a bare ring between two cores. All variants run in turns, each with
//! a process of its own that ends with it, since one that spins would be in the way of the next;
//! each round gives one sample, and ratios are those of one round. Other libraries stand beside ours. All that is on a
//! loopback whose congestion control is cubic, whatever the machine's is. What takes nodes of its own follows, in rounds of
//! its own; without namespaces all but that is measured, on the machine's loopback.

mod kernel;
mod memory;
mod networks;
mod nodes;
mod others;
pub mod peer;
mod tcp;

use crate::figures::{Figures, Target};
use crate::quick;
use anyhow::{Context as _, Result};
use keeptime::machine::Machine;
use keeptime_fabric::directory::{Server, ServerConfig};
use keeptime_fabric::{
    Buffer, Config, Context, Match, Payload, Protocol, Resource, ResourceId, Wait, attrs,
};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use peer::{FINISH, Peer, QUESTION, STREAM};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Where this process runs, and where the other one.
const CORES: [usize; 2] = [0, 1];
const SHORT: usize = 64;
const LONG: usize = 8192;
const LONGEST: usize = 64 << 10;
/// Bytes of a stream: some 50 ms, of which the first windows are little.
const STREAMED: usize = 128 << 20;
const THREADS: usize = 8;
/// Round trips before the clock starts.
const WARM_UP: usize = 50;
/// Round trips of each of several pairs of threads that spin on two cores: one that waits keeps its core until the
/// scheduler takes it, so that a round trip may take milliseconds.
const TRIPS_OF_SPINNING_CROWDS: usize = 10;

/// Microseconds a message, or what the name says, by variant, in the order of the rounds.
type Samples = BTreeMap<String, Vec<f64>>;

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    samples: Samples,
}

/// Runs everything in turns, or what has one of `only` in its name, and writes the figures: also those that are there
/// when something fails that comes after the turns.
pub fn run(out: &Path, only: &[String]) -> Result<()> {
    let (machine, has_nodes) = (Machine::here(), can_have_nodes());
    let all_cores = sched_getaffinity(Pid::from_raw(0))?;
    let mut samples = if has_nodes {
        let asked = only.to_vec();
        networks::loopback()?.run(move || in_turns(&asked, true))?
    } else {
        in_turns(only, false)?
    };
    pin(CORES[0])?;
    let mut figures = Figures::new("fabric");
    report(&mut figures, &samples);
    others::report(&mut figures, &samples);
    if has_nodes {
        networks::report_bridged(&mut figures, &samples);
    }
    let mut outcome = Ok(());
    let mut measure = |name: &str, part: Part| {
        if has_nodes
            && is_asked(name, only)
            && let Err(error) = part(&mut figures, &mut samples)
        {
            eprintln!("{name}: {error:#}; what else there is follows");
            outcome = Err(error.context(name.to_owned()));
        }
    };
    measure(networks::CABLES, networks::aggregated);
    // The nodes of these have cores of their own, or shares of all that there are.
    sched_setaffinity(Pid::from_raw(0), &all_cores)?;
    measure(nodes::READS, nodes::reads);
    measure(nodes::FINDS, nodes::finds);
    measure(nodes::QUERIES, nodes::queries);
    if !only.is_empty() {
        figures.keep_measured();
    }
    figures.finish(out, &Raw { machine, samples })?;
    outcome
}

/// All variants, or those that have one of `only` in their names, one after the other and round after round.
fn in_turns(only: &[String], has_nodes: bool) -> Result<Samples> {
    let (rounds, scale) = if quick() { (2, 20) } else { (25, 1) };
    pin(CORES[0])?;
    let directory = format!("bench-{}", std::process::id());
    let address = ([127, 0, 0, 1], 0).into();
    let (name, node) = (directory.clone(), "bench".into());
    let _server =
        Server::start(ServerConfig { name, node, address, members: Vec::new(), key: None })?;
    let mut variants = variants(&directory)?;
    variants.extend(others::variants());
    if has_nodes {
        variants.extend(networks::bridged()?);
    }
    variants.retain(|variant| is_asked(&variant.name, only));
    let mut samples = Samples::new();
    for _ in 0..rounds {
        for variant in &mut variants {
            let count = (variant.count / scale).max(10);
            let time = (variant.run)(count).with_context(|| variant.name.clone())?;
            samples.entry(variant.name.clone()).or_default().push(time);
        }
    }
    // Their nodes and daemons go with them.
    Ok(samples)
}

/// Whether what is called so is to be measured.
fn is_asked(name: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|part| name.contains(part))
}

/// What is measured after the turns: adds its figures, and its samples.
type Part = fn(&mut Figures, &mut Samples) -> Result<()>;

/// Nodes are network namespaces. Says what is left out where there can be none.
fn can_have_nodes() -> bool {
    let node = networks::space();
    if let Err(error) = &node {
        eprintln!(
            "skipped: bridges, two cables, {}, {} and {}: {error:#}",
            nodes::READS,
            nodes::FINDS,
            nodes::QUERIES
        );
    }
    node.is_ok()
}

/// What carries messages.
#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Way {
    /// Between processes of a node.
    Memory,
    /// Between nodes.
    Tcp,
    /// Between nodes, in bulk.
    Udp,
    /// Between nodes, by that library.
    Libfabric,
    /// The same.
    Ucx,
}

/// Libraries that bring networks of their own, as far as they are built in. What `FI_PROVIDER` and `UCX_TLS`
/// say decides over which network.
const LIBRARIES: &[(&str, Way)] = &[
    #[cfg(feature = "libfabric")]
    ("libfabric", Way::Libfabric),
    #[cfg(feature = "ucx")]
    ("UCX", Way::Ucx),
];

/// One thing to measure: runs so many messages and returns the microseconds of one.
struct Variant {
    name: String,
    count: usize,
    run: Box<dyn FnMut(usize) -> Result<f64>>,
}

fn variants(directory: &str) -> Result<Vec<Variant>> {
    let mut all = Vec::new();
    let mut add = |name: String, count, run: Box<dyn FnMut(usize) -> Result<f64>>| {
        all.push(Variant { name, count, run });
    };
    let pair = |way, spin, threads| {
        let directory = directory.to_string();
        move || Pair::start(&directory, way, spin, threads)
    };
    for (way, spin, count) in [("spinning", true, 4000), ("sleeping", false, 1000)] {
        for size in [SHORT, LONG] {
            let name = format!("round trip {size} B, raw TCP, {way}");
            let raw = move |count| tcp::Client::start(spin)?.round_trips(size, count);
            add(name, count, Box::new(raw));
            let ours = pair(Way::Tcp, spin, 1);
            let name = format!("round trip {size} B, TCP, {way}");
            add(name, count, Box::new(move |count| ours()?.round_trips(size, count)));
        }
    }
    for size in [SHORT, LONG] {
        let name = format!("round trip {size} B, bare ring, spinning");
        let bare = move |count| Ok(memory::Bare::start().round_trips(size, count));
        add(name, 40_000, Box::new(bare));
        let ours = pair(Way::Memory, true, 1);
        let name = format!("round trip {size} B, memory, spinning");
        add(name, 40_000, Box::new(move |count| ours()?.round_trips(size, count)));
    }
    for (name, way) in LIBRARIES.iter().copied() {
        for size in [SHORT, LONG] {
            let ours = pair(way, true, 1);
            let name = format!("round trip {size} B, {name}, spinning");
            add(name, 4000, Box::new(move |count| ours()?.round_trips(size, count)));
        }
    }
    for size in [LONG, LONGEST] {
        let count = STREAMED / size;
        let raw = move |count| tcp::Client::start(false)?.stream(size, count);
        add(format!("stream {size} B, raw TCP"), count, Box::new(raw));
        let ways = [("TCP", Way::Tcp), ("UDP", Way::Udp), ("memory", Way::Memory)];
        for (name, way) in ways.into_iter().chain(LIBRARIES.iter().copied()) {
            let ours = pair(way, false, 1);
            let name = format!("stream {size} B, {name}");
            add(name, count, Box::new(move |count| ours()?.stream(size, count)));
        }
    }
    let ours = pair(Way::Udp, false, 1);
    let run = move |count| ours()?.stream_given(LONGEST, count);
    add(given_over_udp(), STREAMED / LONGEST, Box::new(run));
    for threads in [1, 4, THREADS] {
        let ours = pair(Way::Tcp, false, threads);
        let run = move |count| ours()?.threads(SHORT, count);
        add(of_threads(threads, "sleeping"), 4000 / threads, Box::new(run));
    }
    let ours = pair(Way::Tcp, true, THREADS);
    let run = move |count| ours()?.threads(SHORT, count);
    add(of_threads(THREADS, "spinning"), TRIPS_OF_SPINNING_CROWDS, Box::new(run));
    let asking = context(directory, Way::Memory, false)?;
    let target = asking.register(attrs! { "name" => "target" })?;
    let find = move |count| {
        let start = Instant::now();
        for _ in 0..count {
            let found = asking.find(attrs! { "name" => "target" }).one_of_any()?;
            anyhow::ensure!(found == target.id(), "another resource was found");
        }
        Ok(micros(start, count))
    };
    add("find, answered before".into(), 2000, Box::new(find));
    Ok(all)
}

/// How a stream of messages that are given away is called. Lent ones are copied once more, since what was sent is kept until
/// it is confirmed: over TCP by the kernel.
fn given_over_udp() -> String {
    format!("stream {LONGEST} B, UDP, given")
}

/// How round trips of so many pairs of threads are called.
fn of_threads(threads: usize, waiting: &str) -> String {
    format!("{threads} pairs of threads, {SHORT} B, TCP, {waiting}")
}

fn report(figures: &mut Figures, samples: &Samples) {
    for (name, samples) in samples {
        figures.median(name, "us", samples, None, None);
    }
    let ratio = |of: &str, to: &str| ratios(samples, of, to);
    let mut against = |name: String, of: &str, to: &str, target| {
        figures.median(name, "x", &ratio(of, to), None, Some(target));
    };
    for size in [SHORT, LONG] {
        for way in ["spinning", "sleeping"] {
            let ours = format!("round trip {size} B, TCP, {way}");
            let raw = format!("round trip {size} B, raw TCP, {way}");
            let name = format!("round trip {size} B over TCP against raw, {way}");
            against(name, &ours, &raw, Target::AtMost(1.15));
        }
        let ours = format!("round trip {size} B, memory, spinning");
        let bare = format!("round trip {size} B, bare ring, spinning");
        let name = format!("round trip {size} B in memory against a bare ring");
        against(name, &ours, &bare, Target::AtMost(3.0));
    }
    let (ours, raw) = (
        format!("round trip {SHORT} B, TCP, spinning"),
        format!("round trip {SHORT} B, raw TCP, spinning"),
    );
    let name = "round trip of 1 pair of threads against spinning TCP, a core for each";
    against(name.into(), &ours, &raw, Target::AtMost(1.3));
    for (size, least) in [(LONG, 1.3), (LONGEST, 1.0)] {
        let (ours, raw) = (format!("stream {size} B, TCP"), format!("stream {size} B, raw TCP"));
        let name = format!("rate of a stream of {size} B over TCP against raw");
        // Times are of a message, so the raw one comes first.
        against(name, &raw, &ours, Target::AtLeast(least));
    }
    let (ours, raw) = (format!("stream {LONGEST} B, UDP"), format!("stream {LONGEST} B, raw TCP"));
    let name = format!("rate of a stream of {LONGEST} B over UDP against raw TCP");
    against(name, &raw, &ours, Target::AtLeast(1.2));
    let given = ratio(&raw, &given_over_udp());
    let pairs = |threads| of_threads(threads, "sleeping");
    let name = format!("rate of {THREADS} pairs of threads against 1");
    against(name, &pairs(1), &pairs(THREADS), Target::AtLeast(3.0));
    let name = format!("rate of a stream of {LONGEST} B that are given over UDP against raw TCP");
    figures.median(name, "x", &given, None, None);
    let trips = ratio(&pairs(4), &pairs(1)).iter().map(|time| time * 4.0).collect::<Vec<_>>();
    let name = "round trip of 4 pairs of threads against 1";
    figures.median(name, "x", &trips, None, Some(Target::AtMost(2.0)));
    let find = samples.get("find, answered before").map_or(&[][..], Vec::as_slice);
    figures.median("find that was answered before", "us", find, None, Some(Target::AtMost(5.0)));
}

/// Of each round, the time of one variant against that of another; none if one of them was not asked for.
fn ratios(samples: &Samples, of: &str, to: &str) -> Vec<f64> {
    let [of, to] = [of, to].map(|name| samples.get(name).into_iter().flatten());
    of.zip(to).map(|(of, to)| of / to).collect()
}

/// Resources here and the other process's.
struct Pair {
    pairs: Vec<(Resource, ResourceId)>,
    _context: Context,
    _peer: Peer,
}

impl Pair {
    fn start(directory: &str, way: Way, spin: bool, threads: usize) -> Result<Self> {
        let way_name = format!("{way:?}");
        let words = ["fabric", directory, &way_name, &spin.to_string()];
        let peer = Peer::of_ours(&[&words[..], &[&threads.to_string()]].concat())?;
        let context = context(directory, way, spin)?;
        let peers = peer.said().split_whitespace().map(str::parse);
        let pairs = peers
            .map(|peer| Ok((context.register(attrs! { "role" => "asks" })?, peer?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { pairs, _context: context, _peer: peer })
    }

    fn round_trips(&self, size: usize, count: usize) -> Result<f64> {
        ask(&self.pairs[0], size, WARM_UP)?;
        let start = Instant::now();
        ask(&self.pairs[0], size, count)?;
        Ok(micros(start, count))
    }

    fn stream(&self, size: usize, count: usize) -> Result<f64> {
        let data = vec![7_u8; size];
        self.stream_of(count, || Payload::from(&data))
    }

    /// The same memory again and again: who gives a message does not write to it afterwards.
    fn stream_given(&self, size: usize, count: usize) -> Result<f64> {
        let data = Buffer::from_owner(vec![7_u8; size]);
        self.stream_of(count, || Payload::from(data.clone()))
    }

    fn stream_of<'a>(&self, count: usize, next: impl Fn() -> Payload<'a>) -> Result<f64> {
        let (own, peer) = &self.pairs[0];
        ask(&self.pairs[0], SHORT, WARM_UP)?;
        let start = Instant::now();
        for _ in 0..count {
            own.send(*peer, STREAM, next())?;
        }
        own.send(*peer, FINISH, b"")?;
        own.recv(Match::any())?;
        Ok(micros(start, count))
    }

    /// Every pair has so many round trips; the time is that of one of all of them.
    fn threads(&self, size: usize, count: usize) -> Result<f64> {
        // Where only few are worth their time, so are few before.
        ask(&self.pairs[0], size, WARM_UP.min(count))?;
        let start = Instant::now();
        thread::scope(|scope| {
            let threads = self.pairs.iter().map(|pair| scope.spawn(move || ask(pair, size, count)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a thread has panicked"),
            })
        })?;
        Ok(micros(start, count * self.pairs.len()))
    }
}

fn ask((own, peer): &(Resource, ResourceId), size: usize, count: usize) -> Result<()> {
    let data = vec![7; size];
    for _ in 0..count {
        own.send(*peer, QUESTION, &data)?;
        let answer = own.recv(Match::tag(0))?;
        anyhow::ensure!(answer.data.len() == size, "another answer");
    }
    Ok(())
}

fn context(directory: &str, way: Way, spin: bool) -> Result<Context> {
    let mut config = Config::default();
    config.directory = directory.into();
    config.shared_memory = way == Way::Memory;
    config.between_nodes = match way {
        Way::Memory | Way::Tcp => Protocol::Tcp,
        Way::Udp => Protocol::Udp,
        Way::Libfabric => Protocol::Libfabric,
        Way::Ucx => Protocol::Ucx,
    };
    config.wait = if spin { Wait::Spin } else { Wait::Block };
    config.close_time = Duration::from_millis(100);
    Ok(Context::open(config)?)
}

/// Pins the calling thread, and those that it makes, to one core.
pub fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &cores).context("this needs two cores")
}

fn micros(start: Instant, count: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / count as f64
}
