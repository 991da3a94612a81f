//! One question that is kept: what answers it now, and what its watchers are told of that.

use super::watching::{Event, Watchers};
use crate::directory::protocol::Record;
use crate::directory::state::SILENCE_MOST;
use crate::id::ResourceId;
use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant};

/// How long watchers are not told that something is gone of which the next server knows nothing
/// yet: other servers call it within a second, and are given up when they have been silent for so
/// long.
const HELD_FOR: Duration = SILENCE_MOST;

/// Its answer, as far as it is known, and who watches that.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    pub(super) watchers: Watchers,
    records: BTreeMap<ResourceId, Record>,
    /// What this server has said in parts until now, of which the last has not come yet.
    parts: Vec<Record>,
    /// What the server before knew and this one does not, and watchers have not been told yet.
    held: BTreeMap<ResourceId, Held>,
    /// The server's answer to this is known and kept right.
    current: bool,
}

/// A record that may come back until then.
#[derive(Debug)]
struct Held {
    record: Record,
    until: Instant,
}

impl Subscription {
    /// All that there are, if the server has said that.
    pub(super) fn known(&self) -> Option<&BTreeMap<ResourceId, Record>> {
        self.current.then_some(&self.records)
    }

    /// All that watchers take for being there.
    pub(super) fn watched(&self) -> impl Iterator<Item = &Record> {
        self.records.values().chain(self.held.values().map(|held| &held.record))
    }

    /// Whether watchers may have to be told yet what this server says otherwise than the one
    /// before.
    pub(super) fn is_settling(&self) -> bool {
        !self.watchers.is_empty() && (!self.current || !self.held.is_empty())
    }

    /// The server has ended, and nobody keeps this right.
    pub(super) fn doubt(&mut self) {
        self.current = false;
        self.parts.clear();
    }

    /// Some of everything. What is known stands until there is all of it.
    pub(super) fn found_part(&mut self, records: Vec<Record>) {
        self.parts.extend(records);
    }

    /// Everything anew, with what has come of it before: the first time, or from the next server. What that one says otherwise, as
    /// when its node has another name now, is told as elsewhere: gone, and there again. What it
    /// does not say it may not have heard yet.
    pub(super) fn found(&mut self, records: Vec<Record>, now: Instant) {
        self.current = true;
        let all = mem::take(&mut self.parts).into_iter().chain(records);
        let there: BTreeMap<_, _> = all.map(|record| (record.id, record)).collect();
        let missing = self.records.keys().filter(|id| !there.contains_key(*id));
        let missing: Vec<_> = missing.copied().collect();
        missing.into_iter().for_each(|id| self.hold(id, now));
        for (id, record) in there {
            if self.records.get(&id) != Some(&record) {
                self.gone(id);
                self.appeared(record);
            }
        }
    }

    /// One more.
    pub(super) fn appeared(&mut self, record: Record) {
        let held = self.held.remove(&record.id);
        let is_back = held.as_ref().is_some_and(|held| held.record == record);
        if held.is_some() && !is_back {
            self.watchers.tell(&Event::Disappeared(record.id));
        }
        if !is_back {
            self.watchers.tell(&Event::Appeared(record.clone()));
        }
        self.records.insert(record.id, record);
    }

    /// One less.
    pub(super) fn gone(&mut self, id: ResourceId) {
        if self.records.remove(&id).is_some() {
            self.watchers.tell(&Event::Disappeared(id));
        }
    }

    /// What has been held for long enough is gone.
    pub(super) fn let_go(&mut self, now: Instant) {
        let over = self.held.iter().filter(|(_, held)| held.until <= now);
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.held.remove(&id);
            self.watchers.tell(&Event::Disappeared(id));
        }
    }

    /// Looks find it no more, and watchers are not told yet.
    fn hold(&mut self, id: ResourceId, now: Instant) {
        if let Some(record) = self.records.remove(&id)
            && !self.watchers.is_empty()
        {
            self.held.insert(id, Held { record, until: now + HELD_FOR });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::record;
    use super::*;
    use crate::attributes::Attributes;

    /// A daemon that is started again with another name of its node knows the same contexts, which
    /// are elsewhere now.
    #[test]
    fn what_the_next_server_says_otherwise_is_told_and_kept() {
        let [old, new] = ["n1", "n2"].map(|node| record(node, Attributes::new()));
        let mut subscription = Subscription::default();
        subscription.watchers.insert(1);
        for record in [&old, &old, &new, &new] {
            subscription.found(vec![record.clone()], Instant::now());
        }
        let events: Vec<Event> = subscription.watchers.of(1).unwrap().drain(..).collect();
        let id = old.id;
        assert_eq!(
            events,
            [Event::Appeared(old), Event::Disappeared(id), Event::Appeared(new.clone())]
        );
        assert_eq!(subscription.records, BTreeMap::from([(id, new)]));
    }

    /// Goal: an answer in parts replaces what was known when it is whole, and nothing of it is left when it never is. Method:
    /// a server ends between two parts, and the next one says another thing.
    #[test]
    fn an_answer_in_parts_counts_when_it_is_whole() {
        let records = [1, 2, 3].map(|slot| {
            let mut record = record("n1", Attributes::new());
            record.id.place.slot = slot;
            record
        });
        let [one, two, three] = records;
        let mut subscription = Subscription::default();
        let known = |subscription: &Subscription| -> Vec<u32> {
            subscription.known().into_iter().flatten().map(|(id, _)| id.place.slot).collect()
        };
        subscription.found_part(vec![one.clone()]);
        assert_eq!(known(&subscription), []);
        subscription.found(vec![two], Instant::now());
        assert_eq!(known(&subscription), [1, 2]);
        subscription.doubt();
        subscription.found_part(vec![one]);
        subscription.doubt();
        subscription.found(vec![three], Instant::now());
        assert_eq!(known(&subscription), [3]);
    }
}
