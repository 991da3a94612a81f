/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Has the kernel pace this process's TCP connections, whichever library opened them, and tells where
 * they go. Linux; unprivileged. */
#ifndef KEEPTIME_PACING_H
#define KEEPTIME_PACING_H

#include <netinet/in.h>
#include <stdint.h>

/* A rate of the TCP streams to one address together. */
struct pace {
	struct in_addr address;
	uint64_t bits_per_second;
};

/* Paces the connections that are open now; those that were paced and are not any more are set free. What an
 * address has is divided among those to it that sent within a second before `time` (nanoseconds of a clock that
 * is not set); the others keep a 32nd of it. To be repeated while connections may be opened or fall idle: four
 * system calls a connection, and two or three more for each that is paced. For one thread at a time. */
void pacing_apply(const struct pace *paces, int count, int64_t time);

/* Addresses to which more was sent, and acknowledged, than what connecting takes; at most `capacity`, each
 * once. */
int pacing_seen(struct in_addr *addresses, int capacity);

/* An open IPv4 connection. */
struct connection {
	int descriptor;
	struct sockaddr_in local;
	struct sockaddr_in remote;
};

/* All that are open, at most CONNECTIONS_MAX, to a list that the caller frees; their number. */
int pacing_connections(struct connection **list);

#define CONNECTIONS_MAX 8192

#endif
