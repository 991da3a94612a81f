//! Slurm on the nodes of a lab: its real daemons, as an operator would have set them up. What its jobs start asks the agent of
//! its own node. All of it ends with the lab, and its files go with that.

use crate::cluster::socket_in;
use crate::reach::exec_line;
use anyhow::{Context, Result, ensure};
use keeptime_lab::{Exec, FRONT_END, Lab};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Daemons find each other, jobs end.
const WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How jobs share nodes, in the words of slurm.conf(5).
#[derive(Debug, Clone, Copy)]
pub struct Sharing<'a> {
    /// Lines about who runs when.
    pub settings: &'a str,
    /// What is said of the one partition, which has all nodes.
    pub partition: &'a str,
}

/// Up to four jobs on a node, and all of them run: how fast each does is up to Keeptime.
pub const SHARED: Sharing<'_> = Sharing {
    settings: "SelectType=select/linear\nPreemptMode=OFF\nTaskPlugin=task/affinity",
    partition: "OverSubscribe=FORCE:4",
};

/// Slurm on all nodes of a lab.
#[derive(Debug)]
pub struct Slurm {
    lab: Lab,
    directory: PathBuf,
}

/// Slurm's version, in its own words.
///
/// # Errors
/// If it is not installed.
pub fn version() -> Result<String> {
    let told = Command::new("slurmctld").arg("-V").output();
    let told = told.context("slurmctld cannot be started: `scripts/setup` installs it")?;
    Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
}

impl Slurm {
    /// Starts it, and waits until it has all nodes.
    ///
    /// # Errors
    /// If it does not get there.
    pub fn start(lab: &Lab, sharing: Sharing<'_>) -> Result<Self> {
        let slurm = Self { lab: lab.clone(), directory: lab.directory().join("slurm") };
        let nodes: Vec<_> = lab.topology().nodes().iter().map(|node| node.name.as_str()).collect();
        for place in nodes.iter().copied().chain(["state"]) {
            fs::create_dir_all(slurm.directory.join(place))?;
        }
        fs::write(slurm.configuration(), slurm.text(sharing)?)?;
        fs::write(slurm.file(TASK_PROLOG), slurm.task_prolog())?;
        fs::set_permissions(slurm.file(TASK_PROLOG), Permissions::from_mode(0o755))?;
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
        let configuration = slurm.configuration().display().to_string();
        slurm.daemon(FRONT_END, "slurmctld", words(&["slurmctld", "-D", "-f", &configuration]))?;
        for node in &nodes {
            let command = words(&["slurmd", "-D", "-f", &configuration, "-N", node]);
            slurm.daemon(node, &format!("{node}/slurmd"), command)?;
        }
        let idle = ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"];
        slurm.until("slurmctld", || Ok(slurm.ask(&idle)?.lines().count() == nodes.len()))?;
        Ok(slurm)
    }

    /// Where its commands find it, as `SLURM_CONF` is to say.
    pub fn configuration(&self) -> PathBuf {
        self.directory.join("slurm.conf")
    }

    /// What a command of Slurm's says on the front end.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn ask(&self, command: &[&str]) -> Result<String> {
        let command: Vec<_> = command.iter().map(ToString::to_string).collect();
        let line = self.line(&command)?;
        let said = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// The line that runs a command of Slurm's on the front end.
    ///
    /// # Errors
    /// If this program cannot find itself.
    pub fn line(&self, command: &[String]) -> Result<Vec<String>> {
        let configuration = format!("SLURM_CONF={}", self.configuration().display());
        let words = [&["env".to_owned(), configuration][..], command].concat();
        exec_line(&self.lab, FRONT_END, None, &words)
    }

    /// Nobody's jobs stay: who waited for one and was killed has left it behind.
    ///
    /// # Errors
    /// If they do.
    pub fn cancel_all(&self) -> Result<()> {
        self.until("scancel", || {
            self.ask(&["scancel", "--user=root"])?;
            Ok(self.ask(&["squeue", "-h"])?.is_empty())
        })
    }

    /// One of its files.
    pub fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Processes are stopped and continued, as is usual, and nothing else is done to them: nodes' processors are the
    /// business of the lab and of Keeptime.
    fn text(&self, sharing: Sharing<'_>) -> Result<String> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let (directory, front_end) = (self.directory.display(), self.lab.front_end());
        let mut text = format!(
            "ClusterName=lab\nSlurmctldHost={}({front_end})\nSlurmUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={directory}/munge.socket\n\
             ProctrackType=proctrack/linuxproc\nSwitchType=switch/none\n\
             TaskProlog={directory}/{TASK_PROLOG}\nKillWait=2\n\
             SlurmctldPidFile={directory}/slurmctld.pid\nSlurmdPidFile={directory}/%n/slurmd.pid\n\
             SlurmctldLogFile={directory}/slurmctld.log\nSlurmdLogFile={directory}/%n/slurmd.log\n\
             StateSaveLocation={directory}/state\nSlurmdSpoolDir={directory}/%n\n\
             PreemptType=preempt/none\n{}\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none\n",
            host.trim(),
            sharing.settings,
        );
        for node in self.lab.topology().nodes() {
            let address = node.address.context("a node without an address")?;
            text.push_str(&format!("NodeName={} NodeAddr={address} CPUs=1\n", node.name));
        }
        let partition = sharing.partition;
        text.push_str(&format!("PartitionName=all Nodes=ALL Default=YES {partition} State=UP\n"));
        Ok(text)
    }

    /// The agents of a lab's nodes have a socket each. On other clusters it is at the same place everywhere.
    fn task_prolog(&self) -> String {
        let nodes = self.lab.topology().nodes().iter();
        let tell = nodes.map(|node| {
            let socket = socket_in(&self.lab.node_directory(&node.name));
            format!("{}) echo export KEEPTIME_AGENT={} ;;\n", node.name, socket.display())
        });
        format!("#!/bin/sh\ncase $SLURMD_NODENAME in\n{}esac\n", tell.collect::<String>())
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

/// What Slurm asks for the variables of whatever it starts.
const TASK_PROLOG: &str = "task-prolog";
