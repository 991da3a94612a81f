/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Map layouts shared by flows.bpf.c and src/flows.rs, which checks sizes and offsets. */
#ifndef KEEPTIME_FLOWS_H
#define KEEPTIME_FLOWS_H

/* Packets of sockets below this cgroup to this address; address 0 is any other address, all of IPv6
 * among them. */
struct flow_key {
	__u64 cgroup_id;
	__be32 destination;
	__u32 reserved;	/* 0: map keys are compared whole */
};

/* Where they go. */
struct flow_value {
	__u32 class_id;	/* for skb->priority: major and minor of an HTB class */
	__u32 dscp;	/* 0 to 63 */
};

/* One for all flows of an interface. */
struct flow_settings {
	__u32 reserved[3];	/* of another size, what an older agent left could not be taken over */
	__u32 job_level;	/* depth of the jobs' cgroups below the root of the v2 hierarchy */
	__u32 resolution_class_id;	/* class of address resolution; 0: none */
	__u32 class_major;	/* major number of the tree, in the low 16 bits */
};

/* Packets of one socket count as those of a job that it was bound to after it was made: by the
 * socket's cookie, the job's cgroup_id. */

#define FLOWS_MAX 16384
#define BOUND_MAX 4096

#endif
