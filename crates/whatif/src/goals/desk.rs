//! Requests before the real broker, in virtual time.

use super::measured::{Fitted, named};
use super::{Asked, Curves, Fate, Speed, World};
use crate::broker::{Answered, Broker};
use keeptime_engine::{Answer, Call, CallError, Cluster, Ticket};
use keeptime_model::Invalid;
use keeptime_model::reservation::{Ask, Grant, Handle, Promise, Request};
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;

/// The requests, and who of them waits for an answer.
pub(super) struct Desk<'a> {
    pub(super) broker: Broker,
    pub(super) known: &'a [Fitted<'a>],
    pub(super) asked: &'a [Asked],
    pub(super) speed: Speed,
    /// The numbers of those without an answer, by their tickets.
    pub(super) waiting: BTreeMap<Ticket, usize>,
}

/// A goal that the broker has granted.
pub(super) struct Granted {
    pub(super) handle: Handle,
    pub(super) until: Nanos,
    pub(super) grant: Grant,
    pub(super) promise: Promise,
}

impl<'a> Desk<'a> {
    pub(super) fn open(
        world: &World,
        known: &'a [Fitted<'a>],
        asked: &'a [Asked],
        speed: Speed,
    ) -> Result<Self, Invalid> {
        Ok(Self { broker: world.broker()?, known, asked, speed, waiting: BTreeMap::new() })
    }

    /// It is `now`, and what is due is done.
    pub(super) fn pass(&mut self, now: Nanos) {
        self.broker.set_time(now);
        self.broker.pass();
    }

    /// Asks for one of the requests: [`Self::granted`] has it, at once or later, unless it is refused.
    pub(super) fn ask(&mut self, number: usize) -> Result<(), Invalid> {
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
    pub(super) fn granted(&mut self) -> Result<Vec<(usize, Granted)>, Invalid> {
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

    /// Whose time is over has nothing any more.
    pub(super) fn give_back(&mut self, handle: Handle) -> Result<(), Invalid> {
        if !self.broker.is_live(handle) {
            return Ok(());
        }
        answered(self.broker.call(Call::Cancel { handle })).map(drop)
    }
}

impl Granted {
    /// What is known of the fate of a request that is granted `now`.
    pub(super) fn fate(&self, asked: &Asked, now: Nanos) -> Fate {
        Fate {
            promised: Some(self.promise.time_nanos),
            expected: Some(self.promise.median_nanos),
            waited: Some(now.saturating_sub(asked.at)),
            ..Fate::default()
        }
    }
}

pub(super) fn not_of(asked: &Asked) -> Invalid {
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
}
