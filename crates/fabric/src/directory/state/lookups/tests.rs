//! What is held back until it is known, and for how long.

use super::super::testing::{at, hello, resource, run};
use super::super::{ALIVE_EVERY, Input};
use super::*;
use crate::attributes::Attributes;
use crate::directory::protocol::{Request, Update};

/// Goal: right after a server has begun, nobody takes a context of another node for gone. Method: a program asks for two
/// before others have told anything. One is told of then; that the other one is nowhere is said when all would have spoken,
/// and from then on at once.
#[test]
fn a_server_that_has_just_begun_takes_nothing_for_nowhere() {
    let (program, other, begun) = (ConnectionId(1), ConnectionId(2), Duration::from_secs(100));
    let mut directory = Directory::new("n0", 0, at(0), [at(2)], None);
    let mut told = |now, input| {
        let answer = |output| match output {
            Output::Answer(_, Answer::Resolved { number, found }) => {
                Some((number, found.map(|found| found.context.node)))
            }
            _ => None,
        };
        directory.step(now, input).into_iter().filter_map(answer).collect::<Vec<_>>()
    };
    let hello = hello(1);
    told(begun, Input::Request(program, 0, hello));
    let ask = |number, context| {
        let context = ContextId::new(context);
        Input::Request(program, 0, Request::Resolve { number, context })
    };
    assert_eq!(told(begun, ask(1, 1)), [(1, Some("n0".into()))], "its own is here");
    assert_eq!(told(begun, ask(2, 2)), []);
    assert_eq!(told(begun, ask(3, 3)), []);
    let (soon, heard) = (begun + ALIVE_EVERY, Some("n2".to_owned()));
    assert_eq!(told(soon, Input::Update(other, run(1, 0, &[]))), [(2, heard.clone())]);
    assert_eq!(told(soon, ask(4, 2)), [(4, heard)]);
    let over = begun + SILENCE_MOST;
    assert_eq!(told(over - Duration::from_nanos(1), Input::Tick), []);
    assert_eq!(told(over, Input::Tick), [(3, None)]);
    assert_eq!(told(over, ask(5, 3)), [(5, None)]);
}

/// Goal: nobody takes a context for gone whose node is still telling what there is, and nobody waits for ever for what is never
/// all told. Method: a program asks for three contexts while another server tells parts, in time each; another that has told
/// nothing holds up nobody. What has not come is nowhere when all has, or after a minute.
#[test]
fn while_there_are_parts_to_come_nothing_is_taken_for_nowhere() {
    let [program, tells, silent] = [1, 2, 3].map(ConnectionId);
    for is_told in [true, false] {
        let mut directory = Directory::new("n0", 0, at(0), [], None);
        let mut told = |now, input| {
            let answer = |output| match output {
                Output::Answer(_, Answer::Resolved { number, found }) => {
                    Some((number, found.is_some()))
                }
                _ => None,
            };
            directory.step(now, input).into_iter().filter_map(answer).collect::<Vec<_>>()
        };
        told(Duration::ZERO, Input::Request(program, 0, hello(1)));
        for number in [2, 3] {
            let context = ContextId::new(number.into());
            let asked = Input::Request(program, 0, Request::Resolve { number, context });
            assert_eq!(told(Duration::ZERO, asked), []);
        }
        let part = || {
            let (contexts, resources) = (Vec::new(), vec![(resource(1), Attributes::new())]);
            Input::Update(tells, Update::SnapshotPart { contexts, resources })
        };
        let mut now = Duration::ZERO;
        while now < TOLD_MOST - SILENCE_MOST {
            now += SILENCE_MOST;
            assert_eq!(told(now, part()), []);
            assert_eq!(told(now, Input::Update(silent, Update::Alive)), []);
            assert_eq!(told(now, Input::Tick), []);
        }
        if is_told {
            assert_eq!(told(now, Input::Update(tells, run(1, 0, &[2]))), [(2, true)]);
            assert_eq!(told(now, Input::Tick), [(3, false)]);
        } else {
            assert_eq!(told(TOLD_MOST, part()), []);
            assert_eq!(told(TOLD_MOST, Input::Tick), [(2, false), (3, false)]);
        }
    }
}

/// Goal: programs that come, ask for much that nobody knows, and go, leave nothing. Method: one asks for as many contexts as it
/// may, which count for its user, and one more; what is answered makes room, and all of it goes with the program.
#[test]
fn what_a_program_asks_is_counted_and_goes_with_it() {
    let [program, other] = [1, 2].map(ConnectionId);
    let mut directory = Directory::new("n0", 0, at(0), [], None);
    let ask = |directory: &mut Directory, number: usize| {
        let (number, context) = (number as u32, ContextId::new(1 + number as u64));
        let request = Request::Resolve { number, context };
        directory.step(Duration::ZERO, Input::Request(program, 7, request))
    };
    directory.step(Duration::ZERO, Input::Request(program, 7, hello(1)));
    (1..=PENDING_MOST).for_each(|number| assert_eq!(ask(&mut directory, number), []));
    let refused = |outputs: &[Output]| {
        matches!(outputs, [Output::Answer(_, Answer::Refused { number: Some(_), .. })])
    };
    assert!(refused(&ask(&mut directory, PENDING_MOST + 1)));
    let all = (128 << 20) - PENDING_MOST * LOOKUP;
    assert!(directory.users.keep(7, all).is_err(), "its context counts besides");
    // Context 2 is there now.
    directory.step(Duration::ZERO, Input::Update(other, run(1, 0, &[])));
    assert_eq!(ask(&mut directory, PENDING_MOST + 1), []);
    directory.step(Duration::ZERO, Input::Closed(program));
    assert!(directory.lookups.by_context.is_empty() && directory.lookups.by_program.is_empty());
    assert_eq!(directory.users.keep(7, 128 << 20), Ok(()));
}
