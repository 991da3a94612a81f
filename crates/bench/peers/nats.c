/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* NATS: a subject for each direction, over a server. */
#include "peer.h"

#include <nats/nats.h>
#include <string.h>

static natsConnection *connection;
static natsSubscription *subscription;
static const char *to;

static void check(const char *what, natsStatus status)
{
	if (status != NATS_OK)
		peer_fail(what, natsStatus_GetText(status));
}

static void join(const char *where, const char *from, const char *other, int at_once)
{
	natsOptions *options;

	check("natsOptions_Create", natsOptions_Create(&options));
	check("natsOptions_SetURL", natsOptions_SetURL(options, where));
	/* What is sent one by one does not wait for more. */
	check("natsOptions_SetSendAsap", natsOptions_SetSendAsap(options, at_once));
	check(where, natsConnection_Connect(&connection, options));
	check(from, natsConnection_SubscribeSync(&subscription, connection, from));
	/* What waits to be received is bounded, or dropped: here nothing may be. */
	check(from, natsSubscription_SetPendingLimits(subscription, -1, -1));
	check("natsConnection_Flush", natsConnection_Flush(connection));
	to = other;
}

void peer_answer(const char *where)
{
	join(where, "questions", "answers", 1);
}

void peer_ask(const char *where, int in_a_stream)
{
	join(where, "answers", "questions", !in_a_stream);
}

void peer_send(const void *data, size_t bytes)
{
	check("natsConnection_Publish", natsConnection_Publish(connection, to, data, bytes));
}

size_t peer_receive(void *data, size_t room)
{
	natsMsg *message;
	size_t bytes;

	check("natsSubscription_NextMsg", natsSubscription_NextMsg(&message, subscription, 120000));
	bytes = natsMsg_GetDataLength(message);
	if (bytes > room)
		peer_fail("a message", "it is too long");
	memcpy(data, natsMsg_GetData(message), bytes);
	natsMsg_Destroy(message);
	return bytes;
}
