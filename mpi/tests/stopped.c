/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Who is stopped and goes on while the agent is asked is answered all the same: agents that keep shares from user space
 * stop ranks many times a second. With the recorder when it is slow: no answer comes between two stops. One rank. */
#define _GNU_SOURCE
#include "check.h"
#include <keeptime_mpi.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STOP_EVERY_MILLISECONDS 100
/* Many answers long. */
#define SECONDS_MAX 30

static const struct timespec moment = { .tv_nsec = 10 * 1000 * 1000 };

/* Stops `rank` again and again, from the first byte of `told` to its end. */
static void disturb(pid_t rank, int told)
{
	struct pollfd end = { .fd = told, .events = POLLIN };
	char begin;

	if (read(told, &begin, 1) != 1)
		return;
	while (poll(&end, 1, STOP_EVERY_MILLISECONDS) == 0) {
		kill(rank, SIGSTOP);
		nanosleep(&moment, NULL);
		kill(rank, SIGCONT);
	}
}

static const keeptime_qos *until_granted(void)
{
	double begin = MPI_Wtime();
	keeptime_qos *qos = NULL;
	int flag = 0;

	do {
		nanosleep(&moment, NULL);
		CHECK(MPI_Comm_get_attr(MPI_COMM_SELF, KEEPTIME_QOS, &qos, &flag) == MPI_SUCCESS && flag);
	} while (qos->state != KEEPTIME_GRANTED && MPI_Wtime() - begin < SECONDS_MAX);
	return qos;
}

int main(int argc, char **argv)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;
	const keeptime_qos *got;
	pid_t rank = getpid(), child;
	int ends[2];

	/* Before MPI is there: not all networks like processes that fork. */
	CHECK(!pipe2(ends, O_CLOEXEC));
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(ends[1]);
		disturb(rank, ends[0]);
		_exit(0);
	}
	close(ends[0]);
	MPI_Init(&argc, &argv);
	CHECK(write(ends[1], "", 1) == 1);
	qos.qos_class = KEEPTIME_LOW_LATENCY;
	CHECK(MPI_Comm_set_attr(MPI_COMM_SELF, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	got = until_granted();
	printf("state %u: %s\n", got->state, got->reason);
	CHECK(got->state == KEEPTIME_GRANTED);
	close(ends[1]);
	CHECK(waitpid(child, NULL, 0) == child);
	MPI_Finalize();
	return 0;
}
