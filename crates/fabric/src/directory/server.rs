//! The directory server of a node: a thread that has the directory of that node know what happens on its connections.
//!
//! | module | owns |
//! |---|---|
//! | `event_loop` | the thread: what is ready, and what the directory's state has to say to it |
//! | `connections`, `connection` | all connections, and which are ready; the bytes of one |
//! | `stream`, `byte_queue`, `send_buffer` | its descriptor; what has come and is to go on it |
//! | `backlog` | what the programs of each user leave unread |
//! | `receiving` | what the bytes of a connection mean, by who is at its other end |
//! | `dialing` | calls to other servers |
//! | `seldom` | what strangers can have happen as often as they like is told now and then |

mod backlog;
mod byte_queue;
mod connection;
mod connections;
mod dialing;
mod event_loop;
mod receiving;
mod seldom;
mod send_buffer;
mod stream;

use crate::door::ClusterKey;
use crate::threads;
use event_loop::EventLoop;
use nix::sys::eventfd::EventFd;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// What a directory server is to be.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The name that programs of this node ask for.
    pub name: String,
    /// The node's name, unlike that of any other node.
    pub node: String,
    /// Where other servers reach this one; unspecified address: on every interface, port 0: any that
    /// is free. Servers on networks that this node is not on are reached over bridges.
    pub address: SocketAddr,
    /// Where to find some of the others; the rest is learned.
    pub members: Vec<SocketAddr>,
    /// That of all servers and of nobody else; none: whoever reaches a server or a context is believed.
    pub key: Option<ClusterKey>,
}

/// A running directory server. Ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts it.
    ///
    /// # Errors
    /// If there is one of this name on this node already, or the address is not to be had.
    pub fn start(config: ServerConfig) -> io::Result<Self> {
        let event_loop = EventLoop::new(config)?;
        let address = event_loop.address;
        let (stop, bell) = (event_loop.stop.clone(), event_loop.bell.clone());
        let thread = threads::spawn("directory", move || event_loop.run())?;
        Ok(Self { address, stop, bell, thread: Some(thread) })
    }

    /// Where other servers reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.bell.write(1);
        if let Some(thread) = self.thread.take() {
            // It has panicked and said so, or it is done.
            let _ = thread.join();
        }
    }
}
