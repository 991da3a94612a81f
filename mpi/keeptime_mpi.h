/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Quality of service for the communicators of an MPI program, by the standard's attributes:
 *
 *     keeptime_qos qos = KEEPTIME_QOS_INIT;
 *     qos.qos_class = KEEPTIME_PREMIUM;
 *     qos.bandwidth_kbps = 40000;
 *     qos.max_message_size = 1 << 20;
 *     MPI_Comm_set_attr(comm, KEEPTIME_QOS, &qos);
 *
 *     keeptime_qos *granted;
 *     int flag;
 *     MPI_Comm_get_attr(comm, KEEPTIME_QOS, &granted, &flag);
 *     if (flag && granted->state != KEEPTIME_GRANTED) puts(granted->reason);
 *
 * Only this header is needed to compile. A program that is started without libkeeptime_mpi, or where
 * no agent of Keeptime runs, does the same as ever: attributes are kept and ask for nothing (without the
 * library MPI keeps the pointer, so let the value live as long as it is set). With the library linked in
 * or preloaded they reserve what they say, for as long as they are set.
 *
 * Threads: every function may be called by any thread that may call MPI. Setting an attribute waits until all
 * nodes enforce it, at most KEEPTIME_WAIT_SECONDS, and so does copying a communicator (MPI_Comm_dup and
 * MPI_Comm_dup_with_info) whose copy asks for itself, KEEPTIME_INHERIT_OWN; nothing else here waits.
 *
 * Ranks: each may set attributes of its communicators in an order of its own. But where several have the same members and are
 * intercommunicators or made of these, or were made by MPI_Comm_create_group, MPI_Comm_idup, from a group alone, or in Fortran
 * with Open MPI or by MPICH's mpi_f08, or by whatever in a program that calls MPI_Init there, all ranks have to set their attributes in the same order:
 * else one is taken for the other. A copy that shares a reservation (KEEPTIME_INHERIT_SHARED) is to be freed on all ranks before the
 * original is set anew, or on all after that: else some ranks ask once more, and both count.
 */
#ifndef KEEPTIME_MPI_H
#define KEEPTIME_MPI_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the packets of a communicator are treated. */
enum keeptime_qos_class {
	KEEPTIME_BEST_EFFORT = 0, /* share what others leave */
	KEEPTIME_LOW_LATENCY = 1, /* few small messages that must not wait */
	KEEPTIME_PREMIUM = 2,     /* a reserved rate */
};

/* What else is wanted; to be combined by |. */
enum keeptime_qos_option {
	/* A communicator made by MPI_Comm_dup is covered by the reservation of the original. */
	KEEPTIME_INHERIT_SHARED = 1,
	/* It asks for as much again, for itself. Neither: it has no attribute. */
	KEEPTIME_INHERIT_OWN = 2,
	/* Messages leave at line speed instead of being paced: the network has to take whole messages. */
	KEEPTIME_UNSHAPED = 4,
	/* Only pairs that have communicated before the attribute is set, not all that could: where the sender has
	 * had 4 KiB acknowledged on one connection. Less cannot be told from what connecting takes. */
	KEEPTIME_PAIRS_SEEN = 8,
};

/* What became of an attribute. */
enum keeptime_qos_state {
	/* Keeptime is not there, this process was spawned by another program, or it began by MPI_Session_init alone. */
	KEEPTIME_NOT_ASKED = 0,
	KEEPTIME_WAITING = 1,   /* nobody who could grant it has answered yet; reason says who */
	KEEPTIME_GRANTED = 2,   /* every node enforces it */
	KEEPTIME_REFUSED = 3,   /* it does not hold, what held before does; reason says why */
};

#define KEEPTIME_REASON_SIZE 256
#define KEEPTIME_WAIT_SECONDS 6

/* The value of the attribute. MPI_Comm_set_attr copies it. MPI_Comm_get_attr gives a copy that belongs
 * to the library and is good until the attribute is asked for again, set or dropped. */
typedef struct keeptime_qos {
	size_t size;               /* sizeof(keeptime_qos), so that fields can be added */
	uint32_t qos_class;        /* enum keeptime_qos_class */
	uint32_t options;          /* of enum keeptime_qos_option */
	double bandwidth_kbps;     /* payload from each rank to each other that it talks to, at its peak */
	uint64_t max_message_size; /* bytes; 0 = unknown, which is taken for small */
	double cpu_percent;        /* of one CPU on each node; 0 = as reserved */
	uint64_t disk_read_bytes_per_second;  /* on each node; 0 = as reserved */
	uint64_t disk_write_bytes_per_second; /* on each node; 0 = as reserved */
	/* The goal: what the job's application is profiled for (a frame, an iteration, a run) takes so long
	 * at most; 0 = none. The rates among the job's nodes follow from that, whatever the class is and
	 * the communicator. Only for jobs that were reserved for a goal themselves. */
	double within_seconds;
	/* Told by MPI_Comm_get_attr: */
	uint32_t state;            /* enum keeptime_qos_state */
	double reserved_kbps;      /* on the wire, headers included, for each pair */
	uint64_t bucket_bytes;     /* token bucket depth of each pair */
	double promised_seconds;   /* the time that is promised for the goal; 0 = none was asked for */
	char reason[KEEPTIME_REASON_SIZE];
} keeptime_qos;

#define KEEPTIME_QOS_INIT { sizeof(keeptime_qos), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "" }

/* One connection between this process and another rank. */
typedef struct keeptime_endpoint {
	int rank;             /* in the communicator, or in the remote group of an intercommunicator */
	char local_host[16];  /* IPv4 */
	char remote_host[16];
	uint16_t local_port;
	uint16_t remote_port;
} keeptime_endpoint;

/* What libkeeptime_mpi exports. Call the functions below instead. */
__attribute__((weak)) int keeptime_mpi_keyval(void);
__attribute__((weak)) void keeptime_mpi_progress(uint64_t iterations);
__attribute__((weak)) int keeptime_mpi_endpoints_of(MPI_Comm comm, keeptime_endpoint *list,
						    int capacity, int *count);

/* One for all files of a program. */
__attribute__((weak)) int keeptime_keyval_without_library = MPI_KEYVAL_INVALID;

/* The attribute's key. */
#define KEEPTIME_QOS (keeptime_qos_keyval())

__attribute__((unused)) static inline int keeptime_qos_keyval(void)
{
	if (keeptime_mpi_keyval)
		return keeptime_mpi_keyval();
	/* Of threads that make one at the same time, the first one's counts. */
	if (__atomic_load_n(&keeptime_keyval_without_library, __ATOMIC_ACQUIRE) == MPI_KEYVAL_INVALID) {
		int made = MPI_KEYVAL_INVALID, none = MPI_KEYVAL_INVALID;

		MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &made, NULL);
		if (!__atomic_compare_exchange_n(&keeptime_keyval_without_library, &none, made, 0,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			MPI_Comm_free_keyval(&made);
	}
	return __atomic_load_n(&keeptime_keyval_without_library, __ATOMIC_ACQUIRE);
}

/* Tells that the program has finished so many iterations since it began. Costs a store. */
__attribute__((unused)) static inline void keeptime_progress(uint64_t iterations)
{
	if (keeptime_mpi_progress)
		keeptime_mpi_progress(iterations);
}

/* The host and port pairs behind a communicator, for an external manager: of this process to each
 * other rank; ranks on the same node may have none. Collective; every rank may have another number of
 * them. At most `capacity` are written to `list`, `count` tells how many there are. Returns an MPI
 * error code. Without the library there are none. */
__attribute__((unused)) static inline int keeptime_mpi_endpoints(MPI_Comm comm,
								 keeptime_endpoint *list,
								 int capacity, int *count)
{
	if (keeptime_mpi_endpoints_of)
		return keeptime_mpi_endpoints_of(comm, list, capacity, count);
	*count = 0;
	return MPI_SUCCESS;
}

#ifdef __cplusplus
}
#endif

#endif
