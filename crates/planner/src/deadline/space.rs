//! What is free of every node over time.

use super::beside::Reserved;
use super::job::{FULL, Job};
use super::plan::{Cluster, Stretch};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Share, WallTime};

/// Steps of time; within one, what is free of each node stays the same. The last has no end.
#[derive(Debug, Clone)]
pub(super) struct Space<'a> {
    cluster: &'a Cluster,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
struct Step {
    from: u64,
    /// Of each node, in millionths of a processor.
    free: Vec<u32>,
    /// Jobs on each node.
    jobs: Vec<u32>,
}

/// A job's rates on nodes, not yet taken.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub nodes: Vec<NodeIndex>,
    pub stretches: Vec<Stretch>,
    /// Nothing if it never ends.
    pub ends: Option<u64>,
    /// CPU time of all nodes together.
    pub cost: u128,
}

impl<'a> Space<'a> {
    /// All of the cluster, from `now` on.
    pub fn new(now: u64, cluster: &'a Cluster) -> Self {
        let free: Vec<_> = cluster.nodes_ppm.iter().map(|cpu| cpu.get()).collect();
        let jobs = vec![0; free.len()];
        Self { cluster, steps: vec![Step { from: now, free, jobs }] }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.cluster.nodes_ppm.len()
    }

    /// A job that has started stays on its nodes until it ends, whenever that is.
    pub fn occupy(&mut self, nodes: &[NodeIndex]) {
        for step in &mut self.steps {
            nodes.iter().for_each(|node| step.jobs[node.0 as usize] += 1);
        }
    }

    /// How `job` would run on `nodes`: as early and as fast as it can, at most at `most`.
    pub fn lay(&self, job: &Job, nodes: &[NodeIndex], most: Share) -> Layout {
        let speed = job.speed_on(nodes.len());
        let mut layout =
            Layout { nodes: nodes.to_vec(), stretches: Vec::new(), ends: None, cost: 0 };
        let all = u128::from(job.remaining_nanos.get()) * FULL;
        let mut left = all;
        for (at, step) in self.steps.iter().enumerate() {
            let from = step.from.max(job.from_unix_nanos.unix_nanos());
            let to = self.end(at);
            if left == 0 {
                layout.ends = Some(from);
                return layout;
            }
            if !job.is_placed() && !nodes.iter().all(|node| self.has_room(step, *node)) {
                // It cannot begin before, since it could not stay.
                (left, layout.cost) = (all, 0);
                layout.stretches.clear();
                continue;
            }
            let rate = if from < to { self.rate(step, job, nodes, most) } else { 0 };
            let pace = u128::from(rate) * u128::from(speed);
            if pace == 0 {
                continue;
            }
            // Rounded up: what is promised takes no longer.
            let needed = u64::try_from(left.div_ceil(pace)).unwrap_or(u64::MAX);
            let span = needed.min(to - from);
            left = left.saturating_sub(u128::from(span) * pace);
            layout.push(job, from, from.saturating_add(span), rate);
            if left == 0 {
                layout.ends = Some(from.saturating_add(span));
                return layout;
            }
        }
        layout
    }

    /// The same at one rate from start to end, as one reservation has it: of all starts the one that ends
    /// first.
    pub fn lay_at_one_rate(&self, job: &Job, nodes: &[NodeIndex], most: Share) -> Layout {
        let starts = 0..self.steps.len();
        let found = starts.filter_map(|first| self.one_rate(first, job, nodes, most));
        let earliest = found.min_by_key(|stretch| stretch.to);
        let ends = earliest.map(|stretch| stretch.to.unix_nanos());
        let cost = earliest.map_or(0, |stretch| cost(job, nodes.len(), &stretch));
        let stretches = earliest.into_iter().collect();
        Layout { nodes: nodes.to_vec(), stretches, ends, cost }
    }

    /// From step `first` on: each further step that it needs may have less free, which makes it slower and
    /// longer.
    fn one_rate(
        &self,
        first: usize,
        job: &Job,
        nodes: &[NodeIndex],
        most: Share,
    ) -> Option<Stretch> {
        let from = self.steps[first].from.max(job.from_unix_nanos.unix_nanos());
        let all = u128::from(job.remaining_nanos.get()) * FULL;
        let mut rate = most.ppm();
        for (at, step) in self.steps.iter().enumerate().skip(first) {
            if !nodes.iter().all(|node| self.has_room(step, *node)) {
                return None;
            }
            rate = rate.min(self.rate(step, job, nodes, most));
            let pace = u128::from(rate) * u128::from(job.speed_on(nodes.len()));
            if pace == 0 {
                return None;
            }
            // Rounded up: what is promised takes no longer.
            let needed = u64::try_from(all.div_ceil(pace)).unwrap_or(u64::MAX);
            let to = from.saturating_add(needed);
            if to <= self.end(at) {
                let [from, to] = [from, to].map(WallTime::from_unix_nanos);
                return Some(Stretch { from, to, rate: Share::try_from(rate).ok()? });
            }
        }
        None
    }

    /// Takes what is reserved of one node.
    pub fn reserve(&mut self, reserved: &Reserved) {
        let (from, to) = (reserved.from.unix_nanos(), reserved.to.unix_nanos());
        for step in self.between(from, to) {
            if let Some(free) = step.free.get_mut(reserved.node.0 as usize) {
                *free = free.saturating_sub(reserved.cpu.get());
            }
        }
    }

    /// Takes what a layout needs.
    pub fn take(&mut self, job: &Job, layout: &Layout) {
        for stretch in &layout.stretches {
            let cpu = job.cpu_at(stretch.rate).get();
            let (from, to) = (stretch.from.unix_nanos(), stretch.to.unix_nanos());
            for step in self.between(from, to) {
                for node in &layout.nodes {
                    let free = &mut step.free[node.0 as usize];
                    *free = free.saturating_sub(cpu);
                }
            }
        }
        let starts = layout.stretches.first().map_or(u64::MAX, |s| s.from.unix_nanos());
        let ends = layout.ends.unwrap_or(u64::MAX);
        let (from, to) = if job.is_placed() { (ends, u64::MAX) } else { (starts, ends) };
        for step in self.between(from, to) {
            for node in &layout.nodes {
                let jobs = &mut step.jobs[node.0 as usize];
                // One that has started was counted to the end of time.
                *jobs = if job.is_placed() { jobs.saturating_sub(1) } else { *jobs + 1 };
            }
        }
    }

    /// The `count` nodes of which most is free for `job` until `horizon`.
    pub fn emptiest(&self, job: &Job, count: u32, horizon: u64) -> Vec<NodeIndex> {
        let mut free = vec![0u128; self.cluster.nodes_ppm.len()];
        // A short job does not look at all the steps that long ones make beyond it.
        let near = self.steps.iter().take_while(|step| step.from < horizon);
        for (at, step) in near.enumerate() {
            let from = step.from.max(job.from_unix_nanos.unix_nanos());
            let to = self.end(at).min(horizon);
            let span = u128::from(to.saturating_sub(from));
            for (node, free) in free.iter_mut().enumerate() {
                if self.has_room(step, NodeIndex(node as u32)) {
                    // More than the job can use helps nobody.
                    *free += span * u128::from(step.free[node].min(job.cpu_ppm.get()));
                }
            }
        }
        let mut nodes: Vec<_> = (0..free.len()).collect();
        nodes.sort_by_key(|node| (std::cmp::Reverse(free[*node]), *node));
        let mut chosen: Vec<_> =
            nodes.into_iter().take(count as usize).map(|node| NodeIndex(node as u32)).collect();
        chosen.sort();
        chosen
    }

    /// The `count` nodes that `job` has first for itself, as fast as it may be, from a start to its end: jobs that
    /// each get a little of all nodes leave parts of nodes that no parallel job can use.
    pub fn first_alone(&self, job: &Job, count: u32, most: Share) -> Option<Vec<NodeIndex>> {
        let most =
            self.cluster.nodes_ppm.iter().map(|cpu| cpu.get()).max()?.min(job.cpu_at(most).get());
        let pace = u128::from(most) * u128::from(job.speed_on(count as usize));
        let work = u128::from(job.remaining_nanos.get()) * FULL * u128::from(job.cpu_ppm.get());
        let needed = u64::try_from((work / 1_000_000).div_ceil(pace.max(1))).unwrap_or(u64::MAX);
        let nodes = 0..self.nodes() as u32;
        (0..self.steps.len()).find_map(|first| {
            let from = self.steps[first].from.max(job.from_unix_nanos.unix_nanos());
            let to = from.saturating_add(needed);
            let within = self.steps[first..].iter().take_while(|step| step.from < to);
            let mut free: Vec<_> = nodes.clone().map(NodeIndex).collect();
            for step in within {
                free.retain(|node| {
                    step.free[node.0 as usize] >= most && self.has_room(step, *node)
                });
                if free.len() < count as usize {
                    return None;
                }
            }
            free.truncate(count as usize);
            Some(free)
        })
    }

    fn has_room(&self, step: &Step, node: NodeIndex) -> bool {
        step.jobs[node.0 as usize] < self.cluster.jobs_a_node
    }

    /// The rate that all of `nodes` can give, in millionths; none below the least.
    fn rate(&self, step: &Step, job: &Job, nodes: &[NodeIndex], most: Share) -> u32 {
        let cpu = u64::from(job.cpu_ppm.get());
        let free = nodes.iter().map(|node| u64::from(step.free[node.0 as usize])).min();
        let rate =
            free.map_or(0, |free| (free * 1_000_000 / cpu).min(u64::from(most.ppm()))) as u32;
        if rate < self.cluster.rate_least.ppm().min(most.ppm()) { 0 } else { rate }
    }

    fn end(&self, at: usize) -> u64 {
        self.steps.get(at + 1).map_or(u64::MAX, |next| next.from)
    }

    /// The steps from `from` to `to`, cut there.
    fn between(&mut self, from: u64, to: u64) -> impl Iterator<Item = &mut Step> {
        let mut cut = |at| if at == u64::MAX { self.steps.len() } else { self.cut(at) };
        let (first, last) = (cut(from), cut(to));
        self.steps[first..last.max(first)].iter_mut()
    }

    /// The step that begins at `at`, made if there is none.
    fn cut(&mut self, at: u64) -> usize {
        let next = self.steps.partition_point(|step| step.from < at);
        if self.steps.get(next).is_some_and(|step| step.from == at) || next == 0 {
            return next;
        }
        let step = Step { from: at, ..self.steps[next - 1].clone() };
        self.steps.insert(next, step);
        next
    }
}

impl Layout {
    fn push(&mut self, job: &Job, from: u64, to: u64, rate: u32) {
        let [from, to] = [from, to].map(WallTime::from_unix_nanos);
        // A rate is at most what was asked for, and that is a share.
        let rate = Share::try_from(rate).unwrap_or(Share::ONE);
        self.cost += cost(job, self.nodes.len(), &Stretch { from, to, rate });
        match self.stretches.last_mut() {
            Some(last) if last.to == from && last.rate == rate => last.to = to,
            _ => self.stretches.push(Stretch { from, to, rate }),
        }
    }
}

/// CPU time of all nodes together.
fn cost(job: &Job, nodes: usize, stretch: &Stretch) -> u128 {
    let used = u128::from(stretch.rate.ppm()) * u128::from(job.cpu_ppm.get());
    let span = stretch.to.saturating_since(stretch.from);
    used * u128::from(span.get()) * nodes as u128 / FULL
}
