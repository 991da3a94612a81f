//! Owns the broker's outside: its clock, its thread, its ledger and its sockets; never decides what
//! is granted.
//!
//! * [`outbox`]: what waits for which record (pure);
//! * [`records`]: events as records, and the state that they add up to.
#![forbid(unsafe_code)]

pub mod outbox;
pub mod records;
