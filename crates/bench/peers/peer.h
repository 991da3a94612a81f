/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is measured of a library: one program asks, the other answers, both over one connection. The program that is
 * linked with peer.c has these functions; they end it when something fails. */
#ifndef PEER_H
#define PEER_H

#include <stddef.h>

/* Makes the connection of the one who answers; whoever asks may come later. */
void peer_answer(const char *where);

/* Makes that of the one who asks, whose messages come one by one, or in a stream. */
void peer_ask(const char *where, int in_a_stream);

void peer_send(const void *data, size_t bytes);

/* The next message, of `room` bytes at most; returns how many it has. */
size_t peer_receive(void *data, size_t room);

/* For all that cannot be. */
_Noreturn void peer_fail(const char *what, const char *why);

#endif
