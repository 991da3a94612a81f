//! What messages cost on the wire (pure arithmetic, all of it rounded up: demand).
//!
//! ```text
//!  message   [ MPI's header | payload ........................................ ]
//!  segments  [ 1,448 bytes of that ][ 1,448 bytes ][ 1,448 bytes ][ the rest   ]
//!  on the wire: 66 bytes more for each: Ethernet 14, IPv4 20, TCP 20, time stamps 12
//! ```

use keeptime_model::units::{BitsPerSecond, Bytes, Nanos};

/// Of the stream, in one Ethernet frame of 1,514 bytes. Greater frames cost less than is reserved.
pub const SEGMENT_BYTES: u64 = 1_448;
/// Headers of one segment, as traffic control and policers count them.
pub const SEGMENT_HEADER_BYTES: u64 = 66;
/// What an MPI library puts before a message, acknowledgements of a rendezvous included: at most 64
/// bytes in Open MPI's ob1 and in MPICH over UCX.
pub const MESSAGE_HEADER_BYTES: u64 = 64;
/// Messages of unknown size are taken for such that fill one segment.
pub const MESSAGE_BYTES_UNKNOWN: Bytes = Bytes::new(SEGMENT_BYTES - MESSAGE_HEADER_BYTES);

/// Retransmissions, window probes and clocks that differ.
const HEADROOM_PERCENT: u128 = 1;
/// What a kernel that paces hands out at once: a millisecond of the rate, two frames at least
/// (`tcp_tso_autosize`). Twice that: it makes up for half a turn that came late.
const CHUNK_SPAN: Nanos = Nanos::from_millis(1);
const CHUNK_BYTES_MIN: u64 = 2 * (SEGMENT_BYTES + SEGMENT_HEADER_BYTES);
const CHUNKS: u64 = 2;

/// Bytes of the TCP stream for a message.
pub fn stream_bytes(message: Bytes) -> u128 {
    u128::from(message.get()) + u128::from(MESSAGE_HEADER_BYTES)
}

/// Bytes on the wire for a message.
pub fn wire_bytes(message: Bytes) -> u128 {
    let stream = stream_bytes(message);
    stream + stream.div_ceil(u128::from(SEGMENT_BYTES)) * u128::from(SEGMENT_HEADER_BYTES)
}

/// What must be reserved so that `payload` arrives in messages of `message` bytes; nothing if that
/// is more than can be written down.
pub fn wire_rate(payload: BitsPerSecond, message: Bytes) -> Option<BitsPerSecond> {
    scaled(payload, wire_bytes(known(message)), known(message))
}

/// How fast TCP may hand out its stream so that `payload` arrives: what is paced to this conforms to
/// [`wire_rate`].
pub fn pace(payload: BitsPerSecond, message: Bytes) -> Option<BitsPerSecond> {
    scaled(payload, stream_bytes(known(message)), known(message))
}

/// What of a rate on the wire is the TCP stream, when segments are full; rounded down (supply).
pub fn stream_share(wire: BitsPerSecond) -> BitsPerSecond {
    let frame = u128::from(SEGMENT_BYTES + SEGMENT_HEADER_BYTES);
    let stream = u128::from(wire.get()) * u128::from(SEGMENT_BYTES) / frame;
    // Less than what it is a share of.
    BitsPerSecond::new(stream as u64)
}

/// Token bucket depth on the way of a flow of this rate on the wire, from where nothing is dropped:
/// for a sender that paces what the kernel hands out at once, for another a message at line speed.
/// (Linux does not pace the first ten segments of a connection; MPI libraries send as many when they
/// start.)
pub fn depth(wire: BitsPerSecond, message: Bytes, is_paced: bool) -> Bytes {
    let chunk = wire.bytes_in_floor(CHUNK_SPAN).get().max(CHUNK_BYTES_MIN);
    let paced = chunk.saturating_mul(CHUNKS);
    if is_paced {
        return Bytes::new(paced);
    }
    let whole = u64::try_from(wire_bytes(known(message))).unwrap_or(u64::MAX);
    Bytes::new(whole.max(paced))
}

fn known(message: Bytes) -> Bytes {
    if message == Bytes::new(0) { MESSAGE_BYTES_UNKNOWN } else { message }
}

/// `payload * bytes / message`, with headroom.
fn scaled(payload: BitsPerSecond, bytes: u128, message: Bytes) -> Option<BitsPerSecond> {
    let scaled =
        u128::from(payload.get()).checked_mul(bytes)?.checked_mul(100 + HEADROOM_PERCENT)?;
    let rate = scaled.div_ceil(u128::from(message.get()) * 100);
    u64::try_from(rate).ok().map(BitsPerSecond::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn greater_messages_cost_less() {
        let ratio = |bytes| {
            let payload = BitsPerSecond::from_mbit(100);
            wire_rate(payload, Bytes::new(bytes)).unwrap().as_mbit_f64() / 100.0
        };
        assert!((1.055..1.057).contains(&ratio(1 << 20)), "{}", ratio(1 << 20));
        assert!((1.075..1.077).contains(&ratio(5_000)), "{}", ratio(5_000));
        assert!((17.4..17.5).contains(&ratio(8)), "{}", ratio(8));
        assert_eq!(ratio(0), ratio(MESSAGE_BYTES_UNKNOWN.get()));
    }

    #[test]
    fn more_than_can_be_written_down_is_nothing() {
        assert_eq!(wire_rate(BitsPerSecond::new(u64::MAX), Bytes::new(1)), None);
    }

    /// Segments of one message after the other, with their headers, counted one by one.
    fn sent(messages: u64, message: u64) -> u64 {
        let mut wire = 0;
        for _ in 0..messages {
            let mut left = message + MESSAGE_HEADER_BYTES;
            while left > 0 {
                let segment = left.min(SEGMENT_BYTES);
                wire += segment + SEGMENT_HEADER_BYTES;
                left -= segment;
            }
        }
        wire
    }

    proptest! {
        // What is reserved for a second carries every message of that second, and no more than the
        // headroom is idle.
        #[test]
        fn the_reservation_carries_the_payload(messages in 1u64..200, message in 1u64..100_000) {
            let payload = BitsPerSecond::new(messages * message * 8);
            let needed = sent(messages, message) as f64;
            let reserved = wire_rate(payload, Bytes::new(message)).unwrap().get() as f64 / 8.0;
            prop_assert!(reserved >= needed);
            prop_assert!(reserved <= needed * 1.011 + 1.0);
        }

        // A sender that paces its stream to `pace`, in the chunks that kernels hand out, never finds
        // the token bucket empty: segments are full, but for the last of each message.
        #[test]
        fn what_is_paced_conforms(kbit in 100u64..200_000, message in 2_000u64..2_000_000) {
            let payload = BitsPerSecond::new(kbit * 1_000);
            let size = Bytes::new(message);
            let (wire, pace) = (wire_rate(payload, size).unwrap(), pace(payload, size).unwrap());
            let depth = depth(wire, size, true).get() as f64;
            let segments = pace.bytes_in_floor(Nanos::from_millis(1)).get() / SEGMENT_BYTES;
            let chunk = segments.max(2) * SEGMENT_BYTES;
            let (mut tokens, mut time) = (depth, 0.0);
            let mut left = stream_bytes(size) as f64;
            while left > 0.0 {
                let burst = left.min(chunk as f64);
                let segments = (burst / SEGMENT_BYTES as f64).ceil();
                tokens -= burst + segments * SEGMENT_HEADER_BYTES as f64;
                prop_assert!(tokens >= 0.0, "{tokens} after {time} s");
                let wait = burst * 8.0 / pace.get() as f64;
                tokens = depth.min(tokens + wait * wire.get() as f64 / 8.0);
                (time, left) = (time + wait, left - burst);
            }
        }

        #[test]
        fn without_pacing_a_whole_message_passes(kbit in 1u64..1_000_000, message: u32) {
            let size = Bytes::new(message.into());
            let deep = depth(BitsPerSecond::new(kbit * 1_000), size, false).get();
            prop_assert!(message == 0 || u128::from(deep) >= wire_bytes(size));
        }
    }
}
