//! More than nodes have at all: what can never be granted, whatever is given back.

use crate::admission::{Admission, cpu_and_disk, disk, of_any_rank};
use crate::cluster::Resource;
use crate::refusal::{Beyond, NAMED_MAX, NodeShare};
use keeptime_model::name::Name;
use keeptime_model::reservation::{NodeChoice, Resources};
use keeptime_model::topology::NodeIndex;

impl Admission<'_> {
    /// What of `asked` is more than enough nodes have when nothing is reserved, if anything is.
    pub fn beyond(&self, asked: &Resources) -> Option<Beyond> {
        match &asked.nodes {
            NodeChoice::Named(names) => self.beyond_named(asked, names),
            NodeChoice::Any(count) => self.beyond_any(asked, *count),
        }
    }

    /// The first thing that one of the named nodes has too little of, and all that have as little or less.
    fn beyond_named(&self, asked: &Resources, names: &[Name]) -> Option<Beyond> {
        let nodes = self.cluster.all_of(names).ok()?;
        let of_rank = |(rank, node): (usize, &NodeIndex)| {
            let cpu_ppm = asked.rank_cpu_ppm.get(rank).copied().unwrap_or(asked.cpu_ppm);
            cpu_and_disk(cpu_ppm, disk(asked), *node)
        };
        let short = nodes.iter().enumerate().flat_map(of_rank);
        let (of, amount) = short.into_iter().find(|(of, amount)| self.most(*of) < *amount)?;
        let has = |node: NodeIndex| self.most(at(of, node));
        let as_little = nodes.iter().filter(|node| has(**node) <= self.most(of));
        let named = as_little.map(|node| self.cluster.name(*node).clone()).take(NAMED_MAX);
        Some(self.told_beyond(of, [amount, self.most(of)], nodes.len() as u32, named.collect()))
    }

    /// The first thing that fewer than `count` of the nodes that it may have come to.
    fn beyond_any(&self, asked: &Resources, count: u32) -> Option<Beyond> {
        let nodes: Vec<_> = self.may_ever_have().collect();
        let (last, first) = ((count as usize).checked_sub(1)?, *nodes.first()?);
        of_any_rank(asked, first).into_iter().find_map(|(of, amount)| {
            let mut most: Vec<_> = nodes.iter().map(|node| self.most(at(of, *node))).collect();
            most.sort_unstable_by(|one, other| other.cmp(one));
            // Of fewer nodes than are asked for no amount is too much: it is the number that is.
            let most = *most.get(last).filter(|most| **most < amount)?;
            Some(self.told_beyond(of, [amount, most], count, Vec::new()))
        })
    }

    /// How much there is of a resource.
    fn most(&self, of: Resource) -> u64 {
        self.calendar.table(self.cluster.table(of)).map_or(0, |table| table.capacity())
    }

    fn told_beyond(
        &self,
        of: Resource,
        [asked, most]: [u64; 2],
        needs: u32,
        nodes: Vec<Name>,
    ) -> Beyond {
        let words = |amount| self.cluster.words(of, amount).1;
        let share = match of {
            Resource::DiskRead(_) => NodeShare::Read,
            Resource::DiskWrite(_) => NodeShare::Write,
            Resource::Cpu(_) | Resource::Link(_) => NodeShare::Cpu,
        };
        let most = (most > 0).then(|| words(most));
        Beyond { share, asked: words(asked), most, needs, nodes }
    }
}

/// What `of` is of a node, of another one: its CPU, or a rate of its disk.
fn at(of: Resource, node: NodeIndex) -> Resource {
    match of {
        Resource::Cpu(_) => Resource::Cpu(node),
        Resource::DiskRead(_) => Resource::DiskRead(node),
        Resource::DiskWrite(_) => Resource::DiskWrite(node),
        Resource::Link(direction) => Resource::Link(direction),
    }
}
