//! `make eval-time-sharing`: the time-sharing paper's numbers beside what its own algorithm does here and what
//! ours does, as one page that needs nothing but itself. It measures nothing: it draws what `bench-control`,
//! `bench-rate` and `bench-deadline` have left in `out`.

use crate::control::NEVER;
use crate::figures::{self, Figure};
use crate::page;
use anyhow::Result;
use keeptime::chart::{BarChart, Group};
use keeptime::files;
use keeptime::machine::Machine;
use keeptime::report;
use maud::{Markup, html};
use std::path::Path;

/// A number of the paper, and the figures that stand beside it.
struct Row {
    /// Which figure or section of the paper.
    place: &'static str,
    what: &'static str,
    /// In the paper's words.
    paper: &'static str,
    /// Of `bench-control`: on simulated programs, the paper's policy as its baseline.
    simulated: &'static str,
    /// Of `bench-rate`: on a real program; what full speed wanders by as its baseline.
    real: Option<&'static str>,
}

const ROWS: [Row; 6] = [
    Row {
        place: "Figures 6, 7",
        what: "reports (there: iterations) from a new target to within the threshold, computing 5 times as long as communicating",
        paper: "29.16 s",
        simulated: "5:1, sleeps: reports to a new target",
        real: None,
    },
    Row {
        place: "Figures 6, 7",
        what: "the same, as long",
        paper: "31.33 s, about 2 iterations",
        simulated: "1:1, sleeps: reports to a new target",
        real: Some("reports to a new target"),
    },
    Row {
        place: "Figures 6, 7",
        what: "the same, a fifth as long",
        paper: "32.01 s",
        simulated: "1:5, sleeps: reports to a new target",
        real: None,
    },
    Row {
        place: "Figure 4 (a)",
        what: "error of the rate in the steady state, 5:1",
        paper: "within the threshold of 3 %",
        simulated: "5:1, sleeps: error, mean of 20 reports",
        real: None,
    },
    Row {
        place: "Figure 4 (b)",
        what: "the same, 1:1",
        paper: "within the threshold of 3 %",
        simulated: "1:1, sleeps: error, mean of 20 reports",
        real: Some("rate error over 20 s, full speed as it was before and after"),
    },
    Row {
        place: "Figure 4 (c)",
        what: "the same, 1:5",
        paper: "within the threshold of 3 %",
        simulated: "1:5, sleeps: error, mean of 20 reports",
        real: None,
    },
];

/// What of the paper is not done again yet.
const MISSING: &str = "Figures 2 (range of control), 3 (drift without feedback), 5 (thresholds below 1 %), \
                       8 to 15 (changing targets over time, external load, IS, several applications, disk, memory), and \
                       Slurm's gang scheduling.";

/// Draws the page from the figures in `out`.
///
/// # Errors
/// If the figures of a benchmark are not there.
pub fn run(out: &Path) -> Result<()> {
    let [control, rate, deadline] =
        ["control", "rate", "deadline"].map(|name| figures::read(out, name));
    let (control, rate, deadline) = (control?, rate?, deadline?);
    let page = report::frame(
        "Time-sharing at the rate that was asked for",
        html! {
            h1 { "Time-sharing at the rate that was asked for" }
            p.subtitle { "The numbers of Lin, Sundararaj and Dinda, done again; " (Machine::here()) }
        },
        html! {
            section {
                h2 { "Rate control" }
                (table(&control, &rate))
                (bars(&control, "error, mean of 20 reports", "percentage points of full speed, median")?)
                p {
                    "Simulated: programs on 4 nodes whose processors wander by 5 %, the paper's policy and ours on \
                     the same ones. Real: a program on two nodes of a lab, its rate counted by its output."
                }
            }
            section {
                h2 { "Deadline jobs (section 6)" }
                p { "The paper proposes them and measures nothing. Here, in simulation with the real planner:" }
                (late(&deadline)?)
            }
            section { h2 { "Not done again yet" } p { (MISSING) } }
        },
    );
    let path = out.join("time-sharing.html");
    files::save(&path, page.as_bytes())?;
    let all: Vec<_> = control.into_iter().chain(rate).chain(deadline).collect();
    files::save_json(&out.join("time-sharing.json"), &all)?;
    figures::print(&all);
    println!("written: {}", path.display());
    Ok(())
}

fn table(control: &[Figure], rate: &[Figure]) -> Markup {
    let find = |all: &[Figure], name: &str| all.iter().find(|figure| figure.name == name).cloned();
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        @for title in ["paper", "what", "its number", "its policy here", "ours, simulated",
                            "ours, real", "full speed wandered by"] {
                            th scope="col" { (title) }
                        }
                    }
                }
                tbody {
                    @for row in &ROWS {
                        @let simulated = find(control, row.simulated);
                        @let real = row.real.and_then(|name| find(rate, name));
                        tr {
                            td { (row.place) }
                            td { (row.what) }
                            td { (row.paper) }
                            td.number { (number(simulated.as_ref().and_then(|figure| figure.baseline))) }
                            td.number { (value(simulated.as_ref())) }
                            td.number { (value(real.as_ref())) }
                            td.number {
                                @if row.place.starts_with("Figure 4") {
                                    (number(real.and_then(|figure| figure.baseline)))
                                }
                            }
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

fn value(figure: Option<&Figure>) -> String {
    figure.map_or_else(String::new, page::value)
}

/// The paper's policy and ours on every simulated program.
fn bars(control: &[Figure], what: &str, unit: &str) -> Result<Markup> {
    let group = |figure: &Figure| {
        let label = figure.name.strip_suffix(what)?.trim_end_matches(": ").to_owned();
        Some(Group { label, bars: vec![figure.baseline.unwrap_or_default(), figure.value] })
    };
    let groups: Vec<_> = control.iter().filter_map(group).collect();
    chart(what, unit, ["the paper's policy", "ours"], groups)
}

fn late(deadline: &[Figure]) -> Result<Markup> {
    let group = |figure: &Figure| {
        let label = figure.name.strip_suffix(": late")?.to_owned();
        Some(Group { label, bars: vec![figure.baseline.unwrap_or_default(), figure.value] })
    };
    let groups = deadline.iter().filter_map(group).collect();
    chart("late jobs", "% of jobs", ["first come with backfill", "planned"], groups)
}

fn chart(title: &str, unit: &str, series: [&str; 2], groups: Vec<Group>) -> Result<Markup> {
    let series = series.map(String::from).into();
    let chart = BarChart { title: title.into(), y_label: unit.into(), series, groups };
    Ok(report::figure(&chart.to_svg()?, title, html! { (title) }))
}
