//! Gang scheduling by Slurm, to compare with: its real daemons on the lab's nodes give one program after the other all of
//! them, in slices of five seconds, which are its least (slurm.conf(5), `SchedulerTimeSlice`).
//!
//! Programs get equal parts: there is no target that Slurm could be told.

use super::program::Program;
use super::together::{Gate, at_once};
use super::watched::{self, Seen, Trace, Watched};
use super::{By, Run, SETTLE, Stage, THRESHOLD};
use anyhow::{Context, Result, ensure};
use keeptime::cluster::Cluster;
use keeptime::interrupt;
use keeptime::reach::exec_line;
use keeptime_lab::{Exec, FRONT_END, Lab};
use keeptime_model::application::Parameters;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
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
/// Daemons find each other, jobs end.
const WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Slurm on all nodes of a lab. It goes with the lab, and so do its files.
pub struct Slurm<'a> {
    cluster: &'a Cluster,
    lab: &'a Lab,
    directory: PathBuf,
    /// That were submitted.
    jobs: AtomicUsize,
}

/// Slurm's version, in its own words.
///
/// # Errors
/// If it is not installed.
pub fn version() -> Result<String> {
    let told = Command::new("slurmctld").arg("-V").output();
    let told = told.context("slurmctld cannot be started: `scripts/setup slurm` installs it")?;
    Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
}

impl<'a> Slurm<'a> {
    /// Starts it, and waits until it has all nodes.
    ///
    /// # Errors
    /// If it does not get there.
    pub fn start(cluster: &'a Cluster) -> Result<Self> {
        let lab = cluster.lab("gang scheduling")?;
        let slurm = Self {
            cluster,
            lab,
            directory: lab.directory().join("slurm"),
            jobs: AtomicUsize::new(0),
        };
        let nodes: Vec<_> = lab.topology().nodes().iter().map(|node| node.name.as_str()).collect();
        for place in nodes.iter().copied().chain(["state"]) {
            fs::create_dir_all(slurm.directory.join(place))?;
        }
        fs::write(slurm.file("slurm.conf"), slurm.configuration()?)?;
        let key = slurm.file("munge.key");
        let made = Command::new("mungekey").args(["--create", "--keyfile", &key]).status()?;
        ensure!(made.success(), "mungekey has failed: {made}");
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut munged = words(&["munged", "--foreground", "--force"]);
        for option in ["key-file", "socket", "pid-file", "log-file", "seed-file"] {
            let file = slurm.file(&format!("munge.{}", option.trim_end_matches("-file")));
            munged.push(format!("--{option}={file}"));
        }
        slurm.daemon(FRONT_END, "munged", munged)?;
        slurm.until("munged", || Ok(slurm.directory.join("munge.socket").exists()))?;
        let configuration = slurm.file("slurm.conf");
        slurm.daemon(FRONT_END, "slurmctld", words(&["slurmctld", "-D", "-f", &configuration]))?;
        for node in &nodes {
            let command = words(&["slurmd", "-D", "-f", &configuration, "-N", node]);
            slurm.daemon(node, &format!("{node}/slurmd"), command)?;
        }
        let idle = ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"];
        slurm.until("slurmctld", || Ok(slurm.ask(&idle)?.lines().count() == nodes.len()))?;
        Ok(slurm)
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
        self.cancel_all()?;
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
        self.cancel_all()?;
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
        let [script, output] = ["sh", "out"].map(|end| self.file(&format!("job-{number}.{end}")));
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

    /// Nobody's jobs stay: who waited for one and was killed has left it behind.
    fn cancel_all(&self) -> Result<()> {
        self.until("scancel", || {
            self.ask(&["scancel", "--user=root"])?;
            Ok(self.ask(&["squeue", "-h"])?.is_empty())
        })
    }

    /// What a command of Slurm's says.
    fn ask(&self, command: &[&str]) -> Result<String> {
        let command: Vec<_> = command.iter().map(ToString::to_string).collect();
        let line = self.line(&command)?;
        let said = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
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
        let mut words = vec!["env".to_owned(), format!("SLURM_CONF={}", self.file("slurm.conf"))];
        words.extend(parameters.map(|(name, value)| format!("OMPI_MCA_{name}={value}")));
        words.extend(command.iter().cloned());
        exec_line(self.lab, FRONT_END, None, &words)
    }

    /// Processes are stopped and continued, as is usual, and nothing else is done to them: nodes' processors are the
    /// lab's business, as in all other runs.
    fn configuration(&self) -> Result<String> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let (directory, front_end) = (self.directory.display(), self.lab.front_end());
        let mut text = format!(
            "ClusterName=lab\nSlurmctldHost={}({front_end})\nSlurmUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={directory}/munge.socket\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             SlurmctldPidFile={directory}/slurmctld.pid\nSlurmdPidFile={directory}/%n/slurmd.pid\n\
             SlurmctldLogFile={directory}/slurmctld.log\nSlurmdLogFile={directory}/%n/slurmd.log\n\
             StateSaveLocation={directory}/state\nSlurmdSpoolDir={directory}/%n\n\
             SelectType=select/linear\nPreemptType=preempt/none\nPreemptMode=GANG\n\
             SchedulerTimeSlice={SLICE}\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none\n",
            host.trim(),
        );
        for node in self.lab.topology().nodes() {
            let address = node.address.context("a node without an address")?;
            text.push_str(&format!("NodeName={} NodeAddr={address} CPUs=1\n", node.name));
        }
        text.push_str("PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:8 State=UP\n");
        Ok(text)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn daemon(&self, place: &str, name: &str, command: Vec<String>) -> Result<()> {
        let log = File::create(self.directory.join(format!("{name}.out")))?;
        let stdio = [File::open("/dev/null")?, log.try_clone()?, log];
        let exec = Exec::new(place, command).with_stdio(stdio.map(|file| Some(file.into())));
        self.lab.spawn_daemon(exec).with_context(|| format!("starting {name}"))
    }

    fn until(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !is_so()? {
            let directory = self.directory.display();
            ensure!(start.elapsed() < WITHIN, "{what} did not get there: logs are in {directory}");
            sleep(LOOK_EVERY);
        }
        Ok(())
    }
}
