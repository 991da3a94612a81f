//! Owns a distributed hash table on the fabric, the case study of the RoCL paper; never how its
//! messages travel.
//!
//! Servers join at any time: each asks the owner of a random hash index for a part of its partition,
//! half if it can be, until it has as many as it wants. Requests go to any partition, which passes them
//! on: to who has that part beside it, and from there down to whom that was given. Answers come from the
//! last one, straight.
//!
//! # What holds
//!
//! - A store that was answered is found by every query that begins afterwards, through any partition,
//!   while servers join and leave.
//! - Nodes whose directories do not know each other yet (or, for seconds, any more) have a table each.
//!   When they meet these become one, and everybody is answered; what was stored while there were
//!   several may be found in one of them alone until then, and the newest of it may not be the one that
//!   is found afterwards.
//! - A server that leaves (SIGTERM) hands its partitions over to others before it ends.
//! - What a server had that is *killed* is lost, and that is told: a query there is answered by
//!   [`Outcome::Lost`](message::Outcome::Lost), never by an older value and never by "not found" for what
//!   was stored. Its part of the hash space goes to others at once; what is stored there afterwards is
//!   found. Keys that were never stored there are answered the same way, since nobody knows.
//! - Of two stores of one key the one with the later time is kept, by the clocks of who stores; a client
//!   whose clock is behind moves it forward. A store that had to be asked again may take effect twice: where a
//!   newer one was lost with a killed server, a late copy of an older one may stand.
//!
//! Two servers may be told different things while the directory's nodes cannot reach each other; what
//! was stored meanwhile is put together when they can.
//!
//! | module | owns |
//! |---|---|
//! | [`extent`] | parts of the hash space (pure) |
//! | [`chart`] | who has which part, as the directory tells it (pure) |
//! | [`message`] | what is said |
//! | [`partition`] | a partition (pure) |
//! | [`host`] | what a server does besides its partitions (pure) |
//! | [`survey`] | the chart of now |
//! | [`misses`] | looking for receivers that are known, as a cache that misses would |
//! | [`server`], [`client`] | the shells |

#![forbid(unsafe_code)]

pub mod chart;
pub mod client;
pub mod extent;
pub mod host;
pub mod message;
pub mod misses;
pub mod partition;
pub mod server;
pub mod survey;
