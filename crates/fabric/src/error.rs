//! What can go wrong, by operation.

use crate::attributes::InvalidAttributes;
use crate::directory::client::DirectoryError;
use crate::frame::Reason;
use crate::id::{ContextId, ResourceId};
use crate::inbox::Undelivered;
use crate::networks::Network;
use crate::transport::Broken;
use std::io;
use thiserror::Error;

/// A context cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel does not give what is needed.
    #[error("cannot open a context: {what}")]
    System {
        /// What it is needed for.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// What is to carry messages between nodes is not built in.
    #[error("this program was built without {wanted} (the feature `{wanted}`): it has {there}")]
    NotBuiltIn {
        /// The library that was asked for.
        wanted: &'static str,
        /// What there is.
        there: String,
    },
    /// The node is on none of the networks that are to be used.
    #[error(
        "no interface of this node that is up has an address on {wanted}: expected one of {}",
        listed(found)
    )]
    NoNetwork {
        /// The first of those.
        wanted: Network,
        /// What it is on.
        found: Vec<Network>,
    },
    /// The program's environment says what cannot be.
    #[error("{variable} is {value:?}: expected {expected}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// There is no directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// A resource cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// There are too many.
    #[error("this context has {most} resources, which is the most", most = crate::inbox::RESOURCES_MOST)]
    TooMany,
    /// No directory takes its attributes.
    #[error(transparent)]
    Attributes(#[from] InvalidAttributes),
    /// The directory does not take it.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// A resource was not found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FindError {
    /// None has these attributes.
    #[error("no resource has {0}")]
    None(String),
    /// More than one has.
    #[error("{count} resources have {query}, one was asked for")]
    Several {
        /// What was sought.
        query: String,
        /// How many there are.
        count: usize,
    },
    /// The directory does not answer.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// A message was not sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The receiver is no more.
    #[error("there is no resource {0} any more")]
    Gone(ResourceId),
    /// The receiver's context is no more.
    #[error("there is no context {0} any more")]
    NoContext(ContextId),
    /// The receiver's context cannot be reached.
    #[error("context {context} on node {node} cannot be reached: {why}")]
    Unreachable {
        /// Which.
        context: ContextId,
        /// Where.
        node: String,
        /// What the last address said.
        why: String,
    },
    /// The message is too long for this end.
    #[error("a message of {bytes} bytes: at most {most} are sent")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// What would be sent.
        most: u64,
    },
    /// The other end did not take it.
    #[error("the message was not delivered: {0}")]
    Rejected(Reason),
    /// The receiver does not keep up, or a connection to it is being made, and there was no time to wait.
    #[error(
        "not now: the receiver has taken too little of what it was sent, or a connection to it is being made"
    )]
    WouldBlock,
    /// The receiver did not keep up in time, or was not connected to.
    #[error("the receiver did not take the message in time")]
    TimedOut,
    /// The connection broke.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The directory does not say where the receiver is.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// A message was not received.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// None came in time.
    #[error("no message came in time")]
    TimedOut,
    /// The context of the only sender that is wanted is no more, and nothing is left of what it had sent.
    #[error("there is no context {0} any more, and no message of it")]
    Gone(ContextId),
    /// What this resource had sent did not arrive. Told once for each message, when no message
    /// matches.
    #[error(transparent)]
    Undelivered(#[from] Undelivered),
}

/// With commas between them.
fn listed(networks: &[Network]) -> String {
    let all: Vec<_> = networks.iter().map(ToString::to_string).collect();
    all.join(", ")
}
