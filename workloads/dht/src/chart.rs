//! Who has which part of the hash space, as the directory tells it (pure).
//!
//! A partition's extent is what it had when it was made: its descendants lie within it. So the tree of
//! partitions follows from the extents alone, whoever comes and goes.

use crate::extent::Extent;
use keeptime_fabric::{Attributes, ResourceId, attrs};
use std::collections::{BTreeMap, BTreeSet};

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

    /// Who is asked about what is not in `extent`: the least that has all of it and more.
    pub fn parent(&self, extent: Extent) -> Option<&Living> {
        let around = self.partitions.values();
        let around = around.filter(|l| l.extent != extent && l.extent.includes(extent));
        let least = around.map(|living| living.extent).min_by_key(|extent| extent.len());
        least.and_then(|least| self.holder(least))
    }

    /// Who has parts of `extent`: those that lie within it and within no other.
    pub fn children(&self, extent: Extent) -> Vec<Living> {
        let inside = self.partitions.values().map(|living| living.extent);
        let mut inside: Vec<_> =
            inside.filter(|inner| *inner != extent && extent.includes(*inner)).collect();
        // Wider ones first: what lies within one of them is a child of it.
        inside.sort_by_key(|inner| (inner.start(), u64::MAX - inner.len()));
        let mut widest: Vec<Extent> = Vec::new();
        for inner in inside {
            if !widest.last().is_some_and(|last| last.includes(inner)) {
                widest.push(inner);
            }
        }
        widest.into_iter().filter_map(|extent| self.holder(extent).copied()).collect()
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
        let chart = chart(&[("0-4294967295", 0), (half, 0), ("0-99", 0), ("0-9", 0), (half, 1)]);
        let children: Vec<_> = chart.children(Extent::ALL).iter().map(|l| l.id).collect();
        assert_eq!(children, [id(2), id(4)], "the newer of two with one extent");
        assert_eq!(chart.parent("0-9".parse().unwrap()).unwrap().id, id(2));
        assert_eq!(chart.parent(Extent::ALL), None);
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
