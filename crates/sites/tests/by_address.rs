//! Controllers before a real nginx and a real Apache, which know nodes by their addresses.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../balancers/tests/world/mod.rs"]
mod balancers;
mod memory;

use balancers::{A_FIFTIETH, Load, Node, apache, assert_none_lost, nginx, port, wait_until};
use keeptime_model::name::Name;
use keeptime_model::site::{BalancerPlace, Guarantee, HostedSite, SiteSpec};
use keeptime_model::topology;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use keeptime_sites::controller::{Controller, Now};
use keeptime_sites::fronts;
use keeptime_sites::record::{NodeStanding, Standing};
use memory::Memory;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

const SITES: [&str; 2] = ["blog", "shop"];
const NODES: u8 = 3;

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, number)
}

/// Servers that listen at one port, each on an address of its own.
fn nodes(port: u16) -> Vec<Node> {
    let node = |number| {
        let at = (address(number), port).into();
        Node::single_at(at, &format!("n{number}"), A_FIFTIETH)
    };
    (1..=NODES).map(node).collect()
}

fn spec(site: &str, port: u16, place: BalancerPlace) -> SiteSpec {
    SiteSpec {
        name: site.parse().unwrap(),
        guarantee: Guarantee { hard: 1, soft: 2, max: 2 },
        priority: if site == "shop" { 10 } else { 1 },
        cpu_ppm: Some(CpuPpm::from_percent(10)),
        services: vec![],
        port,
        drain_most_nanos: None,
        balancers: vec![place],
    }
}

/// The shop has the first node, the blog the others.
fn standing(specs: &[SiteSpec]) -> Standing {
    let site = |number| Some(if number == 1 { "shop" } else { "blog" }.parse::<Name>().unwrap());
    let cpu = CpuPpm::from_percent(100);
    let node = |number| NodeStanding {
        name: format!("n{number}").parse().unwrap(),
        address: Some(address(number)),
        site: site(number),
        is_connected: true,
        is_out_of_service: false,
        cpu,
        cpu_free: cpu,
    };
    let hosted = |spec: &SiteSpec| HostedSite { spec: spec.clone(), is_leaving: false };
    Standing { sites: specs.iter().map(hosted).collect(), nodes: (1..=NODES).map(node).collect() }
}

fn topology_nodes() -> Vec<topology::Node> {
    let node = |number| topology::Node {
        name: format!("n{number}").parse().unwrap(),
        cpu: CpuPpm::from_percent(100),
        address: Some(address(number)),
        disk: None,
    };
    (1..=NODES).map(node).collect()
}

/// A shop that is flooded gets a node of the blog, and no POST is lost.
fn flood(specs: &[SiteSpec], shop: SocketAddr, blog: SocketAddr) {
    for spec in specs {
        fronts::check(spec, &topology_nodes()).unwrap();
    }
    let began = Instant::now();
    let record = Memory::default();
    record.0.lock().unwrap().standing = standing(specs);
    let mut controller = Controller::new(record.clone());
    let mut pass = || {
        let steady = Nanos::from(began.elapsed());
        let now = Now { steady, wall: WallTime::from_unix_nanos(steady.get()) };
        let idle = controller.pass(now).unwrap();
        let overview = controller.overview();
        assert!(overview.sites.iter().all(|site| site.problems.is_empty()), "{overview:?}");
        std::thread::sleep(idle);
        overview.sites.iter().all(|site| site.load.is_some())
    };
    // Told what is recorded, and looked at again.
    wait_until("both sites are heard of", &mut pass);
    let loads = [Load::start(&[blog], 8.0), Load::start(&[shop], 75.0)];
    wait_until("the shop has two", || {
        pass();
        assert!(record.count("blog") >= 1, "its hard guarantee");
        record.count("shop") == 2
    });
    assert_eq!((record.count("shop"), record.count("blog")), (2, 1));
    loads.iter().for_each(Load::stop);
    wait_until("the end of the loads", || {
        pass();
        loads.iter().all(Load::has_ended)
    });
    for load in loads {
        assert_none_lost(&load.end());
    }
    // Whose load ended last, and so has what nobody needs, is another thing on every machine.
    assert_eq!(record.count("shop") + record.count("blog"), usize::from(NODES));
}

#[test]
fn a_flooded_site_behind_an_apache_gets_a_node_and_no_post_is_lost() {
    let port = port();
    let nodes = nodes(port);
    let world = apache(&SITES, &nodes.iter().collect::<Vec<_>>());
    let place = |at: usize| {
        let (path, balancer) = ("/balancer-manager".into(), SITES[at].into());
        BalancerPlace::Apache { manager: world.sites[at], path, balancer }
    };
    let specs = [0, 1].map(|at| spec(SITES[at], port, place(at)));
    flood(&specs, world.sites[1], world.sites[0]);
}

#[test]
fn a_flooded_site_behind_an_nginx_gets_a_node_and_no_post_is_lost() {
    let port = port();
    let nodes = nodes(port);
    let world = nginx(&SITES, &nodes.iter().collect::<Vec<_>>(), "0");
    let place = |at: usize| {
        let (configuration, upstream) = (world.configuration.clone(), SITES[at].into());
        BalancerPlace::Nginx { configuration, upstream, log: world.logs[at] }
    };
    let specs = [0, 1].map(|at| spec(SITES[at], port, place(at)));
    flood(&specs, world.sites[1], world.sites[0]);
}

// Goal: nodes that leave a site together are told of together, since each change is a reload whose workers end before
// anything is drained. Method: a site that is removed while it has two nodes.
#[test]
fn nodes_that_leave_together_are_one_reload_of_nginx() {
    let port = port();
    let nodes = nodes(port);
    let world = nginx(&SITES, &nodes.iter().collect::<Vec<_>>(), "0");
    let place = |at: usize| {
        let (configuration, upstream) = (world.configuration.clone(), SITES[at].into());
        BalancerPlace::Nginx { configuration, upstream, log: world.logs[at] }
    };
    let specs = [0, 1].map(|at| spec(SITES[at], port, place(at)));
    let (began, record) = (Instant::now(), Memory::default());
    record.0.lock().unwrap().standing = standing(&specs);
    let mut controller = Controller::new(record.clone());
    let mut pass = || {
        let steady = Nanos::from(began.elapsed());
        let now = Now { steady, wall: WallTime::from_unix_nanos(steady.get()) };
        std::thread::sleep(controller.pass(now).unwrap());
    };
    (0..6).for_each(|_| pass());
    let file = world.configuration.with_file_name("blog.upstream");
    assert_eq!(fs::read_to_string(file).unwrap().matches("weight=").count(), 2);
    let before = world.reloads();
    record.0.lock().unwrap().standing.sites[0].is_leaving = true;
    wait_until("both nodes are spares", || {
        pass();
        record.count("blog") == 0
    });
    assert_eq!(world.reloads() - before, 1);
}

// Goal: a site whose balancers cannot be asked any more holds up no other one, and its nodes do not count as drained. Method:
// a topology that has lost its addresses while a site is removed.
#[test]
fn a_site_whose_nodes_have_lost_their_addresses_holds_up_no_other() {
    let log = SocketAddr::from((address(1), 5_140));
    let (configuration, upstream) = ("/nonexistent/nginx.conf".into(), "blog".into());
    let nginx = BalancerPlace::Nginx { configuration, upstream, log };
    let (socket, backend) = ("/nonexistent/socket".into(), "shop".into());
    let haproxy = BalancerPlace::HaProxy { socket, backend };
    let record = Memory::default();
    {
        let mut kept = record.0.lock().unwrap();
        kept.standing = standing(&[spec("blog", 80, nginx), spec("shop", 80, haproxy)]);
        kept.standing.sites[0].is_leaving = true;
        kept.standing.nodes.iter_mut().for_each(|node| node.address = None);
    }
    let mut controller = Controller::new(record.clone());
    for look in 0..10 {
        let steady = Nanos::from_millis(look * 50);
        let now = Now { steady, wall: WallTime::from_unix_nanos(steady.get()) };
        controller.pass(now).unwrap();
    }
    let problems: Vec<_> =
        controller.overview().sites.iter().map(|site| site.problems.join("; ")).collect();
    assert!(problems[0].contains("servers"), "{problems:?}");
    assert!(problems[1].contains("cannot be reached"), "{problems:?}");
    let asked = record.0.lock().unwrap().asked.clone();
    assert!(asked.is_empty(), "nobody knows what is in flight there: {asked:?}");
}

#[test]
fn a_balancer_that_lacks_a_node_or_its_address_is_refused() {
    let port = port();
    let nodes = nodes(port);
    let world = apache(&SITES, &nodes[..2].iter().collect::<Vec<_>>());
    let (path, balancer) = ("/balancer-manager".into(), "blog".into());
    let place = BalancerPlace::Apache { manager: world.sites[0], path, balancer };
    let spec = spec("blog", port, place);
    let mut cluster = topology_nodes();
    let refusal = |nodes: &[topology::Node]| fronts::check(&spec, nodes).unwrap_err().expected;
    assert!(refusal(&cluster).ends_with("it lacks n3"), "{}", refusal(&cluster));
    cluster[1].address = None;
    assert!(refusal(&cluster).contains("of n2 it does not"), "{}", refusal(&cluster));
    fronts::check(&spec, &topology_nodes()[..2]).unwrap();
}
