//! `keeptime plan`: how a goal would be met, without reserving anything.

use super::{Ending, Session, print_json};
use crate::arguments::{GoalArguments, PlanArguments};
use crate::hold::reserved_for;
use crate::{brokers, named, story};
use anyhow::Result;
use keeptime_model::reservation::Request;
use keeptime_planner::translate::{Decision, Verdict};

/// Plans and prints the whole way.
pub fn run(arguments: &PlanArguments) -> Result<Ending> {
    let session = Session::open(&arguments.application)?;
    let decision = explain(&session, &arguments.goal)?;
    if arguments.json {
        print_json(&named::decision(&decision, session.cluster.topology())?)?;
    } else {
        print!("{}", story::decision(&decision, session.cluster.topology()));
    }
    Ok(match decision.verdict {
        Verdict::Planned(_) => Ending::Done,
        Verdict::Refused(_) => Ending::Refused,
    })
}

/// How the broker would decide about a goal now, for as long as a run may take.
///
/// # Errors
/// A goal that does not fit the application, or a broker that does not answer.
pub fn explain(session: &Session, goal: &GoalArguments) -> Result<Decision> {
    let among = session.cluster.among().clone();
    let duration_nanos = Some(reserved_for(session.application.timeout()));
    let request = Request { among, duration_nanos, ..Request::new(session.ask(goal)?) };
    session.cluster.broker()?.explain(&request).map_err(brokers::failure)
}
