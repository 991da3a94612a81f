//! The page: the paper's numbers beside ours, and the pictures.

use super::figures::{NEVER, by_label};
use super::{By, NAME, Raw, Run};
use crate::figures::Figure;
use crate::page;
use anyhow::Result;
use keeptime::chart::{BarChart, Group, Series, SeriesChart};
use keeptime::{files, report};
use maud::{Markup, html};
use std::path::Path;

const TITLE: &str = "Time-sharing at the rate that was asked for";

/// A number of the paper, and the figures that stand beside it.
struct Row {
    place: &'static str,
    what: &'static str,
    /// In the paper's words.
    paper: &'static str,
    /// How its name begins among ours.
    real: &'static str,
    /// Of `bench-control`: on simulated programs.
    simulated: Option<&'static str>,
}

const fn row(
    place: &'static str,
    what: &'static str,
    paper: &'static str,
    real: &'static str,
    simulated: Option<&'static str>,
) -> Row {
    Row { place, what, paper, real, simulated }
}

/// Beside "here" stands what the paper's policy, or nobody, does on the same program.
const ROWS: [Row; 20] = [
    row("2", "rate against share, 1:2", "schedules exist for every rate", "figure 2", None),
    row("3", "the mean rate over time, 1:1", "drifts without feedback", "figure 3", None),
    row(
        "4 (a)",
        "error in the steady state, 5:1",
        "within 3 %",
        "figure 4, 5:1: error",
        Some("5:1, sleeps: error, mean of 20 reports"),
    ),
    row(
        "4 (b)",
        "error in the steady state, 1:1",
        "within 3 %",
        "figure 4, 1:1: error",
        Some("1:1, sleeps: error, mean of 20 reports"),
    ),
    row(
        "4 (c)",
        "error in the steady state, 1:5",
        "within 3 %",
        "figure 4, 1:5: error",
        Some("1:5, sleeps: error, mean of 20 reports"),
    ),
    row("5", "the smallest threshold", "2 %; unstable below 1 %", "figure 5", None),
    row(
        "6, 7",
        "to a new target, 5:1",
        "29.16 s, of 16 s an iteration",
        "figures 6 and 7, 5:1: reports to a new target",
        Some("5:1, sleeps: reports to a new target"),
    ),
    row(
        "6, 7",
        "to a new target, 1:1",
        "31.33 s, about 2 iterations",
        "figures 6 and 7, 1:1: reports to a new target",
        Some("1:1, sleeps: reports to a new target"),
    ),
    row(
        "6, 7",
        "to a new target, 1:5",
        "32.01 s",
        "figures 6 and 7, 1:5: reports to a new target",
        Some("1:5, sleeps: reports to a new target"),
    ),
    row("8", "targets that change", "quickly adjusted", "figure 8", None),
    row("9", "another program on one node", "independent of it", "figure 9", None),
    row("10", "IS, whose ranks work unequally", "within 3 %", "figure 10", None),
    row(
        "11",
        "two programs, 30 and 40 %",
        "within 3 %",
        "figure 11, two programs, 1:1 at 30 %",
        None,
    ),
    row("11", "the other one", "within 3 %", "figure 11, two programs, 1:1 at 40 %", None),
    row(
        "12 (e)",
        "six programs at 10 %",
        "oscillate; right on average",
        "figure 12, 6 programs at",
        None,
    ),
    row(
        "12",
        "eight of them, seconds without an iteration",
        "",
        "figure 12, 8 programs: longest",
        None,
    ),
    row("12", "more programs", "degrades gracefully", "figure 12: deviation", None),
    row(
        "13",
        "20 MiB written an iteration (there: 50 MB)",
        "runs too fast beyond 10 MB",
        "figure 13, writing, 145:1, disk 20",
        None,
    ),
    row("14", "2 MiB written, 1:3", "degrades gracefully", "figure 14, writing, 1:3", None),
    row(
        "15",
        "1.3 GB of memory touched",
        "control is kept",
        "figure 15, touching memory, 145:1",
        None,
    ),
];

/// Of the paper's figures, those whose runs are drawn over time.
const DRAWN: [(u32, &str); 11] = [
    (3, "Figure 3: with feedback, and without"),
    (4, "Figures 4 and 6: from target to target"),
    (5, "Figure 5: thresholds of 3, 2, 1 and 0.5 %"),
    (8, "Figure 8: targets that change"),
    (9, "Figure 9: another program on one node from the middle on"),
    (10, "Figure 10: IS"),
    (11, "Figure 11: two programs"),
    (12, "Figure 12: up to eight programs at 10 %"),
    (13, "Figure 13: more and more written"),
    (14, "Figure 14: 2 MiB written, more and more communication"),
    (15, "Figure 15: two programs that touch much memory"),
];

/// Writes it to `out`; `figures` are ours, the others those of `bench-control` and `bench-deadline`.
///
/// # Errors
/// If a picture cannot be drawn, or the page not be written.
pub fn write(
    raw: &Raw,
    figures: &[Figure],
    [control, deadline]: [&[Figure]; 2],
    out: &Path,
) -> Result<()> {
    let drawn = DRAWN.iter().filter(|(figure, _)| raw.runs.iter().any(|run| run.figure == *figure));
    let sections = drawn.map(|(figure, title)| section(raw, *figure, title));
    let sections = sections.collect::<Result<Vec<_>>>()?;
    let page = report::frame(
        TITLE,
        html! {
            h1 { (TITLE) }
            p.subtitle {
                "Figures 2 to 15 of Lin, Sundararaj and Dinda, done again; " (raw.machine.to_string())
            }
        },
        html! {
            section {
                h2 { "What the paper found, and what was found here" }
                (table(figures, control))
                p {
                    "Real programs on four nodes of a lab, through broker, agents and kernel; iterations of about a tenth of a \
                     second where the paper's took 16 s, reports of a second. \"Beside it\": the paper's own policy on the same program, \
                     or nobody, as it says. Simulated: programs on 4 nodes whose processors wander by 5 %."
                }
                p {
                    "Beside figures 11 and 12 stands gang scheduling by Slurm (" (raw.gang.version) ") on the same nodes: all nodes to one \
                     program after the other, in slices of 5 s, which are its least. It knows no targets, and every program gets an \
                     equal part."
                }
            }
            @if !raw.range.points.is_empty() { (range(raw)?) }
            @for section in &sections { (section) }
            section {
                h2 { "Deadline jobs (section 6)" }
                p { "The paper proposes them and measures nothing. Here, in simulation with the real planner:" }
                (late(deadline)?)
            }
        },
    );
    let path = out.join(format!("{NAME}.html"));
    files::save(&path, page.as_bytes())?;
    println!("written: {}", path.display());
    Ok(())
}

fn table(figures: &[Figure], control: &[Figure]) -> Markup {
    let simulated = |name: &str| control.iter().find(|figure| figure.name == name);
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        @for title in ["figure", "what", "paper", "here", "beside it", "simulated", "the paper's policy, simulated"] {
                            th scope="col" { (title) }
                        }
                    }
                }
                tbody {
                    @for row in &ROWS {
                        @let real = figures.iter().find(|figure| figure.name.starts_with(row.real));
                        @let simulated = row.simulated.and_then(simulated);
                        tr {
                            td { (row.place) }
                            td { (row.what) }
                            td { (row.paper) }
                            td.number { (real.map_or_else(String::new, page::value)) }
                            td.number { (number(real.and_then(|figure| figure.baseline))) }
                            td.number { (simulated.map_or_else(String::new, page::value)) }
                            td.number { (number(simulated.and_then(|figure| figure.baseline))) }
                        }
                    }
                }
            }
        }
    }
}

fn number(value: Option<f64>) -> String {
    match value {
        Some(NEVER) => "never".into(),
        Some(value) => format!("{value:.2}"),
        None => String::new(),
    }
}

/// Figure 2: a line for each period.
fn range(raw: &Raw) -> Result<Markup> {
    let mut periods: Vec<f64> = raw.range.points.iter().map(|point| point.1).collect();
    periods.sort_by(f64::total_cmp);
    periods.dedup();
    let line = |period: f64| {
        let own = raw.range.points.iter().filter(|point| point.1 == period);
        let points = own.map(|point| (100.0 * point.0, 100.0 * point.2 / raw.range.full_speed));
        Series { label: format!("periods of {:.0} ms", 1e3 * period), points: points.collect() }
    };
    let ideal = Series { label: "ideal".into(), points: vec![(0.0, 0.0), (100.0, 100.0)] };
    let title = "Figure 2: what every schedule comes to, 1:2";
    let chart = SeriesChart {
        title: title.into(),
        x_label: "share of what is used at full speed, %".into(),
        y_label: "rate, % of full speed".into(),
        series: periods.into_iter().map(line).chain([ideal]).collect(),
        bounds: Vec::new(),
    };
    Ok(html! {
        section { h2 { (title) } (report::figure(&chart.to_svg()?, title, html! { (title) })) }
    })
}

/// A figure of the paper: a picture for each label, a line for each program in it.
fn section(raw: &Raw, figure: u32, title: &str) -> Result<Markup> {
    let mut pictures = Vec::new();
    let in_turns = by_label(&raw.gang.runs, figure).into_iter();
    let in_turns = in_turns.map(|(label, runs)| (format!("{label}, in turns"), runs));
    for (label, runs) in by_label(&raw.runs, figure).into_iter().chain(in_turns) {
        let series: Vec<_> = runs.iter().enumerate().map(|(at, run)| series(run, at)).collect();
        let all = runs.iter().flat_map(|run| &run.stages).map(|stage| f64::from(stage.target));
        let mut bounds: Vec<_> = all.collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        let text = format!("{title}: {label}");
        let chart = SeriesChart {
            title: text.clone(),
            x_label: "seconds".into(),
            y_label: "rate, % of full speed".into(),
            series,
            bounds,
        };
        pictures.push(report::figure(&chart.to_svg()?, &text, html! { (text) }));
    }
    Ok(html! { section { h2 { (title) } @for picture in &pictures { (picture) } } })
}

/// Second by second, from the first stage on. What was not held is against its own mean before it was disturbed.
fn series(run: &Run, at: usize) -> Series {
    let (from, to) = match (run.stages.first(), run.stages.last()) {
        (Some(first), Some(last)) => (first.from, last.to),
        _ => (0.0, run.trace.end()),
    };
    let parts = match run.by {
        By::Unprotected => {
            let first = run.stages.first().map_or(to, |stage| stage.to);
            let full = run.trace.rate(from, first);
            let rates = run.trace.rates(from, to, 1.0).into_iter();
            rates.map(|(end, rate)| (end, rate / full)).collect()
        }
        _ => run.trace.parts(from, to, 1.0),
    };
    let by = match run.by {
        By::Ours => "ours",
        By::Paper => "the paper's policy",
        By::Nobody => "nobody corrects",
        By::Unprotected => "nothing reserved",
        By::Gang => "gang scheduling",
    };
    let label = match run.figure {
        5 => format!("{by}, {} %", run.threshold),
        11 | 12 | 15 => format!("program {}", at + 1),
        _ => by.to_owned(),
    };
    let points = parts.into_iter().map(|(end, part)| (end - from, 100.0 * part)).collect();
    Series { label, points }
}

fn late(deadline: &[Figure]) -> Result<Markup> {
    let group = |figure: &Figure| {
        let label = figure.name.strip_suffix(": late")?.to_owned();
        Some(Group { label, bars: vec![figure.baseline.unwrap_or_default(), figure.value] })
    };
    let chart = BarChart {
        title: "late jobs".into(),
        y_label: "% of jobs".into(),
        series: ["first come with backfill", "planned"].map(String::from).into(),
        groups: deadline.iter().filter_map(group).collect(),
    };
    Ok(report::figure(&chart.to_svg()?, "late jobs", html! { "late jobs" }))
}
