//! What is said between programs and the directory server of their node, and between servers, and
//! how it becomes bytes: the length as four bytes, little-endian, then the message in postcard's
//! format.

use crate::attributes::Attributes;
use crate::carriers::Carriers;
use crate::door::{Callers, Claim, ContextKey, Pass};
use crate::id::{ContextId, Place, ResourceId};
use postcard::ser_flavors::Size;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The version of all of it.
pub const VERSION: u16 = 7;
/// Longest message. What may be longer is said in parts: those of a snapshot's last one, with much room for what is said besides.
pub const MESSAGE_MOST: usize = 8 << 20;
/// Bytes of what one part has, unless one thing alone has more: little beside what a connection has on its way anyhow, and much
/// beside what a message costs.
pub const PART_MOST: usize = 1 << 20;
const LENGTH: usize = 4;

/// A context, and where it can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextInfo {
    /// Its name.
    pub id: ContextId,
    /// The node that it is on; its directory server fills that in.
    pub node: String,
    /// The user that it belongs to, which the kernel tells that server.
    pub owner: u32,
    /// Whose programs it lets in.
    pub callers: Callers,
    /// Where it accepts TCP connections, best first.
    pub addresses: Vec<SocketAddr>,
    /// Over what it can be called there. Who calls it takes what both speak.
    pub carriers: Carriers,
    /// Which version of links it speaks ([`frame::VERSION`](crate::frame::VERSION)): who speaks another does not call it.
    pub speaks: u16,
}

/// A context, for another that wants to call it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Who and where it is.
    pub context: ContextInfo,
    /// What to show it; none if daemons have no key.
    pub pass: Option<Pass>,
}

/// A resource as directories know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub id: ResourceId,
    /// What it is.
    pub attributes: Attributes,
    /// Where it lives. A server has that once for all resources of a context, however many there are.
    pub home: Arc<ContextInfo>,
}

/// What a program asks. Numbers are the program's own; answers repeat them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Comes first, once.
    Hello {
        /// [`VERSION`].
        version: u16,
        /// Who asks.
        context: ContextInfo,
        /// What the server before this one has given it.
        claim: Option<Claim>,
    },
    /// A resource is there; answered when every server knows.
    Register {
        /// The question's number.
        number: u32,
        /// Where in its context.
        place: Place,
        /// What it is.
        attributes: Attributes,
    },
    /// It is no more; answered when every server knows.
    Drop {
        /// The question's number.
        number: u32,
        /// Where it was.
        place: Place,
    },
    /// Which resources have these attributes, now and from now on?
    Subscribe {
        /// The question's number, and the subscription's.
        number: u32,
        /// What they have at least.
        query: Attributes,
    },
    /// No more of that.
    Unsubscribe {
        /// Which subscription.
        number: u32,
    },
    /// Where is this context?
    Resolve {
        /// The question's number.
        number: u32,
        /// Which.
        context: ContextId,
    },
}

/// A hello, as far as it is the same in every version.
#[derive(Deserialize)]
enum Opening {
    Hello { version: u16 },
}

/// What a program is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// After the hello.
    Welcome {
        /// The node's name.
        node: String,
        /// The program's user.
        owner: u32,
        /// What its callers are known by; none if everybody is to be believed.
        key: Option<ContextKey>,
        /// What it is to show the next server; none if daemons have no key.
        claim: Option<Claim>,
    },
    /// That cannot be.
    Refused {
        /// Which question; none: the hello.
        number: Option<u32>,
        /// Why, and what would be accepted.
        why: String,
    },
    /// Registered, or dropped.
    Done {
        /// Which question.
        number: u32,
    },
    /// Some of those that there are now, if they are too many for one message: comes before the rest.
    FoundPart {
        /// Which subscription.
        number: u32,
        /// Some of them.
        records: Vec<Record>,
    },
    /// All that there are now.
    Found {
        /// Which subscription.
        number: u32,
        /// All of them, or the last of them.
        records: Vec<Record>,
    },
    /// One more.
    Appeared {
        /// Of which subscription.
        number: u32,
        /// Which.
        record: Record,
    },
    /// One less.
    Gone {
        /// Of which subscription.
        number: u32,
        /// Which.
        id: ResourceId,
    },
    /// Where a context is, if it is anywhere.
    Resolved {
        /// Which question.
        number: u32,
        /// Where, and what to show it.
        found: Option<Introduction>,
    },
}

/// What happened on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A context was opened, and is its user's since then, which is since 1970.
    Opened(ContextInfo, Duration),
    /// A context is no more, and its resources with it.
    Closed(ContextId),
    /// A resource was registered.
    Registered(ResourceId, Attributes),
    /// A resource was dropped.
    Dropped(ResourceId),
}

/// Everything that there is on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The node.
    pub node: String,
    /// This run of its server.
    pub incarnation: u64,
    /// Where its server accepts connections, for those who are where the connection comes out.
    pub address: SocketAddr,
    /// How many changes there were before.
    pub change: u64,
    /// All contexts, and since when they are their users'; or the last of them.
    pub contexts: Vec<(ContextInfo, Duration)>,
    /// All resources, or the last of them.
    pub resources: Vec<(ResourceId, Attributes)>,
}

/// What a server tells another about its own node, on a connection that it made for that, after both have
/// said hail ([`seal`](super::seal)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Update {
    /// Some of a snapshot, if that is too long for one message: comes before it. It is nothing without that, which may never
    /// come.
    SnapshotPart {
        /// Some contexts.
        contexts: Vec<(ContextInfo, Duration)>,
        /// Some resources.
        resources: Vec<(ResourceId, Attributes)>,
    },
    /// Comes before any change: everything there is, or the last of it.
    Snapshot(Snapshot),
    /// The next change.
    Changed {
        /// Its number.
        change: u64,
        /// What happened.
        what: Change,
    },
    /// Nothing happened for a while.
    Alive,
}

/// What the other answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The snapshot was taken over. Said again it is a sign of life.
    Welcome {
        /// Who answers.
        node: String,
        /// The nodes whose servers it hears, and where these are; when said again, some of them.
        members: Vec<(String, SocketAddr)>,
    },
    /// It was not.
    Refused {
        /// Why.
        why: String,
    },
    /// A context that was opened has a name that another had first: that it is opened is not taken over.
    Denied {
        /// Which.
        context: ContextId,
        /// Since when it is its user's, as that was told.
        since: Duration,
    },
    /// Every program of that node that asks is answered with all changes up to this one.
    Applied {
        /// The last change.
        change: u64,
    },
    /// Nothing to say, but here: before it is known who has called, and when a part of what that says has come.
    Alive,
}

/// Bytes that are no message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Too long.
    #[error("a message of {length} bytes: at most {most} are accepted")]
    TooLong {
        /// What it says.
        length: usize,
        /// What is accepted.
        most: usize,
    },
    /// Not as it should be.
    #[error("a message that is none: {0}")]
    Malformed(String),
}

/// Appends `message` to `bytes`.
pub fn encode(message: &impl Serialize, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; LENGTH]);
    if let Err(error) = postcard::to_io(message, &mut *bytes) {
        unreachable!("writing to memory, of types without unsized parts: {error}");
    }
    let length = (bytes.len() - start - LENGTH) as u32;
    bytes[start..start + LENGTH].copy_from_slice(&length.to_le_bytes());
}

/// `all` in parts of up to [`PART_MOST`] bytes, or of one that is longer: all parts but the last, and the last, which may be empty.
pub fn in_parts<T: Serialize>(all: Vec<T>) -> (Vec<Vec<T>>, Vec<T>) {
    let (mut parts, mut last, mut bytes) = (Vec::new(), Vec::new(), 0);
    for one in all {
        let length = length(&one);
        if bytes + length > PART_MOST && !last.is_empty() {
            parts.push(mem::take(&mut last));
            bytes = 0;
        }
        bytes += length;
        last.push(one);
    }
    (parts, last)
}

/// Bytes of it within a message.
fn length(of: &impl Serialize) -> usize {
    let counted = postcard::serialize_with_flavor(of, Size::default());
    counted
        .unwrap_or_else(|error| unreachable!("counting, of types without unsized parts: {error}"))
}

/// Takes the first message out of `bytes`, if it is there whole: it, and how many bytes it was.
///
/// # Errors
/// If that is no message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<(T, usize)>, DecodeError> {
    let Some(framed) = framed(bytes, MESSAGE_MOST)? else { return Ok(None) };
    Ok(Some((read(framed)?, framed.len())))
}

/// The first message in `bytes`, with its length, if it is there whole.
///
/// # Errors
/// If it is longer than `most`.
pub fn framed(bytes: &[u8], most: usize) -> Result<Option<&[u8]>, DecodeError> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > most {
        return Err(DecodeError::TooLong { length, most });
    }
    Ok(bytes.get(..LENGTH + length))
}

/// The version of the hello that `framed` is, if it is of another than this. Nothing behind it can be read then.
pub fn other_version(framed: &[u8]) -> Option<u16> {
    let opening = postcard::take_from_bytes::<Opening>(framed.get(LENGTH..)?);
    let (Opening::Hello { version }, _) = opening.ok()?;
    (version != VERSION).then_some(version)
}

/// The message that `framed` is.
///
/// # Errors
/// If it is none.
pub fn read<T: DeserializeOwned>(framed: &[u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(&framed[LENGTH..]) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(DecodeError::Malformed(format!("{} bytes are left over", rest.len()))),
        Err(error) => Err(DecodeError::Malformed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_only_whole() {
        let number = 7;
        let request = Request::Subscribe { number, query: attrs! { "name" => "dhash" } };
        let mut bytes = Vec::new();
        encode(&request, &mut bytes);
        let whole = bytes.len();
        encode(&Request::Unsubscribe { number }, &mut bytes);
        for part in 0..whole {
            assert_eq!(decode::<Request>(&bytes[..part]), Ok(None));
        }
        assert_eq!(decode(&bytes), Ok(Some((request, whole))));
        let (length, most) = (u32::MAX as usize, MESSAGE_MOST);
        assert_eq!(decode::<Request>(&[255; 8]), Err(DecodeError::TooLong { length, most }));
    }

    #[test]
    fn parts_are_full_and_none_is_too_long() {
        let length = |bytes: usize| "x".repeat(bytes);
        let cases = [
            (vec![], vec![], 0),
            (vec![1, 2], vec![], 2),
            (vec![PART_MOST / 2 - 8; 5], vec![2, 2], 1),
            (vec![2 * PART_MOST, 1, 2 * PART_MOST], vec![1, 1], 1),
        ];
        for (all, parts, last) in cases {
            let all: Vec<_> = all.into_iter().map(length).collect();
            let (before, rest) = in_parts(all.clone());
            let sizes: Vec<_> = before.iter().map(Vec::len).collect();
            assert_eq!((sizes, rest.len()), (parts, last));
            assert_eq!([before.concat(), rest].concat(), all);
        }
    }

    /// Whatever is behind it, and though that is no hello of this version.
    #[test]
    fn a_hello_of_another_version_is_known_by_that() {
        let version_of = |message: &(u8, u16, &str)| {
            let mut bytes = Vec::new();
            encode(message, &mut bytes);
            other_version(&bytes)
        };
        for version in [0, VERSION - 1, VERSION + 1, u16::MAX] {
            assert_eq!(version_of(&(0, version, "what it has there")), Some(version));
        }
        assert_eq!(version_of(&(0, VERSION, "what it has there")), None);
        // No hello at all.
        assert_eq!(version_of(&(1, VERSION + 1, "")), None);
        assert_eq!(other_version(&[1, 0, 0, 0, 0]), None);
        assert_eq!(other_version(&[]), None);
    }

    proptest! {
        /// Whatever another process writes: a message, nothing yet, or an error.
        #[test]
        fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 4..200), honest in any::<bool>()) {
            if honest {
                let length = bytes.len() as u32 - 4;
                bytes[..4].copy_from_slice(&length.to_le_bytes());
            }
            let _ = other_version(&bytes);
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Answer>(&bytes);
            let _ = decode::<Update>(&bytes);
            let _ = decode::<Reply>(&bytes);
        }
    }
}
