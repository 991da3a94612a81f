//! Where a client finds the broker: a Unix socket of this machine, or another machine by TLS, with what
//! the client shows there.

use keeptime_credentials::endpoint::Endpoint;
use keeptime_credentials::files::{self, FileError, Secrecy};
use keeptime_credentials::tls::{self, HTTP, OwnFiles, TlsError};
use keeptime_credentials::tokens::Secret;
use keeptime_credentials::untrusted::Untrusted;
use keeptime_model::Invalid;
use keeptime_model::units::WallTime;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// What a broker's address begins with when it is on another machine.
const SCHEME: &str = "https://";
/// A host that does not answer by then is away: three attempts of TCP.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A broker, as people write it: the path of its socket, or `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// On this machine.
    Socket(PathBuf),
    /// Elsewhere.
    Remote(Endpoint),
}

impl FromStr for Address {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let expected = "the path of a socket, or https://HOST:PORT";
        if let Some(rest) = text.strip_prefix(SCHEME) {
            let endpoint = rest.strip_suffix('/').unwrap_or(rest).parse();
            return endpoint
                .map(Self::Remote)
                .map_err(|invalid: Invalid| Invalid::new("broker", text, invalid.expected));
        }
        if text.starts_with("http://") {
            let expected = "https://: a broker says nothing without TLS";
            return Err(Invalid::new("broker", text, expected));
        }
        if text.is_empty() || text.contains("://") {
            return Err(Invalid::new("broker", text, expected));
        }
        Ok(Self::Socket(text.into()))
    }
}

/// Files with what a client shows and whom it trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities that issue the broker's certificate (PEM).
    pub ca: Option<PathBuf>,
    /// The user's certificate (PEM).
    pub certificate: Option<PathBuf>,
    /// Its key (PEM, mode 0600).
    pub key: Option<PathBuf>,
    /// The user's token (mode 0600).
    pub token: Option<PathBuf>,
}

/// Why a broker elsewhere cannot be asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// What was given does not suffice, or does not go together.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] FileError),
}

/// A broker elsewhere, and what is shown there. Files are read once: whoever stays makes a new one when
/// they change.
#[derive(Debug)]
pub struct Remote {
    endpoint: Endpoint,
    tls: tls::Client,
    token: Option<Secret>,
}

impl Remote {
    /// Reads the files.
    ///
    /// # Errors
    /// What is missing, or the first that cannot be used.
    pub fn new(endpoint: Endpoint, files: &ClientFiles) -> Result<Self, RemoteError> {
        let missing = |field: &str, expected: &str| Invalid::new(field, "nothing", expected);
        let needed = "a file with the authority that issued the broker's certificate";
        let ca = files.ca.as_deref().ok_or_else(|| missing("ca", needed))?;
        let own = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => {
                Some(OwnFiles { certificate: certificate.clone(), key: key.clone() })
            }
            (Some(_), None) => {
                return Err(missing("certificate-key", "the key of the certificate").into());
            }
            (None, Some(_)) => return Err(missing("certificate", "that of the key").into()),
            (None, None) => None,
        };
        let token = files.token.as_deref().map(read_token).transpose()?;
        if own.is_none() && token.is_none() {
            let expected = "a certificate with its key, or a token: the broker asks who you are";
            return Err(missing("certificate", expected).into());
        }
        Ok(Self { endpoint, tls: tls::Client::read(ca, own.as_ref(), HTTP)?, token })
    }
}

fn read_token(path: &Path) -> Result<Secret, RemoteError> {
    let text = files::read(path, Secrecy::Secret)?;
    let content = |source| FileError::Content { path: path.into(), source };
    Ok(text.trim().parse().map_err(content)?)
}

/// Where the broker is.
#[derive(Debug)]
pub(crate) enum Place {
    Socket(PathBuf),
    Remote(Box<Remote>),
}

/// A connection of either kind.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl Place {
    /// A new connection.
    pub async fn connect(&self) -> io::Result<Box<dyn Transport>> {
        match self {
            Self::Socket(socket) => Ok(Box::new(UnixStream::connect(socket).await?)),
            Self::Remote(remote) => {
                let connected = tokio::time::timeout(CONNECT_WITHIN, remote.connect()).await;
                connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    /// For the header `host`.
    pub fn host(&self) -> String {
        match self {
            Self::Socket(_) => "broker".into(),
            Self::Remote(remote) => remote.endpoint.to_string(),
        }
    }

    /// For the header `authorization`.
    pub fn authorization(&self) -> Option<String> {
        match self {
            Self::Socket(_) => None,
            Self::Remote(remote) => {
                remote.token.as_ref().map(|token| format!("Bearer {}", token.expose()))
            }
        }
    }

    /// What is behind a failure, if it is about trust.
    pub fn explain(&self, error: &(dyn Error + 'static), now: WallTime) -> Option<Untrusted> {
        match self {
            Self::Socket(_) => None,
            Self::Remote(remote) => remote.tls.explain(error, remote.endpoint.host(), now),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(socket) => write!(f, "{}", socket.display()),
            Self::Remote(remote) => write!(f, "{SCHEME}{}", remote.endpoint),
        }
    }
}

impl Remote {
    async fn connect(&self) -> io::Result<Box<dyn Transport>> {
        let stream = TcpStream::connect((self.endpoint.host(), self.endpoint.port())).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(self.tls.config());
        Ok(Box::new(connector.connect(self.endpoint.name(), stream).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_a_path_or_an_address_with_tls() {
        let parse = |text: &str| text.parse::<Address>();
        assert_eq!(parse("/run/b.sock"), Ok(Address::Socket("/run/b.sock".into())));
        let remote = Address::Remote("broker:7411".parse().unwrap());
        assert_eq!(parse("https://broker:7411/"), Ok(remote));
        let cases = [
            ("http://broker:7411", "says nothing without TLS"),
            ("https://broker", "HOST:PORT, as in"),
            ("unix:///run/b.sock", "the path of a socket, or https://HOST:PORT"),
            ("", "the path of a socket"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }

    #[test]
    fn what_is_missing_is_named_before_anybody_is_asked() {
        let path = || Some(PathBuf::from("/nowhere"));
        let refused = |files: ClientFiles| {
            Remote::new("broker:7411".parse().unwrap(), &files).unwrap_err().to_string()
        };
        let none = ClientFiles::default();
        assert!(refused(none.clone()).contains("ca: \"nothing\""));
        let ca = ClientFiles { ca: path(), ..none };
        assert!(refused(ca.clone()).contains("or a token"));
        let half = ClientFiles { certificate: path(), ..ca.clone() };
        assert!(refused(half).contains("certificate-key: \"nothing\""));
        let token = ClientFiles { token: path(), ..ca };
        assert!(refused(token).contains("cannot read /nowhere"));
    }
}
