//! HAProxy by its Runtime API: one command on one connection to its socket, which must have the level
//! `admin`. Tested with 2.6.
//!
//! What it was told is gone after a restart or reload; [`Front`](crate::front::Front) tells it again.
//! Until then it does what its configuration says, and what stands in the state file that whoever reloads it wrote
//! (`docs/balancers.md`).
//! After a reload the old process goes on with its requests, and cannot be asked: as long as a process
//! that was asked before still runs, it counts as lingering, and so do others that its master had started when the one that
//! answers was asked first.

use crate::answer::whole;
use crate::balancer::{ANSWER_WITHIN, Balancer, BalancerError};
use crate::proc::{Life, siblings};
use crate::traffic::{Change, Observed, Seen, Traffic, Weight};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bits of `srv_admin_state`: maintenance, forced, inherited, and by name resolution; drain, forced and inherited
/// (HAProxy's management guide, "show servers state"). 0x40 is none of them, whatever it is called: somebody has set the server's name at run time.
const MAINTENANCE: u64 = 0x01 | 0x02 | 0x20;
const DRAIN: u64 = 0x08 | 0x10;
/// The value of `srv_op_state` of a server that gets nothing: by its checks, where it is not so by its `srv_admin_state`.
const STOPPED: u64 = 0;
/// How often it is looked whether there is room in a queue.
const LOOK: Duration = Duration::from_millis(5);

/// One line of a table: fields by their names in its header.
type Row = BTreeMap<String, String>;

/// One backend of one HAProxy.
#[derive(Debug)]
pub struct HaProxy {
    name: String,
    socket: PathBuf,
    backend: String,
    /// The process that answered last, and those before it that may still run.
    process: Option<Life>,
    before: Vec<Life>,
}

impl HaProxy {
    /// The backend `backend` of the HAProxy with this socket.
    ///
    /// # Errors
    /// If the backend's name could be taken for more than a name.
    pub fn new(socket: &Path, backend: &str) -> Result<Self, Invalid> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if backend.is_empty() || !backend.chars().all(legal) {
            return Err(Invalid::new("backend", backend, "letters, digits, '-', '_', '.', ':'"));
        }
        Ok(Self {
            name: format!("haproxy:{}/{backend}", socket.display()),
            socket: socket.into(),
            backend: backend.into(),
            process: None,
            before: Vec::new(),
        })
    }

    /// What HAProxy says to one command.
    fn ask(&self, command: &str) -> Result<String, BalancerError> {
        let unreachable =
            |source| BalancerError::Unreachable { balancer: self.name.clone(), source };
        let mut stream = connect(&self.socket).map_err(|source| {
            if self.has_ended(&source) {
                BalancerError::Ended { balancer: self.name.clone() }
            } else {
                unreachable(source)
            }
        })?;
        stream.set_write_timeout(Some(ANSWER_WITHIN)).map_err(unreachable)?;
        stream.write_all(format!("{command}\n").as_bytes()).map_err(unreachable)?;
        let limit = |stream: &UnixStream, left| stream.set_read_timeout(Some(left));
        let answer = whole(&mut stream, ANSWER_WITHIN, limit).map_err(unreachable)?;
        String::from_utf8(answer).map_err(|_| unreachable(ErrorKind::InvalidData.into()))
    }

    /// Whether nobody listens because no process that ever answered is left.
    fn has_ended(&self, error: &std::io::Error) -> bool {
        let mut known = self.before.iter().chain(&self.process);
        matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
            && self.process.is_some()
            && !known.any(|process| process.may_run())
    }

    fn command(&self, command: &str) -> Result<(), BalancerError> {
        let answer = self.ask(command)?;
        if answer.trim().is_empty() {
            return Ok(());
        }
        let (balancer, command) = (self.name.clone(), command.into());
        Err(BalancerError::Refused { balancer, command, answer: answer.trim().into() })
    }

    /// A table of the Runtime API.
    fn table(&self, command: &str, separator: char) -> Result<Vec<Row>, BalancerError> {
        let answer = self.ask(command)?;
        let first = || answer.lines().next().unwrap_or("nothing");
        rows(&answer, separator).ok_or_else(|| self.unexpected(command, first()))
    }

    fn unexpected(&self, command: &str, problem: impl Into<String>) -> BalancerError {
        let (balancer, command) = (self.name.clone(), command.into());
        BalancerError::Unexpected { balancer, command, problem: problem.into() }
    }

    /// Tells it of one server.
    fn tell_one(&self, Change { server, traffic }: &Change) -> Result<(), BalancerError> {
        let target = format!("set server {}/{server}", self.backend);
        match traffic {
            Traffic::Off => self.command(&format!("{target} state maint")),
            Traffic::Drain => self.command(&format!("{target} state drain")),
            Traffic::On(weight) => {
                // First the weight: a node that comes back with an old one gets too much at once.
                self.command(&format!("{target} weight {}", weight.get()))?;
                self.command(&format!("{target} state ready"))
            }
        }
    }

    /// Processes that answered before this one and still run.
    fn lingering(&mut self) -> Result<usize, BalancerError> {
        const COMMAND: &str = "show info";
        let info = self.ask(COMMAND)?;
        let own = |line: &str| line.strip_prefix("Pid: ")?.trim().parse::<i32>().ok();
        let process = info.lines().find_map(own);
        let number = process.ok_or_else(|| self.unexpected(COMMAND, "no process number"))?;
        let process = Life::of(number);
        if self.process != Some(process) {
            self.before.extend(self.process);
            // There may have been a reload before anybody asked, or several since.
            let unseen = siblings(number).into_iter().filter(|other| !self.before.contains(other));
            let unseen: Vec<_> = unseen.collect();
            self.before.extend(unseen);
            self.process = Some(process);
        }
        // One that answers again does not linger.
        self.before.retain(|before| *before != process && before.may_run());
        Ok(self.before.len())
    }
}

impl Balancer for HaProxy {
    fn name(&self) -> &str {
        &self.name
    }

    fn observe(&mut self) -> Result<Observed, BalancerError> {
        let lingering = self.lingering()?;
        let states = self.table(&format!("show servers state {}", self.backend), ' ')?;
        let command = format!("show stat {} 6 -1", self.backend);
        let counts = self.table(&command, ',')?;
        let observed =
            observed(&states, &counts).map_err(|problem| self.unexpected(&command, problem))?;
        Ok(Observed { lingering, ..observed })
    }

    fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError> {
        let mut refused = None;
        for change in changes {
            match self.tell_one(change) {
                Ok(()) => {}
                // What is wrong with one server is no reason to leave the site without the others.
                Err(error @ BalancerError::Refused { .. }) => refused = refused.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Of this process: what one of before a reload has, nobody can end.
    fn end(&mut self, server: &Name) -> Result<(), BalancerError> {
        self.command(&format!("shutdown sessions server {}/{server}", self.backend))
    }
}

/// A connection to the socket at `path`. Who hangs accepts none, and when its queue is full, which many that ask at once may
/// fill, the kernel has callers wait for it, however long: this does for [`ANSWER_WITHIN`].
fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let caller = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let (address, deadline) = (UnixAddr::new(path)?, Instant::now() + ANSWER_WITHIN);
    while let Err(errno) = socket::connect(caller.as_raw_fd(), &address) {
        if errno != Errno::EAGAIN || Instant::now() >= deadline {
            return Err(errno.into());
        }
        sleep(LOOK);
    }
    let stream = UnixStream::from(caller);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// What both tables say of a backend; what is wrong where they do not say all: a node of which nothing is counted is not
/// one that has nothing in flight.
fn observed(states: &[Row], counts: &[Row]) -> Result<Observed, String> {
    let counted = |name: &str| {
        let mut rows = counts.iter();
        let row = rows.find(|row| row.get("svname").is_some_and(|found| found == name));
        row.ok_or_else(|| format!("nothing is counted of {name}"))
    };
    let (mut servers, mut down) = (BTreeMap::new(), BTreeSet::new());
    for row in states {
        // Servers with names of another form are not ours.
        let Some(Ok(name)) = row.get("srv_name").map(|name| name.parse::<Name>()) else {
            continue;
        };
        let traffic = traffic_of(number(row, "srv_admin_state")?, number(row, "srv_uweight")?);
        if traffic.is_on() && number(row, "srv_op_state")? == STOPPED {
            down.insert(name.clone());
        }
        let counts = counted(name.as_str())?;
        let in_flight = number(counts, "scur")?.saturating_add(number(counts, "qcur")?);
        let served = number(counts, "stot").ok();
        servers.insert(name, Seen { traffic, in_flight, served });
    }
    let queued = number(counted("BACKEND")?, "qcur")?;
    Ok(Observed { servers, down, queued, lingering: 0 })
}

fn number(row: &Row, field: &str) -> Result<u64, String> {
    let value = row.get(field).map_or("", String::as_str);
    value.parse().map_err(|_| format!("{field} is {value:?}"))
}

fn traffic_of(admin: u64, weight: u64) -> Traffic {
    if admin & MAINTENANCE != 0 {
        return Traffic::Off;
    }
    if admin & DRAIN != 0 {
        return Traffic::Drain;
    }
    // A weight of nothing takes no new requests either; one beyond ours is set right by the next
    // change.
    match u8::try_from(weight).map(Weight::try_from) {
        Ok(Ok(weight)) => Traffic::On(weight),
        _ if weight == 0 => Traffic::Drain,
        _ => Traffic::On(Weight::FULL),
    }
}

/// Lines under a header that begins with `#`; nothing if there is no such header.
fn rows(answer: &str, separator: char) -> Option<Vec<Row>> {
    let mut lines = answer.lines().skip_while(|line| !line.starts_with('#'));
    let header: Vec<_> = lines.next()?.trim_start_matches(['#', ' ']).split(separator).collect();
    let row = |line: &str| {
        let fields = header.iter().zip(line.split(separator));
        fields.map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    Some(lines.filter(|line| !line.trim().is_empty()).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::Backlog;
    use proptest::prelude::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    // Goal: one that hangs holds nobody up, not even when its queue is full. Method: a socket of which nobody accepts,
    // and as many callers as fit.
    #[test]
    fn who_takes_no_more_callers_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let flags = SockFlag::SOCK_CLOEXEC;
        let hung = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        socket::bind(hung.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        socket::listen(&hung, Backlog::new(1).unwrap()).unwrap();
        let callers: Vec<_> = (0..10).map_while(|_| connect(&path).ok()).collect();
        assert!((1..10).contains(&callers.len()), "{} fit", callers.len());
        let mut balancer = HaProxy::new(&path, "shop").unwrap();
        let (told, seen) = channel();
        thread::spawn(move || told.send(balancer.observe()));
        let seen = seen.recv_timeout(5 * ANSWER_WITHIN).expect("it is given up");
        let Err(BalancerError::Unreachable { source, .. }) = &seen else { panic!("{seen:?}") };
        assert_eq!(source.kind(), ErrorKind::WouldBlock);
    }

    /// A HAProxy that refuses commands with `part` in them; all that it is asked.
    fn refusing(path: &Path, part: &'static str) -> Receiver<String> {
        let listener = UnixListener::bind(path).unwrap();
        let (told, asked) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut command = String::new();
                stream.read_line(&mut command).unwrap();
                let answer = if command.contains(part) { "No.\n\n" } else { "\n" };
                if told.send(command.trim().to_string()).is_err() {
                    return;
                }
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        asked
    }

    #[test]
    fn a_server_that_it_refuses_to_change_keeps_no_other_from_being_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let asked = refusing(&path, "/n1 weight");
        let mut balancer = HaProxy::new(&path, "shop").unwrap();
        let change = |name: &str, traffic| Change { server: name.parse().unwrap(), traffic };
        let on = Traffic::On(Weight::FULL);
        let error = balancer.tell(&[change("n1", on), change("n2", on)]).unwrap_err();
        let BalancerError::Refused { command, answer, .. } = &error else { panic!("{error}") };
        assert_eq!((command.as_str(), answer.as_str()), ("set server shop/n1 weight 100", "No."));
        let asked: Vec<_> = asked.try_iter().skip(1).collect();
        assert_eq!(asked, ["set server shop/n2 weight 100", "set server shop/n2 state ready"]);
    }

    #[test]
    fn states_are_told_apart() {
        let on = |weight| Traffic::On(Weight::try_from(weight).unwrap());
        assert_eq!(traffic_of(0, 1), on(1));
        assert_eq!(traffic_of(0x04, 50), on(50), "only the configuration said maintenance");
        assert_eq!(traffic_of(0x05, 50), Traffic::Off);
        assert_eq!(traffic_of(0x08, 50), Traffic::Drain);
        assert_eq!(traffic_of(0x20, 50), Traffic::Off, "its name is not found");
        assert_eq!(traffic_of(0x40, 50), on(50), "somebody gave it another name");
        assert_eq!(traffic_of(0, 0), Traffic::Drain);
        assert_eq!(traffic_of(0, 256), on(100));
    }

    #[test]
    fn tables_are_read_with_their_headers() {
        let answer = "1\n# be_id be_name srv_id srv_name\n3 shop 1 n1\n3 shop 2 n2\n\n";
        let rows = rows(answer, ' ').unwrap();
        assert_eq!((rows.len(), rows[1]["srv_name"].as_str()), (2, "n2"));
        assert_eq!(super::rows("Can't find backend.\n", ' '), None);
    }

    // Goal: a node is taken to have nothing in flight only where that is said. Method: tables as they are, and with a part missing,
    // as those of an answer that was cut off.
    #[test]
    fn what_is_not_counted_is_not_nothing() {
        let states = "1\n# srv_name srv_op_state srv_admin_state srv_uweight\n\
                      n1 0 0 50\nn2 0 8 100\nOther 2 0 1\n";
        let counts =
            "# pxname,svname,qcur,scur,stot\nshop,n1,1,2,70\nshop,n2,0,0,9\nshop,BACKEND,3,2,79\n";
        let of = |states: &str, counts: &str| {
            observed(&rows(states, ' ').unwrap(), &rows(counts, ',').unwrap())
        };
        let seen = of(states, counts).unwrap();
        let name = |text: &str| text.parse::<Name>().unwrap();
        let half = Traffic::On(Weight::try_from(50).unwrap());
        let first = Seen { traffic: half, in_flight: 3, served: Some(70) };
        let second = Seen { traffic: Traffic::Drain, in_flight: 0, served: Some(9) };
        let servers = BTreeMap::from([(name("n1"), first), (name("n2"), second)]);
        assert_eq!((&seen.servers, seen.queued, seen.lingering), (&servers, 3, 0));
        assert_eq!(seen.down, BTreeSet::from([name("n1")]), "n2 drains");
        let without = |part: &str| of(states, &counts.replace(part, "")).unwrap_err();
        assert_eq!(without("shop,n2,0,0,9\n"), "nothing is counted of n2");
        assert_eq!(without("shop,BACKEND,3,2,79\n"), "nothing is counted of BACKEND");
        assert_eq!(without(",0,0,9"), "scur is \"\"");
        let garbled = states.replace("n2 0 8", "n2 0 -");
        assert_eq!(of(&garbled, counts).unwrap_err(), "srv_admin_state is \"-\"");
    }

    #[test]
    fn names_that_are_more_than_names_are_refused() {
        for bad in ["", "a b", "a;shutdown", "a/b", "a\n"] {
            assert_eq!(HaProxy::new(Path::new("/s"), bad).unwrap_err().field, "backend");
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = (rows(&text, ' '), rows(&text, ','));
        }
    }
}
