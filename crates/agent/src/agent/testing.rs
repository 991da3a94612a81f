//! An agent over a kernel that is not there.

use super::{Agent, Requester};
use crate::book::Capacity;
use crate::enforcer::{BindError, BoxedError, Enforcer, Failures, Scope};
use crate::store::Store;
use crate::wire::JobStatus;
use keeptime_linux::process::Identity;
use keeptime_linux::started::Started;
use keeptime_locks::lock;
use keeptime_model::assignment::Assignment;
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A kernel that holds a set of jobs, goes no further at one whose name starts with `bad`, panics at one whose name starts
/// with `bug`, leaves out those whose names start with `odd`, and does not agree to those whose names start with `late` once
/// something was bound to them; what was bound to which job for whom; how often it was measured; how often it was looked at
/// what it has of a job; and which commands were ended, one by one.
#[derive(Debug, Default)]
pub(crate) struct FakeKernel(
    pub(super) BTreeMap<Name, Assignment>,
    pub(super) Vec<(Name, Vec<u32>, Option<u32>)>,
    pub(super) usize,
    pub(super) usize,
    pub(crate) Arc<Mutex<Vec<Started>>>,
);

impl Enforcer for FakeKernel {
    fn enforced(&self) -> BTreeSet<Name> {
        self.0.keys().cloned().collect()
    }

    fn reconcile(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Result<(), Failures> {
        self.0.retain(|job, _| wanted.contains_key(job));
        let mut failures = Failures::default();
        for (job, assignment) in wanted.iter().filter(|(job, _)| scope.has(job)) {
            self.3 += 1;
            assert!(!job.as_str().starts_with("bug"), "a bug");
            if job.as_str().starts_with("bad") {
                return Err(BoxedError::from(format!("no room for {job}")).into());
            }
            if job.as_str().starts_with("odd") {
                failures.note(job, Err(format!("no group for {job}")));
                continue;
            }
            if job.as_str().starts_with("late") && self.1.iter().any(|(bound, ..)| bound == job) {
                failures.note(job, Err(format!("too much in {job}")));
            }
            self.0.insert(job.clone(), assignment.clone());
        }
        failures.into_result()
    }

    fn bind(&mut self, job: &Name, processes: &[u32], user: Option<u32>) -> Result<(), BindError> {
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
        self.bind(job, &[process as u32], user)?;
        Ok(Some(Started::by(Identity { pid: process, start: 0 })))
    }

    fn end(&mut self, _job: &Name, command: &Started) -> Result<(), BoxedError> {
        lock(&self.4).push(command.clone());
        Ok(())
    }

    fn bind_flow(
        &mut self,
        assignment: &Assignment,
        _flow: &ConnectionPattern,
        user: Option<u32>,
    ) -> Result<(), BindError> {
        self.bind(&assignment.job, &[], user)
    }

    fn measure(&mut self, assignments: &[Assignment]) -> Vec<JobStatus> {
        self.2 += 1;
        assignments.iter().cloned().map(JobStatus::unmeasured).collect()
    }
}

pub(super) const ROOT: &Requester = &Requester::Trusted;

pub(super) fn at(seconds: u64) -> WallTime {
    WallTime::from_unix_nanos(seconds * 1_000_000_000)
}

pub(super) fn assignment(job: &str, until: u64) -> Assignment {
    Assignment::new(job.parse().unwrap(), CpuPpm::from_percent(10), at(until))
}

/// A node without disks.
pub(crate) fn capacity() -> Capacity {
    Capacity {
        cpu: CpuPpm::from_percent(40),
        reservable: BitsPerSecond::from_mbit(190),
        disks: BTreeMap::new(),
        capabilities: None,
        schedules: None,
    }
}

pub(super) fn start(directory: &TempDir, kernel: FakeKernel, now: u64) -> Agent<FakeKernel> {
    let store = Store::at(&directory.path().join("assignments.json"));
    Agent::start("n1".parse().unwrap(), capacity(), store, kernel, at(now)).unwrap()
}
