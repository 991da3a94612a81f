//! `keeptime nodes`, `links` and `timeline`: what there is, and what of it is reserved when.

use super::{Ending, node, print_json};
use crate::arguments::{AtArguments, TimelineArguments};
use crate::gantt::{self, Later};
use crate::place::connect;
use crate::{brokers, files, terminal, times};
use anyhow::Result;
use jiff::Zoned;
use jiff::tz::TimeZone;
use keeptime_broker::wire::{Filter, Link, Node};
use keeptime_model::Invalid;
use keeptime_model::reservation::Handle;
use keeptime_model::units::{BytesPerSecond, WallTime};

/// Shows the nodes.
pub fn nodes(arguments: &AtArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    let nodes = client.nodes(moment(arguments)?).map_err(brokers::failure)?;
    if arguments.json {
        print_json(&nodes)?;
        return Ok(Ending::Done);
    }
    let left = node::left_on_drained(&client, &nodes.nodes)?;
    for node in &nodes.nodes {
        print!("{}{}", describe_node(node), node::describe_drained(node, &left));
    }
    Ok(Ending::Done)
}

/// Shows the links.
pub fn links(arguments: &AtArguments) -> Result<Ending> {
    let links = connect(&arguments.place)?.links(moment(arguments)?).map_err(brokers::failure)?;
    if arguments.json {
        print_json(&links)?;
    } else {
        links.links.iter().for_each(|link| println!("{}", describe_link(link)));
    }
    Ok(Ending::Done)
}

/// Shows what is reserved when.
pub fn timeline(arguments: &TimelineArguments) -> Result<Ending> {
    let now = Zoned::now();
    let (from, to) = window(arguments, &now)?;
    if let Some(path) = &arguments.svg {
        files::check_directory("svg", path)?;
    }
    let client = connect(&arguments.place)?;
    let timeline = client
        .timeline(from, to)
        .map_err(|error| as_typed(brokers::failure(error), &arguments.to))?;
    let zone = TimeZone::system();
    if let Some(path) = &arguments.svg {
        files::save(path, gantt::svg(&timeline, &zone).as_bytes())?;
        println!("written: {}", path.display());
    } else if arguments.json {
        print_json(&timeline)?;
    } else {
        let live = Filter { live: Some(true), ..Filter::default() };
        let live = client.all_reservations(live).map_err(brokers::failure)?;
        let later = Later::of(live.iter().map(AsRef::as_ref), timeline.to_unix_nanos);
        print!("{}", gantt::text(&timeline, later, &zone, terminal::width()));
    }
    Ok(Ending::Done)
}

/// From when, which is now where nothing is said, and until when.
fn window(
    arguments: &TimelineArguments,
    now: &Zoned,
) -> Result<(Option<WallTime>, WallTime), Invalid> {
    let from = arguments.from.as_ref().map(|text| times::parse_field("from", text, now));
    let (from, to) = (from.transpose()?, times::parse_field("to", &arguments.to, now)?);
    let start = from.map_or_else(|| times::parse("now", now), Ok)?;
    if to <= start {
        let expected = "a time after --from, which is now where nothing is said";
        return Err(Invalid::new("to", &arguments.to, expected));
    }
    Ok((from, to))
}

/// What is wrong with the end of a window, as it was typed.
fn as_typed(error: anyhow::Error, to: &str) -> anyhow::Error {
    match error.downcast::<Invalid>() {
        Ok(invalid) if invalid.field == "to" => {
            Invalid { value: Some(to.into()), ..invalid }.into()
        }
        Ok(other) => other.into(),
        Err(error) => error,
    }
}

fn moment(arguments: &AtArguments) -> Result<Option<WallTime>> {
    let now = Zoned::now();
    let at = arguments.at.as_ref().map(|text| times::parse_field("at", text, &now));
    Ok(at.transpose()?)
}

fn describe_node(node: &Node) -> String {
    let there = if node.connected { "" } else { ", its agent is away" };
    let mut text = format!(
        "{}: {} of {} CPU reserved{there}\n",
        node.name,
        node.cpu_reserved_ppm.rounded(),
        node.cpu_ppm.rounded()
    );
    let disk = [
        ("read", node.disk_read_reserved_bytes_per_second, node.disk_read_bytes_per_second),
        ("written", node.disk_write_reserved_bytes_per_second, node.disk_write_bytes_per_second),
    ];
    for (verb, reserved, all) in disk {
        if all != BytesPerSecond::default() {
            let (reserved, all) = (reserved.rounded(), all.rounded());
            text.push_str(&format!("  {reserved} of {all} {verb} reserved\n"));
        }
    }
    if !node.told.is_empty() {
        let told: Vec<_> = node.told.iter().map(Handle::to_string).collect();
        text.push_str(&format!("  enforces now or soon: {}\n", told.join(" ")));
    }
    for sentence in &node.not_enforced {
        text.push_str(&format!("  not enforced: {sentence}\n"));
    }
    text
}

fn describe_link(link: &Link) -> String {
    format!(
        "{:<16} {} of {} reserved; the link carries {}",
        link.link,
        link.reserved_bits_per_second.rounded(),
        link.reservable_bits_per_second.rounded(),
        link.bits_per_second.rounded()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    // Goal: whoever typed times reads of these. Method: windows that end before they start, and one of which the broker says
    // that it is too long.
    #[test]
    fn what_is_wrong_with_a_window_is_told_as_it_was_typed() {
        let now = jiff::Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        let of = |words: &[&str]| {
            let words = [&["keeptime", "timeline"], words].concat();
            let Command::Timeline(arguments) = Arguments::try_parse_from(words).unwrap().command
            else {
                panic!()
            };
            window(&arguments, &now).map_err(|invalid| invalid.to_string())
        };
        let hours = |count: u64| WallTime::from_unix_nanos(count * 3_600_000_000_000);
        assert_eq!(of(&["--to", "+1h"]), Ok((None, hours(1))));
        assert_eq!(of(&["--from", "+1h", "--to", "+2h"]), Ok((Some(hours(1)), hours(2))));
        let told =
            "is not accepted; expected a time after --from, which is now where nothing is said";
        assert_eq!(of(&["--from", "+2h", "--to", "+1h"]), Err(format!("to: \"+1h\" {told}")));
        assert_eq!(of(&["--to", "now"]), Err(format!("to: \"now\" {told}")));
        let long = Invalid::new("to", 1_796_063_342_068_726_086_u64, "a shorter window").into();
        let told = "to: \"+9d\" is not accepted; expected a shorter window";
        assert_eq!(as_typed(long, "+9d").to_string(), told);
    }
}
