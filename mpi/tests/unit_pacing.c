/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Connections of the loopback are paced by where they lead to: what a destination has is divided among those to it,
 * also where there are many destinations, and all are set free when they are not to be paced any more. */
#define _GNU_SOURCE
#include "connection.h"
#include "pacing.h"

#define FREE (~0UL)
#define OTHERS 1000

static struct pace pace_of(const char *host, uint64_t bits_per_second)
{
	struct pace pace = { .bits_per_second = bits_per_second };

	CHECK(inet_pton(AF_INET, host, &pace.address) == 1);
	return pace;
}

int main(void)
{
	static struct pace paces[OTHERS + 2];
	int twice[2] = { connection_to("127.0.0.2"), connection_to("127.0.0.2") };
	int slow = connection_to("127.0.0.3"), other = connection_to("127.0.0.4");

	for (int at = 0; at < OTHERS; at++) {
		paces[at].address.s_addr = htonl(0x0a000000u + (uint32_t)(OTHERS - at) * 77);
		paces[at].bits_per_second = 8000;
	}
	/* Neither first nor last by any order. */
	paces[OTHERS] = paces[3];
	paces[3] = pace_of("127.0.0.2", 80000000);
	paces[OTHERS + 1] = paces[700];
	paces[700] = pace_of("127.0.0.3", 80);
	pacing_apply(paces, OTHERS + 2);
	CHECK(rate_of(twice[0]) == 5000000 && rate_of(twice[1]) == 5000000);
	/* Slower would be no use. */
	CHECK(rate_of(slow) == 1000 && rate_of(other) == FREE);
	pacing_apply(paces + 700, 1);
	CHECK(rate_of(twice[0]) == FREE && rate_of(twice[1]) == FREE && rate_of(slow) == 1000);
	pacing_apply(NULL, 0);
	CHECK(rate_of(slow) == FREE && rate_of(other) == FREE);
	return 0;
}
