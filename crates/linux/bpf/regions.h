/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Layouts shared by regions.bpf.c and src/regions.rs, which checks sizes and offsets. Memory and
 * packets are drawn in docs/formats/fabric.md. All numbers are little-endian. */
#ifndef KEEPTIME_REGIONS_H
#define KEEPTIME_REGIONS_H

#define REGIONS_MAX 1024
#define SESSIONS_MAX 65536
#define SLOT_BYTES 64
#define SLOT_WORDS 8
#define PACKET_SLOTS_MAX 20

/* The memory of a region is an array of these. */
struct region_slot {
	__u64 words[SLOT_WORDS];
};

/* Words of a region's slot 0. */
#define HEAD_KEY 0
#define HEAD_SHAPE 1	/* number of records; bytes of each above bit 32 */
#define HEAD_STRIDE 2	/* slots of a record; whether readers may add above bit 32 */

/* Words of a record's first slot. */
#define RECORD_SEQUENCE 0	/* odd while it is written */
#define RECORD_COUNTER 1

/* A question or an answer, before its slots. */
struct region_packet {
	__u32 magic;
	__u8 kind;
	__u8 status;	/* 0 in a question */
	__u8 by;	/* 0 in a question */
	__u8 slots;
	__u64 number;
	__u64 key;
	__u32 region;
	__u32 record;
	__u32 offset;
	__u32 zero;
	__u64 session;
	__u64 amount;
	__u64 value;	/* of an answer: the sequence, or what the counter was */
};

#define PACKET_MAGIC 0x0172746b	/* "ktr" 1 */
#define KIND_READ 1
#define KIND_ADD 2
#define KIND_OPEN 3
#define BY_PROGRAM 1

#define STATUS_OK 0
#define STATUS_GONE 1
#define STATUS_OUT_OF_RANGE 2
#define STATUS_BUSY 3
#define STATUS_NO_SESSION 4
#define STATUS_NOT_ALLOWED 5

/* Who adds. */
struct region_session {
	__u64 taken;	/* number of the last question that was carried out, or is just now */
	__u64 done;	/* number of the last whose answer is here */
	__u64 answer;
};

struct region_settings {
	__u32 port;	/* UDP port of questions, in host order */
};

#endif
