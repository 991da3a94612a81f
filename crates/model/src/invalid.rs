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

    /// What is wrong in `text`, a file of the kind `what`, with its line where that is known. Values come from the parser's
    /// message alone, since the line itself may hold a secret.
    pub fn in_toml(what: &str, text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start));
        // What is wrong with the file as a whole is told of its beginning, which says nothing.
        let place = match before.filter(|before| !before.is_empty()) {
            Some(before) => format!("{what}, line {}", 1 + before.matches('\n').count()),
            None => what.into(),
        };
        let message = error.message();
        if let Some((field, value, expected)) = passed_on(message) {
            return Self::new(format!("{place}, {field}"), value, expected);
        }
        let unsaid = (message, "every field to be there, once, in the form of TOML");
        let (wrong, expected) = message.split_once(", expected ").unwrap_or(unsaid);
        Self::new(place, wrong, expected)
    }
}

/// Field, value and what is expected, of an error of this kind that a parser of files has passed on as text.
fn passed_on(message: &str) -> Option<(&str, &str, &str)> {
    let (wrong, expected) = message.split_once("\" is not accepted; expected ")?;
    let (field, value) = wrong.split_once(": \"")?;
    Some((field, value, expected))
}

#[cfg(test)]
mod tests {
    use crate::topology::Topology;

    // Goal: whoever wrote a file finds the place. Method: a fault of each kind.
    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_line() {
        let cases = [
            (
                "name = \"t\"\ncolour = 1\n",
                "topology file, line 2: \"unknown field `colour`\" is not accepted; expected one of `name`",
            ),
            (
                "name = \"t\"\nnodes = [\n{ name = \"N 1\", cpu = \"1 %\" },\n]\n",
                "topology file, line 3, name: \"N 1\" is not accepted; expected ",
            ),
            (
                "name = \"t\"\nname = \"u\"\n",
                "topology file, line 2: \"duplicate key\" is not accepted; expected every field",
            ),
            (
                "nodes = []\nswitches = []\nlinks = []\n",
                "topology file: \"missing field `name`\" is not accepted; expected every field",
            ),
        ];
        for (text, expected) in cases {
            let error = Topology::from_toml(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error} should begin with {expected}");
        }
    }
}
