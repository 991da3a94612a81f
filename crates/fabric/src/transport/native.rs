//! Frames over libraries that bring networks of their own, RDMA above all: libfabric and UCX. What is
//! asked of such a library is in `native/native.h`. As with UDP, the connection is made over TCP, on which
//! the two ends tell each other how the library calls them, and whose end tells that the other process
//! has ended.
//!
//! Each frame is one datagram of the library, sent from and received into memory that it knows: one copy
//! at each end. A connection has an endpoint and 2 MiB of its own.
//!
//! Who is called and has not the library, or no network of it, says so by an empty address. Then frames go on the
//! connection over TCP, on which they have met. Mostly the directory has told so before, and the call is one over TCP.
//! Two ends for which the library has chosen different networks, as where one node alone has RDMA, both see that by the
//! other's address, and do the same.

mod address;
mod library;
mod slots;

pub use library::Library;

use super::{
    Broken, Ends, Receiver, Receiving, Sender, Sending, Sent, Sink, buffer, is_passing, is_quiet,
    ring_bell, tcp, watch_over,
};
use crate::frame::{EAGER_MOST, HEAD, Head, Malformed};
use address::TOLD_MOST;
use keeptime_locks::lock;
use library::End;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Frames, and bytes, that are read before somebody else gets a turn.
const FRAMES_MOST: usize = 64;
const BYTES_MOST: usize = EAGER_MOST;
/// How long what a process sent may still be on its way when it has ended.
const LATE_MOST: Duration = Duration::from_secs(1);
/// How long a connection that is closed here stays for the other end to read what was sent.
const LINGER: Duration = Duration::from_millis(200);
/// Bytes of the length of an address, which goes before it on the connection over TCP.
const LENGTH: usize = 4;

/// Both halves of a connection whose ends are told to each other on `stream`.
///
/// # Errors
/// If the library is not built in, or has no network there.
pub fn ends(library: Library, stream: TcpStream) -> io::Result<Ends> {
    let end = End::open(library, stream.local_addr()?.ip().to_canonical())?;
    ends_of(end, stream)
}

/// Whether contexts of this program can be called over `library` on the network of `address`: it is built in, and makes
/// an end there.
pub fn has_network(library: Library, address: IpAddr) -> bool {
    let opened = End::open(library, address);
    opened.inspect_err(|error| tracing::warn!(%error, "others call this context over TCP")).is_ok()
}

/// The same for one who is called. Without the library frames go on `stream` itself.
///
/// # Errors
/// If it is closed already, or this process has no descriptors left.
pub fn accept(library: Library, stream: TcpStream) -> io::Result<Ends> {
    match End::open(library, stream.local_addr()?.ip().to_canonical()) {
        Ok(end) => ends_of(end, stream),
        Err(error) => {
            tracing::warn!(%error, "a caller that wants a library is met over TCP");
            without(stream)
        }
    }
}

/// The halves of one who is called and has not the library. What the caller tells of its address is passed over.
fn without(stream: TcpStream) -> io::Result<Ends> {
    (&stream).write_all(&[0; LENGTH])?;
    let before = Some((stream.try_clone()?, Told::default()));
    let mut ends = tcp::ends(stream)?;
    ends.receiver = Receiving::new(BehindAddress { before, receiver: ends.receiver });
    Ok(ends)
}

fn ends_of(end: End, mut stream: TcpStream) -> io::Result<Ends> {
    watch_over(&stream)?;
    let address = address::told(end.library(), end.address()?);
    stream.write_all(&(address.len() as u32).to_le_bytes())?;
    stream.write_all(&address)?;
    stream.set_nonblocking(true)?;
    let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let mut readable =
        vec![stream.as_fd().try_clone_to_owned()?, bell.as_fd().try_clone_to_owned()?];
    readable.extend(end.descriptor()?);
    // For frames that go on it, if that is to be.
    let writable = Some(stream.as_fd().try_clone_to_owned()?);
    let (over, reader_asleep, writer_asleep) = (false, false, false);
    let state = State { end, instead: None, over, reader_asleep, writer_asleep };
    let shared = Arc::new(Shared { state: Mutex::new(state), bell, stream });
    let receiver = NativeReceiver {
        shared: shared.clone(),
        told: Told::default(),
        instead: None,
        said_end: false,
        closed: None,
    };
    Ok(Ends {
        sender: Sending::new(NativeSender(shared)),
        receiver: Receiving::new(receiver),
        readable,
        writable,
        // It is looked at in each round, and told before this process sleeps.
        in_memory: true,
        poll_is_enough: false,
        glance: None,
    })
}

/// What both halves use.
struct Shared {
    state: Mutex<State>,
    /// Wakes who sleeps for what another thread has found.
    bell: EventFd,
    /// The connection on which the ends have found each other.
    stream: TcpStream,
}

struct State {
    end: End,
    /// What sends on the connection over TCP, as the other end has not the library.
    instead: Option<Sending>,
    /// Nobody is there to whom more could be said.
    over: bool,
    /// Somebody relies on the library's descriptor.
    reader_asleep: bool,
    /// Somebody sleeps until there is room.
    writer_asleep: bool,
}

impl Shared {
    /// Has the library work. Whoever relies on its descriptor, or on room, is woken: what it would have
    /// told may have been taken from it here.
    fn work(&self, state: &mut State) -> Result<(), Broken> {
        state.end.progress()?;
        let missed =
            state.reader_asleep && (state.end.arrived().is_some() || !state.end.falls_asleep());
        if missed || state.writer_asleep && state.end.has_room() {
            (state.reader_asleep, state.writer_asleep) = (false, false);
            ring_bell(&self.bell)?;
        }
        Ok(())
    }
}

impl Drop for Shared {
    /// Says that nothing more follows, and waits for the other end to have read all, which ends then too.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !state.end.is_connected() || state.over {
            return;
        }
        let (mut is_said, start) = (false, Instant::now());
        while start.elapsed() < LINGER && state.end.progress().is_ok() {
            if !is_said {
                let Ok(said) = state.end.send(&[], &[]) else { return };
                is_said = said;
            } else if state.end.is_all_sent() {
                // If it has ended already, the next look tells.
                let _ = self.stream.shutdown(Shutdown::Write);
                if !is_quiet(&self.stream) {
                    return;
                }
            }
        }
    }
}

struct NativeSender(Arc<Shared>);

impl Sender for NativeSender {
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        let mut state = lock(&self.0.state);
        if let Some(instead) = &mut state.instead {
            return instead.send(head, payload);
        }
        let mut sent = state.end.send(head, payload)?;
        // Most is on its way at once, and then nobody has to look after it.
        self.0.work(&mut state)?;
        if !sent {
            sent = state.end.send(head, payload)?;
        }
        Ok(match (sent, state.end.is_all_sent()) {
            (false, _) => Sent::Full,
            (true, false) => Sent::Kept,
            (true, true) => Sent::Whole,
        })
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let mut state = lock(&self.0.state);
        if let Some(instead) = &mut state.instead {
            return instead.flush();
        }
        self.0.work(&mut state)?;
        Ok(state.end.has_room())
    }

    fn falls_asleep(&mut self) -> bool {
        let mut state = lock(&self.0.state);
        if let Some(instead) = &mut state.instead {
            return instead.falls_asleep();
        }
        let is_full = !state.end.has_room();
        state.writer_asleep |= is_full;
        is_full
    }

    fn piece(&self) -> usize {
        EAGER_MOST
    }

    /// The library finds out by itself what has become of what it carries. This is for the connection over TCP, with
    /// addresses on it that are not confirmed, or all frames.
    fn look_after(&mut self) -> Result<(), Broken> {
        let mut state = lock(&self.0.state);
        if let Some(instead) = &mut state.instead {
            return instead.look_after();
        }
        tcp::expect_node(&self.0.stream)
    }

    fn is_drained(&mut self) -> bool {
        let mut state = lock(&self.0.state);
        if let Some(instead) = &mut state.instead {
            return instead.is_drained();
        }
        state.end.is_all_sent()
    }

    fn is_settled(&mut self) -> bool {
        let mut state = lock(&self.0.state);
        if let Some(instead) = &mut state.instead {
            return instead.is_settled();
        }
        state.end.is_all_sent()
    }
}

/// What the other end has told of its address ([`address::told`]), after its length.
#[derive(Default)]
struct Told(Vec<u8>);

/// How far that has come.
enum Heard {
    NotYet,
    Whole,
    /// The connection has ended before.
    Closed,
}

impl Told {
    /// Reads the address until it is whole, and nothing that follows.
    fn hear(&mut self, mut stream: &TcpStream) -> Result<Heard, Broken> {
        loop {
            let wanted = match self.0.first_chunk() {
                None => LENGTH,
                Some(length) => LENGTH + u32::from_le_bytes(*length) as usize,
            };
            if wanted > LENGTH + TOLD_MOST {
                return Err(Broken::Library(
                    "the other end told an address that is too long".into(),
                ));
            }
            if self.0.len() >= LENGTH && self.0.len() == wanted {
                return Ok(Heard::Whole);
            }
            let mut bytes = [0; 256];
            let room = bytes.len().min(wanted - self.0.len());
            match stream.read(&mut bytes[..room]) {
                Ok(length @ 1..) => self.0.extend_from_slice(&bytes[..length]),
                Err(error) if is_passing(&error) => return Ok(Heard::NotYet),
                _ => return Ok(Heard::Closed),
            }
        }
    }

    /// What was told, when it is whole: nothing if the other end has none.
    fn address(&self) -> &[u8] {
        self.0.get(LENGTH..).unwrap_or_default()
    }
}

/// Receives what follows the caller's address on a connection over TCP.
struct BehindAddress {
    /// Until that is there.
    before: Option<(TcpStream, Told)>,
    receiver: Receiving,
}

impl Receiver for BehindAddress {
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        if let Some((stream, told)) = &mut self.before {
            match told.hear(stream)? {
                Heard::NotYet => return Ok(0),
                Heard::Closed => return Err(Broken::Closed),
                Heard::Whole => self.before = None,
            }
        }
        self.receiver.poll(sink)
    }

    fn falls_asleep(&mut self) -> bool {
        self.receiver.falls_asleep()
    }

    fn wakes_up(&mut self) {
        self.receiver.wakes_up();
    }

    fn signalled(&mut self) {
        self.receiver.signalled();
    }
}

struct NativeReceiver {
    shared: Arc<Shared>,
    told: Told,
    /// What receives on the connection over TCP, as the other end has not the library.
    instead: Option<Receiving>,
    /// The other end has said that nothing more follows.
    said_end: bool,
    /// Since when the connection over TCP has ended.
    closed: Option<Instant>,
}

impl NativeReceiver {
    /// Hears the other end's address until it is whole.
    fn hear_address(&mut self, state: &mut State) -> Result<(), Broken> {
        if state.end.is_connected() || self.closed.is_some() || self.instead.is_some() {
            return Ok(());
        }
        match self.told.hear(&self.shared.stream)? {
            Heard::NotYet => {}
            Heard::Closed => self.has_closed(state),
            Heard::Whole if self.told.address().is_empty() => self.go_without(state)?,
            Heard::Whole => {
                let address = address::heard(state.end.library(), self.told.address())?;
                if !state.end.connect(address)? {
                    self.go_without(state)?;
                }
            }
        }
        Ok(())
    }

    /// The other end has not the library, or is on another of its networks, and goes without as well: what was to be sent by it, and all that follows, goes on the connection over TCP.
    fn go_without(&mut self, state: &mut State) -> Result<(), Broken> {
        let name = state.end.library().name();
        tracing::warn!("the other end has no {name}, or another network of it: it is met over TCP");
        let failed = |error: io::Error| Broken::Library(format!("{name}, going without: {error}"));
        let stream = self.shared.stream.try_clone().map_err(failed)?;
        let ends = tcp::ends_after(stream, state.end.take_waiting()).map_err(failed)?;
        (state.instead, self.instead) = (Some(ends.sender), Some(ends.receiver));
        // Whoever sleeps until the library has room.
        ring_bell(&self.shared.bell)
    }

    fn has_closed(&mut self, state: &mut State) {
        self.closed.get_or_insert_with(Instant::now);
        state.over = true;
    }

    /// The head of the next frame, which stays where it is.
    fn next_head(&mut self) -> Result<Option<Head>, Broken> {
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        self.hear_address(&mut state)?;
        if self.instead.is_some() {
            return Ok(None);
        }
        loop {
            if state.end.arrived().is_none()
                && let Err(broken) = shared.work(&mut state)
            {
                state.over = true;
                // That it does not answer any more is no news when it has ended.
                let is_end = self.said_end || self.closed.is_some();
                return Err(if is_end { Broken::Closed } else { broken });
            }
            match state.end.arrived() {
                None => return Ok(None),
                Some([]) => {
                    self.said_end = true;
                    state.end.give_back()?;
                }
                Some(bytes) => return frame_head(bytes).map(Some),
            }
        }
    }

    /// Whether nothing more will arrive.
    fn is_over(&self) -> bool {
        self.closed.is_some_and(|since| self.said_end || since.elapsed() >= LATE_MOST)
    }
}

/// The head of a frame that is as long as it says.
fn frame_head(bytes: &[u8]) -> Result<Head, Broken> {
    let short = || Malformed::Field { kind: 0, field: "length", value: bytes.len() as u64 };
    let (head, payload) = bytes.split_first_chunk().ok_or_else(short)?;
    let head = Head::decode(head)?;
    if head.length as usize == payload.len() { Ok(head) } else { Err(short().into()) }
}

impl Receiver for NativeReceiver {
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        let (mut frames, mut total) = (0, 0);
        while frames < FRAMES_MOST && total < BYTES_MOST {
            let Some(head) = self.next_head()? else { break };
            // Without the lock: who takes the frame may send.
            let mut buffer = buffer(sink, &head)?;
            {
                let mut state = lock(&self.shared.state);
                let payload = state.end.arrived().and_then(|bytes| bytes.get(HEAD..));
                buffer.extend_from_slice(payload.unwrap_or_default());
                state.end.give_back()?;
            }
            sink.frame(&head, buffer.into())?;
            frames += 1;
            total += head.length as usize;
        }
        if let Some(instead) = &mut self.instead {
            return instead.poll(sink);
        }
        if frames == 0 && self.is_over() { Err(Broken::Closed) } else { Ok(frames) }
    }

    fn falls_asleep(&mut self) -> bool {
        if let Some(instead) = &mut self.instead {
            return instead.falls_asleep();
        }
        let mut state = lock(&self.shared.state);
        let is_quiet = self.closed.is_none() && state.end.arrived().is_none();
        state.reader_asleep = is_quiet && state.end.falls_asleep();
        state.reader_asleep
    }

    fn wakes_up(&mut self) {
        lock(&self.shared.state).reader_asleep = false;
    }

    fn signalled(&mut self) {
        // Nothing to read is no error: something else may have woken us.
        let _ = self.shared.bell.read();
        if let Some(instead) = &mut self.instead {
            return instead.signalled();
        }
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        if state.end.is_connected() && !is_quiet(&shared.stream) {
            self.has_closed(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{Collected, message, streams};
    use nix::sys::socket::getsockopt;
    use nix::sys::socket::sockopt::KeepAlive;
    #[cfg(not(all(feature = "libfabric", feature = "ucx")))]
    use std::net::Ipv4Addr;

    const LONG: Duration = Duration::from_secs(60);

    /// A frame goes from one end to the other.
    fn pass(from: &mut Ends, to: &mut Ends, number: u32) {
        let (head, payload) = message(number, 50_000);
        let (mut got, start) = (Collected::default(), Instant::now());
        assert_ne!(from.sender.send(&head.encode(), &payload), Ok(Sent::Full));
        while got.0.is_empty() {
            from.sender.flush().unwrap();
            assert_eq!(from.receiver.poll(&mut Collected::default()), Ok(0));
            to.receiver.poll(&mut got).unwrap();
            assert!(start.elapsed() < LONG, "frame {number} has not arrived");
        }
        assert!(got.0 == [(head, payload)]);
    }

    /// The caller learns it by an empty address, and its frames come behind its own, of which nothing is known here.
    #[test]
    fn who_is_called_without_the_library_is_met_over_tcp() {
        let (mut caller, called) = streams();
        let mut called = without(called).unwrap();
        // It is found out if the other node is gone, whether or not something is on its way there.
        assert!(getsockopt(&called.readable[0], KeepAlive).unwrap());
        assert!(called.sender.is_looked_after());
        assert_eq!(called.sender.look_after(), Ok(()));
        caller.write_all(&5_u32.to_le_bytes()).unwrap();
        caller.write_all(b"wh").unwrap();
        while called.receiver.poll(&mut Collected::default()).unwrap() > 0 {}
        caller.write_all(b"ere").unwrap();
        let mut told = [1; LENGTH];
        caller.read_exact(&mut told).unwrap();
        assert_eq!(told, [0; LENGTH]);
        let mut caller = tcp::ends(caller).unwrap();
        pass(&mut caller, &mut called, 1);
        pass(&mut called, &mut caller, 2);
        drop(caller);
        let start = Instant::now();
        while called.receiver.poll(&mut Collected::default()) != Err(Broken::Closed) {
            assert!(start.elapsed() < LONG, "no end is told");
        }
    }

    #[test]
    #[cfg(not(all(feature = "libfabric", feature = "ucx")))]
    fn a_library_that_is_not_built_in_is_named() {
        let absent = if cfg!(feature = "ucx") { Library::Libfabric } else { Library::Ucx };
        let error = ends(absent, streams().0).err().unwrap().to_string();
        assert!(error.contains(&format!("the feature `{}`", absent.name())), "{error}");
        assert!(accept(absent, streams().0).is_ok(), "the caller may have something else");
        assert!(!absent.is_built_in() && !has_network(absent, Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn frames_are_as_long_as_they_say() {
        let (head, payload) = message(1, 100);
        let mut bytes = [head.encode().as_slice(), &payload].concat();
        assert_eq!(frame_head(&bytes), Ok(head));
        bytes.pop();
        assert!(matches!(frame_head(&bytes), Err(Broken::Malformed(_))));
        assert!(matches!(frame_head(&bytes[..HEAD - 1]), Err(Broken::Malformed(_))));
    }

    #[cfg(any(feature = "libfabric", feature = "ucx"))]
    mod with_a_library {
        use super::*;
        use proptest::prelude::*;

        const LIBRARIES: &[Library] = &[
            #[cfg(feature = "libfabric")]
            Library::Libfabric,
            #[cfg(feature = "ucx")]
            Library::Ucx,
        ];

        fn pair(library: Library) -> [Ends; 2] {
            let (one, other) = streams();
            [ends(library, one).unwrap(), ends(library, other).unwrap()]
        }

        /// Sends `lengths` in both directions at once; `other` is looked at only now and then.
        fn exchange(
            library: Library,
            lengths: &[usize],
            greed: usize,
        ) -> Result<(), TestCaseError> {
            let mut pair = pair(library);
            let expected: Vec<_> =
                lengths.iter().enumerate().map(|(n, length)| message(n as u32, *length)).collect();
            let (mut got, mut sent) = ([Collected::default(), Collected::default()], [0, 0]);
            let start = Instant::now();
            for round in 0.. {
                for (at, end) in pair.iter_mut().enumerate() {
                    while let Some((head, payload)) = expected.get(sent[at]) {
                        if end.sender.send(&head.encode(), payload).unwrap() == Sent::Full {
                            break;
                        }
                        sent[at] += 1;
                    }
                    if at == 0 || round % greed == 0 {
                        end.receiver.poll(&mut got[at]).unwrap();
                    }
                }
                if got.iter().all(|got| got.0.len() == expected.len()) {
                    break;
                }
                prop_assert!(start.elapsed() < LONG, "{:?}: not all has arrived", library);
            }
            prop_assert!(got.iter().all(|got| got.0 == expected));
            Ok(())
        }

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(12))]
            /// Short and long ones in any order: the library may treat them differently, and does.
            #[test]
            fn frames_pass_whole_and_in_order(
                lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..=EAGER_MOST], 1..80),
                greed in 1..20_usize,
            ) {
                for library in LIBRARIES {
                    exchange(*library, &lengths, greed)?;
                }
            }
        }

        /// Reads until the end, which is told why.
        fn read_all(receiver: &mut dyn Receiver, collected: &mut Collected) -> Broken {
            let start = Instant::now();
            loop {
                receiver.signalled();
                if let Err(broken) = receiver.poll(collected) {
                    return broken;
                }
                assert!(start.elapsed() < LONG, "no end is told");
            }
        }

        #[test]
        fn what_an_ended_process_sent_is_read_before_its_end_is_told() {
            for library in LIBRARIES {
                let [mut one, mut other] = pair(*library);
                let (head, payload) = message(1, 50_000);
                let (mut got, start) = (Collected::default(), Instant::now());
                one.sender.send(&head.encode(), &payload).unwrap();
                while !one.sender.is_settled() {
                    one.receiver.poll(&mut Collected::default()).unwrap();
                    other.receiver.poll(&mut got).unwrap();
                    assert!(start.elapsed() < LONG, "it is never sent");
                }
                // The end waits for what it has sent, which the other one has to take.
                let ends = std::thread::spawn(move || drop(one));
                assert_eq!(read_all(&mut *other.receiver, &mut got), Broken::Closed);
                assert!(got.0 == [(head, payload)], "{library:?}: {} frames", got.0.len());
                drop(other);
                ends.join().unwrap();
            }
        }

        /// What was sent before it was known goes as well.
        #[test]
        fn who_calls_one_without_the_library_meets_it_over_tcp() {
            for library in LIBRARIES {
                let (one, other) = streams();
                let mut caller = ends(*library, one).unwrap();
                let mut called = without(other).unwrap();
                (1..4).for_each(|number| pass(&mut caller, &mut called, number));
                pass(&mut called, &mut caller, 4);
                assert!(caller.sender.is_settled());
                assert!(getsockopt(&caller.readable[0], KeepAlive).unwrap());
                assert!(caller.sender.is_looked_after());
                assert_eq!(caller.sender.look_after(), Ok(()));
                drop(called);
                let end = read_all(&mut *caller.receiver, &mut Collected::default());
                assert_eq!(end, Broken::Closed);
            }
        }

        /// Libraries read on behind the end of such a one, or give up the whole program.
        #[test]
        fn what_is_not_the_whole_of_an_address_is_not_given_to_the_library() {
            for library in LIBRARIES {
                let end = End::open(*library, [127, 0, 0, 1].into()).unwrap();
                let mut cut = end.address().unwrap();
                cut.pop();
                let short = [1; 3].to_vec();
                for told in [cut, short] {
                    let (mut caller, called) = streams();
                    let mut called = ends(*library, called).unwrap();
                    caller.write_all(&(told.len() as u32).to_le_bytes()).unwrap();
                    caller.write_all(&told).unwrap();
                    let broken = read_all(&mut *called.receiver, &mut Collected::default());
                    assert!(broken.to_string().contains("no address"), "{library:?}: {broken}");
                }
            }
        }

        /// Not a test: the process that `ends_on_different_networks…` starts, which sends back what it gets.
        #[test]
        #[cfg(feature = "libfabric")]
        fn peer_process() {
            let Ok(address) = std::env::var("FABRIC_TEST_PEER") else { return };
            let stream = TcpStream::connect(address).unwrap();
            let mut own = ends(Library::Libfabric, stream).unwrap();
            let mut got = Collected::default();
            while got.0.is_empty() {
                own.receiver.poll(&mut got).unwrap();
            }
            let (head, payload) = &got.0[0];
            assert_ne!(own.sender.send(&head.encode(), payload), Ok(Sent::Full));
            let end = read_all(&mut *own.receiver, &mut got);
            assert_eq!(end, Broken::Closed);
        }

        /// Goal: where the library's best network cannot be opened the next one is, and two ends that have come to different
        /// ones meet. Method: the other end is a process with two providers, of which the first has no queue of the kind
        /// that is asked for. Here the library has another one first.
        #[test]
        #[cfg(feature = "libfabric")]
        fn ends_on_different_networks_of_the_library_meet_over_tcp() {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let name = module_path!().split_once("::").unwrap().1;
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("{name}::peer_process")])
                .env("FABRIC_TEST_PEER", listener.local_addr().unwrap().to_string())
                .env("FI_PROVIDER", "udp,sockets")
                .spawn()
                .unwrap();
            let mut own = ends(Library::Libfabric, listener.accept().unwrap().0).unwrap();
            let (head, payload) = message(1, 50_000);
            assert_ne!(own.sender.send(&head.encode(), &payload), Ok(Sent::Full));
            let (mut got, start) = (Collected::default(), Instant::now());
            while got.0.is_empty() {
                own.receiver.poll(&mut got).unwrap();
                own.sender.flush().unwrap();
                assert!(start.elapsed() < LONG, "it does not come back");
            }
            assert!(got.0 == [(head, payload)]);
            drop(own);
            assert!(child.wait().unwrap().success());
        }

        #[test]
        fn what_is_no_address_ends_the_connection() {
            for library in LIBRARIES {
                let (mut caller, called) = streams();
                let mut called = ends(*library, called).unwrap();
                caller.write_all(&u32::MAX.to_le_bytes()).unwrap();
                let start = Instant::now();
                let broken = loop {
                    match called.receiver.poll(&mut Collected::default()) {
                        Err(broken) => break broken,
                        Ok(_) => assert!(start.elapsed() < LONG, "it is taken for an address"),
                    }
                };
                assert!(broken.to_string().contains("too long"), "{broken}");
            }
        }

        #[test]
        fn who_ends_before_it_has_told_its_address_has_ended() {
            for library in LIBRARIES {
                let (caller, called) = streams();
                let mut called = ends(*library, called).unwrap();
                drop(caller);
                let end = read_all(&mut *called.receiver, &mut Collected::default());
                assert_eq!(end, Broken::Closed);
            }
        }
    }
}
