//! Sites, nodes and requests in virtual time, under a policy: one queue before each site's nodes, as
//! balancers keep it; a node works on one request at a time, for a random (exponential) time.

use crate::plan::Random;
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

/// How often policies are asked, all of them alike.
pub const LOOK: Nanos = Nanos::from_millis(20);
/// Mean time of a request on a standard node: a dynamic page.
pub const SERVICE: Nanos = Nanos::from_millis(5);
/// From the last request of a node for its old site to its first for the new one: two commands to a
/// balancer and a check.
const SWITCH: Nanos = Nanos::from_millis(5);
/// For as long after a move, one the other way is a reversal.
const REVERSAL_WITHIN: Nanos = Nanos::from_secs(60);

/// How long requests take on a standard node: [`SERVICE`] on average.
#[derive(Debug, Clone)]
pub enum Service {
    /// Exponential.
    Exponential,
    /// As long as the file is that is asked for, by how often each is, added up, and its time in means.
    Files(Vec<(f64, f64)>),
}

/// A pool at work.
pub struct World {
    now: Nanos,
    pools: Pools,
    sites: Vec<Site>,
    nodes: Vec<Node>,
    agenda: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    scheduled: u64,
    random: Random,
    service: Service,
    /// What was seen.
    pub seen: Seen,
}

/// What was seen of a run.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Requests that each site answered.
    pub completed: Vec<u64>,
    /// Looks at which each site had its hard guarantee.
    pub hard_met: Vec<u64>,
    /// All looks.
    pub looks: u64,
    /// Requests that waited at each look, of all sites, added up.
    pub waited: u64,
    /// Moves from one site to another, when they were decided.
    pub moves: Vec<(Nanos, Move)>,
    /// For each look, how many nodes served each site.
    pub nodes: Vec<Vec<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The next request of an open source, if it is still that one.
    Arrival(u32, u64),
    /// A node has worked off its request.
    Done(u32),
    /// A node has changed its site.
    Switched(u32),
    Look,
}

#[derive(Debug, Clone, Default)]
struct Site {
    queue: u64,
    idle: Vec<u32>,
    arrived: u64,
    completed: u64,
    /// Requests that closed clients will send yet.
    left: u64,
    /// Sent by them and not answered.
    outstanding: u64,
    /// Mean time between arrivals of an open source, and which one it is.
    gap: Option<Nanos>,
    source: u64,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Since when it has worked on a request.
    working_since: Option<Nanos>,
    busy: Nanos,
    /// The site of the request.
    site: u32,
}

impl World {
    /// Nobody asks for anything yet.
    pub fn new(pool: Pool, places: Vec<Place>, policy: Box<dyn Policy>, seed: u64) -> Self {
        let (sites, nodes) = (pool.sites().len(), pool.nodes().len());
        let mut world = Self {
            now: Nanos::new(0),
            pools: Pools::new(pool, places, policy),
            sites: vec![Site::default(); sites],
            nodes: vec![Node::default(); nodes],
            agenda: BinaryHeap::new(),
            scheduled: 0,
            random: Random(seed),
            service: Service::Exponential,
            seen: Seen::empty(sites),
        };
        for (node, place) in world.pools.holdings().nodes() {
            if let Place::Serving(site) = place {
                world.sites[site.0 as usize].idle.push(node.0);
            }
        }
        world.after(LOOK, Due::Look);
        world
    }

    /// With requests that take so long.
    #[must_use]
    pub fn with_service(self, service: Service) -> Self {
        Self { service, ..self }
    }

    /// Now, since the start.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// So many clients send `requests` in all; each sends its next when the one before is answered.
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

    /// Forgets what was seen so far, as after a warm-up.
    pub fn look_anew(&mut self) {
        self.seen = Seen::empty(self.sites.len());
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, due))) = self.agenda.pop() else { return };
        self.now = at;
        match due {
            Due::Arrival(site, source) if self.sites[site as usize].source == source => {
                self.arrive(site);
                self.next_arrival(site);
            }
            Due::Arrival(..) => {}
            Due::Done(node) => self.done(node),
            Due::Switched(node) => self.switched(node),
            Due::Look => self.look(),
        }
    }

    fn after(&mut self, span: Nanos, due: Due) {
        self.scheduled += 1;
        self.agenda.push(Reverse((self.now.saturating_add(span), self.scheduled, due)));
    }

    fn service_span(&mut self, mean: Nanos) -> Nanos {
        match &self.service {
            Service::Exponential => self.random_span(mean),
            Service::Files(files) => {
                let uniform = uniform(&mut self.random);
                let at = files.partition_point(|(often, _)| *often < uniform);
                let (_, time) = files[at.min(files.len() - 1)];
                Nanos::from_secs_f64(time * mean.as_secs_f64()).unwrap_or(mean)
            }
        }
    }

    /// Exponential with this mean.
    fn random_span(&mut self, mean: Nanos) -> Nanos {
        let uniform = uniform(&mut self.random);
        Nanos::from_secs_f64(-uniform.ln() * mean.as_secs_f64()).unwrap_or(mean)
    }

    fn next_arrival(&mut self, site: u32) {
        let Site { gap: Some(gap), source, .. } = self.sites[site as usize] else { return };
        let span = self.random_span(gap);
        self.after(span, Due::Arrival(site, source));
    }

    fn arrive(&mut self, site: u32) {
        let state = &mut self.sites[site as usize];
        state.arrived += 1;
        state.queue += 1;
        if let Some(node) = state.idle.pop() {
            self.work(node, site);
        }
    }

    /// The node takes the next request, or is idle.
    fn work(&mut self, node: u32, site: u32) {
        let state = &mut self.sites[site as usize];
        if state.queue == 0 {
            state.idle.push(node);
            return;
        }
        state.queue -= 1;
        let worth = self.pools.pool().worth(SiteIndex(site), NodeIndex(node)).thousandths();
        let standard = u64::from(Weight::STANDARD.thousandths());
        let mean = Nanos::new(SERVICE.get() * standard / u64::from(worth.max(1)));
        let span = self.service_span(mean);
        self.nodes[node as usize].working_since = Some(self.now);
        self.nodes[node as usize].site = site;
        self.after(span, Due::Done(node));
    }

    fn done(&mut self, node: u32) {
        self.account(node);
        let site = self.nodes[node as usize].site;
        self.nodes[node as usize].working_since = None;
        let state = &mut self.sites[site as usize];
        state.completed += 1;
        self.seen.completed[site as usize] += 1;
        let closed = state.outstanding > 0;
        if closed && state.left > 0 {
            state.left -= 1;
            self.arrive(site);
        } else if closed {
            state.outstanding -= 1;
        }
        match self.pools.holdings().place(NodeIndex(node)) {
            Place::Serving(at) if at.0 == site => self.work(node, site),
            _ => self.after(SWITCH, Due::Switched(node)),
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
            self.after(SWITCH, Due::Switched(step.node.0));
        }
    }

    fn look(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            self.account(node);
        }
        let loads = self.loads();
        self.watch();
        for step in self.pools.decide(self.now, &loads) {
            self.start(step);
        }
        self.after(LOOK, Due::Look);
    }

    /// Counts the time that a node has worked so far.
    fn account(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        if let Some(since) = state.working_since.replace(self.now) {
            state.busy = state.busy.saturating_add(self.now.saturating_sub(since));
        } else {
            state.working_since = None;
        }
    }

    fn loads(&mut self) -> Loads {
        let mut loads = Loads::silent(self.sites.len(), self.nodes.len(), LOOK);
        for (at, site) in self.sites.iter_mut().enumerate() {
            let working = |node: &&Node| node.working_since.is_some() && node.site == at as u32;
            loads.sites[at] = Some(SiteLoad {
                arrived: std::mem::take(&mut site.arrived),
                completed: std::mem::take(&mut site.completed),
                queued: site.queue,
                in_flight: self.nodes.iter().filter(working).count() as u64,
            });
        }
        for (load, node) in loads.nodes.iter_mut().zip(&mut self.nodes) {
            let busy = std::mem::take(&mut node.busy).get() * 1_000_000 / LOOK.get();
            *load = Share::try_from(busy.min(1_000_000) as u32).ok();
        }
        loads
    }

    fn watch(&mut self) {
        let counts = self.pools.holdings().counts(self.sites.len());
        let serving: Vec<_> = counts.iter().map(|count| count.serving).collect();
        self.seen.looks += 1;
        self.seen.waited += self.sites.iter().map(|site| site.queue).sum::<u64>();
        for (at, site) in self.pools.pool().sites().iter().enumerate() {
            self.seen.hard_met[at] += u64::from(serving[at] >= site.guarantee.hard);
        }
        self.seen.nodes.push(serving);
    }
}

/// More than 0 and at most 1.
pub fn uniform(random: &mut Random) -> f64 {
    (random.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64
}

impl Seen {
    fn empty(sites: usize) -> Self {
        Self { completed: vec![0; sites], hard_met: vec![0; sites], ..Self::default() }
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
