/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the agent refuses as a whole leaves what was granted before, and keeps nothing from being asked for later; and so
 * does what no line has room for. With the recorder, which refuses lines that name messages of 666 bytes. Two ranks or
 * more. */
#include "check.h"
#include <keeptime_mpi.h>

#include <string.h>

/* Each is told in four bytes at least: the agent reads a MiB. */
#define EDGES 150000

static const keeptime_qos *get(MPI_Comm comm)
{
	keeptime_qos *qos = NULL;
	int flag = 0;

	CHECK(MPI_Comm_get_attr(comm, KEEPTIME_QOS, &qos, &flag) == MPI_SUCCESS && flag);
	return qos;
}

static void set(MPI_Comm comm, uint64_t message_size)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;

	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = 1000;
	qos.max_message_size = message_size;
	CHECK(MPI_Comm_set_attr(comm, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
}

/* The first two ranks, with so many edges from each to the other; the others have none. */
static MPI_Comm graph_of_many_edges(void)
{
	int *edges = malloc(2 * EDGES * sizeof *edges), ends[2] = { EDGES, 2 * EDGES };
	MPI_Comm graph;

	CHECK(edges);
	for (int at = 0; at < 2 * EDGES; at++)
		edges[at] = at < EDGES;
	CHECK(MPI_Graph_create(MPI_COMM_WORLD, 2, ends, edges, 0, &graph) == MPI_SUCCESS);
	free(edges);
	return graph;
}

static void too_long_is_refused_for_itself(MPI_Comm copy)
{
	MPI_Comm graph = graph_of_many_edges();

	if (graph == MPI_COMM_NULL)
		return;
	set(graph, 100);
	CHECK(get(graph)->state == KEEPTIME_REFUSED && strstr(get(graph)->reason, "too many pairs"));
	set(copy, 200);
	CHECK(get(copy)->state == KEEPTIME_GRANTED);
	CHECK(get(MPI_COMM_WORLD)->state == KEEPTIME_GRANTED);
	MPI_Comm_free(&graph);
}

int main(int argc, char **argv)
{
	MPI_Comm copy;

	MPI_Init(&argc, &argv);
	set(MPI_COMM_WORLD, 100);
	CHECK(get(MPI_COMM_WORLD)->state == KEEPTIME_GRANTED);
	CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &copy) == MPI_SUCCESS);
	set(copy, 666);
	CHECK(get(copy)->state == KEEPTIME_REFUSED && strstr(get(copy)->reason, "666"));
	CHECK(get(MPI_COMM_WORLD)->state == KEEPTIME_GRANTED && get(MPI_COMM_WORLD)->reserved_kbps > 0);
	set(copy, 100);
	CHECK(get(copy)->state == KEEPTIME_GRANTED);
	CHECK(get(MPI_COMM_WORLD)->state == KEEPTIME_GRANTED);
	too_long_is_refused_for_itself(copy);
	MPI_Comm_free(&copy);
	MPI_Finalize();
	return 0;
}
