//! The shell over real connections: rails that are cut at any moment.

use super::*;
use crate::transport::testing::{Collected, message, streams};
use crate::transport::{tcp, udp};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering::Relaxed;

const LONG: Duration = Duration::from_secs(60);

/// Two ends, and a handle to cut each rail.
struct Pair {
    ends: [(Ends, Rails); 2],
    cut: Vec<TcpStream>,
}

impl Pair {
    fn new() -> Self {
        Self { ends: [ends().unwrap(), ends().unwrap()], cut: Vec::new() }
    }

    fn plug(&mut self) {
        let (one, other) = streams();
        self.cut.push(one.try_clone().unwrap());
        self.ends[0].1.join(tcp::ends(one).unwrap()).unwrap();
        self.ends[1].1.join(tcp::ends(other).unwrap()).unwrap();
    }

    /// A rail of datagrams, which is not cut.
    fn plug_datagrams(&self) {
        let (one, other) = streams();
        let socket = udp::call(&one).unwrap();
        let port = socket.local_addr().unwrap().port();
        let called = udp::accept(other, port, 1).unwrap();
        self.ends[0].1.join(udp::called(one, socket, 1).unwrap()).unwrap();
        self.ends[1].1.join(called).unwrap();
    }

    /// What threads do that wait: the second end's frames go to `collected`.
    fn turn(&mut self, collected: &mut Collected) {
        for (ends, _) in &mut self.ends {
            ends.sender.flush().unwrap();
        }
        self.ends[1].0.receiver.poll(collected).unwrap();
        self.ends[0].0.receiver.poll(&mut Collected::default()).unwrap();
    }

    /// The kernel keeps what it had taken, or does not.
    fn cut(&mut self, at: usize) {
        let stream = self.cut.remove(at);
        let _ = stream.shutdown(Shutdown::Both);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever the lengths, and whenever rails are cut and made: the same frames in the same order.
    #[test]
    fn frames_pass_whole_and_in_order(
        lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..=EAGER_MOST], 1..80),
        events in prop::collection::vec(0..8_u8, 80),
    ) {
        let mut pair = Pair::new();
        pair.plug();
        let mut collected = Collected::default();
        let expected: Vec<_> =
            lengths.iter().enumerate().map(|(n, length)| message(n as u32, *length)).collect();
        for (at, (head, payload)) in expected.iter().enumerate() {
            match events[at] {
                0 if !pair.cut.is_empty() => pair.cut(at % pair.cut.len()),
                1 if pair.cut.len() < 4 => pair.plug(),
                2 => drop(pair.ends[1].0.receiver.poll(&mut collected).unwrap()),
                3 => drop(pair.ends[0].0.receiver.poll(&mut Collected::default()).unwrap()),
                _ => {}
            }
            while pair.ends[0].0.sender.send(&head.encode(), payload).unwrap() == Sent::Full {
                if pair.cut.is_empty() {
                    pair.plug();
                }
                pair.ends[1].0.receiver.poll(&mut collected).unwrap();
                pair.ends[1].0.sender.flush().unwrap();
                pair.ends[0].0.receiver.poll(&mut Collected::default()).unwrap();
            }
        }
        pair.plug();
        while collected.0.len() < expected.len() || !pair.ends[0].0.sender.is_drained() {
            pair.turn(&mut collected);
        }
        prop_assert!(collected.0 == expected);
    }
}

/// More than the stream keeps, over a rail that keeps what is not confirmed in the same memory and one that copies it.
#[test]
fn frames_pass_by_datagrams_and_a_connection() {
    let mut pair = Pair::new();
    pair.plug();
    pair.plug_datagrams();
    let count = (2 * bundle::KEPT_MOST / EAGER_MOST) as u32;
    let expected: Vec<_> = (0..count).map(|number| message(number, EAGER_MOST)).collect();
    let (mut collected, mut sent, start) = (Collected::default(), 0, Instant::now());
    while collected.0.len() < expected.len() || !pair.ends[0].0.sender.is_drained() {
        if let Some((head, payload)) = expected.get(sent)
            && pair.ends[0].0.sender.send(&head.encode(), payload).unwrap() != Sent::Full
        {
            sent += 1;
        }
        pair.turn(&mut collected);
        assert!(start.elapsed() < LONG, "{sent} are sent, {} are there", collected.0.len());
    }
    assert!(collected.0 == expected);
}

/// However often the other end calls.
#[test]
fn a_stream_has_so_many_rails_and_no_more() {
    let ((_ends, rails), allowance) = (ends().unwrap(), Allowance::of(2 * RAILS_MOST));
    let mut others = Vec::new();
    for number in 0..=RAILS_MOST {
        assert_eq!(rails.have_room(&allowance), number < RAILS_MOST);
        let (one, other) = streams();
        let joined = rails.join_beside(tcp::ends(one).unwrap(), &allowance).unwrap();
        assert_eq!(joined.is_some(), number < RAILS_MOST);
        others.push(other);
    }
    assert_eq!(rails.all().len(), RAILS_MOST);
}

/// Whoever sleeps on what is watched is woken: by a frame on any rail, and by a rail that joins with
/// one on it.
#[test]
fn sleepers_are_woken_by_every_rail() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut pair = Pair::new();
    let mut collected = Collected::default();
    for number in 0..4 {
        pair.plug();
        let (head, payload) = message(number, 100);
        pair.ends[0].0.sender.send(&head.encode(), &payload).unwrap();
        while collected.0.len() <= number as usize {
            let receiving = &mut pair.ends[1].0;
            if receiving.receiver.falls_asleep() {
                let mut fds = [PollFd::new(receiving.readable[0].as_fd(), PollFlags::POLLIN)];
                assert_eq!(
                    poll(&mut fds, PollTimeout::from(60_000_u16)),
                    Ok(1),
                    "asleep for a minute"
                );
            }
            receiving.receiver.wakes_up();
            receiving.receiver.signalled();
            receiving.receiver.poll(&mut collected).unwrap();
        }
    }
}

/// A frame of a stream in a frame of a rail that is not what its head says.
#[test]
fn what_is_no_frame_ends_the_stream() {
    let short = message(1, 5).0.encode().to_vec();
    // The last before its turn: it would be kept until then, with any number of others.
    let cases = [(0, vec![0; 10]), (0, vec![1; 60]), (0, short), (7, Vec::new())];
    for (number, bytes) in cases {
        let (one, other) = streams();
        let (mut ends, rails) = ends().unwrap();
        rails.join(tcp::ends(other).unwrap()).unwrap();
        let mut liar = tcp::ends(one).unwrap();
        let frame = Frame::Carried { number, delivered: 0, arrived: 0 };
        let head = Head { frame, length: bytes.len() as u32, seen: 0 };
        liar.sender.send(&head.encode(), &bytes).unwrap();
        let mut collected = Collected::default();
        let error = loop {
            match ends.receiver.poll(&mut collected) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Broken::Malformed(_)), "{error}");
    }
}

/// A rail without a connection, which takes nothing while it is full.
#[derive(Default)]
struct Narrow {
    is_full: AtomicBool,
    said: Mutex<Vec<Frame>>,
    /// What it was given with that.
    kept: Mutex<Vec<Buffer>>,
    heard: Mutex<VecDeque<(Frame, Vec<u8>)>>,
}

impl Narrow {
    fn ends(self: &Arc<Self>) -> Ends {
        Ends {
            sender: Sending::new(NarrowSender(self.clone())),
            receiver: Receiving::new(NarrowReceiver(self.clone())),
            readable: Vec::new(),
            writable: None,
            in_memory: true,
            poll_is_enough: false,
            glance: None,
        }
    }
}

struct NarrowSender(Arc<Narrow>);

struct NarrowReceiver(Arc<Narrow>);

impl Sender for NarrowSender {
    fn send(&mut self, head: &[u8; HEAD], _: &[u8]) -> Result<Sent, Broken> {
        if self.0.is_full.load(Relaxed) {
            return Ok(Sent::Full);
        }
        lock(&self.0.said).push(Head::decode(head)?.frame);
        Ok(Sent::Whole)
    }

    fn give(&mut self, head: &[u8; HEAD], payload: &mut Buffer) -> Result<Sent, Broken> {
        let sent = self.send(head, payload)?;
        if sent != Sent::Full {
            lock(&self.0.kept).push(std::mem::take(payload));
        }
        Ok(sent)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        Ok(!self.0.is_full.load(Relaxed))
    }

    fn falls_asleep(&mut self) -> bool {
        true
    }

    fn piece(&self) -> usize {
        EAGER_MOST
    }

    fn is_drained(&mut self) -> bool {
        true
    }
}

impl Receiver for NarrowReceiver {
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        let Some((frame, payload)) = lock(&self.0.heard).pop_front() else { return Ok(0) };
        let head = Head { frame, length: payload.len() as u32, seen: 0 };
        sink.frame(&head, payload.into())?;
        Ok(1)
    }

    fn has_more(&self) -> bool {
        !lock(&self.0.heard).is_empty()
    }

    fn falls_asleep(&mut self) -> bool {
        true
    }

    fn wakes_up(&mut self) {}

    fn signalled(&mut self) {}
}

/// An answer, and what has arrived, find no room on a rail: they are said as soon as there is, or the other end would
/// take it for stalled, and wait for ever.
#[test]
fn what_finds_no_room_is_said_later() {
    let rail = Arc::new(Narrow::default());
    let (mut stream, rails) = ends().unwrap();
    rails.join(rail.ends()).unwrap();
    rail.is_full.store(true, Relaxed);
    let (head, payload) = message(1, 5);
    let carried = Frame::Carried { number: 0, delivered: 0, arrived: 0 };
    let frame = [head.encode().as_slice(), &payload].concat();
    lock(&rail.heard).extend([(Frame::Probe { token: 7 }, Vec::new()), (carried, frame)]);
    let mut collected = Collected::default();
    while collected.0.is_empty() {
        stream.receiver.poll(&mut collected).unwrap();
    }
    stream.sender.flush().unwrap();
    assert!(lock(&rail.said).is_empty());
    rail.is_full.store(false, Relaxed);
    stream.sender.flush().unwrap();
    let said = std::mem::take(&mut *lock(&rail.said));
    for frame in [Frame::Answered { token: 7 }, Frame::Noted { delivered: 1, arrived: 1 }] {
        assert!(said.contains(&frame), "{frame:?} of {said:?}");
    }
}

/// A rail that keeps what it sends until that is confirmed has no copy of what the stream keeps.
#[test]
fn what_a_rail_keeps_is_the_memory_of_the_stream() {
    let rail = Arc::new(Narrow::default());
    let (mut stream, rails) = ends().unwrap();
    rails.join(rail.ends()).unwrap();
    let (head, payload) = message(1, EAGER_MOST);
    stream.sender.send(&head.encode(), &payload).unwrap();
    let place = lock(&rails.0.out).bundle.bytes(0).as_ptr();
    let kept = std::mem::take(&mut *lock(&rail.kept));
    assert_eq!(kept.len(), 1);
    assert!(kept[0] == [&head.encode()[..], &payload].concat());
    assert_eq!(kept[0].as_ptr(), place);
}

/// More is there as long as there is on any rail, that which was not read last as well.
#[test]
fn more_is_expected_when_it_is_on_any_rail() {
    let [one, other] = [(); 2].map(|()| Arc::new(Narrow::default()));
    let (mut stream, rails) = ends().unwrap();
    rails.join(one.ends()).unwrap();
    rails.join(other.ends()).unwrap();
    let (head, payload) = message(1, 5);
    let carried = |number| {
        let frame = Frame::Carried { number, delivered: 0, arrived: 0 };
        (frame, [head.encode().as_slice(), &payload].concat())
    };
    lock(&one.heard).extend([carried(0), carried(1)]);
    lock(&other.heard).push_back(carried(2));
    let mut collected = Collected::default();
    assert_eq!(stream.receiver.poll(&mut collected), Ok(2));
    assert!(stream.receiver.has_more());
    assert_eq!(stream.receiver.poll(&mut collected), Ok(1));
    assert!(!stream.receiver.has_more());
    assert_eq!(collected.0.len(), 3);
}
