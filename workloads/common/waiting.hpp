// The one place where a rank waits for messages.
#pragma once

#include <mpi.h>

#include <vector>

namespace workload {

enum class Waiting {
    polite,  ///< looks, sleeps a little, looks again: leaves the core to others
    poll,    ///< MPI_Waitall: MPI libraries look without pause and burn the core
};

/// Returns when all `requests` are complete.
void wait_all(std::vector<MPI_Request>& requests, Waiting waiting);

}  // namespace workload
