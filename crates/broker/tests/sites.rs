//! Web sites of a broker among agents, behind a real HAProxy: floods, nodes that die, brokers that end,
//! bad input. The nodes' servers are threads, each of which answers one request after the other.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../balancers/tests/world/mod.rs"]
mod balancers;
mod world;

use balancers::{A_FIFTIETH, HaProxyDaemon, Load, Node, assert_none_lost, haproxy, posts};
use keeptime_broker::client::ClientError;
use keeptime_broker::config::Config;
use keeptime_broker::wire::{Filter, LoadSource, NodeView, Overview};
use keeptime_fabric::directory::{Server, ServerConfig};
use keeptime_fabric::region::{Layout, PlainMemories, RegionServer, RegionServerConfig};
use keeptime_fabric::{self as fabric, node_load};
use keeptime_model::drain::NodeSet;
use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources, State};
use keeptime_model::site::{BalancerPlace, Guarantee, SiteSpec};
use keeptime_model::units::{CpuPpm, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use world::{World, request, wait};

/// A cluster whose nodes are servers of an HAProxy.
struct Farm {
    world: World,
    nodes: Vec<Node>,
    haproxy: HaProxyDaemon,
}

impl Farm {
    fn new(count: usize, sites: &[&str]) -> Self {
        Self::with(count, sites, |_| {})
    }

    /// With something else in the broker's configuration.
    fn with(count: usize, sites: &[&str], change: impl FnOnce(&mut Config)) -> Self {
        Self::of(World::with(count, change), count, sites)
    }

    fn of(world: World, count: usize, sites: &[&str]) -> Self {
        let single = |n| Node::single(&format!("n{n}"), A_FIFTIETH);
        let nodes: Vec<_> = (1..=count).map(single).collect();
        let haproxy = haproxy(sites, &nodes.iter().collect::<Vec<_>>());
        Self { world, nodes, haproxy }
    }

    /// A shop that has two of three nodes, no more and no less, and one of these.
    fn with_a_spare() -> (Self, Name) {
        let farm = Self::new(3, &["shop"]);
        farm.add("shop", [2, 2, 2], 1).unwrap();
        wait("its guarantee", || farm.nodes_of("shop").len() == 2);
        let first = farm.nodes_of("shop").remove(0);
        (farm, first)
    }

    fn spec(&self, site: &str, [hard, soft, max]: [u32; 3], priority: u32) -> SiteSpec {
        let socket = self.haproxy.socket.clone();
        SiteSpec {
            name: site.parse().unwrap(),
            guarantee: Guarantee { hard, soft, max },
            priority,
            cpu_ppm: Some(CpuPpm::from_percent(50)),
            services: vec![],
            port: 80,
            drain_most_nanos: None,
            balancers: vec![BalancerPlace::HaProxy { socket, backend: site.into() }],
        }
    }

    fn add(&self, site: &str, guarantee: [u32; 3], priority: u32) -> Result<(), ClientError> {
        self.world.client().add_site(&self.spec(site, guarantee, priority))
    }

    fn overview(&self) -> Overview {
        self.world.client().sites().unwrap()
    }

    fn nodes_of(&self, site: &str) -> Vec<Name> {
        let sites = self.overview().sites;
        let found = sites.into_iter().find(|view| view.spec.name.as_str() == site);
        found.map(|view| view.nodes).unwrap_or_default()
    }

    /// Live reservations of sites' nodes, by the record.
    fn reserved(&self) -> Vec<(Name, Name)> {
        let live = Filter { live: Some(true), ..Filter::default() };
        let listing = self.world.client().reservations(&live).unwrap();
        let asked = listing.reservations.iter().filter_map(|found| match &found.request.ask {
            Ask::SiteNode(asked) => Some((asked.site.clone(), asked.node.clone())),
            _ => None,
        });
        asked.collect()
    }

    fn refusal(outcome: Result<(), ClientError>) -> (String, String) {
        let error = outcome.unwrap_err();
        let problem = error.problem().unwrap_or_else(|| panic!("{error}")).clone();
        (problem.field.unwrap_or_default(), problem.expected.unwrap_or(problem.detail))
    }
}

#[test]
fn a_flooded_site_gains_reserved_nodes_within_guarantees_and_loses_no_post() {
    let farm = Farm::new(4, &["shop", "blog"]);
    farm.add("blog", [1, 1, 3], 1).unwrap();
    farm.add("shop", [1, 3, 3], 10).unwrap();
    wait("hard guarantees", || ["shop", "blog"].iter().all(|site| farm.nodes_of(site).len() == 1));
    let before = Load::start(&farm.haproxy.sites[1..], 112.0);
    wait("the blog has both spares", || farm.nodes_of("blog").len() == 3);
    let flood = Load::start(&farm.haproxy.sites[..1], 112.0);
    wait("the shop has three", || {
        assert!(!farm.nodes_of("blog").is_empty(), "its hard guarantee");
        farm.nodes_of("shop").len() == 3
    });
    [&flood, &before].into_iter().for_each(Load::stop);
    wait("the end of the flood", || {
        let sizes = ["shop", "blog"].map(|site| farm.nodes_of(site).len());
        assert!(sizes.iter().all(|size| *size >= 1), "{sizes:?}");
        flood.has_ended() && before.has_ended()
    });
    assert_none_lost(&flood.end());
    assert_none_lost(&before.end());
    let reserved = farm.reserved();
    assert_eq!(reserved.len(), farm.nodes_of("shop").len() + farm.nodes_of("blog").len());
    let error = farm.world.client().reserve("job".parse().unwrap(), request(4, 60, 0, 60));
    assert!(error.unwrap_err().problem().unwrap().refusal.is_some(), "sites' nodes are reserved");
}

#[test]
fn a_site_that_is_described_anew_has_its_nodes_as_described() {
    let farm = Farm::new(2, &["shop"]);
    farm.add("shop", [2, 2, 2], 1).unwrap();
    wait("its guarantee", || farm.nodes_of("shop").len() == 2);
    let client = farm.world.client();
    let job = client.reserve("job".parse().unwrap(), request(1, 40, 0, 600)).unwrap();
    let describe = |percent| {
        let cpu_ppm = Some(CpuPpm::from_percent(percent));
        client.add_site(&SiteSpec { cpu_ppm, ..farm.spec("shop", [2, 2, 2], 1) }).unwrap();
    };
    let held = || {
        let live = Filter { live: Some(true), ..Filter::default() };
        let found = client.reservations(&live).unwrap().reservations;
        let asked = found.iter().filter_map(|found| match &found.request.ask {
            Ask::SiteNode(asked) => Some(asked.cpu_ppm.get() / 10_000),
            _ => None,
        });
        let mut asked: Vec<_> = asked.collect();
        asked.sort_unstable();
        asked
    };
    describe(60);
    wait("the new share", || held() == [60, 60]);
    // A job has what one of them would need: that one stays as it is, until the job is over.
    describe(80);
    wait("where it can be", || held() == [60, 80]);
    client.cancel(job.handle).unwrap();
    wait("where a job was", || held() == [80, 80]);
    assert_eq!(farm.nodes_of("shop").len(), 2);
}

#[test]
fn a_node_that_dies_is_replaced_and_one_that_comes_back_is_a_spare() {
    let (farm, dead) = Farm::with_a_spare();
    let number: usize = dead.as_str()[1..].parse().unwrap();
    farm.nodes[number - 1].die();
    // Its agent hangs in what it is told: one that says nothing is as good as none.
    let silenced = farm.world.agents[number - 1].lock().unwrap();
    let nodes = NodeChoice::Named(vec![dead.clone()]);
    let cpu_ppm = CpuPpm::from_percent(10);
    let resources = Resources { nodes, cpu_ppm, ..Resources::nothing() };
    let job = farm
        .world
        .client()
        .reserve("job".parse().unwrap(), Request::new(Ask::Resources(resources)));
    assert!(job.is_err(), "{job:?}");
    wait("another takes its place", || {
        let nodes = farm.nodes_of("shop");
        nodes.len() == 2 && !nodes.contains(&dead)
    });
    assert_none_lost(&posts(&farm.haproxy.sites, 100.0, 300).join().unwrap());
    drop(silenced);
    farm.world.wait_until_all_are_there();
    assert_eq!(farm.reserved().len(), 2, "it comes back as a spare");
}

// Goal: an operator gets a node back that a web site has, under load, without a request being lost, and the site has as many
// as before; where there is no other node it serves on.
#[test]
fn a_node_that_is_drained_leaves_its_site_when_another_has_come() {
    let (farm, first) = Farm::with_a_spare();
    let drain = |node: &Name| {
        let nodes = NodeSet::Named([node.clone()].into());
        farm.world.client().drain(nodes, "new disk".parse().unwrap()).unwrap();
    };
    drain(&first);
    let load = Load::start(&farm.haproxy.sites, 25.0);
    wait("another takes its place", || !farm.nodes_of("shop").contains(&first));
    load.stop();
    assert_none_lost(&load.end());
    assert_eq!(farm.reserved().len(), 2);
    let second = farm.nodes_of("shop").remove(0);
    drain(&second);
    wait("that is told", || {
        let told = farm.overview().sites.remove(0).problems;
        told.iter().any(|told| told.ends_with(second.as_str()))
    });
    assert_eq!(farm.nodes_of("shop").len(), 2);
    let page = farm.world.request("GET", "/metrics", "");
    let figures = ["nodes", "nodes_hard", "problems"].map(|name| format!("keeptime_site_{name}"));
    for (figure, expected) in figures.iter().zip([2, 2, 1]) {
        assert!(page.contains(&format!("{figure}{{site=\"shop\"}} {expected}\n")), "{page}");
    }
    assert!(page.contains("keeptime_nodes_away 0\n"), "drained, and there: {page}");
    farm.world.client().resume(NodeSet::Named([first].into())).unwrap();
    wait("the first comes for it", || !farm.nodes_of("shop").contains(&second));
}

#[test]
fn a_broker_that_is_started_again_goes_on_from_its_record() {
    let mut farm = Farm::new(3, &["shop", "blog"]);
    farm.add("shop", [1, 1, 1], 1).unwrap();
    farm.add("blog", [1, 1, 1], 1).unwrap();
    wait("guarantees", || farm.reserved().len() == 2);
    let before = farm.reserved();
    let load = Load::start(&farm.haproxy.sites, 50.0);
    farm.world.stop();
    farm.world.start();
    farm.world.wait_until_all_are_there();
    wait("it sees its sites", || !farm.nodes_of("shop").is_empty());
    assert_none_lost(&load.end());
    assert_eq!(farm.reserved(), before);
}

/// The daemon of the broker's machine, which is the first node: it says that three tenths of its CPU are used, as
/// long as it is told to.
struct Fabric {
    goes_on: Arc<AtomicBool>,
    _servers: (RegionServer, Server),
}

impl Fabric {
    fn start(name: &str) -> Self {
        let regions = RegionServerConfig { name: name.into(), port: 0 };
        let regions = RegionServer::start(&regions, |_| Ok(Box::new(PlainMemories))).unwrap();
        let (node, address) = ("n1".to_string(), ([127, 0, 0, 1], 0).into());
        let directory =
            ServerConfig { name: name.into(), node, address, members: vec![], key: None };
        let directory = Server::start(directory).unwrap();
        let mut config = fabric::Config::default();
        config.directory = name.into();
        let context = fabric::Context::open(config).unwrap();
        let attributes = node_load::query().with(node_load::NODE, "n1");
        let region = context.publish(attributes, Layout::CELL).unwrap();
        let goes_on = Arc::new(AtomicBool::new(true));
        let told = Arc::clone(&goes_on);
        std::thread::spawn(move || {
            let (_open, began) = (context, Instant::now());
            while Arc::strong_count(&told) > 1 {
                let at = Nanos::from(began.elapsed());
                let cpu_used = Nanos::new(at.get() * 3 / 10);
                let cpu = CpuPpm::from_percent(100);
                let counters = NodeCounters { at, cpu_used, cpu, runnable: 2 };
                if told.load(Ordering::SeqCst) {
                    region.write(0, &node_load::encode(&counters)).unwrap();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { goes_on, _servers: (regions, directory) }
    }
}

#[test]
fn agents_say_how_busy_their_nodes_are_and_who_cannot_is_silent() {
    let farm = Farm::of(World::of(2, 1, |_| {}), 2, &["shop"]);
    farm.add("shop", [1, 1, 1], 1).unwrap();
    let known = |view: NodeView| (view.known_from, view.load_ppm.is_some());
    wait("the first node says something", || {
        let nodes: Vec<_> = farm.overview().nodes.into_iter().map(known).collect();
        nodes == [(Some(LoadSource::Counters), true), (None, false)]
    });
}

#[test]
fn nodes_are_as_busy_as_they_say_in_the_fabric_and_silence_is_no_idleness() {
    let name = format!("broker-test-{}", std::process::id());
    let farm = Farm::with(2, &["shop"], |config| config.fabric = Some(name.clone()));
    farm.add("shop", [1, 1, 1], 1).unwrap();
    let load = |view: NodeView| {
        let percent = view.load_ppm.map(|load| (load.as_f64() * 100.0).round());
        (percent, view.known_from, view.runnable)
    };
    let loads = || farm.overview().nodes.into_iter().map(load).collect::<Vec<_>>();
    let silence = (None, None, None);
    // It comes up later than the broker.
    wait("nobody says anything", || loads() == [silence; 2]);
    let fabric = Fabric::start(&name);
    let counted = (Some(30.0), Some(LoadSource::Counters), Some(2));
    wait("the first node says something", || loads() == [counted, silence]);
    fabric.goes_on.store(false, Ordering::SeqCst);
    wait("it gets no newer", || loads() == [silence; 2]);
    fabric.goes_on.store(true, Ordering::SeqCst);
    wait("it speaks again", || loads() == [counted, silence]);
}

#[test]
fn a_site_that_is_removed_gives_its_nodes_back() {
    let farm = Farm::new(2, &["shop", "blog"]);
    farm.add("shop", [1, 1, 1], 1).unwrap();
    farm.add("blog", [1, 1, 1], 1).unwrap();
    wait("guarantees", || farm.reserved().len() == 2);
    let shop: Name = "shop".parse().unwrap();
    farm.world.client().remove_site(&shop).unwrap();
    wait("it is gone", || farm.overview().sites.len() == 1);
    assert_eq!(farm.reserved().len(), 1);
    let over = Filter { state: Some(State::Cancelled), ..Filter::default() };
    assert_eq!(farm.world.client().reservations(&over).unwrap().reservations.len(), 1);
    let (field, expected) = Farm::refusal(farm.world.client().remove_site(&shop));
    assert_eq!((field.as_str(), expected.as_str()), ("site", "one of blog"));
}

#[test]
fn what_cannot_be_kept_or_asked_is_refused() {
    let farm = Farm::new(2, &["shop", "blog"]);
    farm.add("shop", [1, 1, 1], 1).unwrap();
    wait("the shop is seen", || farm.overview().sites.len() == 1);
    let (field, expected) = Farm::refusal(farm.add("blog", [2, 2, 2], 1));
    assert_eq!(field, "sites.blog.hard");
    assert!(expected.starts_with("at most 1"), "{expected}");
    let (field, expected) = Farm::refusal(farm.add("wiki", [1, 1, 1], 1));
    assert_eq!(field, "balancers", "{expected}");
    let absent = BalancerPlace::HaProxy { socket: "/nonexistent".into(), backend: "blog".into() };
    let spec = SiteSpec { balancers: vec![absent], ..farm.spec("blog", [1, 1, 1], 1) };
    let (field, expected) = Farm::refusal(farm.world.client().add_site(&spec));
    assert!(field == "balancers" && expected.contains("cannot be reached"), "{field}: {expected}");
    let none = SiteSpec { cpu_ppm: None, ..farm.spec("blog", [1, 1, 1], 1) };
    assert_eq!(Farm::refusal(farm.world.client().add_site(&none)).0, "cpu_ppm");
    let node = r#"{ "key": "k", "request": { "ask": { "site-node":
        { "site": "shop", "node": "n2", "cpu_ppm": 1000 } } } }"#;
    let answer = farm.world.request("POST", "/v1/reservations", node);
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("sites their nodes itself"),
        "{answer}"
    );
    let path = r#"{ "name": "blog", "guarantee": { "hard": 1, "soft": 1, "max": 1 }, "priority": 1,
        "cpu_ppm": 1000, "balancers": ["varnish:/etc/blog"] }"#;
    let answer = farm.world.request("PUT", "/v1/sites/blog", path);
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("haproxy:SOCKET/BACKEND"),
        "{answer}"
    );
    let blog: Name = "blog".parse().unwrap();
    let (field, expected) = Farm::refusal(farm.world.client().remove_site(&blog));
    assert_eq!((field.as_str(), expected.as_str()), ("site", "one of shop"), "not recorded");
}

#[test]
fn a_request_that_does_not_end_holds_its_node_up_as_long_as_the_site_says_and_that_is_told() {
    let farm = Farm::new(1, &["shop"]);
    let client = farm.world.client();
    let drain_most_nanos = Some(Nanos::from_millis(300));
    client.add_site(&SiteSpec { drain_most_nanos, ..farm.spec("shop", [1, 1, 1], 1) }).unwrap();
    wait("its guarantee", || farm.nodes_of("shop").len() == 1);
    farm.nodes[0].hold(true);
    let load = Load::start(&farm.haproxy.sites, 40.0);
    wait("the node works", || farm.nodes[0].working() > 0);
    client.remove_site(&"shop".parse().unwrap()).unwrap();
    wait("the move is told", || farm.overview().moves_unfinished == 1);
    assert!(farm.nodes[0].working() > 0, "it works on what it had");
    let moved = farm.overview().moves.pop_back().unwrap();
    let left = moved.unfinished.unwrap();
    assert!(left.in_flight > 0 && left.going_on.is_empty(), "{left:?}");
    assert_eq!((moved.to, moved.failure), (None, None));
    let page = farm.world.request("GET", "/metrics", "");
    assert!(page.contains("keeptime_site_moves_unfinished_total 1"), "{page}");
    wait("the site is gone", || farm.overview().sites.is_empty());
    farm.nodes[0].hold(false);
    load.end();
}

// Goal: how much CPU one site asks for keeps no other from nodes that have enough for that one. Method: jobs have so much of
// all nodes that there is enough for one of two sites.
#[test]
fn a_site_gets_nodes_that_have_enough_for_it_whatever_another_asks_for() {
    let farm = Farm::new(3, &["shop", "blog"]);
    let client = farm.world.client();
    let job = client.reserve("job".parse().unwrap(), request(3, 40, 0, 600)).unwrap();
    let cpu_ppm = Some(CpuPpm::from_percent(80));
    client.add_site(&SiteSpec { cpu_ppm, ..farm.spec("blog", [1, 1, 1], 10) }).unwrap();
    farm.add("shop", [2, 2, 2], 1).unwrap();
    wait("there is room for the shop", || farm.nodes_of("shop").len() == 2);
    assert!(farm.nodes_of("blog").is_empty(), "there is none for the blog");
    client.cancel(job.handle).unwrap();
    wait("there is room for the blog", || farm.nodes_of("blog").len() == 1);
    assert_eq!(farm.nodes_of("shop").len(), 2);
}

#[test]
fn nodes_of_jobs_are_not_taken_and_jobs_give_them_back_to_sites() {
    let farm = Farm::new(2, &["shop"]);
    let client = farm.world.client();
    let job = client.reserve("job".parse().unwrap(), request(1, 80, 0, 600)).unwrap();
    farm.add("shop", [1, 2, 2], 1).unwrap();
    wait("its guarantee", || farm.nodes_of("shop").len() == 1);
    let flood = Load::start(&farm.haproxy.sites, 75.0);
    wait("the flood is seen", || {
        farm.overview().sites[0].load.is_some_and(|load| load.arrivals_per_second > 25.0)
    });
    assert_eq!(client.reservation(job.handle).unwrap().state, State::Active);
    assert_eq!(farm.nodes_of("shop").len(), 1, "the other node is the job's");
    client.cancel(job.handle).unwrap();
    wait("the shop has both", || farm.nodes_of("shop").len() == 2);
    assert_none_lost(&flood.end());
}
