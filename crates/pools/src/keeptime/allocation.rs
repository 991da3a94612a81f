//! Which nodes move for the sites that need some: from whom, and by which way.
//!
//! Nodes are claimed by rank: hard guarantees before soft ones before what lies beyond, and within a
//! rank by priority. Givers are asked from the one that it costs least to the one that it costs most:
//! spares, idle nodes, nodes that are held for needs that were, needed nodes beyond a soft guarantee,
//! needed nodes within one. No site gives what it has by its hard guarantee.
//!
//! Where the kinds of node differ, a site that can use none of the free ones may get one of another
//! site that can: a chain, whose last move makes the first possible in the end. Each site on the way
//! gets the new node before it gives the old one.

use super::chain::chain;
use super::draft::{Claim, Draft, Loss};
use super::reversals::Reversals;
use super::shortages::Shortages;
use crate::plan::{Plan, Reason, Step};
use crate::policy::View;
use crate::pool::{KindIndex, SiteIndex};
use std::cmp::Reverse;

/// What a site needs, in thousandths of a standard node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// To keep up with what arrives and waits; with less, its queue grows.
    pub urgent: u32,
    /// To keep the wait within bounds.
    pub now: u32,
    /// The most that it needed lately.
    pub held: u32,
    /// The most that it needed for so long that it can do without the rest; nothing if it is not known for so long.
    pub lasting: Option<u32>,
}

/// What a claim rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Need beyond the soft guarantee.
    Extra,
    /// Need within the soft guarantee.
    Soft,
    /// The hard guarantee.
    Hard,
}

/// One giver and the kind of the node that it gives, to the one before it or, first, the claimant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub giver: Option<SiteIndex>,
    pub kind: KindIndex,
}

/// Where a node can come from.
#[derive(Debug)]
pub(super) struct Source {
    pub loss: Loss,
    /// What the claimant gains.
    pub gain: u32,
    /// The claimant's giver first.
    pub links: Vec<Link>,
}

/// Plans for all sites that need nodes and can have them, and then for those that have had more than they need for long.
///
/// Cost for each node that moves: `O(sites * log sites)`, and of the pairs of a site and a kind that it has only those
/// that can be the best; for a search of a chain, `O(pairs * kinds)` at most.
pub fn allocate(
    view: &View<'_>,
    needs: &[Need],
    shortages: &mut Shortages,
    reversals: &mut Reversals,
) -> Vec<Plan> {
    let mut draft = Draft::new(view, needs, shortages);
    let mut refused = vec![false; needs.len()];
    let mut plans = Vec::new();
    // Every round either takes a node, of which there are so many, or refuses a site, which only a
    // taken node can undo.
    loop {
        let sites = view.pool.site_indices().filter(|site| !refused[site.0 as usize]);
        let claims = sites.filter_map(|site| draft.claim(site));
        let Some(claim) = claims.max_by_key(|claim| draft.order(claim)) else { break };
        let Some(source) = find(&draft, &claim, reversals) else {
            refused[claim.site.0 as usize] = true;
            continue;
        };
        for link in &source.links {
            if let Some(giver) = link.giver {
                refused[giver.0 as usize] = false;
            }
        }
        let steps = take(&mut draft, &claim, &source, reversals);
        plans.push(Plan { site: claim.site, reason: claim.rank.into(), steps });
    }
    for site in view.pool.site_indices() {
        // What is beyond the most goes at once, other nodes one by one.
        loop {
            let is_beyond = draft.has_too_many(site);
            let step = draft.dispensable(site).and_then(|kind| draft.take(Some(site), None, kind));
            let Some(step) = step else { break };
            let reason = if is_beyond { Reason::BeyondMost } else { Reason::LowLoad };
            plans.push(Plan::direct(site, reason, step));
            if !is_beyond {
                break;
            }
        }
    }
    plans
}

/// The source that costs least, by one move if there is one, or by a [`chain`] where that is worth while.
fn find(draft: &Draft<'_>, claim: &Claim, reversals: &Reversals) -> Option<Source> {
    let direct = direct(draft, claim, reversals);
    if draft.is_indifferent(claim.site) {
        return direct;
    }
    chain(draft, claim, reversals, direct)
}

/// A node that may be had by one move. The least is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    loss: Loss,
    priority: u32,
    reverses: bool,
    gain: Reverse<u32>,
    surplus: Reverse<u32>,
    giver: Option<SiteIndex>,
}

impl Candidate {
    /// No node of `giver` is less; nothing if it has none to give.
    fn least(
        draft: &Draft<'_>,
        claim: &Claim,
        reversals: &Reversals,
        giver: Option<SiteIndex>,
    ) -> Option<Self> {
        Some(Self {
            loss: draft.least_loss(giver)?,
            priority: draft.priority(giver),
            reverses: reversals.is_reversal(draft.view.now, giver, claim.site),
            gain: Reverse(draft.best_worth(claim.site)),
            surplus: Reverse(draft.surplus(giver)),
            giver,
        })
    }
}

/// The least node, and of several kinds the one of least use. Givers are looked through from the one that promises the
/// least, until none can have less than what was found.
pub(super) fn direct(draft: &Draft<'_>, claim: &Claim, reversals: &Reversals) -> Option<Source> {
    // Who may not cause a loss may not cause a greater one.
    let may = |candidate: &Candidate| {
        let Candidate { loss, reverses, giver, .. } = *candidate;
        draft.permits(claim, giver, loss)
            && (!reverses || draft.may_reverse(claim, giver, loss, reversals))
    };
    let givers = draft.givers().filter(|giver| *giver != Some(claim.site));
    let promises = givers.filter_map(|giver| Candidate::least(draft, claim, reversals, giver));
    let mut promises: Vec<_> = promises.filter(may).collect();
    promises.sort_unstable();
    let mut best: Option<(Candidate, KindIndex)> = None;
    for promise in promises {
        if best.is_some_and(|(best, _)| best <= promise) {
            break;
        }
        let nodes = draft.kinds(promise.giver).filter_map(|kind| {
            let gain = draft.worth(claim.site, kind);
            let loss = draft.loss(promise.giver, kind).filter(|_| gain > 0)?;
            Some((Candidate { loss, gain: Reverse(gain), ..promise }, kind))
        });
        best = best.into_iter().chain(nodes.filter(|(candidate, _)| may(candidate))).min();
    }
    let (Candidate { loss, gain: Reverse(gain), giver, .. }, kind) = best?;
    Some(Source { loss, gain, links: vec![Link { giver, kind }] })
}

/// Takes the nodes of `source`: the last giver's moves first.
fn take(
    draft: &mut Draft<'_>,
    claim: &Claim,
    source: &Source,
    reversals: &mut Reversals,
) -> Vec<Step> {
    let givers = source.links.iter().map(|link| link.giver);
    let takers: Vec<_> = std::iter::once(Some(claim.site)).chain(givers).flatten().collect();
    let pairs = source.links.iter().zip(takers).rev();
    let steps = pairs.filter_map(|(link, taker)| {
        reversals.count(draft.view.now, link.giver, taker);
        draft.take(link.giver, Some(taker), link.kind)
    });
    steps.collect()
}

impl From<Rank> for Reason {
    fn from(rank: Rank) -> Self {
        match rank {
            Rank::Hard => Self::BelowHard,
            Rank::Soft => Self::BelowSoft,
            Rank::Extra => Self::BelowNeed,
        }
    }
}
