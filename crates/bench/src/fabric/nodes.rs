//! What takes nodes of its own: reads of another node's memory, and questions to the directory and queries of the hash
//! table on eight nodes against four. `bench-regions` and `eval-rocl` have the same in more rounds, and other numbers of
//! clients: what measures it is theirs. Each row's variants take turns.

use super::{Samples, ratios};
use crate::figures::{Figures, Target, quantile};
use crate::quick;
use crate::regions::Rounds;
use crate::rocl::dht::{Setting, Table};
use crate::rocl::directory::{self, Question};
use crate::rocl::testbed::{Network, Node, Testbed};
use crate::rocl::{SHARE, eight};
use anyhow::Result;

/// How samples of [`reads`] begin.
pub const READS: &str = "reads of another node";
/// The same of [`finds`].
pub const FINDS: &str = "global finds";
/// The same of [`queries`].
pub const QUERIES: &str = "queries of the hash table";

/// How many nodes take part.
const COUNTS: [usize; 2] = [4, 8];
/// On each node: enough that its share of a CPU is what bounds it.
const CLIENTS: usize = 8;

/// Reads against asking, idle and with busy threads on the other node.
///
/// # Errors
/// As [`Rounds::measure`].
pub fn reads(figures: &mut Figures, samples: &mut Samples) -> Result<()> {
    let (rounds, reads) = if quick() { (1, 200) } else { (5, 2000) };
    let rounds = Rounds::measure(rounds, reads)?;
    rounds.report_ratios(figures);
    let named = rounds.samples().map(|(name, times)| (format!("{READS}: {name} (us)"), times));
    samples.extend(named);
    Ok(())
}

/// Questions about resources of other nodes that nobody has asked before: as nodes come, all together are to answer more.
///
/// # Errors
/// If there is no testbed, or a client has no answer.
pub fn finds(figures: &mut Figures, samples: &mut Samples) -> Result<()> {
    let (rounds, seconds) = if quick() { (1, 0.5) } else { (5, 2.0) };
    in_turns(FINDS, rounds, samples, |_, nodes| {
        directory::rate(nodes, Question::Find, CLIENTS, 0.0, seconds)
    })?;
    report(figures, samples, FINDS, Target::AtLeast(1.0));
    Ok(())
}

/// Queries of a table with a server on each node. It is made anew each time: two at once would be one.
///
/// # Errors
/// If there is no testbed or no table, or a client has no answer.
pub fn queries(figures: &mut Figures, samples: &mut Samples) -> Result<()> {
    let (rounds, seconds) = if quick() { (1, 1.0) } else { (3, 5.0) };
    let setting = Setting { network: |_| Network::Second, misses: 0.0 };
    in_turns(QUERIES, rounds, samples, |testbed, nodes| {
        let table = Table::start(testbed, nodes, setting, SHARE)?;
        let (queries, _) = table.ask(CLIENTS, seconds)?;
        table.end()?;
        Ok(queries)
    })?;
    report(figures, samples, QUERIES, Target::AtLeast(1.6));
    Ok(())
}

/// A rate a second of the first nodes of one testbed, as many of them as [`COUNTS`] says in turn.
fn in_turns(
    name: &str,
    rounds: usize,
    samples: &mut Samples,
    mut rate: impl FnMut(&Testbed, &[&Node]) -> Result<f64>,
) -> Result<()> {
    let testbed = Testbed::new(&eight(), None, Some(SHARE))?;
    for _ in 0..rounds {
        for count in COUNTS {
            let nodes: Vec<&Node> = testbed.nodes().iter().take(count).collect();
            let rate = rate(&testbed, &nodes)?;
            samples.entry(on_nodes(name, count)).or_default().push(rate);
        }
    }
    Ok(())
}

fn on_nodes(name: &str, count: usize) -> String {
    format!("{name} on {count} nodes (/s)")
}

/// All nodes together: the rate of the many, beside it that of the few, and round by round the one against the other.
fn report(figures: &mut Figures, samples: &Samples, name: &str, target: Target) {
    let [few, many] = COUNTS;
    let rates = |count| samples.get(&on_nodes(name, count)).map_or(&[][..], Vec::as_slice);
    let title = format!("{name} on {many} nodes together (beside it: {few})");
    figures.median(title, "/s", rates(many), Some(quantile(rates(few), 0.5)), None);
    let grown = ratios(samples, &on_nodes(name, many), &on_nodes(name, few));
    let title = format!("{name} on {many} nodes against {few}");
    figures.median(title, "x", &grown, None, Some(target));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_are_compared_with_the_few_of_the_same_round() {
        let (few, many) = (vec![1000.0, 2000.0, 1000.0], vec![1700.0, 3000.0, 1500.0]);
        let samples = Samples::from([(on_nodes(QUERIES, 4), few), (on_nodes(QUERIES, 8), many)]);
        let mut figures = Figures::new("test");
        report(&mut figures, &samples, QUERIES, Target::AtLeast(1.6));
        report(&mut figures, &samples, QUERIES, Target::AtLeast(1.5));
        let told: Vec<_> = figures.all().iter().map(|f| (f.value, f.baseline, f.met)).collect();
        let together = (1700.0, Some(1000.0), None);
        let expected = [together, (1.5, None, Some(false)), together, (1.5, None, Some(true))];
        assert_eq!(told, expected);
    }
}
