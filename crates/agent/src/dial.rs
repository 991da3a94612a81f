//! Where the broker is, and a connection to it: a Unix socket, or TCP with TLS on which both ends show
//! certificates. Files that have changed are read again for each connection, so that a certificate can be renewed meanwhile.

use crate::lines::is_timeout;
use keeptime_credentials::certificate::Facts;
use keeptime_credentials::dates;
use keeptime_credentials::endpoint::Endpoint;
use keeptime_credentials::identity::Identity;
use keeptime_credentials::renewal::{Renewed, Source};
use keeptime_credentials::tls::{AGENT, Client, OwnFiles};
use keeptime_linux::tcp::end_when_silent;
use keeptime_locks::lock;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use rustls::ClientConnection;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A broker that acknowledges nothing for so long is gone.
const SILENT_MAX: Duration = Duration::from_secs(20);

/// Where the broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broker {
    /// On this machine: its socket for agents.
    Socket(PathBuf),
    /// Elsewhere.
    Tls(BrokerTls),
}

/// The broker's address for agents, and what the agent shows there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerTls {
    /// Its host and port.
    pub address: Endpoint,
    /// The node's certificate (PEM), which names the node.
    pub certificate: PathBuf,
    /// Its key (PEM, mode 0600).
    pub key: PathBuf,
    /// The authorities that issue the broker's certificate (PEM).
    pub ca: PathBuf,
}

/// Both ways of a connection: one thread may wait for what comes in while others say something.
pub(crate) struct Connection {
    pub incoming: Box<dyn Incoming>,
    pub outgoing: Box<dyn Write + Send>,
}

/// What comes in; reads may time out.
pub(crate) trait Incoming: Read {
    /// How long a read waits.
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

/// The agent of a node, that connects to its broker again and again.
pub(crate) struct Dialer {
    broker: Broker,
    node: Name,
    /// Nothing before its files could be used once.
    shown: Option<Renewed<NodeFiles>>,
}

/// What a node shows to a broker elsewhere, and whom it trusts there.
struct NodeFiles {
    place: BrokerTls,
    node: Name,
}

impl Source for NodeFiles {
    type Made = Client;
    type Error = io::Error;

    fn paths(&self) -> Vec<&Path> {
        let BrokerTls { address: _, certificate, key, ca } = &self.place;
        [certificate, key, ca].map(PathBuf::as_path).into()
    }

    fn read(&self) -> io::Result<Client> {
        let BrokerTls { address: _, certificate, key, ca } = &self.place;
        let own = OwnFiles { certificate: certificate.clone(), key: key.clone() };
        let tls = Client::read(ca, Some(&own), AGENT).map_err(io::Error::other)?;
        check_own(&tls, &self.node, &self.place)?;
        Ok(tls)
    }
}

/// What the node shows to the broker, as it would be read for a connection.
///
/// # Errors
/// If a file cannot be used, or the certificate is not the node's.
pub(crate) fn read_own(place: &BrokerTls, node: &Name) -> io::Result<Option<Facts>> {
    let files = NodeFiles { place: place.clone(), node: node.clone() };
    Ok(files.read()?.facts().cloned())
}

impl Dialer {
    pub fn new(broker: Broker, node: Name) -> Self {
        Self { broker, node, shown: None }
    }

    /// Where it connects to.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// A new connection; what is said on it has to be taken within `patience`.
    pub fn dial(&mut self, patience: Duration) -> io::Result<Connection> {
        match &self.broker {
            Broker::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(patience))?;
                stream.set_patience(patience)?;
                let outgoing = Box::new(stream.try_clone()?);
                Ok(Connection { incoming: Box::new(stream), outgoing })
            }
            Broker::Tls(place) => {
                let tls = shown(&mut self.shown, place, &self.node)?;
                let secured = Arc::new(Secured::connect(&place.address, tls, patience)?);
                let outgoing = Box::new(SecuredOutgoing(Arc::clone(&secured)));
                Ok(Connection { incoming: Box::new(SecuredIncoming(secured)), outgoing })
            }
        }
    }
}

/// What is shown now: what files hold that can be used, or held.
fn shown(
    last: &mut Option<Renewed<NodeFiles>>,
    place: &BrokerTls,
    node: &Name,
) -> io::Result<Arc<Client>> {
    if let Some(renewed) = last {
        if let Some(Err(error)) = renewed.look() {
            tracing::warn!("the former certificate stays in use: {}", chain(&error));
        }
        return Ok(renewed.now());
    }
    let first = Renewed::read(NodeFiles { place: place.clone(), node: node.clone() })?;
    Ok(last.insert(first).now())
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Tls(place) => write!(f, "{}", place.address),
        }
    }
}

impl Incoming for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

/// A connection with TLS.
struct Secured {
    session: Mutex<ClientConnection>,
    stream: TcpStream,
    tls: Arc<Client>,
    host: String,
}

/// Its two ends: one for one thread, one for any.
struct SecuredIncoming(Arc<Secured>);
struct SecuredOutgoing(Arc<Secured>);

impl Secured {
    fn connect(address: &Endpoint, tls: Arc<Client>, patience: Duration) -> io::Result<Self> {
        let stream = connect(address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_read_timeout(Some(patience))?;
        end_when_silent(&stream, SILENT_MAX)?;
        let session = ClientConnection::new(tls.config(), address.name());
        let session = Mutex::new(session.map_err(io::Error::other)?);
        let secured = Self { session, stream, tls, host: address.host().to_owned() };
        let shaken = lock(&secured.session).complete_io(&mut &secured.stream);
        shaken.map_err(|error| secured.explained(error))?;
        Ok(secured)
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match lock(&self.session).reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            // Waits without the lock: others may say something meanwhile.
            self.stream.peek(&mut [0])?;
            let mut session = lock(&self.session);
            session.read_tls(&mut &self.stream)?;
            let processed = session.process_new_packets();
            // What the other end is to hear of it, an alert perhaps; the reason for it comes first.
            let flushed = self.flush(&mut session);
            processed.map_err(io::Error::other)?;
            flushed?;
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = lock(&self.session);
        let count = session.writer().write(bytes)?;
        self.flush(&mut session)?;
        Ok(count)
    }

    fn flush(&self, session: &mut ClientConnection) -> io::Result<()> {
        while session.wants_write() {
            session.write_tls(&mut &self.stream)?;
        }
        Ok(())
    }

    /// In words that say what to do, where it is about certificates.
    fn explained(&self, error: io::Error) -> io::Error {
        if is_timeout(&error) {
            return error;
        }
        match self.tls.explain(&error, &self.host, dates::now()) {
            Some(untrusted) => io::Error::other(untrusted),
            None => error,
        }
    }
}

/// The broker would refuse it; here it is known which file to look at.
fn check_own(tls: &Client, node: &Name, place: &BrokerTls) -> io::Result<()> {
    let wanted = Identity::Node(node.clone());
    let has = match tls.facts().map(|facts| &facts.identity) {
        Some(Ok(identity)) if *identity == wanted => return Ok(()),
        Some(Ok(identity)) => format!("it is of {identity}"),
        Some(Err(problem)) => problem.to_string(),
        None => "there is none".into(),
    };
    let path = place.certificate.display();
    let text = format!("{path} is no certificate of {wanted} ({}): {has}", wanted.uri());
    Err(io::Error::other(text))
}

fn connect(address: &Endpoint, within: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (address.host(), address.port()).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, within) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for SecuredIncoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| self.0.explained(error))
    }
}

impl Incoming for SecuredIncoming {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.0.stream.set_read_timeout(Some(patience))
    }
}

impl Write for SecuredOutgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| self.0.explained(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush(&mut lock(&self.0.session));
        flushed.map_err(|error| self.0.explained(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_credentials::authority::Authority;
    use keeptime_credentials::files::{self, Secrecy};
    use keeptime_model::units::Nanos;

    const HOUR: Nanos = Nanos::from_secs(3_600);

    // Goal: what an agent shows follows its files, and no damage to them keeps it from its broker. Method: a node's
    // certificate, a key that is not its, another node's pair, and a new one of its own, as each connection meets them.
    #[test]
    fn an_agent_shows_the_last_certificate_that_is_its_own_and_whole() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (authority, own) = Authority::new("site", dates::now(), HOUR).unwrap();
        files::replace(&at("ca.pem"), &own.certificate, Secrecy::Public).unwrap();
        let issue = |node: &str| {
            let identity = Identity::Node(node.parse().unwrap());
            authority.for_client(&identity, dates::now(), HOUR).unwrap()
        };
        let write_key = |key: &str| files::replace(&at("key.pem"), key, Secrecy::Secret).unwrap();
        let write = |certificate: &str| {
            files::replace(&at("own.pem"), certificate, Secrecy::Public).unwrap();
        };
        let place = BrokerTls {
            address: "broker:7412".parse().unwrap(),
            certificate: at("own.pem"),
            key: at("key.pem"),
            ca: at("ca.pem"),
        };
        let node = "n1".parse().unwrap();
        let mut last = None;
        let mut shown = || shown(&mut last, &place, &node);
        assert!(shown().is_err(), "there is none");
        let other = issue("n2");
        write_key(&other.key);
        write(&other.certificate);
        let told = shown().unwrap_err().to_string();
        assert!(told.contains("is no certificate of node n1 (keeptime:node:n1)"), "{told}");
        let first = issue("n1");
        write_key(&first.key);
        write(&first.certificate);
        let former = shown().unwrap();
        write_key(&other.key);
        assert!(Arc::ptr_eq(&former, &shown().unwrap()), "a key that is not its");
        write(&other.certificate);
        assert!(Arc::ptr_eq(&former, &shown().unwrap()), "another node's");
        let second = issue("n1");
        write_key(&second.key);
        write(&second.certificate);
        let renewed = shown().unwrap();
        assert!(!Arc::ptr_eq(&former, &renewed) && Arc::ptr_eq(&renewed, &shown().unwrap()));
    }
}
