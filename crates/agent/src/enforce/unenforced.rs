//! A node without enforcement: it keeps and tells what it was assigned.

use crate::enforcer::{BindError, Enforcer, Failures, Scope};
use keeptime_model::assignment::Assignment;
use keeptime_model::capability::Capabilities;
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::name::Name;
use std::collections::{BTreeMap, BTreeSet};

/// A node on which nothing can be enforced: assignments are kept and told, and no more.
#[derive(Debug, Clone)]
pub struct Unenforced {
    /// Why.
    pub reason: String,
    /// What was found out; nothing = it is not asked to enforce anything, so that nobody is misled.
    pub capabilities: Option<Capabilities>,
}

impl Enforcer for Unenforced {
    fn reconcile(&mut self, _: &BTreeMap<Name, Assignment>, _: &Scope) -> Result<(), Failures> {
        Ok(())
    }

    fn enforced(&self) -> BTreeSet<Name> {
        BTreeSet::new()
    }

    fn bind(&mut self, _: &Name, _: &[u32], _: Option<u32>) -> Result<(), BindError> {
        Err(self.refusal())
    }

    fn bind_flow(
        &mut self,
        _: &Assignment,
        _: &ConnectionPattern,
        _: Option<u32>,
    ) -> Result<(), BindError> {
        Err(self.refusal())
    }

    fn capabilities(&self) -> Option<&Capabilities> {
        self.capabilities.as_ref()
    }

    fn not_enforced(&self) -> Vec<String> {
        vec![format!("CPU and bandwidth of jobs: {}", self.reason)]
    }
}

impl Unenforced {
    fn refusal(&self) -> BindError {
        BindError::Refused(format!("this node enforces nothing: {}", self.reason))
    }
}
