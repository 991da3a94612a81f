//! `keeptime run`: from a goal to a run that kept it.

use super::{Ending, Session, plan, print_json};
use crate::arguments::{GoalArguments, RunArguments};
use crate::execute::{Ran, Run, execute, job_name, needs};
use crate::hold::Hold;
use crate::{interrupt, story};
use anyhow::Result;
use keeptime_model::units::BitsPerSecond;
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::translate::{Decision, Plan, Verdict};
use serde::Serialize;

/// What `keeptime run --json` prints.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    decision: &'a Decision,
    reserved: bool,
    actual_nanos: Option<u64>,
}

/// Plans, reserves, runs and compares.
pub fn run(arguments: &RunArguments) -> Result<Ending> {
    let session = Session::open(&arguments.application)?;
    let profile = session.fitted()?;
    let (decision, hold) = admit(&session, &profile, &arguments.goal, !arguments.unprotected)?;
    if !arguments.json {
        print!("{}", story::decision(&decision, session.cluster.topology()));
    }
    let (Verdict::Planned(plan), Some(hold)) = (&decision.verdict, hold) else {
        if arguments.json {
            print_json(&Outcome { decision: &decision, reserved: false, actual_nanos: None })?;
        }
        return Ok(Ending::Refused);
    };
    let ran = run_plan(&session, plan, &hold, &mut |line| {
        if !arguments.json {
            println!("  | {line}");
        }
    })?;
    let reserved = !arguments.unprotected;
    if reserved {
        session.remember(&profile, plan, ran.time)?;
    }
    if arguments.json {
        print_json(&Outcome { decision: &decision, reserved, actual_nanos: Some(ran.time.get()) })?;
    } else {
        let (actual, promised) = (ran.time.as_secs_f64(), plan.time_nanos.as_secs_f64());
        let with = if reserved { "with its reservation" } else { "without a reservation" };
        let percent = 100.0 * (actual / promised - 1.0);
        println!("actual: {} {with}, {percent:+.1} % of what was promised", story::seconds(actual));
    }
    Ok(Ending::Done)
}

/// Plans a goal and, if it can be kept, takes what it needs in one turn: nobody plans in between.
/// Without `reserve` only CPU is held, as for a job that has no reservation.
///
/// # Errors
/// If an agent does not answer or refuses.
pub fn admit(
    session: &Session,
    profile: &FittedProfile,
    goal: &GoalArguments,
    reserve: bool,
) -> Result<(Decision, Option<Hold>)> {
    let _turn = session.cluster.planning_turn()?;
    let decision = plan::decide(session, profile, goal)?;
    let hold = match &decision.verdict {
        Verdict::Planned(plan) => Some(hold_plan(session, plan, reserve)?),
        Verdict::Refused(_) => None,
    };
    Ok((decision, hold))
}

/// Takes what `plan` needs.
///
/// # Errors
/// If an agent does not answer or refuses.
pub fn hold_plan(session: &Session, plan: &Plan, reserve: bool) -> Result<Hold> {
    let rate = reserve.then_some(plan.bandwidth_bits_per_second);
    let run = planned_run(session, plan, rate);
    Hold::take(&session.cluster, &job_name("run")?, &needs(&session.cluster, &run)?)
}

/// Runs the application as planned.
///
/// # Errors
/// If it does not do its part.
pub fn run_plan(
    session: &Session,
    plan: &Plan,
    hold: &Hold,
    on_line: &mut dyn FnMut(&str),
) -> Result<Ran> {
    let run = planned_run(session, plan, None);
    execute(&session.cluster, &session.mpi, &run, hold, &interrupt::stopped, on_line)
}

fn planned_run<'a>(session: &'a Session, plan: &'a Plan, rate: Option<BitsPerSecond>) -> Run<'a> {
    let (parameters, nodes) = (&plan.parameters, plan.placement.nodes.as_slice());
    Run { application: &session.application, parameters, nodes, rate }
}
