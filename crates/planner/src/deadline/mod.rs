//! Jobs with deadlines: when, on how many nodes, how fast (the time-sharing paper, section 6).
//!
//! * [`job`]: what is to be done, and by when;
//! * [`knees`]: what it takes on each number of nodes;
//! * [`beside`](mod@beside): one job beside reservations, each of which has one rate;
//! * [`booking`]: what such a job asks a broker for;
//! * [`course`]: whether it will be done in time, and what it asks for while it runs.
//!
//! Nodes are shared by rate: a job that runs at r of full speed uses r of what it uses at full speed on each of its nodes. Who
//! goes slower for others, for how long, and faster when there is room, is up to the broker, which knows all of them
//! (`keeptime_engine`). All of it is integer arithmetic, rounded such that no more is promised than can be had.
//!
//! ```
//! use keeptime_model::topology::NodeIndex;
//! use keeptime_model::units::{CpuPpm, Nanos, WallTime};
//! use keeptime_planner::deadline::{Cluster, Job, Reserved, beside};
//!
//! let cluster = Cluster::of(4, CpuPpm::from_percent(90));
//! let start = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
//! let hour = |hours: u64| start.saturating_add(Nanos::from_secs(3_600 * hours));
//!
//! // Three hours of work on all nodes, by 4 o'clock: at once, as fast as can be promised.
//! let job = Job::new(Nanos::from_secs(3 * 3_600), 4, hour(4));
//! let plan = beside(start, &cluster, &[], &job)?.unwrap();
//! assert_eq!((plan.nodes.len(), plan.at.from, plan.at.rate.to_string().as_str()), (4, start, "90 %"));
//!
//! // Beside somebody who has half of a node until 2 o'clock it cannot be done by then.
//! let (node, cpu) = (NodeIndex(0), CpuPpm::from_percent(45));
//! let reserved = Reserved { node, from: start, to: hour(2), cpu };
//! let refusal = beside(start, &cluster, &[reserved], &job)?.unwrap_err();
//! assert!(refusal.earliest().unwrap() > hour(5));
//! # Ok::<(), keeptime_model::Invalid>(())
//! ```

pub mod beside;
pub mod booking;
pub mod course;
pub mod job;
pub mod knees;

mod space;

pub use beside::{Cluster, Plan, Refusal, Reserved, Stretch, beside};
pub use booking::Booking;
pub use course::Course;
pub use job::Job;
pub use knees::Knees;
