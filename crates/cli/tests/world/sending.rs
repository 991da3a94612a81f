//! A job that runs and sends while something happens to whoever granted it.

use super::{KEEPTIME, PATIENCE, World, wait};
use keeptime_agent::client::Client;
use keeptime_agent::wire::JobStatus;
use std::process::{Child, Command, Stdio};

/// A tenth of a second of 20 Mbit/s.
const SOME: u64 = 250_000;

/// Sends from the first node to the second as a part of a job of both, until this is dropped.
pub struct Sending<'a> {
    world: &'a World,
    job: &'a str,
    ends: [Child; 2],
    /// As it was looked at last.
    last: JobStatus,
}

impl<'a> Sending<'a> {
    /// Starts both ends and waits for what is sent.
    pub fn start(world: &'a World, job: &'a str) -> Self {
        let name = world.name.as_str();
        let receive = ["lab", "exec", "--die-with-parent", name, "n2", "--", KEEPTIME, "traffic"];
        let receive = [&receive[..], &["receive", "--warmup", "0s", "--length", "600s"]].concat();
        let to = format!("{}:5001", world.address(1));
        let send = ["lab", "exec", "--die-with-parent", "--job", job, name, "n1", "--", KEEPTIME];
        let send = [&send[..], &["traffic", "send", &to]].concat();
        let ends = [receive, send].map(|words| start(world.keeptime(&words)));
        let last = status(world, job).expect("the job is on its first node");
        let mut sending = Self { world, job, ends, last };
        sending.wait_for_more();
        sending
    }

    /// It has noticed nothing since it was looked at last: its process runs, its share and rate are as they were,
    /// the class of its flow has counted on, and more is sent.
    pub fn assert_undisturbed(&mut self) {
        let now = status(self.world, self.job).expect("the job is still there");
        assert_eq!(now.processes, self.last.processes, "its process runs");
        assert_eq!(now.assignment, self.last.assignment);
        assert!(sent(&now) >= sent(&self.last), "its class was made anew: {now:?}");
        self.wait_for_more();
    }

    /// The clock was set back and that was accepted: the job has begun before now by it, whatever was recorded.
    pub fn expect_earlier_start(&mut self) {
        let before = self.last.assignment.from_unix_nanos;
        wait("its start by the clock that was accepted", PATIENCE, || {
            let now = status(self.world, self.job).map(|now| now.assignment.from_unix_nanos);
            let is_earlier = now.is_some_and(|now| now < before);
            if let Some(now) = now.filter(|_| is_earlier) {
                self.last.assignment.from_unix_nanos = now;
            }
            is_earlier
        });
    }

    fn wait_for_more(&mut self) {
        let before = sent(&self.last);
        wait("more to be sent", PATIENCE, || {
            status(self.world, self.job).is_some_and(|now| {
                let more = sent(&now) > before + SOME;
                self.last = now;
                more
            })
        });
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        for end in &mut self.ends {
            let _ = end.kill();
            let _ = end.wait();
        }
    }
}

/// What the agent of the first node says of a job.
fn status(world: &World, job: &str) -> Option<JobStatus> {
    let status = Client::connect(&world.socket("n1")).ok()?.status().ok()?;
    status.jobs.into_iter().find(|found| found.assignment.job.as_str() == job)
}

/// Bytes of its one flow, as the kernel counts them.
fn sent(status: &JobStatus) -> u64 {
    status.flows.iter().map(|flow| flow.sent_bytes.get()).sum()
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
