//! What there is, what of it is reserved when, and which nodes are out of service.

use super::answers::Answers;
use super::sites::recorded;
use super::{Rejection, Shared, body};
use crate::wire::{
    At, Drain, Level, Link, Links, Node, Nodes, ReservationLine, ResourceLine, ResourceName,
    Resume, Timeline, Window,
};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use keeptime_calendar::{ResourceId, Span};
use keeptime_engine::cluster::Resource;
use keeptime_engine::{Call, Caller, Engine};
use keeptime_model::Invalid;
use keeptime_model::topology::{LinkDirection, NodeIndex};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, WallTime};

/// Levels and reservations of one timeline: what a picture can show.
const LINES_MAX: usize = 10_000;
/// Names of nodes of these reservations: some MB, while everybody waits for some milliseconds.
const NAMES_MAX: usize = 100_000;

pub async fn nodes(
    State(shared): State<Shared>,
    answers: Answers,
    query: Result<Query<At>, QueryRejection>,
) -> Result<Response, Rejection> {
    let asked = query?.0.at_unix_nanos;
    let look = move |engine: &Engine| {
        let at_unix_nanos = asked.unwrap_or(engine.now());
        Nodes { at_unix_nanos, nodes: all_nodes(engine, at_unix_nanos) }
    };
    let mut nodes = shared.core.read(look).await?;
    for (index, node) in (0..).zip(&mut nodes.nodes) {
        let told = shared.hub.told(NodeIndex(index));
        (node.processor, node.not_enforced) = (told.processor, told.not_enforced);
    }
    Ok(answers.json(StatusCode::OK, nodes).await)
}

/// Takes nodes out of service.
pub async fn drain(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Drain { nodes, reason } = body(bytes)?;
    recorded(&shared, caller, Call::Drain { nodes, reason }).await
}

/// Has nodes be had again that were drained.
pub async fn resume(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Resume { nodes } = body(bytes)?;
    recorded(&shared, caller, Call::Resume { nodes }).await
}

pub async fn links(
    State(shared): State<Shared>,
    answers: Answers,
    query: Result<Query<At>, QueryRejection>,
) -> Result<Response, Rejection> {
    let asked = query?.0.at_unix_nanos;
    let look = move |engine: &Engine| {
        let at_unix_nanos = asked.unwrap_or(engine.now());
        Links { at_unix_nanos, links: all_links(engine, at_unix_nanos) }
    };
    let links = shared.core.read(look).await?;
    Ok(answers.json(StatusCode::OK, links).await)
}

pub async fn timeline(
    State(shared): State<Shared>,
    answers: Answers,
    query: Result<Query<Window>, QueryRejection>,
) -> Result<Response, Rejection> {
    let Query(window) = query?;
    let room = Room { lines: LINES_MAX, names: NAMES_MAX };
    let timeline = shared.core.read(move |engine| seen_through(engine, &window, room)).await?;
    Ok(answers.json(StatusCode::OK, timeline?).await)
}

/// What is reserved during `window`, from now on by the engine's clock where it does not say from when.
fn seen_through(engine: &Engine, window: &Window, room: Room) -> Result<Timeline, Invalid> {
    let from = window.from_unix_nanos.unwrap_or(engine.now());
    let to = window.to_unix_nanos;
    if to <= from {
        let expected = format!("more than {}, where the window starts", from.unix_nanos());
        return Err(Invalid::new("to", to.unix_nanos(), expected));
    }
    draw(engine, Span::new(from, to)?, from, to, room)
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
            drained: engine.drained(index).cloned(),
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

/// What a timeline has room for.
struct Room {
    /// Levels and reservations.
    lines: usize,
    /// Names of their nodes.
    names: usize,
}

impl Room {
    /// Takes so much of it, if there is as much.
    fn take(&mut self, lines: usize, names: usize) -> Option<()> {
        self.lines = self.lines.checked_sub(lines)?;
        self.names = self.names.checked_sub(names)?;
        Some(())
    }
}

fn draw(
    engine: &Engine,
    span: Span,
    from_unix_nanos: WallTime,
    to_unix_nanos: WallTime,
    mut room: Room,
) -> Result<Timeline, Invalid> {
    let mut take = |lines: usize, names: usize| {
        room.take(lines, names).ok_or_else(|| {
            let expected = format!(
                "a window with at most {LINES_MAX} changes and reservations, and {NAMES_MAX} \
                 nodes of these"
            );
            Invalid::new("to", to_unix_nanos.unix_nanos(), expected)
        })
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
        take(levels.len(), 0)?;
        let capacity = table.capacity();
        let resource = name(engine, resource);
        let unit = Some(resource.unit());
        resources.push(ResourceLine { resource, unit, capacity, levels });
    }
    let mut reservations = Vec::new();
    for reservation in engine.book().live_reservations() {
        let ends = reservation.until_unix_nanos.is_none_or(|until| until > from_unix_nanos);
        let overlaps = reservation.from_unix_nanos < to_unix_nanos && ends;
        if let (true, Some(grant)) = (overlaps, &reservation.grant) {
            take(1, grant.nodes.len())?;
            reservations.push(ReservationLine {
                handle: reservation.handle,
                owner: reservation.owner.clone(),
                name: reservation.request.name.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::Still;
    use crate::http::router;
    use crate::rates::Rates;
    use axum::body::Body;
    use axum::http::Request as HttpRequest;
    use keeptime_engine::{Cluster, Input, Moment, Policy, Ticket};
    use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources};
    use keeptime_model::topology::Topology;
    use keeptime_model::units::Nanos;
    use std::sync::Arc;
    use tower::ServiceExt;

    const TOPOLOGY: &str = "name = \"pair\"\nswitches = [{ name = \"s1\" }]\n\
        [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
        [[nodes]]\nname = \"n2\"\ncpu = \"100 %\"\naddress = \"10.0.0.2\"\n\
        [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n\
        [[links]]\nbetween = [\"n2\", \"s1\"]\nrate = \"100 Mbit/s\"\n";

    /// Some CPU of both nodes, twice, in an hour: no agent is asked.
    fn reserved(now: WallTime) -> Engine {
        let cluster = Cluster::new(Topology::from_toml(TOPOLOGY).unwrap(), |rate| rate).unwrap();
        let moment = Moment { wall: now, steady: Nanos::new(0) };
        let mut engine = Engine::new(cluster, Policy::default(), moment);
        for number in 1..=2 {
            let (nodes, cpu_ppm) = (NodeChoice::Any(2), CpuPpm::from_percent(10));
            let resources = Resources { nodes, cpu_ppm, ..Resources::nothing() };
            let request = Request {
                from_unix_nanos: Some(now.saturating_add(Nanos::from_secs(3_600))),
                duration_nanos: Some(Nanos::from_secs(60)),
                ..Request::new(Ask::Resources(resources))
            };
            let call = Call::Reserve { key: format!("k{number}").parse().unwrap(), request };
            let caller = Caller { user: "ada".parse().unwrap(), operator: false };
            let (ticket, call) = (Ticket(number), Box::new(call));
            let step = engine.step(moment, Input::Call { ticket, caller, call });
            assert_eq!(step.events[0].kind(), "granted");
        }
        engine
    }

    #[tokio::test]
    async fn only_operators_take_nodes_out_of_service() {
        let Still { core, writer, hub, handle, feed, counters, .. } = Still::new();
        let engine = std::thread::spawn(move || core.run());
        let (rates, overview) = (Rates::new(1_000), Arc::default());
        let shared = Shared::new(handle.clone(), writer, hub, feed, counters, rates, overview);
        let router = router(shared);
        let asked = |path: &str, operator| {
            let caller = Caller { user: "ada".parse().unwrap(), operator };
            let body = match path {
                "/v1/nodes/drain" => r#"{"nodes": {"named": ["n1"]}, "reason": "new disk"}"#,
                _ => r#"{"nodes": "all"}"#,
            };
            let request = HttpRequest::post(path).extension(caller).body(Body::from(body)).unwrap();
            router.clone().oneshot(request)
        };
        for path in ["/v1/nodes/drain", "/v1/nodes/resume"] {
            let refused = asked(path, false).await.unwrap();
            assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{path}");
            let done = asked(path, true).await.unwrap();
            assert_eq!(done.status(), StatusCode::NO_CONTENT, "{path}");
        }
        handle.stop();
        engine.join().unwrap().unwrap();
    }

    // Goal: a timeline is no longer than is said, however many nodes each of a few reservations has. Method: one that has just
    // room, and one name less.
    #[test]
    fn a_timeline_with_too_many_nodes_is_refused() {
        let now = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
        let (engine, to) = (reserved(now), now.saturating_add(Nanos::from_secs(7_200)));
        let drawn = |lines, names| {
            draw(&engine, Span::new(now, to).unwrap(), now, to, Room { lines, names })
        };
        let whole = drawn(100, 4).unwrap();
        let told = serde_json::to_value(&whole.resources).unwrap();
        let units: Vec<_> = told.as_array().unwrap().iter().map(|line| &line["unit"]).collect();
        assert!(!units.is_empty() && units.iter().all(|unit| *unit == "ppm"), "{told}");
        assert_eq!(whole.reservations.len(), 2);
        assert_eq!(drawn(100, 3).unwrap_err().field, "to");
        assert_eq!(drawn(1, 4).unwrap_err().field, "to");
    }

    // Goal: where nobody says when, it is what the engine takes for now, also while the machine's clock shows something else.
    // Method: an engine whose time was long ago.
    #[test]
    fn now_is_when_the_engine_says() {
        let now = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
        let engine = reserved(now);
        let through = |to| {
            let window = Window { from_unix_nanos: None, to_unix_nanos: to };
            seen_through(&engine, &window, Room { lines: 100, names: 100 })
        };
        let timeline = through(now.saturating_add(Nanos::from_secs(7_200))).unwrap();
        assert_eq!((timeline.from_unix_nanos, timeline.reservations.len()), (now, 2));
        assert_eq!(through(now).unwrap_err().field, "to");
    }
}
