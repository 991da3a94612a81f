//! Spans of time as people write them: `2h30m`, and as Slurm does: `2:30:00`, `1-12:00`.

use super::{TIME_UNITS, Unit, Wrong, scale_decimal};

/// Nanoseconds. More than 584 years are too many.
pub(super) fn parse(text: &str) -> Result<u64, Wrong> {
    let text = text.trim();
    if text.contains(':') { clock(text) } else { amounts(text) }
}

/// `H:MM:SS`, `D-HH:MM` or `D-HH:MM:SS`. Two numbers alone are not read: they may be minutes and seconds, and hours and
/// minutes as well.
fn clock(text: &str) -> Result<u64, Wrong> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> = clock.split(':').map(number).collect::<Result<_, _>>()?;
    let (hours, minutes, seconds) = match parts.as_slice() {
        [hours, minutes, seconds] => (*hours, *minutes, *seconds),
        [hours, minutes] if days.is_some() => (*hours, *minutes, 0),
        _ => return Err(Wrong::Form),
    };
    if minutes >= 60 || seconds >= 60 || (days.is_some() && hours >= 24) {
        return Err(Wrong::Form);
    }
    nanos(days.unwrap_or(0), hours, 60 * minutes + seconds).ok_or(Wrong::TooGreat)
}

fn nanos(days: u64, hours: u64, seconds: u64) -> Option<u64> {
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    hours.checked_mul(3_600)?.checked_add(seconds)?.checked_mul(1_000_000_000)
}

fn number(text: &str) -> Result<u64, Wrong> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Wrong::Form);
    }
    text.parse().map_err(|_| Wrong::TooGreat)
}

/// Numbers with units, the greatest first and each once.
fn amounts(text: &str) -> Result<u64, Wrong> {
    let (mut rest, mut sum, mut above) = (text, 0u64, u64::MAX);
    loop {
        let end = rest.find(|c| !is_of_number(c)).ok_or(Wrong::Form)?;
        let (number, after) = rest.split_at(end);
        let after = after.trim_start();
        let (name, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        let factor = factor(name.trim_end()).filter(|factor| *factor < above);
        let factor = factor.ok_or(Wrong::Form)?;
        sum = sum.checked_add(scale_decimal(number, factor)?).ok_or(Wrong::TooGreat)?;
        if after.is_empty() {
            return Ok(sum);
        }
        (rest, above) = (after, factor);
    }
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

fn factor(name: &str) -> Option<u64> {
    TIME_UNITS.iter().chain([&MINUTE]).find(|unit| unit.0 == name).map(|unit| unit.1)
}

/// As it is written beside hours: `2h30m`.
const MINUTE: Unit = ("m", 60_000_000_000);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn spans_are_read_as_people_and_slurm_write_them() {
        let cases = [
            ("2h30m", 9_000),
            (" 2 h 30 min ", 9_000),
            ("1d2h3min4s", 93_784),
            ("90m", 5_400),
            ("1.5h", 5_400),
            ("1:30:00", 5_400),
            ("100:00:01", 360_001),
            ("1-00:00", 86_400),
            ("2-03:04:05", 183_845),
        ];
        for (text, seconds) in cases {
            assert_eq!(parse(text), Ok(seconds * SECOND), "{text}");
        }
        let refused = [
            "",
            "2h30",
            "30m2h",
            "2h 3h",
            "90m1min",
            "1:30",
            "1:60:00",
            "1:00:60",
            "1-24:00",
            "1-12",
            "-1:00:00",
            "+1:00:00",
            "1:-1:00",
            "1: 00:00",
            "1-00:00:00:00",
            "2 hours",
            "h",
            "1h.",
            "200000d 14000d",
            "1h 213504d",
        ];
        for text in refused {
            assert_eq!(parse(text), Err(Wrong::Form), "{text}");
        }
        let too_long = [
            "9999999999999-00:00",
            "999999999999999999:00:00",
            "99999999999999999999:00:00",
            "213504d",
            "213503d 24h",
            "9999999999999999999999999999999999999999 ns",
        ];
        for text in too_long {
            assert_eq!(parse(text), Err(Wrong::TooGreat), "{text}");
        }
    }

    proptest! {
        #[test]
        fn one_span_is_read_from_all_its_forms(days in 0u64..10_000, rest in 0u64..86_400) {
            let (hours, minutes, seconds) = (rest / 3_600, rest / 60 % 60, rest % 60);
            let expected = Ok((days * 86_400 + rest) * SECOND);
            prop_assert_eq!(parse(&format!("{days}d{hours}h{minutes}m{seconds}s")), expected);
            prop_assert_eq!(parse(&format!("{days} d {hours} h {minutes} min {seconds} s")), expected);
            prop_assert_eq!(parse(&format!("{days}-{hours:02}:{minutes:02}:{seconds:02}")), expected);
            let hours = days * 24 + hours;
            prop_assert_eq!(parse(&format!("{hours}:{minutes:02}:{seconds:02}")), expected);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9.:dhmins -]{0,20}") {
            let _ = parse(&text);
        }
    }
}
