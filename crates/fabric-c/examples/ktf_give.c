/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One thread fills buffers and gives them away, another one reads them where they are: nothing is copied.
 * A buffer that was read goes back to where it came from, and is filled again.
 *
 *     keeptime-fabricd --node here &
 *     cc ktf_give.c -o ktf_give -pthread $(pkg-config --cflags --libs keeptime_fabric)
 *     ./ktf_give
 */
#include <keeptime_fabric.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 100
#define BUFFERS 4
#define NUMBERS (1 << 18)
#define NUMBERS_TAG 1
#define PATIENCE INT64_C(10000000000)

/* The buffers that nobody uses. */
struct pool {
	pthread_mutex_t lock;
	pthread_cond_t more;
	uint32_t *free[BUFFERS];
	int count;
};

struct reader {
	ktf_resource *own;
	uint64_t sum;
};

static void done(ktf_result result, const char *what)
{
	char text[200];

	if (result == KTF_OK)
		return;
	ktf_error_text(text, sizeof(text));
	fprintf(stderr, "%s: %s\n", what, text);
	exit(1);
}

static uint32_t *take(struct pool *pool)
{
	uint32_t *numbers;

	pthread_mutex_lock(&pool->lock);
	while (pool->count == 0)
		pthread_cond_wait(&pool->more, &pool->lock);
	numbers = pool->free[--pool->count];
	pthread_mutex_unlock(&pool->lock);
	return numbers;
}

/* What the library calls, in whichever thread needs the buffer last. */
static void put_back(void *numbers, void *closure)
{
	struct pool *pool = closure;

	pthread_mutex_lock(&pool->lock);
	pool->free[pool->count++] = numbers;
	pthread_cond_signal(&pool->more);
	pthread_mutex_unlock(&pool->lock);
}

static void *read_all(void *closure)
{
	struct reader *reader = closure;

	for (int round = 0; round < ROUNDS; round++) {
		const uint32_t *numbers;
		ktf_message *message;
		size_t length;

		done(ktf_message_receive(reader->own, NULL, PATIENCE, &message, NULL), "receive");
		numbers = ktf_message_data(message, &length);
		for (size_t n = 0; n < length / sizeof(*numbers); n++)
			reader->sum += numbers[n];
		/* Has the buffer put back. */
		ktf_message_drop(message);
	}
	return NULL;
}

static void give_all(ktf_resource *own, const ktf_id *to, struct pool *pool)
{
	ktf_buffer buffer = { .field_mask = KTF_BUFFER_DATA | KTF_BUFFER_RELEASE };

	buffer.length = NUMBERS * sizeof(uint32_t);
	buffer.release = put_back;
	buffer.closure = pool;
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t *numbers = take(pool);

		for (uint32_t n = 0; n < NUMBERS; n++)
			numbers[n] = (uint32_t)round;
		buffer.data = numbers;
		/* From here on it is not ours, whatever this says. */
		done(ktf_message_give(own, to, NUMBERS_TAG, &buffer, PATIENCE), "give");
	}
}

int main(void)
{
	static struct pool pool = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, { NULL }, 0 };
	struct reader reader = { NULL, 0 };
	ktf_context *context;
	ktf_resource *own;
	pthread_t thread;
	ktf_id to;

	for (int n = 0; n < BUFFERS; n++) {
		uint32_t *numbers = malloc(NUMBERS * sizeof(*numbers));

		if (!numbers)
			return 1;
		put_back(numbers, &pool);
	}
	done(ktf_context_open(NULL, &context), "open");
	done(ktf_resource_register(context, NULL, 0, &own), "register");
	done(ktf_resource_register(context, NULL, 0, &reader.own), "register");
	done(ktf_resource_id(reader.own, &to), "id");
	if (pthread_create(&thread, NULL, read_all, &reader) != 0)
		return 1;
	give_all(own, &to, &pool);
	pthread_join(thread, NULL);
	printf("%d buffers of %d numbers, whose sum is %llu\n", ROUNDS, NUMBERS,
	       (unsigned long long)reader.sum);
	ktf_resource_drop(own);
	ktf_resource_drop(reader.own);
	ktf_context_close(context);
	/* All that was given is back. */
	for (int n = 0; n < BUFFERS; n++)
		free(take(&pool));
	return 0;
}
