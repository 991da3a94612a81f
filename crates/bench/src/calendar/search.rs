//! The earliest fit on one resource, while reservations come and go: one load of one size.

use super::baseline::SortedList;
use super::load::{CAPACITY, Load};
use super::timed;
use crate::figures::{Figures, Target, quantile};
use crate::plan::Random;
use anyhow::{Result, ensure};
use keeptime_calendar::table::{Slot, SlotTable};
use keeptime_model::units::WallTime;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hint::black_box;

/// The number of live reservations that the targets are about, and the one it is compared with.
const ASKED: usize = 100_000;
const COMPARED: usize = 1_000;
/// The baseline is asked one question of so many.
const BASELINE_EVERY: usize = 100;

/// One load of one size.
pub struct Case {
    load: Load,
    slots: Vec<Slot>,
    table: SlotTable,
    list: SortedList,
    random: Random,
    /// In microseconds, in the order of measurement.
    samples: Vec<f64>,
    baseline: Vec<f64>,
}

/// What was measured: how often each number of nanoseconds was seen.
#[derive(Debug, Serialize)]
pub struct Raw {
    name: String,
    nanos: BTreeMap<u64, usize>,
    baseline_nanos: BTreeMap<u64, usize>,
}

impl Case {
    /// Reserves the load.
    pub fn new(load: Load, live: usize) -> Result<Self> {
        let mut random = Random(live as u64);
        let slots = load.slots(live, &mut random);
        let mut table = SlotTable::new(CAPACITY);
        for slot in &slots {
            table.add(slot.span, slot.amount)?;
        }
        let list = SortedList::new(&slots);
        let (samples, baseline) = Default::default();
        Ok(Self { load, slots, table, list, random, samples, baseline })
    }

    /// Asks so many questions. One reservation is taken off and put back before each, so that nothing
    /// lasts that a search remembers of the reservations around it.
    pub fn round(&mut self, questions: usize) -> Result<()> {
        for number in 0..questions {
            let index = self.random.below(self.slots.len() as u64) as usize;
            let Slot { span, amount } = self.slots[index];
            self.table.remove(span, amount)?;
            self.table.add(span, amount)?;
            let (when, amount) = self.load.question(self.slots.len(), &mut self.random);
            let mut start = None;
            let time = timed(|| start = black_box(self.table.earliest_fit(when, amount)));
            self.samples.push(time);
            if number % BASELINE_EVERY == 0 {
                let mut expected = None;
                let list = &self.list;
                let time =
                    timed(|| expected = black_box(list.earliest_fit(when, amount, CAPACITY)));
                self.baseline.push(time);
                let start = start.map(WallTime::unix_nanos);
                ensure!(start == expected, "{}: {start:?}, not {expected:?}", self.name());
            }
        }
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
            figures.value(
                format!("{}, {name}", self.name()),
                "us",
                quantile(&self.samples, *q),
                &self.samples,
                Some(quantile(&self.baseline, *q)),
                limit.map(Target::AtMost),
            );
        }
    }

    /// How many reservations it has.
    pub fn live(&self) -> usize {
        self.slots.len()
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
        format!("fit, {}, {}", self.load.name(), self.slots.len())
    }
}

/// How much slower it becomes from 1,000 to 100,000 reservations.
pub fn growth(cases: &[Case], figures: &mut Figures) {
    for big in cases.iter().filter(|case| case.slots.len() == ASKED) {
        let compared = |case: &&Case| case.load == big.load && case.slots.len() == COMPARED;
        let Some(small) = cases.iter().find(compared) else { continue };
        for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
            let ratio = |big, small| quantile(big, q) / quantile(small, q);
            figures.value(
                format!("{} / {COMPARED}, {name}", big.name()),
                "x",
                ratio(&big.samples, &small.samples),
                &big.samples,
                Some(ratio(&big.baseline, &small.baseline)),
                Some(Target::AtMost(5.0)),
            );
        }
    }
}
