//! What runs already becomes part of a job, for as long as the job lasts or as a command of its own: who may
//! have that done to what, and how.

use super::{Kernel, destination};
use crate::enforcer::{BindError, BoxedError};
use keeptime_linux::bound::Borrowed;
use keeptime_linux::cgroup::{CgroupError, Group};
use keeptime_linux::flows::BOUND_SOCKETS_MAX;
use keeptime_linux::process::{self, Identity};
use keeptime_linux::sockets::{self, Connection, DESCRIPTORS_MAX};
use keeptime_linux::started::Started;
use keeptime_model::Invalid;
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
        let pids: Vec<i32> = processes.iter().map(|process| process.pid).collect();
        let open = sockets::count_descriptors(&pids).map_err(failed)?;
        check_open(pids.len(), open).map_err(|invalid| BindError::Refused(invalid.to_string()))?;
        self.bind_all(job, &processes, user)
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
        self.bind_sockets(job, &found, &all, user)
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
            let limit = group.map(|group| self.limit_left_from(&group, pid)).transpose();
            if let Some((limit, switch)) = limit.map_err(failed)?.flatten() {
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

    /// What limits a process, of this control group of version 2, that it would leave for that of a job, where it may not, and
    /// the switch by which it may. Slurm's have its limits of memory, cores and devices, all of which one switch gives up; not
    /// those of what is above them.
    fn limit_left_from(
        &self,
        group: &str,
        pid: i32,
    ) -> Result<Option<(String, &'static str)>, CgroupError> {
        let is_roots = |scope: &str| self.group.owner_of(scope) == Some(0);
        let slurms = above_slurm(group).filter(|(_, scope)| is_roots(scope));
        if slurms.is_some() && !self.leaves_slurm {
            return Ok(Some((format!("Slurm in {group}"), "leaves_slurm")));
        }
        if self.leaves_limits {
            return Ok(None);
        }
        let group = slurms.map_or(group, |(above, _)| above);
        let limit = match self.group.limit_left(group) {
            None => self.group.limit_left_in_version_1(pid)?,
            limit => limit,
        };
        Ok(limit.map(|limit| (limit.display().to_string(), "leaves_limits")))
    }

    /// The job of this node that a process belongs to. Anybody may have that looked up: it takes the same however many jobs and
    /// processes there are.
    pub(super) fn job_with(&self, pid: i32) -> Result<Option<Name>, CgroupError> {
        Ok(self.group.child_with(pid)?.and_then(|name| name.parse().ok()))
    }

    /// Counts sockets to a job: all to whose destination it has a flow, or none. The others are there for a flow that it
    /// gets later, as long as much of the table is free. `all` are those of this node, of which `user`'s have a share of it.
    fn bind_sockets(
        &mut self,
        job: &Name,
        sockets: &[Connection],
        all: &[Connection],
        user: Option<u32>,
    ) -> Result<(), BindError> {
        let group = self.group.child(job.as_str()).and_then(|group| group.id());
        let cgroup_id = group.map_err(failed)?.id;
        let table = self.table().map_err(failed)?;
        let Some(flows) = &mut self.flows else { return Ok(()) };
        let before = flows.bound().map_err(failed)?;
        let has_flow = |socket: &Connection| table.has(cgroup_id, *socket.remote.ip());
        let asked = sockets.iter().map(|socket| (socket.cookie, has_flow(socket)));
        let asked: BTreeMap<_, _> = asked.collect();
        let is_users = |socket: &&Connection| user == Some(socket.user);
        let own = all.iter().filter(is_users).map(|socket| socket.cookie);
        let own = user.map(|_| own.filter(|cookie| before.contains_key(cookie)).collect());
        let count = asked.len();
        let added = worth_binding(asked, &before, own.as_ref())
            .map_err(|invalid| BindError::Refused(invalid.to_string()))?;
        let left = count - added.len();
        if left > 0 {
            tracing::warn!(
                "{left} connections of {job} are not bound, as it has no flow for them now and there are too many: bind them \
                 anew when it has"
            );
        }
        let bound = added.iter().try_for_each(|cookie| flows.bind(*cookie, cgroup_id));
        if bound.is_err() {
            flows.restore_bound(&before).map_err(failed)?;
        }
        bound.map_err(failed)
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
    fn bind_all(
        &mut self,
        job: &Name,
        processes: &[Identity],
        user: Option<u32>,
    ) -> Result<(), BindError> {
        let group = self.group.child(job.as_str()).map_err(failed)?;
        let mut borrowed = Vec::new();
        let bound = borrow_each(&group, processes, &mut borrowed)
            .map_err(failed)
            .and_then(|()| self.bind_open(job, processes, user));
        if bound.is_err() {
            for error in borrowed.iter().filter_map(|one| group.undo_borrow(one).err()) {
                tracing::error!("what was not bound to {job} is in its group: {}", chain(&error));
            }
        }
        bound
    }

    /// Counts the connections that these processes have open to a job.
    fn bind_open(
        &mut self,
        job: &Name,
        processes: &[Identity],
        user: Option<u32>,
    ) -> Result<(), BindError> {
        let all = self.connections().map_err(BindError::Failed)?;
        let pids: Vec<i32> = processes.iter().map(|process| process.pid).collect();
        // Once they are in the group: what they open from then on is the job's anyway.
        let open = sockets::of_processes(&pids, &all).map_err(failed)?;
        self.bind_sockets(job, &open, &all, user)
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

/// That so many processes with so many descriptors may be bound at once, each of which is looked at while others wait. Of one
/// alone that has more, the first are.
fn check_open(processes: usize, descriptors: usize) -> Result<(), Invalid> {
    if processes <= 1 || descriptors <= DESCRIPTORS_MAX {
        return Ok(());
    }
    let value = format!("{processes}, which have more than {DESCRIPTORS_MAX} descriptors open");
    let expected =
        format!("at most {DESCRIPTORS_MAX} of all at once: bind fewer of them at a time");
    Err(Invalid::new("processes", value, expected))
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
/// others as leave half of the table free. Where `own` are those of the bound ones that are the user's who asks, no more than
/// [`USER_SOCKETS_MAX`] are theirs then.
///
/// # Errors
/// If all that have a flow would be more.
fn worth_binding(
    sockets: BTreeMap<u64, bool>,
    bound: &BTreeMap<u64, u64>,
    own: Option<&BTreeSet<u64>>,
) -> Result<Vec<u64>, Invalid> {
    let (having, others): (Vec<_>, Vec<_>) =
        sockets.into_iter().partition(|(_, has_flow)| *has_flow);
    let mut room = (BOUND_SOCKETS_MAX / 2).saturating_sub(bound.len() + having.len());
    if let Some(own) = own {
        let added = having.iter().filter(|(cookie, _)| !own.contains(cookie)).count();
        let theirs = own.len() + added;
        let Some(left) = USER_SOCKETS_MAX.checked_sub(theirs) else {
            let expected = format!("at most {USER_SOCKETS_MAX} of one user on a node");
            return Err(Invalid::new("bound connections", theirs, expected));
        };
        room = room.min(left);
    }
    Ok(having.into_iter().chain(others.into_iter().take(room)).map(|(cookie, _)| cookie).collect())
}

/// Of the bound sockets of a node, those of one user, who asks for it themselves: others find room, whoever binds all that
/// they can.
const USER_SOCKETS_MAX: usize = BOUND_SOCKETS_MAX / 4;

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
    use std::ops::Range;

    // Goal: a busy server does not keep others from being bound by connections that nothing was reserved for. Method: more of
    // those than the table holds, beside some with a flow.
    #[test]
    fn sockets_without_a_flow_take_only_room_that_nobody_needs() {
        let most = BOUND_SOCKETS_MAX as u64;
        let sockets = |count: u64| (0..count).map(|cookie| (cookie, cookie % 1_000 == 999));
        let worth = |sockets, bound: &_| worth_binding(sockets, bound, None).unwrap();
        let few = worth(sockets(2_000).collect(), &BTreeMap::new());
        assert_eq!(few.len(), 2_000);
        let many = worth(sockets(2 * most).collect(), &BTreeMap::new());
        assert_eq!(many.len() as u64, most / 2);
        assert_eq!(many[..3], [999, 1_999, 2_999]);
        let bound = (most..2 * most).map(|cookie| (cookie, 7)).collect();
        assert_eq!(worth(sockets(2_000).collect(), &bound), [999, 1_999]);
    }

    // Goal: whoever binds all that they can leaves others room, and hears why that is all. Method: one user's sockets, with a flow
    // and without, until their share is full.
    #[test]
    fn one_user_has_a_share_of_the_bound_sockets() {
        let share = USER_SOCKETS_MAX as u64;
        let with = |range: Range<u64>, has_flow: bool| -> BTreeMap<u64, bool> {
            range.map(|cookie| (cookie, has_flow)).collect()
        };
        let bound: BTreeMap<u64, u64> = (0..share - 10).map(|cookie| (cookie, 7)).collect();
        let own: BTreeSet<u64> = bound.keys().copied().collect();
        let ask = |sockets| worth_binding(sockets, &bound, Some(&own));
        assert_eq!(ask(with(share..share + 10, true)).unwrap().len(), 10);
        let error = ask(with(share..share + 11, true)).unwrap_err().to_string();
        assert!(error.contains("bound connections: \"1025\"") && error.contains("1024"), "{error}");
        assert_eq!(ask(with(share..share + 11, false)).unwrap().len(), 10);
        // Those that are bound already take no more room.
        assert_eq!(ask(with(0..share, true)).unwrap().len() as u64, share);
        // Another user's are not among them.
        let others = worth_binding(with(share..share + 11, true), &bound, Some(&BTreeSet::new()));
        assert_eq!(others.unwrap().len(), 11);
    }

    #[test]
    fn processes_that_have_too_much_open_are_bound_in_parts() {
        assert!(
            check_open(1, DESCRIPTORS_MAX + 1).is_ok() && check_open(2, DESCRIPTORS_MAX).is_ok()
        );
        let error = check_open(2, DESCRIPTORS_MAX + 1).unwrap_err().to_string();
        for part in ["processes: \"2, which have", "at most 16384", "fewer of them at a time"] {
            assert!(error.contains(part), "{error}");
        }
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
