//! What a context is to be.

use crate::directory::DEFAULT_NAME;
use crate::door::Callers;
use crate::error::OpenError;
use crate::networks::{InvalidNetwork, Network};
use crate::progress::Wait;
use crate::transport::native::Library;
use keeptime_model::units::Nanos;
use std::env;
use std::ffi::OsString;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The variable of the environment that names the node's daemon, where a program does not.
pub const DAEMON_VARIABLE: &str = "KEEPTIME_FABRIC";
/// The one that says how threads wait: `spin`, `block`, or for how long they look before they sleep, such as `50us`.
pub const WAIT_VARIABLE: &str = "KEEPTIME_FABRIC_WAIT";
/// The one that names the networks to be used: as [`parse_networks`] takes them.
pub const NETWORKS_VARIABLE: &str = "KEEPTIME_FABRIC_NETWORKS";

/// What carries messages between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP: least delay, and the kernels keep it going whatever the programs do.
    Tcp,
    /// UDP, many datagrams by one call: most bytes a second. Who receives should have a thread that
    /// waits, or [`Config::progress_thread`]: nothing is confirmed otherwise.
    Udp,
    /// libfabric, and with it whatever network it finds: InfiniBand, RoCE, Omni-Path, Slingshot, EFA,
    /// or TCP. `FI_PROVIDER` chooses. Needs the feature `libfabric`, without which no context opens that is to call over it;
    /// others without it, or without a network of it, are met over TCP.
    Libfabric,
    /// UCX, and with it InfiniBand, RoCE, shared memory or TCP. `UCX_TLS` and `UCX_NET_DEVICES` choose. Needs the feature
    /// `ucx`, as above.
    Ucx,
}

impl Protocol {
    /// The library that it is, if it is one.
    pub(crate) fn library(self) -> Option<Library> {
        match self {
            Self::Tcp | Self::Udp => None,
            Self::Libfabric => Some(Library::Libfabric),
            Self::Ucx => Some(Library::Ucx),
        }
    }

    /// Whether this program has what it needs.
    pub fn is_built_in(self) -> bool {
        self.library().is_none_or(Library::is_built_in)
    }

    /// Makes sure that this program can call others over it.
    ///
    /// # Errors
    /// If it is a library that is not built in.
    pub(crate) fn expect_built_in(self) -> Result<(), OpenError> {
        let Some(library) = self.library().filter(|_| !self.is_built_in()) else { return Ok(()) };
        let built_in = [Library::Libfabric, Library::Ucx].into_iter().filter(|l| l.is_built_in());
        let there: Vec<_> = ["tcp", "udp"].into_iter().chain(built_in.map(Library::name)).collect();
        Err(OpenError::NotBuiltIn { wanted: library.name(), there: there.join(", ") })
    }
}

/// What a context is to be. All of it can be left as it is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The name of the node's daemon.
    pub directory: String,
    /// Where other nodes reach this context; unspecified address: on every interface, that of IPv6 over IPv4 too, which is
    /// the usual; port 0: any free one.
    pub listen: SocketAddr,
    /// Which of the node's networks are used: those on which it has an address within one of these; empty: all. Others are
    /// not told addresses on the rest, and called at none there. What is behind routers is reached as the kernel has it.
    pub networks: Vec<Network>,
    /// Whose programs may send to this context's resources.
    pub callers: Callers,
    /// How threads wait.
    pub wait: Wait,
    /// Whether processes of one node and one user use shared memory, and those of others that root's processes call there. If
    /// not, they use what other nodes are called over, as all others on the node do.
    pub shared_memory: bool,
    /// What carries messages to other nodes, where this context connects.
    pub between_nodes: Protocol,
    /// Whether a thread of the context's own handles what arrives while no thread of the program
    /// waits. Without it, what is asked of this context (to take a connection, to send a long
    /// message that was given) waits for the program's next call.
    pub progress_thread: bool,
    /// The longest message that is sent or accepted, in bytes.
    pub message_most: u64,
    /// How long closing waits until everything is sent.
    pub close_time: Duration,
}

/// The name of the node's daemon, where a variable or an option says it: the usual one if that is empty.
pub fn daemon_name(said: &str) -> String {
    if said.is_empty() { DEFAULT_NAME } else { said }.into()
}

/// Networks with commas between them, such as `10.1.0.0/16,10.2.0.0/16`.
///
/// # Errors
/// The first that is none.
pub fn parse_networks(text: &str) -> Result<Vec<Network>, InvalidNetwork> {
    text.split(',').map(|network| network.trim().parse()).collect()
}

impl Config {
    /// The usual one, but for what the program's environment says: [`DAEMON_VARIABLE`], [`WAIT_VARIABLE`] and
    /// [`NETWORKS_VARIABLE`].
    ///
    /// # Errors
    /// If that cannot be.
    pub fn from_environment() -> Result<Self, OpenError> {
        Self::from_environment_but(&[])
    }

    /// The same, but for these variables: what they are about is set in the program.
    ///
    /// # Errors
    /// As for [`Self::from_environment`].
    pub fn from_environment_but(set: &[&str]) -> Result<Self, OpenError> {
        Self::from_variables(|name| if set.contains(&name) { None } else { env::var_os(name) })
    }

    fn from_variables(says: impl Fn(&str) -> Option<OsString>) -> Result<Self, OpenError> {
        let text = |variable| {
            let value = says(variable).filter(|value| !value.is_empty())?;
            Some(value.into_string().map_err(|value| {
                let (value, expected) = (value.to_string_lossy().into(), "UTF-8");
                OpenError::Environment { variable, value, expected }
            }))
        };
        let mut config = Self::default();
        if let Some(name) = text(DAEMON_VARIABLE) {
            config.directory = name?;
        }
        if let Some(value) = text(WAIT_VARIABLE) {
            let (variable, value) = (WAIT_VARIABLE, value?);
            let expected = "spin, block, or a time to look for before sleeping, such as 50us";
            config.wait = match value.as_str() {
                "spin" => Wait::Spin,
                "block" => Wait::Block,
                time => match time.parse::<Nanos>() {
                    Ok(time) => Wait::SpinFor(Duration::from_nanos(time.get())),
                    Err(_) => return Err(OpenError::Environment { variable, value, expected }),
                },
            };
        }
        if let Some(value) = text(NETWORKS_VARIABLE) {
            let (variable, value) = (NETWORKS_VARIABLE, value?);
            let expected =
                "networks as ADDRESS/PREFIX with commas between, such as 10.1.0.0/16,10.2.0.0/16";
            let found = parse_networks(&value);
            config.networks =
                found.map_err(|_| OpenError::Environment { variable, value, expected })?;
        }
        Ok(config)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            directory: DEFAULT_NAME.into(),
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            networks: Vec::new(),
            callers: Callers::default(),
            // Longer than an answer takes that is on its way, shorter than a time slice.
            wait: Wait::SpinFor(Duration::from_micros(50)),
            shared_memory: true,
            between_nodes: Protocol::Tcp,
            progress_thread: false,
            message_most: 1 << 30,
            close_time: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without, nothing would be told before the first message to another node.
    #[test]
    #[cfg(not(all(feature = "libfabric", feature = "ucx")))]
    fn no_context_opens_that_is_to_call_over_what_is_not_built_in() {
        let absent = if cfg!(feature = "ucx") { Protocol::Libfabric } else { Protocol::Ucx };
        // No directory is asked for.
        let config = Config { between_nodes: absent, ..Config::default() };
        let error = crate::context::Context::open(config).unwrap_err().to_string();
        assert!(error.contains("(the feature `") && error.contains("it has tcp, udp"), "{error}");
    }

    #[test]
    fn the_environment_says_what_the_program_does_not() {
        let config = |daemon: &str, wait: &str| {
            let (daemon, wait) = (OsString::from(daemon), OsString::from(wait));
            Config::from_variables(|name| match name {
                DAEMON_VARIABLE => Some(daemon.clone()),
                WAIT_VARIABLE => Some(wait.clone()),
                _ => None,
            })
        };
        let said =
            |daemon, wait| config(daemon, wait).map(|config| (config.directory, config.wait));
        let usual = Config::default();
        assert_eq!(said("", "").unwrap(), (usual.directory, usual.wait));
        assert_eq!(said("other", "spin").unwrap(), ("other".into(), Wait::Spin));
        assert_eq!(said("other", "block").unwrap().1, Wait::Block);
        let micros = Wait::SpinFor(Duration::from_micros(20));
        assert_eq!(said("other", "20us").unwrap().1, micros);
        let error = said("", "soon").unwrap_err().to_string();
        assert!(
            error.starts_with("KEEPTIME_FABRIC_WAIT is \"soon\": expected spin, block"),
            "{error}"
        );
    }

    #[test]
    fn networks_are_said_with_commas() {
        let said = |text: &str| {
            let of = |name: &str| (name == NETWORKS_VARIABLE).then(|| text.into());
            Config::from_variables(of).map(|config| config.networks)
        };
        let two = ["10.1.0.0/16", "fd00::/64"].map(|text| text.parse().unwrap());
        assert_eq!(said("10.1.0.0/16, fd00::/64").unwrap(), two);
        assert_eq!(said("").unwrap(), []);
        let error = said("10.1.0.0/16,ib0").unwrap_err().to_string();
        assert!(error.starts_with("KEEPTIME_FABRIC_NETWORKS is \"10.1.0.0/16,ib0\""), "{error}");
    }

    #[test]
    fn an_empty_name_is_the_usual_one() {
        assert_eq!([daemon_name(""), daemon_name("mine")], [DEFAULT_NAME, "mine"]);
    }

    #[test]
    fn what_needs_no_library_is_always_there() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            assert!(protocol.expect_built_in().is_ok());
        }
    }
}
