//! Owns telling load balancers which nodes serve a site, and asking them what they do; never decides
//! which nodes should.
//!
//! * [`traffic`]: what a node gets of a site: nothing, no new requests, or its share;
//! * [`balancer`]: the trait that all balancers have in common, and what can go wrong;
//! * [`haproxy`], [`nginx`], [`apache`]: real, unmodified ones;
//! * [`front`]: all balancers of a site: told what is wanted, and told again when one forgets; [`asking`]: by whom each is asked;
//! * [`transfer`]: a node that leaves a site for another, without a lost request.
//!
//! Every pool node stands in the configuration of every balancer that may use it (for nginx: in the
//! file that is written here). The three differ in what they can tell:
//!
//! | | told by | in flight on a node | ends that | a restart |
//! |---|---|---|---|---|
//! | HAProxy | Runtime API, at once | counted | on demand | forgets: told again |
//! | nginx | a file and a reload | when the workers of before the reload are gone | no | reads the file |
//! | Apache | balancer-manager, at once | counted | no | forgets: told again |
//!
//! A node of which nobody knows how many requests it works on is not drained: a balancer that does not
//! answer holds a transfer up until it does, or until the caller gives up. One that answers, and has requests in flight
//! without an end, does so until the caller hurries the transfer.
#![forbid(unsafe_code)]

pub mod apache;
pub mod asking;
pub mod balancer;
pub mod front;
pub mod haproxy;
pub mod nginx;
pub mod traffic;
pub mod transfer;

mod answer;
mod command;
mod page;
mod proc;
mod tally;
