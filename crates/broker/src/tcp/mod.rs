//! The door over TCP: TLS on every connection, for users and for agents; nothing is said without.
//!
//! * [`config`]: the files and addresses;
//! * [`keys`]: what stands in the files, read again when they change;
//! * `places`: who makes way when too many come;
//! * `handshake`: from a connection to one that proves who is there, within a time;
//! * `users`, `agents`: what is said then.
//!
//! What has shown nothing yet counts to its address, which may have any number and makes way for others. What has
//! shown whose it is counts to that user or node, which has so many and no more.
//!
//! Who shows nothing has a few seconds; who shows something is let in for as long as that is good: a
//! certificate that expires, a token that is revoked, and what they let in ends.

pub mod config;
pub mod keys;

mod agents;
mod handshake;
mod places;
mod users;

use self::agents::Agents;
use self::config::Tcp;
use self::keys::{KeyRing, KeysError, OwnCertificate};
use self::places::{Place, Places};
use self::users::Users;
use crate::agents::Reception;
use crate::door::Operators;
use crate::vital;
use axum::Router;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::Signal;

pub(crate) use self::handshake::linger;

/// Connections at a time that have not shown whose they are. Each is there for some round trips, or for seconds if it
/// says nothing: beside an address that makes 5,000 a second, others that come from there have 50 ms.
const UNKNOWN_MAX: usize = 256;
/// Of one node: its agent's, and a newer one, which takes over when it has said hello.
const CONNECTIONS_OF_NODE_MAX: usize = 2;
/// After a failure to accept, which is for want of file descriptors or memory.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Why the door cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TcpError {
    /// Its files cannot be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Nobody can listen there.
    #[error("cannot listen at {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The door, not yet open.
pub struct Door {
    config: Tcp,
    keys: KeyRing,
}

impl Door {
    /// With everything that its files have.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn new(config: &Tcp) -> Result<Self, TcpError> {
        Ok(Self { config: config.clone(), keys: KeyRing::open(config)? })
    }

    /// The broker's own certificate.
    pub fn certificate(&self) -> OwnCertificate {
        OwnCertificate::of(&self.keys)
    }

    /// Listens, lets in whoever proves who they are, and reads the files again when they change or at
    /// `hangup`. Inside of a runtime.
    ///
    /// # Errors
    /// If something else listens there.
    pub fn open(
        self,
        router: Router,
        operators: Operators,
        reception: Reception,
        hangup: Signal,
    ) -> Result<(), TcpError> {
        let Self { config, keys } = self;
        let listener = listen(config.address.0)?;
        let users = Users::new(keys.clone(), operators, router);
        tracing::info!("users connect to https://{}", config.address.0);
        let receive = move |stream, place| users.clone().receive(stream, place);
        let door = accept(listener, Places::new(usize::MAX, UNKNOWN_MAX), receive);
        vital::spawn("the door of users over TCP", door);
        if let Some(address) = config.agents {
            let listener = listen(address.0)?;
            // All agents come at once when a broker starts, and may have one address: in a lab, or behind a gateway.
            let unknown = Places::new(usize::MAX, reception.node_count() + UNKNOWN_MAX);
            let nodes = Places::new(CONNECTIONS_OF_NODE_MAX, usize::MAX);
            let agents = Agents { keys: keys.clone(), reception, nodes };
            tracing::info!("agents connect to {}", address.0);
            let receive = move |stream, place| agents.clone().receive(stream, place);
            vital::spawn("the door of agents over TCP", accept(listener, unknown, receive));
        }
        vital::spawn("what reads certificates and tokens again", keys.keep_fresh(hangup));
        Ok(())
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, TcpError> {
    let listen = || {
        // With the address of a former broker's connections that are not forgotten yet.
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    listen().map_err(|source| TcpError::Listen { address, source })
}

/// Hands over everything that connects, each with its place among those that have shown nothing yet; whoever loses
/// that is let go.
async fn accept<F>(
    listener: TcpListener,
    unknown: Places<IpAddr>,
    receive: impl Fn(TcpStream, Place<IpAddr>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("nobody can connect: {error}");
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
        };
        let (place, is_lost) = unknown.enter(peer(address.ip()));
        let received = receive(stream, place);
        tokio::spawn(async move {
            tokio::select! {
                () = received => {}
                Ok(()) = is_lost => {
                    let who = ip(address.ip());
                    tracing::debug!("a connection from {who} that had shown nothing made way");
                }
            }
        });
    }
}

/// The address at the other end, for people.
fn name(stream: &TcpStream) -> String {
    stream.peer_addr().map_or("somebody".into(), |address| ip(address.ip()).to_string())
}

/// The address as people know it, where IPv6 carries IPv4.
fn ip(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Who counts as one: with IPv6 a network of 64 bits, which one machine can have all to itself.
fn peer(address: IpAddr) -> IpAddr {
    match ip(address) {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_network_of_one_machine_counts_as_one() {
        let peer = |text: &str| peer(text.parse().unwrap());
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.2"), peer("10.0.0.1"));
        assert_eq!(peer("fd00::1"), peer("fd00::2"));
        assert_ne!(peer("fd00:0:0:1::1"), peer("fd00::1"));
    }
}
