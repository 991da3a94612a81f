//! When a reservation that was made before begins, at the broker and on its nodes.

use crate::cluster::Cluster;
use crate::reach::KeptAgents;
use keeptime_agent::wire::JobStatus;
use keeptime_broker::client::ClientError;
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use std::time::{Duration, Instant};

/// How often it is looked whether a reservation has begun.
pub(in crate::commands) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long they may take to answer first: a remote shell that leads there has to be started.
const REACHED_WITHIN: Duration = Duration::from_secs(30);
/// How long nodes may take to begin what has begun.
const AGENTS_WITHIN: Duration = Duration::from_secs(5);

/// Whether who waits goes on after this: a broker that is away comes back, and what is shown to it may be renewed.
pub(in crate::commands) fn may_pass(error: &ClientError) -> bool {
    error.is_retryable() || error.is_about_trust()
}

/// The nodes of a job, asked whether they have begun with it: what begins by the broker's clock does a moment
/// later by a node's.
#[derive(Debug)]
pub(in crate::commands) struct Beginning {
    job: Name,
    agents: KeptAgents,
}

impl Beginning {
    pub(in crate::commands) fn of(cluster: &Cluster, nodes: &[NodeIndex], job: Name) -> Self {
        Self { job, agents: KeptAgents::new(nodes.iter().map(|node| cluster.agent(*node))) }
    }

    /// Whether all of them have, as they say `within` this. One that does not answer may do so a moment later.
    fn is_over(&mut self, within: Duration) -> bool {
        let job = self.job.clone();
        let statuses = self.agents.ask(Some(within), move |agent| agent.job(&job));
        // It is assigned a moment before it begins. Older agents say no more than what keeps its share.
        let has_begun = |status: JobStatus| status.begun || status.cpu_kept_by.is_some();
        statuses.into_iter().all(|status| status.is_ok_and(has_begun))
    }

    /// Waits until all of them have. One that does not come to it is not waited for any longer: the run then
    /// says what it lacks.
    pub(in crate::commands) fn wait(&mut self) {
        if self.is_over(REACHED_WITHIN) {
            return;
        }
        let until = Instant::now() + AGENTS_WITHIN;
        let left = || until.duration_since(Instant::now());
        loop {
            std::thread::sleep(LOOK_EVERY);
            if left().is_zero() || self.is_over(left()) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::AgentPlace;
    use keeptime_agent::wire::{Request, Response};
    use keeptime_model::assignment::CpuMechanism;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    fn job() -> Name {
        "r7".parse().unwrap()
    }

    fn status() -> JobStatus {
        let assigned = r#"{"job": "r7", "cpu_ppm": 300000, "until_unix_nanos": 9}"#;
        JobStatus::unmeasured(serde_json::from_str(assigned).unwrap())
    }

    /// Whether it is over, by each look at an agent that hangs up once and then answers so.
    fn looks<const N: usize>(answers: [JobStatus; N]) -> Vec<bool> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let agent = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (stream, _) = listener.accept().unwrap();
            let requests = BufReader::new(&stream).lines().map_while(Result::ok);
            for (status, request) in answers.into_iter().zip(requests) {
                assert_eq!(
                    serde_json::from_str::<Request>(&request).unwrap(),
                    Request::Job { job: job() }
                );
                let line = serde_json::to_string(&Response::Job(Box::new(status))).unwrap() + "\n";
                (&stream).write_all(line.as_bytes()).unwrap();
            }
        });
        let agents = KeptAgents::new([AgentPlace::Socket(socket)]);
        let mut beginning = Beginning { job: job(), agents };
        let looks = (0..=N).map(|_| beginning.is_over(AGENTS_WITHIN)).collect();
        drop(beginning);
        agent.join().unwrap();
        looks
    }

    // Goal: one hiccup of an agent ends no wait. Method: an agent that hangs up, has the job, and then enforces it, as older
    // ones say it.
    #[test]
    fn what_begins_is_waited_for_though_an_agent_hangs_up_once() {
        let kept = JobStatus { cpu_kept_by: Some(CpuMechanism::Bandwidth), ..status() };
        assert_eq!(looks([status(), kept]), [false, false, true]);
    }

    // As in a lab without root.
    #[test]
    fn what_begins_where_nothing_is_enforced_is_not_waited_for_longer() {
        assert_eq!(looks([JobStatus { begun: true, ..status() }]), [false, true]);
    }
}
