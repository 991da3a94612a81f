/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Asks a resource that another process registers, and tells how long the answer takes.
 *
 *     keeptime-fabricd --node here &
 *     cc ktf_ping.c -o ktf_ping $(pkg-config --cflags --libs keeptime_fabric)
 *     ./ktf_ping answer & ./ktf_ping
 *
 * The environment names another daemon: KEEPTIME_FABRIC=NAME ./ktf_ping
 */
#define _POSIX_C_SOURCE 200809L
#include <keeptime_fabric.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 10
#define ASK 1
#define ANSWER 2
#define PATIENCE INT64_C(10000000000)

static const ktf_attribute role[] = { { "example", "ktf_ping" }, { "role", "answers" } };

static void done(ktf_result result, const char *what)
{
	char text[200];

	if (result == KTF_OK)
		return;
	ktf_error_text(text, sizeof(text));
	fprintf(stderr, "%s: %s\n", what, text);
	exit(1);
}

static double micros(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void answer(ktf_context *context)
{
	ktf_resource *own;

	done(ktf_resource_register(context, role, 2, &own), "register");
	for (int round = 0; round < ROUNDS;) {
		ktf_message *question;
		const void *data;
		size_t length;
		ktf_id from;
		ktf_result result = ktf_message_receive(own, NULL, PATIENCE, &question, NULL);

		/* An answer that did not arrive does not count: whoever asked has gone. */
		if (result == KTF_UNDELIVERED) {
			round--;
			continue;
		}
		done(result, "receive");
		done(ktf_message_envelope(question, NULL, &from), "envelope");
		data = ktf_message_data(question, &length);
		/* Whoever does not take an answer at once, or is gone, is not waited for. */
		if (ktf_message_send(own, &from, ANSWER, data, length, KTF_NOW) == KTF_OK)
			round++;
		ktf_message_drop(question);
	}
	ktf_resource_drop(own);
}

static void ask(ktf_context *context)
{
	ktf_match answer = { .field_mask = KTF_MATCH_TAG, .tag = ANSWER };
	ktf_resource *own;
	ktf_id peer;

	done(ktf_resource_register(context, NULL, 0, &own), "register");
	done(ktf_resource_find_any(context, role, 2, PATIENCE, &peer), "find");
	for (int round = 0; round < ROUNDS; round++) {
		ktf_message *message;
		double start = micros();

		done(ktf_message_send(own, &peer, ASK, &round, sizeof(round), PATIENCE), "send");
		done(ktf_message_receive(own, &answer, PATIENCE, &message, NULL), "receive");
		printf("round trip %d: %.1f us\n", round, micros() - start);
		ktf_message_drop(message);
	}
	ktf_resource_drop(own);
}

int main(int count, char **words)
{
	ktf_context *context;

	if (count > 2 || (count == 2 && strcmp(words[1], "answer") != 0)) {
		fprintf(stderr, "usage: %s [answer]\n", words[0]);
		return 64;
	}
	done(ktf_context_open(NULL, &context), "open");
	if (count == 2)
		answer(context);
	else
		ask(context);
	ktf_context_close(context);
	return 0;
}
