//! Who cannot keep up with what arrives and waits, and whether that may be chance.
//!
//! At random arrivals a queue is long for a moment now and then though there are nodes enough. A node
//! that moves for such a moment is missed where it came from, and moves back.

use crate::pool::{SiteIndex, Weight};
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;

/// Who is short by less than a node has to be so for this long before that is no chance. Queues of
/// moments are gone by then.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// Since when sites are short.
#[derive(Debug, Clone, Default)]
pub struct Shortages {
    since: BTreeMap<SiteIndex, Nanos>,
}

impl Shortages {
    /// Takes in by how much `site` is short now, in thousandths of a standard node, and tells since when
    /// it has been.
    pub fn see(&mut self, now: Nanos, site: SiteIndex, short: u32) -> Option<Nanos> {
        if short == 0 {
            self.since.remove(&site);
            return None;
        }
        Some(*self.since.entry(site).or_insert(now))
    }
}

/// Whether a site that is `short` by so much, and has been `since` then, is so by no chance.
pub fn is_urgent(now: Nanos, short: u32, since: Option<Nanos>) -> bool {
    let lasts = since.is_some_and(|since| now.saturating_sub(since) >= PATIENCE);
    short >= Weight::STANDARD.thousandths() || (short > 0 && lasts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_node_counts_at_once_and_less_after_a_second() {
        let (site, millis) = (SiteIndex(0), Nanos::from_millis);
        let mut shortages = Shortages::default();
        let mut see =
            |at, short| is_urgent(millis(at), short, shortages.see(millis(at), site, short));
        assert!(!see(100, 999));
        assert!(see(200, 1_000));
        assert!(!see(1_099, 1));
        assert!(see(1_100, 1));
        assert!(!see(1_200, 0));
        assert!(!see(1_300, 999), "it was not short in between");
        // In a draft that has found it a node meanwhile.
        assert!(!is_urgent(millis(1_300), 0, Some(millis(100))), "it is short of nothing");
    }
}
