//! Gang scheduling by Slurm, to compare with: its real daemons on the lab's nodes give one program after the other all of
//! them, in slices of five seconds, which are its least (slurm.conf(5), `SchedulerTimeSlice`).
//!
//! Programs get equal parts: there is no target that Slurm could be told.

use super::program::Program;
use super::together::{Gate, at_once};
use super::watched::{self, Seen, Trace, Watched};
use super::{By, Run, SETTLE, Stage, THRESHOLD};
use anyhow::{Result, ensure};
use keeptime::cluster::Cluster;
use keeptime::interrupt;
use keeptime::slurm::{Sharing, Slurm};
use keeptime_lab::Lab;
use keeptime_model::application::Parameters;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Seconds that a program has all nodes for.
const SLICE: f64 = 5.0;
/// A program alone is watched for so long to know its full speed.
const ALONE: f64 = 20.0;
/// What is counted is at least so long, in whole rounds.
const AT_LEAST: f64 = 40.0;
const ROUNDS_AT_LEAST: f64 = 2.0;

/// Slurm on all nodes of a lab, which has programs take turns.
pub struct Gang<'a> {
    cluster: &'a Cluster,
    lab: &'a Lab,
    slurm: Slurm,
    /// That were submitted.
    jobs: AtomicUsize,
}

impl<'a> Gang<'a> {
    /// Starts it, and waits until it has all nodes.
    ///
    /// # Errors
    /// If it does not get there.
    pub fn start(cluster: &'a Cluster) -> Result<Self> {
        let lab = cluster.lab("gang scheduling")?;
        // Nobody is bound to a processor: those of nodes are the lab's business, as in all other runs.
        let settings = format!(
            "SelectType=select/linear\nPreemptMode=GANG\nSchedulerTimeSlice={SLICE}\nTaskPlugin=task/none"
        );
        let sharing = Sharing { settings: &settings, partition: "OverSubscribe=FORCE:8" };
        let slurm = Slurm::start(lab, sharing)?;
        Ok(Self { cluster, lab, slurm, jobs: AtomicUsize::new(0) })
    }

    /// Programs at once, each wanting a part of full speed in percent that nobody can be told. `alone` is their full
    /// speed in iterations a second.
    ///
    /// # Errors
    /// If one cannot be started, or ends too early.
    pub fn in_turns(
        &self,
        figure: u32,
        programs: Vec<(Program, u32)>,
        alone: f64,
    ) -> Result<Vec<Run>> {
        let begin = Instant::now();
        let round = SLICE * programs.len() as f64;
        let seconds = SETTLE + round * (AT_LEAST / round).ceil().max(ROUNDS_AT_LEAST);
        let one = |number, (program, target): &(Program, u32), gate: &Gate| {
            // Of two that are submitted at once one is now and then stopped before it has begun, and never goes on.
            gate.until(number, |seconds| {
                ensure!(!interrupt::stopped(), "interrupted");
                sleep(Duration::from_secs_f64(seconds));
                Ok(())
            })?;
            let mut stages = Vec::new();
            let trace = self.watched(program, begin, |run| {
                run.wait_for_first()?;
                gate.pass(|seconds| run.wait(seconds))?;
                stages.push(Stage::of(*target, run.span(seconds)?));
                Ok(())
            })?;
            let wanted = f64::from(*target) / 100.0;
            let known = Seen { full_speed: Some(alone), ..Seen::nothing(0.0, wanted) };
            let trace = Trace { seen: vec![known], ..trace };
            let label = format!("{} at {target} %", program.label);
            Ok(Run { figure, label, by: By::Gang, threshold: THRESHOLD, stages, trace })
        };
        let runs = at_once(&programs, one);
        self.slurm.cancel_all()?;
        runs
    }

    /// Iterations a second of a program that shares its nodes with nobody.
    ///
    /// # Errors
    /// As [`Self::in_turns`].
    pub fn alone(&self, program: &Program) -> Result<f64> {
        let mut stage = (0.0, 0.0);
        let trace = self.watched(program, Instant::now(), |run| {
            run.wait_for_first()?;
            run.wait(SETTLE)?;
            stage = run.span(ALONE)?;
            Ok(())
        });
        self.slurm.cancel_all()?;
        Ok(trace?.rate(stage.0, stage.1))
    }

    fn watched(
        &self,
        program: &Program,
        begin: Instant,
        act: impl FnOnce(&Watched<'_>) -> Result<()>,
    ) -> Result<Trace> {
        let application = &program.session.application;
        let (number, nodes) = (self.jobs.fetch_add(1, Ordering::Relaxed), program.nodes);
        let [script, output] =
            ["sh", "out"].map(|end| self.slurm.file(&format!("job-{number}.{end}")));
        let command = application.command(&Parameters::default())?;
        let quoted = command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
        let quoted = quoted.collect::<Vec<_>>().join(" ");
        // A job that starts beside others is stopped at once, but for a script that is just being started. The step that it
        // asks for is refused then, and asked for again by `srun` after pauses that grow: by chance never in its own
        // slice. So it is asked for again here, which is stopped with the job.
        let srun = format!("srun --immediate=1 --mpi=pmix --unbuffered -n {nodes} {quoted}");
        fs::write(&script, format!("#!/bin/sh\nuntil {srun}; do sleep 0.2; done\n"))?;
        let submit = format!(
            "touch {output}; tail -n +1 -f {output} & \
             sbatch --wait -N {nodes} -o {output} -e {output} {script}; kill $!"
        );
        let line = self.line(&["/bin/sh".into(), "-c".into(), submit])?;
        watched::alongside(self.cluster, &line, application.timeout(), begin, act)
    }

    /// The line that runs a command of Slurm's on the front end; ranks use the network as they do without it.
    fn line(&self, command: &[String]) -> Result<Vec<String>> {
        let ranks = self.lab.network_names().0;
        let parameters = [
            ("pml", "ob1"),
            ("btl", "tcp,self"),
            ("btl_tcp_if_include", &ranks),
            ("mpi_yield_when_idle", "1"),
        ];
        let mut words = vec!["env".to_owned()];
        words.extend(parameters.map(|(name, value)| format!("OMPI_MCA_{name}={value}")));
        words.extend(command.iter().cloned());
        self.slurm.line(&words)
    }
}
