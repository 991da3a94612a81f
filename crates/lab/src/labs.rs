//! The labs of this machine by name, and what can be done with one.

use crate::error::LabError;
use crate::exec::{Account, Exec};
use crate::files::{LabFiles, LabsLock, State, check_is_own};
use crate::hardware::{self, Wiring};
use crate::holder::{Outcome, group_path, lab_group_path};
use crate::node::{NAMESPACES, hear, tell};
use crate::sight::{self, Sight};
use crate::spec::Spec;
use crate::status::{LabState, NodeStatus, Status};
use keeptime_linux::cgroup::{Group, Hierarchies};
use keeptime_linux::disk;
use keeptime_linux::link;
use keeptime_linux::netlink::Socket;
use keeptime_linux::netns::NetworkNamespace;
use keeptime_linux::police::{self, PoliceError, Policed, Policer};
use keeptime_linux::process::{self, Bond, Child, Process, Start};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::Topology;
use nix::sched::CloneFlags;
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Where labs of one user are written down, and the program that can hold one.
#[derive(Debug, Clone)]
pub struct Labs {
    runtime: PathBuf,
    holder: Vec<OsString>,
}

/// A lab that was made.
#[derive(Debug, Clone)]
pub struct Lab {
    files: LabFiles,
    spec: Spec,
}

/// Where launchers start, in place of a node's name.
pub const FRONT_END: &str = "front-end";

/// What `down` found and did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The lab's name.
    pub name: Name,
    /// False if the holder had ended before.
    pub was_running: bool,
    /// Processes that had to be killed one by one.
    pub stragglers: usize,
    /// How long it took.
    pub nanos: keeptime_model::units::Nanos,
}

impl Labs {
    /// Those of the calling user: in `/run/keeptime` for root, otherwise in
    /// `$XDG_RUNTIME_DIR/keeptime` or `/tmp/keeptime-UID`. The running program holds them, by its
    /// hidden command `lab-holder`.
    pub fn of_this_user() -> Self {
        let user = nix::unistd::geteuid();
        let given = std::env::var_os("XDG_RUNTIME_DIR");
        let elsewhere = format!("/tmp/keeptime-{user}").into();
        let runtime = runtime_of_user(user, given.as_deref(), elsewhere);
        // The link itself, so that it works after the program was replaced by a newer one.
        let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        Self { runtime, holder: vec![program.into(), "lab-holder".into()] }
    }

    /// The same in another directory.
    #[must_use]
    pub fn in_directory(mut self, runtime: impl Into<PathBuf>) -> Self {
        self.runtime = runtime.into();
        self
    }

    /// The same with another program and the words that make it call
    /// [`holder_main`](crate::holder_main).
    #[must_use]
    pub fn held_by<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.holder = words.into_iter().map(Into::into).collect();
        self
    }

    /// The directory that they are written down in.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// Makes a lab, and returns when all of it stands. If it cannot be made, or if the caller is
    /// killed meanwhile, what was made of it is removed. Takes about 0.2 s for four nodes.
    ///
    /// # Errors
    /// A lab of that name, more CPU than there is, a disk that is not there, or whatever the machine
    /// refuses.
    pub fn up(&self, spec: &Spec) -> Result<Lab, LabError> {
        let lock = LabsLock::take(&self.runtime)?;
        let files = LabFiles::new(&self.directory(), spec.name());
        if files.directory().exists() || in_use_elsewhere(spec.name()) {
            return Err(LabError::Exists { name: spec.name().clone() });
        }
        if let Err(error) = remove_empty_groups(spec.name()) {
            lock.release(&self.runtime);
            return Err(error);
        }
        let made = self.check_cpu(spec).and_then(|()| {
            spec.check_disks(&disk::disks())?;
            files.create()?;
            self.start(spec, &files, &lock)
        });
        if made.is_err() {
            // The reason counts, not what may be left: `down` removes that, too.
            let _ = end_holder(&files).and_then(|_| remove_leftovers(&files, Maker::own()));
            lock.release(&self.runtime);
        }
        made.map(|()| Lab { files, spec: spec.clone() })
    }

    /// The lab of that name.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(&self, name: &Name) -> Result<Lab, LabError> {
        let files = LabFiles::new(&self.directory(), name);
        let path = files.topology();
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match files.directory().exists() {
                    true => Err(LabError::Ended { what: format!("lab {name}") }),
                    false => Err(self.unknown(name)),
                }
            }
            text => {
                check_is_own(files.directory())?;
                let topology = Topology::from_toml(&text.map_err(LabError::file("read", &path))?)?;
                Ok(Lab { files, spec: Spec::from_topology(name.clone(), topology)? })
            }
        }
    }

    /// The names of all labs that run, also while they are made.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Name>, LabError> {
        let mut names = self.names()?;
        names.retain(|name| self.is_held(name));
        Ok(names)
    }

    /// The names of labs of which only files, and perhaps groups, are left for [`Self::down`]: their holder was killed, or
    /// who made or removed them. None while a lab is made or removed, since it may be that one.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn ended(&self) -> Result<Vec<Name>, LabError> {
        let Some(_idle) = LabsLock::keep_idle(&self.runtime) else { return Ok(Vec::new()) };
        let mut names = self.names()?;
        names.retain(|name| !self.is_held(name));
        Ok(names)
    }

    fn is_held(&self, name: &Name) -> bool {
        LabFiles::new(&self.directory(), name).running_holder().is_some()
    }

    /// Of whatever has files.
    fn names(&self) -> Result<Vec<Name>, LabError> {
        let directory = self.directory();
        let entries = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(LabError::file("open", &directory))?,
        };
        let mut names: Vec<Name> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Removes a lab with all its processes, groups and files, whatever state it is in.
    ///
    /// # Errors
    /// If there is none of that name, or something does not go away.
    pub fn down(&self, name: &Name) -> Result<Report, LabError> {
        let start = Instant::now();
        let files = LabFiles::new(&self.directory(), name);
        if !files.directory().exists() {
            return Err(self.unknown(name));
        }
        let lock = match LabsLock::take(&self.runtime) {
            // An `up` that never ends.
            Err(LabError::Stuck { .. }) => {
                end_holder(&files)?;
                LabsLock::take(&self.runtime)?
            }
            lock => lock?,
        };
        let was_running = end_holder(&files)?;
        let stragglers = remove_leftovers(&files, Maker::own())?;
        lock.release(&self.runtime);
        Ok(Report { name: name.clone(), was_running, stragglers, nanos: start.elapsed().into() })
    }

    fn start(&self, spec: &Spec, files: &LabFiles, lock: &LabsLock) -> Result<(), LabError> {
        write_files(spec, files)?;
        let pipe = || Path::new("the connection to the holder");
        let (ours, theirs) = UnixStream::pair().map_err(LabError::file("socketpair", pipe()))?;
        let log = std::fs::File::create(files.log());
        let log = log.map_err(LabError::file("create", &files.log()))?;
        let program = self.holder.first().map_or(OsStr::new(""), OsString::as_os_str);
        Command::new(program)
            .args(self.holder.iter().skip(1))
            .arg(files.directory())
            .stdin(OwnedFd::from(theirs))
            .stdout(lock.share()?)
            .stderr(log)
            .spawn()
            .map_err(LabError::file("execute", Path::new(program)))?;
        ours.set_read_timeout(Some(UP_LIMIT)).map_err(LabError::file("setsockopt", pipe()))?;
        match hear(&ours) {
            Ok(Outcome::Ready) => tell(&ours, &()).map_err(LabError::file("write", pipe())),
            Ok(Outcome::Failed { unsupported: Some((feature, needs)), .. }) => {
                Err(LabError::Unsupported { feature, needs })
            }
            Ok(Outcome::Failed { reason, .. }) => Err(LabError::NotMade { reason }),
            Err(error) => {
                let log = std::fs::read_to_string(files.log()).unwrap_or_default();
                let said = log.trim().lines().last().map_or(String::new(), |l| format!(": {l}"));
                let reason = match error.kind() {
                    io::ErrorKind::WouldBlock => format!("not ready after {UP_LIMIT:?}{said}"),
                    _ => format!("its holder ended{said}"),
                };
                Err(LabError::NotMade { reason })
            }
        }
    }

    /// No CPU is given twice, not even to another lab.
    fn check_cpu(&self, spec: &Spec) -> Result<(), LabError> {
        let mut elsewhere = 0;
        for name in self.list()? {
            if let Ok(lab) = self.open(&name) {
                elsewhere += lab.spec.cpu();
            }
        }
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Ok(spec.check_cpu(processors, elsewhere)?)
    }

    fn directory(&self) -> PathBuf {
        directory_in(&self.runtime)
    }

    fn unknown(&self, name: &Name) -> LabError {
        if self.runtime != Path::new(OF_ROOT)
            && directory_in(Path::new(OF_ROOT)).join(name.as_str()).exists()
        {
            return LabError::OfRoot { name: name.clone() };
        }
        LabError::Unknown { name: name.clone(), labs: self.names().unwrap_or_default() }
    }
}

impl Lab {
    /// Makes a lab of the calling user: see [`Labs::up`].
    ///
    /// # Errors
    /// As there.
    pub fn up(spec: &Spec) -> Result<Self, LabError> {
        Labs::of_this_user().up(spec)
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        self.spec.name()
    }

    /// Its nodes with addresses, switches, links.
    pub fn topology(&self) -> &Topology {
        self.spec.topology()
    }

    /// The device of the lab's network on every node.
    pub fn device(&self) -> &'static str {
        hardware::NODE_DEVICE
    }

    /// Its network as `ADDRESS/PREFIX`, and the front end's device on it.
    pub fn network_names(&self) -> (String, String) {
        let network = self.spec.network();
        let device = hardware::front_end_device(self.topology().switches().len());
        (format!("{}/{}", network.address, network.prefix), device)
    }

    /// The address of its front end, by which nodes reach what is there.
    pub fn front_end(&self) -> Ipv4Addr {
        self.spec.front_end()
    }

    /// Its directory: what is in there goes with the lab.
    pub fn directory(&self) -> &Path {
        self.files.directory()
    }

    /// A directory of a node's own, seen at the same place on the node and outside.
    pub fn node_directory(&self, node: &Name) -> PathBuf {
        self.files.node(node)
    }

    /// The path of a node's group below the root of every hierarchy; nothing if groups cannot be
    /// used here.
    pub fn group_path(&self, node: &Name) -> Option<PathBuf> {
        self.group(node).map(|group| group.path().to_path_buf())
    }

    /// A node's group; nothing if groups cannot be used here.
    pub fn group(&self, node: &Name) -> Option<Group> {
        if Maker::own() == Maker::User {
            // Groups of that name are those of root's lab that has it.
            return None;
        }
        let group = Hierarchies::discover().ok()?.group(group_path(self.name(), node)).ok()?;
        group.exists().then_some(group)
    }

    /// What a node sees at a path of this machine: nodes have a `/tmp` of their own, in which they see of
    /// this machine's what was around when the lab was made.
    ///
    /// # Errors
    /// If there is no such node, or it has ended.
    pub fn sight(&self, node: &str, path: &Path) -> Result<Sight, LabError> {
        let (_, init, _) = self.running_node(node)?;
        Ok(sight::look(init.identity().pid, path))
    }

    /// The network namespace of a node or of the front end, for sockets of the caller.
    ///
    /// # Errors
    /// If there is no such node, or it has ended.
    pub fn network(&self, node: &str) -> Result<NetworkNamespace, LabError> {
        if node == FRONT_END {
            return Ok(NetworkNamespace::of_process(self.holder()?.identity().pid)?);
        }
        let (_, init, _) = self.running_node(node)?;
        Ok(NetworkNamespace::of_process(init.identity().pid)?)
    }

    /// Polices what a node sends, where it enters its switch, as the edge router of a DiffServ
    /// network would; nothing = all of it passes again. What a node sends from then on, by connections
    /// made from then on, are packets as on a wire, not several at once.
    ///
    /// # Errors
    /// If there is no such node, or the kernel cannot do it.
    pub fn police(&self, node: &str, policer: Option<&Policer>) -> Result<(), LabError> {
        let segments = policer.map(|_| 1);
        let limit = move || {
            Socket::open()?.batch(&[link::set_segments_max(hardware::NODE_IFINDEX, segments)])
        };
        self.network(node)?.run(limit)??;
        self.at_port(node, |socket, port| match policer {
            Some(policer) => police::install(socket, port, policer),
            None => Ok(police::remove(socket, port)?),
        })
    }

    /// What the policer of a node did so far; nothing if it has none.
    ///
    /// # Errors
    /// As [`Self::police`].
    pub fn policed(&self, node: &str) -> Result<Option<Policed>, LabError> {
        self.at_port(node, police::counters)
    }

    /// Where a node is plugged in, in the switches' network.
    fn at_port<T: Send>(
        &self,
        node: &str,
        action: impl FnOnce(&mut Socket, u32) -> Result<T, PoliceError> + Send,
    ) -> Result<T, LabError> {
        let ended = || LabError::Ended { what: format!("lab {}", self.name()) };
        let (at, ..) = self.running_node(node)?;
        let port = Wiring::of(&self.spec).port_of(at).ok_or_else(ended)?;
        Ok(self.network(FRONT_END)?.run(|| action(&mut Socket::open()?, port))??)
    }

    /// How it is now.
    pub fn status(&self) -> Status {
        let state = self.files.read_state();
        let holder = self.files.running_holder();
        let nodes: Vec<_> =
            (0..self.topology().nodes().len()).map(|at| self.node_status(at, &state)).collect();
        let running = nodes.iter().filter(|node| node.pid.is_some()).count();
        Status {
            name: self.name().clone(),
            state: match (&state, &holder) {
                (_, None) => LabState::Ended,
                (None, Some(_)) => LabState::Starting,
                (Some(_), Some(_)) if running == nodes.len() => LabState::Up,
                (Some(_), Some(_)) => LabState::Damaged,
            },
            holder_pid: holder.map(|holder| holder.pid),
            rootless: state.as_ref().is_some_and(|state| state.rootless),
            nodes,
            not_enforced: state.map(|state| state.not_enforced).unwrap_or_default(),
        }
    }

    /// Starts a program on a node, in the node's or the job's groups from its first instruction
    /// on. It is a child of the caller.
    ///
    /// # Errors
    /// No such node or job, or it has ended, or the program cannot be started there.
    pub fn spawn(&self, exec: Exec) -> Result<Child, LabError> {
        self.with_start(exec, |start| Ok(start.spawn()?))
    }

    /// Starts a daemon on a node, in `/`: it goes on when the caller ends, and ends with the node. On the
    /// front end it ends with the lab, which needs control groups.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub fn spawn_daemon(&self, exec: Exec) -> Result<(), LabError> {
        let on_front_end = exec.node == FRONT_END;
        let child = self.with_start(exec, |mut start| {
            start.bond = Bond::Daemon;
            // Where the user was can be unmounted.
            start.directory = "/".into();
            if on_front_end {
                // There is no process 1 that would take them along.
                let group = Hierarchies::discover()?.group(lab_group_path(self.name()))?;
                let group = group.child(FRONT_END)?;
                group.create()?;
                start.groups = group.open_to_join()?;
            }
            Ok(start.spawn()?)
        })?;
        child.wait()?;
        Ok(())
    }

    /// As [`Self::spawn`], as the whole purpose of the calling process: waits for its end, and passes
    /// signals on to it. A program that dies with who started it dies with the calling process: whether that dies with its own
    /// parent is its own matter.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub fn exec(&self, exec: Exec) -> Result<ExitStatus, LabError> {
        self.with_start(exec, |start| Ok(process::run_in_foreground(start)?))
    }

    /// The front end: the switches' network, and for the rest the machine itself. Launchers of
    /// parallel programs start there: a node cannot see into another.
    fn with_front_end<T>(
        &self,
        exec: Exec,
        run: impl FnOnce(Start<'_>) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let ended = || LabError::Ended { what: format!("lab {}", self.name()) };
        let state = self.files.read_state().ok_or_else(ended)?;
        let holder = self.holder()?;
        let user = if state.rootless { CloneFlags::CLONE_NEWUSER } else { CloneFlags::empty() };
        let mut environment = exec.environment;
        environment.push(("KEEPTIME_LAB".into(), self.name().as_str().into()));
        run(Start {
            inside: &holder,
            namespaces: CloneFlags::CLONE_NEWNET | user,
            groups: Vec::new(),
            words: exec.words.argv(),
            environment,
            directory: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            bond: if exec.die_with_parent { Bond::ChildForLife } else { Bond::Child },
            stdio: exec.stdio,
        })
    }

    fn holder(&self) -> Result<Process, LabError> {
        let ended = || LabError::Ended { what: format!("lab {}", self.name()) };
        self.files.read_holder().ok_or_else(ended)?.open()?.ok_or_else(ended)
    }

    fn with_start<T>(
        &self,
        exec: Exec,
        run: impl FnOnce(Start<'_>) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        if exec.node == FRONT_END {
            return self.with_front_end(exec, run);
        }
        let (at, init, state) = self.running_node(&exec.node)?;
        let node = &self.topology().nodes()[at];
        let mut environment = exec.environment;
        environment.push(("KEEPTIME_LAB".into(), self.name().as_str().into()));
        environment.push(("KEEPTIME_NODE".into(), node.name.as_str().into()));
        let user = if state.rootless { CloneFlags::CLONE_NEWUSER } else { CloneFlags::empty() };
        run(Start {
            inside: &init,
            namespaces: NAMESPACES | user,
            groups: self.groups_to_join(&node.name, &exec.account)?,
            words: exec.words.argv(),
            environment,
            directory: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            bond: if exec.die_with_parent { Bond::ChildForLife } else { Bond::Child },
            stdio: exec.stdio,
        })
    }

    fn groups_to_join(
        &self,
        node: &Name,
        account: &Account,
    ) -> Result<Vec<std::fs::File>, LabError> {
        let Some(group) = self.group(node) else { return Ok(Vec::new()) };
        let group = match account {
            Account::Nobody => group.rest()?,
            Account::Job(job) => {
                let group = group.child(job.as_str())?;
                if !group.exists() {
                    let expected = format!("a job that is assigned to {node}");
                    return Err(Invalid::new("job", job, expected).into());
                }
                group
            }
            Account::Service(service) => return Ok(group.open_service_to_join(&service.unit())?),
        };
        Ok(group.open_to_join()?)
    }

    /// The position of a node that is given by name or address, its process 1, and the state.
    fn running_node(&self, node: &str) -> Result<(usize, Process, State), LabError> {
        let nodes = self.topology().nodes();
        let address: Option<Ipv4Addr> = node.parse().ok();
        let is_it = |n: &keeptime_model::topology::Node| {
            n.name.as_str() == node || (address.is_some() && n.address == address)
        };
        let at = nodes.iter().position(is_it).ok_or_else(|| LabError::UnknownNode {
            lab: self.name().clone(),
            node: node.into(),
            nodes: nodes.iter().map(|node| node.name.to_string()).collect(),
        })?;
        let ended = |what: String| LabError::Ended { what };
        let state = self.files.read_state();
        let state = state.ok_or_else(|| ended(format!("lab {}", self.name())))?;
        let gone = || ended(format!("node {} of lab {}", nodes[at].name, self.name()));
        let init = state.nodes.get(at).ok_or_else(gone)?.identity().open()?.ok_or_else(gone)?;
        Ok((at, init, state))
    }

    fn node_status(&self, at: usize, state: &Option<State>) -> NodeStatus {
        let node = &self.topology().nodes()[at];
        let init = state.as_ref().and_then(|state| state.nodes.get(at)).map(|i| i.identity());
        NodeStatus {
            name: node.name.clone(),
            // Every node of a spec has one.
            address: node.address.unwrap_or(Ipv4Addr::UNSPECIFIED),
            bits_per_second: hardware::node_rate(&self.spec, at),
            cpu_ppm: node.cpu,
            pid: init.filter(|init| init.is_alive()).map(|init| init.pid),
            cpu_nanos: self.group(&node.name).and_then(|group| group.cpu_usage().ok()),
        }
    }
}

/// Where the labs of a user are written down; `given` is `XDG_RUNTIME_DIR`, which counts for nothing where it is not absolute,
/// or no directory of this user's: a batch job has the variable of the machine on which it was submitted, and `su` that of
/// another user. What has begun `elsewhere` is gone on with there: that directory may come into being later.
/// Root's runtime directory, which others may look into.
const OF_ROOT: &str = "/run/keeptime";

fn directory_in(runtime: &Path) -> PathBuf {
    runtime.join("labs")
}

fn runtime_of_user(user: Uid, given: Option<&OsStr>, elsewhere: PathBuf) -> PathBuf {
    let given = given.map(Path::new).filter(|given| given.is_absolute() && is_own(given, user));
    match given.map(|given| given.join("keeptime")) {
        _ if user.is_root() => OF_ROOT.into(),
        Some(directory) if directory.exists() || !is_own(&elsewhere, user) => directory,
        _ => elsewhere,
    }
}

/// Whether it is a directory of this user's, and no link to one.
fn is_own(directory: &Path, user: Uid) -> bool {
    let found = std::fs::symlink_metadata(directory);
    found.is_ok_and(|found| found.is_dir() && found.uid() == user.as_raw())
}

/// The runtime directory of a lab's directory `RUNTIME/labs/NAME`.
pub(crate) fn runtime_of(lab: &Path) -> &Path {
    lab.parent().and_then(Path::parent).unwrap_or(Path::new("/"))
}

/// Who makes labs: in the tree of control groups, only one of all labs of one name can have groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// Whose labs have control groups.
    Root,
    /// Whose labs have none.
    User,
}

impl Maker {
    /// Of a lab that this process makes or uses, unless that has moved to another user namespace.
    pub(crate) fn own() -> Self {
        if nix::unistd::geteuid().is_root() { Self::Root } else { Self::User }
    }
}

/// Removes what stays when all processes have been told to end: waits for them, and removes the
/// groups and then the files. Returns how many processes had to be killed here.
pub(crate) fn remove_leftovers(files: &LabFiles, maker: Maker) -> Result<usize, LabError> {
    let name = files.directory().file_name().unwrap_or_default().to_string_lossy();
    let group = match (name.parse::<Name>(), Hierarchies::discover(), maker) {
        // Also where only groups above it were made.
        (Ok(name), Ok(hierarchies), Maker::Root) => Some(hierarchies.group(lab_group_path(&name))?),
        _ => None,
    };
    let mut stragglers = 0;
    for init in files.read_state().map(|state| state.nodes).unwrap_or_default() {
        let Some(process) = init.identity().open()? else { continue };
        if process.wait(END_LIMIT)? {
            continue;
        }
        // It waits for all in its namespace, and one of them may have no processor time to end in.
        if let Some(group) = &group {
            stragglers += group.pids()?.len();
            group.kill_all()?;
        }
        if !process.wait(END_LIMIT)? {
            let what = format!("process 1 of a node ({})", init.identity().pid);
            return Err(LabError::Stuck { what, seconds: END_LIMIT.as_secs() });
        }
    }
    if let Some(group) = group {
        // The front end's daemons are there until now.
        group.child(FRONT_END)?.kill_all()?;
        stragglers += group.pids()?.len();
        group.kill_all()?;
        group.remove()?;
    }
    files.remove()?;
    Ok(stragglers)
}

/// Kills the holder, if it is the very process that wrote itself down, and waits for its end.
/// False if it had ended before.
fn end_holder(files: &LabFiles) -> Result<bool, LabError> {
    let Some(holder) = files.read_holder() else { return Ok(false) };
    let Some(process) = holder.open()? else { return Ok(false) };
    process.signal(Signal::SIGKILL)?;
    if !process.wait(END_LIMIT)? {
        let what = format!("the lab's holder ({})", holder.pid);
        return Err(LabError::Stuck { what, seconds: END_LIMIT.as_secs() });
    }
    Ok(true)
}

/// Groups of that name with processes in them: a lab of another runtime directory. An ordinary user's lab has no groups that
/// could be in the way of others'.
fn in_use_elsewhere(name: &Name) -> bool {
    roots_group(name).is_some_and(|group| group.pids().is_ok_and(|pids| !pids.is_empty()))
}

/// Groups of a lab whose holder was killed, and whose directory somebody has removed: agents would look for jobs in them.
fn remove_empty_groups(name: &Name) -> Result<(), LabError> {
    match roots_group(name).filter(Group::exists) {
        Some(group) => Ok(group.remove()?),
        None => Ok(()),
    }
}

/// The group of a lab of that name, whether it is there or not; nothing for an ordinary user, or where there can be none.
fn roots_group(name: &Name) -> Option<Group> {
    if Maker::own() == Maker::User {
        return None;
    }
    Hierarchies::discover().and_then(|hierarchies| hierarchies.group(lab_group_path(name))).ok()
}

/// All that the holder reads.
fn write_files(spec: &Spec, files: &LabFiles) -> Result<(), LabError> {
    let mut hosts = String::from("127.0.0.1 localhost\n");
    for node in spec.topology().nodes() {
        let directory = files.node(&node.name);
        std::fs::create_dir_all(&directory).map_err(LabError::file("mkdir", &directory))?;
        if let Some(address) = node.address {
            // Writing to a string does not fail.
            let _ = writeln!(hosts, "{address} {}", node.name);
        }
    }
    let write = |path: PathBuf, text: &str| {
        std::fs::write(&path, text).map_err(LabError::file("write", &path))
    };
    write(files.hosts(), &hosts)?;
    write(files.topology(), &spec.topology().to_toml())
}

/// The code that a shell would tell of an end: that of the program, or 128 and the signal.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(2)
}

/// Fifty times what sixteen nodes take on an idle machine.
const UP_LIMIT: Duration = Duration::from_secs(20);
/// Killed processes end within milliseconds.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Init;
    use keeptime_linux::process::Identity;
    use keeptime_model::units::{BitsPerSecond, CpuPpm};

    // Goal: no policer is looked for, or set, in a network that is not the lab's. Method: a lab whose holder has ended, and
    // whose number this process has now; its node still runs.
    #[test]
    fn a_holder_that_has_ended_is_not_taken_for_whoever_has_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let rate = BitsPerSecond::from_mbit(200);
        let name = "old".parse().unwrap();
        let spec = Spec::star(name, 1, rate, CpuPpm::from_percent(5)).unwrap();
        let lab = Lab { files: LabFiles::at(directory.path().into()), spec };
        let own = Identity::own().unwrap();
        let nodes = vec![Init { pid: own.pid, start: own.start }];
        let state = State { version: 1, rootless: false, nodes, not_enforced: vec![] };
        lab.files.write_state(&state).unwrap();
        lab.files.write_holder(Identity { start: own.start + 1, ..own }).unwrap();
        let policed = lab.policed("n1").unwrap_err();
        assert!(matches!(policed, LabError::Ended { .. }), "{policed}");
    }

    #[test]
    fn labs_of_a_user_are_in_one_place_wherever_the_command_is_called() {
        let there = tempfile::tempdir().unwrap();
        let user = nix::unistd::geteuid();
        // Root's are where they are whatever is said.
        let user = if user.is_root() { Uid::from_raw(7) } else { user };
        std::os::unix::fs::chown(there.path(), Some(user.as_raw()), None).unwrap();
        let (given, elsewhere) = (there.path().join("given"), there.path().join("elsewhere"));
        let make = |path: &Path| {
            std::fs::create_dir(path).unwrap();
            std::os::unix::fs::chown(path, Some(user.as_raw()), None).unwrap();
        };
        let of = |user, given: Option<&Path>| {
            runtime_of_user(user, given.map(Path::as_os_str), elsewhere.clone())
        };
        assert_eq!(of(Uid::from_raw(0), Some(&given)), Path::new("/run/keeptime"));
        assert_eq!(of(user, Some(&given)), elsewhere, "it is not there");
        make(&given);
        assert_eq!(of(user, Some(&given)), given.join("keeptime"));
        for no_place in [None, Some(Path::new("")), Some(Path::new("tests")), Some(Path::new("/"))]
        {
            assert_eq!(of(user, no_place), elsewhere, "{no_place:?}");
        }
        make(&elsewhere);
        assert_eq!(of(user, Some(&given)), elsewhere, "something was begun there before");
        make(&given.join("keeptime"));
        assert_eq!(of(user, Some(&given)), given.join("keeptime"), "and here, too");
    }
}
