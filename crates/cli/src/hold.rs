//! A reservation in the hands of this process: kept by signs of life, and given back when it is dropped
//! if it was taken here, with how its run ended. If the process is killed, the broker gives that back after the lease.

use crate::cluster::Cluster;
use crate::{brokers, interrupt, waiting};
use anyhow::{Result, ensure};
use keeptime_broker::client::{Client, ClientError, new_key};
use keeptime_broker::words;
use keeptime_credentials::dates::now;
use keeptime_engine::book::Reservation;
use keeptime_locks::lock;
use keeptime_model::loss::OnLoss;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, Request, State};
use keeptime_model::run_end::RunEnd;
use keeptime_model::units::{CpuPpm, Nanos};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the broker keeps what a silent holder has: long enough for a machine that swaps, short
/// enough that a killed run is cleaned up while its user looks.
const LEASE: Nanos = Nanos::from_secs(10);
/// That something is not enforced was told.
static TOLD: Once = Once::new();
const KEEP_EVERY: Duration = Duration::from_secs(2);
/// For launching, and for ending what takes too long, on top of what the work may take. Without a
/// broker agents keep the reservation until then.
const MARGIN: Nanos = Nanos::from_secs(30);

/// A job's resources on all its nodes. Dropping it gives back what was taken here and ends what still runs.
#[derive(Debug)]
pub struct Hold {
    handle: Handle,
    /// Made before, by somebody who wants to keep it.
    is_lent: bool,
    broker: Client,
    seen: Arc<Mutex<Seen>>,
    unenforced: Vec<Name>,
    /// How its last run ended; nothing while there was none, or if that was told to stop.
    run: Mutex<Option<RunEnd>>,
    /// Closing it ends the signs of life.
    signs: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What the broker said last.
#[derive(Debug, Default)]
struct Seen {
    /// Why it is lost.
    lost: Option<String>,
    /// What it has of each node's CPU.
    cpu: Option<CpuPpm>,
}

/// So long is reserved for work that takes `limit` at most.
pub fn reserved_for(limit: Nanos) -> Nanos {
    limit.saturating_add(MARGIN)
}

impl Hold {
    /// Reserves what is asked from now on, for work that takes `limit` at most.
    ///
    /// # Errors
    /// Why the broker does not grant it; nothing is held then.
    pub fn take(cluster: &Cluster, asked: impl Into<Request>, limit: Nanos) -> Result<Self> {
        let duration_nanos = Some(reserved_for(limit));
        Self::take_in_advance(cluster, Request { duration_nanos, ..asked.into() })
    }

    /// Reserves what is asked for the time that is asked for, now or in advance, on nodes that may be used here. What may
    /// wait for room does so until this process is told to stop.
    ///
    /// # Errors
    /// As [`Self::take`]; if this process was told to stop before.
    pub fn take_in_advance(cluster: &Cluster, asked: Request) -> Result<Self> {
        ensure!(!interrupt::stopped(), "interrupted");
        let among = cluster.among().clone();
        let request = Request { lease_nanos: Some(LEASE), among, ..asked };
        let broker = cluster.broker()?;
        let granted =
            broker.reserve_unless(&interrupt::stopped, &waiting::tell, new_key()?, request);
        let granted = granted.map_err(brokers::failure)?;
        Self::watched(cluster, &granted, broker, false)
    }

    /// A reservation that was made before, and that is kept when this is dropped.
    ///
    /// # Errors
    /// If it is another user's, or its state cannot be followed.
    pub fn of_reservation(cluster: &Cluster, handle: Handle) -> Result<Self> {
        let broker = cluster.broker()?;
        let kept = broker.keep(handle).map_err(brokers::failure)?;
        Self::watched(cluster, &kept, broker, true)
    }

    /// What took the place of a reservation that was lost and is to be moved; nothing if it is there,
    /// ended otherwise, or is not to be moved. `on_loss` is what the application says.
    ///
    /// # Errors
    /// If the broker does not answer, or finds no room elsewhere.
    pub fn moved(&self, cluster: &Cluster, on_loss: OnLoss) -> Result<Option<(Self, Reservation)>> {
        let now = self.broker.reservation(self.handle).map_err(brokers::failure)?;
        let on_loss = now.request.on_loss.unwrap_or(on_loss);
        if now.state != State::Lost || on_loss != OnLoss::Move {
            return Ok(None);
        }
        let next = self.broker.move_lost(self.handle).map_err(brokers::failure)?;
        ensure!(next.state.is_live(), "{}, which took its place, is {}", next.handle, next.state);
        let hold = Self::watched(cluster, &next, cluster.broker()?, self.is_lent)?;
        Ok(Some((hold, next)))
    }

    /// Says once what is not enforced: of a command with many runs the rest is as the first.
    fn watched(
        cluster: &Cluster,
        held: &Reservation,
        broker: Client,
        is_lent: bool,
    ) -> Result<Self> {
        let (handle, unenforced) = (held.handle, held.unenforced.clone());
        if let Some(words) = words::unenforced(held) {
            TOLD.call_once(|| eprintln!("keeptime: {handle}: {words}"));
        }
        let (seen, run) = (Arc::default(), Mutex::default());
        let mut hold = Self { handle, is_lent, broker, seen, unenforced, run, signs: None };
        hold.signs = Some(hold.give_signs(cluster.broker()?));
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

    /// Nodes that enforced none of it when it was taken.
    pub fn unenforced(&self) -> &[Name] {
        &self.unenforced
    }

    /// Why the resources are no longer held, if the broker said so.
    pub fn lost(&self) -> Option<String> {
        lock(&self.seen).lost.clone()
    }

    /// Why the resources are no longer held: the broker is asked now, unless it has said so.
    pub fn confirm_lost(&self) -> Option<String> {
        self.lost().or_else(|| {
            let said = self.broker.keep(self.handle);
            heard(&self.broker, self.handle, said, Nanos::new(0)).lost
        })
    }

    /// What it has of each node's CPU, as the broker said within the last seconds; nothing if it said nothing yet. What
    /// is malleable has less, or more, from time to time.
    pub fn cpu(&self) -> Option<CpuPpm> {
        lock(&self.seen).cpu
    }

    /// Tells the broker what a run took: promises follow it.
    ///
    /// # Errors
    /// If the broker does not answer, or the reservation is over.
    pub fn report(&self, actual: Nanos) -> Result<(), ClientError> {
        self.broker.report(self.handle, actual).map(drop)
    }

    /// A run with it has ended; nothing if it was told to stop: what is given back after that was cancelled.
    pub fn ran(&self, end: Option<RunEnd>) {
        *lock(&self.run) = end;
    }

    /// On a connection of its own: other calls may take long.
    fn give_signs(&self, broker: Client) -> (Sender<()>, JoinHandle<()>) {
        let (stop, stopped) = channel::<()>();
        let (handle, seen) = (self.handle, Arc::clone(&self.seen));
        let thread = std::thread::spawn(move || {
            let mut untrusted_since: Option<Instant> = None;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(KEEP_EVERY) {
                let said = broker.keep(handle);
                let is_untrusted = said.as_ref().is_err_and(ClientError::is_about_trust);
                untrusted_since =
                    is_untrusted.then(|| untrusted_since.unwrap_or_else(Instant::now));
                let untrusted = untrusted_since.map_or(Nanos::new(0), |at| at.elapsed().into());
                let Seen { lost, cpu } = heard(&broker, handle, said, untrusted);
                let is_lost = lost.is_some();
                let mut seen = lock(&seen);
                *seen = Seen { lost, cpu: cpu.or(seen.cpu) };
                if is_lost {
                    return;
                }
            }
        });
        (stop, thread)
    }
}

/// What comes of what the broker says to a sign of life. For as long as `untrusted` it has not known who gives it.
fn heard(
    broker: &Client,
    handle: Handle,
    said: Result<Reservation, ClientError>,
    untrusted: Nanos,
) -> Seen {
    match said {
        Ok(kept) => {
            let now = kept.grant.as_ref().map(|grant| grant.at(now()));
            Seen { lost: None, cpu: now.map(|grant| grant.cpu_ppm) }
        }
        Err(error) if is_to_be_repeated(&error, untrusted) => Seen::default(),
        Err(error) => {
            let history = broker.history(handle).ok();
            let last = history.and_then(|mut history| history.records.pop());
            let why = last.map_or(error.to_string(), |last| format!("{handle} {}", last.text));
            Seen { lost: Some(why), cpu: None }
        }
    }
}

/// Whether the reservation may still be kept. A broker that is away tells nothing: when it comes back it knows the
/// reservation, and its lease begins anew. What expired may be renewed before that is over.
fn is_to_be_repeated(error: &ClientError, untrusted: Nanos) -> bool {
    error.is_retryable() || (error.is_about_trust() && untrusted < LEASE)
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.signs.take() {
            drop(stop);
            let _ = thread.join();
        }
        if !self.is_lent {
            // If the broker cannot be reached, the lease runs out instead.
            let run = *lock(&self.run);
            let _ = match run {
                Some(end) => self.broker.finish(self.handle, end),
                None => self.broker.cancel(self.handle),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_broker::wire::Problem;
    use keeptime_credentials::untrusted::Untrusted;

    // Goal: a run outlives a certificate that is renewed a moment too late, and does not go on without its reservation.
    // Method: what a broker may say, first and for as long as it keeps what it hears nothing of.
    #[test]
    fn who_is_turned_away_has_as_long_as_the_lease_to_be_known_again() {
        let place = || "https://broker:7411".to_owned();
        let expired = ClientError::Untrusted { place: place(), source: Untrusted::OursMissing };
        let told = |status| ClientError::Problem(Box::new(Problem::new(status, "said", "said")));
        for error in [&expired, &told(401)] {
            assert!(is_to_be_repeated(error, Nanos::new(0)), "{error}");
            assert!(is_to_be_repeated(error, LEASE.saturating_sub(Nanos::new(1))), "{error}");
            assert!(!is_to_be_repeated(error, LEASE), "{error}");
        }
        assert!(!is_to_be_repeated(&told(404), Nanos::new(0)), "it is over");
        let source = std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
        let away = ClientError::Unreachable { place: place(), source };
        assert!(is_to_be_repeated(&away, LEASE), "it may come back");
    }
}
