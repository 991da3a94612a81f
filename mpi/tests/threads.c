/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that ask for the attribute's key at once, and set, get, copy and delete attributes of communicators of their
 * own at once, and of one that all look at. */
#include "check.h"
#include <keeptime_mpi.h>

#include <pthread.h>

#define THREADS 4
#define ROUNDS 25

static MPI_Comm own[THREADS];
static pthread_barrier_t all_there;

/* All are told one key. */
static void *look_up(void *key)
{
	pthread_barrier_wait(&all_there);
	*(int *)key = KEEPTIME_QOS;
	return NULL;
}

static void look_up_at_once(void)
{
	pthread_t threads[THREADS];
	int keys[THREADS];

	CHECK(!pthread_barrier_init(&all_there, NULL, THREADS));
	for (int at = 0; at < THREADS; at++)
		CHECK(!pthread_create(&threads[at], NULL, look_up, &keys[at]));
	for (int at = 0; at < THREADS; at++)
		CHECK(!pthread_join(threads[at], NULL));
	for (int at = 0; at < THREADS; at++)
		CHECK(keys[at] != MPI_KEYVAL_INVALID && keys[at] == KEEPTIME_QOS);
}

static void *use(void *argument)
{
	MPI_Comm comm = *(MPI_Comm *)argument;

	for (int round = 0; round < ROUNDS; round++) {
		keeptime_qos qos = KEEPTIME_QOS_INIT, *got = NULL;
		int flag = 0;

		qos.qos_class = KEEPTIME_LOW_LATENCY;
		qos.bandwidth_kbps = round;
		CHECK(MPI_Comm_set_attr(comm, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
		CHECK(MPI_Comm_get_attr(comm, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS);
		CHECK(flag && got->bandwidth_kbps == round);
		CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS);
		CHECK(flag && got->bandwidth_kbps == 77);
		if (round % 3 == 0)
			CHECK(MPI_Comm_delete_attr(comm, KEEPTIME_QOS) == MPI_SUCCESS);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;
	pthread_t threads[THREADS];
	int provided;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	if (provided < MPI_THREAD_MULTIPLE) {
		puts("skipped: this MPI has no MPI_THREAD_MULTIPLE");
		MPI_Finalize();
		return 0;
	}
	look_up_at_once();
	qos.bandwidth_kbps = 77;
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	for (int at = 0; at < THREADS; at++)
		CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &own[at]) == MPI_SUCCESS);
	for (int at = 0; at < THREADS; at++)
		CHECK(!pthread_create(&threads[at], NULL, use, &own[at]));
	for (int at = 0; at < THREADS; at++)
		CHECK(!pthread_join(threads[at], NULL));
	for (int at = 0; at < THREADS; at++)
		CHECK(MPI_Comm_free(&own[at]) == MPI_SUCCESS);
	MPI_Finalize();
	return 0;
}
