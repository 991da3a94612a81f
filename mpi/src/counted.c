/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every collective operation of MPI 3.1, counted and passed on. What an operation is counted as is its
 * function and, where it has one, how many elements it moves: a loop's operations are told apart by
 * these. */
#include "progress.h"

#include <mpi.h>

#define KIND(count) ((uint32_t)__LINE__ << 20 ^ (uint32_t)(count))
#define COUNTED(name, count, parameters, arguments) \
	int MPI_##name parameters                   \
	{                                           \
		progress_count(KIND(count));        \
		return PMPI_##name arguments;       \
	}

#define SEND const void *send, int send_count, MPI_Datatype send_type
#define SEND_V const void *send, const int *send_counts, const int *send_at, MPI_Datatype send_type
#define SEND_W const void *send, const int *send_counts, const int *send_at, const MPI_Datatype *send_types
#define SEND_NW const void *send, const int *send_counts, const MPI_Aint *send_at, const MPI_Datatype *send_types
#define RECV void *recv, int recv_count, MPI_Datatype recv_type
#define RECV_V void *recv, const int *recv_counts, const int *recv_at, MPI_Datatype recv_type
#define RECV_W void *recv, const int *recv_counts, const int *recv_at, const MPI_Datatype *recv_types
#define RECV_NW void *recv, const int *recv_counts, const MPI_Aint *recv_at, const MPI_Datatype *recv_types
#define SEND_ send, send_count, send_type
#define SEND_V_ send, send_counts, send_at, send_type
#define SEND_W_ send, send_counts, send_at, send_types
#define RECV_ recv, recv_count, recv_type
#define RECV_V_ recv, recv_counts, recv_at, recv_type
#define RECV_W_ recv, recv_counts, recv_at, recv_types
#define COMM MPI_Comm comm
#define REQUEST MPI_Comm comm, MPI_Request *request

/* clang-format off */
COUNTED(Barrier, 0, (COMM), (comm))
COUNTED(Ibarrier, 0, (REQUEST), (comm, request))
COUNTED(Bcast, count, (void *buffer, int count, MPI_Datatype type, int root, COMM), (buffer, count, type, root, comm))
COUNTED(Ibcast, count, (void *buffer, int count, MPI_Datatype type, int root, REQUEST), (buffer, count, type, root, comm, request))
COUNTED(Gather, send_count, (SEND, RECV, int root, COMM), (SEND_, RECV_, root, comm))
COUNTED(Igather, send_count, (SEND, RECV, int root, REQUEST), (SEND_, RECV_, root, comm, request))
COUNTED(Gatherv, 0, (SEND, RECV_V, int root, COMM), (SEND_, RECV_V_, root, comm))
COUNTED(Igatherv, 0, (SEND, RECV_V, int root, REQUEST), (SEND_, RECV_V_, root, comm, request))
COUNTED(Scatter, recv_count, (SEND, RECV, int root, COMM), (SEND_, RECV_, root, comm))
COUNTED(Iscatter, recv_count, (SEND, RECV, int root, REQUEST), (SEND_, RECV_, root, comm, request))
COUNTED(Scatterv, 0, (SEND_V, RECV, int root, COMM), (SEND_V_, RECV_, root, comm))
COUNTED(Iscatterv, 0, (SEND_V, RECV, int root, REQUEST), (SEND_V_, RECV_, root, comm, request))
COUNTED(Allgather, recv_count, (SEND, RECV, COMM), (SEND_, RECV_, comm))
COUNTED(Iallgather, recv_count, (SEND, RECV, REQUEST), (SEND_, RECV_, comm, request))
COUNTED(Allgatherv, 0, (SEND, RECV_V, COMM), (SEND_, RECV_V_, comm))
COUNTED(Iallgatherv, 0, (SEND, RECV_V, REQUEST), (SEND_, RECV_V_, comm, request))
COUNTED(Alltoall, recv_count, (SEND, RECV, COMM), (SEND_, RECV_, comm))
COUNTED(Ialltoall, recv_count, (SEND, RECV, REQUEST), (SEND_, RECV_, comm, request))
COUNTED(Alltoallv, 0, (SEND_V, RECV_V, COMM), (SEND_V_, RECV_V_, comm))
COUNTED(Ialltoallv, 0, (SEND_V, RECV_V, REQUEST), (SEND_V_, RECV_V_, comm, request))
COUNTED(Alltoallw, 0, (SEND_W, RECV_W, COMM), (SEND_W_, RECV_W_, comm))
COUNTED(Ialltoallw, 0, (SEND_W, RECV_W, REQUEST), (SEND_W_, RECV_W_, comm, request))
COUNTED(Reduce, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, int root, COMM), (send, recv, count, type, op, root, comm))
COUNTED(Ireduce, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, int root, REQUEST), (send, recv, count, type, op, root, comm, request))
COUNTED(Allreduce, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, COMM), (send, recv, count, type, op, comm))
COUNTED(Iallreduce, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, REQUEST), (send, recv, count, type, op, comm, request))
COUNTED(Reduce_scatter, 0, (const void *send, void *recv, const int *counts, MPI_Datatype type, MPI_Op op, COMM), (send, recv, counts, type, op, comm))
COUNTED(Ireduce_scatter, 0, (const void *send, void *recv, const int *counts, MPI_Datatype type, MPI_Op op, REQUEST), (send, recv, counts, type, op, comm, request))
COUNTED(Reduce_scatter_block, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, COMM), (send, recv, count, type, op, comm))
COUNTED(Ireduce_scatter_block, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, REQUEST), (send, recv, count, type, op, comm, request))
COUNTED(Scan, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, COMM), (send, recv, count, type, op, comm))
COUNTED(Iscan, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, REQUEST), (send, recv, count, type, op, comm, request))
COUNTED(Exscan, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, COMM), (send, recv, count, type, op, comm))
COUNTED(Iexscan, count, (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, REQUEST), (send, recv, count, type, op, comm, request))
COUNTED(Neighbor_allgather, recv_count, (SEND, RECV, COMM), (SEND_, RECV_, comm))
COUNTED(Ineighbor_allgather, recv_count, (SEND, RECV, REQUEST), (SEND_, RECV_, comm, request))
COUNTED(Neighbor_allgatherv, 0, (SEND, RECV_V, COMM), (SEND_, RECV_V_, comm))
COUNTED(Ineighbor_allgatherv, 0, (SEND, RECV_V, REQUEST), (SEND_, RECV_V_, comm, request))
COUNTED(Neighbor_alltoall, recv_count, (SEND, RECV, COMM), (SEND_, RECV_, comm))
COUNTED(Ineighbor_alltoall, recv_count, (SEND, RECV, REQUEST), (SEND_, RECV_, comm, request))
COUNTED(Neighbor_alltoallv, 0, (SEND_V, RECV_V, COMM), (SEND_V_, RECV_V_, comm))
COUNTED(Ineighbor_alltoallv, 0, (SEND_V, RECV_V, REQUEST), (SEND_V_, RECV_V_, comm, request))
COUNTED(Neighbor_alltoallw, 0, (SEND_NW, RECV_NW, COMM), (SEND_W_, RECV_W_, comm))
COUNTED(Ineighbor_alltoallw, 0, (SEND_NW, RECV_NW, REQUEST), (SEND_W_, RECV_W_, comm, request))
