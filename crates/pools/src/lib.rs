//! Owns which node of a pool serves which web site; never does I/O, reads no clock.
//!
//! * [`pool`]: sites with their guarantees, kinds of node, and what a kind is worth to a site;
//! * [`load`]: what was seen of sites and nodes; silence counts as loaded;
//! * [`holdings`]: who serves what, what is on its way, and what is reserved to which plan;
//! * [`plan`]: moves in their order, and why;
//! * [`pools`]: the machine: loads and events in, moves out;
//! * [`policy`]: the one interface of all policies: [`rigid`](policy::Rigid), the three of the paper
//!   ([`reconf`]), and ours ([`keeptime`]).
//!
//! What must hold is in `tests/common/properties.rs`.
//!
//! The policies `rigid`, `reconf`, `reconf-p` and `reconf-pq` are those of sections 3 and 4 of Balaji
//! et al., "On the Provision of Prioritization and Soft QoS in Dynamically Reconfigurable Shared
//! Data-Centers over InfiniBand". What the paper leaves open is stated where it is decided.
//!
//! ```
//! use keeptime_model::topology::NodeIndex;
//! use keeptime_model::units::{Nanos, Share};
//! use keeptime_pools::load::{Loads, SiteLoad};
//! use keeptime_pools::policy::PolicyKind;
//! use keeptime_pools::pool::{Guarantee, KindIndex, Pool, Site, SiteIndex, Weight};
//! use keeptime_pools::pools::Pools;
//! use keeptime_pools::holdings::Place;
//!
//! let site = |name: &str, priority| -> Result<Site, keeptime_model::Invalid> {
//!     let guarantee = Guarantee { hard: 2, soft: 6, max: 7 };
//!     Ok(Site { name: name.parse()?, guarantee, priority, weights: vec![Weight::STANDARD] })
//! };
//! let kinds = vec!["server".parse()?];
//! let pool = Pool::new(kinds, vec![KindIndex(0); 8], vec![site("shop", 10)?, site("blog", 1)?])?;
//! let (shop, blog) = (SiteIndex(0), SiteIndex(1));
//!
//! // The blog has all but two nodes; then 700 requests arrive at the shop within 100 ms.
//! let places = (0..8).map(|node| Place::Serving(if node < 2 { shop } else { blog })).collect();
//! let mut pools = Pools::new(pool, places, PolicyKind::Keeptime.policy());
//! let mut loads = Loads::silent(2, 8, Nanos::from_millis(100));
//! loads.sites[0] = Some(SiteLoad { arrived: 700, completed: 20, queued: 680, in_flight: 2 });
//! loads.sites[1] = Some(SiteLoad { arrived: 4, completed: 4, queued: 0, in_flight: 0 });
//! loads.nodes.fill(Some(Share::ONE));
//! let moves = pools.decide(Nanos::from_secs(1), &loads);
//! assert_eq!(moves.len(), 4, "all that is beyond the blog's hard guarantee, in one step");
//! assert!(moves.iter().all(|m| m.from == Some(blog) && m.to == Some(shop)));
//! # Ok::<(), keeptime_model::Invalid>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod holdings;
pub mod keeptime;
pub mod load;
pub mod plan;
pub mod policy;
pub mod pool;
pub mod pools;
pub mod reconf;
