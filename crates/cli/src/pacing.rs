//! A run that takes the time that was promised for it: what it does not need of its CPU is lent to others
//! while it runs. Decisions are [`keeptime_control::pace`]'s; here are its lines and its nodes.

use crate::cluster::Cluster;
use crate::hold::Hold;
use crate::promised::Promised;
use crate::reach::KeptAgents;
use anyhow::{Context, Result};
use keeptime_agent::client::ClientError;
use keeptime_control::Pace;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, TimeSource};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::{CpuPpm, Nanos};
use keeptime_planner::fitted::FittedProfile;
use std::time::Instant;

/// Paces one run by the lines that it prints.
#[derive(Debug)]
pub struct Paced {
    pace: Pace,
    /// How lines begin that tell of one unit of work.
    word: String,
    /// When the last such line came.
    last: Option<Instant>,
    job: Name,
    /// What they are told holds as long as the connection to each of them.
    agents: KeptAgents,
}

impl Paced {
    /// For what runs under `hold` as promised.
    ///
    /// # Errors
    /// If the application tells no progress, or nothing is known of how its time depends on CPU.
    pub fn new(
        cluster: &Cluster,
        application: &Application,
        fitted: &FittedProfile,
        promised: &Promised,
        hold: &Hold,
    ) -> Result<Self> {
        let word = word_of_units(application)?;
        let Promised { parameters, nodes, bandwidth, time } = promised;
        let count = nodes.len() as u32;
        let observed = fitted.observe(parameters, count, *bandwidth, Nanos::default());
        let observed = observed.context("a plan of other curves")?;
        let fixed = observed.measured_nanos.saturating_sub(observed.computing_nanos);
        Ok(Self {
            pace: Pace::new(*time, fixed, application.cpu())?,
            word: word.to_owned(),
            last: None,
            job: hold.job(),
            agents: KeptAgents::new(nodes.iter().map(|node| cluster.agent(*node))),
        })
    }

    /// Takes a line of the run's output: `WORD ...` when a unit is done, or `WORD NUMBER SECONDS`, which says
    /// how long it took.
    pub fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        if words.next() != Some(&self.word) {
            return;
        }
        let last = self.last.replace(Instant::now());
        let told = words.nth(1).and_then(time);
        let Some(seconds) = told.or_else(|| last.map(|last| last.elapsed().as_secs_f64())) else {
            return;
        };
        if let Some(cpu) = self.pace.unit(seconds) {
            self.put_in_force(cpu);
        }
    }

    /// What a unit would have taken with all that was reserved; nothing if the run was too short to tell.
    pub fn at_full(&self) -> Option<Nanos> {
        self.pace.at_full()
    }

    /// All nodes, or none: if one does not answer, all have what they had, or else all that is reserved.
    fn put_in_force(&mut self, cpu: CpuPpm) {
        for cpu in [cpu, self.pace.in_force(), self.pace.reserved()] {
            match self.tell(cpu) {
                Ok(()) => return self.pace.put_in_force(cpu),
                Err(error) => {
                    let why = chain(&error);
                    tracing::warn!("{} cannot be held at {cpu} of CPU: {why}", self.job)
                }
            }
        }
    }

    fn tell(&mut self, cpu: CpuPpm) -> Result<(), ClientError> {
        let job = self.job.clone();
        // However long that takes: what one does later would undo what all are told next.
        self.agents.ask(None, move |agent| agent.restrain(&job, cpu)).into_iter().collect()
    }
}

/// The word of the lines by which `application` tells that a unit is done of the kind that promises are about.
///
/// # Errors
/// If it tells none, or promises are about the whole run: a unit of that would always look far too early.
pub fn word_of_units(application: &Application) -> Result<&str, Invalid> {
    let told = application.progress().filter(|_| *application.time() != TimeSource::Wall);
    told.ok_or_else(|| {
        let expected = "an application whose file says by which lines it tells `progress`, and whose `time` is what one \
                        such unit takes, not that of the whole run";
        Invalid::new("steady", application.name(), expected)
    })
}

/// What a program tells is anything: of what is no time, as `nan`, nothing follows.
fn time(told: &str) -> Option<f64> {
    told.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    // What a program tells must be a time to count as one: a sum that has once been `nan` stays so for ever.
    #[test]
    fn what_is_no_time_is_not_taken_for_one() {
        assert_eq!(time("0.25"), Some(0.25));
        for told in ["nan", "inf", "-inf", "-1", "0", "1e999", "soon", ""] {
            assert_eq!(time(told), None, "{told}");
        }
    }
}
