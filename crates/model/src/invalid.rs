//! The one error of every parser: which field, which value, what would be accepted.

use std::fmt;
use std::ops::Range;
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Input that was refused, in the user's words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct Invalid {
    /// Where the value stood, as the user would write it (`"links[2].rate"`, `"--within"`).
    pub field: String,
    /// The value as it was given; nothing if none was.
    pub value: Option<String>,
    /// What would have been accepted.
    pub expected: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, expected } = self;
        match value {
            Some(value) => write!(f, "{field}: {value:?}{REFUSED}{expected}"),
            None => write!(f, "{field}{MISSING}{expected}"),
        }
    }
}

impl Invalid {
    /// An error about `field`, whose `value` is not one of `expected`.
    pub fn new(
        field: impl Into<String>,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self { value: Some(value.to_string()), ..Self::missing(field, expected) }
    }

    /// An error about `field`, which has to be given and was not.
    pub fn missing(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field: field.into(), value: None, expected: expected.into() }
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
        let at = error.span().and_then(|span| place_of(text, &span));
        Self::in_message(error.message(), at).within_file(&place)
    }

    /// What a parser of files says of what is `at` a place in one.
    fn in_message(message: &str, at: Option<Place>) -> Self {
        let path = at.as_ref().map(|at| at.path.clone()).unwrap_or_default();
        if let Some(invalid) = passed_on(message) {
            return match at {
                // It was named by what it is, as any quantity of its kind.
                Some(Place { path, has_fields: false }) => Self { field: path, ..invalid },
                _ if path.is_empty() => invalid,
                _ => invalid.within(&path),
            };
        }
        let (wrong, expected) = message.split_once(", expected ").unwrap_or((message, WHOLE));
        if let Some(field) = message.strip_prefix("missing field `") {
            let missing = Self::missing(field.trim_end_matches('`'), NEEDED);
            return if path.is_empty() { missing } else { missing.within(&path) };
        }
        let kind = ["invalid type: ", "invalid value: "].iter().find_map(|k| wrong.strip_prefix(k));
        match kind.filter(|_| !path.is_empty()) {
            Some(kind) => Self::new(path, value_in(kind), in_words(expected)),
            None => Self::new("", wrong, expected),
        }
    }

    fn within_file(self, place: &str) -> Self {
        let field = match self.field.as_str() {
            "" => place.to_owned(),
            field => format!("{place}, {field}"),
        };
        Self { field, ..self }
    }
}

/// An error of this kind that a parser of files has passed on as text.
fn passed_on(message: &str) -> Option<Invalid> {
    if let Some((wrong, expected)) = message.split_once(&format!("\"{REFUSED}")) {
        let (field, value) = wrong.split_once(": \"")?;
        return Some(Invalid::new(field, value, expected));
    }
    message.split_once(MISSING).map(|(field, expected)| Invalid::missing(field, expected))
}

/// Where a value stands in a file.
struct Place {
    /// As in `nodes[0].cpu`; nothing for the file as a whole.
    path: String,
    /// It is a table, or a list of such.
    has_fields: bool,
}

/// The value that stands at `span` of `text`.
fn place_of(text: &str, span: &Range<usize>) -> Option<Place> {
    let file = DeTable::parse(text).ok()?;
    in_table(file.get_ref(), "", span)
}

fn in_table(table: &DeTable<'_>, outer: &str, span: &Range<usize>) -> Option<Place> {
    let join = |key: &str| if outer.is_empty() { key.into() } else { format!("{outer}.{key}") };
    table.iter().find_map(|(key, value)| in_value(value, join(key.get_ref()), span))
}

fn in_value(value: &Spanned<DeValue<'_>>, path: String, span: &Range<usize>) -> Option<Place> {
    if value.span() == *span {
        return Some(Place { path, has_fields: has_fields(value.get_ref()) });
    }
    match value.get_ref() {
        DeValue::Table(table) => in_table(table, &path, span),
        DeValue::Array(array) => {
            let mut each = array.iter().enumerate();
            each.find_map(|(index, value)| in_value(value, format!("{path}[{index}]"), span))
        }
        _ => None,
    }
}

fn has_fields(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::Table(_) => true,
        DeValue::Array(array) => array.iter().any(|value| value.get_ref().is_table()),
        _ => false,
    }
}

/// The value alone, of what a parser calls it: ``integer `8` ``, `string "8"`, or `map`.
fn value_in(kind: &str) -> &str {
    let quoted = |mark: char| Some(kind.split_once(mark)?.1.rsplit_once(mark)?.0);
    quoted('`').or_else(|| quoted('"')).unwrap_or(kind)
}

/// What a parser expects, as people call it.
fn in_words(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list, as in [\"a\", \"b\"]",
        "a map" => "a table, as in { name = \"a\" }",
        "a string" => "a text in quotes",
        "a boolean" => "true or false",
        other => other,
    }
}

const REFUSED: &str = " is not accepted; expected ";
const MISSING: &str = " is missing; expected ";
const NEEDED: &str = "every field that has no default";
const WHOLE: &str = "every field to be there, once, in the form of TOML";

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
                "topology file, line 3, nodes[0].name: \"N 1\" is not accepted; expected ",
            ),
            (
                "name = \"t\"\nname = \"u\"\n",
                "topology file, line 2: \"duplicate key\" is not accepted; expected every field",
            ),
            (
                "nodes = []\nswitches = []\nlinks = []\n",
                "topology file, name is missing; expected every field",
            ),
            (
                "name = \"t\"\n[[nodes]]\nname = \"n1\"\ncpu = 8\n",
                "topology file, line 4, nodes[0].cpu: \"8\" is not accepted; expected a number and a unit \
                 (%, ppm), as in \"40 %\"",
            ),
            (
                "name = \"t\"\nnodes = [{ name = \"n1\" }]\n",
                "topology file, line 2, nodes[0].cpu is missing; expected every field",
            ),
            (
                "name = \"t\"\nnodes = 3\n",
                "topology file, line 2, nodes: \"3\" is not accepted; expected a list, as in [\"a\", \"b\"]",
            ),
            (
                "name = \"t\"\nnodes = [{ name = \"n1\", cpu = \"1 %\", address = \"fd00::1\" }]\n",
                "topology file, line 2, nodes[0].address: \"fd00::1\" is not accepted; expected an IPv4 address",
            ),
            (
                "name = true\nnodes = []\n",
                "topology file, line 1, name: \"true\" is not accepted; expected a text in quotes",
            ),
            (
                "name = \"t\"\nnodes = []\nlinks = [{ between = [\"a\", \"b\"], rate = 0.5 }]\n",
                "topology file, line 3, links[0].rate: \"0.5\" is not accepted; expected a number and a unit",
            ),
        ];
        for (text, expected) in cases {
            let error = Topology::from_toml(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error} should begin with {expected}");
        }
    }
}
