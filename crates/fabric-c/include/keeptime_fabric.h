/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libkeeptime_fabric: resources, their directory, messages between them over the networks of a
 * cluster, and one-sided regions. keeptime_fabric(7) tells the story; ktf_ping.c is an example.
 *
 * Every function may be called by any thread; one object may be used by several at once, but for
 * the call that closes or drops it, after which it must not be used. Threads that read a region of
 * another node by one reader take turns: each should have a reader of its own. After fork() the
 * child must neither use nor close what its parent has opened; it calls exec at once.
 *
 * All times are nanoseconds. Functions that wait say so. A timeout says for how long: KTF_NOW, which
 * is 0, not at all, KTF_FOREVER and every other negative one for ever. Where the node's daemon is
 * asked, that has a time of its own, which the function says.
 *
 * Outputs are set only when the result is KTF_OK, but for those that say otherwise; what is written
 * there has to be closed or dropped by the caller with the function of its name. Handles hold what
 * they need: the order of closing is free. Text is UTF-8 and ends with a zero byte.
 *
 * A context has at most 1048576 resources, a resource KTF_ATTRIBUTES_MOST attributes, each text of
 * them KTF_TEXT_MOST bytes, and a message 1 GiB, or what ktf_config says. What the library says beside
 * its results, such as that a caller is not let in, ktf_log_set() has told.
 */
#ifndef KEEPTIME_FABRIC_H
#define KEEPTIME_FABRIC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. ktf_version() tells that of the library that a program has met. */
#define KTF_VERSION_MAJOR 0
#define KTF_VERSION_MINOR 1
#define KTF_VERSION_PATCH 0
#define KTF_VERSION "0.1.0"

/* What became of a call. ktf_error_text() says more. */
typedef enum ktf_result {
	KTF_OK = 0,
	KTF_INVALID = 1,	/* an argument is null, not UTF-8, or out of range */
	KTF_NO_DAEMON = 2,	/* no keeptime-fabricd runs on this node, or it does not answer, or it refuses */
	KTF_NOT_FOUND = 3,	/* no resource has these attributes */
	KTF_SEVERAL = 4,	/* more than one resource has these attributes */
	KTF_GONE = 5,		/* the resource, its context or its region is no more */
	KTF_UNREACHABLE = 6,	/* its node cannot be reached, or does not let this program in */
	KTF_TOO_LONG = 7,	/* a message or an attribute is too long, or there are too many attributes or resources */
	KTF_TIMED_OUT = 8,	/* not within the timeout */
	KTF_BROKEN = 9,		/* the connection broke: the message may or may not have arrived */
	KTF_UNDELIVERED = 10,	/* a message that was sent before did not arrive */
	KTF_NOT_ALLOWED = 11,	/* the region's counters are its publisher's own */
	KTF_UNFINISHED = 12,	/* the publisher began to write the record and does not go on */
	KTF_UNCONFIRMED = 13,	/* the amount may or may not have been added */
	KTF_SYSTEM = 14,	/* the kernel refuses something that is needed */
	KTF_PANIC = 15,		/* a bug of the library: the object is not to be used any more */
	KTF_NO_ROOM = 16	/* the receiver holds all that it may; the error's text says how much room is left */
} ktf_result;

typedef struct ktf_context ktf_context;		/* a program's place in the fabric */
typedef struct ktf_resource ktf_resource;	/* sends and receives under its own name */
typedef struct ktf_message ktf_message;		/* was received */
typedef struct ktf_records ktf_records;		/* what was found: resources and what they are */
typedef struct ktf_watch ktf_watch;		/* what happens to resources */
typedef struct ktf_region ktf_region;		/* published here */
typedef struct ktf_reader ktf_reader;		/* published by somebody */

/* The name of a resource in the whole cluster; never used twice. */
typedef struct ktf_id {
	uint64_t context;
	uint32_t slot;
	uint32_t generation;
} ktf_id;

/* Room for the text of any ktf_id, the zero byte among it. */
#define KTF_ID_ROOM 40

/* A name and a value. A list of them has each name once, in any order; as a question an empty list
 * fits every resource. Names that begin with keeptime. are the library's: a resource is not registered
 * with such ones, and is found by them. */
typedef struct ktf_attribute {
	const char *name;	/* at least one byte */
	const char *value;
} ktf_attribute;

/* How many a list has at most, and how many bytes the text of each name and value, its zero byte not
 * counted. See ktf_attribute. */
#define KTF_ATTRIBUTES_MOST 32
#define KTF_TEXT_MOST 256

/* How long a call waits, in nanoseconds. Every negative timeout is for ever, not only this one. */
#define KTF_FOREVER INT64_C(-1)
#define KTF_NOW INT64_C(0)	/* it does not wait */

/* How threads wait, ktf_config.wait_nanos. */
#define KTF_WAIT_SPIN INT64_MAX	/* keep looking: least delay, one core for each thread that waits */
#define KTF_WAIT_BLOCK INT64_C(0)	/* sleep at once; other values: look for so long, then sleep */

/* What carries messages to other nodes, ktf_config.between_nodes. A context that is to call over a
 * library that is not built in is refused with KTF_INVALID; who is called and has it not is met over
 * TCP. */
#define KTF_BETWEEN_TCP UINT8_C(0)
#define KTF_BETWEEN_UDP UINT8_C(1)	/* most bytes a second; with a progress_thread */
#define KTF_BETWEEN_LIBFABRIC UINT8_C(2)	/* FI_PROVIDER chooses the network */
#define KTF_BETWEEN_UCX UINT8_C(3)	/* UCX_TLS and UCX_NET_DEVICES choose it */

/* Whose programs may send, ktf_config.callers. */
#define KTF_CALLERS_SAME_USER UINT8_C(0)	/* those of this program's user, and root's */
#define KTF_CALLERS_ANY_USER UINT8_C(1)

/* What a context is to be. Only fields whose bit is in field_mask are looked at; the comment of each
 * begins with what it is otherwise, as in ktf_context_open() with a null pointer. wait_nanos and
 * close_nanos are refused when they are negative: they are no timeouts. So are numbers of the others
 * that nothing is said of. Where they are not set, the variables KEEPTIME_FABRIC, KEEPTIME_FABRIC_WAIT and
 * KEEPTIME_FABRIC_NETWORKS of the environment name the daemon, say how threads wait (spin, block, or a
 * time, as in 50us), and name the networks. Fields
 * and bits may be added at the end. */
typedef struct ktf_config {
	uint64_t field_mask;		/* which of the others are set, KTF_CONFIG_... */
	const char *directory;		/* "keeptime-fabric": name of the node's daemon */
	int64_t wait_nanos;		/* 50000: how threads wait, KTF_WAIT_... or a time */
	uint64_t message_most;		/* 1073741824: longest message that is sent or taken, in bytes */
	int64_t close_nanos;		/* 2000000000: how long closing waits until everything is sent */
	uint8_t shared_memory;		/* 1; 0: processes of a node meet as those of two nodes do */
	uint8_t progress_thread;	/* 0; 1: a thread of its own handles what arrives */
	uint8_t between_nodes;		/* KTF_BETWEEN_TCP: what carries messages to other nodes, where
					 * this context connects */
	uint8_t callers;		/* KTF_CALLERS_SAME_USER: whose programs may send to this
					 * context's resources */
	const char *listen;		/* "[::]:0", every interface: where others reach this
					 * context, ADDRESS:PORT or [IPV6]:PORT; port 0: any free one */
	const char *networks;		/* all: which of the node's networks are used, as in
					 * "10.1.0.0/16,10.2.0.0/16": those with an address of it there */
} ktf_config;

#define KTF_CONFIG_DIRECTORY UINT64_C(1)
#define KTF_CONFIG_WAIT UINT64_C(2)
#define KTF_CONFIG_MESSAGE_MOST UINT64_C(4)
#define KTF_CONFIG_CLOSE UINT64_C(8)
#define KTF_CONFIG_SHARED_MEMORY UINT64_C(16)
#define KTF_CONFIG_PROGRESS_THREAD UINT64_C(32)
#define KTF_CONFIG_BETWEEN_NODES UINT64_C(64)
#define KTF_CONFIG_CALLERS UINT64_C(128)
#define KTF_CONFIG_LISTEN UINT64_C(256)
#define KTF_CONFIG_NETWORKS UINT64_C(512)

/* A buffer that is given away. Only fields whose bit is in field_mask are looked at: without data the
 * message is empty, and without release nobody frees it, as is right for what lasts as long as the
 * program. Fields and bits may be added at the end. */
typedef struct ktf_buffer {
	uint64_t field_mask;	/* which of the others are set, KTF_BUFFER_... */
	void *data;		/* what the message says */
	size_t length;		/* of data, in bytes */
	void (*release)(void *data, void *closure);	/* has it back */
	void *closure;		/* for release, whatever that needs */
} ktf_buffer;

#define KTF_BUFFER_DATA UINT64_C(1)	/* data and length */
#define KTF_BUFFER_RELEASE UINT64_C(2)	/* release and closure */

/* How important something is that is told to ktf_log.tell. */
typedef enum ktf_log_level {
	KTF_LEVEL_ERROR = 1,
	KTF_LEVEL_WARNING = 2,	/* who is turned away, and why; what is done another way than it should be */
	KTF_LEVEL_INFO = 3,
	KTF_LEVEL_DETAIL = 4	/* connections: over what, and why not over something else; and their ends */
} ktf_log_level;

/* Who is told what the library says besides its results. Only fields whose bit is in field_mask are looked
 * at; without tell nobody is. Fields and bits may be added at the end. */
typedef struct ktf_log {
	uint64_t field_mask;	/* which of the others are set, KTF_LOG_... */
	void (*tell)(uint32_t level, const char *text, void *closure);	/* is told a sentence */
	void *closure;		/* for tell, whatever that needs */
	uint32_t level;		/* KTF_LEVEL_WARNING: the last ktf_log_level that is told */
} ktf_log;

#define KTF_LOG_TELL UINT64_C(1)	/* tell and closure */
#define KTF_LOG_LEVEL UINT64_C(2)

/* Which messages are wanted. Only fields whose bit is in field_mask are looked at. Fields and bits may be
 * added at the end. */
typedef struct ktf_match {
	uint64_t field_mask;	/* which of the others are set, KTF_MATCH_... */
	uint64_t tag;		/* with this tag */
	ktf_id from;		/* sent by this resource */
	uint64_t tag_bits;	/* all; of tag only the bits that are set here count */
} ktf_match;

#define KTF_MATCH_TAG UINT64_C(1)
#define KTF_MATCH_FROM UINT64_C(2)
#define KTF_MATCH_TAG_BITS UINT64_C(4)	/* with KTF_MATCH_TAG */

/* Why a message was not delivered. */
typedef enum ktf_reason {
	KTF_REASON_GONE = 1,		/* there is no such resource any more */
	KTF_REASON_TOO_LONG = 2,	/* the receiver accepts none so long */
	KTF_REASON_UNCONFIRMED = 3,	/* the connection broke: it has arrived, or does so before what
					 * is sent to that context from now on, or never */
	KTF_REASON_NO_ROOM = 4		/* the receiver holds all that it may: the error's text says how
					 * much was asked for, and what is left */
} ktf_reason;

/* A message that was sent and not delivered. */
typedef struct ktf_undelivered {
	ktf_id to;		/* whom it was for */
	uint64_t tag;
	uint32_t reason;	/* ktf_reason */
	uint32_t reserved;	/* 0 */
} ktf_undelivered;

/* What happened to a resource that is watched. */
typedef enum ktf_event_kind {
	KTF_APPEARED = 1,
	KTF_DISAPPEARED = 2,
	KTF_MISSED = 3,	/* more happened than was kept, 65536 events: look at everything anew; or the node's
			 * daemon was started again and refuses the question: then nothing more is told, and
			 * ktf_watch_open() says why or watches anew */
	KTF_WOKEN = 4	/* nothing happened: ktf_watch_wake() was called */
} ktf_event_kind;

/* What happened, and to which resource. */
typedef struct ktf_event {
	uint32_t kind;		/* ktf_event_kind */
	uint32_t reserved;	/* 0 */
	ktf_id id;		/* zeros with KTF_MISSED and KTF_WOKEN */
} ktf_event;

/* Who has answered a read. */
typedef enum ktf_answered_by {
	KTF_BY_MEMORY = 0,		/* nobody: the memory is mapped */
	KTF_BY_NETWORK_PROGRAM = 1,	/* the kernel of its node, on the interface */
	KTF_BY_RESPONDER = 2		/* the daemon of its node */
} ktf_answered_by;

/* What was read besides the data of a record. */
typedef struct ktf_reading {
	uint64_t sequence;	/* twice the number of times that the record was written */
	uint64_t counter;	/* the record's own */
	uint32_t by;		/* ktf_answered_by */
	uint32_t reserved;	/* 0 */
} ktf_reading;

/* What a region looks like. A record takes 16 bytes besides its data, and a whole number of 64 bytes;
 * a region has at most 64 MiB. Numbers that nothing is said of are refused. */
typedef struct ktf_layout {
	uint32_t records;	/* how many, counted from 0 */
	uint32_t bytes;		/* data of each, 1 to 65536; 48 for a cell, which is a cache line */
	uint32_t adds;		/* 1: others may add to the counters; 0: they may not */
	uint32_t reserved;	/* 0, or it is refused */
} ktf_layout;

/* ---- The library ----------------------------------------------------------------------------- */

/* Tells the version of the library. KTF_VERSION is that of the header. The text lasts as long as the
 * program. */
const char *ktf_version(void);

/* Tells whether a way to carry messages between nodes is built in. between_nodes is KTF_BETWEEN_TCP
 * or one of its like. Returns 1 if it is, and 0 if not, or for another number. */
int ktf_is_built_in(uint8_t between_nodes);

/* ---- Errors ---------------------------------------------------------------------------------- */

/* What went wrong in this thread's last call that did not return KTF_OK, as a sentence. Writes at
 * most length bytes, the zero byte among them, and returns how many the whole has without it. */
size_t ktf_error_text(char *buffer, size_t length);

/* Tells the name of a result, such as KTF_TIMED_OUT. Of a number that is none, "unknown". The text lasts
 * as long as the program. */
const char *ktf_result_name(ktf_result result);

/* Says who is told what the library says besides its results, of all contexts. With a log of null nobody
 * is, as at first. tell is called by any thread, several at once, those of the library among them, and must
 * neither wait nor call this library; its text is valid until it returns. When this returns, the one
 * before is not called any more. KTF_INVALID. */
ktf_result ktf_log_set(const ktf_log *log);

/* ---- Contexts -------------------------------------------------------------------------------- */

/* Opens a context: all interfaces of the node, and shared memory. config says otherwise, and may be
 * null. Waits for the daemon's answer, for about 10 s at most; where none runs, it returns at once.
 * KTF_SYSTEM is also an address to listen at that the node does not have, or a port that is taken. The
 * context has threads of its own, in which signals are blocked. Where a program ends with it open, by
 * exit() or the end of main(), what was sent is carried for at most 0.1 s before, but for long messages
 * that nobody has taken; what is not carried then, or when a signal or _exit() ends the program, is
 * lost without a word. KTF_NO_DAEMON, KTF_INVALID, KTF_SYSTEM. */
ktf_result ktf_context_open(const ktf_config *config, ktf_context **context);

/* Waits until everything that was sent is carried, for at most timeout. What other threads send meanwhile
 * is waited for as well. Short messages are carried when the other context, or its node's kernel, has
 * them; long ones when their receivers do. KTF_UNDELIVERED when some are not by then: ktf_error_text() says how many, and
 * whom the first of them is for. They still may be. What is known not to have arrived is told by
 * ktf_message_receive(), and does not count here. KTF_INVALID. */
ktf_result ktf_context_flush(const ktf_context *context, int64_t timeout);

/* Closes a context. Null is ignored. It ends when its last resource, region and watch are dropped
 * too, and then waits for at most close_nanos until everything that was sent is carried. */
void ktf_context_close(ktf_context *context);

/* Closes a context and tells whether everything that was sent is carried. Waits for that, for at most
 * timeout; if no resource, region or watch is left, the context is gone then. The handle is not to
 * be used any more, whatever the result. KTF_UNDELIVERED when messages may not have arrived, also of
 * resources that were dropped before: ktf_error_text() says how many, and whom the first of them is
 * for. KTF_INVALID when it is null. */
ktf_result ktf_context_close_within(ktf_context *context, int64_t timeout);

/* ---- Resources ------------------------------------------------------------------------------- */

/* Registers a resource. When this returns, every program of the cluster that looks for it finds it.
 * Waits for the daemon, for about 10 s at most. KTF_TOO_LONG is also one more than the 1048576
 * that a context has. KTF_NO_DAEMON, KTF_INVALID, KTF_TOO_LONG. */
ktf_result ktf_resource_register(const ktf_context *context, const ktf_attribute *attributes,
				 size_t count, ktf_resource **resource);

/* Tells the identifier of a resource. KTF_INVALID. */
ktf_result ktf_resource_id(const ktf_resource *resource, ktf_id *id);

/* Drops a resource: nobody finds it any more. Null is ignored. */
void ktf_resource_drop(ktf_resource *resource);

/* Finds the only resource that has all of these attributes. Waits for it to appear, for at most
 * timeout. A daemon that does not answer is KTF_NO_DAEMON by the end of timeout, but not before 1 s
 * and not after 10 s. KTF_NOT_FOUND, KTF_SEVERAL, KTF_NO_DAEMON, KTF_INVALID, KTF_TOO_LONG. */
ktf_result ktf_resource_find_only(const ktf_context *context, const ktf_attribute *attributes,
				 size_t count, int64_t timeout, ktf_id *id);

/* Finds any one of the resources that have all of these attributes: of several one on the own node, if
 * there is one. Among equals contexts choose differently, each the same as long as it is there. Waits
 * for one to appear, for at most timeout. A daemon that does not answer is KTF_NO_DAEMON by the end of timeout, but not before
 * 1 s and not after 10 s. KTF_NOT_FOUND, KTF_NO_DAEMON, KTF_INVALID, KTF_TOO_LONG. */
ktf_result ktf_resource_find_any(const ktf_context *context, const ktf_attribute *attributes,
				 size_t count, int64_t timeout, ktf_id *id);

/* Finds all resources that have all of these attributes now. Writes at most capacity of them to ids,
 * and to found how many there are. Waits for the daemon, for about 10 s at most; not for one to appear.
 * ktf_records_find() tells what they are as well. KTF_NO_DAEMON, KTF_INVALID, KTF_TOO_LONG. */
ktf_result ktf_resource_find_all(const ktf_context *context, const ktf_attribute *attributes,
				 size_t count, ktf_id *ids, size_t capacity, size_t *found);

/* Reserves a rate for what a resource sends to another. It is a limit, which this process keeps.
 * Reserved anew, the new rate holds for what is waiting as well. KTF_INVALID, also when it is 0. */
ktf_result ktf_resource_reserve(const ktf_resource *resource, const ktf_id *to,
				uint64_t bits_per_second);

/* Gives a reserved rate back. What waits is not held back any more. KTF_INVALID. */
ktf_result ktf_resource_release(const ktf_resource *resource, const ktf_id *to);

/* Writes an identifier as text, CONTEXT:SLOT.GENERATION, as keeptime fabric ls does. Writes at most length
 * bytes, the zero byte among them, and returns how many the whole has without it; KTF_ID_ROOM bytes have
 * room for any. Nothing is written of a null id. */
size_t ktf_id_text(const ktf_id *id, char *buffer, size_t length);

/* Reads an identifier from the text that ktf_id_text() writes. KTF_INVALID when it is none. */
ktf_result ktf_id_parse(const char *text, ktf_id *id);

/* ---- Records --------------------------------------------------------------------------------- */

/* Finds all resources that have all of these attributes now, with all that they are. An empty list is
 * KTF_OK too. Waits for the daemon, for about 10 s at most; not for one to appear. The list does not
 * change. KTF_NO_DAEMON, KTF_INVALID, KTF_TOO_LONG. */
ktf_result ktf_records_find(const ktf_context *context, const ktf_attribute *attributes,
			    size_t count, ktf_records **records);

/* Tells how many resources are in a list. None are in a null one. */
size_t ktf_records_count(const ktf_records *records);

/* Tells the identifier of a resource in a list. index counts from 0. KTF_INVALID. */
ktf_result ktf_records_id(const ktf_records *records, size_t index, ktf_id *id);

/* Tells the value of an attribute of a resource in a list. It is valid until the list is dropped. Null
 * when the resource has no such attribute, when there is no such resource, and when name is null. */
const char *ktf_records_attribute(const ktf_records *records, size_t index, const char *name);

/* Tells all attributes of a resource in a list, by name. Writes at most capacity of them to attributes,
 * and to count how many there are, which is at most KTF_ATTRIBUTES_MOST. Their texts are valid until
 * the list is dropped; one in which a program has put a zero byte ends there. KTF_INVALID. */
ktf_result ktf_records_attributes(const ktf_records *records, size_t index,
				  ktf_attribute *attributes, size_t capacity, size_t *count);

/* Tells the name of the node that a resource in a list is on. It is valid until the list is
 * dropped. Null when there is no such resource. */
const char *ktf_records_node(const ktf_records *records, size_t index);

/* Tells the number of the user whose program a resource in a list is of, as its node's daemon says.
 * KTF_INVALID. */
ktf_result ktf_records_owner(const ktf_records *records, size_t index, uint32_t *user);

/* Drops a list. Null is ignored. */
void ktf_records_drop(ktf_records *records);

/* ---- Messages -------------------------------------------------------------------------------- */

/* Sends a message. data stays the caller's, and may be used again when this returns. Messages from
 * one resource to another arrive in the order in which they were sent. A short one that follows others
 * may be carried up to about 0.4 ms after this returns, or when the other end has room: only
 * ktf_context_flush() and ktf_context_close_within() say that all is carried. Waits while the receiver
 * does not keep up; if it is longer than 64 KiB and for another context, until a receiver takes it,
 * which is never with KTF_NOW. What a receiver has begun to take is waited for to its end, whatever
 * the timeout. If its context is not connected yet, that counts: with a timeout it is waited for no
 * longer, and a connection that takes longer is made all the same, so that the next call finds it.
 * With KTF_NOW this call makes the connection, which takes seconds where nobody answers; if another
 * thread makes it, it is not waited for, and the result is KTF_TIMED_OUT. KTF_GONE, KTF_UNREACHABLE,
 * KTF_TOO_LONG, KTF_NO_ROOM, KTF_TIMED_OUT, KTF_BROKEN, KTF_NO_DAEMON, KTF_INVALID. */
ktf_result ktf_message_send(const ktf_resource *resource, const ktf_id *to, uint64_t tag,
			    const void *data, size_t length, int64_t timeout);

/* Sends a message in a buffer that is given away. The buffer is the library's from the call on,
 * whatever the result: its release is called exactly once, by the thread that needs the buffer last.
 * If the message is not sent, that is before this returns. Until then nobody may write to the buffer;
 * release should not wait, and must not call this library. A receiver in the same context gets the
 * buffer itself, without a copy, and has it released by ktf_message_drop(). For others it is copied
 * as it is sent, or, over UDP, kept until it has arrived; if it is longer than 64 KiB, it is kept
 * until a receiver takes it, and this call does not wait for that. Otherwise this is as
 * ktf_message_send(). KTF_GONE, KTF_UNREACHABLE, KTF_TOO_LONG, KTF_NO_ROOM, KTF_TIMED_OUT,
 * KTF_BROKEN, KTF_NO_DAEMON, KTF_INVALID. */
ktf_result ktf_message_give(const ktf_resource *resource, const ktf_id *to, uint64_t tag,
			    const ktf_buffer *buffer, int64_t timeout);

/* Receives the first message that fits match. A match of null fits any. Waits for one. One that is
 * longer than 64 KiB and from another context begins to come when a call asks for it, and is there
 * when all of it is: when that call has timed out it goes on coming, and a later call finds it, with
 * KTF_NOW as well. What its sender has sent after it, and fits, does not go before it; what others
 * have sent does. KTF_UNDELIVERED, once for each message that did not arrive, when there is none to
 * receive: then undelivered, if it is not null, says which. KTF_GONE, when there is none to receive
 * of the only sender that fits, and its context is gone: soon after the end of its process; with
 * KTF_NOW a later call may be the first to tell. KTF_TIMED_OUT, KTF_INVALID. */
ktf_result ktf_message_receive(const ktf_resource *resource, const ktf_match *match,
			       int64_t timeout, ktf_message **message,
			       ktf_undelivered *undelivered);

/* Tells what a message says and how long it is. The data are valid until the message is dropped, and
 * not to be changed. Null of a null message; length may be null. */
const void *ktf_message_data(const ktf_message *message, size_t *length);

/* Tells the tag of a message and who sent it. Either output may be null. KTF_INVALID. */
ktf_result ktf_message_envelope(const ktf_message *message, uint64_t *tag, ktf_id *from);

/* Drops a message and what it says. Null is ignored. */
void ktf_message_drop(ktf_message *message);

/* ---- Watches --------------------------------------------------------------------------------- */

/* Watches which resources with these attributes come and go. Those that there are appear first.
 * Waits for the daemon, for about 10 s at most. KTF_NO_DAEMON, KTF_INVALID, KTF_TOO_LONG. */
ktf_result ktf_watch_open(const ktf_context *context, const ktf_attribute *attributes,
			  size_t count, ktf_watch **watch);

/* Tells what happens next to the resources that are watched. Waits for it. KTF_TIMED_OUT,
 * KTF_INVALID. */
ktf_result ktf_watch_next(ktf_watch *watch, int64_t timeout, ktf_event *event);

/* Tells what happens next to the resources that are watched, and what they are. With KTF_APPEARED,
 * records is a list of the one that has appeared, which the caller drops; with any other event it is
 * null. Waits for what happens. KTF_TIMED_OUT, KTF_INVALID. */
ktf_result ktf_watch_next_record(ktf_watch *watch, int64_t timeout, ktf_event *event,
				 ktf_records **records);

/* Wakes a thread that waits for what happens next, by KTF_WOKEN; if none waits, the next one that would.
 * Called by any thread, to end it before the watch is closed. KTF_INVALID. */
ktf_result ktf_watch_wake(ktf_watch *watch);

/* Closes a watch. Null is ignored. Not while another thread waits for what happens next. */
void ktf_watch_close(ktf_watch *watch);

/* ---- Regions --------------------------------------------------------------------------------- */

/* Publishes a region, all records zero, and registers a resource for it. The attribute that says where
 * the region is, named keeptime.region, is added to the given ones. Waits for the daemon,
 * for about 5 s at most until it gives the memory, and 10 s until all know the resource. KTF_NO_DAEMON,
 * KTF_INVALID, KTF_TOO_LONG. */
ktf_result ktf_region_publish(const ktf_context *context, const ktf_attribute *attributes,
			      size_t count, const ktf_layout *layout, ktf_region **region);

/* Tells the identifier of a region's resource. KTF_INVALID. */
ktf_result ktf_region_id(const ktf_region *region, ktf_id *id);

/* Tells whether the node's daemon has a region still. Returns 1 if so, and 0 if not, or if it is null.
 * Without it nobody reads what is written, also when another daemon runs there again: the region is to
 * be dropped and published anew. One system call, which does not wait. */
int ktf_region_is_served(const ktf_region *region);

/* Writes all data of a record of an own region. length is the layout's. No system call.
 * KTF_INVALID. */
ktf_result ktf_region_write(const ktf_region *region, uint32_t record, const void *data,
			    size_t length);

/* Adds to the counter of a record of an own region. was, if it is not null, is what the counter was
 * before. KTF_INVALID. */
ktf_result ktf_region_add(const ktf_region *region, uint32_t record, uint64_t amount,
			  uint64_t *was);

/* Drops a region: nobody can read it any more. Null is ignored. */
void ktf_region_drop(ktf_region *region);

/* Opens the region of the only resource with these attributes. Waits for the daemon, for about 10 s
 * at most until it says where that is, and 5 s until it gives the memory; of another node for
 * 250 ms at each of its addresses that does not answer. Threads that read a region of another node by
 * one reader take turns: each should have its own. A resource without a region is KTF_NOT_FOUND
 * too. KTF_NOT_FOUND, KTF_SEVERAL, KTF_GONE, KTF_UNREACHABLE, KTF_NO_DAEMON, KTF_INVALID,
 * KTF_TOO_LONG. */
ktf_result ktf_reader_open(const ktf_context *context, const ktf_attribute *attributes,
			   size_t count, ktf_reader **reader);

/* Opens the region of a resource in a list, whichever else have the same attributes. Waits for the
 * daemon, for about 5 s at most until it gives the memory; of another node for 250 ms at each of
 * its addresses that does not answer. The list may be dropped before the reader. A resource without
 * a region is KTF_NOT_FOUND. KTF_NOT_FOUND, KTF_GONE, KTF_UNREACHABLE, KTF_INVALID. */
ktf_result ktf_reader_open_record(const ktf_context *context, const ktf_records *records,
				  size_t index, ktf_reader **reader);

/* Tells how many records a region has, of how many bytes. KTF_INVALID. */
ktf_result ktf_reader_layout(const ktf_reader *reader, ktf_layout *layout);

/* Reads the data of a record, all of one version. length is the layout's; reading may be null.
 * Waits at most about a second, and of another node for the threads before it that use the same reader.
 * KTF_GONE, KTF_UNREACHABLE, KTF_UNFINISHED, KTF_INVALID. */
ktf_result ktf_reader_read(const ktf_reader *reader, uint32_t record, void *data, size_t length,
			   ktf_reading *reading);

/* Adds to the counter of a record of a region that was opened, once. was and by may be null. Waits
 * at most about a second, and for the threads before it that use the same reader. KTF_NOT_ALLOWED,
 * KTF_UNCONFIRMED, KTF_GONE, KTF_UNREACHABLE, KTF_INVALID. */
ktf_result ktf_reader_add(const ktf_reader *reader, uint32_t record, uint64_t amount,
			  uint64_t *was, uint32_t *by);

/* Closes a reader. Null is ignored. */
void ktf_reader_close(ktf_reader *reader);

#ifdef __cplusplus
}
#endif

#endif
