//! Figures 2 to 12 of RoCL (`Evaluating Applications Performance in a Multi-networked Cluster`), done
//! again: its directory, its messages within a node, over each of three networks, over a bridge and over
//! two networks at once, and its hash table, on 4 and 8 nodes.

pub mod dht;
pub mod directory;
mod messages;
mod page;
pub mod testbed;

pub use directory::{Arguments, run as client};

use crate::figures::{Figures, Target, quantile};
use crate::parts::Parts;
use crate::quick;
use anyhow::Result;
use dht::Setting;
use directory::Question;
use keeptime::interrupt;
use keeptime::machine::Machine;
use keeptime_fabric::Protocol;
use keeptime_model::units::CpuPpm;
use messages::{Pairs, Point, Way, by_size, two};
use serde::Serialize;
use std::path::Path;
use testbed::{Network, Node, Testbed};

const NAME: &str = "rocl";
/// Of a CPU, for each node: eight nodes and a bridge have 1.35 of the 2 that there are at least.
pub const SHARE: CpuPpm = CpuPpm::from_percent(15);
/// Clients of a node: figures 2 to 4, and 10 to 12.
const ASKING: [usize; 5] = [1, 2, 4, 8, 16];
const QUERYING: [usize; 4] = [1, 2, 4, 8];
/// Shares of questions about the own node, in percent.
const LOCAL: [u32; 4] = [0, 25, 50, 75];
const SIZES: [usize; 6] = [16, 256, 4_096, 16_384, 65_536, 262_144];
const STREAMED: [usize; 6] = [1_024, 4_096, 16_384, 65_536, 524_288, 4 << 20];
/// Networks in turns, each round with new connections.
const STREAM_ROUNDS: usize = 3;
const PAIRS: [usize; 3] = [1, 2, 4];

/// A line of a figure.
type Series = (String, Vec<Point>);

/// A node's name and its networks.
pub type Described = (String, Vec<Network>);

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
struct Raw {
    machine: Option<Machine>,
    /// Questions a second by clients: those of one node to its own server.
    figure_2: Vec<Point>,
    /// The same on 4 and 8 nodes, all together, by the share of the own node in percent.
    figure_3: Vec<(u32, Vec<Point>)>,
    figure_4: Vec<(u32, Vec<Point>)>,
    /// Bytes that nodes sent for a question, on 4 and 8 nodes, none about the own node.
    sent: [f64; 2],
    /// Registrations a second on 4 and 8 nodes: what the others have to be told.
    registered: [f64; 2],
    /// Microseconds by bytes.
    figure_5: Vec<Series>,
    /// By network and pairs.
    figure_6_7: Vec<(Carrier, usize, Vec<Point>)>,
    figure_8: Vec<Series>,
    /// Mbit/s by bytes: first, second, both.
    figure_9: Vec<Series>,
    /// Queries a second of all nodes together, by clients of a node.
    figure_10: Vec<(String, Vec<dht::Point>)>,
    figure_11: Vec<(String, Vec<dht::Point>)>,
    figure_12: Vec<(String, Vec<dht::Point>)>,
}

/// A network and what carries messages over it, as they are called.
type Carrier = String;

/// Measures all and writes the figures and the page; goes on with the parts that an interrupted run left.
pub fn run(out: &Path) -> Result<()> {
    interrupt::listen()?;
    let mut parts = Parts::open(&out.join(NAME))?;
    let mut raw = Raw { machine: Some(parts.machine()?), ..Raw::default() };
    directories(&mut parts, &mut raw)?;
    within_a_node(&mut parts, &mut raw)?;
    over_networks(&mut parts, &mut raw)?;
    over_a_bridge(&mut parts, &mut raw)?;
    over_two_networks(&mut parts, &mut raw)?;
    tables(&mut parts, &mut raw)?;
    page::write(&raw, &out.join(format!("{NAME}.html")))?;
    figures(&raw).finish(out, &raw)?;
    parts.finish()
}

/// The paper's cluster: four nodes on all networks, four on the second and the slow one.
pub fn eight() -> Vec<Described> {
    let first = (1..=4).map(|number| (format!("p{number}"), Network::ALL.to_vec()));
    let second = |number| (format!("a{number}"), vec![Network::Second, Network::Slow]);
    first.chain((1..=4).map(second)).collect()
}

fn on(names: &[&str], networks: &[Network]) -> Vec<Described> {
    names.iter().map(|name| ((*name).into(), networks.to_vec())).collect()
}

/// All of them, or the ends for a quick look.
fn some<T: Copy>(all: &[T]) -> Vec<T> {
    match (quick(), all.first(), all.last()) {
        (true, Some(first), Some(last)) => vec![*first, *last],
        _ => all.to_vec(),
    }
}

fn directories(parts: &mut Parts, raw: &mut Raw) -> Result<()> {
    let seconds = if quick() { 0.5 } else { 2.0 };
    // Made when a part is not there yet.
    let mut made: Option<Testbed> = None;
    for count in [1, 4, 8] {
        let locals = if count == 1 { vec![100] } else { some(&LOCAL) };
        for local in locals {
            let name = format!("directory, {count} nodes, {local} % local");
            let points: Vec<Point> = parts.part(&name, || {
                let nodes = nodes_of(&mut made, count)?;
                let share = f64::from(local) / 100.0;
                let point = |clients: &usize| -> Result<Point> {
                    eprintln!("{name}, {clients} clients a node");
                    let find = Question::Find;
                    Ok((*clients as f64, directory::rate(&nodes, find, *clients, share, seconds)?))
                };
                some(&ASKING).iter().map(point).collect()
            })?;
            match count {
                1 => raw.figure_2 = points,
                4 => raw.figure_3.push((local, points)),
                _ => raw.figure_4.push((local, points)),
            }
        }
    }
    for (at, count) in [4, 8].into_iter().enumerate() {
        (raw.sent[at], raw.registered[at]) =
            parts.part(&format!("costs, {count} nodes"), || {
                let nodes = nodes_of(&mut made, count)?;
                eprintln!("what questions and registrations cost on {count} nodes");
                let before = directory::sent(&nodes)?;
                let found = directory::rate(&nodes, Question::Find, 4, 0.0, seconds)?;
                let sent = (directory::sent(&nodes)? - before) as f64 / (found * seconds);
                Ok((sent, directory::rate(&nodes, Question::Register, 4, 0.0, seconds)?))
            })?;
    }
    Ok(())
}

/// The first nodes of a testbed of eight, made if it is not there.
fn nodes_of(made: &mut Option<Testbed>, count: usize) -> Result<Vec<&Node>> {
    let testbed = match made {
        Some(testbed) => testbed,
        None => made.insert(Testbed::new(&eight(), None, Some(SHARE))?),
    };
    Ok(testbed.nodes().iter().take(count).collect())
}

fn within_a_node(parts: &mut Parts, raw: &mut Raw) -> Result<()> {
    raw.figure_5 = parts.part("figure 5", || {
        eprintln!("figure 5");
        let testbed = Testbed::new(&on(&["one"], &[Network::First]), None, None)?;
        let node = testbed.node("one")?;
        let sizes = some(&SIZES);
        let memory = Pairs::new(node, node, Way::ALL, 1)?;
        let tcp = Way { shared_memory: false, ..Way::ALL };
        let tcp = Pairs::new(node, node, tcp, 1)?;
        Ok(vec![
            ("same context, lent".into(), by_size(&sizes, |b| messages::within(node, b, false))?),
            ("same context, given".into(), by_size(&sizes, |b| messages::within(node, b, true))?),
            ("another, shared memory".into(), by_size(&sizes, |b| memory.round_trip(b))?),
            ("another, TCP".into(), by_size(&sizes, |b| tcp.round_trip(b))?),
        ])
    })?;
    Ok(())
}

fn over_networks(parts: &mut Parts, raw: &mut Raw) -> Result<()> {
    let mut made: Option<Testbed> = None;
    for network in Network::ALL {
        for (protocol, carrier) in [(Protocol::Tcp, "TCP"), (Protocol::Udp, "UDP")] {
            for pairs in some(&PAIRS) {
                let label = format!("{}, {carrier}", network.label());
                let name = format!("figures 6 and 7, {label}, {pairs} pairs");
                let points = parts.part(&name, || {
                    eprintln!("{name}");
                    if made.is_none() {
                        let nodes = on(&["one", "other"], &Network::ALL);
                        made = Some(Testbed::new(&nodes, None, None)?);
                    }
                    let Some(testbed) = &made else { anyhow::bail!("no testbed") };
                    let (near, far) = two(testbed, "one", "other")?;
                    let all = Pairs::new(near, far, Way::over(network, protocol), pairs)?;
                    by_size(&some(&SIZES), |bytes| all.round_trip(bytes))
                })?;
                raw.figure_6_7.push((label, pairs, points));
            }
        }
    }
    Ok(())
}

fn over_a_bridge(parts: &mut Parts, raw: &mut Raw) -> Result<()> {
    raw.figure_8 = parts.part("figure 8", || {
        eprintln!("figure 8");
        let nodes = [
            ("one".to_owned(), vec![Network::First, Network::Slow]),
            ("bridge".to_owned(), Network::ALL.to_vec()),
            ("other".to_owned(), vec![Network::Second, Network::Slow]),
        ];
        let testbed = Testbed::new(&nodes, Some("bridge"), None)?;
        let bridged = Way { networks: [Some(Network::First), Some(Network::Second)], ..Way::ALL };
        let ways = [
            ("first, direct", "one", "bridge", Way::over(Network::First, Protocol::Tcp)),
            ("second, direct", "bridge", "other", Way::over(Network::Second, Protocol::Tcp)),
            ("first to second, bridged", "one", "other", bridged),
            ("slow, direct", "one", "other", Way::over(Network::Slow, Protocol::Tcp)),
        ];
        let line = |(label, near, far, way): (&str, &str, &str, Way)| -> Result<Series> {
            let (near, far) = two(&testbed, near, far)?;
            let pairs = Pairs::new(near, far, way, 1)?;
            Ok((label.into(), by_size(&some(&SIZES), |bytes| pairs.round_trip(bytes))?))
        };
        ways.into_iter().map(line).collect()
    })?;
    Ok(())
}

fn over_two_networks(parts: &mut Parts, raw: &mut Raw) -> Result<()> {
    raw.figure_9 = parts.part("figure 9", || {
        eprintln!("figure 9");
        let nodes = on(&["one", "other"], &[Network::First, Network::Second]);
        let testbed = Testbed::new(&nodes, None, None)?;
        let (near, far) = two(&testbed, "one", "other")?;
        let ways = [
            (Network::First.label(), Way::over(Network::First, Protocol::Tcp)),
            (Network::Second.label(), Way::over(Network::Second, Protocol::Tcp)),
            ("both", Way::ALL),
        ];
        let mut lines = ways.map(|(label, _)| (label, Vec::new()));
        for _ in 0..if quick() { 1 } else { STREAM_ROUNDS } {
            for ((_, way), (_, rounds)) in ways.iter().zip(&mut lines) {
                // What both networks bring is found out anew each time.
                let pairs = Pairs::new(near, far, *way, 1)?;
                rounds.push(by_size(&some(&STREAMED), |bytes| pairs.stream(bytes))?);
            }
        }
        Ok(lines.map(|(label, rounds)| (label.into(), medians(&rounds))).to_vec())
    })?;
    Ok(())
}

/// Of rounds with the same places, one after the other.
fn medians(rounds: &[Vec<Point>]) -> Vec<Point> {
    let [first, ..] = rounds else { return Vec::new() };
    let median = |(at, (place, _)): (usize, &Point)| {
        let values: Vec<f64> = rounds.iter().map(|points| points[at].1).collect();
        (*place, quantile(&values, 0.5))
    };
    first.iter().enumerate().map(median).collect()
}

/// What the paper calls `RoCL over GM`, `over MVIA`, over Fast Ethernet, and over the bridge.
fn tables(parts: &mut Parts, raw: &mut Raw) -> Result<()> {
    let first: fn(&str) -> Network = |_| Network::First;
    let second: fn(&str) -> Network = |_| Network::Second;
    let slow: fn(&str) -> Network = |_| Network::Slow;
    let mixed: fn(&str) -> Network =
        |name| if name.starts_with('p') { Network::First } else { Network::Second };
    let direct = [("first", first), ("second", second), ("slow", slow)];
    let wide = [("second", second), ("slow", slow), ("first and second, bridged", mixed)];
    let mut made: Option<Testbed> = None;
    let mut measure = |figure: &str, label: &str, count: usize, network, misses: f64| {
        let name = format!("{figure}, {label}");
        parts.part(&name, || {
            eprintln!("{name}");
            if made.is_none() {
                let mut nodes = eight();
                nodes.push(("bridge".into(), Network::ALL.to_vec()));
                made = Some(Testbed::new(&nodes, Some("bridge"), Some(SHARE))?);
            }
            let Some(testbed) = &made else { anyhow::bail!("no testbed") };
            let nodes: Vec<_> = testbed.nodes().iter().take(count).collect();
            let setting = Setting { network, misses };
            dht::measure(testbed, &nodes, setting, &some(&QUERYING), SHARE)
        })
    };
    for (label, network) in direct {
        let points = measure("figure 10", label, 4, network, 0.0)?;
        raw.figure_10.push((label.into(), points));
    }
    for (label, network) in wide {
        let points = measure("figure 11", label, 8, network, 0.0)?;
        raw.figure_11.push((label.into(), points));
    }
    for (label, network) in direct {
        let points = measure("figure 12", label, 4, network, 0.5)?;
        raw.figure_12.push((label.into(), points));
    }
    Ok(())
}

/// Queries a second of a line, with the clients that have the most: of each round.
fn most<'a>(lines: &'a [(String, Vec<dht::Point>)], label: &str) -> &'a [f64] {
    let line = lines.iter().find(|(of, _)| of == label);
    let points = line.into_iter().flat_map(|(_, points)| points);
    let most = points.max_by(|one, other| one.queries.total_cmp(&other.queries));
    most.map_or(&[], |point| &point.rounds)
}

/// Round by round.
fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// Figure 9: the rate over both networks against the sum of each alone, at the size where that is least, of those
/// for which the paper finds that two are worth it.
fn worst_together(raw: &Raw) -> f64 {
    let line = |label| raw.figure_9.iter().find(|(of, _)| of == label).map(|(_, points)| points);
    let lines = [line("both"), line(Network::First.label()), line(Network::Second.label())];
    let [Some(both), Some(first), Some(second)] = lines else { return f64::NAN };
    let sums = first.iter().zip(second).map(|(first, second)| first.1 + second.1);
    let all = both.iter().zip(sums).filter(|((bytes, _), _)| *bytes >= 4096.0);
    all.map(|((_, both), sum)| both / sum).fold(f64::NAN, f64::min)
}

fn highest(points: &[Point]) -> f64 {
    points.iter().map(|point| point.1).fold(0.0, f64::max)
}

/// A line's value at its greatest size.
fn at_end(lines: &[Series], label: &str) -> f64 {
    let line = lines.iter().find(|(of, _)| of == label);
    line.and_then(|(_, points)| points.last()).map_or(f64::NAN, |point| point.1)
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::of_evaluation(NAME);
    let mut one = |name: &str, unit: &str, value: f64, target| {
        figures.value(name, unit, value, &[value], None, target);
    };
    one("figure 2: most questions of one node's clients", "/s", highest(&raw.figure_2), None);
    let global = |lines: &[(u32, Vec<Point>)]| lines.first().map_or(f64::NAN, |(_, p)| highest(p));
    let (four, eight) = (global(&raw.figure_3), global(&raw.figure_4));
    one("figure 3: most global questions on 4 nodes", "/s", four, None);
    let grows = Some(Target::AtLeast(1.0));
    one("figure 4: global questions on 8 nodes against 4", "x", eight / four, grows);
    one("bytes between nodes for a global question, 8 nodes", "B", raw.sent[1], None);
    let [few, many] = raw.registered;
    one("registrations on 8 nodes against 4", "x", many / few, None);
    let shared = at_end(&raw.figure_5, "another, shared memory");
    let loopback = at_end(&raw.figure_5, "another, TCP");
    one("figure 5: shared memory against TCP, longest", "x", shared / loopback, None);
    let long = |pairs: usize| {
        let line = raw.figure_6_7.iter().find(|(_, of, _)| *of == pairs);
        line.and_then(|(_, _, points)| points.last()).map_or(f64::NAN, |point| point.1)
    };
    let name = "figure 7: longest round trip of 4 pairs against 1, first network";
    one(name, "x", long(4) / long(1), None);
    let bridged = at_end(&raw.figure_8, "first to second, bridged");
    let slow = at_end(&raw.figure_8, "slow, direct");
    let name = "figure 8: longest round trip bridged against the slow network";
    one(name, "x", bridged / slow, Some(Target::AtMost(1.0)));
    let name = "figure 9: both networks against their sum, worst from 4 KiB on";
    one(name, "x", worst_together(raw), Some(Target::AtLeast(0.95)));
    let (few, many) = (most(&raw.figure_10, "second"), most(&raw.figure_11, "second"));
    let bridged = most(&raw.figure_11, "first and second, bridged");
    let missed = most(&raw.figure_12, "second");
    let mut of_rounds = |name: &str, unit: &str, samples: &[f64], target| {
        figures.median(name, unit, samples, None, target);
    };
    of_rounds("figure 10: queries on 4 nodes, second network", "/s", few, None);
    of_rounds("figure 11: queries on 8 nodes, second network", "/s", many, None);
    let name = "figure 11: queries on 8 nodes against 4";
    of_rounds(name, "x", &ratios(many, few), Some(Target::AtLeast(1.6)));
    let name = "figure 11: bridged against second network alone";
    of_rounds(name, "x", &ratios(bridged, many), None);
    let name = "figure 12: half of the messages miss the cache";
    of_rounds(name, "x", &ratios(missed, few), None);
    figures
}
