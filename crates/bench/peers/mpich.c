/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Pairs of threads of two MPI processes, one process on each of two cores, each with round trips of its own tag:
 *
 *     mpiexec -n 2 PROGRAM THREADS BYTES COUNT    says the microseconds of one of all round trips
 */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS_MOST = 64, WARM_UP = 50 };

static int rank;
static int bytes;
static int count;

static void *round_trips(void *number)
{
	int tag = *(int *)number;
	char *data = calloc(1, bytes);
	int other = 1 - rank;

	for (int trip = 0; trip < WARM_UP + count && data; trip++) {
		if (rank == 0)
			MPI_Send(data, bytes, MPI_CHAR, other, tag, MPI_COMM_WORLD);
		MPI_Recv(data, bytes, MPI_CHAR, other, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(data, bytes, MPI_CHAR, other, tag, MPI_COMM_WORLD);
	}
	free(data);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS_MOST];
	int numbers[THREADS_MOST];
	int pairs, provided;
	cpu_set_t core;
	double start;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	CPU_ZERO(&core);
	CPU_SET(rank, &core);
	if (provided != MPI_THREAD_MULTIPLE || argc != 4 || sched_setaffinity(0, sizeof core, &core) != 0) {
		fputs("needs MPI_THREAD_MULTIPLE, two cores, and THREADS BYTES COUNT\n", stderr);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	pairs = atoi(argv[1]);
	bytes = atoi(argv[2]);
	count = atoi(argv[3]);
	if (pairs < 1 || pairs > THREADS_MOST || bytes < 1 || count < 1) {
		fputs("1 to 64 threads, and at least 1 byte and round trip\n", stderr);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (int number = 0; number < pairs; number++) {
		numbers[number] = number;
		pthread_create(&threads[number], NULL, round_trips, &numbers[number]);
	}
	for (int number = 0; number < pairs; number++)
		pthread_join(threads[number], NULL);
	if (rank == 0)
		printf("%.4f\n", (MPI_Wtime() - start) * 1e6 / (WARM_UP + count) / pairs);
	MPI_Finalize();
	return 0;
}
