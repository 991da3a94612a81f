/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A loop of a broadcast and five reductions for three seconds. Tells nothing by itself, or with an
 * argument its iterations. */
#include "check.h"
#include <keeptime_mpi.h>

#include <time.h>

int main(int argc, char **argv)
{
	struct timespec moment = { .tv_nsec = 5 * 1000 * 1000 };
	double value = 1, sum = 0, begin;
	uint64_t iterations = 0;
	int go_on = 1;

	MPI_Init(&argc, &argv);
	begin = MPI_Wtime();
	while (go_on) {
		go_on = MPI_Wtime() - begin < 3;
		MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
		for (int inner = 0; inner < 5; inner++)
			MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		nanosleep(&moment, NULL);
		iterations++;
		if (argc > 1)
			keeptime_progress(iterations);
	}
	CHECK(sum >= 1);
	MPI_Finalize();
	printf("iterations %llu\n", (unsigned long long)iterations);
	return 0;
}
