// SPDX-License-Identifier: MIT OR Apache-2.0
// Egress of a node's interface: gives every IPv4 packet of a reserved flow its class and its
// DiffServ code point, by the sending socket's cgroup (or the job that the socket was bound to) and
// the destination address, and takes both from everything else. Ethernet interfaces only. Packets without a full socket (time-wait,
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BOUND_MAX);
	__type(key, __u64);
	__type(value, __u64);
} bound SEC(".maps");

static __always_inline struct flow_value *flow_of(__u64 cgroup_id, __be32 destination)
{
	struct flow_key key = { .cgroup_id = cgroup_id, .destination = destination };
	struct flow_value *flow = bpf_map_lookup_elem(&flows, &key);

	if (flow)
		return flow;
	key.destination = 0;
	return bpf_map_lookup_elem(&flows, &key);
}

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
	struct flow_value *flow = NULL;
	__u64 cookie, cgroup_id, *job;
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

	cookie = bpf_get_socket_cookie(skb);
	job = cookie ? bpf_map_lookup_elem(&bound, &cookie) : NULL;
	if (job)
		flow = flow_of(*job, ip.daddr);
	if (!flow) {
		cgroup_id = bpf_skb_ancestor_cgroup_id(skb, set->job_level);
		flow = cgroup_id ? flow_of(cgroup_id, ip.daddr) : NULL;
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
