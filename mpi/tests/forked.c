/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A child that a rank forks has no connection to the agent: else it would hold what was reserved when the rank has ended.
 * And the rank is answered on. With the recorder. One rank. */
#include "check.h"
#include <keeptime_mpi.h>

#include <dirent.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* How many descriptors of this process lead to the agent. */
static int connections(const char *agent)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	CHECK(directory);
	while ((entry = readdir(directory))) {
		struct sockaddr_un peer = {0};
		socklen_t size = sizeof peer;

		if (getpeername(atoi(entry->d_name), (struct sockaddr *)&peer, &size) == 0 &&
		    peer.sun_family == AF_UNIX && !strncmp(peer.sun_path, agent, sizeof peer.sun_path))
			count++;
	}
	closedir(directory);
	return count;
}

static void check_granted(double kbps)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT, *got = NULL;
	int flag = 0;

	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = kbps;
	CHECK(MPI_Comm_set_attr(MPI_COMM_SELF, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(MPI_Comm_get_attr(MPI_COMM_SELF, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && flag);
	CHECK(got->state == KEEPTIME_GRANTED);
}

int main(int argc, char **argv)
{
	const char *agent = getenv("KEEPTIME_AGENT");
	int status = 0;
	pid_t child;

	MPI_Init(&argc, &argv);
	CHECK(agent);
	check_granted(1000);
	CHECK(connections(agent) == 1);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(connections(agent));
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(connections(agent) == 1);
	check_granted(2000);
	MPI_Finalize();
	return 0;
}
