//! The nodes of a job as a run has them: shares are changed by the broker, CPU time is told by agents.

use super::steering::{Applied, Nodes};
use crate::cluster::Cluster;
use crate::reach::KeptAgent;
use anyhow::{Result, bail};
use keeptime_broker::client::Client as Broker;
use keeptime_broker::wire::Problem;
use keeptime_control::Schedule;
use keeptime_engine::book::Reservation;
use keeptime_linux::cgroup::CPU_PERIOD;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Grant, Handle, NodeChoice, Request, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::time::Instant;

/// What was granted, changed by changing the reservation.
#[derive(Debug)]
pub struct GrantedNodes {
    broker: Broker,
    handle: Handle,
    job: Name,
    /// What to ask for, with another share each time.
    request: Request,
    resources: Resources,
    agents: Vec<KeptAgent>,
    clock: Instant,
}

impl GrantedNodes {
    /// Those of `reservation`, which asked for resources; `clock` is what instants are told by.
    ///
    /// # Errors
    /// If nothing was granted, or nodes that the cluster does not have.
    pub fn new(cluster: &Cluster, reservation: &Reservation, clock: Instant) -> Result<Self> {
        let handle = reservation.handle;
        let (Some(grant), Ask::Resources(resources)) =
            (&reservation.grant, &reservation.request.ask)
        else {
            bail!("{handle} holds no resources");
        };
        let agents = node_indices(cluster, grant)?.into_iter();
        let agents = agents.map(|node| KeptAgent::new(cluster.agent(node)));
        // They stay where they are.
        let nodes = NodeChoice::Named(grant.nodes.clone());
        Ok(Self {
            broker: cluster.broker()?,
            handle,
            job: handle.job(),
            request: reservation.request.clone(),
            resources: Resources { nodes, ..resources.clone() },
            agents: agents.collect(),
            clock,
        })
    }
}

impl Nodes for GrantedNodes {
    fn count(&self) -> usize {
        self.agents.len()
    }

    fn used(&mut self) -> Option<Vec<Nanos>> {
        let job = &self.job;
        let used = |agent: &mut KeptAgent| agent.ask(|client| client.used(job)).ok();
        self.agents.iter_mut().map(used).collect()
    }

    fn apply(&mut self, schedules: &[Schedule], in_turn: bool) -> Applied {
        let mut resources = self.resources.clone();
        set_schedules(&mut resources, schedules);
        let request = Request { ask: Ask::Resources(resources), ..self.request.clone() };
        let changed = match in_turn {
            true => self.broker.correct(self.handle, &request),
            false => self.broker.modify(self.handle, &request),
        };
        match changed {
            Ok(_) => Applied::InForce { since: self.clock.elapsed().into() },
            Err(error) if error.is_retryable() => Applied::Unknown,
            Err(error) if error.problem().is_some_and(Problem::is_for_later) => Applied::NotYet,
            Err(error) => Applied::Refused { reason: error.to_string() },
        }
    }

    fn observed(&mut self) -> Option<Vec<Schedule>> {
        let grant = self.broker.reservation(self.handle).ok()?.grant?;
        let period = grant.cpu_period_nanos.unwrap_or(CPU_PERIOD);
        Some(grant.cpu_asked().map(|cpu| Schedule::new(cpu, period)).collect())
    }
}

/// Asks for schedules of one period: one for each rank, or one for all.
pub fn set_schedules(resources: &mut Resources, schedules: &[Schedule]) {
    resources.set_rank_cpu(schedules.iter().map(|schedule| schedule.cpu()).collect());
    resources.cpu_period_nanos = schedules.first().map(|schedule| schedule.period());
}

/// Where the ranks of a grant run.
///
/// # Errors
/// A node that the cluster does not have.
pub fn node_indices(cluster: &Cluster, grant: &Grant) -> Result<Vec<NodeIndex>> {
    let index = |name: &Name| match cluster.topology().find_node(name) {
        Some(node) => Ok(node),
        None => bail!("the broker granted {name}, which it did not tell of before"),
    };
    grant.nodes.iter().map(index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_agent::wire;

    // Goal: what a report costs a node's link, where nothing has to change: at most 64 bytes, twice what the
    // time-sharing paper's prototype needs.
    #[test]
    fn a_report_is_a_short_question_and_a_short_answer() {
        let job = "r123456".parse().unwrap();
        let question = serde_json::to_string(&wire::Request::Used { job }).unwrap();
        let a_week = Nanos::from_secs(7 * 24 * 3_600);
        let answer = serde_json::to_string(&wire::Response::Used(a_week)).unwrap();
        let bytes = format!("{question}\n{answer}\n").len();
        assert!(bytes <= 64, "{bytes}: {question} {answer}");
    }
}
