//! The loop's body: asks balancers and the record, lets the steering decide, carries out.
//!
//! Balancers are asked one after the other, once in a pass. One that does not answer blocks for some seconds (nginx for ten, when
//! it does not reload), once: then a thread asks it, and nobody else waits ([`keeptime_balancers::asking`]).

use crate::cpu::Counters;
use crate::fronts;
use crate::history::History;
use crate::meter::{Heard, Meter, NodeLoad};
use crate::overview::{LoadView, NodeView, Overview, SiteView};
use crate::record::{NodeStanding, Record, Standing};
use crate::steering::{Hindrances, Steering};
use keeptime_balancers::asking::SLOW;
use keeptime_balancers::balancer::BalancerError;
use keeptime_balancers::front::{Front, Sight};
use keeptime_balancers::traffic::Weight;
use keeptime_balancers::transfer::Transfer;
use keeptime_model::Invalid;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::site::{HostedSite, SiteSpec};
use keeptime_model::units::{Nanos, WallTime};
use keeptime_pools::load::Loads;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Loads are looked at this often: a burst is seen well within a fifth of a second, and each look costs
/// a balancer a few milliseconds.
const LOOK_EVERY: Nanos = Nanos::from_millis(50);
/// While a node drains or a change is recorded, it is asked this often.
const BUSY: Duration = Duration::from_millis(5);
const QUIET: Duration = Duration::from_millis(25);
/// Without sites there is nothing to do but to wait for one.
const IDLE: Duration = Duration::from_millis(250);
/// A pass waits so long for threads that it has begun: balancers that are well answer within it.
const AT_ONCE: Duration = Duration::from_millis(20);
/// A node that drains serves again when some of its balancers could not be told, or asked, for so long: longer than one needs
/// to start again, and not much longer than a site should lack a node that serves nobody. One look takes longer now and then.
const HELD_UP_MOST: Nanos = Nanos::from_secs(5);
/// And at so many looks in a row: one that failed says nothing of how long.
const HELD_UP_LOOKS: u32 = 3;

/// A site that lacks nodes is about to get them, or people are told of it after so long.
const SHORT_FOR: Nanos = Nanos::from_secs(2);

/// Now, by both of a machine's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Never set.
    pub steady: Nanos,
    /// For people.
    pub wall: WallTime,
}

/// The controller of all sites of a cluster.
#[derive(Debug)]
pub struct Controller<R> {
    record: R,
    /// What nodes count of themselves, if somebody knows.
    counters: Option<Box<dyn Counters>>,
    steering: Steering,
    fronts: BTreeMap<Name, (SiteSpec, Front)>,
    /// Why sites have no front.
    misnamed: BTreeMap<Name, Invalid>,
    drains: BTreeMap<Name, Drain>,
    /// Sites that have less than their hard guarantees: what to say of that, and since when.
    short: BTreeMap<Name, (String, Nanos)>,
    meter: Meter,
    looked_at: Option<Nanos>,
    overview: Overview,
    history: History,
}

/// A node that drains.
#[derive(Debug)]
struct Drain {
    /// The site that it is to leave.
    site: Name,
    transfer: Transfer,
    /// Since when no balancer of its site sends it anything new, as far as that was seen: its limit begins with that,
    /// so that one that could not be told ends nothing the moment that it can.
    since: Option<Nanos>,
    /// The first of the last looks, at all of which a balancer of its site failed, and how many those are.
    failing: Option<(Nanos, u32)>,
}

/// What comes of a look at a node that drains.
#[derive(Debug)]
enum Drained {
    /// It works on requests yet, or may.
    NotYet,
    /// It has left.
    HasLeft,
    /// Balancers do not say whether it has, for long; which, and why.
    HeldUp(String),
}

/// Which balancers are told, and asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Those of all sites.
    AllSites,
    /// Those of sites that nodes are to leave.
    SitesThatDrain,
}

impl<R: Record> Controller<R> {
    /// Knows nothing yet.
    pub fn new(record: R) -> Self {
        Self {
            record,
            counters: None,
            steering: Steering::default(),
            fronts: BTreeMap::new(),
            misnamed: BTreeMap::new(),
            drains: BTreeMap::new(),
            short: BTreeMap::new(),
            meter: Meter::default(),
            looked_at: None,
            overview: Overview::default(),
            history: History::default(),
        }
    }

    /// The same, with what nodes count of themselves.
    #[must_use]
    pub fn with_counters(mut self, counters: Option<Box<dyn Counters>>) -> Self {
        self.counters = counters;
        self
    }

    /// Does what is due, and tells how long nothing will be. Blocks for as long as balancers take.
    ///
    /// # Errors
    /// What keeps it from deciding; balancers are told what is recorded all the same.
    pub fn pass(&mut self, now: Now) -> Result<Duration, Invalid> {
        let answers = self.record.answers();
        let is_changed = !answers.is_empty();
        for (node, outcome) in answers {
            self.steering.answered(now.steady, now.wall, &node, outcome);
        }
        // What is not known to be recorded is not followed.
        let Some(standing) = self.record.standing() else { return Ok(QUIET) };
        let followed = self.steering.follow(now.steady, standing);
        self.follow_sites();
        self.forget_drains();
        self.begin_drains();
        let is_due = self.looked_at.is_none_or(|at| now.steady.saturating_sub(at) >= LOOK_EVERY);
        let whose = if is_due || is_changed { Whose::AllSites } else { Whose::SitesThatDrain };
        let sights = self.tell(whose);
        if is_due {
            self.looked_at = Some(now.steady);
            self.decide(now.steady, &sights);
            // What serves on by that is not looked at: nothing of it is ended.
            self.forget_drains();
        }
        self.drain(now, &sights);
        for change in self.steering.take_changes() {
            self.record.ask(&change);
        }
        for moved in self.steering.take_ended() {
            self.overview.remember(moved);
        }
        followed.map(|()| match (self.fronts.is_empty(), self.steering.is_busy()) {
            (_, true) => BUSY,
            (false, false) => QUIET,
            (true, false) => IDLE,
        })
    }

    /// What people are told.
    pub fn overview(&self) -> &Overview {
        &self.overview
    }

    /// Has a front for each site that is recorded, as it is described there. One of which that cannot be made, since
    /// nodes have no addresses any more, is no reason to leave others' balancers alone.
    fn follow_sites(&mut self) {
        let Standing { sites, nodes } = self.steering.standing();
        let is_as_before = |site: &SiteSpec, before: &SiteSpec| {
            site.name == before.name
                && site.balancers == before.balancers
                && site.port == before.port
        };
        self.fronts.retain(|_, (before, front)| {
            // What a thread tells would come between what another front tells.
            front.is_away() || sites.iter().any(|site| is_as_before(&site.spec, before))
        });
        self.misnamed.clear();
        for HostedSite { spec, .. } in sites {
            let has_same = |(other, _): &(SiteSpec, Front)| {
                spec.balancers.iter().any(|place| other.balancers.contains(place))
            };
            if self.fronts.contains_key(&spec.name) {
                continue;
            }
            // That of a site that is gone.
            if self.fronts.values().any(has_same) {
                let before =
                    "a backend that has been told to forget the site that it was of before";
                let waits = Invalid::new("balancers", "one that does not answer", before);
                self.misnamed.insert(spec.name.clone(), waits);
                continue;
            }
            let nodes = nodes.iter().map(|node| (&node.name, node.address));
            match fronts::front(spec, nodes) {
                Ok(front) => drop(self.fronts.insert(spec.name.clone(), (spec.clone(), front))),
                Err(invalid) => drop(self.misnamed.insert(spec.name.clone(), invalid)),
            }
        }
    }

    /// Tells balancers what is recorded, and which nodes are to leave, and hears what they do: each is asked once, and told of
    /// all nodes together, since every change may be a reload.
    fn tell(&mut self, whose: Whose) -> BTreeMap<Name, Vec<Sight>> {
        let (mut asked, mut is_late, mut begun) = (Vec::new(), false, false);
        for (name, (_, front)) in &mut self.fronts {
            let mut drains = self.drains.values().filter(|drain| drain.site == *name).peekable();
            match whose {
                Whose::AllSites => {
                    for (node, traffic) in self.steering.traffic(name) {
                        front.want(&node, traffic);
                    }
                }
                Whose::SitesThatDrain if drains.peek().is_none() => continue,
                Whose::SitesThatDrain => {}
            }
            drains.for_each(|drain| drain.transfer.want(front));
            let began = Instant::now();
            begun |= front.ask(is_late);
            is_late |= began.elapsed() > SLOW;
            asked.push((name, front));
        }
        let until = Instant::now() + if begun { AT_ONCE } else { Duration::ZERO };
        asked.into_iter().map(|(name, front)| (name.clone(), front.sights(until))).collect()
    }

    fn decide(&mut self, now: Nanos, sights: &BTreeMap<Name, Vec<Sight>>) {
        // Without sites nobody needs to know.
        let asked = self.counters.as_mut().filter(|_| !self.fronts.is_empty());
        let counters = asked.and_then(|counters| counters.latest());
        let heard = Heard { sights, counters: counters.as_ref() };
        let sites = self.steering.sites().to_vec();
        let nodes = &self.steering.standing().nodes;
        let (loads, known) = self.meter.loads(now, heard, &sites, nodes);
        self.overview.nodes = nodes.iter().zip(&known).map(node_view).collect();
        self.follow_shortages(now);
        self.overview.sites = self.views(now, sights, &sites, &loads);
        self.history.note(now, &mut self.overview.sites);
        self.steering.decide(now, &loads, &hindrances(sights, &self.misnamed));
    }

    /// Notes which sites have less than their hard guarantees.
    fn follow_shortages(&mut self, now: Nanos) {
        let standing = self.steering.standing();
        let short = standing.sites.iter().filter_map(|site| {
            let name = &site.spec.name;
            let since = self.short.get(name).map_or(now, |(_, since)| *since);
            Some((name.clone(), (shortage(standing, site)?, since)))
        });
        self.short = short.collect();
    }

    /// Nodes that are not to drain any more are not looked after: what is decided after this begins anew.
    fn forget_drains(&mut self) {
        let draining = self.steering.draining();
        self.drains.retain(|node, drain| draining.get(node) == Some(&drain.site));
    }

    /// Every node that is to drain begins to, unless what is drained now would be drained anew.
    fn begin_drains(&mut self) {
        if self.steering.is_waiting() {
            return;
        }
        for (node, site) in self.steering.draining() {
            // Where no balancer can be asked, nobody knows what is in flight.
            if !self.misnamed.contains_key(&site) {
                let drain = || Drain::new(&node, &site);
                self.drains.entry(node.clone()).or_insert_with(drain);
            }
        }
    }

    /// Goes on with every node that drains, by what its balancers were seen to do.
    fn drain(&mut self, now: Now, sights: &BTreeMap<Name, Vec<Sight>>) {
        if self.steering.is_waiting() {
            return;
        }
        let mut looks = Vec::new();
        for (node, drain) in &mut self.drains {
            if self.misnamed.contains_key(&drain.site) {
                continue;
            }
            let most = drain_most(self.steering.standing(), &drain.site);
            let drained = match (self.fronts.get_mut(&drain.site), sights.get(&drain.site)) {
                (Some((_, front)), Some(sights)) => drain.look(now.steady, most, front, sights),
                // Nobody was asked.
                (Some(_), None) => Drained::NotYet,
                // Of a site without a front nobody sends the node anything.
                (None, _) => Drained::HasLeft,
            };
            looks.push((node.clone(), drained));
        }
        for (node, drained) in looks {
            self.go_on(now, &node, drained);
        }
    }

    fn go_on(&mut self, now: Now, node: &Name, drained: Drained) {
        match drained {
            Drained::NotYet => {}
            Drained::HasLeft => {
                // It may come back and be taken away again before the next look: then it drains anew.
                let drain = self.drains.remove(node);
                let unfinished = drain.and_then(|drain| drain.transfer.unfinished().cloned());
                self.steering.drained(node, unfinished);
            }
            Drained::HeldUp(why) => {
                if self.steering.held_up(now.steady, now.wall, node, why)
                    && let Some(drain) = self.drains.remove(node)
                    && let Some((_, front)) = self.fronts.get_mut(&drain.site)
                {
                    drain.transfer.undo(front);
                }
            }
        }
    }

    fn views(
        &self,
        now: Nanos,
        sights: &BTreeMap<Name, Vec<Sight>>,
        sites: &[Name],
        loads: &Loads,
    ) -> Vec<SiteView> {
        let standing = self.steering.standing();
        let seconds = loads.interval.as_secs_f64();
        let view = |site: &HostedSite| {
            let name = &site.spec.name;
            let of_it = standing.nodes.iter().filter(|node| node.serves(name));
            let at = sites.iter().position(|other| other == name);
            let load = at.and_then(|at| loads.sites[at]).filter(|_| seconds > 0.0);
            let sights = sights.get(name).into_iter().flatten();
            let problems = sights.flat_map(problems);
            let misnamed = self.misnamed.get(name).map(|invalid| invalid.to_string());
            let refusal = self.steering.refusal().map(|why| format!("no node moves: {why}"));
            let kept = kept(&self.steering.kept_out_of_service(now, &site.spec));
            let shortage =
                self.short.get(name).filter(|(_, since)| now.saturating_sub(*since) >= SHORT_FOR);
            let shortage = shortage.map(|(told, _)| told.clone());
            SiteView {
                spec: site.spec.clone(),
                is_leaving: site.is_leaving,
                nodes: of_it.map(|node| node.name.clone()).collect(),
                load: load.map(|load| LoadView {
                    arrivals_per_second: load.arrived as f64 / seconds,
                    queued: load.queued,
                    in_flight: load.in_flight,
                }),
                past: Vec::new(),
                problems: problems
                    .chain(misnamed)
                    .chain(refusal)
                    .chain(shortage)
                    .chain(kept)
                    .collect(),
            }
        };
        standing.sites.iter().map(view).collect()
    }
}

impl Drain {
    fn new(node: &Name, site: &Name) -> Self {
        let transfer = Transfer::new(node.clone(), Weight::FULL);
        Self { site: site.clone(), transfer, since: None, failing: None }
    }

    /// Goes on with it by what the balancers of its site were seen to do, and hurries when it has lasted for `most`, if there
    /// is such a limit.
    fn look(
        &mut self,
        now: Nanos,
        most: Option<Nanos>,
        front: &mut Front,
        sights: &[Sight],
    ) -> Drained {
        // Where one has not answered yet, nothing is known that was not before: it has neither failed nor not.
        if sights.iter().any(Sight::is_silent) {
            return Drained::NotYet;
        }
        let passed = self.since.map(|since| now.saturating_sub(since));
        if most.is_some_and(|most| passed.is_some_and(|passed| passed >= most)) {
            self.transfer.hurry();
        }
        let progress = self.transfer.look(front, sights);
        if self.transfer.is_told() {
            self.since = self.since.or(Some(now));
        }
        let failures: Vec<_> = sights.iter().filter_map(Sight::failure).collect();
        let (first, looks) = self.failing.unwrap_or((now, 0));
        self.failing = (!failures.is_empty()).then_some((first, looks.saturating_add(1)));
        let is_held_up = self.failing.is_some_and(|(first, looks)| {
            looks >= HELD_UP_LOOKS && now.saturating_sub(first) >= HELD_UP_MOST
        });
        match progress {
            None => Drained::HasLeft,
            Some(_) if is_held_up => {
                Drained::HeldUp(format!("its drain was held up: {}", failures.join("; ")))
            }
            Some(_) => Drained::NotYet,
        }
    }
}

/// How long a node that leaves `site` is waited for, as it is described now.
fn drain_most(standing: &Standing, site: &Name) -> Option<Nanos> {
    let mut sites = standing.sites.iter();
    sites.find(|hosted| hosted.spec.name == *site)?.spec.drain_most_nanos
}

/// What balancers keep from being decided.
fn hindrances(
    sights: &BTreeMap<Name, Vec<Sight>>,
    misnamed: &BTreeMap<Name, Invalid>,
) -> Hindrances {
    // Of those that are named wrongly nobody knows what their balancers do.
    let failing = misnamed.keys().cloned().collect();
    let mut hindrances = Hindrances { failing, ..Hindrances::default() };
    for (site, sights) in sights {
        if sights.iter().any(|sight| sight.failure().is_some()) {
            hindrances.failing.insert(site.clone());
        }
        let lacking: BTreeSet<_> =
            sights.iter().flat_map(|sight| &sight.lacking).cloned().collect();
        if !lacking.is_empty() {
            hindrances.lacking.insert(site.clone(), lacking);
        }
        if sights.iter().any(|sight| sight.observed.is_err()) {
            hindrances.unheard.insert(site.clone());
        }
        let observed = sights.iter().flat_map(|sight| &sight.observed);
        let down: BTreeSet<_> = observed.flat_map(|observed| &observed.down).cloned().collect();
        if !down.is_empty() {
            hindrances.down.insert(site.clone(), down);
        }
    }
    hindrances
}

/// What is wrong with a balancer, if something is: why it fails, which nodes it lacks, and which do not answer it.
fn problems(sight: &Sight) -> impl Iterator<Item = String> {
    // Who was asked a moment ago is about to answer.
    let is_open =
        |error: &&BalancerError| matches!(error, BalancerError::Silent { seconds: 0, .. });
    let failure = sight.observed.as_ref().err().filter(|error| !is_open(error));
    let failure = failure.map(|error| chain(error));
    let names: Vec<_> = sight.lacking.iter().map(Name::as_str).collect();
    let (balancer, lacking) = (&sight.balancer, names.join(", "));
    let lacks = || format!("{balancer} has no server for {lacking}: the site does not get them");
    let down = sight.observed.iter().flat_map(|observed| &observed.down);
    let down: Vec<_> = down.map(Name::as_str).collect();
    let is_down = || format!("{balancer} finds that {} does not answer", down.join(", "));
    let told = [(!names.is_empty()).then(lacks), (!down.is_empty()).then(is_down)];
    failure.into_iter().chain(told.into_iter().flatten())
}

/// That nodes serve on although they are out of service.
fn kept(nodes: &[Name]) -> Option<String> {
    let names: Vec<_> = nodes.iter().map(Name::as_str).collect();
    let told = || {
        let names = names.join(", ");
        format!("out of service, and needed for its hard guarantee: {names}")
    };
    (!names.is_empty()).then(told)
}

/// That a site has less than its hard guarantee, and how all other nodes are.
fn shortage(standing: &Standing, hosted: &HostedSite) -> Option<String> {
    let HostedSite { spec, is_leaving } = hosted;
    let has = standing.nodes.iter().filter(|node| node.serves(&spec.name)).count();
    let hard = spec.guarantee.hard as usize;
    if *is_leaving || has >= hard {
        return None;
    }
    let mut others_by = BTreeMap::<String, usize>::new();
    for node in standing.nodes.iter().filter(|node| !node.serves(&spec.name)) {
        let how = match &node.site {
            _ if node.is_out_of_service => "out of service".into(),
            _ if !node.is_connected => "away".into(),
            _ if !node.fits(spec) => "with too little CPU free".into(),
            Some(other) => format!("of {other}"),
            None => "free".into(),
        };
        *others_by.entry(how).or_default() += 1;
    }
    let others: Vec<_> = others_by.iter().map(|(how, count)| format!("{count} {how}")).collect();
    let others = if others.is_empty() { "none".into() } else { others.join(", ") };
    Some(format!("has {has} of the {hard} nodes that it is to have for certain; others: {others}"))
}

fn node_view((node, known): (&NodeStanding, &NodeLoad)) -> NodeView {
    let (load_ppm, known_from) = known.taken().unzip();
    NodeView {
        name: node.name.clone(),
        site: node.site.clone(),
        load_ppm,
        known_from,
        runnable: known.runnable(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_balancers::traffic::Observed;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// Of a balancer that works on something which nobody counts, or cannot do what it is told.
    fn sight(fails: bool, lacking: &[&str]) -> Sight {
        let balancer = "haproxy".to_string();
        let (server, there) = ("n2".into(), "n1".into());
        let unknown = BalancerError::UnknownServer { balancer: balancer.clone(), server, there };
        let observed = Observed { lingering: 1, ..Observed::default() };
        let observed = if fails { Err(unknown) } else { Ok(observed) };
        let lacking = lacking.iter().copied().map(name).collect();
        Sight { balancer, told: vec![], lacking, observed, at: Instant::now() }
    }

    // Goal: a site gets no node that one of its balancers lacks, whatever else is wrong with that one, and people are told of
    // both. Method: one that fails at every look, since it lacks a node that is to serve, too.
    #[test]
    fn what_a_balancer_lacks_counts_when_it_fails_as_well() {
        let sights = [("blog", sight(false, &[])), ("shop", sight(true, &["n2", "n5"]))];
        let sights = sights.map(|(site, sight)| (name(site), vec![sight])).into();
        let hindrances = hindrances(&sights, &BTreeMap::new());
        assert_eq!(hindrances.failing, BTreeSet::from([name("shop")]));
        let lacking = BTreeSet::from(["n2", "n5"].map(name));
        assert_eq!(hindrances.lacking, BTreeMap::from([(name("shop"), lacking)]));
        let told: Vec<_> = problems(&sights[&name("shop")][0]).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].starts_with("haproxy has no server for n2, n5"), "{told:?}");
        let mut quiet = sight(false, &[]);
        assert_eq!(problems(&quiet).count(), 0);
        quiet.observed.as_mut().unwrap().down.insert(name("n4"));
        let told: Vec<_> = problems(&quiet).collect();
        assert_eq!(told, ["haproxy finds that n4 does not answer"]);
    }

    /// Of a balancer that a thread asks.
    fn silent(seconds: u64) -> Sight {
        let observed = Err(BalancerError::Silent { balancer: "haproxy".into(), seconds });
        Sight { observed, ..sight(false, &[]) }
    }

    // Goal: a balancer that has not answered gives no node, and people are told of one that takes long.
    #[test]
    fn who_has_not_answered_gives_no_node_and_is_told_of_after_a_second() {
        for (seconds, told) in [(0, 0), (1, 1)] {
            assert_eq!(problems(&silent(seconds)).count(), told);
            let sights = BTreeMap::from([(name("blog"), vec![silent(seconds)])]);
            let hindrances = hindrances(&sights, &BTreeMap::new());
            assert_eq!(hindrances.failing, BTreeSet::from([name("blog")]));
        }
    }

    // Goal: an nginx that takes long to reload does not have a drain given up that it may end, and one that is slow at every look
    // drains all the same. Method: looks at these seconds.
    #[test]
    fn who_has_not_answered_has_neither_failed_nor_not() {
        let new = || Drain::new(&name("n1"), &name("blog"));
        let (mut drain, mut front) = (new(), Front::new(vec![]));
        let mut look = |drain: &mut Drain, seconds, sight| {
            drain.look(Nanos::from_secs(seconds), None, &mut front, &[sight])
        };
        assert!((0..9).all(|at| matches!(look(&mut drain, at, silent(at)), Drained::NotYet)));
        for (at, fails) in [(10, true), (12, true), (15, true)] {
            let is_held_up = matches!(look(&mut drain, at, sight(fails, &[])), Drained::HeldUp(_));
            assert_eq!(is_held_up, at == 15);
            assert!(matches!(look(&mut drain, at + 1, silent(0)), Drained::NotYet));
        }
        let quiet = || Sight { observed: Ok(Observed::default()), ..sight(false, &[]) };
        let mut drain = new();
        for at in [0, 2] {
            assert!(matches!(look(&mut drain, at, quiet()), Drained::NotYet));
            assert!(matches!(look(&mut drain, at + 1, silent(0)), Drained::NotYet));
        }
        assert!(matches!(look(&mut drain, 4, quiet()), Drained::HasLeft));
    }

    // Goal: a drain is given up when balancers have failed for a while, and not since one look did. Method: looks at these
    // seconds, some of which come late, since the pass before had to wait for another site's balancer.
    #[test]
    fn a_drain_is_held_up_by_several_looks_that_fail_over_a_while() {
        let mut drain = Drain::new(&name("n1"), &name("blog"));
        let mut front = Front::new(vec![]);
        let mut is_held_up = |seconds, fails| {
            let (now, sights) = (Nanos::from_secs(seconds), [sight(fails, &[])]);
            matches!(drain.look(now, None, &mut front, &sights), Drained::HeldUp(_))
        };
        assert!(!is_held_up(0, false));
        assert!(!is_held_up(60, true), "nobody asked for a minute");
        assert!(!is_held_up(70, true), "it was asked twice");
        assert!(!is_held_up(70, false));
        for (seconds, expected) in [(71, false), (72, false), (75, false), (76, true)] {
            assert_eq!(is_held_up(seconds, true), expected, "after {seconds} s");
        }
    }
}
