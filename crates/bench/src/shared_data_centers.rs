//! `make eval-sites`: figures 8 to 14 of the shared data centres paper, done again, as one page that needs
//! nothing but itself. It simulates 9 to 14 and draws what `bench-regions`, `bench-balancers`, `bench-sites` and
//! `bench-testbed` have left in `out`.

use crate::figures::{Figure, Figures, Target, quantile, read};
use crate::page::{self, value};
use crate::plan::Random;
use crate::pools::cases::{self, BurstRun, Case, CaseRun, POLICIES, TraceRun};
use crate::pools::world::{LOOK, Service, uniform};
use crate::pools::{BURST_SETTINGS, BURSTS};
use crate::quick;
use anyhow::{Context, Result};
use keeptime::chart::{BarChart, Group};
use keeptime::machine::Machine;
use keeptime::{files, report};
use keeptime_model::units::Nanos;
use maud::{Markup, html};
use serde::Serialize;
use std::ops::Range;
use std::path::Path;

const NAME: &str = "shared-data-centers";
const TITLE: &str = "Web sites that share nodes";
/// Seconds of a case.
const CASE: u64 = 30;
/// The schemes of figure 12, and ours.
const NODE_USE: [&str; 4] = ["reconf", "reconf-p", "reconf-pq", "keeptime"];
/// These seconds of it.
const DRAWN: Range<u64> = 55..75;
/// Two days in twelve minutes.
const MINUTE: Nanos = Nanos::from_millis(250);
const WORLD_CUP: &str = include_str!("../../../eval/shared-data-centers/worldcup98-2days.csv");
/// Files of the Zipf trace, how steeply popularity falls with the rank, and how steeply sizes fall.
const FILES: usize = 1_000;
const ZIPF: f64 = 0.9;
const PARETO: f64 = 1.5;
/// No file is longer than so many times the shortest.
const LONGEST: f64 = 1_000.0;

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    bursts: Vec<BurstRun>,
    cases: Vec<CaseRun>,
    /// By scheme: nodes of the site of low priority in case 1, look by look.
    node_use: Vec<(&'static str, Vec<u32>)>,
    zipf: Vec<CaseRun>,
    world_cup: Vec<TraceRun>,
}

/// Simulates, and writes the figures and the page.
///
/// # Errors
/// If the figures of a benchmark are not there.
pub fn run(out: &Path) -> Result<()> {
    let names = ["regions", "balancers", "sites", "testbed"];
    let [regions, balancers, sites, testbed] = names.map(|name| read(out, name));
    let measured = [regions?, balancers?, sites?, testbed?];
    let raw = simulate()?;
    let mut figures = Figures::made_by(NAME, "make eval-sites");
    add(&raw, &mut figures);
    let page = report::frame(
        TITLE,
        html! {
            h1 { (TITLE) }
            p.subtitle {
                "Figures 8 to 14 of Balaji, Vaidyanathan, Narravula, Jin and Panda, done again; " (raw.machine)
            }
        },
        html! {
            section { h2 { "What the paper found, and what was found here" } (claims(&raw, &measured)) }
            section { h2 { "Reading load (figure 8)" } (table(&measured[0])) }
            section {
                h2 { "Bursts of two sites in turn (figures 9, 10)" }
                (by_burst(&raw, "figure 9: throughput", "requests a second", |run| run.throughput)?)
                (by_burst(&raw, "figure 10: nodes that serve the burst", "nodes", |run| run.nodes)?)
                p { "On real web servers (nginx, PHP, MariaDB behind HAProxy):" }
                (table(&measured[3]))
            }
            section {
                h2 { "High and low priority (figures 11 to 13)" }
                (by_case(&raw.cases, "figure 11 (a): high priority", "requests a second", |run| run.high)?)
                (by_case(&raw.cases, "figure 11 (b): low priority", "requests a second", |run| run.low)?)
                (node_use(&raw)?)
                (by_case(&raw.cases, "figure 13: hard guarantees of both sites met", "% of looks", |run| run.hard_met)?)
            }
            section {
                h2 { "Other traces (figure 14)" }
                (by_case(&raw.zipf, "figure 14 (a): requests for files by Zipf's law, hard guarantee of low priority met",
                    "% of looks", |run| run.low_met)?)
                (world_cup(&raw.world_cup)?)
            }
            section {
                h2 { "Real balancers" }
                (table(&measured[1]))
                (table(&measured[2]))
            }
        },
    );
    let path = out.join(format!("{NAME}.html"));
    files::save(&path, page.as_bytes())?;
    println!("written: {}", path.display());
    figures.finish(out, &raw)
}

fn simulate() -> Result<Raw> {
    let seeds = if quick() { 1 } else { 6 };
    let mut raw = Raw {
        machine: Machine::here(),
        bursts: vec![],
        cases: vec![],
        node_use: vec![],
        zipf: vec![],
        world_cup: vec![],
    };
    let per_minute = per_minute()?;
    let per_minute = if quick() { &per_minute[..100] } else { &per_minute };
    for seed in 0..seeds {
        eprintln!("simulating, {} of {seeds}", seed + 1);
        let files = files_by_zipf(seed);
        for setting in BURST_SETTINGS {
            raw.bursts.extend(BURSTS.map(|burst| cases::bursts(setting, burst, 128_000, seed)));
        }
        for policy in POLICIES {
            for case in Case::ALL {
                let flooded = |service| cases::flooded(policy, case, 2, CASE, seed, service);
                let (run, nodes) = flooded(Service::Exponential);
                raw.cases.push(run);
                if case == Case::One && seed == 0 && NODE_USE.contains(&policy) {
                    raw.node_use.push((policy, nodes));
                }
                raw.zipf.push(flooded(files.clone()).0);
            }
            raw.world_cup.push(cases::replayed(policy, per_minute, MINUTE, seed));
        }
    }
    Ok(raw)
}

/// Requests of each minute.
fn per_minute() -> Result<Vec<f64>> {
    let count = |line: &str| line.split(',').nth(1).and_then(|count| count.parse().ok());
    let counts = WORLD_CUP.lines().skip(1).map(count).collect::<Option<Vec<_>>>();
    counts.context("the World Cup's counts are no numbers")
}

/// Popular by Zipf's law; sizes, which do not depend on it, by Pareto's.
fn files_by_zipf(seed: u64) -> Service {
    let mut random = Random(seed);
    let popular: Vec<f64> = (1..=FILES).map(|rank| (rank as f64).powf(-ZIPF)).collect();
    let all: f64 = popular.iter().sum();
    let sizes: Vec<f64> =
        popular.iter().map(|_| uniform(&mut random).powf(-1.0 / PARETO).min(LONGEST)).collect();
    let mean: f64 = popular.iter().zip(&sizes).map(|(often, size)| often / all * size).sum();
    let mut so_far = 0.0;
    let files = popular.iter().zip(&sizes).map(|(often, size)| {
        so_far += often / all;
        (so_far, size / mean)
    });
    Service::Files(files.collect())
}

fn add(raw: &Raw, figures: &mut Figures) {
    let always = |policy: &str| (policy == "keeptime").then_some(Target::AtLeast(100.0));
    for policy in POLICIES {
        let all = raw.zipf.iter().filter(|run| run.policy == policy);
        let met: Vec<_> = all.map(|run| run.hard_met).collect();
        let name = format!("figure 14 (a), Zipf, {policy}: hard guarantees met, all cases");
        figures.value(name, "%", quantile(&met, 0.0), &met, None, always(policy));
        let of = |value: fn(&TraceRun) -> f64| {
            let all = raw.world_cup.iter().filter(|run| run.policy == policy);
            all.map(value).collect::<Vec<_>>()
        };
        let met = of(|run| run.high_met.min(run.low_met));
        let name = |what| format!("figure 14 (b), World Cup, {policy}: {what}");
        figures.value(
            name("hard guarantees met"),
            "%",
            quantile(&met, 0.0),
            &met,
            None,
            always(policy),
        );
        figures.median(name("requests that wait"), "", &of(|run| run.waiting), None, None);
        figures.median(name("moves"), "", &of(|run| run.moves as f64), None, None);
    }
}

fn claims(raw: &Raw, [regions, balancers, sites, testbed]: &[Vec<Figure>; 4]) -> Markup {
    let burst = |setting: &str, burst: u64| {
        let of = raw.bursts.iter().filter(|run| run.setting == setting && run.burst == burst);
        median(of.map(|run| run.throughput))
    };
    let [few, many] = [BURSTS[0], BURSTS[BURSTS.len() - 1]];
    let against = |setting: &str| {
        [few, many]
            .map(|n| format!("{:.2}", burst(setting, n) / burst("rigid-large", n)))
            .join(", ")
    };
    let case_1 = |policy: &str, value: fn(&CaseRun) -> f64| {
        let of = raw.cases.iter().filter(|run| run.policy == policy && run.case == Case::One);
        median(of.map(value))
    };
    let least = |policy: &str| {
        let of = raw.cases.iter().filter(|run| run.policy == policy);
        of.map(|run| run.hard_met).fold(100.0, f64::min)
    };
    let measured = |figures: &[Figure], name: &str| {
        let figure = figures.iter().find(|figure| figure.name.contains(name));
        figure.map_or_else(|| "not measured".into(), value)
    };
    let rows = [
        (
            "8",
            "latency under background load against idle",
            "IPoIB \"degrades significantly\", RDMA \"no degradation\"",
            format!(
                "p99 of asking an agent {}, of the kernel's answer {}, of the daemon's {}",
                measured(regions, "against idle: asked"),
                measured(regions, "against idle: kernel"),
                measured(regions, "against idle: daemon")
            ),
        ),
        (
            "9",
            "throughput on 8 shared nodes against 14 that are not, shortest and longest bursts",
            "as Rigid-Small; as Rigid-Large",
            format!(
                "basic scheme {}; ours {}; Rigid-Small {}",
                against("reconf"),
                against("keeptime"),
                against("rigid")
            ),
        ),
        (
            "9",
            "the same on real web servers, bursts of 1,000 and 4,000",
            "as Rigid-Small; as Rigid-Large",
            format!(
                "{}; {}",
                measured(testbed, "bursts of 1000: 8 shared against 14"),
                measured(testbed, "bursts of 4000: 8 shared against 14")
            ),
        ),
        (
            "11",
            "case 1: high priority against the basic scheme",
            "up to 5 x",
            format!(
                "{:.1} x ours, {:.1} x Reconf-PQ",
                case_1("keeptime", |run| run.high) / case_1("reconf", |run| run.high),
                case_1("reconf-pq", |run| run.high) / case_1("reconf", |run| run.high)
            ),
        ),
        (
            "13",
            "hard guarantees met, the worst of all cases",
            "Reconf and Reconf-P in some cases; Reconf-PQ in all",
            format!(
                "Reconf {:.0} %, Reconf-P {:.0} %, Reconf-PQ {:.0} %, ours {:.0} %",
                least("reconf"),
                least("reconf-p"),
                least("reconf-pq"),
                least("keeptime")
            ),
        ),
        (
            "-",
            "requests lost while nodes move",
            "not measured",
            format!("HAProxy: {}", measured(balancers, "HAProxy: lost")),
        ),
        (
            "-",
            "from a burst to the first node more that serves it",
            "not measured",
            measured(sites, "burst to first node more"),
        ),
    ];
    page::claims(&rows)
}

/// Figures as a benchmark left them.
fn table(figures: &[Figure]) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr { @for title in ["what", "measured", "target", "command"] { th scope="col" { (title) } } }
                }
                tbody {
                    @for figure in figures {
                        tr {
                            td { (figure.name) }
                            td.number { (value(figure)) }
                            td { (figure.target.clone().unwrap_or_default()) }
                            td { code { (figure.command) } }
                        }
                    }
                }
            }
        }
    }
}

fn by_burst(raw: &Raw, title: &str, unit: &str, value: fn(&BurstRun) -> f64) -> Result<Markup> {
    let of = |setting: &str, burst: u64| {
        let of = raw.bursts.iter().filter(|run| run.setting == setting && run.burst == burst);
        median(of.map(value))
    };
    let group = |burst: u64| Group {
        label: format!("{burst}"),
        bars: BURST_SETTINGS.iter().map(|setting| of(setting, burst)).collect(),
    };
    bars(title, unit, &BURST_SETTINGS, BURSTS.map(group).into())
}

fn by_case(
    runs: &[CaseRun],
    title: &str,
    unit: &str,
    value: fn(&CaseRun) -> f64,
) -> Result<Markup> {
    let of = |policy: &str, case: Case| {
        median(runs.iter().filter(|run| run.policy == policy && run.case == case).map(value))
    };
    let group = |case: Case| Group {
        label: format!("case {case:?}"),
        bars: POLICIES.iter().map(|policy| of(policy, case)).collect(),
    };
    bars(title, unit, &POLICIES, Case::ALL.map(group).into())
}

fn world_cup(runs: &[TraceRun]) -> Result<Markup> {
    let of = |policy: &str, value: fn(&TraceRun) -> f64| {
        median(runs.iter().filter(|run| run.policy == policy).map(value))
    };
    let group = |label: &str, value: fn(&TraceRun) -> f64| Group {
        label: label.into(),
        bars: POLICIES.iter().map(|policy| of(policy, value)).collect(),
    };
    let both =
        vec![group("high priority", |run| run.high_met), group("low priority", |run| run.low_met)];
    let title = "figure 14 (b): two days of the World Cup, hard guarantees met";
    bars(title, "% of looks", &POLICIES, both)
}

fn node_use(raw: &Raw) -> Result<Markup> {
    let series: Vec<_> = raw.node_use.iter().map(|(policy, _)| *policy).collect();
    let look = |second: u64| Nanos::from_secs(second).get() / LOOK.get();
    let group = |second: u64| Group {
        label: if second.is_multiple_of(5) { format!("{second} s") } else { String::new() },
        bars: raw
            .node_use
            .iter()
            .filter_map(|(_, nodes)| nodes.get(look(second) as usize))
            .map(|nodes| f64::from(*nodes))
            .collect(),
    };
    let title = "figure 12: nodes of low priority in case 1; from 61 s on high priority is flooded";
    bars(title, "nodes", &series, DRAWN.map(group).collect())
}

fn bars(title: &str, unit: &str, series: &[&str], groups: Vec<Group>) -> Result<Markup> {
    let series = series.iter().map(|name| (*name).into()).collect();
    let chart = BarChart { title: title.into(), y_label: unit.into(), series, groups, bound: None };
    Ok(report::figure(&chart.to_svg()?, title, html! { (title) }))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(&values.collect::<Vec<_>>(), 0.5)
}
