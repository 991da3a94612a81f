//! What is answered to a question (pure, but for the records that others write meanwhile). The
//! network program in `crates/linux/bpf/regions.bpf.c` decides the same.

use super::layout::{Layout, SLOT};
use super::packet::{Answer, AnsweredBy, Asked, Question, Refusal};
use super::sequence::{Record, Words};
use std::collections::{HashMap, VecDeque};

/// Sessions that are remembered: each is a reader that adds. The oldest goes, and has to begin
/// anew.
const SESSIONS_MOST: usize = 65_536;

/// A region as a responder sees it.
#[derive(Debug)]
pub struct Held<W> {
    /// Its name.
    pub key: u64,
    /// What it looks like.
    pub layout: Layout,
    /// Its memory.
    pub words: W,
}

/// Who adds, and what the last question was.
#[derive(Debug, Default)]
pub struct Sessions {
    last: HashMap<u64, Last>,
    by_age: VecDeque<u64>,
}

/// A session's last question.
#[derive(Debug, Default, Clone, Copy)]
struct Last {
    number: u64,
    answer: u64,
}

/// The answer to `question` about the region in its place, if there is one; its slots go to
/// `slots`, which has room for them. None: there is nothing to say, the question is a late copy.
pub fn respond<W: Words>(
    question: Question,
    region: Option<&Held<W>>,
    sessions: &mut Sessions,
    slots: &mut Vec<u8>,
) -> Option<Answer> {
    slots.clear();
    let result = match question.asked {
        Asked::Open { session } => {
            sessions.open(session);
            Ok(0)
        }
        Asked::Read { offset, slots: count } => {
            record_of(&question, region).and_then(|(layout, record)| {
                let end = u64::from(offset) + u64::from(count);
                if end > u64::from(layout.stride()) {
                    return Err(Refusal::OutOfRange);
                }
                slots.resize(usize::from(count) * SLOT, 0);
                record.read_slots(offset, slots).ok_or(Refusal::Busy)
            })
        }
        Asked::Add { session, amount } => match record_of(&question, region) {
            Ok((layout, _)) if !layout.adds() => Err(Refusal::NotAllowed),
            Ok((_, record)) => {
                let number = question.number;
                let Some(last) = sessions.last.get_mut(&session) else {
                    return Some(refused(question, Refusal::NoSession));
                };
                if number == last.number.wrapping_add(1) {
                    *last = Last { number, answer: record.add(amount) };
                } else if number != last.number {
                    return None;
                }
                Ok(last.answer)
            }
            Err(refusal) => Err(refusal),
        },
    };
    if result.is_err() {
        slots.clear();
    }
    Some(Answer { question, by: AnsweredBy::Responder, result })
}

impl Sessions {
    fn open(&mut self, session: u64) {
        if self.last.contains_key(&session) {
            return;
        }
        if self.by_age.len() >= SESSIONS_MOST
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.last.remove(&oldest);
        }
        self.by_age.push_back(session);
        self.last.insert(session, Last::default());
    }
}

fn record_of<'a, W: Words>(
    question: &Question,
    region: Option<&'a Held<W>>,
) -> Result<(Layout, Record<'a, W>), Refusal> {
    let held = region.filter(|held| held.key == question.key).ok_or(Refusal::Gone)?;
    let first = held.layout.first_slot(question.record).ok_or(Refusal::OutOfRange)?;
    Ok((held.layout, Record::new(&held.words, first)))
}

fn refused(question: Question, refusal: Refusal) -> Answer {
    Answer { question, by: AnsweredBy::Responder, result: Err(refusal) }
}

#[cfg(test)]
mod tests {
    use super::super::layout::SLOT_WORDS;
    use super::super::sequence::Word;
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    /// Memory of one thread.
    struct Cells(Vec<Cell<u64>>);

    impl Word for Cell<u64> {
        fn load(&self, _: Ordering) -> u64 {
            self.get()
        }
        fn store(&self, value: u64, _: Ordering) {
            self.set(value);
        }
        fn add(&self, value: u64, _: Ordering) -> u64 {
            self.replace(self.get().wrapping_add(value))
        }
    }

    impl Words for Cells {
        type Word = Cell<u64>;
        fn word(&self, index: usize) -> &Cell<u64> {
            &self.0[index]
        }
        fn fence(&self, _: Ordering) {}
    }

    fn held(layout: Layout) -> Held<Cells> {
        let words = Cells(vec![Cell::new(0); layout.slots() as usize * SLOT_WORDS]);
        Held { key: 7, layout, words }
    }

    fn question(number: u64, record: u32, asked: Asked) -> Question {
        Question { number, key: 7, region: 0, record, asked }
    }

    #[test]
    fn reads_are_answered_and_what_cannot_be_read_is_named() {
        let held = held(Layout::new(2, 100).unwrap());
        Record::new(&held.words, 3).write(&[9; 100]);
        let mut sessions = Sessions::default();
        let mut slots = Vec::new();
        let mut ask = |record, offset, count, key| {
            let asked = Asked::Read { offset, slots: count };
            let question = Question { key, ..question(1, record, asked) };
            let answer = respond(question, Some(&held), &mut sessions, &mut slots).unwrap();
            (answer.result, slots.clone())
        };
        let (sequence, slots) = ask(1, 0, 2, 7);
        assert_eq!((sequence, &slots[16..116]), (Ok(2), &[9; 100][..]));
        assert_eq!(ask(1, 1, 1, 7), (Ok(2), slots[64..].to_vec()));
        for refused in [(2, 0, 1, 7), (1, 1, 2, 7), (1, u32::MAX, 1, 7)] {
            let (record, offset, count, key) = refused;
            assert_eq!(ask(record, offset, count, key).0, Err(Refusal::OutOfRange), "{refused:?}");
        }
        assert_eq!(ask(0, 0, 1, 8), (Err(Refusal::Gone), vec![]));
        held.words.word(SLOT_WORDS).set(1);
        assert_eq!(ask(0, 0, 1, 7), (Err(Refusal::Busy), vec![]));
    }

    #[test]
    fn what_is_asked_twice_is_added_once() {
        let held = held(Layout::cells(1).unwrap().with_adds());
        let mut sessions = Sessions::default();
        let mut ask = |number, asked| {
            let question = question(number, 0, asked);
            respond(question, Some(&held), &mut sessions, &mut Vec::new()).map(|a| a.result)
        };
        let add = |session| Asked::Add { session, amount: 5 };
        assert_eq!(ask(1, add(1)), Some(Err(Refusal::NoSession)));
        assert_eq!(ask(0, Asked::Open { session: 1 }), Some(Ok(0)));
        assert_eq!(ask(1, add(1)), Some(Ok(0)));
        assert_eq!(ask(1, add(1)), Some(Ok(0)), "the same answer");
        assert_eq!(ask(0, Asked::Open { session: 1 }), Some(Ok(0)), "a late copy");
        assert_eq!(ask(2, add(1)), Some(Ok(5)));
        assert_eq!(ask(1, add(1)), None, "a late copy of what is long answered");
        assert_eq!(ask(4, add(1)), None, "of a session that is not known so far");
        assert_eq!(Record::new(&held.words, 1).counter(), 10);
    }

    #[test]
    fn counters_are_their_publishers_own_unless_it_says_otherwise() {
        let held = held(Layout::cells(1).unwrap());
        let mut sessions = Sessions::default();
        sessions.open(1);
        let asked = Asked::Add { session: 1, amount: 1 };
        let answer = respond(question(1, 0, asked), Some(&held), &mut sessions, &mut Vec::new());
        assert_eq!(answer.unwrap().result, Err(Refusal::NotAllowed));
    }

    #[test]
    fn the_oldest_session_goes_when_there_are_too_many() {
        let mut sessions = Sessions::default();
        (0..=SESSIONS_MOST as u64).for_each(|session| sessions.open(session));
        assert_eq!(sessions.last.len(), SESSIONS_MOST);
        assert!(!sessions.last.contains_key(&0) && sessions.last.contains_key(&1));
    }
}
