//! Promised against actual run times while greedy flows load every link, with and without Keeptime.
//!
//! Profiles are measured first, beside the same flows (as by `keeptime profile --under-load`, since
//! network work of others slows computations too), and kept in OUT/first-light: a repetition goes on
//! with them unless they are removed. Requests follow, each planned, by the profile and by what the
//! last runs took (`keeptime_planner::drift`), run with its reservation, held at what was promised
//! (`keeptime run --steady`), and, on the same nodes with the same CPU, without one; which of the two
//! comes first alternates.

use crate::figures::{Figures, Target, quantile};
use crate::lab::{BenchLab, bandwidth_grid};
use crate::plan::Random;
use crate::profiles::{Wanted, make_surface, measure_under_load, parameters};
use crate::quick;
use anyhow::{Context, Result, ensure};
use keeptime::arguments::{GoalArguments, NodeCounts};
use keeptime::commands::Session;
use keeptime::demo::{First, Tried, goal, try_goal};
use keeptime::load::Flood;
use keeptime::machine::Machine;
use keeptime::record::Trial;
use keeptime::{files, interrupt};
use keeptime_model::goal::Goal;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use keeptime_planner::fitted::FittedProfile;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NODES: u32 = 4;
/// Medians of three still lie as far from the truth as single runs of ten seconds do.
const SAMPLES: u32 = 5;
/// The load goes on for so long at the most: longer than all runs, and it ends with the command.
const LOAD_LIMIT: Duration = Duration::from_secs(4 * 3600);
/// Frames are drawn for so long in a run of the profile. What neighbours on a physical core take comes
/// and goes within seconds; the mean of a session of frames is what an application can promise.
const PROFILE_SECONDS: &str = "10";
/// And in one that is asked for: the profile has the median of several runs, a promise is held against
/// one.
const SESSION_SECONDS: &str = "20";
/// Drawn in turns, from as many sides.
const FRAMES: &str = "2";
/// What runs are compared with.
const WITHOUT: &str = "the same CPU, no bandwidth reserved";
/// Of the order of the requests.
const SEED: u64 = 20;

/// Settings that are measured, and that requests ask for.
const RAYCAST: [&[&str]; 3] =
    [&["size=512", "interleave=0"], &["size=512", "interleave=1"], &["size=256", "interleave=0"]];
const RENDER: [&[&str]; 2] = [&["size=512"], &["size=256"]];

/// Nodes that are insisted on, a bound on the time in percent of the least time that any measured
/// curve of such runs has (so that requests mean the same on every machine), and a preference.
type Shape = (Option<u32>, u64, &'static str);

/// Asked for each of [`RAYCAST`].
const RAYCAST_SHAPES: [Shape; 6] = [
    (None, 140, "cheapest"),
    (None, 200, "cheapest"),
    (None, 150, "fastest"),
    (Some(2), 200, "cheapest"),
    (Some(4), 160, "best"),
    (Some(4), 300, "cheapest"),
];
/// Asked for each of [`RENDER`].
const RENDER_SHAPES: [Shape; 11] = [
    (None, 140, "cheapest"),
    (None, 150, "fastest"),
    (None, 250, "cheapest"),
    (Some(2), 130, "cheapest"),
    (Some(2), 160, "best"),
    (Some(2), 200, "cheapest"),
    (Some(2), 300, "cheapest"),
    (Some(4), 130, "cheapest"),
    (Some(4), 160, "cheapest"),
    (Some(4), 220, "cheapest"),
    (Some(4), 300, "best"),
];
/// Asked without any setting; the last one cannot be kept.
const OPEN_SHAPES: [Shape; 4] =
    [(None, 500, "best"), (None, 2_000, "best"), (None, 4_000, "best"), (None, 80, "fastest")];

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    load: String,
    seed: u64,
    profile_runs: Vec<(String, usize)>,
    refused: Vec<String>,
    runs: Vec<TrialRun>,
}

/// One request that was admitted.
#[derive(Debug, Serialize)]
struct TrialRun {
    first: First,
    machine_load: f64,
    trial: Trial,
}

/// An application that is ready to be asked for.
struct Ready {
    session: Session,
    fitted: FittedProfile,
}

/// Profiles, tries all requests and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let machine = Machine::here();
    let link = BitsPerSecond::from_mbit(60);
    let lab = BenchLab::star("bench-first-light", NODES, link, CpuPpm::from_percent(40))?;
    interrupt::listen()?;
    make_surface(&lab, out)?;
    let cluster = lab.cluster();
    let load = Flood::description(cluster.topology().nodes().len());
    let _flood = Flood::on_all_links(cluster, LOAD_LIMIT)?;
    let (raycast, render) =
        if quick() { (&RAYCAST[2..], &RENDER[..1]) } else { (&RAYCAST[..], &RENDER[..]) };
    let applications = [ready(&lab, "raycast", raycast, out)?, ready(&lab, "render", render, out)?];
    let mut requests = requests(&applications[0].fitted, 0, raycast, &RAYCAST_SHAPES)?;
    requests.extend(self::requests(&applications[1].fitted, 1, render, &RENDER_SHAPES)?);
    shuffle(&mut requests, SEED);
    requests.truncate(if quick() { 4 } else { usize::MAX });

    let runs_of = |ready: &Ready| -> Result<_> {
        let runs = files::load_profile(&ready.session.profile_path)?.run_count();
        Ok((ready.session.application.name().to_string(), runs))
    };
    let profile_runs = applications.iter().map(runs_of).collect::<Result<_>>()?;
    let mut raw =
        Raw { machine, load, seed: SEED, profile_runs, refused: Vec::new(), runs: Vec::new() };
    for (number, (application, goal)) in requests.iter().enumerate() {
        ensure!(!interrupt::stopped(), "interrupted; trials so far are in first-light/raw.json");
        let first = if number % 2 == 0 { First::Reserved } else { First::Unreserved };
        eprint!("request {} of {}: ", number + 1, requests.len());
        attempt(&applications[*application], goal, first, &mut raw)?;
        // After every trial, so that an interruption loses nothing.
        files::save_json(&out.join("first-light/raw.json"), &raw)?;
    }
    ensure!(!raw.runs.is_empty(), "every request was refused");
    figures(&raw).finish(out, &raw)
}

fn attempt(ready: &Ready, goal: &GoalArguments, first: First, raw: &mut Raw) -> Result<()> {
    let machine_load = Machine::here().load;
    let name = ready.session.application.name();
    match try_goal(&ready.session, goal, first, true)
        .with_context(|| format!("while trying {name}, {}", goal.within.unwrap_or_default()))?
    {
        Tried::Ran(trial) => {
            let percent = |error: f64| format!("{:+.1} %", 100.0 * error);
            let without = trial.error_without().map_or("did not end".into(), percent);
            eprintln!(
                "{name} {}, promised {}: {} with, {without} without",
                trial.goal,
                trial.promised_nanos,
                percent(trial.error_with()),
            );
            raw.runs.push(TrialRun { first, machine_load, trial: *trial });
        }
        Tried::Refused(request) => raw.refused.push(format!("{name} {}", request.goal)),
    }
    Ok(())
}

/// Measures what is not known yet of `settings` on 2 and 4 nodes.
fn ready(lab: &BenchLab, name: &str, settings: &[&[&str]], out: &Path) -> Result<Ready> {
    let path = profile_path(out, name);
    let mut session = lab.session(name, &path)?;
    let place = std::path::absolute(out)?.display().to_string();
    let application = session.application.with_constant("out".parse()?, place);
    let application = application.with_constant("frames".parse()?, FRAMES.to_owned());
    let lasting = |seconds: &str| -> Result<_> {
        Ok(application.clone().with_constant("seconds".parse()?, seconds.to_owned()))
    };
    session.application = lasting(PROFILE_SECONDS)?;
    let nodes: &[u32] = if quick() { &[4] } else { &[2, 4] };
    let grid = bandwidth_grid(7.0, 27.0, if quick() { 4 } else { 6 })?;
    let wanted = Wanted { settings, nodes, grid, samples: SAMPLES };
    let profile = measure_under_load(&session, &wanted)?;
    session.application = lasting(SESSION_SECONDS)?;
    let fitted = FittedProfile::new(session.application.clone(), &profile)?;
    Ok(Ready { session, fitted })
}

fn profile_path(out: &Path, application: &str) -> PathBuf {
    out.join("first-light").join(format!("{application}.json"))
}

/// All requests to one application, with its number.
fn requests(
    fitted: &FittedProfile,
    number: usize,
    settings: &[&[&str]],
    shapes: &[Shape],
) -> Result<Vec<(usize, GoalArguments)>> {
    let set = settings.iter().flat_map(|set| shapes.iter().map(move |shape| (*set, shape)));
    let open = OPEN_SHAPES.iter().map(|shape| (&[][..], shape));
    // A profile of some nodes only (a quick one) is asked for these only.
    let known = |shape: &Shape| {
        shape.0.is_none_or(|nodes| fitted.curves().iter().any(|c| c.nodes() == nodes))
    };
    let all = set.chain(open).filter(|(_, shape)| known(shape));
    all.map(|(set, shape)| Ok((number, request(fitted, set, shape)?))).collect()
}

fn request(
    fitted: &FittedProfile,
    set: &[&str],
    (nodes, percent, prefer): &Shape,
) -> Result<GoalArguments> {
    let asked = Goal { set: parameters(set)?, nodes: *nodes, ..Goal::default() };
    let curves = fitted.curves().iter();
    let curves = curves.filter(|c| asked.admits_curve(c.parameters(), c.nodes()));
    let least = curves.filter_map(|c| c.points().last()).map(|p| p.time_nanos.get()).min();
    let least = least.with_context(|| format!("no curve of {}", set.join(", ")))?;
    // As people ask: in whole milliseconds.
    let millis = (least * percent / 100).div_ceil(1_000_000);
    let arguments = goal(&format!("{millis}ms"), set, prefer)?;
    Ok(GoalArguments { nodes: nodes.map(NodeCounts::from), ..arguments })
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = Random(seed);
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new("first-light");
    let trials = || raw.runs.iter().map(|run| &run.trial);
    let with: Vec<_> = trials().map(|t| 100.0 * t.error_with()).collect();
    let ended = trials().filter_map(Trial::error_without);
    let without: Vec<_> = ended.map(|error| 100.0 * error).collect();
    let median = |errors: &[f64]| quantile(&absolute(errors), 0.5);
    let worst = |errors: &[f64]| quantile(&absolute(errors), 1.0);
    let late = |errors: &[f64]| quantile(errors, 1.0).max(0.0);
    let early = |errors: &[f64]| (-quantile(errors, 0.0)).max(0.0);
    let both = |value: &dyn Fn(&[f64]) -> f64| (value(&with), Some(value(&without)));
    let mut add = |name: &str, (value, baseline): (f64, Option<f64>), target: Option<Target>| {
        let figure = figures.value(name, "%", value, &with, baseline, target);
        figure.against(WITHOUT);
    };
    add("|actual - promised| / promised, median", both(&median), Some(Target::AtMost(3.0)));
    add("|actual - promised| / promised, worst", both(&worst), Some(Target::AtMost(7.0)));
    add("later than promised, worst", both(&late), None);
    add("earlier than promised, worst", both(&early), None);
    let medians: Vec<_> = trials().map(|t| 100.0 * t.error_of_median()).collect();
    let mut of_median = |name: &str, value: f64, errors: &[f64], target: Option<Target>| {
        figures.value(name, "%", value, errors, None, target);
    };
    let name = |which: &str| format!("with all of its CPU, off the expected median by, {which}");
    of_median(&name("median"), median(&medians), &medians, None);
    of_median(&name("worst"), worst(&medians), &medians, None);
    let profiled: Vec<_> = trials().map(|t| 100.0 * t.error_of_profile()).collect();
    let name = |which: &str| format!("the same by the profile alone, {which}");
    of_median(&name("median"), median(&profiled), &profiled, None);
    of_median(&name("worst"), worst(&profiled), &profiled, None);
    let kept = |errors: &[f64]| {
        // A run that did not end did not keep its promise either.
        100.0 * errors.iter().filter(|e| **e <= 0.0).count() as f64 / with.len() as f64
    };
    let quantile_asked = Some(Target::AtLeast(90.0));
    let shares: Vec<_> = with.iter().map(|e| if *e <= 0.0 { 100.0 } else { 0.0 }).collect();
    let name = "promises kept, of 90 % promised";
    let figure =
        figures.value(name, "%", kept(&with), &shares, Some(kept(&without)), quantile_asked);
    figure.against(WITHOUT);
    let admitted = with.len() as f64;
    let enough = Some(Target::AtLeast(40.0));
    figures.median("requests admitted", "", &[admitted], None, enough);
    figures.median("requests refused", "", &[raw.refused.len() as f64], None, None);
    let not_ended = admitted - without.len() as f64;
    figures.median("runs without reservation that did not end", "", &[not_ended], None, None);
    figures
}

fn absolute(errors: &[f64]) -> Vec<f64> {
    errors.iter().map(|e| e.abs()).collect()
}
