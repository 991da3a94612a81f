//! What is reserved, and what is asked of it: a usual load, and combs made to be slow to search.

use crate::plan::Random;
use keeptime_calendar::table::{Slot, SlotTable};
use keeptime_calendar::{Span, When};
use keeptime_model::units::{Nanos, WallTime};
use serde::Serialize;

/// How much there is of the resource.
pub const CAPACITY: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Load {
    /// Spans of 1 s to 17 min that take up to 10 % of what there is, two thirds of it taken.
    Random,
    /// All is taken for 1 s, nothing for 9 s, and so on; asked for a little more than 9 s.
    Comb,
    /// Gaps and walls of random lengths, depths and heights; asked for more than the longest gap.
    Uneven,
    /// Of every two gaps one is long enough but not free enough, the other free enough but not long
    /// enough, and the lengths are similar.
    Deceptive,
    /// Made against what searches note for later ones: gaps of [`STAIRS`] kinds, the longer the less
    /// free, and as many kinds of questions, each for a little more than what is there.
    Stairs,
}

const STAIRS: u64 = 16;

impl Load {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Random, Self::Comb, Self::Uneven, Self::Deceptive, Self::Stairs];

    /// As the figures call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Comb => "comb",
            Self::Uneven => "uneven comb",
            Self::Deceptive => "deceptive comb",
            Self::Stairs => "comb of stairs",
        }
    }

    /// `live` reservations that fit together.
    pub fn slots(self, live: usize, random: &mut Random) -> Vec<Slot> {
        match self {
            Self::Random => random_slots(live, random),
            Self::Comb => (0..live as u64).map(|i| slot(i * 10, 1, CAPACITY)).collect(),
            Self::Uneven | Self::Deceptive | Self::Stairs => {
                let mut at = 0;
                let mut slots = Vec::with_capacity(live);
                for pair in 0..live as u64 / 2 {
                    let [gap, wall] = match self {
                        Self::Uneven => [
                            (8 + random.below(8), random.below(501)),
                            (1 + random.below(4), 501 + random.below(500)),
                        ],
                        Self::Stairs => [(9 + pair % STAIRS, pair % STAIRS * 60), (1, CAPACITY)],
                        _ => [[(10, 501), (9, 0)][pair as usize % 2], (1, CAPACITY)],
                    };
                    for (length, amount) in [wall, gap] {
                        slots.push(slot(at, length, amount));
                        at += length;
                    }
                }
                slots
            }
        }
    }

    /// What takes the place of a reservation, among others like it: another where `table` has room, or
    /// the same where another would spoil what the load is about.
    pub fn successor(self, old: Slot, live: usize, table: &SlotTable, random: &mut Random) -> Slot {
        match self {
            Self::Random => loop {
                let new = random_slot(live, random);
                if table.lack(new.span, new.amount).is_none() {
                    return new;
                }
            },
            _ => old,
        }
    }

    /// A question about `live` reservations: when, and how much.
    pub fn question(self, live: usize, random: &mut Random) -> (When, u64) {
        let at = WallTime::from_unix_nanos;
        match self {
            Self::Random => {
                let after = at(random.below(horizon(live)));
                (When::after(after, Nanos::new(duration(random))), 1 + random.below(500))
            }
            // From somewhere in the first hundredth, so that the rest has to be passed.
            _ => {
                let after = at(random.below(live as u64 / 20) * SECOND);
                let (duration, amount) = match self {
                    Self::Comb => (9 * SECOND + 1, 1 + random.below(CAPACITY)),
                    Self::Uneven => (15 * SECOND + 1, 500),
                    Self::Stairs => {
                        let stair = random.below(STAIRS);
                        ((9 + stair) * SECOND + 1, CAPACITY - stair * 60)
                    }
                    _ => (9 * SECOND + SECOND / 2, 500),
                };
                (When::after(after, Nanos::new(duration)), amount)
            }
        }
    }
}

/// A reservation like those of [`Load::Random`].
pub fn random_slot(live: usize, random: &mut Random) -> Slot {
    let from = WallTime::from_unix_nanos(random.below(horizon(live)));
    let span = Span::lasting(from, Nanos::new(duration(random)));
    Slot { span, amount: 1 + random.below(CAPACITY / 10) }
}

fn random_slots(live: usize, random: &mut Random) -> Vec<Slot> {
    let mut table = SlotTable::new(CAPACITY);
    let mut slots = Vec::with_capacity(live);
    while slots.len() < live {
        let slot = random_slot(live, random);
        if table.add(slot.span, slot.amount).is_ok() {
            slots.push(slot);
        }
    }
    slots
}

/// So that `live` reservations of 146 s and 50 units on average take two thirds of all there is.
fn horizon(live: usize) -> u64 {
    live as u64 * 11 * SECOND
}

/// 1 s to 1024 s, every doubling as often.
fn duration(random: &mut Random) -> u64 {
    let octave = SECOND << random.below(10);
    octave + random.below(octave)
}

fn slot(from: u64, seconds: u64, amount: u64) -> Slot {
    let from = WallTime::from_unix_nanos(from * SECOND);
    Slot { span: Span::lasting(from, Nanos::new(seconds * SECOND)), amount }
}
