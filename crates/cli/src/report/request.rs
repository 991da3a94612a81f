//! The way of one request: six stages as small pictures, then what came of it.

use super::small_chart::{self, Frame, Position, Trail};
use super::{count, curve_name, mbit, seconds};
use crate::record::Request;
use crate::story;
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::name::Name;
use keeptime_model::units::Nanos;
use keeptime_planner::explanation::{CurveTrail, Explanation, Stage};
use keeptime_planner::refusal::Refusal;
use keeptime_planner::translate::{Plan, Verdict};
use maud::{Markup, html};

/// Curves that a key can name without filling the page.
const KEY_MAX: usize = 16;

/// The goal, the stages, and the plan with its run or the refusal.
pub(super) fn section(request: &Request) -> Markup {
    let explanation = &request.decision.explanation;
    html! {
        section {
            h2 { "The way of a request" }
            p { "Asked for: " strong { (goal_text(&request.goal)) } "." }
            p {
                "Six steps lead from all measured curves to one point, as in the figures of \
                 “QoS-aware Middleware to Support Interactive and Resource-Adaptive Applications \
                 on Myrinet Clusters”. Curves that a step rules out are grey, the dashed line is \
                 the time that was asked for, rings are knees and filled circles are points that \
                 can be held now. Times are promised times, which the bound is compared with."
            }
            (stages(explanation))
            @match &request.decision.verdict {
                Verdict::Planned(plan) => (planned(plan, &request.nodes, request.actual_nanos)),
                Verdict::Refused(refusal) => (refused(refusal)),
            }
        }
    }
}

fn stages(explanation: &Explanation) -> Markup {
    let Some(frame) = Frame::new(explanation) else {
        return html! { p { "Nothing was measured, so there is nothing to choose from." } };
    };
    html! {
        (key(explanation))
        div.stages {
            @for (at, stage) in Stage::ALL.into_iter().enumerate() {
                @let (figure, sentence) = sentence(explanation, stage);
                figure {
                    (frame.draw(&trails(explanation, stage), &sentence))
                    figcaption {
                        strong { (at + 1) ". " (title(stage)) } " (" (figure) "). " (sentence)
                    }
                }
            }
        }
    }
}

/// Names all curves, or where these are many those that match the goal.
fn key(explanation: &Explanation) -> Markup {
    let few = explanation.curves.len() <= KEY_MAX;
    let stage = if few { Stage::Measured } else { Stage::Matching };
    let named: Vec<_> = explanation.left_after(stage).take(KEY_MAX).collect();
    html! {
        ul.key {
            @for (index, curve) in &named {
                li { (small_chart::swatch(*index)) (curve_name(&curve.parameters, curve.nodes)) }
            }
            @if named.len() < explanation.curves.len() {
                li { "and " (explanation.curves.len() - named.len()) " more" }
            }
        }
    }
}

fn trails(explanation: &Explanation, stage: Stage) -> Vec<Trail> {
    let left: Vec<_> = explanation.left_after(stage).map(|(index, _)| index).collect();
    let trail = |(index, curve): (usize, &CurveTrail)| {
        let left = left.contains(&index);
        let ring = matches!(stage, Stage::Measured | Stage::Ranged).then(|| knee(curve)).flatten();
        let dot = (stage >= Stage::Held).then(|| alternative(curve)).flatten();
        let range = curve.range.filter(|_| stage >= Stage::Ranged).map(|range| {
            let ends = [range.least_bits_per_second, range.greatest_bits_per_second];
            let [least, greatest] = ends.map(|b| b.as_mbit_f64());
            // From here on what is not free is out of question, too.
            let held = curve.held_bits_per_second.filter(|_| stage >= Stage::Held);
            (least, held.map_or(greatest, |held| greatest.min(held.as_mbit_f64())))
        });
        let [ring, dot] = [ring, dot].map(|mark| mark.filter(|_| left));
        Trail { index, left, range, ring, dot }
    };
    explanation.curves.iter().enumerate().map(trail).collect()
}

fn knee(curve: &CurveTrail) -> Option<Position> {
    let knee = curve.knee_bits_per_second;
    let point = curve.points.iter().find(|p| p.bandwidth_bits_per_second == knee)?;
    Some((knee.as_mbit_f64(), curve.promise.time(point.time_nanos).as_secs_f64()))
}

fn alternative(curve: &CurveTrail) -> Option<Position> {
    let point = curve.alternative?;
    Some((point.bandwidth_bits_per_second.as_mbit_f64(), point.time_nanos.as_secs_f64()))
}

fn title(stage: Stage) -> &'static str {
    match stage {
        Stage::Measured => "Everything that was measured",
        Stage::InTime => "In time",
        Stage::Matching => "As set",
        Stage::Ranged => "Up to the knee",
        Stage::Held => "Held now",
        Stage::Chosen => "Chosen",
    }
}

/// The figure of the thesis that a stage corresponds to, and what the stage did.
fn sentence(explanation: &Explanation, stage: Stage) -> (&'static str, String) {
    let goal = &explanation.goal;
    let left = explanation.left_after(stage).count();
    let curves = count(left, "curve");
    match stage {
        Stage::Measured => ("Figure 3.2", format!("{curves}, each with its knee.")),
        Stage::InTime => ("Figure 3.4", in_time(goal, &curves)),
        Stage::Matching => ("Figure 3.5", matching(goal, &curves)),
        Stage::Ranged => (
            "Figures 3.6 and 3.7",
            format!(
                "More than the knee would waste bandwidth, less than the bound needs would be too \
                 slow: {curves} with something in between."
            ),
        ),
        Stage::Held => (
            "Figure 3.8",
            format!("Nodes and links that are free now can hold a point of {curves}."),
        ),
        Stage::Chosen => ("Figure 3.9", chosen(explanation)),
    }
}

fn in_time(goal: &Goal, curves: &str) -> String {
    match bounds_text(goal) {
        Some(bounds) => format!("{curves} with a promised time {bounds}."),
        None => format!("No time was asked for, so all stay: {curves}."),
    }
}

fn matching(goal: &Goal, curves: &str) -> String {
    match settings_text(goal) {
        Some(settings) => format!("{curves} of these with {settings}."),
        None => format!("Nothing else was set, so all of these stay: {curves}."),
    }
}

fn chosen(explanation: &Explanation) -> String {
    match explanation.chosen() {
        Some((curve, point)) => format!(
            "{} among these: {} with {} Mbit/s for each flow, {}.",
            preference(explanation.goal.prefer),
            curve_name(&curve.parameters, curve.nodes),
            mbit(point.bandwidth_bits_per_second),
            seconds(point.time_nanos)
        ),
        None => "Nothing is left to choose.".into(),
    }
}

fn preference(preference: Preference) -> &'static str {
    match preference {
        Preference::Fastest => "The fastest",
        Preference::Best => "The one with the best parameters",
        Preference::Cheapest => "The one with the fewest resources",
        Preference::Balanced => "The one that is worth most for what it takes from others",
        _ => "The preferred one",
    }
}

/// The goal as its user would say it.
fn goal_text(goal: &Goal) -> String {
    let parts: Vec<_> = [bounds_text(goal), settings_text(goal)].into_iter().flatten().collect();
    let what = if parts.is_empty() { "anything".into() } else { parts.join(", with ") };
    let wish = match goal.prefer {
        Preference::Fastest => "as fast as possible",
        Preference::Best => "with the best parameters that this allows",
        Preference::Cheapest => "with as few resources as possible",
        Preference::Balanced => "as fast as the cluster has room for",
        _ => return what,
    };
    format!("{what}, {wish}")
}

fn bounds_text(goal: &Goal) -> Option<String> {
    match (goal.at_least, goal.within) {
        (None, None) => None,
        (Some(least), None) => Some(format!("of at least {least}")),
        (None, Some(most)) => Some(format!("within {most}")),
        (Some(least), Some(most)) => Some(format!("between {least} and {most}")),
    }
}

fn settings_text(goal: &Goal) -> Option<String> {
    let settings = goal.set.iter().map(|(name, value)| format!("{name} = {value}"));
    let nodes = goal.nodes.map(|nodes| count(nodes as usize, "node"));
    let parts: Vec<_> = settings.chain(nodes).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn planned(plan: &Plan, nodes: &[Name], actual: Nanos) -> Markup {
    let placement = &plan.placement;
    let names: Vec<_> = nodes.iter().map(Name::as_str).collect();
    let error = 100.0 * (actual.as_secs_f64() / plan.time_nanos.as_secs_f64() - 1.0);
    html! {
        h3 { "The plan, and the run that followed" }
        dl {
            dt { "Parameters" } dd { (story::parameters(&plan.parameters)) }
            dt { "Nodes" }
            dd {
                (names.join(", ")) ", with " (placement.cpu) " of a CPU each"
            }
            dt { "Bandwidth" }
            dd {
                (mbit(plan.bandwidth_bits_per_second)) " Mbit/s for each of "
                (count(placement.flows.len(), "flow"))
            }
            dt { "Promised" }
            dd { strong { (seconds(plan.time_nanos)) } ", " (basis(plan)) }
            dt { "Actual" }
            dd { strong { (seconds(actual)) } (format!(" ({error:+.1} %)")) }
        }
    }
}

/// What a promise rests on: a number without its samples says little.
fn basis(plan: &Plan) -> String {
    let runs = count(plan.samples as usize, "run");
    let (quantile, deviations) =
        (plan.quantile, count(plan.deviations as usize, "measured deviation"));
    match (plan.deviations, plan.quantile_asked) {
        (0, None) => format!("what half of the runs take, by {runs} that were measured"),
        (0, Some(_)) => format!("what half of the runs take: {runs} measured support no more"),
        (_, None) => format!("for {quantile} of runs: from {runs} and {deviations}"),
        (_, Some(_)) => format!("for {quantile} of runs: {deviations} support no more"),
    }
}

fn refused(refusal: &Refusal) -> Markup {
    html! {
        h3 { "Refused" }
        p { (refusal.reason) "." }
        @if refusal.counter_offers.is_empty() {
            p { "Nothing near it can be admitted now." }
        } @else {
            p { "These would be admitted now:" }
            ul {
                @for offer in &refusal.counter_offers { li { (offer) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_told_in_words() {
        let goal = Goal { within: Some(Nanos::from_secs(1)), nodes: Some(4), ..Goal::default() };
        assert_eq!(goal_text(&goal), "within 1 s, with 4 nodes, as fast as possible");
        let goal = Goal { prefer: Preference::Cheapest, ..Goal::default() };
        assert_eq!(goal_text(&goal), "anything, with as few resources as possible");
    }
}
