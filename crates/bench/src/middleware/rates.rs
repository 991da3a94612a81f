//! Rate control (section 4.2): run times against what is reserved for each flow (Figures 4.1 and 4.2), beside
//! flows that nobody reserved (4.4), and several programs at once, each with its own rate (4.6 and 4.7).
//!
//! Kernels in the manner of NAS', the volume renderer and the extraction of a surface; four and eight nodes, all of
//! them in the lab. The thesis' reservations are in MB/s of a link of 210; ours are in Mbit/s.

use super::page::caption;
use super::{lab_name, paper};
use crate::figures::{Figures, quantile};
use crate::lab::BenchLab;
use crate::mpi::ranks::{Library, Ranks};
use crate::parts::Parts;
use crate::quick;
use anyhow::{Context, Result};
use keeptime::chart::{BarChart, Group, Line, LineChart};
use keeptime::load::{Flood, Pair};
use keeptime::report;
use keeptime_lab::Spec;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// A program of `workloads/`, and the key of the line by which it tells its time.
#[derive(Debug, Clone, Copy)]
struct Program {
    name: &'static str,
    options: &'static [&'static str],
    key: &'static str,
    /// The option that names the volume, where it reads one.
    volume: bool,
}

/// A lab, and what one of up to three programs has of it.
#[derive(Debug, Clone, Copy)]
struct Size {
    nodes: u32,
    /// Of a node.
    node: CpuPpm,
    /// Of a process.
    process: CpuPpm,
    /// Reserved for each flow, in Mbit/s; the last one together with the others' fills a link.
    mbit: &'static [u64],
    /// Programs that run at once, each with one of `mbit`.
    together: &'static [&'static [u64]],
}

/// A run: what was reserved for each flow, in Mbit/s, and seconds.
type Point = (f64, f64);

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub struct Rates {
    /// By number of nodes and program: all runs. Figures 4.1 and 4.2.
    pub(super) curves: Vec<(u32, String, Vec<Point>)>,
    /// Figure 4.4.
    beside: Vec<Beside>,
    /// By number of nodes: programs that ran at once, each with its rate. Figures 4.6 and 4.7.
    together: Vec<(u32, Vec<Point>)>,
}

/// A program beside background flows, in seconds of each run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Beside {
    program: String,
    flows: usize,
    /// Reserved, nobody else there.
    alone: Vec<f64>,
    reserved: Vec<f64>,
    unreserved: Vec<f64>,
}

const LINK: BitsPerSecond = BitsPerSecond::from_mbit(200);
const PROGRAMS: [Program; 5] = [
    Program {
        name: "is",
        options: &["--keys", "20", "--iterations", "2", "--at-least", "2", "--warmup", "1"],
        key: "seconds_per_iteration",
        volume: false,
    },
    Program {
        name: "cg",
        options: &["--rows", "4000", "--iterations", "3"],
        key: "seconds_per_iteration",
        volume: false,
    },
    Program {
        name: "ft",
        options: &["--size", "64", "--iterations", "4"],
        key: "seconds_per_iteration",
        volume: false,
    },
    Program {
        name: "isosurface",
        options: &["--frames", "1", "--at-least", "2", "--warmup", "0"],
        key: "seconds_per_frame",
        volume: true,
    },
    Program {
        name: "raycast",
        options: &["--frames", "1", "--at-least", "2"],
        key: "seconds_per_frame",
        volume: true,
    },
];
const SIZES: [Size; 2] = [
    Size {
        nodes: 4,
        node: CpuPpm::from_percent(40),
        process: CpuPpm::from_percent(12),
        mbit: &[5, 8, 15, 25, 35, 60],
        together: &[&[5, 8], &[15, 25], &[25, 35], &[5, 8, 15], &[8, 15, 35]],
    },
    Size {
        nodes: 8,
        node: CpuPpm::from_percent(20),
        process: CpuPpm::from_percent(6),
        mbit: &[3, 5, 8, 15, 25],
        together: &[&[3, 5], &[5, 8], &[8, 15], &[3, 5, 8]],
    },
];
/// Reserved for each flow beside background flows: what a link holds of the three that leave a node.
const BESIDE_MBIT: u64 = 60;
/// Background flows, all from one node of the program to another.
const BACKGROUND: [usize; 2] = [2, 3];
const BACKGROUND_PAIR: Pair = Pair { from: NodeIndex(0), to: NodeIndex(1) };
/// A flow that loads one node's card is not measured, so it ends with what is measured beside it, or by then.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(1_800);
/// A program has enough where it takes no longer than so many times its least: the thesis' knee.
const KNEE: f64 = 1.05;
const VOLUME: &str = "data/mni152-t1.nii.gz";

fn programs() -> &'static [Program] {
    if quick() { &PROGRAMS[..1] } else { &PROGRAMS }
}

fn samples() -> usize {
    if quick() { 1 } else { 3 }
}

/// All of them, or the first for a quick look.
fn some<T>(all: &[T]) -> &[T] {
    if quick() { &all[..1] } else { all }
}

fn lab_of<'a>(lab: &'a mut Option<BenchLab>, size: &Size) -> Result<&'a BenchLab> {
    if lab.is_none() {
        *lab = Some(BenchLab::up(&Spec::star(lab_name()?, size.nodes, LINK, size.node)?)?);
    }
    lab.as_ref().context("a lab that was just made")
}

fn nodes(size: &Size) -> Vec<NodeIndex> {
    (0..size.nodes).map(NodeIndex).collect()
}

/// Seconds of one run with `mbit` reserved for each flow, or with CPU alone.
fn run(lab: &BenchLab, size: &Size, program: &Program, mbit: Option<u64>) -> Result<f64> {
    let ranks = match mbit {
        Some(mbit) => {
            Ranks::with_flows(lab, &nodes(size), size.process, BitsPerSecond::from_mbit(mbit))?
        }
        None => Ranks::on(lab, size.process)?,
    };
    let volume = std::path::absolute(Path::new(VOLUME))?.display().to_string();
    let mut words = vec![program.name];
    if program.volume {
        words.extend(["--volume", &volume]);
    }
    words.extend(program.options);
    let told = ranks.run(size.nodes as usize, Library::Absent, &words, program.key)?;
    Ok(told.numbers(program.key)?[0])
}

fn curve(lab: &BenchLab, size: &Size, program: &Program) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    let ends = [size.mbit[0], size.mbit[size.mbit.len() - 1]];
    let rates = if quick() { &ends[..] } else { size.mbit };
    // In turns, so that what else the machine does meets all.
    for _ in 0..samples() {
        for mbit in rates {
            eprintln!("{}, {} nodes, {mbit} Mbit/s for each flow", program.name, size.nodes);
            points.push((*mbit as f64, run(lab, size, program, Some(*mbit))?));
        }
    }
    Ok(points)
}

/// Integer sorts at once, as in the thesis' example.
fn together(lab: &BenchLab, size: &Size, mbit: &[u64]) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for _ in 0..samples() {
        eprintln!("{} programs at once, {} nodes, {mbit:?} Mbit/s", mbit.len(), size.nodes);
        let all: Vec<Result<f64>> = thread::scope(|scope| {
            let start = |mbit: &u64| {
                let mbit = *mbit;
                scope.spawn(move || run(lab, size, &PROGRAMS[0], Some(mbit)))
            };
            let running: Vec<_> = mbit.iter().map(start).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<f64>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        });
        for (mbit, seconds) in mbit.iter().zip(all) {
            points.push((*mbit as f64, seconds?));
        }
    }
    Ok(points)
}

fn beside(lab: &BenchLab, size: &Size, program: &Program, flows: usize) -> Result<Beside> {
    let (mut alone, mut reserved, mut unreserved) = (vec![], vec![], vec![]);
    for _ in 0..samples() {
        eprintln!("{} beside {flows} flows", program.name);
        alone.push(run(lab, size, program, Some(BESIDE_MBIT))?);
        let _flood = Flood::between(lab.cluster(), &[BACKGROUND_PAIR], flows, BACKGROUND_LIMIT)?;
        reserved.push(run(lab, size, program, Some(BESIDE_MBIT))?);
        unreserved.push(run(lab, size, program, None)?);
    }
    Ok(Beside { program: program.name.into(), flows, alone, reserved, unreserved })
}

impl Rates {
    /// Measures what `parts` does not have yet.
    pub fn measure(&mut self, parts: &mut Parts) -> Result<()> {
        for size in &SIZES[..if quick() { 1 } else { 2 }] {
            // Made when the first part is missing.
            let mut lab = None;
            for program in programs() {
                let points = parts
                    .part(&format!("rates, {} nodes, {}", size.nodes, program.name), || {
                        curve(lab_of(&mut lab, size)?, size, program)
                    })?;
                self.curves.push((size.nodes, program.name.into(), points));
            }
            for mbit in some(size.together) {
                let points = parts
                    .part(&format!("at once, {} nodes, {mbit:?}", size.nodes), || {
                        together(lab_of(&mut lab, size)?, size, mbit)
                    })?;
                self.together.push((size.nodes, points));
            }
            if size.nodes == SIZES[0].nodes {
                for program in programs() {
                    // The thesis has two flows beside the ray-tracer alone.
                    let flows =
                        if program.name == "raycast" { &BACKGROUND[..] } else { &BACKGROUND[1..] };
                    for flows in flows {
                        let name = format!("beside {flows} flows, {}", program.name);
                        self.beside.push(parts.part(&name, || {
                            beside(lab_of(&mut lab, size)?, size, program, *flows)
                        })?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether any curve is there.
    pub const fn is_some(&self) -> bool {
        !self.curves.is_empty()
    }

    /// The median of a program's runs with a rate on so many nodes.
    fn median(&self, nodes: u32, program: &str, mbit: f64) -> Option<f64> {
        let curve =
            self.curves.iter().find(|curve| (curve.0, curve.1.as_str()) == (nodes, program));
        let of = |points: &[Point]| {
            points.iter().filter(|point| point.0 == mbit).map(|point| point.1).collect::<Vec<_>>()
        };
        curve.map(|curve| quantile(&of(&curve.2), 0.5)).filter(|median| median.is_finite())
    }

    /// The least rate that is enough for a program, in Mbit/s for each flow.
    fn enough(&self, size: &Size, program: &str) -> Option<f64> {
        let median = |mbit: &u64| {
            let mbit = *mbit as f64;
            Some((mbit, self.median(size.nodes, program, mbit)?))
        };
        let medians: Vec<_> = size.mbit.iter().filter_map(median).collect();
        let least = medians.iter().map(|point| point.1).reduce(f64::min)?;
        medians.iter().find(|point| point.1 <= KNEE * least).map(|point| point.0)
    }

    /// By how much programs that ran at once were off what they take alone with the same rate, in percent.
    fn off_together(&self, nodes: u32) -> Vec<f64> {
        let own = self.together.iter().filter(|runs| runs.0 == nodes).flat_map(|runs| &runs.1);
        let off = |(mbit, seconds): &Point| {
            Some(100.0 * (seconds / self.median(nodes, PROGRAMS[0].name, *mbit)? - 1.0).abs())
        };
        own.filter_map(off).collect()
    }

    /// The figures that are asked for.
    pub fn figures(&self, figures: &mut Figures) {
        for Beside { program, flows, alone, reserved, unreserved } in &self.beside {
            let base = quantile(alone, 0.5);
            let slower = |runs: &[f64]| -> Vec<f64> {
                runs.iter().map(|seconds| 100.0 * (seconds / base - 1.0)).collect()
            };
            let (with, without) = (slower(reserved), quantile(&slower(unreserved), 0.5));
            let name = format!("figure 4.4: {program} beside {flows} flows, slower than alone");
            figures.median(name, "%", &with, Some(without), None);
        }
        for size in &SIZES {
            let off = self.off_together(size.nodes);
            if !off.is_empty() {
                let name =
                    format!("figures 4.6, 4.7: at once on {} nodes, off what alone", size.nodes);
                figures.median(name, "%", &off, None, None);
            }
        }
    }

    /// Their pictures.
    pub fn section(&self) -> Result<Markup> {
        let sizes = SIZES.iter().filter(|size| self.curves.iter().any(|c| c.0 == size.nodes));
        let curves = sizes.map(|size| self.curves_of(size)).collect::<Result<Vec<_>>>()?;
        Ok(html! {
            section {
                h2 { "Rate control (Figures 4.1 to 4.7)" }
                p {
                    "Every flow between two ranks has its rate, all to all; links of " (LINK) ". Lines are medians, small \
                     dots single runs. The kernels are this project's, in the manner of the NAS kernels; more bandwidth \
                     buys less and less, as in the thesis, and where a line is flat a program needs no more."
                }
                @for curves in curves { (curves) }
                @if !self.beside.is_empty() { (self.beside_chart()?) }
                (self.together_table())
            }
        })
    }

    fn curves_of(&self, size: &Size) -> Result<Markup> {
        let own = self.curves.iter().filter(|curve| curve.0 == size.nodes);
        let line = |(nodes, program, samples): &(u32, String, Vec<Point>)| {
            let medians = size.mbit.iter().filter_map(|mbit| {
                let mbit = *mbit as f64;
                Some((mbit, self.median(*nodes, program, mbit)?))
            });
            Line {
                label: program.clone(),
                points: medians.collect(),
                samples: samples.clone(),
                marked: None,
                faded: false,
            }
        };
        let number = if size.nodes == SIZES[0].nodes { 1 } else { 2 };
        let title = format!("Figure 4.{number}: on {} nodes", size.nodes);
        let chart = LineChart {
            title: title.clone(),
            x_label: "reserved for each flow, Mbit/s".into(),
            y_label: "seconds of an iteration or a frame".into(),
            lines: own.clone().map(line).collect(),
            bound: None,
        };
        let runs = own.map(|curve| curve.2.len()).sum();
        let text =
            if number == 1 { format!("{title}. {}", self.told(size)) } else { title.clone() };
        Ok(report::figure(&chart.to_svg()?, &title, caption(&text, runs)))
    }

    /// What the thesis tells of Figure 4.1, and ours.
    fn told(&self, size: &Size) -> String {
        let sorts = paper::SORTS.map(|(rate, alone, _)| {
            let ours = self.median(size.nodes, PROGRAMS[0].name, rate);
            let ours = ours.map_or("not measured".into(), |seconds| format!("{seconds:.4} s"));
            format!("is with {rate:.0} MBps {alone} s (here, with as many Mbit/s, {ours})")
        });
        let (enough, link) = paper::ISOSURFACE;
        let ours = self.enough(size, "isosurface");
        let ours = ours.map_or("not measured".into(), |mbit| format!("{mbit} Mbit/s of {LINK}"));
        format!(
            "The paper: {}; {enough:.0} MBps of {link:.0} are enough for the isosurface (here {ours})",
            sorts.join(", ")
        )
    }

    fn beside_chart(&self) -> Result<Markup> {
        let group = |beside: &Beside| {
            let runs = [&beside.alone, &beside.reserved, &beside.unreserved];
            let label = format!("{}, {} flows", beside.program, beside.flows);
            Group { label, bars: runs.map(|runs| quantile(runs, 0.5)).to_vec() }
        };
        let title = "Figure 4.4: beside flows that nobody reserved";
        let series = ["reserved, alone", "reserved", "not reserved"].map(String::from);
        let chart = BarChart {
            title: title.into(),
            y_label: "seconds, median".into(),
            series: series.into(),
            groups: self.beside.iter().map(group).collect(),
            bound: None,
        };
        let runs = |b: &Beside| b.alone.len() + b.reserved.len() + b.unreserved.len();
        let runs = self.beside.iter().map(runs).sum();
        Ok(report::figure(&chart.to_svg()?, title, caption(title, runs)))
    }

    fn together_table(&self) -> Markup {
        let row = |nodes: u32, (mbit, seconds): &Point, at_once: &str| {
            let alone = self.median(nodes, PROGRAMS[0].name, *mbit);
            html! {
                tr {
                    td.number { (nodes) }
                    td { (at_once) }
                    td.number { (mbit) }
                    td.number { (format!("{seconds:.3}")) }
                    td.number { (alone.map_or(String::new(), |alone| format!("{alone:.3}"))) }
                }
            }
        };
        let names = |points: &[Point]| {
            let mut rates: Vec<_> = points.iter().map(|point| point.0.to_string()).collect();
            rates.truncate(points.len() / samples());
            rates.join(", ")
        };
        let told = paper::SORTS.map(|(rate, alone, at_once)| {
            format!("with {rate:.0} MBps {at_once} s at once and {alone} s alone")
        });
        html! {
            h3 { "Figures 4.6 and 4.7: integer sorts at once, each with its own rate" }
            p { "The paper, on 4 nodes: " (told.join(", ")) "." }
            div.wide {
                table {
                    thead {
                        tr {
                            @for title in ["nodes", "at once, Mbit/s", "Mbit/s", "seconds", "alone: median"] {
                                th scope="col" { (title) }
                            }
                        }
                    }
                    tbody {
                        @for (nodes, points) in &self.together {
                            @let at_once = names(points);
                            @for point in points { (row(*nodes, point, &at_once)) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what runs at once is compared with the same rate on as many nodes, and no reservation is more than
    // a link has.
    #[test]
    fn programs_at_once_are_compared_with_the_same_rate_alone() {
        let curve = |nodes, seconds| (nodes, "is".to_owned(), vec![(5.0, seconds), (8.0, 1.0)]);
        let together = vec![(4, vec![(5.0, 2.2), (8.0, 0.9)])];
        let rates =
            Rates { curves: vec![curve(4, 2.0), curve(8, 9.0)], together, ..Rates::default() };
        let off: Vec<_> = rates.off_together(4).iter().map(|off| off.round()).collect();
        assert_eq!((off, rates.off_together(8)), (vec![10.0, 10.0], vec![]));
        for size in &SIZES {
            let flows = u64::from(size.nodes - 1);
            let most = size.together.iter().map(|all| all.iter().sum::<u64>());
            let most = most.chain(size.mbit.iter().copied()).max().unwrap() * flows;
            assert!(BitsPerSecond::from_mbit(most) < LINK.share_floor("98 %".parse().unwrap()));
            assert!(3 * size.process.get() <= size.node.get());
            let alone = |mbit: &u64| size.mbit.contains(mbit);
            assert!(size.together.iter().all(|all| all.iter().all(alone)));
        }
    }

    #[test]
    fn enough_is_the_least_rate_that_is_almost_as_fast_as_any() {
        let points = vec![(5.0, 2.0), (8.0, 1.04), (15.0, 1.0), (25.0, 1.02)];
        let rates = Rates { curves: vec![(4, "is".into(), points)], ..Rates::default() };
        assert_eq!(rates.enough(&SIZES[0], "is"), Some(8.0));
        assert_eq!(rates.enough(&SIZES[0], "cg"), None);
    }
}
