//! What a process publishes.

use super::ATTRIBUTE;
use super::error::{PublishError, RegionError};
use super::hand::{self, Answered, Ask, Reply};
use super::layout::{Address, Layout};
use super::memory::Mapped;
use super::sequence::Record;
use crate::attributes::Attributes;
use crate::context::{Context, Resource};
use crate::error::RegisterError;
use crate::id::ResourceId;
use crate::mapping::Access;
use keeptime_locks::lock;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// A region of this program, and the resource by which it is found. Dropped, it is gone for
/// everybody.
#[derive(Debug)]
pub struct Region {
    resource: Resource,
    layout: Layout,
    words: Mapped,
    /// One thread writes at a time.
    writing: Mutex<()>,
    /// The region is there as long as this.
    connection: OwnedFd,
}

impl Context {
    /// Publishes a region, and registers a resource for it; its attribute [`ATTRIBUTE`] says where it
    /// is. All records are zero at first.
    ///
    /// # Errors
    /// If the node's daemon has no memory for it, or the resource cannot be registered.
    pub fn publish(&self, attributes: Attributes, layout: Layout) -> Result<Region, PublishError> {
        attributes.expect_own().map_err(RegisterError::from)?;
        let daemon = |why: String| PublishError::Daemon(why);
        let asked = hand::ask(&self.core().config().directory, &Ask::publish(layout));
        let Answered { connection, reply, memory, .. } =
            asked.map_err(|error| daemon(error.to_string()))?;
        let (Reply::Here { slot, key, port, .. }, Some(memory)) = (&reply, memory) else {
            return Err(daemon(match reply {
                Reply::Refused { why } => why,
                _ => "it has handed over nothing".into(),
            }));
        };
        let words = Mapped::new(memory, layout, Access::Write);
        let words = words.map_err(|error| daemon(error.to_string()))?;
        let address = Address { slot: *slot, key: *key, port: *port, layout };
        let resource = self.register_any(attributes.with(ATTRIBUTE, address.to_string()))?;
        Ok(Region { resource, layout, words, writing: Mutex::default(), connection })
    }
}

impl Region {
    /// Its name, by which everybody can read it.
    pub fn id(&self) -> ResourceId {
        self.resource.id()
    }

    /// Its resource, which sends and receives messages as any other.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// What it looks like.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Writes the data of a record, all of it. Readers get what was there before until this
    /// returns. Costs as much as copying it; no system call.
    ///
    /// # Errors
    /// If there is no such record, or `data` has not its length.
    pub fn write(&self, record: u32, data: &[u8]) -> Result<(), RegionError> {
        if data.len() != self.layout.bytes() as usize {
            return Err(RegionError::Length { given: data.len(), bytes: self.layout.bytes() });
        }
        let record = self.record(record)?;
        let _writing = lock(&self.writing);
        record.write(data);
        Ok(())
    }

    /// The counter of a record.
    ///
    /// # Errors
    /// If there is no such record.
    pub fn counter(&self, record: u32) -> Result<u64, RegionError> {
        Ok(self.record(record)?.counter())
    }

    /// Adds to the counter of a record. Returns what it was.
    ///
    /// # Errors
    /// If there is no such record.
    pub fn fetch_add(&self, record: u32, amount: u64) -> Result<u64, RegionError> {
        Ok(self.record(record)?.add(amount))
    }

    /// Whether the node's daemon still has it. If not, nobody can open it any more, and it has to
    /// be published anew.
    pub fn is_served(&self) -> bool {
        hand::is_connected(self.connection.as_fd())
    }

    fn record(&self, record: u32) -> Result<Record<'_, Mapped>, RegionError> {
        let records = self.layout.records();
        let first = self.layout.first_slot(record);
        let first = first.ok_or(RegionError::NoRecord { record, records })?;
        Ok(Record::new(&self.words, first))
    }
}
