//! `keeptime sim`: what a cluster would do that is not there.

mod goals;
mod sites;

use super::{Ending, print_json};
use crate::arguments::{FailureArguments, Generator, SimArguments, SimCommand, SimulatedCluster};
use crate::columns::{Side, aligned};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use keeptime_model::Invalid;
use keeptime_model::topology::Topology;
use keeptime_model::units::{Nanos, Share, text};
use keeptime_whatif::failures::{Failures, Reliabilities, Reliability};
use keeptime_whatif::policy::Choice;
use keeptime_whatif::shape;
use keeptime_whatif::simulate::Trial;
use keeptime_whatif::summary::{Quantiles, Summary};
use keeptime_whatif::trace::swf::LeftOut;
use keeptime_whatif::trace::{Submission, chains, lublin, swf};
use serde::{Serialize, Serializer};
use std::fs;
use std::path::Path;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Results<'a, H, S> {
    header: H,
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

/// Where jobs come from, and what that goes by.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(tag = "source", rename_all = "kebab-case")]
enum Source<'a> {
    Trace {
        #[serde(serialize_with = "path_text")]
        trace: &'a Path,
    },
    Model {
        load: f64,
    },
    Chains {
        interval_seconds: u64,
    },
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
    let nodes = topology.nodes().len() as u32;
    let jobs = source.jobs(arguments, nodes)?;
    let trial = |policy| {
        let failures = reliabilities.map(|how| Failures::new(&topology, how, arguments.seed));
        let (topology, communication) = (topology.clone(), arguments.communication);
        Trial { topology, policy, communication, failures }
    };
    let mut summaries = Vec::new();
    for policy in policies(&arguments.policy, nodes) {
        let summary = replay(trial(policy), &jobs)?;
        // Told at once: the next may be interrupted, or fail.
        eprintln!("{}", line(&summary));
        summaries.push(summary);
    }
    if arguments.json {
        let header = Header::of(arguments, source, failing);
        print_json(&Results { header, summaries: &summaries })?;
    } else {
        print!("{}\n{}", table(&summaries, reliabilities.is_some()), notes(&summaries));
    }
    Ok(Ending::Done)
}

/// Those that were asked for, or else what Keeptime has for jobs with deadlines, and what there is without it: by deadlines
/// alone where that does not take too long.
fn policies(asked: &[Choice], nodes: u32) -> Vec<Choice> {
    let compared = [Choice::Keeptime, Choice::KeeptimeBy, Choice::FcfsBackfill, Choice::None];
    let is_soon = |policy: &Choice| *policy != Choice::KeeptimeBy || nodes <= BY_NODES_MAX;
    match asked {
        [] => compared.into_iter().filter(is_soon).collect(),
        asked => asked.to_vec(),
    }
}

/// The cluster that is meant. All of its nodes are alike.
fn topology(cluster: &SimulatedCluster) -> Result<Topology> {
    let path = match cluster {
        SimulatedCluster::Shape(shape) => return Ok(shape.topology()?),
        SimulatedCluster::File(path) => path,
    };
    let name = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let read = Topology::from_toml(&text).and_then(|topology| {
        shape::cpu_of_each(&topology)?;
        Ok(topology)
    });
    Ok(read.map_err(|invalid| invalid.within(&name))?)
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
    fn of(arguments: &'a SimArguments, source: Source<'a>, failing: Option<Failing>) -> Self {
        let SimArguments { topology, communication, jobs, seed, .. } = arguments;
        let (communication, jobs, seed) = (*communication, *jobs, *seed);
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

impl<'a> Source<'a> {
    /// What is meant. An argument that would change nothing is refused.
    fn of(arguments: &'a SimArguments) -> Result<Self, Invalid> {
        if let Some(trace) = &arguments.trace {
            return Ok(Self::Trace { trace });
        }
        match (arguments.generate, arguments.load, arguments.interval) {
            (Some(Generator::Chains), Some(load), _) => {
                let expected = "none with --generate chains, which goes by --interval";
                Err(Invalid::new("--load", load, expected))
            }
            (Some(Generator::Chains), None, interval) => {
                Ok(Self::Chains { interval_seconds: interval.unwrap_or(INTERVAL_SECONDS) })
            }
            (Some(Generator::Model) | None, _, Some(interval)) => {
                let expected = "none with --generate model, which goes by --load";
                Err(Invalid::new("--interval", interval, expected))
            }
            (Some(Generator::Model) | None, load, None) => Self::model(load.unwrap_or(LOAD)),
        }
    }

    fn model(load: f64) -> Result<Self, Invalid> {
        if (LOAD_LEAST..=LOAD_MOST).contains(&load) {
            return Ok(Self::Model { load });
        }
        Err(Invalid::new("--load", load, format!("{LOAD_LEAST} to {LOAD_MOST}")))
    }

    fn jobs(self, arguments: &SimArguments, nodes: u32) -> Result<Vec<Submission>> {
        let SimArguments { jobs, seed, .. } = *arguments;
        let log = match self {
            Self::Trace { trace } => return read(trace, jobs, seed),
            Self::Model { load } => lublin::log(nodes, jobs, load, seed),
            Self::Chains { interval_seconds } => chains::log(nodes, jobs, interval_seconds, seed),
        };
        Ok(log.jobs)
    }
}

/// The jobs of a log, whose remarks may be in any encoding.
fn read(path: &Path, jobs: usize, seed: u64) -> Result<Vec<Submission>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.display().to_string();
    if bytes.starts_with(&GZIP) {
        return Err(Invalid::new(name, "gzip", "a log as text: gunzip it first").into());
    }
    let read = swf::read_counted(&String::from_utf8_lossy(&bytes), jobs, seed);
    let in_file =
        |invalid: Invalid| Invalid { field: format!("{name}, {}", invalid.field), ..invalid };
    let (log, left_out) = read.map_err(in_file)?;
    if left_out != LeftOut::default() {
        eprintln!("{name}: jobs left out: {left_out}");
    }
    Ok(log.jobs)
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
    let spread = |name: &str, of: fn(&Summary) -> Quantiles| {
        let part = |which: &str, part: fn(Quantiles) -> f64| {
            row(&format!("{name}: {which}"), &|s| format!("{:.2}", part(of(s))))
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

fn spread(Quantiles { median, p95, most }: Quantiles) -> String {
    format!("{median:.2} / {p95:.2} / {most:.2}")
}

/// On so many ten thousand jobs take a minute or two: each asks beside all that is reserved of every node.
const BY_NODES_MAX: u32 = 512;
const LOAD: f64 = 0.7;
const LOAD_LEAST: f64 = 0.01;
/// More than twice of what there is only makes queues longer.
const LOAD_MOST: f64 = 2.0;
const INTERVAL_SECONDS: u64 = 20;
const REPAIR: Nanos = Nanos::from_secs(3_600);
/// What compressed logs begin with.
const GZIP: [u8; 2] = [0x1F, 0x8B];
