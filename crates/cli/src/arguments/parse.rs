//! From words to arguments, with two things told that a parser of options does not know: values that begin with a minus, which
//! it takes for options, and what is accepted where a number is wanted.

use super::Arguments;
use clap::Parser;
use clap::error::{ContextKind, ErrorKind};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::num::{ParseFloatError, ParseIntError};

impl Arguments {
    /// What the words of a command line say. No option is a digit: what nobody knows and looks like a negative number is
    /// read once more as the value of the option before it.
    ///
    /// # Errors
    /// What is wrong with them, or that help was asked for.
    pub fn of_words(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let parsed = match Self::try_parse_from(&words) {
            Err(error) if error.kind() == ErrorKind::UnknownArgument => {
                Self::try_parse_from(joined(words))
            }
            parsed => parsed,
        };
        parsed.map_err(with_what_is_accepted)
    }
}

/// `--cpu -5%` as `--cpu=-5%`, before what is the program's.
fn joined(mut words: Vec<OsString>) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let program = words.split_off(end);
    let mut all: Vec<OsString> = Vec::new();
    for word in words {
        match all.last_mut() {
            Some(option) if is_option(option) && is_negative(&word) => {
                option.push("=");
                option.push(word);
            }
            _ => all.push(word),
        }
    }
    all.extend(program);
    all
}

/// An option without its value.
fn is_option(word: &OsStr) -> bool {
    let word = word.as_encoded_bytes();
    word.starts_with(b"-") && !word.contains(&b'=')
}

fn is_negative(word: &OsStr) -> bool {
    matches!(word.as_encoded_bytes(), [b'-', b'0'..=b'9' | b'.', ..])
}

/// The standard library says of what is no number that it is none.
fn with_what_is_accepted(error: clap::Error) -> clap::Error {
    let expected = match error.source() {
        Some(wrong) if wrong.is::<ParseIntError>() => "a whole number",
        Some(wrong) if wrong.is::<ParseFloatError>() => "a number alone, as in 0.5",
        _ => return error,
    };
    let told = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (option, value) = (told(ContextKind::InvalidArg), told(ContextKind::InvalidValue));
    let message = format!(
        "invalid value '{value}' for '{option}': expected {expected}\n\n\
         For more information, try '--help'.\n"
    );
    clap::Error::raw(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Arguments, clap::Error> {
        Arguments::of_words(words.split(' ').map(OsString::from).collect())
    }

    // Goal: a value that is no value is refused by its name, with what it takes. Method: each kind of quantity and number, of
    // options and on its own.
    #[test]
    fn what_is_no_value_is_refused_by_its_option_with_what_is_accepted() {
        for (words, option, expected) in [
            ("plan solver --nodes -1", "--nodes <NODES>", "a number above 0"),
            ("plan solver -n -1", "--nodes <NODES>", "a number above 0"),
            ("plan solver --within -1s", "--within <WITHIN>", "a number and a unit"),
            ("reserve --nodes 2 --cpu -5%", "--cpu <SHARE>", "a number and a unit"),
            ("reserve --nodes 2 --for -.5min", "--for <SPAN>", "a number and a unit"),
            ("rate set r1 -5%", "<RATE>", "a number and a unit"),
            ("lab up --nodes -1", "--nodes <NODES>", "-1 is not in 0..="),
            ("profile solver --nodes x", "--nodes <NODES>", "expected a whole number"),
            ("fabric ping n1 --bytes 1KiB", "--bytes <BYTES>", "expected a whole number"),
            ("sim run --topology star:4 --load 80%", "--load <LOAD>", "expected a number alone"),
        ] {
            let error = parse(&format!("keeptime {words}")).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(expected), "{words}: {error}");
        }
    }

    // Goal: no option is left unread without a word. Method: those that go with another alone, beside what is in the way of
    // that one.
    #[test]
    fn an_option_without_what_it_goes_with_is_refused() {
        for words in [
            "run solver --within 10s --takes 5min",
            "run solver --within 10s --measure",
            "run solver --within 10s --threshold 2%",
            "run solver --by 18:00 --measure",
            "run solver --in r7 --takes 5min",
            "load http://10.0.0.1/ --rate 5 --step 2s",
            "load http://10.0.0.1/ --burst 5 --scale 2",
            "lab police --node n1 --off --depth 1kB",
            "lab police --node n1 --off --class premium",
        ] {
            assert!(parse(&format!("keeptime {words}")).is_err(), "{words}");
        }
        for words in [
            "run solver --by 18:00 --takes 5min",
            "run solver --rate 30% --measure --threshold 2%",
            "load http://10.0.0.1/ --replay counts --step 2s --scale 2",
            "lab police --node n1 --rate 1Mbit --depth 1kB --class premium",
        ] {
            assert!(parse(&format!("keeptime {words}")).is_ok(), "{words}");
        }
    }

    // Goal: a program's own options are left alone, and what is no value of an option is told as before.
    #[test]
    fn what_is_no_negative_value_stays_as_it_is() {
        assert!(parse("keeptime lab exec rr n1 nice -n -5 true").is_ok());
        let words = ["--rate", "-5%", "--", "-a", "-5"].map(OsString::from).to_vec();
        assert_eq!(joined(words), ["--rate=-5%", "--", "-a", "-5"]);
        assert_eq!(parse("keeptime list --bogus").unwrap_err().kind(), ErrorKind::UnknownArgument);
        assert!(parse("keeptime list --json -1").is_err());
    }
}
