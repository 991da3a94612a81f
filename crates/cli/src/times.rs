//! Times as people write and read them. The clock and the time zone are arguments.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use keeptime_model::Invalid;
use keeptime_model::units::{Nanos, WallTime};

/// Reads a time: `now`, `+30min`, `14:00` (the next), `today 14:00`, `tomorrow 9:00`,
/// `2026-11-30 8:00`, or RFC 3339.
///
/// # Errors
/// If it is none of these, or out of range.
pub fn parse(text: &str, now: &Zoned) -> Result<WallTime, Invalid> {
    let refuse = || {
        let expected = "a time, as in 14:00, \"tomorrow 9:00\", \"2026-11-30 8:00\", +30min, \
                        2026-11-30T08:00:00Z or now";
        Invalid::new("time", text, expected)
    };
    let text = text.trim();
    if text == "now" {
        return wall(now.timestamp()).ok_or_else(refuse);
    }
    if let Some(span) = text.strip_prefix('+') {
        let span: Nanos = span.trim().parse().map_err(|_| refuse())?;
        return Ok(wall(now.timestamp()).ok_or_else(refuse)?.saturating_add(span));
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return wall(timestamp).ok_or_else(refuse);
    }
    let at = |date: Date, time: Time| {
        let zoned = date.to_datetime(time).to_zoned(now.time_zone().clone()).ok()?;
        wall(zoned.timestamp())
    };
    let today = now.date();
    let found = match text.split_once(' ') {
        Some((day, time)) => {
            let date = match day {
                "today" => Some(today),
                "tomorrow" => today.tomorrow().ok(),
                day => day.parse().ok(),
            };
            date.zip(clock(time.trim())).and_then(|(date, time)| at(date, time))
        }
        None => clock(text).and_then(|time| {
            let is_over = time <= now.time();
            at(if is_over { today.tomorrow().ok()? } else { today }, time)
        }),
    };
    found.ok_or_else(refuse)
}

/// Reads the time that stands in `field`, as [`parse`] does; errors name it.
///
/// # Errors
/// If it is none.
pub fn parse_field(field: &str, text: &str, now: &Zoned) -> Result<WallTime, Invalid> {
    parse(text, now).map_err(|invalid| Invalid { field: field.into(), ..invalid })
}

/// What is told of a clock time in `field` that is over today and so was read as tomorrow's.
pub fn of_tomorrow(field: &str, text: &str, now: &Zoned) -> Option<String> {
    let text = text.trim();
    let is_over = clock(text)? <= now.time();
    let time = parse(text, now).ok().filter(|_| is_over)?;
    let time = show(time, now.time_zone());
    Some(format!("{field} {text} is over today, so it is that of tomorrow: {time}"))
}

/// A time in the zone's own words: `2026-11-30 08:00:00`.
pub fn show(time: WallTime, zone: &TimeZone) -> String {
    match Timestamp::from_nanosecond(i128::from(time.unix_nanos())) {
        Ok(timestamp) => timestamp.to_zoned(zone.clone()).strftime("%F %T").to_string(),
        Err(_) => format!("{} ns after 1970", time.unix_nanos()),
    }
}

/// A time in a table, in the zone's own words, to the minute: without its date today, without its year this year, and else
/// the date alone.
pub fn show_briefly(time: WallTime, now: &Zoned) -> String {
    let Ok(timestamp) = Timestamp::from_nanosecond(i128::from(time.unix_nanos())) else {
        return "never".into();
    };
    let time = timestamp.to_zoned(now.time_zone().clone());
    let format = match () {
        () if time.date() == now.date() => "%H:%M",
        () if time.year() == now.year() => "%m-%d %H:%M",
        () => "%F",
    };
    time.strftime(format).to_string()
}

/// From and until, the second without its date where that is the same.
pub fn show_span(from: WallTime, until: Option<WallTime>, zone: &TimeZone) -> String {
    let from = show(from, zone);
    let Some(until) = until else { return format!("{from} on") };
    let until = show(until, zone);
    match (from.split_once(' '), until.split_once(' ')) {
        (Some((day, _)), Some((other, time))) if day == other => format!("{from} to {time}"),
        _ => format!("{from} to {until}"),
    }
}

/// `9:00`, `14:00` or `14:00:30`.
fn clock(text: &str) -> Option<Time> {
    let mut parts = text.split(':');
    let mut part = || parts.next().map(str::parse::<i8>);
    let (hour, minute) = (part()?.ok()?, part()?.ok()?);
    let second = part().transpose().ok()?.unwrap_or(0);
    if parts.next().is_some() {
        return None;
    }
    Time::new(hour, minute, second, 0).ok()
}

fn wall(timestamp: Timestamp) -> Option<WallTime> {
    u64::try_from(timestamp.as_nanosecond()).ok().map(WallTime::from_unix_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saturday, 21 November 2026, 12:30 in a zone one hour east of Greenwich.
    fn noon() -> Zoned {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        Date::constant(2026, 11, 21).at(12, 30, 0, 0).to_zoned(zone).unwrap()
    }

    #[test]
    fn a_table_tells_of_a_time_what_is_not_known() {
        let now = noon();
        let told = |text: &str| show_briefly(parse(text, &now).unwrap(), &now);
        assert_eq!(told("+40min"), "13:10");
        assert_eq!(told("tomorrow 9:05"), "11-22 09:05");
        assert_eq!(told("2027-01-02 9:05"), "2027-01-02");
        assert_eq!(show_briefly(WallTime::from_unix_nanos(u64::MAX), &now), "2554-07-22");
    }

    #[test]
    fn times_are_read_as_people_mean_them() {
        let now = noon();
        let cases = [
            ("now", "2026-11-21 12:30:00"),
            ("+30min", "2026-11-21 13:00:00"),
            ("14:00", "2026-11-21 14:00:00"),
            ("9:05", "2026-11-22 09:05:00"),
            ("12:30", "2026-11-22 12:30:00"),
            ("today 9:05", "2026-11-21 09:05:00"),
            ("tomorrow 9:00:30", "2026-11-22 09:00:30"),
            ("2026-12-01 8:00", "2026-12-01 08:00:00"),
            ("2026-12-01T08:00:00Z", "2026-12-01 09:00:00"),
        ];
        for (text, expected) in cases {
            let time = parse(text, &now).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(show(time, now.time_zone()), expected, "{text}");
        }
        for bad in ["", "25:00", "9", "yesterday 9:00", "+soon", "1960-01-01 0:00", "9:00:00:00"] {
            let error = parse(bad, &now).unwrap_err().to_string();
            assert!(error.contains("expected a time, as in"), "{error}");
        }
        let error = parse_field("until", "soon", &now).unwrap_err().to_string();
        assert!(error.starts_with("until: \"soon\" is not accepted"), "{error}");
    }

    // Goal: who means the half hour that is over is told that it is a day off; nobody else is told anything.
    #[test]
    fn a_clock_time_that_is_over_is_said_to_be_tomorrows() {
        let told = |text| of_tomorrow("--by", text, &noon());
        let expected = "--by 0:30 is over today, so it is that of tomorrow: 2026-11-22 00:30:00";
        assert_eq!(told(" 0:30").as_deref(), Some(expected));
        assert!(told("12:30").is_some());
        for unambiguous in ["12:31", "tomorrow 0:30", "+12h", "now", "2026-12-01 8:00", "25:00"] {
            assert_eq!(told(unambiguous), None, "{unambiguous}");
        }
    }

    /// The broker's words have times in UTC, which are made without a library.
    #[test]
    fn utc_is_what_the_library_says() {
        for seconds in (0..1 << 34).step_by(7_654_321) {
            let time = WallTime::from_unix_nanos(seconds * 1_000_000_000);
            let expected = format!("{}Z", show(time, &TimeZone::UTC).replace(' ', "T"));
            assert_eq!(time.to_string(), expected);
        }
    }

    #[test]
    fn spans_name_a_day_once() {
        let now = noon();
        let at = |text| parse(text, &now).unwrap();
        let zone = now.time_zone();
        let within = show_span(at("14:00"), Some(at("15:00")), zone);
        assert_eq!(within, "2026-11-21 14:00:00 to 15:00:00");
        let over = show_span(at("14:00"), Some(at("9:00")), zone);
        assert_eq!(over, "2026-11-21 14:00:00 to 2026-11-22 09:00:00");
        assert!(show_span(at("14:00"), None, zone).ends_with("14:00:00 on"));
    }
}
