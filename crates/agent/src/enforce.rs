//! The kernel's side of an agent: control groups for jobs, classes and marks for their flows.
//!
//! What is enforced lives in the kernel and goes on without the agent; every call compares what is
//! there with what is wanted and changes the difference only.

use crate::agent::{BoxedError, Enforcer};
use crate::book::Capacity;
use crate::config::Config;
use crate::wire::{FlowStatus, JobStatus};
use keeptime_linux::cgroup::{CgroupError, Group, Hierarchies};
use keeptime_linux::counters::{ClassCounters, class_counters};
use keeptime_linux::egress::{self, Egress, Flow, Link};
use keeptime_linux::flows::{self, FlowKey, FlowTable, Flows, Settings};
use keeptime_linux::link::interfaces;
use keeptime_linux::netlink::Socket;
use keeptime_linux::tc::{self, Attach, Handle, Place, TREE_MAJOR};
use keeptime_model::assignment::{AssignedFlow, Assignment};
use keeptime_model::name::Name;
use keeptime_model::units::{Bytes, CpuPpm, Nanos};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The kernel of this node.
pub struct Kernel {
    socket: Socket,
    place: Place,
    link: Link,
    group: Group,
    /// CPU that jobs may have here.
    cpu: CpuPpm,
    /// The program at the device's egress, once one is there.
    flows: Option<Flows>,
    /// Limits that were set: writing one again would refill the group's share of the period.
    limits: BTreeMap<String, CpuPpm>,
}

/// A node on which nothing can be enforced: assignments are kept and told, and no more.
#[derive(Debug, Clone)]
pub struct Unenforced {
    /// Why.
    pub reason: String,
}

/// CPU of the processes that belong to no job, however much jobs have.
const REST_FLOOR: CpuPpm = CpuPpm::from_percent(1);
/// The agent's own group: no job can have this name, and best-effort processes cannot starve it.
const AGENT_GROUP: &str = "_agent";

/// What the node that `config` describes can give.
pub fn capacity(config: &Config) -> Capacity {
    Capacity {
        cpu: config.cpu,
        reservable: egress::reservable(&Link::new(&config.device, config.rate)),
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
        let limits = BTreeMap::new();
        Ok(Self {
            socket,
            place,
            link: Link::new(&config.device, config.rate),
            group,
            cpu: config.cpu,
            flows,
            limits,
        })
    }

    /// Ends the groups of jobs that are not wanted, with their processes.
    fn end_strays(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), CgroupError> {
        for name in self.group.children()? {
            let is_wanted = wanted.keys().any(|job| job.as_str() == name);
            if is_wanted || name.parse::<Name>().is_err() {
                continue;
            }
            let group = self.group.child(&name)?;
            group.kill_all()?;
            group.remove()?;
            self.limits.remove(&name);
        }
        Ok(())
    }

    fn make_groups(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), CgroupError> {
        for (job, assignment) in wanted {
            let group = self.group.child(job.as_str())?;
            self.limit(job.as_str(), &group, assignment.cpu_ppm)?;
        }
        // What belongs to no job shares what jobs leave: a group's share of the period goes to who
        // comes first, and weights do not help a job that comes later.
        let taken: u64 = wanted.values().map(|a| u64::from(a.cpu_ppm.get())).sum();
        let left = u64::from(self.cpu.get()).saturating_sub(taken);
        let left = CpuPpm::new(left as u32).max(REST_FLOOR);
        let rest = self.group.rest()?;
        self.limit("", &rest, left)
    }

    /// Makes a group with this limit, once.
    fn limit(&mut self, name: &str, group: &Group, cpu: CpuPpm) -> Result<(), CgroupError> {
        let fresh = !group.exists();
        group.create()?;
        if fresh || self.limits.get(name) != Some(&cpu) {
            group.set_cpu(cpu)?;
            self.limits.insert(name.into(), cpu);
        }
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
            let ops = tc::removal(&self.place, &observed);
            return Ok(tc::apply(&mut self.socket, &self.place, &ops)?);
        }
        let table = self.flows.as_ref().map(Flows::read).transpose()?.unwrap_or_default();
        let Egress { tree, table: wanted } = egress::plan(&self.link, self.place, &flows, &table)?;
        let ops = tc::diff(&tree, &observed)?;
        // Between the two: an entry never names a class that is not there yet, nor the other way
        // round for long; a packet of a class that is gone is best-effort.
        tc::apply(&mut self.socket, &self.place, &ops)?;
        self.set_table(&table, &wanted)
    }

    fn set_table(&mut self, observed: &FlowTable, wanted: &FlowTable) -> Result<(), BoxedError> {
        let installed = !tc::flow_filters(&mut self.socket, self.place.ifindex)?.is_empty();
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
                self.flows = Some(Flows::install(&mut self.socket, ifindex, &settings, wanted)?);
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
        self.end_strays(wanted)?;
        self.make_groups(wanted)?;
        self.set_egress(wanted)
    }

    fn measure(&mut self, assignment: &Assignment) -> JobStatus {
        // What cannot be counted now counts as nothing: a status is a look, not a promise.
        let counters = self.flow_counters(&assignment.job).unwrap_or_default();
        let group = self.group.child(assignment.job.as_str());
        let group = group.as_ref().ok();
        let processes = group.and_then(|g| g.pids().ok()).unwrap_or_default();
        let status = |flow: &AssignedFlow| {
            let counted = counters.get(&destination(flow)).copied().unwrap_or_default();
            FlowStatus {
                flow: *flow,
                sent_bytes: Bytes::new(counted.bytes),
                dropped_packets: counted.drops,
            }
        };
        JobStatus {
            assignment: assignment.clone(),
            processes: processes.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect(),
            cpu_used_nanos: group.and_then(|g| g.cpu_usage().ok()).unwrap_or_default(),
            flows: assignment.flows.iter().map(status).collect(),
        }
    }

    fn not_enforced(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Enforcer for Unenforced {
    fn reconcile(&mut self, _wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError> {
        Ok(())
    }

    fn measure(&mut self, assignment: &Assignment) -> JobStatus {
        JobStatus {
            assignment: assignment.clone(),
            processes: Vec::new(),
            cpu_used_nanos: Nanos::default(),
            flows: Vec::new(),
        }
    }

    fn not_enforced(&self) -> Vec<String> {
        vec![format!("CPU and bandwidth of jobs: {}", self.reason)]
    }
}

impl<E: Enforcer + ?Sized> Enforcer for Box<E> {
    fn reconcile(&mut self, wanted: &BTreeMap<Name, Assignment>) -> Result<(), BoxedError> {
        (**self).reconcile(wanted)
    }

    fn measure(&mut self, assignment: &Assignment) -> JobStatus {
        (**self).measure(assignment)
    }

    fn not_enforced(&self) -> Vec<String> {
        (**self).not_enforced()
    }
}

/// The enforcer of the node that `config` describes: its kernel, or none and why.
pub fn enforcer(config: &Config) -> Box<dyn Enforcer> {
    let Some(group) = &config.cgroup else {
        let reason = "no control group is configured (that needs root)".into();
        return Box::new(Unenforced { reason });
    };
    match Kernel::open(config, group) {
        Ok(kernel) => Box::new(kernel),
        Err(error) => Box::new(Unenforced { reason: crate::agent::chain(error.as_ref()) }),
    }
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
        burst: flow.burst_bytes,
        class: flow.class,
    }
}

/// The unspecified address stands for every destination without a flow of its own.
fn destination(flow: &AssignedFlow) -> Option<Ipv4Addr> {
    Some(flow.destination).filter(|address| !address.is_unspecified())
}
