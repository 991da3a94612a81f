//! A checker that cannot fail proves nothing: mistakes are planted where parts meet, and each is found
//! within a few seeds.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_broker::records::Found;
use keeptime_engine::agents::{Act, Order};
use keeptime_engine::{Answer, Call, Cluster, Event, Output, Step};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::reservation::Request;
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, WallTime};
use keeptime_sim::run::{Failure, Options, run_with};
use keeptime_sim::seams::{Passage, Seams};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A planted bug is found within so many seeds of so many events.
const SEEDS: RangeInclusive<u64> = 1..=12;
const EVENTS: u64 = 12_000;

fn found<S: Seams + 'static>(bug: fn() -> S) -> Failure {
    failures(bug, SEEDS).next().expect("the bug is found")
}

fn failures<S: Seams + 'static>(
    bug: fn() -> S,
    seeds: RangeInclusive<u64>,
) -> impl Iterator<Item = Failure> {
    seeds.filter_map(move |seed| {
        let options = Options { events: EVENTS, ..Options::of_seed(seed) };
        let seams = || -> Box<dyn Seams> { Box::new(bug()) };
        run_with(&options, &seams).err().map(|failure| *failure)
    })
}

fn expect(failure: &Failure, words: &[&str]) {
    let said = failure.violation.to_string();
    assert!(words.iter().any(|word| said.contains(word)), "{said}");
    assert!(!failure.log.is_empty(), "it says what happened before");
    assert!(failure.to_string().contains("keeptime-soak -- --seed"), "{failure}");
}

/// Links seem to carry one bit more than they do.
struct OneTooMany;
impl Seams for OneTooMany {
    fn cluster(&self, topology: Topology) -> Result<Cluster, Invalid> {
        Cluster::new(topology, |rate| BitsPerSecond::new(rate.get() + 1))
    }
}

#[test]
fn a_capacity_that_is_one_too_large_is_found() {
    expect(
        &found(|| OneTooMany),
        &["is promised of link", "no agent has a reason", "the slot table", "may still be used"],
    );
}

/// It is committed before every agent has accepted.
struct Hasty;
impl Seams for Hasty {
    fn order(&mut self, order: &Order) -> Passage {
        match order.act {
            Act::Enforce(_) => Passage::SentAndAccepted,
            Act::Withdraw(_) => Passage::Sent,
        }
    }
}

#[test]
fn a_commit_before_all_agents_accepted_is_found() {
    expect(&found(|| Hasty), &["has not accepted that"]);
}

/// An agent is taken to have given back a part of what is spare before it has.
#[derive(Default)]
struct Trusting(BTreeMap<Name, BitsPerSecond>);
impl Seams for Trusting {
    fn order(&mut self, order: &Order) -> Passage {
        let Act::Enforce(assignment) = &order.act else { return Passage::Sent };
        let limit = assignment.flows.iter().find_map(|flow| flow.up_to_bits_per_second);
        let Some(limit) = limit else { return Passage::Sent };
        let most = self.0.entry(assignment.job.clone()).or_insert(limit);
        *most = limit.max(*most);
        if limit < *most { Passage::SentAndAccepted } else { Passage::Sent }
    }
}

#[test]
fn a_grant_of_what_somebody_still_uses_is_found() {
    let is_it = |failure: &Failure| failure.violation.to_string().contains("may still be used");
    // Others find that the broker believes too much of an agent.
    // One of ten shows it: these, as they are now, soon.
    assert!(failures(Trusting::default, 31..=60).any(|failure| is_it(&failure)));
}

/// Answers do not wait for the disk.
struct Eager;
impl Seams for Eager {
    fn waits_for_the_disk(&self) -> bool {
        false
    }
}

#[test]
fn an_answer_before_it_is_durable_is_found() {
    expect(&found(|| Eager), &["an answer that is not what is recorded", "a refusal that is not"]);
}

/// Agents are not told to give anything back.
struct Forgetful;
impl Seams for Forgetful {
    fn order(&mut self, order: &Order) -> Passage {
        match order.act {
            Act::Enforce(_) => Passage::Sent,
            Act::Withdraw(_) => Passage::Lost,
        }
    }
}

#[test]
fn a_forgotten_withdrawal_is_found() {
    expect(
        &found(|| Forgetful),
        &["holds something else than the broker believes", "no agent has a reason to refuse"],
    );
}

/// A broker that starts knows no handle but of what holds something.
struct Amnesiac;
impl Seams for Amnesiac {
    fn found(&mut self, found: &mut Found) {
        found.events.retain(|(_, event)| !matches!(event, Event::Refused { .. }));
    }
}

#[test]
fn a_handle_that_is_used_again_after_a_restart_is_found() {
    expect(&found(|| Amnesiac), &["the engine has", "the handle was given before"]);
}

/// A broker that starts does not see the last batch, which was acknowledged.
struct ShortSighted;
impl Seams for ShortSighted {
    fn found(&mut self, found: &mut Found) {
        found.events.pop();
    }
}

#[test]
fn a_grant_that_a_restart_forgets_is_found() {
    expect(&found(|| ShortSighted), &["the engine has"]);
}

/// Agents do not look at their clocks.
struct Timeless;
impl Seams for Timeless {
    fn ticks(&self) -> bool {
        false
    }
}

#[test]
fn what_is_enforced_beyond_its_end_is_found() {
    expect(&found(|| Timeless), &["which is over since"]);
}

/// A request that is sent again is taken for a new one.
#[derive(Default)]
struct Repeating(u64);
impl Seams for Repeating {
    fn asked(&mut self, call: &mut Call) {
        if let Call::Reserve { key, .. } = call {
            self.0 += 1;
            *key = format!("{key}.{}", self.0).parse().unwrap();
        }
    }
}

#[test]
fn a_key_that_does_not_count_is_found() {
    expect(&found(Repeating::default), &["nobody asked for that"]);
}

/// Deadlines of what may become slower are taken to be a minute later than they are.
struct Patient;
impl Patient {
    fn shift(request: &mut Request, shift: fn(u64, u64) -> u64) {
        if let Some(malleable) = &mut request.malleable {
            let by = shift(malleable.by_unix_nanos.unix_nanos(), 60_000_000_000);
            malleable.by_unix_nanos = WallTime::from_unix_nanos(by);
        }
    }
}
impl Seams for Patient {
    fn asked(&mut self, call: &mut Call) {
        if let Call::Reserve { request, .. }
        | Call::Modify { request, .. }
        | Call::Correct { request, .. } = call
        {
            Self::shift(request, u64::saturating_add);
        }
    }

    fn decided(&mut self, step: &mut Step) {
        for event in &mut step.events {
            let request = match event {
                Event::Granted { granted, .. } => &mut granted.request,
                Event::Modified { modified, .. } => &mut modified.request,
                Event::Refused { refused, .. } => &mut refused.request,
                _ => continue,
            };
            Self::shift(request, u64::saturating_sub);
        }
        for output in &mut step.outputs {
            if let Output::Answer { answer: Ok(Answer::Reservation(told)), .. } = output {
                Self::shift(&mut Arc::make_mut(told).request, u64::saturating_sub);
            }
        }
    }
}

#[test]
fn what_is_slower_than_its_deadline_allows_is_found() {
    let is_it = |failure: &Failure| failure.violation.to_string().contains("it is late");
    assert!(failures(|| Patient, SEEDS).any(|failure| is_it(&failure)));
}

/// It is recorded of the first node that it is drained, whichever is.
struct Mistaken;
impl Seams for Mistaken {
    fn decided(&mut self, step: &mut Step) {
        for event in &mut step.events {
            if let Event::Drained { nodes, .. } = event {
                *nodes = ["n1".parse().unwrap()].into();
            }
        }
    }
}

#[test]
fn a_grant_on_a_drained_node_is_found() {
    expect(&found(|| Mistaken), &["n1 is drained", "the engine has"]);
}

/// A reservation of several nodes is recorded without the last.
struct Halving;
impl Seams for Halving {
    fn decided(&mut self, step: &mut Step) {
        for event in &mut step.events {
            if let Event::Granted { granted, .. } = event
                && granted.grant.nodes.len() > 2
            {
                granted.grant.nodes.pop();
            }
        }
    }
}

#[test]
fn a_reservation_that_is_not_whole_is_found() {
    expect(&found(|| Halving), &["other nodes than were asked for"]);
}
