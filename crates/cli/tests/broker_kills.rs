//! Users reserve, change and give back at random, all of it for now, and the broker is killed meanwhile, over and
//! over: between what it holds, what agents accept and what is recorded. Real processes, real kernels.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::wire::{JobStatus, Status};
use keeptime_broker::client::{Client, ClientError};
use keeptime_broker::wire::Filter;
use keeptime_engine::book::Reservation;
use keeptime_linux::tc::TREE_MAJOR;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, RequestKey, Resources, State};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos, WallTime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use world::{World, wait};

const LIMIT: Duration = Duration::from_secs(60);
const MOMENTS: u32 = 10;
const CALLERS: u32 = 4;
/// Answers before each kill: enough that something is there to be changed.
const ANSWERS: u32 = 12;
/// Of each node, in per cent.
const CPU: u32 = 15;

// Goal: whatever the moment, what was acknowledged is there, nothing is promised twice, agents and kernels
// enforce what is recorded and no more, and what nobody answered can be sent again. Method: the kills are spread
// over the time that a call takes.
#[test]
fn a_broker_that_is_killed_in_the_middle_of_commits_loses_nothing_and_promises_nothing_twice() {
    let Some(world) = World::new("commit", CPU) else { return };
    let mut callers: Vec<_> = (0..CALLERS).map(|number| Caller::new(&world, number)).collect();
    let (mut undone, mut done, mut cut) = (0, 0, 0);
    for moment in 0..MOMENTS {
        kill_while_they_call(&world, &mut callers, moment);
        let held: Vec<_> = world.jobs().into_iter().map(|job| job.assignment.job).collect();
        world.start_broker();
        world.wait_for_agents();
        let found = everything(&world);
        let recorded = |job: &Name| {
            found.values().any(|found| found.handle.job() == *job && found.state.is_live())
        };
        cut += held.iter().filter(|job| !recorded(job)).count();
        for caller in &mut callers {
            match caller.is_recorded(&found) {
                true => done += 1,
                false => undone += 1,
            }
            caller.ask_again(&found);
        }
        assert_enforced(&world, &everything(&world));
    }
    println!(
        "calls cut off: {done} recorded, {undone} not; held by an agent and not recorded: {cut}"
    );
    assert!(undone > 0, "every kill came too late");

    for caller in &mut callers {
        caller.give_all_back();
    }
    wait("an idle lab", LIMIT, || {
        world.jobs().is_empty() && ["n1", "n2"].iter().all(|node| !world.has_tree(node))
    });
}

/// Kills the broker while all call: at first when there are answers, then the later the more often that was.
fn kill_while_they_call(world: &World, callers: &mut [Caller], moment: u32) {
    let (answers, begin) = (&AtomicU32::new(0), Instant::now());
    thread::scope(|scope| {
        for caller in callers {
            scope.spawn(move || caller.call_until_unanswered(answers));
        }
        while answers.load(Ordering::SeqCst) < ANSWERS && begin.elapsed() < LIMIT {
            thread::sleep(Duration::from_micros(200));
        }
        let call = begin.elapsed() * CALLERS / answers.load(Ordering::SeqCst).max(1);
        thread::sleep(call * moment / MOMENTS);
        world.kill_broker();
    });
    assert!(answers.load(Ordering::SeqCst) >= ANSWERS, "callers are not served");
}

/// A program of a user that calls the broker, and what it knows by the answers.
struct Caller {
    client: Client,
    number: u32,
    random: u64,
    /// What was asked under each key, and the handle that was told; of what was refused too.
    asked: BTreeMap<RequestKey, (Request, Handle)>,
    /// As they were told last.
    known: BTreeMap<Handle, Reservation>,
    /// Nothing more fitted.
    is_full: bool,
    unanswered: Option<Call>,
}

enum Call {
    Reserve { key: RequestKey, request: Request },
    Modify { handle: Handle, request: Request },
    Cancel { handle: Handle },
}

impl Caller {
    fn new(world: &World, number: u32) -> Self {
        let client = world.broker();
        let (asked, known) = (BTreeMap::new(), BTreeMap::new());
        let random = u64::from(number);
        Self { client, number, random, asked, known, is_full: false, unanswered: None }
    }

    fn call_until_unanswered(&mut self, answers: &AtomicU32) {
        let begin = Instant::now();
        while self.unanswered.is_none() && begin.elapsed() < LIMIT {
            let call = self.think();
            self.make(call);
            answers.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// What to do next, at random.
    fn think(&mut self) -> Call {
        let live = self.known.values().filter(|known| known.state.is_live());
        let live: Vec<_> = live.map(|known| (known.handle, known.request.clone())).collect();
        let chosen = self.random(live.len().max(1));
        match (live.get(chosen), self.random(6)) {
            (Some((handle, _)), 0) => Call::Cancel { handle: *handle },
            (Some((handle, _)), _) if self.is_full => Call::Cancel { handle: *handle },
            (Some((handle, old)), 1 | 2) => {
                let nodes = nodes_of(old).to_vec();
                Call::Modify { handle: *handle, request: self.request(nodes) }
            }
            _ => {
                let nodes = [&["n1"][..], &["n2"], &["n1", "n2"]][self.random(3)];
                let nodes = nodes.iter().map(|name| name.parse().unwrap()).collect();
                let key = format!("{}:{}", self.number, self.asked.len()).parse().unwrap();
                Call::Reserve { key, request: self.request(nodes) }
            }
        }
    }

    /// From now on: some CPU, and flows where there are two nodes.
    fn request(&mut self, nodes: Vec<Name>) -> Request {
        let mbit = BitsPerSecond::from_mbit(1 + self.random(15) as u64);
        let (pattern, bits_per_second) = match nodes.len() {
            1 => (None, BitsPerSecond::ZERO),
            _ => (Some(Pattern::Pairs), mbit),
        };
        let resources = Resources {
            nodes: NodeChoice::Named(nodes),
            cpu_ppm: CpuPpm::from_percent(1 + self.random(3) as u32),
            pattern,
            bits_per_second,
            ..Resources::nothing()
        };
        let duration_nanos = Some(Nanos::from_secs(600));
        Request { duration_nanos, ..Request::new(Ask::Resources(resources)) }
    }

    fn make(&mut self, call: Call) {
        let outcome = match &call {
            Call::Reserve { key, request } => self.client.reserve(key.clone(), request.clone()),
            Call::Modify { handle, request } => self.client.modify(*handle, request),
            Call::Cancel { handle } => self.client.cancel(*handle),
        };
        match (outcome, call) {
            (Err(error), call) if error.is_retryable() => self.unanswered = Some(call),
            (Err(error), call) => self.refused(&error, call),
            (Ok(told), call) => {
                self.is_full = false;
                if let Call::Reserve { key, request } = call {
                    assert_eq!((&told.key, &told.request), (&key, &request));
                    self.asked.insert(key, (request, told.handle));
                }
                self.known.insert(told.handle, told);
            }
        }
    }

    fn refused(&mut self, error: &ClientError, call: Call) {
        let problem = error.problem().unwrap_or_else(|| panic!("{error}"));
        match call {
            Call::Reserve { key, request } => {
                assert!(problem.refusal.is_some(), "{problem:?}");
                self.is_full = true;
                self.asked.insert(key, (request, problem.handle.unwrap()));
            }
            Call::Modify { .. } => assert!(problem.refusal.is_some(), "{problem:?}"),
            // Sent again, it was done the first time.
            Call::Cancel { handle } => {
                assert_eq!(problem.title, "over", "{problem:?}");
                self.known.insert(handle, self.client.reservation(handle).unwrap());
            }
        }
    }

    /// What was answered is as it was answered; whether what was not is recorded. It is, whole, or it is not at all.
    fn is_recorded(&self, found: &Found) -> bool {
        let unanswered = self.unanswered.as_ref().expect("every caller was cut off");
        let changed = match unanswered {
            Call::Reserve { .. } => None,
            Call::Modify { handle, .. } | Call::Cancel { handle } => Some(*handle),
        };
        for (handle, known) in self.known.iter().filter(|(handle, _)| changed != Some(**handle)) {
            assert_eq!(found.get(handle).map(AsRef::as_ref), Some(known), "it was acknowledged");
        }
        let is_as_before = |handle: &Handle| *found[handle] == self.known[handle];
        match unanswered {
            Call::Reserve { key, request } => {
                let same: Vec<_> = found.values().filter(|found| found.key == *key).collect();
                assert!(same.len() <= 1, "{same:?}");
                assert!(same.iter().all(|found| found.request == *request), "{same:?}");
                !same.is_empty()
            }
            Call::Modify { handle, request } => {
                let now = &found[handle];
                assert!(now.request == *request || is_as_before(handle), "{now:?}");
                !is_as_before(handle)
            }
            Call::Cancel { handle } => {
                let now = &found[handle];
                assert!(now.state == State::Cancelled || is_as_before(handle), "{now:?}");
                !is_as_before(handle)
            }
        }
    }

    /// Sends what was not answered again, and everything else that has a key: each is the same reservation.
    fn ask_again(&mut self, found: &Found) {
        let call = self.unanswered.take().expect("every caller was cut off");
        let recorded = match &call {
            Call::Reserve { key, .. } => found.values().find(|found| found.key == *key),
            _ => None,
        };
        self.make(call);
        assert!(self.unanswered.is_none(), "it is answered now");
        if let Some(recorded) = recorded {
            assert_eq!(self.asked[&recorded.key].1, recorded.handle);
        }
        for (key, (request, handle)) in &self.asked {
            let told = match self.client.reserve(key.clone(), request.clone()) {
                Ok(told) => told.handle,
                Err(error) => error.problem().and_then(|problem| problem.handle).unwrap(),
            };
            assert_eq!(told, *handle, "the same key is the same reservation");
        }
    }

    fn give_all_back(&self) {
        for known in self.known.values().filter(|known| known.state.is_live()) {
            self.client.cancel(known.handle).unwrap();
        }
    }

    /// A number below `bound` (SplitMix64).
    fn random(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

fn nodes_of(request: &Request) -> &[Name] {
    match &request.ask {
        Ask::Resources(Resources { nodes: NodeChoice::Named(nodes), .. }) => nodes,
        other => unreachable!("nobody asks for {other:?}"),
    }
}

/// All reservations, as the broker tells them.
type Found = BTreeMap<Handle, Arc<Reservation>>;

fn everything(world: &World) -> Found {
    let client = world.broker();
    let all = client.all_reservations(Filter::default()).unwrap();
    all.into_iter().map(|found| (found.handle, found)).collect()
}

/// What a node has to do with a job: its CPU, what it sends, and until when.
type Part = (CpuPpm, BitsPerSecond, Option<WallTime>);

/// What is recorded is what agents hold, what kernels do, and what the broker takes to be reserved; and it fits.
fn assert_enforced(world: &World, found: &Found) {
    let mut recorded = BTreeMap::<Name, BTreeMap<Name, Part>>::new();
    for found in found.values().filter(|found| found.state.is_live()) {
        let grant = found.grant.as_ref().unwrap();
        assert_eq!(grant.nodes, nodes_of(&found.request), "all of it: {found:?}");
        for (node, cpu) in grant.nodes.iter().zip(grant.cpu()) {
            let part = (cpu, grant.bits_per_second, found.until_unix_nanos);
            recorded.entry(node.clone()).or_default().insert(found.handle.job(), part);
        }
    }
    let begin = Instant::now();
    while held(world) != recorded && begin.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(held(world), recorded, "agents hold what is recorded, and no more");
    let told = world.broker().nodes(None).unwrap().nodes;
    for node in told {
        let parts = recorded.remove(&node.name).unwrap_or_default();
        let cpu: u32 = parts.values().map(|(cpu, ..)| cpu.get()).sum();
        assert_eq!(node.cpu_reserved_ppm, CpuPpm::new(cpu), "{}: {parts:?}", node.name);
        assert!(CpuPpm::new(cpu) <= CpuPpm::from_percent(CPU), "{}: {parts:?}", node.name);
        let mut rates: Vec<_> = parts.values().map(|(_, rate, _)| *rate).collect();
        rates.retain(|rate| *rate > BitsPerSecond::ZERO);
        rates.sort_unstable();
        let sum: u64 = rates.iter().map(|rate| rate.get()).sum();
        assert!(sum <= World::reservable(), "{}: {rates:?}", node.name);
        wait("the kernel to agree", LIMIT, || reserved_classes(world, &node.name) == rates);
    }
}

/// What agents were assigned, by node and job.
fn held(world: &World) -> BTreeMap<Name, BTreeMap<Name, Part>> {
    let held = |status: Status| (status.node, status.jobs.iter().map(part).collect());
    let held = world.statuses().into_iter().map(held);
    held.filter(|(_, jobs): &(_, BTreeMap<_, _>)| !jobs.is_empty()).collect()
}

fn part(job: &JobStatus) -> (Name, Part) {
    let assigned = &job.assignment;
    // Beside what was asked for, jobs with flows have a little for what must not wait.
    let reserved = assigned.flows.iter().filter(|flow| flow.class == TrafficClass::Premium);
    let sent = reserved.map(|flow| flow.bits_per_second.get()).sum();
    let part = (assigned.cpu_ppm, BitsPerSecond::new(sent), Some(assigned.until_unix_nanos));
    (assigned.job.clone(), part)
}

/// The rates of classes that reserved flows have on a node, ascending: they are guaranteed and limited to the same.
fn reserved_classes(world: &World, node: &Name) -> Vec<BitsPerSecond> {
    let classes = world.observed(node.as_str()).classes;
    let ours = classes.iter().filter(|(handle, _)| handle.major == TREE_MAJOR);
    let leaves = ours.filter(|(_, found)| !found.is_inner).map(|(_, found)| found.class);
    let mut rates: Vec<_> =
        leaves.filter(|class| class.rate == class.ceil).map(|class| class.rate).collect();
    rates.sort_unstable();
    rates
}
