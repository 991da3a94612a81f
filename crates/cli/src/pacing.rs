//! A run that takes the time that was promised for it: what it does not need of its CPU is lent to others
//! while it runs. Decisions are [`keeptime_control::pace`]'s; here are its lines and its nodes.

use crate::cluster::Cluster;
use crate::hold::Hold;
use crate::promised::Promised;
use crate::reach::KeptAgent;
use anyhow::{Context, Result};
use keeptime_agent::client::ClientError;
use keeptime_control::Pace;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, TimeSource};
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
    /// None once the job is lost.
    agents: Vec<KeptAgent>,
    /// One of them was told to hold it, or may have been.
    is_held: bool,
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
            agents: nodes.iter().map(|node| KeptAgent::new(cluster.agent(*node))).collect(),
            is_held: false,
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

    /// Its nodes have nothing of it any more, and need not be told; one of them may be away.
    pub fn job_is_lost(&mut self) {
        self.agents.clear();
    }

    /// All nodes, or none: if one does not answer, all have what they had, or else all that is reserved.
    fn put_in_force(&mut self, cpu: CpuPpm) {
        for cpu in [cpu, self.pace.in_force(), self.pace.reserved()] {
            match self.tell(cpu) {
                Ok(()) => return self.pace.put_in_force(cpu),
                Err(error) => {
                    tracing::warn!("{} cannot be held at {cpu} of CPU: {error}", self.job)
                }
            }
        }
    }

    fn tell(&mut self, cpu: CpuPpm) -> Result<(), ClientError> {
        self.is_held = true;
        let job = &self.job;
        self.agents.iter_mut().try_for_each(|agent| agent.ask(|client| client.restrain(job, cpu)))
    }
}

/// What was reserved may be kept, and whatever runs there next is to have all of it.
impl Drop for Paced {
    fn drop(&mut self) {
        if self.is_held {
            lift(&mut self.agents, &self.job);
        }
    }
}

/// Ends what `job` is held at on each of its nodes. One that does not do that is told of: the job goes on with less than it
/// has.
pub fn lift(agents: &mut [KeptAgent], job: &Name) {
    for agent in agents {
        if let Err(error) = agent.ask(|client| client.restrain(job, ALL)) {
            tracing::warn!("{job} may be held at less than all of its CPU: {error}");
        }
    }
}

/// More than is ever assigned, so no restraint.
const ALL: CpuPpm = CpuPpm::new(u32::MAX);

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
pub(crate) mod testing {
    use super::ALL;
    use crate::reach::{AgentPlace, KeptAgent};
    use keeptime_agent::wire::{Request, Response};
    use keeptime_model::name::Name;
    use keeptime_model::units::CpuPpm;
    use std::io::{self, BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;
    use tempfile::TempDir;

    /// An agent that answers as it is told to, and tells what it was asked.
    pub(crate) struct ToldAgent {
        directory: TempDir,
        asked: JoinHandle<Vec<Request>>,
    }

    impl ToldAgent {
        /// One that says nothing to `hangs_up` connections, and then `answers` on one.
        pub(crate) fn new(hangs_up: usize, answers: Vec<Response>) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(directory.path().join("agent.sock")).unwrap();
            let asked = std::thread::spawn(move || {
                for _ in 0..hangs_up {
                    drop(listener.accept().unwrap());
                }
                let (stream, _) = listener.accept().unwrap();
                let requests = BufReader::new(&stream).lines();
                let answer = |(answer, request): (Response, io::Result<String>)| {
                    let line = serde_json::to_string(&answer).unwrap() + "\n";
                    (&stream).write_all(line.as_bytes()).unwrap();
                    serde_json::from_str(&request.unwrap()).unwrap()
                };
                answers.into_iter().zip(requests).map(answer).collect()
            });
            Self { directory, asked }
        }

        pub(crate) fn kept(&self) -> KeptAgent {
            KeptAgent::new(AgentPlace::Socket(self.directory.path().join("agent.sock")))
        }

        /// All that it was asked, when it has answered for the last time.
        pub(crate) fn asked(self) -> Vec<Request> {
            self.asked.join().unwrap()
        }
    }

    pub(crate) fn restrain(job: &Name, cpu_ppm: CpuPpm) -> Request {
        Request::Restrain { job: job.clone(), cpu_ppm }
    }

    pub(crate) fn lift(job: &Name) -> Request {
        restrain(job, ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::ToldAgent;
    use super::*;
    use crate::reach::AgentPlace;
    use keeptime_agent::wire::Response;
    use std::os::unix::net::UnixListener;

    fn paced(agents: Vec<KeptAgent>) -> Paced {
        let pace = Pace::new(Nanos::from_secs(1), Nanos::default(), CpuPpm::from_percent(30));
        let (word, job) = ("unit".to_owned(), "r7".parse().unwrap());
        Paced { pace: pace.unwrap(), word, last: None, job, agents, is_held: false }
    }

    // Goal: what is reserved for longer than one run is the next one's, all of it. Method: a run of which one node refuses to hear
    // of the end.
    #[test]
    fn what_a_run_was_held_at_ends_with_it() {
        let refused = || Response::Refused { reason: "not now".into() };
        let first = ToldAgent::new(0, vec![Response::Done, refused()]);
        let second = ToldAgent::new(0, vec![Response::Done, Response::Done]);
        let mut run = paced(vec![first.kept(), second.kept()]);
        let job = run.job.clone();
        // It is far too early.
        run.line("unit 1 0.9");
        let held = run.pace.in_force();
        assert!(held < run.pace.reserved());
        drop(run);
        let asked = [testing::restrain(&job, held), testing::lift(&job)];
        assert_eq!(first.asked(), asked);
        assert_eq!(second.asked(), asked);
    }

    #[test]
    fn nobody_is_told_of_the_end_of_what_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut lost = paced(vec![KeptAgent::new(AgentPlace::Socket(socket))]);
        lost.job_is_lost();
        drop(lost);
        assert!(listener.accept().is_err());
    }

    // What a program tells must be a time to count as one: a sum that has once been `nan` stays so for ever.
    #[test]
    fn what_is_no_time_is_not_taken_for_one() {
        assert_eq!(time("0.25"), Some(0.25));
        for told in ["nan", "inf", "-inf", "-1", "0", "1e999", "soon", ""] {
            assert_eq!(time(told), None, "{told}");
        }
    }
}
