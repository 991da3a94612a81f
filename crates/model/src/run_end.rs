//! How a run ended that gives back what was reserved for it.

use crate::reservation::State;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU8;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RunEnd {
    /// Well.
    Done,
    /// With this exit code, of the program or of its launcher.
    ExitCode(NonZeroU8),
    /// By this signal, as above.
    Signal(NonZeroU8),
    /// It took longer than it might, and was ended.
    AtLimit,
    /// Well, but it did not tell its time, as its application says that it would.
    Untimed,
    /// It could not be started.
    NotStarted,
}

impl RunEnd {
    /// Where a reservation stands whose run ended so.
    pub fn state(self) -> State {
        match self {
            Self::Done => State::Done,
            _ => State::Failed,
        }
    }
}

impl fmt::Display for RunEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::ExitCode(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::AtLimit => f.write_str("ended at its limit"),
            Self::Untimed => f.write_str("it told no time"),
            Self::NotStarted => f.write_str("not started"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: programs can tell ends apart, and read back what is written; an exit code of 0 is no failure.
    #[test]
    fn an_end_is_told_in_one_word_or_with_its_number() {
        let three = NonZeroU8::new(3).unwrap();
        let cases = [
            (RunEnd::Done, "\"done\"", "done"),
            (RunEnd::ExitCode(three), r#"{"exit-code":3}"#, "exit code 3"),
            (RunEnd::Signal(three), r#"{"signal":3}"#, "signal 3"),
            (RunEnd::AtLimit, "\"at-limit\"", "ended at its limit"),
        ];
        for (end, json, words) in cases {
            assert_eq!(serde_json::to_string(&end).unwrap(), json);
            assert_eq!(serde_json::from_str::<RunEnd>(json).unwrap(), end);
            assert_eq!(end.to_string(), words);
            let is_done = end == RunEnd::Done;
            assert_eq!(end.state(), if is_done { State::Done } else { State::Failed });
        }
        assert!(serde_json::from_str::<RunEnd>(r#"{"exit-code":0}"#).is_err());
    }
}
