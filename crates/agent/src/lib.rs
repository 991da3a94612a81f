//! Owns making one node enforce what it was assigned, and telling what it measures; never decides
//! which job gets what.
//!
//! * [`book`]: the assignments of the node and whether one more fits (pure);
//! * [`agent`]: a request or the passing of time in, kernel state and an answer out;
//! * [`shares`]: what keeps a job's share, and what every group of the node is limited to (pure);
//! * `carried`: which processes of a job can carry deadlines no longer (pure);
//! * [`turnover`]: whether deadlines serve a job whose processes come and go (pure);
//! * [`enforcer`]: what an agent asks of the kernel, and is told of what that did not do;
//! * [`enforce`]: how it is done, by `keeptime-linux`;
//! * [`store`]: the record that a restarted agent starts from;
//! * [`clock`]: what time it is, where the node's clock may step;
//! * [`check`]: whether a configuration can work on this node, before an agent starts;
//! * [`claim`]: that one agent serves a node;
//! * [`server`], [`client`], [`wire`]: the Unix socket, both ends, and what is said on it; [`seats`]: how many connections
//!   each of those has who come;
//! * [`lines`]: lines of a bounded length, as all of these say them;
//! * [`link`]: the connection to the broker; [`dial`]: where that is, and how it is reached;
//! * [`programs`]: what MPI programs ask for, on its way there and back; `pace`: how much of it at a time (pure).
#![forbid(unsafe_code)]

pub mod agent;
pub mod book;
mod carried;
pub mod check;
pub mod claim;
pub mod client;
pub mod clock;
pub mod config;
pub mod dial;
pub mod enforce;
pub mod enforcer;
pub mod lines;
pub mod link;
mod pace;
pub mod programs;
mod room;
pub mod seats;
pub mod server;
pub mod shares;
pub mod store;
pub mod turnover;
pub mod wire;
