//! Both ends, on this machine or with a network between them that is not.

use super::receiver::UdpReceiver;
use super::shared::Shared;
use super::{ANSWERED, ASKED, BEFORE, PORT, TOKEN, accept, call, called};
use crate::frame::{EAGER_MOST, Frame, HEAD, Head};
use crate::payload::Buffer;
use crate::transport::reliable::{Heard, KEPT_MOST, encode};
use crate::transport::testing::{Collected, message, streams};
use crate::transport::{Broken, Ends, Receiver, Sent};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use proptest::prelude::*;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const TOKEN_OF_TEST: u64 = 4711;
const LONG: Duration = Duration::from_secs(60);

/// What becomes of a datagram.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    /// So many others overtake it.
    Overtaken(usize),
}

/// Both ends on this machine, and what tells that they have ended: the streams.
fn ends_here() -> (Ends, Ends) {
    let (caller, called_on) = streams();
    let socket = call(&caller).unwrap();
    let port = socket.local_addr().unwrap().port();
    let other = accept(called_on, port, TOKEN_OF_TEST).unwrap();
    (called(caller, socket, TOKEN_OF_TEST).unwrap(), other)
}

/// Both ends with a network between them that treats datagrams as `fates` say, again and again.
/// It ends with the streams that are returned.
fn ends_apart(fates: &[Fate]) -> (Ends, Ends, [TcpStream; 2]) {
    let (caller, mut calls) = streams();
    let (mut answers, called_on) = streams();
    let local = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let (socket, here, there) = (call(&caller).unwrap(), local(), local());
    here.connect(("127.0.0.1", port(&socket))).unwrap();
    let other = accept(called_on, port(&there), TOKEN_OF_TEST).unwrap();
    let mut bytes = [0; PORT];
    answers.read_exact(&mut bytes).unwrap();
    there.connect(("127.0.0.1", u16::from_le_bytes(bytes))).unwrap();
    calls.write_all(&port(&here).to_le_bytes()).unwrap();
    let one = called(caller, socket, TOKEN_OF_TEST).unwrap();
    let ends = [calls, answers];
    for (from, to, shift) in [(&here, &there, 0), (&there, &here, fates.len() / 2)] {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let fates: Vec<_> = fates.iter().cycle().skip(shift).take(fates.len()).copied().collect();
        let lives = ends[0].try_clone().unwrap();
        lives.set_nonblocking(true).unwrap();
        thread::spawn(move || carry(&from, &to, &fates, &lives));
    }
    (one, other, ends)
}

/// A network in one direction, until a stream through it ends.
fn carry(from: &UdpSocket, to: &UdpSocket, fates: &[Fate], lives: &TcpStream) {
    from.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut bytes = vec![0; 1 << 16];
    let mut late: Vec<(usize, Vec<u8>)> = Vec::new();
    for number in 0.. {
        late.iter_mut().for_each(|(wait, _)| *wait = wait.saturating_sub(1));
        let due = late.extract_if(.., |(wait, _)| *wait == 0);
        due.for_each(|(_, datagram)| drop(to.send(&datagram)));
        let Ok(length) = from.recv(&mut bytes) else {
            match lives.peek(&mut [0]) {
                Ok(0) => return,
                _ => continue,
            }
        };
        match fates[number % fates.len()] {
            Fate::Arrives => drop(to.send(&bytes[..length])),
            Fate::Lost => {}
            Fate::Twice => (0..2).for_each(|_| drop(to.send(&bytes[..length]))),
            Fate::Overtaken(by) => late.push((by, bytes[..length].to_vec())),
        }
    }
}

/// Sends frames of these lengths in both directions at once and checks what arrives.
fn exchange(one: &mut Ends, other: &mut Ends, lengths: &[usize]) -> Result<(), TestCaseError> {
    let expected: Vec<_> =
        lengths.iter().enumerate().map(|(n, length)| message(n as u32, *length)).collect();
    let (mut got, mut sent) = ([Collected::default(), Collected::default()], [0, 0]);
    let start = Instant::now();
    while got.iter().any(|got| got.0.len() < expected.len()) {
        for (at, end) in [&mut *one, &mut *other].into_iter().enumerate() {
            while let Some((head, payload)) = expected.get(sent[at]) {
                // Some with others, some not, and of both some given.
                let (head, mut given) = (head.encode(), Buffer::from(payload.clone()));
                let taken = match payload.len() % 4 {
                    0 => end.sender.send_with_others(&head, payload),
                    1 => end.sender.send(&head, payload),
                    2 => end.sender.give_with_others(&head, &mut given),
                    _ => end.sender.give(&head, &mut given),
                };
                if taken.unwrap() == Sent::Full {
                    break;
                }
                sent[at] += 1;
            }
            end.receiver.poll(&mut got[at]).unwrap();
            end.sender.flush().unwrap();
        }
        let counts = got.each_ref().map(|got| got.0.len());
        prop_assert!(start.elapsed() < LONG, "{counts:?} of {} have arrived", expected.len());
    }
    got.iter().for_each(|got| assert!(got.0 == expected));
    Ok(())
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        12 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => (1..12_usize).prop_map(Fate::Overtaken),
    ];
    prop::collection::vec(fate, 20..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Over a network that loses, doubles and exchanges datagrams: the same frames, in order.
    #[test]
    fn frames_pass_whole_and_in_order(
        lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..=EAGER_MOST], 1..60),
        fates in fates(),
    ) {
        let (mut one, mut other, _streams) = ends_apart(&fates);
        exchange(&mut one, &mut other, &lengths)?;
    }

    /// Parts of a stream, in any order, some of which lie: an error, or the frames that are whole from the start on. Of other
    /// connections: nothing.
    #[test]
    fn any_datagrams_are_frames_or_an_error(
        parts in prop::collection::vec((0..STREAM, 0..2 * PART, lie()), 1..12), is_ours in any::<bool>(),
    ) {
        let (stream, called_on) = streams();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut end = accept(called_on, socket.local_addr().unwrap().port(), 1).unwrap();
        let mut port = [0; PORT];
        (&stream).read_exact(&mut port).unwrap();
        socket.connect(("127.0.0.1", u16::from_le_bytes(port))).unwrap();
        let token = if is_ours { 1_u64 } else { 2 };
        let sent: Vec<_> = (0..4).map(|number| message(number, PART - HEAD)).collect();
        let bytes = |(head, payload): &(Head, Vec<u8>)| [&head.encode()[..], payload].concat();
        let stream = sent.iter().flat_map(bytes).collect::<Vec<_>>();
        let (mut collected, mut result) = (Collected::default(), Ok(0));
        let mut is_there = [false; STREAM];
        let all_are_true = parts.iter().all(|(.., lie)| lie.is_none());
        for (start, length, lie) in parts {
            let range = start..(start + length).min(STREAM);
            is_there[range.clone()].fill(true);
            let (offset, heard) = lie.unwrap_or_else(|| (start as u64, Heard::default()));
            let mut datagram = token.to_le_bytes().to_vec();
            encode(offset, &heard, &mut datagram);
            socket.send(&[&datagram, &stream[range]].concat()).unwrap();
            result = result.and_then(|_| end.receiver.poll(&mut collected));
        }
        let whole = is_there.iter().take_while(|is_there| **is_there).count() / PART;
        if is_ours && all_are_true {
            prop_assert!(result.is_ok(), "{result:?}");
            prop_assert!(collected.0 == sent[..whole]);
        } else if !is_ours {
            prop_assert_eq!((result, collected.0.len()), (Ok(0), 0));
        }
    }
}

/// Bytes of each frame of a short stream, and of all of them.
const PART: usize = 150;
const STREAM: usize = 4 * PART;

/// What a datagram says, if it is not true: where its bytes belong, and what has arrived of what was never sent.
fn lie() -> impl Strategy<Value = Option<(u64, Heard)>> {
    let number = || prop_oneof![0..2 * STREAM as u64, any::<u64>()];
    let ranges = prop::collection::vec((number(), number()), 0..4);
    let heard = (prop_oneof![Just(0), number()], any::<u32>(), ranges);
    let lie = (number(), heard)
        .prop_map(|(offset, (received, room, ranges))| (offset, Heard { received, room, ranges }));
    prop_oneof![8 => Just(None), 1 => lie.prop_map(Some)]
}

#[test]
fn frames_pass_on_one_machine() {
    let (mut one, mut other) = ends_here();
    exchange(&mut one, &mut other, &[EAGER_MOST; 300]).unwrap();
    // Given, with others and at once.
    exchange(&mut one, &mut other, &[EAGER_MOST - 2; 300]).unwrap();
    exchange(&mut one, &mut other, &[EAGER_MOST - 1; 300]).unwrap();
    exchange(&mut one, &mut other, &[0; 5000]).unwrap();
}

/// Who may have little on the way is told soon what has arrived of it.
#[test]
fn a_small_room_is_confirmed_before_it_is_used_up() {
    let (stream, _other) = streams();
    let [socket, peer] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    socket.connect(peer.local_addr().unwrap()).unwrap();
    peer.connect(socket.local_addr().unwrap()).unwrap();
    [&socket, &peer].iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let room = 9_000;
    let shared = Arc::new(Shared::new(stream, socket, TOKEN_OF_TEST, true, room));
    let mut receiver = UdpReceiver::new(shared, room);
    let (head, payload) = message(0, 9_000);
    let stream = [&head.encode()[..], &payload].concat();
    let told = stream.chunks(1_000).take(8).enumerate().map(|(at, part)| {
        let mut datagram = TOKEN_OF_TEST.to_le_bytes().to_vec();
        encode(1_000 * at as u64, &Heard::default(), &mut datagram);
        peer.send(&[&datagram, part].concat()).unwrap();
        receiver.poll(&mut Collected::default()).unwrap();
        peer.recv(&mut [0; 100]).is_ok()
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told, [false, false, true, false, false, true, false, false]);
}

/// Everything that has arrived is read before the end is told.
#[test]
fn the_end_of_the_other_process_is_told() {
    let (mut one, mut other) = ends_here();
    let mut collected = Collected::default();
    let (head, payload) = message(1, 1000);
    while collected.0.is_empty() {
        one.receiver.poll(&mut collected).unwrap();
        if other.sender.is_drained() {
            other.sender.send(&head.encode(), &payload).unwrap();
        }
        other.receiver.poll(&mut Collected::default()).unwrap();
    }
    let start = Instant::now();
    while !other.sender.is_drained() {
        one.receiver.poll(&mut collected).unwrap();
        one.sender.flush().unwrap();
        other.receiver.poll(&mut Collected::default()).unwrap();
        assert!(start.elapsed() < LONG, "nothing is confirmed");
    }
    drop(other);
    let broken = loop {
        one.receiver.signalled();
        match one.receiver.poll(&mut collected) {
            Ok(_) => assert!(start.elapsed() < LONG),
            Err(broken) => break broken,
        }
    };
    assert_eq!(broken, Broken::Closed);
}

/// What has arrived is said by what goes the other way, and if nothing does, by and by.
#[test]
fn what_has_arrived_is_said_with_others_or_late() {
    let (mut one, mut other) = ends_here();
    let (head, payload) = message(1, 1000);
    let start = Instant::now();
    let receives = |end: &mut Ends, count: usize| {
        let mut collected = Collected::default();
        while collected.0.len() < count {
            end.receiver.poll(&mut collected).unwrap();
            assert!(start.elapsed() < LONG, "nothing arrives");
        }
    };
    // Until the first answer, one side does not know where the other one is.
    other.sender.send(&head.encode(), &payload).unwrap();
    receives(&mut one, 1);
    assert!(one.receiver.owes());
    one.sender.send(&head.encode(), &payload).unwrap();
    assert!(!one.receiver.owes(), "said with the answer");
    receives(&mut other, 1);
    while other.receiver.owes() {
        other.sender.flush().unwrap();
        assert!(start.elapsed() < LONG, "never said");
    }
    assert!(other.sender.is_settled(), "heard with the answer");
}

/// Of a payload most has come in long datagrams, and then come two short ones by one call: together they are no longer than
/// one of the others.
#[test]
fn short_datagrams_of_one_call_are_told_apart() {
    let (stream, called_on) = streams();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut end = accept(called_on, socket.local_addr().unwrap().port(), TOKEN_OF_TEST).unwrap();
    let mut port = [0; PORT];
    (&stream).read_exact(&mut port).unwrap();
    socket.connect(("127.0.0.1", u16::from_le_bytes(port))).unwrap();
    let (head, payload) = message(1, 5_000 - HEAD);
    let sent = [&head.encode()[..], &payload].concat();
    let datagram = |from: usize, to: usize| {
        let mut datagram = TOKEN_OF_TEST.to_le_bytes().to_vec();
        encode(from as u64, &Heard::default(), &mut datagram);
        datagram.extend_from_slice(&sent[from..to]);
        datagram
    };
    let mut got = Collected::default();
    for from in [0, 2_000] {
        socket.send(&datagram(from, from + 2_000)).unwrap();
        assert_eq!(end.receiver.poll(&mut got), Ok(0));
    }
    let short = [datagram(4_000, 4_600), datagram(4_600, 5_000)].concat();
    let size = (BEFORE + 600) as u16;
    let control = [ControlMessage::UdpGsoSegments(&size)];
    let parts = [IoSlice::new(&short)];
    sendmsg::<()>(socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();
    let start = Instant::now();
    while got.0.is_empty() {
        end.receiver.poll(&mut got).unwrap();
        assert!(start.elapsed() < LONG, "nothing arrives");
    }
    assert!(got.0 == [(head, payload)]);
}

/// Nobody can have more waiting than the bound, however long the other end says nothing.
#[test]
fn what_nobody_confirms_is_bounded() {
    let (mut one, _other) = ends_here();
    let (head, payload) = message(1, EAGER_MOST);
    let taken = (0..10_000)
        .take_while(|_| one.sender.send(&head.encode(), &payload).unwrap() != Sent::Full);
    assert!(taken.count() <= KEPT_MOST / EAGER_MOST);
    assert!(one.sender.falls_asleep());
}

/// A payload that is given is taken when there is room, and stays with who gives it when there is none.
#[test]
fn what_is_given_is_taken_or_left() {
    let (mut one, _other) = ends_here();
    let (head, payload) = message(1, EAGER_MOST);
    for _ in 0..=KEPT_MOST / EAGER_MOST {
        let mut given = Buffer::from(payload.clone());
        if one.sender.give_with_others(&head.encode(), &mut given).unwrap() == Sent::Full {
            assert!(given == payload);
            return;
        }
        assert!(given.is_empty());
    }
    panic!("there is no bound");
}

/// Two long messages are two full batches and a short one. The first read ends within the second message.
#[test]
fn more_is_expected_behind_a_full_batch_alone() {
    let (mut one, mut other) = ends_here();
    // Then both know where the other one is, as much as two messages may be on the way, and nothing is.
    exchange(&mut one, &mut other, &[EAGER_MOST; 16]).unwrap();
    exchange(&mut one, &mut other, &[1]).unwrap();
    let (head, payload) = message(2, EAGER_MOST);
    for _ in 0..2 {
        one.sender.send_with_others(&head.encode(), &payload).unwrap();
    }
    one.sender.flush().unwrap();
    let (mut got, mut seen, start) = (Collected::default(), Vec::new(), Instant::now());
    while got.0.len() < 2 {
        if other.receiver.poll(&mut got).unwrap() > 0 {
            seen.push(other.receiver.has_more());
        }
        one.sender.flush().unwrap();
        assert!(start.elapsed() < LONG, "nothing arrives");
    }
    assert_eq!(seen, [true, false]);
}

/// An end, and a test in the place of the other one: its connection over TCP, which waits little when
/// it is read, and its socket.
fn end_alone() -> (Ends, TcpStream, UdpSocket) {
    let (mut stream, called_on) = streams();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let end = accept(called_on, port, TOKEN_OF_TEST).unwrap();
    stream.read_exact(&mut [0; PORT]).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    (end, stream, socket)
}

/// The other process answers, and no datagram gets through: senders get an error as from TCP.
#[test]
fn a_network_that_carries_no_datagrams_ends_the_connection() {
    let (mut end, mut stream, _socket) = end_alone();
    let (head, payload) = message(1, 1000);
    end.sender.send(&head.encode(), &payload).unwrap();
    let start = Instant::now();
    let broken = loop {
        end.sender.flush().unwrap();
        match stream.read(&mut [0]) {
            Ok(_) => stream.write_all(&[ANSWERED]).unwrap(),
            Err(_) => end.sender.look_after().unwrap(),
        }
        match end.receiver.poll(&mut Collected::default()) {
            Ok(_) => assert!(start.elapsed() < LONG, "it is never told"),
            Err(broken) => break broken,
        }
    };
    assert_eq!(broken, Broken::System { call: "sendmsg", errno: Errno::ETIMEDOUT });
}

/// Answered by who reads what arrives, after a datagram that says what has.
#[test]
fn who_asks_is_told_what_has_arrived() {
    let (mut end, mut stream, socket) = end_alone();
    stream.write_all(&[ASKED]).unwrap();
    let (mut word, start) = ([0], Instant::now());
    assert!(stream.read(&mut word).is_err(), "nobody reads");
    while stream.read(&mut word).is_err() {
        end.receiver.signalled();
        end.receiver.poll(&mut Collected::default()).unwrap();
        assert!(start.elapsed() < LONG, "no answer");
    }
    assert_eq!(word, [ANSWERED]);
    socket.set_nonblocking(true).unwrap();
    let mut datagram = [0; BEFORE + 1];
    assert_eq!(socket.recv(&mut datagram).unwrap(), BEFORE, "said before");
    assert_eq!(datagram[..TOKEN], TOKEN_OF_TEST.to_le_bytes());
}

/// A process that is stopped is asked once, however long it is: what waits for it does not grow.
#[test]
fn who_does_not_answer_is_asked_once() {
    let (mut end, mut stream, _socket) = end_alone();
    let (head, payload) = message(1, 1000);
    end.sender.send(&head.encode(), &payload).unwrap();
    let (mut word, start) = ([0], Instant::now());
    while stream.read(&mut word).is_err() {
        end.sender.flush().unwrap();
        end.sender.look_after().unwrap();
        assert!(start.elapsed() < LONG, "it is not asked");
    }
    assert_eq!(word, [ASKED]);
    for _ in 0..10 {
        end.sender.look_after().unwrap();
    }
    assert!(stream.read(&mut word).is_err(), "asked again");
    assert_eq!(end.receiver.poll(&mut Collected::default()), Ok(0));
}

#[test]
fn a_frame_that_is_none_ends_the_connection() {
    let (mut one, mut other) = ends_here();
    let head = crate::frame::Head { frame: Frame::Clear { token: 1 }, length: 0, seen: 0 };
    let mut bytes = head.encode();
    bytes[0] = 0xff;
    one.sender.send(&bytes, &[]).unwrap();
    let start = Instant::now();
    let broken = loop {
        one.receiver.poll(&mut Collected::default()).unwrap();
        one.sender.flush().unwrap();
        match other.receiver.poll(&mut Collected::default()) {
            Ok(_) => assert!(start.elapsed() < LONG),
            Err(broken) => break broken,
        }
    };
    assert!(matches!(broken, Broken::Malformed(_)), "{broken}");
}
