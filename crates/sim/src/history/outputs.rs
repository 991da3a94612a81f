//! Whether what the broker decides and says may be.

use super::resources::cpu_of_rank;
use super::{History, ensure};
use crate::Violation;
use keeptime_engine::{Answer, Call, CallError, Caller, Event, Step};
use keeptime_model::assignment::{Assignment, TrafficClass};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Grant, Handle, State};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};

impl History {
    /// An answer leaves: what it says is durable.
    ///
    /// # Errors
    /// If it is not, or it is not an answer to that question.
    pub fn answered(
        &self,
        caller: &Caller,
        call: &Call,
        answer: &Result<Answer, Box<CallError>>,
    ) -> Result<(), Violation> {
        let wrong = |what: &str| Err(Violation(format!("{what}: {call:?} got {answer:?}")));
        let recorded = |handle: &Handle| self.reservations.get(handle);
        match answer.as_ref().map_err(|error| &**error) {
            Ok(Answer::Reservation(told)) => {
                if recorded(&told.handle) != Some(&**told) {
                    return wrong("an answer that is not what is recorded");
                }
                match call {
                    Call::Reserve { key, request } => {
                        let is_it = told.owner == caller.user && told.key == *key;
                        if !is_it || self.original(told) != request {
                            return wrong("an answer about something else");
                        }
                    }
                    Call::Modify { handle, .. }
                    | Call::Correct { handle, .. }
                    | Call::Extend { handle, .. }
                    | Call::Cancel { handle }
                    | Call::Finish { handle, .. }
                    | Call::Spare { handle }
                        if told.handle == *handle => {}
                    Call::Move { handle } if told.replaces == Some(*handle) => {}
                    _ => return wrong("an answer about something else"),
                }
            }
            Err(CallError::Refused { handle: Some(handle), refusal })
                if recorded(handle).and_then(|found| found.refusal.as_ref())
                    != Some(&**refusal) =>
            {
                return wrong("a refusal that is not what is recorded");
            }
            Err(CallError::KeyReused { handle, .. }) => {
                if let (Some(found), Call::Reserve { request, .. }) = (recorded(handle), call)
                    && self.original(found) == request
                {
                    return wrong("a request that was sent again is taken for another");
                }
            }
            Err(CallError::NotFound { handle }) if recorded(handle).is_some() => {
                return wrong("a reservation is denied");
            }
            Err(CallError::Over { handle, state })
                if recorded(handle).map(|found| found.state) != Some(*state) || state.is_live() =>
            {
                return wrong("a reservation is said to be over");
            }
            _ => {}
        }
        Ok(())
    }

    /// A decision is made: nothing is granted or changed before all its agents have accepted, and
    /// nodes are lost only when they were silent for a lease's time, or what they shall enforce has
    /// begun and they do not.
    ///
    /// # Errors
    /// If that is not so.
    pub fn decided(
        &self,
        step: &Step,
        silence: impl Fn(NodeIndex) -> Nanos,
    ) -> Result<(), Violation> {
        for event in &step.events {
            let may_be = match event {
                Event::Granted { handle, granted } => {
                    let (from, until) = (granted.from_unix_nanos, granted.until_unix_nanos);
                    self.check_accepted(step.time, *handle, &granted.grant, from, until)
                }
                Event::Modified { handle, modified } => {
                    let (from, until) = (modified.from_unix_nanos, modified.until_unix_nanos);
                    self.check_accepted(step.time, *handle, &modified.grant, from, until)
                }
                Event::Lost { handle, node, .. } => self.check_lost(*handle, node, &silence),
                _ => Ok(()),
            };
            may_be.map_err(|what| Violation(format!("{what}: {event:?}")))?;
        }
        Ok(())
    }

    pub(super) fn check_lost(
        &self,
        handle: Handle,
        node: &Name,
        silence: impl Fn(NodeIndex) -> Nanos,
    ) -> Result<(), String> {
        let found = self.reservations.get(&handle);
        let has_begun = found.is_none_or(|found| found.state == State::Active);
        let node = self.names.get(node).copied().ok_or("an unknown node")?;
        let was_gone = silence(node) >= self.policy.agent_lease_nanos;
        ensure(!self.agents_are_well, "no agent has a reason to be gone")?;
        ensure(was_gone || !has_begun, "the node was not silent for so long")
    }

    /// Every agent has said that it enforces its part, if its time is near.
    pub(super) fn check_accepted(
        &self,
        time: WallTime,
        handle: Handle,
        grant: &Grant,
        from: WallTime,
        until: Option<WallTime>,
    ) -> Result<(), String> {
        if from > time.saturating_add(self.policy.tell_ahead_nanos) {
            return Ok(());
        }
        let ranks = grant.nodes.len() as u32;
        let flows = grant.pattern.as_ref().map(|pattern| pattern.flows(ranks));
        let flows = flows.transpose().map_err(|invalid| invalid.to_string())?.unwrap_or_default();
        let end = until.unwrap_or(WallTime::from_unix_nanos(u64::MAX));
        for (rank, name) in (0..).zip(&grant.nodes) {
            let node = self.names.get(name).copied().ok_or("an unknown node")?;
            let accepted = self.truth.accepted.get(&(handle, node));
            let of_pattern = flows.iter().filter(|flow| flow.from == rank);
            let beside = grant.extension.premium().filter(|flow| flow.from == rank);
            let mut rates: Vec<_> = of_pattern.map(|_| grant.bits_per_second).collect();
            rates.extend(beside.map(|flow| flow.bits_per_second));
            rates.sort();
            let is_part = |assignment: &&Assignment| {
                let premium = assignment.flows.iter().filter(|f| f.class == TrafficClass::Premium);
                let mut told: Vec<_> = premium.map(|flow| flow.bits_per_second).collect();
                told.sort();
                let own = cpu_of_rank(grant, rank as usize);
                assignment.cpu_ppm == own.max(grant.extension.cpu_ppm)
                    && assignment.later == grant.later_beside(assignment.cpu_ppm)
                    && assignment.until_unix_nanos == end
                    && told == rates
            };
            if accepted.filter(is_part).is_none() {
                return Err(format!("the agent of {name} has not accepted that"));
            }
        }
        Ok(())
    }
}
