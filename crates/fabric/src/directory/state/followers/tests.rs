//! Whom a server tells, and for whom who registers something waits.

use super::super::testing::{at, hello};
use super::super::{Directory, Input};
use super::*;
use crate::attributes::Attributes;
use crate::directory::protocol::{Reply, Request};
use crate::id::Place;

/// A directory with a program, and the connections that it has made to the server of node `n1`.
struct Leader(Directory);

impl Leader {
    const PROGRAM: ConnectionId = ConnectionId(100);

    fn new() -> Self {
        let mut leader = Self(Directory::new("n0", 0, at(0), [], None));
        let hello = hello(1);
        leader.says(Duration::ZERO, Input::Request(Self::PROGRAM, 0, hello));
        leader
    }

    fn says(&mut self, now: Duration, input: Input) -> Vec<Output> {
        self.0.step(now, input)
    }

    fn dials(&mut self, now: Duration, connection: ConnectionId) {
        let address = at(connection.0);
        self.says(now, Input::Dialed { address, connection, reached_at: at(0) });
    }

    /// Which connections it closes when the server says on this one that it has taken everything.
    fn is_welcome(&mut self, now: Duration, connection: ConnectionId) -> Vec<ConnectionId> {
        let welcome = Reply::Welcome { node: "n1".into(), members: Vec::new() };
        let closed = |output| match output {
            Output::Close(connection) => Some(connection),
            _ => None,
        };
        let outputs = self.says(now, Input::Reply(connection, welcome));
        outputs.into_iter().filter_map(closed).collect()
    }

    /// On which connections it tells that the program registers a resource, and whether that is answered at once.
    fn registers(&mut self, now: Duration, number: u32) -> (Vec<ConnectionId>, bool) {
        let place = Place { slot: number, generation: 0 };
        let request = Request::Register { number, place, attributes: Attributes::new() };
        let outputs = self.says(now, Input::Request(Self::PROGRAM, 0, request));
        let told = outputs.iter().filter_map(|output| match output {
            Output::Update(connection, _) => Some(*connection),
            _ => None,
        });
        (told.collect(), outputs.contains(&done(number)))
    }

    /// What has been applied on that connection: all that there was so far.
    fn applies(&mut self, now: Duration, connection: ConnectionId) -> Vec<Output> {
        let change = self.0.followers.change;
        self.says(now, Input::Reply(connection, Reply::Applied { change }))
    }
}

/// The answer to a register.
fn done(number: u32) -> Output {
    Output::Answer(Leader::PROGRAM, Answer::Done { number })
}

/// Goal: of two connections to one server, as over two networks, one stays. Method: the server has taken that to its
/// second address for the living one and closes the other, on which its word comes later.
#[test]
fn the_connection_that_a_server_keeps_is_not_closed_by_its_caller() {
    let (mut leader, [first, second]) = (Leader::new(), [1, 2].map(ConnectionId));
    let now = Duration::from_secs(9);
    [first, second].into_iter().for_each(|connection| leader.dials(now, connection));
    assert_eq!(leader.is_welcome(now, second), []);
    assert_eq!(leader.is_welcome(now, first), []);
    leader.says(now, Input::Closed(first));
    assert_eq!(leader.registers(now, 1), (vec![second], false));
    assert_eq!(leader.applies(now, second), [done(1)]);
}

/// The end of one that has broken without a word would be waited for.
#[test]
fn a_connection_on_which_nothing_comes_is_closed_for_another() {
    let (mut leader, [first, second, third]) = (Leader::new(), [1, 2, 3].map(ConnectionId));
    leader.dials(Duration::ZERO, first);
    assert_eq!(leader.is_welcome(Duration::ZERO, first), []);
    leader.dials(Duration::ZERO, second);
    let later = 2 * ALIVE_EVERY;
    assert_eq!(leader.is_welcome(later, second), []);
    leader.dials(later, third);
    assert_eq!(leader.is_welcome(later + ALIVE_EVERY, third), [first]);
    let now = later + ALIVE_EVERY;
    assert_eq!(leader.registers(now, 1), (vec![second, third], false));
}

/// Goal: what is registered while the way to a server is lost is found on that one's node as soon as this is answered,
/// and a server that is gone holds up nobody for longer than it would be found. Method: the connection ends, and another
/// one is there in time; then that ends, and none is.
#[test]
fn a_server_that_is_cut_off_is_waited_for_until_it_counts_as_gone() {
    let (mut leader, [first, second]) = (Leader::new(), [1, 2].map(ConnectionId));
    let seconds = Duration::from_secs;
    leader.dials(Duration::ZERO, first);
    leader.is_welcome(Duration::ZERO, first);
    leader.applies(Duration::ZERO, first);
    leader.says(seconds(1), Input::Closed(first));
    assert_eq!(leader.registers(seconds(1), 1), (vec![], false));
    leader.dials(seconds(2), second);
    assert_eq!(leader.is_welcome(seconds(2), second), []);
    assert_eq!(leader.registers(seconds(2), 2), (vec![second], false));
    assert_eq!(leader.applies(seconds(2), second), [done(1), done(2)]);
    // It has that, and not what comes then.
    leader.says(seconds(3), Input::Closed(second));
    assert_eq!(leader.registers(seconds(3), 3), (vec![], false));
    let gone = seconds(2) + SILENCE_MOST;
    let before = leader.says(gone - Duration::from_nanos(1), Input::Tick);
    assert!(!before.contains(&done(3)), "{before:?}");
    let after = leader.says(gone, Input::Tick);
    assert!(after.contains(&done(3)), "{after:?}");
    assert!(leader.registers(gone, 4).1, "nobody is there");
}

/// Goal: a server counts as gone so long after its last sign, on whichever of its connections that came. Method: of two
/// the one ends on which it came, and then the other, on which nothing has come since before.
#[test]
fn the_last_sign_of_a_server_counts_on_whichever_connection_it_came() {
    let (mut leader, [first, second]) = (Leader::new(), [1, 2].map(ConnectionId));
    let seconds = Duration::from_secs;
    for connection in [first, second] {
        leader.dials(Duration::ZERO, connection);
        assert_eq!(leader.is_welcome(Duration::ZERO, connection), []);
        leader.applies(Duration::ZERO, connection);
    }
    leader.says(seconds(2), Input::Reply(first, Reply::Alive));
    leader.says(seconds(2), Input::Closed(first));
    let silent = SILENCE_MOST + ALIVE_EVERY;
    assert!(leader.says(silent, Input::Tick).contains(&Output::Close(second)));
    assert_eq!(leader.registers(silent, 1), (vec![], false));
    let gone = seconds(2) + SILENCE_MOST;
    let before = leader.says(gone - Duration::from_nanos(1), Input::Tick);
    assert!(!before.contains(&done(1)), "{before:?}");
    let after = leader.says(gone, Input::Tick);
    assert!(after.contains(&done(1)), "{after:?}");
}
