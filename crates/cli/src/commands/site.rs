//! `keeptime site`: web sites that share the cluster's nodes.

use super::{Ending, print_json};
use crate::arguments::{
    SiteAddArguments, SiteCommand, SiteListArguments, SiteRemoveArguments, SiteTopArguments,
};
use crate::place::connect;
use crate::shades::shade;
use crate::{brokers, terminal, times};
use anyhow::Result;
use jiff::tz::TimeZone;
use keeptime_broker::wire::{
    LoadSource, MoveView, NodeView, Overview, SECONDS_MAX, Second, SiteView,
};
use keeptime_model::name::Name;
use std::io::stdout;
use std::time::{Duration, Instant};

/// Moves below the sites: what fits on a screen.
const MOVES_SHOWN: usize = 16;
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Clears a terminal's screen.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Runs one of the commands.
pub fn run(command: &SiteCommand) -> Result<Ending> {
    match command {
        SiteCommand::Add(arguments) => add(arguments),
        SiteCommand::Remove(arguments) => remove(arguments),
        SiteCommand::List(arguments) => list(arguments),
        SiteCommand::Top(arguments) => top(arguments),
    }
}

fn add(arguments: &SiteAddArguments) -> Result<Ending> {
    let spec = arguments.spec();
    connect(&arguments.place)?.add_site(&spec).map_err(brokers::failure)?;
    if arguments.json {
        print_json(&spec)?;
    } else {
        println!("site {} is added; `keeptime site list` shows its nodes", spec.name);
    }
    Ok(Ending::Done)
}

fn remove(arguments: &SiteRemoveArguments) -> Result<Ending> {
    connect(&arguments.place)?.remove_site(&arguments.name).map_err(brokers::failure)?;
    println!("site {} is removed when its nodes are drained", arguments.name);
    Ok(Ending::Done)
}

fn list(arguments: &SiteListArguments) -> Result<Ending> {
    let overview = connect(&arguments.place)?.sites().map_err(brokers::failure)?;
    if arguments.json {
        print_json(&overview)?;
    } else {
        print!("{}", describe_sites(&overview));
    }
    Ok(Ending::Done)
}

/// Until it is interrupted; once, if that is asked for or nobody watches. A broker that is away for a while, such as one that is started anew, is
/// waited for.
fn top(arguments: &SiteTopArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    let mut overview = client.sites().map_err(brokers::failure)?;
    if arguments.json {
        print_json(&overview)?;
        return Ok(Ending::Done);
    }
    let (mut seen, mut trouble) = (Instant::now(), String::new());
    loop {
        let past = overview.sites.iter().map(describe_past).collect::<String>();
        let (sites, nodes) = (describe_sites(&overview), describe_nodes(&overview));
        let text = format!("{sites}{past}{nodes}{}", describe_moves(&overview));
        if arguments.once || !terminal::draws(&stdout()) {
            print!("{text}");
            return Ok(Ending::Done);
        }
        print!("{CLEAR}{trouble}{text}");
        std::thread::sleep(AGAIN_AFTER);
        match client.sites() {
            Ok(newest) => (overview, seen, trouble) = (newest, Instant::now(), String::new()),
            // Certificates may be just renewed.
            Err(error) if error.is_retryable() || error.is_about_trust() => {
                let ago = seen.elapsed().as_secs();
                trouble = format!("{error}; {ago} s ago it was so:\n");
            }
            Err(error) => return Err(brokers::failure(error)),
        }
    }
}

fn describe_sites(overview: &Overview) -> String {
    if overview.sites.is_empty() {
        return "no site; `keeptime site add` adds one\n".into();
    }
    overview.sites.iter().map(describe_site).collect()
}

fn describe_site(site: &SiteView) -> String {
    let guarantee = site.spec.guarantee;
    let nodes: Vec<_> = site.nodes.iter().map(Name::as_str).collect();
    let load = site.load.map_or("load unknown".into(), |load| {
        let rate = load.arrivals_per_second;
        format!("{rate:.0} requests/s, {} wait, {} in flight", load.queued, load.in_flight)
    });
    let leaving = if site.is_leaving { ", being removed" } else { "" };
    let mut text = format!(
        "{}{leaving}: {} nodes ({}); hard {}, soft {}, max {}, priority {}; {load}\n",
        site.spec.name,
        nodes.len(),
        nodes.join(" "),
        guarantee.hard,
        guarantee.soft,
        guarantee.max,
        site.spec.priority,
    );
    for problem in &site.problems {
        text.push_str(&format!("  {problem}\n"));
    }
    text
}

/// The last minute of a site, a column for each second: its nodes, and its requests.
fn describe_past(site: &SiteView) -> String {
    let SiteView { spec, past, .. } = site;
    let most = past.iter().filter_map(|second| second.requests).max().unwrap_or(0);
    let nodes: String =
        past.iter().map(|s| shade(s.nodes.into(), spec.guarantee.max.into())).collect();
    let requests = |second: &Second| second.requests.map_or('?', |requests| shade(requests, most));
    let requests: String = past.iter().map(requests).collect();
    let (name, max) = (&spec.name, spec.guarantee.max);
    format!(
        "  {name}, nodes:    |{nodes:>SECONDS_MAX$}| now, of at most {max}\n  \
         {name}, requests: |{requests:>SECONDS_MAX$}| now, the most {most}\n"
    )
}

/// A line for each node, with its load and where it is known from, if there is any site to have it.
fn describe_nodes(overview: &Overview) -> String {
    if overview.sites.is_empty() {
        return String::new();
    }
    overview.nodes.iter().map(describe_node).collect()
}

fn describe_node(node: &NodeView) -> String {
    let site = node.site.as_ref().map_or("spare", Name::as_str);
    let runnable = node.runnable.map(|count| format!(", {count} runnable")).unwrap_or_default();
    let load = node.load_ppm.map(|load| load.as_f64() * 100.0);
    let load = match (load, node.known_from) {
        (Some(load), Some(LoadSource::Balancers)) if load > 0.0 => "works on requests".into(),
        (Some(_), Some(LoadSource::Balancers)) => "no request in flight".into(),
        (Some(load), _) => format!("{load:.0} % of its CPU used, by its counters{runnable}"),
        (None, _) => "nobody says how busy: counts as loaded".into(),
    };
    format!("  {} ({site}): {load}\n", node.name)
}

fn describe_moves(overview: &Overview) -> String {
    let zone = TimeZone::system();
    let moves = overview.moves.iter().rev().take(MOVES_SHOWN);
    moves
        .map(|moved| format!("{} {}\n", times::show(moved.at_unix_nanos, &zone), in_words(moved)))
        .collect()
}

fn in_words(moved: &MoveView) -> String {
    let place = |site: &Option<Name>| site.as_ref().map_or("spare".into(), ToString::to_string);
    let (from, to) = (place(&moved.from), place(&moved.to));
    let failure = moved.failure.as_ref().map(|why| format!("; given up: {why}"));
    let failure = failure.unwrap_or_default();
    let left = moved.unfinished.as_ref().map(|left| format!("; {left}")).unwrap_or_default();
    let (node, took, why) = (&moved.node, moved.took_nanos.rounded(), &moved.why);
    format!("{node}: {from} > {to} in {took}: {why}{left}{failure}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_broker::wire::Unfinished;
    use keeptime_model::units::{Nanos, Share, WallTime};

    #[test]
    fn a_move_says_whereto_how_long_and_why() {
        let moved = MoveView {
            at_unix_nanos: WallTime::default(),
            took_nanos: Nanos::from_millis(40),
            node: "n3".parse().unwrap(),
            from: None,
            to: Some("shop".parse().unwrap()),
            why: "shop below its hard guarantee".into(),
            failure: Some("it went away".into()),
            unfinished: None,
        };
        let text = in_words(&moved);
        assert!(text.starts_with("n3: spare > shop in 40"), "{text}");
        assert!(text.ends_with("shop below its hard guarantee; given up: it went away"), "{text}");
        let unfinished = Some(Unfinished { in_flight: 2, going_on: vec![] });
        let text = in_words(&MoveView { failure: None, unfinished, ..moved });
        let left = "guarantee; 2 requests were in flight at the limit, and ended";
        assert!(text.ends_with(left), "{text}");
    }

    #[test]
    fn a_minute_of_a_site_is_a_column_for_each_second() {
        let second = |(nodes, requests)| Second { nodes, requests };
        let past = [(1, None), (1, Some(0)), (2, Some(30)), (8, Some(240))].map(second).to_vec();
        let site: SiteView = serde_json::from_value(serde_json::json!({
            "spec": {
                "name": "shop", "guarantee": { "hard": 1, "soft": 4, "max": 8 }, "priority": 1,
                "cpu_ppm": 10_000, "balancers": ["haproxy:/run/haproxy.sock/shop"],
            },
            "is_leaving": false, "nodes": [], "load": null, "problems": [], "past": past,
        }))
        .unwrap();
        let text = describe_past(&site);
        let blank = " ".repeat(SECONDS_MAX - 4);
        assert_eq!(
            text,
            format!(
                "  shop, nodes:    |{blank}▁▁▂█| now, of at most 8\n  \
                 shop, requests: |{blank}? ▁█| now, the most 240\n"
            )
        );
    }

    #[test]
    fn a_node_says_how_busy_it_is_and_who_says_so() {
        let text = |percent: Option<u32>, known_from, runnable| {
            let node = NodeView {
                name: "n3".parse().unwrap(),
                site: (runnable == Some(1)).then(|| "shop".parse().unwrap()),
                load_ppm: percent.and_then(Share::from_percent),
                known_from,
                runnable,
            };
            describe_node(&node)
        };
        let balancers = Some(LoadSource::Balancers);
        assert_eq!(text(Some(0), balancers, None), "  n3 (spare): no request in flight\n");
        assert_eq!(text(Some(100), balancers, Some(1)), "  n3 (shop): works on requests\n");
        let counted = "  n3 (spare): 97 % of its CPU used, by its counters, 4 runnable\n";
        assert_eq!(text(Some(97), Some(LoadSource::Counters), Some(4)), counted);
        assert!(text(None, None, None).ends_with("counts as loaded\n"));
    }
}
