//! Steering by chance, without balancers: loads, answers, lost nodes, sites that come and go, and
//! controllers that are killed, all at random; the record is the only thing that lasts.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_balancers::traffic::{Traffic, Weight};
use keeptime_model::name::Name;
use keeptime_model::site::{Guarantee, HostedSite, SiteSpec};
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use keeptime_pools::load::{Loads, SiteLoad};
use keeptime_sites::record::{Change, NodeStanding, Standing};
use keeptime_sites::steering::{Hindrances, Steering};
use std::collections::{BTreeMap, BTreeSet};

const NODES: usize = 6;
const LOOK: Nanos = Nanos::from_millis(50);
const STEPS: usize = 3_000;

/// Numbers that follow from the first (Knuth's multiplier).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct World {
    random: Random,
    record: Standing,
    steering: Steering,
    asked: Vec<Change>,
    /// Sites that could not have a node, or not use it, when something was last decided that it might be needed for.
    unfit: BTreeMap<Name, BTreeSet<Name>>,
    now: Nanos,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn site(text: &str, priority: u32) -> HostedSite {
    let spec = SiteSpec {
        name: name(text),
        guarantee: Guarantee { hard: 1, soft: 3, max: 5 },
        priority,
        cpu_ppm: Some(CpuPpm::from_percent(10)),
        services: vec![],
        port: 80,
        drain_most_nanos: None,
        balancers: vec![],
    };
    HostedSite { spec, is_leaving: false }
}

/// Whether a balancer of `site` lacks `node`.
fn lacks(hindrances: &Hindrances, site: &Name, node: &Name) -> bool {
    hindrances.lacking.get(site).is_some_and(|nodes| nodes.contains(node))
}

impl World {
    fn new(seed: u64) -> Self {
        let name_of = |n| name(&format!("n{n}"));
        let cpu = CpuPpm::from_percent(100);
        let node = |n| NodeStanding {
            name: name_of(n),
            address: None,
            site: None,
            is_connected: true,
            is_out_of_service: false,
            cpu,
            cpu_free: cpu,
        };
        let mut sites = vec![site("blog", 1), site("shop", 10), site("wiki", 1)];
        for (site, percent) in sites.iter_mut().zip([10, 40, 70]) {
            site.spec.cpu_ppm = Some(CpuPpm::from_percent(percent));
        }
        Self {
            random: Random(seed),
            record: Standing { sites, nodes: (0..NODES).map(node).collect() },
            steering: Steering::default(),
            asked: vec![],
            unfit: BTreeMap::new(),
            now: Nanos::new(0),
        }
    }

    fn count(&self, site: &Name) -> u32 {
        self.record.nodes.iter().filter(|node| node.serves(site)).count() as u32
    }

    /// A change is recorded, or refused.
    fn answer(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        let at = self.random.below(self.asked.len() as u64) as usize;
        let change = self.asked.swap_remove(at);
        let is_spared = self.is_spared(&change);
        let node = self.record.nodes.iter_mut().find(|node| node.name == change.node).unwrap();
        let is_there = node.site == change.from && (change.from.is_some() || node.is_there());
        let outcome = if is_there && is_spared && !self.random.is_one_in(5) {
            node.site.clone_from(&change.to);
            Ok(())
        } else {
            Err("it is gone, busy, or needed where it is".into())
        };
        let before = self.steering.draining();
        self.steering.answered(self.now, WallTime::default(), &change.node, outcome);
        // What follows from it was decided at some time before.
        for node in self.steering.draining().keys().filter(|node| !before.contains_key(*node)) {
            self.unfit.remove(node);
        }
    }

    /// As the broker has it: what a site that stays has by its hard guarantee goes to no other, though that was asked when it
    /// had more.
    fn is_spared(&self, change: &Change) -> bool {
        let stays = |hosted: &&HostedSite| {
            !hosted.is_leaving && change.from.as_ref() == Some(&hosted.spec.name)
        };
        let giver = self.record.sites.iter().find(stays);
        giver.is_none_or(|giver| self.count(&giver.spec.name) > giver.spec.guarantee.hard)
    }

    fn something_happens(&mut self) {
        let node = self.random.below(NODES as u64) as usize;
        match self.random.below(200) {
            // A node dies with what it serves, or comes back.
            0..=2 => {
                self.record.nodes[node].site = None;
                self.record.nodes[node].is_connected = false;
            }
            3..=9 => self.record.nodes[node].is_connected = true,
            10 => {
                let site = self.random.below(3) as usize;
                let name = self.record.sites[site].spec.name.clone();
                let is_asked = self.asked.iter().any(|change| change.to.as_ref() == Some(&name));
                // It can be added again when it is gone.
                self.record.sites[site].is_leaving = self.count(&name) > 0 || is_asked;
            }
            // The controller is killed: what it had asked for may yet be carried out.
            11..=13 => {
                self.steering = Steering::default();
                if self.random.is_one_in(2) {
                    self.answer();
                }
                self.asked.clear();
            }
            // Jobs begin and end.
            14..=30 => {
                let percent = self.random.below(101) as u32;
                self.record.nodes[node].cpu_free = CpuPpm::from_percent(percent);
            }
            // One is taken out of service, or put back.
            31..=33 => {
                let node = &mut self.record.nodes[node];
                node.is_out_of_service = !node.is_out_of_service;
            }
            // An agent is away, and its node not lost yet.
            34 => self.record.nodes[node].is_connected = false,
            _ => {}
        }
    }

    fn loads(&mut self) -> Loads {
        let mut loads = Loads::silent(self.steering.sites().len(), NODES, LOOK);
        for load in &mut loads.sites {
            let arrived = self.random.below(40);
            let (completed, queued) = (arrived.min(10), self.random.below(60));
            *load = Some(SiteLoad { arrived, completed, queued, in_flight: 1 })
                .filter(|_| !self.random.is_one_in(10));
        }
        loads.nodes.fill(Some(Share::ONE));
        loads
    }

    /// Now and then a balancer of a site fails, or lacks nodes.
    fn hindrances(&mut self) -> Hindrances {
        let mut hindrances = Hindrances::default();
        for hosted in &self.record.sites {
            let site = &hosted.spec.name;
            if self.random.is_one_in(10) {
                hindrances.failing.insert(site.clone());
            }
            if self.random.is_one_in(10) {
                let nodes = self.record.nodes.iter().map(|node| node.name.clone());
                let lacking = nodes.filter(|_| self.random.is_one_in(2)).collect();
                hindrances.lacking.insert(site.clone(), lacking);
            }
        }
        hindrances
    }

    /// Takes in for whom nodes are of no use now, but for those about which was decided `before`. About one of these that a site
    /// lacks it may have been decided anew.
    fn see_unfit(&mut self, before: &BTreeMap<Name, Name>, hindrances: &Hindrances) {
        for node in &self.record.nodes {
            let lacks = |site: &Name| lacks(hindrances, site, &node.name);
            let is_unfit = |spec: &&SiteSpec| lacks(&spec.name) || !node.fits(spec);
            let specs = self.record.sites.iter().map(|hosted| &hosted.spec);
            let sites: BTreeSet<_> = specs.filter(is_unfit).map(|spec| spec.name.clone()).collect();
            if !before.contains_key(&node.name) {
                self.unfit.insert(node.name.clone(), sites);
            } else if sites.iter().any(lacks)
                && let Some(unfit) = self.unfit.get_mut(&node.name)
            {
                unfit.retain(|site| sites.contains(site));
            }
        }
    }

    fn step(&mut self) {
        self.now = self.now.saturating_add(LOOK);
        self.something_happens();
        if self.random.is_one_in(2) {
            self.answer();
        }
        self.steering.follow(self.now, self.record.clone()).unwrap();
        let loads = self.loads();
        let hindrances = self.hindrances();
        let before = self.steering.draining();
        self.steering.decide(self.now, &loads, &hindrances);
        self.see_unfit(&before, &hindrances);
        self.check_drains();
        for (node, site) in self.steering.draining() {
            assert!(before.contains_key(&node) || !hindrances.failing.contains(&site), "{node}");
            if self.random.is_one_in(2) {
                self.steering.drained(&node, None);
            } else if self.random.is_one_in(100) {
                let why = "a balancer hangs".into();
                self.steering.held_up(self.now, WallTime::default(), &node, why);
            }
        }
        for change in self.steering.take_changes() {
            self.check_change(&change, &hindrances);
            self.asked.push(change);
        }
        self.check_traffic();
    }

    /// No site that stays is asked to give what it has by its hard guarantee, and none gets what it could not have, or not use,
    /// when that was decided, or what a balancer of it lacks by now.
    fn check_change(&self, change: &Change, hindrances: &Hindrances) {
        let is_lacked = |to: &Name| lacks(hindrances, to, &change.node);
        assert!(!change.to.as_ref().is_some_and(is_lacked), "{change:?}: {hindrances:?}");
        let unfit = self.unfit.get(&change.node);
        let is_unfit = |to: &Name| unfit.is_some_and(|sites| sites.contains(to));
        assert!(!change.to.as_ref().is_some_and(is_unfit), "{change:?}: {unfit:?}");
        let of = |site: &Name| self.record.sites.iter().find(|hosted| hosted.spec.name == *site);
        let Some(site) = change.from.as_ref() else { return };
        let hosted = of(site).unwrap();
        let left = self.count(site) - self.going(site);
        assert!(hosted.is_leaving || left > hosted.spec.guarantee.hard, "{change:?}: has {left}");
    }

    /// Nodes of `site` by the record for which another site was asked. One that died since is not
    /// among them: nor does [`Self::count`] have it.
    fn going(&self, site: &Name) -> u32 {
        let of_it = |node: &&NodeStanding| node.serves(site);
        let is_asked =
            |node: &&NodeStanding| self.asked.iter().any(|other| other.node == node.name);
        self.record.nodes.iter().filter(of_it).filter(is_asked).count() as u32
    }

    /// What a site that stays has by its hard guarantee does not drain, whatever has died since.
    fn check_drains(&self) {
        let draining = self.steering.draining();
        for hosted in self.record.sites.iter().filter(|hosted| !hosted.is_leaving) {
            let site = &hosted.spec.name;
            let drains = draining.values().filter(|from| *from == site).count() as u32;
            let stays = self.count(site) - self.going(site) - drains;
            assert!(
                drains == 0 || stays >= hosted.spec.guarantee.hard,
                "{site}: {drains} drain, {stays} stay",
            );
        }
    }

    /// A node gets requests of the site that the record names, and of no other.
    fn check_traffic(&self) {
        assert_eq!(self.steering.standing(), &self.record);
        for hosted in &self.record.sites {
            for (node, traffic) in self.steering.traffic(&hosted.spec.name) {
                let recorded = self.record.nodes.iter().find(|n| n.name == node).unwrap();
                let serves = recorded.serves(&hosted.spec.name);
                let is_on = traffic == Traffic::On(Weight::FULL);
                let is_asked = self.asked.iter().any(|change| change.node == node);
                assert!(is_on == (serves && !is_asked) && (is_on || traffic == Traffic::Off));
            }
        }
    }
}

#[test]
fn no_site_goes_below_its_guarantee_and_balancers_follow_the_record() {
    for seed in 0..40 {
        let mut world = World::new(seed);
        (0..STEPS).for_each(|_| world.step());
    }
}

#[test]
fn when_nothing_happens_any_more_everybody_has_the_hard_guarantee() {
    for seed in 0..40 {
        let mut world = World::new(seed);
        (0..500).for_each(|_| world.step());
        world.record.sites.iter_mut().for_each(|site| site.is_leaving = false);
        for node in &mut world.record.nodes {
            (node.is_connected, node.cpu_free) = (true, node.cpu);
            node.is_out_of_service = false;
        }
        for _ in 0..400 {
            world.now = world.now.saturating_add(LOOK);
            world.answer();
            world.steering.follow(world.now, world.record.clone()).unwrap();
            let loads = Loads::silent(world.steering.sites().len(), NODES, LOOK);
            world.steering.decide(world.now, &loads, &Hindrances::default());
            for node in world.steering.draining().into_keys() {
                world.steering.drained(&node, None);
            }
            let changes = world.steering.take_changes();
            world.asked.extend(changes);
        }
        for hosted in &world.record.sites {
            assert!(world.count(&hosted.spec.name) >= 1, "seed {seed}: {:?}", world.record);
        }
    }
}

/// The answer to a change is lost, and it is recorded all the same: the record then has a node at
/// another site than is believed, which cannot be mended while another change is asked for.
#[test]
fn nothing_is_decided_on_what_the_record_denies() {
    let mut world = World::new(0);
    let hosted = |text, hard| {
        let mut site = site(text, 1);
        site.spec.guarantee = Guarantee { hard, soft: hard, max: hard };
        site
    };
    let (blog, shop) = (Some(name("blog")), Some(name("shop")));
    world.record.sites = vec![hosted("blog", 1), hosted("shop", 3)];
    world.record.nodes.truncate(4);
    for (node, site) in world.record.nodes.iter_mut().zip([&blog, &shop, &None, &blog]) {
        node.site.clone_from(site);
    }
    // The shop lacks two of its hard guarantee: the spare, and one of the blog, the idle one.
    let decide = |world: &mut World, idle: usize| {
        let mut loads = Loads::silent(2, 4, LOOK);
        loads.nodes[idle] = Some(Share::default());
        world.now = world.now.saturating_add(LOOK);
        world.steering.follow(world.now, world.record.clone()).unwrap();
        world.steering.decide(world.now, &loads, &Hindrances::default());
        let drained: Vec<_> = world.steering.draining().into_keys().collect();
        drained.iter().for_each(|node| world.steering.drained(node, None));
        let changes = world.steering.take_changes().into_iter();
        changes.map(|change| (change.node.to_string(), change.from)).collect::<Vec<_>>()
    };
    let mut first = decide(&mut world, 0);
    first.sort();
    assert_eq!(first, [("n0".into(), blog), ("n2".into(), None)]);
    let lost = Err("no answer".into());
    world.steering.answered(world.now, WallTime::default(), &name("n0"), lost);
    world.record.nodes[0].site.clone_from(&shop);
    assert_eq!(decide(&mut world, 3), [], "n3 is all that the blog has");
    world.record.nodes[2].site.clone_from(&shop);
    world.steering.answered(world.now, WallTime::default(), &name("n2"), Ok(()));
    assert_eq!(decide(&mut world, 3), [], "everybody has the hard guarantee");
    let serving = world.steering.traffic(&name("shop"));
    let serving = serving.iter().filter(|(_, traffic)| *traffic == Traffic::On(Weight::FULL));
    assert_eq!(serving.count(), 3);
}

// Goal: a node whose move is refused, since a job has what the other site would need of it, is not drained again at once,
// and others are asked for. Method: a site that lacks a node, and another that has three, of which each is refused.
#[test]
fn a_node_that_is_refused_serves_on_and_others_are_asked_for() {
    let mut world = World::new(0);
    let hosted = |text, hard, max| {
        let mut site = site(text, 1);
        site.spec.guarantee = Guarantee { hard, soft: hard, max };
        site
    };
    let (blog, shop) = (Some(name("blog")), Some(name("shop")));
    world.record.sites = vec![hosted("blog", 1, 3), hosted("shop", 2, 2)];
    world.record.nodes.truncate(4);
    for (node, site) in world.record.nodes.iter_mut().zip([&blog, &blog, &blog, &shop]) {
        node.site.clone_from(site);
    }
    let look = |world: &mut World, after: Nanos| {
        world.decide(after);
        let drained: Vec<_> = world.steering.draining().into_keys().collect();
        drained.iter().for_each(|node| world.steering.drained(node, None));
        world.steering.take_changes()
    };
    let mut asked = BTreeSet::new();
    for _ in 0..3 {
        let changes = look(&mut world, LOOK);
        let [Change { node, from, .. }] = &changes[..] else { panic!("{changes:?}") };
        assert!(*from == blog && asked.insert(node.clone()), "{changes:?} after {asked:?}");
        let why = Err("a job has its CPU".into());
        world.steering.answered(world.now, WallTime::default(), node, why);
    }
    assert_eq!(look(&mut world, LOOK), []);
    let again = look(&mut world, Nanos::from_secs(2));
    assert!(matches!(&again[..], [change] if asked.contains(&change.node)), "{again:?}");
}

/// Two sites, of which the shop has the higher priority; each asks for so much CPU of a node, in percent. Which site has each
/// node, and what of it sites could have.
fn sites_beside_jobs(cpu: [u32; 2], nodes: &[(Option<&str>, u32)]) -> World {
    let mut world = World::new(0);
    let described = |(text, priority, cpu): (&str, u32, u32)| {
        let mut site = site(text, priority);
        site.spec.guarantee = Guarantee { hard: 1, soft: 2, max: 3 };
        site.spec.cpu_ppm = Some(CpuPpm::from_percent(cpu));
        site
    };
    world.record.sites = [("blog", 1, cpu[0]), ("shop", 10, cpu[1])].map(described).into();
    world.record.nodes.truncate(nodes.len());
    for (node, (site, percent)) in world.record.nodes.iter_mut().zip(nodes) {
        node.site = site.map(name);
        node.cpu_free = CpuPpm::from_percent(*percent);
    }
    world
}

/// What is asked for at one look at which nothing is heard of loads, and which nodes drain then.
fn look_once(world: &mut World, hindrances: &Hindrances) -> (Vec<Change>, Vec<Name>) {
    world.decide_with(LOOK, hindrances);
    let drained: Vec<_> = world.steering.draining().into_keys().collect();
    (world.steering.take_changes(), drained)
}

// Goal: a site that asks for much CPU keeps spares from no other one. Method: jobs have so much of the only spares that one
// site could have its share there and the other not; both lack their hard guarantees.
#[test]
fn a_spare_goes_to_the_site_that_has_room_there() {
    for (cpu, taker) in [([50, 80], "blog"), ([80, 50], "shop")] {
        let mut world = sites_beside_jobs(cpu, &[(None, 60), (None, 40)]);
        let (changes, drained) = look_once(&mut world, &Hindrances::default());
        let asked: Vec<_> = changes.into_iter().map(|change| (change.node, change.to)).collect();
        assert_eq!((asked, drained), (vec![(name("n0"), Some(name(taker)))], vec![]));
    }
}

// Goal: no node is drained for a site that could not have its share there, and one where it could is. Method: jobs have
// much of all nodes of a site but one.
#[test]
fn a_node_is_drained_only_for_a_site_that_has_room_there() {
    let nodes = [(Some("shop"), 60), (Some("blog"), 30), (Some("blog"), 60), (Some("blog"), 30)];
    for (shop, drained) in [(50, vec![name("n2")]), (70, vec![])] {
        let mut world = sites_beside_jobs([20, shop], &nodes);
        world.record.sites[1].spec.guarantee.hard = 2;
        for _ in 0..3 {
            let look = look_once(&mut world, &Hindrances::default());
            assert_eq!(look, (vec![], drained.clone()), "the shop asks for {shop} %");
        }
    }
}

// Goal: where a balancer fails nothing begins to drain, what it lacks its site does not get, and what cannot be told that it
// drains serves on. Method: the site that could give a node, then the one that would get it, then the node.
#[test]
fn nothing_is_decided_that_balancers_keep_from_being_done() {
    let blog = (Some("blog"), 100);
    let mut world = sites_beside_jobs([20, 20], &[(Some("shop"), 100), blog, blog, blog]);
    world.record.sites[1].spec.guarantee.hard = 2;
    let fails = Hindrances { failing: [name("blog")].into(), ..Hindrances::default() };
    assert_eq!(look_once(&mut world, &fails), (vec![], vec![]));
    let lacking = BTreeMap::from([(name("shop"), ["n1", "n3"].map(name).into())]);
    let lacks = Hindrances { lacking, ..Hindrances::default() };
    assert_eq!(look_once(&mut world, &lacks), (vec![], vec![name("n2")]));
    let mut give_up = || {
        let (why, node) = ("a balancer hangs".to_string(), name("n2"));
        let is_given_up = world.steering.held_up(world.now, WallTime::default(), &node, why);
        let ended = world.steering.take_ended().into_iter().map(|moved| moved.failure);
        (is_given_up, ended.collect::<Vec<_>>())
    };
    assert_eq!(give_up(), (true, vec![Some("a balancer hangs".to_string())]));
    assert_eq!(give_up(), (false, vec![]), "it does not drain");
    let on = (name("n2"), Traffic::On(Weight::FULL));
    assert!(world.steering.traffic(&name("blog")).contains(&on));
    let look = look_once(&mut world, &Hindrances::default());
    assert_eq!(look, (vec![], vec![]), "its site is left alone for a while");
    world.now = world.now.saturating_add(Nanos::from_secs(10));
    let (changes, drained) = look_once(&mut world, &Hindrances::default());
    assert_eq!((changes.len(), drained.len()), (0, 1), "{drained:?}");
}

// Goal: a node does not go to a site whose balancer has come to lack it while it drained: it serves on, and another one drains.
// Method: the only site that has more than its hard guarantee gives one of three.
#[test]
fn a_node_that_is_lacked_by_the_time_it_is_drained_serves_on() {
    let blog = (Some("blog"), 100);
    let mut world = sites_beside_jobs([20, 20], &[(Some("shop"), 100), blog, blog, blog]);
    world.record.sites[1].spec.guarantee.hard = 2;
    let (_, drained) = look_once(&mut world, &Hindrances::default());
    let [node] = &drained[..] else { panic!("{drained:?}") };
    let lacking = BTreeMap::from([(name("shop"), [node.clone()].into())]);
    let lacks = Hindrances { lacking, ..Hindrances::default() };
    let (changes, others) = look_once(&mut world, &lacks);
    assert!(changes.is_empty() && others.len() == 1 && others[0] != *node, "{others:?}");
    world.steering.drained(node, None);
    assert_eq!(world.steering.take_changes(), [], "it does not drain");
    let on = (node.clone(), Traffic::On(Weight::FULL));
    assert!(world.steering.traffic(&name("blog")).contains(&on));
}

// Goal: a site that lacks a node of its hard guarantee does not wait for one site, drain after drain, where another could give
// one at the same price. Method: two such sites, and the drain of the one that is asked first is held up.
#[test]
fn when_a_drain_was_held_up_another_site_is_asked() {
    let mut world = World::new(0);
    let serves = ["shop", "blog", "blog", "wiki", "wiki"];
    world.record.nodes.truncate(serves.len());
    for (node, site) in world.record.nodes.iter_mut().zip(serves) {
        node.site = Some(name(site));
    }
    world.record.sites[1].spec.guarantee.hard = 2;
    let asked = |world: &mut World| {
        let (_, drained) = look_once(world, &Hindrances::default());
        let [node] = &drained[..] else { panic!("{drained:?}") };
        let why = "its balancer hangs".into();
        let site = world.steering.draining()[node].clone();
        assert!(world.steering.held_up(world.now, WallTime::default(), node, why));
        site
    };
    let sites = [asked(&mut world), asked(&mut world)];
    assert_eq!(sites, ["blog", "wiki"].map(name));
    assert_eq!(look_once(&mut world, &Hindrances::default()), (vec![], vec![]));
    world.now = world.now.saturating_add(Nanos::from_secs(10));
    asked(&mut world);
}

// Goal: the nodes of a site that is removed are waited for, whatever its balancers do. Method: one that cannot be told.
#[test]
fn what_leaves_for_good_is_not_given_up() {
    let shop = (Some("shop"), 100);
    let mut world = sites_beside_jobs([20, 20], &[shop, shop, (Some("blog"), 100)]);
    world.record.sites[0].is_leaving = true;
    let fails = Hindrances { failing: [name("blog")].into(), ..Hindrances::default() };
    for _ in 0..2 {
        assert_eq!(look_once(&mut world, &fails), (vec![], vec![name("n2")]));
        let why = "a balancer hangs".into();
        assert!(!world.steering.held_up(world.now, WallTime::default(), &name("n2"), why));
    }
}

/// A broker that begins again with fewer nodes in its topology: what was promised before cannot be kept.
#[test]
fn a_cluster_that_is_too_small_by_now_moves_nothing_and_says_why() {
    let mut world = World::new(0);
    world.record.nodes.truncate(2);
    let follow = |world: &mut World| {
        world.now = world.now.saturating_add(LOOK);
        let outcome = world.steering.follow(world.now, world.record.clone());
        let sites = world.steering.sites().len();
        let nodes = world.record.nodes.len();
        let loads = Loads::silent(sites, nodes, LOOK);
        world.steering.decide(world.now, &loads, &Hindrances::default());
        (outcome.is_ok(), world.steering.refusal().cloned(), world.steering.is_busy())
    };
    let (is_ok, why, is_busy) = follow(&mut world);
    assert_eq!((is_ok, is_busy), (false, false));
    assert_eq!(why.as_ref().map(|why| why.field.as_str()), Some("sites.wiki.hard"));
    assert_eq!(follow(&mut world), (true, why, false), "it says so as long as it is so");
    world.record.sites.pop();
    assert_eq!(follow(&mut world), (true, None, true), "the others get theirs");
}

/// A blog that has the first ones of so many nodes, and is to have so many for certain; the others are spares.
fn a_blog(has: usize, hard: u32, nodes: usize) -> World {
    let mut world = World::new(0);
    let mut blog = site("blog", 1);
    blog.spec.guarantee = Guarantee { hard, soft: hard, max: hard.max(has as u32) };
    world.record.sites = vec![blog];
    world.record.nodes.truncate(nodes);
    for node in &mut world.record.nodes[..has] {
        node.site = Some(name("blog"));
    }
    assert_eq!(world.look(Nanos::new(0)), []);
    world
}

const SECOND: Nanos = Nanos::from_secs(1);

impl World {
    /// Looks after so long.
    fn decide(&mut self, after: Nanos) {
        self.decide_with(after, &Hindrances::default());
    }

    fn decide_with(&mut self, after: Nanos, hindrances: &Hindrances) {
        self.now = self.now.saturating_add(after);
        self.steering.follow(self.now, self.record.clone()).unwrap();
        let loads = Loads::silent(self.steering.sites().len(), self.record.nodes.len(), LOOK);
        self.steering.decide(self.now, &loads, hindrances);
    }

    /// The same, and has recorded at once what is asked for; which nodes went where.
    fn look(&mut self, after: Nanos) -> Vec<(String, Option<Name>)> {
        self.decide(after);
        for node in self.steering.draining().into_keys() {
            self.steering.drained(&node, None);
        }
        let changes = self.steering.take_changes();
        for change in &changes {
            let node = self.record.nodes.iter_mut().find(|node| node.name == change.node).unwrap();
            node.site.clone_from(&change.to);
            self.steering.answered(self.now, WallTime::default(), &change.node, Ok(()));
        }
        changes.into_iter().map(|change| (change.node.to_string(), change.to)).collect()
    }

    /// What happens in so many seconds, and in which.
    fn watch(&mut self, seconds: usize) -> Vec<(usize, String, Option<Name>)> {
        let at = |(second, moves): (usize, Vec<_>)| {
            moves.into_iter().map(move |(node, to)| (second, node, to))
        };
        (1..=seconds).map(|second| (second, self.look(SECOND))).flat_map(at).collect()
    }

    fn put_out_of_service(&mut self, node: usize, is_out: bool) {
        self.record.nodes[node].is_out_of_service = is_out;
    }

    fn kept(&self) -> Vec<String> {
        let kept = self.steering.kept_out_of_service(self.now, &self.record.sites[0].spec);
        kept.iter().map(ToString::to_string).collect()
    }
}

// Goal: who takes a node out of service gets it, and the site is never without one. Method: there is a spare; the site may have
// one node alone.
#[test]
fn a_node_that_is_out_of_service_is_replaced_and_leaves() {
    let mut world = a_blog(1, 1, 2);
    world.put_out_of_service(0, true);
    assert_eq!(world.look(LOOK), [("n1".into(), Some(name("blog")))]);
    // Some seconds are for others that it may need.
    assert_eq!(world.watch(30), [(11, "n0".into(), None)]);
    // When it is back nobody needs it.
    world.put_out_of_service(0, false);
    assert_eq!(world.watch(30), []);
}

// Goal: a site that may have one node does not keep the one that came for another which is in service again.
#[test]
fn a_site_gives_back_what_it_has_beyond_its_most() {
    let mut world = a_blog(1, 1, 2);
    world.put_out_of_service(0, true);
    assert_eq!(world.look(LOOK), [("n1".into(), Some(name("blog")))]);
    world.put_out_of_service(0, false);
    assert_eq!(world.watch(30).len(), 1);
    assert_eq!(world.count(&name("blog")), 1);
}

// Goal: what a site has by its hard guarantee serves on although it is out of service, as people are told, until there is
// another that can be had, and is there: what is away may be lost.
#[test]
fn a_site_keeps_the_last_node_that_it_has_until_there_is_another() {
    let mut world = a_blog(1, 1, 2);
    world.record.nodes[1].cpu_free = CpuPpm::from_percent(0);
    world.put_out_of_service(0, true);
    assert_eq!(world.watch(5), []);
    assert!(world.kept().is_empty(), "it may yet find one");
    assert_eq!(world.watch(90), []);
    assert_eq!(world.kept(), ["n0"]);
    world.record.nodes[1].cpu_free = CpuPpm::from_percent(100);
    assert_eq!(world.look(LOOK), [("n1".into(), Some(name("blog")))]);
    world.record.nodes[1].is_connected = false;
    assert_eq!(world.watch(30), []);
    world.record.nodes[1].is_connected = true;
    assert_eq!(world.watch(30), [(11, "n0".into(), None)]);
    assert!(world.kept().is_empty());
}

// Goal: as many leave as the guarantee leaves, those first that were taken out first; where all are out of service, as before
// an upgrade, everything stays as it is.
#[test]
fn as_many_leave_as_the_guarantee_leaves() {
    let mut world = a_blog(3, 2, 3);
    world.put_out_of_service(1, true);
    assert_eq!(world.watch(5), []);
    world.put_out_of_service(0, true);
    assert_eq!(world.watch(60), [(11, "n1".into(), None)]);
    assert_eq!(world.kept(), ["n0"]);
    let mut world = a_blog(3, 1, 3);
    (0..3).for_each(|node| world.put_out_of_service(node, true));
    assert_eq!(world.watch(90), []);
    assert!(world.kept().is_empty(), "nobody wants them");
}

// Goal: what its site cannot do without yet, since others are on their way to it, serves on.
#[test]
fn a_node_does_not_leave_while_another_is_on_its_way() {
    let mut world = a_blog(2, 1, 4);
    world.record.sites[0].spec.guarantee = Guarantee { hard: 2, soft: 2, max: 3 };
    world.look(SECOND);
    world.put_out_of_service(0, true);
    world.decide(SECOND);
    let asked = world.steering.take_changes();
    assert!(matches!(&asked[..], [change] if change.node == name("n2")), "{asked:?}");
    // That is not answered for long.
    assert_eq!(world.watch(30), []);
    world.steering.answered(world.now, WallTime::default(), &name("n2"), Ok(()));
    world.record.nodes[2].site = Some(name("blog"));
    assert_eq!(world.watch(30), [(11, "n0".into(), None)]);
}

// Goal: a site does not give its last node that answers. Method: its balancer finds that the other one does not, until it does.
#[test]
fn a_node_does_not_leave_to_one_that_does_not_answer() {
    let mut world = a_blog(2, 1, 2);
    world.put_out_of_service(0, true);
    let down = BTreeMap::from([(name("blog"), BTreeSet::from([name("n1")]))]);
    for _ in 0..90 {
        world.decide_with(SECOND, &Hindrances { down: down.clone(), ..Hindrances::default() });
        assert!(world.steering.draining().is_empty());
    }
    assert_eq!(world.kept(), ["n0"]);
    assert_eq!(world.watch(30), [(11, "n0".into(), None)]);
    // One that is away when it has begun to leave may be lost.
    let mut world = a_blog(2, 1, 2);
    world.put_out_of_service(0, true);
    assert_eq!(world.watch(10), []);
    world.decide(SECOND);
    assert!(world.steering.draining().contains_key(&name("n0")));
    world.record.nodes[1].is_connected = false;
    world.decide(LOOK);
    assert!(!world.steering.draining().contains_key(&name("n0")));
}

// Goal: one that does not answer itself is no loss to its site, and what a balancer said of it before it ended still counts.
#[test]
fn a_node_that_does_not_answer_leaves_its_site_to_the_others() {
    let mut world = a_blog(2, 1, 2);
    let down = |node| BTreeMap::from([(name("blog"), BTreeSet::from([name(node)]))]);
    let of = |node| Hindrances { down: down(node), ..Hindrances::default() };
    world.put_out_of_service(0, true);
    (0..11).for_each(|_| world.decide_with(SECOND, &of("n0")));
    assert!(world.steering.draining().contains_key(&name("n0")), "the other one answers");
    let mut world = a_blog(2, 1, 2);
    world.put_out_of_service(0, true);
    world.decide_with(SECOND, &of("n1"));
    let unheard = BTreeSet::from([name("blog")]);
    for _ in 0..30 {
        world
            .decide_with(SECOND, &Hindrances { unheard: unheard.clone(), ..Hindrances::default() });
    }
    assert_eq!(world.kept(), ["n0"]);
    // It is in service again, so that there is one more than there may be: that stays until the other one answers.
    world.record.sites[0].spec.guarantee.max = 1;
    world.put_out_of_service(0, false);
    (0..30).for_each(|_| world.decide_with(SECOND, &of("n1")));
    assert!(world.steering.draining().is_empty());
    world.decide(SECOND);
    assert_eq!(world.steering.draining().len(), 1);
}

// Goal: whoever is in service again before it has left serves on.
#[test]
fn a_node_that_is_back_in_service_does_not_drain_any_longer() {
    let mut world = a_blog(1, 1, 2);
    world.record.sites[0].spec.guarantee.max = 2;
    world.put_out_of_service(0, true);
    world.look(LOOK);
    world.watch(10);
    world.decide(SECOND);
    assert!(world.steering.draining().contains_key(&name("n0")));
    world.put_out_of_service(0, false);
    world.decide(LOOK);
    assert!(world.steering.draining().is_empty());
    let serves = (name("n0"), Traffic::On(Weight::FULL));
    assert!(world.steering.traffic(&name("blog")).contains(&serves));
}

// Goal: a node that drains for another site when it is taken out of service is asked for in vain: it serves on, and the other
// site gets another one.
#[test]
fn what_drains_for_another_site_is_out_of_service_for_that_too() {
    let mut world = a_blog(2, 1, 3);
    world.record.sites.push(site("shop", 1));
    world.record.sites[1].spec.guarantee = Guarantee { hard: 1, soft: 1, max: 1 };
    world.record.nodes[2].cpu_free = CpuPpm::from_percent(0);
    world.decide(LOOK);
    let (drains, from) = world.steering.draining().pop_first().unwrap();
    assert_eq!(from, name("blog"));
    let (at, other) = if drains == name("n0") { (0, "n1") } else { (1, "n0") };
    world.put_out_of_service(at, true);
    world.record.nodes[2].cpu_free = CpuPpm::from_percent(100);
    assert_eq!(world.look(LOOK), [("n2".into(), Some(name("shop")))]);
    assert!(world.steering.draining().is_empty(), "not {other} either");
}
