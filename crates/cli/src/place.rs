//! Which broker is meant, what is shown there, and how the nodes of its cluster are reached: by arguments first, then
//! by the environment, then by a file, then the lab's.

use crate::arguments::BrokerPlace;
use crate::brokers;
use anyhow::{Context, Result};
use keeptime_broker::client::Client;
use keeptime_broker::remote::{Address, ClientFiles, Remote, RemoteError};
use keeptime_credentials::endpoint::Endpoint;
use keeptime_credentials::files::{self, FileError, Secrecy};
use keeptime_lab::{Lab, Labs};
use keeptime_launch::remote::Launcher;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The lab whose broker is asked when nothing is said.
const LAB: &str = "lab";
/// What would name a broker: told where that lab is not there.
const UNNAMED: &str = "no broker is named; expected --broker, KEEPTIME_BROKER, `broker` in \
                       ~/.config/keeptime/client.toml, or a lab (keeptime lab up)";
/// What says as `--broker` does, where nothing is typed.
pub const BROKER_VARIABLE: &str = "KEEPTIME_BROKER";
/// What says as `--lab` does, where that is not set either.
pub const LAB_VARIABLE: &str = "KEEPTIME_LAB";
/// How that is said which asking a broker elsewhere needs. A certificate and its key are said in the same way: those of the file
/// count for nothing beside one that is typed.
const WAYS: [(&str, &str); 4] = [
    ("ca", "--ca, KEEPTIME_CA, or `ca` in client.toml"),
    (
        "certificate",
        "--certificate or KEEPTIME_CERTIFICATE, or `certificate` in client.toml where the key stands there",
    ),
    (
        "certificate-key",
        "--certificate-key or KEEPTIME_CERTIFICATE_KEY, or `certificate_key` in client.toml where the certificate \
         stands there",
    ),
    (
        "certificate or token-file",
        "--certificate with --certificate-key, or --token-file; KEEPTIME_CERTIFICATE with KEEPTIME_CERTIFICATE_KEY, or \
         KEEPTIME_TOKEN_FILE; or `certificate` with `certificate_key`, or `token_file`, in client.toml",
    ),
];
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
    #[serde(default)]
    nodes: NodesConfig,
}

/// How the nodes of a cluster are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodesConfig {
    /// The program that starts a command on another machine, called as `ssh` is [default: within a job of Slurm's `srun`,
    /// for a step of the job; else `ssh`].
    pub launcher: Option<Launcher>,
    /// This program, on the nodes [default: `keeptime`, where the user's shell there finds it].
    pub keeptime: Option<PathBuf>,
    /// The agents' socket there [default: what `KEEPTIME_AGENT` says there, or /run/keeptime/agent.sock].
    pub agent: Option<PathBuf>,
    /// What nodes are called by the launcher, where that is not the name that they have in the topology.
    #[serde(default)]
    pub hosts: BTreeMap<Name, String>,
}

/// The broker that is meant, and the way to the nodes of its cluster.
#[derive(Debug)]
pub struct Found {
    /// Where it is.
    pub broker: Where,
    /// Those of a lab are reached as this machine's own.
    pub nodes: NodesConfig,
    /// Read for the first client, and for all: a damaged file leaves later ones what the first had.
    remote: OnceLock<Remote>,
}

/// Where a broker is.
#[derive(Debug)]
pub enum Where {
    /// In a lab of this machine.
    Lab(Lab),
    /// On this machine.
    Socket(PathBuf),
    /// Elsewhere.
    Remote(Endpoint, ClientFiles),
}

/// What a broker is named by.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    At(Address),
    OfLab(Name),
    Nothing,
}

/// A client of the broker that is meant; connects with the first call.
///
/// # Errors
/// If there is no such lab, or a file cannot be used.
pub fn connect(place: &BrokerPlace) -> Result<Client> {
    find(place)?.client()
}

/// The broker that is meant.
///
/// # Errors
/// As [`connect`].
pub fn find(place: &BrokerPlace) -> Result<Found> {
    let config = config(place.client_config.as_deref())?;
    let or = |given: &Option<PathBuf>, other| given.clone().or(other);
    let broker = match named(place, &variable, config.broker.as_deref())? {
        Named::OfLab(lab) => Where::Lab(Labs::of_this_user().open(&lab)?),
        Named::Nothing => {
            let lab = LAB.parse::<Name>()?;
            Where::Lab(Labs::of_this_user().open(&lab).context(UNNAMED)?)
        }
        Named::At(Address::Socket(socket)) => Where::Socket(socket),
        Named::At(Address::Remote(endpoint)) => {
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
            Where::Remote(endpoint, files)
        }
    };
    Ok(Found { broker, nodes: config.nodes, remote: OnceLock::new() })
}

/// The first that names one: what is typed, what the environment says, a file. Where nothing does, the usual lab is
/// meant. A command with --lab never goes to the cluster that a shell was set up for.
fn named(
    place: &BrokerPlace,
    variable: &dyn Fn(&str) -> Option<String>,
    configured: Option<&str>,
) -> Result<Named, Invalid> {
    if let Some(address) = &place.broker {
        return Ok(Named::At(address.clone()));
    }
    if let Some(lab) = &place.lab {
        return Ok(Named::OfLab(lab.clone()));
    }
    if let Some(text) = variable(BROKER_VARIABLE) {
        return text.parse().map(Named::At);
    }
    if let Some(text) = variable(LAB_VARIABLE) {
        return text.parse().map(Named::OfLab);
    }
    match configured {
        Some(text) => text.parse().map(Named::At),
        None => Ok(Named::Nothing),
    }
}

/// A variable of the environment; one that is empty says nothing.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lab(lab) => write!(f, "{}", brokers::socket(lab.directory()).display()),
            Self::Socket(socket) => write!(f, "{}", socket.display()),
            Self::Remote(endpoint, _) => write!(f, "https://{endpoint}"),
        }
    }
}

impl Found {
    /// A client of the broker; connects with the first call.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn client(&self) -> Result<Client> {
        Ok(match &self.broker {
            Where::Lab(lab) => Client::new(&brokers::socket(lab.directory()))?,
            Where::Socket(socket) => Client::new(socket)?,
            Where::Remote(endpoint, files) => Client::remote(self.remote(endpoint, files)?)?,
        })
    }

    fn remote(&self, endpoint: &Endpoint, files: &ClientFiles) -> Result<Remote> {
        if let Some(remote) = self.remote.get() {
            return Ok(remote.clone());
        }
        let remote = Remote::new(endpoint.clone(), files).map_err(|error| match error {
            RemoteError::Invalid(invalid) => as_said(invalid).into(),
            other => anyhow::Error::from(other),
        })?;
        Ok(self.remote.get_or_init(|| remote).clone())
    }

    /// Where runs that this user holds at a rate answer: each broker has handles of its own.
    pub fn rates_directory(&self) -> PathBuf {
        let address = match &self.broker {
            Where::Lab(lab) => return lab.directory().join("rates"),
            Where::Socket(socket) => socket.display().to_string(),
            Where::Remote(endpoint, _) => endpoint.to_string(),
        };
        let name = address.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        Labs::of_this_user().runtime().join("rates").join(name)
    }
}

/// What is missing to ask a broker elsewhere, with how it is said.
fn as_said(invalid: Invalid) -> Invalid {
    match WAYS.iter().find(|(field, _)| *field == invalid.field) {
        Some((_, way)) => Invalid { expected: format!("{} ({way})", invalid.expected), ..invalid },
        None => invalid,
    }
}

/// The file that is named, or the first that there is of the usual ones, or nothing.
fn config(named: Option<&Path>) -> Result<ClientConfig> {
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
    let parsed = parse(&text, keeptime_files::directory(path));
    parsed.map_err(|source| FileError::Content { path: path.into(), source })
}

fn parse(text: &str, directory: &Path) -> Result<ClientConfig, Invalid> {
    let mut config: ClientConfig = toml::from_str(text)
        .map_err(|error| Invalid::in_toml("client configuration", text, &error))?;
    let ClientConfig { broker, ca, certificate, certificate_key, token_file, nodes: _ } =
        &mut config;
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

    /// The files that setting up a cluster is explained with.
    #[test]
    fn files_of_the_documentation_are_what_is_accepted() {
        // As the loop there does for each node.
        let text = include_str!("../../../docs/clusters.md").replace("@NODE@", "n1");
        let files = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let files: Vec<_> = files.collect();
        let [topology, broker, agent, client, program] = files[..] else { panic!("{files:?}") };
        let topology = keeptime_model::topology::Topology::from_toml(topology).unwrap();
        let broker = keeptime_broker::config::Config::from_toml(broker).unwrap();
        let agent = keeptime_agent::config::Config::from_toml(agent).unwrap();
        let client = parse(client, Path::new("/home/ada")).unwrap();
        let program = keeptime_model::application::Application::from_toml(program).unwrap();
        assert_eq!(program.name().as_str(), "solver");
        assert!(broker.tcp.is_some() && topology.find_node(&agent.node).is_some());
        assert!(client.nodes.hosts.keys().all(|node| topology.find_node(node).is_some()));
        let format = include_str!("../../../docs/formats/topology.md");
        let example = format.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        keeptime_model::topology::Topology::from_toml(example).unwrap();
    }

    // Goal: what is typed comes first, whatever a shell was set up for. Method: more and more is said.
    #[test]
    fn a_lab_that_is_typed_comes_before_a_broker_that_is_not() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let socket = |path: &str| Address::Socket(path.into());
        let nothing = |_: &str| None::<String>;
        let lab = |variable: &str| (variable == LAB_VARIABLE).then(|| "set".to_owned());
        let both = |variable: &str| {
            lab(variable).or_else(|| (variable == BROKER_VARIABLE).then(|| "/set".to_owned()))
        };
        let (file, typed) = (Some("/file"), BrokerPlace::of_lab(name("typed")));
        assert_eq!(named(&typed, &both, file), Ok(Named::OfLab(name("typed"))));
        let typed = BrokerPlace { broker: Some(socket("/typed")), lab: None, ..typed };
        assert_eq!(named(&typed, &both, file), Ok(Named::At(socket("/typed"))));
        let silent = BrokerPlace { broker: None, ..typed };
        assert_eq!(named(&silent, &both, file), Ok(Named::At(socket("/set"))));
        assert_eq!(named(&silent, &lab, file), Ok(Named::OfLab(name("set"))));
        assert_eq!(named(&silent, &nothing, file), Ok(Named::At(socket("/file"))));
        assert_eq!(named(&silent, &nothing, None), Ok(Named::Nothing));
    }

    // Goal: whoever is told that something is missing is told how it is said. Method: each that can be, as what reads the
    // files says it.
    #[test]
    fn what_is_missing_is_told_with_how_it_is_said() {
        let endpoint: Endpoint = "head:7411".parse().unwrap();
        let file = || Some(PathBuf::from("/nowhere.pem"));
        let nothing = ClientFiles::default();
        let cases = [
            (nothing.clone(), "ca", "--ca, KEEPTIME_CA, or `ca` in client.toml"),
            (
                ClientFiles { ca: file(), ..nothing.clone() },
                "certificate or token-file",
                "--certificate with --certificate-key, or --token-file;",
            ),
            (
                ClientFiles { ca: file(), certificate: file(), ..nothing.clone() },
                "certificate-key",
                "--certificate-key or KEEPTIME_CERTIFICATE_KEY",
            ),
            (
                ClientFiles { ca: file(), key: file(), ..nothing },
                "certificate",
                "--certificate or KEEPTIME_CERTIFICATE,",
            ),
        ];
        for (files, field, way) in cases {
            let broker = Where::Remote(endpoint.clone(), files);
            let found = Found { broker, nodes: NodesConfig::default(), remote: OnceLock::new() };
            let error = found.client().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{field} is missing; expected")), "{error}");
            assert!(error.contains(&format!(" ({way}")), "{error}");
        }
    }

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
        let text = "[nodes]\nlauncher = \"ssh -p 222\"\nhosts = { n1 = \"10.1.0.1\" }\n";
        let nodes = parse(text, Path::new("/")).unwrap().nodes;
        assert_eq!(nodes.launcher, "ssh -p 222".parse().ok());
        assert_eq!(nodes.hosts[&"n1".parse::<Name>().unwrap()], "10.1.0.1");
        let none = parse("[nodes]\nlauncher = \"\"", Path::new("/")).unwrap_err().to_string();
        assert!(none.contains("called as ssh is"), "{none}");
        let unknown =
            parse("ca = \"c\"\ntoken = \"secret\"", Path::new("/")).unwrap_err().to_string();
        assert!(unknown.contains("client configuration, line 2"), "{unknown}");
        assert!(unknown.contains("unknown field `token`"), "{unknown}");
        assert!(!unknown.contains("secret"), "{unknown}");
    }
}
