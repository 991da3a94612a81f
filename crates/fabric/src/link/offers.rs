//! The long messages that one end of a link has offered: what there is of each, and which of those that were taken is
//! sent next (pure).

use crate::flow::{PARKED_MOST, Sent};
use crate::frame::{Malformed, Reason};
use crate::id::Place;
use crate::payload::Buffer;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// All of them, by their names.
#[derive(Default)]
pub struct Offers {
    all: HashMap<u32, Offer>,
    /// Given ones that were taken, to be sent piece by piece: those of one receiver one after the other, and receivers in
    /// turns.
    cleared: VecDeque<(Place, VecDeque<u32>)>,
    last_token: u32,
    /// Bytes of those of `all` that were given and are not all sent.
    parked: usize,
}

/// A long message that was offered.
pub struct Offer {
    /// By whom, to whom, with what tag.
    pub sent: Sent,
    /// Its number among all that was sent.
    pub number: u32,
    /// Its length.
    pub size: usize,
    /// What there is of it.
    pub data: Data,
}

/// What there is of an offered message.
pub enum Data {
    /// Given, and sent up to here.
    Given(Buffer, usize),
    /// A thread holds it.
    Lent(Lent),
    /// A thread held it and has given up: it knows, and is told nothing more. The other end still has the offer.
    Withdrawn,
    /// All sent; the other end has not said that it has it.
    Gone,
}

/// How far a lent message is.
#[derive(Clone, Copy, PartialEq)]
pub enum Lent {
    /// It was not taken.
    Waiting,
    /// It was taken.
    Cleared,
    /// The same, but the next piece has to wait for its time.
    Held,
    /// It was not delivered.
    Failed(Reason),
}

/// Who sends what was taken.
pub enum SentBy {
    /// The link: it was given.
    Link,
    /// The thread that lends it.
    Lender,
    /// Nobody: its sender has given up meanwhile.
    Nobody,
}

impl Offers {
    /// Whether one more of `size` bytes may be given: beside others as far as there is room, alone however long it is.
    pub fn have_room(&self, size: usize) -> bool {
        self.parked == 0 || self.parked + size <= PARKED_MOST
    }

    /// A name for one more.
    pub fn next_token(&self) -> u32 {
        let mut token = self.last_token;
        loop {
            // 0 means no offer, and a name that is in use is skipped.
            token = token.checked_add(1).unwrap_or(1);
            if !self.all.contains_key(&token) {
                return token;
            }
        }
    }

    /// One more, of which the other end was told by this name.
    pub fn insert(&mut self, token: u32, offer: Offer) {
        self.last_token = token;
        self.put_back(token, offer);
    }

    /// One that was removed is there again, with what there is of it now.
    pub fn put_back(&mut self, token: u32, offer: Offer) {
        self.parked += offer.data.parked();
        self.all.insert(token, offer);
    }

    /// One less.
    pub fn remove(&mut self, token: u32) -> Option<Offer> {
        let offer = self.all.remove(&token)?;
        self.parked -= offer.data.parked();
        Some(offer)
    }

    /// The one of this name.
    pub fn get(&self, token: u32) -> Option<&Offer> {
        self.all.get(&token)
    }

    /// How far the lent one of this name is.
    pub fn lent(&self, token: u32) -> Option<(Sent, Lent)> {
        match self.all.get(&token)? {
            Offer { data: Data::Lent(state), sent, .. } => Some((*sent, *state)),
            _ => None,
        }
    }

    /// That is what there is now of a lent one.
    pub fn mark(&mut self, token: u32, data: Data) {
        if let Some(offer) = self.all.get_mut(&token) {
            offer.data = data;
        }
    }

    /// One was taken. Returns who sends it.
    ///
    /// # Errors
    /// If there was never such an offer, or it is sent, or being lent, already.
    pub fn taken(&mut self, token: u32) -> Result<SentBy, Malformed> {
        match self.all.get_mut(&token).map(|offer| (offer.sent.to, &mut offer.data)) {
            Some((to, Data::Given(..))) => {
                self.clear(to, token);
                Ok(SentBy::Link)
            }
            Some((_, Data::Lent(lent))) if *lent == Lent::Waiting => {
                *lent = Lent::Cleared;
                Ok(SentBy::Lender)
            }
            Some((_, Data::Withdrawn)) => {
                self.remove(token);
                Ok(SentBy::Nobody)
            }
            None if token <= self.last_token => Ok(SentBy::Nobody),
            _ => Err(Malformed::Unknown("an offer")),
        }
    }

    /// One was not delivered. Returns whether its sender is told by what its call returns, also if it has given up.
    pub fn rejected(&mut self, token: u32, why: Reason) -> bool {
        match self.all.get_mut(&token).map(|offer| &mut offer.data) {
            Some(Data::Lent(state)) => {
                *state = Lent::Failed(why);
                true
            }
            Some(Data::Withdrawn) => {
                self.remove(token);
                true
            }
            Some(Data::Given(..)) => {
                self.remove(token);
                false
            }
            Some(Data::Gone) | None => false,
        }
    }

    /// How many receivers are in turn. The first of them has taken something that is not all sent.
    pub fn receivers(&mut self) -> usize {
        while self.cleared.front().is_some_and(|(_, tokens)| tokens.is_empty()) {
            self.cleared.pop_front();
        }
        self.cleared.len()
    }

    /// Which of the messages that the first receiver has taken goes on: the first that `has_turn`. Those of one sender
    /// stay one after the other.
    pub fn next_in_turn(&self, has_turn: impl Fn(Sent) -> bool) -> Option<u32> {
        let (_, tokens) = self.cleared.front()?;
        let mut held: Vec<Place> = Vec::new();
        tokens.iter().copied().find(|token| {
            let Some(Offer { sent, .. }) = self.all.get(token) else { return true };
            // Its time may have come since the one before was looked at.
            let has_turn = !held.contains(&sent.from) && has_turn(*sent);
            held.extend((!has_turn).then_some(sent.from));
            has_turn
        })
    }

    /// Nothing more is to be sent of this one of the first receiver's.
    pub fn all_sent(&mut self, token: u32) {
        if let Some((_, tokens)) = self.cleared.front_mut() {
            tokens.retain(|other| *other != token);
        }
    }

    /// The first receiver is the last now, if there is one.
    pub fn next_receiver(&mut self) {
        if let Some(first) = self.cleared.pop_front() {
            self.cleared.push_back(first);
        }
    }

    /// Whether something was given that the other end has not said to have.
    pub fn are_given(&self) -> bool {
        self.all.values().any(|offer| matches!(offer.data, Data::Given(..) | Data::Gone))
    }

    /// What may not have arrived, by number: what was not seen, and offers that were seen and did not arrive whole.
    /// Threads that lend, or did until they gave up, are told by what their call returns.
    pub fn not_arrived(&self, mut unconfirmed: BTreeMap<u32, Sent>) -> BTreeMap<u32, Sent> {
        for offer in self.all.values() {
            match offer.data {
                Data::Lent(_) | Data::Withdrawn => unconfirmed.remove(&offer.number),
                Data::Given(..) | Data::Gone => unconfirmed.insert(offer.number, offer.sent),
            };
        }
        unconfirmed
    }

    /// The link is over: takes all of them out. Which names there have been is still known.
    pub fn end(&mut self) -> Self {
        let none = Self { last_token: self.last_token, ..Self::default() };
        std::mem::replace(self, none)
    }

    /// An offer of `to` was taken.
    fn clear(&mut self, to: Place, token: u32) {
        match self.cleared.iter_mut().find(|(place, _)| *place == to) {
            // Said again it means nothing more.
            Some((_, tokens)) if tokens.contains(&token) => {}
            Some((_, tokens)) => tokens.push_back(token),
            None => self.cleared.push_back((to, VecDeque::from([token]))),
        }
    }
}

impl Data {
    /// Bytes that wait here for a receiver.
    fn parked(&self) -> usize {
        match self {
            Self::Given(data, _) => data.len(),
            Self::Lent(_) | Self::Withdrawn | Self::Gone => 0,
        }
    }
}

#[cfg(test)]
impl Offers {
    /// How many there are, and how many bytes are parked.
    pub fn held(&self) -> (usize, usize) {
        (self.all.len(), self.parked)
    }

    /// That of the offer that was made last.
    pub fn last_token(&self) -> u32 {
        self.last_token
    }

    /// How many each receiver has taken that are to be sent.
    pub fn waiting(&self) -> Vec<usize> {
        self.cleared.iter().map(|(_, tokens)| tokens.len()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::Tag;
    use proptest::prelude::*;

    fn place(slot: u32) -> Place {
        Place { slot, generation: 0 }
    }

    fn offer(from: u32, to: u32, data: Data) -> Offer {
        let sent = Sent { from: place(from), to: place(to), tag: Tag(0) };
        Offer { sent, number: 1, size: 1, data }
    }

    fn given(bytes: usize) -> Data {
        Data::Given(Buffer::from(vec![0_u8; bytes]), 0)
    }

    /// Sends all of the next that was taken and is still there, as the link does.
    fn send(offers: &mut Offers) {
        let Some(token) = offers.next_in_turn(|_| true) else { return };
        if let Some(offer) = offers.remove(token) {
            offers.put_back(token, Offer { data: Data::Gone, ..offer });
        }
        offers.all_sent(token);
        offers.next_receiver();
    }

    proptest! {
        /// Whatever becomes of offers, and in whatever order: parked is what was given and is not all sent, and what was
        /// taken comes to its end.
        #[test]
        fn what_is_parked_is_there(steps in prop::collection::vec((0..6_u8, 1..12_u32), 0..100)) {
            let mut offers = Offers::default();
            for (step, number) in steps {
                let token = offers.next_token();
                match step {
                    0 => offers.insert(token, offer(1, number % 3, given(number as usize))),
                    1 => offers.insert(token, offer(1, 7, Data::Lent(Lent::Waiting))),
                    2 => {
                        let _ = offers.taken(number);
                    }
                    3 => drop(offers.remove(number)),
                    4 => {
                        offers.rejected(number, Reason::Gone);
                    }
                    _ if offers.receivers() > 0 => send(&mut offers),
                    _ => {}
                }
                let there: usize = offers.all.values().map(|offer| offer.data.parked()).sum();
                prop_assert_eq!(offers.parked, there);
            }
            let taken: usize = offers.waiting().iter().sum();
            (0..taken).for_each(|_| {
                offers.receivers();
                send(&mut offers);
            });
            prop_assert_eq!(offers.receivers(), 0);
        }
    }

    /// A sender whose first message waits for its time has no other overtake that, even if its time comes in between;
    /// other senders go on, and so do other receivers.
    #[test]
    fn receivers_take_turns_and_senders_keep_their_order() {
        let mut offers = Offers::default();
        for (token, (from, to)) in (1..).zip([(1, 7), (1, 7), (2, 7), (1, 8)]) {
            assert_eq!(offers.next_token(), token);
            offers.insert(token, offer(from, to, given(1)));
            assert!(matches!(offers.taken(token), Ok(SentBy::Link)));
        }
        assert_eq!(offers.waiting(), [3, 1]);
        assert_eq!(offers.next_in_turn(|_| true), Some(1));
        let looked = std::cell::Cell::new(false);
        assert_eq!(offers.next_in_turn(|_| looked.replace(true)), Some(3));
        assert_eq!(offers.next_in_turn(|_| false), None);
        offers.next_receiver();
        assert_eq!(offers.next_in_turn(|_| true), Some(4));
        send(&mut offers);
        assert_eq!((offers.receivers(), offers.next_in_turn(|_| true)), (2, Some(1)));
        offers.next_receiver();
        assert_eq!(offers.receivers(), 1, "all is sent to the other");
    }

    /// However long a message is, it can be given when no other waits.
    #[test]
    fn one_given_message_has_room() {
        let mut offers = Offers::default();
        assert!(offers.have_room(PARKED_MOST + 1));
        offers.insert(1, offer(1, 7, given(10)));
        assert!(offers.have_room(PARKED_MOST - 10) && !offers.have_room(PARKED_MOST - 9));
    }
}
