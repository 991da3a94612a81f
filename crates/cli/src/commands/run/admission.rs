//! From a goal to resources that are held, or to why not.

use super::running::as_promised;
use crate::arguments::GoalArguments;
use crate::commands::{Session, plan};
use crate::execute::reserve;
use crate::hold::Hold;
use crate::promised::Promised;
use anyhow::{Result, bail};
use keeptime_broker::client::ClientError;
use keeptime_broker::wire::Problem;
use keeptime_credentials::dates::now;
use keeptime_engine::Refusal;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::reservation::{Request, WAIT_MAX};
use keeptime_model::units::{Nanos, WallTime};
use keeptime_planner::translate::{Decision, Plan, Verdict};
use std::time::Instant;

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

/// How a run is to have what is reserved for its goal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// It may use bandwidth that nobody has reserved, too.
    pub spare: bool,
    /// What keeps its share of the CPU.
    pub mechanism: CpuMechanism,
    /// It waits so long for room, where there is none at once.
    pub wait: Option<Nanos>,
}

/// Asks the broker to keep a goal: it plans and reserves in one step. A manner that has it wait returns when there is room,
/// or when its wait is over.
///
/// # Errors
/// If the broker does not answer, or what it planned cannot be had: an agent refuses or is silent, or
/// the user has had their share. That is a [`ClientError`] with the refusal.
pub fn admit(session: &Session, goal: &GoalArguments, manner: Manner) -> Result<Admitted> {
    admit_from(session, goal, manner, None)
}

/// Asks the broker to keep a goal as [`admit`] does, and where it cannot be kept now, in advance: at the first time at
/// which it can, if that is within `wait` from now. What is held then may not have begun. Where no such time is known, it
/// waits for what others give back before their time, and `tell` hears of that.
///
/// # Errors
/// As [`admit`].
pub(super) fn admit_later(
    session: &Session,
    goal: &GoalArguments,
    manner: Manner,
    wait: Nanos,
    tell: &dyn Fn(String),
) -> Result<Admitted> {
    let latest = now().saturating_add(wait);
    let in_advance = admit_in_advance(session, goal, manner, latest);
    let left = latest.saturating_since(now()).min(WAIT_MAX);
    if left == Nanos::new(0) || !is_refused(&in_advance) {
        return in_advance;
    }
    let most = left.rounded();
    tell(format!(
        "no room now, and none in time as far as is known: waiting for what others give back, \
         {most} at the most"
    ));
    let began = Instant::now();
    let admitted = admit(session, goal, Manner { wait: Some(left), ..manner });
    if matches!(admitted, Ok(Admitted::Held(_))) {
        tell(format!("room after {}", Nanos::from(began.elapsed()).rounded()));
    }
    admitted
}

/// Whether it does not fit, where it was tried. What is in the way may be in the plan, or in what was found for it.
fn is_refused(outcome: &Result<Admitted>) -> bool {
    match outcome {
        Ok(Admitted::Held(_)) => false,
        Ok(Admitted::Refused { .. }) => true,
        Err(error) => {
            let problem = error.downcast_ref::<ClientError>().and_then(ClientError::problem);
            problem.is_some_and(|problem| problem.refusal.is_some())
        }
    }
}

/// Now, or at the first start by `latest` that is known.
fn admit_in_advance(
    session: &Session,
    goal: &GoalArguments,
    manner: Manner,
    latest: WallTime,
) -> Result<Admitted> {
    let mut from = None;
    // Others may be faster than who was told of room.
    for _ in 0..STARTS_TRIED {
        let admitted = admit_from(session, goal, manner, from)?;
        let Admitted::Refused { refusal: Some(refusal), .. } = &admitted else {
            return Ok(admitted);
        };
        match next_start(refusal.earliest_start_unix_nanos, from, latest) {
            Some(start) => from = Some(start),
            None => return Ok(admitted),
        }
    }
    admit_from(session, goal, manner, from)
}

/// The start that is asked for next, where `tried` was refused and the broker names `earliest`.
fn next_start(
    earliest: Option<WallTime>,
    tried: Option<WallTime>,
    latest: WallTime,
) -> Option<WallTime> {
    earliest.filter(|start| *start <= latest && tried.is_none_or(|tried| *start > tried))
}

fn admit_from(
    session: &Session,
    goal: &GoalArguments,
    manner: Manner,
    from: Option<WallTime>,
) -> Result<Admitted> {
    let broker = session.cluster.broker()?;
    let asked = Request {
        spare: manner.spare,
        cpu_mechanism: manner.mechanism,
        from_unix_nanos: from,
        wait_nanos: manner.wait.filter(|_| from.is_none()),
        ..Request::new(session.ask(goal)?)
    };
    let error = match Hold::take(&session.cluster, asked, session.application.timeout()) {
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
    // Where a plan was made that cannot be had, or no decision is remembered, the refusal alone says why.
    if let Some(Problem { handle: Some(handle), refusal: Some(refusal), .. }) = problem
        && let Ok(decision) = broker.decision(*handle)
        && matches!(decision.verdict, Verdict::Refused(_))
    {
        let (decision, refusal) = (Box::new(decision), Some(refusal.clone()));
        return Ok(Admitted::Refused { decision, refusal });
    }
    Err(error)
}

/// The same goal on the same nodes with the same CPU, and no bandwidth, as for a job that has no
/// reservation.
pub(super) fn admit_unprotected(session: &Session, goal: &GoalArguments) -> Result<Admitted> {
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

/// Whoever is that often too slow is told so.
const STARTS_TRIED: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_tried_that_is_in_time_and_new() {
        let at = |seconds: u64| WallTime::from_unix_nanos(seconds * 1_000_000_000);
        let next = |earliest: Option<u64>, tried: Option<u64>| {
            next_start(earliest.map(at), tried.map(at), at(60))
        };
        assert_eq!(next(Some(60), None), Some(at(60)));
        assert_eq!(next(Some(61), None), None, "too late");
        assert_eq!(next(None, None), None, "never");
        assert_eq!(next(Some(50), Some(40)), Some(at(50)), "others were faster");
        assert_eq!(next(Some(40), Some(40)), None, "it would go round");
    }
}
