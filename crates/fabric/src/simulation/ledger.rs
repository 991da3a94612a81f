//! What must hold of every message, whatever fails (pure): it is taken once, whole, by whom it is for and in its
//! order, or its sender is told, once.

use crate::frame::Reason;
use crate::id::{ContextId, ResourceId};
use crate::inbox::Undelivered;
use std::collections::BTreeMap;
use std::fmt;

/// Every so many bytes of a message say which they are: none can stand for others.
const BLOCK: usize = 4096;

/// How a sender hears that a message did not get to its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// By what its call returns.
    ByCall,
    /// It has given up itself.
    GivenUp,
    /// By a notice.
    ByNotice(Reason),
}

/// Why nobody may have taken a message that had arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// Its receiver's context is no more.
    Ended,
    /// Its receiver is no more, which its sender is told by this link of that context, as long as that holds.
    Closed {
        /// Whose link.
        context: ContextId,
        /// Its number there.
        link: u32,
    },
}

/// All messages, by their numbers, which are their tags.
#[derive(Debug, Default)]
pub struct Ledger {
    letters: Vec<Letter>,
    /// The greatest number that was taken, by sender and receiver.
    last: BTreeMap<(ResourceId, ResourceId), u64>,
}

/// What became of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub letters: usize,
    /// Those that were taken.
    pub taken: usize,
    /// Those of which the sender's call said that they were not sent.
    pub by_call: usize,
    /// Those whose senders have given up.
    pub given_up: usize,
    /// Those whose receivers were gone.
    pub gone: usize,
    /// Those that were longer than receivers accept.
    pub too_long: usize,
    /// Those of which it was not known any more whether they had arrived.
    pub unconfirmed: usize,
}

/// A message.
#[derive(Debug)]
struct Letter {
    number: u64,
    from: ResourceId,
    to: ResourceId,
    length: usize,
    told: Option<Told>,
    is_taken: bool,
    unread: Option<Unread>,
    /// Its sender is there, to be told.
    is_owed: bool,
}

/// What a message says.
pub fn content(number: u64, length: usize) -> Vec<u8> {
    let mut data = vec![number as u8; length];
    for (at, block) in data.chunks_mut(BLOCK).enumerate() {
        let stamp = (((at as u64) << 32) | number).to_le_bytes();
        let count = block.len().min(stamp.len());
        block[..count].copy_from_slice(&stamp[..count]);
    }
    data
}

impl Told {
    /// Whether it may have arrived all the same.
    fn is_open(self) -> bool {
        self == Self::ByNotice(Reason::Unconfirmed)
    }
}

impl Ledger {
    /// One more message. Returns its number: those of one sender are sent in the order of theirs.
    pub fn post(&mut self, from: ResourceId, to: ResourceId, length: usize) -> u64 {
        let number = self.letters.len() as u64;
        self.letters.push(Letter {
            number,
            from,
            to,
            length,
            told: None,
            is_taken: false,
            unread: None,
            is_owed: true,
        });
        number
    }

    /// Its sender is told.
    ///
    /// # Errors
    /// If it was told before, or if that is not so.
    pub fn told(&mut self, number: u64, told: Told) -> Result<(), String> {
        let letter = self.letter(number)?;
        if let Some(before) = letter.told {
            return Err(format!("{letter} was told twice: {before:?}, {told:?}"));
        }
        if letter.is_taken && !told.is_open() {
            return Err(format!("{letter} was taken, and told as lost: {told:?}"));
        }
        letter.told = Some(told);
        Ok(())
    }

    /// `by` is given a notice.
    ///
    /// # Errors
    /// As above, or if the notice is not for it, or names another receiver.
    pub fn noticed(&mut self, by: ResourceId, notice: &Undelivered) -> Result<(), String> {
        let letter = self.letter(notice.tag.0)?;
        if (letter.from, letter.to) != (by, notice.to) {
            return Err(format!("{letter} was told to {by} as one to {}", notice.to));
        }
        self.told(notice.tag.0, Told::ByNotice(notice.reason))
    }

    /// `by` takes it, as a message `from` somebody that says `data`.
    ///
    /// # Errors
    /// If it should not.
    pub fn taken(
        &mut self,
        number: u64,
        by: ResourceId,
        from: ResourceId,
        data: &[u8],
    ) -> Result<(), String> {
        let last = self.last.get(&(from, by)).copied();
        let letter = self.letter(number)?;
        if letter.to != by {
            return Err(format!("{letter} was given to {by}"));
        }
        if letter.from != from {
            return Err(format!("{letter} came as one from {from}"));
        }
        if data != content(number, letter.length) {
            return Err(format!("{letter} came as other {} bytes", data.len()));
        }
        if letter.is_taken {
            return Err(format!("{letter} was taken twice"));
        }
        if letter.told.is_some_and(|told| !told.is_open()) {
            return Err(format!("{letter} was taken, and told as lost: {:?}", letter.told));
        }
        // Whatever its sender was told: it is not to come late.
        if let Some(last) = last.filter(|last| *last > number) {
            return Err(format!("{letter} was overtaken by message {last}"));
        }
        letter.is_taken = true;
        self.last.insert((from, by), number);
        Ok(())
    }

    /// It had arrived, and is no more.
    ///
    /// # Errors
    /// If there is no such message.
    pub fn unread(&mut self, number: u64, how: Unread) -> Result<(), String> {
        self.letter(number)?.unread = Some(how);
        Ok(())
    }

    /// Those whose senders these are need not be told any more.
    pub fn gone(&mut self, is_gone: impl Fn(ResourceId) -> bool) {
        let letters = self.letters.iter_mut().filter(|letter| is_gone(letter.from));
        letters.for_each(|letter| letter.is_owed = false);
    }

    /// What does not hold yet of a message whose sender is there: it is to be told of what was not taken. `is_there` says
    /// whether a link of a context holds.
    pub fn open(&self, is_there: impl Fn(ContextId, u32) -> bool) -> Option<String> {
        let has_reason = |letter: &Letter| match letter.unread {
            None => false,
            Some(Unread::Ended) => true,
            Some(Unread::Closed { context, link }) => !is_there(context, link),
        };
        let mut owed = self.letters.iter().filter(|letter| letter.is_owed && letter.told.is_none());
        let open = owed.find(|letter| !letter.is_taken && !has_reason(letter))?;
        Some(format!("{open} was neither taken nor told: {:?}", open.unread))
    }

    /// A message that was not taken, of those from `first` on.
    pub fn missing(&self, first: usize) -> Option<String> {
        let missing = self.letters[first..].iter().find(|letter| !letter.is_taken)?;
        Some(format!("{missing} was not taken without any trouble: {:?}", missing.told))
    }

    /// What became of how many.
    pub fn counts(&self) -> Counts {
        let told =
            |what: Told| self.letters.iter().filter(|letter| letter.told == Some(what)).count();
        Counts {
            letters: self.letters.len(),
            taken: self.letters.iter().filter(|letter| letter.is_taken).count(),
            by_call: told(Told::ByCall),
            given_up: told(Told::GivenUp),
            gone: told(Told::ByNotice(Reason::Gone)),
            too_long: told(Told::ByNotice(Reason::TooLong)),
            unconfirmed: told(Told::ByNotice(Reason::Unconfirmed)),
        }
    }

    fn letter(&mut self, number: u64) -> Result<&mut Letter, String> {
        let found = self.letters.get_mut(number as usize);
        found.ok_or_else(|| format!("message {number} was never sent"))
    }
}

impl Counts {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            letters: self.letters + other.letters,
            taken: self.taken + other.taken,
            by_call: self.by_call + other.by_call,
            given_up: self.given_up + other.given_up,
            gone: self.gone + other.gone,
            too_long: self.too_long + other.too_long,
            unconfirmed: self.unconfirmed + other.unconfirmed,
        }
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, from, to, length, .. } = self;
        write!(f, "message {number} of {length} bytes from {from} to {to}")
    }
}

/// Goal: what `Unconfirmed` promises is looked at. Method: three messages of one sender, of all of which it is told so:
/// the second may come or not, but not after the third, and none twice.
#[test]
fn what_was_told_may_come_and_not_late() {
    let id = |number| ResourceId {
        context: ContextId::new(number),
        place: crate::id::Place { slot: 0, generation: 0 },
    };
    let (from, to) = (id(1), id(2));
    let mut ledger = Ledger::default();
    let numbers = [(); 3].map(|()| ledger.post(from, to, 8));
    for number in numbers {
        ledger.told(number, Told::ByNotice(Reason::Unconfirmed)).unwrap();
    }
    let mut take = |number| ledger.taken(number, to, from, &content(number, 8));
    assert_eq!((take(0), take(2)), (Ok(()), Ok(())));
    assert!(take(1).unwrap_err().contains("was overtaken by message 2"));
    assert!(take(2).unwrap_err().contains("was taken twice"));
}
