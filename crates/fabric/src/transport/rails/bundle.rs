//! Which rail carries which frame, and which frames are still owed (pure).
//!
//! Frames are numbered. What is sent is kept until the other end has said that it has delivered
//! everything before: a rail that is lost takes nothing with it, since what it had not brought goes
//! again by others, and what arrives twice is dropped by its number ([`super::gather`]).
//!
//! A frame goes where it will have arrived first: each rail is known by the time of its probes and by
//! the rate at which it brings what is sent. It waits if that one has enough to do, since what a slow
//! one holds up is more than it brings. What may be on the way on a rail is what it brings in [`AHEAD`]
//! and a round trip, so that one which suddenly becomes slow holds up no more.
//!
//! No rail is given up by a clock alone, since whoever is to answer may be busy. It is stalled when
//! another one has answered a probe that was sent well after one that it still owes: both are
//! answered by the same reader, in the order in which they arrive.
//! One that has no room for a probe is busy or stuck: it is stalled when it has brought nothing since.

use crate::frame::Malformed;
use crate::payload::Buffer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Bytes of frames that one end keeps at most: those that it has sent and that are not delivered,
/// and those that have arrived before their turn. What 8 Gbit/s bring in four milliseconds.
pub const KEPT_MOST: usize = 4 << 20;
/// How long a rail works at what may be on the way at once: a few times what a thread sleeps that is
/// not on time, so that a rail does not run dry.
const AHEAD: Duration = Duration::from_millis(20);
/// Bytes on the way by one rail: at least two of the longest frames.
const WINDOW_LEAST: usize = 160 << 10;
const WINDOW_MOST: usize = KEPT_MOST / 2;
/// Before anything is known: 1 Gbit/s.
const RATE_FIRST: f64 = 125e6;
/// Over so long a rate is measured.
const RATE_OVER: Duration = Duration::from_millis(10);
/// And over so many bytes: words that come may have waited here, and whoever reads them sees late what came long ago.
const MEASURED_LEAST: usize = 64 << 10;
/// What took less, or less than the trip with which it is told, is not measured.
const TOOK_LEAST: Duration = Duration::from_micros(10);
/// How much of a new measurement is taken for true.
const RATE_GAIN: f64 = 0.3;
/// A rail on which less was on the way had not enough to do to show how slow it is: twice what may have arrived and is not
/// said.
const PRESSED_LEAST: usize = 2 * UNSAID_BYTES;
/// By how much an idle rail is thought to have become like the best one from one look to the next:
/// what was found out about it is not true for ever, and is only found out again by using it.
const RATE_FORGOTTEN: f64 = 0.05;
/// By which part of its own rate at most: one that is a hundred times slower is not tried again all the while.
const RATE_FORGOTTEN_MOST: f64 = 0.2;
/// So many times what a try took that showed nothing better are other rails not to be held up by the next.
const TRIED_AGAIN_AFTER: u32 = 20;
/// How often rails are asked, as long as anything is carried.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// A rail is stalled when another has answered what was asked so much later, and four of its own
/// round trips.
const STALLED_AFTER: Duration = Duration::from_millis(300);
/// A rail that was stalled for so long is given up: a new connection is there sooner than an old one
/// that has waited for so long tries again.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// Frames and bytes that arrive by a rail before the other end is told.
const UNSAID_FRAMES: u32 = 8;
const UNSAID_BYTES: usize = 16 << 10;

/// A rail of this end. None is used twice.
pub type RailId = u32;

/// What one end sends, and by what.
#[derive(Debug, Default)]
pub struct Bundle {
    /// What is not known to be delivered, in order: in memory that rails can keep as well without a copy.
    kept: VecDeque<Buffer>,
    kept_bytes: usize,
    /// Bytes of what was written and of what has arrived.
    carried: u64,
    /// The number of the first of them.
    first: u64,
    /// The number of the first that was never sent.
    unsent: u64,
    /// What was sent by rails that are lost or stalled.
    again: BTreeSet<u64>,
    rails: BTreeMap<RailId, Rail>,
    /// Something was sent since rails were last asked.
    is_used: bool,
    asked: Duration,
}

/// What is known of a rail.
#[derive(Debug)]
struct Rail {
    /// What it was given, in order, and how many it has brought.
    on_the_way: VecDeque<Given>,
    bytes_on_the_way: usize,
    brought: u32,
    /// It takes nothing more for now.
    full: bool,
    /// Bytes a second, as learned last, and when.
    rate: Option<f64>,
    learned: Duration,
    /// What the rate may have become since. It chooses the rail, and gives it no more at once.
    hoped: Option<f64>,
    /// Nothing more is hoped before.
    hopes_from: Duration,
    /// It was given something since rails were last looked at.
    is_given: bool,
    /// Since when the other end reads it. What was sent before has waited for that.
    read_since: Option<Duration>,
    /// None: it has not enough to do.
    measured: Option<Measured>,
    probe: Probe,
    stalled_since: Option<Duration>,
    /// Frames that have arrived by it, and what the other end was told of that.
    arrived: u32,
    said: u32,
    unsaid_bytes: usize,
}

/// A frame on its way.
#[derive(Debug, Clone, Copy)]
struct Given {
    number: u64,
    length: usize,
    at: Duration,
    /// Bytes that were on the way then, with its own.
    queue: usize,
}

/// Frames that were brought, of which one word tells.
#[derive(Debug)]
struct Brought {
    frames: u32,
    bytes: usize,
    /// When the first of them was sent.
    first: Duration,
    last: Given,
}

/// What a rail has brought since a moment from which on it always had enough to do.
#[derive(Debug, Clone, Copy)]
struct Measured {
    since: Duration,
    bytes: usize,
}

/// What a rail was asked, and how soon it answers.
#[derive(Debug, Default)]
struct Probe {
    last: u32,
    /// When the question was sent that is not answered.
    open: Option<Duration>,
    /// Bytes that were on the way before it.
    behind: usize,
    /// Since when there was no room for a question, and the rail has brought nothing.
    refused: Option<Duration>,
    /// When the last question was sent that is answered.
    answered: Option<Duration>,
    trip: Option<Duration>,
}

/// What a frame on a rail says of the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// The other end has delivered every frame before this one.
    pub delivered: u64,
    /// So many frames have arrived there by this rail (modulo 2^32).
    pub arrived: u32,
}

impl Bundle {
    /// One more rail.
    pub fn add(&mut self, id: RailId, now: Duration) {
        let rail = Rail {
            on_the_way: VecDeque::new(),
            bytes_on_the_way: 0,
            brought: 0,
            full: false,
            rate: None,
            learned: now,
            hoped: None,
            hopes_from: now,
            is_given: false,
            read_since: None,
            measured: None,
            probe: Probe::default(),
            stalled_since: None,
            arrived: 0,
            said: 0,
            unsaid_bytes: 0,
        };
        self.rails.insert(id, rail);
        // It is asked at once.
        (self.is_used, self.asked) = (true, now.saturating_sub(PROBE_EVERY));
    }

    /// A rail is no more: what it had not brought goes by others.
    pub fn lost(&mut self, id: RailId) {
        if let Some(rail) = self.rails.remove(&id) {
            self.again.extend(rail.on_the_way.iter().map(|given| given.number));
        }
    }

    /// Whether a frame of `length` bytes is taken.
    pub fn has_room(&self, length: usize) -> bool {
        self.kept_bytes + length <= KEPT_MOST
    }

    /// Takes a frame, for which there is room.
    pub fn write(&mut self, frame: Vec<u8>) {
        self.kept_bytes += frame.len();
        self.carried += frame.len() as u64;
        self.kept.push_back(Buffer::from_owner(frame));
    }

    /// The bytes of a frame that is kept. A clone is the same memory.
    pub fn bytes(&self, number: u64) -> &Buffer {
        &self.kept[(number - self.first) as usize]
    }

    /// What is to be sent next, by which rail. It counts as sent.
    pub fn next(&mut self, now: Duration) -> Option<(RailId, u64)> {
        self.again = self.again.split_off(&self.first);
        let again = self.again.first().copied();
        let number = again.or_else(|| (self.unsent < self.end()).then_some(self.unsent))?;
        let length = self.bytes(number).len();
        let id = self.choose(length)?;
        match again {
            Some(_) => drop(self.again.pop_first()),
            None => self.unsent += 1,
        }
        self.is_used = true;
        let rail = self.rails.get_mut(&id)?;
        rail.take_on(number, length, now);
        Some((id, number))
    }

    /// The rail did not take what it was given last: it is full until [`Self::emptied`].
    pub fn refused(&mut self, id: RailId) {
        let Some(rail) = self.rails.get_mut(&id) else { return };
        rail.full = true;
        if let Some(given) = rail.on_the_way.pop_back() {
            rail.bytes_on_the_way -= given.length;
            self.again.insert(given.number);
        }
        // Less may be on the way than was when it was given that.
        rail.measured = rail.measured.filter(|_| rail.is_pressed());
    }

    /// The rail may take something again.
    pub fn emptied(&mut self, id: RailId) {
        if let Some(rail) = self.rails.get_mut(&id) {
            rail.full = false;
        }
    }

    /// A frame of `length` bytes has arrived by a rail. Returns whether the other end is to be told
    /// at once.
    pub fn arrived(&mut self, id: RailId, length: usize) -> bool {
        self.carried += length as u64;
        let Some(rail) = self.rails.get_mut(&id) else { return false };
        rail.arrived = rail.arrived.wrapping_add(1);
        rail.unsaid_bytes += length;
        is_told_at_once(rail.arrived.wrapping_sub(rail.said), rail.unsaid_bytes)
    }

    /// Bytes of frames that were written here, and of those that have arrived.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// Rails whose other ends are to be told what has arrived.
    pub fn owing(&self) -> impl Iterator<Item = RailId> {
        self.rails.iter().filter(|(_, rail)| rail.owes()).map(|(id, _)| *id)
    }

    /// Whether more has arrived by a rail than was said.
    pub fn owes(&self, id: RailId) -> bool {
        self.rails.get(&id).is_some_and(Rail::owes)
    }

    /// How many frames have arrived by a rail, which is to be said there.
    pub fn arrived_by(&self, id: RailId) -> u32 {
        self.rails.get(&id).map_or(0, |rail| rail.arrived)
    }

    /// It was said.
    pub fn said(&mut self, id: RailId) {
        if let Some(rail) = self.rails.get_mut(&id) {
            (rail.said, rail.unsaid_bytes) = (rail.arrived, 0);
        }
    }

    /// The other end has said something by a rail.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn heard(&mut self, id: RailId, word: Word, now: Duration) -> Result<(), Malformed> {
        // Words by different rails overtake each other.
        if word.delivered > self.unsent {
            return Err(Malformed::Unknown("frames of rails"));
        }
        while self.first < word.delivered {
            let frame = self.kept.pop_front().ok_or(Malformed::Unknown("frames of rails"))?;
            self.kept_bytes -= frame.len();
            self.first += 1;
        }
        self.rails.get_mut(&id).map_or(Ok(()), |rail| rail.brought(word.arrived, now))
    }

    /// A probe is answered.
    ///
    /// # Errors
    /// If it was not asked.
    pub fn answered(&mut self, id: RailId, token: u32, now: Duration) -> Result<(), Malformed> {
        let Some(rail) = self.rails.get_mut(&id) else { return Ok(()) };
        let asked = rail.probe.open.take().filter(|_| token == rail.probe.last);
        let asked = asked.ok_or(Malformed::Unknown("a probe"))?;
        (rail.probe.answered, rail.probe.refused) = (Some(asked), None);
        if rail.stalled_since.take().is_some() || rail.read_since.is_none() {
            rail.is_read_from(now);
        }
        rail.learn_trip(now.saturating_sub(asked));
        Ok(())
    }

    /// Time passes: what to ask now, by which rail, as what; and rails to be given up.
    pub fn tick(&mut self, now: Duration) -> (Vec<(RailId, u32)>, Vec<RailId>) {
        self.stall(now);
        let given_up = |rail: &Rail| {
            rail.stalled_since.is_some_and(|since| now.saturating_sub(since) >= LOST_AFTER)
        };
        let dead =
            self.rails.iter().filter(|(_, rail)| given_up(rail)).map(|(id, _)| *id).collect();
        let mut probes = Vec::new();
        let is_used = std::mem::take(&mut self.is_used) || !self.kept.is_empty();
        if now.saturating_sub(self.asked) < PROBE_EVERY || !is_used {
            self.is_used = is_used;
            return (probes, dead);
        }
        self.asked = now;
        let best = self.rails.values().map(Rail::known_rate).fold(0.0, f64::max);
        self.rails.values_mut().for_each(|rail| rail.hope(best, now));
        for (id, rail) in self.rails.iter_mut().filter(|(_, rail)| rail.probe.open.is_none()) {
            rail.probe.last = rail.probe.last.wrapping_add(1);
            (rail.probe.open, rail.probe.behind) = (Some(now), rail.bytes_on_the_way);
            probes.push((*id, rail.probe.last));
        }
        (probes, dead)
    }

    /// A rail had no room for what [`Self::tick`] has asked by it, so that it will be asked again.
    pub fn unasked(&mut self, id: RailId, now: Duration) {
        if let Some(rail) = self.rails.get_mut(&id) {
            rail.probe.open = None;
            rail.probe.refused.get_or_insert(now);
        }
    }

    /// Whether everything that was taken is delivered.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whether more than half of the room is taken.
    pub fn is_full(&self) -> bool {
        self.kept_bytes > KEPT_MOST / 2
    }

    /// Whether something waits for a rail.
    pub fn has_unsent(&self) -> bool {
        self.unsent < self.end() || !self.again.is_empty()
    }

    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// The rail by which so many bytes arrive first, unless it has enough to do.
    fn choose(&self, length: usize) -> Option<RailId> {
        // Nobody waits for one of which it is not known that it leads anywhere.
        let is_known = |rail: &Rail| rail.read_since.is_some() || rail.has_room(length);
        let usable = |rail: &Rail| rail.stalled_since.is_none() && is_known(rail);
        let usable = self.rails.iter().filter(|(_, rail)| usable(rail));
        let first =
            usable.min_by(|(_, one), (_, other)| one.time(length).total_cmp(&other.time(length)));
        first.filter(|(_, rail)| rail.has_room(length)).map(|(id, _)| *id)
    }

    /// Finds out which rails are stalled; what they hold goes by others.
    fn stall(&mut self, now: Duration) {
        let newest = self.rails.values().filter_map(|rail| rail.probe.answered).max();
        for rail in self.rails.values_mut().filter(|rail| rail.stalled_since.is_none()) {
            let patience = STALLED_AFTER + rail.probe.trip.unwrap_or_default() * 4;
            let overtaken = |at: Duration| newest.is_some_and(|newest| newest >= at + patience);
            if rail.probe.open.or(rail.probe.refused).is_some_and(overtaken) {
                rail.stalled_since = Some(now);
                self.again.extend(rail.on_the_way.iter().map(|given| given.number));
            }
        }
    }
}

impl Rail {
    fn known_rate(&self) -> f64 {
        self.rate.unwrap_or(RATE_FIRST)
    }

    fn owes(&self) -> bool {
        self.arrived != self.said
    }

    fn is_pressed(&self) -> bool {
        self.bytes_on_the_way >= PRESSED_LEAST
    }

    fn window(&self) -> usize {
        // As little as may be of one that may turn out to be slow.
        let ahead = AHEAD + self.probe.trip.unwrap_or_default();
        let ahead = self.rate.unwrap_or_default() * ahead.as_secs_f64();
        (ahead as usize).clamp(WINDOW_LEAST, WINDOW_MOST)
    }

    fn has_room(&self, length: usize) -> bool {
        let has_room = self.bytes_on_the_way + length <= self.window();
        !self.full && (self.on_the_way.is_empty() || has_room)
    }

    /// Seconds until `length` bytes more would be there.
    fn time(&self, length: usize) -> f64 {
        let queue = (self.bytes_on_the_way + length) as f64 / self.hoped.unwrap_or(RATE_FIRST);
        self.probe.trip.unwrap_or_default().as_secs_f64() / 2.0 + queue
    }

    fn take_on(&mut self, number: u64, length: usize, now: Duration) {
        self.is_given = true;
        self.bytes_on_the_way += length;
        let queue = self.bytes_on_the_way;
        self.on_the_way.push_back(Given { number, length, at: now, queue });
        self.measure(now);
    }

    /// Begins to count what is brought if there is enough to do, and ends if there is not.
    fn measure(&mut self, now: Duration) {
        if !self.is_pressed() {
            self.measured = None;
        } else if self.read_since.is_some() {
            self.measured.get_or_insert(Measured { since: now, bytes: 0 });
        }
    }

    /// The other end reads it, as it did not before.
    fn is_read_from(&mut self, now: Duration) {
        (self.read_since, self.measured) = (Some(now), None);
        self.measure(now);
    }

    fn brought(&mut self, arrived: u32, now: Duration) -> Result<(), Malformed> {
        let more = arrived.wrapping_sub(self.brought);
        if more as usize > self.on_the_way.len() {
            return Err(Malformed::Unknown("frames of a rail"));
        }
        self.brought = arrived;
        let Some(brought) = self.take_off(more) else { return Ok(()) };
        self.probe.refused = None;
        if self.read_since.is_none() {
            self.is_read_from(now);
            return Ok(());
        }
        if let Some(measured) = &mut self.measured {
            measured.bytes += brought.bytes;
        }
        self.measure(now);
        self.learn(&brought, now);
        Ok(())
    }

    /// What was brought is no longer on the way.
    fn take_off(&mut self, frames: u32) -> Option<Brought> {
        let before = self.bytes_on_the_way;
        let first = self.on_the_way.front()?.at;
        let brought = self.on_the_way.drain(..frames as usize);
        let last = brought.inspect(|given| self.bytes_on_the_way -= given.length).last()?;
        Some(Brought { frames, bytes: before - self.bytes_on_the_way, first, last })
    }

    /// Rails are looked at, of which the best brings so much: one that was given nothing may have become like it.
    fn hope(&mut self, best: f64, now: Duration) {
        let is_given = std::mem::take(&mut self.is_given);
        if is_given || !self.on_the_way.is_empty() || now < self.hopes_from {
            return;
        }
        let more = |rate: f64| (RATE_FORGOTTEN * (best - rate)).min(RATE_FORGOTTEN_MOST * rate);
        self.hoped = self.hoped.map(|rate| rate + more(rate));
    }

    /// A probe was answered after so long. What was on the way before it is counted where it is asked how soon more would
    /// be there.
    fn learn_trip(&mut self, took: Duration) {
        let queue = self.probe.behind as f64 / self.known_rate();
        let trip = took.saturating_sub(Duration::from_secs_f64(queue));
        self.probe.trip = Some(match self.probe.trip {
            // How much of it was the queue, nobody knows so well.
            Some(known) if self.probe.behind > 0 && trip < known => known - (known - trip) / 32,
            // Others make it longer, nothing makes it shorter: long ones are believed by and by.
            Some(known) => trip.min(known + trip.saturating_sub(known) / 8),
            None => trip,
        });
    }

    fn learn(&mut self, brought: &Brought, now: Duration) {
        if now.saturating_sub(self.learned) < RATE_OVER {
            return;
        }
        let known = self.known_rate();
        let bounds = || self.bounds(brought, now);
        let Some([least, most]) = self.while_pressed(now).map(|rate| [rate; 2]).or_else(bounds)
        else {
            return;
        };
        if (least..=most).contains(&known) {
            // It was tried, and has shown nothing better.
            self.hoped = self.rate;
            self.hopes_from = now + now.saturating_sub(brought.first) * TRIED_AGAIN_AFTER;
            return;
        }
        let found = known.clamp(least, most);
        let rate = self.rate.map_or(found, |known| known + RATE_GAIN * (found - known));
        (self.rate, self.hoped) = (Some(rate), Some(rate));
        (self.learned, self.measured) = (now, None);
        self.measure(now);
    }

    /// What it brought a second while it always had enough to do.
    fn while_pressed(&self, now: Duration) -> Option<f64> {
        let measured = self.measured?;
        let time = now.saturating_sub(measured.since);
        let is_much = time >= RATE_OVER && measured.bytes >= MEASURED_LEAST;
        is_much.then(|| measured.bytes as f64 / time.as_secs_f64())
    }

    /// What it brings a second at least and at most: what was brought was all sent after the first of it, and what was on the
    /// way with the last came when that was sent, but for what had arrived and was not said. None if it took little longer
    /// than nothing.
    fn bounds(&self, brought: &Brought, now: Duration) -> Option<[f64; 2]> {
        let trip = self.probe.trip.unwrap_or_default();
        let took = |since: Duration| {
            let took = now.saturating_sub(since + trip);
            (since >= self.read_since? && took >= trip.max(TOOK_LEAST)).then_some(took)
        };
        let rate = |bytes: usize, time: Duration| bytes as f64 / time.as_secs_f64();
        let Given { queue, at, .. } = brought.last;
        let of_these = took(brought.first).map(|time| rate(brought.bytes, time));
        // Words were on the way then as well.
        let of_all = took(at).map(|time| rate(queue.saturating_sub(UNSAID_BYTES), time + trip));
        let least = of_these.into_iter().chain(of_all).reduce(f64::max)?;
        // Of little, and of what was told later, the time is mostly another's.
        let is_sure = is_told_at_once(brought.frames, brought.bytes) && queue >= PRESSED_LEAST;
        let most = took(at).filter(|_| is_sure).map_or(f64::INFINITY, |time| rate(queue, time));
        Some([least.min(most), most])
    }
}

/// Whether one end tells the other at once that so much has arrived: the other knows by that how late a word may be.
fn is_told_at_once(frames: u32, bytes: usize) -> bool {
    frames >= UNSAID_FRAMES || bytes >= UNSAID_BYTES
}

#[cfg(test)]
mod tests;
