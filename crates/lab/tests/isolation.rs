//! A node is as fast as a slower machine of its own, whatever the other nodes do.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HAND, World, wait_for};
use keeptime_lab::isolation::{Work, measure};
use keeptime_lab::{Exec, Lab, Words};
use keeptime_model::units::Nanos;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// One at a time: each wants what the machine has.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn work(steps: &str) -> Work {
    let words = |steps: &str| Words::Argv([HAND, "compute", steps].map(Into::into).to_vec());
    Work { fixed: words(steps), endless: words("18446744073709551615") }
}

/// Steps of the computation that take about a second on a node.
fn calibrate(lab: &Lab) -> String {
    let steps = 20_000_000;
    let start = Instant::now();
    let mut exec = Exec::new("n1", Vec::<String>::new());
    exec.words = work(&steps.to_string()).fixed;
    assert!(lab.spawn(exec).unwrap().wait().unwrap().success());
    (f64::from(steps) / start.elapsed().as_secs_f64()).round().to_string()
}

// A bound far above what is measured (below 2 %), since the machine may be busy.
#[test]
fn four_nodes_on_two_cpus_do_not_slow_each_other() {
    let _machine = alone();
    let Some(world) = World::new() else { return };
    let lab = world.up(4, 40);
    let steps = calibrate(&lab);
    let result = measure(&lab, "n1", &work(&steps), 5).unwrap();
    let slowdown = result.slowdown().unwrap();
    println!("{result:.3?}: {:.1} % slower", 100.0 * slowdown);
    assert!(slowdown < 0.15, "{result:?}");
    world.down(&lab);
}

#[test]
fn a_node_has_its_share_and_no_more() {
    let _machine = alone();
    let Some(world) = World::new() else { return };
    let lab = world.up(2, 30);
    let used = || lab.status().nodes[1].cpu_nanos.unwrap().get() as f64 * 1e-9;
    let hog = lab.spawn(Exec::new("n2", [HAND, "compute", "99999999999"])).unwrap();
    let (start, before) = (Instant::now(), used());
    wait_for("some use", || start.elapsed().as_secs_f64() > 2.0);
    let share = (used() - before) / start.elapsed().as_secs_f64();
    hog.signal(nix::sys::signal::Signal::SIGKILL);
    hog.wait().unwrap();
    println!("share: {:.1} % of 30 %", 100.0 * share);
    // It has less if others on this machine take more than the reserve.
    assert!((0.2..=0.31).contains(&share), "{share}");
    world.down(&lab);
}

// The experiment behind the period that is used: cargo test -- --ignored --nocapture periods
#[test]
#[ignore = "an experiment of some minutes"]
fn periods_compared() {
    let _machine = alone();
    let Some(world) = World::new() else { return };
    let lab = world.up(4, 40);
    let steps = calibrate(&lab);
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
