//! `keeptime nodes`, `links` and `timeline`: what there is, and what of it is reserved when.

use super::{Ending, node, print_json};
use crate::arguments::{AtArguments, TimelineArguments};
use crate::gantt::{self, Later};
use crate::place::connect;
use crate::{brokers, files, times};
use anyhow::Result;
use jiff::Zoned;
use jiff::tz::TimeZone;
use keeptime_broker::wire::{Filter, Link, Node};
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
    let from = arguments.from.as_ref().map(|text| times::parse_field("from", text, &now));
    let from = from.transpose()?;
    let to = times::parse_field("to", &arguments.to, &now)?;
    let client = connect(&arguments.place)?;
    let timeline = client.timeline(from, to).map_err(brokers::failure)?;
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
        print!("{}", gantt::text(&timeline, later, &zone));
    }
    Ok(Ending::Done)
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
