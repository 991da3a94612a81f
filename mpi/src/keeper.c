/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "keeper.h"

#include "json.h"
#include "pacing.h"
#include "progress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define AGENT_USUAL "/run/keeptime/agent.sock"
#define PROTOCOL_VERSION 1
#define PACES_MAX 4096
#define SEEN_MAX 4096
/* The agent answers within five seconds, whatever the broker does. */
#define EXCHANGE_SECONDS 10
#define MILLISECOND 1000000ll
/* Between reports while something is asked for: what changed meanwhile is heard of then. */
#define REPORT_EVERY (1000 * MILLISECOND)
/* The same while something waits for other ranks or for the broker, and the program may be waiting for that. */
#define REPORT_SOON (50 * MILLISECOND)
/* Between calls of an agent whose queue is full. */
#define CALL_EVERY (20 * MILLISECOND)
/* Between two looks for connections that were opened since. */
#define PACE_EVERY (200 * MILLISECOND)

struct ask {
	struct ask *next;
	uint64_t number; /* of this process, never used again */
	int references;
	int watchers; /* among these, who waits for an answer and is no communicator */
	struct members members;
	uint32_t index;  /* tells it from those with the same members, on all their ranks alike */
	uint32_t change; /* counts the values */
	keeptime_qos terms;
	struct in_addr *seen;
	int seen_count;
	/* Told by the agent about the value that is counted so: */
	uint32_t told_change;
	enum keeptime_qos_state state;
	double reserved_kbps;
	uint64_t bucket_bytes;
	double promised_seconds;
	char reason[KEEPTIME_REASON_SIZE];
};

/* How many asks there were of communicators without an identity that have the same members. Kept for ever: ranks count alike,
 * if they set attributes in the same order. */
struct circle {
	struct circle *next;
	struct members members;
	uint32_t count;
};

/* What was sent, to be matched with its answer: asks may come and go meanwhile. */
struct sent {
	uint64_t number;
	uint32_t change;
};

/* Written once before the thread starts. */
static int own_rank, world_size;
static char *own_job; /* a copy: programs that set their title write over the environment that they began with */
static char agent_path[sizeof((struct sockaddr_un *)0)->sun_path];

/* Everything below belongs to who has the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed, answered;
static pthread_t thread;
static bool is_running, must_stop, is_connected, has_answered, is_dirty, must_dial;
static int agent = -1;
static struct ask *asks;
static struct circle *circles;
static uint64_t asks_made;
static int64_t hurry_until;

/* The thread's own. */
static struct pace paces[PACES_MAX];
static int pace_count;

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 * MILLISECOND + time.tv_nsec;
}

static struct timespec timespec_of(int64_t time)
{
	struct timespec result = { .tv_sec = time / (1000 * MILLISECOND),
				   .tv_nsec = time % (1000 * MILLISECOND) };
	return result;
}

/* --- what is asked for ---------------------------------------------------------------------------- */

static bool next_index(const struct members *members, uint32_t *index)
{
	struct circle *circle = circles;

	while (circle && !members_same(&circle->members, members))
		circle = circle->next;
	if (!circle) {
		circle = calloc(1, sizeof *circle);
		if (!circle || !members_copy(members, &circle->members)) {
			free(circle);
			return false;
		}
		circle->next = circles;
		circles = circle;
	}
	*index = circle->count++;
	return true;
}

/* Every rank of a communicator counts it, also those that tell of themselves alone: all go on alike. */
static bool count_in(struct members *members, uint32_t *index)
{
	struct members alone = { 1, &members->alone, members->talk, -1 };

	return next_index(members, index) &&
	       (members->alone < 0 || next_index(&alone, index));
}

/* Where this rank has sent so far, if only that is asked for. */
static void look_back(struct ask *ask)
{
	struct in_addr *seen = NULL;

	free(ask->seen);
	ask->seen_count = 0;
	if (ask->terms.options & KEEPTIME_PAIRS_SEEN && (seen = calloc(SEEN_MAX, sizeof *seen)))
		ask->seen_count = pacing_seen(seen, SEEN_MAX);
	ask->seen = seen;
}

/* Into a state in which nothing is reserved. */
static void turn_to(struct ask *ask, enum keeptime_qos_state state, const char *reason)
{
	ask->state = state;
	ask->reserved_kbps = 0;
	ask->bucket_bytes = 0;
	ask->promised_seconds = 0;
	snprintf(ask->reason, sizeof ask->reason, "%s", reason);
}

/* The same, as what was answered to its value. */
static void settle(struct ask *ask, enum keeptime_qos_state state, const char *reason)
{
	turn_to(ask, state, reason);
	ask->told_change = ask->change;
}

static void waits(struct ask *ask)
{
	turn_to(ask, KEEPTIME_WAITING, "the agent has not answered yet");
	is_dirty = true;
	must_dial = !is_connected;
	hurry_until = now() + KEEPTIME_WAIT_SECONDS * 1000 * MILLISECOND;
	pthread_cond_signal(&changed);
}

struct ask *ask_new(struct members *members, struct identity *identity, const keeptime_qos *terms)
{
	struct ask *ask = calloc(1, sizeof *ask);
	struct ask **end = &asks;

	if (!ask)
		return NULL;
	pthread_mutex_lock(&lock);
	if (identity) {
		ask->index = identity_next_index(identity);
	} else if (!count_in(members, &ask->index)) {
		pthread_mutex_unlock(&lock);
		free(ask);
		return NULL;
	}
	ask->number = ++asks_made;
	ask->references = 1;
	ask->members = *members;
	memset(members, 0, sizeof *members);
	ask->change = 1;
	ask->terms = *terms;
	look_back(ask);
	/* Behind those that were there before: if some are too many, it is the last. */
	while (*end)
		end = &(*end)->next;
	*end = ask;
	waits(ask);
	pthread_mutex_unlock(&lock);
	return ask;
}

struct ask *ask_again(struct ask *const *place, struct identity *identity)
{
	struct members members;
	keeptime_qos terms;
	struct ask *again;

	pthread_mutex_lock(&lock);
	if (!*place || !members_copy(&(*place)->members, &members)) {
		pthread_mutex_unlock(&lock);
		return NULL;
	}
	terms = (*place)->terms;
	pthread_mutex_unlock(&lock);
	again = ask_new(&members, identity, &terms);
	if (!again)
		members_free(&members);
	return again;
}

void ask_change(struct ask *ask, const keeptime_qos *terms)
{
	pthread_mutex_lock(&lock);
	ask->terms = *terms;
	ask->change++;
	look_back(ask);
	waits(ask);
	pthread_mutex_unlock(&lock);
}

/* Places belong to who has the lock, too: one thread of the program may set an attribute while another
 * copies its communicator. */

struct ask *ask_hold(struct ask *const *place)
{
	struct ask *ask;

	pthread_mutex_lock(&lock);
	ask = *place;
	if (ask)
		ask->references++;
	pthread_mutex_unlock(&lock);
	return ask;
}

struct ask *ask_watch(struct ask *const *place)
{
	struct ask *ask;

	pthread_mutex_lock(&lock);
	ask = *place;
	if (ask) {
		ask->references++;
		ask->watchers++;
	}
	pthread_mutex_unlock(&lock);
	return ask;
}

struct ask *ask_take(struct ask **place, bool shared)
{
	struct ask *ask;

	pthread_mutex_lock(&lock);
	ask = *place;
	if (ask && !shared && ask->references - ask->watchers > 1)
		ask = NULL;
	if (ask)
		*place = NULL;
	pthread_mutex_unlock(&lock);
	return ask;
}

/* With the lock. */
static void let_go(struct ask *ask)
{
	if (--ask->references)
		return;
	for (struct ask **at = &asks; *at; at = &(*at)->next)
		if (*at == ask) {
			*at = ask->next;
			break;
		}
	members_free(&ask->members);
	free(ask->seen);
	free(ask);
	is_dirty = true;
	pthread_cond_signal(&changed);
}

void ask_drop(struct ask *ask)
{
	pthread_mutex_lock(&lock);
	let_go(ask);
	pthread_mutex_unlock(&lock);
}

/* An agent that answers may still have to wait for others; without one there is nothing to wait for. */
static bool is_answered(const struct ask *ask)
{
	return ask->told_change == ask->change && (ask->state != KEEPTIME_WAITING || !is_connected);
}

void ask_wait(struct ask *ask)
{
	struct timespec until = timespec_of(now() + KEEPTIME_WAIT_SECONDS * 1000 * MILLISECOND);

	pthread_mutex_lock(&lock);
	while (is_running && !must_stop && !is_answered(ask))
		if (pthread_cond_timedwait(&answered, &lock, &until) == ETIMEDOUT)
			break;
	/* Both at once: whoever takes it would think that others share it. */
	ask->watchers--;
	let_go(ask);
	pthread_mutex_unlock(&lock);
}

void ask_tell(const struct ask *ask, keeptime_qos *terms)
{
	pthread_mutex_lock(&lock);
	terms->state = ask->state;
	terms->reserved_kbps = ask->reserved_kbps;
	terms->bucket_bytes = ask->bucket_bytes;
	terms->promised_seconds = ask->promised_seconds;
	memcpy(terms->reason, ask->reason, sizeof terms->reason);
	pthread_mutex_unlock(&lock);
}

/* --- lines ---------------------------------------------------------------------------------------- */

static void add_job(struct text *line)
{
	if (own_job) {
		text_add(line, "\"job\":");
		text_add_string(line, own_job);
		text_add(line, ",");
	}
}

static const char *class_name(uint32_t qos_class)
{
	switch (qos_class) {
	case KEEPTIME_PREMIUM:
		return "premium";
	case KEEPTIME_LOW_LATENCY:
		return "low-latency";
	default:
		return "best-effort";
	}
}

/* Checked before: neither negative nor too much. */
static unsigned long long whole(double value)
{
	return (unsigned long long)(value + 0.5);
}

static void add_ask(struct text *line, const struct ask *ask)
{
	const keeptime_qos *terms = &ask->terms;
	bool is_alone = ask->members.alone >= 0;
	const int *ranks = is_alone ? &ask->members.alone : ask->members.ranks;

	text_add(line, "{\"communicator\":{\"members\":[");
	for (int at = 0; at < (is_alone ? 1 : ask->members.count); at++)
		text_add(line, at ? ",%d" : "%d", ranks[at]);
	text_add(line, "],\"index\":%u,\"talk\":", ask->index);
	text_add_string(line, ask->members.talk);
	text_add(line, "},\"change\":%u,\"terms\":{\"class\":\"%s\",\"bits_per_second\":%llu,", ask->change,
		 class_name(terms->qos_class), whole(terms->bandwidth_kbps * 1000));
	text_add(line, "\"message_bytes_max\":%llu,\"cpu_ppm\":%llu,\"disk_read_bytes_per_second\":%llu,",
		 (unsigned long long)terms->max_message_size, whole(terms->cpu_percent * 10000),
		 (unsigned long long)terms->disk_read_bytes_per_second);
	text_add(line, "\"disk_write_bytes_per_second\":%llu,\"within_nanos\":%llu,\"paced\":%s}",
		 (unsigned long long)terms->disk_write_bytes_per_second, whole(terms->within_seconds * 1e9),
		 terms->options & KEEPTIME_UNSHAPED ? "false" : "true");
	if (ask->seen) {
		text_add(line, ",\"seen\":[");
		for (int at = 0; at < ask->seen_count; at++) {
			char address[INET_ADDRSTRLEN];

			inet_ntop(AF_INET, &ask->seen[at], address, sizeof address);
			text_add(line, at ? ",\"%s\"" : "\"%s\"", address);
		}
		text_add(line, "]");
	}
	text_add(line, "}");
}

#define REPORT_END "]}}}\n"

/* All that this rank asks for, and which of it is in what place. What the line has no room for is refused for itself:
 * the others are told of as if it had not been there. */
static int write_report(struct text *line, struct sent **sent)
{
	int count = 0, at = 0;

	for (struct ask *ask = asks; ask; ask = ask->next)
		count++;
	*sent = calloc((size_t)count + 1, sizeof **sent);
	if (!*sent) {
		line->failed = true;
		return 0;
	}
	text_add(line, "{\"mpi\":{\"version\":%d,", PROTOCOL_VERSION);
	add_job(line);
	text_add(line, "\"rank\":{\"number\":%d,\"size\":%d,\"asks\":[", own_rank, world_size);
	for (struct ask *ask = asks; ask; ask = ask->next) {
		size_t before = line->length;

		if (at)
			text_add(line, ",");
		add_ask(line, ask);
		if (line->length + strlen(REPORT_END) > LINE_BYTES_MAX) {
			text_cut(line, before);
			settle(ask, KEEPTIME_REFUSED,
			       "too many pairs of ranks talk: the agent reads no more than a MiB of one rank");
			continue;
		}
		(*sent)[at].number = ask->number;
		(*sent)[at++].change = ask->change;
	}
	text_add(line, REPORT_END);
	return at;
}

static void write_progress(struct text *line, const struct progress *progress)
{
	text_add(line, "{\"mpi-progress\":{");
	add_job(line);
	text_add(line, "\"progress\":{\"rank\":%d,\"operations\":%llu,\"period\":%u,\"told\":%llu}}}\n",
		 own_rank, (unsigned long long)progress->operations, progress->period,
		 (unsigned long long)progress->told);
}

/* --- answers -------------------------------------------------------------------------------------- */

struct answer {
	enum keeptime_qos_state state;
	uint64_t wire_bits_per_second;
	uint64_t burst_bytes;
	uint64_t promised_nanos;
	char reason[KEEPTIME_REASON_SIZE];
};

static struct ask *find(const struct sent *sent)
{
	struct ask *ask = asks;

	while (ask && (ask->number != sent->number || ask->change != sent->change))
		ask = ask->next;
	return ask;
}

/* Whether what is asked for now is enforced. */
static bool is_granted(const struct ask *ask)
{
	return ask->state == KEEPTIME_GRANTED && ask->told_change == ask->change;
}

static void apply(const struct sent *sent, const struct answer *answer)
{
	struct ask *ask = find(sent);

	/* It is although nobody can say so just now. */
	if (!ask || (answer->state == KEEPTIME_WAITING && is_granted(ask)))
		return;
	ask->told_change = ask->change;
	ask->state = answer->state;
	ask->reserved_kbps = (double)answer->wire_bits_per_second / 1000;
	ask->bucket_bytes = answer->burst_bytes;
	ask->promised_seconds = (double)answer->promised_nanos / 1e9;
	memcpy(ask->reason, answer->reason, sizeof ask->reason);
}

/* To all that is not granted: what is stays so whatever becomes of the rest, until it is answered for itself. */
static void apply_to_all(enum keeptime_qos_state state, const char *reason)
{
	for (struct ask *ask = asks; ask; ask = ask->next)
		if (!is_granted(ask))
			settle(ask, state, reason);
}

static bool read_answer(struct json *json, struct answer *answer)
{
	char name[32], state[16] = "";
	int members = 0;

	memset(answer, 0, sizeof *answer);
	while (json_member(json, &members, name, sizeof name)) {
		if (!strcmp(name, "state"))
			json_string(json, state, sizeof state);
		else if (!strcmp(name, "reason"))
			json_string(json, answer->reason, sizeof answer->reason);
		else if (!strcmp(name, "wire_bits_per_second"))
			json_number(json, &answer->wire_bits_per_second);
		else if (!strcmp(name, "burst_bytes"))
			json_number(json, &answer->burst_bytes);
		else if (!strcmp(name, "promised_nanos"))
			json_number(json, &answer->promised_nanos);
		else
			json_skip(json);
	}
	answer->state = !strcmp(state, "granted")   ? KEEPTIME_GRANTED
			: !strcmp(state, "refused") ? KEEPTIME_REFUSED
						    : KEEPTIME_WAITING;
	return json_good(json);
}

static bool read_pace(struct json *json, struct pace *pace)
{
	char name[32], address[INET_ADDRSTRLEN] = "";
	int members = 0;

	memset(pace, 0, sizeof *pace);
	while (json_member(json, &members, name, sizeof name)) {
		if (!strcmp(name, "address"))
			json_string(json, address, sizeof address);
		else if (!strcmp(name, "bits_per_second"))
			json_number(json, &pace->bits_per_second);
		else
			json_skip(json);
	}
	return json_good(json) && inet_pton(AF_INET, address, &pace->address) == 1;
}

/* What an answer that breaks off says of pacing is not all, and counts for nothing. */
static bool read_answers(struct json *json, const struct sent *sent, int count)
{
	static struct pace told[PACES_MAX];
	char name[32];
	int members = 0, told_count = 0;

	while (json_member(json, &members, name, sizeof name)) {
		int elements = 0;

		if (!strcmp(name, "answers")) {
			struct answer answer;

			while (json_element(json, &elements) && read_answer(json, &answer))
				if (elements <= count)
					apply(&sent[elements - 1], &answer);
		} else if (!strcmp(name, "pace")) {
			struct pace pace;

			/* Those for which there is no room are read, too: behind them the answer goes on. */
			while (json_element(json, &elements) && read_pace(json, &pace))
				if (told_count < PACES_MAX)
					told[told_count++] = pace;
		} else {
			json_skip(json);
		}
	}
	if (!json_good(json))
		return false;
	memcpy(paces, told, (size_t)told_count * sizeof *told);
	pace_count = told_count;
	return true;
}

/* {"mpi":{…}}, {"refused":{"reason":…}}, {"failed":{"error":…}} or "done". */
static bool read_response(const char *line, size_t length, const struct sent *sent, int count)
{
	struct json json = { line, line + length };
	char name[32], reason[KEEPTIME_REASON_SIZE];
	int members = 0, inner = 0;

	if (!json_member(&json, &members, name, sizeof name))
		return false;
	if (!strcmp(name, "mpi"))
		return read_answers(&json, sent, count);
	if (!json_member(&json, &inner, name, sizeof name) || !json_string(&json, reason, sizeof reason))
		return false;
	apply_to_all(KEEPTIME_REFUSED, reason);
	return true;
}

/* Whether something waits for its answer. */
static bool any_waiting(void)
{
	for (struct ask *ask = asks; ask; ask = ask->next)
		if (ask->state == KEEPTIME_WAITING)
			return true;
	return false;
}

/* --- the agent ------------------------------------------------------------------------------------ */

/* Calls that have a limit of time say so when the process was stopped meanwhile and goes on (signal(7)), whatever
 * signals are blocked: agents stop ranks whose share they keep from user space. */
static bool was_stopped(ssize_t outcome)
{
	return outcome < 0 && errno == EINTR;
}

/* At once, or not: of a queue that is full the kernel says EAGAIN. */
static int dial(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = EXCHANGE_SECONDS };
	int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), cause;

	if (connection < 0)
		return -1;
	memcpy(address.sun_path, agent_path, sizeof address.sun_path);
	setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	/* From then on it waits. */
	if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0 &&
	    fcntl(connection, F_SETFL, 0) == 0)
		return connection;
	cause = errno;
	close(connection);
	errno = cause;
	return -1;
}

/* Sends a line and receives one, which the caller frees; nothing if that failed. */
static char *exchange(int connection, const struct text *line, size_t *length)
{
	size_t capacity = 4096;
	char *answer = malloc(capacity);

	for (size_t at = 0; answer && at < line->length;) {
		ssize_t count = send(connection, line->data + at, line->length - at, MSG_NOSIGNAL);

		if (was_stopped(count))
			continue;
		if (count <= 0) {
			free(answer);
			return NULL;
		}
		at += (size_t)count;
	}
	for (*length = 0; answer;) {
		ssize_t count = recv(connection, answer + *length, capacity - *length, 0);

		if (was_stopped(count))
			continue;
		if (count <= 0)
			break;
		*length += (size_t)count;
		if (answer[*length - 1] == '\n')
			return answer;
		if (*length == capacity) {
			char *more = capacity < LINE_BYTES_MAX ? realloc(answer, capacity * 2) : NULL;

			if (!more)
				break;
			answer = more;
			capacity *= 2;
		}
	}
	free(answer);
	return NULL;
}

/* From here to the end of the section: with the lock, which is given away while waiting for others. */

/* Calls an agent whose queue is full again and again, for as long as an answer may take. Who ends it meanwhile does not
 * wait for that, and who forks finds the connection in its place. */
static int call(void)
{
	int64_t until = now() + EXCHANGE_SECONDS * 1000 * MILLISECOND;
	int connection;

	while ((connection = dial()) < 0 && errno == EAGAIN && now() < until) {
		struct timespec again = timespec_of(now() + CALL_EVERY);

		pthread_cond_timedwait(&changed, &lock, &again);
		if (must_stop)
			return -1;
	}
	return connection;
}

static void connect_agent(void)
{
	must_dial = false;
	agent = call();
	is_connected = agent >= 0;
	if (is_connected) {
		has_answered = false;
		is_dirty = true;
		/* Who asked while this was dialling has what they asked for. */
		must_dial = false;
	} else {
		char reason[KEEPTIME_REASON_SIZE];

		snprintf(reason, sizeof reason, "no agent of Keeptime answers at %s", agent_path);
		apply_to_all(KEEPTIME_WAITING, reason);
		pthread_cond_broadcast(&answered);
	}
}

static void hang_up(void)
{
	close(agent);
	agent = -1;
	is_connected = false;
}

static void nobody_answered(void)
{
	char reason[KEEPTIME_REASON_SIZE];

	snprintf(reason, sizeof reason, "the agent at %s hangs up: it may have as many calls of one user as it takes",
		 agent_path);
	apply_to_all(KEEPTIME_WAITING, reason);
}

/* Sends `line` and has its answer read; hangs up if there is none. If there never was one, nobody is let in
 * at the moment, and to call again at once would be in vain. */
static void converse(struct text *line, const struct sent *sent, int count)
{
	int connection = agent;
	size_t length = 0;
	char *answer;

	pthread_mutex_unlock(&lock);
	answer = exchange(connection, line, &length);
	pthread_mutex_lock(&lock);
	if (answer && (!sent || read_response(answer, length, sent, count))) {
		has_answered = true;
	} else {
		hang_up();
		if (!has_answered)
			nobody_answered();
	}
	free(answer);
}

static void report(void)
{
	struct text line = {0};
	struct sent *sent = NULL;
	int count = write_report(&line, &sent);

	is_dirty = false;
	if (line.failed)
		apply_to_all(KEEPTIME_REFUSED, "memory is lacking");
	else
		converse(&line, sent, count);
	pthread_cond_broadcast(&answered);
	text_free(&line);
	free(sent);
}

/* Whether it was heard. */
static bool report_progress(const struct progress *progress)
{
	struct text line = {0};
	bool is_whole;

	write_progress(&line, progress);
	is_whole = !line.failed;
	if (is_whole)
		converse(&line, NULL, 0);
	text_free(&line);
	return is_whole && is_connected;
}

/* --- the thread ----------------------------------------------------------------------------------- */

static int64_t earlier(int64_t one, int64_t other)
{
	return one < other ? one : other;
}

/* Connects, reports and paces what is due. When the next of it is. */
static int64_t work(void)
{
	static int64_t dial_at, report_at, progress_at, pace_at;
	static struct progress told;
	int64_t time = now();

	if (!is_connected && (must_dial || time >= dial_at)) {
		connect_agent();
		dial_at = now() + REPORT_EVERY;
		/* An agent knows of a rank what it was told on its connection. */
		told = (struct progress){0};
	}
	if (is_connected && (is_dirty || (asks && time >= report_at))) {
		report();
		report_at = now() + (any_waiting() && now() < hurry_until ? REPORT_SOON : REPORT_EVERY);
		/* An agent that went away may be back already, if it was not one that lets nobody in. */
		if (!is_connected && has_answered)
			dial_at = now();
		pace_at = 0;
	}
	if (is_connected && time >= progress_at) {
		struct progress progress = progress_now();
		char byte;

		/* Who has nothing to tell would not notice that the next agent knows nothing of it. */
		if (recv(agent, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
			hang_up();
		if (is_connected && (progress.operations != told.operations || progress.told != told.told) &&
		    report_progress(&progress))
			told = progress;
		progress_at = now() + REPORT_EVERY;
	}
	if (time >= pace_at) {
		static bool was_pacing;

		if (pace_count || was_pacing) {
			pthread_mutex_unlock(&lock);
			pacing_apply(paces, pace_count, now());
			pthread_mutex_lock(&lock);
		}
		was_pacing = pace_count;
		pace_at = pace_count ? now() + PACE_EVERY : INT64_MAX;
	}
	if (!is_connected)
		return earlier(dial_at, pace_at);
	return earlier(earlier(asks ? report_at : INT64_MAX, progress_at), pace_at);
}

static void *keep(void *unused)
{
	pthread_mutex_lock(&lock);
	while (!must_stop) {
		struct timespec until = timespec_of(work());

		if (!must_stop && !must_dial && !(is_dirty && is_connected))
			pthread_cond_timedwait(&changed, &lock, &until);
	}
	if (agent >= 0)
		hang_up();
	is_running = false;
	pthread_cond_broadcast(&answered);
	pthread_mutex_unlock(&lock);
	pacing_apply(NULL, 0, now());
	return unused;
}

static bool find_agent(void)
{
	const char *path = getenv("KEEPTIME_AGENT");

	if (!path) {
		path = AGENT_USUAL;
		if (access(path, F_OK))
			return false;
	}
	if (!*path || strlen(path) >= sizeof agent_path)
		return false;
	strcpy(agent_path, path);
	return true;
}

/* A child has neither the thread nor MPI. Its copy of the connection would have the agent take it for the rank when that
 * has ended. */
static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
	if (agent >= 0)
		hang_up();
	is_running = false;
	must_stop = true;
	pthread_mutex_unlock(&lock);
}

static char *job_of_environment(void)
{
	const char *job = getenv("KEEPTIME_JOB");

	return job && *job ? strdup(job) : NULL;
}

void keeper_start(int rank, int size)
{
	pthread_condattr_t steady;
	sigset_t all, before;

	pthread_mutex_lock(&lock);
	if (is_running || must_stop || !find_agent()) {
		pthread_mutex_unlock(&lock);
		return;
	}
	own_rank = rank;
	world_size = size;
	free(own_job);
	own_job = job_of_environment();
	pthread_condattr_init(&steady);
	pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &steady);
	pthread_cond_init(&answered, &steady);
	pthread_condattr_destroy(&steady);
	/* The program's signals are the program's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	is_running = pthread_create(&thread, NULL, keep, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (is_running)
		pthread_atfork(before_fork, after_fork, after_fork_in_child);
	progress_count_from_now(is_running);
	pthread_mutex_unlock(&lock);
}

void keeper_stop(void)
{
	bool was_running;

	pthread_mutex_lock(&lock);
	was_running = is_running;
	must_stop = true;
	if (was_running) {
		pthread_cond_signal(&changed);
		/* It may be waiting for an answer. */
		if (agent >= 0)
			shutdown(agent, SHUT_RDWR);
	}
	pthread_mutex_unlock(&lock);
	if (was_running)
		pthread_join(thread, NULL);
}

bool keeper_is_running(void)
{
	bool running;

	pthread_mutex_lock(&lock);
	running = is_running && !must_stop;
	pthread_mutex_unlock(&lock);
	return running;
}
