/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An agent that grants whatever it is asked, and writes down every line: recorder SOCKET FILE. Each
 * connection has a process of its own; it ends with the connection, the whole with its standard input.
 * With a third argument, nobody who calls is let in for that many milliseconds. */
#define _GNU_SOURCE
#include "check.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER "{\"state\":\"granted\",\"reason\":\"\",\"wire_bits_per_second\":999000000000,\"burst_bytes\":6056,\"promised_nanos\":200000000}"
#define PACE "{\"address\":\"127.0.0.1\",\"bits_per_second\":80000000}"

static int asks_in(const char *line)
{
	int count = 0;

	for (const char *at = line; (at = strstr(at, "\"communicator\"")); at++)
		count++;
	return count;
}

static void serve(int connection, const char *path)
{
	FILE *in = fdopen(connection, "r"), *out = fdopen(dup(connection), "w"), *record = fopen(path, "a");
	char *line = NULL;
	size_t size = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK(in && out && record);
	while (getline(&line, &size, in) > 0) {
		int count = asks_in(line);

		fputs(line, record);
		fflush(record);
		if (strstr(line, "\"mpi-progress\"")) {
			fputs("\"done\"\n", out);
		} else {
			fputs("{\"mpi\":{\"answers\":[", out);
			for (int at = 0; at < count; at++)
				fputs(at ? "," ANSWER : ANSWER, out);
			fprintf(out, "],\"pace\":[%s]}}\n", count ? PACE : "");
		}
		fflush(out);
	}
}

/* Takes the one place in the queue of `listener`: connect() waits from here on, until somebody accepts. */
static void let_wait(const struct sockaddr_un *address, int listener)
{
	int caller = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(!listen(listener, 0) && !connect(caller, (const struct sockaddr *)address, sizeof *address));
	close(caller);
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct pollfd ready[2] = { { .fd = 0, .events = POLLIN }, { .events = POLLIN } };

	CHECK((argc == 3 || argc == 4) && strlen(argv[1]) < sizeof address.sun_path);
	strcpy(address.sun_path, argv[1]);
	signal(SIGCHLD, SIG_IGN);
	ready[1].fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(!bind(ready[1].fd, (struct sockaddr *)&address, sizeof address) && !listen(ready[1].fd, 64));
	if (argc == 4)
		let_wait(&address, ready[1].fd);
	puts("ready");
	fflush(stdout);
	if (argc == 4) {
		poll(ready, 1, atoi(argv[3]));
		CHECK(!listen(ready[1].fd, 64));
	}
	while (poll(ready, 2, -1) > 0 && !ready[0].revents) {
		int connection = accept(ready[1].fd, NULL, NULL);

		if (connection >= 0 && fork() == 0) {
			serve(connection, argv[2]);
			return 0;
		}
		close(connection);
	}
	return 0;
}
