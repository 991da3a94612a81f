//! The one interface of all policies, and their names.

use crate::holdings::Holdings;
use crate::keeptime::Keeptime;
use crate::load::Loads;
use crate::plan::Plan;
use crate::pool::Pool;
use crate::reconf::{Differentiation, Reconf};
use keeptime_model::units::Nanos;
use std::fmt;

/// All that a policy decides from.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Now, by the steady clock.
    pub now: Nanos,
    /// What there is.
    pub pool: &'a Pool,
    /// Who holds what.
    pub holdings: &'a Holdings,
    /// What was seen since the last decision.
    pub loads: &'a Loads,
}

/// Decides which nodes move. It may remember what it saw; it is asked at regular intervals.
pub trait Policy: fmt::Debug + Send {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Plans for nodes that are movable, each in one plan at most.
    fn plans(&mut self, view: &View<'_>) -> Vec<Plan>;
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Nothing moves.
    Rigid,
    /// The paper's basic reconfiguration: by load alone.
    Reconf,
    /// The paper's with priorities.
    ReconfP,
    /// The paper's with priorities and guarantees.
    ReconfPq,
    /// Ours.
    Keeptime,
}

/// Nodes stay where they were put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rigid;

impl Policy for Rigid {
    fn name(&self) -> &'static str {
        "rigid"
    }

    fn plans(&mut self, _: &View<'_>) -> Vec<Plan> {
        Vec::new()
    }
}

impl PolicyKind {
    /// A policy of this kind that has seen nothing yet.
    pub fn policy(self) -> Box<dyn Policy> {
        let reconf =
            |differentiation| -> Box<dyn Policy> { Box::new(Reconf::new(differentiation)) };
        match self {
            Self::Rigid => Box::new(Rigid),
            Self::Reconf => reconf(Differentiation::None),
            Self::ReconfP => reconf(Differentiation::Priority),
            Self::ReconfPq => reconf(Differentiation::PriorityAndGuarantees),
            Self::Keeptime => Box::new(Keeptime::default()),
        }
    }
}

keeptime_model::named!(
    PolicyKind, "policy", one_of:
    Rigid "rigid",
    Reconf "reconf",
    ReconfP "reconf-p",
    ReconfPq "reconf-pq",
    Keeptime "keeptime",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_policies_have_them() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.policy().name(), kind.as_str());
        }
        assert!("knative".parse::<PolicyKind>().unwrap_err().expected.contains("reconf-pq"));
    }
}
