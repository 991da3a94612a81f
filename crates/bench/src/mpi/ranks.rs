//! MPI programs of this checkout on a lab's nodes, one rank on each, and what they tell.

use crate::lab::BenchLab;
use anyhow::{Context, Result};
use keeptime::cluster::Cluster;
use keeptime::hold::Hold;
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_launch::process::{LINGER, Progress, run};
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, NodeChoice, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use std::fs;
use std::path::{Path, PathBuf};

/// No program here takes longer: streams that nobody shapes, through a policer, take many times as long
/// as they should. The reservation that they run under lasts for all of them.
const RUN_LIMIT: Nanos = Nanos::from_secs(300);
const HOLD_LIMIT: Nanos = Nanos::from_secs(3_600);
/// Where the programs and the library are, below the directory of this checkout.
const PROGRAMS: &str = "workloads/build/open-mpi";
const LIBRARY: &str = "mpi/build/open-mpi";

/// A reservation on nodes of a lab, for programs that run there one after the other.
pub struct Ranks<'a> {
    cluster: &'a Cluster,
    /// Of each rank.
    nodes: Vec<NodeIndex>,
    mpi: Mpi,
    hold: Hold,
}

/// Whether a program has the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    Absent,
    Preloaded,
}

/// What a program printed: lines that begin with a key.
pub struct Told(Vec<String>);

impl<'a> Ranks<'a> {
    /// Reserves `cpu` on each node of `lab`, and no link: that is what programs ask for.
    pub fn on(lab: &'a BenchLab, cpu: CpuPpm) -> Result<Self> {
        let nodes = lab.cluster().topology().node_indices().collect();
        Self::take(lab.cluster(), nodes, Resources { cpu_ppm: cpu, ..Resources::nothing() })
    }

    /// Reserves `cpu` on each of `nodes`, and `rate` from each to each other.
    pub fn with_flows(
        lab: &'a BenchLab,
        nodes: &[NodeIndex],
        cpu: CpuPpm,
        rate: BitsPerSecond,
    ) -> Result<Self> {
        let pattern = Some(Pattern::AllToAll);
        let resources =
            Resources { cpu_ppm: cpu, pattern, bits_per_second: rate, ..Resources::nothing() };
        Self::take(lab.cluster(), nodes.to_vec(), resources)
    }

    fn take(cluster: &'a Cluster, nodes: Vec<NodeIndex>, resources: Resources) -> Result<Self> {
        let names = NodeChoice::Named(cluster.topology().names(&nodes));
        let resources = Resources { nodes: names, ..resources };
        let hold = Hold::take(cluster, Ask::Resources(resources), HOLD_LIMIT)?;
        Ok(Self { cluster, nodes, mpi: Mpi::find(Flavour::OpenMpi)?, hold })
    }

    /// Runs `words` (a program and its arguments) with a rank on each of the first `count` nodes. It
    /// has told what is to be known with a line that begins with `key`.
    pub fn run(&self, count: usize, library: Library, words: &[&str], key: &str) -> Result<Told> {
        let mut command = vec!["env".to_owned()];
        if library == Library::Preloaded {
            let path = found(&Path::new(LIBRARY).join("libkeeptime_mpi.so"))?;
            command.push(format!("LD_PRELOAD={}", path.display()));
        }
        command.extend(program(words)?);
        let (nodes, job) = (&self.nodes[..count], self.hold.job());
        let (line, _remote) = self.cluster.mpi_line(&self.mpi, nodes, Some(&job), &command)?;
        let stopped = || self.hold.lost().is_some();
        let mut watch = |line: &str| match line.split(' ').next() == Some(key) {
            true => Progress::EndsWithin(LINGER),
            false => Progress::Running,
        };
        let outcome = run(&line, RUN_LIMIT, &stopped, &mut watch);
        let outcome = outcome.with_context(|| format!("while running {}", words.join(" ")))?;
        outcome.stderr.iter().for_each(|line| eprintln!("  {line}"));
        Ok(Told::of(outcome.stdout))
    }
}

/// A program of this checkout, where it is, and its arguments.
pub fn program(words: &[&str]) -> Result<Vec<String>> {
    let places = [PROGRAMS, LIBRARY].map(|folder| Path::new(folder).join(words[0]));
    let place = places.iter().find(|path| path.exists()).unwrap_or(&places[0]);
    let mut command = vec![found(place)?.display().to_string()];
    command.extend(words[1..].iter().map(|word| (*word).to_owned()));
    Ok(command)
}

impl Told {
    /// What a program printed.
    pub fn of(lines: Vec<String>) -> Self {
        Self(lines)
    }

    /// The numbers of the last line `KEY NUMBER…`.
    pub fn numbers(&self, key: &str) -> Result<Vec<f64>> {
        self.all(key)?.pop().with_context(|| format!("no line {key} in {:?}", self.0))
    }

    /// The numbers of all lines `KEY NUMBER…`.
    pub fn all(&self, key: &str) -> Result<Vec<Vec<f64>>> {
        let lines = self.0.iter().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let number = |word: &str| -> Result<f64> { Ok(word.parse()?) };
        let numbers = |line: &str| -> Result<Vec<f64>> { line.split(' ').map(number).collect() };
        lines.map(numbers).collect()
    }

    /// What the library answered to rank 0, as in `granted`, and what is reserved for each pair on
    /// the wire, in kbit/s.
    pub fn qos(&self) -> Result<(&str, f64)> {
        let line = self.0.iter().find_map(|line| line.strip_prefix("qos "));
        let (state, kbps) = line.and_then(|line| line.split_once(' ')).context("no line qos")?;
        Ok((state, kbps.parse()?))
    }
}

fn found(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path)
        .with_context(|| format!("{} is not there: `make workloads` builds it", path.display()))
}
