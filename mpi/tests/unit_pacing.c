/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Connections of the loopback are paced by where they lead to: what a destination has is divided among those to it,
 * also where there are many destinations, and all are set free when they are not to be paced any more. Who sends nothing
 * leaves it to the others until it sends again. */
#define _GNU_SOURCE
#include "connection.h"
#include "pacing.h"

#include <unistd.h>

#define FREE (~0UL)
#define OTHERS 1000
#define SECOND 1000000000ll

static struct pace pace_of(const char *host, uint64_t bits_per_second)
{
	struct pace pace = { .bits_per_second = bits_per_second };

	CHECK(inet_pton(AF_INET, host, &pace.address) == 1);
	return pace;
}

static void is_rate_of_the_senders(void)
{
	struct pace pace = pace_of("127.0.0.5", 256 * 80000);
	int one = connection_to("127.0.0.5"), other = connection_to("127.0.0.5"), third;

	pacing_apply(&pace, 1, SECOND);
	CHECK(rate_of(one) == 128 * 10000 && rate_of(other) == 128 * 10000);
	CHECK(send(one, "", 1, 0) == 1);
	pacing_apply(&pace, 1, 2 * SECOND - 1);
	CHECK(rate_of(one) == 128 * 10000 && rate_of(other) == 128 * 10000);
	pacing_apply(&pace, 1, 2 * SECOND);
	CHECK(rate_of(one) == 248 * 10000 && rate_of(other) == 8 * 10000);
	/* Nobody sends: whoever begins has half. */
	pacing_apply(&pace, 1, 3 * SECOND);
	CHECK(rate_of(one) == 128 * 10000 && rate_of(other) == 128 * 10000);
	CHECK(send(other, "", 1, 0) == 1);
	pacing_apply(&pace, 1, 3 * SECOND + 1);
	CHECK(rate_of(one) == 8 * 10000 && rate_of(other) == 248 * 10000);
	/* Another in its place is not idle. */
	third = connection_to("127.0.0.5");
	CHECK(dup2(third, one) == one && !close(third));
	pacing_apply(&pace, 1, 3 * SECOND + 2);
	CHECK(rate_of(one) == 128 * 10000 && rate_of(other) == 128 * 10000);
	pacing_apply(NULL, 0, 4 * SECOND);
	CHECK(rate_of(one) == FREE && rate_of(other) == FREE);
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
	pacing_apply(paces, OTHERS + 2, 0);
	CHECK(rate_of(twice[0]) == 5000000 && rate_of(twice[1]) == 5000000);
	/* Slower would be no use. */
	CHECK(rate_of(slow) == 1000 && rate_of(other) == FREE);
	pacing_apply(paces + 700, 1, 0);
	CHECK(rate_of(twice[0]) == FREE && rate_of(twice[1]) == FREE && rate_of(slow) == 1000);
	pacing_apply(NULL, 0, 0);
	CHECK(rate_of(slow) == FREE && rate_of(other) == FREE);
	is_rate_of_the_senders();
	return 0;
}
