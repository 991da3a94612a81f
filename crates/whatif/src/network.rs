//! Flows that share links by max-min fairness, each up to what it wants; a reserved flow has its rate
//! and shares nothing.
//!
//! A link whose flows want no more in sum than it has binds nobody. So a change reaches as far as links
//! that bind, and only that part is filled anew: in a fat tree with whole nodes, mostly one job.

use keeptime_model::units::BitsPerSecond;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Which flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(u32);

/// What is to flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Whose it is: told when its rate changes.
    pub owner: usize,
    /// The links that it passes, each once.
    pub path: Vec<u32>,
    /// It uses no more.
    pub most: BitsPerSecond,
    /// Whether it has that, whatever others do.
    pub reserved: bool,
}

/// Links and the flows on them.
#[derive(Debug, Clone)]
pub struct Network {
    links: Vec<Link>,
    flows: Vec<Flow>,
    /// Numbers of flows that are gone.
    unused: Vec<u32>,
    /// Links that bound before or after a change that was not settled yet.
    changed: BTreeSet<u32>,
    /// Whose flows came since then.
    arrived: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
struct Link {
    /// What is left for flows without a reservation.
    capacity: u64,
    /// What they want together.
    wanted: u64,
    flows: BTreeSet<u32>,
}

#[derive(Debug, Clone)]
struct Flow {
    wanted: Wanted,
    rate: f64,
}

impl Link {
    fn binds(&self) -> bool {
        self.wanted > self.capacity
    }
}

impl Network {
    /// Links of these capacities, and no flows.
    pub fn new(capacities: impl IntoIterator<Item = BitsPerSecond>) -> Self {
        let link = |capacity: BitsPerSecond| Link {
            capacity: capacity.get(),
            wanted: 0,
            flows: BTreeSet::new(),
        };
        Self {
            links: capacities.into_iter().map(link).collect(),
            flows: Vec::new(),
            unused: Vec::new(),
            changed: BTreeSet::new(),
            arrived: BTreeSet::new(),
        }
    }

    /// Adds a flow. Rates follow with [`Self::settle`]. O(path log flows).
    pub fn add(&mut self, wanted: Wanted) -> FlowId {
        let number = self.unused.pop().unwrap_or(self.flows.len() as u32);
        let most = wanted.most.get();
        for link in &wanted.path {
            let state = &mut self.links[*link as usize];
            if wanted.reserved {
                let left = state.capacity.checked_sub(most);
                state.capacity = left.expect("the engine promises no more of a link than it has");
            } else {
                state.wanted += most;
                state.flows.insert(number);
            }
            if state.binds() {
                self.changed.insert(*link);
            }
        }
        self.arrived.insert(wanted.owner);
        let flow = Flow { rate: most as f64, wanted };
        match self.flows.get_mut(number as usize) {
            Some(place) => *place = flow,
            None => self.flows.push(flow),
        }
        FlowId(number)
    }

    /// Removes a flow that is there. Rates follow with [`Self::settle`]. O(path log flows).
    pub fn remove(&mut self, FlowId(number): FlowId) {
        let Flow { wanted, .. } = &self.flows[number as usize];
        let most = wanted.most.get();
        for link in &wanted.path {
            let state = &mut self.links[*link as usize];
            if state.binds() {
                self.changed.insert(*link);
            }
            if wanted.reserved {
                state.capacity += most;
            } else {
                state.wanted -= most;
                state.flows.remove(&number);
            }
        }
        self.unused.push(number);
    }

    /// What a flow has, as of the last [`Self::settle`]; in bit/s.
    pub fn rate(&self, FlowId(number): FlowId) -> f64 {
        self.flows[number as usize].rate
    }

    /// Gives every flow its fair rate after changes, and tells whose have another one, or came.
    pub fn settle(&mut self) -> BTreeSet<usize> {
        let mut owners = std::mem::take(&mut self.arrived);
        let changed = std::mem::take(&mut self.changed);
        let part = self.reached(changed);
        for (number, rate) in self.fair(&part) {
            let flow = &mut self.flows[number as usize];
            if flow.rate != rate {
                flow.rate = rate;
                owners.insert(flow.wanted.owner);
            }
        }
        owners
    }

    /// All flows that a change at `links` can reach over links that bind.
    fn reached(&self, links: BTreeSet<u32>) -> Part {
        let mut part = Part::default();
        let mut pending: Vec<_> = links.iter().copied().collect();
        let mut seen = links;
        while let Some(link) = pending.pop() {
            for number in &self.links[link as usize].flows {
                if !part.flows.insert(*number) {
                    continue;
                }
                for next in &self.flows[*number as usize].wanted.path {
                    let binds = self.links[*next as usize].binds();
                    if binds && seen.insert(*next) {
                        pending.push(*next);
                    }
                }
            }
        }
        part.links = seen.into_iter().filter(|link| self.links[*link as usize].binds()).collect();
        part
    }

    /// Fills a part up: all rates grow alike, and stop where a link is full or a flow wants no more.
    fn fair(&self, part: &Part) -> Vec<(u32, f64)> {
        let mut filling: BTreeMap<u32, Filling> = part
            .links
            .iter()
            .map(|link| {
                let Link { capacity, flows, .. } = &self.links[*link as usize];
                (*link, Filling { left: *capacity as f64, flows: flows.len() as u32 })
            })
            .collect();
        let shares = filling.iter().map(|(link, filling)| Reverse((Share(filling.share()), *link)));
        let mut shares: BinaryHeap<_> = shares.collect();
        let most = |number: &u32| self.flows[*number as usize].wanted.most.get();
        let mut content: Vec<_> = part.flows.iter().map(|number| (most(number), *number)).collect();
        content.sort_unstable();
        let mut content = content.into_iter().peekable();
        let mut rates = BTreeMap::new();
        loop {
            // Shares only grow: one that was put down earlier is at most what it is now.
            let fullest = shares.peek().map(|Reverse((Share(share), link))| (*share, *link));
            let (least, number) = match (fullest, content.peek().copied()) {
                (None, None) => break,
                (Some((share, _)), Some((most, number))) if most as f64 <= share => (most, number),
                (None, Some((most, number))) => (most, number),
                (Some((share, link)), _) => {
                    shares.pop();
                    let state = filling[&link];
                    if state.flows == 0 {
                        continue;
                    }
                    if state.share() > share {
                        shares.push(Reverse((Share(state.share()), link)));
                        continue;
                    }
                    for number in &self.links[link as usize].flows {
                        self.fix(*number, share, &mut rates, &mut filling);
                    }
                    continue;
                }
            };
            content.next();
            self.fix(number, least as f64, &mut rates, &mut filling);
        }
        rates.into_iter().collect()
    }

    fn fix(
        &self,
        number: u32,
        rate: f64,
        rates: &mut BTreeMap<u32, f64>,
        filling: &mut BTreeMap<u32, Filling>,
    ) {
        if rates.contains_key(&number) {
            return;
        }
        rates.insert(number, rate);
        for link in &self.flows[number as usize].wanted.path {
            if let Some(filling) = filling.get_mut(link) {
                filling.left = (filling.left - rate).max(0.0);
                filling.flows -= 1;
            }
        }
    }
}

/// What has to be filled anew: flows, and the links that bind them.
#[derive(Debug, Default)]
struct Part {
    flows: BTreeSet<u32>,
    links: Vec<u32>,
}

/// A link while rates grow.
#[derive(Debug, Clone, Copy)]
struct Filling {
    left: f64,
    /// Those whose rate still grows.
    flows: u32,
}

impl Filling {
    fn share(&self) -> f64 {
        self.left / f64::from(self.flows)
    }
}

/// A rate with an order; never no number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Share(f64);

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wanted(path: &[u32], most: u64, reserved: bool) -> Wanted {
        Wanted { owner: 0, path: path.to_vec(), most: BitsPerSecond::new(most), reserved }
    }

    #[test]
    fn what_one_leaves_the_others_share() {
        let mut network = Network::new([100, 30].map(BitsPerSecond::new));
        let [both, one, small] =
            [wanted(&[0, 1], 100, false), wanted(&[0], 100, false), wanted(&[1], 5, false)]
                .map(|wanted| network.add(wanted));
        network.settle();
        assert_eq!([both, one, small].map(|flow| network.rate(flow)), [25.0, 75.0, 5.0]);
        let reserved = network.add(wanted(&[0], 40, true));
        network.settle();
        assert_eq!([both, one, reserved].map(|flow| network.rate(flow)), [25.0, 35.0, 40.0]);
        network.remove(both);
        network.settle();
        assert_eq!([one, small].map(|flow| network.rate(flow)), [60.0, 5.0]);
    }

    #[test]
    fn a_link_without_capacity_holds_up_those_alone_that_pass_it() {
        let mut network = Network::new([0, 100].map(BitsPerSecond::new));
        assert!(network.settle().is_empty(), "nobody is there");
        let [held, free, nothing] =
            [wanted(&[0, 1], 100, false), wanted(&[1], 100, false), wanted(&[0], 0, false)]
                .map(|wanted| network.add(wanted));
        network.settle();
        assert_eq!([held, free, nothing].map(|flow| network.rate(flow)), [0.0, 100.0, 0.0]);
        [held, free, nothing].into_iter().for_each(|flow| network.remove(flow));
        assert!(network.settle().is_empty());
    }

    /// All rates grow by the same small amount until they cannot: by definition max-min fair.
    fn naive(capacities: &[u64], flows: &[Wanted]) -> Vec<f64> {
        let mut left: Vec<_> = capacities.iter().map(|capacity| *capacity as f64).collect();
        let mut rates = vec![0.0; flows.len()];
        let mut grows: Vec<_> = flows.iter().map(|flow| !flow.reserved).collect();
        for (flow, rate) in flows.iter().zip(&mut rates).filter(|(flow, _)| flow.reserved) {
            *rate = flow.most.get() as f64;
            flow.path.iter().for_each(|link| left[*link as usize] -= *rate);
        }
        while grows.contains(&true) {
            let on = |link: usize| {
                (0..flows.len())
                    .filter(|at| grows[*at] && flows[*at].path.contains(&(link as u32)))
                    .count()
            };
            let counts: Vec<_> = (0..left.len()).map(on).collect();
            let by_link = (0..left.len()).filter(|link| counts[*link] > 0);
            let by_link = by_link.map(|link| left[link].max(0.0) / counts[link] as f64);
            let growing = (0..flows.len()).filter(|at| grows[*at]);
            let by_flow = growing.map(|at| flows[at].most.get() as f64 - rates[at]);
            let step = by_link.chain(by_flow).fold(f64::INFINITY, f64::min);
            (0..left.len()).for_each(|link| left[link] -= step * counts[link] as f64);
            for at in 0..flows.len() {
                if grows[at] {
                    rates[at] += step;
                    let full = |link: &u32| left[*link as usize] < 1e-6;
                    let has_all = flows[at].most.get() as f64 - rates[at] < 1e-6;
                    grows[at] = !has_all && !flows[at].path.iter().any(full);
                }
            }
        }
        rates
    }

    fn any_flow() -> impl Strategy<Value = (Wanted, bool)> {
        let path = prop::collection::btree_set(0..8u32, 1..4);
        // Reserved ones are few enough to fit: whoever reserves sees to that.
        let flow = (path, 1..400u64, prop::bool::weighted(0.1));
        (flow, prop::bool::weighted(0.3)).prop_map(|((path, most, reserved), removed)| {
            let path: Vec<_> = path.into_iter().collect();
            (wanted(&path, if reserved { most / 100 + 1 } else { most }, reserved), removed)
        })
    }

    proptest! {
        // Goal: filled anew part by part, after every change, all rates are those of a naive computation.
        #[test]
        fn rates_are_max_min_fair(
            capacities in prop::collection::vec(200..1_000u64, 8),
            flows in prop::collection::vec(any_flow(), 1..30),
        ) {
            let mut network = Network::new(capacities.iter().copied().map(BitsPerSecond::new));
            let mut there: Vec<(FlowId, Wanted)> = Vec::new();
            for (wanted, removed) in flows {
                there.push((network.add(wanted.clone()), wanted));
                if removed {
                    let middle = there.len() / 2;
                    network.remove(there.swap_remove(middle).0);
                }
                network.settle();
                let wanted: Vec<_> = there.iter().map(|(_, wanted)| wanted.clone()).collect();
                for ((flow, wanted), fair) in there.iter().zip(naive(&capacities, &wanted)) {
                    let rate = network.rate(*flow);
                    prop_assert!((rate - fair).abs() < 1e-3, "{wanted:?} has {rate}, fair {fair}");
                }
            }
        }
    }
}
