//! When a reservation that was made before begins, at the broker and on its nodes.

use crate::cluster::Cluster;
use crate::reach::KeptAgent;
use anyhow::Result;
use keeptime_agent::client::ClientError;
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use std::time::{Duration, Instant};

/// How often it is looked whether a reservation has begun.
pub(in crate::commands) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long nodes may take to begin what has begun.
const AGENTS_WITHIN: Duration = Duration::from_secs(5);

/// The nodes of a job, asked whether they have begun with it: what begins by the broker's clock does a moment
/// later by a node's.
#[derive(Debug)]
pub(in crate::commands) struct Beginning {
    job: Name,
    agents: Vec<KeptAgent>,
}

impl Beginning {
    pub(in crate::commands) fn of(cluster: &Cluster, nodes: &[NodeIndex], job: Name) -> Self {
        let agents = nodes.iter().map(|node| KeptAgent::new(cluster.agent(*node)));
        Self { job, agents: agents.collect() }
    }

    /// Whether all of them have.
    ///
    /// # Errors
    /// If one does not answer.
    pub(in crate::commands) fn is_over(&mut self) -> Result<bool, ClientError> {
        let job = &self.job;
        for agent in &mut self.agents {
            match agent.ask(|client| client.job(job)) {
                Ok(status) if status.cpu_kept_by.is_some() => {}
                // It is assigned a moment before it begins.
                Ok(_) | Err(ClientError::Refused { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Waits until all of them have. One that does not come to it is not waited for any longer: the run then
    /// says what it lacks.
    ///
    /// # Errors
    /// If one does not answer.
    pub(in crate::commands) fn wait(&mut self) -> Result<()> {
        let waiting = Instant::now();
        while waiting.elapsed() < AGENTS_WITHIN && !self.is_over()? {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}
