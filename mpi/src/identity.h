/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Communicators by numbers that are the same on all their ranks, whatever else these do in whatever order: which one it is of
 * those that were made of its parent. MPI has all ranks of the parent make them in one order. */
#ifndef KEEPTIME_IDENTITY_H
#define KEEPTIME_IDENTITY_H

#include <mpi.h>
#include <stdint.h>

struct identity {
	uint64_t number;   /* not 0 */
	uint32_t children; /* communicators that were made of it */
	uint32_t asks;     /* how often its attribute has begun to ask for something */
};

/* Numbers communicators from now on. When MPI is initialised, and at no other time: all ranks have made the same ones then. */
void identities_begin(void);
/* Nothing where it has none: of what only some ranks of its parent have made, of intercommunicators, and of what was made
 * without coming by here, as by Open MPI's Fortran. */
struct identity *identity_of(MPI_Comm comm);
/* That of what is being made of `comm`, and is counted by this; its number is 0 where `comm` has none. */
struct identity identity_next(MPI_Comm comm);
/* Gives it to what was made, where this rank is in that, with what that has asked for meanwhile. */
void identity_give(MPI_Comm made, const struct identity *identity);
/* What tells its next ask from all others with the same members, on all ranks alike. */
uint32_t identity_next_index(struct identity *identity);

#endif
