//! How long the calendar takes to find, admit and add, from 1,000 to 1,000,000 live reservations,
//! and how much memory.
//!
//! The baseline is the usual slot table: a sorted list, scanned from its start; what it answers is
//! compared. All loads are timed in turns, so that each finds caches that others have used. A look
//! at the clock is part of each sample.

mod baseline;
mod load;
mod reserve;
mod search;

use crate::figures::Figures;
use crate::quick;
use anyhow::Result;
use keeptime::machine::Machine;
use load::Load;
use reserve::{Adding, Together};
use search::Case;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

const LIVE: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Above this, rounds are shorter: the tail is asked about at 100,000.
const WHOLE_ROUNDS_UP_TO: usize = 100_000;

/// Everything that was measured.
#[derive(Serialize)]
struct Raw {
    machine: Machine,
    searches: Vec<search::Raw>,
    adding: Vec<Adding>,
    together: Together,
}

/// Times everything in turns and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let (rounds, questions) = if quick() { (2, 200) } else { (50, 1_000) };
    let sizes = if quick() { &LIVE[..2] } else { &LIVE[..] };
    let live =
        *sizes.iter().min_by_key(|live| live.abs_diff(WHOLE_ROUNDS_UP_TO)).unwrap_or(&LIVE[0]);
    let machine = Machine::here();
    let mut figures = Figures::new("calendar");
    // First, while the process has not freed anything that would be used again.
    let mut together = Together::new(live as u64)?;
    reserve::memory_of_a_table(live, &mut figures)?;
    let mut searches = Vec::new();
    for load in Load::ALL {
        for live in sizes {
            for changing in [false, true] {
                searches.push(Case::new(load, *live, changing)?);
            }
        }
    }
    let mut adding = sizes.iter().map(|live| Adding::new(*live)).collect::<Result<Vec<_>>>()?;
    for _ in 0..rounds {
        for case in &mut searches {
            case.round(if case.live() > WHOLE_ROUNDS_UP_TO { questions / 10 } else { questions })?;
        }
        for case in &mut adding {
            case.round(questions)?;
        }
        together.round(questions / 10)?;
    }
    searches.iter().for_each(|case| case.figures(&mut figures));
    search::growth(&searches, &mut figures);
    adding.iter().for_each(|case| case.figures(&mut figures));
    together.figures(&mut figures);
    let searches = searches.iter().map(Case::raw).collect();
    figures.finish(out, &Raw { machine, searches, adding, together })
}

/// Microseconds.
fn timed(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e6
}
