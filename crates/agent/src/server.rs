//! The agent's socket: who may ask, one thread for each connection, and a clock that ticks.

use crate::agent::{Agent, Requester};
use crate::claim::Claim;
use crate::clock::now;
use crate::enforcer::{BoxedError, Enforcer};
use crate::lines::{self, is_timeout};
use crate::pace::Paces;
use crate::programs::Visit;
use crate::room::{Line, Room};
use crate::seats::{Full, Seats};
use crate::wire::{REQUEST_BYTES_MAX, Request, Response};
use keeptime_linux::started::Started;
use keeptime_linux::syscall::SyscallError;
use keeptime_linux::{users, vital};
use keeptime_locks::lock;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_mpiqos::wire::{Answer, RankAnswer, Report};
use nix::fcntl::OFlag;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, BufReader};
use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How often expiry is looked at and the kernel's state is compared with what was assigned.
const TICK: Duration = Duration::from_millis(250);
/// Connections at once: a coordinator, its jobs' renewals and some people looking.
const CONNECTIONS_MAX: usize = 128;
/// Connections of one ordinary user at once, beside these: every rank of their MPI programs has one, and commands that they start.
/// So many for each processor, within these; all users have four times as many, within [`STRANGERS_MAX`]: nobody keeps the others
/// out.
const STRANGER_FOR_EACH: usize = 2;
const STRANGER_MIN: usize = 64;
const STRANGER_MAX: usize = 512;
/// Each has a thread.
const STRANGERS_MAX: usize = 1_024;
/// A connection that says nothing for so long is closed, unless a command of a job lasts as long as it, or a rank has told
/// on it how far it is.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// An ordinary user is answered a thousand questions a second, by all connections together, and a second's worth at once: what is
/// asked is looked at with the weight of the agent, which is greater than that of any job. The ranks of the largest node set
/// attributes and tell how far they are within that.
const QUESTION: Duration = Duration::from_millis(1);
/// After a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A command whose connection has ended is ended by so many tries, so long after each other: five seconds.
const END_TRIES: usize = 50;
const END_PAUSE: Duration = Duration::from_millis(50);

/// The socket cannot be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The socket cannot be made.
    #[error("cannot listen at {socket}")]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nothing would be repaired, or begin, or end.
    #[error("cannot start the thread that ticks")]
    Thread(#[source] io::Error),
}

/// Serves `agent` at the socket of the node that it has; returns only if the socket fails. Where the thread ends that keeps
/// the node as it was assigned, the process does.
///
/// # Errors
/// If the socket, or that thread, cannot be made.
pub fn serve<E: Enforcer + 'static>(
    agent: &Arc<Mutex<Agent<E>>>,
    node: &Claim,
) -> Result<(), ServeError> {
    let listener = listen(node.socket())?;
    let ticking = Arc::clone(agent);
    vital::spawn("ticks", move || tick_for_ever(&ticking)).map_err(ServeError::Thread)?;
    let trusted = Seats::new(CONNECTIONS_MAX).at_most(CONNECTIONS_MAX);
    let most = strangers(thread::available_parallelism().map_or(1, NonZero::get));
    let strangers = Seats::new(most[0]).at_most(most[1]);
    let limits = Limits::default();
    for stream in listener.incoming() {
        // The peer sees a closed connection; there is nobody else to tell.
        let Ok((stream, user)) = stream.and_then(|s| peer(&s).map(|user| (s, user))) else {
            // Who waits where there is no descriptor left is there at the next look, too.
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let seats = if is_trusted(user) { &trusted } else { &strangers };
        let seat = match seats.try_take(user) {
            Ok(seat) => seat,
            Err(full) => {
                turn_away(stream, full, if is_trusted(user) { [CONNECTIONS_MAX; 2] } else { most });
                continue;
            }
        };
        let (agent, limits) = (Arc::clone(agent), limits.clone());
        let conversation = move || {
            let _seat = seat;
            match requester(user) {
                Ok(requester) => {
                    let limited = limit(&stream);
                    drop(limited.and_then(|()| converse(&agent, stream, &requester, &limits)));
                }
                // Who comes again may be known then.
                Err(error) => tracing::warn!("a user is not let in: {error}"),
            }
        };
        // Where no thread can be made, the connection is closed, and the others and the node's jobs go on.
        let _ = thread::Builder::new().spawn(conversation);
    }
    Ok(())
}

/// What all connections share: how much users say and ask. Clones are the same.
#[derive(Debug, Clone, Default)]
struct Limits {
    room: Room,
    paces: Paces,
}

/// How many connections one user has at the most, and all together, where there are so many processors.
fn strangers(processors: usize) -> [usize; 2] {
    let of_one = processors.saturating_mul(STRANGER_FOR_EACH).clamp(STRANGER_MIN, STRANGER_MAX);
    [of_one, (4 * of_one).min(STRANGERS_MAX)]
}

/// Says why there is no place, where one user and all together have so many at the most. Nobody waits for who does not hear it.
fn turn_away(mut stream: UnixStream, full: Full, [of_one, of_all]: [usize; 2]) {
    let reason = match full {
        Full::One => {
            format!("connections: you have {of_one} to this node's agent, as many as one user may")
        }
        Full::All => format!(
            "connections: all users have {of_all} to this node's agent, as many as they may"
        ),
    };
    let said = stream.set_nonblocking(true);
    drop(said.and_then(|()| lines::say(&mut stream, &Response::Refused { reason })));
}

fn listen(socket: &Path) -> Result<UnixListener, ServeError> {
    // What stands there was left by an agent that was killed.
    let bound = remove_left(socket).and_then(|()| bind_for_all(socket));
    bound.map_err(|source| ServeError::Listen { socket: socket.into(), source })
}

/// Makes a socket that everybody may ask at: who may ask for what is decided by who asks; users bind processes of their own.
fn bind_for_all(socket: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(socket)?;
    // Others than root may own the directory, as the broker does where both are on one machine: what they have put there
    // meanwhile is not followed, and keeps the mode that it has.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    let made = OpenOptions::new().read(true).custom_flags(flags.bits()).open(socket)?;
    let found = made.metadata()?;
    if !found.file_type().is_socket() || found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other("something else came in the place of the socket"));
    }
    let itself = format!("/proc/self/fd/{}", made.as_raw_fd());
    fs::set_permissions(itself, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Removes a socket at which nobody answers. Whatever else has that name is not ours.
fn remove_left(socket: &Path) -> io::Result<()> {
    match fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(found) if !found.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is something else than a socket",
        )),
        found => found.and_then(|_| fs::remove_file(socket)),
    }
}

fn tick_for_ever<E: Enforcer>(agent: &Mutex<Agent<E>>) {
    let mut last = String::new();
    loop {
        let error = lock(agent).tick(now()).err();
        let said = error.map(|e| chain(e.as_ref())).unwrap_or_default();
        // The same trouble every tick is said once.
        if said != last && !said.is_empty() {
            tracing::error!("what was assigned is not enforced, or not recorded: {said}");
        }
        last = said;
        thread::sleep(TICK);
    }
}

/// Nobody keeps a connection that is of no use.
fn limit(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(IDLE_MAX))
}

fn converse<E: Enforcer>(
    agent: &Mutex<Agent<E>>,
    stream: UnixStream,
    requester: &Requester,
    limits: &Limits,
) -> io::Result<()> {
    let process = getsockopt(&stream, PeerCredentials)?.pid();
    let visit = lock(agent).programs().visit();
    let mut lasting = Lasting { agent, visit: &visit, started: BTreeSet::new() };
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Line::default();
        match limits.room.go_on(requester.user_id(), &mut reader, &mut line, REQUEST_BYTES_MAX) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            // Where the next one begins nobody knows: one answer, and no more.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let refused = Response::Refused { reason: error.to_string() };
                return lines::say(reader.get_mut(), &refused);
            }
            // What runs in a job says nothing for as long as it runs, and a rank for as long as it computes.
            Err(error) => match is_timeout(&error) && line.text.is_empty() {
                true if lasting.is_wanted() || visit.has_course() => continue,
                _ => return Err(error),
            },
        }
        if let Some(user) = requester.user_id() {
            thread::sleep(limits.paces.spend(user, Instant::now(), QUESTION));
        }
        let response = match serde_json::from_slice::<Request>(&line.text) {
            Err(error) => Response::Refused { reason: format!("not a request: {error}") },
            Ok(Request::Mpi(report)) => answer_rank(agent, &visit, report, process, requester),
            Ok(Request::Start { job }) => {
                let started = lock(agent).start_command(&job, process, requester, now());
                match started {
                    Ok((place, command)) => {
                        lasting.started.extend(command.map(|command| (job, command)));
                        Response::Started(place)
                    }
                    Err(error) => error.into(),
                }
            }
            Ok(Request::MpiProgress { job, progress }) => {
                let agent = lock(agent);
                let checked = progress.check().map_err(|invalid| invalid.to_string());
                match checked.and_then(|()| agent.job_for(job, process, requester)) {
                    Ok(job) => {
                        visit.progress(job, progress, now());
                        Response::Done
                    }
                    Err(reason) => Response::Refused { reason },
                }
            }
            Ok(Request::Restrain { job, cpu_ppm }) => {
                lock(agent).restrain(&job, cpu_ppm, &visit, requester, now())
            }
            Ok(request) => lock(agent).answer(request, requester, now()),
        };
        lines::say(reader.get_mut(), &response)?;
    }
}

/// What a rank is answered to all that it asks for. What cannot be is refused alone: what else was granted
/// holds.
fn answer_rank<E: Enforcer>(
    agent: &Mutex<Agent<E>>,
    visit: &Visit,
    report: Report,
    process: i32,
    requester: &Requester,
) -> Response {
    if let Err(invalid) = report.check() {
        return Response::Refused { reason: invalid.to_string() };
    }
    let job = lock(agent).job_for(report.job, process, requester);
    let mut rank = report.rank;
    match job {
        // Nothing is granted to a job that is not there.
        Err(why) => Response::Mpi(RankAnswer::all(rank.asks.len(), &Answer::refused(why))),
        Ok(job) => {
            let refused = rank.take_out_refused();
            // Waits for the broker, which may want something of this agent meanwhile.
            Response::Mpi(visit.report(job, rank).with_refused(refused))
        }
    }
}

/// What lasts as long as a connection: commands of jobs, and that jobs are restrained, which the agent knows.
struct Lasting<'a, E: Enforcer> {
    agent: &'a Mutex<Agent<E>>,
    visit: &'a Visit,
    /// Each once, however often it is asked for.
    started: BTreeSet<(Name, Started)>,
}

impl<E: Enforcer> Lasting<'_, E> {
    /// Whether the job of one of them is still there.
    fn is_wanted(&self) -> bool {
        let agent = lock(self.agent);
        let is_there = |job: &Name| agent.assignments().any(|assigned| assigned.job == *job);
        agent.restrains(self.visit) || self.started.iter().any(|(job, _)| is_there(job))
    }

    /// Ends a command. Others are answered between two tries.
    fn end(&self, job: &Name, command: &Started) -> Result<(), BoxedError> {
        for _ in 1..END_TRIES {
            if lock(self.agent).end_command(job, command).is_ok() {
                return Ok(());
            }
            thread::sleep(END_PAUSE);
        }
        lock(self.agent).end_command(job, command)
    }
}

impl<E: Enforcer> Drop for Lasting<'_, E> {
    fn drop(&mut self) {
        lock(self.agent).lift(self.visit);
        for (job, command) in &self.started {
            if let Err(error) = self.end(job, command) {
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
fn requester(user: u32) -> Result<Requester, SyscallError> {
    Ok(match is_trusted(user) {
        true => Requester::Trusted,
        false => Requester::User { id: user, name: users::name_of(user)? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::testing::{FakeKernel, capacity};
    use crate::enforce::Unenforced;
    use crate::store::Store;
    use keeptime_model::assignment::Assignment;
    use keeptime_model::pattern::RANKS_MAX;
    use keeptime_model::units::{CpuPpm, Nanos};
    use keeptime_mpiqos::wire::Progress;
    use nix::sys::signal::Signal;
    use serde_json::json;
    use std::io::{BufRead, Write};
    use std::net::Shutdown;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use tempfile::TempDir;

    fn job() -> Name {
        "r1".parse().unwrap()
    }

    /// An agent without a broker that was assigned [`job`], for an hour.
    fn agent(directory: &TempDir) -> Mutex<Agent<Unenforced>> {
        let store = Store::at(&directory.path().join("assignments.json"));
        let enforcer = Unenforced { reason: "a test".into(), capabilities: None };
        let node = "n1".parse().unwrap();
        let mut agent = Agent::start(node, capacity(), store, enforcer, now()).unwrap();
        let until = now().saturating_add(Nanos::from_secs(3_600));
        let assigned = Assignment::new(job(), CpuPpm::from_percent(10), until);
        let answer = agent.answer(Request::Enforce(assigned), &Requester::Trusted, now());
        assert_eq!(answer, Response::Done);
        Mutex::new(agent)
    }

    /// What is answered to one request, on a connection of its own.
    fn answer(agent: &Mutex<Agent<Unenforced>>, request: &Request) -> Response {
        answer_and(agent, request, || ()).0
    }

    /// The same, and what is seen before the connection ends.
    fn answer_and<T>(
        agent: &Mutex<Agent<Unenforced>>,
        request: &Request,
        look: impl FnOnce() -> T,
    ) -> (Response, T) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || converse(agent, theirs, &Requester::Trusted, &Limits::default()));
            let mut line = serde_json::to_vec(request).unwrap();
            line.push(b'\n');
            (&ours).write_all(&line).unwrap();
            let mut answer = String::new();
            BufReader::new(&ours).read_line(&mut answer).unwrap();
            let seen = look();
            drop(ours);
            (serde_json::from_str(&answer).unwrap(), seen)
        })
    }

    // What one communicator asks for is refused for itself, with its reason and in its place; the others go on to
    // the broker, which this agent does not have.
    #[test]
    fn what_cannot_be_asked_for_is_refused_alone() {
        let directory = tempfile::tempdir().unwrap();
        let agent = agent(&directory);
        let ask = |members: Vec<u32>| {
            json!({
                "communicator": { "members": members, "index": 0, "talk": "all-to-all" },
                "change": 1,
                "terms": {
                    "class": "premium",
                    "bits_per_second": 1_000_000,
                    "message_bytes_max": 0,
                    "paced": true,
                },
            })
        };
        let report = |job: &str| {
            let asks = [ask(vec![0, 1]), ask((0..300).collect()), ask(vec![0, 2])];
            let rank = json!({ "number": 0, "size": 300, "asks": asks });
            let report = json!({ "version": 1, "job": job, "rank": rank });
            Request::Mpi(serde_json::from_value(report).unwrap())
        };
        let reasons = |job| match answer(&agent, &report(job)) {
            Response::Mpi(RankAnswer { answers, .. }) => {
                answers.into_iter().map(|answer| answer.reason).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        let asked = reasons("r1");
        let [first, second, third] = &asked[..] else { panic!("{asked:?}") };
        assert!(first.contains("no broker") && third.contains("no broker"), "{first}, {third}");
        assert!(second.contains("pairs that talk"), "{second}");
        let gone = reasons("r2");
        assert!(gone.len() == 3 && gone.iter().all(|why| why.contains("no job r2")), "{gone:?}");
    }

    // Where a request ends that is too long nobody knows: what follows is not taken for others.
    #[test]
    fn a_line_that_is_too_long_has_one_answer_and_is_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let agent = agent(&directory);
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| converse(&agent, theirs, &Requester::Trusted, &Limits::default()));
            let long = vec![b' '; REQUEST_BYTES_MAX as usize];
            (&ours).write_all(&long).unwrap();
            let _ = (&ours).write_all(b"\"status\"\n");
            let mut said = String::new();
            let mut reader = BufReader::new(&ours);
            reader.read_line(&mut said).unwrap();
            assert!(said.contains("longer than 1048576 bytes"), "{said}");
            said.clear();
            // What nobody read any more may be told as a connection that was cut.
            assert_eq!(reader.read_line(&mut said).unwrap_or_default(), 0, "{said}");
        });
    }

    // What an agent that was killed has left is no obstacle, and a wrong path in a configuration costs nobody a file.
    #[test]
    fn a_socket_that_was_left_is_replaced_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, file) = (directory.path().join("socket"), directory.path().join("file"));
        drop(UnixListener::bind(&socket).unwrap());
        assert!(socket.exists());
        listen(&socket).unwrap();
        fs::write(&file, "theirs").unwrap();
        assert!(matches!(listen(&file), Err(ServeError::Listen { .. })));
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    }

    // Goal: whoever owns the directory of the socket has root make no other file everybody's. Method: one who puts a link to such a
    // file where the socket was just made, again and again.
    #[test]
    fn everybody_may_ask_and_no_mode_is_set_of_what_came_in_the_place_of_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let [socket, link, secret] =
            ["socket", "link", "secret"].map(|name| directory.path().join(name));
        listen(&socket).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
        fs::write(&secret, "secret").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    symlink(&secret, &link).unwrap();
                    fs::rename(&link, &socket).unwrap();
                }
            });
            for _ in 0..500 {
                let _ = fs::remove_file(&socket);
                let _ = listen(&socket);
            }
            is_done.store(true, Relaxed);
        });
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    }

    const DIRECTORY: &str = "KEEPTIME_TEST_AGENT";

    fn bug() -> Name {
        "bug".parse().unwrap()
    }

    // The process that the next test looks at: an agent that accepts an assignment, meets a bug when that begins, and
    // would answer for long after that.
    #[test]
    fn serves_with_a_bug() {
        let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
        let claim = Claim::take(&directory.join("socket")).unwrap();
        let (node, store) = ("n1".parse().unwrap(), Store::at(&directory.join("assignments.json")));
        // One moment for all of it, however long that takes: it does not begin before it is ticked.
        let at = now();
        let mut agent = Agent::start(node, capacity(), store, FakeKernel::default(), at).unwrap();
        let from_unix_nanos = at.saturating_add(Nanos::from_millis(1));
        let until = at.saturating_add(Nanos::from_secs(3_600));
        let later = Assignment::new(bug(), CpuPpm::from_percent(10), until);
        let later = Request::Enforce(Assignment { from_unix_nanos, ..later });
        assert_eq!(agent.answer(later, &Requester::Trusted, at), Response::Done);
        let agent = Arc::new(Mutex::new(agent));
        thread::spawn(move || serve(&agent, &claim));
        thread::sleep(Duration::from_secs(30));
    }

    // Goal: an agent that repairs nothing any more does not answer as if it did: whoever started it sees its end. Method: a
    // process whose tick panics, and which leaves no image of its memory.
    #[test]
    fn the_end_of_the_ticks_is_that_of_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; exec \"$0\" --exact server::tests::serves_with_a_bug"]);
        command.arg(std::env::current_exe().unwrap()).env(DIRECTORY, directory.path());
        let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(ended.signal(), Some(Signal::SIGABRT as i32), "{ended}");
        // The next one has the node, and its record.
        Claim::take(&directory.path().join("socket")).unwrap();
        let book = Store::at(&directory.path().join("assignments.json")).load().unwrap();
        assert!(book.assignments().contains_key(&bug()));
    }

    // What is remembered of a job's ranks is bounded by how many ranks there can be, and goes with each.
    #[test]
    fn the_progress_of_a_rank_that_cannot_be_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let agent = agent(&directory);
        let tell = |rank| {
            let progress = Progress { rank, operations: 7, period: 1, told: 0 };
            let is_known = || lock(&agent).programs().progress_of(&job()).is_some();
            answer_and(&agent, &Request::MpiProgress { job: Some(job()), progress }, is_known)
        };
        let (refused, is_known) = tell(RANKS_MAX);
        assert!(matches!(refused, Response::Refused { .. }) && !is_known, "{refused:?}");
        assert_eq!(tell(RANKS_MAX - 1), (Response::Done, true));
        assert_eq!(lock(&agent).programs().progress_of(&job()), None);
    }

    // Goal: who has as many connections as may be knows that. Method: one that is not taken is closed with a word.
    #[test]
    fn who_has_no_place_hears_how_many_there_are() {
        for (full, expected) in
            [(Full::One, "you have 64 to"), (Full::All, "all users have 256 to")]
        {
            let (ours, theirs) = UnixStream::pair().unwrap();
            turn_away(theirs, full, [64, 256]);
            let said = lines::hear(&mut BufReader::new(ours), 1_000).unwrap();
            let is_told =
                matches!(&said, Response::Refused { reason } if reason.contains(expected));
            assert!(is_told, "{said:?}");
        }
    }

    #[test]
    fn ranks_have_connections_on_nodes_of_any_size() {
        let all = [1, 32, 96, 192, 1_000].map(strangers);
        assert_eq!(all, [[64, 256], [64, 256], [192, 768], [384, 1_024], [512, 1_024]]);
    }

    // Goal: what a user asks counts, on whichever connection, and nobody has an operator wait. Method: one question of each.
    #[test]
    fn questions_of_ordinary_users_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let agent = agent(&directory);
        let ada = Requester::User { id: 7, name: "ada".parse().unwrap() };
        for (requester, users) in [(Requester::Trusted, 0), (ada, 1)] {
            let (limits, (ours, theirs)) = (Limits::default(), UnixStream::pair().unwrap());
            thread::scope(|scope| {
                scope.spawn(|| converse(&agent, theirs, &requester, &limits));
                lines::say(&mut &ours, &Request::Status).unwrap();
                BufReader::new(&ours).read_line(&mut String::new()).unwrap();
                ours.shutdown(Shutdown::Both).unwrap();
            });
            assert_eq!(limits.paces.count(), users);
        }
    }

    // Goal: what a run was held at ends with it, however that ends, so that the next one has all that is reserved.
    #[test]
    fn a_job_is_restrained_for_as_long_as_whoever_has_asked_for_it_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let agent = agent(&directory);
        let cpu_ppm = CpuPpm::from_percent(5);
        let restraint = || lock(&agent).restraint(&job());
        let restrain = Request::Restrain { job: job(), cpu_ppm };
        let (answer, while_there) = answer_and(&agent, &restrain, restraint);
        assert_eq!((answer, while_there), (Response::Done, Some(cpu_ppm)));
        assert_eq!(restraint(), None);
    }

    // Goal: a user who says the same again and again fills no memory, and keeps nobody waiting at the end. Method: a command that
    // is started often on one connection, which is hung up.
    #[test]
    fn a_command_that_is_started_again_is_held_and_ended_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(&directory.path().join("assignments.json"));
        let (kernel, node) = (FakeKernel::default(), "n1".parse().unwrap());
        let ended = Arc::clone(&kernel.4);
        let mut agent = Agent::start(node, capacity(), store, kernel, now()).unwrap();
        let until = now().saturating_add(Nanos::from_secs(3_600));
        let assigned = Assignment::new(job(), CpuPpm::from_percent(10), until);
        let assigned = agent.answer(Request::Enforce(assigned), &Requester::Trusted, now());
        assert_eq!(assigned, Response::Done);
        let (agent, (ours, theirs)) = (Mutex::new(agent), UnixStream::pair().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| converse(&agent, theirs, &Requester::Trusted, &Limits::default()));
            let mut reader = BufReader::new(&ours);
            for _ in 0..3 {
                lines::say(&mut &ours, &Request::Start { job: job() }).unwrap();
                let answer = lines::hear::<Response>(&mut reader, REQUEST_BYTES_MAX).unwrap();
                assert!(matches!(answer, Response::Started(_)), "{answer:?}");
            }
            ours.shutdown(Shutdown::Both).unwrap();
        });
        assert_eq!(lock(&ended).len(), 1);
    }

    /// How long [`impatient`] lets its other end be silent.
    const MOMENT: Duration = Duration::from_millis(10);

    /// Both ends of a connection of which the second may be closed after a moment.
    fn impatient() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(MOMENT)).unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        (ours, theirs)
    }

    // Goal: a connection is there as long as what it holds a job at, and not for nothing. Method: it says less than is assigned,
    // and then all of it, which is nothing to hold.
    #[test]
    fn who_restrains_a_job_may_be_silent_as_long_as_that_lasts() {
        let directory = tempfile::tempdir().unwrap();
        let agent = agent(&directory);
        let (ours, theirs) = impatient();
        thread::scope(|scope| {
            scope.spawn(|| converse(&agent, theirs, &Requester::Trusted, &Limits::default()));
            let mut reader = BufReader::new(&ours);
            let mut restrain = |percent| {
                let cpu_ppm = CpuPpm::from_percent(percent);
                lines::say(&mut &ours, &Request::Restrain { job: job(), cpu_ppm }).unwrap();
                lines::hear::<Response>(&mut reader, REQUEST_BYTES_MAX).unwrap()
            };
            assert_eq!(restrain(5), Response::Done);
            thread::sleep(20 * MOMENT);
            assert_eq!(lock(&agent).restraint(&job()), Some(CpuPpm::from_percent(5)));
            assert_eq!(restrain(10), Response::Done);
            let ended = reader.read_line(&mut String::new());
            assert_eq!(ended.unwrap(), 0, "the connection has ended");
        });
    }

    // Goal: how far a rank is stays known while it says nothing, as between two iterations that take hours, and its connection
    // ends with its job. Method: a connection whose other end may be silent for a moment only.
    #[test]
    fn a_rank_that_is_silent_stays_known_as_long_as_its_job_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let agent = agent(&directory);
        let (ours, theirs) = impatient();
        let progress = Progress { rank: 0, operations: 7, period: 1, told: 0 };
        lines::say(&mut &ours, &Request::MpiProgress { job: Some(job()), progress }).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| converse(&agent, theirs, &Requester::Trusted, &Limits::default()));
            let mut reader = BufReader::new(&ours);
            let mut answer = String::new();
            reader.read_line(&mut answer).unwrap();
            thread::sleep(20 * MOMENT);
            let is_known = lock(&agent).programs().progress_of(&job()).is_some();
            let withdraw = Request::Withdraw { job: job() };
            let withdrawn = lock(&agent).answer(withdraw, &Requester::Trusted, now());
            assert_eq!((is_known, withdrawn), (true, Response::Done), "{answer}");
            assert_eq!(reader.read_line(&mut answer).unwrap(), 0, "the connection has ended");
        });
    }
}
