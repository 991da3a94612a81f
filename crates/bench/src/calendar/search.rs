//! The earliest fit on one resource, while reservations come and go: one load of one size.

use super::baseline::SortedList;
use super::load::{CAPACITY, Load};
use super::timed;
use crate::figures::{Figures, Target, quantile};
use crate::plan::Random;
use anyhow::{Result, ensure};
use keeptime_calendar::When;
use keeptime_calendar::table::{Slot, SlotTable};
use keeptime_model::units::WallTime;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hint::black_box;

/// The number of live reservations that the targets are about, and the one it is compared with.
const ASKED: usize = 100_000;
const COMPARED: usize = 1_000;
/// The baseline is asked one question of so many. Its list drives the table out of the caches, so it has
/// turns of its own.
const BASELINE_EVERY: usize = 100;
/// More than the caches of a processor hold.
const OTHERS_BYTES: usize = 64 << 20;
/// A cache line, of which one byte is read.
const LINE_BYTES: usize = 64;

/// What happens between two questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// So many changes of the reservations.
    Changes(usize),
    /// One change, and then something that leaves nothing of the table in the caches: what a broker
    /// does for others until it comes to the same table again.
    Others,
}

impl Between {
    fn changes(self) -> usize {
        match self {
            Self::Changes(changes) => changes,
            Self::Others => 1,
        }
    }
}

/// One load of one size.
pub struct Case {
    load: Load,
    between: Between,
    /// What others use, if they do.
    others: Vec<u8>,
    slots: Vec<Slot>,
    table: SlotTable,
    list: SortedList,
    random: Random,
    /// The first question of all, when nothing is noted yet.
    first: f64,
    /// In microseconds, in the order of measurement.
    samples: Vec<f64>,
    baseline: Vec<f64>,
}

/// A question, its answer, and how many microseconds that took.
struct Asked {
    when: When,
    amount: u64,
    start: Option<u64>,
    time: f64,
}

/// What was measured: how often each number of nanoseconds was seen.
#[derive(Debug, Serialize)]
pub struct Raw {
    name: String,
    nanos: BTreeMap<u64, usize>,
    baseline_nanos: BTreeMap<u64, usize>,
}

impl Case {
    /// Reserves the load, and asks a first time.
    pub fn new(load: Load, live: usize, between: Between) -> Result<Self> {
        let mut random = Random(live as u64);
        let slots = load.slots(live, &mut random);
        let mut table = SlotTable::new(CAPACITY);
        for slot in &slots {
            table.add(slot.span, slot.amount)?;
        }
        let list = SortedList::new(&slots);
        let others = match between {
            Between::Changes(_) => Vec::new(),
            Between::Others => vec![1; OTHERS_BYTES],
        };
        let mut case = Self {
            load,
            between,
            others,
            slots,
            table,
            list,
            random,
            first: 0.0,
            samples: Vec::new(),
            baseline: Vec::new(),
        };
        case.first = case.ask().time;
        Ok(case)
    }

    /// Asks so many questions. Where the load has the caches for itself, as many are asked before that
    /// are not counted: what is measured is a table that is asked again and again, not what the
    /// cases before it left there.
    pub fn round(&mut self, questions: usize) -> Result<()> {
        if self.between != Between::Others {
            for _ in 0..questions {
                self.change()?;
                black_box(self.ask());
            }
        }
        for _ in 0..questions {
            self.change()?;
            black_box(
                self.others.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum::<u64>(),
            );
            let time = self.ask().time;
            self.samples.push(time);
        }
        if self.between.changes() > 1 {
            self.list = SortedList::new(&self.slots);
        }
        (0..questions.div_ceil(BASELINE_EVERY)).try_for_each(|_| self.compare())
    }

    /// Takes reservations off and puts the same or, where there are several changes, others in their
    /// places, so that nothing lasts that a search notes of the reservations around them.
    fn change(&mut self) -> Result<()> {
        let changes = self.between.changes();
        for _ in 0..changes {
            let live = self.slots.len();
            let index = self.random.below(live as u64) as usize;
            let old = self.slots[index];
            self.table.remove(old.span, old.amount)?;
            let new = match changes {
                1 => old,
                _ => self.load.successor(old, live, &self.table, &mut self.random),
            };
            self.table.add(new.span, new.amount)?;
            self.slots[index] = new;
        }
        Ok(())
    }

    /// A question and how long it takes.
    fn ask(&mut self) -> Asked {
        let (when, amount) = self.load.question(self.slots.len(), &mut self.random);
        let mut start = None;
        let time = timed(|| start = black_box(self.table.earliest_fit(when, amount)));
        Asked { when, amount, start: start.map(WallTime::unix_nanos), time }
    }

    /// Asks the baseline too, and compares what it answers.
    fn compare(&mut self) -> Result<()> {
        let Asked { when, amount, start, .. } = self.ask();
        let (list, mut expected) = (&self.list, None);
        let time = timed(|| expected = black_box(list.earliest_fit(when, amount, CAPACITY)));
        self.baseline.push(time);
        ensure!(start == expected, "{}: {start:?}, not {expected:?}", self.name());
        Ok(())
    }

    /// Median and p99, and where the targets are about, p99.99.
    pub fn figures(&self, figures: &mut Figures) {
        let limits = match self.slots.len() {
            ASKED => {
                &[("p50", 0.5, None), ("p99", 0.99, Some(20.0)), ("p99.99", 0.9999, Some(1e3))][..]
            }
            _ => &[("p50", 0.5, None), ("p99", 0.99, None)],
        };
        for (name, q, limit) in limits {
            let figure = figures.value(
                format!("{}, {name}", self.name()),
                "us",
                quantile(&self.samples, *q),
                &self.samples,
                Some(quantile(&self.baseline, *q)),
                limit.map(Target::AtMost),
            );
            figure.against(SortedList::NAME);
        }
        if self.slots.len() == ASKED {
            let name = format!("{}, first question of all", self.name());
            figures.value(name, "us", self.first, &[self.first], None, None);
        }
    }

    /// How many questions a round has where the easiest case has `most`: fewer where they, or what is
    /// between them, take long.
    pub fn questions(&self, most: usize) -> usize {
        match self.between {
            Between::Changes(_) if self.slots.len() <= ASKED => most,
            _ => most / 10,
        }
    }

    /// Everything that was measured.
    pub fn raw(&self) -> Raw {
        let counted = |samples: &[f64]| {
            let mut counts = BTreeMap::new();
            for sample in samples {
                *counts.entry((sample * 1e3).round() as u64).or_default() += 1;
            }
            counts
        };
        let (nanos, baseline_nanos) = (counted(&self.samples), counted(&self.baseline));
        Raw { name: self.name(), nanos, baseline_nanos }
    }

    fn name(&self) -> String {
        let name = format!("fit, {}, {}", self.load.name(), self.slots.len());
        match self.between {
            Between::Changes(1) => name,
            Between::Changes(changes) => format!("{name}, {changes} changes before each"),
            Between::Others => format!("{name}, caches used by others before each"),
        }
    }
}

/// How much slower it becomes from 1,000 to 100,000 reservations.
pub fn growth(cases: &[Case], figures: &mut Figures) {
    for big in cases.iter().filter(|case| case.slots.len() == ASKED) {
        let compared = |case: &&Case| {
            (case.load, case.between, case.slots.len()) == (big.load, big.between, COMPARED)
        };
        let Some(small) = cases.iter().find(compared) else { continue };
        for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
            let ratio = |big, small| quantile(big, q) / quantile(small, q);
            let figure = figures.value(
                format!("{} / {COMPARED}, {name}", big.name()),
                "x",
                ratio(&big.samples, &small.samples),
                &big.samples,
                Some(ratio(&big.baseline, &small.baseline)),
                Some(Target::AtMost(5.0)),
            );
            figure.against(SortedList::NAME);
        }
    }
}
