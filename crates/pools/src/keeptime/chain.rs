//! Ways of a node to a site that cannot use it, by way of sites that can.

use super::allocation::{Link, Source};
use super::draft::{Claim, Draft, Loss};
use super::reversals::Reversals;
use crate::pool::{KindIndex, SiteIndex};
use std::cmp::Reverse;

/// Most moves of a chain: each takes a drain, and the site waits for all of them.
pub const CHAIN_MAX: usize = 4;

/// A site that would give a node of a kind to another, if it got one of another kind.
#[derive(Debug, Clone, Copy)]
struct Swap {
    site: SiteIndex,
    kind: KindIndex,
    /// The swap that gets it; the claimant if there is none.
    to: Option<usize>,
    depth: usize,
}

/// Who may end a chain by giving a node of some kind, from the one that loses least.
type Ends = Vec<(Loss, u32, Option<SiteIndex>)>;

/// The chain whose last giver loses least, at most `most`; then the one that gains most, then the
/// shortest: breadth first from the claimant, each site being asked once for each kind of node.
pub(super) fn chain(
    draft: &Draft<'_>,
    claim: &Claim,
    reversals: &Reversals,
    most: Loss,
) -> Option<Source> {
    let ends: Vec<Ends> = draft.kinds().map(|kind| ends(draft, claim, kind, most)).collect();
    if ends.iter().all(Vec::is_empty) {
        return None;
    }
    let may = |from: Option<SiteIndex>, to: SiteIndex, loss: Loss| {
        !reversals.is_reversal(draft.view.now, from, to)
            || draft.may_reverse(claim, from, loss, reversals)
    };
    // A site on the way loses nothing.
    let may_swap = |from: SiteIndex, to: SiteIndex| may(Some(from), to, Loss::Spare);
    let mut unasked: Vec<Vec<SiteIndex>> =
        draft.kinds().map(|kind| owners(draft, claim, kind).collect()).collect();
    let mut swaps = first_swaps(draft, claim, may_swap);
    let mut best: Option<Source> = None;
    let mut at = 0;
    while let Some(swap) = swaps.get(at).copied() {
        for kind in draft.kinds().filter(|kind| accepts(draft, claim, swap, *kind)) {
            let free = |(loss, _, giver): &&(Loss, u32, Option<SiteIndex>)| {
                giver.is_none_or(|site| !is_on_the_way(&swaps, at, site))
                    && may(*giver, swap.site, *loss)
            };
            if let Some((loss, _, giver)) = ends[kind.0 as usize].iter().find(free) {
                let links = links(&swaps, at, Link { giver: *giver, kind });
                let gain = draft.worth(claim.site, links[0].kind);
                let order = |loss, gain| (loss, Reverse(gain));
                if best.as_ref().is_none_or(|b| order(*loss, gain) < order(b.loss, b.gain)) {
                    best = Some(Source { loss: *loss, gain, links });
                }
            }
            // The last link is an end, not a swap.
            if swap.depth + 2 > CHAIN_MAX {
                continue;
            }
            unasked[kind.0 as usize].retain(|site| {
                // Who cannot be asked on this way may be of use on another.
                let waits = is_on_the_way(&swaps, at, *site) || !may_swap(*site, swap.site);
                if !waits {
                    let depth = swap.depth + 1;
                    swaps.push(Swap { site: *site, kind, to: Some(at), depth });
                }
                waits
            });
        }
        at += 1;
    }
    best
}

/// All who have what the claimant can use, from what is worth most to it.
fn first_swaps(
    draft: &Draft<'_>,
    claim: &Claim,
    may: impl Fn(SiteIndex, SiteIndex) -> bool,
) -> Vec<Swap> {
    let mut kinds: Vec<_> =
        draft.kinds().filter(|kind| draft.worth(claim.site, *kind) > 0).collect();
    kinds.sort_by_key(|kind| Reverse(draft.worth(claim.site, *kind)));
    let swaps = kinds.into_iter().flat_map(|kind| {
        owners(draft, claim, kind).map(move |site| Swap { site, kind, to: None, depth: 1 })
    });
    swaps.filter(|swap| may(swap.site, claim.site)).collect()
}

/// Other sites that have a node of `kind`.
fn owners(draft: &Draft<'_>, claim: &Claim, kind: KindIndex) -> impl Iterator<Item = SiteIndex> {
    let sites = draft.view.pool.site_indices();
    sites.filter(move |site| *site != claim.site && draft.has(Some(*site), kind))
}

fn ends(draft: &Draft<'_>, claim: &Claim, kind: KindIndex, most: Loss) -> Ends {
    let givers = draft.givers().filter(|giver| *giver != Some(claim.site));
    let mut ends: Ends = givers
        .filter_map(|giver| {
            let loss = draft.loss(giver, kind).filter(|loss| *loss <= most)?;
            let permitted = draft.permits(claim, giver, loss);
            permitted.then(|| (loss, draft.priority(giver), giver))
        })
        .collect();
    ends.sort();
    ends
}

/// Whether the swapping site takes a node of `kind` for the one that it gives.
fn accepts(draft: &Draft<'_>, claim: &Claim, swap: Swap, kind: KindIndex) -> bool {
    kind != swap.kind
        && draft.worth(swap.site, kind) > 0
        && draft.can_swap(claim, swap.site, swap.kind, kind)
}

/// Whether `site` is one of those from swap `at` to the claimant.
fn is_on_the_way(swaps: &[Swap], at: usize, site: SiteIndex) -> bool {
    way(swaps, at).any(|swap| swap.site == site)
}

/// From swap `at` to the one next to the claimant.
fn way(swaps: &[Swap], at: usize) -> impl Iterator<Item = Swap> + '_ {
    std::iter::successors(Some(swaps[at]), |swap| swap.to.map(|to| swaps[to]))
}

/// The whole chain, the claimant's giver first.
fn links(swaps: &[Swap], at: usize, end: Link) -> Vec<Link> {
    let way = way(swaps, at).map(|swap| Link { giver: Some(swap.site), kind: swap.kind });
    let mut links: Vec<_> = std::iter::once(end).chain(way).collect();
    links.reverse();
    links
}
