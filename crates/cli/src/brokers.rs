//! A lab's broker: a process of this machine that `lab up` starts and `lab down` ends, as an init
//! system would on a real cluster. Everything it needs lies in the lab's directory. In a lab with TLS
//! it is on the lab's front end, where nodes reach it over their network; in one with web servers too, since
//! their balancers are there.

use crate::certificates::{self, Site};
use crate::cluster::own_path;
use crate::web;
use anyhow::{Context, Result, bail};
use keeptime_agent::dial::BrokerTls;
use keeptime_broker::client::{Client, ClientError};
use keeptime_broker::config::{Config, PolicyFile, REQUESTS_PER_SECOND};
use keeptime_broker::tcp::config::{Listen, Tcp};
use keeptime_broker::wire::Problem;
use keeptime_credentials::identity::Identity;
use keeptime_lab::{Exec, FRONT_END, Lab};
use keeptime_linux::process::{Identity as ProcessIdentity, Process};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::units::Nanos;
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::error::Error as StdError;
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A broker answers within milliseconds; a machine that is busy compiling takes longer.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// A killed process ends within milliseconds.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Longer than on a real cluster: the agents of all nodes share this machine's processors.
const ANSWER_WITHIN: Nanos = Nanos::from_secs(5);

/// What a lab's broker says, beside its socket.
const LOG: &str = "broker.log";
/// Ports of a broker in a lab with TLS: its network is its own.
const USERS_PORT: u16 = 7411;
const AGENTS_PORT: u16 = 7412;
/// Labs are short.
const CERTIFICATES_LAST: Nanos = Nanos::from_secs(30 * 24 * 3_600);

/// The socket of the broker whose lab has this directory.
pub fn socket(lab: &Path) -> PathBuf {
    directory(lab).join("broker.sock")
}

/// The socket for agents of the broker whose lab has this directory.
pub fn agents_socket(lab: &Path) -> PathBuf {
    directory(lab).join("agents.sock")
}

/// Sees whether the broker at `socket` answers.
///
/// # Errors
/// Why not.
pub fn ask(socket: &Path) -> Result<()> {
    Ok(Client::new(socket)?.who_am_i().map(drop)?)
}

/// Starts a lab's broker and waits until it answers. Before the agents, which find it then at once.
///
/// # Errors
/// If it does not, with the last lines of its log.
pub fn start(lab: &Lab, has_web: bool) -> Result<()> {
    let directory = directory(lab.directory());
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let mut config = config(lab);
    config.fabric = has_web.then(|| web::fabric(lab));
    let path = directory.join("broker.toml");
    fs::write(&path, config.to_toml())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let log = File::create(directory.join(LOG))?;
    let pid = spawn(lab, &path, log, has_web || config.tcp.is_some())?;
    if let Some(identity) = ProcessIdentity::of(pid)? {
        fs::write(pid_file(lab.directory()), identity.to_string())?;
    }
    let client = Client::new(&config.socket)?;
    within(READY_WITHIN, || Ok(client.nodes(None).map(drop)?)).with_context(|| {
        let log = fs::read_to_string(directory.join(LOG)).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(5).collect();
        format!("the broker's last words: {}", last.join(" / "))
    })
}

/// Starts a broker with this configuration: on the machine, or on the lab's front end.
#[allow(clippy::zombie_processes, reason = "it outlasts this command, and init waits for it")]
fn spawn(lab: &Lab, config: &Path, log: File, on_front_end: bool) -> Result<i32> {
    let own = own_path()?;
    if on_front_end {
        let words: [OsString; 5] =
            [own.into(), "broker".into(), "run".into(), "--config".into(), config.into()];
        let null = File::open("/dev/null")?;
        let stdio = [Some(null.into()), Some(log.try_clone()?.into()), Some(log.into())];
        return Ok(lab.spawn(Exec::new(FRONT_END, words).with_stdio(stdio))?.pid());
    }
    let child = Command::new(own)
        .args(["broker", "run", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Where the user was can be unmounted.
        .current_dir("/")
        // Not ended by what is typed into the terminal.
        .process_group(0)
        .spawn()?;
    Ok(i32::try_from(child.id())?)
}

/// Makes the certificates of a lab with TLS. Before its broker and agents, which are started with what is
/// there.
///
/// # Errors
/// If they cannot be made.
pub fn make_certificates(lab: &Lab) -> Result<()> {
    let site = Site::open(&pki(lab))?;
    site.issue_to_broker(&[lab.front_end().to_string()], CERTIFICATES_LAST)?;
    for node in lab.topology().nodes() {
        site.issue_to(&Identity::Node(node.name.clone()), CERTIFICATES_LAST)?;
    }
    Ok(())
}

/// Where the agent of a node finds the broker of a lab with TLS, and what it shows there; nothing in
/// another lab.
pub fn far_place(lab: &Lab, node: &Name) -> Option<BrokerTls> {
    let tcp = tcp(lab)?;
    let address = tcp.agents?.0.to_string().parse().ok()?;
    let own = certificates::files_of(&pki(lab), &Identity::Node(node.clone()));
    let ca = certificates::authority_files(&pki(lab)).certificate;
    Some(BrokerTls { address, certificate: own.certificate, key: own.key, ca })
}

/// The directory of a lab's certificates.
fn pki(lab: &Lab) -> PathBuf {
    lab.directory().join("pki")
}

/// Where the broker of a lab with TLS listens; nothing in another lab.
fn tcp(lab: &Lab) -> Option<Tcp> {
    let (pki, host) = (pki(lab), lab.front_end().into());
    let (ca, own) = (certificates::authority_files(&pki), certificates::broker_files(&pki));
    own.certificate.exists().then(|| Tcp {
        address: Listen(SocketAddr::new(host, USERS_PORT)),
        agents: Some(Listen(SocketAddr::new(host, AGENTS_PORT))),
        certificate: own.certificate,
        key: own.key,
        client_ca: Some(ca.certificate),
        revoked: Some(certificates::revoked_file(&pki)),
        tokens: None,
    })
}

/// Waits until all agents of a lab have found its broker.
///
/// # Errors
/// Which have not.
pub fn wait_for_agents(lab: &Lab) -> Result<()> {
    let client = Client::new(&socket(lab.directory()))?;
    within(READY_WITHIN, || {
        let nodes = client.nodes(None)?.nodes;
        let away = nodes.iter().filter(|node| !node.connected).map(|node| node.name.as_str());
        match away.collect::<Vec<_>>().as_slice() {
            [] => Ok(()),
            names => bail!("the agents of these nodes do not find it: {}", names.join(", ")),
        }
    })
}

/// Ends the broker of the lab with this directory, if there is one; in any state.
///
/// # Errors
/// If it does not end.
pub fn end(lab: &Path) -> Result<()> {
    if let Some(process) = written_down(lab)? {
        kill(&process)?;
    }
    // Another than that: started again by hand, or by a command that was killed before it wrote it down.
    if let Some(process) = listening(lab)? {
        kill(&process)?;
    }
    Ok(())
}

fn kill(broker: &Process) -> Result<()> {
    // What is granted is in its ledger, which goes with the lab.
    broker.signal(Signal::SIGKILL)?;
    if !broker.wait(END_WITHIN)? {
        bail!("the lab's broker, process {}, does not end", broker.identity().pid);
    }
    Ok(())
}

/// The process that the lab's file names. One that cannot be read names nobody: nobody is killed on a guess.
fn written_down(lab: &Path) -> Result<Option<Process>> {
    let text = fs::read_to_string(pid_file(lab)).unwrap_or_default();
    let Ok(identity) = text.parse::<ProcessIdentity>() else { return Ok(None) };
    Ok(identity.open()?)
}

/// The broker that listens at the lab's socket.
fn listening(lab: &Path) -> Result<Option<Process>> {
    let listener = || {
        let stream = UnixStream::connect(socket(lab)).ok()?;
        getsockopt(&stream, PeerCredentials).ok().map(|peer| peer.pid())
    };
    let Some(pid) = listener() else { return Ok(None) };
    let Some(identity) = ProcessIdentity::of(pid)? else { return Ok(None) };
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // Its number is not yet somebody else's if it still listens.
    let is_it = runs_a_broker(&command_line) && listener() == Some(pid);
    Ok(if is_it { identity.open()? } else { None })
}

/// Whether a process with this command line, as the kernel shows it, was started as `keeptime broker run`.
fn runs_a_broker(command_line: &[u8]) -> bool {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    words.windows(2).any(|pair| pair == [b"broker".as_slice(), b"run".as_slice()])
}

/// What a broker's answer is to this program: bad input is the user's.
pub fn failure(error: ClientError) -> anyhow::Error {
    match error.problem().cloned() {
        Some(Problem { field: Some(field), value, expected, .. }) => {
            Invalid { field, value, expected: expected.unwrap_or_default() }.into()
        }
        _ => error.into(),
    }
}

/// What to do where a broker does not answer; nothing where `error` is of something else.
pub fn advice(error: &anyhow::Error) -> Option<String> {
    let away = |cause: &'_ (dyn StdError + 'static)| match cause.downcast_ref() {
        Some(ClientError::Unreachable { place, .. }) => Some(PathBuf::from(place)),
        _ => None,
    };
    let socket = error.chain().find_map(away)?;
    let log = socket.with_file_name(LOG);
    Some(match log.exists() {
        // A lab's is in no hand but `lab up`'s.
        true => format!(
            "what runs goes on meanwhile; why the broker ended: {}; keeptime lab down and lab up begin anew",
            log.display()
        ),
        false => {
            "what runs goes on meanwhile; if that is the broker that is meant, `systemctl status \
                  keeptime-broker` on its machine says why (docs/operations.md)"
                .to_owned()
        }
    })
}

/// Tries again until it is done, or it is too late.
fn within(limit: Duration, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            outcome => return outcome,
        }
    }
}

fn config(lab: &Lab) -> Config {
    Config {
        topology: lab.directory().join("topology.toml"),
        ledger: directory(lab.directory()).join("ledger.db"),
        socket: socket(lab.directory()),
        agents: agents_socket(lab.directory()),
        operators: Vec::new(),
        nameless_users: false,
        requests_per_second: REQUESTS_PER_SECOND,
        fabric: None,
        sites: true,
        policy: PolicyFile { answer_within: ANSWER_WITHIN, ..PolicyFile::default() },
        tcp: tcp(lab),
    }
}

fn directory(lab: &Path) -> PathBuf {
    lab.join("broker")
}

fn pid_file(lab: &Path) -> PathBuf {
    directory(lab).join("broker.pid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_broker_is_known_by_how_it_was_started() {
        assert!(runs_a_broker(b"/opt/keeptime\0broker\0run\0--config\0broker.toml\0"));
        for other in ["", "keeptime\0broker\0token\0run\0", "sh\0-c\0keeptime broker run\0"] {
            assert!(!runs_a_broker(other.as_bytes()), "{other:?}");
        }
    }

    // Goal: whoever finds no broker learns what to do, and nobody else does. Method: a lab's, which has a log, another, and an
    // error that is of no broker.
    #[test]
    fn what_to_do_is_told_where_a_broker_does_not_answer() {
        let lab = tempfile::tempdir().unwrap();
        let told = || {
            let error = Client::new(&socket(lab.path())).unwrap().nodes(None).unwrap_err();
            advice(&failure(error).context("in a command"))
        };
        assert!(told().unwrap().contains("systemctl status keeptime-broker"));
        fs::create_dir(directory(lab.path())).unwrap();
        let log = directory(lab.path()).join("broker.log");
        fs::write(&log, "").unwrap();
        assert!(told().unwrap().contains(&log.display().to_string()));
        assert_eq!(advice(&anyhow::Error::msg("another")), None);
    }

    // A process that only listens there, as this test does, is not killed for it.
    #[test]
    fn who_listens_in_a_brokers_place_goes_on() {
        let lab = tempfile::tempdir().unwrap();
        fs::create_dir(directory(lab.path())).unwrap();
        let listener = UnixListener::bind(socket(lab.path())).unwrap();
        assert!(listening(lab.path()).unwrap().is_none());
        end(lab.path()).unwrap();
        drop(listener);
        assert!(listening(lab.path()).unwrap().is_none(), "nobody listens any more");
    }
}
