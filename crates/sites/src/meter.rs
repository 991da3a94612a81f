//! Loads from what balancers counted. A balancer that does not answer makes its site silent, and
//! silence counts as loaded.

use keeptime_balancers::front::Sight;
use keeptime_balancers::traffic::Observed;
use keeptime_model::name::Name;
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::load::{Loads, SiteLoad};
use std::collections::BTreeMap;

/// What was counted before, so that differences can be told.
#[derive(Debug, Default)]
pub struct Meter {
    counted: BTreeMap<(Name, String), Counted>,
    at: Option<Nanos>,
}

/// One balancer's counts of one site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counted {
    /// Requests that nodes were sent since it started.
    served: u64,
    queued: u64,
    in_flight: u64,
}

impl Meter {
    /// Takes in what the balancers of each site said at `now`. Loads are in the order of `sites` and
    /// `nodes`.
    ///
    /// A node is busy while it has a request in flight: looked at often enough, the part of the looks is
    /// the part of the time.
    pub fn loads(
        &mut self,
        now: Nanos,
        sights: &BTreeMap<Name, Vec<Sight>>,
        sites: &[Name],
        nodes: &[Name],
    ) -> Loads {
        let interval = now.saturating_sub(self.at.unwrap_or(now));
        self.at = Some(now);
        let mut loads = Loads::silent(sites.len(), nodes.len(), interval);
        for (at, site) in sites.iter().enumerate() {
            loads.sites[at] = sights.get(site).and_then(|sights| self.site(site, sights));
        }
        for (at, node) in nodes.iter().enumerate() {
            loads.nodes[at] = busy(node, sights);
        }
        loads
    }

    /// The sum over the site's balancers; nothing if one says nothing, or was not asked before.
    fn site(&mut self, site: &Name, sights: &[Sight]) -> Option<SiteLoad> {
        // All are looked at: what one counted must not wait for another to answer.
        let each: Vec<_> = sights.iter().map(|sight| self.balancer(site, sight)).collect();
        each.into_iter().try_fold(SiteLoad::default(), |sum, load| {
            let load = load?;
            Some(SiteLoad {
                arrived: sum.arrived + load.arrived,
                completed: sum.completed + load.completed,
                queued: sum.queued + load.queued,
                in_flight: sum.in_flight + load.in_flight,
            })
        })
    }

    fn balancer(&mut self, site: &Name, sight: &Sight) -> Option<SiteLoad> {
        let key = (site.clone(), sight.balancer.clone());
        let Some(now) = sight.observed.as_ref().ok().and_then(counted) else {
            self.counted.remove(&key);
            return None;
        };
        let before = self.counted.insert(key, now)?;
        // One that has started anew has counted from nothing.
        let served = now.served.checked_sub(before.served)?;
        let arrived = (served + now.queued).saturating_sub(before.queued);
        let completed = (served + before.in_flight).saturating_sub(now.in_flight);
        Some(SiteLoad { arrived, completed, queued: now.queued, in_flight: now.in_flight })
    }
}

/// Nothing of a balancer that does not count.
fn counted(observed: &Observed) -> Option<Counted> {
    let mut counted = Counted { queued: observed.queued, ..Counted::default() };
    for seen in observed.servers.values() {
        counted.served += seen.served?;
        counted.in_flight += seen.in_flight;
    }
    Some(counted)
}

/// Whether any balancer has a request in flight on `node`; nothing if none of those that have it answers.
fn busy(node: &Name, sights: &BTreeMap<Name, Vec<Sight>>) -> Option<Share> {
    let observed = sights.values().flatten().filter_map(|sight| sight.observed.as_ref().ok());
    let seen: Vec<_> = observed.filter_map(|observed| observed.servers.get(node)).collect();
    if seen.is_empty() {
        return None;
    }
    let is_busy = seen.iter().any(|seen| seen.in_flight > 0);
    Some(if is_busy { Share::ONE } else { Share::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_balancers::balancer::BalancerError;
    use keeptime_balancers::traffic::{Seen, Traffic};

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn sight(balancer: &str, served: u64, in_flight: u64, queued: u64) -> Sight {
        let seen = Seen { traffic: Traffic::Off, in_flight, served: Some(served) };
        let servers = [(name("n1"), seen)].into();
        let observed = Ok(Observed { servers, queued, lingering: 0 });
        Sight { balancer: balancer.into(), told: vec![], observed }
    }

    fn see(meter: &mut Meter, at: u64, sights: Vec<Sight>) -> Loads {
        let sights = [(name("shop"), sights)].into();
        meter.loads(Nanos::from_millis(at), &sights, &[name("shop")], &[name("n1"), name("n2")])
    }

    #[test]
    fn differences_are_told_over_all_balancers() {
        let mut meter = Meter::default();
        let first = see(&mut meter, 0, vec![sight("a", 100, 1, 0), sight("b", 7, 0, 0)]);
        assert_eq!(first.sites, [None], "nothing was counted before");
        let second = see(&mut meter, 50, vec![sight("a", 110, 3, 5), sight("b", 8, 0, 0)]);
        let load = SiteLoad { arrived: 16, completed: 9, queued: 5, in_flight: 3 };
        assert_eq!((second.sites[0], second.interval), (Some(load), Nanos::from_millis(50)));
        assert_eq!(second.nodes, [Some(Share::ONE), None], "n2 is nowhere: loaded");
    }

    #[test]
    fn one_that_is_silent_or_begins_anew_makes_the_site_silent() {
        let mut meter = Meter::default();
        see(&mut meter, 0, vec![sight("a", 100, 0, 0)]);
        assert_eq!(see(&mut meter, 50, vec![sight("a", 3, 0, 0)]).sites, [None], "it restarted");
        assert!(see(&mut meter, 100, vec![sight("a", 4, 0, 0)]).sites[0].is_some());
        let ended = Err(BalancerError::Ended { balancer: "a".into() });
        let silent = Sight { balancer: "a".into(), told: vec![], observed: ended };
        let loads = see(&mut meter, 150, vec![silent]);
        assert_eq!((loads.sites[0], loads.nodes[0]), (None, None));
        assert_eq!(see(&mut meter, 200, vec![sight("a", 9, 0, 0)]).sites, [None]);
    }
}
