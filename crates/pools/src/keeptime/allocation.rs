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

/// Plans for all sites that need nodes and can have them.
///
/// Cost: `O(sites * kinds)` for each node that moves, and `O(sites * kinds^2)` for each search of a
/// chain, which has at most [`CHAIN_MAX`](super::CHAIN_MAX) moves.
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
        let Some(claim) = claims.max_by_key(|claim| draft.order(claim)) else { return plans };
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
}

/// The source that costs least; a chain where there is no direct one, where it costs nobody anything
/// and the direct one does, or where it brings a node that is worth twice as much.
fn find(draft: &Draft<'_>, claim: &Claim, reversals: &Reversals) -> Option<Source> {
    let direct = direct(draft, claim, reversals);
    if draft.is_indifferent(claim.site) {
        return direct;
    }
    let Some(direct) = direct else { return chain(draft, claim, reversals, Loss::Soft) };
    let is_free = |source: &Source| source.loss <= Loss::Idle;
    let is_better = |gain: u32| gain >= direct.gain.saturating_mul(2);
    let most = match is_better(draft.best_worth(claim.site)) {
        true => direct.loss,
        false if is_free(&direct) => return Some(direct),
        false => Loss::Idle,
    };
    let chain = chain(draft, claim, reversals, most)
        .filter(|chain| is_better(chain.gain) || (is_free(chain) && !is_free(&direct)));
    Some(chain.unwrap_or(direct))
}

fn direct(draft: &Draft<'_>, claim: &Claim, reversals: &Reversals) -> Option<Source> {
    let candidates = draft.givers().filter(|giver| *giver != Some(claim.site)).flat_map(|giver| {
        let reverses = reversals.is_reversal(draft.view.now, giver, claim.site);
        let (priority, surplus) = (draft.priority(giver), Reverse(draft.surplus(giver)));
        draft.kinds().filter_map(move |kind| {
            let (loss, gain) = (draft.loss(giver, kind)?, draft.worth(claim.site, kind));
            let may = gain > 0
                && draft.permits(claim, giver, loss)
                && (!reverses || draft.may_reverse(claim, giver, loss, reversals));
            may.then_some(((loss, priority, reverses, Reverse(gain), surplus, giver), kind))
        })
    });
    let ((loss, _, _, Reverse(gain), _, giver), kind) = candidates.min()?;
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
        draft.take(link.giver, taker, link.kind)
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
