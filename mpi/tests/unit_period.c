/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The period that is found is that of a search through all, and the one that a loop has. */
#include "check.h"
#include "period.h"

#include <string.h>

/* Straight from the definition. */
static size_t slow(const uint32_t *events, size_t count)
{
	for (size_t run = count; run >= 3; run--) {
		const uint32_t *from = events + count - run;

		for (size_t period = 1; period * 3 <= run; period++) {
			size_t at = period;

			while (at < run && from[at] == from[at - period])
				at++;
			if (at == run)
				return period;
		}
	}
	return 0;
}

static void agrees_with_the_definition(void)
{
	uint32_t events[40], random = 1;

	for (int round = 0; round < 20000; round++) {
		size_t count = (size_t)round % 40;

		for (size_t at = 0; at < count; at++) {
			random = random * 1103515245 + 12345;
			events[at] = random >> 16 & (round % 3 ? 1 : 3);
		}
		CHECK(period_of(events, count) == slow(events, count));
	}
}

static void finds_loops(void)
{
	static uint32_t events[PERIOD_EVENTS_MAX];

	/* Set-up, then a loop of a broadcast and 25 reductions: conjugate gradients. */
	for (size_t at = 0; at < PERIOD_EVENTS_MAX; at++)
		events[at] = at < 100 ? (uint32_t)at + 7 : (at - 100) % 26 == 0;
	CHECK(period_of(events, PERIOD_EVENTS_MAX) == 26);
	CHECK(period_of(events, 100 + 3 * 26) == 26);
	CHECK(period_of(events, 100) == 0);
	for (size_t at = 0; at < PERIOD_EVENTS_MAX; at++)
		events[at] = 5;
	CHECK(period_of(events, PERIOD_EVENTS_MAX) == 1);
	CHECK(period_of(events, 2) == 0 && period_of(events, 0) == 0);
	CHECK(period_of(events, PERIOD_EVENTS_MAX + 1) == 0);
}

int main(void)
{
	agrees_with_the_definition();
	finds_loops();
	return 0;
}
