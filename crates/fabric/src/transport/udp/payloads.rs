//! Payloads of a stream that are read to where they belong: the one that has begun to arrive, and the next one, where a
//! head is yet to come that says so. In a stream of long messages that one mostly is as long as the last.

use crate::frame::EAGER_MOST;
use crate::transport::assemble::Assembler;
use crate::transport::batch::{Coming, Expected, Part, Whose};
use crate::transport::{Broken, Sink};
use std::mem::MaybeUninit;

/// Payloads that are read ahead are at least this long: of shorter ones a batch has several, of which all but one are copied
/// anyhow.
const AHEAD_LEAST: usize = 16 << 10;

/// What has arrived of payloads, and room for more.
#[derive(Default)]
pub(super) struct Payloads {
    assembler: Assembler,
    /// Room for the next payload: empty, and with no room before there was a long one.
    ahead: Vec<u8>,
    /// What was read there is the payload that has begun, as its head says.
    is_adopted: bool,
}

impl Payloads {
    /// What comes next, and where it can be read to: what has begun, and the next.
    pub(super) fn room(&mut self) -> (Coming, [&mut [MaybeUninit<u8>]; 2]) {
        let between = self.assembler.before_next();
        let begun = self.assembler.missing().unwrap_or_default();
        let next = self.ahead.spare_capacity_mut();
        (Coming { begun: begun.len(), between, next: next.len() }, [begun, next])
    }

    /// What was read as `part`.
    ///
    /// # Safety
    /// It was, to the place that [`Self::room`] had for it, and nothing was fed since then.
    pub(super) unsafe fn read(&mut self, part: &Part) -> &[u8] {
        let room = match part.whose {
            Whose::Begun => self.assembler.missing().unwrap_or_default(),
            Whose::Next => self.ahead.spare_capacity_mut(),
        };
        // SAFETY: the caller has read as much to there.
        unsafe { room[part.place..][..part.range.len()].assume_init_ref() }
    }

    /// The next bytes of the stream. Returns how many frames are whole by that, which `sink` has.
    ///
    /// # Errors
    /// If they are none.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<usize, Broken> {
        self.assembler.feed(bytes, sink)
    }

    /// The same of a datagram of `batch`, of which the parts that were `expected` were read to their places.
    ///
    /// # Safety
    /// They were, to what [`Self::room`] has told, and all datagrams of the batch before were fed by this since then, and
    /// nothing else.
    ///
    /// # Errors
    /// As above.
    pub(super) unsafe fn feed_placed(
        &mut self,
        expected: Expected,
        number: usize,
        batch: &[u8],
        sink: &mut dyn Sink,
    ) -> Result<usize, Broken> {
        let datagram = expected.datagram(number, batch.len());
        let (mut at, mut frames) = (datagram.start, 0);
        for part in expected.parts_of(number, batch.len()) {
            frames += self.assembler.feed(&batch[at..part.range.start], sink)?;
            // SAFETY: as the caller says.
            frames += unsafe { self.placed(&part, sink)? };
            at = part.range.end;
        }
        Ok(frames + self.assembler.feed(&batch[at..datagram.end], sink)?)
    }

    /// Room for the next payload is as long as the one that has begun last.
    pub(super) fn expect_alike(&mut self) {
        let is_long = |length: &usize| (AHEAD_LEAST..=EAGER_MOST).contains(length);
        if let Some(length) = self.assembler.begun().filter(is_long)
            && self.ahead.capacity() != length
        {
            self.ahead = Vec::with_capacity(length);
        }
    }

    /// # Safety
    /// The part was read to its place, and everything before it was fed.
    unsafe fn placed(&mut self, part: &Part, sink: &mut dyn Sink) -> Result<usize, Broken> {
        let length = part.range.len();
        if part.whose == Whose::Next && part.place == 0 {
            // SAFETY: the caller has read so many bytes there.
            self.is_adopted = unsafe { self.assembler.adopt(&mut self.ahead, length) };
        } else if part.whose == Whose::Begun || self.is_adopted {
            // SAFETY: the same, and they follow those that were filled before.
            unsafe { self.assembler.filled(length) };
        }
        if part.whose == Whose::Begun || self.is_adopted {
            return Ok(0);
        }
        // Another head has come: what was read ahead is not what it was taken for.
        let bytes = &self.ahead.spare_capacity_mut()[part.place..][..length];
        // SAFETY: the caller has read them.
        self.assembler.feed(unsafe { bytes.assume_init_ref() }, sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HEAD, Head};
    use crate::transport::testing::{Collected, message};
    use crate::transport::udp::BEFORE;
    use proptest::prelude::*;

    /// Messages of these lengths, and the stream that they are.
    fn stream_of(lengths: &[usize]) -> (Vec<(Head, Vec<u8>)>, Vec<u8>) {
        let numbered = lengths.iter().enumerate();
        let messages: Vec<_> = numbered.map(|(at, length)| message(at as u32, *length)).collect();
        let mut stream = Vec::new();
        for (head, payload) in &messages {
            stream.extend_from_slice(&head.encode());
            stream.extend_from_slice(payload);
        }
        (messages, stream)
    }

    /// Reads `batch` as the kernel does: what is expected to be payloads' to where it belongs, and only the rest to the bytes
    /// that are returned.
    fn scatter(
        payloads: &mut Payloads,
        batch: &[u8],
        segment: usize,
    ) -> (Vec<u8>, Option<Expected>) {
        let (coming, [begun, next]) = payloads.room();
        let expected = Expected::new(segment, BEFORE, 64, coming);
        let mut bytes = batch.to_vec();
        for part in expected.into_iter().flat_map(|expected| expected.parts(batch.len())) {
            let room = match part.whose {
                Whose::Begun => &mut *begun,
                Whose::Next => &mut *next,
            };
            for (to, from) in room[part.place..].iter_mut().zip(&batch[part.range.clone()]) {
                to.write(*from);
            }
            bytes[part.range].fill(0xee);
        }
        (bytes, expected)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Batches that are as expected, and some that are not: the same frames, wherever their bytes were read to.
        #[test]
        fn frames_are_the_same_wherever_their_bytes_were_read(
            lengths in prop::collection::vec(
                prop_oneof![
                    1 => 0..200_usize, 1 => 0..=EAGER_MOST, 4 => Just(EAGER_MOST), 2 => Just(AHEAD_LEAST),
                ],
                1..12,
            ),
            segment in 600..33_000_usize,
            ways in prop::collection::vec(0..5_u8, 1..20),
        ) {
            let (messages, stream) = stream_of(&lengths);
            let (mut payloads, mut got, mut frames) = (Payloads::default(), Collected::default(), 0);
            let each = segment - BEFORE;
            let count = ((1 << 16) / segment).min(64);
            for (number, bytes) in stream.chunks(count * each).enumerate() {
                let datagrams = bytes.chunks(each);
                let batch: Vec<_> = datagrams.flat_map(|bytes| [&[0; BEFORE][..], bytes].concat()).collect();
                let (mut read, expected) = scatter(&mut payloads, &batch, segment);
                let as_expected = expected.filter(|_| ways[number % ways.len()] > 0);
                if as_expected.is_none() {
                    for part in expected.into_iter().flat_map(|expected| expected.parts(batch.len())) {
                        // SAFETY: `scatter` has written it.
                        let bytes = unsafe { payloads.read(&part) };
                        read[part.range].copy_from_slice(bytes);
                    }
                }
                for (datagram, bytes) in read.chunks(segment).enumerate() {
                    let fed = match as_expected {
                        // SAFETY: `scatter` has written all parts.
                        Some(expected) => unsafe { payloads.feed_placed(expected, datagram, &read, &mut got) },
                        None => payloads.feed(&bytes[BEFORE..], &mut got),
                    };
                    frames += fed.unwrap();
                }
                payloads.expect_alike();
            }
            prop_assert_eq!(frames, messages.len());
            prop_assert!(got.0 == messages);
        }
    }

    /// The second message is where its bytes were read, and the buffer that was meant for it is there for a third one.
    #[test]
    fn a_payload_as_long_as_the_last_is_not_copied() {
        let (messages, stream) = stream_of(&[AHEAD_LEAST; 2]);
        let (mut payloads, mut got) = (Payloads::default(), Collected::default());
        let (begun, rest) = stream.split_at(HEAD + 100);
        payloads.feed(begun, &mut got).unwrap();
        payloads.expect_alike();
        let place = payloads.ahead.as_ptr();
        let batch = [&[0; BEFORE][..], rest].concat();
        let (read, expected) = scatter(&mut payloads, &batch, batch.len());
        // SAFETY: `scatter` has written all parts.
        let fed = unsafe { payloads.feed_placed(expected.unwrap(), 0, &read, &mut got) };
        assert_eq!(fed, Ok(2));
        assert!(got.0 == messages);
        assert_eq!(got.0[1].1.as_ptr(), place);
        assert!(payloads.ahead.is_empty());
        assert_eq!(payloads.ahead.capacity(), AHEAD_LEAST);
    }
}
