//! `keeptime run`: from a goal to a run that kept it.

pub(super) mod admission;
pub(super) mod beginning;
mod program;
pub(super) mod running;

pub use admission::{Admitted, Held, Manner, admit, hold_cpu};
pub(super) use program::less_cpu;
pub use running::{Kept, run_once, run_reserved};

use super::reservations::{self, AskedFor, in_local_time};
use super::{Ending, Session, by, print_json, rate};
use crate::arguments::RunArguments;
use crate::detach::{self, Departure};
use crate::execute::{Ran, heard, pass_on};
use crate::hold::Hold;
use crate::lasting::ToldLasting;
use crate::pacing::word_of_units;
use crate::promised::Promised;
use crate::{allocation, interrupt, named, story};
use admission::{admit_later, admit_unprotected};
use anyhow::{Context, Result, bail, ensure};
use beginning::{Beginning, LOOK_EVERY, may_pass};
use keeptime_broker::client::ClientError;
use keeptime_broker::words;
use keeptime_credentials::dates::now;
use keeptime_engine::Refusal;
use keeptime_engine::book::Reservation;
use keeptime_launch::process::Said;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, State};
use keeptime_model::units::Nanos;
use keeptime_planner::translate::Decision;
use running::is_lost;
use serde::Serialize;
use std::time::Instant;

/// What `keeptime run --json` prints.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    /// Nothing where it was decided before.
    decision: Option<serde_json::Value>,
    reservation: Option<Handle>,
    reserved: bool,
    /// Nodes that enforced none of it.
    #[serde(skip_serializing_if = "<[Name]>::is_empty")]
    unenforced: &'a [Name],
    actual_nanos: Option<u64>,
    /// From when it was asked for to when it began, or was refused, where it might wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_nanos: Option<u64>,
    /// Where and when what is short, and when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a Refusal>,
    /// How long it was to last, where it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    lasting: Option<ToldLasting>,
}

/// Plans, reserves, runs and compares; here, or in a session of its own.
pub fn run(arguments: &RunArguments) -> Result<Ending> {
    allocation::check_once()?;
    if arguments.detach && !arguments.detached {
        return detach::start(arguments);
    }
    let departure = &Departure::of(arguments)?;
    let arguments = &with_application(arguments)?;
    if let Some(target) = arguments.rate {
        return rate::run(arguments, target, departure);
    }
    if let Some(by) = &arguments.by {
        return by::run(arguments, by, departure);
    }
    let session = Session::open(&arguments.application)?;
    if arguments.steady {
        word_of_units(&session.application)?;
    }
    if let Some(handle) = arguments.reservation {
        return run_in(arguments, &session, handle, departure);
    }
    run_for_goal(arguments, &session, departure)
}

/// With what its goal needs, which is reserved now, or when there is room.
fn run_for_goal(
    arguments: &RunArguments,
    session: &Session,
    departure: &Departure,
) -> Result<Ending> {
    let goal = &arguments.goal;
    let (spare, mechanism) = (arguments.spare, arguments.mechanism);
    let manner = Manner { spare, mechanism, ..Manner::default() };
    let tell = |line: String| {
        if !arguments.json {
            println!("{line}");
        }
        // It waits for room from now on.
        if let Err(error) = departure.leave(None) {
            tracing::error!("{error:#}");
            interrupt::stop();
        }
    };
    let asked = Instant::now();
    let waited = || arguments.wait.map(|_| Nanos::from(asked.elapsed()));
    let admitted = match (arguments.unprotected, arguments.wait) {
        (true, _) => admit_unprotected(session, goal),
        (false, None) => admit(session, goal, manner),
        (false, Some(wait)) => admit_later(session, goal, manner, wait, &tell),
    };
    let Held { decision, plan, hold } = match admitted {
        Ok(Admitted::Held(held)) => *held,
        Ok(Admitted::Refused { decision, refusal }) => {
            tell_refusal(arguments, session, &decision, waited(), refusal.as_deref())?;
            return Ok(Ending::Refused);
        }
        // What was planned cannot be had, or the user has had their share.
        Err(error) => {
            let error = error.downcast::<ClientError>()?;
            return reservations::refused_lasting(
                error,
                waited(),
                Some(asked_for(arguments, session)),
                arguments.json,
            );
        }
    };
    if !arguments.json {
        print!("{}", story::decision(&decision, session.cluster.topology()));
    }
    departure.leave(Some(hold.handle()))?;
    let (promised, hold) = match arguments.wait {
        Some(_) => begun(arguments, session, hold, departure)?,
        None => (Promised::from(&plan), hold),
    };
    let waited = waited();
    let (promised, hold, ran) = run_told(arguments, session, promised, hold)?;
    tell_outcome(arguments, session, Some(&decision), waited, &promised, &hold, &ran)?;
    Ok(Ending::Done)
}

/// The arguments about the application itself: that of a file or of a program's words, with the time that it needs.
fn with_application(arguments: &RunArguments) -> Result<RunArguments> {
    let application = match arguments.program.is_given() {
        true => program::application(arguments)?,
        false => super::application(&arguments.application)?,
    };
    let application = match arguments.rate {
        Some(rate) => program::slowed(application, rate)?,
        None => application,
    };
    let mut arguments = arguments.clone();
    arguments.application.application = application.into();
    Ok(arguments)
}

/// In a reservation that was made before, once it begins; it is kept.
fn run_in(
    arguments: &RunArguments,
    session: &Session,
    handle: Handle,
    departure: &Departure,
) -> Result<Ending> {
    let hold = Hold::of_reservation(&session.cluster, handle)?;
    let (promised, hold) = begun(arguments, session, hold, departure)?;
    departure.leave(Some(hold.handle()))?;
    let (promised, hold, ran) = run_told(arguments, session, promised, hold)?;
    tell_outcome(arguments, session, None, None, &promised, &hold, &ran)?;
    Ok(Ending::Done)
}

/// What was promised, and what holds it, when the time of what `hold` has come, or of what took its place where that was
/// lost before. Nobody waits for that at a terminal that is to be left.
fn begun(
    arguments: &RunArguments,
    session: &Session,
    mut hold: Hold,
    departure: &Departure,
) -> Result<(Promised, Hold)> {
    let broker = session.cluster.broker()?;
    let mut is_waiting = false;
    loop {
        let handle = hold.handle();
        let found = broker.reservation(handle);
        if let Ok(reservation) = &found {
            check_among(session, reservation)?;
        }
        match found {
            Ok(reservation) if reservation.state == State::Active => {
                let promised = promised_of(session, &reservation)?;
                Beginning::of(&session.cluster, &promised.nodes, handle.job()).wait();
                return Ok((promised, hold));
            }
            Ok(reservation) if reservation.state == State::Lost => {
                let why = format!("{handle} was lost before it began");
                (hold, _) = in_its_place(arguments, session, &hold, &why)?.context(why)?;
                continue;
            }
            Ok(reservation) => {
                check_to_come(session, &reservation)?;
                if !is_waiting {
                    let start = in_local_time(reservation.from_unix_nanos);
                    tell(arguments, &format!("{handle} begins at {start}: waiting"));
                }
                departure.leave(Some(handle))?;
                is_waiting = true;
            }
            // For how long the broker may not know who asks is the hold's business.
            Err(error) if may_pass(&error) && hold.lost().is_none() => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(!interrupt::stopped(), "interrupted");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What is told while nothing has come of it; with `--json` standard output is for that alone.
fn tell(arguments: &RunArguments, line: &str) {
    match arguments.json {
        true => eprintln!("keeptime: {line}"),
        false => println!("{line}"),
    }
}

/// In a job of Slurm's there are no steps elsewhere.
fn check_among(session: &Session, reservation: &Reservation) -> Result<()> {
    let among = session.cluster.among();
    let mut nodes = reservation.grant.iter().flat_map(|grant| &grant.nodes);
    match nodes.find(|node| !among.is_empty() && !among.contains(*node)) {
        None => Ok(()),
        Some(node) => {
            let among: Vec<_> = among.iter().map(Name::as_str).collect();
            bail!("{} has {node}; this run can use {}", reservation.handle, among.join(", "))
        }
    }
}

/// Before anybody waits for nothing.
fn check_to_come(session: &Session, reservation: &Reservation) -> Result<()> {
    let Reservation { handle, state, .. } = reservation;
    let is_to_come = matches!(state, State::Offered | State::Granted);
    ensure!(is_to_come, "{handle} is {state} and cannot be run in");
    promised_of(session, reservation).map(drop)
}

fn promised_of(session: &Session, reservation: &Reservation) -> Result<Promised> {
    let (application, topology) = (&session.application, session.cluster.topology());
    Promised::of_reservation(reservation, application, topology)
}

/// Runs it, and anew where its reservation is moved to: what was promised, and what held it, at last.
fn run_told(
    arguments: &RunArguments,
    session: &Session,
    mut promised: Promised,
    mut hold: Hold,
) -> Result<(Promised, Hold, Ran)> {
    let mut on_said = |said: Said<'_>| pass_on(said, arguments.json);
    loop {
        let ran = match arguments.unprotected {
            true => run_once(session, &promised, &hold, &mut on_said),
            false => run_reserved(session, &promised, &hold, arguments.steady, &mut on_said)
                .map(|kept| kept.ran),
        };
        match ran.map_err(heard) {
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
    if !is_lost(&error) || arguments.unprotected {
        return Err(error);
    }
    let why = error.to_string();
    match in_its_place(arguments, session, lost, &why)? {
        Some((hold, next)) => Ok((promised_of(session, &next)?, hold)),
        None => Err(error),
    }
}

/// What took the place of what was lost, and of that its user is told; nothing if it is not to be moved.
fn in_its_place(
    arguments: &RunArguments,
    session: &Session,
    lost: &Hold,
    why: &str,
) -> Result<Option<(Hold, Reservation)>> {
    let next = lost.moved(&session.cluster, session.application.on_loss());
    let next = next.with_context(|| format!("{why}; it could not be moved"))?;
    if let Some((_, Reservation { handle, grant: Some(grant), .. })) = &next
        && !arguments.json
    {
        let words = words::grant(grant, &in_local_time);
        println!("{why}\nit begins anew as {handle}: {words}");
    }
    Ok(next)
}

/// How long a run may take from now on.
fn asked_for(arguments: &RunArguments, session: &Session) -> AskedFor {
    AskedFor { lasting: rate::limited(arguments, session.application.timeout()), from: now() }
}

fn tell_outcome(
    arguments: &RunArguments,
    session: &Session,
    decision: Option<&Decision>,
    waited: Option<Nanos>,
    promised: &Promised,
    hold: &Hold,
    ran: &Ran,
) -> Result<()> {
    let reserved = !arguments.unprotected;
    if arguments.json {
        let named = |decision| named::decision(decision, session.cluster.topology());
        return print_json(&Outcome {
            decision: decision.map(named).transpose()?,
            reservation: Some(hold.handle()),
            reserved,
            unenforced: hold.unenforced(),
            actual_nanos: Some(ran.time.get()),
            waited_nanos: waited.map(Nanos::get),
            refusal: None,
            lasting: None,
        });
    }
    let with = if reserved { "with its reservation" } else { "without a reservation" };
    let beside = story::beside_promise(ran.time, promised.time);
    println!("actual: {} {with}, {beside}", ran.time.rounded());
    Ok(())
}

fn tell_refusal(
    arguments: &RunArguments,
    session: &Session,
    decision: &Decision,
    waited: Option<Nanos>,
    refusal: Option<&Refusal>,
) -> Result<()> {
    if arguments.json {
        return print_json(&Outcome {
            decision: Some(named::decision(decision, session.cluster.topology())?),
            reservation: None,
            reserved: false,
            unenforced: &[],
            actual_nanos: None,
            waited_nanos: waited.map(Nanos::get),
            refusal,
            lasting: refusal.map(|refusal| {
                let AskedFor { lasting, from } = asked_for(arguments, session);
                lasting.told(from, refusal.latest_end_unix_nanos)
            }),
        });
    }
    print!("{}", story::decision(decision, session.cluster.topology()));
    print!("{}", story::confined(&decision.verdict, session.cluster.among()));
    if let Some(refusal) = refusal {
        print!("{}", reservations::beside_decision(refusal, asked_for(arguments, session)));
    }
    Ok(())
}
