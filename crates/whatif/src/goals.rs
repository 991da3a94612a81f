//! Users who ask for goals of measured applications, on a cluster that is not there: the real broker decides and
//! what it promises is kept, or decides beside runs that really were there, or nobody decides and all share.

use crate::broker::Broker;
use crate::contention::{Program, unit_seconds};
use keeptime_control::pace;
use keeptime_engine::{Answer, Call, CallError, Cluster};
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::reservation::{Ask, Grant, Handle, Promise, Request};
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, Nanos};
use keeptime_planner::curve::FittedCurve;
use keeptime_planner::fitted::FittedProfile;
use std::collections::{BTreeMap, BTreeSet};

/// A cluster and what was measured of its applications.
#[derive(Debug, Clone)]
pub struct World {
    /// Nodes and links.
    pub topology: Topology,
    /// What of a link may be reserved.
    pub reservable: fn(BitsPerSecond) -> BitsPerSecond,
    /// What users may ask for.
    pub known: Vec<Curves>,
}

/// An application and what was measured of it.
#[derive(Debug, Clone)]
pub struct Curves {
    /// Which.
    pub application: Application,
    /// In company, as on a busy cluster: what promises are made from.
    pub profile: Profile,
    /// With nobody else there, from the greatest bandwidth of `profile` up: it says how much company costs, and what
    /// more bandwidth brings. Without it company costs nothing, and curves go on as they end.
    pub alone: Option<Profile>,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// When; none comes before the one before it.
    pub at: Nanos,
    /// For what.
    pub application: Name,
    /// How.
    pub goal: Goal,
    /// How many times what is promised of the time of one (frames, say).
    pub units: u32,
    /// What it takes beside: to be launched and to end.
    pub beside: Nanos,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// The time of a unit that was promised, by who promises.
    pub promised: Option<Nanos>,
    /// The time of a unit that half of the runs are expected to take.
    pub expected: Option<Nanos>,
    /// The time of a unit; nothing if it was refused, or if decisions alone were asked for.
    pub unit: Option<Nanos>,
    /// When it ended.
    pub ended: Option<Nanos>,
}

/// How fast a run is that has a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    /// Held at what was promised.
    Promised,
    /// As fast as half of the runs, with what nobody has reserved.
    Spare,
}

/// The real broker admits, and what it promises is kept.
///
/// # Errors
/// If the cluster, an application or a request makes no sense.
pub fn reserved(world: &World, asked: &[Asked], speed: Speed) -> Result<Vec<Fate>, Invalid> {
    let mut broker = world.broker()?;
    let known = world.fitted()?;
    let mut fates = vec![Fate::default(); asked.len()];
    let mut running: Vec<Held> = Vec::new();
    let mut waiting = asked.iter().enumerate().peekable();
    let mut now = Nanos::new(0);
    loop {
        let next = waiting.peek().map(|(_, request)| request.at);
        let end = running.iter().map(|held| held.end(now)).min();
        let Some(then) = end.into_iter().chain(next).min() else { return Ok(fates) };
        // What is spare is parted anew a moment after something has changed.
        let then = broker.next().map_or(then, |due| due.min(then)).max(now);
        running.iter_mut().for_each(|held| held.pass(now, then));
        now = then;
        broker.set_time(now);
        broker.pass();
        while let Some(at) = running.iter().position(Held::is_over) {
            let held = running.swap_remove(at);
            answered(broker.call(Call::Cancel { handle: held.handle }))?;
            let request = &asked[held.number];
            let took = now.saturating_sub(request.begin()).as_secs_f64();
            fates[held.number].unit = Some(seconds_of(took / f64::from(request.units))?);
            fates[held.number].ended = Some(now);
        }
        if let Some((number, request)) = waiting.next_if(|(_, request)| request.at <= now)
            && let Some((held, fate)) = ask(&mut broker, &known, number, request, speed)?
        {
            fates[number] = fate;
            running.push(held);
        }
        for at in 0..running.len() {
            let is_alone = running[at].minds_company() && is_alone(&running, at);
            let rate = broker.flow_rate(running[at].handle);
            running[at].has(rate, is_alone);
        }
    }
}

/// Whether no other run has a node of this one.
fn is_alone(running: &[Held], at: usize) -> bool {
    let has_node = |other: &Held| other.nodes.iter().any(|node| running[at].nodes.contains(node));
    !running.iter().enumerate().any(|(number, other)| number != at && has_node(other))
}

/// A run that has a reservation.
struct Held {
    number: usize,
    handle: Handle,
    nodes: Vec<NodeIndex>,
    /// When its first unit begins.
    begins: Nanos,
    units_left: f64,
    unit: Unit,
}

/// How long a unit takes.
enum Unit {
    /// In seconds.
    Fixed(f64),
    /// By what each flow has of late, and in what company.
    Following { course: Box<Course>, seconds: f64 },
}

/// How long a unit takes with any rate of each flow, in company and alone.
struct Course {
    curve: FittedCurve,
    alone: Option<FittedCurve>,
}

impl Held {
    fn seconds(&self) -> f64 {
        match self.unit {
            Unit::Fixed(seconds) | Unit::Following { seconds, .. } => seconds,
        }
    }

    /// When it ends if nothing changes.
    fn end(&self, now: Nanos) -> Nanos {
        let left = Nanos::from_secs_f64((self.units_left * self.seconds()).max(0.0));
        self.begins.max(now).saturating_add(left.unwrap_or_default())
    }

    /// Instants are whole nanoseconds.
    fn is_over(&self) -> bool {
        self.units_left * self.seconds() <= 1e-9
    }

    fn pass(&mut self, from: Nanos, to: Nanos) {
        let runs = to.saturating_sub(self.begins.max(from)).as_secs_f64();
        self.units_left -= runs / self.seconds();
    }

    /// Whether it is known how fast it is alone.
    fn minds_company(&self) -> bool {
        matches!(&self.unit, Unit::Following { course, .. } if course.alone.is_some())
    }

    fn has(&mut self, rate: Option<BitsPerSecond>, is_alone: bool) {
        if let (Unit::Following { course, seconds }, Some(rate)) = (&mut self.unit, rate) {
            *seconds = course.seconds_at(rate, is_alone);
        }
    }
}

impl Course {
    /// Of a unit when each flow has `rate`. Company costs the same part of it at every rate, and what more bandwidth
    /// brings beyond the curve is the same part in company.
    fn seconds_at(&self, rate: BitsPerSecond, is_alone: bool) -> f64 {
        let Some(alone) = &self.alone else { return seconds_at(&self.curve, rate) };
        let [least, most] = ends(alone);
        let of_alone = |rate| seconds_at(alone, rate);
        let brought = of_alone(rate.clamp(least, most)) / of_alone(least);
        let cost = if is_alone { of_alone(least) / seconds_at(&self.curve, least) } else { 1.0 };
        seconds_at(&self.curve, rate.min(least)) * brought * cost
    }
}

/// Of a unit when each flow has `rate`: as measured; above what was measured, as it went on last.
fn seconds_at(curve: &FittedCurve, rate: BitsPerSecond) -> f64 {
    match curve.expected_at(rate) {
        Some(time) => time.as_secs_f64(),
        None if rate < ends(curve)[0] => curve.points()[0].time_nanos.as_secs_f64(),
        None => curve.beyond().seconds_at(rate),
    }
}

/// The least and the greatest bandwidth of a curve; every curve has a point.
fn ends(curve: &FittedCurve) -> [BitsPerSecond; 2] {
    let points = curve.points();
    [&points[0], &points[points.len() - 1]].map(|point| point.bandwidth_bits_per_second)
}

/// What the broker grants, as a run; nothing if it refuses.
fn ask(
    broker: &mut Broker,
    known: &[Fitted<'_>],
    number: usize,
    asked: &Asked,
    speed: Speed,
) -> Result<Option<(Held, Fate)>, Invalid> {
    let known = named(known, &asked.application)?;
    let Some(granted) = granted(broker, known.application, asked, speed)? else { return Ok(None) };
    let fate = granted.fate();
    let Granted { handle, grant, promise } = granted;
    let unit = match speed {
        Speed::Promised => Unit::Fixed(promise.time_nanos.as_secs_f64() * (1.0 - pace::MARGIN)),
        Speed::Spare => {
            let nodes = u32::try_from(grant.nodes.len()).unwrap_or(u32::MAX);
            let course = known.course(&promise.parameters, nodes);
            let course = course.ok_or_else(|| not_of(known.application, &asked.goal))?;
            let seconds = course.seconds_at(grant.bits_per_second, false);
            Unit::Following { course: Box::new(course), seconds }
        }
    };
    let begins = asked.begin();
    let nodes = broker.nodes(handle).unwrap_or_default();
    let units_left = f64::from(asked.units);
    Ok(Some((Held { number, handle, nodes, begins, units_left, unit }, fate)))
}

/// A goal that the broker has granted.
struct Granted {
    handle: Handle,
    grant: Grant,
    promise: Promise,
}

impl Granted {
    /// What is known of its fate.
    fn fate(&self) -> Fate {
        Fate {
            promised: Some(self.promise.time_nanos),
            expected: Some(self.promise.median_nanos),
            ..Fate::default()
        }
    }
}

/// What the broker grants; nothing if it refuses.
fn granted(
    broker: &mut Broker,
    application: &Application,
    asked: &Asked,
    speed: Speed,
) -> Result<Option<Granted>, Invalid> {
    let goal = &asked.goal;
    let ask = Ask::Goal { application: application.name().clone(), goal: goal.clone() };
    let duration_nanos = Some(application.timeout());
    let spare = speed == Speed::Spare;
    let request = Request { duration_nanos, spare, ..Request::new(ask) };
    let key = broker.new_key()?;
    let reservation = match answered(broker.call(Call::Reserve { key, request }))? {
        Some(Answer::Reservation(reservation)) => reservation,
        _ => return Ok(None),
    };
    let grant = reservation.grant.clone();
    let granted = grant.and_then(|grant| Some((grant.promise.clone()?, grant)));
    let (promise, grant) = granted.ok_or_else(|| not_of(application, goal))?;
    Ok(Some(Granted { handle: reservation.handle, grant, promise }))
}

fn not_of(application: &Application, goal: &Goal) -> Invalid {
    Invalid::new("goal", goal, format!("a goal of {}", application.name()))
}

/// A refusal is an answer, too: nothing.
fn answered(answer: Option<Result<Answer, Box<CallError>>>) -> Result<Option<Answer>, Invalid> {
    match answer {
        Some(Ok(answer)) => Ok(Some(answer)),
        Some(Err(error)) => match *error {
            CallError::Refused { .. } => Ok(None),
            error => Err(Invalid::new("call", error, "one that the broker carries out")),
        },
        None => Ok(None),
    }
}

/// The real broker decides about each request on the cluster as it really was: beside the runs that were there then.
/// `held_until` has for each request when what was reserved for it was given back; nothing for one that was refused.
/// Each decision is judged by itself: who is admitted here and was refused there leaves at once. Only who is refused
/// here and was admitted there is missing when others ask.
///
/// # Errors
/// If the cluster, an application or a request makes no sense, or `held_until` is of another number of requests.
pub fn decided(
    world: &World,
    asked: &[Asked],
    held_until: &[Option<Nanos>],
) -> Result<Vec<Fate>, Invalid> {
    if held_until.len() != asked.len() {
        let expected = format!("{}, as many as requests", asked.len());
        return Err(Invalid::new("held_until", held_until.len(), expected));
    }
    let mut broker = world.broker()?;
    let known = world.fitted()?;
    let mut fates = vec![Fate::default(); asked.len()];
    let mut held = BTreeSet::new();
    for ((fate, request), until) in fates.iter_mut().zip(asked).zip(held_until) {
        pass_until(&mut broker, &mut held, request.at)?;
        let application = named(&known, &request.application)?.application;
        let Some(granted) = granted(&mut broker, application, request, Speed::Spare)? else {
            continue;
        };
        *fate = Fate { ended: *until, ..granted.fate() };
        held.insert((until.unwrap_or_default().max(request.at), granted.handle));
    }
    Ok(fates)
}

/// Time passes until `then`: what is due is done, and who has ended gives back what it had. `held` has who holds
/// something and until when.
fn pass_until(
    broker: &mut Broker,
    held: &mut BTreeSet<(Nanos, Handle)>,
    then: Nanos,
) -> Result<(), Invalid> {
    loop {
        let end = held.first().map(|(end, _)| *end);
        let now = end.into_iter().chain(broker.next()).fold(then, Nanos::min);
        broker.set_time(now);
        broker.pass();
        while held.first().is_some_and(|(end, _)| *end <= now)
            && let Some((_, handle)) = held.pop_first()
        {
            answered(broker.call(Call::Cancel { handle }))?;
        }
        if now >= then {
            return Ok(());
        }
    }
}

/// All start when they are asked for, each on the nodes that have the fewest, and share.
///
/// # Errors
/// If an application or a request makes no sense.
pub fn unreserved(world: &World, asked: &[Asked]) -> Result<Vec<Fate>, Invalid> {
    let known = world.fitted()?;
    let mut sharing = Sharing { world, known: &known, running: BTreeMap::new(), now: 0.0 };
    let mut fates = vec![Fate::default(); asked.len()];
    // Who takes longer to be launched may begin after who came later.
    let mut waiting: Vec<_> = asked.iter().enumerate().collect();
    waiting.sort_by_key(|(_, request)| request.begin());
    let mut waiting = waiting.into_iter().peekable();
    loop {
        let next = waiting.peek().map(|(_, request)| request.begin().as_secs_f64());
        if let Some((number, end)) =
            sharing.next_end().filter(|(_, end)| next.is_none_or(|n| *end <= n))
        {
            sharing.pass(end);
            sharing.running.remove(&number);
            let (request, end) = (&asked[number], seconds_of(end)?);
            let took = end.saturating_sub(request.begin()).as_secs_f64();
            fates[number].unit = Some(seconds_of(took / f64::from(request.units))?);
            fates[number].ended = Some(end);
        } else if let (Some(begin), Some((number, request))) = (next, waiting.next()) {
            sharing.pass(begin);
            sharing.start(number, request)?;
        } else {
            return Ok(fates);
        }
    }
}

/// Programs that share, at a moment.
struct Sharing<'a> {
    world: &'a World,
    known: &'a [Fitted<'a>],
    running: BTreeMap<usize, Running>,
    now: f64,
}

struct Running {
    program: Program,
    units_left: f64,
}

impl Sharing<'_> {
    fn start(&mut self, number: usize, request: &Asked) -> Result<(), Invalid> {
        let known = named(self.known, &request.application)?;
        let goal = &request.goal;
        let curve =
            known.curves.curves().iter().find(|c| goal.admits_curve(c.parameters(), c.nodes()));
        let curve = curve.ok_or_else(|| Invalid::new("goal", goal, "one that was measured"))?;
        let (compute, exchange) = self.world.alone(curve);
        let program = Program { compute, exchange, nodes: self.least_loaded(curve.nodes())? };
        self.running.insert(number, Running { program, units_left: f64::from(request.units) });
        Ok(())
    }

    fn least_loaded(&self, count: u32) -> Result<Vec<NodeIndex>, Invalid> {
        let load = |node: NodeIndex| {
            self.running.values().filter(|running| running.program.nodes.contains(&node)).count()
        };
        let mut nodes: Vec<_> = self.world.topology.node_indices().collect();
        if nodes.len() < count as usize {
            return Err(Invalid::new("nodes", count, format!("at most {}", nodes.len())));
        }
        nodes.sort_by_key(|node| (load(*node), *node));
        nodes.truncate(count as usize);
        Ok(nodes)
    }

    /// Seconds of a unit of each, in their order.
    fn times(&self) -> Vec<f64> {
        let programs: Vec<_> = self.running.values().map(|r| r.program.clone()).collect();
        unit_seconds(&programs, self.world.processors())
    }

    /// Who ends first if nobody comes, and when.
    fn next_end(&self) -> Option<(usize, f64)> {
        let ends = self.running.iter().zip(self.times());
        let ends =
            ends.map(|((number, running), unit)| (*number, self.now + running.units_left * unit));
        ends.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn pass(&mut self, now: f64) {
        let times = self.times();
        for (running, unit) in self.running.values_mut().zip(times) {
            running.units_left = (running.units_left - (now - self.now) / unit).max(0.0);
        }
        self.now = now;
    }
}

impl Curves {
    fn fitted(&self) -> Result<Fitted<'_>, Invalid> {
        let of = |profile: &Profile| FittedProfile::new(self.application.clone(), profile);
        let alone = self.alone.as_ref().map(of).transpose()?;
        Ok(Fitted { application: &self.application, curves: of(&self.profile)?, alone })
    }
}

/// An application with its curves, which are fitted once.
struct Fitted<'a> {
    application: &'a Application,
    curves: FittedProfile,
    alone: Option<FittedProfile>,
}

impl Fitted<'_> {
    /// Of one setting on so many nodes; nothing if that was not measured.
    fn course(&self, parameters: &Parameters, nodes: u32) -> Option<Course> {
        let of = |fitted: &FittedProfile| fitted.curve(parameters, nodes).cloned();
        Some(Course { curve: of(&self.curves)?, alone: self.alone.as_ref().and_then(of) })
    }
}

fn named<'a>(known: &'a [Fitted<'a>], name: &Name) -> Result<&'a Fitted<'a>, Invalid> {
    let found = known.iter().find(|known| known.application.name() == name);
    found.ok_or_else(|| Invalid::new("application", name, "one that was measured"))
}

impl World {
    /// A broker that knows all applications.
    fn broker(&self) -> Result<Broker, Invalid> {
        let mut broker = Broker::new(Cluster::new(self.topology.clone(), self.reservable)?)?;
        for Curves { application, profile, .. } in &self.known {
            let (application, profile) = (Box::new(application.clone()), Box::new(profile.clone()));
            answered(broker.call(Call::Register { application, profile }))?;
        }
        Ok(broker)
    }

    fn fitted(&self) -> Result<Vec<Fitted<'_>>, Invalid> {
        self.known.iter().map(Curves::fitted).collect()
    }

    /// Seconds of a unit that it computes, and exchanges when the links are its own.
    fn alone(&self, curve: &FittedCurve) -> (f64, f64) {
        let rates = self.topology.links().iter().map(|link| link.rate.get());
        let link = rates.min().unwrap_or(u64::MAX) as f64;
        let line = curve.beyond();
        (line.computing.as_secs_f64(), line.volume_bits / link)
    }

    /// Processes that a node has room for, each with what its application has of a CPU.
    fn processors(&self) -> f64 {
        let node = self.topology.nodes().iter().map(|node| node.cpu.get()).min().unwrap_or(0);
        let process = self.known.iter().map(|known| known.application.cpu().get()).max();
        (f64::from(node) / f64::from(process.unwrap_or(1).max(1))).max(1.0)
    }
}

impl Asked {
    /// When its first unit begins, if it is started at once.
    fn begin(&self) -> Nanos {
        self.at.saturating_add(self.beside)
    }
}

fn seconds_of(seconds: f64) -> Result<Nanos, Invalid> {
    let nanos = Nanos::from_secs_f64(seconds);
    nanos.ok_or_else(|| Invalid::new("time", seconds, "a number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;
    use keeptime_model::profile::Conditions;
    use keeptime_model::units::CpuPpm;

    /// Four nodes with 1 Gbit/s and two processors each; `ray` on all of them takes 1 s of computing and
    /// 0.1 s x 1 Gbit/s of exchanging for each unit.
    fn world() -> World {
        let application = Application::from_toml(
            "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"hypercube\"\nnodes = [4]\ncpu = \"20 %\"\n\
             timeout = \"600 s\"\ntime = \"wall\"\n",
        )
        .unwrap();
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(1_000),
            process_cpu_ppm: CpuPpm::from_percent(20),
            processor: "any".into(),
            mpi: "any".into(),
            command: vec!["ray".into()],
        };
        let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
        for mbit in [100u64, 125, 200] {
            let time = Nanos::from_millis(1_000 + 100_000 / mbit);
            profile.record(&Default::default(), 4, BitsPerSecond::from_mbit(mbit), time);
        }
        let node =
            |n: u32| format!("{{ name = \"n{n}\", cpu = \"40 %\", address = \"10.0.0.{n}\" }}");
        let link = |n: u32| format!("{{ between = [\"n{n}\", \"s\"], rate = \"1 Gbit/s\" }}");
        let all = |of: &dyn Fn(u32) -> String| (1..5).map(of).collect::<Vec<_>>().join(", ");
        let topology = Topology::from_toml(&format!(
            "name = \"four\"\nnodes = [{}]\nswitches = [{{ name = \"s\" }}]\nlinks = [{}]\n",
            all(&node),
            all(&link)
        ));
        let known = vec![Curves { application, profile, alone: None }];
        World { topology: topology.unwrap(), reservable: shape::reservable, known }
    }

    fn asked(at: u64, within: u64) -> Asked {
        Asked {
            at: Nanos::from_secs(at),
            application: "ray".parse().unwrap(),
            goal: Goal { within: Some(Nanos::from_millis(within)), ..Goal::default() },
            units: 10,
            beside: Nanos::from_secs(1),
        }
    }

    // Goal: the broker's own decisions, and room again when a run has ended. Two processors a node hold
    // two runs; the third finds none until the first has ended after 1 + 10 x 1.5 x 0.985 s.
    #[test]
    fn what_fits_is_promised_and_kept_and_the_rest_refused() {
        let requests = [asked(0, 2_000), asked(1, 2_000), asked(12, 2_000), asked(16, 2_000)];
        let fates = reserved(&world(), &requests, Speed::Promised).unwrap();
        let promised = |fate: &Fate| fate.promised.map(|time| time.get() / 1_000_000);
        let all: Vec<_> = fates.iter().map(promised).collect();
        assert_eq!(all, [Some(1_500), Some(1_500), None, Some(1_500)], "{fates:?}");
        assert_eq!(fates[0].ended, Some(Nanos::from_millis(15_775)));
        assert_eq!(fates[2], Fate::default());
    }

    // Alone, each flow has all that can be reserved of a link, 900 Mbit/s; of two, each has half of what is left
    // beside 400 for both flows of both.
    #[test]
    fn with_what_is_spare_a_run_is_as_fast_as_the_links_let_it() {
        let seconds = |fate: &Fate| fate.unit.unwrap().as_secs_f64();
        let alone = reserved(&world(), &[asked(0, 2_000)], Speed::Spare).unwrap();
        assert!((seconds(&alone[0]) - (1.0 + 100.0 / 900.0)).abs() < 0.01, "{alone:?}");
        let two = reserved(&world(), &[asked(0, 2_000), asked(0, 2_000)], Speed::Spare).unwrap();
        assert!((seconds(&two[0]) - (1.0 + 100.0 / 225.0)).abs() < 0.01, "{two:?}");
        assert_eq!(two[0].promised, Some(Nanos::from_millis(1_500)));
        let third = [asked(0, 2_000), asked(0, 2_000), asked(15, 2_000)];
        let fates = reserved(&world(), &third, Speed::Spare).unwrap();
        assert!(fates[2].promised.is_none(), "both still run: {fates:?}");
    }

    // Goal: what was measured alone says what company costs and what more bandwidth brings. Method: alone a unit takes
    // 1.2 s with 200 Mbit/s (1.5 in company) and 1.0 with 400 or more; one run by itself, then two together, which have 225.
    #[test]
    fn who_is_alone_is_as_fast_as_was_measured_alone() {
        let mut world = world();
        let Curves { profile, alone, .. } = &mut world.known[0];
        let mut measured = Profile { curves: vec![], ..profile.clone() };
        for (mbit, millis) in [(200, 1_200), (400, 1_000)] {
            let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
            measured.record(&Default::default(), 4, rate, time);
        }
        *alone = Some(measured);
        let seconds = |fate: &Fate| fate.unit.unwrap().as_secs_f64();
        let one = reserved(&world, &[asked(0, 2_000)], Speed::Spare).unwrap();
        assert!((seconds(&one[0]) - 1.0).abs() < 0.01, "{one:?}");
        let two = reserved(&world, &[asked(0, 2_000), asked(0, 2_000)], Speed::Spare).unwrap();
        let between = 1.0 + 0.2 * (1.0 / 225.0 - 1.0 / 400.0) / (1.0 / 200.0 - 1.0 / 400.0);
        assert!((seconds(&two[0]) - 1.5 * between / 1.2).abs() < 0.01, "{two:?}");
        assert_eq!(two[0].promised, one[0].promised, "promises know nothing of it");
    }

    // Goal: what is decided depends on who was there, and on no other decision. Method: two processors a node hold two
    // runs; the third and the fourth request come after 12 and 16 s, when runs had ended or not.
    #[test]
    fn decisions_are_made_beside_the_runs_that_were_there() {
        let requests = [asked(0, 2_000), asked(1, 2_000), asked(12, 2_000), asked(16, 2_000)];
        let until =
            |ends: [u64; 4]| ends.map(|seconds| (seconds > 0).then(|| Nanos::from_secs(seconds)));
        let admitted = |ends: [u64; 4]| {
            let fates = decided(&world(), &requests, &until(ends)).unwrap();
            fates.iter().map(|fate| fate.promised.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(admitted([15, 17, 0, 30]), [true, true, false, true]);
        assert_eq!(admitted([11, 17, 20, 0]), [true, true, true, false]);
        assert_eq!(admitted([12, 17, 0, 30]), [true; 4], "the third was refused there, and leaves");
        assert_eq!(admitted([15, 17, 30, 30]), [true, true, false, true], "the third is missing");

        let fates = decided(&world(), &requests, &until([11, 17, 20, 0])).unwrap();
        let first = Fate { ended: Some(Nanos::from_secs(11)), ..fates[0] };
        assert_eq!((fates[0], fates[3]), (first, Fate::default()));
        assert_eq!(first.promised, Some(Nanos::from_millis(1_500)));
        assert_eq!(decided(&world(), &requests, &[]).unwrap_err().field, "held_until");
    }

    #[test]
    fn who_is_alone_has_all_links_and_three_share_two_processors() {
        let alone = unreserved(&world(), &[asked(0, 2_000)]).unwrap();
        let near = |time: Option<Nanos>, millis| {
            time.is_some_and(|time| time.get().abs_diff(Nanos::from_millis(millis).get()) < 1_000)
        };
        assert!(near(alone[0].unit, 1_100) && near(alone[0].ended, 12_000), "{alone:?}");
        let crowded = unreserved(&world(), &vec![asked(0, 2_000); 6]).unwrap();
        let unit = crowded[0].unit.unwrap();
        assert!(unit > Nanos::from_millis(2_700) && unit < Nanos::from_millis(3_600), "{unit}");
        // One that comes when they are over is alone again.
        let later = [vec![asked(0, 2_000); 3], vec![asked(1_000, 2_000)]].concat();
        assert_eq!(unreserved(&world(), &later).unwrap()[3].unit, alone[0].unit);
    }

    // Goal: programs share from when they begin, in whatever order they were asked for. Method: the same two, once asked
    // for in the order in which they begin, and once the other way round.
    #[test]
    fn who_is_launched_slowly_begins_after_who_came_later() {
        let begins =
            |at: u64, after: u64| Asked { beside: Nanos::from_secs(after), ..asked(at, 2_000) };
        let slow_first = unreserved(&world(), &[begins(0, 6), begins(1, 1)]).unwrap();
        let in_order = unreserved(&world(), &[begins(1, 1), begins(1, 5)]).unwrap();
        let apart = |one: &Fate, other: &Fate| {
            one.ended.unwrap().get().abs_diff(other.ended.unwrap().get())
        };
        assert!(apart(&slow_first[0], &in_order[1]) < 1_000, "{slow_first:?} {in_order:?}");
        assert!(apart(&slow_first[1], &in_order[0]) < 1_000, "{slow_first:?} {in_order:?}");
        assert!(slow_first[1].ended < slow_first[0].ended);
    }

    #[test]
    fn what_is_not_known_is_named() {
        let other = Asked { application: "other".parse().unwrap(), ..asked(0, 2_000) };
        assert_eq!(
            unreserved(&world(), std::slice::from_ref(&other)).unwrap_err().field,
            "application"
        );
        assert!(reserved(&world(), &[other], Speed::Promised).is_err());
    }
}
