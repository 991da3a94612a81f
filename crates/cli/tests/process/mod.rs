//! A broker in a process of its own, with its files in a directory of its own.

#![allow(dead_code, reason = "every test program uses a part of it")]

use keeptime_broker::client::Client;
use keeptime_broker::config::Config;
use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub const KEEPTIME: &str = env!("CARGO_BIN_EXE_keeptime");
const TOPOLOGY: &str = "name = \"pair\"\nswitches = [{ name = \"s1\" }]\n\
    [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
    [[nodes]]\nname = \"n2\"\ncpu = \"100 %\"\naddress = \"10.0.0.2\"\n\
    [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n\
    [[links]]\nbetween = [\"n2\", \"s1\"]\nrate = \"100 Mbit/s\"\n";

pub struct Broker {
    pub directory: tempfile::TempDir,
    pub config: Config,
    process: Option<Child>,
}

impl Broker {
    pub fn new() -> Self {
        Self::of(TOPOLOGY)
    }

    pub fn of(topology: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Other users reach the socket.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("topology.toml"), topology).unwrap();
        let config = Config::in_directory(directory.path());
        fs::write(at("broker.toml"), config.to_toml()).unwrap();
        let mut broker = Self { directory, config, process: None };
        broker.start();
        broker
    }

    /// Starts it, and waits until it answers.
    pub fn start(&mut self) {
        let mut command = Command::new(KEEPTIME);
        command.args(["broker", "run", "--config"]).arg(self.directory.path().join("broker.toml"));
        self.process = Some(command.stderr(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        while self.client().nodes(None).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "the broker does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Stops it where it is, or lets it go on.
    pub fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().unwrap().id();
        kill(Pid::from_raw(i32::try_from(process).unwrap()), signal).unwrap();
    }

    pub fn client(&self) -> Client {
        Client::new(&self.config.socket).unwrap()
    }

    pub fn keeptime(&self, words: &[&str], user: Option<u32>) -> Output {
        let mut command = Command::new(KEEPTIME);
        command.args(words).arg("--broker").arg(&self.config.socket).current_dir("/");
        if let Some(user) = user {
            command.gid(user).uid(user);
        }
        command.output().unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// All that a command printed.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A tenth of a percent of one node for a minute, in a day.
pub fn small(from: WallTime) -> Request {
    let resources = Resources {
        nodes: NodeChoice::Any(1),
        cpu_ppm: CpuPpm::new(1_000),
        ..Resources::nothing()
    };
    Request {
        from_unix_nanos: Some(from),
        duration_nanos: Some(Nanos::from_secs(60)),
        ..Request::new(Ask::Resources(resources))
    }
}

pub fn tomorrow() -> WallTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    WallTime::from_unix_nanos((now.as_secs() + 86_400) * 1_000_000_000)
}
