/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "period.h"

#define REPEATS_MIN 3

/* By the failure function of Knuth, Morris and Pratt over the events, the last one first: the first n
 * of these have the period n - border[n]. */
size_t period_of(const uint32_t *events, size_t count)
{
	uint16_t border[PERIOD_EVENTS_MAX + 1];
	size_t known = 0, found = 0;

	if (count > PERIOD_EVENTS_MAX)
		return 0;
	border[0] = 0;
	if (count > 0)
		border[1] = 0;
	for (size_t n = 2; n <= count; n++) {
		uint32_t event = events[count - n];

		while (known > 0 && events[count - 1 - known] != event)
			known = border[known];
		if (events[count - 1 - known] == event)
			known++;
		border[n] = (uint16_t)known;
		if (n >= REPEATS_MIN * (n - known))
			found = n - known;
	}
	return found;
}
