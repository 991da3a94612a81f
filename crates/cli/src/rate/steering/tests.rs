//! The whole way of a simulated run: measured, held, told another rate, and what holds when its controller is killed.

use super::simulated::{FULL, Run, Tells, percent, wanted};
use super::*;
use crate::rate::counted::Counts;
use keeptime_control::plant::{Plant, Random};
use keeptime_control::schedule::utilisation;

// Goal: a program that uses half a processor at full speed runs at the rate that was asked for, and at another
// one. Method: a simulated program; the mean over hundreds of iterations.
#[test]
fn full_speed_is_found_and_then_the_rate_is_held() {
    let mut run = Run::start(30);
    assert_eq!(run.steering.state().phase, Phase::Measured);
    run.mean(200);
    let mean = run.mean(400);
    assert!((mean - 0.3).abs() < 0.02, "{mean}");
    assert!((run.share() - 0.3 * 0.52).abs() < 0.02, "{}", run.share());
    run.steering.set(percent(60)).unwrap();
    run.mean(200);
    let mean = run.mean(400);
    assert!((mean - 0.6).abs() < 0.02, "{mean}");
    let state = run.steering.state();
    assert!(state.actual.is_some() && state.full_speed.is_some_and(|rate| rate > 5.0));
}

// Goal: who knows full speed has no more than its part, from the first moment on. Method: the full speed that one
// run has found, for another.
#[test]
fn a_full_speed_that_is_known_needs_no_full_speed() {
    let mut first = Run::start(30);
    first.mean(200);
    let full_speed = first.steering.take_found().unwrap();
    assert_eq!(first.steering.take_found(), None, "it is told once");
    let mut run = Run::beginning(30, Begins::Known(full_speed));
    assert_eq!(run.steering.state().phase, Phase::Steered);
    assert_eq!(run.changes(), 1, "it has that already");
    assert!((run.share() - 0.3 * 0.52).abs() < 0.02, "{}", run.share());
    run.mean(100);
    let mean = run.mean(400);
    assert!((mean - 0.3).abs() < 0.02, "{mean}");
    assert_eq!(run.steering.take_found(), None, "nothing was measured");
}

// Goal: an input that makes iterations several times longer or shorter than those of the run that has found full speed is
// noticed: full speed is measured again once nodes have room for that, and until then it is said not to fit. Method: a full
// speed that is none of the program's, on nodes that are full at first.
#[test]
fn a_full_speed_that_was_of_other_work_is_measured_again() {
    let mut first = Run::start(30);
    first.mean(200);
    let found = first.steering.take_found().unwrap();
    // What is known to use all of its processors is taken to poll: its work does not tell what it costs.
    for (times, used) in [(0.1, 52), (0.3, 52), (3.0, 52), (10.0, 52), (0.1, 100), (10.0, 100)] {
        let used = CpuPpm::from_percent(used);
        let known =
            FullSpeed::new(found.rate() * times, &[used; 2]).unwrap().as_one_if_alike(ALIKE);
        let mut run = Run::beginning(30, Begins::Known(known));
        run.answer(Some(Applied::Refused { reason: "n1 is full".into() }), false);
        run.mean(20);
        assert!(!run.steering.state().is_doubted, "{times}: it may pass");
        run.mean(300);
        assert!(run.steering.state().is_doubted, "{times}: {:?}", run.steering.state());
        assert_eq!((run.steering.phase(), run.changes()), (Phase::Steered, 1));
        run.answer(None, false);
        run.mean(400);
        let state = run.steering.state();
        assert!(run.steering.take_found().is_some(), "{times}: later runs know it");
        assert_eq!((state.phase, state.is_doubted), (Phase::Steered, false), "{times}");
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{times}: {mean}");
        run.steering.memory.unlike = 100;
        assert!(
            !run.steering.state().is_doubted,
            "what this run has measured is as good as it gets"
        );
    }
}

// Goal: ranks that work unequally have shares of their own, so that nothing is reserved that nobody uses, and the
// rate is held all the same. Method: one rank computes half of what the other does, or hardly anything.
#[test]
fn ranks_that_work_unequally_have_unequal_shares() {
    for (part, expected) in [(0.5, 0.5..0.75), (0.01, 0.24..0.26)] {
        let mut run = Run::unequal(part, 30);
        run.mean(200);
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{part}: {mean}");
        let [busy, other] = run.shares();
        assert!(expected.contains(&(other / busy)), "{part}: {busy} and {other}");
        let state = run.steering.state();
        assert_eq!(state.rank_cpu_ppm.len(), 2);
        assert_eq!(Some(state.rank_cpu_ppm[0]), state.schedule.map(|s| s.cpu()));
        run.steering.set(percent(60)).unwrap();
        run.mean(200);
        let mean = run.mean(400);
        assert!((mean - 0.6).abs() < 0.02, "{part}: {mean}");
    }
}

// Goal: nobody takes what was told under the former target for what comes of a new one. Method: another target, refused,
// granted, and granted while nobody answers; then reports.
#[test]
fn a_run_is_adjusting_until_a_report_of_its_new_target_comes() {
    let mut run = Run::steered(30);
    let is_adjusting = |run: &Run| run.steering.state().is_adjusting;
    assert!(!is_adjusting(&run));
    run.answer(Some(Applied::Refused { reason: "n1 is short".into() }), false);
    run.steering.set(percent(80)).unwrap_err();
    assert!(!is_adjusting(&run), "it has the target that it had");
    run.answer(None, false);
    run.steering.set(percent(30)).unwrap();
    assert!(!is_adjusting(&run), "nothing is new");
    run.steering.set(percent(60)).unwrap();
    let told = run.steering.state().actual;
    assert!(is_adjusting(&run) && told.is_some());
    run.mean(100);
    assert!(!is_adjusting(&run) && run.steering.state().actual != told);
    run.answer(Some(Applied::Unknown), false);
    assert!(matches!(run.steering.set(percent(40)), Ok(Aimed::Later { .. })));
    run.mean(100);
    assert!(is_adjusting(&run), "it is not in force");
    run.answer(None, false);
    let now = run.world.0.borrow().plant.now();
    run.steering.tick(now);
    run.mean(100);
    assert!(!is_adjusting(&run));
}

// Goal: a run that goes on at full speed since nobody carries its first share out is not said to be held, whoever asks, until
// it is. Method: a broker that is away, and nodes that refuse, once full speed is known, and before another rate is asked for.
#[test]
fn a_run_is_not_held_before_its_nodes_have_its_share() {
    let why = |run: &Run| run.steering.state().not_held_yet;
    let away = Some("the broker does not answer".to_owned());
    let refused = || Applied::Refused { reason: "n1 is short".into() };
    for (answer, said) in
        [(Applied::Unknown, away.clone()), (refused(), Some("n1 is short".into()))]
    {
        let mut run = Run::start(30);
        assert_eq!(why(&run), None, "it is measured");
        let full = Schedule::new(FULL, Nanos::from_millis(100));
        run.world.0.borrow_mut().schedules = Some(vec![full; 2]);
        run.answer(Some(answer), false);
        run.mean(200);
        assert_eq!((run.steering.phase(), why(&run)), (Phase::Steered, said.clone()));
        run.killed(false);
        assert_eq!(why(&run), said, "who goes on knows it");
        run.answer(None, false);
        let now = run.world.0.borrow().plant.now();
        run.steering.tick(now);
        assert_eq!(why(&run), None);
        run.mean(100);
        run.answer(Some(Applied::Unknown), false);
        run.mean(100);
        assert_eq!(why(&run), None, "a correction is missed, not the share");
        run.steering.set(percent(60)).unwrap();
        assert_eq!(why(&run), away);
    }
}

#[test]
fn a_rate_that_cannot_be_had_changes_nothing_and_says_why() {
    let mut run = Run::steered(30);
    let (share, reason) = (run.share(), "n1 has 3 % of its CPU left".to_owned());
    run.answer(Some(Applied::Refused { reason: reason.clone() }), false);
    assert_eq!(run.steering.set(percent(80)), Err(reason));
    assert_eq!(run.steering.state().target, percent(30));
    assert_eq!(run.share(), share);
    run.answer(None, false);
    let mean = run.mean(400);
    assert!((mean - 0.3).abs() < 0.02, "it is held as before: {mean}");
    assert!(run.steering.set(percent(0)).unwrap_err().contains("more than 0 %"));
}

// Goal: who asks for more than there is learns what can be had, and has it then. Method: a program that uses 52 %
// of a processor at full speed, where the fuller of two nodes could give 26 %.
#[test]
fn a_rate_that_cannot_be_had_is_refused_with_the_greatest_that_can() {
    let mut run = Run::steered(30);
    run.world.0.borrow_mut().free = Some([40, 26].map(CpuPpm::from_percent).to_vec());
    run.answer(Some(Applied::Refused { reason: "n2 is short".into() }), false);
    let said = run.steering.set(percent(80)).unwrap_err();
    let most = said.strip_prefix("n2 is short; ").unwrap();
    let most: Share = most.strip_suffix(" of full speed can be had now").unwrap().parse().unwrap();
    assert!((0.44..0.54).contains(&most.as_f64()), "{said}");
    assert_eq!(run.steering.state().target, percent(30));
    run.answer(None, false);
    run.steering.set(most).unwrap();
    assert!((0.24..=0.26).contains(&run.share()), "{}", run.share());
}

// Goal: a correction waits for its turn, is made then, and what a user asks for does not wait. Method: a program that
// is given too little, on nodes where it is always another job's turn, and then is not.
#[test]
fn a_correction_waits_for_its_turn() {
    let mut run = Run::steered(30);
    run.world.0.borrow_mut().is_others_turn = true;
    let before = run.shares();
    {
        // Nodes give less than they say.
        let world = &mut *run.world.0.borrow_mut();
        let less = world.schedules.iter().flatten();
        let less = less.map(|s| Schedule::new(CpuPpm::new(s.cpu().get() / 5 * 4), s.period()));
        world.plant.apply(&less.collect::<Vec<_>>());
    }
    run.mean(100);
    assert!(run.steering.memory.waiting.is_some());
    assert_eq!((run.shares(), run.steering.state().refused), (before, 0));
    let now = run.world.0.borrow().plant.now();
    run.steering.tick(now);
    assert!(run.steering.memory.waiting.is_some(), "it waits and is not given up");
    run.world.0.borrow_mut().is_others_turn = false;
    let had = run.world.0.borrow().schedules.clone();
    run.step();
    assert!(run.steering.memory.waiting.is_none());
    // Another share, or the same in another period.
    assert_ne!(run.world.0.borrow().schedules, had);
    run.world.0.borrow_mut().is_others_turn = true;
    run.steering.set(percent(60)).unwrap();
    run.mean(20);
    assert!(run.share() > before[0] * 1.5, "{}", run.share());
}

// Goal: whoever does not answer may have done it or not; either way it goes on from what the nodes have.
#[test]
fn what_nobody_answered_to_is_seen_on_the_nodes() {
    let runs: [fn() -> Run; 2] = [|| Run::start(30), || Run::unequal(0.5, 30)];
    for (obeys, run) in [false, true].into_iter().flat_map(|o| runs.map(|run| (o, run))) {
        let mut run = run();
        run.mean(200);
        run.answer(Some(Applied::Unknown), obeys);
        let unanswered = Aimed::Later { reason: "the broker does not answer".into() };
        assert_eq!(run.steering.set(percent(60)), Ok(unanswered));
        run.answer(None, false);
        let now = run.world.0.borrow().plant.now();
        run.steering.tick(now);
        // Where it was not done, the target is aimed at anew from what there is.
        run.mean(400);
        let mean = run.mean(400);
        assert!((mean - 0.6).abs() < 0.03, "obeys: {obeys}: {mean}");
    }
}

// Goal: what a program uses while it tells nothing does not decide what it has: it may read its input then. Method:
// one that uses hardly anything for a minute has its part of all CPU of its file, and so at another target.
#[test]
fn a_program_that_tells_nothing_has_its_part_of_the_cpu() {
    let mut run = Run::start(25);
    run.read_input(62);
    let state = run.steering.state();
    assert_eq!((state.phase, state.actual), (Phase::Unreported, None));
    assert!((run.share() - 0.25).abs() < 0.001, "{}", run.share());
    run.steering.set(percent(50)).unwrap();
    assert!((run.share() - 0.5).abs() < 0.001, "{}", run.share());
}

// Goal: a program that cannot tell how far it is takes no more than its part from the first moment on: there is nothing to
// measure, and others may need the rest. Method: an hour of it, and another rate.
#[test]
fn a_program_that_cannot_tell_begins_with_its_part_of_the_cpu() {
    let mut run = Run::beginning(30, Begins::Unreported);
    for minute in 0..60 {
        assert_eq!((run.steering.phase(), run.changes()), (Phase::Unreported, 1));
        assert!((run.share() - 0.3).abs() < 0.001, "{}", run.share());
        run.steering.tick(Nanos::from_secs(60 * minute));
    }
    run.steering.set(percent(50)).unwrap();
    assert!((run.share() - 0.5).abs() < 0.001, "{}", run.share());
}

// Goal: a rate that is set while the broker is away is had once it is back, and is not said to be had before, by a program
// that tells nothing too. Method: one rate, or two before anybody answers; what was asked for first was done or not.
#[test]
fn a_rate_that_is_set_while_nobody_answers_follows() {
    for (obeys, rates) in [(false, vec![50]), (false, vec![50, 40]), (true, vec![50, 40])] {
        let mut run = Run::start(25);
        run.read_input(80);
        run.answer(Some(Applied::Unknown), obeys);
        for rate in &rates {
            assert!(matches!(run.steering.set(percent(*rate)), Ok(Aimed::Later { .. })));
        }
        run.answer(None, false);
        run.steering.tick(Nanos::from_secs(82));
        let expected = percent(*rates.last().unwrap());
        assert_eq!(run.steering.state().target, expected);
        assert!((run.share() - expected.as_f64()).abs() < 1e-6, "{rates:?}: {}", run.share());
    }
}

// Goal: a program is held at its rate, however long it has told nothing at first. Method: 70 seconds of input, then
// a simulated program: it is measured as at its start, and what it used before does not count.
#[test]
fn a_program_that_begins_to_tell_is_measured_and_held() {
    let mut run = Run::start(30);
    run.read_input(70);
    assert_eq!(run.steering.phase(), Phase::Unreported);
    run.step();
    assert_eq!(run.steering.phase(), Phase::Measured);
    assert!((run.share() - 1.0).abs() < 0.001, "all CPU again: {}", run.share());
    run.mean(200);
    let mean = run.mean(400);
    assert!((mean - 0.3).abs() < 0.02, "{mean}");
    assert!((run.share() - 0.3 * 0.52).abs() < 0.02, "{}", run.share());
    assert!(run.steering.take_found().is_some(), "later runs know it");
}

// Goal: nodes that others have filled meanwhile keep no program from being held later. Method: they refuse, and
// then do not.
#[test]
fn all_cpu_that_cannot_be_had_is_asked_for_again() {
    let mut run = Run::start(30);
    run.read_input(70);
    run.answer(Some(Applied::Refused { reason: "n1 is full".into() }), false);
    run.mean(20);
    assert_eq!(run.steering.phase(), Phase::Unreported);
    assert!((run.share() - 0.3).abs() < 0.001, "{}", run.share());
    run.answer(None, false);
    run.mean(400);
    assert_eq!(run.steering.phase(), Phase::Steered);
    let mean = run.mean(400);
    assert!((mean - 0.3).abs() < 0.02, "{mean}");
}

// Goal: a program whose units of work take longer than it is waited for is not at full speed for most of each for
// ever. Method: the first takes 90 seconds, and so long is waited for the second, which never comes.
#[test]
fn a_program_that_tells_rarely_is_waited_for_longer() {
    let mut run = Run::start(30);
    run.read_input(89);
    assert_eq!(run.steering.phase(), Phase::Unreported);
    run.steering.progress(1, Nanos::from_secs(90));
    for second in 91..180 {
        run.steering.tick(Nanos::from_secs(second));
    }
    assert_eq!(run.steering.phase(), Phase::Measured);
    for second in 180..230 {
        run.steering.tick(Nanos::from_secs(second));
    }
    assert_eq!(run.steering.phase(), Phase::Unreported, "two minutes are too long");
}

// Goal: nodes that do not tell what a program uses do not leave it at full speed for ever, and it is not said to be silent;
// once they tell, it is held. Method: lines come all the while, and nodes count nothing or do not answer, for some minutes.
#[test]
fn a_program_whose_cpu_time_nobody_tells_has_its_part_and_is_held_once_it_is_told() {
    for tells in [Tells::Zero, Tells::Nothing] {
        let mut run = Run::start(25);
        run.world.0.borrow_mut().tells = tells;
        let seconds = |run: &Run| run.world.0.borrow().plant.now().as_secs_f64();
        while seconds(&run) < 25.0 {
            run.step();
            assert_eq!(run.steering.phase(), Phase::Measured, "it may be a hiccup");
        }
        while seconds(&run) < 120.0 {
            run.step();
        }
        assert_eq!((run.steering.phase(), run.changes()), (Phase::Unmeasured, 1));
        assert!((run.share() - 0.25).abs() < 0.001, "{}", run.share());
        assert_eq!(run.steering.state().full_speed, None);
        run.world.0.borrow_mut().tells = Tells::Used;
        run.mean(300);
        assert_eq!(run.steering.phase(), Phase::Steered);
        let mean = run.mean(400);
        assert!((mean - 0.25).abs() < 0.02, "{mean}");
    }
}

// The same of one that is held already: it has its part after some seconds without reports, as one that is silent.
#[test]
fn a_program_that_is_held_is_not_said_to_be_silent_when_its_nodes_are() {
    let mut run = Run::steered(30);
    let tick = |run: &mut Run| {
        let now = run.world.0.borrow().plant.now();
        run.steering.tick(now);
    };
    run.world.0.borrow_mut().tells = Tells::Nothing;
    run.mean(100);
    tick(&mut run);
    assert_eq!(run.steering.phase(), Phase::Unmeasured);
    assert!((run.share() - 0.3 * 0.52).abs() < 0.02, "{}", run.share());
    run.world.0.borrow_mut().tells = Tells::Used;
    run.mean(100);
    tick(&mut run);
    assert_eq!(run.steering.phase(), Phase::Steered);
    // It is silent itself.
    let now = run.world.0.borrow().plant.now();
    run.steering.tick(now.saturating_add(Nanos::from_secs(20)));
    assert_eq!(run.steering.phase(), Phase::Unreported);
}

// The other way round: a program that tells nothing is said to be silent, though its nodes were once, at the beginning.
#[test]
fn a_silent_program_is_said_to_be_though_its_nodes_were_for_a_moment() {
    let mut run = Run::start(30);
    run.steering.uncounted(Nanos::from_secs(1));
    run.steering.answered();
    (0..=62).for_each(|second| run.steering.tick(Nanos::from_secs(second)));
    assert_eq!(run.steering.phase(), Phase::Unreported);
}

// Goal: where MPI calls tell, nobody who could not be asked is taken for a program that tells nothing.
#[test]
fn a_program_whose_calls_nobody_tells_of_is_not_said_to_be_silent() {
    let mut run = Run::start(30);
    for second in 0..=62 {
        let now = Nanos::from_secs(second);
        run.steering.uncounted(now);
        run.steering.tick(now);
    }
    assert_eq!(run.steering.phase(), Phase::Unmeasured);
    assert!((run.share() - 0.3).abs() < 0.001, "{}", run.share());
}

// Goal: a program that prints nothing is held by what its MPI calls tell. Method: a simulated one that is looked at
// once a second; then iterations are found to be others, and it is measured anew.
#[test]
fn mpi_calls_tell_as_much_as_lines() {
    let (mut run, mut counts) = (Run::start(30), Counts::default());
    let mut step = |run: &mut Run| run.counted_step(&mut counts);
    run.mean_by(600, &mut step);
    assert_eq!(run.steering.phase(), Phase::Steered);
    let mean = run.mean_by(1_000, &mut step);
    assert!((mean - 0.3).abs() < 0.03, "{mean}");
    run.steering.recount();
    run.mean_by(30, &mut step);
    assert_eq!(run.steering.phase(), Phase::Measured);
    run.mean_by(600, &mut step);
    assert_eq!(run.steering.phase(), Phase::Steered);
}

// Goal: a controller that is killed leaves schedules as they are, and the next one goes on from them without a bump.
// Method: one after the other is killed, seven reports apart; nothing is measured anew, and what is corrected then is
// a correction.
#[test]
fn a_controller_that_is_killed_is_followed_by_one_that_goes_on() {
    let runs: [fn() -> Run; 2] = [|| Run::start(30), || Run::unequal(0.5, 30)];
    for start in runs {
        let mut run = start();
        run.mean(200);
        assert_eq!(run.steering.phase(), Phase::Steered);
        for _ in 0..20 {
            let (before, changes) = (run.shares(), run.changes());
            run.killed(false);
            assert_eq!((run.shares(), run.changes()), (before, changes), "nothing is changed");
            assert_eq!(run.steering.phase(), Phase::Steered, "nothing is measured");
            run.mean(30);
            // Both are within the threshold of the target, as parts of less than a processor.
            let bump = run.share() - before[0];
            assert!(bump.abs() < 0.04, "{bump} after {before:?}");
        }
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{mean}");
        assert!(run.steering.take_found().is_some(), "what the first one has found");
    }
}

// Goal: one that is killed while it changes something is followed by one that sees whether that was done. Method: a
// new target that nodes have, or refuse, and of which the controller did not hear before it was killed.
#[test]
fn what_a_killed_controller_was_changing_is_seen_on_the_nodes() {
    for (refused, expected) in [(false, 60), (true, 30)] {
        let mut run = Run::steered(30);
        let before = run.shares();
        let reason = "n1 is full".to_owned();
        run.answer(refused.then_some(Applied::Refused { reason }), false);
        assert_eq!(run.steering.set(percent(60)).is_err(), refused);
        run.answer(None, false);
        let (after, changes) = (run.shares(), run.changes());
        assert_eq!(before == after, refused);
        run.killed(true);
        assert_eq!((run.shares(), run.changes()), (after, changes));
        assert_eq!(run.steering.state().target, percent(expected));
        run.mean(200);
        let mean = run.mean(400);
        assert!((mean - f64::from(expected) / 100.0).abs() < 0.02, "{expected}: {mean}");
    }
}

// Goal: full speed that is being measured is measured on, and a broker that is away when a controller begins is asked
// later. Method: one is killed between two reports; one while nobody answers.
#[test]
fn a_controller_can_be_killed_at_any_stage() {
    let mut run = Run::start(30);
    run.mean(20);
    assert_eq!(run.steering.phase(), Phase::Measured);
    run.killed(false);
    run.mean(200);
    assert_eq!(run.steering.phase(), Phase::Steered);

    let schedules = run.world.0.borrow_mut().schedules.take();
    run.answer(Some(Applied::Unknown), false);
    run.steering.set(percent(50)).unwrap();
    run.killed(true);
    assert_eq!(run.steering.state().target, percent(30), "nobody knows yet");
    run.answer(None, false);
    run.world.0.borrow_mut().schedules = schedules;
    let (shares, now) = (run.shares(), run.world.0.borrow().plant.now());
    run.steering.tick(now);
    assert_eq!((run.shares(), run.steering.state().target), (shares, percent(30)));
    run.mean(100);
    let mean = run.mean(400);
    assert!((mean - 0.3).abs() < 0.02, "{mean}");
}

/// So many nodes of one program that work alike: a second of work on each costs half a second, and by chance up to a tenth
/// more or less.
struct Alike {
    schedules: Vec<Schedule>,
    used: Vec<Nanos>,
    now: Nanos,
    random: Random,
}

impl Alike {
    /// A second; the work that is done then, of a thousand at full speed.
    fn pass(&mut self) -> f64 {
        let share = (utilisation(self.schedules[0].cpu()) / 0.5).min(1.0);
        for used in &mut self.used {
            let cost = 0.5 + 0.1 * (self.random.part() - 0.5);
            *used = used.saturating_add(Nanos::from_secs_f64(share * cost).unwrap());
        }
        self.now = self.now.saturating_add(Nanos::from_secs(1));
        1_000.0 * share
    }
}

impl Nodes for Alike {
    fn used(&mut self) -> Option<Used> {
        Some(Used { at: self.now, each: self.used.clone() })
    }

    fn apply(&mut self, schedules: &[Schedule], _in_turn: bool) -> Applied {
        self.schedules = schedules.to_vec();
        Applied::InForce { since: self.now }
    }

    fn release(&mut self, full: CpuPpm) -> Applied {
        self.apply(&[Schedule::new(full, Nanos::from_millis(10))], false)
    }

    fn observed(&mut self) -> Option<Vec<Schedule>> {
        Some(vec![self.schedules[0]; self.used.len()])
    }

    fn available(&mut self) -> Option<Vec<CpuPpm>> {
        None
    }
}

// Goal: how many nodes there are makes no program look slower or faster than it is. Method: nodes that work alike, and
// the mean of what full speed is taken to be in many reports; each program is seen from its own first reports on.
#[test]
fn full_speed_of_many_nodes_is_followed_as_that_of_few() {
    let mean_of = |nodes: usize, seed: u64| {
        let (now, random) = (Nanos::default(), Random::new(seed));
        let schedules = vec![Schedule::new(FULL, Nanos::from_millis(10))];
        let alike = Alike { schedules, used: vec![now; nodes], now, random };
        let memory = Memory::new(wanted(30, 2), FULL, nodes).unwrap();
        let mut steering = Steering::resume(alike, memory, now);
        let (mut work, mut seen) = (0.0, Vec::new());
        for _ in 0..200 {
            work += steering.nodes.pass();
            let now = steering.nodes.now;
            steering.progress(work as u64, now);
            seen.extend(steering.state().full_speed);
        }
        seen.iter().sum::<f64>() / seen.len() as f64 / 1_000.0
    };
    for nodes in [2, 16, 64] {
        let mean = (0..10).map(|seed| mean_of(nodes, seed)).sum::<f64>() / 10.0;
        assert!((mean - 1.0).abs() < 0.01, "{nodes}: {mean}");
    }
}

// Goal: an agent that is slow to answer changes nothing of what work is seen to cost. Method: one that answers 3 s later
// now and then, while what is told waits: of those seconds each, the CPU time is that of all.
#[test]
fn what_is_told_late_says_nothing_wrong_of_cpu_time() {
    let mut run = Run::steered(30);
    let full_speed = run.steering.state().full_speed.unwrap();
    for _ in 0..20 {
        run.mean(30);
        let told = run.told_late(3.0);
        assert!(told >= 3, "several are told at once: {told}");
        let now = run.steering.state().full_speed.unwrap();
        assert!((now / full_speed - 1.0).abs() < 0.06, "{now}, {full_speed}");
    }
    let mean = run.mean(400);
    assert!((mean - 0.3).abs() < 0.02, "{mean}");
}

// Goal: agents that are always as late are no reason to wait for better answers, and one that was once is not waited for
// longer than it takes. Method: the lateness of each answer, a second after the other.
#[test]
fn reports_go_on_however_late_agents_are() {
    let reports = |late: &dyn Fn(u64) -> u64| {
        let mark = |second: u64| Mark {
            at: Nanos::from_secs(second),
            work: second,
            used: vec![Nanos::from_millis(1_000 * second + late(second))],
            late: Nanos::from_millis(late(second)),
        };
        let mut marks = Marks::default();
        let reports: Vec<_> = (0..=60).filter_map(|second| marks.pass(mark(second))).collect();
        // A unit of work in each second, which costs one.
        for report in &reports {
            let cost = report.used()[0].as_secs_f64() / report.work();
            assert!((cost - 1.0).abs() <= 0.051, "{report:?}");
        }
        reports.len()
    };
    assert_eq!(reports(&|_| 0), 60);
    assert_eq!(reports(&|_| 900), 60);
    // From the tenth second on, and never again as before.
    for late in [300, 1_000, 3_000] {
        assert_eq!(reports(&|second| if second < 10 { 0 } else { late }), 59, "{late}");
    }
    // Once.
    for late in [0, 10] {
        assert_eq!(reports(&|second| if second == late { 3_000 } else { 0 }), 59);
    }
    // By chance, of up to a second: rarely, and not never.
    let few = reports(&|second| second * 7_919 % 1_000);
    assert!((4..60).contains(&few), "{few}");
}

#[test]
fn a_report_over_an_agents_restart_does_not_count() {
    let mut run = Run::start(30);
    for _ in 0..4 {
        run.mean(15);
        // It counts from nothing again.
        run.world.0.borrow_mut().used = vec![Nanos::default(); 2];
    }
    run.mean(200);
    assert!((run.mean(400) - 0.3).abs() < 0.02);
}
