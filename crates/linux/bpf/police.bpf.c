// SPDX-License-Identifier: MIT OR Apache-2.0
// Ingress of an interface: a token bucket that drops IPv4 packets of one DiffServ code point when
// they come faster than their rate. Kept as the time at which the bucket will be full again (the
// generic cell rate algorithm), so that one compare-and-swap takes tokens.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "police.h"

#define NANOS_PER_SECOND 1000000000ull
/* Of a segment in a packet that the device would have cut: Ethernet, IPv4, TCP with time stamps. */
#define SEGMENT_HEADERS (ETH_HLEN + 20 + 32)
/* As many others may take tokens at the same moment; beyond that the packet counts as too much. */
#define TRIES 16

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct police_settings);
} police_settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct police_state);
} police_state SEC(".maps");

/* What it takes on a wire, headers of all its segments included. */
static __always_inline __u64 wire_bytes(const struct __sk_buff *skb)
{
	__u64 segments = skb->gso_segs;

	return skb->len + (segments > 1 ? (segments - 1) * SEGMENT_HEADERS : 0);
}

static __always_inline int conforms(const struct police_settings *set, struct police_state *state,
				    __u64 bytes)
{
	__u64 cost = bytes * NANOS_PER_SECOND / set->bytes_per_second;
	__u64 depth = set->depth_bytes * NANOS_PER_SECOND / set->bytes_per_second;
	__u64 now = bpf_ktime_get_ns();

	for (int try = 0; try < TRIES; try++) {
		__u64 full_at = state->full_at, from = full_at > now ? full_at : now;

		if (from - now + cost > depth)
			return 0;
		if (__sync_val_compare_and_swap(&state->full_at, full_at, from + cost) == full_at)
			return 1;
	}
	return 0;
}

SEC("classifier")
int keeptime_police(struct __sk_buff *skb)
{
	struct police_settings *set;
	struct police_state *state;
	struct iphdr ip;
	__u32 zero = 0;
	__u64 bytes;

	set = bpf_map_lookup_elem(&police_settings, &zero);
	state = bpf_map_lookup_elem(&police_state, &zero);
	if (!set || !state || !set->bytes_per_second || skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.tos >> 2 != set->dscp)
		return TC_ACT_UNSPEC;
	bytes = wire_bytes(skb);
	if (!conforms(set, state, bytes)) {
		__sync_fetch_and_add(&state->dropped_packets, 1);
		__sync_fetch_and_add(&state->dropped_bytes, bytes);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&state->passed_packets, 1);
	__sync_fetch_and_add(&state->passed_bytes, bytes);
	return TC_ACT_UNSPEC;
}

/* No helper above is restricted to GPL programs. */
char _license[] SEC("license") = "MIT";
