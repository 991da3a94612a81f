//! `keeptime fabric`: what there is in the fabric, and how fast it carries messages.

use super::{Ending, print_json};
use crate::arguments::{
    Attribute, Carrier, FabricBenchArguments, FabricCommand, FabricFindArguments,
    FabricListArguments, FabricPingArguments, FabricPlace,
};
use anyhow::{Context as _, Result, bail};
use keeptime_fabric::echo::{self, Probe, ProbeError};
use keeptime_fabric::{
    Attributes, Callers, Config, Context, DAEMON_VARIABLE, FindError, Protocol, Record,
};
use keeptime_linux::users;
use keeptime_model::Invalid;
use keeptime_model::units::Nanos;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a round of a bench sends: enough that its beginning and end do not count.
const ROUND_TRIPS: u32 = 200;
const STREAM_BYTES: usize = 4 << 20;
/// How long a round may take: at 1 Mbit/s.
const ROUND_MOST: Duration = Duration::from_secs(60);

/// A resource, as it is shown.
#[derive(Debug, Serialize)]
struct ResourceView {
    id: String,
    node: String,
    /// Whose it is, by the name that the user has on this node.
    owner: String,
    /// Whether it takes messages of programs of every user, and not of its owner's and root's alone.
    any_user: bool,
    addresses: Vec<String>,
    attributes: BTreeMap<String, String>,
}

/// How a node answered.
#[derive(Debug, Serialize)]
struct PingView {
    node: String,
    sent: u32,
    answered: u32,
    min_nanos: Option<Nanos>,
    median_nanos: Option<Nanos>,
    max_nanos: Option<Nanos>,
    /// Why it did not answer, if it did not.
    failure: Option<String>,
}

/// A figure: the median of its rounds, and half the distance of their quartiles.
#[derive(Debug, Serialize)]
struct FigureView {
    name: &'static str,
    message_bytes: usize,
    median: f64,
    spread: f64,
    unit: &'static str,
    rounds: usize,
}

/// Runs one of the commands.
///
/// # Errors
/// If there is no directory on the node, or what is asked for is wrong.
pub fn run(command: &FabricCommand) -> Result<Ending> {
    match command {
        FabricCommand::Ls(arguments) => ls(arguments),
        FabricCommand::Find(arguments) => find(arguments),
        FabricCommand::Ping(arguments) => ping(arguments),
        FabricCommand::Bench(arguments) => bench(arguments),
    }
}

fn ls(arguments: &FabricListArguments) -> Result<Ending> {
    let query = query(&arguments.attributes)?;
    let context = open(&arguments.place, Carrier::Usual)?;
    let mut records = context.find(query).all()?;
    records.sort_by(|a, b| (&a.home.node, a.id).cmp(&(&b.home.node, b.id)));
    let views: Vec<_> = records.iter().map(ResourceView::new).collect();
    if arguments.place.json {
        print_json(&views)?;
    } else if views.is_empty() {
        println!("no resource has these attributes");
    } else {
        views.iter().for_each(|view| println!("{}", view.line()));
    }
    Ok(Ending::Done)
}

fn find(arguments: &FabricFindArguments) -> Result<Ending> {
    let query = query(&arguments.attributes)?;
    let context = open(&arguments.place, Carrier::Usual)?;
    let found = context.find(query.clone()).one_of_any_within(duration(arguments.within));
    let id = match found {
        Ok(id) => id,
        Err(error @ FindError::None(_)) => {
            eprintln!("keeptime: {error}; `keeptime fabric ls` lists what there is");
            if arguments.place.json {
                print_json(&None::<ResourceView>)?;
            }
            return Ok(Ending::Refused);
        }
        Err(other) => return Err(other.into()),
    };
    if !arguments.place.json {
        println!("{id}");
        return Ok(Ending::Done);
    }
    let records = context.find(query).all()?;
    let record = records.iter().find(|record| record.id == id);
    let record = record.with_context(|| format!("{id} was there, and is gone again"))?;
    print_json(&ResourceView::new(record))?;
    Ok(Ending::Done)
}

fn ping(arguments: &FabricPingArguments) -> Result<Ending> {
    if arguments.within == Nanos::default() {
        // No answer is there at once.
        return Err(Invalid::new("within", arguments.within, "more than 0 s").into());
    }
    let context = open(&arguments.place, arguments.over)?;
    let answering = answering(&context, &arguments.nodes)?;
    let mut views = Vec::new();
    for record in &answering {
        let view = ping_one(&context, record, arguments);
        if !arguments.place.json {
            println!("{}", view.line(arguments.bytes));
        }
        views.push(view);
    }
    if arguments.place.json {
        print_json(&views)?;
    }
    let all_answer = views.iter().all(|view| view.failure.is_none());
    Ok(if all_answer { Ending::Done } else { Ending::Refused })
}

fn ping_one(context: &Context, record: &Record, arguments: &FabricPingArguments) -> PingView {
    let data = vec![0; arguments.bytes as usize];
    let (mut times, mut sent, mut failure) = (Vec::new(), 0, None);
    match Probe::new(context, record.id) {
        Ok(mut probe) => {
            while sent < arguments.count && failure.is_none() {
                sent += 1;
                match probe.round_trip(&data, duration(arguments.within)) {
                    Ok(time) => times.push(time),
                    Err(error) => failure = Some(error.to_string()),
                }
            }
        }
        Err(error) => failure = Some(error.to_string()),
    }
    // The first makes the connection; it counts only if nothing else does.
    let warm = if times.len() > 1 { &mut times[1..] } else { &mut times[..] };
    warm.sort_unstable();
    let nanos = |time: &Duration| Nanos::from(*time);
    PingView {
        node: record.home.node.clone(),
        sent,
        min_nanos: warm.first().map(nanos),
        median_nanos: warm.get(warm.len() / 2).map(nanos),
        max_nanos: warm.last().map(nanos),
        answered: times.len() as u32,
        failure,
    }
}

fn bench(arguments: &FabricBenchArguments) -> Result<Ending> {
    let context = open(&arguments.place, arguments.over)?;
    let answering = answering(&context, std::slice::from_ref(&arguments.node))?;
    let Some(record) = answering.first() else { bail!("node {} is gone", arguments.node) };
    let mut probe = Probe::new(&context, record.id)?;
    // The connection is made before anything is timed.
    probe.round_trip(&[], ROUND_MOST).context("the first round trip")?;
    let mut views = Vec::new();
    for bytes in [64, 8 << 10] {
        let data = vec![0; bytes];
        let samples = rounds(arguments.rounds, || round_trips(&mut probe, &data))?;
        views.push(FigureView::new("round trip", bytes, samples, "us"));
    }
    for bytes in [8 << 10, 64 << 10] {
        let data = vec![0; bytes];
        let samples = rounds(arguments.rounds, || stream(&mut probe, &data))?;
        views.push(FigureView::new("stream", bytes, samples, "Mbit/s"));
    }
    if arguments.place.json {
        print_json(&views)?;
    } else {
        views.iter().for_each(|view| println!("{}", view.line()));
    }
    Ok(Ending::Done)
}

/// The time of one round trip in microseconds.
fn round_trips(probe: &mut Probe, data: &[u8]) -> Result<f64, ProbeError> {
    let mut all = Duration::ZERO;
    for _ in 0..ROUND_TRIPS {
        all += probe.round_trip(data, ROUND_MOST)?;
    }
    Ok(all.as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS))
}

/// Payload that arrives in megabits a second.
fn stream(probe: &mut Probe, data: &[u8]) -> Result<f64, ProbeError> {
    let count = (STREAM_BYTES / data.len()) as u32;
    let time = probe.stream(data, count, ROUND_MOST)?;
    let bits = 8.0 * data.len() as f64 * f64::from(count);
    Ok(bits / time.as_secs_f64() / 1e6)
}

/// `count` samples; one more before them is not counted.
fn rounds(
    count: u32,
    mut round: impl FnMut() -> Result<f64, ProbeError>,
) -> Result<Vec<f64>, ProbeError> {
    round()?;
    (0..count).map(|_| round()).collect()
}

fn open(place: &FabricPlace, carrier: Carrier) -> Result<Context> {
    let mut config = Config::from_environment_but(&[DAEMON_VARIABLE])?;
    config.directory.clone_from(&place.directory);
    config.shared_memory = carrier == Carrier::Usual;
    config.between_nodes = match carrier {
        Carrier::Usual | Carrier::Tcp => Protocol::Tcp,
        Carrier::Udp => Protocol::Udp,
        Carrier::Libfabric => Protocol::Libfabric,
        Carrier::Ucx => Protocol::Ucx,
    };
    Ok(Context::open(config)?)
}

fn query(attributes: &[Attribute]) -> Result<Attributes> {
    let mut query = Attributes::new();
    for Attribute { name, value } in attributes {
        if query.value(name).is_some_and(|other| other != value) {
            return Err(Invalid::new(name, value, "one value for each name").into());
        }
        query = query.with(name, value);
    }
    Ok(query)
}

/// What answers on `nodes`, or on all if none is named, by node.
fn answering(context: &Context, nodes: &[String]) -> Result<Vec<Record>> {
    let mut records = context.find(echo::query()).all()?;
    records.sort_by(|a, b| a.home.node.cmp(&b.home.node));
    let there: Vec<_> = records.iter().map(|record| record.home.node.clone()).collect();
    if there.is_empty() {
        bail!("no daemon answers in this directory: is there a keeptime-fabricd on the nodes?");
    }
    if let Some(missing) = nodes.iter().find(|node| !there.contains(node)) {
        bail!("no daemon answers on node {missing:?}: there are {}", there.join(", "));
    }
    records.retain(|record| nodes.is_empty() || nodes.contains(&record.home.node));
    Ok(records)
}

fn duration(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos.get())
}

/// Where nobody tells its name now, the number has to do.
fn owner(user: u32) -> String {
    users::name_of(user).map_or_else(|_| format!("uid-{user}"), |name| name.to_string())
}

impl ResourceView {
    fn new(record: &Record) -> Self {
        let text = |(name, value): (&str, &str)| (name.to_string(), value.to_string());
        Self {
            id: record.id.to_string(),
            node: record.home.node.clone(),
            owner: owner(record.home.owner),
            any_user: record.home.callers == Callers::AnyUser,
            addresses: record.home.addresses.iter().map(ToString::to_string).collect(),
            attributes: record.attributes.iter().map(text).collect(),
        }
    }

    fn line(&self) -> String {
        let attributes: Vec<_> = self.attributes.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let callers = if self.any_user { "for every user" } else { "" };
        let Self { node, id, owner, .. } = self;
        format!("{node:<12} {id:<22} {owner:<12} {callers:<14} {}", attributes.join(" "))
    }
}

impl PingView {
    fn line(&self, bytes: u32) -> String {
        let mut text = format!("{}: {} of {} answered", self.node, self.answered, self.sent);
        if let (Some(min), Some(median), Some(max)) =
            (self.min_nanos, self.median_nanos, self.max_nanos)
        {
            let [min, median, max] = [min, median, max].map(Nanos::rounded);
            text.push_str(&format!("; {bytes} bytes there and back: {median} ({min} to {max})"));
        }
        if let Some(failure) = &self.failure {
            text.push_str(&format!("; {failure}"));
        }
        text
    }
}

impl FigureView {
    fn new(
        name: &'static str,
        message_bytes: usize,
        mut samples: Vec<f64>,
        unit: &'static str,
    ) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |quarter: usize| samples[(samples.len() - 1) * quarter / 4];
        let (median, spread) = (at(2), (at(3) - at(1)) / 2.0);
        Self { name, message_bytes, median, spread, unit, rounds: samples.len() }
    }

    fn line(&self) -> String {
        let Self { name, message_bytes, median, spread, unit, rounds } = self;
        let name = format!("{name} of {message_bytes} bytes");
        format!("{name:<28} {median:>10.1} {unit} ({spread:.1}, {rounds} rounds)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_and_half_the_distance_of_the_quartiles() {
        let figure = FigureView::new("stream", 64, vec![5.0, 1.0, 2.0, 9.0, 3.0], "Mbit/s");
        assert_eq!((figure.median, figure.spread, figure.rounds), (3.0, 1.5, 5));
    }

    #[test]
    fn one_name_with_two_values_is_refused() {
        let one = |value: &str| Attribute { name: "type".into(), value: value.into() };
        assert!(query(&[one("a"), one("a")]).is_ok());
        assert!(query(&[one("a"), one("b")]).unwrap_err().to_string().contains("type"));
    }
}
