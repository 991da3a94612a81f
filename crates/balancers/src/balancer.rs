//! What all balancers have in common.

use crate::traffic::{Change, Observed};
use keeptime_model::name::Name;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;

/// A balancer that runs answers within this time: it is the machine's lightly loaded one.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Longest answer: a state of thousands of servers.
pub(crate) const ANSWER_MAX: usize = 16 * 1024 * 1024;

/// One site at one balancer.
pub trait Balancer: Debug + Send {
    /// Which one, for people: `haproxy:/run/haproxy.sock/shop`.
    fn name(&self) -> &str;

    /// Nodes that it could send requests to. Changes nothing, even where a balancer has to be told something
    /// before it can be observed. Blocks for at most [`ANSWER_WITHIN`].
    ///
    /// # Errors
    /// If it does not run or does not answer as it should.
    fn known(&mut self) -> Result<Vec<Name>, BalancerError> {
        Ok(self.observe()?.servers.into_keys().collect())
    }

    /// What its nodes get and do now. Blocks for at most a few times [`ANSWER_WITHIN`], and for as long as a reload takes where
    /// what it was told needs one more.
    ///
    /// # Errors
    /// If it does not run or does not answer as it should.
    fn observe(&mut self) -> Result<Observed, BalancerError>;

    /// Tells it about some nodes; what it was not told stays. Blocks for at most a few times
    /// [`ANSWER_WITHIN`], or for as long as a reload takes.
    ///
    /// # Errors
    /// If it does not run: those before are done; or the first that it refused: all others are done.
    fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError>;

    /// Ends all that it has in flight on `_server`, to which it sends nothing new any more. Blocks for at most
    /// [`ANSWER_WITHIN`].
    ///
    /// # Errors
    /// If it does not run or refuses; [`BalancerError::CannotEnd`] of one that has no way to.
    fn end(&mut self, _server: &Name) -> Result<(), BalancerError> {
        Err(BalancerError::CannotEnd { balancer: self.name().into() })
    }
}

/// Why a balancer could not be asked or told.
#[derive(Debug, Error)]
pub enum BalancerError {
    /// It does not run, or not there.
    #[error("{balancer} cannot be reached")]
    Unreachable {
        /// Which.
        balancer: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It was asked, and has not answered yet.
    #[error("{balancer} has not answered for {seconds} s")]
    Silent {
        /// Which.
        balancer: String,
        /// Since it was asked.
        seconds: u64,
    },
    /// It has ended, and with it all that it worked on.
    #[error("{balancer} does not run")]
    Ended {
        /// Which.
        balancer: String,
    },
    /// What it was told cannot be kept for its next start.
    #[error("cannot write {file}")]
    StateFile {
        /// The file.
        file: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Nobody would hear of the requests that it answers.
    #[error("{balancer} sends its access log to {address}, where the broker cannot listen")]
    Log {
        /// Which.
        balancer: String,
        /// Where.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It refused.
    #[error("{balancer} refused {command:?}: {answer}")]
    Refused {
        /// Which.
        balancer: String,
        /// What it was told.
        command: String,
        /// What it said.
        answer: String,
    },
    /// What it works on takes as long as it takes.
    #[error("{balancer} cannot end requests")]
    CannotEnd {
        /// Which.
        balancer: String,
    },
    /// What it was made to do did not succeed, and is tried again in a while.
    #[error("{why}; tried again in {seconds} s")]
    Paused {
        /// What came of it, of which balancer.
        why: String,
        /// In so many.
        seconds: u64,
    },
    /// It said something that makes no sense.
    #[error("{balancer} answered {command:?} with something else: {problem}")]
    Unexpected {
        /// Which.
        balancer: String,
        /// What it was asked.
        command: String,
        /// What is wrong.
        problem: String,
    },
    /// A node does not stand in its configuration.
    #[error("{balancer} has no server {server:?}; it has {there}")]
    UnknownServer {
        /// Which.
        balancer: String,
        /// The node.
        server: String,
        /// Those that it has.
        there: String,
    },
}

impl BalancerError {
    /// Whether the same may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Ended { .. } | Self::Paused { .. })
    }
}
