/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is written reads back; whatever is read, nothing beyond its end is touched. */
#include "check.h"
#include "json.h"

#include <string.h>

static void reads_an_answer(void)
{
	const char *line = "{\"answers\": [ {\"state\":\"granted\",\"n\":18446744073709551615,\"x\":[1,{\"y\":null}]} ],"
			   "\"reason\":\"\\\"a\\\\b\\u0041\\u20ac\\n\"}\n";
	struct json json = { line, line + strlen(line) };
	char name[16], text[32];
	uint64_t number;
	int members = 0, elements = 0, inner = 0;

	CHECK(json_member(&json, &members, name, sizeof name) && !strcmp(name, "answers"));
	CHECK(json_element(&json, &elements));
	CHECK(json_member(&json, &inner, name, sizeof name) && json_string(&json, text, sizeof text));
	CHECK(!strcmp(text, "granted"));
	CHECK(json_member(&json, &inner, name, sizeof name) && json_number(&json, &number));
	CHECK(number == UINT64_MAX);
	CHECK(json_member(&json, &inner, name, sizeof name) && json_skip(&json));
	CHECK(!json_member(&json, &inner, name, sizeof name) && json_good(&json));
	CHECK(!json_element(&json, &elements) && json_good(&json));
	CHECK(json_member(&json, &members, name, sizeof name) && json_string(&json, text, sizeof text));
	CHECK(!strcmp(text, "\"a\\bA? "));
	CHECK(!json_member(&json, &members, name, sizeof name) && json_good(&json));
}

static void refuses_what_is_broken(void)
{
	const char *broken[] = { "", "{", "{\"a\"", "{\"a\":", "[1", "[1,", "[1 2]", "\"a", "\"\\", "\"\\u12",
				 "{\"a\":1,}", "[,1]", "}", "{1:2}" };
	uint64_t number;

	for (size_t at = 0; at < sizeof broken / sizeof *broken; at++) {
		struct json json = { broken[at], broken[at] + strlen(broken[at]) };

		CHECK(!json_skip(&json));
	}
	for (const char **text = (const char *[]){ "18446744073709551616", "-1", "x", "", NULL }; *text; text++) {
		struct json json = { *text, *text + strlen(*text) };

		CHECK(!json_number(&json, &number));
	}
}

static void does_not_go_down_for_ever(void)
{
	char deep[2000];
	struct json json = { deep, deep + sizeof deep };

	memset(deep, '[', sizeof deep);
	CHECK(!json_skip(&json));
}

/* Every beginning of a line, copied so that a memory checker sees a step beyond it, and every line with
 * one byte changed. */
static void touches_nothing_beyond(void)
{
	const char *line = "{\"mpi\":{\"answers\":[{\"state\":\"granted\",\"reason\":\"\\u0041\"}],\"pace\":[1.5e3,true]}}";
	size_t length = strlen(line);

	for (size_t end = 0; end <= length; end++) {
		char *copy = malloc(end ? end : 1);
		struct json json = { copy, copy + end };

		memcpy(copy, line, end);
		CHECK(json_skip(&json) == (end == length));
		free(copy);
	}
	for (size_t at = 0; at < length; at++)
		for (int byte = 0; byte < 256; byte++) {
			char *copy = malloc(length);
			struct json json = { copy, copy + length };

			memcpy(copy, line, length);
			copy[at] = (char)byte;
			json_skip(&json);
			free(copy);
		}
}

static void writes_what_reads_back(void)
{
	struct text line = {0};
	struct json json;
	char text[600];

	text_add_string(&line, "job \"1\" \\ \t\x01");
	json = (struct json){ line.data, line.data + line.length };
	CHECK(json_string(&json, text, sizeof text) && !strcmp(text, "job \"1\" \\ ??"));
	for (int count = 0; count < 1000; count++)
		text_add(&line, "%d,", count);
	CHECK(!line.failed && line.length > 3000 && line.data[line.length] == 0);
	text_cut(&line, 4000000);
	CHECK(line.length > 3000);
	text_cut(&line, 5);
	CHECK(line.length == 5 && line.data[5] == 0);
	text_add(&line, "x");
	CHECK(line.length == 6 && line.data[5] == 'x' && line.data[6] == 0);
	text_free(&line);
	text_cut(&line, 0);
	CHECK(!line.data);
}

int main(void)
{
	reads_an_answer();
	refuses_what_is_broken();
	does_not_go_down_for_ever();
	touches_nothing_beyond();
	writes_what_reads_back();
	return 0;
}
