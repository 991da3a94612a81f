//! What a resource is: a set of attributes, each a name and a value.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// Most attributes of one resource. Directories keep all of them on every node.
pub const ATTRIBUTES_MOST: usize = 32;
/// Most bytes of a name or a value, for the same reason.
pub const TEXT_MOST: usize = 256;
/// How names begin that are the library's: programs look for such attributes, and give their own other names.
pub const RESERVED: &str = "keeptime.";

/// A set of attributes: what a resource is, or what a resource that is sought has at least.
///
/// ```
/// use keeptime_fabric::attrs;
///
/// let partition = attrs! { "name" => "dhash", "type" => "partition", "range" => "0-4095" };
/// assert!(partition.include(&attrs! { "name" => "dhash" }));
/// assert!(!partition.include(&attrs! { "name" => "other" }));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attributes(BTreeMap<String, String>);

/// Attributes that no directory takes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidAttributes {
    /// Too many.
    #[error("{count} attributes: at most {ATTRIBUTES_MOST} are accepted")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// A name or a value is too long.
    #[error("attribute {name:?}: its {part} has {bytes} bytes, at most {TEXT_MOST} are accepted")]
    TooLong {
        /// The attribute, shortened.
        name: String,
        /// `name` or `value`.
        part: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A name is the library's.
    #[error("an attribute is named {name:?}: names that begin with {RESERVED} are the library's")]
    Reserved {
        /// The name, shortened.
        name: String,
    },
    /// A name is empty.
    #[error("an attribute with value {value:?} has no name: a name has at least one character")]
    NoName {
        /// The attribute's value, shortened.
        value: String,
    },
}

impl Attributes {
    /// No attributes. As a question: every resource.
    pub fn new() -> Self {
        Self::default()
    }

    /// These, and `name` with `value` in place of what it had.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// The value of `name`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether all of `others` are among these.
    pub fn include(&self, others: &Self) -> bool {
        others.0.iter().all(|(name, value)| self.0.get(name) == Some(value))
    }

    /// As what is sought, in sentences.
    pub fn wanted(&self) -> String {
        if self.0.is_empty() { "any attributes".into() } else { self.to_string() }
    }

    /// Checks the limits that keep directories small.
    ///
    /// # Errors
    /// Names the first attribute that breaks one.
    pub fn check(&self) -> Result<(), InvalidAttributes> {
        if self.0.len() > ATTRIBUTES_MOST {
            return Err(InvalidAttributes::TooMany { count: self.0.len() });
        }
        for (name, value) in &self.0 {
            if name.is_empty() {
                return Err(InvalidAttributes::NoName { value: shortened(value) });
            }
            for (part, text) in [("name", name), ("value", value)] {
                if text.len() > TEXT_MOST {
                    let bytes = text.len();
                    return Err(InvalidAttributes::TooLong { name: shortened(name), part, bytes });
                }
            }
        }
        Ok(())
    }

    /// Makes sure that none is the library's.
    pub(crate) fn expect_own(&self) -> Result<(), InvalidAttributes> {
        let reserved = self.0.keys().find(|name| name.starts_with(RESERVED));
        reserved.map_or(Ok(()), |name| Err(InvalidAttributes::Reserved { name: shortened(name) }))
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name}={value}", if position == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// [`Attributes`] from names and values. Names that are written there are different ones, as the compiler makes sure; of what
/// expressions say, the last counts, as with [`Attributes::with`].
///
/// ```compile_fail
/// keeptime_fabric::attrs! { "name" => "dhash", "name" => "other" };
/// ```
#[macro_export]
macro_rules! attrs {
    ($($name:literal => $value:expr),* $(,)?) => {{
        const { $crate::attributes::expect_different(&[$($name),*]) };
        $crate::Attributes::new()$(.with($name, $value))*
    }};
    ($($name:expr => $value:expr),* $(,)?) => {
        $crate::Attributes::new()$(.with($name, $value))*
    };
}

/// Makes sure that there are no two alike.
///
/// # Panics
/// If there are.
#[doc(hidden)]
pub const fn expect_different(names: &[&str]) {
    let mut at = 0;
    while at < names.len() {
        let mut before = 0;
        while before < at {
            assert!(!are_alike(names[before], names[at]), "an attribute is there twice");
            before += 1;
        }
        at += 1;
    }
}

/// What `==` says, where the compiler can ask it.
const fn are_alike(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const _: () = expect_different(&["", "a", "ab", "b", "aa"]);

    #[test]
    #[should_panic(expected = "twice")]
    fn a_name_that_is_there_twice_is_found() {
        expect_different(&["a", "b", "a"]);
    }

    #[test]
    fn what_is_too_much_is_named() {
        let many = (0..33).fold(Attributes::new(), |all, n| all.with(n.to_string(), ""));
        assert_eq!(many.check(), Err(InvalidAttributes::TooMany { count: 33 }));
        let long = attrs! { "note" => "x".repeat(257) };
        let error = long.check().unwrap_err().to_string();
        assert_eq!(error, "attribute \"note\": its value has 257 bytes, at most 256 are accepted");
        assert!(attrs! { "" => "x" }.check().is_err());
        let reserved = attrs! { "a" => "1", "keeptime.x" => "y" }.expect_own().unwrap_err();
        assert!(reserved.to_string().contains("named \"keeptime.x\""), "{reserved}");
        assert_eq!(attrs! { "keeptime" => "1", "region" => "y" }.expect_own(), Ok(()));
        assert_eq!(attrs! { "a" => "1", "b" => "" }.check(), Ok(()));
    }
}
