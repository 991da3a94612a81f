/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Connections of the loopback, and the rate at which the kernel paces one. */
#ifndef KEEPTIME_CONNECTION_H
#define KEEPTIME_CONNECTION_H

#include "check.h"

#include <arpa/inet.h>
#include <sys/socket.h>

/* One to a listener there, in whose queue it stays. */
static int connection_to(const char *host)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), caller = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(listener >= 0 && caller >= 0 && inet_pton(AF_INET, host, &address.sin_addr) == 1);
	CHECK(!bind(listener, (struct sockaddr *)&address, sizeof address) && !listen(listener, 1));
	CHECK(!getsockname(listener, (struct sockaddr *)&address, &size));
	CHECK(!connect(caller, (struct sockaddr *)&address, sizeof address));
	return caller;
}

static unsigned long rate_of(int connection)
{
	unsigned long rate = 0;
	socklen_t size = sizeof rate;

	CHECK(!getsockopt(connection, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &size) && size == sizeof rate);
	return rate;
}

#endif
