//! What everybody would hold when all plans so far had ended: a decision's working state.

use super::allocation::{Need, Rank};
use super::reversals::Reversals;
use super::shortages::{Shortages, is_urgent};
use crate::holdings::Place;
use crate::plan::Step;
use crate::policy::View;
use crate::pool::{KindIndex, Site, SiteIndex, Weight};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Who has work for so much of its nodes keeps up, whatever comes by chance. Of 85, 90 and 95, 90 leaves sites
/// short of nodes for a third of the time that 85 does, and 95 moves half as many nodes again.
const KEEPS_UP_PERCENT: u32 = 90;

/// Holdings as they will be.
pub(super) struct Draft<'a> {
    pub view: &'a View<'a>,
    pub needs: &'a [Need],
    sites: Vec<Expected>,
    /// What a node is worth to each site at most.
    best: Vec<u32>,
    /// Since when each site has been short.
    short_since: Vec<Option<Nanos>>,
    /// Movable nodes by place (sites in their order, then spares) and kind, where there are some.
    stock: Vec<BTreeMap<KindIndex, Vec<NodeIndex>>>,
}

/// What a site will have.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// Nodes that serve it now and that nothing takes away.
    staying: u32,
    /// Those of them that no plan may take.
    barred: u32,
    /// Those that serve it and stay, and the ones that come.
    nodes: u32,
    /// What those are worth.
    capacity: u32,
}

/// A site that needs a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub site: SiteIndex,
    pub rank: Rank,
    /// It cannot keep up with what arrives and waits, beyond chance.
    pub urgent: bool,
    nodes: u32,
    missing: u32,
}

/// What giving a node away costs its giver, from nothing to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// It serves nobody.
    Spare,
    /// It was not needed lately, or its giver may not have it.
    Idle,
    /// It is not needed now, but was lately.
    Held,
    /// It is needed for short waits alone, beyond the soft guarantee: its giver keeps up without.
    Slower,
    /// It is needed, beyond the soft guarantee.
    Extra,
    /// It is needed, within the soft guarantee.
    Soft,
}

impl<'a> Draft<'a> {
    pub fn new(view: &'a View<'a>, needs: &'a [Need], shortages: &mut Shortages) -> Self {
        let sites = view.pool.sites().len();
        let mut draft = Self {
            view,
            needs,
            sites: vec![Expected::default(); sites],
            best: view.pool.sites().iter().map(best_weight).collect(),
            short_since: Vec::with_capacity(sites),
            stock: vec![BTreeMap::new(); sites + 1],
        };
        for (node, place) in view.holdings.nodes() {
            let reservation = view.holdings.reservation(node);
            let to = reservation.map_or_else(|| serving(place), |reservation| reservation.to);
            if let Some(site) = to {
                draft.sites[site.0 as usize].nodes += 1;
                draft.sites[site.0 as usize].capacity += view.pool.worth(site, node).thousandths();
            }
            if let (Place::Serving(site), None) = (place, reservation) {
                let barred = u32::from(view.holdings.is_barred(node));
                draft.sites[site.0 as usize].staying += 1;
                draft.sites[site.0 as usize].barred += barred;
            }
        }
        for (node, from) in view.holdings.movable() {
            draft.stock_mut(from).entry(view.pool.kind(node)).or_default().push(node);
        }
        for (site, need) in view.pool.site_indices().zip(needs) {
            let short = need.urgent.saturating_sub(draft.sites[site.0 as usize].capacity);
            draft.short_since.push(shortages.see(view.now, site, short));
        }
        draft
    }

    /// All who can give: the spares, then the sites.
    pub fn givers(&self) -> impl Iterator<Item = Option<SiteIndex>> + use<> {
        std::iter::once(None).chain(self.view.pool.site_indices().map(Some))
    }

    /// The kinds of which `giver` has nodes that no plan has taken.
    pub fn kinds(&self, giver: Option<SiteIndex>) -> impl Iterator<Item = KindIndex> + use<'_> {
        self.stock[self.row(giver)].keys().copied()
    }

    /// Sites and the kinds of which they have nodes that no plan has taken.
    pub fn owners(&self) -> impl Iterator<Item = (SiteIndex, KindIndex)> + use<'_> {
        let sites = self.view.pool.site_indices();
        sites.flat_map(|site| self.kinds(Some(site)).map(move |kind| (site, kind)))
    }

    /// Priority of a giver; spares come before all.
    pub fn priority(&self, giver: Option<SiteIndex>) -> u32 {
        giver.map_or(0, |site| self.view.pool.site(site).priority)
    }

    /// What `site` asks for, if it needs a node.
    pub fn claim(&self, site: SiteIndex) -> Option<Claim> {
        let guarantee = self.view.pool.site(site).guarantee;
        let need = self.needs[site.0 as usize];
        let Expected { nodes, capacity, .. } = self.sites[site.0 as usize];
        let rank = if nodes < guarantee.hard {
            Rank::Hard
        } else if capacity >= need.now || nodes >= guarantee.max {
            return None;
        } else if nodes < guarantee.soft {
            Rank::Soft
        } else {
            Rank::Extra
        };
        let missing = need.now.saturating_sub(capacity);
        let short = need.urgent.saturating_sub(capacity);
        let urgent = is_urgent(self.view.now, short, self.short_since[site.0 as usize]);
        Some(Claim { site, rank, urgent, nodes, missing })
    }

    /// Whether `claim` may take a node though that undoes a move of shortly before: for a hard
    /// guarantee; where the site cannot keep up, unless it is that two equals both need what is beyond
    /// their guarantees; and as long as there is a reversal left.
    pub fn may_reverse(
        &self,
        claim: &Claim,
        giver: Option<SiteIndex>,
        loss: Loss,
        reversals: &Reversals,
    ) -> bool {
        let own = self.view.pool.site(claim.site).priority;
        let is_even = claim.rank == Rank::Extra && own <= self.priority(giver);
        let is_pressing = claim.urgent && !(loss >= Loss::Slower && is_even);
        claim.rank == Rank::Hard || is_pressing || reversals.is_left()
    }

    /// Who goes first: the rank, the priority, who cannot keep up, then who has least, then who lacks most.
    pub fn order(&self, claim: &Claim) -> impl Ord + use<> {
        let priority = self.view.pool.site(claim.site).priority;
        let least = std::cmp::Reverse(claim.nodes);
        (claim.rank, priority, claim.urgent, least, claim.missing, std::cmp::Reverse(claim.site))
    }

    /// What it would cost `giver` to give a node of `kind`, one of its [kinds](Self::kinds); nothing if that is within
    /// its hard guarantee.
    pub fn loss(&self, giver: Option<SiteIndex>, kind: KindIndex) -> Option<Loss> {
        self.loss_of(giver, giver.map_or(0, |site| self.worth(site, kind)))
    }

    /// No node costs `giver` less; nothing if it has none to give.
    pub fn least_loss(&self, giver: Option<SiteIndex>) -> Option<Loss> {
        self.kinds(giver).next().and_then(|_| self.loss_of(giver, 0))
    }

    /// What it would cost `giver` to give a node that is worth so much to it.
    fn loss_of(&self, giver: Option<SiteIndex>, worth: u32) -> Option<Loss> {
        let Some(site) = giver else { return Some(Loss::Spare) };
        let guarantee = self.view.pool.site(site).guarantee;
        let need = self.needs[site.0 as usize];
        let Expected { staying, nodes, capacity, .. } = self.sites[site.0 as usize];
        if staying <= guarantee.hard {
            return None;
        }
        let rest = capacity.saturating_sub(worth);
        Some(if rest >= need.held.max(need.now) || self.has_too_many(site) {
            Loss::Idle
        } else if rest >= need.now {
            Loss::Held
        } else if nodes > guarantee.soft {
            let keeps_up = rest.saturating_mul(KEEPS_UP_PERCENT) / 100 >= need.urgent;
            if keeps_up { Loss::Slower } else { Loss::Extra }
        } else {
            Loss::Soft
        })
    }

    /// A kind of which `site` has a node that it has not needed for long, beyond its soft guarantee, or one more than it may
    /// have: the one that is worth least to it.
    pub fn dispensable(&self, site: SiteIndex) -> Option<KindIndex> {
        let guarantee = self.view.pool.site(site).guarantee;
        let Expected { staying, nodes, capacity, .. } = self.sites[site.0 as usize];
        if staying.min(nodes) <= guarantee.soft.max(guarantee.hard) {
            return None;
        }
        let kind = self.kinds(Some(site)).min_by_key(|kind| self.worth(site, *kind))?;
        let lasting = self.needs[site.0 as usize].lasting;
        let rest = capacity.saturating_sub(self.worth(site, kind));
        let is_unneeded = lasting.is_some_and(|lasting| rest >= lasting);
        (is_unneeded || self.has_too_many(site)).then_some(kind)
    }

    /// Whether `site` has, and will have, more nodes than it may. Those that nobody may take now may not be there.
    pub fn has_too_many(&self, site: SiteIndex) -> bool {
        let Expected { staying, nodes, barred, .. } = self.sites[site.0 as usize];
        staying.min(nodes).saturating_sub(barred) > self.view.pool.site(site).guarantee.max
    }

    /// Whether `claim` may cause such a loss.
    pub fn permits(&self, claim: &Claim, giver: Option<SiteIndex>, loss: Loss) -> bool {
        let Some(site) = giver else { return true };
        let own = self.view.pool.site(claim.site).priority;
        let other = self.view.pool.site(site).priority;
        // Among equals, what is beyond the soft guarantees is shared evenly.
        let uneven = own == other && self.sites[site.0 as usize].nodes >= claim.nodes + 2;
        let better = claim.rank != Rank::Extra || own > other;
        match loss {
            Loss::Spare | Loss::Idle => true,
            Loss::Held => claim.urgent || better || uneven,
            // An equal that needs its nodes gives none to one that only waits longer than it should: it
            // might not keep up itself then.
            // Longer waits for one that keeps up are less than a queue that grows and grows.
            Loss::Slower => better || (claim.urgent && own >= other),
            Loss::Extra => better || (uneven && claim.urgent),
            Loss::Soft => claim.rank == Rank::Hard || (claim.rank == Rank::Soft && own > other),
        }
    }

    /// Whether `site` is no worse off with a node of `gets` in place of one of `gives`. A hard
    /// guarantee counts nodes, whatever they are worth.
    pub fn can_swap(
        &self,
        claim: &Claim,
        site: SiteIndex,
        gives: KindIndex,
        gets: KindIndex,
    ) -> bool {
        let capacity = self.sites[site.0 as usize].capacity;
        let then = capacity - self.worth(site, gives).min(capacity) + self.worth(site, gets);
        claim.rank == Rank::Hard || then >= capacity.min(self.needs[site.0 as usize].now)
    }

    /// How much more than it needs `giver` has.
    pub fn surplus(&self, giver: Option<SiteIndex>) -> u32 {
        giver.map_or(0, |site| {
            let capacity = self.sites[site.0 as usize].capacity;
            capacity.saturating_sub(self.needs[site.0 as usize].now)
        })
    }

    /// Thousandths of a standard node.
    pub fn worth(&self, site: SiteIndex, kind: KindIndex) -> u32 {
        self.view.pool.weight(site, kind).thousandths()
    }

    /// Takes the node of `kind` from `from` that costs least for `to`, nothing for nobody: one that served `to` before its
    /// last move, which may have its files in memory yet, then the one of which least is taken.
    ///
    /// Cost: `O(nodes of that kind there)`.
    pub fn take(
        &mut self,
        from: Option<SiteIndex>,
        to: Option<SiteIndex>,
        kind: KindIndex,
    ) -> Option<Step> {
        let view = self.view;
        let cost = |node: NodeIndex| {
            let is_cold =
                |to| view.holdings.last_move(node).is_none_or(|last| last.from != Some(to));
            (to.is_some_and(is_cold), view.loads.taken(node), node)
        };
        let Entry::Occupied(mut stock) = self.stock_mut(from).entry(kind) else { return None };
        let (at, _) = stock.get().iter().enumerate().min_by_key(|(_, node)| cost(**node))?;
        let node = stock.get_mut().swap_remove(at);
        if stock.get().is_empty() {
            stock.remove();
        }
        if let Some(site) = from {
            let worth = self.worth(site, kind);
            let giver = &mut self.sites[site.0 as usize];
            giver.staying -= 1;
            giver.nodes -= 1;
            giver.capacity -= worth;
        }
        if let Some(site) = to {
            let worth = self.worth(site, kind);
            let taker = &mut self.sites[site.0 as usize];
            taker.nodes += 1;
            taker.capacity += worth;
        }
        Some(Step { node, from, to })
    }

    /// What the kind of node is worth to `site` that is worth most.
    pub fn best_worth(&self, site: SiteIndex) -> u32 {
        self.best[site.0 as usize]
    }

    /// Whether all kinds of node can serve `site` about as well: then no detour is worth while.
    pub fn is_indifferent(&self, site: SiteIndex) -> bool {
        let best = self.best_worth(site);
        let weights = &self.view.pool.site(site).weights;
        weights.iter().all(|weight| *weight != Weight::NONE && weight.thousandths() * 2 > best)
    }

    fn stock_mut(&mut self, place: Option<SiteIndex>) -> &mut BTreeMap<KindIndex, Vec<NodeIndex>> {
        let row = self.row(place);
        &mut self.stock[row]
    }

    fn row(&self, place: Option<SiteIndex>) -> usize {
        place.map_or(self.sites.len(), |site| site.0 as usize)
    }
}

fn best_weight(site: &Site) -> u32 {
    site.weights.iter().map(|weight| weight.thousandths()).max().unwrap_or(0)
}

fn serving(place: Place) -> Option<SiteIndex> {
    match place {
        Place::Serving(site) => Some(site),
        Place::Spare | Place::Leaving(_) | Place::Down => None,
    }
}

#[cfg(test)]
mod tests;
