//! `[tcp]` in the broker's configuration.

use keeptime_model::Invalid;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Addresses, and files (PEM) with which both ends prove who they are. There is no TCP without TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcp {
    /// Where users connect.
    pub address: Listen,
    /// Where agents connect; without it they come over the Unix socket alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Listen>,
    /// The broker's certificate, then those that issued it.
    pub certificate: PathBuf,
    /// Its key (mode 0600).
    pub key: PathBuf,
    /// The authorities that issue the certificates of users and nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Certificates that were withdrawn: a list (CRL) of each of these authorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<PathBuf>,
    /// The tokens of users (mode 0600): see `keeptime broker token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<PathBuf>,
}

/// An address to listen at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen(pub SocketAddr);

impl TryFrom<String> for Listen {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        let expected = "ADDRESS:PORT, as in 0.0.0.0:7411 or [::]:7411";
        text.parse().map(Self).map_err(|_| Invalid::new("address", text, expected))
    }
}

impl Tcp {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        let missing =
            |field: &str, expected: &str| Err(Invalid::missing(field, expected).within("tcp"));
        if self.client_ca.is_none() && self.tokens.is_none() {
            return missing("client_ca", "a file here, in tokens, or both: nobody could come in");
        }
        if self.client_ca.is_none() && self.agents.is_some() {
            return missing("client_ca", "a file, since agents come by certificates");
        }
        if self.client_ca.is_none() && self.revoked.is_some() {
            return missing("client_ca", "a file, since revoked is a list of its certificates");
        }
        match self.agents {
            Some(agents) if agents == self.address && agents.0.port() != 0 => {
                let expected = "another port than that of address";
                Err(Invalid::new("agents", agents.0, expected).within("tcp"))
            }
            _ => Ok(()),
        }
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let more = [&self.client_ca, &self.revoked, &self.tokens].into_iter().flatten();
        [&self.certificate, &self.key].into_iter().chain(more).map(PathBuf::as_path)
    }
}
