/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "progress.h"

#include "keeptime_mpi.h"
#include "period.h"

/* More than are looked at: some may be overwritten meanwhile. A power of two. */
#define EVENTS_KEPT 4096

atomic_bool progress_is_counted;

static atomic_uint_least64_t events_begun;
static atomic_uint_least32_t events[EVENTS_KEPT];
static atomic_uint_least64_t iterations_told;

void progress_count_from_now(bool is_counted)
{
	atomic_store_explicit(&progress_is_counted, is_counted, memory_order_relaxed);
}

void progress_note(uint32_t kind)
{
	uint64_t at = atomic_fetch_add_explicit(&events_begun, 1, memory_order_relaxed);

	atomic_store_explicit(&events[at % EVENTS_KEPT], kind, memory_order_relaxed);
}

void keeptime_mpi_progress(uint64_t iterations)
{
	atomic_store_explicit(&iterations_told, iterations, memory_order_relaxed);
}

/* A period that was found stays until another is found: between two phases of a program nothing
 * repeats itself for a moment. */
struct progress progress_now(void)
{
	static uint32_t period;
	static uint32_t last[PERIOD_EVENTS_MAX];
	uint64_t begun = atomic_load_explicit(&events_begun, memory_order_relaxed);
	uint64_t count = begun < PERIOD_EVENTS_MAX ? begun : PERIOD_EVENTS_MAX;
	size_t found;
	struct progress progress;

	for (uint64_t at = 0; at < count; at++)
		last[at] = atomic_load_explicit(&events[(begun - count + at) % EVENTS_KEPT],
						memory_order_relaxed);
	found = period_of(last, (size_t)count);
	if (found)
		period = (uint32_t)found;
	progress.operations = begun;
	progress.period = period;
	progress.told = atomic_load_explicit(&iterations_told, memory_order_relaxed);
	return progress;
}
