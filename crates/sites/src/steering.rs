//! Which node is on which way: the record and loads in; drains, changes and what balancers are to do
//! out. Pure.
//!
//! A move drains the node at its old site, has the change recorded, and has ended when it is. The
//! record is compared with what is believed at every look; when sites come, go or change, all that
//! drains serves again, and it is begun anew from the record.

mod service;

use crate::overview::{MoveView, Unfinished};
use crate::record::{Change, NodeStanding, Standing};
use keeptime_balancers::traffic::{Traffic, Weight};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::site::{HostedSite, SiteSpec};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_pools::holdings::Place;
use keeptime_pools::load::Loads;
use keeptime_pools::plan::Move;
use keeptime_pools::policy::PolicyKind;
use keeptime_pools::pool::{Pool, SiteIndex};
use keeptime_pools::pools::{Event, Pools};
use service::Service;
use std::collections::{BTreeMap, BTreeSet};

/// For so long after a refusal a node is not asked for again: each refusal is recorded, and who serves would be drained
/// for it every time.
const REFUSED_FOR: Nanos = Nanos::from_secs(2);
/// For so long after a drain that was held up no node of its site is asked for: others, which may cost no more, are asked
/// meanwhile. That is twice as long as the next one may serve nobody, until it is given up as well.
const LEFT_ALONE_FOR: Nanos = Nanos::from_secs(10);

/// What balancers keep from being decided, as they were heard at one look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hindrances {
    /// Sites of which a balancer fails: none of their nodes begins to drain, since that one may go on sending it requests, and
    /// nobody knows when it is drained.
    pub failing: BTreeSet<Name>,
    /// Nodes that a balancer of a site lacks, by sites: these do not get them.
    pub lacking: BTreeMap<Name, BTreeSet<Name>>,
    /// Nodes that a balancer of their site finds not to answer, by sites: these are none that it has left when others leave it.
    pub down: BTreeMap<Name, BTreeSet<Name>>,
    /// Sites of which not all balancers say which nodes answer: they are thought to be down that were so before.
    pub unheard: BTreeSet<Name>,
}

/// The nodes and sites of one cluster.
#[derive(Debug, Default)]
pub struct Steering {
    standing: Standing,
    /// Positions in [`Standing::nodes`].
    indices: BTreeMap<Name, NodeIndex>,
    /// Sites that stay, in the pool's order.
    sites: Vec<Name>,
    /// Nothing while no site stays, or their guarantees cannot be kept.
    pools: Option<Pools>,
    /// Why they cannot.
    refusal: Option<Invalid>,
    moves: BTreeMap<Name, Moving>,
    /// Until when nodes are not asked for.
    refused: BTreeMap<Name, Nanos>,
    /// Until when no node of these sites is asked for.
    left_alone: BTreeMap<Name, Nanos>,
    service: Service,
    /// See [`Hindrances::down`].
    down: BTreeMap<Name, BTreeSet<Name>>,
    changes: Vec<Change>,
    /// The record says what is not believed here yet: it is begun anew when no change is asked for.
    is_waiting: bool,
    ended: Vec<MoveView>,
}

/// A node on its way.
#[derive(Debug, Clone)]
struct Moving {
    from: Option<Name>,
    to: Option<Name>,
    why: String,
    since: Nanos,
    phase: Phase,
    /// Whether it leaves because it is out of service.
    is_out: bool,
    /// What was in flight on it when it was drained no longer.
    unfinished: Option<Unfinished>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The old site's balancers send it nothing new.
    Draining,
    /// It is drained, or that took too long, and the change is asked for.
    Recording,
}

impl Moving {
    /// To no other site.
    fn away(from: Name, why: String, since: Nanos) -> Self {
        let (from, phase) = (Some(from), Phase::Draining);
        Self { from, to: None, why, since, phase, is_out: false, unfinished: None }
    }
}

impl Steering {
    /// Takes in what is recorded. Where that cannot be done piece by piece, all is begun anew as soon as
    /// no change is asked for: that is answered within moments, and until then nothing new is decided.
    ///
    /// # Errors
    /// If the sites' guarantees cannot be kept any more, since the cluster is smaller than it was: then
    /// nothing moves.
    pub fn follow(&mut self, now: Nanos, standing: Standing) -> Result<(), Invalid> {
        let is_known = self.standing.sites == standing.sites
            && names(&self.standing.nodes).eq(names(&standing.nodes));
        self.standing = standing;
        self.follow_service(now);
        let agrees = self.agree(now);
        self.is_waiting |= !(is_known && agrees);
        self.keep_guarantees(now);
        if self.is_waiting && self.is_recording() {
            return Ok(());
        }
        if std::mem::take(&mut self.is_waiting) {
            self.begin_anew()?;
        }
        self.clear_leaving(now);
        Ok(())
    }

    /// Asks the policy. Loads are in the order of [`Self::sites`] and [`Standing::nodes`].
    pub fn decide(&mut self, now: Nanos, loads: &Loads, hindrances: &Hindrances) {
        self.refused.retain(|_, until| *until > now);
        self.left_alone.retain(|_, until| *until > now);
        if self.is_waiting {
            return;
        }
        self.note_who_is_down(hindrances);
        self.call_back_lacked(now, &hindrances.lacking);
        let barred = self.barred(&hindrances.failing);
        let unfit = self.unfit(&hindrances.lacking, &barred);
        let Some(pools) = self.pools.as_mut() else { return };
        pools.bar(&barred);
        pools.fit(unfit);
        for decided in pools.decide(now, loads) {
            self.start(now, decided);
        }
        self.take_out(now, hindrances);
    }

    /// Sites that stay.
    pub fn sites(&self) -> &[Name] {
        &self.sites
    }

    /// Why nothing moves, as long as that is so: see [`Self::follow`].
    pub fn refusal(&self) -> Option<&Invalid> {
        self.refusal.as_ref()
    }

    /// What is recorded.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Nodes that drain, and at which site.
    pub fn draining(&self) -> BTreeMap<Name, Name> {
        let draining = self.moves.iter().filter(|(_, moving)| moving.phase == Phase::Draining);
        draining.filter_map(|(node, m)| Some((node.clone(), m.from.clone()?))).collect()
    }

    /// Whether anything is on its way.
    pub fn is_busy(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Whether what is decided, and drained, has to wait for the answers to changes: nodes are drained anew after them.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Nothing is in flight on `node` any more at the site that it is to leave, or what is left was not waited for.
    pub fn drained(&mut self, node: &Name, unfinished: Option<Unfinished>) {
        if let Some(moving) = self.moves.get_mut(node)
            && moving.phase == Phase::Draining
            && !self.is_waiting
        {
            moving.phase = Phase::Recording;
            moving.unfinished = unfinished;
            let (from, to) = (moving.from.clone(), moving.to.clone());
            self.changes.push(Change { node: node.clone(), from, to });
        }
    }

    /// Gives up a drain of which some balancers cannot be told, or asked, for long: the node serves its site again, and no node
    /// of that is asked for for a while. Whether that was done: what leaves for good, since its site is removed, is waited for.
    pub fn held_up(&mut self, now: Nanos, wall: WallTime, node: &Name, why: String) -> bool {
        let draining = self.moves.get(node).filter(|moving| moving.phase == Phase::Draining);
        let from = draining.and_then(|moving| moving.from.clone());
        let Some(site) = from.filter(|site| !self.is_waiting && self.sites.contains(site)) else {
            return false;
        };
        self.left_alone.insert(site, now.saturating_add(LEFT_ALONE_FOR));
        self.answered(now, wall, node, Err(why));
        true
    }

    /// What became of a change.
    pub fn answered(
        &mut self,
        now: Nanos,
        wall: WallTime,
        node: &Name,
        outcome: Result<(), String>,
    ) {
        let Some(moving) = self.moves.remove(node) else { return };
        let index = self.indices[node];
        let event = match &outcome {
            Ok(()) => {
                self.standing.nodes[index.0 as usize].site.clone_from(&moving.to);
                Event::Arrived(index)
            }
            Err(_) => {
                self.refused.insert(node.clone(), now.saturating_add(REFUSED_FOR));
                Event::Failed(index)
            }
        };
        let next = self.pools.as_mut().and_then(|pools| pools.happened(now, event));
        self.ended.push(MoveView {
            at_unix_nanos: wall,
            took_nanos: now.saturating_sub(moving.since),
            node: node.clone(),
            from: moving.from,
            to: moving.to,
            why: moving.why,
            failure: outcome.err(),
            unfinished: moving.unfinished,
        });
        if let Some(next) = next {
            self.start(now, next);
        }
    }

    /// Changes to be asked for, each once.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Moves that have ended, each once.
    pub fn take_ended(&mut self) -> Vec<MoveView> {
        std::mem::take(&mut self.ended)
    }

    /// What each node is to get of `site`. Of one that drains nothing is said: whoever drains it does.
    pub fn traffic(&self, site: &Name) -> Vec<(Name, Traffic)> {
        let of_node = |node: &NodeStanding| {
            let serves = node.serves(site);
            let phase = self.moves.get(&node.name).filter(|m| m.from.as_ref() == Some(site));
            let traffic = match phase.map(|moving| moving.phase) {
                Some(Phase::Draining) => return None,
                Some(Phase::Recording) => Traffic::Off,
                None if serves => Traffic::On(Weight::FULL),
                None => Traffic::Off,
            };
            Some((node.name.clone(), traffic))
        };
        self.standing.nodes.iter().filter_map(of_node).collect()
    }

    /// Nodes that are not asked for: no site could have them, they were refused, or a balancer of their site fails, or held a
    /// drain up.
    fn barred(&self, failing: &BTreeSet<Name>) -> BTreeSet<NodeIndex> {
        let gives_none = |site: &Name| failing.contains(site) || self.left_alone.contains_key(site);
        // Who has more than it may gives none back that answers for one that does not.
        let has_too_many = |spec: &&SiteSpec| {
            let of_it = self.standing.nodes.iter().filter(|n| n.serves(&spec.name));
            self.down.contains_key(&spec.name) && of_it.count() > spec.guarantee.max as usize
        };
        let specs = self.standing.sites.iter().map(|hosted| &hosted.spec);
        let crowded: Vec<_> = specs.filter(has_too_many).map(|spec| &spec.name).collect();
        let is_of_no_use =
            |site: &Name, node: &Name| crowded.contains(&site) && self.is_down(site, node);
        let is_barred = |node: &NodeStanding| {
            let site = node.site.as_ref();
            !node.is_there()
                || self.refused.contains_key(&node.name)
                || site.is_some_and(|site| gives_none(site) || is_of_no_use(site, &node.name))
        };
        let nodes = self.standing.nodes.iter().zip((0..).map(NodeIndex));
        nodes.filter(|(node, _)| is_barred(node)).map(|(_, index)| index).collect()
    }

    /// Which sites could not have a node, or not use it, of nodes that may be asked for: each different set of sites makes a
    /// kind of node. Those that are on their way have what they were asked for, and the record says of what is free only when
    /// that is done.
    fn unfit(
        &self,
        lacking: &BTreeMap<Name, BTreeSet<Name>>,
        barred: &BTreeSet<NodeIndex>,
    ) -> BTreeMap<NodeIndex, BTreeSet<SiteIndex>> {
        // What is recorded is what was begun with, or nothing is decided.
        let staying = self.standing.sites.iter().filter(|site| !site.is_leaving);
        let specs = staying.map(|site| (&site.spec, lacking.get(&site.spec.name)));
        let specs: Vec<_> = specs.zip((0..).map(SiteIndex)).collect();
        let is_unfit = |node: &NodeStanding, spec: &SiteSpec, lacked: Option<&BTreeSet<Name>>| {
            let lacks = lacked.is_some_and(|nodes| nodes.contains(&node.name));
            (lacks || !node.fits(spec)) && node.site.as_ref() != Some(&spec.name)
        };
        let is_asked_for = |(node, index): &(&NodeStanding, NodeIndex)| {
            !barred.contains(index)
                && !self.moves.contains_key(&node.name)
                && matches!(self.place(node), Place::Spare | Place::Serving(_))
        };
        let of_node = |(node, index): (&NodeStanding, NodeIndex)| {
            let unfit = specs.iter().filter(|((spec, lacked), _)| is_unfit(node, spec, *lacked));
            let unfit: BTreeSet<_> = unfit.map(|(_, site)| *site).collect();
            (!unfit.is_empty()).then_some((index, unfit))
        };
        let nodes = self.standing.nodes.iter().zip((0..).map(NodeIndex));
        nodes.filter(is_asked_for).filter_map(of_node).collect()
    }

    fn stays(&self, node: &NodeStanding, site: &Name) -> bool {
        node.serves(site) && !self.moves.contains_key(&node.name)
    }

    /// How many nodes a site has that are not on their way, and answer: what is away may be lost.
    fn answering(&self, site: &Name) -> usize {
        let answers = |node: &&NodeStanding| {
            node.is_connected && self.stays(node, site) && !self.is_down(site, &node.name)
        };
        self.standing.nodes.iter().filter(answers).count()
    }

    fn is_down(&self, site: &Name, node: &Name) -> bool {
        self.down.get(site).is_some_and(|down| down.contains(node))
    }

    fn note_who_is_down(&mut self, hindrances: &Hindrances) {
        let before = std::mem::replace(&mut self.down, hindrances.down.clone());
        for (site, down) in before {
            if hindrances.unheard.contains(&site) {
                self.down.entry(site).or_default().extend(down);
            }
        }
    }

    fn is_recording(&self) -> bool {
        self.moves.values().any(|moving| moving.phase == Phase::Recording)
    }

    /// From the record alone: what drained serves again.
    fn begin_anew(&mut self) -> Result<(), Invalid> {
        let staying = |site: &&HostedSite| !site.is_leaving;
        let specs: Vec<_> =
            self.standing.sites.iter().filter(staying).map(|site| site.spec.clone()).collect();
        self.indices = names(&self.standing.nodes).cloned().zip((0..).map(NodeIndex)).collect();
        self.sites = specs.iter().map(|spec| spec.name.clone()).collect();
        self.moves.clear();
        self.changes.clear();
        self.pools = None;
        self.refusal = None;
        if !specs.is_empty() {
            let pool = Pool::of_specs(self.standing.nodes.len(), &specs);
            let pool = pool.inspect_err(|invalid| self.refusal = Some(invalid.clone()))?;
            let places = self.standing.nodes.iter().map(|node| self.place(node)).collect();
            self.pools = Some(Pools::new(pool, places, PolicyKind::Keeptime.policy()));
        }
        Ok(())
    }

    /// Where a node that is not on its way is, by the record.
    fn place(&self, node: &NodeStanding) -> Place {
        let of_pool = |site: &Name| self.sites.iter().position(|name| name == site);
        match &node.site {
            // One of a site that leaves is nobody's until it is drained.
            Some(site) => of_pool(site).map_or(Place::Down, |at| {
                let site = SiteIndex(at as u32);
                if node.is_out_of_service { Place::Leaving(site) } else { Place::Serving(site) }
            }),
            None if node.is_there() && !self.refused.contains_key(&node.name) => Place::Spare,
            None => Place::Down,
        }
    }

    /// Brings what is believed in line with the record; says whether that could be done piece by piece.
    fn agree(&mut self, now: Nanos) -> bool {
        self.moves.retain(|node, moving| {
            // It was lost, or somebody gave it back, while it drained.
            moving.phase == Phase::Recording
                || self.standing.nodes[self.indices[node].0 as usize].site == moving.from
        });
        let busy: BTreeSet<_> = self.moves.keys().collect();
        let still = self.standing.nodes.iter().zip((0..).map(NodeIndex));
        let still = still.filter(|(node, _)| !busy.contains(&node.name));
        let places: Vec<_> = still.map(|(node, index)| (index, self.place(node))).collect();
        let Some(pools) = &mut self.pools else { return true };
        for (index, place) in places {
            let believed = pools.holdings().place(index);
            if believed == place {
                continue;
            }
            match (believed, place) {
                (Place::Serving(before), Place::Leaving(site)) if before == site => {
                    pools.happened(now, Event::Leaves(index));
                    continue;
                }
                (Place::Leaving(before), Place::Serving(site)) if before == site => {
                    pools.happened(now, Event::Stays(index));
                    continue;
                }
                (_, Place::Serving(_) | Place::Leaving(_)) => return false,
                (_, Place::Spare | Place::Down) => {}
            }
            // Nothing follows from a death: plans that need the node end.
            pools.happened(now, Event::Died(index));
            if place == Place::Spare {
                pools.happened(now, Event::Returned(index));
            }
        }
        true
    }

    /// Nodes may have died since a move was decided: what a site then needs for its hard guarantee does
    /// not drain any longer.
    fn keep_guarantees(&mut self, now: Nanos) {
        let mut needed = Vec::new();
        for site in self.standing.sites.iter().filter(|site| !site.is_leaving) {
            let of_it = |node: &&NodeStanding| node.serves(&site.spec.name);
            let (going, staying): (Vec<_>, Vec<_>) = self
                .standing
                .nodes
                .iter()
                .filter(of_it)
                .partition(|n| self.moves.contains_key(&n.name));
            let lacking = (site.spec.guarantee.hard as usize).saturating_sub(staying.len());
            let drains = |node: &&NodeStanding| self.moves[&node.name].phase == Phase::Draining;
            let of_those = going.into_iter().filter(drains).take(lacking);
            needed.extend(of_those.map(|node| node.name.clone()));
            // Whoever is out of service can wait for those that are away.
            let is_out = |(_, moving): &(&Name, &Moving)| {
                moving.is_out
                    && moving.phase == Phase::Draining
                    && moving.from.as_ref() == Some(&site.spec.name)
            };
            let mut out = self.moves.iter().filter(is_out).map(|(node, _)| node.clone()).peekable();
            if out.peek().is_some() {
                let answering = self.answering(&site.spec.name);
                needed.extend(out.take(least(&site.spec).saturating_sub(answering)));
            }
        }
        needed.iter().for_each(|node| self.call_back(now, node));
    }

    /// A balancer may have come to lack nodes since moves were decided: what its site could not use does not drain for it any
    /// longer.
    fn call_back_lacked(&mut self, now: Nanos, lacking: &BTreeMap<Name, BTreeSet<Name>>) {
        let is_lacked = |(node, moving): &(&Name, &Moving)| {
            let lacked = moving.to.as_ref().and_then(|to| lacking.get(to));
            moving.phase == Phase::Draining && lacked.is_some_and(|nodes| nodes.contains(*node))
        };
        let lacked = self.moves.iter().filter(is_lacked).map(|(node, _)| node.clone());
        for node in lacked.collect::<Vec<_>>() {
            self.call_back(now, &node);
        }
    }

    /// The node does not drain any longer: it serves on.
    fn call_back(&mut self, now: Nanos, node: &Name) {
        self.moves.remove(node);
        if let Some(pools) = &mut self.pools {
            pools.happened(now, Event::Failed(self.indices[node]));
        }
    }

    /// Nodes of sites that leave, or are gone, become spares.
    fn clear_leaving(&mut self, now: Nanos) {
        for node in &self.standing.nodes {
            let Some(site) = node.site.as_ref().filter(|site| !self.sites.contains(site)) else {
                continue;
            };
            let is_refused = self.refused.get(&node.name).is_some_and(|until| *until > now);
            if !is_refused && !self.moves.contains_key(&node.name) {
                let moving = Moving::away(site.clone(), "the site is removed".into(), now);
                self.moves.insert(node.name.clone(), moving);
            }
        }
    }

    fn start(&mut self, now: Nanos, decided: Move) {
        let node = self.standing.nodes[decided.node.0 as usize].name.clone();
        let name = |site: SiteIndex| self.sites[site.0 as usize].clone();
        let why = format!("{} {}", name(decided.site), decided.reason);
        let moving = Moving {
            from: decided.from.map(name),
            to: decided.to.map(name),
            why,
            since: now,
            phase: Phase::Draining,
            is_out: false,
            unfinished: None,
        };
        let is_spare = moving.from.is_none();
        self.moves.insert(node.clone(), moving);
        if is_spare {
            self.drained(&node, None);
        }
    }
}

/// The nodes that a site keeps when others leave it because they are out of service.
fn least(site: &SiteSpec) -> usize {
    (site.guarantee.hard as usize).max(1)
}

fn names(nodes: &[NodeStanding]) -> impl Iterator<Item = &Name> {
    nodes.iter().map(|node| &node.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::site::Guarantee;
    use keeptime_model::units::CpuPpm;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn site(text: &str, percent: u32) -> HostedSite {
        let spec = SiteSpec {
            name: name(text),
            guarantee: Guarantee { hard: 1, soft: 1, max: 1 },
            priority: 1,
            cpu_ppm: Some(CpuPpm::from_percent(percent)),
            services: vec![],
            port: 80,
            drain_most_nanos: None,
            balancers: vec![],
        };
        HostedSite { spec, is_leaving: false }
    }

    // Goal: nodes that nobody may have make no kinds of their own, each of which every decision would be about. Method: jobs
    // have most of all nodes; one is away, and one is of a site whose balancer fails.
    #[test]
    fn only_nodes_that_may_be_asked_for_are_told_apart() {
        let node = |text: &str, site: Option<&str>, is_connected| NodeStanding {
            name: name(text),
            address: None,
            site: site.map(name),
            is_connected,
            is_out_of_service: false,
            cpu: CpuPpm::from_percent(100),
            cpu_free: CpuPpm::from_percent(30),
        };
        let blog = Some("blog");
        let nodes =
            [("n0", None, true), ("n1", blog, false), ("n2", blog, true), ("n3", None, true)];
        let nodes = nodes.map(|(text, site, is_there)| node(text, site, is_there)).into();
        let standing = Standing { sites: vec![site("blog", 10), site("shop", 50)], nodes };
        let mut steering = Steering::default();
        steering.follow(Nanos::new(0), standing).unwrap();
        let barred = steering.barred(&BTreeSet::from([name("blog")]));
        assert_eq!(barred, BTreeSet::from([1, 2].map(NodeIndex)));
        let lacking = BTreeMap::from([(name("blog"), BTreeSet::from([name("n3")]))]);
        let (blog, shop) = (SiteIndex(0), SiteIndex(1));
        let unfit = [(0, vec![shop]), (3, vec![blog, shop])];
        let unfit = unfit.map(|(node, sites)| (NodeIndex(node), BTreeSet::from_iter(sites)));
        assert_eq!(steering.unfit(&lacking, &barred), BTreeMap::from(unfit));
    }
}
