//! A cell of each of many regions, read at once: as long as for one, however many do not answer.

use super::error::RegionError;
use super::layout::CELL;
use super::packet::Question;
use super::read::{Reader, Reading, Way};
use crate::progress::after;
use keeptime_locks::lock;
use std::time::{Duration, Instant};

/// What a look at one region finds.
type Found = Result<([u8; CELL], Reading), RegionError>;

/// Reads record `record` of every region, each of which has cells. All are asked before any answer is waited for,
/// once, and none after `time`: what is lost on the way counts as silence, which [`Reader::read`] would have
/// asked for again. Returns what was found in the order of `readers`.
pub fn look(readers: &[&Reader], record: u32, time: Duration) -> Vec<Found> {
    let until = after(time);
    let begun: Vec<_> = readers.iter().map(|reader| reader.begin(record)).collect();
    let each = readers.iter().zip(begun);
    each.map(|(reader, begun)| match begun? {
        Begun::Found(data, reading) => Ok((data, reading)),
        Begun::Asked(question) => reader.end(&question, until),
    })
    .collect()
}

enum Begun {
    /// It is in memory.
    Found([u8; CELL], Reading),
    /// The answer is on its way.
    Asked(Question),
}

impl Reader {
    fn begin(&self, record: u32) -> Result<Begun, RegionError> {
        let bytes = self.layout().bytes();
        if bytes as usize != CELL {
            return Err(RegionError::Length { given: CELL, bytes });
        }
        let first = self.first_slot(record)?;
        match &self.way {
            Way::Memory { .. } => {
                let mut data = [0; CELL];
                let seen = self.attempt(record, first, &mut data, &mut None)?;
                let (seen, by) = seen.ok_or(RegionError::Unfinished { record })?;
                Ok(Begun::Found(data, Reading::of(seen, by)))
            }
            Way::Network(asker) => {
                let asked = lock(asker).say(record);
                asked.map(Begun::Asked).map_err(|why| self.failed(why, record))
            }
        }
    }

    fn end(&self, question: &Question, until: Instant) -> Found {
        let record = question.record;
        let Way::Network(asker) = &self.way else { return Err(RegionError::Gone(self.id())) };
        let mut data = [0; CELL];
        let heard = lock(asker).hear(question, &mut data, until);
        let heard = heard.map_err(|why| self.failed(why, record))?;
        let (seen, by) = heard.ok_or(RegionError::Unfinished { record })?;
        Ok((data, Reading::of(seen, by)))
    }
}
