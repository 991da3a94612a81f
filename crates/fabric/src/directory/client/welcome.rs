//! What the server says of this program as a whole: that it is taken in, or why it is not.

use super::asking::{DirectoryError, answer_by};
use super::state::Shared;
use crate::door::{Claim, ContextKey};

/// What the server has said of this program.
#[derive(Debug, Clone)]
pub struct Welcome {
    /// The name of its node.
    pub node: String,
    /// Its user.
    pub owner: u32,
    /// What its callers are known by; none if everybody is to be believed.
    pub key: Option<ContextKey>,
    /// What the next server is shown; none if daemons have no key.
    pub claim: Option<Claim>,
}

/// How this program stands with its servers.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// What the last one has said that took it in.
    welcome: Option<Welcome>,
    /// Why it was refused, if it was since then.
    refusal: Option<String>,
}

impl Shared {
    /// Waits until the server has taken this program in.
    pub(super) fn welcome(&self) -> Result<(), DirectoryError> {
        self.wait_until(answer_by(None), |state| match &state.standing.refusal {
            Some(why) => Some(Err(DirectoryError::Refused(why.clone()))),
            None => state.standing.welcome.as_ref().map(|_| Ok(())),
        })
    }
}

impl Standing {
    /// A server has taken it in.
    pub(super) fn welcomed(&mut self, welcome: Welcome) {
        self.welcome = Some(welcome);
        self.refusal = None;
    }

    /// A server has not.
    pub(super) fn refused(&mut self, why: String) {
        self.refusal = Some(why);
    }

    /// What the last server has said that has taken it in.
    pub(super) fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    /// Why nothing is answered: it is refused as a whole, or nobody says.
    pub(super) fn silence(&self) -> DirectoryError {
        self.refusal.clone().map_or(DirectoryError::Silent, DirectoryError::Refused)
    }
}
