//! Where the broker is, and a connection to it: a Unix socket, or TCP with TLS on which both ends show
//! certificates. Files are read for each connection, so that a certificate can be renewed meanwhile.

use crate::link::is_timeout;
use keeptime_credentials::dates;
use keeptime_credentials::endpoint::Endpoint;
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::{AGENT, Client, OwnFiles};
use keeptime_linux::tcp::end_when_silent;
use keeptime_model::name::Name;
use rustls::{ClientConnection, StreamOwned};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
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

/// A connection whose reads may time out.
pub(crate) trait Duplex: Read + Write {
    /// How long a read waits.
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

impl Broker {
    /// A new connection for the agent of `node`; what is said on it has to be taken within
    /// `patience`.
    pub(crate) fn dial(&self, node: &Name, patience: Duration) -> io::Result<Box<dyn Duplex>> {
        match self {
            Self::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(patience))?;
                stream.set_patience(patience)?;
                Ok(Box::new(stream))
            }
            Self::Tls(place) => Ok(Box::new(Secured::connect(place, node, patience)?)),
        }
    }
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Tls(place) => write!(f, "{}", place.address),
        }
    }
}

impl Duplex for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

/// A connection with TLS.
struct Secured {
    stream: StreamOwned<ClientConnection, TcpStream>,
    tls: Client,
    host: String,
}

impl Secured {
    fn connect(place: &BrokerTls, node: &Name, patience: Duration) -> io::Result<Self> {
        let BrokerTls { address, certificate, key, ca } = place;
        let own = OwnFiles { certificate: certificate.clone(), key: key.clone() };
        let tls = Client::read(ca, Some(&own), AGENT).map_err(io::Error::other)?;
        check_own(&tls, node, place)?;
        let stream = connect(address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_read_timeout(Some(patience))?;
        end_when_silent(&stream, SILENT_MAX)?;
        let connection = ClientConnection::new(tls.config(), address.name());
        let connection = connection.map_err(io::Error::other)?;
        let host = address.host().to_owned();
        Ok(Self { stream: StreamOwned::new(connection, stream), tls, host })
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

impl Read for Secured {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer).map_err(|error| self.explained(error))
    }
}

impl Write for Secured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).map_err(|error| self.explained(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().map_err(|error| self.explained(error))
    }
}

impl Duplex for Secured {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.sock.set_read_timeout(Some(patience))
    }
}
