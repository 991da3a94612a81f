//! Calls of one context that come in any order, each made when the one before was given up: what the context that is
//! called makes of them.

use super::Bug;
use super::clock::Clock;
use super::context::Context;
use super::line::{Line, Pace};
use crate::frame::{Carrier, Greeting};
use crate::id::ContextId;
use keeptime_random::Random;
use std::sync::Arc;
use std::time::Duration;

/// Seeds that are always run.
const SEEDS: u64 = 40;
const CALLS: usize = 5;
const PACE: Pace = Pace { delay: Duration::ZERO, rate: 1 << 30, room: 1 << 16 };

/// Has the calls of a seed come. Returns how many of them were late.
fn come(seed: u64, bug: Option<Bug>) -> Result<usize, String> {
    let (clock, mut random) = (Clock::default(), Random::new(seed));
    let [caller, called] = [1, 2].map(|id| Context::new(ContextId::new(id), &clock, bug));
    // Nobody of the caller is told that a call was given up: nothing but a later call ends its link.
    let (mut own_ends, mut calls) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let (_, [own, other]) = Line::straight(&clock, [0, 1], PACE, false);
        let (from, to, carrier) = (caller.id, called.id, Carrier::Itself);
        let (attempt, is_rail) = (caller.junction.streams.next_number(), random.is_one_in(2));
        calls.push((Greeting { from, to, carrier, attempt, is_rail, pass: None }, other));
        own_ends.push(own);
    }
    calls.sort_by_cached_key(|_| random.below(u64::MAX));
    let (mut last, mut late, mut newest) = (0, 0, None);
    for (greeting, ends) in calls {
        let (attempt, is_late) = (greeting.attempt, greeting.attempt < last);
        let is_taken = called.greeted(&greeting.encode(), ends)?;
        let links = called.junction.links.of(caller.id);
        let [link] = &links[..] else { return Err(format!("{} links", links.len())) };
        if is_late {
            late += 1;
        } else {
            (last, newest) = (attempt, Some(link.clone()));
        }
        let is_newest = newest.as_ref().is_some_and(|newest| Arc::ptr_eq(newest, link));
        if !is_newest || link.broken().is_some() {
            return Err(format!("call {attempt} has ended the link of call {last}"));
        }
        if is_taken == is_late {
            return Err(format!("call {attempt} after call {last}, taken: {is_taken}"));
        }
    }
    Ok(late)
}

/// Goal: a call that was given up, and comes after a later one, ends nothing. Method: connections of their own and
/// streams, in the orders of fixed seeds; and that a context that takes each call for the latest is found out.
#[test]
fn a_late_call_ends_no_link_that_was_made_after_it() {
    let come_all = |bug| -> Vec<_> { (1..=SEEDS).map(|seed| (seed, come(seed, bug))).collect() };
    let mut late = 0;
    for (seed, came) in come_all(None) {
        late += came.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    assert!(late > 0, "none was late");
    let found: Vec<_> =
        come_all(Some(Bug::TakesLate)).into_iter().filter_map(|(_, came)| came.err()).collect();
    assert!(found.iter().any(|what| what.contains("has ended the link of call")), "{found:?}");
}
