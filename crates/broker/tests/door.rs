//! A door over TCP to which more come than there is room for: who is let in beside them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_broker::client::Client;
use keeptime_broker::remote::{ClientFiles, Remote};
use keeptime_broker::tcp::config::{Listen, Tcp};
use keeptime_credentials::authority::{Authority, Issued};
use keeptime_credentials::certificate::facts_of_pem;
use keeptime_credentials::dates::{now, unix_seconds};
use keeptime_credentials::files::{self, Secrecy};
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::{AGENT, Client as Tls, OwnFiles};
use keeptime_model::units::Nanos;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use world::{World, wait};

const HOUR: Nanos = Nanos::from_secs(3_600);
const HOST: &str = "127.0.0.1";
/// Another address of this machine.
const ELSEWHERE: &str = "127.0.0.2";
/// More connections than there are places for those that have shown nothing.
const MANY: usize = 300;
/// Well before anything ends by itself.
const SOON: Duration = Duration::from_secs(4);
const HELLO: &[u8] =
    b"{\"hello\":{\"version\":1,\"node\":\"n1\",\"not_enforced\":[],\"holding\":[]}}\n";

/// A broker of the node n1, and what n1 and ada show there.
struct Door {
    world: World,
    directory: tempfile::TempDir,
    users: SocketAddr,
    agents: SocketAddr,
}

impl Door {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (authority, own) = Authority::new("site", now(), HOUR).unwrap();
        write(&at("ca"), &own);
        write(&at("broker"), &authority.for_broker(&[HOST.to_owned()], now(), HOUR).unwrap());
        let issue = |name: &str, identity: &Identity| {
            write(&at(name), &authority.for_client(identity, now(), HOUR).unwrap());
        };
        issue("n1", &Identity::Node("n1".parse().unwrap()));
        issue("ada", &Identity::User("ada".parse().unwrap()));
        // Nobody else listens there, most likely.
        let free = || TcpListener::bind((HOST, 0)).unwrap();
        let [users, agents] = [free(), free()].map(|socket| socket.local_addr().unwrap());
        let tcp = Tcp {
            address: Listen(users),
            agents: Some(Listen(agents)),
            certificate: at("broker.pem"),
            key: at("broker.key"),
            client_ca: Some(at("ca.pem")),
            revoked: None,
            tokens: None,
        };
        let world = World::with(1, |config| config.tcp = Some(tcp));
        Self { world, directory, users, agents }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Ada, who has not connected yet.
    fn ada(&self) -> Client {
        let (certificate, key) = (Some(self.at("ada.pem")), Some(self.at("ada.key")));
        let ca = Some(self.at("ca.pem"));
        let files = ClientFiles { ca, certificate, key, ..ClientFiles::default() };
        let remote = Remote::new(self.users.to_string().parse().unwrap(), &files).unwrap();
        Client::remote(remote).unwrap()
    }

    /// A connection of n1's from this address, on which nothing has been said yet.
    async fn n1(&self, from: &str) -> io::Result<TlsStream<tokio::net::TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(format!("{from}:0").parse().unwrap())?;
        let stream = socket.connect(self.agents).await?;
        let own = OwnFiles { certificate: self.at("n1.pem"), key: self.at("n1.key") };
        let tls = Tls::read(&self.at("ca.pem"), Some(&own), AGENT).unwrap();
        let host = ServerName::try_from(HOST).unwrap();
        TlsConnector::from(tls.config()).connect(host, stream).await
    }

    /// What is answered to n1's hello.
    async fn hello(&self, from: &str) -> io::Result<String> {
        let mut stream = self.n1(from).await?;
        stream.write_all(HELLO).await?;
        stream.flush().await?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await?;
        Ok(answer)
    }
}

/// A certificate and its key, in files with these endings.
fn write(path: &Path, issued: &Issued) {
    files::replace(&path.with_extension("key"), &issued.key, Secrecy::Secret).unwrap();
    files::replace(&path.with_extension("pem"), &issued.certificate, Secrecy::Public).unwrap();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits until somebody `enters` while connections that say nothing have all places there: the oldest has made way, and the
/// newest are waited for. These end by themselves after five seconds, which a busy machine may take for it, and whoever
/// enters may come too late on one: then it is tried again.
fn enter_a_crowd(address: SocketAddr, enters: impl Fn() -> bool) {
    wait("somebody who is let in beside a crowd", || {
        let crowd: Vec<_> = (0..MANY).map(|_| TcpStream::connect(address).unwrap()).collect();
        let has_entered = enters();
        has_entered && !is_open(&crowd[0]) && crowd[MANY / 2..].iter().all(is_open)
    });
}

/// Whether the broker waits for what will be said there.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

// Goal: one host without a certificate keeps nobody out, an agent least, whose jobs that would cost. Method: it opens
// more connections than there is room for and says nothing; others come from elsewhere, and from the same host.
#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let (door, runtime) = (Door::new(), runtime());
    for from in [ELSEWHERE, HOST] {
        enter_a_crowd(door.agents, || {
            runtime.block_on(door.hello(from)).is_ok_and(|answer| answer.contains("welcome"))
        });
    }
    enter_a_crowd(door.users, || door.ada().nodes(None).is_ok());
}

// Goal: who looks at figures sees every certificate's end, its own and each agent's, and none of what is not connected.
// Method: n1's agent is there by its certificate; one of this machine, which shows none, takes its place.
#[test]
fn figures_tell_when_certificates_end() {
    let (door, runtime) = (Door::new(), runtime());
    let end = |name: &str| {
        let text = fs::read_to_string(door.at(name)).unwrap();
        unix_seconds(facts_of_pem(&text).unwrap()[0].validity.until)
    };
    let own = format!("\nkeeptime_certificate_end_seconds {}\n", end("broker.pem"));
    let agent = "\nkeeptime_agent_certificate_end_seconds{node=\"n1\"} ";
    let of_n1 = format!("{agent}{}\n", end("n1.pem"));
    let page = || door.world.request("GET", "/metrics", "");
    let is_seen = async || {
        // Its place may be another's before the page is made.
        let Ok(mut stream) = door.n1(HOST).await else { return false };
        let said = stream.write_all(HELLO).await;
        let mut answer = String::new();
        let heard = BufReader::new(&mut stream).read_line(&mut answer).await;
        said.is_ok() && heard.is_ok() && page().contains(&of_n1)
    };
    assert!(page().contains(&own), "{}", page());
    wait("the end of n1's certificate", || runtime.block_on(is_seen()));
    wait("the agent of this machine", || !page().contains(agent));
}

// Goal: whoever has the certificate of one node takes the room of that node. Method: it is shown five times, with
// nothing said: the first three are let go long before the time for a hello is over, the other two are waited for.
#[test]
fn of_one_node_the_two_newest_connections_are_kept() {
    let (door, runtime) = (Door::new(), runtime());
    let is_so = async || {
        let mut all = Vec::new();
        for _ in 0..5 {
            // A busy machine may take longer than a handshake may.
            let Ok(stream) = door.n1(HOST).await else { return false };
            all.push(stream);
        }
        for (number, stream) in all.iter_mut().enumerate() {
            let within = if number < 3 { SOON } else { Duration::ZERO };
            let has_ended = timeout(within, stream.read(&mut [0])).await.is_ok();
            if has_ended != (number < 3) {
                return false;
            }
        }
        true
    };
    wait("the end of the three oldest", || runtime.block_on(is_so()));
}
