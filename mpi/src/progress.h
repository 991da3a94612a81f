/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How far the program is: what it tells, or else the collective operations that it begins. */
#ifndef KEEPTIME_PROGRESS_H
#define KEEPTIME_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
	uint64_t operations; /* begun so far */
	uint32_t period;     /* so many of them make an iteration; 0 = they do not repeat */
	uint64_t told;       /* iterations, as the program told */
};

/* Whether anybody wants to know: else counting costs one look at this. */
extern atomic_bool progress_is_counted;

void progress_count_from_now(bool is_counted);
/* The program begins a collective operation; `kind` tells such apart that belong to different places
 * of an iteration. */
void progress_note(uint32_t kind);

static inline void progress_count(uint32_t kind)
{
	if (atomic_load_explicit(&progress_is_counted, memory_order_relaxed))
		progress_note(kind);
}

/* As it is now. For one thread. */
struct progress progress_now(void);

#endif
