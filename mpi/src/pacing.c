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

/* Descriptors that were paced, as bits: an address is not enough to set them free again. */
static unsigned char paced[1 << 17];

static bool was_paced(int descriptor)
{
	return descriptor < (int)sizeof paced * 8 && paced[descriptor / 8] >> descriptor % 8 & 1;
}

static void note_paced(int descriptor, bool is_paced)
{
	if (descriptor >= (int)sizeof paced * 8)
		return;
	if (is_paced)
		paced[descriptor / 8] |= (unsigned char)(1 << descriptor % 8);
	else
		paced[descriptor / 8] &= (unsigned char)~(1 << descriptor % 8);
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
	uint64_t connections;
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

void pacing_apply(const struct pace *paces, int count)
{
	struct destination *destinations = destinations_of(paces, count);
	struct connection *all = NULL;
	int connections = destinations ? pacing_connections(&all) : 0;

	for (int at = 0; at < connections; at++) {
		struct destination *to = destination_of(&all[at], destinations, count);

		if (to)
			to->connections++;
	}
	for (int at = 0; at < connections; at++) {
		const struct destination *to = destination_of(&all[at], destinations, count);
		int descriptor = all[at].descriptor;

		if (to) {
			uint64_t bytes = to->bits_per_second / 8 / to->connections;

			set_pace(descriptor, bytes > PACE_BYTES_MIN ? bytes : PACE_BYTES_MIN);
			note_paced(descriptor, true);
		} else if (was_paced(descriptor)) {
			set_pace(descriptor, NOT_PACED);
			note_paced(descriptor, false);
		}
	}
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
