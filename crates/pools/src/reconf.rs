//! The paper's dynamic reconfiguration: by load alone, with priorities, with priorities and
//! guarantees (sections 3.1, 4.1 and 4.2.2).
//!
//! All three move one node at a time to a site that is found highly loaded, and look again:
//!
//! * basic: a lightly loaded node of another site;
//! * with priorities: one that is lightly loaded or belongs to a lower priority;
//! * with guarantees: the same, only until the site has its soft guarantee, and from no site that
//!   has not more than its hard guarantee.
//!
//! The first two leave every site one node ("website B only has one node left"). What the paper
//! leaves open is in [`Tuning`]; the numbers are ours. It names history awareness and sensitivity
//! among its design issues (section 3.1, iii and iv) and refers to earlier work for them.

use crate::holdings::Count;
use crate::plan::{Plan, Reason, Step};
use crate::policy::{Policy, View};
use crate::pool::{SiteIndex, Weight};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use std::cmp::Reverse;

/// How far sites are treated differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Differentiation {
    /// By load alone.
    None,
    /// By priority.
    Priority,
    /// By priority, within soft and hard guarantees.
    PriorityAndGuarantees,
}

/// Where the paper gives no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// A site whose nodes are busier on average is highly loaded.
    pub high: Share,
    /// A node that is less busy is lightly loaded.
    pub low: Share,
    /// A site acts when it was found highly loaded so many times in a row.
    pub sensitivity: u32,
    /// A node that moved is left alone for so long.
    pub rest: Nanos,
}

/// One of the three.
#[derive(Debug)]
pub struct Reconf {
    differentiation: Differentiation,
    tuning: Tuning,
    /// How many times in a row each site was found highly loaded.
    high: Vec<u32>,
}

impl Default for Tuning {
    fn default() -> Self {
        const fn percent(percent: u32) -> Share {
            Share::from_percent(percent).expect("at most 100")
        }
        Self { high: percent(80), low: percent(30), sensitivity: 2, rest: Nanos::from_millis(500) }
    }
}

impl Reconf {
    /// With the tuning that is usual here.
    pub fn new(differentiation: Differentiation) -> Self {
        Self::tuned(differentiation, Tuning::default())
    }

    /// With a tuning.
    pub fn tuned(differentiation: Differentiation, tuning: Tuning) -> Self {
        Self { differentiation, tuning, high: Vec::new() }
    }

    /// Counts how often in a row each site was highly loaded; tells those that act now, in the order
    /// in which they may: the highest priority, where there is such a thing, then the highest load.
    fn loaded(&mut self, view: &View<'_>) -> Vec<SiteIndex> {
        self.high.resize(view.pool.sites().len(), 0);
        let mut acting = Vec::new();
        for site in view.pool.site_indices() {
            let busy = view.loads.busy_site(site, view.holdings);
            let high = &mut self.high[site.0 as usize];
            *high = if busy >= self.tuning.high { high.saturating_add(1) } else { 0 };
            if *high >= self.tuning.sensitivity {
                acting.push((Reverse(self.rank(view, site)), Reverse(busy), site));
            }
        }
        acting.sort();
        acting.into_iter().map(|(_, _, site)| site).collect()
    }

    /// The priority as this scheme sees it.
    fn rank(&self, view: &View<'_>, site: SiteIndex) -> u32 {
        match self.differentiation {
            Differentiation::None => 0,
            _ => view.pool.site(site).priority,
        }
    }

    fn may_grow(&self, view: &View<'_>, site: SiteIndex, count: Count) -> bool {
        let guarantee = view.pool.site(site).guarantee;
        let most = match self.differentiation {
            Differentiation::PriorityAndGuarantees => guarantee.soft,
            _ => guarantee.max,
        };
        count.expected() < most
    }

    fn may_shrink(&self, view: &View<'_>, site: SiteIndex, count: Count) -> bool {
        let least = match self.differentiation {
            Differentiation::PriorityAndGuarantees => view.pool.site(site).guarantee.hard,
            _ => 1,
        };
        count.staying > least
    }

    /// The node that `site` gets: spare, or lightly loaded, or of the lowest priority; the least
    /// loaded of these.
    fn donor(&self, view: &View<'_>, counts: &[Count], site: SiteIndex) -> Option<Step> {
        let rank = self.rank(view, site);
        let useful = |node| view.pool.worth(site, node) != Weight::NONE;
        let rested = |node| {
            let last = view.holdings.last_move(node);
            last.is_none_or(|m| view.now.saturating_sub(m.at) >= self.tuning.rest)
        };
        let candidate = |(node, from): (NodeIndex, Option<SiteIndex>)| {
            let busy = view.loads.busy(node);
            let light = from.is_none() || busy <= self.tuning.low;
            let lower = from.is_some_and(|from| self.rank(view, from) < rank);
            let spared = from.is_none_or(|from| {
                from != site && self.may_shrink(view, from, counts[from.0 as usize])
            });
            let order = match from {
                None => (0, 0, busy),
                Some(_) if light => (1, 0, busy),
                Some(from) => (2, self.rank(view, from), busy),
            };
            let step = Step { node, from, to: Some(site) };
            (spared && (light || lower) && useful(node) && rested(node)).then_some((order, step))
        };
        let candidates = view.holdings.movable().filter_map(candidate);
        candidates.min_by_key(|(order, step)| (*order, step.node)).map(|(_, step)| step)
    }
}

impl Policy for Reconf {
    fn name(&self) -> &'static str {
        match self.differentiation {
            Differentiation::None => "reconf",
            Differentiation::Priority => "reconf-p",
            Differentiation::PriorityAndGuarantees => "reconf-pq",
        }
    }

    fn plans(&mut self, view: &View<'_>) -> Vec<Plan> {
        let counts = view.holdings.counts(view.pool.sites().len());
        let steps = self.loaded(view).into_iter().filter_map(|site| {
            self.may_grow(view, site, counts[site.0 as usize])
                .then(|| self.donor(view, &counts, site))
                .flatten()
                .map(|step| Plan::direct(site, Reason::HighLoad, step))
        });
        steps.take(1).collect()
    }
}
