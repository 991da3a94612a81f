//! The machine: a pool, who holds what, and the plans under way. Loads and events in, moves out.

use crate::holdings::{Holdings, Place};
use crate::load::Loads;
use crate::plan::{Move, Plan, PlanId, Step};
use crate::policy::{Policy, View};
use crate::pool::{Pool, SiteIndex};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// A pool that is steered by a policy.
#[derive(Debug)]
pub struct Pools {
    pool: Pool,
    /// Which sites cannot use which nodes now, and what is left of the pool then.
    unfit: BTreeMap<NodeIndex, BTreeSet<SiteIndex>>,
    able: Pool,
    holdings: Holdings,
    policy: Box<dyn Policy>,
    plans: BTreeMap<PlanId, UnderWay>,
    next: u64,
}

/// What happened to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It has left the site that it was to leave and serves the one that it was to serve.
    Arrived(NodeIndex),
    /// Its move could not be done: it serves, or is spare, as before.
    Failed(NodeIndex),
    /// It does not answer any more.
    Died(NodeIndex),
    /// It answers again.
    Returned(NodeIndex),
    /// It will be taken away from the site that it serves, and serves on until then: nobody counts on it.
    Leaves(NodeIndex),
    /// It will not be taken away any more.
    Stays(NodeIndex),
}

/// A plan whose step `at` is under way.
#[derive(Debug)]
struct UnderWay {
    plan: Plan,
    at: usize,
}

impl Pools {
    /// `pool`, whose nodes are at `places`.
    ///
    /// # Panics
    /// If there is not one place for each node, or one names a site that is not there.
    pub fn new(pool: Pool, places: Vec<Place>, policy: Box<dyn Policy>) -> Self {
        assert_eq!(places.len(), pool.nodes().len(), "one place for each node");
        let known = |place: &Place| match place {
            Place::Serving(site) | Place::Leaving(site) => (site.0 as usize) < pool.sites().len(),
            Place::Spare | Place::Down => true,
        };
        assert!(places.iter().all(known), "places name sites of the pool");
        let holdings = Holdings::new(places);
        let unfit = BTreeMap::new();
        let able = pool.without(&unfit);
        Self { pool, unfit, able, holdings, policy, plans: BTreeMap::new(), next: 0 }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Who holds what.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// Asks the policy; the moves are to be done now. Later steps of their plans follow from
    /// [`Self::happened`].
    ///
    /// # Panics
    /// If `loads` are not of this pool, or the policy planned what cannot be done.
    pub fn decide(&mut self, now: Nanos, loads: &Loads) -> Vec<Move> {
        assert_eq!(loads.sites.len(), self.pool.sites().len(), "one load for each site");
        let nodes = self.pool.nodes().len();
        assert_eq!((loads.nodes.len(), loads.cpu.len()), (nodes, nodes), "loads for each node");
        let view = View { now, pool: &self.able, holdings: &self.holdings, loads };
        let plans = self.policy.plans(&view);
        plans.into_iter().filter_map(|plan| self.begin(plan)).collect()
    }

    /// From now on no plan takes `nodes`, and any other may be taken: what is known to come to nothing is not planned.
    /// They go on as they do, and plans that have them go on until it is the turn of one of them, and end there. O(nodes).
    pub fn bar(&mut self, nodes: &BTreeSet<NodeIndex>) {
        for node in self.pool.node_indices() {
            self.holdings.set_barred(node, nodes.contains(&node));
        }
    }

    /// From now on no plan gives a site a node that is `unfit` for it, and any other as the pool says. What it has counts as
    /// nothing where it is unfit for that. Plans that are under way go on. As long as [`Pool::without`] where that is another
    /// than before.
    ///
    /// # Panics
    /// If a node or a site is not of this pool.
    pub fn fit(&mut self, unfit: BTreeMap<NodeIndex, BTreeSet<SiteIndex>>) {
        if self.unfit != unfit {
            self.able = self.pool.without(&unfit);
            self.unfit = unfit;
        }
    }

    /// Tells what happened to a node; the moves are to be done now. What is told of a node that is
    /// not on its way is passed over: news may come twice or too late.
    pub fn happened(&mut self, now: Nanos, event: Event) -> Option<Move> {
        match event {
            Event::Arrived(node) => {
                let (id, step) = self.under_way(node)?;
                self.holdings.finish(&step, now);
                self.go_on(id)
            }
            Event::Failed(node) => {
                let (id, step) = self.under_way(node)?;
                self.holdings.undo(&step);
                self.give_up(id, 1);
                None
            }
            Event::Died(node) => {
                self.die(node);
                None
            }
            Event::Returned(node) => {
                if self.holdings.place(node) == Place::Down {
                    self.holdings.set_place(node, Place::Spare);
                }
                None
            }
            Event::Leaves(node) => {
                if let Place::Serving(site) = self.holdings.place(node) {
                    // Plans that need it end.
                    self.die(node);
                    self.holdings.set_place(node, Place::Leaving(site));
                }
                None
            }
            Event::Stays(node) => {
                if let (Place::Leaving(site), None) =
                    (self.holdings.place(node), self.holdings.reservation(node))
                {
                    self.holdings.set_place(node, Place::Serving(site));
                }
                None
            }
        }
    }

    /// Reserves all nodes of `plan` and starts the first.
    fn begin(&mut self, plan: Plan) -> Option<Move> {
        let id = PlanId(self.next);
        let first = *plan.steps.first()?;
        self.next += 1;
        for step in &plan.steps {
            assert!(self.holdings.is_legal(step), "{} planned {step:?}", self.policy.name());
            self.holdings.reserve(step, id);
        }
        self.holdings.start(&first);
        let started = movement(id, &plan, first);
        self.plans.insert(id, UnderWay { plan, at: 0 });
        Some(started)
    }

    /// The plan whose step under way moves `node`, and that step.
    fn under_way(&self, node: NodeIndex) -> Option<(PlanId, Step)> {
        let reservation = self.holdings.reservation(node).filter(|r| r.started)?;
        let under_way = &self.plans[&reservation.plan];
        Some((reservation.plan, under_way.plan.steps[under_way.at]))
    }

    /// Starts the plan's next step, or ends it.
    fn go_on(&mut self, id: PlanId) -> Option<Move> {
        let under_way = self.plans.get_mut(&id)?;
        under_way.at += 1;
        let next = under_way.plan.steps.get(under_way.at).copied();
        let may_go = |step: &Step| {
            !self.holdings.is_barred(step.node) && leaves_enough(&self.pool, &self.holdings, step)
        };
        let Some(step) = next.filter(may_go) else {
            self.give_up(id, 0);
            return None;
        };
        self.holdings.start(&step);
        self.plans.get(&id).map(|under_way| movement(id, &under_way.plan, step))
    }

    /// Ends the plan; the nodes of its steps from `skip` after the one under way stay where they are.
    fn give_up(&mut self, id: PlanId, skip: usize) {
        let Some(under_way) = self.plans.remove(&id) else { return };
        for step in under_way.plan.steps.iter().skip(under_way.at + skip) {
            self.holdings.undo(step);
        }
    }

    fn die(&mut self, node: NodeIndex) {
        let reservation = self.holdings.reservation(node);
        self.holdings.set_down(node);
        let Some(reservation) = reservation else { return };
        if reservation.started {
            self.give_up(reservation.plan, 1);
            return;
        }
        // What is under way arrives; what would have come after it does not happen.
        let Some(under_way) = self.plans.get_mut(&reservation.plan) else { return };
        let steps = &mut under_way.plan.steps;
        let dead = steps.iter().position(|step| step.node == node).unwrap_or(steps.len());
        for step in steps.drain(dead..).skip(1) {
            self.holdings.undo(&step);
        }
    }
}

/// Nodes may have died since the plan was made: no later step takes a site below its hard guarantee.
fn leaves_enough(pool: &Pool, holdings: &Holdings, step: &Step) -> bool {
    step.from.is_none_or(|site| {
        let serving = holdings.nodes().filter(|(_, place)| *place == Place::Serving(site)).count();
        serving > pool.site(site).guarantee.hard as usize
    })
}

fn movement(id: PlanId, plan: &Plan, step: Step) -> Move {
    let Step { node, from, to } = step;
    Move { plan: id, node, from, to, site: plan.site, reason: plan.reason }
}
