//! What an application tells of its progress.

use keeptime_model::Invalid;
use keeptime_model::units::Nanos;

/// The work that an application did between two instants of a steady clock, and the CPU time that
/// each of its nodes used meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    from: Nanos,
    to: Nanos,
    work: f64,
    used: Vec<Nanos>,
    computed: Vec<Nanos>,
}

impl Report {
    /// `work` in the application's unit (iterations, say), from `from` to `to`. `used` has an entry
    /// for each node, or none if nobody measured it.
    ///
    /// # Errors
    /// A span of nothing, or work that is no number, below zero or infinite.
    pub fn new(from: Nanos, to: Nanos, work: f64, used: &[Nanos]) -> Result<Self, Invalid> {
        if to <= from {
            return Err(Invalid::new("to", to, format!("after from ({from})")));
        }
        if !work.is_finite() || work < 0.0 {
            return Err(Invalid::new("work", work, "a number, at least 0"));
        }
        Ok(Self { from, to, work, used: used.to_vec(), computed: Vec::new() })
    }

    /// The same with other CPU times.
    #[must_use]
    pub fn with_used(self, used: &[Nanos]) -> Self {
        Self { used: used.to_vec(), ..self }
    }

    /// The same with the CPU time of each node that was not spent waiting, where somebody knows it: the
    /// program itself, or who sees its calls of the message library.
    #[must_use]
    pub fn with_computed(self, computed: &[Nanos]) -> Self {
        Self { computed: computed.to_vec(), ..self }
    }

    /// When the work began.
    pub fn from(&self) -> Nanos {
        self.from
    }

    /// When it was done.
    pub fn to(&self) -> Nanos {
        self.to
    }

    /// How much was done.
    pub fn work(&self) -> f64 {
        self.work
    }

    /// How long it took.
    pub fn seconds(&self) -> f64 {
        self.to.saturating_sub(self.from).as_secs_f64()
    }

    /// Work in a second.
    pub fn rate(&self) -> f64 {
        self.work / self.seconds()
    }

    /// CPU time of each node; empty if nobody measured it.
    pub fn used(&self) -> &[Nanos] {
        &self.used
    }

    /// CPU time of each node without waiting; empty if nobody knows it.
    pub fn computed(&self) -> &[Nanos] {
        &self.computed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_progress_is_refused() {
        let [one, two] = [1, 2].map(Nanos::from_secs);
        for work in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(Report::new(one, two, work, &[]).unwrap_err().field, "work");
        }
        // A clock that was set back.
        assert_eq!(Report::new(two, one, 1.0, &[]).unwrap_err().field, "to");
        assert_eq!(Report::new(one, two, 3.0, &[]).unwrap().rate(), 3.0);
    }
}
