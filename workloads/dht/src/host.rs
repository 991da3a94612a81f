//! What a server does besides its partitions, as a state machine: it sees to it that there is one
//! super-partition, gets its share of the table, and hands it over when it leaves (pure).

use crate::chart::Chart;
use crate::extent::{Extent, INDEXES};
use crate::message::{Message, Request};
use keeptime_fabric::ResourceId;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long an answer about half a partition is waited for, and how soon to ask again after a refusal.
const ANSWER_TIME: Duration = Duration::from_secs(5);
const REFUSED_TIME: Duration = Duration::from_millis(50);
/// How often others are asked the same again.
const AGAIN_TIME: Duration = Duration::from_millis(500);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Say it, under the server's name.
    Send(ResourceId, Message),
    /// Make a partition of this, and say [`Message::Identified`] to the giver; or
    /// [`Message::Declined`] if it cannot be made.
    Open {
        /// What it has.
        extent: Extent,
        /// How often that was handed over as a whole.
        generation: u32,
        /// Who gave it.
        giver: ResourceId,
    },
    /// Make the super-partition.
    Found {
        /// Nothing was lost, since there was nothing.
        is_new: bool,
    },
    /// Leaving is over.
    Left {
        /// Partitions that nobody takes.
        behind: usize,
    },
}

/// A server.
#[derive(Debug)]
pub struct Host {
    me: ResourceId,
    wanted: usize,
    asked: Option<u64>,
    ask_at: Duration,
    again_at: Duration,
    number: u64,
    /// Who else there was when it last asked who makes the super-partition, and who has not answered.
    rivals: Option<BTreeSet<ResourceId>>,
    waits_for: BTreeSet<ResourceId>,
    round: u64,
    /// It makes the super-partition.
    founds: bool,
    /// There was a table before: what nobody has of it now is lost.
    seen: bool,
    leaving: bool,
}

impl Host {
    /// The server `me`, which wants so many partitions.
    pub fn new(me: ResourceId, wanted: usize) -> Self {
        Self {
            me,
            wanted,
            asked: None,
            ask_at: Duration::ZERO,
            again_at: Duration::ZERO,
            number: 0,
            rivals: None,
            waits_for: BTreeSet::new(),
            round: 0,
            founds: false,
            seen: false,
            leaving: false,
        }
    }

    /// From now on it hands over what it has. Nobody should find it as a server any more, so that nobody
    /// gives it anything or waits for it.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.again_at = Duration::ZERO;
    }

    /// Hears something.
    pub fn hear(&mut self, now: Duration, from: ResourceId, message: Message) -> Vec<Order> {
        match message {
            Message::Given { number, extent, generation } => {
                // An answer that came too late is for nothing.
                let is_asked = number.is_none() || self.asked == number;
                if self.leaving || !is_asked {
                    return vec![Order::Send(from, Message::Declined { extent })];
                }
                self.asked.take_if(|_| number.is_some());
                vec![Order::Open { extent, generation, giver: from }]
            }
            Message::Refused { number } => {
                if self.asked.take_if(|asked| *asked == number).is_some() {
                    self.ask_at = now + REFUSED_TIME;
                }
                Vec::new()
            }
            Message::Claim { round } if from < self.me && !self.founds => {
                vec![Order::Send(from, Message::Yield { round, seen: self.seen })]
            }
            Message::Yield { round, seen } => {
                self.seen |= seen;
                if round == self.round {
                    self.waits_for.remove(&from);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Goes on. `own` are its partitions that have not ended; `random` draws from below its argument.
    pub fn step(
        &mut self,
        now: Duration,
        chart: &Chart,
        own: &[ResourceId],
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Vec<Order> {
        self.seen |= chart.partitions().len() > 0;
        if self.leaving {
            return self.hand_over(now, chart, own, random);
        }
        if chart.root().is_none() {
            return self.found(now, chart);
        }
        self.founds = false;
        self.rivals = None;
        self.ask(now, chart, own.len(), random)
    }

    /// The server with the least identifier makes the super-partition, when all others know that they
    /// do not: each has registered before it looked who else is there, so of two one sees the other.
    fn found(&mut self, now: Duration, chart: &Chart) -> Vec<Order> {
        if self.founds {
            return Vec::new();
        }
        let others = chart.servers().iter().filter(|id| **id != self.me);
        let rivals: BTreeSet<_> = others.copied().collect();
        if self.rivals.as_ref() != Some(&rivals) {
            // Whoever is gone may have made it, and answers from before do not know.
            self.round += 1;
            self.again_at = now;
            self.waits_for.clone_from(&rivals);
            self.rivals = Some(rivals);
        }
        if self.waits_for.is_empty() {
            self.founds = true;
            return vec![Order::Found { is_new: !self.seen }];
        }
        if now < self.again_at {
            return Vec::new();
        }
        self.again_at = now + AGAIN_TIME;
        let claim = |other: &ResourceId| Order::Send(*other, Message::Claim { round: self.round });
        self.waits_for.iter().map(claim).collect()
    }

    fn ask(
        &mut self,
        now: Duration,
        chart: &Chart,
        own: usize,
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Vec<Order> {
        if own >= self.wanted || now < self.ask_at {
            return Vec::new();
        }
        // Whatever became of the question before, its answer is not waited for any more.
        self.asked = None;
        let entry = random(chart.partitions().len() as u64) as usize;
        let Some(entry) = chart.partitions().nth(entry) else { return Vec::new() };
        self.number += 1;
        self.asked = Some(self.number);
        self.ask_at = now + ANSWER_TIME;
        let index = random(INDEXES) as u32;
        let request = Request::Split { index, server: self.me, number: self.number };
        vec![Order::Send(entry.id, Message::Routed { hops: 0, request })]
    }

    /// The answer to what was asked is there, so more can be asked at once.
    pub fn opened(&mut self, now: Duration) {
        if self.asked.is_none() {
            self.ask_at = now;
        }
    }

    fn hand_over(
        &mut self,
        now: Duration,
        chart: &Chart,
        own: &[ResourceId],
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Vec<Order> {
        let others: Vec<_> = chart.servers().iter().collect();
        if own.is_empty() || others.is_empty() {
            return vec![Order::Left { behind: own.len() }];
        }
        if now < self.again_at {
            return Vec::new();
        }
        self.again_at = now + AGAIN_TIME;
        let mut any = || *others[random(others.len() as u64) as usize];
        own.iter().map(|own| Order::Send(*own, Message::Leave { server: any() })).collect()
    }
}
