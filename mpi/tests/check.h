/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A condition that must hold: otherwise the program says which, and ends at once. */
#ifndef KEEPTIME_CHECK_H
#define KEEPTIME_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                    \
	do {                                                                                \
		if (!(condition)) {                                                         \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
			_Exit(1);                                                           \
		}                                                                           \
	} while (0)

#endif
