//! What is said to a bridge before it carries (pure).
//!
//! ```text
//!  0        4         6       8         16
//!  | "ktb\n" | version | count | context | count x (address: 16 bytes, port: 2 bytes) |
//! ```
//! The context is the one that is called at the last address, 0 if that is a node's directory server.
//! It is answered with two bytes: 0 when the last of the addresses is connected, and everything
//! after that is carried; otherwise why not, and the connection ends. All numbers are little-endian;
//! an IPv4 address is written as the IPv6 address that maps it.

use super::routes::BRIDGES_MOST;
use crate::id::ContextId;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use thiserror::Error;

/// Bytes of an answer.
pub const ANSWER: usize = 2;

const MAGIC: [u8; 4] = *b"ktb\n";
const VERSION: u16 = 2;
const HEAD: usize = 16;
const HOP: usize = 18;

/// Where a bridge is to connect to, and what that one is to be asked: what is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    whom: Whom,
    hops: Vec<SocketAddr>,
}

/// Who is called at the end of a way: bridges carry to these and nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// This context.
    Context(ContextId),
    /// The directory server of a node.
    Directory,
}

/// Why a bridge does not carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not understand.
    #[error("the bridge does not understand the request")]
    Malformed,
    /// It carries only to contexts, directory servers and bridges that its directory knows.
    #[error("the bridge does not know who is called there")]
    Unknown,
    /// Whom it called did not answer.
    #[error("the bridge cannot reach it")]
    Unreachable,
    /// It carries as much as it can.
    #[error("the bridge carries as many connections as it can")]
    Full,
    /// What a later version says.
    #[error("the bridge refuses, by reason {0}")]
    Other(u16),
}

impl Request {
    /// To connect to each of `hops` from the one before, to `whom` at the last. None if these are
    /// none, or more than there are bridges on a way.
    pub fn new(whom: Whom, hops: &[SocketAddr]) -> Option<Self> {
        (1..=BRIDGES_MOST).contains(&hops.len()).then(|| Self { whom, hops: hops.to_vec() })
    }

    /// Who is called at the last hop.
    pub fn whom(&self) -> Whom {
        self.whom
    }

    /// Whom to call.
    pub fn first(&self) -> SocketAddr {
        self.hops[0]
    }

    /// What to ask of it, if it is a bridge.
    pub fn rest(&self) -> Option<Self> {
        Self::new(self.whom, &self.hops[1..])
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.hops.len() * HOP);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.hops.len() as u16).to_le_bytes());
        let context = match self.whom {
            Whom::Context(context) => context.number(),
            Whom::Directory => 0,
        };
        bytes.extend_from_slice(&context.to_le_bytes());
        for hop in &self.hops {
            let address = match hop.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            bytes.extend_from_slice(&address.octets());
            bytes.extend_from_slice(&hop.port().to_le_bytes());
        }
        bytes
    }

    /// The request that `bytes` begin with, and how many it takes. None if more have to come.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Refusal> {
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let count = usize::from(number(6));
        if head[..4] != MAGIC || number(4) != VERSION || !(1..=BRIDGES_MOST).contains(&count) {
            return Err(Refusal::Malformed);
        }
        let whom = match u64::from_le_bytes(std::array::from_fn(|at| head[8 + at])) {
            0 => Whom::Directory,
            context => Whom::Context(ContextId::new(context)),
        };
        let length = HEAD + count * HOP;
        let Some(body) = bytes.get(HEAD..length) else { return Ok(None) };
        let (hops, _) = body.as_chunks::<HOP>();
        let hops = hops.iter().map(|hop| {
            let octets: [u8; 16] = std::array::from_fn(|at| hop[at]);
            let port = u16::from_le_bytes([hop[16], hop[17]]);
            SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
        });
        Ok(Some((Self { whom, hops: hops.collect() }, length)))
    }
}

impl Refusal {
    /// What an answer says.
    pub fn said(answer: [u8; ANSWER]) -> Option<Self> {
        match u16::from_le_bytes(answer) {
            0 => None,
            1 => Some(Self::Malformed),
            2 => Some(Self::Unknown),
            3 => Some(Self::Unreachable),
            4 => Some(Self::Full),
            code => Some(Self::Other(code)),
        }
    }

    /// As an answer.
    pub fn answer(refusal: Option<Self>) -> [u8; ANSWER] {
        let code = match refusal {
            None => 0,
            Some(Self::Malformed) => 1,
            Some(Self::Unknown) => 2,
            Some(Self::Unreachable) => 3,
            Some(Self::Full) => 4,
            Some(Self::Other(code)) => code,
        };
        u16::to_le_bytes(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_are_read_as_they_were_written_and_only_whole(
            context in 0..3_u64,
            hops in prop::collection::vec((any::<bool>(), any::<[u8; 16]>(), any::<u16>()), 1..=BRIDGES_MOST)
        ) {
            let hops: Vec<_> = hops
                .into_iter()
                .map(|(v4, octets, port)| {
                    let address = if v4 {
                        IpAddr::from([octets[0], octets[1], octets[2], octets[3]])
                    } else {
                        Ipv6Addr::from(octets).to_canonical()
                    };
                    SocketAddr::new(address, port)
                })
                .collect();
            let whom = match context {
                0 => Whom::Directory,
                context => Whom::Context(ContextId::new(context << 40)),
            };
            let request = Request::new(whom, &hops).unwrap();
            let mut bytes = request.encode();
            let length = bytes.len();
            for part in 0..length {
                prop_assert_eq!(Request::decode(&bytes[..part]), Ok(None));
            }
            bytes.extend_from_slice(b"what is carried");
            prop_assert_eq!(Request::decode(&bytes), Ok(Some((request, length))));
        }

        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100), honest in any::<bool>()) {
            let mut bytes = bytes;
            if honest && bytes.len() >= HEAD {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..8].copy_from_slice(&[VERSION as u8, 0, 2, 0]);
            }
            let _ = Request::decode(&bytes);
        }

        #[test]
        fn answers_mean_what_they_say(code in any::<u16>()) {
            let answer = code.to_le_bytes();
            prop_assert_eq!(Refusal::answer(Refusal::said(answer)), answer);
        }
    }

    #[test]
    fn a_way_of_no_or_too_many_hops_is_no_request() {
        let hop = SocketAddr::from(([10, 0, 0, 1], 1));
        assert_eq!(Request::new(Whom::Directory, &[]), None);
        assert_eq!(Request::new(Whom::Directory, &[hop; BRIDGES_MOST + 1]), None);
        let two = Request::new(Whom::Directory, &[hop; 2]).unwrap();
        assert_eq!(two.rest().and_then(|one| one.rest()), None);
    }
}
