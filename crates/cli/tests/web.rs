//! A lab with web servers: real balancers in front of pages that PHP computes from a database.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime::web::{SitePlaces, Web};
use keeptime_agent::client::Client;
use keeptime_lab::{FRONT_END, Labs};
use keeptime_linux::testing::skip;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use world::{KEEPTIME, PATIENCE, World, assert_code, said, wait};

/// Where each site is, by the balancers in the order HAProxy, nginx, Apache: address, and words for the broker.
fn sites(world: &World) -> Vec<[(String, String); 3]> {
    let labs = Labs::of_this_user();
    let lab = labs.open(&world.name).unwrap();
    let names = ["shop", "blog"].map(|name| name.parse().unwrap());
    let web = Web::of(&lab, &names);
    let of = |site: &SitePlaces| {
        let places = web.balancers(site).map(|place| place.to_string());
        let addresses = [site.haproxy, site.nginx, site.apache].map(|at| at.to_string());
        let both = addresses.into_iter().zip(places).collect::<Vec<_>>();
        <[_; 3]>::try_from(both).unwrap()
    };
    web.sites.iter().map(of).collect()
}

/// `keeptime load` on the lab's front end.
fn load(world: &World, words: &[&str]) -> Child {
    let exec = ["lab", "exec", world.name.as_str(), FRONT_END, KEEPTIME, "load", "--json"];
    let mut command = world.keeptime(&[&exec[..], words].concat());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// How many orders it sent. All of them were answered.
fn all_answered(load: Child) -> u64 {
    let output = load.wait_with_output().unwrap();
    assert_code(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts = &report["all"];
    assert!(
        counts["answered"] == counts["intended"] && counts["intended"].as_u64() > Some(0),
        "{report}"
    );
    counts["answered"].as_u64().unwrap()
}

/// The body of a page as the front end gets it; nothing if there is none yet.
fn get(world: &World, address: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let address: SocketAddr = address.parse().unwrap();
    let network = Labs::of_this_user().open(&world.name).unwrap().network(FRONT_END).unwrap();
    let answer = network.run(move || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        std::io::read_to_string(stream)
    });
    let answer = answer.unwrap().unwrap_or_default();
    let body = answer.strip_prefix("HTTP/1.1 200").and_then(|rest| rest.split_once("\r\n\r\n"));
    body.map_or(String::new(), |(_, body)| body.into())
}

fn top(world: &World) -> Value {
    serde_json::from_str(&world.run(&["site", "top", "--json"], 0)).unwrap()
}

fn node_count(world: &World, site: &str) -> usize {
    let top = top(world);
    let mut sites = top["sites"].as_array().unwrap().iter();
    let found = sites.find(|other| other["spec"]["name"] == site);
    found.and_then(|site| site["nodes"].as_array()).map_or(0, Vec::len)
}

/// Processes on each node that count to a site's reservation without having been started for it.
fn bound(world: &World) -> Vec<usize> {
    let status = |node| Client::connect(&world.socket(node)).unwrap().status().unwrap();
    let count = |node| status(node).jobs.iter().map(|job| job.borrowed.len()).sum();
    ["n1", "n2", "n3"].map(count).into()
}

/// Processes of the front end's daemons.
fn daemons(world: &World) -> BTreeSet<i32> {
    let groups = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let roots = groups.lines().filter(|line| line.contains(" - cgroup"));
    let roots = roots.filter_map(|line| line.split(' ').nth(4));
    let files =
        roots.map(|root| Path::new(root).join("keeptime").join(format!("_lab.{}", world.name)));
    let files = files.map(|group| group.join(FRONT_END).join("cgroup.procs"));
    let texts = files.filter_map(|file| fs::read_to_string(file).ok());
    texts.flat_map(|text| text.lines().map(|id| id.parse().unwrap()).collect::<Vec<_>>()).collect()
}

fn is_alive(process: &i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Other users of this machine do not reach the database, which is root; and for whoever does reach it, it reads and
/// writes no file but those of one directory.
fn assert_database_is_closed(world: &World) {
    let web = Web::of(&Labs::of_this_user().open(&world.name).unwrap(), &[]);
    let directory = web.database().parent().unwrap().to_path_buf();
    let mode = fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "{}", directory.display());
    let line = |process: i32| fs::read_to_string(format!("/proc/{process}/cmdline"));
    let lines: Vec<_> = daemons(world).into_iter().filter_map(|it| line(it).ok()).collect();
    let database = lines.iter().find(|line| line.contains("--skip-grant-tables")).unwrap();
    let files = format!("--secure-file-priv={}/", directory.display());
    assert!(database.contains(&files), "{database}");
}

#[test]
fn real_web_servers_share_the_nodes_of_a_lab() {
    if let Err(error) = Web::check_programs() {
        return skip(&["web".to_owned()], &error.to_string());
    }
    let shape = ["--nodes", "3", "--web", "shop,blog"];
    let Some(world) = World::of("web", &shape, 20, None) else { return };
    let sites = sites(&world);
    let [shop, blog] = &sites[..] else { panic!("{sites:?}") };
    assert_database_is_closed(&world);
    let backends = shop.iter().flat_map(|(_, place)| ["--backend", place]).collect::<Vec<_>>();
    let add = |words: &[&str], backends: &[&str]| {
        world.run(&[&["site", "add", "--hard", "1"], words, backends].concat(), 0)
    };
    // A service that is on no node: none of them is the site's, and it is told why.
    let blog_place = ["--backend", blog[0].1.as_str()];
    add(&["blog", "--app", "ngnix@blog"], &blog_place);
    wait("why", PATIENCE, || {
        let top = top(&world);
        let mut moves = top["moves"].as_array().unwrap().iter();
        let why = "service ngnix@blog has no process on this node";
        moves.any(|moved| moved["failure"].as_str().is_some_and(|text| text.contains(why)))
    });
    assert_eq!(node_count(&world, "blog"), 0);
    // One site by three balancers at once, which all are told the same; its servers have all of a node's CPU, the
    // other's share what jobs leave.
    add(
        &["shop", "--soft", "2", "--priority", "2", "--app", "nginx", "--app", "php-fpm"],
        &backends,
    );
    add(&["blog", "--soft", "2", "--cpu", "1%"], &blog_place);
    for (at, _) in shop {
        wait("a page behind each balancer", PATIENCE, || {
            get(&world, at, "/page").contains("in stock")
        });
    }
    wait("files", PATIENCE, || get(&world, &blog[0].0, "/1.html").len() == 8 * 1_024);
    // A node that serves nobody tells by itself how busy it is.
    wait("counters of a spare", PATIENCE, || {
        let top = top(&world);
        let mut spares = top["nodes"].as_array().unwrap().iter().filter(|n| n["site"].is_null());
        spares.any(|node| node["known_from"] == "counters")
    });
    let pages: Vec<_> = shop.iter().map(|(at, _)| format!("http://{at}/page")).collect();
    // Every order that was answered is in the database, once.
    let words =
        [&pages[0], &pages[1], &pages[2], "--rate", "30", "--duration", "3s", "--post", "64"];
    let sent = all_answered(load(&world, &words));
    let orders = || get(&world, &shop[0].0, "/page?orders").parse::<u64>().unwrap();
    assert_eq!(orders(), sent);
    // More than a node answers: the site has another one before it is over.
    let heavy = format!("{}?work=200000", pages[0]);
    let words = [&heavy, "--rate", "20", "--duration", "2s", "--post", "64", "--timeout", "60s"];
    let before = orders();
    let heavy = load(&world, &words);
    wait("a second node", PATIENCE, || node_count(&world, "shop") == 2);
    let sent = all_answered(heavy);
    assert_eq!(orders() - before, sent);
    let served = bound(&world);
    assert_eq!(
        served.iter().filter(|count| **count >= 4).count(),
        node_count(&world, "shop"),
        "{served:?}"
    );
    world.run(&["site", "remove", "shop"], 0);
    wait("its servers are nobody's", PATIENCE, || bound(&world).iter().all(|count| *count == 0));
    // They go on, for another site.
    assert_eq!(get(&world, &blog[0].0, "/1.html").len(), 8 * 1_024);
    let processes = daemons(&world);
    assert!(processes.len() >= 6 && processes.iter().all(is_alive), "{processes:?}");
    world.run(&["lab", "down", world.name.as_str()], 0);
    assert!(!processes.iter().any(is_alive) && daemons(&world).is_empty());
}

#[test]
fn sites_that_make_no_sense_are_refused_before_anything_is_made() {
    let up = |web: &str| {
        let words = ["lab", "up", "web-bad", "--cpu", "1 %", "--web", web];
        std::process::Command::new(KEEPTIME).args(words).output().unwrap()
    };
    for (web, expected) in [("shop,shop", "each site once"), ("Shop!", "--web")] {
        let output = up(web);
        assert_code(&output, 64);
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
}
