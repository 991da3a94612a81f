//! The daemon: opens the ledger, starts the engine's thread, serves users and agents until it is told
//! to stop or cannot go on.

use crate::agents::{Hub, Reception};
use crate::config::Config;
use crate::core::{Core, CoreError, Handle};
use crate::door::{self, CONNECTIONS_MAX, CONNECTIONS_OF_USER_MAX, Operators};
use crate::http::{self, Shared};
use crate::impatient::{HangUp, Impatient, TAKEN_WITHIN};
use crate::loads::Loads;
use crate::names::Names;
use crate::node_loads::NodeLoads;
use crate::rates::Rates;
use crate::sites::Sites;
use crate::wire::Problem;
use crate::{tcp, vital};
use axum::Router;
use axum::http::header;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use keeptime_agent::seats::{Full, Seat, Seats};
use keeptime_engine::{Caller, Cluster};
use keeptime_ledger::{LedgerError, SqliteLedger, Writer};
use keeptime_linux::egress::{self, Link};
use keeptime_linux::vital as threads;
use keeptime_model::Invalid;
use keeptime_model::topology::Topology;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

/// Of the connections that users have at a time, kept for operators, who look after what happens when others have all the rest.
const CONNECTIONS_OF_OPERATORS: usize = 64;
/// As whom all count together who have no name here: the kernel gives this number to nobody.
const NAMELESS: u32 = u32::MAX;
/// A connection on which no request begins for so long is closed.
const HEADER_WITHIN: Duration = Duration::from_secs(30);
/// What is read ahead of a connection: its headers have to fit.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Threads for connections: the work is done by the engine's and the ledger's own.
const WORKERS: usize = 2;
/// Threads for what blocks or takes long: reads of the ledger, long answers, and questions to a directory service. More wait
/// for one; the unit file allows 256 threads in all.
const BLOCKING_MAX: usize = 64;
/// How often it is looked whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why the broker does not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The topology cannot be used.
    #[error("in {path}")]
    Topology {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: Invalid,
    },
    /// The ledger cannot be used.
    #[error("the ledger cannot be used")]
    Ledger(#[from] LedgerError),
    /// Another broker answers there.
    #[error("another broker answers at {socket}")]
    Taken {
        /// The socket.
        socket: PathBuf,
    },
    /// A socket cannot be made.
    #[error("cannot listen at {socket}")]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The door over TCP cannot be opened.
    #[error("the door over TCP cannot be opened")]
    Tcp(#[from] tcp::TcpError),
    /// Signals cannot be received.
    #[error("cannot receive SIGHUP")]
    Signal(#[source] io::Error),
    /// Its socket is gone: nobody can ask it any more.
    #[error("{socket} was removed")]
    Removed {
        /// The socket.
        socket: PathBuf,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The engine cannot go on.
    #[error("the broker cannot go on")]
    Core(#[from] CoreError),
}

/// The cluster that `config` names.
///
/// # Errors
/// If its topology cannot be read or used.
pub fn cluster(config: &Config) -> Result<Cluster, ServeError> {
    let path = &config.topology;
    let text = fs::read_to_string(path)
        .map_err(|source| ServeError::File { path: path.clone(), source })?;
    let topology = |source| ServeError::Topology { path: path.clone(), source };
    let found = Topology::from_toml(&text).map_err(topology)?;
    Cluster::new(found, |rate| egress::reservable(&Link::new("", rate))).map_err(topology)
}

/// Runs a broker until `stop` says so, or its socket is removed.
///
/// # Errors
/// Why it cannot start or go on.
// Not generic, so that all of a broker is compiled here, once.
pub fn run(config: &Config, stop: &dyn Fn() -> bool) -> Result<(), ServeError> {
    let cluster = cluster(config)?;
    let topology = cluster.topology().clone();
    let far = config.tcp.as_ref().map(tcp::Door::new).transpose()?;
    // Before anything is made: a second broker on the same ledger ends here, and takes nobody's socket.
    let ledger = SqliteLedger::open(&config.ledger)?;
    let writer = Writer::start(ledger).map_err(ServeError::Thread)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_MAX)
        .enable_all()
        .build()
        .map_err(ServeError::Thread)?;
    let hub = Arc::new(Hub::default());
    let policy = config.policy.policy();
    let lease = policy.agent_lease_nanos;
    let (core, handle, feed, counters) =
        Core::new(cluster, policy, writer.clone(), Arc::clone(&hub))?;
    let thread = threads::spawn("engine", move || core.run()).map_err(ServeError::Thread)?;
    let _inside = runtime.enter();
    let users = listen(&config.socket, 0o666)?;
    let agents = listen(&config.agents, 0o600)?;
    let (rates, to_hub) = (Rates::new(config.requests_per_second), Arc::clone(&hub));
    let overview = Arc::default();
    let seen = Arc::clone(&overview);
    let shared = Shared::new(handle.clone(), writer.clone(), to_hub, feed, counters, rates, seen);
    let shared = shared.with_certificate(far.as_ref().map(tcp::Door::certificate));
    let operators = Operators::new(config.operators.iter().cloned());
    let router = http::router(shared);
    let asked = Arc::clone(&hub);
    let reception = Reception::new(hub, handle.clone(), &topology, lease);
    // Without a door over TCP there is nothing to read again, and nothing to end for.
    let hangup = signal(SignalKind::hangup()).map_err(ServeError::Signal)?;
    if let Some(far) = far {
        far.open(router.clone(), operators.clone(), reception.clone(), hangup)?;
    }
    let door = Door::new(router, operators, config.nameless_users);
    vital::spawn("the door of agents", reception.serve(agents));
    vital::spawn("the door of users", door.serve(users));
    let published = config.fabric.as_deref().map(NodeLoads::start).transpose();
    let loads = Loads::new(published.map_err(ServeError::Thread)?, asked, &topology);
    let start = || Sites::start(handle.clone(), runtime.handle().clone(), loads, overview);
    let sites = config.sites.then(start).transpose().map_err(ServeError::Thread)?;
    tracing::info!("broker of {} serves {}", topology.name(), config.socket.display());
    let is_there = || config.socket.exists();
    let ended = wait(thread, &handle, &writer, &|| stop() || !is_there());
    let removed = || ServeError::Removed { socket: config.socket.clone() };
    let ended = ended.and_then(|()| if is_there() { Ok(()) } else { Err(removed()) });
    if let Some(sites) = sites {
        sites.stop();
    }
    // Nobody waits for answers any more: what is on its way was told.
    runtime.shutdown_timeout(LOOK_EVERY);
    for socket in [&config.socket, &config.agents] {
        let _ = fs::remove_file(socket);
    }
    drop(writer.stop());
    ended
}

/// Until it is to stop, or the engine's thread has ended by itself.
fn wait(
    thread: JoinHandle<Result<(), CoreError>>,
    handle: &Handle,
    writer: &Writer,
    stop: &dyn Fn() -> bool,
) -> Result<(), ServeError> {
    while !stop() && !thread.is_finished() {
        // The engine hears of it when it records next, and everybody waits until then.
        if writer.has_ended() {
            threads::end("the ledger");
        }
        std::thread::sleep(LOOK_EVERY);
    }
    handle.stop();
    match thread.join() {
        Ok(ended) => Ok(ended?),
        // The process has ended before.
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Takes the place of a broker that was killed, not of one that answers.
fn listen(socket: &Path, mode: u32) -> Result<UnixListener, ServeError> {
    if std::os::unix::net::UnixStream::connect(socket).is_ok() {
        return Err(ServeError::Taken { socket: socket.into() });
    }
    let bind = || -> io::Result<UnixListener> {
        remove_socket(socket)?;
        let listener = UnixListener::bind(socket)?;
        fs::set_permissions(socket, fs::Permissions::from_mode(mode))?;
        Ok(listener)
    };
    bind().map_err(|source| ServeError::Listen { socket: socket.into(), source })
}

/// Takes away what a broker left that was killed: a socket. Anything else was meant for something else.
fn remove_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => {
            let what = format!("{} is there, and is no socket", path.display());
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Lets users in, so many at a time.
#[derive(Clone)]
struct Door {
    router: Router,
    operators: Operators,
    /// Whether those are served who have no name.
    nameless_users: bool,
    /// Who is there; operators may be there beside.
    open: Seats<u32>,
    /// Places of those beside of whom it is not known yet whether they are operators.
    in_question: Arc<Semaphore>,
    names: Names,
    taken_within: Duration,
}

/// Who was let in, and what answers them.
struct Guest {
    caller: Caller,
    router: Router,
    _seat: Option<Seat<u32>>,
}

impl Door {
    /// With nobody there yet.
    fn new(router: Router, operators: Operators, nameless_users: bool) -> Self {
        let open = Seats::new(CONNECTIONS_OF_USER_MAX);
        let open = open.at_most(CONNECTIONS_MAX - CONNECTIONS_OF_OPERATORS);
        let names = Names::new();
        let in_question = Arc::new(Semaphore::new(CONNECTIONS_OF_OPERATORS / 2));
        let taken_within = TAKEN_WITHIN;
        Self { router, operators, nameless_users, open, in_question, names, taken_within }
    }

    async fn serve(self, listener: UnixListener) {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let door = self.clone();
                    tokio::spawn(async move {
                        door.receive(stream).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!("no user can connect: {error}");
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    async fn receive(self, stream: UnixStream) {
        // Who cannot be told from others is not let in.
        let Ok(peer) = stream.peer_cred() else { return };
        let Some(guest) = self.admit(peer.uid()).await else { return };
        let stream = Impatient::new(stream, self.taken_within);
        // A connection that breaks concerns its user alone.
        let _ = converse(stream, guest.router, guest.caller).await;
    }

    /// The user with this number, if there is room for one more connection of theirs.
    async fn admit(&self, uid: u32) -> Option<Guest> {
        let seat = match self.open.try_take(uid) {
            Ok(seat) => Some(seat),
            // What is left then is for operators.
            Err(Full::All) => None,
            Err(Full::One) => return None,
        };
        // Root never waits behind those of whom it is not known yet whether they are.
        let _in_question = match seat {
            None if !door::is_own(uid) => Some(self.in_question.try_acquire().ok()?),
            _ => None,
        };
        let caller = match self.names.of(uid).await {
            Ok(user) => self.operators.caller(uid, user),
            // Who comes again may be known then.
            Err(error) => {
                tracing::warn!("a user is not let in: {error}");
                return None;
            }
        };
        if seat.is_none() && !caller.operator {
            tracing::debug!("there is no room for a connection of {}", caller.user);
            return None;
        }
        if caller.operator || self.nameless_users || !door::is_nameless(uid, &caller.user) {
            return Some(Guest { caller, router: self.router.clone(), _seat: seat });
        }
        drop(seat);
        let seat = self.open.take(NAMELESS)?;
        Some(Guest { caller, router: nobody(uid), _seat: Some(seat) })
    }
}

/// Tells one who has no name why nothing is answered: there may be 65,536 of them, all of one person, each with a user's share.
fn nobody(uid: u32) -> Router {
    let told = move || async move {
        let detail = format!(
            "user number {uid} has no name on this machine that a user of the broker may have; an \
             operator can let such users in: nameless_users in broker.toml"
        );
        ([(header::CONNECTION, "close")], Problem::new(403, "not known", detail))
    };
    Router::new().fallback(told)
}

/// What is spoken on every connection of a user, which has to send its headers within a time.
pub(crate) fn protocol(header_within: Duration) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(header_within)
        .max_buf_size(BUFFER_BYTES_MAX);
    protocol
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    caller: Caller,
) -> hyper::Result<()> {
    let (service, hang_up) = (TowerToHyperService::new(router), HangUp::default());
    let ended = hang_up.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        request.extensions_mut().insert(hang_up.clone());
        hyper::service::Service::call(&service, request)
    });
    tokio::select! {
        served = protocol(HEADER_WITHIN).serve_connection(TokioIo::new(stream), service) => served,
        () = ended.is_due() => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Extension, body};
    use keeptime_linux::syscall::SyscallError;
    use keeptime_linux::users::name_of;
    use nix::errno::Errno;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;
    use tower::ServiceExt;

    // What was meant for something else stays, whatever the configuration names.
    #[test]
    fn a_socket_that_was_left_makes_way_and_nothing_else_does() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("broker.sock"), directory.path().join("link"));
        remove_socket(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        remove_socket(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "theirs").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for theirs in [&path, &link] {
            let error = remove_socket(theirs).unwrap_err().to_string();
            assert!(error.contains("is there, and is no socket"), "{error}");
            assert_eq!(fs::read_to_string(theirs).unwrap(), "theirs");
        }
        assert!(remove_socket(&path.join("below")).is_err(), "a file is no directory");
    }

    /// Nobody has these numbers.
    const STRANGERS: [u32; 2] = [3_999_999_998, 3_999_999_999];
    const SOON: Duration = Duration::from_secs(60);

    fn door(router: Router, operators: &[&str], nameless_users: bool) -> Door {
        let operators = operators.iter().map(|name| name.parse().unwrap());
        Door::new(router, Operators::new(operators), nameless_users)
    }

    // Goal: whoever has all connections that they can have keeps no operator out. Method: two users take all that there are,
    // as if the kernel said so; one of them is named as an operator later.
    #[tokio::test]
    async fn who_takes_all_connections_leaves_some_for_operators() {
        let mut door = door(Router::new(), &[], true);
        door.open = Seats::new(2).at_most(3);
        let [first, second] = STRANGERS;
        let mut guests = vec![door.admit(first).await.unwrap(), door.admit(first).await.unwrap()];
        assert!(door.admit(first).await.is_none(), "of one user");
        guests.push(door.admit(second).await.unwrap());
        assert!(door.admit(second).await.is_none(), "of all");
        let root = door.admit(0).await.unwrap();
        assert!(root.caller.operator && root._seat.is_none());
        door.operators = Operators::new([format!("uid-{second}").parse().unwrap()]);
        assert!(door.admit(second).await.is_some(), "an operator");
        assert!(door.admit(first).await.is_none());
        drop(guests);
        drop(door.admit(first).await.unwrap());
        assert!(door.open.are_empty());
    }

    #[tokio::test]
    async fn whose_name_cannot_be_found_out_is_not_let_in_and_keeps_no_place() {
        let mut door = door(Router::new(), &[], true);
        let [unknown, other] = STRANGERS;
        let ask = move |uid| {
            let away = SyscallError::of("getpwuid_r", "user");
            if uid == unknown { Err(away(Errno::EIO)) } else { name_of(uid) }
        };
        door.names = Names::asking(ask, 1);
        assert!(timeout(SOON, door.admit(unknown)).await.unwrap().is_none());
        assert!(door.open.are_empty());
        assert!(timeout(SOON, door.admit(other)).await.unwrap().is_some());
    }

    // Goal: root is let in while a directory service says nothing of all who came before. Method: as many as may wait beside
    // those who have a place.
    #[tokio::test]
    async fn those_of_whom_nothing_is_known_leave_room_for_root() {
        let mut door = door(Router::new(), &[], true);
        let (answer, is_held) = std::sync::mpsc::channel::<()>();
        let is_held = std::sync::Mutex::new(is_held);
        let [unknown, other] = STRANGERS;
        let ask = move |uid| {
            if uid == unknown {
                let _ = keeptime_locks::lock(&is_held).recv();
            }
            name_of(uid)
        };
        (door.names, door.open) = (Names::asking(ask, 1), Seats::new(1).at_most(0));
        door.in_question = Arc::new(Semaphore::new(1));
        let waits = door.clone();
        let waits = tokio::spawn(async move { waits.admit(unknown).await.is_some() });
        while door.in_question.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(timeout(SOON, door.admit(other)).await.unwrap().is_none(), "there is no room");
        assert!(timeout(SOON, door.admit(0)).await.unwrap().is_some());
        drop(answer);
        assert!(!waits.await.unwrap(), "it is no operator");
        assert_eq!(door.in_question.available_permits(), 1);
    }

    /// What one of the door's guests is answered.
    async fn answered(guest: &Guest) -> (u16, String) {
        let request = hyper::Request::get("/").body(body::Body::empty()).unwrap();
        let answer = guest.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let text = body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8_lossy(&text).into_owned())
    }

    // Goal: the numbers that somebody may take beside their own are no users, and all of them together have no more
    // connections than one. Method: numbers without a name.
    #[tokio::test]
    async fn who_has_no_name_is_told_so_unless_that_is_allowed() {
        let served = || Router::new().fallback(|| async { "served" });
        let [first, second] = STRANGERS;
        let mut strict = door(served(), &[], false);
        strict.open = Seats::new(1);
        let guest = strict.admit(first).await.unwrap();
        let (status, text) = answered(&guest).await;
        assert!(status == 403 && text.contains("user number 3999999998 has no name"), "{text}");
        assert!(strict.admit(second).await.is_none(), "they count as one");
        let root = strict.admit(0).await.unwrap();
        assert_eq!(answered(&root).await, (200, "served".into()));
        drop((guest, root));
        assert!(strict.open.are_empty());
        let named = format!("uid-{first}");
        for door in [door(served(), &[], true), door(served(), &[named.as_str()], false)] {
            let guest = door.admit(first).await.unwrap();
            assert_eq!(answered(&guest).await, (200, "served".into()));
        }
    }

    // Goal: who asks and does not read keeps neither a place nor what was made for them. Method: more than a socket holds.
    #[tokio::test]
    async fn who_does_not_read_an_answer_is_let_go() {
        let router = Router::new().fallback(|| async { vec![0u8; 8 << 20] });
        let mut door = door(router, &[], false);
        door.taken_within = Duration::from_millis(50);
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        timeout(SOON, door.clone().receive(near)).await.unwrap();
        assert!(door.open.are_empty());
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        assert!(read.len() < 8 << 20, "{} bytes", read.len());
    }

    // Goal: who takes too long for an answer is let go though nothing stands still yet. Method: the connection is hung up by
    // what answers.
    #[tokio::test]
    async fn who_is_hung_up_on_is_let_go_at_once() {
        let answer = |Extension(hang_up): Extension<HangUp>| async move {
            hang_up.now();
            vec![0u8; 8 << 20]
        };
        let mut door = door(Router::new().fallback(answer), &[], false);
        door.taken_within = Duration::from_secs(3_600);
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        timeout(SOON, door.clone().receive(near)).await.unwrap();
        assert!(door.open.are_empty());
    }
}
