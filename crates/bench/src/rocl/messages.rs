//! Figures 5 to 9: what messages take within a node, over each network, over a bridge, and over two
//! networks at once. One end is pinned to each core; whoever waits sleeps.

use super::testbed::{Network, Node, Testbed};
use crate::fabric::pin;
use crate::quick;
use anyhow::{Context as _, Result, bail};
use keeptime_fabric::{Config, Context, Match, Protocol, Resource, ResourceId, Tag, Wait, attrs};
use keeptime_linux::testing::rig::Space;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Is sent back with tag 0.
const QUESTION: Tag = Tag(1);
/// Is dropped.
const STREAM: Tag = Tag(2);
/// Is answered when everything before was received.
const FINISH: Tag = Tag(3);
/// Ends the one who answers.
const LAST: Tag = Tag(4);

/// Bytes of a message and what was measured.
pub type Point = (f64, f64);

/// How two contexts reach each other.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// The network on which the near and the far one are reached; nothing: all that there are.
    pub networks: [Option<Network>; 2],
    pub protocol: Protocol,
    pub shared_memory: bool,
}

impl Way {
    /// Over one network.
    pub const fn over(network: Network, protocol: Protocol) -> Self {
        Self { networks: [Some(network); 2], protocol, shared_memory: true }
    }

    /// Over all networks that both have.
    pub const ALL: Self =
        Self { networks: [None; 2], protocol: Protocol::Tcp, shared_memory: true };
}

/// Resources of two contexts, in pairs.
pub struct Pairs {
    /// Connections are made by whoever sends first, so all of that is done on the near node.
    near: Arc<Space>,
    asking: Arc<Vec<(Resource, ResourceId)>>,
    answering: Vec<JoinHandle<()>>,
    _contexts: [Context; 2],
}

impl Pairs {
    pub fn new(near: &Node, far: &Node, way: Way, count: usize) -> Result<Self> {
        let contexts = [open(near, way, 0)?, open(far, way, 1)?];
        let (mut asking, mut answering) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let there = contexts[1].register(attrs! { "role" => "answers" })?;
            let to = there.id();
            // A thread made by the node's thread is on its core and in its network.
            answering.push(far.run(move || Ok(thread::spawn(move || answer(&there))))?);
            asking.push((contexts[0].register(attrs! { "role" => "asks" })?, to));
        }
        let (near, asking) = (near.space(), Arc::new(asking));
        Ok(Self { near, asking, answering, _contexts: contexts })
    }

    /// Microseconds of a round trip, while all pairs have some.
    pub fn round_trip(&self, bytes: usize) -> Result<f64> {
        let (asking, count) = (self.asking.clone(), trips(bytes));
        self.near.run(move || {
            all(&asking, bytes, count / 10 + 1)?;
            let start = Instant::now();
            all(&asking, bytes, count)?;
            Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
        })
    }

    /// Mbit/s of messages in one direction.
    pub fn stream(&self, bytes: usize) -> Result<f64> {
        let total = if quick() { 32 << 20 } else { 256 << 20 };
        let (asking, count) = (self.asking.clone(), (total / bytes).clamp(1, 20_000));
        self.near.run(move || {
            let pair = asking.first().context("a pair")?;
            // Until it is known what each network brings.
            stream(pair, bytes, count / 2 + 1)?;
            let start = Instant::now();
            stream(pair, bytes, count)?;
            Ok((bytes * count) as f64 * 8e-6 / start.elapsed().as_secs_f64())
        })
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        let asking = self.asking.clone();
        let told =
            self.near.run(move || asking.iter().all(|(own, to)| own.send(*to, LAST, b"").is_ok()));
        if told {
            // They have ended.
            self.answering.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

/// All pairs at the same time.
fn all(asking: &[(Resource, ResourceId)], bytes: usize, count: usize) -> Result<()> {
    let data = &vec![7; bytes];
    thread::scope(|scope| {
        let ask = |pair| scope.spawn(move || round_trips(pair, data, count));
        let threads: Vec<_> = asking.iter().map(ask).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread has panicked"),
        })
    })
}

fn stream((own, to): &(Resource, ResourceId), bytes: usize, count: usize) -> Result<()> {
    for _ in 0..count {
        own.send(*to, STREAM, vec![7; bytes])?;
    }
    own.send(*to, FINISH, b"")?;
    own.recv(Match::any())?;
    Ok(())
}

fn round_trips(pair: &(Resource, ResourceId), data: &[u8], count: usize) -> Result<()> {
    let (own, to) = pair;
    for _ in 0..count {
        own.send(*to, QUESTION, data)?;
        let answer = own.recv(Match::any())?;
        anyhow::ensure!(answer.data.len() == data.len(), "another answer");
    }
    Ok(())
}

fn answer(resource: &Resource) {
    loop {
        // Ends with an error when the one who asks has ended.
        let Ok(message) = resource.recv(Match::any()) else { return };
        let sent = match message.tag {
            QUESTION => resource.send(message.from, Tag(0), message.data),
            FINISH => resource.send(message.from, Tag(0), b""),
            LAST => return,
            _ => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn open(node: &Node, way: Way, end: usize) -> Result<Context> {
    let mut config = Config::default();
    let address = match way.networks[end] {
        Some(network) => node.address(network)?,
        None => Ipv4Addr::UNSPECIFIED,
    };
    config.listen = SocketAddr::from((address, 0));
    config.between_nodes = way.protocol;
    config.progress_thread = way.protocol == Protocol::Udp;
    config.shared_memory = way.shared_memory;
    config.wait = Wait::Block;
    node.run(move || {
        pin(end)?;
        Ok(Context::open(config)?)
    })
}

fn trips(bytes: usize) -> usize {
    let count = (32 << 20) / (bytes + 16_000);
    if quick() { count / 40 } else { count }
}

/// Microseconds of round trips between two resources of one context.
pub fn within(node: &Node, bytes: usize, is_given: bool) -> Result<f64> {
    let context = open(node, Way::ALL, 0)?;
    let (own, other) = (context.register(attrs! {})?, context.register(attrs! {})?);
    let (to, count) = (other.id(), trips(bytes));
    let answering = node.run(move || Ok(thread::spawn(move || answer(&other))))?;
    let data = vec![7; bytes];
    let trips = |count| -> Result<()> {
        let mut buffer = data.clone();
        for _ in 0..count {
            if is_given {
                own.send(to, QUESTION, buffer)?;
                buffer = own.recv(Match::any())?.data.into_vec();
            } else {
                own.send(to, QUESTION, &data)?;
                own.recv(Match::any())?;
            }
        }
        Ok(())
    };
    trips(count / 10 + 1)?;
    let start = Instant::now();
    trips(count)?;
    let time = start.elapsed().as_secs_f64() * 1e6 / count as f64;
    own.send(to, LAST, b"")?;
    // It has ended.
    let _ = answering.join();
    Ok(time)
}

/// `measure` for each size.
pub fn by_size(
    sizes: &[usize],
    mut measure: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<Point>> {
    sizes.iter().map(|size| Ok((*size as f64, measure(*size)?))).collect()
}

/// Two nodes by name, of a testbed.
pub fn two<'a>(testbed: &'a Testbed, near: &str, far: &str) -> Result<(&'a Node, &'a Node)> {
    Ok((testbed.node(near)?, testbed.node(far)?))
}
