//! The one error of every parser: which field, which value, what would be accepted.

use thiserror::Error;

/// Input that was refused, in the user's words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {value:?} is not accepted; expected {expected}")]
pub struct Invalid {
    /// Where the value stood, as the user would write it (`"links[2].rate"`, `"--within"`).
    pub field: String,
    /// The value as it was given.
    pub value: String,
    /// What would have been accepted.
    pub expected: String,
}

impl Invalid {
    /// An error about `field`, whose `value` is not one of `expected`.
    pub fn new(
        field: impl Into<String>,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), value: value.to_string(), expected: expected.into() }
    }

    /// The same error seen from the structure that holds the field.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field =
            if self.field.is_empty() { outer.into() } else { format!("{outer}.{}", self.field) };
        self
    }
}
