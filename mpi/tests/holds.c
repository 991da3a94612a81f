/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Asks for a rate among all ranks and holds it: holds KBPS SECONDS. Each rank tells what became of it
 * and how long that took, and whatever changes later. */
#include "check.h"
#include <keeptime_mpi.h>

#include <string.h>
#include <time.h>

int main(int argc, char **argv)
{
	struct timespec moment = { .tv_nsec = 20 * 1000 * 1000 };
	keeptime_qos qos = KEEPTIME_QOS_INIT, *granted;
	double begin, took;
	uint32_t state;
	int rank, flag;

	MPI_Init(&argc, &argv);
	CHECK(argc == 3);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = atof(argv[1]);
	qos.max_message_size = 1 << 20;
	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime();
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	took = MPI_Wtime() - begin;
	CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &granted, &flag) == MPI_SUCCESS && flag);
	state = granted->state;
	printf("rank %d state %u after %.0f us: %.0f kbit/s, %s\n", rank, state, took * 1e6,
	       granted->reserved_kbps, granted->reason);
	fflush(stdout);
	while (MPI_Wtime() - begin < atof(argv[2])) {
		nanosleep(&moment, NULL);
		CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &granted, &flag) == MPI_SUCCESS);
		if (granted->state != state)
			printf("rank %d turned to %u: %s\n", rank, granted->state, granted->reason);
		state = granted->state;
		fflush(stdout);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Finalize();
	printf("rank %d ended\n", rank);
	return 0;
}
