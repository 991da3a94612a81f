//! Which broker is meant, and what is shown there: by arguments and the environment first, then by a
//! file, then the lab's.

use crate::arguments::BrokerPlace;
use crate::brokers;
use anyhow::{Context, Result};
use keeptime_broker::client::Client;
use keeptime_broker::remote::{Address, ClientFiles, Remote, RemoteError};
use keeptime_credentials::files::{self, FileError, Secrecy};
use keeptime_lab::Labs;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};

/// The lab whose broker is asked when nothing is said.
const LAB: &str = "lab";
/// What holds for all users of a machine.
const OF_MACHINE: &str = "/etc/keeptime/client.toml";

/// A user's file: what need not be said each time. Paths in it are relative to where it lies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientConfig {
    broker: Option<String>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    certificate_key: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

/// The broker that is meant.
///
/// # Errors
/// If there is no such lab, or a file cannot be used.
pub fn connect(place: &BrokerPlace) -> Result<Client> {
    let config = find(place.client_config.as_deref())?;
    // A lab that is named is meant, whatever a file says.
    let configured = config.broker.filter(|_| place.lab.is_none());
    let configured = configured.map(|text| text.parse::<Address>()).transpose()?;
    let or = |given: &Option<PathBuf>, other| given.clone().or(other);
    match place.broker.clone().or(configured) {
        None => {
            let default = LAB.parse::<Name>()?;
            let lab = Labs::of_this_user().open(place.lab.as_ref().unwrap_or(&default))?;
            Ok(Client::new(&brokers::socket(lab.directory()))?)
        }
        Some(Address::Socket(socket)) => Ok(Client::new(&socket)?),
        Some(Address::Remote(endpoint)) => {
            // A certificate that is given goes with its own key alone.
            let own = if place.certificate.is_none() && place.certificate_key.is_none() {
                (config.certificate, config.certificate_key)
            } else {
                (place.certificate.clone(), place.certificate_key.clone())
            };
            let files = ClientFiles {
                ca: or(&place.ca, config.ca),
                certificate: own.0,
                key: own.1,
                token: or(&place.token_file, config.token_file),
            };
            let remote = Remote::new(endpoint, &files).map_err(|error| match error {
                RemoteError::Invalid(invalid) => invalid.into(),
                other => anyhow::Error::from(other),
            })?;
            Ok(Client::remote(remote)?)
        }
    }
}

/// The file that is named, or the first that there is of the usual ones, or nothing.
fn find(named: Option<&Path>) -> Result<ClientConfig> {
    if let Some(path) = named {
        return Ok(read(path)?);
    }
    let usual = own_path().into_iter().chain([PathBuf::from(OF_MACHINE)]);
    for path in usual {
        match read(&path) {
            Err(FileError::Read { source, .. }) if is_out_of_reach(source.kind()) => {}
            found => return found.with_context(|| format!("while reading {}", path.display())),
        }
    }
    Ok(ClientConfig::default())
}

/// Nobody said that it is there; and who became another user may have the former one's home.
fn is_out_of_reach(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(kind, NotADirectory | NotFound | PermissionDenied)
}

fn own_path() -> Option<PathBuf> {
    let directory = std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty());
    let directory = directory.map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").filter(|path| !path.is_empty())?;
        Some(Path::new(&home).join(".config"))
    })?;
    Some(directory.join("keeptime/client.toml"))
}

fn read(path: &Path) -> Result<ClientConfig, FileError> {
    let text = files::read(path, Secrecy::Public)?;
    let parsed = parse(&text, files::directory(path));
    parsed.map_err(|source| FileError::Content { path: path.into(), source })
}

fn parse(text: &str, directory: &Path) -> Result<ClientConfig, Invalid> {
    let mut config: ClientConfig = toml::from_str(text)
        .map_err(|error| Invalid::new("client configuration", "", error.message().to_string()))?;
    let ClientConfig { broker, ca, certificate, certificate_key, token_file } = &mut config;
    for path in [ca, certificate, certificate_key, token_file].into_iter().flatten() {
        *path = directory.join(path.as_path());
    }
    if let Some(text) = broker
        && let Address::Socket(socket) = text.parse()?
    {
        *text = directory.join(socket).display().to_string();
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_file_lie_beside_it_and_unknown_words_are_named() {
        let text =
            "broker = \"https://broker:7411\"\nca = \"ca.pem\"\ncertificate_key = \"/k.pem\"\n";
        let config = parse(text, Path::new("/home/ada")).unwrap();
        assert_eq!(config.ca, Some("/home/ada/ca.pem".into()));
        assert_eq!(config.certificate_key, Some("/k.pem".into()));
        assert_eq!(config.broker.as_deref(), Some("https://broker:7411"));
        let socket = parse("broker = \"b.sock\"", Path::new("/run")).unwrap();
        assert_eq!(socket.broker.as_deref(), Some("/run/b.sock"));
        let plain = parse("broker = \"http://broker\"", Path::new("/")).unwrap_err().to_string();
        assert!(plain.contains("says nothing without TLS"), "{plain}");
        let unknown = parse("token = \"x\"", Path::new("/")).unwrap_err().to_string();
        assert!(unknown.contains("unknown field `token`"), "{unknown}");
    }
}
