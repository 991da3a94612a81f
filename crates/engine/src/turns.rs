//! Whose turn it is: jobs that share a node are corrected one after the other, so that each controller sees what its
//! own correction did. What a user asks for waits for nobody.
//!
//! Nothing of it is recorded: after a restart it is everybody's turn.

use keeptime_model::reservation::Handle;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;

/// Who changed what when, and who waits. Instants are those of a steady clock. A question costs a look at the nodes
/// of the job and at those who wait.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    changed: BTreeMap<NodeIndex, Change>,
    waiting: BTreeMap<Handle, Wait>,
}

/// The last of a node.
#[derive(Debug, Clone, Copy)]
struct Change {
    job: Handle,
    at: Nanos,
}

#[derive(Debug, Clone)]
struct Wait {
    nodes: Vec<NodeIndex>,
    since: Nanos,
    /// When it asked last.
    asked: Nanos,
}

/// Corrections of two jobs on a node are so far apart: what a report of the rate spans at the least.
pub const APART: Nanos = Nanos::from_secs(1);

/// Who has not asked for so long does not wait any more.
const PATIENCE: Nanos = Nanos::from_secs(3);

impl Turns {
    /// Whether `job` may change its `nodes` at `now`; if not, it is remembered that it waits, and how long that will be
    /// at the least. Who has waited longest comes first.
    ///
    /// # Errors
    /// How long it has to wait.
    pub fn ask(&mut self, now: Nanos, job: Handle, nodes: &[NodeIndex]) -> Result<(), Nanos> {
        self.waiting.retain(|_, wait| now.saturating_sub(wait.asked) < PATIENCE);
        let since = self.waiting.get(&job).map_or(now, |wait| wait.since);
        let of_nodes = nodes.iter().filter_map(|node| self.changed.get(node));
        let of_others = of_nodes.filter(|change| change.job != job);
        let left =
            of_others.map(|change| APART.saturating_sub(now.saturating_sub(change.at))).max();
        let is_before = |(other, wait): (&Handle, &Wait)| {
            (wait.since, *other) < (since, job)
                && wait.nodes.iter().any(|node| nodes.contains(node))
        };
        let left = match left.filter(|left| *left > Nanos::default()) {
            // It may be done a moment from now.
            None if self.waiting.iter().any(is_before) => Some(APART),
            left => left,
        };
        match left {
            None => {
                // Whatever comes of it, nobody waits for it any more.
                self.waiting.remove(&job);
                Ok(())
            }
            Some(left) => {
                self.waiting.insert(job, Wait { nodes: nodes.to_vec(), since, asked: now });
                Err(left)
            }
        }
    }

    /// `job` changes its `nodes`, whether it was its turn or not.
    pub fn changes(&mut self, now: Nanos, job: Handle, nodes: &[NodeIndex]) {
        self.waiting.remove(&job);
        self.changed.extend(nodes.iter().map(|node| (*node, Change { job, at: now })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NODES: [NodeIndex; 3] = [NodeIndex(0), NodeIndex(1), NodeIndex(2)];

    fn jobs<const N: usize>() -> [Handle; N] {
        std::array::from_fn(|number| Handle::new(number as u64 + 1))
    }

    /// Asks, and changes if it may.
    fn take(turns: &mut Turns, millis: u64, job: Handle, nodes: &[NodeIndex]) -> bool {
        let now = Nanos::from_millis(millis);
        let may = turns.ask(now, job, nodes).is_ok();
        if may {
            turns.changes(now, job, nodes);
        }
        may
    }

    #[test]
    fn who_shares_a_node_waits_and_who_does_not_does_not() {
        let ([a, b, c], mut turns) = (jobs(), Turns::default());
        assert!(take(&mut turns, 5_000, a, &NODES[..2]));
        assert!(take(&mut turns, 5_200, a, &NODES[..2]), "nobody waits for what is its own");
        let asked = turns.ask(Nanos::from_millis(5_300), b, &NODES[1..2]);
        assert_eq!(asked, Err(Nanos::from_millis(900)));
        assert!(!take(&mut turns, 5_400, a, &NODES[..2]), "it is b's turn");
        assert!(take(&mut turns, 5_400, c, &NODES[2..]));
        assert!(take(&mut turns, 6_200, b, &NODES[1..2]));
    }

    #[test]
    fn who_has_waited_longest_comes_first_while_it_asks() {
        let ([a, b, c], mut turns) = (jobs(), Turns::default());
        assert!(take(&mut turns, 0, a, &NODES));
        assert!(!take(&mut turns, 100, c, &NODES));
        assert!(!take(&mut turns, 200, b, &NODES));
        // It would be free, and it is c's turn.
        assert!(!take(&mut turns, 1_100, b, &NODES));
        assert!(!take(&mut turns, 1_100, a, &NODES));
        assert!(take(&mut turns, 1_200, c, &NODES));
        assert!(take(&mut turns, 2_200, b, &NODES));
        // c waits for a turn and asks no more.
        assert!(!take(&mut turns, 2_300, c, &NODES));
        assert!(!take(&mut turns, 5_200, a, &NODES));
        assert!(take(&mut turns, 5_300, a, &NODES));
        // b waits, and then has nothing to change.
        assert!(!take(&mut turns, 5_400, b, &NODES));
        assert_eq!(turns.ask(Nanos::from_millis(6_300), b, &NODES), Ok(()));
        assert!(take(&mut turns, 6_300, c, &NODES));
    }

    proptest! {
        // Goal: nobody starves, however often each asks and which nodes it has. Method: each of five jobs asks again and
        // again, at intervals of its own.
        #[test]
        fn nobody_starves(
            jobs_of in prop::collection::vec((50_u64..1_500, 0_usize..3, 1_usize..=3), 5),
        ) {
            let mut turns = Turns::default();
            let mut last = [0; 5];
            for millis in 0..60_000 {
                for (number, job) in jobs::<5>().into_iter().enumerate() {
                    let (every, first, count) = jobs_of[number];
                    let nodes = &NODES[first..(first + count).min(NODES.len())];
                    if millis % every == 0 && take(&mut turns, millis, job, nodes) {
                        last[number] = millis;
                    }
                    // All others once, and as long as everybody takes to ask.
                    prop_assert!(millis - last[number] <= 6 * (1_000 + 1_500), "{number} at {millis}");
                }
            }
        }
    }
}
