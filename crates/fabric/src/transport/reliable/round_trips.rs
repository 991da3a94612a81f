//! How long a word of the other end is waited for, by what round trips took.

/// Least and most time without a word before something is sent again. The least is longer than who
/// receives waits for its turn where programs share processors, most of the time.
const AGAIN_LEAST: u64 = 10_000_000;
const AGAIN_MOST: u64 = 500_000_000;
/// Before anything is known of round trips.
const AGAIN_FIRST: u64 = 50_000_000;

/// The round trips of segments.
#[derive(Debug, Default)]
pub(super) struct RoundTrips(Option<Measured>);

/// In nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Measured {
    smooth: u64,
    variation: u64,
}

impl RoundTrips {
    /// One more took so many nanoseconds.
    pub(super) fn add(&mut self, time: u64) {
        self.0 = Some(match self.0 {
            None => Measured { smooth: time, variation: time / 2 },
            Some(Measured { smooth, variation }) => Measured {
                smooth: (7 * smooth + time) / 8,
                variation: (3 * variation + smooth.abs_diff(time)) / 4,
            },
        });
    }

    /// Whether a word that came so many nanoseconds after something was sent again is too soon to be of that: then it is of
    /// what was sent first.
    pub(super) fn is_too_soon(&self, time: u64) -> bool {
        self.0.is_some_and(|measured| time < measured.smooth / 2)
    }

    /// Nanoseconds without a word after which something is sent again: twice as many after each of the `silent` times
    /// in a row that it was.
    pub(super) fn again_after(&self, silent: u32) -> u64 {
        let measured = |trip: Measured| (trip.smooth + 4 * trip.variation).max(AGAIN_LEAST);
        let once = self.0.map_or(AGAIN_FIRST, measured);
        (once << silent.min(16)).min(AGAIN_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_what_was_measured_within_its_bounds() {
        let mut trips = RoundTrips::default();
        assert_eq!(trips.again_after(0), AGAIN_FIRST);
        assert!(!trips.is_too_soon(0), "nothing is known");
        trips.add(1_000);
        assert_eq!(trips.again_after(0), AGAIN_LEAST);
        trips.add(80_000_000);
        // An eighth of the way there, and a variation of a quarter.
        assert_eq!(trips.again_after(0), 10_000_875 + 4 * 20_000_125);
        assert_eq!(trips.again_after(1), 2 * trips.again_after(0));
        assert_eq!(trips.again_after(u32::MAX), AGAIN_MOST);
        assert_eq!([5_000_436, 5_000_437].map(|time| trips.is_too_soon(time)), [true, false]);
    }
}
