//! `keeptime plan`: how a goal would be met, without reserving anything.

use super::reservations::{AskedFor, beside_decision};
use super::{Ending, Session, print_json};
use crate::arguments::{GoalArguments, PlanArguments};
use crate::hold::reserved_for;
use crate::lasting::{Lasting, Source};
use crate::{brokers, named, story};
use anyhow::Result;
use keeptime_credentials::dates::now;
use keeptime_model::reservation::Request;
use keeptime_planner::translate::{Decision, Verdict};

/// Plans and prints the whole way.
pub fn run(arguments: &PlanArguments) -> Result<Ending> {
    let session = Session::open(&arguments.application)?;
    let request = request(&session, &arguments.goal)?;
    let broker = session.cluster.broker()?;
    let decision = broker.explain(&request).map_err(brokers::failure)?;
    let is_refused = matches!(decision.verdict, Verdict::Refused(_));
    if arguments.json {
        print_json(&named::decision(&decision, session.cluster.topology())?)?;
    } else {
        print!("{}", story::decision(&decision, session.cluster.topology()));
        print!("{}", story::confined(&decision.verdict, session.cluster.among()));
    }
    if is_refused
        && !arguments.json
        // Where others have given something back meanwhile, there is nothing to add.
        && let Err(error) = broker.consider(&request)
        && let Some(refusal) = error.problem().and_then(|problem| problem.refusal.as_ref())
    {
        let lasting = Lasting::new(Source::Timeout, Some(session.application.timeout()));
        print!("{}", beside_decision(refusal, AskedFor { lasting, from: now() }));
    }
    Ok(if is_refused { Ending::Refused } else { Ending::Done })
}

/// How the broker would decide about a goal now, for as long as a run may take.
///
/// # Errors
/// A goal that does not fit the application, or a broker that does not answer.
pub fn explain(session: &Session, goal: &GoalArguments) -> Result<Decision> {
    let request = request(session, goal)?;
    session.cluster.broker()?.explain(&request).map_err(brokers::failure)
}

fn request(session: &Session, goal: &GoalArguments) -> Result<Request> {
    let among = session.cluster.among().clone();
    let duration_nanos = Some(reserved_for(session.application.timeout()));
    Ok(Request { among, duration_nanos, ..Request::new(session.ask(goal)?) })
}
