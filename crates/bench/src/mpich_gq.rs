//! MPICH-GQ's figures 1 and 5 to 9 and its table 1, done again: two sites, a narrow path that datagrams
//! overload, and an edge that polices (section 5.1 of the paper). There the edge alone knows of a
//! reservation; here the sending node shapes to it as well.

mod contention;
mod moments;
mod page;

use crate::figures::{Figures, Target, quantile};
use crate::lab::BenchLab;
use crate::mpi::ranks::{Library, Ranks, Told};
use crate::parts::Parts;
use crate::quick;
use anyhow::Result;
use contention::Event;
use keeptime::chart::{BarChart, Group, Line, LineChart};
use keeptime::cluster::Cluster;
use keeptime::interrupt;
use keeptime::load::{Blast, Pair};
use keeptime::machine::Machine;
use keeptime_lab::{Policer, Spec};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Bytes, CpuPpm};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::time::Duration;

const NAME: &str = "mpich-gq";
/// What most figures are compared with.
const EDGE: &str = "shaped at the edge alone";
const NARROW: BitsPerSecond = BitsPerSecond::from_mbit(100);
const WIDE: BitsPerSecond = BitsPerSecond::from_mbit(200);
/// More than the narrow path has.
const BLAST: BitsPerSecond = BitsPerSecond::from_mbit(120);
const BLAST_LIMIT: Duration = Duration::from_secs(1_800);
/// What a node that does not shape may send; the edge drops what is more than reserved.
const UNSHAPED: BitsPerSecond = BitsPerSecond::from_mbit(80);
/// One node of each site talks to the other; the two beside them make the load.
const RANKS: [NodeIndex; 2] = [NodeIndex(0), NodeIndex(2)];
const LOAD: [NodeIndex; 2] = [NodeIndex(1), NodeIndex(3)];

/// Messages of figure 5 and frames of figure 6, in bytes.
const MESSAGES: [u32; 4] = [2_000, 8_000, 16_000, 32_000];
const FRAMES: [u32; 4] = [5_000, 10_000, 20_000, 30_000];
/// Reservations of figure 5, in kbit/s, and of figure 6, of the payload.
const RESERVATIONS: [u32; 6] = [1_000, 2_500, 5_000, 10_000, 20_000, 40_000];
const SHARES: [f64; 6] = [0.8, 0.9, 1.0, 1.06, 1.1, 1.3];
/// Table 1: the payload in kbit/s, and the paper's reservations for 10 and 1 frames a second with the
/// normal bucket, and 1 with the large one.
const TABLE: [(u32, [u32; 3]); 4] = [
    (400, [500, 750, 500]),
    (800, [900, 1_450, 900]),
    (1_600, [1_700, 2_700, 1_700]),
    (2_400, [2_500, 3_600, 2_500]),
];
/// The paper's three columns (who shapes, frames a second, the bucket), and one frame a second when the
/// node shapes, with the normal bucket.
const COLUMNS: [(Shaper, u32, Bucket); 4] = [
    (Shaper::Edge, 10, Bucket::Normal),
    (Shaper::Edge, 1, Bucket::Normal),
    (Shaper::Edge, 1, Bucket::Large),
    (Shaper::Node, 1, Bucket::Normal),
];
/// Reservations of table 1 are tried in steps of this share of the payload, up to so many.
const STEP: f64 = 0.02;
const STEPS: u32 = 60;
/// Figure 7: 400 kbit/s at so many frames a second, through a reservation of so many kbit/s: what the paper
/// needed, and what is enough for who shapes.
const BURSTS: [(Shaper, u32, u32); 3] =
    [(Shaper::Edge, 10, 500), (Shaper::Edge, 1, 750), (Shaper::Node, 1, 432)];
/// Figures 8 and 9: Mbit/s, and what happens while they are sent.
const FIGURE_8: (u32, [Event; 2]) = (15, [Event::CpuContention, Event::CpuReservation]);
const FIGURE_9: (u32, [[Event; 4]; 2]) = (
    35,
    [
        [
            Event::NetworkContention,
            Event::NetworkReservation,
            Event::CpuContention,
            Event::CpuReservation,
        ],
        // The paper has the first order alone: that CPU without a rate is not enough shows in this one.
        [
            Event::CpuContention,
            Event::CpuReservation,
            Event::NetworkContention,
            Event::NetworkReservation,
        ],
    ],
);
/// So much of what is sent is enough.
const ENOUGH: f64 = 0.99;

/// Who keeps a sender to its reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Shaper {
    /// The edge alone, which drops: the paper.
    Edge,
    /// The sending node, before the edge.
    Node,
}

/// A token bucket depth by the rate that fills it: the paper's, read as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bucket {
    /// `bandwidth / 40`: 200 ms of it.
    Normal,
    /// `bandwidth / 4`: 2 s.
    Large,
}

/// A reservation, its bucket and who shapes.
#[derive(Debug, Clone, Copy)]
struct Way {
    shaper: Shaper,
    kbps: u32,
    bucket: Bucket,
}

/// A measured point: what was reserved, what arrived, both in kbit/s.
type Point = (f64, f64);

#[derive(Debug, Default, Serialize)]
struct Raw {
    machine: Option<Machine>,
    /// Mbit/s of each second, unshaped and shaped.
    figure_1: [Vec<f64>; 2],
    /// By message and shaper.
    figure_5: Vec<(u32, Shaper, Vec<Point>)>,
    /// By frame and shaper.
    figure_6: Vec<(u32, Shaper, Vec<Point>)>,
    /// Kbit that leave in each moment of a second, by [`BURSTS`].
    figure_7: [Vec<f64>; 3],
    /// Mbit/s of each second.
    figure_8: Vec<f64>,
    /// The same, by the order of events.
    figure_9: [Vec<f64>; 2],
    /// By payload: reservations required, in kbit/s; nothing = none that was tried.
    table_1: Vec<(u32, [Option<f64>; 4])>,
}

/// The testbed.
struct Testbed {
    lab: BenchLab,
    _load: [Blast; 2],
}

/// Measures all and writes the figures and pictures; goes on with the parts that an interrupted run left.
pub fn run(out: &Path) -> Result<()> {
    interrupt::listen()?;
    let mut parts = Parts::open(&out.join(NAME))?;
    let lab = testbed()?;
    let machine = Some(parts.machine()?);
    let mut raw = Raw { machine, ..Raw::default() };
    let (mbit, events) = FIGURE_8;
    raw.figure_8 = parts.part("figure 8", || contend("figure 8", &lab, mbit, &events))?;
    let (mbit, [one, other]) = FIGURE_9;
    raw.figure_9 = parts.part("figure 9", || {
        let order = |events: [Event; 4]| contend("figure 9", &lab, mbit, &events);
        Ok([order(one)?, order(other)?])
    })?;
    let testbed = Testbed::loaded(lab)?;
    raw.figure_1 = parts.part("figure 1", || testbed.figure_1())?;
    for message in MESSAGES {
        for shaper in [Shaper::Edge, Shaper::Node] {
            let name = format!("figure 5, {message} bytes, {shaper:?}");
            let points = parts.part(&name, || testbed.figure_5(message, shaper))?;
            raw.figure_5.push((message, shaper, points));
        }
    }
    for frame in FRAMES {
        for shaper in [Shaper::Edge, Shaper::Node] {
            let name = format!("figure 6, {frame} bytes, {shaper:?}");
            let points = parts.part(&name, || testbed.figure_6(frame, shaper))?;
            raw.figure_6.push((frame, shaper, points));
        }
    }
    raw.figure_7 = parts.part("figure 7", || testbed.figure_7())?;
    for (kbps, _) in TABLE {
        let mut required = [None; 4];
        for (column, least) in required.iter_mut().enumerate() {
            let name = format!("table 1, {kbps} kbit/s, column {column}");
            *least = parts.part(&name, || testbed.table_1(kbps, COLUMNS[column]))?;
        }
        raw.table_1.push((kbps, required));
    }
    draw(&raw, &out.join(NAME))?;
    page::write(&raw, &out.join(NAME), &out.join(format!("{NAME}.html")))?;
    figures(&raw).finish(out, &raw)?;
    parts.finish()
}

/// Two sites.
fn testbed() -> Result<BenchLab> {
    let name = format!("eval-{NAME}").parse()?;
    BenchLab::up(&Spec::two_tier(name, 4, 2, WIDE, NARROW, CpuPpm::from_percent(40))?)
}

/// Datagrams between the sites, both ways.
fn load(cluster: &Cluster) -> Result<[Blast; 2]> {
    let [one, other] = LOAD;
    let blast = |from, to| Blast::start(cluster, Pair { from, to }, BLAST, BLAST_LIMIT);
    Ok([blast(one, other)?, blast(other, one)?])
}

fn contend(what: &str, lab: &BenchLab, mbit: u32, events: &[Event]) -> Result<Vec<f64>> {
    eprintln!("{what}, {mbit} Mbit/s");
    contention::series(lab, mbit, events)
}

/// Mbit/s of frames of so many bytes that arrive in each second.
fn arrived_by_second(told: &Told, bytes: u32, seconds: usize) -> Result<Vec<f64>> {
    let mut by_second = vec![0.0; seconds];
    for frame in told.all("frame")? {
        // Number, when it arrived, how late that was.
        if let Some(sum) = by_second.get_mut(frame[1] as usize) {
            *sum += f64::from(bytes) * 8e-6;
        }
    }
    Ok(by_second)
}

impl Testbed {
    fn loaded(lab: BenchLab) -> Result<Self> {
        let _load = load(lab.cluster())?;
        Ok(Self { lab, _load })
    }

    /// Runs a program between the sites.
    fn trial(&self, way: Way, words: &[&str], key: &str) -> Result<Told> {
        let rate = BitsPerSecond::new(u64::from(way.kbps) * 1_000);
        let shaped = if way.shaper == Shaper::Node { rate } else { UNSHAPED };
        let ranks = Ranks::with_flows(&self.lab, &RANKS, CpuPpm::from_percent(30), shaped)?;
        let depth = match way.bucket {
            Bucket::Normal => Bytes::new(rate.get() / 40),
            Bucket::Large => Bytes::new(rate.get() / 4),
        };
        let policer = Policer { rate, depth, dscp: TrafficClass::Premium.dscp() };
        let lab = self.lab.lab()?;
        let nodes = RANKS.map(|node| self.lab.cluster().topology().node(node).name.clone());
        nodes.iter().try_for_each(|node| lab.police(node.as_str(), Some(&policer)))?;
        let told = ranks.run(2, Library::Absent, words, key);
        nodes.iter().try_for_each(|node| lab.police(node.as_str(), None))?;
        told
    }

    /// What arrives second by second of 50 Mbit/s through 40.
    fn figure_1(&self) -> Result<[Vec<f64>; 2]> {
        let seconds = if quick() { 3 } else { 30 };
        let series = |shaper| -> Result<Vec<f64>> {
            eprintln!("figure 1, {shaper:?}");
            let way = Way { shaper, kbps: 40_000, bucket: Bucket::Normal };
            let length = seconds.to_string();
            let words = ["stream", "--bytes", "312500", "--fps", "20", "--seconds", &length];
            let told = self.trial(way, &words, "late_frames")?;
            arrived_by_second(&told, 312_500, seconds)
        };
        Ok([series(Shaper::Edge)?, series(Shaper::Node)?])
    }

    fn figure_5(&self, message: u32, shaper: Shaper) -> Result<Vec<Point>> {
        let point = |kbps: u32| -> Result<Point> {
            eprintln!("figure 5, messages of {message} bytes, {kbps} kbit/s, {shaper:?}");
            let way = Way { shaper, kbps, bucket: Bucket::Normal };
            let bytes = message.to_string();
            let seconds = if quick() { "1" } else { "3" };
            let words = ["pingpong", "--bytes", &bytes, "--seconds", seconds, "--warmup", "5"];
            let told = self.trial(way, &words, "one_way_mbit")?;
            // Both directions take turns: of each half the time.
            Ok((f64::from(kbps), 500.0 * told.numbers("one_way_mbit")?[0]))
        };
        some(&RESERVATIONS).map(|kbps| point(*kbps)).collect()
    }

    fn figure_6(&self, frame: u32, shaper: Shaper) -> Result<Vec<Point>> {
        let payload = f64::from(frame) * 8.0 * 10.0 / 1_000.0;
        let point = |share: f64| -> Result<Point> {
            let kbps = (payload * share).round() as u32;
            eprintln!("figure 6, frames of {frame} bytes, {kbps} kbit/s, {shaper:?}");
            let way = Way { shaper, kbps, bucket: Bucket::Normal };
            Ok((f64::from(kbps), self.stream(way, frame, 10)?))
        };
        some(&SHARES).map(|share| point(*share)).collect()
    }

    fn figure_7(&self) -> Result<[Vec<f64>; 3]> {
        let sender = &self.lab.cluster().topology().node(RANKS[0]).name;
        let burst = |(shaper, frames, kbps): (Shaper, u32, u32)| -> Result<Vec<f64>> {
            eprintln!("figure 7, {frames} frames a second, {shaper:?}");
            let (way, bytes) = (Way { shaper, kbps, bucket: Bucket::Normal }, 50_000 / frames);
            let lab = self.lab.lab()?;
            let stream = || self.stream(way, bytes, frames);
            let (_, looks) = moments::sent_while(&lab, sender.as_str(), stream)?;
            Ok(moments::of_a_second(&looks, u64::from(bytes / 2)))
        };
        let [one, other, shaped] = BURSTS.map(burst);
        Ok([one?, other?, shaped?])
    }

    /// Kbit/s that arrive of a stream of frames.
    fn stream(&self, way: Way, frame: u32, frames: u32) -> Result<f64> {
        let (bytes, fps) = (frame.to_string(), frames.to_string());
        let seconds = if quick() { "2" } else { "6" };
        let words = ["stream", "--bytes", &bytes, "--fps", &fps, "--seconds", seconds];
        Ok(1e3 * self.trial(way, &words, "late_frames")?.numbers("mbit")?[0])
    }

    /// The reservation required for a payload.
    fn table_1(
        &self,
        payload: u32,
        (shaper, frames, bucket): (Shaper, u32, Bucket),
    ) -> Result<Option<f64>> {
        let carries = |step: u32| -> Result<bool> {
            let kbps = reservation(payload, step).round() as u32;
            let got = self.stream(Way { shaper, kbps, bucket }, payload * 125 / frames, frames)?;
            eprintln!(
                "table 1, {payload} kbit/s, {frames} fps, {bucket:?} bucket, {shaper:?}: {kbps} carry {got:.0}"
            );
            Ok(got >= ENOUGH * f64::from(payload))
        };
        Ok(least(carries)?.map(|step| reservation(payload, step)))
    }
}

fn reservation(payload: u32, step: u32) -> f64 {
    f64::from(payload) * (1.0 + STEP * f64::from(step))
}

/// The least step that carries the payload, by halving: what carries it carries it with more, too.
fn least(carries: impl Fn(u32) -> Result<bool>) -> Result<Option<u32>> {
    let (mut low, mut high) = (0, STEPS + 1);
    while low < high {
        let middle = (low + high) / 2;
        if carries(middle)? { high = middle } else { low = middle + 1 }
    }
    Ok((low <= STEPS).then_some(low))
}

/// All of them, or the ends for a quick look.
fn some<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let last = all.len() - 1;
    all.iter()
        .enumerate()
        .filter(move |(at, _)| !quick() || *at == 0 || *at == last)
        .map(|(_, one)| one)
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::of_evaluation(NAME);
    let [edge, node] = &raw.figure_1;
    // The first second has the start of the connection in it.
    let worst = |series: &[f64]| quantile(&series[1..], 0.05);
    let name = "figure 1: 50 Mbit/s through 40, of the seconds the 5th percentile";
    figures.value(name, "Mbit/s", worst(node), node, Some(worst(edge)), None).against(EDGE);
    let median = Some(quantile(edge, 0.5));
    figures.median("figure 1: the median", "Mbit/s", node, median, None).against(EDGE);
    for (bytes, points) in shaped(&raw.figure_5) {
        let at = |points: &[Point], kbps: f64| {
            points.iter().find(|point| point.0 == kbps).map_or(f64::NAN, |point| point.1)
        };
        let edge = unshaped(&raw.figure_5, bytes);
        let name = format!("figure 5: messages of {bytes} bytes at 5 Mbit/s reserved");
        let value = at(points, 5_000.0);
        let beside = Some(at(edge, 5_000.0));
        figures.value(name, "kbit/s", value, &[value], beside, None).against(EDGE);
    }
    for (bytes, points) in shaped(&raw.figure_6) {
        let payload = f64::from(bytes) * 0.08;
        let share = |points: &[Point], of: f64| {
            let is_it = |point: &&Point| (point.0 / payload - of).abs() < 0.005;
            points.iter().find(is_it).map_or(f64::NAN, |point| 100.0 * point.1 / payload)
        };
        let edge = unshaped(&raw.figure_6, bytes);
        for of in [0.9, 1.06] {
            let name = format!("figure 6: frames of {bytes} bytes, {of} of the payload reserved");
            let value = share(points, of);
            let beside = Some(share(edge, of));
            figures.value(name, "%", value, &[value], beside, None).against(EDGE);
        }
    }
    let [_, edge, node] = &raw.figure_7;
    let most = |moments: &[f64]| quantile(moments, 1.0);
    let name = "figure 7: 400 kbit/s at 1 fps, most that leaves in a 20th of a second";
    figures.value(name, "kbit", most(node), node, Some(most(edge)), None).against(EDGE);
    let (mbit, events) = FIGURE_8;
    stages(&mut figures, &format!("figure 8: {mbit} Mbit/s"), &events, &raw.figure_8);
    let (mbit, orders) = FIGURE_9;
    for (events, series) in orders.iter().zip(&raw.figure_9) {
        stages(&mut figures, &format!("figure 9: {mbit} Mbit/s"), events, series);
    }
    for (payload, required) in &raw.table_1 {
        let ratio =
            |column: usize| required[column].map_or(f64::INFINITY, |r| r / f64::from(*payload));
        let name = format!(
            "table 1: {payload} kbit/s at 1 fps, reserved / payload (or at the edge alone)"
        );
        let target = Some(Target::AtMost(1.08));
        figures.value(name, "", ratio(3), &[ratio(3)], Some(ratio(1)), target);
    }
    figures
}

/// What arrived in each stage, in which all that had happened before lasted.
fn stages(figures: &mut Figures, what: &str, events: &[Event], series: &[f64]) {
    for (at, mean) in contention::stages(series).into_iter().enumerate() {
        let so_far: Vec<_> = events.iter().take(at).map(Event::to_string).collect();
        let so_far = if at == 0 { "alone".into() } else { so_far.join(", ") };
        figures.value(format!("{what}, {so_far}"), "Mbit/s", mean, &[mean], None, None);
    }
}

fn shaped(all: &[(u32, Shaper, Vec<Point>)]) -> impl Iterator<Item = (u32, &[Point])> {
    let node = all.iter().filter(|(_, shaper, _)| *shaper == Shaper::Node);
    node.map(|(bytes, _, points)| (*bytes, points.as_slice()))
}

fn unshaped(all: &[(u32, Shaper, Vec<Point>)], of: u32) -> &[Point] {
    let edge = all.iter().find(|(bytes, shaper, _)| *bytes == of && *shaper == Shaper::Edge);
    edge.map_or(&[], |(_, _, points)| points)
}

/// Pictures, named after the paper's.
fn draw(raw: &Raw, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let by_second = "Mbit/s, second by second";
    let [edge, node] = &raw.figure_1;
    let title = "50 Mbit/s through a policed reservation of 40 (figure 1)";
    let figure_1 = bars(title, by_second, &[("the edge drops", edge), ("the node shapes", node)]);
    fs::write(directory.join("figure-1.svg"), figure_1.to_svg()?)?;
    let [ten, one, shaped] = &raw.figure_7;
    let series = [("10 frames", ten), ("1 frame", one), ("1 frame, the node shapes", shaped)];
    let title = "400 kbit/s leave a node in a second (figure 7)";
    let figure_7 = bars(title, "kbit in each 20th of it", &series);
    fs::write(directory.join("figure-7.svg"), figure_7.to_svg()?)?;
    let title = "others compute beside the sender, then it has CPU reserved (figure 8)";
    let figure_8 = bars(title, by_second, &[("15 Mbit/s", &raw.figure_8)]);
    fs::write(directory.join("figure-8.svg"), figure_8.to_svg()?)?;
    let [network, cpu] = &raw.figure_9;
    let title = "contention for network and CPU, and reservations of both (figure 9)";
    let series = [("network first", network), ("CPU first", cpu)];
    fs::write(directory.join("figure-9.svg"), bars(title, by_second, &series).to_svg()?)?;
    let lines = |all: &[(u32, Shaper, Vec<Point>)], what: &str, title: &str| LineChart {
        title: title.into(),
        x_label: "reserved, kbit/s".into(),
        y_label: "arrived, kbit/s".into(),
        lines: all
            .iter()
            .map(|(bytes, shaper, points)| line(*bytes, *shaper, points, what))
            .collect(),
        bound: None,
    };
    let figure_5 = lines(&raw.figure_5, "messages", "ping-pong under contention (figure 5)");
    fs::write(directory.join("figure-5.svg"), figure_5.to_svg()?)?;
    let figure_6 = lines(&raw.figure_6, "frames", "a stream of 10 frames a second (figure 6)");
    Ok(fs::write(directory.join("figure-6.svg"), figure_6.to_svg()?)?)
}

/// Series side by side; every fifth group has its number.
fn bars(title: &str, y_label: &str, series: &[(&str, &Vec<f64>)]) -> BarChart {
    let groups = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let group = |at: usize| {
        let label = if at.is_multiple_of(5) { at.to_string() } else { String::new() };
        let bar = |(_, values): &(&str, &Vec<f64>)| values.get(at).copied().unwrap_or_default();
        Group { label, bars: series.iter().map(bar).collect() }
    };
    BarChart {
        title: title.into(),
        y_label: y_label.into(),
        series: series.iter().map(|(name, _)| (*name).into()).collect(),
        groups: (0..groups).map(group).collect(),
        bound: None,
    }
}

/// What the edge does alone is grey.
fn line(bytes: u32, shaper: Shaper, points: &[Point], what: &str) -> Line {
    Line {
        label: format!("{what} of {bytes} bytes"),
        points: points.to_vec(),
        samples: Vec::new(),
        marked: None,
        faded: shaper == Shaper::Edge,
    }
}
