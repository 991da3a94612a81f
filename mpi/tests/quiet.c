/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Tells once how far it is, and computes on for four seconds without another word. One rank. */
#include "check.h"
#include <keeptime_mpi.h>

#include <time.h>

int main(int argc, char **argv)
{
	struct timespec long_enough = { .tv_sec = 4 };

	MPI_Init(&argc, &argv);
	keeptime_progress(7);
	nanosleep(&long_enough, NULL);
	MPI_Finalize();
	return 0;
}
