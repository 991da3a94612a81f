//! The resources of this program, which are registered again with the next server until it has
//! taken them.

use super::state::State;
use crate::attributes::Attributes;
use crate::directory::protocol::Request;
use crate::id::Place;
use std::collections::{BTreeMap, BTreeSet};

/// Which these are, and what of them the server does not know.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    all: BTreeMap<Place, Attributes>,
    /// Resources that this server, which is not the first, was told and has not answered, and those
    /// that it has not taken.
    again: BTreeMap<u32, Place>,
    rejected: BTreeSet<Place>,
}

impl Registrations {
    /// One more, which the server has taken.
    pub(super) fn insert(&mut self, place: Place, attributes: Attributes) {
        self.all.insert(place, attributes);
    }

    /// One less.
    pub(super) fn remove(&mut self, place: Place) {
        self.all.remove(&place);
    }

    /// There is another server, which has taken none of them yet.
    pub(super) fn reject_all(&mut self) {
        self.again.clear();
        self.rejected = self.all.keys().copied().collect();
    }

    /// Whether one was registered again under that number, and is not answered.
    pub(super) fn has(&self, number: u32) -> bool {
        self.again.contains_key(&number)
    }

    /// Whether the server may have to be told of one again.
    pub(super) fn are_unsettled(&self) -> bool {
        !self.again.is_empty() || !self.rejected.is_empty()
    }

    /// That number is answered. Returns false if none was registered again under it.
    pub(super) fn answered(&mut self, number: u32, is_taken: bool) -> bool {
        let Some(place) = self.again.remove(&number) else { return false };
        if !is_taken {
            self.rejected.insert(place);
        }
        true
    }

    /// Those that the server has not taken, as far as they are there still.
    fn take_rejected(&mut self) -> Vec<(Place, Attributes)> {
        let rejected = std::mem::take(&mut self.rejected).into_iter();
        rejected.filter_map(|place| Some((place, self.all.get(&place)?.clone()))).collect()
    }
}

impl State {
    /// Registers those that the server has not taken.
    pub(super) fn say_rejected(&mut self) {
        for (place, attributes) in self.registrations.take_rejected() {
            let number = self.next_number();
            self.registrations.again.insert(number, place);
            self.connection.say(&Request::Register { number, place, attributes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Client;
    use super::super::testing::{PLACE, accept, listen, serve, welcome};
    use super::*;
    use crate::attrs;
    use crate::directory::protocol::Answer;
    use std::thread;

    /// It would be gone for everybody, though its program has it.
    #[test]
    fn what_the_next_server_does_not_take_is_registered_again() {
        let (name, listener, home) = listen("again");
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    Request::Register { number, .. } => Some(vec![Answer::Done { number }]),
                    _ => None,
                });
                let mut times = 0;
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    Request::Register { number, place: PLACE, .. } if times < 2 => {
                        times += 1;
                        let why = "this node is refused by another".into();
                        Some(vec![Answer::Refused { number: Some(number), why }])
                    }
                    _ => None,
                });
                times
            });
            let client = Client::connect(&name, home).unwrap();
            client.register(PLACE, attrs! { "a" => "b" }).unwrap();
            // With which the first one ends.
            client.drop_resource(Place { slot: 4, generation: 1 });
            assert_eq!(served.join().unwrap(), 2);
        });
    }

    #[test]
    fn what_was_answered_is_told_the_next_server_whoever_has_waited_for_it() {
        let (mut state, attributes) = (State::default(), attrs! { "a" => "b" });
        let [taken, refused] = [3, 4].map(|slot| Place { slot, generation: 1 });
        for (number, place) in [(1, taken), (2, refused)] {
            let attributes = attributes.clone();
            state.asked.insert(number, Request::Register { number, place, attributes });
        }
        state.hear(Answer::Done { number: 1 });
        state.hear(Answer::Refused { number: Some(2), why: "too many".into() });
        assert_eq!(state.registrations.all, BTreeMap::from([(taken, attributes)]));
    }
}
