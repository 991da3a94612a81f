//! Parts of the hash space (pure).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use twox_hash::XxHash3_128;

/// How many hash indexes there are.
pub const INDEXES: u64 = 1 << 32;

/// The hash index of a key: the same in every program, whatever made it.
pub fn index_of(key: &[u8]) -> u32 {
    XxHash3_128::oneshot(key) as u32
}

/// Hash indexes from one to before another; never empty. Written with its last one: `0-4095`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct Extent {
    start: u64,
    end: u64,
}

/// What is said to be an extent, and is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("range {text:?}: expected FIRST-LAST with FIRST <= LAST < {INDEXES}, such as 0-4095")]
pub struct InvalidExtent {
    text: String,
}

impl Extent {
    /// All of the hash space: the super-partition.
    pub const ALL: Self = Self { start: 0, end: INDEXES };

    /// From `start` to before `end`, if that is something.
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start < end && end <= INDEXES { Some(Self { start, end }) } else { None }
    }

    /// Its first index.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The first index behind it.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// How many indexes it has.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether `index` is one of it.
    pub fn contains(self, index: u32) -> bool {
        (self.start..self.end).contains(&u64::from(index))
    }

    /// Whether all of `other` is in it.
    pub const fn includes(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// What both have.
    pub fn common(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// What of it to give away: half of it, or at least a quarter, if it has more than one index. The
    /// part has a power of two of indexes and begins at a multiple of that. Of any two such parts, one
    /// lies within the other or they have nothing in common, whoever made them: so tables that were
    /// founded apart can become one.
    pub const fn part(self) -> Option<Self> {
        let mut len = 1 << self.len().ilog2();
        if len == self.len() && self.start.is_multiple_of(len) {
            len /= 2;
        }
        while len > 0 {
            let end = self.end / len * len;
            if end >= self.start + len {
                return Self::new(end - len, end);
            }
            len /= 2;
        }
        None
    }

    /// What is left of it without `other`.
    pub fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let before = Self::new(self.start, self.end.min(other.start));
        let after = Self::new(self.start.max(other.end), self.end);
        before.into_iter().chain(after)
    }
}

/// What is left of `extents` without `other`.
pub fn without(extents: &[Extent], other: Extent) -> Vec<Extent> {
    extents.iter().flat_map(|extent| extent.without(other)).collect()
}

/// What `extents` have of `other`.
pub fn within(extents: &[Extent], other: Extent) -> Vec<Extent> {
    extents.iter().filter_map(|extent| extent.common(other)).collect()
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end - 1)
    }
}

impl FromStr for Extent {
    type Err = InvalidExtent;

    fn from_str(text: &str) -> Result<Self, InvalidExtent> {
        let parse = || {
            let (first, last) = text.split_once('-')?;
            Self::new(first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?)
        };
        parse().ok_or_else(|| InvalidExtent { text: text.into() })
    }
}

impl TryFrom<(u64, u64)> for Extent {
    type Error = InvalidExtent;

    fn try_from((start, end): (u64, u64)) -> Result<Self, InvalidExtent> {
        Self::new(start, end).ok_or_else(|| InvalidExtent { text: format!("{start}..{end}") })
    }
}

impl From<Extent> for (u64, u64) {
    fn from(extent: Extent) -> Self {
        (extent.start, extent.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent() -> impl Strategy<Value = Extent> {
        (0..64_u64, 1..64_u64).prop_map(|(start, len)| Extent { start, end: start + len })
    }

    proptest! {
        #[test]
        fn parts_and_differences_are_what_sets_say(one in extent(), other in extent()) {
            let set = |extents: &[Extent]| -> Vec<u32> {
                (0..256).filter(|index| extents.iter().any(|e| e.contains(*index))).collect()
            };
            let difference = without(&[one], other);
            let expected: Vec<u32> =
                set(&[one]).into_iter().filter(|index| !other.contains(*index)).collect();
            prop_assert_eq!(set(&difference), expected);
            let common: Vec<u32> =
                set(&[one]).into_iter().filter(|index| other.contains(*index)).collect();
            prop_assert_eq!(set(&within(&[one], other)), common);
            prop_assert_eq!(one.includes(other), without(&[other], one).is_empty());
            prop_assert_eq!(one.part().is_none(), one.len() == 1);
            if let (Some(part), Some(other)) = (one.part(), other.part()) {
                prop_assert!(one.includes(part) && part.len() < one.len());
                prop_assert!(4 * part.len() >= one.len(), "{} of {}", part, one);
                let is_tree = part.includes(other) || other.includes(part);
                prop_assert!(is_tree || part.common(other).is_none(), "{} {}", part, other);
            }
            prop_assert_eq!(one.to_string().parse(), Ok(one));
        }
    }

    #[test]
    fn what_is_no_extent_is_refused() {
        for text in ["", "5", "5-4", "0-4294967296", "0-18446744073709551615", "-1-5"] {
            assert!(text.parse::<Extent>().is_err(), "{text}");
        }
        assert_eq!("0-4294967295".parse(), Ok(Extent::ALL));
    }

    #[test]
    fn indexes_of_keys_stay_what_they_are() {
        // Servers of two versions must agree.
        assert_eq!([index_of(b""), index_of(b"key")], [0x468d_497f, 0xa051_65e3]);
    }
}
