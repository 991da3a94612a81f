//! What is left of a malleable reservation, and what it would be with less or more CPU: share times time stays
//! (pure).

use crate::book::Reservation;
use keeptime_model::reservation::{Ask, Grant, Malleable, Request, Resources};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};

/// What is left from an instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// When all of it begins.
    begins: WallTime,
    /// When what is left does.
    from: WallTime,
    cpu: CpuPpm,
    until: WallTime,
    wanted: Malleable,
}

/// How it is had: so much CPU of each node from its beginning until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub begins: WallTime,
    pub cpu: CpuPpm,
    pub until: WallTime,
}

/// A program that is slower than at this part of its full speed is as good as stopped.
const SLOWEST_PART: u32 = 20;
const SECOND: u64 = 1_000_000_000;

impl Left {
    /// From `at` on, or from its start if that is later. Nothing if it is not malleable, or over by then.
    pub fn of(reservation: &Reservation, at: WallTime) -> Option<Self> {
        let (wanted, grant) = (reservation.request.malleable?, reservation.grant.as_ref()?);
        let (begins, until) = (reservation.from_unix_nanos, reservation.until_unix_nanos?);
        let from = begins.max(at);
        (until > from).then_some(Self { begins, from, cpu: grant.cpu_ppm, until, wanted })
    }

    /// By when all of it has to be had.
    pub fn by(&self) -> WallTime {
        self.wanted.by_unix_nanos
    }

    /// As it is now.
    pub fn form(&self) -> Form {
        Form { begins: self.begins, cpu: self.cpu, until: self.until }
    }

    /// The same from `start` on, of what has not begun; nothing if it may not begin then, or that is no sooner.
    pub fn sooner(&self, start: WallTime) -> Option<Self> {
        let may = self.wanted.earliest_unix_nanos.is_some_and(|earliest| earliest <= start);
        let until = start.saturating_add(self.until.saturating_since(self.begins));
        (may && start < self.begins).then_some(Self { begins: start, from: start, until, ..*self })
    }

    /// With so much CPU, or with the most that is of use. It ends at a whole second, as people say times, where
    /// its deadline allows that; nothing if it would be late, or `cpu` is none.
    pub fn with(&self, cpu: CpuPpm) -> Option<Form> {
        let (cpu, by) = (cpu.min(self.wanted.cpu_most_ppm), self.by());
        let takes = self.volume().div_ceil(u128::from(cpu.get()).max(1));
        let takes = Nanos::new(u64::try_from(takes).unwrap_or(u64::MAX));
        let exactly = self.from.saturating_add(takes);
        let whole = exactly.unix_nanos().div_ceil(SECOND).saturating_mul(SECOND);
        let is_had = cpu > CpuPpm::default() && exactly <= by;
        let until = WallTime::from_unix_nanos(whole).min(by);
        is_had.then_some(Form { begins: self.begins, cpu, until })
    }

    /// With no more CPU than it takes to end by `end`; nothing if that is not less than now.
    pub fn slower(&self, end: WallTime) -> Option<Form> {
        let span = u128::from(end.saturating_since(self.from).get()).max(1);
        let least = u32::try_from(self.volume().div_ceil(span)).unwrap_or(u32::MAX);
        let least = least.max(self.wanted.cpu_most_ppm.get().div_ceil(SLOWEST_PART));
        self.with(CpuPpm::new(least)).filter(|form| form.cpu < self.cpu)
    }

    /// Millionths of a CPU times nanoseconds, on each node.
    fn volume(&self) -> u128 {
        u128::from(self.until.saturating_since(self.from).get()) * u128::from(self.cpu.get())
    }
}

/// What a malleable reservation has in another form.
pub(crate) fn granted(reservation: &Reservation, form: Form) -> Option<Grant> {
    let grant = reservation.grant.as_ref()?;
    Some(Grant { cpu_ppm: form.cpu, ..grant.clone() })
}

/// What is asked for with it.
pub(crate) fn asked(reservation: &Reservation, form: Form) -> Option<Request> {
    let request = &reservation.request;
    let Ask::Resources(resources) = &request.ask else { return None };
    let ask = Ask::Resources(Resources { cpu_ppm: form.cpu, ..resources.clone() });
    let lasts = Some(form.until.saturating_since(form.begins));
    let is_sooner = form.begins < reservation.from_unix_nanos;
    let from_unix_nanos = if is_sooner { Some(form.begins) } else { request.from_unix_nanos };
    Some(Request { ask, from_unix_nanos, duration_nanos: lasts, ..request.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_767_225_600 * SECOND;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(START + seconds * SECOND)
    }

    /// 60 % of a CPU for 100 s, by 300 s, of which 80 % can be used.
    fn left() -> Left {
        let wanted = Malleable::new(at(300), CpuPpm::from_percent(80));
        let (begins, from) = (at(0), at(0));
        Left { begins, from, cpu: CpuPpm::from_percent(60), until: at(100), wanted }
    }

    fn form(percent: u32, seconds: u64) -> Form {
        Form { begins: at(0), cpu: CpuPpm::from_percent(percent), until: at(seconds) }
    }

    #[test]
    fn half_the_cpu_takes_twice_as_long_and_more_than_is_of_use_is_not_taken() {
        assert_eq!(left().with(CpuPpm::from_percent(30)), Some(form(30, 200)));
        assert_eq!(left().with(CpuPpm::from_percent(80)), Some(form(80, 75)));
        assert_eq!(left().with(CpuPpm::from_percent(100)), Some(form(80, 75)));
        assert_eq!(left().with(CpuPpm::from_percent(19)), None, "it would be late");
        assert_eq!(left().with(CpuPpm::default()), None);
    }

    #[test]
    fn it_is_slowed_to_its_deadline_and_never_to_a_standstill() {
        assert_eq!(left().slower(at(300)), Some(form(20, 300)));
        assert_eq!(left().slower(at(100)), None, "it is as slow as that");
        let wanted = Malleable { by_unix_nanos: at(1_000_000), ..left().wanted };
        assert_eq!(Left { wanted, ..left() }.slower(at(1_000_000)), Some(form(4, 1_500)));
    }

    #[test]
    fn what_has_not_begun_and_may_begin_sooner_lasts_as_long_from_then_on() {
        let later = Left { begins: at(150), from: at(150), until: at(250), ..left() };
        assert_eq!(later.sooner(at(50)), None, "nobody said that it may");
        let wanted = Malleable { earliest_unix_nanos: Some(at(20)), ..later.wanted };
        let later = Left { wanted, ..later };
        let form = later.sooner(at(50)).map(|left| left.form());
        assert_eq!(form, Some(Form { begins: at(50), ..self::form(60, 150) }));
        assert_eq!([19, 150].map(|start| later.sooner(at(start))), [None; 2]);
    }

    proptest! {
        #[test]
        fn no_work_is_lost_and_no_deadline_missed(
            cpu in 1u32..4_000_000,
            spare in 0u32..4_000_000,
            span in 1u64..10_000 * SECOND,
            slack in 0u64..10_000 * SECOND,
            part in 0u32..=100,
        ) {
            let (from, until) = (at(0), at(0).saturating_add(Nanos::new(span)));
            let by_unix_nanos = until.saturating_add(Nanos::new(slack));
            let wanted = Malleable::new(by_unix_nanos, CpuPpm::new(cpu + spare));
            let left = Left { begins: from, from, cpu: CpuPpm::new(cpu), until, wanted };
            let other = CpuPpm::new(((u64::from(cpu) + u64::from(spare)) * u64::from(part) / 100) as u32);
            let forms = [left.with(other), left.slower(by_unix_nanos)];
            for form in forms.into_iter().flatten() {
                prop_assert!(form.until <= by_unix_nanos && form.cpu <= wanted.cpu_most_ppm);
                let after = Left { cpu: form.cpu, until: form.until, ..left };
                prop_assert!(after.volume() >= left.volume());
            }
        }
    }
}
