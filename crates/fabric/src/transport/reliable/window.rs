//! How much may be on the way, by what is lost of it.

use super::KEPT_MOST;

/// What may be on the way at first, in segments: as TCP.
const FIRST: u64 = 10;

/// Bytes that may be on the way.
#[derive(Debug)]
pub(super) struct Window {
    bytes: u64,
    slow_start_until: u64,
    /// Both as they were before they were last made less.
    before_loss: Option<(u64, u64)>,
    /// It shrinks once for all that is lost of what was sent up to this number; the first one is 1.
    recovery_until: u64,
}

impl Window {
    /// For segments of so many bytes.
    pub(super) fn new(segment: u64) -> Self {
        let bytes = FIRST * segment;
        Self { bytes, slow_start_until: u64::MAX, before_loss: None, recovery_until: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Segments have so many bytes from now on.
    pub(super) fn set_segment(&mut self, segment: u64) {
        self.bytes = self.bytes.max(FIRST * segment);
    }

    /// So many bytes have arrived. More may be on the way: twice as much each round trip at first, one segment more
    /// later.
    pub(super) fn widen(&mut self, arrived: u64, segment: u64) {
        let more = if self.bytes < self.slow_start_until {
            arrived
        } else {
            (arrived * segment / self.bytes).max(1)
        };
        self.bytes = (self.bytes + more).min(KEPT_MOST as u64);
    }

    /// Segments were overtaken, the newest of which was sent as number `newest`; the last one of all as number `last`.
    pub(super) fn overtaken(&mut self, newest: u64, last: u64, segment: u64) {
        if newest > self.recovery_until {
            self.recovery_until = last;
            self.before_loss = Some((self.bytes, self.slow_start_until));
            self.bytes = (self.bytes * 7 / 10).max(2 * segment);
            self.slow_start_until = self.bytes;
        }
    }

    /// Nothing was heard for too long, `silent` times in a row; the last segment was sent as number `last`.
    pub(super) fn silence(&mut self, silent: u32, last: u64, segment: u64) {
        // Of a row of silences the first one counts.
        if silent == 1 {
            self.before_loss = Some((self.bytes, self.slow_start_until));
            self.slow_start_until = (self.bytes / 2).max(2 * segment);
        }
        self.bytes = segment;
        self.recovery_until = last;
    }

    /// What was taken for lost was only late: what was made less by that is made good.
    pub(super) fn make_good(&mut self) {
        if let Some((bytes, slow_start_until)) = self.before_loss.take() {
            self.bytes = self.bytes.max(bytes);
            self.slow_start_until = self.slow_start_until.max(slow_start_until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 100;

    #[test]
    fn it_doubles_until_something_is_lost_and_grows_by_a_segment_then() {
        let mut window = Window::new(SEGMENT);
        window.widen(window.bytes(), SEGMENT);
        assert_eq!(window.bytes(), 2_000);
        window.overtaken(5, 20, SEGMENT);
        assert_eq!(window.bytes(), 1_400);
        window.widen(1_400, SEGMENT);
        assert_eq!(window.bytes(), 1_500);
        window.widen(u64::from(u32::MAX), SEGMENT);
        assert_eq!(window.bytes(), KEPT_MOST as u64, "bounded");
    }

    /// Up to number 20 all had been sent when the first loss was seen.
    #[test]
    fn what_was_lost_at_once_makes_it_less_once() {
        let mut window = Window::new(SEGMENT);
        window.overtaken(5, 20, SEGMENT);
        window.overtaken(20, 25, SEGMENT);
        assert_eq!(window.bytes(), 700);
        window.overtaken(21, 30, SEGMENT);
        assert_eq!(window.bytes(), 490);
    }

    #[test]
    fn what_was_only_late_is_made_good_once() {
        let mut window = Window::new(SEGMENT);
        window.silence(1, 10, SEGMENT);
        window.silence(2, 11, SEGMENT);
        assert_eq!(window.bytes(), SEGMENT);
        window.make_good();
        assert_eq!(window.bytes(), 1_000);
        window.silence(2, 12, SEGMENT);
        window.make_good();
        assert_eq!(window.bytes(), SEGMENT, "nothing was remembered");
    }
}
