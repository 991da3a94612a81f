//! A reservation as long as this process lives: granted by the broker, kept by signs of life, given
//! back when it is dropped. If the process is killed, the broker gives it back after the lease.

use crate::brokers;
use crate::cluster::Cluster;
use anyhow::Result;
use keeptime_broker::client::{Client, ClientError, new_key};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, Request};
use keeptime_model::units::Nanos;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the broker keeps what a silent holder has: long enough for a machine that swaps, short
/// enough that a killed run is cleaned up while its user looks.
const LEASE: Nanos = Nanos::from_secs(10);
const KEEP_EVERY: Duration = Duration::from_secs(2);
/// For launching, and for ending what takes too long, on top of what the work may take. Without a
/// broker agents keep the reservation until then.
const MARGIN: Nanos = Nanos::from_secs(30);

/// A job's resources on all its nodes. Dropping it gives them back and ends what still runs.
#[derive(Debug)]
pub struct Hold {
    handle: Handle,
    broker: Client,
    lost: Arc<Mutex<Option<String>>>,
    /// Closing it ends the signs of life.
    signs: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Hold {
    /// Reserves `ask` from now on, for work that takes `limit` at most.
    ///
    /// # Errors
    /// Why the broker does not grant it; nothing is held then.
    pub fn take(cluster: &Cluster, ask: Ask, limit: Nanos) -> Result<Self> {
        let request = Request {
            duration_nanos: Some(limit.saturating_add(MARGIN)),
            lease_nanos: Some(LEASE),
            ..Request::new(ask)
        };
        let broker = cluster.broker()?;
        let granted = broker.reserve(new_key()?, request).map_err(brokers::failure)?;
        let handle = granted.handle;
        let mut hold = Self { handle, broker, lost: Arc::default(), signs: None };
        hold.signs = Some(hold.give_signs(&cluster.broker_socket())?);
        Ok(hold)
    }

    /// The reservation.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Its job on every node.
    pub fn job(&self) -> Name {
        self.handle.job()
    }

    /// Why the resources are no longer held, if the broker said so.
    pub fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, asked now.
    pub fn confirm_lost(&self) -> Option<String> {
        self.lost().or_else(|| loss(&self.broker, self.handle))
    }

    /// Tells the broker what a run took: promises follow it.
    ///
    /// # Errors
    /// If the broker does not answer, or the reservation is over.
    pub fn report(&self, actual: Nanos) -> Result<(), ClientError> {
        self.broker.report(self.handle, actual).map(drop)
    }

    fn give_signs(&self, socket: &Path) -> Result<(Sender<()>, JoinHandle<()>)> {
        let broker = Client::new(socket)?;
        let (stop, stopped) = channel::<()>();
        let (handle, lost) = (self.handle, Arc::clone(&self.lost));
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(KEEP_EVERY) {
                if let Some(why) = loss(&broker, handle) {
                    *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                    return;
                }
            }
        });
        Ok((stop, thread))
    }
}

/// A sign of life, and why it comes too late, if so. A broker that is away tells nothing: when it comes
/// back it knows the reservation, and its lease begins anew.
fn loss(broker: &Client, handle: Handle) -> Option<String> {
    match broker.keep(handle) {
        Err(error) if !error.is_retryable() => {
            let history = broker.history(handle).ok();
            let last = history.and_then(|mut history| history.records.pop());
            Some(last.map_or(error.to_string(), |last| format!("{handle} {}", last.text)))
        }
        _ => None,
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.signs.take() {
            drop(stop);
            let _ = thread.join();
        }
        // If the broker cannot be reached, the lease runs out instead.
        let _ = self.broker.cancel(self.handle);
    }
}
