/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef KEEPTIME_ATTRIBUTE_H
#define KEEPTIME_ATTRIBUTE_H

#include <mpi.h>

/* As MPI_Comm_dup, for the library's own use: the copy has no attribute of ours. */
int duplicate_without_attribute(MPI_Comm comm, MPI_Comm *copy);

#endif
