//! The one process that a lab hangs from. It owns the switches' network namespace and is the
//! parent of every node's process 1; when it ends, by whatever, the kernel ends all of them.

use crate::error::LabError;
use crate::files::{Init, LabFiles, LabsLock, State, remove_empty};
use crate::hardware::{self, Wiring};
use crate::labs::{self, END_LIMIT, Maker};
use crate::node::{self, NAMESPACES, NodePlan, Told, hear, tell};
use crate::spec::Spec;
use keeptime_linux::cgroup::{CgroupError, Group, Hierarchies};
use keeptime_linux::netlink::{NetlinkError, Socket};
use keeptime_linux::netns;
use keeptime_linux::process::Identity;
use keeptime_linux::syscall::SyscallError;
use keeptime_linux::tc::{self, Observed};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::topology::{Node, Topology};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the holder tells who started it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The lab stands.
    Ready,
    /// It does not, and why.
    Failed {
        reason: String,
        /// The feature that is missing and what it needs, if that is why.
        unsupported: Option<(String, String)>,
    },
}

/// The hidden command behind [`Labs`](crate::Labs): `words` are as that gives them, and standard
/// input is the connection to it. For a process with one thread; returns its exit code when the
/// lab could not be made, or its files have been taken away, and never otherwise.
pub fn holder_main(words: &[OsString]) -> i32 {
    let [directory] = words else {
        eprintln!("the holder of a lab is started by `up` only");
        return 64;
    };
    match hold(Path::new(directory)) {
        Ok(()) => 0,
        Err(error) => {
            log(&chain(&error));
            2
        }
    }
}

/// A line of the lab's log. A disk that is full ends no lab, as a failure to print would.
fn log(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn hold(directory: &Path) -> Result<(), LabError> {
    // Wherever this process will be.
    let directory = std::path::absolute(directory).map_err(LabError::file("find", directory))?;
    let (files, maker) = (LabFiles::at(directory), Maker::own());
    let (control, lock) = take_control()?;
    let _ = nix::unistd::setsid();
    // Before anything else: from here on, whoever finds the directory finds the holder.
    files.write_holder(Identity::own()?)?;
    let (nodes, sockets) = (Vec::new(), Vec::new());
    let (control, lock) = (Some(control), Some(lock));
    let mut lab = Holder { files, maker, control, lock, nodes, sockets };
    let made = lab.make();
    lab.tell(&made.as_ref().map_or_else(Outcome::failed, |()| Outcome::Ready));
    // Who does not want a lab that was made, or hears why it was not, kills this process. If
    // nobody answers, nobody knows of the lab.
    if !lab.wait_for_verdict() {
        log("who made this lab has ended before it stood: it is removed");
        lab.undo()?;
        remove_empty(lab.runtime());
        return made;
    }
    (lab.control, lab.lock) = (None, None);
    // Where the user was can be unmounted.
    let _ = std::env::set_current_dir("/");
    lab.stay();
    lab.go()
}

/// Standard input is the connection to `up`, standard output its lock over all labs. What is
/// started here must keep neither.
fn take_control() -> Result<(UnixStream, OwnedFd), LabError> {
    let name = Path::new("standard input and output");
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(LabError::file("dup", name));
    let control = copy(std::io::stdin().as_fd())?;
    let lock = copy(std::io::stdout().as_fd())?;
    let null = std::fs::File::open("/dev/null").map_err(LabError::file("open", name))?;
    let replaced =
        nix::unistd::dup2_stdin(&null).and_then(|()| nix::unistd::dup2_stdout(std::io::stderr()));
    replaced.map_err(SyscallError::of("dup2", name.to_string_lossy()))?;
    Ok((UnixStream::from(control), lock))
}

struct Holder {
    files: LabFiles,
    /// Whose lab it is. Inside of a user namespace everybody seems to be root.
    maker: Maker,
    /// To `up`, until it knows.
    control: Option<UnixStream>,
    /// A part of `up`'s lock over all labs: held although `up` is killed, until the lab stands or
    /// is removed again.
    lock: Option<OwnedFd>,
    /// Process 1 of each node.
    nodes: Vec<Init>,
    /// To each of them, until they are complete.
    sockets: Vec<UnixStream>,
}

impl Holder {
    fn make(&mut self) -> Result<(), LabError> {
        let spec = self.read_spec()?;
        let rootless = leave_network()?;
        let mut not_enforced = Vec::new();
        let groups = match self.maker {
            Maker::Root => make_groups(&spec, &mut not_enforced)?,
            Maker::User => no_groups("root alone makes control groups", &mut not_enforced),
        };
        node::without_ipv6();
        self.start_nodes(&spec, &groups)?;
        let mut socket = Socket::open()?;
        let wiring = Wiring::of(&spec);
        let pids: Vec<_> = self.nodes.iter().map(|node| node.pid).collect();
        socket.batch(&wiring.requests(&pids))?;
        self.sockets.iter().try_for_each(|node| tell(node, &())).map_err(node_gone())?;
        // The nodes connect themselves meanwhile.
        shape_ports(&mut socket, &wiring, &spec)?;
        not_enforced.extend(self.hear_nodes()?);
        if rootless {
            not_enforced.push(
                "classes of single flows: eBPF programs can be loaded by root only".to_string(),
            );
        }
        let nodes = self.nodes.clone();
        self.files.write_state(&State { version: 1, rootless, nodes, not_enforced })
    }

    fn read_spec(&self) -> Result<Spec, LabError> {
        let path = self.files.topology();
        let text = std::fs::read_to_string(&path).map_err(LabError::file("read", &path))?;
        let name = self.files.directory().file_name().unwrap_or_default().to_string_lossy();
        Ok(Spec::from_topology(name.parse()?, Topology::from_toml(&text)?)?)
    }

    fn start_nodes(&mut self, spec: &Spec, groups: &[Group]) -> Result<(), LabError> {
        let kept = node::kept_directories(self.wanted_directories());
        for at in 0..spec.topology().nodes().len() {
            let plan = self.plan(spec, at, kept.clone());
            let (ours, theirs) = UnixStream::pair()
                .map_err(LabError::file("socketpair", Path::new(plan.name.as_str())))?;
            let mut ours = Some(ours);
            let pid = netns::fork_into(NAMESPACES, || {
                // The connections of others must not outlive their other ends.
                drop((self.control.take(), self.lock.take(), ours.take()));
                drop(std::mem::take(&mut self.sockets));
                node::run(&plan, theirs)
            })?;
            let gone = || LabError::Ended { what: format!("process 1 of {}", plan.name) };
            let identity = Identity::of(pid.as_raw())?.ok_or_else(gone)?;
            self.nodes.push(Init { pid: identity.pid, start: identity.start });
            self.sockets.extend(ours);
            if let Some(group) = groups.get(at) {
                group.rest()?.join(pid.as_raw())?;
            }
        }
        Ok(())
    }

    fn plan(&self, spec: &Spec, at: usize, kept: Vec<PathBuf>) -> NodePlan {
        let node = &spec.topology().nodes()[at];
        NodePlan {
            name: node.name.clone(),
            // Every node of a spec has one.
            address: node.address.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED),
            network: spec.network(),
            rate: hardware::node_rate(spec, at),
            hosts: self.files.hosts(),
            kept,
        }
    }

    /// The lab's own files, this program, and where the user is.
    fn wanted_directories(&self) -> Vec<PathBuf> {
        let program = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.to_path_buf()));
        let here = std::env::current_dir().ok();
        [Some(self.files.directory().to_path_buf()), program, here].into_iter().flatten().collect()
    }

    fn hear_nodes(&mut self) -> Result<Vec<String>, LabError> {
        let mut all_missing = Vec::new();
        for socket in std::mem::take(&mut self.sockets) {
            match hear(&socket).map_err(node_gone())? {
                Told::Complete { missing } => all_missing.extend(missing),
                Told::Failed { reason } => return Err(LabError::NotMade { reason }),
            }
        }
        Ok(all_missing)
    }

    fn tell(&self, outcome: &Outcome) {
        if let Some(control) = &self.control {
            // If nobody listens any more, the verdict below says so.
            let _ = tell(control, outcome);
        }
    }

    /// True if `up` has taken the lab over.
    fn wait_for_verdict(&self) -> bool {
        self.control.as_ref().is_some_and(|control| hear::<()>(control).is_ok())
    }

    /// Until somebody ends this process, or the lab's files are taken away, as a system does with those of a user
    /// who has logged out, or that are old: then nobody could name the lab any more to remove it.
    fn stay(&self) {
        while !self.files.are_gone() {
            bury_the_dead();
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Removes the lab on its own account.
    fn go(&self) -> Result<(), LabError> {
        // Taking the lock makes the directories over all labs.
        let has_runtime = self.runtime().join("labs").is_dir();
        let lock = has_runtime.then(|| LabsLock::take(self.runtime())).transpose()?;
        self.undo()?;
        if let Some(lock) = lock {
            lock.release(self.runtime());
        }
        Ok(())
    }

    /// For who has the lock, or where no directory is left that it could be on.
    fn undo(&self) -> Result<(), LabError> {
        for node in &self.nodes {
            // What has ended was perhaps waited for, and its number given to somebody else.
            let Some(process) = node.identity().open()? else { continue };
            process.signal(Signal::SIGKILL)?;
            // Who needs longer is killed with its group, below.
            process.wait(END_LIMIT)?;
        }
        labs::remove_leftovers(&self.files, self.maker)?;
        Ok(())
    }

    fn runtime(&self) -> &Path {
        labs::runtime_of(self.files.directory())
    }
}

/// Waits for whoever has ended, and tells it.
fn bury_the_dead() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG))
        && status != WaitStatus::StillAlive
    {
        log(&format!("process 1 of a node has ended: {status:?}"));
    }
}

impl Outcome {
    fn failed(error: &LabError) -> Self {
        Self::Failed { reason: chain(error), unsupported: unsupported(error) }
    }
}

/// What the kernel lacks, if its answer says that.
fn unsupported(error: &LabError) -> Option<(String, String)> {
    let named = |feature: &str, needs: &str| Some((feature.to_owned(), needs.to_owned()));
    match error {
        LabError::Netlink(NetlinkError::Refused { call, object, errno, .. }) => {
            match (*call, errno) {
                (_, Errno::EOPNOTSUPP) | ("RTM_NEWQDISC", Errno::ENOENT) => named(
                    object,
                    "a kernel with veth, bridge, sch_htb, sch_tbf and cls_u32, built in or as modules",
                ),
                ("RTM_NEWROUTE", Errno::EINVAL | Errno::ENOENT) => {
                    named("TCP congestion control cubic", "a kernel with CONFIG_TCP_CONG_CUBIC")
                }
                _ => None,
            }
        }
        LabError::Syscall(SyscallError { call: "unshare" | "clone", object, errno }) => {
            Some((object.clone(), user_namespaces(*errno)))
        }
        // Where such namespaces can be made and are of no use, it is their maps of users that are refused.
        LabError::Syscall(SyscallError { call: "write", object, errno })
            if object.starts_with("/proc/self/") =>
        {
            Some((object.clone(), user_namespaces(*errno)))
        }
        LabError::Cgroup(CgroupError::Refused { path, source, .. })
            if source.raw_os_error() == Some(Errno::EBUSY as i32)
                && path.ends_with("cgroup.subtree_control") =>
        {
            named(
                "the CPU controller for new control groups",
                &format!(
                    "no processes in the group of {}: in a container, move those of its \
                     cgroup.procs to a group beside it",
                    path.display()
                ),
            )
        }
        _ => None,
    }
}

fn user_namespaces(errno: Errno) -> String {
    format!(
        "root, or a kernel that lets ordinary users make user namespaces and be root inside \
         (user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns): {}",
        errno.desc()
    )
}

/// A network namespace of its own; true if that took a user namespace.
fn leave_network() -> Result<bool, LabError> {
    match netns::leave_network() {
        Err(error) if error.errno == Errno::EPERM => {
            netns::become_root_inside()?;
            netns::leave_network()?;
            Ok(true)
        }
        left => Ok(left.map(|()| false)?),
    }
}

/// The groups of the nodes with their limits, or none and the reason.
fn make_groups(spec: &Spec, not_enforced: &mut Vec<String>) -> Result<Vec<Group>, LabError> {
    let hierarchies = match Hierarchies::discover() {
        Err(error @ CgroupError::Unsupported { .. }) => {
            return Ok(no_groups(&chain(&error), not_enforced));
        }
        found => found?,
    };
    let nodes = spec.topology().nodes().iter();
    let made: Result<Vec<_>, CgroupError> =
        nodes.map(|node| make_group(&hierarchies, spec.name(), node)).collect();
    if made.is_err() {
        // Groups of some nodes, or in some hierarchies, could be neither joined nor relied on.
        let _ = hierarchies.group(lab_group_path(spec.name()))?.remove();
    }
    match made {
        Err(error) if error.is_denied() => Ok(no_groups(&chain(&error), not_enforced)),
        made => Ok(made?),
    }
}

fn make_group(hierarchies: &Hierarchies, lab: &Name, node: &Node) -> Result<Group, CgroupError> {
    let group = hierarchies.group(group_path(lab, &node.name))?;
    let rest = group.rest()?;
    rest.create()?;
    // On the innermost group, as the agent's limits for jobs are: of two limits one in another
    // the outer is handed to one CPU for up to 5 ms, and groups on the others stand still.
    // The agent takes from this one what it gives to jobs.
    rest.set_cpu(node.cpu)?;
    Ok(group)
}

fn no_groups(reason: &str, not_enforced: &mut Vec<String>) -> Vec<Group> {
    not_enforced.push(format!("the nodes' shares of the CPU: {reason}"));
    Vec::new()
}

/// The group of a node.
pub(crate) fn group_path(lab: &Name, node: &Name) -> PathBuf {
    lab_group_path(lab).join(node.as_str())
}

/// The group of all nodes of a lab. No job can have its name: an agent of this machine, whose jobs have
/// their groups beside it, would end the lab as one that nobody asked for.
pub(crate) fn lab_group_path(lab: &Name) -> PathBuf {
    Path::new(keeptime_linux::cgroup::MARK).join(format!("_lab.{lab}"))
}

fn shape_ports(socket: &mut Socket, wiring: &Wiring, spec: &Spec) -> Result<(), LabError> {
    for tree in wiring.trees(spec) {
        let nothing = Observed::empty(tree.place.ifindex);
        let ops = tc::diff(&tree, &nothing).map_err(tc::TcError::from)?;
        tc::apply(socket, &tree.place, &ops)?;
    }
    Ok(())
}

fn node_gone() -> impl Fn(std::io::Error) -> LabError {
    |source| LabError::File { call: "talk", path: "process 1 of a node".into(), source }
}

/// Seldom enough to cost nothing that can be measured beside a lab.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    // An agent of this machine, with its jobs right below the mark, passes over what no job can be called; a lab's
    // own agents have their jobs further down.
    #[test]
    fn no_agent_takes_a_lab_for_a_job() {
        let [lab, node] = ["demo", "n1"].map(|name| name.parse::<Name>().unwrap());
        let path = group_path(&lab, &node);
        assert_eq!(path, Path::new("keeptime/_lab.demo/n1"));
        let beside_jobs = path.iter().nth(1).unwrap().to_str().unwrap();
        assert!(beside_jobs.parse::<Name>().is_err(), "{beside_jobs}");
    }

    #[test]
    fn what_the_kernel_lacks_is_told_with_what_it_needs() {
        let netlink = |call, errno| {
            let object = "tbf queueing discipline".to_owned();
            LabError::from(NetlinkError::Refused { call, object, errno, detail: None })
        };
        let (feature, needs) = unsupported(&netlink("RTM_NEWQDISC", Errno::ENOENT)).unwrap();
        assert!(feature.contains("tbf") && needs.contains("sch_tbf"), "{feature}: {needs}");
        assert_eq!(unsupported(&netlink("RTM_NEWQDISC", Errno::EPERM)), None);
        let object = "CLONE_NEWUSER".to_owned();
        let refused = SyscallError { call: "unshare", object, errno: Errno::EPERM };
        let (_, needs) = unsupported(&refused.into()).unwrap();
        assert!(needs.contains("user.max_user_namespaces"), "{needs}");
        // As Ubuntu 24.04 answers ordinary users.
        let object = "/proc/self/uid_map".to_owned();
        let refused = SyscallError { call: "write", object, errno: Errno::EPERM };
        let (_, needs) = unsupported(&refused.into()).unwrap();
        assert!(needs.contains("kernel.apparmor_restrict_unprivileged_userns"), "{needs}");
    }

    // A container that has processes where its tree of groups begins.
    #[test]
    fn a_tree_of_groups_that_is_in_use_is_told_with_the_way_out() {
        let refused = |file: &str, errno: Errno| {
            let path = Path::new("/sys/fs/cgroup").join(file);
            LabError::from(CgroupError::Refused { call: "write", path, source: errno.into() })
        };
        let (feature, needs) =
            unsupported(&refused("cgroup.subtree_control", Errno::EBUSY)).unwrap();
        assert!(feature.contains("CPU controller") && needs.contains("cgroup.procs"), "{needs}");
        assert_eq!(unsupported(&refused("cgroup.subtree_control", Errno::ENOSPC)), None);
        assert_eq!(unsupported(&refused("cgroup.procs", Errno::EBUSY)), None);
    }
}
