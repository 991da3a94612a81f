/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An agent that grants whatever it is asked, and writes down every line: recorder SOCKET FILE [HOW]. Each
 * connection has a process of its own; it ends with the connection, the whole with its standard input. A line
 * that names messages of 666 bytes is refused as a whole. HOW is so many milliseconds, for which nobody who
 * calls is let in; "drop": whoever calls is hung up on, and `called` is written down; "slow": each answer takes
 * two seconds; "never": nothing is decided, and each answer says so at once; "many": more destinations are to be
 * paced than ranks have nodes, and `called` is written down of each call; "hasty": the first who calls is hung up on
 * when it tells how far it is; "torn": the second answer to the first who calls breaks off, and nobody is let in after it. */
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
#define UNDECIDED "{\"state\":\"waiting\",\"reason\":\"nothing is decided\",\"wire_bits_per_second\":0,\"burst_bytes\":0,\"promised_nanos\":0}"
#define PACE "{\"address\":\"127.0.0.1\",\"bits_per_second\":80000000}"
/* To where no launcher has connections, which would have their part of it. */
#define OTHER_PACES                                                   \
	",{\"address\":\"127.0.0.2\",\"bits_per_second\":80000000}" \
	",{\"address\":\"127.0.0.3\",\"bits_per_second\":80000000}"
#define TORN "{\"mpi\":{\"answers\":[],\"pace\":[{\"address\":\"127.0.0.2\",\"bits_per_second\":8000},{\n"
#define PACES_MANY 5000
#define REFUSED "{\"refused\":{\"reason\":\"messages of 666 bytes\"}}\n"

static int asks_in(const char *line)
{
	int count = 0;

	for (const char *at = line; (at = strstr(at, "\"communicator\"")); at++)
		count++;
	return count;
}

/* To so many nodes, of which the program has connections to none. */
static void pace_many(FILE *out)
{
	for (int at = 0; at < PACES_MANY; at++)
		fprintf(out, ",{\"address\":\"10.%d.%d.1\",\"bits_per_second\":80000000}", at / 250, at % 250);
}

static void answer_each(FILE *out, int count, const char *answer, const char *how)
{
	fputs("{\"mpi\":{\"answers\":[", out);
	for (int at = 0; at < count; at++)
		fprintf(out, at ? ",%s" : "%s", answer);
	fprintf(out, "],\"pace\":[%s", count ? PACE : "");
	if (count && !strcmp(how, "many"))
		pace_many(out);
	if (count && !strcmp(how, "torn"))
		fputs(OTHER_PACES, out);
	fputs("]}}\n", out);
}

static void serve(int connection, const char *path, const char *how)
{
	FILE *in = fdopen(connection, "r"), *out = fdopen(dup(connection), "w"), *record = fopen(path, "a");
	char *line = NULL;
	size_t size = 0;
	int answered = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK(in && out && record);
	while (getline(&line, &size, in) > 0) {
		int count = asks_in(line);

		fputs(line, record);
		fflush(record);
		if (!strcmp(how, "slow"))
			sleep(2);
		if (strstr(line, "\"mpi-progress\"")) {
			if (!strcmp(how, "hasty"))
				return;
			fputs("\"done\"\n", out);
		} else if (strstr(line, "\"message_bytes_max\":666,")) {
			fputs(REFUSED, out);
		} else if (!strcmp(how, "torn") && count && answered++) {
			fputs(TORN, out);
			fclose(out);
			return;
		} else {
			answer_each(out, count, strcmp(how, "never") ? ANSWER : UNDECIDED, how);
		}
		fflush(out);
	}
}

static void note_call(const char *path)
{
	FILE *record = fopen(path, "a");

	CHECK(record);
	fputs("called\n", record);
	fclose(record);
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
	const char *how = argc == 4 ? argv[3] : "";
	int waits = atoi(how);

	CHECK((argc == 3 || argc == 4) && strlen(argv[1]) < sizeof address.sun_path);
	strcpy(address.sun_path, argv[1]);
	signal(SIGCHLD, SIG_IGN);
	ready[1].fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(!bind(ready[1].fd, (struct sockaddr *)&address, sizeof address) && !listen(ready[1].fd, 64));
	if (waits)
		let_wait(&address, ready[1].fd);
	puts("ready");
	fflush(stdout);
	if (waits) {
		poll(ready, 1, waits);
		CHECK(!listen(ready[1].fd, 64));
	}
	while (poll(ready, 2, -1) > 0 && !ready[0].revents) {
		int connection = accept(ready[1].fd, NULL, NULL);

		if (!strcmp(how, "drop") || !strcmp(how, "many"))
			note_call(argv[2]);
		if (strcmp(how, "drop") && connection >= 0 && fork() == 0) {
			serve(connection, argv[2], how);
			return 0;
		}
		/* It was the first. */
		if (!strcmp(how, "hasty"))
			how = "";
		if (!strcmp(how, "torn"))
			how = "drop";
		close(connection);
	}
	return 0;
}
