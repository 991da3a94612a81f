//! Runs that are held at a part of their full speed, on a real lab: through the broker, the agents and the
//! kernel.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_linux::testing::skip;
use keeptime_model::units::CpuPpm;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use world::{BELOW_A_LEASE, PATIENCE, World, assert_code, json, said, wait};

/// Two ranks that compute and tell each iteration, until they are ended. The CPU of one at full speed.
const FULL: u32 = 30;

/// A run that is ended with the test.
struct Running<'a> {
    world: &'a World,
    child: Child,
}

impl<'a> Running<'a> {
    fn start(world: &'a World, script: &str, words: &[&str]) -> Self {
        Self::start_in(world, world.directory.path(), &application(world, script), words)
    }

    fn start_in(world: &'a World, directory: &Path, application: &Path, words: &[&str]) -> Self {
        let mut command = world.keeptime(&["run"]);
        command.current_dir(directory).arg(application).args(words);
        // What is found out of full speed is this test's own.
        command.arg("--profile").arg(world.directory.path().join("turns.json"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self { world, child }
    }

    /// The one run that `keeptime top` shows; nothing if there is none.
    fn view(&self) -> Value {
        views(self.world).pop().unwrap_or_default()
    }

    fn wait_for(&self, phase: &str) -> Value {
        let mut view = Value::Null;
        wait(phase, 3 * PATIENCE, || {
            view = self.view();
            view["state"]["phase"] == phase && !view["state"]["schedule"].is_null()
        });
        view
    }

    /// The process of its controller, by its number; nothing while there is none.
    fn controller(&self) -> Option<i32> {
        let is_its = |process: &Path| {
            let words = fs::read(process.join("cmdline")).unwrap_or_default();
            // What follows the name: state, parent.
            let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
            let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
            words.ends_with(b"launch\0controller\0")
                && parent.and_then(|parent| parent.parse().ok()) == Some(self.child.id())
        };
        numbers_of(is_its).pop()
    }

    /// The share of a processor that the first node is held at.
    fn held(&self) -> f64 {
        f64::from(self.world.jobs()[0].assignment.cpu_ppm.get()) / 1e6
    }

    /// The share of a processor that each node is held at, at most, and uses over some seconds.
    fn used(&self) -> (f64, Vec<f64>) {
        let used = || -> Vec<_> {
            let jobs = self.world.jobs();
            let of = |job: &keeptime_agent::wire::JobStatus| {
                (job.assignment.cpu_ppm.get(), job.cpu_used_nanos.as_secs_f64())
            };
            jobs.iter().map(of).collect()
        };
        let (start, before) = (std::time::Instant::now(), used());
        std::thread::sleep(Duration::from_secs(3));
        let (after, seconds) = (used(), start.elapsed().as_secs_f64());
        let shares = before.iter().zip(&after).map(|(b, a)| (a.1 - b.1) / seconds).collect();
        (f64::from(before[0].0.max(after[0].0)) / 1e6, shares)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of which `is_one` holds, which sees their directories of `/proc`.
fn numbers_of(is_one: impl Fn(&Path) -> bool) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let entries = entries.filter(|entry| is_one(&entry.path()));
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// All runs that `keeptime top` shows.
fn views(world: &World) -> Vec<Value> {
    let output = world.keeptime(&["top", "--json"]).output().unwrap();
    assert_code(&output, 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn application(world: &World, script: &str) -> PathBuf {
    application_telling(world, script, "turn")
}

fn application_telling(world: &World, script: &str, progress: &str) -> PathBuf {
    let path = world.directory.path().join("turns.toml");
    let text = format!(
        "name = \"turns\"\ncommand = [\"/bin/sh\", \"-c\", {script:?}]\npattern = \"pairs\"\n\
         nodes = [2]\ncpu = \"{FULL} %\"\ntimeout = \"900 s\"\ntime = \"wall\"\nprogress = {progress:?}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

const TURNS: &str = "while :; do j=0; while [ $j -lt 10000 ]; do j=$((j+1)); done; echo turn; done";

// Goal: the whole way. Method: two ranks that compute all the time, so that the part of full speed is the part of
// the CPU, which the nodes' agents count; what is asked while others hold the rest is refused, and flows that are attached
// meanwhile stay.
#[test]
fn a_run_is_held_at_its_rate_and_at_another_one() {
    let Some(world) = World::new("rate", 40) else { return };
    let mut running = Running::start(&world, TURNS, &["--rate", "50 %"]);
    let view = running.wait_for("steered");
    assert_eq!(view["application"], "turns");
    let list = said(&world.keeptime(&["list"]).output().unwrap());
    assert!(list.contains("  turns  "), "{list}");
    assert_eq!(view["state"]["target_ppm"], 500_000);
    wait("what keeps its share", PATIENCE, || {
        let view = running.view();
        ["n1", "n2"].iter().all(|node| view["cpu_kept_by"][node].is_string())
    });
    let (share, used) = running.used();
    println!("at 50 %: {share:.3} of a processor each, used {used:.3?}");
    // What it has is half of what it used at full speed, at most that of its file: less on a machine that others
    // use.
    assert!((0.03..=0.17).contains(&share), "{share}");
    assert!(used.iter().all(|used| *used <= share + 0.03 && *used > 0.2 * share), "{used:?}");

    // Flows that are attached to it from outside stay, whatever share it is given.
    let job = view["reservation"].as_str().unwrap();
    let ten = ["mpi", "attach", job, "--class", "premium", "--bandwidth", "10Mbit"];
    assert_code(&world.keeptime(&ten).output().unwrap(), 0);
    let flows = || world.statuses().iter().map(World::promised).collect::<Vec<_>>();
    let attached = flows();
    assert!(attached.len() == 2 && attached.iter().all(|rate| *rate > 0), "{attached:?}");

    let set = |rate: &str| world.keeptime(&["rate", "set", job, rate]).output().unwrap();
    let output = set("20 %");
    assert_code(&output, 0);
    assert!(said(&output).contains("20.0 %"), "{}", said(&output));
    wait("the lower share", PATIENCE, || running.held() <= 0.7 * share);
    let (lower, used) = running.used();
    println!("at 20 %: {lower:.3} of a processor each, used {used:.3?}");
    // Two fifths, of what full speed is now.
    assert!((0.2..=0.75).contains(&(lower / share)), "{lower} after {share}");
    assert!(used.iter().all(|used| *used <= lower + 0.03), "{used:?}");
    assert_eq!(flows(), attached);

    // Somebody else takes the rest: more cannot be had now, and it is told what can.
    let rest = ["reserve", "--nodes", "n1,n2", "--cpu", "28 %", "--for", "300s"];
    assert_code(&world.keeptime(&rest).output().unwrap(), 0);
    let output = set("90 %");
    assert_code(&output, 1);
    let refused = said(&output);
    assert!(refused.contains("stays at its rate") && refused.contains("CPU"), "{refused}");
    assert!(refused.contains("% of full speed can be had now"), "{refused}");
    assert_eq!(running.view()["state"]["target_ppm"], 200_000);
    wait("what keeps it, in the table", PATIENCE, || {
        let table = said(&world.keeptime(&["top", "--once"]).output().unwrap());
        table.contains("held; kept by ") && table.contains(job)
    });

    // It ends with its holder, and nobody answers for it any more.
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    wait("the end of the job", PATIENCE, || {
        world.jobs().iter().all(|other| other.assignment.job.as_str() != job)
    });
    assert_eq!(running.view(), Value::Null);
    let output = set("30 %");
    assert_ne!(output.status.code(), Some(0), "{}", said(&output));
}

// Goal: a run outlives its controllers: what it has stays, the next one goes on from there and measures nothing anew, and
// it is told another rate as ever; a broker that is away is no refusal. Method: two are killed; the broker has recorded all
// changes; then that is killed, and another rate follows when it is back.
#[test]
fn a_run_outlives_its_controllers() {
    let Some(world) = World::new("killed", 40) else { return };
    let running = Running::start(&world, TURNS, &["--rate", "50 %"]);
    let view = running.wait_for("steered");
    let job = view["reservation"].as_str().unwrap();
    for _ in 0..2 {
        let mut last = None;
        wait("a controller", PATIENCE, || {
            last = running.controller();
            last.is_some()
        });
        kill(Pid::from_raw(last.unwrap()), Signal::SIGKILL).unwrap();
        wait("the next controller", PATIENCE, || {
            running.controller().is_some_and(|next| Some(next) != last)
        });
        let view = running.view();
        assert_eq!(view["reservation"], job);
        assert_eq!(view["state"]["phase"], "steered");
        assert_eq!(view["state"]["target_ppm"], 500_000);
    }
    // It goes on to hear of progress.
    wait("a report", 3 * PATIENCE, || running.view()["state"]["actual"].is_f64());
    let set = world.keeptime(&["rate", "set", job, "20 %"]).output().unwrap();
    assert_code(&set, 0);
    let full = 10_000 * u64::from(FULL);
    let history: Value = serde_json::from_str(&world.run(&["why", job, "--json"], 0)).unwrap();
    let records = history["records"].as_array().unwrap().iter();
    let shares: Vec<_> = records
        .filter_map(|record| record["event"]["modified"]["modified"]["grant"]["cpu_ppm"].as_u64())
        .collect();
    // Half of full speed, and corrections; then a fifth.
    assert!(!shares.is_empty() && shares.iter().all(|share| *share < full * 3 / 4), "{shares:?}");
    assert!(shares.last().is_some_and(|last| *last * 4 < shares[0] * 3), "{shares:?}");

    let held = running.held();
    world.kill_broker();
    let set = world.keeptime(&["rate", "set", job, "60 %"]).output().unwrap();
    assert_code(&set, 0);
    let text = said(&set);
    assert!(text.contains("is not held at 60 % yet, but will be"), "{text}");
    let set = world.keeptime(&["rate", "set", job, "50 %", "--json"]).output().unwrap();
    assert_code(&set, 0);
    let told = json(&set);
    assert_eq!(told["follows"], "the broker does not answer", "{told}");
    assert_eq!(told["state"]["not_held_yet"], "the broker does not answer", "{told}");
    let top = world.run(&["top", "--once"], 0);
    assert!(top.contains("  not held yet: the broker does not answer"), "{top}");
    assert_eq!(
        (&told["reservation"], &told["state"]["target_ppm"]),
        (&view["reservation"], &500_000.into())
    );
    world.start_broker();
    wait("the rate that was set", PATIENCE, || running.held() > 1.5 * held);
}

// Goal: a rank that dies ends a run at a rate as a failure of its program, which gives back at once what it had, and of which
// nothing is left on any node. Method: one of two is killed while they are held.
#[test]
fn a_rank_that_dies_ends_its_run_and_leaves_nothing() {
    let Some(world) = World::new("ratedies", 40) else { return };
    let idle = world.processes();
    // No other test's ranks have this command line.
    let script = format!("of={}; {TURNS}", world.name);
    let mut running = Running::start(&world, &script, &["--rate", "50 %"]);
    running.wait_for("steered");
    wait("its share to be kept", PATIENCE, || {
        world.jobs().iter().all(|job| job.cpu_kept_by.is_some())
    });
    let lab = world.lab();
    let has_group = || {
        let mut nodes = lab.topology().nodes().iter();
        nodes.any(|node| lab.group(&node.name).unwrap().child("r1").unwrap().exists())
    };
    assert!(has_group());
    let rank = format!("/bin/sh\0-c\0{script}\0");
    let ranks = numbers_of(|process| {
        fs::read(process.join("cmdline")).is_ok_and(|words| words == rank.as_bytes())
    });
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    kill(Pid::from_raw(ranks[1]), Signal::SIGKILL).unwrap();

    let mut status = None;
    wait("the end of the run", PATIENCE, || {
        status = running.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(2));
    world.wait_until_idle(&idle, BELOW_A_LEASE);
    let list = world.run(&["list", "--all"], 0);
    assert!(list.contains("failed") && list.contains("exit code 137"), "{list}");
    assert_eq!(running.view(), Value::Null);
    let nodes = world.broker().nodes(None).unwrap().nodes;
    assert!(nodes.iter().all(|node| node.cpu_reserved_ppm == CpuPpm::new(0)), "{nodes:?}");
    assert!(!has_group());
    // Others have all of it, at once.
    let all = ["reserve", "--nodes", "n1,n2", "--cpu", "40 %", "--for", "60s"];
    world.run(&all, 0);
}

// Goal: programs share nodes that could not have one of them at full speed beside the other. Method: the first measures
// full speed; the second, for which that would be too much, has its rate at once; a third that insists is refused.
#[test]
fn a_full_speed_that_is_known_leaves_room_for_others() {
    let Some(world) = World::new("rates", 40) else { return };
    let first = Running::start(&world, TURNS, &["--rate", "60 %"]);
    first.wait_for("steered");
    let kept = world.directory.path().join("turns.full-speed.json");
    wait("what was found to be kept", PATIENCE, || kept.exists());
    let _second = Running::start(&world, TURNS, &["--rate", "60 %"]);
    wait("both to be held", 3 * PATIENCE, || {
        let views = views(&world);
        views.len() == 2 && views.iter().all(|view| view["state"]["phase"] == "steered")
    });
    let mut third = world.keeptime(&["run"]);
    third.arg(application(&world, TURNS)).args(["--rate", "60 %", "--measure", "--profile"]);
    let output = third.arg(world.directory.path().join("turns.json")).output().unwrap();
    assert_code(&output, 1);
    assert!(said(&output).contains("CPU"), "{}", said(&output));
}

// Goal: programs that cannot tell how far they are begin beside each other, since nothing is measured of them. Method: the
// halves of two, on nodes where no two could have all of theirs.
#[test]
fn programs_that_cannot_tell_begin_beside_each_other() {
    let Some(world) = World::new("untold", 40) else { return };
    let path = application(&world, TURNS);
    let text = fs::read_to_string(&path).unwrap().replace("progress = ", "# ");
    fs::write(&path, text).unwrap();
    let start = || Running::start_in(&world, world.directory.path(), &path, &["--rate", "50 %"]);
    let _runs = [start(), start()];
    wait("both to have their parts", PATIENCE, || {
        let views = views(&world);
        let has_half = |view: &Value| {
            let state = &view["state"];
            state["phase"] == "unreported" && state["schedule"]["cpu_ppm"] == FULL * 10_000 / 2
        };
        views.len() == 2 && views.iter().all(has_half)
    });
}

// Goal: a program that prints nothing is held by what a command prints of it. Method: turns are lines of a file, which are
// counted; its full speed is kept apart from that of those who tell it themselves.
#[test]
fn a_program_is_held_by_what_a_command_prints() {
    let Some(world) = World::new("ratecommand", 40) else { return };
    // Nodes see where the lab was made.
    let turns = world.directory.path().join("turns").display().to_string();
    let path = application(&world, &TURNS.replace("echo turn", &format!("echo >> {turns}")));
    let told = fs::read_to_string(&path).unwrap();
    let printed = told.replace("\"turn\"", &format!("{{ command = \"wc -l {turns}\" }}"));
    assert_ne!(told, printed);
    fs::write(&path, printed).unwrap();
    let running = Running::start_in(&world, world.directory.path(), &path, &["--rate", "50 %"]);
    running.wait_for("steered");
    wait("a report", 3 * PATIENCE, || running.view()["state"]["actual"].is_f64());
    let lines = || fs::read_to_string(&turns).unwrap().lines().count();
    let before = lines();
    wait("it to go on", PATIENCE, || lines() > before);
    assert!(world.directory.path().join("turns.full-speed-command.json").exists());
}

// Goal: who cannot know how far a run is says so, and the run has its part as one that tells nothing. Method: a command that
// is not there.
#[test]
fn a_command_that_prints_nothing_is_told_of() {
    let Some(world) = World::new("rateuncounted", 40) else { return };
    let mut run = world.keeptime(&["run", "--rate", "50 %", "-n", "2", "--cpu", "20 %"]);
    run.args(["--progress-command", "count-of-nothing", "--", "sh", "-c", "sleep 8"]);
    let output = run.output().unwrap();
    assert_code(&output, 0);
    let said = said(&output);
    assert!(said.contains("count-of-nothing: not found"), "{said}");
}

// Goal: a program that prints nothing is held by its MPI calls. Method: one that computes and meets again and again,
// with the library preloaded; what it has then is half of what it used at full speed, and so is what it does.
#[test]
fn a_program_that_prints_nothing_is_held_by_its_mpi_calls() {
    let root = fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
    let [library, program] =
        ["mpi/build/open-mpi/libkeeptime_mpi.so", "workloads/build/open-mpi/bsp"]
            .map(|path| root.join(path));
    if let Some(missing) = [&library, &program].into_iter().find(|path| !path.exists()) {
        skip(&["mpi".to_owned()], &format!("{} is not built", missing.display()));
        return;
    }
    let Some(world) = World::of("ratempi", &["--nodes", "2"], 40, root.to_str()) else { return };
    let script = format!(
        "exec env LD_PRELOAD={} {} --compute 20 --iterations 1000000 > /dev/null",
        library.display(),
        program.display()
    );
    let application = application_telling(&world, &script, "MPI calls");
    // Ranks begin where it was started, which nodes have to see.
    let running = Running::start_in(&world, &root, &application, &["--rate", "50 %"]);
    let view = running.wait_for("steered");
    assert!(view["state"]["full_speed"].as_f64().unwrap() > 0.5, "{view}");
    let (share, used) = running.used();
    println!("at 50 %: {share:.3} of a processor each, used {used:.3?}");
    assert!((0.03..=0.17).contains(&share), "{share}");
    assert!(used.iter().all(|used| *used <= share + 0.03 && *used > 0.2 * share), "{used:?}");
    wait("half of full speed", 3 * PATIENCE, || {
        let actual = running.view()["state"]["actual"].as_f64();
        actual.is_some_and(|actual| (actual - 0.5).abs() < 0.1)
    });
}

#[test]
fn words_that_make_no_rate_are_named() {
    let Some(world) = World::new("norate", 10) else { return };
    let path = application(&world, TURNS);
    let run = |words: &[&str]| world.keeptime(&["run"]).arg(&path).args(words).output().unwrap();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--rate", "0 %"], 64, "more than 0 %"),
        (&["--rate", "120 %"], 64, "0 % to 100 %"),
        (&["--rate", "30 %", "--threshold", "0 %"], 64, "threshold"),
        (&["--rate", "30 %", "--within", "1s"], 64, "--within"),
        (&["--rate", "30 %", "--nodes", "3"], 64, "nodes: \"3\""),
        // Nodes have 10 %, and full speed takes 30 %.
        (&["--rate", "30 %"], 1, "refused"),
    ];
    for (words, code, expected) in cases {
        let output = run(words);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(expected), "{words:?}: {text} should contain {expected}");
    }
    let output = world.keeptime(&["rate", "set", "r99", "30 %"]).output().unwrap();
    assert_code(&output, 64);
    assert!(
        said(&output).contains("there is none of yours on this machine now"),
        "{}",
        said(&output)
    );
    let nothing = "no run is held at a rate: keeptime run --rate begins one\n";
    assert_eq!(world.run(&["top", "--once"], 0), nothing);
}
