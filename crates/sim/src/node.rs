//! A machine: the real agent, a kernel that outlives it, the file that it starts from, and a clock.

use crate::Violation;
use crate::clock::WallClock;
use crate::network::ConnectionId;
use keeptime_agent::agent::{Agent, Requester};
use keeptime_agent::book::Capacity;
use keeptime_agent::enforcer::{BindError, BoxedError, Enforcer, Failures, Scope};
use keeptime_agent::store::{MemoryFile, Store};
use keeptime_agent::wire::{Request, Response};
use keeptime_engine::agents::Act;
use keeptime_locks::lock;
use keeptime_model::assignment::{AssignedFlow, Assignment, TrafficClass};
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::disk::{Disk, DiskId, DiskRates};
use keeptime_model::name::Name;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, Nanos, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};

/// How often an agent looks at its clock. (The real one does so four times as often.)
pub const TICK: Nanos = Nanos::from_secs(1);
/// What is over is enforced no longer than this, if the agent is there and the kernel well.
const GRACE: Nanos = Nanos::from_secs(2);

/// What a kernel does when the agent makes it agree.
#[derive(Debug, Default)]
struct Machine {
    enforced: BTreeMap<Name, Assignment>,
    /// Whether it does what it is told, but for the last of the changes.
    refuses: bool,
    /// How often it did not.
    refused: u64,
    /// The agent is killed when so many changes are made.
    dies_after: Option<usize>,
    /// What was in the agent's file when it was killed. It does nothing more.
    last_words: Option<Option<Vec<u8>>>,
    file: MemoryFile,
}

/// The agent's way to the machine. Clones are the same machine.
#[derive(Debug, Clone, Default)]
struct Kernel(Arc<Mutex<Machine>>);

impl Kernel {
    fn lock(&self) -> MutexGuard<'_, Machine> {
        lock(&self.0)
    }
}

impl Machine {
    /// Jobs to be ended first, then those that change or begin; others than in `scope` are not looked at.
    fn changes(
        &self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Vec<(Name, Option<Assignment>)> {
        let ended = self.enforced.keys().filter(|job| !wanted.contains_key(*job));
        let put = wanted.iter().filter(|(job, _)| scope.has(job));
        let put = put.filter(|(job, new)| self.enforced.get(*job) != Some(*new));
        let ended = ended.map(|job| (job.clone(), None));
        ended.chain(put.map(|(job, new)| (job.clone(), Some(new.clone())))).collect()
    }

    fn make(&mut self, changes: impl IntoIterator<Item = (Name, Option<Assignment>)>) {
        for (job, change) in changes {
            match change {
                Some(new) => drop(self.enforced.insert(job, new)),
                None => drop(self.enforced.remove(&job)),
            }
        }
    }
}

impl Enforcer for Kernel {
    fn reconcile(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        scope: &Scope,
    ) -> Result<(), Failures> {
        let mut machine = self.lock();
        if machine.last_words.is_some() {
            return Err(failing("the agent was killed"));
        }
        let changes = machine.changes(wanted, scope);
        if changes.is_empty() {
            return Ok(());
        }
        if let Some(count) = machine.dies_after.take() {
            machine.make(changes.into_iter().take(count));
            machine.last_words = Some(machine.file.read());
            return Err(failing("the agent was killed"));
        }
        if machine.refuses {
            let but_last = changes.len() - 1;
            machine.make(changes.into_iter().take(but_last));
            machine.refused += 1;
            return Err(failing("device or resource busy"));
        }
        machine.make(changes);
        Ok(())
    }

    fn enforced(&self) -> BTreeSet<Name> {
        self.lock().enforced.keys().cloned().collect()
    }

    fn bind(&mut self, _: &Name, _: &[u32], _: Option<u32>) -> Result<(), BindError> {
        Err(BindError::Refused("nothing runs here".into()))
    }

    fn bind_flow(
        &mut self,
        _: &Assignment,
        _: &ConnectionPattern,
        _: Option<u32>,
    ) -> Result<(), BindError> {
        Err(BindError::Refused("nothing is connected here".into()))
    }
}

/// What is true of all jobs: a machine does not fail for one of them alone.
fn failing(why: &str) -> Failures {
    BoxedError::from(why).into()
}

/// What came of something that an agent was to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is so now.
    Done,
    /// It is not, and why.
    Refused(String),
    /// The agent was killed meanwhile.
    Died,
}

/// One machine of the cluster.
#[derive(Debug)]
pub struct Node {
    index: NodeIndex,
    name: Name,
    capacity: Capacity,
    kernel: Kernel,
    file: MemoryFile,
    agent: Option<Agent<Kernel>>,
    clock: WallClock,
    /// The latest time that this agent was told: by it things begin.
    latest: WallTime,
    /// How often an agent was started here: what is planned for one is not for the next.
    process: u64,
    /// Its connection to the broker.
    pub connection: Option<ConnectionId>,
    /// How often it has dialled in vain since the last connection.
    pub attempts: u32,
    /// Since then everything is as it should be here: the agent runs, the kernel does as it is told,
    /// nobody has touched the clock.
    well_since: Nanos,
}

impl Node {
    /// A machine that is there, without an agent.
    pub fn new(topology: &Topology, index: NodeIndex) -> Self {
        let node = topology.node(index);
        let file = MemoryFile::default();
        let machine = Machine { file: file.clone(), ..Machine::default() };
        Self {
            index,
            name: node.name.clone(),
            capacity: Capacity {
                cpu: node.cpu,
                reservable: way_out(topology, &node.name),
                disks: node.disk.iter().map(all_of).collect(),
                capabilities: None,
                schedules: None,
            },
            kernel: Kernel(Arc::new(Mutex::new(machine))),
            file,
            agent: None,
            clock: WallClock::default(),
            latest: WallTime::default(),
            process: 0,
            connection: None,
            attempts: 0,
            well_since: Nanos::new(0),
        }
    }

    /// Its position in the topology.
    pub fn index(&self) -> NodeIndex {
        self.index
    }

    /// Whether an agent runs.
    pub fn is_up(&self) -> bool {
        self.agent.is_some()
    }

    /// Which agent in turn.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Starts the agent from what its file says.
    ///
    /// # Errors
    /// If it cannot read that: nothing that happened here explains it.
    pub fn start(&mut self, now: Nanos) -> Result<(), Violation> {
        let (name, store) = (self.name.clone(), Store::in_memory(self.file.clone()));
        self.latest = self.clock.read(now);
        let (capacity, enforced) = (self.capacity.clone(), self.kernel.enforced());
        let agent = Agent::start(name, capacity, store, self.kernel.clone(), self.latest);
        let agent = agent.map_err(Violation::new)?;
        // What is enforced has begun, whatever the clock says now.
        let begun = agent.assignments().filter(|a| enforced.contains(&a.job));
        self.latest = begun.map(|a| a.from_unix_nanos).fold(self.latest, WallTime::max);
        self.agent = Some(agent);
        self.process += 1;
        self.well_since = now;
        Ok(())
    }

    /// The agent is killed. What the kernel enforces stays.
    pub fn kill(&mut self) {
        let mut machine = self.kernel.lock();
        machine.dies_after = None;
        if let Some(words) = machine.last_words.take() {
            // What the process did after its death did not happen.
            self.file.write(words);
        }
        drop(machine);
        self.agent = None;
        self.connection = None;
    }

    /// The agent will be killed in the middle of making the kernel agree, `after` so many changes.
    pub fn doom(&mut self, after: usize) {
        self.kernel.lock().dies_after = Some(after);
    }

    /// The machine starts anew: nothing of a reservation is left.
    pub fn reboot(&mut self) {
        self.kill();
        self.kernel.lock().enforced.clear();
        self.file.write(None);
    }

    /// Whether the kernel refuses changes from now on.
    pub fn refuse(&mut self, refuses: bool, now: Nanos) {
        self.kernel.lock().refuses = refuses;
        self.well_since = now;
    }

    /// How often the kernel refused changes.
    pub fn refused(&self) -> u64 {
        self.kernel.lock().refused
    }

    /// The kernel does as it is told, the clock is right, nobody is going to be killed. Whether the
    /// clock went back for that.
    pub fn calm_down(&mut self, now: Nanos) -> bool {
        self.kernel.lock().dies_after = None;
        self.refuse(false, now);
        self.set_clock(now, WallClock::set_right)
    }

    /// The clock is set by `set`. Whether it went back.
    pub fn set_clock(&mut self, now: Nanos, set: impl FnOnce(&mut WallClock)) -> bool {
        let before = self.clock.ahead();
        set(&mut self.clock);
        self.well_since = now;
        self.clock.ahead() < before
    }

    /// What the machine's clock says.
    pub fn reads(&self, now: Nanos) -> WallTime {
        self.clock.read(now)
    }

    /// All that the agent was assigned and has not given back.
    pub fn holding(&self) -> Vec<Assignment> {
        self.agent.iter().flat_map(Agent::assignments).cloned().collect()
    }

    /// The agent does as the broker says.
    pub fn obey(&mut self, act: Act, now: Nanos) -> Outcome {
        let at = self.clock.read(now);
        self.latest = self.latest.max(at);
        let Some(agent) = &mut self.agent else { return Outcome::Died };
        let request = match act {
            Act::Enforce(assignment) => Request::Enforce(Arc::unwrap_or_clone(assignment)),
            Act::Withdraw(job) => Request::Withdraw { job },
        };
        // What is over is given back before: its ticks come often enough for that. A kernel that
        // refuses this refuses the order too, or does not matter to it.
        drop(agent.tick(at));
        let response = agent.answer(request, &Requester::Trusted, at);
        if self.kernel.lock().last_words.is_some() {
            return Outcome::Died;
        }
        match response {
            Response::Refused { reason: why } | Response::Failed { error: why } => {
                Outcome::Refused(why)
            }
            _ => Outcome::Done,
        }
    }

    /// The agent looks at its clock. Whether it outlived that.
    ///
    /// # Errors
    /// If the kernel does not enforce exactly what the agent was assigned, and nothing explains it.
    pub fn tick(&mut self, now: Nanos) -> Result<bool, Violation> {
        let at = self.clock.read(now);
        self.latest = self.latest.max(at);
        let Some(agent) = &mut self.agent else { return Ok(false) };
        let ticked = agent.tick(at);
        let machine = self.kernel.lock();
        if machine.last_words.is_some() {
            return Ok(false);
        }
        match ticked {
            Err(_) if machine.refuses => {}
            Err(error) => return Err(Violation(format!("{}: {error}", self.name))),
            Ok(()) => {
                if !is_enforced(agent.assignments(), &machine.enforced, at, self.latest) {
                    let what = "the kernel does not enforce what the agent was assigned";
                    return Err(Violation(format!("{}: {what}", self.name)));
                }
            }
        }
        Ok(true)
    }

    /// What jobs may send beside what is reserved for them: which, to where and how much. Nothing is known of a node
    /// whose agent has what it shall enforce and cannot have made the kernel agree yet.
    pub fn spare(&self, now: Nanos) -> Vec<(Name, Ipv4Addr, u64)> {
        let machine = self.kernel.lock();
        if self.is_up() && !self.is_well(&machine, now) {
            return Vec::new();
        }
        let of_job = |(job, assignment): (&Name, &Assignment)| {
            let more = |flow: &AssignedFlow| {
                let up_to = flow.up_to_bits_per_second?;
                let more = up_to.get() - flow.bits_per_second.get();
                Some((job.clone(), flow.destination, more))
            };
            assignment.flows.iter().filter_map(more).collect::<Vec<_>>()
        };
        machine.enforced.iter().flat_map(of_job).collect()
    }

    /// Whether what the agent has is what the kernel enforces.
    fn is_well(&self, machine: &Machine, now: Nanos) -> bool {
        self.is_up() && now.saturating_sub(self.well_since) > GRACE && !machine.refuses
    }

    /// Nothing is enforced beyond the machine's capacity, nor longer than it lasts.
    ///
    /// # Errors
    /// What is.
    pub fn check(&self, now: Nanos) -> Result<(), Violation> {
        let machine = self.kernel.lock();
        if !self.is_well(&machine, now) {
            return Ok(());
        }
        let mut cpu = 0u64;
        let mut sent = 0u64;
        for (job, assignment) in &machine.enforced {
            let over = self.reads(now).saturating_since(assignment.until_unix_nanos);
            if over > GRACE {
                let name = &self.name;
                return Err(Violation(format!(
                    "{name} enforces {job}, which is over since {over}"
                )));
            }
            cpu += u64::from(assignment.cpu_ppm.get());
            let premium = assignment.flows.iter().filter(|f| f.class == TrafficClass::Premium);
            sent += premium.map(|flow| flow.bits_per_second.get()).sum::<u64>();
        }
        let capacity = &self.capacity;
        if cpu > u64::from(capacity.cpu.get()) || sent > capacity.reservable.get() {
            let name = &self.name;
            let what = format!("{cpu} ppm of CPU and {sent} bit/s");
            return Err(Violation(format!("{name} enforces {what}, more than {capacity:?}")));
        }
        Ok(())
    }
}

/// All that can be read from a disk and written to it.
fn all_of(disk: &Disk) -> (DiskId, DiskRates) {
    let (read, write) = (Some(disk.read), Some(disk.write));
    let rates = DiskRates { read_bytes_per_second: read, write_bytes_per_second: write };
    (disk.device, rates)
}

/// What all links out of a node carry.
fn way_out(topology: &Topology, name: &Name) -> BitsPerSecond {
    let links = topology.links().iter().filter(|link| link.between.contains(name));
    let rates = links.map(|link| match &link.between {
        [from, _] if from == name => link.rate,
        _ => link.rate_back.unwrap_or(link.rate),
    });
    BitsPerSecond::new(rates.map(BitsPerSecond::get).sum())
}

/// Whether what is due by the clock is enforced as it is by then, and beside it only what had begun, by `latest`, when that was set back.
fn is_enforced<'a>(
    assigned: impl Iterator<Item = &'a Assignment>,
    enforced: &BTreeMap<Name, Assignment>,
    at: WallTime,
    latest: WallTime,
) -> bool {
    let assigned: BTreeMap<_, _> =
        assigned.map(|assignment| (&assignment.job, assignment)).collect();
    let mut due = assigned.values().filter(|assignment| assignment.is_due(at));
    let has_begun = |(job, assignment): (&Name, &Assignment)| {
        let lasts = assignment.from_unix_nanos <= latest && at < assignment.until_unix_nanos;
        lasts && assigned.get(job).is_some_and(|assigned| *assigned.at(at) == *assignment)
    };
    due.all(|assignment| enforced.get(&assignment.job) == Some(&*assignment.at(at)))
        && enforced.iter().all(has_begun)
}
