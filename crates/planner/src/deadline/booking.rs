//! What a job that is to be done by a time asks a broker for, until that grants something: first what fits beside all that
//! is reserved ([`beside`]), later where the broker knows better, and in the end to go as slowly as its deadline allows,
//! for which others that have time may have to go slower too. Pure: who asks, asks what [`Booking::next`] says and tells
//! [`Booking::refused`] what came of it.
//!
//! A job whose deadline is refused may be run all the same ([`Booking::in_turn`]): it asks for room to begin in at once, by a
//! time so far away that the job goes as slowly as others need, and, when it has waited for long, to be done by a later time.
//! Where that is refused too, it asks for all three again in a while
//! ([`Booking::asks_again_after`]), the more often the more urgent it is.

use super::beside::{Cluster, Plan, Refusal, Reserved, Stretch, beside};
use super::job::Job;
use keeptime_model::Invalid;
use keeptime_model::reservation::{self, Malleable, Request, Resources};
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use std::collections::VecDeque;

/// A job that asks.
#[derive(Debug, Clone)]
pub struct Booking {
    job: Job,
    /// Before any other start was tried.
    earliest: WallTime,
    /// It begins now or not at all.
    only_at_once: bool,
    /// How often another start is tried.
    attempts_left: u32,
    slowest: Option<Slowest>,
}

/// What a job is promised that is granted what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// That it is done by its deadline.
    Deadline,
    /// That it begins at once.
    Start,
    /// That it is done by a later time ([`Booking::by`]).
    Later,
}

/// The last resort.
#[derive(Debug, Clone)]
struct Slowest {
    /// Nothing fits beside what is reserved.
    refusal: Refusal,
    /// On so many nodes, whichever, at that rate; what takes the least CPU first.
    left: VecDeque<(u32, Stretch)>,
}

/// What is to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// These nodes, from then on at that rate. It fits beside what is reserved, as far as CPU goes.
    Beside(Plan),
    /// So many nodes, whichever, as slowly as can be. It fits only if others go slower, which only the broker knows.
    Slowest(u32, Stretch),
    /// Nothing is left: the nodes' CPU does not suffice.
    Nothing(Refusal),
}

impl Booking {
    /// Of a job that is to be done by its deadline.
    pub fn new(job: Job) -> Self {
        let earliest = job.from;
        Self { job, earliest, only_at_once: false, attempts_left: ATTEMPTS, slowest: None }
    }

    /// What a job that is to be run in any case asks for at `now`, one after the other until something is granted. It asked
    /// first at `asked`.
    pub fn in_turn(
        job: &Job,
        asked: WallTime,
        now: WallTime,
    ) -> impl Iterator<Item = (Promise, Self)> {
        let later = Self::later(job.clone(), asked, now).map(|later| (Promise::Later, later));
        let first = (Promise::Deadline, Self::new(job.clone()));
        [first, (Promise::Start, Self::at_once(job.clone(), now))].into_iter().chain(later)
    }

    /// Of the same job, whatever its deadline: begun at `now`, and done by when it is at the least rate.
    fn at_once(job: Job, now: WallTime) -> Self {
        let by = now.saturating_add(longest(&job));
        Self { only_at_once: true, ..Self::new(Job { by, ..job }) }
    }

    /// Of the same job, done within a part of the time that it has waited. Nothing if that is no later than its deadline, or
    /// hardly longer than the job takes: what it would be promised sooner would keep others from their deadlines.
    fn later(job: Job, asked: WallTime, now: WallTime) -> Option<Self> {
        let within = now.saturating_since(asked).get() / LATER_WITHIN;
        let by = now.saturating_add(Nanos::new(within));
        let is_long_enough = within >= (job.work.get() / 2).saturating_mul(3);
        (by > job.by && is_long_enough).then(|| Self::new(Job { by, ..job }))
    }

    /// By when it is done, however slow it is made.
    pub fn by(&self) -> WallTime {
        self.job.by
    }

    /// Until when [`Self::next`] looks for room: as long after its deadline as the job takes at the least rate.
    pub fn horizon(&self, now: WallTime) -> WallTime {
        self.job.by.max(now).saturating_add(longest(&self.job))
    }

    /// How long a job that asked first at `asked` waits before it asks again for what was refused at `now`: a part of the time
    /// that it has left, so that those come first that have the least; where it is too late, of the time that it takes or, if
    /// that is longer, that it has waited.
    pub fn asks_again_after(job: &Job, asked: WallTime, now: WallTime) -> Nanos {
        let left = job.by.saturating_since(now.saturating_add(job.work));
        if left > Nanos::new(0) {
            return Nanos::new(left.get() / ASKS_WITHIN).clamp(ASKS_LEAST, ASKS_MOST);
        }
        let waited = now.saturating_since(asked);
        let part = (job.work.get() / LATE_ASKS_WITHIN).max(waited.get() / ASKS_WITHIN);
        Nanos::new(part).clamp(ASKS_LEAST, LATE_ASKS_MOST)
    }

    /// What to ask for at `now`, of a cluster of which so much is reserved. Costs what [`beside`] costs.
    ///
    /// # Errors
    /// If the job makes no sense.
    pub fn next(
        &mut self,
        now: WallTime,
        cluster: &Cluster,
        reserved: &[Reserved],
    ) -> Result<Ask, Invalid> {
        let slowest = match &mut self.slowest {
            Some(slowest) => slowest,
            None => match beside(now, cluster, reserved, &self.job)? {
                Ok(plan) if self.only_at_once && plan.at.from > now => {
                    return Ok(Ask::Nothing(Refusal::NotAtOnce { ends: plan.at.to }));
                }
                Ok(plan) => return Ok(Ask::Beside(plan)),
                Err(refusal) => {
                    let left = self.as_slow_as_can_be(now, cluster.rate_least);
                    self.slowest.insert(Slowest { refusal, left })
                }
            },
        };
        Ok(match slowest.left.pop_front() {
            Some((nodes, at)) => Ask::Slowest(nodes, at),
            None => Ask::Nothing(slowest.refusal),
        })
    }

    /// What the broker is asked for, where the job is to be so fast with `resources`, whatever these say of CPU: it may go slower
    /// and faster as others come and go, and begin sooner or later. On several nodes it has its CPU at the same time.
    pub fn request(&self, resources: Resources, at: &Stretch) -> Request {
        let cpu_ppm = self.job.cpu_at(at.rate);
        let cpu_period_nanos = (resources.nodes.count() > 1).then(|| period(cpu_ppm));
        let resources = Resources { cpu_ppm, cpu_period_nanos, ..resources };
        let malleable = Malleable {
            earliest_unix_nanos: Some(self.earliest),
            ..Malleable::new(self.job.by, self.job.cpu_ppm)
        };
        Request {
            from_unix_nanos: Some(at.from),
            duration_nanos: Some(at.to.saturating_since(at.from)),
            malleable: Some(malleable),
            ..Request::new(reservation::Ask::Resources(resources))
        }
    }

    /// The broker has refused what was asked for last, which would have begun at `from`, and offers that start, if any.
    /// Whether there is something else to ask for.
    pub fn refused(&mut self, from: WallTime, earliest: Option<WallTime>) -> bool {
        if self.slowest.is_some() {
            return true;
        }
        let tries = self.attempts_left > 0 && !self.only_at_once;
        let later = earliest.filter(|start| *start > from && tries);
        if let Some(start) = later {
            (self.job.from, self.attempts_left) = (start, self.attempts_left - 1);
        }
        later.is_some()
    }

    /// From `now` on as slowly as the deadline allows, and no slower than at rate `least`, on each number of nodes on which
    /// that is possible.
    fn as_slow_as_can_be(&self, now: WallTime, least: Share) -> VecDeque<(u32, Stretch)> {
        let to = WallTime::from_unix_nanos(self.job.by.unix_nanos().saturating_sub(AWAY.get()));
        let on = |nodes: &u32| {
            let rate = self.job.least_rate(*nodes, to.saturating_since(now))?;
            if rate >= least {
                return Some((*nodes, Stretch { from: now, to, rate }));
            }
            let takes = self.job.takes(*nodes, least.ppm())?;
            Some((*nodes, Stretch { from: now, to: now.saturating_add(takes), rate: least }))
        };
        let mut all: Vec<_> = self.job.speed_ppm.keys().filter_map(on).collect();
        all.sort_by_key(|(nodes, at)| u64::from(*nodes) * u64::from(at.rate.ppm()));
        all.into()
    }
}

/// What a job takes at the least rate.
fn longest(job: &Job) -> Nanos {
    Nanos::new(job.work.get().saturating_mul(SLOWEST_TIMES))
}

/// The shortest period in which a slice is long beside what the slices of several nodes are apart. It stays when the
/// share changes.
fn period(cpu: CpuPpm) -> Nanos {
    let [.., longest] = PERIODS;
    let is_enough = |period: &Nanos| cpu.time_in_floor(*period) >= SLICE_LEAST;
    PERIODS.into_iter().find(is_enough).unwrap_or(longest)
}

/// Agents have these begin together on all nodes, and the kernel keeps them (`control::schedule`). Each is twice the
/// one before, so that those of jobs that share a node fit together.
const PERIODS: [Nanos; 5] = [
    Nanos::from_millis(20),
    Nanos::from_millis(40),
    Nanos::from_millis(80),
    Nanos::from_millis(160),
    Nanos::from_millis(320),
];
/// Slices begin within half a millisecond of one another. Of this that is a twentieth, less than what is added for
/// runs that differ.
const SLICE_LEAST: Nanos = Nanos::from_millis(10);
/// Of that time it lets this part pass before it asks again, and of that which it takes this one,
const ASKS_WITHIN: u64 = 64;
const LATE_ASKS_WITHIN: u64 = 16;
/// but no less than this: looking at what is reserved costs the broker some,
const ASKS_LEAST: Nanos = Nanos::from_secs(1);
/// and no more; what is too late is in no hurry.
const ASKS_MOST: Nanos = Nanos::from_secs(60);
const LATE_ASKS_MOST: Nanos = Nanos::from_secs(900);
/// How many times as long a job takes at the least rate, 5 %.
const SLOWEST_TIMES: u64 = 20;
/// Of the time that a job has waited this part is within which it asks to be done.
const LATER_WITHIN: u64 = 4;
/// A broker's clock is read a little later.
const AWAY: Nanos = Nanos::from_secs(2);
/// How often another start is tried.
const ATTEMPTS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::reservation::NodeChoice;
    use keeptime_model::topology::NodeIndex;
    use std::collections::BTreeMap;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    /// 100 s on two nodes, 80 on four, by 400 s.
    fn booking() -> Booking {
        let speed_ppm = BTreeMap::from([(2, 1_000_000), (4, 1_250_000)]);
        Booking::new(Job { speed_ppm, ..Job::new(Nanos::from_secs(100), 2, at(400)) })
    }

    fn cluster() -> Cluster {
        Cluster::of(4, CpuPpm::from_percent(90))
    }

    /// Of every node, for ever.
    fn all_but(percent: u32) -> Vec<Reserved> {
        let cpu = CpuPpm::from_percent(90 - percent);
        let (from, to) = (at(0), WallTime::from_unix_nanos(u64::MAX));
        (0..4).map(|node| Reserved { node: NodeIndex(node), from, to, cpu }).collect()
    }

    #[test]
    fn what_fits_is_asked_for_and_later_where_the_broker_says_so() {
        let mut booking = self::booking();
        let next = |booking: &mut Booking| match booking.next(at(0), &cluster(), &[]).unwrap() {
            Ask::Beside(plan) => (plan.nodes.len(), plan.at),
            other => panic!("{other:?}"),
        };
        let (_, first) = next(&mut booking);
        assert_eq!(first.from, at(0));
        // What begins no later is no other start.
        assert!(!booking.clone().refused(first.from, Some(at(0))));
        assert!(!booking.clone().refused(first.from, None));
        for start in 1..=u64::from(ATTEMPTS) {
            assert!(booking.refused(at(start - 1), Some(at(start))));
            assert_eq!(next(&mut booking).1.from, at(start));
        }
        assert!(!booking.refused(at(4), Some(at(5))), "it was tried often enough");
    }

    #[test]
    fn who_has_the_least_time_asks_first() {
        let after = |by: u64, waited: u64| {
            let (asked, now) = (at(1_000_000), at(1_000_000 + waited));
            let job = Job { by: at(1_000_000 + waited + by), ..booking().job };
            Booking::asks_again_after(&job, asked, now).get() / 1_000_000
        };
        // It has two hours, 1,900 s, 20 s, none.
        let left = [7_300, 2_000, 120, 50];
        assert_eq!(left.map(|by| after(by, 0)), [60_000, 29_687, 1_000, 6_250]);
        assert_eq!(left.map(|by| after(by, 640)), [60_000, 29_687, 1_000, 10_000]);
        assert_eq!(after(0, 1_000_000), 900_000);
    }

    // It takes 100 s, by 400 s.
    #[test]
    fn who_has_waited_takes_what_is_further_away() {
        let job = booking().job;
        let in_turn = |asked: u64, now: u64| {
            let all = Booking::in_turn(&job, at(asked), at(now));
            all.map(|(promise, booking)| (promise, booking.by())).collect::<Vec<_>>()
        };
        let first = |now: u64| [(Promise::Deadline, at(400)), (Promise::Start, at(now + 2_000))];
        assert_eq!(in_turn(0, 599), first(599), "it has waited for less than six times 100 s");
        assert_eq!(in_turn(0, 600), [&first(600)[..], &[(Promise::Later, at(750))]].concat());
        assert_eq!(in_turn(0, 1_000).last(), Some(&(Promise::Later, at(1_250))));
        let early = Job { by: at(800), ..job.clone() };
        assert_eq!(Booking::in_turn(&early, at(0), at(600)).count(), 2, "it may be in time still");
    }

    // Goal: slices of several nodes begin together, whatever the share.
    #[test]
    fn what_is_asked_for_begins_together_on_all_nodes() {
        let job = Job { cpu_ppm: CpuPpm::from_percent(40), ..booking().job };
        let asked = |nodes, percent| {
            let resources = Resources { nodes: NodeChoice::Any(nodes), ..Resources::nothing() };
            let rate = Share::from_percent(percent).unwrap();
            let stretch = Stretch { from: at(0), to: at(300), rate };
            let request = Booking::new(job.clone()).request(resources, &stretch);
            assert_eq!(request.check(), Ok(()));
            let reservation::Ask::Resources(resources) = request.ask else {
                panic!("no resources")
            };
            (resources.cpu_ppm, resources.cpu_period_nanos)
        };
        // Slices of 16, 16, 12.8 and, as there is no longer period, 6.4 ms.
        for (percent, share, millis) in
            [(100, 400_000, 40), (50, 200_000, 80), (20, 80_000, 160), (5, 20_000, 320)]
        {
            let wanted = (CpuPpm::new(share), Some(Nanos::from_millis(millis)));
            assert_eq!(asked(2, percent), wanted, "{percent} %");
        }
        assert_eq!(asked(1, 50).1, None, "it waits for nobody");
    }

    // 100 s within 398 s, as the broker's clock may be two seconds ahead, take 25.13 %; on four nodes 20.1 %.
    #[test]
    fn what_does_not_fit_is_asked_for_as_slow_as_can_be() {
        let (mut booking, full) = (self::booking(), all_but(10));
        let mut asked = Vec::new();
        let refusal = loop {
            match booking.next(at(0), &cluster(), &full).unwrap() {
                Ask::Slowest(nodes, at) => asked.push((nodes, at)),
                Ask::Nothing(refusal) => break refusal,
                other => panic!("{other:?}"),
            }
            assert!(booking.refused(at(0), Some(at(10))), "something is left to be said");
        };
        let stretch =
            |ppm| Stretch { from: at(0), to: at(398), rate: Share::try_from(ppm).unwrap() };
        assert_eq!(asked, [(2, stretch(251_257)), (4, stretch(201_006))]);
        assert!(refusal.earliest().unwrap() > at(400), "{refusal:?}");
        assert!(refusal.earliest().unwrap() <= booking.horizon(at(0)), "{refusal:?}");
        // Without its deadline it goes a twentieth as fast, if there is room at once: on two nodes from now on.
        let late = |reserved: &[Reserved]| {
            Booking::at_once(self::booking().job, at(330)).next(at(330), &cluster(), reserved)
        };
        let Ask::Beside(first) = late(&all_but(10)).unwrap() else { panic!("there is room") };
        assert_eq!(first.at.from, at(330));
        let until_400 = |reserved: Reserved| Reserved {
            to: at(400),
            cpu: CpuPpm::from_percent(90),
            ..reserved
        };
        let full: Vec<_> = full.into_iter().map(until_400).collect();
        let Ask::Nothing(refusal) = late(&full).unwrap() else { panic!("there is none") };
        assert!(refusal.earliest().unwrap() >= at(480), "{refusal:?}");
        // However much time there is, it is not asked for slower than it may be: 100 s take 2,000 s at 5 %.
        let job = Job { by: at(100_000), ..self::booking().job };
        let for_ever =
            all_but(1).into_iter().map(|reserved| Reserved { to: at(200_000), ..reserved });
        let asked = Booking::new(job).next(at(0), &cluster(), &for_ever.collect::<Vec<_>>());
        let Ask::Slowest(2, slowest) = asked.unwrap() else { panic!("there is no room at 5 %") };
        assert_eq!((slowest.to, slowest.rate), (at(2_000), cluster().rate_least));
        // What cannot be done in time at full speed is not asked for.
        let mut late = self::booking();
        let Ask::Nothing(_) = late.next(at(330), &cluster(), &all_but(10)).unwrap() else {
            panic!("nothing is left to ask for");
        };
    }
}
