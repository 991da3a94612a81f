//! Slurm's own daemons on the nodes of a lab, and Keeptime within its jobs: what runs is a part of both.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime::slurm;
use keeptime_lab::FRONT_END;
use keeptime_launch::remote::quoted;
use keeptime_linux::testing::skip;
use keeptime_model::topology::Topology;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use world::{KEEPTIME, PATIENCE, Program, World, said, wait};

/// What each rank says: where it is, of which job of Keeptime's, and in which step of Slurm's.
const SAY: &str =
    "echo rank on $KEEPTIME_NODE of $KEEPTIME_JOB in step $SLURM_STEP_ID; echo time 0.05";
/// A rank that goes on until it is ended.
const LAST: &str = "echo rank on $KEEPTIME_NODE; sleep 3600";
/// What is known of both: Mbit/s for each flow, and seconds.
const POINTS: [(u64, f64); 2] = [(1, 0.06), (10, 0.05)];
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The plugin, as `make workloads` builds it.
const PLUGIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../slurm/build/keeptime.so");

/// A lab of three nodes with Slurm. Nothing where that cannot be, and the reason is printed.
struct Batch {
    world: World,
}

impl Batch {
    fn new(tag: &str) -> Option<Self> {
        if let Err(error) = slurm::version() {
            skip(&["slurm".to_owned()], &format!("{error:#}"));
            return None;
        }
        let world = World::of(tag, &["--nodes", "3", "--slurm"], 25, None)?;
        let config = world.directory.path().join("keeptime");
        fs::create_dir(&config).unwrap();
        let nodes = format!("[nodes]\nkeeptime = \"{KEEPTIME}\"\n");
        fs::write(config.join("client.toml"), nodes).unwrap();
        // Whoever runs a job writes there.
        fs::set_permissions(world.directory.path(), Permissions::from_mode(0o777)).unwrap();
        Some(Self { world })
    }

    /// Where Slurm's files are.
    fn directory(&self) -> PathBuf {
        self.world.lab().directory().join("slurm")
    }

    /// A command on the front end that knows where Slurm is.
    fn command_of(&self, command: &[&str]) -> Command {
        let words = ["lab", "exec", self.world.name.as_str(), FRONT_END, "--"];
        let mut exec = self.world.keeptime(&[&words, command].concat());
        exec.env("SLURM_CONF", self.directory().join("slurm.conf"));
        exec
    }

    /// What it says.
    fn ask(&self, command: &[&str]) -> String {
        said(&self.command_of(command).output().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.world.directory.path().join(name)
    }

    /// A job of these commands on these nodes, of a user of this machine: its number, and where it writes.
    fn submit(&self, user: &str, nodes: &str, script: &str) -> (String, PathBuf) {
        let (file, output) = (self.at("job.sh"), self.at("output"));
        let place = self.world.directory.path().display();
        let variables = format!(
            "export KEEPTIME_BROKER={} XDG_CONFIG_HOME={place} HOME={place} USER={user}\n",
            self.world.broker_socket().display(),
        );
        fs::write(&file, format!("#!/bin/sh\n{variables}cd {place}\n{script}\necho job ended\n"))
            .unwrap();
        let paths = [&file, &output].map(|path| path.display().to_string());
        let command = ["sbatch", "--parsable", "--uid", user, "-w", nodes, "-o", &paths[1]];
        let job = self.ask(&[&command[..], &[&paths[0]]].concat());
        (job.trim().to_owned(), output)
    }

    /// What a job of these commands has said when it is over.
    fn run(&self, nodes: &str, script: &str) -> String {
        self.run_as("root", nodes, script)
    }

    fn run_as(&self, user: &str, nodes: &str, script: &str) -> String {
        let (_, output) = self.submit(user, nodes, script);
        let said = || fs::read_to_string(&output).unwrap_or_default();
        let until = Instant::now() + 3 * PATIENCE;
        while !said().contains("job ended\n") {
            let state = || self.ask(&["sh", "-c", "squeue; squeue -s; scontrol show nodes"]);
            assert!(Instant::now() < until, "no end of a job: {}\n{}", said(), state());
            sleep(LOOK_EVERY);
        }
        let said = said();
        fs::remove_file(output).unwrap();
        said
    }

    /// What is to be typed to run `program` within a second.
    fn command(&self, program: &Program) -> String {
        let command = self.world.ask("run", program, &["--within", "1s"]);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        quoted(&words.map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>())
    }

    fn wait_until_given_back(&self) {
        wait("all to be given back", PATIENCE, || self.world.jobs().is_empty());
    }
}

/// What is to be typed to run what says where it is, without an application file.
fn at_a_rate(mpi: &str) -> String {
    let rate = ["run", "--rate", "50 %", "-n", "2", "--cpu", "10 %", "--mpi", mpi];
    let words = [&[KEEPTIME][..], &rate, &["--", "mpiexec", "/bin/sh", "-c", SAY]].concat();
    quoted(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
}

// Goal: within a job of Slurm's a run takes the nodes of the job and no others, and its ranks are steps of it; other nodes,
// or more of them, are refused. Method: the job has the last two of three nodes, which no run would be given first. The first
// rank is started by MPI's launcher itself, in the step of the script.
#[test]
fn a_run_is_part_of_the_job_around_it() {
    let Some(batch) = Batch::new("sl-run") else { return };
    let program = batch.world.program(SAY, "60 s", &POINTS);
    for command in [batch.command(&program), at_a_rate("open-mpi"), at_a_rate("mpich")] {
        // What asked the agents on the nodes was a step as well: of those only one that is started later is left.
        let steps = "srun --overlap -N 1 -n 1 sleep 60 & other=$!; sleep 2\n\
                     left() { squeue -s -h -j $SLURM_JOB_ID -o %i | grep -vc batch; }\n\
                     for second in 1 2 3 4 5 6 7 8 9 10; do [ $(left) -gt 1 ] && sleep 1; done\n\
                     echo left: $(left); kill $other";
        let said = batch.run("n[2-3]", &format!("{command}\n{steps}"));
        assert!(said.contains("left: 1\n"), "{said}");
        let rank = |node: &str| {
            let line = said.lines().find(|line| line.contains(&format!("rank on {node} of r")));
            line.unwrap_or_else(|| panic!("no rank on {node}: {said}")).to_owned()
        };
        assert!(rank("n3").split(" in step ").nth(1).unwrap().parse::<u32>().is_ok(), "{said}");
        rank("n2");
        batch.wait_until_given_back();
    }

    let reserve = |options: &str| format!("{KEEPTIME} reserve --cpu 5% --for 1min {options}");
    let more = batch.run("n[2-3]", &reserve("--nodes 3"));
    assert!(more.contains("expected of the 2 among: n2, n3"), "{more}");
    let other = batch.run("n[2-3]", &reserve("--nodes n1,n2"));
    assert!(other.contains("\"n1\"") && other.contains("of the 2 among: n2, n3"), "{other}");
    let twice = format!("srun --overlap -N 2 -n 2 {}", batch.command(&program));
    let twice = batch.run("n[2-3]", &twice);
    assert!(
        twice.contains("called by the job's script") && !twice.contains("rank on n"),
        "{twice}"
    );
    let elsewhere =
        batch.world.run(&["reserve", "--nodes", "n1,n2", "--cpu", "5%", "--for", "1min"], 0);
    let handle = elsewhere.split(' ').next().unwrap();
    let within = batch.run("n[2-3]", &format!("{KEEPTIME} run say.toml --in {handle}"));
    assert!(within.contains("has n1; this run can use n2, n3"), "{within}");
    // Whoever says which goes before.
    let said = batch.run("n[2-3]", &reserve("--nodes 1 --among n1"));
    assert!(said.contains(": n1, 5 %"), "{said}");
}

// Goal: none of it takes any right but that to the job. Method: a job of another user's than root, who runs a
// command in a reservation of its own, in one of root's, which is refused, and a program at a rate. Nodes have a /tmp each,
// so none but the first has the script by which MPI's launcher reaches the others.
#[test]
fn an_ordinary_user_needs_no_rights() {
    let Some(batch) = Batch::new("sl-user") else { return };
    let reserve = format!("{KEEPTIME} reserve --nodes 2 --cpu 5% --for 10min");
    batch.world.run(&["reserve", "--nodes", "n1,n2", "--cpu", "5%", "--for", "10min"], 0);
    let exec = |job: &str| {
        format!(
            "srun --overlap -N 1 -n 1 -w n2 {KEEPTIME} agent exec --job {job} -- sh -c 'echo in {job} as $(id -u)'"
        )
    };
    let [run, own, others] = [at_a_rate("open-mpi"), exec("r2"), exec("r1")];
    let said = batch.run_as("daemon", "n[1-2]", &format!("{reserve}\n{own}\n{others}\n{run}"));
    assert!(said.contains("in r2 as 1\n"), "{said}");
    assert!(!said.contains("in r1 as") && said.contains("no job r1 of daemon"), "{said}");
    for node in ["n1", "n2"] {
        assert!(said.contains(&format!("rank on {node} of r3")), "{said}");
    }
}

// Goal: an operator need not type what Slurm knows. Method: the topology of the lab, which was made by another, comes out.
#[test]
fn the_topology_is_that_of_slurm() {
    let Some(batch) = Batch::new("sl-topo") else { return };
    let words = [KEEPTIME, "broker", "topology", "--rate", "100 Mbit/s", "--name", "lab"];
    let told = batch.command_of(&words).output().unwrap();
    let told = Topology::from_toml(&String::from_utf8(told.stdout).unwrap()).unwrap();
    let lab = batch.world.lab();
    let nodes = |topology: &Topology| {
        let all = topology.nodes().iter().map(|node| (node.name.clone(), node.address));
        all.collect::<Vec<_>>()
    };
    assert_eq!(nodes(&told), nodes(lab.topology()));
    assert_eq!((told.switches().len(), told.links().len()), (1, 3));
}

// Goal: what Slurm ends, by whatever, holds nothing on. Method: a job is cancelled while its ranks run.
#[test]
fn with_the_job_ends_what_it_had_reserved() {
    let Some(batch) = Batch::new("sl-end") else { return };
    let program = batch.world.program(LAST, "600 s", &POINTS);
    let (job, output) = batch.submit("root", "n[1-2]", &batch.command(&program));
    let runs = || {
        let said = fs::read_to_string(&output).unwrap_or_default();
        said.contains("rank on n1") && said.contains("rank on n2")
    };
    wait("both ranks", 3 * PATIENCE, runs);
    let processes = || batch.world.jobs().iter().map(|job| job.processes.len()).sum::<usize>();
    assert!(processes() >= 2);
    batch.ask(&["scancel", &job]);
    batch.wait_until_given_back();
    wait("the job's end", PATIENCE, || batch.ask(&["squeue", "-h"]).is_empty());
}

// Goal: `srun --keeptime` has tasks run in a reservation, each from its first instruction on, and none elsewhere. Method: a
// task says in which group it is; one of a reservation that there is not is not started.
#[test]
fn tasks_of_srun_run_in_a_reservation() {
    if !Path::new(PLUGIN).exists() {
        return skip(&["spank".to_owned()], "make workloads has not built the plugin");
    }
    let Some(batch) = Batch::new("sl-srun") else { return };
    // A lab's nodes are on one machine, and each agent has a socket of its own.
    let (node, asks) = (batch.world.socket("n2"), batch.at("keeptime-of-node"));
    let socket = node.to_str().unwrap().replace("/n2/", "/$SLURMD_NODENAME/");
    fs::write(&asks, format!("#!/bin/sh\nKEEPTIME_AGENT={socket} exec {KEEPTIME} \"$@\"\n"))
        .unwrap();
    fs::set_permissions(&asks, Permissions::from_mode(0o755)).unwrap();
    // Nodes need not see the place of this project.
    let plugin = batch.at("keeptime.so");
    fs::copy(PLUGIN, &plugin).unwrap();
    let stack = format!("required {} keeptime={}\n", plugin.display(), asks.display());
    fs::write(batch.directory().join("plugstack.conf"), stack).unwrap();
    let said = batch.run(
        "n[2-3]",
        &format!(
            "job=$({KEEPTIME} reserve --nodes 2 --cpu 5% --for 10min | cut -d ' ' -f 1)\n\
             srun --overlap -N 2 -n 2 --keeptime=$job sh -c \
                 'echo task on $SLURMD_NODENAME; grep -o \"keeptime/.*\" /proc/self/cgroup'\n\
             srun --overlap -N 2 -n 2 sh -c 'echo free; cat /proc/self/cgroup'\n\
             srun --overlap -N 1 -n 1 --keeptime=r999 sh -c 'echo never'\n\
             srun --overlap -N 1 -n 1 --keeptime=job sh -c 'echo never'\n\
             {KEEPTIME} cancel $job"
        ),
    );
    for node in ["n2", "n3"] {
        assert!(said.contains(&format!("task on {node}")), "{said}");
        assert!(said.contains(&format!("{node}/r1")), "{said}");
    }
    let free = said.split("free\n").nth(1).unwrap();
    assert!(!free.contains("/r1"), "who does not say it is in no reservation: {said}");
    assert!(said.contains("this task cannot run in r999") && !said.contains("never"), "{said}");
    assert!(said.contains("expected a reservation's handle"), "{said}");
}
