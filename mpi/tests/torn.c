/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An answer that breaks off paces nothing: connections are paced as the whole one before it said. With the recorder that is
 * "torn", one rank. */
#define _GNU_SOURCE
#include "connection.h"
#include <keeptime_mpi.h>

#include <string.h>
#include <time.h>

#define PACED 10000000UL

static int is_paced(int connection)
{
	return rate_of(connection) == PACED;
}

static const keeptime_qos *granted(MPI_Comm communicator)
{
	keeptime_qos *granted;
	int flag;

	CHECK(MPI_Comm_get_attr(communicator, KEEPTIME_QOS, &granted, &flag) == MPI_SUCCESS && flag);
	return granted;
}

int main(int argc, char **argv)
{
	struct timespec moment = { .tv_nsec = 10 * 1000 * 1000 };
	keeptime_qos qos = KEEPTIME_QOS_INIT;
	MPI_Comm copy;
	int one = connection_to("127.0.0.2"), other = connection_to("127.0.0.3");

	MPI_Init(&argc, &argv);
	qos.bandwidth_kbps = 1000;
	qos.qos_class = KEEPTIME_PREMIUM;
	qos.max_message_size = 1 << 20;
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(granted(MPI_COMM_WORLD)->state == KEEPTIME_GRANTED);
	for (int tries = 0; tries < 3000 && !(is_paced(one) && is_paced(other)); tries++)
		nanosleep(&moment, NULL);
	CHECK(is_paced(one) && is_paced(other));
	/* Nobody lets it in again after the one that breaks off. */
	CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &copy) == MPI_SUCCESS);
	CHECK(MPI_Comm_set_attr(copy, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	for (int tries = 0; tries < 3000 && !strstr(granted(copy)->reason, "hangs up"); tries++)
		nanosleep(&moment, NULL);
	CHECK(strstr(granted(copy)->reason, "hangs up"));
	CHECK(is_paced(one) && is_paced(other));
	MPI_Finalize();
	printf("torn\n");
	return 0;
}
