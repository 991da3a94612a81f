//! The settings of both ends, made of files. TLS 1.3 only; nothing is resumed: each connection proves
//! anew who it is.

use crate::certificate::{self, Facts};
use crate::dates;
use crate::files::{self, FileError, Secrecy};
use crate::identity::Identity;
use crate::untrusted::{self, Own, Untrusted};
use keeptime_model::units::WallTime;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// What users and the broker speak, as both ends tell each other when they connect.
pub const HTTP: &[u8] = b"http/1.1";
/// What agents and the broker speak: a connection that was meant for one cannot end at the other.
pub const AGENT: &[u8] = b"keeptime-agent/1";

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnFiles {
    /// The certificate, then those that issued it (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM, mode 0600).
    pub key: PathBuf,
}

/// What a server has.
#[derive(Debug, Clone, Copy)]
pub struct ServerFiles<'a> {
    /// Its certificate.
    pub certificate: &'a Path,
    /// The certificate's key.
    pub key: &'a Path,
    /// The authorities that issue the certificates of clients; without them no client has one.
    pub client_ca: Option<&'a Path>,
    /// Certificates that were withdrawn (CRL, PEM): one list for each authority.
    pub revoked: Option<&'a Path>,
}

/// What clients have to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// A certificate: nobody gets further without.
    WithCertificate,
    /// A certificate, or something else later.
    Any,
}

/// Files that do not make settings.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// One of them cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// It has nothing of what it should.
    #[error("{} has no {what}; expected PEM with at least one", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
        /// What should be there.
        what: &'static str,
    },
    /// What it has cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    Unfit {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A server's end.
#[derive(Debug, Clone)]
pub struct Server {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    client_ca: PathBuf,
    facts: Facts,
}

/// Who a certificate proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Who.
    pub identity: Identity,
    /// The last second of the certificate.
    pub until: WallTime,
}

impl Server {
    /// Reads what a server has, which speaks `protocol`.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn read(
        files: ServerFiles<'_>,
        clients: Clients,
        protocol: &[u8],
    ) -> Result<Self, TlsError> {
        let (chain, key, facts) = own(files.certificate, files.key)?;
        let verifier = verifier(files, clients)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unfit(files.certificate, error))?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_single_cert(chain, key)
            .map_err(|error| unfit(files.key, error))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        // A connection that is resumed would not be asked for its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let client_ca = files.client_ca.map(Path::to_path_buf).unwrap_or_default();
        Ok(Self { config: Arc::new(config), verifier, client_ca, facts })
    }

    /// For the handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// What stands in its own certificate.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Who a client is that showed `chain`, as of `now`. Asked again while a connection lasts, it
    /// tells of certificates that expired or were withdrawn meanwhile.
    ///
    /// # Errors
    /// Why it is not to be believed.
    pub fn identify(&self, chain: &[CertificateDer<'_>], now: WallTime) -> Result<Peer, Untrusted> {
        let shown = chain.split_first().filter(|_| self.verifier.offer_client_auth());
        let Some((first, issuers)) = shown else { return Err(Untrusted::TheirsMissing) };
        let time = UnixTime::since_unix_epoch(Duration::from_secs(dates::unix_seconds(now)));
        match self.verifier.verify_client_cert(first, issuers, time) {
            Ok(_) => {}
            Err(rustls::Error::InvalidCertificate(problem)) => {
                return Err(untrusted::theirs(&problem, "a client", &self.client_ca));
            }
            Err(other) => return Err(Untrusted::Other(other.to_string())),
        }
        let facts = certificate::facts(first)?;
        Ok(Peer { identity: facts.identity?, until: facts.validity.until })
    }
}

/// A client's end.
#[derive(Debug, Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    ca: PathBuf,
    own: Option<Own>,
}

impl Client {
    /// Reads what a client has, which speaks `protocol`: the authorities that it trusts, and its own
    /// certificate, if it has one.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn read(ca: &Path, files: Option<&OwnFiles>, protocol: &[u8]) -> Result<Self, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unfit(ca, error))?
            .with_root_certificates(roots(ca)?);
        let (mut config, own) = match files {
            None => (builder.with_no_client_auth(), None),
            Some(files) => {
                let (chain, key, facts) = own(&files.certificate, &files.key)?;
                let config = builder.with_client_auth_cert(chain, key);
                let certificate = files.certificate.clone();
                let config = config.map_err(|error| unfit(&files.key, error))?;
                (config, Some(Own { certificate, facts }))
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Self { config: Arc::new(config), ca: ca.into(), own })
    }

    /// For the handshake.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// What stands in its own certificate, if it has one.
    pub fn facts(&self) -> Option<&Facts> {
        self.own.as_ref().map(|own| &own.facts)
    }

    /// What is behind a failure of a connection to `host` at `now`, if it is about trust.
    pub fn explain(
        &self,
        error: &(dyn Error + 'static),
        host: &str,
        now: WallTime,
    ) -> Option<Untrusted> {
        untrusted::explain(error, host, &self.ca, self.own.as_ref(), now)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn verifier(
    files: ServerFiles<'_>,
    clients: Clients,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let Some(ca) = files.client_ca else { return Ok(WebPkiClientVerifier::no_client_auth()) };
    let roots = Arc::new(roots(ca)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    if let Some(path) = files.revoked {
        let text = files::read(path, Secrecy::Public)?;
        let lists: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(text.as_bytes()).collect();
        let lists = lists.map_err(|error| unfit(path, error))?;
        if lists.is_empty() {
            return Err(TlsError::Empty {
                path: path.into(),
                what: "list of revoked certificates",
            });
        }
        builder = builder.with_crls(lists).only_check_end_entity_revocation();
    }
    if clients == Clients::Any {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| match (&error, files.revoked) {
        (VerifierBuilderError::InvalidCrl(_), Some(path)) => unfit(path, error),
        _ => unfit(ca, error),
    })
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in chain(path)? {
        store.add(certificate).map_err(|error| unfit(path, error))?;
    }
    Ok(store)
}

fn own(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, Facts), TlsError> {
    let chain = chain(certificate)?;
    let facts = certificate::facts(&chain[0]).map_err(|error| unfit(certificate, error))?;
    let text = files::read(key, Secrecy::Secret)?;
    let empty = || TlsError::Empty { path: key.into(), what: "private key" };
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| empty())?;
    Ok((chain, key, facts))
}

/// At least one.
fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = files::read(path, Secrecy::Public)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let all = all.map_err(|error| unfit(path, error))?;
    if all.is_empty() {
        return Err(TlsError::Empty { path: path.into(), what: "certificate" });
    }
    Ok(all)
}

fn unfit(path: &Path, error: impl std::fmt::Display) -> TlsError {
    TlsError::Unfit { path: path.into(), reason: error.to_string() }
}
