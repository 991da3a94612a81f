/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "pacing.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Wire-up and handshakes of MPI libraries stay below. */
#define SEEN_BYTES_MIN 4096
/* Slower is no use, and 0 would stop the connection. */
#define PACE_BYTES_MIN 1000
#define NOT_PACED (~0UL)

/* Who has sent nothing for so long is idle: of what its destination has it keeps a part that lets it begin again, until it
 * is looked at the next time. */
#define IDLE_AFTER 1000000000ll
#define IDLE_PART 32

/* What is known of a descriptor since it was paced first: an address is not enough to set it free again, nor to tell who is
 * idle. */
struct past {
	uint64_t cookie; /* the kernel's number of the socket: a descriptor may be another's by now */
	uint64_t sent;   /* bytes, when it was looked at last */
	int64_t sent_at; /* nanoseconds, when that had grown */
	bool is_paced;
};

static struct past pasts[1 << 17];

/* Nothing of descriptors that are too many: these are paced for ever, and never idle. */
static struct past *past_of(int descriptor)
{
	uint64_t cookie = 0;
	socklen_t size = sizeof cookie;

	if (descriptor >= (int)(sizeof pasts / sizeof *pasts) ||
	    getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size))
		return NULL;
	if (pasts[descriptor].cookie != cookie)
		pasts[descriptor] = (struct past){ .cookie = cookie };
	return &pasts[descriptor];
}

static bool is_connection(int descriptor, struct connection *connection)
{
	socklen_t size = sizeof connection->remote;
	int type = 0;
	socklen_t type_size = sizeof type;

	if (getpeername(descriptor, (struct sockaddr *)&connection->remote, &size) ||
	    connection->remote.sin_family != AF_INET)
		return false;
	size = sizeof connection->local;
	if (getsockname(descriptor, (struct sockaddr *)&connection->local, &size) ||
	    getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &type_size) || type != SOCK_STREAM)
		return false;
	connection->descriptor = descriptor;
	return true;
}

int pacing_connections(struct connection **list)
{
	DIR *directory = opendir("/proc/self/fd");
	struct connection one, *all = NULL;
	int count = 0, capacity = 0;
	struct dirent *entry;

	while (directory && count < CONNECTIONS_MAX && (entry = readdir(directory))) {
		if (entry->d_name[0] == '.' || !is_connection(atoi(entry->d_name), &one))
			continue;
		if (count == capacity) {
			struct connection *more;

			capacity = capacity ? 2 * capacity : 64;
			more = realloc(all, (size_t)capacity * sizeof *all);
			if (!more)
				break;
			all = more;
		}
		all[count++] = one;
	}
	if (directory)
		closedir(directory);
	*list = all;
	return count;
}

/* Where to is paced, and over how many connections. */
struct destination {
	uint32_t address; /* in network order */
	uint64_t bits_per_second;
	uint64_t busy, idle;
};

static int by_address(const void *one, const void *other)
{
	uint32_t first = ((const struct destination *)one)->address;
	uint32_t second = ((const struct destination *)other)->address;

	return (first > second) - (first < second);
}

/* Sorted: each of thousands of connections looks for its own, several times a second. Nothing if memory is lacking. */
static struct destination *destinations_of(const struct pace *paces, int count)
{
	struct destination *all = calloc((size_t)count + 1, sizeof *all);

	if (!all)
		return NULL;
	for (int at = 0; at < count; at++) {
		all[at].address = paces[at].address.s_addr;
		all[at].bits_per_second = paces[at].bits_per_second;
	}
	qsort(all, (size_t)count, sizeof *all, by_address);
	return all;
}

static struct destination *destination_of(const struct connection *connection, struct destination *all, int count)
{
	struct destination wanted = { .address = connection->remote.sin_addr.s_addr };

	return bsearch(&wanted, all, (size_t)count, sizeof *all, by_address);
}

static void set_pace(int descriptor, unsigned long bytes_per_second)
{
	unsigned long now = NOT_PACED;
	socklen_t size = sizeof now;

	/* What is so already costs no more than a look. */
	if (getsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &now, &size) == 0 &&
	    size == sizeof now && now == bytes_per_second)
		return;
	setsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_second,
		   sizeof bytes_per_second);
}

/* Whether it is idle. */
static bool look_at(int descriptor, struct past *past, int64_t time)
{
	struct tcp_info info = {0};
	socklen_t size = sizeof info;

	if (!past || getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size))
		return false;
	/* What waits for its turn is as good as sent. */
	if (!past->is_paced || info.tcpi_bytes_sent != past->sent || info.tcpi_notsent_bytes) {
		past->sent = info.tcpi_bytes_sent;
		past->sent_at = time;
	}
	return time - past->sent_at >= IDLE_AFTER;
}

/* Of one connection, in bytes a second. All together have what their destination has, whoever of them sends. */
static uint64_t share_of(const struct destination *to, bool is_idle)
{
	uint64_t bytes = to->bits_per_second / 8;
	uint64_t kept = !to->idle ? 0 : to->busy ? bytes / IDLE_PART : bytes;
	uint64_t share = is_idle ? kept / to->idle : (bytes - kept) / to->busy;

	return share > PACE_BYTES_MIN ? share : PACE_BYTES_MIN;
}

/* A connection with what is known of it, where it leads to if that is paced, and whether it is idle. */
struct looked_at {
	int descriptor;
	struct past *past;
	struct destination *to;
	bool is_idle;
};

static void pace(const struct looked_at *connection)
{
	if (connection->to)
		set_pace(connection->descriptor, share_of(connection->to, connection->is_idle));
	else if (connection->past && connection->past->is_paced)
		set_pace(connection->descriptor, NOT_PACED);
	if (connection->past)
		connection->past->is_paced = connection->to;
}

void pacing_apply(const struct pace *paces, int count, int64_t time)
{
	struct destination *destinations = destinations_of(paces, count);
	struct connection *all = NULL;
	int connections = destinations ? pacing_connections(&all) : 0;
	struct looked_at *looked_at = calloc((size_t)connections + 1, sizeof *looked_at);

	for (int at = 0; looked_at && at < connections; at++) {
		struct looked_at *one = &looked_at[at];

		one->descriptor = all[at].descriptor;
		one->past = past_of(one->descriptor);
		one->to = destination_of(&all[at], destinations, count);
		if (!one->to)
			continue;
		one->is_idle = look_at(one->descriptor, one->past, time);
		*(one->is_idle ? &one->to->idle : &one->to->busy) += 1;
	}
	for (int at = 0; looked_at && at < connections; at++)
		pace(&looked_at[at]);
	free(looked_at);
	free(all);
	free(destinations);
}

int pacing_seen(struct in_addr *addresses, int capacity)
{
	struct connection *all;
	int connections = pacing_connections(&all);
	int seen = 0;

	for (int at = 0; at < connections && seen < capacity; at++) {
		struct tcp_info info = {0};
		socklen_t size = sizeof info;
		bool is_known = false;

		if (getsockopt(all[at].descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) ||
		    info.tcpi_bytes_acked < SEEN_BYTES_MIN)
			continue;
		for (int other = 0; other < seen; other++)
			is_known |= addresses[other].s_addr == all[at].remote.sin_addr.s_addr;
		if (!is_known)
			addresses[seen++] = all[at].remote.sin_addr;
	}
	free(all);
	return seen;
}
