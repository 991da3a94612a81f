//! How many nodes are free from when on, by what running jobs requested and what is planned.

use keeptime_model::units::Nanos;

/// A step function of time: from each instant on, until the next, so many nodes are free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile(Vec<(Nanos, u32)>);

impl Profile {
    /// So many are `free` at `now`, and more when each of `ends` has come.
    pub fn new(now: Nanos, free: u32, ends: impl Iterator<Item = (Nanos, u32)>) -> Self {
        let mut ends: Vec<_> = ends.collect();
        ends.sort_unstable();
        let mut steps = vec![(now, free)];
        for (at, nodes) in ends {
            let (last, free) = steps[steps.len() - 1];
            if at <= last {
                let end = steps.len() - 1;
                steps[end].1 += nodes;
            } else {
                steps.push((at, free + nodes));
            }
        }
        Self(steps)
    }

    /// The earliest instant, `not_before` or later, from which `nodes` are free for `length`; nothing if so many never
    /// are.
    ///
    /// Cost: `O(steps)`.
    pub fn earliest(&self, not_before: Nanos, nodes: u32, length: Nanos) -> Option<Nanos> {
        let mut since: Option<Nanos> = None;
        for (number, (at, free)) in self.0.iter().enumerate() {
            if self.0.get(number + 1).is_some_and(|(next, _)| *next <= not_before) {
                continue;
            }
            if since.is_some_and(|since| *at >= since.saturating_add(length)) {
                break;
            }
            since = if *free < nodes { None } else { since.or(Some(*at.max(&not_before))) };
        }
        since
    }

    /// Nobody else has `nodes` from `from` on, for `length`. So many must be free then.
    ///
    /// Cost: `O(steps)`.
    pub fn take(&mut self, from: Nanos, length: Nanos, nodes: u32) {
        let first = self.step_at(from);
        let until = self.step_at(from.saturating_add(length));
        for step in &mut self.0[first..until] {
            step.1 -= nodes;
        }
    }

    /// The step that begins just then, made if there is none.
    fn step_at(&mut self, at: Nanos) -> usize {
        let after = self.0.partition_point(|(begin, _)| *begin < at);
        if self.0.get(after).is_none_or(|(begin, _)| *begin != at) {
            let free = after.checked_sub(1).map_or(0, |before| self.0[before].1);
            self.0.insert(after, (at, free));
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    #[test]
    fn what_is_free_long_enough_is_found() {
        let mut profile = Profile::new(at(10), 2, [(at(20), 3), (at(15), 1)].into_iter());
        assert_eq!(profile.earliest(at(0), 2, at(100)), Some(at(10)));
        assert_eq!(profile.earliest(at(0), 4, at(1)), Some(at(20)));
        assert_eq!(profile.earliest(at(0), 7, at(1)), None);
        profile.take(at(20), at(5), 6);
        assert_eq!(profile.earliest(at(0), 1, at(10)), Some(at(10)));
        assert_eq!(profile.earliest(at(0), 1, at(11)), Some(at(25)));
    }

    proptest! {
        // Compared with one counter for each second.
        #[test]
        fn as_counted_second_by_second(
            free in 0u32..5,
            ends in prop::collection::vec((1u64..20, 1u32..5), 0..6),
            jobs in prop::collection::vec((1u32..8, 1u64..15, 0usize..30), 0..12),
        ) {
            let mut profile = Profile::new(at(0), free, ends.iter().map(|(end, n)| (at(*end), *n)));
            let mut seconds = [free; 400];
            for (end, nodes) in &ends {
                seconds[*end as usize..].iter_mut().for_each(|free| *free += nodes);
            }
            for (nodes, length, not_before) in jobs {
                let fits = |from: usize| seconds[from..from + length as usize].iter().all(|free| *free >= nodes);
                let expected = (not_before..380).find(|from| fits(*from));
                let found = profile.earliest(at(not_before as u64), nodes, at(length));
                prop_assert_eq!(found, expected.map(|s| at(s as u64)));
                if let Some(from) = expected {
                    profile.take(at(from as u64), at(length), nodes);
                    seconds[from..from + length as usize].iter_mut().for_each(|free| *free -= nodes);
                }
            }
        }
    }
}
