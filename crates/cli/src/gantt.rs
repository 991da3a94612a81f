//! What is reserved when, as a picture: one line for each reservation and each resource. Pure.

use crate::times;
use jiff::tz::TimeZone;
use keeptime_broker::wire::{Level, ReservationLine, ResourceLine, ResourceName, Timeline};
use keeptime_model::units::WallTime;
use std::fmt::Write;

/// Columns of the time axis in the terminal.
const COLUMNS: u64 = 60;
/// Shares of a resource, from nothing to all of it.
const SHADES: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// For the terminal.
pub fn text(timeline: &Timeline, zone: &TimeZone) -> String {
    let (from, to) = (timeline.from_unix_nanos, timeline.to_unix_nanos);
    let title = times::show_span(from, Some(to), zone);
    let mut text = format!("{title}, {} for each column\n", column_width(timeline));
    let labels = timeline.reservations.iter().map(reservation_label);
    let labels = labels.chain(timeline.resources.iter().map(resource_label));
    let width = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    let mut line = |label: String, cells: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{label:<width$} |{cells}|");
    };
    for reservation in &timeline.reservations {
        line(reservation_label(reservation), reservation_cells(timeline, reservation));
    }
    for resource in &timeline.resources {
        line(resource_label(resource), resource_cells(timeline, resource));
    }
    if timeline.reservations.is_empty() {
        text.push_str("nothing is reserved\n");
    }
    text
}

/// As an SVG picture.
///
/// # Errors
/// If the drawing library refuses.
pub fn svg(timeline: &Timeline, zone: &TimeZone) -> anyhow::Result<String> {
    use plotters::prelude::*;
    const ROW: u32 = 22;
    const WIDTH: u32 = 1_000;
    let rows = timeline.reservations.len() + timeline.resources.len();
    let (from, to) = (timeline.from_unix_nanos, timeline.to_unix_nanos);
    let length = to.saturating_since(from).as_secs_f64();
    let second = |time: WallTime| time.saturating_since(from).as_secs_f64().min(length);
    let labels: Vec<_> = timeline
        .reservations
        .iter()
        .map(reservation_label)
        .chain(timeline.resources.iter().map(resource_label))
        .collect();
    let mut text = String::new();
    {
        let size = (WIDTH, ROW * rows.max(1) as u32 + 90);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(times::show_span(from, Some(to), zone), ("sans-serif", 17))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(170)
            .build_cartesian_2d(0.0..length, 0.0..rows.max(1) as f64)?;
        let moment = |seconds: &f64| {
            let nanos = (seconds * 1e9) as u64;
            times::show(from.saturating_add(keeptime_model::units::Nanos::new(nanos)), zone)
        };
        let row_label = |row: &f64| {
            let index = (rows as f64 - row) as usize;
            labels.get(index).cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_mesh()
            .x_labels(5)
            .x_label_formatter(&moment)
            .y_labels(rows.clamp(1, 200))
            .y_label_formatter(&row_label)
            .draw()?;
        // Row 0 is at the top.
        let box_of = |row: usize, from: f64, to: f64, share: f64| {
            let bottom = (rows - 1 - row) as f64 + 0.1;
            Rectangle::new(
                [(from, bottom), (to, bottom + 0.8 * share)],
                RGBColor(0, 114, 178).filled(),
            )
        };
        let reserved = timeline.reservations.iter().enumerate().map(|(row, reservation)| {
            let until = reservation.until_unix_nanos.unwrap_or(to);
            box_of(row, second(reservation.from_unix_nanos), second(until), 1.0)
        });
        chart.draw_series(reserved)?;
        for (row, resource) in timeline.resources.iter().enumerate() {
            let row = row + timeline.reservations.len();
            let share = |level: &Level| level.reserved as f64 / resource.capacity.max(1) as f64;
            let levels = resource.levels.iter().map(|level| {
                let (from, to) = (second(level.from_unix_nanos), second(level.to_unix_nanos));
                box_of(row, from, to, share(level).min(1.0))
            });
            chart.draw_series(levels)?;
        }
        area.present()?;
    }
    Ok(text)
}

fn column_width(timeline: &Timeline) -> keeptime_model::units::Nanos {
    let length = timeline.to_unix_nanos.saturating_since(timeline.from_unix_nanos).get();
    // Whole seconds read better, and a column more or less is not seen.
    let seconds = (length / COLUMNS).div_ceil(1_000_000_000).max(1);
    keeptime_model::units::Nanos::from_secs(seconds)
}

/// The first and the last instant of a column.
fn column(timeline: &Timeline, number: u64) -> (u64, u64) {
    let from = timeline.from_unix_nanos.unix_nanos();
    let length = timeline.to_unix_nanos.unix_nanos() - from;
    let edge = |number: u64| {
        let nanos = u128::from(length) * u128::from(number) / u128::from(COLUMNS);
        from + nanos as u64
    };
    (edge(number), edge(number + 1).max(edge(number) + 1) - 1)
}

fn reservation_cells(timeline: &Timeline, reservation: &ReservationLine) -> String {
    let from = reservation.from_unix_nanos.unix_nanos();
    let until = reservation.until_unix_nanos.map_or(u64::MAX, WallTime::unix_nanos);
    let cell = |number| {
        let (first, last) = column(timeline, number);
        if from <= last && first < until { '█' } else { ' ' }
    };
    (0..COLUMNS).map(cell).collect()
}

fn resource_cells(timeline: &Timeline, resource: &ResourceLine) -> String {
    let cell = |number| {
        let (first, last) = column(timeline, number);
        let overlaps = |level: &&Level| {
            level.from_unix_nanos.unix_nanos() <= last && first < level.to_unix_nanos.unix_nanos()
        };
        let most = resource.levels.iter().filter(overlaps).map(|level| level.reserved).max();
        shade(most.unwrap_or(0), resource.capacity)
    };
    (0..COLUMNS).map(cell).collect()
}

/// Something is never shown as nothing.
fn shade(amount: u64, capacity: u64) -> char {
    let steps = SHADES.len() as u128 - 1;
    let step = (u128::from(amount) * steps).div_ceil(u128::from(capacity.max(1))).min(steps);
    SHADES[step as usize]
}

fn reservation_label(reservation: &ReservationLine) -> String {
    let nodes: Vec<_> = reservation.nodes.iter().map(|node| node.as_str()).collect();
    let nodes = match nodes.as_slice() {
        [first, _, .., last] => format!("{first}..{last}"),
        few => few.join(" "),
    };
    format!("{} {} {nodes}", reservation.handle, reservation.owner)
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
                capacity: 100,
                levels: vec![level(0, 30, 0), level(30, 45, 50), level(45, 60, 1)],
            }],
            reservations: vec![ReservationLine {
                handle: Handle::new(17),
                owner: "ada".parse().unwrap(),
                state: State::Granted,
                from_unix_nanos: at(30),
                until_unix_nanos: None,
                nodes: vec!["n1".parse().unwrap()],
            }],
        }
    }

    #[test]
    fn a_column_shows_what_is_reserved_in_it() {
        let text = text(&timeline(), &TimeZone::UTC);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "1970-01-01 00:00:00 to 00:01:00, 1 s for each column");
        assert_eq!(lines[1], format!("r17 ada n1 |{}{}|", " ".repeat(30), "█".repeat(30)));
        let expected = [" ".repeat(30), "▄".repeat(15), "▁".repeat(15)].concat();
        assert_eq!(lines[2], format!("CPU of n1  |{expected}|"));
    }

    #[test]
    fn a_picture_has_a_box_for_each_reservation_and_level() {
        let svg = svg(&timeline(), &TimeZone::UTC).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("r17 ada n1"), "{svg}");
        let empty = Timeline { resources: vec![], reservations: vec![], ..timeline() };
        assert!(self::svg(&empty, &TimeZone::UTC).is_ok());
        assert!(text(&empty, &TimeZone::UTC).contains("nothing is reserved"));
    }
}
