//! Why a goal cannot be kept now, and the nearest goals that can.

use crate::availability::Availability;
use crate::explanation::{Alternative, CurveTrail, Explanation};
use crate::fitted::FittedProfile;
use crate::placement::{Allocator, Placed, TooFewNodes};
use crate::translate::{Options, qos_translate};
use crate::tree::PlacementIndex;
use keeptime_model::application::Parameters;
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::name::Name;
use keeptime_model::topology::LinkDirection;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A goal that cannot be kept now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Goals that would be admitted now, each with one thing changed where that suffices. Planning
    /// one of them on the same availability with the same options succeeds.
    pub counter_offers: Vec<CounterOffer>,
}

/// Why a goal cannot be kept now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// Nothing was measured with the parameters and number of nodes that the goal sets.
    NotMeasured {
        /// The values that were measured, of each parameter that the goal sets.
        values: BTreeMap<Name, BTreeSet<String>>,
        /// The numbers of nodes that were measured.
        nodes: BTreeSet<u32>,
    },
    /// No matching curve is that fast, up to its knee.
    TooFast {
        /// The bound.
        within_nanos: Nanos,
        /// The best promised time of any matching curve.
        best_nanos: Nanos,
        /// On so many nodes.
        nodes: u32,
        /// With so much bandwidth for each flow.
        bandwidth_bits_per_second: BitsPerSecond,
    },
    /// No matching curve is that slow.
    TooSlow {
        /// The bound.
        at_least_nanos: Nanos,
        /// The longest promised time of any matching curve.
        longest_nanos: Nanos,
    },
    /// Some matching curves are faster, some slower, none has a point between the bounds.
    NoTimeBetween {
        /// The lower bound.
        at_least_nanos: Option<Nanos>,
        /// The upper bound.
        within_nanos: Option<Nanos>,
    },
    /// Too few nodes have the CPU for one more process.
    NodesBusy(NodeShortage),
    /// The cluster has too few nodes with that CPU even when idle.
    NodesMissing(NodeShortage),
    /// A link that every placement found needs has too little free.
    LinkBusy(LinkShortage),
    /// A link is too slow even when idle.
    LinkTooSlow(LinkShortage),
}

/// Too few nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeShortage {
    /// The least number of nodes that satisfies the goal.
    pub needs: u32,
    /// How many have the CPU.
    pub has: u32,
    /// What each needs.
    pub cpu_per_node_ppm: CpuPpm,
}

/// Too little bandwidth on a link: the bottleneck of the best placement found, on the curve that
/// comes nearest to being admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkShortage {
    /// The number of nodes of that curve.
    pub nodes: u32,
    /// The link direction.
    pub direction: LinkDirection,
    /// As people say it: `"n1 > s1"`.
    pub link: String,
    /// How many of the job's flows cross it.
    pub flows: u64,
    /// What they need together, at the least bandwidth that satisfies the goal.
    pub needs_bits_per_second: BitsPerSecond,
    /// What the link has for them.
    pub has_bits_per_second: BitsPerSecond,
    /// What each flow needs.
    pub flow_needs_bits_per_second: BitsPerSecond,
    /// What each flow could have.
    pub flow_has_bits_per_second: BitsPerSecond,
}

/// A goal near the refused one that would be admitted now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CounterOffer {
    /// What differs from the refused goal.
    pub change: Change,
    /// What to ask for.
    pub goal: Goal,
    /// The parameters of the plan that this is about.
    pub parameters: Parameters,
    /// Its number of nodes.
    pub nodes: u32,
    /// Its bandwidth for each flow.
    pub bandwidth_bits_per_second: BitsPerSecond,
    /// Its promised time.
    pub time_nanos: Nanos,
}

/// What a counter-offer changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Change {
    /// A longer upper time bound, the shortest that can be kept now.
    LongerTime,
    /// A smaller lower time bound.
    ShorterTime,
    /// Other values of parameters that the goal sets: as few as possible, the best of those.
    OtherParameters,
    /// Another number of nodes, the nearest.
    OtherNodes,
    /// Several of these at once, since none alone suffices.
    Several,
}

/// Says why, and what instead. `explanation` is that of the refused goal.
pub(crate) fn refuse(
    profile: &FittedProfile,
    index: &PlacementIndex,
    availability: &Availability,
    allocator: &mut Allocator<'_>,
    explanation: &Explanation,
    options: &Options,
) -> Refusal {
    let goal = &explanation.goal;
    let matching: Vec<_> = explanation.curves.iter().filter(|c| c.matches).collect();
    let ranged: Vec<_> = matching.iter().copied().filter(|c| c.range.is_some()).collect();
    let reason = if matching.is_empty() {
        not_measured(goal, profile)
    } else if ranged.is_empty() {
        time_out_of_reach(goal, &matching)
    } else {
        shortage(profile, index, availability, allocator, &ranged)
    };
    let counter_offers = counter_offers(goal, profile, allocator, options);
    Refusal { reason, counter_offers }
}

fn not_measured(goal: &Goal, profile: &FittedProfile) -> Reason {
    let curves = profile.curves();
    let measured = |name: &Name| {
        let values = curves.iter().filter_map(|c| c.parameters().get(name).cloned());
        (name.clone(), values.collect())
    };
    let values = goal.set.keys().map(measured).collect();
    Reason::NotMeasured { values, nodes: curves.iter().map(|c| c.nodes()).collect() }
}

fn time_out_of_reach(goal: &Goal, matching: &[&CurveTrail]) -> Reason {
    let promised = |curve: &CurveTrail, at: usize| curve.promise.time(curve.points[at].time_nanos);
    let knee = |curve: &CurveTrail| {
        let is_knee = |p: &crate::curve::FittedPoint| {
            p.bandwidth_bits_per_second == curve.knee_bits_per_second
        };
        promised(curve, curve.points.iter().position(is_knee).unwrap_or(0))
    };
    let best = matching.iter().min_by_key(|c| (knee(c), c.nodes));
    let longest = matching.iter().map(|c| promised(c, 0)).max();
    match (goal.within, best, goal.at_least, longest) {
        (Some(within), Some(best), ..) if knee(best) > within => Reason::TooFast {
            within_nanos: within,
            best_nanos: knee(best),
            nodes: best.nodes,
            bandwidth_bits_per_second: best.knee_bits_per_second,
        },
        (_, _, Some(at_least), Some(longest)) if longest < at_least => {
            Reason::TooSlow { at_least_nanos: at_least, longest_nanos: longest }
        }
        _ => Reason::NoTimeBetween { at_least_nanos: goal.at_least, within_nanos: goal.within },
    }
}

/// What is missing for the curve that comes nearest to being admitted; among those that an idle
/// cluster would admit, if there are any.
fn shortage(
    profile: &FittedProfile,
    index: &PlacementIndex,
    availability: &Availability,
    allocator: &mut Allocator<'_>,
    ranged: &[&CurveTrail],
) -> Reason {
    let cpu = profile.application().cpu();
    let idle = availability.emptied();
    let mut idle = Allocator::new(index, &idle, profile.flows(), cpu);
    let possible: Vec<_> =
        ranged.iter().copied().filter(|curve| is_held(curve, &mut idle)).collect();
    let (nearest, busy) = if possible.is_empty() {
        (nearest(index, &mut idle, ranged, cpu), false)
    } else {
        (nearest(index, allocator, &possible, cpu), true)
    };
    match (nearest, busy) {
        (Ok(link), true) => Reason::LinkBusy(link),
        (Ok(link), false) => Reason::LinkTooSlow(link),
        (Err(nodes), true) => Reason::NodesBusy(nodes),
        (Err(nodes), false) => Reason::NodesMissing(nodes),
    }
}

fn least(curve: &CurveTrail) -> u64 {
    curve.range.map_or(u64::MAX, |range| range.least_bits_per_second.get())
}

fn placed(curve: &CurveTrail, allocator: &mut Allocator<'_>) -> Result<Placed, TooFewNodes> {
    let found = allocator.max_rate(curve.nodes).cloned();
    // Every curve's number of nodes has its flows (`FittedProfile::new`).
    found.unwrap_or(Err(TooFewNodes { free: 0 }))
}

fn is_held(curve: &CurveTrail, allocator: &mut Allocator<'_>) -> bool {
    placed(curve, allocator).is_ok_and(|placed| placed.rate.get() >= least(curve))
}

fn nearest(
    index: &PlacementIndex,
    allocator: &mut Allocator<'_>,
    curves: &[&CurveTrail],
    cpu: CpuPpm,
) -> Result<LinkShortage, NodeShortage> {
    let mut nearest: Option<(LinkShortage, u128, u128)> = None;
    let mut fewest = NodeShortage { needs: u32::MAX, has: 0, cpu_per_node_ppm: cpu };
    for curve in curves {
        match placed(curve, allocator) {
            Err(TooFewNodes { free }) => {
                fewest = NodeShortage { needs: fewest.needs.min(curve.nodes), has: free, ..fewest };
            }
            Ok(found) => {
                let (has, needs) = (u128::from(found.rate.get()), u128::from(least(curve)));
                let nearer = nearest.as_ref().is_none_or(|(_, best, of)| has * of > best * needs);
                if let Some(link) = link_shortage(index, curve, &found).filter(|_| nearer) {
                    nearest = Some((link, has, needs));
                }
            }
        }
    }
    nearest.map(|(link, ..)| link).ok_or(fewest)
}

fn link_shortage(
    index: &PlacementIndex,
    curve: &CurveTrail,
    placed: &Placed,
) -> Option<LinkShortage> {
    let bottleneck = placed.bottleneck?;
    let flow_needs = BitsPerSecond::new(least(curve));
    Some(LinkShortage {
        nodes: curve.nodes,
        direction: bottleneck.direction,
        link: index.topology().direction_name(bottleneck.direction),
        flows: bottleneck.flows,
        needs_bits_per_second: flow_needs
            .checked_mul(bottleneck.flows)
            .unwrap_or(BitsPerSecond::new(u64::MAX)),
        has_bits_per_second: bottleneck.free,
        flow_needs_bits_per_second: flow_needs,
        flow_has_bits_per_second: placed.rate,
    })
}

/// The nearest goals that would be admitted now. Each comes from planning a relaxed goal, so that it
/// is exact: the point found satisfies the offer by construction.
fn counter_offers(
    goal: &Goal,
    profile: &FittedProfile,
    allocator: &mut Allocator<'_>,
    options: &Options,
) -> Vec<CounterOffer> {
    let mut plan = |relaxed: Goal| qos_translate(&relaxed, profile, allocator, options);
    let mut offers = Vec::new();
    if goal.within.is_some() {
        let found = plan(Goal { within: None, prefer: Preference::Fastest, ..goal.clone() });
        let nearest = found.chosen;
        offers.extend(offer(goal, profile, &found, nearest, Change::LongerTime));
    }
    if goal.at_least.is_some() {
        let found = plan(Goal { at_least: None, prefer: Preference::Cheapest, ..goal.clone() });
        let nearest = alternatives(&found).max_by_key(|(_, _, a)| a.time_nanos);
        let nearest = nearest.map(|(at, ..)| at);
        offers.extend(offer(goal, profile, &found, nearest, Change::ShorterTime));
    }
    if !goal.set.is_empty() {
        let found = plan(Goal { set: Parameters::new(), ..goal.clone() });
        let nearest = alternatives(&found)
            .filter_map(|(at, c, a)| {
                Some((changed(goal, c)?, profile.preference(at), a.time_nanos, at))
            })
            .min();
        let nearest = nearest.map(|(.., at)| at);
        offers.extend(offer(goal, profile, &found, nearest, Change::OtherParameters));
    }
    if let Some(nodes) = goal.nodes {
        let found = plan(Goal { nodes: None, ..goal.clone() });
        let nearest =
            alternatives(&found).min_by_key(|(_, c, a)| (c.nodes.abs_diff(nodes), a.time_nanos));
        let nearest = nearest.map(|(at, ..)| at);
        offers.extend(offer(goal, profile, &found, nearest, Change::OtherNodes));
    }
    if offers.is_empty() {
        let found = plan(Goal { prefer: Preference::Fastest, ..Goal::default() });
        let nearest = alternatives(&found)
            .filter_map(|(at, c, a)| {
                let nodes = goal.nodes.is_some_and(|nodes| nodes != c.nodes);
                Some((changed(goal, c)? + usize::from(nodes), a.time_nanos, at))
            })
            .min();
        let nearest = nearest.map(|(.., at)| at);
        offers.extend(offer(goal, profile, &found, nearest, Change::Several));
    }
    offers
}

fn alternatives(
    explanation: &Explanation,
) -> impl Iterator<Item = (usize, &CurveTrail, Alternative)> {
    explanation
        .curves
        .iter()
        .enumerate()
        .filter_map(|(at, curve)| Some((at, curve, curve.alternative?)))
}

/// How many of the goal's settings `curve` has other values for; nothing if it lacks one of them.
fn changed(goal: &Goal, curve: &CurveTrail) -> Option<usize> {
    let differs = |(name, value): (&Name, &String)| Some(curve.parameters.get(name)? != value);
    goal.set.iter().map(differs).try_fold(0, |sum, differs| Some(sum + usize::from(differs?)))
}

fn offer(
    goal: &Goal,
    profile: &FittedProfile,
    found: &Explanation,
    nearest: Option<usize>,
    change: Change,
) -> Option<CounterOffer> {
    let at = nearest?;
    let (curve, alternative) = (&profile.curves()[at], found.curves[at].alternative?);
    let time = alternative.time_nanos;
    let values =
        |(name, _): (&Name, &String)| Some((name.clone(), curve.parameters().get(name)?.clone()));
    let set = || goal.set.iter().filter_map(values).collect();
    let mut offered = goal.clone();
    match change {
        Change::LongerTime => offered.within = Some(time),
        Change::ShorterTime => offered.at_least = Some(time),
        Change::OtherParameters => offered.set = set(),
        Change::OtherNodes => offered.nodes = Some(curve.nodes()),
        Change::Several => {
            offered.set = set();
            offered.nodes = goal.nodes.map(|_| curve.nodes());
            offered.within = goal.within.map(|within| within.max(time));
            offered.at_least = goal.at_least.map(|at_least| at_least.min(time));
        }
    }
    Some(CounterOffer {
        change,
        goal: offered,
        parameters: Parameters::clone(curve.parameters()),
        nodes: curve.nodes(),
        bandwidth_bits_per_second: alternative.bandwidth_bits_per_second,
        time_nanos: time,
    })
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMeasured { nodes, .. } if nodes.is_empty() => f.write_str(
                "nothing was measured of what the application's file has: the profile has no curve with its \
                 numbers of nodes and its parameters",
            ),
            Self::NotMeasured { values, nodes } => {
                write!(f, "nothing was measured with these settings; measured:")?;
                for (name, values) in values {
                    let values: Vec<_> = values.iter().map(String::as_str).collect();
                    write!(f, " {name} = {};", values.join(", "))?;
                }
                let nodes: Vec<_> = nodes.iter().map(u32::to_string).collect();
                write!(f, " on {} nodes", nodes.join(", "))
            }
            Self::TooFast { within_nanos, best_nanos, nodes, bandwidth_bits_per_second } => write!(
                f,
                "{within_nanos} cannot be promised: the best is {}, on {nodes} nodes with {} for each \
                 flow",
                best_nanos.rounded_up(),
                bandwidth_bits_per_second.rounded_up(),
            ),
            Self::TooSlow { at_least_nanos, longest_nanos } => write!(
                f,
                "no measured run takes as long as {at_least_nanos}: the longest takes {}",
                longest_nanos.rounded_down(),
            ),
            Self::NoTimeBetween { at_least_nanos, within_nanos } => {
                write!(f, "no measured time is")?;
                at_least_nanos.map_or(Ok(()), |t| write!(f, " at least {t}"))?;
                within_nanos.map_or(Ok(()), |t| write!(f, " within {t}"))
            }
            Self::NodesBusy(short) => write!(
                f,
                "needs {} nodes with {} of a CPU free, {} have it now",
                short.needs,
                short.cpu_per_node_ppm.rounded_up(),
                short.has
            ),
            Self::NodesMissing(short) => write!(
                f,
                "needs {} nodes with {} of a CPU, the cluster has {}",
                short.needs,
                short.cpu_per_node_ppm.rounded_up(),
                short.has
            ),
            Self::LinkBusy(short) => write!(f, "not enough bandwidth is free: {short}"),
            Self::LinkTooSlow(short) => write!(f, "the network is too slow: {short}"),
        }
    }
}

impl fmt::Display for LinkShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "on {} nodes, link {} needs {} for {} flows of at least {}, and has {}",
            self.nodes,
            self.link,
            self.needs_bits_per_second.rounded_up(),
            self.flows,
            self.flow_needs_bits_per_second.rounded_up(),
            self.has_bits_per_second.rounded_down()
        )
    }
}

impl fmt::Display for CounterOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} on {} nodes with {} for each flow",
            self.goal.rounded(),
            self.time_nanos.rounded_up(),
            self.nodes,
            self.bandwidth_bits_per_second.rounded_up()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: of a file whose curves were never measured nothing is listed that is not there. Method: with other settings, and none.
    #[test]
    fn what_was_measured_is_told_where_anything_was() {
        let sizes = BTreeSet::from(["5".to_owned(), "9".to_owned()]);
        let values = BTreeMap::from([("size".parse().unwrap(), sizes)]);
        let told = Reason::NotMeasured { values: values.clone(), nodes: [2, 4].into() }.to_string();
        let expected =
            "nothing was measured with these settings; measured: size = 5, 9; on 2, 4 nodes";
        assert_eq!(told, expected);
        let values = values.into_keys().map(|name| (name, BTreeSet::new())).collect();
        let told = Reason::NotMeasured { values, nodes: BTreeSet::new() }.to_string();
        assert!(
            told.starts_with("nothing was measured of what the application's file has: "),
            "{told}"
        );
        assert!(!told.contains("on  nodes") && !told.contains("size"), "{told}");
    }
}
