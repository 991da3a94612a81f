//! What runs already and counts to a job that has begun: its commands, bound processes and connections, and how much of
//! its CPU they use.

use super::{Agent, Requester};
use crate::book::Refusal;
use crate::enforcer::{BindError, BoxedError, Enforcer};
use crate::programs::Visit;
use crate::wire::{Place, Response};
use keeptime_linux::started::Started;
use keeptime_model::assignment::Assignment;
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::name::Name;
use keeptime_model::units::{CpuPpm, WallTime};

impl<E: Enforcer> Agent<E> {
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
            let found = found.ok_or_else(|| no_job_of(process))?;
            // Its number may be that of another process by now.
            if let Requester::User { name, .. } = requester {
                self.check_of(&found, name)?;
            }
            return Ok(found);
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
        self.enforced(job)?;
        let started = self.enforcer.start(job, process, requester.user_id())?;
        self.schedule_at_once(job);
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

    pub(super) fn bind(
        &mut self,
        job: &Name,
        mut processes: Vec<u32>,
        user: Option<u32>,
    ) -> Response {
        processes.sort_unstable();
        processes.dedup();
        if processes.len() > BOUND_MAX {
            let reason = format!("{} processes at once; at most {BOUND_MAX}", processes.len());
            return Response::Refused { reason };
        }
        let bound = self.enforced(job).and_then(|()| self.enforcer.bind(job, &processes, user));
        if bound.is_ok() {
            self.schedule_at_once(job);
        }
        response(bound)
    }

    pub(super) fn bind_flow(
        &mut self,
        job: &Name,
        flow: &ConnectionPattern,
        user: Option<u32>,
    ) -> Response {
        let assignment = self.begun(job);
        response(assignment.and_then(|a| self.enforcer.bind_flow(&a, flow, user)))
    }

    /// Has a job use so much of its CPU at the most as long as the connection `visit` lasts, or until something else is said.
    pub(crate) fn restrain(
        &mut self,
        job: &Name,
        cpu: CpuPpm,
        visit: &Visit,
        requester: &Requester,
        now: WallTime,
    ) -> Response {
        self.now = now;
        response(self.try_to_restrain(job, cpu, visit, requester))
    }

    fn try_to_restrain(
        &mut self,
        job: &Name,
        cpu: CpuPpm,
        visit: &Visit,
        requester: &Requester,
    ) -> Result<(), BindError> {
        if let Requester::User { name, .. } = requester {
            self.check_of(job, name).map_err(BindError::Refused)?;
        }
        let Assignment { cpu_ppm, later, .. } = self.begun(job)?;
        // As much as it will ever have.
        let assigned = later.map_or(cpu_ppm, |later| later.cpu_ppm);
        if cpu.get() == 0 {
            return Err(BindError::Refused(format!("cpu: {job} needs more than nothing")));
        }
        let former = match cpu < assigned {
            true => self.restraints.add(job, visit.number(), cpu),
            false => self.restraints.clear(job),
        };
        let Err(error) = self.reconcile_for(job) else { return Ok(()) };
        self.restraints.restore(job, former);
        // The next tick tries again if this does not go back either.
        let _ = self.reconcile_for(job);
        Err(BindError::Failed(error))
    }

    /// Whether a job that is there is restrained by the connection `visit`.
    pub(crate) fn restrains(&self, visit: &Visit) -> bool {
        self.restraints.are_held_by(visit.number())
    }

    /// A connection has ended: what it had restrained has all of its CPU again, unless somebody else restrains it.
    pub(crate) fn lift(&mut self, visit: &Visit) {
        let held = self.restraints.leave(visit.number());
        // With one of them all that have changed are looked at. The next tick tries again.
        if let Some(job) = held.first() {
            let _ = self.reconcile_for(job);
        }
    }

    /// What a job is restrained to.
    #[cfg(test)]
    pub(crate) fn restraint(&self, job: &Name) -> Option<CpuPpm> {
        self.restraints.of(job)
    }

    /// That a job has begun and the kernel agrees: who is told that it does not has moved nobody.
    fn enforced(&mut self, job: &Name) -> Result<(), BindError> {
        self.begun(job)?;
        self.reconcile_for(job).map_err(BindError::Failed)
    }

    /// What has come to a job has its schedule at once. It belongs to the job whatever the kernel says; the next tick tries again,
    /// and tells it.
    fn schedule_at_once(&mut self, job: &Name) {
        let _ = self.reconcile_for(job);
    }

    /// A job that is to be enforced now.
    fn begun(&self, job: &Name) -> Result<Assignment, BindError> {
        if !self.book.assignments().contains_key(job) {
            return Err(BindError::Refused(Refusal::Unknown { job: job.clone() }.to_string()));
        }
        let not_now = || BindError::Refused(format!("job {job} has not begun, or is over"));
        self.wanted().remove(job).ok_or_else(not_now)
    }
}

/// What is said of a process that is in no job's groups. The kernel tells no number (0) of one that the agent cannot see.
fn no_job_of(process: i32) -> String {
    match process {
        0 => "the job of a process in another PID namespace than the agent's is not known: expected `job`, as \
              `KEEPTIME_JOB` has programs say it"
            .into(),
        _ => format!("process {process} belongs to no job"),
    }
}

fn response(bound: Result<(), BindError>) -> Response {
    bound.map_or_else(Response::from, |()| Response::Done)
}

/// Processes that are bound at a time: what a person or a script names one by one. Each is looked at while others
/// wait.
const BOUND_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeKernel, ROOT, assignment, at, start};
    use super::*;
    use crate::wire::Request;
    use keeptime_model::units::Nanos;
    use keeptime_mpiqos::wire::Progress;

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

    // Goal: who is told that something failed finds all as before, and what was done is not called failed, so that it ends with its
    // job or its connection. Method: jobs that the kernel does not take, or no more as soon as something belongs to them.
    #[test]
    fn what_failed_has_moved_nobody_and_what_came_to_a_job_is_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        for job in ["odd", "late"] {
            let book = agent.book.with(assignment(job, 9), &agent.capacity, at(1)).unwrap();
            agent.remember(book).unwrap();
        }
        let failed = Response::Failed { error: "no group for odd".into() };
        for (job, answer, belongs) in [("odd", failed, false), ("late", Response::Done, true)] {
            let job: Name = job.parse().unwrap();
            let bind = Request::Bind { job: job.clone(), processes: vec![9] };
            assert_eq!(agent.answer(bind, ROOT, at(1)), answer);
            assert_eq!(!agent.enforcer.1.is_empty(), belongs);
            agent.enforcer.1.clear();
            assert_eq!(agent.start_command(&job, 9, ROOT, at(1)).is_ok(), belongs);
            assert_eq!(!agent.enforcer.1.is_empty(), belongs);
        }
        let told = agent.tick(at(2)).unwrap_err().to_string();
        assert!(told.contains("too much in late"), "{told}");
    }

    #[test]
    fn a_job_uses_less_than_it_was_assigned_as_long_as_it_is_told_to() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let job: Name = "a".parse().unwrap();
        let all = assignment("a", 9);
        let [first, second] = [0, 1].map(|_| agent.programs().visit());
        let restrain = |agent: &mut Agent<FakeKernel>, visit: &Visit, cpu| {
            agent.restrain(&job, cpu, visit, ROOT, at(1))
        };
        let unknown = restrain(&mut agent, &first, CpuPpm::new(1));
        assert!(matches!(unknown, Response::Refused { .. }), "{unknown:?}");
        assert_eq!(agent.answer(Request::Enforce(all.clone()), ROOT, at(1)), Response::Done);
        let nothing = restrain(&mut agent, &first, CpuPpm::new(0));
        assert!(matches!(nothing, Response::Refused { .. }), "{nothing:?}");
        let user = &Requester::User { id: 7, name: "ada".parse().unwrap() };
        let half = CpuPpm::new(all.cpu_ppm.get() / 2);
        let theirs = agent.restrain(&job, half, &first, user, at(1));
        assert!(matches!(theirs, Response::Refused { .. }), "{theirs:?}");
        assert_eq!(restrain(&mut agent, &first, half), Response::Done);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, half);
        // What was assigned is still what is told, and what it goes back to.
        assert!(agent.assignments().all(|told| told.cpu_ppm == all.cpu_ppm));
        assert_eq!(restrain(&mut agent, &first, all.cpu_ppm), Response::Done);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, all.cpu_ppm);
        // Of two that restrain it to the same one goes.
        for visit in [&first, &second] {
            assert_eq!(restrain(&mut agent, visit, half), Response::Done);
        }
        agent.lift(&first);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, half);
        agent.lift(&second);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, all.cpu_ppm);
        // Another agent knows nothing of it.
        assert_eq!(restrain(&mut agent, &first, half), Response::Done);
        let agent = start(&directory, agent.enforcer, 3);
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, all.cpu_ppm);
    }

    // Goal: who is told that something failed finds all as before. Method: a job that the kernel does not take any more.
    #[test]
    fn a_restraint_that_fails_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let job: Name = "late".parse().unwrap();
        let all = assignment("late", 9);
        assert_eq!(agent.answer(Request::Enforce(all.clone()), ROOT, at(1)), Response::Done);
        let (visit, [half, quarter]) =
            (agent.programs().visit(), [2, 4].map(|part| CpuPpm::new(all.cpu_ppm.get() / part)));
        assert_eq!(agent.restrain(&job, half, &visit, ROOT, at(1)), Response::Done);
        agent.enforcer.1.push((job.clone(), vec![9], None));
        for cpu in [quarter, all.cpu_ppm] {
            let failed = agent.restrain(&job, cpu, &visit, ROOT, at(1));
            assert!(matches!(failed, Response::Failed { .. }), "{failed:?}");
            assert_eq!(agent.enforcer.0[&job].cpu_ppm, half);
        }
    }

    // Goal: nothing of a job that has ended is its successor's. Method: one of the same name that comes before the next tick.
    #[test]
    fn a_job_with_the_name_of_one_that_has_ended_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let (job, all): (Name, _) = ("a".parse().unwrap(), assignment("a", 9));
        let half = CpuPpm::new(all.cpu_ppm.get() / 2);
        let progress = Progress { rank: 0, operations: 60, period: 6, told: 0 };
        assert_eq!(agent.answer(Request::Enforce(all.clone()), ROOT, at(1)), Response::Done);
        let rank = agent.programs().visit();
        rank.progress(job.clone(), progress, at(1));
        assert_eq!(agent.restrain(&job, half, &rank, ROOT, at(1)), Response::Done);
        let requests = [Request::Withdraw { job: job.clone() }, Request::Enforce(all.clone())];
        for request in requests {
            assert_eq!(agent.answer(request, ROOT, at(1)), Response::Done);
        }
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, all.cpu_ppm);
        assert_eq!(agent.programs().progress_of(&job), None);
    }

    // Goal: who is in a container hears what to do. Method: what the kernel tells of a process that the agent cannot see.
    #[test]
    fn a_process_that_cannot_be_seen_is_told_to_name_its_job() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let job: Name = "a".parse().unwrap();
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), ROOT, at(1)), Response::Done);
        let unseen = agent.job_for(None, 0, ROOT).unwrap_err();
        assert!(unseen.contains("PID namespace") && unseen.contains("KEEPTIME_JOB"), "{unseen}");
        assert_eq!(agent.job_for(None, 9, ROOT).unwrap_err(), "process 9 belongs to no job");
        assert_eq!(agent.job_for(Some(job.clone()), 0, ROOT), Ok(job));
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
}
