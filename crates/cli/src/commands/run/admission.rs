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
use keeptime_engine::Refusal;
use keeptime_model::reservation::Request;
use keeptime_planner::translate::{Decision, Plan, Verdict};

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

/// Asks the broker to keep a goal: it plans and reserves in one step. With `spare` the run may use bandwidth
/// that nobody has reserved, too.
///
/// # Errors
/// If the broker does not answer, or what it planned cannot be had: an agent refuses or is silent, or
/// the user has had their share. That is a [`ClientError`] with the refusal.
pub fn admit(session: &Session, goal: &GoalArguments, spare: bool) -> Result<Admitted> {
    let broker = session.cluster.broker()?;
    let asked = Request { spare, ..Request::new(session.ask(goal)?) };
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
