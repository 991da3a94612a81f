//! `keeptime run`: from a goal to a run that kept it.

use super::{Ending, Session, plan, print_json};
use crate::arguments::{GoalArguments, RunArguments};
use crate::execute::{Ran, Run, execute, reserve};
use crate::hold::Hold;
use crate::{interrupt, story, times};
use anyhow::{Result, bail};
use jiff::tz::TimeZone;
use keeptime_broker::client::ClientError;
use keeptime_broker::wire::Problem;
use keeptime_model::reservation::Handle;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_planner::translate::{Decision, Plan, Verdict};
use serde::Serialize;

/// What `keeptime run --json` prints.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    decision: &'a Decision,
    reservation: Option<Handle>,
    reserved: bool,
    actual_nanos: Option<u64>,
}

/// What came of a goal.
pub enum Admitted {
    /// Its resources are held.
    Held(Box<Held>),
    /// It cannot be kept now.
    Refused {
        /// Why, step by step.
        decision: Box<Decision>,
        /// When the same would be admitted, if at any time soon.
        earliest: Option<WallTime>,
    },
}

/// A goal whose resources are held.
pub struct Held {
    /// How it was decided.
    pub decision: Decision,
    /// What was decided.
    pub plan: Plan,
    /// What is held.
    pub hold: Hold,
}

/// Plans, reserves, runs and compares.
pub fn run(arguments: &RunArguments) -> Result<Ending> {
    let session = Session::open(&arguments.application)?;
    let admitted = match arguments.unprotected {
        false => admit(&session, &arguments.goal)?,
        true => admit_unprotected(&session, &arguments.goal)?,
    };
    let Held { decision, plan, hold } = match admitted {
        Admitted::Held(held) => *held,
        Admitted::Refused { decision, earliest } => {
            tell_refusal(arguments, &session, &decision, earliest)?;
            return Ok(Ending::Refused);
        }
    };
    if !arguments.json {
        print!("{}", story::decision(&decision, session.cluster.topology()));
    }
    let ran = run_plan(&session, &plan, &hold, &mut |line| {
        if !arguments.json {
            println!("  | {line}");
        }
    })?;
    let reserved = !arguments.unprotected;
    if reserved {
        report_run(&hold, ran.time);
    }
    if arguments.json {
        let (reservation, actual_nanos) = (Some(hold.handle()), Some(ran.time.get()));
        print_json(&Outcome { decision: &decision, reservation, reserved, actual_nanos })?;
    } else {
        let (actual, promised) = (ran.time.as_secs_f64(), plan.time_nanos.as_secs_f64());
        let with = if reserved { "with its reservation" } else { "without a reservation" };
        let percent = 100.0 * (actual / promised - 1.0);
        println!("actual: {} {with}, {percent:+.1} % of what was promised", story::seconds(actual));
    }
    Ok(Ending::Done)
}

fn tell_refusal(
    arguments: &RunArguments,
    session: &Session,
    decision: &Decision,
    earliest: Option<WallTime>,
) -> Result<()> {
    if arguments.json {
        let nothing = Outcome { decision, reservation: None, reserved: false, actual_nanos: None };
        return print_json(&nothing);
    }
    print!("{}", story::decision(decision, session.cluster.topology()));
    if let Some(earliest) = earliest {
        let start = times::show(earliest, &TimeZone::system());
        println!("the same would be admitted from {start} on");
    }
    Ok(())
}

/// Asks the broker to keep a goal: it plans and reserves in one step.
///
/// # Errors
/// If the broker does not answer, or what it planned cannot be had: an agent refuses or is silent, or
/// the user has had their share.
pub fn admit(session: &Session, goal: &GoalArguments) -> Result<Admitted> {
    let (ask, broker) = (session.ask(goal)?, session.cluster.broker()?);
    let error = match Hold::take(&session.cluster, ask, session.application.timeout()) {
        Ok(hold) => {
            let decision = broker.decision(hold.handle())?;
            let Verdict::Planned(plan) = &decision.verdict else {
                bail!("{} was granted without a plan", hold.handle());
            };
            let plan = plan.clone();
            return Ok(Admitted::Held(Box::new(Held { decision, plan, hold })));
        }
        Err(error) => error,
    };
    let problem = error.downcast_ref::<ClientError>().and_then(ClientError::problem);
    if let Some(Problem { handle: Some(handle), refusal: Some(refusal), .. }) = problem {
        let decision = Box::new(broker.decision(*handle)?);
        if let Verdict::Refused(_) = decision.verdict {
            let earliest = refusal.earliest_start_unix_nanos;
            return Ok(Admitted::Refused { decision, earliest });
        }
    }
    Err(error)
}

/// The same goal on the same nodes with the same CPU, and no bandwidth, as for a job that has no
/// reservation.
fn admit_unprotected(session: &Session, goal: &GoalArguments) -> Result<Admitted> {
    let decision = plan::explain(session, goal)?;
    let Verdict::Planned(plan) = &decision.verdict else {
        return Ok(Admitted::Refused { decision: Box::new(decision), earliest: None });
    };
    let (hold, plan) = (hold_cpu(session, plan)?, plan.clone());
    Ok(Admitted::Held(Box::new(Held { decision, plan, hold })))
}

/// Reserves the CPU that `plan` needs on its nodes, and nothing else.
///
/// # Errors
/// If the broker does not answer or refuses.
pub fn hold_cpu(session: &Session, plan: &Plan) -> Result<Hold> {
    reserve(&session.cluster, &planned_run(session, plan))
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
    let run = planned_run(session, plan);
    execute(&session.cluster, &session.mpi, &run, hold, &interrupt::stopped, on_line)
}

/// Tells the broker what a run took. The run is done in any case.
pub fn report_run(hold: &Hold, actual: Nanos) {
    if let Err(error) = hold.report(actual) {
        tracing::warn!("the broker does not learn what the run took: {error}");
    }
}

/// Its rates are the broker's business.
fn planned_run<'a>(session: &'a Session, plan: &'a Plan) -> Run<'a> {
    let (parameters, nodes) = (&plan.parameters, plan.placement.nodes.as_slice());
    Run { application: &session.application, parameters, nodes, rate: None }
}
