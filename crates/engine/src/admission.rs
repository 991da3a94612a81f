//! Whether a request fits at a time, and where; otherwise why not. Nothing is taken.

use crate::agents::Agents;
use crate::book::Book;
use crate::call::{Lacking, Reason, Refusal};
use crate::cluster::{Cluster, Resource};
use crate::loads::Loads;
use keeptime_calendar::{Calendar, Demand, ResourceId, Span};
use keeptime_model::Invalid;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::capability::Guarantee;
use keeptime_model::extension::{Extension, ExtensionFlow};
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Grant, NodeChoice, Promise, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use keeptime_planner::availability::Availability;
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::placement::{Allocator, Placed, RankFlows, TooFewNodes};
use keeptime_planner::translate::{Decision, Options, Plan, Verdict, schedule};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// So many times as many nodes as are needed are looked at first.
const LIGHT_NODES_FOR_EACH: usize = 4;

/// All that an admission depends on.
pub(crate) struct Admission<'a> {
    pub cluster: &'a Cluster,
    pub calendar: &'a Calendar,
    pub book: &'a Book,
    /// Where to look first.
    pub loads: &'a Loads,
    pub agents: &'a Agents,
    /// Whether it starts so soon that agents have to be there.
    pub soon: bool,
    /// The user's own tables: CPU and sent rate.
    pub user: [ResourceId; 2],
}

/// Resources that a goal comes to, or that were asked for.
#[derive(Debug, Clone)]
pub(crate) struct Need {
    pub resources: Resources,
    pub promise: Option<Promise>,
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

impl From<Invalid> for Denied {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Reason> for Denied {
    fn from(reason: Reason) -> Self {
        Self::Refused(Box::new(reason.into()))
    }
}

impl Admission<'_> {
    /// What would be granted over `span`. For a goal, what the planner finds on what is free during
    /// all of it.
    pub fn grant(&self, ask: &Ask, span: Span) -> Outcome {
        let (found, decision) = match ask {
            Ask::Goal { application, goal } => match self.decide(application, goal, span) {
                Ok((profile, decision)) => {
                    (self.planned(profile, &decision), Some(Arc::new(decision)))
                }
                Err(invalid) => (Err(invalid.into()), None),
            },
            Ask::Resources(resources) => {
                let need = Need { resources: resources.clone(), promise: None };
                (self.place(&need, span), None)
            }
        };
        let granted = found.and_then(|grant| self.fits(&grant, span).map(|()| grant));
        Outcome { granted, decision }
    }

    /// What the planner finds for a goal on what is free during all of `span`.
    fn decide(
        &self,
        application: &Name,
        goal: &Goal,
        span: Span,
    ) -> Result<(&FittedProfile, Decision), Invalid> {
        let profile = self.profile(application)?;
        goal.check(profile.application())?;
        let free = self.free(span, &Need::least_of(profile));
        let decision = schedule(goal, profile, self.cluster.index(), &free, &Options::default());
        Ok((profile, decision))
    }

    /// `grant` with `extension` beside, over `span`. Its nodes stay.
    pub fn extend(&self, grant: Grant, extension: Extension, span: Span) -> Result<Grant, Denied> {
        extension.check(grant.nodes.len())?;
        self.check_usable(&grant.nodes, &guarantees_beside(&extension))?;
        let grant = Grant { extension, ..grant };
        self.fits(&grant, span)?;
        Ok(grant)
    }

    /// Nodes for `need` during `span`.
    pub fn place(&self, need: &Need, span: Span) -> Result<Grant, Denied> {
        let nodes = match &need.resources.nodes {
            NodeChoice::Named(names) => {
                self.check_usable(names, &guarantees(&need.resources))?;
                names.clone()
            }
            NodeChoice::Any(count) => {
                let placed = match self.place_lightly(need, *count, span) {
                    Some(placed) => placed,
                    None => self.choose(need, *count, &self.free(span, &need.resources))?,
                };
                placed.nodes.iter().map(|node| self.cluster.name(*node).clone()).collect()
            }
        };
        Ok(need.on(nodes))
    }

    /// Nodes among those with the fewest reservations: found without a look at all the others,
    /// which is what takes the time in a large cluster.
    fn place_lightly(&self, need: &Need, count: u32, span: Span) -> Option<Placed> {
        let enough = (count as usize).saturating_mul(LIGHT_NODES_FOR_EACH);
        let asked = guarantees(&need.resources);
        let light = self.loads.lightest().filter(|node| self.is_usable(*node, &asked));
        let light: BTreeSet<_> = light.take(enough).collect();
        let free = self.free_on(span, &need.resources, |node| light.contains(&node));
        self.choose(need, count, &free).ok()
    }

    /// The profile of an application.
    pub fn profile(&self, application: &Name) -> Result<&FittedProfile, Invalid> {
        let known = self.book.applications();
        let found = known.get(application).map(|known| known.fitted.as_ref());
        found.ok_or_else(|| {
            let names: Vec<_> = known.keys().map(Name::as_str).collect();
            let expected = match names.as_slice() {
                [] => "an application that was registered; none is".into(),
                names => format!("one of {}", names.join(", ")),
            };
            Invalid::new("application", application, expected)
        })
    }

    /// What `grant` takes, of the user's own tables too.
    pub fn demands(&self, grant: &Grant) -> Result<Vec<Demand>, Invalid> {
        let (mut demands, sent) = self.cluster.demands(grant)?;
        let cpu = u64::from(grant.cpu().get()) * grant.nodes.len() as u64;
        demands.extend([Demand::new(self.user[0], cpu), Demand::new(self.user[1], sent.get())]);
        Ok(demands)
    }

    /// Whether every slot table has room for `grant`.
    pub fn fits(&self, grant: &Grant, span: Span) -> Result<(), Denied> {
        match self.calendar.fits(span, &self.demands(grant)?) {
            Ok(()) => Ok(()),
            Err(keeptime_calendar::Refusal::Lacks(lacks)) => {
                let lacks = lacks.iter().map(|lack| self.lacking(lack)).collect();
                Err(Reason::Lacking(lacks).into())
            }
            Err(other) => Err(Invalid::new("resources", other, "less than that").into()),
        }
    }

    /// What is free during all of `span` on the nodes that are usable and whose disks can give what
    /// `resources` says.
    pub fn free(&self, span: Span, resources: &Resources) -> Availability {
        let asked = guarantees(resources);
        self.free_on(span, resources, |node| self.is_usable(node, &asked))
    }

    fn free_on(
        &self,
        span: Span,
        resources: &Resources,
        usable: impl Fn(NodeIndex) -> bool,
    ) -> Availability {
        let read = resources.disk_read_bytes_per_second.get();
        let write = resources.disk_write_bytes_per_second.get();
        let least = |resource| self.cluster.least_free(self.calendar, span, resource);
        self.cluster.free(self.calendar, span, |node| {
            usable(node)
                && (read == 0 || least(Resource::DiskRead(node)) >= read)
                && (write == 0 || least(Resource::DiskWrite(node)) >= write)
        })
    }

    /// The nodes that can hold the greatest rate, if that is enough.
    fn choose(&self, need: &Need, count: u32, free: &Availability) -> Result<Placed, Denied> {
        let rate = need.resources.bits_per_second;
        match self.best(need, count, free)? {
            Ok(placed) if placed.rate >= rate => Ok(placed),
            Ok(placed) => Err(self.links_busy(rate, &placed).into()),
            Err(few) => Err(Reason::TooFewNodes { needs: count, has: few.free }.into()),
        }
    }

    /// The nodes that can hold the greatest rate.
    pub fn best(
        &self,
        need: &Need,
        count: u32,
        free: &Availability,
    ) -> Result<Result<Placed, TooFewNodes>, Invalid> {
        let none = Pattern::Matrix(BTreeSet::new());
        let pattern = need.resources.pattern.as_ref().unwrap_or(&none);
        let flows = BTreeMap::from([(count, RankFlows::new(pattern, count)?)]);
        // Nodes that are not usable have no CPU free, so that at least a little must be needed.
        let cpu = need.resources.cpu_ppm.max(CpuPpm::new(1));
        let mut allocator = Allocator::new(self.cluster.index(), free, &flows, cpu);
        let found = allocator.max_rate(count).cloned();
        found.ok_or_else(|| Invalid::new("nodes", count, "a number that the pattern has"))
    }

    fn links_busy(&self, rate: BitsPerSecond, placed: &Placed) -> Reason {
        let topology = self.cluster.topology();
        let link =
            placed.bottleneck.map(|bottleneck| topology.direction_name(bottleneck.direction));
        Reason::LinksBusy {
            flow_needs_bits_per_second: rate,
            flow_has_bits_per_second: placed.rate,
            link: link.unwrap_or_default(),
        }
    }

    /// Whether a node's agent is there, where it has to be, and can enforce all that is asked.
    pub fn is_usable(&self, node: NodeIndex, asked: &BTreeSet<Guarantee>) -> bool {
        self.is_there(node) && self.agents.refused(node, asked).is_none()
    }

    fn is_there(&self, node: NodeIndex) -> bool {
        !self.soon || self.agents.is_connected(node)
    }

    fn check_usable(&self, names: &[Name], asked: &BTreeSet<Guarantee>) -> Result<(), Denied> {
        let (mut away, mut refused) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for name in names {
            let node = self.cluster.node(name)?;
            if !self.is_there(node) {
                away.push(name.clone());
            }
            if let Some(guarantee) = self.agents.refused(node, asked) {
                refused.entry(guarantee).or_default().push(name.clone());
            }
        }
        // Whoever is away may come back; what cannot be enforced is told first.
        match refused.pop_first() {
            Some((asked, nodes)) => Err(Reason::NotEnforced { asked, nodes }.into()),
            None if away.is_empty() => Ok(()),
            None => Err(Reason::NodesAway(away).into()),
        }
    }

    fn planned(&self, profile: &FittedProfile, decision: &Decision) -> Result<Grant, Denied> {
        match &decision.verdict {
            Verdict::Planned(plan) => {
                let nodes = plan.placement.nodes.iter();
                let names = nodes.map(|node| self.cluster.name(*node).clone());
                Ok(Need::of_plan(profile, plan).on(names.collect()))
            }
            Verdict::Refused(refusal) => {
                let counter_offers = refusal.counter_offers.clone();
                let reason = Reason::Goal(refusal.reason.clone());
                Err(Denied::Refused(Box::new(Refusal { counter_offers, ..reason.into() })))
            }
        }
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
        let limit = self.calendar.table(resource).map_or(0, |table| table.capacity());
        let (name, words): (_, fn(u64) -> String) = match resource == self.user[0] {
            true => ("CPU", cpu_words),
            false => ("bandwidth", |rate| BitsPerSecond::new(rate).to_string()),
        };
        (format!("your share of {name} ({} in all)", words(limit)), words(amount))
    }
}

/// What nodes have to enforce for an extension.
fn guarantees_beside(extension: &Extension) -> BTreeSet<Guarantee> {
    let is_treated = |flow: &ExtensionFlow| flow.class > TrafficClass::BestEffort;
    let disk = [extension.disk_read_bytes_per_second, extension.disk_write_bytes_per_second];
    let asked = [
        Some(Guarantee::CpuShare),
        extension.flows.iter().any(is_treated).then_some(Guarantee::Bandwidth),
        disk.iter().any(|rate| rate.get() > 0).then_some(Guarantee::DiskRate),
    ];
    asked.into_iter().flatten().collect()
}

/// What nodes have to enforce for `resources`: what [`Cluster::assignments`] makes of them asks for.
pub(crate) fn guarantees(resources: &Resources) -> BTreeSet<Guarantee> {
    let disk = [resources.disk_read_bytes_per_second, resources.disk_write_bytes_per_second];
    let asked = [
        Some(Guarantee::CpuShare),
        resources.pattern.as_ref().map(|_| Guarantee::Bandwidth),
        disk.iter().any(|rate| rate.get() > 0).then_some(Guarantee::DiskRate),
    ];
    asked.into_iter().flatten().collect()
}

/// CPU of many nodes may be more than one node can have.
fn cpu_words(ppm: u64) -> String {
    u32::try_from(ppm)
        .map_or_else(|_| format!("{} %", ppm / 10_000), |ppm| CpuPpm::new(ppm).to_string())
}

impl Need {
    /// What every plan for an application asks of a node.
    pub fn least_of(profile: &FittedProfile) -> Resources {
        let pattern = Some(profile.application().pattern().clone());
        Resources { pattern, ..Resources::nothing() }
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
        Self { resources, promise: Some(promise) }
    }

    /// The grant of this on `nodes`.
    pub fn on(&self, nodes: Vec<Name>) -> Grant {
        let resources = &self.resources;
        Grant {
            nodes,
            cpu_ppm: resources.cpu_ppm,
            cpu_period_nanos: resources.cpu_period_nanos,
            pattern: resources.pattern.clone(),
            bits_per_second: resources.bits_per_second,
            disk_read_bytes_per_second: resources.disk_read_bytes_per_second,
            disk_write_bytes_per_second: resources.disk_write_bytes_per_second,
            promise: self.promise.clone(),
            extension: Extension::default(),
        }
    }
}
