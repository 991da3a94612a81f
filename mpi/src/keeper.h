/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The one thread beside the program. It talks to the node's agent: tells all that this rank asks for
 * whenever that changes, again when the agent has been away, and how far the program is. It has the
 * connections paced as the agent says. It never calls MPI. */
#ifndef KEEPTIME_KEEPER_H
#define KEEPTIME_KEEPER_H

#include "identity.h"
#include "keeptime_mpi.h"
#include "members.h"

/* What is asked for one communicator, and for those that share it. */
struct ask;

/* Starts it if an agent may be there: KEEPTIME_AGENT names its socket, or the usual one exists. After MPI was
 * initialised; where it runs already, or has ended, nothing happens. A child that the process forks has none of it. */
void keeper_start(int rank, int size);
/* Ends it: the agent gives back all that was asked for. */
void keeper_stop(void);
/* Whether asking makes sense. */
bool keeper_is_running(void);

/* A new ask, held once; takes `members`. Its communicator may have no `identity`. Nothing if memory is lacking; then
 * `members` stays. */
struct ask *ask_new(struct members *members, struct identity *identity, const keeptime_qos *terms);
/* The same, for the members and by the terms of what is in `place`, if anything is. */
struct ask *ask_again(struct ask *const *place, struct identity *identity);
/* Asks for something else instead. */
void ask_change(struct ask *ask, const keeptime_qos *terms);
/* What is in `place`, if anything is: one more holds it. */
struct ask *ask_hold(struct ask *const *place);
/* What is in `place`, and then no longer. Nothing if others hold it too, but where it may be `shared`. */
struct ask *ask_take(struct ask **place, bool shared);
/* One holds it no longer: the last one gives it back. */
void ask_drop(struct ask *ask);
/* What is in `place`, if anything is, for who is about to wait for its answer: that is no communicator that shares it, so
 * that it may be taken and changed meanwhile. */
struct ask *ask_watch(struct ask *const *place);
/* Waits until what is watched was answered, at most KEEPTIME_WAIT_SECONDS, and holds it no longer. */
void ask_wait(struct ask *ask);
/* What became of it, to the fields of `terms` that tell that. */
void ask_tell(const struct ask *ask, keeptime_qos *terms);

#endif
