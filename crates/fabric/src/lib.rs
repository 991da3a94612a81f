//! Owns how the parts of a program, wherever they run, name each other and exchange messages over
//! the networks between them; never knows what the messages mean.
//!
//! After RoCL (`Evaluating Applications Performance in a Multi-networked Cluster`): a *resource* is
//! a set of attributes with an identifier; a *directory*, one server a node, finds resources by
//! their attributes; *messages* go from resource to resource, whatever threads and processes these
//! live in.
//!
//! ```
//! use keeptime_fabric::directory::{Server, ServerConfig};
//! use keeptime_fabric::{Config, Context, Match, Tag, attrs};
//! # let name = format!("doc-{}", std::process::id());
//!
//! // Usually the daemon `keeptime-fabricd` runs on each node.
//! let (node, address) = ("n1".into(), "127.0.0.1:0".parse()?);
//! let server = ServerConfig { name: name.clone(), node, address, members: vec![], key: None };
//! let _server = Server::start(server)?;
//!
//! let mut config = Config::default();
//! config.directory = name;
//! let (here, there) = (Context::open(config.clone())?, Context::open(config)?);
//!
//! let table = there.register(attrs! { "name" => "dhash", "type" => "partition" })?;
//! let client = here.register(attrs! { "name" => "client" })?;
//! let peer = here.find(attrs! { "name" => "dhash" }).one_of_any()?;
//! client.send(peer, Tag(7), b"which partition has 4711?")?;
//!
//! let question = table.recv(Match::tag(7))?;
//! assert_eq!((question.from, question.data.len()), (client.id(), 25));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a message
//!
//! ```text
//!  Resource::send                                                Resource::recv
//!       │ same context: the buffer moves ──────────────────────────> Inbox
//!       ▼                                                              ▲
//!  Link: window and record (flow) ─ frame ─> Transport ─> bytes ─> Transport: poll ─> Link: deliver
//!                                            shared memory, TCP, UDP, rails of these
//! ```
//!
//! There is no lock that all messages take: a send locks the sending half of the link to one
//! context, a delivery the receiving half and one inbox. Threads that wait do the work
//! (`progress`): no thread stands between a sender and a receiver unless
//! [`Config::progress_thread`] asks for one.
//!
//! | module | owns |
//! |---|---|
//! | [`frame`] | frames as bytes (pure) |
//! | [`matching`] | which message a receiver gets (pure) |
//! | [`flow`] | windows, confirmations, and what is told when a link breaks (pure) |
//! | [`pacing`] | whose turn it is among flows with reserved rates (pure; after section 2.1 of Senapathi's thesis) |
//! | `ring` | the decisions of a ring in shared memory (pure; checked with loom) |
//! | [`directory::state`], [`directory::records`] | the directory as a state machine (pure) |
//! | `carriers` | over what a context can be called, and what its callers take (pure) |
//! | [`door`], [`directory::seal`] | who may call whom, and how servers know each other (pure) |
//! | `transport` | the narrow trait; shared memory, TCP, UDP |
//! | `transport::rails` | one stream of frames over several connections (its decisions are pure) |
//! | [`bridge`] | ways over other nodes (pure), and what a daemon carries for others |
//! | `transport::reliable` | a stream over datagrams that are lost and overtake each other (pure) |
//! | `junction` | which links and streams a context has, and what becomes of them: for `core` and for its simulation |
//! | `link`, `links`, `listen`, `inbox`, `turns`, `flusher`, `streams`, `keeper`, `core` | one context (what threads see of an inbox and of the flusher without a lock: checked with loom) |
//! | `ending` | what is carried when a program ends without closing its contexts |
//! | `progress` | how threads wait, and who looks for messages (who leads and who wakes whom: pure; checked with loom) |
//! | `sockets` | who calls, and what is handed over |
//! | `threads` | how the fabric's own threads are started |
//! | [`directory::server`], [`directory::client`] | the shells of the directory |
//! | [`region`] | what is read without its publisher's taking part |
//! | [`node_load`] | how busy a node is, as its daemon publishes it |
//! | [`echo`] | what a node's daemon answers to whoever measures |
//!
//! # What holds
//!
//! - **Order.** Messages from one resource to another arrive in the order in which they were sent, and each at most once,
//!   whatever its sender was told. Before the first message on a connection the other end is told its number, which counts
//!   up: what has arrived by those with lower numbers is taken first, and nothing after it, whoever had made them and
//!   however late they are taken. A call that is taken after a later one of the same context, which has given it up,
//!   is closed, and ends nothing. If both ends have called each other at once, none goes on sending by the other's
//!   connection when it has lost its own.
//! - **Delivery or an error.** A message is in its receiver's inbox, or its sender is told: by
//!   `send`, or by a later `recv` of the same resource ([`RecvError::Undelivered`]). When a
//!   connection breaks, what was not confirmed counts as undelivered, although it may have arrived, or do so late: before
//!   what its context sends to that one from then on, or never ([`Reason::Unconfirmed`]). Sent again, it may be received
//!   twice, in its order.
//!   What has arrived and was not taken when its receiver goes is told as well, unless the
//!   connection breaks first. Who waits for messages of one sender is told when that one's context is gone, after what
//!   came of it ([`RecvError::Gone`]). What is not carried when a context goes is told by [`Context::close`], and by nothing
//!   else.
//! - **Bounds.** A receiver holds at most a window ([`flow::WINDOW`], [`flow::WINDOW_CARRIED`]) for each context
//!   that sends to it, and of longer ones that it has not asked for yet
//!   [`flow::AHEAD_MOST`]. A receive asks for the first that it wants, one at a time, whether or not it waits for its end.
//!   Of those whose connections are no more, however often they were made anew, it holds
//!   [`flow::GONE_MOST`], and a window more for each that ends then; others are refused meanwhile
//!   ([`Reason::NoRoom`]). A link has a bounded backlog, and so has what is
//!   given within a context ([`flow::PARKED_MOST`]). Who sends more waits, and holds up nobody else.
//! - **Streams are gathered.** From the fifth message in a row on, short ones to other nodes are carried
//!   together, as soon as 64 KiB (over UDP 256) are there, a thread of the context waits for anything, or about
//!   0.4 ms have passed.
//! - **Names are not used twice.** A context draws 64 random bits; a slot counts generations. An old
//!   identifier gives an error, never another receiver.
//! - **The directory is right.** When `register` has returned, every find that begins after it, on
//!   every node that can be reached, answers with the resource; what programs have kept is kept
//!   right by their nodes' servers.
//!   Nodes that are silent for [`directory::state::SILENCE_MOST`] are forgotten until they speak.
//!
//! # Several networks
//!
//! Two nodes that share several networks use all of them: long messages are spread by what each
//! network brings, short ones go where they arrive first, and a network that goes down takes nothing
//! with it. Two that share none are connected over bridges, daemons of nodes on several networks, by
//! up to [`bridge::routes::ROUTES_MOST`] ways at once: those on which a call is answered soonest, or as long as
//! nothing answers those over few bridges. They lead over different bridges; those who send much use other networks
//! that lead to the same ones as well, as far as there is room. A network that both share goes before bridges unless a call
//! over it takes more than four times as long, and 2 ms at least. Order and delivery hold from end to end: what
//! is sent is kept until the other context has it, goes again by another way when one is lost, and
//! arrives once. When there has been no way for ten seconds, the link is broken, and its senders are
//! told; a connection that the other end closes before anything has come by it was none. A context has a bounded number of
//! connections beside the first of each link, on the whole and on each; beyond that links have fewer, and no error.
//!
//! # Who is let in
//!
//! A context takes messages of programs of its own user and of root, of whatever node, or of everybody's
//! ([`Config::callers`]). The kernel tells each daemon who its programs are, and
//! these that it is root's or their own user's; with the cluster's key
//! ([`ClusterKey`]) daemons tell each other, and contexts, what cannot be made up. Memory is shared between
//! processes of one user alone, and by root's with those of others that they call; regions are read by whoever finds them.
//! Daemons without a key believe everybody who reaches their port, and so do the contexts of their nodes.
//!
//! # Limits of this version
//!
//! Two nodes with one network in common use that alone, over one connection, unless it is slow beside bridges when they
//! are connected: what becomes of it later, and how much it carries, change nothing. A way over bridges that has a
//! connection keeps it until that ends, though others become quicker. A bridge that hangs
//! without ending is only found out if there is another way beside it. Networks are those that the
//! node had when the context was opened, and two networks of one address and prefix are one.
//! Messages between nodes can be read and changed by whoever rules the network between them, as MPI's can;
//! directories' can only be read. Bridges are those of root's daemons and of the own user's. They carry for whoever
//! calls them, though only to nodes that the directory knows, for at most [`bridge::RELAYED_MOST`] connections. A
//! directory server is known to the others by the one address from which it calls them first: on nodes with several
//! networks its `--member` should be an address on one that all share, unless there are bridges.

pub mod attributes;
pub mod bridge;
pub mod directory;
pub mod door;
pub mod echo;
pub mod flow;
pub mod frame;
pub mod id;
pub mod matching;
pub mod networks;
pub mod node_load;
pub mod pacing;
pub mod payload;
pub mod real_time;
pub mod region;

mod carriers;
mod config;
mod context;
mod core;
mod descriptors;
mod ending;
mod error;
mod flusher;
mod inbox;
mod junction;
mod keeper;
mod link;
mod links;
mod listen;
mod looking;
mod mapping;
mod progress;
mod ring;
#[cfg(test)]
mod simulation;
mod sockets;
mod streams;
mod threads;
mod transport;
mod turns;

pub use attributes::Attributes;
pub use carriers::Carriers;
pub use config::{
    Config, DAEMON_VARIABLE, NETWORKS_VARIABLE, Protocol, WAIT_VARIABLE, daemon_name,
    parse_networks,
};
pub use context::{Context, Message, Resource, Search, Watcher};
pub use directory::client::Event;
pub use directory::protocol::{ContextInfo, Record};
pub use door::{Callers, ClusterKey};
pub use error::{FindError, OpenError, RecvError, RegisterError, SendError};
pub use flow::Unsent;
pub use frame::Reason;
pub use id::{ContextId, ResourceId};
pub use inbox::Undelivered;
pub use keeptime_model::Invalid;
pub use keeptime_model::units::BitsPerSecond;
pub use matching::{Match, Tag};
pub use payload::{Buffer, Payload};
pub use progress::Wait;
pub use transport::Broken;

/// The guide's programs are compiled with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fabric.md")]
struct Guide;

/// 64 bits that nobody can foresee.
fn random() -> std::io::Result<u64> {
    random_bytes().map(u64::from_le_bytes)
}

/// Bytes that nobody can foresee.
fn random_bytes<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    use std::io::Read;
    let mut bytes = [0; BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
