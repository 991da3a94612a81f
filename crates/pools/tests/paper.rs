//! Figures 5 to 7 of the paper: two sites, eight nodes; first site B is flooded, then A as well.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{finish, pool, site};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::holdings::Place;
use keeptime_pools::load::{Loads, SiteLoad};
use keeptime_pools::policy::PolicyKind;
use keeptime_pools::pool::{Guarantee, SiteIndex};
use keeptime_pools::pools::{Event, Pools};

const A: SiteIndex = SiteIndex(0);
const B: SiteIndex = SiteIndex(1);
const TURN: Nanos = Nanos::from_millis(100);
const OF_THE_PAPER: [PolicyKind; 3] =
    [PolicyKind::Reconf, PolicyKind::ReconfP, PolicyKind::ReconfPq];

/// Eight nodes, four each; A has the higher priority; both are promised 2 and 6 nodes.
fn start(kind: PolicyKind) -> Pools {
    let guarantee = Guarantee { hard: 2, soft: 6, max: 7 };
    let sites = vec![site(0, guarantee, 2, &[1_000]), site(1, guarantee, 1, &[1_000])];
    let places = (0..8).map(|node| Place::Serving(if node < 4 { A } else { B })).collect();
    Pools::new(pool(&[8], sites), places, kind.policy())
}

/// So many turns in which the flooded sites' nodes are as busy as can be; how many nodes serve A and
/// B then.
fn flood(pools: &mut Pools, flooded: &[SiteIndex], from: u64, turns: u64) -> (u32, u32) {
    for turn in from..from + turns {
        let mut loads = Loads::silent(2, 8, TURN);
        for (node, place) in pools.holdings().nodes() {
            let busy = matches!(place, Place::Serving(site) if flooded.contains(&site));
            let percent = if busy { 100 } else { 5 };
            loads.nodes[node.0 as usize] = Share::from_percent(percent);
        }
        for site in [A, B] {
            let served = u64::from(pools.holdings().counts(2)[site.0 as usize].serving) * 20;
            let load = if flooded.contains(&site) {
                SiteLoad { arrived: 500, completed: served, queued: 1_000, in_flight: 8 }
            } else {
                SiteLoad { arrived: 1, completed: 1, queued: 0, in_flight: 0 }
            };
            loads.sites[site.0 as usize] = Some(load);
        }
        let now = Nanos::new(TURN.get() * (turn + 1));
        let moves = pools.decide(now, &loads);
        finish(pools, now, moves);
    }
    let counts = pools.holdings().counts(2);
    (counts[0].serving, counts[1].serving)
}

/// Nodes of A and B after a flood of B, and after one of A on top.
fn figure(kind: PolicyKind) -> [(u32, u32); 2] {
    let mut pools = start(kind);
    [flood(&mut pools, &[B], 0, 100), flood(&mut pools, &[A, B], 100, 100)]
}

#[test]
fn rigid_moves_nothing() {
    assert_eq!(figure(PolicyKind::Rigid), [(4, 4), (4, 4)]);
}

#[test]
fn figure_5_basic_reconfiguration_finds_no_lightly_loaded_node_for_the_higher_priority() {
    assert_eq!(figure(PolicyKind::Reconf), [(1, 7), (1, 7)]);
}

#[test]
fn figure_6_priorities_leave_the_lower_one_a_single_node() {
    assert_eq!(figure(PolicyKind::ReconfP), [(1, 7), (7, 1)]);
}

#[test]
fn figure_7_guarantees_stop_at_soft_and_hard() {
    assert_eq!(figure(PolicyKind::ReconfPq), [(2, 6), (6, 2)]);
}

#[test]
fn ours_ends_where_guarantees_do_in_one_decision() {
    assert_eq!(figure(PolicyKind::Keeptime), [(2, 6), (6, 2)]);
    let mut pools = start(PolicyKind::Keeptime);
    assert_eq!(flood(&mut pools, &[B], 0, 1), (2, 6));
    assert_eq!(flood(&mut pools, &[A, B], 1, 1), (6, 2));
}

#[test]
fn the_papers_schemes_move_one_node_at_a_time() {
    for kind in OF_THE_PAPER {
        let mut pools = start(kind);
        let mut before = 4;
        for turn in 0..20 {
            let (_, b) = flood(&mut pools, &[B], turn, 1);
            assert!(b <= before + 1, "{kind}");
            before = b;
        }
    }
}

/// What moves if nodes have been so busy twice, in percent.
fn moved(pools: &mut Pools, from: u64, busy: &[u32]) -> Vec<(u32, Option<SiteIndex>)> {
    let mut loads = Loads::silent(pools.pool().sites().len(), busy.len(), TURN);
    loads.nodes = busy.iter().map(|percent| Share::from_percent(*percent)).collect();
    let moves = (from..from + 2).flat_map(|turn| {
        let now = Nanos::new(TURN.get() * turn);
        let moves = pools.decide(now, &loads);
        moves.into_iter().map(|moved| (moved.node.0, moved.from)).collect::<Vec<_>>()
    });
    moves.collect()
}

#[test]
fn a_loaded_site_grows_to_its_most_or_to_its_soft_guarantee_with_what_is_on_its_way() {
    let guarantee = Guarantee { hard: 1, soft: 2, max: 3 };
    for (kind, expected) in OF_THE_PAPER.into_iter().zip([2, 2, 1]) {
        let mut places = vec![Place::Serving(A)];
        places.extend([Place::Spare; 5]);
        let pool = pool(&[6], vec![site(0, guarantee, 1, &[1_000])]);
        let mut pools = Pools::new(pool, places, kind.policy());
        // Nothing arrives meanwhile.
        let moves = (0..10).map(|turn| moved(&mut pools, 2 * turn, &[100; 6]).len());
        assert_eq!(moves.sum::<usize>(), expected, "{kind}");
    }
}

#[test]
fn spares_go_before_lightly_loaded_nodes_and_those_before_the_lowest_priority() {
    const C: SiteIndex = SiteIndex(2);
    let guarantee = Guarantee { hard: 1, soft: 6, max: 7 };
    // Nodes 1 and 2 are of the lowest priority, 3 and 4 of the one between, and 5 may be a spare.
    let taken = |kind: PolicyKind, busy: [u32; 6], last| {
        let sites = [3, 1, 2].into_iter().enumerate();
        let sites = sites.map(|(at, priority)| site(at, guarantee, priority, &[1_000]));
        let mut places = [A, B, B, C, C].map(Place::Serving).to_vec();
        places.push(last);
        let mut pools = Pools::new(pool(&[6], sites.collect()), places, kind.policy());
        moved(&mut pools, 0, &busy)
    };
    for kind in OF_THE_PAPER {
        let taken = |busy, last| taken(kind, busy, last);
        assert_eq!(taken([100, 9, 9, 9, 9, 90], Place::Spare), [(5, None)], "{kind}");
        assert_eq!(taken([100, 90, 95, 30, 20, 0], Place::Down), [(4, Some(C))], "{kind}");
        let of_the_lowest = taken([100, 95, 90, 40, 50, 0], Place::Down);
        let expected: &[_] = if kind == PolicyKind::Reconf { &[] } else { &[(2, Some(B))] };
        assert_eq!(of_the_lowest, expected, "{kind}");
    }
}

#[test]
fn a_node_that_moved_is_left_alone_for_a_while() {
    let guarantee = Guarantee { hard: 1, soft: 2, max: 2 };
    for kind in OF_THE_PAPER {
        let sites = vec![site(0, guarantee, 1, &[1_000]), site(1, guarantee, 1, &[1_000])];
        let places = [A, B, A].map(Place::Serving).to_vec();
        let mut pools = Pools::new(pool(&[3], sites), places, kind.policy());
        assert_eq!(moved(&mut pools, 0, &[5, 100, 5]), [(0, Some(A))], "{kind}");
        pools.happened(TURN, Event::Arrived(NodeIndex(0)));
        // Found loaded for the second time after 400 ms, and after 500.
        assert_eq!(moved(&mut pools, 4, &[5, 50, 100]), [], "{kind}");
        assert_eq!(moved(&mut pools, 6, &[5, 50, 100]), [(0, Some(B))], "{kind}");
    }
}
