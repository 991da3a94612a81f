//! What becomes of what other servers tell, in parts, late, again or never, and when they are cut off.

use super::super::ALIVE_EVERY;
use super::super::events::Input;
use super::super::testing::{Watcher, at, change, hello, much, resource, run, snapshot};
use super::*;
use crate::attributes::Attributes;
use crate::directory::protocol::{Answer, PART_MOST, Request, encode};
use std::time::Duration;

/// Goal: nobody is told that what is there was gone, and what is gone is held for no longer than a server may be silent.
/// Method: a server ends and comes again with one of its two resources in its first word, and with another later.
#[test]
fn who_is_cut_off_and_back_in_time_was_never_gone() {
    let [old, new] = [2, 3].map(ConnectionId);
    let second = Duration::from_secs;
    let mut watcher = Watcher::new();
    let both = watcher.told(second(1), Input::Update(old, run(1, 0, &[1, 2, 3])));
    assert_eq!(both, [(1, true), (2, true), (3, true)]);
    assert_eq!(watcher.told(second(2), Input::Closed(old)), []);
    assert_eq!(watcher.found(), [1, 2, 3]);
    assert_eq!(watcher.told(second(3), Input::Update(new, run(2, 0, &[1]))), []);
    let again = change(1, Change::Registered(resource(2), Attributes::new()));
    assert_eq!(watcher.told(second(3), Input::Update(new, again)), []);
    // The last sign of the first run was in the first second.
    let before = second(1) + SILENCE_MOST - Duration::from_nanos(1);
    assert_eq!(watcher.told(before, Input::Tick), []);
    assert_eq!(watcher.told(second(1) + SILENCE_MOST, Input::Tick), [(3, false)]);
    assert_eq!(watcher.found(), [1, 2]);
    // What ends in the second run is told at once, and so is all of it when it is silent.
    let dropped = change(2, Change::Dropped(resource(2)));
    assert_eq!(watcher.told(second(5), Input::Update(new, dropped)), [(2, false)]);
    let late = second(5) + SILENCE_MOST + ALIVE_EVERY;
    assert_eq!(watcher.told(late, Input::Tick), [(1, false)]);
    assert!(watcher.0.contexts.get(ContextId::new(2)).is_none() && watcher.found().is_empty());
}

/// Goal: what ends while the connection alone is broken is found no longer than until there is another. Method: the same run
/// tells all of what it has again without one of its resources, and then without its context, which others may open then.
#[test]
fn what_ended_while_its_run_was_cut_off_is_gone_when_that_is_back() {
    let [first, second, third] = [2, 3, 4].map(ConnectionId);
    let mut watcher = Watcher::new();
    let mut told = |input| watcher.told(Duration::ZERO, input);
    let both = [(1, true), (2, true)];
    assert_eq!(told(Input::Update(first, run(1, 0, &[1, 2]))), both);
    assert_eq!(told(Input::Closed(first)), []);
    assert_eq!(told(Input::Update(second, run(1, 0, &[1]))), [(2, false)]);
    // The second connection is dead, and nobody has said so here.
    let mut nothing = snapshot(2);
    nothing.incarnation = 1;
    assert_eq!(told(Input::Update(third, Update::Snapshot(nothing))), [(1, false)]);
    assert!(watcher.found().is_empty());
    assert!(watcher.0.contexts.get(ContextId::new(2)).is_none());
}

/// A server that has made two connections, as to two addresses of one node, has written the first word of the second
/// before something that it tells on the first.
#[test]
fn what_was_told_after_a_first_word_was_written_is_not_gone_by_that() {
    let [first, second] = [2, 3].map(ConnectionId);
    let mut watcher = Watcher::new();
    let mut told = |input| watcher.told(Duration::ZERO, input);
    let registered = || change(1, Change::Registered(resource(2), Attributes::new()));
    assert_eq!(told(Input::Update(first, run(1, 0, &[1]))), [(1, true)]);
    assert_eq!(told(Input::Update(first, registered())), [(2, true)]);
    assert_eq!(told(Input::Update(second, run(1, 0, &[1]))), []);
    assert_eq!(told(Input::Update(second, registered())), []);
    assert_eq!(watcher.found(), [1, 2]);
}

/// Whoever asked believes that it is as it was.
#[test]
fn what_is_another_when_it_is_back_is_told() {
    let connections = [2, 3, 4, 5].map(ConnectionId);
    let mut watcher = Watcher::new();
    let mut run_on = |at: usize, told: Update| {
        let mut events = watcher.told(Duration::ZERO, Input::Update(connections[at], told));
        events.extend(watcher.told(Duration::ZERO, Input::Closed(connections[at])));
        events
    };
    assert_eq!(run_on(0, run(1, 0, &[1])), [(1, true)]);
    // Another's context, and then attributes.
    assert_eq!(run_on(1, run(2, 7, &[1])), [(1, false), (1, true)]);
    let mut told = run(3, 7, &[1]);
    let Update::Snapshot(Snapshot { resources, .. }) = &mut told else { unreachable!() };
    resources[0].1 = Attributes::new().with("a", "b");
    assert_eq!(run_on(2, told), [(1, false), (1, true)]);
    // A context that ends takes along what its program had registered before.
    let last = connections[3];
    assert_eq!(watcher.told(Duration::ZERO, Input::Update(last, run(4, 7, &[]))), []);
    let closed = change(1, Change::Closed(ContextId::new(2)));
    assert_eq!(watcher.told(Duration::ZERO, Input::Update(last, closed)), [(1, false)]);
}

fn bytes(message: &impl serde::Serialize) -> usize {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes.len()
}

/// Goal: what is too long for one message is said in several, and what a program and another server know of it is the same.
/// Method: a program registers more than one part has; another server hears of it, and another program asks for it.
#[test]
fn what_is_long_is_said_in_parts() {
    let [program, asking, listener] = [1, 2, 3].map(ConnectionId);
    let mut tells = Directory::new("n0", 0, at(0), [], None);
    tells.step(Duration::ZERO, Input::Request(program, 0, hello(2)));
    for (id, attributes) in much() {
        let request = Request::Register { number: id.place.slot, place: id.place, attributes };
        tells.step(Duration::ZERO, Input::Request(program, 0, request));
    }
    let all: Vec<_> = much().into_iter().map(|(id, _)| id).collect();
    tells.step(Duration::ZERO, Input::Request(asking, 0, hello(3)));
    let everything = Request::Subscribe { number: 7, query: Attributes::new() };
    let (mut found, mut lengths) = (Vec::new(), Vec::new());
    for output in tells.step(Duration::ZERO, Input::Request(asking, 0, everything)) {
        let Output::Answer(to, answer) = output else { panic!("{output:?}") };
        lengths.push(bytes(&answer));
        let (Answer::FoundPart { number, records } | Answer::Found { number, records }) = answer
        else {
            panic!("{answer:?}")
        };
        assert_eq!((to, number), (asking, 7));
        found.extend(records.into_iter().map(|record| record.id));
    }
    assert_eq!(found, all);
    assert!(
        lengths.len() > 2 && lengths.iter().all(|length| *length < 2 * PART_MOST),
        "{lengths:?}"
    );

    let mut hears = Directory::new("n1", 1, at(1), [], None);
    let dialed = Input::Dialed { address: at(1), connection: listener, reached_at: at(0) };
    let told = tells.step(Duration::ZERO, dialed);
    let (last, count) = (told.len() - 1, told.len());
    assert!(count > 2);
    for (at, output) in told.into_iter().enumerate() {
        let Output::Update(_, update) = output else { panic!("{output:?}") };
        assert!(bytes(&update) < 2 * PART_MOST);
        // Slower than a server may be silent, as over a slow network: each part is a sign of life, for both ends.
        let now = (SILENCE_MOST - ALIVE_EVERY) * at as u32;
        assert_eq!(hears.find(&Attributes::new()), [], "not before there is all");
        let outputs = hears.step(now, Input::Update(listener, update));
        assert!(!outputs.contains(&Output::Close(listener)));
        assert_eq!(outputs.contains(&Output::Reply(listener, Reply::Alive)), at < last);
        let outputs = hears.step(now, Input::Tick);
        assert!(!outputs.contains(&Output::Close(listener)));
    }
    let known = hears.find(&Attributes::new());
    assert_eq!(known.iter().map(|record| record.id).collect::<Vec<_>>(), all);
}
