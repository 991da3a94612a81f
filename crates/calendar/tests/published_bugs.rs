//! Mistakes that schedulers with reservations were published to have made, as questions to this one.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_calendar::{Calendar, Demand, Refusal, ReservationId, ResourceId, Span, When};
use keeptime_model::units::{Nanos, WallTime};

fn at(nanos: u64) -> WallTime {
    WallTime::from_unix_nanos(nanos)
}

/// Two requests were looked at in one scheduling cycle, found the same node free, and both got it.
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

/// A reservation of a node that was not there any more was confirmed, or brought the daemon down.
#[test]
fn a_resource_that_does_not_exist_is_named_and_nothing_is_held() {
    let mut calendar = Calendar::new();
    let node = calendar.add_resource(10);
    let span = Span::since(at(5));
    let asked = [3, 0, 9, 3].map(|id| Demand::new(ResourceId(id), 1));
    let refusal = calendar.reserve(ReservationId(1), span, &asked).unwrap_err();
    assert_eq!(refusal.to_string(), "there is no resource 3, 9");
    assert_eq!(calendar.held(ReservationId(1)), None);
    assert_eq!(calendar.table(node).unwrap().most_used(span), 0);
    let when = When::after(at(0), Nanos::new(1));
    assert!(calendar.earliest_fit(when, &asked).is_err());
    assert!(calendar.set_capacity(ResourceId(3), 1).is_err());
    // One that shrank to nothing is there, and has nothing.
    calendar.set_capacity(node, 0).unwrap();
    let refusal = calendar.reserve(ReservationId(1), span, &asked[1..2]).unwrap_err();
    assert_eq!(refusal.to_string(), "resource 0 lacks 1 from 5 ns on");
}

/// Backfill walked a list of jobs, moved one while it walked, and promised the rest of the list what
/// that one had taken. Here all are moved forward in turn, each to the earliest start that is left.
#[test]
fn backfill_that_modifies_what_it_walks_over_does_not_oversubscribe() {
    let mut calendar = Calendar::new();
    let [cpu, link] = [8, 100].map(|capacity| calendar.add_resource(capacity));
    let duration = Nanos::new(10);
    for i in 0..200 {
        let asked = [Demand::new(cpu, 1 + i % 7), Demand::new(link, 10 + i % 90)];
        let start = calendar.earliest_fit(When::after(at(i * 13), duration), &asked);
        let span = Span::lasting(start.unwrap().unwrap(), duration);
        calendar.reserve(ReservationId(i), span, &asked).unwrap();
    }
    let mut moved = 0;
    for id in (0..200).map(ReservationId) {
        let held = calendar.held(id).unwrap().clone();
        let when = When::after(at(0), duration).until(held.span.from());
        // What it holds itself may be in its way: then it stays, or moves less far.
        if let Some(start) = calendar.earliest_fit(when, &held.demands).unwrap() {
            calendar.modify(id, Span::lasting(start, duration), &held.demands).unwrap();
            moved += 1;
        }
        let all = Span::since(at(0));
        assert!(calendar.table(cpu).unwrap().most_used(all) <= 8);
        assert!(calendar.table(link).unwrap().most_used(all) <= 100);
    }
    assert!(moved > 50, "{moved} of 200 moved forward");
}
