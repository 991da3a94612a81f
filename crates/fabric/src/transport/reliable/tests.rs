//! Both ends, with a network between them.

use super::sending::{CUT_AFTER, CUT_TRIES};
use super::{Head, Heard, Receiving, Sending, encode};
use crate::frame::Malformed;
use keeptime_model::units::Nanos;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SEGMENT: usize = 100;
const ROOM: u32 = 5_000;
const STEP: u64 = 100_000;
/// How often it is looked whether the other process is to be asked.
const LOOK_EVERY: Nanos = Nanos::from_secs(2);

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// What becomes of a datagram on its way.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    Late(u8),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        8 => Just(Fate::Arrives),
        2 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => (1..20_u8).prop_map(Fate::Late),
    ];
    prop::collection::vec(fate, 1..400)
}

/// One way of a network: how many datagrams were sent on it, and those on their way by when they arrive.
#[derive(Default)]
struct Wire {
    sent: u64,
    datagrams: BTreeMap<(u64, u64), Vec<u8>>,
}

impl Wire {
    fn post(&mut self, fates: &[Fate], tick: u64, bytes: Vec<u8>) {
        self.sent += 1;
        let mut arrives = |after: u64| {
            self.datagrams.insert((tick + after, self.sent), bytes.clone());
        };
        match fates[self.sent as usize % fates.len()] {
            // Which loses all of one way for ever is not a network.
            Fate::Lost if !self.sent.is_multiple_of(7) => {}
            Fate::Twice => {
                arrives(1);
                arrives(3);
            }
            Fate::Late(by) => arrives(1 + u64::from(by)),
            _ => arrives(1),
        }
    }

    fn next(&mut self, tick: u64) -> Option<Vec<u8>> {
        let entry = self.datagrams.first_entry().filter(|entry| entry.key().0 <= tick)?;
        Some(entry.remove())
    }
}

/// Sends `length` bytes while datagrams have these fates, again and again; returns how many
/// datagrams with bytes that took. Time goes in steps of 100 us, which is the way of each.
fn transfer(length: u64, fates: &[Fate]) -> Result<usize, TestCaseError> {
    transfer_over(length, fates, BTreeMap::new())
}

/// The same over a path that takes segments of no more bytes than `paths` say, each from a step on.
fn transfer_over(
    length: u64,
    fates: &[Fate],
    mut paths: BTreeMap<u64, usize>,
) -> Result<usize, TestCaseError> {
    let mut path = SEGMENT;
    let mut sending = Sending::new(SEGMENT, Nanos::new(0));
    let mut receiving = Receiving::default();
    let (mut there, mut back): (Wire, Wire) = Default::default();
    let (mut written, mut got, mut sent) = (0_u64, 0_u64, 0);
    let mut tick = 0;
    for _ in 0..1_000_000 {
        let now = Nanos::new(tick * STEP);
        while let Some(entry) = paths.first_entry().filter(|entry| *entry.key() <= tick) {
            path = entry.remove();
            sending.set_segment_most(path);
        }
        let more = (length - written).min(sending.room() as u64).min(800);
        sending.write(&(written..written + more).map(byte).collect::<Vec<_>>());
        written += more;
        while let Some(segment) = sending.next(now) {
            prop_assert!(segment.length <= path);
            let mut bytes = Vec::new();
            encode(segment.offset, &Heard::default(), &mut bytes);
            let before = bytes.len();
            sending.bytes(segment).for_each(|part| bytes.extend_from_slice(part));
            prop_assert_eq!(bytes.len() - before, segment.length);
            there.post(fates, tick, bytes);
            sent += 1;
        }
        let mut any = false;
        while let Some(bytes) = there.next(tick) {
            let (head, start) = Head::decode(&bytes).unwrap();
            receiving.arrived(head.offset, &bytes[start..], |new| {
                for found in new {
                    prop_assert_eq!(*found, byte(got));
                    got += 1;
                }
                Ok(())
            })?;
            any = true;
        }
        if any {
            let mut bytes = Vec::new();
            encode(0, &receiving.heard(ROOM), &mut bytes);
            back.post(fates, tick, bytes);
        }
        while let Some(bytes) = back.next(tick) {
            sending.heard(&Head::decode(&bytes).unwrap().0.heard, now).unwrap();
        }
        sending.expire(now);
        prop_assert!(sending.on_the_way() <= u64::from(ROOM) + SEGMENT as u64);
        if got == length && sending.is_settled() {
            return Ok(sent);
        }
        // Where all is lost nothing happens until then.
        let is_idle = there.datagrams.is_empty() && back.datagrams.is_empty();
        let silent_until = sending.deadline().filter(|_| is_idle);
        tick = silent_until.map_or(0, |at| at.get() / STEP).max(tick + 1);
    }
    prop_assert!(false, "{got} of {length} bytes have arrived");
    Ok(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is lost, doubled or late: every byte once, in order, and the sender knows.
    #[test]
    fn everything_arrives_once_and_in_order(length in 0..40_000_u64, fates in fates()) {
        transfer(length, &fates)?;
    }

    /// Also where the path takes less, or more again, while segments are on it.
    #[test]
    fn everything_arrives_over_a_path_that_changes(
        length in 0..40_000_u64, fates in fates(),
        paths in prop::collection::btree_map(0..200_u64, 20..=SEGMENT, 1..6),
    ) {
        transfer_over(length, &fates, paths)?;
    }
}

#[test]
fn one_of_seven_that_arrives_each_way_is_enough() {
    transfer(23_701, &[Fate::Lost]).unwrap();
}

#[test]
fn nothing_is_sent_twice_where_nothing_is_lost() {
    assert_eq!(transfer(100_000, &[Fate::Arrives]).unwrap(), 1000);
}

#[test]
fn a_tenth_lost_costs_little_more_than_a_tenth() {
    let mut fates = [Fate::Arrives; 10];
    fates[4] = Fate::Lost;
    let sent = transfer(100_000, &fates).unwrap();
    assert!(sent < 1300, "{sent} datagrams for 1000 segments");
}

/// Always has something to send for `time`, to a process that answers whenever it is asked. Of so many datagrams
/// one gets `there`, and of so many `back`; none where that is 0. Returns when the network was told to be cut.
fn cut_at(there: u64, back: u64, time: Nanos) -> Option<Nanos> {
    let mut sending = Sending::new(SEGMENT, Nanos::new(0));
    let mut receiving = Receiving::default();
    let (mut sent, mut said) = (0_u64, 0_u64);
    let mut say = |receiving: &Receiving, sending: &mut Sending, now: Nanos| {
        said += 1;
        if said.is_multiple_of(back) {
            sending.heard(&receiving.heard(ROOM), now).unwrap();
        }
    };
    let (mut now, mut look_at) = (Nanos::new(0), LOOK_EVERY);
    while now < time {
        if sending.is_settled() {
            sending.write(&[0; 1_300]);
        }
        while let Some(segment) = sending.next(now) {
            sent += 1;
            if sent.is_multiple_of(there) {
                let bytes = vec![0; segment.length];
                let take = |_: &[u8]| Ok::<_, Malformed>(());
                receiving.arrived(segment.offset, &bytes, take).unwrap();
                say(&receiving, &mut sending, now);
            }
        }
        if now >= look_at {
            look_at = now.saturating_add(LOOK_EVERY);
            if sending.is_doubtful() {
                say(&receiving, &mut sending, now);
                if sending.answered(now) {
                    return Some(now);
                }
            }
        }
        now = now.saturating_add(Nanos::from_millis(10));
        sending.expire(now);
    }
    None
}

/// Whether it lets nothing through in both directions, or in one of them.
#[test]
fn a_network_that_carries_nothing_is_told_to_be_cut() {
    for (there, back) in [(0, 0), (0, 1), (1, 0)] {
        let at = cut_at(there, back, Nanos::from_secs(60));
        let bound = CUT_AFTER..=Nanos::from_secs(15);
        assert!(at.is_some_and(|at| bound.contains(&at)), "{there}, {back}: {at:?}");
    }
}

#[test]
fn a_network_that_loses_nine_of_ten_is_not_told_to_be_cut() {
    for (there, back) in [(10, 1), (1, 10)] {
        assert_eq!(cut_at(there, back, Nanos::from_secs(1_000)), None, "{there}, {back}");
    }
}

/// Answers that come while nothing is on its way count for nothing, then and later.
#[test]
fn an_idle_connection_is_never_told_to_be_cut() {
    let mut sending = Sending::new(SEGMENT, Nanos::new(0));
    let mut now = Nanos::new(0);
    while now < Nanos::from_secs(3_600) {
        sending.expire(now);
        assert!(!sending.is_doubtful() && !sending.answered(now));
        now = now.saturating_add(LOOK_EVERY);
    }
    sending.write(&[0; 50]);
    for _ in 0..2 * CUT_TRIES {
        while sending.next(now).is_some() {}
        now = sending.deadline().unwrap();
        sending.expire(now);
    }
    assert!(!sending.answered(now), "nothing was confirmed for some seconds");
}
