//! The agent without its socket: a request or the passing of time comes in, the kernel is made to
//! agree, an answer goes out. The clock is an argument.

mod agreement;
mod members;
mod requester;
mod restraints;
mod status;
#[cfg(test)]
pub(crate) mod testing;

pub use requester::Requester;

use crate::book::{Book, Capacity, Come};
use crate::enforcer::{BindError, Enforcer};
use crate::programs::Programs;
use crate::store::{Store, StoreError};
use crate::wire::{Request, Response};
use keeptime_model::assignment::Assignment;
use keeptime_model::capability::{Capabilities, Guarantee};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use restraints::Restraints;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One node's agent.
#[derive(Debug)]
pub struct Agent<E> {
    node: Name,
    capacity: Capacity,
    book: Book,
    /// Whether the record says what the book does.
    is_recorded: bool,
    store: Store,
    enforcer: E,
    programs: Arc<Programs>,
    restraints: Restraints,
    since: WallTime,
    /// The time that was told last. Clocks are set back, too.
    now: WallTime,
    come: Come,
    /// What the kernel was made to enforce, without what it may not do of that.
    agreed: BTreeMap<Name, Assignment>,
}

impl<E: Enforcer> Agent<E> {
    /// Starts from what was saved: adopts what the kernel still enforces, removes what is over or
    /// was never asked for.
    ///
    /// # Errors
    /// If the record cannot be read, or is not there while jobs are enforced. That the kernel does not agree yet is repaired by
    /// [`Self::tick`].
    pub fn start(
        node: Name,
        capacity: Capacity,
        store: Store,
        enforcer: E,
        now: WallTime,
    ) -> Result<Self, StoreError> {
        // What the kernel enforces had begun for the agent before this one.
        let enforced = enforcer.enforced();
        let book = store.load_beside(&enforced)?;
        let (programs, restraints, agreed) = Default::default();
        let begun = book.assignments().values().filter(|a| enforced.contains(&a.job));
        let begun = begun.map(|a| (a.job.clone(), a.from_unix_nanos)).collect();
        let mut agent = Self {
            node,
            capacity,
            book,
            is_recorded: true,
            store,
            enforcer,
            programs,
            restraints,
            since: now,
            now,
            come: Come { begun, ..Come::default() },
            agreed,
        };
        // An error stays visible: `tick` meets it again, and the caller of `tick` reports it.
        let _ = agent.tick(now);
        Ok(agent)
    }

    /// The node.
    pub fn node(&self) -> &Name {
        &self.node
    }

    /// What MPI programs here ask for.
    pub fn programs(&self) -> &Arc<Programs> {
        &self.programs
    }

    /// What it was assigned.
    pub fn assignments(&self) -> impl Iterator<Item = &Assignment> {
        self.book.assignments().values()
    }

    /// What this node cannot enforce, and why: a sentence each.
    pub fn not_enforced(&self) -> Vec<String> {
        self.enforcer.not_enforced()
    }

    /// What it refuses, since it could not enforce it.
    pub fn refused(&self) -> BTreeSet<Guarantee> {
        let missing = self.capacity.capabilities.iter().flat_map(Capabilities::missing);
        missing.map(|unmet| unmet.asked).collect()
    }

    /// Answers one request at `now`.
    pub fn answer(&mut self, request: Request, requester: &Requester, now: WallTime) -> Response {
        self.now = now;
        if let Err(reason) = self.may_ask(&request, requester) {
            return Response::Refused { reason };
        }
        let turned = match request {
            Request::Status => return Response::Status(self.status()),
            Request::Job { job } => {
                let told = self.job_status(&job).map(|status| Response::Job(Box::new(status)));
                return Self::answer_about(job, told);
            }
            Request::Used { job } => {
                let told = self.cpu_used(&job).map(Response::Used);
                return Self::answer_about(job, told);
            }
            Request::Mpi(_)
            | Request::MpiProgress { .. }
            | Request::Start { .. }
            | Request::Restrain { .. } => {
                let reason = "a program asks on a connection of its own".into();
                return Response::Refused { reason };
            }
            Request::Bind { job, processes } => {
                return self.bind(&job, processes, requester.user_id());
            }
            Request::BindFlow { job, flow } => {
                return self.bind_flow(&job, &flow, requester.user_id());
            }
            Request::Enforce(assignment) => {
                if let Err(error) = self.check(&assignment) {
                    return error.into();
                }
                let job = assignment.job.clone();
                let book = self.book.with(assignment, &self.capacity, now);
                book.map(|book| self.turn_to(book, &job))
            }
            Request::Renew { job, until_unix_nanos } => self
                .book
                .renewed(&job, until_unix_nanos, &self.capacity, now)
                .map(|book| self.remember(book)),
            Request::Withdraw { job } => Ok(self.give_back(&job)),
        };
        match turned {
            Ok(Ok(())) => Response::Done,
            Ok(Err(error)) => Response::Failed { error: chain(error.as_ref()) },
            Err(refusal) => Response::Refused { reason: refusal.to_string() },
        }
    }

    /// What begins now is checked; what goes on is not: a service may be starting anew.
    fn check(&self, assignment: &Assignment) -> Result<(), BindError> {
        let former = self.book.assignments().get(&assignment.job);
        let goes_on = former.is_some_and(|former| former.services == assignment.services);
        match goes_on || !assignment.is_due(self.now) {
            true => Ok(()),
            false => self.enforcer.check(assignment),
        }
    }
}

impl From<BindError> for Response {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Refused(reason) => Self::Refused { reason },
            BindError::Failed(error) => Self::Failed { error: chain(error.as_ref()) },
        }
    }
}
