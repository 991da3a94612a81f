//! A reservation whose links hold so many bit/s, for tests of what is asked there.

use super::{Desk, Profiled, Situation, Step, Translated};
use crate::wire::{Ask, AskState, Communicator, RankAnswer, RankState, Terms};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::Grant;
use keeptime_model::units::{BitsPerSecond, Bytes, CpuPpm, Nanos};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

pub(super) const MBIT: u64 = 1_000_000;

/// A reservation whose links hold so many bit/s in all.
pub(super) struct World {
    pub(super) desk: Desk,
    pub(super) grant: Grant,
    pub(super) room: u64,
    pub(super) changes: u32,
}

impl World {
    pub(super) fn new(nodes: u32, room_mbit: u64) -> Self {
        let room = room_mbit * MBIT;
        Self { desk: Desk::default(), grant: grant(nodes), room, changes: 0 }
    }

    pub(super) fn addresses(&self) -> Vec<Ipv4Addr> {
        (1..=self.grant.nodes.len() as u8).map(|n| Ipv4Addr::new(10, 0, 0, n)).collect()
    }

    pub(super) fn settle(&mut self) {
        let addresses = self.addresses();
        for _ in 0..100 {
            let situation = situation(&self.grant, &addresses, false);
            let Step::Extend(key, extension) = self.desk.next(&situation) else { return };
            let sum: u64 = extension.flows.iter().map(|f| f.bits_per_second.get()).sum();
            let outcome = if sum <= self.room { Ok(()) } else { Err("no room".to_string()) };
            if outcome.is_ok() && self.grant.extension != extension {
                self.grant.extension = extension;
                self.changes += 1;
            }
            self.desk.tried(key.as_ref(), outcome);
        }
        panic!("it never rests");
    }

    pub(super) fn answers(&self, number: u32) -> BTreeMap<u32, RankAnswer> {
        let addresses = self.addresses();
        let situation = situation(&self.grant, &addresses, false);
        self.desk.answers(&node(number), &situation)
    }

    pub(super) fn state(&self, node: u32, rank: u32) -> AskState {
        self.answers(node)[&rank].answers[0].state
    }
}

/// A program that sends 10 Mbit and does nothing else, as fast as 100 Mbit/s.
#[derive(Debug)]
struct Sender;

impl Profiled for Sender {
    fn translate(&self, promised: Nanos) -> Result<Translated, String> {
        let rate = 10 * MBIT * 1_000_000_000 / promised.get();
        let bits_per_second = BitsPerSecond::new(rate);
        let is_possible = rate <= 100 * MBIT;
        let too_fast = || format!("{promised} cannot be promised");
        is_possible.then_some(Translated { bits_per_second, promised }).ok_or_else(too_fast)
    }
}

pub(super) fn situation<'a>(
    grant: &'a Grant,
    addresses: &'a [Ipv4Addr],
    is_early: bool,
) -> Situation<'a> {
    Situation { grant, addresses, is_early, profile: &Sender }
}

pub(super) fn node(number: u32) -> Name {
    format!("n{number}").parse().unwrap()
}

fn grant(nodes: u32) -> Grant {
    serde_json::from_value(serde_json::json!({
        "nodes": (1..=nodes).map(|n| format!("n{n}")).collect::<Vec<_>>(),
        "cpu_ppm": 100_000, "bits_per_second": 0,
    }))
    .unwrap()
}

fn terms(mbit: u64) -> Terms {
    Terms {
        class: TrafficClass::Premium,
        bits_per_second: BitsPerSecond::from_mbit(mbit),
        message_bytes_max: Bytes::new(1 << 20),
        cpu_ppm: CpuPpm::default(),
        disk_read_bytes_per_second: Default::default(),
        disk_write_bytes_per_second: Default::default(),
        within_nanos: Nanos::default(),
        paced: true,
    }
}

pub(super) fn ask(members: &[u32], index: u32, change: u32, mbit: u64) -> Ask {
    let members = members.to_vec();
    let communicator = Communicator { members, index, talk: Pattern::AllToAll };
    Ask { communicator, change, terms: terms(mbit), seen: None }
}

/// A best-effort communicator with a goal.
pub(super) fn goal(index: u32, change: u32, millis: u64) -> Ask {
    let mut goal = ask(&[0, 1], index, change, 0);
    goal.terms.class = TrafficClass::BestEffort;
    goal.terms.within_nanos = Nanos::from_millis(millis);
    goal
}

pub(super) fn rank(number: u32, size: u32, asks: Vec<Ask>) -> RankState {
    RankState { number, size, asks }
}
