//! Ways of a node to a site that cannot use it, by way of sites that can.

use super::allocation::{Link, Source};
use super::draft::{Claim, Draft, Loss};
use super::reversals::Reversals;
use crate::pool::{KindIndex, SiteIndex};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most moves of a chain: each takes a drain, and the site waits for all of them.
pub const CHAIN_MAX: usize = 4;

/// A site that would give a node of a kind to another, if it got one of another kind.
#[derive(Debug, Clone, Copy)]
struct Swap {
    site: SiteIndex,
    kind: KindIndex,
    /// The swap that gets it; the claimant if there is none.
    to: Option<usize>,
    /// What the claimant gains in the end.
    gain: u32,
}

/// Who may end a chain by giving a node of some kind, from the one that loses least.
type Ends = Vec<(Loss, u32, Option<SiteIndex>)>;

/// Who was not yet asked for a node of each kind.
type Unasked = BTreeMap<KindIndex, Vec<SiteIndex>>;

/// A search breadth first from the claimant, each site being asked once for each kind of node.
struct Search<'a> {
    draft: &'a Draft<'a>,
    claim: &'a Claim,
    reversals: &'a Reversals,
    ends: BTreeMap<KindIndex, Ends>,
    /// No end loses less.
    least: Loss,
    swaps: Vec<Swap>,
}

/// The `direct` source, or a longer way that is worth while: of several the shortest, then the one whose last giver loses
/// least, then the one that gains most.
pub(super) fn chain(
    draft: &Draft<'_>,
    claim: &Claim,
    reversals: &Reversals,
    direct: Option<Source>,
) -> Option<Source> {
    let mut best = direct;
    let Some(limit) = most_of_longer(best.as_ref(), draft.best_worth(claim.site)) else {
        return best;
    };
    let ends = ends(draft, claim, limit);
    let Some(least) = ends.values().map(|ends| ends[0].0).min() else { return best };
    let mut search = Search { draft, claim, reversals, ends, least, swaps: Vec::new() };
    search.swaps = search.first_swaps(best.as_ref());
    let (mut layer, mut unasked) = (0..search.swaps.len(), None);
    for moves in 2..=CHAIN_MAX {
        best = search.end(layer.clone(), best.as_ref()).or(best);
        let is_worth_while = |at: &usize| search.may_lead(best.as_ref(), search.swaps[*at].gain);
        let asking: Vec<_> = layer.clone().filter(is_worth_while).collect();
        if asking.is_empty() || moves == CHAIN_MAX {
            break;
        }
        let unasked = unasked.get_or_insert_with(|| nobody_asked(draft, claim));
        asking.into_iter().for_each(|at| search.ask(at, unasked));
        layer = layer.end..search.swaps.len();
    }
    best
}

/// What a way that gains so much may cost if it is longer than the best one so far; nothing if it is not worth a move more.
/// It is where it brings a node that is worth twice as much, or costs nobody anything and the best one does.
fn most_of_longer(best: Option<&Source>, gain: u32) -> Option<Loss> {
    let Some(best) = best else { return Some(Loss::Soft) };
    let is_free = best.loss <= Loss::Idle;
    match gain >= best.gain.saturating_mul(2) {
        true => Some(best.loss),
        false => (!is_free).then_some(Loss::Idle),
    }
}

/// Who has what, but for the claimant.
fn nobody_asked(draft: &Draft<'_>, claim: &Claim) -> Unasked {
    let mut unasked = Unasked::new();
    for (site, kind) in draft.owners().filter(|(site, _)| *site != claim.site) {
        unasked.entry(kind).or_default().push(site);
    }
    unasked
}

/// Who may give a node at a loss of at most `most`, by its kind.
fn ends(draft: &Draft<'_>, claim: &Claim, most: Loss) -> BTreeMap<KindIndex, Ends> {
    let may = |giver, loss: &Loss| *loss <= most && draft.permits(claim, giver, *loss);
    let mut ends = BTreeMap::<_, Ends>::new();
    for giver in draft.givers().filter(|giver| *giver != Some(claim.site)) {
        if !draft.least_loss(giver).is_some_and(|loss| may(giver, &loss)) {
            continue;
        }
        for kind in draft.kinds(giver) {
            if let Some(loss) = draft.loss(giver, kind).filter(|loss| may(giver, loss)) {
                ends.entry(kind).or_default().push((loss, draft.priority(giver), giver));
            }
        }
    }
    ends.values_mut().for_each(|ends| ends.sort_unstable());
    ends
}

impl Search<'_> {
    /// Whether a longer way than `best` that gains so much could be worth while.
    fn may_lead(&self, best: Option<&Source>, gain: u32) -> bool {
        most_of_longer(best, gain) >= Some(self.least)
    }

    /// All who have what the claimant can use, from what is worth most to it, where that may be worth while.
    fn first_swaps(&self, direct: Option<&Source>) -> Vec<Swap> {
        let claimant = self.claim.site;
        let owners = self.draft.owners().filter(|(site, _)| *site != claimant);
        let useful = owners.filter_map(|(site, kind)| {
            let gain = self.draft.worth(claimant, kind);
            let may = gain > 0 && self.may_lead(direct, gain) && self.may_swap(site, claimant);
            may.then_some(Swap { site, kind, to: None, gain })
        });
        let mut swaps: Vec<_> = useful.collect();
        swaps.sort_unstable_by_key(|swap| (Reverse(swap.gain), swap.kind, swap.site));
        swaps
    }

    /// The best way that ends at one of `layer`, which gain less and less, and is worth while, `shorter` being the best
    /// that is shorter.
    fn end(&self, layer: Range<usize>, shorter: Option<&Source>) -> Option<Source> {
        let mut best: Option<Source> = None;
        for at in layer {
            let gain = self.swaps[at].gain;
            let is_better = |loss| {
                Some(loss) <= most_of_longer(shorter, gain)
                    && best.as_ref().is_none_or(|best| loss < best.loss)
            };
            if !is_better(self.least) {
                continue;
            }
            if let Some((loss, end)) = self.end_at(at).filter(|(loss, _)| is_better(*loss)) {
                best = Some(Source { loss, gain, links: self.links(at, end) });
            }
        }
        best
    }

    /// Who loses least of those that have what swap `at` needs; of what it needs, what is worth least to it.
    fn end_at(&self, at: usize) -> Option<(Loss, Link)> {
        let swap = self.swaps[at];
        let accepted = self.ends.iter().filter(|(kind, _)| self.accepts(swap, **kind));
        let ends = accepted.filter_map(|(kind, ends)| {
            let is_free = |(loss, _, giver): &&(Loss, u32, Option<SiteIndex>)| {
                giver.is_none_or(|site| !self.is_on_the_way(at, site))
                    && self.may(*giver, swap.site, *loss)
            };
            let (loss, _, giver) = *ends.iter().find(is_free)?;
            Some((loss, Link { giver, kind: *kind }))
        });
        ends.min_by_key(|(loss, link)| (*loss, self.draft.worth(swap.site, link.kind)))
    }

    /// Asks all who have what swap `at` needs.
    fn ask(&mut self, at: usize, unasked: &mut Unasked) {
        let swap = self.swaps[at];
        for (kind, sites) in unasked {
            if !self.accepts(swap, *kind) {
                continue;
            }
            // Who cannot be asked on this way may be of use on another.
            let may = |site: &mut SiteIndex| {
                !self.is_on_the_way(at, *site) && self.may_swap(*site, swap.site)
            };
            let asked: Vec<_> = sites.extract_if(.., may).collect();
            let asked = asked.into_iter();
            self.swaps.extend(asked.map(|site| Swap { site, kind: *kind, to: Some(at), ..swap }));
        }
    }

    fn may(&self, from: Option<SiteIndex>, to: SiteIndex, loss: Loss) -> bool {
        !self.reversals.is_reversal(self.draft.view.now, from, to)
            || self.draft.may_reverse(self.claim, from, loss, self.reversals)
    }

    /// A site on the way loses nothing.
    fn may_swap(&self, from: SiteIndex, to: SiteIndex) -> bool {
        self.may(Some(from), to, Loss::Spare)
    }

    /// Whether the swapping site takes a node of `kind` for the one that it gives.
    fn accepts(&self, swap: Swap, kind: KindIndex) -> bool {
        kind != swap.kind
            && self.draft.worth(swap.site, kind) > 0
            && self.draft.can_swap(self.claim, swap.site, swap.kind, kind)
    }

    /// Whether `site` is one of those from swap `at` to the claimant.
    fn is_on_the_way(&self, at: usize, site: SiteIndex) -> bool {
        self.way(at).any(|swap| swap.site == site)
    }

    /// From swap `at` to the one next to the claimant.
    fn way(&self, at: usize) -> impl Iterator<Item = Swap> {
        std::iter::successors(Some(self.swaps[at]), |swap| swap.to.map(|to| self.swaps[to]))
    }

    /// The whole chain, the claimant's giver first.
    fn links(&self, at: usize, end: Link) -> Vec<Link> {
        let way = self.way(at).map(|swap| Link { giver: Some(swap.site), kind: swap.kind });
        let mut links: Vec<_> = std::iter::once(end).chain(way).collect();
        links.reverse();
        links
    }
}
