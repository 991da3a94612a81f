//! Questions about records and their answers, as UDP datagrams (pure). An answer has the length of its
//! question, which leaves room for it: nobody can have more sent to somebody else than he sends.
//!
//! ```text
//!  0       4      5        6    7       8        16    24       28       32       36     40        48
//!  | magic | kind | status | by | slots | number | key | region | record | offset | zero | session | ...
//!  48       56         64
//!  | amount | sequence | slots x 64 bytes |
//! ```
//! All numbers are little-endian. The program in `crates/linux/bpf/regions.bpf.c` reads the same.

use super::layout::SLOT;
use thiserror::Error;

/// Bytes of a question or an answer before its slots.
pub const HEAD: usize = 64;
/// Most slots in one: all of it fits into an Ethernet frame.
pub const SLOTS_MOST: u8 = 20;
/// Bytes of the longest.
pub const LONGEST: usize = HEAD + SLOTS_MOST as usize * SLOT;

const MAGIC: [u8; 4] = *b"ktr\x01";

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Slots of a record.
    Read {
        /// The first, counted from the record's own first.
        offset: u32,
        /// How many.
        slots: u8,
    },
    /// To add to its counter, once, however often the question arrives: the number is one more than
    /// that of the session's last question.
    Add {
        /// Who asks.
        session: u64,
        /// How much.
        amount: u64,
    },
    /// To remember a new session, whose first question is number 1.
    Open {
        /// Its name: 64 random bits.
        session: u64,
    },
}

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Repeated by the answer.
    pub number: u64,
    /// The region's key.
    pub key: u64,
    /// Its place.
    pub region: u32,
    /// Which record.
    pub record: u32,
    /// What about it.
    pub asked: Asked,
}

/// Who has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnsweredBy {
    /// Nobody: the memory is mapped.
    Memory,
    /// The network program (XDP) on the interface where the question arrived.
    NetworkProgram,
    /// The daemon of the region's node.
    Responder,
}

/// What the answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such region any more.
    #[error("the region is gone")]
    Gone,
    /// It has no such record, or the record no such slots.
    #[error("the region has no such record")]
    OutOfRange,
    /// The record is being written.
    #[error("the record is being written")]
    Busy,
    /// The session is not known, or not any more.
    #[error("the session is not known")]
    NoSession,
    /// The region's counters are its publisher's own.
    #[error("the region was published without counters for others")]
    NotAllowed,
}

/// An answer, but for its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What was asked.
    pub question: Question,
    /// Who answers.
    pub by: AnsweredBy,
    /// The record's sequence, or what its counter was.
    pub result: Result<u64, Refusal>,
}

impl Question {
    /// Its bytes: as many as the answer's.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length()];
        self.write(&mut bytes);
        bytes
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        HEAD + usize::from(self.slots()) * SLOT
    }

    /// The question that `bytes` are. None if they are none: then nothing is answered.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (question, status, by) = Self::read(bytes)?;
        (status == 0 && by == 0).then_some(question)
    }

    fn slots(&self) -> u8 {
        match self.asked {
            Asked::Read { slots, .. } => slots,
            Asked::Add { .. } | Asked::Open { .. } => 0,
        }
    }

    fn write(&self, bytes: &mut [u8]) {
        let (kind, offset, session, amount) = match self.asked {
            Asked::Read { offset, .. } => (1, offset, 0, 0),
            Asked::Add { session, amount } => (2, 0, session, amount),
            Asked::Open { session } => (3, 0, session, 0),
        };
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&[kind, 0, 0, self.slots()]);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.region.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.record.to_le_bytes());
        bytes[32..36].copy_from_slice(&offset.to_le_bytes());
        bytes[40..48].copy_from_slice(&session.to_le_bytes());
        bytes[48..56].copy_from_slice(&amount.to_le_bytes());
    }

    /// The question, the status and who answers.
    fn read(bytes: &[u8]) -> Option<(Self, u8, u8)> {
        let head: &[u8; HEAD] = bytes.first_chunk()?;
        let [kind, status, by, slots] = [head[4], head[5], head[6], head[7]];
        let offset = u32_at(head, 32);
        let (session, amount) = (u64_at(head, 40), u64_at(head, 48));
        let asked = match kind {
            1 if (1..=SLOTS_MOST).contains(&slots) => Asked::Read { offset, slots },
            2 => Asked::Add { session, amount },
            3 => Asked::Open { session },
            _ => return None,
        };
        let (number, key) = (u64_at(head, 8), u64_at(head, 16));
        let (region, record) = (u32_at(head, 24), u32_at(head, 28));
        let question = Self { number, key, region, record, asked };
        let whole = head[0..4] == MAGIC && bytes.len() == question.length();
        (whole && slots == question.slots()).then_some((question, status, by))
    }
}

impl Answer {
    /// Its bytes, with `slots` as long as the question has room for.
    pub fn encode(&self, slots: &[u8]) -> Vec<u8> {
        let mut bytes = self.question.encode();
        let (status, value) = match self.result {
            Ok(value) => (0, value),
            Err(refusal) => (refusal.code(), 0),
        };
        bytes[5] = status;
        bytes[6] = self.by.code();
        bytes[56..64].copy_from_slice(&value.to_le_bytes());
        bytes[HEAD..HEAD + slots.len()].copy_from_slice(slots);
        bytes
    }

    /// The answer that `bytes` are, and its slots. None if they are none.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (question, status, by) = Question::read(bytes)?;
        let by = [AnsweredBy::NetworkProgram, AnsweredBy::Responder]
            .into_iter()
            .find(|who| who.code() == by)?;
        let result = match status {
            0 => Ok(u64_at(bytes.first_chunk()?, 56)),
            code => Err(Refusal::ALL.into_iter().find(|refusal| refusal.code() == code)?),
        };
        Some((Self { question, by, result }, &bytes[HEAD..]))
    }
}

impl AnsweredBy {
    fn code(self) -> u8 {
        match self {
            Self::Memory => 0,
            Self::NetworkProgram => 1,
            Self::Responder => 2,
        }
    }
}

impl Refusal {
    const ALL: [Self; 5] =
        [Self::Gone, Self::OutOfRange, Self::Busy, Self::NoSession, Self::NotAllowed];

    fn code(self) -> u8 {
        match self {
            Self::Gone => 1,
            Self::OutOfRange => 2,
            Self::Busy => 3,
            Self::NoSession => 4,
            Self::NotAllowed => 5,
        }
    }
}

fn u32_at(head: &[u8; HEAD], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|offset| head[at + offset]))
}

fn u64_at(head: &[u8; HEAD], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|offset| head[at + offset]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn questions() -> impl Strategy<Value = Question> {
        let asked = prop_oneof![
            (any::<u32>(), 1..=SLOTS_MOST)
                .prop_map(|(offset, slots)| Asked::Read { offset, slots }),
            any::<[u64; 2]>().prop_map(|[session, amount]| Asked::Add { session, amount }),
            any::<u64>().prop_map(|session| Asked::Open { session }),
        ];
        (any::<[u64; 2]>(), any::<[u32; 2]>(), asked).prop_map(|(long, short, asked)| {
            let ([number, key], [region, record]) = (long, short);
            Question { number, key, region, record, asked }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(question in questions(), result in any::<Result<u64, u8>>()) {
            let bytes = question.encode();
            prop_assert_eq!(Question::decode(&bytes), Some(question));
            prop_assert_eq!(Answer::decode(&bytes), None, "a question is no answer");
            let result = result.map_err(|code| Refusal::ALL[usize::from(code) % Refusal::ALL.len()]);
            let answer = Answer { question, by: AnsweredBy::Responder, result };
            let slots = vec![7; bytes.len() - HEAD];
            let answered = answer.encode(&slots);
            prop_assert_eq!(answered.len(), bytes.len());
            prop_assert_eq!(Answer::decode(&answered), Some((answer, &slots[..])));
            prop_assert_eq!(Question::decode(&answered), None, "an answer is no question");
        }

        /// Any bytes, mostly beginning well: nothing, or what encodes to as many bytes.
        #[test]
        fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 0..=3 * HEAD), kind in 0..5_u8, slots in 0..3_u8) {
            if bytes.len() >= HEAD {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..8].copy_from_slice(&[kind, 0, 0, slots]);
            }
            if let Some(question) = Question::decode(&bytes) {
                prop_assert_eq!(question.length(), bytes.len());
            }
            let _ = Answer::decode(&bytes);
        }
    }
}
