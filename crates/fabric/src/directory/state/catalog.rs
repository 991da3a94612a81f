//! All resources of the cluster, and which programs of this node are told when one of them comes or goes.

use super::{ConnectionId, Output};
use crate::attributes::Attributes;
use crate::directory::protocol::{Answer, Record, in_parts};
use crate::directory::records::{Questions, Records};
use crate::id::ResourceId;

/// What there is, and the subscriptions to it: those of a program are told apart by its number.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    records: Records,
    subscriptions: Questions<(ConnectionId, u32)>,
}

impl Catalog {
    /// All that include `query`.
    pub(super) fn find(&self, query: &Attributes) -> Vec<Record> {
        self.records.find(query)
    }

    /// What that resource is.
    pub(super) fn attributes(&self, id: ResourceId) -> Option<&Attributes> {
        self.records.get(id).map(|record| &record.attributes)
    }

    /// A resource is there: whoever asked is told.
    pub(super) fn insert(&mut self, record: Record, outputs: &mut Vec<Output>) {
        for (program, number) in self.subscriptions.answered_by(&record.attributes) {
            let answer = Answer::Appeared { number, record: record.clone() };
            outputs.push(Output::Answer(program, answer));
        }
        self.records.insert(record);
    }

    /// A resource that was stale is there still: nobody need be told, unless it is another by now.
    pub(super) fn refresh(&mut self, record: Record, outputs: &mut Vec<Output>) {
        if self.records.get(record.id) != Some(&record) {
            self.remove([record.id], outputs);
            self.insert(record, outputs);
        }
    }

    /// Resources are no more: whoever asked is told.
    pub(super) fn remove(
        &mut self,
        resources: impl IntoIterator<Item = ResourceId>,
        outputs: &mut Vec<Output>,
    ) {
        for id in resources {
            let Some(record) = self.records.remove(id) else { continue };
            for (program, number) in self.subscriptions.answered_by(&record.attributes) {
                outputs.push(Output::Answer(program, Answer::Gone { number, id }));
            }
        }
    }

    /// A program asks that, and is told what there is now.
    pub(super) fn subscribe(
        &mut self,
        program: ConnectionId,
        number: u32,
        query: Attributes,
        outputs: &mut Vec<Output>,
    ) {
        let (parts, records) = in_parts(self.records.find(&query));
        self.subscriptions.insert((program, number), query);
        let part = |records| Output::Answer(program, Answer::FoundPart { number, records });
        outputs.extend(parts.into_iter().map(part));
        outputs.push(Output::Answer(program, Answer::Found { number, records }));
    }

    /// It asks that no more: what it was.
    pub(super) fn unsubscribe(&mut self, program: ConnectionId, number: u32) -> Option<Attributes> {
        self.subscriptions.remove((program, number))
    }
}
