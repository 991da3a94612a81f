//! Nodes and contexts for tests. Contexts of one process are as far apart as those of two.

#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_fabric::directory::{Server, ServerConfig};
use keeptime_fabric::{
    Callers, Carriers, ClusterKey, Config, Context, ContextId, ContextInfo, Protocol, Wait, frame,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for anything on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

/// How contexts of a test are connected, and how they wait.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    Memory(Wait),
    Tcp(Wait),
    Udp(Wait),
    Libfabric(Wait),
    Ucx(Wait),
}

pub const WAYS: &[Way] = &[
    Way::Memory(Wait::Block),
    Way::Memory(Wait::Spin),
    Way::Memory(Wait::SpinFor(Duration::from_micros(20))),
    Way::Tcp(Wait::Block),
    Way::Tcp(Wait::Spin),
    Way::Udp(Wait::Block),
    Way::Udp(Wait::SpinFor(Duration::from_micros(20))),
    #[cfg(feature = "libfabric")]
    Way::Libfabric(Wait::Block),
    #[cfg(feature = "libfabric")]
    Way::Libfabric(Wait::SpinFor(Duration::from_micros(20))),
    #[cfg(feature = "ucx")]
    Way::Ucx(Wait::Block),
    #[cfg(feature = "ucx")]
    Way::Ucx(Wait::SpinFor(Duration::from_micros(20))),
];

/// The key that a text makes.
pub fn key(text: &str) -> ClusterKey {
    ClusterKey::from_text(text).unwrap()
}

/// What a program tells a directory of a context that is none of this library's.
pub fn told(id: ContextId, addresses: Vec<SocketAddr>, carriers: Carriers) -> ContextInfo {
    let (node, owner, callers, speaks) = (String::new(), 0, Callers::SameUser, frame::VERSION);
    ContextInfo { id, node, owner, callers, addresses, carriers, speaks }
}

/// What `look` gives, as soon as it gives something.
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LONG, "not within {LONG:?}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// A directory server under a name of its own.
pub struct Node {
    pub server: Server,
    pub config: ServerConfig,
}

impl Node {
    pub fn start(node: &str, members: &[SocketAddr]) -> Self {
        Self::with_key(node, members, Some(key("the key of all nodes of all tests")))
    }

    pub fn with_key(node: &str, members: &[SocketAddr], key: Option<ClusterKey>) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Relaxed);
        let config = ServerConfig {
            name: format!("test-{}-{number}", std::process::id()),
            node: node.into(),
            address: ([127, 0, 0, 1], 0).into(),
            members: members.to_vec(),
            key,
        };
        Self { server: Server::start(config.clone()).unwrap(), config }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn context(&self, way: Way) -> Context {
        Context::open(self.settings(way)).unwrap()
    }

    pub fn settings(&self, way: Way) -> Config {
        let mut config = Config::default();
        config.directory.clone_from(&self.config.name);
        config.shared_memory = matches!(way, Way::Memory(_));
        (config.between_nodes, config.wait) = match way {
            Way::Memory(wait) | Way::Tcp(wait) => (Protocol::Tcp, wait),
            Way::Udp(wait) => (Protocol::Udp, wait),
            Way::Libfabric(wait) => (Protocol::Libfabric, wait),
            Way::Ucx(wait) => (Protocol::Ucx, wait),
        };
        config
    }
}
