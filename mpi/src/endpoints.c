/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which connection of this process leads to which rank: all ranks tell each other the two ends of each
 * of their connections; the mirror image of one's own is the peer's. */
#include "attribute.h"
#include "keeptime_mpi.h"
#include "pacing.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The ends of a connection as they are sent around: in network order, all that tells them apart. */
struct ends {
	uint32_t local_address, remote_address;
	uint16_t local_port, remote_port;
};

static int compare(const void *one, const void *other)
{
	return memcmp(one, other, sizeof(struct ends));
}

/* Own connections, sorted, to be found by their ends. */
static int own_ends(struct ends **ends)
{
	struct connection *all;
	int count = pacing_connections(&all);

	*ends = calloc((size_t)count + 1, sizeof **ends);
	for (int at = 0; *ends && at < count; at++) {
		(*ends)[at].local_address = all[at].local.sin_addr.s_addr;
		(*ends)[at].local_port = all[at].local.sin_port;
		(*ends)[at].remote_address = all[at].remote.sin_addr.s_addr;
		(*ends)[at].remote_port = all[at].remote.sin_port;
	}
	free(all);
	if (!*ends)
		return 0;
	qsort(*ends, (size_t)count, sizeof **ends, compare);
	return count;
}

/* Some libraries connect with the first message. */
static int greet(MPI_Comm comm, int peers)
{
	MPI_Request *requests = malloc((size_t)peers * 2 * sizeof *requests);
	int code = requests ? MPI_SUCCESS : MPI_ERR_NO_MEM;

	for (int peer = 0; code == MPI_SUCCESS && peer < peers; peer++) {
		code = PMPI_Irecv(NULL, 0, MPI_BYTE, peer, 0, comm, &requests[2 * peer]);
		if (code == MPI_SUCCESS)
			code = PMPI_Isend(NULL, 0, MPI_BYTE, peer, 0, comm, &requests[2 * peer + 1]);
	}
	if (code == MPI_SUCCESS)
		code = PMPI_Waitall(2 * peers, requests, MPI_STATUSES_IGNORE);
	free(requests);
	return code;
}

/* The ends of all peers, `counts[peer]` of them from `starts[peer]` on. */
static int gather(MPI_Comm comm, int peers, const struct ends *own, int own_count, int **counts,
		  int **starts, struct ends **all)
{
	int size = 1, most, bytes, sum = 0, code;

	/* What all tell is counted by an int. The rest is left out: that takes thousands of ranks with as many
	 * connections each. */
	PMPI_Comm_size(comm, &size);
	most = INT_MAX / (int)sizeof *own / size;
	bytes = (own_count < most ? own_count : most) * (int)sizeof *own;
	*counts = calloc((size_t)peers, sizeof **counts);
	*starts = calloc((size_t)peers, sizeof **starts);
	if (!*counts || !*starts)
		return MPI_ERR_NO_MEM;
	code = PMPI_Allgather(&bytes, 1, MPI_INT, *counts, 1, MPI_INT, comm);
	if (code != MPI_SUCCESS)
		return code;
	for (int peer = 0; peer < peers; peer++) {
		(*starts)[peer] = sum;
		sum += (*counts)[peer];
	}
	*all = malloc((size_t)sum + 1);
	if (!*all)
		return MPI_ERR_NO_MEM;
	return PMPI_Allgatherv(own, bytes, MPI_BYTE, *all, *counts, *starts, MPI_BYTE, comm);
}

static void describe(const struct ends *ends, int rank, keeptime_endpoint *endpoint)
{
	struct in_addr local = { ends->local_address }, remote = { ends->remote_address };

	memset(endpoint, 0, sizeof *endpoint);
	endpoint->rank = rank;
	inet_ntop(AF_INET, &local, endpoint->local_host, sizeof endpoint->local_host);
	inet_ntop(AF_INET, &remote, endpoint->remote_host, sizeof endpoint->remote_host);
	endpoint->local_port = ntohs(ends->local_port);
	endpoint->remote_port = ntohs(ends->remote_port);
}

int keeptime_mpi_endpoints_of(MPI_Comm comm, keeptime_endpoint *list, int capacity, int *count)
{
	int inter = 0, peers = 0, own_rank = -1, *counts = NULL, *starts = NULL, own_count, code;
	struct ends *own = NULL, *all = NULL;
	MPI_Comm quiet;

	*count = 0;
	/* Messages of our own must not meet a receive of the program. */
	code = duplicate_without_attribute(comm, &quiet);
	if (code != MPI_SUCCESS)
		return code;
	PMPI_Comm_test_inter(quiet, &inter);
	if (inter) {
		PMPI_Comm_remote_size(quiet, &peers);
	} else {
		PMPI_Comm_size(quiet, &peers);
		PMPI_Comm_rank(quiet, &own_rank);
	}
	code = greet(quiet, peers);
	own_count = own_ends(&own);
	if (code == MPI_SUCCESS)
		code = gather(quiet, peers, own, own_count, &counts, &starts, &all);
	for (int peer = 0; code == MPI_SUCCESS && peer < peers; peer++) {
		const struct ends *theirs = (const struct ends *)((const char *)all + starts[peer]);
		int their_count = counts[peer] / (int)sizeof *theirs;

		for (int at = 0; peer != own_rank && at < their_count; at++) {
			struct ends mirror = { theirs[at].remote_address, theirs[at].local_address,
					       theirs[at].remote_port, theirs[at].local_port };
			const struct ends *found = bsearch(&mirror, own, (size_t)own_count,
							   sizeof mirror, compare);

			if (!found)
				continue;
			if (*count < capacity)
				describe(found, peer, &list[*count]);
			*count += 1;
		}
	}
	free(own);
	free(all);
	free(counts);
	free(starts);
	PMPI_Comm_free(&quiet);
	return code;
}
