//! What must hold, whatever is asked of a pool. Stated over whole states, node by node, apart from
//! the code that decides, so that one can be held against the other.
//!
//! 1. **No site below its hard guarantee, ever**: no start or end of a move takes a site below it;
//!    only a node that dies can. [`keeps_hard`]
//! 2. **Progress**: when a decision's moves have ended, no site needs a node that another would have to
//!    give it. [`neglected`]
//! 3. **Bounded time to reclaim**: what a site lacks of its guarantees comes by the moves of one
//!    decision, at most `CHAIN_MAX` drains one after the other, and stays while the needs stay. [`owed`]
//! 4. **No starvation**: a site that needs nodes has its hard guarantee at least; none lacks what is
//!    idle elsewhere, and among sites of one priority, while one cannot keep up with its requests, none that
//!    has more than its soft guarantee is two nodes ahead, or would keep up with a node less. [`starving`]
//!
//! The second and the last do not ask that equals share all nodes beyond their soft guarantees evenly, only
//! that one that keeps up with its requests shares with one that does not. Of eight nodes, let one site need
//! 4.1 to keep up and 5 for short waits, and its equal 2.4 and 4: with 5 and 3 both keep up, and the second
//! waits longer than it should; evenly, with 4 and 4, the first has a queue that grows without end, and is
//! not behind by anything that would bring its node back.
//!
//! The first holds for `rigid`, `reconf-pq` and `keeptime`, the others for `keeptime`.
//! `tests/small_states.rs` checks all of them over all states of small pools, `tests/random_walk.rs`
//! by random search in large ones, with nodes that die and news that is late.

use keeptime_model::topology::NodeIndex;
use keeptime_pools::holdings::{Count, Holdings, Place};
use keeptime_pools::keeptime::allocation::Need;
use keeptime_pools::pool::{Pool, SiteIndex, Weight};

/// A site in need and a node that it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neglect {
    /// The site.
    pub site: SiteIndex,
    /// The node.
    pub node: NodeIndex,
}

/// 1: whether every site has its hard guarantee after what happened, or as much as before.
pub fn keeps_hard(pool: &Pool, before: &Holdings, after: &Holdings) -> bool {
    let sites = pool.sites().len();
    let counts = before.counts(sites).into_iter().zip(after.counts(sites));
    counts
        .zip(pool.sites())
        .all(|((before, after), site)| after.serving >= before.serving.min(site.guarantee.hard))
}

/// 2: a site in need, and a node that it may have by one move and does not get.
pub fn neglected(pool: &Pool, holdings: &Holdings, needs: &[Need]) -> Option<Neglect> {
    let state = State::new(pool, holdings, needs);
    pool.site_indices().find_map(|site| {
        let mut nodes = holdings.movable();
        nodes
            .find(|(node, from)| state.may_take(site, *node, *from))
            .map(|(node, _)| Neglect { site, node })
    })
}

/// 3: sites that lack some of their guarantees while nodes are there that are not within those of
/// others, or only within soft ones of a lower priority.
pub fn owed(pool: &Pool, holdings: &Holdings, needs: &[Need]) -> Vec<SiteIndex> {
    let state = State::new(pool, holdings, needs);
    let lacks = |site: &SiteIndex| {
        let guarantee = pool.site(*site).guarantee;
        let nodes = state.counts[site.0 as usize].expected();
        let needs = state.capacity(*site) < needs[site.0 as usize].now;
        nodes < guarantee.hard || (needs && nodes < guarantee.soft)
    };
    let gives = |site: SiteIndex| {
        holdings.movable().any(|(node, from)| {
            let useful = pool.worth(site, node) != Weight::NONE && from != Some(site);
            useful
                && from.is_none_or(|other| {
                    let Count { staying, .. } = state.counts[other.0 as usize];
                    let guarantee = pool.site(other).guarantee;
                    let lower = pool.site(other).priority < pool.site(site).priority;
                    staying > guarantee.soft || (lower && staying > guarantee.hard)
                })
        })
    };
    pool.site_indices().filter(lacks).filter(|site| gives(*site)).collect()
}

/// 4: a site that lacks nodes though a spare, an idle node, or an equal's share is to be had.
pub fn starving(pool: &Pool, holdings: &Holdings, needs: &[Need]) -> Option<SiteIndex> {
    let state = State::new(pool, holdings, needs);
    pool.site_indices().find(|site| {
        let Count { serving, .. } = state.counts[site.0 as usize];
        let hungry = state.in_need(*site);
        let to_be_had = holdings.movable().any(|(node, from)| {
            let useful = pool.worth(*site, node) != Weight::NONE && from != Some(*site);
            useful
                && from.is_none_or(|other| {
                    let giver = state.counts[other.0 as usize];
                    let rest = state.capacity(other) - pool.worth(other, node).thousandths();
                    let need = needs[other.0 as usize];
                    let idle = rest >= need.now.max(need.held);
                    let equal = pool.site(other).priority == pool.site(*site).priority;
                    let ahead = giver.staying > pool.site(other).guarantee.soft
                        && (giver.staying >= serving + 2 || keeps_up(rest, need))
                        && state.is_short(*site);
                    giver.staying > pool.site(other).guarantee.hard && (idle || (equal && ahead))
                })
        });
        hungry && to_be_had
    })
}

/// Whether a site has work for no more than nine tenths of `rest`.
fn keeps_up(rest: u32, need: Need) -> bool {
    u64::from(rest) * 9 >= u64::from(need.urgent) * 10
}

struct State<'a> {
    pool: &'a Pool,
    holdings: &'a Holdings,
    needs: &'a [Need],
    counts: Vec<Count>,
}

impl<'a> State<'a> {
    fn new(pool: &'a Pool, holdings: &'a Holdings, needs: &'a [Need]) -> Self {
        Self { pool, holdings, needs, counts: holdings.counts(pool.sites().len()) }
    }

    /// What the nodes are worth that `site` has when all moves have ended.
    fn capacity(&self, site: SiteIndex) -> u32 {
        let nodes = self.holdings.nodes().filter(|(node, place)| {
            let reserved = self.holdings.reservation(*node);
            let there = *place == Place::Serving(site);
            reserved.map_or(there, |reservation| reservation.to == Some(site))
        });
        nodes.map(|(node, _)| self.pool.worth(site, node).thousandths()).sum()
    }

    /// Whether `site` cannot keep up with what arrives and waits.
    fn is_short(&self, site: SiteIndex) -> bool {
        self.capacity(site) < self.needs[site.0 as usize].urgent
    }

    fn in_need(&self, site: SiteIndex) -> bool {
        let guarantee = self.pool.site(site).guarantee;
        let nodes = self.counts[site.0 as usize].expected();
        let more = self.capacity(site) < self.needs[site.0 as usize].now;
        nodes < guarantee.hard || (more && nodes < guarantee.max)
    }

    /// Whether the rules give `site` this node of `from`.
    fn may_take(&self, site: SiteIndex, node: NodeIndex, from: Option<SiteIndex>) -> bool {
        let useful = self.pool.worth(site, node) != Weight::NONE && from != Some(site);
        if !useful || !self.in_need(site) {
            return false;
        }
        let Some(other) = from else { return true };
        let (own, theirs) = (self.pool.site(site), self.pool.site(other));
        let (has, they_have) =
            (self.counts[site.0 as usize].expected(), self.counts[other.0 as usize]);
        if they_have.staying <= theirs.guarantee.hard {
            return false;
        }
        let higher = own.priority > theirs.priority;
        let need = self.needs[other.0 as usize];
        let rest = self.capacity(other) - self.pool.worth(other, node).thousandths();
        let is_guaranteed = has < own.guarantee.soft;
        let is_hard = has < own.guarantee.hard;
        let is_urgent = self.is_short(site);
        let uneven = own.priority == theirs.priority && they_have.expected() >= has + 2;
        let only_waits = own.priority >= theirs.priority && keeps_up(rest, need);
        if rest >= need.now.max(need.held) {
            true
        } else if rest >= need.now {
            is_guaranteed || is_urgent || higher || uneven
        } else if they_have.expected() > theirs.guarantee.soft {
            is_guaranteed || higher || (is_urgent && (uneven || only_waits))
        } else {
            is_hard || (is_guaranteed && higher)
        }
    }
}
