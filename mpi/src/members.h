/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A communicator by the ranks in it and who of them talks to whom: as all its ranks know it without
 * asking each other. */
#ifndef KEEPTIME_MEMBERS_H
#define KEEPTIME_MEMBERS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

struct members {
	int count;
	int *ranks; /* in MPI_COMM_WORLD */
	char *talk; /* "all-to-all", or pairs of positions as in "0>1 1>0" */
	int alone;  /* this rank, if it talks to nobody and nobody to it: it tells of itself alone, and counts the
		     * communicator as its other ranks do; else less than 0 */
};

/* Local. False with a reason if it cannot be described. */
bool members_of(MPI_Comm comm, struct members *members, char *reason, size_t reason_size);
bool members_copy(const struct members *members, struct members *copy);
bool members_same(const struct members *one, const struct members *other);
void members_free(struct members *members);

#endif
