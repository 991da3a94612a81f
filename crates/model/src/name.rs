//! Names that end up in file paths, host names and kernel objects.

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest [`Name`]: with a prefix it still fits a host name label (63) and an interface alias.
pub const NAME_LENGTH_MAX: usize = 40;

/// A name of a node, switch, application, job or lab: a lower-case letter, then lower-case
/// letters, digits and `-`, at most [`NAME_LENGTH_MAX`] long. It can never leave its directory. A clone shares the text: what
/// is granted is copied often, and names all of its nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let starts = text.starts_with(|c: char| c.is_ascii_lowercase());
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if starts && text.len() <= NAME_LENGTH_MAX && text.chars().all(legal) {
            return Ok(Self(text.into()));
        }
        let expected = format!(
            "a lower-case letter, then letters, digits and '-', at most {NAME_LENGTH_MAX} long"
        );
        Err(Invalid::new("name", text, expected))
    }
}

crate::as_text!(Name);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn accepted_names_are_safe_in_a_path(text in "\\PC{0,50}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert!(!name.as_str().contains(['/', '.', '\0']));
                prop_assert_eq!(name.to_string(), text);
            }
        }

        #[test]
        fn well_formed_names_are_accepted(text in "[a-z][a-z0-9-]{0,39}") {
            prop_assert!(text.parse::<Name>().is_ok());
        }
    }
}
