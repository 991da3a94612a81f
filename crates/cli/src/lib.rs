//! The commands of Keeptime, and the coordinator of a run: asks the agents what is free, plans, holds
//! what a job needs, runs it and tells what came of it.
//!
//! * [`arguments`], [`commands`]: the command line;
//! * [`cluster`], [`hold`], [`execute`]: a lab, a job's resources, one run;
//! * [`rate`]: a run that is held at a part of its full speed;
//! * [`profiler`]: all runs that an application's curves need;
//! * [`demo`]: the whole main job; [`record`], [`report`], [`chart`], [`story`]: what people see of it;
//! * [`brokers`]: a lab's broker; [`place`]: which broker is meant; [`certificates`]: a small authority;
//! * [`requests`], [`times`], [`gantt`]: between people's words and its own;
//! * [`load`], [`traffic`]: traffic that loads links and is measured.
#![forbid(unsafe_code)]

pub mod agents;
pub mod arguments;
pub mod brokers;
pub mod certificates;
pub mod chart;
pub mod cluster;
pub mod commands;
pub mod demo;
pub mod execute;
pub mod files;
pub mod gantt;
pub mod hold;
pub mod interrupt;
pub mod load;
pub mod machine;
pub mod pacing;
pub mod place;
pub mod profiler;
pub mod promised;
pub mod rate;
pub mod record;
pub mod report;
pub mod requests;
pub mod story;
pub mod times;
pub mod traffic;
