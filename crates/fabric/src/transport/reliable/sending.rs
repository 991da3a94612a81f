//! The end of the stream that sends.

use super::KEPT_MOST;
use super::head::Heard;
use super::kept::Kept;
use super::round_trips::RoundTrips;
use super::window::Window;
use crate::frame::Malformed;
use crate::payload::Buffer;
use keeptime_model::units::Nanos;
use std::collections::VecDeque;

/// Segments that may have overtaken one that is not lost: as TCP.
const OVERTAKEN_MOST: u64 = 3;
/// Silences in a row after which it is worth while to ask whether the other process is there: at least 70 ms, so that
/// one that waits for its turn is not asked.
const DOUBTED_AFTER: u32 = 3;
/// A network is cut when the other process has answered for so long that it takes what arrives, and nothing was
/// confirmed meanwhile: as long as over TCP a node is waited for that does not confirm.
pub(super) const CUT_AFTER: Nanos = Nanos::from_secs(10);
/// So often at least something was sent again meanwhile, and the other process has answered: each answer comes with a
/// datagram of its own, and one that is lost, or late, says nothing.
pub(super) const CUT_TRIES: u32 = 5;

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
    kept: Kept,
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
    window: Window,
    /// The other end's room ends here.
    room_until: u64,
    round_trips: RoundTrips,
    silent: u32,
    heard_at: Nanos,
    /// What the other process has answered since something was confirmed last.
    doubt: Option<Doubt>,
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

impl Sending {
    /// Nothing written. Segments have at most `segment_most` bytes.
    pub fn new(segment_most: usize, now: Nanos) -> Self {
        let window = Window::new(segment_most as u64);
        Self {
            segment_most,
            kept: Kept::default(),
            base: 0,
            flights: VecDeque::new(),
            order: 0,
            order_heard: 0,
            on_the_way: 0,
            lost: 0,
            lost_from: 0,
            room_until: window.bytes(),
            window,
            round_trips: RoundTrips::default(),
            silent: 0,
            heard_at: now,
            doubt: None,
        }
    }

    /// Segments have at most so many bytes from now on: those as well that are sent again, which are cut anew if they are
    /// longer.
    pub fn set_segment_most(&mut self, bytes: usize) {
        self.segment_most = bytes;
        self.window.set_segment(bytes as u64);
    }

    /// How many bytes can be written.
    pub fn room(&self) -> usize {
        KEPT_MOST.saturating_sub(self.kept.length())
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
        self.kept.length() == 0
    }

    /// Appends to the stream; as much as there is room for, and a little more at most.
    pub fn write(&mut self, bytes: &[u8]) {
        self.kept.write(bytes);
    }

    /// The same of a buffer that is given: if it is long it is not copied, and dropped when all of it is confirmed.
    pub fn give(&mut self, buffer: Buffer) {
        self.kept.give(buffer);
    }

    /// The next segment to be sent, which then is on the way: first what is lost. None if there is
    /// none, or no more may be on the way now.
    pub fn next(&mut self, now: Nanos) -> Option<Segment> {
        if self.lost > 0 && self.on_the_way < self.window.bytes() {
            let from = self.flights.partition_point(|f| f.segment.offset < self.lost_from);
            let is_lost = |flight: &Flight| flight.state == State::Lost;
            let at = from + self.flights.range(from..).position(is_lost)?;
            self.cut_anew(at);
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
        if length == 0 || self.on_the_way + length as u64 > self.window.bytes().max(length as u64) {
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

    /// The bytes of a segment that is on the way, in one part or several.
    pub fn bytes(&self, segment: Segment) -> impl Iterator<Item = &[u8]> {
        let start = (segment.offset - self.base) as usize;
        self.kept.bytes(start..start + segment.length)
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
            self.kept.confirm((heard.received - self.base) as usize);
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
            self.window.widen(arrived, self.segment_most as u64);
            self.find_lost();
        }
        Ok(())
    }

    /// When to look at [`Self::expire`], if nothing is heard until then.
    pub fn deadline(&self) -> Option<Nanos> {
        let wait = Nanos::new(self.round_trips.again_after(self.silent));
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
        self.window.silence(self.silent, self.order, self.segment_most as u64);
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

    /// Flight `at`, which is lost, is no longer than a segment may be by now: what is behind that is one of its own, and lost
    /// as well. If all of it was only late, both have arrived.
    fn cut_anew(&mut self, at: usize) {
        let flight = &mut self.flights[at];
        let Segment { offset, length } = flight.segment;
        if length > self.segment_most {
            flight.segment.length = self.segment_most;
            let (offset, length) = (offset + self.segment_most as u64, length - self.segment_most);
            let rest = Flight { segment: Segment { offset, length }, ..*flight };
            self.flights.insert(at + 1, rest);
            self.lost += 1;
        }
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
                if !again {
                    self.window.make_good();
                }
            }
            State::OnTheWay => {
                self.on_the_way -= length;
                let after = now.saturating_sub(sent_at).get();
                if again && self.round_trips.is_too_soon(after) {
                    self.window.make_good();
                }
            }
        }
        self.order_heard = self.order_heard.max(order);
        // Of one that was sent twice nobody knows which it was.
        if !again {
            self.round_trips.add(now.saturating_sub(sent_at).get());
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
        if let Some(newest) = newest {
            self.window.overtaken(newest, self.order, self.segment_most as u64);
        }
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn end(&self) -> u64 {
        self.base + self.kept.length() as u64
    }

    fn sent_end(&self) -> u64 {
        let last = self.flights.back().map(|flight| flight.segment);
        last.map_or(self.base, |last| last.offset + last.length as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: usize = 100;
    const ROOM: u32 = 5_000;

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
        let window = sending.window.bytes();
        while sending.next(now).is_some() {}
        now = sending.deadline().unwrap();
        sending.expire(now);
        assert_eq!(sending.window.bytes(), SEGMENT as u64);
        assert_eq!(sending.next(now).map(|segment| segment.offset), Some(sent), "sent again");
        hear(&mut sending, 10_000, now);
        assert!(sending.is_settled());
        let after = sending.window.bytes();
        assert!(after >= window, "{after} after {window}");
    }

    /// A single segment went twice, since the other end was late: it hears of the first sooner than it could of the second.
    #[test]
    fn a_word_that_is_too_soon_is_of_what_was_sent_first() {
        let window_after = |late: u64| {
            let (mut sending, mut now) = (Sending::new(SEGMENT, Nanos::new(0)), Nanos::new(0));
            let hear = |sending: &mut Sending, received, now| {
                sending.heard(&Heard { received, room: ROOM, ranges: vec![] }, now).unwrap();
            };
            // A round trip takes a millisecond.
            sending.write(&[0; 2 * SEGMENT]);
            sending.next(now).unwrap();
            now = Nanos::from_millis(1);
            hear(&mut sending, SEGMENT as u64, now);
            sending.next(now).unwrap();
            let window = sending.window.bytes();
            now = sending.deadline().unwrap();
            sending.expire(now);
            sending.next(now).unwrap();
            hear(&mut sending, 2 * SEGMENT as u64, now.saturating_add(Nanos::new(late)));
            sending.window.bytes() >= window
        };
        assert_eq!([400_000, 600_000].map(window_after), [true, false]);
    }

    /// Three segments, of which one has arrived, for a path that carries only less by now.
    fn of_a_path_that_takes_less() -> (Sending, Nanos) {
        let mut sending = Sending::new(SEGMENT, Nanos::new(0));
        sending.write(&[0; 3 * SEGMENT]);
        assert_eq!(std::iter::from_fn(|| sending.next(Nanos::new(0))).count(), 3);
        sending.set_segment_most(30);
        let now = sending.deadline().unwrap();
        sending.expire(now);
        (sending, now)
    }

    /// What would be lost for ever if it went again as it was.
    #[test]
    fn what_goes_again_is_cut_anew_where_the_path_takes_less() {
        let (mut sending, now) = of_a_path_that_takes_less();
        let mut received = 0;
        for length in [30, 30, 30, 10].repeat(3) {
            let segment = sending.next(now).unwrap();
            assert_eq!(segment, Segment { offset: received, length });
            assert_eq!(sending.bytes(segment).map(<[u8]>::len).sum::<usize>(), length);
            received += length as u64;
            sending.heard(&Heard { received, room: ROOM, ranges: vec![] }, now).unwrap();
        }
        assert!(sending.is_settled() && !sending.has_lost());
        assert_eq!((sending.next(now), sending.on_the_way()), (None, 0));
    }

    /// The first segment goes again in part, and then it comes whole, and the third one behind a gap.
    #[test]
    fn what_was_cut_anew_may_arrive_as_it_was() {
        let (mut sending, now) = of_a_path_that_takes_less();
        sending.next(now).unwrap();
        let heard = Heard { received: 100, room: ROOM, ranges: vec![(200, 300)] };
        sending.heard(&heard, now).unwrap();
        let next = sending.next(now);
        assert_eq!(next, Some(Segment { offset: 100, length: 30 }));
        let heard = Heard { received: 300, room: ROOM, ranges: vec![] };
        sending.heard(&heard, now).unwrap();
        assert!(sending.is_settled() && !sending.has_lost());
        assert_eq!(sending.on_the_way(), 0);
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
}
