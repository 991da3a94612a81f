//! One page with all of it that needs nothing but itself.

use super::arms::Arm;
use super::measures::{admission, improvements, mean, over_promised, over_requested};
use super::simulated::Simulation;
use super::tasks::Renderer;
use super::{Experiment, NAME, Raw, paper};
use crate::figures::{Figure, quantile};
use anyhow::Result;
use keeptime::chart::{BarChart, Group};
use keeptime::files;
use keeptime::report;
use maud::{Markup, html};
use std::path::Path;

const TITLE: &str = "A middleware that keeps promises";

/// Draws it as `middleware.html` in `out`.
pub fn write(raw: &Raw, figures: &[Figure], out: &Path) -> Result<()> {
    let header = html! {
        h1 { (TITLE) }
        p.subtitle { "Chapter 4 of the thesis, done again; " (raw.machine) }
    };
    let sections = html! {
        (setting(raw))
        @if raw.rates.is_some() { (raw.rates.section()?) }
        section { h2 { "Improvement (Tables 4.1 and 4.2)" } (improvement_table(raw)) }
        section {
            h2 { "Actual over requested (Figures 4.15 and 4.16)" }
            @for renderer in Renderer::ALL { (requested(raw, renderer)?) }
        }
        section { h2 { "Admission rates (Figure 4.17)" } (admissions(raw)?) }
        section {
            h2 { "Run times (Figures 4.9 to 4.14)" }
            p { "Seconds of a frame. A request without a first bar was refused; one without a second or third did not \
                 end within 300 s." }
            @for experiment in &raw.experiments { (run_times(experiment)?) }
        }
        section { h2 { "More nodes, simulated" } (simulated(raw)) }
        section { h2 { "All figures" } (figure_table(figures)) }
    };
    let page = report::frame(TITLE, header, sections);
    let path = out.join(format!("{NAME}.html"));
    files::save(&path, page.as_bytes())?;
    println!("written: {}", path.display());
    Ok(())
}

fn setting(raw: &Raw) -> Markup {
    let loads = raw.experiments.iter().flat_map(|e| &e.played).map(|played| played.machine_load);
    let loads: Vec<_> = loads.collect();
    html! {
        section {
            h2 { "What was done" }
            @if !raw.is_whole {
                p {
                    "This page was drawn when the measurement was interrupted, with " (raw.experiments.len()) " of "
                    (super::loads().len()) " experiments: what is not here was not measured yet. The same command \
                     goes on with it."
                }
            }
            p {
                "Tasks arrive at random intervals of up to 10, 20 and 50 s; each is a chain of one to five requests \
                 for pictures, up to 20 s from one to the next (Figure 4.8). A request names its parameters and a bound \
                 on the time of a frame: 150, 200 or 300 % of the least that was measured. The same requests come at the \
                 same times three times: with Keeptime, which admits, reserves, and lets each run use what nobody has \
                 reserved; without, where all start at once on all nodes; and with plain HTB, where each program has an equal class of \
                 every link that borrows what others leave."
            }
            p {
                "Scaled: four nodes in the place of the thesis' sixteen. Each has two processors, as there, and each of those a \
                 tenth of a CPU of this machine; a link has " (super::LINK) ", as there; a request draws as many frames \
                 as take some seconds. Image sizes, interleaving factors, their ratios and the intervals are the thesis' own. \
                 Machine load when the arms began: " (format!("{:.1}", quantile(&loads, 0.5))) " at the median, "
                (format!("{:.1}", quantile(&loads, 1.0))) " at most."
            }
        }
    }
}

fn improvement_table(raw: &Raw) -> Markup {
    let titles = [
        "load",
        "n",
        "paper: most",
        "average",
        "here: most",
        "average",
        "against HTB: average",
        "admitted",
        "late of the promise: worst",
        "the same without",
    ];
    html! {
        p { "(without − with) / with of the requests that were admitted, in percent. " em { "n" } " is how many." }
        div.wide {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody { @for experiment in &raw.experiments { (improvement_row(experiment)) } }
            }
        }
    }
}

fn improvement_row(experiment: &Experiment) -> Markup {
    let [with, without, htb] = Arm::ALL.map(|arm| &experiment.arm(arm).outcomes[..]);
    let paper = paper::improvement(&experiment.load);
    let ours = improvements(with, without);
    let most = |values: &[f64]| number(Some(quantile(values, 1.0)));
    html! {
        tr {
            td { (experiment.load) }
            td.number { (ours.len()) }
            td.number { (number(paper.map(|paper| paper.most))) }
            td.number { (number(paper.map(|paper| paper.average))) }
            td.number { (most(&ours)) }
            td.number { (number(Some(mean(&ours)))) }
            td.number { (number(Some(mean(&improvements(with, htb))))) }
            td.number { (number(Some(admission(with)))) " %" }
            td.number { (most(&over_promised(with, with))) }
            td.number { (most(&over_promised(with, without))) }
        }
    }
}

/// Blank where there is nothing.
fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or(String::new(), |value| format!("{value:.1}"))
}

fn requested(raw: &Raw, renderer: Renderer) -> Result<Markup> {
    let bar = |interval, arm| {
        let own = raw.of(renderer, interval);
        let over = own.flat_map(|e| {
            let with = &e.arm(Arm::Keeptime).outcomes;
            over_requested(with, &e.arm(arm).outcomes, &e.within_seconds)
        });
        // What is early has no bar.
        quantile(&over.collect::<Vec<_>>(), 0.95).max(0.0)
    };
    let group = |interval: u32| Group {
        label: format!("up to {interval} s"),
        bars: Arm::ALL.map(|arm| bar(interval, arm)).to_vec(),
    };
    let figure = if renderer == Renderer::Raycast { "Figure 4.15" } else { "Figure 4.16" };
    let title = format!("{figure}: {}, actual over requested, 95th percentile", renderer.name());
    chart(&title, "%", raw.intervals().into_iter().map(group).collect())
}

fn admissions(raw: &Raw) -> Result<Markup> {
    let bar = |renderer, interval| {
        let rates = raw.of(renderer, interval).map(|e| admission(&e.arm(Arm::Keeptime).outcomes));
        // What was not measured has no bar.
        mean(&rates.collect::<Vec<_>>()).max(0.0)
    };
    let group = |interval: u32| Group {
        label: format!("up to {interval} s"),
        bars: Renderer::ALL
            .into_iter()
            .flat_map(|r| [bar(r, interval), paper::admission(r, interval).unwrap_or(0.0)])
            .collect(),
    };
    let series = ["raycast", "raycast, the paper", "render", "render, the paper"].map(String::from);
    let title = "Figure 4.17: admitted, of all";
    let chart = BarChart {
        title: title.into(),
        y_label: "%".into(),
        series: series.into(),
        groups: raw.intervals().into_iter().map(group).collect(),
    };
    let caption = html! {
        (title) ". The paper's numbers are those that its text tells: less than 40 and 60 % at the heaviest load, \
        almost 100 % at the lightest."
    };
    Ok(report::figure(&chart.to_svg()?, title, caption))
}

fn run_times(experiment: &Experiment) -> Result<Markup> {
    let bars = |at: usize| {
        let seconds = |arm| experiment.arm(arm).outcomes[at].seconds.unwrap_or(0.0);
        Group { label: (at + 1).to_string(), bars: Arm::ALL.map(seconds).to_vec() }
    };
    let figure = paper::figure(&experiment.load).map_or(String::new(), |name| format!("{name}: "));
    let title = format!("{figure}{}", experiment.load);
    chart(&title, "seconds of a frame", (0..experiment.requests.len()).map(bars).collect())
}

/// A bar for each arm.
fn chart(title: &str, unit: &str, groups: Vec<Group>) -> Result<Markup> {
    let series = Arm::ALL.map(|arm| arm.name().to_owned()).into();
    let chart = BarChart { title: title.into(), y_label: unit.into(), series, groups };
    Ok(report::figure(&chart.to_svg()?, title, html! { (title) }))
}

fn simulated(raw: &Raw) -> Markup {
    let titles = ["load", "nodes", "requests", "admitted", "improvement: average", "most"];
    let row = |simulation: &Simulation| {
        let ours = improvements(&simulation.with, &simulation.without);
        html! {
            tr {
                td { (simulation.load) }
                td.number { (simulation.nodes) }
                td.number { (simulation.with.len()) }
                td.number { (number(Some(admission(&simulation.with)))) " %" }
                td.number { (number(Some(mean(&ours)))) }
                td.number { (number(Some(quantile(&ours, 1.0)))) }
            }
        }
    };
    let check = &raw.check;
    let median = |values: &[f64]| number(Some(quantile(values, 0.5)));
    html! {
        p {
            "Nothing in this table was measured: the broker's real decisions, and run times by the curves that the lab \
             measured. On the lab's own four nodes the simulation decided " (check.same) " of " (check.decisions)
            " requests as the lab did; run times are " (median(&check.with_percent)) " % off at the median with \
             Keeptime (n = " (check.with_percent.len()) "), and " (median(&check.without_percent)) " % without (n = "
            (check.without_percent.len()) "). More nodes have as many requests for each node."
        }
        div.wide {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody { @for simulation in &raw.simulations { (row(simulation)) } }
            }
        }
    }
}

fn figure_table(figures: &[Figure]) -> Markup {
    let titles = ["figure", "value", "n", "spread", "without", "target", "met", "command"];
    html! {
        div.wide {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody {
                    @for figure in figures {
                        tr {
                            td { (figure.name) }
                            td.number { (format!("{:.2} {}", figure.value, figure.unit)) }
                            td.number { (figure.samples) }
                            td.number { (format!("{:.2}", figure.spread)) }
                            td.number { (number(figure.baseline)) }
                            td.number { (figure.target.as_deref().unwrap_or("")) }
                            td { (figure.met.map_or("", |met| if met { "yes" } else { "no" })) }
                            td { code { (figure.command) } }
                        }
                    }
                }
            }
        }
    }
}
