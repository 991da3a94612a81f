//! Which bytes of a batch of datagrams are read at once to where they belong (pure): those of a payload that has begun
//! to arrive, and of the next one, if its datagrams are as long as those before. They are copied once, by the kernel; all
//! others twice.

use std::ops::Range;

/// Payload of a datagram below which copying it costs less than telling the kernel where it belongs.
const EACH_LEAST: usize = 512;

/// What is expected to come next in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coming {
    /// Bytes that are missing of the payload that has begun.
    pub begun: usize,
    /// Bytes between that and the next payload.
    pub between: usize,
    /// Bytes of that one, as far as there is room for them.
    pub next: usize,
}

/// What is expected of a batch: datagrams of one length, whose bytes go on with payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    segment: usize,
    each: usize,
    count: usize,
    coming: Coming,
}

/// To which payload bytes belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The one that has begun.
    Begun,
    /// The one after it.
    Next,
}

/// Bytes of a batch that belong to a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// In which datagram.
    pub datagram: usize,
    /// Where in the batch.
    pub range: Range<usize>,
    /// To which payload.
    pub whose: Whose,
    /// Where in what is missing of that.
    pub place: usize,
}

impl Expected {
    /// At most `count` datagrams of `segment` bytes, of which the first `head` are not the stream's. None if that is not
    /// worth it.
    pub fn new(segment: usize, head: usize, count: usize, coming: Coming) -> Option<Self> {
        let each = segment.checked_sub(head).filter(|each| *each >= EACH_LEAST)?;
        let Coming { begun, between, next } = coming;
        let end = if next == 0 { begun } else { begun + between + next };
        let count = end.div_ceil(each).min(count);
        (count > 0).then_some(Self { segment, each, count, coming })
    }

    /// The payloads' parts by where they stand in a batch of `bytes`, in order.
    pub fn parts(self, bytes: usize) -> impl Iterator<Item = Part> {
        (0..self.count).flat_map(move |datagram| self.parts_of(datagram, bytes))
    }

    /// Those of one datagram.
    pub fn parts_of(self, datagram: usize, bytes: usize) -> impl Iterator<Item = Part> {
        let Self { segment, each, coming: Coming { begun, between, next }, .. } = self;
        // Of the stream, and of the batch.
        let (first, start) = (datagram * each, datagram * segment + (segment - each));
        let behind = begun + between;
        let payloads = [(Whose::Begun, 0..begun), (Whose::Next, behind..behind + next)];
        payloads.into_iter().filter_map(move |(whose, payload)| {
            let from = payload.start.max(first);
            let to = payload.end.min(first + each);
            let in_batch = |at: usize| (start + (at - first)).min(bytes);
            let range = (from < to).then(|| in_batch(from)..in_batch(to))?;
            let place = from - payload.start;
            (!range.is_empty()).then_some(Part { datagram, range, whose, place })
        })
    }

    /// The datagrams with such parts, of a batch that is as expected.
    pub fn datagrams(self, batch: &[u8]) -> impl Iterator<Item = &[u8]> {
        batch.chunks(self.segment).take(self.count)
    }

    /// Where the bytes of one of them are in a batch of `bytes`, behind its head.
    pub fn datagram(self, number: usize, bytes: usize) -> Range<usize> {
        let Self { segment, each, .. } = self;
        number * segment + (segment - each)..((number + 1) * segment).min(bytes)
    }

    /// Whether a batch of `bytes` in datagrams of `segment` has these parts where they were expected: all of them are as long
    /// as expected, or there is only one.
    pub fn is_so(self, bytes: usize, segment: usize) -> bool {
        segment == self.segment || bytes <= segment && bytes <= self.segment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: usize = 32;

    fn coming(begun: usize, between: usize, next: usize) -> Coming {
        Coming { begun, between, next }
    }

    proptest! {
        /// Where the parts of a batch that is as expected belong is where its datagrams without their heads have them,
        /// and none of a payload is missing up to the last that has arrived.
        #[test]
        fn parts_are_where_the_stream_has_them(
            segment in 544..40_000_usize, count in 1..64_usize, begun in 0..70_000_usize,
            between in 1..100_usize, next in 0..70_000_usize, bytes in 0..70_000_usize,
        ) {
            let each = segment - HEAD;
            let Some(expected) = Expected::new(segment, HEAD, count, coming(begun, between, next)) else {
                prop_assert!(begun == 0 && next == 0);
                return Ok(());
            };
            // Where in the stream a byte of the batch is.
            let of_stream = |at: usize| at / segment * each + (at % segment).saturating_sub(HEAD);
            let (mut end, mut known) = (0, [0, 0]);
            for part in expected.parts(bytes) {
                prop_assert!(part.range.start >= end && part.range.end <= bytes, "in order");
                prop_assert!(part.range.start % segment >= HEAD);
                prop_assert_eq!(part.datagram, part.range.start / segment);
                prop_assert_eq!(part.datagram, (part.range.end - 1) / segment);
                let (start, known) = match part.whose {
                    Whose::Begun => (0, &mut known[0]),
                    Whose::Next => (begun + between, &mut known[1]),
                };
                prop_assert_eq!(start + part.place, of_stream(part.range.start));
                prop_assert_eq!(part.place, *known, "nothing is left out");
                *known += part.range.len();
                end = part.range.end;
            }
            prop_assert!(known[0] <= begun && known[1] <= next);
            if bytes >= count * segment {
                let arrived = count * each;
                prop_assert_eq!(known[0], begun.min(arrived));
                prop_assert_eq!(known[1], next.min(arrived.saturating_sub(begun + between)));
            }
        }
    }

    #[test]
    fn short_datagrams_and_whole_payloads_are_not_expected() {
        assert_eq!(Expected::new(0, HEAD, 64, coming(1000, 48, 1000)), None);
        assert_eq!(Expected::new(500, HEAD, 64, coming(1000, 48, 0)), None);
        assert_eq!(Expected::new(8000, HEAD, 64, coming(0, 48, 0)), None);
    }

    /// The end of one payload, a head that is cut in two, and the next payload.
    #[test]
    fn a_head_between_two_payloads_is_left_out() {
        let expected = Expected::new(1032, HEAD, 64, coming(1980, 48, 500)).unwrap();
        let part = |datagram, range, whose, place| Part { datagram, range, whose, place };
        let parts: Vec<_> = expected.parts(10_000).collect();
        let wanted = [
            part(0, 32..1032, Whose::Begun, 0),
            part(1, 1064..2044, Whose::Begun, 1000),
            part(2, 2124..2624, Whose::Next, 0),
        ];
        assert_eq!(parts, wanted);
        assert_eq!(expected.datagram(2, 10_000), 2096..3096);
        assert_eq!(expected.datagram(2, 2_500), 2096..2_500);
        assert_eq!(expected.datagrams(&[0; 10_000]).count(), 3);
    }

    #[test]
    fn one_datagram_may_be_shorter_and_several_may_not() {
        let expected = Expected::new(1000, HEAD, 64, coming(5000, 48, 0)).unwrap();
        assert!(
            expected.is_so(700, 700) && expected.is_so(1000, 1000) && expected.is_so(2500, 1000)
        );
        assert!(!expected.is_so(1400, 700) && !expected.is_so(1400, 1400));
        assert!(!expected.is_so(900, 300), "three short ones");
    }
}
