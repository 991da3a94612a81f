//! Who tells, has told all or a part, and is named to others.

use super::super::testing::{Watcher, at, context, resource, run, snapshot};
use super::super::{ALIVE_EVERY, Directory, Input, Output};
use super::*;
use crate::directory::protocol::{Reply, Update};

/// Who was cut off between the first word and what there is would be kept for ever, and so would whoever says that he is
/// there and nothing else.
#[test]
fn a_caller_that_tells_nothing_is_not_kept() {
    let mut directory = Directory::new("n0", 0, at(0), [], None);
    let [idle, tells] = [1, 2].map(ConnectionId);
    let alive = |connection| Input::Update(connection, Update::Alive);
    for connection in [idle, tells] {
        assert_eq!(directory.step(Duration::ZERO, alive(connection)), []);
    }
    directory.step(Duration::ZERO, Input::Update(tells, Update::Snapshot(snapshot(2))));
    let is_close = |output: &Output| matches!(output, Output::Close(_));
    let early = directory.step(SILENCE_MOST, Input::Tick);
    assert!(!early.iter().any(is_close), "{early:?}");
    let late = SILENCE_MOST + ALIVE_EVERY;
    for connection in [idle, tells] {
        directory.step(late, alive(connection));
    }
    let mut outputs = directory.step(late, Input::Tick);
    outputs.retain(is_close);
    assert_eq!(outputs, [Output::Close(idle)]);
    // Nothing is left of it.
    assert!(directory.origins.arriving.is_empty());
}

/// Goal: a snapshot replaces what was known when all of it is there. Method: a server that has told of one resource is cut off,
/// and then cut off again after some of what it tells anew, of which nothing comes to be known; then it tells another thing.
#[test]
fn a_snapshot_that_is_never_whole_changes_nothing() {
    let [first, second, third] = [2, 3, 4].map(ConnectionId);
    let mut watcher = Watcher::new();
    let mut told = |input| watcher.told(Duration::ZERO, input);
    assert_eq!(told(Input::Update(first, run(1, 0, &[1]))), [(1, true)]);
    let part = Update::SnapshotPart {
        contexts: vec![(context(2), Duration::ZERO)],
        resources: vec![(resource(2), Attributes::new())],
    };
    assert_eq!(told(Input::Update(second, part.clone())), []);
    assert_eq!(told(Input::Closed(second)), []);
    assert_eq!(told(Input::Closed(first)), []);
    assert_eq!(told(Input::Update(third, run(1, 0, &[3]))), [(3, true), (1, false)]);
    assert_eq!(watcher.found(), [3]);
    // It has told everything.
    let outputs = watcher.0.step(Duration::ZERO, Input::Update(third, part));
    assert!(outputs.contains(&Output::Close(third)));
    assert!(watcher.0.origins.arriving.is_empty());
}

/// Goal: whoever listens learns of all that its neighbour hears, whenever that was, a few at a
/// time. Method: one was welcomed before ten others came, which neither call it nor are known to it.
#[test]
fn signs_of_life_name_all_others_in_turn() {
    let connection = ConnectionId(0);
    let mut neighbour = Directory::new("n0", 0, at(0), [], None);
    let mut listens = Directory::new("n20", 20, at(20), [at(0)], None);
    listens.step(Duration::ZERO, Input::Tick);
    let dialed = Input::Dialed { address: at(0), connection, reached_at: at(20) };
    for told in listens.step(Duration::ZERO, dialed) {
        let Output::Update(_, update) = told else { continue };
        for output in neighbour.step(Duration::ZERO, Input::Update(connection, update)) {
            let Output::Reply(_, heard) = output else { continue };
            listens.step(Duration::ZERO, Input::Reply(connection, heard));
        }
    }
    for number in 1..=10 {
        let told = Input::Update(ConnectionId(number), Update::Snapshot(snapshot(number)));
        neighbour.step(Duration::ZERO, told);
    }
    let mut called = BTreeSet::new();
    for tick in 1..=3 {
        let now = ALIVE_EVERY * tick;
        for output in neighbour.step(now, Input::Tick) {
            let Output::Reply(ConnectionId(0), heard) = output else { continue };
            let Reply::Welcome { members, .. } = &heard else { panic!("{heard:?}") };
            assert!(members.len() <= NAMED_MOST);
            listens.step(now, Input::Reply(connection, heard));
        }
        for output in listens.step(now, Input::Tick) {
            if let Output::Dial(address) = output {
                called.insert(address);
            }
        }
    }
    let all: BTreeSet<_> = (1..=10).map(at).collect();
    assert_eq!(called, all);
}

#[test]
fn a_context_takes_its_own_resources_along_and_no_others() {
    let of = |context, slot| ResourceId { context: ContextId::new(context), ..resource(slot) };
    let all = [of(1, u32::MAX), of(2, 0), of(2, u32::MAX), of(3, 0)];
    let (mut origins, connection) = (Origins::default(), ConnectionId(1));
    origins.complete(connection, snapshot(2), Duration::ZERO).for_each(drop);
    let origin = origins.get_mut(connection).unwrap();
    origin.contexts = [1, 2, 3].map(ContextId::new).into();
    origin.resources = all.into();
    assert_eq!(origins.forget(ContextId::new(2)), all[1..3]);
    assert_eq!(origins.forget(ContextId::new(2)), []);
    let origin = origins.get_mut(connection).unwrap();
    assert_eq!(origin.contexts, [1, 3].map(ContextId::new).into());
    assert_eq!(origin.resources, [all[0], all[3]].into());
}
