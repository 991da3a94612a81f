//! The seam between an agent and the kernel: what is asked of whatever enforces on a node, and how that says what it
//! did not do.

use crate::wire::JobStatus;
use keeptime_linux::started::Started;
use keeptime_model::assignment::Assignment;
use keeptime_model::capability::Capabilities;
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::slice;

/// What makes the kernel agree with the book: the one thing of an agent that needs privilege.
pub trait Enforcer: Send {
    /// Makes the node enforce exactly `wanted`: what is missing is added, what differs is changed
    /// in place, what is ours and not wanted is ended. Each job on its own, as far as that goes. Idempotent. Jobs that are
    /// not in `scope` are enforced as they are wanted already, if nobody else has changed that.
    ///
    /// # Errors
    /// What the kernel refuses, and of whom; part of it may be done then.
    fn reconcile(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Result<(), Failures>;

    /// Checks that what an assignment counts on is there, before anything is changed for it.
    ///
    /// # Errors
    /// What is not, or may not be bound.
    fn check(&self, _assignment: &Assignment) -> Result<(), BindError> {
        Ok(())
    }

    /// The jobs that the node enforces now, whoever made it do so.
    fn enforced(&self) -> BTreeSet<Name>;

    /// Counts running processes to a job that is enforced, as long as it lasts. Nothing happens to
    /// any of them if one is refused.
    ///
    /// # Errors
    /// If one may not be bound, or the kernel refuses.
    fn bind(&mut self, job: &Name, processes: &[u32], user: Option<u32>) -> Result<(), BindError>;

    /// Counts open connections to a job that is enforced, as long as it lasts.
    ///
    /// # Errors
    /// If there are none or they may not be bound, or the kernel refuses.
    fn bind_flow(
        &mut self,
        assignment: &Assignment,
        flow: &ConnectionPattern,
        user: Option<u32>,
    ) -> Result<(), BindError>;

    /// Counts a process, with all that it starts from now on, to a job that is enforced, as a command of its
    /// own; nothing where jobs have no groups.
    ///
    /// # Errors
    /// If it may not be, or the kernel refuses.
    fn start(
        &mut self,
        _job: &Name,
        _process: i32,
        _user: Option<u32>,
    ) -> Result<Option<Started>, BindError> {
        Ok(None)
    }

    /// Ends a command of a job with all that it started. Nothing happens if it has ended. Does not wait long:
    /// others wait meanwhile.
    ///
    /// # Errors
    /// If something does not end at once; asked again, it may have.
    fn end(&mut self, _job: &Name, _command: &Started) -> Result<(), BoxedError> {
        Ok(())
    }

    /// The device where flows are enforced, if any are.
    fn device(&self) -> Option<&str> {
        None
    }

    /// The job whose groups a process is in; nothing where jobs have none.
    fn job_of(&self, _process: i32) -> Option<Name> {
        None
    }

    /// What was found out about the kernel; nothing = it is not asked to enforce anything.
    fn capabilities(&self) -> Option<&Capabilities> {
        None
    }

    /// What the kernel counts for jobs, each in its place: what it counts for all of them is read once.
    fn measure(&mut self, assignments: &[Assignment]) -> Vec<JobStatus> {
        assignments.iter().cloned().map(JobStatus::unmeasured).collect()
    }

    /// Of that, the CPU time that a job has used.
    fn cpu_used(&mut self, assignment: &Assignment) -> Nanos {
        let measured = self.measure(slice::from_ref(assignment));
        measured.first().map(|status| status.cpu_used_nanos).unwrap_or_default()
    }

    /// What this node cannot enforce, and why: a sentence each.
    fn not_enforced(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Of which jobs it is looked at what the kernel has: each look takes time in which others wait for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Of all, since others may have changed that.
    All,
    /// Of those that change.
    Jobs(BTreeSet<Name>),
}

impl Scope {
    /// Whether it is looked at what the kernel has of `job`.
    pub fn has(&self, job: &Name) -> bool {
        match self {
            Self::All => true,
            Self::Jobs(jobs) => jobs.contains(job),
        }
    }
}

/// Any error of an enforcer.
pub type BoxedError = Box<dyn Error + Send + Sync>;

/// Why something was not bound to a job.
#[derive(Debug)]
pub enum BindError {
    /// It will not be done: why, in the user's words.
    Refused(String),
    /// It was tried and could not be done.
    Failed(BoxedError),
}

/// What a node does not enforce of what is wanted: why, of each job by itself and of all together.
#[derive(Debug, Default)]
pub struct Failures {
    of_jobs: BTreeMap<Name, BoxedError>,
    of_all: Option<BoxedError>,
}

impl Failures {
    /// Notes what came of one job; what has failed first is kept.
    pub fn note<E: Into<BoxedError>>(&mut self, job: &Name, outcome: Result<(), E>) {
        if let Err(error) = outcome {
            self.of_jobs.entry(job.clone()).or_insert_with(|| error.into());
        }
    }

    /// Does this for every job in `scope`, whatever comes of the others.
    pub fn note_each<E: Into<BoxedError>>(
        &mut self,
        jobs: &BTreeMap<Name, Assignment>,
        scope: &Scope,
        mut make: impl FnMut(&Assignment) -> Result<(), E>,
    ) {
        for (job, assignment) in jobs.iter().filter(|(job, _)| scope.has(job)) {
            self.note(job, make(assignment));
        }
    }

    /// Notes what came of something that concerns all jobs; what has failed first is kept.
    pub fn note_of_all<E: Into<BoxedError>>(&mut self, outcome: Result<(), E>) {
        if let Err(error) = outcome {
            self.of_all.get_or_insert_with(|| error.into());
        }
    }

    /// Adds what was noted elsewhere.
    pub fn add(&mut self, outcome: Result<(), Self>) {
        let Err(Self { of_jobs, of_all }) = outcome else { return };
        of_jobs.into_iter().for_each(|(job, error)| self.note(&job, Err(error)));
        self.note_of_all(of_all.map_or(Ok(()), Err));
    }

    /// Whether nothing has failed.
    pub fn is_empty(&self) -> bool {
        self.of_jobs.is_empty() && self.of_all.is_none()
    }

    /// Whether `job` may not be enforced as it should be.
    pub fn concern(&self, job: &Name) -> bool {
        self.of_all.is_some() || self.of_jobs.contains_key(job)
    }

    /// Nothing, if nothing has failed.
    ///
    /// # Errors
    /// What has failed.
    pub fn into_result(self) -> Result<(), Self> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(self),
        }
    }

    /// Why one job may not be enforced as it should be, whatever comes of the others; nothing if it is.
    pub fn into_failure_of(mut self, job: &Name) -> Option<BoxedError> {
        self.of_jobs.remove(job).or(self.of_all)
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_all = self.of_all.iter().map(|error| chain(error.as_ref()));
        let of_job =
            |(job, error): (&Name, &BoxedError)| format!("{job}: {}", chain(error.as_ref()));
        let sentences: Vec<_> = of_all.chain(self.of_jobs.iter().map(of_job)).collect();
        f.write_str(&sentences.join("; "))
    }
}

impl Error for Failures {}

impl From<BoxedError> for Failures {
    fn from(error: BoxedError) -> Self {
        Self { of_jobs: BTreeMap::new(), of_all: Some(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::{CpuPpm, WallTime};

    fn job(name: &str) -> Assignment {
        let until = WallTime::from_unix_nanos(9);
        Assignment::new(name.parse().unwrap(), CpuPpm::from_percent(10), until)
    }

    fn failing(words: &'static str) -> Result<(), &'static str> {
        Err(words)
    }

    // Goal: each job is made on its own, and who asks for one hears of that one. Method: three, of which the first two
    // fail.
    #[test]
    fn a_job_that_fails_keeps_nothing_from_the_next() {
        let jobs = ["a", "b", "c"].map(job);
        let jobs = BTreeMap::from(jobs.map(|assignment| (assignment.job.clone(), assignment)));
        let (mut failures, mut made) = (Failures::default(), Vec::new());
        failures.note_each(&jobs, &Scope::All, |assignment| match assignment.job.as_str() {
            "a" => failing("no group"),
            "b" => failing("no deadlines"),
            name => {
                made.push(name.to_owned());
                Ok(())
            }
        });
        assert_eq!(made, ["c"]);
        let name = |name: &str| name.parse::<Name>().unwrap();
        // What fails later of the same is what follows from the first.
        failures.note(&name("a"), failing("no services"));
        let failures = failures.into_result().unwrap_err();
        assert_eq!(failures.to_string(), "a: no group; b: no deadlines");
        let told = |failures: Failures, job| {
            failures.into_failure_of(&name(job)).map(|error| error.to_string())
        };
        assert_eq!(told(failures, "b").as_deref(), Some("no deadlines"));
        let mut failures = Failures::default();
        failures.note(&name("a"), failing("no group"));
        assert_eq!(told(failures, "c"), None);
    }

    #[test]
    fn what_concerns_all_jobs_is_told_to_each() {
        let mut failures = Failures::default();
        failures.add(Ok(()));
        assert!(failures.is_empty());
        failures.note_of_all(failing("no classes"));
        failures.note_of_all(failing("no marks"));
        let mut others = Failures::default();
        others.note(&job("a").job, failing("no disk"));
        failures.add(others.into_result());
        assert_eq!(failures.to_string(), "no classes; a: no disk");
        let told = failures.into_failure_of(&job("b").job).unwrap();
        assert_eq!(told.to_string(), "no classes");
        assert!(Failures::default().into_result().is_ok());
    }
}
