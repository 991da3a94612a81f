//! What a job that is to be done by a time asks a broker for, until that grants something: first what fits beside all that
//! is reserved ([`beside`]), later where the broker knows better, and in the end to go as slowly as its deadline allows,
//! for which others that have time may have to go slower too. Pure: who asks, asks what [`Booking::next`] says and tells
//! [`Booking::refused`] what came of it.

use super::admit::Refusal;
use super::beside::{Reserved, beside};
use super::job::{Job, Wants};
use super::plan::{Cluster, JobPlan, Stretch};
use keeptime_model::Invalid;
use keeptime_model::units::{Nanos, WallTime};
use std::collections::VecDeque;

/// A job that asks.
#[derive(Debug, Clone)]
pub struct Booking {
    job: Job,
    /// How often another start is tried.
    attempts_left: u32,
    slowest: Option<Slowest>,
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
    Beside(JobPlan, Stretch),
    /// So many nodes, whichever, as slowly as can be. It fits only if others go slower, which only the broker knows.
    Slowest(u32, Stretch),
    /// Nothing is left: the nodes' CPU does not suffice.
    Nothing(Refusal),
}

impl Booking {
    /// Of a job that has not started.
    pub fn new(job: Job) -> Self {
        Self { job, attempts_left: ATTEMPTS, slowest: None }
    }

    /// Until when [`Self::next`] looks for room: as long after its deadline as the job takes at the least rate.
    pub fn horizon(&self, now: WallTime) -> WallTime {
        let longest = self.job.remaining_nanos.get().saturating_mul(SLOWEST_TIMES);
        self.by().unwrap_or(now).max(now).saturating_add(Nanos::new(longest))
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
                Ok(plan) => {
                    let nothing = || Invalid::new("takes", self.job.remaining_nanos, "more than 0 s");
                    let at = plan.stretches.first().copied().ok_or_else(nothing)?;
                    return Ok(Ask::Beside(plan, at));
                }
                Err(refusal) => {
                    let left = self.as_slow_as_can_be(now);
                    self.slowest.insert(Slowest { refusal, left })
                }
            },
        };
        Ok(match slowest.left.pop_front() {
            Some((nodes, at)) => Ask::Slowest(nodes, at),
            None => Ask::Nothing(slowest.refusal.clone()),
        })
    }

    /// The broker has refused what was asked for last, which would have begun at `from`, and offers that start, if any.
    /// Whether there is something else to ask for.
    pub fn refused(&mut self, from: WallTime, earliest: Option<WallTime>) -> bool {
        if self.slowest.is_some() {
            return true;
        }
        let later = earliest.filter(|start| *start > from && self.attempts_left > 0);
        if let Some(start) = later {
            (self.job.from_unix_nanos, self.attempts_left) = (start, self.attempts_left - 1);
        }
        later.is_some()
    }

    /// From `now` on as slowly as the deadline allows, on each number of nodes on which that is possible.
    fn as_slow_as_can_be(&self, now: WallTime) -> VecDeque<(u32, Stretch)> {
        let Some(by) = self.by() else { return VecDeque::new() };
        let to = WallTime::from_unix_nanos(by.unix_nanos().saturating_sub(AWAY.get()));
        let on = |nodes: &u32| {
            let rate = self.job.least_rate(*nodes, to.saturating_since(now))?;
            Some((*nodes, Stretch { from: now, to, rate }))
        };
        let mut all: Vec<_> = self.job.speed_ppm.keys().filter_map(on).collect();
        all.sort_by_key(|(nodes, at)| u64::from(*nodes) * u64::from(at.rate.ppm()));
        all.into()
    }

    fn by(&self) -> Option<WallTime> {
        match self.job.wants {
            Wants::By(by) => Some(by),
            Wants::Rate(_) | Wants::Rest => None,
        }
    }
}

/// How many times as long a job takes at the least rate, 5 %.
const SLOWEST_TIMES: u64 = 20;
/// A broker's clock is read a little later.
const AWAY: Nanos = Nanos::from_secs(2);
/// How often another start is tried.
const ATTEMPTS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::topology::NodeIndex;
    use keeptime_model::units::{CpuPpm, Share};
    use std::collections::BTreeMap;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    /// 100 s on two nodes, 80 on four, by 400 s.
    fn booking() -> Booking {
        let speed_ppm = BTreeMap::from([(2, 1_000_000), (4, 1_250_000)]);
        let job = Job::new("a".parse().unwrap(), Nanos::from_secs(100), 2);
        Booking::new(Job { wants: Wants::By(at(400)), speed_ppm, ..job })
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
        let mut next = |booking: &mut Booking| match booking.next(at(0), &cluster(), &[]).unwrap() {
            Ask::Beside(plan, at) => (plan.nodes.len(), at),
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
        let stretch = |ppm| Stretch { from: at(0), to: at(398), rate: Share::try_from(ppm).unwrap() };
        assert_eq!(asked, [(2, stretch(251_257)), (4, stretch(201_006))]);
        assert!(refusal.earliest.unwrap() > at(400), "{refusal:?}");
        assert!(refusal.earliest.unwrap() <= booking.horizon(at(0)), "{refusal:?}");
        // What cannot be done in time at full speed is not asked for.
        let mut late = self::booking();
        let Ask::Nothing(_) = late.next(at(330), &cluster(), &full).unwrap() else {
            panic!("nothing is left to ask for");
        };
    }
}
