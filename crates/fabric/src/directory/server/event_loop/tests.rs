//! The thread of a server: that it serves everybody, however much there is, and whatever happens at once.

use super::super::connections::FIRST_CONNECTION;
use super::*;
use crate::attributes::Attributes;
use crate::carriers::Carriers;
use crate::directory::protocol::{ContextInfo, Request, Snapshot, VERSION, decode, encode};
use crate::directory::seal::HAIL;
use crate::directory::state::SILENCE_MOST;
use crate::door::Callers;
use crate::frame;
use crate::id::{ContextId, Place, ResourceId};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::{iter, thread};

/// Goal: nobody keeps descriptors of a daemon by not reading why it is refused. Method: a program that takes nothing of much
/// that it was told has said hello in another version; it is cut when it has had time to read.
#[test]
fn who_does_not_take_its_last_word_is_cut() {
    let mut event_loop = event_loop("cuts", Vec::new());
    let (id, _program) = program(&mut event_loop);
    let connection = event_loop.connections.get_mut(id).unwrap();
    connection.unsent.say(Cause::Happened, |bytes| bytes.resize(4 << 20, 0));
    event_loop.step(Input::OtherVersion(id, VERSION - 1));
    event_loop.tick();
    let connection = event_loop.connections.get_mut(id).unwrap();
    connection.closing = Instant::now().checked_sub(SILENCE_MOST + ALIVE_EVERY);
    assert!(connection.closing.is_some());
    event_loop.tick();
    assert_eq!(event_loop.connections.len(), 0);
}

/// Goal: what happens is not kept for ever for who does not read it, and for others all the same, however much happens at once.
/// Method: of two programs that watch everything one reads nothing, while long resources come.
#[test]
fn who_reads_nothing_of_what_happens_is_given_up_soon() {
    const MANY: u32 = 1_000;
    let mut event_loop = event_loop("watches", Vec::new());
    let [(stopped, _stopped), (reads, mut reader)] = [(); 2].map(|()| program(&mut event_loop));
    for (number, id) in [stopped, reads].into_iter().enumerate() {
        let watch = Request::Subscribe { number: 0, query: Attributes::new() };
        for request in [hello(number as u64), watch] {
            event_loop.step(Input::Request(id, 0, request));
        }
    }
    let writer = ConnectionId(FIRST_CONNECTION - 1);
    event_loop.step(Input::Request(writer, 0, hello(9)));
    reader.set_nonblocking(true).unwrap();
    let (mut piece, mut told) = (vec![0; 1 << 20], None);
    for number in 0..MANY {
        let request = register(number, long_attributes());
        event_loop.step(Input::Request(writer, 0, request));
        while let Ok(1..) = reader.read(&mut piece) {}
        event_loop.flush(reads);
        match event_loop.connections.get_mut(stopped) {
            Some(connection) => connection.has_been_stuck(),
            None => drop(told.get_or_insert(number)),
        }
    }
    // Each is told with some 17 KB.
    let told = told.unwrap();
    assert!((200..350).contains(&told), "given up after {told}");
    assert!(event_loop.connections.get_mut(reads).is_some(), "it reads");
    // All at once, and it has had no time to read.
    event_loop.step(Input::Closed(writer));
    let left = event_loop.connections.get_mut(reads).unwrap().unsent.waiting().happened;
    let connection = event_loop.connections.get_mut(reads).unwrap();
    connection.unsent.say(Cause::Happened, |bytes| bytes.resize(bytes.len() + (20 << 20), 0));
    event_loop.flush(reads);
    event_loop.connections.get_mut(reads).unwrap().has_just_taken();
    event_loop.tick();
    let connection = event_loop.connections.get_mut(reads).expect("it has time to read");
    assert!(connection.unsent.waiting().happened > left);
    connection.has_been_stuck();
    event_loop.tick();
    assert!(event_loop.connections.get_mut(reads).is_none(), "it was told nothing more");
}

/// Goal: many programs that each leave little unread are not much together. Method: that is said to all of them, and to one
/// of another user.
#[test]
fn what_the_programs_of_one_user_leave_unread_is_bounded() {
    const EACH: usize = 3 << 20;
    let mut event_loop = event_loop("many", Vec::new());
    let stopped: Vec<_> = (0..60).map(|_| program(&mut event_loop)).collect();
    let (other, _other) = program_of(8, &mut event_loop);
    for id in stopped.iter().map(|(id, _)| *id).chain([other]) {
        let connection = event_loop.connections.get_mut(id).unwrap();
        connection.unsent.say(Cause::Happened, |bytes| bytes.resize(EACH, 0));
        event_loop.flush(id);
        event_loop.connections.get_mut(id).unwrap().has_just_taken();
    }
    event_loop.tick();
    assert_eq!(event_loop.connections.len(), 61, "they have time to read");
    for id in stopped.iter().map(|(id, _)| *id) {
        event_loop.connections.get_mut(id).unwrap().has_been_stuck();
    }
    event_loop.tick();
    let left = event_loop.connections.len() - 1;
    assert!((20..23).contains(&left), "{left} programs");
    assert!(event_loop.connections.get_mut(other).is_some(), "of another user");
}

/// Goal: one user's programs that do not read their answers do not take the daemon's memory, and do not hold up for ever those
/// that do. Method: one of them has a long answer, which it reads, or does not; another one asks.
#[test]
fn who_asks_waits_until_others_of_its_user_read_or_are_given_up() {
    for reads in [true, false] {
        let mut event_loop = event_loop(if reads { "reads" } else { "stuck" }, Vec::new());
        let [(long, mut long_reader), (asks, mut asker)] =
            [(); 2].map(|()| program(&mut event_loop));
        let (other, mut other_asker) = program_of(8, &mut event_loop);
        let connection = event_loop.connections.get_mut(long).unwrap();
        connection.unsent.say(Cause::Asked, |bytes| bytes.resize(65 << 20, 0));
        event_loop.flush(long);
        let mut bytes = Vec::new();
        encode(&hello(asks.0), &mut bytes);
        asker.write_all(&bytes).unwrap();
        bytes.clear();
        encode(&hello(other.0), &mut bytes);
        other_asker.write_all(&bytes).unwrap();
        event_loop.serve_ready(EpollTimeout::ZERO);
        for end in [&asker, &other_asker, &long_reader] {
            end.set_nonblocking(true).unwrap();
        }
        let mut piece = vec![0; 1 << 20];
        assert!(other_asker.read(&mut piece).is_ok(), "of another user");
        assert!(asker.read(&mut piece).is_err(), "answered");
        event_loop.tick();
        assert!(event_loop.connections.get_mut(long).is_some(), "it has time");
        if reads {
            while asker.read(&mut piece).is_err() {
                assert!(long_reader.read(&mut piece).is_ok(), "all is read");
                event_loop.serve_ready(EpollTimeout::ZERO);
            }
            assert!(event_loop.connections.get_mut(long).is_some(), "it reads");
        } else {
            event_loop.connections.get_mut(long).unwrap().has_been_stuck();
            event_loop.tick();
            event_loop.serve_ready(EpollTimeout::ZERO);
            assert!(asker.read(&mut piece).is_ok(), "there is room");
            assert!(event_loop.connections.get_mut(long).is_none(), "it does not read");
        }
    }
}

/// Another server that has told of a resource.
fn origin(event_loop: &mut EventLoop) -> TcpStream {
    let mut origin = TcpStream::connect(event_loop.address).unwrap();
    origin.write_all(&Hail::new(None, [7; 32]).encode()).unwrap();
    tell(&origin, &Update::Alive);
    let (id, place) = (ContextId::new(7), Place { slot: 0, generation: 0 });
    let (node, callers, addresses) = (String::new(), Callers::SameUser, Vec::new());
    let carriers = Carriers::default();
    let context =
        ContextInfo { id, node, owner: 0, callers, addresses, carriers, speaks: frame::VERSION };
    let snapshot = Update::Snapshot(Snapshot {
        node: "other".into(),
        incarnation: 7,
        address: ([127, 0, 0, 1], 1).into(),
        change: 0,
        contexts: vec![(context, Duration::ZERO)],
        resources: vec![(ResourceId { context: id, place }, Attributes::new())],
    });
    tell(&origin, &snapshot);
    let begun = Instant::now();
    while found(event_loop) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is heard");
        event_loop.serve_ready(EpollTimeout::from(100_u8));
    }
    origin
}

/// That of a node of this name, which is told of those members.
fn event_loop(node: &str, members: Vec<SocketAddr>) -> EventLoop {
    let name = format!("{node}-{}", std::process::id());
    let (node, address) = (node.into(), ([127, 0, 0, 1], 0).into());
    EventLoop::new(ServerConfig { name, node, address, members, key: None }).unwrap()
}

/// A program's connection, and its end of that.
fn program(event_loop: &mut EventLoop) -> (ConnectionId, UnixStream) {
    program_of(0, event_loop)
}

fn program_of(user: u32, event_loop: &mut EventLoop) -> (ConnectionId, UnixStream) {
    let (stream, program) = UnixStream::pair().unwrap();
    let peer = Peer::Program { user };
    (event_loop.connections.add(Stream::Unix(stream), peer, None).unwrap(), program)
}

fn hello(number: u64) -> Request {
    let (node, callers, addresses) = (String::new(), Callers::SameUser, Vec::new());
    let (id, carriers) = (ContextId::new(number), Carriers::default());
    let context =
        ContextInfo { id, node, owner: 0, callers, addresses, carriers, speaks: frame::VERSION };
    Request::Hello { version: VERSION, context, claim: None }
}

fn register(number: u32, attributes: Attributes) -> Request {
    Request::Register { number, place: Place { slot: number, generation: 0 }, attributes }
}

/// As long as they can be, nearly.
fn long_attributes() -> Attributes {
    let name = |at: usize| format!("{at}{}", "a".repeat(250));
    (0..32).fold(Attributes::new(), |all, at| all.with(name(at), "b".repeat(256)))
}

/// Asks for everything twice at once, and counts what it finds.
fn finds_twice(mut program: UnixStream) -> [usize; 2] {
    let mut bytes = Vec::new();
    encode(&hello(2), &mut bytes);
    for number in [0, 1] {
        encode(&Request::Subscribe { number, query: Attributes::new() }, &mut bytes);
    }
    program.write_all(&bytes).unwrap();
    bytes.clear();
    let (mut counts, mut whole, mut piece) = ([0; 2], 0, vec![0; 1 << 20]);
    while whole < 2 {
        let length = program.read(&mut piece).unwrap();
        assert!(length > 0, "given up with {counts:?}");
        bytes.extend_from_slice(&piece[..length]);
        let mut used = 0;
        while let Some((answer, length)) = decode(&bytes[used..]).unwrap() {
            used += length;
            whole += usize::from(matches!(answer, Answer::Found { .. }));
            if let Answer::FoundPart { number, records } | Answer::Found { number, records } =
                answer
            {
                counts[number as usize] += records.len();
            }
        }
        bytes.drain(..used);
    }
    counts
}

/// Goal: however much there is, another server hears of it, and a program that asks finds it. Method: more than waits for
/// one connection otherwise; the program asks for it twice at once.
#[test]
fn more_than_any_message_has_reaches_servers_and_programs() {
    const MANY: u32 = 6500;
    let mut hears = event_loop("hears", Vec::new());
    let mut tells = event_loop("tells", vec![hears.address]);
    let requests = (0..MANY).map(|number| register(number, long_attributes()));
    for request in iter::once(hello(1)).chain(requests) {
        let input = Input::Request(ConnectionId(FIRST_CONNECTION - 1), 0, request);
        tells.directory.step(Duration::ZERO, input);
    }
    let begun = Instant::now();
    let mut serve = |hears: &mut EventLoop| {
        assert!(begun.elapsed() < Duration::from_secs(120), "it does not come");
        for event_loop in [&mut tells, hears] {
            event_loop.serve_ready(EpollTimeout::from(1_u8));
            event_loop.tick_if_due();
        }
    };
    while found(&hears) == 0 {
        serve(&mut hears);
    }
    assert_eq!(found(&hears), MANY as usize);
    let (_, program) = program(&mut hears);
    let program = thread::spawn(|| finds_twice(program));
    while !program.is_finished() {
        serve(&mut hears);
    }
    assert_eq!(program.join().unwrap(), [MANY as usize; 2]);
}

/// Goal: however many programs end at once, the server's thread has the stack for it: each is found closed as others are
/// told of the one before. Method: all watch one question, each has a resource that answers it, and all are gone when
/// the first is found closed; with little stack, as a thousand would need more descriptors than many a user has.
#[test]
fn programs_that_end_at_once_are_forgotten_with_little_stack() {
    // Each within the one before took 3.9 KB at least.
    const STACK: usize = 512 << 10;
    let little = thread::Builder::new().stack_size(STACK);
    little.spawn(|| forgets_at_once(300)).unwrap().join().unwrap();
}

fn forgets_at_once(programs: usize) {
    let mut event_loop = event_loop("at-once", Vec::new());
    for number in 0..programs {
        // Its other end is gone at once.
        let (id, _) = program(&mut event_loop);
        for request in [
            hello(number as u64),
            Request::Subscribe { number: 1, query: Attributes::new() },
            register(2, Attributes::new()),
        ] {
            // Without a word to the program, by which it would be found closed.
            event_loop.directory.step(Duration::ZERO, Input::Request(id, 0, request));
        }
    }
    assert_eq!(found(&event_loop), programs);
    event_loop.close(ConnectionId(FIRST_CONNECTION));
    assert_eq!((found(&event_loop), event_loop.connections.len()), (0, 0));
}

/// Goal: a program that has much comes to the next server, which it tells all of it before it reads anything. Method: more
/// than so many answers, of eight bytes at least, are sent or have 1 MiB of room to wait; none is read before all are there.
#[test]
fn who_registers_much_at_once_need_not_read_meanwhile() {
    const MANY: u32 = 200_000;
    let mut event_loop = event_loop("much", Vec::new());
    let (id, mut program) = program(&mut event_loop);
    let mut bytes = Vec::new();
    encode(&hello(1), &mut bytes);
    (0..MANY).for_each(|number| encode(&register(number, Attributes::new()), &mut bytes));
    thread::scope(|scope| {
        let says = scope.spawn(|| program.write_all(&bytes).unwrap());
        while !says.is_finished() {
            event_loop.serve_ready(EpollTimeout::from(1_u8));
        }
    });
    // What was said last is in the kernel.
    event_loop.serve(id);
    assert!(event_loop.connections.get_mut(id).unwrap().is_heard(), "it is held up");
    assert_eq!(found(&event_loop), MANY as usize);
    let (mut done, mut said) = (0, Vec::new());
    program.set_nonblocking(true).unwrap();
    while done < MANY {
        let mut piece = [0; 64 << 10];
        while let Ok(length @ 1..) = program.read(&mut piece) {
            said.extend_from_slice(&piece[..length]);
        }
        let mut used = 0;
        while let Some((answer, length)) = decode(&said[used..]).unwrap() {
            used += length;
            done += u32::from(matches!(answer, Answer::Done { .. }));
        }
        said.drain(..used);
        event_loop.serve_ready(EpollTimeout::from(1_u8));
    }
}

fn tell(mut origin: &TcpStream, update: &Update) {
    let mut bytes = Vec::new();
    encode(update, &mut bytes);
    origin.write_all(&bytes).unwrap();
}

fn found(event_loop: &EventLoop) -> usize {
    event_loop.directory.find(&Attributes::new()).len()
}

/// Time passes without the server's thread. Then it goes on as one that was stopped while it waited: the kernel ends its
/// wait, and tells of nothing.
fn hold_up(event_loop: &mut EventLoop) {
    let time = SILENCE_MOST + ALIVE_EVERY;
    event_loop.start = event_loop.start.checked_sub(time).unwrap();
    event_loop.ticked = event_loop.ticked.checked_sub(time).unwrap();
    event_loop.tick_if_due();
}

/// Goal: whoever reaches a server does not fill its log. Method: three callers without its key, and three programs that say
/// what means nothing; of each kind one is warned of, and the others are counted.
#[test]
fn strangers_are_warned_of_once() {
    let mut event_loop = event_loop("warns", Vec::new());
    let call = |_| TcpStream::connect(event_loop.address).unwrap();
    let mut callers: Vec<_> = (0..3).map(call).collect();
    for caller in &mut callers {
        caller.write_all(&[0; HAIL]).unwrap();
        caller.set_nonblocking(true).unwrap();
    }
    let programs: Vec<_> = (0..3).map(|_| program(&mut event_loop)).collect();
    for (_, mut program) in programs {
        program.write_all(&u32::MAX.to_le_bytes()).unwrap();
    }
    let start = Instant::now();
    while [&event_loop.strangers, &event_loop.misspoken].map(Seldom::left_out) != [Some(2); 2] {
        assert!(start.elapsed() < Duration::from_secs(60), "not all were turned away");
        event_loop.serve_ready(EpollTimeout::from(100_u16));
    }
}

/// A server that was stopped would forget everybody: what they have said meanwhile waits in the kernel.
#[test]
fn who_was_held_up_takes_nobody_for_silent() {
    let mut event_loop = event_loop("own", Vec::new());
    let origin = origin(&mut event_loop);
    tell(&origin, &Update::Alive);
    let arrives = &mut [EpollEvent::empty()];
    assert_eq!(event_loop.connections.wait(arrives, EpollTimeout::from(60_000_u16)), 1);
    hold_up(&mut event_loop);
    assert_eq!(found(&event_loop), 1);
    // Now it is silent.
    hold_up(&mut event_loop);
    assert_eq!(found(&event_loop), 0);
}
