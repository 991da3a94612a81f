/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ZeroMQ: a pair of sockets. */
#include "peer.h"

#include <zmq.h>

static void *sock;

static void *make(void)
{
	sock = zmq_socket(zmq_ctx_new(), ZMQ_PAIR);
	if (!sock)
		peer_fail("zmq_socket", zmq_strerror(zmq_errno()));
	return sock;
}

void peer_answer(const char *where)
{
	if (zmq_bind(make(), where) != 0)
		peer_fail(where, zmq_strerror(zmq_errno()));
}

void peer_ask(const char *where, int in_a_stream)
{
	(void)in_a_stream;
	if (zmq_connect(make(), where) != 0)
		peer_fail(where, zmq_strerror(zmq_errno()));
}

void peer_send(const void *data, size_t bytes)
{
	if (zmq_send(sock, data, bytes, 0) < 0)
		peer_fail("zmq_send", zmq_strerror(zmq_errno()));
}

size_t peer_receive(void *data, size_t room)
{
	int bytes = zmq_recv(sock, data, room, 0);

	if (bytes < 0)
		peer_fail("zmq_recv", zmq_strerror(zmq_errno()));
	return bytes;
}
