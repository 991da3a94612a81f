//! What stands in the files of the door, and how long what somebody showed is good. They are read again
//! when they change, so that certificates are renewed and tokens revoked while the broker runs.

use super::config::Tcp;
use keeptime_credentials::certificate::Validity;
use keeptime_credentials::dates;
use keeptime_credentials::files::{FileError, Stamp};
use keeptime_credentials::tls::{AGENT, Clients, HTTP, Peer, Server, ServerFiles, TlsError};
use keeptime_credentials::token_file;
use keeptime_credentials::tokens::{TokenId, Tokens};
use keeptime_credentials::untrusted::Untrusted;
use keeptime_model::errors::chain;
use keeptime_model::units::{Nanos, WallTime};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// How often it is looked whether files changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long after a token or certificate expired the connection may last that it let in.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A certificate that is over so soon is told about.
const SOON: Nanos = Nanos::from_secs(7 * 24 * 3_600);

/// Files that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeysError {
    /// Those of TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The tokens.
    #[error(transparent)]
    Tokens(#[from] FileError),
}

/// What stands in the files.
#[derive(Debug)]
pub struct Keys {
    /// For users, who may show a certificate.
    pub users: Server,
    /// For agents, who have to.
    pub agents: Option<Server>,
    /// The tokens of users.
    pub tokens: Tokens,
    /// Of the files, just before they were read.
    stamp: Stamp,
}

/// The keys as they are now.
#[derive(Debug, Clone)]
pub(super) struct KeyRing {
    config: Arc<Tcp>,
    current: Arc<watch::Sender<Arc<Keys>>>,
}

/// What somebody showed.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// At the handshake: their certificate first; nothing if they have none.
    pub chain: Vec<CertificateDer<'static>>,
    /// With their last request.
    pub token: Mutex<Option<TokenId>>,
}

impl Keys {
    /// Reads all files of `config`.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn read(config: &Tcp) -> Result<Self, KeysError> {
        let stamp = Stamp::of(config.files());
        let files = ServerFiles {
            certificate: &config.certificate,
            key: &config.key,
            client_ca: config.client_ca.as_deref(),
            revoked: config.revoked.as_deref(),
        };
        let users = Server::read(files, Clients::Any, HTTP)?;
        let agents = match config.agents {
            Some(_) => Some(Server::read(files, Clients::WithCertificate, AGENT)?),
            None => None,
        };
        let tokens = config.tokens.as_deref().map(token_file::load).transpose()?;
        Ok(Self { users, agents, tokens: tokens.unwrap_or_default(), stamp })
    }
}

impl KeyRing {
    /// Reads all files of `config`.
    pub fn open(config: &Tcp) -> Result<Self, KeysError> {
        let keys = Keys::read(config)?;
        warn_of_end(keys.users.facts().validity, dates::now());
        let (current, _) = watch::channel(Arc::new(keys));
        Ok(Self { config: Arc::new(config.clone()), current: Arc::new(current) })
    }

    /// As they are now.
    pub fn now(&self) -> Arc<Keys> {
        Arc::clone(&self.current.borrow())
    }

    /// Reads the files again when they change or at `hangup`, for ever. Files that cannot be used leave
    /// everything as it is.
    pub async fn keep_fresh(self, mut hangup: Signal) {
        let mut tried = self.now().stamp.clone();
        loop {
            let is_told = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let (config, before) = (Arc::clone(&self.config), tried.clone());
            let read = tokio::task::spawn_blocking(move || {
                let stamp = Stamp::of(config.files());
                (is_told || stamp != before).then(|| (stamp, Keys::read(&config)))
            });
            // If it panics, everything is as before.
            let Ok(Some((stamp, read))) = read.await else { continue };
            // Files that cannot be used are told once, until one of them changes.
            tried = stamp;
            match read {
                Ok(keys) => {
                    tracing::info!("certificates and tokens were read again");
                    warn_of_end(keys.users.facts().validity, dates::now());
                    self.current.send_replace(Arc::new(keys));
                }
                Err(error) => {
                    let why = chain(&error);
                    tracing::error!("the former certificates and tokens stay in use: {why}");
                }
            }
        }
    }

    /// Ends when what was shown is good no more: `server` says by which certificates.
    pub async fn outlive(&self, shown: &Shown, server: impl Fn(&Keys) -> Option<&Server>) {
        let mut changes = self.current.subscribe();
        loop {
            let keys = changes.borrow_and_update().clone();
            if let Err(why) = shown.check(server(&keys), &keys.tokens, dates::now()) {
                tracing::info!("a connection is ended: {why}");
                return;
            }
            drop(keys);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }
}

impl Shown {
    /// The certificate, if there is one: who it says that they are.
    pub fn peer(&self, server: &Server, now: WallTime) -> Option<Result<Peer, Untrusted>> {
        (!self.chain.is_empty()).then(|| server.identify(&self.chain, now))
    }

    /// The token that came with the last request.
    pub fn set_token(&self, id: TokenId) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    fn check(
        &self,
        server: Option<&Server>,
        tokens: &Tokens,
        now: WallTime,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        match server.and_then(|server| self.peer(server, now)) {
            // It never let anybody in; its requests are told so.
            Some(Err(Untrusted::TheirsNameless(_))) => {}
            Some(Err(untrusted)) => return Err(untrusted.into()),
            Some(Ok(_)) | None => {}
        }
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(id) = token {
            tokens.bearer(&id, now)?;
        }
        Ok(())
    }
}

fn warn_of_end(validity: Validity, now: WallTime) {
    if let Some(problem) = validity.problem(now) {
        tracing::warn!("the broker's certificate {problem}: nobody trusts it");
    } else if validity.until.saturating_since(now) < SOON {
        let until = dates::show(validity.until);
        tracing::warn!("the broker's certificate expires at {until}: renew it");
    }
}
