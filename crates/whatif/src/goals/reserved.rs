//! The real broker admits, and what it promises is kept.

use super::desk::{Desk, Granted, not_of};
use super::measured::{Course, named};
use super::{Asked, Fate, World, seconds_of};
use keeptime_control::pace;
use keeptime_model::Invalid;
use keeptime_model::reservation::Handle;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Nanos};

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
            running.push(Held::begun(&desk, number, granted, now)?);
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

impl Held {
    /// The run of a request that is granted `now`.
    fn begun(
        desk: &Desk<'_>,
        number: usize,
        granted: Granted,
        now: Nanos,
    ) -> Result<Self, Invalid> {
        let asked = &desk.asked[number];
        let Granted { handle, until, grant, promise } = granted;
        let unit = match desk.speed {
            Speed::Promised => Unit::Fixed(promise.time_nanos.as_secs_f64() * (1.0 - pace::MARGIN)),
            Speed::Spare => {
                let nodes = u32::try_from(grant.nodes.len()).unwrap_or(u32::MAX);
                let known = named(desk.known, &asked.application)?;
                let course = known.course(&promise.parameters, nodes);
                let course = course.ok_or_else(|| not_of(asked))?;
                let seconds = course.seconds_at(grant.bits_per_second, false);
                Unit::Following { course: Box::new(course), seconds }
            }
        };
        let nodes = desk.broker.nodes(handle).unwrap_or_default();
        let begins = now.saturating_add(asked.beside);
        let units_left = f64::from(asked.units);
        Ok(Self { number, handle, nodes, begins, until, units_left, unit })
    }

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
