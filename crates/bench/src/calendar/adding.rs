//! Admitting and adding at a given start, on one resource, and the memory that it takes.

use super::baseline::SortedList;
use super::load::{CAPACITY, Load, random_slot};
use super::memory::grown_by;
use super::timed;
use crate::figures::{Figures, Target, quantile};
use crate::plan::Random;
use anyhow::Result;
use keeptime_calendar::table::{Slot, SlotTable};
use serde::Serialize;
use std::hint::black_box;

/// The number of live reservations that the target is about.
const ASKED: usize = 100_000;
/// Requests are put to the baseline one of so many.
const BASELINE_EVERY: usize = 100;

/// Adding to a table that holds `live` already, and taking off again.
#[derive(Serialize)]
pub struct Adding {
    live: usize,
    #[serde(skip)]
    table: SlotTable,
    #[serde(skip)]
    list: SortedList,
    #[serde(skip)]
    random: Random,
    requests: usize,
    admitted: usize,
    per_second: Vec<f64>,
    removed_per_second: Vec<f64>,
    baseline_per_second: Vec<f64>,
}

impl Adding {
    /// A table with `live` random reservations.
    pub fn new(live: usize) -> Result<Self> {
        let mut random = Random(live as u64);
        let slots = Load::Random.slots(live, &mut random);
        let (table, list) = (table_of(&slots)?, SortedList::new(&slots));
        let (per_second, removed_per_second, baseline_per_second) = Default::default();
        let (requests, admitted) = (0, 0);
        Ok(Self {
            live,
            table,
            list,
            random,
            requests,
            admitted,
            per_second,
            removed_per_second,
            baseline_per_second,
        })
    }

    /// Puts so many requests, then takes off what was admitted.
    pub fn round(&mut self, requests: usize) -> Result<()> {
        let (live, random) = (self.live, &mut self.random);
        let slots: Vec<_> = (0..requests).map(|_| random_slot(live, random)).collect();
        let mut admitted: Vec<Slot> = Vec::with_capacity(requests);
        let time = timed(|| {
            for slot in &slots {
                if self.table.add(slot.span, slot.amount).is_ok() {
                    admitted.push(*slot);
                }
            }
        });
        self.per_second.push(requests as f64 / time * 1e6);
        let mut all = Ok(());
        let time = timed(|| {
            for slot in &admitted {
                all = all.and(self.table.remove(slot.span, slot.amount));
            }
        });
        all?;
        self.removed_per_second.push(admitted.len() as f64 / time * 1e6);
        // Those stay in the list, so few that it hardly grows.
        let few: Vec<_> = slots.iter().step_by(BASELINE_EVERY).collect();
        let time = timed(|| {
            for slot in &few {
                black_box(self.list.add(slot, CAPACITY));
            }
        });
        self.baseline_per_second.push(few.len() as f64 / time * 1e6);
        self.requests += requests;
        self.admitted += admitted.len();
        Ok(())
    }

    /// Rates, and how many of the requests were admitted.
    pub fn figures(&self, figures: &mut Figures) {
        let baseline = quantile(&self.baseline_per_second, 0.5);
        let target = (self.live == ASKED).then_some(Target::AtLeast(200_000.0));
        let share = 100 * self.admitted / self.requests.max(1);
        let name = format!("admit and add, {} ({share} % fit)", self.live);
        let figure = figures.median(name, "1/s", &self.per_second, Some(baseline), target);
        figure.against(SortedList::NAME);
        let name = format!("remove, {}", self.live);
        figures.median(name, "1/s", &self.removed_per_second, None, None);
    }
}

/// The memory of a table for each of `live` random reservations.
pub fn memory(live: usize, figures: &mut Figures) -> Result<()> {
    let slots = Load::Random.slots(live, &mut Random(1));
    // The first one has what was freed when the load was made.
    let first = table_of(&slots)?;
    let (second, bytes) = grown_by(|| table_of(&slots))?;
    black_box((first, second));
    let each = bytes as f64 / live as f64;
    figures.value(format!("memory for each of {live}, one table"), "B", each, &[each], None, None);
    Ok(())
}

fn table_of(slots: &[Slot]) -> Result<SlotTable> {
    let mut table = SlotTable::new(CAPACITY);
    for slot in slots {
        table.add(slot.span, slot.amount)?;
    }
    Ok(table)
}
