/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Just enough JSON: lines are written into a buffer that grows, answers are read member by member.
 * Whatever an answer says, nothing is read beyond its end and nothing recurses deeper than a bound. */
#ifndef KEEPTIME_JSON_H
#define KEEPTIME_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The agent reads no longer line, and tells no longer one that would be understood. */
#define LINE_BYTES_MAX (1u << 20)

/* A line that is being written. Once memory was lacking, `failed` stays set. */
struct text {
	char *data;
	size_t length;
	size_t capacity;
	bool failed;
};

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A string with its quotes and escapes. */
void text_add_string(struct text *text, const char *string);
/* Takes away what was added after it had this length. */
void text_cut(struct text *text, size_t length);
void text_free(struct text *text);

/* What is left to be read. */
struct json {
	const char *at;
	const char *end;
};

/* Each of these reads one value and stands behind it, or returns false. */
bool json_skip(struct json *json);
bool json_number(struct json *json, uint64_t *number);
/* Into `string` of `size` bytes, cut off if it is longer; always ended by 0. */
bool json_string(struct json *json, char *string, size_t size);

/* Whether there is another member of the object or element of the array; steps into it. `count` starts
 * at 0 and counts them. Ends with false behind the closing bracket, with `json->at` 0 if it is broken. */
bool json_member(struct json *json, int *count, char *name, size_t size);
bool json_element(struct json *json, int *count);
/* Whether nothing was broken so far. */
bool json_good(const struct json *json);

#endif
