//! Table 1 of MPICH-GQ (section 5.4) as far as it is arithmetic: which reservation carries a stream
//! of frames, for 1 and 10 frames a second and two token bucket depths.
//!
//! The paper's formula slips in its units (section 4.3): a depth in bits is `bandwidth * delay`; in
//! bytes that is divided by 8, and the paper multiplies. `bandwidth / 62.5` is 16 ms of the
//! bandwidth when read as bits and 128 ms when read as bytes; 2 ms were meant, `bandwidth / 4,000`
//! bytes. `bandwidth / 40`, which was used, is 25 ms as bits, less than a packet at 400 kbit/s, and
//! 200 ms as bytes. Only bytes agree with the table: a frame at 10 a second lasts 100 ms of its own
//! rate and passes, one at 1 a second lasts 1 s and does not; `bandwidth / 4`, 2 s, lets it pass.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_model::units::{BitsPerSecond, Bytes};
use keeptime_mpiqos::overhead::{SEGMENT_BYTES, depth, wire_bytes, wire_rate};

/// Bandwidth desired, then the reservation required: 10 frames a second with the normal bucket, 1
/// with the normal, 1 with the large. All in kbit/s.
const TABLE: [[u64; 4]; 4] = [
    [400, 500, 750, 500],
    [800, 900, 1_450, 900],
    [1_600, 1_700, 2_700, 1_700],
    [2_400, 2_500, 3_600, 2_500],
];
/// The paper tried reservations in steps.
const STEP: u64 = 100;

fn frame(kbit: u64, frames_per_second: u64) -> Bytes {
    Bytes::new(kbit * 1_000 / 8 / frames_per_second)
}

/// Token bucket depths as the paper used them, in bytes.
fn normal(reservation: u64) -> u64 {
    reservation * 1_000 / 40
}

fn large(reservation: u64) -> u64 {
    reservation * 1_000 / 4
}

#[test]
fn read_as_bytes_the_buckets_tell_which_columns_need_more_than_headers() {
    for [kbit, ten_normal, one_normal, one_large] in TABLE {
        let passes = |bucket: u64, frames| wire_bytes(frame(kbit, frames)) <= bucket.into();
        // Routers count packets of IP: 52 bytes of headers in each.
        let headers = |frames| {
            let frame = frame(kbit, frames).get();
            kbit * (frame + frame.div_ceil(SEGMENT_BYTES) * 52) / frame
        };
        // A whole frame fits: the reservation is the rate with its headers, up to the paper's steps.
        assert!(passes(normal(ten_normal), 10) && passes(large(one_large), 1));
        assert!((headers(10)..headers(10) + STEP).contains(&ten_normal), "{kbit}");
        assert!((headers(1)..headers(1) + STEP).contains(&one_large), "{kbit}");
        // It does not: packets are dropped, and half as much again and more is needed.
        assert!(!passes(normal(one_normal), 1));
        assert!(one_normal * 10 >= kbit * 15, "{kbit}: {one_normal}");
        // Without any drop at line speed the bucket would have to hold the frame: five times the rate.
        let whole = wire_bytes(frame(kbit, 1)) * 40 / 1_000;
        assert!(whole >= u128::from(kbit * 5) && u128::from(one_normal) < whole);
    }
}

#[test]
fn read_as_bits_the_normal_bucket_would_not_hold_a_packet() {
    assert!(normal(400) / 8 < 1_514);
}

#[test]
fn with_pacing_every_rate_and_burstiness_needs_at_most_1_08_of_its_payload() {
    for [kbit, ..] in TABLE {
        for frames in [1, 10] {
            let payload = BitsPerSecond::new(kbit * 1_000);
            let wire = wire_rate(payload, frame(kbit, frames)).unwrap();
            assert!(wire.get() * 100 <= payload.get() * 108, "{kbit} kbit/s: {wire}");
            // And no deeper a bucket than the paper's.
            let depth = depth(wire, frame(kbit, frames), true).get();
            assert!(depth <= normal(kbit), "{kbit} kbit/s: {depth}");
        }
    }
}
