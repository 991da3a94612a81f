//! A run: one thread that keeps the schedule, and as many as there are connections.

use crate::http::{Connection, Failure};
use crate::report::{Outcome, Report, Tally};
use crate::schedule::{Arrivals, Intended, Schedule};
use crate::target::{Method, Target, Zipf};
use keeptime_model::Invalid;
use keeptime_model::units::Nanos;
use keeptime_random::Random;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Most connections: each has a thread.
pub const CONNECTIONS_MAX: u32 = 2_048;
/// Most targets of a run.
pub const TARGETS_MAX: usize = 64;
/// Most bytes of a POST: it is kept once for all connections.
pub const POST_MAX: u32 = 16 * 1024 * 1024;
/// Requests that may wait for a connection; those beyond are counted as not sent.
const WAITING_MAX: usize = 65_536;
/// An idle connection is not used any more after this time: balancers close theirs after seconds, and
/// a request that is sent just then is lost through the client's own fault.
const IDLE_MAX: Duration = Duration::from_millis(500);
const STACK: usize = 256 * 1024;
/// How often it is looked, after the last request was handed over, whether all is done or to be stopped: a run is so
/// much longer at the most.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The sites.
    pub targets: Vec<Target>,
    /// When.
    pub arrivals: Arrivals,
    /// Until when requests are meant to be sent. Those that still wait for a connection then are sent as long as one more
    /// `timeout` allows: so a run ends two of these later at the most.
    pub length: Nanos,
    /// How.
    pub method: Method,
    /// Which file; without, `{}` stands for 1.
    pub files: Option<Zipf>,
    /// At most so many connections at a time, over all sites.
    pub connections: u32,
    /// So long after a request was sent its answer is not waited for any more.
    pub timeout: Nanos,
    /// Where random numbers start.
    pub seed: u64,
}

/// Why nothing was sent.
#[derive(Debug, Error)]
pub enum RunError {
    /// The plan makes no sense.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The name of a site has no address.
    #[error("{target} has no address")]
    NoAddress {
        /// The site.
        target: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The machine has no more threads.
    #[error("cannot start a thread for each of {connections} connections")]
    Threads {
        /// So many.
        connections: u32,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// A site that can be reached.
struct Site {
    address: SocketAddr,
    target: Target,
}

/// What all connections share.
struct Shared<'a> {
    sites: &'a [Site],
    plan: &'a Plan,
    body: Vec<u8>,
    /// When it is first looked at, which is by the schedule: until then, threads are started.
    start: LazyLock<Instant>,
    /// Somebody stopped it all: what waits for a connection is not sent any more.
    is_stopped: AtomicBool,
}

/// A request on its way to a connection.
struct Job {
    intended: Intended,
    rank: u32,
}

/// Sends what `plan` says and tells what came of it. Ends early when `is_stopped`: what was sent is waited for, and what
/// waits for a connection is not sent.
///
/// # Errors
/// If nothing can be sent.
pub fn run(plan: &Plan, is_stopped: &dyn Fn() -> bool) -> Result<Report, RunError> {
    check(plan)?;
    let sites = plan.targets.iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
    let bytes = if let Method::Post(bytes) = plan.method { bytes as usize } else { 0 };
    let (body, not_yet) = (vec![b'x'; bytes], AtomicBool::new(false));
    let shared = Shared {
        sites: &sites,
        plan,
        body,
        start: LazyLock::new(Instant::now),
        is_stopped: not_yet,
    };
    let (send, receive) = sync_channel(WAITING_MAX);
    let receive = Mutex::new(receive);
    let tallies = thread::scope(|scope| {
        // Its end, with the sender, ends the others.
        let send = send;
        let spawn = |_| {
            let builder = thread::Builder::new().stack_size(STACK);
            builder.spawn_scoped(scope, || serve(&shared, &receive))
        };
        let workers = (0..plan.connections).map(spawn).collect::<Result<Vec<_>, _>>();
        let workers = workers
            .map_err(|source| RunError::Threads { connections: plan.connections, source })?;
        let mut tallies = keep_schedule(&shared, is_stopped, |job| send.try_send(job));
        drop(send);
        while !workers.iter().all(|worker| worker.is_finished()) {
            if is_stopped() {
                shared.is_stopped.store(true, Ordering::Relaxed);
            }
            thread::sleep(LOOK_EVERY);
        }
        for worker in workers {
            let Ok(more) = worker.join() else { continue };
            tallies.iter_mut().zip(&more).for_each(|(tally, more)| tally.add(more));
        }
        Ok::<_, RunError>(tallies)
    })?;
    let names: Vec<_> = plan.targets.iter().map(Target::to_string).collect();
    Ok(Report::new(&names, &tallies))
}

/// Hands every request over at its time.
fn keep_schedule(
    shared: &Shared<'_>,
    is_stopped: &dyn Fn() -> bool,
    send: impl Fn(Job) -> Result<(), TrySendError<Job>>,
) -> Vec<Tally> {
    let plan = shared.plan;
    let count = plan.targets.len() as u32;
    let mut tallies = vec![Tally::default(); plan.targets.len()];
    // Ranks have numbers of their own, so that the times do not depend on them.
    let mut random = Random::new(plan.seed ^ u64::MAX);
    for intended in Schedule::new(plan.arrivals.clone(), count, plan.length, plan.seed) {
        if !wait_until(shared, intended.at, is_stopped) {
            break;
        }
        let tally = &mut tallies[intended.target as usize];
        tally.intend(intended.at);
        let rank = plan.files.as_ref().map_or(1, |files| files.rank(&mut random));
        if send(Job { intended, rank }).is_err() {
            tally.not_sent();
        }
    }
    tallies
}

/// Whether the time came before somebody stopped it all.
fn wait_until(shared: &Shared<'_>, at: Nanos, is_stopped: &dyn Fn() -> bool) -> bool {
    const LOOK: Duration = Duration::from_millis(100);
    loop {
        if is_stopped() {
            return false;
        }
        let left = Duration::from_nanos(at.saturating_sub(shared.now()).get());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK));
    }
}

/// One connection to one site at a time, as long as there is something to send.
fn serve(shared: &Shared<'_>, jobs: &Mutex<Receiver<Job>>) -> Vec<Tally> {
    let mut tallies = vec![Tally::default(); shared.sites.len()];
    let mut idle: Option<(u32, Connection, Instant)> = None;
    loop {
        let job = match jobs.lock() {
            Ok(jobs) => jobs.recv(),
            Err(_) => return tallies,
        };
        let Ok(job) = job else { return tallies };
        let target = job.intended.target;
        if shared.is_over() {
            tallies[target as usize].not_sent();
            continue;
        }
        let kept = idle.take().filter(|(to, connection, since)| {
            *to == target && since.elapsed() < IDLE_MAX && connection.is_idle()
        });
        let sent = shared.now();
        let (result, connection) = ask(shared, &job, kept.map(|(_, connection, _)| connection));
        idle = connection.map(|connection| (target, connection, Instant::now()));
        let intended = job.intended.at;
        let outcome = Outcome { target, intended, sent, ended: shared.now(), result };
        tallies[target as usize].count(&outcome);
    }
}

/// One request, once; the connection if it can be used again.
fn ask(
    shared: &Shared<'_>,
    job: &Job,
    kept: Option<Connection>,
) -> (Result<u16, Failure>, Option<Connection>) {
    let site = &shared.sites[job.intended.target as usize];
    let deadline = Instant::now() + Duration::from_nanos(shared.plan.timeout.get());
    let opened = kept.map_or_else(|| Connection::open(site.address, deadline), Ok);
    let mut connection = match opened {
        Ok(connection) => connection,
        Err(failure) => return (Err(failure), None),
    };
    match connection.exchange(&request(shared, site, job.rank), deadline) {
        Ok(answer) => (Ok(answer.status), answer.reusable.then_some(connection)),
        Err(failure) => (Err(failure), None),
    }
}

fn request(shared: &Shared<'_>, site: &Site, rank: u32) -> Vec<u8> {
    let (path, host) = (site.target.path_of(rank), site.target.host_field());
    let agent = concat!("User-Agent: keeptime/", env!("CARGO_PKG_VERSION"));
    match shared.plan.method {
        Method::Get => format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{agent}\r\n\r\n").into(),
        Method::Post(bytes) => {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: {host}\r\n{agent}\r\n\
                 Content-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\r\n"
            );
            [head.as_bytes(), &shared.body].concat()
        }
    }
}

fn check(plan: &Plan) -> Result<(), Invalid> {
    if !(1..=TARGETS_MAX).contains(&plan.targets.len()) {
        let expected = format!("1 to {TARGETS_MAX} of them");
        return Err(Invalid::new("targets", plan.targets.len(), expected));
    }
    if !(1..=CONNECTIONS_MAX).contains(&plan.connections) {
        let expected = format!("1 to {CONNECTIONS_MAX}");
        return Err(Invalid::new("connections", plan.connections, expected));
    }
    if plan.timeout == Nanos::new(0) {
        return Err(Invalid::new("timeout", plan.timeout, "a time above 0"));
    }
    match plan.method {
        Method::Post(bytes) if bytes > POST_MAX => {
            Err(Invalid::new("post", bytes, format!("at most {POST_MAX} bytes")))
        }
        _ => Ok(()),
    }
}

fn resolve(target: &Target) -> Result<Site, RunError> {
    let none = |source| RunError::NoAddress { target: target.to_string(), source };
    let mut addresses = (target.host.as_str(), target.port).to_socket_addrs().map_err(none)?;
    let address = addresses.next().ok_or_else(|| none(std::io::ErrorKind::NotFound.into()))?;
    Ok(Site { address, target: target.clone() })
}

impl Shared<'_> {
    /// Whether nothing more is sent: nobody waits for it any more.
    fn is_over(&self) -> bool {
        let end = self.plan.length.saturating_add(self.plan.timeout);
        self.is_stopped.load(Ordering::Relaxed) || self.now() >= end
    }

    /// Since the start.
    fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }
}
