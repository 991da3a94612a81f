//! What is said on a link between two contexts, as bytes (pure). Every frame has a head of
//! [`HEAD`] bytes; `Message` and `Piece` are followed by a payload.
//!
//! ```text
//!  0        4    5        8              16             24        32        40     44    48
//!  | length | kind | zero | from         | to           | tag     | size    | token| seen |
//!                           slot   gener.  slot   gener.
//! ```
//! All numbers are little-endian. What a kind does not use is zero, and anything else is refused.

use crate::door::{KEY, Pass};
use crate::id::{ContextId, Place};
use crate::matching::Tag;
use crate::transport::native::Library;
use thiserror::Error;

/// Bytes of a frame's head.
pub const HEAD: usize = 48;
/// The same in words.
pub const HEAD_WORDS: usize = HEAD / 8;
/// Longest payload that is sent without asking. Longer ones are offered, and sent when a receiver
/// has taken the offer, so that they are written into their last place.
pub const EAGER_MOST: usize = 64 << 10;
/// Longest part of an offered message in one frame: others use the link in between.
pub const PIECE_MOST: usize = 256 << 10;
/// Bytes of a greeting.
pub const GREETING: usize = 40 + KEY;

const MAGIC: [u8; 4] = *b"ktf\n";
/// Of all that is said between two contexts, from the greeting on.
pub const VERSION: u16 = 9;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A message; its payload follows.
    Message {
        /// Who sends.
        from: Place,
        /// Who is to get it.
        to: Place,
        /// Its tag.
        tag: Tag,
        /// Bytes that `from` has taken of what the other end sent it, as in [`Frame::Credit`].
        credit: u64,
    },
    /// A message of `size` bytes is ready to be sent.
    Offer {
        /// Who sends.
        from: Place,
        /// Who is to get it.
        to: Place,
        /// Its tag.
        tag: Tag,
        /// Its length.
        size: u64,
        /// The offer's name on this link and in this direction.
        token: u32,
    },
    /// The offer is taken: send.
    Clear {
        /// Which.
        token: u32,
    },
    /// The next part of a taken offer; its payload follows.
    Piece {
        /// Which.
        token: u32,
    },
    /// All pieces of the offer have arrived.
    Done {
        /// Which.
        token: u32,
    },
    /// The offer was taken too late: its sender has given up.
    Withdrawn {
        /// Which.
        token: u32,
    },
    /// `place` has taken messages that were charged with `bytes`; as much may follow.
    Credit {
        /// Who took.
        place: Place,
        /// How much.
        bytes: u64,
    },
    /// A message, or an offer, did not reach its receiver.
    Rejected {
        /// Who sent it.
        from: Place,
        /// Who was to get it.
        to: Place,
        /// Its tag.
        tag: Tag,
        /// The offer's name, 0 for a message.
        token: u32,
        /// What it had been charged with; 0 for an offer of which that was given back before.
        bytes: u32,
        /// Why.
        reason: Refusal,
    },
    /// What its sender sends from now on goes by this link, which has this number there. It has given up all with lower
    /// ones by which it has sent: nothing that still comes by them counts. Said once, before the first message or offer.
    Begun {
        /// Its number, which counts up among the sender's links.
        number: u32,
    },
    /// On a rail: a frame of the stream, head and payload, is the payload.
    Carried {
        /// Its number in the stream.
        number: u64,
        /// The other end's frames before this are delivered.
        delivered: u64,
        /// So many frames of the stream have arrived by this rail (modulo 2^32).
        arrived: u32,
    },
    /// On a rail: the same without a frame.
    Noted {
        /// The other end's frames before this are delivered.
        delivered: u64,
        /// So many frames of the stream have arrived by this rail (modulo 2^32).
        arrived: u32,
    },
    /// On a rail: answer at once.
    Probe {
        /// The question's name.
        token: u32,
    },
    /// On a rail: the answer.
    Answered {
        /// The question's name.
        token: u32,
    },
}

/// Why a message was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reason {
    /// There is no such resource any more.
    #[error("the resource is gone")]
    Gone,
    /// The message is longer than the receiver accepts.
    #[error("the message is longer than the receiver accepts")]
    TooLong,
    /// The link broke before the receiver confirmed it: it has arrived, or does so late, or never will. It does not
    /// arrive any more when anything has that its context has sent to the receiver's since the link broke. So one that
    /// is sent again is received at most twice, in its order both times.
    #[error("the connection broke before arrival was confirmed")]
    Unconfirmed,
    /// The receiver holds all that it may. When it has taken some of that, there is room again.
    #[error(
        "the receiver has no room for it now: it takes {asked} bytes there, and {left} are left"
    )]
    NoRoom {
        /// Bytes that it takes there: its length and 64; of one of more than 64 KiB that was only offered, 64, and
        /// its length when there is no memory to fetch it.
        asked: u64,
        /// Bytes that are accepted, 65,535 if they are more; 0 when there is no memory.
        left: u64,
    },
}

/// Why the receiving end refuses a message, as it is said on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such resource any more.
    Gone,
    /// The message is longer than the receiver accepts.
    TooLong,
    /// The receiver holds all that it may.
    NoRoom {
        /// Bytes for which there is room: fewer than the message takes. As many as can be said, if they are more.
        left: u16,
    },
}

/// A frame's head: what it says, how long its payload is, and how many messages and offers its
/// sender has seen on this link so far (modulo 2^32).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What it says.
    pub frame: Frame,
    /// Bytes of payload that follow.
    pub length: u32,
    /// Messages and offers that were seen.
    pub seen: u32,
}

/// What carries the frames of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The connection itself: they follow.
    Itself,
    /// Datagrams, which the caller reads at this UDP port.
    Datagrams {
        /// Not 0.
        port: u16,
    },
    /// A library; how it is called at each end follows.
    Library(Library),
}

/// The first bytes on a connection: who calls whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Who calls.
    pub from: ContextId,
    /// Who is meant; at an address that was used before it may be somebody else.
    pub to: ContextId,
    /// What carries frames.
    pub carrier: Carrier,
    /// Counts up among the links that the caller makes to the other context, from 1 on. A later one takes the place of
    /// earlier ones, whichever call is taken first.
    pub attempt: u64,
    /// This connection is one of several that carry the link, which is a stream; all are greeted with its number. If not,
    /// it is all that there is.
    pub is_rail: bool,
    /// What its daemon has given the caller to show; none if daemons have no key.
    pub pass: Option<Pass>,
}

/// Bytes that are no frame. The link is given up: nothing after them can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// No such kind.
    #[error("a frame of kind {0}: 1 to 13 are known")]
    Kind(u8),
    /// A payload that its kind does not have, or too long.
    #[error("a frame of kind {kind} with {length} bytes of payload: at most {most} are accepted")]
    Length {
        /// The kind.
        kind: u8,
        /// What its head says.
        length: u32,
        /// What is accepted.
        most: usize,
    },
    /// A field that the kind does not use, or a value without a meaning.
    #[error("a frame of kind {kind} with {value} as its {field}")]
    Field {
        /// The kind.
        kind: u8,
        /// Which.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// It counts, clears or fills what was never sent.
    #[error("a frame about {0} that was never sent")]
    Unknown(&'static str),
    /// It begins a connection that has begun.
    #[error("a connection that begins again")]
    Again,
    /// It begins a connection, though its sender has begun a later one already. Not a mistake: it was late.
    #[error("a connection that was given up for a later one")]
    GivenUp,
    /// Not one of ours on the other end.
    #[error("the other end does not speak this protocol: it began with {0:02x?}")]
    Magic([u8; 4]),
    /// It wants to be carried by something that is not known, or not so.
    #[error("the other end wants carrier {0}: 0 to 3 are known, and 1 alone needs a port")]
    Carrier(u8),
    /// Another version on the other end.
    #[error("the other end speaks version {0} of the protocol, this one {VERSION}")]
    Version(u16),
}

// Inlined where frames are written and read: handed over, a head would be written in parts and read as a whole, which takes as
// long as everything else of it, since the processor waits for the parts.
impl Head {
    /// Its bytes.
    #[inline(always)]
    pub fn encode(&self) -> [u8; HEAD] {
        let Fields { kind, from, to, tag, size, token } = Fields::of(&self.frame);
        let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let place = |place: Place| halves(place.slot, place.generation);
        let first = halves(self.length, kind.into());
        let words = [first, place(from), place(to), tag, size, halves(token, self.seen)];
        let mut bytes = [0; HEAD];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The head that `bytes` are.
    ///
    /// # Errors
    /// If they are none.
    #[inline(always)]
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Self, Malformed> {
        let (words, _) = bytes.as_chunks();
        Self::of_words(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    }

    /// The head that these words are.
    ///
    /// # Errors
    /// If they are none.
    #[inline(always)]
    pub fn of_words(words: [u64; HEAD_WORDS]) -> Result<Self, Malformed> {
        let [first, from, to, tag, size, last] = words;
        let ((length, kind), (token, seen)) = (halves(first), halves(last));
        let frame = if (kind, token) == (MESSAGE.into(), 0) {
            Frame::Message { from: place(from), to: place(to), tag: Tag(tag), credit: size }
        } else {
            Fields::read(words)?.frame()?
        };
        let most = frame.payload_most();
        if length as usize > most {
            return Err(Malformed::Length { kind: kind as u8, length, most });
        }
        Ok(Self { frame, length, seen })
    }
}

impl Frame {
    fn payload_most(&self) -> usize {
        match self {
            Self::Message { .. } => EAGER_MOST,
            Self::Piece { .. } => PIECE_MOST,
            Self::Carried { .. } => HEAD + EAGER_MOST,
            _ => 0,
        }
    }
}

impl Greeting {
    /// Its bytes.
    pub fn encode(&self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        let (carrier, port) = match self.carrier {
            Carrier::Itself => (0, 0),
            Carrier::Datagrams { port } => (1, port),
            Carrier::Library(Library::Libfabric) => (2, 0),
            Carrier::Library(Library::Ucx) => (3, 0),
        };
        bytes[6..8].copy_from_slice(&port.to_le_bytes());
        bytes[32] = carrier;
        bytes[8..16].copy_from_slice(&self.from.number().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.to.number().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[34] = u8::from(self.is_rail);
        if let Some(Pass { user, proof }) = self.pass {
            bytes[33] = 1;
            bytes[36..40].copy_from_slice(&user.to_le_bytes());
            bytes[40..].copy_from_slice(&proof);
        }
        bytes
    }

    /// The greeting that `bytes` are.
    ///
    /// # Errors
    /// If the other end speaks something else.
    pub fn decode(bytes: &[u8; GREETING]) -> Result<Self, Malformed> {
        let magic = array(bytes, 0);
        if magic != MAGIC {
            return Err(Malformed::Magic(magic));
        }
        let version = u16::from_le_bytes(array(bytes, 4));
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let context = |at| ContextId::new(u64_at(bytes, at));
        let port = u16::from_le_bytes(array(bytes, 6));
        let carrier = match (bytes[32], port) {
            (0, 0) => Carrier::Itself,
            (1, 1..) => Carrier::Datagrams { port },
            (2, 0) => Carrier::Library(Library::Libfabric),
            (3, 0) => Carrier::Library(Library::Ucx),
            (other, _) => return Err(Malformed::Carrier(other)),
        };
        let pass =
            (bytes[33] != 0).then(|| Pass { user: u32_at(bytes, 36), proof: array(bytes, 40) });
        let (attempt, is_rail) = (u64_at(bytes, 24), bytes[34] != 0);
        Ok(Self { from: context(8), to: context(16), carrier, attempt, is_rail, pass })
    }
}

impl Greeting {
    /// By which the datagrams of this connection, which the caller reads at `port`, are known at both
    /// ends, and told from those of an earlier one between them, even with the same ports.
    pub fn token(&self, port: u16) -> u64 {
        let contexts = self.from.number() ^ self.to.number().rotate_left(32);
        contexts ^ self.attempt.rotate_left(u16::BITS) ^ u64::from(port)
    }
}

impl Refusal {
    /// What is told to the sender of a message that takes `asked` bytes.
    pub fn told(self, asked: u64) -> Reason {
        match self {
            Self::Gone => Reason::Gone,
            Self::TooLong => Reason::TooLong,
            Self::NoRoom { left } => Reason::NoRoom { asked, left: left.into() },
        }
    }

    /// Sixteen bits of what it is, and as many of what is left.
    fn code(self) -> u32 {
        match self {
            Self::Gone => 1,
            Self::TooLong => 2,
            Self::NoRoom { left } => 3 | u32::from(left) << 16,
        }
    }

    /// That of a code. What it does not use may be set: it is not what is written then.
    fn said(code: u32) -> Option<Self> {
        match code as u16 {
            1 => Some(Self::Gone),
            2 => Some(Self::TooLong),
            3 => Some(Self::NoRoom { left: (code >> 16) as u16 }),
            _ => None,
        }
    }
}

/// The kind that nearly all frames are of.
const MESSAGE: u8 = 1;
const NOWHERE: Place = Place { slot: 0, generation: 0 };

/// The places in a head that kinds use or leave zero.
#[derive(Clone, Copy, PartialEq)]
struct Fields {
    kind: u8,
    from: Place,
    to: Place,
    tag: u64,
    size: u64,
    token: u32,
}

// As heads are.
impl Fields {
    #[inline(always)]
    fn of(frame: &Frame) -> Self {
        let none = Self { kind: 0, from: NOWHERE, to: NOWHERE, tag: 0, size: 0, token: 0 };
        match *frame {
            Frame::Message { from, to, tag, credit } => {
                Self { kind: MESSAGE, from, to, tag: tag.0, size: credit, ..none }
            }
            Frame::Offer { from, to, tag, size, token } => {
                Self { kind: 2, from, to, tag: tag.0, size, token }
            }
            Frame::Clear { token } => Self { kind: 3, token, ..none },
            Frame::Piece { token } => Self { kind: 4, token, ..none },
            Frame::Credit { place, bytes } => Self { kind: 5, from: place, size: bytes, ..none },
            Frame::Rejected { from, to, tag, token, bytes, reason } => {
                let size = u64::from(bytes) | u64::from(reason.code()) << 32;
                Self { kind: 6, from, to, tag: tag.0, size, token }
            }
            Frame::Done { token } => Self { kind: 7, token, ..none },
            Frame::Withdrawn { token } => Self { kind: 8, token, ..none },
            Frame::Carried { number, delivered, arrived } => {
                Self { kind: 9, tag: number, size: delivered, token: arrived, ..none }
            }
            Frame::Noted { delivered, arrived } => {
                Self { kind: 10, size: delivered, token: arrived, ..none }
            }
            Frame::Probe { token } => Self { kind: 11, token, ..none },
            Frame::Answered { token } => Self { kind: 12, token, ..none },
            Frame::Begun { number } => Self { kind: 13, token: number, ..none },
        }
    }

    /// Those of a head that is no message's, apart from it: none should wait for what these need.
    #[inline(never)]
    fn read([first, from, to, tag, size, last]: [u64; HEAD_WORDS]) -> Result<Self, Malformed> {
        let ((_, kind), (token, _)) = (halves(first), halves(last));
        let (kind, value) = (kind as u8, u64::from(kind >> 8));
        if value > 0 {
            return Err(Malformed::Field { kind, field: "reserved bytes", value });
        }
        Ok(Self { kind, from: place(from), to: place(to), tag, size, token })
    }

    fn frame(&self) -> Result<Frame, Malformed> {
        let Self { kind, from, to, tag, size, token } = *self;
        let tag = Tag(tag);
        let frame = match kind {
            MESSAGE => Frame::Message { from, to, tag, credit: size },
            2 => Frame::Offer { from, to, tag, size, token },
            3 => Frame::Clear { token },
            4 => Frame::Piece { token },
            5 => Frame::Credit { place: from, bytes: size },
            6 => {
                let value = size >> 32;
                let reason = Refusal::said(value as u32);
                let reason = reason.ok_or(Malformed::Field { kind, field: "reason", value })?;
                Frame::Rejected { from, to, tag, token, bytes: size as u32, reason }
            }
            7 => Frame::Done { token },
            8 => Frame::Withdrawn { token },
            9 => Frame::Carried { number: tag.0, delivered: size, arrived: token },
            10 => Frame::Noted { delivered: size, arrived: token },
            11 => Frame::Probe { token },
            12 => Frame::Answered { token },
            13 => Frame::Begun { number: token },
            _ => return Err(Malformed::Kind(kind)),
        };
        // What a kind does not use is zero exactly if its fields are those it would write.
        let written = Self::of(&frame);
        if written != *self {
            let value = self.tag | self.size | u64::from(self.token);
            return Err(Malformed::Field { kind, field: "unused fields", value });
        }
        Ok(frame)
    }
}

/// The low half of a word, and the high one.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn place(word: u64) -> Place {
    let (slot, generation) = halves(word);
    Place { slot, generation }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places() -> impl Strategy<Value = Place> {
        any::<(u32, u32)>().prop_map(|(slot, generation)| Place { slot, generation })
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let tokens = prop_oneof![Just(0), any::<u32>()];
        let parts = (places(), places(), any::<u64>().prop_map(Tag), any::<u64>(), tokens);
        (0..15_u8, parts).prop_map(|(kind, (from, to, tag, size, token))| match kind {
            0 => Frame::Message { from, to, tag, credit: size },
            1 => Frame::Offer { from, to, tag, size, token },
            2 => Frame::Clear { token },
            3 => Frame::Piece { token },
            4 => Frame::Credit { place: from, bytes: size },
            5 => Frame::Rejected { from, to, tag, token, bytes: 7, reason: Refusal::Gone },
            6 => Frame::Rejected { from, to, tag, token, bytes: 7, reason: Refusal::TooLong },
            7 => Frame::Done { token },
            8 => Frame::Carried { number: tag.0, delivered: size, arrived: token },
            9 => Frame::Noted { delivered: size, arrived: token },
            10 => Frame::Probe { token },
            11 => Frame::Answered { token },
            12 => Frame::Begun { number: token },
            13 => {
                let reason = Refusal::NoRoom { left: token as u16 };
                Frame::Rejected { from, to, tag, token, bytes: size as u32, reason }
            }
            _ => Frame::Withdrawn { token },
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(frame in frames(), length in any::<u32>(), seen in any::<u32>()) {
            let length = length % (frame.payload_most() as u32 + 1);
            let head = Head { frame, length, seen };
            prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        }

        /// Any bytes, mostly with a kind that there is: an error, or what encodes to the same
        /// bytes.
        #[test]
        fn no_two_heads_mean_the_same(noise in any::<[[u8; 16]; 3]>(), kind in 0..15_u8, keep in any::<u64>()) {
            let mut bytes = [0; HEAD];
            for (at, byte) in noise.as_flattened().iter().enumerate() {
                bytes[at] = if keep >> at & 1 == 1 { *byte } else { 0 };
            }
            bytes[4] = kind;
            if let Ok(head) = Head::decode(&bytes) {
                prop_assert_eq!(head.encode(), bytes);
            }
        }
    }

    #[test]
    fn too_long_and_unknown_frames_are_refused_by_name() {
        let from = NOWHERE;
        let frame = Frame::Message { from, to: from, tag: Tag(1), credit: 0 };
        let long = Head { frame, length: EAGER_MOST as u32 + 1, seen: 0 };
        let error = Head::decode(&long.encode()).unwrap_err().to_string();
        assert_eq!(
            error,
            "a frame of kind 1 with 65537 bytes of payload: at most 65536 are accepted"
        );
        let frame = Frame::Clear { token: 1 };
        let mut bytes = Head { frame, length: 0, seen: 0 }.encode();
        bytes[4] = 14;
        assert_eq!(Head::decode(&bytes), Err(Malformed::Kind(14)));
    }

    #[test]
    fn a_refusal_says_what_is_left() {
        for left in [0, 1, u16::MAX] {
            let said = Refusal::said(Refusal::NoRoom { left }.code());
            assert_eq!(said, Some(Refusal::NoRoom { left }));
        }
        let told = Refusal::NoRoom { left: 50 }.told(1064).to_string();
        assert!(told.ends_with("it takes 1064 bytes there, and 50 are left"), "{told}");
        for code in [0, 4, 1 << 16, u32::MAX] {
            assert_eq!(Refusal::said(code), None);
        }
    }

    #[test]
    fn another_version_is_told() {
        let (from, to) = (ContextId::new(1), ContextId::new(2));
        let mut bytes = [0; GREETING];
        for carrier in [
            Carrier::Itself,
            Carrier::Datagrams { port: 7 },
            Carrier::Library(Library::Libfabric),
            Carrier::Library(Library::Ucx),
        ] {
            for pass in [None, Some(Pass { user: 1000, proof: [7; KEY] })] {
                for is_rail in [false, true] {
                    let greeting = Greeting { from, to, carrier, attempt: 3, is_rail, pass };
                    bytes = greeting.encode();
                    assert_eq!(Greeting::decode(&bytes), Ok(greeting));
                }
            }
        }
        bytes[32] = 1;
        assert_eq!(Greeting::decode(&bytes), Err(Malformed::Carrier(1)));
        // Its greeting has no attempt where this one's is.
        bytes[4] = 8;
        assert_eq!(Greeting::decode(&bytes), Err(Malformed::Version(8)));
        bytes[..4].copy_from_slice(b"GET ");
        assert_eq!(Greeting::decode(&bytes), Err(Malformed::Magic(*b"GET ")));
    }
}
