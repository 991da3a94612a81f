/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Ends badly with an attribute set: abort MPI_Abort with code 7, kill a rank that dies. */
#include "check.h"
#include <keeptime_mpi.h>

#include <signal.h>
#include <string.h>

int main(int argc, char **argv)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;
	int rank;

	MPI_Init(&argc, &argv);
	CHECK(argc == 2);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = 1000;
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 1 && !strcmp(argv[1], "kill"))
		raise(SIGKILL);
	if (rank == 1)
		MPI_Abort(MPI_COMM_WORLD, 7);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Finalize();
	return 0;
}
