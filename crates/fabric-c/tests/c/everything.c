/* Every function of the library once, and what it does with bad arguments. Its argument is the name
 * of the node's daemon. Ends with the line of the first check that does not hold. */
#include "keeptime_fabric.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			char text[256]; \
			ktf_error_text(text, sizeof(text)); \
			printf("%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, text); \
			exit(1); \
		} \
	} while (0)

#define SECOND INT64_C(1000000000)
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static const ktf_attribute server[] = { { "name", "dhash" }, { "type", "server" } };
static const ktf_attribute named[] = { { "name", "dhash" } };
static const ktf_attribute nobody[] = { { "name", "nobody" } };
static const ktf_attribute cells[] = { { "name", "load" } };

static ktf_context *open_context(const char *directory, int shared_memory)
{
	ktf_config config = { 0 };
	ktf_context *context = NULL;

	config.field_mask = KTF_CONFIG_DIRECTORY | KTF_CONFIG_WAIT | KTF_CONFIG_CLOSE |
			    KTF_CONFIG_SHARED_MEMORY | KTF_CONFIG_MESSAGE_MOST |
			    KTF_CONFIG_PROGRESS_THREAD;
	config.directory = directory;
	config.wait_nanos = 20000;
	config.close_nanos = SECOND;
	config.message_most = 1000000;
	config.shared_memory = shared_memory;
	config.progress_thread = 1;
	CHECK(ktf_context_open(&config, &context) == KTF_OK);
	return context;
}

static void *answer_one(void *resource)
{
	ktf_message *message;
	const void *data;
	size_t length;
	uint64_t tag;
	ktf_id from;

	CHECK(ktf_message_receive(resource, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
	CHECK(ktf_message_envelope(message, &tag, &from) == KTF_OK);
	data = ktf_message_data(message, &length);
	CHECK(ktf_message_send(resource, &from, tag + 1, data, length, KTF_FOREVER) == KTF_OK);
	ktf_message_drop(message);
	return NULL;
}

static void messages(ktf_context *here, ktf_context *there)
{
	ktf_resource *client, *table;
	ktf_message *message = NULL;
	ktf_undelivered lost = { 0 };
	ktf_match match = { .field_mask = KTF_MATCH_TAG | KTF_MATCH_FROM, .tag = 8 };
	ktf_id peer, ids[1], own;
	size_t found, length;
	pthread_t thread;
	ktf_result found_only;
	char text[120];
	char *data = malloc(1000001);

	CHECK(data);
	memset(data, 'x', 1000001);
	CHECK(ktf_resource_register(here, NULL, 0, &client) == KTF_OK);
	/* What was there before goes soon. */
	while (ktf_resource_find_any(here, named, 1, KTF_NOW, &peer) != KTF_NOT_FOUND)
		;
	CHECK(ktf_resource_register(there, server, COUNT(server), &table) == KTF_OK);
	CHECK(ktf_resource_find_any(here, named, 1, 30 * SECOND, &peer) == KTF_OK);
	CHECK(ktf_resource_find_only(here, server, COUNT(server), 30 * SECOND, &peer) == KTF_OK);
	CHECK(ktf_resource_find_only(here, NULL, 0, 30 * SECOND, &own) == KTF_SEVERAL);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strstr(text, " resources have any attributes, one was asked for"));
	/* A busy machine may hold the daemon up for longer. */
	do
		found_only = ktf_resource_find_only(here, nobody, 1, SECOND / 100, &own);
	while (found_only == KTF_NO_DAEMON);
	CHECK(found_only == KTF_NOT_FOUND);
	do
		CHECK(ktf_resource_find_all(here, NULL, 0, ids, 1, &found) == KTF_OK);
	while (found > 2);
	CHECK(found == 2);
	CHECK(ktf_resource_id(table, &own) == KTF_OK && memcmp(&own, &peer, sizeof(own)) == 0);

	for (size_t size = 0; size <= 500000; size += 250000) {
		CHECK(pthread_create(&thread, NULL, answer_one, table) == 0);
		CHECK(ktf_message_send(client, &peer, 7, data, size, 30 * SECOND) == KTF_OK);
		match.from = peer;
		CHECK(ktf_message_receive(client, &match, 30 * SECOND, &message, &lost) == KTF_OK);
		CHECK(ktf_message_data(message, NULL) && ktf_message_data(message, &length));
		CHECK(length == size && memcmp(ktf_message_data(message, NULL), data, size) == 0);
		ktf_message_drop(message);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK(ktf_message_receive(client, NULL, KTF_NOW, &message, &lost) == KTF_TIMED_OUT);
	CHECK(ktf_message_send(client, &peer, 7, data, 1000001, KTF_NOW) == KTF_TOO_LONG);

	CHECK(ktf_resource_reserve(client, &peer, 8000) == KTF_OK);
	CHECK(ktf_message_send(client, &peer, 1, data, 1000, KTF_FOREVER) == KTF_OK);
	CHECK(ktf_message_send(client, &peer, 1, data, 1000, SECOND / 100) == KTF_TIMED_OUT);
	CHECK(ktf_resource_release(client, &peer) == KTF_OK);

	/* What nobody took when its receiver goes is told. */
	CHECK(ktf_message_send(client, &peer, 9, "bye", 3, KTF_FOREVER) == KTF_OK);
	ktf_resource_drop(table);
	do
		CHECK(ktf_message_receive(client, NULL, 30 * SECOND, &message, &lost) ==
		      KTF_UNDELIVERED);
	while (lost.tag != 9);
	CHECK(lost.reason == KTF_REASON_GONE && memcmp(&lost.to, &peer, sizeof(peer)) == 0);
	ktf_resource_drop(client);
	free(data);
}

/* By some bits of their tags. */
static void tags_in_part(ktf_context *context)
{
	ktf_match match = { .field_mask = KTF_MATCH_TAG | KTF_MATCH_TAG_BITS };
	ktf_resource *resource;
	ktf_message *message;
	uint64_t tag;
	ktf_id id;

	CHECK(ktf_resource_register(context, NULL, 0, &resource) == KTF_OK);
	CHECK(ktf_resource_id(resource, &id) == KTF_OK);
	CHECK(ktf_message_send(resource, &id, 0x107, "x", 1, KTF_NOW) == KTF_OK);
	CHECK(ktf_message_send(resource, &id, 0x203, "x", 1, KTF_NOW) == KTF_OK);
	match.tag = 0x2ff;
	match.tag_bits = 0xf00;
	CHECK(ktf_message_receive(resource, &match, KTF_NOW, &message, NULL) == KTF_OK);
	CHECK(ktf_message_envelope(message, &tag, NULL) == KTF_OK && tag == 0x203);
	ktf_message_drop(message);
	CHECK(ktf_message_receive(resource, &match, KTF_NOW, &message, NULL) == KTF_TIMED_OUT);
	ktf_resource_drop(resource);
}

/* Identifiers as text, and the names of results. */
static void names(void)
{
	static const char text_of_one[] = "00c0ffee00c0ffee:12.3";
	ktf_id last = { UINT64_MAX, UINT32_MAX, UINT32_MAX }, id = { 0, 0, 0 };
	char text[KTF_ID_ROOM];

	CHECK(ktf_id_parse(text_of_one, &id) == KTF_OK);
	CHECK(id.context == 0xc0ffee00c0ffee && id.slot == 12 && id.generation == 3);
	CHECK(ktf_id_text(&id, text, sizeof(text)) == strlen(text_of_one));
	CHECK(strcmp(text, text_of_one) == 0);
	CHECK(ktf_id_text(&last, text, sizeof(text)) == strlen(text));
	CHECK(ktf_id_parse(text, &id) == KTF_OK && memcmp(&id, &last, sizeof(id)) == 0);
	CHECK(ktf_id_text(NULL, text, sizeof(text)) == 0 && ktf_id_text(&id, NULL, 0) > 0);
	CHECK(ktf_id_parse("12.3", &id) == KTF_INVALID && ktf_id_parse(NULL, &id) == KTF_INVALID);
	CHECK(strcmp(ktf_result_name(KTF_TIMED_OUT), "KTF_TIMED_OUT") == 0);
	CHECK(strcmp(ktf_result_name((ktf_result)1000), "unknown") == 0);
}

static atomic_int connections;

static void listens(uint32_t level, const char *text, void *closure)
{
	if (level == KTF_LEVEL_DETAIL && strstr(text, closure) == text)
		connections++;
}

/* Who is told over what contexts are connected, as long as it wants to be. */
static void telling(const char *directory, int shared_memory, ktf_context *there)
{
	static char memory[] = "calls over shared memory", network[] = "calls over Tcp";
	ktf_log log = { KTF_LOG_TELL | KTF_LOG_LEVEL, listens, network, KTF_LEVEL_DETAIL };
	ktf_resource *own, *other;
	ktf_context *context;
	ktf_id to;

	CHECK(ktf_resource_register(there, NULL, 0, &other) == KTF_OK);
	CHECK(ktf_resource_id(other, &to) == KTF_OK);
	if (shared_memory)
		log.closure = memory;
	for (int wanted = 1; wanted >= 0; wanted--) {
		CHECK(ktf_log_set(wanted ? &log : NULL) == KTF_OK);
		connections = 0;
		context = open_context(directory, shared_memory);
		CHECK(ktf_resource_register(context, NULL, 0, &own) == KTF_OK);
		CHECK(ktf_message_send(own, &to, 1, "x", 1, 30 * SECOND) == KTF_OK);
		CHECK(connections == wanted);
		ktf_resource_drop(own);
		ktf_context_close(context);
	}
	ktf_resource_drop(other);
	log.level = 5;
	CHECK(ktf_log_set(&log) == KTF_INVALID);
	log.field_mask = KTF_LOG_TELL;
	log.tell = NULL;
	CHECK(ktf_log_set(&log) == KTF_INVALID);
}

/* A buffer that is given away, and how often it was released. */
struct given {
	void *data;
	atomic_int released;
};

static void release(void *data, void *closure)
{
	struct given *given = closure;

	CHECK(data == given->data);
	free(data);
	atomic_fetch_add(&given->released, 1);
}

static ktf_buffer buffer_of(struct given *given, size_t length)
{
	ktf_buffer buffer = { .field_mask = KTF_BUFFER_DATA | KTF_BUFFER_RELEASE };

	given->data = malloc(length);
	CHECK(given->data);
	memset(given->data, 'g', length);
	atomic_store(&given->released, 0);
	buffer.data = given->data;
	buffer.length = length;
	buffer.release = release;
	buffer.closure = given;
	return buffer;
}

/* What is received is what was given, not a copy; released when it is dropped, or nobody took it. */
static void giving_within(ktf_context *context)
{
	static char lasting[] = "lasting";
	ktf_resource *gives, *takes;
	ktf_message *message;
	struct given given;
	ktf_buffer buffer;
	size_t length;
	ktf_id to;

	CHECK(ktf_resource_register(context, NULL, 0, &gives) == KTF_OK);
	CHECK(ktf_resource_register(context, NULL, 0, &takes) == KTF_OK);
	CHECK(ktf_resource_id(takes, &to) == KTF_OK);
	for (size_t size = 1; size <= 500000; size += 499999) {
		buffer = buffer_of(&given, size);
		CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_OK);
		CHECK(ktf_message_receive(takes, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
		CHECK(ktf_message_data(message, &length) == buffer.data && length == size);
		CHECK(atomic_load(&given.released) == 0);
		ktf_message_drop(message);
		CHECK(atomic_load(&given.released) == 1);
	}
	/* What lasts is released by nobody. */
	buffer = (ktf_buffer){ .field_mask = KTF_BUFFER_DATA, .data = lasting, .length = 7 };
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_OK);
	CHECK(ktf_message_receive(takes, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
	CHECK(ktf_message_data(message, &length) == lasting && length == 7);
	ktf_message_drop(message);

	buffer = buffer_of(&given, 100);
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_FOREVER) == KTF_OK);
	CHECK(atomic_load(&given.released) == 0);
	ktf_resource_drop(takes);
	CHECK(atomic_load(&given.released) == 1);
	ktf_resource_drop(gives);
}

/* To others a short message is copied at once; a long one waits for its receiver, and its sender
 * does not. */
static void giving_to_others(const char *directory, int shared_memory, ktf_context *there)
{
	ktf_context *closed = open_context(directory, shared_memory);
	ktf_resource *gives, *takes;
	ktf_message *message;
	struct given given;
	ktf_buffer buffer;
	const char *data;
	size_t length;
	ktf_id to;

	CHECK(ktf_resource_register(closed, NULL, 0, &gives) == KTF_OK);
	CHECK(ktf_resource_register(there, NULL, 0, &takes) == KTF_OK);
	CHECK(ktf_resource_id(takes, &to) == KTF_OK);
	buffer = buffer_of(&given, 1000);
	CHECK(ktf_message_give(gives, &to, 1, &buffer, 30 * SECOND) == KTF_OK);
	CHECK(atomic_load(&given.released) == 1);
	CHECK(ktf_message_receive(takes, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
	ktf_message_drop(message);

	buffer = buffer_of(&given, 500000);
	CHECK(ktf_message_give(gives, &to, 1, &buffer, 30 * SECOND) == KTF_OK);
	CHECK(atomic_load(&given.released) == 0);
	CHECK(ktf_message_receive(takes, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
	data = ktf_message_data(message, &length);
	CHECK(length == 500000);
	for (size_t n = 0; n < length; n++)
		CHECK(data[n] == 'g');
	ktf_message_drop(message);
	/* Whoever has sent its end releases it a moment later. */
	while (atomic_load(&given.released) == 0)
		sched_yield();

	/* What nobody has taken goes with the context. */
	buffer = buffer_of(&given, 500000);
	CHECK(ktf_message_give(gives, &to, 1, &buffer, 30 * SECOND) == KTF_OK);
	ktf_resource_drop(gives);
	CHECK(ktf_context_flush(closed, KTF_NOW) == KTF_UNDELIVERED);
	CHECK(atomic_load(&given.released) == 0);
	CHECK(ktf_context_close_within(closed, SECOND / 100) == KTF_UNDELIVERED);
	CHECK(atomic_load(&given.released) == 1);
	ktf_resource_drop(takes);
}

/* What is not sent is released before the call returns, whatever the reason. */
static void giving_in_vain(ktf_context *context)
{
	static const char before[1000];
	ktf_resource *gives, *takes;
	struct given given;
	ktf_buffer buffer;
	char text[64];
	ktf_id to;

	CHECK(ktf_resource_register(context, NULL, 0, &gives) == KTF_OK);
	CHECK(ktf_resource_register(context, NULL, 0, &takes) == KTF_OK);
	CHECK(ktf_resource_id(takes, &to) == KTF_OK);

	buffer = buffer_of(&given, 1000001);
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_TOO_LONG);
	CHECK(atomic_load(&given.released) == 1);

	CHECK(ktf_resource_reserve(gives, &to, 800) == KTF_OK);
	CHECK(ktf_message_send(gives, &to, 1, before, sizeof(before), KTF_FOREVER) == KTF_OK);
	buffer = buffer_of(&given, 1000);
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_TIMED_OUT);
	CHECK(atomic_load(&given.released) == 1);
	CHECK(ktf_resource_release(gives, &to) == KTF_OK);

	buffer = buffer_of(&given, 10);
	CHECK(ktf_message_give(NULL, &to, 1, &buffer, KTF_NOW) == KTF_INVALID);
	CHECK(atomic_load(&given.released) == 1);
	buffer = buffer_of(&given, 10);
	CHECK(ktf_message_give(gives, NULL, 1, &buffer, KTF_NOW) == KTF_INVALID);
	CHECK(atomic_load(&given.released) == 1);
	buffer = buffer_of(&given, 10);
	buffer.field_mask |= UINT64_C(1) << 40;
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_INVALID);
	CHECK(atomic_load(&given.released) == 1);
	buffer = buffer_of(&given, 10);
	free(given.data);
	given.data = buffer.data = NULL;
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_INVALID);
	CHECK(atomic_load(&given.released) == 1);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strcmp(text, "buffer.data is null") == 0);
	buffer.release = NULL;
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_INVALID);
	CHECK(ktf_message_give(gives, &to, 1, NULL, KTF_NOW) == KTF_INVALID);

	ktf_resource_drop(takes);
	buffer = buffer_of(&given, 10);
	CHECK(ktf_message_give(gives, &to, 1, &buffer, KTF_NOW) == KTF_GONE);
	CHECK(atomic_load(&given.released) == 1);
	ktf_resource_drop(gives);
}

/* What was found says what it is, where, and whose. What was there before goes soon. */
static void records(ktf_context *here, ktf_context *there)
{
	static const ktf_attribute shelf[] = { { "room", "7" }, { "name", "shelf" } };
	static const ktf_attribute named_shelf[] = { { "name", "shelf" } };
	ktf_attribute all[KTF_ATTRIBUTES_MOST];
	ktf_resource *resource;
	ktf_records *found = NULL;
	ktf_reader *reader;
	size_t count;
	uint32_t user;
	ktf_id id, own;

	while (ktf_resource_find_any(here, named_shelf, 1, KTF_NOW, &id) != KTF_NOT_FOUND)
		;
	CHECK(ktf_records_find(here, named_shelf, 1, &found) == KTF_OK && found);
	CHECK(ktf_records_count(found) == 0 && ktf_records_count(NULL) == 0);
	CHECK(ktf_records_node(found, 0) == NULL);
	ktf_records_drop(found);

	CHECK(ktf_resource_register(there, shelf, COUNT(shelf), &resource) == KTF_OK);
	CHECK(ktf_resource_id(resource, &own) == KTF_OK);
	CHECK(ktf_resource_find_any(here, named_shelf, 1, 30 * SECOND, &id) == KTF_OK);
	CHECK(ktf_records_find(here, named_shelf, 1, &found) == KTF_OK);
	/* The list is what it was when it was made. */
	ktf_resource_drop(resource);
	CHECK(ktf_records_count(found) == 1);
	CHECK(ktf_records_id(found, 0, &id) == KTF_OK && memcmp(&id, &own, sizeof(id)) == 0);
	CHECK(strcmp(ktf_records_attribute(found, 0, "room"), "7") == 0);
	CHECK(ktf_records_attribute(found, 0, "door") == NULL);
	CHECK(strcmp(ktf_records_node(found, 0), "n1") == 0);
	CHECK(ktf_records_owner(found, 0, &user) == KTF_OK && user == geteuid());
	CHECK(ktf_records_attributes(found, 0, NULL, 0, &count) == KTF_OK && count == 2);
	CHECK(ktf_records_attributes(found, 0, all, COUNT(all), &count) == KTF_OK && count == 2);
	CHECK(strcmp(all[0].name, "name") == 0 && strcmp(all[0].value, "shelf") == 0);
	CHECK(strcmp(all[1].name, "room") == 0 && strcmp(all[1].value, "7") == 0);
	/* Any of them may be looked for as it is. */
	CHECK(ktf_resource_find_all(here, all, count, NULL, 0, &count) == KTF_OK);
	CHECK(ktf_reader_open_record(here, found, 0, &reader) == KTF_NOT_FOUND);

	CHECK(ktf_records_find(here, named_shelf, 1, NULL) == KTF_INVALID);
	CHECK(ktf_records_id(found, 1, &id) == KTF_INVALID);
	CHECK(ktf_records_id(NULL, 0, &id) == KTF_INVALID);
	CHECK(ktf_records_attribute(found, 1, "room") == NULL);
	CHECK(ktf_records_attribute(found, 0, NULL) == NULL);
	CHECK(ktf_records_attribute(NULL, 0, "room") == NULL);
	CHECK(ktf_records_attributes(found, 0, NULL, 1, &count) == KTF_INVALID);
	CHECK(ktf_records_attributes(found, 0, all, COUNT(all), NULL) == KTF_INVALID);
	CHECK(ktf_records_owner(found, 1, &user) == KTF_INVALID);
	CHECK(ktf_reader_open_record(here, found, 1, &reader) == KTF_INVALID);
	CHECK(ktf_reader_open_record(here, NULL, 0, &reader) == KTF_INVALID);
	ktf_records_drop(found);
}

static void watches(ktf_context *here, ktf_context *there)
{
	/* Nobody else is called so: what others have dropped is heard of a moment later. */
	static const ktf_attribute watched[] = { { "name", "watched" } };
	ktf_resource *first, *second, *third;
	ktf_records *found = NULL;
	ktf_watch *watch;
	ktf_event event;
	ktf_id id;

	CHECK(ktf_resource_register(there, watched, 1, &first) == KTF_OK);
	CHECK(ktf_watch_open(here, watched, 1, &watch) == KTF_OK);
	CHECK(ktf_watch_next(watch, 30 * SECOND, &event) == KTF_OK && event.kind == KTF_APPEARED);
	CHECK(ktf_watch_next(watch, KTF_NOW, &event) == KTF_TIMED_OUT);
	CHECK(ktf_watch_next_record(watch, KTF_NOW, &event, &found) == KTF_TIMED_OUT && !found);
	CHECK(ktf_watch_next_record(watch, KTF_NOW, &event, NULL) == KTF_INVALID);

	CHECK(ktf_resource_register(there, watched, 1, &third) == KTF_OK);
	CHECK(ktf_watch_next_record(watch, 30 * SECOND, &event, &found) == KTF_OK);
	CHECK(event.kind == KTF_APPEARED && ktf_records_count(found) == 1);
	CHECK(ktf_records_id(found, 0, &id) == KTF_OK && memcmp(&event.id, &id, sizeof(id)) == 0);
	CHECK(strcmp(ktf_records_attribute(found, 0, "name"), "watched") == 0);
	ktf_records_drop(found);
	ktf_resource_drop(third);
	CHECK(ktf_watch_next_record(watch, 30 * SECOND, &event, &found) == KTF_OK);
	CHECK(event.kind == KTF_DISAPPEARED && found == NULL);

	CHECK(ktf_resource_register(there, watched, 1, &second) == KTF_OK);
	CHECK(ktf_resource_id(second, &id) == KTF_OK);
	CHECK(ktf_watch_next(watch, 30 * SECOND, &event) == KTF_OK && event.kind == KTF_APPEARED);
	CHECK(memcmp(&event.id, &id, sizeof(id)) == 0);
	ktf_resource_drop(second);
	CHECK(ktf_watch_next(watch, 30 * SECOND, &event) == KTF_OK);
	CHECK(event.kind == KTF_DISAPPEARED && memcmp(&event.id, &id, sizeof(id)) == 0);
	CHECK(ktf_watch_wake(watch) == KTF_OK && ktf_watch_wake(NULL) == KTF_INVALID);
	CHECK(ktf_watch_next(watch, KTF_FOREVER, &event) == KTF_OK && event.kind == KTF_WOKEN);
	ktf_watch_close(watch);
	ktf_resource_drop(first);
}

/* A watch holds its context: what happens after that was closed is told as before. */
static void a_watch_outlives_its_context(const char *directory, ktf_context *there)
{
	static const ktf_attribute late[] = { { "name", "late" } };
	ktf_context *closed = open_context(directory, 1);
	ktf_resource *resource;
	ktf_watch *watch;
	ktf_event event;

	CHECK(ktf_watch_open(closed, late, 1, &watch) == KTF_OK);
	ktf_context_close(closed);
	CHECK(ktf_resource_register(there, late, 1, &resource) == KTF_OK);
	CHECK(ktf_watch_next(watch, 30 * SECOND, &event) == KTF_OK && event.kind == KTF_APPEARED);
	ktf_resource_drop(resource);
	CHECK(ktf_watch_next(watch, 30 * SECOND, &event) == KTF_OK);
	CHECK(event.kind == KTF_DISAPPEARED);
	ktf_watch_close(watch);
}

/* What its receiver has taken is carried. What it had not taken when it went, and its sender was gone
 * as well, is told when the context is closed. */
static void closing_tells_what_is_lost(const char *directory, int shared_memory, ktf_context *there)
{
	ktf_context *closed = open_context(directory, shared_memory);
	ktf_resource *sends, *stays, *takes, *goes;
	ktf_message *message;
	char text[256];
	ktf_id to, lost, own;

	CHECK(ktf_resource_register(closed, NULL, 0, &sends) == KTF_OK);
	CHECK(ktf_resource_register(there, NULL, 0, &takes) == KTF_OK);
	CHECK(ktf_resource_id(takes, &to) == KTF_OK);
	CHECK(ktf_message_send(sends, &to, 1, "hello", 5, KTF_FOREVER) == KTF_OK);
	CHECK(ktf_message_receive(takes, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
	ktf_message_drop(message);
	CHECK(ktf_context_flush(closed, 30 * SECOND) == KTF_OK);
	ktf_resource_drop(sends);
	CHECK(ktf_context_close_within(closed, 30 * SECOND) == KTF_OK);

	closed = open_context(directory, shared_memory);
	CHECK(ktf_resource_register(closed, NULL, 0, &sends) == KTF_OK);
	CHECK(ktf_resource_register(closed, NULL, 0, &stays) == KTF_OK);
	CHECK(ktf_resource_register(there, NULL, 0, &goes) == KTF_OK);
	CHECK(ktf_resource_id(goes, &lost) == KTF_OK && ktf_resource_id(stays, &own) == KTF_OK);
	CHECK(ktf_message_send(sends, &lost, 2, "unread", 6, KTF_FOREVER) == KTF_OK);
	/* The first has arrived when this has, and the answer comes after what is said of it. */
	CHECK(ktf_message_send(sends, &to, 3, NULL, 0, KTF_FOREVER) == KTF_OK);
	CHECK(ktf_message_receive(takes, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
	ktf_message_drop(message);
	ktf_resource_drop(sends);
	ktf_resource_drop(goes);
	CHECK(ktf_message_send(takes, &own, 4, NULL, 0, KTF_FOREVER) == KTF_OK);
	CHECK(ktf_message_receive(stays, NULL, 30 * SECOND, &message, NULL) == KTF_OK);
	ktf_message_drop(message);
	ktf_resource_drop(stays);
	CHECK(ktf_context_close_within(closed, 30 * SECOND) == KTF_UNDELIVERED);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strstr(text, "may not have arrived: 1, the first"));
	ktf_resource_drop(takes);
	CHECK(ktf_context_close_within(NULL, KTF_NOW) == KTF_INVALID);
	CHECK(ktf_context_flush(NULL, KTF_NOW) == KTF_INVALID);
}

static void regions(ktf_context *here, ktf_context *there, uint32_t by)
{
	ktf_layout layout = { .records = 2, .bytes = 48, .adds = 1 };
	ktf_reading reading;
	ktf_region *region;
	ktf_reader *reader;
	ktf_id id;
	char data[48] = "nine requests wait", read[48];
	uint64_t was;
	uint32_t answered;

	while (ktf_resource_find_any(here, cells, 1, KTF_NOW, &id) != KTF_NOT_FOUND)
		;
	CHECK(ktf_reader_open(here, cells, 1, &reader) == KTF_NOT_FOUND);
	CHECK(ktf_region_publish(there, cells, 1, &layout, &region) == KTF_OK);
	/* Others hear of it a moment later. */
	CHECK(ktf_resource_find_any(here, cells, 1, 30 * SECOND, &id) == KTF_OK);
	CHECK(ktf_region_id(region, &id) == KTF_OK);
	CHECK(ktf_region_is_served(region) == 1 && ktf_region_is_served(NULL) == 0);
	CHECK(ktf_reader_open(here, cells, 1, &reader) == KTF_OK);
	memset(&layout, 0, sizeof(layout));
	CHECK(ktf_reader_layout(reader, &layout) == KTF_OK);
	CHECK(layout.records == 2 && layout.bytes == 48 && layout.adds == 1);

	CHECK(ktf_region_write(region, 1, data, sizeof(data)) == KTF_OK);
	CHECK(ktf_region_add(region, 1, 5, &was) == KTF_OK && was == 0);
	CHECK(ktf_reader_add(reader, 1, 2, &was, &answered) == KTF_OK);
	CHECK(was == 5 && answered == by);
	CHECK(ktf_reader_read(reader, 1, read, sizeof(read), &reading) == KTF_OK);
	CHECK(memcmp(data, read, sizeof(read)) == 0);
	CHECK(reading.sequence == 2 && reading.counter == 7 && reading.by == by);

	CHECK(ktf_region_write(region, 1, data, 47) == KTF_INVALID);
	CHECK(ktf_region_write(region, 2, data, 48) == KTF_INVALID);
	CHECK(ktf_reader_read(reader, 2, read, 48, NULL) == KTF_INVALID);
	CHECK(ktf_reader_read(reader, 1, read, 47, NULL) == KTF_INVALID);
	ktf_region_drop(region);
	while (ktf_reader_read(reader, 1, read, sizeof(read), NULL) == KTF_OK)
		;
	CHECK(ktf_reader_read(reader, 1, read, sizeof(read), NULL) == KTF_GONE);
	ktf_reader_close(reader);
}

/* Several regions that are called the same are told apart by what was found. */
static void equal_regions(ktf_context *here, ktf_context *there)
{
	static const ktf_attribute twin[] = { { "name", "twin" } };
	const ktf_layout layout = { .records = 1, .bytes = 48 };
	ktf_records *found = NULL;
	ktf_region *regions[2];
	ktf_reader *reader;
	ktf_id ids[2], id;
	char data[48] = { 0 };

	while (ktf_resource_find_any(here, twin, 1, KTF_NOW, &id) != KTF_NOT_FOUND)
		;
	for (int n = 0; n < 2; n++) {
		data[0] = (char)('a' + n);
		CHECK(ktf_region_publish(there, twin, 1, &layout, &regions[n]) == KTF_OK);
		CHECK(ktf_region_write(regions[n], 0, data, sizeof(data)) == KTF_OK);
		CHECK(ktf_region_id(regions[n], &ids[n]) == KTF_OK);
	}
	/* Others hear of them a moment later. */
	do {
		ktf_records_drop(found);
		CHECK(ktf_records_find(here, twin, 1, &found) == KTF_OK);
	} while (ktf_records_count(found) < 2);
	CHECK(ktf_records_count(found) == 2 && ktf_records_attribute(found, 0, "keeptime.region"));
	CHECK(ktf_reader_open(here, twin, 1, &reader) == KTF_SEVERAL);
	for (size_t index = 0; index < 2; index++) {
		CHECK(ktf_records_id(found, index, &id) == KTF_OK);
		CHECK(ktf_reader_open_record(here, found, index, &reader) == KTF_OK);
		CHECK(ktf_reader_read(reader, 0, data, sizeof(data), NULL) == KTF_OK);
		CHECK(memcmp(&id, &ids[data[0] - 'a'], sizeof(id)) == 0);
		ktf_reader_close(reader);
	}
	ktf_records_drop(found);
	ktf_region_drop(regions[0]);
	ktf_region_drop(regions[1]);
}

/* A name that is there twice, the library's own one, and what is reserved. */
static void what_would_be_lost(ktf_context *context)
{
	static const ktf_attribute twice[] = { { "name", "a" }, { "type", "x" }, { "name", "b" } };
	static const ktf_attribute own[] = { { "keeptime.region", "mine" } };
	static const ktf_attribute users[] = { { "region", "north" } };
	const ktf_layout reserved = { .records = 1, .bytes = 48, .reserved = 1 };
	const ktf_layout adds = { .records = 1, .bytes = 48, .adds = 7 };
	const ktf_layout layout = { .records = 1, .bytes = 48 };
	ktf_resource *resource = NULL;
	ktf_region *region = NULL;
	ktf_records *found = NULL;
	char text[80];
	ktf_id id;

	CHECK(ktf_resource_register(context, twice, COUNT(twice), &resource) == KTF_INVALID);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strcmp(text, "attributes[2].name was there before: a name has one value") == 0);
	CHECK(ktf_resource_find_any(context, twice, COUNT(twice), KTF_NOW, &id) == KTF_INVALID);
	CHECK(ktf_records_find(context, twice, COUNT(twice), &found) == KTF_INVALID);
	CHECK(ktf_region_publish(context, twice, COUNT(twice), &layout, &region) == KTF_INVALID);
	CHECK(ktf_region_publish(context, own, 1, &layout, &region) == KTF_INVALID);
	CHECK(ktf_resource_register(context, own, 1, &resource) == KTF_INVALID);
	CHECK(ktf_region_publish(context, cells, 1, &reserved, &region) == KTF_INVALID);
	CHECK(ktf_region_publish(context, cells, 1, &adds, &region) == KTF_INVALID);
	CHECK(resource == NULL && region == NULL && found == NULL);
	CHECK(ktf_region_publish(context, users, 1, &layout, &region) == KTF_OK);
	ktf_region_drop(region);
}

/* The header and the library are of one version; what is not built in is not called over. */
static void versions(const char *directory)
{
	ktf_config config = { .field_mask = KTF_CONFIG_DIRECTORY | KTF_CONFIG_BETWEEN_NODES };
	ktf_context *context = NULL;

	CHECK(strcmp(ktf_version(), KTF_VERSION) == 0);
	CHECK(ktf_is_built_in(KTF_BETWEEN_TCP) == 1 && ktf_is_built_in(KTF_BETWEEN_UDP) == 1);
	CHECK(ktf_is_built_in(4) == 0 && ktf_is_built_in(255) == 0);
	config.directory = directory;
	for (uint8_t library = KTF_BETWEEN_LIBFABRIC; library <= KTF_BETWEEN_UCX; library++) {
		if (ktf_is_built_in(library))
			continue;
		config.between_nodes = library;
		CHECK(ktf_context_open(&config, &context) == KTF_INVALID && !context);
	}
}

/* Where others reach a context is one address of the node, or none. */
static void listening(const char *directory)
{
	static const char *const no_addresses[] = { "", "127.0.0.1", "here:0", "127.0.0.1:65536" };
	ktf_config config = { .field_mask = KTF_CONFIG_DIRECTORY | KTF_CONFIG_LISTEN };
	ktf_context *context = NULL;
	ktf_resource *resource;
	char text[120];

	config.directory = directory;
	CHECK(ktf_context_open(&config, &context) == KTF_INVALID);
	for (size_t n = 0; n < COUNT(no_addresses); n++) {
		config.listen = no_addresses[n];
		CHECK(ktf_context_open(&config, &context) == KTF_INVALID && !context);
	}
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strstr(text, "listen is \"127.0.0.1:65536\": ADDRESS:PORT") == text);
	config.listen = "127.0.0.1:0";
	CHECK(ktf_context_open(&config, &context) == KTF_OK);
	CHECK(ktf_resource_register(context, NULL, 0, &resource) == KTF_OK);
	ktf_resource_drop(resource);
	ktf_context_close(context);
}

/* Of the node's networks a context uses those that are named. */
static void on_some_networks(const char *directory)
{
	static const char *const none[] = { "", "127.0.0.0", "127.0.0.0/33", "127.0.0.0/8," };
	ktf_config config = { .field_mask = KTF_CONFIG_DIRECTORY | KTF_CONFIG_NETWORKS };
	ktf_context *context = NULL;
	char text[160];

	config.directory = directory;
	CHECK(ktf_context_open(&config, &context) == KTF_INVALID);
	for (size_t n = 0; n < COUNT(none); n++) {
		config.networks = none[n];
		CHECK(ktf_context_open(&config, &context) == KTF_INVALID && !context);
	}
	config.networks = "127.0.0.0/8,198.51.100.0/24";
	CHECK(ktf_context_open(&config, &context) == KTF_INVALID && !context);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strstr(text, "has an address on 198.51.100.0/24: expected one of 127.0.0.1/8"));
	config.networks = "127.0.0.0/8";
	CHECK(ktf_context_open(&config, &context) == KTF_OK);
	ktf_context_close(context);
}

/* Variables count where fields are not set, and are not looked at where they are. */
static void said_by_variables(const char *directory)
{
	ktf_config config = { .field_mask = KTF_CONFIG_DIRECTORY };
	ktf_context *context = NULL;

	CHECK(setenv("KEEPTIME_FABRIC_WAIT", "often", 1) == 0);
	config.directory = directory;
	CHECK(ktf_context_open(&config, &context) == KTF_INVALID && !context);
	config.field_mask |= KTF_CONFIG_WAIT;
	CHECK(ktf_context_open(&config, &context) == KTF_OK);
	ktf_context_close(context);
	CHECK(unsetenv("KEEPTIME_FABRIC_WAIT") == 0);
}

/* At most 32 attributes, and 256 bytes of a name. */
static void too_long_or_too_many(ktf_context *context)
{
	static char names[33][2], long_text[258];
	const ktf_attribute no_name[] = { { "", "x" } };
	const ktf_attribute long_name[] = { { long_text, "x" } };
	ktf_layout layout = { .records = 1, .bytes = 48 };
	ktf_attribute many[33];
	ktf_resource *resource = NULL;
	ktf_region *region = NULL;
	ktf_reader *reader;
	ktf_watch *watch;
	size_t found;
	ktf_id id;

	memset(long_text, 'x', sizeof(long_text) - 1);
	for (size_t n = 0; n < COUNT(many); n++) {
		names[n][0] = (char)('A' + n);
		many[n].name = names[n];
		many[n].value = "x";
	}
	CHECK(ktf_resource_register(context, no_name, 1, &resource) == KTF_INVALID);
	CHECK(ktf_resource_register(context, long_name, 1, &resource) == KTF_TOO_LONG);
	CHECK(ktf_resource_register(context, many, 33, &resource) == KTF_TOO_LONG);
	CHECK(ktf_resource_find_only(context, many, 33, KTF_NOW, &id) == KTF_TOO_LONG);
	CHECK(ktf_resource_find_any(context, many, 33, KTF_NOW, &id) == KTF_TOO_LONG);
	CHECK(ktf_resource_find_all(context, many, 33, NULL, 0, &found) == KTF_TOO_LONG);
	CHECK(ktf_watch_open(context, many, 33, &watch) == KTF_TOO_LONG);
	CHECK(ktf_reader_open(context, many, 33, &reader) == KTF_TOO_LONG);
	/* The resource of a region has one more, which says where it is. */
	CHECK(ktf_region_publish(context, many, 32, &layout, &region) == KTF_TOO_LONG);
	CHECK(resource == NULL && region == NULL);
	CHECK(ktf_region_publish(context, many, 31, &layout, &region) == KTF_OK);
	ktf_region_drop(region);
}

static void bad_arguments(ktf_context *context)
{
	const ktf_attribute no_value[] = { { "name", NULL } };
	const ktf_attribute no_text[] = { { "name", "\xff" } };
	ktf_config config = { .field_mask = UINT64_C(1) << 40 };
	ktf_layout layout = { .records = 0, .bytes = 48 };
	ktf_match match = { .field_mask = KTF_MATCH_TAG_BITS };
	ktf_resource *resource = NULL;
	ktf_context *none = NULL;
	ktf_message *message;
	ktf_region *region;
	char text[64];
	ktf_id id;

	CHECK(ktf_context_open(NULL, NULL) == KTF_INVALID);
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID && none == NULL);
	config.field_mask = KTF_CONFIG_DIRECTORY;
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID);
	config.directory = "a-daemon-that-is-not-there";
	CHECK(ktf_context_open(&config, &none) == KTF_NO_DAEMON);
	config.field_mask = KTF_CONFIG_WAIT;
	config.wait_nanos = -1;
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID);
	config.field_mask = KTF_CONFIG_CLOSE;
	config.close_nanos = -1;
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID);
	config.field_mask = KTF_CONFIG_SHARED_MEMORY;
	config.shared_memory = 7;
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strcmp(text, "shared_memory is 7: 0 and 1 are accepted") == 0);
	config.field_mask = KTF_CONFIG_PROGRESS_THREAD;
	config.progress_thread = 7;
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID);
	config.field_mask = KTF_CONFIG_BETWEEN_NODES;
	config.between_nodes = 4;
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strcmp(text, "between_nodes is 4: 0 to 3 are accepted") == 0);
	config.field_mask = KTF_CONFIG_CALLERS;
	config.callers = 2;
	CHECK(ktf_context_open(&config, &none) == KTF_INVALID);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strcmp(text, "callers is 2: 0 and 1 are accepted") == 0);
	CHECK(ktf_resource_register(NULL, NULL, 0, &resource) == KTF_INVALID);
	CHECK(ktf_error_text(text, sizeof(text)) == strlen("context is null"));
	CHECK(strcmp(text, "context is null") == 0);
	CHECK(ktf_error_text(text, 8) == strlen("context is null") && !strcmp(text, "context"));
	CHECK(ktf_error_text(NULL, 0) == strlen("context is null"));
	CHECK(ktf_resource_register(context, NULL, 1, &resource) == KTF_INVALID);
	CHECK(ktf_resource_register(context, no_value, 1, &resource) == KTF_INVALID);
	CHECK(ktf_resource_register(context, no_text, 1, &resource) == KTF_INVALID);
	CHECK(resource == NULL);
	CHECK(ktf_resource_register(context, NULL, 0, &resource) == KTF_OK);
	CHECK(ktf_resource_id(resource, NULL) == KTF_INVALID);
	CHECK(ktf_resource_id(resource, &id) == KTF_OK);
	CHECK(ktf_message_send(resource, NULL, 0, "x", 1, KTF_NOW) == KTF_INVALID);
	CHECK(ktf_message_send(resource, &id, 0, NULL, 1, KTF_NOW) == KTF_INVALID);
	CHECK(ktf_message_receive(resource, &match, KTF_NOW, &message, NULL) == KTF_INVALID);
	match.field_mask = 8;
	CHECK(ktf_message_receive(resource, &match, KTF_NOW, &message, NULL) == KTF_INVALID);
	CHECK(ktf_resource_reserve(resource, &id, 0) == KTF_INVALID);
	(void)ktf_error_text(text, sizeof(text));
	CHECK(strncmp(text, "rate: ", 6) == 0);
	id.generation++;
	CHECK(ktf_message_send(resource, &id, 0, NULL, 0, KTF_NOW) == KTF_GONE);
	id.context++;
	match = (ktf_match){ .field_mask = KTF_MATCH_FROM, .from = id };
	CHECK(ktf_message_receive(resource, &match, KTF_FOREVER, &message, NULL) == KTF_GONE);
	CHECK(ktf_message_receive(resource, &match, KTF_NOW, &message, NULL) == KTF_GONE);
	CHECK(ktf_region_publish(context, NULL, 0, &layout, &region) == KTF_INVALID);
	CHECK(ktf_message_data(NULL, NULL) == NULL);
	ktf_resource_drop(resource);
	ktf_resource_drop(NULL);
	ktf_context_close(NULL);
	ktf_message_drop(NULL);
	ktf_records_drop(NULL);
	ktf_watch_close(NULL);
	ktf_region_drop(NULL);
	ktf_reader_close(NULL);
}

int main(int count, char **words)
{
	ktf_context *here, *there;

	CHECK(count == 2);
	versions(words[1]);
	listening(words[1]);
	on_some_networks(words[1]);
	said_by_variables(words[1]);
	for (int shared_memory = 1; shared_memory >= 0; shared_memory--) {
		here = open_context(words[1], shared_memory);
		there = open_context(words[1], shared_memory);
		messages(here, there);
		tags_in_part(here);
		telling(words[1], shared_memory, there);
		giving_within(here);
		giving_to_others(words[1], shared_memory, there);
		giving_in_vain(here);
		records(here, there);
		watches(here, there);
		a_watch_outlives_its_context(words[1], there);
		closing_tells_what_is_lost(words[1], shared_memory, there);
		regions(here, there, shared_memory ? KTF_BY_MEMORY : KTF_BY_RESPONDER);
		equal_regions(here, there);
		what_would_be_lost(here);
		too_long_or_too_many(here);
		bad_arguments(here);
		ktf_context_close(there);
		ktf_context_close(here);
	}
	names();
	puts("all is well");
	return 0;
}
