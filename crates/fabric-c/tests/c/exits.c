/* A program that sends, and ends without closing anything, after a child that it has forked has ended as well. Its first
 * argument is the name of the node's daemon. */
#include "keeptime_fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define MESSAGES 200

static const ktf_attribute receives[] = { { "test", "exits" } };

static void check(ktf_result result, const char *what)
{
	char text[256];

	if (result == KTF_OK)
		return;
	ktf_error_text(text, sizeof(text));
	printf("%s: %s\n", what, text);
	_exit(1);
}

static ktf_context *opened(char *directory)
{
	ktf_config config = { 0 };
	ktf_context *context;

	config.field_mask = KTF_CONFIG_DIRECTORY | KTF_CONFIG_SHARED_MEMORY;
	config.directory = directory;
	check(ktf_context_open(&config, &context), "open");
	return context;
}

static void send_and_exit(char *directory)
{
	ktf_context *context = opened(directory);
	ktf_resource *own;
	ktf_id to;
	uint64_t tag;
	pid_t child;

	check(ktf_resource_register(context, NULL, 0, &own), "register");
	check(ktf_resource_find_any(context, receives, 1, 30 * SECOND, &to), "find");
	for (tag = 0; tag < 2 * MESSAGES; tag++) {
		check(ktf_message_send(own, &to, tag, "0123456789", 10, 30 * SECOND), "send");
		if (tag != MESSAGES)
			continue;
		/* It has what was gathered as well, and nothing to do with it. */
		child = fork();
		if (child == 0)
			exit(0);
		waitpid(child, NULL, 0);
	}
	exit(0);
}

int main(int count, char **arguments)
{
	ktf_context *context;
	ktf_resource *own;
	ktf_message *message;
	uint64_t tag, expected;

	(void)count;
	if (fork() == 0)
		send_and_exit(arguments[1]);
	context = opened(arguments[1]);
	check(ktf_resource_register(context, receives, 1, &own), "register");
	for (expected = 0; expected < 2 * MESSAGES; expected++) {
		check(ktf_message_receive(own, NULL, 30 * SECOND, &message, NULL), "receive");
		check(ktf_message_envelope(message, &tag, NULL), "envelope");
		ktf_message_drop(message);
		if (tag != expected) {
			printf("message %d came in place of %d\n", (int)tag, (int)expected);
			return 1;
		}
	}
	if (ktf_message_receive(own, NULL, SECOND / 10, &message, NULL) != KTF_TIMED_OUT)
		return 1;
	printf("all came once\n");
	return 0;
}
