//! nginx by a file of its own and a reload. Tested with 1.22.
//!
//! The file holds one `upstream` block and lies beside the operator's configuration, which includes it.
//! nginx counts no requests: an access log that it sends ([`Nginx::with_log`]) does. It has no way to drain:
//! after a reload the workers of before go on with what they have, and with what they are about to begin on
//! any node. A node is drained when those workers are gone; they count as lingering until then.
//! `worker_shutdown_timeout` in the operator's configuration bounds how long they may take; nothing else ends what they
//! have begun.

use crate::balancer::{Balancer, BalancerError};
use crate::command::run;
use crate::proc::{children, connected_to, process, title};
use crate::tally::Tally;
use crate::traffic::{Change, Observed, Seen, Server, Traffic, Weight};
use keeptime_files::{Mode, replace};
use keeptime_linux::process::Identity;
use keeptime_locks::{lock, try_lock};
use keeptime_model::Invalid;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(5);
/// What a worker calls itself while it ends.
const ENDING: &str = "shutting down";
/// A reload lasts no longer: the configuration is read twice for it, of thousands of lines, with names that are looked up.
const RELOAD_WITHIN: Duration = Duration::from_secs(10);
/// How long none is tried after one that was not seen to succeed: twice as long each time, and as long as it took at the least,
/// since each starts workers beside those of before. No longer, since a node that has died is not taken out meanwhile.
const PAUSE_LEAST: Duration = Duration::from_secs(1);
const PAUSE_MOST: Duration = RELOAD_WITHIN;

/// Masters whose last reload was not seen to succeed, whichever of their upstreams it was for.
static PAUSES: Mutex<BTreeMap<Identity, Pause>> = Mutex::new(BTreeMap::new());
/// Whose turn it is to write what a master reads, and to have it reload. One at a time: the new workers of one would be taken for
/// those of another, which may have read that one's file as it was before.
static TURNS: Mutex<BTreeMap<Identity, Turn>> = Mutex::new(BTreeMap::new());

type Turn = Arc<Mutex<()>>;

/// One upstream of one nginx.
#[derive(Debug)]
pub struct Nginx {
    name: String,
    configuration: PathBuf,
    file: PathBuf,
    upstream: String,
    servers: Vec<Server>,
    log: Option<SocketAddr>,
    /// What came of the log since it was first looked.
    tally: Option<Tally>,
    /// What the file says.
    told: BTreeMap<Name, Traffic>,
    /// The master that was last made to read the file, or that started after it was written.
    master: Option<Identity>,
    /// Workers of before the last reload.
    before: Vec<Identity>,
    /// All workers when it was last looked: they may outlive their master.
    workers: Vec<Identity>,
}

/// For so long a master is not made to read its configuration again.
#[derive(Debug)]
struct Pause {
    until: Instant,
    length: Duration,
    why: String,
}

impl Nginx {
    /// The upstream `upstream` with these servers. Beside the configuration lies its file, called
    /// `UPSTREAM.upstream`, which nobody else writes: what it says is read; else all servers are off.
    ///
    /// # Errors
    /// If the upstream's name could be taken for more than a name, or there is no server.
    pub fn new(
        configuration: &Path,
        upstream: &str,
        servers: Vec<Server>,
    ) -> Result<Self, Invalid> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if upstream.is_empty() || !upstream.chars().all(legal) {
            return Err(Invalid::new("upstream", upstream, "letters, digits, '-', '_'"));
        }
        if servers.is_empty() {
            return Err(Invalid::new("servers", 0, "at least one"));
        }
        let file = configuration.with_file_name(format!("{upstream}.upstream"));
        let text = fs::read_to_string(&file).unwrap_or_default();
        let told = parse(&text, &servers);
        Ok(Self {
            name: format!("nginx:{}/{upstream}", configuration.display()),
            configuration: configuration.into(),
            file,
            upstream: upstream.into(),
            servers,
            log: None,
            tally: None,
            told,
            master: None,
            before: Vec::new(),
            workers: Vec::new(),
        })
    }

    /// Counts what its servers answer by an access log that it sends to `address`, one datagram for each
    /// request, at whose end `$upstream_addr`. Nobody else may send anything there.
    #[must_use]
    pub fn with_log(mut self, address: SocketAddr) -> Self {
        self.log = Some(address);
        self
    }

    /// Writes the file as it would be now, so that a configuration that includes it can be loaded.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn prepare(&self) -> Result<(), BalancerError> {
        self.write(&self.told)
    }

    /// The master, if it runs.
    fn running(&self) -> Result<Identity, BalancerError> {
        let number = process_file(&self.configuration).and_then(fs::read_to_string);
        let running = number.as_ref().ok().and_then(|number| process(number.trim().parse().ok()?));
        let running =
            running.filter(|process| self.master == Some(*process) || is_master(*process));
        running.ok_or_else(|| {
            let has_ended = self.master.is_some_and(|master| !master.is_alive());
            if has_ended && !self.workers.iter().any(|worker| worker.is_alive()) {
                return BalancerError::Ended { balancer: self.name.clone() };
            }
            self.unreachable(number.err().unwrap_or_else(|| ErrorKind::NotFound.into()))
        })
    }

    /// Whether this is no pause.
    fn may_reload(&self) -> Result<(), BalancerError> {
        let master = self.running()?;
        let (pauses, now) = (pauses(), Instant::now());
        match pauses.get(&master).filter(|pause| now < pause.until) {
            None => Ok(()),
            Some(Pause { until, why, .. }) => {
                let seconds = until.saturating_duration_since(now).as_secs() + 1;
                Err(BalancerError::Paused { why: why.clone(), seconds })
            }
        }
    }

    /// Makes the master read its configuration, and waits for workers that have. It is its turn.
    fn reload(&mut self) -> Result<(), BalancerError> {
        let (master, began) = (self.running()?, Instant::now());
        let outcome = self.reload_by(master, began + RELOAD_WITHIN);
        let mut pauses = pauses();
        // Those that have ended are not asked any more.
        pauses.retain(|master, _| master.is_alive());
        let before = pauses.remove(&master).map(|pause| pause.length);
        if let Err(error) = &outcome {
            let length = pause_after(before.unwrap_or_default(), began.elapsed());
            let (until, why) = (Instant::now() + length, chain(error));
            pauses.insert(master, Pause { until, length, why });
        }
        outcome
    }

    fn reload_by(&mut self, master: Identity, deadline: Instant) -> Result<(), BalancerError> {
        let workers = children(master.pid);
        // The program that runs: what is installed may be another by now.
        let mut reload = Command::new(format!("/proc/{}/exe", master.pid));
        reload.arg("-c").arg(&self.configuration).args(["-s", "reload"]);
        // It reads the configuration before it tells the master, and looks names up that stand there.
        let outcome = run(&mut reload, RELOAD_WITHIN);
        if let Ok((status, said)) = &outcome
            && !status.success()
        {
            return Err(BalancerError::Refused {
                balancer: self.name.clone(),
                command: "nginx -s reload".into(),
                answer: said.trim().into(),
            });
        }
        // Until its workers are seen to have taken over, nobody knows which file they go by.
        self.master = None;
        outcome.map_err(|source| self.unreachable(source))?;
        while !has_taken_over(master, &workers) {
            if Instant::now() > deadline {
                return Err(BalancerError::Unexpected {
                    balancer: self.name.clone(),
                    command: "nginx -s reload".into(),
                    problem: format!("no new workers within {RELOAD_WITHIN:?}; see its error log"),
                });
            }
            sleep(LOOK);
        }
        self.before.extend(workers);
        self.master = Some(master);
        Ok(())
    }

    /// Listens to the log from the first time on, and takes in what has come.
    fn hear(&mut self) -> Result<(), BalancerError> {
        let Some(address) = self.log else { return Ok(()) };
        if self.tally.is_none() {
            let tally = Tally::listen(address, &self.servers).map_err(|source| {
                BalancerError::Log { balancer: self.name.clone(), address, source }
            })?;
            self.tally = Some(tally);
        }
        self.tally.iter_mut().for_each(Tally::read);
        Ok(())
    }

    fn write(&self, told: &BTreeMap<Name, Traffic>) -> Result<(), BalancerError> {
        let text = render(&self.upstream, &self.servers, told);
        replace(&self.file, text.as_bytes(), Mode::Kept).map_err(|source| {
            let file = self.file.display().to_string();
            BalancerError::StateFile { file, source }
        })
    }

    /// Whether the file says what was told, and nobody else has written it.
    fn is_written(&self) -> bool {
        let text = fs::read_to_string(&self.file);
        text.is_ok_and(|text| text == render(&self.upstream, &self.servers, &self.told))
    }

    /// The turn, if nobody else has it. Whoever waited for it might hold others up for as long as a reload takes.
    fn taken<'a>(&self, turn: &'a Turn) -> Result<MutexGuard<'a, ()>, BalancerError> {
        let silent = || BalancerError::Silent { balancer: self.name.clone(), seconds: 0 };
        try_lock(turn).ok_or_else(silent)
    }

    fn unreachable(&self, source: Error) -> BalancerError {
        BalancerError::Unreachable { balancer: self.name.clone(), source }
    }
}

impl Balancer for Nginx {
    fn name(&self) -> &str {
        &self.name
    }

    /// The servers of its file, once an operator has made one and nginx runs.
    fn known(&mut self) -> Result<Vec<Name>, BalancerError> {
        self.running()?;
        fs::metadata(&self.file).map_err(|source| {
            let why = format!("{}: {source}", self.file.display());
            self.unreachable(Error::new(source.kind(), why))
        })?;
        Ok(self.servers.iter().map(|server| server.name.clone()).collect())
    }

    fn observe(&mut self) -> Result<Observed, BalancerError> {
        // Before connections are counted: so a request that ends just now is missed once, not counted twice.
        self.hear()?;
        let master = self.running()?;
        let turn = turn_of(master);
        let is_left = self.master.is_some() && self.is_written();
        let _turn = if is_left { None } else { Some(self.taken(&turn)?) };
        if !is_left && !self.is_written() {
            // It may have read what others wrote, and may yet go by that.
            self.master = None;
            self.prepare()?;
        }
        if self.master.is_none() {
            // Whether it has read the file as it is now, nobody knows.
            self.may_reload()?;
            self.reload()?;
        }
        // One that was started again has read the file when it started.
        self.master = Some(master);
        let own = children(master.pid);
        // Workers go on when another master takes the place of theirs, and do not end what they work on any sooner.
        let known: BTreeSet<_> = self.workers.iter().chain(&self.before).copied().collect();
        let left = known.into_iter().filter(|worker| !own.contains(worker) && worker.is_alive());
        let workers: Vec<_> = own.iter().copied().chain(left).collect();
        self.before.retain(|worker| workers.contains(worker));
        let ends = |worker: &&Identity| {
            self.before.contains(worker)
                || !own.contains(worker)
                || title(worker.pid).contains(ENDING)
        };
        let lingering = workers.iter().filter(ends).count();
        let connected = connected_to(&workers).map_err(|source| self.unreachable(source))?;
        let seen = |server: &Server| {
            let traffic = self.told.get(&server.name).copied().unwrap_or(Traffic::Off);
            let to = connected.iter().filter(|address| **address == server.address);
            let in_flight = to.count() as u64;
            let served =
                self.tally.as_mut().and_then(|tally| tally.sent(server.address, in_flight));
            (server.name.clone(), Seen { traffic, in_flight, served })
        };
        let servers = self.servers.iter().map(seen).collect();
        self.workers = workers;
        Ok(Observed { servers, lingering, ..Observed::default() })
    }

    fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError> {
        let mut told = self.told.clone();
        for Change { server, traffic } in changes {
            if !self.servers.iter().any(|known| known.name == *server) {
                let names = self.servers.iter().map(|server| server.name.as_str());
                return Err(BalancerError::UnknownServer {
                    balancer: self.name.clone(),
                    server: server.to_string(),
                    there: names.collect::<Vec<_>>().join(", "),
                });
            }
            told.insert(server.clone(), *traffic);
        }
        // nginx itself knows no difference between a node that drains and one that is off.
        let is_same = self.servers.iter().all(|server| {
            let weight = |told: &BTreeMap<Name, Traffic>| match told.get(&server.name) {
                Some(Traffic::On(weight)) => Some(*weight),
                _ => None,
            };
            weight(&told) == weight(&self.told)
        });
        // The file is what the next reload reads, whosever that is.
        let turn = turn_of(self.running()?);
        let _turn = self.taken(&turn)?;
        if !is_same {
            self.may_reload()?;
        }
        self.write(&told)?;
        let loaded = if is_same { Ok(()) } else { self.reload() };
        match loaded {
            Ok(()) => {
                self.told = told;
                Ok(())
            }
            Err(error) => {
                // What the file says is what the workers do, or are made to do at the next look.
                self.write(&self.told)?;
                Err(error)
            }
        }
    }
}

fn pauses() -> MutexGuard<'static, BTreeMap<Identity, Pause>> {
    lock(&PAUSES)
}

fn turn_of(master: Identity) -> Turn {
    let mut turns = lock(&TURNS);
    turns.retain(|master, _| master.is_alive());
    Arc::clone(turns.entry(master).or_default())
}

/// How long the pause is after a reload that took so long, if the one before it lasted for `before`.
fn pause_after(before: Duration, took: Duration) -> Duration {
    (2 * before).max(took).clamp(PAUSE_LEAST, PAUSE_MOST)
}

/// Whether `process` is a master of nginx, or will call itself so in a moment. The number in the file of one that has
/// ended may be anybody's by now: neither are that one's children workers, nor is its program to be run.
fn is_master(process: Identity) -> bool {
    let title = title(process.pid);
    let mut words = title.split(' ');
    title.contains(": master process") || words.next().is_some_and(|word| word.ends_with("nginx"))
}

/// Where the master writes its process number, by its configuration.
fn process_file(configuration: &Path) -> std::io::Result<PathBuf> {
    let text = fs::read_to_string(configuration)?;
    let file = text.lines().find_map(|line| {
        let value = line.trim().strip_prefix("pid")?.strip_prefix(char::is_whitespace)?;
        value.trim_start().split(';').next().filter(|file| file.starts_with('/'))
    });
    file.map(|file| file.trim_end().into()).ok_or_else(|| {
        let problem = format!("{} has no line `pid /PATH;`", configuration.display());
        Error::new(ErrorKind::InvalidData, problem)
    })
}

/// Whether new workers are there and none of those `before` takes connections. The master starts all
/// new ones before it tells the old ones.
fn has_taken_over(master: Identity, before: &[Identity]) -> bool {
    let now = children(master.pid);
    let is_new = |worker: &Identity| !before.contains(worker);
    let ends = |worker: &Identity| is_new(worker) || title(worker.pid).contains(ENDING);
    now.iter().any(is_new) && now.iter().all(ends)
}

fn render(upstream: &str, servers: &[Server], told: &BTreeMap<Name, Traffic>) -> String {
    let mut text = format!("# Written by Keeptime; changes are lost.\nupstream {upstream} {{\n");
    for Server { name, address } in servers {
        // A node that drains and one that is off differ for us only.
        let how = match told.get(name) {
            Some(Traffic::On(weight)) => format!("weight={}; # {name} on", weight.get()),
            Some(Traffic::Drain) => format!("down; # {name} drain"),
            Some(Traffic::Off) | None => format!("down; # {name} off"),
        };
        text.push_str(&format!("    server {address} {how}\n"));
    }
    text.push_str("}\n");
    text
}

/// What a file that [`render`] wrote says of `servers`.
fn parse(text: &str, servers: &[Server]) -> BTreeMap<Name, Traffic> {
    let told = |server: &Server| {
        let line = text.lines().find_map(|line| {
            let (address, how) = line.trim().strip_prefix("server ")?.split_once(' ')?;
            (address == server.address.to_string()).then_some(how)
        })?;
        let weight = line.strip_prefix("weight=").and_then(|rest| rest.split(';').next());
        let traffic = match weight {
            Some(weight) => Traffic::On(Weight::try_from(weight.parse::<u8>().ok()?).ok()?),
            None if line.ends_with(" drain") => Traffic::Drain,
            None => Traffic::Off,
        };
        Some((server.name.clone(), traffic))
    };
    servers.iter().filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Uid, setfsuid};
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    fn servers() -> Vec<Server> {
        let server = |(name, address): (&str, &str)| Server {
            name: name.parse().unwrap(),
            address: address.parse().unwrap(),
        };
        [("n1", "10.0.0.1:80"), ("n2", "10.0.0.2:80"), ("n3", "[::1]:80")].map(server).into()
    }

    /// One whose file says that this process is the master.
    fn with_own_number(directory: &tempfile::TempDir) -> Nginx {
        let [configuration, number] =
            ["nginx.conf", "nginx.pid"].map(|file| directory.path().join(file));
        fs::write(&number, std::process::id().to_string()).unwrap();
        fs::write(&configuration, format!("pid {};\n", number.display())).unwrap();
        Nginx::new(&configuration, "shop", servers()).unwrap()
    }

    #[test]
    fn the_file_is_what_nginx_reads() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let told = [(name("n1"), Traffic::On(Weight::FULL)), (name("n2"), Traffic::Drain)].into();
        let text = render("shop", &servers(), &told);
        assert!(text.contains("upstream shop {\n    server 10.0.0.1:80 weight=100; # n1 on\n"));
        assert!(text.contains("    server [::1]:80 down; # n3 off\n}\n"), "{text}");
    }

    #[test]
    fn a_configuration_says_where_the_process_number_is() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = directory.path().join("nginx.conf");
        let found = |text: &str| {
            fs::write(&configuration, text).unwrap();
            process_file(&configuration).map_err(|error| error.to_string())
        };
        let usual = "user www-data;\n  pid\t/run/nginx.pid ; # as on Debian\nevents {}\n";
        assert_eq!(found(usual), Ok("/run/nginx.pid".into()));
        for other in ["", "# pid /run/nginx.pid;\n", "pid nginx.pid;\n", "pidfile /run/n;\n"] {
            assert!(found(other).unwrap_err().contains("pid /PATH;"), "{other}");
        }
    }

    // Goal: nginx that refuses a reload, or is stuck, is not made to reload all the time, and yet so often that a node that
    // died is soon out. Method: one reload after the other, of which the last one takes its time.
    #[test]
    fn pauses_grow_to_ten_seconds() {
        let mut before = Duration::ZERO;
        let pauses = [30, 30, 30, 30, 30, 10_005].map(|took| {
            before = pause_after(before, Duration::from_millis(took));
            before.as_secs()
        });
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(pause_after(Duration::ZERO, RELOAD_WITHIN), RELOAD_WITHIN, "as long as it took");
    }

    // Goal: what a worker has in flight is waited for, though its master has ended and another one runs. Method: this
    // process is that other one, and the one that started it is such a worker.
    #[test]
    fn workers_that_outlive_their_master_linger() {
        let directory = tempfile::tempdir().unwrap();
        let mut nginx = with_own_number(&directory);
        nginx.prepare().unwrap();
        nginx.master = process(std::process::id() as i32);
        let worker = process(std::os::unix::process::parent_id() as i32).unwrap();
        nginx.workers = vec![worker];
        for _ in 0..2 {
            assert_eq!(nginx.observe().unwrap().lingering, 1);
        }
        // It ended, and its number is another's.
        nginx.workers = vec![Identity { start: worker.start + 1, ..worker }];
        assert_eq!(nginx.observe().unwrap().lingering, 0);
    }

    // Goal: a broker that may not see what a worker has in flight does not take it for idle. Method: a thread looks as a user
    // to whom the machine's first process shows nothing, and takes that for a worker.
    #[test]
    fn a_worker_that_may_not_be_looked_at_is_not_idle() {
        let directory = tempfile::tempdir().unwrap();
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), all).unwrap();
        let mut nginx = with_own_number(&directory);
        nginx.prepare().unwrap();
        nginx.master = process(std::process::id() as i32);
        nginx.workers = vec![process(1).unwrap()];
        let look = move || {
            // For files alone, and of this thread alone.
            setfsuid(Uid::from_raw(65_534));
            nginx.observe()
        };
        let error = std::thread::spawn(look).join().unwrap().unwrap_err();
        assert!(matches!(error, BalancerError::Unreachable { .. }), "{error}");
        let said = chain(&error);
        assert!(said.contains("/proc/1/fd") && said.contains("CAP_SYS_PTRACE"), "{said}");
    }

    // Goal: whoever has the number of a master that has ended is not taken for one, and its program is not run. Method: this
    // process has it.
    #[test]
    fn a_number_that_is_anothers_by_now_is_no_masters() {
        let directory = tempfile::tempdir().unwrap();
        let mut nginx = with_own_number(&directory);
        let error = nginx.observe().unwrap_err();
        assert!(matches!(error, BalancerError::Unreachable { .. }), "{error}");
        assert!(!nginx.file.exists(), "nothing was begun");
    }

    proptest! {
        #[test]
        fn a_file_reads_back(choices in prop::collection::vec((0..3u8, 1..=100u8), 3)) {
            let traffic = |(kind, weight): &(u8, u8)| match kind {
                0 => Traffic::Off,
                1 => Traffic::Drain,
                _ => Traffic::On(Weight::try_from(*weight).unwrap()),
            };
            let names = servers().into_iter().map(|server| server.name);
            let told: BTreeMap<_, _> = names.zip(choices.iter().map(traffic)).collect();
            prop_assert_eq!(parse(&render("shop", &servers(), &told), &servers()), told);
        }

        #[test]
        fn any_file_is_read(text in "(server 10.0.0.1:80 )?\\PC{0,60}") {
            parse(&text, &servers());
        }
    }
}
