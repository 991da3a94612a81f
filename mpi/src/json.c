/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 16

/* --- writing ------------------------------------------------------------------------------------- */

static bool reserve(struct text *text, size_t more)
{
	size_t needed = text->length + more + 1;
	size_t capacity = text->capacity ? text->capacity : 256;
	char *data;

	if (text->failed)
		return false;
	if (needed <= text->capacity)
		return true;
	while (capacity < needed)
		capacity *= 2;
	data = realloc(text->data, capacity);
	if (!data) {
		text->failed = true;
		return false;
	}
	text->data = data;
	text->capacity = capacity;
	return true;
}

void text_add(struct text *text, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (length < 0 || !reserve(text, (size_t)length))
		return;
	va_start(arguments, format);
	vsnprintf(text->data + text->length, (size_t)length + 1, format, arguments);
	va_end(arguments);
	text->length += (size_t)length;
}

static void add_bytes(struct text *text, const char *bytes, size_t count)
{
	if (!reserve(text, count))
		return;
	memcpy(text->data + text->length, bytes, count);
	text->length += count;
	text->data[text->length] = 0;
}

static bool is_plain(unsigned char c)
{
	return c >= 0x20 && c != '"' && c != '\\';
}

void text_add_string(struct text *text, const char *string)
{
	text_add(text, "\"");
	while (*string) {
		size_t plain = 0;

		while (is_plain((unsigned char)string[plain]))
			plain++;
		add_bytes(text, string, plain);
		string += plain;
		if (*string) {
			unsigned char c = (unsigned char)*string++;

			text_add(text, c < 0x20 ? "\\u%04x" : "\\%c", c);
		}
	}
	text_add(text, "\"");
}

void text_cut(struct text *text, size_t length)
{
	if (length >= text->length)
		return;
	text->length = length;
	text->data[length] = 0;
}

void text_free(struct text *text)
{
	free(text->data);
	memset(text, 0, sizeof *text);
}

/* --- reading ------------------------------------------------------------------------------------- */

static bool broken(struct json *json)
{
	json->at = NULL;
	return false;
}

bool json_good(const struct json *json)
{
	return json->at != NULL;
}

/* The next character that is not a blank; 0 at the end. */
static char peek(struct json *json)
{
	if (!json->at)
		return 0;
	while (json->at < json->end && strchr(" \t\r\n", *json->at))
		json->at++;
	return json->at < json->end ? *json->at : 0;
}

static bool eat(struct json *json, char expected)
{
	if (peek(json) != expected || !expected)
		return broken(json);
	json->at++;
	return true;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* The character of an escape; what is beyond ASCII becomes a question mark. */
static int escaped(struct json *json)
{
	char c = *json->at++;
	int code = 0;

	switch (c) {
	case 'n': case 'r': case 't': case 'b': case 'f':
		return ' ';
	case 'u':
		if (json->end - json->at < 4)
			return -1;
		for (int digit = 0; digit < 4; digit++) {
			int value = hex_digit(*json->at++);

			if (value < 0)
				return -1;
			code = code * 16 + value;
		}
		return code >= 0x20 && code < 0x7f ? code : '?';
	default:
		return c;
	}
}

bool json_string(struct json *json, char *string, size_t size)
{
	size_t length = 0;

	if (!eat(json, '"'))
		return false;
	while (json->at < json->end && *json->at != '"') {
		int c = (unsigned char)*json->at++;

		if (c == '\\') {
			if (json->at == json->end)
				return broken(json);
			c = escaped(json);
			if (c < 0)
				return broken(json);
		}
		if (length + 1 < size)
			string[length++] = (char)c;
	}
	if (size > 0)
		string[length] = 0;
	return eat(json, '"');
}

bool json_number(struct json *json, uint64_t *number)
{
	char digit = peek(json);

	*number = 0;
	if (digit < '0' || digit > '9')
		return broken(json);
	for (; json->at < json->end && *json->at >= '0' && *json->at <= '9'; json->at++) {
		unsigned value = (unsigned)(*json->at - '0');

		if (*number > (UINT64_MAX - value) / 10)
			return broken(json);
		*number = *number * 10 + value;
	}
	return true;
}

static bool next(struct json *json, int *count, char open, char close)
{
	if (*count == 0 && !eat(json, open))
		return false;
	if (peek(json) == close) {
		json->at++;
		return false;
	}
	if (*count > 0 && !eat(json, ','))
		return false;
	*count += 1;
	return json_good(json);
}

bool json_member(struct json *json, int *count, char *name, size_t size)
{
	return next(json, count, '{', '}') && json_string(json, name, size) && eat(json, ':');
}

bool json_element(struct json *json, int *count)
{
	return next(json, count, '[', ']');
}

static bool skip(struct json *json, int depth)
{
	char name[1];
	int count = 0;

	if (depth == DEPTH_MAX)
		return broken(json);
	switch (peek(json)) {
	case '{':
		while (json_member(json, &count, name, sizeof name))
			if (!skip(json, depth + 1))
				return false;
		return json_good(json);
	case '[':
		while (json_element(json, &count))
			if (!skip(json, depth + 1))
				return false;
		return json_good(json);
	case '"':
		return json_string(json, name, sizeof name);
	case 0: case '}': case ']': case ',': case ':':
		return broken(json);
	default:
		/* A number, true, false or null. */
		while (json->at < json->end && !strchr(" \t\r\n,}]", *json->at))
			json->at++;
		return true;
	}
}

bool json_skip(struct json *json)
{
	return skip(json, 0);
}
