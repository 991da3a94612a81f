//! Nodes on several networks carry for those that share none. A bridge is a daemon of such a node
//! that passes bytes between two connections and understands none of them: what is sent again when
//! a bridge ends, and what arrives once, is the business of the two ends (their transports'
//! rails). Bridges are resources; whoever wants to reach an address that is on none of its networks
//! looks for ways over them ([`routes`]).

pub mod request;
pub mod routes;

mod call;
mod relay;

pub use call::call;
pub(crate) use call::watch_over;
pub use relay::{RELAYED_MOST, Relay};

use crate::attributes::{Attributes, TEXT_MOST};
use crate::config::Config;
use crate::context::{Context, Resource};
use crate::directory::protocol::Record;
use crate::echo;
use crate::error::{OpenError, RegisterError};
use crate::networks::Network;
use std::io;
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;

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

/// The bridges among resources. One that does not say what it is leads nowhere.
pub fn known<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Known> {
    records.into_iter().filter_map(|record| Known::read(&record.attributes)).collect()
}

impl Bridge {
    /// Carries on `node`, whose directory server is there already, at `port` (0: any that is free).
    /// None if the node is on fewer than two networks.
    ///
    /// # Errors
    /// If there is no directory, or the kernel does not give what is needed.
    pub fn start(config: Config, node: &str, port: u16) -> Result<Option<Self>, BridgeError> {
        let context = Context::open(config)?;
        let networks: Vec<_> = context
            .core()
            .networks()
            .iter()
            .filter(|n| !n.address.is_loopback())
            .copied()
            .collect();
        if networks.len() < 2 {
            return Ok(None);
        }
        let seeks = Seeks { context };
        let register = |attributes| seeks.context.register(attributes);
        let listener = relay::listen(port).map_err(BridgeError::Listen)?;
        let port = listener.local_addr().map_err(BridgeError::Listen)?.port();
        let resource = register(Known { networks, port }.write().with("node", node))?;
        let relay = Relay::start(listener, move |to| seeks.is_of_a_node(to.ip()));
        let relay = relay.map_err(BridgeError::Listen)?;
        Ok(Some(Self { relay, _resource: resource }))
    }

    /// Where it is called.
    pub fn port(&self) -> u16 {
        self.relay.port()
    }
}

/// Knows the nodes of the cluster: nobody else is carried to.
struct Seeks {
    context: Context,
}

impl Seeks {
    fn is_of_a_node(&self, address: IpAddr) -> bool {
        let daemons = self.context.find(echo::query()).all().unwrap_or_default();
        let mut addresses = daemons.iter().flat_map(|daemon| &daemon.home.addresses);
        !address.is_loopback() && addresses.any(|other| other.ip() == address)
    }
}

impl Known {
    /// As attributes: as many networks as have room.
    fn write(&self) -> Attributes {
        let mut networks = String::new();
        for network in &self.networks {
            let text = format!("{}{network}", if networks.is_empty() { "" } else { " " });
            if networks.len() + text.len() <= TEXT_MOST {
                networks.push_str(&text);
            }
        }
        query().with("networks", networks).with("port", self.port.to_string())
    }

    fn read(attributes: &Attributes) -> Option<Self> {
        let networks = attributes.value("networks")?.split(' ').map(str::parse);
        let networks = networks.collect::<Result<_, _>>().ok()?;
        Some(Self { networks, port: attributes.value("port")?.parse().ok()? })
    }

    /// Where it is called from a network.
    fn address_on(&self, network: &Network) -> Option<SocketAddr> {
        let own = self.networks.iter().find(|own| network.has(own.address))?;
        Some(SocketAddr::new(own.address, self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bridge_says_of_itself_is_understood() {
        let networks = ["10.1.0.2/24", "fd00::2/64"].map(|n| n.parse().unwrap()).to_vec();
        let bridge = Known { networks, port: 7401 };
        let attributes = bridge.write();
        assert!(attributes.include(&query()));
        assert_eq!(Known::read(&attributes), Some(bridge));
        assert_eq!(Known::read(&attributes.clone().with("port", "99999")), None);
        assert_eq!(Known::read(&attributes.with("networks", "10.1.0.2")), None);
        let many = (0..100).map(|n| format!("10.1.{n}.2/24").parse().unwrap()).collect();
        let attributes = Known { networks: many, port: 1 }.write();
        assert!(attributes.check().is_ok() && Known::read(&attributes).is_some());
    }
}
