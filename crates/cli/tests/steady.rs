//! Runs that take the time that was promised for them, on a real lab: what they do not need is lent.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use serde_json::Value;
use world::{PATIENCE, Program, World, assert_code, said, wait};

/// Twelve units of the same work by one rank; the time is their mean.
const SCRIPT: &str = "[ $OMPI_COMM_WORLD_RANK = 0 ] || exec sleep 1; begin=$(date +%s%N); \
    for unit in 1 2 3 4 5 6 7 8 9 10 11 12; do \
    i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo unit $unit; done; \
    micros=$((($(date +%s%N) - begin) / 12000)); \
    printf 'time %d.%06d\\n' $((micros / 1000000)) $((micros % 1000000))";

/// How often a busy machine may come between.
const TRIES: usize = 5;

fn actual(world: &World, program: &Program, words: &[&str]) -> f64 {
    let words = [&["--within", "60s", "--json"], words].concat();
    let output = world.ask("run", program, &words).output().unwrap();
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
        let points = [(5, 1.0), (20, 1.0)];
        let quick = actual(&world, &world.program_with_cpu(SCRIPT, "90 s", &points, 30), &[]);
        let promised = 2.0 * quick;
        let points = points.map(|(mbit, _)| (mbit, promised));
        let program = world.program_with_cpu(SCRIPT, "90 s", &points, 30);
        let steady = actual(&world, &program, &["--steady"]);
        let again = actual(&world, &program, &[]);
        println!("{promised} s promised: steady {steady} s, without being held {again} s");
        (0.8..1.2).contains(&(steady / promised)) && again < 0.7 * promised
    });
    assert!(takes_what_was_promised, "it did not, {TRIES} times");
    world.wait_until_idle(&before, PATIENCE);
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
