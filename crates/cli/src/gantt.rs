//! What is reserved when, as a picture: one line for each reservation and each resource. Pure.

mod columns;

use crate::shades::shade;
use crate::times;
use columns::Columns;
use jiff::tz::TimeZone;
use keeptime_broker::wire::{Level, ReservationLine, ResourceLine, ResourceName, Timeline};
use keeptime_engine::book::Reservation;
use keeptime_model::units::{Nanos, WallTime};
use maud::html;
use std::fmt::Write;

/// What stands around the columns in the terminal: a blank, and a line at either end.
const EDGES: usize = 3;
/// Pixels: room for the labels, the time axis, the title, and each row.
const LEFT: f64 = 190.0;
const WIDTH: f64 = 900.0;
const TOP: f64 = 34.0;
const ROW: f64 = 22.0;
/// Pieces of the time axis.
const TICKS: u64 = 5;
/// Colours that people with any colour vision tell apart (Okabe and Ito).
const RESERVATION_COLOUR: &str = "#0072b2";
const RESOURCE_COLOUR: &str = "#e69f00";

/// What is reserved from the end of a timeline on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Later {
    count: usize,
    /// All of it, where that is known.
    until: WallTime,
}

impl Later {
    /// What of `reservations` begins at `to` or later.
    pub fn of<'a>(reservations: impl IntoIterator<Item = &'a Reservation>, to: WallTime) -> Self {
        let begins_later = |one: &&Reservation| one.from_unix_nanos >= to;
        let later = reservations.into_iter().filter(begins_later);
        later.fold(Self { count: 0, until: to }, |all, one| Self {
            count: all.count + 1,
            // What has no end is seen an hour long.
            until: all
                .until
                .max(one.until_unix_nanos.unwrap_or_else(|| {
                    one.from_unix_nanos.saturating_add(Nanos::from_secs(3_600))
                })),
        })
    }

    fn text(self, zone: &TimeZone) -> String {
        let until = times::show(self.until.whole_second_ceil(), zone);
        match self.count {
            0 => String::new(),
            1 => format!("1 reservation begins later: --to \"{until}\"\n"),
            count => format!("{count} reservations begin later: --to \"{until}\"\n"),
        }
    }
}

/// For the terminal: no wider than `room`, if that is any use.
pub fn text(timeline: &Timeline, later: Later, zone: &TimeZone, room: Option<usize>) -> String {
    let (from, to) = (timeline.from_unix_nanos, timeline.to_unix_nanos);
    let title = times::show_span(from, Some(to), zone);
    let labels = timeline.reservations.iter().map(reservation_label);
    let labels = labels.chain(timeline.resources.iter().map(resource_label));
    let width = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    let room = room.map(|room| room.saturating_sub(width + EDGES));
    let columns = Columns::new(from, to, zone, room);
    let mut text = format!("{title}, {} for each column\n", columns.span.rounded());
    let mut line = |label: String, cells: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{label:<width$} |{cells}|");
    };
    for reservation in &timeline.reservations {
        line(reservation_label(reservation), reservation_cells(&columns, reservation));
    }
    for resource in &timeline.resources {
        line(resource_label(resource), resource_cells(&columns, resource));
    }
    if timeline.reservations.is_empty() {
        text.push_str("nothing is reserved\n");
    }
    if width > 0 {
        let _ = writeln!(text, "{:width$}  {}", "", columns.ticks());
    }
    text + &later.text(zone)
}

/// As an SVG picture.
pub fn svg(timeline: &Timeline, zone: &TimeZone) -> String {
    let (from, to) = (timeline.from_unix_nanos, timeline.to_unix_nanos);
    let rows = timeline.reservations.len() + timeline.resources.len();
    let bottom = TOP + ROW * rows as f64;
    let resources = timeline.resources.iter().map(|resource| {
        let some = resource.levels.iter().filter(|level| level.reserved > 0);
        let bars = some.map(|level| {
            let share = level.reserved as f64 / resource.capacity.max(1) as f64;
            Bar { from: level.from_unix_nanos, to: level.to_unix_nanos, share: share.min(1.0) }
        });
        (resource_label(resource), RESOURCE_COLOUR, bars.collect())
    });
    let reservations = timeline.reservations.iter().map(|reservation| {
        let until = reservation.until_unix_nanos.unwrap_or(to);
        let bar = Bar { from: reservation.from_unix_nanos, to: until, share: 1.0 };
        (reservation_label(reservation), RESERVATION_COLOUR, vec![bar])
    });
    let rows: Vec<(String, &str, Vec<Bar>)> = reservations.chain(resources).collect();
    let picture = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(LEFT + WIDTH + 20.0) height=(bottom + 30.0)
            font-family="sans-serif" font-size="12" {
            rect width="100%" height="100%" fill="#fff" {}
            text x="10" y="20" font-size="15" { (times::show_span(from, Some(to), zone)) }
            @for (number, (label, colour, bars)) in rows.iter().enumerate() {
                @let top = TOP + ROW * number as f64;
                text x=(LEFT - 8.0) y=(top + 15.0) text-anchor="end" { (label) }
                line x1=(LEFT) x2=(LEFT + WIDTH) y1=(top + ROW) y2=(top + ROW) stroke="#eef0f2" {}
                @for bar in bars {
                    @let (x, height) = (timeline.place(bar.from), (ROW - 4.0) * bar.share);
                    rect x=(rounded(x)) y=(rounded(top + ROW - 2.0 - height))
                        width=(rounded(timeline.place(bar.to) - x)) height=(rounded(height))
                        fill=(colour) {}
                }
            }
            @for tick in 0..=TICKS {
                @let time = timeline.instant(tick, TICKS);
                @let x = rounded(timeline.place(time));
                line x1=(x) x2=(x) y1=(TOP) y2=(bottom) stroke="#9aa3ab" {}
                text x=(x) y=(bottom + 18.0) text-anchor="middle" { (times::show(time, zone)) }
            }
        }
    };
    picture.into_string()
}

/// A span of a row, so high.
struct Bar {
    from: WallTime,
    to: WallTime,
    share: f64,
}

/// A timeline as lengths.
trait Axis {
    /// The beginning of piece `number` of `pieces` equal ones.
    fn instant(&self, number: u64, pieces: u64) -> WallTime;
    /// Where a time is in the picture; what lies outside is at its edge.
    fn place(&self, time: WallTime) -> f64;
}

impl Axis for Timeline {
    fn instant(&self, number: u64, pieces: u64) -> WallTime {
        let length = self.to_unix_nanos.saturating_since(self.from_unix_nanos).get();
        let nanos = u128::from(length) * u128::from(number) / u128::from(pieces);
        self.from_unix_nanos.saturating_add(Nanos::new(nanos as u64))
    }

    fn place(&self, time: WallTime) -> f64 {
        let length = self.to_unix_nanos.saturating_since(self.from_unix_nanos).as_secs_f64();
        let since = time.saturating_since(self.from_unix_nanos).as_secs_f64();
        LEFT + WIDTH * (since / length.max(1e-9)).min(1.0)
    }
}

/// A tenth of a pixel is enough.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn reservation_cells(columns: &Columns<'_>, reservation: &ReservationLine) -> String {
    let from = reservation.from_unix_nanos.unix_nanos();
    let until = reservation.until_unix_nanos.map_or(u64::MAX, WallTime::unix_nanos);
    let cell = |number| {
        let (first, last) = columns.bounds(number);
        if from <= last && first < until { '█' } else { ' ' }
    };
    (0..columns.count).map(cell).collect()
}

fn resource_cells(columns: &Columns<'_>, resource: &ResourceLine) -> String {
    let cell = |number| {
        let (first, last) = columns.bounds(number);
        let overlaps = |level: &&Level| {
            level.from_unix_nanos.unix_nanos() <= last && first < level.to_unix_nanos.unix_nanos()
        };
        let most = resource.levels.iter().filter(overlaps).map(|level| level.reserved).max();
        shade(most.unwrap_or(0), resource.capacity)
    };
    (0..columns.count).map(cell).collect()
}

fn reservation_label(reservation: &ReservationLine) -> String {
    let nodes: Vec<_> = reservation.nodes.iter().map(|node| node.as_str()).collect();
    let nodes = match nodes.as_slice() {
        [first, _, .., last] => format!("{first}..{last}"),
        few => few.join(" "),
    };
    let name = reservation.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
    format!("{} {} {name}{nodes}", reservation.handle, reservation.owner)
}

fn resource_label(resource: &ResourceLine) -> String {
    match &resource.resource {
        ResourceName::Link(name) => format!("link {name}"),
        ResourceName::Cpu(node) => format!("CPU of {node}"),
        ResourceName::DiskRead(node) => format!("reading at {node}"),
        ResourceName::DiskWrite(node) => format!("writing at {node}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::reservation::{Handle, State};

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    fn timeline() -> Timeline {
        let level = |from, to, reserved| Level {
            from_unix_nanos: at(from),
            to_unix_nanos: at(to),
            reserved,
        };
        Timeline {
            from_unix_nanos: at(0),
            to_unix_nanos: at(60),
            resources: vec![ResourceLine {
                resource: ResourceName::Cpu("n1".parse().unwrap()),
                unit: None,
                capacity: 100,
                levels: vec![level(0, 30, 0), level(30, 45, 50), level(45, 60, 1)],
            }],
            reservations: vec![ReservationLine {
                handle: Handle::new(17),
                owner: "ada".parse().unwrap(),
                name: None,
                state: State::Granted,
                from_unix_nanos: at(30),
                until_unix_nanos: None,
                nodes: vec!["n1".parse().unwrap()],
            }],
        }
    }

    const NO_LATER: Later = Later { count: 0, until: WallTime::from_unix_nanos(0) };

    // Goal: nobody takes an empty chart for an empty book. Method: reservations before, over and after its end.
    #[test]
    fn what_begins_after_the_chart_is_counted() {
        let reservation = |from: u64, until: Option<u64>| -> Reservation {
            let mut value = serde_json::json!({
                "handle": "r1", "owner": "ada", "key": "k", "state": "granted",
                "request": { "ask": { "resources": { "nodes": { "any": 1 }, "cpu_ppm": 1 } } },
                "from_unix_nanos": at(from), "since_unix_nanos": at(0),
            });
            value["until_unix_nanos"] = serde_json::to_value(until.map(at)).unwrap();
            serde_json::from_value(value).unwrap()
        };
        let [within, over] = [reservation(30, Some(60)), reservation(59, None)];
        let [next, open] = [reservation(60, Some(90)), reservation(100, None)];
        let told = |all: &[&Reservation]| {
            let later = Later::of(all.iter().copied(), at(60));
            let text = text(&timeline(), later, &TimeZone::UTC, None);
            text.lines().nth(4).map(str::to_owned)
        };
        assert_eq!(told(&[&within, &over]), None);
        let one = "1 reservation begins later: --to \"1970-01-01 00:01:30\"";
        assert_eq!(told(&[&within, &next]).as_deref(), Some(one));
        let two = "2 reservations begin later: --to \"1970-01-01 01:01:40\"";
        assert_eq!(told(&[&open, &over, &next]).as_deref(), Some(two));
    }

    #[test]
    fn a_column_shows_what_is_reserved_in_it() {
        let text = text(&timeline(), NO_LATER, &TimeZone::UTC, None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "1970-01-01 00:00:00 to 00:01:00, 1 s for each column");
        assert_eq!(lines[1], format!("r17 ada n1 |{}{}|", " ".repeat(30), "█".repeat(30)));
        let mut named = timeline();
        named.reservations[0].name = "solver".parse().ok();
        assert!(
            self::text(&named, NO_LATER, &TimeZone::UTC, None).contains("\nr17 ada solver n1 |")
        );
        let expected = [" ".repeat(30), "▄".repeat(15), "▁".repeat(15)].concat();
        assert_eq!(lines[2], format!("CPU of n1  |{expected}|"));
        let ticks = "            |00:00:00      |00:00:15      |00:00:30      |00:00:45";
        assert_eq!(lines[3..], [ticks]);
        let in_columns = |room| self::text(&timeline(), NO_LATER, &TimeZone::UTC, Some(room));
        assert!(in_columns(42).starts_with("1970-01-01 00:00:00 to 00:01:00, 5 s for each column"));
        let narrow = in_columns(43);
        let lines: Vec<_> = narrow.lines().collect();
        assert_eq!(lines[0], "1970-01-01 00:00:00 to 00:01:00, 2 s for each column");
        assert_eq!(lines[1], format!("r17 ada n1 |{}{}|", " ".repeat(15), "█".repeat(15)));
        assert_eq!(lines[3..], ["            |00:00:00      |00:00:30"]);
    }

    #[test]
    fn a_picture_has_a_box_for_each_reservation_and_level() {
        let svg = svg(&timeline(), &TimeZone::UTC);
        assert!(svg.starts_with("<svg") && svg.contains("r17 ada n1"), "{svg}");
        let half = format!("width=\"{}\"", WIDTH / 2.0);
        assert_eq!(svg.matches(&half).count(), 1, "from the middle to the end: {svg}");
        assert_eq!(svg.matches(RESOURCE_COLOUR).count(), 2, "nothing is drawn where nothing is");
        let empty = Timeline { resources: vec![], reservations: vec![], ..timeline() };
        assert!(!self::svg(&empty, &TimeZone::UTC).contains(RESOURCE_COLOUR));
        assert!(text(&empty, NO_LATER, &TimeZone::UTC, None).contains("nothing is reserved"));
    }
}
