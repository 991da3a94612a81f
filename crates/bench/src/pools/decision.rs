//! How long one decision takes about 1,000 nodes and 50 sites.

use super::timed;
use crate::figures::{Figures, Target, quantile};
use crate::plan::Random;
use anyhow::Result;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::holdings::Place;
use keeptime_pools::load::{Loads, SiteLoad};
use keeptime_pools::policy::PolicyKind;
use keeptime_pools::pool::{Guarantee, KindIndex, Pool, Site, SiteIndex, Weight};
use keeptime_pools::pools::Pools;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const NODES: u32 = 1_000;
const SITES: u32 = 50;
const KINDS: u32 = 4;
const LOOK: Nanos = Nanos::from_millis(100);
/// In milliseconds.
const LONGEST: f64 = 10.0;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Raw {
    name: &'static str,
    milliseconds: Vec<f64>,
    /// Moves that were decided, chains as one.
    moves: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Case {
    /// All kinds serve all sites; nobody needs more.
    Calm,
    /// All kinds serve all sites; half of the sites are flooded at once.
    Flood,
    /// Every site can use two kinds of four; half of the sites are flooded at once.
    Chains,
    /// All kinds serve all sites, jobs have a part of every other node, and sites ask for one of so many parts of a node's
    /// CPU, up to all of it; half of the sites are flooded at once.
    Jobs(u32),
}

/// Times decisions in turns and adds the figures.
pub fn measure(rounds: usize, figures: &mut Figures) -> Result<Vec<Raw>> {
    let cases = [
        (Case::Calm, "decision, nobody needs a node"),
        (Case::Flood, "decision, 25 of 50 sites flooded"),
        (Case::Chains, "decision, 25 sites flooded, 2 of 4 kinds of use to each"),
        (Case::Jobs(8), "decision, 25 sites flooded, jobs on half of the nodes"),
        (Case::Jobs(SITES), "decision, 25 sites flooded, jobs, each asks for another part"),
    ];
    let mut raws = cases.map(|(_, name)| Raw { name, milliseconds: Vec::new(), moves: Vec::new() });
    for round in 0..rounds {
        for ((case, _), raw) in cases.iter().zip(&mut raws) {
            let (milliseconds, moves) = one(*case, round as u64)?;
            raw.milliseconds.push(milliseconds);
            raw.moves.push(moves);
        }
    }
    for raw in &raws {
        let samples = &raw.milliseconds;
        figures.median(raw.name, "ms", samples, None, Some(Target::AtMost(LONGEST)));
        let tail = quantile(samples, 0.99);
        let target = Some(Target::AtMost(LONGEST));
        figures.value(format!("{}, p99", raw.name), "ms", tail, samples, None, target);
        let moves = raw.moves.iter().sum::<usize>() / raw.moves.len().max(1);
        println!("{}: {moves} moves each", raw.name);
    }
    Ok(raws.into())
}

/// A pool that has been calm for a while, then one decision.
fn one(case: Case, seed: u64) -> Result<(f64, usize)> {
    let mut random = Random(seed);
    let pool = pool(case, &mut random)?;
    let unfit = unfit(case);
    let places = pool.node_indices().map(|node| {
        let fits = |s: &SiteIndex| unfit.get(&node).is_none_or(|sites| !sites.contains(s));
        let useful = |s: &SiteIndex| pool.worth(*s, node) != Weight::NONE && fits(s);
        let first = SiteIndex(random.below(u64::from(SITES)) as u32);
        let next = |n| SiteIndex((first.0 + n) % SITES);
        (0..SITES).map(next).find(useful).map_or(Place::Spare, Place::Serving)
    });
    let places = places.collect();
    let mut pools = Pools::new(pool, places, PolicyKind::Keeptime.policy());
    for turn in 1..20 {
        let calm = loads(&pools, |_| 10);
        for step in pools.decide(Nanos::new(LOOK.get() * turn), &calm) {
            pools.happened(
                Nanos::new(LOOK.get() * turn),
                keeptime_pools::pools::Event::Arrived(step.node),
            );
        }
    }
    let flooded = |site: u32| !matches!(case, Case::Calm) && site.is_multiple_of(2);
    let loads = loads(&pools, |site| if flooded(site) { 2_000 } else { 10 });
    let mut moves = 0;
    let time = timed(|| {
        pools.fit(unfit);
        moves = pools.decide(Nanos::from_secs(3), &loads).len();
    });
    Ok((time * 1e3, moves))
}

/// The sites that ask for more of a node than jobs leave of it.
fn unfit(case: Case) -> BTreeMap<NodeIndex, BTreeSet<SiteIndex>> {
    let Case::Jobs(parts) = case else { return BTreeMap::new() };
    let of_node = |node: u32| {
        let free = node / KINDS % (2 * parts) + 1;
        let asks_for_more = |site: &u32| site % parts + 1 > free;
        let sites: BTreeSet<_> = (0..SITES).filter(asks_for_more).map(SiteIndex).collect();
        (!sites.is_empty()).then_some((NodeIndex(node), sites))
    };
    (0..NODES).filter_map(of_node).collect()
}

fn pool(case: Case, random: &mut Random) -> Result<Pool> {
    let kinds = (0..KINDS).map(|kind| format!("kind-{kind}").parse()).collect::<Result<_, _>>()?;
    let nodes = (0..NODES).map(|node| KindIndex(node % KINDS)).collect();
    let sites = (0..SITES).map(|site| {
        let weight = |kind: u32| match case {
            Case::Chains if (kind + site) % KINDS > 1 => Weight::NONE,
            _ => Weight::STANDARD,
        };
        Ok(Site {
            name: format!("site-{site}").parse()?,
            guarantee: Guarantee { hard: 4, soft: 30, max: 200 },
            priority: random.below(5) as u32,
            weights: (0..KINDS).map(weight).collect(),
        })
    });
    Ok(Pool::new(kinds, nodes, sites.collect::<Result<_>>()?)?)
}

/// So many requests of 10 ms arrive at each site in a look.
fn loads(pools: &Pools, arrived: impl Fn(u32) -> u64) -> Loads {
    let mut loads = Loads::silent(SITES as usize, NODES as usize, LOOK);
    let counts = pools.holdings().counts(SITES as usize);
    for site in 0..SITES {
        let (arrived, serving) = (arrived(site), u64::from(counts[site as usize].serving).max(1));
        let completed = arrived.min(serving * 10);
        let queued = arrived - completed;
        let load = SiteLoad { arrived, completed, queued, in_flight: serving };
        loads.sites[site as usize] = Some(load);
        let busy = Share::from_percent((completed * 10 / serving) as u32);
        for (node, place) in pools.holdings().nodes() {
            if place == Place::Serving(SiteIndex(site)) {
                loads.nodes[node.0 as usize] = busy;
            }
        }
    }
    loads
}
