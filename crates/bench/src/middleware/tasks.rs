//! What users ask for (Figure 4.8): tasks that arrive at random intervals, each a chain of sub-tasks with
//! parameters and intervals of their own. The same seed asks for the same at the same times, of every arm and
//! on every machine.

use super::LIGHT;
use crate::quick;
use fastrand::Rng;
use keeptime_model::units::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which renderer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Renderer {
    /// Volumes, by rays.
    Raycast,
    /// Surfaces, by polygons.
    Render,
}

/// Parameters that are asked for, as they are named in the application's file.
pub type Setting = &'static [&'static str];

/// How many frames one request draws: the same number in all arms and in the runs of its curve, since the camera goes
/// round and frames differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawing {
    /// Those that are counted.
    pub frames: u32,
    /// Drawn before those: where one frame is all of a request, it is what is asked for.
    pub warmup: u32,
}

/// How often the first of two values is asked for, in percent; the other is the rest.
pub type Percent = u32;

/// One experiment: who asks, how often, for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// For which pictures.
    pub renderer: Renderer,
    /// Tasks arrive at intervals of up to so many seconds.
    pub interval_most: u32,
    /// Of ray tracing: images of 512 against 1024 pixels.
    pub small: Percent,
    /// Of ray tracing: interleaving factors of 0 against 2.
    pub fine: Percent,
    /// Of the draws.
    pub seed: u64,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubTask {
    /// Of which task, from 0.
    pub task: u32,
    /// When it is asked for, since the beginning.
    pub at_nanos: Nanos,
    /// Which of [`Renderer::settings`].
    pub setting: usize,
    /// The bound on its time, in percent of the least time that was measured with these parameters.
    pub within_percent: u64,
}

/// Sub-tasks of a task.
const LENGTH: [u32; 2] = [1, 5];
/// Seconds between two of them, at the most.
const GAP_MOST: f64 = 20.0;
/// How patient users are; as many of each.
const WITHIN: [u64; 3] = [150, 200, 300];

/// So long requests may wait for room where load is light: the thesis admits all there, and what runs then ends sooner.
const LIGHT_WAIT: Nanos = Nanos::from_secs(10);

/// So long a request draws at full speed (one frame, where that takes longer): with launching the 8 s that the
/// thesis' admission rates at its heaviest load tell.
const SECONDS: f64 = 6.0;

const RAYCAST: [Setting; 4] = [
    &["size=512", "interleave=0"],
    &["size=512", "interleave=2"],
    &["size=1024", "interleave=0"],
    &["size=1024", "interleave=2"],
];
const RENDER: [Setting; 3] = [&["size=256"], &["size=512"], &["size=1024"]];

impl Drawing {
    /// As many as a request has where one takes so long: on every machine requests are as long.
    pub fn of(frame: Nanos) -> Self {
        let seconds = if quick() { SECONDS / 3.0 } else { SECONDS };
        let frames = (seconds / frame.as_secs_f64()).round().max(1.0) as u32;
        Self { frames, warmup: u32::from(frames > 1) }
    }

    /// All.
    pub fn drawn(self) -> u32 {
        self.frames + self.warmup
    }
}

impl Renderer {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Raycast, Self::Render];

    /// The name of its application.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raycast => "raycast",
            Self::Render => "render",
        }
    }

    /// What is asked of it.
    pub fn settings(self) -> &'static [Setting] {
        match self {
            Self::Raycast => &RAYCAST,
            Self::Render => &RENDER,
        }
    }
}

impl Load {
    /// So long a request may wait until it is admitted; 0 = it is refused at once, as in the thesis.
    pub fn wait(&self) -> Nanos {
        let is_light = self.interval_most == LIGHT || quick();
        if is_light { LIGHT_WAIT } else { Nanos::default() }
    }

    /// So many requests, in the order of their times. Of each value there are as many as the ratios say. Tasks
    /// come `times` as often as the load says: to a cluster that is so many times as large.
    pub fn requests(&self, count: usize, times: u32) -> Vec<SubTask> {
        // By this generator as long as there are records: what ran on the lab is drawn again to be simulated.
        let mut random = Rng::with_seed(self.seed);
        let interval_most = f64::from(self.interval_most) / f64::from(times);
        let mut requests = arrivals(count, interval_most, &mut random);
        let settings = self.settings(count, &mut random);
        let patience = deck(count, &mut random, |at| WITHIN[at % WITHIN.len()]);
        for ((request, setting), within) in requests.iter_mut().zip(settings).zip(patience) {
            (request.setting, request.within_percent) = (setting, within);
        }
        requests
    }

    fn settings(&self, count: usize, random: &mut Rng) -> Vec<usize> {
        match self.renderer {
            Renderer::Raycast => {
                let is_first = |percent: u32| move |at| at < part(count, percent);
                let small = deck(count, random, is_first(self.small));
                let fine = deck(count, random, is_first(self.fine));
                let setting = |(small, fine): (bool, bool)| match (small, fine) {
                    (true, true) => 0,
                    (true, false) => 1,
                    (false, true) => 2,
                    (false, false) => 3,
                };
                small.into_iter().zip(fine).map(setting).collect()
            }
            Renderer::Render => deck(count, random, |at| at % RENDER.len()),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { renderer, interval_most, small, fine, seed } = self;
        write!(f, "{}, intervals up to {interval_most} s", renderer.name())?;
        match renderer {
            Renderer::Raycast => {
                write!(f, ", 512:1024 = {small}:{}, 0:2 = {fine}:{}", 100 - small, 100 - fine)
            }
            Renderer::Render => write!(f, ", seed {seed}"),
        }
    }
}

fn arrivals(count: usize, interval_most: f64, random: &mut Rng) -> Vec<SubTask> {
    let mut requests = Vec::with_capacity(count);
    let (mut arrived, mut task) = (0.0, 0);
    while requests.len() < count {
        arrived += random.f64() * interval_most;
        let mut at = arrived;
        for _ in 0..between(LENGTH, random) {
            let at_nanos = Nanos::from_millis((at * 1e3) as u64);
            requests.push(SubTask { task, at_nanos, setting: 0, within_percent: 0 });
            at += random.f64() * gap_most();
        }
        task += 1;
    }
    requests.truncate(count);
    requests.sort_by_key(|request| request.at_nanos);
    requests
}

fn gap_most() -> f64 {
    if quick() { GAP_MOST / 4.0 } else { GAP_MOST }
}

/// A whole number from the first to the second, both included.
fn between([least, most]: [u32; 2], random: &mut Rng) -> u32 {
    least + (random.f64() * f64::from(most - least + 1)) as u32
}

fn part(count: usize, percent: u32) -> usize {
    (count * percent as usize).div_ceil(100)
}

/// `card` of every place, shuffled.
fn deck<T>(count: usize, random: &mut Rng, card: impl Fn(usize) -> T) -> Vec<T> {
    let mut cards: Vec<_> = (0..count).map(card).collect();
    for last in (1..count).rev() {
        cards.swap(last, (random.f64() * (last + 1) as f64) as usize);
    }
    cards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(interval_most: u32, seed: u64) -> Load {
        Load { renderer: Renderer::Raycast, interval_most, small: 30, fine: 70, seed }
    }

    #[test]
    fn ratios_are_kept_exactly_and_a_seed_repeats() {
        let requests = load(10, 1).requests(20, 1);
        assert_eq!(requests, load(10, 1).requests(20, 1));
        assert_ne!(requests, load(10, 2).requests(20, 1));
        let having =
            |what: &str| requests.iter().filter(|r| RAYCAST[r.setting].contains(&what)).count();
        assert_eq!((having("size=512"), having("interleave=0")), (6, 14));
        assert!(requests.is_sorted_by_key(|request| request.at_nanos));
        for within in WITHIN {
            assert!(requests.iter().filter(|r| r.within_percent == within).count() >= 6);
        }
    }

    #[test]
    fn a_request_lasts_as_long_whatever_a_frame_takes() {
        let of = |millis| Drawing::of(Nanos::from_millis(millis));
        assert_eq!((of(100).frames, of(100).drawn()), (60, 61));
        assert_eq!((of(3_000).frames, of(3_000).drawn()), (2, 3));
        assert_eq!((of(9_000).frames, of(9_000).drawn()), (1, 1));
    }

    #[test]
    fn requests_wait_at_light_load_alone() {
        let waits = super::super::INTERVALS.map(|interval| load(interval, 1).wait());
        assert_eq!(waits, [Nanos::default(), Nanos::default(), LIGHT_WAIT]);
    }

    #[test]
    fn longer_intervals_ask_for_the_same_more_seldom() {
        let last = |interval| load(interval, 3).requests(20, 1).last().map(|r| r.at_nanos);
        assert!(last(50) > last(20) && last(20) > last(10));
        let renders = Load { renderer: Renderer::Render, ..load(10, 1) }.requests(21, 1);
        for setting in 0..RENDER.len() {
            assert_eq!(renders.iter().filter(|r| r.setting == setting).count(), 7);
        }
    }
}
