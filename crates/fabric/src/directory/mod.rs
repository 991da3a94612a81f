//! Which resources there are in the cluster. Each node has one server; programs ask that of their
//! own node, and servers tell each other what happens on theirs.

pub mod client;
mod members;
pub mod protocol;
pub mod records;
pub mod seal;
pub mod server;
mod stale;
pub mod state;
mod users;

pub use server::{Server, ServerConfig};

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

/// The name of the directory that programs use if they are not told another.
pub const DEFAULT_NAME: &str = "keeptime-fabric";

/// Where a directory server of this name listens for programs of its node: a name without a file,
/// which is gone when the server is.
fn address_of(name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name_of(name))
}

/// That name.
fn name_of(name: &str) -> String {
    format!("{name}/directory")
}
