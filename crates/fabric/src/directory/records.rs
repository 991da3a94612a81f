//! All resources that a server knows, found by any of their attributes; and who wants to know
//! (pure).

use super::protocol::Record;
use crate::attributes::Attributes;
use crate::id::{ContextId, Place, ResourceId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

/// A name and a value.
type Attribute = (String, String);

/// Resources by name, and by each of their attributes.
#[derive(Debug, Default)]
pub struct Records {
    all: BTreeMap<ResourceId, Record>,
    with: HashMap<Attribute, BTreeSet<ResourceId>>,
}

/// Questions that stay open, each under one of its attributes.
#[derive(Debug)]
pub struct Questions<K> {
    all: BTreeMap<K, Attributes>,
    under: HashMap<Option<Attribute>, BTreeSet<K>>,
}

impl Records {
    /// One more. A record of the same name is replaced.
    pub fn insert(&mut self, record: Record) {
        self.remove(record.id);
        for attribute in each(&record.attributes) {
            self.with.entry(attribute).or_default().insert(record.id);
        }
        self.all.insert(record.id, record);
    }

    /// One less.
    pub fn remove(&mut self, id: ResourceId) -> Option<Record> {
        let record = self.all.remove(&id)?;
        for attribute in each(&record.attributes) {
            if let Some(ids) = self.with.get_mut(&attribute) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.with.remove(&attribute);
                }
            }
        }
        Some(record)
    }

    /// That of this name.
    pub fn get(&self, id: ResourceId) -> Option<&Record> {
        self.all.get(&id)
    }

    /// All that include `query`, by name. Looks at no more records than have its rarest attribute.
    pub fn find(&self, query: &Attributes) -> Vec<Record> {
        let nobody = BTreeSet::new();
        let candidates = each(query).map(|one| self.with.get(&one).unwrap_or(&nobody));
        match candidates.min_by_key(|ids| ids.len()) {
            None => self.all.values().cloned().collect(),
            Some(ids) => {
                let records = ids.iter().filter_map(|id| self.all.get(id));
                records.filter(|record| record.attributes.include(query)).cloned().collect()
            }
        }
    }
}

impl<K> Default for Questions<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), under: HashMap::new() }
    }
}

impl<K: Ord + Copy> Questions<K> {
    /// One more; one of the same name is replaced.
    pub fn insert(&mut self, key: K, query: Attributes) {
        self.remove(key);
        self.under.entry(each(&query).next()).or_default().insert(key);
        self.all.insert(key, query);
    }

    /// One less: what it asked for.
    pub fn remove(&mut self, key: K) -> Option<Attributes> {
        let query = self.all.remove(&key)?;
        let place = each(&query).next();
        if let Some(keys) = self.under.get_mut(&place) {
            keys.remove(&key);
            if keys.is_empty() {
                self.under.remove(&place);
            }
        }
        Some(query)
    }

    /// Which of them a resource with these attributes answers.
    pub fn answered_by<'a>(&'a self, attributes: &'a Attributes) -> impl Iterator<Item = K> + 'a {
        let places = each(attributes).map(Some).chain([None]);
        let keys = places.filter_map(|place| self.under.get(&place)).flatten();
        keys.copied().filter(|key| attributes.include(&self.all[key]))
    }
}

/// All resources that a context can have.
pub fn all_of(context: ContextId) -> RangeInclusive<ResourceId> {
    let at = |bound| {
        let place = Place { slot: bound, generation: bound };
        ResourceId { context, place }
    };
    at(u32::MIN)..=at(u32::MAX)
}

fn each(attributes: &Attributes) -> impl Iterator<Item = Attribute> {
    attributes.iter().map(|(name, value)| (name.to_string(), value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carriers::Carriers;
    use crate::directory::protocol::ContextInfo;
    use crate::door::Callers;
    use crate::frame;
    use proptest::prelude::*;

    fn record(slot: u32, attributes: Attributes) -> Record {
        let context = ContextId::new(1);
        let (node, callers, addresses) = ("n1".into(), Callers::SameUser, Vec::new());
        let carriers = Carriers::default();
        let home = ContextInfo {
            id: context,
            node,
            owner: 0,
            callers,
            addresses,
            carriers,
            speaks: frame::VERSION,
        };
        let id = ResourceId { context, place: Place { slot, generation: 0 } };
        Record { id, attributes, home: home.into() }
    }

    fn some_attributes() -> impl Strategy<Value = Attributes> {
        prop::collection::vec(("[abc]", "[12]"), 0..4).prop_map(|all| {
            all.into_iter().fold(Attributes::new(), |set, (name, value)| set.with(name, value))
        })
    }

    proptest! {
        /// Against looking at everything.
        #[test]
        fn the_indexes_find_what_a_scan_finds(
            inserted in prop::collection::vec((0..20_u32, some_attributes()), 0..40),
            removed in prop::collection::vec(0..20_u32, 0..20),
            query in some_attributes(),
        ) {
            let (mut records, mut scan) = (Records::default(), BTreeMap::new());
            let mut questions = Questions::default();
            for (slot, attributes) in inserted {
                questions.insert(slot, attributes.clone());
                records.insert(record(slot, attributes.clone()));
                scan.insert(slot, attributes);
            }
            for slot in removed {
                records.remove(record(slot, Attributes::new()).id);
                questions.remove(slot);
                scan.remove(&slot);
            }
            let found: Vec<u32> = records.find(&query).iter().map(|r| r.id.place.slot).collect();
            let expected: Vec<u32> =
                scan.iter().filter(|(_, a)| a.include(&query)).map(|(slot, _)| *slot).collect();
            prop_assert_eq!(found, expected);
            let answered: BTreeSet<u32> = questions.answered_by(&query).collect();
            let expected: BTreeSet<u32> =
                scan.iter().filter(|(_, a)| query.include(a)).map(|(slot, _)| *slot).collect();
            prop_assert_eq!(answered, expected);
            // Nothing is left of what was removed.
            for slot in 0..20 {
                records.remove(record(slot, Attributes::new()).id);
                questions.remove(slot);
            }
            prop_assert!(records.with.is_empty() && questions.under.is_empty());
        }
    }
}
