//! Whose the name of each context is: that of whoever had it first, on all nodes, and for a moment after it has ended.

use super::SILENCE_MOST;
use crate::directory::protocol::ContextInfo;
use crate::id::ContextId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// All contexts of the cluster.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    open: BTreeMap<ContextId, OpenContext>,
    /// Whose contexts were that have ended, and until when no other user has the name of one.
    ended: BTreeMap<ContextId, (Precedence, Duration)>,
}

/// A context, and since when it is its user's.
#[derive(Debug, Clone)]
pub(super) struct OpenContext {
    pub info: Arc<ContextInfo>,
    pub since: Duration,
}

/// Who had a name first, which all servers find alike: less is before. Two users have no name at the same moment but by a
/// chance that somebody has to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    since: Duration,
    owner: u32,
}

impl Contexts {
    /// That of this name.
    pub(super) fn get(&self, id: ContextId) -> Option<&OpenContext> {
        self.open.get(&id)
    }

    /// Where the resources of a context live that is open.
    pub(super) fn home(&self, id: ContextId) -> Arc<ContextInfo> {
        self.open[&id].info.clone()
    }

    /// Whether a program of this node may have that context: nobody has one of that name, and no other user had a moment ago, but
    /// who came later than its claim says. Without a claim it comes now, whatever the clocks of others say.
    ///
    /// # Errors
    /// If it may not: why.
    pub(super) fn may_open(&self, opened: &OpenContext, is_claimed: bool) -> Result<(), String> {
        let (id, own) = (opened.info.id, opened.precedence());
        let is_later = |before: Precedence| is_claimed && own < before;
        if self.open.get(&id).is_some_and(|before| !is_later(before.precedence())) {
            return Err(format!("context {id} is open already"));
        }
        match self.ended.get(&id) {
            Some((before, _)) if before.owner != own.owner && !is_later(*before) => {
                Err(format!("context {id} was another user's a moment ago"))
            }
            _ => Ok(()),
        }
    }

    /// A context is open. That of its name before it, if it replaces one.
    pub(super) fn insert(&mut self, opened: OpenContext) -> Option<OpenContext> {
        self.open.insert(opened.info.id, opened)
    }

    /// A context has lost its name to another.
    pub(super) fn remove(&mut self, id: ContextId) {
        self.open.remove(&id);
    }

    /// A context has ended. Its name is no other user's for a while, in which it may still be called by it.
    pub(super) fn end(&mut self, id: ContextId, now: Duration) {
        if let Some(ended) = self.open.remove(&id) {
            self.ended.insert(id, (ended.precedence(), now.saturating_add(SILENCE_MOST)));
        }
    }

    /// Names are anybody's that have ended long enough ago.
    pub(super) fn forget_ended(&mut self, now: Duration) {
        self.ended.retain(|_, (_, until)| *until > now);
    }
}

impl OpenContext {
    pub(super) fn precedence(&self) -> Precedence {
        Precedence { since: self.since, owner: self.info.owner }
    }
}

#[cfg(test)]
mod tests;
