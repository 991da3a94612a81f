//! Owns sites, nodes and requests in virtual time, under a policy: one queue before each site's nodes, as
//! balancers keep it; a node works on one request at a time, for a random time. Who moves is the real
//! [`Pools`]' decision.

use super::draws::{Draws, Purpose, exponential, normal};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use keeptime_pools::holdings::Place;
use keeptime_pools::load::{Loads, SiteLoad};
use keeptime_pools::plan::Move;
use keeptime_pools::policy::Policy;
use keeptime_pools::pool::{Pool, SiteIndex, Weight};
use keeptime_pools::pools::{Event, Pools};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// For as long after a move, one the other way is a reversal.
const REVERSAL_WITHIN: Nanos = Nanos::from_secs(60);

/// How long things take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How often the policy is asked.
    pub look: Nanos,
    /// Mean time of a request on a standard node, to sites of which nothing else is said.
    pub service: Nanos,
    /// From the last request of a node for its old site to its first for the new one.
    pub switch: Nanos,
}

/// How the times of requests lie around their mean.
#[derive(Debug, Clone)]
pub enum Service {
    /// Exponential.
    Exponential,
    /// Lognormal, by the standard deviation of the logarithm: [`Self::lognormal`].
    Lognormal {
        /// At least 0.
        deviation: f64,
    },
    /// As long as the file is that is asked for, by how often each is, added up, and its time in means.
    Files(Vec<(f64, f64)>),
}

impl Service {
    /// Lognormal with this coefficient of variation, the standard deviation over the mean: 0 or more.
    pub fn lognormal(variation: f64) -> Self {
        Self::Lognormal { deviation: (variation * variation).ln_1p().sqrt() }
    }
}

/// How long those wait who ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// What is answered by then is in time.
    pub in_time: Nanos,
    /// Who has waited so long for a node goes away; more than nothing.
    pub leaves: Nanos,
}

/// A pool at work.
#[derive(Debug)]
pub struct World<R> {
    now: Nanos,
    pools: Pools,
    pace: Pace,
    sites: Vec<Site>,
    nodes: Vec<Node>,
    agenda: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    scheduled: u64,
    random: R,
    /// By site.
    requests: Vec<Requests>,
    /// Nothing: everybody waits, and nothing is in time or late.
    patience: Option<Patience>,
    /// What was seen.
    pub seen: Seen,
}

/// What was seen of a run.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Requests that each site answered.
    pub completed: Vec<u64>,
    /// Those of them that were answered in time.
    pub in_time: Vec<u64>,
    /// Requests of each site that nobody answers any more: who asked has gone, or the node has failed.
    pub unanswered: Vec<u64>,
    /// Time that nodes worked, added up.
    pub busy: Nanos,
    /// Looks at which each site had its hard guarantee.
    pub hard_met: Vec<u64>,
    /// All looks.
    pub looks: u64,
    /// Requests that waited at each look, of all sites, added up.
    pub waited: u64,
    /// Moves from one site to another, or to none, when they were decided.
    pub moves: Vec<(Nanos, Move)>,
    /// For each look, how many nodes served each site.
    pub nodes: Vec<Vec<u32>>,
}

/// What is of a node says which of its lives it means: one ends with each failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The next request of an open source, if it is still that one.
    Arrival(u32, u64),
    /// A node has worked off its request.
    Done(u32, u64),
    /// A node has changed its site.
    Switched(u32, u64),
    Look,
}

#[derive(Debug, Clone, Default)]
struct Site {
    /// When each request that waits has arrived, oldest first. While one waits no node is idle.
    queue: VecDeque<Nanos>,
    idle: Vec<u32>,
    arrived: u64,
    completed: u64,
    /// Requests that closed clients will send yet.
    left: u64,
    /// Sent by them and not over.
    outstanding: u64,
    /// Mean time between arrivals of an open source, and which one it is.
    gap: Option<Nanos>,
    source: u64,
}

/// How long requests of a site take on a standard node.
#[derive(Debug, Clone)]
struct Requests {
    mean: Nanos,
    service: Service,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Since when it has worked on a request, as far as that is not counted as busy yet.
    working_since: Option<Nanos>,
    busy: Nanos,
    /// The site of the request, and when that had arrived.
    site: u32,
    asked: Nanos,
    life: u64,
}

impl<R: Draws> World<R> {
    /// Nobody asks for anything yet.
    ///
    /// # Panics
    /// If there is not one place for each node, or one names a site that is not there.
    pub fn new(
        pool: Pool,
        places: Vec<Place>,
        policy: Box<dyn Policy>,
        pace: Pace,
        random: R,
    ) -> Self {
        let (sites, nodes) = (pool.sites().len(), pool.nodes().len());
        let requests = Requests { mean: pace.service, service: Service::Exponential };
        let mut world = Self {
            now: Nanos::new(0),
            pools: Pools::new(pool, places, policy),
            pace,
            sites: vec![Site::default(); sites],
            nodes: vec![Node::default(); nodes],
            agenda: BinaryHeap::new(),
            scheduled: 0,
            random,
            requests: vec![requests; sites],
            patience: None,
            seen: Seen::empty(sites),
        };
        for (node, place) in world.pools.holdings().nodes() {
            if let Place::Serving(site) = place {
                world.sites[site.0 as usize].idle.push(node.0);
            }
        }
        world.after(pace.look, Due::Look);
        world
    }

    /// With requests that take so long, to all sites: [`Pace::service`] in the mean.
    #[must_use]
    pub fn with_service(mut self, service: Service) -> Self {
        self.requests.fill(Requests { mean: self.pace.service, service });
        self
    }

    /// With requests that take so long to `site`: `mean` in the mean.
    #[must_use]
    pub fn with_service_of(mut self, site: SiteIndex, mean: Nanos, service: Service) -> Self {
        self.requests[site.0 as usize] = Requests { mean, service };
        self
    }

    /// With people who wait so long.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Now, since the start.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// So many clients send `requests` in all; each sends its next when the one before is over.
    pub fn flood(&mut self, site: SiteIndex, clients: u64, requests: u64) {
        let at = site.0 as usize;
        let first = clients.min(requests);
        self.sites[at].left = requests - first;
        self.sites[at].outstanding += first;
        for _ in 0..first {
            self.arrive(site.0);
        }
    }

    /// Requests arrive at random, so many a second, until told otherwise.
    pub fn open(&mut self, site: SiteIndex, per_second: f64) {
        let state = &mut self.sites[site.0 as usize];
        state.source += 1;
        state.gap = Nanos::from_secs_f64(1.0 / per_second).filter(|_| per_second > 0.0);
        self.next_arrival(site.0);
    }

    /// A node that could be reached cannot be reached any more: the request that it works on is lost, and so
    /// is its move.
    pub fn fail(&mut self, node: NodeIndex) {
        self.account(node.0);
        if let Place::Serving(site) = self.pools.holdings().place(node) {
            self.sites[site.0 as usize].idle.retain(|idle| *idle != node.0);
        }
        self.pools.happened(self.now, Event::Died(node));
        let state = &mut self.nodes[node.0 as usize];
        state.life += 1;
        let site = state.site;
        if state.working_since.take().is_some() {
            self.seen.unanswered[site as usize] += 1;
            self.over(site);
        }
    }

    /// The node can be reached again, and is spare.
    pub fn repair(&mut self, node: NodeIndex) {
        self.pools.happened(self.now, Event::Returned(node));
    }

    /// Goes on until `end`.
    pub fn run_until(&mut self, end: Nanos) {
        while self.agenda.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Goes on until all that was asked of `site` by [`Self::flood`] is answered.
    pub fn run_out(&mut self, site: SiteIndex) {
        while self.sites[site.0 as usize].outstanding > 0 {
            self.step();
        }
    }

    /// What was seen since the last time; looks anew from now on. Memory is that of what was not taken.
    pub fn take_seen(&mut self) -> Seen {
        std::mem::replace(&mut self.seen, Seen::empty(self.sites.len()))
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, due))) = self.agenda.pop() else { return };
        self.now = at;
        match due {
            Due::Arrival(site, source) if self.sites[site as usize].source == source => {
                self.arrive(site);
                self.next_arrival(site);
            }
            Due::Done(node, life) if self.nodes[node as usize].life == life => self.done(node),
            Due::Switched(node, life) if self.nodes[node as usize].life == life => {
                self.switched(node);
            }
            Due::Arrival(..) | Due::Done(..) | Due::Switched(..) => {}
            Due::Look => self.look(),
        }
    }

    fn after(&mut self, span: Nanos, due: Due) {
        self.scheduled += 1;
        self.agenda.push(Reverse((self.now.saturating_add(span), self.scheduled, due)));
    }

    /// The node will serve its next site.
    fn switch(&mut self, node: u32) {
        let life = self.nodes[node as usize].life;
        self.after(self.pace.switch, Due::Switched(node, life));
    }

    /// How long a node works on a request of `site` on which it works for `mean` in the mean.
    fn service_span(&mut self, site: u32, mean: Nanos) -> Nanos {
        let (random, purpose) = (&mut self.random, Purpose::Service(SiteIndex(site)));
        let part = match &self.requests[site as usize].service {
            Service::Exponential => exponential(random, purpose),
            Service::Lognormal { deviation } => {
                (deviation * normal(random, purpose) - deviation * deviation / 2.0).exp()
            }
            Service::Files(files) => {
                let uniform = random.uniform(purpose);
                let at = files.partition_point(|(often, _)| *often < uniform);
                files[at.min(files.len() - 1)].1
            }
        };
        Nanos::from_secs_f64(part * mean.as_secs_f64()).unwrap_or(mean)
    }

    fn next_arrival(&mut self, site: u32) {
        let Site { gap: Some(gap), source, .. } = self.sites[site as usize] else { return };
        let part = exponential(&mut self.random, Purpose::Arrival(SiteIndex(site)));
        let span = Nanos::from_secs_f64(part * gap.as_secs_f64()).unwrap_or(gap);
        self.after(span, Due::Arrival(site, source));
    }

    fn arrive(&mut self, site: u32) {
        let state = &mut self.sites[site as usize];
        state.arrived += 1;
        state.queue.push_back(self.now);
        if let Some(node) = state.idle.pop() {
            self.work(node, site);
        }
    }

    /// The node takes the next request, or is idle.
    fn work(&mut self, node: u32, site: u32) {
        self.let_go(site);
        let state = &mut self.sites[site as usize];
        let Some(asked) = state.queue.pop_front() else {
            state.idle.push(node);
            return;
        };
        let worth = self.pools.pool().worth(SiteIndex(site), NodeIndex(node)).thousandths();
        let standard = u64::from(Weight::STANDARD.thousandths());
        let mean = self.requests[site as usize].mean.get();
        let mean = Nanos::new(mean * standard / u64::from(worth.max(1)));
        let span = self.service_span(site, mean);
        let state = &mut self.nodes[node as usize];
        state.working_since = Some(self.now);
        (state.site, state.asked) = (site, asked);
        let life = state.life;
        self.after(span, Due::Done(node, life));
    }

    fn done(&mut self, node: u32) {
        self.account(node);
        let state = &mut self.nodes[node as usize];
        state.working_since = None;
        let (site, took) = (state.site, self.now.saturating_sub(state.asked));
        let at = site as usize;
        let in_time = self.patience.is_some_and(|patience| took <= patience.in_time);
        self.sites[at].completed += 1;
        self.seen.completed[at] += 1;
        self.seen.in_time[at] += u64::from(in_time);
        self.over(site);
        match self.pools.holdings().place(NodeIndex(node)) {
            Place::Serving(serves) if serves.0 == site => self.work(node, site),
            _ => self.switch(node),
        }
    }

    /// A request is over, answered or not: a closed client sends its next, if there is one.
    fn over(&mut self, site: u32) {
        let state = &mut self.sites[site as usize];
        let closed = state.outstanding > 0;
        if closed && state.left > 0 {
            state.left -= 1;
            self.arrive(site);
        } else if closed {
            state.outstanding -= 1;
        }
    }

    /// Those who have waited too long go away.
    fn let_go(&mut self, site: u32) {
        let Some(Patience { leaves, .. }) = self.patience else { return };
        let (at, now) = (site as usize, self.now);
        let is_gone = |asked: &Nanos| now.saturating_sub(*asked) >= leaves;
        while self.sites[at].queue.front().is_some_and(is_gone) {
            self.sites[at].queue.pop_front();
            self.seen.unanswered[at] += 1;
            self.over(site);
        }
    }

    fn switched(&mut self, node: u32) {
        let next = self.pools.happened(self.now, Event::Arrived(NodeIndex(node)));
        if let Place::Serving(site) = self.pools.holdings().place(NodeIndex(node)) {
            self.work(node, site.0);
        }
        next.into_iter().for_each(|next| self.start(next));
    }

    /// Drains the node: at once if it does nothing.
    fn start(&mut self, step: Move) {
        self.seen.moves.push((self.now, step));
        if let Some(site) = step.from {
            self.sites[site.0 as usize].idle.retain(|node| *node != step.node.0);
        }
        if self.nodes[step.node.0 as usize].working_since.is_none() {
            self.switch(step.node.0);
        }
    }

    fn look(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            self.account(node);
        }
        for site in 0..self.sites.len() as u32 {
            self.let_go(site);
        }
        let loads = self.loads();
        self.watch();
        for step in self.pools.decide(self.now, &loads) {
            self.start(step);
        }
        self.after(self.pace.look, Due::Look);
    }

    /// Counts the time that a node has worked so far.
    fn account(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        let Some(since) = state.working_since else { return };
        let span = self.now.saturating_sub(since);
        state.working_since = Some(self.now);
        state.busy = state.busy.saturating_add(span);
        self.seen.busy = self.seen.busy.saturating_add(span);
    }

    fn loads(&mut self) -> Loads {
        let look = self.pace.look;
        let mut loads = Loads::silent(self.sites.len(), self.nodes.len(), look);
        let mut in_flight = vec![0; self.sites.len()];
        for node in self.nodes.iter().filter(|node| node.working_since.is_some()) {
            in_flight[node.site as usize] += 1;
        }
        for (at, site) in self.sites.iter_mut().enumerate() {
            loads.sites[at] = Some(SiteLoad {
                arrived: std::mem::take(&mut site.arrived),
                completed: std::mem::take(&mut site.completed),
                queued: site.queue.len() as u64,
                in_flight: in_flight[at],
            });
        }
        for (load, node) in loads.nodes.iter_mut().zip(&mut self.nodes) {
            let busy = std::mem::take(&mut node.busy).get() * 1_000_000 / look.get();
            *load = Share::try_from(busy.min(1_000_000) as u32).ok();
        }
        loads
    }

    fn watch(&mut self) {
        let counts = self.pools.holdings().counts(self.sites.len());
        let serving: Vec<_> = counts.iter().map(|count| count.serving).collect();
        self.seen.looks += 1;
        self.seen.waited += self.sites.iter().map(|site| site.queue.len() as u64).sum::<u64>();
        for (at, site) in self.pools.pool().sites().iter().enumerate() {
            self.seen.hard_met[at] += u64::from(serving[at] >= site.guarantee.hard);
        }
        self.seen.nodes.push(serving);
    }
}

impl Seen {
    fn empty(sites: usize) -> Self {
        let none = || vec![0; sites];
        let (completed, in_time, unanswered, hard_met) = (none(), none(), none(), none());
        Self { completed, in_time, unanswered, hard_met, ..Self::default() }
    }

    /// The part of all looks at which `site` had its hard guarantee, in percent.
    pub fn hard_percent(&self, site: SiteIndex) -> f64 {
        100.0 * self.hard_met[site.0 as usize] as f64 / self.looks.max(1) as f64
    }

    /// Requests of all sites that waited at a look, on average.
    pub fn waiting(&self) -> f64 {
        self.waited as f64 / self.looks.max(1) as f64
    }

    /// How many moves went the other way than one shortly before, where the load did not change between them
    /// (at `changes`).
    pub fn reversals(&self, changes: &[Nanos]) -> usize {
        let mut lately: VecDeque<(Nanos, Move)> = VecDeque::new();
        let mut reversals = 0;
        for (at, step) in &self.moves {
            lately.retain(|(before, _)| at.saturating_sub(*before) < REVERSAL_WITHIN);
            let undone = |(since, before): &(Nanos, Move)| {
                let is_other_way = before.from == step.to && before.to == step.from;
                let has_changed = changes.iter().any(|change| since < change && change <= at);
                is_other_way && step.from.is_some() && !has_changed
            };
            reversals += usize::from(lately.iter().any(undone));
            lately.push_back((*at, *step));
        }
        reversals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::draws::Streams;
    use keeptime_model::site::Guarantee;
    use keeptime_pools::policy::PolicyKind;
    use keeptime_pools::pool::{KindIndex, Site};

    const SITE: SiteIndex = SiteIndex(0);
    const NODE: NodeIndex = NodeIndex(0);

    /// A node at each of these places, and sites that are promised one each; a request takes a second in the mean.
    fn world(places: &[Place], names: &[&str]) -> World<Streams> {
        let site = |name: &&str| Site {
            name: name.parse().unwrap(),
            guarantee: Guarantee { hard: 1, soft: 1, max: 1 },
            priority: 1,
            weights: vec![Weight::STANDARD],
        };
        let (kinds, nodes) = (vec!["server".parse().unwrap()], vec![KindIndex(0); places.len()]);
        let pool = Pool::new(kinds, nodes, names.iter().map(site).collect()).unwrap();
        let [look, service, switch] = [20, 1_000, 5].map(Nanos::from_millis);
        let pace = Pace { look, service, switch };
        let policy = PolicyKind::Rigid.policy();
        World::new(pool, places.to_vec(), policy, pace, Streams::new(1, names.len()))
    }

    fn one_node(place: Place) -> World<Streams> {
        world(&[place], &["shop"])
    }

    // Goal: what a node was at when it failed stays undone, also if the node is back before it would have been done.
    #[test]
    fn a_request_is_lost_with_the_node_that_works_on_it() {
        let mut world = one_node(Place::Serving(SITE));
        world.flood(SITE, 1, 1);
        world.fail(NODE);
        world.repair(NODE);
        world.run_until(Nanos::from_secs(60));
        assert_eq!((world.seen.completed[0], world.seen.unanswered[0]), (0, 1));
        assert!(world.seen.nodes.iter().all(|serving| serving == &[0]), "nobody took it again");
    }

    // Goal: a node that failed idle gets nothing more.
    #[test]
    fn a_node_that_has_failed_gets_no_request() {
        let mut world = one_node(Place::Serving(SITE));
        world.fail(NODE);
        world.flood(SITE, 1, 1);
        world.run_until(Nanos::from_secs(60));
        assert_eq!((world.seen.completed[0], world.seen.unanswered[0]), (0, 0));
        assert_eq!(world.seen.busy, Nanos::new(0));
        assert_eq!(world.seen.waiting(), 1.0);
    }

    // Goal: before a site without a node the queue is as long as patience is: 100 a second for a second.
    #[test]
    fn who_has_waited_too_long_goes_away() {
        let [in_time, leaves] = [100, 1_000].map(Nanos::from_millis);
        let mut world = one_node(Place::Spare).with_patience(Patience { in_time, leaves });
        world.open(SITE, 100.0);
        world.run_until(Nanos::from_secs(20));
        let gone = world.seen.unanswered[0];
        assert!(
            (1_700..2_100).contains(&gone),
            "{gone} of some 2000, all but those of the last second"
        );
        assert!((85.0..110.0).contains(&world.seen.waiting()), "{}", world.seen.waiting());
        assert_eq!(world.seen.completed[0], 0);
    }

    // Goal: work is counted once, over all that was seen; what takes a second in the mean is late after a nanosecond.
    #[test]
    fn the_time_that_a_node_works_is_its_requests() {
        let [in_time, leaves] = [Nanos::new(1), Nanos::from_secs(1_000_000)];
        let mut world = one_node(Place::Serving(SITE)).with_patience(Patience { in_time, leaves });
        world.flood(SITE, 1, u64::MAX);
        world.run_until(Nanos::from_secs(100));
        let first = world.take_seen();
        world.run_until(Nanos::from_secs(200));
        for seen in [&first, &world.seen] {
            assert_eq!(seen.busy, Nanos::from_secs(100), "without a pause");
            assert!((50..150).contains(&seen.completed[0]), "{}", seen.completed[0]);
            assert_eq!(seen.in_time[0], 0);
        }
    }

    /// How long 20,000 requests take whose mean is a second: their mean and their deviation, in seconds.
    fn moments(service: Service) -> [f64; 2] {
        let mut world = one_node(Place::Spare).with_service(service);
        let spans: Vec<_> = (0..20_000)
            .map(|_| world.service_span(SITE.0, Nanos::from_secs(1)).as_secs_f64())
            .collect();
        let mean = spans.iter().sum::<f64>() / 2e4;
        let variance = spans.iter().map(|span| (span - mean).powi(2)).sum::<f64>() / 2e4;
        [mean, variance.sqrt()]
    }

    // Goal: times have the mean and the variation that are stated; those without a variation are all the same.
    #[test]
    fn times_lie_around_their_mean_as_is_said() {
        let cases = [
            (Service::Exponential, 1.0),
            (Service::lognormal(0.5), 0.5),
            (Service::lognormal(1.5), 1.5),
        ];
        for (service, variation) in cases {
            let [mean, deviation] = moments(service.clone());
            assert!((mean - 1.0).abs() < 0.06, "{service:?}: {mean}");
            assert!((deviation / variation - 1.0).abs() < 0.3, "{service:?}: {deviation}");
        }
        assert_eq!(moments(Service::lognormal(0.0)), [1.0, 0.0]);
    }

    // Goal: what is said of one site is said of no other: requests of a second each, and of four.
    #[test]
    fn each_site_has_its_own_service_time() {
        let other = SiteIndex(1);
        let mut world = world(&[SITE, other].map(Place::Serving), &["shop", "blog"])
            .with_service(Service::lognormal(0.0))
            .with_service_of(other, Nanos::from_secs(4), Service::lognormal(0.0));
        [SITE, other].into_iter().for_each(|site| world.flood(site, 1, 5));
        for (until, completed) in [(3_999, [3, 0]), (4_000, [4, 1]), (20_000, [5, 5])] {
            world.run_until(Nanos::from_millis(until));
            assert_eq!(world.seen.completed, completed, "{until} ms");
        }
    }

    /// Requests that have arrived, whatever has become of them.
    fn arrived(world: &World<Streams>) -> u64 {
        let working = world.nodes.iter().filter(|node| node.working_since.is_some()).count();
        let there = working + world.sites[0].queue.len();
        world.seen.completed[0] + world.seen.unanswered[0] + there as u64
    }

    // Goal: what nodes do changes nothing of what arrives: every policy is asked for the same.
    #[test]
    fn the_same_requests_arrive_whoever_serves_them() {
        let of = |place| {
            let mut world = one_node(place);
            world.open(SITE, 5.0);
            world.run_until(Nanos::from_secs(100));
            arrived(&world)
        };
        let served = of(Place::Serving(SITE));
        assert_eq!(served, of(Place::Spare));
        assert!((400..600).contains(&served), "{served}");
    }
}
