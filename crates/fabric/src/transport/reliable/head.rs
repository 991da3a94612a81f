//! What a datagram says besides its bytes.
//!
//! Every datagram carries a segment of the stream, or says what has arrived, or both:
//!
//! ```text
//!  0        8          16     20       22    24
//!  | offset | received | room | ranges | zero | ranges x (start, length) | bytes
//! ```
//! `offset`: where its bytes belong. `received`: everything before it is there. `room`: so many bytes
//! beyond it may be on the way. Ranges, from `received` on, are what has arrived behind a gap.
//! All numbers are little-endian.

use crate::frame::Malformed;

/// Bytes of a datagram before its ranges.
pub const HEAD: usize = 24;
/// Most ranges in one.
pub(super) const RANGES_MOST: usize = 8;
const RANGE: usize = 8;

/// What a datagram says besides its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Where its bytes belong.
    pub offset: u64,
    /// What its sender has received.
    pub heard: Heard,
}

/// What has arrived at one end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// Everything before this.
    pub received: u64,
    /// So many bytes more may be on the way.
    pub room: u32,
    /// What has arrived behind a gap: starts and ends, in order.
    pub ranges: Vec<(u64, u64)>,
}

/// Appends the bytes of a head.
pub fn encode(offset: u64, heard: &Heard, bytes: &mut Vec<u8>) {
    let Heard { received, room, ranges } = heard;
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&received.to_le_bytes());
    bytes.extend_from_slice(&room.to_le_bytes());
    let count = ranges.len().min(RANGES_MOST);
    bytes.extend_from_slice(&(count as u16).to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    for (start, end) in &ranges[..count] {
        let word = |value: u64| (value as u32).to_le_bytes();
        bytes.extend_from_slice(&word(start.wrapping_sub(*received)));
        bytes.extend_from_slice(&word(end.wrapping_sub(*start)));
    }
}

impl Head {
    /// The head of a datagram, and how long it is.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let head: &[u8; HEAD] = bytes.first_chunk().ok_or(Malformed::Unknown("a datagram"))?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let short = |bytes: &[u8], at: usize| {
            u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
        };
        let count = usize::from(u16::from_le_bytes([head[20], head[21]]));
        let length = HEAD + count * RANGE;
        if count > RANGES_MOST || head[22..] != [0; 2] || bytes.len() < length {
            return Err(Malformed::Unknown("a datagram"));
        }
        let received = long(8);
        let ranges = bytes[HEAD..length].chunks_exact(RANGE).map(|range| {
            let start = received.saturating_add(u64::from(short(range, 0)));
            (start, start.saturating_add(u64::from(short(range, 4))))
        });
        let heard = Heard { received, room: short(head, 16), ranges: ranges.collect() };
        Ok((Self { offset: long(0), heard }, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Any bytes as a datagram, mostly with as many ranges as one may have: an error, or a head whose ranges are all there.
        #[test]
        fn any_bytes_are_read(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            count in 0..=RANGES_MOST + 1, honest in prop::bool::weighted(0.8),
        ) {
            if honest && bytes.len() >= HEAD {
                bytes[20..HEAD].copy_from_slice(&[count as u8, 0, 0, 0]);
                let is_head = count <= RANGES_MOST && bytes.len() >= HEAD + count * RANGE;
                prop_assert_eq!(Head::decode(&bytes).is_ok(), is_head);
            }
            if let Ok((head, length)) = Head::decode(&bytes) {
                prop_assert_eq!(length, HEAD + head.heard.ranges.len() * RANGE);
                prop_assert!(head.heard.ranges.iter().all(|(start, end)| start <= end));
            }
        }

        #[test]
        fn heads_are_read_as_they_were_written(
            offset in any::<u64>(), received in 0..1_u64 << 60, room in any::<u32>(),
            gaps in prop::collection::vec((1..1000_u64, 1..1000_u64), 0..RANGES_MOST),
        ) {
            let mut end = received;
            let ranges = gaps.into_iter().map(|(gap, length)| {
                let start = end + gap;
                end = start + length;
                (start, end)
            });
            let heard = Heard { received, room, ranges: ranges.collect() };
            let head = Head { offset, heard };
            let mut bytes = Vec::new();
            encode(offset, &head.heard, &mut bytes);
            prop_assert_eq!(Head::decode(&bytes), Ok((head, bytes.len())));
        }
    }
}
