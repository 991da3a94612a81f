/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Begins and ends by the names of the profiling interface, as Open MPI's Fortran does; then one rank looks for the key before a
 * communicator is made, the other after that. They set attributes in one order, and tell of each communicator by the same
 * number. With the recorder. Two ranks. */
#include "check.h"
#include <keeptime_mpi.h>

static void set(MPI_Comm comm, uint64_t mark)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;

	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = 1000;
	qos.max_message_size = mark;
	CHECK(MPI_Comm_set_attr(comm, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
}

int main(int argc, char **argv)
{
	MPI_Comm copy;
	int rank, size;

	PMPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(size == 2);
	if (!rank)
		CHECK(KEEPTIME_QOS != MPI_KEYVAL_INVALID);
	CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &copy) == MPI_SUCCESS);
	set(copy, 3101);
	set(MPI_COMM_WORLD, 3102);
	MPI_Comm_free(&copy);
	PMPI_Finalize();
	return 0;
}
