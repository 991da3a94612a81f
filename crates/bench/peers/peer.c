/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One that asks or one that answers, over the library that this is linked with:
 *
 *     PROGRAM answer WHERE                          says "ready", and ends with its standard input
 *     PROGRAM ask WHERE round-trip|stream BYTES COUNT    says the microseconds of a message
 */
#include "peer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The first byte of a message: what becomes of it. */
enum { QUESTION = 1, STREAM = 2, FINISH = 3 };
enum { MESSAGE_MOST = 1 << 20, WARM_UP = 50 };

static char data[MESSAGE_MOST];

_Noreturn void peer_fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

static double microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void *ends_with_input(void *nothing)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
	return nothing;
}

static _Noreturn void answer(void)
{
	pthread_t watch;

	if (pthread_create(&watch, NULL, ends_with_input, NULL) != 0)
		peer_fail("a thread", "cannot be made");
	puts("ready");
	fflush(stdout);
	for (;;) {
		size_t bytes = peer_receive(data, sizeof data);

		if (data[0] == QUESTION)
			peer_send(data, bytes);
		else if (data[0] == FINISH)
			peer_send(data, 1);
	}
}

static void round_trips(size_t bytes, long count)
{
	data[0] = QUESTION;
	for (long trip = 0; trip < count; trip++) {
		peer_send(data, bytes);
		if (peer_receive(data, sizeof data) != bytes || data[0] != QUESTION)
			peer_fail("an answer", "another one was expected");
	}
}

static void stream(size_t bytes, long count)
{
	data[0] = STREAM;
	for (long message = 0; message < count; message++)
		peer_send(data, bytes);
	data[0] = FINISH;
	peer_send(data, 1);
	peer_receive(data, sizeof data);
}

int main(int argc, char **argv)
{
	int in_a_stream;
	long bytes, count;
	double start;

	if (argc == 3 && strcmp(argv[1], "answer") == 0) {
		peer_answer(argv[2]);
		answer();
	}
	if (argc != 6 || strcmp(argv[1], "ask") != 0)
		peer_fail(argv[0], "answer WHERE, or ask WHERE round-trip|stream BYTES COUNT");
	in_a_stream = strcmp(argv[3], "stream") == 0;
	bytes = strtol(argv[4], NULL, 10);
	count = strtol(argv[5], NULL, 10);
	if (bytes < 1 || bytes > MESSAGE_MOST || count < 1)
		peer_fail("BYTES and COUNT", "1 to 1048576, and at least 1");
	peer_ask(argv[2], in_a_stream);
	round_trips(64, WARM_UP);
	start = microseconds();
	if (in_a_stream)
		stream(bytes, count);
	else
		round_trips(bytes, count);
	printf("%.4f\n", (microseconds() - start) / count);
	return 0;
}
