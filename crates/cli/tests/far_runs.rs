//! Ordinary users on a cluster whose nodes are reached by ssh: a real sshd in every node of a lab, a broker that
//! lets users in by certificate, agents that place what was started into the job's group. The users, their
//! homes and keys are the test's own.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::wire::JobStatus;
use keeptime_lab::{Exec, FRONT_END, Lab, exit_code};
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_launch::remote::quoted;
use keeptime_linux::testing::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use world::{KEEPTIME, PATIENCE, World, application_text, assert_code, wait};

const SSHD: &str = "/usr/sbin/sshd";
/// Where ssh keeps what it has no rights for.
const SSHD_EMPTY: &str = "/run/sshd";
const NODES: [&str; 2] = ["n1", "n2"];
const USERS: [(&str, u32); 2] = [("ada", 60_001), ("eve", 60_002)];
/// What each rank says: who it is, where, of which job, and in which group.
const SAY: &str = "echo rank $(id -u) $KEEPTIME_NODE $KEEPTIME_JOB; \
    echo placed $OMPI_COMM_WORLD_RANK$PMI_RANK $KEEPTIME_NODE; \
    grep -o 'keeptime/.*' /proc/self/cgroup; for unit in 1 2 3; do echo unit $unit 0.01; done; echo time 0.05";
/// A rank that works and tells it until it is ended.
const WORK: &str = "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo unit; done";

/// A lab that is used as a cluster of other machines.
struct Far {
    world: World,
    /// Everything of the users', seen at the same place on all nodes.
    place: PathBuf,
}

/// A broker that ends with the test.
struct Broker(keeptime_linux::process::Child);

impl Drop for Broker {
    fn drop(&mut self) {
        self.0.signal(Signal::SIGKILL);
    }
}

/// How a command ended, and what it said.
struct Ended {
    code: i32,
    said: String,
}

impl Far {
    /// Nothing where that cannot be, and the reason is printed.
    fn new(tag: &str) -> Option<Self> {
        if !Path::new(SSHD).exists() {
            skip(&["sshd".to_owned()], "openssh-server is not installed");
            return None;
        }
        let world = World::of(tag, &["--nodes", "2", "--tls"], 30, None)?;
        let place = world.directory.path().to_path_buf();
        fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
        let far = Self { world, place };
        far.make_users();
        fs::create_dir_all(SSHD_EMPTY).unwrap();
        for (number, node) in (0..).zip(NODES) {
            far.start_sshd(node, number);
        }
        for (user, _) in USERS {
            far.configure(user);
        }
        Some(far)
    }

    fn lab(&self) -> Lab {
        self.world.lab()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    fn home(&self, user: &str) -> PathBuf {
        self.place.join(user)
    }

    /// Accounts with homes and keys, certificates for the broker, and a program for all of them.
    fn make_users(&self) {
        let mut accounts = fs::read_to_string("/etc/passwd").unwrap();
        for (user, id) in USERS {
            let home = self.home(user);
            accounts.push_str(&format!("{user}:*:{id}:{id}::{}:/bin/sh\n", home.display()));
            fs::create_dir_all(home.join(".ssh")).unwrap();
            fs::create_dir_all(home.join(".config/keeptime")).unwrap();
            fs::create_dir(home.join("run")).unwrap();
            make_key(&home.join(".ssh/key"));
            fs::copy(home.join(".ssh/key.pub"), home.join(".ssh/authorized_keys")).unwrap();
        }
        fs::write(self.at("passwd"), accounts).unwrap();
        let pki = self.lab().directory().join("pki");
        let mut command = self.world.keeptime(&["broker", "certificates"]);
        assert_code(&command.arg(&pki).args(["--users", "ada,eve"]).output().unwrap(), 0);
        fs::copy(pki.join("ca.pem"), self.at("ca.pem")).unwrap();
        for (user, _) in USERS {
            for end in ["", "-key"] {
                let file = format!("{user}{end}.pem");
                let to = self.home(user).join(".config/keeptime").join(&file);
                fs::copy(pki.join("users").join(&file), to).unwrap();
            }
        }
        let application = application_text(SAY, "60 s", 15);
        fs::write(self.at("say.toml"), application).unwrap();
    }

    /// A port, a key and a configuration of its own; it ends with the lab.
    fn start_sshd(&self, node: &str, number: u16) {
        let (key, config) = (self.at(&format!("{node}.key")), self.at(&format!("{node}.sshd")));
        make_key(&key);
        let text = format!(
            "ListenAddress {}:{}\nHostKey {}\nPidFile {}\nAuthorizedKeysFile {}/%u/.ssh/authorized_keys\n\
             UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\n\
             SetEnv KEEPTIME_AGENT={}\n",
            self.world.address(u32::from(number)),
            port(number),
            key.display(),
            self.at(&format!("{node}.pid")).display(),
            self.place.display(),
            self.world.socket(node).display(),
        );
        fs::write(&config, text).unwrap();
        let script = format!(
            "mount --bind {} /etc/passwd && exec {SSHD} -D -e -f {}",
            self.at("passwd").display(),
            config.display()
        );
        let log = File::create(self.at(&format!("{node}.log"))).unwrap();
        let null = File::open("/dev/null").unwrap();
        let stdio = [Some(null.into()), Some(log.try_clone().unwrap().into()), Some(log.into())];
        let exec = Exec::new(node, ["/bin/sh", "-c", &script]).with_stdio(stdio);
        self.lab().spawn_daemon(exec).unwrap();
        let log = self.at(&format!("{node}.log"));
        wait("an sshd", PATIENCE, || fs::read_to_string(&log).unwrap().contains("listening on"));
    }

    /// How the user reaches nodes and broker. The second node has another name for ssh.
    fn configure(&self, user: &str) {
        let home = self.home(user);
        let (mut hosts, mut known) = (String::new(), String::new());
        for (number, (node, host)) in (0..).zip([("n1", "n1"), ("n2", "second")]) {
            let address = self.world.address(u32::from(number));
            hosts.push_str(&format!("Host {host}\n HostName {address}\n Port {}\n", port(number)));
            let key = fs::read_to_string(self.at(&format!("{node}.key.pub"))).unwrap();
            known.push_str(&format!("[{address}]:{} {key}", port(number)));
        }
        let (key, hosts_file) = (home.join(".ssh/key"), home.join(".ssh/known"));
        fs::write(&hosts_file, known).unwrap();
        let everywhere = format!(
            "Host *\n BatchMode yes\n ConnectTimeout 10\n IdentityFile {}\n UserKnownHostsFile {}\n \
             StrictHostKeyChecking yes\n LogLevel ERROR\n",
            key.display(),
            hosts_file.display()
        );
        fs::write(home.join("cluster.ssh"), hosts + &everywhere).unwrap();
        let shown = format!("certificate = \"{user}.pem\"\ncertificate_key = \"{user}-key.pem\"");
        self.write_client_config(user, "client.toml", &(self.far_broker() + &shown));
        let id = id_of(user);
        for file in all_files(&home) {
            chown(&file, Some(id), Some(id)).unwrap();
        }
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    }

    /// The broker, as it is asked over the network.
    fn far_broker(&self) -> String {
        let (host, ca) = (self.lab().front_end(), self.at("ca.pem"));
        format!("broker = \"https://{host}:7411\"\nca = \"{}\"\n", ca.display())
    }

    /// A file of a user's which says where the broker is, and how nodes are reached.
    fn write_client_config(&self, user: &str, name: &str, broker: &str) -> PathBuf {
        let path = self.home(user).join(".config/keeptime").join(name);
        let nodes = format!(
            "[nodes]\nlauncher = \"ssh -F {}\"\nkeeptime = \"{KEEPTIME}\"\nhosts = {{ n2 = \"second\" }}\n",
            self.home(user).join("cluster.ssh").display()
        );
        fs::write(&path, format!("{broker}\n{nodes}")).unwrap();
        path
    }

    /// A broker in the place of the lab's own, which knows the users' names.
    fn restart_broker(&self) -> Broker {
        self.world.kill_broker();
        let file = self.world.broker_socket().with_file_name("broker.toml");
        let (accounts, file) = (self.at("passwd"), file.display().to_string());
        let script = format!(
            "mount --bind {} /etc/passwd && exec {KEEPTIME} broker run --config {file}",
            accounts.display()
        );
        let words = ["unshare", "--mount", "/bin/sh", "-c", &script].map(OsString::from);
        let log = File::create(self.at("broker.log")).unwrap();
        let null = File::open("/dev/null").unwrap();
        let stdio = [Some(null.into()), Some(log.try_clone().unwrap().into()), Some(log.into())];
        let broker =
            Broker(self.lab().spawn(Exec::new(FRONT_END, words).with_stdio(stdio)).unwrap());
        self.world.wait_for_agents();
        broker
    }

    /// A command of a user's on a machine of the cluster's network that is no node. It is a child of this process
    /// that becomes the command itself.
    fn start(&self, user: &str, words: &[&str], output: &Path) -> keeptime_linux::process::Child {
        self.start_at(FRONT_END, user, words, output)
    }

    fn start_at(
        &self,
        place: &str,
        user: &str,
        words: &[&str],
        output: &Path,
    ) -> keeptime_linux::process::Child {
        let (id, home) = (id_of(user), self.home(user));
        let words: Vec<_> = words.iter().map(ToString::to_string).collect();
        let script = format!(
            "mount --bind {} /etc/passwd && cd {} && exec setpriv --reuid {id} --regid {id} --clear-groups \
             --no-new-privs env -i PATH=/usr/bin:/bin HOME={} XDG_RUNTIME_DIR={}/run {}",
            self.at("passwd").display(),
            self.place.display(),
            home.display(),
            home.display(),
            quoted(&words)
        );
        let words = ["unshare", "--mount", "/bin/sh", "-c", &script].map(OsString::from);
        let out = File::create(output).unwrap();
        let null = File::open("/dev/null").unwrap();
        let stdio = [Some(null.into()), Some(out.try_clone().unwrap().into()), Some(out.into())];
        self.lab().spawn(Exec::new(place, words).with_stdio(stdio)).unwrap()
    }

    fn run(&self, user: &str, words: &[&str]) -> Ended {
        let output = tempfile::NamedTempFile::new().unwrap();
        let status = self.start(user, words, output.path()).wait().unwrap();
        Ended { code: exit_code(status), said: fs::read_to_string(output.path()).unwrap() }
    }

    /// What a user's command said, when it ends as expected.
    fn keeptime(&self, user: &str, words: &[&str], code: i32) -> String {
        let ended = self.run(user, &[&[KEEPTIME], words].concat());
        assert_eq!(ended.code, code, "{words:?}: {}", ended.said);
        ended.said
    }

    /// A command of a user's in a job on the first node, over ssh.
    fn in_job(&self, user: &str, job: &str, words: &[&str]) -> Ended {
        let line = self.in_job_line(user, job, words);
        self.run(user, &line.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn in_job_line(&self, user: &str, job: &str, words: &[&str]) -> Vec<String> {
        let exec = [&[KEEPTIME, "agent", "exec", "--job", job, "--"], words].concat();
        let exec: Vec<_> = exec.iter().map(ToString::to_string).collect();
        let config = self.home(user).join("cluster.ssh").display().to_string();
        ["ssh".into(), "-F".into(), config, "n1".into(), quoted(&exec)].to_vec()
    }

    /// Measures the program, and has the operator make it known to the broker.
    fn measure(&self, mpi: &str) -> String {
        let words = ["profile", "say.toml", "--mpi", mpi, "--profile", "ada/say.json", "--fresh"];
        let few = ["--bandwidths", "10Mbit,20Mbit", "--samples", "1"];
        let told = self.keeptime("ada", &[&words[..], &few].concat(), 0);
        let register = ["register", "say.toml", "--mpi", mpi, "--profile", "ada/say.json"];
        let mut register = self.world.keeptime(&register);
        assert_code(&register.current_dir(&self.place).output().unwrap(), 0);
        told
    }

    /// What the program was measured for, for some time.
    fn reserve(&self) -> String {
        let reserve = ["reserve", "--application", "say", "--within", "1s", "--for", "10min"];
        self.keeptime("ada", &reserve, 0).split(' ').next().unwrap().to_owned()
    }

    /// A run in that, of this application, which is started on a node.
    fn start_on(
        &self,
        node: &str,
        application: &str,
        handle: &str,
        output: &Path,
    ) -> keeptime_linux::process::Child {
        let agent = format!("KEEPTIME_AGENT={}", self.world.socket(node).display());
        let profile = ["--profile", "ada/say.json", "--in", handle];
        let run = [&["env", &agent, KEEPTIME, "run", application], &profile[..]].concat();
        self.start_at(node, "ada", &run, output)
    }

    fn wait_until_nothing_runs(&self) {
        wait("the end of its commands", PATIENCE, || {
            let jobs = self.jobs();
            jobs.len() == 2 && jobs.iter().all(|job| job.processes.is_empty())
        });
    }

    /// Jobs on the first node.
    fn jobs(&self) -> Vec<JobStatus> {
        self.world.jobs()
    }

    fn wait_until_given_back(&self) {
        wait("all to be given back", PATIENCE, || self.jobs().is_empty());
    }
}

fn port(number: u16) -> u16 {
    2_200 + number
}

fn id_of(user: &str) -> u32 {
    USERS.iter().find(|(name, _)| *name == user).unwrap().1
}

fn make_key(path: &Path) {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-C", "a test", "-f"]).arg(path);
    assert_code(&command.output().unwrap(), 0);
}

/// A directory and all that is inside.
fn all_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_path_buf()];
    for entry in fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(all_files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

const GOAL: [&str; 6] = ["say.toml", "--profile", "ada/say.json", "--within", "1s", "--json"];

// Goal: what users do on a lab they do on any cluster, without any right that they do not have. Method: each rank says
// who it is and in which group.
#[test]
fn an_ordinary_user_measures_plans_and_runs_over_ssh() {
    let Some(far) = Far::new("fr-run") else { return };
    let measured = far.measure("open-mpi");
    assert!(measured.contains("knee"), "{measured}");
    far.wait_until_given_back();

    let plan = far.keeptime("ada", &[&["plan"], &GOAL[..]].concat(), 0);
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let nodes = plan["verdict"]["planned"]["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| NODES.contains(&node.as_str().unwrap())), "{plan}");
    let told = far.keeptime("ada", &[&["run"], &GOAL[..5]].concat(), 0);
    let group = |node| format!("keeptime/_lab.{}/{node}/", far.world.name);
    for node in NODES {
        assert!(told.contains(&format!("rank 60001 {node} r")), "{told}");
        // The hierarchy of version 2 has a group for each command.
        assert!(told.contains(&group(node)) && told.contains("_command."), "{told}");
    }
    assert!(told.contains("with its reservation"), "{told}");
    far.wait_until_given_back();

    // Without a goal that the broker knows of, and what another user may not do.
    let refused = far.keeptime(
        "ada",
        &["run", "say.toml", "--profile", "ada/say.json", "--within", "1ms"],
        1,
    );
    assert!(refused.contains("refused"), "{refused}");
    far.keeptime("eve", &[&["run"], &GOAL[..]].concat(), 0);
    far.wait_until_given_back();
}

// Goal: who runs something is known to broker and agents as the same, by whatever. Method: a token over the network, and
// the broker's socket, for which there is no right but to be there.
#[test]
fn a_user_is_known_by_a_token_or_by_the_kernel() {
    let Some(far) = Far::new("fr-door") else { return };
    far.measure("open-mpi");
    far.wait_until_given_back();
    let (tokens, token) = (far.at("tokens.toml"), far.home("ada").join(".config/keeptime/token"));
    let mut add = far.world.keeptime(&["broker", "token", "add", "ada", "--tokens"]);
    assert_code(&add.arg(&tokens).arg("--out").arg(&token).output().unwrap(), 0);
    chown(&token, Some(id_of("ada")), Some(id_of("ada"))).unwrap();
    let mut config = far.world.broker_config();
    config.tcp.as_mut().unwrap().tokens = Some(tokens);
    far.world.configure_broker(&config);
    let _broker = far.restart_broker();
    let by_token = far.far_broker() + "token_file = \"token\"";
    let by_socket = format!("broker = \"{}\"", far.world.broker_socket().display());
    for (name, broker) in [("token.toml", by_token), ("socket.toml", by_socket)] {
        let path = far.write_client_config("ada", name, &broker).display().to_string();
        let run = [&["run"], &GOAL[..5], &["--client-config", &path]].concat();
        let told = far.keeptime("ada", &run, 0);
        assert!(NODES.iter().all(|node| told.contains(&format!("rank 60001 {node} r"))), "{told}");
        far.wait_until_given_back();
    }
}

// Goal: also a rank that MPI's launcher starts by itself, since it is on the same machine, is in the job; and whichever node that
// is, ranks are where flows were reserved for them. Method: the command is run on each of the nodes, in a reservation that
// says which is whose.
#[test]
fn a_node_may_be_where_the_run_is_started() {
    let Some(far) = Far::new("fr-node") else { return };
    far.measure("open-mpi");
    far.wait_until_given_back();
    let handle = far.reserve();
    let reserved = far.world.broker().reservation(handle.parse().unwrap()).unwrap();
    let nodes = reserved.grant.unwrap().nodes;
    for node in NODES {
        let output = far.at("output");
        let status = far.start_on(node, "say.toml", &handle, &output).wait().unwrap();
        let told = fs::read_to_string(&output).unwrap();
        assert_eq!(exit_code(status), 0, "{told}");
        let in_jobs = told.lines().filter(|line| line.contains("/_command.")).count();
        assert_eq!(in_jobs, 2, "{told}");
        assert!(NODES.iter().all(|node| told.contains(&format!("rank 60001 {node} {handle}"))));
        for (rank, its) in nodes.iter().enumerate() {
            assert!(told.contains(&format!("placed {rank} {its}")), "run on {node}: {told}");
        }
        far.wait_until_nothing_runs();
    }
    far.keeptime("ada", &["cancel", &handle], 0);
    far.wait_until_given_back();
}

// Goal: what a user signals to a run does not end it and reaches every rank, also where its launcher is a command of the job.
// Method: programs that end well by it, in a run on one of the nodes.
#[test]
fn what_a_user_signals_to_a_run_is_for_its_ranks() {
    let Some(far) = Far::new("fr-usr") else { return };
    far.measure("open-mpi");
    far.wait_until_given_back();
    let handle = far.reserve();
    let script = "trap 'echo heard $KEEPTIME_NODE; echo time 0.05; exit 0' USR1; echo ready; \
                  while :; do sleep 0.1; done";
    fs::write(far.at("waits.toml"), application_text(script, "60 s", 15)).unwrap();
    let output = far.at("output");
    let run = far.start_on("n2", "waits.toml", &handle, &output);
    let told = || fs::read_to_string(&output).unwrap();
    wait("both ranks", PATIENCE, || told().matches("| ready").count() == 2);
    kill(Pid::from_raw(run.pid()), Signal::SIGUSR1).unwrap();
    assert_eq!(exit_code(run.wait().unwrap()), 0, "{}", told());
    for node in NODES {
        assert!(told().contains(&format!("| heard {node}")), "{}", told());
    }
    far.keeptime("ada", &["cancel", &handle], 0);
    far.wait_until_given_back();
}

#[test]
fn the_other_mpi_is_started_over_ssh_too() {
    let Some(far) = Far::new("fr-mpich") else { return };
    if let Err(error) = Mpi::find(Flavour::Mpich) {
        return skip(&["mpich".to_owned()], &error.to_string());
    }
    far.measure("mpich");
    let told = far.keeptime("ada", &[&["run", "--mpi", "mpich"], &GOAL[..5]].concat(), 0);
    for node in NODES {
        assert!(told.contains(&format!("rank 60001 {node} r")), "{told}");
    }
    far.wait_until_given_back();
}

#[test]
fn what_was_reserved_before_is_run_in_and_kept() {
    let Some(far) = Far::new("fr-in") else { return };
    far.measure("open-mpi");
    let handle = far.reserve();
    let run = ["run", "say.toml", "--profile", "ada/say.json", "--in", &handle];
    let told = far.keeptime("ada", &run, 0);
    for node in NODES {
        assert!(told.contains(&format!("rank 60001 {node} {handle}")), "{told}");
    }
    far.wait_until_nothing_runs();
    let other = far.keeptime("eve", &run, 2);
    assert!(other.contains(&format!("{handle} belongs to ada")), "{other}");
    far.keeptime("ada", &["cancel", &handle], 0);
    far.wait_until_given_back();
}

// Goal: what is told to agents while a run goes on reaches them over ssh too. Method: a steady run, which lends of its
// CPU; one by a time, which waits for its nodes; one at a rate, which is steered by the CPU time that it used.
#[test]
fn runs_are_paced_deferred_and_steered_over_ssh() {
    let Some(far) = Far::new("fr-rate") else { return };
    far.measure("open-mpi");
    far.wait_until_given_back();
    let steady = far.keeptime("ada", &[&["run"], &GOAL[..5], &["--steady"]].concat(), 0);
    assert!(steady.contains("actual: ") && !steady.contains("cannot be held"), "{steady}");
    let run = ["run", "say.toml", "--profile", "ada/say.json"];
    let by = far.keeptime("ada", &[&run[..], &["--by", "+120s", "--takes", "20s"]].concat(), 0);
    assert!(by.contains("rank 60001 n2") && by.contains("before its deadline"), "{by}");
    far.wait_until_given_back();

    fs::write(far.at("work.toml"), application_text(WORK, "600 s", 15)).unwrap();
    let rate = [KEEPTIME, "run", "work.toml", "--rate", "50 %"];
    let output = far.at("output");
    let child = far.start("ada", &rate, &output);
    wait("it to be steered", 3 * PATIENCE, || {
        let top: Value = serde_json::from_str(&far.keeptime("ada", &["top", "--json"], 0)).unwrap();
        let state = &top[0]["state"];
        state["phase"] == "steered" && !state["schedule"].is_null()
    });
    let set = far.keeptime("ada", &["rate", "set", "r9", "40 %"], 64);
    assert!(set.contains("a job that runs at a rate: r"), "{set}");
    assert_eq!(far.keeptime("eve", &["top", "--json"], 0).trim(), "[]");
    kill(Pid::from_raw(child.pid()), Signal::SIGTERM).unwrap();
    assert_eq!(exit_code(child.wait().unwrap()), 2, "{}", fs::read_to_string(&output).unwrap());
    far.wait_until_given_back();
}

#[test]
fn load_that_nobody_reserved_is_for_labs() {
    let Some(far) = Far::new("fr-load") else { return };
    let few = ["profile", "say.toml", "--profile", "ada/say.json", "--under-load"];
    let told = far.keeptime("ada", &few, 2);
    assert!(told.contains("--under-load needs a lab"), "{told}");
}

#[test]
fn what_cannot_be_started_is_told_with_a_code_of_its_own() {
    let Some(far) = Far::new("fr-no") else { return };
    far.keeptime("ada", &["reserve", "--nodes", "n1", "--cpu", "10%", "--for", "10min"], 0);
    let cases: [(&str, &str, &[&str], i32, &str); 6] = [
        ("ada", "r1", &["sh", "-c", "exit 7"], 7, ""),
        ("ada", "r1", &["sh", "-c", "kill -KILL $$"], 137, ""),
        ("ada", "r1", &["/nowhere/program"], 127, "cannot run /nowhere/program"),
        ("ada", "r1", &["/etc/hosts"], 126, "cannot run /etc/hosts"),
        ("ada", "r9", &["true"], 125, "no job r9 of ada is assigned here"),
        ("eve", "r1", &["true"], 125, "no job r1 of eve is assigned here"),
    ];
    for (user, job, words, code, expected) in cases {
        let ended = far.in_job(user, job, words);
        assert_eq!(ended.code, code, "{user} {job} {words:?}: {}", ended.said);
        assert!(ended.said.contains(expected), "{words:?}: {}", ended.said);
    }
    let away = format!("KEEPTIME_AGENT=/nowhere/a.sock {KEEPTIME} agent exec --job r1 -- true");
    let config = far.home("ada").join("cluster.ssh").display().to_string();
    let ended = far.run("ada", &["ssh", "-F", &config, "n1", &away]);
    assert_eq!(ended.code, 125, "{}", ended.said);
    assert!(ended.said.contains("the agent at /nowhere/a.sock does not answer"), "{}", ended.said);
    let elsewhere = format!("{KEEPTIME} agent exec --job r1 --directory /nowhere -- true");
    let ended = far.run("ada", &["ssh", "-F", &config, "n1", &elsewhere]);
    assert_eq!(ended.code, 125, "{}", ended.said);
    assert!(ended.said.contains("directory: \"/nowhere\""), "{}", ended.said);
    far.keeptime("ada", &["cancel", "r1"], 0);
    far.wait_until_given_back();
}

#[test]
fn a_node_that_cannot_be_reached_is_named_and_nothing_is_kept() {
    let Some(far) = Far::new("fr-away") else { return };
    far.measure("open-mpi");
    far.wait_until_given_back();
    let pid = fs::read_to_string(far.at("n2.pid")).unwrap();
    let end = ["lab", "exec", far.world.name.as_str(), "n2", "--", "kill", pid.trim()];
    far.world.run(&end, 0);
    let told = far.keeptime("ada", &[&["run"], &GOAL[..5]].concat(), 2);
    assert!(told.contains("n2 cannot be used") && told.contains("Connection refused"), "{told}");
    far.wait_until_given_back();
    let none = ["run", "say.toml", "--profile", "ada/say.json", "--within", "1s", "--launcher"];
    let told = far.keeptime("ada", &[&none[..], &["/nowhere/rsh"]].concat(), 2);
    assert!(told.contains("cannot be used") && told.contains("No such file"), "{told}");
    far.wait_until_given_back();
}

#[test]
fn a_client_that_is_killed_leaves_nothing_on_the_nodes() {
    let Some(far) = Far::new("fr-kill") else { return };
    far.measure("open-mpi");
    far.wait_until_given_back();
    // The same application for the broker: only what it does differs.
    let lent = far.reserve();
    let long = far.at("long.toml");
    let sleeps = application_text("sleep 1000 & setsid sleep 1000 & wait", "600 s", 15);
    fs::write(&long, sleeps).unwrap();
    let run = [KEEPTIME, "run", "long.toml", "--profile", "ada/say.json", "--in", &lent];
    let before = far.world.processes();
    let child = far.start("ada", &run, &far.at("output"));
    // Its launcher's daemon and the rank, which has two children, on each.
    let is_running = || {
        let jobs = far.jobs();
        jobs.len() == 2 && jobs.iter().all(|job| job.processes.len() >= 4)
    };
    wait("both ranks", PATIENCE, is_running);
    kill(Pid::from_raw(child.pid()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    wait("the end of its commands", PATIENCE, || {
        far.jobs().iter().all(|job| job.processes.is_empty())
    });
    wait("the end of all processes", PATIENCE, || far.world.processes().is_subset(&before));
    assert_eq!(far.jobs().len(), 2, "what was reserved before stays");
    far.keeptime("ada", &["cancel", &lent], 0);
    far.wait_until_given_back();
}

// Goal: what is on a node lasts as long as whoever started it there listens, whatever becomes of the agent. Method: a
// command with children that leave it; its agent is killed, and then the connection.
#[test]
fn a_command_ends_with_its_connection_and_not_with_the_agent() {
    let Some(far) = Far::new("fr-end") else { return };
    far.keeptime("ada", &["reserve", "--nodes", "n1", "--cpu", "10%", "--for", "10min"], 0);
    let words = ["sh", "-c", "sleep 1000 & setsid sleep 1000 & wait"];
    let line = far.in_job_line("ada", "r1", &words);
    let line: Vec<_> = line.iter().map(String::as_str).collect();
    let (first, second) = (far.at("first"), far.at("second"));
    let ended = far.start("ada", &line, &first);
    let other = far.start("ada", &line, &second);
    let processes = || far.jobs().iter().map(|job| job.processes.len()).sum::<usize>();
    wait("both commands", PATIENCE, || processes() == 8);
    far.world.kill_agent("n1");
    far.world.start_agent("n1");
    assert_eq!(processes(), 8, "{}", fs::read_to_string(&first).unwrap());
    // They find the new agent by themselves, which then ends what has nobody left, and that alone.
    kill(Pid::from_raw(ended.pid()), Signal::SIGKILL).unwrap();
    ended.wait().unwrap();
    wait("the end of one command", PATIENCE, || processes() <= 4);
    assert_eq!(processes(), 4);
    far.keeptime("ada", &["cancel", "r1"], 0);
    far.wait_until_given_back();
    // Ended with its job, from which ssh learns that the command was killed.
    assert_ne!(exit_code(other.wait().unwrap()), 0, "{}", fs::read_to_string(&second).unwrap());
}
