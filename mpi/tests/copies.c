/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A copy that asks for itself is answered when the program has it, and while that is waited for, other threads go on:
 * one copies, another looks at an attribute that is not ours. With the recorder when it is slow. One rank. */
#include "check.h"
#include <keeptime_mpi.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* Half of what each answer takes. */
#define SECONDS_MAX 1.0

static MPI_Comm made;
static atomic_int is_made;

static void *make(void *unused)
{
	CHECK(MPI_Comm_dup(MPI_COMM_SELF, &made) == MPI_SUCCESS);
	atomic_store(&is_made, 1);
	return unused;
}

static double look_at(int key)
{
	double begin = MPI_Wtime();
	void *value;
	int flag;

	CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, key, &value, &flag) == MPI_SUCCESS && !flag);
	return MPI_Wtime() - begin;
}

int main(int argc, char **argv)
{
	struct timespec moment = { .tv_nsec = 10 * 1000 * 1000 };
	keeptime_qos qos = KEEPTIME_QOS_INIT, *got = NULL;
	int provided, key, flag = 0;
	double longest = 0;
	pthread_t thread;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	if (provided < MPI_THREAD_MULTIPLE) {
		puts("skipped: this MPI has no MPI_THREAD_MULTIPLE");
		MPI_Finalize();
		return 0;
	}
	qos.qos_class = KEEPTIME_LOW_LATENCY;
	qos.options = KEEPTIME_INHERIT_OWN;
	CHECK(MPI_Comm_set_attr(MPI_COMM_SELF, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &key, NULL) == MPI_SUCCESS);
	CHECK(!pthread_create(&thread, NULL, make, NULL));
	while (!atomic_load(&is_made)) {
		double took = look_at(key);

		longest = took > longest ? took : longest;
		nanosleep(&moment, NULL);
	}
	CHECK(!pthread_join(thread, NULL));
	CHECK(MPI_Comm_get_attr(made, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && flag);
	CHECK(got->state == KEEPTIME_GRANTED);
	printf("looks took at most %.3f s\n", longest);
	CHECK(longest < SECONDS_MAX);
	MPI_Comm_free(&made);
	MPI_Finalize();
	return 0;
}
