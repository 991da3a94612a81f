/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sets attributes on communicators of several shapes, one after the other, with a message size that
 * tells them apart in what the agent is told. Four ranks. The last one is paced while it is looked at. */
#include "check.h"
#include <keeptime_mpi.h>

#include <sys/socket.h>
#include <time.h>

static void set(MPI_Comm comm, uint64_t mark)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;

	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = 1000;
	qos.max_message_size = mark;
	CHECK(MPI_Comm_set_attr(comm, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(MPI_Comm_delete_attr(comm, KEEPTIME_QOS) == MPI_SUCCESS);
}

static int any_is_paced(void)
{

	for (int descriptor = 0; descriptor < 1024; descriptor++) {
		unsigned long pace = ~0ul;
		socklen_t size = sizeof pace;

		if (!getsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, &size) && pace != ~0ul)
			return 1;
	}
	return 0;
}

static void wait_until_paced(int is_paced)
{
	struct timespec moment = { .tv_nsec = 10 * 1000 * 1000 };

	for (int tries = 0; tries < 300 && any_is_paced() != is_paced; tries++)
		nanosleep(&moment, NULL);
	CHECK(any_is_paced() == is_paced);
}

int main(int argc, char **argv)
{
	int rank, size, edges[] = { 1, 0 }, ends[] = { 1, 2, 2, 2 }, peer, before, neighbours, token = 0;
	int extents[] = { 2, 2 }, open[] = { 0, 0 };
	MPI_Comm grid, half, inter, graph, near, three;
	keeptime_qos qos = KEEPTIME_QOS_INIT;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(size == 4);
	set(MPI_COMM_WORLD, 1001);
	MPI_Cart_create(MPI_COMM_WORLD, 2, extents, open, 0, &grid);
	set(grid, 1002);
	MPI_Comm_split(MPI_COMM_WORLD, rank / 2, 0, &half);
	set(half, 1003);
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank < 2 ? 2 : 0, 7, &inter);
	set(inter, 1004);
	MPI_Graph_create(MPI_COMM_WORLD, 4, ends, edges, 0, &graph);
	set(graph, 1005);
	peer = (rank + 1) % 4;
	before = (rank + 3) % 4;
	MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &before, MPI_UNWEIGHTED, 1, &peer, MPI_UNWEIGHTED,
				       MPI_INFO_NULL, 0, &near);
	set(near, 1006);
	set(MPI_COMM_SELF, 1007);
	/* A ring of three, and one that is in it with nobody. */
	neighbours = rank < 3;
	peer = (rank + 1) % 3;
	before = (rank + 2) % 3;
	MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, neighbours, &before, MPI_UNWEIGHTED, neighbours, &peer,
				       MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &three);
	set(three, 1008);
	set(MPI_COMM_WORLD, 1009);
	/* Every pair has a connection from here on. */
	MPI_Alltoall(MPI_IN_PLACE, 0, MPI_INT, &(int[4]){0}, 1, MPI_INT, MPI_COMM_WORLD);
	if (argc > 1) {
		qos.qos_class = KEEPTIME_PREMIUM;
		qos.bandwidth_kbps = 1000;
		CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
		wait_until_paced(1);
		CHECK(MPI_Comm_delete_attr(MPI_COMM_WORLD, KEEPTIME_QOS) == MPI_SUCCESS);
		wait_until_paced(0);
	}
	puts("at the end");
	fflush(stdout);
	/* Nobody leaves while others look. Who hangs in MPI_Finalize (see run.sh) may hold this up for the others. */
	MPI_Bcast(&token, 1, MPI_INT, 0, MPI_COMM_WORLD);
	MPI_Finalize();
	return 0;
}
