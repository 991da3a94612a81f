//! Long messages of the other end's that were taken and are arriving: their pieces, until a receiver has the whole or
//! nobody wants it.

use crate::frame::{Frame, Malformed};
use crate::progress::{Parker, lock};
use std::collections::hash_map::{Entry, OccupiedEntry};
use std::collections::{HashMap, TryReserveError};
use std::sync::{Arc, Mutex};

/// What is said of a piece that nobody has asked for.
const UNKNOWN: Malformed = Malformed::Unknown("a piece");

/// All of them, by the names of their offers.
#[derive(Default)]
pub struct Assemblies(Mutex<HashMap<u32, Assembly>>);

/// What has become of an offer that was taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Assembled {
    /// It is arriving.
    NotYet,
    /// It has arrived.
    Whole(Vec<u8>),
    /// It never will: the link broke, or its sender has given up. The sender knows.
    Never,
}

/// Nothing more of one arrives.
pub struct Ended {
    /// Who waits for that.
    pub parker: Option<Arc<Parker>>,
    /// What is to be said to its sender, in this order.
    pub answers: [Option<Frame>; 2],
}

/// One of them.
struct Assembly {
    /// None while a piece is written to it.
    buffer: Option<Vec<u8>>,
    size: usize,
    done: bool,
    parker: Option<Arc<Parker>>,
    /// Nobody wants it any more: what to say to its sender when it has arrived.
    rejection: Option<Frame>,
    /// Its sender has given up, and knows. Kept until somebody takes it or nobody will: then its sender is not told
    /// once more.
    is_withdrawn: bool,
}

impl Assemblies {
    /// One more, of `size` bytes, unless it is there. Returns whether it is new.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn begin(&self, token: u32, size: usize) -> Result<bool, TryReserveError> {
        if self.has(token) {
            return Ok(false);
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(size)?;
        let (done, parker, rejection, is_withdrawn) = (false, None, None, false);
        let buffer = Some(buffer);
        let assembly = Assembly { buffer, size, done, parker, rejection, is_withdrawn };
        lock(&self.0).insert(token, assembly);
        Ok(true)
    }

    /// Whether it was taken, and nobody has what arrived.
    pub fn has(&self, token: u32) -> bool {
        lock(&self.0).contains_key(&token)
    }

    /// What its next piece, of `length` bytes, is written behind.
    ///
    /// # Errors
    /// If there is none to be written. What has arrived stays as it is.
    pub fn buffer(&self, token: u32, length: usize) -> Result<Vec<u8>, Malformed> {
        let mut assemblies = lock(&self.0);
        let Assembly { buffer, size, .. } = assemblies.get_mut(&token).ok_or(UNKNOWN)?;
        let fits = |buffer: &mut Vec<u8>| length > 0 && buffer.len() + length <= *size;
        buffer.take_if(fits).ok_or(UNKNOWN)
    }

    /// One more piece is written. Returns what is to be done if that was the last.
    ///
    /// # Errors
    /// If it is not there.
    pub fn piece(&self, token: u32, buffer: Vec<u8>) -> Result<Option<Ended>, Malformed> {
        let mut assemblies = lock(&self.0);
        let Entry::Occupied(mut entry) = assemblies.entry(token) else { return Err(UNKNOWN) };
        let assembly = entry.get_mut();
        assembly.done = buffer.len() == assembly.size;
        assembly.buffer = Some(buffer);
        if !assembly.done {
            return Ok(None);
        }
        let (parker, rejection) = ended(entry);
        Ok(Some(Ended { parker, answers: [Some(Frame::Done { token }), rejection] }))
    }

    /// Its sender has given up.
    ///
    /// # Errors
    /// If nothing more of it was to arrive.
    pub fn withdrawn(&self, token: u32) -> Result<Ended, Malformed> {
        let mut assemblies = lock(&self.0);
        match assemblies.entry(token) {
            Entry::Occupied(mut entry) if entry.get().is_coming() => {
                let assembly = entry.get_mut();
                (assembly.is_withdrawn, assembly.buffer) = (true, None);
                let (parker, rejection) = ended(entry);
                Ok(Ended { parker, answers: [rejection.and_then(given_back), None] })
            }
            _ => Err(Malformed::Unknown("a taken offer")),
        }
    }

    /// Nobody wants an offer any more, whether it was taken or not. Returns what is to be said now: nothing as long as
    /// more of it is to arrive, since its sender does not stop before.
    pub fn reject(&self, token: u32, rejection: Frame) -> Option<Frame> {
        let mut assemblies = lock(&self.0);
        if let Some(assembly) = assemblies.get_mut(&token).filter(|assembly| assembly.is_coming()) {
            assembly.rejection = Some(rejection);
            return None;
        }
        let taken = assemblies.remove(&token);
        drop(assemblies);
        if taken.is_some_and(|assembly| assembly.is_withdrawn) {
            given_back(rejection)
        } else {
            Some(rejection)
        }
    }

    /// Has `parker` woken when nothing more of it is to arrive.
    pub fn enlist(&self, token: u32, parker: &Arc<Parker>) {
        if let Some(assembly) = lock(&self.0).get_mut(&token) {
            assembly.parker = Some(parker.clone());
        }
    }

    /// What has become of one. It is taken out unless it is arriving, which it is no longer if the link `is_over`.
    pub fn take(&self, token: u32, is_over: bool) -> Assembled {
        let mut assemblies = lock(&self.0);
        let Some(assembly) = assemblies.get(&token) else { return Assembled::Never };
        if assembly.is_coming() && !is_over {
            return Assembled::NotYet;
        }
        let assembly = assemblies.remove(&token).filter(|assembly| assembly.done);
        assembly.and_then(|assembly| assembly.buffer).map_or(Assembled::Never, Assembled::Whole)
    }

    /// Nothing arrives any more: whose threads are to be woken.
    pub fn waiting(&self) -> Vec<Arc<Parker>> {
        lock(&self.0).values_mut().filter_map(|assembly| assembly.parker.take()).collect()
    }
}

impl Assembly {
    /// Whether more of it is to arrive.
    fn is_coming(&self) -> bool {
        !self.done && !self.is_withdrawn
    }
}

/// Nothing more of it arrives: who waits for that, and what was to be said then. It is kept if somebody may want it.
fn ended(mut entry: OccupiedEntry<'_, u32, Assembly>) -> (Option<Arc<Parker>>, Option<Frame>) {
    let assembly = entry.get_mut();
    let (parker, rejection) = (assembly.parker.take(), assembly.rejection);
    if rejection.is_some() {
        entry.remove();
    }
    (parker, rejection)
}

/// What is said instead of `rejection` to a sender that has given up: that it has back what its offer was charged.
fn given_back(rejection: Frame) -> Option<Frame> {
    let Frame::Rejected { to, bytes, .. } = rejection else { return None };
    Some(Frame::Credit { place: to, bytes: bytes.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end that sends more than it has offered has its link ended, and takes nothing from what had arrived whole: its
    /// sender was told that it has.
    #[test]
    fn a_piece_too_many_takes_nothing_away() {
        let all = Assemblies::default();
        assert_eq!(all.begin(1, 3), Ok(true));
        assert_eq!(all.begin(1, 3), Ok(false));
        assert_eq!((all.buffer(1, 0), all.buffer(1, 4)), (Err(UNKNOWN), Err(UNKNOWN)));
        let mut buffer = all.buffer(1, 3).unwrap();
        assert_eq!(all.buffer(1, 3), Err(UNKNOWN), "one is being written");
        buffer.extend_from_slice(&[7; 3]);
        let ended = all.piece(1, buffer).unwrap().map(|ended| ended.answers);
        assert_eq!(ended, Some([Some(Frame::Done { token: 1 }), None]));
        assert_eq!(all.buffer(1, 1), Err(UNKNOWN));
        assert_eq!(all.take(1, true), Assembled::Whole(vec![7; 3]));
        assert_eq!(all.take(1, false), Assembled::Never);
    }
}
