//! `keeptime node`: nodes are taken out of service and back; what is left on those that are drained.

use super::reservations::in_local_time;
use super::{Ending, print_json};
use crate::arguments::{DrainArguments, NodeCommand, ResumeArguments, WhichNodes};
use crate::place::connect;
use crate::{brokers, times};
use anyhow::{Result, bail};
use jiff::tz::TimeZone;
use keeptime_broker::client::{Client, ClientError};
use keeptime_broker::wire::{Filter, Node};
use keeptime_broker::words;
use keeptime_engine::book::Reservation;
use keeptime_model::drain::{Drained, NodeSet};
use keeptime_model::name::Name;
use keeptime_model::reservation::Ask;
use keeptime_model::units::WallTime;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked what is left, where that has changed just now;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// and where it has not for long: for each look the broker lists all that is reserved.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(10);
/// Reservations that are named one by one.
const LEFT_NAMED_MAX: usize = 8;

/// Nodes as they are now.
#[derive(Debug, Serialize)]
struct Seen {
    nodes: Vec<Node>,
    /// What of them is reserved, now or later.
    reservations: Vec<Arc<Reservation>>,
}

/// Runs one of the commands.
pub fn run(command: &NodeCommand) -> Result<Ending> {
    match command {
        NodeCommand::Drain(arguments) => drain(arguments),
        NodeCommand::Resume(arguments) => resume(arguments),
    }
}

fn drain(arguments: &DrainArguments) -> Result<Ending> {
    let DrainArguments { which, reason, wait, except_sites, json, place } = arguments;
    let client = connect(place)?;
    client.drain(which.set(), reason.clone()).map_err(brokers::failure)?;
    let names = names(&client, which)?;
    if !json {
        println!("{} drained: nothing new comes there", words::nodes(&names));
    }
    // Where the broker does not say that now, it is what is seen first.
    let seen = wait.then(|| nodes_of(&client, &names).ok()).flatten();
    let mut since = seen.map(|nodes| drained_since(&nodes)).unwrap_or_default();
    let mut told: Option<Vec<String>> = None;
    let mut pause = LOOK_EVERY;
    loop {
        let is_news = match look(&client, &names) {
            Ok(mut seen) => {
                if *except_sites {
                    seen.reservations.retain(|found| !is_of_site(found));
                }
                if *wait {
                    seen.check_drained(&since)?;
                    since = drained_since(&seen.nodes);
                }
                let left = seen.left();
                let is_over = !wait || left.is_empty();
                let is_news = told.as_ref() != Some(&left);
                if is_news {
                    match (*json, *wait) {
                        (true, true) => println!("{}", serde_json::to_string(&seen)?),
                        (true, false) => print_json(&seen)?,
                        (false, _) => println!("{}", in_words(&left)),
                    }
                    told = Some(left);
                }
                if is_over {
                    return Ok(Ending::Done);
                }
                is_news
            }
            Err(error) if *wait && may_pass(&error) => {
                eprintln!("keeptime: {error}; looking again");
                false
            }
            Err(error) => return Err(brokers::failure(error)),
        };
        pause = pause_after(pause, is_news);
        std::thread::sleep(pause);
    }
}

/// A broker that is away comes back to who waits, and what is shown to it may be renewed.
fn may_pass(error: &ClientError) -> bool {
    error.is_retryable() || error.is_about_trust()
}

/// How long nobody looks, after so long before the last look, which told news or did not.
fn pause_after(before: Duration, is_news: bool) -> Duration {
    if is_news { LOOK_EVERY } else { before.saturating_mul(2).min(LOOK_EVERY_MAX) }
}

fn resume(arguments: &ResumeArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    client.resume(arguments.which.set()).map_err(brokers::failure)?;
    let names = names(&client, &arguments.which)?;
    if arguments.json {
        print_json(&look(&client, &names).map_err(brokers::failure)?)?;
    } else {
        println!("{} in service", words::nodes(&names));
    }
    Ok(Ending::Done)
}

/// The nodes that are meant.
fn names(client: &Client, which: &WhichNodes) -> Result<BTreeSet<Name>> {
    match which.set() {
        NodeSet::Named(names) => Ok(names),
        NodeSet::All => {
            let nodes = client.nodes(None).map_err(brokers::failure)?.nodes;
            Ok(nodes.into_iter().map(|node| node.name).collect())
        }
    }
}

/// What is left is asked first: as long as these nodes are drained, nothing has come since.
fn look(client: &Client, names: &BTreeSet<Name>) -> Result<Seen, ClientError> {
    let reservations = reserved_on(client, names)?;
    Ok(Seen { nodes: nodes_of(client, names)?, reservations })
}

/// These nodes as they are now.
fn nodes_of(client: &Client, names: &BTreeSet<Name>) -> Result<Vec<Node>, ClientError> {
    let mut nodes = client.nodes(None)?.nodes;
    nodes.retain(|node| names.contains(&node.name));
    Ok(nodes)
}

/// Since when those are drained that are.
fn drained_since(nodes: &[Node]) -> BTreeMap<Name, WallTime> {
    let since = |node: &Node| Some((node.name.clone(), node.drained.as_ref()?.since_unix_nanos));
    nodes.iter().filter_map(since).collect()
}

/// What is reserved of these nodes, now or later.
fn reserved_on(
    client: &Client,
    names: &BTreeSet<Name>,
) -> Result<Vec<Arc<Reservation>>, ClientError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let node = names.first().filter(|_| names.len() == 1).cloned();
    let filter = Filter { live: Some(true), node, ..Filter::default() };
    let mut all = client.all_reservations(filter)?;
    all.retain(|found| has_one_of(found, names));
    Ok(all)
}

/// What is reserved of those that are drained, now or later.
///
/// # Errors
/// If the broker does not answer.
pub(super) fn left_on_drained(client: &Client, nodes: &[Node]) -> Result<Vec<Arc<Reservation>>> {
    let drained = nodes.iter().filter(|node| node.drained.is_some());
    let names = drained.map(|node| node.name.clone()).collect();
    reserved_on(client, &names).map_err(brokers::failure)
}

/// That a node is drained, and what of it is left, by what is reserved of such nodes; nothing of one in service.
pub(super) fn describe_drained(node: &Node, reserved: &[Arc<Reservation>]) -> String {
    let Some(Drained { by, since_unix_nanos, reason }) = &node.drained else {
        return String::new();
    };
    let (since, name) = (in_local_time(*since_unix_nanos), BTreeSet::from([node.name.clone()]));
    let left = reserved.iter().filter(|found| has_one_of(found, &name));
    let left: Vec<_> = left.map(|found| in_short(found)).collect();
    format!("  drained by {by} since {since}: {reason}\n  {}\n", in_words(&left))
}

impl Seen {
    /// In short, one by one.
    fn left(&self) -> Vec<String> {
        self.reservations.iter().map(|found| in_short(found)).collect()
    }

    /// Whoever waits until nothing is left would be told so in vain where something new may come, or may have come since it was
    /// looked before: what was resumed and drained again is drained `since` later. (Earlier, if a clock that was ahead is not
    /// any more.)
    fn check_drained(&self, since: &BTreeMap<Name, WallTime>) -> Result<()> {
        let was_resumed = |node: &&Node| match &node.drained {
            None => true,
            Some(now) => since.get(&node.name).is_some_and(|then| *then < now.since_unix_nanos),
        };
        let resumed: Vec<_> = self.nodes.iter().filter(was_resumed).collect();
        if !resumed.is_empty() {
            let names = words::nodes(resumed.iter().map(|node| &node.name));
            bail!("somebody has resumed {names} meanwhile");
        }
        Ok(())
    }
}

fn has_one_of(found: &Reservation, names: &BTreeSet<Name>) -> bool {
    found.grant.as_ref().is_some_and(|grant| grant.nodes.iter().any(|node| names.contains(node)))
}

fn is_of_site(found: &Reservation) -> bool {
    matches!(found.request.ask, Ask::SiteNode(_))
}

fn in_words(left: &[String]) -> String {
    let named = left.iter().take(LEFT_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    match left.len().saturating_sub(LEFT_NAMED_MAX) {
        0 if left.is_empty() => "nothing is reserved there".into(),
        0 => format!("still reserved there: {named}"),
        more => format!("still reserved there: {named}; and {more} more"),
    }
}

/// Whose it is, and until when.
fn in_short(found: &Reservation) -> String {
    let Reservation { handle, owner, from_unix_nanos, until_unix_nanos, .. } = found;
    match &found.request.ask {
        Ask::SiteNode(asked) => format!("{handle} of site {}", asked.site),
        Ask::Goal { .. } | Ask::Resources(_) => {
            let when = times::show_span(*from_unix_nanos, *until_unix_nanos, &TimeZone::system());
            format!("{handle} of {owner}, {when}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reservation(number: u64, node: &str, ask: serde_json::Value) -> Arc<Reservation> {
        let from = 1_767_225_600_000_000_000_u64;
        let reservation = json!({
            "handle": format!("r{number}"), "owner": "ada", "key": "k", "request": { "ask": ask },
            "state": "active", "from_unix_nanos": from, "since_unix_nanos": from,
            "grant": { "nodes": [node], "cpu_ppm": 1, "bits_per_second": 0 },
        });
        Arc::new(serde_json::from_value(reservation).unwrap())
    }

    fn job(number: u64, node: &str) -> Arc<Reservation> {
        let ask = json!({ "resources": { "nodes": { "any": 1 }, "cpu_ppm": 1 } });
        reservation(number, node, ask)
    }

    fn node(drained: serde_json::Value) -> Node {
        let node = json!({
            "name": "n1", "connected": true, "heard_unix_nanos": 0, "cpu_ppm": 1,
            "cpu_reserved_ppm": 1, "disk_read_bytes_per_second": 0,
            "disk_read_reserved_bytes_per_second": 0, "disk_write_bytes_per_second": 0,
            "disk_write_reserved_bytes_per_second": 0, "told": [], "not_enforced": [],
            "drained": drained,
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn what_is_left_on_a_drained_node_is_told_with_whose_it_is() {
        let site = json!({ "site-node": { "site": "shop", "node": "n1", "cpu_ppm": 1 } });
        let left = [job(1, "n1"), job(2, "n2"), reservation(3, "n1", site)];
        assert_eq!(describe_drained(&node(json!(null)), &left), "");
        let drained = json!({ "by": "bob", "since_unix_nanos": 0, "reason": "new disk" });
        let text = describe_drained(&node(drained.clone()), &left);
        assert!(text.starts_with("  drained by bob since 19"), "{text}");
        assert!(text.contains(": new disk\n  still reserved there: r1 of ada, 20"), "{text}");
        assert!(text.ends_with(" on; r3 of site shop\n") && !text.contains("r2"), "{text}");
        let idle = describe_drained(&node(drained), &left[1..2]);
        assert!(idle.ends_with("\n  nothing is reserved there\n"), "{idle}");
    }

    #[test]
    fn a_node_that_was_resumed_between_two_looks_is_told_also_if_it_is_drained_again() {
        let seen = |drained| Seen { nodes: vec![node(drained)], reservations: Vec::new() };
        let drained = |since: u64, reason: &str| {
            seen(json!({ "by": "bob", "since_unix_nanos": since, "reason": reason }))
        };
        let before = drained_since(&drained(5, "new disk").nodes);
        let check = |seen: &Seen| seen.check_drained(&before).map_err(|error| error.to_string());
        for same in [drained(5, "new disk"), drained(5, "new fan"), drained(4, "new disk")] {
            assert_eq!(check(&same), Ok(()));
        }
        for resumed in [seen(json!(null)), drained(6, "new disk")] {
            assert_eq!(check(&resumed), Err("somebody has resumed n1 meanwhile".into()));
        }
        assert!(drained_since(&seen(json!(null)).nodes).is_empty());
        assert!(drained(6, "new disk").check_drained(&BTreeMap::new()).is_ok());
    }

    #[test]
    fn it_is_looked_less_and_less_often_until_something_changes() {
        let seconds = [false, false, false, false, false, true, false].into_iter();
        let seconds = seconds.scan(LOOK_EVERY, |pause, is_news| {
            *pause = pause_after(*pause, is_news);
            Some(pause.as_secs())
        });
        assert_eq!(seconds.collect::<Vec<_>>(), [2, 4, 8, 10, 10, 1, 2]);
    }

    #[test]
    fn who_waits_waits_on_until_what_is_shown_is_renewed() {
        let passes = |status: u16| {
            let problem = json!({ "status": status, "title": "no", "detail": "not now" });
            may_pass(&ClientError::Problem(serde_json::from_value(problem).unwrap()))
        };
        assert_eq!([401, 429, 503, 403, 404].map(passes), [true, true, true, false, false]);
    }

    #[test]
    fn of_much_that_is_left_some_is_named() {
        let left: Vec<_> = (1..=10).map(|number| format!("r{number}")).collect();
        assert!(in_words(&left).ends_with("r7; r8; and 2 more"), "{}", in_words(&left));
        assert_eq!(in_words(&left[..2]), "still reserved there: r1; r2");
    }
}
