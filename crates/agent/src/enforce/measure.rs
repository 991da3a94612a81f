//! What the kernel counts for jobs. What it counts for all of them is read once for all that are asked for, and looked up in
//! then: each read takes as long as there are flows on the node.

use super::{Kernel, destination};
use crate::wire::{DiskStatus, FlowStatus, JobStatus};
use keeptime_linux::cgroup::CgroupError;
use keeptime_linux::counters::{ClassCounters, class_counters};
use keeptime_linux::flows::{FlowKey, FlowTable};
use keeptime_model::assignment::{AssignedFlow, Assignment};
use keeptime_model::disk::DiskId;
use keeptime_model::units::Bytes;
use std::collections::BTreeMap;

/// What is counted for all jobs of a node together.
#[derive(Debug, Default)]
struct Counted {
    table: FlowTable,
    /// By the minor number of the class.
    classes: BTreeMap<u16, ClassCounters>,
    /// Bound sockets by the number of the job's group.
    bound: BTreeMap<u64, usize>,
}

impl Kernel {
    /// How each of these jobs stands. What cannot be counted now counts as nothing: a status is a look, not a promise.
    pub(super) fn measure_jobs(&mut self, assignments: &[Assignment]) -> Vec<JobStatus> {
        let counted = self.counted();
        assignments.iter().map(|assignment| self.measure_job(assignment, &counted)).collect()
    }

    fn counted(&mut self) -> Counted {
        let bound = self.flows.as_ref().and_then(|flows| flows.bound().ok()).unwrap_or_default();
        let (ifindex, major) = (self.place.ifindex, self.place.major);
        Counted {
            table: self.table().unwrap_or_default(),
            classes: class_counters(&mut self.socket, ifindex, major).unwrap_or_default(),
            bound: tally(bound.into_values()),
        }
    }

    fn measure_job(&self, assignment: &Assignment, counted: &Counted) -> JobStatus {
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
        let kept = self.cpu.kept(job);
        status.cpu_kept_by = kept.and_then(|kept| kept.by);
        status.cpu_obstacle = kept.and_then(|kept| kept.obstacle().cloned());
        let used = group.disk_usage().unwrap_or_default();
        let disk_status = |disk: &DiskId| {
            let counted = used.get(disk).copied().unwrap_or_default();
            DiskStatus { read_bytes: counted.read, written_bytes: counted.written }
        };
        status.disks = assignment.disks.keys().map(|disk| (*disk, disk_status(disk))).collect();
        let cgroup_id = group.id().map(|id| id.id).unwrap_or_default();
        status.flows = counted.flows(cgroup_id, &assignment.flows);
        status.bound_sockets = counted.bound.get(&cgroup_id).copied().unwrap_or_default();
        status
    }
}

impl Counted {
    /// What is counted for the flows of the job whose group has this number.
    fn flows(&self, cgroup_id: u64, flows: &[AssignedFlow]) -> Vec<FlowStatus> {
        let of_flow = |flow: &AssignedFlow| {
            let key = FlowKey { cgroup_id, destination: destination(flow) };
            let mark = self.table.entries.get(&key);
            let counted = mark.and_then(|mark| self.classes.get(&mark.class.minor).copied());
            let counted = counted.unwrap_or_default();
            FlowStatus {
                flow: *flow,
                sent_bytes: Bytes::new(counted.bytes),
                dropped_packets: counted.drops,
            }
        };
        flows.iter().map(of_flow).collect()
    }
}

/// How often each is there.
fn tally(groups: impl Iterator<Item = u64>) -> BTreeMap<u64, usize> {
    let mut tally = BTreeMap::new();
    groups.for_each(|group| *tally.entry(group).or_default() += 1);
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_linux::flows::FlowMark;
    use keeptime_linux::tc::Handle;
    use keeptime_model::assignment::TrafficClass;
    use keeptime_model::units::BitsPerSecond;
    use std::net::Ipv4Addr;

    // Goal: of flows that leave for the same place each job is told its own. Method: two jobs with a flow to a node and one to
    // everywhere, and one that is not there yet.
    #[test]
    fn each_flow_is_told_what_its_own_class_has_sent() {
        let flow = |address: [u8; 4]| AssignedFlow {
            destination: Ipv4Addr::from(address),
            class: TrafficClass::Premium,
            bits_per_second: BitsPerSecond::from_mbit(1),
            up_to_bits_per_second: None,
            burst_bytes: None,
        };
        let [near, everywhere, other] = [[10, 0, 0, 2], [0; 4], [10, 0, 0, 3]].map(flow);
        let mut counted = Counted::default();
        for (minor, (cgroup_id, flow)) in
            (16..).zip([(7, near), (8, near), (7, everywhere), (8, everywhere)])
        {
            let key = FlowKey { cgroup_id, destination: destination(&flow) };
            let mark = FlowMark { class: Handle { major: 1, minor }, dscp: 46 };
            counted.table.entries.insert(key, mark);
            let (bytes, drops) = (1_000 * u64::from(minor), u64::from(minor));
            counted.classes.insert(minor, ClassCounters { bytes, drops, ..Default::default() });
        }
        let told = counted.flows(8, &[near, other, everywhere]);
        let told = told.iter().map(|told| (told.flow, told.sent_bytes.get(), told.dropped_packets));
        let expected = [(near, 17_000, 17), (other, 0, 0), (everywhere, 19_000, 19)];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn bound_sockets_are_counted_by_group() {
        assert_eq!(tally([7, 8, 7].into_iter()), BTreeMap::from([(7, 2), (8, 1)]));
    }
}
