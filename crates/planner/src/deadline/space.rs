//! What is free of every node over time.

use super::beside::Reserved;
use super::job::{FULL, Job, Wants};
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
            if !job.is_placed() && !nodes.iter().all(|node| self.has_room(step, *node, job)) {
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
            let span = needed(left, pace).unwrap_or(u64::MAX).min(to - from);
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
        // Who has nothing to do has no stretch.
        let stretches = earliest.filter(|stretch| stretch.from < stretch.to).into_iter().collect();
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
        let work = u128::from(job.remaining_nanos.get()) * FULL;
        let mut rate = most.ppm();
        for (at, step) in self.steps.iter().enumerate().skip(first) {
            if !nodes.iter().all(|node| self.has_room(step, *node, job)) {
                return None;
            }
            rate = rate.min(self.rate(step, job, nodes, most));
            let pace = u128::from(rate) * u128::from(job.speed_on(nodes.len()));
            let to = from.checked_add(needed(work, pace)?)?;
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

    /// Whether all that a layout needs is free.
    pub fn fits(&self, job: &Job, layout: &Layout) -> bool {
        layout.stretches.iter().all(|stretch| {
            let cpu = job.cpu_at(stretch.rate).get();
            let (from, to) = (stretch.from.unix_nanos(), stretch.to.unix_nanos());
            let first = self.steps.partition_point(|step| step.from <= from).saturating_sub(1);
            let mut during = self.steps[first..].iter().take_while(|step| step.from < to);
            during.all(|step| layout.nodes.iter().all(|node| step.free[node.0 as usize] >= cpu))
        })
    }

    /// Takes what a layout needs, which has to fit: else giving it back would leave more than there is.
    pub fn take(&mut self, job: &Job, layout: &Layout) {
        self.change(job, layout, true);
    }

    /// Undoes [`Self::take`].
    pub fn give_back(&mut self, job: &Job, layout: &Layout) {
        self.change(job, layout, false);
    }

    fn change(&mut self, job: &Job, layout: &Layout, is_taken: bool) {
        for stretch in &layout.stretches {
            let cpu = job.cpu_at(stretch.rate).get();
            let (from, to) = (stretch.from.unix_nanos(), stretch.to.unix_nanos());
            for step in self.between(from, to) {
                for node in &layout.nodes {
                    let free = &mut step.free[node.0 as usize];
                    *free =
                        if is_taken { free.saturating_sub(cpu) } else { free.saturating_add(cpu) };
                }
            }
        }
        let starts = layout.stretches.first().map_or(u64::MAX, |s| s.from.unix_nanos());
        let ends = layout.ends.unwrap_or(u64::MAX);
        // One that has started was counted to the end of time.
        let (from, to) = if job.is_placed() { (ends, u64::MAX) } else { (starts, ends) };
        let is_more = is_taken != job.is_placed();
        for step in self.between(from, to) {
            for node in &layout.nodes {
                let jobs = &mut step.jobs[node.0 as usize];
                *jobs = if is_more { *jobs + 1 } else { jobs.saturating_sub(1) };
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
                if self.has_room(step, NodeIndex(node as u32), job) {
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

    /// The numbers of nodes that `job` can use and that are there.
    pub fn counts(&self, job: &Job) -> impl Iterator<Item = u32> {
        let there = self.cluster.nodes_ppm.len();
        job.speed_ppm.keys().copied().filter(move |count| *count as usize <= there)
    }

    /// How `job` would run on the `count` nodes that first have all for it that it can use, from its start to its end: jobs
    /// that have a little of many nodes each leave parts of nodes that no parallel job can use. Nothing if no nodes ever
    /// have.
    pub fn alone(&self, job: &Job, count: u32) -> Option<Layout> {
        let most = self.cluster.nodes_ppm.iter().map(|cpu| cpu.get()).max()?;
        let rate = rate_within(most, job, job.rate_most());
        if rate < self.rate_least(job.rate_most()) {
            return None;
        }
        let cpu = job.cpu_at(Share::try_from(rate).ok()?).get();
        let pace = u128::from(rate) * u128::from(job.speed_on(count as usize));
        let work = u128::from(job.remaining_nanos.get()) * FULL;
        let needed = needed(work, pace)?;
        (0..self.steps.len()).find_map(|first| {
            let from = self.steps[first].from.max(job.from_unix_nanos.unix_nanos());
            let to = from.checked_add(needed)?;
            let nodes = self.free_for(job, count, cpu, first, to)?;
            let mut layout = Layout { nodes, stretches: Vec::new(), ends: Some(to), cost: 0 };
            layout.push(job, from, to, rate);
            Some(layout)
        })
    }

    /// `count` nodes of which so much is free from step `first` until `to`.
    fn free_for(
        &self,
        job: &Job,
        count: u32,
        cpu: u32,
        first: usize,
        to: u64,
    ) -> Option<Vec<NodeIndex>> {
        let mut free: Vec<_> = (0..self.cluster.nodes_ppm.len() as u32).map(NodeIndex).collect();
        for step in self.steps[first..].iter().take_while(|step| step.from < to) {
            free.retain(|node| {
                step.free[node.0 as usize] >= cpu && self.has_room(step, *node, job)
            });
            if free.len() < count as usize {
                return None;
            }
        }
        free.truncate(count as usize);
        Some(free)
    }

    fn has_room(&self, step: &Step, node: NodeIndex, job: &Job) -> bool {
        let places = self.cluster.jobs_a_node;
        let most = if job.wants == Wants::Rest { places.div_ceil(REST) } else { places };
        step.jobs[node.0 as usize] < most
    }

    /// The rate that all of `nodes` can give, in millionths; none below the least.
    fn rate(&self, step: &Step, job: &Job, nodes: &[NodeIndex], most: Share) -> u32 {
        let free = nodes.iter().map(|node| step.free[node.0 as usize]).min();
        let rate = free.map_or(0, |free| rate_within(free, job, most));
        if rate < self.rate_least(most) { 0 } else { rate }
    }

    /// The least rate at which a job runs that is to have at most `most`, in millionths.
    fn rate_least(&self, most: Share) -> u32 {
        self.cluster.rate_least.min(most).ppm()
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
    /// Adds a stretch after those that there are, if it has any length.
    fn push(&mut self, job: &Job, from: u64, to: u64, rate: u32) {
        if from == to {
            return;
        }
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

/// Who takes what is left has at most one of so many places of a node, or one: it keeps its place however slow it is, and
/// where such jobs have all of them, nobody can be promised anything.
const REST: u32 = 4;

/// How long `work` takes at `pace`, rounded up, since what is promised takes no longer; nothing if that is for ever.
fn needed(work: u128, pace: u128) -> Option<u64> {
    if pace == 0 {
        return None;
    }
    u64::try_from(work.div_ceil(pace)).ok()
}

/// The rate, in millionths and at most `most`, that `free` of each node is enough for.
fn rate_within(free: u32, job: &Job, most: Share) -> u32 {
    let rate = u64::from(free) * 1_000_000 / u64::from(job.cpu_ppm.get());
    rate.min(u64::from(most.ppm())) as u32
}

/// CPU time of all nodes together.
fn cost(job: &Job, nodes: usize, stretch: &Stretch) -> u128 {
    let used = u128::from(stretch.rate.ppm()) * u128::from(job.cpu_ppm.get());
    let span = stretch.to.saturating_since(stretch.from);
    (used * u128::from(span.get())).saturating_mul(nodes as u128) / FULL
}
