//! Where the jobs of `keeptime sim run` come from: a log, or one that is made.

use super::path_text;
use crate::arguments::{Generator, JOBS_MAX, SimArguments};
use anyhow::{Context, Result};
use keeptime_model::Invalid;
use keeptime_whatif::trace::counted::{Counted, Foreknown, LeftOut};
use keeptime_whatif::trace::{Log, Submission, chains, lublin, swf};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// What that goes by.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(tag = "source", rename_all = "kebab-case")]
pub(super) enum Source<'a> {
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

/// Jobs, and what is to be said of the log that they are from.
pub(super) struct Jobs {
    pub jobs: Vec<Submission>,
    pub log: Option<Told>,
}

/// What is said of a log.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Told {
    /// Of the machine that it is of.
    processors: u32,
    /// Which need more nodes than the cluster has, and are refused.
    larger_than_cluster: usize,
    #[serde(flatten)]
    counted: Counted,
}

impl<'a> Source<'a> {
    /// What is meant. An argument that would change nothing is refused.
    pub fn of(arguments: &'a SimArguments) -> Result<Self, Invalid> {
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

    /// The jobs for a cluster of `nodes` nodes. What they are not as one may think is told on standard error.
    pub fn jobs(self, arguments: &SimArguments, nodes: u32) -> Result<Jobs> {
        let (seed, count) = (arguments.seed, arguments.jobs.unwrap_or(JOBS));
        let log = match self {
            Self::Trace { trace } => return read(trace, arguments, nodes),
            Self::Model { load } => lublin::log(nodes, count, load, seed),
            Self::Chains { interval_seconds } => chains::log(nodes, count, interval_seconds, seed),
        };
        Ok(Jobs { jobs: log.jobs, log: None })
    }
}

/// The jobs of a log, whose remarks may be in any encoding: all, unless it is said how many.
fn read(path: &Path, arguments: &SimArguments, nodes: u32) -> Result<Jobs> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.display().to_string();
    if bytes.starts_with(&GZIP) {
        return Err(Invalid::new(name, "gzip", "a log as text: gunzip it first").into());
    }
    let most = arguments.jobs.unwrap_or(JOBS_MAX);
    let read = swf::read_counted(&String::from_utf8_lossy(&bytes), most, arguments.seed);
    let in_file =
        |invalid: Invalid| Invalid { field: format!("{name}, {}", invalid.field), ..invalid };
    let (log, counted) = read.map_err(in_file)?;
    let told = Told::new(&log, counted, nodes);
    for line in told.lines(log.jobs.len(), nodes) {
        eprintln!("{name}: {line}");
    }
    Ok(Jobs { jobs: log.jobs, log: Some(told) })
}

impl Told {
    fn new(log: &Log, counted: Counted, nodes: u32) -> Self {
        let larger_than_cluster = log.jobs.iter().filter(|job| job.nodes > nodes).count();
        Self { processors: log.nodes, larger_than_cluster, counted }
    }

    /// What one would not expect of a log of which so many jobs are replayed on so many nodes.
    fn lines(&self, jobs: usize, nodes: u32) -> Vec<String> {
        let Self { processors, larger_than_cluster, counted } = self;
        let Counted { left_out, foreknown, is_cut } = counted;
        let size = format!(
            "the log is of {processors} processors, the cluster has {nodes} nodes; jobs larger than the cluster: \
             {larger_than_cluster}"
        );
        let lines = [
            (*left_out != LeftOut::default(), format!("jobs left out: {left_out}")),
            (
                *foreknown != Foreknown::default(),
                format!("jobs of which policies know how long they take: {foreknown}"),
            ),
            (*is_cut, format!("only the first {jobs} jobs are replayed, see --jobs")),
            (*processors != nodes, size),
        ];
        lines.into_iter().filter_map(|(is_so, line)| is_so.then_some(line)).collect()
    }
}

/// How many are made, unless it is said.
const JOBS: usize = 10_000;
const LOAD: f64 = 0.7;
const LOAD_LEAST: f64 = 0.01;
/// More than twice of what there is only makes queues longer.
const LOAD_MOST: f64 = 2.0;
const INTERVAL_SECONDS: u64 = 20;
/// What compressed logs begin with.
const GZIP: [u8; 2] = [0x1F, 0x8B];
