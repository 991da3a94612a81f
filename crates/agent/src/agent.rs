//! The agent without its socket: a request or the passing of time comes in, the kernel is made to
//! agree, an answer goes out. The clock is an argument.

use crate::book::{Book, Capacity};
use crate::store::{Store, StoreError};
use crate::wire::{JobStatus, Request, Response, Status};
use keeptime_model::assignment::Assignment;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use std::collections::BTreeMap;
use std::error::Error;

/// What makes the kernel agree with the book: the one thing here that needs privilege.
pub trait Enforcer: Send {
    /// Makes the node enforce exactly `wanted`: what is missing is added, what differs is changed
    /// in place, what is ours and not wanted is ended. Idempotent.
    ///
    /// # Errors
    /// If the kernel refuses; part of it may be done then.
    fn reconcile(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError>;

    /// What the kernel counts for one job.
    fn measure(&mut self, assignment: &Assignment) -> JobStatus;

    /// What this node cannot enforce, and why: a sentence each.
    fn not_enforced(&self) -> Vec<String>;
}

/// Any error of an enforcer.
pub type BoxedError = Box<dyn Error + Send + Sync>;

/// One node's agent.
#[derive(Debug)]
pub struct Agent<E> {
    node: Name,
    capacity: Capacity,
    book: Book,
    store: Store,
    enforcer: E,
    since: WallTime,
}

impl<E: Enforcer> Agent<E> {
    /// Starts from what was saved: adopts what the kernel still enforces, removes what is over or
    /// was never asked for.
    ///
    /// # Errors
    /// If the record cannot be read. That the kernel does not agree yet is repaired by [`Self::tick`].
    pub fn start(
        node: Name,
        capacity: Capacity,
        store: Store,
        enforcer: E,
        now: WallTime,
    ) -> Result<Self, StoreError> {
        let book = store.load()?;
        let mut agent = Self { node, capacity, book, store, enforcer, since: now };
        // An error stays visible: `tick` meets it again, and the caller of `tick` reports it.
        let _ = agent.tick(now);
        Ok(agent)
    }

    /// The node.
    pub fn node(&self) -> &Name {
        &self.node
    }

    /// What it was assigned.
    pub fn assignments(&self) -> impl Iterator<Item = &Assignment> {
        self.book.assignments().values()
    }

    /// What this node cannot enforce, and why: a sentence each.
    pub fn not_enforced(&self) -> Vec<String> {
        self.enforcer.not_enforced()
    }

    /// Answers one request at `now`.
    pub fn answer(&mut self, request: Request, now: WallTime) -> Response {
        let turned = match request {
            Request::Status => return Response::Status(self.status()),
            Request::Enforce(assignment) => {
                self.book.with(assignment, self.capacity, now).map(|book| self.turn_to(book))
            }
            Request::Renew { job, until_unix_nanos } => {
                self.book.renewed(&job, until_unix_nanos).map(|book| self.remember(book))
            }
            Request::Withdraw { job } => Ok(self.give_back(&job)),
        };
        match turned {
            Ok(Ok(())) => Response::Done,
            Ok(Err(error)) => Response::Failed { error: chain(error.as_ref()) },
            Err(refusal) => Response::Refused { reason: refusal.to_string() },
        }
    }

    /// Ends what is over at `now` and repairs what somebody else changed in the kernel.
    ///
    /// # Errors
    /// If the kernel or the record refuses; the next tick tries again.
    pub fn tick(&mut self, now: WallTime) -> Result<(), BoxedError> {
        let over = self.book.expired(now);
        let book = over.iter().fold(self.book.clone(), |book, job| book.without(job));
        if !over.is_empty() {
            self.remember(book)?;
        }
        self.enforcer.reconcile(self.book.assignments())
    }

    /// Records `book`, which a restarted agent would start from.
    fn remember(&mut self, book: Book) -> Result<(), BoxedError> {
        self.store.save(&book)?;
        self.book = book;
        Ok(())
    }

    /// Records `book`, then makes the kernel agree; goes back to the former one if it does not.
    fn turn_to(&mut self, book: Book) -> Result<(), BoxedError> {
        let former = self.book.clone();
        self.remember(book)?;
        let Err(error) = self.enforcer.reconcile(self.book.assignments()) else { return Ok(()) };
        self.remember(former)?;
        self.enforcer.reconcile(self.book.assignments())?;
        Err(error)
    }

    /// Records that `job` is given back, then makes the kernel agree. If it does not, the next tick
    /// tries again: whoever gave it back counts on it, and takes no notice of the answer.
    fn give_back(&mut self, job: &Name) -> Result<(), BoxedError> {
        self.remember(self.book.without(job))?;
        self.enforcer.reconcile(self.book.assignments())
    }

    fn status(&mut self) -> Status {
        let jobs = self.book.assignments().values();
        let jobs = jobs.map(|assignment| self.enforcer.measure(assignment)).collect();
        Status {
            node: self.node.clone(),
            process: std::process::id(),
            since_unix_nanos: self.since,
            cpu_ppm: self.capacity.cpu,
            jobs,
            not_enforced: self.enforcer.not_enforced(),
        }
    }
}

/// An error with its causes, outermost first.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
    use tempfile::TempDir;

    /// A kernel that holds a set of jobs and refuses those whose names start with `bad`.
    #[derive(Debug, Default)]
    struct FakeKernel(BTreeMap<Name, Assignment>);

    impl Enforcer for FakeKernel {
        fn reconcile(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError> {
            self.0.retain(|job, _| wanted.contains_key(job));
            for (job, assignment) in wanted {
                if job.as_str().starts_with("bad") {
                    return Err(format!("no room for {job}").into());
                }
                self.0.insert(job.clone(), assignment.clone());
            }
            Ok(())
        }

        fn measure(&mut self, assignment: &Assignment) -> JobStatus {
            JobStatus {
                assignment: assignment.clone(),
                processes: vec![],
                cpu_used_nanos: Nanos::new(0),
                flows: vec![],
            }
        }

        fn not_enforced(&self) -> Vec<String> {
            vec![]
        }
    }

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    fn assignment(job: &str, until: u64) -> Assignment {
        Assignment {
            job: job.parse().unwrap(),
            cpu_ppm: CpuPpm::from_percent(10),
            flows: vec![],
            until_unix_nanos: at(until),
        }
    }

    fn start(directory: &TempDir, kernel: FakeKernel, now: u64) -> Agent<FakeKernel> {
        let capacity =
            Capacity { cpu: CpuPpm::from_percent(40), reservable: BitsPerSecond::from_mbit(190) };
        let store = Store::at(&directory.path().join("assignments.json"));
        Agent::start("n1".parse().unwrap(), capacity, store, kernel, at(now)).unwrap()
    }

    #[test]
    fn what_the_kernel_refuses_leaves_everything_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), at(1)), Response::Done);
        let answer = agent.answer(Request::Enforce(assignment("bad", 9)), at(1));
        assert_eq!(answer, Response::Failed { error: "no room for bad".into() });
        let names: Vec<_> = agent.enforcer.0.keys().map(Name::to_string).collect();
        assert_eq!(names, ["a"]);
        assert_eq!(agent.store.load().unwrap(), agent.book);
    }

    #[test]
    fn a_restarted_agent_adopts_what_lasts_and_removes_what_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        for (job, until) in [("lasts", 9), ("over", 4)] {
            assert_eq!(
                agent.answer(Request::Enforce(assignment(job, until)), at(1)),
                Response::Done
            );
        }
        // The process is gone; the kernel still holds both jobs and one that nobody asked for.
        let mut kernel = agent.enforcer;
        kernel.0.insert("stray".parse().unwrap(), assignment("stray", 99));
        let agent = start(&directory, kernel, 5);
        let names: Vec<_> = agent.enforcer.0.keys().map(Name::to_string).collect();
        assert_eq!(names, ["lasts"]);
    }

    #[test]
    fn time_ends_jobs_and_a_clock_set_back_ends_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 100);
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 110)), at(100)), Response::Done);
        agent.tick(at(10)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        let renew = Request::Renew { job: "a".parse().unwrap(), until_unix_nanos: at(120) };
        assert_eq!(agent.answer(renew, at(105)), Response::Done);
        agent.tick(at(119)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        agent.tick(at(120)).unwrap();
        assert!(agent.enforcer.0.is_empty());
    }

    /// Found by simulation: the broker takes what was withdrawn to be free, whatever it is answered.
    #[test]
    fn what_was_given_back_is_not_taken_up_again_when_the_kernel_fails() {
        let directory = tempfile::tempdir().unwrap();
        let agent = start(&directory, FakeKernel::default(), 1);
        let both = ["a", "bad"].into_iter().fold(Book::default(), |book, job| {
            book.with(assignment(job, 9), agent.capacity, at(1)).unwrap()
        });
        agent.store.save(&both).unwrap();
        let mut agent = start(&directory, agent.enforcer, 1);
        let answer = agent.answer(Request::Withdraw { job: "a".parse().unwrap() }, at(1));
        assert!(matches!(answer, Response::Failed { .. }), "{answer:?}");
        let left: Vec<_> = agent.assignments().map(|left| left.job.to_string()).collect();
        assert_eq!(left, ["bad"]);
        assert_eq!(agent.store.load().unwrap(), agent.book);
    }

    #[test]
    fn withdrawing_twice_is_no_error_and_renewing_the_unknown_is() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let job: Name = "a".parse().unwrap();
        assert_eq!(agent.answer(Request::Withdraw { job: job.clone() }, at(1)), Response::Done);
        let renew = Request::Renew { job, until_unix_nanos: at(9) };
        let Response::Refused { reason } = agent.answer(renew, at(1)) else { panic!() };
        assert_eq!(reason, "no job a is assigned here");
    }
}
