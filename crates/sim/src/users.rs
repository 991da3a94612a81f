//! Who asks for what: at random, but often for all there is, one more than that, and times that touch
//! those of others. Whoever gets no answer asks again with the same key.

use crate::clock::{SECOND, START, second};
use keeptime_engine::{Answer, Call, CallError, Caller};
use keeptime_model::application::Application;
use keeptime_model::assignment::{CpuMechanism, TrafficClass};
use keeptime_model::disk::Disk;
use keeptime_model::drain::NodeSet;
use keeptime_model::extension::{Extension, ExtensionFlow};
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::loss::OnLoss;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::profile::{Conditions, Profile};
use keeptime_model::reservation::{
    Ask, Handle, Malleable, NodeChoice, Request, RequestKey, Resources, UserName,
};
use keeptime_model::run_end::RunEnd;
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, WallTime};
use keeptime_random::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// All users; the last is an operator.
pub const NAMES: [&str; 3] = ["ada", "bob", "root"];
/// Reservations that users remember, to change and cancel them.
const KNOWN_MAX: usize = 48;
/// Seconds that they are remembered after their end.
const RECENT: u64 = 5;
/// Requests that users remember, to send them once more.
const SENT_MAX: usize = 16;
/// In so many calls each, a node is taken out of service, and all are had again.
const SERVICE_EVERY: u64 = 60;
/// The application that goals are about.
const APPLICATION: &str = "ray";
/// Of so many that are given back, two are since a run is over.
const FINISHED_EVERY: u64 = 5;

/// A call that is not answered yet.
#[derive(Debug, Clone)]
pub struct Open {
    /// Who asks.
    pub caller: Caller,
    /// What is asked for.
    pub call: Call,
}

/// All users.
#[derive(Debug)]
pub struct Users {
    random: Random,
    nodes: Vec<Name>,
    rate: BitsPerSecond,
    cpu: CpuPpm,
    disk: Option<Disk>,
    next: u64,
    open: BTreeMap<u64, Open>,
    known: VecDeque<Known>,
    sent: VecDeque<(usize, RequestKey, Request)>,
}

/// What users know of a reservation.
#[derive(Debug, Clone)]
struct Known {
    handle: Handle,
    owner: usize,
    request: Request,
    from: u64,
    until: Option<u64>,
}

impl Users {
    /// Users of a cluster whose nodes and links are all alike.
    pub fn new(random: Random, topology: &Topology) -> Self {
        let nodes: Vec<_> = topology.nodes().iter().map(|node| node.name.clone()).collect();
        let first = topology.nodes().first();
        Self {
            random,
            nodes,
            rate: topology.links().first().map_or(BitsPerSecond::ZERO, |link| link.rate),
            cpu: first.map_or(CpuPpm::default(), |node| node.cpu),
            disk: first.and_then(|node| node.disk),
            next: 1,
            open: BTreeMap::new(),
            known: VecDeque::new(),
            sent: VecDeque::new(),
        }
    }

    /// An operator makes an application known. The number of the call.
    pub fn register(&mut self) -> u64 {
        let (application, profile) = application();
        let (application, profile) = (Box::new(application), Box::new(profile));
        self.begin(NAMES.len() - 1, Call::Register { application, profile })
    }

    /// Somebody asks for something at `now`. The number of the call.
    pub fn think(&mut self, now: WallTime) -> u64 {
        // What is over is nothing to anybody any more; a little later, since clocks differ.
        let recently = second(now).saturating_sub(RECENT);
        self.known.retain(|known| known.until.is_none_or(|until| until > recently));
        if let Some(call) = self.service() {
            return self.begin(NAMES.len() - 1, call);
        }
        let user = self.random.below(NAMES.len() as u64) as usize;
        match self.random.below(100) {
            0..50 => {
                let (key, request) = (self.key(), self.request(now));
                self.remember(user, key.clone(), request.clone());
                self.begin(user, Call::Reserve { key, request })
            }
            50..64 => self.modify(user, now),
            64..72 => self.extend(user),
            72..88 => self.cancel(user),
            88..90 => self.move_lost(user),
            90..94 => {
                let request = self.request(now);
                self.begin(user, Call::Consider { request })
            }
            94..98 => self.again(user, now, false),
            _ => self.again(user, now, true),
        }
    }

    /// Now and then an operator drains one node after the other, and has all resumed some calls later. Not drawn.
    fn service(&self) -> Option<Call> {
        let round = self.next / SERVICE_EVERY;
        match self.next % SERVICE_EVERY {
            20 => {
                let node = self.nodes[round as usize % self.nodes.len()].clone();
                let reason = "a test".parse().expect("it is a reason");
                Some(Call::Drain { nodes: NodeSet::Named([node].into()), reason })
            }
            35 => Some(Call::Resume { nodes: NodeSet::All }),
            _ => None,
        }
    }

    /// What is still to be answered.
    pub fn open(&self) -> impl Iterator<Item = (u64, &Open)> {
        self.open.iter().map(|(number, open)| (*number, open))
    }

    /// A call that is still to be answered.
    pub fn find(&self, number: u64) -> Option<&Open> {
        self.open.get(&number)
    }

    /// An answer has come; perhaps not the first.
    pub fn told(&mut self, number: u64, answer: Result<Answer, Box<CallError>>) {
        if self.open.remove(&number).is_none() {
            return;
        }
        if let Ok(Answer::Reservation(told)) = answer {
            self.known.retain(|known| known.handle != told.handle);
            if told.state.is_live() {
                let owner = NAMES.iter().position(|name| *name == told.owner.as_str());
                self.known.push_back(Known {
                    handle: told.handle,
                    owner: owner.unwrap_or(0),
                    request: told.request.clone(),
                    from: second(told.from_unix_nanos),
                    until: told.until_unix_nanos.map(second),
                });
            }
            if self.known.len() > KNOWN_MAX {
                self.known.pop_front();
            }
        }
    }

    fn begin(&mut self, user: usize, call: Call) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number, Open { caller: caller(user), call });
        number
    }

    fn key(&mut self) -> RequestKey {
        // A letter and at most 20 digits.
        format!("k{}", self.next).parse().expect("it is a key")
    }

    fn remember(&mut self, user: usize, key: RequestKey, request: Request) {
        self.sent.push_back((user, key, request));
        if self.sent.len() > SENT_MAX {
            self.sent.pop_front();
        }
    }

    /// Mostly one's own; others do not get far, but for the operator.
    fn some_known(&mut self, user: usize) -> Option<Known> {
        let own = !self.random.is_one_in(8);
        let known: Vec<_> = self.known.iter().filter(|k| !own || k.owner == user).collect();
        self.random.pick(&known).map(|known| (*known).clone())
    }

    fn modify(&mut self, user: usize, now: WallTime) -> u64 {
        let (known, mut request) = (self.some_known(user), self.request(now));
        let handle = known.as_ref().map_or(Handle::new(self.random.below(5)), |known| known.handle);
        // A change waits for nobody, and is recorded so.
        request.wait_nanos = None;
        // What has started cannot be moved.
        if !self.random.is_one_in(3) {
            request.from_unix_nanos = None;
        }
        if let Some(known) = known.filter(|_| self.random.is_one_in(2)) {
            // The same for another time, or another rate on the same nodes.
            request.ask = match (known.request.ask, request.ask) {
                (Ask::Resources(old), Ask::Resources(new)) if self.random.is_one_in(2) => {
                    let Resources { cpu_ppm, rank_cpu_ppm, .. } = new;
                    Ask::Resources(Resources { cpu_ppm, rank_cpu_ppm, ..old })
                }
                (old, _) => old,
            };
        }
        // Some are a controller's. Not drawn: what is drawn next stays what it was.
        let call = match self.next % 3 {
            0 => Call::Correct { handle, request },
            _ => Call::Modify { handle, request },
        };
        self.begin(user, call)
    }

    /// Its program wants more, less or something else; at times what is not there.
    fn extend(&mut self, user: usize) -> u64 {
        let known = self.some_known(user);
        let handle = known.map_or(Handle::new(self.random.below(5)), |known| known.handle);
        let mut extension = Extension::default();
        for _ in 0..self.random.below(3) {
            let is_premium = !self.random.is_one_in(4);
            extension.flows.push(ExtensionFlow {
                from: self.random.below(3) as u32,
                to: self.random.below(3) as u32,
                bits_per_second: BitsPerSecond::new(self.amount(self.rate.get())),
                burst_bytes: None,
                class: if is_premium { TrafficClass::Premium } else { TrafficClass::LowLatency },
            });
        }
        if self.random.is_one_in(2) {
            extension.cpu_ppm = CpuPpm::new(self.amount(u64::from(self.cpu.get())) as u32);
        }
        let (read, write) = self.disk_rates();
        extension.disk_read_bytes_per_second = read;
        extension.disk_write_bytes_per_second = write;
        self.begin(user, Call::Extend { handle, extension })
    }

    /// Now and then since its run is over. Not drawn.
    fn cancel(&mut self, user: usize) -> u64 {
        let known = match self.known.front() {
            Some(oldest) if self.random.is_one_in(2) => Some(oldest.clone()),
            _ => self.some_known(user),
        };
        let handle = known.map_or(Handle::new(self.random.below(5)), |known| known.handle);
        let call = match self.next % FINISHED_EVERY {
            0 => Call::Finish { handle, run: RunEnd::Done },
            1 => Call::Finish { handle, run: RunEnd::AtLimit },
            _ => Call::Cancel { handle },
        };
        self.begin(user, call)
    }

    /// Of what is known, some was lost meanwhile.
    fn move_lost(&mut self, user: usize) -> u64 {
        let known = self.some_known(user);
        let handle = known.map_or(Handle::new(self.random.below(5)), |known| known.handle);
        self.begin(user, Call::Move { handle })
    }

    /// A request that was sent before, or its key for another.
    fn again(&mut self, user: usize, now: WallTime, other: bool) -> u64 {
        let sent: Vec<_> = self.sent.iter().collect();
        let Some((of, key, request)) = self.random.pick(&sent).map(|sent| (*sent).clone()) else {
            return self.cancel(user);
        };
        let request = if other { self.request(now) } else { request };
        self.begin(of, Call::Reserve { key, request })
    }

    fn request(&mut self, now: WallTime) -> Request {
        let ask = match self.random.below(10) {
            0 => self.goal(),
            _ => Ask::Resources(self.resources()),
        };
        let from = self.from(second(now));
        let start = from.unwrap_or(second(now));
        let duration = self.duration(start);
        let malleable = self.malleable(&ask, start, start + duration.unwrap_or(0));
        let wait_nanos = self.wait(from, malleable.as_ref());
        let policies = [None, Some(OnLoss::Offer), Some(OnLoss::Move)];
        let on_loss = policies[self.random.below(3) as usize];
        let wall = |second: u64| WallTime::from_unix_nanos(second * SECOND);
        Request {
            ask,
            name: None,
            from_unix_nanos: from.map(wall),
            duration_nanos: duration.map(Nanos::from_secs),
            on_loss,
            lease_nanos: None,
            spare: self.random.is_one_in(2),
            malleable,
            // Agents of simulated nodes have no kernel that could lack one.
            cpu_mechanism: CpuMechanism::Auto,
            wait_nanos,
            among: self.among(),
        }
    }

    /// Every seventh may have one half of the nodes alone. Not drawn: what is drawn next stays what it was.
    fn among(&self) -> BTreeSet<Name> {
        let half = self.nodes.iter().skip((self.next % 2) as usize).step_by(2);
        let few = half.take_while(|_| self.next.is_multiple_of(7));
        few.cloned().collect()
    }

    /// Every third waits for room, where that can be. Not drawn: what is drawn next stays what it was.
    fn wait(&self, from: Option<u64>, malleable: Option<&Malleable>) -> Option<Nanos> {
        let waits = from.is_none() && malleable.is_none() && self.next.is_multiple_of(3);
        waits.then(|| Nanos::from_secs(1 + self.next % 10))
    }

    /// Every third has time after `end`, and use for more CPU; some ask for what cannot be malleable. Every second of these
    /// may begin before `start`, which is not drawn either.
    fn malleable(&mut self, ask: &Ask, start: u64, end: u64) -> Option<Malleable> {
        let Ask::Resources(Resources { cpu_ppm, .. }) = ask else { return None };
        let earliest = WallTime::from_unix_nanos(start.saturating_sub(300) * SECOND);
        let earliest_unix_nanos = self.next.is_multiple_of(2).then_some(earliest);
        self.random.is_one_in(3).then(|| {
            let by = WallTime::from_unix_nanos((end + self.random.below(120)) * SECOND);
            let more = self.random.below(u64::from(self.cpu.get()));
            let cpu_most_ppm = CpuPpm::new(cpu_ppm.get() + more as u32);
            Malleable { earliest_unix_nanos, ..Malleable::new(by, cpu_most_ppm) }
        })
    }

    fn goal(&mut self) -> Ask {
        let within = Nanos::from_millis(self.random.within(900..2_500));
        let all = [Preference::Fastest, Preference::Cheapest, Preference::Balanced];
        let prefer = all[self.random.below(3) as usize];
        let goal = Goal { within: Some(within), prefer, ..Goal::default() };
        Ask::Goal { application: APPLICATION.parse().expect("it is a name"), goal }
    }

    fn resources(&mut self) -> Resources {
        let count = self.random.within(1..self.nodes.len() as u64 + 1).min(4) as u32;
        let nodes = if self.random.is_one_in(3) {
            NodeChoice::Any(count)
        } else {
            NodeChoice::Named(self.some_nodes(count))
        };
        let pattern = (count > 1 && !self.random.is_one_in(3)).then(|| {
            let even = count.is_multiple_of(2) && self.random.is_one_in(3);
            if even { Pattern::Pairs } else { Pattern::AllToAll }
        });
        // Of all-to-all, as many flows leave a node as there are others.
        let flows = if pattern == Some(Pattern::Pairs) { 1 } else { u64::from(count) - 1 };
        let rate = self.amount(self.rate.get() / flows.max(1)).max(1);
        let cpu = self.amount(u64::from(self.cpu.get()));
        // Some have ranks that work unequally; a few tell of one rank too few.
        let ranks = if self.random.is_one_in(20) { count - 1 } else { count };
        let rank_cpu_ppm = match self.random.is_one_in(3) {
            true => (0..ranks).map(|_| CpuPpm::new(self.amount(cpu) as u32)).collect(),
            false => Vec::new(),
        };
        // Every fifth to which something flows asks for that alone. Not drawn: what is drawn next stays what it was.
        let is_without_cpu = pattern.is_some() && self.next.is_multiple_of(5);
        let (cpu, rank_cpu_ppm) =
            if is_without_cpu { (0, Vec::new()) } else { (cpu, rank_cpu_ppm) };
        let (read, write) = self.disk_rates();
        Resources {
            nodes,
            cpu_ppm: CpuPpm::new(cpu as u32),
            rank_cpu_ppm,
            cpu_period_nanos: None,
            bits_per_second: if pattern.is_some() {
                BitsPerSecond::new(rate)
            } else {
                BitsPerSecond::ZERO
            },
            pattern,
            disk_read_bytes_per_second: read,
            disk_write_bytes_per_second: write,
        }
    }

    /// Of reading and writing, mostly nothing.
    fn disk_rates(&mut self) -> (BytesPerSecond, BytesPerSecond) {
        let (read, write) = self.disk.map_or((0, 0), |disk| (disk.read.get(), disk.write.get()));
        let mut some = |all| match self.random.below(4) {
            0 => BytesPerSecond::new(self.amount(all)),
            _ => BytesPerSecond::default(),
        };
        (some(read), some(write))
    }

    fn some_nodes(&mut self, count: u32) -> Vec<Name> {
        let mut left = self.nodes.clone();
        let mut chosen = Vec::new();
        for _ in 0..count {
            chosen.push(left.swap_remove(self.random.below(left.len() as u64) as usize));
        }
        chosen
    }

    /// Of `all`: some, half, all, the least, nothing, one too many.
    fn amount(&mut self, all: u64) -> u64 {
        match self.random.below(20) {
            0 => all,
            1 => all / 2,
            2 => 1.min(all),
            3 => 0,
            4 => all + 1,
            5..12 => all * self.random.within(1..8) / 100,
            _ => all * self.random.within(3..45) / 100,
        }
    }

    /// When: mostly now or soon, often when something else starts or ends.
    fn from(&mut self, now: u64) -> Option<u64> {
        let ahead = |random: &mut Random, range| Some(now + random.within(range));
        match self.random.below(20) {
            0..9 => None,
            9..12 => ahead(&mut self.random, 1..40),
            12..14 => ahead(&mut self.random, 40..1_300),
            14 => Some(now.saturating_sub(self.random.below(90))),
            _ => self.edge().filter(|at| *at >= now),
        }
    }

    /// For how long: mostly not for long, often until something else starts or ends.
    fn duration(&mut self, from: u64) -> Option<u64> {
        match self.random.below(80) {
            0 => None,
            1 => Some(0),
            2..16 => match self.edge().and_then(|at| at.checked_sub(from)) {
                Some(until) if (1..2_000).contains(&until) => Some(until),
                _ => Some(self.random.within(1..60)),
            },
            16..72 => Some(self.random.within(1..40)),
            _ => Some(self.random.within(40..400)),
        }
    }

    /// When something that is known starts or ends.
    fn edge(&mut self) -> Option<u64> {
        let at = self.random.below(self.known.len() as u64) as usize;
        let known = self.known.get(at)?;
        if self.random.is_one_in(2) { Some(known.from) } else { known.until }
    }
}

/// A user, as the door would say.
pub fn caller(user: usize) -> Caller {
    let name = NAMES[user];
    let user: UserName = name.parse().expect("it is a name");
    Caller { user, operator: name == NAMES[NAMES.len() - 1] }
}

/// `count` nodes of 100 % CPU with a disk of 100 MB/s, links of 100 Mbit/s: behind one switch, or half
/// of them behind each of two with one such link between.
pub fn topology(count: u32, switches: u32) -> Topology {
    let mut text = String::from("name = \"simulated\"\n");
    let rate = "rate = \"100 Mbit/s\"";
    for number in 1..=switches {
        text += &format!("[[switches]]\nname = \"s{number}\"\n");
    }
    for number in 1..=count {
        let disk = "disk = { device = \"8:0\", read = \"100 MB/s\", write = \"100 MB/s\" }";
        let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
        text += &format!(
            "[[nodes]]\nname = \"n{number}\"\ncpu = \"100 %\"\naddress = \"{address}\"\n{disk}\n"
        );
        let switch = (number - 1) % switches + 1;
        text += &format!("[[links]]\nbetween = [\"n{number}\", \"s{switch}\"]\n{rate}\n");
    }
    for number in 2..=switches {
        text += &format!("[[links]]\nbetween = [\"s1\", \"s{number}\"]\n{rate}\n");
    }
    Topology::from_toml(&text).expect("it is a tree")
}

/// An application of two nodes whose time is 1 s at 80 Mbit/s for each flow, 2 s at 10.
fn application() -> (Application, Profile) {
    let application = Application::from_toml(
        "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"pairs\"\nnodes = [2]\ncpu = \"20 %\"\n\
         timeout = \"60 s\"\ntime = \"wall\"\non_loss = \"move\"\n",
    );
    let application = application.expect("it is an application");
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(100),
        process_cpu_ppm: CpuPpm::from_percent(20),
        processor: "any".into(),
        mpi: "any".into(),
        command: vec!["ray".into()],
        program: None,
    };
    let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
    for (mbit, millis) in [(10, 2_000), (80, 1_000)] {
        let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
        profile.record(&Default::default(), 2, rate, time);
    }
    (application, profile)
}

/// Users' clocks are right.
pub fn now(time: Nanos) -> WallTime {
    START.saturating_add(time)
}
