//! Runs that take the time that was promised for them, on a real lab: what they do not need is lent.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use world::{PATIENCE, Program, World, assert_code, said, wait};

/// Twelve units of the same work by one rank; the time is their mean.
const SCRIPT: &str = "[ $OMPI_COMM_WORLD_RANK = 0 ] || exec sleep 1; begin=$(date +%s%N); \
    for unit in 1 2 3 4 5 6 7 8 9 10 11 12; do \
    i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo unit $unit; done; \
    micros=$((($(date +%s%N) - begin) / 12000)); \
    printf 'time %d.%06d\\n' $((micros / 1000000)) $((micros % 1000000))";

/// How often a busy machine may come between.
const TRIES: usize = 5;
/// A goal that is kept wherever there is room.
const GOAL: [&str; 2] = ["--within", "60s"];

fn actual(world: &World, program: &Program, words: &[&str]) -> f64 {
    let output = world.ask("run", program, &[words, &["--json"]].concat()).output().unwrap();
    assert_code(&output, 0);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["actual_nanos"].as_u64().unwrap() as f64 / 1e9
}

// Goal: a run for which more time was promised than it needs takes the time that was promised. Method: the same run
// with a promise of twice as much, steady and not. What else the machine does is different each time: so the bounds
// are wide, and it may come between now and then.
#[test]
fn a_steady_run_takes_what_was_promised_and_gives_its_share_back() {
    let Some(world) = World::new("steady", 40) else { return };
    let before = world.processes();
    let takes_what_was_promised = (0..TRIES).any(|_| {
        let (program, promised) = promised_twice(&world);
        let steady = actual(&world, &program, &[&GOAL[..], &["--steady"]].concat());
        let again = actual(&world, &program, &GOAL);
        println!("{promised} s promised: steady {steady} s, without being held {again} s");
        (0.8..1.2).contains(&(steady / promised)) && again < 0.7 * promised
    });
    assert!(takes_what_was_promised, "it did not, {TRIES} times");
    world.wait_until_idle(&before, PATIENCE);
}

/// A program to which twice the time is promised that it takes, and that time.
fn promised_twice(world: &World) -> (Program, f64) {
    let points = [(5, 1.0), (20, 1.0)];
    let quick = actual(world, &world.program_with_cpu(SCRIPT, "90 s", &points, 30), &GOAL);
    let promised = 2.0 * quick;
    let points = points.map(|(mbit, _)| (mbit, promised));
    (world.program_with_cpu(SCRIPT, "90 s", &points, 30), promised)
}

/// Kills a steady run in a reservation when it is held at less than that has.
fn kill_steady(world: &World, program: &Program, handle: &str) {
    let mut run = world.ask("run", program, &["--in", handle, "--steady"]);
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("unit 8")));
    run.kill().unwrap();
    run.wait().unwrap();
    wait("the end of what it ran", PATIENCE, || {
        world.jobs().iter().all(|job| job.processes.is_empty())
    });
}

// Goal: what a run was held at is nothing to the next one in the same reservation. Method: the same run after one that was killed
// while it was held, and after one that ended.
#[test]
fn what_a_steady_run_had_is_had_by_the_next_one() {
    let Some(world) = World::new("lifted", 40) else { return };
    let have_all = (0..TRIES).any(|_| {
        let (program, promised) = promised_twice(&world);
        assert_code(&world.ask("register", &program, &[]).output().unwrap(), 0);
        let words = ["reserve", "--app", "say", "--within", "60s", "--for", "10min", "--quiet"];
        let handle = world.run(&words, 0);
        let handle = handle.trim();
        kill_steady(&world, &program, handle);
        let after_killed = actual(&world, &program, &["--in", handle]);
        let steady = actual(&world, &program, &["--in", handle, "--steady"]);
        let after = actual(&world, &program, &["--in", handle]);
        world.run(&["cancel", handle], 0);
        println!(
            "{promised} s promised: {after_killed} s after a killed run, {after} s after {steady} s"
        );
        steady > 0.8 * promised && after_killed < 0.7 * promised && after < 0.7 * promised
    });
    assert!(have_all, "they did not, {TRIES} times");
}

#[test]
fn who_tells_no_progress_cannot_be_held() {
    let Some(world) = World::new("tells", 20) else { return };
    let program = world.program("echo time 1", "60 s", &[(5, 1.0)]);
    program.forget_progress();
    let output = world.ask("run", &program, &["--within", "60s", "--steady"]).output().unwrap();
    let text = said(&output);
    assert!(text.contains("steady") && text.contains("progress"), "{text}");
    wait("its resources to be given back", PATIENCE, || world.jobs().is_empty());
}
