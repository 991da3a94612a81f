//! Who is let in: by the directory servers of other nodes, and by contexts.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, Way, key, told, until};
use keeptime_fabric::directory::client::Client;
use keeptime_fabric::directory::protocol::{ContextInfo, Reply, Snapshot, Update, encode, read};
use keeptime_fabric::directory::seal::{End, HAIL, Hail, SEAL, Sealer, Sealers};
use keeptime_fabric::door::Pass;
use keeptime_fabric::frame::{self, Carrier, Frame, GREETING, Greeting, Head};
use keeptime_fabric::id::Place;
use keeptime_fabric::{
    Callers, Carriers, ClusterKey, Context, ContextId, Match, Protocol, RecvError, ResourceId,
    SendError, Tag, Wait, attrs,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const WAY: Way = Way::Tcp(Wait::Block);
/// Somebody who is not root.
const USER: u32 = 60_321;
const OTHER: u32 = 60_322;

/// What `work` gives as done by a program of `user`. The kernel asks threads, not processes, who they are.
fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    let become_user = move || {
        let keep = u32::MAX;
        // SAFETY: a system call about this thread alone, which ends with the work.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, keep, user, keep) }, 0);
        work()
    };
    thread::scope(|scope| scope.spawn(become_user).join().unwrap())
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        // Past what captures the output of tests that pass.
        let _ = writeln!(std::io::stdout(), "skipped: users: only root has programs of several");
    }
    root
}

fn open(node: &Node, user: u32, callers: Callers) -> Context {
    let mut settings = node.settings(Way::Memory(Wait::Block));
    settings.callers = callers;
    as_user(user, || Context::open(settings).unwrap())
}

#[test]
fn programs_of_other_users_are_not_let_in_unless_they_are_wanted() {
    if !is_root() {
        return;
    }
    let first = Node::start("n1", &[]);
    let nodes = [Node::start("n2", &[first.address()]), first];
    for (here, there) in [(0, 1), (1, 1)] {
        let wanted = [(USER, Callers::SameUser), (USER, Callers::AnyUser)];
        for (owner, callers) in wanted {
            let context = open(&nodes[there], owner, callers);
            let receiver =
                context.register(attrs! { "to" => format!("{here}{callers:?}") }).unwrap();
            for caller in [USER, OTHER, 0] {
                let calling = open(&nodes[here], caller, Callers::SameUser);
                let sender = calling.register(attrs! { "from" => "here" }).unwrap();
                let query = attrs! { "to" => format!("{here}{callers:?}") };
                let to = calling.find(query).one_of_any_within(LONG).unwrap();
                let sent = as_user(caller, || sender.send(to, Tag(caller.into()), b"may I?"));
                if caller == OTHER && callers == Callers::SameUser {
                    let why = sent.unwrap_err().to_string();
                    assert!(why.contains("programs of user 60321 and of root alone"), "{why}");
                    continue;
                }
                sent.unwrap();
                let arrived = as_user(owner, || receiver.recv(Match::any()).unwrap());
                assert_eq!((arrived.from, arrived.tag), (sender.id(), Tag(caller.into())));
                // The answer goes back where the question came from, whoever that is.
                as_user(owner, || receiver.send(arrived.from, Tag(9), b"yes")).unwrap();
                assert_eq!(sender.recv(Match::tag(9)).unwrap().data, b"yes");
            }
        }
    }
}

/// Whoever was first may have a name without a file: a directory server of another user is told nothing, and programs
/// of its own user go on with it.
#[test]
fn a_directory_server_of_another_user_is_not_believed() {
    if !is_root() {
        return;
    }
    let node = as_user(OTHER, || Node::start("n1", &[]));
    let opens = |user| {
        let settings = node.settings(WAY);
        as_user(user, || Context::open(settings).map(drop))
    };
    for user in [USER, 0] {
        let why = opens(user).unwrap_err().to_string();
        assert!(why.contains("user 60322"), "{why}");
    }
    opens(OTHER).unwrap();
}

/// A message as of `from`, to the context of `to`, on a connection of its own: that of its call of this number.
fn intrude(
    address: &SocketAddr,
    from: ContextId,
    to: ResourceId,
    pass: Option<Pass>,
    attempt: u64,
) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    greet(&stream, from, to, pass, attempt);
    send_bad(&stream, to, Tag(666));
    stream
}

/// Says on a new connection who calls.
fn greet(
    mut stream: &TcpStream,
    from: ContextId,
    to: ResourceId,
    pass: Option<Pass>,
    attempt: u64,
) {
    let carrier = Carrier::Itself;
    let greeting = Greeting { from, to: to.context, carrier, attempt, is_rail: false, pass };
    stream.write_all(&greeting.encode()).unwrap();
}

/// The same on a connection that is there.
fn send_bad(mut stream: &TcpStream, to: ResourceId, tag: Tag) {
    let frame = Frame::Message { from: to.place, to: to.place, tag, credit: 0 };
    let head = Head { frame, length: 3, seen: 0 };
    stream.write_all(&[&head.encode()[..], b"bad"].concat()).unwrap();
}

/// Where the context is called from its own node that has the resource.
fn called_at(context: &Context) -> SocketAddr {
    let records = context.find(attrs! { "a" => "b" }).all().unwrap();
    *records[0].home.addresses.iter().find(|address| address.ip().is_loopback()).unwrap()
}

/// Whether the other end closes it.
fn is_closed(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(LONG)).unwrap();
    match stream.read(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Whoever reaches a context's port can say that it is anybody, but not show it.
#[test]
fn nobody_makes_up_who_calls() {
    let node = Node::start("n1", &[]);
    let mut settings = node.settings(WAY);
    // It takes calls by itself.
    settings.progress_thread = true;
    let context = Context::open(settings).unwrap();
    let (receiver, calling) = (context.register(attrs! { "a" => "b" }).unwrap(), node.context(WAY));
    let own = calling.register(attrs! { "c" => "d" }).unwrap().id().context;
    let address = &called_at(&context);
    let to = receiver.id().context;
    let user = nix::unistd::geteuid().as_raw();
    let other = key("not the key of this cluster's daemons").of_context(to, user);
    for pass in [None, Some(Pass { user, proof: [7; 32] }), Some(other.pass(own, user))] {
        assert!(is_closed(intrude(address, own, receiver.id(), pass, 1)), "{pass:?}");
        assert!(receiver.try_recv(Match::any()).unwrap().is_none());
    }
    // With what its daemon would write it is let in: it is the pass that makes the difference.
    let right = key("the key of all nodes of all tests").of_context(to, user);
    let _intruder = intrude(address, own, receiver.id(), Some(right.pass(own, user)), 1);
    assert_eq!(receiver.recv(Match::any()).unwrap().data, b"bad");
}

/// A context that connects anew has given up the connection that it had: what has arrived by that is taken before what
/// comes by the new one, and it ends.
#[test]
fn who_calls_again_has_one_connection() {
    let node = Node::with_key("n1", &[], None);
    let context = node.context(WAY);
    let receiver = context.register(attrs! { "a" => "b" }).unwrap();
    let (to, from) = (receiver.id(), ContextId::new(7));
    let address = &called_at(&context);
    let tag = || receiver.recv_within(Match::any(), LONG).unwrap().tag;
    let before = intrude(address, from, to, None, 1);
    assert_eq!(tag(), Tag(666));
    // Nobody of the context works meanwhile: all of this waits for it.
    send_bad(&before, to, Tag(1));
    send_bad(&before, to, Tag(2));
    let after = intrude(address, from, to, None, 2);
    send_bad(&after, to, Tag(3));
    assert_eq!([tag(), tag(), tag(), tag()], [1, 2, 666, 3].map(Tag));
    assert!(is_closed(before));
}

/// Goal: a sender is not gone as long as somebody calls who may be that one. Method: a call that says nothing for a while, as
/// one over a bridge may; and one that never says anything.
#[test]
fn who_calls_is_not_gone_before_it_is_heard() {
    let node = Node::with_key("n1", &[], None);
    let context = node.context(WAY);
    let receiver = context.register(attrs! { "a" => "b" }).unwrap();
    let (to, from) = (receiver.id(), ContextId::new(7));
    let address = &called_at(&context);
    let wanted = Match::any().from(ResourceId { context: from, ..to });
    let gone = Err(RecvError::Gone(from));
    assert_eq!(receiver.recv_within(wanted, LONG), gone);
    let caller = TcpStream::connect(address).unwrap();
    let early = receiver.recv_within(wanted, Duration::from_millis(200));
    assert_eq!(early, Err(RecvError::TimedOut));
    greet(&caller, from, to, None, 1);
    send_bad(&caller, to, Tag(666));
    assert_eq!(receiver.recv_within(wanted, LONG).unwrap().tag, Tag(666));
    drop(caller);
    let _silent = TcpStream::connect(address).unwrap();
    assert_eq!(receiver.recv_within(wanted, LONG), gone);
}

/// A call that its caller has given up for a later one, and that is taken after that.
#[test]
fn a_call_that_comes_late_ends_nothing() {
    let node = Node::with_key("n1", &[], None);
    let mut settings = node.settings(WAY);
    // It takes calls by itself.
    settings.progress_thread = true;
    let context = Context::open(settings).unwrap();
    let receiver = context.register(attrs! { "a" => "b" }).unwrap();
    let (to, from) = (receiver.id(), ContextId::new(7));
    let address = &called_at(&context);
    let tag = || receiver.recv_within(Match::any(), LONG).unwrap().tag;
    let newer = intrude(address, from, to, None, 2);
    assert_eq!(tag(), Tag(666));
    assert!(is_closed(intrude(address, from, to, None, 1)));
    send_bad(&newer, to, Tag(3));
    assert_eq!(tag(), Tag(3));
    assert!(receiver.try_recv(Match::any()).unwrap().is_none());
}

/// One of another version would close the connection, and its caller be told only that nothing is confirmed.
#[test]
fn a_context_of_another_version_is_not_called() {
    let node = Node::start("n1", &[]);
    for (number, speaks) in [(1, frame::VERSION - 1), (2, frame::VERSION + 1)] {
        let (id, addresses) = (ContextId::new(number), vec![([127, 0, 0, 1], 7).into()]);
        let info = ContextInfo { speaks, ..told(id, addresses, Carriers::default()) };
        let _there = Client::connect(&node.config.name, info).unwrap();
        for way in [WAY, Way::Memory(Wait::Block)] {
            let sender = node.context(way).register(attrs! {}).unwrap();
            let to = ResourceId { context: id, place: Place { slot: 0, generation: 0 } };
            let why = sender.send(to, Tag(1), b"hello").unwrap_err().to_string();
            let versions = format!(
                "speaks version {speaks} of the protocol between programs, this program {}",
                frame::VERSION
            );
            assert!(why.contains(&versions), "{why}");
        }
    }
}

/// Goal: who calls takes what both speak. Method: a context that the directory says to speak UDP, and one of which it does
/// not, are called by one that wants UDP; who calls a second time says so.
#[test]
fn a_caller_takes_what_the_directory_says_that_both_speak() {
    let node = Node::start("n1", &[]);
    let udp = Carriers::default().with(Protocol::Udp);
    for (number, carriers) in [(1, Carriers::default()), (2, udp)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (id, addresses) = (ContextId::new(number), vec![listener.local_addr().unwrap()]);
        let info = told(id, addresses, carriers);
        let _there = Client::connect(&node.config.name, info).unwrap();
        let mut settings = node.settings(Way::Udp(Wait::Block));
        settings.close_time = Duration::ZERO;
        let context = Context::open(settings).unwrap();
        let sender = context.register(attrs! {}).unwrap();
        let to = ResourceId { context: id, place: Place { slot: 0, generation: 0 } };
        sender.try_send(to, Tag(1), b"hello").unwrap();
        let (first, stream) = greeting(listener.accept().unwrap().0);
        let is_udp = matches!(first.carrier, Carrier::Datagrams { .. });
        assert_eq!((is_udp, first.is_rail), (carriers == udp, false), "{carriers:?}");
        if !is_udp {
            assert_eq!(first.carrier, Carrier::Itself);
            drop(stream);
            listener.set_nonblocking(true).unwrap();
            let again = until(|| {
                let _ = sender.try_send(to, Tag(1), b"hello");
                listener.accept().ok()
            });
            let (second, _stream) = greeting(again.0);
            assert!(second.attempt > first.attempt, "{first:?}, {second:?}");
        }
    }
}

/// What a caller says first.
fn greeting(mut stream: TcpStream) -> (Greeting, TcpStream) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut bytes = [0; GREETING];
    stream.read_exact(&mut bytes).unwrap();
    (Greeting::decode(&bytes).unwrap(), stream)
}

fn hail(address: SocketAddr, key: Option<&ClusterKey>) -> (TcpStream, Option<Sealers>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let own = Hail::new(key, [7; 32]);
    stream.write_all(&own.encode()).unwrap();
    let mut bytes = [0; HAIL];
    stream.read_exact(&mut bytes).unwrap();
    let met = own.meets(&Hail::decode(&bytes).unwrap(), End::Caller, key);
    (stream, met.ok().flatten())
}

/// A node without any program.
fn snapshot(node: &str, address: SocketAddr) -> Update {
    Update::Snapshot(Snapshot {
        node: node.into(),
        incarnation: 1,
        address,
        change: 0,
        contexts: vec![],
        resources: vec![],
    })
}

fn say(mut stream: &TcpStream, sealer: Option<&mut Sealer>, update: &Update) {
    let mut bytes = Vec::new();
    encode(update, &mut bytes);
    let seal = sealer.map_or([0; SEAL], |sealer| sealer.seal(&bytes));
    // It may have closed already.
    let _ = stream.write_all(&[bytes, seal.to_vec()].concat());
}

#[test]
fn a_server_hears_only_those_who_have_the_key() {
    let node = Node::start("n1", &[]);
    let somewhere = ([127, 0, 0, 1], 9).into();
    let wrong = key("some other key, that is as long as keys are");
    let strangers: [(&str, Option<&ClusterKey>); 2] = [("none", None), ("another", Some(&wrong))];
    for (name, key) in strangers {
        let (stream, mut sealers) = hail(node.address(), key);
        let mut said = sealers.as_mut().map(|sealers| &mut sealers.said);
        say(&stream, said.as_deref_mut(), &Update::Alive);
        say(&stream, said, &snapshot(name, somewhere));
        assert!(is_closed_after(stream), "{name}");
    }
    // A long message before it is known who says it, although by one who has the key.
    let right = key("the key of all nodes of all tests");
    let (stream, mut sealers) = hail(node.address(), Some(&right));
    let long = snapshot(&"n".repeat(200), somewhere);
    say(&stream, sealers.as_mut().map(|sealers| &mut sealers.said), &long);
    assert!(is_closed_after(stream), "a long message first");
    let (stream, mut sealers) = hail(node.address(), Some(&right));
    let Sealers { said, heard } = sealers.as_mut().unwrap();
    say(&stream, Some(said), &Update::Alive);
    say(&stream, Some(said), &snapshot("n2", somewhere));
    stream.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(next(&stream, heard), Reply::Alive);
    assert!(matches!(next(&stream, heard), Reply::Welcome { node, .. } if node == "n1"));
}

/// What a server says next.
fn next(mut stream: &TcpStream, sealer: &mut Sealer) -> Reply {
    let mut message = vec![0; 4];
    stream.read_exact(&mut message).unwrap();
    let length = u32::from_le_bytes(message[..].try_into().unwrap());
    message.resize(4 + length as usize, 0);
    stream.read_exact(&mut message[4..]).unwrap();
    let mut seal = [0; SEAL];
    stream.read_exact(&mut seal).unwrap();
    sealer.open(&message, seal).unwrap();
    read(&message).unwrap()
}

/// The same, with what it said before.
fn is_closed_after(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(LONG)).unwrap();
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Nodes with another key, or with none, are none of the cluster: they are told nothing, and what they have is
/// found by nobody.
#[test]
fn nodes_know_those_that_have_their_key() {
    let first = Node::start("n1", &[]);
    let other = key("some other key, that is as long as keys are");
    let keyless = Node::with_key("n2", &[first.address()], None);
    let wrong = Node::with_key("n3", &[first.address()], Some(other));
    let right = Node::start("n4", &[first.address()]);
    let nodes = [first, keyless, wrong, right];
    let contexts: Vec<_> = nodes.iter().map(|node| node.context(WAY)).collect();
    let register = |context: &Context| context.register(attrs! { "test" => "known" }).unwrap();
    let _resources: Vec<_> = contexts.iter().map(register).collect();
    let found = |context: &Context, count| {
        let query = context.find(attrs! { "test" => "known" });
        let all = query.all().unwrap();
        let nodes: Vec<_> = all.into_iter().map(|record| record.home.node.clone()).collect();
        (nodes.len() == count).then_some(nodes)
    };
    let both = ["n1", "n4"].map(String::from);
    for context in [&contexts[0], &contexts[3]] {
        let mut names = until(|| found(context, 2));
        names.sort();
        assert_eq!(names, both);
    }
    // By now they have tried.
    assert_eq!(found(&contexts[1], 1), Some(vec!["n2".to_owned()]));
    assert_eq!(found(&contexts[2], 1), Some(vec!["n3".to_owned()]));
}

/// Where nobody has a key, nodes believe each other, as on a network of one user's own.
#[test]
fn without_any_key_everybody_is_believed() {
    let first = Node::with_key("n1", &[], None);
    let second = Node::with_key("n2", &[first.address()], None);
    let (here, there) = (first.context(WAY), second.context(WAY));
    let receiver = there.register(attrs! { "test" => "open" }).unwrap();
    let sender = here.register(attrs! {}).unwrap();
    let to = here.find(attrs! { "test" => "open" }).one_of_any_within(LONG).unwrap();
    sender.send(to, Tag(1), b"hello").unwrap();
    assert_eq!(receiver.recv(Match::any()).unwrap().data, b"hello");
    let gone = SendError::NoContext(ContextId::new(1));
    let nobody = ResourceId { context: ContextId::new(1), ..to };
    assert_eq!(sender.send(nobody, Tag(1), b"hello"), Err(gone));
}
