/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Publishes how far a computation is, which another process reads without asking it.
 *
 *     keeptime-fabricd --node here &
 *     cc ktf_region.c -o ktf_region $(pkg-config --cflags --libs keeptime_fabric)
 *     ./ktf_region publish & ./ktf_region
 *
 * The environment names another daemon: KEEPTIME_FABRIC=NAME ./ktf_region
 */
#define _POSIX_C_SOURCE 200809L
#include <keeptime_fabric.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATIENCE INT64_C(10000000000)

static const ktf_attribute what[] = { { "example", "ktf_region" } };

static void done(ktf_result result, const char *doing)
{
	char text[200];

	if (result == KTF_OK)
		return;
	ktf_error_text(text, sizeof(text));
	fprintf(stderr, "%s: %s\n", doing, text);
	exit(1);
}

static void pause_for(long milliseconds)
{
	struct timespec time = { 0, milliseconds * 1000000 };

	nanosleep(&time, NULL);
}

static void publish(ktf_context *context)
{
	ktf_layout layout = { .records = 1, .bytes = 48, .adds = 1 };
	ktf_region *region;
	uint64_t step[6] = { 0 };
	uint64_t readers = 0;

	done(ktf_region_publish(context, what, 1, &layout, &region), "publish");
	/* Until the reader has added to the counter. */
	while (readers == 0) {
		step[0]++;
		done(ktf_region_write(region, 0, step, sizeof(step)), "write");
		done(ktf_region_add(region, 0, 0, &readers), "look");
		/* It computes. */
		pause_for(10);
	}
	ktf_region_drop(region);
}

static void look(ktf_context *context)
{
	uint64_t step[6];
	uint64_t before;
	ktf_reader *reader;
	ktf_id id;

	/* Waits until it is there. */
	done(ktf_resource_find_any(context, what, 1, PATIENCE, &id), "find");
	done(ktf_reader_open(context, what, 1, &reader), "open the region");
	for (int count = 0; count < 5; count++) {
		ktf_reading reading;

		done(ktf_reader_read(reader, 0, step, sizeof(step), &reading), "read");
		printf("step %llu, read %s\n", (unsigned long long)step[0],
		       reading.by == KTF_BY_MEMORY ? "in memory" : "over the network");
		pause_for(20);
	}
	done(ktf_reader_add(reader, 0, 1, &before, NULL), "add");
	printf("%llu have read it before\n", (unsigned long long)before);
	ktf_reader_close(reader);
}

int main(int count, char **words)
{
	ktf_context *context;

	if (count > 2 || (count == 2 && strcmp(words[1], "publish") != 0)) {
		fprintf(stderr, "usage: %s [publish]\n", words[0]);
		return 64;
	}
	done(ktf_context_open(NULL, &context), "open");
	if (count == 2)
		publish(context);
	else
		look(context);
	ktf_context_close(context);
	return 0;
}
