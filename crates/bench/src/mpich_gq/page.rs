//! The page: the paper's numbers beside ours, and the pictures.

use super::{FIGURE_8, FIGURE_9, Raw, TABLE, contention, shaped, unshaped};
use crate::figures::quantile;
use crate::page::{self, Claim};
use anyhow::{Context, Result};
use keeptime::{files, report};
use maud::{Markup, html};
use std::fs;
use std::path::Path;

const TITLE: &str = "Quality of service from inside MPI programs";

/// Writes it to `path`; the pictures are in `pictures` already.
///
/// # Errors
/// If a picture is not there, or the page cannot be written.
pub fn write(raw: &Raw, pictures: &Path, path: &Path) -> Result<()> {
    let machine = raw.machine.as_ref().map(ToString::to_string).unwrap_or_default();
    let shown = [1, 5, 6, 7, 8, 9].map(|number| picture(pictures, number));
    let shown = shown.into_iter().collect::<Result<Vec<_>>>()?;
    let page = report::frame(
        TITLE,
        html! {
            h1 { (TITLE) }
            p.subtitle { "Figures 1 and 5 to 9 and table 1 of MPICH-GQ, done again; " (machine) }
        },
        html! {
            section {
                h2 { "What the paper found, and what was found here" }
                (page::claims(&claims(raw)))
                p { "Pictures are of the same runs. \"Edge\": a policer alone, as in the paper; \"node\": the sending node shapes, too." }
            }
            section { h2 { "Table 1: kbit/s to reserve for a payload" } (table(raw)) }
            section { h2 { "Pictures" } @for picture in &shown { (picture) } }
        },
    );
    files::save(path, page.as_bytes())?;
    println!("written: {}", path.display());
    Ok(())
}

fn picture(directory: &Path, number: u32) -> Result<Markup> {
    let path = directory.join(format!("figure-{number}.svg"));
    let svg = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let title = format!("figure {number}");
    Ok(report::figure(&svg, &title, html! { (title) }))
}

fn claims(raw: &Raw) -> [Claim; 6] {
    let worst = |series: &[f64]| quantile(series, 0.05);
    let [edge, node] = &raw.figure_1;
    let arrived = |share: f64| {
        let of = |payload: f64, points: &[(f64, f64)]| {
            let is_it = |point: &&(f64, f64)| (point.0 / payload - share).abs() < 0.005;
            points.iter().find(is_it).map(|point| 100.0 * point.1 / payload)
        };
        let all = shaped(&raw.figure_6).map(|(bytes, points)| {
            let payload = f64::from(bytes) * 0.08;
            (of(payload, points), of(payload, unshaped(&raw.figure_6, bytes)))
        });
        let (node, edge): (Vec<_>, Vec<_>) = all.unzip();
        let median =
            |all: Vec<Option<f64>>| quantile(&all.into_iter().flatten().collect::<Vec<_>>(), 0.5);
        format!("edge {:.0} %, node {:.0} %", median(edge), median(node))
    };
    let [_, one, shaped_one] = &raw.figure_7;
    let most = |moments: &[f64]| quantile(moments, 1.0);
    let stages = |series: &[f64]| {
        let means = contention::stages(series);
        means.iter().map(|mean| format!("{mean:.1}")).collect::<Vec<_>>().join(", ")
    };
    let [network, cpu] = &raw.figure_9;
    [
        (
            "1",
            "50 Mbit/s through a reservation of 40, the worst seconds",
            "collapses again and again",
            format!("edge {:.1}, node {:.1} Mbit/s (5th percentile)", worst(edge), worst(node)),
        ),
        (
            "6",
            "10 frames a second, 0.9 of the payload reserved; 1.06",
            "far less; all",
            format!("{}; {}", arrived(0.9), arrived(1.06)),
        ),
        (
            "7",
            "400 kbit/s at 1 frame a second, most that leaves in a 20th of a second",
            "all at once",
            format!("edge {:.0}, node {:.0} kbit", most(one), most(shaped_one)),
        ),
        (
            "8",
            "alone; others compute; CPU is reserved",
            "15; less; 15 Mbit/s",
            format!("{} of {} Mbit/s", stages(&raw.figure_8), FIGURE_8.0),
        ),
        (
            "9",
            "alone; datagrams fill the path; a rate is reserved; others compute; CPU is reserved",
            "35; nearly none; 35; less; 35 Mbit/s",
            format!("{} of {} Mbit/s", stages(network), FIGURE_9.0),
        ),
        (
            "9",
            "alone; others compute; CPU is reserved; datagrams fill the path; a rate is reserved",
            "not shown",
            format!("{} of {} Mbit/s", stages(cpu), FIGURE_9.0),
        ),
    ]
}

/// By payload: what the paper needed and what was needed here.
fn table(raw: &Raw) -> Markup {
    let number =
        |kbps: Option<f64>| kbps.map_or_else(|| "none tried".into(), |k| format!("{k:.0}"));
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        @for title in ["payload", "10 fps: paper", "edge", "1 fps: paper", "edge",
                            "1 fps, ten times the bucket: paper", "edge", "1 fps, the node shapes"] {
                            th scope="col" { (title) }
                        }
                    }
                }
                tbody {
                    @for ((payload, [ten, one, large]), (_, here)) in TABLE.iter().zip(&raw.table_1) {
                        tr {
                            td.number { (payload) }
                            td.number { (ten) } td.number { (number(here[0])) }
                            td.number { (one) } td.number { (number(here[1])) }
                            td.number { (large) } td.number { (number(here[2])) }
                            td.number { (number(here[3])) }
                        }
                    }
                }
            }
        }
    }
}
