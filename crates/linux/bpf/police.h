/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Map layouts shared by police.bpf.c and src/police.rs, which checks sizes and offsets. */
#ifndef KEEPTIME_POLICE_H
#define KEEPTIME_POLICE_H

struct police_settings {
	__u64 bytes_per_second;	/* 0: nothing is dropped */
	__u64 depth_bytes;	/* at most 2^34, so that nanoseconds fit */
	__u32 dscp;	/* 0 to 63 */
	__u32 reserved;
};

struct police_state {
	__u64 full_at;	/* CLOCK_MONOTONIC, nanoseconds */
	__u64 passed_packets;
	__u64 passed_bytes;
	__u64 dropped_packets;
	__u64 dropped_bytes;
};

#endif
