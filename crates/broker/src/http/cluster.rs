//! What there is, and what of it is reserved when.

use super::{Rejection, Shared, json};
use crate::core::now;
use crate::wire::{
    At, Level, Link, Links, Node, Nodes, ReservationLine, ResourceLine, ResourceName, Timeline,
    Window,
};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use keeptime_calendar::{ResourceId, Span};
use keeptime_engine::Engine;
use keeptime_engine::cluster::Resource;
use keeptime_model::Invalid;
use keeptime_model::topology::{LinkDirection, NodeIndex};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, WallTime};

/// Levels and reservations of one timeline: what a picture can show.
const LINES_MAX: usize = 10_000;

pub async fn nodes(
    State(shared): State<Shared>,
    query: Result<Query<At>, QueryRejection>,
) -> Result<Response, Rejection> {
    let at = query?.0.at_unix_nanos.unwrap_or_else(now);
    let nodes = shared.core.read(move |engine| all_nodes(engine, at)).await?;
    let mut nodes = Nodes { at_unix_nanos: at, nodes };
    for (index, node) in (0..).zip(&mut nodes.nodes) {
        let told = shared.hub.told(NodeIndex(index));
        (node.processor, node.not_enforced) = (told.processor, told.not_enforced);
    }
    Ok(json(StatusCode::OK, &nodes))
}

pub async fn links(
    State(shared): State<Shared>,
    query: Result<Query<At>, QueryRejection>,
) -> Result<Response, Rejection> {
    let at = query?.0.at_unix_nanos.unwrap_or_else(now);
    let links = shared.core.read(move |engine| all_links(engine, at)).await?;
    Ok(json(StatusCode::OK, &Links { at_unix_nanos: at, links }))
}

pub async fn timeline(
    State(shared): State<Shared>,
    query: Result<Query<Window>, QueryRejection>,
) -> Result<Response, Rejection> {
    let Query(window) = query?;
    let from = window.from_unix_nanos.unwrap_or_else(now);
    let to = window.to_unix_nanos;
    if to <= from {
        let expected = format!("more than {}, where the window starts", from.unix_nanos());
        return Err(Invalid::new("to", to.unix_nanos(), expected).into());
    }
    let span = Span::new(from, to)?;
    let timeline = shared.core.read(move |engine| draw(engine, span, from, to)).await?;
    Ok(json(StatusCode::OK, &timeline?))
}

fn all_nodes(engine: &Engine, at: WallTime) -> Vec<Node> {
    let node = |index: NodeIndex| {
        let cpu = amounts(engine, Resource::Cpu(index), at);
        let read = amounts(engine, Resource::DiskRead(index), at);
        let write = amounts(engine, Resource::DiskWrite(index), at);
        let ppm = |amount: u64| CpuPpm::new(u32::try_from(amount).unwrap_or(u32::MAX));
        Node {
            name: engine.cluster().name(index).clone(),
            address: engine.cluster().topology().node(index).address,
            processor: None,
            connected: engine.is_connected(index),
            heard_unix_nanos: engine.heard_at(index),
            cpu_ppm: ppm(cpu.there_is),
            cpu_reserved_ppm: ppm(cpu.reserved),
            disk_read_bytes_per_second: BytesPerSecond::new(read.there_is),
            disk_read_reserved_bytes_per_second: BytesPerSecond::new(read.reserved),
            disk_write_bytes_per_second: BytesPerSecond::new(write.there_is),
            disk_write_reserved_bytes_per_second: BytesPerSecond::new(write.reserved),
            told: engine.told(index).map(|(handle, ..)| handle).collect(),
            not_enforced: Vec::new(),
        }
    };
    engine.cluster().topology().node_indices().map(node).collect()
}

fn all_links(engine: &Engine, at: WallTime) -> Vec<Link> {
    let topology = engine.cluster().topology();
    let link = |direction: LinkDirection| {
        let amounts = amounts(engine, Resource::Link(direction), at);
        Link {
            link: topology.direction_name(direction),
            bits_per_second: topology.rate(direction),
            reservable_bits_per_second: BitsPerSecond::new(amounts.there_is),
            reserved_bits_per_second: BitsPerSecond::new(amounts.reserved),
        }
    };
    (0..topology.direction_count() as u32).map(LinkDirection).map(link).collect()
}

struct Amounts {
    there_is: u64,
    reserved: u64,
}

fn amounts(engine: &Engine, resource: Resource, at: WallTime) -> Amounts {
    let table = engine.calendar().table(engine.cluster().table(resource));
    let amounts = table.map(|table| (table.capacity(), table.used_at(at)));
    let (there_is, reserved) = amounts.unwrap_or_default();
    Amounts { there_is, reserved }
}

fn draw(
    engine: &Engine,
    span: Span,
    from_unix_nanos: WallTime,
    to_unix_nanos: WallTime,
) -> Result<Timeline, Invalid> {
    let mut room = LINES_MAX;
    let mut take = |count: usize| match room.checked_sub(count) {
        Some(left) => {
            room = left;
            Ok(())
        }
        None => {
            let expected = format!("a window with at most {LINES_MAX} changes and reservations");
            Err(Invalid::new("to", to_unix_nanos.unix_nanos(), expected))
        }
    };
    let mut resources = Vec::new();
    for id in (0..).map(ResourceId) {
        // Users' own tables come behind those of the cluster.
        let Some(resource) = engine.cluster().resource(id) else { break };
        let Some(table) = engine.calendar().table(id) else { break };
        if table.most_used(span) == 0 {
            continue;
        }
        let level = |level: keeptime_calendar::table::Level| Level {
            from_unix_nanos: level.span.from(),
            to_unix_nanos: level.span.to().unwrap_or(to_unix_nanos),
            reserved: level.used,
        };
        let levels: Vec<_> = table.profile(span).take(LINES_MAX + 1).map(level).collect();
        take(levels.len())?;
        let capacity = table.capacity();
        resources.push(ResourceLine { resource: name(engine, resource), capacity, levels });
    }
    let mut reservations = Vec::new();
    for reservation in engine.book().live_reservations() {
        let ends = reservation.until_unix_nanos.is_none_or(|until| until > from_unix_nanos);
        let overlaps = reservation.from_unix_nanos < to_unix_nanos && ends;
        if let (true, Some(grant)) = (overlaps, &reservation.grant) {
            take(1)?;
            reservations.push(ReservationLine {
                handle: reservation.handle,
                owner: reservation.owner.clone(),
                state: reservation.state,
                from_unix_nanos: reservation.from_unix_nanos,
                until_unix_nanos: reservation.until_unix_nanos,
                nodes: grant.nodes.clone(),
            });
        }
    }
    Ok(Timeline { from_unix_nanos, to_unix_nanos, resources, reservations })
}

fn name(engine: &Engine, resource: Resource) -> ResourceName {
    let cluster = engine.cluster();
    match resource {
        Resource::Link(direction) => {
            ResourceName::Link(cluster.topology().direction_name(direction))
        }
        Resource::Cpu(node) => ResourceName::Cpu(cluster.name(node).clone()),
        Resource::DiskRead(node) => ResourceName::DiskRead(cluster.name(node).clone()),
        Resource::DiskWrite(node) => ResourceName::DiskWrite(cluster.name(node).clone()),
    }
}
