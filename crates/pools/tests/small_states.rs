//! The four properties over all states of small pools. Every start is brought to rest by decisions
//! whose moves all end; the properties of `common::properties` are asked at each start and
//! end of a move, and at rest.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixed, pool, settle, site};
use keeptime_pools::holdings::Place;
use keeptime_pools::keeptime::allocation::Need;
use keeptime_pools::pool::{Guarantee, Pool, SiteIndex};

const STANDARD: u32 = 1_000;

/// All ways to put `nodes` alike nodes at `sites` sites or among the spares.
fn placements(nodes: usize, sites: u32) -> Vec<Vec<Place>> {
    let places: Vec<_> =
        (0..sites).map(|s| Place::Serving(SiteIndex(s))).chain([Place::Spare]).collect();
    let mut all: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..nodes {
        let more = |some: &Vec<usize>| {
            let from = some.last().copied().unwrap_or(0);
            (from..places.len()).map(|p| [some.clone(), vec![p]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(more).collect();
    }
    all.into_iter().map(|some| some.into_iter().map(|p| places[p]).collect()).collect()
}

/// All lists of `length` values of `choices`.
fn lists<T: Clone>(choices: &[T], length: usize) -> Vec<Vec<T>> {
    (0..length).fold(vec![vec![]], |lists, _| {
        let more = |list: &Vec<T>| {
            choices.iter().map(|c| [list.clone(), vec![c.clone()]].concat()).collect::<Vec<_>>()
        };
        lists.iter().flat_map(more).collect()
    })
}

fn needs(most: u32, urgent: &[bool], held: &[u32]) -> Vec<Need> {
    let mut needs = Vec::new();
    for nodes in 0..=most {
        for is_urgent in urgent {
            for held in held {
                let now = nodes * STANDARD;
                let urgent = if *is_urgent { now } else { 0 };
                needs.push(Need { urgent, now, held: now.max(held * STANDARD), lasting: None });
            }
        }
    }
    needs
}

fn guarantees(nodes: u32) -> Vec<Guarantee> {
    let mut all = Vec::new();
    for hard in 1..nodes {
        for soft in hard..=nodes {
            all.push(Guarantee { hard, soft, max: nodes });
            if soft < nodes {
                all.push(Guarantee { hard, soft, max: soft });
            }
        }
    }
    all
}

/// Brings every start to rest; tells how many there were.
fn check(pools: &[Pool], places: &[Vec<Place>], needs: &[Vec<Need>], decisions: usize) -> usize {
    let mut states = 0;
    for pool in pools {
        for places in places {
            for needs in needs {
                settle(pool, places.clone(), Fixed::new(needs.clone()), decisions);
                states += 1;
            }
        }
    }
    states
}

#[test]
fn two_sites_and_four_nodes_with_all_guarantees_and_needs() {
    let mut pools = Vec::new();
    for two in lists(&guarantees(4), 2) {
        for priority in [0, 1, 2] {
            if two[0].hard + two[1].hard <= 4 {
                let sites = vec![site(0, two[0], 1, &[1_000]), site(1, two[1], priority, &[1_000])];
                pools.push(pool(&[4], sites));
            }
        }
    }
    let needs = lists(&needs(5, &[false, true], &[0, 4]), 2);
    let states = check(&pools, &placements(4, 2), &needs, 1);
    println!("{} pools, {states} states", pools.len());
    assert_eq!(states, pools.len() * 15 * 24 * 24);
}

#[test]
fn three_sites_and_five_nodes_with_all_orders_of_priority() {
    let guarantees =
        [Guarantee { hard: 1, soft: 1, max: 5 }, Guarantee { hard: 1, soft: 3, max: 4 }];
    let mut pools = Vec::new();
    for three in lists(&guarantees, 3) {
        for order in [[1, 1, 1], [1, 1, 2], [2, 2, 1], [1, 2, 3], [3, 1, 2]] {
            let site = |at: usize| site(at, three[at], order[at], &[1_000]);
            pools.push(pool(&[5], (0..3).map(site).collect()));
        }
    }
    let urgent = lists(&needs(5, &[true], &[0]), 3);
    let patient = lists(&needs(5, &[false], &[3]), 3);
    let needs = [urgent, patient].concat();
    let states = check(&pools, &placements(5, 3), &needs, 1);
    println!("{} pools, {states} states", pools.len());
    assert_eq!(states, 40 * 56 * 432);
}

#[test]
fn three_sites_and_two_kinds_with_all_uses_of_kinds() {
    // A site that can use one kind only, or both alike, or one better than the other.
    let uses = [[1_000, 0], [0, 1_000], [1_000, 1_000], [1_000, 400]];
    let guarantee = Guarantee { hard: 1, soft: 2, max: 4 };
    let needs = lists(&needs(3, &[true], &[0]), 3);
    let (mut states, mut pools) = (0, 0);
    for three in lists(&uses, 3) {
        for order in [[1, 1, 1], [1, 2, 3], [2, 3, 1], [3, 1, 2]] {
            let sites = (0..3).map(|at| site(at, guarantee, order[at], &three[at])).collect();
            let Some(pool) = common::try_pool(&[2, 2], sites) else { continue };
            pools += 1;
            for first in placements(2, 3) {
                for second in placements(2, 3) {
                    let places = [first.clone(), second].concat();
                    // Nodes are only where they can serve.
                    let fits = pool.node_indices().zip(&places).all(|(node, place)| match place {
                        Place::Serving(site) => pool.worth(*site, node).thousandths() > 0,
                        _ => true,
                    });
                    if fits {
                        states += check(std::slice::from_ref(&pool), &[places], &needs, 3);
                    }
                }
            }
        }
    }
    println!("{pools} pools, {states} states");
    assert!(states > 300_000, "{states}");
}

#[test]
fn needs_that_change_while_nodes_are_on_their_way() {
    let guarantees =
        [Guarantee { hard: 1, soft: 2, max: 4 }, Guarantee { hard: 2, soft: 3, max: 3 }];
    let changes = lists(&needs(4, &[true], &[0]), 2);
    let mut states = 0;
    for two in lists(&guarantees, 2) {
        for priority in [0, 1, 2] {
            let sites = vec![site(0, two[0], 1, &[1_000]), site(1, two[1], priority, &[1_000])];
            let pool = pool(&[4], sites);
            for places in placements(4, 2) {
                for before in &changes {
                    for after in &changes {
                        let policy = Fixed::changing(vec![before.clone(), after.clone()]);
                        common::settle_late(&pool, places.clone(), policy);
                        states += 1;
                    }
                }
            }
        }
    }
    println!("{states} states");
    assert_eq!(states, 4 * 3 * 15 * 25 * 25);
}
