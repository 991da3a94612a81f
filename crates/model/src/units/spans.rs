//! Spans of time as people write them: `2h30m`, and as Slurm does: `2:30:00`, `1-12:00`.

use super::{TIME_UNITS, Unit, scale_decimal};

/// Nanoseconds; nothing if it is none of these, or longer than 584 years.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.contains(':') { clock(text) } else { amounts(text) }
}

/// `H:MM:SS`, `D-HH:MM` or `D-HH:MM:SS`. Two numbers alone are not read: they may be minutes and seconds, and hours and
/// minutes as well.
fn clock(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> = clock.split(':').map(number).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts.as_slice() {
        [hours, minutes, seconds] => (*hours, *minutes, *seconds),
        [hours, minutes] if days.is_some() => (*hours, *minutes, 0),
        _ => return None,
    };
    if minutes >= 60 || seconds >= 60 || (days.is_some() && hours >= 24) {
        return None;
    }
    let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?;
    let seconds = hours.checked_mul(3_600)?.checked_add(minutes * 60 + seconds)?;
    seconds.checked_mul(1_000_000_000)
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Numbers with units, the greatest first and each once.
fn amounts(text: &str) -> Option<u64> {
    let (mut rest, mut sum, mut above) = (text, 0u64, u64::MAX);
    loop {
        let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c))?);
        let after = after.trim_start();
        let (name, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        let factor = factor(name.trim_end()).filter(|factor| *factor < above)?;
        sum = sum.checked_add(scale_decimal(number, factor)?)?;
        if after.is_empty() {
            return Some(sum);
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
            assert_eq!(parse(text), Some(seconds * SECOND), "{text}");
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
            "9999999999999-00:00",
            "999999999999999999:00:00",
            "213504d",
            "200000d 14000d",
        ];
        for text in refused {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn one_span_is_read_from_all_its_forms(days in 0u64..10_000, rest in 0u64..86_400) {
            let (hours, minutes, seconds) = (rest / 3_600, rest / 60 % 60, rest % 60);
            let expected = Some((days * 86_400 + rest) * SECOND);
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
