/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The attribute at the profiling interface: setting it asks, getting it tells; MPI's own callbacks say
 * when a communicator that has it is copied or goes away. */
#include "attribute.h"

#include "identity.h"
#include "keeper.h"
#include "keeptime_mpi.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The least that was ever a keeptime_qos: up to where the library tells. */
#define SIZE_MIN offsetof(keeptime_qos, state)
#define OPTIONS (KEEPTIME_INHERIT_SHARED | KEEPTIME_INHERIT_OWN | KEEPTIME_UNSHAPED | KEEPTIME_PAIRS_SEEN)
/* A petabit per second, a thousand CPUs, 30 years: more is a mistake, and products stay within 64 bits. */
#define KBPS_MAX 1e12
#define CPU_PERCENT_MAX 1e5
#define WITHIN_SECONDS_MIN 1e-6
#define WITHIN_SECONDS_MAX 1e9
#define MESSAGE_SIZE_MAX (1ull << 40)

struct attribute {
	keeptime_qos visible;   /* what MPI_Comm_get_attr gives; first, so that both have one address */
	bool is_malformed;      /* it asks for nothing new; visible says why */
	struct ask *ask;        /* nothing where nobody is asked */
	struct attribute *next; /* in `all` */
};

/* Those that there are: few. A tool between the program and this library may have MPI keep what is none. */
static struct attribute *all;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static int keyval = MPI_KEYVAL_INVALID;
static pthread_once_t keyval_once = PTHREAD_ONCE_INIT;
/* Setting, getting and deleting one after the other: a value is taken over from the one before it. */
static pthread_mutex_t using = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool copies_for_us;
/* What a thread is copying, and what the copy will be known by. */
struct copying {
	MPI_Comm comm;
	struct identity identity;
};
static _Thread_local struct copying copying;

/* --- values --------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3)))
static bool malformed(struct attribute *attribute, const char *format, ...)
{
	va_list arguments;

	attribute->is_malformed = true;
	attribute->visible.state = KEEPTIME_REFUSED;
	va_start(arguments, format);
	vsnprintf(attribute->visible.reason, sizeof attribute->visible.reason, format, arguments);
	va_end(arguments);
	return false;
}

static bool is_between(double value, double most)
{
	return value >= 0 && value <= most; /* and no NaN */
}

/* Fields of a later version that this library does not know must not ask for anything. */
static bool has_unknown(const keeptime_qos *value)
{
	const unsigned char *bytes = (const unsigned char *)value;

	for (size_t at = sizeof *value; at < value->size; at++)
		if (bytes[at])
			return true;
	return false;
}

/* Copies what is asked; false with a reason if that makes no sense. */
static bool take(struct attribute *attribute, const keeptime_qos *value)
{
	keeptime_qos *terms = &attribute->visible;

	terms->size = sizeof *terms;
	if (!value)
		return malformed(attribute, "value: a null pointer is not accepted; expected a keeptime_qos");
	if (value->size < SIZE_MIN || value->size > 4096)
		return malformed(attribute, "size: %zu is not accepted; expected sizeof(keeptime_qos), %zu",
				 value->size, sizeof *value);
	memcpy(&terms->qos_class, &value->qos_class, SIZE_MIN - offsetof(keeptime_qos, qos_class));
	if (value->size > sizeof *value && has_unknown(value))
		return malformed(attribute, "size: %zu has fields that this library does not know; expected "
				 "%zu, or zeros behind that", value->size, sizeof *value);
	if (terms->qos_class > KEEPTIME_PREMIUM)
		return malformed(attribute, "qos_class: %u is not accepted; expected best-effort (0), "
				 "low-latency (1) or premium (2)", terms->qos_class);
	if (terms->options & ~(uint32_t)OPTIONS)
		return malformed(attribute, "options: 0x%x is not accepted; expected some of 0x%x",
				 terms->options, OPTIONS);
	if (!is_between(terms->bandwidth_kbps, KBPS_MAX))
		return malformed(attribute, "bandwidth_kbps: %g is not accepted; expected 0 to %g",
				 terms->bandwidth_kbps, KBPS_MAX);
	if (terms->qos_class == KEEPTIME_PREMIUM && terms->bandwidth_kbps * 1000 < 1)
		return malformed(attribute, "bandwidth_kbps: %g is not accepted; expected more than 0 for "
				 "premium", terms->bandwidth_kbps);
	if (terms->max_message_size > MESSAGE_SIZE_MAX)
		return malformed(attribute, "max_message_size: %llu is not accepted; expected at most %llu",
				 (unsigned long long)terms->max_message_size, MESSAGE_SIZE_MAX);
	if (!is_between(terms->cpu_percent, CPU_PERCENT_MAX))
		return malformed(attribute, "cpu_percent: %g is not accepted; expected 0 to %g",
				 terms->cpu_percent, CPU_PERCENT_MAX);
	if (!is_between(terms->within_seconds, WITHIN_SECONDS_MAX) ||
	    (terms->within_seconds > 0 && terms->within_seconds < WITHIN_SECONDS_MIN))
		return malformed(attribute, "within_seconds: %g is not accepted; expected 0, or %g to %g",
				 terms->within_seconds, WITHIN_SECONDS_MIN, WITHIN_SECONDS_MAX);
	return true;
}

static struct attribute *attribute_new(void)
{
	struct attribute *attribute = calloc(1, sizeof *attribute);

	if (!attribute)
		return NULL;
	pthread_mutex_lock(&all_lock);
	attribute->next = all;
	all = attribute;
	pthread_mutex_unlock(&all_lock);
	return attribute;
}

/* Where `value` is linked from, with the lock; nothing where it is none of ours: then it is not looked into. */
static struct attribute **link_of(const void *value)
{
	struct attribute **link = &all;

	while (*link && *link != value)
		link = &(*link)->next;
	return *link ? link : NULL;
}

/* `value` if it is one of ours. */
static struct attribute *ours(void *value)
{
	bool is_ours;

	pthread_mutex_lock(&all_lock);
	is_ours = link_of(value);
	pthread_mutex_unlock(&all_lock);
	return is_ours ? value : NULL;
}

/* Nothing happens to what is none of ours. */
static void attribute_free(void *value)
{
	struct attribute *attribute = value, **link;

	pthread_mutex_lock(&all_lock);
	link = link_of(value);
	if (link)
		*link = attribute->next;
	pthread_mutex_unlock(&all_lock);
	if (!link)
		return;
	if (attribute->ask)
		ask_drop(attribute->ask);
	free(attribute);
}

/* --- beginning ------------------------------------------------------------------------------------ */

static void begin(void)
{
	MPI_Comm parent = MPI_COMM_NULL;
	int rank, size, has_world = 0;

	/* Sessions alone have none. */
	if (PMPI_Initialized(&has_world) != MPI_SUCCESS || !has_world)
		return;
	/* A world that was spawned counts its ranks from 0 again: nobody could tell them from those of the
	 * world that did that. */
	if (PMPI_Comm_get_parent(&parent) != MPI_SUCCESS || parent != MPI_COMM_NULL)
		return;
	if (PMPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS &&
	    PMPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS)
		keeper_start(rank, size);
}

/* --- what MPI tells ------------------------------------------------------------------------------- */

/* What the copy of `comm` that this thread makes will be known by; nothing where it has no number. */
static struct identity *identity_of_copy(MPI_Comm comm)
{
	return copying.comm == comm && copying.identity.number ? &copying.identity : NULL;
}

static int copied(MPI_Comm comm, int key, void *extra, void *value, void *copy, int *flag)
{
	const struct attribute *original = ours(value);
	struct attribute *attribute;

	(void)key, (void)extra;
	*flag = 0;
	if (copies_for_us || !original ||
	    !(original->visible.options & (KEEPTIME_INHERIT_SHARED | KEEPTIME_INHERIT_OWN)))
		return MPI_SUCCESS;
	attribute = attribute_new();
	if (!attribute)
		return MPI_SUCCESS;
	/* Of what can be read while another thread gets it. */
	memcpy(&attribute->visible, &original->visible,
	       original->is_malformed ? sizeof original->visible : SIZE_MIN);
	attribute->is_malformed = original->is_malformed;
	/* MPI may hold locks of its own meanwhile: whoever has the copy made waits for the answer. */
	if (original->visible.options & KEEPTIME_INHERIT_SHARED)
		attribute->ask = ask_hold(&original->ask);
	else
		attribute->ask = ask_again(&original->ask, identity_of_copy(comm));
	*(struct attribute **)copy = attribute;
	*flag = 1;
	return MPI_SUCCESS;
}

static int deleted(MPI_Comm comm, int key, void *value, void *extra)
{
	(void)comm, (void)key, (void)extra;
	attribute_free(value);
	return MPI_SUCCESS;
}

static void make_keyval(void)
{
	if (PMPI_Comm_create_keyval(copied, deleted, &keyval, NULL) != MPI_SUCCESS)
		keyval = MPI_KEYVAL_INVALID;
	/* MPI_Init of a program in Fortran does not come by here with every MPI, but it has been. Each rank comes by here when it
	 * likes, and has made communicators before that others make after it: numbering does not begin now. */
	begin();
}

int keeptime_mpi_keyval(void)
{
	pthread_once(&keyval_once, make_keyval);
	return keyval;
}

int duplicate_without_attribute(MPI_Comm comm, MPI_Comm *copy)
{
	int code;

	copies_for_us = true;
	code = PMPI_Comm_dup(comm, copy);
	copies_for_us = false;
	return code;
}

/* --- what the program calls ------------------------------------------------------------------------ */

/* Asks by what the value before asked by, if that is this communicator's alone: then nothing is given
 * back in between. */
static void ask(struct attribute *attribute, MPI_Comm comm, struct attribute *before)
{
	struct members members;

	if (before)
		attribute->ask = ask_take(&before->ask, attribute->is_malformed);
	if (attribute->ask) {
		if (!attribute->is_malformed)
			ask_change(attribute->ask, &attribute->visible);
		return;
	}
	if (attribute->is_malformed || !keeper_is_running())
		return;
	if (!members_of(comm, &members, attribute->visible.reason, sizeof attribute->visible.reason)) {
		attribute->is_malformed = true;
		attribute->visible.state = KEEPTIME_REFUSED;
		return;
	}
	attribute->ask = ask_new(&members, identity_of(comm), &attribute->visible);
	if (!attribute->ask) {
		members_free(&members);
		malformed(attribute, "memory is lacking");
	}
}

static int set(MPI_Comm comm, const keeptime_qos *value)
{
	struct attribute *attribute, *before = NULL;
	struct ask *waited = NULL;
	int code, size, flag = 0;

	/* MPI says what is wrong with the communicator. */
	code = PMPI_Comm_size(comm, &size);
	if (code != MPI_SUCCESS)
		return code;
	attribute = attribute_new();
	if (!attribute)
		return MPI_ERR_NO_MEM;
	take(attribute, value);
	pthread_mutex_lock(&using);
	PMPI_Comm_get_attr(comm, keyval, &before, &flag);
	ask(attribute, comm, flag ? ours(before) : NULL);
	code = PMPI_Comm_set_attr(comm, keyval, attribute);
	if (code != MPI_SUCCESS) {
		attribute_free(attribute);
	} else if (!attribute->is_malformed) {
		waited = ask_watch(&attribute->ask);
	}
	pthread_mutex_unlock(&using);
	if (waited)
		ask_wait(waited);
	return code;
}

static int get(MPI_Comm comm, void *value, int *flag)
{
	struct attribute *attribute;
	int code;

	pthread_mutex_lock(&using);
	code = PMPI_Comm_get_attr(comm, keyval, value, flag);
	if (code == MPI_SUCCESS && *flag) {
		attribute = ours(*(void **)value);
		if (attribute && attribute->ask && !attribute->is_malformed)
			ask_tell(attribute->ask, &attribute->visible);
	}
	pthread_mutex_unlock(&using);
	return code;
}

static int delete(MPI_Comm comm)
{
	int code;

	pthread_mutex_lock(&using);
	code = PMPI_Comm_delete_attr(comm, keyval);
	pthread_mutex_unlock(&using);
	return code;
}

/* What was being copied before: callbacks of others may copy, too. */
static struct copying begin_copy(MPI_Comm comm)
{
	struct copying outer = copying;

	copying.comm = comm;
	copying.identity = identity_next(comm);
	return outer;
}

/* A copy that asks for itself is answered when the program has it. */
static int copied_to(struct copying outer, int code, const MPI_Comm *copy)
{
	struct attribute *attribute = NULL;
	struct identity identity = copying.identity;
	struct ask *own = NULL;
	int flag = 0;

	copying = outer;
	if (code == MPI_SUCCESS)
		identity_give(*copy, &identity);
	if (code != MPI_SUCCESS || keyval == MPI_KEYVAL_INVALID)
		return code;
	pthread_mutex_lock(&using);
	PMPI_Comm_get_attr(*copy, keyval, &attribute, &flag);
	attribute = flag ? ours(attribute) : NULL;
	if (attribute && !(attribute->visible.options & KEEPTIME_INHERIT_SHARED))
		own = ask_watch(&attribute->ask);
	pthread_mutex_unlock(&using);
	if (own)
		ask_wait(own);
	return code;
}

static bool is_ours(int key)
{
	return key == keyval && key != MPI_KEYVAL_INVALID;
}

int MPI_Comm_set_attr(MPI_Comm comm, int key, void *value)
{
	return is_ours(key) ? set(comm, value) : PMPI_Comm_set_attr(comm, key, value);
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *flag)
{
	return is_ours(key) ? get(comm, value, flag) : PMPI_Comm_get_attr(comm, key, value, flag);
}

int MPI_Comm_delete_attr(MPI_Comm comm, int key)
{
	return is_ours(key) ? delete(comm) : PMPI_Comm_delete_attr(comm, key);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
	struct copying outer = begin_copy(comm);

	return copied_to(outer, PMPI_Comm_dup(comm, copy), copy);
}

int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *copy)
{
	struct copying outer = begin_copy(comm);

	return copied_to(outer, PMPI_Comm_dup_with_info(comm, info, copy), copy);
}

/* The names of MPI 1, which the paper used. */
int MPI_Attr_put(MPI_Comm comm, int key, void *value)
{
	return MPI_Comm_set_attr(comm, key, value);
}

int MPI_Attr_get(MPI_Comm comm, int key, void *value, int *flag)
{
	return MPI_Comm_get_attr(comm, key, value, flag);
}

int MPI_Attr_delete(MPI_Comm comm, int key)
{
	return MPI_Comm_delete_attr(comm, key);
}

/* --- what begins and ends ------------------------------------------------------------------------- */

static int initialised(int code)
{
	if (code == MPI_SUCCESS) {
		/* Whether an agent is there or not: ranks on other nodes count, too. */
		identities_begin();
		begin();
	}
	return code;
}

int MPI_Init(int *argc, char ***argv)
{
	return initialised(PMPI_Init(argc, argv));
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	return initialised(PMPI_Init_thread(argc, argv, required, provided));
}

int MPI_Finalize(void)
{
	keeper_stop();
	return PMPI_Finalize();
}
