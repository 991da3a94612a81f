// SPDX-License-Identifier: MIT OR Apache-2.0
// Answers questions about regions on the interface where they arrive (XDP), whatever the node's
// processes do: reads records from the memory that their publishers write, and adds to counters.
// Decides as fabric::region::respond does; what it does not understand goes up to that. IPv4
// without options over Ethernet. A question is as long as its answer: only addresses are exchanged.
// What is not for this node passes: interfaces in bridges, and of routers, see other hosts' packets.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "regions.h"

/* Most addresses of a node; what is asked at others goes up. */
#define ADDRESSES_MAX 4096

#define barrier() asm volatile("" ::: "memory")
#define READ_ONCE(x) (*(volatile __u64 *)&(x))

/* Loads may overtake loads on processors other than x86, and eBPF has no fence: an atomic operation
 * with a result is one. */
#ifdef KEEPTIME_WEAK_ORDER
#define LOAD_SEQUENCE(x) __sync_fetch_and_add(&(x), 0)
#else
#define LOAD_SEQUENCE(x) READ_ONCE(x)
#endif

/* Sizes and no types: until Linux 6.1 at least, the kernel takes memory that was made without types (regions.rs) for another kind of map. */
struct region_memory {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* each region has as many as it needs */
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct region_slot));
} nothing SEC(".maps");	/* in place of those that are gone: its key is 0 */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, REGIONS_MAX);
	__type(key, __u32);
	__array(values, struct region_memory);
} regions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SESSIONS_MAX);
	__type(key, __u64);
	__type(value, struct region_session);
} sessions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct region_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES_MAX);
	__type(key, __be32);
	__type(value, __u8);	/* means nothing */
} addresses SEC(".maps");	/* of this node, when the program was loaded */

static __always_inline struct region_slot *slot_of(void *memory, __u32 index)
{
	return bpf_map_lookup_elem(memory, &index);
}

/* What is said about a record; -1: nothing, the question is a late copy. */
static __always_inline int add(struct region_packet *packet, struct region_slot *record)
{
	__u64 name = packet->session, number = packet->number;
	struct region_session *session = bpf_map_lookup_elem(&sessions, &name);

	if (!session)
		return STATUS_NO_SESSION;
	if (number == READ_ONCE(session->taken)) {
		/* A copy. If the first is being carried out on another processor, it answers. The
		 * answer was written before the number that says so: it is read after that. */
		if (number != LOAD_SEQUENCE(session->done))
			return -1;
		packet->value = READ_ONCE(session->answer);
		return STATUS_OK;
	}
	if (__sync_val_compare_and_swap(&session->taken, number - 1, number) != number - 1)
		return -1;
	packet->value = __sync_fetch_and_add(&record->words[RECORD_COUNTER], packet->amount);
	session->answer = packet->value;
	__sync_lock_test_and_set(&session->done, number);
	return STATUS_OK;
}

static __always_inline int read(struct region_packet *packet, void *end, void *memory,
				struct region_slot *record, __u32 first)
{
	struct region_slot *to = (void *)(packet + 1);
	__u64 sequence = LOAD_SEQUENCE(record->words[RECORD_SEQUENCE]);
	__u32 slots = packet->slots;

	if (sequence & 1)
		return STATUS_BUSY;
	barrier();
	for (__u32 i = 0; i < PACKET_SLOTS_MAX; i++) {
		struct region_slot *from;

		if (i >= slots)
			break;
		from = slot_of(memory, first + i);
		if (!from || (void *)(to + 1) > end)
			return STATUS_OUT_OF_RANGE;
		for (int word = 0; word < SLOT_WORDS; word++)
			to->words[word] = READ_ONCE(from->words[word]);
		to++;
	}
	barrier();
	if (LOAD_SEQUENCE(record->words[RECORD_SEQUENCE]) != sequence)
		return STATUS_BUSY;
	packet->value = sequence;
	return STATUS_OK;
}

static __always_inline int answer(struct region_packet *packet, void *end)
{
	__u32 place = packet->region, first, stride;
	struct region_slot *head, *record;
	void *memory;

	if (packet->kind == KIND_OPEN) {
		__u64 name = packet->session;
		struct region_session none = {};

		/* One that is there already stays as it is. */
		bpf_map_update_elem(&sessions, &name, &none, BPF_NOEXIST);
		packet->value = 0;
		return STATUS_OK;
	}
	memory = bpf_map_lookup_elem(&regions, &place);
	if (!memory)
		return STATUS_GONE;
	head = slot_of(memory, 0);
	if (!head || !packet->key || READ_ONCE(head->words[HEAD_KEY]) != packet->key)
		return STATUS_GONE;
	if (packet->record >= (__u32)head->words[HEAD_SHAPE])
		return STATUS_OUT_OF_RANGE;
	stride = head->words[HEAD_STRIDE];
	first = 1 + packet->record * stride;
	record = slot_of(memory, first);
	if (!record)
		return STATUS_OUT_OF_RANGE;
	if (packet->kind == KIND_ADD) {
		if (!(head->words[HEAD_STRIDE] >> 32))
			return STATUS_NOT_ALLOWED;
		return add(packet, record);
	}
	if ((__u64)packet->offset + packet->slots > stride)
		return STATUS_OUT_OF_RANGE;
	return read(packet, end, memory, record, first + packet->offset);
}

SEC("xdp")
int keeptime_regions(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct region_packet *packet = (void *)(udp + 1);
	struct region_settings *setting;
	unsigned char mac[ETH_ALEN];
	__be32 address;
	__be16 port;
	__u32 zero = 0, slots;
	int status;

	if ((void *)(packet + 1) > end)
		return XDP_PASS;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x3fff))
		return XDP_PASS;
	setting = bpf_map_lookup_elem(&settings, &zero);
	if (!setting || udp->dest != bpf_htons((__u16)setting->port))
		return XDP_PASS;
	address = ip->daddr;
	if (!bpf_map_lookup_elem(&addresses, &address))
		return XDP_PASS;
	slots = packet->slots;
	if (packet->magic != PACKET_MAGIC || packet->status || packet->by ||
	    packet->kind < KIND_READ || packet->kind > KIND_OPEN || slots > PACKET_SLOTS_MAX ||
	    (packet->kind == KIND_READ) != (slots > 0))
		return XDP_PASS;
	if (bpf_ntohs(udp->len) != sizeof(*udp) + sizeof(*packet) + slots * SLOT_BYTES ||
	    bpf_ntohs(ip->tot_len) != sizeof(*ip) + bpf_ntohs(udp->len))
		return XDP_PASS;

	status = answer(packet, end);
	if (status < 0)
		return XDP_DROP;
	if (status != STATUS_OK)
		packet->value = 0;
	packet->status = status;
	packet->by = BY_PROGRAM;

	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	/* Exchanging addresses leaves the header's checksum right. */
	ip->daddr = ip->saddr;
	ip->saddr = address;
	port = udp->dest;
	udp->dest = udp->source;
	udp->source = port;
	udp->check = 0;	/* none: the frame has its own */
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
