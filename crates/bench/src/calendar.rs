//! How long the calendar takes to find, admit and add, from 1,000 to 1,000,000 live reservations,
//! and how much memory.
//!
//! The baseline is the usual slot table: a sorted list, scanned from its start; what it answers is
//! compared. All loads are timed in turns, so that each finds caches that others have used. A look
//! at the clock is part of each sample.

mod adding;
mod baseline;
mod load;
mod many;
mod memory;
mod search;

use crate::figures::Figures;
use crate::quick;
use adding::Adding;
use anyhow::Result;
use keeptime::machine::Machine;
use load::Load;
use many::Many;
use search::{Between, Case};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

const LIVE: [usize; 3] = [1_000, 100_000, 1_000_000];
/// The one that most targets are about. Above it, rounds are shorter.
const ASKED: usize = 100_000;

/// Where there are many changes for each question.
const CHANGES: usize = 16;

/// Everything that was measured.
#[derive(Serialize)]
struct Raw {
    machine: Machine,
    searches: Vec<search::Raw>,
    adding: Vec<Adding>,
    many: Many,
}

/// Times everything in turns and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let (rounds, questions) = if quick() { (2, 200) } else { (50, 1_000) };
    let (sizes, asked) = if quick() { (&LIVE[..1], LIVE[0]) } else { (&LIVE[..], ASKED) };
    let machine = Machine::here();
    let mut figures = Figures::new("calendar");
    // First, while the process has not freed anything that would be used again.
    adding::memory(asked, &mut figures)?;
    many::memory(asked as u64, &mut figures)?;
    let mut searches = Vec::new();
    for load in Load::ALL {
        for live in sizes {
            searches.push(Case::new(load, *live, Between::Changes(1))?);
        }
        for live in sizes.iter().filter(|live| **live <= ASKED) {
            searches.push(Case::new(load, *live, Between::Changes(CHANGES))?);
        }
    }
    for live in sizes.iter().filter(|live| **live <= ASKED) {
        searches.push(Case::new(Load::Random, *live, Between::Others)?);
    }
    let mut adding = sizes.iter().map(|live| Adding::new(*live)).collect::<Result<Vec<_>>>()?;
    let mut many = Many::new(asked as u64);
    for _ in 0..rounds {
        for case in &mut searches {
            case.round(case.questions(questions))?;
        }
        for case in &mut adding {
            case.round(questions)?;
        }
        many.round(questions / 5)?;
    }
    searches.iter().for_each(|case| case.figures(&mut figures));
    search::growth(&searches, &mut figures);
    adding.iter().for_each(|case| case.figures(&mut figures));
    many.figures(&mut figures);
    let searches = searches.iter().map(Case::raw).collect();
    figures.finish(out, &Raw { machine, searches, adding, many })
}

/// Microseconds.
fn timed(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e6
}
