//! Owns the commands of Keeptime and the way of a run: asks the broker what is free, plans, holds what a
//! job needs, runs it and tells what came of it; never grants anything, and enforces nothing itself.
//!
//! * [`arguments`], [`commands`]: the command line;
//! * [`cluster`], [`hold`], [`execute`]: a cluster, a job's resources, one run; [`detach`]: one that outlives its terminal;
//! * [`allocation`]: the nodes of a job of Slurm's that a command is part of;
//! * [`reach`], [`job_command`]: from here to the nodes, and into a job there;
//! * [`rate`]: a run that is held at a part of its full speed;
//! * [`profiler`]: all runs that an application's curves need;
//! * [`demo`]: the whole main job; [`record`], [`report`], [`chart`], [`story`]: what people see of it; [`named`]: what scripts do;
//! * [`brokers`]: a lab's broker; [`web`]: its web servers; [`slurm`]: its batch system; [`place`], [`topology`]: which broker is meant, and what it has; [`import`]: what Slurm has; [`certificates`]: a small authority;
//! * [`requests`], [`times`], [`lasting`], [`gantt`], [`listing`]: between people's words and its own;
//! * [`live`]: what a terminal shows of runs while they go on; [`terminal`]: whether there is one that can;
//! * [`load`], [`traffic`]: traffic that loads links and is measured.
#![forbid(unsafe_code)]

pub mod agents;
pub mod allocation;
pub mod arguments;
pub mod brokers;
pub mod certificates;
pub mod chart;
pub mod cluster;
pub mod columns;
pub mod commands;
pub mod course;
pub mod demo;
pub mod detach;
pub mod execute;
pub mod files;
pub mod gantt;
pub mod hold;
pub mod import;
pub mod interrupt;
pub mod job_command;
pub mod lasting;
pub mod listing;
pub mod live;
pub mod load;
pub mod machine;
pub mod named;
pub mod pacing;
pub mod place;
pub mod profiler;
pub mod promised;
pub mod rate;
pub mod reach;
pub mod record;
pub mod report;
pub mod requests;
pub mod shades;
pub mod slurm;
pub mod story;
pub mod terminal;
pub mod times;
pub mod topology;
pub mod traffic;
pub mod waiting;
pub mod web;
