//! The door over TCP: TLS on every connection, for users and for agents; nothing is said without.
//!
//! * [`config`]: the files and addresses;
//! * [`keys`]: what stands in the files, read again when they change;
//! * `peers`: how many connections an address may have;
//! * `handshake`: from a connection to one that proves who is there, within a time;
//! * `users`, `agents`: what is said then.
//!
//! Who shows nothing has a few seconds; who shows something is let in for as long as that is good: a
//! certificate that expires, a token that is revoked, and what they let in ends.

pub mod config;
pub mod keys;

mod agents;
mod handshake;
mod peers;
mod users;

use self::agents::Agents;
use self::config::Tcp;
use self::keys::{KeyRing, KeysError};
use self::peers::Peers;
use self::users::Users;
use crate::agents::{CONNECTIONS_SPARE, Reception};
use crate::door::Operators;
use crate::vital;
use axum::Router;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::Signal;
use tokio::sync::Semaphore;

/// Connections of users at a time.
const CONNECTIONS_MAX: usize = 1_024;
/// From one address: a login node has many users, and nobody takes all.
const CONNECTIONS_OF_PEER_MAX: usize = 128;
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
        let users = Users { keys: keys.clone(), operators, router };
        tracing::info!("users connect to https://{}", config.address.0);
        let receive = move |stream| users.clone().receive(stream);
        let door = accept(listener, CONNECTIONS_MAX, CONNECTIONS_OF_PEER_MAX, receive);
        vital::spawn("the door of users over TCP", door);
        if let Some(address) = config.agents {
            let listener = listen(address.0)?;
            let room = reception.node_count() + CONNECTIONS_SPARE;
            let agents = Agents { keys: keys.clone(), reception };
            tracing::info!("agents connect to {}", address.0);
            // All nodes of a lab or behind a gateway may have one address.
            let receive = move |stream| agents.clone().receive(stream);
            vital::spawn("the door of agents over TCP", accept(listener, room, room, receive));
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

/// Hands over connections: so many at a time, and so many from one address.
async fn accept<F>(
    listener: TcpListener,
    room: usize,
    of_peer_max: usize,
    receive: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(room));
    let peers = Peers::new(of_peer_max);
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("nobody can connect: {error}");
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
        };
        let Some(seat) = peers.enter(address.ip()) else { continue };
        let received = receive(stream);
        tokio::spawn(async move {
            received.await;
            drop((seat, place));
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
