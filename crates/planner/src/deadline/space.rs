//! What is free of every node over time.

use super::beside::{Cluster, Plan, Reserved, Stretch};
use super::job::Job;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Share, WallTime};
use std::cmp::Reverse;

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
}

impl<'a> Space<'a> {
    /// All of the cluster from `now` on, but for what is reserved.
    pub fn new(now: u64, cluster: &'a Cluster, reserved: &[Reserved]) -> Self {
        let free = cluster.nodes_ppm.iter().map(|cpu| cpu.get()).collect();
        let mut space = Self { cluster, steps: vec![Step { from: now, free }] };
        for Reserved { node, from, to, cpu } in reserved {
            for step in space.between(from.unix_nanos(), to.unix_nanos()) {
                if let Some(free) = step.free.get_mut(node.0 as usize) {
                    *free = free.saturating_sub(cpu.get());
                }
            }
        }
        space
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.cluster.nodes_ppm.len()).unwrap_or(u32::MAX)
    }

    /// How `job` would run on `nodes` at one rate from start to end: of all starts the one with which it is done first.
    pub fn lay(&self, job: &Job, nodes: Vec<NodeIndex>) -> Option<Plan> {
        let starts = 0..self.steps.len();
        let found = starts.filter_map(|first| self.lay_from(first, job, &nodes));
        let at = found.min_by_key(|stretch| stretch.to)?;
        Some(Plan { nodes, at })
    }

    /// From step `first` on: each further step that it needs may have less free, which makes it slower and
    /// longer.
    fn lay_from(&self, first: usize, job: &Job, nodes: &[NodeIndex]) -> Option<Stretch> {
        let from = self.steps[first].from.max(job.from.unix_nanos());
        let mut rate = Share::ONE.ppm();
        for (at, step) in self.steps.iter().enumerate().skip(first) {
            rate = rate.min(self.rate(step, job, nodes));
            let takes = job.takes(u32::try_from(nodes.len()).ok()?, rate)?;
            let to = from.checked_add(takes.get())?;
            if to <= self.end(at) {
                let [from, to] = [from, to].map(WallTime::from_unix_nanos);
                return Some(Stretch { from, to, rate: Share::try_from(rate).ok()? });
            }
        }
        None
    }

    /// The `count` nodes of which most is free for `job` until `horizon`.
    pub fn emptiest(&self, job: &Job, count: u32, horizon: u64) -> Vec<NodeIndex> {
        let mut free = vec![0u128; self.cluster.nodes_ppm.len()];
        // A short job does not look at all the steps that long ones make beyond it.
        let near = self.steps.iter().take_while(|step| step.from < horizon);
        for (at, step) in near.enumerate() {
            let from = step.from.max(job.from.unix_nanos());
            let span = u128::from(self.end(at).min(horizon).saturating_sub(from));
            for (sum, free) in free.iter_mut().zip(&step.free) {
                // More than the job can use helps nobody.
                *sum += span * u128::from((*free).min(job.cpu_ppm.get()));
            }
        }
        let mut nodes: Vec<_> = (0..free.len()).collect();
        nodes.sort_by_key(|node| (Reverse(free[*node]), *node));
        let chosen = nodes.into_iter().take(count as usize);
        let mut chosen: Vec<_> = chosen.map(|node| NodeIndex(node as u32)).collect();
        chosen.sort();
        chosen
    }

    /// The rate that all of `nodes` can give, in millionths; none below the least.
    fn rate(&self, step: &Step, job: &Job, nodes: &[NodeIndex]) -> u32 {
        let free = nodes.iter().map(|node| step.free[node.0 as usize]).min().unwrap_or(0);
        let rate = u64::from(free) * 1_000_000 / u64::from(job.cpu_ppm.get());
        // At most all of it.
        let rate = rate.min(u64::from(Share::ONE.ppm())) as u32;
        if rate < self.cluster.rate_least.ppm() { 0 } else { rate }
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
