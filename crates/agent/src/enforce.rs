//! The kernel's side of an agent: control groups for jobs, classes and marks for their flows.
//!
//! What is enforced lives in the kernel and goes on without the agent; every call compares what is
//! there with what is wanted and changes the difference only.

mod binding;
mod unenforced;

pub use unenforced::Unenforced;

use crate::agent::{BindError, BoxedError, Enforcer};
use crate::book::Capacity;
use crate::config::Config;
use crate::shares::{FLOOR, disk_shares, launchers_share, wants_deadline};
use crate::wire::{DiskStatus, FlowStatus, JobStatus};
use keeptime_control::phase;
use keeptime_linux::alignment::Aligned;
use keeptime_linux::cgroup::{CPU_PERIOD, CgroupError, Group, Hierarchies};
use keeptime_linux::counters::{ClassCounters, class_counters};
use keeptime_linux::deadline::{self, Obstacle};
use keeptime_linux::disk::DiskLimits;
use keeptime_linux::egress::{self, Egress, Flow, Link};
use keeptime_linux::flows::{self, FlowKey, FlowTable, Flows, Settings};
use keeptime_linux::link::interfaces;
use keeptime_linux::netlink::Socket;
use keeptime_linux::probe;
use keeptime_linux::segments;
use keeptime_linux::started::Started;
use keeptime_linux::tc::{self, Attach, Handle, Place, TREE_MAJOR};
use keeptime_model::assignment::{AssignedFlow, Assignment, CpuMechanism};
use keeptime_model::capability::{Capabilities, Feature};
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::disk::{DiskId, DiskRates};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::{Bytes, CpuPpm, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The kernel of this node.
pub struct Kernel {
    socket: Socket,
    place: Place,
    link: Link,
    group: Group,
    /// CPU that jobs may have here.
    cpu: CpuPpm,
    /// What may be reserved of the disks.
    disks: BTreeMap<DiskId, DiskRates>,
    /// Found out once: it takes too long for every question.
    capabilities: Capabilities,
    /// The program at the device's egress, once one is there.
    flows: Option<Flows>,
    /// Limits that were set: writing one again would refill the group's share of the period.
    limits: BTreeMap<String, CpuLimited>,
    /// What keeps the CPU of each job, as far as this agent has looked.
    keeps: BTreeMap<Name, CpuKept>,
    /// Disk limits that were set; nothing = not known what an earlier agent left.
    disk_limits: Option<BTreeMap<String, DiskLimits>>,
    /// Why what is over had not ended when it was looked at last.
    left: Vec<String>,
}

/// The limit of a group.
struct CpuLimited {
    cpu: CpuPpm,
    period: Nanos,
    /// What keeps its periods where they are to begin.
    aligned: Option<Aligned>,
}

/// What keeps a job's share of the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CpuKept {
    /// Its control group, as it was asked for.
    Bandwidth,
    /// `SCHED_DEADLINE`.
    Deadline,
    /// Its control group, although the other was asked for.
    Instead(Obstacle),
}

/// What came of taking everything off a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cleared {
    /// These jobs are still enforced there; nothing was changed.
    Not(BTreeSet<Name>),
    /// Nothing is left; these were ended.
    Done(BTreeSet<Name>),
}

/// The agent's own group: no job can have this name, and best-effort processes cannot starve it.
const AGENT_GROUP: &str = "_agent";
/// Where the agent finds out what it can enforce.
const PROBE_GROUP: &str = "_probe";
/// All that is over together is waited for so long before what is wanted comes: others wait for the agent
/// meanwhile, and killed processes end within milliseconds.
const PATIENCE: Duration = Duration::from_millis(50);

/// Whoever takes everything off a node has more time.
const CLEAR_LIMIT: Duration = Duration::from_secs(5);

/// What the node that `config` describes can give, enforced by `enforcer`.
pub fn capacity(config: &Config, enforcer: &dyn Enforcer) -> Capacity {
    Capacity {
        cpu: config.cpu,
        reservable: egress::reservable(&Link::new(&config.device, config.rate)),
        disks: config.disk_rates(),
        capabilities: enforcer.capabilities().cloned(),
    }
}

impl Kernel {
    /// The kernel as `config` describes it, in the network namespace of this process. Changes nothing.
    ///
    /// # Errors
    /// If the device or the control groups are not there, or this process may not use them.
    pub fn open(config: &Config, group: &std::path::Path) -> Result<Self, BoxedError> {
        let mut socket = Socket::open()?;
        let named = |(name, index): (String, u32)| (name == config.device).then_some(index);
        let ifindex = interfaces(&mut socket)?.into_iter().find_map(named);
        let ifindex = ifindex.ok_or_else(|| format!("no network device {}", config.device))?;
        let attach = match config.attach_parent()? {
            None => Attach::Root,
            Some((major, minor)) => Attach::Under(Handle { major, minor }),
        };
        let group = Hierarchies::discover()?.group(group)?;
        // Jobs are told apart by their groups' numbers: without them nothing can be enforced.
        group.id()?;
        join_own_group(&group)?;
        let place = Place { ifindex, attach, major: TREE_MAJOR };
        let flows = Flows::adopt(&mut socket, ifindex)?;
        let capabilities = probe::capabilities(group.child(PROBE_GROUP)?.path());
        Ok(Self {
            socket,
            place,
            link: Link::new(&config.device, config.rate),
            group,
            cpu: config.cpu,
            disks: config.disk_rates(),
            capabilities,
            flows,
            limits: BTreeMap::new(),
            keeps: BTreeMap::new(),
            disk_limits: None,
            left: Vec::new(),
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

    fn clear(mut self, end_jobs: bool) -> Result<Cleared, BoxedError> {
        let jobs = self.enforced();
        if !jobs.is_empty() && !end_jobs {
            return Ok(Cleared::Not(jobs));
        }
        let (none, deadline) = (BTreeMap::new(), Instant::now() + CLEAR_LIMIT);
        loop {
            self.end_strays(&none);
            if self.left.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return Err(self.left.join("; ").into());
            }
        }
        self.set_egress(&none)?;
        self.group.dissolve()?;
        Ok(Cleared::Done(jobs))
    }

    /// The jobs that have a group and are not wanted.
    fn strays(&self, wanted: &BTreeMap<Name, Assignment>) -> Result<Vec<Name>, CgroupError> {
        let groups = self.group.children()?;
        let jobs = groups.iter().filter_map(|name| name.parse::<Name>().ok());
        Ok(jobs.filter(|job| !wanted.contains_key(job)).collect())
    }

    fn end_stray(&mut self, job: &Name, until: Instant) -> Result<(), BoxedError> {
        let group = self.group.child(job.as_str())?;
        if self.capabilities.has(Feature::CpuDeadline) {
            deadline::release(&group.borrowed()?)?;
        }
        group.give_back()?;
        self.limits.remove(job.as_str());
        self.keeps.remove(job);
        if let Some(limits) = &mut self.disk_limits {
            limits.remove(job.as_str());
        }
        // A process needs some time to end in; with the limit it may wait for a period, and ends all the same.
        let _ = group.lift_cpu();
        group.kill_within(until.saturating_duration_since(Instant::now()))?;
        Ok(group.remove()?)
    }

    fn make_groups(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError> {
        for assignment in wanted.values() {
            self.keep_cpu(assignment)?;
        }
        // What belongs to no job shares what jobs leave: a group's share of the period goes to who
        // comes first, and weights do not help a job that comes later.
        let taken: u64 = wanted.values().map(|a| u64::from(self.taken_by(a).get())).sum();
        let left = u64::from(self.cpu.get()).saturating_sub(taken);
        let left = CpuPpm::new(left as u32).max(FLOOR);
        let rest = self.group.rest()?;
        Ok(self.limit("", &rest, left, CPU_PERIOD, None)?)
    }

    /// Makes the job's group and has its share of the CPU kept.
    fn keep_cpu(&mut self, assignment: &Assignment) -> Result<(), BoxedError> {
        let (job, cpu) = (&assignment.job, assignment.cpu_ppm);
        let period = assignment.cpu_period_nanos.unwrap_or(CPU_PERIOD);
        let group = self.group.child(job.as_str())?;
        let can_carry = self.capabilities.has(Feature::CpuDeadline);
        let (kept, limit) = if wants_deadline(assignment) && can_carry {
            match deadline::enforce(cpu, period, &group.pids()?)? {
                Ok(carriers) if carriers.is_empty() => (CpuKept::Deadline, cpu),
                Ok(_) => (CpuKept::Deadline, launchers_share(cpu)),
                Err(obstacle) => (CpuKept::Instead(obstacle), cpu),
            }
        } else {
            let was_looked_at = self.keeps.get(job) == Some(&CpuKept::Bandwidth);
            if can_carry && !was_looked_at {
                deadline::release(&group.pids()?)?;
            }
            (CpuKept::Bandwidth, cpu)
        };
        let before = self.keeps.insert(job.clone(), kept.clone());
        if before.as_ref() != Some(&kept)
            && let CpuKept::Instead(obstacle) = &kept
        {
            tracing::warn!("{job} is limited by its group, not SCHED_DEADLINE: {obstacle}");
        }
        // Who asks for a period has slices on several nodes that are to begin together.
        let offset = assignment.cpu_period_nanos.map(|period| phase::offset(job, period));
        Ok(self.limit(job.as_str(), &group, limit, period, offset)?)
    }

    /// CPU that is not left to what belongs to no job.
    fn taken_by(&self, assignment: &Assignment) -> CpuPpm {
        let cpu = assignment.cpu_ppm;
        match self.keeps.get(&assignment.job) {
            Some(CpuKept::Deadline) => cpu.checked_add(launchers_share(cpu)).unwrap_or(cpu),
            _ => cpu,
        }
    }

    /// Makes a group with this limit, once; with an `offset`, periods begin there on all nodes.
    fn limit(
        &mut self,
        name: &str,
        group: &Group,
        cpu: CpuPpm,
        period: Nanos,
        offset: Option<Nanos>,
    ) -> Result<(), CgroupError> {
        let before = self.limits.remove(name).filter(|_| group.exists());
        group.create()?;
        let aligned = match (before, offset) {
            (Some(before), _) if (before.cpu, before.period) == (cpu, period) => before.aligned,
            (Some(CpuLimited { aligned: Some(aligned), .. }), Some(offset)) => {
                aligned.set(cpu, period, offset)?;
                Some(aligned)
            }
            (_, Some(offset)) => Some(Aligned::begin(group.clone(), cpu, period, offset)?),
            (before, None) => {
                drop(before);
                group.set_cpu_in_periods(cpu, period)?;
                None
            }
        };
        self.limits.insert(name.into(), CpuLimited { cpu, period, aligned });
        Ok(())
    }

    /// Limits the disks of all groups, where anybody was promised a rate, or an earlier agent may
    /// have left limits.
    fn limit_disks(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), CgroupError> {
        let shares = disk_shares(wanted, &self.disks);
        let jobs = shares.jobs.into_iter().map(|(job, limits)| (job.to_string(), limits));
        let all: BTreeMap<String, DiskLimits> =
            jobs.chain([(String::new(), shares.rest)]).collect();
        if self.disk_limits.as_ref() == Some(&all) {
            return Ok(());
        }
        for (name, limits) in &all {
            let group = match name.as_str() {
                "" => self.group.rest()?,
                job => self.group.child(job)?,
            };
            group.set_disks(limits)?;
        }
        self.disk_limits = Some(all);
        Ok(())
    }

    fn set_egress(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError> {
        let mut flows = Vec::new();
        for (job, assignment) in wanted {
            let cgroup_id = self.group.child(job.as_str())?.id()?.id;
            flows.extend(assignment.flows.iter().map(|flow| kernel_flow(cgroup_id, flow)));
        }
        let observed = tc::observe(&mut self.socket, self.place.ifindex)?;
        if flows.is_empty() {
            // A node without reservations is left as it was found.
            Flows::remove(&mut self.socket, self.place.ifindex)?;
            self.flows = None;
            segments::limit(&mut self.socket, self.place.ifindex, None)?;
            let ops = tc::removal(&self.place, &observed);
            return Ok(tc::apply(&mut self.socket, &self.place, &ops)?);
        }
        let table = self.flows.as_ref().map(Flows::read).transpose()?.unwrap_or_default();
        let groups: BTreeSet<u64> = flows.iter().map(|flow| flow.cgroup_id).collect();
        let planned = egress::plan(&self.link, self.place, &flows, &table)?;
        let Egress { tree, table: wanted, packet_max } = planned;
        let ops = tc::diff(&tree, &observed)?;
        // Between the two: an entry never names a class that is not there yet, nor the other way
        // round for long; a packet of a class that is gone is best-effort.
        tc::apply(&mut self.socket, &self.place, &ops)?;
        self.set_table(&table, &wanted)?;
        segments::limit(&mut self.socket, self.place.ifindex, packet_max)?;
        match &mut self.flows {
            Some(flows) => Ok(flows.retain_bound(|_, group| groups.contains(&group))?),
            None => Ok(()),
        }
    }

    fn set_table(&mut self, observed: &FlowTable, wanted: &FlowTable) -> Result<(), BoxedError> {
        let installed =
            !tc::programs(&mut self.socket, self.place.ifindex, tc::Hook::Egress)?.is_empty();
        match &mut self.flows {
            Some(flows) if installed => flows.apply(&flows::diff(wanted, observed))?,
            _ => {
                let settings = Settings {
                    job_level: self.group.id()?.level + 1,
                    control: None,
                    control_class: None,
                    major: self.place.major,
                };
                let ifindex = self.place.ifindex;
                let bound = self.flows.as_ref().map(Flows::bound).transpose()?.unwrap_or_default();
                let mut flows = Flows::install(&mut self.socket, ifindex, &settings, wanted)?;
                bound.into_iter().try_for_each(|(cookie, group)| flows.bind(cookie, group))?;
                self.flows = Some(flows);
            }
        }
        Ok(())
    }

    /// Class counters of the entries of one job, by destination.
    fn flow_counters(
        &mut self,
        job: &Name,
    ) -> Result<BTreeMap<Option<Ipv4Addr>, ClassCounters>, BoxedError> {
        let cgroup_id = self.group.child(job.as_str())?.id()?.id;
        let table = self.flows.as_ref().map(Flows::read).transpose()?.unwrap_or_default();
        let counters = class_counters(&mut self.socket, self.place.ifindex, self.place.major)?;
        let of_job = table.entries.iter().filter(|(key, _)| key.cgroup_id == cgroup_id);
        let counted = of_job.filter_map(|(FlowKey { destination, .. }, mark)| {
            Some((*destination, *counters.get(&mark.class.minor)?))
        });
        Ok(counted.collect())
    }
}

impl Enforcer for Kernel {
    fn reconcile(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError> {
        self.end_strays(wanted);
        self.make_groups(wanted)?;
        self.take_services(wanted)?;
        self.limit_disks(wanted)?;
        self.set_egress(wanted)
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

    fn measure(&mut self, assignment: &Assignment) -> JobStatus {
        // What cannot be counted now counts as nothing: a status is a look, not a promise.
        let mut status = JobStatus::unmeasured(assignment.clone());
        let job = &assignment.job;
        let Ok(group) = self.group.child(job.as_str()) else { return status };
        let numbers = |pids: Result<Vec<i32>, CgroupError>| {
            let pids = pids.unwrap_or_default().into_iter();
            pids.filter_map(|pid| u32::try_from(pid).ok()).collect()
        };
        status.processes = numbers(group.pids());
        status.borrowed = numbers(group.borrowed());
        status.cpu_used_nanos = group.cpu_usage().unwrap_or_default();
        status.cpu_kept_by = self.keeps.get(job).map(|kept| match kept {
            CpuKept::Deadline => CpuMechanism::Deadline,
            CpuKept::Bandwidth | CpuKept::Instead(_) => CpuMechanism::Bandwidth,
        });
        status.cpu_obstacle = match self.keeps.get(job) {
            Some(CpuKept::Instead(obstacle)) => Some(obstacle.to_string()),
            _ => None,
        };
        let used = group.disk_usage().unwrap_or_default();
        let disk_status = |disk: &DiskId| {
            let counted = used.get(disk).copied().unwrap_or_default();
            DiskStatus { read_bytes: counted.read, written_bytes: counted.written }
        };
        status.disks = assignment.disks.keys().map(|disk| (*disk, disk_status(disk))).collect();
        let counters = self.flow_counters(job).unwrap_or_default();
        let flow_status = |flow: &AssignedFlow| {
            let counted = counters.get(&destination(flow)).copied().unwrap_or_default();
            FlowStatus {
                flow: *flow,
                sent_bytes: Bytes::new(counted.bytes),
                dropped_packets: counted.drops,
            }
        };
        status.flows = assignment.flows.iter().map(flow_status).collect();
        let bound = self.flows.as_ref().and_then(|flows| flows.bound().ok()).unwrap_or_default();
        let cgroup_id = group.id().map(|id| id.id).unwrap_or_default();
        status.bound_sockets = bound.values().filter(|group| **group == cgroup_id).count();
        status
    }

    fn not_enforced(&self) -> Vec<String> {
        self.capabilities.missing().iter().map(ToString::to_string).collect()
    }
}

impl<E: Enforcer + ?Sized> Enforcer for Box<E> {
    fn reconcile(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError> {
        (**self).reconcile(wanted)
    }

    fn check(&self, assignment: &Assignment) -> Result<(), BindError> {
        (**self).check(assignment)
    }

    fn enforced(&self) -> BTreeSet<Name> {
        (**self).enforced()
    }

    fn bind(&mut self, job: &Name, processes: &[u32], user: Option<u32>) -> Result<(), BindError> {
        (**self).bind(job, processes, user)
    }

    fn bind_flow(
        &mut self,
        assignment: &Assignment,
        flow: &ConnectionPattern,
        user: Option<u32>,
    ) -> Result<(), BindError> {
        (**self).bind_flow(assignment, flow, user)
    }

    fn start(
        &mut self,
        job: &Name,
        process: i32,
        user: Option<u32>,
    ) -> Result<Option<Started>, BindError> {
        (**self).start(job, process, user)
    }

    fn end(&mut self, job: &Name, command: &Started) -> Result<(), BoxedError> {
        (**self).end(job, command)
    }

    fn device(&self) -> Option<&str> {
        (**self).device()
    }

    fn job_of(&self, process: i32) -> Option<Name> {
        (**self).job_of(process)
    }

    fn capabilities(&self) -> Option<&Capabilities> {
        (**self).capabilities()
    }

    fn measure(&mut self, assignment: &Assignment) -> JobStatus {
        (**self).measure(assignment)
    }

    fn not_enforced(&self) -> Vec<String> {
        (**self).not_enforced()
    }
}

/// The enforcer of the node that `config` describes: its kernel, or none and why. Without a control
/// group in the configuration the node is not asked to enforce anything and takes what it is
/// assigned; with one that cannot be used it takes nothing.
pub fn enforcer(config: &Config) -> Box<dyn Enforcer> {
    let Some(group) = &config.cgroup else {
        let reason = "no control group is configured (that needs root)".into();
        return Box::new(Unenforced { reason, capabilities: None });
    };
    match Kernel::open(config, group) {
        Ok(kernel) => Box::new(kernel),
        Err(error) => {
            let reason = chain(error.as_ref());
            Box::new(Unenforced { reason, capabilities: Some(Capabilities::default()) })
        }
    }
}

/// Takes off this node all that agents put on it, for when none will come back: what was bound goes back to where it
/// was, what was started in jobs ends, and whatever else runs below the agent's group goes on without limits. Nothing
/// is changed where a job is still enforced, unless `end_jobs`.
///
/// # Errors
/// If the kernel refuses, or a process does not end within five seconds; what is left then is taken off by the next
/// call.
pub fn clear(config: &Config, end_jobs: bool) -> Result<Cleared, BoxedError> {
    let Some(group) = &config.cgroup else { return Ok(Cleared::Done(BTreeSet::new())) };
    Kernel::open(config, group)?.clear(end_jobs)
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
