/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Who ends while the agent lets nobody in does not wait for it. With the recorder when that lasts longer than SECONDS_MAX. */
#include "check.h"
#include <keeptime_mpi.h>

#include <time.h>

/* Half of what is tried to get in; MPI_Finalize itself may take its time on a busy machine. */
#define SECONDS_MAX 5.0

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	struct timespec moment = { .tv_nsec = 200 * 1000 * 1000 };
	double begin;

	MPI_Init(&argc, &argv);
	/* So that the agent is being called. */
	nanosleep(&moment, NULL);
	begin = now();
	MPI_Finalize();
	printf("MPI_Finalize took %.3f s\n", now() - begin);
	CHECK(now() - begin < SECONDS_MAX);
	return 0;
}
