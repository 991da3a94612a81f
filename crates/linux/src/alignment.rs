//! Periods of a group's CPU limit that begin when they are asked to.
//!
//! The kernel draws the instant at which they begin when a group is made (Linux 6.4 and later: "Interleave cfs
//! bandwidth timers"), so the nodes of a program have their slices at different times. That instant cannot be set. But
//! it can be seen, since the kernel counts the periods, and one period of another length moves all that follow. Both the
//! longer or shorter one and the usual one after it are written right before a period ends: a limit that is written
//! refills the budget, which is due then anyway.
//!
//! Alignment is kept, not promised: where a write comes too late, or a clock was set, it is done again. Until then, and
//! whatever happens to this process meanwhile, the group has its share, in other periods.

use crate::cgroup::{CgroupError, CpuLimit, Group};
use crate::vital;
use keeptime_control::phase;
use keeptime_locks::{lock, unpoisoned};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

/// A group whose periods begin at multiples of their length since 1970, and an offset, by this node's clock. Dropped, it
/// leaves the group as it is.
#[derive(Debug)]
pub struct Aligned(Arc<Keeper>);

#[derive(Debug)]
struct Keeper {
    group: Group,
    /// Nothing: it is dropped. Held while a limit is written, so that the last one that was asked for is the last one
    /// that is written.
    wanted: Mutex<Option<Wanted>>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Wanted {
    limit: CpuLimit,
    offset: Nanos,
}

impl Aligned {
    /// Limits `group` as [`Group::set_cpu_in_periods`] does, and from then on keeps its periods where they are to be.
    ///
    /// Costs a thread, which reads a small file every 0.25 ms for a period whenever the period changes, and every 30 s.
    ///
    /// # Errors
    /// As [`Group::set_cpu_in_periods`]; no thread.
    pub fn begin(
        group: Group,
        cpu: CpuPpm,
        period: Nanos,
        offset: Nanos,
    ) -> Result<Self, CgroupError> {
        let wanted = Wanted { limit: CpuLimit::of(cpu, period)?, offset };
        group.limit_cpu(wanted.limit)?;
        let keeper =
            Arc::new(Keeper { group, wanted: Mutex::new(Some(wanted)), changed: Condvar::new() });
        let kept = Arc::clone(&keeper);
        let started = vital::spawn("keeptime-align", move || kept.keep());
        started.map_err(|source| CgroupError::Refused {
            call: "clone",
            path: keeper.group.path().to_owned(),
            source,
        })?;
        Ok(Self(keeper))
    }

    /// Another limit, at once; where its period is another one, that begins when it is to some periods later.
    ///
    /// # Errors
    /// As [`Group::set_cpu_in_periods`]; what was there stays.
    pub fn set(&self, cpu: CpuPpm, period: Nanos, offset: Nanos) -> Result<(), CgroupError> {
        let wanted = Wanted { limit: CpuLimit::of(cpu, period)?, offset };
        let mut before = lock(&self.0.wanted);
        self.0.group.limit_cpu(wanted.limit)?;
        *before = Some(wanted);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        *lock(&self.0.wanted) = None;
        self.0.changed.notify_all();
    }
}

impl Keeper {
    fn keep(&self) {
        let mut unsettled = 0;
        loop {
            let Some(wanted) = *lock(&self.wanted) else { return };
            let again = match self.round(wanted) {
                Ok(Round::Unsettled) if unsettled < UNSETTLED_MOST => {
                    unsettled += 1;
                    continue;
                }
                Ok(Round::Unsettled | Round::Aligned) => AGAIN,
                // The group is away: who has asked for its limit will drop it or ask again.
                Err(Ended::Refused) => AGAIN,
                Ok(Round::Idle) | Err(Ended::Changed) => Duration::ZERO,
            };
            unsettled = 0;
            let _ = self.wait(wanted, again);
        }
    }

    /// Looks when the periods begin, and moves them if that is elsewhere.
    fn round(&self, wanted: Wanted) -> Result<Round, Ended> {
        let period = wanted.limit.period();
        if period < ALIGNED_LEAST {
            return Ok(Round::Aligned);
        }
        let before = self.group.cpu_periods()?;
        self.wait(wanted, Duration::from_nanos(period.get()).max(IDLE))?;
        if self.group.cpu_periods()? == before {
            return Ok(Round::Idle);
        }
        let Some(begins) = self.begins(wanted)? else { return Ok(Round::Unsettled) };
        let Some(interim) = interim(begins, wanted) else { return Ok(Round::Aligned) };
        let next = phase::begins(wall().saturating_add(IN_TIME), period, into(begins, period));
        self.write_before(next, wanted, interim)?;
        self.write_before(next.saturating_add(interim.period()), wanted, wanted.limit)?;
        Ok(Round::Unsettled)
    }

    /// When a period began, to half of what a look takes; nothing if none was seen.
    fn begins(&self, wanted: Wanted) -> Result<Option<WallTime>, Ended> {
        let until =
            wall().saturating_add(wanted.limit.period()).saturating_add(wanted.limit.period());
        let mut before = (wall(), self.group.cpu_periods()?);
        loop {
            self.wait(wanted, LOOK)?;
            let now = (wall(), self.group.cpu_periods()?);
            let took = now.0.saturating_since(before.0);
            // Who was not woken in time has not seen when it was.
            if now.1 != before.1 && took <= SURE {
                return Ok(Some(before.0.saturating_add(Nanos::new(took.get() / 2))));
            }
            if now.0 > until {
                return Ok(None);
            }
            before = now;
        }
    }

    fn write_before(
        &self,
        instant: WallTime,
        wanted: Wanted,
        limit: CpuLimit,
    ) -> Result<(), Ended> {
        let span = instant.saturating_since(wall()).saturating_sub(EARLY);
        self.wait(wanted, Duration::from_nanos(span.get()))?;
        let now = lock(&self.wanted);
        if *now != Some(wanted) {
            return Err(Ended::Changed);
        }
        Ok(self.group.limit_cpu(limit)?)
    }

    fn wait(&self, wanted: Wanted, span: Duration) -> Result<(), Ended> {
        let is_wanted = |now: &mut Option<Wanted>| *now == Some(wanted);
        let waited = self.changed.wait_timeout_while(lock(&self.wanted), span, is_wanted);
        let (now, _) = unpoisoned(waited);
        if *now == Some(wanted) { Ok(()) } else { Err(Ended::Changed) }
    }
}

/// What became of a look.
enum Round {
    /// Periods begin when they are to.
    Aligned,
    /// They have been moved, if the writes came in time; or this machine wakes nobody in time to see when they begin.
    Unsettled,
    /// There is nobody to limit.
    Idle,
}

/// Why a look ended before it came to anything.
enum Ended {
    /// Something else is wanted.
    Changed,
    /// The kernel has refused.
    Refused,
}

impl From<CgroupError> for Ended {
    fn from(_: CgroupError) -> Self {
        Self::Refused
    }
}

/// One period of another length, for the same share, after which periods begin when they are to; nothing if they do, or
/// if the kernel takes none that does.
fn interim(begins: WallTime, wanted: Wanted) -> Option<CpuLimit> {
    let period = wanted.limit.period();
    let off = phase::begins(begins, period, wanted.offset).saturating_since(begins);
    let longer = off.saturating_add(period);
    if off.min(period.saturating_sub(off)) <= TOLERANCE {
        return None;
    }
    // What is nearer to the usual one first.
    let lengths = if off.get() * 2 >= period.get() { [off, longer] } else { [longer, off] };
    lengths.into_iter().find_map(|length| wanted.limit.in_periods(length))
}

/// How far `instant` is into a period that began at a multiple of it since 1970.
fn into(instant: WallTime, period: Nanos) -> Nanos {
    Nanos::new(instant.unix_nanos() % period.get().max(1))
}

fn wall() -> WallTime {
    SystemTime::now().into()
}

/// In shorter periods it makes no difference where they begin.
const ALIGNED_LEAST: Nanos = Nanos::from_millis(20);
/// Off by no more is not off.
const TOLERANCE: Nanos = Nanos::from_millis(1);
const LOOK: Duration = Duration::from_micros(250);
/// Looks that far apart have missed what was between.
const SURE: Nanos = Nanos::from_millis(1);
/// What is written so long before a period ends is there in time, mostly, and gives little that is not due.
const EARLY: Nanos = Nanos::from_millis(1);
/// A period that ends so soon is left alone.
const IN_TIME: Nanos = Nanos::from_millis(3);
/// So often it is looked again: clocks are set, and drift apart.
const AGAIN: Duration = Duration::from_secs(30);
/// And so often whether there is anybody to limit.
const IDLE: Duration = Duration::from_millis(100);
/// After so many rounds in a row that settled nothing it is left alone until [`AGAIN`]: looks cost.
const UNSETTLED_MOST: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // After one period of the other length the next ones begin when they are to, whenever they did before; and the
        // group has had its share and no more.
        #[test]
        fn one_other_period_moves_those_after_it(
            wall in 1u64 << 60..1 << 61, millis in 20u64..=640, percent in 6u32..=100, offset in 0u64..1 << 30,
        ) {
            let period = Nanos::from_millis(millis);
            let limit = CpuLimit::of(CpuPpm::from_percent(percent), period).unwrap();
            let wanted = Wanted { limit, offset: Nanos::new(offset % period.get()) };
            let begins = WallTime::from_unix_nanos(wall);
            let off = |instant| {
                let late = phase::begins(instant, period, wanted.offset).saturating_since(instant);
                late.min(period.saturating_sub(late))
            };
            match interim(begins, wanted) {
                None => prop_assert!(off(begins) <= TOLERANCE),
                Some(other) => {
                    prop_assert!(off(begins.saturating_add(other.period())) <= Nanos::new(1_000));
                    prop_assert!(other.cpu() <= limit.cpu());
                    prop_assert!(other.cpu().get() + 1_000 >= limit.cpu().get());
                }
            }
        }
    }

    // 1 ms in 500: half of it would be less than the kernel takes, so the longer one is taken.
    #[test]
    fn the_kernels_bounds_are_kept() {
        let period = Nanos::from_millis(500);
        let limit = CpuLimit::of(CpuPpm::new(2_000), period).unwrap();
        let wanted = Wanted { limit, offset: Nanos::new(0) };
        let begins = WallTime::from_unix_nanos(1_700_000_000_200_000_000);
        assert_eq!(interim(begins, wanted).unwrap().period(), Nanos::from_millis(800));
        // At 0.9 s no other one is possible: 0.3 s would be too short, 1.2 too long.
        let limit = CpuLimit::of(CpuPpm::new(1_500), Nanos::from_millis(900)).unwrap();
        let begins = WallTime::from_unix_nanos(1_700_000_000_600_000_000);
        let off = phase::begins(begins, limit.period(), wanted.offset).saturating_since(begins);
        assert!(off > TOLERANCE && off < Nanos::from_millis(600), "{off}");
        assert_eq!(interim(begins, Wanted { limit, ..wanted }), None);
    }
}
