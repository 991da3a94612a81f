//! The agent without its socket: a request or the passing of time comes in, the kernel is made to
//! agree, an answer goes out. The clock is an argument.

use crate::book::{Book, Capacity, Refusal};
use crate::enforcer::{BindError, BoxedError, Enforcer, Failures};
use crate::programs::Programs;
use crate::store::{Store, StoreError};
use crate::wire::{JobStatus, Place, Request, Response, Status};
use keeptime_linux::started::Started;
use keeptime_model::assignment::Assignment;
use keeptime_model::capability::{Capabilities, Guarantee};
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::reservation::UserName;
use keeptime_model::units::{CpuPpm, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    fn user_id(&self) -> Option<u32> {
        match self {
            Self::Trusted => None,
            Self::User { id, .. } => Some(*id),
        }
    }
}

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
    /// The CPU that jobs use at most, where that is less than they were assigned. Not recorded: they have
    /// all of it when in doubt.
    restrained: BTreeMap<Name, CpuPpm>,
    since: WallTime,
    /// The time that was told last. Clocks are set back, too.
    now: WallTime,
    /// The jobs that have begun, and when they were to: they do not end because a clock was set back.
    beginnings: BTreeMap<Name, WallTime>,
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
        let (programs, restrained) = Default::default();
        // What the kernel enforces had begun for the agent before this one.
        let enforced = enforcer.enforced();
        let begun = book.assignments().values().filter(|a| enforced.contains(&a.job));
        let beginnings = begun.map(|a| (a.job.clone(), a.from_unix_nanos)).collect();
        let mut agent = Self {
            node,
            capacity,
            book,
            is_recorded: true,
            store,
            enforcer,
            programs,
            restrained,
            since: now,
            now,
            beginnings,
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

    /// The job that a process speaks for: the one that it names, if that is its user's, or else the
    /// one whose groups it is in.
    ///
    /// # Errors
    /// Why there is none, in the user's words.
    pub fn job_for(
        &self,
        named: Option<Name>,
        process: i32,
        requester: &Requester,
    ) -> Result<Name, String> {
        let Some(job) = named else {
            let found = self.enforcer.job_of(process);
            return found.ok_or_else(|| format!("process {process} belongs to no job"));
        };
        match requester {
            Requester::User { name, .. } => self.check_of(&job, name)?,
            Requester::Trusted if self.book.assignments().contains_key(&job) => {}
            Requester::Trusted => return Err(format!("no job {job} is assigned here")),
        }
        Ok(job)
    }

    /// Counts a process, with all that it starts from now on, to a job as a command of its own.
    ///
    /// # Errors
    /// If the requester may not, the job has not begun, or the kernel refuses.
    pub fn start_command(
        &mut self,
        job: &Name,
        process: i32,
        requester: &Requester,
        now: WallTime,
    ) -> Result<(Place, Option<Started>), BindError> {
        self.now = now;
        if let Requester::User { name, .. } = requester {
            self.check_of(job, name).map_err(BindError::Refused)?;
        }
        self.begun(job)?;
        let started = self.enforcer.start(job, process, requester.user_id())?;
        // It has the job's schedule at once.
        self.reconcile_for(job).map_err(BindError::Failed)?;
        let device = self.enforcer.device().map(str::to_owned);
        Ok((Place { node: self.node.clone(), device }, started))
    }

    /// Ends a command of a job with all that it started.
    ///
    /// # Errors
    /// If something does not end at once; asked again, it may have.
    pub fn end_command(&mut self, job: &Name, command: &Started) -> Result<(), BoxedError> {
        self.enforcer.end(job, command)
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
                return self.told_of(&job, |agent, assignment| {
                    Response::Job(Box::new(agent.job_status(assignment)))
                });
            }
            Request::Used { job } => {
                let used = |agent: &mut Self, assignment: &Assignment| {
                    Response::Used(agent.enforcer.cpu_used(assignment))
                };
                return self.told_of(&job, used);
            }
            Request::Mpi(_) | Request::MpiProgress { .. } | Request::Start { .. } => {
                let reason = "a program asks on a connection of its own".into();
                return Response::Refused { reason };
            }
            Request::Bind { job, processes } => {
                return self.bind(&job, processes, requester.user_id());
            }
            Request::BindFlow { job, flow } => {
                return self.bind_flow(&job, &flow, requester.user_id());
            }
            Request::Restrain { job, cpu_ppm } => return self.restrain(job, cpu_ppm),
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

    /// Begins what is due at `now`, ends what is over and repairs what somebody else changed in the
    /// kernel.
    ///
    /// # Errors
    /// If the kernel or the record refuses; the next tick tries again.
    pub fn tick(&mut self, now: WallTime) -> Result<(), BoxedError> {
        self.now = now;
        for job in self.book.expired(now) {
            self.drop_from_book(&job);
        }
        self.programs.retain(|job| self.book.assignments().contains_key(job));
        self.restrained.retain(|job, _| self.book.assignments().contains_key(job));
        // The kernel waits for no disk.
        let recorded = self.record();
        self.reconcile().map_err(BoxedError::from).and(recorded)
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

    fn may_ask(&self, request: &Request, requester: &Requester) -> Result<(), String> {
        let Requester::User { name, .. } = requester else { return Ok(()) };
        let (Request::Bind { job, .. }
        | Request::BindFlow { job, .. }
        | Request::Job { job }
        | Request::Used { job }
        | Request::Restrain { job, .. }) = request
        else {
            return Err("only root and the agent's own user may ask for that".into());
        };
        self.check_of(job, name)
    }

    fn check_of(&self, job: &Name, name: &UserName) -> Result<(), String> {
        let assigned = self.book.assignments().get(job);
        if assigned.is_some_and(|assignment| assignment.owner.as_ref() == Some(name)) {
            return Ok(());
        }
        // Not said apart: nobody learns of jobs of others.
        Err(format!("no job {job} of {name} is assigned here"))
    }

    fn bind(&mut self, job: &Name, mut processes: Vec<u32>, user: Option<u32>) -> Response {
        processes.sort_unstable();
        processes.dedup();
        if processes.len() > BOUND_MAX {
            let reason = format!("{} processes at once; at most {BOUND_MAX}", processes.len());
            return Response::Refused { reason };
        }
        let bound = self.begun(job).and_then(|_| self.enforcer.bind(job, &processes, user));
        // What was bound has the job's schedule at once.
        let bound = bound.and_then(|()| self.reconcile_for(job).map_err(BindError::Failed));
        response(bound)
    }

    fn bind_flow(&mut self, job: &Name, flow: &ConnectionPattern, user: Option<u32>) -> Response {
        let assignment = self.begun(job);
        response(assignment.and_then(|a| self.enforcer.bind_flow(&a, flow, user)))
    }

    fn restrain(&mut self, job: Name, cpu: CpuPpm) -> Response {
        let assigned = match self.begun(&job) {
            Ok(assignment) => assignment.cpu_ppm,
            Err(error) => return response(Err(error)),
        };
        if cpu.get() == 0 {
            return Response::Refused { reason: format!("cpu: {job} needs more than nothing") };
        }
        let former = match cpu < assigned {
            true => self.restrained.insert(job.clone(), cpu),
            false => self.restrained.remove(&job),
        };
        let Err(error) = self.reconcile_for(&job) else { return Response::Done };
        match former {
            Some(former) => self.restrained.insert(job, former),
            None => self.restrained.remove(&job),
        };
        // The next tick tries again if this does not go back either.
        let _ = self.reconcile();
        Response::Failed { error: chain(error.as_ref()) }
    }

    /// A job that is enforced now.
    fn begun(&self, job: &Name) -> Result<Assignment, BindError> {
        if !self.book.assignments().contains_key(job) {
            return Err(BindError::Refused(Refusal::Unknown { job: job.clone() }.to_string()));
        }
        let not_now = || BindError::Refused(format!("job {job} has not begun, or is over"));
        self.wanted().remove(job).ok_or_else(not_now)
    }

    /// What the kernel is to enforce, without what is restrained.
    fn wanted(&self) -> BTreeMap<Name, Assignment> {
        self.book.wanted(&self.beginnings, &self.capacity, self.now)
    }

    /// Makes the kernel agree with the book. An error is what counts for `job`: what others do not have is in nobody's
    /// way, and told by the next tick.
    fn reconcile_for(&mut self, job: &Name) -> Result<(), BoxedError> {
        let failures = self.reconcile().err();
        failures.and_then(|failures| failures.into_failure_of(job)).map_or(Ok(()), Err)
    }

    /// Makes the kernel agree with the book.
    fn reconcile(&mut self) -> Result<(), Failures> {
        let mut wanted = self.wanted();
        self.beginnings = wanted.values().map(|a| (a.job.clone(), a.from_unix_nanos)).collect();
        for (job, most) in &self.restrained {
            if let Some(assignment) = wanted.get_mut(job) {
                assignment.cpu_ppm = assignment.cpu_ppm.min(*most);
            }
        }
        self.enforcer.reconcile(&wanted)
    }

    /// Has the record say what the book does.
    fn record(&mut self) -> Result<(), BoxedError> {
        if !self.is_recorded {
            self.store.save(&self.book)?;
            self.is_recorded = true;
        }
        Ok(())
    }

    /// Records `book`, which a restarted agent would start from, and turns to it.
    fn remember(&mut self, book: Book) -> Result<(), BoxedError> {
        self.store.save(&book)?;
        (self.book, self.is_recorded) = (book, true);
        Ok(())
    }

    /// A job is no longer there, whether that can be recorded or not: a tick records it when it can.
    fn drop_from_book(&mut self, job: &Name) {
        if self.book.assignments().contains_key(job) {
            (self.book, self.is_recorded) = (self.book.without(job), false);
        }
    }

    /// Records `book`, in which `job` is new or other, then makes the kernel agree; goes back to the former one if it
    /// does not.
    fn turn_to(&mut self, book: Book, job: &Name) -> Result<(), BoxedError> {
        let former = (self.book.clone(), self.beginnings.clone());
        self.remember(book)?;
        let Err(error) = self.reconcile_for(job) else { return Ok(()) };
        (self.book, self.beginnings) = former;
        self.is_recorded = false;
        // What is answered is why the kernel does not; a tick records it when this does not.
        let _ = self.record();
        self.reconcile_for(job)?;
        Err(error)
    }

    /// `job` is given back: that is recorded, and the kernel made to agree. Where either fails, the next
    /// tick tries again: whoever gave it back counts on it, and takes no notice of the answer.
    fn give_back(&mut self, job: &Name) -> Result<(), BoxedError> {
        self.drop_from_book(job);
        let recorded = self.record();
        self.reconcile_for(job).and(recorded)
    }

    /// What `tell` says of a job that is assigned.
    fn told_of(
        &mut self,
        job: &Name,
        tell: impl FnOnce(&mut Self, &Assignment) -> Response,
    ) -> Response {
        match self.book.assignments().get(job).cloned() {
            Some(assignment) => tell(self, &assignment),
            None => Response::Refused { reason: Refusal::Unknown { job: job.clone() }.to_string() },
        }
    }

    fn job_status(&mut self, assignment: &Assignment) -> JobStatus {
        JobStatus {
            progress: self.programs.progress_of(&assignment.job),
            now_unix_nanos: self.now,
            ..self.enforcer.measure(assignment)
        }
    }

    fn status(&mut self) -> Status {
        // What is over and not ended yet is in nobody's way any more.
        let lasting = |a: &&Assignment| self.now < a.until_unix_nanos;
        let jobs: Vec<_> = self.book.assignments().values().filter(lasting).cloned().collect();
        let jobs = jobs.iter().map(|assignment| self.job_status(assignment)).collect();
        Status {
            node: self.node.clone(),
            process: std::process::id(),
            since_unix_nanos: self.since,
            cpu_ppm: self.capacity.cpu,
            disks: self.capacity.disks.clone(),
            capabilities: self.capacity.capabilities.clone(),
            jobs,
            not_enforced: self.enforcer.not_enforced(),
        }
    }
}

fn response(bound: Result<(), BindError>) -> Response {
    bound.map_or_else(Response::from, |()| Response::Done)
}

impl From<BindError> for Response {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Refused(reason) => Self::Refused { reason },
            BindError::Failed(error) => Self::Failed { error: chain(error.as_ref()) },
        }
    }
}

/// Processes that are bound at a time: what a person or a script names one by one. Each is looked at while others
/// wait.
const BOUND_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::{BitsPerSecond, Nanos};
    use keeptime_mpiqos::wire::Progress;
    use std::path::Path;
    use tempfile::TempDir;

    /// A kernel that holds a set of jobs, goes no further at one whose name starts with `bad`, and leaves out those
    /// whose names start with `odd`; and what was bound to which job for whom.
    #[derive(Debug, Default)]
    struct FakeKernel(BTreeMap<Name, Assignment>, Vec<(Name, Vec<u32>, Option<u32>)>);

    impl Enforcer for FakeKernel {
        fn enforced(&self) -> BTreeSet<Name> {
            self.0.keys().cloned().collect()
        }

        fn reconcile(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), Failures> {
            self.0.retain(|job, _| wanted.contains_key(job));
            let mut failures = Failures::default();
            for (job, assignment) in wanted {
                if job.as_str().starts_with("bad") {
                    return Err(BoxedError::from(format!("no room for {job}")).into());
                }
                if job.as_str().starts_with("odd") {
                    failures.note(job, Err(format!("no group for {job}")));
                    continue;
                }
                self.0.insert(job.clone(), assignment.clone());
            }
            failures.into_result()
        }

        fn bind(
            &mut self,
            job: &Name,
            processes: &[u32],
            user: Option<u32>,
        ) -> Result<(), BindError> {
            if processes.contains(&1) {
                return Err(BindError::Refused("process 1 is nobody's".into()));
            }
            self.1.push((job.clone(), processes.to_vec(), user));
            Ok(())
        }

        fn start(
            &mut self,
            job: &Name,
            process: i32,
            user: Option<u32>,
        ) -> Result<Option<Started>, BindError> {
            self.bind(job, &[process as u32], user).map(|()| None)
        }

        fn bind_flow(
            &mut self,
            assignment: &Assignment,
            _flow: &ConnectionPattern,
            user: Option<u32>,
        ) -> Result<(), BindError> {
            self.bind(&assignment.job, &[], user)
        }

        fn capabilities(&self) -> Option<&Capabilities> {
            None
        }

        fn measure(&mut self, assignment: &Assignment) -> JobStatus {
            JobStatus::unmeasured(assignment.clone())
        }

        fn not_enforced(&self) -> Vec<String> {
            vec![]
        }
    }

    const ROOT: &Requester = &Requester::Trusted;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    fn assignment(job: &str, until: u64) -> Assignment {
        Assignment::new(job.parse().unwrap(), CpuPpm::from_percent(10), at(until))
    }

    fn start(directory: &TempDir, kernel: FakeKernel, now: u64) -> Agent<FakeKernel> {
        let capacity = Capacity {
            cpu: CpuPpm::from_percent(40),
            reservable: BitsPerSecond::from_mbit(190),
            disks: BTreeMap::new(),
            capabilities: None,
            schedules: None,
        };
        let store = Store::at(&directory.path().join("assignments.json"));
        Agent::start("n1".parse().unwrap(), capacity, store, kernel, at(now)).unwrap()
    }

    #[test]
    fn what_the_kernel_refuses_leaves_everything_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), ROOT, at(1)), Response::Done);
        let answer = agent.answer(Request::Enforce(assignment("bad", 9)), ROOT, at(1));
        assert_eq!(answer, Response::Failed { error: "no room for bad".into() });
        let names: Vec<_> = agent.enforcer.0.keys().map(Name::to_string).collect();
        assert_eq!(names, ["a"]);
        assert_eq!(agent.store.load().unwrap(), agent.book);
    }

    // Goal: a job that the kernel does not take is in no other job's way: others begin, change, are bound to and end beside
    // it. Method: one that an earlier agent has left in the record.
    #[test]
    fn a_job_that_fails_is_in_no_other_jobs_way() {
        let directory = tempfile::tempdir().unwrap();
        let agent = start(&directory, FakeKernel::default(), 1);
        let odd = Book::default().with(assignment("odd", 9), &agent.capacity, at(1)).unwrap();
        agent.store.save(&odd).unwrap();
        let mut agent = start(&directory, agent.enforcer, 1);
        let job: Name = "a".parse().unwrap();
        let requests = [
            Request::Enforce(assignment("a", 9)),
            Request::Bind { job: job.clone(), processes: vec![9] },
            Request::Restrain { job: job.clone(), cpu_ppm: CpuPpm::from_percent(5) },
        ];
        for request in requests {
            assert_eq!(agent.answer(request, ROOT, at(1)), Response::Done);
        }
        assert!(agent.start_command(&job, 9, ROOT, at(1)).is_ok());
        assert_eq!(agent.enforcer.0.keys().collect::<Vec<_>>(), [&job]);
        // Of which one it is said is what the broker hears of its own.
        let answer = agent.answer(Request::Enforce(assignment("odder", 9)), ROOT, at(1));
        assert_eq!(answer, Response::Failed { error: "no group for odder".into() });
        assert_eq!(agent.tick(at(2)).unwrap_err().to_string(), "odd: no group for odd");
        assert_eq!(agent.answer(Request::Withdraw { job }, ROOT, at(2)), Response::Done);
    }

    #[test]
    fn a_restarted_agent_adopts_what_lasts_and_removes_what_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        for (job, until) in [("lasts", 9), ("over", 4)] {
            assert_eq!(
                agent.answer(Request::Enforce(assignment(job, until)), ROOT, at(1)),
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
        assert_eq!(
            agent.answer(Request::Enforce(assignment("a", 110)), ROOT, at(100)),
            Response::Done
        );
        agent.tick(at(10)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        let renew = Request::Renew { job: "a".parse().unwrap(), until_unix_nanos: at(120) };
        assert_eq!(agent.answer(renew, ROOT, at(105)), Response::Done);
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
            book.with(assignment(job, 9), &agent.capacity, at(1)).unwrap()
        });
        agent.store.save(&both).unwrap();
        let mut agent = start(&directory, agent.enforcer, 1);
        let answer = agent.answer(Request::Withdraw { job: "a".parse().unwrap() }, ROOT, at(1));
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
        assert_eq!(
            agent.answer(Request::Withdraw { job: job.clone() }, ROOT, at(1)),
            Response::Done
        );
        let renew = Request::Renew { job, until_unix_nanos: at(9) };
        let Response::Refused { reason } = agent.answer(renew, ROOT, at(1)) else { panic!() };
        assert_eq!(reason, "no job a is assigned here");
    }

    #[test]
    fn what_begins_later_is_enforced_from_then_on_and_a_clock_set_back_stops_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let later = Assignment { from_unix_nanos: at(5), ..assignment("later", 9) };
        assert_eq!(agent.answer(Request::Enforce(later), ROOT, at(1)), Response::Done);
        assert!(agent.enforcer.0.is_empty());
        let bind = || Request::Bind { job: "later".parse().unwrap(), processes: vec![9] };
        let Response::Refused { reason } = agent.answer(bind(), ROOT, at(2)) else { panic!() };
        assert!(reason.contains("has not begun"), "{reason}");
        agent.tick(at(5)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        agent.tick(at(3)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        // Nor does an agent that starts while the clock is wrong.
        let mut agent = start(&directory, agent.enforcer, 3);
        agent.tick(at(4)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        assert_eq!(agent.answer(bind(), ROOT, at(3)), Response::Done);
        agent.tick(at(9)).unwrap();
        assert!(agent.enforcer.0.is_empty());
    }

    // What is accepted while a clock is set back is enforced by that clock, beside what has begun; what was ahead of
    // its time makes room for it, and is there again when that has come.
    #[test]
    fn what_is_accepted_after_a_clock_was_set_back_is_enforced_when_it_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 100);
        let enforced = |agent: &Agent<FakeKernel>| {
            agent.enforcer.0.keys().map(Name::to_string).collect::<Vec<_>>().join(" ")
        };
        let ahead = Assignment {
            from_unix_nanos: at(90),
            cpu_ppm: CpuPpm::from_percent(30),
            ..assignment("ahead", 200)
        };
        assert_eq!(agent.answer(Request::Enforce(ahead.clone()), ROOT, at(100)), Response::Done);
        agent.tick(at(10)).unwrap();
        assert_eq!(enforced(&agent), "ahead");
        // Both fit.
        let short = Request::Enforce(assignment("short", 20));
        assert_eq!(agent.answer(short, ROOT, at(10)), Response::Done);
        assert_eq!(enforced(&agent), "ahead short");
        let bind = Request::Bind { job: "short".parse().unwrap(), processes: vec![9] };
        assert_eq!(agent.answer(bind, ROOT, at(11)), Response::Done);
        agent.tick(at(20)).unwrap();
        assert_eq!(enforced(&agent), "ahead");
        // Both do not fit.
        let large = Assignment { cpu_ppm: ahead.cpu_ppm, ..assignment("large", 40) };
        assert_eq!(agent.answer(Request::Enforce(large), ROOT, at(21)), Response::Done);
        assert_eq!(enforced(&agent), "large");
        agent.tick(at(40)).unwrap();
        assert_eq!(enforced(&agent), "");
        agent.tick(at(90)).unwrap();
        assert_eq!(enforced(&agent), "ahead");
    }

    // With a record that cannot be written nothing is begun, and all else goes on; what is not recorded of it is as
    // soon as there is room.
    #[test]
    fn a_full_disk_keeps_nothing_from_ending_and_is_caught_up_with() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        for (job, until) in [("given", 9), ("lasts", 9), ("over", 4)] {
            let enforce = Request::Enforce(assignment(job, until));
            assert_eq!(agent.answer(enforce, ROOT, at(1)), Response::Done);
        }
        let later = Assignment { from_unix_nanos: at(4), ..assignment("later", 9) };
        assert_eq!(agent.answer(Request::Enforce(later), ROOT, at(1)), Response::Done);
        let full = Store::at(Path::new("/dev/full/assignments.json"));
        let store = std::mem::replace(&mut agent.store, full);
        let is_full = |answer: &Response| matches!(answer, Response::Failed { error } if error.contains("cannot write"));
        let withdraw = || Request::Withdraw { job: "given".parse().unwrap() };
        let answer = agent.answer(withdraw(), ROOT, at(2));
        assert!(is_full(&answer), "{answer:?}");
        let answer = agent.answer(Request::Enforce(assignment("new", 9)), ROOT, at(2));
        assert!(is_full(&answer), "{answer:?}");
        assert!(agent.tick(at(4)).is_err());
        let enforced: Vec<_> = agent.enforcer.0.keys().map(Name::to_string).collect();
        assert_eq!(enforced, ["lasts", "later"]);
        agent.store = store;
        assert_ne!(agent.store.load().unwrap(), agent.book);
        agent.tick(at(5)).unwrap();
        assert_eq!(agent.store.load().unwrap(), agent.book);
        assert_eq!(agent.answer(withdraw(), ROOT, at(5)), Response::Done);
    }

    // Each process that is bound costs others time: a list is taken up to a bound, and each of it once.
    #[test]
    fn so_many_processes_are_bound_at_a_time_and_each_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let job: Name = "a".parse().unwrap();
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), ROOT, at(1)), Response::Done);
        let bind = |count: u32| {
            let processes = (2..count + 2).chain(2..count + 2).collect();
            Request::Bind { job: job.clone(), processes }
        };
        let most = BOUND_MAX as u32;
        let refused = agent.answer(bind(most + 1), ROOT, at(1));
        assert!(matches!(refused, Response::Refused { .. }), "{refused:?}");
        assert_eq!(agent.answer(bind(most), ROOT, at(1)), Response::Done);
        let each: Vec<u32> = (2..most + 2).collect();
        assert_eq!(agent.enforcer.1, [(job.clone(), each, None)]);
    }

    #[test]
    fn a_job_uses_less_than_it_was_assigned_as_long_as_it_is_told_to() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let job: Name = "a".parse().unwrap();
        let all = assignment("a", 9);
        let restrain = |cpu_ppm| Request::Restrain { job: job.clone(), cpu_ppm };
        let unknown = agent.answer(restrain(CpuPpm::new(1)), ROOT, at(1));
        assert!(matches!(unknown, Response::Refused { .. }), "{unknown:?}");
        assert_eq!(agent.answer(Request::Enforce(all.clone()), ROOT, at(1)), Response::Done);
        let nothing = agent.answer(restrain(CpuPpm::new(0)), ROOT, at(1));
        assert!(matches!(nothing, Response::Refused { .. }), "{nothing:?}");
        let half = CpuPpm::new(all.cpu_ppm.get() / 2);
        assert_eq!(agent.answer(restrain(half), ROOT, at(1)), Response::Done);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, half);
        // What was assigned is still what is told, and what it goes back to.
        assert!(agent.assignments().all(|told| told.cpu_ppm == all.cpu_ppm));
        assert_eq!(agent.answer(restrain(all.cpu_ppm), ROOT, at(2)), Response::Done);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, all.cpu_ppm);
        // Another agent knows nothing of it.
        assert_eq!(agent.answer(restrain(half), ROOT, at(2)), Response::Done);
        let agent = start(&directory, agent.enforcer, 3);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, all.cpu_ppm);
    }

    // Goal: whoever has another clock knows how old a count is. Method: one that is told, and asked for a second later.
    #[test]
    fn how_far_a_job_is_is_told_with_when_that_was() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), ROOT, at(1)), Response::Done);
        let job: Name = "a".parse().unwrap();
        let progress = Progress { rank: 0, operations: 60, period: 6, told: 0 };
        agent.programs().progress(job.clone(), progress, at(2));
        let Response::Job(status) = agent.answer(Request::Job { job }, ROOT, at(3)) else {
            panic!()
        };
        let progress = status.progress.unwrap();
        assert_eq!((progress.iterations, progress.at_unix_nanos), (10, at(2)));
        assert_eq!(status.now_unix_nanos, at(3));
    }

    #[test]
    fn users_start_commands_in_their_own_jobs_and_see_how_these_stand() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let owner = Some("ada".parse().unwrap());
        let theirs = Assignment { owner: owner.clone(), ..assignment("theirs", 9) };
        let later = Assignment { from_unix_nanos: at(5), owner, ..assignment("later", 9) };
        for wanted in [theirs, later, assignment("nobodys", 9)] {
            assert_eq!(agent.answer(Request::Enforce(wanted), ROOT, at(1)), Response::Done);
        }
        let user = &Requester::User { id: 7, name: "ada".parse().unwrap() };
        let job = |name: &str| name.parse::<Name>().unwrap();
        let (place, _) = agent.start_command(&job("theirs"), 9, user, at(1)).unwrap();
        assert_eq!(place.node.as_str(), "n1");
        assert_eq!(agent.enforcer.1, [(job("theirs"), vec![9], Some(7))]);
        for (name, expected) in [
            ("nobodys", "no job nobodys of ada"),
            ("away", "no job away of ada"),
            ("later", "has not begun"),
        ] {
            match agent.start_command(&job(name), 9, user, at(1)) {
                Err(BindError::Refused(reason)) => assert!(reason.contains(expected), "{reason}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        let told = agent.answer(Request::Job { job: job("theirs") }, user, at(1));
        assert!(matches!(told, Response::Job(_)), "{told:?}");
        let told = agent.answer(Request::Used { job: job("theirs") }, user, at(1));
        assert_eq!(told, Response::Used(Nanos::default()));
        for (name, requester) in [("nobodys", user), ("away", user), ("away", ROOT)] {
            for request in [Request::Job { job: job(name) }, Request::Used { job: job(name) }] {
                let told = agent.answer(request, requester, at(1));
                assert!(matches!(told, Response::Refused { .. }), "{name}: {told:?}");
            }
        }
    }

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
