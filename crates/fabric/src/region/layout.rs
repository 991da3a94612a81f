//! Where the records of a region lie in its memory (pure).
//!
//! ```text
//!  slot 0     key | records | bytes | stride | adds | zero      the head
//!  slot 1     sequence | counter | data ...                     record 0, `stride` slots
//!  slot 1 + stride                                              record 1
//! ```
//! A slot has 64 bytes. A record of at most 48 bytes is a *cell*: one slot, one cache line.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Bytes of a slot.
pub const SLOT: usize = 64;
/// Words of eight bytes in a slot.
pub const SLOT_WORDS: usize = SLOT / WORD;
/// Bytes of a record before its data: its sequence and its counter.
pub const PREFIX: usize = 2 * WORD;
/// Bytes of data of a cell.
pub const CELL: usize = SLOT - PREFIX;
/// Most data of a record: a reader on another node fetches it in about fifty packets, all of which
/// have to belong to one version.
pub const RECORD_MOST: u32 = 64 << 10;
/// Most slots of a region: 64 MiB, which its node's daemon keeps in memory.
pub const SLOTS_MOST: u32 = 1 << 20;

const WORD: usize = 8;

/// How many records a region has, how long they are, and whether readers may add to their counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    records: u32,
    bytes: u32,
    adds: bool,
}

/// What no region can be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidLayout {
    /// No records.
    #[error("a region of 0 records: at least 1 is accepted")]
    NoRecords,
    /// Records that are too long, or have no data.
    #[error("records of {bytes} bytes: 1 to {RECORD_MOST} are accepted")]
    Bytes {
        /// Their length.
        bytes: u32,
    },
    /// Too much of it.
    #[error("{records} records of {bytes} bytes: {most} of that length are accepted")]
    TooLarge {
        /// How many.
        records: u32,
        /// Their length.
        bytes: u32,
        /// How many would be accepted.
        most: u32,
    },
}

/// How a region is found in its node's daemon: what its resource has as [`super::ATTRIBUTE`].
///
/// ```
/// use keeptime_fabric::region::{Address, Layout};
///
/// let address = Address { slot: 3, key: 0xc0ffee, port: 7411, layout: Layout::cells(16)? };
/// assert_eq!(address.to_string(), "3.0000000000c0ffee:7411:16x48");
/// assert_eq!(address.to_string().parse(), Ok(address));
/// # Ok::<(), keeptime_fabric::region::InvalidLayout>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Its index there.
    pub slot: u32,
    /// Its name: 64 random bits, so that another region in the same place is not taken for it.
    pub key: u64,
    /// The port of its node where reads are answered.
    pub port: u16,
    /// What it looks like.
    pub layout: Layout,
}

/// A text that is no address of a region.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not the address of a region: expected SLOT.KEY:PORT:RECORDSxBYTES, such as 3.0000000000c0ffee:7411:16x48+"
)]
pub struct InvalidAddress {
    text: String,
}

impl Layout {
    /// One cell.
    pub const CELL: Self = Self { records: 1, bytes: CELL as u32, adds: false };

    /// So many records, each with so many bytes of data.
    ///
    /// # Errors
    /// If that is nothing, or too much.
    pub const fn new(records: u32, bytes: u32) -> Result<Self, InvalidLayout> {
        if records == 0 {
            return Err(InvalidLayout::NoRecords);
        }
        if bytes == 0 || bytes > RECORD_MOST {
            return Err(InvalidLayout::Bytes { bytes });
        }
        let layout = Self { records, bytes, adds: false };
        let most = (SLOTS_MOST - 1) / layout.stride();
        if records > most {
            return Err(InvalidLayout::TooLarge { records, bytes, most });
        }
        Ok(layout)
    }

    /// So many cells: records of 48 bytes, with sequence and counter a cache line each.
    ///
    /// # Errors
    /// If that is nothing, or too much.
    pub const fn cells(count: u32) -> Result<Self, InvalidLayout> {
        Self::new(count, CELL as u32)
    }

    /// The same, and whoever can read may add to the counters.
    #[must_use]
    pub const fn with_adds(self) -> Self {
        Self { adds: true, ..self }
    }

    /// How many records.
    pub const fn records(&self) -> u32 {
        self.records
    }

    /// Bytes of data in each.
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether readers may add to the counters.
    pub const fn adds(&self) -> bool {
        self.adds
    }

    /// Slots of a record.
    pub const fn stride(&self) -> u32 {
        (PREFIX + self.bytes as usize).div_ceil(SLOT) as u32
    }

    /// Slots of all of it, its head among them.
    pub const fn slots(&self) -> u32 {
        1 + self.records * self.stride()
    }

    /// Bytes of its memory.
    pub const fn memory(&self) -> usize {
        self.slots() as usize * SLOT
    }

    /// The first slot of a record.
    pub fn first_slot(&self, record: u32) -> Option<u32> {
        (record < self.records).then(|| 1 + record * self.stride())
    }

    /// The words of the head of a region named `key`.
    pub fn head(&self, key: u64) -> [u64; SLOT_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let shape = pair(self.records, self.bytes);
        [key, shape, pair(self.stride(), u32::from(self.adds)), 0, 0, 0, 0, 0]
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}{}", self.records, self.bytes, if self.adds { "+" } else { "" })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}:{}:{}", self.slot, self.key, self.port, self.layout)
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let parse = || {
            let (name, rest) = text.split_once(':')?;
            let (slot, key) = name.split_once('.')?;
            let (port, shape) = rest.split_once(':')?;
            let (shape, adds) = match shape.strip_suffix('+') {
                Some(shape) => (shape, true),
                None => (shape, false),
            };
            let (records, bytes) = shape.split_once('x')?;
            let layout = Layout::new(records.parse().ok()?, bytes.parse().ok()?).ok()?;
            let layout = if adds { layout.with_adds() } else { layout };
            let key = u64::from_str_radix(key, 16).ok()?;
            Some(Self { slot: slot.parse().ok()?, key, port: port.parse().ok()?, layout })
        };
        parse().ok_or_else(|| InvalidAddress { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_do_not_overlap_and_fill_the_memory() {
        for (records, bytes) in [(1, 1), (3, 48), (3, 49), (7, 1000), (1, RECORD_MOST)] {
            let layout = Layout::new(records, bytes).unwrap();
            let mut next = 1;
            for record in 0..records {
                assert_eq!(layout.first_slot(record), Some(next));
                next += layout.stride();
                assert!(layout.stride() as usize * SLOT >= PREFIX + bytes as usize);
            }
            assert_eq!(layout.first_slot(records), None);
            assert_eq!(next as usize * SLOT, layout.memory());
        }
        assert_eq!(Layout::cells(5).unwrap().memory(), 6 * SLOT);
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(Layout::new(0, 8), Err(InvalidLayout::NoRecords));
        assert_eq!(Layout::new(1, 0), Err(InvalidLayout::Bytes { bytes: 0 }));
        let error = Layout::new(1, RECORD_MOST + 1).unwrap_err().to_string();
        assert_eq!(error, "records of 65537 bytes: 1 to 65536 are accepted");
        let most = SLOTS_MOST - 1;
        assert!(Layout::cells(most).is_ok());
        let too_large = InvalidLayout::TooLarge { records: most + 1, bytes: 48, most };
        assert_eq!(Layout::cells(most + 1), Err(too_large));
        for text in
            ["", "3.c0:7411", "3.xyz:1:1x1", "3.c0:1:0x48", "3.c0:1:1x1000000", "3.c0:1:1x1++"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
