// SPDX-License-Identifier: MIT OR Apache-2.0
// Egress of a node's interface: gives every packet of a reserved flow its class and its DiffServ code
// point, by the sending socket's cgroup (or the job that the socket was bound to) and the destination
// address, and takes both from everything else, in IPv4 and IPv6. Entries name addresses of IPv4; those
// for any other address hold for IPv6 too. Ethernet interfaces only. Packets without a full socket
// (time-wait, resets, forwarded ones) are best-effort.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "flows.h"

#define DSCP_EF 46
#define DSCP_CS6 48
#define ECN_MASK 0x03
#define VLAN_TAG_LEN 4
/* Types of ICMPv6 from router solicitation to redirect (RFC 4861): what IPv6 has in the place of ARP. */
#define ND_FIRST 133
#define ND_LAST 137

/* What decides about a packet. */
struct packet {
	__u32 at;	/* where its IP header begins in the frame */
	__be32 destination;	/* 0 in IPv6: none of its addresses has an entry of its own */
	__u8 version;	/* 4 or 6; 0: not IP */
	__u8 class;	/* type of service, traffic class: the code point and two bits of ECN */
	__u8 resolves;	/* address resolution: ARP, neighbour discovery */
};

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

/* What is behind a VLAN tag that stands in the frame; most are beside it, as metadata. */
static __always_inline __be16 past_tag(struct __sk_buff *skb, __u32 *at, __be16 protocol)
{
	if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
		return protocol;
	if (bpf_skb_load_bytes(skb, *at + 2, &protocol, sizeof(protocol)))
		return 0;
	*at += VLAN_TAG_LEN;
	return protocol;
}

static __always_inline void read_ipv4(struct __sk_buff *skb, struct packet *packet)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, packet->at, &ip, sizeof(ip)))
		return;
	packet->version = 4;
	packet->destination = ip.daddr;
	packet->class = ip.tos;
}

static __always_inline void read_ipv6(struct __sk_buff *skb, struct packet *packet)
{
	__u8 start[2], next, type;

	if (bpf_skb_load_bytes(skb, packet->at, start, sizeof(start)) ||
	    bpf_skb_load_bytes(skb, packet->at + offsetof(struct ipv6hdr, nexthdr), &next,
			       sizeof(next)))
		return;
	packet->version = 6;
	/* Four bits of version, eight of traffic class, twenty of flow label. */
	packet->class = start[0] << 4 | start[1] >> 4;
	packet->resolves = next == IPPROTO_ICMPV6 &&
			   !bpf_skb_load_bytes(skb, packet->at + sizeof(struct ipv6hdr), &type,
					       sizeof(type)) &&
			   type >= ND_FIRST && type <= ND_LAST;
}

static __always_inline void read_packet(struct __sk_buff *skb, struct packet *packet)
{
	__be16 protocol = past_tag(skb, &packet->at, skb->protocol);

	protocol = past_tag(skb, &packet->at, protocol);
	if (protocol == bpf_htons(ETH_P_IP))
		read_ipv4(skb, packet);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		read_ipv6(skb, packet);
	else
		packet->resolves = protocol == bpf_htons(ETH_P_ARP);
}

static __always_inline struct flow_value *flow_of(__u64 cgroup_id, __be32 destination)
{
	struct flow_key key = { .cgroup_id = cgroup_id, .destination = destination };
	struct flow_value *flow = bpf_map_lookup_elem(&flows, &key);

	if (flow)
		return flow;
	key.destination = 0;
	return bpf_map_lookup_elem(&flows, &key);
}

static __always_inline struct flow_value *flow_of_packet(struct __sk_buff *skb,
							 const struct flow_settings *set,
							 const struct packet *packet)
{
	struct flow_value *flow = NULL;
	__u64 cookie, cgroup_id, *job;

	cookie = bpf_get_socket_cookie(skb);
	job = cookie ? bpf_map_lookup_elem(&bound, &cookie) : NULL;
	if (job)
		flow = flow_of(*job, packet->destination);
	if (!flow) {
		cgroup_id = bpf_skb_ancestor_cgroup_id(skb, set->job_level);
		flow = cgroup_id ? flow_of(cgroup_id, packet->destination) : NULL;
	}
	return flow;
}

static __always_inline void set_ipv4(struct __sk_buff *skb, __u32 at, __u8 old_tos, __u8 new_tos)
{
	/* tos is the low byte of the header's first 16-bit word. */
	bpf_l3_csum_replace(skb, at + offsetof(struct iphdr, check), bpf_htons(old_tos),
			    bpf_htons(new_tos), 2);
	bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, tos), &new_tos, sizeof(new_tos), 0);
}

static __always_inline void set_ipv6(struct __sk_buff *skb, __u32 at, __u8 class)
{
	__u8 start[2];

	if (bpf_skb_load_bytes(skb, at, start, sizeof(start)))
		return;
	start[0] = (start[0] & 0xf0) | (class >> 4);
	start[1] = (class << 4) | (start[1] & 0x0f);
	/* There is no checksum of the header that would make up for it in one of the whole packet. */
	bpf_skb_store_bytes(skb, at, start, sizeof(start), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline void set_dscp(struct __sk_buff *skb, const struct packet *packet, __u8 dscp)
{
	__u8 class = dscp << 2 | (packet->class & ECN_MASK);

	if (class == packet->class)
		return;
	if (packet->version == 4)
		set_ipv4(skb, packet->at, packet->class, class);
	else if (packet->version == 6)
		set_ipv6(skb, packet->at, class);
}

static __always_inline void remove_mark(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 dscp = packet->class >> 2;

	if (dscp == DSCP_EF || dscp == DSCP_CS6)
		set_dscp(skb, packet, 0);
}

static __always_inline void best_effort(struct __sk_buff *skb, const struct flow_settings *set,
					const struct packet *packet)
{
	if (skb->priority >> 16 == set->class_major)
		skb->priority = 0;
	remove_mark(skb, packet);
}

/* Another number at the end of its name whenever it does something else: src/flows.rs knows by it
 * whether what an earlier agent left is this program. */
SEC("classifier")
int keeptime_flows2(struct __sk_buff *skb)
{
	struct packet packet = { .at = ETH_HLEN };
	struct flow_settings *set;
	struct flow_value *flow;
	__u32 zero = 0;

	set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return TC_ACT_UNSPEC;
	read_packet(skb, &packet);
	if (packet.resolves && set->resolution_class_id) {
		skb->priority = set->resolution_class_id;
		remove_mark(skb, &packet);
		return TC_ACT_UNSPEC;
	}
	flow = packet.version ? flow_of_packet(skb, set, &packet) : NULL;
	if (flow) {
		skb->priority = flow->class_id;
		set_dscp(skb, &packet, flow->dscp & 0x3f);
	} else {
		best_effort(skb, set, &packet);
	}
	/* Not an end: programs of others on this hook come after us. */
	return TC_ACT_UNSPEC;
}

/* No helper above is restricted to GPL programs. */
char _license[] SEC("license") = "MIT";
