//! What sites had in the last minute, second by second, for people who look.

use crate::overview::{Second, SiteView};
use keeptime_model::name::Name;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// Seconds that are remembered: the columns of a terminal.
pub const SECONDS_MAX: usize = 60;

/// The last seconds of every site, on a steady clock.
#[derive(Debug, Default)]
pub(crate) struct History {
    second: u64,
    of: BTreeMap<Name, VecDeque<Second>>,
}

impl History {
    /// Adds what is seen at `now`, and tells each site its past. Sites that are gone are forgotten.
    /// O(sites x [`SECONDS_MAX`]).
    pub fn note(&mut self, now: Nanos, views: &mut [SiteView]) {
        let second = now.get() / 1_000_000_000;
        let passed = second.saturating_sub(self.second);
        self.second = second;
        self.of.retain(|name, _| views.iter().any(|view| view.spec.name == *name));
        for view in views {
            let past = self.of.entry(view.spec.name.clone()).or_default();
            for _ in 0..passed.min(SECONDS_MAX as u64) {
                // Nobody looked in the others: nodes were as before, and requests are not known.
                past.extend(past.back().map(|last| Second { requests: None, ..*last }));
            }
            let requests = view.load.map(|load| load.queued.saturating_add(load.in_flight));
            let nodes = u32::try_from(view.nodes.len()).unwrap_or(u32::MAX);
            match past.back_mut() {
                Some(last) => *last = Second { nodes, requests: last.requests.max(requests) },
                None => past.push_back(Second { nodes, requests }),
            }
            past.drain(..past.len().saturating_sub(SECONDS_MAX));
            view.past = past.iter().copied().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overview::LoadView;
    use keeptime_model::site::{Guarantee, SiteSpec};

    fn view(site: &str, nodes: usize, requests: Option<u64>) -> SiteView {
        let node = |n: usize| format!("n{n}").parse().unwrap();
        let load = |queued| LoadView { arrivals_per_second: 0.0, queued, in_flight: 0 };
        SiteView {
            spec: SiteSpec {
                name: site.parse().unwrap(),
                guarantee: Guarantee { hard: 1, soft: 1, max: 9 },
                priority: 1,
                cpu_ppm: None,
                services: vec![],
                port: 80,
                drain_most_nanos: None,
                balancers: vec![],
            },
            is_leaving: false,
            nodes: (0..nodes).map(node).collect(),
            load: requests.map(load),
            past: vec![],
            problems: vec![],
        }
    }

    /// Nodes and requests, `?` where they are not known.
    fn told(view: &SiteView) -> String {
        let requests = |second: &Second| second.requests.map_or("?".into(), |r| r.to_string());
        let second = |second: &Second| format!("{}:{}", second.nodes, requests(second));
        view.past.iter().map(second).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_second_has_its_last_nodes_and_its_most_requests() {
        let mut history = History::default();
        let mut see = |millis, nodes, requests| {
            let mut views = [view("shop", nodes, requests)];
            history.note(Nanos::from_millis(millis), &mut views);
            told(&views[0])
        };
        assert_eq!(see(50_100, 1, None), "1:?");
        assert_eq!(see(50_200, 1, Some(7)), "1:7");
        assert_eq!(see(50_900, 2, Some(3)), "2:7");
        assert_eq!(see(51_000, 2, Some(1)), "2:7 2:1");
        assert_eq!(see(54_000, 3, Some(0)), "2:7 2:1 2:? 2:? 3:0");
    }

    #[test]
    fn a_minute_is_remembered_and_who_is_gone_is_not() {
        let mut history = History::default();
        let mut see = |second, sites: &[&str]| {
            let mut views: Vec<_> = sites.iter().map(|site| view(site, 1, Some(second))).collect();
            history.note(Nanos::from_secs(second), &mut views);
            views
        };
        (0..200).for_each(|second| drop(see(second, &["blog", "shop"])));
        let views = see(200, &["blog", "shop"]);
        let first = views[1].past[0];
        assert_eq!((views[1].past.len(), first.requests), (SECONDS_MAX, Some(141)));
        see(201, &["blog"]);
        let views = see(10_000, &["blog", "shop"]);
        assert_eq!((told(&views[1]), views[0].past.len()), ("1:10000".into(), SECONDS_MAX));
    }
}
