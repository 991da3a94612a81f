//! `keeptime sim`: what a cluster would do that is not there.

mod goals;
mod policies;
mod sites;
mod source;

use super::{Ending, print_json};
use crate::arguments::{FailureArguments, SimArguments, SimCommand, SimulatedCluster};
use crate::columns::{Side, aligned};
use crate::files;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use keeptime_model::Invalid;
use keeptime_model::topology::Topology;
use keeptime_model::units::{Nanos, Share, text};
use keeptime_whatif::failures::{Failures, Reliabilities, Reliability};
use keeptime_whatif::machine::Traffic;
use keeptime_whatif::policy::Choice;
use keeptime_whatif::shape;
use keeptime_whatif::simulate::Trial;
use keeptime_whatif::summary::{Quantiles, Summary};
use keeptime_whatif::trace::Submission;
use serde::{Serialize, Serializer};
use source::{Jobs, Source, Told};
use std::fs;
use std::path::Path;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Results<'a, H, S> {
    header: H,
    /// That the jobs are from.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<Told>,
    /// By policy.
    summaries: &'a [S],
}

/// All that the same summaries come of again.
#[derive(Debug, Serialize)]
struct Header<'a> {
    version: &'static str,
    #[serde(serialize_with = "text::serialize")]
    topology: &'a SimulatedCluster,
    #[serde(flatten)]
    source: Source<'a>,
    #[serde(flatten)]
    failing: Option<Failing>,
    #[serde(serialize_with = "text::serialize")]
    communication: Share,
    jobs: usize,
    seed: u64,
}

/// What fails, as the arguments say it.
#[derive(Debug, Serialize)]
struct Failing {
    #[serde(serialize_with = "told_text", skip_serializing_if = "Option::is_none")]
    failures: Option<Nanos>,
    #[serde(serialize_with = "told_text", skip_serializing_if = "Option::is_none")]
    link_failures: Option<Nanos>,
    #[serde(serialize_with = "told_text", skip_serializing_if = "Option::is_none")]
    switch_failures: Option<Nanos>,
    #[serde(serialize_with = "text::serialize")]
    repair: Nanos,
}

/// Carries out a command about simulations.
pub fn run(command: &SimCommand) -> Result<Ending> {
    match command {
        SimCommand::Run(arguments) => run_jobs(arguments),
        SimCommand::Goals(arguments) => goals::run(arguments),
        SimCommand::Sites(arguments) => sites::run(arguments),
    }
}

fn run_jobs(arguments: &SimArguments) -> Result<Ending> {
    let source = Source::of(arguments)?;
    let failing = Failing::of(&arguments.failing)?;
    let reliabilities = failing.as_ref().map(Failing::checked).transpose()?;
    let topology = topology(&arguments.topology)?;
    Traffic::new(&topology, arguments.communication)
        .map_err(|invalid| place(invalid, &arguments.topology))?;
    let nodes = topology.nodes().len() as u32;
    let Jobs { jobs, log } = source.jobs(arguments, nodes)?;
    let trial = |policy| {
        let failures = reliabilities.map(|how| Failures::new(&topology, how, arguments.seed));
        let (topology, communication) = (topology.clone(), arguments.communication);
        Trial { topology, policy, communication, failures }
    };
    let mut summaries = Vec::new();
    for policy in policies::compared(&arguments.policy, &jobs, nodes) {
        let summary = replay(trial(policy), &jobs)?;
        // Told at once: the next may be interrupted, or fail.
        eprintln!("{}", line(&summary));
        summaries.push(summary);
    }
    if arguments.json {
        let header = Header::of(arguments, source, failing, jobs.len());
        print_json(&Results { header, log, summaries: &summaries })?;
    } else {
        print!("{}\n{}", table(&summaries, reliabilities.is_some()), notes(&summaries));
    }
    Ok(Ending::Done)
}

/// The cluster that is meant. All of its nodes are alike.
fn topology(cluster: &SimulatedCluster) -> Result<Topology> {
    let path = match cluster {
        SimulatedCluster::Shape(shape) => return Ok(shape.topology()),
        SimulatedCluster::File(path) => path,
    };
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = Topology::from_toml(&text).and_then(|topology| {
        shape::cpu_of_each(&topology)?;
        Ok(topology)
    });
    Ok(read.map_err(|invalid| place(invalid, cluster))?)
}

/// What is wrong with a cluster, with the file that tells it.
fn place(invalid: Invalid, cluster: &SimulatedCluster) -> Invalid {
    match cluster {
        SimulatedCluster::Shape(_) => invalid,
        SimulatedCluster::File(path) => files::placed(invalid, path),
    }
}

fn replay(trial: Trial, jobs: &[Submission]) -> Result<Summary> {
    let nodes = trial.topology.nodes().len() as u32;
    let bar = progress_bar(jobs.len() as u64, "jobs").with_message(trial.policy.to_string());
    let mut progress = |over: usize| bar.set_position(over as u64);
    let outcome = trial.run(jobs, &mut progress)?;
    bar.finish_and_clear();
    Ok(outcome.summary(jobs, nodes))
}

impl<'a> Header<'a> {
    /// Of what came of so many jobs.
    fn of(
        arguments: &'a SimArguments,
        source: Source<'a>,
        failing: Option<Failing>,
        jobs: usize,
    ) -> Self {
        let SimArguments { topology, communication, seed, .. } = arguments;
        let (communication, seed) = (*communication, *seed);
        let version = env!("CARGO_PKG_VERSION");
        Self { version, topology, source, failing, communication, jobs, seed }
    }
}

impl Failing {
    /// Nothing if nothing fails. A time of repair would change nothing then, and is refused.
    fn of(arguments: &FailureArguments) -> Result<Option<Self>, Invalid> {
        let FailureArguments { failures, link_failures, switch_failures, repair } = *arguments;
        if failures.or(link_failures).or(switch_failures).is_some() {
            let repair = repair.unwrap_or(REPAIR);
            return Ok(Some(Self { failures, link_failures, switch_failures, repair }));
        }
        repair.map_or(Ok(None), |repair| {
            let expected = "none without --failures, --link-failures or --switch-failures";
            Err(Invalid::new("--repair", repair, expected))
        })
    }

    fn checked(&self) -> Result<Reliabilities, Invalid> {
        Ok(Reliabilities {
            nodes: self.reliability(self.failures, "--failures")?,
            links: self.reliability(self.link_failures, "--link-failures")?,
            switches: self.reliability(self.switch_failures, "--switch-failures")?,
        })
    }

    /// Of what fails in the mean after `between`, as `argument` says.
    fn reliability(
        &self,
        between: Option<Nanos>,
        argument: &str,
    ) -> Result<Option<Reliability>, Invalid> {
        let checked = between.map(|between| Reliability::new(between, self.repair)).transpose();
        checked.map_err(|invalid| {
            let field = if invalid.field == "repair" { "--repair" } else { argument };
            Invalid { field: field.into(), ..invalid }
        })
    }
}

/// A path that is not UTF-8 is told as well as it can be.
fn path_text<S: Serializer>(path: &&Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// A time that was told.
fn told_text<S: Serializer>(time: &Option<Nanos>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => text::serialize(time, to),
        None => to.serialize_none(),
    }
}

/// Of so many of something.
fn progress_bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let template = format!("{{elapsed_precise}} {{wide_bar}} {{pos}} of {{len}} {what}  {{msg}}");
    // The template is right; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// The main figures of a policy that has ended.
fn line(summary: &Summary) -> String {
    let Summary { policy, promised, broken, .. } = summary;
    let [admitted, in_time] = [summary.admission_percent, summary.in_time_percent].map(percent);
    let wait = spread(summary.wait_seconds);
    format!(
        "{policy} has ended: admitted {admitted}, in time {in_time}, promised {promised}, \
         broken {broken}, wait {wait} s"
    )
}

/// A column for each policy; what failures have done, where something fails.
fn table(summaries: &[Summary], has_failures: bool) -> String {
    let row = |name: &str, cell: &dyn Fn(&Summary) -> String| {
        std::iter::once(name.to_owned()).chain(summaries.iter().map(cell)).collect::<Vec<_>>()
    };
    let spread = |name: &str, of: fn(&Summary) -> Option<Quantiles>| {
        let part = |which: &str, part: fn(Quantiles) -> f64| {
            row(&format!("{name}: {which}"), &|s| {
                of(s).map_or_else(|| "-".into(), |all| format!("{:.2}", part(all)))
            })
        };
        [part("median", |all| all.median), part("p95", |all| all.p95), part("most", |all| all.most)]
    };
    let failures = if has_failures {
        vec![
            row("failures of nodes", &|s| s.failures.to_string()),
            row("failures of links", &|s| s.link_failures.to_string()),
            row("failures of switches", &|s| s.switch_failures.to_string()),
            row("nodes cut off", &|s| s.nodes_cut_off.to_string()),
            row("promises broken by failures", &|s| s.broken_by_failures.to_string()),
            row("jobs hit", &|s| s.jobs_hit.to_string()),
            row("given up", &|s| s.given_up.to_string()),
            row("node-hours lost", &|s| format!("{:.1}", s.lost_node_hours)),
            row("work lost", &|s| percent(s.lost_percent)),
        ]
    } else {
        Vec::new()
    };
    let rows = [
        row("", &|s| s.policy.to_string()),
        row("jobs", &|s| s.jobs.to_string()),
        row("admitted", &|s| percent(s.admission_percent)),
        row("in time", &|s| percent(s.in_time_percent)),
        row("urgent jobs in time", &|s| percent(s.urgent_in_time_percent)),
        row("promised", &|s| s.promised.to_string()),
        row("promises broken", &|s| {
            if s.promised == 0 { "-".into() } else { s.broken.to_string() }
        }),
        row("run and late", &|s| s.admitted_late.to_string()),
        row("utilisation", &|s| percent(s.utilisation_percent)),
    ];
    let spreads = [
        spread("wait, s", |s| s.wait_seconds),
        spread("slowdown", |s| s.slowdown),
        spread("run time / alone", |s| s.stretch),
    ];
    let rows: Vec<_> =
        rows.into_iter().chain(failures).chain(spreads.into_iter().flatten()).collect();
    let mut sides = vec![Side::Right; 1 + summaries.len()];
    sides[0] = Side::Left;
    aligned(&rows, &sides)
}

/// What a reader of the table takes wrongly for one policy's merit or fault.
fn notes(summaries: &[Summary]) -> String {
    let note = |summary: &Summary| match summary.policy {
        policy @ (Choice::Keeptime | Choice::KeeptimeGreedy) => {
            format!("{policy}: what cannot be promised is refused, and never in time\n")
        }
        policy @ Choice::FcfsBackfill => format!("{policy}: nothing is promised\n"),
        policy @ Choice::None => format!(
            "{policy}: nothing is promised; as if sharing cost nothing and all had memory\n"
        ),
        _ => String::new(),
    };
    summaries.iter().map(note).collect()
}

fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

fn spread(quantiles: Option<Quantiles>) -> String {
    match quantiles {
        Some(Quantiles { median, p95, most }) => format!("{median:.2} / {p95:.2} / {most:.2}"),
        None => "-".into(),
    }
}

const REPAIR: Nanos = Nanos::from_secs(3_600);
