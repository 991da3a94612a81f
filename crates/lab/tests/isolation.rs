//! A node is as fast as a slower machine of its own, whatever the other nodes do.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HAND, World};
use keeptime_lab::isolation::{Work, measure};
use keeptime_lab::{Exec, Lab, Words};
use keeptime_model::units::Nanos;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What a node may have beyond its share at the edges of a window, in seconds.
const SLACK: f64 = 0.03;

/// One at a time: each wants what the machine has.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn work(steps: &str) -> Work {
    let words = |steps: &str| Words::Argv([HAND, "compute", steps].map(Into::into).to_vec());
    Work { fixed: words(steps), endless: words("18446744073709551615") }
}

/// Steps of the computation that take about so many seconds on a node.
fn calibrate(lab: &Lab, seconds: f64) -> String {
    let steps = 5_000_000;
    let start = Instant::now();
    let mut exec = Exec::new("n1", Vec::<String>::new());
    exec.words = work(&steps.to_string()).fixed;
    assert!(lab.spawn(exec).unwrap().wait().unwrap().success());
    (f64::from(steps) * seconds / start.elapsed().as_secs_f64()).round().to_string()
}

/// CPU seconds that each node has used.
fn used(lab: &Lab) -> Vec<f64> {
    let nodes = lab.status().nodes;
    nodes.iter().map(|node| node.cpu_nanos.unwrap().get() as f64 * 1e-9).collect()
}

// Goal: shares are limits: whatever four nodes on two CPUs do, none has more than its own, and so none takes as long as it would
// beside four that take what they can get, twice its time. Method: less than half of the machine is promised, so that what others
// take of it changes little; how little a node loses `make bench-isolation` tells.
#[test]
fn four_nodes_on_two_cpus_have_their_shares_and_no_more() {
    const SHARE: u32 = 20;
    let _machine = alone();
    let Some(world) = World::to_measure() else { return };
    let lab = world.up(4, SHARE);
    let steps = calibrate(&lab, 0.5);
    let (start, before) = (Instant::now(), used(&lab));
    let result = measure(&lab, "n1", &work(&steps), 5).unwrap();
    let most = 0.01 * f64::from(SHARE) * start.elapsed().as_secs_f64() + SLACK;
    let grown: Vec<_> = used(&lab).iter().zip(&before).map(|(now, then)| now - then).collect();
    let slowdown = result.slowdown().unwrap();
    println!("{result:.3?}: {:.1} % slower; used {grown:.3?} s of {most:.3}", 100.0 * slowdown);
    assert!(grown.iter().all(|used| *used <= most), "{grown:?} s of {most}");
    assert!(grown.iter().all(|used| *used > 0.0), "some nodes did nothing: {grown:?}");
    // On a machine that others use; without limits it is 1.
    assert!(slowdown < 0.5, "{result:?}");
    world.down(&lab);
}

#[test]
fn a_node_has_its_share_and_no_more() {
    const TRIES: usize = 10;
    let _machine = alone();
    let Some(world) = World::to_measure() else { return };
    let lab = world.up(2, 30);
    let hog = lab.spawn(Exec::new("n2", [HAND, "compute", "99999999999"])).unwrap();
    // It has less while others on this machine take more than the reserve.
    let has_its_share = (0..TRIES).any(|_| {
        let (start, before) = (Instant::now(), used(&lab)[1]);
        std::thread::sleep(Duration::from_secs(1));
        let grown = used(&lab)[1] - before;
        let seconds = start.elapsed().as_secs_f64();
        println!("{grown:.3} s in {seconds:.3} s, of 30 %");
        assert!(grown <= 0.3 * seconds + SLACK, "{grown} s in {seconds} s");
        grown > 0.25 * seconds
    });
    hog.signal(nix::sys::signal::Signal::SIGKILL);
    hog.wait().unwrap();
    assert!(has_its_share, "less, {TRIES} times");
    world.down(&lab);
}

// The experiment behind the period that is used: cargo test -- --ignored --nocapture periods
#[test]
#[ignore = "an experiment of some minutes"]
fn periods_compared() {
    let _machine = alone();
    let Some(world) = World::to_measure() else { return };
    let lab = world.up(4, 40);
    let steps = calibrate(&lab, 1.0);
    let rounds = std::env::var("ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let mut all = Vec::new();
    for _ in 0..rounds {
        for millis in [5, 10, 20, 50] {
            for node in lab.topology().nodes() {
                let group = lab.group(&node.name).unwrap();
                group.set_cpu_in_periods(node.cpu, Nanos::from_millis(millis)).unwrap();
            }
            all.push((millis, measure(&lab, "n1", &work(&steps), 5).unwrap()));
        }
    }
    for millis in [5, 10, 20, 50] {
        let mut sum = keeptime_lab::isolation::Isolation::default();
        for (_, one) in all.iter().filter(|(m, _)| *m == millis) {
            sum.alone.extend(&one.alone);
            sum.crowded.extend(&one.crowded);
        }
        let spread = |samples: &[f64]| {
            let mut sorted = samples.to_vec();
            sorted.sort_by(f64::total_cmp);
            (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1])
        };
        println!(
            "{millis} ms: alone {:.3?}, crowded {:.3?} (least, median, most): {:+.2} %",
            spread(&sum.alone),
            spread(&sum.crowded),
            100.0 * sum.slowdown().unwrap()
        );
    }
    world.down(&lab);
}
