//! Ours: a first step by a model, then feedback.
//!
//! * **Model**: r of full speed takes r of what the program uses at full speed, in the period that is
//!   expected to cost least ([`period_costs`]). What was learned at one target is taken along to the
//!   next (`taken_along`), so that most new targets are met by the first step.
//! * **Feedback**: the rate is estimated from what the model expects and from all reports, each for what it says: those
//!   from before a change of the share are moved by what the change is to do, and count less the larger it was. Nothing is
//!   done within a band that is a quarter of the threshold, or what noise or a part of a period explains, whichever is
//!   widest; so with few reports only large errors count, and with many also small ones.
//! * **Delay**: a report right after a change that looks as before the change is taken for an answer
//!   that has not come yet, up to twice.
//! * **Anti-windup**: the share stays within the threshold of the target, and nothing adds up beyond:
//!   utilisation stays proportional.
//! * **Locked periods**: a program that sleeps while it waits loses what comes of its budget meanwhile, beyond what is kept
//!   for it: nothing at low targets and much at high ones, so that no rate at one target tells what another one loses. It is
//!   reckoned (`lost_asleep`). Where it is too much, the program has a period that its iteration takes a whole number of, if
//!   there is one; each iteration then meets the same pauses, and the rate is what the period makes it. If that is not the
//!   target, the period changes and not the share.
//! * **Periods**: if the share is at its bound and the error beyond half of the threshold, another period is
//!   tried, the cheapest that was not, and of those longer ones first where a program that sleeps falls short, at once where
//!   it falls short by more than a share makes up; when all were, the best stays. Nothing cycles.

use super::{Aim, Setting};
use crate::noise::Noise;
use crate::window::{Sample, Window};
use keeptime_model::units::Nanos;
use serde::{Deserialize, Serialize};

/// What was learned so far. What earlier versions have remembered besides is passed over.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Predictive {
    setting: Option<Setting>,
    noise: Option<Noise>,
    /// What the share that is in force is known to give.
    window: Window,
    /// Of that, what was seen since it is in force.
    #[serde(default)]
    since: Window,
    slope: Slope,
    /// What was seen before the last change of the share.
    before: Option<Seen>,
    awaited: Option<Awaited>,
    trials: Vec<Trial>,
    /// What the share lacked at the last target that had a period as others have it.
    #[serde(default)]
    lacked: Option<Lacked>,
}

/// What a share lacked to give a target, or gave too much if that is below zero, in parts of full speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lacked {
    target: f64,
    by: f64,
}

/// A change whose effect has not been seen yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Awaited {
    /// The rate before it.
    from: f64,
    /// What it is to be after it; nothing = the target.
    #[serde(default)]
    to: Option<f64>,
    /// Reports that may still look as before.
    patience: u32,
}

/// How much the rate follows the share, from pairs of changes: near 1 by the model.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slope {
    products: f64,
    squares: f64,
}

/// A share and the mean rate that it gave.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    share: f64,
    fraction: f64,
    variance: f64,
}

/// A period that did not do, and by how much.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trial {
    period: Nanos,
    error: f64,
}

impl Predictive {
    pub(super) fn start(&mut self, aim: &Aim) -> Setting {
        self.trials.clear();
        let setting = Setting { period: cheapest(aim), share: aim.target };
        self.change(setting, self.expected(aim), None)
    }

    pub(super) fn observe(&mut self, aim: &Aim, sample: Sample) -> Option<Setting> {
        let setting = self.setting?;
        let setting = Setting { share: aim.share_now.unwrap_or(setting.share), ..setting };
        let noise = self.noise.get_or_insert_with(|| prior_noise(aim));
        let deviation = noise.deviation();
        if self.awaited.as_mut().is_some_and(|awaited| awaited.lasts(aim, sample, deviation)) {
            return None;
        }
        self.awaited = None;
        noise.observe(sample.fraction);
        let far = aim.threshold.max(FAR * noise.deviation());
        self.window.add(sample, far);
        self.since.add(sample, far);

        let known = self.seen(setting.share, &self.window);
        let error = (known.fraction - aim.target).abs();
        let explained =
            (CONFIDENCE * known.variance.sqrt()).max(self.by_phase(aim, setting.period));
        if error <= explained.max(aim.threshold * DEAD_BAND) {
            return None;
        }
        // Where sleeping costs more than any share makes up, a step would only put off what has to come.
        let missing = aim.target - known.fraction - explained;
        let is_out_of_reach =
            sleeps(aim) && missing > (band(aim).most - setting.share).max(0.0) * OUT_OF_REACH;
        let other = self.relock(aim, setting, known);
        let step = || self.step(aim, setting, known);
        let other = if is_out_of_reach { other } else { other.or_else(step) };
        if other.is_some() || error <= explained.max(aim.threshold * PERIOD_WORTH) {
            return other;
        }
        self.another_period(aim, setting, known)
    }

    pub(super) fn retarget(&mut self, before: f64, aim: &Aim) -> Option<Setting> {
        let setting = self.setting?;
        self.trials.clear();
        self.before = None;
        let times = aim.target / before;
        if let Some(noise) = &mut self.noise {
            // Pauses come by chance: what they scatter by grows as the root of how much is done.
            noise.scale(times.sqrt());
        }
        let had = aim.share_now.unwrap_or(setting.share);
        let gives = if self.window.is_empty() { before } else { self.window.mean() };
        let is_shared = aim.range.periods().contains(&setting.period);
        if is_shared {
            self.lacked = Some(Lacked { target: before, by: had - gives });
        }
        let lock = locked_against_loss(aim);
        // In a locked period the rate is what that makes it, and tells nothing of others.
        let lacking = self.lacked.filter(|_| lock.is_none());
        let lacking = lacking.map_or(0.0, |lacked| lacked.taken_along(aim));
        let share = band(aim).clamp(aim.target + lacking);
        let holds = aim.range.holds(share * aim.utilisation_least, setting.period);
        let same = (holds && is_shared && aim.is_followed).then_some(setting.period);
        let period = lock.or(same).unwrap_or_else(|| cheapest(aim));
        Some(self.change(Setting { period, share }, self.expected(aim), None))
    }

    /// What the nodes have, moved no further than proportionality demands: what it was seen to give moves along.
    pub(super) fn followed(&mut self, aim: &Aim) -> Option<Setting> {
        let (setting, had) = (self.setting?, aim.share_now?);
        let share = band(aim).clamp(had);
        self.before = None;
        let by = (share - had) * self.slope.value();
        let moved = std::mem::take(&mut self.window).moved(by, CARRIED_MOST);
        Some(self.change(Setting { share, ..setting }, moved, Some(by)))
    }

    pub(super) fn refused(&mut self, in_force: Setting) {
        self.setting = Some(in_force);
        (self.before, self.awaited) = (None, None);
        // They were about what was not to be had.
        (self.window, self.since) = (Window::default(), Window::default());
    }

    pub(super) fn noise(&self) -> f64 {
        self.noise.as_ref().map_or(0.0, Noise::deviation)
    }

    /// What `window` says of `share`.
    fn seen(&self, share: f64, window: &Window) -> Seen {
        let variance = self.noise().powi(2) / window.count().max(1.0);
        Seen { share, fraction: window.mean(), variance }
    }

    /// The same share in the locked period that full speed asks for now, if that mends it.
    fn relock(&mut self, aim: &Aim, setting: Setting, known: Seen) -> Option<Setting> {
        let period = relocked(aim, setting.period, known.fraction)?;
        self.before = None;
        let by = aim.target - known.fraction;
        let moved = std::mem::take(&mut self.window).moved(by, RELOCKED_COUNT);
        Some(self.change(Setting { period, ..setting }, moved, Some(by)))
    }

    /// Another share, as far as it may go.
    fn step(&mut self, aim: &Aim, setting: Setting, known: Seen) -> Option<Setting> {
        let since = self.seen(setting.share, &self.since);
        self.slope.learn(self.before.take(), since);
        let slope = self.slope.value();
        let share = band(aim).clamp(setting.share - (known.fraction - aim.target) / slope);
        let step = share - setting.share;
        if step.abs() < aim.threshold * STEP_LEAST {
            return None;
        }
        self.before = Some(known);
        // As much as is known of what the share before gave, and of what the step does.
        let of_one = self.noise().powi(2);
        let variance = known.variance.max(of_one / CARRIED_MOST) + (step * SLOPE_UNKNOWN).powi(2);
        let by = step * slope;
        let moved = std::mem::take(&mut self.window).moved(by, of_one / variance);
        Some(self.change(Setting { share, ..setting }, moved, Some(by)))
    }

    /// How far the mean may be off because the reports do not span whole periods: up to the pause of
    /// one period more or less.
    fn by_phase(&self, aim: &Aim, period: Nanos) -> f64 {
        let pause = aim.target * (1.0 - aim.target).max(0.0) * period.as_secs_f64() * PAUSES_MISSED;
        pause / self.window.seconds().max(f64::MIN_POSITIVE)
    }

    /// What is known of a share that the model says gives the target, before any report.
    fn expected(&self, aim: &Aim) -> Window {
        let deviation = self.noise.as_ref().unwrap_or(&prior_noise(aim)).deviation();
        let count = (deviation / (aim.threshold * MODEL_OFF)).powi(2);
        Window::expecting(aim.target, count.min(EXPECTED_MOST))
    }

    /// From now on `setting` is in force, of which `known` is known. It is to move the rate by `by`; nothing = to the target.
    fn change(&mut self, setting: Setting, known: Window, by: Option<f64>) -> Setting {
        self.window = known;
        let before = std::mem::take(&mut self.since);
        let from = (before.count() > 0.0).then(|| before.mean());
        let awaited = |from| Awaited { from, to: by.map(|by| from + by), patience: DELAY_MOST };
        self.awaited = from.map(awaited);
        if let Some(noise) = &mut self.noise {
            noise.interrupt();
        }
        self.setting = Some(setting);
        setting
    }

    /// `period` cannot reach the target by any share that is proportional.
    fn another_period(&mut self, aim: &Aim, setting: Setting, known: Seen) -> Option<Setting> {
        let (period, error) = (setting.period, (known.fraction - aim.target).abs());
        self.trials.retain(|trial| trial.period != period);
        self.trials.push(Trial { period, error });
        let is_tried = |period: &Nanos| self.trials.iter().any(|trial| trial.period == *period);
        let untried: Vec<_> =
            cheapest_first(aim).into_iter().filter(|period| !is_tried(period)).collect();
        // The longer the period, the less a program loses asleep.
        let is_longer = |other: &&Nanos| **other > period;
        let longer =
            untried.iter().find(is_longer).filter(|_| sleeps(aim) && known.fraction < aim.target);
        let untried = longer.or(untried.first()).copied();
        // What is hardly better is no reason to change: nothing goes round.
        let better = self.trials.iter().filter(|trial| trial.error < error * CLEARLY_BETTER);
        let best = || better.min_by(|a, b| a.error.total_cmp(&b.error)).map(|trial| trial.period);
        let next = untried.or_else(best).filter(|next| *next != period)?;
        self.before = None;
        // What this period took more or less, the next one will take as well; what a program lacks that sleeps may be
        // this period's doing.
        let share = if sleeps(aim) { aim.target } else { band(aim).clamp(setting.share) };
        Some(self.change(Setting { period: next, share }, self.expected(aim), None))
    }
}

impl Awaited {
    /// Whether a report still is as before the change; one fewer of these is waited for then.
    fn lasts(&mut self, aim: &Aim, sample: Sample, deviation: f64) -> bool {
        let to = self.to.unwrap_or(aim.target);
        let (old, new) = (sample.fraction - self.from, sample.fraction - to);
        let can_tell = (self.from - to).abs() > TELLING * deviation;
        let lasts = self.patience > 0 && can_tell && old.abs() < new.abs();
        self.patience -= u32::from(lasts);
        lasts
    }
}

impl Lacked {
    /// What a share will lack at the target of `aim`.
    ///
    /// Downwards that is in proportion: at nothing there is nothing of it. So it is upwards for a program that polls, which
    /// loses a part of every slice to ranks that do not run just then. For one that sleeps it grows as the root: some of it
    /// is an offset, and an error that is taken along to eight times the rate would be eight times as large. What was given
    /// too much ends at full speed, where there is no more to give.
    fn taken_along(self, aim: &Aim) -> f64 {
        let times = aim.target / self.target;
        let grows = match (times <= 1.0, self.by > 0.0) {
            (true, _) => times,
            (false, true) if sleeps(aim) => times.sqrt(),
            (false, true) => times,
            (false, false) => (1.0 - aim.target) / (1.0 - self.target),
        };
        self.by * grows
    }
}

impl Slope {
    /// From what was before and after a change of the share.
    fn learn(&mut self, before: Option<Seen>, after: Seen) {
        let Some(before) = before else { return };
        let (step, answer) = (after.share - before.share, after.fraction - before.fraction);
        let variance = (before.variance + after.variance).max(f64::MIN_POSITIVE);
        // What was seen long ago, at other shares, counts less.
        self.products = self.products * SLOPE_MEMORY + step * answer / variance;
        self.squares = self.squares * SLOPE_MEMORY + step * step / variance;
    }

    fn value(self) -> f64 {
        let value = (self.products + SLOPE_PRIOR) / (self.squares + SLOPE_PRIOR);
        value.clamp(SLOPE_LEAST, SLOPE_MOST)
    }
}

/// The shares that are proportional to the target.
struct Band {
    least: f64,
    most: f64,
}

impl Band {
    fn clamp(&self, share: f64) -> f64 {
        share.clamp(self.least, self.most)
    }
}

/// What single reports are taken to deviate by before they tell.
fn prior_noise(aim: &Aim) -> Noise {
    Noise::new(aim.threshold * PRIOR_NOISE)
}

fn band(aim: &Aim) -> Band {
    let reach = aim.threshold * REACH;
    // The least is above zero whatever the threshold; the most is no more than there is.
    let least = (aim.target - reach).max(aim.target / 2.0);
    Band { least, most: (aim.target + reach).min(aim.share_most).max(least) }
}

/// Whether it may lose budget asleep.
fn sleeps(aim: &Aim) -> bool {
    aim.sleeps && aim.utilisation_most <= SLEEPS_TO
}

/// The periods whose slices can be kept, the one that is expected to do best first.
fn cheapest_first(aim: &Aim) -> Vec<Nanos> {
    locked_against_loss(aim).into_iter().chain(shared(aim)).collect()
}

/// The first of these. Without any period that holds so small a slice, the longest is nearest to it.
fn cheapest(aim: &Aim) -> Nanos {
    cheapest_first(aim).first().copied().unwrap_or(aim.range.period_most_nanos)
}

/// Those that fit into those of other applications.
fn shared(aim: &Aim) -> Vec<Nanos> {
    let costs = |period: &Nanos| period_costs(aim, *period);
    let mut periods = aim.range.periods();
    periods.retain(|period| aim.range.holds(aim.target * aim.utilisation_least, *period));
    periods.sort_by(|a, b| costs(a).total_cmp(&costs(b)));
    periods
}

/// The locked period, for a program that would lose too much asleep in the one that would be best otherwise.
fn locked_against_loss(aim: &Aim) -> Option<Nanos> {
    let loses = |period: Nanos| lost_asleep(aim, period) > aim.threshold * LOST_WORTH;
    let best = shared(aim).first().copied();
    locked(aim).filter(|_| best.is_none_or(loses))
}

/// The period that an iteration at the target takes a whole number of, for a program that sleeps while it
/// waits.
///
/// Of `k` such periods each has a `k`-th of the iteration's computing, and the last one also has room
/// for all the waiting. So every iteration meets the same pauses, and no budget is lost asleep: the rate is that
/// of the periods, whenever they begin on each node. Among several whose slices can be kept, the shortest: reports say more.
fn locked(aim: &Aim) -> Option<Nanos> {
    let computing = aim.utilisation_most * aim.iteration_seconds;
    let waiting = aim.iteration_seconds - computing;
    if !sleeps(aim) {
        return None;
    }
    let has_room = |parts: f64, period: f64| period * ROOM >= computing / parts + waiting;
    (1..=LOCKED_PARTS_MOST)
        .map(f64::from)
        .map(|parts| (parts, aim.iteration_seconds / aim.target / parts))
        .take_while(|(parts, period)| has_room(*parts, *period))
        .filter_map(|(_, period)| Nanos::from_secs_f64(period))
        .filter(|period| aim.range.holds(aim.target * aim.utilisation_least, *period))
        .last()
}

/// The period that makes the rate what it is to be, if `period` makes it `fraction`: an iteration takes a whole number of
/// it, and a little more or less of the processor changes nothing. So it is when full speed was another when the
/// period was chosen.
fn relocked(aim: &Aim, period: Nanos, fraction: f64) -> Option<Nanos> {
    let error = (fraction - aim.target).abs();
    let is_shared = aim.range.periods().contains(&period);
    if is_shared || !sleeps(aim) || error < aim.threshold * RELOCK_LEAST {
        return None;
    }
    let at_one_each = aim.iteration_seconds / period.as_secs_f64();
    let parts = (at_one_each / fraction).round();
    let is_locked = (1.0..=f64::from(LOCKED_PARTS_MOST)).contains(&parts)
        && (at_one_each / parts - fraction).abs() < error * RELOCK_SURE;
    let period = Nanos::from_secs_f64(aim.iteration_seconds / aim.target / parts)?;
    (is_locked && aim.range.holds(aim.target * aim.utilisation_least, period)).then_some(period)
}

/// What the rate falls short by of a program that sleeps while it waits, in parts of full speed.
///
/// Budget comes in every period, and no more than a slice is ever kept: what comes while the program sleeps fills that up,
/// pays back what a burst ran beyond its budget until the kernel noticed, and is lost from then on. A wait that is no longer
/// than a period's pause loses nothing. An iteration is as much longer as it takes until that has come again.
fn lost_asleep(aim: &Aim, period: Nanos) -> f64 {
    let used = aim.target * aim.utilisation_most;
    let pause = period.as_secs_f64() * (1.0 - used);
    if !sleeps(aim) || aim.waiting_seconds <= pause {
        return 0.0;
    }
    let kept = pause * KEPT + OVERRUN / used;
    let lost = (aim.waiting_seconds - kept).max(0.0);
    aim.target - 1.0 / (1.0 / aim.target + lost / aim.iteration_seconds)
}

/// How far from the target a period is expected to lead, as parts of full speed. The terms:
///
/// * **beat**: in periods near an iteration, an iteration has one slice more or less by chance;
/// * **skew**: nodes' slices begin not quite together, and only where all run does the program run;
/// * **scatter**: the longer the period, the less single reports say.
pub fn period_costs(aim: &Aim, period: Nanos) -> f64 {
    let (target, period) = (aim.target, period.as_secs_f64());
    let iterations = period * target / aim.iteration_seconds;
    let pauses = target * (1.0 - target);
    let beat = BEAT * pauses * iterations / (1.0 + iterations * iterations);
    let slice = target * aim.utilisation_most * period;
    let skew = target * iterations / (1.0 + iterations) * SKEW / (slice + SKEW);
    let scatter = SCATTER * pauses * iterations;
    // Where full speed is not followed, feedback cannot tell what nodes lose by that from slower processors.
    let skew = if aim.is_followed { skew } else { skew * SKEW_UNSEEN };
    beat + skew + scatter
}

/// Errors within this part of the threshold are left alone.
const DEAD_BAND: f64 = 1.0 / 4.0;
/// So many deviations of what is known are no chance. What a false alarm does is small: it moves the share by what is
/// known, and what was known is not forgotten.
const CONFIDENCE: f64 = 2.0;
/// The model is taken to be off by this part of the threshold.
const MODEL_OFF: f64 = 0.5;
/// What it says counts as so many reports at the most: fewer than one can stand apart from.
const EXPECTED_MOST: f64 = 2.0;
/// What was seen before a change counts as so many reports at the most: processors wander.
const CARRIED_MOST: f64 = 16.0;
/// A step is taken to move the rate by this part of it more or less than expected.
const SLOPE_UNKNOWN: f64 = 0.3;
/// So many reports may pass before a change is felt.
const DELAY_MOST: u32 = 2;
/// What is so many deviations apart can be told apart by one report.
const TELLING: f64 = 2.0;
/// So many deviations of single reports stand apart.
const FAR: f64 = 5.0;
/// The reports of a window begin and end anywhere in a period: it is rare that they meet a whole pause more or less.
const PAUSES_MISSED: f64 = 0.75;
/// Deviation of single reports before they tell, as a part of the threshold.
const PRIOR_NOISE: f64 = 0.5;
/// Shares are within this part of the threshold: the rest is for what nodes use more or less than when
/// their schedules were set.
const REACH: f64 = 0.8;
/// Smaller changes, as parts of the threshold, are not worth a message to every node: a larger error is left alone
/// only by a share at its bound, and another period may mend that.
const STEP_LEAST: f64 = 0.2;
/// Errors this much smaller are worth another change of the period.
const CLEARLY_BETTER: f64 = 0.8;
/// Errors beyond this part of the threshold that no share mends are worth another period.
const PERIOD_WORTH: f64 = 0.5;
/// What is missing beyond so many times what the share may still make up is for another period at once.
const OUT_OF_REACH: f64 = 2.0;
/// Errors of this part of the threshold that a locked period explains are worth another one.
const RELOCK_LEAST: f64 = 1.0 / 3.0;
/// It explains them if the rate is nearer to what it makes of it than this part of the error.
const RELOCK_SURE: f64 = 0.3;
/// What was seen before counts as so many reports then.
const RELOCKED_COUNT: f64 = 4.0;
const SLOPE_MEMORY: f64 = 0.8;
/// The model speaks as loudly for a slope of 1 as a change by three deviations would for another.
const SLOPE_PRIOR: f64 = 9.0;
/// A steeper or flatter answer is another effect than that of the share.
const SLOPE_LEAST: f64 = 0.5;
const SLOPE_MOST: f64 = 2.0;
/// Seconds that nodes' clocks may be apart.
const SKEW: f64 = 0.001;
/// What no feedback mends counts so many times.
const SKEW_UNSEEN: f64 = 5.0;
/// Weights found on the simulated programs of `plant::bsp`.
const BEAT: f64 = 0.02;
const SCATTER: f64 = 0.05;
/// One that uses more of a processor polls, or hardly waits.
const SLEEPS_TO: f64 = 0.9;
/// Losing more than this part of the threshold asleep is worth a period that fits into no other application's.
const LOST_WORTH: f64 = 0.5;
/// Of what comes in a pause so much is kept, on average: a wait begins with some of a slice left. As on the simulated
/// programs of `plant::bsp`, within a third.
const KEPT: f64 = 0.75;
/// Seconds that bursts run beyond their budget, on average: half of a tick at 250 Hz.
const OVERRUN: f64 = 0.002;
/// What computing may get slower by until an iteration does not fit into its periods any more.
const ROOM: f64 = 0.95;
/// At a twentieth of full speed an iteration takes twenty times as long; more parts than that are as good as any
/// short period.
const LOCKED_PARTS_MOST: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Range;

    fn aim(target: f64) -> Aim {
        Aim {
            target,
            threshold: 0.02,
            range: Range::default(),
            iteration_seconds: 1.0,
            waiting_seconds: 0.0,
            utilisation_most: 1.0,
            utilisation_least: 1.0,
            sleeps: true,
            is_followed: true,
            share_now: None,
            share_most: 1.0,
        }
    }

    /// Half of an iteration of 100 ms is waiting, asleep.
    fn sleeper(target: f64) -> Aim {
        Aim {
            iteration_seconds: 0.1,
            waiting_seconds: 0.05,
            utilisation_most: 0.5,
            utilisation_least: 0.5,
            ..aim(target)
        }
    }

    fn sample(fraction: f64) -> Sample {
        Sample { fraction, seconds: 1.0 }
    }

    /// Runs against a program whose rate is `answer(setting)`, exactly; every setting that was had.
    fn run(aim: &Aim, reports: usize, answer: impl Fn(Setting) -> f64) -> Vec<Setting> {
        let mut policy = Predictive::default();
        let mut settings = vec![policy.start(aim)];
        for _ in 0..reports {
            let now = settings[settings.len() - 1];
            settings.extend(policy.observe(aim, sample(answer(now))));
        }
        settings
    }

    #[test]
    fn a_program_as_the_model_says_is_never_touched() {
        assert_eq!(run(&aim(0.3), 50, |setting| setting.share).len(), 1);
    }

    #[test]
    fn an_offset_is_corrected_in_few_steps_and_then_left_alone() {
        let settings = run(&aim(0.3), 100, |setting| setting.share * 0.95);
        let last = settings[settings.len() - 1];
        assert!((last.share * 0.95 - 0.3).abs() <= 0.02 / 3.0 + 1e-9, "{settings:?}");
        assert!(settings.len() <= 4, "{settings:?}");
    }

    #[test]
    fn the_slope_is_learned_when_it_is_not_as_the_model_says() {
        let steep = |setting: Setting| 0.3 + 1.8 * (setting.share - 0.31);
        let settings = run(&aim(0.3), 200, steep);
        let last = settings[settings.len() - 1];
        assert!((steep(last) - 0.3).abs() <= 0.02 / 3.0 + 1e-9, "{settings:?}");
        assert!(settings.len() <= 5, "{settings:?}");
    }

    #[test]
    fn what_cannot_be_reached_tries_each_period_once_and_keeps_the_best() {
        let far =
            |setting: Setting| if setting.period == Nanos::from_millis(80) { 0.2 } else { 0.1 };
        let settings = run(&aim(0.3), 500, far);
        let last = settings[settings.len() - 1];
        assert_eq!(last.period, Nanos::from_millis(80), "{settings:?}");
        let changes = settings.windows(2).filter(|pair| pair[0].period != pair[1].period).count();
        assert!(changes <= Range::default().periods().len(), "{changes}");
        assert!(settings.iter().all(|s| (s.share - 0.3).abs() <= 0.02), "{settings:?}");
        // The share is at its bound, and stays there.
        assert!(last.share > 0.3);
    }

    #[test]
    fn a_new_target_takes_along_what_was_learned() {
        let mut policy = Predictive::default();
        let aim_before = aim(0.3);
        let mut setting = policy.start(&aim_before);
        for _ in 0..100 {
            setting = policy.observe(&aim_before, sample(setting.share * 0.96)).unwrap_or(setting);
        }
        let next = policy.retarget(0.3, &aim(0.5)).unwrap();
        assert!((next.share * 0.96 - 0.5).abs() < 0.01, "{next:?}");
    }

    // Goal: what is learned at a low target is not multiplied on the way up, where most of it was an offset.
    #[test]
    fn what_was_learned_is_not_amplified() {
        let mut policy = Predictive::default();
        let low = aim(0.2);
        let mut setting = policy.start(&low);
        for _ in 0..100 {
            setting = policy.observe(&low, sample(setting.share + 0.012)).unwrap_or(setting);
        }
        let next = policy.retarget(0.2, &aim(0.6)).unwrap();
        assert!((next.share + 0.012 - 0.6).abs() < 0.007, "{next:?}");
    }

    // Goal: the first report after a step that reaches half of the way to the target counts if it is what the step was to
    // do. Method: the share is at its bound, 1.6 points above the target, and each share gives 4 points less.
    #[test]
    fn an_answer_that_is_as_expected_counts() {
        let (aim, gives) = (aim(0.6), |setting: Setting| setting.share - 0.04);
        let mut policy = Predictive::default();
        let first = policy.start(&aim);
        let second = (0..9).find_map(|_| policy.observe(&aim, sample(gives(first)))).unwrap();
        assert!((second.share - 0.616).abs() < 1e-9, "{second:?}");
        let counted = policy.since.count();
        policy.observe(&aim, sample(gives(second)));
        assert!(policy.since.count() > counted || policy.setting != Some(second), "{policy:?}");
    }

    // Goal: a schedule that follows what nodes use moves as little as it has to, and what is known of the rate moves along.
    #[test]
    fn what_follows_drift_is_known_to_the_policy() {
        let low = aim(0.3);
        let mut policy = Predictive::default();
        policy.start(&low);
        for _ in 0..50 {
            assert_eq!(policy.observe(&low, sample(0.3)), None);
        }
        let drifted = Aim { share_now: Some(0.28), ..low };
        let next = policy.followed(&drifted).unwrap();
        assert!((next.share - 0.284).abs() < 1e-9, "{next:?}");
        assert!((policy.window.mean() - 0.304).abs() < 1e-6, "{policy:?}");
    }

    // What is not granted is not asked for: the policy goes on from what the nodes have.
    #[test]
    fn no_share_goes_beyond_what_is_granted() {
        let granted = Aim { share_most: 0.305, ..aim(0.3) };
        let settings = run(&granted, 50, |setting| setting.share * 0.9);
        assert!(settings.iter().all(|setting| setting.share <= 0.305), "{settings:?}");
    }

    #[test]
    fn noise_is_not_chased() {
        let noisy = [0.05, -0.03, 0.02, -0.05, 0.03, 0.04, -0.04, -0.02];
        let aim = aim(0.3);
        let mut policy = Predictive::default();
        policy.start(&aim);
        let changes = (0..400usize)
            .filter(|at| policy.observe(&aim, sample(0.3 + noisy[at % noisy.len()])).is_some())
            .count();
        assert!(changes <= 3, "{changes}");
    }

    #[test]
    fn what_an_earlier_version_wrote_is_read() {
        let text = r#"{"setting":null,"noise":null,"window":{"count":1.0,"seconds":1.0,"sum":0.3,"apart":null},
            "slope":{"products":0.0,"squares":0.0},"before":null,"awaited":null,"loses_asleep":true,"trials":[]}"#;
        let policy: Predictive = serde_json::from_str(text).unwrap();
        assert_eq!((policy.window.mean(), policy.since), (0.3, Window::default()));
    }

    // Goal: budget is lost asleep where the wait is longer than a pause, and more comes meanwhile than is kept.
    #[test]
    fn more_is_lost_asleep_the_more_comes_meanwhile() {
        let lost =
            |target: f64, millis: u64| lost_asleep(&sleeper(target), Nanos::from_millis(millis));
        assert_eq!(lost(0.1, 20), 0.0);
        // A pause of 54 ms.
        assert_eq!(lost(0.8, 90), 0.0);
        let at_20 = [0.3, 0.5, 0.7, 0.9].map(|target| lost(target, 20));
        assert!(at_20.is_sorted() && at_20[0] > 0.0, "{at_20:?}");
        assert!(lost(0.7, 10) > lost(0.7, 20) && lost(0.7, 20) > lost(0.7, 40));
        // All of it: computing takes as long as an iteration may, and the waiting comes on top.
        let all = 0.9 - 1.0 / (1.0 / 0.9 + 0.5);
        assert!(at_20[3] < all && lost(0.9, 1) < all && lost(0.9, 1) > 0.9 * all);
        assert_eq!(
            lost_asleep(&Aim { sleeps: false, ..sleeper(0.9) }, Nanos::from_millis(20)),
            0.0
        );
    }

    // Goal: who would lose too much asleep never does: its first period at such a target is a locked one, and at others it
    // is one that fits into those of other applications.
    #[test]
    fn the_period_follows_from_what_would_be_lost_asleep() {
        let (short, half) = (Nanos::from_millis(20), locked(&sleeper(0.5)));
        let start = |aim: &Aim| Predictive::default().start(aim).period;
        assert!(start(&sleeper(0.1)) <= short && start(&aim(0.5)) <= short);
        assert_eq!(Some(start(&sleeper(0.5))), half);
        let mut policy = Predictive::default();
        policy.start(&sleeper(0.1));
        for _ in 0..20 {
            policy.observe(&sleeper(0.1), sample(0.103));
        }
        let at_half = policy.retarget(0.1, &sleeper(0.5)).unwrap();
        // What its share gave in another period says nothing of this one.
        assert_eq!((Some(at_half.period), at_half.share), (half, 0.5));
        assert!(policy.retarget(0.5, &sleeper(0.1)).unwrap().period <= short);
    }

    // Goal: what a share gives too much at a low target is not expected to grow. Method: as a program was seen to do that
    // communicates five times as long as it computes, 1.3 points at 30 %.
    #[test]
    fn what_is_given_too_much_ends_at_full_speed() {
        let taken = |by: f64, before: f64, target: f64| {
            Lacked { target: before, by }.taken_along(&sleeper(target))
        };
        assert!((taken(-0.013, 0.3, 0.6) + 0.013 * 4.0 / 7.0).abs() < 1e-9);
        assert_eq!(taken(-0.013, 0.3, 1.0), 0.0);
        assert!((taken(-0.013, 0.6, 0.3) + 0.0065).abs() < 1e-9);
        assert!((taken(0.01, 0.2, 0.8) - 0.02).abs() < 1e-9);
        assert_eq!(taken(-0.013, 1.0, 1.0), -0.013);
    }

    // Goal: a part of every slice that is lost, as of programs that poll, is as large a part at another target.
    #[test]
    fn a_part_of_each_slice_is_taken_along_as_a_part() {
        let lost = |aim: &Aim| Lacked { target: 0.2, by: 0.01 }.taken_along(aim);
        let polls = Aim { sleeps: false, ..aim(0.6) };
        let hardly_waits = aim(0.6);
        assert!((lost(&polls) - 0.03).abs() < 1e-9 && lost(&polls) == lost(&hardly_waits));
        assert!((lost(&Aim { target: 0.1, ..polls }) - 0.005).abs() < 1e-9);
    }

    // Goal: what a share lacks in periods as others have them is known again after a locked period, which tells nothing of
    // it. Method: a sleeper that is given too much at low targets, which goes to half of full speed and back.
    #[test]
    fn what_was_learned_outlives_a_locked_period() {
        let low = sleeper(0.1);
        let mut policy = Predictive::default();
        let mut setting = policy.start(&low);
        for _ in 0..100 {
            setting = policy.observe(&low, sample(setting.share + 0.008)).unwrap_or(setting);
        }
        let back = |policy: &mut Predictive| policy.retarget(0.5, &low).unwrap().share;
        assert_eq!(
            Some(policy.retarget(0.1, &sleeper(0.5)).unwrap().period),
            locked(&sleeper(0.5))
        );
        for _ in 0..20 {
            policy.observe(&sleeper(0.5), sample(0.503));
        }
        assert!((back(&mut policy) - setting.share).abs() < 0.002, "{setting:?}");
        let mut fresh = Predictive::default();
        fresh.start(&sleeper(0.5));
        assert_eq!(back(&mut fresh), 0.1);
    }

    // Goal: whose full speed is not followed has the longer periods in which nodes lose less by clocks that differ, at a
    // new target too.
    #[test]
    fn what_cannot_be_seen_is_avoided() {
        let polls = Aim { iteration_seconds: 0.06, sleeps: false, ..aim(0.8) };
        let unseen = Aim { is_followed: false, ..polls };
        let first = |aim: &Aim| Predictive::default().start(aim).period;
        assert!(first(&unseen) > first(&polls));
        let mut policy = Predictive::default();
        let small = Aim { target: 0.1, ..unseen };
        assert!(policy.start(&small).period != first(&unseen));
        assert_eq!(policy.retarget(0.1, &unseen).unwrap().period, first(&unseen));
    }

    // Goal: a program that falls short asleep, though it does not wait for long, is tried in longer periods before shorter ones.
    #[test]
    fn who_falls_short_asleep_gets_a_longer_period_next() {
        let sleeper = Aim {
            iteration_seconds: 0.1,
            utilisation_most: 0.2,
            utilisation_least: 0.2,
            ..aim(0.6)
        };
        let short = |setting: Setting| {
            let is_long = setting.period >= Nanos::from_millis(40);
            if is_long { setting.share } else { setting.share - 0.06 }
        };
        let settings = run(&sleeper, 20, short);
        let periods: Vec<_> = settings.iter().map(|setting| setting.period).collect();
        assert!(periods.is_sorted(), "{settings:?}");
        let last = settings[settings.len() - 1];
        assert!((short(last) - 0.6).abs() <= 0.005 && settings.len() <= 5, "{settings:?}");
    }

    // Goal: where no share makes up what is lost asleep, the period changes at once, and the share is the target's. Method:
    // a program as above, with the three reports that one needs to be sure of it; and one that a share helps.
    #[test]
    fn a_share_that_cannot_help_is_not_tried() {
        let sleeper = Aim {
            iteration_seconds: 0.1,
            utilisation_most: 0.2,
            utilisation_least: 0.2,
            ..aim(0.6)
        };
        let second = |short: f64| run(&sleeper, 3, |setting| setting.share - short)[1];
        let first = Predictive::default().start(&sleeper);
        let far = second(0.06);
        assert!(far.period > first.period && far.share == sleeper.target, "{far:?}");
        let near = second(0.014);
        assert!(near.period == first.period && near.share > first.share, "{near:?}");
    }

    // 60 ms of computing and 240 ms of waiting. At 50 % two periods of 300 ms an iteration: three of 200 ms would
    // have no room for the waiting. At 80 % one.
    #[test]
    fn iterations_of_sleepers_take_a_whole_number_of_periods() {
        let sleeper = |target| Aim {
            iteration_seconds: 0.3,
            waiting_seconds: 0.24,
            utilisation_most: 0.2,
            utilisation_least: 0.2,
            ..aim(target)
        };
        assert_eq!(locked(&sleeper(0.5)), Some(Nanos::from_millis(300)));
        assert_eq!(locked(&sleeper(0.8)), Some(Nanos::from_millis(375)));
        assert_eq!(locked(&Aim { utilisation_most: 1.0, ..sleeper(0.5) }), None);
    }

    // Goal: a locked period that was chosen for another full speed is chosen again, where the rate is what that period
    // makes it. Method: 360 ms were a fifth of an iteration at 20 % when an iteration took 360 ms; it takes 405.
    #[test]
    fn a_locked_period_follows_full_speed() {
        let slower = Aim {
            iteration_seconds: 0.405,
            waiting_seconds: 0.288,
            utilisation_most: 0.2,
            utilisation_least: 0.2,
            threshold: 0.03,
            ..aim(0.2)
        };
        let period = Nanos::from_millis(360);
        assert_eq!(relocked(&slower, period, 0.225), Some(Nanos::from_millis(405)));
        // Neither of what is near enough, nor where the rate is another than that of the period.
        assert_eq!(relocked(&slower, period, 0.205), None);
        assert_eq!(relocked(&slower, period, 0.25), None);
        assert_eq!(relocked(&Aim { utilisation_most: 1.0, ..slower }, period, 0.225), None);
        // A period that fits into those of others is not locked, whatever the rate.
        assert_eq!(relocked(&slower, Nanos::from_millis(320), 0.225), None);
        let mut policy = Predictive::default();
        let mut setting = policy.start(&Aim { iteration_seconds: 0.36, ..slower });
        assert_eq!(setting.period, period);
        let answer = |setting: Setting| 0.405 / 5.0 / setting.period.as_secs_f64();
        for _ in 0..20 {
            setting = policy.observe(&slower, sample(answer(setting))).unwrap_or(setting);
        }
        assert!((answer(setting) - 0.2).abs() <= 0.01, "{setting:?}");
    }

    // Goal: no period is locked that the range does not have, at a new target either. Method: an iteration of 4 ms, which
    // at 50 % would take two periods of 4 ms; one of 100 ms beside a node that does little, whose slice of a millisecond
    // takes 200 ms: longer ones than the shortest may have room for that, and are locked all the same.
    #[test]
    fn a_locked_period_is_one_that_can_be_kept() {
        let half = sleeper(0.5);
        let quick = Aim { iteration_seconds: 0.004, waiting_seconds: 0.002, ..half };
        let uneven = Aim { utilisation_least: 0.01, ..half };
        for aim in [quick, uneven] {
            let mut policy = Predictive::default();
            policy.start(&Aim { target: 0.6, ..aim });
            let period = policy.retarget(0.6, &aim).unwrap().period;
            assert!(aim.range.holds(aim.target * aim.utilisation_least, period), "{period}");
        }
        assert_eq!(locked(&quick), None);
        assert_eq!(locked(&uneven), Some(Nanos::from_millis(200)));
    }

    #[test]
    fn an_answer_that_has_not_come_is_waited_for_twice() {
        let mut awaited = Awaited { from: 0.3, to: None, patience: DELAY_MOST };
        let mut lasts = |fraction, deviation| awaited.lasts(&aim(0.5), sample(fraction), deviation);
        assert!(!lasts(0.45, 0.01), "it has come");
        assert!(!lasts(0.3, 0.5), "nobody can tell");
        assert_eq!([0.31, 0.25, 0.3].map(|fraction| lasts(fraction, 0.01)), [true, true, false]);
    }

    #[test]
    fn how_much_the_rate_follows_the_share_is_learned_within_bounds() {
        let learned = |answer: f64| {
            let seen = |share, fraction| Seen { share, fraction, variance: 1e-6 };
            let mut slope = Slope::default();
            (0..20).for_each(|_| slope.learn(Some(seen(0.4, 0.4)), seen(0.5, 0.4 + answer)));
            slope.value()
        };
        assert_eq!(Slope::default().value(), 1.0);
        assert!((learned(0.08) - 0.8).abs() < 0.02, "{}", learned(0.08));
        assert_eq!((learned(-0.2), learned(0.5)), (SLOPE_LEAST, SLOPE_MOST));
    }

    #[test]
    fn slices_that_cannot_be_kept_are_not_chosen() {
        let small = Aim { utilisation_least: 0.1, utilisation_most: 0.1, ..aim(0.1) };
        // 1 % of 10 ms would be 0.1 ms.
        assert!(cheapest_first(&small).iter().all(|period| *period >= Nanos::from_millis(100)));
        let tiny = Aim { utilisation_least: 0.001, ..aim(0.1) };
        assert!(cheapest_first(&tiny).is_empty());
        assert_eq!(Predictive::default().start(&tiny).period, Nanos::from_millis(640));
    }
}
