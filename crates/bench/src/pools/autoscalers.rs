//! Today's autoscalers by their published rules, on a pool that several share: each site has a number
//! of nodes that is wanted; surplus nodes become spare, lacking ones are taken from the spares, then
//! from sites of lower priority, as the Kubernetes scheduler preempts. Hard guarantee and max are the
//! least and the most replicas. A new node serves as fast as under any other policy here.

use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use keeptime_pools::holdings::{Count, Place};
use keeptime_pools::plan::{Plan, Reason, Step};
use keeptime_pools::policy::{Policy, View};
use keeptime_pools::pool::{SiteIndex, Weight};
use std::collections::VecDeque;
use std::fmt::Debug;

/// Decides how many nodes one site wants.
pub trait Autoscaler: Debug + Send + Clone {
    /// Its name.
    const NAME: &'static str;
    /// It looks so often.
    const PERIOD: Nanos;

    /// Takes in what was seen since the last call; called more often than it looks.
    fn see(&mut self, view: &View<'_>, site: SiteIndex);

    /// How many nodes of `ready` there should be.
    fn wanted(&mut self, now: Nanos, ready: u32) -> u32;
}

/// An autoscaler for each site.
#[derive(Debug)]
pub struct Autoscaled<A> {
    sites: Vec<(A, u32)>,
    template: A,
    looked: Nanos,
}

impl<A: Autoscaler> Autoscaled<A> {
    pub fn new(template: A) -> Self {
        Self { sites: Vec::new(), template, looked: Nanos::new(0) }
    }
}

impl<A: Autoscaler> Policy for Autoscaled<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn plans(&mut self, view: &View<'_>) -> Vec<Plan> {
        let counts = view.holdings.counts(view.pool.sites().len());
        if self.sites.is_empty() {
            self.sites =
                counts.iter().map(|count| (self.template.clone(), count.expected())).collect();
        }
        let looks = view.now.saturating_sub(self.looked) >= A::PERIOD;
        for (site, (scaler, wanted)) in view.pool.site_indices().zip(&mut self.sites) {
            scaler.see(view, site);
            if looks {
                let guarantee = view.pool.site(site).guarantee;
                let ready = counts[site.0 as usize].expected();
                *wanted = scaler.wanted(view.now, ready).clamp(guarantee.hard, guarantee.max);
            }
        }
        if looks {
            self.looked = view.now;
        }
        let wanted: Vec<_> = self.sites.iter().map(|(_, wanted)| *wanted).collect();
        reconcile(view, counts, &wanted)
    }
}

/// A movable node and where it is.
pub(super) type Candidate = (NodeIndex, Option<SiteIndex>);

/// Plans that bring every site to the number that is wanted, as far as there are nodes.
fn reconcile(view: &View<'_>, mut counts: Vec<Count>, wanted: &[u32]) -> Vec<Plan> {
    let mut free: Vec<_> = view.holdings.movable().collect();
    free.sort_by_key(|(node, _)| view.loads.busy(*node));
    let mut plans = give_back(view, &mut counts, &mut free, wanted);
    let mut sites: Vec<_> = view.pool.site_indices().collect();
    sites.sort_by_key(|site| std::cmp::Reverse(view.pool.site(*site).priority));
    for site in sites {
        while counts[site.0 as usize].expected() < wanted[site.0 as usize] {
            let victim = |(_, from): &Candidate| {
                from.is_none_or(|from| {
                    let other = view.pool.site(from);
                    other.priority < view.pool.site(site).priority
                        && counts[from.0 as usize].staying > other.guarantee.hard
                })
            };
            let useful = |(node, _): &Candidate| view.pool.worth(site, *node) != Weight::NONE;
            let candidates = free.iter().enumerate().filter(|(_, f)| useful(f) && victim(f));
            let rank = |(_, (_, from)): &(usize, &Candidate)| {
                from.map(|from| view.pool.site(from).priority)
            };
            let Some((at, _)) = candidates.min_by_key(rank) else { break };
            let (node, from) = free.remove(at);
            if let Some(from) = from {
                counts[from.0 as usize].staying -= 1;
            }
            counts[site.0 as usize].coming += 1;
            plans.push(Plan::direct(site, Reason::HighLoad, Step { node, from, to: Some(site) }));
        }
    }
    plans
}

/// Plans that make spares of what sites have beyond `wanted`, the first of `free` first; both follow.
pub(super) fn give_back(
    view: &View<'_>,
    counts: &mut [Count],
    free: &mut Vec<Candidate>,
    wanted: &[u32],
) -> Vec<Plan> {
    let mut plans = Vec::new();
    for site in view.pool.site_indices() {
        let count = &mut counts[site.0 as usize];
        while count.expected() > wanted[site.0 as usize] && count.staying > 0 {
            let Some(at) = free.iter().position(|(_, from)| *from == Some(site)) else { break };
            let (node, from) = free.remove(at);
            count.staying -= 1;
            plans.push(Plan::direct(site, Reason::LowLoad, Step { node, from, to: None }));
        }
    }
    plans
}

/// Kubernetes' HorizontalPodAutoscaler with its defaults, on CPU use: every 15 s the number of
/// replicas is multiplied by use / target, rounded up, unless that is within 10 % of one; at most
/// doubled or 4 more in a period; downwards the greatest recommendation of the last 300 s counts.
/// Replicas that do not report count as idle when it would grow and as on target when it would shrink.
#[derive(Debug, Clone, Default)]
pub struct Kubernetes {
    /// Node-seconds busy, of nodes that reported; node-seconds of these, and of those that did not.
    busy: f64,
    reported: f64,
    silent: f64,
    recommended: VecDeque<(Nanos, u32)>,
}

/// Use that is aimed at: the target of most examples.
const KUBERNETES_TARGET: f64 = 0.8;
const KUBERNETES_TOLERANCE: f64 = 0.1;
const KUBERNETES_STABILIZATION: Nanos = Nanos::from_secs(300);

impl Autoscaler for Kubernetes {
    const NAME: &'static str = "kubernetes";
    const PERIOD: Nanos = Nanos::from_secs(15);

    fn see(&mut self, view: &View<'_>, site: SiteIndex) {
        let interval = view.loads.interval.as_secs_f64();
        for (node, place) in view.holdings.nodes() {
            if place != Place::Serving(site) {
                continue;
            }
            match view.loads.nodes[node.0 as usize] {
                Some(busy) => {
                    self.busy += busy.as_f64() * interval;
                    self.reported += interval;
                }
                None => self.silent += interval,
            }
        }
    }

    fn wanted(&mut self, now: Nanos, ready: u32) -> u32 {
        let ratio = self.ratio();
        *self = Self { recommended: std::mem::take(&mut self.recommended), ..Self::default() };
        let recommended = if (ratio - 1.0).abs() <= KUBERNETES_TOLERANCE {
            ready
        } else {
            ((f64::from(ready) * ratio).ceil() as u32).min((ready * 2).max(ready + 4))
        };
        self.recommended.push_back((now, recommended));
        self.recommended.retain(|(at, _)| now.saturating_sub(*at) < KUBERNETES_STABILIZATION);
        if recommended >= ready {
            return recommended;
        }
        let greatest = self.recommended.iter().map(|(_, count)| *count).max();
        greatest.unwrap_or(recommended).min(ready)
    }
}

impl Kubernetes {
    /// Use over target.
    fn ratio(&self) -> f64 {
        if self.reported == 0.0 {
            return 1.0;
        }
        let ratio = self.busy / self.reported / KUBERNETES_TARGET;
        if self.silent == 0.0 {
            return ratio;
        }
        let all = (self.reported + self.silent) * KUBERNETES_TARGET;
        let assumed = if ratio > 1.0 { 0.0 } else { self.silent * KUBERNETES_TARGET };
        let with_silent = (self.busy + assumed) / all;
        // What is assumed may only soften the outcome, not turn it round.
        if (ratio > 1.0) == (with_silent > 1.0) { with_silent } else { 1.0 }
    }
}

/// Knative's autoscaler with its defaults, on concurrency: every 2 s, as many nodes as requests there
/// are on average over 60 s for each node's target; when the average over 6 s asks for twice the nodes
/// that there are, it panics: it follows that one, never downwards, until 60 s after the last such
/// look. At most 1000 times as many, at least half as many as there are.
#[derive(Debug, Clone, Default)]
pub struct Knative {
    /// Requests at the site, at each look.
    concurrency: VecDeque<(Nanos, f64)>,
    panicked: Option<Nanos>,
    most_in_panic: u32,
}

const KNATIVE_STABLE: Nanos = Nanos::from_secs(60);
const KNATIVE_PANIC: Nanos = Nanos::from_secs(6);
const KNATIVE_PANIC_THRESHOLD: f64 = 2.0;
/// 70 % of what a node can do at a time, which is one request here.
const KNATIVE_TARGET: f64 = 0.7;
const KNATIVE_UP_MAX: f64 = 1_000.0;
const KNATIVE_DOWN_MAX: f64 = 2.0;

impl Autoscaler for Knative {
    const NAME: &'static str = "knative";
    const PERIOD: Nanos = Nanos::from_secs(2);

    fn see(&mut self, view: &View<'_>, site: SiteIndex) {
        if let Some(load) = view.loads.sites[site.0 as usize] {
            self.concurrency.push_back((view.now, (load.queued + load.in_flight) as f64));
        }
        self.concurrency.retain(|(at, _)| view.now.saturating_sub(*at) < KNATIVE_STABLE);
    }

    fn wanted(&mut self, now: Nanos, ready: u32) -> u32 {
        let there = f64::from(ready.max(1));
        let (most, least) =
            ((KNATIVE_UP_MAX * there).ceil(), (f64::from(ready) / KNATIVE_DOWN_MAX).floor());
        let asked = |window| (self.average(now, window) / KNATIVE_TARGET).ceil();
        let stable = asked(KNATIVE_STABLE).max(least).min(most) as u32;
        let over = asked(KNATIVE_PANIC) / there >= KNATIVE_PANIC_THRESHOLD;
        let panic = asked(KNATIVE_PANIC).max(least).min(most) as u32;
        match self.panicked {
            _ if over => self.panicked = Some(now),
            Some(at) if now.saturating_sub(at) > KNATIVE_STABLE => {
                self.panicked = None;
                self.most_in_panic = 0;
            }
            _ => {}
        }
        if self.panicked.is_none() {
            return stable;
        }
        self.most_in_panic = self.most_in_panic.max(stable).max(panic);
        self.most_in_panic
    }
}

impl Knative {
    fn average(&self, now: Nanos, window: Nanos) -> f64 {
        let recent = self.concurrency.iter().filter(|(at, _)| now.saturating_sub(*at) < window);
        let (sum, count) = recent.fold((0.0, 0.0), |(sum, count), (_, c)| (sum + c, count + 1.0));
        if count == 0.0 { 0.0 } else { sum / count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(busy: f64, silent: f64) -> Kubernetes {
        Kubernetes { busy: busy * 10.0, reported: 10.0, silent, ..Kubernetes::default() }
    }

    #[test]
    fn kubernetes_grows_by_the_ratio_and_at_most_doubles() {
        let at = Nanos::from_secs;
        assert_eq!(used(1.0, 0.0).wanted(at(15), 8), 10);
        assert_eq!(used(0.86, 0.0).wanted(at(15), 8), 8, "within the tolerance");
        let mut far = Kubernetes { busy: 80.0, reported: 10.0, ..Kubernetes::default() };
        assert_eq!(far.wanted(at(15), 8), 16);
        let mut few = Kubernetes { busy: 80.0, reported: 10.0, ..Kubernetes::default() };
        assert_eq!(few.wanted(at(15), 1), 5);
    }

    #[test]
    fn kubernetes_shrinks_to_the_greatest_of_five_minutes() {
        let at = Nanos::from_secs;
        let mut scaler = used(0.8, 0.0);
        assert_eq!(scaler.wanted(at(15), 8), 8);
        for turn in 2..21 {
            scaler = Kubernetes { recommended: scaler.recommended, ..used(0.2, 0.0) };
            assert_eq!(scaler.wanted(at(15 * turn), 8), 8, "turn {turn}");
        }
        scaler = Kubernetes { recommended: scaler.recommended, ..used(0.2, 0.0) };
        assert_eq!(scaler.wanted(at(15 * 21), 8), 2);
    }

    #[test]
    fn kubernetes_counts_the_silent_as_its_rules_say() {
        let at = Nanos::from_secs;
        // 4 of 8 at 100 %: 1.25 with these alone; with the silent at 0 it would shrink: it stays.
        assert_eq!(used(1.0, 10.0).wanted(at(15), 8), 8);
        // 4 of 8 at 20 %: with the silent on target 0.625.
        assert_eq!(used(0.2, 10.0).wanted(at(15), 8), 5);
    }

    fn steady(scaler: &mut Knative, from: u64, to: u64, concurrency: f64) {
        for second in from..to {
            scaler.concurrency.push_back((Nanos::from_secs(second), concurrency));
        }
    }

    #[test]
    fn knative_panics_at_twice_the_nodes_and_calms_down_a_minute_later() {
        let at = Nanos::from_secs;
        let mut scaler = Knative::default();
        steady(&mut scaler, 0, 60, 1.3);
        assert_eq!(scaler.wanted(at(60), 2), 2);
        steady(&mut scaler, 60, 66, 7.0);
        assert_eq!(scaler.wanted(at(66), 2), 10);
        steady(&mut scaler, 66, 150, 0.6);
        assert_eq!(scaler.wanted(at(120), 10), 10, "never down in panic");
        assert_eq!(scaler.wanted(at(127), 10), 5, "then by half at most");
        assert_eq!(scaler.wanted(at(150), 5), 2);
    }
}
