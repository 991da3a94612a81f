//! Real balancers on loopback, each in a directory of its own, ended by their number; and nodes that
//! answer HTTP and count.

#![allow(dead_code, reason = "not every test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_balancers::apache::Apache;
use keeptime_balancers::front::Front;
use keeptime_balancers::haproxy::HaProxy;
use keeptime_balancers::nginx::Nginx;
use keeptime_balancers::traffic::{Server, Traffic, Weight};
use keeptime_balancers::transfer::{Progress, Transfer};
use keeptime_load::report::Report;
use keeptime_load::run::{Plan, run};
use keeptime_load::schedule::Arrivals;
use keeptime_load::target::Method;
use keeptime_model::units::Nanos;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;

static INSTALLED: Once = Once::new();

/// The program, installed if it is not there.
pub fn program(name: &str) -> PathBuf {
    let find = || {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        path.split(':').map(|d| Path::new(d).join(name)).find(|path| path.is_file())
    };
    if find().is_none() {
        INSTALLED.call_once(|| {
            let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup");
            assert!(Command::new(setup).status().unwrap().success(), "scripts/setup failed");
        });
    }
    find().unwrap_or_else(|| panic!("no {name}; scripts/setup installs it"))
}

/// Waits until `holds`, or fails.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "waited for: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// A port that is free and that the kernel gives to nobody who asks for any: below the usual range of
/// those.
pub fn port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::SeqCst) + u64::from(std::process::id()) * 20;
        let port = 20_000 + (next % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A node: answers every request after a time, and counts.
pub struct Node {
    pub server: Server,
    pub answered: Arc<AtomicU64>,
    pub working: Arc<AtomicU64>,
    held: Arc<AtomicBool>,
    dead: Arc<AtomicBool>,
    /// Connections that are open, by their numbers.
    streams: Arc<Mutex<BTreeMap<usize, TcpStream>>>,
}

impl Node {
    /// Works on any number of requests at a time.
    pub fn start(name: &str, answer_after: Duration) -> Self {
        Self::listening(loopback(0), name, answer_after, None)
    }

    /// Works on one request at a time.
    pub fn single(name: &str, answer_after: Duration) -> Self {
        Self::single_at(loopback(0), name, answer_after)
    }

    /// The same at an address that the nodes of a cluster differ in, and not in the port.
    pub fn single_at(address: SocketAddr, name: &str, answer_after: Duration) -> Self {
        Self::listening(address, name, answer_after, Some(Arc::default()))
    }

    fn listening(
        address: SocketAddr,
        name: &str,
        answer_after: Duration,
        turn: Option<Arc<Mutex<()>>>,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let server =
            Server { name: name.parse().unwrap(), address: listener.local_addr().unwrap() };
        let node = Self {
            server,
            answered: Arc::default(),
            working: Arc::default(),
            held: Arc::default(),
            dead: Arc::default(),
            streams: Arc::default(),
        };
        let (dead, streams) = (node.dead.clone(), node.streams.clone());
        let (answered, working) = (node.answered.clone(), node.working.clone());
        let held = node.held.clone();
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                if dead.load(Ordering::SeqCst) {
                    return;
                }
                streams.lock().unwrap().insert(number, stream.try_clone().unwrap());
                let streams = streams.clone();
                let (answered, working) = (answered.clone(), working.clone());
                let (turn, held) = (turn.clone(), held.clone());
                let work = move || {
                    let mine = turn.as_ref().map(|turn| turn.lock().unwrap());
                    sleep(answer_after);
                    while held.load(Ordering::SeqCst) {
                        sleep(Duration::from_millis(1));
                    }
                    drop(mine);
                };
                thread::spawn(move || {
                    serve(stream, &work, &answered, &working);
                    streams.lock().unwrap().remove(&number);
                });
            }
        });
        node
    }

    /// Answers nothing while it is held, and then all that came.
    pub fn hold(&self, is_held: bool) {
        self.held.store(is_held, Ordering::SeqCst);
    }

    /// Ends as a machine that loses its power: nobody listens, and connections break.
    pub fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // Whoever waits in accept sees that it is over.
        let _ = TcpStream::connect(self.server.address);
        for stream in std::mem::take(&mut *self.streams.lock().unwrap()).into_values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    pub fn working(&self) -> u64 {
        self.working.load(Ordering::SeqCst)
    }
}

fn serve(stream: TcpStream, work: &dyn Fn(), answered: &AtomicU64, working: &AtomicU64) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        working.fetch_add(1, Ordering::SeqCst);
        let mut body = vec![0; length];
        let whole = reader.read_exact(&mut body).is_ok();
        work();
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let sent = whole && reader.get_mut().write_all(answer).is_ok();
        working.fetch_sub(1, Ordering::SeqCst);
        if !sent {
            return;
        }
        answered.fetch_add(1, Ordering::SeqCst);
    }
}

/// A balancer's process and its directory.
pub struct Daemon {
    pub directory: TempDir,
    pub address: SocketAddr,
    child: Child,
    command: Vec<String>,
    /// Whether the process is ready, beyond listening.
    is_ready: Box<dyn Fn(u32) -> bool>,
}

impl Daemon {
    fn start(
        directory: TempDir,
        port: u16,
        command: Vec<String>,
        is_ready: Box<dyn Fn(u32) -> bool>,
    ) -> Self {
        let child = spawn(&command, directory.path());
        let address = loopback(port);
        let daemon = Self { directory, address, child, command, is_ready };
        daemon.wait_for_it();
        daemon
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Those that it has started.
    pub fn children(&self) -> Vec<Pid> {
        children(self.child.id())
    }

    /// Ends it at once, as a crash does.
    pub fn crash(&mut self) {
        kill_family(self.child.id());
        self.child.wait().unwrap();
    }

    /// Starts it again with the configuration that is there.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.command, self.directory.path());
        self.wait_for_it();
    }

    fn wait_for_it(&self) {
        wait_until(&format!("{:?} listens", self.command), || {
            TcpStream::connect(self.address).is_ok() && (self.is_ready)(self.child.id())
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        kill_family(self.child.id());
        let _ = self.child.wait();
    }
}

fn spawn(command: &[String], directory: &Path) -> Child {
    let log = fs::File::create(directory.join("output.log")).unwrap();
    Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// The process and its children, which do not always end with it.
fn kill_family(process: u32) {
    for id in [Pid::from_raw(process as i32)].into_iter().chain(children(process)) {
        let _ = kill(id, Signal::SIGKILL);
    }
}

fn children(process: u32) -> Vec<Pid> {
    let list = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(list).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|id| id.parse().ok());
    children.map(Pid::from_raw).collect()
}

/// HAProxy with a frontend on a port of its own for each site; all nodes stand in each, disabled.
pub struct HaProxyDaemon {
    pub daemon: Daemon,
    pub socket: PathBuf,
    pub sites: Vec<SocketAddr>,
}

pub fn haproxy(sites: &[&str], nodes: &[&Node]) -> HaProxyDaemon {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("socket");
    let ports: Vec<_> = sites.iter().map(|_| port()).collect();
    let mut text = format!(
        "global\n  stats socket {} level admin expose-fd listeners\n  nbthread 2\n  maxconn 2000\n  \
         server-state-file {}\n\
         defaults\n  mode http\n  load-server-state-from-file global\n  timeout connect 5s\n  timeout client 120s\n  timeout server 120s\n  \
         timeout queue 120s\n  retries 0\n  option http-keep-alive\n",
        socket.display(),
        directory.path().join("state").display(),
    );
    for (site, port) in sites.iter().zip(&ports) {
        text += &format!("frontend {site}-in\n  bind 127.0.0.1:{port}\n  default_backend {site}\n");
        text += &format!("backend {site}\n  balance roundrobin\n");
        for Node { server, .. } in nodes {
            text += &format!("  server {} {} disabled weight 100\n", server.name, server.address);
        }
    }
    let file = directory.path().join("haproxy.cfg");
    fs::write(&file, text).unwrap();
    let words = [program("haproxy").display().to_string(), "-W".into(), "-db".into(), "-f".into()];
    let command = words.into_iter().chain([file.display().to_string()]).collect();
    let opened = socket.clone();
    let is_ready = Box::new(move |_| UnixStream::connect(&opened).is_ok());
    let daemon = Daemon::start(directory, ports[0], command, is_ready);
    HaProxyDaemon { daemon, socket, sites: ports.into_iter().map(loopback).collect() }
}

impl HaProxyDaemon {
    pub fn balancer(&self, site: &str) -> HaProxy {
        HaProxy::new(&self.socket, site).unwrap()
    }

    pub fn front(&self, site: &str) -> Front {
        Front::new(vec![Box::new(self.balancer(site))])
    }

    /// The process that answers.
    pub fn worker(&self) -> Option<u32> {
        let info = self.ask("show info").ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid: ")?.parse().ok())
    }

    /// Hands each node no more requests of `site` than so many at a time; the others wait in its queue.
    pub fn limit(&self, site: &str, nodes: &[Node], requests: u32) {
        for node in nodes {
            self.command(&format!("set maxconn server {site}/{} {requests}", node.server.name));
        }
    }

    /// Has it do something.
    pub fn command(&self, command: &str) {
        assert_eq!(self.ask(command).unwrap().trim(), "", "{command}");
    }

    fn ask(&self, command: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        writeln!(stream, "{command}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// What its unit does before it reloads it, as `docs/balancers.md` says.
    pub fn keep_state(&self) {
        let state = self.ask("show servers state").unwrap();
        fs::write(self.daemon.directory.path().join("state"), state).unwrap();
    }
}

/// POSTs to `sites` for so long, in a thread of its own.
pub fn posts(sites: &[SocketAddr], rate: f64, millis: u64) -> thread::JoinHandle<Report> {
    let plan = plan(sites, rate, Nanos::from_millis(millis));
    thread::spawn(move || run(&plan, &|| false).unwrap())
}

fn plan(sites: &[SocketAddr], rate: f64, length: Nanos) -> Plan {
    Plan {
        targets: sites.iter().map(|site| format!("http://{site}/").parse().unwrap()).collect(),
        arrivals: Arrivals::random(rate).unwrap(),
        length,
        method: Method::Post(200),
        files: None,
        // What arrives slowly must not have to wait for a connection, or less would seem to arrive.
        connections: if rate < 100.0 { 256 } else { 64 },
        timeout: Nanos::from_secs(120),
        seed: 7,
    }
}

/// POSTs that go on as long as a test needs them.
pub struct Load {
    thread: thread::JoinHandle<Report>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    pub fn start(sites: &[SocketAddr], rate: f64) -> Self {
        let plan = plan(sites, rate, Nanos::from_secs(600));
        let (is_over, looks) = (Arc::<AtomicBool>::default(), AtomicU64::default());
        let over = is_over.clone();
        // It is asked before each request and between them: some there are, whoever is quicker.
        let is_over_now =
            move || looks.fetch_add(1, Ordering::SeqCst) >= 20 && over.load(Ordering::SeqCst);
        Self { thread: thread::spawn(move || run(&plan, &is_over_now).unwrap()), is_over }
    }

    /// Sends no more; what was meant before is still sent and answered.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the last answer.
    pub fn end(self) -> Report {
        self.stop();
        self.thread.join().unwrap()
    }
}

/// All that were sent were answered, and some there were: what waited when it was stopped was not sent. How many.
pub fn assert_none_lost(report: &Report) -> u64 {
    let counts = &report.all.counts;
    let sent = counts.intended - counts.not_sent;
    assert!(sent > 0 && counts.answered == sent, "{report}{counts:?}");
    sent
}

pub const FULL: Weight = Weight::FULL;

/// What a node takes that answers 50 requests a second, one at a time: so few that slow machines can send it more.
pub const A_FIFTIETH: Duration = Duration::from_millis(20);

/// nginx with a server on a port of its own for each site; the upstreams are files that are written
/// by others.
pub struct NginxDaemon {
    pub daemon: Daemon,
    pub configuration: PathBuf,
    pub sites: Vec<SocketAddr>,
    /// Where it sends the access log of each site.
    pub logs: Vec<SocketAddr>,
    names: Vec<String>,
    servers: Vec<Server>,
}

/// `keepalive` as in `keepalive_timeout`: "0" makes clients open a connection for each request.
pub fn nginx(sites: &[&str], nodes: &[&Node], keepalive: &str) -> NginxDaemon {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let ports: Vec<_> = sites.iter().map(|_| port()).collect();
    let logs: Vec<_> = sites.iter().map(|_| loopback(port())).collect();
    let mut text = format!(
        "user root;\nworker_processes 2;\ndaemon off;\npid {};\nerror_log {} notice;\n\
         events {{ worker_connections 1024; }}\nhttp {{\n  log_format keeptime '$upstream_addr';\n",
        at("nginx.pid"),
        at("error.log"),
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text += &format!("  {kind}_temp_path {};\n", at(&format!("temp-{kind}")));
    }
    text += &format!("  keepalive_timeout {keepalive};\n");
    for ((site, port), log) in sites.iter().zip(&ports).zip(&logs) {
        text += &format!(
            "  include {site}.upstream;\n  server {{\n    listen 127.0.0.1:{port};\n    \
             access_log syslog:server={log} keeptime;\n    \
             location / {{ proxy_pass http://{site}; proxy_next_upstream off; }}\n  }}\n"
        );
    }
    text += "}\n";
    let configuration = directory.path().join("nginx.conf");
    fs::write(&configuration, text).unwrap();
    let names: Vec<_> = sites.iter().map(|site| site.to_string()).collect();
    let servers: Vec<_> = nodes.iter().map(|node| node.server.clone()).collect();
    for site in &names {
        Nginx::new(&configuration, site, servers.clone()).unwrap().prepare().unwrap();
    }
    let words = [program("nginx").display().to_string(), "-c".into(), at("nginx.conf")];
    let number = directory.path().join("nginx.pid");
    let is_ready = Box::new(move |process: u32| {
        fs::read_to_string(&number).is_ok_and(|text| text.trim() == process.to_string())
    });
    let daemon = Daemon::start(directory, ports[0], words.into(), is_ready);
    let sites = ports.into_iter().map(loopback).collect();
    NginxDaemon { daemon, configuration, sites, logs, names, servers }
}

impl NginxDaemon {
    pub fn balancer(&self, site: &str) -> Nginx {
        Nginx::new(&self.configuration, site, self.servers.clone()).unwrap()
    }

    pub fn fronts(&self) -> Vec<Front> {
        self.names.iter().map(|site| Front::new(vec![Box::new(self.balancer(site))])).collect()
    }

    /// How often it was made to read its configuration.
    pub fn reloads(&self) -> usize {
        let log = fs::read_to_string(self.daemon.directory.path().join("error.log")).unwrap();
        log.matches("(SIGHUP) received").count()
    }
}

/// Apache with a host on a port of its own for each site; all nodes stand in each, disabled.
pub struct ApacheDaemon {
    pub daemon: Daemon,
    pub sites: Vec<SocketAddr>,
    names: Vec<String>,
    servers: Vec<Server>,
}

/// It has more threads than two loads of [`plan`] have connections: a process of Apache whose threads are all at
/// work closes the connections that clients keep, perhaps just when one sends.
pub fn apache(sites: &[&str], nodes: &[&Node]) -> ApacheDaemon {
    let directory = TempDir::new().unwrap();
    let root = directory.path().display().to_string();
    let ports: Vec<_> = sites.iter().map(|_| port()).collect();
    let mut text = format!(
        "ServerRoot {root}\nDefaultRuntimeDir {root}\nPidFile {root}/pid\nErrorLog {root}/error.log\n\
         ServerName localhost\nUser nobody\nGroup nogroup\nKeepAliveTimeout 5\n\
         MaxKeepAliveRequests 0\nProxyTimeout 120\n\
         ServerLimit 1\nStartServers 1\nThreadLimit 640\nThreadsPerChild 640\nMaxRequestWorkers 640\n"
    );
    for module in [
        "mpm_event",
        "authz_core",
        "authz_host",
        "proxy",
        "proxy_http",
        "proxy_balancer",
        "slotmem_shm",
        "lbmethod_byrequests",
    ] {
        text += &format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n");
    }
    for (site, port) in sites.iter().zip(&ports) {
        text += &format!("Listen 127.0.0.1:{port}\n<VirtualHost 127.0.0.1:{port}>\n");
        text += &format!("  <Proxy balancer://{site}>\n");
        for Node { server, .. } in nodes {
            text += &format!("    BalancerMember http://{} status=+D\n", server.address);
        }
        text += &format!(
            "  </Proxy>\n  <Location /balancer-manager>\n    SetHandler balancer-manager\n    \
             Require local\n  </Location>\n  ProxyPass /balancer-manager !\n  \
             ProxyPass / balancer://{site}/\n</VirtualHost>\n"
        );
    }
    let file = directory.path().join("apache.conf");
    fs::write(&file, text).unwrap();
    let command = [
        program("apache2").display().to_string(),
        "-d".into(),
        root,
        "-f".into(),
        file.display().to_string(),
        "-DFOREGROUND".into(),
    ];
    let daemon = Daemon::start(directory, ports[0], command.into(), Box::new(|_| true));
    ApacheDaemon {
        daemon,
        sites: ports.into_iter().map(loopback).collect(),
        names: sites.iter().map(|site| site.to_string()).collect(),
        servers: nodes.iter().map(|node| node.server.clone()).collect(),
    }
}

impl ApacheDaemon {
    pub fn balancer(&self, site: &str) -> Apache {
        let at = self.names.iter().position(|name| name == site).unwrap();
        let servers = self.servers.clone();
        Apache::new(self.sites[at], "/balancer-manager", site, servers).unwrap()
    }

    pub fn fronts(&self) -> Vec<Front> {
        self.names.iter().map(|site| Front::new(vec![Box::new(self.balancer(site))])).collect()
    }
}

/// Three nodes; the first site is to have the first two, the second the third.
pub fn three_nodes(answer_after: Duration) -> Vec<Node> {
    ["n1", "n2", "n3"].map(|name| Node::start(name, answer_after)).into()
}

/// Tells the balancers of two sites who has which of three nodes.
pub fn share_out(nodes: &[Node], fronts: &mut [Front]) {
    for (site, front) in fronts.iter_mut().enumerate() {
        for (at, node) in nodes.iter().enumerate() {
            let traffic = if (site == 0) == (at < 2) { Traffic::On(FULL) } else { Traffic::Off };
            front.want(&node.server.name, traffic);
        }
        settle(front);
    }
}

/// All balancers are as they should be.
pub fn settle(front: &mut Front) {
    for sight in front.reconcile() {
        sight.observed.unwrap();
    }
}

/// A look at a node that leaves a site; nothing when it has left.
pub fn look(transfer: &mut Transfer, from: &mut Front) -> Option<Progress> {
    transfer.want(from);
    let sights = from.reconcile();
    transfer.look(from, &sights)
}

/// Has a node that serves nobody serve a site.
pub fn join(node: &Node, to: &mut Front) {
    to.want(&node.server.name, Traffic::On(FULL));
    wait_until("a node joins", || to.reconcile().iter().all(|sight| sight.failure().is_none()));
}

/// Moves the node from one site to another.
pub fn transfer(node: &Node, from: &mut Front, to: &mut Front) {
    let mut transfer = Transfer::new(node.server.name.clone(), FULL);
    wait_until("a transfer ends", || look(&mut transfer, from).is_none());
    join(node, to);
}

/// Moves the second node to and fro, so many times.
pub fn transfers(count: u32, nodes: &[Node], fronts: &mut [Front]) {
    let [shop, blog] = fronts else { panic!("two sites") };
    for _ in 0..count {
        transfer(&nodes[1], shop, blog);
        transfer(&nodes[1], blog, shop);
    }
}

/// A transfer of the first node, which works on requests, ends only when it does not any more.
pub fn assert_waits_for_the_last_request(nodes: &[Node], fronts: &mut [Front]) {
    let [shop, blog] = fronts else { panic!("two sites") };
    wait_until("the node works", || nodes[0].working() > 0);
    let mut transfer = Transfer::new(nodes[0].server.name.clone(), FULL);
    let mut waited = false;
    wait_until("the transfer ends", || {
        let working = nodes[0].working();
        let progress = look(&mut transfer, shop);
        assert!(progress.is_some() || working == 0, "it has left before it was free");
        waited |= progress.is_some();
        progress.is_none()
    });
    assert!(waited);
    join(&nodes[0], blog);
}
