//! What everybody means by a loss, an equal and a reversal, case by case: the searches and what they are compared with
//! ask the same.

use super::*;
use crate::holdings::Holdings;
use crate::load::Loads;
use crate::pool::{Guarantee, Pool};

const NOW: Nanos = Nanos::from_secs(10);
const FIRST: SiteIndex = SiteIndex(0);
const SECOND: SiteIndex = SiteIndex(1);
const LARGE: KindIndex = KindIndex(0);
const SMALL: KindIndex = KindIndex(1);

/// Two sites with so many large nodes each, and a spare of each kind.
struct Case {
    nodes: [u32; 2],
    priorities: [u32; 2],
    /// What the nodes of both kinds are worth to both.
    weights: [u32; 2],
    needs: [Need; 2],
}

impl Case {
    fn new(nodes: [u32; 2]) -> Self {
        let weights = [1_000, 400];
        Self { nodes, priorities: [1; 2], weights, needs: [Need::default(); 2] }
    }

    fn ask<T>(&self, question: impl FnOnce(&mut Draft<'_>) -> T) -> T {
        let site = |at: usize| Site {
            name: format!("site-{at}").parse().unwrap(),
            guarantee: Guarantee { hard: 1, soft: 2, max: 6 },
            priority: self.priorities[at],
            weights: self.weights.map(|weight| Weight::try_from(weight).unwrap()).to_vec(),
        };
        let [first, second] = self.nodes.map(|nodes| nodes as usize);
        let mut places = vec![Place::Serving(FIRST); first];
        places.extend(vec![Place::Serving(SECOND); second]);
        places.extend([Place::Spare; 2]);
        let mut nodes = vec![LARGE; places.len()];
        nodes[first + second + 1] = SMALL;
        let kinds = ["large", "small"].map(|kind| kind.parse().unwrap()).to_vec();
        let pool = Pool::new(kinds, nodes, vec![site(0), site(1)]).unwrap();
        let holdings = Holdings::new(places);
        let loads = Loads::silent(2, pool.nodes().len(), NOW);
        let view = View { now: NOW, pool: &pool, holdings: &holdings, loads: &loads };
        question(&mut Draft::new(&view, &self.needs, &mut Shortages::default()))
    }
}

/// All of it is needed to keep up.
fn need(urgent: u32) -> Need {
    Need { urgent, now: urgent, held: urgent, lasting: None }
}

#[test]
fn what_is_not_needed_for_short_waits_keeps_up_with_a_tenth_to_spare() {
    // Of four nodes one is given: three are left, of which there is work for nine tenths.
    for (urgent, expected) in [(2_700, Loss::Slower), (2_701, Loss::Extra)] {
        let needs = [Need { now: 4_000, held: 4_000, ..need(urgent) }, Need::default()];
        let case = Case { needs, ..Case::new([4, 1]) };
        assert_eq!(case.ask(|draft| draft.loss(Some(FIRST), LARGE)), Some(expected), "{urgent}");
    }
}

#[test]
fn a_surplus_is_what_is_beyond_the_need_and_spares_come_before_all() {
    let case = Case { priorities: [3, 7], needs: [need(1_400), need(9_000)], ..Case::new([3, 1]) };
    case.ask(|draft| {
        let givers = [None, Some(FIRST), Some(SECOND)];
        assert_eq!(givers.map(|giver| draft.surplus(giver)), [0, 1_600, 0]);
        assert_eq!(givers.map(|giver| draft.priority(giver)), [0, 3, 7]);
    });
}

// Goal: who may undo a move of shortly before. Method: one reversal is left at the beginning, and none after it.
#[test]
fn a_move_is_undone_in_need_or_while_reversals_are_left() {
    let one_left = Reversals::new(NOW);
    let mut none_left = one_left.clone();
    none_left.count(NOW, Some(FIRST), SECOND);
    none_left.count(NOW, Some(SECOND), FIRST);
    let rank_of = |nodes| match nodes {
        1 => Rank::Soft,
        _ => Rank::Extra,
    };
    // Nodes of the first, which claims one; its priority beside a second's of 2; whether it is short by a node or by less.
    let cases = [
        (2, 1, 3_000, Loss::Idle, true),
        (2, 1, 2_500, Loss::Idle, false),
        (2, 1, 3_000, Loss::Slower, false),
        (2, 2, 3_000, Loss::Held, true),
        (2, 2, 3_000, Loss::Slower, false),
        (2, 2, 3_000, Loss::Extra, false),
        (2, 3, 3_000, Loss::Extra, true),
        (2, 3, 2_500, Loss::Extra, false),
        (1, 1, 2_000, Loss::Extra, true),
        (1, 1, 1_500, Loss::Idle, false),
    ];
    for (nodes, priority, needed, loss, expected) in cases {
        let (priorities, needs) = ([priority, 2], [need(needed), Need::default()]);
        let case = Case { priorities, needs, ..Case::new([nodes, 2]) };
        case.ask(|draft| {
            let claim = draft.claim(FIRST).unwrap();
            assert_eq!(claim.rank, rank_of(nodes));
            let may = |claim: &Claim, left| draft.may_reverse(claim, Some(SECOND), loss, left);
            let told = format!("{nodes} {priority} {needed} {loss:?}");
            assert_eq!(may(&claim, &none_left), expected, "{told}");
            assert!(may(&claim, &one_left), "{told}");
            assert!(may(&Claim { rank: Rank::Hard, ..claim }, &none_left), "{told}");
        });
    }
}

#[test]
fn a_site_on_the_way_has_what_it_needs_afterwards_or_no_less_than_before() {
    // A large node for a small one: 3,000 are 2,400 then.
    for (needed, expected) in [(2_400, true), (2_401, false), (5_000, false)] {
        let case = Case { needs: [Need::default(), need(needed)], ..Case::new([2, 3]) };
        case.ask(|draft| {
            let claim = Claim { site: FIRST, rank: Rank::Soft, urgent: true, nodes: 1, missing: 1 };
            let can = |claim: &Claim, gets| draft.can_swap(claim, SECOND, LARGE, gets);
            assert_eq!(can(&claim, SMALL), expected, "{needed}");
            assert!(can(&claim, LARGE), "what it has not is not missed: {needed}");
            assert!(can(&Claim { rank: Rank::Hard, ..claim }, SMALL));
        });
    }
}

#[test]
fn kinds_are_alike_that_are_worth_more_than_half_of_the_best() {
    for (weights, expected) in [
        ([1_000, 1_000], true),
        ([1_000, 501], true),
        ([500, 1_000], false),
        ([1_000, 0], false),
        ([1_000, 100], false),
        ([2, 3], true),
    ] {
        let case = Case { weights, ..Case::new([1, 1]) };
        assert_eq!(case.ask(|draft| draft.is_indifferent(FIRST)), expected, "{weights:?}");
    }
}

#[test]
fn what_is_taken_is_missing_there_and_had_here() {
    let case = Case { needs: [need(9_000); 2], ..Case::new([2, 4]) };
    case.ask(|draft| {
        let missing = |draft: &Draft<'_>| [FIRST, SECOND].map(|site| draft.claim(site).unwrap());
        assert_eq!(
            missing(draft).map(|claim| (claim.nodes, claim.missing)),
            [(2, 7_000), (4, 5_000)]
        );
        for _ in 0..2 {
            draft.take(Some(SECOND), Some(FIRST), LARGE).unwrap();
        }
        assert_eq!(
            missing(draft).map(|claim| (claim.nodes, claim.missing)),
            [(4, 5_000), (2, 7_000)]
        );
        draft.take(None, Some(FIRST), SMALL).unwrap();
        assert!(draft.take(None, Some(FIRST), SMALL).is_none(), "there was one");
        assert_eq!(missing(draft)[0].missing, 4_600);
    });
}
