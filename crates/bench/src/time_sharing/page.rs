//! The page: the paper's numbers beside ours, and the pictures.

use super::figures::{PAPERS, by_label};
use super::{By, NAME, Range, Raw, Run};
use crate::figures::Figure;
use crate::page;
use anyhow::Result;
use keeptime::chart::{BarChart, Group, Series, SeriesChart, Target};
use keeptime::{files, report};
use maud::{Markup, html};
use std::collections::BTreeMap;
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

const COLUMNS: [&str; 8] = [
    "figure",
    "what",
    "the paper found",
    "the paper's policy here",
    "ours",
    "without",
    "the paper's policy, simulated",
    "ours, simulated",
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

/// Of these, those in which several programs of one label ran at once.
const AT_ONCE: [u32; 2] = [12, 15];

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
    let range = raw.range.as_ref().map(range).transpose()?;
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
                @if !raw.missing.is_empty() {
                    p {
                        "Not measured yet, and so not here: " (raw.missing.join("; ")) ". "
                        code { "make eval-time-sharing" } " measures what is missing."
                    }
                }
                (explained(raw))
            }
            @if let Some(range) = &range { (range) }
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

/// What the table's columns are.
fn explained(raw: &Raw) -> Markup {
    html! {
        p {
            "Real programs on four nodes of a lab, through broker, agents and kernel; iterations of about a tenth of a \
             second where the paper's took 16 s, reports of a second. \"Ours\" and \"the paper's policy\": on the same program, with \
             the same targets, for as long; the paper's at 2, 6 and 8 programs of figure 12, at 1, 10 and 20 MiB of figure 13, and at \
             65:1 and 1:3 of figure 14. \"Without\": nobody corrects (3), nothing is reserved (9), programs run in turns (11, 12). \
             Simulated: programs on 4 nodes whose processors wander by 5 %."
        }
        p {
            "The paper's policy gives a program the target's part of all CPU that it may have, whatever it uses of that, and holds it against \
             the full speed that was measured at the start. For IS (10) the paper took half of what the busiest node used instead."
        }
        @if let Some(version) = &raw.slurm {
            p {
                "Programs in turns: gang scheduling by Slurm (" (version) ") on the same nodes, all nodes to one program after the \
                 other, in slices of 5 s, which are its least. It knows no targets, and every program gets an equal part."
            }
        }
    }
}

impl Row {
    /// Ours and the paper's policy's, as far as they were measured.
    fn found<'a>(&self, figures: &'a [Figure]) -> [Option<&'a Figure>; 2] {
        [false, true].map(|is_papers| {
            let is_own = |name: &str| name.ends_with(PAPERS) == is_papers;
            let mut own = figures.iter().filter(|figure| is_own(&figure.name));
            own.find(|figure| figure.name.starts_with(self.real))
        })
    }
}

/// Rows of which nothing was measured are left out.
fn table(figures: &[Figure], control: &[Figure]) -> Markup {
    let simulated = |name: &str| control.iter().find(|figure| figure.name == name);
    let rows = ROWS.iter().map(|row| (row, row.found(figures)));
    let rows = rows.filter(|(_, found)| found.iter().any(Option::is_some));
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        @for title in COLUMNS { th scope="col" { (title) } }
                    }
                }
                tbody {
                    @for (row, [ours, papers]) in rows {
                        @let simulated = row.simulated.and_then(simulated);
                        @let without = ours.or(papers);
                        tr {
                            td { (row.place) }
                            td { (row.what) }
                            td { (row.paper) }
                            td.number { (value(papers)) }
                            td.number { (value(ours)) }
                            td.number { (baseline(without)) }
                            td.number { (baseline(simulated)) }
                            td.number { (value(simulated)) }
                        }
                    }
                }
            }
        }
    }
}

fn value(figure: Option<&Figure>) -> String {
    figure.map(page::value).unwrap_or_default()
}

fn baseline(figure: Option<&Figure>) -> String {
    figure.map(|figure| figure.baseline_text(2)).unwrap_or_default()
}

/// Figure 2: a line for each period.
fn range(range: &Range) -> Result<Markup> {
    let mut periods: Vec<f64> = range.points.iter().map(|point| point.1).collect();
    periods.sort_by(f64::total_cmp);
    periods.dedup();
    let line = |period: f64| {
        let own = range.points.iter().filter(|point| point.1 == period);
        let points = own.map(|point| (100.0 * point.0, 100.0 * point.2 / range.full_speed));
        Series { label: format!("periods of {:.0} ms", 1e3 * period), points: points.collect() }
    };
    let ideal = Series { label: "ideal".into(), points: vec![(0.0, 0.0), (100.0, 100.0)] };
    let title = "Figure 2: what every schedule comes to, 1:2";
    let chart = SeriesChart {
        title: title.into(),
        x_label: "share of what is used at full speed, %".into(),
        y_label: "rate, % of full speed".into(),
        series: periods.into_iter().map(line).chain([ideal]).collect(),
        targets: Vec::new(),
    };
    Ok(html! {
        section { h2 { (title) } (report::figure(&chart.to_svg()?, title, html! { (title) })) }
    })
}

/// A figure of the paper: a picture for each label, a line for each who decides; where programs of one label ran at once,
/// a picture for each of these, too, and a line for each program.
fn section(raw: &Raw, figure: u32, title: &str) -> Result<Markup> {
    let mut pictures = Vec::new();
    let mut labelled = by_label(&raw.runs, figure);
    if AT_ONCE.contains(&figure) {
        labelled = labelled.into_iter().flat_map(by_who_decides).collect();
    }
    for (label, runs) in labelled {
        let series: Vec<_> = runs.iter().enumerate().map(|(at, run)| series(run, at)).collect();
        let targets = targets(&runs);
        let text = format!("{title}: {label}");
        let chart = SeriesChart {
            title: text.clone(),
            x_label: "seconds".into(),
            y_label: "rate, % of full speed".into(),
            series,
            targets,
        };
        pictures.push(report::figure(&chart.to_svg()?, &text, html! { (text) }));
    }
    Ok(html! { section { h2 { (title) } @for picture in &pictures { (picture) } } })
}

/// What was asked of these runs, each part of full speed once, from when the first had it till when the last did.
fn targets(runs: &[&Run]) -> Vec<Target> {
    let mut spans: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for run in runs {
        let begin = run.stages.first().map_or(0.0, |stage| stage.from);
        for stage in &run.stages {
            let (from, to) = (stage.from - begin, stage.to - begin);
            let span = spans.entry(stage.target).or_insert((from, to));
            *span = (span.0.min(from), span.1.max(to));
        }
    }
    let target =
        |(percent, (from, to)): (u32, (f64, f64))| Target { from, to, height: f64::from(percent) };
    spans.into_iter().map(target).collect()
}

/// The runs of a label, parted.
fn by_who_decides((label, runs): (String, Vec<&Run>)) -> Vec<(String, Vec<&Run>)> {
    let of = |by: By| {
        let own: Vec<_> = runs.iter().copied().filter(|run| run.by == by).collect();
        (format!("{label}, {}", by.name()), own)
    };
    let parted = [By::Ours, By::Paper, By::Gang].map(of).into_iter();
    parted.filter(|(_, own)| !own.is_empty()).collect()
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
    let by = run.by.name();
    let label = match run.figure {
        5 => format!("{by}, {} %", run.threshold),
        figure if AT_ONCE.contains(&figure) => format!("program {}", at + 1),
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
        series: ["FCFS with backfill", "keeptime run --by --wait"].map(String::from).into(),
        groups: deadline.iter().filter_map(group).collect(),
        bound: None,
    };
    Ok(report::figure(&chart.to_svg()?, "late jobs", html! { "late jobs" }))
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::*;
    use crate::figures::{Figures, NEVER};

    // Goal: a row says what both policies came to, and what was not measured has none.
    #[test]
    fn rows_are_those_of_what_was_measured_by_whichever_policy() {
        let mut figures = Figures::new("test");
        let mut add = |name: String, value: f64, beside: Option<f64>| {
            figures.value(name, "x", value, &[value], beside, None).or_never();
        };
        let loaded = "figure 9: rate that another program takes";
        add(loaded.into(), 0.25, Some(50.5));
        add(format!("{loaded}{PAPERS}"), NEVER, Some(50.5));
        add(format!("figure 10, IS, is: error{PAPERS}"), 41.75, None);
        let page = table(figures.all(), &[]).into_string();
        assert_eq!(page.matches("<tr>").count(), 3, "a header and two rows: {page}");
        assert!(page.contains("0.25 x") && page.contains("never") && page.contains("50.50"));
        assert!(page.contains("41.75 x") && !page.contains("quickly adjusted"), "{page}");
    }

    #[test]
    fn a_target_is_drawn_from_when_the_first_had_it_till_when_the_last_did() {
        let run = |begin: f64, later: f64| {
            let stage = |target, from, to| Stage { target, from: begin + from, to: begin + to };
            let stages = vec![stage(30, 0.0, 20.0), stage(60, 20.0, 40.0 + later)];
            let (label, trace) = ("1:1".into(), Default::default());
            Run { figure: 8, label, by: By::Ours, threshold: 3.0, stages, trace }
        };
        let runs = [run(5.0, 0.0), run(100.0, 1.0)];
        let target = |from, to, height| Target { from, to, height };
        let expected = [target(0.0, 20.0, 30.0), target(20.0, 41.0, 60.0)];
        assert_eq!(targets(&runs.iter().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn programs_at_once_have_a_picture_for_each_who_decides() {
        let run = |by: By| {
            let (label, trace) = ("2".into(), Default::default());
            Run { figure: 12, label, by, threshold: 3.0, stages: Vec::new(), trace }
        };
        let runs = [By::Ours, By::Ours, By::Gang].map(run);
        let pictures = by_who_decides(("2".into(), runs.iter().collect()));
        let found: Vec<_> =
            pictures.iter().map(|(label, runs)| (label.as_str(), runs.len())).collect();
        assert_eq!(found, [("2, ours", 2), ("2, gang scheduling", 1)]);
    }
}
