//! The other end of an agent's socket, on its node or, through a relay that is started there, elsewhere.

use crate::lines;
use crate::wire::{JobStatus, Place, RESPONSE_BYTES_MAX, Request, Response, Status};
use keeptime_linux::process::Identity;
use keeptime_linux::syscall::SyscallError;
use keeptime_model::assignment::Assignment;
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::name::Name;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use keeptime_mpiqos::wire::{RankAnswer, Report};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use std::io::{self, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;
use thiserror::Error;

/// How long an answer may take: an agent applies a job of a thousand flows in well under a second.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The same through a relay, which has to be started on its node first.
const RELAYED_WITHIN: Duration = Duration::from_secs(30);

/// A connection to one agent. Blocking; every call answers or fails within ten seconds, through a relay within thirty.
#[derive(Debug)]
pub struct Client {
    /// In people's words.
    place: String,
    stream: BufReader<UnixStream>,
    _relay: Option<Relay>,
}

/// The process by which an agent on another node is reached; it ends with this.
#[derive(Debug)]
struct Relay(Child);

/// An agent did not do as asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The agent cannot be reached, or went away.
    #[error("the agent at {place} does not answer")]
    Unreachable {
        /// Where it should be.
        place: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What it said is longer than any answer, or is none: it is of another version, or no agent.
    #[error("what the agent at {place} answers cannot be read")]
    Unreadable {
        /// Where it is.
        place: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It understood and refused.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// It tried and could not.
    #[error("the agent could not do it: {error}")]
    Failed {
        /// What failed.
        error: String,
    },
    /// It said something else.
    #[error("the agent at {place} gave an answer that does not fit")]
    Unexpected {
        /// Where it is.
        place: String,
    },
}

impl ClientError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

impl Client {
    /// Connects to the agent at `socket`.
    ///
    /// # Errors
    /// If nothing listens there.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        let place = socket.display().to_string();
        match dial(socket, ANSWER_WITHIN) {
            Ok(stream) => Ok(Self { place, stream: BufReader::new(stream), _relay: None }),
            Err(source) => Err(ClientError::Unreachable { place, source }),
        }
    }

    /// Reaches the agent of `node` by a command that passes on to it what it reads, and writes what the agent
    /// says: `keeptime agent relay` there. Connects with the first call; what keeps the command from
    /// doing that is said on the standard error.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn through(node: &Name, mut command: Command) -> Result<Self, ClientError> {
        let place = node.to_string();
        let mut start = move || {
            let (ours, theirs) = UnixStream::pair()?;
            let input = OwnedFd::from(theirs.try_clone()?);
            let relay = command.stdin(input).stdout(OwnedFd::from(theirs)).spawn()?;
            Ok((bounded_by(RELAYED_WITHIN, ours)?, Relay(relay)))
        };
        match start() {
            Ok((stream, relay)) => {
                Ok(Self { place, stream: BufReader::new(stream), _relay: Some(relay) })
            }
            Err(source) => Err(ClientError::Unreachable { place, source }),
        }
    }

    /// Readable when the agent has gone, and never else between two calls.
    pub fn connection(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }

    /// Has `assignment` enforced.
    ///
    /// # Errors
    /// If the node refuses or fails; then all is as before.
    pub fn enforce(&mut self, assignment: Assignment) -> Result<(), ClientError> {
        self.done(&Request::Enforce(assignment))
    }

    /// Prolongs a job.
    ///
    /// # Errors
    /// If there is no such job.
    pub fn renew(&mut self, job: &Name, until: WallTime) -> Result<(), ClientError> {
        self.done(&Request::Renew { job: job.clone(), until_unix_nanos: until })
    }

    /// Counts running processes to a job.
    ///
    /// # Errors
    /// If the job has not begun, or a process is another user's or another job's.
    pub fn bind(&mut self, job: &Name, processes: Vec<u32>) -> Result<(), ClientError> {
        self.done(&Request::Bind { job: job.clone(), processes })
    }

    /// Counts open connections to a job.
    ///
    /// # Errors
    /// If the job has no flow to where they go, or there are none, or they are another user's.
    pub fn bind_flow(&mut self, job: &Name, flow: ConnectionPattern) -> Result<(), ClientError> {
        self.done(&Request::BindFlow { job: job.clone(), flow })
    }

    /// Counts this process, with all that it starts, to a job as long as this client lives; then all of it
    /// is ended.
    ///
    /// # Errors
    /// If the job has not begun, or is another user's, or this process belongs to another job.
    pub fn start(&mut self, job: &Name) -> Result<Place, ClientError> {
        match self.ask(&Request::Start { job: job.clone() })? {
            Response::Started(place) => Ok(place),
            _ => Err(self.unexpected()),
        }
    }

    /// How a job stands here.
    ///
    /// # Errors
    /// If the job is not assigned here, or is another user's.
    pub fn job(&mut self, job: &Name) -> Result<JobStatus, ClientError> {
        match self.ask(&Request::Job { job: job.clone() })? {
            Response::Job(status) => Ok(*status),
            _ => Err(self.unexpected()),
        }
    }

    /// The CPU time that a job has used on this node: some 22 bytes there and 22 back.
    ///
    /// # Errors
    /// If the job is not assigned here, or is another user's.
    pub fn used(&mut self, job: &Name) -> Result<Nanos, ClientError> {
        match self.ask(&Request::Used { job: job.clone() })? {
            Response::Used(used) => Ok(used),
            _ => Err(self.unexpected()),
        }
    }

    /// Has a job use at most so much of the CPU that it was assigned; all of it ends that.
    ///
    /// # Errors
    /// If the job has not begun, or the kernel refuses: then all is as before.
    pub fn restrain(&mut self, job: &Name, cpu: CpuPpm) -> Result<(), ClientError> {
        self.done(&Request::Restrain { job: job.clone(), cpu_ppm: cpu })
    }

    /// All that a rank of an MPI program asks for, as long as this client lives.
    ///
    /// # Errors
    /// If the agent cannot be reached, or does not understand it.
    pub fn mpi(&mut self, report: Report) -> Result<RankAnswer, ClientError> {
        match self.ask(&Request::Mpi(report))? {
            Response::Mpi(answer) => Ok(answer),
            _ => Err(self.unexpected()),
        }
    }

    /// Ends a job on this node.
    ///
    /// # Errors
    /// If the agent cannot be reached or fails.
    pub fn withdraw(&mut self, job: &Name) -> Result<(), ClientError> {
        self.done(&Request::Withdraw { job: job.clone() })
    }

    /// What the node has, enforces and measures.
    ///
    /// # Errors
    /// If the agent cannot be reached.
    pub fn status(&mut self) -> Result<Status, ClientError> {
        match self.ask(&Request::Status)? {
            Response::Status(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    fn unexpected(&self) -> ClientError {
        ClientError::Unexpected { place: self.place.clone() }
    }

    fn done(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.ask(request)? {
            Response::Done => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Response, ClientError> {
        let failed = |source: io::Error| {
            let place = self.place.clone();
            match source.kind() {
                io::ErrorKind::InvalidData => ClientError::Unreadable { place, source },
                _ => ClientError::Unreachable { place, source },
            }
        };
        match exchange(&mut self.stream, request).map_err(failed)? {
            Response::Refused { reason } => Err(ClientError::Refused { reason }),
            Response::Failed { error } => Err(ClientError::Failed { error }),
            other => Ok(other),
        }
    }
}

/// Says a request, and hears what is answered.
fn exchange(stream: &mut BufReader<UnixStream>, request: &Request) -> io::Result<Response> {
    match lines::say(stream.get_mut(), request) {
        // Who takes no more connections says so, and does not wait to be asked.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            lines::hear(stream, RESPONSE_BYTES_MAX).map_err(|_| error)
        }
        said => {
            said.map_err(as_late)?;
            lines::hear(stream, RESPONSE_BYTES_MAX).map_err(as_late)
        }
    }
}

/// Says what it means that a call on a [`bounded`] stream would have to wait longer.
fn as_late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "it has not answered in time")
        }
        _ => error,
    }
}

/// As [`UnixStream::connect`], which waits for ever for one that is stopped and whose queue is full.
fn dial(socket: &Path, within: Duration) -> io::Result<UnixStream> {
    let (family, kind, flags) = (AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC);
    // How long it may write is how long it may wait for room in that queue (unix(7)).
    let stream = bounded_by(within, socket::socket(family, kind, flags, None)?.into())?;
    let address = UnixAddr::new(socket)?;
    loop {
        match socket::connect(stream.as_raw_fd(), &address) {
            Ok(()) => return Ok(stream),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A stream on which every call fails in time.
fn bounded_by(limit: Duration, stream: UnixStream) -> io::Result<UnixStream> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

impl Relay {
    /// Whether it ends because nobody asks any more, or because it is told to.
    fn ends(&self) -> Result<bool, SyscallError> {
        let identity = Identity::of(self.0.id().cast_signed())?;
        let Some(relay) = identity.map(|identity| identity.open()).transpose()?.flatten() else {
            return Ok(false);
        };
        if relay.wait(ENDS_WITHIN)? {
            return Ok(true);
        }
        relay.signal(Signal::SIGTERM)?;
        relay.wait(ENDS_WITHIN)
    }
}

impl Drop for Relay {
    /// It hears that nobody asks any more, and so does what it has started on the node. Who kills it at once may leave that
    /// behind, as `srun` does; who tells it to end need not.
    fn drop(&mut self) {
        // One that has ended is nobody's number any more.
        if !self.ends().unwrap_or(false) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// A relay that is told to end has so long.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FlowStatus;
    use keeptime_model::assignment::{AssignedFlow, FLOWS_MAX, TrafficClass};
    use keeptime_model::units::{BitsPerSecond, Bytes};
    use nix::sys::socket::Backlog;
    use std::error::Error;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// What a client asks, at the socket of an agent that says this.
    fn asked<T>(said: Vec<u8>, ask: impl FnOnce(&mut Client) -> T) -> T {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let agent = UnixListener::bind(&path).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = agent.accept().unwrap();
                let request = lines::next(&mut BufReader::new(stream.try_clone().unwrap()), 1_000);
                assert!(request.unwrap().is_some());
                // Who does not read all of it says why.
                drop(stream.write_all(&said));
            });
            ask(&mut Client::connect(&path).unwrap())
        })
    }

    // Goal: whatever a node may be assigned can be told. Method: a job with as many flows as one may have, each as long as it
    // can be written.
    #[test]
    fn the_status_of_a_job_with_all_flows_that_it_may_have_is_read() {
        let most = u64::MAX;
        let flow = AssignedFlow {
            destination: "255.255.255.255".parse().unwrap(),
            bits_per_second: BitsPerSecond::new(most),
            up_to_bits_per_second: Some(BitsPerSecond::new(most)),
            burst_bytes: Some(Bytes::new(most)),
            class: TrafficClass::LowLatency,
        };
        let until = WallTime::from_unix_nanos(most);
        let mut assignment = Assignment::new("r1".parse().unwrap(), CpuPpm::new(1), until);
        assignment.flows = vec![flow; FLOWS_MAX];
        let counted = FlowStatus { flow, sent_bytes: Bytes::new(most), dropped_packets: most };
        let flows = vec![counted; FLOWS_MAX];
        let status = JobStatus { flows, ..JobStatus::unmeasured(assignment) };
        let answer = Response::Job(Box::new(status.clone()));
        let mut said = serde_json::to_vec(&answer).unwrap();
        // As `RESPONSE_BYTES_MAX` has it.
        assert!(said.len() < 500 * FLOWS_MAX, "{}", said.len());
        said.push(b'\n');
        assert_eq!(asked(said, |client| client.job(&status.assignment.job)).unwrap(), status);
    }

    // An agent that has no place closes before it is asked.
    #[test]
    fn a_refusal_that_comes_before_the_question_is_heard() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let agent = UnixListener::bind(&path).unwrap();
        let ask = |said: &[u8]| {
            let mut client = Client::connect(&path).unwrap();
            agent.accept().unwrap().0.write_all(said).unwrap();
            client.status().unwrap_err()
        };
        let refused = ask(b"{\"refused\":{\"reason\":\"full\"}}\n");
        assert!(
            matches!(&refused, ClientError::Refused { reason } if reason == "full"),
            "{refused:?}"
        );
        let silent = ask(b"").source().unwrap().to_string();
        assert!(silent.contains("Broken pipe"), "{silent}");
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_no_silence() {
        let error = asked(b"hello\n".to_vec(), Client::status).unwrap_err();
        assert!(matches!(error, ClientError::Unreadable { .. }), "{error:?}");
        assert!(!error.is_retryable());
        let error = asked(b"{".to_vec(), Client::status).unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    }

    // Goal: nobody waits for ever for an agent that is stopped, as a task of Slurm's would before it begins. Method: one that
    // takes no call, until its queue is full.
    #[test]
    fn an_agent_that_takes_no_call_is_waited_for_as_long_as_one_that_gives_no_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let (family, kind, flags) = (AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC);
        let stopped = socket::socket(family, kind, flags, None).unwrap();
        socket::bind(stopped.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        socket::listen(&stopped, Backlog::new(1).unwrap()).unwrap();
        let calls: Vec<_> = (0..8).map(|_| dial(&path, Duration::from_millis(20))).collect();
        assert!(calls[0].is_ok(), "{:?}", calls[0]);
        let last = calls[7].as_ref().unwrap_err();
        assert_eq!(last.kind(), io::ErrorKind::TimedOut, "{last}");
    }
}
