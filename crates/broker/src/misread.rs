//! Tells operators of lines of agents that this broker cannot read: at most once in [`TOLD_EVERY`] of each node, since an agent
//! whose connection ended for that comes back within a second.

use keeptime_locks::lock;
use keeptime_model::name::Name;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// So often one node's lines are warned of.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// What was told of each node of the cluster, and of who has not said which node's it is.
#[derive(Debug, Default)]
pub(crate) struct Misread(Mutex<BTreeMap<Option<Name>, Last>>);

/// The last warning of a node.
#[derive(Debug)]
struct Last {
    at: Instant,
    /// Lines since then.
    left_out: u64,
}

impl Misread {
    /// Warns of a line of this node's agent, if that is due; `why` it cannot be read, in a sentence that is not long.
    pub fn tell(&self, node: Option<&Name>, why: &str) {
        if let Some(warning) = self.warning(node, why, Instant::now()) {
            tracing::warn!("{warning}");
        }
    }

    /// What is to be told now, if something is.
    fn warning(&self, node: Option<&Name>, why: &str, now: Instant) -> Option<String> {
        let left_out = self.count(node, now)?;
        let whose = node.map_or("an agent that has not said which node's it is".into(), |node| {
            format!("the agent of {node}")
        });
        let more = match left_out {
            0 => String::new(),
            some => format!(" ({some} more since the last warning)"),
        };
        // An agent may have chosen some of its words, and breaks no lines of the journal.
        let why = why.replace(char::is_control, " ");
        Some(format!(
            "a line of {whose} cannot be read, and its connection ends: {why}{more}; are agent and \
             broker of different versions? Upgrade the older"
        ))
    }

    /// How many were left out since the last warning; nothing if this one is, too.
    fn count(&self, node: Option<&Name>, now: Instant) -> Option<u64> {
        match lock(&self.0).entry(node.cloned()) {
            Entry::Occupied(mut last)
                if now.saturating_duration_since(last.get().at) < TOLD_EVERY =>
            {
                last.get_mut().left_out += 1;
                None
            }
            Entry::Occupied(mut last) => Some(last.insert(Last { at: now, left_out: 0 }).left_out),
            Entry::Vacant(first) => Some(first.insert(Last { at: now, left_out: 0 }).left_out),
        }
    }

    /// Whether a line of this node was ever warned of.
    #[cfg(test)]
    pub fn has_told(&self, node: Option<&Name>) -> bool {
        lock(&self.0).contains_key(&node.cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_warned_of_once_a_minute_with_what_was_left_out() {
        let (misread, began) = (Misread::default(), Instant::now());
        let [n1, n2]: [Name; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let told = |node, second| {
            misread.warning(node, "unknown variant `x`", began + Duration::from_secs(second))
        };
        let first = told(Some(&n1), 0).unwrap();
        for part in ["the agent of n1 ", "unknown variant `x`;", "Upgrade the older"] {
            assert!(first.contains(part), "{first}");
        }
        assert!((1..60).all(|second| told(Some(&n1), second).is_none()));
        assert!(told(Some(&n2), 1).is_some(), "another node");
        let nameless = told(None, 1).unwrap();
        assert!(nameless.contains("has not said which node's it is"), "{nameless}");
        let next = told(Some(&n1), 60).unwrap();
        assert!(next.contains("(59 more since the last warning)"), "{next}");
        assert_eq!(told(Some(&n1), 119), None, "a minute begins anew");
        assert!(told(Some(&n1), 120).unwrap().contains("(1 more"));
        assert_eq!(told(Some(&n1), 180), Some(first), "none was left out");
    }

    #[test]
    fn an_agent_writes_no_lines_of_its_own_into_the_journal() {
        let warning =
            Misread::default().warning(None, "unknown variant `a\nb\u{1b}[2J`", Instant::now());
        assert!(warning.is_some_and(|text| !text.contains(char::is_control)));
    }
}
