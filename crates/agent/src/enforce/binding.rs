//! What runs already becomes part of a job, for as long as the job lasts or as a command of its own: who may
//! have that done to what, and how.

use super::{Kernel, destination};
use crate::enforcer::{BindError, BoxedError};
use keeptime_linux::bound::Borrowed;
use keeptime_linux::cgroup::{CgroupError, Group};
use keeptime_linux::flows::BOUND_SOCKETS_MAX;
use keeptime_linux::process::{self, Identity};
use keeptime_linux::sockets::{self, Connection};
use keeptime_linux::started::Started;
use keeptime_model::assignment::{AssignedFlow, Assignment};
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::service::ServiceName;
use std::collections::{BTreeMap, BTreeSet};

impl Kernel {
    /// Counts processes, with the connections that they have open, to a job.
    pub(super) fn bind_processes(
        &mut self,
        job: &Name,
        numbers: &[u32],
        user: Option<u32>,
    ) -> Result<(), BindError> {
        let processes = self.bindable(job, numbers, user)?;
        if processes.is_empty()
            && let Some(why) = none_there(numbers)
        {
            return Err(BindError::Refused(why));
        }
        self.bind_all(job, &processes).map_err(BindError::Failed)
    }

    /// Counts a process, with all that it starts, to a job as a command of its own.
    pub(super) fn start_process(
        &mut self,
        job: &Name,
        process: i32,
        user: Option<u32>,
    ) -> Result<Started, BindError> {
        let number = u32::try_from(process).unwrap_or_default();
        if number == 0 {
            let why =
                "a process in another PID namespace than the agent's cannot be counted to a job";
            return Err(BindError::Refused(why.into()));
        }
        let Some(identity) = self.bindable(job, &[number], user)?.pop() else {
            return Err(BindError::Refused(format!("process {process} is not there")));
        };
        self.group.child(job.as_str()).and_then(|group| group.take_in(identity)).map_err(failed)
    }

    /// Counts open connections to a job.
    pub(super) fn bind_matching(
        &mut self,
        assignment: &Assignment,
        flow: &ConnectionPattern,
        user: Option<u32>,
    ) -> Result<(), BindError> {
        let job = &assignment.job;
        let goes_there = |assigned: &AssignedFlow| {
            destination(assigned).is_none_or(|address| address == flow.remote.address)
        };
        if !assignment.flows.iter().any(goes_there) {
            let address = flow.remote.address;
            return Err(BindError::Refused(format!("job {job} has no flow to {address}")));
        }
        let all = self.connections().map_err(BindError::Failed)?;
        let found = sockets::matching(flow, user, &all);
        let found = found.map_err(|invalid| BindError::Refused(invalid.to_string()))?;
        self.bind_sockets(job, &found).map_err(BindError::Failed)
    }

    /// Every service that the assignment names runs here, and may be bound.
    pub(super) fn check_services(&self, assignment: &Assignment) -> Result<(), BindError> {
        for service in &assignment.services {
            let refuse = |why: &str| Err(BindError::Refused(format!("service {service} {why}")));
            let processes = self.group.service_processes(&service.unit()).map_err(failed)?;
            let own = std::process::id().cast_signed();
            if processes.iter().any(|pid| *pid == own || *pid == 1) {
                return refuse("has the agent or the first process of this node");
            }
            let group = self.group.child(assignment.job.as_str()).map_err(failed)?;
            if processes.is_empty() && group.of_service(&service.unit()).map_err(failed)?.is_empty()
            {
                return refuse("has no process on this node");
            }
        }
        Ok(())
    }

    /// Has a job have the services that it names, and no others.
    pub(super) fn take_services(&self, assignment: &Assignment) -> Result<(), CgroupError> {
        let units: Vec<_> = assignment.services.iter().map(ServiceName::unit).collect();
        self.group.child(assignment.job.as_str())?.take_services(&self.group, &units)
    }

    /// The processes among `numbers` that have not ended, all of which may be bound to `job`.
    fn bindable(
        &self,
        job: &Name,
        numbers: &[u32],
        user: Option<u32>,
    ) -> Result<Vec<Identity>, BindError> {
        let mut found = Vec::new();
        for number in numbers {
            let refuse = |why: String| Err(BindError::Refused(format!("process {number} {why}")));
            let Some(pid) = i32::try_from(*number).ok().filter(|pid| *pid > 0) else {
                return refuse("is no process number".into());
            };
            let Some(identity) = Identity::of(pid).map_err(failed)? else { continue };
            if *number == std::process::id() || pid == 1 {
                return refuse("is the agent or the first of this node".into());
            }
            let Some(users) = process::users(pid).map_err(failed)? else { continue };
            if let Some(own) = user.filter(|own| !acts_for(*own, users)) {
                return refuse(format!("is not user {own}'s"));
            }
            let group = Group::path_with(pid).map_err(failed)?.filter(|_| user.is_some());
            if let Some((limit, switch)) = group.and_then(|group| self.limit_left_from(&group)) {
                return refuse(format!(
                    "is limited by {limit}, and would leave that: `{switch}` in the agent's configuration says \
                     whether it may"
                ));
            }
            if let Some(other) = self.job_with(pid).map_err(failed)?.filter(|other| other != job) {
                return refuse(format!("belongs to job {other}"));
            }
            found.push(identity);
        }
        Ok(found)
    }

    /// What limits processes of a control group of version 2 that they would leave for that of a job, where they may not, and
    /// the switch by which they may. Slurm's have its limits of memory, cores and devices, all of which one switch gives up; not
    /// those of what is above them.
    fn limit_left_from(&self, group: &str) -> Option<(String, &'static str)> {
        let is_roots = |scope: &str| self.group.owner_of(scope) == Some(0);
        let slurms = above_slurm(group).filter(|(_, scope)| is_roots(scope));
        if slurms.is_some() && !self.leaves_slurm {
            return Some((format!("Slurm in {group}"), "leaves_slurm"));
        }
        let group = slurms.map_or(group, |(above, _)| above);
        let limit = if self.leaves_limits { None } else { self.group.limit_left(group) }?;
        Some((limit.display().to_string(), "leaves_limits"))
    }

    /// The job of this node that a process belongs to. Anybody may have that looked up: it takes the same however many jobs and
    /// processes there are.
    pub(super) fn job_with(&self, pid: i32) -> Result<Option<Name>, CgroupError> {
        Ok(self.group.child_with(pid)?.and_then(|name| name.parse().ok()))
    }

    /// Counts sockets to a job: all to whose destination it has a flow, or none. The others are there for a flow that it
    /// gets later, as long as much of the table is free.
    fn bind_sockets(&mut self, job: &Name, sockets: &[Connection]) -> Result<(), BoxedError> {
        let cgroup_id = self.group.child(job.as_str())?.id()?.id;
        let table = self.table()?;
        let Some(flows) = &mut self.flows else { return Ok(()) };
        let before = flows.bound()?;
        let has_flow = |socket: &Connection| table.has(cgroup_id, *socket.remote.ip());
        let all = sockets.iter().map(|socket| (socket.cookie, has_flow(socket)));
        let all: BTreeMap<_, _> = all.collect();
        let count = all.len();
        let added = worth_binding(all, &before);
        let left = count - added.len();
        if left > 0 {
            tracing::warn!(
                "{left} connections of {job} are not bound, as it has no flow for them now and there are too many: bind them \
                 anew when it has"
            );
        }
        let bound = added.iter().try_for_each(|cookie| flows.bind(*cookie, cgroup_id));
        if bound.is_err() {
            flows.restore_bound(&before)?;
        }
        Ok(bound?)
    }

    /// The connections of this node; those that were bound and are closed make room.
    fn connections(&mut self) -> Result<Vec<Connection>, BoxedError> {
        let all = sockets::connections()?;
        if let Some(flows) = &mut self.flows {
            let open: BTreeSet<u64> = all.iter().map(|socket| socket.cookie).collect();
            flows.retain_bound(|cookie, _| open.contains(&cookie))?;
        }
        Ok(all)
    }

    /// All of them, or none.
    fn bind_all(&mut self, job: &Name, processes: &[Identity]) -> Result<(), BoxedError> {
        let group = self.group.child(job.as_str())?;
        let mut borrowed = Vec::new();
        let bound = borrow_each(&group, processes, &mut borrowed)
            .map_err(BoxedError::from)
            .and_then(|()| self.bind_open(job, processes));
        if bound.is_err() {
            for error in borrowed.iter().filter_map(|one| group.undo_borrow(one).err()) {
                tracing::error!("what was not bound to {job} is in its group: {}", chain(&error));
            }
        }
        bound
    }

    /// Counts the connections that these processes have open to a job.
    fn bind_open(&mut self, job: &Name, processes: &[Identity]) -> Result<(), BoxedError> {
        let all = self.connections()?;
        let mut open = Vec::new();
        for process in processes {
            open.extend(sockets::of_process(process.pid, &all)?);
        }
        self.bind_sockets(job, &open)
    }
}

/// What is said where none of these processes is there. Some of several may have ended meanwhile, which is no mistake.
fn none_there(numbers: &[u32]) -> Option<String> {
    match numbers {
        [] => None,
        [number] => Some(format!("process {number} is not there")),
        numbers => {
            let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
            Some(format!("none of the processes {} is there", numbers.join(", ")))
        }
    }
}

/// Whether a process on the account of these `users` is that of `own` alone: one that can become somebody else is theirs, too.
fn acts_for(own: u32, users: [u32; 4]) -> bool {
    users == [own; 4]
}

/// Takes processes in, and notes those that were not there before.
fn borrow_each(
    group: &Group,
    processes: &[Identity],
    borrowed: &mut Vec<Borrowed>,
) -> Result<(), CgroupError> {
    for process in processes {
        match group.borrow(*process) {
            // It has ended meanwhile.
            Err(error) if error.is_away() && group.is_whole() => {}
            taken => borrowed.extend(taken?),
        }
    }
    Ok(())
}

/// Which of these sockets, by their cookies, are bound beside those that are: all that have a flow, and then as many of the
/// others as leave half of the table free.
fn worth_binding(sockets: BTreeMap<u64, bool>, bound: &BTreeMap<u64, u64>) -> Vec<u64> {
    let (having, others): (Vec<_>, Vec<_>) =
        sockets.into_iter().partition(|(_, has_flow)| *has_flow);
    let room = (BOUND_SOCKETS_MAX / 2).saturating_sub(bound.len() + having.len());
    having.into_iter().chain(others.into_iter().take(room)).map(|(cookie, _)| cookie).collect()
}

/// Above Slurm's, and Slurm's, where this is one of `proctrack/cgroup` with control groups of version 2 (cgroup.conf(5):
/// `slurmstepd.scope`, of one node with several daemons `NODE_slurmstepd.scope`). Anybody may call a scope so: whether it is
/// root's is to be looked at.
fn above_slurm(group: &str) -> Option<(&str, &str)> {
    const SCOPE: &str = "slurmstepd.scope";
    let is_end = |end: usize| matches!(group.as_bytes().get(end), None | Some(b'/'));
    let ends = group.match_indices(SCOPE).map(|(at, _)| at + SCOPE.len());
    let scope = &group[..ends.into_iter().find(|end| is_end(*end))?];
    let (above, _) = scope.rsplit_once('/')?;
    Some((if above.is_empty() { "/" } else { above }, scope))
}

fn failed(error: impl Into<BoxedError>) -> BindError {
    BindError::Failed(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a busy server does not keep others from being bound by connections that nothing was reserved for. Method: more of
    // those than the table holds, beside some with a flow.
    #[test]
    fn sockets_without_a_flow_take_only_room_that_nobody_needs() {
        let most = BOUND_SOCKETS_MAX as u64;
        let sockets = |count: u64| (0..count).map(|cookie| (cookie, cookie % 1_000 == 999));
        let few = worth_binding(sockets(2_000).collect(), &BTreeMap::new());
        assert_eq!(few.len(), 2_000);
        let many = worth_binding(sockets(2 * most).collect(), &BTreeMap::new());
        assert_eq!(many.len() as u64, most / 2);
        assert_eq!(many[..3], [999, 1_999, 2_999]);
        let bound = (most..2 * most).map(|cookie| (cookie, 7)).collect();
        assert_eq!(worth_binding(sockets(2_000).collect(), &bound), [999, 1_999]);
    }

    #[test]
    fn what_is_not_there_is_told_by_its_number() {
        assert_eq!(none_there(&[]), None, "nothing was asked for");
        assert_eq!(none_there(&[7]).as_deref(), Some("process 7 is not there"));
        let several = Some("none of the processes 7, 9 is there");
        assert_eq!(none_there(&[7, 9]).as_deref(), several);
    }

    #[test]
    fn a_process_that_is_or_can_become_somebody_else_is_not_ones_own() {
        let (ada, root) = (7, 0);
        assert!(acts_for(ada, [ada; 4]) && !acts_for(ada, [root; 4]));
        for at in 0..4 {
            let mut users = [ada; 4];
            users[at] = root;
            assert!(!acts_for(ada, users) && !acts_for(root, users), "{users:?}");
        }
    }

    #[test]
    fn groups_of_slurm_are_known_by_its_scope() {
        for (above, scope) in [
            ("/system.slice", "/system.slice/slurmstepd.scope"),
            ("/system.slice", "/system.slice/n1_slurmstepd.scope"),
            ("/pods/slurmstepd.scopes/a", "/pods/slurmstepd.scopes/a/slurmstepd.scope"),
            ("/", "/slurmstepd.scope"),
        ] {
            for below in ["", "/job_5/step_0/user/task_0", "/job_5/slurmstepd.scope"] {
                let own = format!("{scope}{below}");
                assert_eq!(above_slurm(&own), Some((above, scope)), "{own}");
            }
        }
        for other in ["/", "/system.slice/slurmd.service", "/system.slice/slurmstepd.scopes"] {
            assert_eq!(above_slurm(other), None, "{other}");
        }
    }
}
