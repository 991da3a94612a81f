//! What servers, partitions and clients say to each other.

use crate::extent::Extent;
use keeptime_fabric::{ResourceId, Tag};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Most partitions that a request passes before it is given up: with halves of random partitions, a
/// table of a million has ways of a few tens.
pub const HOPS_MOST: u8 = 100;
/// Most bytes of a key and of a value.
pub const KEY_MOST: usize = 1 << 10;
/// See [`KEY_MOST`].
pub const VALUE_MOST: usize = 16 << 20;
/// Answers of clients have tags of their own, above these.
pub const TAGS: u64 = 16;

/// When a record was stored, as who stored it says; of two with one time the greater origin is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// Nanoseconds, of a clock that the client moves forward where it falls behind others.
    pub time: u64,
    /// Who.
    pub origin: ResourceId,
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The key.
    pub key: ByteBuf,
    /// Of the value.
    pub version: Version,
    /// The value.
    pub value: ByteBuf,
}

/// What is asked of whoever has an index; whoever has it not passes it on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A server wants half of the partition that has `index`.
    Split {
        /// Where.
        index: u32,
        /// Who.
        server: ResourceId,
        /// The server's own number of it.
        number: u64,
    },
    /// A client stores something.
    Store {
        /// Who.
        client: ResourceId,
        /// The tag of the answer.
        number: u64,
        /// What.
        record: Record,
    },
    /// A client wants what was stored.
    Query {
        /// Who.
        client: ResourceId,
        /// The tag of the answer.
        number: u64,
        /// Of what.
        key: ByteBuf,
    },
}

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To a partition: it, or whoever it knows, is to do this.
    Routed {
        /// Partitions that it has passed.
        hops: u8,
        /// What.
        request: Request,
    },
    /// To a server: it is to make a partition of this, that of the sender or a part of it.
    Given {
        /// The server's number; of a whole partition, nothing.
        number: Option<u64>,
        /// What the partition has.
        extent: Extent,
        /// How often it was handed over as a whole.
        generation: u32,
    },
    /// To a server: what it asked for is not to be had where it asked.
    Refused {
        /// Its number.
        number: u64,
    },
    /// To a giver: the server does not take it.
    Declined {
        /// What was given.
        extent: Extent,
    },
    /// To a giver: the partition that was made of what it gave is there.
    Identified,
    /// To a partition: these are its business.
    Records {
        /// What.
        records: Vec<Record>,
    },
    /// To a partition: that were all, and of these parts records may be missing. From its giver: it has
    /// its extent from now on.
    Welcome {
        /// Where what is not found may have been lost.
        lost: Vec<Extent>,
    },
    /// To who said that: it has all of it.
    Thanks,
    /// To a server: may the sender make the super-partition?
    Claim {
        /// The sender's number of it.
        round: u64,
    },
    /// To who asked: the sender will not.
    Yield {
        /// Who asked's number.
        round: u64,
        /// It has seen that there was a table before.
        seen: bool,
    },
    /// To a partition, from its own server: others have come or gone.
    Look,
    /// To a partition, from its own server: it is to be handed over to `server`.
    Leave {
        /// Who gets it.
        server: ResourceId,
    },
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Partitions that the request passed.
    pub hops: u8,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is stored.
    Stored,
    /// Something newer is there: the client's clock is behind.
    Older {
        /// The time of what is there.
        time: u64,
    },
    /// This is stored.
    Found(ByteBuf),
    /// Nothing was stored.
    NotFound,
    /// Nothing is there, and it may have been lost with a server that was killed.
    Lost,
    /// Nobody can do it now: to be asked again.
    Busy,
}

impl Message {
    /// The tag that it is sent with: kinds of messages can be told apart by it.
    pub fn tag(&self) -> Tag {
        Tag(match self {
            Self::Routed { request: Request::Split { .. }, .. } => 1,
            Self::Identified => 2,
            Self::Routed { request: Request::Store { .. }, .. } => 3,
            Self::Routed { request: Request::Query { .. }, .. } => 4,
            _ => 5,
        })
    }
}

/// As bytes.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Into memory, and nothing in these types cannot be written.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// From bytes, if they are all of one.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_arrives_is_understood_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(message) = decode::<Message>(&bytes) {
                prop_assert_eq!(decode::<Message>(&encode(&message)), Some(message));
            }
            let _ = decode::<Answer>(&bytes);
        }
    }
}
