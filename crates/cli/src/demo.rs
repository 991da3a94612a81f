//! `keeptime demo`: the whole main job on a lab of four nodes, from measuring to a report.

use crate::arguments::{ApplicationArguments, BrokerPlace, DemoArguments, GoalArguments};
use crate::cluster::{Cluster, hidden, own_path};
use crate::commands::run::{Admitted, Held, Manner, admit, hold_cpu, run_once, run_reserved};
use crate::commands::{Ending, Session};
use crate::execute::{ExecuteError, Execution, Ran, Run, heard, pass_on};
use crate::hold::Hold;
use crate::load::Flood;
use crate::machine::Machine;
use crate::profiler::Effort;
use crate::promised::Promised;
use crate::record::{Contention, RECORD, Record, Refused, Request, Trial};
use crate::{files, interrupt, report, story};
use anyhow::{Context, Result, bail, ensure};
use keeptime_lab::{Labs, Sight};
use keeptime_launch::mpi::Flavour;
use keeptime_launch::process::RunError;
use keeptime_model::application::Application;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use keeptime_planner::refusal::Change;
use keeptime_planner::translate::{Plan, Verdict};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The load goes on for so long at the most: longer than all trials, and it ends with the command.
const LOAD_LIMIT: Duration = Duration::from_secs(900);

/// Per flow; of 45 Mbit/s, a node's link holds the two that a hypercube of four has.
const BANDWIDTHS: &str = "10 Mbit/s,17 Mbit/s,27 Mbit/s,45 Mbit/s";

/// Goals that are tried under contention: bound, settings, preference.
const GOALS: [(&str, &[&str], &str); 6] = [
    ("1s", &["interleave=0"], "fastest"),
    ("2s", &["size=512", "interleave=0"], "cheapest"),
    ("1s", &["size=256"], "best"),
    ("1500ms", &[], "best"),
    ("1s", &["size=512", "interleave=2"], "fastest"),
    ("700ms", &["size=256", "interleave=0"], "cheapest"),
];

/// Runs all steps. The lab is removed at the end, also after an error, unless it is to be kept.
pub fn run(arguments: &DemoArguments) -> Result<Ending> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the demonstration needs root: in labs of other users nothing is enforced"
    );
    std::fs::create_dir_all(&arguments.out)?;
    step(1, "a lab cluster: 4 nodes, one switch, 100 Mbit/s links, 40 % of a CPU each");
    // A lab that an earlier, killed demonstration left would be in the way.
    if Labs::of_this_user().open(&arguments.lab).is_ok() {
        keeptime(&["lab", "down", arguments.lab.as_str()])?;
    }
    keeptime(&["lab", "up", arguments.lab.as_str()])?;
    let shown = show(arguments);
    if !arguments.keep {
        keeptime(&["lab", "down", arguments.lab.as_str()])?;
    }
    let page = shown?;
    println!("\nreport: {}", page.display());
    Ok(Ending::Done)
}

fn show(arguments: &DemoArguments) -> Result<PathBuf> {
    let out = &arguments.out;
    let session = open(&arguments.lab, "raycast", &out.join("raycast.json"))?;
    check_seen(&session.cluster, out)?;
    let machine = Machine::here();
    let (profile, effort) = measure(arguments, &session)?;
    let (request, pace) = answer(&session)?;
    let contention = contend(&session, pace)?;
    let pictures = draw(&session, out)?;
    let record = Record {
        machine,
        cluster: describe(&session.cluster),
        mpi: session.mpi.to_string(),
        command: "make demo".into(),
        profile,
        effort,
        request,
        contention,
        pictures,
    };
    files::save_json(&out.join(RECORD), &record)?;
    step(5, "one page to read and to look at");
    report::write(out)
}

/// Refuses a directory that nodes do not see, before all is measured: they write pictures there at the end.
fn check_seen(cluster: &Cluster, out: &Path) -> Result<()> {
    let lab = cluster.lab("the demonstration")?;
    for node in lab.topology().nodes() {
        if lab.sight(node.name.as_str(), out)? != Sight::Same {
            return Err(hidden("out", out, lab));
        }
    }
    Ok(())
}

fn open(lab: &Name, application: &str, profile: &Path) -> Result<Session> {
    Session::open(&ApplicationArguments {
        application: application.into(),
        place: BrokerPlace::of_lab(lab.clone()),
        launcher: None,
        among: Vec::new(),
        mpi: Some(Flavour::OpenMpi),
        profile: Some(profile.into()),
    })
}

/// Step 2, by the command that anybody would use.
fn measure(arguments: &DemoArguments, session: &Session) -> Result<(Profile, Effort)> {
    step(2, "profile the volume renderer: image sizes x interleaving x nodes x bandwidth per flow");
    let path = session.profile_path.display().to_string();
    let mut line = vec!["profile", "raycast", "--lab", arguments.lab.as_str(), "--profile", &path];
    line.extend([
        "--fresh",
        "--under-load",
        "--nodes",
        "2,4",
        "--set",
        "size=512,256",
        "--set",
        "interleave=0,2",
        "--bandwidths",
        BANDWIDTHS,
        // Two for each bandwidth; more would take longer than people look on.
        "--runs",
        "8",
    ]);
    keeptime(&line)?;
    let profile = session.profile()?;
    let points = profile.bandwidth_grid_bits_per_second.len();
    const SAMPLES: usize = 3;
    let full_grid = profile.curves.len() * points * SAMPLES;
    let effort = Effort { runs: profile.run_count(), full_grid };
    Ok((profile, effort))
}

/// Step 3. A machine that is too slow for the bound is offered a longer one, and that is taken; beside the request, how
/// many times as long it is.
fn answer(session: &Session) -> Result<(Request, f64)> {
    step(3, "a request in the user's terms: raycast --within 1s --set interleave=0");
    let asked = goal("1s", &["interleave=0"], "fastest")?;
    let topology = session.cluster.topology();
    let (goal, pace, held) = match admit(session, &asked, Manner::default())? {
        Admitted::Held(held) => (asked, 1.0, held),
        Admitted::Refused { decision, .. } => {
            print!("{}", story::decision(&decision, topology));
            let Some(offered) = longer_time(&decision.verdict) else {
                bail!("the request was refused on an idle cluster, and no longer time was offered");
            };
            println!(
                "\nthis machine is too slow for that: taking the longer time, and longer bounds in what follows\n"
            );
            let pace =
                asked.within.map_or(1.0, |within| offered.as_secs_f64() / within.as_secs_f64());
            let goal = GoalArguments { within: Some(offered), ..asked };
            match admit(session, &goal, Manner::default())? {
                Admitted::Held(held) => (goal, pace, held),
                Admitted::Refused { decision, .. } => {
                    print!("{}", story::decision(&decision, topology));
                    bail!("what was offered a moment ago is refused now");
                }
            }
        }
    };
    let Held { decision, plan, hold } = *held;
    print!("{}", story::decision(&decision, topology));
    let promised = Promised::from(&plan);
    let kept = run_reserved(session, &promised, &hold, false, &mut |said| pass_on(said, false));
    let ran = kept.map_err(heard)?.ran;
    let beside = story::beside_promise(ran.time, plan.time_nanos);
    println!("actual: {}, {beside}", ran.time.rounded());
    let nodes = topology.names(&plan.placement.nodes);
    Ok((Request { goal: goal.goal()?, decision, nodes, actual_nanos: ran.time }, pace))
}

/// The upper bound that is offered where everything else stays as it was asked.
fn longer_time(verdict: &Verdict) -> Option<Nanos> {
    let Verdict::Refused(refusal) = verdict else { return None };
    let mut offers = refusal.counter_offers.iter();
    offers.find(|offer| offer.change == Change::LongerTime)?.goal.within
}

/// The same goal with a bound that is `pace` times as long, in whole milliseconds.
fn slowed(goal: GoalArguments, pace: f64) -> GoalArguments {
    let slowed =
        |within: Nanos| Nanos::from_millis((within.as_secs_f64() * pace * 1e3).ceil() as u64);
    GoalArguments { within: goal.within.map(slowed), ..goal }
}

/// Step 4, with bounds that are `pace` times as long as on the machines that they were chosen on.
fn contend(session: &Session, pace: f64) -> Result<Contention> {
    let flood = Flood::description(session.cluster.topology().nodes().len());
    let load = format!("{flood}, and another MPI program in which all send to all");
    step(4, &format!("the same under contention: {load}"));
    println!(
        "{:<44} {:>9} {:>9} {:>8} {:>9} {:>8}",
        "request", "promised", "with", "", "without", ""
    );
    let _flood = Flood::on_all_links(&session.cluster, LOAD_LIMIT)?;
    let (trials, refused) = beside_other_job(session, || {
        let (mut trials, mut refused) = (Vec::new(), Vec::new());
        for (within, set, prefer) in GOALS {
            ensure!(!interrupt::stopped(), "interrupted");
            let goal = slowed(goal(within, set, prefer)?, pace);
            match try_goal(session, &goal, First::Reserved, false)? {
                Tried::Ran(trial) => {
                    print_trial(&trial);
                    trials.push(*trial);
                }
                Tried::Refused(request) => refused.push(request),
            }
        }
        Ok((trials, refused))
    })?;
    Ok(Contention { load, trials, refused })
}

/// What `measured` gives while a job that reserved nothing but a little CPU goes on beside it.
fn beside_other_job<T>(session: &Session, measured: impl FnOnce() -> Result<T>) -> Result<T> {
    let command = ["{workloads}/alltoall", "--bytes", "65536", "--times", "1000000"];
    let other =
        simple_application(session, "alltoall", &command.map(String::from), "5 %", LOAD_LIMIT)?;
    let is_over = AtomicBool::new(false);
    let stopped = || is_over.load(Ordering::SeqCst) || interrupt::stopped();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| run_on_all(session, &other, &stopped));
        let measured = measured();
        let ended_early = job.is_finished();
        is_over.store(true, Ordering::SeqCst);
        let ended = job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let measured = measured?;
        if ended_early {
            ended.context("while another job ran")?;
            bail!("the other job ended before what was measured beside it");
        }
        Ok(measured)
    })
}

/// Which of the two runs of a trial comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum First {
    /// The one with its reservation.
    Reserved,
    /// The one without.
    Unreserved,
}

/// What came of a goal.
pub enum Tried {
    /// Both of its runs.
    Ran(Box<Trial>),
    /// No run.
    Refused(Refused),
}

/// One goal with its bandwidth reserved and without. A refusal is printed.
pub fn try_goal(
    session: &Session,
    goal: &GoalArguments,
    first: First,
    steady: bool,
) -> Result<Tried> {
    let Held { plan, hold, .. } = match admit(session, goal, Manner::default())? {
        Admitted::Held(held) => *held,
        Admitted::Refused { decision, .. } => {
            let (application, goal) = (session.application.name().clone(), goal.goal()?);
            let reason = match &decision.verdict {
                Verdict::Refused(refusal) => {
                    print!("{goal}: {}", story::refusal(refusal));
                    refusal.reason.to_string()
                }
                Verdict::Planned(_) => "others were faster".into(),
            };
            return Ok(Tried::Refused(Refused { application, goal: goal.to_string(), reason }));
        }
    };
    let promised = Promised::from(&plan);
    let with = |hold: Hold| run_reserved(session, &promised, &hold, steady, &mut |_| {});
    let (kept, without_nanos) = match first {
        First::Reserved => {
            let kept = with(hold)?;
            (kept, run_unprotected(session, &promised)?)
        }
        First::Unreserved => {
            drop(hold);
            let without = run_unprotected(session, &promised)?;
            (with(hold_again(session, goal, &plan)?)?, without)
        }
    };
    let (parameters, rate) = (&plan.parameters, plan.bandwidth_bits_per_second);
    let nodes = plan.placement.nodes.len() as u32;
    let observed = session.fitted()?.observe(parameters, nodes, rate, kept.at_full);
    let observed = observed.context("a plan of other curves")?;
    Ok(Tried::Ran(Box::new(Trial {
        application: session.application.name().clone(),
        goal: goal.goal()?.to_string(),
        parameters: plan.parameters.clone(),
        nodes,
        bits_per_second: plan.bandwidth_bits_per_second,
        promised_nanos: plan.time_nanos,
        median_nanos: plan.median_nanos,
        profiled_nanos: observed.measured_nanos,
        quantile_ppm: plan.quantile,
        with_nanos: kept.ran.time,
        at_full_nanos: kept.at_full,
        without_nanos,
    })))
}

/// The same goal once more: as it was planned before, since nothing has changed.
fn hold_again(session: &Session, goal: &GoalArguments, plan: &Plan) -> Result<Hold> {
    match admit(session, goal, Manner::default())? {
        Admitted::Held(held) if held.plan == *plan => Ok(held.hold),
        _ => bail!("{} was planned, and a moment later it is not, or otherwise", goal.goal()?),
    }
}

/// The same run on the same nodes with the same CPU and no reserved bandwidth; nothing if it does not
/// end within the application's time limit.
fn run_unprotected(session: &Session, promised: &Promised) -> Result<Option<Nanos>> {
    let hold = hold_cpu(session, promised)?;
    match run_once(session, promised, &hold, &mut |_| {}) {
        Ok(ran) => Ok(Some(ran.time)),
        Err(error) if is_timeout(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_timeout(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ExecuteError::Run(RunError::TimedOut { .. })))
}

fn print_trial(trial: &Trial) {
    let what = format!("{} on {} nodes", story::parameters(&trial.parameters), trial.nodes);
    let (without, percent) = match (trial.without_nanos, trial.error_without()) {
        (Some(time), Some(error)) => {
            (time.rounded().to_string(), format!("{:+.1} %", 100.0 * error))
        }
        _ => ("did not end".into(), String::new()),
    };
    println!(
        "{:<44} {:>9} {:>9} {:>8} {without:>9} {percent:>8}",
        format!("{what}, {}", trial.bits_per_second.rounded()),
        trial.promised_nanos.rounded_up(),
        trial.with_nanos.rounded(),
        format!("{:+.1} %", 100.0 * trial.error_with()),
    );
}

/// The pictures of the report: the volume and the surface, drawn on all four nodes.
fn draw(session: &Session, out: &Path) -> Result<Vec<(String, String)>> {
    let surface = extract_surface(session, out)?;
    let volume = "volume.png";
    let polygons = "surface.png";
    let programs = [
        (
            "raycast",
            vec![("--volume", "{data}/mni152-t1.nii.gz".to_string()), ("--size", "512".into())],
            volume,
        ),
        ("render", vec![("--surface", surface), ("--size", "512".into())], polygons),
    ];
    for (program, options, file) in programs {
        let mut command = vec![format!("{{workloads}}/{program}")];
        command.extend(options.into_iter().flat_map(|(name, value)| [name.to_string(), value]));
        command.extend(["--out".to_string(), absolute(&out.join(file))?]);
        run_command(session, program, command)?;
    }
    Ok(vec![
        (
            "The volume: rays through a brick on each of four nodes, put together by binary swap"
                .into(),
            volume.into(),
        ),
        (
            "The surface: marching cubes and polygons on four nodes, put together by depth".into(),
            polygons.into(),
        ),
    ])
}

/// Runs `isosurface` on all nodes; the surface's path.
pub fn extract_surface(session: &Session, out: &Path) -> Result<String> {
    let surface = absolute(&out.join("surface.ply"))?;
    let command =
        ["{workloads}/isosurface", "--volume", "{data}/mni152-t1.nii.gz", "--out", &surface];
    run_command(session, "isosurface", command.map(String::from).to_vec())?;
    Ok(surface)
}

/// Runs a command to its end on all nodes, best-effort.
fn run_command(session: &Session, name: &str, command: Vec<String>) -> Result<()> {
    let limit = Duration::from_secs(120);
    let application = simple_application(session, name, &command, "15 %", limit)?;
    run_on_all(session, &application, &interrupt::stopped)
        .with_context(|| format!("while running {name}"))?;
    Ok(())
}

fn run_on_all(
    session: &Session,
    application: &Application,
    stopped: &dyn Fn() -> bool,
) -> Result<Ran> {
    let nodes: Vec<_> = (0..4).map(NodeIndex).collect();
    let parameters = Default::default();
    let run = Run { application, parameters: &parameters, nodes: &nodes, rate: None };
    let execution = Execution::new(&session.cluster, &session.mpi, run);
    Execution { stopped, ..execution }.reserved()
}

/// A command as an application without parameters, for four nodes.
fn simple_application(
    session: &Session,
    name: &str,
    command: &[String],
    cpu: &str,
    limit: Duration,
) -> Result<Application> {
    let file = format!(
        "name = {name:?}\ncommand = {command:?}\npattern = \"hypercube\"\nnodes = [4]\ncpu = {cpu:?}\n\
         timeout = \"{} s\"\ntime = {{ stdout = \"seconds_per_frame\" }}\n",
        limit.as_secs()
    );
    let path = std::env::temp_dir().join(format!("keeptime-{name}-{}.toml", std::process::id()));
    files::save(&path, file.as_bytes())?;
    let application = files::load_application(&path.display().to_string(), session.mpi.flavour);
    let _ = std::fs::remove_file(&path);
    application
}

/// A goal as it would be given on the command line.
pub fn goal(within: &str, set: &[&str], prefer: &str) -> Result<GoalArguments> {
    Ok(GoalArguments {
        within: Some(within.parse()?),
        at_least: None,
        set: set.iter().map(ToString::to_string).collect(),
        nodes: None,
        prefer: prefer.parse()?,
        quantile: None,
    })
}

fn describe(cluster: &Cluster) -> String {
    let topology = cluster.topology();
    let rate = topology.links().iter().map(|l| l.rate).min().unwrap_or_default();
    let cpu = topology.nodes().iter().map(|n| n.cpu).min().unwrap_or_default();
    format!(
        "{} nodes of network namespaces, {} switches, {rate} full-duplex links, {cpu} of a CPU a node",
        topology.nodes().len(),
        topology.switches().len()
    )
}

fn absolute(path: &Path) -> Result<String> {
    Ok(std::path::absolute(path)?.display().to_string())
}

fn step(number: u32, title: &str) {
    println!("\n== {number}. {title}");
}

/// Runs this program as a person would, in plain sight.
fn keeptime(arguments: &[&str]) -> Result<()> {
    println!("$ keeptime {}", arguments.join(" "));
    let status = Command::new(own_path()?).args(arguments).status()?;
    ensure!(status.success(), "keeptime {} ended with {status}", arguments.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::goal::Goal;
    use keeptime_planner::refusal::{CounterOffer, Reason, Refusal};

    fn offer(change: Change, within: Nanos) -> CounterOffer {
        CounterOffer {
            change,
            goal: Goal { within: Some(within), ..Goal::default() },
            parameters: Default::default(),
            nodes: 2,
            bandwidth_bits_per_second: Default::default(),
            time_nanos: within,
        }
    }

    fn refused(counter_offers: Vec<CounterOffer>) -> Verdict {
        let needs = keeptime_planner::refusal::NodeShortage {
            needs: 2,
            has: 0,
            cpu_per_node_ppm: Default::default(),
        };
        Verdict::Refused(Refusal { reason: Reason::NodesMissing(needs), counter_offers })
    }

    #[test]
    fn only_an_offer_of_more_time_alone_is_taken() {
        let (second, more) = (Nanos::from_millis(1_000), Nanos::from_millis(2_428));
        let other = offer(Change::OtherParameters, second);
        let offers = vec![other.clone(), offer(Change::LongerTime, more)];
        assert_eq!(longer_time(&refused(offers)), Some(more));
        assert_eq!(longer_time(&refused(vec![other])), None);
    }

    #[test]
    fn every_goal_is_one_at_any_pace() {
        for (within, set, prefer) in GOALS {
            let asked = goal(within, set, prefer).unwrap().goal().unwrap();
            let slower = slowed(goal(within, set, prefer).unwrap(), 2.5).goal().unwrap();
            let [asked_for, given] =
                [&asked, &slower].map(|goal| goal.within.unwrap().as_secs_f64());
            assert!((given / asked_for - 2.5).abs() < 0.01, "{asked_for} {given}");
            assert_eq!(slowed(goal(within, set, prefer).unwrap(), 1.0).goal().unwrap(), asked);
        }
    }
}
