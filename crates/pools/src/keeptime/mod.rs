//! Ours: a site's size in one step from its load, and nodes only for a site that needs them.
//!
//! * [`estimate`]: arrival rate and service time of a site;
//! * [`sizing`]: how many nodes these need, by a queueing model;
//! * [`allocation`]: which nodes move for it, from whom, in which order;
//! * [`shortages`]: who cannot keep up, beyond chance;
//! * [`reversals`]: moves that undo others are counted and limited.
//!
//! A site that needs less keeps what it has until another needs it (pull). What it needed at its most
//! within [`Settings::hold`] is kept from needs that are neither urgent nor within a guarantee. What is beyond its soft
//! guarantee and was not needed within [`Settings::release_after`] becomes a spare: others than sites may use that.

pub mod allocation;
pub mod estimate;
pub mod reversals;
pub mod shortages;
pub mod sizing;

mod chain;
mod draft;
#[cfg(test)]
mod naive;

pub use chain::CHAIN_MAX;

use crate::holdings::Place;
use crate::load::SiteLoad;
use crate::plan::Plan;
use crate::policy::{Policy, View};
use crate::pool::{NODES_MAX, Weight};
use allocation::{Need, allocate};
use estimate::{Estimate, Peak};
use keeptime_model::units::Nanos;
use reversals::Reversals;
use shortages::Shortages;
use sizing::nodes_needed;

/// What an operator may change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Requests that wait are to be gone within this time. A queue that the site's nodes clear sooner
    /// moves no node.
    pub backlog_within: Nanos,
    /// A request waits on average for at most so many times its service time.
    pub wait_max: f64,
    /// Arrival rates are averaged over this time, unless they change beyond chance.
    pub average_over: Nanos,
    /// For so long a site's greatest need is remembered.
    pub hold: Nanos,
    /// For so long a site keeps what it does not need beyond its soft guarantee, though no other needs it either.
    pub release_after: Nanos,
    /// Moves that undo another within this time are reversals.
    pub reversal_within: Nanos,
}

/// The policy.
#[derive(Debug)]
pub struct Keeptime {
    settings: Settings,
    sites: Vec<Seen>,
    shortages: Shortages,
    reversals: Reversals,
}

/// What is remembered of a site.
#[derive(Debug, Clone, Default)]
struct Seen {
    estimate: Estimate,
    peak: Peak,
    /// The same over [`Settings::release_after`].
    lasting: Peak,
    /// Since when its need is known, and when it was heard last.
    known: Option<(Nanos, Nanos)>,
    need: Need,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backlog_within: Nanos::from_millis(250),
            wait_max: 1.0,
            average_over: Nanos::from_secs(2),
            hold: Nanos::from_secs(60),
            release_after: Nanos::from_secs(600),
            reversal_within: Nanos::from_secs(60),
        }
    }
}

impl Default for Keeptime {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Keeptime {
    /// With `settings`.
    pub fn new(settings: Settings) -> Self {
        let reversals = Reversals::new(settings.reversal_within);
        Self { settings, sites: Vec::new(), shortages: Shortages::default(), reversals }
    }

    /// Takes in what was seen; tells what every site needs.
    fn needs(&mut self, view: &View<'_>) -> Vec<Need> {
        let works = works(view);
        self.sites.resize(works.len(), Seen::default());
        let settings = self.settings;
        let sites = self.sites.iter_mut().zip(works).zip(&view.loads.sites);
        sites
            .map(|((seen, work), load)| {
                let now = match load {
                    Some(load) => seen.heard(load, work, view.loads.interval, &settings),
                    None => seen.silent(work),
                };
                let held = seen.peak.see(view.now, settings.hold, now.now).max(now.now);
                let lasting =
                    load.as_ref().and_then(|_| seen.lasting(view.now, now.now, &settings));
                seen.need = Need { held, lasting: lasting.map(|most| most.max(held)), ..now };
                seen.need
            })
            .collect()
    }
}

impl Policy for Keeptime {
    fn name(&self) -> &'static str {
        "keeptime"
    }

    fn plans(&mut self, view: &View<'_>) -> Vec<Plan> {
        let needs = self.needs(view);
        allocate(view, &needs, &mut self.shortages, &mut self.reversals)
    }
}

/// What a site's nodes are worth, and how much they worked.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Thousandths of standard nodes that serve it.
    capacity: u32,
    /// Seconds that standard nodes would have been busy.
    busy: f64,
}

fn works(view: &View<'_>) -> Vec<Work> {
    let mut works = vec![Work::default(); view.pool.sites().len()];
    let interval = view.loads.interval.as_secs_f64();
    for (node, place) in view.holdings.nodes() {
        let (Place::Serving(site) | Place::Leaving(site)) = place else { continue };
        let worth = view.pool.worth(site, node).thousandths();
        let work = &mut works[site.0 as usize];
        let standard = f64::from(worth) / f64::from(Weight::STANDARD.thousandths());
        work.busy += view.loads.busy(node).as_f64() * standard * interval;
        if place == Place::Serving(site) {
            work.capacity = work.capacity.saturating_add(worth);
        }
    }
    works
}

impl Seen {
    fn heard(&mut self, load: &SiteLoad, work: Work, interval: Nanos, settings: &Settings) -> Need {
        let average_over = settings.average_over.as_secs_f64();
        self.estimate.see(interval.as_secs_f64(), average_over, load, work.busy);
        let offered = self.estimate.offered(average_over);
        let (Some(offered), Some(service)) = (offered, self.estimate.service()) else {
            // Nothing was ever answered: what works on requests is needed, and more may not help.
            let idle = [load.arrived, load.queued, load.in_flight] == [0; 3];
            return Need { now: if idle { 0 } else { work.capacity }, ..Need::default() };
        };
        let backlog = load.queued as f64 * service / settings.backlog_within.as_secs_f64();
        let urgent = thousandths(offered + backlog);
        let waiting = nodes_needed(offered, settings.wait_max, NODES_MAX as u32);
        let now = urgent.max(waiting.saturating_mul(Weight::STANDARD.thousandths()));
        Need { urgent, now, ..Need::default() }
    }

    /// The most that it needed within [`Settings::release_after`], of which it needs `now`; nothing if it was not heard for
    /// so long, or not for a while meanwhile.
    fn lasting(&mut self, at: Nanos, now: u32, settings: &Settings) -> Option<u32> {
        let heard_on = |known: &(Nanos, Nanos)| at.saturating_sub(known.1) <= settings.hold;
        let since = self.known.filter(heard_on).map_or(at, |(since, _)| since);
        self.known = Some((since, at));
        let most = self.lasting.see(at, settings.release_after, now);
        (at.saturating_sub(since) >= settings.release_after).then_some(most)
    }

    /// As loaded as it was, and no node of it is idle.
    fn silent(&self, work: Work) -> Need {
        Need { now: self.need.now.max(work.capacity), ..self.need }
    }
}

/// Rounded up; what is not a number needs nothing.
fn thousandths(nodes: f64) -> u32 {
    (nodes * f64::from(Weight::STANDARD.thousandths())).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holdings::Holdings;
    use crate::load::Loads;
    use crate::pool::{Guarantee, KindIndex, Pool, Site, SiteIndex};

    #[test]
    fn before_anything_is_answered_what_works_is_needed_however_much_has_come() {
        let need = |load: SiteLoad| {
            let (work, interval) = (Work { capacity: 3_000, busy: 0.0 }, Nanos::from_millis(100));
            Seen::default().heard(&load, work, interval, &Settings::default()).now
        };
        let idle = SiteLoad::default();
        assert_eq!(need(idle), 0);
        assert_eq!(need(SiteLoad { in_flight: 1, ..idle }), 3_000);
        assert_eq!(need(SiteLoad { arrived: u64::MAX, queued: u64::MAX, ..idle }), 3_000);
    }

    #[test]
    fn what_waits_is_to_be_answered_within_the_time_for_a_backlog() {
        let (work, interval) = (Work { capacity: 3_000, busy: 0.1 }, Nanos::from_millis(100));
        let urgent = |queued| {
            // 100 requests a second of 10 ms each: one node's worth.
            let load = SiteLoad { arrived: 10, completed: 10, queued, in_flight: 0 };
            Seen::default().heard(&load, work, interval, &Settings::default()).urgent
        };
        assert_eq!(urgent(0), 1_000);
        assert_eq!(urgent(50), 3_000, "half a second's work within a quarter");
    }

    #[test]
    fn a_node_works_as_much_as_it_is_worth_and_serves_until_it_leaves() {
        let weights = [1_000, 500].map(|weight| Weight::try_from(weight).unwrap()).to_vec();
        let guarantee = Guarantee { hard: 1, soft: 1, max: 4 };
        let site = Site { name: "shop".parse().unwrap(), guarantee, priority: 1, weights };
        let kinds = ["large", "small"].map(|kind| kind.parse().unwrap()).to_vec();
        let nodes = [0, 1, 1, 1].map(KindIndex).to_vec();
        let pool = Pool::new(kinds, nodes, vec![site]).unwrap();
        let (serving, leaving) = (Place::Serving(SiteIndex(0)), Place::Leaving(SiteIndex(0)));
        let holdings = Holdings::new(vec![serving, serving, leaving, Place::Spare]);
        // Who says nothing is busy.
        let loads = Loads::silent(1, 4, Nanos::from_secs(2));
        let view = View { now: Nanos::default(), pool: &pool, holdings: &holdings, loads: &loads };
        let work = works(&view)[0];
        assert_eq!((work.capacity, work.busy), (1_500, 4.0));
    }
}
