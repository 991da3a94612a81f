//! Nodes that are out of service: what they have stays, and nothing new comes to them.

use crate::Invalid;
use crate::name::Name;
use crate::reservation::UserName;
use crate::units::WallTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Longest [`DrainReason`], in bytes: every refusal that names such a node repeats it.
pub const DRAIN_REASON_LENGTH_MAX: usize = 200;

/// Why a node is out of service, in its operator's words: one line, which any terminal can show.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DrainReason(String);

/// That a node is out of service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drained {
    /// Who said why, last.
    pub by: UserName,
    /// Since when nothing new comes to it.
    pub since_unix_nanos: WallTime,
    /// Why.
    pub reason: DrainReason,
}

/// Which nodes are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeSet {
    /// All that there are.
    All,
    /// These.
    Named(BTreeSet<Name>),
}

impl FromStr for DrainReason {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let reason = text.trim();
        let is_line = !reason.chars().any(char::is_control);
        if is_line && (1..=DRAIN_REASON_LENGTH_MAX).contains(&reason.len()) {
            return Ok(Self(reason.into()));
        }
        let expected = format!(
            "one line of at most {DRAIN_REASON_LENGTH_MAX} bytes that says why, as in \"new disk\""
        );
        Err(Invalid::new("reason", text, expected))
    }
}

crate::as_text!(DrainReason);

impl fmt::Display for DrainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reason_is_one_line_that_says_something() {
        let reason: DrainReason = " new disk\n".parse().unwrap();
        assert_eq!(reason.to_string(), "new disk");
        let longest = "x".repeat(DRAIN_REASON_LENGTH_MAX);
        assert!(longest.parse::<DrainReason>().is_ok());
        for wrong in ["", "  ", "new\ndisk", "\u{1b}[2J!", &(longest + "x")] {
            let error = wrong.parse::<DrainReason>().unwrap_err().to_string();
            assert!(error.contains("one line of at most 200 bytes"), "{error}");
        }
    }

    #[test]
    fn all_nodes_are_told_from_some_in_json() {
        let some = NodeSet::Named(["n2", "n1"].map(|name| name.parse().unwrap()).into());
        for (nodes, text) in [(NodeSet::All, r#""all""#), (some, r#"{"named":["n1","n2"]}"#)] {
            assert_eq!(serde_json::to_string(&nodes).unwrap(), text);
            assert_eq!(serde_json::from_str::<NodeSet>(text).unwrap(), nodes);
        }
        assert!(serde_json::from_str::<NodeSet>(r#"{"named":["N 1"]}"#).is_err());
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_read_back(text in "\\PC{0,60}") {
            if let Ok(reason) = text.parse::<DrainReason>() {
                prop_assert_eq!(reason.to_string().parse(), Ok(reason));
            }
        }
    }
}
