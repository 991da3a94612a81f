//! Owns the decision which resources keep a goal; never measures, reserves or enforces anything.
//!
//! * [`prediction`]: from the runs of a curve to its times: the model where it fits, else medians;
//! * [`promise`]: from an expected time to one that a share of the runs keeps;
//! * [`curve`]: a fitted curve, its knee, interpolation and promised times;
//! * [`drift`]: how computing has changed since, by what the last runs took;
//! * [`fitted`]: all curves of an application, ready to be planned with;
//! * [`tree`]: a topology prepared for counting flows on links;
//! * [`availability`]: what is free now;
//! * [`placement`]: which nodes hold a communication pattern at the greatest rate;
//! * [`translate`]: from a goal to a plan or a refusal (thesis, chapter 3);
//! * [`instead`]: what other preferences than the fastest would come to;
//! * [`explanation`]: the way from all curves to the chosen point (thesis, Figures 3.4 to 3.9);
//! * [`outline`]: the same in short, as it is recorded;
//! * [`refusal`]: why not, and what would be admitted instead;
//! * [`refine`]: which run the profiler makes next;
//! * [`scaling`]: one model for all numbers of nodes, as a guess;
//! * [`guided`]: which run comes next where other numbers of nodes say what to expect;
//! * [`deadline`]: when, on how many nodes and how fast jobs with deadlines run.
//!
//! "Thesis" is the work that Keeptime's translator and allocator follow: a QoS-aware middleware
//! for clusters on Myrinet, chapter 3.
//!
//! ```
//! use keeptime_model::{application::Application, goal::Goal, profile::*, topology::Topology};
//! use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
//! use keeptime_planner::{availability::Availability, fitted::FittedProfile};
//! use keeptime_planner::translate::{Options, Verdict, schedule};
//! use keeptime_planner::tree::PlacementIndex;
//!
//! let application = Application::from_toml(r#"
//!     name = "ray"
//!     command = ["ray"]
//!     pattern = "pairs"
//!     nodes = [2]
//!     cpu = "20 %"
//!     timeout = "60 s"
//!     time = "wall"
//! "#)?;
//! let conditions = Conditions {
//!     link_bits_per_second: BitsPerSecond::from_mbit(200),
//!     process_cpu_ppm: CpuPpm::from_percent(20),
//!     processor: "any".into(),
//!     mpi: "any".into(),
//!     command: vec!["ray".into()],
//!     program: None,
//! };
//! let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
//! for (mbit, millis) in [(10, 2_000), (100, 1_000)] {
//!     let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
//!     profile.record(&Default::default(), 2, rate, time);
//! }
//! let profile = FittedProfile::new(application, &profile)?;
//!
//! let topology = Topology::from_toml(r#"
//!     name = "two"
//!     nodes = [{ name = "n1", cpu = "40 %" }, { name = "n2", cpu = "40 %" }]
//!     links = [{ between = ["n1", "n2"], rate = "50 Mbit/s" }]
//! "#)?;
//! let index = PlacementIndex::new(topology);
//! let free = Availability::full(index.topology(), |rate| rate);
//! let goal = Goal { within: Some(Nanos::from_millis(1_200)), ..Goal::default() };
//! let decision = schedule(&goal, &profile, &index, &free, &Options::default());
//! let Verdict::Planned(plan) = decision.verdict else { panic!() };
//! assert_eq!(plan.bandwidth_bits_per_second, BitsPerSecond::from_mbit(50));
//! assert_eq!(plan.time_nanos, Nanos::new(1_111_112_000));
//! # Ok::<(), keeptime_model::Invalid>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod availability;
pub mod curve;
pub mod deadline;
pub mod drift;
pub mod explanation;
pub mod fitted;
pub mod guided;
pub mod instead;
mod nnls;
pub mod outline;
mod phases;
pub mod placement;
pub mod prediction;
pub mod price;
pub mod promise;
pub mod refine;
pub mod refusal;
mod robust;
pub mod scaling;
pub mod translate;
pub mod tree;

#[cfg(test)]
mod testing;
