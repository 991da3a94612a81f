//! `keeptime run`: from a goal to a run that kept it.

use super::reservations::in_local_time;
use super::{Ending, Session, by, plan, print_json, rate};
use crate::arguments::{GoalArguments, RunArguments};
use crate::execute::{ExecuteError, Ran, Run, execute, reserve};
use crate::hold::Hold;
use crate::pacing::Paced;
use crate::promised::Promised;
use crate::{interrupt, story};
use anyhow::{Context, Result, bail, ensure};
use keeptime_broker::client::ClientError;
use keeptime_broker::wire::Problem;
use keeptime_broker::words;
use keeptime_engine::Refusal;
use keeptime_engine::book::Reservation;
use keeptime_model::reservation::{Handle, State};
use keeptime_model::units::Nanos;
use keeptime_planner::translate::{Decision, Plan, Verdict};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often it is looked whether a reservation has begun.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long nodes may take to begin what has begun.
const AGENTS_WITHIN: Duration = Duration::from_secs(5);

/// What `keeptime run --json` prints.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    /// Nothing where it was decided before.
    decision: Option<&'a Decision>,
    reservation: Option<Handle>,
    reserved: bool,
    actual_nanos: Option<u64>,
    /// Where and when what is short, and when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a Refusal>,
}

/// What came of a goal.
pub enum Admitted {
    /// Its resources are held.
    Held(Box<Held>),
    /// It cannot be kept now.
    Refused {
        /// Why, step by step.
        decision: Box<Decision>,
        /// Where and when what is short, and when the same would be admitted; nothing if nothing was
        /// asked for.
        refusal: Option<Box<Refusal>>,
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

/// A run with what was reserved for it.
pub struct Kept {
    /// How it went.
    pub ran: Ran,
    /// What it would have taken with all of its CPU: the same but for a steady run.
    pub at_full: Nanos,
}

/// Plans, reserves, runs and compares.
pub fn run(arguments: &RunArguments) -> Result<Ending> {
    if let Some(target) = arguments.rate {
        return rate::run(arguments, target);
    }
    if let Some(by) = &arguments.by {
        return by::run(arguments, by);
    }
    let session = Session::open(&arguments.application)?;
    if let Some(handle) = arguments.reservation {
        return run_in(arguments, &session, handle);
    }
    let admitted = match arguments.unprotected {
        false => admit(&session, &arguments.goal)?,
        true => admit_unprotected(&session, &arguments.goal)?,
    };
    let Held { decision, plan, hold } = match admitted {
        Admitted::Held(held) => *held,
        Admitted::Refused { decision, refusal } => {
            tell_refusal(arguments, &session, &decision, refusal.as_deref())?;
            return Ok(Ending::Refused);
        }
    };
    if !arguments.json {
        print!("{}", story::decision(&decision, session.cluster.topology()));
    }
    let (promised, hold, ran) = run_told(arguments, &session, Promised::from(&plan), hold)?;
    tell_outcome(arguments, Some(&decision), &promised, &hold, &ran)?;
    Ok(Ending::Done)
}

/// In a reservation that was made before, once it begins; it is kept.
fn run_in(arguments: &RunArguments, session: &Session, handle: Handle) -> Result<Ending> {
    let reservation = begun(arguments, session, handle)?;
    let (application, topology) = (&session.application, session.cluster.topology());
    let promised = Promised::of_reservation(&reservation, application, topology)?;
    let hold = Hold::of_reservation(&session.cluster, handle)?;
    let (promised, hold, ran) = run_told(arguments, session, promised, hold)?;
    tell_outcome(arguments, None, &promised, &hold, &ran)?;
    Ok(Ending::Done)
}

/// The reservation, when its time has come.
fn begun(arguments: &RunArguments, session: &Session, handle: Handle) -> Result<Reservation> {
    let broker = session.cluster.broker()?;
    let mut is_told = false;
    loop {
        let reservation = broker.reservation(handle)?;
        match reservation.state {
            State::Active => {
                wait_for_agents(session, handle)?;
                return Ok(reservation);
            }
            State::Offered | State::Granted => {}
            over => bail!("{handle} is {over} and cannot be run in"),
        }
        // Before anybody waits for nothing.
        Promised::of_reservation(&reservation, &session.application, session.cluster.topology())?;
        if !is_told && !arguments.json {
            let start = in_local_time(reservation.from_unix_nanos);
            println!("{handle} begins at {start}: waiting");
            is_told = true;
        }
        ensure!(!interrupt::stopped(), "interrupted");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What begins by the broker's clock does a moment later by a node's. An agent that does not come to it is
/// not waited for any longer: the run then says what it lacks.
fn wait_for_agents(session: &Session, handle: Handle) -> Result<()> {
    let waiting = Instant::now();
    while waiting.elapsed() < AGENTS_WITHIN {
        let jobs = session.cluster.statuses()?.into_iter().flat_map(|status| status.jobs);
        let mut own = jobs.filter(|job| job.assignment.job == handle.job()).peekable();
        if own.peek().is_some() && own.all(|job| job.cpu_kept_by.is_some()) {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Runs it, and anew where its reservation is moved to: what was promised, and what held it, at last.
fn run_told(
    arguments: &RunArguments,
    session: &Session,
    mut promised: Promised,
    mut hold: Hold,
) -> Result<(Promised, Hold, Ran)> {
    let mut on_line = |line: &str| {
        if !arguments.json {
            println!("  | {line}");
        }
    };
    loop {
        let ran = match arguments.unprotected {
            true => run_once(session, &promised, &hold, &mut on_line),
            false => run_reserved(session, &promised, &hold, arguments.steady, &mut on_line)
                .map(|kept| kept.ran),
        };
        match ran {
            Ok(ran) => return Ok((promised, hold, ran)),
            Err(error) => (promised, hold) = moved(arguments, session, &hold, error)?,
        }
    }
}

/// Where a run begins anew whose reservation was lost and moved. Its time limit is that of all its
/// beginnings: what takes the place of its reservation ends when that would have.
fn moved(
    arguments: &RunArguments,
    session: &Session,
    lost: &Hold,
    error: anyhow::Error,
) -> Result<(Promised, Hold)> {
    let is_lost = matches!(error.downcast_ref(), Some(ExecuteError::Lost { .. }));
    if !is_lost || arguments.unprotected {
        return Err(error);
    }
    let next = lost.moved(&session.cluster, session.application.on_loss());
    let Some((hold, next)) = next.with_context(|| format!("{error}; it could not be moved"))?
    else {
        return Err(error);
    };
    if let (Some(grant), false) = (&next.grant, arguments.json) {
        println!("{error}");
        println!("it begins anew as {}: {}", next.handle, words::grant(grant));
    }
    let topology = session.cluster.topology();
    Ok((Promised::of_reservation(&next, &session.application, topology)?, hold))
}

fn tell_outcome(
    arguments: &RunArguments,
    decision: Option<&Decision>,
    promised: &Promised,
    hold: &Hold,
    ran: &Ran,
) -> Result<()> {
    let reserved = !arguments.unprotected;
    if arguments.json {
        let (reservation, actual_nanos) = (Some(hold.handle()), Some(ran.time.get()));
        let refusal = None;
        return print_json(&Outcome { decision, reservation, reserved, actual_nanos, refusal });
    }
    let (actual, promised) = (ran.time.as_secs_f64(), promised.time.as_secs_f64());
    let with = if reserved { "with its reservation" } else { "without a reservation" };
    let percent = 100.0 * (actual / promised - 1.0);
    println!("actual: {} {with}, {percent:+.1} % of what was promised", story::seconds(actual));
    Ok(())
}

fn tell_refusal(
    arguments: &RunArguments,
    session: &Session,
    decision: &Decision,
    refusal: Option<&Refusal>,
) -> Result<()> {
    if arguments.json {
        let (decision, reservation, actual_nanos) = (Some(decision), None, None);
        let reserved = false;
        return print_json(&Outcome { decision, reservation, reserved, actual_nanos, refusal });
    }
    print!("{}", story::decision(decision, session.cluster.topology()));
    let Some(refusal) = refusal else { return Ok(()) };
    for lacking in &refusal.lacking {
        println!("{}", lacking.words(&in_local_time));
    }
    if let Some(start) = refusal.earliest_start_unix_nanos {
        println!("the same would be admitted from {} on", in_local_time(start));
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
            return Ok(Admitted::Refused { decision, refusal: Some(refusal.clone()) });
        }
    }
    Err(error)
}

/// The same goal on the same nodes with the same CPU, and no bandwidth, as for a job that has no
/// reservation.
fn admit_unprotected(session: &Session, goal: &GoalArguments) -> Result<Admitted> {
    let decision = plan::explain(session, goal)?;
    let Verdict::Planned(plan) = &decision.verdict else {
        return Ok(Admitted::Refused { decision: Box::new(decision), refusal: None });
    };
    let (hold, plan) = (hold_cpu(session, &plan.into())?, plan.clone());
    Ok(Admitted::Held(Box::new(Held { decision, plan, hold })))
}

/// Reserves the CPU of a run on its nodes, and nothing else.
///
/// # Errors
/// If the broker does not answer or refuses.
pub fn hold_cpu(session: &Session, promised: &Promised) -> Result<Hold> {
    reserve(&session.cluster, &as_promised(session, promised))
}

/// Runs the application once, with what `hold` has.
///
/// # Errors
/// If it does not do its part.
pub fn run_once(
    session: &Session,
    promised: &Promised,
    hold: &Hold,
    on_line: &mut dyn FnMut(&str),
) -> Result<Ran> {
    let run = as_promised(session, promised);
    execute(&session.cluster, &session.mpi, &run, hold, &interrupt::stopped, on_line)
}

/// Runs the application with what was reserved for it, and tells the broker what that took. A
/// `steady` run takes what was promised for it, so it is told what it would have taken.
///
/// # Errors
/// If it does not do its part, or is to be steady and tells no progress.
pub fn run_reserved(
    session: &Session,
    promised: &Promised,
    hold: &Hold,
    steady: bool,
    on_line: &mut dyn FnMut(&str),
) -> Result<Kept> {
    let Session { cluster, application, .. } = session;
    let paced = || Paced::new(cluster, application, &session.fitted()?, promised, hold);
    let mut paced = steady.then(paced).transpose()?;
    let ran = run_once(session, promised, hold, &mut |line| {
        if let Some(paced) = &mut paced {
            paced.line(line);
        }
        on_line(line);
    })?;
    // The run is done in any case.
    let at_full = paced.and_then(|paced| paced.at_full()).unwrap_or(ran.time);
    if let Err(error) = hold.report(at_full) {
        tracing::warn!("the broker does not learn what the run took: {error}");
    }
    Ok(Kept { ran, at_full })
}

/// Its rates are the broker's business.
fn as_promised<'a>(session: &'a Session, promised: &'a Promised) -> Run<'a> {
    let Promised { parameters, nodes, .. } = promised;
    Run { application: &session.application, parameters, nodes, rate: None }
}
