//! The searches against looking at every way that there is.

use super::allocation::{Link, Need, Source, direct};
use super::chain::{CHAIN_MAX, chain};
use super::draft::{Claim, Draft, Loss};
use super::reversals::Reversals;
use super::shortages::Shortages;
use crate::holdings::{Holdings, Place};
use crate::load::Loads;
use crate::policy::View;
use crate::pool::{Guarantee, KindIndex, Pool, Site, SiteIndex, Weight};
use keeptime_model::units::Nanos;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeSet;

const KINDS: usize = 4;
const NODES: std::ops::Range<usize> = 6..24;
const NOW: Nanos = Nanos::from_secs(1);

/// A pool, who has its nodes, what sites need, and moves of shortly before.
type State = (Pool, Vec<Place>, Vec<Need>, Vec<(SiteIndex, SiteIndex)>);

fn some_state() -> impl Strategy<Value = State> {
    let weights = prop::sample::select(vec![0u32, 400, 1_000, 1_100]);
    let weights = prop::collection::vec(weights.prop_map(|w| Weight::try_from(w).unwrap()), KINDS);
    let need = (0..6_000u32, any::<bool>(), 0..6_000u32);
    let sites = prop::collection::vec((0..3u32, 0..3u32, weights, need), 2..6);
    let nodes = prop::collection::vec((0..KINDS as u32, 0..6u32), NODES);
    let moved = prop::collection::vec((0..6u32, 0..6u32), 0..6);
    (sites, nodes, moved).prop_filter_map("hard guarantees", |(sites, nodes, moved)| {
        let known = |site: &u32| (*site as usize) < sites.len();
        let moved = moved.into_iter().filter(|(from, to)| known(from) && known(to) && from != to);
        let moved = moved.map(|(from, to)| (SiteIndex(from), SiteIndex(to))).collect();
        let place =
            |site| if known(&site) { Place::Serving(SiteIndex(site)) } else { Place::Spare };
        let places = nodes.iter().map(|(_, site)| place(*site)).collect();
        let need = |(now, is_urgent, held): (u32, bool, u32)| Need {
            urgent: if is_urgent { now } else { 0 },
            now,
            held: held.max(now),
            lasting: None,
        };
        let needs = sites.iter().map(|(.., needs)| need(*needs)).collect();
        let site = |(at, (soft, priority, weights, _)): (usize, (u32, u32, Vec<Weight>, _))| Site {
            name: format!("site-{at}").parse().unwrap(),
            guarantee: Guarantee { hard: 1, soft: 1 + soft, max: 8 },
            priority,
            weights,
        };
        let kinds = (0..KINDS).map(|kind| format!("kind-{kind}").parse().unwrap()).collect();
        let nodes = nodes.iter().map(|(kind, _)| KindIndex(*kind)).collect();
        let pool = Pool::new(kinds, nodes, sites.into_iter().enumerate().map(site).collect());
        Some((pool.ok()?, places, needs, moved))
    })
}

/// Asks `check` about every site that needs a node.
fn each_claim(
    (pool, places, needs, moved): State,
    check: impl Fn(&Draft<'_>, &Claim, &Reversals) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let holdings = Holdings::new(places);
    let loads = Loads::silent(pool.sites().len(), pool.nodes().len(), NOW);
    let view = View { now: NOW, pool: &pool, holdings: &holdings, loads: &loads };
    let draft = Draft::new(&view, &needs, &mut Shortages::default());
    let mut reversals = Reversals::new(Nanos::from_secs(60));
    moved.into_iter().for_each(|(from, to)| reversals.count(NOW, Some(from), to));
    let mut claims = pool.site_indices().filter_map(|site| draft.claim(site));
    claims.try_for_each(|claim| check(&draft, &claim, &reversals))
}

/// Who else can give what.
fn gifts(draft: &Draft<'_>, claim: &Claim) -> Vec<(Option<SiteIndex>, KindIndex, Loss)> {
    let givers = draft.givers().filter(|giver| *giver != Some(claim.site));
    let gifts = givers.flat_map(|giver| draft.kinds(giver).map(move |kind| (giver, kind)));
    let gifts = gifts.filter_map(|(giver, kind)| Some((giver, kind, draft.loss(giver, kind)?)));
    gifts.filter(|(giver, _, loss)| draft.permits(claim, *giver, *loss)).collect()
}

fn may(
    draft: &Draft<'_>,
    claim: &Claim,
    reversals: &Reversals,
    (from, to): (Option<SiteIndex>, SiteIndex),
    loss: Loss,
) -> bool {
    !reversals.is_reversal(NOW, from, to) || draft.may_reverse(claim, from, loss, reversals)
}

/// The loss and the gain of the best chain of two moves.
fn best_of_two(
    draft: &Draft<'_>,
    claim: &Claim,
    reversals: &Reversals,
) -> Option<(Loss, Reverse<u32>)> {
    let owners = draft.owners().filter(|(site, kind)| {
        *site != claim.site
            && draft.worth(claim.site, *kind) > 0
            && may(draft, claim, reversals, (Some(*site), claim.site), Loss::Spare)
    });
    let gifts = gifts(draft, claim);
    let chains = owners.flat_map(|(site, kind)| {
        let fits = gifts.iter().filter(move |(giver, new, loss)| {
            *giver != Some(site)
                && *new != kind
                && draft.worth(site, *new) > 0
                && draft.can_swap(claim, site, kind, *new)
                && may(draft, claim, reversals, (*giver, site), *loss)
        });
        fits.map(move |(_, _, loss)| (*loss, Reverse(draft.worth(claim.site, kind))))
    });
    chains.min()
}

/// Nobody is asked twice, each can use what it gets, and gains and losses are as told.
fn check_links(draft: &Draft<'_>, claim: &Claim, source: &Source) -> Result<(), TestCaseError> {
    let mut taker = Some(claim.site);
    let mut seen = BTreeSet::from([taker]);
    for Link { giver, kind } in &source.links {
        prop_assert!(seen.insert(*giver), "{source:?}");
        prop_assert!(draft.kinds(*giver).any(|has| has == *kind), "{source:?}");
        prop_assert!(taker.is_some_and(|site| draft.worth(site, *kind) > 0), "{source:?}");
        taker = *giver;
    }
    let last = source.links[source.links.len() - 1];
    prop_assert_eq!(draft.loss(last.giver, last.kind), Some(source.loss));
    prop_assert_eq!(draft.worth(claim.site, source.links[0].kind), source.gain);
    prop_assert!(source.links.len() <= CHAIN_MAX);
    Ok(())
}

/// Whether a longer way costs nobody anything and the shorter one does, or gains twice as much.
fn is_worth_while(longer: &Source, loss: Loss, gain: u32) -> bool {
    let is_free = longer.loss <= Loss::Idle && loss > Loss::Idle;
    is_free || (longer.gain >= 2 * gain && longer.loss <= loss)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn one_move_is_the_best_of_all(state in some_state()) {
        each_claim(state, |draft, claim, reversals| {
            let gifts = gifts(draft, claim).into_iter().filter_map(|(giver, kind, loss)| {
                let gain = draft.worth(claim.site, kind);
                let may = may(draft, claim, reversals, (giver, claim.site), loss) && gain > 0;
                let reverses = reversals.is_reversal(NOW, giver, claim.site);
                let (priority, surplus) = (draft.priority(giver), Reverse(draft.surplus(giver)));
                may.then_some(((loss, priority, reverses, Reverse(gain), surplus, giver), kind))
            });
            let best = gifts.min();
            let best = best.map(|((loss, _, _, gain, _, giver), kind)| (loss, gain.0, giver, kind));
            let found = direct(draft, claim, reversals).map(|source| {
                let Link { giver, kind } = source.links[0];
                (source.loss, source.gain, giver, kind)
            });
            prop_assert_eq!(found, best);
            Ok(())
        })?;
    }

    #[test]
    fn a_chain_is_the_best_of_two_moves_or_a_longer_one_that_is_worth_while(state in some_state()) {
        each_claim(state, |draft, claim, reversals| {
            let Some(found) = chain(draft, claim, reversals, None) else {
                prop_assert_eq!(best_of_two(draft, claim, reversals), None);
                return Ok(());
            };
            match (found.links.len(), best_of_two(draft, claim, reversals)) {
                (2, best) => prop_assert_eq!(Some((found.loss, Reverse(found.gain))), best),
                (_, Some((loss, Reverse(gain)))) => prop_assert!(is_worth_while(&found, loss, gain)),
                (_, None) => {}
            }
            check_links(draft, claim, &found)
        })?;
    }

    #[test]
    fn a_chain_instead_of_one_move_is_worth_while(state in some_state()) {
        each_claim(state, |draft, claim, reversals| {
            let Some(short) = direct(draft, claim, reversals) else { return Ok(()) };
            let (loss, gain) = (short.loss, short.gain);
            let Some(found) = chain(draft, claim, reversals, Some(short)) else {
                return Err(TestCaseError::fail("what is found is not lost"));
            };
            prop_assert!(found.links.len() == 1 || is_worth_while(&found, loss, gain), "{found:?}");
            check_links(draft, claim, &found)
        })?;
    }
}
