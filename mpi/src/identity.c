/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "identity.h"

#include <stdlib.h>

/* Less than that are those of communicators without a number, which are counted as they are given attributes. */
#define INDEX_OF_NUMBER 0x80000000u
#define WORLD 1
#define SELF 2

static int key = MPI_KEYVAL_INVALID;

/* What is close together comes far apart, and no two become the same (splitmix64). */
static uint64_t mixed(uint64_t number)
{
	number += 0x9e3779b97f4a7c15u;
	number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
	number = (number ^ number >> 27) * 0x94d049bb133111ebu;
	return number ^ number >> 31;
}

static int forget(MPI_Comm comm, int forgotten, void *identity, void *extra)
{
	(void)comm, (void)forgotten, (void)extra;
	free(identity);
	return MPI_SUCCESS;
}

void identities_begin(void)
{
	/* A copy has a number of its own. */
	if (key != MPI_KEYVAL_INVALID ||
	    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, NULL) != MPI_SUCCESS)
		return;
	identity_give(MPI_COMM_WORLD, &(struct identity){ .number = mixed(WORLD) });
	identity_give(MPI_COMM_SELF, &(struct identity){ .number = mixed(SELF) });
}

struct identity *identity_of(MPI_Comm comm)
{
	struct identity *identity = NULL;
	int flag = 0;

	if (key == MPI_KEYVAL_INVALID || comm == MPI_COMM_NULL ||
	    PMPI_Comm_get_attr(comm, key, &identity, &flag) != MPI_SUCCESS)
		return NULL;
	return flag ? identity : NULL;
}

struct identity identity_next(MPI_Comm comm)
{
	struct identity *parent = identity_of(comm), next = {0};

	if (!parent)
		return next;
	next.number = mixed(parent->number + mixed(++parent->children));
	if (!next.number)
		next.number = 1;
	return next;
}

void identity_give(MPI_Comm made, const struct identity *identity)
{
	struct identity *own;

	if (!identity->number || made == MPI_COMM_NULL)
		return;
	own = malloc(sizeof *own);
	if (!own)
		return;
	*own = *identity;
	if (PMPI_Comm_set_attr(made, key, own) != MPI_SUCCESS)
		free(own);
}

uint32_t identity_next_index(struct identity *identity)
{
	return (uint32_t)(mixed(identity->number + identity->asks++) >> 32) | INDEX_OF_NUMBER;
}

/* --- what makes communicators ---------------------------------------------------------------------- */

/* All ranks of `comm` take part in each of these, also those that are not in what is made. What copies its attributes as well
 * is among those (attribute.c). */

static int made_by(int code, struct identity identity, const MPI_Comm *made)
{
	if (code == MPI_SUCCESS)
		identity_give(*made, &identity);
	return code;
}

#define MAKES(name, parameters, arguments)                             \
	int MPI_##name parameters                                      \
	{                                                              \
		struct identity identity = identity_next(comm);        \
                                                                       \
		return made_by(PMPI_##name arguments, identity, made); \
	}

#define COMM MPI_Comm comm
#define MADE MPI_Comm *made

/* clang-format off */
MAKES(Comm_create, (COMM, MPI_Group group, MADE), (comm, group, made))
MAKES(Comm_split, (COMM, int color, int order, MADE), (comm, color, order, made))
MAKES(Comm_split_type, (COMM, int type, int order, MPI_Info info, MADE), (comm, type, order, info, made))
MAKES(Cart_create, (COMM, int count, const int *extents, const int *periodic, int reorder, MADE), (comm, count, extents, periodic, reorder, made))
MAKES(Cart_sub, (COMM, const int *remain, MADE), (comm, remain, made))
MAKES(Graph_create, (COMM, int count, const int *ends, const int *edges, int reorder, MADE), (comm, count, ends, edges, reorder, made))
MAKES(Dist_graph_create, (COMM, int count, const int *from, const int *degrees, const int *to, const int *weights, MPI_Info info, int reorder, MADE), (comm, count, from, degrees, to, weights, info, reorder, made))
MAKES(Dist_graph_create_adjacent, (COMM, int in, const int *from, const int *from_weights, int out, const int *to, const int *to_weights, MPI_Info info, int reorder, MADE), (comm, in, from, from_weights, out, to, to_weights, info, reorder, made))
