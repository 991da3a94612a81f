//! What a program may have, and that this is counted.

use super::super::events::Input;
use super::super::testing::{at, context, hello, much, run};
use super::*;
use crate::carriers::Carriers;
use crate::config::Protocol;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What a program says of itself is kept by all nodes, as often as it has resources: that is bounded as these are.
#[test]
fn so_many_addresses_of_a_context_are_kept_and_no_more() {
    let (mut directory, program) = (Directory::new("n0", 0, at(0), [], None), ConnectionId(1));
    let mut say = |request| directory.step(Duration::ZERO, Input::Request(program, 0, request));
    let id = ContextId::new(1);
    let address = |port| SocketAddr::new(at(0).ip(), port);
    let addresses: Vec<_> = (1..=10_000).map(address).collect();
    // One that is said again is no other.
    let all = [&addresses[..9], &addresses].concat();
    let carriers = Carriers::default().with(Protocol::Ucx);
    let context = ContextInfo { addresses: all, carriers, ..context(1) };
    say(Request::Hello { version: VERSION, context, claim: None });
    let outputs = say(Request::Resolve { number: 1, context: id });
    let [Output::Answer(_, Answer::Resolved { found: Some(found), .. })] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!(found.context.addresses, addresses[..ADDRESSES_MOST]);
    assert_eq!(found.context.carriers, carriers);
}

/// Goal: what a context is costs as much as is counted for its user, on all nodes, however many resources it has. Method: those
/// of one context are compared, where it is and elsewhere; a user opens contexts with as many addresses as may be, until there
/// is no room, and when there is again.
#[test]
fn what_a_context_is_counts_once_and_is_kept_once() {
    let mut directory = Directory::new("n0", 0, at(0), [], None);
    let address = |port| SocketAddr::new(at(0).ip(), port);
    let addresses: Vec<_> = (1..=ADDRESSES_MOST as u16).map(address).collect();
    let counts = 64 + addresses.len() * size_of::<SocketAddr>();
    let hello = |number| {
        let context = ContextInfo { addresses: addresses.clone(), ..context(number) };
        Request::Hello { version: VERSION, context, claim: None }
    };
    let mut asked = |number, request| {
        let input = Input::Request(ConnectionId(number), 7, request);
        directory.step(Duration::ZERO, input)
    };
    asked(1, hello(1));
    let register = |slot| {
        let place = Place { slot, generation: 0 };
        Request::Register { number: slot, place, attributes: Attributes::new() }
    };
    (0..3).for_each(|slot| drop(asked(1, register(slot))));
    let most = (128 << 20) / counts as u64;
    let mut is_refused =
        |number| asked(number, hello(number)).contains(&Output::Close(ConnectionId(number)));
    assert_eq!((2..20_000).find(|number| is_refused(*number)), Some(most + 1));
    let mut elsewhere = Directory::new("n1", 1, at(1), [], None);
    elsewhere.step(Duration::ZERO, Input::Update(ConnectionId(1), run(1, 0, &[0, 1, 2])));
    for knows in [&directory, &elsewhere] {
        let all = knows.find(&Attributes::new());
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|record| Arc::ptr_eq(&record.home, &all[0].home)));
    }
    directory.step(Duration::ZERO, Input::Closed(ConnectionId(2)));
    let asked = Input::Request(ConnectionId(2), 7, hello(most + 1));
    let outputs = directory.step(Duration::ZERO, asked);
    assert!(!outputs.contains(&Output::Close(ConnectionId(2))));
}

/// Goal: one user's programs have no more than a part of a server, are told so, and have room again when something of theirs has
/// ended; another user's are not in want for them. Method: more programs than may be; and two that register and ask for as much
/// as may be, in turn.
#[test]
fn the_programs_of_one_user_have_so_much_of_a_server() {
    let mut directory = Directory::new("n0", 0, at(0), [], None).with_connections_of_a_user(2);
    let [one, two, three, other] = [1, 2, 3, 4].map(ConnectionId);
    let mut step = |input| directory.step(Duration::ZERO, input);
    for (program, user) in [(one, 7), (two, 7), (other, 8)] {
        assert_eq!(step(Input::Connected(program, user)), []);
    }
    let why = "programs of user 7 have 2 connections to this server, which is the most".into();
    let refused = Output::Answer(three, Answer::Refused { number: None, why });
    let refused = [refused, Output::Close(three)];
    assert_eq!(step(Input::Connected(three, 7)), refused);
    // Nor is there room for it while one that is to be closed, as it says nothing that it may, is not.
    assert!(step(Input::OtherVersion(two, VERSION - 1)).contains(&Output::Close(two)));
    assert_eq!(step(Input::Connected(three, 7)), refused);
    step(Input::Closed(two));
    assert_eq!(step(Input::Connected(three, 7)), []);

    for (program, user) in [(one, 7), (three, 7), (other, 8)] {
        step(Input::Request(program, user, hello(program.0)));
    }
    let long = &much()[0].1;
    let register = |slot| {
        let place = Place { slot, generation: 0 };
        Request::Register { number: slot, place, attributes: long.clone() }
    };
    // As long, and none is so.
    let (first, value) = long.iter().next().unwrap();
    let nothing = long.clone().with(first, "c".repeat(value.len()));
    let subscribe = |number| Request::Subscribe { number, query: nothing.clone() };
    let mut why = |program, user, request| {
        let outputs = step(Input::Request(program, user, request));
        outputs.into_iter().find_map(|output| match output {
            Output::Answer(_, Answer::Refused { why, .. }) => Some(why),
            _ => None,
        })
    };
    let most = (0..20_000).find(|slot| why(one, 7, register(*slot)).is_some()).unwrap();
    assert!(most > 5000, "{most}");
    let refused = why(three, 7, register(0)).unwrap();
    assert!(refused.contains("programs of user 7") && refused.contains("134217728"), "{refused}");
    assert_eq!(why(other, 8, register(0)), None);
    // A place that is dropped makes room for a question, and that for a place again.
    let place = |slot| Place { slot, generation: 0 };
    why(one, 7, Request::Drop { number: 1, place: place(0) });
    why(one, 7, Request::Drop { number: 1, place: place(1) });
    assert_eq!((why(three, 7, subscribe(1)), why(three, 7, subscribe(1))), (None, None));
    assert!(why(one, 7, register(0)).is_none() && why(one, 7, register(1)).is_some());
    why(three, 7, Request::Unsubscribe { number: 1 });
    assert_eq!(why(three, 7, register(0)), None);
    why(one, 7, Request::Unsubscribe { number: 9 });
    assert!(why(three, 7, register(1)).is_some());
    // A program that ends gives back all of it.
    directory.step(Duration::ZERO, Input::Closed(one));
    let asked = Input::Request(three, 7, register(1));
    let outputs = directory.step(Duration::ZERO, asked);
    assert_eq!(outputs, [Output::Answer(three, Answer::Done { number: 1 })]);
}
