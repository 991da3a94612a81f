//! The kernel's side of an agent: control groups for jobs, classes and marks for their flows.
//!
//! What is enforced lives in the kernel and goes on without the agent; every call compares what is
//! there with what is wanted and changes the difference only.

mod binding;
mod clearing;
mod cpu;
mod device;
mod measure;
mod unenforced;

pub use clearing::{Cleared, clear};
pub use device::{await_device, check_device, missing_device, slower_device};
pub use unenforced::Unenforced;

use crate::book::Capacity;
use crate::claim::{self, ClaimError};
use crate::config::Config;
use crate::enforcer::{BindError, BoxedError, Enforcer, Failures, Scope};
use crate::shares::{DiskShares, are_kept_from_user_space, disk_shares};
use crate::wire::JobStatus;
use cpu::CpuKeeper;
use device::{device, no_device, successor};
use keeptime_control::admission::Bounds;
use keeptime_linux::cgroup::{CgroupError, Group, GroupClaim, Hierarchies};
use keeptime_linux::egress::{self, Egress, Flow, Link};
use keeptime_linux::flows::{self, FlowTable, Flows, FlowsError};
use keeptime_linux::link::interfaces;
use keeptime_linux::netlink::Socket;
use keeptime_linux::probe;
use keeptime_linux::segments;
use keeptime_linux::started::Started;
use keeptime_linux::tc::{self, Attach, Handle, Place, TREE_MAJOR};
use keeptime_linux::user_level;
use keeptime_linux::user_level::jobs::{JobSchedules, SharingError};
use keeptime_model::assignment::{AssignedFlow, Assignment};
use keeptime_model::capability::{Capabilities, Feature};
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::disk::{DiskId, DiskRates};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::Nanos;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

/// The kernel of this node.
pub struct Kernel {
    socket: Socket,
    place: Place,
    link: Link,
    group: Group,
    /// That no other agent has the group, or the device.
    claim: GroupClaim,
    cpu: CpuKeeper,
    /// What may be reserved of the disks.
    disks: BTreeMap<DiskId, DiskRates>,
    /// Whether processes may leave the control groups of Slurm for those of jobs.
    leaves_slurm: bool,
    leaves_limits: bool,
    /// Processes and threads that a job may have.
    job_tasks: u32,
    /// Found out once: it takes too long for every question.
    capabilities: Capabilities,
    /// The program at the device's egress, once one is there: as long as agents enforce anything here.
    flows: Option<Flows>,
    /// Disk limits that were set; nothing = not known what an earlier agent left.
    disk_limits: Option<DiskShares>,
    /// What the device was made to send by; nothing = not known what is in force.
    sent_by: Option<SentBy>,
    /// Why what is over had not ended when it was looked at last.
    left: Vec<String>,
    /// Why others' code points may leave the node while it has no flows, when it was looked at last.
    unmarked: Option<String>,
}

/// What a device is made to send by.
struct SentBy {
    flows: Vec<Flow>,
    table: FlowTable,
}

/// Stands for a device that is not there: none has this index.
const NO_DEVICE: u32 = 0;
/// The agent's own group: no job can have this name, and best-effort processes cannot starve it.
const AGENT_GROUP: &str = "_agent";
/// Where the agent finds out what it can enforce.
const PROBE_GROUP: &str = "_probe";
/// All that is over together is waited for so long before what is wanted comes: others wait for the agent
/// meanwhile, and killed processes end within milliseconds.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the node that `config` describes can give, enforced by `enforcer`.
pub fn capacity(config: &Config, enforcer: &impl Enforcer) -> Capacity {
    let found = enforcer.capabilities();
    // Without them nothing is admitted there either.
    let bounds = || user_level::bounds().unwrap_or(Bounds::user_level(0));
    let schedules = found.is_some_and(are_kept_from_user_space).then(bounds);
    Capacity {
        cpu: schedules.map_or(config.cpu, |bounds| config.cpu.min(bounds.capacity())),
        reservable: egress::reservable(&Link::new(&config.device, config.rate)),
        disks: config.disk_rates(),
        capabilities: found.cloned(),
        schedules,
    }
}

impl Kernel {
    /// The kernel as `config` describes it, in the network namespace of this process. Makes the node's group, sets free
    /// what an agent that was killed has left standing still, and changes nothing else. What starts a `guard`: see
    /// [`enforcer`].
    ///
    /// # Errors
    /// If the device or the control groups are not there, or this process may not use them.
    pub fn open(config: &Config, group: &Path, guard: &[OsString]) -> Result<Self, BoxedError> {
        let mut socket = Socket::open()?;
        let ifindex = device(&mut socket, &config.device)?.ok_or_else(|| no_device(config))?;
        let kernel = Self::at(ifindex, socket, config, group, guard)?;
        if let Err(error) = complete_bound(&kernel.group) {
            tracing::error!("what was bound may not have its job's limits: {}", chain(&error));
        }
        Ok(kernel)
    }

    /// The same with the device of this index, or with [`NO_DEVICE`]: then nothing can be enforced, and what is there can be
    /// taken away.
    fn at(
        ifindex: u32,
        mut socket: Socket,
        config: &Config,
        group: &Path,
        guard: &[OsString],
    ) -> Result<Self, BoxedError> {
        let attach = match config.attach_parent()? {
            None => Attach::Root,
            Some((major, minor)) => Attach::Under(Handle { major, minor }),
        };
        let group = Hierarchies::discover_any()?.group(group)?;
        // After a boot it is not there. Jobs are told apart by their groups' numbers: without them nothing can be enforced.
        group.create_known()?;
        // Before anything of another agent's is touched, as what it holds.
        let claim = claim::take_group(&group)?;
        if ifindex != NO_DEVICE {
            claim::take_device(&claim, &config.device, ifindex)?;
        }
        if let Err(error) = set_free(&group) {
            tracing::error!(
                "what was scheduled from user space may stand still: {}",
                chain(&error)
            );
        }
        join_own_group(&group)?;
        let place = Place { ifindex, attach, major: TREE_MAJOR };
        let flows = match ifindex {
            NO_DEVICE => None,
            ifindex => Flows::adopt(&mut socket, ifindex)?,
        };
        let capabilities = probe::capabilities(group.child(PROBE_GROUP)?.path());
        let schedules = JobSchedules::new(user_level::bounds()?);
        let schedules = match guard {
            [] => schedules,
            words => {
                let node = group.path().as_os_str().to_owned();
                schedules.guarded_by(words.iter().cloned().chain([node]).collect())
            }
        };
        let cpu = CpuKeeper::new(capabilities.clone(), config.cpu, schedules);
        Ok(Self {
            socket,
            place,
            link: Link::new(&config.device, config.rate),
            group,
            claim,
            cpu,
            disks: config.disk_rates(),
            leaves_slurm: config.leaves_slurm,
            leaves_limits: config.leaves_limits,
            job_tasks: config.job_tasks,
            capabilities,
            flows,
            disk_limits: None,
            sent_by: None,
            left: Vec::new(),
            unmarked: None,
        })
    }

    /// Ends the groups of jobs that are not wanted, with their processes; what was only bound to
    /// them goes back to where it was. What does not end keeps nobody waiting for what is wanted: it is said, and
    /// tried again when this is asked for next.
    fn end_strays(&mut self, wanted: &BTreeMap<Name, Assignment>) {
        let until = Instant::now() + PATIENCE;
        let left: Vec<String> = match self.strays(wanted) {
            Ok(strays) => {
                let ended = strays.iter().map(|job| self.end_stray(job, until));
                ended.filter_map(|ended| Some(chain(ended.err()?.as_ref()))).collect()
            }
            Err(error) => vec![chain(&error)],
        };
        // The same trouble every time is said once.
        if left != self.left && !left.is_empty() {
            tracing::error!("what is over has not ended: {}", left.join("; "));
        }
        self.left = left;
    }

    /// The jobs that have a group and are not wanted.
    fn strays(&self, wanted: &BTreeMap<Name, Assignment>) -> Result<Vec<Name>, CgroupError> {
        let jobs = jobs_below(&self.group)?.into_iter();
        Ok(jobs.filter(|job| !wanted.contains_key(job)).collect())
    }

    fn end_stray(&mut self, job: &Name, until: Instant) -> Result<(), BoxedError> {
        let group = self.group.child(job.as_str())?;
        let back = self.cpu.end(job, &group).and_then(|()| Ok(group.give_back_until(until)?));
        if let Some(limits) = &mut self.disk_limits {
            limits.jobs.remove(job);
        }
        // A process needs some time to end in; with the limit it may wait for a period, and ends all the same.
        let _ = group.lift_cpu();
        let patience = || until.saturating_duration_since(Instant::now());
        // Whoever has not gone back yet keeps nobody else alive.
        group.kill_within(patience())?;
        back?;
        Ok(group.remove_within(patience())?)
    }

    fn make_group(&mut self, assignment: &Assignment) -> Result<(), BoxedError> {
        let group = self.group.child(assignment.job.as_str())?;
        // One that somebody has taken away is made again, and has no limit of a disk then.
        if let Some(limits) = self.disk_limits.as_mut().filter(|_| !group.is_whole()) {
            limits.jobs.remove(&assignment.job);
        }
        self.cpu.keep(assignment, &group)?;
        // They are looked at again and again, while others wait.
        Ok(group.limit_tasks(self.job_tasks)?)
    }

    fn keep_rest(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Result<(), Failures> {
        if !self.group.rest().is_ok_and(|rest| rest.is_whole()) {
            self.disk_limits = None;
        }
        self.cpu.keep_rest(wanted, &self.group, scope)
    }

    /// Those that have a group: without one a job has no packets and no processes.
    fn standing(&self, wanted: &BTreeMap<Name, Assignment>) -> BTreeMap<Name, Assignment> {
        let stands =
            |job: &Name| self.group.child(job.as_str()).is_ok_and(|group| group.id().is_ok());
        let standing = wanted.iter().filter(|(job, _)| stands(job));
        standing.map(|(job, assignment)| (job.clone(), assignment.clone())).collect()
    }

    /// Limits the disks of all groups, where anybody was promised a rate, or an earlier agent may
    /// have left limits.
    fn limit_disks(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Result<(), Failures> {
        let shares = disk_shares(wanted, &self.disks);
        // Until all have theirs, it is not known what is in force.
        let known = self.disk_limits.take();
        // Where anybody is limited, others may have changed that.
        let may_differ = |job: &Name| !shares.limit_nobody() && scope.has(job);
        let mut failures = Failures::default();
        for (job, limits) in &shares.jobs {
            let stands = known.as_ref().and_then(|known| known.jobs.get(job)) == Some(limits);
            if !stands || may_differ(job) {
                let group = self.group.child(job.as_str());
                failures.note(job, group.and_then(|group| group.set_disks(limits)));
            }
        }
        let stands = known.as_ref().is_some_and(|known| known.rest == shares.rest);
        if !stands || !shares.limit_nobody() {
            failures.note_of_all(self.group.rest().and_then(|rest| rest.set_disks(&shares.rest)));
        }
        failures.into_result()?;
        self.disk_limits = Some(shares);
        Ok(())
    }

    fn set_egress(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Result<(), BoxedError> {
        let mut flows = Vec::new();
        for (job, assignment) in wanted {
            let cgroup_id = self.group.child(job.as_str())?.id()?.id;
            flows.extend(assignment.flows.iter().map(|flow| kernel_flow(cgroup_id, flow)));
        }
        // Until all is done, it is not known what is in force.
        let known = self.sent_by.take().filter(|_| *scope != Scope::All);
        let table = match known {
            Some(known) if known.flows == flows => known.table,
            known => self.send_by(&flows, known.map(|known| known.table))?,
        };
        self.sent_by = Some(SentBy { flows, table });
        Ok(())
    }

    /// Has what is sent go by these flows; what is in the table now, if that is known. What is in it then.
    fn send_by(
        &mut self,
        flows: &[Flow],
        table: Option<FlowTable>,
    ) -> Result<FlowTable, BoxedError> {
        if flows.is_empty() {
            self.set_idle_egress()?;
            return Ok(FlowTable::default());
        }
        let observed = tc::observe(&mut self.socket, self.place.ifindex)?;
        let table = table.map_or_else(|| self.table(), Ok)?;
        let groups: BTreeSet<u64> = flows.iter().map(|flow| flow.cgroup_id).collect();
        let planned = egress::plan(&self.link, self.place, flows, &table)?;
        let Egress { tree, table: wanted, packet_max } = planned;
        let ops = tc::diff(&tree, &observed)?;
        // Between the two: an entry never names a class that is not there yet, nor the other way
        // round for long; a packet of a class that is gone is best-effort.
        tc::apply(&mut self.socket, &self.place, &ops)?;
        self.set_table(&table, &wanted)?;
        segments::limit(&mut self.socket, self.place.ifindex, packet_max)?;
        if let Some(flows) = &mut self.flows {
            flows.retain_bound(|_, group| groups.contains(&group))?;
        }
        Ok(wanted)
    }

    /// A node where no flow is reserved has no classes. Code points are taken from its packets all the same, or
    /// whoever sets a socket option there would have a class at switches that others reserved.
    fn set_idle_egress(&mut self) -> Result<(), BoxedError> {
        if !self.capabilities.has(Feature::FlowClassifier) {
            return self.remove_egress();
        }
        let emptied = self.empty_table();
        // Whatever becomes of the program, nothing is kept for flows that are over.
        self.remove_classes()?;
        // Nor does what has no flows wait for it: the same trouble every time is said once.
        let unmarked = emptied.err().map(|error| chain(error.as_ref()));
        if unmarked != self.unmarked
            && let Some(why) = &unmarked
        {
            tracing::error!("code points that nobody reserved may leave this node: {why}");
        }
        self.unmarked = unmarked;
        Ok(())
    }

    fn empty_table(&mut self) -> Result<(), BoxedError> {
        let table = self.table()?;
        self.set_table(&table, &FlowTable::default())?;
        match &mut self.flows {
            Some(flows) => Ok(flows.retain_bound(|_, _| false)?),
            None => Ok(()),
        }
    }

    /// Leaves the device as it was found.
    fn remove_egress(&mut self) -> Result<(), BoxedError> {
        Flows::remove(&mut self.socket, self.place.ifindex)?;
        self.flows = None;
        self.remove_classes()
    }

    fn remove_classes(&mut self) -> Result<(), BoxedError> {
        let observed = tc::observe(&mut self.socket, self.place.ifindex)?;
        segments::limit(&mut self.socket, self.place.ifindex, None)?;
        let ops = tc::removal(&self.place, &observed);
        Ok(tc::apply(&mut self.socket, &self.place, &ops)?)
    }

    /// The entries that are there; none without a program.
    fn table(&self) -> Result<FlowTable, FlowsError> {
        Ok(self.flows.as_ref().map(Flows::read).transpose()?.unwrap_or_default())
    }

    fn set_table(&mut self, observed: &FlowTable, wanted: &FlowTable) -> Result<(), BoxedError> {
        let installed =
            !tc::programs(&mut self.socket, self.place.ifindex, tc::Hook::Egress)?.is_empty();
        let settings = egress::settings(self.place, self.group.id()?.level + 1, wanted);
        match &mut self.flows {
            Some(flows) if installed && flows.is_current() => {
                flows.keep_settings(&settings)?;
                flows.apply(&flows::diff(wanted, observed))?
            }
            _ => {
                let ifindex = self.place.ifindex;
                let bound = self.flows.as_ref().map(Flows::bound).transpose()?.unwrap_or_default();
                let fresh = Flows::install(&mut self.socket, ifindex, &settings, wanted)?;
                // From here on its tables are those that packets are looked up in, whatever else fails.
                let flows = self.flows.insert(fresh);
                bound.into_iter().try_for_each(|(cookie, group)| flows.bind(cookie, group))?;
            }
        }
        Ok(())
    }

    /// Turns to what has the device's name now, where the device itself is gone. Whether that is so.
    fn follow_device(&mut self) -> Result<bool, BoxedError> {
        let there = interfaces(&mut self.socket).unwrap_or_default();
        let Some(ifindex) = successor(&self.link.name, self.place.ifindex, &there) else {
            return Ok(false);
        };
        Flows::check_device(&mut self.socket, ifindex)?;
        claim::take_device(&self.claim, &self.link.name, ifindex)?;
        tracing::warn!("{} was taken away and is there again", self.link.name);
        self.place.ifindex = ifindex;
        Ok(true)
    }
}

impl Enforcer for Kernel {
    fn reconcile(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Result<(), Failures> {
        self.end_strays(wanted);
        let mut failures = Failures::default();
        failures.note_each(wanted, scope, |assignment| self.make_group(assignment));
        failures.add(self.keep_rest(wanted, scope));
        failures.note_each(wanted, scope, |assignment| self.take_services(assignment));
        let standing = match failures.is_empty() {
            true => Cow::Borrowed(wanted),
            false => Cow::Owned(self.standing(wanted)),
        };
        failures.add(self.limit_disks(&standing, scope));
        let mut egress = self.set_egress(&standing, scope);
        if egress.is_err() {
            egress = match self.follow_device() {
                Ok(true) => self.set_egress(&standing, scope),
                Ok(false) => egress,
                Err(error) => Err(error),
            };
        }
        failures.note_of_all(egress);
        failures.into_result()
    }

    fn check(&self, assignment: &Assignment) -> Result<(), BindError> {
        self.check_services(assignment)
    }

    fn enforced(&self) -> BTreeSet<Name> {
        // Groups that cannot be read count as none, as with everything that is measured.
        let groups = self.group.children().unwrap_or_default();
        groups.iter().filter_map(|group| group.parse().ok()).collect()
    }

    fn bind(&mut self, job: &Name, processes: &[u32], user: Option<u32>) -> Result<(), BindError> {
        self.bind_processes(job, processes, user)
    }

    fn bind_flow(
        &mut self,
        assignment: &Assignment,
        flow: &ConnectionPattern,
        user: Option<u32>,
    ) -> Result<(), BindError> {
        self.bind_matching(assignment, flow, user)
    }

    fn start(
        &mut self,
        job: &Name,
        process: i32,
        user: Option<u32>,
    ) -> Result<Option<Started>, BindError> {
        self.start_process(job, process, user).map(Some)
    }

    fn end(&mut self, job: &Name, command: &Started) -> Result<(), BoxedError> {
        Ok(self.group.child(job.as_str())?.end(command)?)
    }

    fn device(&self) -> Option<&str> {
        Some(&self.link.name)
    }

    fn job_of(&self, process: i32) -> Option<Name> {
        self.job_with(process).ok().flatten()
    }

    fn capabilities(&self) -> Option<&Capabilities> {
        Some(&self.capabilities)
    }

    fn cpu_used(&mut self, assignment: &Assignment) -> Nanos {
        let group = self.group.child(assignment.job.as_str());
        group.and_then(|group| group.cpu_usage()).unwrap_or_default()
    }

    fn measure(&mut self, assignments: &[Assignment]) -> Vec<JobStatus> {
        self.measure_jobs(assignments)
    }

    fn not_enforced(&self) -> Vec<String> {
        self.capabilities.missing().iter().map(ToString::to_string).collect()
    }
}

/// What enforces on a node.
pub enum Node {
    /// Its kernel.
    Kernel(Box<Kernel>),
    /// Nothing.
    Unenforced(Unenforced),
}

/// The enforcer of the node that `config` describes: its kernel, or none and why. Without a control
/// group in the configuration the node is not asked to enforce anything and takes what it is
/// assigned; with one that cannot be used it takes nothing. Where something is to be held by this process, `guard`
/// starts another that sets it free if this one is killed: a program and its arguments that does as
/// [`user_level::guard::serve`], for the node's group, which is its last argument.
///
/// # Errors
/// If a control group that cannot be used now has jobs of an earlier agent: without it nobody would end them. If another
/// agent has that group, or the device; or the device is of a kind whose flows cannot be told apart.
pub fn enforcer(config: &Config, guard: &[OsString]) -> Result<Node, BoxedError> {
    let Some(group) = &config.cgroup else {
        let reason = "no control group is configured (that needs root)".into();
        return Ok(Node::Unenforced(Unenforced { reason, capabilities: None }));
    };
    check_device(config)?;
    match Kernel::open(config, group, guard) {
        Ok(kernel) => Ok(Node::Kernel(Box::new(kernel))),
        Err(error) if has_jobs(group) || error.is::<ClaimError>() => Err(error),
        Err(error) => {
            let reason = chain(error.as_ref());
            let capabilities = Some(Capabilities::default());
            Ok(Node::Unenforced(Unenforced { reason, capabilities }))
        }
    }
}

/// Whether an earlier agent has left a group of a job below the node's.
fn has_jobs(group: &Path) -> bool {
    let node = Hierarchies::discover_any().and_then(|all| all.group(group));
    node.and_then(|node| jobs_below(&node)).is_ok_and(|jobs| !jobs.is_empty())
}

/// The jobs that have groups below the node's.
fn jobs_below(node: &Group) -> Result<Vec<Name>, CgroupError> {
    Ok(node.children()?.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Has what is bound to jobs be theirs in every hierarchy, where an agent was killed in the middle of that. All jobs for which
/// that can be; the first error of others.
fn complete_bound(node: &Group) -> Result<(), CgroupError> {
    let complete = |job: Name| node.child(job.as_str())?.complete_borrowed();
    let each: Vec<_> = jobs_below(node)?.into_iter().map(complete).collect();
    each.into_iter().collect()
}

/// Sets free what an agent that was killed has scheduled from user space, after its guard has: that would go on to do
/// so while this one schedules already.
fn set_free(node: &Group) -> Result<(), SharingError> {
    if let Err(error) = user_level::guard::end_former(node) {
        tracing::warn!("the guard of a former agent may not have ended: {}", chain(&error));
    }
    user_level::jobs::give_back_all(node)
}

/// Moves this process out of the group of best-effort processes.
fn join_own_group(node: &Group) -> Result<(), CgroupError> {
    let group = node.child(AGENT_GROUP)?;
    group.create()?;
    group.join(0)
}

fn kernel_flow(cgroup_id: u64, flow: &AssignedFlow) -> Flow {
    Flow {
        cgroup_id,
        destination: destination(flow),
        rate: flow.bits_per_second,
        up_to: flow.limit(),
        burst: flow.burst_bytes,
        class: flow.class,
    }
}

/// The unspecified address stands for every destination without a flow of its own.
fn destination(flow: &AssignedFlow) -> Option<Ipv4Addr> {
    Some(flow.destination).filter(|address| !address.is_unspecified())
}
