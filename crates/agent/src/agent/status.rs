//! What an agent tells of its node and of each job.

use super::Agent;
use crate::book::Refusal;
use crate::enforcer::Enforcer;
use crate::wire::{JobStatus, Response, Status};
use keeptime_model::assignment::Assignment;
use keeptime_model::name::Name;
use keeptime_model::units::Nanos;

impl<E: Enforcer> Agent<E> {
    /// The answer about a job; that there is none where nothing is `told`.
    pub(super) fn answer_about(job: Name, told: Option<Response>) -> Response {
        let unknown = || Response::Refused { reason: Refusal::Unknown { job }.to_string() };
        told.unwrap_or_else(unknown)
    }

    /// The CPU time that a job that is assigned has used.
    pub(super) fn cpu_used(&mut self, job: &Name) -> Option<Nanos> {
        let assignment = self.book.assignments().get(job)?;
        Some(self.enforcer.cpu_used(assignment))
    }

    /// How a job that is assigned stands.
    pub(super) fn job_status(&mut self, job: &Name) -> Option<JobStatus> {
        let assignment = self.book.assignments().get(job)?.at(self.now).into_owned();
        self.job_statuses(&[assignment]).pop()
    }

    fn job_statuses(&mut self, assignments: &[Assignment]) -> Vec<JobStatus> {
        let measured = self.enforcer.measure(assignments);
        let enforces_nothing = self.capacity.capabilities.is_none();
        let told = |measured: JobStatus| {
            let job = &measured.assignment.job;
            let has_come = self.come.begun.contains_key(job);
            JobStatus {
                begun: has_come && (measured.cpu_kept_by.is_some() || enforces_nothing),
                progress: self.programs.progress_of(job),
                now_unix_nanos: self.now,
                ..measured
            }
        };
        measured.into_iter().map(told).collect()
    }

    pub(super) fn status(&mut self) -> Status {
        // What is over and not ended yet is in nobody's way any more.
        let lasting = |a: &&Assignment| self.now < a.until_unix_nanos;
        let lasting = self.book.assignments().values().filter(lasting);
        let lasting: Vec<_> = lasting.map(|a| a.at(self.now).into_owned()).collect();
        let jobs = self.job_statuses(&lasting);
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

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeKernel, ROOT, assignment, at, start};
    use super::*;
    use crate::wire::Request;
    use keeptime_mpiqos::wire::Progress;

    // Goal: nobody waits for a share where none is kept. Method: a node that enforces nothing, and one that is to and does not.
    #[test]
    fn a_job_has_begun_when_the_node_does_for_it_what_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let later = Assignment { from_unix_nanos: at(5), ..assignment("a", 9) };
        assert_eq!(agent.answer(Request::Enforce(later), ROOT, at(1)), Response::Done);
        let begun_at = |agent: &mut Agent<_>, second| {
            agent.tick(at(second)).unwrap();
            let job = "a".parse().unwrap();
            match agent.answer(Request::Job { job }, ROOT, at(second)) {
                Response::Job(status) => status.begun,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([4, 5].map(|second| begun_at(&mut agent, second)), [false, true]);
        agent.capacity.capabilities = Some(Default::default());
        assert!(!begun_at(&mut agent, 6));
    }

    // Goal: many jobs are told in the time of many looks at what each has, and not in its square: what the kernel counts for
    // all of them together is read for all of them together.
    #[test]
    fn the_kernel_is_asked_once_for_all_jobs() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let jobs: Vec<String> = (0..40).map(|number| format!("r{number:02}")).collect();
        for job in &jobs {
            let idle = Assignment { cpu_ppm: Default::default(), ..assignment(job, 9) };
            assert_eq!(agent.answer(Request::Enforce(idle), ROOT, at(1)), Response::Done);
        }
        let Response::Status(status) = agent.answer(Request::Status, ROOT, at(1)) else { panic!() };
        let told: Vec<_> = status.jobs.iter().map(|job| job.assignment.job.to_string()).collect();
        assert_eq!(told, jobs);
        assert_eq!(agent.enforcer.2, 1);
    }

    // Goal: whoever has another clock knows how old a count is. Method: one that is told, and asked for a second later.
    #[test]
    fn how_far_a_job_is_is_told_with_when_that_was() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), ROOT, at(1)), Response::Done);
        let job: Name = "a".parse().unwrap();
        let progress = Progress { rank: 0, operations: 60, period: 6, told: 0 };
        let rank = agent.programs().visit();
        rank.progress(job.clone(), progress, at(2));
        let Response::Job(status) = agent.answer(Request::Job { job }, ROOT, at(3)) else {
            panic!()
        };
        let progress = status.progress.unwrap();
        assert_eq!((progress.iterations, progress.at_unix_nanos), (10, at(2)));
        assert_eq!(status.now_unix_nanos, at(3));
    }
}
