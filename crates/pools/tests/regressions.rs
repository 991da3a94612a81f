//! Failures that others are known for, by name, and the ways of nodes where kinds differ.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixed, busy, finish, pool, site};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::holdings::Place;
use keeptime_pools::keeptime::allocation::Need;
use keeptime_pools::load::{Loads, SiteLoad};
use keeptime_pools::plan::{Plan, Reason, Step};
use keeptime_pools::policy::{Policy, PolicyKind, View};
use keeptime_pools::pool::{Guarantee, Pool, SiteIndex};
use keeptime_pools::pools::{Event, Pools};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

const TURN: Nanos = Nanos::from_millis(100);

fn at(turn: u64) -> Nanos {
    Nanos::new(TURN.get() * turn)
}

fn need(nodes: u32) -> Need {
    let all = nodes * 1_000;
    Need { urgent: all, now: all, held: all, lasting: None }
}

fn serving(pools: &Pools) -> Vec<u32> {
    let counts = pools.holdings().counts(pools.pool().sites().len());
    counts.into_iter().map(|count| count.serving).collect()
}

/// Freed nodes that are not kept for the one that they were freed for are taken by others meanwhile,
/// and more have to be freed, without end.
#[test]
fn reclaim_from_several_victims_ends_because_freed_nodes_are_kept() {
    let guarantee = |hard, soft| Guarantee { hard, soft, max: 9 };
    // One that reclaims four nodes; three victims; one that is as hungry as the first, of a priority
    // between, and would take any node that is not kept.
    let mut sites = vec![site(0, guarantee(1, 5), 9, &[1_000])];
    sites.extend((1..4).map(|at| site(at, guarantee(1, 1), 1, &[1_000])));
    sites.push(site(4, guarantee(1, 9), 5, &[1_000]));
    let pool = pool(&[9], sites);
    let places = [0, 1, 1, 2, 2, 3, 3, 3, 4].map(|site| Place::Serving(SiteIndex(site)));
    let needs = vec![need(5), need(3), need(3), need(3), need(9)];
    let mut pools = Pools::new(pool.clone(), places.to_vec(), Box::new(Fixed::new(needs)));
    let first = pools.decide(at(0), &busy(&pool));
    let reclaimed: Vec<_> = first.iter().filter(|m| m.to == Some(SiteIndex(0))).collect();
    assert_eq!(reclaimed.len(), 4, "{first:?}");
    // Drains end one by one, with decisions between; nobody is asked again and nobody else gets one.
    for (turn, next) in first.iter().enumerate() {
        assert_eq!(pools.decide(at(turn as u64 + 1), &busy(&pool)), [], "while nodes drain");
        pools.happened(at(turn as u64 + 1), Event::Arrived(next.node));
    }
    assert_eq!(pools.decide(at(100), &busy(&pool)), []);
    assert_eq!(serving(&pools), [5, 1, 1, 1, 1]);
}

/// An autoscaler whose panic window ends falls back to an average from before, and undoes all that
/// the panic did while the load is still there.
#[test]
fn the_end_of_a_window_undoes_nothing_while_the_load_lasts() {
    let guarantee = Guarantee { hard: 1, soft: 6, max: 7 };
    let sites = vec![site(0, guarantee, 1, &[1_000]), site(1, guarantee, 1, &[1_000])];
    let places = (0..8).map(|n| Place::Serving(SiteIndex(u32::from(n >= 4)))).collect();
    let mut pools = Pools::new(pool(&[8], sites), places, PolicyKind::Keeptime.policy());
    let mut moves = Vec::new();
    // 450 requests a second of 10 ms each: 4.5 nodes' worth, and 0.5 for the other site.
    for turn in 1..1_200 {
        let mut loads = Loads::silent(2, 8, TURN);
        let counts = pools.holdings().counts(2);
        for (site, arrived) in [if turn < 50 { 1 } else { 45 }, 5].into_iter().enumerate() {
            let serving = u64::from(counts[site].serving);
            let completed = arrived.min(serving * 10);
            let queued = arrived - completed;
            loads.sites[site] = Some(SiteLoad { arrived, completed, queued, in_flight: serving });
            for (node, place) in pools.holdings().nodes() {
                if place == Place::Serving(SiteIndex(site as u32)) {
                    let percent = completed * 10 / serving;
                    loads.nodes[node.0 as usize] = Share::from_percent(percent as u32);
                }
            }
        }
        let made = pools.decide(at(turn), &loads);
        moves.extend(made.iter().map(|m| (turn, *m)));
        finish(&mut pools, at(turn), made);
    }
    assert!(!moves.is_empty() && moves.iter().all(|(turn, _)| *turn < 60), "{moves:?}");
    assert!(moves.iter().all(|(_, m)| m.to == Some(SiteIndex(0))), "{moves:?}");
}

/// A peak that is long over keeps nodes from all others, for good.
///
/// Goal: what a site has beyond its soft guarantee, and has not needed for ten minutes, becomes a spare, one by one, and
/// nothing else does. Method: an hour of a load that one node carries, after six were needed for a moment at the beginning,
/// and another after seven minutes.
#[test]
fn what_was_not_needed_for_long_is_given_back() {
    let guarantee = Guarantee { hard: 1, soft: 2, max: 7 };
    let pool = pool(&[8], vec![site(0, guarantee, 1, &[1_000])]);
    let places: Vec<_> = (0..8)
        .map(|node| if node < 6 { Place::Serving(SiteIndex(0)) } else { Place::Spare })
        .collect();
    let mut pools = Pools::new(pool, places, PolicyKind::Keeptime.policy());
    let mut given = Vec::new();
    for turn in 1..36_000 {
        let mut loads = Loads::silent(1, 8, TURN);
        let serving = u64::from(serving(&pools)[0]);
        let arrived = if turn < 10 || (4_200..4_210).contains(&turn) { 50 } else { 5 };
        let completed = arrived.min(serving * 10);
        loads.sites[0] =
            Some(SiteLoad { arrived, completed, queued: arrived - completed, in_flight: serving });
        for (node, place) in pools.holdings().nodes() {
            let percent = if place == Place::Spare { 0 } else { completed * 10 / serving };
            loads.nodes[node.0 as usize] = Share::from_percent(percent as u32);
        }
        let moves = pools.decide(at(turn), &loads);
        given.extend(moves.iter().map(|m| (turn, m.from, m.to, m.reason)));
        finish(&mut pools, at(turn), moves);
    }
    let ended: Vec<_> = given.iter().filter(|(_, _, to, _)| to.is_none()).collect();
    assert!(ended.len() >= 4, "{given:?}");
    let is_late = |turn: u64| turn > 4_210 + 5_000;
    assert!(ended.iter().all(|(turn, .., reason)| is_late(*turn) && *reason == Reason::LowLoad));
    assert!(ended.windows(2).all(|pair| pair[0].0 < pair[1].0), "one by one: {given:?}");
    assert_eq!(serving(&pools), [2], "never below the soft guarantee: {given:?}");
}

/// A site that has all of so many nodes, needs them, and may have so many.
fn one_site_with_all(nodes: u32, max: u32) -> (Pool, Pools) {
    let guarantee = Guarantee { hard: 1, soft: 1, max };
    let pool = pool(&[nodes as usize], vec![site(0, guarantee, 1, &[1_000])]);
    let places = vec![Place::Serving(SiteIndex(0)); nodes as usize];
    let needs = Fixed::new(vec![need(nodes)]);
    (pool.clone(), Pools::new(pool, places, Box::new(needs)))
}

/// Another node came for one that was to leave, and stays after all.
#[test]
fn what_a_site_has_beyond_its_most_is_given_back_at_once() {
    let (pool, mut pools) = one_site_with_all(4, 2);
    for turn in 0..5 {
        let moves = pools.decide(at(turn), &busy(&pool));
        finish(&mut pools, at(turn), moves);
    }
    assert_eq!(serving(&pools), [2], "though it needs them");
}

/// It would be without any, if those that are away do not come back.
#[test]
fn nodes_that_may_not_be_there_are_not_beyond_the_most() {
    let (pool, mut pools) = one_site_with_all(2, 1);
    pools.bar(&[NodeIndex(0)].into());
    assert_eq!(pools.decide(at(0), &busy(&pool)), []);
    pools.bar(&[].into());
    let moves = pools.decide(at(1), &busy(&pool));
    assert!(matches!(&moves[..], [m] if m.reason == Reason::BeyondMost), "{moves:?}");
}

/// Nobody counts on it: its site gets another one for its guarantee, and one that was to take it does not.
#[test]
fn a_node_that_will_be_taken_away_counts_for_nothing() {
    let guarantee = Guarantee { hard: 1, soft: 1, max: 2 };
    let sites = vec![site(0, guarantee, 2, &[1_000]), site(1, guarantee, 1, &[1_000])];
    let pool = pool(&[4], sites);
    let serves = |site| Place::Serving(SiteIndex(site));
    let places = vec![serves(0), serves(1), serves(1), Place::Spare];
    let needs = Fixed::new(vec![need(2), need(1)]);
    let mut pools = Pools::new(pool.clone(), places, Box::new(needs));
    pools.happened(at(0), Event::Leaves(NodeIndex(0)));
    assert_eq!(pools.holdings().place(NodeIndex(0)), Place::Leaving(SiteIndex(0)));
    let moves = pools.decide(at(0), &busy(&pool));
    let [first, second] = &moves[..] else { panic!("{moves:?}") };
    assert_eq!((first.node, first.to), (NodeIndex(3), Some(SiteIndex(0))));
    assert_eq!((second.from, second.to), (Some(SiteIndex(1)), Some(SiteIndex(0))));
    // What is on its way already arrives, or serves again where it was: then it is as if it had never gone.
    pools.happened(at(1), Event::Leaves(second.node));
    assert!(pools.holdings().reservation(second.node).is_some());
    pools.happened(at(1), Event::Failed(second.node));
    pools.happened(at(1), Event::Leaves(second.node));
    assert_eq!(pools.happened(at(1), Event::Arrived(second.node)), None);
    finish(&mut pools, at(1), vec![*first]);
    assert_eq!(serving(&pools), [1, 1]);
    pools.happened(at(2), Event::Stays(second.node));
    assert_eq!(serving(&pools), [1, 2]);
}

/// Who takes missing numbers for zero takes nodes away from the site that has the most to do.
#[test]
fn a_node_too_busy_to_report_is_loaded_under_every_policy() {
    let guarantee = Guarantee { hard: 1, soft: 4, max: 7 };
    for kind in PolicyKind::ALL {
        let sites = vec![site(0, guarantee, 1, &[1_000]), site(1, guarantee, 1, &[1_000])];
        let places = (0..8).map(|n| Place::Serving(SiteIndex(u32::from(n >= 4)))).collect();
        let mut pools = Pools::new(pool(&[8], sites), places, kind.policy());
        for turn in 1..100 {
            // The first site is flooded and heard of; of the second and its nodes nothing is heard.
            let mut loads = Loads::silent(2, 8, TURN);
            loads.nodes[..4].fill(Some(Share::ONE));
            loads.sites[0] =
                Some(SiteLoad { arrived: 400, completed: 40, queued: 900, in_flight: 4 });
            let moves = pools.decide(at(turn), &loads);
            finish(&mut pools, at(turn), moves);
        }
        assert_eq!(serving(&pools), [4, 4], "{kind}");
    }
}

/// Nobody sends a spare requests, so that its processors alone tell whether it is free: one that somebody else
/// keeps busy, or that is silent, is taken when there is no other. Of nodes that serve, likewise.
#[test]
fn a_node_that_others_keep_busy_is_taken_last() {
    let guarantee = Guarantee { hard: 1, soft: 4, max: 4 };
    let [taker, giver] = [0, 1].map(|site| Place::Serving(SiteIndex(site)));
    for (busy, place) in (0..3).zip([Place::Spare, giver, Place::Spare]) {
        let sites = vec![site(0, guarantee, 2, &[1_000]), site(1, guarantee, 1, &[1_000])];
        let needs = (2..5).map(|nodes| vec![need(nodes), need(0)]).collect();
        let policy = Box::new(Fixed::changing(needs));
        let mut pools =
            Pools::new(pool(&[5], sites), vec![place, place, place, taker, giver], policy);
        let mut loads = Loads::silent(2, 5, TURN);
        loads.nodes.fill(Some(Share::default()));
        loads.cpu.fill(Share::from_percent(40).unwrap());
        loads.cpu[busy] = Share::ONE;
        for turn in 1..4 {
            let moves = pools.decide(at(turn), &loads);
            let takes = moves.iter().any(|moved| moved.node == NodeIndex(busy as u32));
            // The giver keeps one of four by its hard guarantee.
            let is_last = place == Place::Spare && turn == 3;
            assert_eq!((moves.len(), takes), (1, is_last), "{busy} {turn} {moves:?}");
            finish(&mut pools, at(turn), moves);
        }
    }
}

/// A node has the files of the site that it served before in memory.
#[test]
fn of_nodes_that_are_alike_the_one_that_was_there_before_comes_back() {
    let guarantee = Guarantee { hard: 1, soft: 3, max: 3 };
    let sites = (0..2).map(|at| site(at, guarantee, 1, &[1_000])).collect();
    let places = [1, 0, 0].map(|site| Place::Serving(SiteIndex(site))).to_vec();
    let needs = [[1, 2], [2, 1]].map(|needs| needs.map(need).to_vec()).to_vec();
    let mut pools = Pools::new(pool(&[3], sites), places, Box::new(Fixed::changing(needs)));
    let loads = busy(pools.pool());
    for turn in 0..2 {
        let moves = pools.decide(at(turn), &loads);
        assert_eq!(moves.iter().map(|moved| moved.node).collect::<Vec<_>>(), [NodeIndex(1)]);
        finish(&mut pools, at(turn), moves);
    }
    assert_eq!(serving(&pools), [2, 1]);
}

/// A policy with a mistake.
#[derive(Debug)]
struct Mistaken(Vec<Step>);

impl Policy for Mistaken {
    fn name(&self) -> &'static str {
        "mistaken"
    }

    fn plans(&mut self, _: &View<'_>) -> Vec<Plan> {
        let plan = |step: &Step| Plan::direct(SiteIndex(0), Reason::LowLoad, *step);
        self.0.iter().map(plan).collect()
    }
}

#[test]
fn a_plan_takes_nodes_from_where_they_are_elsewhere_and_once() {
    let [shop, blog] = [0, 1].map(|site| Some(SiteIndex(site)));
    let step = |node, from, to| Step { node: NodeIndex(node), from, to };
    let decided = |steps: &[Step]| {
        let guarantee = Guarantee { hard: 1, soft: 1, max: 3 };
        let sites = vec![site(0, guarantee, 1, &[1_000]), site(1, guarantee, 1, &[1_000])];
        let places = vec![Place::Serving(SiteIndex(0)), Place::Serving(SiteIndex(1)), Place::Spare];
        let pool = pool(&[3], sites);
        let mut pools = Pools::new(pool.clone(), places, Box::new(Mistaken(steps.to_vec())));
        catch_unwind(AssertUnwindSafe(|| pools.decide(at(0), &busy(&pool)).len())).ok()
    };
    assert_eq!(decided(&[step(0, shop, blog), step(2, None, shop)]), Some(2));
    assert_eq!(decided(&[step(0, blog, shop)]), None, "it is not there");
    assert_eq!(decided(&[step(0, None, shop)]), None, "it is no spare");
    assert_eq!(decided(&[step(0, shop, shop)]), None, "it is there");
    assert_eq!(decided(&[step(2, None, shop), step(2, None, blog)]), None, "it is taken");
    assert_eq!(decided(&[step(0, shop, blog), step(0, shop, None)]), None, "it leaves");
}

/// Jobs have a part of nodes, so that one site could not have there what it asks for, and others can: a spare, and nodes
/// of a third site.
#[test]
fn a_node_that_is_unfit_for_a_site_goes_to_others_which_give_it_theirs() {
    let guarantee = Guarantee { hard: 1, soft: 3, max: 3 };
    let sites = (0..3).map(|at| site(at, guarantee, 3 - at as u32, &[1_000])).collect();
    let needs = vec![need(3), need(3), need(0)];
    let places = [Place::Spare, Place::Serving(SiteIndex(0)), Place::Serving(SiteIndex(1))];
    let third = [Place::Serving(SiteIndex(2)); 3];
    let places = places.into_iter().chain(third).collect();
    let mut pools = Pools::new(pool(&[6], sites), places, Box::new(Fixed::new(needs)));
    // The first site, of the highest priority, could use one node of the third, and that of the second.
    let unfit = [0, 3, 4].map(NodeIndex);
    pools.fit(unfit.map(|node| (node, BTreeSet::from([SiteIndex(0)]))).into());
    let loads = busy(pools.pool());
    let moves = pools.decide(at(0), &loads);
    finish(&mut pools, at(0), moves);
    assert_eq!(serving(&pools), [3, 2, 1], "the third keeps one by its hard guarantee");
    let is_first = |node: &NodeIndex| pools.holdings().place(*node) == Place::Serving(SiteIndex(0));
    assert!(!unfit.iter().any(is_first), "{pools:?}");
    // When the jobs are over, all nodes are alike.
    pools.fit(BTreeMap::new());
    assert_eq!(pools.decide(at(1), &loads), [], "the second takes nothing that the first needs");
}

/// A flood of one site, while another with the same priority is idle, then the other way round, many
/// times: real need is served at once, in spite of the hold.
#[test]
fn a_hold_yields_to_real_need() {
    let guarantee = Guarantee { hard: 1, soft: 1, max: 7 };
    let sites = vec![site(0, guarantee, 1, &[1_000]), site(1, guarantee, 1, &[1_000])];
    let places = (0..8).map(|n| Place::Serving(SiteIndex(u32::from(n >= 4)))).collect();
    let mut pools = Pools::new(pool(&[8], sites), places, PolicyKind::Keeptime.policy());
    for turn in 1..200 {
        let flooded = (turn / 20 % 2) as usize;
        let mut loads = Loads::silent(2, 8, TURN);
        for (node, place) in pools.holdings().nodes() {
            let busy = place == Place::Serving(SiteIndex(flooded as u32));
            loads.nodes[node.0 as usize] = Share::from_percent(if busy { 100 } else { 0 });
        }
        let served = u64::from(pools.holdings().counts(2)[flooded].serving) * 20;
        loads.sites[1 - flooded] = Some(SiteLoad::default());
        loads.sites[flooded] =
            Some(SiteLoad { arrived: 400, completed: served, queued: 800, in_flight: 8 });
        let moves = pools.decide(at(turn), &loads);
        finish(&mut pools, at(turn), moves);
        if turn % 20 == 2 {
            assert_eq!(serving(&pools)[flooded], 7, "two turns after the flood began: {pools:?}");
        }
    }
}

/// Two equals that both need what they have give a node to and fro for as long as noise tells one, then
/// the other, that it is the worse off: what is beyond guarantees is only shared with one that cannot
/// keep up, and not for a moment.
#[test]
fn equals_that_need_what_they_have_do_not_take_it_from_each_other_by_chance() {
    let guarantee = Guarantee { hard: 1, soft: 1, max: 8 };
    let sites = vec![site(0, guarantee, 1, &[1_000]), site(1, guarantee, 1, &[1_000])];
    let pool = pool(&[8], sites);
    let places: Vec<_> = (0..8).map(|n| Place::Serving(SiteIndex(u32::from(n >= 5)))).collect();
    let first = Need { urgent: 4_100, now: 5_000, held: 5_000, lasting: None };
    let second = |urgent| Need { urgent, now: 4_000, held: 4_000, lasting: None };
    let turns = [2_400, 3_500, 2_400].into_iter().chain([3_500; 12]);
    let needs = turns.map(|urgent| vec![first, second(urgent)]).collect();
    let mut pools = Pools::new(pool.clone(), places, Box::new(Fixed::changing(needs)));
    let moves: Vec<_> = (0..15).map(|turn| pools.decide(at(turn), &busy(&pool)).len()).collect();
    assert_eq!(moves, [vec![0; 13], vec![1, 0]].concat(), "short for a second: evenly shared");
}

/// What an even share would do to the one of two equals that keeps up with what it has.
#[test]
fn an_equal_that_keeps_up_is_not_made_to_fall_behind_for_the_other_ones_wait() {
    let guarantee = Guarantee { hard: 1, soft: 1, max: 8 };
    let sites = vec![site(0, guarantee, 1, &[1_000]), site(1, guarantee, 1, &[1_000])];
    let pool = pool(&[8], sites);
    let places: Vec<_> = (0..8).map(|n| Place::Serving(SiteIndex(u32::from(n >= 5)))).collect();
    let needs = vec![
        Need { urgent: 4_100, now: 5_000, held: 5_000, lasting: None },
        Need { urgent: 2_400, now: 4_000, held: 4_000, lasting: None },
    ];
    let mut pools = Pools::new(pool.clone(), places, Box::new(Fixed::new(needs)));
    for turn in 0..3_000 {
        assert_eq!(pools.decide(at(turn), &busy(&pool)), [], "both keep up");
    }
}

/// Nodes 0 and 1 are large, 2 to 4 small; `front` can use small ones only, `middle` both, `back`
/// large ones only.
fn tiers() -> Pool {
    let guarantee = Guarantee { hard: 1, soft: 3, max: 3 };
    let sites = vec![
        site(0, guarantee, 3, &[0, 1_000]),
        site(1, guarantee, 2, &[1_000, 1_000]),
        site(2, guarantee, 1, &[1_000, 0]),
    ];
    pool(&[3, 2], sites)
}

fn tier_places() -> Vec<Place> {
    // back: large 0 and 1; middle: large 2 and small 3; front: small 4
    [2, 2, 1, 1, 0].map(|site| Place::Serving(SiteIndex(site))).to_vec()
}

#[test]
fn a_node_that_the_site_cannot_use_comes_by_way_of_one_that_can() {
    let needs = vec![need(2), need(2), need(1)];
    let pool = tiers();
    let mut pools = Pools::new(pool.clone(), tier_places(), Box::new(Fixed::new(needs)));
    let moves = pools.decide(at(0), &busy(&pool));
    assert_eq!(moves.len(), 1, "the second step waits for the first");
    assert_eq!((moves[0].from, moves[0].to), (Some(SiteIndex(2)), Some(SiteIndex(1))));
    assert_eq!(pools.decide(at(1), &busy(&pool)), [], "both nodes are reserved to the plan");
    let expected: Vec<_> =
        pools.holdings().counts(3).iter().map(|count| count.expected()).collect();
    assert_eq!(expected, [2, 2, 1], "what is on its way counts where it goes to");
    let next = pools.happened(at(2), Event::Arrived(moves[0].node)).unwrap();
    assert_eq!((next.node, next.to), (NodeIndex(3), Some(SiteIndex(0))));
    assert_eq!(next.plan, moves[0].plan);
    assert_eq!(pools.happened(at(3), Event::Arrived(next.node)), None);
    assert_eq!(serving(&pools), [2, 2, 1]);
}

#[test]
fn a_chain_whose_first_node_dies_takes_nothing_from_the_site_between() {
    let needs = vec![need(2), need(2), need(1)];
    let pool = tiers();
    let mut pools = Pools::new(pool.clone(), tier_places(), Box::new(Fixed::new(needs)));
    let moves = pools.decide(at(0), &busy(&pool));
    pools.happened(at(1), Event::Died(moves[0].node));
    assert_eq!(pools.holdings().reservation(NodeIndex(3)), None);
    assert_eq!(serving(&pools), [1, 2, 1]);
    assert_eq!(pools.happened(at(2), Event::Arrived(moves[0].node)), None, "late news");
}

#[test]
fn a_chain_whose_site_between_lost_a_node_meanwhile_stops_there() {
    let needs = vec![need(2), need(1), need(1)];
    let guarantee = Guarantee { hard: 2, soft: 3, max: 3 };
    let one = Guarantee { hard: 1, ..guarantee };
    let sites = vec![
        site(0, one, 3, &[0, 1_000]),
        site(1, guarantee, 2, &[1_000, 1_000]),
        site(2, one, 1, &[1_000, 0]),
    ];
    let pool = pool(&[3, 2], sites);
    let mut pools = Pools::new(pool.clone(), tier_places(), Box::new(Fixed::new(needs)));
    let moves = pools.decide(at(0), &busy(&pool));
    pools.happened(at(1), Event::Died(NodeIndex(2)));
    let next = pools.happened(at(2), Event::Arrived(moves[0].node));
    assert_eq!((next, serving(&pools)), (None, vec![1, 2, 1]), "middle keeps its two");
}

/// Whoever drains it knows that this comes to nothing.
#[test]
fn a_chain_whose_next_node_is_barred_meanwhile_stops_there() {
    let needs = vec![need(2), need(2), need(1)];
    let pool = tiers();
    let mut pools = Pools::new(pool.clone(), tier_places(), Box::new(Fixed::new(needs)));
    let moves = pools.decide(at(0), &busy(&pool));
    pools.bar(&BTreeSet::from([NodeIndex(3)]));
    let next = pools.happened(at(1), Event::Arrived(moves[0].node));
    assert_eq!((next, serving(&pools)), (None, vec![1, 3, 1]), "what is under way arrives");
    assert_eq!(pools.holdings().reservation(NodeIndex(3)), None);
}

/// Sites with one node each, which is all that they need, but for the first, which needs one more.
fn one_lacks_a_node(nodes: &[usize], places: &[Option<u32>], weights: &[&[u32]]) -> Pools {
    let guarantee = Guarantee { hard: 1, soft: 2, max: 2 };
    let sites = weights.iter().enumerate().map(|(at, weights)| site(at, guarantee, 1, weights));
    let pool = pool(nodes, sites.collect());
    let place = |site: &Option<u32>| site.map_or(Place::Spare, |at| Place::Serving(SiteIndex(at)));
    let needs = (0..weights.len()).map(|at| need(if at == 0 { 2 } else { 1 })).collect();
    Pools::new(pool, places.iter().map(place).collect(), Box::new(Fixed::new(needs)))
}

/// The nodes that are to move, in the end.
fn planned(pools: &mut Pools) -> Vec<u32> {
    let loads = busy(pools.pool());
    pools.decide(at(0), &loads);
    let nodes = pools.holdings().nodes().map(|(node, _)| node);
    let planned = nodes.filter(|node| pools.holdings().reservation(*node).is_some());
    planned.map(|node| node.0).collect()
}

#[test]
fn of_nodes_that_are_as_good_for_it_a_site_takes_the_one_that_is_of_least_use_to_others() {
    // Of the spares 2 and 3 the second site can use the first only.
    let places = [Some(0), Some(1), None, None];
    let mut pools = one_lacks_a_node(&[3, 1], &places, &[&[1_000, 1_000], &[1_000, 0]]);
    assert_eq!(planned(&mut pools), [3]);
}

#[test]
fn a_site_on_the_way_takes_the_least_that_is_enough() {
    // The first site can use what the second one has, and neither of the spares 2 and 3.
    let places = [Some(0), Some(1), None, None, Some(2)];
    let weights: [&[u32]; 3] = [&[1_000, 0, 0], &[1_000, 2_000, 1_000], &[0, 0, 1_500]];
    let mut pools = one_lacks_a_node(&[2, 1, 2], &places, &weights);
    assert_eq!(planned(&mut pools), [1, 3], "not 2, which is worth twice as much to the second");
}

#[test]
fn a_longer_chain_that_gains_a_little_more_is_not_worth_another_drain() {
    // The first site can use the nodes of the second, which can use the spare, 4, and better that of the third,
    // which can use the fourth one's only.
    let places = [Some(0), Some(1), Some(2), Some(3), None];
    let planned_if_worth = |worth| {
        let weights: [&[u32]; 4] = [
            &[1_000, worth, 0, 0],
            &[1_000, 0, 0, 1_000],
            &[0, 1_000, 1_000, 0],
            &[0, 0, 1_000, 1_000],
        ];
        planned(&mut one_lacks_a_node(&[2, 1, 1, 1], &places, &weights))
    };
    assert_eq!(planned_if_worth(1_900), [1, 4]);
    assert_eq!(planned_if_worth(2_000), [2, 3, 4], "twice as much is");
}

#[test]
fn a_node_that_died_in_a_move_is_replaced_and_comes_back_as_a_spare() {
    let guarantee = Guarantee { hard: 2, soft: 3, max: 4 };
    let sites = vec![site(0, guarantee, 2, &[1_000]), site(1, guarantee, 1, &[1_000])];
    let pool = pool(&[6], sites);
    let places = [0, 0, 1, 1, 1, 1].map(|site| Place::Serving(SiteIndex(site)));
    let policy = Fixed::new(vec![need(3), need(4)]);
    let mut pools = Pools::new(pool.clone(), places.to_vec(), Box::new(policy));
    let moves = pools.decide(at(0), &busy(&pool));
    assert_eq!(moves.len(), 1);
    pools.happened(at(1), Event::Died(moves[0].node));
    assert_eq!(serving(&pools), [2, 3]);
    let moves = pools.decide(at(2), &busy(&pool));
    assert_eq!(moves.len(), 1, "another one: {moves:?}");
    assert_eq!(pools.happened(at(3), Event::Failed(moves[0].node)), None);
    assert_eq!(serving(&pools), [2, 3], "a move that failed leaves all as it was");
    let dead = pools.holdings().nodes().find(|(_, place)| *place == Place::Down).unwrap().0;
    pools.happened(at(4), Event::Returned(dead));
    let moves = pools.decide(at(5), &busy(&pool));
    assert_eq!((moves.len(), moves[0].node, moves[0].from), (1, dead, None));
}
