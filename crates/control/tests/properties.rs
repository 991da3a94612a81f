//! What holds for every controller on every plant of the class that ours claims: utilisation is
//! proportional, nodes are never promised more than they have, and the rate does not swing beyond the
//! threshold. The same checks find planted bugs.
//!
//! The class: rates that follow the share by half to one and a half of what the model says; a share
//! within half of the threshold from the model's that gives the target; an answer after at most
//! two reports; any noise of single reports up to 5 %; slow drift; clocks with a coarse step.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_control::admission::Bounds;
use keeptime_control::plant::gain::{Gain, GainPlant};
use keeptime_control::plant::{Plant, Random};
use keeptime_control::schedule::utilisation;
use keeptime_control::{Controller, FullSpeed, Outcome, Policy, Range, Report, Schedule, Settings};
use keeptime_model::units::{CpuPpm, Nanos, Share};
use proptest::prelude::*;

/// A plant of the class, and what is asked of it.
#[derive(Debug, Clone)]
struct Case {
    gain: Gain,
    target: f64,
    threshold: f64,
    seed: u64,
}

impl Case {
    fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut between = |least: f64, most: f64| least + (most - least) * random.part();
        let (target, threshold) = (between(0.08, 0.9), between(0.01, 0.05));
        let slope = between(0.5, 1.5);
        let offset = between(-0.5, 0.5) * threshold;
        let iteration_seconds = between(0.05, 2.0);
        let nodes = between(1.0, 5.0) as usize;
        let cpu = (0..nodes).map(|_| CpuPpm::new(between(150_000.0, 1e6) as u32)).collect();
        let gain = Gain {
            iteration_seconds,
            cpu,
            efficiency: target / (target + slope * offset),
            slope,
            around: target,
            delay: between(0.0, 2.99) as usize,
            noise: between(0.0, 0.05),
            drift: between(0.0, 0.2) * threshold * slope / target,
            drift_iterations: between(300.0, 1_000.0),
            clock_step: Nanos::from_secs_f64(iteration_seconds * between(0.0, 0.02)).unwrap(),
        };
        Self { gain, target, threshold, seed }
    }

    fn share(value: f64) -> Share {
        Share::try_from((value * 1e6) as u32).unwrap()
    }

    fn full_speed(&self) -> FullSpeed {
        FullSpeed::new(1.0 / self.gain.iteration_seconds, &self.gain.cpu).unwrap()
    }

    fn settings(&self, policy: Policy) -> Settings {
        let (target, threshold) = (Self::share(self.target), Self::share(self.threshold));
        Settings { policy, ..Settings::new(target, threshold, self.full_speed()) }
    }

    /// The deviation of single reports, as a part of full speed.
    fn noise(&self) -> f64 {
        let step = self.gain.clock_step.as_secs_f64() / self.gain.iteration_seconds;
        self.target * (self.gain.noise + step * self.target)
    }

    /// What nobody can tell from noise.
    fn floor(&self) -> f64 {
        self.threshold.max(self.noise())
    }
}

/// Something that steers.
trait Control {
    fn start(&mut self) -> Vec<Schedule>;
    fn report(&mut self, report: &Report) -> Option<Vec<Schedule>>;
}

/// A controller of this crate, all of whose proposals are carried out at once.
struct Real {
    settings: Settings,
    controller: Option<Controller>,
}

impl Control for Real {
    fn start(&mut self) -> Vec<Schedule> {
        let (mut controller, proposal) =
            Controller::start(self.settings.clone(), Nanos::new(0)).unwrap();
        controller.resolve(proposal.sequence, Outcome::InForce { since: Nanos::new(0) });
        self.controller = Some(controller);
        proposal.schedules
    }

    fn report(&mut self, report: &Report) -> Option<Vec<Schedule>> {
        let controller = self.controller.as_mut().unwrap();
        let proposal = controller.report(report).unwrap()?;
        controller.resolve(proposal.sequence, Outcome::InForce { since: report.to() });
        Some(proposal.schedules)
    }
}

/// Bugs that controllers of this kind are known for.
#[derive(Clone, Copy)]
enum Bug {
    /// The sum of errors grows without bound.
    Windup,
    /// Every report is believed, and answered twice as strongly as the model says.
    Haste,
    /// The program is given what it asks for, proportional or not.
    Generosity,
}

struct Planted {
    bug: Bug,
    case: Case,
    share: f64,
    sum: f64,
}

impl Planted {
    fn schedules(&self) -> Vec<Schedule> {
        let of = |cpu: &CpuPpm| {
            let cpu = CpuPpm::new((utilisation(*cpu) * self.share * 1e6) as u32);
            Schedule::new(cpu, Nanos::from_millis(20))
        };
        self.case.gain.cpu.iter().map(of).collect()
    }
}

impl Control for Planted {
    fn start(&mut self) -> Vec<Schedule> {
        self.share = self.case.target;
        self.schedules()
    }

    fn report(&mut self, report: &Report) -> Option<Vec<Schedule>> {
        let error = report.rate() * self.case.gain.iteration_seconds - self.case.target;
        self.sum += error;
        self.share = match self.bug {
            Bug::Windup => self.case.target - self.sum,
            Bug::Haste => self.share - 2.0 * error,
            Bug::Generosity => self.share * 1.01,
        };
        self.share = self.share.clamp(0.001, 2.0);
        Some(self.schedules())
    }
}

/// What is checked, and the most that any controller may do.
#[derive(Debug, Default)]
struct Seen {
    /// The furthest that a node's utilisation was from the target, relative to full speed.
    unproportional: f64,
    /// How far the rate was, without noise, once it had time to settle: 99 of 100 reports were nearer.
    /// (The greatest distance has no bound: noise has none.)
    swing: f64,
    /// Changes, after that.
    changes: usize,
}

const REPORTS: usize = 500;
/// By then every plant of the class has settled, however noisy.
const SETTLED: usize = 150;

fn watch(case: &Case, control: &mut impl Control) -> Seen {
    let mut plant = GainPlant::new(case.gain.clone(), case.seed);
    let mut seen = Seen::default();
    let mut distances = Vec::new();
    let mut schedules = control.start();
    plant.apply(&schedules);
    for at in 0..REPORTS {
        for (schedule, cpu) in schedules.iter().zip(&case.gain.cpu) {
            let share = utilisation(schedule.cpu()) / utilisation(*cpu);
            seen.unproportional = seen.unproportional.max((share - case.target).abs());
        }
        let report = plant.next_report();
        if at >= SETTLED {
            distances.push((plant.fraction() - case.target).abs());
        }
        if let Some(next) = control.report(&report) {
            plant.apply(&next);
            schedules = next;
            seen.changes += usize::from(at >= SETTLED);
        }
    }
    distances.sort_by(f64::total_cmp);
    seen.swing = distances[distances.len() * 99 / 100];
    seen
}

/// The promises; what is not kept, in words.
fn check(case: &Case, seen: &Seen) -> Result<(), String> {
    if seen.unproportional > case.threshold + 1e-5 {
        return Err(format!("utilisation {} off: {case:?}", seen.unproportional));
    }
    if seen.swing > case.floor() + 1e-6 {
        return Err(format!("rate {} off, of {}: {case:?}", seen.swing, case.floor()));
    }
    Ok(())
}

fn real(case: &Case, policy: Policy) -> Real {
    Real { settings: case.settings(policy), controller: None }
}

fn planted(case: &Case, bug: Bug) -> Planted {
    Planted { bug, case: case.clone(), share: 0.0, sum: 0.0 }
}

/// Others each time: of 170,000 none was found that leaves the floor of its noise, and one since (docs/rate-control.md).
fn cases() -> ProptestConfig {
    ProptestConfig { cases: 256, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn ours_stays_proportional_and_does_not_swing(seed: u64) {
        let case = Case::of(seed);
        let seen = watch(&case, &mut real(&case, Policy::predictive()));
        prop_assert_eq!(check(&case, &seen), Ok(()));
        // Messages to all nodes are few once it has settled.
        prop_assert!(seen.changes <= 40, "{} changes: {:?}", seen.changes, case);
    }

    // The paper's search keeps its utilisation, whatever the rate does.
    #[test]
    fn the_papers_stays_proportional(seed: u64) {
        let case = Case::of(seed);
        let seen = watch(&case, &mut real(&case, Policy::paper()));
        prop_assert!(seen.unproportional <= 1e-5, "{}", seen.unproportional);
    }

    // Goal: whatever is asked for and changed, nodes never have more promised than they admit, and no
    // controller takes more than it was promised. Method: up to eight applications on two nodes start,
    // change their targets and report; a target is only set if what it may come to need is admitted.
    #[test]
    fn nodes_are_never_oversubscribed(seed: u64) {
        prop_assert_eq!(share_nodes(seed, false), Ok(()));
    }
}

// The one plant that was found beyond the floor of its noise, by a run of these tests.
#[test]
fn the_worst_plant_that_was_found_is_hardly_beyond() {
    let case = Case::of(16_615_875_672_227_618_719);
    let seen = watch(&case, &mut real(&case, Policy::predictive()));
    let beyond = seen.swing / case.floor();
    assert!(beyond <= 1.15 && seen.unproportional <= case.threshold, "{beyond}: {seen:?}");
}

#[test]
fn planted_bugs_are_found() {
    for (name, bug) in
        [("windup", Bug::Windup), ("haste", Bug::Haste), ("generosity", Bug::Generosity)]
    {
        let found = (0..64).map(Case::of).filter(|case| {
            let seen = watch(case, &mut planted(case, bug));
            check(case, &seen).is_err()
        });
        let found = found.count();
        assert!(found > 32, "{name} was found on {found} of 64 plants");
    }
    assert!(
        (0..64).any(|seed| share_nodes(seed, true).is_err()),
        "a promise that is not asked for"
    );
}

/// Applications that share two nodes of one processor each. With `careless`, targets are set without
/// asking whether the nodes have room.
fn share_nodes(seed: u64, careless: bool) -> Result<(), String> {
    let bounds = Bounds { slice_least_nanos: Nanos::new(0), ..Bounds::user_level(1) };
    let mut random = Random::new(seed);
    let mut applications: Vec<(Controller, GainPlant, Vec<CpuPpm>)> = Vec::new();
    for step in 0..120 {
        let target = Case::share(0.05 + 0.5 * random.part());
        let chosen = (random.part() * applications.len() as f64) as usize;
        let is_new = applications.is_empty() || (random.part() < 0.3 && applications.len() < 8);
        let case = Case::of(seed ^ step);
        let two = |case: &Case| vec![case.gain.cpu[0]; 2];
        let full_speed = FullSpeed::new(1.0 / case.gain.iteration_seconds, &two(&case)).unwrap();
        let settings = match is_new {
            true => Settings::new(target, Case::share(case.threshold), full_speed),
            false => Settings { target, ..applications[chosen].0.settings().clone() },
        };
        let wanted = settings.ceilings();
        let settings = Settings { granted_ppm: Some(wanted.clone()), ..settings };
        let others = applications.iter().enumerate().filter(|(at, _)| is_new || *at != chosen);
        let others: Vec<_> = others.map(|(_, (_, _, granted))| granted.clone()).collect();
        let admits = |node: usize| {
            let schedule = |cpu: CpuPpm| Schedule::new(cpu, Range::default().period_most_nanos);
            let running: Vec<_> = others.iter().map(|granted| schedule(granted[node])).collect();
            bounds.admit(&running, &[schedule(wanted[node])]).is_ok()
        };
        if careless || (admits(0) && admits(1)) {
            if is_new {
                let (mut controller, proposal) =
                    Controller::start(settings, Nanos::new(0)).map_err(|e| e.to_string())?;
                let gain = Gain { cpu: two(&case), ..case.gain.clone() };
                let mut plant = GainPlant::new(gain, seed);
                plant.apply(&proposal.schedules);
                controller.resolve(proposal.sequence, Outcome::InForce { since: plant.now() });
                applications.push((controller, plant, wanted));
            } else {
                let (controller, plant, granted) = &mut applications[chosen];
                let proposal = controller.retarget(target, Some(wanted.clone()));
                *granted = wanted;
                carry_out(controller, plant, proposal.map_err(|e| e.to_string())?);
            }
        }
        for (controller, plant, _) in &mut applications {
            let report = plant.next_report();
            let proposal = controller.report(&report).map_err(|e| e.to_string())?;
            carry_out(controller, plant, proposal);
        }
        for node in 0..2 {
            let schedules: Vec<_> =
                applications.iter().map(|(c, ..)| c.view().schedules[node]).collect();
            for (schedule, (_, _, granted)) in schedules.iter().zip(&applications) {
                if schedule.cpu() > granted[node] {
                    return Err(format!("{schedule:?} of {granted:?} at step {step}"));
                }
            }
            bounds.admit(&[], &schedules).map_err(|refusal| format!("{refusal} at step {step}"))?;
        }
    }
    Ok(())
}

fn carry_out(
    controller: &mut Controller,
    plant: &mut GainPlant,
    proposal: Option<keeptime_control::Proposal>,
) {
    if let Some(proposal) = proposal {
        plant.apply(&proposal.schedules);
        controller.resolve(proposal.sequence, Outcome::InForce { since: plant.now() });
    }
}
