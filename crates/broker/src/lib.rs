//! Owns the broker's outside: its clock, its thread, its ledger and its sockets; never decides what
//! is granted.
//!
//! * [`core`]: one thread owns the engine: inputs in, records to the ledger, and answers out when their
//!   records are durable;
//! * [`outbox`]: what waits for which record (pure);
//! * [`records`]: events as records, and the state that they add up to;
//! * [`feed`]: what is durable, for whoever watches;
//! * [`agents`]: the connections of the agents;
//! * [`programs`]: what MPI programs ask for: a desk for each job;
//! * [`sites`]: the loop that steers web sites; [`loads`]: how busy nodes are, as they publish
//!   ([`node_loads`]) or their agents say;
//! * [`door`]: who is at the other end of a connection; [`rates`]: how often they may ask;
//! * [`tcp`]: the door over the network: TLS, certificates and tokens;
//! * [`http`]: the interface; [`wire`]: its JSON; [`words`]: the same for people; [`metrics`];
//! * [`client`]: the other end; [`remote`]: where it finds the broker;
//! * [`config`], [`server`]: the daemon; `names`: who has a user number; `impatient`: who does not read is let go;
//!   `misread`: who is not understood is told of; `vital`: tasks whose end is that of it.
#![forbid(unsafe_code)]

pub mod agents;
pub mod client;
pub mod config;
pub mod core;
pub mod door;
pub mod feed;
pub mod http;
mod impatient;
pub mod loads;
pub mod metrics;
mod misread;
mod names;
pub mod node_loads;
pub mod outbox;
pub mod programs;
pub mod rates;
pub mod records;
pub mod remote;
pub mod server;
pub mod sites;
pub mod tcp;
mod vital;
pub mod wire;
pub mod words;
