//! Which open connections of a node are meant.

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

/// One end of connections: an address, and a port where it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// The address.
    pub address: Ipv4Addr,
    /// Nothing = every port.
    pub port: Option<u16>,
}

/// Connections by their ends: `REMOTE`, or `LOCAL-REMOTE`, each `ADDRESS` or `ADDRESS:PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ConnectionPattern {
    /// The end on this node; nothing = whichever.
    pub local: Option<Endpoint>,
    /// The other end.
    pub remote: Endpoint,
}

impl Endpoint {
    /// Whether a socket's end is meant.
    pub fn matches(&self, end: SocketAddrV4) -> bool {
        self.address == *end.ip() && self.port.is_none_or(|port| port == end.port())
    }
}

impl ConnectionPattern {
    /// Whether a connection with these ends is meant.
    pub fn matches(&self, local: SocketAddrV4, remote: SocketAddrV4) -> bool {
        self.remote.matches(remote) && self.local.is_none_or(|end| end.matches(local))
    }
}

const EXPECTED: &str =
    "REMOTE or LOCAL-REMOTE, each ADDRESS or ADDRESS:PORT (10.0.0.1:4000-10.0.0.2:5001)";

impl FromStr for Endpoint {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parse = || match text.split_once(':') {
            None => Some(Self { address: text.parse().ok()?, port: None }),
            // Port 0 is nobody's.
            Some(_) => {
                let end: SocketAddrV4 =
                    text.parse().ok().filter(|e: &SocketAddrV4| e.port() > 0)?;
                Some(Self { address: *end.ip(), port: Some(end.port()) })
            }
        };
        parse().ok_or_else(|| Invalid::new("flow", text, EXPECTED))
    }
}

impl FromStr for ConnectionPattern {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.split_once('-') {
            None => Ok(Self { local: None, remote: text.parse()? }),
            Some((local, remote)) => {
                Ok(Self { local: Some(local.parse()?), remote: remote.parse()? })
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

impl fmt::Display for ConnectionPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.local {
            Some(local) => write!(f, "{local}-{}", self.remote),
            None => write!(f, "{}", self.remote),
        }
    }
}

crate::as_text!(Endpoint, ConnectionPattern);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_end() -> impl Strategy<Value = Endpoint> {
        (any::<u32>(), prop::option::of(1u16..))
            .prop_map(|(address, port)| Endpoint { address: address.into(), port })
    }

    #[test]
    fn ends_are_told_apart() {
        let end = |text: &str| text.parse::<SocketAddrV4>().unwrap();
        let (local, remote) = (end("10.0.0.1:4000"), end("10.0.0.2:5001"));
        for (text, expected) in [
            ("10.0.0.2", true),
            ("10.0.0.2:5001", true),
            ("10.0.0.2:5002", false),
            ("10.0.0.1:4000-10.0.0.2:5001", true),
            ("10.0.0.1-10.0.0.2", true),
            ("10.0.0.1:4001-10.0.0.2:5001", false),
            ("10.0.0.2-10.0.0.1", false),
        ] {
            let pattern: ConnectionPattern = text.parse().unwrap();
            assert_eq!(pattern.matches(local, remote), expected, "{text}");
        }
    }

    #[test]
    fn bad_patterns_name_what_would_be_accepted() {
        for bad in ["", "-", "n1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1-", "10.0.0.1:70000"] {
            let error = bad.parse::<ConnectionPattern>().unwrap_err();
            assert!(error.to_string().contains("LOCAL-REMOTE"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn patterns_read_back(local in prop::option::of(any_end()), remote in any_end()) {
            let pattern = ConnectionPattern { local, remote };
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            let _ = text.parse::<ConnectionPattern>();
        }
    }
}
