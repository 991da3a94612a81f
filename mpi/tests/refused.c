/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the agent refuses as a whole leaves what was granted before, and keeps nothing from being asked for later. With
 * the recorder, which refuses lines that name messages of 666 bytes. Any number of ranks. */
#include "check.h"
#include <keeptime_mpi.h>

#include <string.h>

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
	MPI_Comm_free(&copy);
	MPI_Finalize();
	return 0;
}
