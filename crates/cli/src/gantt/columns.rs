//! The time axis in the terminal: columns of a round span that begin at round times of the zone, and
//! ticks below them. Pure.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use keeptime_model::units::{Nanos, WallTime};

/// From one time to another, in columns.
#[derive(Debug, Clone)]
pub struct Columns<'a> {
    /// Where the first one begins: not after the timeline does.
    start: u64,
    /// What each of them spans.
    pub span: Nanos,
    /// How many there are.
    pub count: u64,
    room: Option<usize>,
    zone: &'a TimeZone,
}

impl<'a> Columns<'a> {
    /// As few as there can be, of the shortest round span that leaves them few enough for `room`.
    pub fn new(from: WallTime, to: WallTime, zone: &'a TimeZone, room: Option<usize>) -> Self {
        let room = room.map(|room| room.max(COUNT_LEAST));
        let most = room.map_or(COUNT_MAX, |room| COUNT_MAX.min(room as u64));
        let in_columns = |span: u64| {
            // By the zone's clock, so that days begin with a column.
            let start = from.unix_nanos().saturating_sub(clock(from.unix_nanos(), zone) % span);
            let count = to.unix_nanos().saturating_sub(start).div_ceil(span).max(1);
            Self { start, span: Nanos::new(span), count, room, zone }
        };
        let few = round_spans().map(in_columns).find(|columns| columns.count <= most);
        few.unwrap_or_else(|| in_columns(WEEK << DOUBLINGS))
    }

    /// The first and the last instant of a column.
    pub fn bounds(&self, number: u64) -> (u64, u64) {
        let first = self.start.saturating_add(number.saturating_mul(self.span.get()));
        (first, first.saturating_add(self.span.get() - 1))
    }

    /// A mark with its time where a round number of columns begins; each has room, or the mark stands alone.
    pub fn ticks(&self) -> String {
        let wide = self.span.get().saturating_mul(TICK_COLUMNS);
        let Some(step) = round_spans().find(|step| *step >= wide) else { return String::new() };
        let format = match step {
            ..MINUTE => "|%T",
            MINUTE..DAY => "|%H:%M",
            DAY..MONTH => "|%m-%d",
            _ => "|%F",
        };
        let mut line = String::new();
        for number in 0..self.count {
            let (first, _) = self.bounds(number);
            let is_round = clock(first, self.zone) % step < self.span.get();
            if !is_round || line.len() as u64 > number {
                continue;
            }
            let time = at(first).to_zoned(self.zone.clone()).strftime(format).to_string();
            let has_room = self.room.is_none_or(|room| number as usize + time.len() <= room);
            let (blank, text) = (number as usize - line.len(), if has_room { &time } else { "|" });
            line.push_str(&format!("{:blank$}{text}", ""));
        }
        line
    }
}

/// Spans that clocks and calendars are divided by, the shortest first.
fn round_spans() -> impl Iterator<Item = u64> {
    let of_clock = [1, 2, 5, 10, 15, 30];
    let of_day = [1, 2, 3, 6, 12];
    let in_days = (0..=DOUBLINGS).map(|power| WEEK << power);
    let seconds = of_clock.map(|count| count * SECOND);
    let minutes = of_clock.map(|count| count * MINUTE);
    let hours = of_day.map(|count| count * HOUR);
    seconds.into_iter().chain(minutes).chain(hours).chain([DAY, 2 * DAY]).chain(in_days)
}

/// What the zone's clock and calendar show, in nanoseconds since their own 1970 began.
fn clock(nanos: u64, zone: &TimeZone) -> u64 {
    let offset = SignedDuration::from_secs(zone.to_offset(at(nanos)).seconds().into());
    nanos.saturating_add_signed(offset.as_nanos() as i64)
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::MAX)
}

/// Beside labels of nodes and links they fit on a terminal: an hour of minutes, and one more where it begins within one.
const COUNT_MAX: u64 = 61;
/// With fewer columns there may be no tick.
const COUNT_LEAST: usize = 2 * TICK_COLUMNS as usize;
/// From one tick to the next at least: a date with its mark.
const TICK_COLUMNS: u64 = 11;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;
const MONTH: u64 = 4 * WEEK;
/// Of weeks: two of the longest span are all the time that there is.
const DOUBLINGS: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn instant(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * SECOND)
    }

    // Goal: a time is read from the axis without arithmetic. Method: a day from an odd minute on, in a zone that is no whole
    // number of half hours from Greenwich.
    #[test]
    fn columns_begin_at_round_times_of_the_zone() {
        let zone = TimeZone::fixed(jiff::tz::Offset::from_seconds(20_700).unwrap());
        // 09:22:30 there, on 11 January.
        let from = 10 * 86_400 + 3_600 * 3 + 37 * 60 + 30;
        let day = Columns::new(instant(from), instant(from + 86_400), &zone, None);
        assert_eq!((day.span.rounded().to_string().as_str(), day.count), ("30 min", 49));
        assert_eq!(day.bounds(0).0, (from - 22 * 60 - 30) * SECOND, "09:00 there");
        assert_eq!(day.bounds(1).0, day.bounds(0).1 + 1);
        let expected = "      |12:00      |18:00      |00:00      |06:00";
        assert_eq!(day.ticks(), expected);
        let minute = Columns::new(instant(from), instant(from + 60), &zone, None);
        assert_eq!((minute.span, minute.count), (Nanos::from_secs(1), 60));
        assert!(minute.ticks().starts_with("|09:22:30      |09:22:45 "), "{}", minute.ticks());
        let month = Columns::new(instant(from), instant(from + 30 * 86_400), &zone, None);
        assert_eq!(month.span, Nanos::from_secs(12 * 3_600));
        assert!(month.ticks().contains("|01-15        |01-22 "), "{}", month.ticks());
    }

    // Goal: nothing that is reserved is left out at either end. Method: lengths of all magnitudes from several times on, in
    // several zones.
    #[test]
    fn all_of_the_time_is_in_some_column() {
        for east in [-43_200, -1, 0, 20_700, 43_200] {
            let zone = TimeZone::fixed(jiff::tz::Offset::from_seconds(east).unwrap());
            for (from, power) in
                (0..4).flat_map(|n| (0..62).map(move |p| (n * 987_654_321_987_654, p)))
            {
                let (first, length) = (WallTime::from_unix_nanos(from), 1u64 << power);
                let to = WallTime::from_unix_nanos(from + length);
                let room = (power % 3 > 0).then_some(power as usize);
                let columns = Columns::new(first, to, &zone, room);
                let most = room.map_or(usize::MAX, |room| COUNT_LEAST.max(room));
                let count_max = COUNT_MAX.min(most as u64);
                assert!((1..=count_max).contains(&columns.count), "{columns:?} in {room:?}");
                let ((begins, _), (_, ends)) =
                    (columns.bounds(0), columns.bounds(columns.count - 1));
                assert!(begins <= from && from < begins + columns.span.get());
                assert!(from + length - 1 <= ends, "{from} and {length}");
                let ticks = columns.ticks();
                assert!(columns.count < 2 * TICK_COLUMNS || ticks.contains('|'), "{columns:?}");
                assert!(ticks.len() <= most, "{columns:?}: {ticks}");
            }
        }
    }
}
