//! What is left of a malleable reservation, and what it would be with less or more CPU: share times time stays
//! (pure).

use crate::book::Reservation;
use keeptime_model::assignment::LaterCpu;
use keeptime_model::reservation::{Ask, Grant, Malleable, Request, Resources};
use keeptime_model::shares::Shares;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};

/// What is left from an instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// When what is left begins.
    from: WallTime,
    /// As it is now.
    form: Form,
    /// Millionths of a CPU times nanoseconds, on each node.
    volume: u128,
    wanted: Malleable,
}

/// How it is had: so much CPU of each node from its beginning, perhaps more from a time on, until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub begins: WallTime,
    pub cpu: CpuPpm,
    pub later: Option<LaterCpu>,
    pub until: WallTime,
}

/// A program that is slower than at this part of its full speed is as good as stopped.
const SLOWEST_PART: u32 = 20;

impl Left {
    /// From `at` on, or from its start if that is later. Nothing if it is not malleable, or over by then.
    pub fn of(reservation: &Reservation, at: WallTime) -> Option<Self> {
        let (wanted, grant) = (reservation.request.malleable?, reservation.grant.as_ref()?);
        let (begins, until) = (reservation.from_unix_nanos, reservation.until_unix_nanos?);
        let from = begins.max(at);
        let now = grant.at(from);
        let form = Form { begins, cpu: now.cpu_ppm, later: now.later, until };
        (until > from).then(|| Self::new(form, from, wanted))
    }

    fn new(form: Form, from: WallTime, wanted: Malleable) -> Self {
        Self { from, form, volume: form.volume(from), wanted }
    }

    /// By when all of it has to be had.
    pub fn by(&self) -> WallTime {
        self.wanted.by_unix_nanos
    }

    /// The last instant at which it could go on at full speed and be in time, had it nothing until then.
    pub fn begin_by(&self) -> WallTime {
        self.last_start(self.most().takes_ceil(self.volume))
    }

    /// When it has to begin to be in time, if it lasts so long.
    pub fn last_start(&self, lasts: Nanos) -> WallTime {
        WallTime::from_unix_nanos(self.by().unix_nanos().saturating_sub(lasts.get()))
    }

    /// More CPU than this is of no use.
    pub fn most(&self) -> CpuPpm {
        self.wanted.cpu_most_ppm
    }

    /// From when on it may begin, where it does later only for want of room.
    pub fn earliest(&self) -> Option<WallTime> {
        self.wanted.earliest_unix_nanos
    }

    /// All of what has not begun, from `start` on with so much CPU, for whole seconds; nothing if it would be late.
    pub fn begun(&self, start: WallTime, cpu: CpuPpm) -> Option<Form> {
        let until = start.saturating_add(cpu.takes_ceil(self.volume).whole_seconds_ceil());
        let is_had = CpuPpm::default() < cpu && until <= self.by();
        is_had.then_some(Form { begins: start, cpu, later: None, until })
    }

    /// When what is left begins.
    pub fn from(&self) -> WallTime {
        self.from
    }

    /// As it is now.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The same all the time, by the same end.
    pub fn even(&self) -> Form {
        let Form { cpu, later, until, .. } = self.form;
        let span = u128::from(until.saturating_since(self.from).get());
        let even = u32::try_from(self.volume.div_ceil(span.max(1))).unwrap_or(u32::MAX);
        let cpu = later.map_or(cpu, |_| CpuPpm::new(even));
        Form { cpu, later: None, ..self.form }
    }

    /// The same from `start` on, of what has not begun, with the least share that it would have; nothing if it may not begin
    /// then, or that is no sooner.
    pub fn sooner(&self, start: WallTime) -> Option<Self> {
        let may = self.earliest().is_some_and(|earliest| earliest <= start);
        let cpu = self.form.shares().least();
        let until = start.saturating_add(cpu.takes_ceil(self.volume));
        let form = Form { begins: start, cpu, later: None, until };
        (may && start < self.form.begins).then_some(Self { from: start, form, ..*self })
    }

    /// With so much CPU, or with the most that is of use. It ends at a whole second, as people say times, where
    /// its deadline allows that; nothing if it would be late, or `cpu` is none.
    pub fn with(&self, cpu: CpuPpm) -> Option<Form> {
        self.with_both(cpu, None)
    }

    /// The same, with more from a time on, if that is more.
    pub fn with_both(&self, cpu: CpuPpm, later: Option<LaterCpu>) -> Option<Form> {
        let most = self.wanted.cpu_most_ppm;
        let cpu = cpu.min(most);
        let later = later.map(|later| LaterCpu { cpu_ppm: later.cpu_ppm.min(most), ..later });
        let until_then =
            later.map_or(0, |later| cpu.volume(later.from_unix_nanos.saturating_since(self.from)));
        let (then, left, cpu_then, later) = match later {
            Some(LaterCpu { from_unix_nanos, cpu_ppm })
                if until_then < self.volume && cpu < cpu_ppm =>
            {
                (from_unix_nanos.max(self.from), self.volume - until_then, cpu_ppm, later)
            }
            _ => (self.from, self.volume, cpu, None),
        };
        let (exactly, by) = (then.saturating_add(cpu_then.takes_ceil(left)), self.by());
        let is_had = cpu.min(cpu_then) > CpuPpm::default() && exactly <= by;
        let until = exactly.whole_second_ceil().min(by);
        is_had.then_some(Form { begins: self.form.begins, cpu, later, until })
    }

    /// With no more CPU than it takes to end by `end`; nothing if that is not less than now.
    pub fn slower(&self, end: WallTime) -> Option<Form> {
        let span = end.saturating_since(self.from);
        self.slower_with(self.volume.div_ceil(u128::from(span.get()).max(1)), None)
    }

    /// With no more CPU before `later` than it takes to end by `end` with that; nothing if it is not less than now.
    pub fn slower_until(&self, later: LaterCpu, end: WallTime) -> Option<Form> {
        let LaterCpu { from_unix_nanos, cpu_ppm } = later;
        let before = u128::from(from_unix_nanos.saturating_since(self.from).get());
        let after = cpu_ppm.volume(end.saturating_since(from_unix_nanos));
        let left = self.volume.saturating_sub(after);
        self.slower_with(left.div_ceil(before.max(1)), Some(later))
    }

    /// What it has at the least before it has another share, in any form that turns at one of these instants, or never: by its
    /// deadline all has to be had, with no more after that than is of use.
    pub fn least(&self, turns: impl IntoIterator<Item = WallTime>) -> CpuPpm {
        let by = self.by();
        let before = |turn: WallTime| {
            let turn = turn.max(self.from).min(by);
            let after = self.most().volume(by.saturating_since(turn));
            let span = u128::from(turn.saturating_since(self.from).get());
            self.volume.saturating_sub(after) / span.max(1)
        };
        let least = turns.into_iter().chain([by]).map(before).min().unwrap_or(0);
        let least = u32::try_from(least).unwrap_or(u32::MAX);
        CpuPpm::new(least).max(self.slowest())
    }

    /// What is slower than this is as good as stopped.
    fn slowest(&self) -> CpuPpm {
        CpuPpm::new(self.most().get().div_ceil(SLOWEST_PART))
    }

    fn slower_with(&self, least: u128, later: Option<LaterCpu>) -> Option<Form> {
        let least = CpuPpm::new(u32::try_from(least).unwrap_or(u32::MAX));
        let form = self.with_both(least.max(self.slowest()), later);
        form.filter(|form| form.cpu < self.form.cpu)
    }
}

impl Form {
    /// What it has at an instant: more counts when its time has come.
    pub fn at(&self, at: WallTime) -> CpuPpm {
        self.shares().at(at)
    }

    /// What it has at some time.
    pub fn most(&self) -> CpuPpm {
        self.shares().most()
    }

    fn shares(&self) -> Shares {
        Shares { cpu: self.cpu, later: self.later }
    }

    /// Millionths of a CPU times nanoseconds, on each node, from an instant on.
    fn volume(&self, from: WallTime) -> u128 {
        self.shares().volume(from, self.until)
    }
}

/// What a malleable reservation has in another form.
pub(crate) fn granted(reservation: &Reservation, form: Form) -> Option<Grant> {
    let grant = reservation.grant.as_ref()?;
    Some(Grant { cpu_ppm: form.cpu, later: form.later, ..grant.clone() })
}

/// What is asked for with it.
pub(crate) fn asked(reservation: &Reservation, form: Form) -> Option<Request> {
    let request = &reservation.request;
    let Ask::Resources(resources) = &request.ask else { return None };
    let ask = Ask::Resources(Resources { cpu_ppm: form.cpu, ..resources.clone() });
    let lasts = Some(form.until.saturating_since(form.begins));
    let is_moved = form.begins != reservation.from_unix_nanos;
    let from_unix_nanos = if is_moved { Some(form.begins) } else { request.from_unix_nanos };
    Some(Request { ask, from_unix_nanos, duration_nanos: lasts, ..request.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_767_225_600 * SECOND;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(START + seconds * SECOND)
    }

    /// 60 % of a CPU for 100 s, by 300 s, of which 80 % can be used.
    fn left() -> Left {
        let wanted = Malleable::new(at(300), CpuPpm::from_percent(80));
        Left::new(form(60, 100), at(0), wanted)
    }

    fn form(percent: u32, seconds: u64) -> Form {
        let cpu = CpuPpm::from_percent(percent);
        Form { begins: at(0), cpu, later: None, until: at(seconds) }
    }

    fn later(percent: u32, seconds: u64) -> LaterCpu {
        LaterCpu { from_unix_nanos: at(seconds), cpu_ppm: CpuPpm::from_percent(percent) }
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

    // 6,000 are to come: 400 within 100 s at the least rate, 5,600 at 80 % take 70 s more.
    #[test]
    fn it_is_slower_for_a_while_and_makes_up_for_that() {
        let dip = Form { later: Some(later(80, 100)), ..form(4, 170) };
        assert_eq!(left().slower_until(later(80, 100), at(300)), Some(dip));
        // By 150 s it takes 2,000 before.
        let urgent = Form { later: Some(later(80, 100)), ..form(20, 150) };
        assert_eq!(left().slower_until(later(80, 100), at(150)), Some(urgent));
        assert_eq!(left().slower_until(later(80, 100), at(100)), None, "it is as slow as that");
        // Less is not had later: it is the same all the time.
        assert_eq!(left().slower_until(later(10, 100), at(150)), Some(form(55, 110)));
        // More is of no use later either, and what is done before is done so.
        assert_eq!(left().slower_until(later(95, 100), at(300)), Some(dip));
        assert_eq!(
            left().with_both(CpuPpm::from_percent(60), Some(later(80, 100))),
            Some(form(60, 100))
        );
        // What is left of it, at 60 s: 5,760.
        let left = Left::new(dip, at(60), self::left().wanted);
        assert_eq!(left.form(), dip);
        assert_eq!(left.volume, (160 + 5_600) * 10_000 * u128::from(SECOND));
        assert_eq!(left.even().cpu.get(), 5_760 * 10_000 / 110 + 1);
        assert_eq!((left.even().later, left.even().until), (None, at(170)));
        assert_eq!(self::left().even(), form(60, 100));
    }

    #[test]
    fn what_has_not_begun_and_may_begin_sooner_lasts_as_long_from_then_on() {
        let form = |begins| Form { begins: at(begins), ..form(60, begins + 100) };
        let later = Left::new(form(150), at(150), left().wanted);
        assert_eq!(later.sooner(at(50)), None, "nobody said that it may");
        let wanted = Malleable { earliest_unix_nanos: Some(at(20)), ..later.wanted };
        let later = Left { wanted, ..later };
        assert_eq!(later.sooner(at(50)).map(|left| left.form()), Some(form(50)));
        assert_eq!([19, 150].map(|start| later.sooner(at(start))), [None; 2]);
        // 10 % for 100 s, and 60 % for 100 s more: 7,000.
        let more = Some(self::later(60, 250));
        let cpu = CpuPpm::from_percent(10);
        let dip = Form { cpu, later: more, until: at(350), ..form(150) };
        let sooner = Left::new(dip, at(150), wanted).sooner(at(50)).unwrap().form();
        assert_eq!(sooner, Form { begins: at(50), cpu, later: None, until: at(750) });
    }

    proptest! {
        #[test]
        fn no_work_is_lost_and_no_deadline_missed(
            [cpu, more, spare] in [1u32..2_000_000, 0u32..2_000_000, 0u32..4_000_000],
            [before, after] in [1u64..10_000 * SECOND, 1u64..10_000 * SECOND],
            slack in 0u64..10_000 * SECOND,
            part in 0u32..=100,
            turn in 0u64..10_000 * SECOND,
        ) {
            let turned = at(0).saturating_add(Nanos::new(before));
            let until = turned.saturating_add(Nanos::new(after));
            let by_unix_nanos = until.saturating_add(Nanos::new(slack));
            let most = CpuPpm::new(cpu + more + spare);
            let wanted = Malleable::new(by_unix_nanos, most);
            let later = (more > 0).then(|| LaterCpu {
                from_unix_nanos: turned,
                cpu_ppm: CpuPpm::new(cpu + more),
            });
            let form = Form { begins: at(0), cpu: CpuPpm::new(cpu), later, until };
            let left = Left::new(form, at(0), wanted);
            let other = CpuPpm::new((u64::from(most.get()) * u64::from(part) / 100) as u32);
            let turn = LaterCpu {
                from_unix_nanos: at(0).saturating_add(Nanos::new(turn + 1)),
                cpu_ppm: most,
            };
            let forms = [
                left.with(other),
                left.slower(by_unix_nanos),
                left.with_both(other, Some(turn)),
                left.slower_until(turn, by_unix_nanos),
            ];
            let least = left.least([turn.from_unix_nanos]);
            for form in [forms[1], forms[3]].into_iter().flatten() {
                prop_assert!(least <= form.cpu, "{form:?} {least:?}");
            }
            for form in forms.into_iter().flatten() {
                prop_assert!(form.until <= by_unix_nanos && form.cpu <= most);
                prop_assert!(form.volume(at(0)) >= left.volume);
                if let Some(later) = form.later {
                    prop_assert!(form.cpu < later.cpu_ppm && later.cpu_ppm <= most);
                    prop_assert!(at(0) < later.from_unix_nanos);
                    prop_assert!(later.from_unix_nanos < form.until);
                }
            }
            let even = left.even();
            prop_assert!(even.volume(at(0)) >= left.volume && even.cpu <= form.later.map_or(form.cpu, |l| l.cpu_ppm));
        }
    }
}
