//! What stands in the files of the door, and how long what somebody showed is good. They are read again
//! when they change, so that certificates are renewed and tokens revoked while the broker runs.

use super::config::Tcp;
use keeptime_credentials::certificate::Validity;
use keeptime_credentials::dates;
use keeptime_credentials::files::FileError;
use keeptime_credentials::renewal::{Renewed, Source};
use keeptime_credentials::tls::{AGENT, Clients, HTTP, Peer, Server, ServerFiles, TlsError};
use keeptime_credentials::token_file;
use keeptime_credentials::tokens::{TokenId, Tokens};
use keeptime_credentials::untrusted::Untrusted;
use keeptime_locks::lock;
use keeptime_model::errors::chain;
use keeptime_model::units::WallTime;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// How often it is looked whether files changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long after a token or certificate expired the connection may last that it let in.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

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
}

/// The keys as they are now.
#[derive(Debug, Clone)]
pub(super) struct KeyRing {
    keys: Arc<Renewed<Tcp>>,
    /// Tells those whom they let in when there are others.
    renewals: Arc<watch::Sender<()>>,
}

/// The broker's own certificate, for the figures.
#[derive(Debug, Clone)]
pub struct OwnCertificate(KeyRing);

/// What somebody showed.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// At the handshake: their certificate first; nothing if they have none.
    pub chain: Vec<CertificateDer<'static>>,
    /// With their last request.
    pub token: Mutex<Option<TokenId>>,
}

impl Source for Tcp {
    type Made = Keys;
    type Error = KeysError;

    fn paths(&self) -> Vec<&Path> {
        self.files().collect()
    }

    fn read(&self) -> Result<Keys, KeysError> {
        let files = ServerFiles {
            certificate: &self.certificate,
            key: &self.key,
            client_ca: self.client_ca.as_deref(),
            revoked: self.revoked.as_deref(),
        };
        let users = Server::read(files, Clients::Any, HTTP)?;
        let agents = match self.agents {
            Some(_) => Some(Server::read(files, Clients::WithCertificate, AGENT)?),
            None => None,
        };
        let tokens = self.tokens.as_deref().map(token_file::load).transpose()?;
        Ok(Keys { users, agents, tokens: tokens.unwrap_or_default() })
    }
}

impl KeyRing {
    /// Reads all files of `config`.
    pub fn open(config: &Tcp) -> Result<Self, KeysError> {
        let keys = Renewed::read(config.clone())?;
        warn_of_end(keys.now().users.facts().validity, dates::now());
        Ok(Self { keys: Arc::new(keys), renewals: Arc::new(watch::Sender::new(())) })
    }

    /// As they are now.
    pub fn now(&self) -> Arc<Keys> {
        self.keys.now()
    }

    /// Reads the files again when they change or at `hangup`, for ever. Files that cannot be used leave
    /// everything as it is.
    pub async fn keep_fresh(self, mut hangup: Signal) {
        loop {
            let is_told = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let keys = Arc::clone(&self.keys);
            let look = move || if is_told { Some(keys.read_again()) } else { keys.look() };
            // If it panics, everything is as before.
            let Ok(Some(read)) = tokio::task::spawn_blocking(look).await else { continue };
            match read {
                Ok(keys) => {
                    tracing::info!("certificates and tokens were read again");
                    warn_of_end(keys.users.facts().validity, dates::now());
                    self.renewals.send_replace(());
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
        let mut renewals = self.renewals.subscribe();
        loop {
            // What comes after this is told, and what came before is there.
            renewals.mark_unchanged();
            let keys = self.now();
            if let Err(why) = shown.check(server(&keys), &keys.tokens, dates::now()) {
                tracing::info!("a connection is ended: {why}");
                return;
            }
            drop(keys);
            tokio::select! {
                changed = renewals.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }
}

impl OwnCertificate {
    pub(super) fn of(keys: &KeyRing) -> Self {
        Self(keys.clone())
    }

    /// The last second of the one that is in use now.
    pub fn until(&self) -> WallTime {
        self.0.now().users.facts().validity.until
    }
}

impl Shown {
    /// The certificate, if there is one: who it says that they are.
    pub fn peer(&self, server: &Server, now: WallTime) -> Option<Result<Peer, Untrusted>> {
        (!self.chain.is_empty()).then(|| server.identify(&self.chain, now))
    }

    /// The token that came with the last request.
    pub fn set_token(&self, id: TokenId) {
        *lock(&self.token) = Some(id);
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
        let token = lock(&self.token).clone();
        if let Some(id) = token {
            tokens.bearer(&id, now)?;
        }
        Ok(())
    }
}

fn warn_of_end(validity: Validity, now: WallTime) {
    if let Some(problem) = validity.problem(now) {
        tracing::warn!("the broker's certificate {problem}: nobody trusts it");
    } else if validity.ends_soon(now) {
        let until = dates::show(validity.until);
        tracing::warn!("the broker's certificate expires at {until}: renew it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_credentials::tokens::RANDOM_BYTES;

    // Goal: who came with a token does not stay when that is revoked or over. Method: one that is good until a moment, just before it
    // and then, and after it was revoked.
    #[test]
    fn what_was_shown_is_good_until_its_token_is_revoked_or_expires() {
        let (mut tokens, at) = (Tokens::default(), WallTime::from_unix_nanos);
        let until = Some(at(9));
        let token = tokens.add("ada".parse().unwrap(), until, &[7; RANDOM_BYTES]).unwrap();
        let shown = Shown::default();
        let is_good = |tokens: &Tokens, now| shown.check(None, tokens, at(now)).is_ok();
        assert!(is_good(&tokens, 9), "no request has shown it yet");
        shown.set_token(token.id().clone());
        assert_eq!([8, 9].map(|now| is_good(&tokens, now)), [true, false]);
        tokens.revoke(token.id());
        assert!(!is_good(&tokens, 8));
    }
}
