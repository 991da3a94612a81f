//! Which bundles of tables are alike, so that a question about many is asked once for each group.
//!
//! A bundle is a few tables that belong together, as a node's CPU, disk and link do. Bundles are alike
//! if their tables have, place by place, the same capacities and the same entries. That is known by a
//! digest of each: the sum of the digests of all that is in it, so that what comes or goes costs the same
//! however much there is. Bundles that differ have the same digest of 128 bits by chance alone, and then
//! only what is asked of one and meant for both would be wrong: what is reserved is compared with every
//! table itself.
//!
//! Digests follow at once, groups when they are asked for next: who tries something and takes it back moves nothing.

use crate::calendar::{BundleId, ResourceId};
use crate::span::Stretch;
use crate::table::Slot;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// All bundles, in groups of those that are alike.
#[derive(Debug, Clone, Default)]
pub struct Alike {
    /// By resource: where it is. A link between two nodes belongs to both.
    places: Vec<Vec<Place>>,
    /// By bundle.
    bundles: Vec<Bundle>,
    groups: BTreeMap<Contents, BTreeSet<BundleId>>,
    /// Bundles that may have to move to another group.
    changed: Vec<BundleId>,
}

/// Where a resource is.
#[derive(Debug, Clone, Copy)]
struct Place {
    bundle: BundleId,
    /// Which of the bundle's tables.
    at: u32,
}

#[derive(Debug, Clone, Copy)]
struct Bundle {
    contents: Contents,
    /// In which group it is.
    group: Option<Contents>,
}

/// What is in a bundle, or a part of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Contents {
    entries: u64,
    digest: u128,
}

/// Changes are listed at least so far before groups follow, however few bundles there are.
const LISTED: usize = 1_000;

impl Alike {
    /// A bundle of these resources, with their capacities and all entries that they have.
    pub fn add(
        &mut self,
        tables: impl IntoIterator<Item = (ResourceId, u64, impl IntoIterator<Item = Slot>)>,
    ) -> BundleId {
        let id = u32::try_from(self.bundles.len()).expect("fewer than 2^32 bundles fit in memory");
        let bundle = BundleId(id);
        let mut contents = Contents::NOTHING;
        for (at, (resource, capacity, entries)) in (0..).zip(tables) {
            let index = resource.0 as usize;
            if self.places.len() <= index {
                self.places.resize(index + 1, Vec::new());
            }
            self.places[index].push(Place { bundle, at });
            contents.change(Contents::NOTHING, Contents::of_capacity(at, capacity));
            for entry in entries {
                contents.change(Contents::NOTHING, Contents::of_entry(at, entry));
            }
        }
        self.bundles.push(Bundle { contents, group: None });
        self.changed.push(bundle);
        self.settle();
        bundle
    }

    /// Groups of bundles that are alike, none of them empty, those with the fewest entries first; as of the last
    /// [`Self::settle`], which there has to have been since the last change.
    pub fn groups(&self) -> impl Iterator<Item = &BTreeSet<BundleId>> {
        debug_assert!(self.changed.is_empty(), "settled since the last change");
        self.groups.values()
    }

    /// `new` takes the place of `old`. Groups follow with [`Self::settle`]. O(1).
    pub fn replaced(&mut self, resource: ResourceId, old: Slot, new: Slot) {
        self.change(resource, |at| [old, new].map(|slot| Contents::of_entry(at, slot)));
    }

    /// There is `new` of a resource instead of `old`. Groups follow with [`Self::settle`]. O(1).
    pub fn resized(&mut self, resource: ResourceId, old: u64, new: u64) {
        self.change(resource, |at| [old, new].map(|all| Contents::of_capacity(at, all)));
    }

    /// Puts what has changed into its group. O(log bundles) for each bundle that has, O(1) for each that has its old
    /// contents again.
    pub fn settle(&mut self) {
        for bundle in self.changed.drain(..) {
            let Bundle { contents, group } = &mut self.bundles[bundle.0 as usize];
            if *group == Some(*contents) {
                continue;
            }
            if let Some(before) = group.replace(*contents)
                && let Entry::Occupied(mut left) = self.groups.entry(before)
            {
                left.get_mut().remove(&bundle);
                if left.get().is_empty() {
                    left.remove();
                }
            }
            self.groups.entry(*contents).or_default().insert(bundle);
        }
    }

    /// `from_to` tells by place what goes and what comes.
    fn change(&mut self, resource: ResourceId, from_to: impl Fn(u32) -> [Contents; 2]) {
        for Place { bundle, at } in self.places.get(resource.0 as usize).into_iter().flatten() {
            let [old, new] = from_to(*at);
            self.bundles[bundle.0 as usize].contents.change(old, new);
            self.changed.push(*bundle);
        }
        // Where nobody asks for groups for long.
        if self.changed.len() > self.bundles.len().max(LISTED) {
            self.settle();
        }
    }
}

impl Contents {
    const NOTHING: Self = Self { entries: 0, digest: 0 };

    /// `old`, which is a part of it, goes, and `new` comes.
    fn change(&mut self, old: Self, new: Self) {
        self.entries = self.entries + new.entries - old.entries;
        self.digest = self.digest.wrapping_add(new.digest).wrapping_sub(old.digest);
    }

    fn of_capacity(at: u32, capacity: u64) -> Self {
        Self { entries: 0, digest: digest([u64::from(at) << 1, capacity, 0, 0]) }
    }

    fn of_entry(at: u32, Slot { span, amount }: Slot) -> Self {
        match span.stretch().filter(|_| amount > 0) {
            None => Self::NOTHING,
            Some(Stretch { from, to }) => {
                Self { entries: 1, digest: digest([u64::from(at) << 1 | 1, from, to, amount]) }
            }
        }
    }
}

fn digest(words: [u64; 4]) -> u128 {
    let half = |seed| words.into_iter().fold(seed, |state, word| mix(state ^ word));
    SEEDS.into_iter().fold(0, |all, seed| all << 64 | u128::from(half(seed)))
}

/// Every bit of the input changes each bit of the output with a chance of a half (the finaliser of
/// splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

/// Parts of pi: any two numbers would do.
const SEEDS: [u64; 2] = [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_while_nobody_asks_takes_no_more_and_more_memory() {
        let mut alike = Alike::default();
        let resource = ResourceId(0);
        alike.add([(resource, 0, [])]);
        for capacity in 0..3 * LISTED as u64 {
            alike.resized(resource, capacity, capacity + 1);
            assert!(alike.changed.len() <= LISTED);
        }
        alike.settle();
        let groups = Vec::from_iter(alike.groups());
        assert_eq!(groups, [&BTreeSet::from([BundleId(0)])]);
    }
}
