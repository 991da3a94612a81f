//! Many resources together: whether and when eight nodes can be had, what is free everywhere, and
//! the memory that it takes.

use super::baseline::{SortedList, earliest_fit};
use super::load::CAPACITY;
use super::memory::grown_by;
use super::timed;
use crate::figures::{Figures, Target, quantile};
use crate::plan::Random;
use anyhow::{Result, ensure};
use keeptime_calendar::table::Slot;
use keeptime_calendar::{Calendar, Demand, ReservationId, ResourceId, Span, When};
use keeptime_model::units::{Nanos, WallTime};
use serde::Serialize;
use std::hint::black_box;

const NODES: u64 = 1_024;
/// What the memory is told for.
const MANY_NODES: u64 = 10_000;
/// CPU, both directions of the link, what is read from and written to the disk.
const TABLES_OF_A_NODE: u64 = 5;
const NODES_OF_A_RESERVATION: usize = 8;
const DEMANDS: u64 = TABLES_OF_A_NODE * NODES_OF_A_RESERVATION as u64;
/// Within this, 100,000 reservations take three eighths of 1,024 nodes.
const HORIZON: u64 = 130_000 * SECOND;
const LONGEST: u64 = 1_000 * SECOND;
const SECOND: u64 = 1_000_000_000;
/// Questions are put to the baseline one of so many.
const BASELINE_EVERY: usize = 100;

/// Reservations of eight nodes each, on a cluster.
#[derive(Serialize)]
pub struct Many {
    #[serde(skip)]
    cluster: Cluster,
    #[serde(skip)]
    lists: Vec<SortedList>,
    live: u64,
    /// Microseconds.
    fits: Vec<f64>,
    baseline_fits: Vec<f64>,
    /// From the first instant asked about to the start that was found.
    waits_seconds: Vec<f64>,
    placements: Vec<f64>,
    reserved_per_second: Vec<f64>,
    admitted: usize,
    requests: usize,
}

struct Cluster {
    calendar: Calendar,
    nodes: u64,
    random: Random,
    next: u64,
}

impl Many {
    /// A cluster with `live` reservations.
    pub fn new(live: u64) -> Self {
        let cluster = Cluster::new(NODES, live);
        let mut slots = vec![Vec::new(); (NODES * TABLES_OF_A_NODE) as usize];
        for (_, held) in cluster.calendar.reservations() {
            for Demand { resource, amount } in held.demands.iter() {
                slots[resource.0 as usize].push(Slot { span: held.span, amount: *amount });
            }
        }
        let lists = slots.iter().map(|slots| SortedList::new(slots)).collect();
        let (fits, baseline_fits, waits_seconds) = Default::default();
        let (placements, reserved_per_second, admitted, requests) = Default::default();
        Self {
            cluster,
            lists,
            live,
            fits,
            baseline_fits,
            waits_seconds,
            placements,
            reserved_per_second,
            admitted,
            requests,
        }
    }

    /// Puts so many questions and as many requests, which are released again.
    pub fn round(&mut self, questions: usize) -> Result<()> {
        for number in 0..questions {
            self.ask(number % BASELINE_EVERY == 0)?;
        }
        self.look_everywhere();
        self.reserve(questions)
    }

    /// Searches, rates and what a placement asks.
    pub fn figures(&self, figures: &mut Figures) {
        let Self { live, fits, baseline_fits, .. } = self;
        let name = format!("fit of {DEMANDS} demands, {live} on {NODES} nodes");
        for (q, target) in [(0.5, None), (0.99, Some(Target::AtMost(5_000.0)))] {
            let baseline = Some(quantile(baseline_fits, q));
            let name = format!("{name}, p{}", q * 100.0);
            let figure = figures.value(name, "us", quantile(fits, q), fits, baseline, target);
            figure.against(SortedList::NAME);
        }
        figures.median(
            "  the start that was found, from now",
            "s",
            &self.waits_seconds,
            None,
            None,
        );
        let name = format!("least free of all {} tables", NODES * TABLES_OF_A_NODE);
        figures.median(name, "us", &self.placements, None, None);
        let share = 100 * self.admitted / self.requests.max(1);
        let name = format!("reserve {DEMANDS} demands ({share} % fit)");
        figures.median(name, "1/s", &self.reserved_per_second, None, None);
    }

    fn ask(&mut self, baseline_too: bool) -> Result<()> {
        // Twice as much of everything as what is there takes.
        let (span, mut demands) = self.cluster.request();
        demands.iter_mut().for_each(|demand| demand.amount *= 2);
        let duration = Nanos::new(1 + self.cluster.random.below(LONGEST));
        let when = When::after(span.from(), duration);
        let mut found = Ok(None);
        let calendar = &self.cluster.calendar;
        self.fits.push(timed(|| found = black_box(calendar.earliest_fit(when, &demands))));
        let start = found?.map(WallTime::unix_nanos);
        self.waits_seconds.extend(start.map(|at| (at - span.from().unix_nanos()) as f64 / 1e9));
        if baseline_too {
            let of = |demand: &Demand| (&self.lists[demand.resource.0 as usize], demand.amount);
            let asked: Vec<_> = demands.iter().map(of).collect();
            let mut expected = None;
            let time = timed(|| expected = black_box(earliest_fit(&asked, when, CAPACITY)));
            self.baseline_fits.push(time);
            ensure!(start == expected, "{start:?}, not {expected:?}");
        }
        Ok(())
    }

    /// What is free of everything over some span, as a placement asks.
    fn look_everywhere(&mut self) {
        let (span, _) = self.cluster.request();
        let calendar = &self.cluster.calendar;
        self.placements.push(timed(|| {
            for id in (0..(NODES * TABLES_OF_A_NODE) as u32).map(ResourceId) {
                black_box(calendar.table(id).map(|table| table.least_free(span)));
            }
        }));
    }

    fn reserve(&mut self, requests: usize) -> Result<()> {
        let cluster = &mut self.cluster;
        let requested: Vec<_> = (0..requests).map(|_| cluster.request()).collect();
        let first = cluster.next;
        let time = timed(|| {
            for (span, demands) in &requested {
                cluster.reserve(*span, demands);
            }
        });
        self.reserved_per_second.push(requests as f64 / time * 1e6);
        self.requests += requests;
        self.admitted += (cluster.next - first) as usize;
        for id in first..cluster.next {
            cluster.calendar.release(ReservationId(id))?;
        }
        cluster.next = first;
        Ok(())
    }
}

impl Cluster {
    fn new(nodes: u64, live: u64) -> Self {
        let mut calendar = Calendar::new();
        for _ in 0..nodes * TABLES_OF_A_NODE {
            calendar.add_resource(CAPACITY);
        }
        let mut cluster = Self { calendar, nodes, random: Random(live), next: 0 };
        while cluster.next < live {
            let (span, demands) = cluster.request();
            cluster.reserve(span, &demands);
        }
        cluster
    }

    fn reserve(&mut self, span: Span, demands: &[Demand]) {
        let id = ReservationId(self.next);
        self.next += u64::from(self.calendar.reserve(id, span, demands).is_ok());
    }

    /// Up to a quarter of everything on eight nodes anywhere, for up to 17 minutes.
    fn request(&mut self) -> (Span, Vec<Demand>) {
        let random = &mut self.random;
        let from = WallTime::from_unix_nanos(random.below(HORIZON));
        let span = Span::lasting(from, Nanos::new(1 + random.below(LONGEST)));
        let mut nodes = Vec::with_capacity(NODES_OF_A_RESERVATION);
        while nodes.len() < NODES_OF_A_RESERVATION {
            let node = random.below(self.nodes);
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        let tables =
            nodes.iter().flat_map(|n| (0..TABLES_OF_A_NODE).map(move |i| n * TABLES_OF_A_NODE + i));
        let amount = |random: &mut Random| 1 + random.below(CAPACITY / 4);
        let demand = |table| Demand::new(ResourceId(table as u32), amount(random));
        (span, tables.map(demand).collect())
    }
}

/// The memory of `live` reservations of eight nodes in a calendar of 10,000.
pub fn memory(live: u64, figures: &mut Figures) -> Result<()> {
    let (cluster, bytes) = grown_by(|| Ok(Cluster::new(MANY_NODES, live)))?;
    black_box(cluster.next);
    let name = format!("memory, {live} of {DEMANDS} demands on {MANY_NODES} nodes");
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    figures.value(name, "MiB", mebibytes, &[mebibytes], None, Some(Target::AtMost(1024.0)));
    let each = bytes as f64 / live as f64;
    figures.value("memory for each of them", "B", each, &[each], None, None);
    Ok(())
}
