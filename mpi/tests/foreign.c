/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Begins and ends by the names of the profiling interface, as Open MPI's Fortran does: an attribute asks all the same.
 * What a tool before the library has MPI keep under its key, the program's own structure, is not looked into. With the
 * recorder. */
#include "check.h"
#include <keeptime_mpi.h>

int main(int argc, char **argv)
{
	keeptime_qos qos = KEEPTIME_QOS_INIT, *got = NULL;
	MPI_Comm other, copy;
	int flag = 0;

	PMPI_Init(&argc, &argv);
	qos.qos_class = KEEPTIME_PREMIUM;
	qos.bandwidth_kbps = 1000;
	CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && flag);
	printf("state %u: %s\n", got->state, got->reason);
	CHECK(got->state == KEEPTIME_GRANTED);

	MPI_Comm_dup(MPI_COMM_WORLD, &other);
	CHECK(PMPI_Comm_set_attr(other, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(MPI_Comm_get_attr(other, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && flag && got == &qos);
	qos.options = KEEPTIME_INHERIT_OWN;
	MPI_Comm_dup(other, &copy);
	CHECK(MPI_Comm_get_attr(copy, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && !flag);
	qos.options = 0;
	CHECK(MPI_Comm_set_attr(other, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	CHECK(MPI_Comm_get_attr(other, KEEPTIME_QOS, &got, &flag) == MPI_SUCCESS && flag && got != &qos);
	CHECK(got->state == KEEPTIME_GRANTED);
	CHECK(PMPI_Comm_set_attr(other, KEEPTIME_QOS, &qos) == MPI_SUCCESS);
	MPI_Comm_free(&other);
	MPI_Comm_free(&copy);
	PMPI_Finalize();
	return 0;
}
