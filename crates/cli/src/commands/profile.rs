//! `keeptime profile`: measures an application until its curves are known.

use super::{Ending, Session, print_json};
use crate::arguments::ProfileArguments;
use crate::columns::{Side, aligned};
use crate::load::Flood;
use crate::profiler::{Effort, Extent, NotNow, Order, lock, measure, places, rate_promised};
use crate::{files, interrupt, story};
use anyhow::{Context, Error, Result, ensure};
use keeptime_broker::client::ClientError;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::goal::parse_setting;
use keeptime_model::name::Name;
use keeptime_model::profile::{Conditions, Curve, Profile};
use keeptime_model::units::{BitsPerSecond, Share};
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::guided::{Others, uncertainty};
use keeptime_planner::prediction::Method;
use keeptime_planner::promise::Interval;
use keeptime_planner::refine::{Grid, Wanted};
use keeptime_planner::scaling::{NoModel, Scaling};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// No profile is measured under load for longer at once: the load ends by itself, also where nobody is left to end it.
const LOAD_LIMIT: Duration = Duration::from_secs(3600);
/// For so much longer there is load: no run is recorded that ended without it.
const LOAD_SPARE: Duration = Duration::from_secs(60);

/// Steps of the grid that is chosen where none is given.
const STEPS: u32 = 6;

/// Of the intervals that are shown, where the measured runs support it.
const NINETY: Share = Share::from_percent(90).expect("at most 100");

/// Measures and tells the knees and the effort. What others have now is refused.
pub fn run(arguments: &ProfileArguments) -> Result<Ending> {
    match measured(arguments) {
        Err(error) if is_refused(&error) => {
            let reason = format!("{error:#}");
            match arguments.json {
                true => print_json(&serde_json::json!({ "refused": reason }))?,
                false => println!("refused: {reason}"),
            }
            Ok(Ending::Refused)
        }
        ended => ended.map(|()| Ending::Done),
    }
}

/// Whether the cluster has no room now for what was to be measured.
fn is_refused(error: &Error) -> bool {
    let problem = error.downcast_ref::<ClientError>().and_then(ClientError::problem);
    error.is::<NotNow>() || problem.is_some_and(|problem| problem.refusal.is_some())
}

fn measured(arguments: &ProfileArguments) -> Result<()> {
    let session = Session::open(&arguments.application)?;
    // Dropped, and so let go of, with this function.
    let _lock = lock(&session.profile_path)?;
    let former = former(&session, arguments)?;
    let order = order(&session, arguments, former.as_ref())?;
    let mut profile = start(&session, arguments, &order, former)?;
    let effort = measure_rest(&session, arguments, &order, &mut profile)?;
    let (application, path) = (&session.application, &session.profile_path);
    if arguments.json {
        return print_json(&(&profile, effort));
    }
    let known: Vec<_> =
        profile.curves.iter().map(|c| known_to(application, &profile, c, &order.grid)).collect();
    print!("{}", table(&FittedProfile::new(application.clone(), &profile)?, &profile, &known));
    across(application, &profile).iter().for_each(|line| println!("{line}"));
    println!(
        "{} runs, {} in the full grid; written: {}",
        effort.runs,
        effort.full_grid,
        path.display()
    );
    let precision = arguments.precision;
    let is_unknown = |(c, off): &(&Curve, &f64)| c.nodes > 1 && **off > precision.as_f64();
    let count = profile.curves.iter().zip(&known).filter(is_unknown).count();
    if count > 0 {
        let more = if arguments.full { "--samples" } else { "--runs" };
        println!(
            "not known to {precision}: {count} of {} curves, whose times may be off by as much as is \
             said above; more {more} make it less",
            profile.curves.len()
        );
    }
    Ok(())
}

/// Measures what `profile` lacks, under load if that is asked for.
fn measure_rest(
    session: &Session,
    arguments: &ProfileArguments,
    order: &Order,
    profile: &mut Profile,
) -> Result<Effort> {
    let Session { cluster, mpi, application, profile_path, .. } = session;
    let load_until = arguments.under_load.then(|| Instant::now() + LOAD_LIMIT);
    // Dropped, and so ended, with this function.
    let _load = match arguments.under_load {
        true => {
            cluster.lab("--under-load")?;
            Some(Flood::on_all_links(cluster, LOAD_LIMIT + LOAD_SPARE)?)
        }
        false => None,
    };
    let stopped = || end(load_until).is_some();
    let measured = measure(cluster, mpi, application, order, profile, profile_path, &stopped);
    measured.map_err(|error| match end(load_until) {
        Some(end) => {
            let is_begun_anew = arguments.fresh && profile.run_count() > 0;
            Error::msg(said_of(end, &error, same_command(is_begun_anew)))
        }
        None => error,
    })
}

/// Why measuring ends before all is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Interrupted,
    /// What would be measured from now on is not under load any more.
    LoadOver,
}

/// Why it is to end now, where there is load until then.
fn end(load_until: Option<Instant>) -> Option<End> {
    if interrupt::stopped() {
        return Some(End::Interrupted);
    }
    load_until.filter(|until| Instant::now() >= *until).map(|_| End::LoadOver)
}

/// That it has ended, and by which command it goes on.
fn said_of(end: End, error: &Error, command: &str) -> String {
    let since = match end {
        End::Interrupted => String::new(),
        End::LoadOver => {
            format!(", since there is load for {} minutes at once", LOAD_LIMIT.as_secs() / 60)
        }
    };
    format!("{error:#}{since}; {command} goes on from here")
}

/// What goes on with what the file has now: beginning anew once more would throw it away.
fn same_command(is_begun_anew: bool) -> &'static str {
    if is_begun_anew { "the same command without --fresh" } else { "the same command" }
}

/// One line a curve: the knee, how far its times may be off, and how far single runs lie apart.
fn table(fitted: &FittedProfile, profile: &Profile, known: &[f64]) -> String {
    let mut rows = vec![HEADINGS.map(String::from)];
    for fitted in fitted.curves() {
        let is_it = |(c, _): &(&Curve, &f64)| {
            c.nodes == fitted.nodes() && c.parameters == **fitted.parameters()
        };
        let Some((curve, off)) = profile.curves.iter().zip(known).find(is_it) else { continue };
        let least = fitted.points().first().map(|point| point.time_nanos).unwrap_or_default();
        let [apart, share] = apart(fitted.interval(NINETY));
        rows.push([
            story::parameters(&curve.parameters),
            curve.nodes.to_string(),
            fitted.knee().bandwidth_bits_per_second.rounded().to_string(),
            fitted.knee().time_nanos.rounded().to_string(),
            least.rounded().to_string(),
            curve.points.iter().map(|p| p.samples_nanos.len()).sum::<usize>().to_string(),
            if off.is_finite() { format!("{:.1} %", 100.0 * off) } else { "-".into() },
            apart,
            share,
            match fitted.method() {
                Method::Model => "model".into(),
                Method::Interpolation => "medians".into(),
            },
        ]);
    }
    let sides: [Side; HEADINGS.len()] = std::array::from_fn(|column| match column {
        0 | LAST => Side::Left,
        _ => Side::Right,
    });
    aligned(&rows, &sides)
}

const LAST: usize = HEADINGS.len() - 1;
const HEADINGS: [&str; 10] = [
    "curve",
    "nodes",
    "knee",
    "time at knee",
    "time at least rate",
    "runs",
    "off by",
    "runs lie between",
    "so many",
    "times by",
];

/// By how much any time of a curve may be off, as a part of it; infinite where there is one point.
fn known_to(application: &Application, profile: &Profile, curve: &Curve, grid: &Grid) -> f64 {
    let others = Others::of(application.pattern(), profile, &curve.parameters, curve.nodes);
    uncertainty(grid, curve, &others)
}

/// What the curves of each setting say together of numbers of nodes, where there are enough of them.
fn across(application: &Application, profile: &Profile) -> Vec<String> {
    let mut settings: Vec<&Parameters> = Vec::new();
    for curve in &profile.curves {
        if !settings.contains(&&curve.parameters) {
            settings.push(&curve.parameters);
        }
    }
    settings.into_iter().flat_map(|setting| across_nodes(application, profile, setting)).collect()
}

/// The model of one setting, and what it expects on numbers of nodes between those that were measured.
fn across_nodes(application: &Application, profile: &Profile, setting: &Parameters) -> Vec<String> {
    let curves: Vec<_> = profile.curves.iter().filter(|c| c.parameters == *setting).collect();
    let title = match setting.is_empty() {
        true => application.name().to_string(),
        false => story::parameters(setting),
    };
    let model = match Scaling::fit(application.pattern(), &curves) {
        Ok(model) => model,
        Err(NoModel::TooFew) => return Vec::new(),
        Err(NoModel::Rejected) => {
            return vec![format!("{title}: no model for all numbers of nodes, the runs reject it")];
        }
    };
    let fixed = model.fixed();
    let [constant, computing, synchronisation] =
        [fixed.constant, fixed.computing, fixed.synchronisation].map(story::seconds);
    let terms = format!(
        "{title}: {constant} + {computing} / nodes + {synchronisation} x log2(nodes) + exchange"
    );
    let is_new = |nodes: &&u32| curves.iter().all(|curve| curve.nodes != **nodes);
    let new = application.nodes().iter().filter(is_new);
    let top = profile.bandwidth_grid_bits_per_second.last();
    let guesses = new.filter_map(|nodes| guess(&model, *nodes, *top?));
    std::iter::once(terms).chain(guesses).collect()
}

/// What is expected on a number of nodes that was not measured; nothing beyond those that were.
fn guess(model: &Scaling, nodes: u32, bandwidth: BitsPerSecond) -> Option<String> {
    let expected = model.expected_at(nodes, bandwidth)?.as_secs_f64();
    let interval = model.interval(nodes, NINETY);
    let end = |ppm: i64| story::seconds(expected * (1.0 + ppm as f64 / 1e6));
    let (least, greatest) = (end(interval.least_ppm), end(interval.greatest_ppm));
    let share = interval.share(NINETY);
    let is_known = share > Share::default();
    let runs = is_known.then(|| format!(", {} of runs {least} to {greatest}", share.rounded()));
    Some(format!(
        "  {nodes} nodes, not measured and not planned with: {} at {}{}",
        story::seconds(expected),
        bandwidth.rounded(),
        runs.unwrap_or_default(),
    ))
}

/// Between what runs lie, relative to their curve's time, and how many of them: nine in ten, or as many as those that were
/// measured support.
fn apart(interval: Interval) -> [String; 2] {
    let percent = |ppm: i64| format!("{:+.1} %", ppm as f64 / 1e4);
    let share = interval.share(NINETY);
    if share == Share::default() {
        return ["-".into(), "-".into()];
    }
    let between = format!("{} {}", percent(interval.least_ppm), percent(interval.greatest_ppm));
    [between, share.rounded().to_string()]
}

/// What `arguments` ask to be measured.
fn order(
    session: &Session,
    arguments: &ProfileArguments,
    former: Option<&Profile>,
) -> Result<Order> {
    let application = &session.application;
    let wanted = settings(application, &arguments.set)?;
    let chosen = |p: &Parameters| {
        wanted.iter().all(|(name, values)| p.get(name).is_some_and(|v| values.contains(v)))
    };
    let topology = session.cluster.topology();
    let nodes = node_counts(topology.nodes().len() as u32, application, &arguments.nodes)?;
    let combinations: Vec<_> = application.grid().into_iter().filter(chosen).collect();
    let curve = |n: &u32| combinations.iter().map(|p| (p.clone(), *n)).collect::<Vec<_>>();
    let curves = nodes.iter().flat_map(curve).collect();
    let places = places(&session.cluster, application, nodes.iter().copied())?;
    let (bandwidths, origin) = bandwidths(session, arguments, former, &nodes)?;
    ensure!(
        (1..=100).contains(&arguments.samples),
        Invalid::new("samples", arguments.samples, "1 to 100")
    );
    let samples = arguments.samples as u32;
    let grid = Grid::new(bandwidths)?;
    let extent = extent(arguments, &grid, samples)?;
    let order = Order { curves, places, grid, extent };
    let promised = rate_promised(&session.cluster, application, nodes.iter().copied())?;
    let checked = order.check(topology, promised);
    match origin {
        // Nobody named what is refused.
        Some(origin) => checked.context(origin)?,
        None => checked?,
    }
    Ok(order)
}

/// The bandwidths that a point may have, and where they come from unless `arguments` name them. The grid of the profile that
/// is gone on with comes first: what the links can promise now need not be what they could then.
fn bandwidths(
    session: &Session,
    arguments: &ProfileArguments,
    former: Option<&Profile>,
    nodes: &[u32],
) -> Result<(Vec<BitsPerSecond>, Option<String>)> {
    if !arguments.bandwidths.is_empty() {
        return Ok((arguments.bandwidths.clone(), None));
    }
    if let Some(grid) = former.and_then(grid_in_use) {
        let origin = format!("{}: its grid of bandwidths is {}", going_on(session), listed(grid));
        return Ok((grid.to_vec(), Some(origin)));
    }
    let promised = rate_promised(&session.cluster, &session.application, nodes.iter().copied())?;
    // Where nothing flows there is no bound, and no curve.
    let grid = grid_up_to(promised.unwrap_or(BitsPerSecond::from_mbit(1)));
    let origin =
        format!("without --bandwidths the grid is what idle links can promise, {}", listed(&grid));
    Ok((grid, Some(origin)))
}

/// The grid of a profile, unless all that was measured is on one node: nothing flows there, so that any grid will do.
fn grid_in_use(profile: &Profile) -> Option<&[BitsPerSecond]> {
    let is_in_use = profile.curves.iter().any(|curve| curve.nodes > 1);
    is_in_use.then_some(profile.bandwidth_grid_bits_per_second.as_slice())
}

/// A profile whose grid is not in use on another one. Its runs stand where those on one node are made: at the greatest
/// bandwidth.
fn moved_to(grid: &Grid, profile: &Profile) -> Profile {
    let bandwidths = grid.bandwidths();
    let (name, conditions) = (profile.application.clone(), profile.conditions.clone());
    let empty = Profile::empty(name, conditions, bandwidths.to_vec());
    let mut moved = Profile { under_load: profile.under_load, ..empty };
    let Some(top) = bandwidths.last() else { return moved };
    for curve in &profile.curves {
        for time in curve.points.iter().flat_map(|point| &point.samples_nanos) {
            moved.record(&curve.parameters, curve.nodes, *top, *time);
        }
    }
    moved
}

fn extent(arguments: &ProfileArguments, grid: &Grid, samples: u32) -> Result<Extent> {
    if arguments.full {
        return Ok(Extent::Full { samples });
    }
    let all = grid.bandwidths().len() * samples as usize;
    let usual = Wanted::of(grid, samples);
    let runs = arguments.runs.unwrap_or(usual.runs);
    let expected = format!("at least 1: the full grid has {all}, and more are not made");
    ensure!(runs > 0, Invalid::new("runs", runs, expected));
    Ok(Extent::Known(Wanted { precision: arguments.precision, runs, ..usual }))
}

/// The values to measure of each parameter that `--set` names.
fn settings(application: &Application, set: &[String]) -> Result<BTreeMap<Name, BTreeSet<String>>> {
    let mut wanted = BTreeMap::new();
    for text in set {
        let (name, values) = parse_setting(text)?;
        for value in values.split(',') {
            application.check_value(name.as_str(), value)?;
            wanted.entry(name.clone()).or_insert_with(BTreeSet::new).insert(value.to_string());
        }
    }
    Ok(wanted)
}

/// The numbers of nodes to measure, of those of `application` that a cluster of `there` nodes allows: one at least.
fn node_counts(there: u32, application: &Application, asked: &[u32]) -> Result<Vec<u32>, Invalid> {
    let all = application.nodes().iter();
    let possible: Vec<_> = all.clone().copied().filter(|n| *n <= there).collect();
    if possible.is_empty() {
        let all = all.map(u32::to_string).collect::<Vec<_>>().join(", ");
        let field = format!("nodes of {}", application.name());
        return Err(Invalid::new(field, all, format!("{there} at most: the cluster has no more")));
    }
    if let Some(wrong) = asked.iter().find(|n| !possible.contains(n)) {
        let listed = possible.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        return Err(Invalid::new("nodes", wrong, listed));
    }
    Ok(if asked.is_empty() { possible } else { asked.to_vec() })
}

/// Bandwidths from a fifth of `top` up to all of it, by equal factors: curves bend where bandwidth is scarce.
fn grid_up_to(top: BitsPerSecond) -> Vec<BitsPerSecond> {
    let (top, unit) = (top.get() as f64, unit(top));
    let step = |i: u32| top / 5f64.powf(f64::from(STEPS - 1 - i) / f64::from(STEPS - 1));
    let whole = |i| BitsPerSecond::new((step(i) / unit as f64).floor() as u64 * unit);
    (0..STEPS).map(whole).collect()
}

/// What bandwidths up to `top` are rounded down to, so that they read better and still fit. The least two are a
/// thirteenth of `top` apart: with a twentieth none is the same as another, and none nothing.
fn unit(top: BitsPerSecond) -> u64 {
    const UNITS: [u64; 5] = [100_000, 10_000, 1_000, 100, 10];
    UNITS.into_iter().find(|unit| unit * 20 <= top.get()).unwrap_or(1)
}

/// The file's profile, which must have been measured under these conditions; nothing where it is begun anew.
fn former(session: &Session, arguments: &ProfileArguments) -> Result<Option<Profile>> {
    if arguments.fresh || !session.profile_path.exists() {
        return Ok(None);
    }
    let profile = files::load_profile(&session.profile_path)?;
    let going_on = || going_on(session);
    files::check_conditions(&profile, &conditions(session), &session.measure)
        .with_context(going_on)?;
    let name = session.application.name();
    ensure!(profile.application == *name, "{} is a profile of {}", going_on(), profile.application);
    ensure!(
        profile.under_load == arguments.under_load,
        "{}: it was measured {} --under-load",
        going_on(),
        if profile.under_load { "with" } else { "without" }
    );
    Ok(Some(profile))
}

/// The profile to go on with: the former one if it is on this grid, or can be. What was not kept of the conditions when it
/// was begun is that of here from now on: who goes on with it says that it is the same.
fn start(
    session: &Session,
    arguments: &ProfileArguments,
    order: &Order,
    former: Option<Profile>,
) -> Result<Profile> {
    let asked = order.grid.bandwidths();
    let Some(profile) = former else {
        let (name, conditions) = (session.application.name().clone(), conditions(session));
        let empty = Profile::empty(name, conditions, asked.to_vec());
        return Ok(Profile { under_load: arguments.under_load, ..empty });
    };
    let Some(has) = grid_in_use(&profile) else {
        let moved = moved_to(&order.grid, &profile);
        return Ok(Profile { conditions: conditions(session), ..moved });
    };
    ensure!(
        has == asked,
        "{}: it has another grid of bandwidths, {}, and not {}",
        going_on(session),
        listed(has),
        listed(asked)
    );
    Ok(Profile { conditions: conditions(session), ..profile })
}

fn going_on(session: &Session) -> String {
    format!("going on with {} (--fresh starts anew)", session.profile_path.display())
}

fn conditions(session: &Session) -> Conditions {
    session.cluster.conditions(&session.application, &session.mpi.to_string())
}

fn listed(bandwidths: &[BitsPerSecond]) -> String {
    bandwidths.iter().map(BitsPerSecond::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;
    use keeptime_model::units::{CpuPpm, Nanos};
    use keeptime_planner::promise::Deviations;

    /// On each of these numbers of nodes: 0.3 s, 6 s parted among them and 4 Mbit a flow, times `factor`; twice.
    fn measured(numbers: &[u32], factor: fn(u32) -> f64) -> (Application, Profile) {
        let application = Application::from_toml(
            "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"ring\"\nnodes = [1, 2, 4, 6, 8, 16, 32]\n\
             cpu = \"20 %\"\ntimeout = \"60 s\"\ntime = \"wall\"\n",
        )
        .unwrap();
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(100),
            process_cpu_ppm: CpuPpm::from_percent(20),
            processor: "any".into(),
            mpi: "any".into(),
            command: vec!["ray".into()],
            program: None,
        };
        let grid: Vec<_> = [5, 10, 20].map(BitsPerSecond::from_mbit).into();
        let mut profile = Profile::empty(application.name().clone(), conditions, grid.clone());
        for nodes in numbers {
            let alone = f64::from(*nodes).recip();
            let from = if *nodes > 1 { 0 } else { grid.len() - 1 };
            for bandwidth in &grid[from..] {
                let exchange = if *nodes > 1 { 4.0 / bandwidth.as_mbit_f64() } else { 0.0 };
                let time = factor(*nodes) * (0.3 + 6.0 * alone + exchange);
                for _ in 0..2 {
                    let time = Nanos::from_secs_f64(time).unwrap();
                    profile.record(&Parameters::new(), *nodes, *bandwidth, time);
                }
            }
        }
        (application, profile)
    }

    // Goal: each heading stands above its own column, however long what is below it.
    #[test]
    fn headings_and_columns_end_at_the_same_place() {
        let (application, profile) = measured(&[1, 2], |_| 1.0);
        let fitted = FittedProfile::new(application, &profile).unwrap();
        let text = table(&fitted, &profile, &[f64::INFINITY, 1.051]);
        let lines: Vec<_> = text.lines().collect();
        let [head, one, two] = lines[..] else { panic!("{text}") };
        for (heading, below) in [("runs", "6"), ("off by", "105.1 %"), ("knee", "20 Mbit/s")] {
            let end =
                |line: &str, word: &str| line.find(&format!(" {word}  ")).unwrap() + word.len();
            assert_eq!(end(head, heading), end(two, below), "{text}");
        }
        assert!(one.contains("  -  "), "{text}");
        assert!(!text.contains(" \n"), "{text}");
    }

    #[test]
    fn numbers_of_nodes_between_are_told_and_none_beyond() {
        let (application, profile) = measured(&[1, 2, 4, 8, 16], |_| 1.0);
        let lines = across(&application, &profile);
        let [terms, six] = &lines[..] else { panic!("{lines:?}") };
        let expected = "ray: 300 ms + 6 s / nodes + 0 s x log2(nodes) + exchange";
        assert_eq!(terms, expected);
        assert!(six.starts_with("  6 nodes, not measured and not planned with: 1.5 s"), "{six}");
    }

    // Goal: no interval is said to hold more runs than those that were measured support: n deviations have (n - 1) / (n + 1)
    // between their ends.
    #[test]
    fn an_interval_is_told_with_the_share_of_runs_that_is_known() {
        let told = |count: u32| {
            let parts = (0..count).map(|part| f64::from(part) / 100.0);
            apart(Deviations::new(parts).interval(NINETY))
        };
        assert_eq!(told(19), ["+0.0 % +18.0 %", "90 %"]);
        assert_eq!(told(6), ["+0.0 % +5.0 %", "71.4 %"]);
        assert_eq!([told(0), told(1)], [["-", "-"], ["-", "-"]]);
        let (application, profile) = measured(&[1, 2, 4, 8, 16], |_| 1.0);
        let six = across(&application, &profile).remove(1);
        assert!(six.contains(", 89.4 % of runs 1."), "18 runs were left out: {six}");
    }

    #[test]
    fn more_runs_than_the_full_grid_has_are_accepted_and_none_is_not() {
        let extent = |runs: &str| {
            let words = ["keeptime", "profile", "ray", "--runs", runs];
            let parsed = Arguments::try_parse_from(words).unwrap();
            let Command::Profile(arguments) = parsed.command else { panic!("another command") };
            let grid = Grid::new([5, 10].map(BitsPerSecond::from_mbit).to_vec()).unwrap();
            extent(&arguments, &grid, 3).map_err(|error| error.to_string())
        };
        assert!(matches!(extent("99"), Ok(Extent::Known(Wanted { runs: 99, .. }))));
        let error = extent("0").unwrap_err();
        assert!(error.contains("runs: \"0\"") && error.contains("at least 1"), "{error}");
    }

    #[test]
    fn a_model_that_runs_reject_is_said_to_be_and_two_numbers_say_nothing() {
        let half = |nodes: u32| if nodes > 4 { 0.5 } else { 1.0 };
        let (application, profile) = measured(&[1, 2, 4, 8, 16], half);
        let lines = across(&application, &profile);
        assert_eq!(lines, ["ray: no model for all numbers of nodes, the runs reject it"]);
        let (application, profile) = measured(&[2, 4], |_| 1.0);
        assert!(across(&application, &profile).is_empty());
    }

    // Of slow links, too, and of the one that stands for none where nothing flows.
    #[test]
    fn the_usual_grid_is_one_whatever_the_links_hold() {
        const TOPS: [u64; 8] =
            [20, 950, 64_000, 499_999, 1_000_000, 1_999_999, 94_000_000, 40_000_000_000];
        for top in TOPS.map(BitsPerSecond::new) {
            let bandwidths = grid_up_to(top);
            assert_eq!(bandwidths.len(), STEPS as usize);
            assert!(bandwidths.last() <= Some(&top), "{bandwidths:?}");
            assert!(Grid::new(bandwidths).is_ok(), "up to {top}");
        }
        let megabits = grid_up_to(BitsPerSecond::from_mbit(100));
        assert_eq!(megabits[..2], [20_000_000, 27_500_000].map(BitsPerSecond::new));
    }

    // Goal: what one node was measured with, where nothing flows, says nothing of a grid for others; its runs are kept.
    #[test]
    fn a_grid_is_bound_by_curves_beyond_one_node_alone() {
        let (_, several) = measured(&[1, 2], |_| 1.0);
        let grid = [5, 10, 20].map(BitsPerSecond::from_mbit);
        assert_eq!(grid_in_use(&several), Some(&grid[..]));
        let (_, single) = measured(&[1], |_| 1.0);
        assert_eq!(grid_in_use(&single), None);
        let bandwidths = [50, 95].map(BitsPerSecond::from_mbit);
        let moved = moved_to(&Grid::new(bandwidths.to_vec()).unwrap(), &single);
        assert_eq!(moved.bandwidth_grid_bits_per_second, bandwidths);
        let ([then], [now]) = (&single.curves[..], &moved.curves[..]) else { panic!("{moved:?}") };
        let [point] = &now.points[..] else { panic!("{now:?}") };
        assert_eq!(point.bandwidth_bits_per_second, bandwidths[1]);
        assert_eq!(point.samples_nanos, then.points[0].samples_nanos);
    }

    // Goal: who asks for what cannot be measured here is told so, and by no empty table.
    #[test]
    fn numbers_of_nodes_that_the_cluster_does_not_have_are_refused() {
        let (application, _) = measured(&[], |_| 1.0);
        assert_eq!(node_counts(4, &application, &[]), Ok(vec![1, 2, 4]));
        assert_eq!(node_counts(4, &application, &[2]), Ok(vec![2]));
        let error = node_counts(4, &application, &[8]).unwrap_err().to_string();
        assert_eq!(error, "nodes: \"8\" is not accepted; expected 1, 2, 4");
        let error = node_counts(0, &application, &[]).unwrap_err().to_string();
        assert!(error.starts_with("nodes of ray: \"1, 2, 4, 6, 8, 16, 32\""), "{error}");
        assert!(error.ends_with("expected 0 at most: the cluster has no more"), "{error}");
    }

    // Goal: no run is recorded as one under load that was not.
    #[test]
    fn measuring_ends_before_the_load_does_and_can_go_on() {
        assert_eq!(end(None), None);
        assert_eq!(end(Some(Instant::now() + LOAD_LIMIT)), None);
        assert_eq!(end(Some(Instant::now())), Some(End::LoadOver));
        let error = Error::msg("the run was ended").context("while measuring");
        let said = said_of(End::LoadOver, &error, same_command(false));
        let since =
            "since there is load for 60 minutes at once; the same command goes on from here";
        assert_eq!(said, format!("while measuring: the run was ended, {since}"));
        let said = said_of(End::Interrupted, &error, same_command(true));
        assert!(said.ends_with("ended; the same command without --fresh goes on from here"));
    }

    #[test]
    fn who_began_anew_is_told_to_go_on_without_that() {
        assert_eq!(same_command(false), "the same command");
        assert_eq!(same_command(true), "the same command without --fresh");
    }
}
