/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds how many events an iteration of a program has, from the events that it had (pure). */
#ifndef KEEPTIME_PERIOD_H
#define KEEPTIME_PERIOD_H

#include <stddef.h>
#include <stdint.h>

/* Most events that are looked at: an iteration has at most a third of them. */
#define PERIOD_EVENTS_MAX 1536

/* The period of the longest run at the end of `events` that repeats itself at least three times; 0 if
 * there is none. O(count). At most PERIOD_EVENTS_MAX events, oldest first. */
size_t period_of(const uint32_t *events, size_t count);

#endif
