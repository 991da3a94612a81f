// SPDX-License-Identifier: MIT OR Apache-2.0
// Egress of a node's interface: gives every IPv4 packet of a reserved flow its class and its
// DiffServ code point, by the sending socket's cgroup and the destination address, and takes both
// from everything else. Ethernet interfaces only. Packets without a full socket (time-wait,
// resets, forwarded ones) are best-effort.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "flows.h"

#define DSCP_EF 46
#define DSCP_CS6 48
#define ECN_MASK 0x03

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow_value);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_settings);
} settings SEC(".maps");

static __always_inline void set_dscp(struct __sk_buff *skb, __u8 old_tos, __u8 dscp)
{
	const __u32 tos_at = ETH_HLEN + offsetof(struct iphdr, tos);
	const __u32 check_at = ETH_HLEN + offsetof(struct iphdr, check);
	__u8 new_tos = dscp << 2 | (old_tos & ECN_MASK);

	if (new_tos == old_tos)
		return;
	/* tos is the low byte of the header's first 16-bit word. */
	bpf_l3_csum_replace(skb, check_at, bpf_htons(old_tos), bpf_htons(new_tos), 2);
	bpf_skb_store_bytes(skb, tos_at, &new_tos, sizeof(new_tos), 0);
}

static __always_inline void best_effort(struct __sk_buff *skb, const struct flow_settings *set,
					__u8 tos)
{
	__u8 dscp = tos >> 2;

	if (skb->priority >> 16 == set->class_major)
		skb->priority = 0;
	if (dscp == DSCP_EF || dscp == DSCP_CS6)
		set_dscp(skb, tos, 0);
}

static __always_inline int may_mark(struct __sk_buff *skb, const struct flow_settings *set)
{
	return set->control_cgroup_id &&
	       bpf_skb_ancestor_cgroup_id(skb, set->control_level) == set->control_cgroup_id;
}

SEC("classifier")
int keeptime_flows(struct __sk_buff *skb)
{
	struct flow_settings *set;
	struct flow_value *flow;
	struct flow_key key = {};
	struct iphdr ip;
	__u32 zero = 0;

	set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_ARP)) {
		if (set->control_class_id)
			skb->priority = set->control_class_id;
		return TC_ACT_UNSPEC;
	}
	if (skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip))) {
		if (skb->priority >> 16 == set->class_major)
			skb->priority = 0;
		return TC_ACT_UNSPEC;
	}

	key.cgroup_id = bpf_skb_ancestor_cgroup_id(skb, set->job_level);
	key.destination = ip.daddr;
	flow = key.cgroup_id ? bpf_map_lookup_elem(&flows, &key) : NULL;
	if (!flow && key.cgroup_id) {
		key.destination = 0;
		flow = bpf_map_lookup_elem(&flows, &key);
	}
	if (flow) {
		skb->priority = flow->class_id;
		set_dscp(skb, ip.tos, flow->dscp & 0x3f);
	} else if (!may_mark(skb, set)) {
		best_effort(skb, set, ip.tos);
	}
	/* Not an end: programs of others on this hook come after us. */
	return TC_ACT_UNSPEC;
}

/* No helper above is restricted to GPL programs. */
char _license[] SEC("license") = "MIT";
