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
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
            let assignment = Assignment {
                job: job.clone(),
                cpu_ppm: need.cpu,
                flows: need.flows.clone(),
                until_unix_nanos: now().saturating_add(LEASE),
            };
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
        let mut leases = self
            .clients
            .iter()
            .map(|(node, _)| {
                Ok(Lease {
                    node: cluster.topology().node(*node).name.clone(),
                    socket: cluster.socket(*node),
                    client: cluster.client(*node)?,
                    renewed: Instant::now(),
                })
            })
            .collect::<Result<Vec<_>, ClientError>>()?;
        let (stop, stopped) = channel::<()>();
        let (job, lost) = (self.job.clone(), Arc::clone(&self.lost));
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(RENEW_EVERY) {
                for lease in &mut leases {
                    if let Err(why) = lease.renew(&job) {
                        *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                    }
                }
            }
        });
        Ok((stop, thread))
    }
}

/// The job's lease on one node.
struct Lease {
    node: Name,
    socket: PathBuf,
    client: Client,
    /// When the agent last said that it has been renewed.
    renewed: Instant,
}

impl Lease {
    /// Renews it, or tells why it is lost. An agent that restarts comes back with the job and is met
    /// in a later round; one that stays away for the whole lease has nothing left to give.
    fn renew(&mut self, job: &Name) -> Result<(), String> {
        match self.client.renew(job, now().saturating_add(LEASE)) {
            Ok(()) => self.renewed = Instant::now(),
            Err(error)
                if error.is_retryable()
                    && self.renewed.elapsed() < Duration::from_nanos(LEASE.get()) =>
            {
                if let Ok(fresh) = Client::connect(&self.socket) {
                    self.client = fresh;
                }
            }
            Err(error) => return Err(format!("{}: {error}", self.node)),
        }
        Ok(())
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
