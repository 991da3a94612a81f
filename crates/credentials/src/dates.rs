//! Times as they stand in files and messages: UTC, to the second (RFC 3339). The clock is an
//! argument, but for [`now`].

use jiff::Timestamp;
use keeptime_model::units::{Nanos, WallTime};
use std::time::SystemTime;

const SECOND: u64 = 1_000_000_000;
/// Units in which a long time is told, greatest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];

/// Now, as this machine's clock tells it. For shells.
pub fn now() -> WallTime {
    SystemTime::now().into()
}

/// So many seconds after 1970; before that is 1970.
pub fn from_unix_seconds(seconds: i64) -> WallTime {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    WallTime::from_unix_nanos(seconds.saturating_mul(SECOND))
}

/// Whole seconds after 1970.
pub fn unix_seconds(time: WallTime) -> u64 {
    time.unix_nanos() / SECOND
}

/// As in `2026-11-21T14:00:00Z`.
pub fn show(time: WallTime) -> String {
    let seconds = i64::try_from(unix_seconds(time)).unwrap_or(i64::MAX);
    match Timestamp::from_second(seconds) {
        Ok(timestamp) => timestamp.to_string(),
        Err(_) => format!("{seconds} s after 1970"),
    }
}

/// Reads what [`show`] writes, or the same with an offset from UTC.
pub fn parse(text: &str) -> Option<WallTime> {
    let timestamp: Timestamp = text.trim().parse().ok()?;
    let seconds = u64::try_from(timestamp.as_second()).ok()?;
    Some(WallTime::from_unix_nanos(seconds.checked_mul(SECOND)?))
}

/// About how long that is, in whole units: `3 d`, `5 h`.
pub fn about(span: Nanos) -> String {
    let seconds = span.get() / SECOND;
    let unit = UNITS.into_iter().find(|(_, size)| seconds >= 2 * size).unwrap_or(UNITS[3]);
    format!("{} {}", seconds / unit.1, unit.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_with_any_offset_and_spans_are_short() {
        let noon = parse("2026-11-21T12:00:00Z").unwrap();
        assert_eq!(parse("2026-11-21T13:00:00+01:00"), Some(noon));
        assert_eq!(parse("noon"), None);
        assert_eq!(parse("1969-12-31T23:59:59Z"), None);
        let spans =
            [(0, "0 s"), (119, "119 s"), (7_199, "119 min"), (86_400, "24 h"), (400_000, "4 d")];
        for (seconds, words) in spans {
            assert_eq!(about(Nanos::from_secs(seconds)), words);
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(seconds in 0u64..10_000_000_000) {
            let time = WallTime::from_unix_nanos(seconds * SECOND);
            prop_assert_eq!(parse(&show(time)), Some(time));
        }
    }
}
