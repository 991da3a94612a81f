//! Who has which part of the hash space, as the directory tells it (pure).
//!
//! A partition's extent is what it had when it was made: its descendants lie within it. So the tree of
//! partitions follows from the extents alone, whoever comes and goes.

use crate::extent::{Extent, INDEXES};
use keeptime_fabric::{Attributes, ResourceId, attrs};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What is more is wide. Requests for what lies within a wide partition and is another's go past it, straight to the least
/// that has the index: a few would have a part in most requests otherwise, most requests would pass several, and more nodes
/// would bring little. Wide ones are 1,023 at most, which are looked through in less time than one more message takes. Narrow
/// ones may be any number: requests go to the widest of them, and down from there.
const NARROW: u64 = INDEXES / 1024;

/// A partition that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Living {
    /// Its resource.
    pub id: ResourceId,
    /// What it had when it was made.
    pub extent: Extent,
    /// How often that was handed over as a whole.
    pub generation: u32,
    /// Who gave it that; nobody: it is the super-partition.
    pub giver: Option<ResourceId>,
}

/// All that live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chart {
    partitions: BTreeMap<ResourceId, Living>,
    servers: BTreeSet<ResourceId>,
}

/// Attributes of everything that belongs to the table `name`.
pub fn of_table(name: &str) -> Attributes {
    attrs! { "service" => "dht", "name" => name }
}

/// Attributes of a server.
pub fn of_server(name: &str) -> Attributes {
    of_table(name).with("type", "server")
}

impl Living {
    /// Attributes of a partition of `table`.
    pub fn attributes(
        table: Attributes,
        extent: Extent,
        generation: u32,
        giver: Option<ResourceId>,
    ) -> Attributes {
        let attributes = table.with("type", "partition").with("range", extent.to_string());
        let attributes = attributes.with("generation", generation.to_string());
        match giver {
            Some(giver) => attributes.with("giver", giver.to_string()),
            None => attributes,
        }
    }

    fn parse(id: ResourceId, attributes: &Attributes) -> Option<Self> {
        let extent = attributes.value("range")?.parse().ok()?;
        let generation = attributes.value("generation")?.parse().ok()?;
        let giver = attributes.value("giver").map(str::parse).transpose().ok()?;
        Some(Self { id, extent, generation, giver })
    }

    /// Of two with the same extent, the one with more here has it.
    fn seniority(&self) -> (u32, ResourceId) {
        (self.generation, self.id)
    }
}

impl Chart {
    /// Something appeared. What says nothing that makes sense is nothing.
    pub fn appeared(&mut self, id: ResourceId, attributes: &Attributes) {
        match attributes.value("type") {
            Some("server") => {
                self.servers.insert(id);
            }
            Some("partition") => {
                let living = Living::parse(id, attributes);
                self.partitions.extend(living.map(|living| (id, living)));
            }
            _ => {}
        }
    }

    /// Something is gone.
    pub fn gone(&mut self, id: ResourceId) {
        self.partitions.remove(&id);
        self.servers.remove(&id);
    }

    /// All partitions, by identifier.
    pub fn partitions(&self) -> impl ExactSizeIterator<Item = &Living> {
        self.partitions.values()
    }

    /// All servers, by identifier.
    pub fn servers(&self) -> &BTreeSet<ResourceId> {
        &self.servers
    }

    /// Whether `id` lives.
    pub fn has(&self, id: ResourceId) -> bool {
        self.partitions.contains_key(&id) || self.servers.contains(&id)
    }

    /// The super-partition.
    pub fn root(&self) -> Option<&Living> {
        self.holder(Extent::ALL)
    }

    /// Who has exactly `extent`.
    pub fn holder(&self, extent: Extent) -> Option<&Living> {
        let holders = self.partitions.values().filter(|living| living.extent == extent);
        holders.max_by_key(|living| living.seniority())
    }

    /// Those that have all of `extent` and more, and all others that are wide; the least first.
    pub fn around(&self, extent: Extent) -> Vec<Living> {
        let others = self.partitions.values().filter(|other| other.extent != extent);
        let mut around: Vec<_> = others
            .filter(|other| other.extent.includes(extent) || other.extent.len() > NARROW)
            .copied()
            .collect();
        // Of those with one extent the holder comes first, and stays.
        around.sort_by_key(|l| (l.extent.len(), l.extent.start(), Reverse(l.seniority())));
        around.dedup_by_key(|living| living.extent);
        around
    }

    /// Who has parts of `extent`: those that lie within it and within no other of these.
    pub fn children(&self, extent: Extent) -> Vec<Living> {
        self.widest(|other| other != extent && extent.includes(other))
    }

    /// Those that are not wide, have nothing of `extent`, and lie within no other of these.
    pub fn beside(&self, extent: Extent) -> Vec<Living> {
        self.widest(|other| other.len() <= NARROW && other.common(extent).is_none())
    }

    /// Of those that are asked for, by where they begin: who lies within no other.
    fn widest(&self, is_one: impl Fn(Extent) -> bool) -> Vec<Living> {
        let all = self.partitions.values().filter(|living| is_one(living.extent));
        let mut all: Vec<_> = all.copied().collect();
        // Wider ones first, and of those with one extent the holder: what follows and lies within it is left out.
        all.sort_by_key(|l| (l.extent.start(), Reverse(l.extent.len()), Reverse(l.seniority())));
        let mut widest: Vec<Living> = Vec::new();
        for living in all {
            if !widest.last().is_some_and(|last| last.extent.includes(living.extent)) {
                widest.push(living);
            }
        }
        widest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_fabric::ContextId;
    use keeptime_fabric::id::Place;

    fn id(slot: u32) -> ResourceId {
        ResourceId { context: ContextId::new(1), place: Place { slot, generation: 0 } }
    }

    fn chart(partitions: &[(&str, u32)]) -> Chart {
        let mut chart = Chart::default();
        for (slot, (range, generation)) in (0..).zip(partitions) {
            let attributes =
                Living::attributes(of_table("t"), range.parse().unwrap(), *generation, None);
            chart.appeared(id(slot), &attributes);
        }
        chart
    }

    #[test]
    fn the_tree_follows_from_the_extents() {
        let half = "2147483648-4294967295";
        let last = "4294967290-4294967295";
        let all = [("0-4294967295", 0), (half, 0), ("0-99", 0), ("0-9", 0), (half, 1), (last, 0)];
        let chart = chart(&all);
        let children: Vec<_> = chart.children(Extent::ALL).iter().map(|l| l.id).collect();
        assert_eq!(children, [id(2), id(4)], "the newer of two with one extent");
        let ids = |all: Vec<Living>| all.iter().map(|living| living.id).collect::<Vec<_>>();
        let (tens, upper) = ("0-9".parse().unwrap(), half.parse().unwrap());
        assert_eq!(ids(chart.around(tens)), [id(2), id(4), id(0)], "what is wide too");
        assert_eq!(ids(chart.around(Extent::ALL)), [id(4)]);
        assert_eq!(ids(chart.beside(tens)), [id(5)], "and not the half that it lies in");
        assert_eq!(ids(chart.beside(upper)), [id(2)], "and not what lies within it");
        assert_eq!(ids(chart.beside(Extent::ALL)), []);
        assert_eq!(chart.root().unwrap().id, id(0));
        let mut without = chart.clone();
        without.gone(id(2));
        assert_eq!(without.children(Extent::ALL)[0].id, id(3));
        assert!(!without.has(id(2)));
    }

    #[test]
    fn what_others_register_is_left_alone() {
        let mut chart = Chart::default();
        chart.appeared(id(0), &of_server("t"));
        chart.appeared(id(1), &of_table("t").with("type", "partition").with("range", "7"));
        chart.appeared(id(2), &of_table("t"));
        assert_eq!(chart.servers().len(), 1);
        assert_eq!(chart.partitions().len(), 0);
    }
}
