/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Changes an attribute again and again: changes KBPS TIMES. All ranks do it at once, the rate twice as
 * much every other time. Rank 0 tells how long each change took until the last rank knew that all nodes
 * enforce it: `change NUMBER MILLISECONDS`, and at the end `changes TIMES`. */
#include "check.h"
#include <keeptime_mpi.h>

int main(int argc, char **argv)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT, *granted;
	double begin, took, slowest;
	int rank, flag, times;

	MPI_Init(&argc, &argv);
	CHECK(argc == 3);
	times = atoi(argv[2]);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	qos.qos_class = KEEPTIME_PREMIUM;
	qos.max_message_size = 1 << 20;
	for (int change = 0; change < times; change++) {
		qos.bandwidth_kbps = atof(argv[1]) * (1 + change % 2);
		MPI_Barrier(MPI_COMM_WORLD);
		begin = MPI_Wtime();
		CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
		took = MPI_Wtime() - begin;
		CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &granted, &flag) == MPI_SUCCESS && flag);
		if (granted->state != KEEPTIME_GRANTED)
			fprintf(stderr, "state %u: %s\n", granted->state, granted->reason);
		CHECK(granted->state == KEEPTIME_GRANTED);
		MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
		if (rank == 0)
			printf("change %d %.3f\n", change, slowest * 1e3);
	}
	if (rank == 0)
		printf("changes %d\n", times);
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
