//! Controllers on simulated programs: that these behave as real ones were measured to, and what the
//! paper's policy and ours make of them.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_control::plant::bsp::{BspPlant, Machine, Program, Waiting};
use keeptime_control::plant::{Plant, steer};
use keeptime_control::schedule::{cpu_floor, utilisation};
use keeptime_control::{Controller, Policy, Report, Schedule, Settings};
use keeptime_model::units::{CpuPpm, Nanos, Share};

/// Processors that do not wander.
fn steady() -> Machine {
    Machine { wander: 0.0, ..Machine::default() }
}

fn plant(ratio: f64, waiting: Waiting, machine: Machine, seed: u64) -> BspPlant {
    BspPlant::new(Program::balanced(2, 0.05, ratio, waiting), machine, seed)
}

/// The rate at utilisation `share`, as a part of full speed.
fn rate_at(mut plant: BspPlant, share: f64, period_millis: u64) -> f64 {
    let full = plant.full_speed(50).unwrap().rate();
    let schedule = Schedule::new(cpu_floor(share), Nanos::from_millis(period_millis));
    plant.apply(&[schedule; 2]);
    let from = plant.now();
    (0..300).for_each(|_| drop(plant.next_report()));
    300.0 / plant.now().saturating_sub(from).as_secs_f64() / full
}

// Measured: blocking ranks use 0.52 (1:1) and 0.18 (1:5) of a processor at full speed, polling ones all
// of it; with half of one, blocking ranks run at 0.97 and 1.0 of full speed.
#[test]
fn simulated_programs_use_what_real_ones_use() {
    for (ratio, used) in [(1.0, 0.52), (0.2, 0.18), (5.0, 0.84)] {
        let full = plant(ratio, Waiting::Blocks, steady(), 1).full_speed(50).unwrap();
        assert!((full.utilisation(0) - used).abs() < 0.03, "{ratio}: {}", full.utilisation(0));
        let full = plant(ratio, Waiting::Polls, steady(), 1).full_speed(50).unwrap();
        assert!((full.utilisation(0) - 1.0).abs() < 0.01, "{ratio}: {}", full.utilisation(0));
    }
    let half = |ratio| rate_at(plant(ratio, Waiting::Blocks, steady(), 1), 0.5, 100);
    assert!((0.85..1.0).contains(&half(1.0)), "{}", half(1.0));
    assert!(half(0.2) > 0.97, "{}", half(0.2));
}

// Measured: with periods of 20 to 100 ms rates follow utilisation within about 5 % at 5:1 and 1:1;
// fine-grained communication makes it jump (0.43 to 0.68 at U = 0.5).
#[test]
fn simulated_rates_follow_utilisation_as_real_ones_do() {
    let at_half = |ratio, period| rate_at(plant(ratio, Waiting::Polls, steady(), 1), 0.5, period);
    for period in [20, 50] {
        assert!((at_half(5.0, period) - 0.5).abs() < 0.06, "{period}: {}", at_half(5.0, period));
    }
    let rates: Vec<_> = [10, 20, 50, 100, 200].map(|period| at_half(0.2, period)).into();
    assert!(rates.iter().all(|rate| (0.3..0.75).contains(rate)), "{rates:?}");
}

#[test]
fn a_schedule_gives_the_share_that_it_says() {
    for (slice, period) in [(10, 20), (2, 10), (50, 100), (1, 5)] {
        let program = Program {
            compute: vec![10.0],
            messages: 0.0,
            network: 0.0,
            rounds: 1,
            waiting: Waiting::Polls,
        };
        let mut plant = BspPlant::new(program, Machine { scatter: 0.0, ..steady() }, 1);
        let share = f64::from(slice) / period as f64;
        plant.apply(&[Schedule::new(cpu_floor(share), Nanos::from_millis(period))]);
        let report = plant.next_report();
        let got = 10.0 / report.seconds();
        assert!((got / share - 1.0).abs() < 0.01, "{slice}/{period}: {got}");
    }
}

/// What came of steering: the error of the second half's mean rate (over time: a mean of rates would count
/// fast iterations as often as slow ones), as a part of full speed.
struct Steered {
    error: f64,
    /// After so many reports the mean of twenty was within the threshold: one iteration alone has a pause or
    /// has none.
    first_within: Option<usize>,
    unproportional: f64,
}

fn run(
    mut plant: BspPlant,
    target: f64,
    threshold: f64,
    policy: Policy,
    reports: usize,
) -> Steered {
    let full_speed = plant.full_speed(30).unwrap();
    let share = |value: f64| Share::try_from((value * 1e6) as u32).unwrap();
    let settings =
        Settings { policy, ..Settings::new(share(target), share(threshold), full_speed) };
    let (mut controller, proposal) = Controller::start(settings, plant.now()).unwrap();
    let (mut seen, mut unproportional) = (vec![], 0.0f64);
    let truth = plant.clone();
    steer(&mut controller, Some(proposal), &mut plant, reports, |report, controller| {
        let fraction = report.rate() / truth.full_rate_at(report.to());
        seen.push((report.seconds(), fraction));
        for (node, schedule) in controller.view().schedules.iter().enumerate() {
            let used = controller.settings().full_speed.utilisation(node);
            let off = utilisation(schedule.cpu()) / used - target;
            unproportional = unproportional.max(off.abs());
        }
    })
    .unwrap();
    let error = |of: &[(f64, f64)]| {
        let done: f64 = of.iter().map(|(seconds, fraction)| seconds * fraction).sum();
        let seconds: f64 = of.iter().map(|(seconds, _)| seconds).sum();
        (done / seconds - target).abs()
    };
    let first_within = seen.windows(20).position(|twenty| error(twenty) <= threshold);
    Steered { error: error(&seen[seen.len() / 2..]), first_within, unproportional }
}

// Programs of all three ratios of the paper, at several targets, with and without polling.
#[test]
fn ours_holds_programs_of_every_ratio_at_their_rates() {
    for waiting in [Waiting::Blocks, Waiting::Polls] {
        for ratio in [5.0, 1.0, 0.2] {
            for target in [0.1, 0.3, 0.5, 0.8] {
                let steered = run(
                    plant(ratio, waiting, steady(), 3),
                    target,
                    0.02,
                    Policy::predictive(),
                    400,
                );
                let what = format!("{waiting:?} {ratio}:1 at {target}");
                assert!(steered.unproportional <= 0.0201, "{what}: {}", steered.unproportional);
                assert!(steered.error <= 0.02, "{what}: error {}", steered.error);
                assert!(steered.first_within.is_some(), "{what}: never within the threshold");
            }
        }
    }
}

// The paper's IS case: two nodes work half as much as the others.
#[test]
fn ranks_that_work_unequally_have_unequal_shares() {
    let program = Program {
        compute: vec![0.028, 0.028, 0.014, 0.014],
        messages: 0.0,
        network: 0.072,
        rounds: 4,
        waiting: Waiting::Blocks,
    };
    let plant = BspPlant::new(program, steady(), 5);
    let full = plant.full_speed(30).unwrap();
    assert!((full.utilisation(0) / full.utilisation(2) - 2.0).abs() < 0.1);
    let settings =
        Settings::new(Share::from_percent(50).unwrap(), Share::from_percent(3).unwrap(), full);
    let (_, proposal) = Controller::start(settings, Nanos::new(0)).unwrap();
    let cpu: Vec<_> = proposal.schedules.iter().map(|schedule| schedule.cpu().get()).collect();
    assert!((130_000..150_000).contains(&cpu[0]) && (63_000..77_000).contains(&cpu[2]), "{cpu:?}");
    let steered = run(plant, 0.5, 0.03, Policy::predictive(), 300);
    assert!(steered.error <= 0.03, "{}", steered.error);
}

#[test]
fn nobody_has_more_than_a_processor() {
    let full = plant(5.0, Waiting::Polls, steady(), 1).full_speed(30).unwrap();
    let settings = Settings::new(Share::ONE, Share::from_percent(3).unwrap(), full);
    assert!(settings.ceilings().iter().all(|cpu| *cpu <= CpuPpm::from_percent(100)));
}

/// A program whose reports span a second, as `keeptime run` makes them.
struct Told(BspPlant);

impl Plant for Told {
    fn apply(&mut self, schedules: &[Schedule]) {
        self.0.apply(schedules);
    }

    fn next_report(&mut self) -> Report {
        let (from, mut work, mut used) = (self.now(), 0.0, Vec::new());
        while self.now().saturating_sub(from) < Nanos::from_secs(1) {
            let iteration = self.0.next_report();
            work += iteration.work();
            used.resize(iteration.used().len(), Nanos::default());
            let both = used.iter_mut().zip(iteration.used());
            both.for_each(|(sum, used)| *sum = sum.saturating_add(*used));
        }
        Report::new(from, self.now(), work, &used).unwrap()
    }

    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn pass(&mut self, until: Nanos) {
        self.0.pass(until);
    }
}

// Goal: a new target is met by the first step, though a program loses budget asleep there and lost none before. Method: two
// of the paper's programs, as ours are, go to targets at which they lose nothing and much; their computing scatters by 5 %.
// Before that was reckoned, only half of the first reports were within the threshold.
#[test]
fn what_would_be_lost_asleep_is_reckoned() {
    let percent = |percent: u32| Share::from_percent(percent).unwrap();
    for (ratio, compute) in [(1.0, 0.025), (0.2, 0.010)] {
        let mut off = Vec::new();
        for seed in 0..50 {
            let machine = Machine { scatter: 0.05, ..Machine::default() };
            let program = Program::balanced(4, compute, ratio, Waiting::Blocks);
            let plant = BspPlant::new(program, machine, seed);
            let full_speed = plant.full_speed(90).unwrap().as_one_if_alike(0.8);
            let settings = Settings::new(percent(30), percent(3), full_speed);
            let mut plant = Told(plant);
            let (mut controller, proposal) = Controller::start(settings, plant.now()).unwrap();
            let mut proposal = Some(proposal);
            for (target, next) in [(30, 60), (60, 20), (20, 80), (80, 40)] {
                let mut first = None;
                steer(&mut controller, proposal, &mut plant, 24, |_, controller| {
                    first = first.or(controller.view().actual);
                })
                .unwrap();
                off.push((first.unwrap() - f64::from(target) / 100.0).abs());
                let pending = controller.pending().cloned();
                let follows = controller.retarget(percent(next), None).unwrap();
                proposal = pending.or(follows);
            }
        }
        let within = off.iter().filter(|off| **off <= 0.03).count();
        assert!(within * 20 >= off.len() * 17, "{ratio}: {within} of {}: {off:?}", off.len());
    }
}
