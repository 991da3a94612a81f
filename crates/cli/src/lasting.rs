//! How long what was asked for lasts, which option says so, and what that may say at most: what a refusal tells where
//! less time would be admitted. Pure: the time is an argument.

use crate::hold::reserved_for;
use crate::times;
use jiff::tz::TimeZone;
use keeptime_model::units::{Nanos, Share, WallTime};
use serde::Serialize;

/// What says how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Nothing: it has no end.
    Nothing,
    /// `--for`.
    For,
    /// `--until`.
    Until,
    /// `--limit`.
    Limit,
    /// `--limit`, which was not given.
    LimitByDefault,
    /// `timeout` in the application's file.
    Timeout,
    /// What it had before a change.
    Before,
}

/// How long it was to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lasting {
    /// What says so.
    pub source: Source,
    /// How long that is; nothing = without an end.
    pub asked: Option<Nanos>,
    /// What a limit says is for full speed, and this a part of it.
    pub rate: Share,
}

/// How long it was to last, and may last at the most, as `--json` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ToldLasting {
    source: Source,
    /// How long it was to last.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_nanos: Option<Nanos>,
    /// What `source` may say at the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    admitted_nanos: Option<Nanos>,
}

impl Lasting {
    /// Of a reservation.
    pub fn new(source: Source, asked: Option<Nanos>) -> Self {
        Self { source, asked, rate: Share::ONE }
    }

    /// What is told with `--json` of what was to begin at `from`, and would be admitted until `end`.
    pub fn told(self, from: WallTime, end: Option<WallTime>) -> ToldLasting {
        let admitted_nanos = end.and_then(|end| self.most(from, end));
        ToldLasting { source: self.source, asked_nanos: self.asked, admitted_nanos }
    }

    /// A line on what was asked for, and one on what would be admitted instead.
    pub fn words(self, from: WallTime, end: WallTime, zone: &TimeZone) -> String {
        let shown = times::show(end, zone);
        let option = match (self.source, self.most(from, end)) {
            (Source::Limit | Source::LimitByDefault, Some(most)) => {
                format!(": --limit {}", typed(most))
            }
            (Source::Timeout, Some(most)) => {
                format!(": timeout = \"{}\" in its application file", typed(most))
            }
            (Source::Limit | Source::LimitByDefault | Source::Timeout, None) => String::new(),
            _ => format!(": --until \"{shown}\""),
        };
        format!("{}\nwould be admitted until {shown}{option}\n", self.asked_words())
    }

    fn asked_words(self) -> String {
        let Some(asked) = self.asked else {
            return "asked for without an end, since neither --for nor --until was given".into();
        };
        let (full, asked) = (words(at_full_speed(asked, self.rate)), words(asked));
        let said = match self.source {
            Source::Nothing | Source::Before => "as before".into(),
            Source::For => "by --for".into(),
            Source::Until => "by --until".into(),
            Source::Limit => format!("by --limit {full}"),
            Source::LimitByDefault => format!("since --limit was not given, which is {full} then"),
            Source::Timeout => format!("by timeout = \"{full}\" in its application file"),
        };
        match self.rate {
            Share::ONE => format!("asked for {asked}, {said}"),
            rate => {
                format!("asked for {asked}, {said} at full speed, and it is to have {rate} of that")
            }
        }
    }

    /// In whole minutes, or in whole seconds where that is little.
    fn most(self, from: WallTime, end: WallTime) -> Option<Nanos> {
        let room = end.saturating_since(from);
        let most = match self.source {
            Source::Nothing | Source::For | Source::Until | Source::Before => room,
            Source::Limit | Source::LimitByDefault | Source::Timeout => {
                let beside = reserved_for(TYPING).get();
                at_full_speed(Nanos::new(room.get().saturating_sub(beside)), self.rate)
            }
        };
        let unit = if most < FEW_MINUTES { SECOND } else { MINUTE };
        let most = most.get();
        Some(Nanos::new(most - most % unit.get())).filter(|most| *most > Nanos::default())
    }
}

/// What of a time at `rate` full speed takes.
fn at_full_speed(time: Nanos, rate: Share) -> Nanos {
    let part = u128::from(time.get()) * u128::from(rate.ppm()) / u128::from(Share::ONE.ppm());
    Nanos::new(u64::try_from(part).unwrap_or(u64::MAX))
}

/// A time as it is typed, in the greatest unit of which it is a whole number.
fn typed(time: Nanos) -> String {
    let is_whole = |(_, unit): &&(&str, Nanos)| time.get().is_multiple_of(unit.get());
    match UNITS.iter().find(is_whole) {
        Some((name, unit)) => format!("{}{name}", time.get() / unit.get()),
        None => time.to_string(),
    }
}

/// A time in whole seconds, rounded down, as people say it.
fn words(time: Nanos) -> String {
    let mut left = time.get();
    let mut part = |(name, unit): &(&str, Nanos)| {
        let count = left / unit.get();
        left %= unit.get();
        (count > 0).then(|| format!("{count} {name}"))
    };
    let parts: Vec<_> = UNITS.iter().filter_map(&mut part).collect();
    if parts.is_empty() { time.to_string() } else { parts.join(" ") }
}

const UNITS: &[(&str, Nanos)] = &[("h", Nanos::from_secs(3_600)), ("min", MINUTE), ("s", SECOND)];
/// Who reads it has to type it.
const TYPING: Nanos = MINUTE;
const SECOND: Nanos = Nanos::from_secs(1);
const MINUTE: Nanos = Nanos::from_secs(60);
const FEW_MINUTES: Nanos = Nanos::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * SECOND.get())
    }

    fn hours(hours: u64) -> Nanos {
        Nanos::from_secs(3_600 * hours)
    }

    fn told(lasting: Lasting) -> String {
        lasting.words(at(0), at(8 * 3_600), &TimeZone::UTC)
    }

    // Goal: whoever did not say how long is told what said so, and what to type.
    #[test]
    fn what_says_how_long_is_named_with_what_it_may_say() {
        let rate = Share::from_percent(30).unwrap();
        let run = |source| Lasting { rate, ..Lasting::new(source, Some(hours(80))) };
        let until = "would be admitted until 1970-01-01 08:00:00";
        let slow = "at full speed, and it is to have 30 % of that";
        // 30 % of 8 h without the minute in which it is typed and what a launch may take.
        assert_eq!(
            told(run(Source::LimitByDefault)),
            format!(
                "asked for 80 h, since --limit was not given, which is 24 h then {slow}\n{until}: --limit 143min\n"
            )
        );
        let file = told(run(Source::Timeout));
        assert!(file.contains("timeout = \"24 h\" in its application file at full"), "{file}");
        assert!(file.ends_with(": timeout = \"143min\" in its application file\n"), "{file}");
        let by_for = told(Lasting::new(Source::For, Some(hours(10))));
        let typed = ": --until \"1970-01-01 08:00:00\"";
        assert_eq!(by_for, format!("asked for 10 h, by --for\n{until}{typed}\n"));
        let open = told(Lasting::new(Source::Nothing, None));
        let long = told(Lasting::new(Source::For, Some(Nanos::from_secs(9 * 3_600 + 61))));
        assert!(long.starts_with("asked for 9 h 1 min 1 s, by"), "{long}");
        assert!(open.starts_with("asked for without an end, since neither --for"), "{open}");
    }

    #[test]
    fn what_is_told_for_programs_is_what_the_option_may_say() {
        let rate = Share::from_percent(50).unwrap();
        let run = Lasting { rate, ..Lasting::new(Source::Limit, Some(hours(2))) };
        let most = |end| run.told(at(0), end).admitted_nanos;
        assert_eq!(most(Some(at(90 + 3_600))), Some(Nanos::from_secs(1_800)));
        assert_eq!(most(Some(at(90 + 599))), Some(Nanos::from_secs(299)));
        assert_eq!((most(Some(at(90))), most(None)), (None, None));
        let reserve = Lasting::new(Source::For, Some(hours(2))).told(at(0), Some(at(3_661)));
        let expected = serde_json::json!({
            "source": "for", "asked_nanos": hours(2), "admitted_nanos": Nanos::from_secs(3_660)
        });
        assert_eq!(serde_json::to_value(reserve).unwrap(), expected);
    }
}
