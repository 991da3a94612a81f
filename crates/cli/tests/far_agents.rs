//! A lab whose agents and users come over its network with TLS: reserved, enforced and given back as
//! where they come over Unix sockets, also when broker and agents are killed and certificates expire and are renewed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime::brokers;
use keeptime_lab::{Exec, FRONT_END};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;
use world::sending::Sending;
use world::{KEEPTIME, PAIR, World, assert_code, said, wait};

const LIMIT: Duration = Duration::from_secs(60);

struct Far {
    world: World,
    pki: PathBuf,
}

impl Far {
    fn new(tag: &str) -> Option<Self> {
        let world = World::of(tag, &["--nodes", "2", "--tls"], 30, None)?;
        let pki = world.lab().directory().join("pki");
        let far = Self { world, pki };
        far.certificates(&["--users", "ada,eve"]);
        Some(far)
    }

    fn certificates(&self, words: &[&str]) {
        let mut command = self.world.keeptime(&["broker", "certificates"]);
        assert_code(&command.arg(&self.pki).args(words).output().unwrap(), 0);
    }

    /// A command on a node, as `user` over the network.
    fn on_node(&self, user: &str, words: &[&str]) -> Output {
        let own = |end: &str| self.pki.join(format!("users/{user}{end}.pem")).display().to_string();
        let ca = self.pki.join("ca.pem").display().to_string();
        let url = format!("https://{}:7411", self.world.lab().front_end());
        let exec = ["lab", "exec", self.world.name.as_str(), "n1", "--", KEEPTIME];
        let place = [
            "--broker",
            &url,
            "--ca",
            &ca,
            "--certificate",
            &own(""),
            "--certificate-key",
            &own("-key"),
        ];
        self.world.keeptime(&[&exec, words, &place].concat()).output().unwrap()
    }

    fn broker(&self) -> Pid {
        let socket = brokers::socket(self.world.lab().directory());
        let text = fs::read_to_string(socket.with_file_name("broker.pid")).unwrap();
        Pid::from_raw(text.split(' ').next().unwrap().parse().unwrap())
    }

    fn wait_for_agents(&self) {
        wait("all agents", LIMIT, || brokers::wait_for_agents(&self.world.lab()).is_ok());
    }
}

#[test]
fn what_is_reserved_over_the_network_is_enforced_by_every_kernel() {
    let Some(far) = Far::new("far") else { return };
    let world = &far.world;
    let config = world.lab().node_directory(&"n1".parse().unwrap()).join("agent.toml");
    let config = fs::read_to_string(config).unwrap();
    assert!(config.contains("[broker_tls]") && !config.contains("agents.sock"), "{config}");

    let reserve = [&["reserve"], &PAIR[..], &["--for", "10min"]].concat();
    let output = far.on_node("ada", &reserve);
    assert_code(&output, 0);
    assert!(said(&output).starts_with("r1 active, ada, "), "{}", said(&output));
    for node in ["n1", "n2"] {
        assert!(world.has_tree(node), "the kernel of {node} enforces it");
    }
    assert!(world.statuses().iter().all(|status| World::promised(status) == 20_000_000));
    let other = far.on_node("eve", &["cancel", "r1"]);
    assert_code(&other, 2);
    assert!(said(&other).contains("r1 belongs to ada"), "{}", said(&other));

    // An agent that is killed comes back with a renewed certificate, and takes up what it holds.
    let n1 = far.pki.join("nodes/n1.pem");
    let before = fs::read(&n1).unwrap();
    far.certificates(&["--nodes", "n1"]);
    assert_ne!(fs::read(&n1).unwrap(), before);
    world.kill_agent("n1");
    assert!(world.has_tree("n1"), "the kernel goes on");
    world.start_agent("n1");
    far.wait_for_agents();
    assert!(said(&far.on_node("eve", &["show", "r1"])).starts_with("r1 active, ada"));

    assert_code(&far.on_node("ada", &["cancel", "r1"]), 0);
    wait("the end of it", LIMIT, || world.jobs().is_empty());
    wait("the end of its classes", LIMIT, || !world.has_tree("n1") && !world.has_tree("n2"));
}

#[test]
fn jobs_do_not_notice_that_a_broker_on_the_network_is_killed() {
    let Some(far) = Far::new("far9") else { return };
    let world = &far.world;
    let reserve = [&["reserve"], &PAIR[..], &["--for", "10min"]].concat();
    assert_code(&far.on_node("ada", &reserve), 0);
    kill(far.broker(), Signal::SIGKILL).unwrap();
    wait("the end of the broker", LIMIT, || !far.on_node("ada", &["list"]).status.success());
    let gone = far.on_node("ada", &["list"]);
    assert!(said(&gone).contains("does not answer"), "{}", said(&gone));
    assert!(world.has_tree("n1") && world.jobs().len() == 2);
    let config = brokers::socket(world.lab().directory()).with_file_name("broker.toml");
    let words = [KEEPTIME, "broker", "run", "--config", config.to_str().unwrap()];
    let null = || Some(fs::File::options().write(true).open("/dev/null").unwrap().into());
    let again = Exec::new(FRONT_END, words).with_stdio([None, null(), null()]);
    let again = world.lab().spawn(again).unwrap();
    far.wait_for_agents();
    let shown = far.on_node("ada", &["show", "r1"]);
    assert!(said(&shown).starts_with("r1 active, ada"), "{}", said(&shown));
    assert_code(&far.on_node("ada", &["cancel", "r1"]), 0);
    wait("the end of it", LIMIT, || world.jobs().is_empty() && !world.has_tree("n2"));
    kill(Pid::from_raw(again.pid()), Signal::SIGKILL).unwrap();
    again.wait().unwrap();
    assert_code(&world.keeptime(&["lab", "down"]).output().unwrap(), 0);
    assert!(world.processes().is_empty(), "{:?}", world.processes());
}

// Goal: whose certificate is over is told so and not let in, what is granted stays in force meanwhile, and renewed
// all is as before. Method: that of an agent expires while its job runs, and that of a user.
#[test]
fn a_certificate_that_expires_ends_a_connection_and_no_job() {
    let Some(far) = Far::new("past") else { return };
    let world = &far.world;
    far.certificates(&["--users", "eve", "--lasts", "1s"]);
    far.certificates(&["--nodes", "n1", "--lasts", "6s"]);
    world.kill_agent("n1");
    world.start_agent("n1");
    far.wait_for_agents();
    let reserve = [&["reserve"], &PAIR[..], &["--for", "10min"]].concat();
    assert_code(&far.on_node("ada", &reserve), 0);
    let mut job = Sending::start(world, "r1");
    wait("the end of eve's certificate", LIMIT, || {
        said(&far.on_node("eve", &["list"])).contains("eve.pem: it expired at 20")
    });

    let is_away = || {
        let nodes = world.broker().nodes(None).unwrap().nodes;
        nodes.iter().any(|node| node.name.as_str() == "n1" && !node.connected)
    };
    wait("the end of n1's certificate", LIMIT, is_away);
    wait("its agent to say so", LIMIT, || {
        let log = fs::read_to_string(world.agent_log("n1")).unwrap();
        log.contains("n1.pem: it expired at 20")
    });
    let now = ["reserve", "--nodes", "n1", "--cpu", "5%", "--for", "1min"];
    let refused = far.on_node("ada", &now);
    assert_code(&refused, 1);
    assert!(said(&refused).contains("not connected: n1"), "{}", said(&refused));
    job.assert_undisturbed();

    far.certificates(&["--nodes", "n1"]);
    far.certificates(&["--users", "eve"]);
    far.wait_for_agents();
    assert!(said(&far.on_node("eve", &["show", "r1"])).starts_with("r1 active, ada"));
    assert_code(&far.on_node("ada", &now), 0);
    job.assert_undisturbed();
    drop(job);
    assert_code(&far.on_node("ada", &["cancel", "r1"]), 0);
}
