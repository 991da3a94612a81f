/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a program sees of the attribute: without the library, without an agent, with one. The argument
 * says which state is expected: 0 the library is absent, 1 no agent answers, 2 an agent grants. Any
 * number of ranks. */
#include "check.h"
#include <keeptime_mpi.h>

#include <math.h>
#include <string.h>

static unsigned expected;
static int rank, size;

static keeptime_qos premium(double kbps)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT;

	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = kbps;
	qos.max_message_size = 1 << 20;
	return qos;
}

static const keeptime_qos *get(MPI_Comm comm)
{
	keeptime_qos *qos = NULL;
	int flag = -1;

	CHECK(MPI_Comm_get_attr(comm, KEEPTIME_QOS, &qos, &flag) == MPI_SUCCESS);
	CHECK(flag == 0 || flag == 1);
	return flag ? qos : NULL;
}

static void set(MPI_Comm comm, keeptime_qos *qos)
{
	const keeptime_qos *got;

	CHECK(MPI_Comm_set_attr(comm, KEEPTIME_QOS, qos) == MPI_SUCCESS);
	got = get(comm);
	CHECK(got && got->bandwidth_kbps == qos->bandwidth_kbps);
	CHECK(got->max_message_size == qos->max_message_size);
	if (got->state != expected)
		fprintf(stderr, "state %u: %s\n", got->state, got->reason);
	CHECK(got->state == expected);
	CHECK((got->state == KEEPTIME_WAITING) == (got->reason[0] != 0));
	CHECK((got->reserved_kbps > qos->bandwidth_kbps) == (got->state == KEEPTIME_GRANTED));
}

static void sets_gets_changes_and_deletes(void)
{
	keeptime_qos qos = premium(100);

	CHECK(!get(MPI_COMM_WORLD));
	set(MPI_COMM_WORLD, &qos);
	qos.bandwidth_kbps = 200;
	CHECK(get(MPI_COMM_WORLD) && (!expected || get(MPI_COMM_WORLD)->bandwidth_kbps == 100));
	set(MPI_COMM_WORLD, &qos);
	CHECK(MPI_Comm_delete_attr(MPI_COMM_WORLD, KEEPTIME_QOS) == MPI_SUCCESS);
	CHECK(!get(MPI_COMM_WORLD));
}

static void is_inherited_as_chosen(void)
{
	static const unsigned options[] = { 0, KEEPTIME_INHERIT_SHARED, KEEPTIME_INHERIT_OWN };

	for (int at = 0; expected && at < 3; at++) {
		keeptime_qos qos = premium(100);
		const keeptime_qos *inherited;
		MPI_Comm copy, subset;

		qos.options = options[at];
		set(MPI_COMM_WORLD, &qos);
		CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &copy) == MPI_SUCCESS);
		inherited = get(copy);
		CHECK((inherited != NULL) == (options[at] != 0));
		CHECK(!inherited || (inherited->state == expected && inherited->bandwidth_kbps == 100));
		/* Only copies inherit. */
		CHECK(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &subset) == MPI_SUCCESS);
		CHECK(!get(subset));
		CHECK(MPI_Comm_delete_attr(MPI_COMM_WORLD, KEEPTIME_QOS) == MPI_SUCCESS);
		CHECK(!inherited || get(copy)->state == expected);
		MPI_Comm_free(&subset);
		MPI_Comm_free(&copy);
	}
}

static void works_on_every_kind_of_communicator(void)
{
	keeptime_qos qos = premium(50);
	MPI_Comm half, inter, ring;
	int extents[1] = { size }, periodic[1] = { 1 };

	set(MPI_COMM_SELF, &qos);
	CHECK(MPI_Cart_create(MPI_COMM_WORLD, 1, extents, periodic, 0, &ring) == MPI_SUCCESS);
	set(ring, &qos);
	MPI_Comm_free(&ring);
	if (size < 2)
		return;
	CHECK(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half) == MPI_SUCCESS);
	CHECK(MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, !(rank % 2), 7, &inter) == MPI_SUCCESS);
	set(inter, &qos);
	MPI_Comm_free(&inter);
	MPI_Comm_free(&half);
}

/* A mistake is told where the attribute is looked at; the program goes on, and what held before holds. */
static void tells_mistakes(void)
{
	struct { keeptime_qos qos; const char *field; } cases[9];
	_Alignas(keeptime_qos) char longer[sizeof(keeptime_qos) + 8] = {0};
	int count = sizeof cases / sizeof *cases;

	if (!expected)
		return;
	for (int at = 0; at < count; at++)
		cases[at].qos = premium(100);
	cases[0].qos.size = 3, cases[0].field = "size: 3";
	cases[1].qos.qos_class = 9, cases[1].field = "qos_class: 9";
	cases[2].qos.bandwidth_kbps = -1, cases[2].field = "bandwidth_kbps: -1";
	cases[3].qos.bandwidth_kbps = NAN, cases[3].field = "bandwidth_kbps: ";
	cases[4].qos.bandwidth_kbps = 0, cases[4].field = "more than 0 for premium";
	cases[5].qos.max_message_size = 1ull << 50, cases[5].field = "max_message_size: ";
	cases[6].qos.options = 1 << 20, cases[6].field = "options: 0x100000";
	cases[7].qos.within_seconds = -1, cases[7].field = "within_seconds: -1";
	cases[8].qos.within_seconds = 1e-9, cases[8].field = "expected 0, or 1e-06";
	for (int at = 0; at < count; at++) {
		CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &cases[at].qos) == MPI_SUCCESS);
		CHECK(get(MPI_COMM_WORLD)->state == KEEPTIME_REFUSED);
		if (!strstr(get(MPI_COMM_WORLD)->reason, cases[at].field))
			fprintf(stderr, "%s\n", get(MPI_COMM_WORLD)->reason);
		CHECK(strstr(get(MPI_COMM_WORLD)->reason, cases[at].field));
	}
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, NULL) == MPI_SUCCESS);
	CHECK(strstr(get(MPI_COMM_WORLD)->reason, "null pointer"));
	/* A later header with a field that asks for nothing is good, one that asks for something is not. */
	cases[0].qos = premium(100);
	memcpy(longer, &cases[0].qos, sizeof cases[0].qos);
	((keeptime_qos *)longer)->size = sizeof longer;
	set(MPI_COMM_WORLD, (keeptime_qos *)longer);
	longer[sizeof longer - 1] = 1;
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, longer) == MPI_SUCCESS);
	CHECK(strstr(get(MPI_COMM_WORLD)->reason, "does not know"));
	CHECK(MPI_Comm_delete_attr(MPI_COMM_WORLD, KEEPTIME_QOS) == MPI_SUCCESS);
}

/* The attributes of others and the program's own messages are as ever. */
static void leaves_the_rest_alone(void)
{
	int key, flag = 0, sum = 0, one = 1;
	void *value = NULL;

	CHECK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &key, NULL) == MPI_SUCCESS);
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, key, &sum) == MPI_SUCCESS);
	CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, key, &value, &flag) == MPI_SUCCESS);
	CHECK(flag && value == &sum);
	CHECK(MPI_Comm_delete_attr(MPI_COMM_WORLD, key) == MPI_SUCCESS);
	CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
	CHECK(sum == size);
}

/* Of each connection the other side says the same. */
static void tells_endpoints(void)
{
	keeptime_endpoint list[64];
	int count = -1;

	CHECK(keeptime_mpi_endpoints(MPI_COMM_WORLD, list, 64, &count) == MPI_SUCCESS);
	CHECK(count >= 0);
	for (int at = 0; at < count && at < 64; at++) {
		CHECK(list[at].rank != rank && list[at].rank < size);
		CHECK(list[at].local_port && list[at].remote_port);
		printf("endpoint %d %s:%u %d %s:%u\n", rank, list[at].local_host, list[at].local_port,
		       list[at].rank, list[at].remote_host, list[at].remote_port);
	}
}

int main(int argc, char **argv)
{
	expected = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	sets_gets_changes_and_deletes();
	is_inherited_as_chosen();
	works_on_every_kind_of_communicator();
	tells_mistakes();
	leaves_the_rest_alone();
	tells_endpoints();
	keeptime_progress(1);
	/* What is still set goes with the end. */
	set(MPI_COMM_WORLD, &(keeptime_qos){ .size = sizeof(keeptime_qos), .qos_class = KEEPTIME_PREMIUM,
					     .bandwidth_kbps = 10, .max_message_size = 1 << 20 });
	MPI_Finalize();
	return 0;
}
