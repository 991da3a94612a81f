/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Asks for a rate among all ranks, for low latency if that is 0, or for a goal instead, and holds it for
 * so many seconds, or until a file is there: holds KBPS SECONDS|FILE [WITHIN_SECONDS]. Each rank tells what
 * became of it and how long that took, and whatever changes later. */
#include "check.h"
#include <keeptime_mpi.h>

#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_over(const char *end, double passed)
{
	return end[0] == '/' ? access(end, F_OK) == 0 : passed >= atof(end);
}

int main(int argc, char **argv)
{
	struct timespec moment = { .tv_nsec = 20 * 1000 * 1000 };
	keeptime_qos qos = KEEPTIME_QOS_INIT, *granted;
	double begin, took;
	uint32_t state;
	int rank, flag;

	MPI_Init(&argc, &argv);
	CHECK(argc == 3 || argc == 4);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	qos.bandwidth_kbps = atof(argv[1]);
	qos.within_seconds = argc == 4 ? atof(argv[3]) : 0;
	qos.qos_class = argc == 4                 ? KEEPTIME_BEST_EFFORT
			: qos.bandwidth_kbps > 0 ? KEEPTIME_PREMIUM
						 : KEEPTIME_LOW_LATENCY;
	qos.max_message_size = 1 << 20;
	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime();
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	took = MPI_Wtime() - begin;
	CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &granted, &flag) == MPI_SUCCESS && flag);
	state = granted->state;
	printf("rank %d state %u after %.0f us: %.0f kbit/s, %g s promised, %s\n", rank, state, took * 1e6,
	       granted->reserved_kbps, granted->promised_seconds, granted->reason);
	fflush(stdout);
	while (!is_over(argv[2], MPI_Wtime() - begin)) {
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
