//! Frames over libraries that bring networks of their own, RDMA above all: libfabric and UCX. What is
//! asked of such a library is in `native/native.h`. As with UDP, the connection is made over TCP, on which
//! the two ends tell each other how the library calls them, and whose end tells that the other process
//! has ended.
//!
//! Each frame is one datagram of the library, sent from and received into memory that it knows: one copy
//! at each end. A connection has an endpoint and 2 MiB of its own.

mod library;
mod slots;

pub use library::Library;

use super::{
    Broken, Ends, Receiver, Sender, Sent, Sink, is_passing, is_quiet, ring_bell, watch_over,
};
use crate::frame::{EAGER_MOST, HEAD, Head, Malformed};
use crate::progress::lock;
use library::{ADDRESS_MOST, End};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
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
pub fn ends(library: Library, mut stream: TcpStream) -> io::Result<Ends> {
    watch_over(&stream)?;
    let end = End::open(library, stream.local_addr()?.ip())?;
    let address = end.address()?;
    stream.write_all(&(address.len() as u32).to_le_bytes())?;
    stream.write_all(&address)?;
    stream.set_nonblocking(true)?;
    let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let mut readable =
        vec![stream.as_fd().try_clone_to_owned()?, bell.as_fd().try_clone_to_owned()?];
    readable.extend(end.descriptor()?);
    let state = State { end, over: false, reader_asleep: false, writer_asleep: false };
    let shared = Arc::new(Shared { state: Mutex::new(state), bell, stream });
    let receiver =
        NativeReceiver { shared: shared.clone(), told: Vec::new(), said_end: false, closed: None };
    Ok(Ends {
        sender: Box::new(NativeSender(shared)),
        receiver: Box::new(receiver),
        readable,
        writable: None,
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
        self.0.work(&mut state)?;
        Ok(state.end.has_room())
    }

    fn falls_asleep(&mut self) -> bool {
        let mut state = lock(&self.0.state);
        state.writer_asleep = !state.end.has_room();
        state.writer_asleep
    }

    fn piece(&self) -> usize {
        EAGER_MOST
    }

    fn is_drained(&mut self) -> bool {
        self.is_settled()
    }

    fn is_settled(&mut self) -> bool {
        lock(&self.0.state).end.is_all_sent()
    }
}

struct NativeReceiver {
    shared: Arc<Shared>,
    /// What the other end has told of its address, after its length.
    told: Vec<u8>,
    /// The other end has said that nothing more follows.
    said_end: bool,
    /// Since when the connection over TCP has ended.
    closed: Option<Instant>,
}

impl NativeReceiver {
    /// Reads the other end's address until it is whole.
    fn hear_address(&mut self, state: &mut State) -> Result<(), Broken> {
        while !state.end.is_connected() && self.closed.is_none() {
            let wanted = match self.told.first_chunk() {
                None => LENGTH,
                Some(length) => LENGTH + u32::from_le_bytes(*length) as usize,
            };
            if wanted > LENGTH + ADDRESS_MOST {
                return Err(Broken::Library(
                    "the other end told an address that is too long".into(),
                ));
            }
            if wanted > LENGTH && self.told.len() == wanted {
                return state.end.connect(&self.told[LENGTH..]);
            }
            let mut bytes = [0; 256];
            let room = bytes.len().min(wanted - self.told.len());
            match (&self.shared.stream).read(&mut bytes[..room]) {
                Ok(length @ 1..) => self.told.extend_from_slice(&bytes[..length]),
                Err(error) if is_passing(&error) => return Ok(()),
                _ => self.has_closed(state),
            }
        }
        Ok(())
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
            let mut buffer = sink.buffer(&head)?;
            {
                let mut state = lock(&self.shared.state);
                let payload = state.end.arrived().and_then(|bytes| bytes.get(HEAD..));
                buffer.extend_from_slice(payload.unwrap_or_default());
                state.end.give_back()?;
            }
            sink.frame(&head, buffer)?;
            frames += 1;
            total += head.length as usize;
        }
        if frames == 0 && self.is_over() { Err(Broken::Closed) } else { Ok(frames) }
    }

    fn falls_asleep(&mut self) -> bool {
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
    use crate::transport::testing::{message, streams};

    #[test]
    #[cfg(not(all(feature = "libfabric", feature = "ucx")))]
    fn a_library_that_is_not_built_in_is_named() {
        let absent = if cfg!(feature = "ucx") { Library::Libfabric } else { Library::Ucx };
        let error = ends(absent, streams().0).err().unwrap().to_string();
        assert!(error.contains(&format!("the feature `{}`", absent.name())), "{error}");
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
        use crate::transport::testing::Collected;
        use proptest::prelude::*;

        const LONG: Duration = Duration::from_secs(60);
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
