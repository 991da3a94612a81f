//! Numbers of nodes, as people write them.

use keeptime_model::Invalid;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// `4`, or `2..8` with both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCounts(RangeInclusive<u32>);

impl NodeCounts {
    /// Whether so many are among them.
    pub fn contains(&self, count: u32) -> bool {
        self.0.contains(&count)
    }

    /// The only one.
    ///
    /// # Errors
    /// If there are several.
    pub fn only(&self) -> Result<u32, Invalid> {
        match self.0.start() == self.0.end() {
            true => Ok(*self.0.start()),
            false => Err(Invalid::new("nodes", self, "one number; a range goes with --by")),
        }
    }
}

impl From<u32> for NodeCounts {
    fn from(count: u32) -> Self {
        Self(count..=count)
    }
}

impl fmt::Display for NodeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fewest, most) = (self.0.start(), self.0.end());
        match fewest == most {
            true => write!(f, "{fewest}"),
            false => write!(f, "{fewest}..{most}"),
        }
    }
}

impl FromStr for NodeCounts {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (fewest, most) = text.split_once("..").unwrap_or((text, text));
        match (fewest.trim().parse(), most.trim().parse()) {
            (Ok(fewest), Ok(most)) if 0 < fewest && fewest <= most => Ok(Self(fewest..=most)),
            _ => Err(Invalid::new("nodes", text, "a number above 0, or two as in 2..8")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_or_a_range_is_read_and_shown() {
        for text in ["4", "2..8"] {
            assert_eq!(text.parse::<NodeCounts>().unwrap().to_string(), text);
        }
        let range: NodeCounts = "2..8".parse().unwrap();
        assert!(range.contains(8) && !range.contains(9));
        assert_eq!(range.only().unwrap_err().expected, "one number; a range goes with --by");
        for text in ["0", "8..2", "two", "2..", ""] {
            assert!(text.parse::<NodeCounts>().is_err(), "{text}");
        }
    }
}
