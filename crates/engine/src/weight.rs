//! What a reservation takes of the broker's memory, about and in bytes: by that nobody fills it. Pure.

use crate::book::Reservation;
use crate::refusal::{Reason, Refusal};
use keeptime_model::application::Parameters;
use keeptime_model::extension::Extension;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Grant, Request, Resources};

/// All of a reservation that is always there, with its places in maps and its key.
const RESERVATION: u64 = 1_024;
/// The name of a node, and where it is.
const NAME: u64 = 64;
/// A flow between two ranks.
const FLOW: u64 = 16;
/// A share of the CPU of one rank.
const SHARE: u64 = 4;
/// The name of a service.
const SERVICE: u64 = 256;
/// A flow that a program asked for while it ran.
const EXTENSION_FLOW: u64 = 48;
/// A parameter without its value.
const PARAMETER: u64 = 128;
/// A drained node, with who said so and why.
const DRAINED: u64 = NAME + 384;
/// What a refusal offers instead, without what can be long.
const OFFER: u64 = 256;

/// Of a reservation, live or over. Its state does not matter. O(parameters).
pub(crate) fn of_reservation(reservation: &Reservation) -> u64 {
    let Reservation { request, grant, refusal, .. } = reservation;
    let refused = refusal.as_ref().map_or(0, of_refusal);
    RESERVATION + of_both(request, grant.as_ref()) + refused
}

/// Of what is asked for and what is granted for it.
pub(crate) fn of_both(request: &Request, grant: Option<&Grant>) -> u64 {
    of_request(request) + grant.map_or(0, of_grant)
}

/// Of what is asked for, as far as it can be long.
pub(crate) fn of_request(request: &Request) -> u64 {
    let asked = match &request.ask {
        Ask::Goal { goal, .. } => of_parameters(&goal.set),
        Ask::Resources(resources) => of_resources(resources),
        Ask::SiteNode(_) => 0,
    };
    asked + request.among.len() as u64 * NAME
}

/// Nodes that are not named will be, in the grant.
fn of_resources(resources: &Resources) -> u64 {
    let Resources { nodes, rank_cpu_ppm, pattern, .. } = resources;
    u64::from(nodes.count()) * NAME + each(rank_cpu_ppm, SHARE) + of_pattern(pattern.as_ref())
}

fn of_grant(grant: &Grant) -> u64 {
    let Grant { nodes, rank_cpu_ppm, pattern, promise, services, extension, .. } = grant;
    each(nodes, NAME)
        + each(rank_cpu_ppm, SHARE)
        + of_pattern(pattern.as_ref())
        + promise.as_ref().map_or(0, |promise| of_parameters(&promise.parameters))
        + each(services, SERVICE)
        + of_extension(extension)
}

/// Of what a program asked for while it ran, as far as it can be long.
pub(crate) fn of_extension(extension: &Extension) -> u64 {
    each(&extension.flows, EXTENSION_FLOW)
}

fn of_refusal(refusal: &Refusal) -> u64 {
    let named = match &refusal.reason {
        Reason::NodesAway(nodes)
        | Reason::NodesKept(nodes)
        | Reason::AgentsSilent(nodes)
        | Reason::NotEnforced { nodes, .. } => each(nodes, NAME),
        Reason::NodesDrained(nodes) => each(nodes, DRAINED),
        _ => 0,
    };
    let goals = refusal
        .counter_offers
        .iter()
        .map(|offer| OFFER + of_parameters(&offer.goal.set) + of_parameters(&offer.parameters));
    let resources =
        refusal.resource_offers.iter().map(|offer| OFFER + of_resources(&offer.resources));
    named + goals.chain(resources).sum::<u64>()
}

fn of_parameters(parameters: &Parameters) -> u64 {
    parameters.values().map(|value| PARAMETER + value.len() as u64).sum()
}

fn of_pattern(pattern: Option<&Pattern>) -> u64 {
    match pattern {
        Some(Pattern::Matrix(flows)) => flows.len() as u64 * FLOW,
        _ => 0,
    }
}

fn each<T>(all: &[T], weight: u64) -> u64 {
    all.len() as u64 * weight
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::goal::Goal;
    use keeptime_model::pattern::RankFlow;
    use keeptime_model::reservation::NodeChoice;

    // A change is weighed by this: what a goal asks for is as long on a thousand nodes as on one.
    #[test]
    fn a_goal_weighs_what_is_granted_for_it() {
        let ask = Ask::Goal { application: "ray".parse().unwrap(), goal: Goal::default() };
        let request = Request::new(ask);
        let on = |count: usize| {
            let nodes: Vec<_> = (1..=count).map(|number| format!("n{number}")).collect();
            let grant = serde_json::json!({ "nodes": nodes, "cpu_ppm": 1, "bits_per_second": 0 });
            let grant: Grant = serde_json::from_value(grant).unwrap();
            of_both(&request, Some(&grant))
        };
        assert_eq!(of_both(&request, None), 0);
        assert_eq!(on(1_000) - on(1), 999 * NAME);
    }

    // Goal: whatever of a request can be long counts, so that none that is long passes for a short one.
    #[test]
    fn what_is_long_weighs_more() {
        let weight = |resources| of_request(&Request::new(Ask::Resources(resources)));
        let nothing = Resources::nothing();
        let least = weight(nothing.clone());
        let names = (1..=100).map(|number| format!("n{number}").parse().unwrap()).collect();
        let named = Resources { nodes: NodeChoice::Named(names), ..nothing.clone() };
        let any = Resources { nodes: NodeChoice::Any(100), ..nothing.clone() };
        assert_eq!(weight(named), weight(any));
        let flows = (1..=100).map(|to| RankFlow { from: 0, to }).collect();
        let pattern = Some(Pattern::Matrix(flows));
        assert_eq!(weight(Resources { pattern, ..nothing.clone() }), least + 100 * FLOW);
        let pattern = Some(Pattern::AllToAll);
        assert_eq!(weight(Resources { pattern, ..nothing }), least);
        let of =
            |value: &str| of_parameters(&Parameters::from([("a".parse().unwrap(), value.into())]));
        assert_eq!(of(&"x".repeat(1_000)), of("") + 1_000);
    }
}
