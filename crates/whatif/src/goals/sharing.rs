//! Nobody decides, and all share.

use super::measured::{Fitted, ends, named, seconds_at};
use super::{Asked, Fate, World, seconds_of};
use crate::contention::{Program, unit_seconds};
use keeptime_model::Invalid;
use keeptime_model::goal::Goal;
use keeptime_model::topology::NodeIndex;
use keeptime_planner::curve::FittedCurve;
use keeptime_random::Random;
use std::collections::BTreeMap;

/// Where runs start when nobody decides whether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the nodes that have the fewest runs: by somebody who sees all of them whenever one starts.
    Fewest,
    /// By chance, of this seed: on any of the parts of the cluster that have as many nodes as a run, side by side.
    Chance(u64),
}

/// All start when they are asked for, and share.
///
/// # Errors
/// If an application or a request makes no sense.
pub fn unreserved(
    world: &World,
    asked: &[Asked],
    placement: Placement,
) -> Result<Vec<Fate>, Invalid> {
    let known = world.fitted()?;
    let running = BTreeMap::new();
    let mut sharing = Sharing { world, known: &known, placement, running, now: 0.0 };
    let mut fates = vec![Fate::default(); asked.len()];
    let mut coming = asked.iter().enumerate().peekable();
    loop {
        let next = coming.peek().map(|(_, request)| request.at.as_secs_f64());
        let times = sharing.times();
        if let Some((number, end)) =
            sharing.next_end(&times).filter(|(_, end)| next.is_none_or(|n| *end <= n))
        {
            sharing.pass(end, &times);
            if let Some(began) = sharing.go_on(number) {
                let units = f64::from(asked[number].units);
                fates[number].unit = Some(seconds_of((end - began) / units)?);
                fates[number].ended = Some(seconds_of(end)?);
            }
        } else if let (Some(at), Some((number, request))) = (next, coming.next()) {
            sharing.pass(at, &times);
            sharing.start(number, request)?;
        } else {
            return Ok(fates);
        }
    }
}

/// Programs that share, at a moment.
struct Sharing<'a> {
    world: &'a World,
    known: &'a [Fitted<'a>],
    placement: Placement,
    running: BTreeMap<usize, Running>,
    now: f64,
}

struct Running {
    program: Program,
    units_left: f64,
    /// What it does next, while it is launched.
    then: Option<Work>,
    /// When it began what it does now.
    began: f64,
}

/// What a run is launched for.
struct Work {
    compute: f64,
    exchange: f64,
    units: f64,
}

impl Sharing<'_> {
    fn start(&mut self, number: usize, request: &Asked) -> Result<(), Invalid> {
        let known = named(self.known, &request.application)?;
        let goal = &request.goal;
        let curve = self.setting(known, goal);
        let curve = curve.ok_or_else(|| Invalid::new("goal", goal, "one that was measured"))?;
        let (compute, exchange) = self.world.alone(known, curve);
        let then = Some(Work { compute, exchange, units: f64::from(request.units) });
        let (beside, computes) = (request.beside.as_secs_f64(), known.launching);
        let program = Program {
            compute: beside * computes,
            exchange: 0.0,
            wait: beside * (1.0 - computes),
            nodes: self.nodes(number, curve.nodes())?,
        };
        let running = Running { program, units_left: 1.0, then, began: self.now };
        self.running.insert(number, running);
        Ok(())
    }

    /// What its user takes without a broker: the first that the goal admits and that is fast enough where nobody else is, or
    /// else the first.
    fn setting<'k>(&self, known: &'k Fitted<'_>, goal: &Goal) -> Option<&'k FittedCurve> {
        let curves = known.curves.curves().iter();
        let admitted = curves.filter(|curve| goal.admits_curve(curve.parameters(), curve.nodes()));
        let is_fast = |curve: &&FittedCurve| {
            let (compute, exchange) = self.world.alone(known, curve);
            let alone = seconds_of(compute + exchange);
            goal.within.is_none_or(|within| alone.is_ok_and(|alone| alone <= within))
        };
        admitted.clone().find(is_fast).or_else(|| admitted.clone().next())
    }

    /// Who has ended what it did goes on with what it was launched for; when it began that if that was it.
    fn go_on(&mut self, number: usize) -> Option<f64> {
        let mut running = self.running.remove(&number)?;
        let Some(Work { compute, exchange, units }) = running.then.take() else {
            return Some(running.began);
        };
        running.program = Program { compute, exchange, wait: 0.0, ..running.program };
        (running.units_left, running.began) = (units, self.now);
        self.running.insert(number, running);
        None
    }

    fn nodes(&self, number: usize, count: u32) -> Result<Vec<NodeIndex>, Invalid> {
        let load = |node: NodeIndex| {
            self.running.values().filter(|running| running.program.nodes.contains(&node)).count()
        };
        let mut nodes: Vec<_> = self.world.topology.node_indices().collect();
        let count = count as usize;
        if nodes.len() < count {
            return Err(Invalid::new("nodes", count, format!("at most {}", nodes.len())));
        }
        match self.placement {
            Placement::Fewest => nodes.sort_by_key(|node| (load(*node), *node)),
            Placement::Chance(seed) => {
                let part = Random::of(seed, number as u64).index(nodes.len() / count.max(1));
                nodes.drain(..part * count);
            }
        }
        nodes.truncate(count);
        Ok(nodes)
    }

    /// Seconds of a unit of each, in their order.
    fn times(&self) -> Vec<f64> {
        let programs: Vec<_> = self.running.values().map(|r| r.program.clone()).collect();
        unit_seconds(&programs, self.world.processors())
    }

    /// Who ends first if nobody comes, and when, where their units take `times`.
    fn next_end(&self, times: &[f64]) -> Option<(usize, f64)> {
        let ends = self.running.iter().zip(times);
        let ends =
            ends.map(|((number, running), unit)| (*number, self.now + running.units_left * unit));
        ends.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn pass(&mut self, now: f64, times: &[f64]) {
        let passed = now - self.now;
        for (running, unit) in self.running.values_mut().zip(times) {
            let done = if *unit > 0.0 { passed / unit } else { running.units_left };
            running.units_left = (running.units_left - done).max(0.0);
        }
        self.now = now;
    }
}

impl World {
    /// Seconds of a unit that it computes, and exchanges when the links are its own. Together they are what was measured
    /// alone, where that was: company is added by who shares, and is in a curve that was measured in company already.
    fn alone(&self, known: &Fitted<'_>, curve: &FittedCurve) -> (f64, f64) {
        let rates = self.topology.links().iter().map(|link| link.rate.get());
        let link = rates.min().unwrap_or(u64::MAX);
        let line = curve.beyond();
        let exchange = line.volume_bits / link as f64;
        let alone = known.alone.as_ref().and_then(|p| p.curve(curve.parameters(), curve.nodes()));
        let whole = alone.map(|alone| seconds_at(alone, ends(alone)[1]));
        let compute =
            whole.map_or(line.computing.as_secs_f64(), |whole| (whole - exchange).max(0.0));
        (compute * self.slowness, exchange * self.slowness)
    }

    /// Processes that a node has room for, each with what its application has of a CPU.
    fn processors(&self) -> f64 {
        let node = self.topology.nodes().iter().map(|node| node.cpu.get()).min().unwrap_or(0);
        let process = self.known.iter().map(|known| known.application.cpu().get()).max();
        (f64::from(node) / f64::from(process.unwrap_or(1).max(1))).max(1.0)
    }
}
