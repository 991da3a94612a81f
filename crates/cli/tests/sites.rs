//! `keeptime site` as people use it: the program, a broker and agents in processes of their own, and real
//! balancers. The nodes' servers are threads, each of which answers one request after the other.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../balancers/tests/world/mod.rs"]
mod balancers;
mod process;

use balancers::{
    HaProxyDaemon, Load, Node, apache, assert_none_lost, haproxy, nginx, port, wait_until,
};
use keeptime_balancers::balancer::Balancer;
use keeptime_balancers::traffic::{Observed, Traffic};
use keeptime_broker::wire::{MoveView, Overview, Second};
use keeptime_model::name::Name;
use nix::sys::signal::Signal;
use process::{Broker, KEEPTIME, said};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NODES: u8 = 4;
const SITES: [&str; 2] = ["shop", "blog"];
/// Long enough that a drain can be watched.
const ANSWER_AFTER: Duration = Duration::from_millis(100);

/// Four nodes behind an HAProxy that has two sites.
struct Cluster {
    broker: Broker,
    agents: Vec<Child>,
    haproxy: HaProxyDaemon,
    nodes: Vec<Node>,
}

impl Cluster {
    fn new() -> Self {
        let port = port();
        let node = |number| {
            let at = (address(number), port).into();
            Node::single_at(at, &format!("n{number}"), ANSWER_AFTER)
        };
        let nodes: Vec<_> = (1..=NODES).map(node).collect();
        let haproxy = haproxy(&SITES, &nodes.iter().collect::<Vec<_>>());
        let broker = Broker::of(&topology());
        let agents = (1..=NODES).map(|number| agent(&broker, &format!("n{number}"))).collect();
        let cluster = Self { broker, agents, haproxy, nodes };
        cluster.wait_for_agents();
        cluster
    }

    fn wait_for_agents(&self) {
        wait_until("all agents are there", || {
            let nodes = self.broker.client().nodes(None);
            nodes.is_ok_and(|nodes| nodes.nodes.iter().all(|node| node.connected))
        });
    }

    /// `keeptime site …`: its exit code, and what it said.
    fn site(&self, words: &[&str]) -> (i32, String) {
        let output = self.broker.keeptime(&[&["site"][..], words].concat(), None);
        (output.status.code().unwrap(), said(&output))
    }

    fn add(&self, site: &str, [hard, soft, max, priority]: [&str; 4]) -> (i32, String) {
        let backend = format!("haproxy:{}/{site}", self.haproxy.socket.display());
        let guarantee = ["--hard", hard, "--soft", soft, "--max", max, "--priority", priority];
        let rest = ["--cpu", "50%", "--backend", &backend];
        self.site(&[&["add", site][..], &guarantee, &rest].concat())
    }

    fn top(&self) -> Overview {
        let (code, text) = self.site(&["top", "--json"]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Which nodes each site has, by the record.
    fn recorded(&self) -> BTreeMap<String, Vec<Name>> {
        let sites = self.top().sites.into_iter();
        sites.map(|site| (site.spec.name.to_string(), site.nodes)).collect()
    }

    fn count(&self, site: &str) -> usize {
        self.recorded().get(site).map_or(0, Vec::len)
    }

    fn observed(&self, site: &str) -> Observed {
        self.haproxy.balancer(site).observe().unwrap()
    }

    /// Which nodes get requests of `site`, by its balancer.
    fn serving(&self, site: &str) -> Vec<Name> {
        serving(self.observed(site))
    }

    /// Two sites with a node each, of which the blog then gets the spares since it is flooded.
    fn with_busy_blog(&self) {
        assert_eq!(self.add("blog", ["1", "1", "3", "1"]).0, 0);
        assert_eq!(self.add("shop", ["1", "3", "3", "10"]).0, 0);
        wait_until("hard guarantees", || SITES.iter().all(|site| self.serving(site).len() == 1));
    }

    /// The blog is flooded until it has the spares, and from then on has what one node can answer.
    fn flood_the_blog(&self) -> [Load; 2] {
        let flood = Load::start(&self.haproxy.sites[1..], 24.0);
        wait_until("the blog has the spares", || self.serving("blog").len() == 3);
        [flood, Load::start(&self.haproxy.sites[1..], 4.0)]
    }

    /// Requests that nodes have answered.
    fn answered(&self) -> u64 {
        self.nodes.iter().map(Node::answered).sum()
    }

    /// Waits for the last answers: all that was sent was answered, by one node and once.
    fn end(&self, loads: impl IntoIterator<Item = Load>) {
        let loads: Vec<_> = loads.into_iter().collect();
        loads.iter().for_each(Load::stop);
        let sent: u64 = loads.into_iter().map(|load| assert_none_lost(&load.end())).sum();
        // A node counts when it has answered.
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.answered() < sent && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.answered(), sent, "answered by nodes, and sent: each is counted once");
    }

    /// The nodes of `site` keep what they work on, and those of others do not.
    fn hold(&self, site: &str) {
        let names = self.serving(site);
        self.nodes.iter().for_each(|node| node.hold(names.contains(&node.server.name)));
    }

    /// Stops the broker when a node of `site` drains that is held and works on a request, lets the node
    /// end it, and kills the broker: after the drain, before the switch. Tells which node.
    fn kill_between_drain_and_switch(&mut self, site: &str) -> Name {
        let mut drained = None;
        let drains = |observed: Observed| {
            let mut servers = observed.servers.into_iter();
            servers.find(|(_, seen)| seen.traffic == Traffic::Drain && seen.in_flight > 0)
        };
        wait_until("a node that works drains", || {
            if drains(self.observed(site)).is_none() {
                return false;
            }
            self.broker.signal(Signal::SIGSTOP);
            drained = drains(self.observed(site)).map(|(node, _)| node);
            if drained.is_none() {
                self.broker.signal(Signal::SIGCONT);
            }
            drained.is_some()
        });
        let node = drained.unwrap();
        self.nodes.iter().for_each(|node| node.hold(false));
        wait_until("it is drained", || self.observed(site).servers[&node].in_flight == 0);
        self.broker.kill();
        assert_eq!(self.observed(site).servers[&node].traffic, Traffic::Drain);
        node
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn serving(observed: Observed) -> Vec<Name> {
    let on = observed.servers.into_iter().filter(|(_, s)| s.traffic.is_on());
    on.map(|(node, _)| node).collect()
}

/// Looks at the balancer again and again until it is `over`; tells how often, and how often a site had
/// no node, less than its hard guarantee.
fn watch(haproxy: &HaProxyDaemon, over: &Arc<AtomicBool>) -> JoinHandle<(u32, u32)> {
    let (mut balancers, over) = (SITES.map(|site| haproxy.balancer(site)), Arc::clone(over));
    std::thread::spawn(move || {
        let (mut looks, mut below) = (0, 0);
        while !over.load(Ordering::SeqCst) {
            for balancer in &mut balancers {
                looks += 1;
                below += u32::from(serving(balancer.observe().unwrap()).is_empty());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        (looks, below)
    })
}

/// Nodes differ in their addresses, and their servers listen at one port.
fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, number)
}

fn topology() -> String {
    let mut text = String::from("name = \"star\"\nswitches = [{ name = \"s1\" }]\n");
    for number in 1..=NODES {
        let address = address(number);
        writeln!(text, "[[nodes]]\nname = \"n{number}\"\ncpu = \"100 %\"\naddress = \"{address}\"")
            .unwrap();
    }
    for number in 1..=NODES {
        let rate = "rate = \"100 Mbit/s\"";
        writeln!(text, "[[links]]\nbetween = [\"n{number}\", \"s1\"]\n{rate}").unwrap();
    }
    text
}

/// An agent without a kernel to enforce anything.
fn agent(broker: &Broker, node: &str) -> Child {
    let at = |end: &str| broker.directory.path().join(format!("{node}.{end}"));
    let text = format!(
        "node = {node:?}\nsocket = {:?}\nassignments = {:?}\nbroker = {:?}\ndevice = \"eth0\"\n\
         rate = \"100 Mbit/s\"\ncpu = \"100 %\"\n",
        at("sock"),
        at("json"),
        broker.config.agents,
    );
    fs::write(at("toml"), text).unwrap();
    let mut command = Command::new(KEEPTIME);
    command.args(["agent", "run", "--config"]).arg(at("toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn the_commands_share_nodes_among_sites_and_lose_no_post() {
    let cluster = Cluster::new();
    assert_eq!(cluster.site(&["list"]), (0, "no site; `keeptime site add` adds one\n".into()));
    cluster.with_busy_blog();
    let shop_past = || -> Vec<Second> {
        let sites = cluster.top().sites.into_iter();
        sites.filter(|site| site.spec.name.as_str() == "shop").flat_map(|site| site.past).collect()
    };
    // What is told of a second is how it ended: moves within one would leave no trace of what was before.
    wait_until("a second with one node of the shop is over", || {
        shop_past()
            .split_last()
            .is_some_and(|(_, over)| over.iter().any(|second| second.nodes == 1))
    });
    let [flood, blog] = cluster.flood_the_blog();
    flood.stop();
    let shop = Load::start(&cluster.haproxy.sites[..1], 25.0);
    wait_until("the shop has its soft guarantee, and the blog its hard one", || {
        (cluster.count("shop"), cluster.count("blog")) == (3, 1)
    });
    let is_taken =
        |moved: &MoveView| moved.from.is_some() && moved.to == Some("shop".parse().unwrap());
    let taken: Vec<_> = cluster.top().moves.into_iter().filter(is_taken).collect();
    let is_why = |moved: &MoveView| moved.why == "shop needs more, below its soft guarantee";
    assert!(taken.len() >= 2 && taken.iter().all(is_why), "{taken:?}");
    assert!(taken.iter().all(|moved| moved.failure.is_none()), "{taken:?}");
    // On a busy machine the blog may seem to need one more for a moment.
    wait_until("all of it is told", || {
        let (code, text) = cluster.site(&["top"]);
        code == 0 && text.contains("shop: 3 nodes (") && text.contains(": blog > shop in ")
    });
    let (_, text) = cluster.site(&["top"]);
    assert!(text.contains("shop, nodes:    |") && text.contains("shop, requests: |"), "{text}");
    let past = shop_past();
    let had = |nodes: u32| past.iter().any(|second| second.nodes == nodes);
    assert!(had(1) && had(3), "{past:?}");
    assert!(past.iter().any(|second| second.requests > Some(0)), "{past:?}");
    cluster.end([flood, blog, shop]);

    // The shop goes on while the blog is removed.
    let shop = Load::start(&cluster.haproxy.sites[..1], 15.0);
    let (code, text) = cluster.site(&["remove", "blog"]);
    assert_eq!((code, text.contains("is removed when")), (0, true), "{text}");
    wait_until("the blog is gone", || !cluster.recorded().contains_key("blog"));
    assert!(cluster.serving("blog").is_empty());
    assert_none_lost(&shop.end());
}

#[test]
fn a_broker_killed_between_drain_and_switch_leaves_each_node_to_one_site_and_loses_no_post() {
    let mut cluster = Cluster::new();
    cluster.with_busy_blog();
    let [flood, blog] = cluster.flood_the_blog();
    let works = |node: &Node| node.working() > 0;
    cluster.hold("blog");
    wait_until("all work", || cluster.nodes.iter().filter(|node| works(node)).count() >= 3);
    // More than nodes answer would be waited for to the end, and nobody would see any sooner who answers it.
    flood.stop();
    let shop = Load::start(&cluster.haproxy.sites[..1], 25.0);
    let node = cluster.kill_between_drain_and_switch("blog");
    // Nobody has told the node to serve the shop, and nobody will who does not know the record.
    assert!(SITES.iter().all(|site| !cluster.serving(site).contains(&node)));
    assert!(SITES.iter().all(|site| !cluster.serving(site).is_empty()), "hard guarantees");

    let over = Arc::new(AtomicBool::new(false));
    let watch = watch(&cluster.haproxy, &over);
    cluster.broker.start();
    wait_until("the node serves again", || {
        SITES.iter().any(|site| cluster.serving(site).contains(&node))
    });
    wait_until("the shop has its soft guarantee", || cluster.count("shop") == 3);
    over.store(true, Ordering::SeqCst);
    let (looks, below) = watch.join().unwrap();
    assert!(looks > 10 && below == 0, "below a hard guarantee at {below} of {looks} looks");
    wait_until("balancers follow the record, and each node serves one site", || {
        let recorded = cluster.recorded();
        let mut served: Vec<_> = recorded.values().flatten().cloned().collect();
        served.sort();
        served.dedup();
        assert_eq!(served.len(), recorded.values().flatten().count(), "{recorded:?}");
        let follow = |site: &str| {
            let mut nodes = recorded[site].clone();
            nodes.sort();
            nodes == cluster.serving(site)
        };
        served.len() == usize::from(NODES) && SITES.iter().all(|site| follow(site))
    });
    cluster.end([flood, blog, shop]);
}

#[test]
fn a_site_behind_balancers_of_three_kinds_has_its_nodes_at_all_of_them() {
    let cluster = Cluster::new();
    let nodes: Vec<_> = cluster.nodes.iter().collect();
    let (nginx, apache) = (nginx(&["shop"], &nodes, "0"), apache(&["shop"], &nodes));
    let backends = [
        format!("haproxy:{}/shop", cluster.haproxy.socket.display()),
        format!("nginx:{}/shop@{}", nginx.configuration.display(), nginx.logs[0]),
        format!("apache:http://{}/balancer-manager/shop", apache.sites[0]),
    ];
    let port = nodes[0].server.address.port().to_string();
    let site = ["add", "shop", "--hard", "1", "--soft", "3", "--cpu", "50%", "--port", &port];
    let backends = backends.iter().flat_map(|place| ["--backend", place]);
    let (code, text) = cluster.site(&site.into_iter().chain(backends).collect::<Vec<_>>());
    assert_eq!(code, 0, "{text}");
    let have = |count: usize| {
        let file = fs::read_to_string(nginx.configuration.with_file_name("shop.upstream"));
        let in_nginx = file.unwrap().matches("weight=").count();
        let in_apache = serving(apache.balancer("shop").observe().unwrap()).len();
        [cluster.serving("shop").len(), in_nginx, in_apache] == [count; 3]
    };
    wait_until("its hard guarantee", || have(1));
    let sites = [cluster.haproxy.sites[0], nginx.sites[0], apache.sites[0]];
    let load = Load::start(&sites, 24.0);
    wait_until("its soft guarantee", || cluster.count("shop") == 3 && have(3));
    let top = cluster.top();
    assert!(top.sites[0].problems.is_empty(), "{top:?}");
    assert_none_lost(&load.end());
}

#[test]
fn what_cannot_be_kept_is_refused_in_words() {
    let cluster = Cluster::new();
    assert_eq!(cluster.add("shop", ["2", "2", "2", "1"]).0, 0);
    let (code, text) = cluster.add("blog", ["3", "3", "3", "1"]);
    assert!(code == 64 && text.contains("sites.blog.hard") && text.contains("at most 2"), "{text}");
    let (code, text) = cluster.add("wiki", ["1", "1", "1", "1"]);
    assert!(code == 64 && text.contains("balancers"), "{code}: {text}");
    let absent = ["--hard", "1", "--cpu", "50%", "--backend", "haproxy:/nonexistent/blog"];
    let (code, text) = cluster.site(&[&["add", "blog"][..], &absent].concat());
    assert!(code == 64 && text.contains("cannot be reached"), "{code}: {text}");
    let unknown = ["--hard", "1", "--cpu", "50%", "--backend", "varnish:/run/blog"];
    let (code, text) = cluster.site(&[&["add", "blog"][..], &unknown].concat());
    assert!(code == 64 && text.contains("haproxy:"), "{code}: {text}");
    let (code, text) = cluster.site(&["remove", "blog"]);
    assert!(code == 64 && text.contains("one of shop"), "{code}: {text}");
    // What is shown is of the last pass.
    let sites = || {
        let json = cluster.site(&["list", "--json"]);
        serde_json::from_str::<Overview>(&json.1).unwrap().sites
    };
    wait_until("the site that was added is shown", || !sites().is_empty());
    assert_eq!(sites().len(), 1, "what was refused is not there");
}
