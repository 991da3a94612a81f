//! Nodes on several networks carry for those that share none. A bridge is a daemon of such a node
//! that passes bytes between two connections and understands none of them: what is sent again when
//! a bridge ends, and what arrives once, is the business of the two ends (their transports'
//! rails). Bridges are resources; whoever wants to reach an address that is on none of its networks
//! looks for ways over them, finds out what calls over each take, and takes the quickest ([`routes`]).

pub mod request;
pub mod routes;

mod call;
mod costs;
mod relay;
mod survey;

pub use call::call;
#[cfg(test)]
pub(crate) use relay::{Flow, Outgoing};
pub use relay::{RELAYED_MOST, Relay};
pub(crate) use survey::{Search, Survey};

use crate::attributes::{Attributes, TEXT_MOST};
use crate::config::Config;
use crate::context::{Context, Resource};
use crate::directory::protocol::{Introduction, Record};
use crate::door::is_trusted;
use crate::echo;
use crate::error::{OpenError, RegisterError};
use crate::networks::{Network, reaches};
use nix::unistd::geteuid;
use request::{Request, Whom};
use std::io;
use std::net::SocketAddr;
use thiserror::Error;

/// Attributes that tell of networks at most: room for three hundred and more, and for what a bridge tells besides.
const NETWORKS_ATTRIBUTES: usize = 24;

/// Carries for others, until it is dropped.
#[derive(Debug)]
pub struct Bridge {
    relay: Relay,
    _resource: Resource,
}

/// A bridge as others know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The networks that it is on.
    pub networks: Vec<Network>,
    /// Where it is called, on each of them.
    pub port: u16,
}

/// Nobody will be carried for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// There is no context for it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be found.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The kernel does not give what is needed.
    #[error("cannot listen for those who want to be carried")]
    Listen(#[source] io::Error),
}

/// What finds all bridges.
pub fn query() -> Attributes {
    crate::attrs! { "service" => "bridge" }
}

/// The bridges among resources: those of root's daemons, and of this process's own user's. Any program can say that it is
/// one, and would have what others send go its way. One that does not say what it is leads nowhere.
pub fn known<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Known> {
    let trusted = records.into_iter().filter(|record| is_of_daemon(record));
    trusted.filter_map(|record| Known::read(&record.attributes)).collect()
}

/// Whether a resource may be that of a daemon: programs use root's and their own user's alone.
fn is_of_daemon(record: &Record) -> bool {
    is_trusted(geteuid().as_raw(), record.home.owner)
}

impl Bridge {
    /// Carries on `node`, whose directory server is there already, at `port` (0: any that is free).
    /// None if the node is on fewer than two networks.
    ///
    /// # Errors
    /// If there is no directory, or the kernel does not give what is needed.
    pub fn start(config: Config, node: &str, port: u16) -> Result<Option<Self>, BridgeError> {
        let context = Context::open(config)?;
        let Some(networks) = carried(context.core().networks()) else { return Ok(None) };
        let guard = Guard { context };
        let register = |attributes| guard.context.register(attributes);
        let listener = relay::listen(port).map_err(BridgeError::Listen)?;
        let port = listener.local_addr().map_err(BridgeError::Listen)?.port();
        let resource = register(Known { networks, port }.write().with("node", node))?;
        let relay = Relay::start(listener, move |request| guard.permits(request));
        let relay = relay.map_err(BridgeError::Listen)?;
        Ok(Some(Self { relay, _resource: resource }))
    }

    /// Where it is called.
    pub fn port(&self) -> u16 {
        self.relay.port()
    }
}

/// The addresses at which a node carries. None if they are not on two networks: two addresses on one
/// are nothing between which to carry.
fn carried(networks: &[Network]) -> Option<Vec<Network>> {
    let others: Vec<_> = networks.iter().filter(|n| !n.address.is_loopback()).copied().collect();
    let first = *others.first()?;
    others.iter().any(|other| !other.is_same(&first)).then_some(others)
}

/// Carries to the fabric's own alone, as the directory knows them: whatever else listens on a node is not
/// reached over a bridge.
struct Guard {
    context: Context,
}

impl Guard {
    fn permits(&self, request: &Request) -> bool {
        let to = request.first();
        if to.ip().is_loopback() {
            return false;
        }
        match request.whom() {
            _ if request.rest().is_some() => self.is_bridge(to),
            Whom::Context(id) => {
                let found = self.context.core().directory().resolve(id);
                let has = |found: &Introduction| found.context.addresses.contains(&to);
                found.is_ok_and(|found| found.as_ref().is_some_and(has))
            }
            Whom::Directory => self.is_directory(to),
        }
    }

    fn is_bridge(&self, to: SocketAddr) -> bool {
        let bridges = self.context.find(query()).all().unwrap_or_default();
        known(&bridges).iter().any(|bridge| bridge.is_at(to))
    }

    fn is_directory(&self, to: SocketAddr) -> bool {
        let daemons = self.context.find(echo::query()).all().unwrap_or_default();
        daemons.iter().filter(|daemon| is_of_daemon(daemon)).any(|daemon| {
            let port = daemon.attributes.value(echo::DIRECTORY).and_then(|port| port.parse().ok());
            port == Some(to.port()) && daemon.home.addresses.iter().any(|own| own.ip() == to.ip())
        })
    }
}

/// The attribute that tells of the first networks, and those of more.
fn networks_name(number: usize) -> String {
    if number == 0 { "networks".into() } else { format!("networks-{}", number + 1) }
}

impl Known {
    /// As attributes: as many networks as have room.
    fn write(&self) -> Attributes {
        let mut texts = vec![String::new()];
        for (written, network) in self.networks.iter().enumerate() {
            let (text, last) = (network.to_string(), texts.len() - 1);
            if texts[last].is_empty() {
                texts[last] = text;
            } else if texts[last].len() + 1 + text.len() <= TEXT_MOST {
                texts[last] = format!("{} {text}", texts[last]);
            } else if texts.len() < NETWORKS_ATTRIBUTES {
                texts.push(text);
            } else {
                let left = self.networks.len() - written;
                tracing::warn!("{left} networks are left out: others find no way over them here");
                break;
            }
        }
        let own = query().with("port", self.port.to_string());
        (0..).zip(texts).fold(own, |own, (number, text)| own.with(networks_name(number), text))
    }

    fn read(attributes: &Attributes) -> Option<Self> {
        let first = attributes.value(&networks_name(0))?;
        let more = (1..).map_while(|number| attributes.value(&networks_name(number)));
        let texts = [first].into_iter().chain(more).flat_map(|text| text.split(' '));
        let networks = texts.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { networks, port: attributes.value("port")?.parse().ok()? })
    }

    /// Where it is called by a node on `networks`.
    fn addresses_from(&self, networks: &[Network]) -> impl Iterator<Item = SocketAddr> {
        let reached = self.networks.iter().filter(|own| reaches(networks, own.address));
        reached.map(|own| SocketAddr::new(own.address, self.port))
    }

    /// Whether it is called at this address.
    fn is_at(&self, address: SocketAddr) -> bool {
        self.port == address.port() && self.networks.iter().any(|n| n.address == address.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carriers::Carriers;
    use crate::directory::protocol::ContextInfo;
    use crate::door::Callers;
    use crate::frame;
    use crate::id::{ContextId, Place, ResourceId};

    /// A bridge, as the directory knows it, of a program of this user.
    fn record(bridge: &Known, owner: u32) -> Record {
        let (context, place) = (ContextId::new(1), Place { slot: 0, generation: 0 });
        let (node, callers, addresses) = ("n1".into(), Callers::SameUser, Vec::new());
        let carriers = Carriers::default();
        let home = ContextInfo {
            id: context,
            node,
            owner,
            callers,
            addresses,
            carriers,
            speaks: frame::VERSION,
        };
        Record { id: ResourceId { context, place }, attributes: bridge.write(), home: home.into() }
    }

    /// Whoever could say that he is a bridge would read what others send.
    #[test]
    fn bridges_are_those_of_root_and_of_the_own_user() {
        let networks = ["10.1.0.2/24", "10.2.0.2/24"].map(|n| n.parse().unwrap()).to_vec();
        let bridge = Known { networks, port: 7401 };
        let own = geteuid().as_raw();
        let known = |owner| known(&[record(&bridge, owner)]);
        assert_eq!([known(0), known(own)].concat(), [bridge.clone(), bridge.clone()]);
        assert!(known(own + 1).is_empty());
    }

    #[test]
    fn what_a_bridge_says_of_itself_is_understood() {
        let networks = ["10.1.0.2/24", "fd00::2/64"].map(|n| n.parse().unwrap()).to_vec();
        let bridge = Known { networks, port: 7401 };
        let attributes = bridge.write();
        assert!(attributes.include(&query()));
        assert_eq!(Known::read(&attributes), Some(bridge));
        assert_eq!(Known::read(&attributes.clone().with("port", "99999")), None);
        assert_eq!(Known::read(&attributes.with("networks", "10.1.0.2")), None);
        let many = |count: usize| {
            let networks = (0..count).map(|n| format!("fd00:{n:x}::1234:5678:9abc/64"));
            Known { networks: networks.map(|n| n.parse().unwrap()).collect(), port: 1 }
        };
        let node = |bridge: &Known| bridge.write().with("node", "n1");
        assert_eq!(Known::read(&node(&many(150))), Some(many(150)));
        // More than there is room for.
        let attributes = node(&many(1_000));
        assert!(attributes.check().is_ok());
        let networks = Known::read(&attributes).unwrap().networks;
        assert!(networks.len() > 150 && networks[..] == many(1_000).networks[..networks.len()]);
    }

    /// Neither loopback nor a second address on a network counts.
    #[test]
    fn a_bridge_is_on_two_networks() {
        let count = |texts: &[&str]| {
            let networks: Vec<Network> = texts.iter().map(|text| text.parse().unwrap()).collect();
            carried(&networks).map(|networks| networks.len())
        };
        assert_eq!(count(&[]), None);
        assert_eq!(count(&["127.0.0.1/8", "::1/128", "10.1.0.1/24"]), None);
        assert_eq!(count(&["10.1.0.1/24", "10.1.0.2/24"]), None);
        assert_eq!(count(&["127.0.0.1/8", "10.1.0.1/24", "10.2.0.1/24"]), Some(2));
        assert_eq!(count(&["10.1.0.1/24", "10.1.0.2/24", "fd00::1/64"]), Some(3));
    }
}
