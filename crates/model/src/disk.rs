//! A disk as the kernel numbers it, what it can give, and how fast a job may use it.

use crate::Invalid;
use crate::units::{self, BytesPerSecond};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A whole block device by its numbers, `254:0`: what `lsblk` shows as `MAJ:MIN`. Partitions have
/// none of their own here: the kernel throttles whole devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskId {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

/// A node's disk, and what it can give to all jobs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The numbers of its device.
    pub device: DiskId,
    /// Reading.
    #[serde(with = "units::text")]
    pub read: BytesPerSecond,
    /// Writing.
    #[serde(with = "units::text")]
    pub write: BytesPerSecond,
}

/// How fast a disk may be read and written; nothing = without a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRates {
    /// Reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_second: Option<BytesPerSecond>,
    /// Writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_second: Option<BytesPerSecond>,
}

/// One way across the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskDirection {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

impl DiskDirection {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];
}

impl DiskRates {
    /// The rate in one direction.
    pub fn of(self, direction: DiskDirection) -> Option<BytesPerSecond> {
        match direction {
            DiskDirection::Read => self.read_bytes_per_second,
            DiskDirection::Write => self.write_bytes_per_second,
        }
    }

    /// These rates with another one in one direction.
    #[must_use]
    pub fn with(mut self, direction: DiskDirection, rate: Option<BytesPerSecond>) -> Self {
        match direction {
            DiskDirection::Read => self.read_bytes_per_second = rate,
            DiskDirection::Write => self.write_bytes_per_second = rate,
        }
        self
    }
}

impl fmt::Display for DiskDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.major, self.minor))
    }
}

impl FromStr for DiskId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        // Digits only: `parse` alone would take `+8`.
        let number = |text: &str| {
            text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
        };
        let parse = || {
            let (major, minor) = text.split_once(':')?;
            Some(Self { major: number(major)?, minor: number(minor)? })
        };
        let expected = "MAJOR:MINOR of a whole disk, as lsblk shows it (254:0)";
        parse().ok_or_else(|| Invalid::new("device", text, expected))
    }
}

crate::as_text!(DiskId);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_read_back(major: u32, minor: u32) {
            let disk = DiskId { major, minor };
            prop_assert_eq!(disk.to_string().parse(), Ok(disk));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}") {
            match text.parse::<DiskId>() {
                Ok(disk) => prop_assert_eq!(disk.to_string().parse(), Ok(disk)),
                Err(error) => prop_assert_eq!(error.field, "device"),
            }
        }
    }

    #[test]
    fn names_signs_and_halves_are_refused() {
        for bad in ["", ":", "8:", ":0", "+8:0", "8:-1", "/dev/vda", "8:0:1", "4294967296:0"] {
            assert!(bad.parse::<DiskId>().is_err(), "{bad}");
        }
    }
}
