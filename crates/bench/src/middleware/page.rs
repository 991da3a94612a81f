//! One page with all of it that needs nothing but itself.

use super::arms::Arm;
use super::comparison::{Check, Gain};
use super::measures::{
    admission, improvements, mean, over_promised, over_requested, promises_kept,
    response_improvements,
};
use super::simulated::Foretold;
use super::tasks::Renderer;
use super::{Experiment, NAME, PROMISED_PERCENT, Raw, admission_rates, by_promise, command, paper};
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
    // A chart without a group cannot be drawn.
    let is_drawn = |renderer: &Renderer| !raw.by_interval(*renderer).is_empty();
    let renderers: Vec<_> = Renderer::ALL.into_iter().filter(is_drawn).collect();
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
            p {
                "Of the requests that were admitted; where nothing was measured there is no bar. What is early is less \
                 than 100 % in a chart, and less than 0 in its table."
            }
            @for renderer in &renderers { (requested(raw, *renderer)?) }
        }
        section {
            h2 { "Promised and achieved" }
            p { "A promise is kept by a run that takes no longer; by one that does not end it is not." }
            @for renderer in &renderers { (coverage(raw, *renderer)?) }
        }
        section {
            h2 { "Admission rates (Figure 4.17)" }
            @for renderer in &renderers { (admissions(raw, *renderer)?) }
        }
        @if raw.experiments.iter().any(Experiment::may_wait) {
            section { h2 { "Waiting" } (waiting(raw)) }
        }
        section {
            h2 { "Run times (Figures 4.9 to 4.14)" }
            p { "Seconds of a frame. A request without a first bar was refused; one without a second or third did not \
                 end within 300 s." }
            @for experiment in &raw.experiments { (run_times(experiment)?) }
        }
        section {
            h2 { "More nodes, simulated" }
            (simulated(raw))
            (held_against_the_lab(&raw.check))
            @if raw.check.speeds > 0 { (speeds_given(raw)) }
        }
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
    let waiting = raw.experiments.iter().find(|experiment| experiment.may_wait());
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
                @if let Some(patient) = waiting {
                    " At intervals of up to " (patient.load.interval_most) " s Keeptime has a request for which there is \
                     no room wait for up to " (patient.wait_nanos) " until there is; at others it is refused at once."
                }
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
        "of responses: average",
        "admitted",
        "late of the promise: worst",
        "the same without",
    ];
    html! {
        p {
            "(without − with) / with of the requests that were admitted, in percent. " em { "n" } " is how many. All is of \
             the time of a frame but " em { "of responses" } ": that is from when a request was asked for until its run had \
             ended, with its wait for room and its launching, and what is left of the improvement then."
        }
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
            td.number { (number(Some(mean(&response_improvements(with, without))))) }
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

/// Of an interval, for each arm: what was measured, and how often.
type Row = (u32, [(f64, usize); 3]);

fn rows(
    raw: &Raw,
    renderer: Renderer,
    measure: impl Fn(&[&Experiment], Arm) -> Vec<f64>,
    value: impl Fn(&[f64]) -> f64,
) -> Vec<Row> {
    let row = |(interval, own): (u32, Vec<&Experiment>)| {
        let cell = |arm| {
            let all = measure(&own, arm);
            (value(&all), all.len())
        };
        (interval, Arm::ALL.map(cell))
    };
    raw.by_interval(renderer).into_iter().map(row).collect()
}

/// Bars of `base` and what was measured.
fn row_chart(title: &str, note: &str, base: f64, rows: &[Row]) -> Result<Markup> {
    let group = |(interval, cells): &Row| Group {
        label: format!("up to {interval} s"),
        bars: cells.map(|(value, _)| base + value).to_vec(),
    };
    let samples = rows.iter().flat_map(|row| row.1).map(|cell| cell.1).sum();
    chart(title, note, "%", rows.iter().map(group).collect(), samples)
}

/// With a column of what it is to be compared with.
fn row_table(rows: &[Row], (title, reference): (&str, &str)) -> Markup {
    let cell = |(value, samples): (f64, usize)| match samples {
        0 => String::new(),
        samples => format!("{value:.1} (n = {samples})"),
    };
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th scope="col" { "intervals, %" }
                        th scope="col" { (title) }
                        @for arm in Arm::ALL { th scope="col" { (arm.name()) } }
                    }
                }
                tbody {
                    @for (interval, cells) in rows {
                        tr {
                            td { "up to " (interval) " s" }
                            td.number { (reference) }
                            @for value in cells { td.number { (cell(*value)) } }
                        }
                    }
                }
            }
        }
    }
}

/// Bars cannot go below 0, and many runs are early: they are of the time itself, the table of what is over.
fn requested(raw: &Raw, renderer: Renderer) -> Result<Markup> {
    let rows = rows(raw, renderer, over_requested_of, |over| quantile(over, 0.95));
    let paper = paper::OVER_REQUESTED;
    let (figure, without) = match renderer {
        Renderer::Raycast => ("Figure 4.15", String::new()),
        Renderer::Render => {
            let without = paper::OVER_REQUESTED_WITHOUT;
            let told = format!(", and by up to {without} % more without it at up to 10 s");
            ("Figure 4.16", told)
        }
    };
    let name = renderer.name();
    let title = format!("{figure}: {name}, actual in percent of requested, 95th percentile");
    let note = format!("At 100 % as requested. The paper: at most {paper} % more{without}");
    let chart = row_chart(&title, &note, 100.0, &rows)?;
    let paper = format!("at most {paper}");
    Ok(html! { (chart) (row_table(&rows, ("over requested: the paper, with", paper.as_str()))) })
}

fn over_requested_of(own: &[&Experiment], arm: Arm) -> Vec<f64> {
    let over = |e: &&Experiment| {
        let with = &e.arm(Arm::Keeptime).outcomes;
        over_requested(with, &e.arm(arm).outcomes, &e.within_seconds)
    };
    own.iter().flat_map(over).collect()
}

fn coverage(raw: &Raw, renderer: Renderer) -> Result<Markup> {
    let measure = |own: &[&Experiment], arm| by_promise(own, arm, promises_kept);
    let rows = rows(raw, renderer, measure, mean);
    let promised = format!("{PROMISED_PERCENT}");
    let title = format!("{}: promises for {promised} % of runs, kept", renderer.name());
    let note = "By the other arms: what they would have kept of the same promises";
    let chart = row_chart(&title, note, 0.0, &rows)?;
    Ok(html! { (chart) (row_table(&rows, ("promised", promised.as_str()))) })
}

fn admissions(raw: &Raw, renderer: Renderer) -> Result<Markup> {
    let by_interval = raw.by_interval(renderer);
    let group = |(interval, own): (&u32, &Vec<&Experiment>)| {
        let rates = admission_rates(own);
        let ours = [mean(&rates), quantile(&rates, 0.0)];
        // The last one is not there where the text tells nothing.
        let bars = ours.into_iter().chain(paper::admission(renderer, *interval)).collect();
        Group { label: format!("up to {interval} s"), bars }
    };
    let title = format!("Figure 4.17: {}, admitted, of all", renderer.name());
    let series = ["mean of mixes or seeds", "least of them", "the paper"].map(String::from);
    let chart = BarChart {
        title: title.clone(),
        y_label: "%".into(),
        series: series.into(),
        groups: by_interval.iter().map(group).collect(),
        bound: None,
    };
    let requests = by_interval.values().flatten().map(|e| e.requests.len()).sum();
    let told = match renderer {
        Renderer::Raycast => "less than 40 % at the heaviest load",
        Renderer::Render => "less than 60 % at the heaviest load, almost 100 % at the lightest",
    };
    let may_wait = by_interval.values().flatten().any(|experiment| experiment.may_wait());
    let waiting = if may_wait { ". Some requests may wait for room: see below" } else { "" };
    let text = format!("{title}. The paper, where its text tells it: {told}{waiting}");
    Ok(report::figure(&chart.to_svg()?, &title, caption(&text, requests)))
}

/// What it costs that more are admitted.
fn waiting(raw: &Raw) -> Markup {
    let titles = ["load", "may wait", "requests", "admitted", "waited", "median, s", "most, s"];
    let row = |experiment: &Experiment| {
        let (with, waits) = (&experiment.arm(Arm::Keeptime).outcomes, experiment.waits());
        html! {
            tr {
                td { (experiment.load) }
                td.number { (experiment.wait_nanos) }
                td.number { (with.len()) }
                td.number { (number(Some(admission(with)))) " %" }
                td.number { (waits.len()) }
                td.number { (number(Some(quantile(&waits, 0.5)))) }
                td.number { (number(Some(quantile(&waits, 1.0)))) }
            }
        }
    };
    let may_wait = raw.experiments.iter().filter(|experiment| experiment.may_wait());
    html! {
        p {
            "The thesis refuses at once what does not fit. Here a request at the longest intervals may wait until a run \
             has ended. Its frames are then as fast as promised, and its user has waited for them: how many of those \
             that were admitted did, and for how long. What is left of the improvement is under " em { "of responses" }
            " in the first table."
        }
        div.wide {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody { @for experiment in may_wait { (row(experiment)) } }
            }
        }
    }
}

fn run_times(experiment: &Experiment) -> Result<Markup> {
    let bars = |at: usize| {
        let seconds = |arm| experiment.arm(arm).outcomes[at].seconds.unwrap_or(0.0);
        Group { label: (at + 1).to_string(), bars: Arm::ALL.map(seconds).to_vec() }
    };
    let figure = paper::figure(&experiment.load).map_or(String::new(), |name| format!("{name}: "));
    let title = format!("{figure}{}", experiment.load);
    let groups = (0..experiment.requests.len()).map(bars).collect();
    let outcomes = experiment.played.iter().flat_map(|played| &played.outcomes);
    let runs = outcomes.filter(|outcome| outcome.seconds.is_some()).count();
    chart(&title, "", "seconds of a frame", groups, runs)
}

/// A bar for each arm.
fn chart(
    title: &str,
    note: &str,
    unit: &str,
    groups: Vec<Group>,
    samples: usize,
) -> Result<Markup> {
    let series = Arm::ALL.map(|arm| arm.name().to_owned()).into();
    let chart = BarChart { title: title.into(), y_label: unit.into(), series, groups, bound: None };
    let text = if note.is_empty() { title.to_owned() } else { format!("{title}. {note}") };
    Ok(report::figure(&chart.to_svg()?, title, caption(&text, samples)))
}

/// What a chart shows, of how many measurements, and how it is drawn again.
pub fn caption(text: &str, samples: usize) -> Markup {
    html! { (text) ". n = " (samples) ", by " code { (command()) } "." }
}

fn simulated(raw: &Raw) -> Markup {
    let titles = ["load", "nodes", "requests", "admitted", "improvement", "the paper", "by chance"];
    let row = |foretold: &Foretold| {
        let paper = paper::improvement(&foretold.load).map(|paper| paper.average);
        html! {
            tr {
                td { (foretold.load) }
                td.number { (foretold.nodes) }
                td.number { (foretold.requests) }
                td.number { (number(Some(mean(&foretold.admitted)))) " %" }
                td.number { (number(Some(mean(&foretold.improvement)))) }
                td.number { (number(paper)) }
                td.number { (number(Some(mean(&foretold.by_chance)))) }
            }
        }
    };
    html! {
        p {
            "Nothing in this table was measured: the broker's real decisions, run times by the curves that the lab \
             measured, and launching as it took there, drawn from its runs with the same parameters (" (raw.check.draws)
            " times; the table has means). More nodes have as many requests for each node, and each run has four of them. \
             Requests wait for as long as they may in the lab."
        }
        p {
            "Without Keeptime each run starts on the four nodes that have the fewest runs. That is the work of a scheduler \
             which sees all of them at each moment: while it finds nodes with one run at the most, there is nothing to improve. \
             Under " em { "by chance" } " each starts on four neighbouring nodes that are drawn, as where \
             nobody looks after it. In the lab all runs have the same nodes."
        }
        p {
            "While it is launched, a run takes processors as well: of its time, in parts of what one does that draws, "
            @for (at, crowding) in raw.crowding.iter().enumerate() {
                @if at > 0 { ", " }
                (format!("{:.2}", crowding.launching)) " (" code { (crowding.renderer.name()) } ", n = " (crowding.runs) ")"
            }
            ". It is seen from how much slower others are beside it, in the arm with plain HTB, with which nothing here is \
             compared."
        }
        div.wide {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody { @for foretold in &raw.foretold { (row(foretold)) } }
            }
        }
    }
}

/// The lab's own requests, simulated in both ways.
fn held_against_the_lab(check: &Check) -> Markup {
    let foreseen = &check.foreseen;
    html! {
        p {
            "On the lab's own four nodes the simulation decided " (share(&foreseen.alike_percent)) " % of "
            (foreseen.alike_percent.len()) " requests as the lab did, on average of " (check.draws) " draws of launching. That says \
             how well times are foreseen: half a second decides whether a run has ended when the next request comes. \
             Run times are " (median(&foreseen.with_percent)) " % off at the median with Keeptime (n = "
            (foreseen.with_percent.len()) "), and " (median(&foreseen.without_percent)) " % without (n = "
            (foreseen.without_percent.len()) ")."
        }
        p {
            "Given when the lab's runs ended, it decided " (share(&check.given_ends_percent)) " % of "
            (check.given_ends_percent.len()) " requests as the lab did, and promised the same to "
            (share(&check.given_ends_promise_percent)) " % of the " (check.given_ends_promise_percent.len())
            " that both admitted. That says whether the same is decided of the same. Each decision is judged by itself."
        }
        (gains(check))
        @if !check.different.is_empty() {
            p { "Decided otherwise then:" }
            ul { @for difference in &check.different { li { (difference) } } }
        }
    }
}

/// Improvements are differences of two run times, and off by more than those.
fn gains(check: &Check) -> Markup {
    let titles = ["load", "the lab", "simulated", "the machine's speed given"];
    let given = |load| check.given_speed.gains.iter().find(|gain| gain.load == load);
    let off = |gains: &[Gain]| {
        let off: Vec<_> = gains.iter().map(|gain| gain.over().abs()).collect();
        let over: Vec<_> = gains.iter().map(Gain::over).collect();
        format!("{:.1} points off on average, and {:+.1} with their signs", mean(&off), mean(&over))
    };
    html! {
        p {
            "The average improvement, in percent, on the same nodes: " (off(&check.foreseen.gains))
            @if check.speeds > 0 { "; given how fast the machine was, " (off(&check.given_speed.gains)) }
            "."
        }
        div.wide {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody {
                    @for gain in &check.foreseen.gains {
                        tr {
                            td { (gain.load) }
                            td.number { (number(Some(gain.lab))) }
                            td.number { (number(Some(gain.simulated))) }
                            td.number { (number(given(gain.load).map(|gain| gain.simulated))) }
                        }
                    }
                }
            }
        }
    }
}

fn share(values: &[f64]) -> String {
    number(Some(mean(values)))
}

fn median(values: &[f64]) -> String {
    number(Some(quantile(values, 0.5)))
}

/// What is left of that when it is given how fast the machine was.
fn speeds_given(raw: &Raw) -> Markup {
    let (check, given, not_given) =
        (&raw.check, &raw.check.given_speed, &raw.check.not_given_speed);
    let titles = ["load", "time of a frame alone, in parts of when curves were measured"];
    let measured = |experiment: &Experiment| Some((experiment.load, experiment.slowness?));
    let measured = raw.experiments.iter().filter_map(measured);
    html! {
        p {
            "Given how fast the machine was: right before " (check.speeds) " of " (raw.experiments.len())
            " experiments each setting of the renderer was drawn once, alone. In the table is how long that took in parts of what it took \
             when curves were measured (the median of the settings). With simulated run times multiplied by \
             that, those of these experiments are " (median(&given.with_percent)) " % off at the median with Keeptime (n = "
            (given.with_percent.len()) "; " (median(&not_given.with_percent)) " % by the curves alone), and "
            (median(&given.without_percent)) " % without (n = " (given.without_percent.len()) "; "
            (median(&not_given.without_percent)) " %). Then " (share(&given.alike_percent)) " % of their requests are \
             decided as in the lab. Promises are made without it: nobody knows it beforehand."
        }
        div.wide {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody {
                    @for (load, slowness) in measured {
                        tr { td { (load) } td.number { (format!("{slowness:.3}")) } }
                    }
                }
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
