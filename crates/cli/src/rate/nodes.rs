//! The nodes of a job as a run has them: shares are changed by the broker, CPU time is told by agents.

use super::counted::Look;
use super::steering::{Applied, Nodes, Used};
use crate::cluster::Cluster;
use crate::reach::KeptAgents;
use anyhow::{Result, bail};
use keeptime_agent::client::{Client as Agent, ClientError as AgentError};
use keeptime_broker::client::{Client as Broker, ClientError};
use keeptime_broker::wire::{Problem, ResourceLine, ResourceName, Timeline};
use keeptime_control::Schedule;
use keeptime_engine::book::Reservation;
use keeptime_linux::cgroup::CPU_PERIOD;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Grant, Handle, Malleable, NodeChoice, Request, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was granted, changed by changing the reservation.
#[derive(Debug)]
pub struct GrantedNodes {
    broker: Broker,
    handle: Handle,
    job: Name,
    /// For how long it was asked for last; nothing = without an end.
    lasts: Option<Nanos>,
    /// By rank, as their agents.
    names: Vec<Name>,
    agents: KeptAgents,
    clock: Instant,
}

impl GrantedNodes {
    /// Those of `reservation`, which asked for resources; `clock` is what instants are told by.
    ///
    /// # Errors
    /// If nothing was granted, or nodes that the cluster does not have.
    pub fn new(cluster: &Cluster, reservation: &Reservation, clock: Instant) -> Result<Self> {
        let handle = reservation.handle;
        let (Some(grant), Ask::Resources(_)) = (&reservation.grant, &reservation.request.ask)
        else {
            bail!("{handle} holds no resources");
        };
        let agents = node_indices(cluster, grant)?.into_iter().map(|node| cluster.agent(node));
        Ok(Self {
            broker: cluster.broker()?,
            handle,
            job: handle.job(),
            lasts: reservation.request.duration_nanos,
            names: grant.nodes.clone(),
            agents: KeptAgents::new(agents),
            clock,
        })
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.agents.count()
    }

    /// Their names, by rank.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// What each counts of the program's MPI calls; nothing if one does not answer.
    pub fn look(&mut self) -> Option<Vec<Look>> {
        let (job, clock) = (self.job.clone(), self.clock);
        self.ask(move |agent| {
            let status = agent.job(&job)?;
            Ok(Look::of(&status, clock.elapsed().into()))
        })
    }

    /// What keeps the job's share on each node where it has processes; nothing if one does not answer.
    pub fn kept(&mut self) -> Option<BTreeMap<Name, Option<CpuMechanism>>> {
        let job = self.job.clone();
        let statuses = self.ask(move |agent| agent.job(&job))?;
        // Of nobody anything can be said.
        let each = self.names.iter().zip(statuses).filter(|(_, told)| !told.processes.is_empty());
        Some(each.map(|(name, told)| (name.clone(), told.cpu_kept_by)).collect())
    }

    /// What all agents say; nothing if one does not.
    fn ask<T: Send + 'static>(
        &mut self,
        question: impl Fn(&mut Agent) -> Result<T, AgentError> + Send + Sync + 'static,
    ) -> Option<Vec<T>> {
        self.agents.ask(Some(ANSWERS_WITHIN), question).into_iter().map(Result::ok).collect()
    }

    /// Has the reservation last longer by `span`, with what its nodes have now.
    ///
    /// # Errors
    /// Why it does not, in the user's words.
    pub fn extend(&mut self, span: Nanos) -> Result<(), String> {
        // One without an end lasts long enough.
        let Some(lasts) = self.lasts else { return Ok(()) };
        let longer = lasts.saturating_add(span);
        let said = |error: ClientError| error.to_string();
        let mut request = self.asked(|_| ()).map_err(said)?;
        // Whoever asks again since no answer came has what was asked for before, perhaps.
        request.duration_nanos = request.duration_nanos.map(|now| now.max(longer));
        self.broker.modify(self.handle, &request).map_err(said)?;
        self.lasts = Some(longer);
        Ok(())
    }

    /// What is reserved now.
    ///
    /// # Errors
    /// If the broker does not tell.
    pub fn reservation(&self) -> Result<Reservation, ClientError> {
        self.broker.reservation(self.handle)
    }

    /// Has so much of each node's CPU reserved from now on until then, by when it is to be done at the latest if that was to
    /// be sooner. What is reserved then.
    ///
    /// # Errors
    /// If that is not granted: it is as it was.
    pub fn have(&self, cpu: CpuPpm, until: WallTime) -> Result<Reservation, ClientError> {
        let found = self.reservation()?;
        let duration_nanos = Some(until.saturating_since(found.from_unix_nanos));
        let malleable = found
            .request
            .malleable
            .map(|of| Malleable { by_unix_nanos: of.by_unix_nanos.max(until), ..of });
        let request = self.with(found.request, |resources| resources.cpu_ppm = cpu);
        self.broker.modify(self.handle, &Request { duration_nanos, malleable, ..request })
    }

    /// What is asked for now, and as `set` has it: others may have changed it meanwhile, as whoever attaches flows does.
    /// (What they change between this question and the change that follows is lost.)
    fn asked(&self, set: impl FnOnce(&mut Resources)) -> Result<Request, ClientError> {
        Ok(self.with(self.reservation()?.request, set))
    }

    /// `request` as `set` has it, on the nodes that it has.
    fn with(&self, mut request: Request, set: impl FnOnce(&mut Resources)) -> Request {
        if let Ask::Resources(resources) = &mut request.ask {
            // They stay where they are.
            resources.nodes = NodeChoice::Named(self.names.clone());
            set(resources);
        }
        request
    }

    /// Has the resources changed as `set` says.
    fn change(&self, set: impl FnOnce(&mut Resources), in_turn: bool) -> Applied {
        let changed = self.asked(set).and_then(|request| match in_turn {
            true => self.broker.correct(self.handle, &request),
            false => self.broker.modify(self.handle, &request),
        });
        match changed {
            Ok(_) => Applied::InForce { since: self.clock.elapsed().into() },
            Err(error) if error.is_retryable() => Applied::Unknown,
            Err(error) if error.problem().is_some_and(Problem::is_for_later) => Applied::NotYet,
            Err(error) => Applied::Refused { reason: error.to_string() },
        }
    }
}

impl Nodes for GrantedNodes {
    fn used(&mut self) -> Option<Used> {
        let job = self.job.clone();
        let each = self.ask(move |agent| agent.used(&job))?;
        Some(Used { at: self.clock.elapsed().into(), each })
    }

    fn apply(&mut self, schedules: &[Schedule], in_turn: bool) -> Applied {
        self.change(|resources| set_schedules(resources, schedules), in_turn)
    }

    fn release(&mut self, full: CpuPpm) -> Applied {
        let whole = |resources: &mut Resources| {
            resources.cpu_period_nanos = None;
            resources.set_rank_cpu(vec![full]);
        };
        self.change(whole, false)
    }

    fn observed(&mut self) -> Option<Vec<Schedule>> {
        let grant = self.broker.reservation(self.handle).ok()?.grant?;
        let period = grant.cpu_period_nanos.unwrap_or(CPU_PERIOD);
        Some(grant.cpu_asked().map(|cpu| Schedule::new(cpu, period)).collect())
    }

    fn available(&mut self) -> Option<Vec<CpuPpm>> {
        let reservation = self.broker.reservation(self.handle).ok()?;
        let (grant, until) = (reservation.grant?, reservation.until_unix_nanos?);
        let timeline = self.broker.timeline(None, until).ok()?;
        let each = grant.nodes.iter().zip(grant.cpu());
        each.map(|(node, own)| available(&timeline, node, own)).collect()
    }
}

/// What a node has free at every time of `timeline`, with what is its `own` of what is reserved.
fn available(timeline: &Timeline, node: &Name, own: CpuPpm) -> Option<CpuPpm> {
    let is_its =
        |line: &&ResourceLine| matches!(&line.resource, ResourceName::Cpu(name) if name == node);
    let line = timeline.resources.iter().find(is_its)?;
    let most = line.levels.iter().map(|level| level.reserved).max()?;
    let free = line.capacity.saturating_add(own.get().into()).saturating_sub(most);
    Some(CpuPpm::new(u32::try_from(free).unwrap_or(u32::MAX)))
}

/// Asks for schedules of one period: one for each rank, or one for all.
pub fn set_schedules(resources: &mut Resources, schedules: &[Schedule]) {
    resources.set_rank_cpu(schedules.iter().map(|schedule| schedule.cpu()).collect());
    resources.cpu_period_nanos = schedules.first().map(|schedule| schedule.period());
}

/// Where the ranks of a grant run.
///
/// # Errors
/// A node that the cluster does not have.
pub fn node_indices(cluster: &Cluster, grant: &Grant) -> Result<Vec<NodeIndex>> {
    let index = |name: &Name| match cluster.topology().find_node(name) {
        Some(node) => Ok(node),
        None => bail!("the broker granted {name}, which it did not tell of before"),
    };
    grant.nodes.iter().map(index).collect()
}

/// A node that takes longer to answer tells nothing: whoever asks how the run stands, or for another rate, waits behind this.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::AgentPlace;
    use keeptime_agent::wire;
    use keeptime_broker::wire::Level;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::thread;

    /// Those of a job, whose agents listen there.
    fn nodes_at(places: &[&Path]) -> GrantedNodes {
        let agents = places.iter().map(|path| AgentPlace::Socket(path.to_path_buf()));
        let handle: Handle = "r7".parse().unwrap();
        GrantedNodes {
            broker: Broker::new(places[0]).unwrap(),
            handle,
            job: handle.job(),
            lasts: None,
            names: (0..places.len()).map(|node| format!("n{node}").parse().unwrap()).collect(),
            agents: KeptAgents::new(agents),
            clock: Instant::now(),
        }
    }

    // Goal: a node that hangs keeps nobody waiting who asks the run for another rate, or how it stands; nothing is known then of
    // what a report would need. Method: three hundred nodes, and one more that takes calls and is silent, for less time than
    // a single call may take.
    #[test]
    fn a_node_that_hangs_delays_one_answer_for_a_moment() {
        let directory = tempfile::tempdir().unwrap();
        let [well, hangs] = ["well.sock", "hangs.sock"].map(|name| directory.path().join(name));
        let (agent, _silent) = (UnixListener::bind(&well).unwrap(), UnixListener::bind(&hangs));
        let serve = |stream: UnixStream| {
            let used = serde_json::to_string(&wire::Response::Used(Nanos::new(5))).unwrap();
            for _ in BufReader::new(&stream).lines().map_while(Result::ok) {
                let _ = writeln!(&stream, "{used}");
            }
        };
        thread::spawn(move || {
            for stream in agent.incoming().map_while(Result::ok) {
                thread::spawn(move || serve(stream));
            }
        });
        let mut places = [well.as_path(); 300].to_vec();
        let all = nodes_at(&places).used().unwrap();
        assert_eq!(all.each, [Nanos::new(5); 300]);
        places.insert(100, &hangs);
        let mut nodes = nodes_at(&places);
        for least in [ANSWERS_WITHIN, Duration::ZERO, Duration::ZERO] {
            let begun = Instant::now();
            assert_eq!(nodes.used(), None);
            let (took, most) = (begun.elapsed(), least + Duration::from_secs(2));
            assert!(took >= least && took < most, "{took:?}, not {least:?} to {most:?}");
        }
    }

    // Goal: what a report costs a node's link, where nothing has to change: at most 64 bytes, twice what the
    // time-sharing paper's prototype needs.
    #[test]
    fn a_report_is_a_short_question_and_a_short_answer() {
        let job = "r123456".parse().unwrap();
        let question = serde_json::to_string(&wire::Request::Used { job }).unwrap();
        let a_week = Nanos::from_secs(7 * 24 * 3_600);
        let answer = serde_json::to_string(&wire::Response::Used(a_week)).unwrap();
        let bytes = format!("{question}\n{answer}\n").len();
        assert!(bytes <= 64, "{bytes}: {question} {answer}");
    }

    // Goal: what a job could have is what nobody else has at any time until it ends. Method: of 40 % it has 6 itself,
    // and others 28 later on; of another node nothing is told.
    #[test]
    fn what_is_free_is_what_others_leave_at_all_times() {
        let at = |seconds: u64| WallTime::from_unix_nanos(seconds * 1_000_000_000);
        let level = |from: u64, to: u64, percent| Level {
            from_unix_nanos: at(from),
            to_unix_nanos: at(to),
            reserved: CpuPpm::from_percent(percent).get().into(),
        };
        let [here, elsewhere]: [Name; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let line = ResourceLine {
            resource: ResourceName::Cpu(here.clone()),
            unit: None,
            capacity: CpuPpm::from_percent(40).get().into(),
            levels: vec![level(0, 20, 6), level(20, 50, 34), level(50, 60, 6)],
        };
        let timeline = Timeline {
            from_unix_nanos: at(0),
            to_unix_nanos: at(60),
            resources: vec![line],
            reservations: Vec::new(),
        };
        let own = CpuPpm::from_percent(6);
        assert_eq!(available(&timeline, &here, own), Some(CpuPpm::from_percent(12)));
        assert_eq!(available(&timeline, &elsewhere, own), None);
    }
}
