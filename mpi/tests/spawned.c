/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A world that was spawned asks for nothing: its ranks could not be told from those of the world that did that.
 * With the recorder. One rank, which spawns another one with the library preloaded as it has it. */
#include "check.h"
#include <keeptime_mpi.h>

static void ask_and_expect(enum keeptime_qos_state state)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT, *got = NULL;
	int flag = 0;

	qos.qos_class = KEEPTIME_LOW_LATENCY;
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && flag);
	if (got->state != state)
		fprintf(stderr, "state %u: %s\n", got->state, got->reason);
	CHECK(got->state == state);
}

static int spawn(char *program, MPI_Comm *children)
{
	char preload[4096], agent[512], *words[] = { preload, agent, program, NULL };

	CHECK(getenv("LD_PRELOAD") && getenv("KEEPTIME_AGENT"));
	snprintf(preload, sizeof preload, "LD_PRELOAD=%s", getenv("LD_PRELOAD"));
	snprintf(agent, sizeof agent, "KEEPTIME_AGENT=%s", getenv("KEEPTIME_AGENT"));
	MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
	return MPI_Comm_spawn("/usr/bin/env", words, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, children,
			      MPI_ERRCODES_IGNORE);
}

int main(int argc, char **argv)
{
	MPI_Comm other = MPI_COMM_NULL;

	MPI_Init(&argc, &argv);
	MPI_Comm_get_parent(&other);
	if (other != MPI_COMM_NULL) {
		/* The library is there. */
		CHECK(keeptime_mpi_keyval);
		ask_and_expect(KEEPTIME_NOT_ASKED);
	} else {
		ask_and_expect(KEEPTIME_GRANTED);
		if (spawn(argv[0], &other) != MPI_SUCCESS) {
			puts("skipped: nothing can be spawned here");
			MPI_Finalize();
			return 0;
		}
	}
	/* Neither leaves before the other has asked. */
	MPI_Barrier(other);
	MPI_Comm_disconnect(&other);
	MPI_Finalize();
	return 0;
}
