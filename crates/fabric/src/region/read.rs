//! What others have published, as it is read.

use super::ATTRIBUTE;
use super::ask::Unanswered;
use super::error::RegionError;
use super::hand::{self, Answered, Ask, Reply};
use super::layout::{Address, Layout};
use super::lifeline::{Lifeline, Lifelines};
use super::memory::Mapped;
use super::packet::{AnsweredBy, Refusal};
use super::remote::Remote;
use super::sequence::{self, Seen, Words};
use crate::context::Context;
use crate::directory::protocol::Record;
use crate::id::ResourceId;
use crate::mapping::Access;
use crate::progress::Wait;
use keeptime_locks::lock;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a record may be in the middle of being written, and an answer away: longer than a
/// publisher or a network is held up by others, shorter than somebody notices.
const PATIENCE: Duration = Duration::from_secs(1);

/// A region that somebody has published. Any thread can read it; several that read one across the
/// network take turns, so each should have its own.
#[derive(Debug)]
pub struct Reader {
    id: ResourceId,
    node: String,
    address: Address,
    pub(super) way: Way,
}

#[derive(Debug)]
pub(super) enum Way {
    Memory {
        words: Mapped,
        writable: bool,
        /// That of the daemon whose memory it is.
        life: Arc<Lifeline>,
        /// For what the memory may not be changed for, made when it is needed.
        asker: Mutex<Option<Remote>>,
        wait: Wait,
    },
    Network(Mutex<Remote>),
}

/// What was read besides the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Twice the number of times that the record was written: 0 if it never was.
    pub sequence: u64,
    /// The record's counter.
    pub counter: u64,
    /// Who has answered.
    pub by: AnsweredBy,
}

impl Context {
    /// Opens the region of a resource that was found: in memory if it is on this node, or else at
    /// the first of its node's addresses that answers, and at others when that does not any more.
    ///
    /// # Errors
    /// If the resource has no region, or it is gone or cannot be reached.
    pub fn open_region(&self, record: &Record) -> Result<Reader, RegionError> {
        let id = record.id;
        let address = record.attributes.value(ATTRIBUTE).and_then(|text| text.parse().ok());
        let address: Address = address.ok_or(RegionError::NoRegion(id))?;
        let node = record.home.node.clone();
        let core = self.core();
        let config = core.config();
        let (wait, same_node) = (config.wait, node == core.directory().welcome().node);
        let way = if same_node && config.shared_memory {
            let found = hand::ask(&config.directory, &Ask::open(address.slot, address.key));
            let (words, writable, life) = mapped(found, id, &node, address, self.lifelines())?;
            Way::Memory { words, writable, life, asker: Mutex::default(), wait }
        } else {
            let addresses = core.candidates(&record.home.addresses, same_node);
            let addresses = addresses.iter().map(SocketAddr::ip).collect();
            let remote = Remote::open(addresses, address, wait);
            Way::Network(Mutex::new(remote.map_err(|why| failed(why, id, &node, 0, address))?))
        };
        Ok(Reader { id, node, address, way })
    }
}

impl Reader {
    /// Whose it is.
    pub fn id(&self) -> ResourceId {
        self.id
    }

    /// How many records there are, and how long.
    pub fn layout(&self) -> Layout {
        self.address.layout
    }

    /// Reads the data of a record, all of one version.
    ///
    /// # Errors
    /// If `data` has not a record's length, there is no such record, the region is gone or cannot be
    /// reached, or its publisher has begun to write and does not go on.
    pub fn read(&self, record: u32, data: &mut [u8]) -> Result<Reading, RegionError> {
        let bytes = self.address.layout.bytes();
        if data.len() != bytes as usize {
            return Err(RegionError::Length { given: data.len(), bytes });
        }
        let first = self.first_slot(record)?;
        let mut deadline = None;
        loop {
            if let Some((seen, by)) = self.attempt(record, first, data, &mut deadline)? {
                return Ok(Reading::of(seen, by));
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + PATIENCE) {
                return Err(RegionError::Unfinished { record });
            }
            // The publisher may need this core to go on.
            std::thread::yield_now();
        }
    }

    /// Adds to the counter of a record, once. Returns what it was.
    ///
    /// # Errors
    /// If the publisher does not allow it, there is no such record, the region is gone or cannot be
    /// reached; [`RegionError::Unconfirmed`] if it may or may not have been added.
    pub fn fetch_add(&self, record: u32, amount: u64) -> Result<(u64, AnsweredBy), RegionError> {
        let first = self.first_slot(record)?;
        if !self.address.layout.adds() {
            return Err(RegionError::NotAllowed);
        }
        let deadline = Instant::now() + PATIENCE;
        let added = match &self.way {
            Way::Memory { words, writable: true, life, .. } => {
                self.check_there(words, life)?;
                let was = sequence::Record::new(words, first).add(amount);
                return Ok((was, AnsweredBy::Memory));
            }
            Way::Memory { asker, wait, .. } => {
                let mut asker = lock(asker);
                let here = IpAddr::from(Ipv4Addr::LOCALHOST);
                if asker.is_none() {
                    let made = Remote::open(vec![here], self.address, *wait);
                    *asker = Some(made.map_err(|why| self.failed(why, record))?);
                }
                asker
                    .as_mut()
                    .map_or(Err(Unanswered::Silent), |asker| asker.add(record, amount, deadline))
            }
            Way::Network(asker) => lock(asker).add(record, amount, deadline),
        };
        added.map_err(|why| self.failed(why, record))
    }

    /// Reads it once, or asks for it until `deadline`, which is set where there is none: no try has more time than is left
    /// by those before. None if it was written meanwhile.
    pub(super) fn attempt(
        &self,
        record: u32,
        first: u32,
        data: &mut [u8],
        deadline: &mut Option<Instant>,
    ) -> Result<Option<(Seen, AnsweredBy)>, RegionError> {
        match &self.way {
            Way::Memory { words, life, .. } => {
                self.check_there(words, life)?;
                let seen = sequence::Record::new(words, first).read(data);
                Ok(seen.map(|seen| (seen, AnsweredBy::Memory)))
            }
            Way::Network(asker) => {
                let mut asker = lock(asker);
                let until = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
                let read = asker.read(record, data, until);
                read.map_err(|why| self.failed(why, record))
            }
        }
    }

    /// The daemon takes the name away when the region ends. One that is killed cannot.
    fn check_there(&self, words: &Mapped, life: &Lifeline) -> Result<(), RegionError> {
        let there = words.word(0).load(Acquire) == self.address.key && !life.is_over();
        if there { Ok(()) } else { Err(RegionError::Gone(self.id)) }
    }

    pub(super) fn first_slot(&self, record: u32) -> Result<u32, RegionError> {
        let layout = self.address.layout;
        let records = layout.records();
        layout.first_slot(record).ok_or(RegionError::NoRecord { record, records })
    }

    pub(super) fn failed(&self, why: Unanswered, record: u32) -> RegionError {
        failed(why, self.id, &self.node, record, self.address)
    }
}

impl Reading {
    pub(super) fn of(Seen { sequence, counter }: Seen, by: AnsweredBy) -> Self {
        Self { sequence, counter, by }
    }
}

impl Ask {
    fn open(slot: u32, key: u64) -> Self {
        Self::Open { version: hand::VERSION, slot, key }
    }
}

/// The memory that the node's own daemon has handed over, whether it may be changed, and that daemon's life.
fn mapped(
    found: io::Result<Answered>,
    id: ResourceId,
    node: &str,
    address: Address,
    lifelines: &Lifelines,
) -> Result<(Mapped, bool, Arc<Lifeline>), RegionError> {
    let unreachable = |why: String| RegionError::Unreachable { node: node.into(), why };
    match found.map_err(|error| unreachable(error.to_string()))? {
        Answered { reply: Reply::Here { writable, .. }, memory: Some(memory), life, .. } => {
            let life =
                life.ok_or_else(|| unreachable("its daemon is of an older version".into()))?;
            let life = lifelines.of(life).map_err(|error| unreachable(error.to_string()))?;
            let access = if writable { Access::Write } else { Access::Read };
            let memory = File::from(memory);
            let words = expect_length(&memory, address.layout)
                .and_then(|()| Mapped::new(&memory, address.layout, access));
            Ok((words.map_err(|error| unreachable(error.to_string()))?, writable, life))
        }
        Answered { reply: Reply::Refused { why }, .. } => Err(unreachable(why)),
        _ => Err(RegionError::Gone(id)),
    }
}

/// Makes sure that a region's memory is as long as its resource says, which any program can say of any: who read beyond the
/// end of a file would be killed. Of what is no file, the kernel's own memory, it maps no more than there is.
fn expect_length(memory: &File, layout: Layout) -> io::Result<()> {
    let (metadata, said) = (memory.metadata()?, layout.memory() as u64);
    if !metadata.is_file() || metadata.len() == said {
        return Ok(());
    }
    let why = format!("its memory has {} bytes, its resource says {said}", metadata.len());
    Err(io::Error::new(ErrorKind::InvalidData, why))
}

fn failed(
    why: Unanswered,
    id: ResourceId,
    node: &str,
    record: u32,
    address: Address,
) -> RegionError {
    let unreachable = |why: String| RegionError::Unreachable { node: node.into(), why };
    match why {
        Unanswered::Refused(Refusal::Busy) => RegionError::Unfinished { record },
        Unanswered::Refused(refusal) => {
            RegionError::of(refusal, id, record, address.layout.records())
        }
        Unanswered::Silent => unreachable(format!("no answer on port {}", address.port)),
        Unanswered::Unconfirmed => RegionError::Unconfirmed,
        Unanswered::System(error) => unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::tests::opened;
    use super::*;
    use crate::id::{ContextId, Place};
    use crate::region::CELL;

    /// Nobody answers any more. However much time the tries before have taken, all together have as much as one.
    #[test]
    fn a_try_has_no_more_time_than_those_before_have_left() {
        let (asker, _silent) = opened(Refusal::Busy);
        let (context, place) = (ContextId::new(1), Place { slot: 0, generation: 0 });
        let address = Address { slot: 3, key: 7, port: 1, layout: Layout::CELL };
        let way = Way::Network(Mutex::new(Remote::of(asker.unwrap(), address)));
        let id = ResourceId { context, place };
        let reader = Reader { id, node: "n1".into(), address, way };
        let start = Instant::now();
        let tried = reader.attempt(0, 1, &mut [0; CELL], &mut Some(start));
        assert!(matches!(tried, Err(RegionError::Unreachable { .. })), "{tried:?}");
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
}
