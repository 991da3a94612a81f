//! Nodes that are out of service: they leave sites that can do without them.

use super::{Hindrances, Moving, Phase, Steering, least};
use crate::record::NodeStanding;
use keeptime_model::name::Name;
use keeptime_model::site::{HostedSite, SiteSpec};
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Since when what is so that a node waits for which is out of service.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// Since when nodes that serve a site are out of service.
    out_since: BTreeMap<Name, Nanos>,
    /// Of sites with such nodes: what else serves them, and since when that is so and nothing is on its way to them.
    settled: BTreeMap<Name, (BTreeSet<Name>, Nanos)>,
    /// Since when sites with such nodes can spare some.
    sparing_since: BTreeMap<Name, Nanos>,
}

/// So long a node serves on that is out of service, and so long after the last change of its site's nodes: that finds others
/// meanwhile, if there are any.
const SERVES_ON_FOR: Nanos = Nanos::from_secs(10);
/// So long at most when its site can spare one, whatever changes.
const SERVES_ON_MOST: Nanos = Nanos::from_secs(60);

impl Steering {
    /// Nodes of a site that are out of service, and would have left it by now: its hard guarantee needs them. None where all
    /// nodes are out of service.
    pub fn kept_out_of_service(&self, now: Nanos, site: &SiteSpec) -> Vec<Name> {
        if self.service.out_since.is_empty() || !self.is_any_in_service() {
            return Vec::new();
        }
        let leaving = self.dispensable(site);
        let is_kept = |node: &&NodeStanding| {
            !leaving.contains(&&node.name)
                && !self.is_down(&site.name, &node.name)
                && self.out_for(now, &node.name) >= SERVES_ON_FOR
        };
        let kept = self.out_of_service(&site.name).filter(is_kept);
        kept.map(|node| node.name.clone()).collect()
    }

    /// Notes which nodes are out of service. Those that are in service again serve on, and so do those that another site was
    /// to get, which gets none of these.
    pub(super) fn follow_service(&mut self, now: Nanos) {
        let out = self.standing.nodes.iter().filter(|node| node.is_out_of_service);
        let out: BTreeMap<_, _> =
            out.filter_map(|node| Some((node.name.clone(), node.site.clone()?))).collect();
        self.service.out_since.retain(|node, _| out.contains_key(node));
        for node in out.keys() {
            self.service.out_since.entry(node.clone()).or_insert(now);
        }
        let is_over = |(node, moving): &(&Name, &Moving)| {
            let is_out = out.contains_key(*node);
            let is_in_vain = if moving.is_out { !is_out } else { is_out && moving.to.is_some() };
            moving.phase == Phase::Draining && is_in_vain
        };
        let over = self.moves.iter().filter(is_over).map(|(node, _)| node.clone());
        for node in over.collect::<Vec<_>>() {
            self.call_back(now, &node);
        }
        let sites: BTreeSet<_> = out.into_values().collect();
        self.service.settled.retain(|site, _| sites.contains(site));
        for site in sites {
            let others = self.standing.nodes.iter();
            let others = others.filter(|node| node.is_there() && self.stays(node, &site));
            let others: BTreeSet<_> = others.map(|node| node.name.clone()).collect();
            let is_awaited = self.is_awaited(&site);
            let settled =
                self.service.settled.entry(site).or_insert_with(|| (BTreeSet::new(), now));
            if settled.0 != others || is_awaited {
                *settled = (others, now);
            }
        }
    }

    /// Whether a node is on its way to `site`.
    fn is_awaited(&self, site: &Name) -> bool {
        self.moves.values().any(|moving| moving.to.as_ref() == Some(site))
    }

    /// Nodes that are out of service leave sites that can do without them. The policy does not count on them any more: what it
    /// found their sites instead serves by now. Where all nodes are out of service everything stays as it is.
    pub(super) fn take_out(&mut self, now: Nanos, hindrances: &Hindrances) {
        if self.service.out_since.is_empty() || !self.is_any_in_service() {
            self.service.sparing_since.clear();
            return;
        }
        let is_for = |since: &Nanos, least| now.saturating_sub(*since) >= least;
        let (mut leaving, mut sparing_since) = (Vec::new(), BTreeMap::new());
        for HostedSite { spec, is_leaving } in &self.standing.sites {
            let (site, dispensable) = (&spec.name, self.dispensable(spec));
            if dispensable.is_empty() {
                continue;
            }
            let sparing = self.service.sparing_since.get(site).copied().unwrap_or(now);
            sparing_since.insert(site.clone(), sparing);
            let is_unknown = hindrances.failing.contains(site) || hindrances.unheard.contains(site);
            if *is_leaving || is_unknown || self.left_alone.contains_key(site) {
                continue;
            }
            // What was just decided is on its way by now.
            let is_settled = self
                .service
                .settled
                .get(site)
                .is_some_and(|(_, since)| is_for(since, SERVES_ON_FOR))
                && !self.is_awaited(site);
            let goes = |node: &&Name| {
                let out_for = self.out_for(now, node);
                let is_time = |least| out_for >= least && is_for(&sparing, least);
                let is_soon = is_time(SERVES_ON_FOR) && is_settled;
                !self.refused.contains_key(*node) && (is_soon || is_time(SERVES_ON_MOST))
            };
            let going = dispensable.into_iter().filter(goes);
            leaving.extend(going.map(|node| (node.clone(), site.clone())));
        }
        self.service.sparing_since = sparing_since;
        for (node, site) in leaving {
            let why = "it is out of service".into();
            self.moves.insert(node, Moving { is_out: true, ..Moving::away(site, why, now) });
        }
    }

    /// Nodes that a site has, that are out of service, and that are not on their way.
    fn out_of_service(&self, site: &Name) -> impl Iterator<Item = &NodeStanding> {
        let nodes = self.standing.nodes.iter();
        nodes.filter(move |node| node.is_out_of_service && self.stays(node, site))
    }

    fn out_for(&self, now: Nanos, node: &Name) -> Nanos {
        self.service.out_since.get(node).map_or(Nanos::new(0), |since| now.saturating_sub(*since))
    }

    fn is_any_in_service(&self) -> bool {
        self.standing.nodes.iter().any(NodeStanding::is_there)
    }

    /// Nodes of a site that are out of service, and without which it has its hard guarantee, and a node at least; of those that
    /// answer as many as it has more, those first that have been out of service for longest.
    fn dispensable(&self, site: &SiteSpec) -> Vec<&Name> {
        let least = least(site);
        let answering = self.answering(&site.name);
        let mut spare = answering.saturating_sub(least);
        let mut out: Vec<_> = self.out_of_service(&site.name).filter(|n| n.is_connected).collect();
        out.sort_by_key(|node| self.service.out_since.get(&node.name));
        let names = out.into_iter().map(|node| &node.name);
        let is_dispensable = |node: &&Name| {
            if self.is_down(&site.name, node) {
                return answering >= least;
            }
            let is_spare = spare > 0;
            spare = spare.saturating_sub(1);
            is_spare
        };
        names.filter(is_dispensable).collect()
    }
}
