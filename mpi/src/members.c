/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "members.h"

#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL_TO_ALL "all-to-all"

/* The ranks of `group` in MPI_COMM_WORLD, to `ranks`. */
static void translate(MPI_Group group, int count, int *ranks)
{
	int *own = malloc((size_t)count * sizeof *own);
	MPI_Group world;

	for (int rank = 0; rank < count; rank++) {
		ranks[rank] = MPI_UNDEFINED;
		if (own)
			own[rank] = rank;
	}
	if (own && PMPI_Comm_group(MPI_COMM_WORLD, &world) == MPI_SUCCESS) {
		PMPI_Group_translate_ranks(group, count, own, world, ranks);
		PMPI_Group_free(&world);
	}
	free(own);
}

static int lowest(const int *ranks, int count)
{
	int least = ranks[0];

	for (int at = 1; at < count; at++)
		if (ranks[at] < least)
			least = ranks[at];
	return least;
}

/* What is longer than any line is refused: no more of it is kept. */
static void add_pair(struct text *talk, int from, int to)
{
	if (from != to && talk->length <= LINE_BYTES_MAX)
		text_add(talk, talk->length ? " %d>%d" : "%d>%d", from, to);
}

/* Every rank of the first group with every one of the second, both ways. */
static void talk_between(struct text *talk, int first, int second)
{
	for (int one = 0; one < first; one++)
		for (int other = first; other < first + second; other++) {
			add_pair(talk, one, other);
			add_pair(talk, other, one);
		}
}

/* Both groups, that with the lowest rank first: their order is not the same at both sides. */
static bool intercommunicator(MPI_Comm comm, struct members *members, struct text *talk)
{
	MPI_Group groups[2];
	int counts[2], first;

	PMPI_Comm_size(comm, &counts[0]);
	PMPI_Comm_remote_size(comm, &counts[1]);
	members->count = counts[0] + counts[1];
	members->ranks = malloc((size_t)members->count * 2 * sizeof *members->ranks);
	if (!members->ranks)
		return false;
	PMPI_Comm_group(comm, &groups[0]);
	PMPI_Comm_remote_group(comm, &groups[1]);
	/* The second half of the room is for the order in which they come. */
	translate(groups[0], counts[0], members->ranks + members->count);
	translate(groups[1], counts[1], members->ranks + members->count + counts[0]);
	PMPI_Group_free(&groups[0]);
	PMPI_Group_free(&groups[1]);
	first = lowest(members->ranks + members->count, counts[0]) >
		lowest(members->ranks + members->count + counts[0], counts[1]);
	memcpy(members->ranks, members->ranks + members->count + (first ? counts[0] : 0),
	       (size_t)counts[first] * sizeof *members->ranks);
	memcpy(members->ranks + counts[first], members->ranks + members->count + (first ? 0 : counts[0]),
	       (size_t)counts[!first] * sizeof *members->ranks);
	talk_between(talk, counts[first], counts[!first]);
	return true;
}

static void talk_of_grid(MPI_Comm comm, int size, struct text *talk)
{
	int count = 0;
	int *room;

	PMPI_Cartdim_get(comm, &count);
	room = malloc((size_t)(count ? count : 1) * 3 * sizeof *room);
	if (!room) {
		talk->failed = true;
		return;
	}
	int *extents = room, *periodic = room + count, *place = room + 2 * count;

	PMPI_Cart_get(comm, count, extents, periodic, place);
	for (int rank = 0; rank < size; rank++)
		for (int step = 0; step < 2 * count; step++) {
			int along = step / 2, peer;

			PMPI_Cart_coords(comm, rank, count, place);
			place[along] += step % 2 ? 1 : -1;
			if (!periodic[along] && (place[along] < 0 || place[along] >= extents[along]))
				continue;
			/* Periodic ones are wrapped by MPI. */
			PMPI_Cart_rank(comm, place, &peer);
			add_pair(talk, rank, peer);
		}
	free(room);
}

static void talk_of_graph(MPI_Comm comm, int size, struct text *talk)
{
	for (int rank = 0; rank < size; rank++) {
		int count = 0;
		int *peers;

		PMPI_Graph_neighbors_count(comm, rank, &count);
		peers = malloc((size_t)(count ? count : 1) * sizeof *peers);
		if (!peers) {
			talk->failed = true;
			return;
		}
		PMPI_Graph_neighbors(comm, rank, count, peers);
		for (int at = 0; at < count; at++)
			add_pair(talk, rank, peers[at]);
		free(peers);
	}
}

/* Each rank knows its own neighbours only; Keeptime puts together what all say. */
static void talk_of_neighbours(MPI_Comm comm, struct text *talk)
{
	int in = 0, out = 0, weighted, rank;
	int *room;

	PMPI_Comm_rank(comm, &rank);
	PMPI_Dist_graph_neighbors_count(comm, &in, &out, &weighted);
	room = malloc((size_t)(in + out + 1) * 2 * sizeof *room);
	if (!room) {
		talk->failed = true;
		return;
	}
	PMPI_Dist_graph_neighbors(comm, in, room, room + in + out, out, room + in,
				  room + 2 * in + out);
	for (int at = 0; at < in; at++)
		add_pair(talk, room[at], rank);
	for (int at = in; at < in + out; at++)
		add_pair(talk, rank, room[at]);
	free(room);
}

static bool intracommunicator(MPI_Comm comm, struct members *members, struct text *talk)
{
	int topology = MPI_UNDEFINED, rank;
	MPI_Group group;

	PMPI_Comm_size(comm, &members->count);
	members->ranks = malloc((size_t)members->count * sizeof *members->ranks);
	if (!members->ranks)
		return false;
	PMPI_Comm_group(comm, &group);
	translate(group, members->count, members->ranks);
	PMPI_Group_free(&group);
	PMPI_Topo_test(comm, &topology);
	switch (topology) {
	case MPI_CART:
		talk_of_grid(comm, members->count, talk);
		break;
	case MPI_GRAPH:
		talk_of_graph(comm, members->count, talk);
		break;
	case MPI_DIST_GRAPH:
		talk_of_neighbours(comm, talk);
		break;
	default:
		text_add(talk, ALL_TO_ALL);
	}
	if (talk->length == 0) {
		PMPI_Comm_rank(comm, &rank);
		members->alone = members->ranks[rank];
		text_add(talk, ALL_TO_ALL);
	}
	return true;
}

/* As many as the agent knows: a list of more it does not understand, and all that the rank says with it neither. */
enum { MEMBERS_MAX = 4096 };

bool members_of(MPI_Comm comm, struct members *members, char *reason, size_t reason_size)
{
	struct text talk = {0};
	int inter = 0;
	bool done;

	memset(members, 0, sizeof *members);
	members->alone = -1;
	PMPI_Comm_test_inter(comm, &inter);
	done = inter ? intercommunicator(comm, members, &talk) : intracommunicator(comm, members, &talk);
	if (!done || talk.failed) {
		text_free(&talk);
		members_free(members);
		snprintf(reason, reason_size, "memory is lacking");
		return false;
	}
	members->talk = talk.data;
	if (members->count > MEMBERS_MAX) {
		snprintf(reason, reason_size, "the communicator has %d ranks: at most %d are supported",
			 members->count, MEMBERS_MAX);
		members_free(members);
		return false;
	}
	for (int at = 0; at < members->count; at++)
		if (members->ranks[at] == MPI_UNDEFINED) {
			members_free(members);
			snprintf(reason, reason_size,
				 "a member of the communicator is not in MPI_COMM_WORLD: ranks that were "
				 "started later (MPI_Comm_spawn, MPI_Comm_connect) are not supported");
			return false;
		}
	return true;
}

bool members_copy(const struct members *members, struct members *copy)
{
	size_t bytes = (size_t)members->count * sizeof *members->ranks;

	copy->count = members->count;
	copy->alone = members->alone;
	copy->ranks = malloc(bytes);
	copy->talk = strdup(members->talk);
	if (copy->ranks && copy->talk) {
		memcpy(copy->ranks, members->ranks, bytes);
		return true;
	}
	members_free(copy);
	return false;
}

bool members_same(const struct members *one, const struct members *other)
{
	return one->count == other->count &&
	       !memcmp(one->ranks, other->ranks, (size_t)one->count * sizeof *one->ranks);
}

void members_free(struct members *members)
{
	free(members->ranks);
	free(members->talk);
	memset(members, 0, sizeof *members);
}
