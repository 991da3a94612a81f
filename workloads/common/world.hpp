// MPI begun and ended, and the rank's place in it.
#pragma once

#include <mpi.h>

#include <string>

#include "common/failure.hpp"

namespace workload {

class World {
  public:
    World() {
        MPI_Init(nullptr, nullptr);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    }
    ~World() { MPI_Finalize(); }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    /// Throws a usage error on every rank unless `fits`.
    void require(bool fits, const std::string& accepted) const {
        if (!fits) {
            throw usage_error(std::to_string(ranks) + " ranks: not accepted; start it on " + accepted);
        }
    }

    bool tells() const { return rank == 0; }

    int rank = 0;
    int ranks = 1;
};

}  // namespace workload
