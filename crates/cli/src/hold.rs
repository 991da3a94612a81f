//! A job's resources on all its nodes: taken together or not at all, kept by a lease while the
//! holder lives, given back when it is dropped or killed.

use crate::cluster::Cluster;
use anyhow::{Context, Result};
use keeptime_agent::client::{Client, ClientError};
use keeptime_agent::server::now;
use keeptime_model::assignment::{AssignedFlow, Assignment};
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long agents keep a job whose holder says nothing: long enough for a machine that swaps,
/// short enough that a killed run is cleaned up while its user looks.
const LEASE: Nanos = Nanos::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// What one job needs of one node.
#[derive(Debug, Clone)]
pub struct Need {
    /// CPU of its processes there.
    pub cpu: CpuPpm,
    /// What leaves the node.
    pub flows: Vec<AssignedFlow>,
}

/// A job's resources. Dropping it gives them back and ends what still runs.
#[derive(Debug)]
pub struct Hold {
    job: Name,
    clients: Vec<(NodeIndex, Client)>,
    lost: Arc<Mutex<Option<String>>>,
    /// Closing it ends the renewals.
    renewals: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Hold {
    /// Takes `needs` on every node for `job`: all or nothing.
    ///
    /// # Errors
    /// What the first node that refused said; nothing is held then.
    pub fn take(cluster: &Cluster, job: &Name, needs: &BTreeMap<NodeIndex, Need>) -> Result<Self> {
        let mut hold =
            Self { job: job.clone(), clients: Vec::new(), lost: Arc::default(), renewals: None };
        for (node, need) in needs {
            let until = now().saturating_add(LEASE);
            let flows = need.flows.clone();
            let assignment = Assignment { flows, ..Assignment::new(job.clone(), need.cpu, until) };
            let name = &cluster.topology().node(*node).name;
            let mut client = cluster.client(*node)?;
            let answer = client.enforce(assignment);
            // Also where it failed: an answer that was lost may have been a yes.
            hold.clients.push((*node, client));
            answer.with_context(|| format!("while reserving on {name}"))?;
        }
        hold.renewals = Some(hold.start_renewals(cluster)?);
        Ok(hold)
    }

    /// The job.
    pub fn job(&self) -> &Name {
        &self.job
    }

    /// Why the resources are no longer held, if so.
    pub fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn start_renewals(&self, cluster: &Cluster) -> Result<(Sender<()>, JoinHandle<()>)> {
        let nodes: Vec<_> = self.clients.iter().map(|(node, _)| *node).collect();
        let mut links: Vec<_> = nodes
            .into_iter()
            .map(|node| {
                Ok((
                    cluster.topology().node(node).name.clone(),
                    cluster.socket(node),
                    cluster.client(node)?,
                ))
            })
            .collect::<Result<_, ClientError>>()?;
        let (stop, stopped) = channel::<()>();
        let (job, lost) = (self.job.clone(), Arc::clone(&self.lost));
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(RENEW_EVERY) {
                for (name, socket, client) in &mut links {
                    let until = now().saturating_add(LEASE);
                    match client.renew(&job, until) {
                        Ok(()) => {}
                        // An agent that restarts comes back with the job; the next round meets it.
                        Err(error) if error.is_retryable() => {
                            if let Ok(fresh) = Client::connect(socket) {
                                *client = fresh;
                            }
                        }
                        Err(error) => {
                            let why = format!("{name}: {error}");
                            *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                        }
                    }
                }
            }
        });
        Ok((stop, thread))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.renewals.take() {
            drop(stop);
            let _ = thread.join();
        }
        for (_, client) in &mut self.clients {
            // An agent that restarted has the job and not this connection. One that cannot be reached
            // lets the lease run out instead.
            if let Err(ClientError::Unreachable { socket, source }) = client.withdraw(&self.job)
                && !matches!(source.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
                && let Ok(mut fresh) = Client::connect(&socket)
            {
                let _ = fresh.withdraw(&self.job);
            }
        }
    }
}
