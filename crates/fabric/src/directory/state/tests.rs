//! The directory of one node: what it tells its programs, and what becomes of connections.

use super::*;
use crate::carriers::Carriers;
use crate::config::Protocol;
use crate::directory::protocol::PART_MOST;
use crate::door::Callers;

fn at(number: u64) -> SocketAddr {
    ([10, 0, 0, number as u8], 7).into()
}

fn snapshot(number: u64) -> Update {
    let (node, address) = (format!("n{number}"), at(number));
    let (contexts, resources) = (Vec::new(), Vec::new());
    Update::Snapshot { node, incarnation: number, address, change: 0, contexts, resources }
}

fn context(number: u64) -> ContextInfo {
    let (node, callers, addresses) = (String::new(), Callers::SameUser, Vec::new());
    let (id, carriers) = (ContextId::new(number), Carriers::default());
    ContextInfo { id, node, owner: 0, callers, addresses, carriers }
}

fn hello(number: u64) -> Request {
    Request::Hello { version: VERSION, context: context(number), claim: None }
}

/// A directory with a program that asks for everything, and what it is told of each input.
struct Asked(Directory);

impl Asked {
    fn new() -> Self {
        let mut asked = Self(Directory::new("n0", 0, at(0), [], None));
        let from = ConnectionId(1);
        let hello = hello(1);
        let everything = Request::Subscribe { number: 1, query: Attributes::new() };
        for request in [hello, everything] {
            asked.told(Duration::ZERO, Input::Request(from, 0, request));
        }
        asked
    }

    /// What the program is told: a resource's slot, and whether it is there.
    fn told(&mut self, now: Duration, input: Input) -> Vec<(u32, bool)> {
        let told = |output| match output {
            Output::Answer(_, Answer::Appeared { record, .. }) => {
                Some((record.id.place.slot, true))
            }
            Output::Answer(_, Answer::Gone { id, .. }) => Some((id.place.slot, false)),
            _ => None,
        };
        self.0.step(now, input).into_iter().filter_map(told).collect()
    }

    fn found(&self) -> Vec<u32> {
        self.0.find(&Attributes::new()).iter().map(|record| record.id.place.slot).collect()
    }
}

/// What the server of the second node tells in that run: its context, and that one's resources.
fn run(incarnation: u64, owner: u32, slots: &[u32]) -> Update {
    let mut told = snapshot(2);
    let Update::Snapshot { incarnation: run, contexts, resources, .. } = &mut told else {
        unreachable!()
    };
    *run = incarnation;
    contexts.push((ContextInfo { owner, ..context(2) }, Duration::ZERO));
    resources.extend(slots.iter().map(|slot| (resource(*slot), Attributes::new())));
    told
}

fn resource(slot: u32) -> ResourceId {
    ResourceId { context: ContextId::new(2), place: Place { slot, generation: 0 } }
}

fn change(change: u64, what: Change) -> Update {
    Update::Changed { change, what }
}

/// Goal: nobody is told that what is there was gone, and what is gone is held for no longer than a server may be silent.
/// Method: a server ends and comes again with one of its two resources in its first word, and with another later.
#[test]
fn who_is_cut_off_and_back_in_time_was_never_gone() {
    let [old, new] = [2, 3].map(ConnectionId);
    let second = Duration::from_secs;
    let mut asked = Asked::new();
    let both = asked.told(second(1), Input::Update(old, run(1, 0, &[1, 2, 3])));
    assert_eq!(both, [(1, true), (2, true), (3, true)]);
    assert_eq!(asked.told(second(2), Input::Closed(old)), []);
    assert_eq!(asked.found(), [1, 2, 3]);
    assert_eq!(asked.told(second(3), Input::Update(new, run(2, 0, &[1]))), []);
    let again = change(1, Change::Registered(resource(2), Attributes::new()));
    assert_eq!(asked.told(second(3), Input::Update(new, again)), []);
    // The last sign of the first run was in the first second.
    let before = second(1) + SILENCE_MOST - Duration::from_nanos(1);
    assert_eq!(asked.told(before, Input::Tick), []);
    assert_eq!(asked.told(second(1) + SILENCE_MOST, Input::Tick), [(3, false)]);
    assert_eq!(asked.found(), [1, 2]);
    // What ends in the second run is told at once, and so is all of it when it is silent.
    let dropped = change(2, Change::Dropped(resource(2)));
    assert_eq!(asked.told(second(5), Input::Update(new, dropped)), [(2, false)]);
    let late = second(5) + SILENCE_MOST + ALIVE_EVERY;
    assert_eq!(asked.told(late, Input::Tick), [(1, false)]);
    assert!(asked.0.contexts.len() == 1 && asked.found().is_empty(), "its own program's alone");
}

/// Goal: what ends while the connection alone is broken is found no longer than until there is another. Method: the same run
/// tells all of what it has again without one of its resources, and then without its context, which others may open then.
#[test]
fn what_ended_while_its_run_was_cut_off_is_gone_when_that_is_back() {
    let [first, second, third] = [2, 3, 4].map(ConnectionId);
    let mut asked = Asked::new();
    let mut told = |input| asked.told(Duration::ZERO, input);
    let both = [(1, true), (2, true)];
    assert_eq!(told(Input::Update(first, run(1, 0, &[1, 2]))), both);
    assert_eq!(told(Input::Closed(first)), []);
    assert_eq!(told(Input::Update(second, run(1, 0, &[1]))), [(2, false)]);
    // The second connection is dead, and nobody has said so here.
    let mut nothing = snapshot(2);
    let Update::Snapshot { incarnation, .. } = &mut nothing else { unreachable!() };
    *incarnation = 1;
    assert_eq!(told(Input::Update(third, nothing)), [(1, false)]);
    assert!(asked.found().is_empty());
    assert_eq!(asked.0.contexts.len(), 1, "its own program's alone");
}

/// A server that has made two connections, as to two addresses of one node, has written the first word of the second
/// before something that it tells on the first.
#[test]
fn what_was_told_after_a_first_word_was_written_is_not_gone_by_that() {
    let [first, second] = [2, 3].map(ConnectionId);
    let mut asked = Asked::new();
    let mut told = |input| asked.told(Duration::ZERO, input);
    let registered = || change(1, Change::Registered(resource(2), Attributes::new()));
    assert_eq!(told(Input::Update(first, run(1, 0, &[1]))), [(1, true)]);
    assert_eq!(told(Input::Update(first, registered())), [(2, true)]);
    assert_eq!(told(Input::Update(second, run(1, 0, &[1]))), []);
    assert_eq!(told(Input::Update(second, registered())), []);
    assert_eq!(asked.found(), [1, 2]);
}

/// Whoever asked believes that it is as it was.
#[test]
fn what_is_another_when_it_is_back_is_told() {
    let connections = [2, 3, 4, 5].map(ConnectionId);
    let mut asked = Asked::new();
    let mut run_on = |at: usize, told: Update| {
        let mut events = asked.told(Duration::ZERO, Input::Update(connections[at], told));
        events.extend(asked.told(Duration::ZERO, Input::Closed(connections[at])));
        events
    };
    assert_eq!(run_on(0, run(1, 0, &[1])), [(1, true)]);
    // Another's context, and then attributes.
    assert_eq!(run_on(1, run(2, 7, &[1])), [(1, false), (1, true)]);
    let mut told = run(3, 7, &[1]);
    let Update::Snapshot { resources, .. } = &mut told else { unreachable!() };
    resources[0].1 = Attributes::new().with("a", "b");
    assert_eq!(run_on(2, told), [(1, false), (1, true)]);
    // A context that ends takes along what its program had registered before.
    let last = connections[3];
    assert_eq!(asked.told(Duration::ZERO, Input::Update(last, run(4, 7, &[]))), []);
    let closed = change(1, Change::Closed(ContextId::new(2)));
    assert_eq!(asked.told(Duration::ZERO, Input::Update(last, closed)), [(1, false)]);
}

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
    directory.step(Duration::ZERO, Input::Update(tells, snapshot(2)));
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
    assert!(directory.callers.is_empty());
}

/// Goal: a server that has refused this one and then ends does not keep its programs from registering for ever.
/// Method: the only other server takes this one for a second of its name, and is called in vain when it is due again.
#[test]
fn who_refuses_and_is_gone_refuses_no_more() {
    let (program, listener) = (ConnectionId(1), ConnectionId(2));
    let mut directory = Directory::new("n0", 0, at(0), [at(1)], None);
    let hello = hello(1);
    directory.step(Duration::ZERO, Input::Request(program, 0, hello));
    directory.step(Duration::ZERO, Input::Tick);
    let dialed = Input::Dialed { address: at(1), connection: listener, reached_at: at(0) };
    directory.step(Duration::ZERO, dialed);
    let why = "the name n0 is taken".to_owned();
    directory.step(Duration::ZERO, Input::Reply(listener, Reply::Refused { why }));
    let register = |directory: &mut Directory, number| {
        let place = Place { slot: number, generation: 0 };
        let request = Request::Register { number, place, attributes: Attributes::new() };
        let outputs = directory.step(Duration::ZERO, Input::Request(program, 0, request));
        outputs.contains(&Output::Answer(program, Answer::Done { number }))
    };
    assert!(!register(&mut directory, 1));
    // Another that is not there changes nothing.
    directory.step(Duration::ZERO, Input::Unreachable(at(2)));
    assert!(!register(&mut directory, 2));
    directory.step(Duration::ZERO, Input::Unreachable(at(1)));
    assert!(register(&mut directory, 3));
}

/// A directory with a program, and the connections that it has made to the server of node `n1`.
struct Tells(Directory);

impl Tells {
    const PROGRAM: ConnectionId = ConnectionId(100);

    fn new() -> Self {
        let mut tells = Self(Directory::new("n0", 0, at(0), [], None));
        let hello = hello(1);
        tells.says(Duration::ZERO, Input::Request(Self::PROGRAM, 0, hello));
        tells
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
        let change = self.0.change;
        self.says(now, Input::Reply(connection, Reply::Applied { change }))
    }
}

/// The answer to a register.
fn done(number: u32) -> Output {
    Output::Answer(Tells::PROGRAM, Answer::Done { number })
}

/// Goal: of two connections to one server, as over two networks, one stays. Method: the server has taken that to its
/// second address for the living one and closes the other, on which its word comes later.
#[test]
fn the_connection_that_a_server_keeps_is_not_closed_by_its_caller() {
    let (mut tells, [first, second]) = (Tells::new(), [1, 2].map(ConnectionId));
    let now = Duration::from_secs(9);
    [first, second].into_iter().for_each(|connection| tells.dials(now, connection));
    assert_eq!(tells.is_welcome(now, second), []);
    assert_eq!(tells.is_welcome(now, first), []);
    tells.says(now, Input::Closed(first));
    assert_eq!(tells.registers(now, 1), (vec![second], false));
    assert_eq!(tells.applies(now, second), [done(1)]);
}

/// The end of one that has broken without a word would be waited for.
#[test]
fn a_connection_on_which_nothing_comes_is_closed_for_another() {
    let (mut tells, [first, second, third]) = (Tells::new(), [1, 2, 3].map(ConnectionId));
    tells.dials(Duration::ZERO, first);
    assert_eq!(tells.is_welcome(Duration::ZERO, first), []);
    tells.dials(Duration::ZERO, second);
    let later = 2 * ALIVE_EVERY;
    assert_eq!(tells.is_welcome(later, second), []);
    tells.dials(later, third);
    assert_eq!(tells.is_welcome(later + ALIVE_EVERY, third), [first]);
    let now = later + ALIVE_EVERY;
    assert_eq!(tells.registers(now, 1), (vec![second, third], false));
}

/// Goal: what is registered while the way to a server is lost is found on that one's node as soon as this is answered,
/// and a server that is gone holds up nobody for longer than it would be found. Method: the connection ends, and another
/// one is there in time; then that ends, and none is.
#[test]
fn a_server_that_is_cut_off_is_waited_for_until_it_counts_as_gone() {
    let (mut tells, [first, second]) = (Tells::new(), [1, 2].map(ConnectionId));
    let seconds = Duration::from_secs;
    tells.dials(Duration::ZERO, first);
    tells.is_welcome(Duration::ZERO, first);
    tells.applies(Duration::ZERO, first);
    tells.says(seconds(1), Input::Closed(first));
    assert_eq!(tells.registers(seconds(1), 1), (vec![], false));
    tells.dials(seconds(2), second);
    assert_eq!(tells.is_welcome(seconds(2), second), []);
    assert_eq!(tells.registers(seconds(2), 2), (vec![second], false));
    assert_eq!(tells.applies(seconds(2), second), [done(1), done(2)]);
    // It has that, and not what comes then.
    tells.says(seconds(3), Input::Closed(second));
    assert_eq!(tells.registers(seconds(3), 3), (vec![], false));
    let gone = seconds(2) + SILENCE_MOST;
    let before = tells.says(gone - Duration::from_nanos(1), Input::Tick);
    assert!(!before.contains(&done(3)), "{before:?}");
    let after = tells.says(gone, Input::Tick);
    assert!(after.contains(&done(3)), "{after:?}");
    assert!(tells.registers(gone, 4).1, "nobody is there");
}

/// Goal: a server counts as gone so long after its last sign, on whichever of its connections that came. Method: of two
/// the one ends on which it came, and then the other, on which nothing has come since before.
#[test]
fn the_last_sign_of_a_server_counts_on_whichever_connection_it_came() {
    let (mut tells, [first, second]) = (Tells::new(), [1, 2].map(ConnectionId));
    let seconds = Duration::from_secs;
    for connection in [first, second] {
        tells.dials(Duration::ZERO, connection);
        assert_eq!(tells.is_welcome(Duration::ZERO, connection), []);
        tells.applies(Duration::ZERO, connection);
    }
    tells.says(seconds(2), Input::Reply(first, Reply::Alive));
    tells.says(seconds(2), Input::Closed(first));
    let silent = SILENCE_MOST + ALIVE_EVERY;
    assert!(tells.says(silent, Input::Tick).contains(&Output::Close(second)));
    assert_eq!(tells.registers(silent, 1), (vec![], false));
    let gone = seconds(2) + SILENCE_MOST;
    let before = tells.says(gone - Duration::from_nanos(1), Input::Tick);
    assert!(!before.contains(&done(1)), "{before:?}");
    let after = tells.says(gone, Input::Tick);
    assert!(after.contains(&done(1)), "{after:?}");
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
        let told = Input::Update(ConnectionId(number), snapshot(number));
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
        let OpenContext { info, .. } = &self.0[node].contexts[&ContextId::new(1)];
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
            assert_eq!((node.origins.len(), node.followers.len()), (1, 1));
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
    let Update::Snapshot { contexts, .. } = &mut told else { unreachable!() };
    contexts.push((ContextInfo { owner: 7, ..context(1) }, Duration::from_secs(100)));
    directory.step(now, Input::Update(other, told));
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
    directory.step(second(0), Input::Update(other, snapshot(2)));
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

/// Resources of context 2 that are several times what one part has, and their attributes.
fn much() -> Vec<(ResourceId, Attributes)> {
    let name = |at: usize| format!("{at}{}", "a".repeat(200));
    let long = (0..32).fold(Attributes::new(), |all, at| all.with(name(at), "b".repeat(250)));
    (0..200).map(|slot| (resource(slot), long.clone())).collect()
}

fn bytes(message: &impl serde::Serialize) -> usize {
    let mut bytes = Vec::new();
    super::super::protocol::encode(message, &mut bytes);
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

/// Goal: a snapshot replaces what was known when all of it is there. Method: a server that has told of one resource is cut off,
/// and then cut off again after some of what it tells anew, of which nothing comes to be known; then it tells another thing.
#[test]
fn a_snapshot_that_is_never_whole_changes_nothing() {
    let [first, second, third] = [2, 3, 4].map(ConnectionId);
    let mut asked = Asked::new();
    let mut told = |input| asked.told(Duration::ZERO, input);
    assert_eq!(told(Input::Update(first, run(1, 0, &[1]))), [(1, true)]);
    let part = Update::SnapshotPart {
        contexts: vec![(context(2), Duration::ZERO)],
        resources: vec![(resource(2), Attributes::new())],
    };
    assert_eq!(told(Input::Update(second, part.clone())), []);
    assert_eq!(told(Input::Closed(second)), []);
    assert_eq!(told(Input::Closed(first)), []);
    assert_eq!(told(Input::Update(third, run(1, 0, &[3]))), [(3, true), (1, false)]);
    assert_eq!(asked.found(), [3]);
    // It has told everything.
    let outputs = asked.0.step(Duration::ZERO, Input::Update(third, part));
    assert!(outputs.contains(&Output::Close(third)));
    assert!(asked.0.callers.is_empty());
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
