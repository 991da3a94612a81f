//! When something is reserved ([`Span`]), and when something that is sought may start ([`When`]).

use keeptime_model::Invalid;
use keeptime_model::units::{Nanos, WallTime};

/// The last instant of [`WallTime`], in the year 2554. It stands for "never": it cannot be
/// reserved itself, and what lasts until then does not end.
pub(crate) const NEVER: u64 = u64::MAX;

/// A half-open span of time `[from, to)`. One that ends when another starts does not overlap it.
///
/// An empty one (`from == to`) is allowed: it fits everywhere and reserves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    from: WallTime,
    to: WallTime,
}

impl Span {
    /// From `from` until just before `to`.
    ///
    /// # Errors
    /// If `to` is before `from`.
    pub fn new(from: WallTime, to: WallTime) -> Result<Self, Invalid> {
        if from <= to {
            return Ok(Self { from, to });
        }
        let least = from.unix_nanos();
        Err(Invalid::new("to", to.unix_nanos(), format!("at least {least}, where the span starts")))
    }

    /// From `from` on, without an end.
    pub const fn since(from: WallTime) -> Self {
        Self { from, to: WallTime::from_unix_nanos(NEVER) }
    }

    /// From `from` for `duration`; without an end if that goes beyond the year 2554.
    pub fn lasting(from: WallTime, duration: Nanos) -> Self {
        Self { from, to: from.saturating_add(duration) }
    }

    /// The first instant.
    pub const fn from(self) -> WallTime {
        self.from
    }

    /// The first instant that is not part of it any more; nothing if it never ends.
    pub fn to(self) -> Option<WallTime> {
        (self.to.unix_nanos() != NEVER).then_some(self.to)
    }

    /// Whether no instant is part of it.
    pub fn is_empty(self) -> bool {
        self.from == self.to
    }

    /// Whether some instant is part of both.
    pub fn overlaps(self, other: Self) -> bool {
        self.from.max(other.from) < self.to.min(other.to)
    }

    /// Whether all of `other` is in it.
    pub fn contains(self, other: Self) -> bool {
        self.from <= other.from && other.to <= self.to
    }

    /// What of it is before `at`.
    #[must_use]
    pub fn before(self, at: WallTime) -> Self {
        Self { from: self.from.min(at), to: self.to.min(at) }
    }

    /// What of it is not before `at`.
    #[must_use]
    pub fn after(self, at: WallTime) -> Self {
        Self { from: self.from.max(at), to: self.to.max(at) }
    }

    /// The same as plain numbers; nothing if it is empty.
    pub(crate) fn stretch(self) -> Option<Stretch> {
        let stretch = Stretch { from: self.from.unix_nanos(), to: self.to.unix_nanos() };
        (stretch.from < stretch.to).then_some(stretch)
    }
}

/// When something may start and how long it lasts: what a search for the earliest start is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct When {
    /// The first instant at which it may start.
    pub after: WallTime,
    /// The last instant at which it may start.
    pub latest: WallTime,
    /// How long it lasts. What goes beyond the year 2554 lasts for ever.
    pub duration: Nanos,
}

impl When {
    /// At `after` or any time later, for `duration`.
    pub const fn after(after: WallTime, duration: Nanos) -> Self {
        Self { after, latest: WallTime::from_unix_nanos(NEVER), duration }
    }

    /// The same, started at `latest` at the latest.
    #[must_use]
    pub const fn until(self, latest: WallTime) -> Self {
        Self { latest, ..self }
    }
}

/// A span that is not empty, as the tree wants it: `from < to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub from: u64,
    pub to: u64,
}

impl From<Stretch> for Span {
    fn from(stretch: Stretch) -> Self {
        Self {
            from: WallTime::from_unix_nanos(stretch.from),
            to: WallTime::from_unix_nanos(stretch.to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> WallTime {
        WallTime::from_unix_nanos(nanos)
    }

    #[test]
    fn a_span_does_not_end_before_it_starts() {
        let error = Span::new(at(5), at(4)).unwrap_err();
        assert_eq!((error.field.as_str(), error.value.as_deref()), ("to", Some("4")));
        assert!(Span::new(at(5), at(5)).unwrap().is_empty());
    }

    #[test]
    fn what_lasts_beyond_time_has_no_end() {
        assert_eq!(Span::lasting(at(5), Nanos::new(u64::MAX)), Span::since(at(5)));
        assert_eq!(Span::since(at(5)).to(), None);
        assert_eq!(Span::lasting(at(5), Nanos::new(2)).to(), Some(at(7)));
    }

    #[test]
    fn spans_that_touch_do_not_overlap() {
        let span = |from, to| Span::new(at(from), at(to)).unwrap();
        assert!(!span(1, 3).overlaps(span(3, 5)));
        assert!(span(1, 4).overlaps(span(3, 5)));
        assert!(!span(2, 2).overlaps(span(1, 3)));
    }

    #[test]
    fn what_never_ends_holds_all_that_begins_later() {
        let (forever, short) = (Span::since(at(3)), Span::new(at(4), at(6)).unwrap());
        assert!(forever.contains(short) && forever.contains(forever) && !short.contains(forever));
        assert!(!forever.contains(Span::since(at(2))));
    }
    #[test]
    fn a_span_is_cut_in_two() {
        let of = |from, to| Span::new(at(from), at(to)).unwrap();
        let cut = |by| (of(3, 7).before(at(by)), of(3, 7).after(at(by)));
        assert_eq!(cut(5), (of(3, 5), of(5, 7)));
        assert!(cut(2).0.is_empty() && cut(2).1 == of(3, 7));
        assert!(cut(9).0 == of(3, 7) && cut(9).1.is_empty());
        assert!(cut(7).0 == of(3, 7) && cut(7).1.is_empty() && !cut(7).0.is_empty());
        assert_eq!(Span::since(at(3)).after(at(5)), Span::since(at(5)));
    }
}
