//! Users who ask for goals of measured applications, on a cluster that is not there: the real broker decides and
//! what it promises is kept, or decides beside runs that really were there, or nobody decides and all share.

use crate::broker::{Answered, Broker};
use crate::contention::{Program, unit_seconds};
use keeptime_control::pace;
use keeptime_engine::{Answer, Call, CallError, Cluster, Ticket};
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
use keeptime_random::Random;
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
    /// How long a unit takes, in parts of what was measured: 1 on a machine that is as fast as it was then. Whoever
    /// promises knows nothing of it, and runs that are held at what was promised take that.
    pub slowness: f64,
}

/// An application and what was measured of it.
#[derive(Debug, Clone)]
pub struct Curves {
    /// The application.
    pub application: Application,
    /// In company, as on a busy cluster: what promises are made from.
    pub profile: Profile,
    /// With nobody else there, from the greatest bandwidth of `profile` up: it says how much company costs, and what
    /// more bandwidth brings. Without it company costs nothing, and curves go on as they end.
    pub alone: Option<Profile>,
    /// What of its time a run computes while it is launched and ends: then, too, it takes processors from those who share
    /// them with it.
    pub launching: f64,
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
    /// So long it waits for room where the broker decides; 0 = it is refused at once.
    pub wait: Nanos,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// The time of a unit that was promised, by who promises.
    pub promised: Option<Nanos>,
    /// The time of a unit that half of the runs are expected to take.
    pub expected: Option<Nanos>,
    /// How long it waited for room until it was promised something; 0 if that was at once.
    pub waited: Option<Nanos>,
    /// The time of a unit; nothing if it was refused, ended at its time limit before all were done, or if decisions
    /// alone were asked for.
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

/// The real broker admits, and what it promises is kept. A run begins when it is granted.
///
/// # Errors
/// If the cluster, an application or a request makes no sense.
pub fn reserved(world: &World, asked: &[Asked], speed: Speed) -> Result<Vec<Fate>, Invalid> {
    let known = world.fitted()?;
    let mut desk = Desk::open(world, &known, asked, speed)?;
    let mut fates = vec![Fate::default(); asked.len()];
    let mut running: Vec<Held> = Vec::new();
    let mut coming = asked.iter().enumerate().peekable();
    let mut now = Nanos::new(0);
    loop {
        let next = coming.peek().map(|(_, request)| request.at);
        let end = running.iter().map(|held| held.end(now)).min();
        let is_over = next.is_none() && end.is_none() && desk.waiting.is_empty();
        // What is spare is parted anew a moment after something has changed, and who waits does so for so long.
        let due = end.into_iter().chain(next).chain(desk.broker.next()).min();
        let Some(then) = due.filter(|_| !is_over) else { return Ok(fates) };
        let then = then.max(now);
        running.iter_mut().for_each(|held| held.pass(now, then));
        now = then;
        desk.pass(now);
        while let Some(at) = running.iter().position(|held| held.is_over(now)) {
            let held = running.swap_remove(at);
            desk.give_back(held.handle)?;
            let units = f64::from(asked[held.number].units);
            let took = now.saturating_sub(held.begins).as_secs_f64();
            if held.is_done() {
                fates[held.number].unit = Some(seconds_of(took / units)?);
            }
            fates[held.number].ended = Some(now);
        }
        if let Some((number, _)) = coming.next_if(|(_, request)| request.at <= now) {
            desk.ask(number)?;
        }
        for (number, granted) in desk.granted()? {
            fates[number] = granted.fate(&asked[number], now);
            running.push(desk.start(number, granted, now)?);
        }
        for at in 0..running.len() {
            let is_alone = running[at].minds_company() && is_alone(&running, at);
            let rate = desk.broker.flow_rate(running[at].handle);
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
    /// When its reservation's time is over, and it is ended, done or not.
    until: Nanos,
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
    /// Of the world that it is in.
    slowness: f64,
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
        self.begins.max(now).saturating_add(left.unwrap_or_default()).min(self.until)
    }

    fn is_over(&self, now: Nanos) -> bool {
        self.is_done() || now >= self.until
    }

    /// Instants are whole nanoseconds.
    fn is_done(&self) -> bool {
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
    /// Of a unit when each flow has `rate`.
    fn seconds_at(&self, rate: BitsPerSecond, is_alone: bool) -> f64 {
        self.measured_at(rate, is_alone) * self.slowness
    }

    /// The same on a machine that is as fast as when it was measured. Company costs the same part of it at every rate,
    /// and what more bandwidth brings beyond the curve is the same part in company.
    fn measured_at(&self, rate: BitsPerSecond, is_alone: bool) -> f64 {
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

/// Requests before the real broker, in virtual time.
struct Desk<'a> {
    broker: Broker,
    known: &'a [Fitted<'a>],
    asked: &'a [Asked],
    speed: Speed,
    /// The numbers of those without an answer, by their tickets.
    waiting: BTreeMap<Ticket, usize>,
}

/// A goal that the broker has granted.
struct Granted {
    handle: Handle,
    until: Nanos,
    grant: Grant,
    promise: Promise,
}

impl<'a> Desk<'a> {
    fn open(
        world: &World,
        known: &'a [Fitted<'a>],
        asked: &'a [Asked],
        speed: Speed,
    ) -> Result<Self, Invalid> {
        Ok(Self { broker: world.broker()?, known, asked, speed, waiting: BTreeMap::new() })
    }

    /// It is `now`, and what is due is done.
    fn pass(&mut self, now: Nanos) {
        self.broker.set_time(now);
        self.broker.pass();
    }

    /// Asks for one of the requests: [`Self::granted`] has it, at once or later, unless it is refused.
    fn ask(&mut self, number: usize) -> Result<(), Invalid> {
        let asked = &self.asked[number];
        let application = named(self.known, &asked.application)?.application;
        let ask = Ask::Goal { application: asked.application.clone(), goal: asked.goal.clone() };
        let request = Request {
            duration_nanos: Some(application.timeout()),
            spare: self.speed == Speed::Spare,
            wait_nanos: (asked.wait > Nanos::new(0)).then_some(asked.wait),
            ..Request::new(ask)
        };
        let key = self.broker.new_key();
        let ticket = self.broker.ask(Call::Reserve { key, request });
        self.waiting.insert(ticket, number);
        Ok(())
    }

    /// The requests that were granted since this was called last, in that order.
    fn granted(&mut self) -> Result<Vec<(usize, Granted)>, Invalid> {
        let mut all = Vec::new();
        for (ticket, answer) in self.broker.answers() {
            let Some(number) = self.waiting.remove(&ticket) else { continue };
            if let Some(Answer::Reservation(reservation)) = answered(Some(answer))? {
                let grant = reservation.grant.clone();
                let granted = grant.and_then(|grant| Some((grant.promise.clone()?, grant)));
                let (promise, grant) = granted.ok_or_else(|| not_of(&self.asked[number]))?;
                let until = reservation.until_unix_nanos.map(Broker::since_start);
                let (handle, until) = (reservation.handle, until.unwrap_or(Nanos::new(u64::MAX)));
                all.push((number, Granted { handle, until, grant, promise }));
            }
        }
        Ok(all)
    }

    /// The run of a request that is granted `now`.
    fn start(&self, number: usize, granted: Granted, now: Nanos) -> Result<Held, Invalid> {
        let asked = &self.asked[number];
        let Granted { handle, until, grant, promise } = granted;
        let unit = match self.speed {
            Speed::Promised => Unit::Fixed(promise.time_nanos.as_secs_f64() * (1.0 - pace::MARGIN)),
            Speed::Spare => {
                let nodes = u32::try_from(grant.nodes.len()).unwrap_or(u32::MAX);
                let known = named(self.known, &asked.application)?;
                let course = known.course(&promise.parameters, nodes);
                let course = course.ok_or_else(|| not_of(asked))?;
                let seconds = course.seconds_at(grant.bits_per_second, false);
                Unit::Following { course: Box::new(course), seconds }
            }
        };
        let nodes = self.broker.nodes(handle).unwrap_or_default();
        let begins = now.saturating_add(asked.beside);
        let units_left = f64::from(asked.units);
        Ok(Held { number, handle, nodes, begins, until, units_left, unit })
    }

    /// Whose time is over has nothing any more.
    fn give_back(&mut self, handle: Handle) -> Result<(), Invalid> {
        if !self.broker.is_live(handle) {
            return Ok(());
        }
        answered(self.broker.call(Call::Cancel { handle })).map(drop)
    }
}

impl Granted {
    /// What is known of the fate of a request that is granted `now`.
    fn fate(&self, asked: &Asked, now: Nanos) -> Fate {
        Fate {
            promised: Some(self.promise.time_nanos),
            expected: Some(self.promise.median_nanos),
            waited: Some(now.saturating_sub(asked.at)),
            ..Fate::default()
        }
    }
}

fn not_of(asked: &Asked) -> Invalid {
    Invalid::new("goal", &asked.goal, format!("a goal of {}", asked.application))
}

/// A refusal is an answer, too: nothing.
fn answered(answer: Option<Answered>) -> Result<Option<Answer>, Invalid> {
    match answer {
        Some(Ok(answer)) => Ok(Some(answer)),
        Some(Err(error)) => match *error {
            CallError::Refused { .. } => Ok(None),
            CallError::Invalid(invalid) => Err(invalid),
            error => Err(Invalid::new("call", error, "one that the broker carries out")),
        },
        None => Ok(None),
    }
}

/// The real broker decides about each request on the cluster as it really was: beside the runs that were there then.
/// `held_until` has for each request when what was reserved for it was given back, whenever it was granted; nothing for
/// one that was refused. Each decision is judged by itself: who is admitted here and was refused there leaves at once,
/// and so does who waits here until its run had ended there. Only who is refused here and was admitted there, or still
/// waits, is missing when others ask.
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
    let known = world.fitted()?;
    let desk = Desk::open(world, &known, asked, Speed::Spare)?;
    let fates = vec![Fate::default(); asked.len()];
    let mut replay = Replay { desk, held_until, held: BTreeSet::new(), fates };
    for (number, request) in asked.iter().enumerate() {
        replay.pass_until(request.at)?;
        replay.desk.ask(number)?;
        replay.take_granted(request.at)?;
    }
    while let Some(due) = replay.due().filter(|_| !replay.desk.waiting.is_empty()) {
        replay.pass_until(due)?;
    }
    Ok(replay.fates)
}

/// Requests that are decided beside runs that were there.
struct Replay<'a> {
    desk: Desk<'a>,
    /// Of each request.
    held_until: &'a [Option<Nanos>],
    /// Who holds something, by until when.
    held: BTreeSet<(Nanos, Handle)>,
    fates: Vec<Fate>,
}

impl Replay<'_> {
    /// When something happens next, if nobody asks.
    fn due(&self) -> Option<Nanos> {
        let end = self.held.first().map(|(end, _)| *end);
        end.into_iter().chain(self.desk.broker.next()).min()
    }

    /// Time passes until `then`: what is due is done, and who has ended gives back what it had.
    fn pass_until(&mut self, then: Nanos) -> Result<(), Invalid> {
        loop {
            let now = self.due().map_or(then, |due| due.min(then));
            self.desk.pass(now);
            self.take_granted(now)?;
            while self.held.first().is_some_and(|(end, _)| *end <= now)
                && let Some((_, handle)) = self.held.pop_first()
            {
                self.desk.give_back(handle)?;
                // Whoever waited for that has it now.
                self.take_granted(now)?;
            }
            if now >= then {
                return Ok(());
            }
        }
    }

    /// Who was granted something by `now` holds it until its run there had ended.
    fn take_granted(&mut self, now: Nanos) -> Result<(), Invalid> {
        for (number, granted) in self.desk.granted()? {
            let ended = self.held_until[number];
            self.fates[number] = Fate { ended, ..granted.fate(&self.desk.asked[number], now) };
            self.held.insert((ended.unwrap_or_default().max(now), granted.handle));
        }
        Ok(())
    }
}

/// Where runs start when nobody decides whether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the nodes that have the fewest runs: by somebody who sees all of them whenever one starts.
    Fewest,
    /// By chance, of this seed: on any of the parts of the cluster that have as many nodes as a run, side by side.
    Chance(u64),
}

/// All start when they are asked for, and share.
///
/// # Errors
/// If an application or a request makes no sense.
pub fn unreserved(
    world: &World,
    asked: &[Asked],
    placement: Placement,
) -> Result<Vec<Fate>, Invalid> {
    let known = world.fitted()?;
    let running = BTreeMap::new();
    let mut sharing = Sharing { world, known: &known, placement, running, now: 0.0 };
    let mut fates = vec![Fate::default(); asked.len()];
    let mut coming = asked.iter().enumerate().peekable();
    loop {
        let next = coming.peek().map(|(_, request)| request.at.as_secs_f64());
        let times = sharing.times();
        if let Some((number, end)) =
            sharing.next_end(&times).filter(|(_, end)| next.is_none_or(|n| *end <= n))
        {
            sharing.pass(end, &times);
            if let Some(began) = sharing.go_on(number) {
                let units = f64::from(asked[number].units);
                fates[number].unit = Some(seconds_of((end - began) / units)?);
                fates[number].ended = Some(seconds_of(end)?);
            }
        } else if let (Some(at), Some((number, request))) = (next, coming.next()) {
            sharing.pass(at, &times);
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
    placement: Placement,
    running: BTreeMap<usize, Running>,
    now: f64,
}

struct Running {
    program: Program,
    units_left: f64,
    /// What it does next, while it is launched.
    then: Option<Work>,
    /// When it began what it does now.
    began: f64,
}

/// What a run is launched for.
struct Work {
    compute: f64,
    exchange: f64,
    units: f64,
}

impl Sharing<'_> {
    fn start(&mut self, number: usize, request: &Asked) -> Result<(), Invalid> {
        let known = named(self.known, &request.application)?;
        let goal = &request.goal;
        let curve = self.setting(known, goal);
        let curve = curve.ok_or_else(|| Invalid::new("goal", goal, "one that was measured"))?;
        let (compute, exchange) = self.world.alone(known, curve);
        let then = Some(Work { compute, exchange, units: f64::from(request.units) });
        let (beside, computes) = (request.beside.as_secs_f64(), known.launching);
        let program = Program {
            compute: beside * computes,
            exchange: 0.0,
            wait: beside * (1.0 - computes),
            nodes: self.nodes(number, curve.nodes())?,
        };
        let running = Running { program, units_left: 1.0, then, began: self.now };
        self.running.insert(number, running);
        Ok(())
    }

    /// What its user takes without a broker: the first that the goal admits and that is fast enough where nobody else is, or
    /// else the first.
    fn setting<'k>(&self, known: &'k Fitted<'_>, goal: &Goal) -> Option<&'k FittedCurve> {
        let curves = known.curves.curves().iter();
        let admitted = curves.filter(|curve| goal.admits_curve(curve.parameters(), curve.nodes()));
        let is_fast = |curve: &&FittedCurve| {
            let (compute, exchange) = self.world.alone(known, curve);
            let alone = seconds_of(compute + exchange);
            goal.within.is_none_or(|within| alone.is_ok_and(|alone| alone <= within))
        };
        admitted.clone().find(is_fast).or_else(|| admitted.clone().next())
    }

    /// Who has ended what it did goes on with what it was launched for; when it began that if that was it.
    fn go_on(&mut self, number: usize) -> Option<f64> {
        let mut running = self.running.remove(&number)?;
        let Some(Work { compute, exchange, units }) = running.then.take() else {
            return Some(running.began);
        };
        running.program = Program { compute, exchange, wait: 0.0, ..running.program };
        (running.units_left, running.began) = (units, self.now);
        self.running.insert(number, running);
        None
    }

    fn nodes(&self, number: usize, count: u32) -> Result<Vec<NodeIndex>, Invalid> {
        let load = |node: NodeIndex| {
            self.running.values().filter(|running| running.program.nodes.contains(&node)).count()
        };
        let mut nodes: Vec<_> = self.world.topology.node_indices().collect();
        let count = count as usize;
        if nodes.len() < count {
            return Err(Invalid::new("nodes", count, format!("at most {}", nodes.len())));
        }
        match self.placement {
            Placement::Fewest => nodes.sort_by_key(|node| (load(*node), *node)),
            Placement::Chance(seed) => {
                let part = Random::of(seed, number as u64).index(nodes.len() / count.max(1));
                nodes.drain(..part * count);
            }
        }
        nodes.truncate(count);
        Ok(nodes)
    }

    /// Seconds of a unit of each, in their order.
    fn times(&self) -> Vec<f64> {
        let programs: Vec<_> = self.running.values().map(|r| r.program.clone()).collect();
        unit_seconds(&programs, self.world.processors())
    }

    /// Who ends first if nobody comes, and when, where their units take `times`.
    fn next_end(&self, times: &[f64]) -> Option<(usize, f64)> {
        let ends = self.running.iter().zip(times);
        let ends =
            ends.map(|((number, running), unit)| (*number, self.now + running.units_left * unit));
        ends.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn pass(&mut self, now: f64, times: &[f64]) {
        let passed = now - self.now;
        for (running, unit) in self.running.values_mut().zip(times) {
            let done = if *unit > 0.0 { passed / unit } else { running.units_left };
            running.units_left = (running.units_left - done).max(0.0);
        }
        self.now = now;
    }
}

impl Curves {
    fn fitted(&self, slowness: f64) -> Result<Fitted<'_>, Invalid> {
        let Self { application, profile, launching, .. } = self;
        if !(0.0..=1.0).contains(launching) {
            return Err(Invalid::new("launching", launching, "a part of the time, from 0 to 1"));
        }
        let of = |profile: &Profile| FittedProfile::new(application.clone(), profile);
        let alone = self.alone.as_ref().map(of).transpose()?;
        Ok(Fitted { application, curves: of(profile)?, alone, launching: *launching, slowness })
    }
}

/// An application with its curves, which are fitted once.
struct Fitted<'a> {
    application: &'a Application,
    curves: FittedProfile,
    alone: Option<FittedProfile>,
    launching: f64,
    /// Of the world that it is in.
    slowness: f64,
}

impl Fitted<'_> {
    /// Of one setting on so many nodes; nothing if that was not measured.
    fn course(&self, parameters: &Parameters, nodes: u32) -> Option<Course> {
        let of = |fitted: &FittedProfile| fitted.curve(parameters, nodes).cloned();
        let (curve, alone) = (of(&self.curves)?, self.alone.as_ref().and_then(of));
        Some(Course { curve, alone, slowness: self.slowness })
    }
}

fn named<'a>(known: &'a [Fitted<'a>], name: &Name) -> Result<&'a Fitted<'a>, Invalid> {
    let found = known.iter().find(|known| known.application.name() == name);
    found.ok_or_else(|| Invalid::new("application", name, "one that was measured"))
}

impl World {
    /// A broker that knows all applications.
    fn broker(&self) -> Result<Broker, Invalid> {
        let mut broker = Broker::new(Cluster::new(self.topology.clone(), self.reservable)?);
        for Curves { application, profile, .. } in &self.known {
            let (application, profile) = (Box::new(application.clone()), Box::new(profile.clone()));
            answered(broker.call(Call::Register { application, profile }))?;
        }
        Ok(broker)
    }

    fn fitted(&self) -> Result<Vec<Fitted<'_>>, Invalid> {
        let slowness = self.slowness;
        // Of anything else no run would ever end.
        if !slowness.is_finite() || slowness <= 0.0 {
            return Err(Invalid::new("slowness", slowness, "a number above 0"));
        }
        self.known.iter().map(|known| known.fitted(slowness)).collect()
    }

    /// Seconds of a unit that it computes, and exchanges when the links are its own. Together they are what was measured
    /// alone, where that was: company is added by who shares, and is in a curve that was measured in company already.
    fn alone(&self, known: &Fitted<'_>, curve: &FittedCurve) -> (f64, f64) {
        let rates = self.topology.links().iter().map(|link| link.rate.get());
        let link = rates.min().unwrap_or(u64::MAX);
        let line = curve.beyond();
        let exchange = line.volume_bits / link as f64;
        let alone = known.alone.as_ref().and_then(|p| p.curve(curve.parameters(), curve.nodes()));
        let whole = alone.map(|alone| seconds_at(alone, ends(alone)[1]));
        let compute =
            whole.map_or(line.computing.as_secs_f64(), |whole| (whole - exchange).max(0.0));
        (compute * self.slowness, exchange * self.slowness)
    }

    /// Processes that a node has room for, each with what its application has of a CPU.
    fn processors(&self) -> f64 {
        let node = self.topology.nodes().iter().map(|node| node.cpu.get()).min().unwrap_or(0);
        let process = self.known.iter().map(|known| known.application.cpu().get()).max();
        (f64::from(node) / f64::from(process.unwrap_or(1).max(1))).max(1.0)
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
    use keeptime_model::application::ApplicationFile;
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
            program: None,
        };
        let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
        for mbit in [100u64, 125, 200] {
            let time = Nanos::from_millis(1_000 + 100_000 / mbit);
            profile.record(&Default::default(), 4, BitsPerSecond::from_mbit(mbit), time);
        }
        let known = vec![Curves { application, profile, alone: None, launching: 0.0 }];
        World { topology: star(4), reservable: shape::reservable, known, slowness: 1.0 }
    }

    fn star(count: u32) -> Topology {
        let node =
            |n: u32| format!("{{ name = \"n{n}\", cpu = \"40 %\", address = \"10.0.0.{n}\" }}");
        let link = |n: u32| format!("{{ between = [\"n{n}\", \"s\"], rate = \"1 Gbit/s\" }}");
        let all = |of: &dyn Fn(u32) -> String| (1..=count).map(of).collect::<Vec<_>>().join(", ");
        let topology = Topology::from_toml(&format!(
            "name = \"star\"\nnodes = [{}]\nswitches = [{{ name = \"s\" }}]\nlinks = [{}]\n",
            all(&node),
            all(&link)
        ));
        topology.unwrap()
    }

    fn fewest(world: &World, asked: &[Asked]) -> Result<Vec<Fate>, Invalid> {
        unreserved(world, asked, Placement::Fewest)
    }

    fn asked(at: u64, within: u64) -> Asked {
        Asked {
            at: Nanos::from_secs(at),
            application: "ray".parse().unwrap(),
            goal: Goal { within: Some(Nanos::from_millis(within)), ..Goal::default() },
            units: 10,
            beside: Nanos::from_secs(1),
            wait: Nanos::default(),
        }
    }

    fn patient(at: u64, wait: u64) -> Asked {
        Asked { wait: Nanos::from_secs(wait), ..asked(at, 2_000) }
    }

    /// In milliseconds, of each that was admitted.
    fn waited(fates: &[Fate]) -> Vec<Option<u64>> {
        let millis = |nanos: Nanos| (nanos.as_secs_f64() * 1e3).round() as u64;
        fates.iter().map(|fate| fate.waited.map(millis)).collect()
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

    // Goal: who has no broker takes a setting that is fast enough, if there is one. Method: a unit of `ray` on four nodes takes
    // 1.1 s, and on two, which the profile tells first, 2.1 s.
    #[test]
    fn without_a_broker_users_take_what_would_be_fast_enough() {
        let mut world = world();
        let Curves { application, profile, .. } = &mut world.known[0];
        let file = ApplicationFile::from(application.clone());
        let file = ApplicationFile { nodes: [2, 4].into(), ..file };
        *application = Application::try_from(file).unwrap();
        let mut both =
            Profile::empty(application.name().clone(), profile.conditions.clone(), vec![]);
        for mbit in [100_u64, 125, 200] {
            for (nodes, alone) in [(2, 2_000), (4, 1_000)] {
                let time = Nanos::from_millis(alone + 100_000 / mbit);
                both.record(&Default::default(), nodes, BitsPerSecond::from_mbit(mbit), time);
            }
        }
        *profile = both;
        let unit = |within| {
            let fates = fewest(&world, &[asked(0, within)]).unwrap();
            (fates[0].unit.unwrap().as_secs_f64() * 10.0).round() / 10.0
        };
        assert_eq!([3_000, 2_000, 500].map(unit), [2.1, 1.1, 2.1]);
    }

    // Goal: a run that takes longer than its reservation is ended there, as a real one is, and others have its room.
    // Method: two runs of 1,000 units take about 1,500 s, and their reservations 600; others ask before and after that. Where
    // runs are said to have been there for longer, their reservations end all the same.
    #[test]
    fn a_run_is_ended_at_its_time_limit() {
        let long = Asked { units: 1_000, ..asked(0, 2_000) };
        let later = [599, 601, 701].map(|at| asked(at, 2_000));
        let requests = [vec![long; 2], later.to_vec()].concat();
        for speed in [Speed::Promised, Speed::Spare] {
            let fates = reserved(&world(), &requests, speed).unwrap();
            let limit = Some(Nanos::from_secs(600));
            assert_eq!([fates[0].ended, fates[1].ended], [limit; 2], "{fates:?}");
            assert_eq!([fates[0].unit, fates[1].unit], [None; 2], "{fates:?}");
            assert!(fates[0].promised.is_some() && fates[2].promised.is_none(), "{fates:?}");
            assert!(fates[3].unit.is_some(), "{fates:?}");
        }
        let until = [700, 700, 0, 700, 710].map(|end| (end > 0).then(|| Nanos::from_secs(end)));
        let fates = decided(&world(), &requests, &until).unwrap();
        let promised: Vec<_> = fates.iter().map(|fate| fate.promised.is_some()).collect();
        assert_eq!(promised, [true, true, false, true, true]);
    }

    // Goal: who waits is granted when a run has ended, and begins then; who would have to wait longer than it may is
    // refused, and so is who does not wait. Method: two runs end after 15.775 and 16.775 s; the third request may wait
    // for that, the fourth waits 2 s, which is not enough, the fifth comes when the third has what was free.
    #[test]
    fn who_waits_is_granted_when_there_is_room_and_begins_then() {
        let requests =
            [asked(0, 2_000), asked(1, 2_000), patient(12, 10), patient(13, 2), asked(16, 2_000)];
        let fates = reserved(&world(), &requests, Speed::Promised).unwrap();
        assert_eq!(waited(&fates), [Some(0), Some(0), Some(3_775), None, None], "{fates:?}");
        let third = fates[2];
        assert_eq!(third.promised, fates[0].promised);
        let began = Nanos::from_millis(15_775 + 1_000);
        let took = third.ended.unwrap().saturating_sub(began).get();
        assert!(took.abs_diff(10 * third.unit.unwrap().get()) < 1_000, "{third:?}");
        assert!(took.abs_diff(Nanos::from_millis(14_775).get()) < 1_000, "{third:?}");
        assert_eq!(fates[3..], [Fate::default(); 2]);
    }

    // Goal: when the last request has come, who still waits is granted or refused all the same. Method: the third has
    // room after 3.775 s, or has waited for 3 s in vain.
    #[test]
    fn who_waits_when_nobody_comes_any_more_is_decided() {
        for (wait, expected) in [(4, Some(3_775)), (3, None)] {
            let requests = [asked(0, 2_000), asked(1, 2_000), patient(12, wait)];
            let fates = reserved(&world(), &requests, Speed::Promised).unwrap();
            assert_eq!(waited(&fates), [Some(0), Some(0), expected], "{fates:?}");
        }
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

    // Goal: who waits has room when a run that was there had ended, and holds that until its own run there had, at a
    // time of the clock. Method: as above; the third waits for the end of the first at 15 s, the fourth for that of the
    // second at 17, when nobody asks any more. Where it is 19, the fourth has waited in vain.
    #[test]
    fn who_waits_is_decided_beside_the_runs_that_were_there() {
        let requests = [asked(0, 2_000), asked(1, 2_000), patient(12, 10), patient(16, 2)];
        let until = |seconds| Some(Nanos::from_secs(seconds));
        let decided = |second| {
            decided(&world(), &requests, &[until(15), until(second), until(30), None]).unwrap()
        };
        let fates = decided(17);
        assert_eq!(waited(&fates), [Some(0), Some(0), Some(3_000), Some(1_000)], "{fates:?}");
        assert_eq!((fates[2].ended, fates[3].ended), (until(30), None));
        assert_eq!(waited(&decided(19)), [Some(0), Some(0), Some(3_000), None]);
    }

    // Goal: on a slower machine runs take longer, with a broker and without, and are promised the same.
    #[test]
    fn how_fast_the_machine_is_changes_runs_and_no_promise() {
        let slow = World { slowness: 1.25, ..world() };
        let one = [asked(0, 2_000)];
        let times = |fates: Vec<Fate>| (fates[0].unit.unwrap().as_secs_f64(), fates[0].promised);
        let ((usual, promised), (longer, same)) = (
            times(reserved(&world(), &one, Speed::Spare).unwrap()),
            times(reserved(&slow, &one, Speed::Spare).unwrap()),
        );
        assert!((longer / usual - 1.25).abs() < 0.01, "{usual} {longer}");
        assert_eq!(promised, same);
        let ((usual, _), (longer, _)) =
            (times(fewest(&world(), &one).unwrap()), times(fewest(&slow, &one).unwrap()));
        assert!((longer / usual - 1.25).abs() < 0.01, "{usual} {longer}");
        for slowness in [0.0, f64::NAN] {
            let world = World { slowness, ..world() };
            assert_eq!(fewest(&world, &one).unwrap_err().field, "slowness");
        }
    }

    #[test]
    fn who_is_alone_has_all_links_and_three_share_two_processors() {
        let alone = fewest(&world(), &[asked(0, 2_000)]).unwrap();
        let near = |time: Option<Nanos>, millis| {
            time.is_some_and(|time| time.get().abs_diff(Nanos::from_millis(millis).get()) < 1_000)
        };
        assert!(near(alone[0].unit, 1_100) && near(alone[0].ended, 12_000), "{alone:?}");
        let crowded = fewest(&world(), &vec![asked(0, 2_000); 6]).unwrap();
        let unit = crowded[0].unit.unwrap();
        assert!(unit > Nanos::from_millis(2_700) && unit < Nanos::from_millis(3_600), "{unit}");
        // One that comes when they are over is alone again.
        let later = [vec![asked(0, 2_000); 3], vec![asked(1_000, 2_000)]].concat();
        assert_eq!(fewest(&world(), &later).unwrap()[3].unit, alone[0].unit);
    }

    // Goal: programs share from when they begin, in whatever order they were asked for. Method: the same two, once asked
    // for in the order in which they begin, and once the other way round.
    #[test]
    fn who_is_launched_slowly_begins_after_who_came_later() {
        let begins =
            |at: u64, after: u64| Asked { beside: Nanos::from_secs(after), ..asked(at, 2_000) };
        let slow_first = fewest(&world(), &[begins(0, 6), begins(1, 1)]).unwrap();
        let in_order = fewest(&world(), &[begins(1, 1), begins(1, 5)]).unwrap();
        let apart = |one: &Fate, other: &Fate| {
            one.ended.unwrap().get().abs_diff(other.ended.unwrap().get())
        };
        assert!(apart(&slow_first[0], &in_order[1]) < 1_000, "{slow_first:?} {in_order:?}");
        assert!(apart(&slow_first[1], &in_order[0]) < 1_000, "{slow_first:?} {in_order:?}");
        assert!(slow_first[1].ended < slow_first[0].ended);
    }

    // Goal: who is launched takes processors from those who are there, and is launched later for it; where launching
    // computes nothing, neither. Method: two processors; four runs begin launching together for a second, of which they
    // compute half or nothing, and one that computes all the time is alone.
    #[test]
    fn who_is_launched_needs_processors() {
        let of = |launching, requests: &[Asked]| {
            let mut world = world();
            world.known[0].launching = launching;
            fewest(&world, requests).unwrap()
        };
        let begun = |fate: &Fate| {
            let units = 10.0 * fate.unit.unwrap().as_secs_f64();
            fate.ended.unwrap().as_secs_f64() - units
        };
        let four = vec![asked(0, 2_000); 4];
        let [none, half, all] = [0.0, 0.5, 1.0].map(|part| begun(&of(part, &four)[0]));
        assert!((none - 1.0).abs() < 1e-6 && (all - 2.0).abs() < 1e-6, "{none} {all}");
        // It computes for t and for 0.5 s not: t = 0.5 x (1 + 3 t / (t + 0.5)) / 2.
        let expected = (1.0 + 3f64.sqrt()) / 4.0 + 0.5;
        assert!((half - expected).abs() < 1e-6, "{half} {expected}");
        let alone = of(1.0, &four[..1]);
        assert_eq!(alone, of(0.0, &four[..1]));

        // Two that draw, and two that are launched beside them when they have begun.
        let late = [asked(0, 2_000), asked(0, 2_000), asked(3, 2_000), asked(3, 2_000)];
        let [none, all] = [0.0, 1.0].map(|part| of(part, &late)[0].unit.unwrap());
        assert!(all > none, "{none} {all}");
        let mut world = world();
        for launching in [-0.1, 1.1, f64::NAN] {
            world.known[0].launching = launching;
            assert_eq!(fewest(&world, &four).unwrap_err().field, "launching");
        }
    }

    // Goal: who shares with nobody is as fast as was measured alone, whatever it took in company. Method: 1.1 s with all of a
    // link by the curve in company, and 0.9 s alone, with the most that was measured.
    #[test]
    fn without_a_broker_too_who_is_alone_is_as_fast_as_was_measured_alone() {
        let mut world = world();
        let mut measured = Profile { curves: vec![], ..world.known[0].profile.clone() };
        for (mbit, millis) in [(200, 1_200), (400, 900)] {
            let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
            measured.record(&Default::default(), 4, rate, time);
        }
        world.known[0].alone = Some(measured);
        let one = fewest(&world, &[asked(0, 2_000)]).unwrap();
        let off = one[0].unit.unwrap().get().abs_diff(Nanos::from_millis(900).get());
        assert!(off < 1_000, "{one:?}");
    }

    // Goal: who sees all nodes gives each run a part that is free; by chance some meet though another part is free, and
    // the same seed has the same. Method: two runs at once on eight nodes, each on four: of 200 seeds half.
    #[test]
    fn by_chance_runs_meet_that_need_not() {
        let world = World { topology: star(8), ..world() };
        let both = vec![asked(0, 2_000); 2];
        let slower = |placement| {
            let fates = unreserved(&world, &both, placement).unwrap();
            assert_eq!(fates, unreserved(&world, &both, placement).unwrap());
            fates.iter().all(|fate| fate.unit.unwrap() > Nanos::from_millis(1_101))
        };
        assert!(!slower(Placement::Fewest));
        let met = (0..200).filter(|seed| slower(Placement::Chance(*seed))).count();
        assert!((70..=130).contains(&met), "{met}");
    }

    #[test]
    fn what_is_not_known_is_named() {
        let other = Asked { application: "other".parse().unwrap(), ..asked(0, 2_000) };
        assert_eq!(
            fewest(&world(), std::slice::from_ref(&other)).unwrap_err().field,
            "application"
        );
        assert!(reserved(&world(), &[other], Speed::Promised).is_err());
    }
}
