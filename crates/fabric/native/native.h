/*
 * What a transport of the fabric asks of a library that brings networks of its own: one end of one
 * connection, datagrams of bounded length that arrive whole, once and in order, out of slots of memory
 * that are the caller's.
 *
 * Nothing here blocks, and nothing is thread-safe: callers take turns. Numbers below zero are errors
 * of the library; `text` says what they mean.
 */
#ifndef KEEPTIME_FABRIC_NATIVE_H
#define KEEPTIME_FABRIC_NATIVE_H

#include <stddef.h>
#include <stdint.h>

typedef struct native_end native_end;

/* Slots that follow one another: first those to receive with, then as many to send from. */
typedef struct {
    void *memory;
    size_t slot_size;
    uint32_t of_each;
} native_slots;

/* A slot is the caller's again. */
typedef struct {
    uint32_t slot;
    /* Of what has arrived; 0 for a slot that was sent. */
    uint64_t length;
} native_done;

typedef struct {
    /* A new end on the network of `address`, an IP address, where the library chooses by that. On failure
     * nothing, with the reason in `why`; otherwise that is why not the network that the library thinks best, or
     * empty as it was. `slots` stay where they are until `close`. */
    native_end *(*open)(const char *address, const native_slots *slots, char *why, size_t why_size);
    /* Writes how the other end calls this one. Returns its length; `most` is what there is room for. */
    long (*address)(native_end *end, void *bytes, size_t most);
    /* From what the other end's `address` wrote. Only after 0 may be sent; 1: the other end is on another network. */
    int (*connect)(native_end *end, const void *bytes, size_t length);
    /* Slots are filled in the order in which they were given. 0: taken; 1: not now, there has to be progress. */
    int (*receive)(native_end *end, uint32_t slot);
    /* Sends the first `length` bytes of a slot. 0: taken; 1: not now, there has to be progress. */
    int (*send)(native_end *end, uint32_t slot, size_t length);
    /* Has the library work; tells up to `most` slots that are the caller's again, and how many. */
    int (*progress)(native_end *end, native_done *done, int most);
    /* What becomes readable when there is something to do after `sleep` has said 1; -1 if the library
     * has no such thing. It is the library's. */
    int (*descriptor)(native_end *end);
    /* 1: the descriptor will tell; 0: there is something to do now. */
    int (*sleep)(native_end *end);
    void (*close)(native_end *end);
    const char *(*text)(int error);
} native_library;

extern const native_library keeptime_native_libfabric;
extern const native_library keeptime_native_ucx;

static inline void *native_slot(const native_slots *slots, uint32_t slot)
{
    return (char *)slots->memory + slot * slots->slot_size;
}

#endif
