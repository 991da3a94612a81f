//! Loads from what balancers counted and, where they cannot tell, from what nodes count themselves. A balancer
//! that does not answer makes its site silent, and silence counts as loaded.

use crate::cpu::{Cpu, CpuMeter};
use crate::overview::LoadSource;
use crate::record::NodeStanding;
use keeptime_balancers::front::Sight;
use keeptime_balancers::traffic::Observed;
use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::load::{Loads, SiteLoad};
use std::collections::BTreeMap;
use std::time::Instant;

/// What was counted before, so that differences can be told.
#[derive(Debug, Default)]
pub struct Meter {
    /// Of each balancer of each site, and when it counted so much.
    counted: BTreeMap<(Name, String), (Counted, Instant)>,
    cpu: CpuMeter,
    at: Option<Nanos>,
}

/// All that was heard at one look.
#[derive(Debug, Clone, Copy)]
pub struct Heard<'a> {
    /// What the balancers of each site said.
    pub sights: &'a BTreeMap<Name, Vec<Sight>>,
    /// What nodes count themselves; nothing if nobody looks there.
    pub counters: Option<&'a BTreeMap<Name, NodeCounters>>,
}

/// What is known of one node's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLoad {
    /// Whether its balancers have a request in flight on it; nothing if they cannot tell.
    requests: Option<Share>,
    own: Own,
}

/// What a node counts itself of its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    /// Nobody looks there.
    NotLooked,
    /// It should say, and does not.
    Silent,
    /// So much.
    Counted(Cpu),
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
    /// Takes in what was heard at `now`. Loads are in the order of `sites` and `nodes`, and what is known of each
    /// node as well.
    ///
    /// A node is busy while it has a request in flight: looked at often enough, the part of the looks is
    /// the part of the time.
    pub fn loads(
        &mut self,
        now: Nanos,
        heard: Heard<'_>,
        sites: &[Name],
        nodes: &[NodeStanding],
    ) -> (Loads, Vec<NodeLoad>) {
        let interval = now.saturating_sub(self.at.unwrap_or(now));
        self.at = Some(now);
        let mut loads = Loads::silent(sites.len(), nodes.len(), interval);
        for (at, site) in sites.iter().enumerate() {
            let sights = heard.sights.get(site);
            loads.sites[at] = sights.and_then(|sights| self.site(interval, site, sights));
        }
        if let Some(counters) = heard.counters {
            self.cpu.see(now, counters);
        }
        let known: Vec<_> = nodes.iter().map(|node| self.node(now, heard, node)).collect();
        for (at, node) in known.iter().enumerate() {
            loads.nodes[at] = node.busy();
            loads.cpu[at] = node.cpu();
        }
        (loads, known)
    }

    fn node(&self, now: Nanos, heard: Heard<'_>, node: &NodeStanding) -> NodeLoad {
        let own = match heard.counters {
            None => Own::NotLooked,
            Some(_) => self.cpu.cpu(now, &node.name).map_or(Own::Silent, Own::Counted),
        };
        NodeLoad { requests: requests(node, heard.sights), own }
    }

    /// The sum over the site's balancers; nothing if one says nothing, or was not asked before.
    fn site(&mut self, interval: Nanos, site: &Name, sights: &[Sight]) -> Option<SiteLoad> {
        // All are looked at: what one counted must not wait for another to answer.
        let each = sights.iter().map(|sight| self.balancer(interval, site, sight));
        let each: Vec<_> = each.collect();
        each.into_iter().try_fold(SiteLoad::default(), |sum, load| {
            let load = load?;
            Some(SiteLoad {
                arrived: sum.arrived.saturating_add(load.arrived),
                completed: sum.completed.saturating_add(load.completed),
                queued: sum.queued.saturating_add(load.queued),
                in_flight: sum.in_flight.saturating_add(load.in_flight),
            })
        })
    }

    fn balancer(&mut self, interval: Nanos, site: &Name, sight: &Sight) -> Option<SiteLoad> {
        // What it counts is heard a look or some later.
        if sight.is_silent() {
            return None;
        }
        let key = (site.clone(), sight.balancer.clone());
        let Some(now) = sight.observed.as_ref().ok().and_then(counted) else {
            self.counted.remove(&key);
            return None;
        };
        let (before, at) = self.counted.insert(key, (now, sight.at))?;
        // One that has started anew has counted from nothing.
        let served = now.served.checked_sub(before.served)?;
        let arrived = served.saturating_add(now.queued).saturating_sub(before.queued);
        let completed = served.saturating_add(before.in_flight).saturating_sub(now.in_flight);
        let span = sight.at.saturating_duration_since(at).into();
        let [arrived, completed] = [arrived, completed].map(|count| within(count, interval, span));
        Some(SiteLoad { arrived, completed, queued: now.queued, in_flight: now.in_flight })
    }
}

/// As many as would be counted in `interval`, as they were in `span`. Where both are about the same, as they are unless somebody
/// was slow, they are taken for the same: small numbers are not rounded.
fn within(count: u64, interval: Nanos, span: Nanos) -> u64 {
    let (interval, span) = (u128::from(interval.get()), u128::from(span.get()));
    if interval < 2 * span && span < 2 * interval || span == 0 {
        return count;
    }
    let rounded = (u128::from(count) * interval + span / 2) / span;
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

/// Nothing of a balancer that does not count.
fn counted(observed: &Observed) -> Option<Counted> {
    let mut counted = Counted { queued: observed.queued, ..Counted::default() };
    for seen in observed.servers.values() {
        counted.served = counted.served.saturating_add(seen.served?);
        counted.in_flight = counted.in_flight.saturating_add(seen.in_flight);
    }
    Some(counted)
}

/// Whether any balancer has a request in flight on `node`; nothing if none of those that have it answers, or one
/// of those that send it requests does not and the others have none.
fn requests(node: &NodeStanding, sights: &BTreeMap<Name, Vec<Sight>>) -> Option<Share> {
    let observed = sights.values().flatten().filter_map(|sight| sight.observed.as_ref().ok());
    let mut seen = observed.filter_map(|observed| observed.servers.get(&node.name)).peekable();
    seen.peek()?;
    if seen.any(|seen| seen.in_flight > 0) {
        return Some(Share::ONE);
    }
    let sending = node.site.as_ref().and_then(|site| sights.get(site)).into_iter().flatten();
    let mut sending = sending.map(|sight| sight.observed.is_ok());
    sending.all(|answers| answers).then_some(Share::default())
}

impl NodeLoad {
    /// How busy it is: by the balancers where they can tell, or else by itself.
    fn busy(&self) -> Option<Share> {
        self.requests.or_else(|| Some(self.own.counted()?.used))
    }

    /// How much of its CPU is used; all of it if it should say and does not.
    fn cpu(&self) -> Share {
        match self.own {
            Own::NotLooked => Share::default(),
            Own::Silent => Share::ONE,
            Own::Counted(cpu) => cpu.used,
        }
    }

    /// How much of it is taken, and who says so; nothing if nobody does, and it counts as loaded.
    pub fn taken(&self) -> Option<(Share, LoadSource)> {
        match (self.requests, self.own) {
            (Some(requests), Own::NotLooked) => Some((requests, LoadSource::Balancers)),
            (Some(requests), _) if requests > Share::default() => {
                Some((requests, LoadSource::Balancers))
            }
            (_, Own::Counted(cpu)) => Some((cpu.used, LoadSource::Counters)),
            (_, Own::Silent) | (None, Own::NotLooked) => None,
        }
    }

    /// Threads that run or wait for its CPU, if it says.
    pub fn runnable(&self) -> Option<u32> {
        Some(self.own.counted()?.runnable)
    }
}

impl Own {
    fn counted(self) -> Option<Cpu> {
        match self {
            Self::Counted(cpu) => Some(cpu),
            Self::NotLooked | Self::Silent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_balancers::balancer::BalancerError;
    use keeptime_balancers::traffic::{Seen, Traffic};
    use keeptime_model::topology::NodeIndex;
    use keeptime_model::units::CpuPpm;
    use std::sync::LazyLock;
    use std::time::Duration;

    /// When looks begin.
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn sight(balancer: &str, served: u64, in_flight: u64, queued: u64) -> Sight {
        let seen = Seen { traffic: Traffic::Off, in_flight, served: Some(served) };
        let servers = [(name("n1"), seen)].into();
        let observed = Ok(Observed { servers, queued, ..Observed::default() });
        Sight { balancer: balancer.into(), told: vec![], lacking: vec![], observed, at: *BEGAN }
    }

    fn node(name: &str, site: Option<&str>) -> NodeStanding {
        let site = site.map(self::name);
        let cpu = CpuPpm::from_percent(100);
        let name = self::name(name);
        NodeStanding {
            name,
            address: None,
            site,
            is_connected: true,
            is_out_of_service: false,
            cpu,
            cpu_free: cpu,
        }
    }

    fn see(meter: &mut Meter, at: u64, sights: Vec<Sight>) -> Loads {
        hear(meter, at, sights, None).0
    }

    /// The first node serves the shop.
    fn hear(
        meter: &mut Meter,
        at: u64,
        sights: Vec<Sight>,
        counters: Option<&BTreeMap<Name, NodeCounters>>,
    ) -> (Loads, Vec<NodeLoad>) {
        let at_once = *BEGAN + Duration::from_millis(at);
        let heard_at = |sight| Sight { at: at_once, ..sight };
        let sights = [(name("shop"), sights.into_iter().map(heard_at).collect())].into();
        let heard = Heard { sights: &sights, counters };
        let nodes = [node("n1", Some("shop")), node("n2", None)];
        meter.loads(Nanos::from_millis(at), heard, &[name("shop")], &nodes)
    }

    fn silent(balancer: &str) -> Sight {
        let ended = Err(BalancerError::Ended { balancer: balancer.into() });
        Sight { observed: ended, ..sight(balancer, 0, 0, 0) }
    }

    /// Counters of both nodes, of which 30 and 80 % are used.
    fn counters(at: u64) -> BTreeMap<Name, NodeCounters> {
        let count = |percent| NodeCounters {
            at: Nanos::from_millis(at),
            cpu_used: Nanos::new(Nanos::from_millis(at).get() * percent / 100),
            cpu: CpuPpm::from_percent(100),
            runnable: 3,
        };
        [(name("n1"), count(30)), (name("n2"), count(80))].into()
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

    // What a balancer says is taken as it is; it must not end the loop of all sites.
    #[test]
    fn counts_beyond_all_reason_are_much_and_no_more() {
        let mut meter = Meter::default();
        let most = |balancer| {
            let mut sight = sight(balancer, u64::MAX, u64::MAX, u64::MAX);
            let seen = Seen { traffic: Traffic::Off, in_flight: 1, served: Some(1) };
            sight.observed.as_mut().unwrap().servers.insert(name("n2"), seen);
            sight
        };
        see(&mut meter, 0, vec![sight("a", 0, u64::MAX, 0), sight("b", 0, u64::MAX, 0)]);
        let load = see(&mut meter, 50, vec![most("a"), most("b")]).sites[0].unwrap();
        assert_eq!((load.arrived, load.queued, load.in_flight), (u64::MAX, u64::MAX, u64::MAX));
    }

    #[test]
    fn one_that_is_silent_or_begins_anew_makes_the_site_silent() {
        let mut meter = Meter::default();
        see(&mut meter, 0, vec![sight("a", 100, 0, 0)]);
        assert_eq!(see(&mut meter, 50, vec![sight("a", 3, 0, 0)]).sites, [None], "it restarted");
        assert!(see(&mut meter, 100, vec![sight("a", 4, 0, 0)]).sites[0].is_some());
        let loads = see(&mut meter, 150, vec![silent("a")]);
        assert_eq!((loads.sites[0], loads.nodes[0]), (None, None));
        assert_eq!(see(&mut meter, 200, vec![sight("a", 9, 0, 0)]).sites, [None]);
    }

    // Goal: the load of a site is known whose balancer is slow, so that every other look hears nothing of it. Method: ten requests
    // in each of two looks.
    #[test]
    fn what_was_counted_over_a_look_without_an_answer_is_of_both() {
        let mut meter = Meter::default();
        see(&mut meter, 0, vec![sight("a", 100, 0, 0)]);
        let waits = Err(BalancerError::Silent { balancer: "a".into(), seconds: 0 });
        let loads = see(&mut meter, 50, vec![Sight { observed: waits, ..silent("a") }]);
        assert_eq!(loads.sites, [None]);
        let load = see(&mut meter, 100, vec![sight("a", 120, 0, 0)]).sites[0].unwrap();
        assert_eq!((load.arrived, load.completed), (10, 10));
    }

    fn percent(percent: u32) -> Share {
        Share::from_percent(percent).unwrap()
    }

    #[test]
    fn where_balancers_answer_their_word_stands_and_counters_tell_of_others() {
        let mut meter = Meter::default();
        // The balancer has a server for each node, and sends requests to the first.
        let both = |in_flight| {
            let mut sight = sight("a", 100, in_flight, 0);
            let spare = Seen { traffic: Traffic::Off, in_flight: 0, served: Some(0) };
            sight.observed.as_mut().unwrap().servers.insert(name("n2"), spare);
            vec![sight]
        };
        hear(&mut meter, 0, both(0), Some(&counters(0)));
        let (loads, known) = hear(&mut meter, 100, both(0), Some(&counters(100)));
        assert_eq!(loads.nodes, [Some(Share::default()); 2], "no request is in flight");
        assert_eq!(loads.cpu, [percent(30), percent(80)]);
        let taken: Vec<_> = known.iter().map(NodeLoad::taken).collect();
        let by_itself = |share| Some((percent(share), LoadSource::Counters));
        assert_eq!(taken, [by_itself(30), by_itself(80)]);
        let (loads, known) = hear(&mut meter, 200, both(1), Some(&counters(200)));
        assert_eq!(loads.nodes, [Some(Share::ONE), Some(Share::default())]);
        assert_eq!(known[0].taken(), Some((Share::ONE, LoadSource::Balancers)));
        let (loads, known) = hear(&mut meter, 300, both(0), None);
        assert_eq!((loads.nodes[1], loads.cpu[1]), (Some(Share::default()), Share::default()));
        assert_eq!(known[1].taken(), Some((Share::default(), LoadSource::Balancers)));
    }

    #[test]
    fn what_balancers_cannot_tell_nodes_tell_themselves_and_silence_counts_as_loaded() {
        let mut meter = Meter::default();
        hear(&mut meter, 0, vec![silent("a")], Some(&counters(0)));
        let (loads, known) = hear(&mut meter, 100, vec![silent("a")], Some(&counters(100)));
        assert_eq!((&loads.sites[..], loads.busy(NodeIndex(0))), (&[None][..], percent(30)));
        assert_eq!(known[1].taken(), Some((percent(80), LoadSource::Counters)));
        assert_eq!(known[1].runnable(), Some(3));
        // The counters do not get newer either.
        let (loads, known) = hear(&mut meter, 700, vec![silent("a")], Some(&counters(100)));
        assert_eq!((loads.nodes[0], loads.cpu[0]), (None, Share::ONE));
        assert_eq!((known[0].taken(), known[0].runnable()), (None, None));
        // A spare of which its balancers know no request, and of whose processors nothing is known.
        let (loads, _) = hear(&mut meter, 800, vec![sight("a", 1, 0, 0)], Some(&counters(100)));
        assert_eq!(
            (loads.nodes[0], loads.taken(NodeIndex(0))),
            (Some(Share::default()), Share::ONE)
        );
    }

    /// One of two balancers of a site hangs: what it has in flight on the site's node nobody knows.
    #[test]
    fn a_node_whose_own_balancer_hangs_does_not_look_idle_to_the_others() {
        let mut meter = Meter::default();
        let loads = see(&mut meter, 0, vec![sight("a", 1, 0, 0), silent("b")]);
        assert_eq!(loads.nodes[0], None);
        let loads = see(&mut meter, 50, vec![sight("a", 1, 2, 0), silent("b")]);
        assert_eq!(loads.nodes[0], Some(Share::ONE));
    }
}
