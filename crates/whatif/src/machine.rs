//! Jobs on nodes: how fast they are, and when they end.
//!
//! A job is a bulk-synchronous program on all its nodes: it computes, exchanges with both neighbours in
//! a ring, and waits for the slowest. With the part `c` of its time for exchanging when nothing is in its
//! way, a share `s` of the processor and flows at `r` of what they want, it takes
//! `(1 - c) / s + c / r` times as long. Jobs share a processor alike, unless all or a part of it is reserved. Flows count
//! as busy as long as the job runs: what they leave while it computes is given to nobody.

use crate::network::{FlowId, Network, Wanted};
use crate::shape;
use keeptime_model::Invalid;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{NodeChoice, Resources};
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos, Share};
use keeptime_planner::tree::PlacementIndex;
use std::collections::{BTreeMap, BTreeSet};

/// A job that starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its number.
    pub job: usize,
    /// Where.
    pub nodes: Vec<NodeIndex>,
    /// What it has there.
    pub hold: Hold,
}

/// What a job has of its nodes and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// What others leave: processors are shared alike, and links by max-min fairness.
    Shared,
    /// So much CPU of each node and rates for all its flows, whoever else is there.
    Reserved(CpuPpm),
}

/// A cluster and what runs on it.
#[derive(Debug, Clone)]
pub struct Machine {
    index: PlacementIndex,
    network: Network,
    traffic: Traffic,
    /// What a job uses of each of its nodes at full speed: all of it.
    cpu: CpuPpm,
    running: BTreeMap<usize, Running>,
    /// By node: who runs there.
    on_node: Vec<BTreeSet<usize>>,
    ends: BTreeSet<(Nanos, usize)>,
    /// Node seconds of work that were done.
    done: f64,
}

/// What jobs send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// The part of a job's time that it exchanges when nothing is in its way.
    pub communication: Share,
    /// What each of its flows wants; more makes it no faster. Nothing where jobs exchange nothing.
    pub flow: BitsPerSecond,
}

#[derive(Debug, Clone)]
struct Running {
    nodes: Vec<NodeIndex>,
    flows: Vec<FlowId>,
    hold: Hold,
    /// Seconds at full speed that it takes.
    whole: f64,
    /// What of that is left to do, as of `since`.
    left: f64,
    since: Nanos,
    /// Of full speed.
    speed: f64,
    ends: Nanos,
}

impl Running {
    fn work_until(&self, now: Nanos) -> f64 {
        (now.as_secs_f64() - self.since.as_secs_f64()) * self.speed
    }
}

impl Machine {
    /// A cluster on which nothing runs, and of each of whose nodes a job uses `cpu` at full speed.
    pub fn new(index: PlacementIndex, traffic: Traffic, cpu: CpuPpm) -> Self {
        let topology = index.topology();
        let links = (0..topology.direction_count() as u32).map(LinkDirection);
        let network = Network::new(links.map(|link| topology.rate(link)));
        let on_node = vec![BTreeSet::new(); topology.nodes().len()];
        let (running, ends) = (BTreeMap::new(), BTreeSet::new());
        Self { index, network, traffic, cpu, running, on_node, ends, done: 0.0 }
    }

    /// The cluster.
    pub fn index(&self) -> &PlacementIndex {
        &self.index
    }

    /// When the first job ends, if nothing else happens.
    pub fn next_end(&self) -> Option<Nanos> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// How many jobs run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Node seconds of work that were done until jobs ended. What was stopped does not count.
    pub fn done(&self) -> f64 {
        self.done
    }

    /// Starts a job of `run` seconds at full speed.
    ///
    /// # Errors
    /// If a ring cannot have so many nodes.
    pub fn start(&mut self, now: Nanos, start: Start, run: u64) -> Result<(), Invalid> {
        let Start { job, nodes, hold } = start;
        let flows = self.connect(job, &nodes, hold)?;
        for node in &nodes {
            self.on_node[node.0 as usize].insert(job);
        }
        let slowed = self.neighbours(&nodes);
        let whole = run as f64;
        let (left, since, ends) = (whole, now, Nanos::new(0));
        let running = Running { nodes, flows, hold, whole, left, since, speed: 0.0, ends };
        self.running.insert(job, running);
        self.adapt(now, slowed);
        Ok(())
    }

    /// A job that runs has something else from now on.
    pub fn change(&mut self, now: Nanos, job: usize, hold: Hold) {
        if let Some(running) = self.running.get_mut(&job) {
            running.hold = hold;
            self.adapt(now, BTreeSet::from([job]));
        }
    }

    /// What is reserved of a node by those that run there, but for who is done within a microsecond: when it ends is rounded.
    pub fn reserved(&self, now: Nanos, node: NodeIndex) -> u64 {
        let runs_on = |running: &&Running| running.ends.saturating_sub(now) > ROUNDING;
        let running = self.on_node[node.0 as usize].iter().filter_map(|job| self.running.get(job));
        running.filter(runs_on).map(|running| u64::from(running.hold.cpu().get())).sum()
    }

    /// The jobs that end at `now` or before, removed.
    pub fn end(&mut self, now: Nanos) -> Vec<usize> {
        let mut ended = Vec::new();
        let mut freed = BTreeSet::new();
        while let Some((at, job)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.ends.remove(&(at, job));
            let Some(running) = self.remove(job, &mut freed) else { continue };
            self.done += running.left.max(0.0) * running.nodes.len() as f64;
            ended.push(job);
        }
        self.adapt(now, freed);
        ended
    }

    /// What a job uses of each of its nodes at full speed: all of it.
    pub fn cpu(&self) -> CpuPpm {
        self.cpu
    }

    /// Where a job runs.
    pub fn nodes(&self, job: usize) -> Vec<NodeIndex> {
        self.running.get(&job).map_or_else(Vec::new, |running| running.nodes.clone())
    }

    /// Who runs on a node.
    pub fn on(&self, node: NodeIndex) -> Vec<usize> {
        self.on_node[node.0 as usize].iter().copied().collect()
    }

    /// Ends jobs before they are done. Returns what was done of them, in node seconds of work: it is
    /// thrown away, and does not count as done.
    pub fn stop(&mut self, now: Nanos, jobs: &[usize]) -> f64 {
        let mut freed = BTreeSet::new();
        let mut lost = 0.0;
        for job in jobs {
            let Some(running) = self.remove(*job, &mut freed) else { continue };
            let nodes = running.nodes.len() as f64;
            let left = (running.left - running.work_until(now)).max(0.0);
            self.done -= (running.whole - running.left) * nodes;
            lost += (running.whole - left) * nodes;
        }
        self.adapt(now, freed);
        lost
    }

    /// Takes a job off its nodes and links. Who has shared them is `freed`.
    fn remove(&mut self, job: usize, freed: &mut BTreeSet<usize>) -> Option<Running> {
        let running = self.running.remove(&job)?;
        self.ends.remove(&(running.ends, job));
        for flow in &running.flows {
            self.network.remove(*flow);
        }
        for node in &running.nodes {
            self.on_node[node.0 as usize].remove(&job);
        }
        freed.append(&mut self.neighbours(&running.nodes));
        Some(running)
    }

    fn connect(
        &mut self,
        job: usize,
        nodes: &[NodeIndex],
        hold: Hold,
    ) -> Result<Vec<FlowId>, Invalid> {
        if self.traffic.communication.ppm() == 0 || nodes.len() < 2 {
            return Ok(vec![]);
        }
        let flows = Pattern::Ring.flows(nodes.len() as u32)?;
        let (most, reserved) = (self.traffic.flow, hold != Hold::Shared);
        Ok(flows
            .iter()
            .map(|flow| {
                let [from, to] = [flow.from, flow.to].map(|rank| nodes[rank as usize]);
                let mut path = Vec::new();
                self.index.for_each_direction(from, to, |direction| path.push(direction.0));
                self.network.add(Wanted { owner: job, path, most, reserved })
            })
            .collect())
    }

    /// Who shares processors with a job on `nodes`.
    fn neighbours(&self, nodes: &[NodeIndex]) -> BTreeSet<usize> {
        nodes.iter().flat_map(|node| self.on_node[node.0 as usize].iter().copied()).collect()
    }

    /// Gives these jobs, and all whose flows have changed, their new speed.
    fn adapt(&mut self, now: Nanos, mut jobs: BTreeSet<usize>) {
        jobs.append(&mut self.network.settle());
        for job in jobs {
            let Some(running) = self.running.get(&job) else { continue };
            let speed = self.speed(running);
            let Some(running) = self.running.get_mut(&job).filter(|r| r.speed != speed) else {
                continue;
            };
            let worked = running.work_until(now).min(running.left);
            self.done += worked * running.nodes.len() as f64;
            running.left -= worked;
            running.since = now;
            running.speed = speed;
            self.ends.remove(&(running.ends, job));
            running.ends = now.saturating_add(nanos_ceil(running.left / speed));
            self.ends.insert((running.ends, job));
        }
    }

    fn speed(&self, running: &Running) -> f64 {
        let compute = match running.hold {
            Hold::Shared => {
                let sharing = running.nodes.iter().map(|node| self.on_node[node.0 as usize].len());
                sharing.max().unwrap_or(1) as f64
            }
            Hold::Reserved(cpu) => f64::from(self.cpu.get()) / f64::from(cpu.get()),
        };
        if compute.is_infinite() {
            return 0.0;
        }
        let rates = running.flows.iter().map(|flow| self.network.rate(*flow));
        let slowest = rates.fold(f64::INFINITY, f64::min);
        if slowest.is_infinite() {
            return compute.recip();
        }
        let communication = f64::from(self.traffic.communication.ppm()) / 1e6;
        let exchange = self.traffic.flow.get() as f64 / slowest;
        // Written so that it is 1 to the last bit where nothing is in the way.
        let slower = (1.0 - communication) * (compute - 1.0) + communication * (exchange - 1.0);
        let speed = (1.0 + slower).recip();
        debug_assert!(speed > 0.0 && speed.is_finite(), "{speed}");
        speed
    }
}

impl Traffic {
    /// What jobs send on this cluster, when they exchange for a part of their time.
    ///
    /// # Errors
    /// If they do, and links of nodes differ or are too slow: [`shape::flow_of_each`].
    pub fn new(topology: &Topology, communication: Share) -> Result<Self, Invalid> {
        let flow = match communication.ppm() {
            0 => BitsPerSecond::ZERO,
            _ => shape::flow_of_each(topology)?,
        };
        Ok(Self { communication, flow })
    }

    /// What a job on `nodes` reserves for what it sends, and nothing else.
    pub fn resources(self, nodes: NodeChoice) -> Resources {
        let talks = self.communication.ppm() > 0 && nodes.count() > 1;
        Resources {
            nodes,
            pattern: talks.then_some(Pattern::Ring),
            bits_per_second: if talks { self.flow } else { BitsPerSecond::ZERO },
            ..Resources::nothing()
        }
    }
}

impl Hold {
    /// What is reserved of each node.
    fn cpu(self) -> CpuPpm {
        match self {
            Self::Shared => CpuPpm::default(),
            Self::Reserved(cpu) => cpu,
        }
    }
}

/// Rounded up, but for what a few divisions add: nobody ends before the work is done, and nobody a nanosecond late. More than
/// there can be is for ever.
fn nanos_ceil(seconds: f64) -> Nanos {
    Nanos::new((seconds * (NANOS_A_SECOND * (1.0 - 1e-15))).ceil() as u64)
}

const NANOS_A_SECOND: f64 = 1e9;
/// Less than this is nothing.
pub const ROUNDING: Nanos = Nanos::new(1_000);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn machine(shape: &str, communication: u32) -> Machine {
        let shape: Shape = shape.parse().unwrap();
        let communication = Share::from_percent(communication).unwrap();
        let traffic = Traffic { communication, flow: BitsPerSecond::from_mbit(4_500) };
        let index = PlacementIndex::new(shape.topology());
        Machine::new(index, traffic, CpuPpm::from_percent(100))
    }

    fn start(job: usize, nodes: &[u32]) -> Start {
        let nodes = nodes.iter().copied().map(NodeIndex).collect();
        Start { job, nodes, hold: Hold::Shared }
    }

    #[test]
    fn who_shares_a_processor_takes_twice_as_long_until_the_other_ends() {
        let mut machine = machine("star:4", 0);
        machine.start(Nanos::new(0), start(0, &[0, 1]), 10).unwrap();
        machine.start(Nanos::new(0), start(1, &[1, 2]), 20).unwrap();
        assert_eq!(machine.next_end(), Some(Nanos::from_secs(20)));
        assert_eq!(machine.end(Nanos::from_secs(20)), [0]);
        // Half of it was done by then.
        assert_eq!(machine.next_end(), Some(Nanos::from_secs(30)));
        assert_eq!(machine.end(Nanos::from_secs(30)), [1]);
        assert_eq!(machine.done(), 60.0);
    }

    // Goal: a job that is stopped leaves what it had to the others, and nothing of it was done.
    #[test]
    fn who_is_stopped_has_done_nothing_and_is_in_nobodys_way() {
        let mut machine = machine("star:4", 0);
        machine.start(Nanos::new(0), start(0, &[0, 1]), 10).unwrap();
        machine.start(Nanos::new(0), start(1, &[1, 2]), 20).unwrap();
        assert_eq!(machine.on(NodeIndex(1)), [0, 1]);
        // Both have done 4 s on two nodes; a third comes and changes how fast the first is.
        machine.start(Nanos::from_secs(8), start(2, &[0, 1]), 100).unwrap();
        let hit = machine.on(NodeIndex(2));
        assert_eq!(hit, [1]);
        // A third of three more seconds.
        assert_eq!(machine.stop(Nanos::from_secs(11), &hit), 10.0);
        assert_eq!(machine.on(NodeIndex(1)), [0, 2]);
        // The first has 5 s left, at half speed.
        assert_eq!(machine.next_end(), Some(Nanos::from_secs(21)));
        assert_eq!(machine.end(Nanos::from_secs(21)), [0]);
        assert_eq!(machine.stop(Nanos::from_secs(30), &[2, 7]), 30.0);
        assert_eq!((machine.running(), machine.next_end()), (0, None));
        assert!((machine.done() - 20.0).abs() < 1e-9, "{}", machine.done());
    }

    // Goal: a part of a processor slows the computing alone, whoever else is there, and nothing of it stops a job.
    #[test]
    fn a_reserved_part_of_a_processor_is_had_beside_others() {
        let mut machine = machine("star:2", 50);
        let reserved = |job, percent| {
            let hold = Hold::Reserved(CpuPpm::from_percent(percent));
            Start { hold, ..start(job, &[0, 1]) }
        };
        machine.start(Nanos::new(0), reserved(0, 25), 10).unwrap();
        machine.start(Nanos::new(0), reserved(1, 0), 10).unwrap();
        assert_eq!(machine.reserved(Nanos::new(0), NodeIndex(1)), 250_000);
        // 5 s of computing four times as long, and 5 s of exchanging.
        assert_eq!(machine.next_end(), Some(Nanos::from_secs(25)));
        machine.change(Nanos::from_secs(5), 0, Hold::Reserved(CpuPpm::from_percent(100)));
        assert_eq!(machine.next_end(), Some(Nanos::from_secs(13)));
        machine.change(Nanos::from_secs(5), 1, Hold::Reserved(CpuPpm::from_percent(50)));
        assert_eq!(machine.end(Nanos::from_secs(13)), [0]);
        assert_eq!(machine.end(Nanos::from_secs(20)), [1]);
        assert_eq!(machine.done(), 40.0);
    }

    #[test]
    fn a_narrow_uplink_slows_the_exchange_alone() {
        // Two racks of 40 nodes with uplinks of 10 Gbit/s: three flows each way of 4.5 want 13.5.
        let mut machine = machine("fat-tree:80:40", 50);
        for job in 0..3 {
            let nodes = [job as u32, 40 + job as u32];
            machine.start(Nanos::new(0), start(job, &nodes), 20).unwrap();
        }
        let end = machine.next_end().unwrap();
        // 10 s of computing, 10 s x 4.5 / (10 / 3) of exchanging.
        assert!((end.as_secs_f64() - 23.5).abs() < 1e-6, "{end}");
        assert_eq!(machine.end(end).len(), 3);
        assert_eq!(machine.running(), 0);
    }
}
