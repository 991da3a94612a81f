//! Mistakes that schedulers with reservations were published to have made, as questions to this one.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_calendar::{Calendar, Demand, Refusal, ReservationId, ResourceId, Span, When};
use keeptime_model::units::{Nanos, WallTime};

fn at(nanos: u64) -> WallTime {
    WallTime::from_unix_nanos(nanos)
}

/// Processes and wall time in seconds of the jobs of oar-team/oar3#61, in the order in which they
/// were submitted.
const JOBS: [(u64, u64); 19] = [
    (64, 333),
    (32, 574),
    (64, 220),
    (64, 220),
    (32, 574),
    (121, 564),
    (16, 154),
    (64, 220),
    (32, 574),
    (64, 692),
    (121, 564),
    (121, 563),
    (64, 220),
    (121, 563),
    (64, 220),
    (16, 154),
    (64, 333),
    (121, 564),
    (16, 154),
];
const NODES: u64 = 8;
const CORES_OF_A_NODE: u64 = 32;

/// oar-team/oar3#61: backfill put more than one job of this list into the same hole. Each is moldable
/// here: on whole nodes, or on half as many for twice the time. The shape that ends first is taken.
#[test]
fn backfill_of_a_moldable_job_list_does_not_oversubscribe() {
    let mut calendar = Calendar::new();
    let nodes = calendar.add_resource(NODES);
    for (id, (processes, seconds)) in (0..).map(ReservationId).zip(JOBS) {
        let whole = processes.div_ceil(CORES_OF_A_NODE);
        let shapes = [(whole, seconds), (whole.div_ceil(2), 2 * seconds)];
        let spans = shapes.map(|(count, seconds)| {
            let (duration, demand) = (Nanos::from_secs(seconds), Demand::new(nodes, count));
            let start = calendar.earliest_fit(When::after(at(0), duration), &[demand]);
            (Span::lasting(start.unwrap().unwrap(), duration), demand)
        });
        let (span, demand) = spans.into_iter().min_by_key(|(span, _)| span.to()).unwrap();
        calendar.reserve(id, span, &[demand]).unwrap();
    }
    let held: Vec<_> = calendar.reservations().map(|(_, held)| held.clone()).collect();
    let used_at = |instant| {
        let then = Span::lasting(instant, Nanos::new(1));
        let there = held.iter().filter(|held| held.span.overlaps(then));
        there.map(|held| held.demands[0].amount).sum::<u64>()
    };
    let most = held.iter().map(|held| used_at(held.span.from())).max();
    assert_eq!((held.len(), most), (JOBS.len(), Some(NODES)));
    let filled_a_hole = held.windows(2).any(|pair| pair[1].span.from() < pair[0].span.from());
    assert!(filled_a_hole, "this list is about backfill");
}

/// openpbs/openpbs#2398: two reservations were confirmed in one scheduling cycle for the same nodes.
/// Here to look at is not to get: who reserves second is refused, whatever was said before.
#[test]
fn two_reservations_in_one_cycle_do_not_get_the_same() {
    let mut calendar = Calendar::new();
    let node = calendar.add_resource(1);
    let (whole, noon) = ([Demand::new(node, 1)], Span::lasting(at(12), Nanos::new(4)));
    assert_eq!(calendar.fits(noon, &whole), Ok(()));
    assert_eq!(calendar.fits(noon, &whole), Ok(()));
    assert_eq!(calendar.reserve(ReservationId(1), noon, &whole), Ok(()));
    let second = calendar.reserve(ReservationId(2), noon, &whole);
    assert!(matches!(second, Err(Refusal::Lacks(_))), "{second:?}");
    assert_eq!(calendar.table(node).unwrap().most_used(noon), 1);
}

/// esnet/oscars#37: a reservation was accepted for which there is no link in the network, neither one
/// of that name nor one of that size.
#[test]
fn a_link_that_does_not_exist_is_named_and_nothing_is_held() {
    let mut calendar = Calendar::new();
    let link = calendar.add_resource(10);
    let span = Span::since(at(5));
    let asked = [3, 0, 9, 3].map(|id| Demand::new(ResourceId(id), 1));
    let refusal = calendar.reserve(ReservationId(1), span, &asked).unwrap_err();
    assert_eq!(refusal.to_string(), "there is no resource 3, 9");
    let when = When::after(at(0), Nanos::new(1));
    assert_eq!(calendar.earliest_fit(when, &asked), Err(refusal));
    let too_much = [Demand::new(link, 1_000)];
    assert_eq!(calendar.earliest_fit(when, &too_much), Ok(None));
    let refusal = calendar.reserve(ReservationId(1), span, &too_much).unwrap_err();
    assert_eq!(refusal.to_string(), "resource 0 lacks 990 from 5 ns on");
    assert_eq!(calendar.held(ReservationId(1)), None);
    assert_eq!(calendar.table(link).unwrap().most_used(span), 0);
}

/// telstra/open-kilda#919: what a flow holds itself counted against its own change, so that 900 of
/// 1,000 could neither become 600 nor 1,000. And openpbs/openpbs#1289: a change was accepted that
/// conflicts with another reservation.
#[test]
fn a_change_has_what_it_gives_back_and_nothing_of_others() {
    let mut calendar = Calendar::new();
    let link = calendar.add_resource(1_000);
    let [flow, other] = [1, 2].map(ReservationId);
    let span = |from, to| Span::new(at(from), at(to)).unwrap();
    calendar.reserve(flow, span(10, 20), &[Demand::new(link, 900)]).unwrap();
    calendar.reserve(other, span(20, 30), &[Demand::new(link, 500)]).unwrap();
    assert_eq!(calendar.modify(flow, span(10, 20), &[Demand::new(link, 600)]), Ok(()));
    assert_eq!(calendar.modify(flow, span(10, 20), &[Demand::new(link, 1_000)]), Ok(()));
    let refusal = calendar.modify(flow, span(15, 25), &[Demand::new(link, 501)]).unwrap_err();
    assert_eq!(refusal.to_string(), "resource 0 lacks 1 from 20 ns on");
    assert_eq!(calendar.held(flow).unwrap().span, span(10, 20));
}
