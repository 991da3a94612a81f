/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two threads set the attribute of one communicator, the second while the first waits for its answer: that is another
 * value of the same, and nothing that is asked for beside. With the recorder when it is slow, which writes down how it is
 * counted. With an argument, and the recorder when it is not: both do so again and again. One rank. */
#include "check.h"
#include <keeptime_mpi.h>

#include <pthread.h>
#include <time.h>

#define ROUNDS 300

static void set(uint64_t message_size)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;

	qos.qos_class = KEEPTIME_LOW_LATENCY;
	qos.max_message_size = message_size;
	CHECK(MPI_Comm_set_attr(MPI_COMM_SELF, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
}

static void *set_first(void *unused)
{
	set(1111);
	return unused;
}

static void *set_many(void *unused)
{
	for (int round = 0; round < ROUNDS; round++)
		set(1000);
	return unused;
}

static void both_set_many(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, set_many, NULL));
	set_many(NULL);
	CHECK(!pthread_join(thread, NULL));
}

int main(int argc, char **argv)
{
	struct timespec moment = { .tv_nsec = 10 * 1000 * 1000 };
	keeptime_qos *got = NULL;
	int provided, flag = 0;
	pthread_t thread;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	if (provided < MPI_THREAD_MULTIPLE) {
		puts("skipped: this MPI has no MPI_THREAD_MULTIPLE");
		MPI_Finalize();
		return 0;
	}
	if (argc > 1) {
		both_set_many();
		MPI_Finalize();
		return 0;
	}
	CHECK(!pthread_create(&thread, NULL, set_first, NULL));
	while (!flag) {
		nanosleep(&moment, NULL);
		CHECK(MPI_Comm_get_attr(MPI_COMM_SELF, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS);
	}
	set(2222);
	CHECK(!pthread_join(thread, NULL));
	CHECK(MPI_Comm_get_attr(MPI_COMM_SELF, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && flag);
	CHECK(got->max_message_size == 2222);
	MPI_Finalize();
	return 0;
}
