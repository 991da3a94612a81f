//! Measures an application on the cluster until its curves are known, one recorded run at a time.
//!
//! Which run comes next is decided by `keeptime_planner::refine`, or where other numbers of nodes say what to expect by
//! `keeptime_planner::guided`; a run that is recorded is never made again, so an interrupted profile goes on where it was.

use crate::cluster::Cluster;
use crate::execute::{Execution, Run};
use crate::files;
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use keeptime_files::with_suffix;
use keeptime_launch::mpi::Mpi;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::profile::{Curve, Profile};
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use keeptime_planner::availability::Availability;
use keeptime_planner::guided::{self, Others};
use keeptime_planner::placement::{Placed, max_rate};
use keeptime_planner::refine::{Grid, Wanted};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Order {
    /// Combinations of parameters and numbers of nodes: one curve each.
    pub curves: Vec<(Parameters, u32)>,
    /// Where to measure, for each of those numbers: see [`places`].
    pub places: BTreeMap<u32, Placed>,
    /// Bandwidths that a point may have.
    pub grid: Grid,
    /// How much of each curve.
    pub extent: Extent,
}

/// How much of a curve is measured.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// Every bandwidth of the grid, so often.
    Full {
        /// Runs at each.
        samples: u32,
    },
    /// Until it is known well enough.
    Known(Wanted),
}

/// There are not so many nodes with so much CPU free.
#[derive(Debug)]
struct TooFew {
    nodes: u32,
    cpu: CpuPpm,
}

/// The nodes that hold the most for each flow of `application` now, for each number of nodes.
///
/// # Errors
/// If the broker does not answer, or too few nodes have the CPU.
pub fn places(
    cluster: &Cluster,
    application: &Application,
    numbers: impl IntoIterator<Item = u32>,
) -> Result<BTreeMap<u32, Placed>> {
    let placed = places_on(cluster.topology(), &cluster.availability()?, application, numbers);
    told(cluster, placed)
}

/// What links can promise to each flow of `application` on any of these numbers of nodes, whatever of them is reserved now;
/// nothing where nothing flows. Of the nodes those count that have the CPU now.
///
/// # Errors
/// As [`places`].
pub fn rate_promised(
    cluster: &Cluster,
    application: &Application,
    numbers: impl IntoIterator<Item = u32>,
) -> Result<Option<BitsPerSecond>> {
    let topology = cluster.topology();
    let idle = idle_links(topology, &cluster.availability()?);
    Ok(rate_least(&told(cluster, places_on(topology, &idle, application, numbers))?))
}

fn places_on(
    topology: &Topology,
    free: &Availability,
    application: &Application,
    numbers: impl IntoIterator<Item = u32>,
) -> Result<BTreeMap<u32, Placed>, TooFew> {
    let (pattern, cpu) = (application.pattern(), application.cpu());
    let place = |nodes| {
        let placed = max_rate(topology, free, pattern, nodes, cpu);
        placed.map(|placed| (nodes, placed)).ok_or(TooFew { nodes, cpu })
    };
    numbers.into_iter().map(place).collect()
}

/// What was `placed`, or else why some nodes do not count.
fn told<T>(cluster: &Cluster, placed: Result<T, TooFew>) -> Result<T> {
    placed.or_else(|short| Err(short.not_now(&cluster.not_to_be_had()?).into()))
}

impl TooFew {
    /// `why`: some nodes do not count.
    fn not_now(&self, why: &[String]) -> NotNow {
        let Self { nodes, cpu } = self;
        let short =
            format!("{nodes} nodes with {cpu} of a CPU free are needed, and there are fewer");
        let reason = iter::once(&short).chain(why).map(String::as_str).collect::<Vec<_>>();
        NotNow { reason: reason.join("; ") }
    }
}

/// What is free of nodes, with nothing reserved on any link.
fn idle_links(topology: &Topology, free: &Availability) -> Availability {
    let reservable = |direction| free.link_reservable(direction);
    Availability::with_free(topology, reservable, reservable, |node| free.cpu(node))
}

/// What each flow can have on all of these places; nothing where nothing flows.
fn rate_least(places: &BTreeMap<u32, Placed>) -> Option<BitsPerSecond> {
    let with_flows = places.values().filter(|placed| placed.bottleneck.is_some());
    with_flows.map(|placed| placed.rate).min()
}

/// Keeps other commands from measuring into the profile at `path`, until the handle is dropped or this process ends: each
/// writes all of it after each run. The lock is a file beside it, since its own is replaced each time; that stays, since who
/// removed it would let two in. What is no file, as `/dev/stdout`, keeps nothing that could be lost.
///
/// # Errors
/// If another command has it, or there can be no lock.
pub fn lock(path: &Path) -> Result<Option<File>> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Ok(None);
    }
    let lock = lock_beside(path);
    let failed = || format!("cannot lock {}", lock.display());
    let file = open_lock(&lock).with_context(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => bail!(
            "another command measures into {} now ({} is locked): wait for its end, or name another \
             --profile",
            path.display(),
            lock.display()
        ),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => {
            tracing::warn!(
                "{}: {error}; no other command may measure into the same profile",
                failed()
            );
            Ok(None)
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(failed),
    }
}

/// Some file systems of clusters have none, or none for who may only read.
fn has_no_locks(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::ENOLCK | Errno::EBADF))
}

fn lock_beside(path: &Path) -> PathBuf {
    // Who names a link replaces what it leads to.
    with_suffix(&fs::canonicalize(path).unwrap_or_else(|_| path.into()), ".lock")
}

fn open_lock(lock: &Path) -> io::Result<File> {
    if let Some(directory) = lock.parent().filter(|d| !d.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(lock);
    // In a directory of several users it may be another one's: who can read it can lock it.
    opened.or_else(|error| File::open(lock).map_err(|_| error))
}

impl Order {
    /// Checks that every bandwidth can be held where it is to be measured, where `promised` is what each flow could have if
    /// nothing was reserved.
    ///
    /// # Errors
    /// The first bandwidth that is too much, and what would be accepted: [`Invalid`] if it is more than links can promise,
    /// and [`NotNow`] if others have it.
    pub fn check(&self, topology: &Topology, promised: Option<BitsPerSecond>) -> Result<()> {
        for placed in self.places.values() {
            let too_much = self.grid.bandwidths().iter().find(|b| **b > placed.rate);
            if let (Some(bandwidth), Some(bottleneck)) = (too_much, &placed.bottleneck) {
                let expected = format!(
                    "at most {} for each flow: {} ranks send {} flows over {}, of which {} is free",
                    placed.rate.rounded_down(),
                    placed.nodes.len(),
                    bottleneck.flows,
                    topology.direction_name(bottleneck.direction),
                    bottleneck.free.rounded_down(),
                );
                if promised.is_some_and(|promised| *bandwidth <= promised) {
                    let reason = format!("{bandwidth} for each flow cannot be had now: {expected}");
                    return Err(NotNow { reason }.into());
                }
                return Err(Invalid::new("bandwidths", bandwidth, expected).into());
            }
        }
        Ok(())
    }

    /// Runs that `profile` has of these curves: others in it are no part of what is measured.
    fn run_count(&self, profile: &Profile) -> usize {
        let curves = self.curves.iter().filter_map(|(set, nodes)| profile.curve(set, *nodes));
        curves.flat_map(|curve| &curve.points).map(|point| point.samples_nanos.len()).sum()
    }
}

impl Extent {
    /// How often a bandwidth is measured at the most.
    fn samples(self) -> usize {
        match self {
            Self::Full { samples } | Self::Known(Wanted { samples, .. }) => samples as usize,
        }
    }

    /// How many runs a curve on this grid takes at the most.
    fn runs(self, grid: &Grid) -> usize {
        let all = grid.bandwidths().len() * self.samples();
        match self {
            Self::Full { .. } => all,
            Self::Known(wanted) => wanted.runs.min(all),
        }
    }
}

/// What can be measured when others have less, and not now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct NotNow {
    reason: String,
}

/// How many runs it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Runs that the profile has of the curves that were ordered.
    pub runs: usize,
    /// Runs that the full grid has.
    pub full_grid: usize,
}

/// Runs whatever `order` still lacks in `profile`, saving to `path` after every run. `stopped` ends
/// it between two runs or in the middle of one.
pub fn measure(
    cluster: &Cluster,
    mpi: &Mpi,
    application: &Application,
    order: &Order,
    profile: &mut Profile,
    path: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<Effort> {
    let full_grid = order.curves.len() * order.grid.bandwidths().len() * order.extent.samples();
    let most = order.curves.len() * order.extent.runs(&order.grid);
    let bar = progress_bar(most, order.run_count(profile));
    for (number, (parameters, nodes)) in order.curves.iter().enumerate() {
        while let Some(bandwidth) = next_run(application, order, profile, parameters, *nodes) {
            ensure!(!stopped(), "interrupted");
            bar.set_message(describe(parameters, *nodes, bandwidth));
            let place = order.places.get(nodes).context("an order without a place")?;
            let run = Run { application, parameters, nodes: &place.nodes, rate: Some(bandwidth) };
            let execution = Execution { stopped, ..Execution::new(cluster, mpi, run) };
            let ran = execution.reserved().with_context(|| {
                format!("while measuring {}", describe(parameters, *nodes, bandwidth))
            })?;
            profile.record(parameters, *nodes, bandwidth, ran.time);
            files::save_json(path, profile)?;
            bar.inc(1);
        }
        tracing::debug!("curve {} of {} is known", number + 1, order.curves.len());
    }
    bar.finish_and_clear();
    Ok(Effort { runs: order.run_count(profile), full_grid })
}

/// The bandwidth of the next run of a curve. A single node has no flows: one point is its curve.
fn next_run(
    application: &Application,
    order: &Order,
    profile: &Profile,
    parameters: &Parameters,
    nodes: u32,
) -> Option<BitsPerSecond> {
    let unknown = Curve { parameters: parameters.clone(), nodes, points: Vec::new() };
    let curve = profile.curve(parameters, nodes).unwrap_or(&unknown);
    let samples = order.extent.samples();
    match (order.extent, nodes) {
        (_, 1) => {
            let top = *order.grid.bandwidths().last()?;
            let done: usize = curve.points.iter().map(|p| p.samples_nanos.len()).sum();
            (done < samples).then_some(top)
        }
        (Extent::Full { .. }, _) => {
            let done = |bandwidth: &BitsPerSecond| {
                let points = curve.points.iter();
                let point = points.filter(|p| p.bandwidth_bits_per_second == *bandwidth);
                point.map(|p| p.samples_nanos.len()).sum::<usize>()
            };
            // Rounds over all bandwidths, so that a drift of the machine touches every point alike.
            let least = order.grid.bandwidths().iter().min_by_key(|b| done(b))?;
            (done(least) < samples).then_some(*least)
        }
        (Extent::Known(wanted), _) => {
            let others = Others::of(application.pattern(), profile, parameters, nodes);
            guided::next(&order.grid, curve, &wanted, &others)
        }
    }
}

fn describe(parameters: &Parameters, nodes: u32, bandwidth: BitsPerSecond) -> String {
    let parameters: Vec<_> = parameters.iter().map(|(n, v)| format!("{n} {v}")).collect();
    format!("{}, {nodes} nodes, {bandwidth}", parameters.join(", "))
}

fn progress_bar(most: usize, done: usize) -> ProgressBar {
    // Where fewer are asked for than were made before, these are all.
    let bar = ProgressBar::new(most.max(done) as u64).with_position(done as u64);
    let template = "{elapsed_precise} {wide_bar} {pos} runs of at most {len}  {msg}";
    // The template is a constant; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::profile::Conditions;
    use keeptime_model::units::Nanos;
    use std::os::unix::fs::symlink;
    use std::thread::yield_now;
    use std::time::{Duration, Instant};

    /// Two nodes with a link of which 95 Mbit/s can be reserved, and 75 are free.
    fn busy() -> (Topology, Availability) {
        let file = "name = \"two\"\n\
                    nodes = [{ name = \"n1\", cpu = \"40 %\" }, { name = \"n2\", cpu = \"40 %\" }]\n\
                    links = [{ between = [\"n1\", \"n2\"], rate = \"100 Mbit/s\" }]\n";
        let topology = Topology::from_toml(file).unwrap();
        let [reservable, free] = [95, 75].map(BitsPerSecond::from_mbit);
        let cpu = |_| CpuPpm::from_percent(40);
        let free = Availability::with_free(&topology, |_| reservable, |_| free, cpu);
        (topology, free)
    }

    fn application() -> Application {
        let file = "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"pairs\"\nnodes = [2]\n\
                    cpu = \"20 %\"\ntimeout = \"60 s\"\ntime = \"wall\"\n";
        Application::from_toml(file).unwrap()
    }

    // Goal: who cannot measure for want of nodes learns which do not count, and why. Method: three, where there are two.
    #[test]
    fn too_few_nodes_are_told_with_those_that_do_not_count() {
        let (topology, free) = busy();
        let short = places_on(&topology, &free, &application(), [3]).unwrap_err();
        let reason = |why: &[&str]| {
            let why: Vec<_> = why.iter().map(|why| (*why).to_owned()).collect();
            short.not_now(&why).reason
        };
        let needed = "3 nodes with 20 % of a CPU free are needed, and there are fewer";
        assert_eq!(reason(&[]), needed);
        let why = ["the agent of n1 is not connected", "n2 is drained (ada: disk)"];
        assert_eq!(reason(&why), [needed, why[0], why[1]].join("; "));
    }

    // Goal: a busy moment lowers no grid for good, and yet nothing is begun that cannot be held.
    #[test]
    fn what_links_can_promise_is_not_what_is_free_of_them_now() {
        let (topology, free) = busy();
        let places = |free: &Availability| places_on(&topology, free, &application(), [2]).unwrap();
        let rates = [free.clone(), idle_links(&topology, &free)].map(|f| rate_least(&places(&f)));
        assert_eq!(rates, [75, 95].map(|mbit| Some(BitsPerSecond::from_mbit(mbit))));

        let grid = Grid::new([19, 95].map(BitsPerSecond::from_mbit).to_vec()).unwrap();
        let (curves, extent) = (Vec::new(), Extent::Full { samples: 1 });
        let order = Order { curves, places: places(&free), grid, extent };
        let [least, most] = [94, 95].map(|mbit| Some(BitsPerSecond::from_mbit(mbit)));
        let error = order.check(&topology, least).unwrap_err();
        assert!(error.is::<Invalid>(), "more than links can promise: {error}");
        let error = error.to_string();
        assert!(error.contains("\"95 Mbit/s\" is not accepted"), "{error}");
        assert!(error.ends_with(", of which 75 Mbit/s is free"), "{error}");
        let error = order.check(&topology, most).unwrap_err();
        assert!(error.is::<NotNow>(), "others have it: {error}");
        let error = error.to_string();
        assert!(error.starts_with("95 Mbit/s for each flow cannot be had now: at most"), "{error}");
        assert!(error.ends_with(", of which 75 Mbit/s is free"), "{error}");
    }

    // Goal: where a part of what a file has is ordered, only that is counted. Method: two curves, of which one is asked for, then
    // both, then one that is not there.
    #[test]
    fn runs_of_other_curves_are_not_counted() {
        let size = |value: &str| Parameters::from([("size".parse().unwrap(), value.to_owned())]);
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(100),
            process_cpu_ppm: CpuPpm::from_percent(20),
            processor: "a processor".into(),
            mpi: "an MPI".into(),
            command: vec!["ray".into()],
            program: None,
        };
        let rates = [10, 20].map(BitsPerSecond::from_mbit);
        let name = application().name().clone();
        let mut profile = Profile::empty(name, conditions, rates.to_vec());
        for (value, runs) in [("512", 2), ("256", 3)] {
            for run in 0..runs {
                profile.record(&size(value), 2, rates[run % 2], Nanos::from_millis(10));
            }
        }
        let order = |values: &[&str]| Order {
            curves: values.iter().map(|value| (size(value), 2)).collect(),
            places: BTreeMap::new(),
            grid: Grid::new(rates.to_vec()).unwrap(),
            extent: Extent::Full { samples: 1 },
        };
        let counts =
            [&["512"][..], &["512", "256"], &["128"]].map(|v| order(v).run_count(&profile));
        assert_eq!(counts, [2, 5, 0]);
    }

    // Goal: of two commands that measure into one file none loses what the other has recorded. Method: the file is replaced
    // meanwhile, and named by a link as well.
    #[test]
    fn a_profile_is_measured_by_one_command_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("new/ray.json"), directory.path().join("link"));
        let held = lock(&path).unwrap();
        assert!(held.is_some());
        files::save_json(&path, &[1]).unwrap();
        symlink(&path, &link).unwrap();
        for name in [&path, &link] {
            let error = lock(name).unwrap_err().to_string();
            assert!(error.contains("another command measures into"), "{error}");
        }
        drop(held);
        // A program that another test starts just now has the handle, too, until it is executed.
        let patience = Instant::now() + Duration::from_secs(60);
        while lock(&link).is_err() && Instant::now() < patience {
            yield_now();
        }
        assert!(lock(&link).unwrap().is_some());
        assert!(lock(Path::new("/dev/null")).unwrap().is_none());
    }
}
