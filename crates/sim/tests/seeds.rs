//! Seeds that are always run. (`scripts/test` runs new ones too, and `make soak` as many as you like.)

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_sim::fault::{Kind, Kinds};
use keeptime_sim::run::{Options, Report, run};

/// Fewer in debug mode, where everything is slow.
const SEEDS: u64 = if cfg!(debug_assertions) { 6 } else { 30 };

fn must_hold(options: &Options) -> Report {
    run(options).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn everything_holds_with_fixed_seeds() {
    for seed in 1..=SEEDS {
        must_hold(&Options::of_seed(seed));
    }
}

/// When only the broker is killed, between its calls and inside them, nothing that was granted is
/// lost: every event that says so would be a violation.
#[test]
fn killed_brokers_lose_nothing() {
    let faults = Kinds::of(&[Kind::BrokerKills]);
    let calls = if cfg!(debug_assertions) { 4_000 } else { 20_000 };
    let report = must_hold(&Options { events: u64::MAX, calls, faults, ..Options::of_seed(1) });
    assert!(report.brokers > calls / 200, "{report}");
    assert!(report.recorded["granted"] > calls / 20, "{report}");
    assert!(report.recorded["ended"] > 0 && report.recorded["modified"] > 0, "{report}");
    assert!(!report.recorded.contains_key("lost"), "{report}");
}

#[test]
fn one_seed_has_one_result() {
    let options = Options { events: 6_000, ..Options::of_seed(11) };
    let (first, second) = (must_hold(&options), must_hold(&options));
    assert_eq!(first, second);
    assert_ne!(first.digest, must_hold(&Options { seed: 12, ..options }).digest);
}

/// Each fault alone, where it takes effect: what is not asked for does not happen, and what is asked for does.
#[test]
fn every_kind_of_fault_happens() {
    for kind in Kind::ALL {
        let faults = Kinds::of(&[*kind]);
        let options = Options { faults: faults.clone(), events: 8_000, ..Options::of_seed(5) };
        let report = must_hold(&options);
        assert_eq!(report.effects.kinds(), faults, "{}: {report}", kind.name());
    }
}

/// Seeds of `make soak` that found something, kept with the faults that it took.
#[test]
fn seeds_that_found_something_hold() {
    let of = |seed, events, faults: &[Kind]| Options {
        events,
        faults: Kinds::of(faults),
        ..Options::of_seed(seed)
    };
    // Granted and made slower in the same step: the answer told what was between the two.
    must_hold(&of(1_795_719_900_006_173, 3_112, &[Kind::AgentKills, Kind::Repeats]));
    // A flow was given one bit/s more than was left, which is one too many for who asks next.
    let faults = [Kind::BrokerKills, Kind::AgentKills, Kind::Breaks, Kind::Losses, Kind::Clocks];
    must_hold(&of(1_795_727_314_002_222, 7_032, &faults));
    // What began another time gave up more than was counted: that by which it was extended, too.
    let faults = [Kind::AgentKills, Kind::Partitions, Kind::Delays];
    must_hold(&of(1_796_078_939_000_006, 2_036, &faults));
    // Who waits for agents was offered other nodes each time that one was gone: for as long as nodes went.
    let faults = [
        Kind::BrokerKills,
        Kind::FullDisks,
        Kind::Reboots,
        Kind::Kernels,
        Kind::Delays,
        Kind::Losses,
    ];
    must_hold(&of(1_796_079_102_000_014, 6_117, &faults));
}
