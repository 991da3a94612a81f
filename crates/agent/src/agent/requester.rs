//! Who asks, and what they may ask for.

use super::Agent;
use crate::wire::Request;
use keeptime_model::name::Name;
use keeptime_model::reservation::UserName;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requester {
    /// Root, the agent's own user, or the broker: may ask for everything.
    Trusted,
    /// Anybody else may bind what is theirs to jobs that are theirs.
    User {
        /// The user at the other end of the socket.
        id: u32,
        /// As reservations name that user.
        name: UserName,
    },
}

impl Requester {
    /// Whose processes may be bound; nothing = everybody's.
    pub(crate) fn user_id(&self) -> Option<u32> {
        match self {
            Self::Trusted => None,
            Self::User { id, .. } => Some(*id),
        }
    }
}

impl<E> Agent<E> {
    pub(super) fn may_ask(&self, request: &Request, requester: &Requester) -> Result<(), String> {
        let Requester::User { name, .. } = requester else { return Ok(()) };
        let (Request::Bind { job, .. }
        | Request::BindFlow { job, .. }
        | Request::Job { job }
        | Request::Used { job }) = request
        else {
            return Err("only root and the agent's own user may ask for that".into());
        };
        self.check_of(job, name)
    }

    pub(super) fn check_of(&self, job: &Name, name: &UserName) -> Result<(), String> {
        let assigned = self.book.assignments().get(job);
        if assigned.is_some_and(|assignment| assignment.owner.as_ref() == Some(name)) {
            return Ok(());
        }
        // Not said apart: nobody learns of jobs of others.
        Err(format!("no job {job} of {name} is assigned here"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeKernel, ROOT, assignment, at, start};
    use super::*;
    use crate::wire::Response;
    use keeptime_model::assignment::Assignment;

    #[test]
    fn other_users_bind_to_their_own_jobs_and_do_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let theirs = Assignment { owner: Some("ada".parse().unwrap()), ..assignment("theirs", 9) };
        let user = &Requester::User { id: 7, name: "ada".parse().unwrap() };
        for wanted in [theirs.clone(), assignment("nobodys", 9)] {
            assert_eq!(agent.answer(Request::Enforce(wanted), ROOT, at(1)), Response::Done);
        }
        let flow = "10.0.0.2".parse().unwrap();
        let job = || "theirs".parse().unwrap();
        let bind = Request::Bind { job: job(), processes: vec![9] };
        assert_eq!(agent.answer(bind, user, at(1)), Response::Done);
        assert_eq!(
            agent.answer(Request::BindFlow { job: job(), flow }, user, at(1)),
            Response::Done
        );
        assert_eq!(agent.enforcer.1, [(job(), vec![9], Some(7)), (job(), vec![], Some(7))]);
        let refused = [
            Request::Bind { job: "nobodys".parse().unwrap(), processes: vec![9] },
            Request::Bind { job: "away".parse().unwrap(), processes: vec![9] },
            Request::Bind { job: job(), processes: vec![1] },
            Request::Enforce(theirs),
            Request::Withdraw { job: job() },
            Request::Status,
        ];
        for request in refused {
            let answer = agent.answer(request.clone(), user, at(1));
            assert!(matches!(answer, Response::Refused { .. }), "{request:?}: {answer:?}");
        }
        assert_eq!(agent.enforcer.0.len(), 2);
    }
}
