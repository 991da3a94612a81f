//! Which bytes of a batch of datagrams are read at once to where they belong (pure): those of a payload that has begun
//! to arrive, if its datagrams are as long as those before. They are copied once, by the kernel; all others twice.

use std::ops::Range;

/// Payload of a datagram below which copying it costs less than telling the kernel where it belongs.
const EACH_LEAST: usize = 512;

/// What is expected of a batch: datagrams of one length, whose bytes go on with a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    segment: usize,
    each: usize,
    placed: usize,
}

impl Expected {
    /// At most `count` datagrams of `segment` bytes, of which the first `head` are not the payload's, where `missing`
    /// bytes of it are missing. None if that is not worth it.
    pub fn new(segment: usize, head: usize, count: usize, missing: usize) -> Option<Self> {
        let each = segment.checked_sub(head).filter(|each| *each >= EACH_LEAST)?;
        let placed = missing.min(count * each);
        (placed > 0).then_some(Self { segment, each, placed })
    }

    /// The payload's parts by where they stand in a batch of `bytes`, in order: one of each datagram, from the first on.
    pub fn parts(self, bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let count = self.placed.div_ceil(self.each);
        (0..count).map(move |number| self.part(number, bytes)).take_while(|part| !part.is_empty())
    }

    /// The part of datagram `number`, which has one.
    pub fn part(self, number: usize, bytes: usize) -> Range<usize> {
        let Self { segment, each, placed } = self;
        let start = number * segment + (segment - each);
        start..(start + each.min(placed - number * each)).min(bytes)
    }

    /// Where in the payload the part of datagram `number` belongs.
    pub fn place(self, number: usize) -> usize {
        number * self.each
    }

    /// Whether a batch of `bytes` in datagrams of `segment` has these parts where they were expected.
    pub fn is_so(self, bytes: usize, segment: usize) -> bool {
        segment == self.segment || bytes <= self.segment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: usize = 32;

    proptest! {
        /// The parts of a batch that is as expected are its datagrams without their heads, as far as bytes are missing.
        #[test]
        fn parts_are_what_follows_the_heads(
            segment in 544..9_000_usize, count in 1..64_usize, missing in 1..70_000_usize, bytes in 0..70_000_usize,
        ) {
            let expected = Expected::new(segment, HEAD, count, missing).unwrap();
            let mut of_payload = 0;
            for (number, part) in expected.parts(bytes).enumerate() {
                prop_assert_eq!(part.start, number * segment + HEAD);
                prop_assert!(part.end <= bytes.min((number + 1) * segment));
                prop_assert_eq!(expected.place(number), of_payload);
                of_payload += part.len();
            }
            prop_assert!(of_payload <= missing && of_payload <= bytes);
            if bytes >= count * segment {
                prop_assert_eq!(of_payload, missing.min(count * (segment - HEAD)));
            }
        }
    }

    #[test]
    fn short_datagrams_and_whole_payloads_are_not_expected() {
        assert_eq!(Expected::new(0, HEAD, 64, 1000), None);
        assert_eq!(Expected::new(500, HEAD, 64, 1000), None);
        assert_eq!(Expected::new(8000, HEAD, 64, 0), None);
    }

    #[test]
    fn one_datagram_may_be_shorter_and_several_may_not() {
        let expected = Expected::new(1000, HEAD, 64, 5000).unwrap();
        assert!(
            expected.is_so(700, 700) && expected.is_so(1000, 1000) && expected.is_so(2500, 1000)
        );
        assert!(!expected.is_so(1400, 700) && !expected.is_so(1400, 1400));
    }
}
