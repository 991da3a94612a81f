//! Admitting and adding, on one resource and on many together, and the memory that it takes.

use super::baseline::SortedList;
use super::load::{CAPACITY, Load, random_slot};
use super::timed;
use crate::figures::{Figures, Target};
use crate::plan::Random;
use anyhow::{Context, Result};
use keeptime_calendar::table::{Slot, SlotTable};
use keeptime_calendar::{Calendar, Demand, ReservationId, ResourceId, Span, When};
use keeptime_model::units::{Nanos, WallTime};
use serde::Serialize;
use std::fs;
use std::hint::black_box;

/// Requests are put to the baseline one of so many.
const BASELINE_EVERY: usize = 100;
const NODES: u64 = 10_000;
/// CPU, disk read, disk write, link up, link down.
const RESOURCES_OF_A_NODE: u64 = 5;
/// A reservation of four nodes: CPU and both directions of the link of each.
const DEMANDS: u64 = 12;

/// Adding at a given start to a table that holds `live` already, and taking off again.
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
        let mut table = SlotTable::new(CAPACITY);
        for slot in &slots {
            table.add(slot.span, slot.amount)?;
        }
        let list = SortedList::new(&slots);
        Ok(Self {
            live,
            table,
            list,
            random,
            requests: 0,
            admitted: 0,
            per_second: vec![],
            removed_per_second: vec![],
            baseline_per_second: vec![],
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
        let baseline = crate::figures::quantile(&self.baseline_per_second, 0.5);
        let target = (self.live == 100_000).then_some(Target::AtLeast(200_000.0));
        let share = 100 * self.admitted / self.requests.max(1);
        let name = format!("admit and add, {} ({share} % fit)", self.live);
        figures.median(name, "1/s", &self.per_second, Some(baseline), target);
        let name = format!("remove, {}", self.live);
        figures.median(name, "1/s", &self.removed_per_second, None, None);
    }
}

/// Reserving on many resources at once, in a calendar of 10,000 nodes.
#[derive(Serialize)]
pub struct Together {
    #[serde(skip)]
    calendar: Calendar,
    #[serde(skip)]
    random: Random,
    #[serde(skip)]
    next: u64,
    live: u64,
    bytes: u64,
    found: Vec<f64>,
    reserved_per_second: Vec<f64>,
}

impl Together {
    /// A calendar with `live` reservations. What memory it takes is what the process grows by: true
    /// only before much else was allocated and freed.
    pub fn new(live: u64) -> Result<Self> {
        let before = resident_bytes()?;
        let mut calendar = Calendar::new();
        for _ in 0..NODES * RESOURCES_OF_A_NODE {
            calendar.add_resource(CAPACITY);
        }
        let random = Random(live);
        let (found, reserved_per_second) = Default::default();
        let mut together =
            Self { calendar, random, next: 0, live, bytes: 0, found, reserved_per_second };
        while together.next < live {
            together.reserve();
        }
        together.bytes = resident_bytes()? - before;
        Ok(together)
    }

    /// Looks for a start for so many reservations, reserves them, and releases them again.
    pub fn round(&mut self, requests: usize) -> Result<()> {
        let first = self.next;
        for _ in 0..requests {
            let (span, demands) = self.request();
            let when = When::after(span.from(), Nanos::new(600_000_000_000));
            let mut start = Ok(None);
            self.found
                .push(timed(|| start = black_box(self.calendar.earliest_fit(when, &demands))));
            start?;
        }
        let requested: Vec<_> = (0..requests).map(|_| self.request()).collect();
        let time = timed(|| {
            for (span, demands) in &requested {
                let id = ReservationId(self.next);
                self.next += u64::from(self.calendar.reserve(id, *span, demands).is_ok());
            }
        });
        self.reserved_per_second.push(requests as f64 / time * 1e6);
        for id in first..self.next {
            self.calendar.release(ReservationId(id))?;
        }
        self.next = first;
        Ok(())
    }

    /// Searches, rates and memory.
    pub fn figures(&self, figures: &mut Figures) {
        let Self { live, .. } = self;
        let name = format!("fit of {DEMANDS} demands, {live} live on {NODES} nodes");
        figures.median(format!("{name}, p50"), "us", &self.found, None, None);
        let p99 = crate::figures::quantile(&self.found, 0.99);
        figures.value(format!("{name}, p99"), "us", p99, &self.found, None, None);
        let name = format!("reserve of {DEMANDS} demands");
        figures.median(name, "1/s", &self.reserved_per_second, None, None);
        let mebibytes = self.bytes as f64 / f64::from(1 << 20);
        let name = format!("memory, {live} live on {NODES} nodes");
        figures.value(name, "MiB", mebibytes, &[mebibytes], None, Some(Target::AtMost(1024.0)));
        let each = self.bytes as f64 / (*live * DEMANDS) as f64;
        figures.value("memory for each demand".to_string(), "B", each, &[each], None, None);
    }

    fn reserve(&mut self) {
        let (span, demands) = self.request();
        self.next +=
            u64::from(self.calendar.reserve(ReservationId(self.next), span, &demands).is_ok());
    }

    /// Four nodes beside each other for up to 17 minutes within 30 days.
    fn request(&mut self) -> (Span, Vec<Demand>) {
        let random = &mut self.random;
        let second = 1_000_000_000;
        let from = WallTime::from_unix_nanos(random.below(30 * 86_400) * second);
        let span = Span::lasting(from, Nanos::new((1 + random.below(1_000)) * second));
        let first = random.below(NODES - DEMANDS / 3 + 1) * RESOURCES_OF_A_NODE;
        let demands = (0..DEMANDS).map(|i| {
            let resource = first + i / 3 * RESOURCES_OF_A_NODE + [0, 3, 4][i as usize % 3];
            Demand::new(ResourceId(resource as u32), 1 + random.below(CAPACITY / 4))
        });
        (span, demands.collect())
    }
}

/// The memory of one table for each of `live` random reservations.
pub fn memory_of_a_table(live: usize, figures: &mut Figures) -> Result<()> {
    let slots = Load::Random.slots(live, &mut Random(1));
    let before = resident_bytes()?;
    let mut table = SlotTable::new(CAPACITY);
    for slot in &slots {
        table.add(slot.span, slot.amount)?;
    }
    let each = (resident_bytes()? - before) as f64 / live as f64;
    black_box(table);
    let name = format!("memory for each reservation, one table, {live}");
    figures.value(name, "B", each, &[each], None, None);
    Ok(())
}

/// What the kernel holds in memory for this process.
fn resident_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').nth(1).context("/proc/self/statm has a second field")?;
    Ok(pages.parse::<u64>()? * 4096)
}
