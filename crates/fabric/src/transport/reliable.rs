//! A stream of bytes over datagrams that may be lost, doubled or overtake each other (pure): what is
//! sent when, what is sent again, and what has arrived.
//!
//! Every datagram carries a segment of the stream, or says what has arrived, or both:
//!
//! ```text
//!  0        8          16     20       22    24
//!  | offset | received | room | ranges | zero | ranges x (start, length) | bytes
//! ```
//! `offset`: where its bytes belong. `received`: everything before it is there. `room`: so many bytes
//! beyond it may be on the way. Ranges, from `received` on, are what has arrived behind a gap.
//! All numbers are little-endian.
//!
//! A segment is sent again when segments that were sent well after it have arrived, or when nothing
//! was heard for a time that follows the round trips. What may be on the way follows what is lost,
//! as TCP's does (RFC 5681, with the factor of RFC 9438; time-outs as in RFC 6298). If something that
//! was taken for lost arrives without having been sent again, the other end was only late, and what
//! was made less by that is made good (in the manner of RFC 4015).
//!
//! A network that carries nothing, or nothing of that length, and a process that is stopped look alike
//! from here. Over TCP a stopped one is waited for: its kernel confirms. So it is here: that nothing is
//! confirmed is the network's end only if the other process says by another way that it takes what
//! arrives ([`Sending::answered`]).

use crate::frame::Malformed;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a datagram before its ranges.
pub const HEAD: usize = 24;
/// Most ranges in one.
pub const RANGES_MOST: usize = 8;
/// Bytes that one end keeps at most: those that it has sent and that are not confirmed, and those that have
/// arrived behind a gap. A tenth of
/// a millisecond at 80 Gbit/s, and little enough to stay in a processor's cache.
pub const KEPT_MOST: usize = 1 << 20;

/// Segments that may have overtaken one that is not lost: as TCP.
const OVERTAKEN_MOST: u64 = 3;
/// What may be on the way at first, in segments: as TCP.
const WINDOW_FIRST: u64 = 10;
/// Least and most time without a word before something is sent again. The least is longer than who
/// receives waits for its turn where programs share processors, most of the time.
const AGAIN_LEAST: u64 = 10_000_000;
const AGAIN_MOST: u64 = 500_000_000;
/// Before anything is known of round trips.
const AGAIN_FIRST: u64 = 50_000_000;
/// Silences in a row after which it is worth while to ask whether the other process is there: at least 70 ms, so that
/// one that waits for its turn is not asked.
const DOUBTED_AFTER: u32 = 3;
/// A network is cut when the other process has answered for so long that it takes what arrives, and nothing was
/// confirmed meanwhile: as long as over TCP a node is waited for that does not confirm.
const CUT_AFTER: Nanos = Nanos::from_secs(10);
/// So often at least something was sent again meanwhile, and the other process has answered: each answer comes with a
/// datagram of its own, and one that is lost, or late, says nothing.
const CUT_TRIES: u32 = 5;

const RANGE: usize = 8;

/// What a datagram says besides its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Where its bytes belong.
    pub offset: u64,
    /// What its sender has received.
    pub heard: Heard,
}

/// What has arrived at one end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// Everything before this.
    pub received: u64,
    /// So many bytes more may be on the way.
    pub room: u32,
    /// What has arrived behind a gap: starts and ends, in order.
    pub ranges: Vec<(u64, u64)>,
}

/// A part of the stream, to be sent in one datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: usize,
}

/// The end that sends.
#[derive(Debug)]
pub struct Sending {
    segment_most: usize,
    /// What was written and is not confirmed.
    kept: VecDeque<u8>,
    /// Where `kept` begins in the stream.
    base: u64,
    /// Segments that are on the way, in the stream's order.
    flights: VecDeque<Flight>,
    /// How many segments were sent before the next.
    order: u64,
    /// The greatest order of those that have arrived.
    order_heard: u64,
    /// Bytes of `flights` that are neither heard of nor taken for lost.
    on_the_way: u64,
    lost: usize,
    /// Before this in the stream nothing is lost.
    lost_from: u64,
    window: u64,
    slow_start_until: u64,
    /// Both as they were before they were last made less.
    before_loss: Option<(u64, u64)>,
    /// The window shrinks once for all that is lost of what was sent before this.
    recovery_until: u64,
    /// The other end's room ends here.
    room_until: u64,
    round_trip: Option<RoundTrip>,
    silent: u32,
    heard_at: Nanos,
    /// What the other process has answered since something was confirmed last.
    doubt: Option<Doubt>,
}

#[derive(Debug, Clone, Copy)]
struct RoundTrip {
    smooth: u64,
    variation: u64,
}

/// The other process is there, and nothing is confirmed.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// When it has answered first, and after how many silences.
    since: Nanos,
    silent: u32,
    /// How often it has answered.
    answers: u32,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    segment: Segment,
    order: u64,
    sent_at: Nanos,
    again: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    OnTheWay,
    Heard,
    Lost,
}

/// The end that receives.
#[derive(Debug, Default)]
pub struct Receiving {
    received: u64,
    /// What has arrived behind a gap, by where it begins; none overlaps another.
    ahead: BTreeMap<u64, Vec<u8>>,
    kept: usize,
}

/// Appends the bytes of a head.
pub fn encode(offset: u64, heard: &Heard, bytes: &mut Vec<u8>) {
    let Heard { received, room, ranges } = heard;
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&received.to_le_bytes());
    bytes.extend_from_slice(&room.to_le_bytes());
    let count = ranges.len().min(RANGES_MOST);
    bytes.extend_from_slice(&(count as u16).to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    for (start, end) in &ranges[..count] {
        let word = |value: u64| (value as u32).to_le_bytes();
        bytes.extend_from_slice(&word(start.wrapping_sub(*received)));
        bytes.extend_from_slice(&word(end.wrapping_sub(*start)));
    }
}

impl Head {
    /// The head of a datagram, and how long it is.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let head: &[u8; HEAD] = bytes.first_chunk().ok_or(Malformed::Unknown("a datagram"))?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let short = |bytes: &[u8], at: usize| {
            u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
        };
        let count = usize::from(u16::from_le_bytes([head[20], head[21]]));
        let length = HEAD + count * RANGE;
        if count > RANGES_MOST || head[22..] != [0; 2] || bytes.len() < length {
            return Err(Malformed::Unknown("a datagram"));
        }
        let received = long(8);
        let ranges = bytes[HEAD..length].chunks_exact(RANGE).map(|range| {
            let start = received.saturating_add(u64::from(short(range, 0)));
            (start, start.saturating_add(u64::from(short(range, 4))))
        });
        let heard = Heard { received, room: short(head, 16), ranges: ranges.collect() };
        Ok((Self { offset: long(0), heard }, length))
    }
}

impl Sending {
    /// Nothing written. Segments have at most `segment_most` bytes.
    pub fn new(segment_most: usize, now: Nanos) -> Self {
        Self {
            segment_most,
            kept: VecDeque::new(),
            base: 0,
            flights: VecDeque::new(),
            order: 0,
            order_heard: 0,
            on_the_way: 0,
            lost: 0,
            lost_from: 0,
            window: WINDOW_FIRST * segment_most as u64,
            slow_start_until: u64::MAX,
            before_loss: None,
            recovery_until: 0,
            room_until: WINDOW_FIRST * segment_most as u64,
            round_trip: None,
            silent: 0,
            heard_at: now,
            doubt: None,
        }
    }

    /// Segments have at most so many bytes from now on.
    pub fn set_segment_most(&mut self, bytes: usize) {
        self.segment_most = bytes;
        self.window = self.window.max(WINDOW_FIRST * bytes as u64);
    }

    /// How many bytes can be written.
    pub fn room(&self) -> usize {
        KEPT_MOST.saturating_sub(self.kept.len())
    }

    /// Bytes that were written and not sent so far.
    pub fn unsent(&self) -> usize {
        (self.end() - self.sent_end()) as usize
    }

    /// Bytes that were sent and are neither heard of nor taken for lost.
    pub fn on_the_way(&self) -> u64 {
        self.on_the_way
    }

    /// Whether something is to be sent again.
    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Whether everything that was written has arrived.
    pub fn is_settled(&self) -> bool {
        self.kept.is_empty()
    }

    /// Appends to the stream; as much as there is room for, and a little more at most.
    pub fn write(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
    }

    /// The next segment to be sent, which then is on the way: first what is lost. None if there is
    /// none, or no more may be on the way now.
    pub fn next(&mut self, now: Nanos) -> Option<Segment> {
        if self.lost > 0 && self.on_the_way < self.window {
            let from = self.flights.partition_point(|f| f.segment.offset < self.lost_from);
            let is_lost = |flight: &Flight| flight.state == State::Lost;
            let at = from + self.flights.range(from..).position(is_lost)?;
            let order = self.next_order();
            let flight = &mut self.flights[at];
            (flight.state, flight.again) = (State::OnTheWay, true);
            (flight.order, flight.sent_at) = (order, now);
            let segment = flight.segment;
            self.lost -= 1;
            self.lost_from = segment.offset + segment.length as u64;
            self.on_the_way += segment.length as u64;
            return Some(segment);
        }
        let offset = self.sent_end();
        let room = self.room_until.saturating_sub(offset);
        let length = self.unsent().min(self.segment_most).min(room as usize);
        if length == 0 || self.on_the_way + length as u64 > self.window.max(length as u64) {
            return None;
        }
        // A short segment in the middle of a stream, because the room is odd, would be one more
        // for ever.
        if length < self.segment_most && length < self.unsent() && self.on_the_way > 0 {
            return None;
        }
        let (segment, order) = (Segment { offset, length }, self.next_order());
        if self.flights.is_empty() {
            self.heard_at = now;
        }
        let state = State::OnTheWay;
        self.flights.push_back(Flight { segment, order, sent_at: now, again: false, state });
        self.on_the_way += length as u64;
        Some(segment)
    }

    /// The bytes of a segment that is on the way, in two parts.
    pub fn bytes(&self, segment: Segment) -> (&[u8], &[u8]) {
        let start = (segment.offset - self.base) as usize;
        let end = start + segment.length;
        let (first, second) = self.kept.as_slices();
        let middle = first.len();
        let of = |part: &'_ [u8], from: usize, to: usize| from.min(part.len())..to.min(part.len());
        (
            &first[of(first, start, end)],
            &second[of(second, start.saturating_sub(middle), end.saturating_sub(middle))],
        )
    }

    /// The other end says what it has. Late words change nothing.
    ///
    /// # Errors
    /// If it has what was never sent.
    pub fn heard(&mut self, heard: &Heard, now: Nanos) -> Result<(), Malformed> {
        let last = heard.ranges.last().map_or(heard.received, |(_, end)| *end);
        if last.max(heard.received) > self.sent_end() {
            return Err(Malformed::Unknown("bytes"));
        }
        self.room_until = self.room_until.max(heard.received + u64::from(heard.room));
        let mut arrived = 0;
        while let Some(flight) = self.flights.front().copied()
            && flight.segment.offset + flight.segment.length as u64 <= heard.received
        {
            arrived += self.settle(0, now);
            self.flights.pop_front();
        }
        if self.flights.front().is_some_and(|flight| flight.segment.offset < heard.received) {
            // Half of a segment cannot have arrived.
            return Err(Malformed::Unknown("bytes"));
        }
        if heard.received > self.base {
            self.kept.drain(..(heard.received - self.base) as usize);
            self.base = heard.received;
        }
        for (start, end) in &heard.ranges {
            let first = self.flights.partition_point(|flight| flight.segment.offset < *start);
            for at in first..self.flights.len() {
                let segment = self.flights[at].segment;
                if segment.offset + segment.length as u64 > *end {
                    break;
                }
                arrived += self.settle(at, now);
            }
        }
        if arrived > 0 {
            (self.silent, self.heard_at, self.doubt) = (0, now, None);
            self.widen(arrived);
            self.find_lost();
        }
        Ok(())
    }

    /// When to look at [`Self::expire`], if nothing is heard until then.
    pub fn deadline(&self) -> Option<Nanos> {
        let wait = Nanos::new(self.again_after());
        (!self.flights.is_empty()).then(|| self.heard_at.saturating_add(wait))
    }

    /// Looks whether nothing was heard for too long: then everything counts as lost. Each time in a
    /// row it waits longer.
    pub fn expire(&mut self, now: Nanos) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.silent += 1;
        self.heard_at = now;
        for flight in &mut self.flights {
            if flight.state == State::OnTheWay {
                flight.state = State::Lost;
                self.lost += 1;
            }
        }
        (self.on_the_way, self.lost_from) = (0, self.base);
        let segment = self.segment_most as u64;
        // Of a row of silences the first one counts.
        if self.silent == 1 {
            self.before_loss = Some((self.window, self.slow_start_until));
            self.slow_start_until = (self.window / 2).max(2 * segment);
        }
        self.window = segment;
        self.recovery_until = self.order;
    }

    /// Whether the other process is to be asked if it takes what arrives.
    pub fn is_doubtful(&self) -> bool {
        self.silent >= DOUBTED_AFTER
    }

    /// The other process was asked, and has answered by another way that it takes what arrives, after a datagram that
    /// says what has. Returns whether the network is cut. Words that confirm nothing new are no sign that it is not:
    /// long datagrams may be lost where short ones pass.
    pub fn answered(&mut self, now: Nanos) -> bool {
        let silent = self.silent;
        // It is late: what it was asked about was confirmed meanwhile.
        if silent == 0 {
            return false;
        }
        let doubt = self.doubt.get_or_insert(Doubt { since: now, silent, answers: 0 });
        doubt.answers += 1;
        let tries = doubt.answers.min(silent - doubt.silent);
        tries >= CUT_TRIES && now.saturating_sub(doubt.since) >= CUT_AFTER
    }

    /// Flight `at` has arrived. Returns how many bytes are new by that.
    fn settle(&mut self, at: usize, now: Nanos) -> u64 {
        let flight = &mut self.flights[at];
        let length = flight.segment.length as u64;
        let before = std::mem::replace(&mut flight.state, State::Heard);
        let Flight { order, again, sent_at, .. } = *flight;
        match before {
            State::Heard => return 0,
            State::Lost => {
                self.lost -= 1;
                if !again && let Some((window, slow_start_until)) = self.before_loss.take() {
                    self.window = self.window.max(window);
                    self.slow_start_until = self.slow_start_until.max(slow_start_until);
                }
            }
            State::OnTheWay => self.on_the_way -= length,
        }
        self.order_heard = self.order_heard.max(order);
        // Of one that was sent twice nobody knows which it was.
        if !again {
            self.measured(now.saturating_sub(sent_at).get());
        }
        length
    }

    fn find_lost(&mut self) {
        let overtaken = |flight: &Flight| flight.order + OVERTAKEN_MOST < self.order_heard;
        let mut newest = None;
        for flight in &mut self.flights {
            if flight.state == State::OnTheWay && overtaken(flight) {
                flight.state = State::Lost;
                self.lost += 1;
                self.lost_from = self.lost_from.min(flight.segment.offset);
                self.on_the_way -= flight.segment.length as u64;
                newest = newest.max(Some(flight.order));
            }
        }
        if newest.is_some_and(|order| order >= self.recovery_until) {
            self.recovery_until = self.order;
            self.before_loss = Some((self.window, self.slow_start_until));
            self.window = (self.window * 7 / 10).max(2 * self.segment_most as u64);
            self.slow_start_until = self.window;
        }
    }

    /// More may be on the way: twice as much each round trip at first, one segment more later.
    fn widen(&mut self, arrived: u64) {
        let more = if self.window < self.slow_start_until {
            arrived
        } else {
            (arrived * self.segment_most as u64 / self.window).max(1)
        };
        self.window = (self.window + more).min(KEPT_MOST as u64);
    }

    fn measured(&mut self, time: u64) {
        self.round_trip = Some(match self.round_trip {
            None => RoundTrip { smooth: time, variation: time / 2 },
            Some(RoundTrip { smooth, variation }) => RoundTrip {
                smooth: (7 * smooth + time) / 8,
                variation: (3 * variation + smooth.abs_diff(time)) / 4,
            },
        });
    }

    fn again_after(&self) -> u64 {
        let measured = |trip: RoundTrip| (trip.smooth + 4 * trip.variation).max(AGAIN_LEAST);
        let once = self.round_trip.map_or(AGAIN_FIRST, measured);
        (once << self.silent.min(16)).min(AGAIN_MOST)
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn end(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    fn sent_end(&self) -> u64 {
        let last = self.flights.back().map(|flight| flight.segment);
        last.map_or(self.base, |last| last.offset + last.length as u64)
    }
}

impl Receiving {
    /// Bytes have arrived that belong at `offset`. What is next in the stream by that goes to `next`,
    /// piece by piece. Returns whether anything of it was new.
    ///
    /// # Errors
    /// What `next` says.
    pub fn arrived<E>(
        &mut self,
        offset: u64,
        bytes: &[u8],
        mut next: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end <= self.received || bytes.is_empty() {
            return Ok(false);
        }
        if offset > self.received {
            return Ok(self.keep(offset, bytes));
        }
        let new = &bytes[(self.received - offset) as usize..];
        self.received = end;
        next(new)?;
        while let Some(entry) = self.ahead.first_entry()
            && *entry.key() <= self.received
        {
            let (start, bytes) = entry.remove_entry();
            self.kept -= bytes.len();
            let known = (self.received - start) as usize;
            if let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) {
                self.received += new.len() as u64;
                next(new)?;
            }
        }
        Ok(true)
    }

    /// Everything before this has arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// So many bytes have arrived that come next, where nothing has arrived behind a gap.
    pub fn went_on(&mut self, bytes: usize) {
        debug_assert!(!self.has_gap(), "they might fill it");
        self.received += bytes as u64;
    }

    /// Whether something has arrived behind what is missing.
    pub fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// What to say to the other end, which may have `room` bytes on the way at most.
    pub fn heard(&self, room: u32) -> Heard {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, bytes) in &self.ahead {
            let end = start + bytes.len() as u64;
            let is_full = ranges.len() == RANGES_MOST;
            match ranges.last_mut() {
                Some(last) if last.1 >= *start => last.1 = last.1.max(end),
                _ if is_full => break,
                _ => ranges.push((*start, end)),
            }
        }
        Heard { received: self.received, room, ranges }
    }

    fn keep(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let known = self.ahead.get(&offset).map_or(0, Vec::len);
        let fits = self.kept + bytes.len() <= KEPT_MOST;
        if known >= bytes.len() || !fits {
            return false;
        }
        self.kept += bytes.len() - known;
        self.ahead.insert(offset, bytes.to_vec());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let mut sending = Sending::new(SEGMENT, Nanos::new(0));
        let mut receiving = Receiving::default();
        let (mut there, mut back): (Wire, Wire) = Default::default();
        let (mut written, mut got, mut sent) = (0_u64, 0_u64, 0);
        let mut tick = 0;
        for _ in 0..1_000_000 {
            let now = Nanos::new(tick * STEP);
            let more = (length - written).min(sending.room() as u64).min(800);
            sending.write(&(written..written + more).map(byte).collect::<Vec<_>>());
            written += more;
            while let Some(segment) = sending.next(now) {
                let mut bytes = Vec::new();
                encode(segment.offset, &Heard::default(), &mut bytes);
                let (first, second) = sending.bytes(segment);
                prop_assert_eq!(first.len() + second.len(), segment.length);
                bytes.extend_from_slice(first);
                bytes.extend_from_slice(second);
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
            prop_assert!(sending.on_the_way <= u64::from(ROOM) + SEGMENT as u64);
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

        /// Any bytes as a datagram: an error or a head.
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((_, length)) = Head::decode(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }

        #[test]
        fn heads_are_read_as_they_were_written(
            offset in any::<u64>(), received in 0..1_u64 << 60, room in any::<u32>(),
            gaps in prop::collection::vec((1..1000_u64, 1..1000_u64), 0..RANGES_MOST),
        ) {
            let mut end = received;
            let ranges = gaps.into_iter().map(|(gap, length)| {
                let start = end + gap;
                end = start + length;
                (start, end)
            });
            let heard = Heard { received, room, ranges: ranges.collect() };
            let head = Head { offset, heard };
            let mut bytes = Vec::new();
            encode(offset, &head.heard, &mut bytes);
            prop_assert_eq!(Head::decode(&bytes), Ok((head, bytes.len())));
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

    /// The other end was late: nothing has changed by that, but for what was sent twice.
    #[test]
    fn who_is_late_is_not_taken_for_a_network_that_loses() {
        let mut sending = Sending::new(SEGMENT, Nanos::new(0));
        let hear = |sending: &mut Sending, received, now| {
            sending.heard(&Heard { received, room: ROOM, ranges: vec![] }, now).unwrap();
        };
        sending.write(&[0; 10_000]);
        let mut sent = 0;
        let mut now = Nanos::new(0);
        while sent < 4_000 {
            sent += std::iter::from_fn(|| sending.next(now)).map(|s| s.length as u64).sum::<u64>();
            now = now.saturating_add(Nanos::new(100_000));
            hear(&mut sending, sent, now);
        }
        let window = sending.window;
        while sending.next(now).is_some() {}
        now = sending.deadline().unwrap();
        sending.expire(now);
        assert_eq!(sending.window, SEGMENT as u64);
        assert_eq!(sending.next(now).map(|segment| segment.offset), Some(sent), "sent again");
        hear(&mut sending, 10_000, now);
        assert!(sending.is_settled());
        assert!(sending.window >= window, "{} after {window}", sending.window);
    }

    #[test]
    fn what_was_never_sent_cannot_have_arrived() {
        let mut sending = Sending::new(SEGMENT, Nanos::new(0));
        sending.write(&[0; 50]);
        let heard = |received, ranges| Heard { received, room: 0, ranges };
        let refused = Err(Malformed::Unknown("bytes"));
        assert_eq!(sending.heard(&heard(1, vec![]), Nanos::new(0)), refused);
        sending.next(Nanos::new(0)).unwrap();
        assert_eq!(sending.heard(&heard(0, vec![(20, 51)]), Nanos::new(0)), refused);
        assert_eq!(sending.heard(&heard(20, vec![]), Nanos::new(0)), refused, "half of it");
        assert_eq!(sending.heard(&heard(50, vec![]), Nanos::new(0)), Ok(()));
        assert!(sending.is_settled());
    }

    /// A process that is stopped is waited for, as over TCP: it is asked, and nothing is given up before it has
    /// had its time to confirm.
    #[test]
    fn where_nobody_answers_little_is_sent_again_and_again() {
        let mut sending = Sending::new(SEGMENT, Nanos::new(0));
        sending.write(&[0; 5_000]);
        let mut now = Nanos::new(0);
        let mut sent = 0;
        while now < Nanos::from_millis(60_000) {
            while sending.next(now).is_some() {
                sent += 1;
            }
            now = sending.deadline().unwrap();
            sending.expire(now);
        }
        assert!((100..200).contains(&sent), "{sent} in a minute, ten of them at first");
        assert!(sending.is_doubtful(), "it is asked");
        assert!(!sending.answered(now), "it has only just gone on");
        // What was there all the while is not forgotten.
        let heard = Heard { received: 1000, room: 9000, ranges: vec![] };
        sending.heard(&heard, now).unwrap();
        assert_eq!(sending.room(), KEPT_MOST - 4000);
        assert!(!sending.is_doubtful(), "it is there");
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
}
