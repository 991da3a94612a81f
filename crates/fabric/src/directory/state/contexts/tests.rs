//! Whose a name is, on one node and on several.

use super::super::testing::{at, change, context, hello, snapshot};
use super::super::{ALIVE_EVERY, ConnectionId, Directory, Input, Output};
use super::*;
use crate::attributes::Attributes;
use crate::directory::protocol::{Answer, Change, Request, Update, VERSION};
use crate::door::{Claim, ClusterKey};
use crate::id::Place;

/// Servers of two nodes, of one cluster's key.
struct Pair([Directory; 2]);

impl Pair {
    const CLUSTER: &str = "the key of all nodes of this cluster";
    /// The connection on which each tells the other one.
    const LINK: ConnectionId = ConnectionId(1000);

    fn new() -> Self {
        let key = || Some(ClusterKey::from_text(Self::CLUSTER).unwrap());
        Self([0, 1].map(|node| Directory::new(format!("n{node}"), node, at(node), [], key())))
    }

    /// What becomes of the programs of a node, and of all that its server has to tell the other one, and hears of that.
    fn step(&mut self, node: usize, now: Duration, input: Input) -> Vec<(ConnectionId, Answer)> {
        let mut answers = Vec::new();
        for output in self.0[node].step(now, input) {
            match output {
                Output::Answer(to, answer) => answers.push((to, answer)),
                Output::Update(_, update) => {
                    answers.extend(self.step(
                        1 - node,
                        now,
                        Input::Update(ConnectionId(1001), update),
                    ));
                }
                Output::Reply(_, heard) => {
                    answers.extend(self.step(1 - node, now, Input::Reply(Self::LINK, heard)));
                }
                _ => {}
            }
        }
        answers
    }

    /// Connects both, each of which tells the other one all that it has.
    fn meet(&mut self, now: Duration) -> Vec<(ConnectionId, Answer)> {
        let dials = |pair: &mut Self, node: usize| {
            let (address, reached_at) = (at(1 - node as u64), at(node as u64));
            let dialed = Input::Dialed { address, connection: Self::LINK, reached_at };
            pair.step(node, now, dialed)
        };
        [dials(self, 0), dials(self, 1)].concat()
    }

    /// Says hello for context 1, and registers a resource in it if that is taken.
    fn opens(&mut self, node: usize, now: Duration, as_whom: As) -> Result<Option<Claim>, String> {
        let As { program, user, claim } = as_whom;
        let hello = Request::Hello { version: VERSION, context: context(1), claim };
        let answers = self.step(node, now, Input::Request(program, user, hello));
        let (_, answer) = answers.into_iter().find(|(to, _)| *to == program).unwrap();
        let claim = match answer {
            Answer::Welcome { claim, .. } => claim,
            Answer::Refused { number: None, why } => return Err(why),
            other => panic!("{other:?}"),
        };
        let place = Place { slot: user, generation: 0 };
        let request = Request::Register { number: 1, place, attributes: Attributes::new() };
        self.step(node, now, Input::Request(program, user, request));
        Ok(claim)
    }

    /// Whose context 1 is for the server of that node, on which node, and whose resources are found.
    fn seen(&self, node: usize) -> (u32, String, Vec<u32>) {
        let info = self.0[node].contexts.home(ContextId::new(1));
        let found = self.0[node].find(&Attributes::new());
        let found = found.iter().map(|record| record.id.place.slot).collect();
        (info.owner, info.node.clone(), found)
    }
}

/// A program that says hello.
#[derive(Clone, Copy)]
struct As {
    program: ConnectionId,
    user: u32,
    claim: Option<Claim>,
}

const OWNER: As = As { program: ConnectionId(1), user: 7, claim: None };
const OTHER: As = As { program: ConnectionId(2), user: 8, claim: None };

/// Goal: whoever takes the name that another user's context has had makes no passes as that one, and gets none for it.
/// Method: the other says hello when the first is forgotten; what each is given is compared.
#[test]
fn another_user_of_a_name_has_another_key() {
    let key = ClusterKey::from_text(Pair::CLUSTER).unwrap();
    let (mut directory, id) =
        (Directory::new("n0", 0, at(0), [], Some(key.clone())), ContextId::new(1));
    let given = |directory: &mut Directory, now, as_whom: As| {
        let asked = Input::Request(as_whom.program, as_whom.user, hello(1));
        let Output::Answer(_, answer) = directory.step(now, asked).remove(0) else { panic!() };
        match answer {
            Answer::Welcome { key, .. } => key,
            _ => None,
        }
    };
    let first = given(&mut directory, Duration::ZERO, OWNER);
    assert_eq!(first, Some(key.of_context(id, 7)));
    directory.step(Duration::ZERO, Input::Closed(OWNER.program));
    assert_eq!(given(&mut directory, Duration::ZERO, OTHER), None, "it was another's a moment ago");
    let later = SILENCE_MOST;
    directory.step(later, Input::Tick);
    let second = given(&mut directory, later, OTHER);
    assert_eq!(second, Some(key.of_context(id, 8)));
    assert_ne!(first, second);
    // A pass to it is that to the context of its user.
    let caller = ConnectionId(3);
    directory.step(later, Input::Request(caller, 9, hello(2)));
    let resolve = Request::Resolve { number: 1, context: id };
    let outputs = directory.step(later, Input::Request(caller, 9, resolve));
    let [Output::Answer(_, Answer::Resolved { found: Some(found), .. })] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    let (pass, from) = (found.pass.unwrap(), ContextId::new(2));
    assert!(key.of_context(id, 8).knows(&pass, from) && !key.of_context(id, 7).knows(&pass, from));
}

/// Goal: a name that was taken while its node was cut off is its first user's again, everywhere, and two nodes stay connected
/// for that. Method: programs of two users open it on two nodes that do not know each other yet.
#[test]
fn of_two_nodes_the_first_has_a_name_and_both_stay_connected() {
    let second = Duration::from_secs;
    for first in [0, 1] {
        let mut pair = Pair::new();
        pair.opens(first, second(1), OWNER).unwrap();
        pair.opens(1 - first, second(2), OTHER).unwrap();
        let told = pair.meet(second(3));
        let is_refused = |whom: As| {
            told.iter().any(|(to, answer)| {
                *to == whom.program && matches!(answer, Answer::Refused { number: None, .. })
            })
        };
        assert_eq!((is_refused(OWNER), is_refused(OTHER)), (false, true));
        let is = (7, format!("n{first}"), vec![7]);
        assert_eq!((pair.seen(0), pair.seen(1)), (is.clone(), is.clone()));
        for node in &pair.0 {
            assert_eq!(
                (node.origins.connections().count(), node.followers.connections().count()),
                (1, 1)
            );
        }
        let refused = "context 0000000000000001 is open already".to_owned();
        assert_eq!(pair.opens(1 - first, second(4), OTHER), Err(refused));
        assert_eq!((pair.seen(0), pair.seen(1)), (is.clone(), is));
    }
}

/// Goal: nobody has another's name because a clock is behind. Method: another node, whose clock is ahead, has told of a context;
/// a program without a claim says hello by that name while the context is there, and when it has just ended.
#[test]
fn who_claims_nothing_comes_last_whatever_clocks_say() {
    let (other, now) = (ConnectionId(9), Duration::from_secs(1));
    let mut directory = Directory::new("n0", 0, at(0), [], None);
    let mut told = snapshot(2);
    told.contexts.push((ContextInfo { owner: 7, ..context(1) }, Duration::from_secs(100)));
    directory.step(now, Input::Update(other, Update::Snapshot(told)));
    let mut is_refused = |input| {
        directory.step(now, input);
        let outputs = directory.step(now, Input::Request(OTHER.program, OTHER.user, hello(1)));
        outputs.contains(&Output::Close(OTHER.program))
    };
    assert!(is_refused(Input::Tick));
    assert!(is_refused(Input::Update(other, change(1, Change::Closed(ContextId::new(1))))));
}

/// Goal: nobody keeps a program from its own name who has taken it while the daemon was started again. Method: another user is
/// quicker, on the same node and on another one; then the first shows its claim, and others show what is none of theirs.
#[test]
fn who_had_a_name_before_its_server_was_started_again_has_it_after_that() {
    let second = Duration::from_secs;
    let claim = Pair::new().opens(0, second(1), OWNER).unwrap();
    assert!(claim.is_some());
    for node in [0, 1] {
        let mut pair = Pair::new();
        pair.meet(second(5));
        pair.opens(node, second(5), As { claim, ..OTHER }).unwrap();
        assert!(pair.opens(0, second(6), OWNER).is_err(), "it shows nothing");
        assert_eq!(pair.opens(0, second(6), As { claim, ..OWNER }), Ok(claim));
        let is = (7, "n0".to_owned(), vec![7]);
        assert_eq!((pair.seen(0), pair.seen(1)), (is.clone(), is));
        assert!(pair.opens(node, second(7), As { claim, ..OTHER }).is_err());
    }
}

/// Goal: since when a context is its user's is what the clock shows when it is opened, and nothing else depends on that. Method:
/// a server begins before its node's clock is set, which is set back later; another is heard all the time.
#[test]
fn a_claim_has_the_time_of_its_hello_by_a_clock_that_may_be_set() {
    let key = ClusterKey::from_text(Pair::CLUSTER).unwrap();
    let mut directory = Directory::new("n0", 0, at(0), [], Some(key));
    let (second, other) = (Duration::from_secs, ConnectionId(9));
    directory.step(second(0), Input::Update(other, Update::Snapshot(snapshot(2))));
    let mut since = |number, now, clock| {
        directory.step(now, Input::Clock(clock));
        let outputs = directory.step(now, Input::Tick);
        assert!(!outputs.iter().any(|output| matches!(output, Output::Close(_))), "{outputs:?}");
        // Half a tick later.
        let hello = Input::Request(ConnectionId(number), 7, hello(number));
        let outputs = directory.step(now + ALIVE_EVERY / 2, hello);
        let welcome = outputs.into_iter().find_map(|output| match output {
            Output::Answer(_, Answer::Welcome { claim, .. }) => claim,
            _ => None,
        });
        welcome.unwrap().since.checked_sub(ALIVE_EVERY / 2)
    };
    assert_eq!(since(1, second(0), second(5)), Some(second(5)));
    assert_eq!(since(2, second(1), second(1_000_000_000)), Some(second(1_000_000_000)));
    assert_eq!(since(3, second(2), second(999_999_000)), Some(second(999_999_000)));
}
