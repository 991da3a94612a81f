/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sets attributes of communicators with the same members: one rank in the order in which they were made, the other the other
 * way round, as threads may come to do it. Both tell of each by the same number, and of no two by one. Message sizes tell
 * them apart in what the agent is told. With the recorder. Two ranks. */
#include "check.h"
#include <keeptime_mpi.h>

#define COUNT 7
#define MARK 3001

static void set(MPI_Comm comm, uint64_t mark, uint32_t options)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;

	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = 1000;
	qos.max_message_size = mark;
	qos.options = options;
	CHECK(MPI_Comm_set_attr(comm, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
}

int main(int argc, char **argv)
{
	MPI_Comm all[COUNT] = { MPI_COMM_WORLD }, shared;
	MPI_Group group;
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(size == 2);
	MPI_Comm_dup(MPI_COMM_WORLD, &all[1]);
	MPI_Comm_dup(MPI_COMM_WORLD, &all[2]);
	MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &all[3]);
	MPI_Comm_dup(all[1], &all[4]);
	MPI_Comm_split_type(all[2], MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &all[5]);
	MPI_Comm_group(all[3], &group);
	MPI_Comm_create(all[3], group, &all[6]);
	MPI_Group_free(&group);
	for (int turn = 0; turn < COUNT; turn++) {
		int at = rank ? COUNT - 1 - turn : turn;

		set(all[at], (uint64_t)(MARK + at), KEEPTIME_INHERIT_SHARED);
	}
	/* A copy holds on what the original had, which has something else then. */
	MPI_Comm_dup(all[1], &shared);
	set(all[1], MARK + COUNT, 0);
	MPI_Comm_free(&shared);
	for (int at = 1; at < COUNT; at++)
		MPI_Comm_free(&all[at]);
	MPI_Finalize();
	return 0;
}
