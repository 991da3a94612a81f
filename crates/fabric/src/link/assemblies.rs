//! Long messages of the other end's that were taken and are arriving: their pieces, until a receiver has the whole or
//! nobody wants it.

use crate::frame::{Frame, Malformed};
use crate::id::Place;
use keeptime_locks::lock;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, OccupiedEntry};
use std::sync::Mutex;

/// What is said of a piece that nobody has asked for.
const UNKNOWN: Malformed = Malformed::Unknown("a piece");

/// All of them.
#[derive(Default)]
pub struct Assemblies(Mutex<State>);

#[derive(Default)]
struct State {
    /// By the names of their offers.
    all: HashMap<u32, Assembly>,
    /// Nothing arrives any more.
    is_over: bool,
}

/// There is no memory for it; or another of its name is there, of which a receiver may have nothing yet: their pieces
/// could not be told apart.
#[derive(Debug, PartialEq, Eq)]
pub struct NotTaken;

/// Nothing more of one arrives.
pub struct Ended {
    /// Whom it is for.
    pub to: Place,
    /// What is to be said to its sender, in this order.
    pub answers: [Option<Frame>; 2],
}

/// One of them.
struct Assembly {
    /// None while a piece is written to it.
    buffer: Option<Vec<u8>>,
    to: Place,
    size: usize,
    /// How much has arrived, or is being written.
    arrived: usize,
    done: bool,
    /// Nobody wants it any more: what to say to its sender when it has arrived. Nothing of it is kept.
    rejection: Option<Frame>,
    /// Its sender has given up, and knows. Kept until somebody takes it or nobody will: then its sender is not told
    /// once more.
    is_withdrawn: bool,
}

impl Assemblies {
    /// One more, of `size` bytes for `to`, unless nothing arrives any more. Returns whether it was begun.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn begin(&self, token: u32, to: Place, size: usize) -> Result<bool, NotTaken> {
        let mut state = lock(&self.0);
        if state.is_over {
            return Ok(false);
        }
        if state.all.contains_key(&token) {
            return Err(NotTaken);
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(size).map_err(|_| NotTaken)?;
        let (buffer, rejection) = (Some(buffer), None);
        let (arrived, done, is_withdrawn) = (0, false, false);
        let assembly = Assembly { buffer, to, size, arrived, done, rejection, is_withdrawn };
        state.all.insert(token, assembly);
        Ok(true)
    }

    /// Whether it was taken, and nobody has what arrived.
    #[cfg(test)]
    pub fn has(&self, token: u32) -> bool {
        lock(&self.0).all.contains_key(&token)
    }

    /// Bytes that are kept, or will be.
    #[cfg(test)]
    pub fn held(&self) -> u64 {
        let capacity = |assembly: &Assembly| assembly.buffer.as_ref().map_or(0, Vec::capacity);
        lock(&self.0).all.values().map(|assembly| capacity(assembly) as u64).sum()
    }

    /// What its next piece, of `length` bytes, is written behind.
    ///
    /// # Errors
    /// If there is none to be written. What has arrived stays as it is.
    pub fn buffer(&self, token: u32, length: usize) -> Result<Vec<u8>, Malformed> {
        let mut state = lock(&self.0);
        let Assembly { buffer, size, arrived, .. } = state.all.get_mut(&token).ok_or(UNKNOWN)?;
        let fits = length > 0 && *arrived + length <= *size;
        let buffer = buffer.take_if(|_| fits).ok_or(UNKNOWN)?;
        *arrived += length;
        Ok(buffer)
    }

    /// One more piece is written. Returns what is to be done if that was the last.
    ///
    /// # Errors
    /// If it is not there.
    pub fn piece(&self, token: u32, buffer: Vec<u8>) -> Result<Option<Ended>, Malformed> {
        let mut state = lock(&self.0);
        let Entry::Occupied(mut entry) = state.all.entry(token) else { return Err(UNKNOWN) };
        let assembly = entry.get_mut();
        assembly.done = assembly.arrived == assembly.size;
        assembly.buffer = Some(if assembly.rejection.is_none() { buffer } else { Vec::new() });
        if !assembly.done {
            return Ok(None);
        }
        let (to, rejection) = ended(entry);
        Ok(Some(Ended { to, answers: [Some(Frame::Done { token }), rejection] }))
    }

    /// Its sender has given up.
    ///
    /// # Errors
    /// If nothing more of it was to arrive.
    pub fn withdrawn(&self, token: u32) -> Result<Ended, Malformed> {
        let mut state = lock(&self.0);
        match state.all.entry(token) {
            Entry::Occupied(mut entry) if entry.get().is_coming() => {
                let assembly = entry.get_mut();
                (assembly.is_withdrawn, assembly.buffer) = (true, None);
                let (to, rejection) = ended(entry);
                Ok(Ended { to, answers: [rejection.and_then(given_back), None] })
            }
            _ => Err(Malformed::Unknown("a taken offer")),
        }
    }

    /// Nobody wants an offer any more, whether it was taken or not. Returns what is to be said now: nothing as long as
    /// more of it is to arrive, since its sender does not stop before.
    pub fn reject(&self, token: u32, rejection: Frame) -> Option<Frame> {
        // Its sender was told when it could not be taken.
        if token == 0 {
            return given_back(rejection);
        }
        let mut state = lock(&self.0);
        if let Some(assembly) = state.all.get_mut(&token).filter(|assembly| assembly.is_coming()) {
            assembly.rejection = Some(rejection);
            // A sender that never sends the rest would have it kept as long as the link.
            assembly.buffer.iter_mut().for_each(|buffer| *buffer = Vec::new());
            return None;
        }
        let taken = state.all.remove(&token);
        drop(state);
        if taken.is_some_and(|assembly| assembly.is_withdrawn) {
            given_back(rejection)
        } else {
            Some(rejection)
        }
    }

    /// Whether more of one is to arrive.
    pub fn is_coming(&self, token: u32) -> bool {
        lock(&self.0).all.get(&token).is_some_and(Assembly::is_coming)
    }

    /// Takes one of which no more is to arrive: all of it; or nothing, if the link broke, its sender has given up or
    /// there was no memory for it. The sender knows.
    pub fn take(&self, token: u32) -> Option<Vec<u8>> {
        let assembly = lock(&self.0).all.remove(&token)?;
        debug_assert!(!assembly.is_coming(), "more of it is to arrive");
        assembly.buffer
    }

    /// Nothing arrives any more, and no piece is just written. What has arrived whole stays for who wants it.
    pub fn end(&self) {
        let State { all, is_over } = &mut *lock(&self.0);
        *is_over = true;
        all.retain(|_, assembly| assembly.done);
        all.shrink_to_fit();
    }
}

impl Assembly {
    /// Whether more of it is to arrive.
    fn is_coming(&self) -> bool {
        !self.done && !self.is_withdrawn
    }
}

/// Nothing more of it arrives: whom it is for, and what was to be said then. It is kept if somebody may want it.
fn ended(entry: OccupiedEntry<'_, u32, Assembly>) -> (Place, Option<Frame>) {
    let &Assembly { to, rejection, .. } = entry.get();
    if rejection.is_some() {
        entry.remove();
    }
    (to, rejection)
}

/// What is said instead of `rejection` to a sender that has given up: that it has back what its offer was charged.
fn given_back(rejection: Frame) -> Option<Frame> {
    let Frame::Rejected { to, bytes, .. } = rejection else { return None };
    Some(Frame::Credit { place: to, bytes: bytes.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Refusal;
    use crate::matching::Tag;

    const TO: Place = Place { slot: 7, generation: 0 };

    /// An end that sends more than it has offered has its link ended, and takes nothing from what had arrived whole: its
    /// sender was told that it has.
    #[test]
    fn a_piece_too_many_takes_nothing_away() {
        let all = Assemblies::default();
        assert_eq!(all.begin(1, TO, 3), Ok(true));
        assert_eq!(all.begin(1, TO, 3), Err(NotTaken), "another has its name");
        assert_eq!((all.buffer(1, 0), all.buffer(1, 4)), (Err(UNKNOWN), Err(UNKNOWN)));
        let mut buffer = all.buffer(1, 3).unwrap();
        assert_eq!(all.buffer(1, 3), Err(UNKNOWN), "one is being written");
        buffer.extend_from_slice(&[7; 3]);
        let ended = all.piece(1, buffer).unwrap().map(|ended| ended.answers);
        assert_eq!(ended, Some([Some(Frame::Done { token: 1 }), None]));
        assert_eq!(all.buffer(1, 1), Err(UNKNOWN));
        assert_eq!(all.take(1), Some(vec![7; 3]));
        assert_eq!(all.take(1), None);
    }

    /// Nothing is kept of what nobody wants, whether a piece is just written or not, and its sender is told when it has sent all.
    #[test]
    fn what_nobody_wants_is_not_kept() {
        let all = Assemblies::default();
        let (from, tag, reason) = (TO, Tag(0), Refusal::Gone);
        for (token, is_written) in [(1, true), (2, false)] {
            assert_eq!(all.begin(token, TO, 3), Ok(true));
            let rejection = Frame::Rejected { from, to: TO, tag, token, bytes: 64, reason };
            let mut first = is_written.then(|| all.buffer(token, 2).unwrap());
            assert!(all.reject(token, rejection).is_none());
            let mut buffer = first.take().unwrap_or_else(|| all.buffer(token, 2).unwrap());
            buffer.extend_from_slice(&[7; 2]);
            assert!(all.piece(token, buffer).unwrap().is_none());
            assert_eq!(all.held(), 0);
            assert_eq!(all.buffer(token, 2), Err(UNKNOWN), "it is longer than was offered");
            let ended = all.piece(token, all.buffer(token, 1).unwrap()).unwrap().unwrap();
            assert_eq!(ended.answers, [Some(Frame::Done { token }), Some(rejection)]);
        }
    }

    /// Of what was refused since it could not be taken, its sender gets back what its offer was charged, and no more.
    #[test]
    fn what_has_no_name_any_more_is_not_told_again() {
        let (from, to, tag, reason) = (TO, TO, Tag(0), Refusal::Gone);
        let rejection = Frame::Rejected { from, to, tag, token: 0, bytes: 64, reason };
        let answer = Assemblies::default().reject(0, rejection);
        assert_eq!(answer, Some(Frame::Credit { place: TO, bytes: 64 }));
    }

    /// Threads may keep a link that is over for long: it keeps what somebody may want, and nothing else.
    #[test]
    fn what_is_not_whole_at_the_end_is_nothing() {
        let all = Assemblies::default();
        for token in [1, 2] {
            assert_eq!(all.begin(token, TO, 3), Ok(true));
        }
        let mut buffer = all.buffer(1, 3).unwrap();
        buffer.extend_from_slice(&[7; 3]);
        assert!(all.piece(1, buffer).unwrap().is_some());
        assert_eq!([1, 2].map(|token| all.is_coming(token)), [false, true]);
        all.end();
        assert!(!all.is_coming(2));
        assert_eq!(lock(&all.0).all.len(), 1);
        assert_eq!((all.take(1), all.take(2)), (Some(vec![7; 3]), None));
        assert_eq!(all.begin(3, TO, 3), Ok(false));
    }
}
