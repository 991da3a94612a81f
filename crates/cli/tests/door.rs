//! The door over TCP with real processes: who is let in by what, what is told to those who are not, and
//! what happens when certificates expire, are renewed, and tokens are revoked while the broker runs.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_broker::config::{Config, PolicyFile};
use keeptime_broker::tcp::config::{Listen, Tcp};
use keeptime_credentials::tls::{AGENT, Client as Tls, HTTP, OwnFiles};
use keeptime_model::units::Nanos;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const KEEPTIME: &str = env!("CARGO_BIN_EXE_keeptime");
const LIMIT: Duration = Duration::from_secs(60);
const TOPOLOGY: &str = "name = \"pair\"\nswitches = [{ name = \"s1\" }]\n\
    [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
    [[nodes]]\nname = \"n2\"\ncpu = \"100 %\"\naddress = \"10.0.0.2\"\n\
    [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n\
    [[links]]\nbetween = [\"n2\", \"s1\"]\nrate = \"100 Mbit/s\"\n";
/// For an hour, in two.
const RESERVE: [&str; 9] =
    ["reserve", "--nodes", "1", "--cpu", "10%", "--from", "+2h", "--for", "1h"];

/// A broker with a door over TCP, certificates for its nodes and for ada and eve, and agents.
struct Door {
    directory: tempfile::TempDir,
    config: Config,
    processes: Vec<Child>,
}

impl Door {
    fn new() -> Self {
        Self::with_broker_certificate("90d")
    }

    fn with_broker_certificate(lasts: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("topology.toml"), TOPOLOGY).unwrap();
        let tcp = Tcp {
            address: Listen(free_port()),
            agents: Some(Listen(free_port())),
            certificate: at("pki/broker.pem"),
            key: at("pki/broker-key.pem"),
            client_ca: Some(at("pki/ca.pem")),
            revoked: Some(at("pki/revoked.pem")),
            tokens: Some(at("tokens.toml")),
        };
        let policy = PolicyFile { agent_lease: Nanos::from_secs(5), ..PolicyFile::default() };
        let tcp = Some(tcp);
        let config = Config { policy, tcp, ..Config::in_directory(directory.path()) };
        fs::write(at("broker.toml"), config.to_toml()).unwrap();
        let mut door = Self { directory, config, processes: vec![] };
        door.issue(&["--broker", "localhost,127.0.0.1", "--lasts", lasts]);
        let topology = door.at("topology.toml");
        door.issue(&["--topology", topology.to_str().unwrap(), "--users", "ada,eve"]);
        // The broker names the file: it has to be there.
        door.add_token("eve");
        let config = door.at("broker.toml");
        door.start(&["broker", "run", "--config", config.to_str().unwrap()], "broker.log");
        let is_up = |door: &Self| TcpStream::connect(door.tcp().address.0).is_ok();
        door.wait("the broker", || is_up(&door));
        door
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tcp(&self) -> &Tcp {
        self.config.tcp.as_ref().unwrap()
    }

    fn start(&mut self, words: &[&str], log: &str) {
        let log = File::create(self.at(log)).unwrap();
        let mut command = Command::new(KEEPTIME);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.processes.push(command.spawn().unwrap());
    }

    /// `keeptime broker certificates`, in the directory of this door.
    fn issue(&self, words: &[&str]) {
        let mut command = Command::new(KEEPTIME);
        let output = command.args(["broker", "certificates"]).arg(self.at("pki")).args(words);
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }

    /// Makes a token, and tells its name.
    fn add_token(&self, user: &str) -> String {
        let mut command = Command::new(KEEPTIME);
        command
            .args(["broker", "token", "add", user, "--out"])
            .arg(self.at(&format!("{user}.token")));
        let output = command.arg("--tokens").arg(self.at("tokens.toml")).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output).split(' ').nth(1).unwrap().to_owned()
    }

    fn revoke_token(&self, id: &str) {
        let mut command = Command::new(KEEPTIME);
        command.args(["broker", "token", "revoke", id, "--tokens"]).arg(self.at("tokens.toml"));
        assert!(command.output().unwrap().status.success());
    }

    /// A command that asks this broker over TCP, with nothing to show yet.
    fn ask(&self, words: &[&str]) -> Command {
        let mut command = Command::new(KEEPTIME);
        let port = self.tcp().address.0.port();
        command.args(words).arg("--broker").arg(format!("https://localhost:{port}"));
        command
            .arg("--ca")
            .arg(self.at("pki/ca.pem"))
            .env("XDG_CONFIG_HOME", self.directory.path());
        command
    }

    fn by_certificate(&self, user: &str, words: &[&str]) -> (i32, String) {
        let OwnFiles { certificate, key } = self.files(&format!("users/{user}"));
        let mut command = self.ask(words);
        told(command.arg("--certificate").arg(certificate).arg("--certificate-key").arg(key))
    }

    fn by_token(&self, user: &str, words: &[&str]) -> (i32, String) {
        told(self.ask(words).arg("--token-file").arg(self.at(&format!("{user}.token"))))
    }

    fn files(&self, name: &str) -> OwnFiles {
        let at = |end: &str| self.at(&format!("pki/{name}{end}.pem"));
        OwnFiles { certificate: at(""), key: at("-key") }
    }

    /// A connection to `address` on which these files are shown.
    fn secured(
        &self,
        address: SocketAddr,
        own: Option<&OwnFiles>,
        protocol: &[u8],
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let tls = Tls::read(&self.at("pki/ca.pem"), own, protocol).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(tls.config(), name).unwrap();
        StreamOwned::new(connection, plain(address))
    }

    /// An agent without a kernel to enforce anything.
    fn start_agent(&mut self, node: &str) {
        let OwnFiles { certificate, key } = self.files(&format!("nodes/{node}"));
        let text = format!(
            "node = {node:?}\nsocket = {:?}\nassignments = {:?}\ndevice = \"eth0\"\n\
             rate = \"100 Mbit/s\"\ncpu = \"100 %\"\n[broker_tls]\naddress = \"{}\"\n\
             certificate = {certificate:?}\nkey = {key:?}\nca = {:?}\n",
            self.at(&format!("{node}.sock")),
            self.at(&format!("{node}.json")),
            self.tcp().agents.unwrap().0,
            self.at("pki/ca.pem"),
        );
        let config = self.at(&format!("{node}.toml"));
        fs::write(&config, text).unwrap();
        let log = format!("{node}.log");
        self.start(&["agent", "run", "--config", config.to_str().unwrap()], &log);
    }

    fn is_connected(&self, node: &str) -> bool {
        let (_, text) = self.by_certificate("ada", &["nodes", "--json"]);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let nodes = value["nodes"].as_array().unwrap();
        nodes.iter().any(|found| found["name"] == node && found["connected"] == true)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            let log = || self.log("broker.log");
            assert!(start.elapsed() < LIMIT, "waited in vain for {what}; {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Nobody else listens there, most likely.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn plain(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn told(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    (output.status.code().unwrap(), said(&output))
}

/// All that is answered until the other end hangs up, however it does.
fn rest(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn users_are_who_their_certificate_or_token_says_and_change_what_is_theirs() {
    let door = Door::new();
    let (code, text) = door.by_certificate("ada", &RESERVE);
    assert!(code == 0 && text.starts_with("r1 granted, ada, "), "{text}");
    let (code, text) = door.by_token("eve", &RESERVE);
    assert!(code == 0 && text.starts_with("r2 granted, eve, "), "{text}");
    for words in [&["cancel", "r1"][..], &["modify", "r1", "--cpu", "5%"]] {
        for (code, text) in [door.by_token("eve", words), door.by_certificate("eve", words)] {
            assert!(code == 2 && text.contains("r1 belongs to ada"), "{text}");
        }
    }
    assert_eq!(door.by_certificate("ada", &["modify", "r1", "--cpu", "5%"]).0, 0);
    let port = door.tcp().address.0;
    let mut raw = door.secured(port, Some(&door.files("users/eve")), HTTP);
    raw.write_all(b"DELETE /v1/reservations/r1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    assert!(rest(&mut raw).starts_with("HTTP/1.1 403 "));

    let files = door.files("users/ada");
    let mut both = door.ask(&["list"]);
    both.arg("--certificate").arg(files.certificate).arg("--certificate-key").arg(files.key);
    let (code, text) = told(both.arg("--token-file").arg(door.at("eve.token")));
    assert!(code == 2 && text.contains("that of ada, and the token that of eve"), "{text}");
    let (code, text) = told(&mut door.ask(&["list"]));
    assert!(code == 64 && text.contains("a certificate with its key, or a token"), "{text}");

    // What need not be said each time.
    fs::create_dir(door.at("keeptime")).unwrap();
    let config = format!(
        "broker = \"https://localhost:{}\"\nca = \"../pki/ca.pem\"\ntoken_file = \"../eve.token\"\n",
        port.port()
    );
    fs::write(door.at("keeptime/client.toml"), config).unwrap();
    let mut plain = Command::new(KEEPTIME);
    plain.args(["cancel", "r2"]).env("XDG_CONFIG_HOME", door.directory.path());
    let (code, text) = told(plain.env_remove("KEEPTIME_LAB").env_remove("KEEPTIME_BROKER"));
    assert!(code == 0 && text.starts_with("r2 cancelled, eve"), "{text}");
}

// Goal: everybody learns as whom a broker knows them, and by what; who is not known learns why.
#[test]
fn whoami_tells_user_rights_and_what_they_are_known_by() {
    let door = Door::new();
    let told = |(code, text): (i32, String), user: &str, by: &str| {
        assert_eq!(code, 0, "{text}");
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&told["user"], &told["by"]), (&user.into(), &serde_json::json!([by])));
        assert!(told["broker"].as_str().unwrap().starts_with("https://"), "{told}");
        told["operator"].as_bool().unwrap()
    };
    let words = ["whoami", "--json"];
    assert!(!told(door.by_certificate("ada", &words), "ada", "certificate"));
    assert!(!told(door.by_token("eve", &words), "eve", "token"));
    let (_, text) = door.by_certificate("ada", &["whoami"]);
    assert!(text.starts_with("ada, no operator, at the broker https://"), "{text}");
    assert!(text.ends_with(", by certificate\n"), "{text}");
}

#[test]
fn a_revoked_token_lets_nobody_in_and_sends_away_who_is_in() {
    let door = Door::new();
    let id = door.add_token("ada");
    door.wait("the token to be known", || door.by_token("ada", &["list"]).0 == 0);
    let mut watch = door.ask(&["watch"]);
    watch.arg("--token-file").arg(door.at("ada.token")).stderr(Stdio::piped());
    let watch = watch.stdout(Stdio::null()).spawn().unwrap();
    let mut expired = Command::new(KEEPTIME);
    expired.args(["broker", "token", "add", "ada", "--expires", "2020-01-01 0:00", "--tokens"]);
    let (code, text) = told(expired.arg(door.at("tokens.toml")));
    assert!(code == 64 && text.contains("a time in the future"), "{text}");

    door.revoke_token(&id);
    door.wait("the token to be unknown", || door.by_token("ada", &["list"]).0 != 0);
    let (code, text) = door.by_token("ada", &["list"]);
    assert!(code == 2 && text.contains("not known here, or was revoked"), "{text}");
    let output = watch.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("looking again"), "it was sent away: {}", said(&output));
    assert!(said(&output).contains("was revoked"), "{}", said(&output));
    assert_eq!(door.by_token("eve", &["list"]).0, 0, "others are not concerned");
    let mut list = Command::new(KEEPTIME);
    list.args(["broker", "token", "list", "--config"]).arg(door.at("broker.toml"));
    let (code, text) = told(&mut list);
    assert!(code == 0 && text.contains(" eve, good until it is revoked"), "{text}");
    assert!(!text.contains("ada"), "{text}");
}

// Goal: a command that stays outlives what it showed first. Method: things happen until it tells one, so that it has shown the
// first token; then another in its file, and the first one revoked; and again until it tells one more.
#[test]
fn a_command_that_stays_goes_on_by_the_token_that_took_the_place_of_its_first() {
    let mut door = Door::new();
    let first = door.add_token("ada");
    door.wait("the first token", || door.by_token("ada", &["list"]).0 == 0);
    let mut watch = door.ask(&["watch"]);
    watch.arg("--token-file").arg(door.at("ada.token")).stdin(Stdio::null());
    watch.stdout(File::create(door.at("watch.out")).unwrap());
    watch.stderr(File::create(door.at("watch.log")).unwrap());
    door.processes.push(watch.spawn().unwrap());
    let reserve = ["reserve", "--nodes", "1", "--cpu", "1%", "--from", "+2h", "--for", "1h"];
    let told_after_another = |door: &Door| {
        door.by_token("eve", &reserve);
        door.log("watch.out").matches(" granted to eve: ").count()
    };
    door.wait("it to be there", || told_after_another(&door) > 0);
    door.add_token("ada");
    door.wait("the second token", || door.by_token("ada", &["list"]).0 == 0);
    door.revoke_token(&first);
    door.wait("it to be sent away", || door.log("watch.log").contains("looking again"));
    let before = told_after_another(&door);
    door.wait("it to be back", || told_after_another(&door) > before);
}

#[test]
fn an_expired_certificate_is_told_to_its_owner_and_renewed_without_a_restart() {
    let door = Door::with_broker_certificate("3s");
    door.wait("the end of the broker's certificate", || {
        let (_, text) = door.by_token("eve", &["list"]);
        text.contains("the certificate of the other end expired at 20")
    });
    door.issue(&["--broker", "localhost", "--lasts", "1h"]);
    door.wait("the renewed certificate", || door.by_token("eve", &["list"]).0 == 0);
    let log = door.log("broker.log");
    assert!(log.contains("were read again") && log.contains("renew it"), "{log}");

    door.issue(&["--users", "ada", "--lasts", "1s"]);
    door.wait("the end of ada's certificate", || {
        let (code, text) = door.by_certificate("ada", &["list"]);
        code == 2 && text.contains("ada.pem: it expired at 20")
    });
    door.issue(&["--users", "ada"]);
    assert_eq!(door.by_certificate("ada", &["list"]).0, 0);

    // Files that do not fit leave everything as it is.
    fs::write(door.at("pki/broker.pem"), "nothing").unwrap();
    door.wait("the broker to see it", || door.log("broker.log").contains("stay in use"));
    assert_eq!(door.by_certificate("ada", &["list"]).0, 0);
}

#[test]
fn a_withdrawn_certificate_is_refused() {
    let door = Door::new();
    assert_eq!(door.by_certificate("eve", &["list"]).0, 0);
    let certificate = door.files("users/eve").certificate;
    door.issue(&["--revoke", certificate.to_str().unwrap()]);
    door.wait("the list to be read", || door.by_certificate("eve", &["list"]).0 != 0);
    let (code, text) = door.by_certificate("eve", &["list"]);
    assert!(code == 2 && text.contains("eve.pem: it was revoked"), "{text}");
    assert_eq!(door.by_certificate("ada", &["list"]).0, 0);
}

#[test]
fn strangers_learn_which_authority_is_wrong() {
    let (door, other) = (Door::new(), Door::new());
    let mut command = door.ask(&["list"]);
    let OwnFiles { certificate, key } = other.files("users/ada");
    let (code, text) =
        told(command.arg("--certificate").arg(certificate).arg("--certificate-key").arg(key));
    assert!(code == 2 && text.contains("does not know who issued it"), "{text}");
    let mut command = Command::new(KEEPTIME);
    command.args(["list", "--broker"]).arg(format!("https://{}", door.tcp().address.0));
    command.arg("--ca").arg(other.at("pki/ca.pem"));
    let (code, text) = told(command.arg("--token-file").arg(door.at("eve.token")));
    assert!(code == 2 && text.contains("was not issued by an authority in"), "{text}");
    let mut plain = Command::new(KEEPTIME);
    let (code, text) = told(plain.args(["list", "--broker", "http://localhost:1"]));
    assert!(code == 64 && text.contains("says nothing without TLS"), "{text}");
}

#[test]
fn whoever_does_not_speak_tls_is_told_and_whoever_says_nothing_is_let_go() {
    let door = Door::new();
    let address = door.tcp().address.0;
    let mut http = plain(address);
    http.write_all(b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let answer = rest(&mut http);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("TLS only"), "{answer}");

    let nobody = door.secured(address, None, HTTP);
    let mut nobody = nobody;
    nobody
        .write_all(b"POST /v1/reservations HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        .unwrap();
    let answer = rest(&mut nobody);
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("who asks?"), "{answer}");
    assert!(answer.contains("www-authenticate: Bearer"), "{answer}");

    // Bytes that come one by one do not keep a place: the header has its time, whatever comes.
    let start = Instant::now();
    let silent = plain(address);
    let mut slow = door.secured(address, Some(&door.files("users/ada")), HTTP);
    slow.sock.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    slow.write_all(b"GET /v1/nodes HTTP/1.1\r\nx: ").unwrap();
    assert_eq!(rest(silent), "");
    let silent_for = start.elapsed();
    assert!(silent_for > Duration::from_secs(3) && silent_for < LIMIT, "{silent_for:?}");
    let mut one = [0; 64];
    loop {
        assert!(start.elapsed() < LIMIT, "a slow header keeps its place");
        let said = slow.write_all(b"x").and_then(|()| slow.read(&mut one));
        let goes_on = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        match said {
            Err(error) if goes_on(&error) => {}
            _ => break,
        }
    }
    assert!(start.elapsed() > Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn an_address_may_have_many_connections_and_they_make_way_for_whoever_shows_something() {
    let door = Door::new();
    let mut all: Vec<_> = (0..300).map(|_| plain(door.tcp().address.0)).collect();
    assert_eq!(door.by_certificate("ada", &["list"]).0, 0);
    assert_eq!(rest(all.swap_remove(0)), "");
}

#[test]
fn a_node_speaks_for_itself_alone_and_users_and_nodes_are_not_mistaken() {
    let door = Door::new();
    let agents = door.tcp().agents.unwrap().0;
    let hello = |own: &OwnFiles, node: &str| {
        let mut stream = door.secured(agents, Some(own), AGENT);
        let hello = format!(
            "{{\"hello\":{{\"version\":1,\"node\":\"{node}\",\"not_enforced\":[],\"holding\":[]}}}}\n"
        );
        stream.write_all(hello.as_bytes()).unwrap();
        let mut answer = vec![0; 4_096];
        let length = stream.read(&mut answer).unwrap_or(0);
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    let n1 = door.files("nodes/n1");
    let other = hello(&n1, "n2");
    assert!(other.contains("that of n1, which cannot speak for n2"), "{other}");
    let user = hello(&door.files("users/ada"), "n1");
    assert!(user.contains("that of user ada, and not a node's"), "{user}");
    assert!(hello(&n1, "n1").contains("welcome"));
    let mut nobody = door.secured(agents, None, AGENT);
    let _ = nobody.write_all(b"\n");
    assert!(nobody.read(&mut [0]).is_err(), "a certificate is asked for");

    let mut node = door.secured(door.tcp().address.0, Some(&n1), HTTP);
    node.write_all(b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let answer = rest(&mut node);
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("node n1"), "{answer}");
}

#[test]
fn agents_come_over_tls_and_are_away_while_their_certificate_is_over() {
    let mut door = Door::new();
    door.issue(&["--nodes", "n1", "--lasts", "8s"]);
    door.start_agent("n1");
    door.start_agent("n2");
    door.wait("both agents", || door.is_connected("n1") && door.is_connected("n2"));
    let now = ["reserve", "--nodes", "n2", "--cpu", "10%", "--for", "1h"];
    let (code, text) = door.by_certificate("ada", &now);
    assert!(code == 0 && text.starts_with("r1 active"), "{text}");
    door.wait("the end of n1's certificate", || !door.is_connected("n1"));
    door.wait("its agent to say so", || door.log("n1.log").contains("n1.pem: it expired at 20"));
    door.issue(&["--nodes", "n1"]);
    door.wait("the renewed certificate", || door.is_connected("n1"));
    assert!(door.is_connected("n2"));

    // The wrong certificate is known before the broker is asked.
    fs::copy(door.files("nodes/n1").certificate, door.at("pki/nodes/n2.pem")).unwrap();
    fs::copy(door.files("nodes/n1").key, door.at("pki/nodes/n2-key.pem")).unwrap();
    let mut process = door.processes.pop().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    door.start_agent("n2");
    door.wait("the agent to say so", || {
        door.log("n2.log").contains("is no certificate of node n2 (keeptime:node:n2)")
    });
}

#[test]
fn what_is_secret_is_refused_where_others_can_read_it() {
    let door = Door::new();
    let open = |path: &Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(path, mode).unwrap();
    };
    open(&door.at("eve.token"));
    let (code, text) = door.by_token("eve", &["list"]);
    assert!(code == 2 && text.contains("eve.token has mode 0644"), "{code} {text}");
    open(&door.files("users/ada").key);
    let (code, text) = door.by_certificate("ada", &["list"]);
    assert!(code == 2 && text.contains("expected 0600 (chmod 600"), "{code} {text}");
    open(&door.at("tokens.toml"));
    let mut check = Command::new(KEEPTIME);
    check.args(["broker", "run", "--check", "--config"]).arg(door.at("broker.toml"));
    let (code, text) = told(&mut check);
    assert!(code == 2 && text.contains("tokens.toml has mode 0644"), "{code} {text}");
}
