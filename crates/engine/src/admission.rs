//! Whether a request fits at a time, and where; otherwise why not. Nothing is taken.

use crate::absences::Absences;
use crate::agents::Agents;
use crate::book::Book;
use crate::cluster::{Cluster, Group, LITTLE, Resource};
use crate::mask::NodeMask;
use crate::pieces::{Piece, parted};
use crate::refusal::{Beyond, DrainedNode, Lacking, NAMED_MAX, Reason, Refusal, WithoutMechanism};
use keeptime_calendar::{Calendar, Demand, ResourceId, Span};
use keeptime_model::Invalid;
use keeptime_model::assignment::{CpuMechanism, TrafficClass};
use keeptime_model::capability::Guarantee;
use keeptime_model::extension::{Extension, ExtensionFlow};
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Grant, NodeChoice, Promise, Resources};
use keeptime_model::text::one_of;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, WallTime};
use keeptime_planner::availability::{Availability, Limit};
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::placement::{Allocator, Placed, RankFlows, TooFewNodes};
use keeptime_planner::refusal::{self, CounterOffer};
use keeptime_planner::translate::{Decision, Options, Plan, Verdict, schedule};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Where something flows, nodes are chosen first out of so many times as many as are needed.
const OPEN_NODES_FOR_EACH: usize = 4;

/// All that an admission depends on.
pub(crate) struct Admission<'a> {
    pub cluster: &'a Cluster,
    pub calendar: &'a Calendar,
    pub book: &'a Book,
    pub agents: &'a Agents,
    /// From when on nodes count whose agents are away.
    pub absences: Absences,
    /// The user's own tables in which it counts: CPU and sent rate.
    pub user: Option<[ResourceId; 2]>,
    /// What one user may have in all: CPU and sent rate.
    pub shares: [u64; 2],
    /// What is to keep its share of the CPU.
    pub mechanism: CpuMechanism,
    /// Nodes that are kept for others who wait.
    pub kept: NodeMask,
    /// Nodes that it may not be granted, whoever has them.
    pub outside: NodeMask,
    /// Drained nodes that it has not.
    pub drained: NodeMask,
    /// The nodes on which it stays, in the order of its ranks; empty where they are to be chosen. No others may be granted to
    /// it then, and neither more nor less of these.
    pub stays: &'a [Name],
}

/// Resources that a goal comes to, or that were asked for: these are borrowed, since every try needs them.
#[derive(Debug, Clone)]
pub(crate) struct Need<'a> {
    pub resources: Cow<'a, Resources>,
    pub promise: Option<Promise>,
}

/// A goal, decided on what is free and on what its user may have.
struct Decided<'a> {
    profile: &'a FittedProfile,
    decision: Decision,
    /// Other goals that would be admitted, where what is planned is more than its user may have.
    instead: Vec<CounterOffer>,
}

/// What came of a request.
pub(crate) struct Outcome {
    pub granted: Result<Grant, Denied>,
    /// How it was decided, if it was a goal.
    pub decision: Option<Arc<Decision>>,
}

/// Why a request cannot be granted.
pub(crate) enum Denied {
    Invalid(Invalid),
    Refused(Box<Refusal>),
}

/// Why no nodes were found.
pub(crate) enum Unplaced {
    Invalid(Invalid),
    TooFew(TooFewNodes),
    /// These are the best, and their links do not hold the rate.
    Slow(Placed),
}

impl From<Invalid> for Unplaced {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Invalid> for Denied {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Reason> for Denied {
    fn from(reason: Reason) -> Self {
        Refusal::from(reason).into()
    }
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl Admission<'_> {
    /// What would be granted over `span`. For a goal, what the planner finds on what is free during
    /// all of it.
    pub fn grant(&self, ask: &Ask, span: Span) -> Outcome {
        let mut instead = Vec::new();
        let (found, decision) = match ask {
            Ask::Goal { application, goal } => match self.decide(application, goal, span) {
                Ok(Decided { profile, decision, instead: offers }) => {
                    instead = offers;
                    (self.planned(profile, &decision, span), Some(Arc::new(decision)))
                }
                Err(invalid) => (Err(invalid.into()), None),
            },
            Ask::Resources(asked) => (self.place(&Need::of(Cow::Borrowed(asked)), span), None),
            Ask::SiteNode(asked) => {
                let need = Need::of(Cow::Owned(asked.resources()));
                let services = asked.services.clone();
                (self.place(&need, span).map(|grant| Grant { services, ..grant }), None)
            }
        };
        let found = found.map(|grant| Grant { cpu_mechanism: self.mechanism, ..grant });
        let granted = found.and_then(|grant| self.fits(&grant, span).map(|()| grant));
        let granted = granted.map_err(|denied| match denied {
            Denied::Refused(mut refusal) => {
                refusal.without_mechanism = self.without_mechanism(&refusal);
                if let Some(beyond) = self.never(ask, &refusal.reason) {
                    // Since when the rest is busy helps nobody then.
                    (refusal.reason, refusal.lacking) = (Reason::Never(beyond), Vec::new());
                }
                refusal.counter_offers.append(&mut instead);
                Denied::Refused(refusal)
            }
            Denied::Invalid(invalid) => Denied::Invalid(invalid),
        });
        Outcome { granted, decision }
    }

    /// What of resources can never be granted, where it is what nodes have of their own that `reason` is about.
    fn never(&self, ask: &Ask, reason: &Reason) -> Option<Beyond> {
        match (ask, reason) {
            (Ask::Resources(asked), Reason::TooFewNodes { .. } | Reason::Lacking(_)) => {
                self.beyond(asked)
            }
            (Ask::SiteNode(asked), Reason::Lacking(_)) => self.beyond(&asked.resources()),
            _ => None,
        }
    }

    /// Those of the nodes that a refusal names for what they cannot enforce on which the mechanism does not serve.
    fn without_mechanism(&self, refusal: &Refusal) -> Vec<WithoutMechanism> {
        let Some(asked) = Guarantee::of_mechanism(self.mechanism) else { return Vec::new() };
        let asked = BTreeSet::from([asked]);
        let named: &[Name] = match &refusal.reason {
            Reason::NotEnforced { nodes, .. } => nodes,
            _ => &[],
        };
        let without = |name: &Name| {
            let node = self.cluster.node(name).ok()?;
            self.agents.refused(node, &asked)?;
            let serve = self.agents.mechanisms(node);
            Some(WithoutMechanism { node: name.clone(), asked: self.mechanism, serve })
        };
        named.iter().chain(&refusal.unusable).filter_map(without).take(NAMED_MAX).collect()
    }

    /// What the planner finds for a goal on what is free during all of `span`, and on what its user may have: where that
    /// is less than it would take, less is planned, and no more is offered.
    fn decide(&self, application: &Name, goal: &Goal, span: Span) -> Result<Decided<'_>, Invalid> {
        let profile = self.profile(application)?;
        goal.check(profile.application())?;
        let free = self.free(span, &Need::least_of(profile));
        let plan = |free: &Availability| {
            schedule(goal, profile, self.cluster.index(), free, &Options::default())
        };
        let mut decision = plan(&free);
        let (limit, mut instead) = (self.limit(profile, span), Vec::new());
        if !is_within(limit, profile, &decision.verdict) {
            let limited = plan(&free.limited(limit));
            match limited.verdict {
                Verdict::Planned(_) => decision = limited,
                // Why not is told of what is free; what could be had is within the limit.
                Verdict::Refused(less) => match &mut decision.verdict {
                    Verdict::Planned(_) => instead = less.counter_offers,
                    Verdict::Refused(refusal) => refusal.counter_offers = less.counter_offers,
                },
            }
        }
        Ok(Decided { profile, decision, instead })
    }

    /// What its user may have beside what they have during all of `span`, and no more than links hold where it stays.
    fn limit(&self, profile: &FittedProfile, span: Span) -> Limit {
        let free = |table| self.calendar.table(table).map_or(0, |table| table.least_free(span));
        let [cpu_ppm, sent] = self.user.map_or([u64::MAX; 2], |tables| tables.map(free));
        Limit { cpu_ppm, bits_per_second: sent.min(self.sent_where_it_stays(profile, span)) }
    }

    /// What all flows of an application may send together where it stays, whose ranks do not change places.
    fn sent_where_it_stays(&self, profile: &FittedProfile, span: Span) -> u64 {
        let flows = profile.flows().get(&(self.stays.len() as u32)).map_or(0, RankFlows::count);
        if flows == 0 {
            return u64::MAX;
        }
        let bits_per_second = BitsPerSecond::new(1);
        let resources = Resources { bits_per_second, ..Need::least_of(profile) };
        let one = Need::of(Cow::Owned(resources)).on(self.stays.to_vec());
        self.held_rate(&one, span).map_or(u64::MAX, |rate| rate.get().saturating_mul(flows))
    }

    /// `grant` with `extension` beside, over `span`. Its nodes stay.
    pub fn extend(&self, grant: Grant, extension: Extension, span: Span) -> Result<Grant, Denied> {
        extension.check(grant.nodes.len())?;
        self.check_usable(&grant.nodes, &guarantees_beside(&extension), span.from())?;
        let grant = Grant { extension, ..grant };
        self.fits(&grant, span)?;
        Ok(grant)
    }

    /// Nodes for `need` during `span`.
    pub fn place(&self, need: &Need<'_>, span: Span) -> Result<Grant, Denied> {
        let nodes = match &need.resources.nodes {
            NodeChoice::Named(names) => {
                self.check_usable(names, &self.guarantees(&need.resources), span.from())?;
                names.clone()
            }
            NodeChoice::Any(count) => {
                let placed = self.choose(need, *count, span);
                let placed = placed.map_err(|why| self.unplaced(need, *count, span, why))?;
                self.names(&placed.nodes)
            }
        };
        Ok(need.on(nodes))
    }

    /// The names of nodes, in the same order.
    pub fn names(&self, nodes: &[NodeIndex]) -> Vec<Name> {
        nodes.iter().map(|node| self.cluster.name(*node).clone()).collect()
    }

    /// The profile of an application.
    pub fn profile(&self, application: &Name) -> Result<&FittedProfile, Invalid> {
        let known = self.book.applications();
        let found = known.get(application).map(|known| known.fitted.as_ref());
        found.ok_or_else(|| {
            let names: Vec<_> = known.keys().map(Name::as_str).collect();
            let expected = match names.as_slice() {
                [] => "an application that was registered; none is".into(),
                names => one_of(names),
            };
            Invalid::new("application", application, expected)
        })
    }

    /// What `grant` takes, of the user's own tables too.
    pub fn demands(&self, grant: &Grant) -> Result<Vec<Demand>, Invalid> {
        let (mut demands, sent) = self.cluster.demands(grant)?;
        if let Some([of_cpu, of_sent]) = self.user {
            let cpu = grant.cpu().map(|cpu| u64::from(cpu.get())).sum();
            demands.extend([Demand::new(of_cpu, cpu), Demand::new(of_sent, sent.get())]);
        }
        Ok(demands)
    }

    /// What `grant` takes over `span`, one piece after the other: another one begins where it is to have more.
    pub fn pieces(&self, grant: &Grant, span: Span) -> Result<Vec<Piece>, Invalid> {
        let piece = |span: Span| {
            let demands = self.demands(&grant.at(span.from()))?;
            Ok(Piece { span, demands })
        };
        let turn = grant.later.map(|later| later.from_unix_nanos);
        parted(span, turn).into_iter().map(piece).collect()
    }

    /// Whether every slot table has room for `grant`.
    pub fn fits(&self, grant: &Grant, span: Span) -> Result<(), Denied> {
        for Piece { span, demands } in self.pieces(grant, span)? {
            match self.calendar.fits(span, &demands) {
                Ok(()) => {}
                Err(keeptime_calendar::Refusal::Lacks(lacks)) => {
                    return Err(self.all_lacking(&lacks).into());
                }
                Err(other) => {
                    return Err(Invalid::new("resources", other, "less than that").into());
                }
            }
        }
        Ok(())
    }

    /// What is free during all of `span` on the nodes that have what `resources` say of CPU and disk.
    pub fn free(&self, span: Span, resources: &Resources) -> Availability {
        let nodes: Vec<_> = self.open(span, resources).collect();
        self.cluster.free(self.calendar, span, &nodes, resources.cpu_ppm)
    }

    /// The usable nodes that have what `resources` say of CPU and disk during all of `span`, those that are there first, and
    /// of these those with the fewest reservations. Asks the slot tables of one node of each group.
    fn open(&self, span: Span, resources: &Resources) -> impl Iterator<Item = NodeIndex> {
        let asked = self.guarantees(resources);
        let is_free = move |(of, amount): (Resource, u64)| {
            amount == 0 || self.cluster.least_free(self.calendar, span, of) >= amount
        };
        let is_open = move |group: &Group<'_>| {
            group.any().is_some_and(|node| of_any_rank(resources, node).into_iter().all(is_free))
        };
        let open = self.cluster.groups(self.calendar).filter(is_open).flat_map(Group::nodes);
        let open = open.filter(move |node| self.is_usable(*node, &asked, span.from()));
        self.who_is_there_first(open)
    }

    /// All of `nodes`, those last whose agents are away: they may not be back in time, and what is reserved least is mostly
    /// what is away longest.
    fn who_is_there_first(
        &self,
        mut nodes: impl Iterator<Item = NodeIndex>,
    ) -> impl Iterator<Item = NodeIndex> {
        let mut away = VecDeque::new();
        std::iter::from_fn(move || {
            loop {
                match nodes.next() {
                    Some(node) if self.agents.is_connected(node) => return Some(node),
                    Some(node) => away.push_back(node),
                    None => return away.pop_front(),
                }
            }
        })
    }

    /// Nodes that `ask` could be given: those that it names, or all that have during all of `span` what each needs of
    /// its own.
    pub fn candidates(&self, ask: &Ask, span: Span) -> Vec<NodeIndex> {
        let resources = match ask {
            Ask::Goal { application, .. } => {
                let profile = self.profile(application).ok();
                profile.map(|profile| Cow::Owned(Need::least_of(profile)))
            }
            Ask::Resources(_) | Ask::SiteNode(_) => ask.resources(),
        };
        let Some(resources) = resources else { return Vec::new() };
        match &resources.nodes {
            NodeChoice::Named(names) => {
                names.iter().filter_map(|name| self.cluster.node(name).ok()).collect()
            }
            NodeChoice::Any(_) => self.open(span, &resources).collect(),
        }
    }

    /// The nodes that can hold the greatest rate during `span`, if that is enough.
    pub fn choose(&self, need: &Need<'_>, count: u32, span: Span) -> Result<Placed, Unplaced> {
        let placed = self.best(need, count, span)?;
        let is_enough = placed.rate >= need.resources.bits_per_second;
        if is_enough { Ok(placed) } else { Err(Unplaced::Slow(placed)) }
    }

    /// The nodes that can hold the greatest rate during `span`: of a few, if that is enough, and
    /// otherwise of all. To choose among all is what takes the time in a large cluster. The rate is not judged: nothing is
    /// [`Unplaced::Slow`] here.
    pub fn best(&self, need: &Need<'_>, count: u32, span: Span) -> Result<Placed, Unplaced> {
        let resources = &need.resources;
        let flows = resources.pattern.as_ref().map(|pattern| RankFlows::new(pattern, count));
        let flows = flows.transpose()?;
        let for_each = flows.as_ref().map_or(1, |_| OPEN_NODES_FOR_EACH);
        let enough = (count as usize).saturating_mul(for_each);
        let few: Vec<_> = self.open(span, resources).take(enough).collect();
        if few.len() < count as usize {
            return Err(Unplaced::TooFew(TooFewNodes { free: few.len() as u32 }));
        }
        let Some(flows) = flows else { return Ok(without_flows(few)) };
        let flows = BTreeMap::from([(count, flows)]);
        let best_of = |nodes: &[NodeIndex]| {
            let free = self.cluster.free(self.calendar, span, nodes, resources.cpu_ppm);
            let cpu = resources.cpu_ppm.max(LITTLE);
            let mut allocator = Allocator::new(self.cluster.index(), &free, &flows, cpu);
            let found = allocator.max_rate(count).cloned();
            let expected = "a number that the pattern has";
            let found = found.ok_or_else(|| Invalid::new("nodes", count, expected))?;
            found.map_err(Unplaced::TooFew)
        };
        let found = best_of(&few);
        let suffices = |placed: &Placed| placed.rate >= resources.bits_per_second;
        if few.len() < enough || found.as_ref().is_ok_and(suffices) {
            return found;
        }
        best_of(&self.open(span, resources).collect::<Vec<_>>())
    }

    /// Why `need` finds no nodes, and what is in the way.
    fn unplaced(&self, need: &Need<'_>, count: u32, span: Span, why: Unplaced) -> Denied {
        match why {
            Unplaced::Invalid(invalid) => invalid.into(),
            Unplaced::TooFew(TooFewNodes { free: has }) => {
                let reason = Reason::TooFewNodes { needs: count, has };
                self.with_short_nodes(reason, &need.resources, span).into()
            }
            Unplaced::Slow(placed) => {
                self.links_busy(need.resources.bits_per_second, &placed, span).into()
            }
        }
    }

    fn links_busy(&self, rate: BitsPerSecond, placed: &Placed, span: Span) -> Refusal {
        let topology = self.cluster.topology();
        let narrow = placed.bottleneck;
        let link = narrow.map(|narrow| topology.direction_name(narrow.direction));
        let lacking = narrow.and_then(|narrow| {
            let all = rate.checked_mul(narrow.flows)?;
            self.lack(Resource::Link(narrow.direction), all.get(), span)
        });
        let reason = Reason::LinksBusy {
            flow_needs_bits_per_second: rate,
            flow_has_bits_per_second: placed.rate,
            link: link.unwrap_or_default(),
        };
        let (lacking, drained) = (lacking.into_iter().collect(), self.drained_count());
        Refusal { lacking, drained, ..reason.into() }
    }

    /// A refusal because too few nodes have `resources`, with what the others lack.
    fn with_short_nodes(&self, reason: Reason, resources: &Resources, span: Span) -> Refusal {
        let asked = self.guarantees(resources);
        let is_usable = |node: &NodeIndex| self.is_usable(*node, &asked, span.from());
        let can_enforce = |node: &NodeIndex| self.can_enforce(*node, &asked, span.from());
        let all = || self.cluster.topology().node_indices();
        let nodes = || all().filter(|node| !self.is_out(*node));
        let lacks_of = |node| {
            let own = of_any_rank(resources, node).into_iter();
            own.filter_map(move |(of, amount)| self.lack(of, amount, span))
        };
        let name = |node: NodeIndex| self.cluster.name(node).clone();
        let unusable = nodes().filter(|node| !can_enforce(node)).map(name);
        let kept = nodes().filter(|node| self.is_kept(*node) && can_enforce(node));
        Refusal {
            lacking: nodes().filter(is_usable).flat_map(lacks_of).take(NAMED_MAX).collect(),
            unusable: unusable.take(NAMED_MAX).collect(),
            drained: self.drained_count(),
            kept: kept.map(name).take(NAMED_MAX).collect(),
            ..reason.into()
        }
    }

    /// What `of` lacks over `span`, if it lacks anything.
    fn lack(&self, of: Resource, amount: u64, span: Span) -> Option<Lacking> {
        let resource = self.cluster.table(of);
        let lack = self.calendar.table(resource)?.lack(span, amount)?;
        Some(self.lacking(&keeptime_calendar::calendar::Lacking { resource, lack }))
    }

    /// Whether a node may be granted, is not drained and is kept for nobody, and its agent can enforce all that is asked, and
    /// counts for what starts then.
    pub fn is_usable(&self, node: NodeIndex, asked: &BTreeSet<Guarantee>, start: WallTime) -> bool {
        self.may_be_usable(node, asked) && self.counts_from(node) <= start
    }

    /// Whether a node may be granted at some time: it is not drained and kept for nobody, and its agent, were it there, can
    /// enforce all that is asked.
    pub fn may_be_usable(&self, node: NodeIndex, asked: &BTreeSet<Guarantee>) -> bool {
        let is_refused = self.agents.refused(node, asked).is_some();
        !self.is_out(node) && !self.is_kept(node) && !is_refused
    }

    /// The first start for which a node counts: any, where its agent is there.
    pub fn counts_from(&self, node: NodeIndex) -> WallTime {
        self.absences.counts_from(self.agents.away_since(node))
    }

    /// Whether it may not be granted a node, since that is none of those that it may have, or drained.
    fn is_out(&self, node: NodeIndex) -> bool {
        self.outside.contains(node) || self.drained.contains(node)
    }

    /// The nodes that it may have at some time: those that are drained, too.
    pub fn may_ever_have(&self) -> impl Iterator<Item = NodeIndex> {
        let all = self.cluster.topology().node_indices();
        all.filter(|node| !self.outside.contains(*node))
    }

    /// How many nodes that it might have had otherwise are drained.
    fn drained_count(&self) -> u32 {
        let drained = self.cluster.topology().node_indices();
        let drained = drained.filter(|node| self.drained.contains(*node));
        drained.filter(|node| !self.outside.contains(*node)).count() as u32
    }

    /// Whether a node is kept for somebody else.
    pub fn is_kept(&self, node: NodeIndex) -> bool {
        self.kept.contains(node)
    }

    fn can_enforce(&self, node: NodeIndex, asked: &BTreeSet<Guarantee>, start: WallTime) -> bool {
        self.counts_from(node) <= start && self.agents.refused(node, asked).is_none()
    }

    /// What nodes have to enforce for `resources`: what [`Cluster::assignments`] makes of them asks for.
    pub fn guarantees(&self, resources: &Resources) -> BTreeSet<Guarantee> {
        let (cpu, has_flows) = (resources.cpu_ppm, resources.pattern.is_some());
        let of_parts = guarantees(cpu, has_flows, disk(resources));
        of_parts.chain(Guarantee::of_mechanism(self.mechanism)).collect()
    }

    /// Whether all of these nodes are usable for what starts then.
    pub fn check_usable(
        &self,
        names: &[Name],
        asked: &BTreeSet<Guarantee>,
        start: WallTime,
    ) -> Result<(), Denied> {
        let (mut away, mut kept, mut drained) = (Vec::new(), Vec::new(), Vec::new());
        let mut refused = BTreeMap::<_, Vec<_>>::new();
        for (name, node) in names.iter().zip(self.cluster.all_of(names)?) {
            if self.counts_from(node) > start {
                away.push(name.clone());
            }
            if self.is_kept(node) {
                kept.push(name.clone());
            }
            if self.drained.contains(node)
                && let Some(why) = self.book.drained().get(name)
            {
                drained.push(DrainedNode::new(name.clone(), why));
            }
            if let Some(guarantee) = self.agents.refused(node, asked) {
                refused.entry(guarantee).or_default().push(name.clone());
            }
        }
        drained.truncate(NAMED_MAX);
        // Whoever is away may come back; what cannot be enforced is told first, and what somebody has to undo next.
        match refused.pop_first() {
            Some((asked, nodes)) => Err(Reason::NotEnforced { asked, nodes }.into()),
            None if !drained.is_empty() => Err(Reason::NodesDrained(drained).into()),
            None if !away.is_empty() => Err(Reason::NodesAway(away).into()),
            None if !kept.is_empty() => Err(Reason::NodesKept(kept).into()),
            None => Ok(()),
        }
    }

    fn planned(
        &self,
        profile: &FittedProfile,
        decision: &Decision,
        span: Span,
    ) -> Result<Grant, Denied> {
        match &decision.verdict {
            Verdict::Planned(plan) => {
                let nodes = match self.stays {
                    [] => self.names(&plan.placement.nodes),
                    stays => stays.to_vec(),
                };
                Ok(Need::of_plan(profile, plan).on(nodes))
            }
            Verdict::Refused(refusal) => {
                let counter_offers = refusal.counter_offers.clone();
                let refused = self.goal_refused(profile, &refusal.reason, span);
                Err(Refusal { counter_offers, ..refused }.into())
            }
        }
    }

    /// The planner knows what is free and not when: of what is busy, that is added.
    fn goal_refused(
        &self,
        profile: &FittedProfile,
        reason: &refusal::Reason,
        span: Span,
    ) -> Refusal {
        let said = Reason::Goal(reason.clone());
        match reason {
            refusal::Reason::NodesBusy(short) => {
                let cpu_ppm = short.cpu_per_node_ppm;
                let resources = Resources { cpu_ppm, ..Need::least_of(profile) };
                self.with_short_nodes(said, &resources, span)
            }
            refusal::Reason::LinkBusy(short) => {
                let (of, needs) = (Resource::Link(short.direction), short.needs_bits_per_second);
                let lacking = self.lack(of, needs.get(), span).into_iter().collect();
                Refusal { lacking, drained: self.drained_count(), ..said.into() }
            }
            _ => said.into(),
        }
    }

    /// What slot tables lack, in the user's words: of as many as people read.
    pub fn all_lacking(&self, lacks: &[keeptime_calendar::calendar::Lacking]) -> Reason {
        Reason::Lacking(lacks.iter().take(NAMED_MAX).map(|lack| self.lacking(lack)).collect())
    }

    /// What a slot table lacks, in the user's words.
    pub fn lacking(&self, lacking: &keeptime_calendar::calendar::Lacking) -> Lacking {
        let amount = lacking.lack.lacking;
        let (resource, lack) = match self.cluster.resource(lacking.resource) {
            Some(resource) => self.cluster.words(resource, amount),
            None => self.share_words(lacking.resource, amount),
        };
        Lacking { resource, lacking: lack, first_unix_nanos: lacking.lack.first }
    }

    /// Of one of the user's own tables. The limit is told too: it is seen nowhere else.
    fn share_words(&self, resource: ResourceId, amount: u64) -> (String, String) {
        let is_cpu = self.user.is_some_and(|[of_cpu, _]| of_cpu == resource);
        let [cpu, sent] = self.shares;
        let (name, limit, words): (_, _, fn(u64) -> String) = match is_cpu {
            true => ("CPU", cpu, cpu_words),
            false => ("bandwidth", sent, |rate| BitsPerSecond::new(rate).to_string()),
        };
        (format!("your share of {name} ({} in all)", words(limit)), words(amount))
    }
}

/// What nodes have to enforce for an extension.
fn guarantees_beside(extension: &Extension) -> BTreeSet<Guarantee> {
    let is_treated = |flow: &ExtensionFlow| flow.class > TrafficClass::BestEffort;
    let disk = [extension.disk_read_bytes_per_second, extension.disk_write_bytes_per_second];
    guarantees(extension.cpu_ppm, extension.flows.iter().any(is_treated), disk).collect()
}

fn guarantees(
    cpu: CpuPpm,
    has_flows: bool,
    disk: [BytesPerSecond; 2],
) -> impl Iterator<Item = Guarantee> {
    let asked = [
        (cpu != CpuPpm::default()).then_some(Guarantee::CpuShare),
        has_flows.then_some(Guarantee::Bandwidth),
        disk.iter().any(|rate| rate.get() > 0).then_some(Guarantee::DiskRate),
    ];
    asked.into_iter().flatten()
}

/// Whether nothing of what is planned or offered is more than one job may have.
fn is_within(limit: Limit, profile: &FittedProfile, verdict: &Verdict) -> bool {
    let cpu = profile.application().cpu();
    let is_had = |nodes: u32, rate: BitsPerSecond| {
        let flows = profile.flows().get(&nodes).map_or(0, RankFlows::count);
        u64::from(nodes) <= limit.nodes(cpu) && (flows == 0 || rate <= limit.rate(flows))
    };
    match verdict {
        Verdict::Planned(plan) => {
            is_had(plan.placement.nodes.len() as u32, plan.bandwidth_bits_per_second)
        }
        Verdict::Refused(refusal) => {
            let mut offers = refusal.counter_offers.iter();
            offers.all(|offer| is_had(offer.nodes, offer.bandwidth_bits_per_second))
        }
    }
}

/// Where nothing flows, all nodes that are open are as good.
fn without_flows(mut nodes: Vec<NodeIndex>) -> Placed {
    nodes.sort_unstable();
    Placed { nodes, rate: BitsPerSecond::new(u64::MAX), bottleneck: None }
}

/// What `resources` take of a node's CPU and disk: what any rank needs at the most, whichever a node is to have.
pub(crate) fn of_any_rank(resources: &Resources, node: NodeIndex) -> [(Resource, u64); 3] {
    cpu_and_disk(resources.cpu_ppm, disk(resources), node)
}

/// So much of a node's CPU, and of what its disk reads and writes.
pub(crate) fn cpu_and_disk(
    cpu: CpuPpm,
    [read, write]: [BytesPerSecond; 2],
    node: NodeIndex,
) -> [(Resource, u64); 3] {
    [
        (Resource::Cpu(node), u64::from(cpu.get())),
        (Resource::DiskRead(node), read.get()),
        (Resource::DiskWrite(node), write.get()),
    ]
}

/// What is read from the disk of each node, and written to it.
pub(crate) fn disk(resources: &Resources) -> [BytesPerSecond; 2] {
    [resources.disk_read_bytes_per_second, resources.disk_write_bytes_per_second]
}

/// CPU of many nodes may be more than one node can have.
fn cpu_words(ppm: u64) -> String {
    u32::try_from(ppm)
        .map_or_else(|_| format!("{} %", ppm / 10_000), |ppm| CpuPpm::new(ppm).to_string())
}

impl<'a> Need<'a> {
    /// What is asked for without a goal.
    pub fn of(resources: Cow<'a, Resources>) -> Self {
        Self { resources, promise: None }
    }

    /// What every plan for an application asks of a node: some CPU, however little.
    pub fn least_of(profile: &FittedProfile) -> Resources {
        let pattern = Some(profile.application().pattern().clone());
        Resources { pattern, cpu_ppm: LITTLE, ..Resources::nothing() }
    }

    /// What a plan needs, on any nodes.
    pub fn of_plan(profile: &FittedProfile, plan: &Plan) -> Self {
        let application = profile.application();
        let count = plan.placement.nodes.len() as u32;
        let resources = Resources {
            nodes: NodeChoice::Any(count),
            cpu_ppm: plan.placement.cpu,
            pattern: Some(application.pattern().clone()),
            bits_per_second: plan.bandwidth_bits_per_second,
            ..Resources::nothing()
        };
        let promise = Promise {
            application: application.name().clone(),
            parameters: plan.parameters.clone(),
            time_nanos: plan.time_nanos,
            quantile: plan.quantile,
            median_nanos: plan.median_nanos,
        };
        Self { resources: Cow::Owned(resources), promise: Some(promise) }
    }

    /// The grant of this on `nodes`.
    pub fn on(&self, nodes: Vec<Name>) -> Grant {
        let resources = &self.resources;
        Grant {
            nodes,
            cpu_ppm: resources.cpu_ppm,
            rank_cpu_ppm: resources.rank_cpu_ppm.clone(),
            later: None,
            cpu_period_nanos: resources.cpu_period_nanos,
            // As the admission says that grants it.
            cpu_mechanism: CpuMechanism::Auto,
            pattern: resources.pattern.clone(),
            bits_per_second: resources.bits_per_second,
            disk_read_bytes_per_second: resources.disk_read_bytes_per_second,
            disk_write_bytes_per_second: resources.disk_write_bytes_per_second,
            promise: self.promise.clone(),
            services: Vec::new(),
            extension: Extension::default(),
        }
    }
}
