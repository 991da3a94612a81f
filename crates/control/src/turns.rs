//! Applications that share nodes change one after the other, so that each sees what its own change did.

use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An application that wants to change the schedules of its nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish<'a> {
    /// Which.
    pub job: &'a Name,
    /// All its nodes.
    pub nodes: &'a [NodeIndex],
    /// |error| / threshold, or infinite for what a user has asked for: that waits for nobody.
    pub urgency: f64,
}

/// Who changed what when.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turns {
    apart_nanos: Nanos,
    changed: BTreeMap<NodeIndex, Nanos>,
    turns: BTreeMap<Name, Nanos>,
}

impl Turns {
    /// Changes on one node are at least `apart`: about what the slowest application needs for an
    /// iteration.
    pub fn new(apart: Nanos) -> Self {
        Self { apart_nanos: apart, ..Self::default() }
    }

    /// Which of the `wishes` may be carried out at `now`, by a steady clock; they count as carried
    /// out. The most urgent first; of equally urgent ones, the one that has waited longest.
    pub fn grant<'a>(&mut self, now: Nanos, wishes: &[Wish<'a>]) -> Vec<&'a Name> {
        let mut order: Vec<_> = wishes.iter().collect();
        order.sort_by(|a, b| {
            let last = |wish: &Wish| self.turns.get(wish.job);
            b.urgency.total_cmp(&a.urgency).then_with(|| last(a).cmp(&last(b)))
        });
        let mut granted = Vec::new();
        for wish in order {
            if wish.urgency.is_infinite() || self.is_free(now, wish.nodes) {
                self.changed.extend(wish.nodes.iter().map(|node| (*node, now)));
                self.turns.insert(wish.job.clone(), now);
                granted.push(wish.job);
            }
        }
        granted
    }

    /// The job has ended.
    pub fn forget(&mut self, job: &Name) {
        self.turns.remove(job);
    }

    /// A clock that stepped back makes nobody wait for it.
    fn is_free(&self, now: Nanos, nodes: &[NodeIndex]) -> bool {
        let free = |last: &Nanos| *last > now || now.saturating_sub(*last) >= self.apart_nanos;
        let mut changed = nodes.iter().filter_map(|node| self.changed.get(node));
        changed.all(|last| free(last) && *last != now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NODES: [NodeIndex; 3] = [NodeIndex(0), NodeIndex(1), NodeIndex(2)];

    fn names() -> [Name; 3] {
        ["a", "b", "c"].map(|name| name.parse().unwrap())
    }

    fn wish<'a>(job: &'a Name, nodes: &'a [NodeIndex], urgency: f64) -> Wish<'a> {
        Wish { job, nodes, urgency }
    }

    #[test]
    fn who_shares_a_node_waits_and_who_does_not_does_not() {
        let [a, b, c] = &names();
        let mut turns = Turns::new(Nanos::from_secs(1));
        let wishes =
            [wish(a, &NODES[..2], 1.0), wish(b, &NODES[1..], 2.0), wish(c, &NODES[..1], 0.5)];
        // b is the most urgent; a shares node 1 with it; c does not.
        assert_eq!(turns.grant(Nanos::from_secs(5), &wishes), [b, c]);
        assert!(turns.grant(Nanos::new(5_900_000_000), &wishes[..1]).is_empty());
        assert_eq!(turns.grant(Nanos::from_secs(6), &wishes[..1]), [a]);
    }

    #[test]
    fn what_a_user_asks_for_waits_for_nobody() {
        let [a, b, _] = &names();
        let mut turns = Turns::new(Nanos::from_secs(1));
        turns.grant(Nanos::from_secs(5), &[wish(a, &NODES, 1.0)]);
        let asked = [wish(b, &NODES, f64::INFINITY)];
        assert_eq!(turns.grant(Nanos::new(5_000_000_001), &asked), [b]);
    }

    #[test]
    fn nobody_starves() {
        let [a, b, c] = &names();
        let mut turns = Turns::new(Nanos::from_secs(1));
        let wishes = [a, b, c].map(|job| wish(job, &NODES, 1.0));
        let granted: Vec<_> =
            (1..=9).flat_map(|s| turns.grant(Nanos::from_secs(s), &wishes)).collect();
        assert_eq!(granted.len(), 9);
        assert!(
            [a, b, c]
                .iter()
                .all(|job| granted.iter().filter(|granted| *granted == job).count() == 3)
        );
    }

    #[test]
    fn a_clock_that_steps_back_stops_nobody() {
        let [a, ..] = &names();
        let mut turns = Turns::new(Nanos::from_secs(1));
        turns.grant(Nanos::from_secs(500), &[wish(a, &NODES, 1.0)]);
        assert_eq!(turns.grant(Nanos::from_secs(5), &[wish(a, &NODES, 1.0)]), [a]);
    }
}
