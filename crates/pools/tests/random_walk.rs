//! Random search in larger pools: loads, silence, deaths, returns, failed moves and late news in any
//! order. Whatever happens, no move takes a site below its hard guarantee; when it stops, everything
//! comes to rest as it should.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::properties::{keeps_hard, neglected, starving};
use common::{Fixed, busy, finish, site, try_pool};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::holdings::Place;
use keeptime_pools::keeptime::allocation::Need;
use keeptime_pools::load::{Loads, SiteLoad};
use keeptime_pools::policy::PolicyKind;
use keeptime_pools::pool::{Guarantee, Pool, SiteIndex};
use keeptime_pools::pools::{Event, Pools};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Debug, Clone)]
enum Happening {
    Decide { arrived: Vec<u64>, silent: Vec<bool>, busy: u32 },
    Arrive(Index),
    Fail(Index),
    Die(Index),
    Return(Index),
    Leave(Index),
    Stay(Index),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (
            prop::collection::vec(prop_oneof![Just(0), 0..200u64, Just(2_000)], 5),
            prop::collection::vec(prop::bool::weighted(0.2), 5),
            0..=100u32,
        ).prop_map(|(arrived, silent, busy)| Happening::Decide { arrived, silent, busy }),
        6 => any::<Index>().prop_map(Happening::Arrive),
        1 => any::<Index>().prop_map(Happening::Fail),
        1 => any::<Index>().prop_map(Happening::Die),
        2 => any::<Index>().prop_map(Happening::Return),
        1 => any::<Index>().prop_map(Happening::Leave),
        1 => any::<Index>().prop_map(Happening::Stay),
    ]
}

fn some_pool() -> impl Strategy<Value = Pool> {
    let numbers = (1..4u32, 0..4u32, 0..6u32, 0..4u32, 1..1_500u32, 0..1_500u32);
    (prop::collection::vec(numbers, 2..=5), 4..14usize, 0..10usize).prop_filter_map(
        "guarantees that cannot be kept",
        |(sites, large, small)| {
            let make = |(at, (hard, soft, max, priority, first, second)): (usize, _)| {
                let (soft, max): (u32, u32) = (hard + soft, hard + soft + max);
                site(at, Guarantee { hard, soft, max }, priority, &[first, second])
            };
            try_pool(&[large, small], sites.into_iter().enumerate().map(make).collect())
        },
    )
}

fn loads(pools: &Pools, arrived: &[u64], silent: &[bool], busy: u32) -> Loads {
    let pool = pools.pool();
    let (sites, nodes) = (pool.sites().len(), pool.nodes().len());
    let mut loads = Loads::silent(sites, nodes, Nanos::from_millis(100));
    let counts = pools.holdings().counts(sites);
    for site in (0..sites).filter(|site| !silent[*site]) {
        let served = u64::from(counts[site].serving) * 10;
        let (completed, queued) = (served.min(arrived[site]), arrived[site].saturating_sub(served));
        let in_flight = served / 10;
        loads.sites[site] = Some(SiteLoad { arrived: arrived[site], completed, queued, in_flight });
    }
    for node in (0..nodes).filter(|node| !silent[node % silent.len()]) {
        loads.nodes[node] = Share::from_percent(busy);
    }
    loads
}

fn apply(pools: &mut Pools, now: Nanos, happening: &Happening) {
    let count = pools.pool().nodes().len();
    let node = |index: &Index| NodeIndex(index.index(count) as u32);
    let before = pools.holdings().clone();
    let event = match happening {
        Happening::Decide { arrived, silent, busy } => {
            let loads = loads(pools, arrived, silent, *busy);
            pools.decide(now, &loads);
            None
        }
        Happening::Arrive(index) => Some(Event::Arrived(node(index))),
        Happening::Fail(index) => Some(Event::Failed(node(index))),
        Happening::Die(index) => Some(Event::Died(node(index))),
        Happening::Return(index) => Some(Event::Returned(node(index))),
        Happening::Leave(index) => Some(Event::Leaves(node(index))),
        Happening::Stay(index) => Some(Event::Stays(node(index))),
    };
    if let Some(event) = event {
        pools.happened(now, event);
    }
    if !matches!(event, Some(Event::Died(_) | Event::Leaves(_))) {
        assert!(keeps_hard(pools.pool(), &before, pools.holdings()), "{happening:?} {pools:?}");
    }
}

/// Nodes at sites that can use them, each hard guarantee first, the rest as `choices` say.
fn spread(pool: &Pool, choices: &[Index]) -> Vec<Place> {
    let mut places = vec![Place::Spare; pool.nodes().len()];
    for node in pool.node_indices() {
        let useful = |s: &SiteIndex| pool.worth(*s, node).thousandths() > 0;
        let sites: Vec<_> = pool.site_indices().filter(useful).collect();
        if let Some(site) = sites.get(choices[node.0 as usize].index(sites.len() + 1)) {
            places[node.0 as usize] = Place::Serving(*site);
        }
    }
    places
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_move_takes_a_site_below_its_hard_guarantee(
        pool in some_pool(),
        choices in prop::collection::vec(any::<Index>(), 24),
        happenings in prop::collection::vec(happening(), 1..120),
        kind in prop::sample::select(vec![
            PolicyKind::Rigid, PolicyKind::ReconfPq, PolicyKind::Keeptime,
        ]),
    ) {
        let places = spread(&pool, &choices);
        let mut pools = Pools::new(pool, places, kind.policy());
        for (turn, happening) in happenings.iter().enumerate() {
            apply(&mut pools, Nanos::from_millis(100 * turn as u64), happening);
        }
    }

    #[test]
    fn when_faults_stop_everything_comes_to_rest_and_nobody_is_neglected(
        pool in some_pool(),
        choices in prop::collection::vec(any::<Index>(), 24),
        needs in prop::collection::vec(
            prop::collection::vec((0..12_000u32, any::<bool>(), 0..12_000u32), 5), 1..6),
        happenings in prop::collection::vec(happening(), 0..40),
    ) {
        let need = |(now, urgent, held): &(u32, bool, u32)| Need {
            now: *now,
            urgent: if *urgent { *now } else { 0 },
            held: (*now).max(*held),
            lasting: Some((*now).max(*held)),
        };
        let sites = pool.sites().len();
        let needs: Vec<Vec<Need>> =
            needs.iter().map(|list| list.iter().take(sites).map(need).collect()).collect();
        let last = needs[needs.len() - 1].clone();
        let places = spread(&pool, &choices);
        let mut pools = Pools::new(pool.clone(), places, Box::new(Fixed::changing(needs)));
        for (turn, happening) in happenings.iter().enumerate() {
            apply(&mut pools, Nanos::from_millis(100 * turn as u64), happening);
        }
        // News of all that is under way, then decisions without further faults. A reversal may have
        // to wait for a minute.
        for turn in 0..40 {
            let now = Nanos::from_secs(100 * (turn + 1));
            for node in pool.node_indices() {
                pools.happened(now, Event::Arrived(node));
            }
            let moves = pools.decide(now, &busy(&pool));
            if turn >= 10 && moves.is_empty() {
                prop_assert_eq!(neglected(&pool, pools.holdings(), &last), None);
                prop_assert_eq!(starving(&pool, pools.holdings(), &last), None);
                return Ok(());
            }
            finish(&mut pools, now, moves);
        }
        prop_assert!(false, "no rest: {:?}", pools);
    }
}
