//! MPI programs that ask for quality of service: what they have of a network that others fill, how soon
//! an attribute is enforced, and what the library costs those that ask for nothing.

pub mod ranks;

use crate::figures::{Figures, Target, quantile};
use crate::lab::BenchLab;
use crate::parts::Parts;
use crate::quick;
use anyhow::{Result, ensure};
use keeptime::interrupt;
use keeptime::load::Flood;
use keeptime::machine::Machine;
use keeptime_lab::Policer;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Bytes, CpuPpm};
use keeptime_mpiqos::overhead;
use ranks::{Library, Ranks};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const NODES: u32 = 4;
const LINK: BitsPerSecond = BitsPerSecond::from_mbit(100);
/// The library's cost shows where the network costs little, and latency where a frame is soon gone: one of
/// 100 Mbit/s takes longer than a whole exchange of small messages. There are also so many exchanges in a
/// second that those in which a rank's share of a CPU was used up are fewer than one in a hundred.
const WIDE_LINK: BitsPerSecond = BitsPerSecond::from_mbit(1_000);
/// A rank that waits looks for messages without pause, and stands still when it has used up its share of
/// a CPU: pairs have nearly a core for each rank, so that the network decides, and all-to-all has blocks
/// that take longer than that.
const CPU_OF_FOUR: [CpuPpm; 2] = [CpuPpm::from_percent(42), CpuPpm::from_percent(34)];
const CPU_OF_TWO: [CpuPpm; 2] = [CpuPpm::from_percent(85), CpuPpm::from_percent(75)];
/// Flows that compete go on for so long at the most; they end with what they are there for.
const FLOOD_LIMIT: Duration = Duration::from_secs(600);
/// Most of a link: what is left is for control and for best effort.
const PINGPONG_KBPS: &str = "80000";
/// Three flows leave each node.
const ALLTOALL_KBPS: &str = "26000";
/// What MPICH-GQ's Table 1 asks for, in kbit/s of payload, and its frames a second.
const RATES: [u32; 4] = [400, 800, 1_600, 2_400];
const FRAMES: [u32; 2] = [10, 1];
/// Of the payload: more than the paper's 1.06, since small frames have more headers.
const RESERVED_MAX: f64 = 1.08;

/// Samples by what was measured.
type Samples = BTreeMap<String, Vec<f64>>;

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    load: String,
    contention: Samples,
    policed: Samples,
    enforced_ms: Vec<f64>,
    overhead: Samples,
}

/// One way to run a program.
struct Way {
    name: &'static str,
    words: &'static [&'static str],
}

/// A program that is run in several ways, alone and beside others.
struct Contest {
    name: &'static str,
    ranks: usize,
    words: &'static [&'static str],
    ways: [Way; 2],
    /// What it tells, and which of the numbers there are what.
    key: &'static str,
    columns: &'static [(&'static str, usize)],
}

/// On two nodes.
const PAIR: &[Contest] = &[
    premium_pingpong("pingpong 128 KiB", &["pingpong", "--bytes", "131072", "--seconds", "3"]),
    premium_pingpong("pingpong 256 KiB", &["pingpong", "--bytes", "262144", "--seconds", "3"]),
];
/// On two nodes with wide links.
const SMALL: &[Contest] = &[Contest {
    name: "pingpong 8 B",
    ranks: 2,
    words: &["pingpong", "--bytes", "8", "--seconds", "3"],
    ways: [way("asks for nothing", &[]), way("low-latency", &["--qos", "low-latency"])],
    key: "round_trip_us",
    columns: &[("median", 0), ("p99", 1)],
}];
/// On all.
const EVERYONE: &[Contest] = &[Contest {
    name: "alltoall 256 KiB",
    ranks: NODES as usize,
    words: &["alltoall", "--bytes", "262144", "--times", "12"],
    ways: [
        way("asks for nothing", &[]),
        way("premium", &["--qos", "premium", "--kbps", ALLTOALL_KBPS]),
    ],
    key: "pair_mbit",
    columns: &[("rate", 0)],
}];

const fn premium_pingpong(name: &'static str, words: &'static [&'static str]) -> Contest {
    Contest {
        name,
        ranks: 2,
        words,
        ways: [
            way("asks for nothing", &[]),
            way("premium", &["--qos", "premium", "--kbps", PINGPONG_KBPS]),
        ],
        key: "one_way_mbit",
        columns: &[("rate", 0)],
    }
}

const fn way(name: &'static str, words: &'static [&'static str]) -> Way {
    Way { name, words }
}

/// Measures all and writes the figures; goes on with the parts that an interrupted run left.
pub fn run(out: &Path) -> Result<()> {
    interrupt::listen()?;
    let mut parts = Parts::open(&out.join("mpi"))?;
    let machine = parts.machine()?;
    let load = Flood::description(NODES as usize);
    let enforced_ms =
        parts.part("enforced", || on_lab(NODES, LINK, CPU_OF_FOUR, |_, ranks| enforced(ranks)))?;
    let mut contention = parts.part("all nodes beside a flood", || {
        on_lab(NODES, LINK, CPU_OF_FOUR, |lab, ranks| contend(lab, ranks, EVERYONE))
    })?;
    for (part, link, contests) in
        [("a pair beside a flood", LINK, PAIR), ("small messages beside a flood", WIDE_LINK, SMALL)]
    {
        contention.extend(parts.part(part, || {
            on_lab(2, link, CPU_OF_TWO, |lab, ranks| contend(lab, ranks, contests))
        })?);
    }
    let policed = parts.part("policed", || on_lab(NODES, LINK, CPU_OF_FOUR, policed))?;
    let overhead = parts.part("the library's cost", || {
        on_lab(2, WIDE_LINK, CPU_OF_TWO, |_, ranks| overhead_of_library(ranks))
    })?;
    let raw = Raw { machine, load, contention, policed, enforced_ms, overhead };
    figures(&raw).finish(out, &raw)?;
    parts.finish()
}

/// Measures on a lab of `nodes` nodes under a reservation, with the shares of a CPU that each node and
/// of it the reservation has.
fn on_lab<T>(
    nodes: u32,
    link: BitsPerSecond,
    [of_node, reserved]: [CpuPpm; 2],
    measure: impl FnOnce(&BenchLab, &Ranks<'_>) -> Result<T>,
) -> Result<T> {
    let lab = BenchLab::star("bench-mpi", nodes, link, of_node)?;
    measure(&lab, &Ranks::on(&lab, reserved)?)
}

/// Milliseconds from setting an attribute until every node enforces it, as the last rank sees it.
fn enforced(ranks: &Ranks<'_>) -> Result<Vec<f64>> {
    eprintln!("setting attributes");
    let times = if quick() { "5" } else { "200" };
    let told =
        ranks.run(NODES as usize, Library::Preloaded, &["changes", "5000", times], "changes")?;
    Ok(told.all("change")?.into_iter().filter_map(|numbers| numbers.last().copied()).collect())
}

/// Every contest in each way, alone and beside a flood, in turns.
fn contend(lab: &BenchLab, ranks: &Ranks<'_>, contests: &[Contest]) -> Result<Samples> {
    let mut samples = Samples::new();
    for round in 0..rounds(5) {
        for is_busy in [false, true] {
            let flood = is_busy.then(|| Flood::on_all_links(lab.cluster(), FLOOD_LIMIT));
            let _flood = flood.transpose()?;
            let beside = if is_busy { "beside" } else { "alone" };
            eprintln!("round {}, {beside}", round + 1);
            for contest in contests {
                for way in &contest.ways {
                    let words = [contest.words, way.words].concat();
                    let told = ranks.run(contest.ranks, Library::Preloaded, &words, contest.key)?;
                    if !way.words.is_empty() {
                        let (state, _) = told.qos()?;
                        ensure!(state == "granted", "{} is {state}", words.join(" "));
                    }
                    let numbers = told.numbers(contest.key)?;
                    for (column, at) in contest.columns {
                        let name = key(contest, column, way, beside);
                        samples.entry(name).or_default().push(numbers[*at]);
                    }
                }
            }
        }
    }
    Ok(samples)
}

fn key(contest: &Contest, column: &str, way: &Way, beside: &str) -> String {
    format!("{column} of {}, {}, {beside}", contest.name, way.name)
}

/// Streams through a policer that lets pass what was reserved and no more, with and without shaping:
/// what arrives of what was sent, and how much more than the payload was reserved.
fn policed(lab: &BenchLab, ranks: &Ranks<'_>) -> Result<Samples> {
    let mut samples = Samples::new();
    for rate in RATES {
        for frames in FRAMES {
            for shaping in ["on", "off"] {
                eprintln!(
                    "a policed stream of {rate} kbit/s, {frames} frames a second, shaping {shaping}"
                );
                for (what, value) in stream(lab, ranks, rate, frames, shaping)? {
                    let name = format!("{what}, {rate} kbit/s, {frames} fps, shaping {shaping}");
                    samples.entry(name).or_default().push(value);
                }
            }
        }
    }
    Ok(samples)
}

fn stream(
    lab: &BenchLab,
    ranks: &Ranks<'_>,
    kbps: u32,
    frames: u32,
    shaping: &str,
) -> Result<[(&'static str, f64); 3]> {
    let (bytes, fps, rate) =
        ((kbps * 125 / frames).to_string(), frames.to_string(), kbps.to_string());
    let seconds = if quick() { "2" } else { "8" };
    let words =
        ["stream", "--bytes", &bytes, "--fps", &fps, "--seconds", seconds, "--qos", "premium"];
    let more = ["--kbps", &rate, "--shaping", shaping];
    let (rate, depth) = reserved(kbps, Bytes::new(u64::from(kbps * 125 / frames)));
    lab.lab()?.police("n1", Some(&Policer { rate, depth, dscp: TrafficClass::Premium.dscp() }))?;
    let told = ranks.run(2, Library::Preloaded, &[&words[..], &more].concat(), "late_frames")?;
    let policed = lab.lab()?.policed("n1")?.unwrap_or_default();
    lab.lab()?.police("n1", None)?;
    let (state, reserved_kbps) = told.qos()?;
    ensure!(state == "granted", "the stream is {state}");
    let payload = f64::from(kbps);
    Ok([
        ("arrived %", 100.0 * told.numbers("mbit")?[0] * 1e3 / payload),
        ("reserved / payload", reserved_kbps / payload),
        ("dropped packets", policed.dropped_packets as f64),
    ])
}

/// What the agents have reserved for such a stream, by the rules that shape it.
fn reserved(kbps: u32, message: Bytes) -> (BitsPerSecond, Bytes) {
    let payload = BitsPerSecond::new(u64::from(kbps) * 1_000);
    // Rates as small as these can be written down.
    let rate = overhead::wire_rate(payload, message).unwrap_or(payload);
    (rate, overhead::depth(rate, message, true))
}

/// Medians of short runs with the library and without, and without it again: what differs there is
/// what cannot be told apart.
fn overhead_of_library(ranks: &Ranks<'_>) -> Result<Samples> {
    const LATENCY: &[&str] =
        &["osu", "--test", "latency", "--least", "8", "--most", "8", "--times", "4000"];
    const BANDWIDTH: &[&str] = &[
        "osu",
        "--test",
        "bandwidth",
        "--least",
        "1048576",
        "--most",
        "1048576",
        "--times",
        "20",
        "--window",
        "8",
    ];
    let mut samples = Samples::new();
    let ways =
        [("without", Library::Absent), ("with", Library::Preloaded), ("again", Library::Absent)];
    for round in 0..rounds(15) {
        eprintln!("the library's cost, round {}", round + 1);
        for turn in 0..ways.len() {
            let (name, library) = ways[(round + turn) % ways.len()];
            for (words, key) in [(LATENCY, "latency"), (BANDWIDTH, "bandwidth")] {
                let value = ranks.run(2, library, words, key)?.numbers(key)?[1];
                samples.entry(format!("{key} {name}")).or_default().push(value);
            }
        }
    }
    Ok(samples)
}

fn rounds(usual: usize) -> usize {
    if quick() { 1 } else { usual }
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new("mpi");
    for contest in EVERYONE.iter().chain(PAIR).chain(SMALL) {
        compare(&mut figures, raw, contest);
    }
    let name = format!("from setting an attribute until {NODES} nodes enforce it");
    figures.median(name, "ms", &raw.enforced_ms, None, Some(Target::AtMost(20.0)));
    let p99 = quantile(&raw.enforced_ms, 0.99);
    figures.value("the same, p99", "ms", p99, &raw.enforced_ms, None, None);
    streams(&mut figures, raw);
    for (key, what) in [("latency", "8-byte latency"), ("bandwidth", "1 MiB bandwidth")] {
        cost(&mut figures, raw, key, what);
    }
    figures
}

/// Beside others against alone: what asks, and as the baseline what asks for nothing.
fn compare(figures: &mut Figures, raw: &Raw, contest: &Contest) {
    let [nothing, asking] = &contest.ways;
    for (column, _) in contest.columns {
        let of = |way: &Way, beside| raw.contention[&key(contest, column, way, beside)].as_slice();
        let ratios = |way: &Way| ratios(of(way, "beside"), of(way, "alone"));
        let (protected, baseline) = (ratios(asking), quantile(&ratios(nothing), 0.5));
        let what = format!("{column} of {}, {}", contest.name, asking.name);
        if *column == "rate" {
            let percent: Vec<_> = protected.iter().map(|ratio| 100.0 * ratio).collect();
            let (baseline, target) = (Some(100.0 * baseline), Some(Target::AtLeast(95.0)));
            figures.median(
                format!("{what}, beside a flood, of alone"),
                "%",
                &percent,
                baseline,
                target,
            );
        } else {
            let target = (*column == "p99").then_some(Target::AtMost(2.0));
            let name = format!("{what}, beside a flood / alone");
            figures.median(name, "", &protected, Some(baseline), target);
        }
        let baseline = quantile(of(nothing, "alone"), 0.5);
        let unit = if *column == "rate" { "Mbit/s" } else { "us" };
        figures.median(format!("{what}, alone"), unit, of(asking, "alone"), Some(baseline), None);
    }
}

fn ratios(some: &[f64], others: &[f64]) -> Vec<f64> {
    some.iter().zip(others).map(|(one, other)| one / other).collect()
}

/// The worst of all streams of Table 1.
fn streams(figures: &mut Figures, raw: &Raw) {
    let of = |what: &str, shaping: &str| -> Vec<f64> {
        let is_it = |name: &str| name.starts_with(what) && name.ends_with(shaping);
        let some = raw.policed.iter().filter(|(name, _)| is_it(name));
        some.flat_map(|(_, values)| values.clone()).collect()
    };
    let arrived = of("arrived", "on");
    let (least, without) = (quantile(&arrived, 0.0), quantile(&of("arrived", "off"), 0.0));
    let name = "policed streams of Table 1 that pace: arrived of what was sent, worst";
    figures.value(name, "%", least, &arrived, Some(without), Some(Target::AtLeast(99.0)));
    let reserved = of("reserved", "on");
    let most = quantile(&reserved, 1.0);
    let name = "the same: reserved / payload, greatest (the paper: 1.87)";
    figures.value(name, "", most, &reserved, None, Some(Target::AtMost(RESERVED_MAX)));
    let dropped = of("dropped", "on");
    let (most, without) = (quantile(&dropped, 1.0), quantile(&of("dropped", "off"), 1.0));
    figures.value("the same: packets dropped, most", "", most, &dropped, Some(without), None);
}

/// What the library costs, against what measuring twice differs by.
fn cost(figures: &mut Figures, raw: &Raw, key: &str, what: &str) {
    let of = |way: &str| &raw.overhead[&format!("{key} {way}")];
    let differences = |way: &str| -> Vec<f64> {
        of(way).iter().zip(of("without")).map(|(one, other)| 100.0 * (one / other - 1.0)).collect()
    };
    let (with, again) = (differences("with"), differences("again"));
    // Medians of two such series differ by more than this in one of twenty cases where nothing does
    // (McGill, Tukey and Larsen, 1978).
    let quartiles = quantile(&again, 0.75) - quantile(&again, 0.25);
    let resolution = 1.57 * quartiles / (again.len() as f64).sqrt();
    let name = format!("{what} with the library and no attribute, |difference|");
    let (value, twice) = (quantile(&with, 0.5).abs(), quantile(&again, 0.5).abs());
    let target = Some(Target::AtMost(resolution));
    let figure = figures.value(name, "%", value, &with, Some(twice), target);
    figure.against("without the library, twice");
}
