//! Owns a real cluster on one machine: nodes that are sets of namespaces, switches, links with a
//! rate, and a share of the CPU for each node: the hardware that is not there. It never reserves
//! or protects anything: that is the agents' work, in the lab as on a real cluster.
//!
//! * [`Spec`]: what to build (pure, checked);
//! * [`Labs`]: the labs of this machine, by name: up, open, list, down;
//! * [`Lab`]: one of them: status, and programs started on its nodes;
//! * [`holder_main`]: the one process that a lab hangs from. When it ends, by whatever, the kernel
//!   ends everything else of the lab; [`Labs::down`] removes what is then left: groups and files. It
//!   removes the lab itself when somebody has taken its files away.
//! * [`isolation`]: does the speed of a node depend on what the others do?
//!
//! Without root all of it works but the share of the CPU; [`Status::not_enforced`] says so.
//!
//! ```no_run
//! use keeptime_lab::{Exec, Labs, Spec};
//! use keeptime_model::units::{BitsPerSecond, CpuPpm};
//! let labs = Labs::of_this_user();
//! let (rate, cpu) = (BitsPerSecond::from_mbit(100), CpuPpm::from_percent(40));
//! let spec = Spec::star("demo".parse().unwrap(), 4, rate, cpu).unwrap();
//! let lab = labs.up(&spec).unwrap();
//! let ended = lab.exec(Exec::new("n1", ["ping", "-c1", "n2"])).unwrap();
//! assert!(ended.success());
//! labs.down(lab.name()).unwrap();
//! ```
#![forbid(unsafe_code)]

mod error;
mod exec;
mod files;
mod hardware;
mod holder;
pub mod isolation;
mod labs;
mod node;
mod sight;
mod spec;
mod status;

pub use error::LabError;
pub use exec::{Account, Exec, Words};
pub use hardware::NODE_SHAPER_MAJOR;
pub use holder::holder_main;
pub use keeptime_linux::police::{Policed, Policer};
pub use labs::{FRONT_END, Lab, Labs, Report, exit_code};
pub use sight::Sight;
pub use spec::{CPU_RESERVE, NODES_MAX, Spec};
pub use status::{LabState, NodeStatus, Status};
