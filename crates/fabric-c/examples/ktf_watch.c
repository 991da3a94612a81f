/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tells which resources come and go. It registers one itself, and ends when that has gone, so that
 * there is something to see.
 *
 *     keeptime-fabricd --node here &
 *     cc ktf_watch.c -o ktf_watch $(pkg-config --cflags --libs keeptime_fabric)
 *     ./ktf_watch
 *
 * The environment names another daemon: KEEPTIME_FABRIC=NAME ./ktf_watch
 */
#define _POSIX_C_SOURCE 200809L
#include <keeptime_fabric.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE INT64_C(10000000000)

static const ktf_attribute what[] = { { "example", "ktf_watch" } };

static void done(ktf_result result, const char *doing)
{
	char text[200];

	if (result == KTF_OK)
		return;
	ktf_error_text(text, sizeof(text));
	fprintf(stderr, "%s: %s\n", doing, text);
	exit(1);
}

int main(void)
{
	char text[KTF_ID_ROOM];
	ktf_context *context;
	ktf_resource *own;
	ktf_watch *watch;
	ktf_event event;
	ktf_id id;

	done(ktf_context_open(NULL, &context), "open");
	done(ktf_watch_open(context, what, 1, &watch), "watch");
	done(ktf_resource_register(context, what, 1, &own), "register");
	done(ktf_resource_id(own, &id), "id");
	do {
		ktf_records *records;

		done(ktf_watch_next_record(watch, PATIENCE, &event, &records), "next");
		ktf_id_text(&event.id, text, sizeof(text));
		if (event.kind == KTF_APPEARED) {
			printf("%s has appeared on %s\n", text, ktf_records_node(records, 0));
			if (memcmp(&event.id, &id, sizeof(id)) == 0)
				ktf_resource_drop(own);
		} else if (event.kind == KTF_DISAPPEARED) {
			printf("%s has disappeared\n", text);
		} else {
			/* KTF_MISSED: what is there is found anew, by ktf_records_find(). */
			puts("more has happened than was kept");
		}
		ktf_records_drop(records);
	} while (event.kind != KTF_DISAPPEARED || memcmp(&event.id, &id, sizeof(id)) != 0);
	ktf_watch_close(watch);
	ktf_context_close(context);
	return 0;
}
