//! Where a client finds the broker: a Unix socket of this machine, or another machine by TLS, with what
//! the client shows there. That is read again when its files change: a run may last longer than a certificate.

use keeptime_credentials::endpoint::Endpoint;
use keeptime_credentials::files::{self, FileError, Secrecy};
use keeptime_credentials::renewal::{Renewed, Source};
use keeptime_credentials::tls::{self, HTTP, OwnFiles, TlsError};
use keeptime_credentials::tokens::Secret;
use keeptime_credentials::untrusted::Untrusted;
use keeptime_locks::lock;
use keeptime_model::Invalid;
use keeptime_model::errors::chain;
use keeptime_model::units::WallTime;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// What a broker's address begins with when it is on another machine.
const SCHEME: &str = "https://";
/// A host that does not answer by then is away: three attempts of TCP.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether files changed, if something is asked at all.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long that is waited for. Homes are on servers that may stand still for longer than a broker keeps what it hears
/// nothing of.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

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

/// What files make: what is shown to a broker elsewhere, and who is trusted there.
#[derive(Debug)]
pub struct Proof {
    tls: tls::Client,
    token: Option<Secret>,
}

impl Source for ClientFiles {
    type Made = Proof;
    type Error = RemoteError;

    fn paths(&self) -> Vec<&Path> {
        let all = [&self.ca, &self.certificate, &self.key, &self.token];
        all.into_iter().flatten().map(PathBuf::as_path).collect()
    }

    fn read(&self) -> Result<Proof, RemoteError> {
        let missing = |field: &str, expected: &str| Invalid::missing(field, expected);
        let needed = "a file with the authority that issued the broker's certificate";
        let ca = self.ca.as_deref().ok_or_else(|| missing("ca", needed))?;
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Some(OwnFiles { certificate: certificate.clone(), key: key.clone() })
            }
            (Some(_), None) => {
                return Err(missing("certificate-key", "the key of the certificate").into());
            }
            (None, Some(_)) => return Err(missing("certificate", "that of the key").into()),
            (None, None) => None,
        };
        let token = self.token.as_deref().map(read_token).transpose()?;
        if own.is_none() && token.is_none() {
            let expected = "a certificate with its key, or a token: the broker asks who you are";
            return Err(missing("certificate or token-file", expected).into());
        }
        Ok(Proof { tls: tls::Client::read(ca, own.as_ref(), HTTP)?, token })
    }
}

/// A broker elsewhere, and what is shown there: the same for all clones, and renewed for all.
#[derive(Debug, Clone)]
pub struct Remote {
    endpoint: Endpoint,
    proof: Arc<Renewed<ClientFiles>>,
    last: Arc<Mutex<Look>>,
}

/// A look whether the files changed.
#[derive(Debug)]
struct Look {
    began: Instant,
    /// Nothing comes: closed when it is over.
    over: Receiver<()>,
}

impl Look {
    fn is_over(&self, within: Duration) -> bool {
        self.over.recv_timeout(within) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Remote {
    /// Reads the files.
    ///
    /// # Errors
    /// What is missing, or the first that cannot be used.
    pub fn new(endpoint: Endpoint, files: &ClientFiles) -> Result<Self, RemoteError> {
        let proof = Arc::new(Renewed::read(files.clone())?);
        let (_, over) = mpsc::channel();
        let last = Arc::new(Mutex::new(Look { began: Instant::now(), over }));
        Ok(Self { endpoint, proof, last })
    }

    /// What the files make; whether they changed was looked no longer than `every` ago. Where a look takes too long, it
    /// goes on by itself, what was made of them before stays until its end, and nobody waits for it again.
    fn looked(&self, every: Duration) -> Arc<Proof> {
        let mut last = lock(&self.last);
        if last.began.elapsed() >= every && last.is_over(Duration::ZERO) {
            let (looking, over) = mpsc::channel();
            let proof = Arc::clone(&self.proof);
            let look = move || {
                tell(proof.look());
                drop(looking);
            };
            // Where there is no room for a thread, it is over at once.
            let _ = thread::Builder::new().spawn(look);
            *last = Look { began: Instant::now(), over };
            last.is_over(LOOK_WITHIN);
        }
        drop(last);
        self.proof.now()
    }
}

fn tell(looked: Option<Result<Arc<Proof>, RemoteError>>) {
    match looked {
        Some(Ok(_)) => tracing::info!("the renewed certificate or token is shown from now on"),
        Some(Err(error)) => {
            tracing::warn!("the former certificate or token stays in use: {}", chain(&error));
        }
        None => {}
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

/// What is shown: nothing on this machine, where the kernel knows who asks.
#[derive(Debug, Clone)]
pub(crate) struct Shown(Option<Arc<Proof>>);

impl Shown {
    /// For the header `authorization`.
    pub fn authorization(&self) -> Option<String> {
        let token = self.0.as_ref()?.token.as_ref()?;
        Some(format!("Bearer {}", token.expose()))
    }

    /// Whether nothing was renewed between the two.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

/// A connection of either kind.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl Place {
    /// What is to be shown now.
    pub fn shown(&self) -> Shown {
        self.shown_since(LOOK_EVERY)
    }

    /// Whether something else than `shown` is to be shown by now.
    pub fn has_renewed(&self, shown: &Shown) -> bool {
        !self.shown_since(Duration::ZERO).is_same(shown)
    }

    fn shown_since(&self, every: Duration) -> Shown {
        match self {
            Self::Socket(_) => Shown(None),
            Self::Remote(remote) => Shown(Some(remote.looked(every))),
        }
    }

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

    /// What is behind a failure, if it is about trust, and what was shown has not been renewed meanwhile.
    pub fn explain(&self, error: &(dyn Error + 'static), now: WallTime) -> Option<Untrusted> {
        let Self::Remote(remote) = self else { return None };
        let proof = remote.proof.now();
        let untrusted = proof.tls.explain(error, remote.endpoint.host(), now)?;
        (!self.has_renewed(&Shown(Some(proof)))).then_some(untrusted)
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
        let connector = TlsConnector::from(self.proof.now().tls.config());
        Ok(Box::new(connector.connect(self.endpoint.name(), stream).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_credentials::authority::Authority;
    use keeptime_credentials::dates;
    use keeptime_credentials::tokens::{RANDOM_BYTES, Tokens};
    use keeptime_model::units::Nanos;
    use nix::sys::stat::Mode;

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
        assert!(refused(none.clone()).contains("ca is missing"));
        let ca = ClientFiles { ca: path(), ..none };
        assert!(refused(ca.clone()).contains("or a token"));
        let half = ClientFiles { certificate: path(), ..ca.clone() };
        assert!(refused(half).contains("certificate-key is missing"));
        let token = ClientFiles { token: path(), ..ca };
        assert!(refused(token).contains("cannot read /nowhere"));
    }

    /// Of a client with a token.
    fn files(directory: &Path) -> ClientFiles {
        let at = |name: &str| directory.join(name);
        let (_, own) = Authority::new("site", dates::now(), Nanos::from_secs(3_600)).unwrap();
        files::replace(&at("ca.pem"), &own.certificate, Secrecy::Public).unwrap();
        files::replace(&at("token"), &token(1), Secrecy::Secret).unwrap();
        ClientFiles { ca: Some(at("ca.pem")), token: Some(at("token")), ..ClientFiles::default() }
    }

    fn token(random: u8) -> String {
        let ada = "ada".parse().unwrap();
        let secret = Tokens::default().add(ada, None, &[random; RANDOM_BYTES]).unwrap();
        secret.expose().to_owned()
    }

    fn remote(files: &ClientFiles) -> Remote {
        Remote::new("broker:7411".parse().unwrap(), files).unwrap()
    }

    #[test]
    fn what_is_shown_follows_its_files_and_damaged_ones_change_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path());
        let remote = remote(&files);
        let place = Place::Remote(Box::new(remote.clone()));
        let first = place.shown();
        // However long a look takes on a busy machine.
        let is_renewed = || {
            let is_over = || remote.last.lock().unwrap().is_over(Duration::from_secs(60));
            assert!(is_over());
            place.has_renewed(&first);
            assert!(is_over());
            !Shown(Some(remote.proof.now())).is_same(&first)
        };
        let bearer = |random| Some(format!("Bearer {}", token(random)));
        assert_eq!(first.authorization(), bearer(1));
        assert!(!is_renewed() && place.shown().is_same(&first));
        let write = |name: &str, text: &str, secrecy| {
            files::replace(&directory.path().join(name), text, secrecy).unwrap();
        };
        write("token", &token(2)[..40], Secrecy::Secret);
        assert!(!is_renewed(), "half a token");
        write("token", &token(2), Secrecy::Secret);
        write("ca.pem", "no certificate", Secrecy::Public);
        assert!(!is_renewed(), "all files or none");
        self::files(directory.path());
        write("token", &token(2), Secrecy::Secret);
        assert!(is_renewed() && place.has_renewed(&first) && !place.shown().is_same(&first));
        assert_eq!((first.authorization(), place.shown().authorization()), (bearer(1), bearer(2)));
        let near = Place::Socket("/run/b.sock".into());
        assert!(!near.has_renewed(&near.shown()) && near.shown().authorization().is_none());
    }

    // Goal: a server of files that stands still holds up no sign of life. Method: a pipe in the place of a file: it is
    // opened when somebody writes into it, and no sooner.
    #[test]
    fn files_that_cannot_be_looked_at_are_waited_for_once() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path());
        let remote = remote(&files);
        let first = remote.proof.now();
        let path = directory.path().join("token");
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for _ in 0..3 {
            assert!(Arc::ptr_eq(&first, &remote.looked(Duration::ZERO)), "the former goes on");
        }
        let began = remote.last.lock().unwrap().began;
        assert!(!remote.last.lock().unwrap().is_over(Duration::ZERO));
        assert!(Arc::ptr_eq(&first, &remote.looked(Duration::ZERO)));
        assert_eq!(remote.last.lock().unwrap().began, began, "it is the same look all the time");
        std::fs::write(&path, token(2)).unwrap();
        assert!(remote.last.lock().unwrap().is_over(Duration::from_secs(60)));
        assert_eq!(remote.proof.now().token.as_ref().map(Secret::expose), Some(&*token(2)));
    }
}
