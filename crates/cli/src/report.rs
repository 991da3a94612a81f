//! One page that shows what was measured and what came of it: HTML that needs nothing but itself,
//! to be read, printed and kept beside the numbers that it was drawn from.

mod bars;
mod contention;
mod figures;
mod request;
mod small_chart;

pub use figures::was_never;

use crate::chart::{Line, LineChart};
use crate::files;
use crate::record::{RECORD, Record};
use crate::story;
use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keeptime_model::profile::{Curve, Profile};
use keeptime_model::units::{BitsPerSecond, Nanos};
use keeptime_planner::curve::{FittedCurve, FittedPoint};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The page of a record in its directory.
pub const REPORT: &str = "report.html";

/// Lines that one chart can hold: as many as it has colours.
const LINES_MAX: usize = 7;

const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Draws what `directory` has as one page there: the record of a demonstration with its pictures, or else the
/// figures of benchmarks and evaluations. What cannot be read is named there and on standard error, and costs nothing but
/// itself. Returns the page's path.
///
/// # Errors
/// If there is neither that can be read, or the page cannot be written.
pub fn write(directory: &Path) -> Result<PathBuf> {
    let record = directory.join(RECORD);
    let demonstration = record.exists().then(|| demonstration(&record));
    let text = match demonstration {
        Some(Ok(page)) => page,
        Some(Err(damaged)) => figures::page(directory, Some(damaged))?,
        None => figures::page(directory, None)?,
    };
    let page = directory.join(REPORT);
    files::save(&page, text.as_bytes())?;
    Ok(page)
}

/// The page of the record in `path`, with the pictures beside it.
fn demonstration(path: &Path) -> Result<String> {
    let text = files::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let record: Record = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a record of a demonstration", path.display()))?;
    let (mut pictures, mut missing) = (Vec::new(), Vec::new());
    for (caption, file) in &record.pictures {
        match picture(&path.with_file_name(file)) {
            Ok(bytes) => pictures.push((caption.clone(), bytes)),
            Err(error) => missing.push(format!("{file}: {error:#}")),
        }
    }
    tell_left_out(&missing);
    page(&record, &pictures, &missing)
}

fn picture(path: &Path) -> Result<Vec<u8>> {
    let bytes = files::read(path).context("cannot read the picture")?;
    ensure!(bytes.starts_with(PNG_SIGNATURE), "not a PNG file");
    Ok(bytes)
}

/// The page of `record`; `pictures` are captions and PNG files, and `missing` are those that could not be read, and why. It
/// names no other file or address.
///
/// # Errors
/// If a chart cannot be drawn.
pub fn page(record: &Record, pictures: &[(String, Vec<u8>)], missing: &[String]) -> Result<String> {
    let application = &record.profile.application;
    let header = html! {
        h1 { "Promised and actual times" }
        p.subtitle { "Keeptime with " (application) ", on " (record.cluster) }
        p.headline { (contention::headline(&record.contention)) }
    };
    let sections = html! {
        (measured(record))
        (profile(record)?)
        (request::section(&record.request))
        (contention::section(&record.contention)?)
        (self::pictures(pictures))
        (left_out(missing))
        (how_to_read())
    };
    let title = format!("Keeptime: promised and actual times of {application}");
    Ok(frame(&title, header, sections))
}

/// On standard error, for whoever does not look at the page.
fn tell_left_out(files: &[String]) {
    for file in files {
        eprintln!("left out: {file}");
    }
}

/// Files that are not shown, and why.
fn left_out(files: &[String]) -> Markup {
    html! {
        @if !files.is_empty() {
            section {
                h2 { "Left out" }
                ul {
                    @for file in files { li { (file) } }
                }
            }
        }
    }
}

/// A page of `sections` that names no other file or address.
pub fn frame(title: &str, header: Markup, sections: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("report/style.css"))) }
            }
            body {
                header { (header) }
                main { (sections) }
            }
        }
    };
    page.into_string()
}

fn measured(record: &Record) -> Markup {
    let conditions = &record.profile.conditions;
    html! {
        section {
            h2 { "What was measured" }
            dl {
                dt { "Machine" } dd { (record.machine) }
                dt { "Cluster" } dd { (record.cluster) }
                dt { "Links of nodes" } dd { (conditions.link_bits_per_second) }
                dt { "CPU of a process" } dd { (conditions.process_cpu_ppm) }
                dt { "MPI" } dd { (record.mpi) }
                dt { "Application" }
                dd { (record.profile.application) ": " code { (conditions.command.join(" ")) } }
                dt { "This page again" } dd { code { (record.command) } }
            }
        }
    }
}

fn profile(record: &Record) -> Result<Markup> {
    let Record { profile, effort, .. } = record;
    let grid = &profile.bandwidth_grid_bits_per_second;
    Ok(html! {
        section {
            h2 { "The profile" }
            p {
                "How long " (profile.application) " takes, against the bandwidth that is reserved \
                 for each flow: one line for each combination of parameters and number of nodes. \
                 Dots on a line are the times that planning goes by, small dots are single runs, and \
                 a ring is the knee: the least bandwidth whose time is within 5 % of the best, \
                 beyond which more bandwidth buys next to nothing."
            }
            p { (effort_text(effort.runs, effort.full_grid)) " " (grid_text(grid)) }
            @for (title, curves) in groups(profile) {
                (profile_chart(&title, &curves)?)
            }
        }
    })
}

/// Fewer runs than the full grid are what refinement saves, so both numbers are told.
fn effort_text(runs: usize, full_grid: usize) -> String {
    match full_grid {
        0 => format!("It took {runs} runs."),
        all => {
            let percent = 100.0 * runs as f64 / all as f64;
            format!("It took {runs} runs, {percent:.0} % of the {all} of the full grid.")
        }
    }
}

fn grid_text(grid: &[BitsPerSecond]) -> String {
    match grid {
        [first, .., last] => format!("The grid has {} bandwidths, {first} to {last}.", grid.len()),
        _ => String::new(),
    }
}

/// All curves in one chart if they can be told apart there; otherwise one chart for each number of
/// nodes, and more where even these are too many.
fn groups(profile: &Profile) -> Vec<(String, Vec<&Curve>)> {
    let curves: Vec<_> = profile.curves.iter().filter(|c| !c.points.is_empty()).collect();
    if curves.is_empty() || curves.len() <= LINES_MAX {
        let title = profile.application.to_string();
        return if curves.is_empty() { Vec::new() } else { vec![(title, curves)] };
    }
    let mut by_nodes: BTreeMap<u32, Vec<&Curve>> = BTreeMap::new();
    for curve in curves {
        by_nodes.entry(curve.nodes).or_default().push(curve);
    }
    let charts = |(nodes, curves): (u32, Vec<_>)| {
        let title = format!("{} on {}", profile.application, count(nodes as usize, "node"));
        let parts: Vec<_> = curves.chunks(LINES_MAX).map(<[_]>::to_vec).collect();
        parts.into_iter().map(move |part| (title.clone(), part))
    };
    by_nodes.into_iter().flat_map(charts).collect()
}

fn profile_chart(title: &str, curves: &[&Curve]) -> Result<Markup> {
    let chart = LineChart {
        title: title.into(),
        x_label: "bandwidth for each flow, Mbit/s".into(),
        y_label: "execution time, s".into(),
        lines: curves.iter().map(|curve| profile_line(curve)).collect(),
        bound: None,
    };
    let runs: usize = curves.iter().flat_map(|c| &c.points).map(|p| p.samples_nanos.len()).sum();
    let text = format!("{title}: {}, {runs} runs", self::count(curves.len(), "curve"));
    Ok(figure(&chart.to_svg()?, &text, html! { (text) }))
}

fn profile_line(curve: &Curve) -> Line {
    let sample = |point: &keeptime_model::profile::Point| {
        let x = point.bandwidth_bits_per_second.as_mbit_f64();
        point.samples_nanos.iter().map(move |time| (x, time.as_secs_f64())).collect::<Vec<_>>()
    };
    let position =
        |p: &FittedPoint| (p.bandwidth_bits_per_second.as_mbit_f64(), p.time_nanos.as_secs_f64());
    let fitted = FittedCurve::new(curve);
    Line {
        label: curve_name(&curve.parameters, curve.nodes),
        points: fitted.iter().flat_map(|f| f.points().iter().map(position)).collect(),
        samples: curve.points.iter().flat_map(sample).collect(),
        marked: fitted.map(|f| position(&f.knee())),
        faded: false,
    }
}

fn pictures(pictures: &[(String, Vec<u8>)]) -> Markup {
    html! {
        @if !pictures.is_empty() {
            section {
                h2 { "Pictures" }
                p { "What the programs drew on the cluster." }
                div.pictures {
                    @for (caption, bytes) in pictures {
                        figure {
                            img alt=(caption)
                                src={ "data:image/png;base64," (STANDARD.encode(bytes)) };
                            figcaption { (caption) }
                        }
                    }
                }
            }
        }
    }
}

fn how_to_read() -> Markup {
    html! {
        section {
            h2 { "How to read this" }
            ul {
                li {
                    strong { "Promised time. " }
                    "The time that the given share of the runs (the quantile) is not expected to \
                     exceed: what half of the runs take, as fitted to those that were measured, plus \
                     what the slower ones took beyond it. With 90 %, one run in ten may be later than promised."
                }
                li {
                    strong { "Error. " }
                    "(actual − promised) / promised. A plus is later than promised. A run that is \
                     earlier than promised has an error too: it held resources that it did not \
                     need. The headline counts both, without the sign."
                }
                li {
                    strong { "With and without. " }
                    "The same program on the same nodes with the same CPU under the same load, once \
                     with bandwidth reserved, once without. A run that did not end in time counts \
                     as an error greater than any other."
                }
                li {
                    strong { "Limits. " }
                    "All nodes are network namespaces of one machine with few processors; their \
                     links are virtual and shaped to a rate, and each process has a share of a \
                     CPU. So times say nothing about real hardware; how well promises are kept \
                     under this load is what is measured. Messages go through TCP: there is no \
                     RDMA here, whose traffic these reservations would not limit. Each request \
                     ran as often as the table shows, which is too seldom to prove a quantile."
                }
            }
        }
    }
}

/// A drawing with its caption. The name space is implied inside a page, and a page that names no
/// address at all is easier to trust.
pub fn figure(svg: &str, alternative: &str, caption: Markup) -> Markup {
    let svg = svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
    html! {
        figure {
            div role="img" aria-label=(alternative) { (PreEscaped(svg)) }
            figcaption { (caption) }
        }
    }
}

fn curve_name(parameters: &keeptime_model::application::Parameters, nodes: u32) -> String {
    let mut parts = vec![story::parameters(parameters), count(nodes as usize, "node")];
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

fn seconds(time: Nanos) -> String {
    time.rounded().to_string()
}

fn mbit(rate: BitsPerSecond) -> String {
    format!("{:.1}", rate.as_mbit_f64())
}

/// `"1 node"`, `"2 nodes"`.
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
