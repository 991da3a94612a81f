//! Pools for tests, and a policy whose needs are given instead of estimated.

#![allow(dead_code, reason = "not every test file uses all of it")]

pub mod properties;

use self::properties::{keeps_hard, neglected, owed, starving};
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::holdings::Place;
use keeptime_pools::keeptime::allocation::{Need, allocate};
use keeptime_pools::keeptime::reversals::Reversals;
use keeptime_pools::keeptime::shortages::Shortages;
use keeptime_pools::load::Loads;
use keeptime_pools::plan::{Move, Plan};
use keeptime_pools::policy::{Policy, View};
use keeptime_pools::pool::{Guarantee, KindIndex, Pool, Site, Weight};
use keeptime_pools::pools::{Event, Pools};
use std::collections::VecDeque;

/// Site number `at`.
pub fn site(at: usize, guarantee: Guarantee, priority: u32, weights: &[u32]) -> Site {
    let name = format!("site-{at}").parse().unwrap();
    let weights = weights.iter().map(|w| Weight::try_from(*w).unwrap()).collect();
    Site { name, guarantee, priority, weights }
}

/// So many nodes of each kind; nothing if the hard guarantees cannot be kept.
pub fn try_pool(nodes: &[usize], sites: Vec<Site>) -> Option<Pool> {
    let names = (0..nodes.len()).map(|kind| format!("kind-{kind}").parse().unwrap()).collect();
    let of_kind = |(kind, count): (usize, &usize)| vec![KindIndex(kind as u32); *count];
    Pool::new(names, nodes.iter().enumerate().flat_map(of_kind).collect(), sites).ok()
}

/// So many nodes of each kind.
pub fn pool(nodes: &[usize], sites: Vec<Site>) -> Pool {
    try_pool(nodes, sites).unwrap()
}

/// Our allocation for needs that are given, one list for each decision; the last one stays.
#[derive(Debug)]
pub struct Fixed {
    needs: VecDeque<Vec<Need>>,
    shortages: Shortages,
    reversals: Reversals,
}

impl Fixed {
    pub fn new(needs: Vec<Need>) -> Self {
        Self::changing(vec![needs])
    }

    pub fn changing(needs: Vec<Vec<Need>>) -> Self {
        let reversals = Reversals::new(Nanos::from_secs(60));
        Self { needs: needs.into(), shortages: Shortages::default(), reversals }
    }

    fn last(&self) -> Vec<Need> {
        self.needs.back().unwrap().clone()
    }
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn plans(&mut self, view: &View<'_>) -> Vec<Plan> {
        let needs = self.needs.front().unwrap();
        let plans = allocate(view, needs, &mut self.shortages, &mut self.reversals);
        if self.needs.len() > 1 {
            self.needs.pop_front();
        }
        plans
    }
}

/// Loads that say nothing of sites, all nodes busy.
pub fn busy(pool: &Pool) -> Loads {
    let (sites, nodes) = (pool.sites().len(), pool.nodes().len());
    let mut loads = Loads::silent(sites, nodes, Nanos::from_millis(100));
    loads.nodes.fill(Some(Share::ONE));
    loads
}

/// Ends `moves` and all that follow from them; no site falls below its hard guarantee.
pub fn finish(pools: &mut Pools, now: Nanos, moves: Vec<Move>) {
    let mut queue = VecDeque::from(moves);
    while let Some(next) = queue.pop_front() {
        let before = pools.holdings().clone();
        queue.extend(pools.happened(now, Event::Arrived(next.node)));
        assert!(keeps_hard(pools.pool(), &before, pools.holdings()), "{pools:?}");
    }
}

/// Brings a pool to rest within so many `decisions`; all four properties hold.
pub fn settle(pool: &Pool, places: Vec<Place>, policy: Fixed, decisions: usize) {
    let needs = policy.last();
    let mut pools = Pools::new(pool.clone(), places, Box::new(policy));
    let loads = busy(pool);
    for decision in 0..=decisions {
        let now = Nanos::from_secs(decision as u64);
        let before = pools.holdings().clone();
        let moves = pools.decide(now, &loads);
        assert!(keeps_hard(pool, &before, pools.holdings()), "{before:?} {pools:?}");
        if moves.is_empty() {
            assert_rest(&pools, &needs);
            return;
        }
        finish(&mut pools, now, moves);
        if decision == 0 {
            let owed = owed(pool, pools.holdings(), &needs);
            assert!(owed.is_empty() || decisions > 1, "{owed:?} of {needs:?} from {before:?}");
        }
    }
    panic!("no rest after {decisions} decisions: {needs:?} {pools:?}");
}

/// As [`settle`], with needs that change while the first decision's moves are under way.
pub fn settle_late(pool: &Pool, places: Vec<Place>, policy: Fixed) {
    let needs = policy.last();
    let mut pools = Pools::new(pool.clone(), places, Box::new(policy));
    let loads = busy(pool);
    let before = pools.holdings().clone();
    let mut moves = pools.decide(Nanos::from_secs(0), &loads);
    moves.extend(pools.decide(Nanos::from_secs(1), &loads));
    assert!(keeps_hard(pool, &before, pools.holdings()), "{before:?} {pools:?}");
    finish(&mut pools, Nanos::from_secs(1), moves);
    for second in 2..4 {
        let moves = pools.decide(Nanos::from_secs(second), &loads);
        if moves.is_empty() {
            assert_rest(&pools, &needs);
            return;
        }
        finish(&mut pools, Nanos::from_secs(second), moves);
    }
    panic!("no rest: {needs:?} {pools:?}");
}

fn assert_rest(pools: &Pools, needs: &[Need]) {
    let (pool, holdings) = (pools.pool(), pools.holdings());
    assert_eq!(neglected(pool, holdings, needs), None, "{needs:?} {pools:?}");
    assert_eq!(starving(pool, holdings, needs), None, "{needs:?} {pools:?}");
    let counts = holdings.counts(pool.sites().len());
    let hard = counts.iter().zip(pool.sites()).all(|(c, site)| c.serving >= site.guarantee.hard);
    assert!(hard, "no node is down, and a guarantee is not kept: {pools:?}");
    let owed = owed(pool, holdings, needs);
    assert!(owed.is_empty(), "{owed:?} of {needs:?}: {pools:?}");
}
