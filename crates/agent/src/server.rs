//! The agent's socket: who may ask, one thread for each connection, and a clock that ticks.

use crate::agent::{Agent, Enforcer, Requester};
use crate::wire::{LINE_BYTES_MAX, Request, Response};
use keeptime_linux::started::Started;
use keeptime_linux::users;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// How often expiry is looked at and the kernel's state is compared with what was assigned.
const TICK: Duration = Duration::from_millis(250);
/// Connections at once: a coordinator, its jobs' renewals and some people looking.
const CONNECTIONS_MAX: usize = 128;
/// Connections of ordinary users at once, beside these: every rank of their MPI programs has one.
const STRANGERS_MAX: usize = 256;
/// A connection that says nothing for so long is closed, unless a command of a job lasts as long as it.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// The socket cannot be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another agent answers there.
    #[error("another agent answers at {socket}")]
    Taken {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot listen at {socket}")]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Serves `agent` at `socket`; returns only if the socket fails.
///
/// # Errors
/// If another agent answers there already, or it cannot be made.
pub fn serve<E: Enforcer + 'static>(
    agent: &Arc<Mutex<Agent<E>>>,
    socket: &Path,
) -> Result<(), ServeError> {
    let listener = listen(socket)?;
    std::thread::spawn({
        let agent = Arc::clone(agent);
        move || tick_for_ever(&agent)
    });
    let (trusted, strangers) = (Seats::new(CONNECTIONS_MAX), Seats::new(STRANGERS_MAX));
    for stream in listener.incoming() {
        // The peer sees a closed connection; there is nobody else to tell.
        let Ok((stream, user)) = stream.and_then(|s| peer(&s).map(|user| (s, user))) else {
            continue;
        };
        let seats = if is_trusted(user) { &trusted } else { &strangers };
        let Some(seat) = seats.take() else { continue };
        let agent = Arc::clone(agent);
        std::thread::spawn(move || {
            let _seat = seat;
            let _ = converse(&agent, stream, &requester(user));
        });
    }
    Ok(())
}

/// A bounded number of connections at once.
struct Seats {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// Free again when dropped.
struct Seat(Arc<AtomicUsize>);

impl Seats {
    fn new(most: usize) -> Self {
        Self { taken: Arc::default(), most }
    }

    fn take(&self) -> Option<Seat> {
        let seat = Seat(Arc::clone(&self.taken));
        (seat.0.fetch_add(1, Ordering::SeqCst) < self.most).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Now, as the node's clock tells it.
pub fn now() -> WallTime {
    SystemTime::now().into()
}

fn listen(socket: &Path) -> Result<UnixListener, ServeError> {
    if UnixStream::connect(socket).is_ok() {
        return Err(ServeError::Taken { socket: socket.into() });
    }
    // Nobody answers: what stands there was left by an agent that was killed.
    let bind = || {
        if let Err(error) = fs::remove_file(socket)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let listener = UnixListener::bind(socket)?;
        // Who may ask for what is decided by who asks; users bind processes of their own.
        fs::set_permissions(socket, fs::Permissions::from_mode(0o666))?;
        Ok(listener)
    };
    bind().map_err(|source| ServeError::Listen { socket: socket.into(), source })
}

fn tick_for_ever<E: Enforcer>(agent: &Mutex<Agent<E>>) {
    let mut last = String::new();
    loop {
        let error = lock(agent).tick(now()).err();
        let said = error.map(|e| chain(e.as_ref())).unwrap_or_default();
        // The same trouble every tick is said once.
        if said != last && !said.is_empty() {
            tracing::error!("the kernel does not enforce what was assigned: {said}");
        }
        last = said;
        std::thread::sleep(TICK);
    }
}

fn converse<E: Enforcer>(
    agent: &Mutex<Agent<E>>,
    stream: UnixStream,
    requester: &Requester,
) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(IDLE_MAX))?;
    let process = getsockopt(&stream, PeerCredentials)?.pid();
    let visit = lock(agent).programs().visit();
    let mut commands = Commands { agent, started: Vec::new() };
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // What runs in a job says nothing for as long as it runs.
            Err(error) if is_timeout(&error) && line.is_empty() && commands.are_wanted() => {
                continue;
            }
            Err(error) => return Err(error),
        }
        let response = match serde_json::from_slice::<Request>(&line) {
            Err(error) => Response::Refused { reason: format!("not a request: {error}") },
            Ok(Request::Mpi(report)) => {
                let job = lock(agent).job_for(report.job.clone(), process, requester);
                // Waits for the broker, which may want something of this agent meanwhile.
                match job.and_then(|job| report.check().map(|()| job).map_err(|e| e.to_string())) {
                    Ok(job) => Response::Mpi(visit.report(job, report.rank)),
                    Err(reason) => Response::Refused { reason },
                }
            }
            Ok(Request::Start { job }) => {
                let started = lock(agent).start_command(&job, process, requester, now());
                match started {
                    Ok((place, command)) => {
                        commands.started.extend(command.map(|command| (job, command)));
                        Response::Started(place)
                    }
                    Err(error) => error.into(),
                }
            }
            Ok(Request::MpiProgress { job, progress }) => {
                let agent = lock(agent);
                match agent.job_for(job, process, requester) {
                    Ok(job) => {
                        agent.programs().progress(job, progress, now());
                        Response::Done
                    }
                    Err(reason) => Response::Refused { reason },
                }
            }
            Ok(request) => lock(agent).answer(request, requester, now()),
        };
        let mut answer = serde_json::to_vec(&response)?;
        answer.push(b'\n');
        reader.get_mut().write_all(&answer)?;
    }
}

/// The commands of jobs that last as long as a connection.
struct Commands<'a, E: Enforcer> {
    agent: &'a Mutex<Agent<E>>,
    started: Vec<(Name, Started)>,
}

impl<E: Enforcer> Commands<'_, E> {
    /// Whether the job of one of them is still there.
    fn are_wanted(&self) -> bool {
        let agent = lock(self.agent);
        let is_there = |job: &Name| agent.assignments().any(|assigned| assigned.job == *job);
        self.started.iter().any(|(job, _)| is_there(job))
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl<E: Enforcer> Drop for Commands<'_, E> {
    fn drop(&mut self) {
        for (job, command) in &self.started {
            if let Err(error) = lock(self.agent).end_command(job, command) {
                tracing::warn!("a command of {job} is not ended: {}", chain(error.as_ref()));
            }
        }
    }
}

/// The kernel says who is at the other end. A user id that this user namespace does not know is
/// nobody's.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == nix::unistd::geteuid().as_raw()
}

/// May ask a directory service: on the connection's own thread.
fn requester(user: u32) -> Requester {
    match is_trusted(user) {
        true => Requester::Trusted,
        false => Requester::User { id: user, name: users::name_of(user) },
    }
}

/// A thread that panicked in the middle left the book as it was: books are replaced whole.
pub(crate) fn lock<E>(agent: &Mutex<Agent<E>>) -> MutexGuard<'_, Agent<E>> {
    agent.lock().unwrap_or_else(PoisonError::into_inner)
}
