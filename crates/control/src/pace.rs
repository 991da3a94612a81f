//! Owns how much of its CPU a run uses so that its units of work (frames, iterations) take the time that was
//! promised, on average from its start on.
//!
//! A promise is for 90 % of the runs, say, so most runs would keep it with less CPU than they have. What a
//! unit takes is a part that CPU does not change (transfers, at the rate that was reserved) and one that is
//! work / CPU. The first is known from the profile; the second is found from what units take, again and
//! again, since processors wander. More than what was reserved is never asked for: a run that would be late
//! with all of it is late.

use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos};

/// Paces one run.
#[derive(Debug, Clone)]
pub struct Pace {
    /// What a unit is to take, in seconds.
    aim: f64,
    /// What of it CPU does not change, in seconds.
    fixed: f64,
    reserved: CpuPpm,
    in_force: CpuPpm,
    /// CPU-seconds in a unit, smoothed.
    work: Option<f64>,
    units: f64,
    /// By how much the units so far took longer than was aimed at, in seconds.
    late: f64,
    /// Units since the last decision, and the seconds that they took.
    window: (f64, f64),
    /// What all units would have taken with all of the CPU, in seconds.
    at_full: f64,
}

/// It is aimed at so much less than what was promised: half of the units that are held exactly there would
/// be late.
pub const MARGIN: f64 = 0.015;
/// What is decided on: shorter ones tell more of chance than of the program.
const WINDOW_SECONDS: f64 = 0.8;
/// How much of the last window's work counts.
const NEW: f64 = 0.5;
/// Within so long, what was late or early is to be made up for.
const CATCH_UP_SECONDS: f64 = 4.0;
/// A unit is never aimed at more than this part longer or shorter for that.
const CATCH_UP_MOST: f64 = 0.2;
/// The least part of the reserved CPU that a run is held at: a unit that stalled does not say that there is
/// nothing to do.
const LEAST: f64 = 0.4;
/// The part of a unit that is taken to be computing at the least, however short it was.
const COMPUTING_LEAST: f64 = 0.08;
/// The part of a unit that is left to computing at the least, however late it is.
const ROOM_LEAST: f64 = 0.01;
/// A change of less than this part is not worth telling anybody.
const CHANGE_LEAST: f64 = 0.01;

impl Pace {
    /// For a run with `reserved` on each node, of which a unit is promised to take `promised`, `fixed` of it
    /// whatever the CPU.
    ///
    /// # Errors
    /// If nothing is promised or reserved, or CPU would change nothing.
    pub fn new(promised: Nanos, fixed: Nanos, reserved: CpuPpm) -> Result<Self, Invalid> {
        let aim = promised.as_secs_f64() * (1.0 - MARGIN);
        let fixed = fixed.as_secs_f64();
        if fixed >= aim {
            return Err(Invalid::new("fixed", fixed, "less than what is promised"));
        }
        if reserved.get() == 0 {
            return Err(Invalid::new("reserved", reserved, "some CPU"));
        }
        let (in_force, work, window) = (reserved, None, (0.0, 0.0));
        let (units, late, at_full) = (0.0, 0.0, 0.0);
        Ok(Self { aim, fixed, reserved, in_force, work, units, late, window, at_full })
    }

    /// One unit took `seconds`; what is no time does not count. What each node is to have from now on, if that changes.
    pub fn unit(&mut self, seconds: f64) -> Option<CpuPpm> {
        if !(seconds.is_finite() && seconds > 0.0) {
            return None;
        }
        self.units += 1.0;
        self.late += seconds - self.aim;
        self.window = (self.window.0 + 1.0, self.window.1 + seconds);
        let (units, took) = self.window;
        if took < WINDOW_SECONDS {
            return None;
        }
        self.window = (0.0, 0.0);
        let cpu = f64::from(self.in_force.get());
        let each = took / units;
        let seen = (each - self.fixed).max(each * COMPUTING_LEAST) * cpu;
        let reserved = f64::from(self.reserved.get());
        self.at_full += units * (each - seen / cpu + seen / reserved);
        let work = self.work.map_or(seen, |work| work + NEW * (seen - work));
        self.work = Some(work);
        let to_come = (CATCH_UP_SECONDS / self.aim).max(2.0);
        let most = CATCH_UP_MOST * self.aim;
        let aim = self.aim - (self.late / to_come).clamp(-most, most);
        let room = (aim - self.fixed).max(self.aim * ROOM_LEAST);
        let next = (work / room).clamp(LEAST * reserved, reserved);
        let worth =
            (next / cpu - 1.0).abs() >= CHANGE_LEAST || (next >= reserved && cpu < reserved);
        worth.then(|| CpuPpm::new(next.round() as u32))
    }

    /// All nodes have `cpu` each now.
    pub fn put_in_force(&mut self, cpu: CpuPpm) {
        self.in_force = cpu;
    }

    /// What each node has.
    pub fn in_force(&self) -> CpuPpm {
        self.in_force
    }

    /// The most that each node can have.
    pub fn reserved(&self) -> CpuPpm {
        self.reserved
    }

    /// What a unit would have taken on average with all of the CPU: what the run tells of the processors.
    /// Nothing before the first window is over.
    pub fn at_full(&self) -> Option<Nanos> {
        let decided = self.units - self.window.0;
        (decided > 0.0).then(|| Nanos::new((self.at_full / decided * 1e9).round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RESERVED: CpuPpm = CpuPpm::from_percent(30);

    /// A program of which a unit takes `fixed` + `work` / CPU seconds, times what `wander` says of the unit's
    /// computing; the mean of its units over about `seconds`, and the CPU that it used on average.
    fn run(
        pace: &mut Pace,
        (fixed, work): (f64, f64),
        seconds: f64,
        mut wander: impl FnMut(f64) -> f64,
    ) -> (f64, f64) {
        let (mut now, mut units, mut cpu, mut used) = (0.0, 0.0, RESERVED, 0.0);
        while now < seconds {
            let share = f64::from(cpu.get()) / 1e6;
            let took = fixed + work / share * wander(now);
            (now, units, used) = (now + took, units + 1.0, used + share * took);
            if let Some(next) = pace.unit(took) {
                pace.put_in_force(next);
                cpu = next;
            }
        }
        (now / units, used / now)
    }

    fn pace(promised: f64, fixed: f64) -> Pace {
        let nanos = |seconds: f64| Nanos::new((seconds * 1e9) as u64);
        Pace::new(nanos(promised), nanos(fixed), RESERVED).unwrap()
    }

    #[test]
    fn a_run_that_would_be_early_takes_what_was_promised_and_lends_the_rest() {
        // 0.9 s with all of it.
        let mut pace = pace(1.0, 0.3);
        let (mean, cpu) = run(&mut pace, (0.3, 0.18), 20.0, |_| 1.0);
        assert!((0.975..=1.0).contains(&mean), "{mean}");
        assert!(cpu < 0.29, "{cpu}");
        let full = pace.at_full().unwrap().as_secs_f64();
        assert!((full - 0.9).abs() < 0.01, "{full}");
    }

    #[test]
    fn what_would_be_late_has_all_of_its_cpu_and_no_more() {
        let mut pace = pace(1.0, 0.3);
        let (mean, cpu) = run(&mut pace, (0.3, 0.225), 20.0, |_| 1.0);
        assert!((mean - 1.05).abs() < 1e-9 && (cpu - 0.3).abs() < 1e-9, "{mean} {cpu}");
    }

    // A program may print what it likes for a time.
    #[test]
    fn what_is_no_time_does_not_count() {
        let mut pace = pace(1.0, 0.3);
        for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert_eq!(pace.unit(odd), None);
        }
        let (mean, _) = run(&mut pace, (0.3, 0.18), 20.0, |_| 1.0);
        assert!((0.975..=1.0).contains(&mean), "{mean}");
    }

    #[test]
    fn what_cpu_cannot_change_is_refused() {
        let second = Nanos::from_secs(1);
        assert!(Pace::new(second, second, RESERVED).is_err());
        assert!(Pace::new(second, Nanos::default(), CpuPpm::new(0)).is_err());
    }

    proptest! {
        // Goal: whatever part of a unit is computing and however fast the processor is, as it wanders by up to
        // a quarter for seconds at a time, the mean is near the promise, where all of the CPU suffices for that.
        #[test]
        fn the_mean_is_what_was_promised_though_processors_wander(
            promised in 0.15f64..3.0,
            computing in 0.3f64..0.95,
            early in 0.10f64..0.25,
            speeds in proptest::collection::vec(0.88f64..1.1, 12),
        ) {
            let fixed = promised * (1.0 - computing) * (1.0 - early);
            let work = (promised * (1.0 - early) - fixed) * 0.3;
            let mut pace = pace(promised, fixed);
            let wander = |now: f64| speeds[(now / 2.5) as usize % speeds.len()];
            let (mean, cpu) = run(&mut pace, (fixed, work), 20.0_f64.max(8.0 * promised), wander);
            prop_assert!((mean / promised - 0.985).abs() < 0.045, "{mean} of {promised}");
            prop_assert!(cpu <= 0.3 + 1e-9);
        }
    }
}
