//! The page: what the paper found, what was found here, and the figures.

use super::{LOCAL, Raw, Series, at_end, dht, highest, most};
use crate::figures::quantile;
use crate::page;
use anyhow::Result;
use keeptime::chart::{BarChart, Group, Line, LineChart};
use keeptime::{files, report};
use maud::{Markup, html};
use std::path::Path;

/// Writes it.
///
/// # Errors
/// If a picture cannot be drawn, or the page not written.
pub fn write(raw: &Raw, path: &Path) -> Result<()> {
    let machine = raw.machine.as_ref().map(ToString::to_string).unwrap_or_default();
    let title = "One library over three networks";
    let page = report::frame(
        title,
        html! {
            h1 { (title) }
            p.subtitle { "Figures 2 to 12 of RoCL (Alves, Pina, Exposto, Rufino), done again; " (machine) }
        },
        html! {
            section {
                h2 { "What the paper found, and what was found here" }
                (claims(raw))
                p {
                    "Nodes are network namespaces of one machine with three shaped networks of 800, 500 and 100 Mbit/s, for "
                    "Myrinet, Gigabit and Fast Ethernet. In figures 2 to 4 and 10 to 12 each node has 15 % of a CPU, so that "
                    "nodes and not the machine's cores are what there is more or less of; figures 5 to 9 have a core for each "
                    "end. Absolute numbers are of another time than the paper's; shapes and ratios can be compared."
                }
            }
            section {
                h2 { "Directory" }
                (by_clients("figure 2: one node's clients ask their server", &[("one node", &raw.figure_2)])?)
                (shares("figure 3: 4 nodes", &raw.figure_3)?)
                (shares("figure 4: 8 nodes", &raw.figure_4)?)
                p {
                    "Every question is one that was not asked before, by a subset of a resource's attributes, so that each goes to "
                    "the node's server. A share of " (LOCAL[0]) " to " (LOCAL[3]) " % is about resources of the own node."
                }
            }
            section {
                h2 { "Messages" }
                (by_size("figure 5: round trips within a node", "microseconds", &raw.figure_5)?)
                @for pairs in super::some(&super::PAIRS) {
                    (by_size(&format!("figures 6, 7: round trips, {pairs} at a time"), "microseconds", &of_pairs(raw, pairs))?)
                }
                (by_size("figure 8: round trips over a bridge", "microseconds", &raw.figure_8)?)
                (by_size("figure 9: one way, over two networks at once", "Mbit/s", &raw.figure_9)?)
            }
            section {
                h2 { "Hash table" }
                (queries("figure 10: 4 nodes", &raw.figure_10)?)
                (queries("figure 11: 8 nodes", &raw.figure_11)?)
                (queries("figure 12: 4 nodes, half of the messages miss the cache", &raw.figure_12)?)
                p {
                    "A server with 32 partitions and 1 to 8 clients on each node; answers have 8 KiB. A query passed "
                    (format!("{:.1}", hops(&raw.figure_10))) " partitions on average on 4 nodes, " (format!("{:.1}", hops(&raw.figure_11)))
                    " on 8. A miss is a question to the node's directory server before a message is sent."
                }
            }
        },
    );
    files::save(path, page.as_bytes())?;
    println!("written: {}", path.display());
    Ok(())
}

fn claims(raw: &Raw) -> Markup {
    let global =
        |lines: &[(u32, Vec<(f64, f64)>)]| lines.first().map_or(f64::NAN, |(_, p)| highest(p));
    let (four, eight) = (global(&raw.figure_3), global(&raw.figure_4));
    let most = |lines: &[(String, Vec<dht::Point>)], label| quantile(most(lines, label), 0.5);
    let (few, many) = (most(&raw.figure_10, "second"), most(&raw.figure_11, "second"));
    let bridged = most(&raw.figure_11, "first and second, bridged");
    let missed = most(&raw.figure_12, "second");
    let long = |pairs| at_end(&of_pairs(raw, pairs), "first (800 Mbit/s), TCP");
    let over_bridge = at_end(&raw.figure_8, "first to second, bridged");
    let slow = at_end(&raw.figure_8, "slow, direct");
    let both = at_end(&raw.figure_9, "both");
    let last = |points: &[(f64, f64)]| points.last().map_or(f64::NAN, |point| point.1);
    let rows = [
        (
            "2",
            "16 clients against the best number, one server",
            "total falls with 16 (one thread)",
            format!("{:.2} x", last(&raw.figure_2) / highest(&raw.figure_2)),
        ),
        (
            "3, 4",
            "global questions in all, 8 nodes against 4",
            "0.4 x (Fast Ethernet), 0.7 x (Gigabit): broadcasts",
            format!("{:.2} x; {:.0} bytes between nodes for a question", eight / four, raw.sent[1]),
        ),
        (
            "-",
            "its price: registrations in all, 8 nodes against 4",
            "not measured; registering is local",
            format!(
                "{:.2} x; {:.0}/s on 8",
                raw.registered[1] / raw.registered[0],
                raw.registered[1]
            ),
        ),
        (
            "7",
            "long round trips of 4 pairs against 1",
            "2 x",
            format!("{:.2} x", long(4) / long(1)),
        ),
        (
            "8",
            "long round trips, bridged against the slow network",
            "\"by far better\"",
            format!("{:.2} x", over_bridge / slow),
        ),
        (
            "9",
            "shares of two networks",
            "5:3 by hand, above 4096 bytes",
            format!("found by itself; {both:.0} Mbit/s over both"),
        ),
        (
            "11",
            "queries in all, 8 nodes against 4",
            "16000 / 9600 = 1.67 x",
            format!("{many:.0} / {few:.0} = {:.2} x", many / few),
        ),
        (
            "11",
            "bridged against the second network alone",
            "better",
            format!("{:.2} x", bridged / many),
        ),
        (
            "12",
            "queries when every second message misses the cache",
            "\"drop significantly\"",
            format!("{:.2} x", missed / few),
        ),
    ];
    page::claims(&rows)
}

fn of_pairs(raw: &Raw, pairs: usize) -> Vec<Series> {
    let lines = raw.figure_6_7.iter().filter(|(_, of, _)| *of == pairs);
    lines.map(|(label, _, points)| (label.clone(), points.clone())).collect()
}

fn hops(lines: &[(String, Vec<dht::Point>)]) -> f64 {
    let all: Vec<_> = lines.iter().flat_map(|(_, points)| points.iter().map(|p| p.hops)).collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

fn by_size(title: &str, y_label: &str, lines: &[Series]) -> Result<Markup> {
    let line = |(label, points): &Series| Line {
        label: label.clone(),
        points: points.clone(),
        samples: Vec::new(),
        marked: None,
        faded: false,
    };
    let chart = LineChart {
        title: title.into(),
        x_label: "bytes of a message".into(),
        y_label: y_label.into(),
        lines: lines.iter().map(line).collect(),
        bound: None,
    };
    Ok(report::figure(&chart.to_svg()?, title, html! { (title) }))
}

fn shares(title: &str, lines: &[(u32, Vec<(f64, f64)>)]) -> Result<Markup> {
    let names: Vec<_> =
        lines.iter().map(|(local, _)| format!("{local} % of the own node")).collect();
    let lines: Vec<_> =
        names.iter().zip(lines).map(|(name, (_, points))| (name.as_str(), points)).collect();
    by_clients(title, &lines)
}

fn queries(title: &str, lines: &[(String, Vec<dht::Point>)]) -> Result<Markup> {
    let points = |points: &[dht::Point]| -> Vec<(f64, f64)> {
        points.iter().map(|point| (point.clients as f64, point.queries)).collect()
    };
    let lines: Vec<_> = lines.iter().map(|(label, line)| (label, points(line))).collect();
    let lines: Vec<_> = lines.iter().map(|(label, points)| (label.as_str(), points)).collect();
    by_clients(title, &lines)
}

/// Bars of all nodes together, by clients of a node.
fn by_clients(title: &str, lines: &[(&str, &Vec<(f64, f64)>)]) -> Result<Markup> {
    let groups = lines.first().map_or(&[][..], |(_, points)| points.as_slice());
    let group = |(at, (clients, _)): (usize, &(f64, f64))| Group {
        label: format!("{clients}"),
        bars: lines.iter().map(|(_, p)| p.get(at).map_or(0.0, |point| point.1)).collect(),
    };
    let chart = BarChart {
        title: title.into(),
        y_label: "a second, all nodes together, by clients of a node".into(),
        series: lines.iter().map(|(label, _)| (*label).into()).collect(),
        groups: groups.iter().enumerate().map(group).collect(),
        bound: None,
    };
    Ok(report::figure(&chart.to_svg()?, title, html! { (title) }))
}
