//! Jobs with deadlines: when, on how many nodes, how fast; deferred, slowed down and sped up so that all
//! make it (the time-sharing paper, section 6).
//!
//! * [`job`]: what is asked for: a deadline, a rate, or what is left;
//! * [`plan`](mod@plan): rates over time for all jobs together;
//! * [`admit`](mod@admit): whether one more job can be had, what could be instead, and who can be promised more later;
//! * [`beside`](mod@beside): one job beside reservations that nobody changes;
//! * [`booking`]: what such a job asks a broker for.
//!
//! Nodes are shared by rate: a job that runs at r of full speed uses r of what it uses at full speed
//! on each of its nodes, which feedback control makes true. A job's nodes are chosen when it starts and
//! stay; its rate changes as often as the plan says. All of it is integer arithmetic, rounded such that a
//! plan never promises more than can be had.
//!
//! ```
//! use keeptime_model::units::{CpuPpm, Nanos, WallTime};
//! use keeptime_planner::deadline::{Cluster, Job, Plan, Verdict, Wants, admit};
//!
//! let cluster = Cluster::of(4, CpuPpm::from_percent(90));
//! let start = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
//! let hours = |hours: u64| start.saturating_add(Nanos::from_secs(3_600 * hours));
//! let job = |name: &str, work: u64, by: u64| Job {
//!     wants: Wants::By(hours(by)),
//!     ..Job::new(name.parse().unwrap(), Nanos::from_secs(3_600 * work), 4)
//! };
//!
//! // A long job that would finish early runs slower for one that is urgent.
//! let long = job("long", 4, 8);
//! let none = Plan::default();
//! let Verdict::Admitted(alone) = admit(start, &cluster, &[], &none, &long) else { panic!() };
//! assert_eq!(alone.of("long").unwrap().rate_at(start).to_string(), "90 %");
//! let urgent = job("urgent", 2, 3);
//! let running = [long];
//! let verdict = admit(start, &cluster, &running, &alone, &urgent);
//! let Verdict::Admitted(both) = verdict else { panic!() };
//! assert!(both.of("long").unwrap().rate_at(start) < both.of("urgent").unwrap().rate_at(start));
//! assert!(both.of("long").unwrap().ends.unwrap() <= hours(8));
//!
//! // What cannot be done is refused with what could be.
//! let verdict = admit(start, &cluster, &running, &alone, &job("huge", 9, 8));
//! let Verdict::Refused(refusal) = verdict else { panic!() };
//! assert!(refusal.earliest.unwrap() > hours(8));
//! ```

pub mod admit;
pub mod beside;
pub mod booking;
pub mod job;
pub mod plan;

mod kept;
mod space;

pub use admit::{Promotion, Refusal, Verdict, admit, plan_with, promote};
pub use beside::{Reserved, beside};
pub use booking::Booking;
pub use job::{Job, Wants};
pub use plan::{Cluster, JobPlan, Plan, Stretch, plan, replan};
