//! Preemption as YARN's capacity scheduler publishes it, with its defaults: a queue for each site, whose
//! capacity is the site's hard guarantee. What nobody is guaranteed goes to queues that ask for it, in proportion
//! to their capacities. Every 3 s queues that have a tenth more than that lose some of it to those that lack:
//! a fifth of what is too much, of all queues together at most a tenth of the cluster, each node 15 s after it was
//! told so. Nodes that no request needs are given back, as containers end. Priorities do not count.

use super::autoscalers::{Candidate, give_back};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use keeptime_pools::holdings::Count;
use keeptime_pools::plan::{Plan, Reason, Step};
use keeptime_pools::policy::{Policy, View};
use keeptime_pools::pool::{SiteIndex, Weight};
use std::collections::BTreeMap;

/// Nodes are handed out with their heartbeats.
const HEARTBEAT: Nanos = Nanos::from_secs(1);
/// `monitoring_interval`, `max_wait_before_kill`.
const LOOK_EVERY: Nanos = Nanos::from_secs(3);
const KILL_AFTER: Nanos = Nanos::from_secs(15);
/// `max_ignored_over_capacity`, `natural_termination_factor`, `total_preemption_per_round`.
const IGNORED: f64 = 0.1;
const OF_SURPLUS: f64 = 0.2;
const OF_CLUSTER: f64 = 0.1;

/// The scheduler.
#[derive(Debug, Default)]
pub struct Yarn {
    handed_out: Nanos,
    looked: Nanos,
    /// Nodes that are to be given back, since when.
    told: BTreeMap<NodeIndex, Nanos>,
}

impl Policy for Yarn {
    fn name(&self) -> &'static str {
        "yarn"
    }

    fn plans(&mut self, view: &View<'_>) -> Vec<Plan> {
        if view.now.saturating_sub(self.handed_out) < HEARTBEAT {
            return Vec::new();
        }
        self.handed_out = view.now;
        let mut counts = view.holdings.counts(view.pool.sites().len());
        let demands: Vec<_> = view.pool.site_indices().map(|site| demand(view, site)).collect();
        let nodes = view.holdings.nodes().count() as u32;
        let guaranteed: Vec<_> = view.pool.sites().iter().map(|s| s.guarantee.hard).collect();
        let ideal = ideal(&demands, &guaranteed, nodes);
        let mut free: Vec<Candidate> = view.holdings.movable().collect();
        let mut plans = give_back(view, &mut counts, &mut free, &demands);
        self.look(view.now, &counts, &free, &ideal, nodes);
        plans.extend(self.hand_out(view, &mut counts, &mut free, &ideal));
        plans
    }
}

impl Yarn {
    /// Tells nodes of queues that have too much, if others lack.
    fn look(
        &mut self,
        now: Nanos,
        counts: &[Count],
        free: &[Candidate],
        ideal: &[u32],
        nodes: u32,
    ) {
        let lacks = counts.iter().zip(ideal).any(|(count, ideal)| count.expected() < *ideal);
        // A node that serves another by now was given back by itself.
        let surplus = |site: SiteIndex| {
            let (count, ideal) = (counts[site.0 as usize], ideal[site.0 as usize]);
            let over = f64::from(count.staying) > f64::from(ideal) * (1.0 + IGNORED);
            if over && lacks { count.staying - ideal } else { 0 }
        };
        self.told.retain(|node, _| {
            let at = free.iter().find(|(free, _)| free == node);
            at.and_then(|(_, from)| *from).is_some_and(|from| surplus(from) > 0)
        });
        if now.saturating_sub(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let mut left = (f64::from(nodes) * OF_CLUSTER).ceil() as usize;
        for site in (0..counts.len()).map(|site| SiteIndex(site as u32)) {
            let of_site = free.iter().filter(|(_, from)| *from == Some(site));
            let (told, others): (Vec<_>, Vec<_>) =
                of_site.map(|(node, _)| *node).partition(|node| self.told.contains_key(node));
            let more = f64::from(surplus(site)) - told.len() as f64;
            let count = ((more.max(0.0) * OF_SURPLUS).ceil() as usize).min(left);
            left -= count;
            self.told.extend(others.into_iter().take(count).map(|node| (node, now)));
        }
    }

    /// Spares, and nodes whose time is over, to the queues that lack the greatest part of their share.
    fn hand_out(
        &mut self,
        view: &View<'_>,
        counts: &mut [Count],
        free: &mut Vec<Candidate>,
        ideal: &[u32],
    ) -> Vec<Plan> {
        let mut plans = Vec::new();
        loop {
            let share = |site: &SiteIndex| {
                let (count, ideal) = (counts[site.0 as usize], ideal[site.0 as usize]);
                f64::from(count.expected()) / f64::from(ideal.max(1))
            };
            let lacks =
                |site: &SiteIndex| counts[site.0 as usize].expected() < ideal[site.0 as usize];
            let sites = view.pool.site_indices().filter(lacks);
            let Some(site) = sites.min_by(|a, b| share(a).total_cmp(&share(b))) else { break };
            let may = |(node, from): &Candidate| {
                let since = self.told.get(node);
                let is_over =
                    since.is_some_and(|since| view.now.saturating_sub(*since) >= KILL_AFTER);
                view.pool.worth(site, *node) != Weight::NONE && (from.is_none() || is_over)
            };
            let best = free.iter().enumerate().filter(|(_, candidate)| may(candidate));
            let Some((at, _)) = best.min_by_key(|(_, (_, from))| from.is_some()) else { break };
            let (node, from) = free.remove(at);
            if let Some(from) = from {
                counts[from.0 as usize].staying -= 1;
                self.told.remove(&node);
            }
            counts[site.0 as usize].coming += 1;
            plans.push(Plan::direct(site, Reason::HighLoad, Step { node, from, to: Some(site) }));
        }
        plans
    }
}

/// Nodes that its requests occupy, one each.
fn demand(view: &View<'_>, site: SiteIndex) -> u32 {
    let guarantee = view.pool.site(site).guarantee;
    let waiting = view.loads.sites[site.0 as usize].map_or(0, |load| load.queued + load.in_flight);
    u32::try_from(waiting).unwrap_or(u32::MAX).clamp(guarantee.hard, guarantee.max)
}

/// What each queue should have: its capacity as far as it asks for it, and the rest in proportion to that.
fn ideal(demands: &[u32], guaranteed: &[u32], nodes: u32) -> Vec<u32> {
    let least = demands.iter().zip(guaranteed).map(|(demand, hard)| *demand.min(hard));
    let mut ideal: Vec<u32> = least.collect();
    for _ in ideal.iter().sum::<u32>()..nodes {
        let normal = |at: &usize| f64::from(ideal[*at]) / f64::from(guaranteed[*at].max(1));
        let asking = (0..demands.len()).filter(|at| ideal[*at] < demands[*at]);
        let Some(next) = asking.min_by(|a, b| normal(a).total_cmp(&normal(b))) else { break };
        ideal[next] += 1;
    }
    ideal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_is_guaranteed_goes_in_proportion_to_what_is() {
        assert_eq!(ideal(&[10, 10], &[2, 2], 8), [4, 4]);
        assert_eq!(ideal(&[10, 10], &[1, 3], 8), [2, 6]);
        assert_eq!(ideal(&[10, 1], &[2, 2], 8), [7, 1]);
        assert_eq!(ideal(&[3, 1], &[2, 2], 8), [3, 1]);
    }

    /// A queue that has ten nodes of twelve, and one that asks for its share.
    #[test]
    fn a_fifth_of_what_is_too_much_is_told_at_a_time_and_each_waits() {
        let mut yarn = Yarn::default();
        let count = |staying| Count { serving: staying, staying, coming: 0 };
        let free: Vec<_> =
            (0..12).map(|node| (NodeIndex(node), Some(SiteIndex(u32::from(node >= 10))))).collect();
        let look = |yarn: &mut Yarn, second| {
            yarn.look(Nanos::from_secs(second), &[count(10), count(2)], &free, &[6, 6], 12);
            yarn.told.len()
        };
        assert_eq!(look(&mut yarn, 3), 1, "a fifth of four");
        assert_eq!(look(&mut yarn, 4), 1, "not before the next look");
        assert_eq!((look(&mut yarn, 6), look(&mut yarn, 9), look(&mut yarn, 12)), (2, 3, 4));
        assert_eq!(look(&mut yarn, 15), 4, "no more than what is too much");
        yarn.look(Nanos::from_secs(18), &[count(10), count(2)], &free, &[10, 2], 12);
        assert!(yarn.told.is_empty(), "nobody lacks anything");
    }
}
