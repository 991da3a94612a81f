//! `keeptime plan`: how a goal would be met, without reserving anything.

use super::{Ending, Session, print_json};
use crate::arguments::{GoalArguments, PlanArguments};
use crate::story;
use anyhow::Result;
use keeptime_planner::curve::Between;
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::translate::{Decision, Options, Verdict, schedule};

/// Plans and prints the whole way.
pub fn run(arguments: &PlanArguments) -> Result<Ending> {
    let session = Session::open(&arguments.application)?;
    let decision = decide(&session, &session.fitted()?, &arguments.goal)?;
    if arguments.json {
        print_json(&decision)?;
    } else {
        print!("{}", story::decision(&decision, session.cluster.topology()));
    }
    Ok(match decision.verdict {
        Verdict::Planned(_) => Ending::Done,
        Verdict::Refused(_) => Ending::Refused,
    })
}

/// The decision about a goal with what is free now.
///
/// # Errors
/// A goal that does not fit the application, or an agent that does not answer.
pub fn decide(
    session: &Session,
    profile: &FittedProfile,
    arguments: &GoalArguments,
) -> Result<Decision> {
    let goal = arguments.goal()?;
    goal.check(&session.application)?;
    let options = Options { quantile: arguments.quantile, between: Between::Interpolated };
    let free = session.cluster.availability()?;
    Ok(schedule(&goal, profile, session.cluster.index(), &free, &options))
}
